"""Infinities, NaN and zeros of either sign come to what the Array API standard says, however they are computed.

`standard.py` has its rows. Few elements are NumPy's, many are generated kernels'; each row is computed alone,
in one plan with all others, between neighbours, in loops, by several workers, and with a number in an operand's place."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.helpers import on

from . import standard
from .standard import BINARY, COMPLEX, PARTS, TURNED, UNARY, Case

MANY = 8195  # elements of which kernels are generated, and some that fill no vector
FLOATS = {"float64": np.float64, "float32": np.float32}
HALVES = {"float16": ost.float16, "bfloat16": ost.bfloat16}
COMPLEXES = {"complex128": np.float64, "complex64": np.float32}
NAMED: dict[str, Callable[..., Any]] = {
    "clip_low": lambda x, y: ost.clip(x, y),
    "clip_high": lambda x, y: ost.clip(x, None, y),
}
OPERATORS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "negative": operator.neg,
    "positive": operator.pos,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "greater": operator.gt,
    "less_equal": operator.le,
    "greater_equal": operator.ge,
}


def function(name: str) -> Callable[..., Any]:
    return NAMED.get(name) or getattr(ost, name)


class Task:
    """A function, with the operands of all its rows."""

    def __init__(self, name: str, dtype: Any, cases: list[Case], real: Any) -> None:
        self.name, self.cases, self.real = name, cases, real
        columns = list(zip(*(c.operands for c in cases), strict=True))
        if np.dtype(dtype).kind == "c":
            z = np.empty(len(cases), dtype)
            z.real, z.imag = columns
            self.operands = [z]
        else:
            self.operands = [np.array(c, np.float64).astype(dtype) for c in columns]

    def grown(self, n: int) -> list[np.ndarray]:
        return [np.resize(x, n) for x in self.operands]

    def check(self, got: Any, where: str, wrong: list[str]) -> int:
        """How many numbers were looked at."""
        value, n = np.asarray(got), len(self.cases)
        if value.dtype.kind not in "bc":
            value = value.astype(np.float64)
        for k, x in enumerate(value[: len(value) if len(value) < MANY else n]):
            case = self.cases[k % n]
            parts = (x.real, x.imag) if value.dtype.kind == "c" else (x,)
            if not all(
                standard.holds(w, p, case.operands, self.real)
                for w, p in zip(case.wanted, parts, strict=True)
            ):
                wrong.append(f"{where}: {self.name}{case.operands} = {x}; the standard: {case.row}")
        if len(value) > n:  # the same wherever an element is
            again = np.resize(value[:n], len(value))
            nan = np.isnan(value) if value.dtype.kind != "b" else np.zeros(len(value), bool)
            alike = (value == again) | (nan & (np.isnan(again) if nan.any() else False))
            if value.dtype.kind == "f":
                alike &= nan | (np.signbit(value) == np.signbit(again))
            if not alike.all():
                wrong.append(
                    f"{where}: {self.name}: element {np.argmin(alike)} of {len(value)} differs"
                )
        return len(value)


def tasks(names: Sequence[str] | None = None, **dtypes: Any) -> list[Task]:
    found = []
    for kind, real in dtypes.items():
        if kind.startswith("complex"):
            names_there = (*COMPLEX, *TURNED, "cos", "log2", "log10")
            found += [Task(n, kind, standard.complex_cases(n, real), real) for n in names_there]
            found += [Task(n, kind, standard.cases(text, real), real) for n, text in PARTS.items()]
            continue
        there = {
            n: t for n, t in (UNARY | BINARY).items() if kind not in HALVES or n != "nextafter"
        }
        found += [Task(n, real, standard.cases(text, real), real) for n, text in there.items()]
    return [t for t in found if names is None or t.name in names]


Way = Callable[[list[Task], int], list[Any]]


def eager(all_: list[Task], n: int) -> list[Any]:
    return [function(t.name)(*map(ost.asarray, t.grown(n or len(t.cases)))) for t in all_]


def compiled(all_: list[Task], n: int) -> list[Any]:
    """All in one plan."""

    @ost.compile
    def run(given: list[list[Any]]) -> list[Any]:
        return [function(t.name)(*xs) for t, xs in zip(all_, given, strict=True)]

    return run([t.grown(n or len(t.cases)) for t in all_])


def between(all_: list[Task], n: int) -> list[Any]:
    """With neighbours before and behind, which change nothing."""

    @ost.compile
    def run(given: list[list[Any]], yes: list[Any]) -> list[Any]:
        found = []
        for t, xs, y in zip(all_, given, yes, strict=True):
            made = function(t.name)(*[ost.where(y, x, x[::-1]) for x in xs])
            found.append(ost.where(y, made, ost.zeros_like(made)))
        return found

    grown = [t.grown(n or len(t.cases)) for t in all_]
    return run(grown, [np.ones(len(xs[0]), bool) for xs in grown])


def looped(all_: list[Task], n: int) -> list[Any]:
    """In the second turn of a loop."""

    @ost.compile
    def run(given: list[list[Any]]) -> list[Any]:
        def turn(k: Any, xs: Any) -> tuple[Any, list[Any]]:
            return k + 1, [function(t.name)(*x) for t, x in zip(all_, xs, strict=True)]

        return [y[1] for y in ost.scan(turn, ost.asarray(0), given)[1]]

    return run([[np.stack([x, x]) for x in t.grown(n or len(t.cases))] for t in all_])


def on_workers(workers: int) -> Way:
    def run(all_: list[Task], n: int) -> list[Any]:
        with on(workers):
            found = []
            for t in all_:
                xs = [ost.asarray(x, split=0) for x in t.grown(n or len(t.cases))]
                found.append(function(t.name)(*xs))
            return [np.asarray(x) for x in found]

    return run


WAYS: dict[str, Way] = {
    "eager": eager,
    "compiled": compiled,
    "between": between,
    "looped": looped,
    "2 workers": on_workers(2),
    "3 workers": on_workers(3),
}


@pytest.mark.parametrize("many", [0, MANY], ids=["few", "many"])
@pytest.mark.parametrize("way", WAYS)
def test_rows(way, many, tally, thorough):
    """In the suite, all kinds of numbers in one plan, and the narrow ones and workers' many only there."""
    kinds = FLOATS | COMPLEXES | (HALVES if thorough or way in ("compiled", "eager") else {})
    if many and not thorough and way not in ("compiled", "eager"):
        kinds = {"float64": np.float64} if way != "between" else FLOATS
    wrong: list[str] = []
    count = 0
    with np.errstate(all="ignore"):
        made = tasks(**kinds)
        for t, got in zip(made, WAYS[way](made, many), strict=True):
            count += t.check(got, f"{way}, {t.operands[0].dtype}", wrong)
    tally("results", count)
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:60])


