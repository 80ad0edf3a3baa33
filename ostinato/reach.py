"""What a trace reaches: every function of the user's that it runs, and what these name.

While a function is traced the interpreter tells of each call (`sys.monitoring`, or a profiling function where
Python is older). Whatever is called, through whatever wrapper, is looked at before its body runs: the globals
and cells that its code names, and, down into attributes, items and classes, all that these lead to. So it does
not matter how a function is found, only that it ran. Code of Python's library, NumPy and Ostinato is not looked
at; nothing of the user's runs while this looks."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # its getsignal makes no enums, which takes 0.1 ms
import array as _array
import collections
import contextlib
import datetime
import functools
import gc
import itertools
import os
import random as _random
import signal
import sys
import threading
import time as _time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ostinato.errors import StaleWarning
from ostinato.ops.core.array import Array
from ostinato.ops.core.tree import Structure, flatten
from ostinato.ops.core.user_line import short

from .code_facts import (
    HEAP,
    Facts,
    facts,
    instructions,
    is_installed,
    is_library_code,
    is_library_module,
    is_library_type,
    is_nameless,
)
from .guards import UNSET, VALUES, Guard, Leaf, is_alike
from .side_effects import Argument, Place, PlaceId, Snapshot, State, Write, is_state, place_id

# elements of a container that are looked into; of larger ones each counts as it is
MAX_ELEMENTS = 256
DEEPEST = 8  # functions that know functions
COMPARED_BYTES = 1 << 16  # bytes of a NumPy array whose numbers are compared at each hit
WRAPPERS: dict[type, tuple[str, ...]] = {  # where wrappers keep what they wrap
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget",),
    functools.cached_property: ("func",),
    collections.UserDict: ("data",),
    collections.UserList: ("data",),
    collections.ChainMap: ("maps",),
    type(os.environ): ("_data",),
}
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))


_MODULES = frozenset(("modules", "import_module", "__import__"))
_GENERATORS = (_random.Random, np.random.RandomState, np.random.Generator)
_DRAWN = "random numbers, drawn once, when it is traced"
_DRAWING = frozenset(("uuid.uuid1", "uuid.uuid4", "posix.urandom", "posix.getrandom"))
_PLAIN = (types.ModuleType, type, *_GENERATORS)  # whose attributes are read without anybody's code


_Cached = type(functools.lru_cache(lambda: None))


class Reach:
    """What one trace reaches, taken as it is before it can be read."""

    def __init__(
        self,
        function: Any,
        name: str,
        leaves: Sequence[tuple[int, str, Any]],
        beside: Sequence[Any],
        state: State,
    ) -> None:
        self.state = state  # what are inputs of the trace, so not guarded
        self.snapshot = Snapshot()
        self.there: set[int] = set()  # containers that are older than the trace, by id
        self.kept: set[int] = set()  # what is written to, by id: its guards count
        self.guards: list[Guard] = []
        self.places: set[tuple[Any, ...]] = set()  # what has a guard
        self.executed: dict[int, types.CodeType] = {}
        self.within = _collection()  # a finalizer may trace, too
        self.beside = _beside()
        self.interrupted = False  # whether any of these ran
        self.base = 0  # the frame that calls the function, by id
        self.functions: dict[int, list[types.FunctionType]] = {}  # that were met, by code
        self.attributes: set[str] = set()
        self.every = False  # attribute's names are made, so any may be read
        self.named = True  # whether the trace certainly names what is looked at
        self.seen: dict[int, Any] = {}
        self.spaces: list[tuple[Any, str, bool]] = []  # of named attributes
        self.slotted: list[tuple[Any, Any, str]] = []  # of named slots
        self.modules: dict[int, tuple[Any, set[str]]] = {}  # names that functions take of theirs
        self.locals: dict[int, Any] = {}  # objects that were found in frames
        # free variables, as they were at the call, by code
        self.cells: dict[int, dict[str, Any]] = {}
        self.nested: list[Any] = []  # compiled functions that were called
        self.warned: list[tuple[str, str]] = []  # what cannot be watched
        self.lines: dict[str, tuple[str, int]] = {}  # where that was met, if it is known
        self.generators: list[tuple[Any, str, bool]] = []  # of random numbers
        self.drawn: list[tuple[Any, str, Any, tuple[str, int]]] = []  # what is read of some
        for number, leaf, x in leaves:
            self._descend(x, leaf, Leaf(number))
        for x in beside:
            self._descend(x, f"a {type(x).__name__}")
        self._descend(function, name)

    # -- calls -----------------------------------------------------------------------------
    def called(self, code: types.CodeType, frame: types.FrameType) -> None:
        """A function of the user's begins."""
        if code.co_name == "__del__" or id(code) in self.beside:
            self.interrupted = True
        if self._is_beside(frame):
            return
        given = frame.f_locals
        count = (
            code.co_argcount
            + code.co_kwonlyargcount
            + bool(code.co_flags & 4)
            + bool(code.co_flags & 8)
        )
        for name in code.co_varnames[:count]:
            self._local(given.get(name))
        if id(code) in self.executed:
            return
        self.executed[id(code)] = code
        known = facts(code)
        if code.co_freevars:
            self.cells[id(code)] = {n: given.get(n, UNSET) for n in code.co_freevars}
        self._space(frame.f_globals, known.globals)
        for name in known.imports:
            if (module := sys.modules.get(name)) is not None:
                self._descend(module, name)
        if any(
            not isinstance(m := given.get(n, frame.f_globals.get(n)), types.ModuleType)
            or not is_library_module(m.__name__)
            for n in known.any_attribute
        ):
            self.every = True
        self._spaces_by_text(frame.f_globals, known)
        self._name(known.attributes)
        for f in self.functions.get(id(code), ()):
            self._function_runs(f)
        self._look_for_sources(code, known, frame)

    def _spaces_by_text(self, names: dict[str, Any], known: Facts) -> None:
        """Take what code finds by texts: globals by `globals()`, modules by `sys.modules`, `import_module`."""
        if "globals" in known.globals:
            asked = known.texts & names.keys()
            every = frozenset(n for n in names if not n.startswith("__"))
            self._space(names, asked or every)
        if known.named & _MODULES:
            for name in known.texts & sys.modules.keys():
                self._item(sys.modules, name, name)

    def _look_for_sources(self, code: types.CodeType, known: Facts, frame: types.FrameType) -> None:
        """Random numbers, clocks and files, by the names that lead to them."""
        given = frame.f_locals
        for (first, *rest), line in known.chains:
            x = given.get(first, frame.f_globals.get(first))
            if isinstance(x, Array) or not rest:
                continue
            for name in rest[:-1]:
                x = (_dict_of(x) or {}).get(name)
            found = getattr(x, rest[-1], None) if isinstance(x, _PLAIN) else None
            path, where = ".".join((first, *rest)), (code.co_filename, line)
            if first in given and isinstance(x, _GENERATORS):  # which the trace may have made
                self.drawn.append((x, path, found, where))
            else:
                self._source(path, found, where)
        if known.line_of_file:
            what = "a file, written once, when it is traced"
            self._warn("open", what, "ost.callback", (code.co_filename, known.line_of_file))

    def _assume(self, f: types.FunctionType) -> None:
        """A function whose results are kept (`lru_cache`) may have run before: what it would read counts."""
        code = f.__code__
        if id(code) in self.executed or is_library_code(code):
            return
        self.executed[id(code)] = code
        known = facts(code)
        self._space(f.__globals__, known.globals)
        self._name(known.attributes)
        self._function_runs(f)
        cells = [c.cell_contents for c in f.__closure__ or () if c != types.CellType()]
        for x in [*(f.__globals__.get(n) for n in known.globals), *cells]:
            if type(x) is types.FunctionType:
                self._assume(x)

    def returned(self, frame: types.FrameType) -> None:
        """It ends: what it found meanwhile may have attributes that it read."""
        if self._is_beside(frame):
            return
        for x in frame.f_locals.values():
            self._local(x)

    def enters(self, frame: types.FrameType) -> None:
        """A compiled function is called."""
        if not self._is_beside(frame):
            self.nested.append(frame.f_locals["self"])

    def _is_beside(self, frame: types.FrameType) -> bool:
        """Whether it is no part of the trace, but runs in this thread meanwhile: what the garbage
        collector calls, finalizers, handlers of signals, and what these call."""
        if _collection() is not self.within:
            return True
        f: types.FrameType | None = frame if self.interrupted else None
        while f is not None and id(f) != self.base:
            if f.f_code.co_name == "__del__" or id(f.f_code) in self.beside:
                return True
            f = f.f_back
        return False

    def _local(self, x: Any) -> None:
        if type(x) in _ATOMS or id(x) in self.seen or isinstance(x, (Array, type)):
            return
        # it is kept as long as the trace is
        if not isinstance(x, np.ndarray) or x.nbytes <= COMPARED_BYTES:
            self.locals[id(x)] = x

    # -- places ----------------------------------------------------------------------------
    def _guard(self, kind: str, of: Any, key: Any, value: Any, name: str) -> Guard | None:
        place = place_id(kind, of, key)
        if place in self.places or place in self.state.places:
            return None
        self.places.add(place)
        self.guards.append(Guard(kind, of, key, value, name))
        return self.guards[-1]

    def _item(self, space: Any, key: Any, name: str) -> None:
        value = space[key]
        if self._guard("item", space, key, value, name) is not None:
            self._descend(value, name)

    def _space(self, names: dict[str, Any], wanted: frozenset[str]) -> None:
        """Take the names that a function reads of its module."""
        _, known = self.modules.setdefault(id(names), (names, set()))
        self.snapshot.add_names(names, "")
        for n in wanted - known:
            known.add(n)
            if n in names:
                self._item(names, n, n)
            else:  # of builtins, as long as the module has none of that name
                value = names.get("__builtins__")
                space = value if isinstance(value, dict) else vars(value) if value else {}
                if n in space:
                    self._descend(space[n], n)
        self._length(names, known, "the module's names")

    def _length(self, names: Any, expected: set[str], name: str) -> None:
        """A guard of what would matter if it appeared."""
        guard = self._guard("len", names, None, len(names), name)
        if guard is not None:
            guard.expected = _Missing(names, expected)

    def _name(self, names: frozenset[str]) -> None:
        """Further attributes are read, of anything."""
        new = names - self.attributes
        if not new and not self.every:
            return
        self.attributes |= new
        for space in tuple(self.spaces):
            self._named(space)
        for slots in tuple(self.slotted):
            self._slots(slots)

    def _named(self, space: tuple[Any, str, bool]) -> None:
        names, path, is_object = space
        if self.every and is_object:
            wanted = [n for n in names if not n.startswith("__")]
        else:
            wanted = [n for n in self.attributes if n in names]
        for n in wanted:
            outer = self.named
            self.named = outer and n in self.attributes
            self._item(names, n, f"{path}.{n}")
            self.named = outer

    def _slots(self, slots: tuple[Any, Any, str]) -> None:
        of, x, path = slots
        for kind in type(x).__mro__:
            for n, d in tuple(kind.__dict__.items()):
                if not isinstance(d, types.MemberDescriptorType):
                    continue
                # those of C may be read only, and made when they are read
                if kind.__flags__ & HEAP:
                    self.snapshot.add(Place("attr", of, n, f"{path}.{n}"), x)
                if self.every or n in self.attributes:
                    try:
                        value = d.__get__(x)
                    except AttributeError:
                        continue
                    if self._guard("attr", of, n, value, f"{path}.{n}") is not None:
                        self._descend(value, f"{path}.{n}")

    # -- values ----------------------------------------------------------------------------
    def _descend(self, x: Any, path: str, of: Any = None) -> None:
        """All that a value leads to."""
        kind = type(x)
        if kind in _ATOMS or id(x) in self.seen or kind in VALUES or kind is np.dtype:
            return
        self.seen[id(x)] = x
        self.locals.pop(id(x), None)
        if isinstance(x, Array):
            self._guard("attr", x, "_operand", x._operand, path)
        elif kind is types.FunctionType:
            self._function(x, path)
        elif kind is _Cached:
            self._descend(x.__wrapped__, path)
            if type(x.__wrapped__) is types.FunctionType:
                self._assume(x.__wrapped__)
        elif kind in WRAPPERS:
            self._source(path, x)
            for name in WRAPPERS[kind]:
                self._descend(getattr(x, name), path)
        elif isinstance(x, types.ModuleType):
            if not is_library_module(x.__name__):
                self._attributes(x.__dict__, path, not is_installed(x))
        elif isinstance(x, type):
            self._class(x, path)
        elif isinstance(x, (dict, types.MappingProxyType)):
            self._contents(x, path, x)
            self._object(x, path, of)
        elif isinstance(x, (list, tuple, set, frozenset, collections.deque)):
            self._contents(x, path, None)
            self._object(x, path, of)
        elif isinstance(x, np.ndarray):
            self._numbers(x, path)
        elif isinstance(x, (bytearray, memoryview, _array.array)):
            self._warn(
                path, f"a {kind.__name__}, which may be written to", "bytes or a NumPy array"
            )
        elif isinstance(x, weakref.ref):
            value = x()
            self._guard("call", x, None, value, path)
            self._descend(value, path)
        elif kind is types.BuiltinFunctionType:
            self._source(path, x)
        elif isinstance(x, _GENERATORS):
            self.generators.append((x, path, self.named))
        elif hasattr(kind, "__next__"):
            self._warn(path, "an iterator, which is used up by the trace", "a list")
        elif not kind.__module__.startswith("ostinato."):
            self._object(x, path, of)

    def _object(self, x: Any, path: str, of: Any) -> None:
        """An instance: its class, and of its attributes those that are named anywhere."""
        of = x if of is None else of
        kind: Any = type(x)
        if kind.__module__ == "builtins" and not is_nameless(kind):
            return
        if not is_library_type(kind):
            self._guard("attr", of, "__class__", kind, f"the class of {path}")
        self._class(kind, kind.__name__)
        names = _dict_of(x)
        if names is not None:
            if kind.__getattribute__ is object.__getattribute__:
                self._guard("attr", of, "__dict__", names, f"{path}.__dict__")
            self._attributes(names, path, True)
        if any(
            isinstance(d, types.MemberDescriptorType)
            for k in kind.__mro__
            for d in vars(k).values()
        ):
            self.slotted.append((of, x, path))
            self._slots(self.slotted[-1])

    def _attributes(
        self, names: Any, path: str, is_object: bool, owner: type | None = None
    ) -> None:
        self.snapshot.add_names(names, path, owner)
        space = (names, path, is_object)
        self.spaces.append(space)
        self._named(space)
        self._length(names, self.attributes, f"the attributes of {path}")

    def _class(self, kind: type, path: str) -> None:
        for k in kind.__mro__:
            if not is_library_type(k) and ("class", id(k)) not in self.places:
                self.places.add(("class", id(k)))
                self.seen[id(k)] = k
                self._attributes(_names_of(k), k.__name__, False, k)

    def _contents(self, x: Any, path: str, items: Any) -> None:
        """A container: which elements it has, and what these lead to, unless they are many."""
        self.snapshot.add_contents(x, path)
        if items is not None:
            inner = [(f"{path}[{k!r:.40}]", k, v) for k, v in items.items()]
            plain = len(inner) <= MAX_ELEMENTS and all(type(k) in _ATOMS for k in items)
            if plain and all(type(k) is str for k in items):
                self._guard("keys", x, None, tuple(items), path)
            else:
                self._guard("each", x, None, tuple(items), path)
                if not plain:
                    self._guard("each", x.values(), None, tuple(items.values()), path)
        else:
            elements = tuple(x)
            inner = [(f"{path}[{k}]", k, v) for k, v in enumerate(elements)]
            fixed = isinstance(x, (tuple, frozenset))
            plain = type(x) is list and len(elements) <= MAX_ELEMENTS
            if plain:
                self._guard("len", x, None, len(elements), path)
            elif not fixed:
                self._guard("each", x, None, elements, path)
        for name, key, value in inner if len(inner) <= MAX_ELEMENTS else ():
            if plain:
                self._guard("item", x, key, value, name)
            self._descend(value, name)

    def _numbers(self, x: np.ndarray[Any, Any], path: str) -> None:
        if x.dtype.hasobject:
            return
        if x.nbytes <= COMPARED_BYTES:
            if x.flags.writeable:
                self.snapshot.add_contents(x, path)
            self._guard("bytes", x, None, (x.dtype.str, x.shape, x.tobytes()), path)
            return
        base: Any = x
        while isinstance(base, np.ndarray) and not base.flags.writeable and base.base is not None:
            base = base.base
        if not isinstance(base, np.ndarray) or base.flags.writeable:
            self._warn(
                path,
                f"a NumPy array of {x.nbytes:,} bytes; what is written to it later is not seen",
                f"it as an argument, ost.asarray of it, or {path}.flags.writeable = False",
            )

    def _source(self, path: str, x: Any, where: tuple[str, int] | None = None) -> None:
        """Something that gives another value whenever it is called."""
        owner = getattr(x, "__self__", None)
        name = f"{getattr(x, '__module__', None)}.{getattr(x, '__name__', None)}"
        if isinstance(owner, _GENERATORS) or name in _DRAWING:
            self._warn(path, _DRAWN, "ost.random", where)
        elif (owner is _time and name != "time.sleep") or (
            isinstance(owner, type)
            and issubclass(owner, datetime.date)
            and name.endswith((".now", ".today", ".utcnow"))
        ):
            self._warn(
                path, "a clock, read once, when it is traced", "the time as an argument", where
            )

    def _function(self, f: types.FunctionType, path: str) -> None:
        self.functions.setdefault(id(f.__code__), []).append(f)
        library = is_library_code(f.__code__)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):
                value = cell.cell_contents
                if library:  # what decorators of ours keep
                    self._descend(value, name)
                elif isinstance(value, (types.FunctionType, *WRAPPERS)):
                    self._descend(value, name)  # so that it is known should it run
        if "__wrapped__" in f.__dict__:
            self._descend(f.__dict__["__wrapped__"], path)
        if id(f.__code__) in self.executed:
            self._function_runs(f)

    def _function_runs(self, f: types.FunctionType) -> None:
        """A function that runs: its cells, its defaults, and its code, which a reload may replace."""
        name = f.__name__
        self._guard("attr", f, "__code__", f.__code__, f"the code of {name}")
        for n, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            self.snapshot.add(Place("attr", cell, "cell_contents", n), cell)
            with contextlib.suppress(ValueError):
                value = cell.cell_contents
                if self._guard("attr", cell, "cell_contents", value, n) is not None:
                    self._descend(value, n)
        for defaults in ("__defaults__", "__kwdefaults__"):
            value = getattr(f, defaults)
            if value is not None:
                self._guard("attr", f, defaults, value, f"the defaults of {name}")
            for x in (value.values() if isinstance(value, dict) else value) or ():
                self._descend(x, f"a default of {name}")
        if f.__dict__:
            self._attributes(f.__dict__, name, True)

    # -- writes ----------------------------------------------------------------------------
    def _known(self) -> tuple[frozenset[str], bool]:
        """The names that what ran so far may assign to, and whether it may change containers."""
        known = [facts(c) for c in self.executed.values()]
        return frozenset[str]().union(*(k.stored for k in known)), any(k.mutates for k in known)

    def _writes(self) -> list[Write]:
        """Writes so far, but for those to places that are inputs."""
        stored, mutates = self._known()
        if not stored and not mutates:
            return []
        return self.snapshot.writes(
            lambda name: mutates or _last(name) in stored, self.state.places
        )

    def _is_log(self, write: Write, is_traced: Callable[[Any], bool]) -> bool:
        """Whether something plain was added to what nobody reads, which is left alone."""
        return self._is_unread(write) and not is_traced(write.after)

    def _is_unread(self, write: Write) -> bool:
        """Whether something was added to what nobody reads."""
        if not write.appended:
            return False
        known = [facts(c) for c in self.executed.values()]
        return not any(_last(write.place.name) in k.read for k in known)

    def place_of(self, x: Array) -> Place:
        """An Array from around the function, as a place."""
        named = (g.name for g in self.guards if g.of is x and g.key == "_operand")
        known = (p.name for p in self.state.places.values() if p.of is x)
        return Place("array", x, "_operand", next(itertools.chain(named, known), "an array"))

    def may_read(self, place: Place, leaves: Sequence[Any]) -> bool:
        """Whether what stands in a place may have been read, and can be an input."""
        if type(place.of) is Argument or place.id in self.state.places:
            return False
        if place.kind != "array" and place.id not in self.places:
            return False
        return is_state(place.read(leaves))

    def knows(self, x: Any) -> bool:
        """Whether a container was there before the trace."""
        return id(x) in self.there or id(x) in self.seen

    def add_classes(self, structure: Structure) -> None:
        """The classes of arguments that are trees: what their objects do is written there."""
        if isinstance(structure.kind, type):
            self._class(structure.kind, structure.kind.__name__)
        for child in structure.children:
            self.add_classes(child)

    def wrote(self, is_traced: Callable[[Any], bool]) -> dict[PlaceId, tuple[str, Any]]:
        """Writes so far, with what stands there."""
        found = {
            w.place.id: (w.place.name, w.after)
            for w in self._writes()
            if not self._is_log(w, is_traced)
        }
        for place, made in self.state.standing():
            found[place.id] = (place.name, made)
        return found

    def end(self, is_traced: Callable[[Any], bool]) -> tuple[list[Write], set[PlaceId]]:
        """All that the trace wrote, which is undone; and places that cannot be inputs."""
        found = [w for w in self._writes() if not self._is_log(w, is_traced)]
        self.kept.update(id(w.place.of) for w in found if not self._is_unread(w))
        self.snapshot.undo(found, self.state.leaves)
        self.there |= self.snapshot.contents.keys()
        self.snapshot = Snapshot()
        writes, torn = self.state.end()
        return writes + found, torn

    # -- the end ---------------------------------------------------------------------------
    def _warn(
        self, path: str, what: str, instead: str, where: tuple[str, int] | None = None
    ) -> None:
        if self.named or where is not None:
            self.warned.append((path, f"{what}; use {instead}"))
            if where is not None:
                self.lines.setdefault(path, where)

    def finish(self) -> list[Guard]:
        """All guards, once the trace is over and its results are gone."""
        self._unmet()
        self.cells = {}
        for x, path, found, where in self.drawn:
            if id(x) in self.seen:
                self._source(path, found, where)
        for x, path, is_named in self.generators:
            said = not is_named or any(p.startswith(f"{path}.") for p, _ in self.warned)
            if not said and any(n in self.attributes and not n.startswith("_") for n in dir(x)):
                self._warn(path, _DRAWN, "ost.random")
        held, count = self.locals, -1
        self.locals = {}
        while count != len(held):  # as one that goes may have had others
            count, left = len(held), dict[int, Any]()
            while held:
                x = held.popitem()[1]
                # this name and the call's: nobody but the trace had it
                if sys.getrefcount(x) > 2 and id(x) not in self.seen and not _is_traced(x):
                    left[id(x)] = x
            held = left
        for x in held.values():
            self._descend(x, f"a {type(x).__name__}")
        for f in self.nested:
            if f.last is not None and f.last.guards is not None:
                self.guards += [g for g in f.last.guards.items if type(g.of) is not Leaf]
        read = frozenset[str]().union(*(facts(c).read for c in self.executed.values()))
        named = frozenset[str]().union(*(facts(c).named for c in self.executed.values()))
        logs = named - read
        valued = frozenset[str]().union(*(facts(c).valued for c in self.executed.values()))
        self.warned = [w for w in self.warned if _last(w[0]) not in named - valued]
        self.guards = [
            g
            for g in self.guards
            if (not _is_of_log(g, logs) or id(g.of) in self.kept) and not _has_no_value(g.value)
        ]
        for guard in self.guards:
            if guard.key == "_operand":  # what was pending has run, if the trace read it
                guard.value = guard.of._operand
        self.guards = [g for g in self.guards if g.key != "_operand" or g.value is not None]
        self.snapshot, self.seen = Snapshot(), {}
        return self.guards

    def _unmet(self) -> None:
        """Functions that ran, but to which nothing led: their cells are found by their code."""
        inner = {id(c) for code in self.executed.values() for c in code.co_consts}
        lost = [c for k, c in self.executed.items() if k not in self.functions and k not in inner]
        lost = [c for c in lost if c.co_freevars]
        if not lost:
            return
        for f in gc.get_referrers(*lost):
            if isinstance(f, types.FunctionType) and id(f.__code__) in self.executed:
                then = self.cells.get(id(f.__code__), {})
                cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=False)
                with contextlib.suppress(ValueError):
                    if all(cell.cell_contents is then.get(n) for n, cell in cells):
                        self._descend(f, f.__name__)

    def changed(self) -> list[Guard]:
        """Find what another thread changed during the trace; what the functions themselves wrote to is
        taken as they left it."""
        found: list[Guard] = []
        stored, mutates = self._known()
        for g in self.guards:
            if type(g.of) is Leaf:
                continue
            now = g.read()
            if now is g.value or is_alike(now, g.value):
                continue
            if g.kind in ("keys", "each", "bytes"):
                own = mutates
            elif g.kind == "item":
                own = g.key in stored or mutates
            elif g.key == "cell_contents":
                own = g.name in stored
            else:
                own = g.kind == "len" or g.key in stored
            if not own:
                found.append(g)
            elif now is not UNSET:
                g.value = now
        return found

    def tell(self, name: str, where: types.CodeType | None, told: set[tuple[str, str]]) -> None:
        """Say what cannot be watched, once per place."""
        new = [w for w in dict.fromkeys(self.warned) if w not in told]
        told.update(new)
        for path, why in new:
            code = next(
                (c for c in self.executed.values() if path.partition(".")[0] in facts(c).globals),
                where,
            )
            file, line = (code.co_filename, code.co_firstlineno) if code else ("<unknown>", 1)
            for step in instructions(code) if code else ():
                line = step.line or line
                if step.argval == path.partition(".")[0]:
                    break
            file, line = self.lines.get(path, (file, line))
            text = f"{name} ({short(f'{file}:{line}')}): {path} cannot be watched: {why}."
            warnings.warn_explicit(text, StaleWarning, file, line)


