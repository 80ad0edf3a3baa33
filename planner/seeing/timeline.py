"""A simulation for people: in words, as a page with a timeline, as a trace for other tools.

The page needs nothing else: bars are drawn as SVG, a bar's kernel, times and line show where the pointer
is, and the wheel zooms."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.ops.core.disk import write_page
from ostinato.planner.plan import export
from ostinato.planner.simulation import COMPUTE, Event, Scaled, Simulation, WorkerClass

from .explain import amount, seconds

SHOWN = 12  # classes of workers in the picture
BARS = 6000  # of them at the most
COLLECTIVES = {
    "all_reduce": "#d9a441",
    "all_gather": "#c0504d",
    "reduce_scatter": "#e07b39",
    "all_to_all": "#b05c8a",
    "halo": "#5aa469",
    "broadcast": "#a3a13c",
}
PRODUCT = "#3b6ea5"
OTHER = "#7fa7d1"
REST = "#c9d3dc"


@export
def simulation_in_words(found: Simulation) -> str:
    mesh = "x".join(map(str, found.mesh))
    lines = [
        f"simulated on {found.workers} workers (mesh {mesh}) of {found.machine.name}: "
        f"{seconds(found.seconds)} a run",
        f"  computing {seconds(found.computing)} on average, "
        f"imbalance {found.imbalance:.0%}, {len(found.classes)} "
        + ("class of workers" if len(found.classes) == 1 else "classes of workers"),
    ]
    lines += [
        f"  {link.name}: {amount(link.bytes)} between workers in {link.collectives} collectives, "
        f"{seconds(link.seconds)} ({link.seconds / found.seconds:.0%}) of each worker's link"
        for link in found.links
        if found.seconds
    ]
    if found.peak_bytes:
        room = f" of {amount(found.machine.memory)}" if found.machine.memory < math.inf else ""
        lines.append(f"  memory {amount(found.peak_bytes)}{room} per worker")
    return "\n".join(lines)


@export
def scaled_in_words(row: Scaled) -> str:
    if row.seconds == math.inf:
        return f"  {row.workers:>6} workers: no room"
    return (
        f"  {row.workers:>6} workers: {seconds(row.seconds)}, efficiency {row.efficiency:.0%}, "
        f"{amount(row.peak_bytes)} each"
    )


# -- the page ------------------------------------------------------------------------------------
_STYLE = """body{font:13px/1.45 system-ui,sans-serif;color:#1c2733;background:#f5f7f9;margin:0}
main{max-width:1240px;margin:0 auto;padding:20px}h1{font-size:17px;margin:0 0 12px}
section{background:#fff;border:1px solid #d6dde4;border-radius:8px;padding:12px 16px;margin:0 0 14px}
h2{font-size:13px;margin:0 0 8px;color:#4a5a68}.facts{display:flex;flex-wrap:wrap;gap:10px 34px}
.facts b{display:block;font-size:18px;font-variant-numeric:tabular-nums}.facts span{color:#5b6b7b}
table{border-collapse:collapse;width:100%}td,th{padding:3px 12px 3px 0;text-align:left}
th{color:#5b6b7b;font-weight:500;border-bottom:1px solid #d6dde4}td.n,th.n{text-align:right;
font-variant-numeric:tabular-nums}pre{margin:0;white-space:pre-wrap;font-size:12px}
svg{display:block;width:100%;background:#fff}svg text{font:11px system-ui,sans-serif;fill:#4a5a68}
.bar:hover{stroke:#1c2733;stroke-width:1}#tip{min-height:20px;color:#1c2733;
font-variant-numeric:tabular-nums}.key{display:flex;flex-wrap:wrap;gap:4px 16px;margin-top:6px;
color:#4a5a68}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.meter{display:inline-block;width:120px;height:8px;background:#eef1f4;border-radius:4px;
overflow:hidden;vertical-align:middle}.meter i{display:block;height:8px;background:#3b6ea5}"""

_SCRIPT = """const s=document.querySelector('svg.time'),t=document.getElementById('tip');
const w=+s.dataset.wide;let a=0,b=1;
function draw(){for(const r of s.querySelectorAll('.bar')){const x=(+r.dataset.a-a)/(b-a),
y=(+r.dataset.b-a)/(b-a),l=Math.max(0,Math.min(1,x)),h=Math.max(0,Math.min(1,y));
r.setAttribute('x',+s.dataset.left+l*w);r.setAttribute('width',h>l?Math.max(.4,(h-l)*w):0)}
for(const m of s.querySelectorAll('.tick')){const f=+m.dataset.f,v=(a+f*(b-a))*+s.dataset.span;
m.textContent=v==0?'0':v>=1?v.toPrecision(4)+' s':v>=1e-3?(v*1e3).toPrecision(4)+' ms':
(v*1e6).toPrecision(4)+' \\u00b5s'}}
s.addEventListener('mousemove',e=>{const d=e.target.dataset;t.textContent=d&&d.t?d.t:''});
s.addEventListener('wheel',e=>{e.preventDefault();const q=s.getBoundingClientRect(),
k=q.width/s.viewBox.baseVal.width,f=Math.max(0,Math.min(1,((e.clientX-q.left)/k-s.dataset.left)/w)),
c=a+f*(b-a),z=e.deltaY<0?.8:1.25,n=Math.min(1,(b-a)*z);a=Math.max(0,Math.min(1-n,c-f*n));b=a+n;
draw()},{passive:false});
let from=null;s.addEventListener('mousedown',e=>{from=[e.clientX,a,b]});
window.addEventListener('mouseup',()=>{from=null});
window.addEventListener('mousemove',e=>{if(!from)return;const q=s.getBoundingClientRect(),
k=q.width/s.viewBox.baseVal.width,n=from[2]-from[1],
d=(from[0]-e.clientX)/k/w*n;a=Math.max(0,Math.min(1-n,from[1]+d));b=a+n;draw()});
s.addEventListener('dblclick',()=>{a=0;b=1;draw()});draw();"""


@export
def timeline(found: Simulation, path: str | os.PathLike[str], about: str = "") -> None:
    """Write the page."""
    parts = [
        f"<h1>{html.escape(_head(found))}</h1>",
        f'<section class="facts">{"".join(_facts(found))}</section>',
        f"<section><h2>one run</h2>{_picture(found)}<div id=tip></div>"
        f'<div class="key">{_key(found)}</div></section>',
        f"<section><h2>links</h2>{_links(found)}</section>" if found.links else "",
        f"<section><h2>workers</h2>{_classes(found)}</section>",
        f"<section><h2>what takes longest</h2>{_longest(found)}</section>",
        f"<section><h2>the plan</h2><pre>{html.escape(about)}</pre></section>" if about else "",
    ]
    write_page(path, page(_head(found), "".join(parts)))


def page(title: str, content: str) -> str:
    """A page that needs nothing else, around a picture."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>"
        f"{html.escape(title)}</title><style>{_STYLE}</style><main>{content}</main>"
        f"<script>{_SCRIPT}</script></html>\n"
    )


def _head(found: Simulation) -> str:
    mesh = " x ".join(map(str, found.mesh))
    return f"{seconds(found.seconds)} a run on {mesh} workers of {found.machine.name}, simulated"


def _facts(found: Simulation) -> Iterator[str]:
    share = found.computing / found.seconds if found.seconds else 0.0
    rows = [
        ("a run", seconds(found.seconds)),
        ("in kernels", f"{share:.0%}"),
        ("imbalance", f"{found.imbalance:.0%}"),
        ("memory per worker", amount(found.peak_bytes)),
        *((f"by {link.name}", amount(link.bytes)) for link in found.links),
    ]
    for name, value in rows:
        yield f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"


@dataclass(frozen=True, slots=True)
class Bar:
    """What was done in a lane, from one second to another; shares of a lane's height are stacked."""

    lane: int
    begin: float
    end: float
    colour: str
    told: str
    depth: int = 0


def picture(lanes: Sequence[tuple[str, str]], bars: Iterable[Bar], span: float) -> str:
    """A row for each lane; widths are set by the script, and drawn without one, too."""
    left, wide, high = 190, 1000, 20
    deep = [1] * len(lanes)
    bars = sorted(bars, key=lambda b: b.begin - b.end)[:BARS]
    for bar in bars:
        deep[bar.lane] = max(deep[bar.lane], bar.depth + 1)
    at, below = [], 24
    for count in deep:
        at.append(below)
        below += high + (count - 1) * (high - 6)
    tall = below + 10
    drawn = []
    for (who, name), y, count in zip(lanes, at, deep, strict=True):
        height = high - 4 + (count - 1) * (high - 6)
        drawn.append(f'<text x="6" y="{y + 12}">{html.escape(who)}</text>')
        drawn.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>'
        )
        drawn.append(f'<rect x="{left}" y="{y}" width="{wide}" height="{height}" fill="#f5f7f9"/>')
    for k in range(6):
        x = left + wide * k / 5
        drawn.append(
            f'<line x1="{x}" x2="{x}" y1="18" y2="{tall - 8}" stroke="#d6dde4"/>'
            f'<text class="tick" data-f="{k / 5}" x="{x}" y="12" '
            f'text-anchor="{"end" if k == 5 else "middle"}">'
            f"{seconds(span * k / 5)}</text>"
        )
    for bar in bars:
        a, b = bar.begin / span, min(1.0, bar.end / span)
        drawn.append(
            f'<rect class="bar" x="{left + a * wide:.2f}" y="{at[bar.lane] + bar.depth * (high - 6)}" '
            f'width="{max(0.4, (b - a) * wide):.2f}" height="{high - 4}" rx="1" '
            f'fill="{bar.colour}" data-a="{a:.7f}" data-b="{b:.7f}" '
            f'data-t="{html.escape(bar.told, quote=True)}"/>'
        )
    return (
        f'<svg class="time" viewBox="0 0 {left + wide + 20} {tall}" data-left="{left}" '
        f'data-wide="{wide}" data-span="{span:.9g}">{"".join(drawn)}</svg>'
    )


def _picture(found: Simulation) -> str:
    """A row for each stream of each class."""
    streams = found.streams
    rows = [(c, s) for c in range(min(len(found.classes), SHOWN)) for s in streams]
    lanes = [(_who(found.classes[c]) if s == COMPUTE else "", streams[s]) for c, s in rows]
    lane = {row: k for k, row in enumerate(rows)}
    bars = [
        Bar(lane[e.workers, e.stream], e.start, e.end, _colour(e), _told(e))
        for e in found.events
        if (e.workers, e.stream) in lane
    ]
    return picture(lanes, bars, found.seconds or 1.0)


def _who(group: WorkerClass) -> str:
    return f"{group.workers} workers" if group.workers > 1 else f"worker {group.first}"


def _told(event: Event) -> str:
    line = f", {event.line}" if event.line else ""
    return (
        f"{event.name}: {seconds(event.end - event.start)}, from {seconds(event.start)}"
        f" to {seconds(event.end)}{line}"
    )


def _colour(event: Event) -> str:
    if event.times > 1:
        return REST
    if event.stream != COMPUTE:
        return COLLECTIVES.get(event.name, "#d9a441")
    return PRODUCT if event.dense else OTHER


def _key(found: Simulation) -> str:
    kinds = {e.name for e in found.events if e.stream != COMPUTE}
    rows = [("products", PRODUCT), ("other kernels", OTHER)]
    rows += [(name, colour) for name, colour in COLLECTIVES.items() if name in kinds]
    if any(e.times > 1 for e in found.events):
        rows.append(("more iterations", REST))
    shown = "".join(f'<span><i style="background:{c}"></i>{name}</span>' for name, c in rows)
    return shown + "<span>the wheel zooms, a double click shows all</span>"


def _links(found: Simulation) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(link.name)}<td class=n>{amount(link.bytes)}"
        f"<td class=n>{link.collectives}<td class=n>{seconds(link.seconds)}"
        f'<td><span class="meter"><i style="width:{_share(link.seconds, found):.1f}%"></i></span> '
        f"{_share(link.seconds, found):.0f} %"
        for link in found.links
    )
    return (
        "<table><tr><th>link<th class=n>between all workers<th class=n>collectives"
        f"<th class=n>of each worker's link<th>of a run{rows}</table>"
    )


def _share(spent: float, found: Simulation) -> float:
    return min(100.0, 100 * spent / found.seconds) if found.seconds else 0.0


def _classes(found: Simulation) -> str:
    rows = "".join(
        f"<tr><td>{_who(c)}<td class=n>{c.first}<td class=n>{seconds(c.computing)}"
        f"<td class=n>{seconds(c.waiting)}"
        f'<td><span class="meter"><i style="width:{_share(c.computing, found):.1f}%"></i></span> '
        f"{_share(c.computing, found):.0f} %"
        for c in found.classes[:SHOWN]
    )
    more = len(found.classes) - SHOWN
    rest = f"<tr><td>and {more} more classes" if more > 0 else ""
    return (
        "<table><tr><th>workers<th class=n>first of them<th class=n>computing<th class=n>waiting"
        f"<th>of a run{rows}{rest}</table>"
    )


def _longest(found: Simulation) -> str:
    """Of the first class of workers, by what is done and the user's line."""
    spent: dict[tuple[str, str], list[float]] = {}
    for e in found.events:
        if e.workers == 0:
            entry = spent.setdefault((e.name, e.line), [0.0, 0])
            entry[0] += e.end - e.start
            entry[1] += 1
    most = sorted(spent.items(), key=lambda item: -item[1][0])[:12]
    rows = "".join(
        f"<tr><td>{html.escape(name)}<td class=n>{count}<td class=n>{seconds(took)}"
        f"<td>{html.escape(line)}"
        for (name, line), (took, count) in most
    )
    return f"<table><tr><th>operation<th class=n>times<th class=n>together<th>line{rows}</table>"


# -- for other tools -----------------------------------------------------------------------------
@export
def trace(found: Simulation, path: str | os.PathLike[str]) -> None:
    """Write Chrome's trace format: a process for each class of workers, a thread for each stream."""
    streams = found.streams
    rows: list[dict[str, object]] = []
    for c, group in enumerate(found.classes):
        who = f"{group.workers} workers like {group.first}"
        rows.append({"ph": "M", "name": "process_name", "pid": c, "args": {"name": who}})
        rows += [
            {"ph": "M", "name": "thread_name", "pid": c, "tid": s + 1, "args": {"name": name}}
            for s, name in streams.items()
        ]
    rows += [
        {
            "ph": "X",
            "name": e.name,
            "pid": e.workers,
            "tid": e.stream + 1,
            "ts": e.start * 1e6,
            "dur": (e.end - e.start) * 1e6,
            "args": {"line": e.line},
        }
        for e in found.events
    ]
    write_page(path, json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