@pytest.mark.parametrize("many", [0, MANY], ids=["few", "many"])
def test_operators(many, tally):
    wrong: list[str] = []
    count = 0
    with np.errstate(all="ignore"):
        for t in tasks([*OPERATORS], **FLOATS):
            got = OPERATORS[t.name](*map(ost.asarray, t.grown(many or len(t.cases))))
            count += t.check(got, "operator", wrong)
    tally("results", count)
    assert not wrong, "\n".join(wrong[:60])


@pytest.mark.parametrize("many", [0, MANY], ids=["few", "many"])
@pytest.mark.parametrize("side", [0, 1], ids=["left", "right"])
def test_numbers_as_operands(side, many, tally, thorough):
    """A number of Python's in the place of an operand: kernels are other ones where numbers are known."""
    wrong: list[str] = []
    count = 0
    dtypes = FLOATS if thorough else {"float64": np.float64} if many else FLOATS
    with np.errstate(all="ignore"):
        plans: list[tuple[Task, Any, Any]] = []
        for t in tasks([*BINARY], **dtypes):
            numbers = list(dict.fromkeys(map(repr, (c.operands[side] for c in t.cases))))
            if many and not thorough:
                numbers = [n for n in numbers if n in _TELLING]
            for text in numbers:
                number = math.nan if text == "nan" else float(text)
                cases = [c for c in t.cases if repr(c.operands[side]) == text]
                if text == "nan":  # of one sign
                    cases = [c for c in cases if math.copysign(1, c.operands[side]) > 0]
                if cases:
                    plans.append((Task(t.name, t.operands[0].dtype, cases, t.real), number, text))

        @ost.compile
        def run(given: list[Any]) -> list[Any]:
            found = []
            for (t, number, _), x in zip(plans, given, strict=True):
                pair = (number, x) if side == 0 else (x, number)
                f = function(t.name)
                if t.name.startswith("clip") and side == 0:
                    pair = (ost.full_like(x, number), x)
                found.append(f(*pair))
            return found

        given = [t.grown(many or len(t.cases))[1 - side] for t, _, _ in plans]
        for (t, _, text), got in zip(plans, run(given), strict=True):
            count += t.check(got, f"with {text}", wrong)
    tally("results", count)
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:60])


