"""What a call's signature is made of: arguments as leaves, and a look at them that is enough for most calls."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ostinato.errors import ArgumentError
from ostinato.ops.core import array
from ostinato.ops.core.apply import unmasked
from ostinato.ops.core.array import Array, Late
from ostinato.ops.core.exact import exact
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import DTYPES
from ostinato.ops.core.tree import (
    LEAF,
    MADE,
    PLAIN,
    Recorded,
    Structure,
    fields_of,
    fixed,
    has_fields_only,
    in_order,
    paths,
)
from ostinato.ops.core.user_line import misfit

from .sessions import Session

NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64), complex: np.dtype(np.complex128)}


# -- one look ------------------------------------------------------------------------------
class Unready(Exception):
    """One look is not enough for this argument."""


UNREADY = (Unready, AttributeError, KeyError, TypeError)


def is_itself(x: Any) -> bool:
    """Whether an argument is an object that equals only itself, as instances do: entries go with it."""
    kind: Any = type(x)
    return kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ != 0


def scan(x: Any, engine: Any, tokens: list[Any], leaves: list[Any], given: list[Any]) -> None:
    """The leaves of an argument, with the operands of Arrays, and tokens that tell whether another one
    has the same form. Arrays have to be the engine's."""
    kind = x.__class__
    if kind is Array:
        operand, term = x._operand, x._term
        if operand is None or operand.engine is not engine or (term is not None and term.traces):
            raise Unready
        tokens.append(operand.spec)
        leaves.append(x)
        given.append(operand)
    elif kind is float or kind is complex or (kind is int and -(2**63) <= x < 2**63):
        tokens.append(kind)
        leaves.append(x)
        given.append(x)
    elif kind is dict:
        keys = in_order(tuple(x))
        tokens.append(kind)
        tokens.append(keys)
        for k in keys:
            scan(x[k], engine, tokens, leaves, given)
    elif kind is tuple or kind is list:
        tokens.append(kind)
        tokens.append(len(x))
        for v in x:
            scan(v, engine, tokens, leaves, given)
    elif x is None:
        tokens.append(kind)
    elif kind is bool or kind is str:
        tokens.append(kind)
        leaves.append(x)
        given.append(x)
    elif isinstance(x, Recorded):
        _scan_recorded(x, engine, tokens, leaves, given)
    elif (names := fields_of(kind)) is not None and has_fields_only(x):
        tokens.append(kind)
        for name in names:
            scan(getattr(x, name), engine, tokens, leaves, given)
    elif kind.__hash__ is object.__hash__:  # itself; what is known of it goes with it
        tokens.append((kind, id(x)))
        leaves.append(x)
        given.append(x)
    else:
        raise Unready


def _scan_recorded(
    x: Any, engine: Any, tokens: list[Any], leaves: list[Any], given: list[Any]
) -> None:
    """A value within an object of which only arrays are leaves."""
    kind = x.__class__
    if kind is Array or x is None:
        scan(x, engine, tokens, leaves, given)
    elif kind in PLAIN:
        tokens.append(exact(x))
    elif kind is tuple or kind is list:
        tokens.append(kind)
        tokens.append(len(x))
        for v in x:
            _scan_recorded(v, engine, tokens, leaves, given)
    elif isinstance(x, Recorded):
        tokens.append(kind)
        for name, v in vars(x).items():
            tokens.append(name)
            _scan_recorded(v, engine, tokens, leaves, given)
    elif kind is dict:
        keys = in_order(tuple(x))
        tokens.append(kind)
        tokens.append(keys)
        for k in keys:
            _scan_recorded(x[k], engine, tokens, leaves, given)
    elif hasattr(x, "shape") or isinstance(x, (tuple, dict)) or fields_of(kind) is not None:
        raise Unready
    else:
        tokens.append(fixed(x))


# -- the whole signature ---------------------------------------------------------------------
class Described(Protocol):
    """What a compiled function says of its arguments."""

    name: str
    parameters: tuple[str, ...]
    static: frozenset[str]
    donate: frozenset[str]
    needed: set[tuple[Any, int]]  # numbers whose value the function needs


def opened(
    function: Described, leaves: list[Any], structure: Structure
) -> tuple[list[Any], Structure]:
    """Leaves that are made within the plan (`Late`) give way to what they are made of; but for those of
    arguments that are given away."""
    if not any(_is_late(x) for x in leaves):
        return leaves, structure
    found: list[Any] = []
    left = iter(leaves)

    def walk(s: Structure, is_kept: bool) -> Structure:
        if s.kind is not LEAF:
            return Structure(
                s.kind, s.extra, tuple([walk(c, is_kept) for c in s.children]), s.beside
            )
        x = next(left)
        term = x._term if isinstance(x, Array) else None
        if is_kept or not isinstance(term, Late) or not _is_late(x):
            found.append(x)
            return s
        found.extend(term.given)
        return Structure(MADE, term.recipe, (s,) * len(term.given))

    pairs = zip(function.parameters, structure.children, strict=True)
    children = tuple([walk(child, name in function.donate) for name, child in pairs])
    return found, Structure(structure.kind, structure.extra, children, structure.beside)


