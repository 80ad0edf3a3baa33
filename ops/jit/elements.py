"""One element of a value in stages, as instructions: from memory, or from other values' elements.

What an index is called where, how its loops run and how memory is read is known to who writes the loops
(ops/cpu/loops/stages.py, ops/gpu/loops/stages.py)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping

from ostinato.ops.core.device import plain
from ostinato.ops.core.graph import Node
from ostinato.ops.core.index import Indices, Window
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, Piece
from ostinato.ops.core.spec import DType, int64

from .combining import carried, joined, start_of
from .labels import reads_elsewhere
from .moves import is_join
from .pairs import Pair
from .scalar import lower, multiplies, number
from .stage_values import Reduction, Stages
from .values import Lines, Value, cast, fma, where

Env = dict[int, str]  # how the index of a label is called


class Elements:
    """Writes elements."""

    nest: Stages
    counted: set[int]  # operands that only tell which element is which
    held: set[int]  # values that are kept

    # -- what a target knows
    @property
    def lines(self) -> Lines:
        """Where instructions go now."""
        raise NotImplementedError

    def value(self, v: int, env: Env) -> Value:
        """A value's element, which may have been made before."""
        raise NotImplementedError

    def loaded(self, a: int, env: Env) -> Value:
        """An operand's element."""
        raise NotImplementedError

    def counting(self, a: int, env: Env) -> Value:
        """Which one an operand's element is among all."""
        raise NotImplementedError

    def number(self, v: int, part: int = 0) -> Value | None:
        """Return the kernel's parameter for a constant's value, or of a mean's divisor."""
        raise NotImplementedError

    def extent(self, label: int) -> str:
        raise NotImplementedError

    def index(self, label: int | None, env: Env) -> Value:
        """Where an element is along a label; a unit's rows begin somewhere."""
        raise NotImplementedError

    def picked_at(self, x: int, env: Env) -> Value:
        """A value's element at a place that was found out just now."""
        return self.value(x, env)

    def is_late(self, place: Value) -> None:
        """A place was found out just now: what is read there cannot be read before."""

    def guarded(self, inside: Value, other: Value, make: Callable[[], Value]) -> Value:
        """Make a value where a condition holds, and read nothing for it elsewhere, where it is another."""
        raise NotImplementedError

    # -- an element
    def made(self, v: int, env: Env) -> Value:
        """From memory, or from other values."""
        dtype = self.nest.body.specs[v].dtype
        if v in self.counted:
            return self.counting(v, env)
        if v < self.nest.operands:
            return self.loaded(v, env)
        node = self.nest.body.nodes[self.nest.body.producers[v]]
        op = OPS[node.op]
        if op.rearranges:
            return self.value(node.inputs[0], env)
        if reads_elsewhere(node):
            return self.elsewhere(v, node, env)
        if op.element.source == "index":
            label = self.nest.dims[v][node.kw["axis"]]
            return cast(self.index(label, env), dtype)
        if op.element.source:
            return number(self.lines, node, v, self.number)
        if op.element.running:  # along an axis of one element
            return cast(self.value(node.inputs[0], env), dtype)
        if op.moves.places == "read":
            return self.picked(node, env)
        if op.moves.places:
            return self.put(v, node, env)
        return lower(node.op, [self.value(u, env) for u in node.inputs], dtype)

    def elsewhere(self, v: int, node: Node, env: Env) -> Value:
        """An element of a view, which is its operand's at another place; or of a join, later pieces over
        earlier ones."""
        body = self.nest.body
        specs, (spec,) = tuple([body.specs[u] for u in node.inputs]), node.specs
        rule, dims = OPS[node.op].indices(specs, node.specs, node.kw), self.nest.dims[v]
        here = {c: self.index(x, env) for c, x in zip(rule.outs[0], dims, strict=True) if c}

        def taken(a: int) -> Value:
            u, there = node.inputs[a], dict(env)
            for label, dim in zip(self.nest.dims[u], rule.ins[a], strict=True):
                if label is not None and isinstance(dim, Window):
                    place = _position(dim, here)
                    self.is_late(place)
                    there[label] = place.name
            return cast(self.picked_at(u, there), spec.dtype)

        if not is_join(node):
            return taken(0)
        pieces = OPS[node.op].moves.pieces
        assert pieces is not None
        found = self.lines.constant(0, spec.dtype)
        for piece in pieces([s.shape for s in specs], **plain(node.kw)) or ():
            inside = list[Value]()
            for c, part, n in zip(rule.outs[0], piece.at, spec.shape, strict=False):
                if c is not None:
                    inside += _is_in(here[c], range(*part.indices(n)), n)

            def make(piece: Piece = piece, before: Value = found) -> Value:
                if piece.operand < 0:
                    return self.lines.constant(piece.value, spec.dtype)
                one = taken(piece.operand)
                return lower(piece.combine, [before, one], spec.dtype) if piece.combine else one

            if not inside:
                found = make()
            else:
                test = inside[0]
                for more in inside[1:]:
                    test = test & more
                found = self.guarded(test, found, make)
        return found

    def picked(self, node: Node, env: Env) -> Value:
        """A value's element where another value says; it is made there, if it is not in memory."""
        x, places = node.inputs
        label = self.nest.dims[x][node.kw["axis"]]
        if label is None:
            return self.value(x, env)
        index = self.place_along(label, places, env)
        return self.picked_at(x, {**env, label: index.name})

    def put(self, v: int, node: Node, env: Env) -> Value:
        """An element, and what is added to one of each line."""
        x, places, more = node.inputs
        whole, added = self.value(x, env), self.value(more, env)
        label = self.nest.dims[v][node.kw["axis"]]
        if label is None:
            return whole + added
        here = self.place_along(label, places, env) == self.index(label, env)
        return where(here, whole + added, whole)

    def place_along(self, label: int, places: int, env: Env) -> Value:
        """An index from the front, which is known to be inside."""
        index = cast(self.value(places, env), int64)
        size = Value(self.lines, self.extent(label), int64)
        return where(index < 0, index + size, index)

    # -- combining
    def factors(self, v: int, dtype: DType, env: Env) -> tuple[Value, Value] | None:
        """Two values whose product this one is, to be added at once."""
        body = self.nest.body
        k = body.producers[v]
        while k >= 0 and v not in self.held and OPS[body.nodes[k].op].rearranges:
            v = body.nodes[k].inputs[0]
            k = body.producers[v]
        if k < 0 or v in self.held or dtype.kind != "f":
            return None
        node = body.nodes[k]
        if not multiplies(node.op):
            return None
        ins = node.inputs
        if any(body.specs[u].dtype != dtype for u in ins):
            return None
        return self.value(ins[0], env), self.value(ins[-1], env)

    def start(self, r: Reduction, dtype: DType) -> Value:
        return self.lines.constant(start_of(r.kind, dtype), dtype)

    def addends(self, r: Reduction, dtype: DType, env: Env) -> tuple[Value, ...]:
        """Emit an element's addend of a reduction: a value, or two whose product it is."""
        ins, how = r.node.inputs, OPS[r.node.op].reduce
        assert how is not None
        if r.letters is not None:
            return (self.through(r, r.letters, dtype, env),)
        if r.kind == "sum" and how.factors is not None:
            a, b = (cast(self.value(ins[k], env), dtype) for k in how.factors)
            return a, b
        pair = self.factors(ins[0], dtype, env) if r.kind == "sum" and len(ins) == 1 else None
        if how.element == "{0}" and pair is not None:
            return pair
        return (lower(r.node.op, [self.value(u, env) for u in ins], dtype),)

    def through(self, r: Reduction, letters: Mapping[str, int], dtype: DType, env: Env) -> Value:
        """The addend of an element of windows: of what lies there, or what changes nothing."""
        node, rule, extents = r.node, r.rule, self.nest.extents
        assert rule is not None
        here = {c: self.index(letters.get(c), env) for d in _windows(rule) for c in d.labels}
        tests, there = dict[Window, list[Value]](), dict[Window, Value]()
        for u, dims in zip(node.inputs, rule.ins, strict=True):
            for x, d in zip(self.nest.dims[u], dims, strict=True):
                if isinstance(d, Window) and d not in there:
                    counts = [1 if y is None else extents[y] for y in (letters.get(d.label), x)]
                    there[d], tests[d] = _walked(d, here, *counts)
                    self.is_late(there[d])
        fixed = {a: self.value(u, env) for a, u in enumerate(node.inputs)
                 if not any(isinstance(d, Window) for d in rule.ins[a])}  # fmt: skip

        def taken(a: int) -> Value:
            u, at = node.inputs[a], dict(env)
            for label, d in zip(self.nest.dims[u], rule.ins[a], strict=True):
                if label is not None and isinstance(d, Window):
                    at[label] = there[d].name
            return self.picked_at(u, at)

        def make() -> Value:
            given = [fixed[a] if a in fixed else taken(a) for a in range(len(node.inputs))]
            return lower(node.op, given, dtype)

        every = [t for own in tests.values() for t in own]
        if not every:
            return make()
        return self.guarded(functools.reduce(operator.and_, every), self.start(r, dtype), make)

    def added(self, r: Reduction, total: Value, env: Env) -> Value:
        """The total with one more. Products are added without being rounded first."""
        found = self.addends(r, total.dtype, env)
        if len(found) == 1 and r.letters is not None:
            return carried(r.kind, total, *found)
        if len(found) == 1:
            return joined(r.kind, total, *found)
        if total.dtype.kind != "f":
            return joined("sum", total, found[0] * found[1])
        a, b = found
        return fma(a, b, total)

    def better(
        self, kind: str, best: Value, position: Value, x: Value, i: str
    ) -> tuple[Value, Value]:
        """The first best so far; NaN beats all, as in NumPy."""
        wins = x > best if MONOIDS[kind].order == "max" else x < best
        if x.dtype.kind == "f":
            wins = (wins | (x != x)) & (best == best)
        index = Value(self.lines, i, int64)
        return where(wins, x, best), where(wins, index, position)

    def shared(self, v: int, total: Value) -> Value:
        """Divide a mean's total by its count; other totals stay."""
        count = self.number(v)
        if isinstance(total, Pair) and count is not None:
            return total.each(lambda x: x / count)
        return total if count is None else total / count


