"""Sums of products over windows as others: their operands surrounded with zeros, looks at windows of these,
and a sum of products of that.

    conv(x, w)      n c [y+r-1], o c r -> n o y       einsum(slide(pad(x)), w; text='ncyr,ocr->noy')

All follows from the index rule and from what the operation says of its elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.build import Builder
from ..core.graph import Node
from ..core.index import LETTERS, Dim, Indices, Window, product_labels
from ..core.registry import OPS
from ..core.spec import Spec
from .sliding import NEW


class Matrices(NamedTuple):
    """A sum of products as a product of matrices, of which stacks have one for each of `outer`: `columns`
    and `summed` of one operand, `summed` and `inner` of windows, or, without `inner`, the other way round.
    """

    windows: int  # the operand that has more of them
    outer: str
    columns: str
    inner: str
    summed: str


def matrices_of(rule: Indices, ones: str = "") -> Matrices | None:
    """Read off an index rule how an operation by windows is a product of matrices, if it is; labels of `ones`
    have one element."""
    left, right = ("".join(c for c in _labels(dims) if c not in ones) for dims in rule.ins)
    windows = int(len(right) > len(left))
    wide, other = (right, left) if windows else (left, right)
    result = "".join(c for c in map(str, rule.outs[0]) if c not in ones)
    batch, rows, columns, _ = product_labels(f"{wide},{other}->{result}")
    summed = "".join(c for c in other if c in wide and c not in result)
    if batch or not columns:
        return None
    outer, found, inner = result.partition(columns)
    all_there = len(wide) == len(rows + summed) and len(other) == len(columns + summed)
    if not found or not all_there:
        return None
    return Matrices(windows, outer, columns, inner, summed)


def _labels(dims: Sequence[Dim]) -> str:
    """List the labels of an operand, and behind them those inside its windows."""
    own = [d.label if isinstance(d, Window) else str(d) for d in dims]
    return "".join(own + [d.over or "" for d in dims if isinstance(d, Window)])


def multiply(builder: Builder, node: Node, ins: Sequence[int]) -> int:
    """Spell an operation by windows as looks that are copied, and a product of matrices."""
    (out,), op = node.specs, OPS[node.op]
    rule = op.indices(tuple([builder.specs[v] for v in ins]), node.specs, node.kw)
    m = matrices_of(rule)
    assert m is not None
    extents = dict(zip(rule.outs[0], out.shape, strict=True))
    looks, labels = list[_Looks](), list[str]()
    for v, dims in zip(ins, rule.ins, strict=True):
        looks.append(_Looks(builder, v, node.line))
        labels.append(looks[-1].windows(dims, extents))
    x, w = looks if not m.windows else looks[::-1]
    seen, other = labels if not m.windows else labels[::-1]
    stack, last = (m.outer, m.inner) if m.inner else (m.outer[:1], m.outer[1:])
    if m.inner:
        x.take_order(seen, (*stack, m.summed, last))
        w.take_order(other, (m.columns, m.summed))
        x.take("matmul", w.value)
    else:
        x.take_order(seen, (*stack, last, m.summed))
        w.take_order(other, (m.summed, m.columns))
        w.take("matmul", x.value)
        x = w
    x.take("reshape", shape=out.shape)
    return x.value


def multiply_whole(builder: Builder, node: Node, ins: Sequence[int], ones: str) -> int:
    """Spell it as one product, whose matrix of windows is copied in the order in which the images lie: along
    rows or terms, whichever has the index of neighbours in memory."""
    (out,), op = node.specs, OPS[node.op]
    rule = op.indices(tuple([builder.specs[v] for v in ins]), node.specs, node.kw)
    m = matrices_of(rule, ones)
    assert m is not None
    extents = dict(zip(rule.outs[0], out.shape, strict=True))
    given = [_as_it_lies(builder, v, d) for v, d in zip(ins, rule.ins, strict=True)]
    looks = [_Looks(builder, v, node.line) for v, _ in given]
    labels = [look.windows(d, extents) for look, (_, d) in zip(looks, given, strict=True)]
    lies = [text[: len(dims)] for text, (_, dims) in zip(labels, given, strict=True)]
    x, w, last = looks[m.windows], looks[1 - m.windows], lies[m.windows][-1]
    rows = "".join(sorted(m.outer + m.inner, key=lambda c: c == last))
    order = [c for c in lies[1 - m.windows] if c in m.summed]
    summed = "".join(sorted(order, key=lambda c: c == last))
    x.take_order(labels[m.windows], (summed, rows) if last in rows else (rows, summed))
    if last in rows:
        x.take("permute_dims", axes=(1, 0))
    w.take_order(labels[1 - m.windows], (summed, m.columns))
    name, how = ("wide_matmul", "dtype") if "dtype" in node.kw else ("matmul", "tf32")
    params = {how: node.kw[how]} if how in node.kw else {}
    made = Spec((x.spec.shape[0], w.spec.shape[1]), out.dtype, w.spec.layout)
    (w.value,) = builder.add(name, (x.value, w.value), params, (made,), node.line)
    found = rows + m.columns
    w.take("reshape", shape=tuple([extents[c] for c in found]))
    result = [c for c in rule.outs[0] if c is not None and c in found]
    if result != [*found]:
        w.take("permute_dims", axes=tuple([found.index(c) for c in result]))
    w.take("reshape", shape=out.shape)
    return w.value


class Points(NamedTuple):
    """Where windows of single elements read along each axis, or single windows: from which one on, how many,
    and how far apart; `apart`: results that read something are so far apart, and others are 0."""

    is_one_window: bool
    reads: tuple[tuple[int, int, int], ...]
    apart: tuple[tuple[int, int], ...] = ()  # begin and step


def points_of(node: Node, specs: Sequence[Spec]) -> Points | None:
    """Find whether each element is read for one place of results only, or there is one place, and so a
    convolution of one group is a product of matrices as they lie."""
    (x, w), (out,), k = specs, node.specs, len(node.kw["extents"])
    names = ("offsets", "strides", "dilation", "every", "extents")
    every_axis = [*zip(x.shape[1 : k + 1], w.shape[:k], *(node.kw[n] for n in names), strict=True)]
    if len(x.shape) != k + 3 or len(w.shape) != k + 3 or x.shape[-2] != 1 or 0 in out.shape:
        return None
    reads, apart = list[tuple[int, int, int]](), list[tuple[int, int]]()
    points = all(size == 1 for _, size, *_ in every_axis)
    if not points and any(out.shape[d] != 1 for d in range(1, k + 1)):
        return None
    for n, size, begin, stride, dilation, every, extent in every_axis:
        count, step = (extent, stride) if points else (size, dilation)
        if points and every > 1:
            if stride != 1 or begin > 0 or every * (n - 1) - begin >= extent:
                return None
            reads.append((0, n, 1))
            apart.append((-begin, every))
        elif every > 1 or step < 1 or begin < 0 or begin + step * (count - 1) >= n:
            return None
        else:
            reads.append((begin, count, step if count > 1 else 1))
            apart.append((0, 1))
    return Points(not points, tuple(reads), tuple(apart) if any(s > 1 for _, s in apart) else ())


def multiply_points(builder: Builder, node: Node, ins: Sequence[int], at: Points) -> int:
    """Spell such a convolution as a product. Images are read as they lie; results lie as channels last do, and
    slopes of filters as `out, in`."""
    (out,), k = node.specs, len(at.reads)
    space, name = tuple(range(1, k + 1)), "wide_matmul" if "dtype" in node.kw else "matmul"
    params: dict[str, Any] = {how: node.kw[how] for how in ("dtype", "tf32") if how in node.kw}
    labels = "n" + LETTERS[:k] + "gi", LETTERS[:k] + "igo"
    x, w = (_Looks(builder, v, node.line) for v in ins)

    def product(left: _Looks, right: _Looks) -> _Looks:
        shape = (left.spec.shape[0], right.spec.shape[1])
        made = Spec(shape, out.dtype, right.spec.layout)
        operands = (left.value, right.value)
        (value,) = builder.add(name, operands, params, (made,), node.line)
        return _Looks(builder, value, node.line)

    if at.is_one_window:
        (x.value, first), (w.value, other) = (
            _as_it_lies(builder, look.value, [*own])
            for look, own in zip((x, w), labels, strict=True)
        )
        x.slice_all(dict(zip(labels[0][1:], at.reads, strict=False)), first)
        summed = "".join(str(c) for c in first if c in (*labels[0][1 : k + 1], "i"))
        x.take_rows([*map(str, first)], summed, "n")
        w.take_rows([*map(str, other)], summed, "o")
        w.take("permute_dims", axes=(1, 0))
        made = product(w, x)
        made.take("permute_dims", axes=(1, 0))
        made.take("expand_dims", axes=(*space, k + 1))
        return made.value
    x.slice_all(dict(zip(labels[0][1:], at.reads, strict=False)), [*labels[0]])
    seen = x.spec.shape
    x.take("reshape", shape=(math.prod(seen[: k + 1]), seen[-1]))
    w.take("squeeze", axes=(*range(k), k + 1))
    made = product(x, w)
    made.take("reshape", shape=(*seen[: k + 1], 1, out.shape[-1]))
    if at.apart:
        fill = {"shape": out.shape, "value": 0, "dtype": out.dtype}
        whole = Spec(out.shape, out.dtype, made.spec.layout)
        (zeros,) = builder.add("full", (), fill, (whole,), node.line)
        begins, steps = zip((0, 1), *at.apart, (0, 1), (0, 1), strict=True)
        made.take("update_slice", zeros, starts=begins, steps=steps, mode="set")
    return made.value


def _as_it_lies(builder: Builder, v: int, dims: Sequence[Dim]) -> tuple[int, Sequence[Dim]]:
    """An operand before its axes were turned, and what these are."""
    while (node := builder.maker(v)) is not None and node.op == "permute_dims":
        axes = node.kw["axes"]
        (v,), dims = node.inputs, [dims[axes.index(d)] for d in range(len(dims))]
    return v, dims


def spell(builder: Builder, node: Node, ins: Sequence[int]) -> int:
    """An operation by windows over these operands, as looks at windows and a sum of products of these."""
    (out,), op = node.specs, OPS[node.op]
    rule = op.indices(tuple([builder.specs[v] for v in ins]), node.specs, node.kw)
    extents = dict(zip(rule.outs[0], out.shape, strict=True))
    seen, labels = list[int](), list[str]()
    for v, dims in zip(ins, rule.ins, strict=True):
        made = _Looks(builder, v, node.line)
        labels.append(made.windows(dims, extents))
        seen.append(made.value)
    result = "".join(c for c in rule.outs[0] if c is not None)
    assert op.product is not None
    order = (op.product.left, op.product.right)
    left, right = (labels[a] for a in order)
    params = {"text": f"{left},{right}->{result}"}
    return builder.add("einsum", [seen[a] for a in order], params, (out,), node.line)[0]


class _Looks:
    """A value, and what is looked at of it: axes stay where they are, and new ones come last, so it is split
    as its operand is."""

    def __init__(self, builder: Builder, value: int, line: str) -> None:
        self.builder, self.value, self.line = builder, value, line

    @property
    def spec(self) -> Spec:
        return self.builder.specs[self.value]

    def take(self, op: str, *before: int, **params: Any) -> None:
        ins, layout = (*before, self.value), self.spec.layout
        made = OPS[op].infer(*(self.builder.specs[v].bare for v in ins), **params)
        assert isinstance(made, Spec)
        spec = Spec(made.shape, made.dtype, layout)
        (self.value,) = self.builder.add(op, ins, params, (spec,), self.line)

    def slice(self, axis: int, start: int, size: int, step: int) -> None:
        shape = self.spec.shape
        parts = [(0, n, 1) for n in shape]
        parts[axis] = (start, size, step)
        if (start, size, step) != (0, shape[axis], 1):
            starts, sizes, steps = zip(*parts, strict=True)
            self.take("slice", starts=starts, sizes=sizes, steps=steps)

    def take_order(self, labels: str, groups: Sequence[str]) -> None:
        """Axes in the order of groups of labels, each as one axis."""
        order = [labels.index(c) for c in "".join(groups)]
        order += [d for d in range(len(labels)) if d not in order]  # of one element
        extents = dict(zip(labels, self.spec.shape, strict=True))
        self.take("permute_dims", axes=tuple(order))
        shape = tuple([math.prod(extents[c] for c in group) for group in groups])
        self.take("reshape", shape=shape)

    def slice_all(self, reads: Mapping[str, tuple[int, int, int]], labels: Sequence[Dim]) -> None:
        """A range of each of some axes."""
        for axis, c in enumerate(labels):
            if str(c) in reads:
                self.slice(axis, *reads[str(c)])

    def take_rows(self, labels: list[str], rows: str, column: str) -> None:
        """A matrix of some axes and another one; what has one element is dropped first."""
        self.take("squeeze", axes=(labels.index("g"),))
        labels.remove("g")
        order = tuple([labels.index(c) for c in rows + column])
        if order != tuple(range(len(order))):
            self.take("permute_dims", axes=order)
        shape = self.spec.shape
        self.take("reshape", shape=(math.prod(shape[:-1]), shape[-1]))

    def put_apart(self, axis: int, step: int) -> None:
        """Zeros between elements, which change no sum."""
        shape, spec = [*self.spec.shape], self.spec
        shape[axis] = step * (shape[axis] - 1) + 1
        params = {"shape": tuple(shape), "value": 0, "dtype": spec.dtype}
        (zeros,) = self.builder.add(
            "full", (), params, (Spec(tuple(shape), spec.dtype, spec.layout),), self.line
        )
        ones = [1] * spec.ndim
        ones[axis] = step
        self.take("update_slice", zeros, starts=(0,) * spec.ndim, steps=tuple(ones), mode="set")

    def windows(self, dims: Sequence[Dim], extents: Mapping[str | None, int]) -> str:
        """Look through windows; the labels of what is seen then."""
        labels, found = [d.label if isinstance(d, Window) else str(d) for d in dims], list[_Slid]()
        widths = [(0, 0)] * len(dims)
        for axis, w in enumerate(dims):
            if not isinstance(w, Window):
                continue
            if w.every > 1:
                self.put_apart(axis, w.every)
            n, count = self.spec.shape[axis], extents[w.label]
            far = (w.stride * (count - 1), w.dilation * (w.size - 1))
            low = w.offset + sum(min(x, 0) for x in far)
            high = w.offset + sum(max(x, 0) for x in far)
            widths[axis] = (max(0, -low), max(0, high - n + 1))
            found.append(_Slid(axis, w, low + widths[axis][0], high - low + 1))
        if any(map(any, widths)):
            self.take("pad", widths=tuple(widths), value=0)
        for at in found:
            self.slice(at.axis, at.start, at.length, 1)
        if not found:
            return "".join(labels)
        self.take(
            "slide",
            axes=tuple(at.axis for at in found),
            sizes=tuple(at.window.size for at in found),
            steps=tuple(abs(at.window.stride) for at in found),
            dilations=tuple(abs(at.window.dilation) for at in found),
            beside=(NEW,) * len(found),
        )
        for r, at in enumerate(found, len(dims)):
            labels.append(at.window.over or "")
            for axis, step in ((at.axis, at.window.stride), (r, at.window.dilation)):
                n = self.spec.shape[axis]
                if step < 0:
                    self.slice(axis, n - 1, n, -1)
        return "".join(labels)


class _Slid(NamedTuple):
    """A window along an axis: from where on it slides, and how far."""

    axis: int
    window: Window
    start: int
    length: int
