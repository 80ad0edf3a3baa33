"""Sums of many slices of one array, each times a number of its own, become sums over windows.

before                                                 after
%2 = slice(%1; starts=(0,), sizes=(1,)) : float32[1]   %2 = slide(%0; axes=(0,), sizes=(9,), ...)
%3 = squeeze(%2; axes=(0,)) : float32[]                %3 = einsum(%2, %1; text='ab,b->a') : float32[n]
%4 = slice(%0; starts=(0,), sizes=(n,)) : float32[n]   return %3
%5 = multiply(%3, %4) : float32[n]
...  the same from 1, 2, ... on, and all are added
return %40

A kernel of many slices reads each from memory and has more addresses than a core has registers; one of
windows keeps what it reads, and results. Slices may start apart along several axes, as those of a filter
for pictures do, as long as they are all that a window has. What is multiplied with one and the same number
is left alone, and so are few slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node, canonical
from ostinato.ops.core.index import LETTERS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, float32, float64
from ostinato.planner.plan import Target
from ostinato.planner.rewrite import replace

MIN_TAPS = {False: 9, True: 17}  # by whether all are numbers, which kernels have in their text
MIN_WORK = 1 << 18  # multiplications
ADDED = {"add": 1, "subtract": -1}


class Tap(NamedTuple):
    """A slice that is multiplied and added."""

    term: int  # the value that is added
    starts: Shape
    weight: int  # a value; -1 for one
    sign: int


class Filter(NamedTuple):
    """Slices that are all that a window has, in the order in which it goes through them."""

    base: int
    sizes: Shape
    steps: Shape
    axes: Shape  # along which they start apart,
    counts: Shape  # how many there,
    dilations: Shape  # and by how much
    taps: tuple[Tap, ...]


def slide_filters(graph: Graph, target: Target) -> Graph:
    """The pass; nothing under `any-workers`, where the order of what is added must not change."""
    if target.numerics == "any-workers":
        return graph
    found = dict[int, tuple[list[tuple[int, int]], list[Filter]]]()
    for k, node in enumerate(graph.nodes):
        if node.op in ADDED and node.specs[0].dtype in (float32, float64) and _ends(graph, k):
            terms = _terms(graph, k)
            if filters := _filters(graph, terms, node.specs[0].shape):
                found[k] = (terms, filters)

    def make(builder: Builder, k: int, values: Sequence[int]) -> Sequence[int]:
        terms, filters = found[k]
        line, inside = graph.nodes[k].line, {tap.term for f in filters for tap in f.taps}
        parts = [(values[v], sign) for v, sign in terms if v not in inside]
        parts += [(_windowed(builder, graph, f, values, line), 1) for f in filters]
        parts.sort(key=lambda part: -part[1])  # one that is added comes first, if any is
        (total, sign), *others = parts
        if sign < 0:
            total = builder.call("negative", total, line=line)
        for v, sign in others:
            total = builder.call("add" if sign > 0 else "subtract", total, v, line=line)
        return (total,)

    changed = replace(graph, found, make, lambda g: slide_filters(g, target))
    return graph if changed is graph else canonical(changed)


def _ends(graph: Graph, k: int) -> bool:
    """Whether an addition is the last of a sum."""
    (v,) = graph.outs(k)
    return not (_is_inner(graph, v) and graph.nodes[graph.uses[v][0]].op in ADDED
                and graph.nodes[graph.uses[v][0]].specs == graph.nodes[k].specs)  # fmt: skip


def _is_inner(graph: Graph, v: int) -> bool:
    """Whether one operation alone reads a value."""
    return len(graph.uses[v]) == 1 and v not in graph.outputs


def _terms(graph: Graph, k: int) -> list[tuple[int, int]]:
    """List terms from left to right: with 1 if they are added, with -1 if they are subtracted."""
    found, left = list[tuple[int, int]](), [(graph.outs(k)[0], 1)]
    while left:
        v, sign = left.pop()
        j = graph.producers[v]
        node = graph.nodes[j] if j >= 0 else None
        inner = node is not None and (j == k or _is_inner(graph, v))
        if node is None or not inner or node.specs != graph.nodes[k].specs:
            found.append((v, sign))
        elif node.op in ADDED:
            a, b = node.inputs
            left += [(b, sign * ADDED[node.op]), (a, sign)]
        elif node.op == "negative":
            left.append((node.inputs[0], -sign))
        else:
            found.append((v, sign))
    return found


def _filters(graph: Graph, terms: Sequence[tuple[int, int]], shape: Shape) -> list[Filter]:
    groups = dict[tuple[int, Shape, Shape], list[Tap]]()
    for v, sign in terms if len(terms) >= min(MIN_TAPS.values()) else ():
        weight, slice_of = _product(graph, v)
        if slice_of is None or slice_of.specs[0].shape != shape:
            continue
        kw = slice_of.kw
        key = (slice_of.inputs[0], kw["sizes"], kw["steps"])
        groups.setdefault(key, []).append(Tap(v, kw["starts"], weight, sign))
    found = [_filter(*key, taps) for key, taps in groups.items() if _pays(graph, taps, shape)]
    return [f for f in found if f is not None]


def _product(graph: Graph, v: int) -> tuple[int, Node | None]:
    """Find the number (-1 for one) and the slice of which a value is the product."""
    node = _maker(graph, v)
    if node is None or node.op == "slice":
        return -1, node
    if node.op != "multiply" or not _is_inner(graph, v):
        return -1, None
    for weight, x in (node.inputs, node.inputs[::-1]):
        made = _maker(graph, x)
        if made is not None and made.op == "slice" and graph.specs[weight].ndim == 0:
            return weight, made
    return -1, None


def _maker(graph: Graph, v: int) -> Node | None:
    k = graph.producers[v]
    return graph.nodes[k] if k >= 0 else None


def _pays(graph: Graph, taps: Sequence[Tap], shape: Shape) -> bool:
    if len({(tap.weight, tap.sign) for tap in taps}) < 2 or len(taps) * math.prod(shape) < MIN_WORK:
        return False
    known = all(_number(graph, tap.weight) is not None for tap in taps)
    return len(taps) >= MIN_TAPS[known]


def _number(graph: Graph, weight: int) -> Any:
    node = _maker(graph, weight) if weight >= 0 else None
    if node is None:
        return 1.0 if weight < 0 else None
    return node.kw["value"] if node.op == "constant" else None


def _filter(base: int, sizes: Shape, steps: Shape, taps: Sequence[Tap]) -> Filter | None:
    """Slices as windows, if they are all that a window has."""
    places = [sorted({*own}) for own in zip(*(tap.starts for tap in taps), strict=True)]
    axes = [d for d, own in enumerate(places) if len(own) > 1]
    dilations = [places[d][1] - places[d][0] for d in axes]
    regular = all(
        own == [*range(own[0], own[-1] + 1, step)]
        for own, step in zip((places[d] for d in axes), dilations, strict=True)
    )
    by_place = {tap.starts: tap for tap in reversed(taps)}  # others that start there stay terms
    whole = [*itertools.product(*places)]
    if not regular or min(steps) < 1 or len(by_place) < len(whole):
        return None
    counts = tuple([len(places[d]) for d in axes])
    return Filter(base, sizes, steps, tuple(axes), counts, tuple(dilations),
                  tuple([by_place[p] for p in whole]))  # fmt: skip


# -- what becomes of them --------------------------------------------------------------------
def _windowed(builder: Builder, graph: Graph, f: Filter, values: Sequence[int], line: str) -> int:
    """The sum over windows."""
    parts = [*zip(f.taps[0].starts, f.sizes, f.steps, strict=True)]
    for d, count, dilation in zip(f.axes, f.counts, f.dilations, strict=True):
        first, size, step = parts[d]
        parts[d] = (first, step * (size - 1) + dilation * (count - 1) + 1, 1)
    x = Expression(builder, values[f.base], line)
    if parts != [(0, n, 1) for n in x.shape]:
        x = x.slice(parts)
    windows = x.call(
        "slide",
        axes=f.axes,
        sizes=f.counts,
        steps=tuple([f.steps[d] for d in f.axes]),
        dilations=f.dilations,
        beside=(-1,) * len(f.axes),
    )
    own, inside = LETTERS[: len(f.sizes)], LETTERS[len(f.sizes) : len(windows.shape)]
    weights, labels = _weights(builder, graph, f, values, line)
    text = f"{own}{inside},{''.join(inside[n] for n in labels)}->{own}"
    return windows.call("einsum", weights, text=text).value


def _weights(
    builder: Builder, graph: Graph, f: Filter, values: Sequence[int], line: str
) -> tuple[Expression, Sequence[int]]:
    """All of them in one array, and along which of the windows' axes its axes run."""
    if (found := _box(graph, f)) is not None:
        source, parts, labels = found
        x = Expression(builder, values[source], line)
        x = x if parts == [(0, n, 1) for n in x.shape] else x.slice(parts)
        gone = tuple([d for d, n in enumerate(labels) if n < 0])
        x = x.call("squeeze", axes=gone) if gone else x
        return x, [n for n in labels if n >= 0]
    dtype, each = graph.specs[f.base].dtype, list[int]()
    for tap in f.taps:
        number = _number(graph, tap.weight)
        if number is not None:
            params = {"shape": (1,), "value": tap.sign * number, "dtype": dtype}
            each.append(builder.call("full", line=line, **params))
            continue
        x = Expression(builder, values[tap.weight], line).reshape(1)
        each.append(x.value if tap.sign > 0 else x.call("negative").value)
    joined = Expression(builder, builder.call("concat", *each, line=line, axis=0), line)
    return joined.reshape(*f.counts), range(len(f.counts))


