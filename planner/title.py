"""What a node is called where people read of it."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.flow.control import ONE_KERNEL, WHOLE


def title(node: Node) -> str:
    """Describe a node in few words."""
    body = node.kw.get("body")
    if not isinstance(body, Graph) or OPS[node.op].made_by != "machine":
        return node.op + _how(node)
    names = [n.op for n in operations(node) if n.inputs and OPS[n.op].view is None]
    parts = len(node.kw.get("parts", ()))
    names = names[: len(names) // max(parts, 1)]
    shown = list(dict.fromkeys(names))
    more = f", ... {len(names)} operations" if len(names) > 4 else ""
    many = f" of {parts} arrays" if parts else ""
    kinds = {op: f"{name} as one kernel" for name, op in ONE_KERNEL.items()}
    name = (kinds | {WHOLE: "all as one kernel"}).get(node.op, "fused")
    return f"{name}({', '.join(shown[:3] if more else shown)}{more}){many}{_how(node)}"


def operations(node: Node) -> Iterator[Node]:
    """Iterate over what a kernel does, also where it consists of kernels."""
    for n in node.kw["body"].nodes:
        yield from operations(n) if _is_step(n) else (n,)


def _is_step(node: Node) -> bool:
    return OPS[node.op].made_by == "machine" and isinstance(node.kw.get("body"), Graph)


def _how(node: Node) -> str:
    """The way that timing took."""
    way = node.kw.get("way", "")
    steps = sum(map(_is_step, node.kw["body"].nodes)) if _is_step(node) else 0
    return f" in {steps} steps" * (steps > 0) + f", {way}" * bool(way)
