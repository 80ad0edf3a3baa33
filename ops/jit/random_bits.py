"""Random words and numbers in registers: what ops/random/draws.py makes in arrays, for one element.

An element's number among all elements of the global array is all that it depends on. Four words come
from one counter, so an element finds out all four and takes its own; that is still much faster than
memory."""

from __future__ import annotations

import math

from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import DType, float32, float64, int32, int64, uint32, uint64

from .loops import COUNTED
from .math_functions import FUNCTIONS
from .values import Function, Value, cast, shift, where

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of Philox
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF
NORMAL = 2  # the stream of normally distributed numbers
STREAMS = {
    "uniform": 1,
    "normal": NORMAL,
    "integers": 3,
    "bernoulli": 4,
    "permutation": 5,
    "categorical": 6,
    "dropout": 7,
    "exponential": 8,
    "laplace": 9,
    "logistic": 10,
    "gumbel": 11,
    "cauchy": 12,
    "triangular": 13,
    "geometric": 14,
    "choice": 15,
    # with the number of a try above it, in rejection.py
    "gamma": 16,
    "small_gamma": 17,
    "poisson": 18,
    "binomial": 19,
    "vonmises": 20,
    "narrow_vonmises": 21,
    "zipf": 22,
    "hypergeometric": 23,
}


def philox(seed: Value, counter: Value, stream: Value) -> tuple[Value, Value, Value, Value]:
    """The four words of a counter, as uint64 with the high half empty."""
    c0, c1 = counter & LOW, shift(counter, "lshr", 32)
    c2, c3 = stream & LOW, shift(stream, "lshr", 32)
    k0, k1 = seed & LOW, shift(seed, "lshr", 32)
    for _ in range(10):
        p, q = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = shift(q, "lshr", 32) ^ c1 ^ k0, q & LOW
        c2, c3 = shift(p, "lshr", 32) ^ c3 ^ k1, p & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def _words(
    seed: Value, place: Value, stream: Value, each: int
) -> tuple[Value, tuple[Value, Value, Value, Value]]:
    """An element's number, and the words of its counter, which serves so many elements."""
    index = cast(place, uint64)
    counter = shift(index, "lshr", each.bit_length() - 1)
    return index, philox(seed, counter, cast(stream, uint64))


def bits32(seed: Value, place: Value, stream: Value) -> Value:
    index, c = _words(seed, place, stream, 4)
    low = where((index & 1) == 0, c[0], c[1])
    high = where((index & 1) == 0, c[2], c[3])
    return cast(where((index & 2) == 0, low, high), uint32)


def bits64(seed: Value, place: Value, stream: Value) -> Value:
    index, c = _words(seed, place, stream, 2)
    first = (index & 1) == 0
    return where(first, c[0], c[2]) | shift(where(first, c[1], c[3]), "shl", 32)


def normal32(seed: Value, place: Value) -> Value:
    index, c = _words(seed, place, place.like(NORMAL), 4)
    first = (index & 2) == 0
    radius, angle = (shift(where(first, a, b), "lshr", 8) for a, b in ((c[0], c[2]), (c[1], c[3])))
    return _box_muller(index, radius, angle, 2.0**-24, float32)


def normal64(seed: Value, place: Value) -> Value:
    index, c = _words(seed, place, place.like(NORMAL), 2)
    radius, angle = (shift(a, "lshr", 11) | shift(b, "shl", 21) for a, b in (c[:2], c[2:]))
    return _box_muller(index, radius, angle, 2.0**-53, float64)


def _box_muller(index: Value, radius: Value, angle: Value, unit: float, dtype: DType) -> Value:
    """Elements 2i and 2i+1 are the cosine and the sine of one pair of words."""
    whole = int32 if dtype == float32 else int64
    radius, angle = (cast(cast(word, whole), dtype) for word in (radius, angle))
    length = FUNCTIONS["sqrt"](FUNCTIONS["log"]((radius + 1.0) * unit) * -2.0)
    turned = angle * (2 * math.pi * unit)
    even = (index & 1) == 0
    return length * where(even, FUNCTIONS["cos"](turned), FUNCTIONS["sin"](turned))


DRAWS: dict[str, Function] = {
    "bits32": bits32,
    "bits64": bits64,
    "normal32": normal32,
    "normal64": normal64,
}


# -- where elements are --------------------------------------------------------------------
def numbers_in(body: Graph) -> set[int]:
    """The values of a kernel that only say, by where they lie, which element is which."""
    return {n.inputs[n.op in DRAWS] for n in body.nodes if n.op in (*DRAWS, COUNTED)}