def _box(graph: Graph, f: Filter) -> tuple[int, list[tuple[int, int, int]], list[int]] | None:
    """Find the array of which all weights are elements in the order of windows, the slice that has these, and
    the windows' axis along each of its axes, or -1."""
    found = [_element(graph, tap.weight) for tap in f.taps if tap.sign > 0]
    (source, first), *_ = found
    if len(found) < len(f.taps) or source < 0 or any(v != source for v, _ in found):
        return None
    parts, labels = [(p, 1, 1) for p in first], [-1] * len(first)
    reach = 1  # from one tap to the next along an axis
    for n in reversed(range(len(f.counts))):
        moved = [b - a for a, b in zip(first, found[reach][1], strict=True)]
        along = [d for d, step in enumerate(moved) if step]
        if len(along) != 1 or labels[along[0]] >= 0:
            return None
        (d,) = along
        parts[d], labels[d] = (first[d], f.counts[n], moved[d]), n
        reach *= f.counts[n]
    for place, (_, at) in zip(itertools.product(*map(range, f.counts)), found, strict=True):
        wanted = [p + step * (place[n] if n >= 0 else 0)
                  for (p, _, step), n in zip(parts, labels, strict=True)]  # fmt: skip
        if [*at] != wanted:
            return None
    return source, parts, labels


def _element(graph: Graph, v: int) -> tuple[int, Shape]:
    """The array of which a value is one element, and which; -1 if it is none."""
    node = _maker(graph, v) if v >= 0 else None
    while node is not None and OPS[node.op].rearranges:
        v, node = node.inputs[0], _maker(graph, node.inputs[0])
    if node is None or node.op != "slice":
        return -1, ()
    return node.inputs[0], node.kw["starts"]