def _position(window: Window, here: dict[str, Value]) -> Value:
    """Where a window reads, for indices at which that is a whole number."""
    found = here[window.label] * window.stride + window.offset
    if window.over is not None:
        found = found + here[window.over] * window.dilation
    return found if window.every == 1 else found // window.every


def _windows(rule: Indices) -> list[Window]:
    return [d for dims in rule.ins for d in dims if isinstance(d, Window)]


def _walked(d: Window, here: Mapping[str, Value], count: int, n: int) -> tuple[Value, list[Value]]:
    """Where the element of a window lies which is the label's one among those at whole positions, of which
    there are `n`; and whether there is one."""
    common = math.gcd(d.dilation, d.every)
    at, r = here[d.label] * d.stride + d.offset, here[d.over or ""]
    tests = [at % common == 0] if common > 1 else []
    if d.apart > 1:
        back = -pow(d.dilation // common, -1, d.apart) % d.apart
        r = ((at // common) * back) % d.apart + r * d.apart
        tests += [r < d.size] * (d.size % d.apart > 0)
    ends = [
        d.offset + y + x
        for y in (0, d.stride * (count - 1))
        for x in (0, d.dilation * (d.size - 1))
    ]
    at = at + r * d.dilation
    tests += [at >= 0] * (min(ends) < 0) + [at < n * d.every] * (max(ends) >= n * d.every)
    return at if d.every == 1 else at // d.every, tests


def _is_in(index: Value, part: range, n: int) -> list[Value]:
    """List tests that say whether an index below `n` is one of these."""
    part = part[::-1] if part.step < 0 else part
    if part == range(n):
        return []
    first, last = (part[0], part[-1]) if part else (0, -1)
    tests = [index >= first] * (first > 0) + [index <= last] * (last < n - 1)
    return tests + [(index - first) % part.step == 0] * (len(part) > 1 and part.step > 1)
