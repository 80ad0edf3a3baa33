"""Facts of code objects: what their instructions name, store and read, and whose code they are."""

from __future__ import annotations

import dis
import functools
import os
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ostinato.ops.core.user_line import is_ours


@dataclass(frozen=True, slots=True)
class Facts:
    """What a function's code names."""

    globals: frozenset[str]
    attributes: frozenset[str]
    stored: frozenset[str]
    read: frozenset[str]  # names whose value counts, other than those of a counter or a log
    imports: frozenset[str]
    named: frozenset[str]  # all names that it loads
    mutates: bool  # it may change a container
    valued: frozenset[str]  # names of which more is read than shape and dtype
    any_attribute: frozenset[str]  # what it reads attributes of whose names it makes; "": who knows
    texts: frozenset[str]
    chains: tuple[tuple[tuple[str, ...], int], ...]  # `a.b.c`, from a name on, and the line
    line_of_file: int  # where it opens a file to write; 0 if it does not


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_LOADS_OF_NAMES = (
    *_LOADS,
    "LOAD_ATTR",
    "LOAD_METHOD",
    "LOAD_SUPER",
    "LOAD_DEREF",
    "LOAD_CLASSDEREF",
)
_VALUES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST")
_MUTATORS = frozenset(
    (
        *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem"),
        *("remove", "clear", "update", "add", "discard", "setdefault", "sort", "reverse", "rotate"),
        *("__setitem__", "__delitem__", "__setattr__", "setattr", "delattr", "fill", "put"),
        *("heappush", "heappop", "heapify", "insort", "shuffle", "copyto", "putmask"),
    )
)


HEAP = 1 << 9  # of a class that was made while the program runs


_ANY = frozenset(("vars", "__dict__", "attrgetter", "__getattribute__", "getmembers", "dir"))


class Step(NamedTuple):
    """An instruction of Python's, with one name; `line` is that of the text, or the one before it."""

    opname: str
    argval: Any
    argrepr: str
    line: int


def instructions(code: types.CodeType) -> Iterator[Step]:
    """Instructions one by one: since Python 3.13 some load or store two variables."""
    line = 0
    for step in dis.get_instructions(code):
        line = (step.positions.lineno if step.positions else None) or line
        name = step.opname.replace("_BORROW", "")
        names = _OF_TWO.fullmatch(name)
        if names is None:
            yield Step(name, step.argval, step.argrepr, line)
            continue
        for name, argval in zip(names.groups(), step.argval, strict=True):
            yield Step(name, argval, argval, line)


_OF_TWO = re.compile(r"((?:LOAD|STORE)_FAST)_((?:LOAD|STORE)_FAST)")


@functools.lru_cache(4096)
def facts(code: types.CodeType) -> Facts:
    found: dict[str, set[str]] = {
        "globals": set(),
        "attrs": set(),
        "stored": set(),
        "imports": set(),
    }
    mutates = False
    any_attribute = set()
    steps = list(instructions(code))
    loaded, read, valued = set(), set(), set()
    for n, step in enumerate(steps):
        name = step.opname
        if name.startswith(_LOADS_OF_NAMES):
            loaded.add(step.argval)
            if not _is_log(steps, n):
                read.add(step.argval)
            if n + 1 == len(steps) or steps[n + 1].argval not in _DESCRIBED:
                valued.add(step.argval)
        if name in _LOADS:
            found["globals"].add(step.argval)
            if step.argval in ("getattr", "hasattr") and not _is_plain(steps[n + 1 : n + 16]):
                any_attribute.add(_first(steps[n + 1 : n + 4]))
        elif name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            found["attrs"].add(step.argval)
        elif name.startswith(
            ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL")
        ):
            found["stored"].add(step.argval)
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            mutates = True
        elif name == "IMPORT_NAME":
            found["imports"].add(step.argval)
    named = found["globals"] | found["attrs"]
    found["attrs"] |= {x for x in _texts(code.co_consts) if x.isidentifier()}
    found["attrs"].add(code.co_name)
    return Facts(
        frozenset(found["globals"]),
        frozenset(found["attrs"]),
        frozenset(found["stored"]),
        frozenset(read | found["attrs"] - loaded),
        frozenset(found["imports"]),
        frozenset(found["attrs"] | found["globals"] | set(code.co_freevars)),
        mutates or bool(named & _MUTATORS),
        frozenset(valued | found["attrs"] - loaded),
        frozenset(any_attribute | {"" for _ in named & _ANY}),
        frozenset(_texts(code.co_consts)),
        tuple(_chains(steps)),
        _writes_file(steps, named),
    )


