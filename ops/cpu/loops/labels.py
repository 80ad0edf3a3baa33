"""What a kernel in stages is made of: values over labelled indices, and how its loops run.

The ops' index rules connect the dimensions of values: those that are one index have one label. The
`rows` are labels that every operation has: they are what is cut in time, into units. In a unit, the
innermost loop of each stage runs along the `lane`: the rows themselves where all else is short (a
unit is then up to 256 rows), or else the index along which most of the work is. `stages.py` writes it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import LETTERS, Indices
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Shape, Spec, lying
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.loops import SOURCES, SUMS, VIEWS
from ostinato.ops.jit.random_bits import numbers_in

LANES = (256, 128, 64)  # rows of a unit where lanes run along the rows: as many as fit
BLOCKS, UNITS = ("64", "128", "256", "512"), " rows at a time"  # ways of a kernel in stages
WIDE, TOGETHER = LIMITS.wide, LIMITS.together
LEAST = 15  # an index of more turns may be the lane, if its elements are neighbours
SHORT = 64  # an index of at most so many turns is written for their number
HELD = LIMITS.unit_bytes
LONG = LIMITS.row_bytes

POSITIONS = ("argmin_pair", "argmax_pair")
PRODUCTS = ("matmul", "einsum")
MOMENTS = ("moments",)
REDUCING = (*SUMS, *POSITIONS, *PRODUCTS, *MOMENTS)
PICKS = ("take", "take_along_axis")  # elements at places that are found out as it runs
GATHERS = (*PICKS, "put_along_axis")

Dims = tuple[int | None, ...]


# -- labels --------------------------------------------------------------------------------
@dataclass(slots=True)
class Fit:
    """How a node's indices are labelled."""

    fresh: dict[int, Dims]  # operands that had no labels before
    outs: tuple[Dims, ...]
    reduced: frozenset[int]
    labels: frozenset[int]
    extents: list[int]  # of new labels


@dataclass(slots=True)
class Labels:
    """Which index each dimension of some values runs over; None for extent 1."""

    extents: list[int] = field(default_factory=list)
    dims: dict[int, Dims] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)  # labels that turned out to be others

    def fit(
        self,
        rule: Indices,
        ins: Sequence[int],
        specs: Sequence[Spec],
        outs: Sequence[Spec],
        fixed: Collection[int | None] | None = None,
    ) -> Fit | None:
        """A node among these values; None if an index would have to be two, or is whole. Labels
        that are not fixed may turn out to be others.
        """
        letters: dict[str, int] = {}
        fresh: dict[int, Dims] = {}
        extents: list[int] = []

        def new(letter: str, n: int) -> int:
            letters[letter] = len(self.extents) + len(extents)
            extents.append(n)
            return letters[letter]

        for k in sorted(range(len(ins)), key=lambda k: ins[k] not in self.dims):
            known = self.dims.get(ins[k], fresh.get(ins[k]))
            made: list[int | None] = []
            for d, (letter, n) in enumerate(zip(rule.ins[k], specs[k].shape, strict=True)):
                if n == 1:
                    made.append(None)
                    continue
                if not isinstance(letter, str):
                    return None
                if known is not None:
                    label = known[d]
                    if label is None:
                        return None
                    other = letters.setdefault(letter, label)
                    if other != label:
                        fresh_one = max(label, other) >= len(self.extents)
                        if fixed is None or fresh_one or {label, other} <= {*fixed}:
                            return None
                        label, other = sorted((label, other), key=lambda x: (x not in fixed, x))
                        self._join(label, other)
                        letters = {c: label if x == other else x for c, x in letters.items()}
                else:
                    label = letters[letter] if letter in letters else new(letter, n)
                made.append(label)
            fresh[ins[k]] = tuple(made)
        found = []
        for labels, spec in zip(rule.outs, outs, strict=True):
            own: list[int | None] = []
            for letter, n in zip(labels, spec.shape, strict=True):
                if n == 1:
                    own.append(None)
                elif letter is None:
                    return None
                else:
                    own.append(letters[letter] if letter in letters else new(letter, n))
            found.append(tuple(own))
        every = (*fresh.values(), *found)
        if rule.chunked or any(_repeats(dims) for dims in every):
            return None
        reduced = frozenset(letters[c] for c, _ in rule.reduce if c in letters)
        fresh = {v: dims for v, dims in fresh.items() if v not in self.dims}
        return Fit(fresh, tuple(found), reduced, frozenset(letters.values()), extents)

    def _join(self, label: int, other: int) -> None:
        """Two labels turn out to be one."""
        self.joined = {x: label if y == other else y for x, y in self.joined.items()}
        self.joined[other] = label
        for v, dims in self.dims.items():
            if other in dims:
                self.dims[v] = tuple(label if x == other else x for x in dims)

    @property
    def repeats(self) -> bool:
        """Whether two dimensions of a value turned out to be one index."""
        return any(map(_repeats, self.dims.values()))

    def now(self, labels: Iterable[int]) -> frozenset[int]:
        """What labels turned out to be."""
        return frozenset(self.joined.get(x, x) for x in labels)

    def take(self, fit: Fit, outs: Sequence[int]) -> None:
        self.extents += fit.extents
        self.dims |= fit.fresh
        self.dims |= dict(zip(outs, fit.outs, strict=True))


