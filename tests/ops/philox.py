"""Random numbers one by one, in Python's own integers: Philox 4x32-10 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3") and Box-Muller.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def words(counter: int, stream: int, seed: int) -> list[int]:
    """The four 32-bit words of a counter."""
    c = [counter & 0xFFFFFFFF, counter >> 32, stream & 0xFFFFFFFF, stream >> 32]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


def bits(shape: tuple[int, ...], stream: int, seed: int, wide: bool) -> Any:
    """A word per element, or two of them."""
    found: list[int] = []
    for counter in range(math.prod(shape) // 2 + 1):
        c = words(counter, stream, seed)
        found += [c[0] | c[1] << 32, c[2] | c[3] << 32] if wide else c
    kind = np.uint64 if wide else np.uint32
    return np.array(found[: math.prod(shape)], kind).reshape(shape)


def normal(shape: tuple[int, ...], seed: int, dtype: Any) -> Any:
    """Elements 2i and 2i+1 are the cosine and the sine of one pair of words."""
    wide = dtype == np.float64
    size, unit = (11, 2.0**-53) if wide else (8, 2.0**-24)
    raw = bits((math.prod(shape) + 2,), 2, seed, wide).tolist()
    found: list[float] = []
    for k in range(0, len(raw) - 1, 2):
        radius = math.sqrt(-2 * math.log(((raw[k] >> size) + 1) * unit))
        angle = 2 * math.pi * (raw[k + 1] >> size) * unit
        found += [radius * math.cos(angle), radius * math.sin(angle)]
    return np.array(found[: math.prod(shape)]).reshape(shape).astype(dtype)
