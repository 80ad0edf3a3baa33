"""What decides what a function or a parameter does, as text that is the same in every process: for caches on
disk, which outlive the program that filled them.

Values are told by their content; a function by its code and by the values that it reads: constants, defaults,
variables of functions around it, globals, and functions among these likewise. What is installed is told by
its name and version. What cannot be told is refused, since a function may have changed with it."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)


class Unhashable(Exception):
    """A value that cannot be told; its text says which."""


def fingerprint(value: Any) -> str:
    """A digest of all that a value is."""
    made = hashlib.blake2b(digest_size=16)
    for part in _Fingerprint().parts(value):
        made.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return made.hexdigest()


def code_of(code: types.CodeType) -> str:
    """Return the code of a function as text, but for the lines that it stands in."""
    return "\n".join(_code(code))


def _code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount))
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _code(value)
        elif isinstance(value, frozenset):
            yield repr(sorted(map(repr, value)))
        else:
            yield repr(value)


class _Fingerprint:
    """Of one value; what was told already, and may hold itself, is not told again."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.held: list[Any] = []  # so that no other object has its place in memory

    def parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, SIMPLE):
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self.seen:
            yield f"again {self.seen[id(value)]}"
            return
        self.seen[id(value)] = len(self.seen)
        self.held.append(value)
        yield from self._parts(value)

    def _parts(self, value: Any) -> Iterator[str]:
        kind = type(value)
        if isinstance(value, (np.ndarray, np.generic)):
            yield from self._array(np.asarray(value))
        elif kind in (tuple, list):
            yield f"{kind.__name__} {len(value)}"
            for item in value:
                yield from self.parts(item)
        elif kind is dict:
            yield f"dict {len(value)}"
            for key, item in value.items():
                yield from self.parts(key)
                yield from self.parts(item)
        elif kind in (set, frozenset):
            yield f"{kind.__name__} {sorted(fingerprint(item) for item in value)}"
        elif isinstance(value, np.dtype):
            yield f"dtype {value.descr if value.fields else value.name}"
        elif isinstance(value, functools.partial):
            yield "partial"
            for part in (value.func, value.args, value.keywords):
                yield from self.parts(part)
        elif isinstance(value, types.MethodType):
            yield from self.parts(value.__func__)
            yield from self.parts(value.__self__)
        elif isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif callable(value) and callable(
            inner := getattr(value, "__dict__", {}).get("__wrapped__")
        ):
            yield f"around {_by_name(type(value))}"
            yield from self.parts(inner)
        elif callable(value) and hasattr(value, "__name__") and _is_installed(value):
            yield _by_name(value)
        elif dataclasses.is_dataclass(value):
            yield from self._class(kind)
            for field in dataclasses.fields(value):
                yield from self.parts(getattr(value, field.name))
        else:
            raise Unhashable(f"an object of type {kind.__name__}")

    def _array(self, value: np.ndarray[Any, Any]) -> Iterator[str]:
        if value.dtype.hasobject:
            raise Unhashable("an array of objects")
        yield f"array {value.dtype} {value.shape}"
        data: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        yield hashlib.blake2b(data, digest_size=16).hexdigest()

    def _module(self, value: types.ModuleType) -> Iterator[str]:
        if not _is_installed(value):
            raise Unhashable(f"the module {value.__name__} as a whole")
        yield f"module {_version(value.__name__)}"

    def _function(self, value: types.FunctionType) -> Iterator[str]:
        if _is_installed(value):
            yield _by_name(value)
            return
        yield f"function {value.__qualname__}"
        yield code_of(value.__code__)
        yield from self.parts(value.__defaults__)
        yield from self.parts(value.__kwdefaults__)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield from self._named(name, cell.cell_contents)
        for name in sorted(_globals(value.__code__)):
            if name in value.__globals__:
                yield from self._named(name, value.__globals__[name])

    def _named(self, name: str, value: Any) -> Iterator[str]:
        """Fingerprint what a function reads under a name. Of a module of the user's, functions are
        told where they are read."""
        yield name
        try:
            yield from self.parts(value)
        except Unhashable as error:
            said = str(error)
            raise Unhashable(said if "read as" in said else f"{said}, read as {name!r}") from None

    def _class(self, value: type) -> Iterator[str]:
        yield _by_name(value)
        if _is_installed(value):
            return
        for base in value.__bases__:
            yield from self.parts(base)
        for name, item in sorted(vars(value).items()):
            inner = getattr(item, "__func__", None) or getattr(item, "fget", None) or item
            if isinstance(inner, types.FunctionType):
                yield from self._named(name, inner)
            elif isinstance(inner, SIMPLE) and not name.startswith("__"):
                yield f"{name} {inner!r}"


def _globals(code: types.CodeType) -> set[str]:
    found = {
        str(i.argval)
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            found |= _globals(value)
    return found


def _by_name(value: Any) -> str:
    home = getattr(value, "__module__", None) or type(value).__module__
    return f"{_version(home)} {getattr(value, '__qualname__', value.__name__)}"


PACKAGES = {"site-packages", "dist-packages"}  # also a user's own, and another environment's


def _is_installed(value: Any) -> bool:
    """Whether it belongs to Python, to us, or to a package: what does not change from run to run unseen."""
    if isinstance(value, types.ModuleType):
        name: str | None = value.__name__
    else:
        name = getattr(value, "__module__", None) or type(value).__module__
    top = (name or "__main__").partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "ostinato":
        return top != "__main__"
    module = sys.modules.get(name or "")
    path = getattr(module, "__file__", None) or ""
    return path.startswith(_homes()) or not PACKAGES.isdisjoint(Path(path).parts)


@lru_cache(1)
def _homes() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(n) for n in ("purelib", "platlib", "stdlib", "platstdlib")})


@lru_cache(256)
def _version(name: str) -> str:
    """A module's name and its package's version; ours goes with the code of all stages."""
    top = name.partition(".")[0]
    found = getattr(sys.modules.get(top), "__version__", "")
    if not found and top not in sys.stdlib_module_names:
        try:
            found = metadata.version(top)
        except metadata.PackageNotFoundError:
            found = ""
    return f"{name} {found or sys.version_info[:2]}"
