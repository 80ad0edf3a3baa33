"""Tracing a call of a compiled function: what it does, and what it read of what is around it."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ostinato.errors import TracedValueError
from ostinato.ops.array.casts import astype
from ostinato.ops.core import array
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, Term, placeholder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.refusals import end_refusals
from ostinato.ops.core.spec import Spec, uint64
from ostinato.ops.core.trace import Ref, array_of, check_ended, collect, roots_with_acts
from ostinato.ops.core.tree import Structure, constructor, flatten, objects_beside, unflatten
from ostinato.ops.random.seeds import mix, seeds

from .arguments import NUMBERS, Call, Described, keywords, positional
from .call_events import reaching
from .guards import UNSET, Guards, is_alike
from .reach import Reach
from .reading import CompileTrace, NeedsValue, _Reader, placeholders
from .sessions import Session
from .side_effects import Numbers, Place, PlaceId, Snapshot, State, Store, Write, snapshot_arguments
from .unrolled import MIN_UNROLLED, tell_of_loops

AGAIN = 8  # traces at the most while another thread changes what they read


class Traceable(Described, Protocol):
    function: Callable[..., Any]
    signature: inspect.Signature
    told: set[tuple[str, str]]  # what cannot be watched


@dataclass(slots=True)
class Traced:
    """What a trace gives."""

    graph: Graph
    inputs: list[int]
    captured: tuple[Operand, ...]
    draws: bool
    outputs: tuple[tuple[str, Any], ...]
    structure: Structure
    assigned: tuple[tuple[int, int], ...]  # arguments, and which output of the graph each becomes
    state: State  # whose inputs come behind those of the arguments
    stores: tuple[Store, ...]
    numbers: Numbers | None  # what stores take of numbers alone

    def differs(self, other: Traced) -> str:
        """Describe how another trace of the same call differs; nothing if all is alike."""
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


def traced(function: Traceable, call: Call, known: Sequence[Place] = ()) -> tuple[Traced, Guards]:
    """Trace a function: what it does, and what it read of what is around it; traced again while it
    needs the value of another number, writes to a place that it may read, or another thread changed
    what it read. The places in `known` are tried as inputs."""
    names = call.names
    places = {p.id: p for p in known}
    by_value = set[tuple[PlaceId, int]]()
    never = set[PlaceId]()
    for attempt in itertools.count():
        inputs = call.inputs
        objects = [(k, names[k], x) for k, x in enumerate(call.leaves) if k not in inputs]
        trace = CompileTrace(function.name)
        state = State(places.values(), by_value, call.leaves, call.session)
        try:
            found, reach, torn = _run(function, call, inputs, trace, state, objects)
        except NeedsValue as need:
            if need.trace is not trace:
                raise
            for n in need.numbers:
                if n < len(inputs):
                    function.needed.add((call.where, inputs[n]))
                else:
                    by_value.add(state.numbers[n - len(inputs)])
            continue
        guards = reach.finish()
        check_ended(trace)
        never |= torn
        new = {
            s.write.place.id: s.write.place
            for s in found.stores
            if s.write.how == "set" and reach.may_read(s.write.place, call.leaves)
        }
        if attempt <= AGAIN and (torn or new.keys() - never):
            places = {k: p for k, p in {**places, **new}.items() if k not in never}
            continue
        if attempt > AGAIN or not reach.changed():
            break
    code = getattr(inspect.unwrap(function.function), "__code__", None)
    reach.tell(function.name, code, function.told)
    return found, Guards(guards)


def _run(
    function: Traceable,
    call: Call,
    inputs: list[int],
    trace: CompileTrace,
    state: State,
    objects: Sequence[tuple[int, str, Any]],
) -> tuple[Traced, Reach, set[PlaceId]]:
    """Run the function once, with placeholders for these leaves and for what it reads and writes."""
    specs: list[Spec] = []
    args = list(call.leaves)
    whole = Layout.whole(call.session.target.mesh)
    for n, k in enumerate(inputs):
        x = args[k]
        if isinstance(x, (Operand, np.ndarray)):
            specs.append(x.spec if isinstance(x, Operand) else Spec(x.shape, x.dtype, whole))
            args[k] = placeholder(specs[-1], n, trace)
        else:
            specs.append(Spec((), NUMBERS[type(x)], whole))
            args[k] = placeholder(specs[-1], n, trace, type(x))
            trace.lifted[n] = x
    given = [(k, args[k], args[k]._term) for k in inputs]
    specs += state.specs(whole)
    seed = _Draws(len(specs), trace, Spec((), uint64, whole))
    made = _Made(trace, specs)
    is_traced = functools.partial(_holds, trace)
    reach: Reach | None = None
    try:
        state.install(trace, len(inputs), specs[len(inputs) :])
        reach = Reach(
            function.function, function.name, objects, objects_beside(call.structure), state
        )
        reach.add_classes(call.structure)
        trace.wrote = functools.partial(reach.wrote, is_traced)
        results, arguments = _results(function, call, args, trace, reach, seed)
        outs, out_structure = flatten(results)
        outputs = tuple([made.result(x) for x in outs])
        assigned = [(k, made.ref(x)) for k, x, term in given if x._term is not term]
        arrays = [
            Write("set", reach.place_of(x), became)
            for x, became in trace.take_back()
            if not state.is_input(x, became._term)
        ]
        writes, torn = reach.end(is_traced)
        writes += arrays + arguments.writes(lambda *_: True, {})
    finally:
        trace.take_back()
        trace.wrote = dict  # else the two would be a circle
        if reach is None:
            state.end()
        else:
            reach.end(is_traced)
    stores = tuple([made.store(w, reach) for w in writes])
    numbers = Numbers(made.graph_of(made.numbers)) if made.numbers else None
    del results, arguments, outs, given, arrays, writes
    if seed.base is not None:
        specs.append(seed.spec)
    found = collect(roots_with_acts(made.refs, trace), specs, trace)
    if len(found.terms) >= MIN_UNROLLED:
        tell_of_loops(function.name, found.terms)
    captured = tuple(
        _captured(t, k, held, call.session, trace)
        for (t, k), held in zip(found.captured, found.held, strict=True)
    )
    for operand in captured:
        operand.shared = True
    graph = type(found.graph)(
        (*specs, *(o.spec for o in captured)), found.graph.nodes, found.graph.outputs
    )
    if seed.base is not None:  # the seed comes last
        graph = _seed_last(graph, len(inputs) + len(state.given))
    draws = seed.base is not None
    traced = Traced(
        graph,
        inputs,
        captured,
        draws,
        outputs,
        out_structure,
        tuple(assigned),
        state,
        stores,
        numbers,
    )
    return traced, reach, torn


class _Made:
    """What becomes of the values that a trace leaves: outputs of the graph, numbers, or what they are."""

    def __init__(self, trace: CompileTrace, specs: Sequence[Spec]) -> None:
        self.trace = trace
        self.specs = tuple(specs)
        self.refs: list[Ref] = []
        self.numbers: list[Ref] = []

    def ref(self, x: Array) -> int:
        self.refs.append(array.term_of(x))
        return len(self.refs) - 1

    def result(self, x: Any) -> tuple[str, Any]:
        """A leaf of what the function returns."""
        if isinstance(x, (np.ndarray, np.generic)):
            x = as_array(x)
        return ("ref", self.ref(x)) if isinstance(x, Array) else ("is", x)

    def store(self, write: Write, reach: Reach) -> Store:
        """A write, and of what its value is made."""
        if write.after is UNSET:
            return Store(write, None, ())
        if reach.knows(write.after):  # it has to be this object
            return Store(write, constructor(flatten(0)[1]), (self._kept(write.after),))
        leaves, structure = flatten(write.after)
        values = tuple([self._kept(x) for x in leaves])
        return Store(replace(write, after=None), constructor(structure), values)

    def _kept(self, x: Any) -> tuple[str, Any]:
        if not isinstance(x, Array) or x._began < self.trace.began:
            return "is", x
        term, k = array.term_of(x)
        if (x.weak is not None or x.dtype == bool) and not x.shape and term.is_traced:
            numbers = {t.number for t in placeholders(term) if self.trace in t.traces}
            if numbers <= self.trace.lifted.keys():
                if not Numbers.can(self.graph_of([(term, k)])):
                    return "item", self._place(x)
                self.numbers.append((term, k))
                return "number", len(self.numbers) - 1
        return "ref", self._place(x)

    def _place(self, x: Array) -> int:
        """Which output it is, which the function may return, too."""
        ref = array.term_of(x)
        return self.refs.index(ref) if ref in self.refs else self.ref(x)

    def graph_of(self, refs: Sequence[Ref]) -> Graph:
        return collect(refs, self.specs, self.trace).graph


def _holds(trace: CompileTrace, value: Any) -> bool:
    """Whether a value has arrays of a trace among its leaves."""
    return any(
        isinstance(x, Array) and x._term is not None and trace in x._term.traces
        for x in flatten(value)[0]
    )


def _results(
    function: Traceable,
    call: Call,
    args: list[Any],
    trace: CompileTrace,
    reach: Reach,
    seed: _Draws,
) -> tuple[Any, Snapshot]:
    """Results of the function for placeholders, and the containers that it was given, as they were."""
    outer_draw = seeds.draw
    seeds.draw = seed.draw
    try:
        given = dict(zip(function.parameters, unflatten(call.structure, args), strict=True))
        args.clear()  # else somebody would still have what is given away
        arguments = snapshot_arguments(given, call.structure)
        positions = positional(function.signature, given)
        bound = function.signature.bind(*positions, **keywords(function.signature, given))
        del given, positions
        with trace, reaching(reach, sys._getframe()):
            results = function.function(*bound.args, **bound.kwargs)
    except Exception:
        for error in trace.refused:
            if isinstance(error, NeedsValue):  # which the function swallowed
                raise error from None
        raise
    finally:
        seeds.draw = outer_draw
    end_refusals(trace)
    return results, arguments


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
    from ostinato.ops.flow.control import relabel

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
            got = f"an array {term.specs[k].bare} of the tracing of {next(iter(term.traces)).name}"
            needed = "values that the function returned"
            do = "return the array from the function instead of storing it elsewhere"
            raise TracedValueError.because(trace.name, got=got, needed=needed, do=do)
        x = array_of(term, k)
        _Reader().settle([x])
        return session.hold_array(x)
    return session.hold_leaf(term, k, held)
