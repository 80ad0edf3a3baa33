"""`@ost.compile`: trace once, plan once, then run by plan id.

The signature of a call is the specs of its arrays, the kinds of its numbers, and everything else by
value. Numbers begin as inputs; one whose value the function needs (a shape, an `if`) moves into the
signature. What the function takes from around it (closures, globals, attributes of objects) is checked
too: another array or number there means another trace."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from ostinato import settings
from ostinato.errors import ArgumentError, StaleResultError, StaleWarning, TracedValueError
from ostinato.ops.core import array
from ostinato.ops.core.array import Array, Operand, Term, from_operand, placeholder
from ostinato.ops.core.exact import exact
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import DTYPES, Spec, copied, uint64
from ostinato.ops.core.trace import Ref, array_of, collect
from ostinato.ops.core.tree import (
    Structure,
    constructor,
    fields_of,
    flatten,
    has_fields_only,
    in_order,
    objects_beside,
    paths,
    unflatten,
)
from ostinato.ops.core.user_line import misfit
from ostinato.ops.elementwise import astype
from ostinato.ops.seeds import mix, seeds
from ostinato.planner.pipeline import check_limit
from ostinato.planner.plan import Key, Plan, Target
from ostinato.runtime.engine import Launcher

from . import sessions
from .guards import UNSET, Change, Guards, is_alike
from .reach import WRAPPERS, Reach, reaching, watch_calls_of
from .reading import CompileTrace, NeedsValue, _Reader, run_plan
from .sessions import (
    Session,
    check_memory_limit,
    check_numerics,
    check_precision,
    current,
    here,
    one_by_one,
)

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64), complex: np.dtype(np.complex128)}


MOST = 4096  # signatures of a function; then the oldest go


@dataclass(slots=True)
class _Traced:
    """What a trace gives."""

    graph: Graph
    inputs: list[int]
    captured: tuple[Operand, ...]
    draws: bool
    outputs: tuple[tuple[str, Any], ...]
    structure: Structure

    def differs(self, other: _Traced) -> str:
        """What another trace of the same call gives that this one does not; nothing if all is alike."""
        if self.graph != other.graph:
            return _difference(self.graph, other.graph)
        for a, b in zip(self.captured, other.captured, strict=True):
            if a is not b and a.engine.get(a).tobytes() != b.engine.get(b).tobytes():
                return f"another array {a.spec.bare} from around it"
        if self.structure != other.structure:
            return f"a result {other.structure} in place of {self.structure}"
        for (how, x), (again, y) in zip(self.outputs, other.outputs, strict=True):
            same = how == again and (
                x == y if how == "ref" else is_alike(x, y) or type(x) is type(y)
            )
            if not same:
                return f"a result {y!r:.60} in place of {x!r:.60}"
        return ""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Entry:
    """What a signature leads to."""

    plan: Plan
    launch: Launcher
    leaves: tuple[int, ...]  # arguments that are inputs of the graph
    captured: tuple[Operand, ...]
    draws: bool  # whether the last input is a seed
    outputs: tuple[tuple[str, Any], ...]  # ("out", k), ("in", argument), ("is", value)
    build: Callable[[Sequence[Any]], Any]  # what the function returns, around its leaves
    donated: tuple[int, ...]  # arguments
    made: bool  # whether the results are what the plan makes, one by one
    simple: bool  # arrays in and one array out, nothing captured, given or drawn
    traced: _Traced | None  # to be compared with, if asked for
    guards: Guards  # what the trace read of what is around
    hold: Callable[[Sequence[Any]], bool] | None  # whether that is as it was
    owner: weakref.ref[CompiledFunction[Any, Any]]
    key: Any = None
    # where `quick` leads to it, and the objects among the arguments, with which it goes
    quick: set[tuple[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=set)
    objects: list[weakref.ref[Any]] = field(default_factory=list)

    def drop(self) -> None:
        """Its plan, its session or an object among its arguments is gone."""
        if (owner := self.owner()) is not None:
            owner.drop(self)


@dataclass(slots=True)
class _Known:
    """What calls of one form lead to."""

    values: tuple[int, ...]  # leaves whose value matters
    order: list[int] | None  # leaves as seen, in the order of the signature
    rest: tuple[Any, ...]  # leaves of defaults
    entry: Entry  # where no value matters; else the entries by them
    entries: dict[tuple[Any, ...], Entry]


@dataclass(slots=True)
class Miss:
    """A call that found no entry."""

    parts: dict[str, Any]
    source: str
    before: list[dict[str, Any]]
    change: str = ""  # around the function
    changed: str = ""  # what that was
    hits: int = 0  # until then

    @property
    def nearest(self) -> dict[str, Any] | None:
        return min(self.before, key=lambda p: len(differences(p, self.parts)), default=None)


class CompiledFunction(Generic[P, R]):
    """A function whose calls become plans."""

    # beside the attributes that `functools.wraps` copies to wrappers, and from what is wrapped
    __slots__ = (
        "__dict__",
        "__weakref__",
        "donate",
        "entries",
        "function",
        "hits",
        "last",
        "lock",
        "memory_limit",
        "misses",
        "name",
        "needed",
        "numerics",
        "parameters",
        "precision",
        "quick",
        "seen",
        "signature",
        "static",
        "told",
    )

    def __init__(
        self,
        function: Callable[P, R],
        *,
        donate: Iterable[str | int] = (),
        static: Iterable[str | int] = (),
        memory_limit: int | None = None,
        numerics: str | None = None,
        precision: str | None = None,
    ) -> None:
        self.function = function
        functools.update_wrapper(self, function, updated=())  # its state is not ours
        self._sign()
        self.name = getattr(function, "__name__", type(function).__name__)
        self.static = self._named(static, "static")
        self.donate = self._named(donate, "donate")
        self.memory_limit = check_memory_limit("compile", memory_limit)
        self.numerics = None if numerics is None else check_numerics("compile", numerics)
        self.precision = None if precision is None else check_precision("compile", precision)
        self.entries: dict[Any, Entry] = {}
        self.quick: dict[tuple[Any, ...], _Known] = {}  # by what one look at the arguments gives
        self.needed: set[tuple[Any, int]] = set()  # numbers that turned out to be needed by value
        self.lock = threading.RLock()
        self.last: Entry | None = None
        self.seen: list[dict[str, Any]] = []
        self.misses: list[Miss] = []
        self.told: set[tuple[str, str]] = set()  # what cannot be watched
        self.hits = 0

    def _sign(self) -> None:
        self.signature = _signature(self.function)
        self.parameters = tuple(self.signature.parameters)

    def _named(self, given: Iterable[str | int], what: str) -> frozenset[str]:
        names = list(self.signature.parameters)
        found = []
        for g in (given,) if isinstance(given, (str, int)) else given:
            if isinstance(g, int) and -len(names) <= g < len(names):
                found.append(names[g])
            elif g in names:
                found.append(str(g))
            else:
                raise misfit(
                    ArgumentError,
                    f"compile({what}=)",
                    got=repr(g),
                    needed="a parameter of " + ", ".join(names),
                )
        return frozenset(found)

    # -- calls -----------------------------------------------------------------------------
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        session = sessions.in_use or here()
        if session is not None:
            tokens: list[Any] = [session.number]
            leaves: list[Any] = []
            given: list[Any] = []  # operands of Arrays, which other threads may move or give away
            engine = session.engine
            try:
                for a in args:
                    o = a._operand if a.__class__ is Array and a._term is None else None
                    if o is not None and o.engine is engine:
                        tokens.append(o.spec)  # as _scan would do
                        leaves.append(a)
                        given.append(o)
                    else:
                        _scan(a, engine, tokens, leaves, given)
                if kwargs:
                    tokens.append(tuple(kwargs))
                    for a in kwargs.values():
                        _scan(a, engine, tokens, leaves, given)
                known = self.quick[tuple(tokens)]
                if known.order is not None:
                    leaves += known.rest
                    given += known.rest
                    leaves = [leaves[k] for k in known.order]
                    given = [given[k] for k in known.order]
                entry = known.entry
                if known.values:
                    entry = known.entries[tuple([leaves[k] for k in known.values])]
            except _UNREADY:
                given.clear()  # else somebody would still have what is given away
                o = None
            else:
                if entry.hold is None or entry.hold(leaves):
                    self.hits += 1
                    self.last = entry
                    if entry.simple:
                        return from_operand(entry.launch(given)[0])  # type: ignore[return-value]
                    o = None  # for the same reason
                    return self._run(entry, leaves, given, session)
                given.clear()
                o = None
        return self._call(args, kwargs)

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        session = current()
        entry, leaves, given = self._entry(args, kwargs, session)
        if entry is None:  # inside another trace, or under a gradient: part of it
            return self.function(*args, **kwargs)
        self.last = entry
        return self._run(entry, leaves, given, session)

    def _entry(
        self, args: Sequence[Any], kwargs: dict[str, Any], session: Session
    ) -> tuple[Any, list[Any], list[Any]]:
        """What a call leads to, its leaves, and these with operands for Arrays; no entry if the call
        belongs to another trace.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit(ArgumentError, f"{self.name}()", got=str(error)) from None
        bound.apply_defaults()
        leaves, structure = flatten(tuple(bound.arguments.values()))
        fixed = self._fixed(structure)
        leaves = [self._leaf(x, k, k in fixed) for k, x in enumerate(leaves)]
        if any(isinstance(x, Array) and x._term is not None and x._term.is_open for x in leaves):
            return None, leaves, []
        pending = [x for x in leaves if isinstance(x, Array) and x._operand is None]
        if pending:
            _Reader().settle(pending)
        given = [session.hold_array(x) if isinstance(x, Array) else x for x in leaves]
        where = (structure, session.target, session.number)
        key = (where, tuple([self._key(x, k, where, k in fixed) for k, x in enumerate(given)]))
        entry, change = self._known(key, leaves)
        if entry is None:
            with one_by_one(self.lock, session):
                entry, change = self._known(key, leaves)
                if change is not None and (stale := self.entries.get(key)) is not None:
                    self.drop(stale)
                    if change.guard.key in _OF_CODE:
                        self._sign()
                        return self._entry(args, kwargs, session)
                if entry is None:
                    entry, key = self._make(session, structure, given, where, fixed, change)
                    self._keep(entry, key, leaves, session)
        else:
            self.hits += 1
            if settings.check_stale and self.hits % settings.check_stale == 0:
                self._check(entry, session, structure, given, where, fixed)
        self._remember(entry, args, kwargs, leaves, fixed, where, session)
        return entry, leaves, given

    # -- what is kept ----------------------------------------------------------------------
    def _keep(self, entry: Entry, key: Any, leaves: Sequence[Any], session: Session) -> None:
        gone = functools.partial(_gone, weakref.ref(entry))
        entry.key = key
        entry.objects = [weakref.ref(x, gone) for x in leaves if _is_itself(x)]
        while len(self.entries) >= MOST:
            self.drop(self.entries[next(iter(self.entries))])
        self.entries[key] = entry
        session.keep(self, entry, entry.plan)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        for tokens, values in tuple(entry.quick):
            known = self.quick.get(tokens)
            if known is not None and known.entries.pop(values, None) is not None:
                left = next(iter(known.entries.values()), None)
                if left is None:
                    del self.quick[tokens]
                else:
                    known.entry = left
        if self.last is entry:
            self.last = replace(
                entry, launch=_ended, captured=(), guards=Guards(()), hold=None, objects=[]
            )

    def forget_session(self, number: int) -> None:
        """A session ends, and all that was made for it."""
        for key in list(self.entries):
            if key[0][2] == number and (entry := self.entries.get(key)) is not None:
                self.drop(entry)
        self.needed = {n for n in list(self.needed) if n[0][2] != number}

    def _known(self, key: Any, leaves: Sequence[Any]) -> tuple[Entry | None, Change | None]:
        """The entry of a signature, if all that it read is as it was; else what changed."""
        entry = self.entries.get(key)
        if entry is None or entry.hold is None or entry.hold(leaves):
            return entry, None
        change = entry.guards.change(leaves)
        return (entry if change is None else None), change

    def _remember(
        self,
        entry: Entry,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
        fixed: frozenset[int],
        where: Any,
        session: Session,
    ) -> None:
        """Lead calls of the same form to the entry directly, if one look at the arguments is
        enough.
        """
        if settings.check_stale:
            return
        tokens: list[Any] = [session.number]
        seen: list[Any] = []
        parts: dict[str, range] = {}
        try:
            for a in args:
                _scan(a, session.engine, tokens, seen, [])
            places = list(range(len(seen)))
            if kwargs:
                tokens.append(tuple(kwargs))
            for name, a in kwargs.items():
                before = len(seen)
                _scan(a, session.engine, tokens, seen, [])
                parts[name] = range(before, len(seen))
        except _UNREADY:
            return
        rest: list[Any] = []
        for name in self.parameters[len(args) :]:
            parameter = self.signature.parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                return
            if name in parts:
                places += parts[name]
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                more = flatten(parameter.default)[0]
                if any(isinstance(x, Array) for x in more):
                    return
                places += range(len(seen) + len(rest), len(seen) + len(rest) + len(more))
                rest += more
        found = [*seen, *rest]
        if len(places) != len(leaves) or any(
            found[p] is not x for p, x in zip(places, leaves, strict=True)
        ):
            return
        values = tuple(
            k
            for k, x in enumerate(leaves)
            if not self._is_input(x, k, where, k in fixed) and not _is_itself(x)
        )
        if any(isinstance(leaves[k], (float, complex)) for k in values):
            return  # 0.0 and -0.0 are equal
        order = None if places == list(range(len(leaves))) and not rest else places
        if self.entries.get(entry.key) is not entry:  # dropped meanwhile
            return
        form, value = tuple(tokens), tuple([leaves[k] for k in values])
        if len(self.quick) >= MOST or len(entry.quick) >= MOST:
            self.quick = {}
            entry.quick.clear()
        known = self.quick.get(form)
        if known is None or known.values != values:
            known = self.quick[form] = _Known(values, order, tuple(rest), entry, {})
        known.rest = tuple(rest)  # defaults may have been changed
        known.entries[value] = known.entry = entry
        entry.quick.add((form, value))

    def _run(self, entry: Entry, leaves: Sequence[Any], given: list[Any], session: Session) -> Any:
        operands: list[Any] = [
            _operand(x, session) if x.__class__ in _VALUES else x
            for x in [given[k] for k in entry.leaves]
        ]
        if entry.captured:
            operands += entry.captured
        if entry.draws:
            operands.append(session.put(np.asarray(seeds.advance(), np.uint64)))
        if entry.donated:
            away = [(entry.leaves.index(k), leaves[k]) for k in entry.donated]
            given.clear()  # for the same reason
            made = launch_given(entry.launch, operands, away, session, f"{self.name}(donate=)")
        else:
            made = entry.launch(operands)
        if entry.made:
            results = [from_operand(o) for o in made]
        else:
            results = [
                self._result(at, k, entry, leaves, operands, made, session)
                for at, k in entry.outputs
            ]
        return entry.build(results)

    def _result(
        self,
        where: str,
        k: Any,
        entry: Entry,
        leaves: Sequence[Any],
        operands: Sequence[Operand],
        made: Sequence[Operand],
        session: Session,
    ) -> Any:
        """A result that is not simply the next one that was made."""
        if where == "out":
            return from_operand(made[k])
        if where == "in":
            x = leaves[k]
            if isinstance(x, np.ndarray):  # which the caller may change
                return from_operand(session.put(copied(x)))
            keep = isinstance(x, Array) and k not in entry.donated
            return x if keep else from_operand(operands[entry.leaves.index(k)])
        if where == "captured":
            return from_operand(entry.captured[k])
        return k

    # -- signatures ------------------------------------------------------------------------
    def _fixed(self, structure: Structure) -> frozenset[int]:
        """Leaves of arguments that were declared static."""
        if not self.static:
            return frozenset()
        found: set[int] = set()
        at = 0
        for name, child in zip(self.parameters, structure.children, strict=True):
            if name in self.static:
                found.update(range(at, at + child.leaves))
            at += child.leaves
        return frozenset(found)

    def _leaf(self, x: Any, k: int, fixed: bool) -> Any:
        """A leaf as it enters the signature: an Array, a number, a NumPy array to be borrowed, or a
        value.
        """
        if isinstance(x, (Array, bool, int, float, complex, str, bytes)) and not isinstance(
            x, np.generic
        ):
            if isinstance(x, Array) and fixed:
                raise misfit(
                    ArgumentError,
                    f"{self.name}(static=)",
                    got=f"an array {x.spec.bare} for a static argument",
                    needed="a hashable value",
                )
            if isinstance(x, Array) and x._operand is None and x._term is None:
                array.term_of(x)  # raises: donated
            return x
        if not fixed and (isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__")):
            array.unmasked(x, f"{self.name}()")
            host = np.asarray(x)
            if host.dtype.name in DTYPES:
                return np.require(host, host.dtype.newbyteorder("="), ["C", "A"])
        try:
            hash(x)
        except TypeError:
            raise misfit(
                ArgumentError,
                f"{self.name}()",
                got=f"a {type(x).__name__} as an argument",
                needed="arrays, numbers, hashable values, or dicts, lists, tuples and dataclasses of them",
            ) from None
        return x

    def _is_input(self, x: Any, k: int, where: Any, fixed: bool) -> bool:
        if isinstance(x, (Operand, Array, np.ndarray)):
            return True
        if fixed or type(x) not in _NUMBERS or (where, k) in self.needed:
            return False
        return not (type(x) is int and not -(2**63) <= x < 2**63)

    def _key(self, x: Any, k: int, where: Any, fixed: bool) -> Any:
        if isinstance(x, Operand):
            return x.spec
        if isinstance(x, np.ndarray):
            return x.shape, x.dtype
        if self._is_input(x, k, where, fixed):
            return type(x)
        return weakref.ref(x) if _is_itself(x) else exact(x)

    def _parts(
        self, structure: Structure, leaves: Sequence[Any], where: Any, fixed: frozenset[int]
    ) -> dict[str, Any]:
        """The signature in words, by the names that the user knows."""
        found: dict[str, Any] = {}
        for k, (name, x) in enumerate(zip(self._names(structure), leaves, strict=True)):
            if isinstance(x, Operand):
                found[f"{name}.shape"], found[f"{name}.dtype"] = x.spec.shape, x.spec.dtype.name
                found[f"{name}.layout"] = str(x.spec.layout)
            elif isinstance(x, np.ndarray):
                found[f"{name}.shape"], found[f"{name}.dtype"] = x.shape, x.dtype.name
            elif self._is_input(x, k, where, k in fixed):
                found[f"{name}.type"] = type(x).__name__
            else:
                found[name] = object.__repr__(x) if _is_itself(x) else x
        target: Target = where[1]
        return {
            **found,
            "structure": repr(structure),
            "mesh": target.mesh,
            "device": target.device,
            "numerics": self.numerics or target.numerics,
            "precision": self.precision or target.precision,
            "memory_limit": self.memory_limit or target.memory_limit,
        }

    def _names(self, structure: Structure) -> list[str]:
        found = []
        for name, child in zip(self.parameters, structure.children, strict=True):
            found.extend(paths(child, str(name)))
        return found

    # -- tracing ---------------------------------------------------------------------------
    def _make(
        self,
        session: Session,
        structure: Structure,
        leaves: Sequence[Any],
        where: Any,
        fixed: frozenset[int],
        change: Change | None,
    ) -> tuple[Entry, Any]:
        start = time.perf_counter()
        traced, guards = self._trace(session, structure, leaves, where, fixed)
        entry, source = self._planned(session, structure, leaves, traced, guards)
        key = (where, tuple([self._key(x, k, where, k in fixed) for k, x in enumerate(leaves)]))
        parts = self._parts(structure, leaves, where, fixed)
        miss = Miss(parts, source, list(self.seen), hits=self.hits)
        if change is not None:
            miss.change, miss.changed = str(change), change.guard.name
        self.misses.append(miss)
        self.seen.append(parts)
        del self.misses[:-16], self.seen[:-64]
        self._warn_of_change()
        if settings.debug >= 1:
            took, nearest = (time.perf_counter() - start) * 1e3, miss.nearest
            fields = [] if nearest is None else differences(nearest, parts)
            if miss.change:
                fields.append(miss.change)
            why = "; differs in " + ", ".join(fields) if fields else ""
            print(
                f"ostinato: {self.name} plan {entry.plan.id[:8]} {source} in {took:.1f} ms{why}",
                file=sys.stderr,
            )
        return entry, key

    def _warn_of_change(self) -> None:
        """Say so, once, if one thing around it makes each call another trace."""
        last = self.misses[-_OFTEN:]
        names = {(m.changed, m.hits) for m in last}
        said = ("", last[-1].changed)
        if len(last) < _OFTEN or len(names) > 1 or not said[1] or said in self.told:
            return
        self.told.add(said)
        warnings.warn(
            f"{self.name} was traced {_OFTEN} times in a row, since {said[1]} changes from call to call; "
            "pass it as an argument.",
            StaleWarning,
            stacklevel=2,
        )

    def _trace(
        self,
        session: Session,
        structure: Structure,
        leaves: Sequence[Any],
        where: Any,
        fixed: frozenset[int],
    ) -> tuple[_Traced, Guards]:
        """What the function does, and what it read of what is around it; traced again while it needs
        the value of another number, or another thread changed what it read."""
        names = self._names(structure)
        for attempt in itertools.count():
            inputs = [k for k, x in enumerate(leaves) if self._is_input(x, k, where, k in fixed)]
            objects = [(k, names[k], x) for k, x in enumerate(leaves) if k not in inputs]
            trace = CompileTrace(self.name)
            reach = Reach(self.function, self.name, objects, objects_beside(structure))
            try:
                traced = self._run_traced(session, structure, leaves, inputs, trace, reach)
            except NeedsValue as need:
                if need.trace is not trace:
                    raise
                self.needed.update((where, inputs[n]) for n in need.numbers)
                continue
            guards = reach.finish()
            if attempt > _OFTEN or not reach.changed():
                break
        reach.tell(self.name, getattr(inspect.unwrap(self.function), "__code__", None), self.told)
        return traced, Guards(guards)

    def _run_traced(
        self,
        session: Session,
        structure: Structure,
        leaves: Sequence[Any],
        inputs: list[int],
        trace: CompileTrace,
        reach: Reach,
    ) -> _Traced:
        specs: list[Spec] = []
        args = list(leaves)
        whole = Layout.whole(session.target.mesh)
        for n, k in enumerate(inputs):
            x = leaves[k]
            if isinstance(x, (Operand, np.ndarray)):
                specs.append(x.spec if isinstance(x, Operand) else Spec(x.shape, x.dtype, whole))
                args[k] = placeholder(specs[-1], n, trace)
            else:
                specs.append(Spec((), _NUMBERS[type(x)], whole))
                args[k] = placeholder(specs[-1], n, trace, type(x))
                trace.lifted[n] = x
        seed = _Draws(len(inputs), trace, Spec((), uint64, whole))
        outer_draw = seeds.draw
        seeds.draw = seed.draw
        try:
            given = dict(zip(self.parameters, unflatten(structure, args), strict=True))
            bound = self.signature.bind(
                *_positional(self.signature, given), **_keywords(self.signature, given)
            )
            del given
            with reaching(reach):
                results = self.function(*bound.args, **bound.kwargs)
        except Exception:
            if isinstance(trace.refused, NeedsValue):  # which the function swallowed
                raise trace.refused from None
            raise
        finally:
            seeds.draw = outer_draw
        if trace.refused is not None:  # it went on with what it does if there is no value
            raise trace.refused
        outs, out_structure = flatten(results)
        refs: list[Ref] = []
        outputs: list[tuple[str, Any]] = []
        for x in outs:
            if isinstance(x, (np.ndarray, np.generic)):
                x = array.as_array(x)
            if isinstance(x, Array):
                outputs.append(("ref", len(refs)))
                refs.append(array.term_of(x))
            else:
                outputs.append(("is", x))
        if seed.base is not None:
            specs.append(seed.spec)
        found = collect(refs, specs, trace)
        captured = tuple(
            _captured(t, k, held, session, trace)
            for (t, k), held in zip(found.captured, found.held, strict=True)
        )
        for operand in captured:
            operand.shared = True
        graph = type(found.graph)(
            (*specs, *(o.spec for o in captured)), found.graph.nodes, found.graph.outputs
        )
        if seed.base is not None:  # the seed comes last
            graph = _seed_last(graph, len(inputs))
        draws = seed.base is not None
        return _Traced(graph, inputs, captured, draws, tuple(outputs), out_structure)

    def _key_of(self, traced: _Traced, session: Session, structure: Structure) -> Key:
        donated = [k for k in self._donated(structure) if k in traced.inputs]
        places = tuple(traced.inputs.index(k) for k in donated)
        return Key(traced.graph, self._target(session.target), places)

    def _planned(
        self,
        session: Session,
        structure: Structure,
        leaves: Sequence[Any],
        traced: _Traced,
        guards: Guards,
    ) -> tuple[Entry, str]:
        inputs, captured, draws = traced.inputs, traced.captured, traced.draws
        names = [self._names(structure)[k] for k in inputs]
        donated = tuple(k for k in self._donated(structure) if k in inputs)
        key = self._key_of(traced, session, structure)
        plan, source = session.plan(key, tuple(names), self.name)
        final: list[tuple[str, Any]] = []
        for where, value in traced.outputs:
            if where == "ref":
                where, n = plan.results[value]
                if where == "in":
                    first = len(inputs)
                    where, value = ("in", inputs[n]) if n < first else ("captured", n - first)
                else:
                    value = n
            final.append((where, value))
        simple = (
            not (captured or draws or donated)
            and traced.structure.kind == "leaf"
            and final[0] == ("out", 0)
            and inputs == list(range(len(leaves)))
            and all(isinstance(x, Operand) for x in leaves)
        )
        entry = Entry(
            plan,
            session.launcher(plan),
            tuple(inputs),
            captured,
            draws,
            tuple(final),
            constructor(traced.structure),
            donated,
            final == [("out", k) for k in range(len(final))],
            simple,
            traced if settings.check_stale else None,
            guards,
            guards.hold,
            weakref.ref(self),
        )
        return entry, source

    def _check(
        self,
        entry: Entry,
        session: Session,
        structure: Structure,
        leaves: Sequence[Any],
        where: Any,
        fixed: frozenset[int],
    ) -> None:
        """Trace a hit again, and see whether it would become the same (OSTINATO_CHECK_STALE)."""
        traced, _ = self._trace(session, structure, leaves, where, fixed)
        if entry.traced is not None and (found := entry.traced.differs(traced)):
            raise misfit(
                StaleResultError,
                f"a hit of {self.name}",
                got=f"another graph when it was traced again: {found}",
                needed=f"that of its plan {entry.plan.id[:8]}",
                do="pass what changes from call to call as an argument",
            )

    def _target(self, target: Target) -> Target:
        return Target(
            target.mesh,
            target.device,
            self.numerics or target.numerics,
            self.memory_limit if self.memory_limit is not None else target.memory_limit,
            precision=self.precision or target.precision,
        )

    def _donated(self, structure: Structure) -> list[int]:
        found: list[int] = []
        at = 0
        for name, child in zip(self.parameters, structure.children, strict=True):
            if name in self.donate:
                found.extend(range(at, at + child.leaves))
            at += child.leaves
        return found

    def plan_for(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan of a call, without running it."""
        entry, _, _ = self._entry(args, kwargs, current())
        if entry is None:
            raise misfit(
                TracedValueError,
                f"{self.name}.plan_for",
                got="arrays of a function that is being traced, of whose plan the call is a part",
                needed="arrays with values",
                do="call it outside of compiled functions and gradients",
            )
        return entry.plan

    # -- seeing ----------------------------------------------------------------------------
    @property
    def plan(self) -> Plan:
        """The plan of the last call."""
        if self.last is None:
            raise misfit(
                ArgumentError,
                f"{self.name}.plan",
                got="a function that was not called yet",
                do="call it once",
            )
        return self.last.plan

    def __get__(self, instance: Any, owner: type) -> Any:
        """As a method: `self` is one more argument, by identity."""
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        """By name, as functions are pickled; what is in `__main__`, which may be another elsewhere, or
        has no name, by the function, if the pickler can do that (cloudpickle, joblib)."""
        options = {n: getattr(self, n) for n in _OPTIONS}
        name = str(getattr(self, "__qualname__", ""))
        home: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            home = getattr(home, part, None)
        by_value = "cloudpickle" in sys._getframe(1).f_globals.get("__name__", "")
        if home is self and not (by_value and self.__module__ == "__main__"):
            return name
        return _compiled_again, (self.function, options)

    def __repr__(self) -> str:
        counts = (
            (len(self.entries), "plan", "s"),
            (self.hits, "hit", "s"),
            (len(self.misses), "miss", "es"),
        )
        said = ", ".join(f"{n} {what}{'' if n == 1 else many}" for n, what, many in counts)
        return f"<compiled {self.name}: {said}>"


_OPTIONS = ("donate", "static", "memory_limit", "numerics", "precision")


def _compiled_again(function: Any, options: dict[str, Any]) -> CompiledFunction[Any, Any]:
    return CompiledFunction(function, **options)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields in which two signatures differ, with both values."""
    found = []
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, UNSET), new.get(name, UNSET)
        if exact(a) != exact(b):
            before = "nothing" if a is UNSET else repr(a)
            after = "nothing" if b is UNSET else repr(b)
            found.append(f"{name}: {before} -> {after}")
    return found


def why_miss(function: CompiledFunction[Any, Any]) -> str:
    """Why the last new plan of a compiled function was new: the nearest plan that was there, and
    the fields that differ.
    """
    if not isinstance(function, CompiledFunction):
        raise misfit(
            ArgumentError,
            "why_miss",
            got=f"{function!r:.80}",
            needed="a compiled function",
            do="decorate it with @ost.compile",
        )
    if not function.misses:
        return f"{function.name} has not been called yet."
    miss = function.misses[-1]
    if miss.nearest is None:
        return f"{function.name} was called for the first time."
    fields = differences(miss.nearest, miss.parts)
    if miss.change:
        return f"{function.name} was traced again since what it uses from around it changed:\n  {miss.change}"
    if not fields:
        return f"{function.name} was traced again, with the same signature."
    return f"{function.name} needed a new plan since the nearest one differs in\n  " + "\n  ".join(
        fields
    )


# -- helpers -------------------------------------------------------------------------------
_OF_CODE = ("__code__", "__defaults__", "__kwdefaults__")  # what a signature is made of
_OFTEN = 8
WRAPPERS[CompiledFunction] = ("function",)
watch_calls_of(CompiledFunction.__call__)


def _difference(a: Graph, b: Graph) -> str:
    """The first node in which two graphs differ, with the user's line."""
    if a.inputs != b.inputs:
        return f"inputs {', '.join(map(str, b.inputs))} in place of {', '.join(map(str, a.inputs))}"
    for x, y in itertools.zip_longest(a.nodes, b.nodes):
        if x != y:
            was = "nothing" if x is None else f"{x.op} {dict(x.params)}"
            now = "nothing" if y is None else f"{y.op} {dict(y.params)}"
            return f"{now:.80} in place of {was:.80} ({(y or x).line})"
    return "other results"


class _Unready(Exception):
    """One look is not enough for this argument."""


_UNREADY = (_Unready, AttributeError, KeyError, TypeError)
_VALUES = frozenset((*_NUMBERS, np.ndarray))


def _is_itself(x: Any) -> bool:
    """Whether an argument is an object that equals only itself, as instances do: entries go with it."""
    kind: Any = type(x)
    return kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ != 0


def _gone(entry: weakref.ref[Entry], _: object) -> None:
    if (found := entry()) is not None:
        found.drop()


def _ended(operands: Sequence[Operand]) -> list[Operand]:
    raise AssertionError("what was dropped is not run")


def _scan(x: Any, engine: Any, tokens: list[Any], leaves: list[Any], given: list[Any]) -> None:
    """The leaves of an argument, with the operands of Arrays, and tokens that tell whether another one
    has the same form. Arrays have to be the engine's.
    """
    kind = x.__class__
    if kind is Array:
        operand, term = x._operand, x._term
        if operand is None or operand.engine is not engine or (term is not None and term.traces):
            raise _Unready
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
            _scan(x[k], engine, tokens, leaves, given)
    elif kind is tuple or kind is list:
        tokens.append(kind)
        tokens.append(len(x))
        for v in x:
            _scan(v, engine, tokens, leaves, given)
    elif x is None:
        tokens.append(kind)
    elif kind is bool or kind is str:
        tokens.append(kind)
        leaves.append(x)
        given.append(x)
    elif (names := fields_of(kind)) is not None and has_fields_only(x):
        tokens.append(kind)
        for name in names:
            _scan(getattr(x, name), engine, tokens, leaves, given)
    elif kind.__hash__ is object.__hash__:  # itself; what is known of it goes with it
        tokens.append((kind, id(x)))
        leaves.append(x)
        given.append(x)
    else:
        raise _Unready


def _operand(x: Any, session: Session) -> Operand:
    value = x if isinstance(x, np.ndarray) else np.asarray(x, _NUMBERS[type(x)])
    return session.put(value)


def launch_given(
    launch: Launcher,
    operands: list[Any],
    away: Sequence[tuple[int, Any]],
    session: Session,
    who: str,
) -> list[Operand]:
    """Run what is given some of its operands, which are named by number, with what the caller has there.
    Where others hold on to an Array's operand, what is given is one that nobody writes to. Arrays are
    gone when it began, unless it failed without having written to them."""
    before = list(operands)
    taken: list[tuple[int, Array, Term | None]] = []
    try:
        for n, x in away:
            if not isinstance(x, Array):
                continue
            if sum(o is before[n] for o in before) > 1:
                raise misfit(
                    ArgumentError,
                    who,
                    got="an array that is given away and also used as another argument",
                    needed="an array that is passed once",
                )
            term, alone = _take(x)
            taken.append((n, x, term))
            held = term is not None and term.operands is not None
            known = 3 + (held and term.operands[x._k] is operands[n])  # type: ignore[union-attr, index]
            alone = alone and not operands[n].shared and sys.getrefcount(operands[n]) <= known
            lies = operands[n].spec.layout
            if not alone and lies is not None and not lies.stored:
                operands[n] = session.engine.put(session.engine.get(operands[n]), lies)
        return launch(operands)
    except BaseException:
        for n, x, term in taken:
            if not before[n].spoiled:
                with array.changing:
                    x._operand, x._term = before[n], term
        raise


def _take(x: Array) -> tuple[Term | None, bool]:
    """Take an Array's value from it, which one thread can; its Term, and whether nobody else has that.
    Who has the value in hand already is seen by its count of references."""
    with array.changing:
        if x._operand is not None:
            term = x._term
            x._operand = x._term = None
            return term, term is None or sys.getrefcount(term) <= 2
    array.term_of(x)  # raises
    raise AssertionError("an array without a value")


def run(plan: Plan, *arrays: Any) -> Any:
    """Run a plan, e.g. one from a file, on arrays in the order of its inputs; one result, or a tuple.
    What its function was given (`donate=`) is given away here, too."""
    if not isinstance(plan, Plan):
        raise misfit(
            ArgumentError,
            "run",
            got=f"{plan!r:.80}",
            needed="a plan",
            do="take that of a compiled function, f.plan, or of a file, ost.Plan.from_file(path)",
        )
    session = current()
    names = dict(enumerate(plan.names))
    wanted = [f"{names.get(k, f'input {k}')}: {s}" for k, s in enumerate(plan.traced.inputs)]
    if (plan.target.mesh, plan.target.device) != (session.target.mesh, session.target.device):
        raise misfit(
            ArgumentError,
            f"run of plan {plan.id[:8]}",
            got=f"{session}",
            needed=f"a session with mesh {plan.target.mesh} on {plan.target.device}",
            do=f"call ost.connect(mesh={plan.target.mesh}) first",
        )
    if len(arrays) != len(wanted):
        raise misfit(
            ArgumentError,
            f"run of plan {plan.id[:8]}",
            got=f"{len(arrays)} arrays",
            needed=f"{len(wanted)}: {', '.join(wanted)}",
        )
    check_limit(plan)
    xs = [array.as_array(x) for x in arrays]
    _Reader().settle([x for x in xs if x._operand is None])
    operands: list[Any] = [session.hold_array(x) for x in xs]
    for k, spec in enumerate(plan.traced.inputs):
        if operands[k].spec is not spec:
            raise misfit(
                ArgumentError,
                f"run of plan {plan.id[:8]}",
                got=f"{operands[k].spec} for {names.get(k, f'input {k}')}",
                needed=f"{spec}",
                do="convert it with .astype, .reshape or .resplit",
            )
    away = [(k, xs[k]) for k in plan.key.donated]
    who = f"run of plan {plan.id[:8]} (donate=)"
    found = launch_given(lambda given: run_plan(plan, given, session), operands, away, session, who)
    made = [from_operand(o) for o in found]
    return made[0] if len(made) == 1 else tuple(made)


class _Draws:
    """Seeds for a function that is being traced: one input, and a number for each draw."""

    def __init__(self, number: int, trace: CompileTrace, spec: Spec) -> None:
        self.number = number
        self.trace = trace
        self.spec = spec
        self.base: Array | None = None
        self.count = 0

    def draw(self) -> Array:
        if self.base is None:
            self.base = placeholder(self.spec, self.number, self.trace)
        self.count += 1
        return astype(self.base, uint64) + np.uint64(mix(0, self.count))


def _seed_last(graph: Any, at: int) -> Any:
    """The graph with the input `at` behind all others."""
    from ostinato.ops.control import relabel

    n = len(graph.inputs)
    order = [*range(at), *range(at + 1, n), at]
    values = [order.index(k) for k in range(n)]
    return relabel(graph, [graph.inputs[k] for k in order], values)


def _captured(
    term: Term, k: int, held: Operand | None, session: Session, trace: CompileTrace
) -> Operand:
    """The operand of what a function takes from around it."""
    if held is None:
        if term.is_traced:
            raise TracedValueError.because(
                trace.name,
                got=f"an array {term.specs[k].bare} of the tracing of {next(iter(term.traces)).name}",
                needed="values that the function returned",
                do="return the array from the function instead of storing it elsewhere",
            )
        x = array_of(term, k)
        _Reader().settle([x])
        return session.hold_array(x)
    return session.hold_leaf(term, k, held)


def _signature(function: Any) -> inspect.Signature:
    try:
        if not any(test(function) for test in _LATER):
            return inspect.signature(function)
        got = "a function whose values come later (a coroutine or generator)"
    except (TypeError, ValueError):
        got = repr(function)[:80]
    raise misfit(
        ArgumentError,
        "compile",
        got=got,
        needed="a function of arrays whose parameters are known",
        do="wrap it in a plain `def`",
    )


_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _positional(signature: inspect.Signature, given: Any) -> list[Any]:
    found: list[Any] = []
    for name, p in signature.parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            found.extend(given[name])
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            found.append(given[name])
    return found


def _keywords(signature: inspect.Signature, given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, p in signature.parameters.items():
        if p.kind is p.VAR_KEYWORD:
            found.update(given[name])
        elif p.kind is p.KEYWORD_ONLY:
            found[name] = given[name]
    return found


# -- the decorator -------------------------------------------------------------------------
@overload
def compile(function: Callable[P, R], /) -> CompiledFunction[P, R]: ...


@overload
def compile(
    *,
    donate: Iterable[str | int] = ...,
    static: Iterable[str | int] = ...,
    memory_limit: int | None = ...,
    numerics: str | None = ...,
    precision: str | None = ...,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


def compile(function: Any = None, /, **options: Any) -> Any:
    """Compile a function of arrays (in dicts, lists, tuples, dataclasses) to plans that are made
    once and run by id.

    donate: arguments whose memory the results may take; they cannot be used afterwards.
    static: arguments that are part of the signature by value.
    memory_limit, numerics, precision: as in `connect`, for this function.
    """
    if function is None:
        return lambda f: CompiledFunction(f, **options)
    return CompiledFunction(function, **options)
