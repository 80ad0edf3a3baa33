"""The special cases of the Array API standard (2024.12), as its text lists them.

A row is `operands : result`. Of two rows of the standard's text on the complex square root, which say for -inf what
C99 says for +inf and the other way round, C99's are meant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# nan -0 +0 inf -inf 1 ...: these; 0 and oo: of either sign; f+ f- f f!: positive, negative, finite, and nonzero
# finite numbers; >0 <0: infinities, too; >1 <1 |>1| |<1| |1|; odd+, even+ (not odd), odd-, even-: exponents.
UNARY = {
    "abs": "nan:nan  -0:+0  -inf:inf  f-:-x",
    "acos": "nan:nan  >1:nan  <-1:nan  1:+0",
    "acosh": "nan:nan  <1:nan  1:+0  inf:inf",
    "asin": "nan:nan  >1:nan  <-1:nan  +0:+0  -0:-0",
    "asinh": "nan:nan  +0:+0  -0:-0  inf:inf  -inf:-inf",
    "atan": "nan:nan  +0:+0  -0:-0  inf:pi/2  -inf:-pi/2",
    "atanh": "nan:nan  <-1:nan  >1:nan  -1:-inf  1:inf  +0:+0  -0:-0",
    "ceil": "whole:x  inf:inf  -inf:-inf  +0:+0  -0:-0  nan:nan  -0.5:-0  0.5:1  -1.5:-1",
    "cos": "nan:nan  0:1  oo:nan",
    "cosh": "nan:nan  0:1  oo:inf",
    "exp": "nan:nan  0:1  inf:inf  -inf:+0",
    "expm1": "nan:nan  +0:+0  -0:-0  inf:inf  -inf:-1",
    "floor": "whole:x  inf:inf  -inf:-inf  +0:+0  -0:-0  nan:nan  -0.5:-1  0.5:+0  -1.5:-2",
    "isfinite": "oo:F  nan:F  f:T",
    "isinf": "oo:T  nan:F  f:F",
    "isnan": "nan:T  oo:F  f:F",
    "log": "nan:nan  <0:nan  0:-inf  1:+0  inf:inf",
    "log10": "nan:nan  <0:nan  0:-inf  1:+0  inf:inf",
    "log1p": "nan:nan  <-1:nan  -1:-inf  -0:-0  +0:+0  inf:inf",
    "log2": "nan:nan  <0:nan  0:-inf  1:+0  inf:inf",
    "negative": "nan:nan  +0:-0  -0:+0  inf:-inf  -inf:inf  f:-x",
    "positive": "any:x",
    "reciprocal": "nan:nan  +0:inf  -0:-inf  inf:+0  -inf:-0",
    "round": "whole:x  inf:inf  -inf:-inf  +0:+0  -0:-0  nan:nan  -0.5:-0  0.5:+0  1.5:2  -1.5:-2",
    "sign": "<0:-1  0:0  >0:1  nan:nan",
    "signbit": "+0:F  -0:T  inf:F  -inf:T  f+:F  f-:T  nan+:F  nan-:T",
    "sin": "nan:nan  +0:+0  -0:-0  oo:nan",
    "sinh": "nan:nan  +0:+0  -0:-0  inf:inf  -inf:-inf",
    "sqrt": "nan:nan  <0:nan  +0:+0  -0:-0  inf:inf",
    "square": "nan:nan  0:+0  oo:inf",
    "tan": "nan:nan  +0:+0  -0:-0  oo:nan",
    "tanh": "nan:nan  +0:+0  -0:-0  inf:1  -inf:-1",
    "trunc": "whole:x  inf:inf  -inf:-inf  +0:+0  -0:-0  nan:nan  -0.5:-0  0.5:+0  -1.5:-1",
}
_QUOTIENT = """nan any:nan  any nan:nan  oo oo:nan  0 0:nan
    +0 >0:+0  -0 >0:-0  +0 <0:-0  -0 <0:+0  >0 +0:inf  >0 -0:-inf  <0 +0:-inf  <0 -0:inf
    f+ inf:+0  f- -inf:+0  f+ f+:positive  f- f-:positive"""
BINARY = {
    "add": """nan any:nan  any nan:nan  inf -inf:nan  -inf inf:nan  inf inf:inf  -inf -inf:-inf  inf f:inf
        -inf f:-inf  f inf:inf  f -inf:-inf  -0 -0:-0  -0 +0:+0  +0 -0:+0  +0 +0:+0  0 f!:y  f! 0:x  1.5 -1.5:+0""",
    "subtract": """nan any:nan  any nan:nan  inf inf:nan  -inf -inf:nan  inf -inf:inf  -inf inf:-inf  inf f:inf
        -inf f:-inf  f inf:-inf  f -inf:inf  -0 +0:-0  -0 -0:+0  +0 +0:+0  +0 -0:+0  0 f!:-y  f! 0:x  1.5 1.5:+0""",
    "multiply": """nan any:nan  any nan:nan  oo 0:nan  0 oo:nan  inf inf:inf  -inf -inf:inf  inf -inf:-inf
        -inf inf:-inf  inf f+:inf  inf f-:-inf  -inf f+:-inf  -inf f-:inf  f+ inf:inf  f+ -inf:-inf  f- inf:-inf
        f- -inf:inf  f+ f+:positive  f- f-:positive  f+ f-:negative  f- f+:negative
        +0 f+:+0  +0 f-:-0  -0 f+:-0  -0 f-:+0  +0 +0:+0  +0 -0:-0  -0 +0:-0  -0 -0:+0""",
    "divide": _QUOTIENT + """  f+ f-:negative  f- f+:negative  inf f+:inf  inf f-:-inf  -inf f+:-inf  -inf f-:inf
        f+ -inf:-0  f- inf:-0""",
    # the standard allows NaN and -1 for infinities, which Python gives
    "floor_divide": _QUOTIENT + """  f+ f-:negative  f- f+:negative  -1.5 1:-2  1.5 -1:-2  1.5 2:+0  -1.5 2:-1
        oo f!:nan  f+ -inf:-1  f- inf:-1""",
    "remainder": """nan any:nan  any nan:nan  oo oo:nan  0 0:nan  0 >0:+0  0 <0:-0  f! 0:nan  oo 0:nan  oo f!:nan
        f+ inf:x  f+ -inf:y  f- inf:y  f- -inf:x  1.5 1:0.5  -1.5 1:0.5  1.5 -1:-0.5  -1.5 -1:-0.5  2 2:+0
        -2 2:+0  2 -2:-0  -2 -2:-0""",
    "atan2": """nan any:nan  any nan:nan  >0 0:pi/2  +0 >0:+0  +0 +0:+0  +0 -0:pi  +0 <0:pi  -0 >0:-0  -0 +0:-0
        -0 -0:-pi  -0 <0:-pi  <0 0:-pi/2  f+ inf:+0  f+ -inf:pi  f- inf:-0  f- -inf:-pi  inf f:pi/2  -inf f:-pi/2
        inf inf:pi/4  inf -inf:3*pi/4  -inf inf:-pi/4  -inf -inf:-3*pi/4""",
    "copysign": """f+ <0:-x  f- <0:x  f+ -0:-x  f- -0:x  f+ +0:x  f- +0:-x  f+ >0:x  f- >0:-x  inf -0:-inf
        -inf +0:inf  0 <0:-0  0 -0:-0  0 >0:+0  0 +0:+0  f+ nan-:-x  f- nan-:x  f+ nan+:x  f- nan+:-x  nan <0:nan-
        nan -0:nan-  nan +0:nan+  nan >0:nan+  nan nan-:nan-  nan nan+:nan+""",
    "hypot": """oo any:inf  any oo:inf  0 f+:y  0 f-:-y  f+ 0:x  f- 0:-x  0 0:+0  f nan:nan  nan nan:nan
        nan f:nan""",
    "logaddexp": """nan any:nan  any nan:nan  inf f:inf  inf oo:inf  f inf:inf  oo inf:inf  -inf f!:y  f! -inf:x
        -inf -inf:-inf""",
    "maximum": "nan any:nan  any nan:nan  inf f:inf  f inf:inf  -inf f:y  f -inf:x  f+ f-:x  f- f+:y  0 0:0",
    "minimum": "nan any:nan  any nan:nan  inf f:x>y  f inf:x  -inf f:-inf  f -inf:-inf  f+ f-:y  f- f+:x  0 0:0",
    "nextafter": """nan any:nan  any nan:nan  -0 +0:+0  +0 -0:-0  +0 +0:+0  -0 -0:-0  0 >0:least  0 <0:-least
        inf inf:inf  -inf -inf:-inf  inf f:largest  -inf f:-largest  largest inf:inf  -largest -inf:-inf
        least -0:+0  least <0:+0  -least >0:-0  -least +0:-0""",
    "pow": """not1 nan:nan  any 0:1  nan f!:nan  nan oo:nan  |>1| inf:inf  |>1| -inf:+0  |1| oo:1  1 notnan:1
        |<1| inf:+0  |<1| -inf:inf  inf >0:inf  inf <0:+0  -inf odd+:-inf  -inf even+:inf  -inf odd-:-0
        -inf even-:+0  +0 >0:+0  +0 <0:inf  -0 odd+:-0  -0 even+:+0  -0 odd-:-inf  -0 even-:inf  f- part:nan""",
    "equal": "nan any:F  any nan:F  inf inf:T  -inf -inf:T  0 0:T  1.5 1.5:T  inf -inf:F  f oo:F  0 f!:F",
    "not_equal": "nan any:T  any nan:T  inf -inf:T  -inf inf:T  0 0:F  1.5 1.5:F  inf inf:F  f oo:T  0 f!:T",
    "less": "nan any:F  any nan:F  -inf f:T  f inf:T  0 0:F  inf any:F  f- f+:T  0 f+:T  f- 0:T",
    "less_equal": "nan any:F  any nan:F  -inf f:T  f inf:T  0 0:T  inf f:F  f+ f-:F  0 f-:F",
    "greater": "nan any:F  any nan:F  inf f:T  f -inf:T  0 0:F  -inf any:F  f+ f-:T  0 f-:T  f+ 0:T",
    "greater_equal": "nan any:F  any nan:F  inf f:T  f -inf:T  0 0:T  -inf f:F  f- f+:F  0 f+:F",
    "clip_low": "nan any:nan  any nan:nan  f+ f-:x  f- f+:y",  # clip(x, y)
    "clip_high": "nan any:nan  any nan:nan  f+ f-:y  f- f+:x",  # clip(x, None, y)
}  # fmt: skip
# a b : real imaginary; ?: of either sign. pi is the angle, cis that of b.
COMPLEX = {
    "acos": """0 +0:pi/2 -0  0 nan:pi/2 nan  f inf:pi/2 -inf  f! nan:nan nan  -inf f+:pi -inf  inf f+:+0 -inf
        -inf inf:3*pi/4 -inf  inf inf:pi/4 -inf  oo nan:nan ?inf  nan f:nan nan  nan inf:nan -inf  nan nan:nan nan""",
    "acosh": """0 +0:+0 pi/2  f inf:inf pi/2  f! nan:nan nan  +0 nan:nan ?pi/2  -inf f+:inf pi  inf f+:inf +0
        -inf inf:inf 3*pi/4  inf inf:inf pi/4  oo nan:inf nan  nan f:nan nan  nan inf:inf nan  nan nan:nan nan""",
    "asinh": """+0 +0:+0 +0  f+ inf:inf pi/2  f nan:nan nan  inf f+:inf +0  inf inf:inf pi/4  nan +0:nan +0
        nan f!:nan nan  nan inf:?inf nan  nan nan:nan nan""",
    "atanh": """+0 +0:+0 +0  +0 nan:+0 nan  1 +0:inf +0  f+ inf:+0 pi/2  f! nan:nan nan  inf f+:+0 pi/2
        inf inf:+0 pi/2  inf nan:+0 nan  nan f:nan nan  nan inf:?0 pi/2  nan nan:nan nan""",
    "cosh": """+0 +0:1 +0  +0 inf:nan ?0  +0 nan:nan ?0  f! inf:nan nan  f! nan:nan nan  inf +0:inf +0  inf f!:infcis
        inf inf:?inf nan  inf nan:inf nan  nan 0:nan ?0  nan f!:nan nan  nan nan:nan nan""",
    "exp": """0 +0:1 +0  f inf:nan nan  f nan:nan nan  inf +0:inf +0  -inf f:0cis  inf f!:infcis  -inf inf:?0 ?0
        inf inf:?inf nan  -inf nan:?0 ?0  inf nan:?inf nan  nan +0:nan +0  nan f!:nan nan  nan oo:nan nan
        nan nan:nan nan""",
    "expm1": """0 +0:0 +0  f inf:nan nan  f nan:nan nan  inf +0:inf +0  -inf f:0cis-1  inf f!:infcis  -inf inf:-1 ?0
        inf inf:?inf nan  -inf nan:-1 ?0  inf nan:?inf nan  nan +0:nan +0  nan f!:nan nan  nan oo:nan nan
        nan nan:nan nan""",
    "log": """-0 +0:-inf pi  +0 +0:-inf +0  f inf:inf pi/2  f nan:nan nan  -inf f+:inf pi  inf f+:inf +0
        -inf inf:inf 3*pi/4  inf inf:inf pi/4  oo nan:inf nan  nan f:nan nan  nan inf:inf nan  nan nan:nan nan""",
    "log1p": """-1 +0:-inf +0  f inf:inf pi/2  f nan:nan nan  -inf f+:inf pi  inf f+:inf +0  -inf inf:inf 3*pi/4
        inf inf:inf pi/4  oo nan:inf nan  nan f:nan nan  nan inf:inf nan  nan nan:nan nan""",
    "sinh": """+0 +0:+0 +0  +0 inf:?0 nan  +0 nan:?0 nan  f+ inf:nan nan  f+ nan:nan nan  inf +0:inf +0  inf f+:infcis
        inf inf:?inf nan  inf nan:?inf nan  nan +0:nan +0  nan f!:nan nan  nan nan:nan nan""",
    "sqrt": """0 +0:+0 +0  any inf:inf inf  f nan:nan nan  -inf f+:+0 inf  inf f+:inf +0  -inf nan:nan ?inf
        inf nan:inf nan  nan f:nan nan  nan nan:nan nan""",
    "tanh": """+0 +0:+0 +0  f! inf:nan nan  +0 inf:+0 nan  f! nan:nan nan  +0 nan:+0 nan  inf f+:1 ?0  inf inf:1 ?0
        inf nan:1 ?0  nan +0:nan +0  nan f!:nan nan  nan oo:nan nan  nan nan:nan nan""",
    "sign": "0 0:0 0  nan any:nan nan  any nan:nan nan",
    "conj": "+0 +0:+0 -0  -0 -0:-0 +0  inf nan:inf nan  f+ inf:a -inf",
    "negative": "+0 +0:-0 -0  -0 +0:+0 -0  inf -0:-inf +0",
    "round": "-0.5 0.5:-0 +0  inf -0:inf -0  nan 1.5:nan 2  1.5 nan:2 nan  -0 -inf:-0 -inf",
}  # fmt: skip
# Functions of complex numbers that give real ones, or whether.
PARTS = {
    "abs": "oo any:inf  any oo:inf  0 f+:y  0 f-:-y  f+ 0:x  f- 0:-x  nan f:nan  f nan:nan  nan nan:nan  0 0:+0",
    "isfinite": "nan any:F  any nan:F  oo any:F  any oo:F  f f:T",
    "isinf": "oo any:T  any oo:T  nan f:F  f nan:F  nan nan:F  f f:F",
    "isnan": "nan any:T  any nan:T  f f:F  oo f:F",
    "real": "any any:x",
    "imag": "any any:y",
}
CONJUGATE = {*COMPLEX} - {"sign", "conj", "negative", "round"}  # f(conj z) is conj f(z)
ODD, EVEN = {"asinh", "atanh", "sinh", "tanh"}, {"cosh"}  # f(-z) is -f(z), or f(z)
TURNED = {"asin": "asinh", "atan": "atanh", "sin": "sinh", "tan": "tanh"}  # -1j * f(z * 1j)


class Case(NamedTuple):
    operands: tuple[float, ...]
    wanted: tuple[str, ...]
    row: str


def samples(kind: str, dtype: Any) -> list[float]:
    """Numbers of a kind, as a dtype has them."""
    largest, least, tiny = limits(dtype)
    plus = [least, tiny, 0.25, 1.0, 1.5, 2.0, 3.0, largest]
    minus = [-p for p in plus]
    whole = [1.0, 2.0, 3.0, -1.0, -3.0, 100.0, largest, -largest]
    nans = [math.nan, -math.nan]
    zeros, both = [0.0, -0.0], [math.inf, -math.inf]
    named = {
        "nan": nans, "nan+": nans[:1], "nan-": nans[1:], "0": zeros, "oo": both, "whole": whole,
        "f+": plus, "f-": minus, "f!": plus + minus, "f": plus + minus + zeros,
        ">0": [*plus, math.inf], "<0": [*minus, -math.inf], "any": plus + minus + zeros + both + nans,
        "notnan": plus + minus + zeros + both, "part": [0.5, -0.25, 1.5],
        ">1": [1.5, 2.0, largest, math.inf], "<-1": [-1.5, -largest, -math.inf],
        "<1": [0.5, 0.0, -0.0, -2.0, -math.inf], "|1|": [1.0, -1.0],
        "|>1|": [1.5, -1.5, largest, -largest], "|<1|": [0.5, -0.5, 0.0, -0.0, least],
        "odd+": [1.0, 3.0, 5.0, 17.0], "even+": [2.0, 4.0, 0.5, 1.5, 18.0, largest, math.inf],
        "odd-": [-1.0, -3.0, -17.0], "even-": [-2.0, -0.5, -1.5, -18.0, -largest, -math.inf],
        "not1": [*nans, *zeros, *both, 2.0, -1.0, 0.5], "+0": [0.0], "-0": [-0.0],
        "largest": [largest], "-largest": [-largest], "least": [least], "-least": [-least],
    }  # fmt: skip
    return named[kind] if kind in named else [float(kind)]


def limits(dtype: Any) -> tuple[float, float, float]:
    """The largest number, the least, and the least normal one."""
    import ml_dtypes

    info = ml_dtypes.finfo(dtype)
    return float(info.max), float(info.smallest_subnormal), float(info.smallest_normal)


def rows(text: str) -> Iterator[tuple[list[str], list[str], str]]:
    """Each row's operands and results; a token with a colon ends the operands, and begins the results."""
    words = text.split()
    while words:
        end = next(k for k, w in enumerate(words) if ":" in w)
        operands = [*words[:end], words[end].split(":")[0]]
        first = words[end].split(":")[1]
        more = 1 if len(operands) == 2 and text in _OF_TWO and "cis" not in first else 0
        results = [first, *words[end + 1 : end + 1 + more]]
        yield operands, results, " ".join(operands) + " : " + " ".join(results)
        words = words[end + 1 + more :]


