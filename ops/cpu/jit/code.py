"""Addresses of machine code, and who keeps it where it is.

A number keeps nothing: once a module, a library or a table is gone, who still has its address jumps into
memory that is another's. So no function's address leaves this file as a number. There is `CodeAddress`, which
owns what it leads to; ctypes calls it as `function`, texts of machine code by a `symbol`, and tables of
addresses that machine code reads are `Words`: all of them hold it.

What is made for all threads is made `once`, while the others wait: of two that make the same at once, one
would go, though who asked for it has it."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

import numpy as np
from ostinato.ops.core.locks import make_lock

T = TypeVar("T")
Key = TypeVarTuple("Key")


class CodeAddress:
    """Where a function's machine code begins, and what it belongs to: a module, a library, a callback."""

    __slots__ = ("__weakref__", "_as_parameter_", "owner")

    def __init__(self, at: int, owner: object) -> None:
        self._as_parameter_ = ctypes.c_void_p(at)  # as ctypes takes it for an argument
        self.owner = owner

    def function(self, result: Any, *arguments: Any) -> Any:
        """The function as Python calls it, by ctypes, of such a result and such arguments."""
        made: Any = ctypes.CFUNCTYPE(result, *arguments)(_number(self))
        made.code = self
        return made

    def into(self, place: ctypes.Structure, field: str) -> None:
        """Write it to a field of a struct, whose owner has to hold this."""
        setattr(place, field, _number(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodeAddress) and _number(self) == _number(other)

    def __hash__(self) -> int:
        return hash(_number(self))


def address_of(library: Any, name: str) -> CodeAddress:
    """Find the address of a library's function; AttributeError if it has none of that name."""
    return called(getattr(library, name), library)


def called(function: Any, owner: object = None) -> CodeAddress:
    """Find the address of one of ctypes' functions, which may be one of Python's."""
    at = ctypes.cast(function, ctypes.c_void_p).value
    assert at is not None
    return CodeAddress(at, owner or function)


class Words:
    """Words of 8 bytes for machine code to read: numbers, and addresses of functions, of arrays and of other
    words, or 0 for None. It holds whatever they lead to, and goes to ctypes' functions as its own address."""

    def __init__(self, *values: float | CodeAddress | Words | np.ndarray[Any, Any] | None) -> None:
        self.values = values
        self.memory = np.zeros(len(values), np.int64)
        for k, value in enumerate(values):
            if isinstance(value, float):
                self.memory.view(np.float64)[k] = value
            elif value is not None:
                self.memory[k] = value if isinstance(value, int) else _number(value)
        self._as_parameter_ = ctypes.c_void_p(_number(self.memory))


def _number(thing: CodeAddress | Words | np.ndarray[Any, Any]) -> int:
    """Return the number by which machine code knows it."""
    if isinstance(thing, np.ndarray):
        return int(thing.ctypes.data)
    return thing._as_parameter_.value or 0


# -- names that texts may use ------------------------------------------------------------------
_symbols: dict[str, int] = {}
_kept: list[object] = []  # what they lead to, and what they led to when older modules were made
untold: deque[tuple[str, int]] = deque()  # those that LLVM does not know yet


def symbol(name: str, thing: object) -> None:
    """A name that texts may use: of code, of an array's first element, or else of an object of Python's. It
    is held from now on."""
    at = _number(thing) if isinstance(thing, CodeAddress | np.ndarray) else id(thing)
    if _symbols.get(name) != at:
        _kept.append(thing)
        untold.append((name, at))
        _symbols[name] = at


# -- what is made once -------------------------------------------------------------------------
class once(Generic[*Key, T]):
    """Makes a function's result for these arguments once, while other threads that want it wait."""

    def __init__(self, make: Callable[[*Key], T]) -> None:
        self.make, self.made = make, dict[Any, T]()
        self.lock = make_lock()  # a handler of a signal may come here while its thread is making
        functools.update_wrapper(self, make)

    def __call__(self, *key: *Key) -> T:
        try:
            return self.made[key]
        except KeyError:
            pass
        with self.lock:
            return (
                self.made[key] if key in self.made else self.made.setdefault(key, self.make(*key))
            )

    def cache_clear(self) -> None:
        self.made.clear()
