"""What parameters of operations may be: type and range, said once, where an operation is registered.

`complete` puts that in front of the operation's own rule, which then states nothing but how operands,
parameters and results belong together. So whoever makes a node (a user's call, a pass, a file) is
held to the same."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, OstinatoError, ShapeError

from .graph import Graph
from .monoid import MONOIDS
from .spec import DTYPES, DType, Spec, is_float, misshapen
from .user_line import misfit

Specs = tuple[Spec, ...]
FARTHEST = 2**62  # of what counts elements or places


@dataclass(frozen=True, slots=True)
class Kind:
    """What one parameter may be, beside these operands; and what it becomes where the operands, and the
    results, get one more axis of some size in front."""

    needed: str
    fits: Callable[[Any, Specs], bool]
    led: Callable[[Any, int], Any] = lambda value, size: value


def whole(low: int, high: int = FARTHEST) -> Kind:
    """A whole number within bounds."""
    return Kind(
        f"a whole number from {low} to {high}", lambda v, _: type(v) is int and low <= v <= high
    )


def one_of(*words: str) -> Kind:
    return Kind("one of " + ", ".join(words), lambda v, _: type(v) is str and v in words)


def _ndim(ins: Specs) -> int:
    return len(ins[0].shape) if ins else 0


def _wholes(value: Any) -> bool:
    if type(value) is not tuple:
        return False
    for n in value:  # noqa: SIM110  (this stands in the way of every operation)
        if type(n) is not int:
            return False
    return True


def ascending(axes: Any, ndim: int) -> bool:
    """Whether these are axes, counted from the front, each once and in order."""
    if type(axes) is not tuple:
        return False
    before = -1
    for a in axes:
        if type(a) is not int or not before < a < ndim:
            return False
        before = a
    return True


def _later(axes: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(a + 1 for a in axes)


def _later_split(split: Any, size: int) -> Any:
    if type(split) is tuple:
        return tuple(s if s is None else s + 1 for s in split)
    return split if split is None else split + 1


def is_mesh(value: Any) -> bool:
    return _wholes(value) and 0 < len(value) <= 8 and min(value) >= 1


def _split(value: Any, ins: Specs) -> bool:
    entries = value if type(value) is tuple else (value,)
    return all(s is None or (type(s) is int and 0 <= s < _ndim(ins)) for s in entries)


def _steps(value: Any, ins: Specs) -> bool:
    if not _wholes(value) or len(value) != _ndim(ins):
        return False
    return not value or (max(value) < FARTHEST and min(value) > -FARTHEST)


def _widths(value: Any, ins: Specs) -> bool:
    return (
        type(value) is tuple
        and len(value) == _ndim(ins)
        and all(_wholes(pair) and len(pair) == 2 for pair in value)
        and all(0 <= n < FARTHEST for pair in value for n in pair)
    )


def _bounds(value: Any, ins: Specs) -> bool:
    """Where parts of rows begin, and the last one ends."""
    return (
        _wholes(value)
        and len(value) > 1
        and value[0] == 0
        and all(a <= b for a, b in itertools.pairwise(value))
    )


AXIS = Kind(
    "an axis of the first operand, counted from the front",
    lambda v, ins: type(v) is int and 0 <= v < _ndim(ins),
    led=lambda v, _: v + 1,
)
AXES = Kind(
    "axes of the first operand, counted from the front, in order",
    lambda v, ins: ascending(v, _ndim(ins)),
    led=_later,
)
NEW_AXES = Kind(
    "axes of the result, counted from the front, in order",
    lambda v, ins: type(v) is tuple and ascending(v, _ndim(ins) + len(v)),
    led=_later,
)
MESH_AXES = Kind("axes of a mesh, in order", lambda v, _: v != () and ascending(v, 8))
ORDER = Kind(
    "each axis once",
    lambda v, ins: _wholes(v) and sorted(v) == list(range(_ndim(ins))),
    led=lambda v, n: (0, *_later(v, n)),
)
SHAPE = Kind(
    "a tuple of extents of 0 or more",
    lambda v, _: type(v) is tuple and not misshapen(v, 16),
    led=lambda v, n: (n, *v),
)
_OURS = frozenset(DTYPES.values())
DTYPE = Kind("a dtype of ours", lambda v, _: isinstance(v, np.dtype) and v in _OURS)
FLAG = Kind("True or False", lambda v, _: type(v) is bool)
SHARE = Kind("a number of 0 or more", lambda v, _: type(v) is float and v >= 0)
NUMBER = Kind("a number", lambda v, _: type(v) in (bool, int, float, complex))
TEXT = Kind("text", lambda v, _: type(v) is str)
GRAPH = Kind("a graph", lambda v, _: isinstance(v, Graph))
PLACES = Kind("numbers of elements", lambda v, _: _wholes(v) and all(0 <= n < FARTHEST for n in v))
STRIDES = Kind("a whole number for each axis of the result", lambda v, _: _wholes(v))
STARTS = Kind("a whole number for each axis", _steps, led=lambda v, _: (0, *v))
SIZES = Kind("a whole number for each axis", _steps, led=lambda v, n: (n, *v))
STEPS = Kind("a whole number for each axis", _steps, led=lambda v, _: (1, *v))
WIDTHS = Kind(
    "two whole numbers of 0 or more for each axis", _widths, led=lambda v, _: ((0, 0), *v)
)
BOUNDS = Kind("where parts begin and end, in order, from 0", _bounds)
SPLIT = Kind(
    "an axis, None, or a tuple of them, one for each axis of a mesh", _split, led=_later_split
)
MESH = Kind("None, or the extents of a mesh", lambda v, _: v is None or is_mesh(v))
MONOID = one_of(*MONOIDS)


def complete(name: str, rule: Callable[..., Any], takes: Mapping[str, Kind]) -> Callable[..., Any]:
    """The rule behind a look at the number of operands and at each parameter; one that takes any
    further parameters looks at those itself."""
    given = inspect.signature(rule).parameters.values()
    named = {p.name for p in given if p.kind is p.KEYWORD_ONLY}
    assert named == takes.keys(), f"{name} takes {sorted(named)} but says of {sorted(takes)}"
    open_ended = any(p.kind is p.VAR_KEYWORD for p in given)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in given)
    if variadic and open_ended and not takes:
        return rule  # which counts for itself
    count = None if variadic else sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in given)
    kinds = tuple(takes.items())

    def infer(*ins: Spec, **params: Any) -> Any:
        if len(ins) != count and count is not None:
            raise wrong_number(name, ins, count)
        if len(params) != len(kinds) and not open_ended:
            raise _wrong_names(name, params, takes)
        for key, kind in kinds:
            if key not in params:
                raise _wrong_names(name, params, takes)
            if not kind.fits(params[key], ins):
                got = f"{key}={params[key]!r:.60}"
                raise misfit(ArgumentError, name, got=got, needed=kind.needed)
        return rule(*ins, **params)

    return infer


def wrong_number(
    name: str, ins: Specs, count: int, params: Mapping[str, Any] = MappingProxyType({})
) -> OstinatoError:
    """Other operands or parameters than it has."""
    if params:
        return _wrong_names(name, params, {})
    return misfit(ArgumentError, name, got=f"{len(ins)} operands", needed=str(count))


def _wrong_names(name: str, params: Mapping[str, Any], takes: Mapping[str, Kind]) -> OstinatoError:
    got = "the parameters " + ", ".join(f"{k!r:.40}" for k in list(params)[:8])
    return misfit(ArgumentError, name, got=got, needed=", ".join(takes) or "none")


def unfit(
    name: str, ins: Specs, needed: str, kind: type[OstinatoError] = ShapeError
) -> OstinatoError:
    """Operands that do not belong together."""
    some = " and ".join(str(s.bare) for s in ins[:6]) + (" and others" if len(ins) > 6 else "")
    return misfit(kind, name, got=some, needed=needed)


def joined(name: str, given: Sequence[Spec], taken: Sequence[Spec]) -> None:
    """That a graph inside is given what it takes, or gives what is taken of it."""
    if [s.bare for s in given] != [s.bare for s in taken]:
        needed = ", ".join(str(s.bare) for s in taken[:6]) + (", ..." if len(taken) > 6 else "")
        raise unfit(f"a graph inside {name}", tuple(given), needed or "nothing")


def check_value(name: str, value: Any, dtype: DType) -> None:
    """That a dtype has this number."""
    kind = dtype.kind
    if kind == "b":
        fits = type(value) in (bool, int)
    elif kind in "iu":
        limits = np.iinfo(dtype)
        fits = type(value) in (bool, int) and limits.min <= value <= limits.max
    else:
        whole = type(value) in (bool, int) and abs(value) <= 2**53
        fits = whole or type(value) is float or (type(value) is complex and not is_float(dtype))
    if not fits:
        got = f"value={value!r:.60}"
        raise misfit(ArgumentError, name, got=got, needed=f"a number of {dtype.name}")
