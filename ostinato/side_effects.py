"""Side effects of a compiled function: what it assigns to outside of itself becomes part of its plan.

    self.mean = 0.9 * self.mean + x.mean()        plan: (x, mean) -> mean'; then self.mean = mean'

A `Snapshot` is taken of all that a trace reaches, before it can write there. At its end a comparison tells what
was written, which is then undone, so that a trace leaves nothing behind; each run of the plan stores it again
(`Store`). A place that is read as well (a `Place` in `State`) is an input of the plan, by its spec and not by
its identity, so what each call changes is no miss. Writes that the interpreter does not see here, into files or
memory of C code, are not stored back."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ostinato.errors import AssignmentError
from ostinato.ops.core.array import Array, placeholder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.registry import lookup
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.tree import FIXED, LEAF, MADE, Structure, flatten, paths, unflatten
from ostinato.ops.core.user_line import misfit

from .arguments import NUMBERS
from .guards import UNSET, VALUES, Change, Guard, Leaf, is_alike
from .reading import evaluate
from .sessions import Session

PlaceId = tuple[Any, ...]
Outside = dict[str, Any]  # of a call: arguments by the names of their parameters


# -- places --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Argument:
    """A container among the arguments of a call: a parameter, and the way from there."""

    parameter: str
    path: tuple[tuple[str, Any], ...] = ()  # ("item", key) and ("attr", name)

    def find(self, arguments: Outside) -> Any:
        found = arguments[self.parameter]
        for how, key in self.path:
            found = found[key] if how == "item" else getattr(found, key)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Something that can be assigned to. Its kind says how: "item" of a dict, a list or a class, "attr" of a
    cell or a slot, "array" for an Array that comes to stand for another value."""

    kind: str
    of: Any  # or where that is found at a call: a `Leaf`, an `Argument`
    key: Any
    name: str
    owner: type | None = None  # the class whose names `of` are

    @property
    def id(self) -> PlaceId:
        """Identity of this place, as guards of it have."""
        return place_id("attr" if self.kind == "array" else self.kind, self.of, self.key)

    def read(self, leaves: Sequence[Any]) -> Any:
        """Read the value that stands there now; UNSET if nothing does."""
        of = leaves[self.of.number] if type(self.of) is Leaf else self.of
        if self.kind == "array":
            return of
        try:
            if self.kind == "attr":
                return getattr(of, self.key)
            return dict.get(of, self.key, UNSET) if isinstance(of, dict) else of[self.key]
        except (AttributeError, KeyError, IndexError, ValueError):
            return UNSET

    def write(
        self, value: Any, leaves: Sequence[Any] = (), arguments: Outside | None = None
    ) -> None:
        """Put a value there without calling code of the user's; UNSET removes what is there."""
        of = self.of
        if type(of) is Leaf:
            of = leaves[of.number]
        elif type(of) is Argument:
            of = of.find(arguments or {})
        if self.kind == "array":
            of._become(value)
        elif self.kind == "attr":
            if value is UNSET:
                delattr(of, self.key)
            elif type(of) is types.CellType:
                of.cell_contents = value
            else:
                object.__setattr__(of, self.key, value)
        elif self.owner is not None:
            if value is UNSET:
                type.__delattr__(self.owner, self.key)
            else:
                type.__setattr__(self.owner, self.key, value)
        elif value is UNSET:
            base = _base(of)
            base.__delitem__(of, self.key)
        else:
            _base(of).__setitem__(of, self.key, value)


def place_id(kind: str, of: Any, key: Any) -> PlaceId:
    return (
        kind,
        of if type(of) in (Leaf, Argument) else id(of),
        key if isinstance(key, (str, int)) else id(key),
    )


def _base(x: Any) -> Any:
    """The class of Python's whose methods a container has, whatever a subclass makes of them."""
    for kind in (collections.OrderedDict, dict, list, collections.deque, set):
        if isinstance(x, kind):
            return kind
    return type(x)


# -- what was written ----------------------------------------------------------------------
@dataclass(slots=True)
class Write:
    """One change. "set": of a place, UNSET for what was deleted; "splice": of a list, from which element on and
    how many stay behind it; "fill": of a set, a deque or a NumPy array as a whole."""

    how: str
    place: Place  # of the latter two, the container
    after: Any
    span: tuple[int, int] = (0, 0)
    appended: bool = False  # elements were added, and nothing else


