"""The errors of functions in units in the last place (ulp), as the table in docs/precision.md.

    python -m tests.ops.ulps

Compiled functions are compared with mpmath's at the points of test_special.py, and elementary ones at points
of their own. Of functions that cross 0 digits are counted from their largest term (`size_of`). Results that
float32 or float64 has no full digits for are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

import ostinato as ost

from .test_special import EXACT, size_of

MANY = 1 << 15  # elements that are worth kernels, which have functions of our own
R = np.random.default_rng(5)
WIDE = np.concatenate([R.normal(size=80) * 3, R.uniform(-30, 30, 80), 10 ** R.uniform(-9, 0, 40)])
UP = np.concatenate([R.uniform(0, 3, 80), 10 ** R.uniform(-30, 30, 80)])
SHARE = R.uniform(-1, 1, 150)
FAR = np.concatenate([WIDE, R.uniform(-1e5, 1e5, 80)])
ELEMENTARY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "exp": (mpmath.exp, (WIDE,)),
    "expm1": (mpmath.expm1, (WIDE,)),
    "log": (mpmath.log, (UP,)),
    "log1p": (mpmath.log1p, (UP,)),
    "sin": (mpmath.sin, (FAR,)),
    "cos": (mpmath.cos, (FAR,)),
    "tan": (mpmath.tan, (FAR,)),
    "asin": (mpmath.asin, (SHARE,)),
    "atan": (mpmath.atan, (FAR,)),
    "sinh": (mpmath.sinh, (WIDE,)),
    "tanh": (mpmath.tanh, (WIDE,)),
    "cbrt": (lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), (FAR,)),
    "sqrt": (mpmath.sqrt, (UP,)),
    "erf": (mpmath.erf, (WIDE,)),
    "pow": (mpmath.power, (UP[:80], R.uniform(-9, 9, 80))),
    "hypot": (mpmath.hypot, (R.normal(size=400), R.normal(size=400))),
    "atan2": (mpmath.atan2, (R.normal(size=400), R.normal(size=400))),
}


def worst(name: str, exact: Callable[..., Any], xs: tuple[Any, ...], dtype: str) -> float:
    """The largest error, in ulp, of what a compiled function gives."""
    given = [x.astype(dtype) for x in xs]
    many = [np.resize(x, MANY) for x in given]
    made = np.asarray(ost.compile(lambda *v: of(name)(*v))(*many))[: given[0].size]
    least, most, bits = (1e-300, 1e308, 52) if dtype == "float64" else (1.2e-38, 3e38, 23)
    found = 0.0
    with mpmath.workdps(60):
        for y, *at in zip(made.tolist(), *(x.tolist() for x in given), strict=True):
            if name in ("betainc", "gammainc", "gammaincc"):
                least = max(least, 1e-200)
            try:
                true = exact(*map(mpmath.mpf, at))
            except (ValueError, ZeroDivisionError):
                continue
            size = size_of(name, true, tuple(at))
            if not mpmath.isfinite(true) or not least <= size <= most or abs(true) < least:
                continue
            unit = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(size, 2)) - bits)
            found = max(found, float(abs(mpmath.mpf(y) - true) / unit))
    return found


def of(name: str) -> Callable[..., Any]:
    if name == "trigamma":
        return lambda x: ost.special.polygamma(1, x)
    found: Callable[..., Any] = getattr(ost.special if name in EXACT else ost, name)
    return found


EVERY = {**ELEMENTARY, **{name: (f, xs) for name, (f, xs, _) in EXACT.items()}}
SIDE = 3  # functions in a row


def table() -> str:
    cells = [
        f"`{name}` | {worst(name, f, xs, 'float32'):.2f} | {worst(name, f, xs, 'float64'):.2g} |"
        for name, (f, xs) in EVERY.items()
    ]
    high = -(-len(cells) // SIDE)
    lines = ["|" + " | float32 | float64 |" * SIDE, "|" + "---|---|---|" * SIDE]
    lines += ["| " + " ".join(cells[k::high]) for k in range(high)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