def _is_late(x: Any) -> bool:
    return isinstance(x, Array) and isinstance(x._term, Late) and x._operand is None


def fixed_leaves(function: Described, structure: Structure) -> frozenset[int]:
    """Leaves of arguments that were declared static."""
    if not function.static:
        return frozenset()
    found: set[int] = set()
    at = 0
    for name, child in zip(function.parameters, structure.children, strict=True):
        if name in function.static:
            found.update(range(at, at + child.leaves))
        at += child.leaves
    return frozenset(found)


def leaf(x: Any, who: str, fixed: bool) -> Any:
    """A leaf as it enters the signature: an Array, a number, a NumPy array to be borrowed, or a
    value."""
    if isinstance(x, (Array, bool, int, float, complex, str, bytes)) and not isinstance(
        x, np.generic
    ):
        if isinstance(x, Array) and fixed:
            got = f"an array {x.spec.bare} for a static argument"
            raise misfit(ArgumentError, f"{who}(static=)", got=got, needed="a hashable value")
        if isinstance(x, Array) and x._operand is None and x._term is None:
            array.term_of(x)  # raises: donated
        return x
    if not fixed and (isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__")):
        unmasked(x, f"{who}()")
        host = np.asarray(x)
        if host.dtype.name in DTYPES:
            return np.require(host, host.dtype.newbyteorder("="), ["C", "A"])
    try:
        hash(x)
    except TypeError:
        got = f"a {type(x).__name__} as an argument"
        needed = "arrays, numbers, hashable values, or dicts, lists, tuples and dataclasses of them"
        raise misfit(ArgumentError, f"{who}()", got=got, needed=needed) from None
    return x


@dataclass(slots=True)
class Call:
    """A call of a compiled function, as its signature sees it."""

    function: Described
    session: Session
    structure: Structure
    leaves: list[Any]  # operands for Arrays
    fixed: frozenset[int]  # leaves of static arguments
    where: Any = field(init=False)

    def __post_init__(self) -> None:
        self.where = (self.structure, self.session.target, self.session.number)

    def is_input(self, k: int) -> bool:
        """Whether a leaf is an input of the graph; else its value is part of the signature."""
        x = self.leaves[k]
        if isinstance(x, (Operand, np.ndarray)):
            return True
        if k in self.fixed or type(x) not in NUMBERS or (self.where, k) in self.function.needed:
            return False
        return not (type(x) is int and not -(2**63) <= x < 2**63)

    @property
    def inputs(self) -> list[int]:
        return [k for k in range(len(self.leaves)) if self.is_input(k)]

    @property
    def key(self) -> Any:
        return self.where, tuple([self._key(k, x) for k, x in enumerate(self.leaves)])

    def _key(self, k: int, x: Any) -> Any:
        if isinstance(x, Operand):
            return x.spec
        if isinstance(x, np.ndarray):
            return x.shape, x.dtype
        if self.is_input(k):
            return type(x)
        return weakref.ref(x) if is_itself(x) else exact(x)

    @property
    def names(self) -> list[str]:
        """Names of the leaves, as the user knows them."""
        found: list[str] = []
        for name, child in zip(self.function.parameters, self.structure.children, strict=True):
            found.extend(paths(child, str(name)))
        return found

    @property
    def donated(self) -> list[int]:
        """Leaves that the caller gives away."""
        found: list[int] = []
        at = 0
        for name, child in zip(self.function.parameters, self.structure.children, strict=True):
            if name in self.function.donate:
                found.extend(range(at, at + child.leaves))
            at += child.leaves
        return found

    @property
    def parts(self) -> dict[str, Any]:
        """The signature in words."""
        found: dict[str, Any] = {}
        for k, (name, x) in enumerate(zip(self.names, self.leaves, strict=True)):
            if isinstance(x, Operand):
                found[f"{name}.shape"], found[f"{name}.dtype"] = x.spec.shape, x.spec.dtype.name
                found[f"{name}.layout"] = str(x.spec.layout)
            elif isinstance(x, np.ndarray):
                found[f"{name}.shape"], found[f"{name}.dtype"] = x.shape, x.dtype.name
            elif self.is_input(k):
                found[f"{name}.type"] = type(x).__name__
            else:
                found[name] = object.__repr__(x) if is_itself(x) else x
        return {**found, "structure": repr(self.structure)}


def signature_of(function: Any) -> inspect.Signature:
    try:
        if not any(test(function) for test in _LATER):
            return inspect.signature(function)
        got = "a function whose values come later (a coroutine or generator)"
    except (TypeError, ValueError):
        got = repr(function)[:80]
    needed = "a function of arrays whose parameters are known"
    raise misfit(ArgumentError, "compile", got=got, needed=needed, do="wrap it in a plain `def`")


_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def positional(signature: inspect.Signature, given: Any) -> list[Any]:
    found: list[Any] = []
    for name, p in signature.parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            found.extend(given[name])
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            found.append(given[name])
    return found


def keywords(signature: inspect.Signature, given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, p in signature.parameters.items():
        if p.kind is p.VAR_KEYWORD:
            found.update(given[name])
        elif p.kind is p.KEYWORD_ONLY:
            found[name] = given[name]
    return found