def _repeats(dims: Dims) -> bool:
    labels = [x for x in dims if x is not None]
    return len(set(labels)) < len(labels)


def indices_of(node: Node, specs: Sequence[Spec]) -> Indices:
    """An op's indices. Kernels have a label for what is gathered along, too."""
    if node.op not in ("take_along_axis", "put_along_axis"):
        return OPS[node.op].indices(tuple(specs), node.specs, node.kw)
    axis, ndim = node.kw["axis"], node.specs[0].ndim
    labels = (*LETTERS[:axis], "Z", *LETTERS[axis + 1 : ndim])  # of the axis, others have 1
    reduced = (("Z", "sum"),) if node.op in PICKS else ()
    return Indices((labels,) * len(specs), (labels,), reduced)


# -- what is to be done --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reduction:
    """A value made by combining others along labels."""

    node: Node
    over: frozenset[int]
    kind: str  # sum, max, min, argmax, argmin


@dataclass
class Nest:
    """A body whose values are labelled, and how its loops run."""

    body: Graph
    dims: list[Dims]
    extents: list[int]
    rows: tuple[int, ...]
    reductions: dict[int, Reduction]  # by their first value; moments by their mean
    strides: list[dict[int, int]]  # of each operand and result, in bytes
    lane: int = -1
    lanes: int = LANES[0]
    held: set[int] = field(default_factory=set)  # values in cache
    packed: set[int] = field(default_factory=set)  # those that are the same for all units
    operands: int = 0

    @property
    def across(self) -> bool:
        """Whether lanes run along rows."""
        return self.lane in self.rows

    def labels(self, v: int) -> tuple[int, ...]:
        return tuple(x for x in self.dims[v] if x is not None)

    def inner(self, v: int) -> tuple[int, ...]:
        """The labels of a value in a unit, the lane last."""
        kept = [x for x in self.labels(v) if x not in self.rows or x == self.lane]
        return tuple(sorted(kept, key=lambda x: x == self.lane))

    def width(self, label: int) -> int:
        """How many elements a unit has along a label."""
        return self.lanes if label == self.lane and self.across else self.extents[label]

    @property
    def gathered(self) -> list[int]:
        """What is combined over the rows; of moments, the means."""
        return [v for v, r in self.reductions.items() if r.over & set(self.rows)]

    def gathers(self, v: int) -> bool:
        """Whether a value is combined over the rows, and so done at the end only."""
        k = self.body.producers[v]
        return k >= 0 and any(u in self.gathered for u in self.body.outs(k))

    def iterates(self, k: int) -> frozenset[int]:
        """The labels of a node's own work."""
        found: frozenset[int] = frozenset()
        for v in self.body.outs(k):
            found |= frozenset(self.labels(v))
            found |= self.reductions[v].over if v in self.reductions else frozenset()
        return found

    def room(self, v: int) -> int:
        """Bytes of a value of a unit, up to whole cache lines."""
        return -(-self.volume(v) * self.body.specs[v].dtype.itemsize // 64) * 64

    def volume(self, v: int) -> int:
        return math.prod(self.width(x) for x in self.inner(v))


def analyse(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
    lanes: Sequence[int] = LANES,
) -> Nest | None:
    """The nest of a body for operands and results that lie so; None if no kernel can do it."""
    nest = label(body, dims, rows, shapes, strides)
    if nest is not None and any(r.kind == "moments" for r in nest.reductions.values()):
        nest = label(_spelled(nest), dims, rows, shapes, strides)
    if nest is not None:
        _join_neighbours(nest)
    return nest if nest is not None and _arrange(nest, lanes) else None


def analyse_in_order(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    way: str = "",
) -> Nest | None:
    """The nest of a body for operands and results whose elements lie one behind the other."""
    specs = (*body.inputs, *body.out_specs)
    strides = [lying(shape, s.dtype).strides for shape, s in zip(shapes, specs, strict=True)]
    return analyse(body, dims, rows, shapes, strides, lanes_of(way))


def lanes_of(way: str) -> Sequence[int]:
    """How many rows a unit may have, if timing did not say it."""
    count = way.removesuffix(UNITS)
    return (int(count), *LANES) if way.endswith(UNITS) and count in BLOCKS else LANES


def label(
    body: Graph,
    dims: Sequence[Sequence[int]],
    rows: Sequence[int],
    shapes: Sequence[Shape],
    strides: Sequence[Sequence[int]],
) -> Nest | None:
    """A body with labels: `dims` are its operands' (-1 for none), `shapes` and `strides` those of
    operands and results on this worker.
    """
    labels = Labels([0] * (1 + max((x for own in dims for x in own), default=0)))
    for k, own in enumerate(dims):
        labels.dims[k] = tuple(None if x < 0 else x for x in own)
        for label, n in zip(labels.dims[k], body.inputs[k].shape, strict=True):
            if label is not None:
                labels.extents[label] = n
    fixed = range(len(labels.extents))

    def fit(k: int) -> Fit | None:
        node = body.nodes[k]
        specs = [body.specs[v] for v in node.inputs]
        rule = indices_of(node, specs)
        return labels.fit(rule, node.inputs, specs, node.specs, fixed)

    for k, node in enumerate(body.nodes):
        if node.op not in SOURCES:
            found = fit(k)
            if found is None:
                return None
            labels.take(found, body.outs(k))
    if labels.repeats:
        return None
    reductions: dict[int, Reduction] = {}
    for k, node in enumerate(body.nodes):
        if node.op in REDUCING and (found := fit(k)) is not None:
            kind = node.op.removesuffix("_pair")
            kind = "sum" if node.op in ("mean", *PRODUCTS) else kind
            first = body.starts[k] + (kind == "moments")
            reductions[first] = Reduction(node, found.reduced, kind)
    for k, node in enumerate(body.nodes):  # numbers that only results are
        for v in body.outs(k):
            labels.dims.setdefault(v, (None,) * node.specs[0].ndim)
    extents, steps = list(labels.extents), []
    places = (*range(len(body.inputs)), *body.outputs)
    for v, shape, own in zip(places, shapes, strides, strict=True):
        lies = {}
        for label, n, step in zip(labels.dims[v], shape, own, strict=True):
            if label is not None:
                extents[label], lies[label] = n, step
        steps.append(lies)
    every = [labels.dims[v] for v in range(len(body.specs))]
    return Nest(body, every, extents, tuple(rows), reductions, steps, operands=len(body.inputs))


def _join_neighbours(nest: Nest) -> None:
    """Indices that always follow each other, in memory too, become one."""
    whole = {x for v, own in enumerate(nest.dims) if _counts(nest.body, v) for x in own}
    for outer, inner in _neighbours(nest):
        if outer in whole or inner in whole or not _are_one(nest, outer, inner):
            continue
        n = nest.extents[inner]
        nest.extents[outer] *= n
        nest.extents[inner] = 1
        nest.dims = [tuple(None if x == inner else x for x in own) for own in nest.dims]
        nest.rows = tuple(dict.fromkeys(outer if x == inner else x for x in nest.rows))
        for lies in nest.strides:
            if inner in lies:
                lies[outer] = lies.pop(inner)
        for v, r in nest.reductions.items():
            nest.reductions[v] = replace(r, over=r.over - {inner})


def _neighbours(nest: Nest) -> Iterator[tuple[int, int]]:
    """Pairs of labels that follow each other in an operand, the last ones first."""
    for v in range(nest.operands):
        labels = nest.labels(v)
        yield from reversed([*itertools.pairwise(labels)])


def _counts(body: Graph, v: int) -> bool:
    """Whether an index's own number matters to a value."""
    k = body.producers[v]
    readers = {body.nodes[u].op for u in body.uses[v]}
    return bool(readers & {*POSITIONS, *GATHERS}) or v in numbers_in(body) or (
        k >= 0 and body.nodes[k].op in ("iota", *GATHERS)
    )  # fmt: skip


def _are_one(nest: Nest, outer: int, inner: int) -> bool:
    if any((outer in r.over) != (inner in r.over) for r in nest.reductions.values()):
        return False
    for own in nest.dims:
        known = [x for x in own if x is not None]
        places = [known.index(x) for x in (outer, inner) if x in known]
        if places and (len(places) < 2 or places[1] != places[0] + 1):
            return False
    n = nest.extents[inner]
    return all(lies[outer] == lies[inner] * n for lies in nest.strides if outer in lies)


def _spelled(nest: Nest) -> Graph:
    """The body with moments, but for those over the rows, as a mean and a sum of squared deviations: of
    the elements that are here."""
    body, whole = nest.body, nest.gathered
    builder = Builder(body.inputs)
    values = list(range(len(body.inputs)))
    for k, node in enumerate(body.nodes):
        ins = [values[v] for v in node.inputs]
        if node.op != "moments" or body.starts[k] + 1 in whole:
            values += builder.add(node.op, ins, node.params, node.specs, node.line)
            continue
        (x,), axes = ins, node.kw["axes"]
        count = math.prod(nest.extents[i] for i in nest.reductions[body.starts[k] + 1].over)
        n = builder.call("constant", value=float(count), dtype=node.specs[0].dtype)
        # Not by the rule of `mean`, which is one of whole arrays.
        params = {"axes": axes, "count": count}
        (mean,) = builder.add("mean", (x,), params, (node.specs[1].bare,), node.line)
        spread = builder.call("expand_dims", mean, axes=axes) if axes else mean
        off = builder.call("square", builder.call("subtract", x, spread))
        square = builder.call("sum", off, axes=axes, dtype=node.specs[2].dtype, line=node.line)
        values += [n, mean, square]
    return Graph(builder.inputs, tuple(builder.nodes), tuple(values[v] for v in body.outputs))


def _arrange(nest: Nest, most: Sequence[int]) -> bool:
    """Choose the lane, and what is held in cache; where lanes run along rows, as many as fit."""
    worked = [k for k, n in enumerate(nest.body.nodes) if n.op not in (*VIEWS, *SOURCES)]
    others = frozenset().union(*map(nest.iterates, worked)) - set(nest.rows)
    if any(_step(nest, x) is None for x in nest.rows):
        return False
    long = [x for x in others if nest.extents[x] > (LEAST if _is_near(nest, x) else SHORT)]
    long = [x for x in long if _step(nest, x) is not None]
    lanes = sorted((*nest.rows, *long), key=lambda x: _along(nest, x, bool(long)))
    return any(_fits(nest, lane, most) for lane in lanes)


def _fits(nest: Nest, lane: int, most: Sequence[int]) -> bool:
    """Run lanes along this label, if what is held then fits into cache."""
    nest.lane = lane
    body, nest.held = nest.body, _held(nest)
    if nest.across:
        for a, lies in enumerate(nest.strides):
            v = a if a < nest.operands else body.outputs[a - nest.operands]
            apart = len(lies) > 1 and _is_apart(nest, v, lies, lane)
            if apart and (a >= nest.operands or _is_swept(body, v)):
                nest.held.add(v)
    else:
        nest.held |= {v for v in range(nest.operands) if _can_pack(nest, v, lane)}
    nest.packed = _packed(nest)
    if nest.across:
        rest = [x for x in nest.rows if x != lane]
        nest.rows = (lane, *rest) if nest.packed else (*rest, lane)
    for lanes in most if nest.across else LANES[:1]:
        nest.lanes = lanes
        if sum(nest.room(v) for v in nest.held) <= (HELD if nest.across else LONG):
            return True
    return False


def _along(nest: Nest, lane: int, choose: bool) -> tuple[float, int]:
    """What the loops cost if lanes run along a label: what has no lanes is done one by one, sums of
    lanes are put together, and what has its neighbours far apart is copied.
    """
    cost, body, n = 0.0, nest.body, max(nest.extents[lane], 1)
    wide = WIDE if n > SHORT else n / -(-n // WIDE)  # of a vector
    for k, node in enumerate(body.nodes if choose else ()):
        if node.op in (*VIEWS, *SOURCES):
            continue
        labels = nest.iterates(k)
        work = math.prod(nest.extents[x] for x in labels)
        if lane in labels:
            cost += work / wide
        else:  # LLVM finds vectors of its own, but not where one element waits for the last
            waits = node.op in REDUCING and body.starts[k] not in nest.gathered
            cost += work if waits else work / 4
        if node.op in REDUCING and lane in labels - {*nest.dims[body.starts[k]]}:
            cost += TOGETHER * work / nest.extents[lane]
    for a, lies in enumerate(nest.strides if choose else ()):
        v = a if a < nest.operands else body.outputs[a - nest.operands]
        if _is_apart(nest, v, lies, lane) and not (a < nest.operands and _can_pack(nest, a, lane)):
            turned = lane in nest.rows and any(
                nest.extents[x] <= SHORT and _is_near(nest, x) for x in lies if x not in nest.rows
            )
            cost += math.prod(nest.extents[x] for x in lies) / (4 if turned else 1)
    return cost, _step(nest, lane) or 0


def _is_near(nest: Nest, label: int) -> bool:
    """Whether neighbours along a label are neighbours in the largest array that has it."""
    sizes = {s.dtype.itemsize for s in nest.body.specs}
    return _step(nest, label) in sizes


def _is_apart(nest: Nest, v: int, lies: Mapping[int, int], lane: int) -> bool:
    """Whether the neighbours along the lane are no neighbours in memory."""
    return lies.get(lane, 0) not in (0, nest.body.specs[v].dtype.itemsize)


def _can_pack(nest: Nest, v: int, lane: int) -> bool:
    """Whether an operand that all rows read is to be copied, so that lanes are neighbours."""
    lies, size = nest.strides[v], nest.body.specs[v].dtype.itemsize
    if len(lies) < 2 or not _is_apart(nest, v, lies, lane) or not lies.keys().isdisjoint(nest.rows):
        return False
    return math.prod(nest.extents[x] for x in lies) * size <= HELD and _is_swept(nest.body, v)


def _packed(nest: Nest) -> set[int]:
    """The operands in cache that stay the same while other rows than the lane go on."""
    others = {x for x in nest.rows if x != nest.lane}
    return {
        v for v in nest.held if v < nest.operands and others and others.isdisjoint(nest.labels(v))
    }


def _is_swept(body: Graph, v: int) -> bool:
    """Whether all of a value is read, and not only what is picked from it."""
    if v in numbers_in(body):
        return False
    for k in body.uses[v]:
        node = body.nodes[k]
        if node.op in VIEWS:
            if _is_swept(body, body.starts[k]):
                return True
        elif node.op not in PICKS or v in node.inputs[1:]:
            return True
    return False


def _step(nest: Nest, label: int) -> int | None:
    """The bytes between neighbours along a label, in the largest array that has it."""
    body = nest.body
    found: dict[int, int] = {}
    for v, lies in zip((*range(nest.operands), *body.outputs), nest.strides, strict=True):
        if label in lies:
            size = math.prod(nest.extents[x] for x in lies) * body.specs[v].dtype.itemsize
            found[size] = min(found.get(size, 1 << 62), abs(lies[label]))
    return found[max(found)] if found else None


CHEAP = ("add", "subtract", "multiply", "square", "negative", "astype", "where", "equal", "greater",
         "less", "maximum", "minimum", "logical_not", "abs")  # fmt: skip


def _held(nest: Nest) -> set[int]:
    """The values that are made once and kept: what is reduced, and what is dear and read again and
    again.
    """
    body = nest.body
    readers: list[Counter[frozenset[int]]] = [Counter() for _ in body.specs]  # by their loops
    for v in body.outputs:
        readers[v][frozenset(nest.labels(v))] += 1
    found: set[int] = set()
    for k in reversed(range(len(body.nodes))):
        node, first = body.nodes[k], body.starts[k]
        if node.op in REDUCING:
            found |= {v for v in body.outs(k) if not nest.gathers(v)}
            loops = Counter([nest.iterates(k)])
        elif node.op in PICKS:  # of what it picks from, the elements are made once more
            found.add(first)
            readers[node.inputs[1]][nest.iterates(k)] += 1
            continue
        elif node.op not in (*VIEWS, *SOURCES) and _is_worth_keeping(nest, first, readers[first]):
            found.add(first)
            loops = Counter([nest.iterates(k)])
        else:
            loops = readers[first]
        for v in node.inputs:
            for labels, n in loops.items():
                readers[v][labels] = min(readers[v][labels] + n, 2)
    return found


def _is_worth_keeping(nest: Nest, v: int, readers: Counter[frozenset[int]]) -> bool:
    own = {*nest.labels(v), nest.lane}
    again = sum(n * math.prod(nest.width(x) for x in labels - own) for labels, n in readers.items())
    return again > 1 and not _is_cheap(nest, v)


def _is_cheap(nest: Nest, v: int, depth: int = 2) -> bool:
    k = nest.body.producers[v]
    if k < 0:
        return True
    node = nest.body.nodes[k]
    if node.op in SOURCES or node.op in REDUCING:
        return True
    if node.op in VIEWS:
        return _is_cheap(nest, node.inputs[0], depth)
    return node.op in CHEAP and depth > 0 and all(
        _is_cheap(nest, u, depth - 1) for u in node.inputs
    )  # fmt: skip