_OF_TWO = set(COMPLEX.values())


def cases(text: str, dtype: Any) -> list[Case]:
    return [
        Case(values, tuple(results), row)
        for operands, results, row in rows(text)
        for values in itertools.product(*(samples(o, dtype) for o in operands))
    ]


def complex_cases(name: str, dtype: Any) -> list[Case]:
    """The rows of a function of complex numbers, and what follows from its symmetries."""
    if name in ("log2", "log10"):
        scale = f"log({name[3:]})"
        return [
            Case(c.operands, tuple(f"{w}/{scale}" if "pi" in w else w for w in c.wanted), c.row)
            for c in complex_cases("log", dtype)
        ]
    if name in TURNED:
        # f(z) = -1j * g(z * 1j): where g(p + qj) is u + vj, f(q - pj) is v - uj
        return [
            Case((q, -p), (v, negated(u)), f"as {TURNED[name]}: {row}")
            for (p, q), (u, v), row in complex_cases(TURNED[name], dtype)
        ]
    if name == "cos":  # cosh(z * 1j)
        return [
            Case((q, -p), wanted, f"as cosh: {row}")
            for (p, q), wanted, row in complex_cases("cosh", dtype)
        ]
    found = [c._replace(wanted=_cis(c)) for c in cases(COMPLEX[name], dtype)]
    if name in CONJUGATE:
        found += [
            Case((a, -b), (u, negated(v)), f"conjugate of {row}") for (a, b), (u, v), row in found
        ]
    if name in ODD | EVEN:
        found += [
            Case(
                (-a, -b), (negated(u), negated(v)) if name in ODD else (u, v), f"negative of {row}"
            )
            for (a, b), (u, v), row in found
        ]
    return found


