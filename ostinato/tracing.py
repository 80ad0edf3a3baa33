"""Tracing a call of a compiled function: what it does, and what it read of what is around it."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ostinato.errors import TracedValueError
from ostinato.ops.core import array
from ostinato.ops.core.array import Array, Operand, Term, placeholder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec, uint64
from ostinato.ops.core.trace import Ref, array_of, collect
from ostinato.ops.core.tree import Structure, flatten, objects_beside, unflatten
from ostinato.ops.elementwise import astype
from ostinato.ops.seeds import mix, seeds

from .arguments import NUMBERS, Call, Described, keywords, positional
from .guards import Guards, is_alike
from .reach import Reach, reaching
from .reading import CompileTrace, NeedsValue, _Reader
from .sessions import Session

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

    def differs(self, other: Traced) -> str:
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


def traced(function: Traceable, call: Call) -> tuple[Traced, Guards]:
    """What the function does, and what it read of what is around it; traced again while it needs
    the value of another number, or another thread changed what it read."""
    names = call.names
    for attempt in itertools.count():
        inputs = call.inputs
        objects = [(k, names[k], x) for k, x in enumerate(call.leaves) if k not in inputs]
        trace = CompileTrace(function.name)
        reach = Reach(function.function, function.name, objects, objects_beside(call.structure))
        try:
            found = _run(function, call, inputs, trace, reach)
        except NeedsValue as need:
            if need.trace is not trace:
                raise
            function.needed.update((call.where, inputs[n]) for n in need.numbers)
            continue
        guards = reach.finish()
        if attempt > AGAIN or not reach.changed():
            break
    code = getattr(inspect.unwrap(function.function), "__code__", None)
    reach.tell(function.name, code, function.told)
    return found, Guards(guards)


def _run(
    function: Traceable, call: Call, inputs: list[int], trace: CompileTrace, reach: Reach
) -> Traced:
    """Run the function once, with placeholders for these leaves."""
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
    seed = _Draws(len(inputs), trace, Spec((), uint64, whole))
    results = _results(function, call, args, trace, reach, seed)
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
    assigned = []
    for k, x, term in given:
        if x._term is not term:
            assigned.append((k, len(refs)))
            refs.append(array.term_of(x))
    if seed.base is not None:
        specs.append(seed.spec)
    found = collect(refs, specs, trace)
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
        graph = _seed_last(graph, len(inputs))
    draws = seed.base is not None
    return Traced(graph, inputs, captured, draws, tuple(outputs), out_structure, tuple(assigned))


def _results(
    function: Traceable,
    call: Call,
    args: list[Any],
    trace: CompileTrace,
    reach: Reach,
    seed: _Draws,
) -> Any:
    """What the function returns for placeholders."""
    outer_draw = seeds.draw
    seeds.draw = seed.draw
    try:
        given = dict(zip(function.parameters, unflatten(call.structure, args), strict=True))
        args.clear()  # else somebody would still have what is given away
        positions = positional(function.signature, given)
        bound = function.signature.bind(*positions, **keywords(function.signature, given))
        del given, positions
        with trace, reaching(reach, sys._getframe()):
            results = function.function(*bound.args, **bound.kwargs)
    except Exception:
        if isinstance(trace.refused, NeedsValue):  # which the function swallowed
            raise trace.refused from None
        raise
    finally:
        seeds.draw = outer_draw
    if trace.refused is not None:  # it went on with what it does if there is no value
        raise trace.refused
    return results


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
