"""Sets: NumPy's values; with `size`, filled, in every layout and while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ShapeError
from tests.helpers import assert_same
from tests.sessions import use
from tests.thorough import some

from .test_quantiles import sent

R = np.random.default_rng(3)
A, B = R.integers(0, 12, 20), R.integers(5, 20, 15)


def filled(values: Any, size: int, fill: Any = None) -> Any:
    fill = (values[0] if len(values) else 0) if fill is None else fill
    return np.concatenate([values, np.full(size, fill, values.dtype)])[:size]


TWO: list[tuple[str, Callable[..., Any]]] = [
    (name, getattr(np, name)) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d")
]


@pytest.mark.parametrize(("name", "theirs"), TWO, ids=[n for n, _ in TWO])
def test_of_two(name: str, theirs: Any) -> None:
    ours = getattr(ost, name)
    for a, b in ((A, B), (A.astype(float), B / 2), (A[:0], B), (B, B)):
        values = theirs(a, b)
        with use((2,)):
            given = [ost.asarray(x, split=0) for x in (a, b)]
            np.testing.assert_array_equal(np.asarray(ours(*given)), values)
            for size, fill in ((30, None), (30, -1), (2, None)):
                if len(a):
                    found = np.asarray(ours(*given, size=size, fill_value=fill))
                    np.testing.assert_array_equal(found, filled(values, size, fill))
    assert_same(
        lambda a, b: ours(a, b, size=25), lambda a, b: filled(theirs(a, b), 25), A, B, few=True
    )


def test_of_one() -> None:
    given = (A, A.reshape(4, 5), R.integers(0, 3, 9) / 2, np.array([True, False, True]))
    for k, x in enumerate(given):
        values, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        n = len(values)
        for size in some((n, n + 3), 2, k):
            wanted = (
                filled(values, size),
                filled(first, size),
                inverse.reshape(x.shape),
                filled(counts, size, 0),
            )
            assert_same(
                lambda x, s=size: tuple(ost.unique_all(x, size=s)),
                lambda x, w=wanted: w,
                x,
                few=True,
            )
            assert_same(
                lambda x, s=size: (
                    *ost.unique_counts(x, size=s),
                    *ost.unique_inverse(x, size=s),
                    ost.unique_values(x, size=s),
                ),
                lambda x, w=wanted: (w[0], w[3], w[0], w[2], w[0]),
                x,
                few=True,
            )
        with use():
            for found, y in zip(
                ost.unique_all(ost.asarray(x)), (values, first, inverse, counts), strict=True
            ):
                np.testing.assert_array_equal(np.asarray(found).reshape(-1), y.reshape(-1))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "uint16", "uint64", "float32"])
def test_values_of_many(dtype: str) -> None:
    """By a table, and where numbers are far apart by a sort."""
    low = 0 if dtype[0] == "u" else -90
    for end in (99, 127 if dtype == "int8" else 32767 if "16" in dtype else 2**24):
        x = np.append(R.integers(low, 90, 6000).astype(dtype), np.array(end, dtype))
        for size in (20, 250):
            with use():
                found = np.asarray(ost.unique_values(ost.asarray(x), size=size))
                np.testing.assert_array_equal(found, filled(np.unique(x), size))
                assert found.dtype == dtype


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "uint16", "uint64", "float32"])
@pytest.mark.parametrize("far", [False, True])
def test_isin_of_many(dtype: str, far: bool) -> None:
    """By a table, and where numbers are far apart by a search."""
    low = 0 if dtype[0] == "u" else -90
    x = R.integers(low, 100, (100, 60)).astype(dtype)
    end = 120 if dtype == "int8" else np.iinfo(dtype).max if dtype[0] != "f" else 1e9
    e = np.append(R.integers(0, 60, 30).astype(dtype), np.array(end if far else 3, dtype))
    for invert in (False, True):
        with use((2,)):
            found = ost.isin(ost.asarray(x, split=0), e, invert=invert)
            np.testing.assert_array_equal(np.asarray(found), np.isin(x, e, invert=invert))


def test_values_of_parts_travel_only() -> None:
    x = R.integers(0, 300, 400_000)
    y = np.where(R.random(400_000) < 0.5, np.nan, x / 4)
    y[:150_000] = np.nan  # all that one worker has
    with use((3,)):
        for given in (x, y):
            f = ost.compile(lambda x: ost.unique_values(x, size=400, fill_value=-1))
            found = np.asarray(f(ost.asarray(given, split=0)))
            values = np.unique(given, equal_nan=False)
            np.testing.assert_array_equal(found, filled(values, 400, -1))
            sizes = [n for _, n in sent(f, 3)]
            assert 0 < max(sizes) <= 3 * 400 * 8


def test_nothing_has_no_first_value() -> None:
    with use(), pytest.raises(ShapeError, match="at least one element"):
        ost.unique_values(ost.zeros(0), size=2)


@pytest.mark.parametrize("fill", [None, 9])
def test_how_often_values_occur_that_have_no_larger_one(fill: Any) -> None:
    """The largest there are, infinities, and each NaN, which is a value of its own."""
    for x in (
        np.array([7, 255, 0, 255], "u1"),
        np.array([2**64 - 1, 3, 3, 2**64 - 1], "u8"),
        np.array([True, False, True]),
        np.array([np.inf, 1, np.nan, np.inf, -np.inf, np.nan, 1]),
    ):
        values, counts = np.unique(x, return_counts=True, equal_nan=False)
        for size in (1, len(values), len(values) + 2):
            found = ost.unique_counts(x, size=size, fill_value=fill)
            more = max(size - len(values), 0)
            filled = values[0] if fill is None else np.asarray(fill).astype(x.dtype)
            np.testing.assert_array_equal(found.values, [*values[:size], *[filled] * more])
            np.testing.assert_array_equal(found.counts, [*counts[:size], *[0] * more])
