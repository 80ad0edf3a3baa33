"""Which products can read rounded operands so that results stay within a tolerance.

The error of a result is the norm of its difference over its norm, of integers the share that differ.

The model. Rounding what product p reads to a format of unit roundoff u changes result o, to first order,
by u c(p, o): c says how sensitive o is to p. Roundings of different products are independent, so what
they change adds up as squares:

    E(o)^2 = sum over p of (u(p) c(p, o))^2

Sensitivities are measured on sample operands, by rounding one product after another to bfloat16. The
error of one number is chance, so each is measured several times with operands scaled by numbers between
1 and 2, which rounds them elsewhere, and the root of the mean square is taken. Other formats follow by
the ratio of their roundoffs; that of float32 counts twice, as its sums round, too.

The choice. From the products that gain most for their share of the error to those that gain least, each
takes the narrowest format with which MARGIN * E(o) and what o is off as written stay within the
tolerance. Then all that was chosen is measured together, also with operands 16 times as large and as
small, where halves overflow; while that does not fit, the product with the greatest share is widened.

Sums of workers' addends take what room the products leave. They stand in the layouts that were chosen, so
they are measured with plans that send them so: all together first, and some at a time if that is too much."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from ostinato.ops.array.expressions import Expression, where
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Shape, Spec, float32, float64, int64
from ostinato.ops.flow.control import CONTROL

from .machine import Machine
from .passes.precision import is_site
from .plan import Target
from .policy import LETTERS

ROUNDOFF = {"b": 2.0**-9, "h": 2.0**-12, "s": 2.0**-24, "-": 0.0}
CODES = {letter: code for code, letter in enumerate(LETTERS)}
MARGIN = 3.0  # of the tolerance over what is estimated,
SMALL_RESULT_MARGIN = 5.0  # and of results of fewer elements, whose errors are more by chance,
SMALL_RESULT = 64  # than these
FEW_PROBES = 8  # plans that measure sums, and as many that are tried
PROBES = 64  # runs that measure sensitivities; products beyond that are measured in groups
OFTEN = 4  # times each group is measured, if they are few
TOGETHER = 6  # times what was chosen is measured
FARTHER = (16.0, 1 / 16)


@dataclass(frozen=True, slots=True)
class RoundingSite:
    """A product whose operands can be rounded."""

    line: str
    op: str
    dtype: DType
    operands: tuple[Shape, ...]
    flops: float
    times: int  # how often it runs, in loops
    formats: str = "bhs"  # letters of those in which products are faster

    @property
    def letters(self) -> str:
        """Its formats, the narrowest first."""
        return "".join(x for x in "bhs" if x in self.formats and self.saved(x) > 0) + "-"

    def saved(self, letter: str) -> int:
        """Bytes that it reads less."""
        to = LETTERS[letter]
        by = 0 if to is None else max(self.dtype.itemsize - to.itemsize, 0)
        return self.times * by * sum(math.prod(shape) for shape in self.operands)

    def seconds(self, machine: Machine, dtype: DType) -> float:
        """Estimate the seconds, all times together, with operands of a dtype. If the machine says
        nothing of it, its rate follows from that of float32 by the bytes of a number."""
        moved = dtype.itemsize * sum(math.prod(shape) for shape in self.operands)
        listed = any(r.dtype == dtype.name for r in machine.products)
        flops = self.flops if listed else self.flops * dtype.itemsize / float32.itemsize
        name = dtype.name if listed else float32.name
        return self.times * machine.kernel_seconds(flops, moved, True, name)

    def gains_on(self, machine: Machine, letter: str) -> bool:
        """Whether it is predicted to be faster so; of machines that do not list the dtypes it is taken
        for granted."""
        to = LETTERS[letter]
        if to is None or not {to.name, self.dtype.name} <= {r.dtype for r in machine.products}:
            return True
        return self.seconds(machine, to) < self.seconds(machine, self.dtype)

    def gain(self, letter: str) -> float:
        """In work, as if operations took time in proportion to the bytes of a number."""
        to = LETTERS[letter]
        return 0.0 if to is None else self.times * self.flops * (self.dtype.itemsize - to.itemsize)


def sites(graph: Graph, times: int = 1) -> Iterator[RoundingSite]:
    """The products of a graph that can be rounded, in the order of a policy's letters."""
    for node in graph.nodes:
        if is_site(graph, node, node.inputs):
            ins = tuple(graph.specs[v].bare for v in node.inputs)
            flops, _ = OPS[node.op].cost(ins, tuple(s.bare for s in node.specs), node.kw)
            shapes = tuple(s.shape for s in ins)
            yield RoundingSite(node.line, node.op, node.specs[0].dtype, shapes, flops, times)
        for _, body in node.subgraphs():
            yield from sites(body, times * int(node.kw.get("trips", 1)))


