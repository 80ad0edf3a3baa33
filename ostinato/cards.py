"""How things show themselves in a notebook: arrays, sessions, clusters, compiled functions.

Each is a card of its own that needs nothing from elsewhere. An array's card draws its parts: the
workers that have the same part share a colour and stand in it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from ostinato.errors import OstinatoError
from ostinato.ops.core.layout import Box, Layout, Shape
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Measured
from ostinato.planner.seeing.explain import CARD, amount, seconds

COLOURS = ("#dcebfb", "#fde7c8", "#dff3dc", "#f3dff0", "#e3e0fa", "#fadcd9", "#d5f0ee", "#f1ecc9")
EDGE = "#5b6b7b"
# pixels of a drawing at the most, and of a side at the least
MAX_WIDTH, MAX_HEIGHT, MIN_SIDE = (220, 140, 26)
MAX_WORKERS = 64  # workers whose parts are drawn
PLANS = 12  # rows of a table
CELL = "padding:2px 14px 2px 0;text-align:left;vertical-align:top"


def card(title: str, *parts: str) -> str:
    """A box with a heading."""
    return (
        f'<div style="{CARD}"><div style="font-weight:600;margin-bottom:6px">{title}</div>'
        f"{''.join(parts)}</div>"
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values; values may be HTML."""
    cells = "".join(
        f'<tr><td style="{CELL};color:#5b6b7b">{html.escape(name)}</td>'
        f'<td style="{CELL}">{value}</td></tr>'
        for name, value in rows
    )
    style = "border-collapse:collapse;margin:0;font:inherit;color:inherit"
    return f'<table style="{style}"><tbody>{cells}</tbody></table>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain text in columns."""
    edge = f"{CELL};border-bottom:1px solid #d6dde4;font-weight:500;color:#5b6b7b"
    head = "".join(f'<th style="{edge}">{html.escape(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{html.escape(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;margin:8px 0 0;font:inherit;'
        f'color:inherit"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


# -- arrays --------------------------------------------------------------------------------
def array_card(spec: Spec, state: str, values: str) -> str:
    """An array: facts, its parts, and values, if they are known."""
    layout = spec.layout
    rows = [
        ("shape", html.escape(" × ".join(map(str, spec.shape)) or "one number")),
        ("dtype", html.escape(spec.dtype.name)),
        ("bytes", _bytes(spec)),
    ]
    if layout is not None and math.prod(layout.mesh) > 1:
        rows.append(("layout", html.escape(str(layout))))
    if state:
        rows.append(("value", html.escape(state)))
    drawn = drawing(spec.shape, layout) if spec.shape and spec.size else ""
    style = "display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start"
    beside = f'<div style="{style}">{facts(rows)}<div>{drawn}</div></div>'
    shown = (
        '<pre style="margin:8px 0 0;color:inherit;background:none;overflow-x:auto">'
        f"{html.escape(values)}</pre>"
        if values
        else ""
    )
    return card("Array", beside, shown)


def _bytes(spec: Spec) -> str:
    layout = spec.layout
    if layout is None or math.prod(layout.mesh) == 1 or layout.stored:
        return amount(spec.nbytes)
    each = math.prod(layout.largest(spec.shape)) * spec.dtype.itemsize
    return f"{amount(spec.nbytes)}, at most {amount(each)} on each worker"


def drawing(shape: Shape, layout: Layout | None) -> str:
    """An array's parts as blocks, over two of its dimensions: those that are split, if there are any."""
    down, right = _two(shape, layout)
    rows = shape[down] if down is not None else 1
    columns = shape[right] if right is not None else 1
    wide, high = _sides(rows, columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 60}" height="{high + 24}" '
        f'viewBox="0 0 {wide + 60} {high + 24}" font-family="system-ui, sans-serif" font-size="10">'
    ]
    for k, (box, ranks) in enumerate(_shares(shape, layout)):
        (t, b), (x, y) = (
            (box[d][0] / n, box[d][1] / n) if d is not None else (0.0, 1.0)
            for d, n in ((down, rows), (right, columns))
        )
        parts.append(
            f'<g><rect x="{1 + x * wide:.1f}" y="{1 + t * high:.1f}" width="{(y - x) * wide:.1f}" '
            f'height="{(b - t) * high:.1f}" fill="{COLOURS[k % len(COLOURS)]}" stroke="{EDGE}"/>'
            f"<title>{html.escape(_told(box, ranks))}</title>"
        )
        label = _ranks(ranks)
        if label and (y - x) * wide > 6 * len(label) and (b - t) * high > 11:
            parts.append(
                f'<text x="{1 + (x + y) / 2 * wide:.1f}" y="{1 + (t + b) / 2 * high + 4:.1f}" '
                f'text-anchor="middle" fill="#1c2733">{label}</text>'
            )
        parts.append("</g>")
    if right is not None:
        parts.append(
            f'<text x="{1 + wide / 2:.0f}" y="{high + 16}" text-anchor="middle" fill="{EDGE}">'
            f"{columns}</text>"
        )
    if down is not None:
        parts.append(f'<text x="{wide + 8}" y="{1 + high / 2 + 4:.0f}" fill="{EDGE}">{rows}</text>')
    return "".join([*parts, "</svg>"])


