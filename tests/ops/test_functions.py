"""Functions of generated kernels: to the last bits, at their edges, and as NumPy has them."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import mpmath
import numpy as np
import pytest
from ostinato.ops.core.build import Builder
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.lines import can_lower
from ostinato.ops.cpu.loops import flat

from tests.thorough import THOROUGH

from .test_native import run, single

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
FLOATS = ["float32", "float64"]
INTEGERS = [f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)]

ONE: dict[str, Any] = {
    "acos": mpmath.acos,
    "acosh": mpmath.acosh,
    "asin": mpmath.asin,
    "asinh": mpmath.asinh,
    "atan": mpmath.atan,
    "atanh": mpmath.atanh,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "cos": mpmath.cos,
    "cosh": mpmath.cosh,
    "erf": mpmath.erf,
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log10": lambda x: mpmath.log(x, 10),
    "log1p": mpmath.log1p,
    "log2": lambda x: mpmath.log(x, 2),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sin": mpmath.sin,
    "sinh": mpmath.sinh,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}
TWO: dict[str, Any] = {
    "atan2": mpmath.atan2,
    "hypot": mpmath.hypot,
    "logaddexp": lambda x, y: max(x, y) + mpmath.log1p(mpmath.exp(-abs(x - y))),
    "pow": mpmath.power,
}
DOMAINS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("log", "log10", "log2", "rsqrt"), (5e-324, math.inf)),
    **dict.fromkeys(("acos", "asin"), (-1, 1)),
    "acosh": (1, math.inf),
    "atanh": (-1 + 2**-53, 1 - 2**-53),
    "log1p": (-1 + 2**-53, math.inf),
}
TURNS = ("cos", "sin", "tan")


def any_bits(rng: Any, dtype: str, n: int) -> Any:
    """Finite numbers of all sizes."""
    kind = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    x = rng.integers(0, np.iinfo(kind).max, n, kind).view(dtype)
    return x[np.isfinite(x)]


def points(name: str, dtype: str) -> Any:
    """Small ones, large ones, those where formulas change, and of all sizes."""
    rng = np.random.default_rng(len(name))
    limits = np.finfo(dtype)
    most, eps = math.log(float(limits.max)) - 1, float(limits.eps)
    near = np.arange(-30, 30) * eps
    ends = (0.5, 0.75, 1, 2, math.pi / 4, 0.4142135623730951, 2.414213562373095)
    changes = np.concatenate([a * (1 + near) for a in ends])
    xs = [rng.normal(size=300), rng.normal(size=100) * 1e-3, rng.uniform(-most, most, 300)]
    xs += [rng.normal(size=100) * 1e-8, np.linspace(-2, 2, 401), 2.0 ** rng.uniform(-9, 8, 200)]
    xs += [changes, -changes, float(limits.tiny) * rng.uniform(-1, 1, 50)]
    xs += [any_bits(rng, dtype, 400).astype("f8"), np.array([float(limits.max)])]
    if name in TURNS:
        turns = np.pi / 2 * np.rint(10.0 ** rng.uniform(0, 15, 400))  # near zeros and poles
        # the doubles and floats that are nearest to a multiple of pi / 2, and a few large ones
        known = [6381956970095103 * 2.0**797, 16367173 * 2.0**72, 2.0**1000, 2.0**120, 1e22]
        xs += [turns, np.array(known)[np.array(known) < float(limits.max)]]
    x = np.concatenate(xs).astype(dtype)
    low, high = DOMAINS.get(name, (-math.inf, math.inf))
    if low >= 0:
        x = np.abs(x)
    wide = x.astype("f8")
    return x[(wide >= low) & (wide <= high) & np.isfinite(x)]


def pairs(name: str, dtype: str) -> Any:
    rng = np.random.default_rng(len(name))
    if name == "pow":
        most = 88 if dtype == "float32" else 740
        xs = [rng.uniform(0.5, 2, 300), np.abs(any_bits(rng, dtype, 200)).astype("f8")]
        xs += [1 + rng.normal(size=200) * 1e-5, 10.0 ** rng.uniform(-5, 5, 200)]
        x = np.concatenate(xs).astype(dtype)
        x = np.where((x == 0) | (x == 1), 2, x).astype(dtype)
        y = [rng.uniform(-1, 1, x.size) * most / np.log(x.astype("f8")), rng.normal(size=x.size)]
        y += [rng.integers(-20, 20, x.size)]
        return np.concatenate([x] * 3), np.concatenate(y).astype(dtype)
    if name == "logaddexp":
        return tuple(
            np.concatenate([rng.normal(size=300) * s for s in (0.1, 5, 100)]).astype(dtype)
            for _ in "xy"
        )
    sides = []
    for _ in "xy":
        x = [rng.normal(size=300), rng.normal(size=300) * 10.0 ** rng.uniform(-30, 30, 300)]
        sides.append(
            np.concatenate([*x, any_bits(rng, dtype, 450)[:400].astype("f8")]).astype(dtype)
        )
    return sides


def units(true: Any, found: float, dtype: str, size: Any = 0) -> float:
    """By how many units in the last place (of the result, or of a number of another size) it is off."""
    limits = np.finfo(dtype)
    if abs(true) > float(limits.max):
        over = abs(true) > float(limits.max) * (1 + mpmath.mpf(float(limits.eps)))
        return 0 if math.isinf(found) or not over else math.inf
    size = max(abs(true), size)
    unit = mpmath.mpf(float(limits.smallest_subnormal))
    if size >= float(limits.tiny):
        unit = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(size, 2)) - limits.nmant)
    return float(abs(mpmath.mpf(found) - true) / unit) if math.isfinite(found) else math.inf


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ONE)
def test_functions_to_the_last_bits(name: str, dtype: str) -> None:
    x = points(name, dtype)
    x = x if THOROUGH else x[FLOATS.index(dtype) :: 2]
    (found,) = run(single(name, [dtype], dtype), x)
    with mpmath.workprec(1300 if name in TURNS else 200):
        for a, y in zip(x.tolist(), found.tolist(), strict=True):
            off = units(ONE[name](mpmath.mpf(a)), y, dtype)
            assert off <= 4, (a, y, off)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_to_the_last_bits(name: str, dtype: str) -> None:
    """Of logaddexp, in units of its larger operand: near 0 its result is what two others leave."""
    x, y = pairs(name, dtype)
    (found,) = run(single(name, [dtype, dtype], dtype), x, y)
    with mpmath.workprec(200):
        for a, b, z in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
            true = TWO[name](mpmath.mpf(a), mpmath.mpf(b))
            size = max(abs(a), abs(b)) if name == "logaddexp" else 0
            off = units(true, z, dtype, size)
            assert off <= 4, (a, b, z, off)


def as_numpy_has_it(found: Any, wanted: Any, dtype: str, what: str) -> None:
    """The same NaNs, infinities and signs of zeros; else nearly the same."""
    limits = np.finfo(dtype)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=what)
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted), err_msg=what)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(wanted[there]), err_msg=what)
    np.testing.assert_array_equal(found[there] == 0, wanted[there] == 0, err_msg=what)
    fine = np.isfinite(wanted)
    np.testing.assert_allclose(
        found[fine],
        wanted[fine],
        rtol=8 * float(limits.eps),
        atol=4 * float(limits.smallest_subnormal),
        err_msg=what,
    )


def specials(dtype: str) -> Any:
    limits = np.finfo(dtype)
    least, tiny, most = (float(x) for x in (limits.smallest_subnormal, limits.tiny, limits.max))
    sizes = [0, least, 8 * least, tiny, 0.25, 0.5, 1, 1.5, 2, 3, 4, 7, 1e4, 2.0**26 + 1]
    sizes += [most / 2, most, math.inf]
    return np.array([math.nan, *sizes, *(-s for s in sizes)], dtype)


REFERENCES: dict[str, Any] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, "d"),
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-np.abs(x))),
    "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ONE)
def test_functions_at_their_edges(name: str, dtype: str) -> None:
    x = specials(dtype)
    if name == "softplus" or name in TURNS:
        x = x[(np.abs(x) < 1e5) | ~np.isfinite(x)]  # elsewhere NumPy's own may differ
    (found,) = run(single(name, [dtype], dtype), x)
    with np.errstate(all="ignore"):
        wanted = REFERENCES.get(name, getattr(np, name, None))(x).astype(dtype)
    as_numpy_has_it(found, wanted, dtype, f"{name} of {x}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*TWO, "nextafter", "remainder", "floor_divide"])
def test_functions_of_two_at_their_edges(name: str, dtype: str) -> None:
    x, y = (
        np.array(v, dtype) for v in zip(*itertools.product(specials(dtype), repeat=2), strict=True)
    )
    (found,) = run(single(name, [dtype, dtype], dtype), x, y)
    with np.errstate(all="ignore"):
        wanted = REFERENCES.get(name, getattr(np, name, None))(x, y)
    if name == "logaddexp":  # around its zero neither has all digits
        near = np.abs(wanted) < 0.01
        np.testing.assert_allclose(found[near], wanted[near], atol=1e-6)
        found, wanted = found[~near], wanted[~near]
    as_numpy_has_it(found, wanted, dtype, name)
    if name not in TWO:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rests_of_divisions_have_numpys_bits(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.normal(size=2000) * 50, rng.integers(-99, 99, 2000), any_bits(rng, dtype, 900)[:800]]
    )
    y = np.concatenate(
        [rng.normal(size=2000), rng.integers(-9, 9, 2000), any_bits(rng, dtype, 900)[:800]]
    )
    x, y = x.astype(dtype), y.astype(dtype)
    for name in ("remainder", "floor_divide"):
        (found,) = run(single(name, [dtype, dtype], dtype), x, y)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(found, getattr(np, name)(x, y), err_msg=name)


# -- integers ------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_as_numpy_has_them(dtype: str) -> None:
    """Quotients by 0 and of the least number by -1, shifts by too much and by less than nothing."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(4)
    ends = np.array([limits.min, limits.min + 1, 0, 1, 2, 7, limits.max - 1, limits.max], dtype)
    few = np.concatenate(
        [ends, np.array([-1, -2, -7], "i8").astype(dtype), np.arange(5, 9).astype(dtype)]
    )
    some = rng.integers(limits.min, limits.max, 400, dtype, endpoint=True)
    x = np.concatenate([np.repeat(few, few.size), some, some])
    y = np.concatenate([np.tile(few, few.size), some[::-1], rng.integers(0, 9, 400).astype(dtype)])
    names = {"floor_divide": "floor_divide", "remainder": "remainder"}
    names |= {"bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"}
    for name, ufunc in names.items():
        (found,) = run(single(name, [dtype, dtype], dtype), x, y)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(found, getattr(np, ufunc)(x, y), err_msg=name)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_become_integers(source: str, target: str) -> None:
    if not can_lower("astype", (np.dtype(source),), np.dtype(target)):
        assert target == "uint64"
        return
    limits, rng = np.iinfo(target), np.random.default_rng(5)
    x = np.concatenate([rng.uniform(-1, 1, 100), rng.uniform(limits.min, limits.max, 300)])
    x = np.concatenate([x, [limits.min, limits.min + 0.5, 0, -0.0, limits.max]]).astype(source)
    x = x[(x.astype("f8") < float(limits.max) + (limits.max < 2**53)) & (x >= limits.min)]
    (found,) = run(single("astype", [source], target), x)
    np.testing.assert_array_equal(found, x.astype(target))


