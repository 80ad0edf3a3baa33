"""From pending Terms to a Graph, and back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FrameType
from typing import Any

import numpy as np

from ostinato.errors import AssignmentError

from .apply import MOST_KNOWN, apply, constant
from .array import Array, Term, Trace, from_term, placeholder, term_of
from .build import Builder
from .exact import exact_items, holds_nothing
from .graph import Graph, Items, canonical
from .locks import cached_property
from .operand import Operand
from .refusals import end_refusals
from .registry import lookup
from .spec import Spec, bool_, int64
from .user_line import misfit, short

Ref = tuple[Term, int]
MOST_HOLDERS = 4096  # objects that are looked at for who holds an array


def array_of(term: Term, k: int) -> Array:
    """The Array of a Term's output; the one that somebody holds, if there is one."""
    x = term.held(k)
    return x if x is not None else from_term(term, k)


# By the id of parameters, which are kept so that it stays theirs: a key without their numbers,
# and these.
_plain: dict[int, tuple[Items, tuple[Any, ...], tuple[Any, ...]]] = {}


def _known_plain(term: Term) -> tuple[Items, tuple[Any, ...], tuple[Any, ...]]:
    """Note an operation's parameters, which the next iteration of a loop has, too."""
    assert term.op is not None
    params, numbers, values = dict(term.params), term.op.numbers, ()
    if numbers is not None and numbers.fits(params):
        value = params.pop(numbers.param)
        values = value if value.__class__ is tuple else (value,)
    found = term.params, exact_items(params.items()), values
    if len(_plain) >= MOST_KNOWN:
        _plain.clear()
    if holds_nothing(term.params):
        _plain[id(term.params)] = found
    return found