def _two(shape: Shape, layout: Layout | None) -> tuple[int | None, int | None]:
    """The dimensions that are drawn from top to bottom and from left to right."""
    cut = [] if layout is None else [s for s in layout.splits if isinstance(s, int)]
    wanted = sorted(range(len(shape)), key=lambda d: (d not in cut, shape[d] == 1, -d))[:2]
    if len(wanted) == 1:
        return None, wanted[0]
    down, right = sorted(wanted)
    return down, right


def _sides(rows: int, columns: int) -> tuple[int, int]:
    """Pixels: in proportion, as far as that can be seen."""
    scale = min(MAX_WIDTH / columns, MAX_HEIGHT / rows)
    return (
        round(min(MAX_WIDTH, max(MIN_SIDE, columns * scale))),
        round(min(MAX_HEIGHT, max(MIN_SIDE, rows * scale))),
    )


def _shares(shape: Shape, layout: Layout | None) -> list[tuple[Box, list[int]]]:
    """Boxes, and the workers that have each."""
    if layout is None or layout.stored:
        return [(tuple((0, n) for n in shape), [])]
    found: dict[Box, list[int]] = {}
    workers = math.prod(layout.mesh)
    for rank in range(min(workers, MAX_WORKERS)):
        box = layout.box(shape, rank)
        if all(lo < hi for lo, hi in box):
            found.setdefault(box, []).append(rank if workers > 1 else -1)
    return list(found.items())


def _ranks(ranks: Sequence[int]) -> str:
    """0, or 0–3, or 0, 2."""
    if not ranks or ranks[0] < 0:
        return ""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks)) if len(ranks) < 5 else f"{len(ranks)} workers"


def _told(box: Box, ranks: Sequence[int]) -> str:
    index = ", ".join(f"{lo}:{hi}" for lo, hi in box)
    who = f" on worker{'' if len(ranks) == 1 else 's'} {_ranks(ranks)}" if _ranks(ranks) else ""
    return f"[{index}]{who}"


# -- sessions and clusters -----------------------------------------------------------------
def session_card(session: Any) -> str:
    """Workers, what they keep to, and the plans that they know."""
    target = session.target
    rows = [
        ("workers", f"{target.workers}, {html.escape(_where(session))}"),
        ("mesh", f"{html.escape(' × '.join(map(str, target.mesh)))}{_mesh(target.mesh)}"),
        ("device", html.escape(target.device)),
        ("threads of each", str(session.engine.threads)),
        ("numerics", html.escape(target.numerics)),
        ("precision", html.escape(str(target.precision))),
        ("memory limit", amount(target.memory_limit) if target.memory_limit else "none"),
    ]
    closed = session.engine.closed
    if closed:
        rows = [row for row in rows if row[0] != "threads of each"]
    with session.plans.lock:
        plans = list(session.plans.plans.values())
    return card(
        "Session, closed" if closed else "Session", facts(rows), _plans(plans) if plans else ""
    )


