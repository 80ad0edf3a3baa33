"""Assignments to arrays against NumPy's: x[key] = v, x += v, in functions of every kind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato as ost
from ostinato.errors import (
    AssignmentError,
    BoundsError,
    DataDependentShapeError,
    DonatedError,
    DTypeError,
    ShapeError,
)
from tests.helpers import assert_same, compare, counts_traces, on
from tests.ops.test_indexing import SHAPES, in_ostinato, keys, known

X = np.arange(1.0, 13.0).reshape(4, 3)


@settings(max_examples=60)
@given(st.data())
def test_items(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    key = data.draw(keys(shape))
    dtype = data.draw(st.sampled_from(["i8", "f4", "?", "u1"]))
    x = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
    target = known(x, key)
    if target is None:
        with pytest.raises((BoundsError, ShapeError)):
            ost.asarray(x)[key] = 1
        return
    places = np.arange(x.size).reshape(shape)[key]
    kinds = ["row", "ones", "number"]
    if len(np.unique(places)) == np.size(places):  # which of several stays is nobody's business
        kinds.append("full")
    kind = data.draw(st.sampled_from(kinds))
    size = {"full": np.shape(target), "row": np.shape(target)[-1:], "ones": (1,)}.get(kind, ())
    size = size if np.shape(target) else ()
    if len(np.unique(places)) < np.size(places):
        size = (1,) * len(size)
    v = (np.arange(2, 2 + np.prod(size, dtype=int)).reshape(size) % 7) + 0.5
    wanted = x.copy()
    try:
        wanted[key] = v
    except ValueError:
        with pytest.raises(ShapeError):
            ost.asarray(x)[key] = v
        return
    what = f"{x!r}[{key!r}] = {v.tolist()}"
    for workers, compiles in ((1, not data.draw(st.integers(0, 4))), (3, False)):
        with on(workers):
            split = data.draw(st.sampled_from([*range(len(shape)), None]))
            y = ost.asarray(x, split=split)
            same, before, part = y, y.copy(), y[:1] if shape else y + 0
            y[in_ostinato(key)] = float(v) if kind == "number" else ost.asarray(v)
            compare(y, wanted, what, None, None)
            assert same is y
            assert np.array_equal(before, x)
            assert np.array_equal(part, x[:1] if shape else x)
            if compiles:
                z = ost.asarray(x)

                def within(z: Any, v: Any) -> None:
                    z[key] = v

                ost.compile(within)(z, v)
                compare(z, wanted, f"{what}, compiled", None, None)


OPERATORS = {
    "+=": lambda x, y: x.__iadd__(y),
    "-=": lambda x, y: x.__isub__(y),
    "*=": lambda x, y: x.__imul__(y),
    "/=": lambda x, y: x.__itruediv__(y),
    "//=": lambda x, y: x.__ifloordiv__(y),
    "%=": lambda x, y: x.__imod__(y),
    "**=": lambda x, y: x.__ipow__(y),
    "&=": lambda x, y: x.__iand__(y),
    "|=": lambda x, y: x.__ior__(y),
    "^=": lambda x, y: x.__ixor__(y),
    "<<=": lambda x, y: x.__ilshift__(y),
    ">>=": lambda x, y: x.__irshift__(y),
}


@settings(max_examples=100)
@given(st.data())
def test_operators(data: st.DataObject) -> None:
    """The dtype and the shape are kept, where NumPy allows it."""
    sign = data.draw(st.sampled_from(sorted(OPERATORS)))
    one, two = data.draw(st.tuples(*[st.sampled_from(["f4", "f8", "i2", "i8", "u1", "c8"])] * 2))
    shape = data.draw(st.sampled_from([(4, 3), (3,), (4, 1), (2, 4, 3)]))
    x, y = X.astype(one), (np.arange(np.prod(shape)).reshape(shape) % 4 + 1).astype(two)
    wanted = x.copy()
    try:
        OPERATORS[sign](wanted, y)
    except (TypeError, ValueError):
        wanted = None
    workers = data.draw(st.sampled_from([1, 3]))
    with on(workers):
        ours = ost.asarray(x, split=data.draw(st.sampled_from([0, 1, None])))
        same, old = ours, ours.copy()
        if wanted is None:
            with pytest.raises((DTypeError, ShapeError)):
                OPERATORS[sign](ours, ost.asarray(y))
            return
        got = OPERATORS[sign](ours, ost.asarray(y))
        assert got is ours is same
        compare(got, wanted, f"{one} {sign} {two}", None, None)
        assert np.array_equal(old, x)


def test_numbers_and_arrays_without_axes_are_no_places() -> None:
    """As numbers of NumPy's, which its reductions give."""
    total = first = ost.asarray([1, 2]).sum()
    total += 0.5
    assert (float(total), int(first)) == (3.5, 3)
    total[...] = 7
    assert (float(total), total.dtype) == (7.0, ost.float64)

    @ost.compile
    def f(x: Any, n: Any) -> Any:
        before = n
        n += 1
        with pytest.raises(AssignmentError, match="got a number; needed an array"):
            before[...] = 3
        return x * before + n

    assert f(ost.ones(2), 2.0).tolist() == [5.0, 5.0]