# -- known exponents -----------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "exponent", [-3.0, -0.5, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 16.0, 17.0, 2.5]
)
def test_powers_with_a_known_exponent(exponent: float, dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = (rng.normal(size=300) * 2.0 ** rng.uniform(-9, 9, 300)).astype(dtype)
    if exponent % 1:
        x = np.abs(x)
    builder = Builder([Spec((1,), np.dtype(dtype))])
    (y,) = builder.add(
        "constant", (), {"value": exponent, "dtype": np.dtype(dtype)}, [Spec((), np.dtype(dtype))]
    )
    (found,) = run(builder.graph([builder.call("pow", 0, y)]), x)
    with mpmath.workprec(200):
        for a, z in zip(x.tolist(), found.tolist(), strict=True):
            true = mpmath.power(mpmath.mpf(a), mpmath.mpf(exponent))
            assert units(true, z, dtype) <= 4, (a, z)
    (edges,) = run(builder.graph([builder.call("pow", 0, y)]), specials(dtype))
    with np.errstate(all="ignore"):
        as_numpy_has_it(edges, specials(dtype) ** np.array(exponent, dtype), dtype, str(exponent))


# -- vectors -------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*ONE, *TWO, "nextafter"])
def test_loops_are_of_vectors_and_call_nothing(name: str, dtype: str) -> None:
    """Otherwise a function takes ten times as long."""
    given = [dtype] * (1 if name in ONE else 2)
    step = np.dtype(dtype).itemsize
    loops = flat.Loops((1000,), ((step,),) * (len(given) + 1))
    code = llvm.assembly(flat.kernel_text(single(name, given, dtype), loops))
    calls = set(re.findall(r"^\s+(?:call|bl|blr)q?[ \t]+\*?_?(\w+)", code, re.M))
    ours = ("body", "Py")
    assert not {c for c in calls if not c.startswith(ours)}
    if "+avx" in llvm._tools()[2]:
        assert re.search(r"\b[yz]mm\d", code)  # scalars are in xmm


@pytest.mark.parametrize(("name", "most"), [("erf", 0), ("exp", 0), ("log", 0), ("tanh", 1)])
def test_divisions_of_floats_are_few(name: str, most: int) -> None:
    """One takes as long as ten other operations."""
    loops = flat.Loops((1000,), ((4,), (4,)))
    text = flat.kernel_text(single(name, ["float32"], "float32"), loops)
    assert text.count(" fdiv ") <= most