def _cis(case: Case) -> tuple[str, ...]:
    """What infinity, or zero, times cis(b) is."""
    kind, b = case.wanted[0], case.operands[1]
    if "cis" not in kind:
        return case.wanted
    size = "inf" if kind.startswith("inf") else "0"
    cos, sin = math.cos(b), math.sin(b)
    parts = [
        ("-" if math.copysign(1, t) < 0 else "" if size == "inf" else "+") + size
        for t in (cos, sin)
    ]
    if b == 0:
        parts[1] = "-0" if math.copysign(1, b) < 0 else "+0"
    if kind == "0cis-1":
        parts[0] = "-1"
    return tuple(parts)


def negated(wanted: str) -> str:
    if wanted[0] == "?" or wanted in ("nan", "0"):
        return wanted
    if wanted == "a":
        return "-a"
    return (
        wanted[1:]
        if wanted[0] == "-" and wanted != "-0"
        else {"-0": "+0", "+0": "-0"}.get(wanted, f"-{wanted}")
    )


def holds(wanted: str, got: Any, operands: tuple[Any, ...], dtype: Any) -> bool:
    """Whether a result is what a row says."""
    x, y = operands[0], operands[-1]
    largest, least, _ = limits(dtype)
    if wanted in ("T", "F"):
        return bool(got) == (wanted == "T")
    number, negative = float(got), bool(np.signbit(np.float64(got)))
    if wanted.startswith("nan"):
        return math.isnan(number) and (wanted == "nan" or negative == (wanted == "nan-"))
    if math.isnan(number):
        return wanted in ("x", "y") and math.isnan(float(x if wanted == "x" else y))
    if wanted in ("positive", "negative"):
        return negative == (wanted == "negative")
    if wanted == "x>y":
        wanted = "y"
    if wanted in ("+0", "-0"):
        return number == 0 and negative == (wanted == "-0")
    if wanted[0] == "?":
        return abs(number) == abs(holds_number(wanted[1:], x, y, largest, least)) or close(
            abs(number), holds_number(wanted[1:], x, y, largest, least), dtype
        )
    needed = holds_number(wanted, x, y, largest, least)
    if (
        wanted in ("x", "y", "-x", "-y")
        or math.isinf(needed)
        or wanted.lstrip("-") in ("least", "largest")
    ):
        return number == needed and (negative == (math.copysign(1, needed) < 0))
    return close(number, needed, dtype)


def holds_number(text: str, x: Any, y: Any, largest: float, least: float) -> float:
    words = {
        "pi": math.pi,
        "inf": math.inf,
        "log": math.log,
        "x": float(x),
        "y": float(y),
        "a": float(x),
    }
    return float(eval(text, {"__builtins__": {}}, {**words, "largest": largest, "least": least}))


def close(number: float, needed: float, dtype: Any) -> bool:
    import ml_dtypes

    return abs(number - needed) <= 8 * float(ml_dtypes.finfo(dtype).eps) * abs(needed)
