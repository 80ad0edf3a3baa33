"""What is shown of large arrays: their corners, made without the rest, or no numbers; nothing is computed for
good because somebody looks at it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.array import Array, term_of
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato import corners
from tests.ops.samples import SAMPLES
from tests.sessions import use
from tests.thorough import few

MIB = 1 << 20


def is_pending(x: Array) -> bool:
    return x._operand is None


def as_numpy_shows(value: Any, **how: Any) -> str:
    return np.array2string(value, separator=", ", threshold=200, **how)


# -- parts of operations' results ------------------------------------------------------------------
def tolerance(dtype: np.dtype[Any]) -> float:
    return {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype.name, 1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLES)
def test_parts_of_results_are_parts_of_the_whole(name: str) -> None:
    r = random.Random(name)
    for sample in r.sample(SAMPLES[name], min(few(12), len(SAMPLES[name]))):
        with use((1,), sample.numerics):
            made = flatten(sample.function(*map(ost.asarray, sample.inputs)))[0]
            for y in made:
                if not isinstance(y, Array) or not is_pending(y) or not y.size or not y.shape:
                    continue
                box = tuple([(lo := r.randrange(n), r.randint(lo + 1, n)) for n in y.shape])
                seen = np.asarray(corners.part(term_of(y), box, {}))
                whole = np.asarray(y)[tuple([slice(*b) for b in box])]
                assert seen.shape == whole.shape, box
                if whole.dtype.kind in "biu":
                    np.testing.assert_array_equal(seen, whole, str(box))
                    continue
                a, b = seen.astype("c16"), whole.astype("c16")
                finite = np.isfinite(b)
                most = np.abs(b[finite]).max(initial=1) * tolerance(whole.dtype)
                np.testing.assert_array_equal(np.isfinite(a), finite, str(box))
                np.testing.assert_allclose(a[finite], b[finite], atol=most, err_msg=str(box))


@pytest.mark.parametrize("mesh", [(1,), (3,)])
@pytest.mark.parametrize(
    "draw",
    [
        lambda shape: ost.random.normal(shape, seed=3),
        lambda shape: ost.random.normal(shape, seed=3, split=0, dtype=ost.float64) * 2,
        lambda shape: ost.random.uniform(shape, seed=3),
        lambda shape: ost.random.integers(0, 100, shape, seed=3),
        lambda shape: ost.random.gamma(2.5, shape, seed=3),
    ],
)
def test_parts_of_random_numbers_are_parts_of_the_whole(mesh: tuple[int, ...], draw: Any) -> None:
    boxes = [((3, 9), (0, 70)), ((0, 130), (0, 70)), ((126, 130), (67, 70)), ((7, 8), (9, 10))]
    with use(mesh):
        x = draw((130, 70))
        parts = [np.asarray(corners.part(term_of(x), box, {})) for box in boxes[1:] + boxes[:1]]
        for box, seen in zip(boxes[1:] + boxes[:1], parts, strict=True):
            whole = x.numpy()[tuple([slice(*b) for b in box])]
            np.testing.assert_allclose(seen, whole, rtol=1e-5, atol=1e-6)


# -- arrays ----------------------------------------------------------------------------------------
def chain(x: Any, xp: Any) -> Any:
    y = xp.exp(x / 1e5) * 2 + x.mean(0)
    return xp.concat([y.T, y.T * 2]) - 1


SHAPES = {
    "a vector": ((100_000,), lambda x, xp: xp.exp(x / 1e5) + 1),
    "a matrix": ((400, 300), chain),
    "a product": ((400, 300), lambda x, xp: x @ x.T * 0.5**30),
    "a row": ((1, 50_000), lambda x, xp: x * 2),
    "a narrow one": ((20_000, 5), lambda x, xp: x * 2),
    "three axes": ((30, 40, 50), lambda x, xp: x[:, ::2] - x[:, 1::2]),
    "four axes": ((8, 9, 10, 70), lambda x, xp: xp.where(x > 100, x, 0)),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", SHAPES)
def test_corners_are_shown_as_numpy_shows_them(
    case: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, function = SHAPES[case]
    size = int(np.prod(shape))
    monkeypatch.setattr(corners, "MAX_BYTES", 200_000)
    with use((workers,)):
        x = ost.arange(float(size)).reshape(shape)
        ost.evaluate(x)
        y = function(x, ost)
        expected = function(np.arange(float(size)).reshape(shape), np)
        text = repr(y)
        assert is_pending(y)
        assert text.startswith(f"Array({as_numpy_shows(expected, prefix='Array(')}, shape=")
        assert f"shape={expected.shape}, dtype=float64" in text
        assert (f" of {workers})" in text) == (workers > 1)
        with np.printoptions(precision=4, edgeitems=2, threshold=60, linewidth=100):
            assert np.array2string(expected, separator=", ") in y._repr_html_()
        assert is_pending(y)
        ost.evaluate(y)
        assert repr(y).startswith(f"Array({as_numpy_shows(expected, prefix='Array(')}, shape=")


@pytest.mark.parametrize("workers", [1, 2])
def test_where_corners_need_everything_there_are_no_numbers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corners, "MAX_BYTES", 200_000)
    with use((workers,)):
        z = ost.random.normal((300, 400), split=0)
        y = ost.sort(z, axis=0)
        assert repr(y).startswith("Array(float32[300,400]")
        assert repr(y).endswith(", pending)")
        assert (" of 2, " in repr(y)) == (workers == 2)
        assert "pending" in y._repr_html_()
        assert is_pending(y)
        assert is_pending(z)
        assert repr(z).startswith("Array([[")
        assert is_pending(z)
        ost.evaluate(y)
        assert "pending" not in repr(y)


def test_what_no_memory_is_there_for_can_be_shown() -> None:
    with ost.connect(memory_limit=MIB):
        x = ost.ones((1000, 1000)) + 1
        assert repr(x).startswith("Array([[2., 2., 2., ..., 2., 2., 2.],")
        assert repr(ost.sort(x)).startswith("Array([[2., 2., 2., ..., 2., 2., 2.],"), "row by row"
        assert repr(ost.sort(x.reshape(-1))) == "Array(float64[1000000], pending)"
        assert is_pending(x)


def test_one_number_is_shown_as_a_number() -> None:
    with use():
        loss = ost.asarray([1.0, 2.0]).mean()
        assert str(loss) == f"{loss}" == "1.5"
        assert f"{loss:.3f}" == "1.500"
        assert repr(loss) == "Array(1.5, dtype=float64)"
        assert str(ost.asarray(3, dtype="int8")) == "3"
        assert str(ost.asarray(True)) == "True"
        assert str(ost.asarray([1.5])) == "Array([1.5], dtype=float64)"
        assert f"{ost.asarray([1.5]):.2f}" == "1.50"

        @ost.compile
        def f(x: Any) -> Any:
            seen.append(f"{x.sum()}")
            return x

        seen: list[str] = []
        f(ost.ones(3))
        assert seen == ["Array(float64[], traced)"]


def test_layouts_are_shown_where_there_are_several_workers() -> None:
    with use((2,)):
        assert repr(ost.ones(3, split=0)) == "Array([1., 1., 1.], dtype=float64, split 0 of 2)"
        assert str(ost.ones(3).sum()) == "3.0"
    with use():
        assert repr(ost.ones(3)) == "Array([1., 1., 1.], dtype=float64)"
