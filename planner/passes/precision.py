"""Floating arithmetic in the dtypes of the target's policy: what is kept (storage.py), what products read
of their operands, once for each value, and what products and sums add up in.

before                                     after, under `mixed_bf16`
%2 = matmul(%0, %1) : float32[4,5]         %2 = astype(%0; dtype=dtype bfloat16) : bfloat16[4,6]
return %2                                  %3 = astype(%2; dtype=dtype float32) : float32[4,6]
                                           %4 = astype(%1; dtype=dtype bfloat16) : bfloat16[6,5]
                                           %5 = astype(%4; dtype=dtype float32) : float32[6,5]
                                           %6 = matmul(%3, %5) : float32[4,5]
                                           return %6

This says what is computed, on every machine alike. One that multiplies bfloat16 into float32 reads the
rounded values as they are (fusion/narrow_operands.py); others multiply them in float32."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.ops.array.shape import accumulator
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, Spec, float32, is_float, is_inexact
from ostinato.ops.core.user_line import misfit
from ostinato.planner.plan import Target
from ostinato.planner.policy import LETTERS, Chosen, policy_of
from ostinato.planner.rewrite import Values, map_bodies, rebuild

from ostinato.errors import ArgumentError, OstinatoError

from .loop_casts import LOOPS, cast_before
from .storage import cast_once, store_in


def mix_precision(graph: Graph, target: Target) -> Graph:
    """The pass; nothing if the policy is "as-written"."""
    policy = policy_of(target.precision)
    if isinstance(policy, Chosen):
        letters = list(reversed(policy.products))
        made = _rounded(graph, letters)
        if letters:
            raise _misfit(policy.products)
        return made
    storage, compute, accumulate = policy.dtypes
    if storage is not None:
        graph = store_in(graph, storage)
    if accumulate is None or (storage is compute and compute is accumulate):
        return graph
    return _mixed(graph, compute, accumulate, storage is not None)


def is_site(builder: Builder | Graph, node: Node, inputs: Sequence[int]) -> bool:
    """Whether a node multiplies numbers that can be rounded."""
    dtypes = {s.dtype for s in (*(builder.specs[v] for v in inputs), *node.specs)}
    kept = node.specs[-1].dtype if node.specs else None
    wide = kept is not None and is_float(kept) and kept.itemsize > 2
    return wide and OPS[node.op].product is not None and dtypes == {kept}


def _rounded(graph: Graph, letters: list[str]) -> Graph:
    """Each product with what it reads rounded as its letter says, of which the last is the next; sums in
    float32, which widen after."""

    def bodies(graph: Graph) -> Graph:
        return _rounded(graph, letters)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if node.op in LOOPS:
            return cast_before(builder, map_bodies(node, bodies), inputs)
        if not is_site(builder, node, inputs):
            return None
        if not letters:
            raise _misfit("too few")
        compute = LETTERS[letters.pop()]
        return None if compute is None else multiplied(builder, node, inputs, compute, float32)

    return rebuild(graph, rule, bodies)


def _misfit(letters: str) -> OstinatoError:
    got = f"letters for other products ({letters:.40})"
    needed = "one for each product of the function"
    do = "take the policy of a plan of the same function, or precision='auto'"
    return misfit(ArgumentError, "precision='auto ...'", got=got, needed=needed, do=do)


def _mixed(graph: Graph, compute: DType | None, accumulate: DType, anyhow: bool) -> Graph:
    """Products and sums in the policy's dtypes; products wider than `accumulate` only if `anyhow`."""

    def bodies(graph: Graph) -> Graph:
        return _mixed(graph, compute, accumulate, anyhow)

    def rule(builder: Builder, node: Node, inputs: Values) -> Sequence[int] | None:
        if node.op in LOOPS:
            return cast_before(builder, map_bodies(node, bodies), inputs)
        kept = node.specs[-1].dtype
        if OPS[node.op].product is not None:
            specs = [*(builder.specs[v] for v in inputs), *node.specs]
            if not is_float(kept) or any(s.dtype != kept for s in specs):
                return None
            if kept.itemsize > accumulate.itemsize and not anyhow:
                return None
            return multiplied(builder, node, inputs, compute, accumulate)
        if _adds_up(node, [builder.specs[v] for v in inputs]):
            return _added(builder, node, inputs, accumulate)
        return None

    return rebuild(graph, rule, bodies)


def multiplied(
    builder: Builder, node: Node, inputs: Values, compute: DType | None, accumulate: DType
) -> Sequence[int] | None:
    """A product of what it reads rounded, added up in a dtype, with results as they were."""
    kept = node.specs[0].dtype
    rounds = compute is not None and compute.itemsize < kept.itemsize
    work = accumulate if accumulate.itemsize > accumulator(kept).itemsize or rounds else kept
    if not rounds and work == kept:
        return None
    read = list(inputs)
    product = OPS[node.op].product
    assert product is not None
    for j, v in enumerate(inputs):
        if rounds and compute is not None and j in (product.left, product.right):
            v = cast_once(builder, v, compute, node.line)
        read[j] = cast_once(builder, v, work, node.line)
    specs = [Spec(s.shape, work) for s in node.specs]
    made = builder.add(node.op, read, node.params, specs, node.line)
    return [cast_once(builder, v, kept, node.line) for v in made]


def _adds_up(node: Node, ins: Sequence[Spec]) -> bool:
    """Whether it makes sums or products of many elements, which are floating."""
    if not ins or any(node.subgraphs()) or not is_inexact(node.specs[-1].dtype):
        return False
    if OPS[node.op].moves.converts or OPS[node.op].made_by != "users":
        return False
    if any(key == "dtype" for key, _ in node.params):
        return True
    reduced = OPS[node.op].indices(tuple(ins), node.specs, node.kw).reduce
    return any(not MONOIDS[monoid].exact for _, monoid in reduced)


def _added(builder: Builder, node: Node, inputs: Values, accumulate: DType) -> Sequence[int] | None:
    kept = [s.dtype for s in node.specs]
    if not all(is_float(d) for d in (kept[-1], *(builder.specs[v].dtype for v in inputs))):
        return None
    if accumulator(kept[-1]).itemsize >= accumulate.itemsize:
        return None
    read = [cast_once(builder, v, accumulate, node.line) for v in inputs]
    params = {k: accumulate if k == "dtype" else v for k, v in node.params}
    made = OPS[node.op].infer(*(builder.specs[v].bare for v in read), **params)
    specs = made if isinstance(made, tuple) else (made,)
    found = builder.add(node.op, read, params, specs, node.line)
    return [cast_once(builder, v, d, node.line) for v, d in zip(found, kept, strict=True)]
