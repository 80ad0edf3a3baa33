"""A model's layers, shapes, parameters and work, from a trace: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.array.casts import as_dtype
from ostinato.ops.core import array
from ostinato.ops.core.array import Array, Trace, placeholder, term_of
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import lookup
from ostinato.ops.core.spec import Spec, float32
from ostinato.ops.core.tree import flatten, unflatten
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from .layer import Layer, Pass, _run, partition

__all__ = ["Summary", "summary"]


@dataclass(frozen=True)
class LayerRow:
    """One layer as a summary shows it; counts are without those of the layers within it."""

    name: str
    kind: str
    depth: int
    shapes: tuple[tuple[int, ...], ...]  # of its results
    parameters: int
    multiply_adds: int
    bytes: int  # of its results


@dataclass(frozen=True)
class Summary:
    """A model's layers in the order in which they are called, and what all come to.

    rows: a row for each call of a layer. parameters: elements that gradients are for. statistics:
    others. multiply_adds: of products, of one call. parameter_bytes and result_bytes: of all parameters,
    and of what the innermost layers make.

    >>> ost.nn.summary(ost.nn.Linear(4, 2), (3, 4)).multiply_adds
    24
    """

    rows: tuple[LayerRow, ...]
    parameters: int
    statistics: int
    multiply_adds: int
    parameter_bytes: int
    result_bytes: int

    def __str__(self) -> str:
        head = ("layer", "results", "parameters", "multiply-adds", "bytes")
        table = [head]
        for r in self.rows:
            made = " ".join("x".join(map(str, s)) for s in r.shapes)
            name = "  " * r.depth + (f"{r.name} ({r.kind})" if r.name else r.kind)
            counts = [f"{n:,}" if n else "" for n in (r.parameters, r.multiply_adds, r.bytes)]
            table.append((name, made, *counts))  # type: ignore[arg-type]
        totals = (self.parameters, self.multiply_adds, self.result_bytes)
        table.append(("in all", "", *[f"{n:,}" for n in totals]))  # type: ignore[arg-type]
        wide = [max(len(row[k]) for row in table) for k in range(5)]
        lines = []
        for row in table:
            cells = [c.ljust(wide[k]) if k < 2 else c.rjust(wide[k]) for k, c in enumerate(row)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    __repr__ = __str__


def summary(model: Any, *inputs: Any, train: bool = False) -> Summary:
    """Tell what a call of a model makes, layer by layer, without computing anything: the model may have no
    weights yet. inputs: a shape (of float32), an array, or anything with `shape` and `dtype`, for each.

    >>> ost.nn.summary(ost.nn.Sequential(ost.nn.Linear(4, 8), ost.nn.relu, ost.nn.Linear(8, 2)), (3, 4))
    layer                 results  parameters  multiply-adds  bytes
    Sequential            3x2
      layers[0] (Linear)  3x8              40             96     96
      layers[2] (Linear)  3x2              18             48     24
    in all                                 58            144    120
    """
    if not isinstance(model, Layer):
        raise misfit(ArgumentError, "summary", got=type(model).__name__, needed="a layer")
    trace = Trace("a summary")
    leaves, structure = flatten(model)
    with trace:
        like = unflatten(structure, [_placeholder(x, k, trace) for k, x in enumerate(leaves)])
        given = [_placeholder(x, len(leaves) + k, trace) for k, x in enumerate(inputs)]
        calls = _Calls(like)
        made = Pass(train, 0, updated={}, trace=trace, home=trace, watch=calls)
        result = _run(made, like, given, {})
    work = _work([x for x in flatten(result)[0] if isinstance(x, Array)], calls)
    learnt, kept = (
        [x for x in flatten(tree)[0] if hasattr(x, "shape")] for tree in partition(like)
    )
    rows = [
        LayerRow(c.name, c.kind, c.depth, c.shapes, c.parameters, n, 0 if c.has_inner else c.bytes)
        for c, n in zip(calls.found, work, strict=True)
    ]
    return Summary(
        tuple(rows),
        sum(x.size for x in learnt),
        sum(x.size for x in kept),
        sum(work),
        sum(x.spec.nbytes for x in learnt),
        sum(r.bytes for r in rows),
    )


def _placeholder(x: Any, number: int, trace: Trace) -> Array:
    shape = x if isinstance(x, (tuple, list)) else getattr(x, "shape", None)
    if shape is None or not all(isinstance(n, int) for n in shape):
        got, do = f"{x!r:.60}", "give ost.spec(shape, dtype) for other dtypes than float32"
        raise misfit(ArgumentError, "summary", got=got, needed="a shape, or an array", do=do)
    dtype = getattr(x, "dtype", None)
    dtype = float32 if dtype is None else as_dtype(dtype)
    return placeholder(Spec(tuple(shape), dtype), number, trace)


@dataclass
class _Call:
    name: str
    kind: str
    depth: int
    parameters: int
    begin: int
    end: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    bytes: int = 0
    has_inner: bool = False


class _Calls:
    """The calls of layers in a pass, and which operations each made."""

    def __init__(self, model: Layer) -> None:
        self.names: dict[int, str] = {}
        self.found: list[_Call] = []
        self.open: list[_Call] = []
        self.seen: set[int] = set()
        _name_layers(model, "", self.names)

    def __call__(self, layer: Layer, ends: bool, result: Any) -> None:
        serial = next(array._serial)
        if not ends:
            if self.open:
                self.open[-1].has_inner = True
            fresh = [x for x in _own_parameters(layer) if id(x) not in self.seen]
            self.seen.update(map(id, fresh))
            name = self.names.get(id(layer), "")
            made = _Call(
                name, type(layer).__name__, len(self.open), sum(x.size for x in fresh), serial
            )
            self.found.append(made)
            self.open.append(made)
            return
        call = self.open.pop()
        arrays = [x for x in flatten(result)[0] if isinstance(x, Array)]
        call.end = serial
        call.shapes = tuple(x.shape for x in arrays)
        call.bytes = sum(x.spec.nbytes for x in arrays)


def _name_layers(x: Any, name: str, found: dict[int, str]) -> None:
    if isinstance(x, Layer):
        found.setdefault(id(x), name.lstrip("."))
        for key, value in vars(x).items():
            _name_layers(value, f"{name}.{key}", found)
    elif isinstance(x, dict):
        for key, value in x.items():
            _name_layers(value, f"{name}[{key!r}]", found)
    elif isinstance(x, (tuple, list)):
        for k, value in enumerate(x):
            _name_layers(value, f"{name}[{k}]", found)


def _own_parameters(layer: Layer) -> list[Any]:
    """Arrays that are this layer's, and no inner layer's."""
    inner = {id(x) for v in vars(layer).values() for one in _inner(v) for x in flatten(one)[0]}
    learnt = flatten(partition(layer)[0])[0]
    return [x for x in learnt if id(x) not in inner]


def _inner(x: Any) -> Sequence[Layer]:
    if isinstance(x, Layer):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [layer for v in items for layer in _inner(v)]


def _work(results: Sequence[Array], calls: _Calls) -> list[int]:
    """Multiply-adds that led to the results, for each call: those of the innermost one."""
    counts = [0] * len(calls.found)
    seen = set[int]()
    stack = [term_of(x)[0] for x in results]
    while stack:
        term = stack.pop()
        if id(term) in seen or term.op is None:
            continue
        seen.add(id(term))
        stack += [t for t, _ in term.inputs]
        ins = [t.specs[k] for t, k in term.inputs]
        count = _multiply_adds(term.op.name, ins, term.specs, dict(term.params))
        inside = [k for k, c in enumerate(calls.found) if c.begin < term.serial < c.end]
        if count and inside:
            counts[max(inside, key=lambda k: calls.found[k].begin)] += count
    return counts


def _multiply_adds(name: str, ins: Sequence[Spec], outs: Sequence[Spec], p: dict[str, Any]) -> int:
    """Count those of products, in loops as often as they run."""
    known = lookup(name)
    if known.product is not None:
        return round(known.cost(tuple(ins), tuple(outs), p)[0] / 2)
    bodies = [value for value in p.values() if isinstance(value, Graph)]
    return p.get("trips", 1) * sum(
        _multiply_adds(n.op, [graph.specs[v] for v in n.inputs], n.specs, n.kw)
        for graph in bodies
        for n in graph.nodes
    )
