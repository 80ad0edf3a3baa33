"""Keys of every kind against NumPy: x[key], and x.at[key].set, add, multiply, min, max."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.helpers import assert_same, compare, on
from tests.thorough import some

X = np.arange(60.0).reshape(5, 4, 3)


# -- keys ----------------------------------------------------------------------------------
def slices(n: int) -> st.SearchStrategy[slice]:
    end = st.none() | st.integers(-n - 2, n + 2)
    return st.builds(slice, end, end, st.none() | st.integers(-3, 3).filter(bool))


def numbers(n: int) -> st.SearchStrategy[int]:
    return st.integers(-n, n - 1)


def places(n: int, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    size = int(np.prod(shape))
    return st.lists(numbers(n), min_size=size, max_size=size).map(
        lambda v: np.array(v, np.int64).reshape(shape)
    )


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """A key with up to one entry per axis: numbers, slices, None, ..., places and masks."""
    common = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 1), (1, 3)]))
    found: list[Any] = []
    axis, dots = 0, False
    while axis < len(shape):
        if draw(st.integers(0, 5)) == 0:
            found.append(None)
        n = shape[axis]
        kinds = ["slice", "slice", "end"]
        kinds += ["number", "places", "list"] if n else []
        kinds += ["mask", "flag"]
        kinds += [] if dots else ["dots"]
        match draw(st.sampled_from(kinds)):
            case "slice":
                found.append(draw(slices(n)))
            case "number":
                found.append(draw(numbers(n)))
            case "places":
                found.append(draw(places(n, draw(st.sampled_from([common, (1,) * len(common)])))))
            case "list":
                found.append(draw(places(n, common)).tolist())
            case "mask":
                two = axis + 1 < len(shape) and draw(st.booleans())
                size = shape[axis : axis + 1 + two]
                size = tuple(n * draw(st.sampled_from([0, 1, 1, 1])) for n in size)
                bits = draw(st.lists(st.booleans(), min_size=int(np.prod(size)), max_size=99))
                found.append(np.array(bits[: int(np.prod(size))], bool).reshape(size))
                axis += two
            case "flag":
                flag = draw(st.booleans())
                found.append(draw(st.sampled_from([flag, np.bool_(flag), np.array(flag)])))
                axis -= 1
            case "dots":
                dots = True
                found.append(...)
                axis += draw(st.integers(0, len(shape) - axis)) - 1
            case "end":
                break
        axis += 1
    return found[0] if len(found) == 1 and draw(st.booleans()) else tuple(found)


SHAPES = st.sampled_from([(5, 4, 3), (3, 2), (6,), (1, 4), (0, 3), ()])


def in_ostinato(key: Any) -> Any:
    """The same key with Arrays for arrays of places."""
    if isinstance(key, tuple):
        return tuple(in_ostinato(k) for k in key)
    return ost.asarray(key) if isinstance(key, np.ndarray) else key


def known(x: Any, key: Any) -> Any:
    """What NumPy makes of it; None if it refuses."""
    try:
        return x[key]
    except IndexError:
        return None


@settings(max_examples=125)
@given(st.data())
def test_read(data):
    shape = data.draw(SHAPES)
    key = data.draw(keys(shape))
    x = np.arange(np.prod(shape)).reshape(shape)
    wanted = known(x, key)
    with on(1):
        if wanted is None:
            with pytest.raises((BoundsError, ShapeError)):
                ost.asarray(x)[key]
            return
        compare(ost.asarray(x)[key], wanted, f"x[{key!r}]", None, None)
        compare(ost.asarray(x)[in_ostinato(key)], wanted, f"x[{key!r}] with Arrays", None, None)
    with on(3):
        split = data.draw(st.sampled_from([*range(len(shape)), None]))
        compare(ost.asarray(x, split=split)[key], wanted, f"x[{key!r}], split {split}", None, None)


UPDATES = {
    "set": None,
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def changed(x: Any, key: Any, values: Any, mode: str) -> Any:
    y = x.copy()
    if UPDATES[mode] is None:
        y[key] = values
    else:
        UPDATES[mode].at(y, key, values)
    return y


@settings(max_examples=125)
@given(st.data())
def test_update(data):
    shape = data.draw(SHAPES)
    key = data.draw(keys(shape))
    mode = data.draw(st.sampled_from(sorted(UPDATES)))
    x = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    target = known(x, key)
    if target is None:
        return
    if mode == "set" and len(np.unique(target)) < np.size(target):
        mode = "add"  # which of several values stays is nobody's business here
    kind = data.draw(st.sampled_from(["full", "row", "number"]))
    size = np.shape(target) if kind == "full" else np.shape(target)[-1:] if kind == "row" else ()
    values = np.arange(2, 2 + np.prod(size, dtype=int)).reshape(size) % 7
    wanted = changed(x, key, values, mode)
    what = f"x.at[{key!r}].{mode}({values.tolist()})"
    with on(1):
        v = int(values) if kind == "number" else values
        compare(getattr(ost.asarray(x).at[key], mode)(v), wanted, what, None, None)
    with on(3):
        split = data.draw(st.sampled_from([*range(len(shape)), None]))
        y = getattr(ost.asarray(x, split=split).at[key], mode)(ost.asarray(values))
        compare(y, wanted, f"{what}, split {split}", None, None)


# -- in layouts, compiled ------------------------------------------------------------------
PLANE, LINE = np.array([[0, 4], [-1, 2]]), np.array([3, 1])
MASK = X[:, :, 0] % 3 == 0


@pytest.mark.parametrize(
    "key",
    [
        np.s_[PLANE],
        np.s_[:, LINE],
        np.s_[PLANE, LINE],
        np.s_[LINE, :, LINE - 1],
        np.s_[None, LINE, ..., None],
        np.s_[1:4, LINE, ::-1],
        np.s_[2, LINE],
        np.s_[LINE, None, 0],
        np.s_[MASK],
        np.s_[MASK[:, 0], 1:],
        np.s_[..., [0, 0, 2]],
        np.s_[[], 1],
    ],
)
def test_layouts(key):
    assert_same(lambda x: x[key], lambda x: x[key], X)
    values = -np.arange(float(np.size(X[key]))).reshape(np.shape(X[key]))
    if len(np.unique(X[key])) == X[key].size:
        assert_same(
            lambda x, v: x.at[key].set(v),
            lambda x, v: changed(x, key, v, "set"),
            X,
            values,
            few=True,
        )
    for mode in some(["add", "max"], 2, values.size):
        assert_same(
            lambda x, v, m=mode: getattr(x.at[key], m)(v),
            lambda x, v, m=mode: changed(x, key, v, m),
            X,
            values,
            few=True,
        )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint64"])
def test_places_of_any_dtype(dtype):
    """Of an axis that is longer than the dtype can say."""
    x, i = np.arange(70_000.0), np.array([3, 100, 3], dtype)
    assert_same(lambda x, i: x[i], lambda x, i: x[i], x, i)
    assert_same(lambda x, i: x.at[i].set(-1), lambda x, i: changed(x, i, -1, "set"), x, i)
    assert_same(lambda x, i: x.at[i].add(1), lambda x, i: changed(x, i, 1, "add"), x, i)


def test_places_that_are_traced():
    assert_same(lambda x, i, j: x[i, j], lambda x, i, j: x[i, j], X, PLANE, np.int64(2))
    assert_same(lambda x, i: x.at[i].add(1), lambda x, i: changed(x, i, 1, "add"), X, LINE)
    assert_same(lambda x, i: x[i[0]], lambda x, i: x[i[0]], X, LINE)


def test_masks_that_are_traced_need_no_places():
    assert_same(lambda x: x.at[x > 30].set(0), lambda x: np.where(x > 30, 0, x), X)
    assert_same(lambda x: x.at[x > 30].multiply(x), lambda x: np.where(x > 30, x * x, x), X)


def test_a_traced_mask_says_what_to_do():
    select = ost.compile(lambda x: x[x > 3])
    with on(1), pytest.raises(TypeError, match=r"x\[mask\].*use ost.where\(mask, x, 0\)"):
        select(ost.asarray(X))


def test_of_several_values_for_one_place_the_last_stays():
    x = ost.zeros(3).at[np.array([1, 1, 1])].set(np.array([5.0, 6.0, 7.0]))
    assert np.asarray(x).tolist() == [0, 7, 0]


def test_get_is_reading():
    assert np.asarray(ost.asarray(X).at[1, 2].get()).tolist() == X[1, 2].tolist()


def test_iteration_and_length():
    rows = list(ost.asarray(X))
    assert len(ost.asarray(X)) == len(rows) == 5
    assert np.asarray(rows[3]).tolist() == X[3].tolist()


# -- updates keep the dtype ----------------------------------------------------------------
def test_update_dtypes():
    x = ost.zeros(3, dtype=ost.float32)
    assert x.at[0].set(2.5).dtype == ost.float32
    assert x.at[0].set(np.float64(2.5)).dtype == ost.float32
    assert x.at[:2].add(ost.ones(2, dtype=ost.int8)).dtype == ost.float32
    with pytest.raises(DTypeError, match=r"values of dtype float64 for an array of int8.*astype"):
        ost.zeros(3, dtype=ost.int8).at[0].set(2.5)
    with pytest.raises(DTypeError, match="values of dtype complex64 for an array of float32"):
        x.at[0].set(1j)
    with pytest.raises(DTypeError, match="the number 300"):
        ost.zeros(3, dtype=ost.int8).at[0].set(300)


# -- what is wrong -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (5, BoundsError, "got 5 on axis 0; needed -5 to 4"),
        ((0, -5), BoundsError, "got -5 on axis 1; needed -4 to 3"),
        ((0, 0, 0, 0), BoundsError, r"got 4 indices for shape \(5, 4, 3\); needed at most 3"),
        (np.array([0, 9]), BoundsError, "got index 9; needed -5 to 4"),
        (np.array([-9, 3]), BoundsError, "got index -9; needed -5 to 4"),
        (([0, 1], 7), BoundsError, "got index 7; needed -4 to 3"),
        ("a", ArgumentError, "got str 'a'; needed numbers, slices"),
        (1.0, ArgumentError, "got float 1.0; needed numbers"),
        (np.array([0.5]), DTypeError, "an array of float64; needed integers or bools"),
        ((..., ...), ArgumentError, "got two ellipses; needed one"),
        (np.ones(4, bool), BoundsError, r"a mask of shape \(4,\); needed the shape \(5,\)"),
        (([0, 1], [0, 1, 2]), ShapeError, r"\(2,\) and \(3,\)"),
    ],
)
def test_wrong_keys(key, error, text):
    x = ost.asarray(X)
    with pytest.raises(error, match=text):
        x[key]
    with pytest.raises(error, match=text):
        x.at[key].set(0)


def test_places_out_of_bounds_that_only_running_shows():
    with on(1):
        i = ost.asarray([1, 7])
        with pytest.raises(
            BoundsError, match=r"take \(.*test_indexing.py:\d+\): got index 7 is out"
        ):
            np.asarray(ost.asarray(X)[i])
    with on(3):
        i = ost.asarray([1, -8])
        with pytest.raises(BoundsError, match="index -8 is out of bounds"):
            np.asarray(ost.asarray(X, split=0).at[i].set(0))


def test_values_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"values of shape \(2,\); needed .* \(4, 3\)"):
        ost.asarray(X).at[0].set(np.ones(2))


# -- functions -----------------------------------------------------------------------------
def test_nonzero():
    x = np.array([[0, 3, 0], [4, 0, 5]])
    for got, wanted in zip(ost.nonzero(ost.asarray(x)), np.nonzero(x), strict=True):
        compare(got, wanted, "nonzero", None, None)
    padded = [np.r_[i, 0, 0] for i in np.nonzero(x)]
    assert_same(lambda x: ost.nonzero(x, size=5), lambda x: tuple(padded), x)
    assert_same(lambda x: ost.nonzero(x, size=2), lambda x: tuple(i[:2] for i in np.nonzero(x)), x)
    with pytest.raises(ShapeError, match=r"nonzero.*at least one axis"):
        ost.nonzero(ost.asarray(1.0))


def test_take():
    assert_same(lambda x: ost.take(x, [3, 0], axis=1), lambda x: np.take(x, [3, 0], 1), X)
    assert_same(lambda x: ost.take(x, [59, 0]), lambda x: np.take(x, [59, 0]), X)
    with pytest.raises(BoundsError, match=r"take.*got index 4; needed -4 to 3"):
        ost.take(ost.asarray(X), [4], axis=1)
    with pytest.raises(DTypeError, match="indices of dtype float64; needed integers"):
        ost.take(ost.asarray(X), ost.asarray([0.0]), axis=0)