class Snapshot:
    """What a trace may write to, as it was before."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[Any, dict[str, Any], str, type | None]] = {}
        self.contents: dict[int, tuple[Any, Any, str, Any]] = {}
        self.single: dict[PlaceId, tuple[Place, Any, Any]] = {}

    def add_names(self, names: Any, path: str, owner: type | None = None) -> None:
        """The attributes of an object, a class or a module."""
        if id(names) not in self.names:
            self.names[id(names)] = (names, dict(names), path, owner)

    def add_contents(self, x: Any, path: str, at: Argument | None = None) -> None:
        """The elements of a container, or the numbers of a NumPy array."""
        if id(x) not in self.contents and (copy := _copy(x)) is not None:
            self.contents[id(x)] = (x, copy, path, x if at is None else at)

    def add(self, place: Place, of: Any) -> None:
        """A cell, or an attribute of an object that the place finds at a call."""
        if place.id not in self.single:
            try:
                before = getattr(of, place.key)
            except (AttributeError, ValueError):
                before = UNSET
            self.single[place.id] = (place, before, of)

    def writes(self, may: Callable[[str], bool], but: Mapping[PlaceId, Any]) -> list[Write]:
        """List what is no longer as it was, where the functions that ran may have written:
        `may(name)`. Places that are inputs of the trace are left out; they are looked at for
        themselves."""
        found: list[Write] = []
        for names, before, path, owner in self.names.values():
            for key in [*before, *(k for k in tuple(names) if k not in before)]:
                now = names.get(key, UNSET)
                if now is before.get(key, UNSET) or not may(key):
                    continue
                place = Place("item", names, key, f"{path}.{key}" if path else key, owner)
                if place.id not in but:
                    found.append(Write("set", place, now))
        for place, old, of in self.single.values():
            try:
                now = getattr(of, place.key)
            except (AttributeError, ValueError):
                now = UNSET
            if now is not old and place.id not in but and may(place.name):
                found.append(Write("set", place, now))
        for x, copy, path, at in self.contents.values():
            if may(path):
                found += [w for w in _changes(x, copy, path, at) if w.place.id not in but]
        return found

    def undo(self, writes: Iterable[Write], leaves: Sequence[Any]) -> None:
        """Put everything back, as if the trace had not run."""
        for w in writes:
            p = w.place
            if type(p.of) is Argument:
                continue  # a copy that was made for the trace
            if p.id in self.single:
                p.write(self.single[p.id][1], leaves)
            elif id(p.of) in self.names:
                p.write(self.names[id(p.of)][1].get(p.key, UNSET))
            elif id(p.of) in self.contents:
                before = self.contents[id(p.of)][1]
                if w.how == "set":
                    p.write(before.get(p.key, UNSET) if isinstance(before, dict) else before[p.key])
                else:
                    _restore(p.of, before)
        for x, before, _, _ in self.contents.values():
            if isinstance(before, dict) and x.keys() == before.keys():
                _reorder(x, before)


def _copy(x: Any) -> Any:
    if isinstance(x, dict):
        return dict(dict.items(x))
    if isinstance(x, np.ndarray):
        return x.copy()
    if isinstance(x, (list, collections.deque, set)):
        return list(x)
    return None


def _restore(x: Any, copy: Any) -> None:
    if isinstance(x, np.ndarray):
        np.copyto(x, copy)
        return
    base = _base(x)
    base.clear(x)
    base.extend(x, copy) if base in (list, collections.deque) else base.update(x, copy)


def _reorder(x: dict[Any, Any], order: Iterable[Any]) -> None:
    """Bring the keys of a dict into an order."""
    if list(x) != list(order):
        _restore(x, {k: dict.__getitem__(x, k) for k in order})


def _changes(x: Any, before: Any, path: str, at: Any) -> list[Write]:
    """How a container differs from what it was."""
    whole = Place("container", at, None, path)
    if isinstance(x, np.ndarray):
        same = x.shape == before.shape and x.tobytes() == before.tobytes()
        return [] if same else [Write("fill", whole, x.copy())]
    if isinstance(x, dict):
        changed = [k for k in before if dict.get(x, k, UNSET) is not before[k]]
        changed += [k for k in dict.keys(x) if k not in before]
        return [
            Write("set", Place("item", at, k, f"{path}[{k!r:.40}]"), dict.get(x, k, UNSET))
            for k in changed
        ]
    now = list(x)
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return []
    first = next((k for k, (a, b) in enumerate(zip(now, before, strict=False)) if a is not b), None)
    first = min(len(now), len(before)) if first is None else first
    added = first == len(before)
    if isinstance(x, set):
        gone = [y for y in before if y not in x]
        return [Write("fill", whole, now, appended=not gone)]
    if len(now) == len(before):
        return [
            Write("set", Place("item", at, k, f"{path}[{k}]"), y)
            for k, y in enumerate(now)
            if y is not before[k]
        ]
    if isinstance(x, list) or added:
        last = 0
        limit = min(len(now), len(before)) - first
        while last < limit and now[-1 - last] is before[-1 - last]:
            last += 1
        values = now[first : len(now) - last]
        return [Write("splice", whole, values, (first, last), appended=first + last == len(before))]
    return [Write("fill", whole, now)]


# -- places that are inputs ----------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Part:
    """One leaf of what stands in a place: an array by its spec, a number by its type, or a value."""

    spec: Spec | None = None
    kind: type | None = None
    value: Any = None

    @property
    def is_input(self) -> bool:
        return self.spec is not None or self.kind is not None

    def given(self, x: Any, session: Session) -> Any:
        """The operand or number that the plan gets for it, None for a value; UNSET if it does not fit."""
        if self.spec is not None:
            if x.__class__ is not Array:
                return UNSET
            operand = x._operand
            if operand is None or operand.engine is not session.engine:
                if x._term is not None and x._term.is_open:
                    return UNSET
                evaluate(x)
                operand = session.hold_array(x)
            return operand if operand.spec is self.spec else UNSET
        if self.kind is not None:
            return x if type(x) is self.kind and _is_number(x) else UNSET
        return None if is_alike(x, self.value) else UNSET


@dataclass(slots=True)
class Input:
    """A place whose value is an input of the plan, or several: the leaves of a tree."""

    place: Place
    structure: Structure
    parts: tuple[Part, ...]

    @property
    def was(self) -> str:
        said = [
            str(p.spec.bare) if p.spec else p.kind.__name__ if p.kind else repr(p.value)
            for p in self.parts
        ]
        return ", ".join(said)

    def read(
        self, leaves: Sequence[Any], session: Session, given: list[Any], arrays: list[Any]
    ) -> bool:
        """Add what the plan gets of it, and the leaves that these are; False if something does not fit."""
        value = self.place.read(leaves)
        if self.structure.kind is LEAF:
            found = [value]
        else:
            found, structure = flatten(value)
            if structure != self.structure:
                return False
        for part, x in zip(self.parts, found, strict=True):
            operand = part.given(x, session)
            if operand is UNSET:
                return False
            if operand is not None:
                given.append(operand)
                arrays.append(x)
        return True


class State:
    """The values in places that a function reads and writes; a trace has its inputs there instead."""

    def __init__(
        self,
        places: Iterable[Place],
        by_value: set[tuple[PlaceId, int]],
        leaves: Sequence[Any],
        session: Session,
    ) -> None:
        self.inputs: list[Input] = []
        self.given: list[Any] = []  # operands and numbers
        self.numbers: list[tuple[PlaceId, int]] = []  # of each of them, which leaf of which place
        self.names: list[str] = []
        self.before: list[Any] = []
        self.installed: list[tuple[Any, list[Any]]] = []
        self.orders: dict[int, tuple[Any, list[Any]]] = {}  # of dicts that inputs are put into
        self.leaves = leaves
        for place in places:
            value = place.read(leaves)
            if not is_state(value):
                continue
            found, structure = flatten(value)
            parts = []
            for k, (x, name) in enumerate(zip(found, paths(structure, place.name), strict=True)):
                if isinstance(x, Array):
                    evaluate(x)
                    given: Any = session.hold_array(x)
                    parts.append(Part(spec=given.spec))
                elif _is_number(x) and (place.id, k) not in by_value:
                    given = x
                    parts.append(Part(kind=type(x)))
                else:
                    parts.append(Part(value=x))
                    continue
                self.given.append(given)
                self.numbers.append((place.id, k))
                self.names.append(name)
            self.inputs.append(Input(place, structure, tuple(parts)))
            self.before.append(value)
        self.places = {i.place.id: i.place for i in self.inputs}

    def specs(self, whole: Layout) -> list[Spec]:
        return [
            x.spec if isinstance(x, Operand) else Spec((), NUMBERS[type(x)], whole)
            for x in self.given
        ]

    def install(self, trace: Any, first: int, specs: Sequence[Spec]) -> None:
        """Put the trace's inputs, whose numbers begin with `first`, where the values stand."""
        number = first
        for i, before in zip(self.inputs, self.before, strict=True):
            found = []
            for part, x in zip(i.parts, flatten(before)[0], strict=True):
                if part.is_input:
                    if part.kind is not None:
                        trace.lifted[number] = x
                    x = placeholder(specs[number - first], number, trace, part.kind)
                    number += 1
                found.append(x)
            if i.place.kind == "array":
                trace.lends(before)
                before._become(found[0])
                self.installed.append((before._term, found))
            else:
                if isinstance(i.place.of, dict):
                    self.orders.setdefault(id(i.place.of), (i.place.of, list(i.place.of)))
                made = unflatten(i.structure, found)
                self.installed.append((made, found))
                i.place.write(made, self.leaves)

    def is_input(self, x: Array, term: Any) -> bool:
        """Whether an Array stands for an input of the trace still."""
        return any(
            i.place.of is x and made is term
            for i, (made, _) in zip(self.inputs, self.installed, strict=False)
        )

    def standing(self) -> Iterator[tuple[Place, Any]]:
        """Places to which something else was assigned, and what."""
        for i, (made, _) in zip(self.inputs, self.installed, strict=False):
            now = i.place.read(self.leaves)
            if i.place.kind != "array" and now is not made:
                yield i.place, now

    def end(self) -> tuple[list[Write], set[PlaceId]]:
        """Give these places back what stood there: what the trace wrote to them, and which of them it wrote
        into, so that they cannot be inputs as a whole."""
        writes: list[Write] = []
        torn: set[PlaceId] = set()
        for i, before, (made, found) in zip(self.inputs, self.before, self.installed, strict=False):
            if i.place.kind == "array":
                continue  # the trace knows what was assigned to
            now = i.place.read(self.leaves)
            if now is not made:
                writes.append(Write("set", i.place, now))
            if i.structure.kind is not LEAF:
                after, structure = flatten(made)
                if structure != i.structure or any(
                    a is not b for a, b in zip(after, found, strict=True)
                ):
                    torn.add(i.place.id)
            i.place.write(before, self.leaves)
        for x, order in self.orders.values():
            if x.keys() == set(order):
                _reorder(x, order)
        self.installed.clear()
        return writes, torn