def _chains(steps: Sequence[Step]) -> Iterator[tuple[tuple[str, ...], int]]:
    for n, step in enumerate(steps):
        if not step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")):
            continue
        names = [step.argval]
        for after in steps[n + 1 :]:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            names.append(after.argval)
        yield tuple(names), step.line


def _writes_file(steps: Sequence[Step], named: set[str]) -> int:
    """The line that opens a file to write, as far as one sees."""
    opened = 0
    for step in steps:
        if step.opname in _LOADS and step.argval == "open":
            opened = step.line
        elif step.argval in ("write_text", "write_bytes"):
            return step.line
        elif opened and step.opname == "LOAD_CONST" and _is_mode(step.argval):
            return opened
    return opened if named & {"write", "writelines"} else 0


def _is_mode(x: Any) -> bool:
    return (
        isinstance(x, str)
        and 0 < len(x) <= 3
        and set(x) <= set("rwaxbt+")
        and bool(set(x) & set("wax+"))
    )


def _is_log(steps: Sequence[Step], n: int) -> bool:
    """Whether what is loaded here is only added to: `log.append(x)`, `count += 1`, `count[k] += 1`."""
    after = steps[n + 1 : n + 6]
    names = [s.opname for s in after]
    if names[:1] and names[0].startswith(("LOAD_ATTR", "LOAD_METHOD")):
        return after[0].argval in _ADDERS
    if names[1:2] == ["BINARY_OP"] and names[0] in _VALUES:  # in place, and stored where it was
        stores = [s for s in after[2:4] if s.opname == steps[n].opname.replace("LOAD", "STORE")]
        return after[1].argrepr.endswith("=") and [s.argval for s in stores] == [steps[n].argval]
    return names[1:4] == ["COPY", "COPY", "BINARY_SUBSCR"]


_DESCRIBED = ("shape", "dtype", "ndim", "size", "nbytes", "itemsize")
_ADDERS = frozenset(("append", "add", "extend", "appendleft", "insert", "clear"))


def _is_plain(steps: Sequence[Step]) -> bool:
    """Whether the arguments of a `getattr` that begin here are names, and the second is a text."""
    given: list[Step] = []
    for step in steps:
        if step.opname in _VALUES:
            given.append(step)
        elif step.opname == "CALL":
            text = given[1] if step.argval == len(given) >= 2 else None
            return text is not None and text.opname == "LOAD_CONST" and isinstance(text.argval, str)
        elif step.opname not in ("LOAD_ATTR", "PRECALL", "PUSH_NULL"):
            return False
    return False


def _first(steps: Sequence[Step]) -> str:
    """The name of what a call of `getattr` reads an attribute of, if it has one."""
    found = [s for s in steps if s.opname != "PUSH_NULL"][:1]
    return next((s.argval for s in found if s.opname in (*_LOADS, "LOAD_FAST", "LOAD_DEREF")), "")


def _texts(consts: Sequence[Any]) -> Iterator[str]:
    for x in consts:
        if isinstance(x, str):
            yield x
        elif isinstance(x, (tuple, frozenset)):
            yield from _texts(tuple(x))


_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_PACKAGES = tuple(_STDLIB + name + os.sep for name in ("site-packages", "dist-packages"))
_NUMPY = os.path.dirname(np.__file__) + os.sep


@functools.lru_cache(4096)
def _is_library_file(name: str) -> bool:
    if name.startswith(("<frozen", _NUMPY)):
        return True
    return name.startswith(_STDLIB) and not name.startswith(_PACKAGES)


def is_library_code(code: types.CodeType, frame: types.FrameType | None = None) -> bool:
    """Whether code is Python's, NumPy's or ours; what was generated belongs to its module."""
    if is_ours(code) or _is_library_file(code.co_filename):
        return True
    if frame is None or not code.co_filename.startswith("<"):
        return False
    name = frame.f_globals.get("__name__")
    return name is not None and is_library_module(name)


def is_library_module(name: str | None) -> bool:
    if name is None or name.partition(".")[0] in ("ostinato", "numpy", "ml_dtypes"):
        return True
    if name == "__main__" or name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)  # a user's own may have the same name
    return file is None or _is_library_file(file)


def is_installed(module: types.ModuleType) -> bool:
    """Whether a module is somebody's package, and not of the user's own program."""
    file = getattr(module, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@functools.lru_cache(4096)
def is_library_type(kind: type) -> bool:
    name = getattr(kind, "__module__", None)
    return not is_nameless(kind) and is_library_module(name)


def is_nameless(kind: type) -> bool:
    """Whether a class was written where no module has a name, and so seems to be one of builtins."""
    return kind.__module__ == "builtins" and bool(kind.__flags__ & HEAP)
