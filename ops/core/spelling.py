"""What a name is called here that is not there: NumPy's, SciPy's, JAX's, PyTorch's and Dask's
names (`spelling.json`), the same name in another module, and the nearest one."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import operator
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from ostinato.errors import LinAlgError

LIBRARIES = {  # in which a name of one of our modules may be
    "": ("numpy",),
    "fft": ("numpy.fft", "scipy.fft"),
    "linalg": ("numpy.linalg", "scipy.linalg"),
    "random": ("numpy.random",),
    "special": ("scipy.special",),
}
ROOMS = ("linalg", "fft", "signal", "special", "random", "nn", "optim", "solve", "debug")
_NOT_OF_ARRAYS = ("random.", "solve.", "debug.", "optim.")  # but of functions, or of nothing


@cache
def other_names() -> dict[str, Any]:
    """Names of other libraries. `here`, `in_rooms` (of a module's own) and `of_arrays`: what they are here
    or, where that is no name, what to write; `numpys`: NumPy's own, here too; `nowhere`: what nothing does."""
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    return found


def hint(name: str, room: str = "") -> str:
    """Suggest what to write instead of a name of `ostinato`, or of a module in it, as the end of a
    sentence."""
    if name.startswith("_"):
        return ""
    names = other_names()
    if name in names["numpys"]:
        return f"; here it is ostinato.{name}"
    ours = names["in_rooms"].get(f"{room}.{name}") or names["here"].get(name) or _in_rooms(name)
    if ours is not None and not _is_name(ours):
        return f"; write {ours}"
    if ours is not None and (not room or room in ours.split(".") or name not in names_in("")):
        return f"; here it is ostinato.{ours}"
    elsewhere = "" if room == "random" else _elsewhere(name, room)  # a distribution is no function
    if elsewhere:
        return f"; here it is ostinato.{elsewhere}"
    if name in names["nowhere"]:
        return "; nothing here does that"
    theirs = _only_theirs(name, room)
    if theirs:
        return f"; only {theirs} has it"
    places = dict.fromkeys((room, "", *ROOMS))
    known = {n: f"{r}.{n}" if r else n for r in reversed(places) for n in names_in(r)}
    near = [n for n in known if n.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, known, 1, cutoff=0.75)
    if near:
        return f"; the nearest name is ostinato.{known[near[0]]}"
    as_function = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # GroupNorm is group_norm
    return hint(as_function, room) if as_function != name else ""


def _in_rooms(name: str) -> str | None:
    """Explain a name that neither this module nor any other has."""
    if _elsewhere(name, "") or name in names_in(""):
        return None
    theirs = other_names()["in_rooms"]
    return next((theirs[f"{r}.{name}"] for r in ROOMS if f"{r}.{name}" in theirs), None)


def _only_theirs(name: str, room: str) -> str:
    """Where NumPy or SciPy have it, if they are there."""
    for library in LIBRARIES.get(room, ()):
        try:
            if hasattr(importlib.import_module(library), name):
                return f"{library}.{name}"
        except ImportError:
            continue
    return ""


def _is_name(ours: str) -> bool:
    return re.fullmatch(r"(?!x\.|np\.)\w+(\.\w+)?", ours) is not None


def attribute_hint(name: str) -> str:
    """Suggest what to write instead of an attribute of arrays."""
    ours = other_names()["of_arrays"].get(name)
    if name.startswith("_") and ours is None:
        return ""
    if ours is None:
        said = other_names()["here"].get(name, "")
        here = name if name in names_in("") else _elsewhere(name, "") or said
        ours = _call(here) if _is_name(here) else said if re.search(r"\bx\b", said) else ""
    return f"; write {ours}" if ours else ""


def _call(name: str) -> str:
    """A function of ours that is called with x, and with what else it needs."""
    function = operator.attrgetter(name)(sys.modules["ostinato"])
    if isinstance(function, type) or not callable(function) or name.startswith(_NOT_OF_ARRAYS):
        return ""
    given = [p for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
    if not given or given[0].kind == inspect.Parameter.KEYWORD_ONLY:
        return ""
    needed = [p for p in given[1:] if p.default is p.empty and p.kind != p.VAR_POSITIONAL]
    names = [
        f"{p.name}=..." if p.kind == p.KEYWORD_ONLY else "y" if p.name == "x" else p.name
        for p in needed
    ]
    return f"ostinato.{name}({', '.join(['x', *names])})"


def numpy_counterpart(name: str) -> str:
    """Find the counterpart of one of NumPy's functions, such as `linalg.eig`; empty if nothing is."""
    room, _, own = name.rpartition(".")
    ours = other_names()["here"].get(own)
    if ours is not None and not room:
        return f"ostinato.{ours}" if _is_name(ours) else ours
    if own in names_in(room):
        return f"ostinato.{name}"
    elsewhere = _elsewhere(own, room)
    return f"ostinato.{elsewhere}" if elsewhere else ""


def missing(room: str) -> Any:
    """A module's `__getattr__`."""

    def __getattr__(name: str) -> Any:
        if (room, name) == ("linalg", "LinAlgError"):
            return LinAlgError
        here = f"ostinato.{room}"
        message = f"module {here!r} has no attribute {name!r}{hint(name, room)}"
        raise AttributeError(message, name=name, obj=sys.modules.get(f"ostinato.ops.{room}"))

    return __getattr__


def _elsewhere(name: str, room: str) -> str:
    for other in ("", *ROOMS):
        if other != room and name in names_in(other):
            return f"{other}.{name}" if other else name
    return ""


def names_in(room: str) -> list[str]:
    """List the public names of a module; nothing, before all of it is imported."""
    front: Any = sys.modules.get("ostinato")
    if "__version__" not in vars(front or sys):
        return []
    module = getattr(front, room, None) if room else front
    return [n for n in getattr(module, "__all__", None) or dir(module) if not n.startswith("_")]