def test_numbers_alone(tally, thorough):
    """Of numbers that are all known, results are made when a plan is."""
    wrong: list[str] = []
    count = 0
    with np.errstate(all="ignore"):
        for t in tasks(float64=np.float64, float32=np.float32, complex128=np.float64):
            kind, step = t.operands[0].dtype, 1 if thorough else 1 + len(t.cases) // 12
            few = Task(t.name, kind, t.cases[::step], t.real)
            columns = [[x.item() for x in operand] for operand in few.operands]

            @ost.compile
            def run(few=few, columns=columns, kind=kind):
                f = function(few.name)
                rows = zip(*columns, strict=True)
                return [f(*[ost.asarray(v, dtype=kind) for v in row]) for row in rows]

            count += few.check(np.stack([np.asarray(y) for y in run()]), "alone", wrong)
    tally("results", count)
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:60])


_TELLING = {
    "0.0",
    "-0.0",
    "inf",
    "-inf",
    "nan",
    "1.0",
    "2.0",
    "-1.0",
    "3.0",
    "0.5",
    "-0.5",
    "4.0",
    "1.5",
}


# -- what the standard says beside its tables ---------------------------------------------------
@pytest.mark.parametrize("kind", ["complex128", "complex64", "float64", "float32"])
def test_reciprocals_and_squares(kind, tally):
    """1 / x and x * x, to the sign of each zero; sums of complex numbers part by part."""
    real = np.dtype(kind).type(0).real.dtype.type
    parts = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.0, *standard.limits(real)]
    if kind[0] == "c":
        pairs = [complex(a, b) for a in parts for b in parts]
        x = np.array(pairs, kind)
        x.real, x.imag = [z.real for z in pairs], [z.imag for z in pairs]
    else:
        x = np.array(parts, kind)
    for n in (len(x), MANY):
        grown = ost.asarray(np.resize(x, n))
        for f, g in ((ost.reciprocal, lambda x: 1.0 / x), (ost.square, lambda x: x * x), (lambda x: x**2, ost.square)):  # fmt: skip
            for how in (lambda f: f, ost.compile):
                a, b = np.asarray(how(f)(grown)), np.asarray(how(g)(grown))
                u, v = a.view(real), b.view(real)
                assert np.array_equal(u, v, equal_nan=True)
                assert np.array_equal(np.signbit(u)[u == u], np.signbit(v)[v == v])
        back = (
            np.asarray(ost.subtract(grown, grown[::-1])),
            np.asarray(ost.add(grown, -grown[::-1])),
        )
        assert np.array_equal(*back, equal_nan=True)
        tally("results", 8 * n)


HUGE = [10**30, 2**63 - 1, 2**31, 7, 3, 0, -3, -7, -(2**31), -(2**63), -(10**30)]