def is_state(value: Any) -> bool:
    """Whether what stands in a place can be an input: arrays and numbers, also in trees, with plain values."""
    found, _ = flatten(value)
    return any(isinstance(x, Array) or _is_number(x) for x in found) and all(
        isinstance(x, Array) or type(x) in (*NUMBERS, *VALUES) for x in found
    )


def _is_number(x: Any) -> bool:
    return type(x) in NUMBERS and not (type(x) is int and not -(2**63) <= x < 2**63)


# -- what is stored ------------------------------------------------------------------------
@dataclass(slots=True)
class Store:
    """A write that each run of a plan does again, with what it made."""

    write: Write
    build: Callable[[Sequence[Any]], Any] | None  # the value, around its leaves; None to delete
    values: tuple[tuple[str, Any], ...]  # of the leaves, as a function's results are told

    def apply(
        self, result: Callable[[str, Any], Any], leaves: Sequence[Any], arguments: Outside
    ) -> None:
        w = self.write
        value = UNSET
        if self.build is not None:
            value = self.build([result(where, k) for where, k in self.values])
        if w.how == "set":
            w.place.write(value, leaves, arguments)
            return
        of = w.place.of
        of = of.find(arguments) if type(of) is Argument else of
        if w.how == "fill":
            _restore(of, value)
        elif w.appended and not w.span[1]:
            _base(of).extend(of, value)
        else:
            first, last = w.span
            list.__setitem__(of, slice(first, first if w.appended else len(of) - last), value)

    def given(self, final_of: Callable[[str, Any], tuple[str, Any]]) -> Store:
        """With its values as the plan gives them."""
        return Store(self.write, self.build, tuple([final_of(*v) for v in self.values]))


