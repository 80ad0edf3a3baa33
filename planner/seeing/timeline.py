"""A simulation in words and as a trace for other tools; and a page with a timeline, which profiles have.

The page needs nothing else: bars are drawn as SVG, a bar's kernel, times and line show where the pointer
is, and the wheel zooms."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostinato.ops.core.disk import write_page
from ostinato.planner.plan import export
from ostinato.planner.simulation import Scaled, Simulation

from .explain import amount, seconds

BARS = 6000  # in a picture, at the most


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
color:#4a5a68}.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}"""

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


def page(title: str, content: str) -> str:
    """A page that needs nothing else, around a picture."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>"
        f"{html.escape(title)}</title><style>{_STYLE}</style><main>{content}</main>"
        f"<script>{_SCRIPT}</script></html>\n"
    )


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
            "cat": "product" if e.dense else "",
            "pid": e.workers,
            "tid": e.stream + 1,
            "ts": e.start * 1e6,
            "dur": (e.end - e.start) * 1e6,
            "args": {"line": e.line, "times": e.times},
        }
        for e in found.events
    ]
    write_page(path, json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