class Collected:
    """Pending Terms and what they stand on: placeholders, then captured Terms, with the Operands that
    they had come to. What was found once holds, whatever other threads settle meanwhile."""

    def __init__(
        self,
        roots: Sequence[Ref],
        specs: Sequence[Spec],
        captured: list[Ref],
        held: list[Operand | None],
        terms: list[Term],
        places: Mapping[Ref, int],
    ) -> None:
        self.roots = roots
        self.specs = specs
        self.captured = captured
        self.held = held
        self.terms = terms  # all that the graph was made of, leaves excluded
        self.places = places  # of its inputs
        self.numbers: list[tuple[Term, int]] = []  # among its terms' parameters, and what they
        self.values: list[Any] = []  # are: known with its form
        self.given: dict[Term, dict[int, int]] = {}  # of which these are inputs

    def with_roots(self, more: Sequence[Ref]) -> Collected:
        """Add results, which it computes on the way."""
        roots = [*self.roots, *more]
        return Collected(roots, self.specs, self.captured, self.held, self.terms, self.places)

    @cached_property
    def form(self) -> tuple[Any, ...]:
        """Make a key that is equal if graphs of equal inputs are but for their numbers, and the
        lines of their nodes: found sooner than these. Note the numbers on the way."""
        places = dict(self.places)
        count, found = len(self.specs), list[Any]()
        for term in self.terms:
            known = _plain.get(id(term.params)) or _known_plain(term)
            if known[2]:
                self.numbers += [(term, k) for k in range(len(known[2]))]
                self.values += known[2]
            found += term.op.name, known[1], term.specs, term.line  # type: ignore[union-attr]
            found += [places[ref] for ref in term.inputs]
            for k in range(len(term.specs)):
                places.setdefault((term, k), count + k)
            count += len(term.specs)
        found += [places[ref] for ref in self.roots]
        return tuple(found)

    def give(self, numbers: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """Make these of its numbers its last inputs, whose values it returns."""
        assert self.form
        made = []
        for n in numbers:
            term, k = self.numbers[n]
            dtype = int64 if term.inputs else term.specs[0].dtype
            self.given.setdefault(term, {})[k] = len(self.specs)
            self.specs = [*self.specs, Spec((), dtype)]
            made.append(np.asarray(self.values[n], dtype))
        return made

    @cached_property
    def graph(self) -> Graph:
        """In canonical order, which is that in which the Terms were found."""
        builder = Builder(self.specs)
        values: dict[int, tuple[int, ...]] = {}
        lines: dict[str, str] = {}  # as people read them

        def value(ref: Ref) -> int:
            at = self.places.get(ref)
            return values[id(ref[0])][ref[1]] if at is None else at

        for term in self.terms:
            assert term.op is not None
            line = lines.get(term.line)
            if line is None:
                line = lines[term.line] = short(term.line)
            inputs = [value(ref) for ref in term.inputs]
            by = self.given.get(term)
            if by is None:
                values[id(term)] = builder.add(term.op.name, inputs, term.params, term.specs, line)
                continue
            assert term.op.numbers is not None
            builder.line = line
            values[id(term)] = (term.op.numbers.given(builder, inputs, by, **dict(term.params)),)
        outputs = tuple([value(ref) for ref in self.roots])
        made = Graph(builder.inputs, tuple(builder.nodes), outputs)
        return canonical(made) if self.given else made


def graph_of(function: Callable[..., Sequence[Array]], ins: Sequence[Spec]) -> Graph:
    """The graph of a function of Arrays, which uses nothing else: what algorithms are made of."""
    trace = Trace("an algorithm")
    given = [placeholder(s.bare, k, trace) for k, s in enumerate(ins)]
    found = collect([term_of(y) for y in function(*given)], [s.bare for s in ins], trace)
    assert not found.captured
    return found.graph


def collect(
    roots: Sequence[Ref],
    inputs: Sequence[Spec] = (),
    trace: Trace | None = None,
    inner: bool = False,
) -> Collected:
    """The graph of some Terms.

    Its first inputs are the placeholders of `trace`. Further inputs are what was materialised, what
    was there before the trace, and, for an inner graph (of a loop), what does not depend on it, in
    the order in which the graph meets them."""
    captured: list[Ref] = []
    held: list[Operand | None] = []
    keys: dict[Ref, Any] = {}
    place: dict[Any, int] = {}
    order: list[Term] = []
    seen: set[Term] = set()
    count = len(inputs)

    def meet(ref: Ref) -> Any:
        """Identify an input of the graph: a value, or what has none yet; None for a node of it."""
        term, k = ref
        operand = term.operands[k] if term.operands is not None else None
        key: Any = None
        if operand is not None:
            key = id(operand)
        elif term.op is None:
            key = id(term), k
        elif trace is not None and term.op.name != "constant":
            outside = trace not in term.traces if inner else term.serial < trace.serial
            key = (id(term), k) if outside else None
        keys[ref] = key
        if key is not None and key not in place:
            if trace is not None and trace in term.traces:
                place[key] = term.number
            else:
                place[key] = count + len(captured)
                captured.append(ref)
                held.append(operand)
        return key

    for root in roots:
        key = keys[root] if root in keys else meet(root)
        stack = [root[0]] if key is None else []
        while stack:
            term = stack[-1]
            if term in seen:
                stack.pop()
                continue
            before = len(stack)
            for ref in reversed(term.inputs):
                key = keys[ref] if ref in keys else meet(ref)
                if key is None and ref[0] not in seen:
                    stack.append(ref[0])
            if len(stack) == before:
                stack.pop()
                seen.add(term)
                order.append(term)

    specs = [
        *inputs,
        *(
            o.spec if o is not None else t.specs[k]
            for (t, k), o in zip(captured, held, strict=True)
        ),
    ]
    places = {ref: place[key] for ref, key in keys.items() if key is not None}
    return Collected(roots, specs, captured, held, order, places)


def inline(graph: Graph, args: Sequence[Array]) -> list[Array]:
    """The graph's outputs as Terms over other inputs."""
    values: list[Ref] = [term_of(x) for x in args]
    kept: list[Array] = list(args)
    for node in graph.nodes:
        inputs = tuple(values[v] for v in node.inputs)
        traces = frozenset[Trace]().union(*(t.traces for t, _ in inputs))
        specs = tuple(s.bare for s in node.specs)
        term = Term(lookup(node.op), inputs, node.params, specs, node.line, traces)
        values.extend((term, k) for k in range(len(specs)))
    assert len(kept) == len(graph.inputs)
    return [array_of(*values[v]) for v in graph.outputs]


def roots_with_acts(roots: Sequence[Ref], trace: Trace) -> Sequence[Ref]:
    """The results of a trace, of which the first is there when all has happened that was to happen; there
    is one at least, if anything was."""
    if not trace.acts:
        return roots
    acts, trace.acts = trace.acts, []
    first = array_of(*roots[0]) if roots else constant(False)
    return [term_of(apply("barrier", first, *acts, outputs=1)), *roots[1:]]


def acts(graph: Graph) -> bool:
    """Whether something happens when it runs, beside its results."""
    return any(n.op == "print" or any(acts(body) for _, body in n.subgraphs()) for n in graph.nodes)


def quiet(graph: Graph) -> Graph:
    """The graph without what happens, to compute its results once more."""
    if not acts(graph):
        return graph
    builder = Builder(graph.inputs)
    values = list(range(len(graph.inputs)))
    for node in graph.nodes:
        if node.op == "print":
            values.append(builder.call("constant", value=False, dtype=bool_))
            continue
        params = {k: quiet(v) if isinstance(v, Graph) else v for k, v in node.params}
        inputs = [values[v] for v in node.inputs]
        values.extend(builder.add(node.op, inputs, params, node.specs, node.line))
    return builder.graph([values[v] for v in graph.outputs])


def subgraph(
    function: Callable[..., Sequence[Array]], specs: Sequence[Spec], name: str, hoist: bool = True
) -> tuple[Graph, list[Array]]:
    """The graph of a function of Arrays, and the outer Arrays that it uses; those are its last
    inputs. `hoist`: what does not depend on the arguments is made outside."""
    trace = Trace(name)
    args = [placeholder(s.bare, k, trace) for k, s in enumerate(specs)]
    with trace:
        results = function(*args)
    end_refusals(trace)
    refs = roots_with_acts([term_of(r) for r in results], trace)
    found = collect(refs, [s.bare for s in specs], trace, inner=hoist)
    del args, results
    check_ended(trace)
    graph = found.graph
    bare = Graph(tuple(s.bare for s in graph.inputs), graph.nodes, graph.outputs)
    return bare, [array_of(t, k) for t, k in found.captured]


def check_ended(trace: Trace) -> None:
    """Refuse a function that keeps arrays of its trace, which have no values and never will. Of a trace
    within another that is found out when the outermost ends."""
    if trace.outer is not None:
        trace.outer.within += [trace, *trace.within]
        return
    for ended in [*trace.within, trace]:
        _check_ended(ended)


def _check_ended(trace: Trace) -> None:
    for generation in range(3):  # what is garbage, in circles, is no matter
        if not _living(trace):
            return
        gc.collect(generation)
    kept = _living(trace)
    while kept and not _is_reachable(kept[-1], kept):
        kept.pop()
    if not kept:
        return
    x = kept[-1]
    term = x._term
    got, needed, do = (
        f"{x.spec.bare}{f' of {short(term.line)}' if term and term.line else ''}, which is kept in "
        f"{_holder(x, kept)} when its tracing has ended",
        "a function that returns what it makes",
        "return it, and keep what the call gives",
    )
    raise misfit(AssignmentError, trace.name, got=got, needed=needed, do=do)


def _living(trace: Trace) -> list[Array]:
    """The Arrays of a trace that somebody has."""
    found = [x for x in [ref() for ref in trace.made] if x is not None and x._operand is None]
    return [x for x in found if x._term is not None and trace in x._term.traces]


def _is_reachable(x: Any, beside: list[Array]) -> bool:
    """Whether somebody has it but frames that have ended, which errors that were caught hold on to."""
    running, frame = set[int](), sys._getframe().f_back
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back
    stack = [x]
    seen = {id(x), id(beside), id(stack), id(sys._getframe())}
    while stack and len(seen) < MOST_HOLDERS:
        count = 0
        for holder in gc.get_referrers(stack.pop()):
            if isinstance(holder, FrameType) and id(holder) in running:
                return True
            count += id(holder) not in (id(beside), id(stack), id(sys._getframe()))
            if id(holder) not in seen and not isinstance(holder, (FrameType, Term)):
                seen.add(id(holder))
                stack.append(holder)
        if not count:  # a running frame, or code that is not Python's
            return True
    return bool(stack)


def _holder(x: Array, beside: list[Array]) -> str:
    """Who has an Array, as a user would say it."""
    for holder in gc.get_referrers(x):
        if holder is beside or isinstance(holder, (FrameType, Term)):
            continue
        if isinstance(holder, CellType):
            return "a variable of a function around it"
        if not isinstance(holder, dict):
            return f"a {type(holder).__name__}"
        name = [*holder][[*map(id, holder.values())].index(id(x))]
        for owner in gc.get_referrers(holder):
            if getattr(owner, "__dict__", None) is holder:
                return f"{type(owner).__name__}.{name}"
        return f"a dict, as {name!r}"
    return "an object"