def everything(x: Any, w: Any) -> Any:
    y = x.copy()
    y[0] = w[1] * w[1]
    y[:, 1] *= w
    y[y > 40] = 3.0
    y[1:, ::2] += y[:-1, ::2]
    w[2] = 9.0
    y -= 0.5
    return y * w[:, None]


def test_in_layouts() -> None:
    def ours(x: Any, w: Any) -> Any:
        return everything(x, w.copy())

    assert_same(ours, ours, X, np.arange(4.0) + 1)


def test_gradients() -> None:
    """Those of the same function, written without assignments."""

    def pure(x: Any, w: Any) -> Any:
        y = x.at[0].set(w[1] * w[1])
        y = y.at[:, 1].multiply(w)
        y = ost.where(y > 40, 3.0, y)
        y = y.at[1:, ::2].add(y[:-1, ::2])
        return (y - 0.5) * w.at[2].set(9.0)[:, None]

    x, w = ost.asarray(X), ost.asarray(np.arange(4.0) + 1)
    wanted = ost.grad(lambda *a: pure(*a).sum(), (0, 1))(x, w)
    for f in (
        ost.grad(lambda *a: everything(*a).sum(), (0, 1)),
        ost.compile(ost.grad(lambda *a: everything(*a).sum(), (0, 1))),
        ost.grad(ost.compile(lambda *a: everything(*a).sum()), (0, 1)),
        ost.grad(lambda *a: ost.checkpoint(everything)(*a).sum(), (0, 1)),
    ):
        for got, needed in zip(f(x, w.copy()), wanted, strict=True):
            assert np.allclose(got, needed)
    _, slope = ost.jvp(lambda w: everything(x, w).sum(), (w,), (ost.ones(4),))
    assert np.isclose(slope, wanted[1].sum())


def step(w: Any, b: Any, g: Any) -> Any:
    w -= 0.5 * g
    b[0] = 9
    old = w.copy()
    w[0] = 0
    return old, w, b.sum()


@counts_traces
def test_arguments_of_compiled_functions() -> None:
    """What a function assigns to its arguments is theirs afterwards, compiled or not."""
    compiled = ost.compile(step)
    for kind in (ost.asarray, np.array):
        for _ in range(2):
            w, b = (theirs := [kind([1.0, 2.0, 3.0]), kind([1.0, 1.0])])
            old, new, total = compiled(w, b, np.ones(3))
            assert [x.tolist() for x in (w, b)] == [[0.0, 1.5, 2.5], [9.0, 1.0]]
            assert (old.tolist(), new.tolist(), float(total)) == ([0.5, 1.5, 2.5], w.tolist(), 10.0)
            assert theirs[0] is w
    assert (len(compiled.misses), compiled.hits) == (2, 2)
    with on(3):
        w, b = ost.asarray([1.0, 2.0, 3.0], split=0), ost.asarray([1.0, 1.0])
        compiled(w, b, ost.ones(3))
        assert (w.tolist(), b.tolist()) == ([0.0, 1.5, 2.5], [9.0, 1.0])
    with pytest.raises(AssignmentError, match=r"assigns to and that is also another argument"):
        compiled(w, w, ost.ones(3))

    @ost.compile
    def swap(x: Any, y: Any) -> None:
        x[...], y[...] = y, x.copy()

    x, y = ost.asarray([1.0, 2.0]), ost.asarray([3.0, 4.0])
    swap(x, y)
    x += 1  # they share nothing that could be written over
    assert (x.tolist(), y.tolist()) == ([4.0, 5.0], [1.0, 2.0])


