"""Labelled indices: the ops' index rules connect the dimensions of values, and those that are one index
have one label."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.index import LETTERS, Indices, Window
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec

Dims = tuple[int | None, ...]


@dataclass(slots=True)
class Fit:
    """How a node's indices are labelled."""

    fresh: dict[int, Dims]  # operands that had no labels before
    outs: tuple[Dims, ...]
    reduced: frozenset[int]
    labels: frozenset[int]
    extents: list[int]  # of new labels
    letters: dict[str, int]  # how the rule calls them


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
        turns: Mapping[str, int] | None = None,
    ) -> Fit | None:
        """A node among these values; None if an index would have to be two, or is whole. Labels
        that are not fixed may turn out to be others. `turns`: extents of the rule's own labels, if it reads
        windows; what these cross is then no index of the node."""
        letters: dict[str, int] = {}
        fresh: dict[int, Dims] = {}
        extents: list[int] = []

        def new(letter: str, n: int) -> int:
            letters[letter] = len(self.extents) + len(extents)
            extents.append(n)
            return letters[letter]

        for c, n in (turns or {}).items():
            if n > 1:
                new(c, n)
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
        iterated = reduced.union(x for dims in found for x in dims if x is not None)
        iterated = iterated if turns is not None else frozenset(letters.values())
        return Fit(fresh, tuple(found), reduced, iterated, extents, letters)

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
        """Map labels to those that they were joined with."""
        joined = self.joined
        return frozenset([joined.get(x, x) for x in labels] if joined else labels)

    def take(self, fit: Fit, outs: Sequence[int]) -> None:
        self.extents += fit.extents
        self.dims |= fit.fresh
        self.dims |= dict(zip(outs, fit.outs, strict=True))


def _repeats(dims: Dims) -> bool:
    labels = [x for x in dims if x is not None]
    return len(set(labels)) < len(labels)


def reads_elsewhere(node: Node) -> bool:
    """Whether each element of its result is one of its operands' at a place that its index rule and its
    pieces say, or a number: kernels in stages read it there."""
    op = OPS[node.op]
    if op.rearranges or op.moves.places or op.moves.selects == "places" or len(node.specs) != 1:
        return False
    if op.is_view:
        return op.moves.slides or op.moves.selects == "slices"
    return op.moves.pieces is not None and op.run.placed


def turns_of(node: Node, specs: Sequence[Spec]) -> dict[str, int] | None:
    """How many elements windows have along each label of their own; None if an operation does not reduce
    windows, of which kernels in stages read each element where it lies."""
    op = OPS[node.op]
    if op.reduce is None or op.product or not op.run.placed or len(node.specs) != 1:
        return None
    rule = op.indices(tuple(specs), node.specs, node.kw)
    found = {d.over: d.turns for dims in rule.ins for d in dims if isinstance(d, Window) and d.over}
    return found or None


def walks_of(node: Node, specs: Sequence[Spec]) -> list[int]:
    """List the operands, by their places, of which an operation reduces windows that kernels in stages walk."""
    if node.op not in OPS or turns_of(node, specs) is None:
        return []
    rule = OPS[node.op].indices(tuple(specs), node.specs, node.kw)
    return [k for k, dims in enumerate(rule.ins) if any(isinstance(d, Window) for d in dims)]


def indices_of(node: Node, specs: Sequence[Spec]) -> Indices:
    """An op's indices. Kernels have a label for what is gathered or combined along, too, and one for each
    dimension that is read elsewhere."""
    op = OPS[node.op]
    if op.element.running:
        own = LETTERS[: node.specs[0].ndim]
        return Indices((tuple(own),) * len(specs), (tuple(own),))
    if reads_elsewhere(node) or turns_of(node, specs) is not None:
        rule = op.indices(tuple(specs), node.specs, node.kw)
        fresh = map(chr, itertools.count(0x3B1))  # letters that no rule has
        given = [
            tuple(next(fresh) if isinstance(d, Window) else d for d in dims) for dims in rule.ins
        ]
        return replace(rule, ins=tuple(given))
    if not op.moves.places or op.moves.selects:
        return op.indices(tuple(specs), node.specs, node.kw)
    axis, ndim = node.kw["axis"], node.specs[0].ndim
    labels = (*LETTERS[:axis], "Z", *LETTERS[axis + 1 : ndim])  # of the axis, others have 1
    reduced = (("Z", "sum"),) if op.moves.places == "read" else ()
    return Indices((labels,) * len(specs), (labels,), reduced)


def combines(graph: Graph, node: Node) -> tuple[str, tuple[int, ...]]:
    """The monoid of a reduction, and the axes of its first operand along which it combines; no
    monoid, if it is none or has several."""
    if op_of(node.op).reduce is None:
        return "", ()
    rule = indices_of(node, [graph.specs[v] for v in node.inputs])
    gone = dict(rule.reduce)
    kinds = {*gone.values()} or {"sum"}
    axes = tuple([d for d, x in enumerate(rule.ins[0]) if x in gone])
    return (kinds.pop() if len(kinds) == 1 else ""), axes


def gives_places(graph: Graph, node: Node) -> bool:
    """Whether it says where the best elements stand."""
    kind, _ = combines(graph, node)
    return bool(kind) and MONOIDS[kind].width == 2
