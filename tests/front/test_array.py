"""Arrays: what they are, how they are read, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.sessions import use


def test_facts_without_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.reading import _Reader

    def never(*args: Any) -> Any:
        raise AssertionError("computed")

    monkeypatch.setattr(_Reader, "settle", never)
    x = ost.asarray(np.ones((3, 4), np.float32)) * 2 + 1
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == (
        (3, 4),
        ost.float32,
        2,
        12,
        48,
        4,
        3,
    )
    assert x.device == "cpu"
    assert x.to_device("cpu") is x
    assert x.T.shape == (4, 3)
    assert x.sum(0).shape == (4,)
    with pytest.raises(AssertionError, match="computed"):
        np.asarray(x)


def test_reading() -> None:
    with use():
        x = ost.asarray([[1.5, 2.5]])
        assert np.asarray(x).tolist() == [[1.5, 2.5]]
        assert x.tolist() == [[1.5, 2.5]]
        assert x[0, 1].item() == 2.5
        assert float(x[0, 0]) == 1.5
        assert int(ost.asarray(3)) == 3
        assert complex(ost.asarray(1j)) == 1j
        assert bool(ost.asarray(True))
        assert [10, 20, 30][ost.asarray(1)] == 20
        assert f"{ost.asarray(2.0):.2f}" == "2.00"
        assert [float(row.sum()) for row in x.T] == [1.5, 2.5]
        assert np.asarray(x, dtype=np.float32).dtype == np.float32
        assert np.add(np.ones(2), 1).tolist() == [2, 2]
        assert repr(x) == "Array([[1.5, 2.5]], dtype=float64)"
        assert "..." in repr(ost.zeros(1000))


def test_numpy_meets_ostinato() -> None:
    with use():
        x, a = ost.ones(3), np.array([1.0, 2.0, 3.0])
        for y in (x + a, a + x, a * x, a - x, a @ x, a < x, a == x):
            assert isinstance(y, ost.Array)
        assert np.asarray(a - x).tolist() == [0, 1, 2]
        assert np.float64(2) * x is not NotImplemented
        assert isinstance(np.float64(2) * x, ost.Array)
        assert np.asarray([1, 2, 3] + x).tolist() == [2, 3, 4]  # noqa: RUF005


def test_dlpack_both_ways() -> None:
    with use():
        x = ost.asarray(np.arange(6.0).reshape(2, 3)) * 2
        y = np.from_dlpack(x)
        assert y.tolist() == [[0, 2, 4], [6, 8, 10]]
        assert x.__dlpack_device__() == (1, 0)
        z = ost.from_dlpack(np.arange(3.0))
        assert np.asarray(z).tolist() == [0, 1, 2]
        assert np.asarray(ost.from_dlpack(x)).tolist() == y.tolist()


def test_foreign_memory_is_copied_unless_borrowed() -> None:
    with use():
        a = np.ones(3)
        kept, borrowed = ost.asarray(a), ost.asarray(a, copy=False)
        late = kept + 1
        a[:] = 7
        assert np.asarray(kept).tolist() == [1, 1, 1]
        assert np.asarray(late).tolist() == [2, 2, 2]
        assert np.asarray(borrowed).tolist() == [7, 7, 7]


def test_what_numpy_is_given_cannot_change_the_array() -> None:
    with use():
        x = ost.ones(3) * 2
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(x)[0] = 5
        y = np.array(x)
        y[0] = 5
        assert np.asarray(x).tolist() == [2, 2, 2]


def test_in_place_operators_are_seen_by_all_who_have_the_array() -> None:
    with use():
        x = y = ost.ones(2)
        x += 1
        assert x is y
        assert np.asarray(y).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ost.Array(), ArgumentError, "use ost.asarray"),
        (lambda: bool(ost.ones(2)), ShapeError, r"bool\(\) .*got an array of shape \(2,\); needed one element; reduce it"),
        (lambda: hash(ost.ones(2)), ArgumentError, "as the key"),
        (lambda: len(ost.ones(())), ArgumentError, "at least one axis"),
        (lambda: ost.ones(2).to_device("tpu"), ArgumentError, "got 'tpu'; needed 'cpu'"),
        (lambda: range(ost.ones(())), DTypeError, "got float64; needed an integer dtype"),
        (lambda: ost.ones(2).__array_namespace__(api_version="1999.01"), ArgumentError, "2024.12"),
        (lambda: ost.asarray(["a"]), DTypeError, "needed one of bool, int8"),
        (lambda: ost.asarray([[1, 2], [3]]), ArgumentError, "numbers in a regular shape"),
        (lambda: ost.ones((2, 3)) @ ost.ones((2, 3)), ShapeError, r"matmul \(.*test_array.py:\d+\): got float64\[2,3\] @ float64\[2,3\]; needed as many columns"),
        (lambda: ost.ones((2, 3)) + ost.ones((4, 5)), ShapeError, r"add \(.*\): got \(2, 3\) and \(4, 5\); needed shapes that are equal"),
        (lambda: ost.ones((2, 3)).reshape(4, 2), ShapeError, r"got \(2, 3\) to \(4, 2\); needed a shape of 6 elements"),
        (lambda: ost.ones(3)[5], BoundsError, r"got 5 on axis 0; needed -3 to 2, as the axis has 3 elements"),
        (lambda: ost.ones(3).sum(2), BoundsError, "got axis 2 of an array with 1 axes"),
        (lambda: ost.ones(3, dtype="float99"), DTypeError, "got 'float99'; needed one of"),
        (lambda: ost.ones(3, dtype=ost.int8) + 300, DTypeError, "the number 300 .*needed a number from -128 to 127"),
        (lambda: ost.ops.lookup("expp"), ost.errors.UnknownOpError, "such as exp"),
    ],
)  # fmt: skip
def test_errors_are_one_clear_sentence(make: Any, error: type[Exception], message: str) -> None:
    with use(), pytest.raises(error, match=message) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert "test_array.py:" in text, "it is the user's own line"


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """The picture at the top of ostinato/errors.py names each class with its parent."""
    import inspect

    from ostinato import errors

    drawn = errors.__doc__ or ""
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, errors.OstinatoError) and cls is not errors.OstinatoError:
            line = next(x for x in drawn.splitlines() if f" {name} " in x)
            for base in cls.__bases__[1:]:
                assert base.__name__ in line
            assert cls.__doc__


def test_namespace() -> None:
    x = ost.ones(2)
    assert x.__array_namespace__() is ost
    assert x.__array_namespace__(api_version="2024.12") is ost


UFUNCS = {f.__name__: f for f in vars(np).values() if isinstance(f, np.ufunc) and f.nout == 1}


@pytest.mark.parametrize("name", UFUNCS)
def test_functions_of_numpy(name: str) -> None:
    """They give an Array with the right values, or say that they cannot."""
    f = UFUNCS[name]
    real = any("d" in types.split("->")[0] for types in f.types)
    x = np.array([[0.75, 0.5], [0.5, 0.25]]) if real else np.array([[1, 2], [3, 0]])
    try:
        with np.errstate(all="ignore"):
            wanted = f(*[x] * f.nin)
    except (TypeError, ValueError):
        return
    try:
        found = f(*[ost.asarray(x), *[x] * (f.nin - 1)])
    except ArgumentError as error:
        assert f"np.{name}" in str(error)  # noqa: PT017
        assert name not in ("add", "arcsin", "matmul", "left_shift", "power", "isnan")
        return
    assert isinstance(found, ost.Array)
    np.testing.assert_allclose(np.asarray(found), wanted)
    if f.nin == 2:
        np.testing.assert_allclose(np.asarray(f(x, ost.asarray(x))), wanted)
