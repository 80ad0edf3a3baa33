"""What a ledger says, as pieces of HTML: for the page of the dashboard, and for reports."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ostinato.planner.seeing.explain import amount, seconds

from .ledger import Ledger

COMPUTE, TALK, WAIT = "#3b6ea5", "#d9a441", "#c0504d"
SHOWN = 16  # workers in a timeline
READY, MAKING = "#5aa469", "#b9c6d3"
OPERANDS, ARENA = "#5aa469", "#7d5ba6"
STYLE = """
.bk-clearfix { width: 100%; }
.ost { font: 13px/1.45 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c2733;
  font-variant-numeric: tabular-nums; }
.ost h1 { font-size: 20px; font-weight: 600; margin: 4px 0 2px; }
.ost h2 { font-size: 14px; font-weight: 600; margin: 0 0 6px; }
.ost .soft { color: #5b6b7b; }
.ost .facts { color: #5b6b7b; display: flex; flex-wrap: wrap; gap: 4px 28px; }
.ost .facts b { color: #1c2733; font-weight: 600; }
.ost table { border-collapse: collapse; width: 100%; }
.ost th { text-align: left; font-weight: 500; color: #5b6b7b; border-bottom: 1px solid #d6dde4; }
.ost th, .ost td { padding: 3px 14px 3px 0; white-space: nowrap; vertical-align: middle; }
.ost th:last-child, .ost td:last-child { padding-right: 0; }
.ost td.n, .ost th.n { text-align: right; }
.ost tbody tr + tr td { border-top: 1px solid #f0f3f6; }
.ost .bar { display: flex; height: 14px; border-radius: 3px; overflow: hidden; background: #eef1f4;
  position: relative; min-width: 70px; }
.ost .bar span { display: block; height: 100%; }
.ost .bar i { position: absolute; top: 0; bottom: 0; width: 2px; background: #1c2733; }
.ost .bar s { position: absolute; top: 0; bottom: 0; box-shadow: inset -1px 0 #fff; }
.ost .wide { width: 100%; }
.ost .key { display: inline-flex; align-items: center; gap: 5px; margin-right: 14px; color: #5b6b7b; }
.ost .key::before { content: ""; width: 10px; height: 10px; border-radius: 2px; background: var(--c); }
.ost .scroll { overflow: auto; max-height: 560px; }
.ost code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
"""

esc = html.escape


def panel(title: str, body: str, note: str = "") -> str:
    said = f' <span class="soft" style="font-weight:400">{note}</span>' if note else ""
    return f'<div class="ost"><h2>{title}{said}</h2>{body}</div>'


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), wide: int = -1
) -> str:
    """Text in columns. `numbers`: columns of these; `wide`: the one that has the room that is left."""

    def cell(tag: str, k: int, text: str) -> str:
        kind = ' class="n"' if k in numbers else ' class="wide"' * (tag == "th" and k == wide)
        return f"<{tag}{kind}>{text}</{tag}>"

    head = "".join(cell("th", k, text) for k, text in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", k, text) for k, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bar(parts: Sequence[tuple[str, str, float]], whole: float, marks: Sequence[float] = ()) -> str:
    """Parts of a whole, each with its name and colour, and marks on the way."""
    whole = whole or 1.0
    spans = "".join(
        f'<span title="{esc(name)}" style="width:{100 * part / whole:.2f}%;background:{colour}"></span>'
        for name, colour, part in parts
    )
    lines = "".join(f'<i style="left:calc({100 * mark / whole:.2f}% - 1px)"></i>' for mark in marks)
    return f'<div class="bar">{spans}{lines}</div>'


def _keys(*keys: tuple[str, str]) -> str:
    found = "".join(
        f'<span class="key" style="--c:{colour}">{name}</span>' for name, colour in keys
    )
    return f'<div style="margin-top:8px">{found}</div>'


_QUEUE_KEYS = _keys(("ready", READY), ("being made", MAKING))
_COST_KEYS = _keys(("on a core", COMPUTE), ("waiting", WAIT))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "–"


def rate(value: float) -> str:
    """So many per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_of(took: float) -> str:
    return seconds(took) if took > 0 else "–"


# -- panels --------------------------------------------------------------------------------
def facts(ledger: Ledger, always: bool = False) -> str:
    """The first lines of a page."""
    count = len(ledger.workers)
    runs = sum(ledger.total(p).runs for p in ledger.ran)
    mesh = " × ".join(map(str, ledger.mesh))
    said = [
        ("workers", str(count)),
        ("mesh", mesh),
        ("plans", str(len(ledger.ran))),
        ("iterations", f"{runs:,.0f}"),
    ]
    if always:
        said.append(("over", time_of(max((w.span for w in ledger.crew), default=0.0))))
    else:
        said.append(("iterations per second", rate(sum(map(ledger.rate, ledger.ran)))))
    said.append(("imbalance", f"{100 * ledger.imbalance(always):.0f} %"))
    text = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in said)
    return f'<div class="ost"><h1>Ostinato</h1><div class="facts">{text}</div></div>'


HEADS = (
    "plan",
    "name",
    "runs",
    "runs per s",
    "per run",
    "predicted",
    "drift",
    "compute",
    "comm.",
    "waiting",
)


def plan_row(ledger: Ledger, plan: str) -> tuple[str, ...]:
    total, share = ledger.total(plan), ledger.plan_shares(plan)
    predicted = ledger.plans[plan]["predicted"] if plan in ledger.plans else 0.0
    return (
        plan[:8],
        ledger.called(plan),
        f"{total.runs:,.0f}",
        rate(ledger.rate(plan)),
        time_of(total.each),
        time_of(predicted),
        f"x {total.each / predicted:.2g}" if predicted and total.each else "",
        _share(share.compute, share.total),
        _share(share.communication, share.total),
        _share(share.waiting, share.total),
    )


def plans(ledger: Ledger) -> str:
    rows = (
        [f"<code>{row[0]}</code>", *map(esc, row[1:])]
        for row in (plan_row(ledger, p) for p in ledger.ran)
    )
    return panel("Plans", _table(HEADS, rows, range(2, len(HEADS))))


def workers(ledger: Ledger, always: bool = False) -> str:
    """Where the time of each worker goes."""
    rows = []
    for worker, share in zip(ledger.crew, ledger.shares(always), strict=True):
        parts = [
            ("compute", COMPUTE, share.compute),
            ("communication", TALK, share.communication),
            ("waiting for others", WAIT, share.waiting),
        ]
        shown = [_share(part, share.total) for *_, part in parts]
        rows.append([esc(worker.name), _bar(parts, share.total), *shown])
    body = _table(("", "", "compute", "comm.", "waiting"), rows, (2, 3, 4), wide=1)
    keys = _keys(("compute", COMPUTE), ("communication", TALK), ("waiting for others", WAIT))
    note = "" if always else "of the last 5 seconds"
    return panel("Time of each worker", f'<div class="scroll">{body}</div>{keys}', note)


def memory(ledger: Ledger) -> str:
    rows = []
    found = [w.memory for w in ledger.crew if w.memory]
    most = max(
        (max(m["operands"] + m["arena"], m["peak"], m["limit"] or 0) for m in found), default=1
    )
    kinds = ("elsewhere", "device total", "device free")  # the first: on a disk, or the host
    there = [kind for kind in kinds if any(kind in m for m in found)]
    for worker in ledger.crew:
        m = worker.memory
        if not m:
            continue
        marks = [m["peak"]] + ([m["limit"]] if m["limit"] else [])
        parts = [("operands", OPERANDS, m["operands"]), ("arena", ARENA, m["arena"])]
        more = [amount(m[kind]) if kind in m else "" for kind in there]
        rows.append(
            [
                esc(worker.name),
                _bar(parts, most * 1.05, marks),
                amount(m["operands"]),
                amount(m["arena"]),
                amount(m["peak"]),
                amount(m["limit"]) if m["limit"] else "none",
                *more,
            ]
        )
    heads = ("", "", "operands", "arena", "peak", "limit", *there)
    body = _table(heads, rows, range(2, len(heads)), wide=1)
    keys = _keys(("operands", OPERANDS), ("arena", ARENA), ("peak of a plan, and limit", "#1c2733"))
    return panel("Memory", f'<div class="scroll">{body}</div>{keys}')


def pipes(ledger: Ledger) -> str:
    """Show what feeds the workers: how many batches wait on each, what the loop waits for, what stages cost."""
    found = []
    for name in ledger.pipes:
        told = [(w.name, w.feeds[name]) for w in ledger.crew if name in w.feeds]
        heads = (
            "",
            "batches ahead",
            *["ready", "epoch", "batches", "threads", "feed", "step", "wait"],
        )
        rows = [[esc(worker), _queue(f), *_of_feed(f)] for worker, f in told]
        queues = _table(heads, rows, range(2, len(heads)))
        slowest, feed = max(told, key=lambda item: item[1]["feed"])
        longest = max((s["wall_us"] for s in feed["stages"]), default=0.0)
        costs = [
            [
                esc(stage["stage"]),
                _bar(
                    [("on a core", COMPUTE, stage["cpu_us"]), ("waiting", WAIT, stage["wait_us"])],
                    longest,
                ),
                time_of(stage["cpu_us"] / 1e6),
                time_of(stage["wait_us"] / 1e6),
                amount(stage["bytes"]),
            ]
            for stage in feed["stages"]
        ]
        what = ("of a sample", "", "on a core", "waiting", "gives")
        stages = _table(what, costs, (2, 3, 4), wide=1)
        decisions = "".join(f"<br>{esc(said)}" for said in feed["decisions"][-3:])
        said = f'<p class="soft">{slowest}: {esc(feed["limit"])}{decisions}</p>'
        body = f'<div class="scroll">{queues}</div>{_QUEUE_KEYS}{said}{stages}{_COST_KEYS}'
        found.append(panel("Pipe", body, esc(name)))
    return "".join(found)


def _queue(feed: dict[str, Any]) -> str:
    room = max(feed["room"], feed["ready"] + feed["being_made"])
    parts = [("ready", READY, feed["ready"]), ("being made", MAKING, feed["being_made"])]
    return _bar(parts, room)


def _of_feed(feed: dict[str, Any]) -> list[str]:
    times = (feed["feed"], feed["step"]["mean"], feed["wait"]["mean"])
    return [
        f"{feed['ready']} of {feed['room']}",
        str(feed["epoch"]),
        f"{feed['batches']:,}",
        str(feed["threads"]),
        *map(time_of, times),
    ]


def traffic(ledger: Ledger) -> str:
    """Bytes over each axis of the mesh."""
    found = ledger.traffic()
    if not found:
        return panel("Between workers", '<p class="soft">Nothing was sent yet.</p>')
    mesh = ledger.mesh
    most = max(total for total, _ in found.values())
    rows = []
    for axis, (total, now) in found.items():
        extent = f" of {mesh[int(axis)]}" if axis.isdigit() and int(axis) < len(mesh) else ""
        name = f"axis {axis}{extent}" if axis.isdigit() else "several axes"
        bar = _bar([(name, COMPUTE, total)], most)
        rows.append([name, bar, amount(total), f"{amount(now)}/s"])
    body = _table(("mesh", "", "sent", "now"), rows, (2, 3), wide=1)
    return panel("Between workers", body + _keys(("sent since the beginning", COMPUTE)))


def operations(ledger: Ledger, plan: str) -> str:
    """Predicted and measured times of a plan's operations."""
    known: dict[str, Any] | None = ledger.plans.get(plan)
    if known is None:
        return panel("Operations", '<p class="soft">No plan has been loaded yet.</p>')
    took = [ledger.measured(plan, row) for row in known["rows"]]
    longest = max([*took, *(row["predicted"] for row in known["rows"]), 1e-12])
    rows = []
    for row, measured in zip(known["rows"], took, strict=True):
        bar = _bar([("predicted", "#b9c6d3", row["predicted"])], longest)
        if measured:
            bar = _bar([("measured", COMPUTE, measured)], longest, [row["predicted"]])
        rows.append(
            [
                "&nbsp;" * 2 * row["depth"] + esc(row["name"]),
                esc(row["result"]),
                row["traffic"],
                time_of(row["predicted"]),
                time_of(measured),
                bar,
                f'<span class="soft">{esc(row["line"])}</span>',
            ]
        )
    heads = ("operation", "result", "traffic", "predicted", "measured", "", "line")
    body = f'<div class="scroll">{_table(heads, rows, (2, 3, 4))}</div>'
    if known["more"]:
        body += f'<p class="soft">and {known["more"]} more</p>'
    if any(took):
        body += _keys(("measured in one run", COMPUTE), ("predicted", "#1c2733"))
    else:
        body += '<p class="soft">Single operations are timed in the third run of longer plans.</p>'
    title = f"{esc(known['name'])} <code>{plan[:8]}</code>"
    sizes = (
        f"{amount(known['peak'])} per worker: operands {amount(known['operands'])}, "
        f"results {amount(known['results'])}, arena {amount(known['arena'])}"
    )
    return panel(f"Operations of {title}", body, sizes)


def timeline(ledger: Ledger, plan: str) -> str:
    """One run of a plan on each worker: its operations one after the other, of each first what it spent in
    communication, as the worker's clock has it (a loop is one operation), and beside them the messages that
    are under way meanwhile."""
    known, timed = ledger.plans.get(plan), ledger.steps.get(plan, {})
    ran = [(w.name, timed[a]) for a, w in ledger.places if a in timed]
    if known is None or not ran:
        return ""
    of = {k: row["name"] for row in known["rows"] for k in row["nodes"] if k >= 0}
    whole = max(sum(each for each, _ in took.values()) for _, took in ran)
    rows = []
    for name, took in ran[:SHOWN]:
        began, ends, at = dict[int, float](), dict[int, float](), 0.0
        spans: list[_Span] = []
        for k, (each, talk) in sorted(took.items()):
            began[k], parted, ends[k] = at, at + min(talk, each), at + each
            spans += [(of.get(k, ""), TALK, at, parted)] if talk > 0 else []
            spans += [(of.get(k, ""), COMPUTE, parted, ends[k])] if talk < each else []
            at = ends[k]
        rows.append([name, _spans(spans, whole)])
        sent = [
            (row["name"], TALK, began[start], ends[end])
            for row in known["rows"]
            if len(row["nodes"]) == 2
            for start, end in [row["nodes"]]
            if start in ends and end in ends
        ]
        rows += [["messages", _spans(lane, whole)] for lane in _lanes(sent)]
    body = _table(("", time_of(whole)), rows)
    body = body.replace("<th></th>", '<th style="width:90px"></th>', 1)
    more = f'<p class="soft">and {len(ran) - SHOWN} more</p>' if len(ran) > SHOWN else ""
    keys = _keys(("compute", COMPUTE), ("communication", TALK))
    return panel("One run", body + more + keys, "of each worker, operation by operation")


_Span = tuple[str, str, float, float]  # name, colour, from, to


def _lanes(spans: Sequence[_Span]) -> list[list[_Span]]:
    """As few rows as there are spans at the same time."""
    lanes: list[list[_Span]] = []
    for span in sorted(spans, key=lambda s: s[2]):
        free = next((lane for lane in lanes if lane[-1][3] <= span[2]), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _spans(spans: Sequence[_Span], whole: float) -> str:
    """Spans of time, each with its name and colour."""
    found = "".join(
        f'<s title="{esc(name)}: {time_of(end - start)}" style="left:{100 * start / whole:.2f}%;'
        f'width:{100 * (end - start) / whole:.2f}%;background:{colour}"></s>'
        for name, colour, start, end in spans
    )
    return f'<div class="bar">{found}</div>'


def picture(ledger: Ledger, plan: str) -> str:
    known = ledger.plans.get(plan)
    if known is None:
        return panel("Graph", "")
    return panel("Graph", f'<div class="scroll">{known["picture"]}</div>')


# -- a report ------------------------------------------------------------------------------
def report(ledger: Ledger, messages: dict[str, Any]) -> str:
    """A page that needs nothing from elsewhere."""
    kinds = _table(
        ("kind", "messages", "bytes"),
        [
            [esc(kind), f"{n['messages']:,}", amount(n["bytes"])]
            for kind, n in sorted(messages.items(), key=lambda item: -item[1]["bytes"])
        ],
        (1, 2),
    )
    parts = [
        plans(ledger),
        workers(ledger, always=True),
        memory(ledger),
        traffic(ledger),
        pipes(ledger),
        panel("Orders of the program", kinds),
    ]
    for plan in ledger.ran:
        if plan in ledger.plans:
            parts += [operations(ledger, plan), timeline(ledger, plan), picture(ledger, plan)]
    body = "".join(f'<section class="card">{part}</section>' for part in parts if part)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>Ostinato: a run</title>'
        f"<style>body {{ margin: 0; background: #f6f8fa; }} main {{ max-width: 1100px; margin: auto;"
        f" padding: 24px; }} .card {{ background: #fff; border: 1px solid #d6dde4; border-radius: 8px;"
        f" padding: 14px 18px; margin-top: 16px; }} {STYLE}</style></head><body><main>"
        f'{facts(ledger, always=True)}<p class="ost soft">{when}</p>{body}</main></body></html>\n'
    )
