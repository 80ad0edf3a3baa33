"""`out=` and `where=` of functions of elements, and methods of those of two operands, against NumPy."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array import array_function
from ostinato.ops.array.elementwise import binaries

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError, TracedValueError
from tests.helpers import assert_same, compare, on

OF_TWO = sorted(
    name
    for name in dir(np)
    if isinstance(f := getattr(np, name), np.ufunc) and f.nin == 2 and f.nout == 1
    if name == f.__name__ and name not in ("matmul", "vecdot", "matvec", "vecmat")
    if hasattr(ost, name)
)
INTEGERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "gcd", "lcm")


def ours(name: str) -> Any:
    return getattr(ost, array_function.OURS.get(name, name))


def data(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    small = rng.integers(0 if "shift" in name else 1, 4, shape)
    if dtype == "f8":
        return rng.uniform(0.5, 2.5, shape)
    return (small % 2 if dtype == "?" else small).astype(dtype)


def both(run: Callable[[Any], Any], name: str) -> tuple[Any, Any]:
    """What NumPy's and ours make, or the errors."""
    found = []
    for f in (getattr(np, name), ours(name)):
        try:
            with np.errstate(all="ignore"):
                found.append(run(f))
        except (TypeError, ValueError) as error:  # ours are these, too
            found.append(error)
    return found[0], found[1]


def test_every_function_of_two_has_them() -> None:
    assert len(OF_TWO) > 30
    for name in OF_TWO:
        function = ours(name)
        assert inspect.isfunction(function), name
        assert any(function is f for f in binaries), name
        assert pickle.loads(pickle.dumps(function)) is function
        assert pickle.loads(pickle.dumps(function.reduce)).func is function.reduce.func
        for method in ("outer", "reduce", "accumulate", "reduceat", "at"):
            assert ">>>" in getattr(function, method).__doc__


@settings(max_examples=120)
@given(
    name=st.sampled_from(OF_TWO),
    method=st.sampled_from(["outer", "reduce", "accumulate", "reduceat"]),
    dtype=st.sampled_from(["f8", "i8", "i4", "?"]),
    shape=st.sampled_from([(5,), (3, 4), (2, 3, 2), (1, 2)]),
    axis=st.sampled_from([0, -1]),
    how=st.sampled_from(["plain", "keepdims", "initial", "np"]),
    workers=st.sampled_from([1, 1, 2]),
    seed=st.integers(0, 9),
)
def test_methods(
    name: str, method: str, dtype: str, shape: Any, axis: int, how: str, workers: int, seed: int
) -> None:
    x = data(name, shape, "i8" if name in INTEGERS and dtype == "f8" else dtype, seed)
    options: dict[str, Any] = {} if method == "outer" else {"axis": axis}
    given: list[Any] = [x]
    if method == "outer":
        given.append(x[..., :2])
    if method == "reduceat":
        given.append([0, x.shape[axis] - 1, 0])
    if method == "reduce" and how in ("keepdims", "initial"):
        options[how] = True if how == "keepdims" else x.dtype.type(1)

    def run(f: Any) -> Any:
        if not isinstance(f, np.ufunc):
            first = ost.asarray(x, split=0 if workers > 1 else None)
            f = getattr(np, name) if how == "np" else f
            return getattr(f, method)(first, *given[1:], **options)
        if method == "reduce" and name in (
            "arctan2",
            "power",
        ):  # NumPy 2.4's are wrong on some CPUs
            rows = [*([x.dtype.type(1)] if how == "initial" else []), *np.moveaxis(x, axis, 0)]
            made = functools.reduce(f, rows)
            return np.expand_dims(made, axis) if "keepdims" in options else made
        return getattr(f, method)(*given, **options)

    if method == "reduceat" and name in ("arctan2", "power"):
        return
    with on(workers):
        wanted, got = both(run, name)
        if isinstance(got, Exception):  # where NumPy refuses, or has dtypes that we have not
            closed = not isinstance(wanted, Exception) and wanted.dtype == x.dtype
            assert how == "np" or not closed, got
            return
        if isinstance(wanted, Exception):
            return  # of bools, which NumPy has fewer functions of
        wide = wanted.dtype.kind != "b"  # NumPy's of small integers and bools have other dtypes
        if not wide or got.dtype == wanted.dtype:
            half = wanted.dtype == np.float16  # of bools, in another order
            compare(got, wanted, f"{name}.{method}", 4e-3 if half else 1e-9, 1e-12)


