"""Values as keys. Python says `0.0 == -0.0`, `1 == True == 1.0` and `nan != nan`; plans and signatures
need the same bits of the same type."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np

_BITS = struct.Struct("d").pack


def exact(value: Any) -> Any:
    """Make a key of a value: two are equal only if the values are the same, to the bit."""
    return _WAYS[value.__class__](value)


class _Ways(dict[type, Callable[[Any], Any]]):
    """How values of each class are made comparable."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        found: Callable[[Any], Any] = _marked
        for base, way in (
            (np.generic, lambda x: (kind, x.dtype, x.tobytes())),
            (Decimal, lambda x: (kind, x.as_tuple())),
            (tuple, _each),
        ):
            if issubclass(kind, base):
                found = way
        if issubclass(kind, (np.generic, np.dtype)):  # classes of users may go
            self[kind] = found
        return found


def _itself(value: Any) -> Any:
    return value


def _marked(value: Any) -> Any:
    return value.__class__, value


def _each(values: Any) -> Any:
    return values.__class__, *[_WAYS[v.__class__](v) for v in values]


_WAYS = _Ways(
    {
        **dict.fromkeys((int, str, bytes, type(None)), _itself),
        float: lambda x: (float, _BITS(x)),
        complex: lambda x: (complex, _BITS(x.real), _BITS(x.imag)),
        tuple: _each,
        list: _each,
        frozenset: lambda x: (frozenset, frozenset(map(exact, x))),
    }
)


def exact_items(items: Iterable[tuple[str, Any]]) -> tuple[Any, ...]:
    """`exact` of an operation's parameters."""
    found: list[Any] = []
    for name, value in items:
        found += name, _WAYS[value.__class__](value)
    return tuple(found)


_NOTHING_HELD = frozenset((int, float, bool, complex, str, tuple, type(None)))


def holds_nothing(items: Iterable[tuple[str, Any]]) -> bool:
    """Whether parameters are numbers and words alone, with no function or graph that is to go when its
    user lets go of it."""
    return all(v.__class__ in _NOTHING_HELD or isinstance(v, np.dtype) for _, v in items)


class Keys(tuple[Any, ...]):
    """A tuple whose elements compare exactly."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and exact(tuple(self)) == exact(tuple(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(exact(tuple(self)))


def plain(value: Any) -> Any:
    """A parameter as Python's own number: NumPy's scalars and enumerations are other kinds of it."""
    kind = value.__class__
    if kind is int or kind is str:
        return value
    if kind is tuple:
        return tuple(map(plain, value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int) and kind is not bool:
        return int(value)
    if isinstance(value, float):
        return float(value)
    return complex(value) if isinstance(value, complex) else value
