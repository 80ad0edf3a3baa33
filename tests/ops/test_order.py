"""Order by machine code against NumPy's, for lines of all lengths that lie in all ways."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DTYPES, bfloat16
from ostinato.ops.cpu.kernels.sort import line_order as order
from ostinato.ops.cpu.kernels.sort.line_order import (
    EXCHANGES,
    MIN_SHARED_KEYS,
    sort_function,
    sort_scratch,
)
from ostinato.ops.cpu.kernels.sort.radix import MAX_INSERTION_KEYS

import ostinato as ost
from tests.thorough import some

KINDS = [d for d in DTYPES.values() if d.kind != "c"]
ODD = (0.0, -0.0, 1.0, np.nan, -np.nan, np.inf, -np.inf)
GUARD = 4096  # bytes around what a function may write to
SHAPES = [
    (7,),
    (5, MAX_INSERTION_KEYS),
    (40, 5),
    (60, 33, 2),
    (30, EXCHANGES),
    (3, 2000),
]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers with ties, of all sizes."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        few = rng.random() < 0.5
        return rng.integers(0 if few else low, 9 if few else high, shape, dtype, endpoint=True)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
    odd = np.array(ODD, np.float32).astype(dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(odd, shape), x)


def lying_otherwise(rng: np.random.Generator, x: Any) -> Any:
    if rng.random() < 0.3:
        x = np.ascontiguousarray(x.T).T
    if rng.random() < 0.3:
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    return np.flip(x, 0) if rng.random() < 0.3 else x


def places_by_numpy(x: Any, axis: int, descending: bool) -> Any:
    x = x.astype(np.float32) if x.dtype == bfloat16 else x
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def guarded(shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """An array, and the memory that it is in the middle of."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD, 77, np.int8)
    return memory[GUARD : GUARD + size].view(dtype).reshape(shape), memory


def check(x: Any, axis: int, descending: bool, first: int, threads: int) -> None:
    expected = np.take(places_by_numpy(x, axis, descending), np.arange(first), axis)
    values = np.take_along_axis(x, expected, axis)
    for places, wanted in ((True, expected), (False, values)):
        out, memory = guarded(wanted.shape, np.int64 if places else x.dtype)
        needed = sort_scratch(x.shape, x.dtype, axis, first, places)
        rooms = [guarded(s.shape, s.dtype) for s in needed]
        function = sort_function(x, out, threads, axis, descending, places, [r for r, _ in rooms])
        assert function is not None
        function(x, out)
        about = (x.shape, x.strides, x.dtype, axis, descending, first, threads, places)
        wide = np.float64 if wanted.dtype.kind not in "iub" else wanted.dtype
        np.testing.assert_array_equal(out.astype(wide), wanted.astype(wide), str(about))
        if not places and first == x.shape[axis]:
            by_numpy = np.empty_like(out)
            kernel = OPS["sort"].kernel
            assert kernel is not None
            kernel(np, by_numpy, x, axis=axis, descending=descending, stable=True)
            assert out.tobytes() == by_numpy.tobytes(), about
        for whole in (memory, *(m for _, m in rooms)):
            assert (whole[:GUARD] == 77).all(), about
            assert (whole[-GUARD:] == 77).all(), about


@pytest.mark.parametrize("dtype", KINDS, ids=lambda d: d.name)
def test_lines_are_in_numpy_s_order(dtype: Any) -> None:
    """Of each dtype some shapes, of each shape some dtypes."""
    turn = KINDS.index(dtype)
    rng = np.random.default_rng(turn)
    for shape in some(SHAPES, 3, turn):
        x = lying_otherwise(rng, numbers(rng, shape, dtype))
        axis = int(rng.integers(x.ndim))
        n, descending = x.shape[axis], bool(rng.random() < 0.5)
        check(x, axis, descending, n, 2)
        check(x, axis, descending, int(rng.integers(1, 1 + max(1, n // rng.choice([1, 8])))), 1)


@pytest.fixture
def runs_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Another kind of processor, as LLVM calls it."""

    def change(name: str) -> None:
        monkeypatch.setattr(order, "processor", lambda: name)
        order._has_vectors.cache_clear()

    yield change
    order._has_vectors.cache_clear()


@pytest.mark.parametrize("name", ["znver4", "skylake-avx512"])
@pytest.mark.parametrize("dtype", KINDS, ids=lambda d: d.name)
def test_a_long_line_is_shared(dtype: Any, name: str, runs_on: Callable[[str], None]) -> None:
    runs_on(name)
    rng = np.random.default_rng(3)
    n = MIN_SHARED_KEYS + int(rng.integers(1000))
    descending = KINDS.index(dtype) % 2 > 0
    for first in some((n, n - 5, 20), 3, KINDS.index(dtype)):
        check(numbers(rng, (n,), dtype), 0, descending, first, 2)


def test_a_long_line_is_numpys_where_its_vectors_are_quick(
    monkeypatch: pytest.MonkeyPatch, runs_on: Callable[[str], None]
) -> None:
    """Ours need memory for keys."""
    monkeypatch.setattr(order, "most_threads", lambda: 2)
    features = np._core._multiarray_umath.__cpu_features__
    has_vectors = features["AVX2"] or features["AVX512_SKX"]
    for name, is_ours in (("znver4", True), ("skylake-avx512", not has_vectors)):
        runs_on(name)
        assert (
            bool(sort_scratch((MIN_SHARED_KEYS,), np.dtype("f4"), 0, MIN_SHARED_KEYS, False))
            == is_ours
        )


def test_the_largest_and_their_places() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((50, 400)).astype(np.float32)
    x[:, ::7] = 1.5  # ties: the first of them come first
    for axis, k in ((1, 10), (0, 3), (1, 400), (1, 0)):
        for largest in (True, False):
            values, places = ost.topk(ost.asarray(x), k, axis=axis, largest=largest)
            expected = np.take(places_by_numpy(x, axis, largest), np.arange(k), axis)
            np.testing.assert_array_equal(np.asarray(places), expected)
            np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, expected, axis))
