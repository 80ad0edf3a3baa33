"""Addends are sent in a narrower dtype, where the policy of precision allows it.

before                                                after, under `wire=bf16`
%1 = relayout(%0) : float32[n] @ sum -> whole         %1 = round_addends(%0) : bfloat16[n] @ sum
                                                      %2 = relayout(%1) : bfloat16[n] @ whole
                                                      %3 = widen_sum(%2) : float32[n] @ whole

Each worker adds what it gets in float32, in the order of ranks, its own addend rounded like all others;
what it then sends on is rounded once more. So all workers have the same bits, however it is sent.
`communicate` makes a reduce-scatter give the sum as it is. Small sums stay wide: what takes their time is
not their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Shape
from ostinato.ops.core.spec import DType, Spec, is_float
from ostinato.ops.core.user_line import misfit
from ostinato.planner.layouts.costs import relayout_seconds
from ostinato.planner.layouts.shardings import SUM
from ostinato.planner.machine import Machine
from ostinato.planner.plan import Target, largest_part
from ostinato.planner.policy import LETTERS, Chosen, policy_of
from ostinato.planner.rewrite import Values, rebuild

from ostinato.errors import ArgumentError

MIN_ADDEND_BYTES = 4096  # bytes of a worker's addends


def narrow_sums(graph: Graph, target: Target) -> Graph:
    """The pass; nothing unless the policy says so. Idempotent, as it looks at what is wide."""
    policy = policy_of(target.precision)
    letters = list(policy.sums) if isinstance(policy, Chosen) else []
    if not (letters if isinstance(policy, Chosen) else policy.may_send_narrow):
        return graph
    if len(letters) != (len(list(sums(graph, target))) if letters else 0):
        got = f"letters for other sums ({policy!s:.60})"
        needed = "one for each sum of the workers' addends"
        do = (
            "take the policy of a plan of the same function on as many workers, or precision='auto'"
        )
        raise misfit(ArgumentError, "precision='auto ...'", got=got, needed=needed, do=do)
    letters.reverse()

    def narrowed(graph: Graph) -> Graph:
        return rebuild(graph, rule, narrowed)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if not is_sum(node, [builder.specs[v] for v in inputs], target):
            return None
        (end,) = node.specs
        dtype = LETTERS[letters.pop()] if isinstance(policy, Chosen) else policy.sent(end.dtype)
        if dtype is None or dtype.itemsize >= end.dtype.itemsize:
            return None
        return _sent_as(builder, inputs[0], end, dtype, node.line)

    return narrowed(graph)


def _sent_as(builder: Builder, v: int, end: Spec, dtype: DType, line: str) -> Sequence[int]:
    has = builder.specs[v]
    rounded = Spec(has.shape, dtype, has.layout)
    (v,) = builder.add("round_addends", (v,), {"dtype": dtype}, (rounded,), line)
    (v,) = builder.add("relayout", (v,), (), (Spec(end.shape, dtype, end.layout),), line)
    return builder.add("widen_sum", (v,), {"dtype": end.dtype}, (end,), line)


def is_sum(node: Node, ins: Sequence[Spec], target: Target) -> bool:
    """Whether workers add up floats in it, which might be rounded before."""
    if node.op != "relayout" or len(ins) != 1 or target.numerics == "any-workers":
        return False
    (has,), (end,) = ins, node.specs
    if has.layout is None or end.layout is None or not is_float(has.dtype):
        return False
    return has.dtype.itemsize >= 4 and sent_narrow(
        has.shape, has.dtype.itemsize, has.layout, end.layout
    )


def sent_narrow(shape: Shape, itemsize: int, has: Layout, end: Layout) -> bool:
    """Whether workers add up on the way, and enough to be worth it."""
    if SUM not in [s for s, e in zip(has.splits, end.splits, strict=False) if s != e]:
        return False
    return math.prod(has.largest(shape)) * itemsize >= MIN_ADDEND_BYTES


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of workers' addends that can be sent narrower."""

    line: str
    has: Spec
    end: Spec
    times: int  # how often it runs, in loops
    machine: Machine

    def seconds(self, dtype: DType) -> float:
        """Estimate the seconds, all times together, if it is sent in a dtype; with what rounds and
        widens."""
        machine = self.machine
        here, there = self.has.layout, self.end.layout
        assert here is not None
        assert there is not None
        took = relayout_seconds(machine, self.has.shape, dtype.itemsize, here, there)
        if dtype != self.has.dtype:
            touched = largest_part(self.has).nbytes + largest_part(self.end).nbytes
            took += machine.moving_seconds(touched, touched) + 2 * machine.call_seconds
        return self.times * took

    @property
    def letters(self) -> str:
        """List the formats with which it is predicted to be faster, the narrowest first. Not
        float16: sums of other operands might be too large for it."""
        return "".join(letter for letter in "bs" if self.gain(letter) > 0) + "-"

    def gain(self, letter: str) -> float:
        """Seconds, as predicted."""
        to = LETTERS[letter]
        if to is None or to.itemsize >= self.has.dtype.itemsize:
            return 0.0
        return self.seconds(self.has.dtype) - self.seconds(to)


def sums(graph: Graph, target: Target, times: int = 1) -> Iterator[Sum]:
    """The sums of a graph for which layouts were chosen, in the order of a policy's letters."""
    for node in graph.nodes:
        ins = [graph.specs[v] for v in node.inputs]
        if is_sum(node, ins, target):
            yield Sum(node.line, ins[0], node.specs[0], times, target.machine)
        for _, body in node.subgraphs():
            yield from sums(body, target, times * int(node.kw.get("trips", 1)))
