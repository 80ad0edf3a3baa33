"""How a value is looked at: of each of its axes, the place that each element of the result has there.

    x[5:8]                        axis 0: 5 + i         axis 1: j
    x.T[3, ::2]                   axis 0: 2i            axis 1: 3
    x[places]                     axis 0: places[i]     axis 1: j
    x.reshape(-1)[7:]             axes 0 and 1, counted in one row: 7 + i

A look through slices, picks and reshapes, one behind the other, is one look at what is under them all,
so that what stands between matters to nobody: `Looks` puts them together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.ops.array.expressions import Expression, constant, iota
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Node
from ostinato.ops.core.parameters import FARTHEST
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec

TABLE = 1 << 22  # places that may be listed one by one; under a memory limit fewer

Part = tuple[int, int, int]  # of an axis a start, a size and a step


class TooLargeError(Exception):
    """A look that would need a list of too many places."""


class FoldedError(Exception):
    """A look at axes that are seen whole, but in one row."""


@dataclass(frozen=True, slots=True)
class Index:
    """Places along an axis, or along neighbouring ones counted in one row: a start, and a step for
    each dimension of the result; or a table of them."""

    start: int = 0
    steps: tuple[tuple[int, int], ...] = ()  # of dimensions with more than one element
    # a value with all dimensions of the result, of size 1 where it is the same all along
    table: int = -1
    raw: int = -1  # the extent in which the table's places may count from the end, and lie outside
    line: str = ""  # where these were picked
    span: int = 1  # axes


@dataclass(frozen=True, slots=True)
class View:
    shape: Shape  # of the result
    indices: tuple[Index, ...]


def all_of(shape: Shape) -> View:
    return View(shape, tuple(along(d, n) for d, n in enumerate(shape)))


def along(dim: int, size: int, start: int = 0, step: int = 1) -> Index:
    return Index(start, ((dim, step),) if size > 1 else ())


class Looks:
    """Looks at the values that a builder has."""

    def __init__(self, builder: Builder, most: int) -> None:
        self.builder, self.most = builder, most
        self.checks: list[int] = []  # values that a look's result must not come without

    # -- what an index is -------------------------------------------------------------------
    def dims(self, index: Index) -> tuple[int, ...]:
        """The dimensions of the result along which places differ."""
        if index.table < 0:
            return tuple(d for d, _ in index.steps)
        return tuple(d for d, n in enumerate(self.builder.specs[index.table].shape) if n > 1)

    def reduced(self, view: View) -> Shape:
        """The result's shape, with 1 where it is the same all along."""
        found = {d for index in view.indices for d in self.dims(index)}
        return tuple(n if d in found else 1 for d, n in enumerate(view.shape))

    def table(self, index: Index, shape: Shape, line: str) -> Expression:
        """All its places, counted from the first."""
        if math.prod(shape[d] for d in self.dims(index)) > self.most:
            raise TooLargeError
        if index.table >= 0:
            own = Expression(self.builder, index.table, line)
            if index.raw < 0:
                return own
            own = Expression(self.builder, index.table, index.line)
            return own.call("take_places", size=index.raw, checks=False)
        total = constant(self.builder, index.start, line=line).reshape(*(1,) * len(shape))
        for d, step in index.steps:
            extents = tuple(n if k == d else 1 for k, n in enumerate(shape))
            total = total + iota(self.builder, extents, d, line) * step
        return total

    def listed(self, places: Expression, span: int = 1) -> Index:
        return Index(table=places.value, span=span)

    # -- one behind the other -----------------------------------------------------------------
    def through(self, node: Node, old: Shape, view: View, values: Sequence[int]) -> View | None:
        """The look at a node's first operand that a look at its result is, if it only moves; `values`:
        its operands."""
        op, kw = OPS[node.op], node.kw
        if op.moves.same_elements and op.moves.keeps_order:
            return self._reshaped(view, old, node.specs[0].shape, node.line)
        if not (op.moves.selects or op.moves.same_elements or op.moves.repeats):
            return None
        view = self.apart(view, node.specs[0].shape, node.line)
        indices = view.indices
        if op.moves.selects == "slices":
            cuts = zip(indices, kw["starts"], kw["steps"], strict=True)
            return View(view.shape, tuple(self._cut(*c, view.shape, node.line) for c in cuts))
        if op.moves.selects:
            axis, end = kw["axis"], kw["axis"] + len(indices) + 1 - len(old)
            places = self.look(values[1], View(view.shape, indices[axis:end]), node.line)
            if self.is_file(places):
                spec = self.builder.specs[places].bare
                (places,) = self.builder.add("read", (places,), (), (spec,), node.line)
            own = Index(table=places, raw=old[axis], line=node.line)
            return View(view.shape, (*indices[:axis], own, *indices[end:]))
        if op.moves.repeats:
            return self.repeated(view, node.specs[0].shape, old, node.line, checks=True)
        order = kw["axes"]
        return View(view.shape, tuple(indices[order.index(a)] for a in range(len(old))))

    def repeated(self, view: View, new: Shape, old: Shape, line: str, checks: bool = False) -> View:
        """The look at what is repeated, of one at the result; `checks`: nothing else sees places along
        what is repeated."""
        if new == old:
            return view
        view = self.apart(view, new, line)
        more = len(new) - len(old)
        kept = [n == m for n, m in zip(new[more:], old, strict=True)]
        found = [i if k else Index() for i, k in zip(view.indices[more:], kept, strict=True)]
        gone = [i for i, k in zip(view.indices, [False] * more + kept, strict=True) if not k]
        if checks:
            self._gone(gone)
        return View(view.shape, tuple(found))

    def _gone(self, indices: Sequence[Index]) -> None:
        """Record what fails where one of these places is outside, since they make no other
        difference."""
        for index in indices:
            if index.table >= 0:
                own, size = Expression(self.builder, index.table, index.line), index.raw
                size = size if size >= 0 else FARTHEST  # what it was made of, is checked already
                self.checks.append(own.call("take_places", size=size, checks=True).value)

    def _cut(self, index: Index, start: int, step: int, shape: Shape, line: str) -> Index:
        if (start, step) == (0, 1) and index.raw < 0:
            return index
        if index.table < 0:
            steps = tuple((d, step * by) for d, by in index.steps)
            return Index(start + step * index.start, steps)
        return self.listed(self.table(index, shape, line) * step + start)

    def _reshaped(self, view: View, old: Shape, new: Shape, line: str) -> View:
        """Neighbouring axes that have the same elements, counted in one row and apart again, if their
        places come so."""
        extents = _extents(view, new)
        found: list[Index] = []
        for olds, news in groups(old, extents):
            own, sizes = [view.indices[k] for k in news], [extents[k] for k in news]
            if len(own) == 1 and len(olds) == 1:
                found.append(replace(own[0], span=1))
                continue
            self._gone([i for i, n in zip(own, sizes, strict=True) if n == 1])
            flat = self._flat(own, sizes, view.shape, line)
            apart = _apart(flat, [old[d] for d in olds], view.shape)
            found.extend([replace(flat, span=len(olds))] if apart is None else apart)
        return View(view.shape, tuple(found))

    def _flat(self, own: Sequence[Index], extents: Sequence[int], shape: Shape, line: str) -> Index:
        """Places along several axes as places in one row."""
        sizes = [n for n in extents if n > 1]
        own = [i for i, n in zip(own, extents, strict=True) if n > 1]
        if len(own) == 1:
            return replace(own[0], span=1)
        by = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
        if all(i.table < 0 for i in own):
            steps: dict[int, int] = {}
            for index, step in zip(own, by, strict=True):
                for d, s in index.steps:
                    steps[d] = steps.get(d, 0) + s * step
            start = sum(i.start * step for i, step in zip(own, by, strict=True))
            return Index(start, tuple(sorted((d, s) for d, s in steps.items() if s)))
        total = constant(self.builder, 0, line=line).reshape(*(1,) * len(shape))
        for index, step in zip(own, by, strict=True):
            total = total + self.table(index, shape, line) * step
        if total.spec.size > self.most:
            raise TooLargeError
        return self.listed(total)

    def apart(self, view: View, shape: Shape, line: str) -> View:
        """Split indices so that each axis has its own."""
        found: list[Index] = []
        for index, axes in zip(view.indices, spans(view), strict=True):
            sizes = [shape[d] for d in axes]
            own = [index] if index.span == 1 else _apart(index, sizes, view.shape)
            if own is None:
                if _outermost(index, sizes, view.shape) == (0, sizes[0], 1):
                    raise FoldedError
                left, own = self.table(index, view.shape, line), []
                for n in reversed(sizes):
                    own.insert(0, self.listed(left % n))
                    left = left // n
            found.extend(own)
        return View(view.shape, tuple(found))

    def part_of(self, view: View, dim: int, first: int, count: int) -> View:
        """Restrict the view to a range of one dimension of the result."""
        found = []
        for index in view.indices:
            by = dict(index.steps).get(dim, 0)
            if index.table >= 0 and dim in self.dims(index):
                old = self.builder.specs[index.table].shape
                parts = [(0, n, 1) for n in old]
                parts[dim] = (first, count, 1)
                own = Expression(self.builder, index.table).slice(parts)
                index = replace(index, table=own.value)
            elif by:
                steps = tuple((d, s) for d, s in index.steps if d != dim or count > 1)
                index = replace(index, start=index.start + by * first, steps=steps)
            found.append(index)
        shape = (*view.shape[:dim], count, *view.shape[dim + 1 :])
        return View(shape, tuple(found))

    # -- done ---------------------------------------------------------------------------------
    def look(self, value: int, view: View, line: str) -> int:
        """A value so looked at, in `reduced` shape; of one in a file, what of it is wanted."""
        shape = self.builder.specs[value].shape
        if view == all_of(shape):
            return value
        indices, lead = list(view.indices), self._together(view, shape)
        if lead:
            count = next(k for k, axes in enumerate(spans(view), 1) if axes.stop >= lead)
            flat = self._flat(indices[:count], _extents(view, shape)[:count], view.shape, line)
            if math.prod(view.shape[d] for d in self.dims(flat)) > math.prod(shape[:lead]):
                raise TooLargeError  # all of it is less than the list of its places
            value = self._merged(value, lead, line)
            ones = [Index()] * (len(self.builder.specs[value].shape) - len(shape) + lead - 1)
            indices = [flat, *ones, *indices[count:]]
            shape = self.builder.specs[value].shape
        parts, picks, order = [(0, n, 1) for n in shape], [], list[int]()
        for index, axes in zip(indices, spans(View(view.shape, tuple(indices))), strict=True):
            axis, dims = axes.start, _in_order(index, view.shape)
            part = _outermost(index, [shape[d] for d in axes], view.shape)
            if part is not None:
                parts[axis] = part
            else:
                raw = index.raw == shape[axis]
                places = Expression(self.builder, index.table, line) if raw else None
                places = places or self.table(index, view.shape, line)
                picks.append((axis, places.reshape(places.spec.size)))
            order.extend(self.dims(index) if dims is None else dims)
        value = self._sliced(value, parts, line)
        for axis, places in picks:
            value = self._picked(value, places, axis, line)
        found = Expression(self.builder, value, line)
        sizes = [view.shape[d] for d in order]
        if order != sorted(order):
            found = found.reshape(*sizes)
            found = found.permute_dims(*(order.index(d) for d in sorted(order)))
        return found.reshape(*self.reduced(View(view.shape, tuple(indices)))).value

    def _together(self, view: View, shape: Shape) -> int:
        """How many axes, from the first, are to be looked at as one: those whose places depend on each
        other."""
        seen: set[int] = set()
        lead = 0
        for index, axes in zip(view.indices, spans(view), strict=True):
            dims = self.dims(index)
            is_apart = _outermost(index, [shape[d] for d in axes], view.shape) is not None
            if (index.span > 1 and not is_apart) or seen.intersection(dims):
                lead = axes.stop
            seen.update(dims)
        return lead

    def is_file(self, value: int) -> bool:
        layout = self.builder.specs[value].layout
        return layout is not None and layout.stored

    def _merged(self, value: int, lead: int, line: str) -> int:
        spec = self.builder.specs[value]
        if lead == 1:
            return value
        if not self.is_file(value):
            shape = (math.prod(spec.shape[:lead]), *spec.shape[lead:])
            return Expression(self.builder, value, line).reshape(*shape).value
        return self._stored("merge_file", value, {"axes": lead}, line)

    def _sliced(self, value: int, parts: Sequence[Part], line: str) -> int:
        if all(part == (0, n, 1) for part, n in zip(parts, self._shape(value), strict=True)):
            return value
        before = self.builder.maker(value)
        stored = self.is_file(value)
        if before is not None and before.op == "full":
            less = {**before.kw, "shape": tuple(n for _, n, _ in parts)}
            return self.builder.call("full", **less, line=before.line)
        if before is not None and before.op == "slice_file":
            (value,), kw = before.inputs, before.kw
            cuts = zip(kw["starts"], kw["steps"], parts, strict=True)
            parts = [(s + by * start, n, by * step) for s, by, (start, n, step) in cuts]
        if not stored:
            return Expression(self.builder, value, line).slice(parts).value
        names = ("starts", "sizes", "steps")
        kw = {name: tuple(p[k] for p in parts) for k, name in enumerate(names)}
        return self._stored("slice_file", value, kw, line)

    def _picked(self, value: int, places: Expression, axis: int, line: str) -> int:
        if not self.is_file(value):
            return Expression(self.builder, value, line).take(places, axis).value
        listed, under = places.value, places.value
        while axis == 0 and (maker := self.builder.maker(under)) is not None:
            if maker.op != "read" and not OPS[maker.op].reshapes:
                break
            (under,) = maker.inputs
            if self.is_file(under) and self._shape(under) == places.shape:
                listed = under  # read block by block, with the rows that stand there
                break
        return self._stored("take_file", value, {"axis": axis}, line, listed)

    def _stored(self, op: str, file: int, params: dict[str, Any], line: str, *places: int) -> int:
        spec = self.builder.specs[file]
        ins = [self.builder.specs[v].bare for v in (*places, file)]
        made = OPS[op].infer(*ins, **params)
        made = Spec(made.shape, made.dtype, spec.layout)  # type: ignore[union-attr]
        return self.builder.add(op, (*places, file), params, (made,), line)[0]

    def _shape(self, value: int) -> Shape:
        return self.builder.specs[value].shape