def test_given_arguments_come_back() -> None:
    """donate= gives the old value away; what is assigned lies where it lay."""
    f = ost.compile(donate=["w", "b"])(step)
    w, b = ost.asarray(np.ones(5000)), ost.asarray([1.0, 1.0])
    ost.evaluate(w)
    f(w, b, ost.ones(5000))
    at = [w.numpy().ctypes.data]
    w = w * 1
    for _ in range(3):
        f(w, b, ost.ones(5000))
        at.append(w._operand.parts[0].ctypes.data)
    assert len(set(at[1:])) <= 2
    assert b.tolist() == [9.0, 1.0]

    @ost.compile(donate=["x"])
    def gone(x: Any) -> Any:
        return x + 1

    x = ost.ones(3) * 2
    gone(x)
    with pytest.raises(DonatedError):
        x[0] = 1.0


OUTER = ost.ones(3)


def test_arrays_from_around_a_trace_are_refused() -> None:
    """Where it runs as often as it will: they would be assigned to once, when it is traced."""

    def body(x: Any) -> Any:
        OUTER[0] = 5.0
        return x * 2

    pending = ost.ones(3) + 1
    for run in (
        lambda: ost.repeat(2, body, ost.ones(2)),
        lambda: ost.compile(lambda x: ost.repeat(2, body, x))(ost.ones(2)),
        lambda: ost.vmap(body)(ost.ones((2, 2))),
        lambda: ost.repeat(2, lambda x: (pending.__setitem__(0, 1.0), x)[1], ost.ones(2)),
    ):
        with pytest.raises(
            AssignmentError, match=r"from around .* traced; needed an array that it"
        ):
            run()
    assert OUTER.tolist() == [1.0] * 3

    @ost.compile
    def own(x: Any) -> Any:
        y = ost.zeros(4)
        z = ost.asarray(np.zeros(4))
        for k in range(4):
            y[k] = z[k] = x * k
        return ost.repeat(2, grow, y) + z

    def grow(y: Any) -> Any:
        y[0] += 1
        return y

    assert own(2.0).tolist() == [2.0, 4.0, 8.0, 12.0]


def test_captured_arrays_that_are_assigned_to() -> None:
    """A compiled function sees them as they are."""
    w = ost.ones(2)

    @ost.compile
    def f(x: Any) -> Any:
        return x * w

    assert f(ost.ones(2)).tolist() == [1.0, 1.0]
    w[1] = 4.0
    assert f(ost.ones(2)).tolist() == [1.0, 4.0]
    assert "w: was assigned to" in ost.why_miss(f)
    w *= 2
    assert f(ost.ones(2)).tolist() == [2.0, 8.0]


def test_masks_that_are_not_known() -> None:
    """In traced functions: values that are the same for all that a mask picks."""

    def run(x: Any, line: Any) -> Any:
        x[x > 9] = 0.0
        x[x[:, 0] == 4] = line
        x[:, line > 1] = x[:, :1] * 0 - 1
        x[x[:, 0] == 1, 0, None] = [[7.0]]
        return x

    line = np.array([1.0, 2.0, 3.0])
    wanted = run(X.copy(), line)
    for workers, split in ((1, None), (3, 0), (3, 1)):
        with on(workers):
            x = ost.asarray(X, split=split)
            compare(ost.compile(run)(x, line), wanted, f"{workers} workers, {split}", None, None)
            compare(x, wanted, "the argument", None, None)

    @ost.compile
    def g(x: Any, line: Any) -> Any:
        x[x > 5] = line

    with pytest.raises(DataDependentShapeError, match=r"write x = ost.where\(mask, values, x\)"):
        g(ost.asarray(X), ost.asarray(line))


