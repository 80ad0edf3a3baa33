"""What masks pick inside compiled functions, and `where=` of reductions, against NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    ShapeError,
)
from tests.helpers import assert_same, compare, compare_all, counts_traces, on

NAN, INF = float("nan"), float("inf")
X = np.random.default_rng(5).normal(size=(6, 4))
X[0, 1], X[3, 2], X[5, 0] = NAN, INF, -INF
GOOD = np.isfinite(X)

# -- f of what is picked -----------------------------------------------------------------------
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "sqrt": lambda np, v: np.sqrt(np.abs(v)),
    "log": lambda np, v: np.log(v * v + 1),
    "reciprocal": lambda np, v: 1 / (v + 3),
    "clip": lambda np, v: np.clip(v, -1, 1),
    "where": lambda np, v: np.where(v > 0, v, -2 * v),
    "number": lambda np, v: 2 * v - 1,
    "power": lambda np, v: v**2,
    "itself": lambda np, v: v * v.sum() / (v.size + 1),
    "in place": lambda np, v: _halved(v),
    "round": lambda np, v: np.round(v, 1),
    "largest": lambda np, v: v / np.max(np.abs(v), initial=1.0),
    "again": lambda np, v: _cut(v),
}
KEYS: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: x > 0,
    "rows": lambda x: (x[:, 1] if x.ndim == 2 else x[:, 1, 0]) > 0,
    "leading": lambda x: x[..., 0] > 0,
    "columns": lambda x: (slice(None), x[0] > 0),
    "of a row": lambda x: (2, x[2] > 0),
    "of a column": lambda x: (x[:, 1] > 0, 1),
    "of some": lambda x: (slice(1, 4), x[0] > 0),
    "dots": lambda x: (..., x[0] > 0),
    "one more": lambda x: (None, x > 0),
    "none": lambda x: x > 99,
    "every": lambda x: x < 99,
}


def _halved(v: Any) -> Any:
    v = v + 0
    v *= 0.5
    v[v > 1] = 1
    return v


def _cut(v: Any) -> Any:
    v = v + 0
    v[v > 0.2] = v[v > 0.2] + 1
    v[...] = v - 1
    return v


def _finite(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


@settings(max_examples=60)
@given(
    key=st.sampled_from(sorted(KEYS)),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    how=st.sampled_from(["set", "add", "at"]),
    shape=st.sampled_from([(6, 5), (5, 3), (4, 3, 2)]),
    dtype=st.sampled_from(["f8", "f4"]),
    workers=st.sampled_from([1, 1, 3]),
    seed=st.integers(0, 9),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the mean of nothing
def test_of_what_is_picked(
    key: str, steps: list[str], how: str, shape: Any, dtype: str, workers: int, seed: int
) -> None:
    if key.startswith("of a ") and len(shape) > 2:
        shape = shape[:2]

    def run(np: Any, x: Any) -> Any:
        k = KEYS[key](x)
        v = x[k]
        for step in steps:
            v = STEPS[step](np, v)
        if how == "at" and np is ost:
            return x.at[k].set(v)
        if how == "add":
            x[k] += v
        else:
            x[k] = v
        return x

    x = _finite(shape, seed).astype(dtype)
    wanted = run(np, x.copy())
    with on(workers):
        got = ost.compile(lambda x: run(ost, x))(ost.asarray(x, split=0 if workers > 1 else None))
        rtol = 1e-3 if dtype == "f4" else None  # of sums in another order, and their logarithms
        compare(got, wanted, f"{key} {steps} {how}", rtol, None)


@settings(max_examples=80)
@given(st.data())
def test_any_key_with_one_mask(data: st.DataObject) -> None:
    """Read, assigned and added to, with numbers, slices and new axes beside the mask, or its places."""
    shape = data.draw(st.sampled_from([(4, 3, 2), (2, 3, 4), (3, 2), (5,), (0, 3)]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    ndim = data.draw(st.integers(1, min(2, len(shape) - axis)))
    n = data.draw(st.integers(0, 99))
    mask = np.random.default_rng(n).random(shape[axis : axis + ndim]) < 0.5
    rest = [m for d, m in enumerate(shape) if not axis <= d < axis + ndim]
    parts: list[Any] = []
    for m in rest:
        some = [
            slice(None),
            slice(1, None),
            slice(None, None, -1),
            None,
            *([m - 1, 0] if m else []),
        ]
        part = data.draw(st.sampled_from(some))
        parts += [None, slice(None)] if part is None else [part]
    at = next(k for k in range(len(parts) + 1) if sum(p is not None for p in parts[:k]) == axis)
    places = data.draw(st.booleans())
    x = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    weight = x[::-1] * 3 + 1

    def run(np: Any, x: Any, mask: Any, weight: Any) -> Any:
        where = np.nonzero(mask) if places else (mask,)
        key = (*parts[:at], *where, *parts[at:])
        if at and parts[0] == slice(None) and n % 2:
            key = (..., *key[1:])
        v, w = x[key], weight[key]
        x[key] = v * 2 - w
        x[key] += v
        weight[key] = 7
        along = [v.sum(axis=d) for d in range(v.ndim)]
        if np is ost:
            opens.extend(type(y) is not ost.Array for y in along)
        known = [y.sum() if o else y for y, o in zip(along, opens, strict=True)]
        return x, weight, (v * w).sum(), *known, v.size + 0

    opens: list[bool] = []  # sums that have as many elements as the mask picks
    what = f"{parts} {at} {mask.tolist()} {places}"
    with on(data.draw(st.sampled_from([1, 1, 3]))):
        got = ost.compile(lambda *given: run(ost, *given))(*map(ost.asarray, (x, mask, weight)))
        assert opens.count(False) == 1, what
        wanted = run(np, x.copy(), mask, weight.copy())
        compare_all(got, tuple(map(np.asarray, wanted)), what)


def test_where_the_axis_of_what_is_picked_stands() -> None:
    """In front, if a slice stands between the mask and a number."""
    x, m = np.arange(24.0).reshape(4, 3, 2), np.array([True, False, True, True])

    def run(np: Any, x: Any, m: Any) -> Any:
        x[m, :, 1] = x[m, :, 1] + [1, 2, 3]
        x[:, 0, m[:2]] *= 2
        return x, x[m, :, 1].sum(axis=0), x[3, :, m[:2]].sum(axis=0), x[:, 1, m[:2]].sum(axis=1)

    got = ost.compile(lambda x, m: run(ost, x, m))(ost.asarray(x), ost.asarray(m))
    compare_all(got, run(np, x.copy(), m), "", None, None)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    name: (lambda np, v, name=name, **how: getattr(np, name)(v, **how))
    for name in ("sum", "mean", "prod", "min", "max", "var", "std", "any", "all", "count_nonzero")
}


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(REDUCTIONS)),
    key=st.sampled_from(["all", "rows", "columns", "of a column", "dots"]),
    axis=st.sampled_from([None, 0, 1, -1]),
    keepdims=st.booleans(),
    dtype=st.sampled_from(["f8", "f4", "i4"]),
    workers=st.sampled_from([1, 1, 3]),
    seed=st.integers(0, 9),
)
def test_reductions_of_what_is_picked(
    name: str, key: str, axis: Any, keepdims: bool, dtype: str, workers: int, seed: int
) -> None:
    x = (_finite((6, 5), seed) * 3).astype(dtype)
    x[2, 1] = x[0, 2] = 1  # so that something is picked
    picked = x[KEYS[key](x)]
    if axis is not None and axis >= picked.ndim:
        axis = 0
    how = {"axis": axis, "keepdims": keepdims}
    wanted = REDUCTIONS[name](np, picked, **how)
    is_open = wanted.shape and picked.shape[-1 if key in ("columns", "dots") else 0] in wanted.shape

    def run(x: Any) -> Any:
        made = REDUCTIONS[name](ost, x[KEYS[key](x)], **how)
        return made.sum() if is_open else made  # which nobody knows the shape of

    with on(workers):
        got = ost.compile(run)(ost.asarray(x, split=0 if workers > 1 else None))
        compare(got, wanted.sum() if is_open else wanted, f"{name} {key} {how}", None, None)


def _neighbours(np: Any, x: Any) -> Any:
    i, j = np.nonzero(x[:-1] > 0)
    x[i + 1, j] = x[i, j] - 1
    return x


def _rows(np: Any, x: Any) -> Any:
    (i,) = np.where(x[:, 0] > 0)
    x[i] = x[i] * 2
    x[(i - 1) % 6, 1] = 7
    return x[:, 1:][i, 2].sum() + x[i][:, 1].mean() + i.max() + i.size + x.sum()


def _in_a_row(np: Any, x: Any) -> Any:
    i = np.flatnonzero(x > 0)
    y = x.ravel() * 1
    y[i] = y[i] - y[i].mean()
    return y


def _added(np: Any, x: Any) -> Any:
    (i,) = np.nonzero(x[0] > 0)
    y = x * 1
    np.add.at(y, (slice(None), i // 2), x[:, i])
    np.divide.at(y, x > 0, 2.0)
    return y


def _fit(np: Any, x: Any) -> Any:
    m = x[:, 0] > -0.5
    rest = x[m] @ x[0] - x[m][:, 1]
    left = x[0] @ x[m].T + np.dot(rest, rest)
    return x[m].T @ rest, x[m].T @ x[m], left.sum(), np.ones_like(rest) @ rest, x[x > 0] @ x[x > 0]


def _middle(np: Any, x: Any) -> Any:
    m, v = x[:, 0] > -0.5, x[x > 0.1]
    few = (np.median(v), np.percentile(v, [10, 50.0]), np.quantile(x[m], 0.3, axis=0))
    return (*few, np.median(x[m], axis=1).sum(), np.nanmedian(v, keepdims=True))


def _ranks(np: Any, x: Any) -> Any:
    v, w = x[x > 0.1], x[:, 0] > -0.5
    x[x > 0.1] = np.cumsum(v) / v.cumsum().max() + np.cumprod(v)
    return (
        x,
        v.argmax(),
        np.argmin(v, keepdims=True),
        np.argmax(x[w]),
        np.maximum.accumulate(v).sum(),
    )


def _kept(np: Any, x: Any) -> Any:
    m = x > 0.1
    v, i = x[m], np.nonzero(m)
    before = x[i]
    x[m] = 0
    m[0] = False
    m &= x[0] == 0
    x[1] = v.max()
    return x, v.sum(), before.mean(), x[m].sum(), i[0].sum()


OTHERS = [_kept, _ranks, _neighbours, _rows, _in_a_row, _added, _fit, _middle]


@pytest.mark.parametrize("function", OTHERS)
@pytest.mark.parametrize("workers", [1, 3])
def test_places_products_and_medians(function: Any, workers: int) -> None:
    """What programs do beside: `nonzero` for keys, matrices of some rows, medians."""
    for seed in range(4):
        x = _finite((6, 5), seed)
        x[0] = np.abs(x[0])
        wanted = function(np, x.copy())
        with on(workers):
            f = ost.compile(lambda x: function(ost, x))
            got = f(ost.asarray(x, split=0 if workers > 1 else None))
            compare_all(got, wanted, function.__name__, 1e-12, 1e-12)
    with on():
        part = ost.compile(
            ost.grad(lambda x: sum(y.sum() for y in flatten(function(ost, x * 1))[0]))
        )
        step, h = _finite(x.shape, 9), 1e-6
        ends = [sum(np.sum(y) for y in flatten(function(np, x + s * h * step))[0]) for s in (1, -1)]
        slope = float((np.asarray(part(ost.asarray(x))) * step).sum())
        assert abs(slope - (ends[0] - ends[1]) / (2 * h)) < 1e-6 * max(1, abs(slope))


def test_medians_see_nan() -> None:
    x = np.array([1.0, np.nan, 3.0, -5.0])
    f = ost.compile(lambda x: (ost.median(x[~(x < 0)]), ost.nanmedian(x[~(x < 0)])))
    np.testing.assert_array_equal(f(ost.asarray(x)), [np.nan, 2])


def test_of_nothing() -> None:
    """As NumPy; the smallest of no floats is NaN, of no whole numbers the largest that there is."""
    x = ost.asarray([1.0, 2.0])

    def all_of(x: Any) -> Any:
        v = x[x > 5]
        few = (v.sum(), v.prod(), v.mean(), v.var(), v.std(), v.min(), v.max(), v.any(), v.all())
        return (*few, v.size + 0, ost.count_nonzero(v))

    found = [np.asarray(y).item() for y in ost.compile(all_of)(x)]
    assert found[:2] == [0, 1]
    assert np.isnan(found[2:7]).all()
    assert found[7:] == [False, True, 0, 0]
    i = ost.asarray([1, 2], dtype=ost.int32)
    ends = ost.compile(lambda x: (x[x > 5].min(), x[x > 5].max()))(i)
    assert [int(y) for y in ends] == [2**31 - 1, -(2**31)]


def test_what_is_not_picked_leaves_no_trace() -> None:
    """No NaN that a debugger would find, and gradients that are 0, not NaN."""
    x = np.array([4.0, -1.0, 0.0, NAN, INF, 9.0])

    def loss(x: Any) -> Any:
        m = x > 1
        v = x[m & (x < 99)]
        return (ost.log(ost.sqrt(v)) / v + ost.acosh(v) + v**1.5).sum()

    for run in (ost.grad(loss), ost.compile(ost.grad(loss))):
        slopes = np.asarray(run(ost.asarray(x)))
        assert np.isfinite(slopes).all()
        assert (slopes[[1, 2, 3, 4]] == 0).all()
        assert (slopes[[0, 5]] != 0).all()

    def assigned(x: Any) -> Any:
        y = x * 1
        y[x > 1] = ost.log(y[x > 1])
        y.at[x > 1].multiply(y[x > 1])
        return ost.where(ost.isfinite(y), y, 0).sum()

    slopes = np.asarray(ost.grad(assigned)(ost.asarray(x[:3])))
    np.testing.assert_allclose(slopes, [0.25, 1, 1])


CALM = sorted(
    name
    for name, op in OPS.items()
    if op.aligns and op.scalar and op.grad and not op.takes and op.made_by == "users"
)


@pytest.mark.parametrize("name", CALM)
def test_operands_that_stand_in_are_calm(name: str) -> None:
    """For every operation of elements: its value and slopes are finite there."""
    from ostinato.ops.core.apply import apply

    op = OPS[name]
    for count in (1, 2, 3, 4):
        given = [ost.asarray(op.element.calm)] * count
        given = [ost.asarray(True), *given[1:]] if name == "where" else given
        try:
            value = apply(name, *given)
        except (TypeError, ValueError):
            continue
        break
    else:
        pytest.skip("it takes no real numbers")
    assert np.isfinite(np.asarray(value)).all()
    if value.dtype.kind != "f" or name == "where":
        return
    slopes = ost.grad(lambda xs: apply(name, *xs))(tuple(given))
    assert np.isfinite([float(s) for s in slopes]).all(), slopes


def test_the_same_mask_however_often_it_is_written() -> None:
    def run(np: Any, x: Any, y: Any) -> Any:
        x[(x > 0) & (y < 1)] += np.sin(y[(x > 0) & (y < 1)]) * 2
        m = x > 0
        x[m] = x[m] / x[m].sum() * y[m].mean()
        x[~m] -= y[~m].max()
        return x

    x, y = _finite((7, 3), 1), _finite((7, 3), 2)
    wanted = run(np, x.copy(), y)
    for workers in (1, 3):
        with on(workers):
            got = ost.compile(lambda x, y: run(ost, x, y))(ost.asarray(x), ost.asarray(y))
            compare(got, wanted, "", None, None)


def test_gradients_vmap_and_loops() -> None:
    def centred(x: Any) -> Any:
        x = x + 0
        x[x > 0] = x[x > 0] - x[x > 0].mean()
        return x

    x = _finite((4, 6), 3)
    x[:, 0] = 9  # so that something is picked
    rows = np.stack([centred(row) for row in x])
    assert_same(lambda x: ost.vmap(centred)(x), lambda x: rows, x, few=True)
    twice = np.stack([centred(centred(row)) for row in x])
    assert_same(
        lambda x: ost.vmap(lambda r: ost.repeat(2, centred, r))(x), lambda x: twice, x, few=True
    )

    def loss(x: Any) -> Any:
        v = x[x > 0]
        return (v * v).sum() / v.size + v.std() + (v / v.max()).mean() + v.prod()

    row = np.array([0.5, -1.0, 2.0, 3.0, -0.2])
    slope = np.asarray(ost.compile(ost.grad(loss))(ost.asarray(row)))
    steps = np.eye(len(row)) * 1e-6
    by_difference = [(loss(row + s) - loss(row - s)) / 2e-6 for s in steps]
    np.testing.assert_allclose(slope, by_difference, rtol=1e-7, atol=1e-9)


@counts_traces
def test_numbers_among_the_arguments_decide_nothing() -> None:
    f = ost.compile(lambda x, n: x[ost.arange(8) < n].sum())
    for n in range(4):
        assert float(f(ost.ones(8), n)) == n
    assert len(f.misses) == 1
    g = ost.compile(lambda x, n: x[ost.arange(8) < n])
    assert [g(ost.ones(8), n).shape for n in (2, 5)] == [(2,), (5,)]  # a shape is asked for


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (lambda x: x[x > 0], r"x\[mask\] \(.*test_picked.py:\d+\): got bool\[6,4\] while .*ost.where"),
        (lambda x: ost.sort(x[x > 0]), r"x\[mask\] \(.*test_picked"),
        (lambda x: len(x[x > 0]), r"x\[mask\]"),
        (lambda x: ost.matmul(x[x > 0], x[x < 0]), r"matmul .*two masks"),
        (lambda x: x[x[:, 0] > 0] @ x[x[:, 0] > 0], r"x\[mask\]"),
        (lambda x: ost.stack(ost.nonzero(x)), r"nonzero .*pass size="),
        (lambda x: x[x > 0].reshape(2, -1), r"x\[mask\]"),
        (lambda x: (x[x > 0] + x[x < 0]).sum(), r"add \(.*: got what two masks pick while.*the same mask"),
        (lambda x: (x[x > 0] + x[:, 0]).sum(), r"add \(.*: got x\[mask\] and float64\[6\]"),
        (lambda x: (x[x > 0][0]).sum(), r"x\[mask\]"),
        (lambda x: x.at[x > 0].set(x[x < 0]), r"x.at\[...\] \(.*two masks"),
    ],
)  # fmt: skip
def test_who_asks_how_many_is_told_what_to_do(body: Any, says: str) -> None:
    with pytest.raises(DataDependentShapeError, match=says):
        ost.compile(body)(ost.asarray(X))


# -- where= and initial= -----------------------------------------------------------------------
MASKS = {"all": GOOD, "row": GOOD[0], "column": GOOD[:, :1], "none": GOOD & False, "yes": True}


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(REDUCTIONS.keys() - {"count_nonzero"})),
    mask=st.sampled_from(sorted(MASKS)),
    axis=st.sampled_from([None, 0, 1, (0, 1)]),
    keepdims=st.booleans(),
    dtype=st.sampled_from(["f8", "f4", "f2", "c16", "i4", "u1", "?"]),
    initial=st.sampled_from([None, 2]),
    by=st.sampled_from(["function", "method", "np", "reduce"]),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_where_and_initial(
    name: str, mask: str, axis: Any, keepdims: bool, dtype: str, initial: Any, by: str
) -> None:
    x = np.where(GOOD, X, 0).astype(dtype) if dtype[0] in "iu?" else X.astype(dtype)
    how: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "where": MASKS[mask]}
    if name in ("sum", "prod", "min", "max"):
        how["initial"] = 2 if initial is None and name in ("min", "max") else initial
        how = {k: v for k, v in how.items() if k != "initial" or v is not None}
    if dtype == "c16" and name in ("min", "max"):
        with pytest.raises(DTypeError):
            getattr(ost, name)(x, **how)
        return
    if dtype == "?" and name in ("min", "max", "mean", "var", "std"):
        return
    how = {k: v for k, v in how.items() if v is not True or k != "where"}
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(x, **how)
    reduces = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

    def run(x: Any) -> Any:
        if by == "method":
            return getattr(x, name)(**how)
        if by == "np":
            return getattr(np, name)(x, **how)
        if by == "reduce" and name in reduces:
            return reduces[name].reduce(x, **how)
        return getattr(ost, name)(x, **how)

    if by == "reduce" and dtype[0] in "iu?" and name in ("sum", "prod"):
        return  # whose dtypes differ
    assert_same(
        run,
        lambda x: wanted,
        x,
        few=True,
        meshes=(((3,), 2),),
        rtol=3e-3 if dtype == "f2" else None,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the mean of nothing
@pytest.mark.parametrize(
    "name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"]
)
def test_where_and_initial_beside_nan(name: str) -> None:
    x = np.where(np.isinf(X), 3.0, X)
    for mask in (X[:, :1] < 0.5, np.isfinite(X[3]), GOOD & False):
        how: dict[str, Any] = {"axis": 1, "where": mask, "keepdims": True}
        if name in ("nansum", "nanprod", "nanmax", "nanmin"):
            how["initial"] = 0.25
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(x, **how)
        for run in (getattr(ost, name), getattr(np, name)):
            compare(run(ost.asarray(x), **how), wanted, name, None, None)


def test_initial_of_nothing() -> None:
    for name in ("min", "max", "sum", "prod"):
        found = getattr(ost, name)(ost.zeros((0, 3)), axis=0, initial=5.0)
        np.testing.assert_array_equal(
            found, getattr(np, name)(np.zeros((0, 3)), axis=0, initial=5.0)
        )


def test_gradients_of_where() -> None:
    x = np.where(GOOD, X, NAN)
    for name in ("sum", "mean", "var", "std", "prod", "max"):
        how: dict[str, Any] = {"where": GOOD, **({"initial": -9.0} if name == "max" else {})}
        slope = np.asarray(ost.grad(functools.partial(getattr(ost, name), **how))(x))
        assert (slope[~GOOD] == 0).all()
        inside = ost.grad(getattr(ost, name))(x[GOOD])
        np.testing.assert_allclose(slope[GOOD], np.asarray(inside), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: ost.min(x, where=x > 0), ArgumentError, "min .*: got where= and no initial=.*ost.inf"),
        (lambda x: ost.sum(x, where=[1, 0, 1, 0]), DTypeError, r"sum\(where=\).*needed bools"),
        (lambda x: ost.sum(x[0], where=x > 0), ShapeError, r"sum\(where=\).*a mask of shape \(6, 4\)"),
        (lambda x: ost.sum(x, initial=[1, 2]), ShapeError, r"sum\(initial=\).*one number"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        call(ost.asarray(X))