# -- a graph that can round --------------------------------------------------------------------------
def with_knobs(graph: Graph, target: Target) -> Graph:
    """The graph with two inputs more: of each site what its operands are rounded to (CODES), and by what
    they are multiplied before."""
    count = len(list(sites(graph)))
    whole = Layout.whole(target.mesh)
    knobs = Spec((count,), int64, whole), Spec((count,), float64, whole)
    return _knobbed(graph, len(graph.inputs), knobs, iter(range(count)))


def _knobbed(graph: Graph, at: int, knobs: tuple[Spec, Spec], numbers: Iterator[int]) -> Graph:
    builder = Builder((*graph.inputs[:at], *knobs, *graph.inputs[at:]))
    values = [v if v < at else v + 2 for v in range(len(graph.inputs))]
    bare = knobs[0].bare, knobs[1].bare
    for node in graph.nodes:
        inputs = [values[v] for v in node.inputs]
        params = dict(node.params)
        if is_site(graph, node, node.inputs):
            product = OPS[node.op].product
            assert product is not None
            number = next(numbers)
            for j in (product.left, product.right):
                inputs[j] = _turned(builder, inputs[j], at, number, node.line)
        elif node.op in CONTROL:
            first = int(node.op == "branch")  # behind the condition
            inputs[first:first] = [at, at + 1]
            if "counts" in params:
                params["counts"] = (params["counts"][0] + 2, *params["counts"][1:])
            for name, body in node.subgraphs():
                params[name] = _knobbed(body, int(node.op == "loop"), bare, numbers)
        made = builder.add(node.op, inputs, params, node.specs, node.line)
        values.extend(made[: len(node.specs)])
    return builder.graph([values[v] for v in graph.outputs])


def _turned(builder: Builder, v: int, at: int, number: int, line: str) -> int:
    """An operand as the knobs say."""
    x = Expression(builder, v, line)
    code, scale = (
        Expression(builder, k, line).slice(((number, 1, 1),)).reshape() for k in (at, at + 1)
    )
    scale, found = scale.astype(x.dtype), x
    for letter, to in LETTERS.items():
        if to is not None and to.itemsize < x.dtype.itemsize:
            is_this = (code >= CODES[letter]) & (code < CODES[letter] + 1)
            rounded = (x * scale).astype(to).astype(x.dtype) / scale
            found = where(is_this, rounded, found)
    return found.value


# -- errors ------------------------------------------------------------------------------------------
def relative_error(found: np.ndarray, right: np.ndarray) -> float:
    """How far a result is from what it should be; infinite where only one of them is finite."""
    if right.size == 0 or found.tobytes() == right.tobytes():
        return 0.0
    if right.dtype.kind in "biu":
        return float(np.mean(found != right))
    kind = np.complex128 if right.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = np.asarray(found, kind), np.asarray(right, kind)
        fine = np.isfinite(b)
        same = fine == np.isfinite(a)
        if not same.all():
            return math.inf
        off, size = np.linalg.norm((a - b)[fine]), np.linalg.norm(b[fine])
    if off == 0:
        return 0.0
    return float(off / size) if size > 0 else math.inf


