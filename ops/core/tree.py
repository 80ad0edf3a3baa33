"""Pytrees: dicts, lists, tuples, named tuples, dataclasses and None around leaves.

`flatten` gives the leaves and a hashable description of what was around them. Dicts are taken in
the order of their keys, so that the order in which they were filled makes no difference.

A dataclass is its fields and what else was set on it: attributes that are arrays, or hold some, are
leaves like fields; others belong to the structure. A cached property is left out, and made again from
what the new object has.

Of a `Recorded` object only arrays are leaves, wherever they are in its attributes: numbers, texts,
functions and other values there belong to the structure."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from .exact import Keys, exact

Leaf = Any


class Structure:
    """What was around the leaves. Compares by content."""

    __slots__ = ("_hash", "beside", "children", "extra", "kind", "leaves")

    def __init__(
        self,
        kind: Any,
        extra: Any,
        children: tuple[Structure, ...],
        beside: tuple[Beside, ...] = (),
    ) -> None:
        self.kind = kind
        self.extra = extra
        self.children = children
        self.beside = beside
        self.leaves: int = 1 if kind is LEAF else sum(c.leaves for c in children)
        self._hash = hash((kind, extra, children, beside))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure)
            and self._hash == other._hash
            and (self.kind, self.extra, self.children) == (other.kind, other.extra, other.children)
            and self.beside == other.beside
        )

    def __repr__(self) -> str:
        if self.kind is LEAF:
            return "*"
        if self.kind is MADE:
            return str(self.extra)
        if self.kind is FIXED:
            return repr(self.extra.value)
        name = self.kind.__name__ if self.kind is not type(None) else "None"
        keys = self.extra if self.extra is not None else range(len(self.children))
        inner = ", ".join(f"{k}: {c!r}" for k, c in zip(keys, self.children, strict=False))
        return f"{name}({inner})"


class Beside:
    """An attribute of a dataclass without arrays that is none of its fields. Plain values compare to
    the bit, other objects by identity."""

    __slots__ = ("_key", "leaves", "name", "structure")

    def __init__(self, name: str, structure: Structure, leaves: Sequence[Any]) -> None:
        self.name = name
        self.structure = structure
        self.leaves = leaves
        self._key = (name, structure, *[_key(x) for x in leaves])

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Beside) and self._key == other._key


def _key(x: Any) -> Any:
    plain = isinstance(x, (bool, int, float, complex, str, bytes))
    return exact(x) if plain else (type(x), id(x))


class Recorded:
    """An object whose arrays are leaves, and whose other values belong to the structure. One that was made of
    a structure knows it, so that whatever stands in place of an array is a leaf, too."""

    __slots__ = ("__dict__", "__weakref__", "_made_of")
    _made_of: Structure

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)


class Fixed:
    """A value within a `Recorded` object. Plain ones compare to the bit, other ones by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = _key(value)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self._key == other._key


LEAF = "leaf"
FIXED = "fixed"  # a value that is no leaf
MADE = "made"  # of a leaf that `extra`, a function, makes of the children, which it names, too
_LEAF = Structure(LEAF, None, ())
_NONE = Structure(type(None), None, ())


