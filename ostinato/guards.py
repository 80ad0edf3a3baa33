"""What a compiled function read of what is around it, checked at every hit.

A guard is one place and what stood there: a global, a cell, an attribute, an item, the number of keys. All
guards of an entry are one generated expression of identities, some 15 ns a guard; only where it is false are
values compared, so an equal number that is another object is no change."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import functools
import pathlib
import types
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import numpy as np

from ostinato.ops.core.array import Array

UNSET: Any = type("Unset", (), {"__repr__": lambda _: "nothing"})()


@dataclasses.dataclass(slots=True)
class Guard:
    """One place, what stood there, and what a user calls it. The kind says how it is read."""

    kind: str  # of _TEXT
    of: Any  # what it is read of; a `Leaf` for an argument
    key: Any
    value: Any
    name: str
    expected: Iterable[str] = ()  # of "len": keys that would matter if they appeared

    def read(self, leaves: Sequence[Any] = ()) -> Any:
        """Read the value that stands there now."""
        of = leaves[self.of.number] if type(self.of) is Leaf else self.of
        try:
            return _READ[self.kind](of, self.key)
        except Exception:  # not there any more; or the user's own code failed
            return UNSET


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An argument's leaf, by number: a guard must not keep it alive."""

    number: int


@dataclasses.dataclass(slots=True)
class Change:
    """Something that is no longer what it was."""

    guard: Guard
    now: Any

    def __str__(self) -> str:
        if self.guard.kind in ("len", "keys", "each"):
            return f"what is in {self.guard.name} changed"
        if self.guard.key == "_operand":
            return f"{self.guard.name}: was assigned to"
        return f"{self.guard.name}: {_short(self.guard.value)} -> {_short(self.now)}"


_READ: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda of, key: of[key],
    "attr": getattr,
    "call": lambda of, key: of(),
    "len": lambda of, key: len(of),
    "keys": lambda of, key: tuple(of),
    "each": lambda of, key: tuple(of),
    "bytes": lambda of, key: (of.dtype.str, of.shape, of.tobytes()),
}
_TEXT = {  # {o}: what it is read of, {k}: the key, {v}: what stood there
    "item": "{o}[{k}] is {v}",
    "attr": "{o}.{key} is {v}",
    "call": "{o}() is {v}",
    "len": "len({o}) == {v}",
    "keys": "(*{o},) == {v}",
    "each": "same({o}, {v})",
    "bytes": "written({o}, {v})",
}


def _same(of: Any, elements: tuple[Any, ...]) -> bool:
    """Whether a container has just these elements, in this order."""
    return len(of) == len(elements) and all(map(is_, of, elements))


def _written(of: np.ndarray[Any, Any], then: tuple[str, tuple[int, ...], bytes]) -> bool:
    return of.shape == then[1] and of.tobytes() == then[2] and of.dtype.str == then[0]


class Guards:
    """All that one trace read; `hold(leaves)` tells whether it is as it was."""

    __slots__ = ("hold", "items", "names")

    def __init__(self, items: Sequence[Guard]) -> None:
        self.items = list(items)
        self.names: dict[str, Any] = {"same": _same, "written": _written}
        self.hold: Callable[[Sequence[Any]], bool] | None = None
        if self.items:
            texts = []
            for n, g in enumerate(self.items):
                of, self.names[f"v{n}"] = f"o{n}", g.value
                if type(g.of) is Leaf:
                    of = f"leaves[{g.of.number}]"
                else:
                    self.names[of] = g.of
                if g.kind == "item":
                    self.names[f"k{n}"] = g.key
                texts.append(_TEXT[g.kind].format(o=of, k=f"k{n}", key=g.key, v=f"v{n}"))
            exec(_code("\n  and ".join(texts)), self.names)
            self.hold = self.names["hold"]

    def change(self, leaves: Sequence[Any]) -> Change | None:
        """Return what changed, if anything did; equal values of other objects take their places."""
        for n, g in enumerate(self.items):
            now = g.read(leaves)
            if now is g.value:
                continue
            if g.kind == "len" and now is not UNSET:
                of = leaves[g.of.number] if type(g.of) is Leaf else g.of
                if type(of) is list or any(name in of for name in g.expected):
                    return Change(g, now)
            elif not is_alike(now, g.value):
                return Change(g, now)
            self.names[f"v{n}"] = g.value = now
        return None


@functools.lru_cache(1024)
def _code(text: str) -> Any:
    body = f"def hold(leaves):\n try:\n  return ({text})\n except Exception:\n  return False\n"
    return compile(body, "<ostinato guards>", "exec")


def is_alike(a: Any, b: Any) -> bool:
    """Whether no function can tell two values apart: equal to the bit, of one type, and without parts
    that could be changed."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in (float, complex):
        return repr(a) == repr(b)  # zeros with their signs, and NaN
    if kind is tuple:
        return len(a) == len(b) and all(map(is_alike, a, b))
    if kind is frozenset:  # 1 and 1.0 are one element
        return a == b and {type(x) for x in a} == {type(x) for x in b}
    if kind in (slice, range):
        return all(is_alike(getattr(a, n), getattr(b, n)) for n in ("start", "stop", "step"))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if kind in (types.MethodType, types.BuiltinMethodType):
        return a.__self__ is b.__self__ and a == b
    if isinstance(a, np.dtype) or kind in VALUES:
        return bool(a == b)
    return False


VALUES: tuple[type, ...] = (
    bool,
    int,
    str,
    bytes,
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
)


def _short(x: Any) -> str:
    if isinstance(x, Array):
        return f"an array {x.spec.bare}"
    if isinstance(x, np.ndarray):
        return f"a NumPy array {x.dtype}{list(x.shape)}"
    if isinstance(x, tuple) and len(x) == 3 and isinstance(x[2], bytes):
        return "other numbers"
    try:
        text = repr(x)
    except Exception:
        text = type(x).__name__
    return text if len(text) <= 60 else f"a {type(x).__name__}"
