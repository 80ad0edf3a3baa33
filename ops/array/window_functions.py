"""Windows for transforms, by NumPy's names: float64, of M samples."""

from __future__ import annotations

import math

from ..core.array import Array
from ..core.spec import float64
from ..special import special
from .arithmetic import abs as absolute
from .arithmetic import clip, sqrt
from .creation import iota, ones
from .shape import whole_number
from .transcendental import cos, exp

__all__ = ["bartlett", "blackman", "hamming", "hanning", "kaiser"]


def _share(M: int, name: str) -> Array:
    """From -1 to 1."""
    n = whole_number(M, name, 0)
    return (2.0 * iota((n,), 0, float64) - (n - 1)) / max(n - 1, 1)


def bartlett(M: int) -> Array:
    """A triangle.

    >>> ost.bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float64)
    """
    return 1.0 - absolute(_share(M, "bartlett"))


def hanning(M: int) -> Array:
    """A raised cosine.

    >>> ost.hanning(3)
    Array([0., 1., 0.], dtype=float64)
    """
    return 0.5 + 0.5 * cos(math.pi * _share(M, "hanning"))


def hamming(M: int) -> Array:
    """A raised cosine that does not end at 0.

    >>> ost.hamming(3)
    Array([0.08, 1.  , 0.08], dtype=float64)
    """
    return 0.54 + 0.46 * cos(math.pi * _share(M, "hamming"))


def blackman(M: int) -> Array:
    """Two cosines, whose transform has low sides.

    >>> ost.blackman(3) + 0.0
    Array([-0.,  1., -0.], dtype=float64)
    """
    x = math.pi * _share(M, "blackman")
    return 0.42 + 0.5 * cos(x) + 0.08 * cos(2 * x)


def kaiser(M: int, beta: float) -> Array:
    """A Bessel function's, which beta makes narrower.

    >>> ost.kaiser(3, 14.0)
    Array([0., 1., 0.], dtype=float64)
    """
    if M == 1:
        return ones((1,))
    x = _share(M, "kaiser")
    inside = abs(beta) * sqrt(clip(1.0 - x * x, 0.0, None))
    # i0(inside) / i0(beta), without overflow
    return special.i0e(inside) / special.i0e(float(beta)) * exp(inside - abs(float(beta)))