class _Orders(dict[tuple[Any, ...], tuple[Any, ...]]):
    """The keys of dicts as trees take them; orders of texts are kept."""

    def __missing__(self, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            found = tuple(sorted(keys))
        except TypeError:
            found = tuple(sorted(keys, key=lambda k: (type(k).__name__, repr(k))))
        if not all(k.__class__ is str for k in keys):
            return Keys(found)
        if len(self) > 4096:
            self.clear()
        self[keys] = found
        return found


in_order = _Orders().__getitem__


@lru_cache(4096)
def fields_of(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for other classes."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(f.name for f in dataclasses.fields(kind))


@lru_cache(4096)
def _spared(kind: type) -> frozenset[str]:
    """List what an object of a dataclass has that is no attribute beside the fields."""
    own = [n for k in kind.__mro__ for n, v in vars(k).items() if _is_cached(v)]
    return frozenset((*(fields_of(kind) or ()), *own, "__dict__", "__weakref__"))


def _is_cached(x: object) -> bool:
    return isinstance(x, functools.cached_property)


@lru_cache(4096)
def _slots(kind: type) -> tuple[str, ...]:
    found = [vars(k).get("__slots__", ()) for k in kind.__mro__]
    names = [n for given in found for n in ((given,) if isinstance(given, str) else given)]
    return tuple(n for n in names if n not in _spared(kind))


@lru_cache(4096)
def _set_of_fields(kind: type) -> frozenset[str]:
    return frozenset(fields_of(kind) or ())


def has_fields_only(x: Any) -> bool:
    """Whether an object of a dataclass has its fields, and nothing beside them."""
    kind: type = type(x)
    has = getattr(x, "__dict__", None)
    return not _slots(kind) and (has is None or has.keys() == _set_of_fields(kind))


def flatten(tree: Any) -> tuple[list[Leaf], Structure]:
    """The leaves in order, and what was around them."""
    leaves: list[Leaf] = []
    return leaves, _flatten(tree, leaves)


def _flatten(
    tree: Any, leaves: list[Leaf], objects: bool = True, recorded: bool = False
) -> Structure:
    kind: Any = type(tree)
    if recorded and kind in PLAIN:
        return fixed(tree)
    how = objects, recorded
    if kind is tuple or kind is list:
        return Structure(kind, None, tuple([_flatten(v, leaves, *how) for v in tree]))
    if kind is dict:
        keys = in_order(tuple(tree))
        return Structure(dict, keys, tuple([_flatten(tree[k], leaves, *how) for k in keys]))
    if tree is None:
        return _NONE
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return Structure(kind, None, tuple([_flatten(v, leaves, *how) for v in tree]))
    if isinstance(tree, dict):
        keys = Keys(tree)
        return Structure(kind, keys, tuple([_flatten(tree[k], leaves, *how) for k in keys]))
    if objects and isinstance(tree, Recorded):
        own = vars(tree)
        form = getattr(tree, "_made_of", None)
        if form is None or form.extra != (*own,):
            children = [_flatten(v, leaves, objects, True) for v in own.values()]
        else:
            pairs = zip(form.children, own.values(), strict=True)
            children = [_flatten_again(child, v, leaves) for child, v in pairs]
        return Structure(kind, tuple(own), tuple(children))
    names = fields_of(kind)
    if names is not None and objects:
        return _flatten_object(tree, names, leaves, recorded)
    if recorded and not hasattr(tree, "shape"):
        return fixed(tree)
    leaves.append(tree)
    return _LEAF


def _flatten_again(form: Structure, tree: Any, leaves: list[Leaf]) -> Structure:
    """A value of an object that was made of a structure: what stands where leaves were is leaves."""
    kind = form.kind
    if kind is FIXED:
        return form
    if kind is LEAF:
        return _flatten(tree, leaves)
    keys: Any = form.extra if isinstance(tree, dict) else range(len(form.children))
    is_alike = type(tree) is kind and isinstance(tree, (tuple, list, dict))
    if not is_alike or len(tree) != len(keys) or (isinstance(tree, dict) and {*tree} != {*keys}):
        return _flatten(tree, leaves, True, True)
    pairs = zip(form.children, keys, strict=True)
    children = [_flatten_again(child, tree[k], leaves) for child, k in pairs]
    return Structure(kind, form.extra, tuple(children))


PLAIN = frozenset((bool, int, float, complex, str, bytes))


@lru_cache(4096)
def _structure_of(value: Fixed) -> Structure:
    return Structure(FIXED, value, ())


def fixed(value: Any) -> Structure:
    """The structure of a value that is no leaf."""
    made = Fixed(value)
    return _structure_of(made) if type(value) in PLAIN else Structure(FIXED, made, ())


def _flatten_object(
    tree: Any, names: tuple[str, ...], leaves: list[Leaf], recorded: bool
) -> Structure:
    kind: type = type(tree)
    beside: list[Beside] = []
    if not (has_fields_only(tree) and hasattr(tree, "__dict__")):
        names = tuple(n for n in names if hasattr(tree, n))  # one with init=False may not be set
        for name in (*getattr(tree, "__dict__", ()), *_slots(kind)):
            if name not in _spared(kind) and hasattr(tree, name):
                inner: list[Leaf] = []  # with dataclasses as objects, since they may lead back here
                structure = _flatten(getattr(tree, name), inner, objects=False)
                if any(hasattr(x, "shape") for x in inner):
                    names = (*names, name)
                else:
                    beside.append(Beside(name, structure, inner))
    children = tuple([_flatten(getattr(tree, n), leaves, True, recorded) for n in names])
    return Structure(kind, names, children, tuple(beside))


def objects_beside(structure: Structure) -> list[Any]:
    """The values of attributes that are no leaves."""
    if structure.kind is FIXED:
        return [structure.extra.value]
    found = [x for b in structure.beside for x in b.leaves]
    for child in structure.children:
        found += objects_beside(child)
    return found


def unflatten(structure: Structure, leaves: Sequence[Leaf]) -> Any:
    """The tree again, around other leaves."""
    return constructor(structure)(leaves)


@lru_cache(4096)
def constructor(structure: Structure) -> Callable[[Sequence[Leaf]], Any]:
    """`unflatten` of one structure, as one expression, e.g. `{k1: v[0], k2: [v[1], v[2]]}`."""
    names: dict[str, Any] = {}
    count = itertools.count()

    def constant(value: Any) -> str:
        name = f"k{len(names)}"
        names[name] = value
        return name

    def write(s: Structure) -> str:
        kind = s.kind
        if kind is LEAF:
            return f"v[{next(count)}]"
        if kind is type(None):
            return "None"
        if kind is FIXED:
            return constant(s.extra.value)
        children = [write(c) for c in s.children]
        inner = "".join(f"{c}, " for c in children)
        if kind is MADE:
            return f"{constant(s.extra)}({inner})"
        if kind is list:
            return f"[{inner}]"
        if kind is tuple:
            return f"({inner})"
        if kind is dict:
            pairs = zip(s.extra, children, strict=True)
            return "{" + "".join(f"{constant(k)}: {c}, " for k, c in pairs) + "}"
        if issubclass(kind, tuple):
            return f"{constant(kind)}({inner})"
        make: Callable[..., Any] = functools.partial(_fill_object, beside=s.beside)
        if issubclass(kind, Recorded):
            return f"{constant(functools.partial(_fill_recorded, s))}(({inner}))"
        if issubclass(kind, dict):
            make = _fill_dict
        return f"{constant(functools.partial(make, kind, s.extra))}(({inner}))"

    made: Callable[[Sequence[Leaf]], Any] = eval(
        compile(f"lambda v: {write(structure)}", "<ostinato tree>", "eval"), names
    )
    return made


def _fill_dict(kind: Any, keys: Sequence[Any], values: Sequence[Any]) -> Any:
    made = kind.__new__(kind)
    if hasattr(made, "default_factory"):  # a defaultdict's is not part of the structure
        made = kind(None)
    made.update(zip(keys, values, strict=True))
    return made


def _fill_recorded(structure: Structure, values: Sequence[Any]) -> Any:
    made = object.__new__(structure.kind)
    vars(made).update(zip(structure.extra, values, strict=True))
    object.__setattr__(made, "_made_of", structure)
    return made


def _fill_object(
    kind: Any, names: Sequence[str], values: Sequence[Any], beside: Sequence[Beside]
) -> Any:
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    for b in beside:
        object.__setattr__(made, b.name, unflatten(b.structure, b.leaves))
    return made


def paths(structure: Structure, name: str = "") -> list[str]:
    """Name each leaf as a user would: `params['w'][0]`."""
    if structure.kind is LEAF:
        return [name]
    found = []
    keys = structure.extra
    for k, child in enumerate(structure.children):
        if structure.kind is MADE:
            step = keys.names[k]
        elif keys is None:
            step = (
                f".{structure.kind._fields[k]}" if hasattr(structure.kind, "_fields") else f"[{k}]"
            )
        elif issubclass(structure.kind, dict):
            step = f"[{keys[k]!r}]"
        else:
            step = f".{keys[k]}"
        found.extend(paths(child, name + step))
    return found


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with each leaf replaced; of several trees alike, leaf by leaf.

    >>> ost.tree_map(lambda x: 2 * x, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [4, 6]}
    """
    leaves, structure = flatten(tree)
    rest = []
    for other in others:
        more, shape = flatten(other)
        if shape != structure:
            raise ValueError(
                f"tree_map: got trees of different structure, {structure} and {shape}."
            )
        rest.append(more)
    return unflatten(structure, [function(*row) for row in zip(leaves, *rest, strict=True)])