@pytest.mark.filterwarnings("ignore::ostinato.errors.AssignmentWarning")
def test_copies_are_arrays_of_their_own() -> None:
    """What NumPy makes a copy of; also indexing, methods and operators, where nothing changes."""
    x, i = ost.ones((2, 3)), ost.ones((2, 3), dtype=ost.int64)
    for name, y in {
        "astype": ost.astype(x, ost.float64),
        "method astype": x.astype(ost.float64),
        "asarray": ost.asarray(x, copy=True),
        "positive": +x,
        "conj": ost.conj(x),
        "round": ost.round(i),
        "floor": ost.floor(i),
        "power": x**1,
        "clip": ost.clip(x),
        "roll": ost.roll(x, 6),
        "pad": ost.pad(x, 0),
        "nan_to_num": ost.nan_to_num(i),
        "concat": ost.concat([x]),
        "copy": copy.copy(x),
        "deepcopy": copy.deepcopy(x),
        "x[...]": x[...],
        "x[:]": x[:],
        "reshape": x.reshape(2, 3),
        "squeeze": x.squeeze(),
        "transpose": x.transpose(0, 1),
        "numpy.copy": np.copy(x),
        "numpy.astype": np.astype(x, "f8"),
    }.items():
        y[0] = 5
        assert x.tolist() == [[1.0] * 3] * 2, name
        assert i.tolist() == [[1] * 3] * 2, name
    assert ost.asarray(x) is x
    assert x.astype(ost.float64, copy=False) is x
    line = ost.arange(3)
    (grid,) = ost.meshgrid(line)
    grid[0] = 5
    assert line.tolist() == [0, 1, 2]


def test_lent_memory_is_not_written_to() -> None:
    """NumPy's views, other libraries' and files' keep what they were lent."""
    for make in (lambda: ost.asarray(np.ones(4)), lambda: ost.ones(4) * 1.0):
        x = make()
        ost.evaluate(x)
        view, lent = np.asarray(x), np.from_dlpack(x, device="cpu")
        x[0] = 5.0
        x += 1
        assert x.tolist() == [6.0, 2.0, 2.0, 2.0]
        assert view.tolist() == lent.tolist() == [1.0] * 4
    memory = np.ones(4)
    x = ost.asarray(memory, copy=False)
    x[0] = 5.0
    assert (x.tolist(), memory.tolist()) == ([5.0, 1.0, 1.0, 1.0], [1.0] * 4)


def test_functions_of_numpy_that_write() -> None:
    def run(x: Any) -> Any:
        np.add(x, 1, out=x)
        np.copyto(x, 5, where=np.asarray([True, False, False]))
        np.add.at(x, [0, 0, 2], 2)
        np.subtract.at(x, [0, 0, 2], 1)
        np.maximum.at(x, [1], [99])
        np.multiply(x, 2, out=x)
        return x

    wanted = run(np.array([1.0, 2.0, 3.0]))
    assert np.array_equal(run(ost.asarray([1.0, 2.0, 3.0])), wanted)
    x = ost.zeros(3)
    assert np.sum(ost.ones((2, 3)), axis=0, out=x) is x
    assert x.tolist() == [2.0] * 3
    with pytest.raises(ShapeError, match=r"np.add .* got a result of shape \(2, 3\)"):
        np.add(x, ost.ones((2, 3)), out=x)
    with pytest.raises(
        DTypeError, match="got a result of dtype complex128 for an array of float64"
    ):
        np.copyto(x, 1j)


def test_errors() -> None:
    i = ost.asarray([1, 2, 3])
    for wrong, kind, text in (
        (
            lambda: i.__iadd__(0.5),
            DTypeError,
            "got a result of dtype float64 for an array of int64",
        ),
        (lambda: i.__setitem__(0, float("nan")), DTypeError, "got nan; needed what int64 can hold"),
        (lambda: i.__setitem__(0, 1j), DTypeError, "got complex values for an array of int64"),
        (lambda: i.__setitem__(0, [1, 2]), ShapeError, r"values of shape \(2,\)"),
        (lambda: i.__setitem__(i > 1, [1, 2, 3]), ShapeError, r"broadcasts to \(2,\)"),
        (lambda: i.__setitem__(5, 1), BoundsError, "got 5 on axis 0"),
        (lambda: i.__iadd__(np.ones((2, 3), int)), ShapeError, "needed the array's own shape"),
    ):
        with pytest.raises(kind, match=text):
            wrong()
    assert i.tolist() == [1, 2, 3]