@settings(max_examples=40)
@given(
    name=st.sampled_from(OF_TWO),
    dtype=st.sampled_from(["f8", "i8", "?"]),
    key=st.sampled_from(["places", "mask", "slice", "one", "two", "array"]),
    compiled=st.booleans(),
    seed=st.integers(0, 9),
)
def test_at(name: str, dtype: str, key: str, compiled: bool, seed: int) -> None:
    x = data(name, (4, 3), "i8" if name in INTEGERS and dtype == "f8" else dtype, seed)
    b = data(name, (3,), x.dtype.str[1:] if dtype != "?" else "?", seed + 1)
    places = np.array([2, 0, 2, 3])
    keys: dict[str, Any] = {
        "places": places, "mask": x > 1, "slice": slice(1, 3), "one": 2, "two": (places, [0, 1, 0, 2]), "array": places,
    }  # fmt: skip
    k, v = keys[key], b if key != "mask" and key != "two" else b[0]

    def run(f: Any) -> Any:
        if isinstance(f, np.ufunc):
            made = x.copy()
            f.at(made, k, v)
            return made

        def body(y: Any) -> Any:
            y = y.copy()
            f.at(y, ost.asarray(k) if key == "array" else k, v)
            return y

        return (ost.compile(body) if compiled else body)(ost.asarray(x))

    with on():
        wanted, got = both(run, name)
        if isinstance(got, DTypeError) and x.dtype.kind != "f":
            return  # NumPy's would cut the fraction off
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            assert isinstance(wanted, Exception) == isinstance(got, Exception), (wanted, got)
            return
        compare(got, wanted, f"{name}.at", 1e-9, 1e-12)


def test_reductions_of_nothing_and_by_masks() -> None:
    x, m = np.array([[3, 5], [6, 1]]), np.array([[True, False], [True, True]])
    for name in ("add", "bitwise_and", "bitwise_xor", "gcd", "lcm", "subtract", "fmax", "maximum"):
        f = ours(name)
        wanted = getattr(np, name).reduce(x, where=m, initial=12, axis=1)
        np.testing.assert_array_equal(f.reduce(x, where=m, initial=12, axis=1), wanted)
        if getattr(np, name).identity is not None and name != "subtract":
            wanted = getattr(np, name).reduce(x[:0])
            np.testing.assert_array_equal(f.reduce(x[:0]), wanted)
        np.testing.assert_array_equal(f.reduce(x[:0], initial=4), [4, 4])
    np.testing.assert_array_equal(ost.bitwise_or.reduce(x, axis=None), 7)
    np.testing.assert_array_equal(ost.fmin.reduce(x, axis=(0, 1)), 1)


# -- out= and where= -----------------------------------------------------------------------------
X = np.array([[4.0, -1.0, 0.0], [9.0, np.nan, 1.0]])
MASK = X > 0


