"""A plan as a picture: SVG, layer by layer, drawn from top to bottom.

networkx gives the layers; the order within one follows the mean position of what feeds a node, so
that lines seldom cross.
"""

from __future__ import annotations

import html
import os

from ostinato.ops.collective import collective_of
from ostinato.ops.core.disk import write_page
from ostinato.ops.core.registry import OPS
from ostinato.planner.passes.memory import CONTROL
from ostinato.planner.plan import Plan, export
from ostinato.planner.prediction import REPEATED, repeats
from ostinato.planner.title import title

COLOURS = {
    "input": ("#e8eef6", "#3b6ea5"),
    "compute": ("#ffffff", "#5b6b7b"),
    "dense": ("#fdf3dd", "#d9a441"),
    "collective": ("#fbe4e2", "#c0504d"),
    "control": ("#ece4f4", "#7d5ba6"),
    "output": ("#e4f2e6", "#5aa469"),
}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 216, 40, 18, 34, 24
MOST = 600  # nodes that a picture may have and still be looked at


@export
def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the picture of a plan's program."""
    write_page(path, svg(plan))


def svg(plan: Plan) -> str:
    """The picture as text."""
    labels, kinds, edges = _graph(plan)
    places, width, height = _layout(list(labels), edges)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 30}" '
        f'viewBox="0 0 {width} {height + 30}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height + 30}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="20" font-weight="600" fill="#1c2733">plan {plan.id[:12]}</text>',
    ]
    for a, b in edges:
        (x1, y1), (x2, y2) = places[a], places[b]
        top, bottom = y1 + HEIGHT, y2
        middle = (top + bottom) / 2
        parts.append(
            f'<path d="M{x1:.0f},{top:.0f} C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{bottom:.0f}" '
            'fill="none" stroke="#a9b4bf"/>'
        )
    for name, (head, detail) in labels.items():
        x, y = places[name]
        fill, stroke = COLOURS[kinds[name]]
        parts.append(
            f'<g><rect x="{x - WIDTH / 2:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            f'fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle" fill="#1c2733">'
            f"{html.escape(head)}</text>"
            f'<text x="{x:.0f}" y="{y + 31:.0f}" text-anchor="middle" fill="#5b6b7b" font-size="10">'
            f"{html.escape(detail)}</text></g>"
        )
    return "\n".join([*parts, "</svg>\n"])


def _graph(
    plan: Plan,
) -> tuple[dict[str, tuple[str, str]], dict[str, str], list[tuple[str, str]]]:
    """Names with what to write in them, their kinds, and who feeds whom; views and numbers left out."""
    program, graph = plan.program, plan.program.graph
    called = dict(enumerate(plan.names))
    labels: dict[str, tuple[str, str]] = {}
    kinds: dict[str, str] = {}
    edges: dict[tuple[str, str], None] = {}
    source: list[str] = []
    for k, spec in enumerate(graph.inputs):
        labels[f"i{k}"] = (_short(called.get(k, f"input {k}")), _short(str(spec)))
        kinds[f"i{k}"] = "input"
        source.append(f"i{k}")
    for k, node in enumerate(graph.nodes):
        slot = program.slots[graph.starts[k]]
        if slot.kind == "alias":
            source.extend(source[v] for v, _ in zip(node.inputs, node.specs, strict=False))
            continue
        if slot.kind == "constant" or len(labels) >= MOST:
            source.extend([""] * len(node.specs))
            continue
        kind = collective_of(node.op, node.kw)
        control = node.op in CONTROL
        name = kind or title(node) + (f" x {repeats(node)}" if node.op in REPEATED else "")
        labels[f"n{k}"] = (_short(name), _short(str(node.specs[0]) if node.specs else ""))
        dense = OPS[node.op].dense
        kinds[f"n{k}"] = (
            "collective" if kind else "control" if control else "dense" if dense else "compute"
        )
        for v in node.inputs:
            if source[v]:
                edges[source[v], f"n{k}"] = None
        source.extend([f"n{k}"] * len(node.specs))
    for k, v in enumerate(graph.outputs):
        labels[f"o{k}"], kinds[f"o{k}"] = (f"result {k}", _short(str(graph.specs[v]))), "output"
        if source[v]:
            edges[source[v], f"o{k}"] = None
    return labels, kinds, list(edges)


def _short(text: str) -> str:
    return text if len(text) <= 34 else text[:33] + "…"


def _layout(
    names: list[str], edges: list[tuple[str, str]]
) -> tuple[dict[str, tuple[float, float]], int, int]:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(edges)
    layers = [sorted(layer, key=names.index) for layer in nx.topological_generations(graph)]
    order: dict[str, float] = {}
    for layer in layers:
        feeds = {
            n: [order[p] for p in graph.predecessors(n) if p in order] or [float(k)]
            for k, n in enumerate(layer)
        }
        layer.sort(key=lambda n: sum(feeds[n]) / len(feeds[n]))
        for k, n in enumerate(layer):
            order[n] = k - len(layer) / 2
    widest = max((len(layer) for layer in layers), default=1)
    width = 2 * MARGIN + widest * (WIDTH + GAP_X)
    places: dict[str, tuple[float, float]] = {}
    for depth, layer in enumerate(layers):
        start = (width - len(layer) * (WIDTH + GAP_X) + GAP_X) / 2 + WIDTH / 2
        for k, n in enumerate(layer):
            places[n] = (start + k * (WIDTH + GAP_X), 30 + MARGIN + depth * (HEIGHT + GAP_Y))
    return places, int(width), int(2 * MARGIN + len(layers) * (HEIGHT + GAP_Y))
