"""Functions of elements against NumPy's: operands of any two dtypes, with zeros, infinities, NaN and the ends
of integers among them, and Python's numbers; eager and compiled, on 1 and 3 workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import DTypeError
from tests.helpers import on
from tests.thorough import few

DTYPES = ("?", "i1", "i2", "i8", "u1", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -7.0, np.inf, -np.inf, np.nan, 1e15, -1e-30)
EXACT = {
    1: "negative positive floor ceil trunc rint fabs real imag isnan isinf isfinite signbit"
    " logical_not bitwise_count nan_to_num bitwise_invert",
    2: "add subtract floor_divide remainder fmod divmod minimum maximum fmin fmax copysign heaviside"
    " nextafter equal not_equal less less_equal greater greater_equal logical_and logical_or"
    " logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift gcd lcm",
}
NEAR = {  # what is rounded more than once, or otherwise than by NumPy
    1: "sqrt cbrt log1p log2 cos arctan abs tanh deg2rad rad2deg degrees radians sinc",
    2: "multiply divide float_power hypot arctan2 logaddexp logaddexp2",
}
ULPS = 8


class Call(NamedTuple):
    """Of a function: which operands it is given, or numbers."""

    name: str
    places: tuple[int | None, ...]
    numbers: tuple[Any, ...]

    def by(self, xp: Any, operands: Sequence[Any]) -> list[Any]:
        pairs = zip(self.places, self.numbers, strict=True)
        made = getattr(xp, self.name)(*(n if k is None else operands[k] for k, n in pairs))
        return [*made] if isinstance(made, tuple) else [made]


def operand(r: random.Random, rng: np.random.Generator, n: int) -> np.ndarray:
    dtype = np.dtype(r.choice(DTYPES))
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        near = rng.integers(-9 if dtype.kind == "i" else 0, 10, n).astype(dtype)
        return np.where(
            rng.random(n) < 0.3, rng.choice(np.array([ends.min, ends.max], dtype), n), near
        )
    x, y = rng.choice(SPECIAL, (2, n)) if r.random() < 0.7 else rng.normal(0, 9, (2, n))
    made = np.empty(n, np.complex128)
    made.real, made.imag = x, y
    return (made if dtype.kind == "c" else x).astype(dtype)


def calls(r: random.Random, operands: Sequence[np.ndarray], most: int) -> list[Call]:
    """Some that NumPy knows."""
    found: list[Call] = []
    while len(found) < most:
        count = r.choice((1, 2, 2))
        name = r.choice(r.choice((EXACT, NEAR))[count].split())
        places: list[int | None] = [r.randrange(len(operands)) for _ in range(count)]
        if count == 2 and r.random() < 0.3:
            places[r.randrange(2)] = None
        call = Call(
            name, tuple(places), tuple(r.choice((2, -1, 300, 0.5, True, -0.0)) for _ in places)
        )
        try:
            call.by(np, operands)
        except (TypeError, ValueError, OverflowError):
            continue
        found.append(call)
    return found


def compare(found: Any, wanted: Any, ulps: int, what: str) -> None:
    """Zeros of any sign: NumPy's minimum of two gives either."""
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    if wanted.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, wanted, what)
        return
    size = np.maximum(np.abs(wanted.real), np.abs(wanted.imag)).astype("f8")
    size = np.maximum(np.where(np.isfinite(size), size, 1), 1)
    near = ulps * np.finfo(wanted.dtype).eps * size
    for x, y in ((found.real, wanted.real), (found.imag, wanted.imag)):
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y.astype("f8")) <= near)
        assert same.all(), f"{what}: {x[~same][:3]} for {y[~same][:3]}"


@pytest.mark.parametrize("seed", range(few(60)))
@np.errstate(all="ignore")
def test_as_numpy(seed: int) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    n = r.choice((7, 50, 5000))
    operands = [operand(r, rng, n) for _ in range(3)]
    asked = calls(r, operands, 10)
    wanted = [call.by(np, operands) for call in asked]

    def program(*xs: Any) -> Any:
        return [call.by(ost, xs) for call in asked]

    for workers, run in itertools.product((1, 3), (program, ost.compile(program))):
        with on(workers):
            split = 0 if workers > 1 else None
            made = run(*(ost.asarray(x, split=split) for x in operands))
            for call, ours, theirs in zip(asked, made, wanted, strict=True):
                kinds = [operands[k].dtype.name for k in call.places if k is not None]
                ulps = ULPS if call.name in NEAR[len(call.places)].split() else 0
                for x, y in zip(ours, theirs, strict=True):
                    compare(x, y, ulps, f"{call} of {kinds} on {workers}")


@pytest.mark.parametrize("dtype", ["u1", "i1", "u8", "i8"])
@np.errstate(all="ignore")
def test_whole_numbers_that_the_integers_beside_them_cannot_hold(dtype: str) -> None:
    """Are floating to what computes so, and beyond all to what compares; else NumPy refuses them, too."""
    x = np.array([0, 1, 100], dtype)
    names = "divide arctan2 hypot logaddexp2 float_power heaviside copysign less less_equal greater"
    names += " greater_equal equal not_equal logical_or"
    whole = "add multiply floor_divide maximum fmod"
    with on(1):
        for name, n, swap in itertools.product(
            names.split(), (-1, 300, 1 << 63, -(1 << 70)), (0, 1)
        ):
            ours, theirs = getattr(ost, name), getattr(np, name)
            try:
                wanted = theirs(n, x) if swap else theirs(x, n)
            except OverflowError:
                if name in whole.split():
                    with pytest.raises(DTypeError, match=f"the number {n}"):
                        ours(n, ost.asarray(x)) if swap else ours(ost.asarray(x), n)
                continue
            compiled = ost.compile(lambda x, n, f=ours, swap=swap: f(n, x) if swap else f(x, n))
            compare(ours(n, x) if swap else ours(x, n), wanted, ULPS, f"{name} {n}")
            if abs(n) < 1 << 63:  # what an argument may be
                compare(compiled(x, n), wanted, ULPS, f"{name} {n}, compiled")


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u8"])
@np.errstate(all="ignore")
def test_whole_numbers_at_their_ends(dtype: str) -> None:
    ends = np.iinfo(dtype)
    some = [ends.min, ends.min + 1, 0, 1, 2, 6, 12, ends.max - 1, ends.max]
    some += [-1, -2, -6, -12] if ends.min else []
    x, y = (v.reshape(-1) for v in np.meshgrid(np.array(some, dtype), np.array(some, dtype)))
    for name, workers in itertools.product(("gcd", "lcm", "fmod", "bitwise_count"), (1, 3)):
        given = (x, y) if getattr(np, name).nin == 2 else (x,)
        with on(workers):
            f = ost.compile(getattr(ost, name))
            made = f(*(ost.asarray(v, split=0) for v in given))
            compare(made, getattr(np, name)(*given), 0, f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_logaddexp2_has_nearly_all_digits(dtype: str) -> None:
    """But around its zeros, where what cancels has lost some."""
    x, y = (
        v.reshape(-1).astype(dtype)
        for v in np.meshgrid(np.linspace(-60, 250, 61), np.linspace(-70, 40, 67))
    )
    wanted = np.logaddexp2(x.astype(np.longdouble), y.astype(np.longdouble))
    with on(1):
        off = np.abs(np.asarray(ost.logaddexp2(x, y)) - wanted)
    assert (off <= 2 * np.spacing(np.maximum(np.abs(wanted), 1).astype(dtype))).all()