class Effects:
    """What a plan's function reads and writes of what is around it."""

    def __init__(
        self, inputs: Sequence[Input], stores: Sequence[Store], numbers: Numbers | None
    ) -> None:
        self.inputs = inputs
        self.stores = stores
        self.numbers = numbers
        self.containers = [s.write.place.of for s in stores if type(s.write.place.of) is Argument]

    def read(self, leaves: Sequence[Any], session: Session) -> tuple[list[Any], list[Any]] | None:
        """Read what the plan gets, as operands and numbers, and as what stands there; None if it
        does not fit."""
        given: list[Any] = []
        arrays: list[Any] = []
        for i in self.inputs:
            if not i.read(leaves, session, given, arrays):
                return None
        return given, arrays

    def change(self, leaves: Sequence[Any], session: Session) -> Change | None:
        """The first place where something else stands, if there is one."""
        for i in self.inputs:
            if not i.read(leaves, session, [], []):
                p = i.place
                now = p.read(leaves)
                return Change(Guard(p.kind, p.of, p.key, i.was, p.name), now)
        return None

    def check(self, arguments: Outside, who: str) -> None:
        """Refuse a container that is written to, if it stands in two places among the arguments."""
        written = {id(a.find(arguments)) for a in self.containers}
        count: dict[int, int] = {}
        stack = list(arguments.values())
        while stack:
            x = stack.pop()
            if isinstance(x, (dict, list, tuple)):
                count[id(x)] = count.get(id(x), 0) + 1
                if count[id(x)] > 1 and id(x) in written:
                    got, needed, do = (
                        f"a {type(x).__name__} that it writes to and that is also another argument",
                        "one that is passed once",
                        "pass a copy as one of them",
                    )
                    raise misfit(AssignmentError, who, got=got, needed=needed, do=do)
                if count[id(x)] == 1:
                    stack.extend(dict.values(x) if isinstance(x, dict) else x)

    def store(
        self, result: Callable[[str, Any], Any], leaves: Sequence[Any], arguments: Outside
    ) -> None:
        """Do what the function did, after a run."""
        for s in self.stores:
            s.apply(result, leaves, arguments)