@pytest.mark.parametrize("k", HUGE)
def test_diagonals_beyond_all(k, tally):
    """Whatever its size, a diagonal outside of the matrix is just that."""
    x = np.arange(1.0, 13).reshape(3, 4)
    near = max(min(k, 9), -9)
    for compiled_too in (lambda f: f, ost.compile):
        pairs = [
            (compiled_too(lambda x: ost.eye(3, 4, k=k)), np.eye(3, 4, k=near)),
            (compiled_too(lambda x: ost.tril(x, k=k)), np.tril(x, k=near)),
            (compiled_too(lambda x: ost.triu(x, k=k)), np.triu(x, k=near)),
            (compiled_too(lambda x: ost.linalg.diagonal(x, offset=k)), np.diagonal(x, near)),
            (compiled_too(lambda x: ost.linalg.trace(x, offset=k)), np.trace(x, near)),
            (compiled_too(lambda x: ost.roll(x, k, axis=1)), np.roll(x, k % 4, axis=1)),
            (compiled_too(lambda x: ost.roll(x, k)), np.roll(x, k % 12)),
        ]
        for f, wanted in pairs:
            assert np.array_equal(f(ost.asarray(x)), wanted)
    tally("edges", 14)


def test_tolerances_of_each_matrix(tally):
    """pinv and matrix_rank take one for each matrix of a stack."""
    rng = np.random.default_rng(0)
    for m, n in ((4, 3), (3, 4), (3, 3), (40, 3), (0, 3)):
        a = rng.normal(size=(2, 5, m, n))
        if m > 2:
            a[:, 1, 2] = a[:, 1, 1]
        for rtol in (
            np.array([1e-12, 1e-6, 0.3, 0.6, 2.0]),
            np.array([[1e-12], [0.5]]),
            np.array(0.1),
        ):
            rtol = np.broadcast_to(rtol, rtol.shape or ())
            wanted = np.linalg.pinv(a, rtol=rtol)
            for f in (ost.linalg.pinv, ost.compile(lambda a, r: ost.linalg.pinv(a, rtol=r))):
                got = f(a, rtol=rtol) if f is ost.linalg.pinv else f(a, rtol)
                np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)
            if m:
                ranks = ost.linalg.matrix_rank(a, rtol=rtol)
                assert np.array_equal(ranks, np.linalg.matrix_rank(a, rtol=rtol))
    single = rng.normal(size=(3, 3)).astype(np.float32)
    assert ost.linalg.pinv(single, rtol=np.float32(0.1)).dtype == np.float32
    assert ost.linalg.pinv(single, rtol=ost.asarray(0.1)).dtype == np.float32
    tally("edges", 15)


def test_borrowing_never_copies():
    """`copy=False` is the caller's own memory, or a ValueError; `True` and None are never that memory."""
    import array as arrays

    v = np.arange(6.0).reshape(2, 3)
    for given in (
        v,
        v[:1],
        v[:0],
        np.array(3.0),
        memoryview(v),
        arrays.array("d", [1, 2]),
    ):
        x = ost.asarray(given, copy=False)
        host = np.asarray(given)
        assert x.size == 0 or np.shares_memory(np.asarray(x), host)
        for copy in (True, None):
            assert not np.shares_memory(np.asarray(ost.asarray(given, copy=copy)), host)
    assert np.shares_memory(np.asarray(ost.from_dlpack(v, copy=False)), v)
    assert not np.shares_memory(np.asarray(ost.from_dlpack(v, copy=True)), v)
    refused = [
        *((v.T, None), (v[:, ::2], None), (v, ost.float32), (v.astype(">f8"), None), ([1.0], None)),
        *(
            (3.0, None),
            (2, None),
            ((1, 2), None),
            (ost.ones(3), ost.float32),
            (range(3), None),
            (np.float64(3), None),
        ),
    ]
    for given, dtype in refused:
        with pytest.raises(
            ValueError, match=r"asarray\(copy=False\).*needed an array, whose memory"
        ):
            ost.asarray(given, dtype=dtype, copy=False)
    x = ost.ones(3)
    assert ost.asarray(x, copy=False) is x
    assert ost.asarray(x, dtype=ost.float64, copy=False) is x
    assert ost.from_dlpack(x) is x
    assert ost.astype(x, ost.float64, copy=False) is x
    assert ost.from_dlpack(x, device="cpu", copy=True) is not x