def spans(view: View) -> Iterator[range]:
    at = 0
    for index in view.indices:
        yield range(at, at + index.span)
        at += index.span


def _extents(view: View, shape: Shape) -> Shape:
    return tuple(math.prod(shape[d] for d in axes) for axes in spans(view))


def _apart(index: Index, extents: Sequence[int], shape: Shape) -> list[Index] | None:
    """Places in one row as places along each of these axes, where each step is along one of them."""
    if index.table >= 0:
        total = math.prod(extents)
        found = [index if n == total else Index() for n in extents]
        return [replace(i, span=1) for i in found] if found.count(index) == 1 else None
    found = []
    start, steps = index.start, index.steps
    for n in reversed(extents):
        own = [(d, s) for d, s in steps if s % n]
        ends = [s * (shape[d] - 1) for d, s in own]
        low, high = sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)
        left, first = divmod(start + low, n)
        if first + high - low >= n:
            return None
        found.insert(0, Index(first - low, tuple(own)))
        start, steps = left, tuple((d, s // n) for d, s in steps if s % n == 0)
    return found


def _in_order(index: Index, shape: Shape) -> tuple[int, ...] | None:
    """The dimensions along which places go on in equal steps, the outermost first."""
    if index.table >= 0:
        return None
    steps = sorted(index.steps, key=lambda s: -abs(s[1]))
    for (_, outer), (d, inner) in itertools.pairwise(steps):
        if outer != inner * shape[d]:
            return None
    return tuple(d for d, _ in steps)


def _outermost(index: Index, extents: Sequence[int], shape: Shape) -> Part | None:
    """Restrict an index to what it has of the first of its axes, if that is in equal steps, and of
    the others all."""
    dims = _in_order(index, shape)
    if dims is None:
        return None
    step = dict(index.steps)[dims[-1]] if dims else 1
    count, inner = math.prod(shape[d] for d in dims), math.prod(extents[1:])
    if inner > 1 and (step != 1 or index.start % inner or count % inner):
        return None
    return index.start // inner, count // inner, step


def groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Neighbouring dimensions of both that have the same elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(olds), j + len(news)
        left, right = math.prod(old[d] for d in olds), math.prod(new[d] for d in news)
        while left != right:
            if left < right:
                olds, left, i = [*olds, i], left * old[i], i + 1
            else:
                news, right, j = [*news, j], right * new[j], j + 1
        yield olds, news