Errors = Callable[[Sequence[int], Sequence[float]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class RoundingChoice:
    """What was chosen, and why."""

    letters: str
    shares: tuple[tuple[float, ...], ...]  # of each site, what rounding it to bfloat16 changes


def choose(
    found: Sequence[RoundingSite],
    errors: Errors,
    written: Sequence[float],
    sizes: Sequence[int],
    allowed: Sequence[float],
    most: str = "",
) -> RoundingChoice:
    """The letters of the sites. `errors`: of each result beside the graph as written, for codes and
    scales of all sites; `written`: what it is off then; `allowed`: its tolerance; `most`: letters that are
    not to be narrower."""
    draw = random.Random(0)
    room = [
        max(t - e, 0.0) / (SMALL_RESULT_MARGIN if n < SMALL_RESULT else MARGIN)
        if t < math.inf
        else math.inf
        for t, e, n in zip(allowed, written, sizes, strict=True)
    ]
    groups = [range(k, len(found), PROBES) for k in range(min(PROBES, len(found)))]
    often = max(1, min(OFTEN, PROBES // max(len(groups), 1)))
    shares = [(0.0,) * len(room)] * len(found)
    for group in groups:
        codes = [CODES["b"] if k in group else 0 for k in range(len(found))]
        runs = [errors(codes, [_scale(draw)] * len(found)) for _ in range(often)]
        share = tuple(math.hypot(*(r[o] for r in runs)) / often**0.5 for o in range(len(room)))
        for k in group:
            shares[k] = tuple(s / len(group) ** 0.5 for s in share)
    letters = _cheapest(found, shares, room, most)
    while set(letters) - {"-"}:
        codes = [CODES[x] for x in letters]
        scales = [*(_scale(draw) for _ in range(TOGETHER)), *FARTHER]
        runs = [errors(codes, [s] * len(found)) for s in scales]
        over = [
            _over(math.hypot(*(r[o] for r in runs)) / len(runs) ** 0.5, room[o])
            for o in range(len(room))
        ]
        worst = max(range(len(room)), key=lambda o: over[o])
        if not over[worst] > 1:
            break
        letters = widened(found, letters, [s[worst] for s in shares])
    return RoundingChoice(letters, tuple(shares))


class Narrowed(Protocol):
    """What can be done in narrower formats."""

    @property
    def letters(self) -> str:
        """Its formats, the narrowest first."""

    def gain(self, letter: str) -> float:
        """Estimate what a format brings, beside others."""


def choose_sums(
    found: Sequence[Narrowed],
    errors: Callable[[str], Sequence[float]],
    room: Sequence[float],
    most: str = "",
) -> RoundingChoice:
    """The letters of sums. `errors`: of each result beside sums that are sent as they are, for letters of
    all; `room`: what these may be."""
    count = len(found)
    shares = ((0.0,) * len(room),) * count
    letters = _cheapest(found, shares, room, most)
    if not set(letters) - {"-"} or _worst(errors(letters), room)[1] <= 1:
        return RoundingChoice(letters, shares)
    can = [k for k in range(count) if letters[k] != "-"]
    measured = list(shares)
    for group in [can[k::FEW_PROBES] for k in range(min(FEW_PROBES, len(can)))]:
        made = errors("".join(letters[k] if k in group else "-" for k in range(count)))
        for k in group:
            ratio = ROUNDOFF["b"] / ROUNDOFF[letters[k]] / len(group) ** 0.5
            measured[k] = tuple(e * ratio for e in made)
    letters = _cheapest(found, measured, room, most)
    for _ in range(FEW_PROBES):
        if not set(letters) - {"-"}:
            break
        worst, over = _worst(errors(letters), room)
        if over <= 1:
            return RoundingChoice(letters, tuple(measured))
        letters = widened(found, letters, [s[worst] for s in measured])
    return RoundingChoice("-" * count, tuple(measured))


def _worst(errors: Sequence[float], room: Sequence[float]) -> tuple[int, float]:
    """The result whose error fits least into what there is for it, and how often that is."""
    over = [_over(e, r) for e, r in zip(errors, room, strict=True)]
    worst = max(range(len(over)), key=lambda o: over[o], default=0)
    return worst, over[worst] if over else 0.0


def room_for_sums(
    products: Sequence[float],
    written: Sequence[float],
    sizes: Sequence[int],
    allowed: Sequence[float],
) -> list[float]:
    """Compute for each result the error that sums may add to that of its products."""
    room = []
    for e, off, n, t in zip(products, written, sizes, allowed, strict=True):
        most = max(t - off, 0.0) / (SMALL_RESULT_MARGIN if n < SMALL_RESULT else MARGIN)
        room.append(math.inf if t == math.inf else math.sqrt(max(most**2 - e**2, 0.0)))
    return room


def _over(error: float, room: float) -> float:
    """How often an error fits into what there is for it, or less."""
    if room == math.inf:
        return 0.0
    return error / room if room else math.inf


def _scale(draw: random.Random) -> float:
    return 2.0 ** draw.random()


def _part(letter: str, share: float) -> float:
    """Compute what a site adds to the square of an error."""
    return (share * ROUNDOFF[letter] / ROUNDOFF["b"]) ** 2 if ROUNDOFF[letter] else 0.0


def _cheapest(
    found: Sequence[Narrowed], shares: Sequence[Sequence[float]], room: Sequence[float], most: str
) -> str:
    letters = ["-"] * len(found)
    left = [r**2 for r in room]

    def worth(k: int) -> float:
        part = max(
            (_part("b", s) / r**2 if r else math.inf) for s, r in zip(shares[k], room, strict=True)
        )
        return found[k].gain(found[k].letters[0]) / part if part else math.inf

    for k in sorted(range(len(found)), key=lambda k: (-worth(k), k)):
        allowed = found[k].letters
        if most:
            allowed = allowed[allowed.find(most[k]) :]
        for letter in allowed:
            parts = [_part(letter, s) for s in shares[k]]
            if all(p <= n for p, n in zip(parts, left, strict=True)):
                letters[k] = letter
                left = [n - p for p, n in zip(parts, left, strict=True)]
                break
    return "".join(letters)


def widened(found: Sequence[Narrowed], letters: str, shares: Sequence[float]) -> str:
    """The letters with that of the greatest share one format wider."""
    worst = max(
        (k for k in range(len(found)) if letters[k] != "-"),
        key=lambda k: _part(letters[k], shares[k]),
    )
    order = found[worst].letters
    wider = order[order.find(letters[worst]) + 1]
    return f"{letters[:worst]}{wider}{letters[worst + 1 :]}"