def _is_of_log(guard: Guard, logs: frozenset[str]) -> bool:
    """Whether a guard is of a counter's number or of a log's contents; which object it is still counts."""
    if _last(guard.name) not in logs or guard.name.startswith("the "):
        return False
    if guard.kind in ("item", "attr") and not guard.name.endswith("]"):
        return type(guard.value) in (int, float)
    return True


def _last(path: str) -> str:
    """The name that a path ends with: `log` of `model.log[3]`."""
    return path.rpartition(".")[2].partition("[")[0]


class _Missing:
    """Names that a function would find, if they were there."""

    __slots__ = ("had", "names", "wanted")

    def __init__(self, names: Any, wanted: set[str]) -> None:
        self.wanted = wanted
        self.had = frozenset(names)

    def __iter__(self) -> Iterator[str]:
        return iter([n for n in self.wanted if n not in self.had])


_names: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


def _names_of(kind: type) -> Any:
    """The attributes of a class: one object, however often they are asked for."""
    return _names.setdefault(kind, kind.__dict__)


def _dict_of(x: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _is_traced(x: Any, depth: int = 0) -> bool:
    """Whether it was made by the trace: what it holds, or a function knows, has no values."""
    try:
        inside = flatten([x, *(_dict_of(x) or {}).values()])[0]
    except RecursionError:  # a container that holds itself
        inside = _inside(x)
    if any(map(_has_no_value, inside)):
        return True
    known = [getattr(x, name, None) for name in WRAPPERS.get(type(x), ())]
    if type(x) is types.FunctionType:
        known += [c.cell_contents for c in x.__closure__ or () if c != types.CellType()]
    return depth < DEEPEST and any(_is_traced(y, depth + 1) for y in known)


def _inside(x: Any) -> list[Any]:
    """List what is in containers of Python's, each of them once."""
    found, waiting = dict[int, Any](), [x, *(_dict_of(x) or {}).values()]
    while waiting:
        y = waiting.pop()
        if id(y) not in found:
            found[id(y)] = y
            waiting += (
                y.values() if isinstance(y, dict) else y if isinstance(y, (list, tuple)) else ()
            )
    return [*found.values()]


def _has_no_value(x: Any) -> bool:
    return isinstance(x, Array) and x._term is not None and x._term.is_traced


# -- what runs meanwhile -------------------------------------------------------------------
# What tells of collections is not written in Python: a handler of Ctrl-C may run in what is, and what
# that raises would be lost. Each collection comes with an object of its own.
_collected = threading.local()  # by this thread
_latest = collections.OrderedDict[str, Any](start=None, stop=None)  # by any; the latest comes last
_callbacks: list[Any] = [_collected.__setattr__, _latest.__setitem__, _latest.move_to_end]
gc.callbacks += _callbacks
_SIGNALS = tuple(signal.valid_signals())


def _collection() -> Any:
    """The garbage collection in which this thread is, if it is in one."""
    mine = getattr(_collected, "start", None)  # first: what others begin now is another one
    try:
        latest = next(reversed(_latest))
    except RuntimeError:  # one began or ended in between
        return _collection()
    return mine if latest == "start" and _latest["start"] is mine else None


def _beside() -> set[int]:
    """The code, by id, of what interrupts whatever runs: handlers of collections and of signals."""
    known = [*gc.callbacks, *map(_signal.getsignal, _SIGNALS)]
    known = [f.__func__ if type(f) is types.MethodType else f for f in known]
    return {id(f.__code__) for f in known if type(f) is types.FunctionType}