class Numbers:
    """Numbers that are made of numbers alone: the program computes them itself, so no worker is asked."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = [(_operation(n, graph), n.inputs) for n in graph.nodes]

    @staticmethod
    def can(graph: Graph) -> bool:
        """Whether each operation makes one number of numbers."""
        return all(
            len(n.specs) == 1
            and not n.specs[0].shape
            and (n.op == "constant" or lookup(n.op).run.ufunc or lookup(n.op).kernel is not None)
            for n in graph.nodes
        )

    def evaluate(self, given: Sequence[Any]) -> list[Any]:
        """The numbers, for those that are the plan's inputs."""
        values = list(given)
        for operation, inputs in self.steps:
            values.append(operation(*[values[v] for v in inputs]))
        return [values[v] for v in self.graph.outputs]


_PLAIN: dict[str, Callable[..., Any]] = {  # which Python does as NumPy does
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}


def _operation(node: Node, graph: Graph) -> Callable[..., Any]:
    """A function of numbers that does what an operation does with arrays without axes."""
    (spec,), op = node.specs, lookup(node.op)
    if node.op == "constant":
        value = np.asarray(node.kw["value"], spec.dtype).item()
        return lambda: value
    types = [graph.specs[v].dtype for v in node.inputs]
    if node.op in _PLAIN and all(t in NUMBERS.values() and t == types[0] for t in types):
        return _PLAIN[node.op]

    def compute(*numbers: Any) -> Any:
        out = np.empty((), spec.dtype)
        args = [np.asarray(x, t) for x, t in zip(numbers, types, strict=True)]
        with np.errstate(all="ignore"):
            if op.run.ufunc:
                getattr(np, op.run.ufunc)(*args, out=out)
            else:
                assert op.kernel is not None
                op.kernel(np, out, *args, **node.kw)
        return out.item()

    return compute


# -- containers among the arguments --------------------------------------------------------
def snapshot_arguments(given: Mapping[str, Any], structure: Structure) -> Snapshot:
    """A snapshot of the dicts, lists and dataclasses that a trace was given in place of the caller's."""
    found = Snapshot()
    for (name, x), child in zip(given.items(), structure.children, strict=True):
        _add_argument(found, x, child, Argument(name), name)
    return found


def _add_argument(found: Snapshot, x: Any, s: Structure, at: Argument, path: str) -> None:
    if s.kind in (FIXED, LEAF, MADE, type(None)):
        return
    is_object = not isinstance(x, (dict, list, tuple))
    if is_object:
        for name in s.extra:
            found.add(Place("attr", at, name, f"{path}.{name}"), x)
    else:
        found.add_contents(x, path, at)
    keys = range(len(s.children)) if s.extra is None else s.extra
    for key, child in zip(keys, s.children, strict=True):
        inner = getattr(x, key) if is_object else x[key]
        name = f"{path}.{key}" if is_object else f"{path}[{key!r}]"
        way = ("attr" if is_object else "item", key)
        _add_argument(found, inner, child, Argument(at.parameter, (*at.path, way)), name)