def test_dlpack():
    x = ost.arange(3)
    assert x.__dlpack_device__() == (1, 0)
    plain = x.__dlpack__(stream=None, max_version=None, dl_device=None, copy=None)
    assert "dltensor" in repr(plain)
    assert "versioned" not in repr(plain)
    for options in ({}, {"copy": False}, {"copy": True}, {"dl_device": (1, 0)}):
        assert "versioned" in repr(x.__dlpack__(max_version=(1, 0), **options))
    assert "versioned" not in repr(x.__dlpack__(copy=False))  # who cannot be told must not write
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))
    assert "dltensor" in repr(ost.ones(3, dtype=ost.bfloat16).__dlpack__())
    lent, copied = np.from_dlpack(x, copy=False), np.from_dlpack(x, copy=True)
    assert not lent.flags.writeable
    copied[0] = 7
    assert np.asarray(x)[0] == 0


OUTSIDE: list[tuple[str, Any, int]] = [
    ("int8", operator.add, 128),
    ("int8", operator.mul, -129),
    ("uint8", operator.sub, -1),
    ("uint8", operator.floordiv, 256),
    ("int64", operator.mod, 2**63),
    ("uint64", operator.add, 2**64),
    ("int8", operator.and_, 255),
    ("int8", operator.lshift, 300),
    ("uint16", operator.pow, 1 << 16),
]


def test_numbers_that_a_dtype_has_not():
    """Whole numbers outside of an array's dtype are refused on both sides, where that is the result's; others
    become infinite."""
    for name, f, number in OUTSIDE:
        x = ost.ones(2, dtype=name)
        for call in (lambda: f(x, number), lambda: f(number, x), lambda: ost.compile(f)(x, number)):  # noqa: B023
            with pytest.raises(TypeError, match=f"the number {number}"):
                call()
    for name in ("float32", "float16", "bfloat16"):
        for n in (2, MANY):
            x = ost.ones(n, dtype=name)
            for y in (
                x * 1e300,
                1e300 * x,
                ost.compile(lambda x: x * -1e300)(x),
                ost.where(x > 0, 1e300, x),
            ):
                assert np.isinf(np.asarray(y).astype(float)).all()
    for number in (2**63, -(2**63) - 1):
        for f in (ost.asarray, lambda v: ost.full(2, v)):
            with pytest.raises(TypeError, match=r"needed .*number.* int64"):
                f(number)