@pytest.mark.parametrize("by", [ost, np])
def test_out_and_where(by: Any) -> None:
    """What is not computed stays in `out`; without one it is 0. As NumPy, which leaves it to chance."""
    x = ost.asarray(X)
    with np.errstate(all="ignore"):
        wanted = np.log(X, where=MASK, out=np.full(X.shape, 7.0))
    out = ost.full(X.shape, 7.0)
    assert by.log(x, where=MASK, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(by.log(x, where=MASK), np.where(MASK, wanted, 0))
    total = ost.zeros((2, 3), dtype=ost.float32)
    more = np.array([1, 2, 3])
    by.add(x, more, total)
    np.testing.assert_array_equal(total, (X + more).astype("f4"))
    by.multiply(2, 3, out=total, where=[True, False, False])
    np.testing.assert_array_equal(total, np.column_stack([[6, 6], (X + more)[:, 1:]]))
    for name in ("floor_divide", "power", "arctan2", "logical_or", "fmax", "heaviside"):
        wanted = np.where(MASK, getattr(np, name)(np.abs(X), 2.0), 0)
        found = getattr(by, name)(ost.asarray(np.abs(X)), 2.0, where=MASK)
        np.testing.assert_array_equal(found, wanted.astype(np.asarray(found).dtype))


def test_functions_of_what_is_left_out_have_no_slope() -> None:
    def loss(x: Any) -> Any:
        y = ost.sqrt(x, where=MASK) + ost.divide(1.0, x, where=MASK) + ost.acosh(x, where=x > 3)
        return y.sum()

    for run in (ost.grad(loss), ost.compile(ost.grad(loss))):
        slope = np.asarray(run(ost.asarray(X)))
        assert (slope[~MASK] == 0).all()
        with np.errstate(all="ignore"):
            own = 0.5 / np.sqrt(X) - X**-2 + np.where(X > 3, (X * X - 1) ** -0.5, 0)
        np.testing.assert_allclose(slope[MASK], own[MASK], rtol=1e-12)


def test_gradients_vmap_and_workers() -> None:
    x = np.random.default_rng(3).uniform(0.5, 2, (3, 4))
    for name, method in (("hypot", "reduce"), ("divide", "reduce"), ("logaddexp", "reduce"),
                         ("subtract", "accumulate"), ("multiply", "reduce"), ("add", "outer")):  # fmt: skip
        given = (x[0],) if method == "outer" else ()
        f = functools.partial(getattr(ours(name), method))

        def loss(x: Any, f: Any = f, given: Any = given) -> Any:
            return (f(x, *given) ** 2).sum()

        slope = np.asarray(ost.grad(loss)(x))
        for at in ((0, 0), (2, 3), (1, 1)):
            step = np.zeros_like(x)
            step[at] = 1e-6
            by_difference = (
                float(loss(ost.asarray(x + step))) - float(loss(ost.asarray(x - step)))
            ) / 2e-6
            assert abs(slope[at] - by_difference) < 1e-6 * max(1, abs(by_difference)), name
        wanted = np.stack([getattr(getattr(np, name), method)(row, *given) for row in x])
        assert_same(
            ost.vmap(lambda row, f=f, given=given: f(row, *given)),
            lambda x, wanted=wanted: wanted,
            x,
            few=True,
            meshes=(((3,), 2),),
        )


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ost.less.reduce([1.0, 2.0]), DTypeError, "less .*got float64; needed a dtype that its results"),
        (lambda: ost.subtract.reduce(X, axis=(0, 1)), ArgumentError, "subtract.reduce .*one axis"),
        (lambda: ost.subtract.reduce(X, where=MASK), ArgumentError, "subtract.reduce .*where= and no initial="),
        (lambda: ost.fmax.reduce(X[:0]), ArgumentError, "fmax.reduce .*no elements.*pass initial="),
        (lambda: ost.add.reduceat(X, [0, 2]), BoundsError, r"add.reduceat .*index 2; needed 0 to 1"),
        (lambda: ost.add.at(X, 0, 1), ArgumentError, "add.at .*ndarray; needed an array of ostinato's"),
        (lambda: ost.divide.at(ost.arange(3), 0, 2), DTypeError, "divide.at .*float64 for an array of int64"),
        (lambda: ost.add(X, 1, out=X), ArgumentError, r"add\(out=\) .*np.copyto"),
        (lambda: ost.add(X, 1, where=[1, 0, 1]), DTypeError, r"add\(where=\) .*needed bools"),
        (lambda: ost.add(X, 1, out=ost.zeros(3)), ShapeError, r"add\(out=\) .*got a result of shape \(2, 3\)"),
        (lambda: ost.compile(lambda i: ost.add.reduceat(X, i))(ost.asarray([0])), TracedValueError, "add.reduceat"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with on(), pytest.raises(error, match=says):
        call()
