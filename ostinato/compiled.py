"""`@ost.compile`: trace once, plan once, then run by plan id.

The signature of a call is the specs of its arrays, the kinds of its numbers, and everything else by
value. Numbers begin as inputs; one whose value the function needs (a shape, an `if`) moves into the
signature. What the function takes from around it (closures, globals, attributes of objects) is checked
too: another array or number there means another trace."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from ostinato import settings
from ostinato.errors import (
    ArgumentError,
    PrecisionWarning,
    StaleResultError,
    StaleWarning,
    TracedValueError,
)
from ostinato.ops.core import activity
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.garbage import seldom_collected
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.operand import FREE, Host, Operand
from ostinato.ops.core.tracebacks import shorten
from ostinato.ops.core.tree import constructor, flatten
from ostinato.ops.core.user_line import misfit
from ostinato.planner.external import Step, split_sorts
from ostinato.planner.pipeline import check_limit, place_operands
from ostinato.planner.plan import Key, Numerics, Plan, Target
from ostinato.planner.policy import AS_WRITTEN, Precision, check_precision
from ostinato.runtime.engine import Launcher

from . import sessions
from .arguments import UNREADY, Call, fixed_leaves, leaf, opened, scan, signature_of
from .auto_precision import (
    AUTO,
    Letters,
    Tolerance,
    Tolerated,
    Watched,
    budgets,
    check_tolerance,
    tolerated,
)
from .call_events import watch_calls_of
from .cards import compiled_card
from .donation import launch_given
from .guards import Change, Guards
from .misses import Miss, differences
from .offloading import check_offload, fitting_offload
from .reach import WRAPPERS
from .reading import _Reader
from .sessions import Session, check_memory_limit, check_numerics, current, here, one_by_one
from .side_effects import Effects, Outside, Place
from .signature_cache import Entries, Entry, operand_of
from .streaming import run_steps
from .tracing import Traced, traced

P = ParamSpec("P")
R = TypeVar("R")


class CompiledFunction(Entries, Generic[P, R]):
    """A function whose calls become plans."""

    # beside the attributes that `functools.wraps` copies to wrappers, and from what is wrapped
    __slots__ = (
        "donate",
        "function",
        "hits",
        "lock",
        "memory_limit",
        "misses",
        "name",
        "numerics",
        "offload",
        "precision",
        "scratch_limit",
        "seen",
        "static",
        "told",
        "tolerance",
        "widest",
    )

    def __init__(
        self,
        function: Callable[P, R],
        *,
        donate: Iterable[str | int] = (),
        static: Iterable[str | int] = (),
        memory_limit: int | None = None,
        scratch_limit: int | None = None,
        offload: bool | str | os.PathLike[str] | None = None,
        numerics: str | None = None,
        precision: str | Precision | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        self.function = function
        functools.update_wrapper(self, function, updated=())  # its state is not ours
        self._sign()
        self.name = getattr(function, "__name__", type(function).__name__)
        self.static = self._named(static, "static")
        self.donate = self._named(donate, "donate")
        self.memory_limit = check_memory_limit("compile", memory_limit)
        self.scratch_limit = check_memory_limit("compile", scratch_limit, "scratch_limit", 0)
        self.offload = check_offload("compile", offload)
        self.numerics = None if numerics is None else check_numerics("compile", numerics)
        self._allow(precision, tolerance)
        super().__init__()
        self.lock = make_lock()
        self.seen: list[dict[str, Any]] = []
        self.misses: list[Miss] = []
        self.told: set[tuple[str, str]] = set()  # what cannot be watched
        self.hits = 0

    def _allow(self, precision: str | Precision | None, tolerance: Tolerance | None) -> None:
        """Set the precision it computes in."""
        self.precision: str | None = None
        self.tolerance: Tolerance | None = None  # of results, where precision is "auto"
        self.widest: dict[Graph, Letters] = {}  # beyond which it was chosen to go no more
        if precision == AUTO:
            self.precision, self.tolerance = AUTO, check_tolerance("compile", tolerance)
            return
        if tolerance is not None:
            got = f"tolerance={tolerance!r:.60} with precision={precision!r:.60}"
            raise misfit(ArgumentError, "compile", got=got, needed="precision='auto'")
        if precision is not None:
            self.precision = check_precision("compile", precision)

    def _sign(self) -> None:
        self.signature = signature_of(self.function)
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
                needed = "a parameter of " + ", ".join(names)
                raise misfit(ArgumentError, f"compile({what}=)", got=repr(g), needed=needed)
        return frozenset(found)

    # -- calls -----------------------------------------------------------------------------
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            session = sessions.in_use or here()
            if session is not None:
                tokens: list[Any] = [session.number]
                leaves: list[Any] = []
                # operands of Arrays, which other threads may move or give away
                given: list[Any] = []
                engine = session.engine
                try:
                    for a in args:
                        o = a._operand if a.__class__ is Array and a._term is None else None
                        if o is not None and o.engine is engine:
                            tokens.append(o.spec)  # as _scan would do
                            leaves.append(a)
                            given.append(o)
                        else:
                            scan(a, engine, tokens, leaves, given)
                    if kwargs:
                        tokens.append(tuple(kwargs))
                        for a in kwargs.values():
                            scan(a, engine, tokens, leaves, given)
                    known = self.quick[tuple(tokens)]
                    if known.order is not None:
                        leaves += known.rest
                        given += known.rest
                        leaves = [leaves[k] for k in known.order]
                        given = [given[k] for k in known.order]
                    entry = known.entry
                    if known.values:
                        entry = known.entries[tuple([leaves[k] for k in known.values])]
                except UNREADY:
                    given.clear()  # else somebody would still have what is given away
                    o = None
                else:
                    if entry.hold is None or entry.hold(leaves):
                        if entry.simple:
                            self.hits += 1
                            self.last = entry
                            return from_operand(entry.launch(given)[0])  # type: ignore[return-value]
                        o = None  # for the same reason
                        effects = entry.effects
                        state = None if effects is None else effects.read(leaves, session)
                        if effects is None or state is not None:
                            self.hits += 1
                            self.last = entry
                            arguments = self._arguments(effects, args, kwargs)
                            return entry.run(self.name, leaves, given, session, state, arguments)
                    given.clear()
                    o = None
            return self._call(args, kwargs)
        except Exception as error:
            shorten(error)
            raise

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        session = current()
        if _Reader().show(args, session):
            return self(*args, **kwargs)
        entry, leaves, given = self._entry(args, kwargs, session)
        if entry is None:  # inside another trace, or under a gradient: part of it
            return self.function(*args, **kwargs)
        self.last = entry
        state, effects = None, entry.effects
        if effects is not None:
            state = effects.read(leaves, session)
            if state is None:  # another thread was faster
                return self._call(args, kwargs)
        arguments = self._arguments(effects, args, kwargs)
        return entry.run(self.name, leaves, given, session, state, arguments)

    def _arguments(
        self, effects: Effects | None, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Outside | None:
        """The arguments by name, for what writes to containers among them."""
        if effects is None or not effects.containers:
            return None
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _entry(
        self, args: Sequence[Any], kwargs: dict[str, Any], session: Session
    ) -> tuple[Any, list[Any], list[Any]]:
        """Find the entry of a call, its leaves, and these with operands for Arrays; no entry if the call
        belongs to another trace."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit(ArgumentError, f"{self.name}()", got=str(error)) from None
        bound.apply_defaults()
        leaves, structure = opened(self, *flatten(tuple(bound.arguments.values())))
        fixed = fixed_leaves(self, structure)
        leaves = [leaf(x, self.name, k in fixed) for k, x in enumerate(leaves)]
        if any(isinstance(x, Array) and x._term is not None and x._term.is_open for x in leaves):
            return None, leaves, []
        pending = [x for x in leaves if isinstance(x, Array) and x._operand is None]
        if pending:
            _Reader().settle(pending)
        if session.workers > 1 and any(map(_is_free, leaves)):
            self._place(Call(self, session, structure, list(leaves), fixed))
        given = [session.hold_array(x) if isinstance(x, Array) else x for x in leaves]
        call = Call(self, session, structure, given, fixed)
        key = call.key
        entry, change = self.known(key, leaves, session)
        if entry is None:
            with one_by_one(self.lock, session):
                entry, change = self.known(key, leaves, session)
                places: Sequence[Place] = ()
                if change is not None and (stale := self.entries.get(key)) is not None:
                    if stale.effects is not None:
                        places = [i.place for i in stale.effects.inputs]
                    self.drop(stale)
                    if change.guard.key in _OF_CODE:
                        self._sign()
                        return self._entry(args, kwargs, session)
                if entry is None:
                    entry = self._make(call, change, places)
                    self.keep(entry, call.key, leaves, session)
        else:
            self.hits += 1
            if settings.check_stale and self.hits % settings.check_stale == 0:
                self._check(entry, call)
        self.remember(entry, call, args, kwargs, leaves)
        return entry, leaves, given

    def _place(self, call: Call) -> None:
        """Decide where arrays with split="auto" are to lie, before they are brought anywhere."""
        session, arrays = call.session, dict(enumerate(call.leaves))
        free = {k: x for k, x in arrays.items() if _is_free(x)}
        for k, x in arrays.items():
            if isinstance(x, Array):
                call.leaves[k] = Operand(x.spec.bare) if k in free else session.hold_array(x)
        found, _ = traced(self, call)
        places = [n for n, k in enumerate(found.inputs) if k in free]
        with seldom_collected():
            layouts = place_operands(found.graph, self._target(session.target), places)
        for n, layout in zip(places, layouts, strict=True):
            host = free[found.inputs[n]]._operand
            if isinstance(host, Host):
                host.split = tuple([s if isinstance(s, int) else None for s in layout.splits])

    # -- tracing ---------------------------------------------------------------------------
    def _make(self, call: Call, change: Change | None, places: Sequence[Place]) -> Entry:
        start = time.perf_counter()
        with seldom_collected():
            with activity.task("trace", f"tracing {self.name}"):
                found, guards = traced(self, call, places)
            entry, source = self._planned(call, found, guards)
        target = self._target(call.session.target)
        parts = {
            **call.parts,
            "mesh": target.mesh,
            "device": target.device,
            "numerics": target.numerics,
            "precision": entry.plan.target.precision,
            "memory_limit": target.memory_limit,
            "scratch_limit": target.scratch_limit,
            "offload": target.offload,
        }
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
        return entry

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

    def _planned(self, call: Call, traced: Traced, guards: Guards) -> tuple[Entry, str]:
        session, inputs = call.session, traced.inputs
        captured, draws = traced.captured, traced.draws
        leaves = call.names
        names = [*[leaves[k] for k in inputs], *traced.state.names]
        donated = tuple(k for k in call.donated if k in inputs)
        away = tuple(inputs.index(k) for k in donated)
        target, steps, graph = self._target(session.target), list[Step](), traced.graph
        if self.tolerance is None:
            steps, graph = split_sorts(graph, target)
        key = Key(graph, target, away)
        chosen, allowed = None, list[float]()
        if self.tolerance is not None:
            operands = [
                operand_of(x, session)
                for x in [*[call.leaves[k] for k in inputs], *traced.state.given]
            ]
            operands += captured
            operands += [session.put(np.asarray(0, np.uint64))] * draws
            before = self.widest.get(key.graph)
            allowed = budgets(self.tolerance, traced, self.name)
            chosen = tolerated(session, key, operands, allowed, self.name, before)
            key = chosen.key
        plan, source = session.plan(key, tuple(names), self.name)
        if chosen is not None:
            plan = replace(plan, report=chosen.report)

        places = [("in", k) for k in inputs]
        places += [("state", k) for k in range(len(traced.state.given))]
        places += [("captured", k) for k in range(len(captured))]

        def final_of(where: str, value: Any) -> tuple[str, Any]:
            if where not in ("ref", "item"):
                return where, value
            at, n = plan.results[value]
            if at != "out":
                at, n = places[n]
            return ("item", (at, n)) if where == "item" else (at, n)

        final = [final_of(*output) for output in traced.outputs]
        assigned = {k: final_of("ref", n) for k, n in traced.assigned}
        effects = None
        if traced.stores or traced.state.inputs:
            stores = tuple([s.given(final_of) for s in traced.stores])
            effects = Effects(traced.state.inputs, stores, traced.numbers)
        simple = (
            not (captured or draws or donated or assigned or effects)
            and traced.structure.kind == "leaf"
            and final[0] == ("out", 0)
            and inputs == list(range(len(call.leaves)))
            and all(isinstance(x, Operand) for x in call.leaves)
        )
        if chosen is not None:
            launch: Launcher = self._watched(plan, chosen, allowed, session)
        else:
            launch = session.launcher(plan)
        entry = Entry(
            plan,
            launch if not steps else run_steps(steps, launch, session, target),
            tuple(inputs),
            captured,
            draws,
            tuple(final),
            assigned,
            constructor(traced.structure),
            donated,
            not (assigned or effects) and final == [("out", k) for k in range(len(final))],
            simple,
            traced if settings.check_stale else None,
            guards,
            guards.hold,
            effects,
            weakref.ref(self),
        )
        return entry, source

    def _watched(
        self, plan: Plan, chosen: Tolerated, allowed: list[float], session: Session
    ) -> Launcher:
        """Make a launcher of a plan that chooses again when it is beyond the tolerance."""
        me = weakref.ref(self)

        def again(what: str, session: Session, operands: Sequence[Operand]) -> Launcher:
            warnings.warn(f"{plan.called}: {what}.", PrecisionWarning, stacklevel=2)
            key = Key(plan.traced, replace(plan.target, precision=AS_WRITTEN), plan.key.donated)
            letters = chosen.letters.wide
            with contextlib.suppress(ArgumentError):  # not even as written
                found = tolerated(session, key, operands, allowed, plan.called, chosen.letters)
                key, letters = found.key, found.letters
            function = me()
            if function is not None:
                function.widest[plan.traced] = letters
                for entry in list(function.entries.values()):
                    if entry.plan is plan:
                        function.drop(entry)
            return session.launcher(session.plan(key, plan.names, plan.called)[0])

        return Watched(session, plan, chosen, allowed, again)

    def _check(self, entry: Entry, call: Call) -> None:
        """Trace a hit again, and see whether it would become the same (OSTINATO_CHECK_STALE)."""
        places = [i.place for i in entry.effects.inputs] if entry.effects is not None else ()
        again, _ = traced(self, call, places)
        if entry.traced is not None and (found := entry.traced.differs(again)):
            got = f"another graph when it was traced again: {found}"
            needed = f"that of its plan {entry.plan.id[:8]}"
            do = "pass what changes from call to call as an argument"
            raise misfit(StaleResultError, f"a hit of {self.name}", got=got, needed=needed, do=do)

    def _target(self, target: Target) -> Target:
        return Target(
            target.mesh,
            target.device,
            self.numerics or target.numerics,
            self.memory_limit if self.memory_limit is not None else target.memory_limit,
            precision=AS_WRITTEN if self.precision == AUTO else self.precision or target.precision,
            named=target.named,
            scratch_limit=self.scratch_limit,
            offload=fitting_offload("compile", self.offload or target.offload, target.device),
        )

    def plan_for(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """The plan of a call, without running it."""
        entry, _, _ = self._entry(args, kwargs, current())
        if entry is None:
            got = "arrays of a function that is being traced, of whose plan the call is a part"
            needed = "arrays with values"
            do = "call it outside of compiled functions and gradients"
            raise misfit(TracedValueError, f"{self.name}.plan_for", got=got, needed=needed, do=do)
        return entry.plan

    # -- seeing ----------------------------------------------------------------------------
    @property
    def plan(self) -> Plan:
        """The plan of the last call."""
        if self.last is None:
            got = "a function that was not called yet"
            raise misfit(ArgumentError, f"{self.name}.plan", got=got, do="call it once")
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

    def _repr_html_(self) -> str:
        plans = [entry.plan for entry in tuple(self.entries.values())]
        said = repr(self)[1:-1].partition(": ")[2]
        return compiled_card(self.name, str(self.signature), said, plans, why_miss(self))

    def __repr__(self) -> str:
        counts = (
            (len(self.entries), "plan", "s"),
            (self.hits, "hit", "s"),
            (len(self.misses), "miss", "es"),
        )
        said = ", ".join(f"{n} {what}{'' if n == 1 else many}" for n, what, many in counts)
        return f"<compiled {self.name}: {said}>"


_OPTIONS = (
    "donate",
    "static",
    "memory_limit",
    "scratch_limit",
    "offload",
    "numerics",
    "precision",
    "tolerance",
)


def _compiled_again(function: Any, options: dict[str, Any]) -> CompiledFunction[Any, Any]:
    return CompiledFunction(function, **options)


def why_miss(function: CompiledFunction[Any, Any]) -> str:
    """Why the last new plan of a compiled function was new: the nearest plan that was there, and
    the fields that differ.

    >>> step = ost.compile(lambda x: x * 2)
    >>> step(ost.arange(3))
    Array([0, 2, 4], dtype=int64)
    >>> step(ost.arange(4))
    Array([0, 2, 4, 6], dtype=int64)
    >>> print(ost.why_miss(step))
    <lambda> needed a new plan since the nearest one differs in
      x.shape: (3,) -> (4,)
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


def _is_free(x: Any) -> bool:
    """Whether it is an Array that may lie anywhere, and lies nowhere yet."""
    return isinstance(x, Array) and isinstance(x._operand, Host) and x._operand.split == FREE


def run(plan: Plan, *arrays: Any) -> Any:
    """Run a plan, e.g. one from a file, on arrays in the order of its inputs; one result, or a tuple.
    What its function was given (`donate=`) is given away here, too.

    >>> step = ost.compile(lambda x: x * 2)
    >>> y = step(ost.arange(3))
    >>> ost.run(step.plan, ost.arange(3))
    Array([0, 2, 4], dtype=int64)
    """
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
        got = f"{session}"
        needed = f"a session with mesh {plan.target.mesh} on {plan.target.device}"
        do = f"call ost.connect(mesh={plan.target.mesh}) first"
        raise misfit(ArgumentError, f"run of plan {plan.id[:8]}", got=got, needed=needed, do=do)
    if len(arrays) != len(wanted):
        got, needed = f"{len(arrays)} arrays", f"{len(wanted)}: {', '.join(wanted)}"
        raise misfit(ArgumentError, f"run of plan {plan.id[:8]}", got=got, needed=needed)
    check_limit(plan)
    xs = [as_array(x) for x in arrays]
    _Reader().settle([x for x in xs if x._operand is None])
    operands: list[Any] = [session.hold_array(x) for x in xs]
    for k, spec in enumerate(plan.traced.inputs):
        if operands[k].spec is not spec:
            got = f"{operands[k].spec} for {names.get(k, f'input {k}')}"
            needed = f"{spec}"
            do = "convert it with .astype, .reshape or .resplit"
            raise misfit(ArgumentError, f"run of plan {plan.id[:8]}", got=got, needed=needed, do=do)
    away = [(k, xs[k]) for k in plan.key.donated]
    who = f"run of plan {plan.id[:8]} (donate=)"
    found = launch_given(session.ready(plan).run, operands, away, session, who)
    made = [from_operand(o) for o in found]
    return made[0] if len(made) == 1 else tuple(made)


# -- the decorator -------------------------------------------------------------------------
@overload
def compile(function: Callable[P, R], /) -> CompiledFunction[P, R]: ...


@overload
def compile(
    *,
    donate: Iterable[str | int] = ...,
    static: Iterable[str | int] = ...,
    memory_limit: int | None = ...,
    scratch_limit: int | None = ...,
    offload: bool | str | os.PathLike[str] | None = ...,
    numerics: Numerics | None = ...,
    precision: str | Precision | None = ...,
    tolerance: Tolerance | None = ...,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


def compile(function: Any = None, /, **options: Any) -> Any:
    """Compile a function of arrays (in dicts, lists, tuples, dataclasses) to plans that are made
    once and run by id.

    donate: arguments whose memory the results may take; they cannot be used afterwards.
    static: arguments that are part of the signature by value.
    memory_limit, numerics, precision: as in `connect`, for this function.
    scratch_limit: bytes that one operation may take while it runs, beside operands and results; what needs
    more, as convolutions by copied windows do, is done in parts of its batch, one after the other.
    offload: where values go, under a memory limit, while nobody reads them: on CPUs True or "disk" (to a
    file without a name in TMPDIR, or else in /var/tmp), or a folder with a separator in it; on GPUs "host"
    (to the host's memory). It competes with making values again and turns, by predicted time. If nothing
    is said, GPUs do it where nothing else fits, CPUs never; False: never.
    tolerance: with precision="auto", products are rounded to halves (of float64 to float32, too), and
    so are sums that workers send each other where that is faster, as far as results stay within this
    relative error, 1e-3 if nothing is said; a dict names results that are to, by their key, field or
    position. What to round is measured on the operands of the first call, and looked at again on
    calls 2, 4, 8, ...

    >>> @ost.compile
    ... def step(x, rate):
    ...     return x - rate * x
    >>> step(ost.arange(3.0), 0.5)
    Array([0. , 0.5, 1. ], dtype=float64)
    >>> step.plan.peak_bytes
    120
    """
    if unknown := options.keys() - _OPTIONS:
        (near,) = difflib.get_close_matches(min(unknown), _OPTIONS, 1) or [""]
        got, needed = f"an option {min(unknown)}=", f"one of {', '.join(_OPTIONS)}"
        do = f"write {near}=" if near else ""
        raise misfit(ArgumentError, "compile", got=got, needed=needed, do=do)
    if function is None:
        return lambda f: CompiledFunction(f, **options)
    return CompiledFunction(function, **options)