def _where(session: Any) -> str:
    if session.engine.is_elsewhere:
        return "processes of a Dask cluster"
    if hasattr(session.engine, "lead"):
        return "processes of an MPI job"
    return "this process" if session.target.workers == 1 else "threads of this process"


def _mesh(mesh: Sequence[int]) -> str:
    """Small squares, one for each worker, if they are few."""
    if not 1 < math.prod(mesh) <= MAX_WORKERS:
        return ""
    columns = mesh[-1]
    rows = math.prod(mesh) // columns
    squares = "".join(
        f'<rect x="{1 + 13 * x}" y="{1 + 13 * y}" width="11" height="11" rx="2" '
        f'fill="{COLOURS[0]}" stroke="{EDGE}"/>'
        for y in range(rows)
        for x in range(columns)
    )
    return (
        f' <svg xmlns="http://www.w3.org/2000/svg" width="{13 * columns + 2}" height="{13 * rows + 2}" '
        f'style="vertical-align:middle;margin-left:8px">{squares}</svg>'
    )


def _measured(plan: Any) -> Measured | None:
    """Measurements of its runs, unless its workers are gone."""
    try:
        found: Measured | None = plan.measured
    except OstinatoError:
        return None
    return found


def _plans(plans: Sequence[Any]) -> str:
    """Plans that were made or found last."""
    rows = []
    for plan in reversed(plans[-PLANS:]):
        seen = _measured(plan)
        rows.append(
            (
                plan.id[:12],
                plan.called or "outside of functions",
                f"{seen.runs:,}" if seen is not None else "",
                seconds(seen.mean) if seen is not None else "",
                amount(plan.peak_bytes),
            )
        )
    more = (
        f"<p style='margin:6px 0 0'>and {len(plans) - PLANS} more</p>" if len(plans) > PLANS else ""
    )
    return table(("plan", "function", "runs", "a run", "memory per worker"), rows) + more


def cluster_card(cluster: Any) -> str:
    """Its workers and where they can be looked at."""
    link = html.escape(cluster.dashboard_link, quote=True)
    closed = cluster.client is None
    rows = [
        ("workers", f"{cluster.workers} processes of this machine"),
        (
            "dashboard",
            f'<a href="{link}" target="_blank">{link}</a>' if link and not closed else "none",
        ),
        ("scheduler", html.escape(cluster.scheduler_address) or "none"),
    ]
    if cluster.threads is not None:
        rows.append(("threads of all", str(cluster.threads)))
    session = session_card(cluster.session) if cluster.session is not None and not closed else ""
    return card("LocalCluster, closed" if closed else "LocalCluster", facts(rows), session)


# -- compiled functions --------------------------------------------------------------------
def compiled_card(name: str, signature: str, counts: str, plans: Sequence[Any], why: str) -> str:
    """A function's plans, and why it needed the last one."""
    rows = []
    for plan in plans[-PLANS:][::-1]:
        seen = _measured(plan)
        takes = ", ".join(
            f"{n}: {s.bare}" for n, s in zip(plan.names, plan.traced.inputs, strict=False)
        )
        rows.append(
            (
                plan.id[:12],
                takes or "nothing",
                f"{seen.runs:,}" if seen is not None else "",
                seconds(seen.mean) if seen is not None else "",
                amount(plan.peak_bytes),
            )
        )
    known = table(("plan", "takes", "runs", "a run", "memory per worker"), rows) if rows else ""
    said = (
        '<pre style="margin:8px 0 0;color:#5b6b7b;background:none;white-space:pre-wrap">'
        f"{html.escape(why)}</pre>"
    )
    head = f"compiled {html.escape(name)}{html.escape(signature)}"
    return card(head, f"<div>{html.escape(counts)}</div>", known, said)