@pytest.mark.parametrize("n", [3, MANY], ids=["few", "many"])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_whole_numbers_at_their_edges(name, n, tally):
    """Nothing traps: by zero it is zero, what is shifted too far is gone but for the sign, and the least number
    is its own opposite; alike eagerly, compiled, and where a number is known."""
    info = np.iinfo(name)
    x = np.resize(
        np.array([info.min, info.max, 5, 0, info.max // 2, -(5 if info.min else 0) % 7], name), n
    )
    least = -1 if info.min else 0
    far = np.where(x < 0, least, 0).astype(name)
    zero = np.zeros_like(x)
    wraps = lambda a: a.astype(name)  # noqa: E731
    with np.errstate(all="ignore"):
        rows: list[tuple[Any, Any, np.ndarray]] = [
            *((operator.floordiv, 0, zero), (operator.mod, 0, zero)),
            *((operator.lshift, info.bits, zero), (operator.rshift, info.bits, far)),
            *((operator.lshift, info.bits - 1, wraps(x << np.array(info.bits - 1, name))),),
            *((operator.add, 1, x + np.array(1, name)), (operator.mul, 3, x * np.array(3, name))),
            *(
                (operator.floordiv, 2, x // np.array(2, name)),
                (operator.mod, 3, x % np.array(3, name)),
            ),
            *(
                (operator.rshift, 1, x >> np.array(1, name)),
                (operator.pow, 3, x ** np.array(3, name)),
            ),
        ]
        if info.min:
            rows += [
                (operator.floordiv, -1, -x),
                (operator.mod, -1, zero),
                (operator.rshift, -1, far),
            ]
        for f, number, wanted in rows:
            for y in (number, np.full(n, number, name)):
                for call in (f, ost.compile(f), ost.compile(lambda x, f=f, y=number: f(x, y))):
                    args = (
                        (x,)
                        if call is not f and call.parameters[0] == "x" and len(call.parameters) > 2
                        else (x, y)
                    )
                    got = (
                        call(*map(ost.asarray, args))
                        if call is f and y is not number
                        else call(ost.asarray(x), *args[1:])
                    )
                    assert np.array_equal(np.asarray(got), wanted), (f, number)
        for f, wanted in (
            (operator.neg, -x),
            (abs, np.abs(x)),
            (operator.invert, ~x),
            (ost.square, x * x),
        ):
            for call in (f, ost.compile(lambda x, f=f: f(x))):
                assert np.array_equal(np.asarray(call(ost.asarray(x))), wanted), f
    tally("edges", 2 * 3 * len(rows) + 8)


def test_sums_of_nothing():
    """Empty sums are 0, products 1, means NaN; what has no answer is refused; running ones begin where asked."""
    e = ost.zeros((0, 3))
    for f, wanted in (
        (ost.sum, 0),
        (ost.prod, 1),
        (ost.any, False),
        (ost.all, True),
        (ost.count_nonzero, 0),
    ):
        assert np.array_equal(f(e, axis=0), np.full(3, wanted))
        assert np.array_equal(f(e), np.asarray(wanted))
        assert f(e, axis=1).shape == (0,)
    for f in (ost.mean, ost.var, ost.std):
        assert np.isnan(np.asarray(f(e, axis=0))).all()
    for correction in (3, 4, 3.5):
        for f in (ost.var, ost.std):
            assert np.isnan(np.asarray(f(ost.asarray([1.0, 2, 4]), correction=correction)))
    for f in (ost.max, ost.min, ost.argmax, ost.argmin):
        with pytest.raises(ValueError, match="at least one element"):
            f(e, axis=0)
        assert f(e, axis=1).shape == (0,)
    x = np.array([[1, 2, 3], [4, 5, 6]])
    for f, theirs in (
        (ost.cumulative_sum, np.cumulative_sum),
        (ost.cumulative_prod, np.cumulative_prod),
    ):
        for given, axis in ((x, 0), (x, 1), (x, -1), (x[0], None), (x[:0], 0), (x[:, :0], 1)):
            for dtype in (None, "float32"):
                got = f(given, axis=axis, dtype=dtype, include_initial=True)
                wanted = theirs(given, axis=axis, dtype=dtype, include_initial=True)
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
                assert np.array_equal(got, wanted)


def test_order_of_nan_and_zeros():
    """NaN comes last (first if descending); places keep their order among what is equal, zeros of both signs
    too; each NaN is a value of its own."""
    nan = math.nan
    for n in (10, 40_000):
        for kind in ("float64", "float32"):
            x = np.resize(
                np.array([3, nan, -0.0, 0.0, -nan, 1, -np.inf, np.inf, 0.0, -0.0], kind), n
            )
            plain = np.where(np.isnan(x), np.inf, x)
            order = np.lexsort((plain, np.isnan(x)))
            assert np.array_equal(ost.argsort(x), order)
            last = np.lexsort((-plain, ~np.isnan(x)))
            assert np.array_equal(ost.argsort(x, descending=True), last)
            assert np.array_equal(ost.sort(x), x[order], equal_nan=True)
            assert np.array_equal(ost.sort(x, descending=True), x[last], equal_nan=True)
            nans, values = int(np.isnan(x).sum()), 5
            found = ost.unique_all(x)
            assert found.values.shape == (values + nans,)
            assert np.asarray(found.counts)[:values].tolist() == [
                n // 10,
                4 * n // 10,
                *[n // 10] * 3,
            ]
            assert (np.asarray(found.counts)[values:] == 1).all()
            assert np.array_equal(
                np.asarray(found.values)[np.asarray(found.inverse_indices)], x, equal_nan=True
            )
            for other in (
                ost.unique_values(x),
                ost.unique_counts(x).values,
                ost.unique_inverse(x).values,
            ):
                assert np.array_equal(other, found.values, equal_nan=True)
    edges = np.array([-np.inf, -0.0, 0.0, 1, np.inf, nan])
    for v in (
        np.array([0.0, -0.0, nan, np.inf, -np.inf]),
        np.resize(np.array([0.0, -0.0, nan, 2]), MANY),
    ):
        for side in ("left", "right"):
            assert np.array_equal(
                ost.searchsorted(edges, v, side=side), np.searchsorted(edges, v, side=side)
            )


def test_ranges():
    for args in (
        (5, 2),
        (5, 2, -1),
        (0, 1, 0.1),
        (-3.5,),
        (0, 10, 3),
        (10, 0, -3),
        (2**63 - 2, 2**63 - 1),
    ):
        assert np.array_equal(ost.arange(*args), np.arange(*args)), args
    assert np.asarray(ost.arange(2**64 - 2, 2**64 - 1, dtype=ost.uint64)).tolist() == [2**64 - 2]
    for args in ((0.0, 1.0, 0), (2.0, 1.0, 1), (0.0, 1.0, 5), (1.0, -1.0, 4), (3.0, 3.0, 3)):
        for endpoint in (True, False):
            got, wanted = (
                ost.linspace(*args, endpoint=endpoint),
                np.linspace(*args, endpoint=endpoint),
            )
            assert np.array_equal(got, wanted), args
    largest = float(np.finfo(float).max)
    for a, b in ((-largest, largest), (0.0, math.inf), (-math.inf, 0.0)):
        found = np.asarray(ost.linspace(a, b, 3))
        assert (found[0], found[-1]) == (a, b)


def test_algebra_keeps_bits():
    """What plans do without must not be seen in the sign of a zero, nor in infinities and NaN."""
    rows: dict[str, Any] = {
        "x+0": lambda x: x + 0.0, "x+-0": lambda x: x + -0.0, "0+x": lambda x: 0.0 + x, "x-0": lambda x: x - 0.0,
        "x--0": lambda x: x - -0.0, "0-x": lambda x: 0.0 - x, "-0-x": lambda x: -0.0 - x, "x*1": lambda x: x * 1.0,
        "x*-1": lambda x: x * -1.0, "x*0": lambda x: x * 0.0, "x*-0": lambda x: x * -0.0, "x/1": lambda x: x / 1.0,
        "x/-1": lambda x: x / -1.0, "--x": lambda x: operator.neg(-x), "abs(-x)": lambda x: abs(-x), "-abs": lambda x: -abs(x),
        "x**1": lambda x: x**1, "x**2": lambda x: x**2, "x**3": lambda x: x**3, "x**0": lambda x: x**0,
        "x**-1": lambda x: x**-1, "x**.5": lambda x: x**0.5, "x-x": lambda x: x - x, "x/x": lambda x: x / x,
        "2*x/2": lambda x: 2 * x / 2, "(x+1)-1": lambda x: (x + 1) - 1, "x+x": lambda x: x + x, "+x": lambda x: +x,
    }  # fmt: skip
    for kind, n in itertools.product(("float64", "float32"), (14, MANY)):
        x = np.resize(np.array(standard.samples("any", np.dtype(kind).type), kind), n)
        with np.errstate(all="ignore"):
            for name, f in rows.items():
                wanted = f(x)
                if name == "x**.5":  # NumPy takes the square root
                    wanted = np.where(x == -math.inf, math.inf, np.sqrt(x)) + 0.0
                if name == "x**3" or (name == "x**.5" and n > 14):
                    continue
                for how in (
                    f,
                    ost.compile(f),
                    ost.compile(lambda x, f=f: ost.where(x == x, f(x), f(x))),
                ):
                    got = np.asarray(how(ost.asarray(x)))
                    nan = np.isnan(wanted)
                    assert np.array_equal(np.isnan(got), nan), (name, kind, n)
                    assert got[~nan].tobytes() == wanted.astype(kind)[~nan].tobytes(), (
                        name,
                        kind,
                        n,
                    )
