"""What a compiled function takes from around it, watched: where it changes, another trace is needed.

Names say what a function reads: of its closure and module, and, down into attributes, of the objects that
it finds there or is given. Nothing of the user's runs while this looks."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from ostinato.ops.array import Array
from ostinato.ops.tree import Structure, flatten

UNSET: Any = object()
Guard = tuple[Callable[[], Any], Any]  # how something is read, and what it was


class Guards:
    """What a function takes from its closure and its module: arrays, numbers, texts, containers of such
    things, what it reads of objects, functions of the same module and methods, and what these take; as
    it was when the function was traced."""

    def __init__(self, function: Any) -> None:
        self.function = inspect.unwrap(function)
        self.items: list[Guard] = []

    def look(self) -> None:
        """Take things as they are now."""
        self.items = _Around(self.function, ()).items

    def changed(self) -> bool:
        return have_changed(self.items)

    def of(self, leaves: Sequence[Any]) -> list[Guard]:
        """What the function reads of the objects among its arguments."""
        objects = [x for x in leaves if not isinstance(x, (*_WATCHED, bytes))]
        return _Around(self.function, objects).items if objects else []


def have_changed(items: Sequence[Guard]) -> bool:
    for read, value in items:
        now = read()
        if now is not value and _differs(now, value):
            return True
    return False


class _Around:
    """A walk over what functions read, down into the attributes that they name: in the objects of a
    call, or, where there are none, in closures and modules."""

    def __init__(self, function: Any, objects: Sequence[Any]) -> None:
        self.items: list[Guard] = []
        self.home = getattr(function, "__globals__", None)
        self.names = {"__call__"}
        self.codes: set[int] = set()
        self.roots: list[Guard] = []
        self.seen: set[int] = set()
        self._follow(function)
        known = -1
        while known < len(self.codes):  # a method that is found names further attributes
            known = len(self.codes)
            self.items, self.seen = [], set()
            for read, value in tuple(self.roots):
                self._take(read, value, False)
            if objects:
                self.items = []
            for x in objects:
                self._take(_held(x), x, True)

    def _follow(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        if code is None or id(code) in self.codes:
            return
        self.codes.add(id(code))
        names = function.__globals__
        read = {*_names(code)}
        self.names |= read
        cells = [functools.partial(_cell, cell) for cell in function.__closure__ or ()]
        around = [functools.partial(names.get, n) for n in sorted(read) if n in names]
        self.roots += [(look, look()) for look in (*cells, *around)]

    def _take(self, read: Callable[[], Any], value: Any, is_method: bool) -> None:
        inner = value if isinstance(value, FunctionType) else _found(value, "__wrapped__")
        if isinstance(inner, FunctionType):  # itself, or what was compiled
            if is_method or inner.__globals__ is self.home:
                self._follow(inner)
                self.items.append((read, value))
        elif isinstance(value, _WATCHED):
            self.items.append((read, value))
        elif isinstance(value, (dict, list, tuple)):
            contents = functools.partial(_contents, read)
            try:
                leaves = contents()
            except RecursionError:  # it holds itself
                return
            if len(leaves) <= _MANY:
                self.items.append((contents, leaves))
                for x in leaves[1:]:
                    if not isinstance(x, _WATCHED):
                        self._take(functools.partial(_itself, x), x, True)
        elif isinstance(value, property):
            self._follow(value.fget)
        elif id(value) not in self.seen:
            self.seen.add(id(value))
            count = len(self.items)
            for name in sorted(self.names):
                found = _found(value, name)
                if found is not UNSET:
                    look = functools.partial(_found_of, _held(value), name)
                    self._take(look, found, not isinstance(value, ModuleType))
            if len(self.items) > count and not isinstance(read, weakref.ref):
                self.items.append((read, value))


def _held(x: Any) -> Callable[[], Any]:
    """How an object is found, without keeping it where that is possible: what is known of it goes with it."""
    try:
        return weakref.ref(x)
    except TypeError:
        return functools.partial(_itself, x)


def _found_of(held: Callable[[], Any], name: str) -> Any:
    return _found(held(), name)


def _itself(x: Any) -> Any:
    return x


def _found(x: Any, name: str) -> Any:
    """An attribute as it is stored, without running any code of the user's."""
    try:
        kinds = x.__mro__ if isinstance(x, type) else (x, *type(x).__mro__)
        for kind in kinds:
            own = getattr(kind, "__dict__", {})
            if name in own:
                found = own[name]
                return found.__get__(x) if isinstance(found, MemberDescriptorType) else found
    except Exception:  # objects may be of any kind
        pass
    return UNSET


_WATCHED = (Array, np.ndarray, bool, int, float, complex, str)
_MANY = 256  # leaves of a container; larger ones are not looked through at every call


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function looks up, in the functions within it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _contents(read: Callable[[], Any]) -> tuple[Any, ...]:
    leaves, structure = flatten(read())
    return (structure, *leaves)


def _differs(now: Any, value: Any) -> bool:
    if now is value:
        return False
    if type(now) is tuple and type(value) is tuple:
        return len(now) != len(value) or any(map(_differs, now, value))
    alike = type(now) is type(value) and isinstance(now, (*_WATCHED[2:], Structure))
    return not alike or bool(now != value)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET
