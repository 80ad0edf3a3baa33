"""Plans for people: what was decided, what it should cost, what it did cost, and in what two plans differ."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.divided import done_in, undivided
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS, op_of
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.user_line import short
from ostinato.ops.cpu.fused import FUSED, IN_STEPS
from ostinato.ops.planned.collective import collective_of
from ostinato.ops.planned.offloaded import OFFLOADED, STASH
from ostinato.planner.layouts.costs import repeats
from ostinato.planner.machine import NOMINAL, Machine, presets, unmeasured
from ostinato.planner.passes.loop_casts import LOOPS
from ostinato.planner.passes.memory import is_joined, scratch_bytes
from ostinato.planner.passes.scratch import scratch_of_all
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.plan import (
    ONE_THREAD,
    Choice,
    Measured,
    Plan,
    Program,
    export,
    largest_part,
    local_bytes,
)
from ostinato.planner.policy import LETTERS, Chosen, policy_of
from ostinato.planner.prediction import PredictedStep, again, machine_of, steps
from ostinato.planner.seeing.least_memory import waits
from ostinato.planner.simulation import simulate
from ostinato.planner.title import operations, title
from ostinato.planner.tolerance import sites
from ostinato.planner.tuning.tuner import GAIN, SHARED


# -- splits in time -----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Turns:
    """A part of a program that runs block after block."""

    turns: int
    axis: int
    extent: int
    of: str  # whose axis it is
    moved: float  # bytes in addition, over all turns


def splits_in_time(program: Program, called: Sequence[str]) -> Iterator[Turns]:
    """The parts in turns, bodies included."""
    graph = program.graph
    for k, node in enumerate(graph.nodes):
        if node.op == "blocks":
            yield _turns(graph, node, called)
        for body in program.bodies.get(k, ()):
            yield from splits_in_time(body, ())


def _turns(graph: Graph, node: Node, called: Sequence[str]) -> Turns:
    body, count = node.kw["body"], node.kw["turns"]
    cut = [
        (s.nbytes, -v, s.layout.splits[-1])
        for v, s in enumerate(body.specs)
        if s.layout is not None and isinstance(s.layout.splits[-1], int)
    ]
    read = [c for c in cut if -c[1] < len(body.inputs)]
    _, v, axis = max(read or cut)
    of = "what is made there"
    if read:
        maker = graph.producers[node.inputs[-v]]
        outside = called[node.inputs[-v]] if node.inputs[-v] < len(called) else "an operand"
        of = outside if maker < 0 else title(graph.nodes[maker])
    moved = 0.0
    for inner in body.nodes:
        ins = [body.specs[v] for v in inner.inputs]
        each, whole = [
            OPS[inner.op].cost(tuple(map(part, ins)), tuple(map(part, inner.specs)), inner.kw)[1]
            for part in (largest_part, _at_once)
        ]
        moved += count * each - whole
    return Turns(count, axis, body.specs[-v].shape[axis], of, max(moved, 0.0))


def _at_once(spec: Spec) -> Spec:
    return largest_part(spec.at(spec.layout.without_last_axis)) if spec.layout is not None else spec


# -- text -----------------------------------------------------------------------------------
def seconds(t: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if t >= size:
            return f"{_digits(t / size)} {unit}"
    return f"{t * 1e9:.0f} ns"


def _sign(t: float) -> str:
    return f"{seconds(t)} slower" if t >= 0 else f"{seconds(-t)} faster"


def amount(n: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{_digits(n / size)} {unit}"
    return f"{n:.0f} B"


def _digits(n: float) -> str:
    """Three of them, or all before the point."""
    return f"{n:.0f}" if n >= 100 else f"{n:.3g}"


@export
def summary(plan: Plan) -> str:
    """The plan in a few lines."""
    nodes, collectives = count(plan.program)
    mesh = "x".join(map(str, plan.target.mesh))
    talk = ", ".join(f"{n} {kind}" for kind, n in collectives.items()) or "no communication"
    ins = ", ".join(f"{n}: {s}" for n, s in zip(named(plan), plan.traced.inputs, strict=False))
    return (
        f"plan {plan.id[:12]} for {plan.target.workers} x {plan.target.device} (mesh {mesh}), "
        f"numerics {plan.target.numerics}, math {plan.target.math}, "
        f"precision {plan.target.precision}\n"
        f"  takes   {ins or 'nothing'}\n"
        f"  gives   {', '.join(map(str, plan.out_specs)) or 'nothing'}\n"
        f"  runs    {nodes} operations, {talk}\n"
        f"  memory  {amount(plan.peak_bytes)} per worker: operands {amount(plan.operand_bytes)}, "
        f"results {amount(plan.result_bytes)}, intermediates {amount(plan.arena_bytes)}"
    )


def named(plan: Plan) -> list[str]:
    """Names that the user gave the inputs; numbers where there are none."""
    names = list(plan.names)
    return names + [f"input {k}" for k in range(len(names), len(plan.traced.inputs))]


def count(program: Program) -> tuple[int, dict[str, int]]:
    """How many operations run, and how many collectives of each kind."""
    nodes, kinds = 0, dict[str, int]()
    for k, node in enumerate(program.graph.nodes):
        kind = collective_of(node.op, node.kw)
        if kind:
            kinds[kind] = kinds.get(kind, 0) + 1
        elif (
            node.op != "wait"
            and program.slots[program.graph.starts[k]].kind not in ("alias", "constant")
            and not is_joined(program, k)
        ):
            is_kernel = node.op in (*FUSED, IN_STEPS)
            nodes += sum(op_of(n.op).computes for n in operations(node)) if is_kernel else 1
        for body in program.bodies.get(k, ()):
            more, inner = count(body)
            nodes += more
            for name, n in inner.items():
                kinds[name] = kinds.get(name, 0) + n
    return nodes, kinds


def rows(plan: Plan, machine: Machine, measured: Measured | None) -> list[tuple[str, ...]]:
    """The table of `explain`: operation, result, layout, work, traffic, predicted, measured, line; of a
    whole run, all turns of loops together."""
    found: list[tuple[str, ...]] = []
    times = dict(measured.steps) if measured is not None else {}
    number = {id(node): k for k, node in enumerate(plan.program.graph.nodes)}
    for step in steps(plan.program, machine):
        node, spec = step.node, step.node.specs[0] if step.node.specs else None
        took = times.get(number.get(id(node), -1)) if step.depth == 0 else None
        found.append(
            (
                "  " * step.depth + name_of(step),
                str(spec.bare) if spec is not None else "",
                _layout_in_words(spec) if spec is not None else "",
                f"{step.operations * step.turns:.2g} op" if step.operations else "",
                f"{amount(step.sent * step.turns)} sent"
                if step.collective
                else amount(step.moved * step.turns),
                seconds(step.predicted * step.turns) if step.predicted else "",
                seconds(took) if took is not None else "",
                short(node.line),
            )
        )
    return found


def _layout_in_words(spec: Spec) -> str:
    """Name a layout; windows by what they are: a piece of a part, or a part with a halo."""
    text, layout = str(spec.layout), spec.layout
    for d, window in layout.windows if layout is not None else ():
        low, high = -window.offset, window.offset + window.reach - 1
        if window.piece:
            words = ("", "interior", "low edge", "high edge")[window.piece]
        elif (window.count, window.stride, window.every) == (spec.shape[d], 1, 1):
            words = f"halo {low}+{high}"
        else:
            continue
        text = text.replace(f"window {':'.join(map(str, window.numbers))}", words)
    return text


def name_of(step: PredictedStep) -> str:
    """Name of an operation in tables."""
    node = step.node
    name = step.collective or title(node)
    if node.op == "start":
        name += " (started)"
    name += again(node)
    if step.copied is None or (not step.copied and node.op in LOOPS and not node.kw["counts"][1]):
        return name
    how = "in two buffers" if node.op in LOOPS else "copied"
    return f"{name} ({amount(step.copied)} {how})" if step.copied else f"{name} (in place)"


OFF = 1.25  # times as long, or as short, as predicted, from which it is told
HEADS = ("operation", "result", "layout", "work", "traffic", "predicted", "measured", "line")


@export
def explain(plan: Plan, measured: Measured | None, machine: Machine | None = None) -> str:
    """Everything that was decided, as text."""
    machine = machine or machine_of(plan.target)
    table = [HEADS, *rows(plan, machine, measured)]
    keep = [k for k in range(len(HEADS)) if any(row[k] for row in table[1:])]
    if plan.target.workers == 1:
        keep = [k for k in keep if HEADS[k] != "layout"]
    widths = {k: max(len(row[k]) for row in table) for k in keep}
    lines = ["  ".join(row[k].ljust(widths[k]) for k in keep).rstrip() for row in table]
    lines = [lines[0], "  ".join("-" * widths[k] for k in keep), *lines[1:], ""] if keep else []
    return "\n".join([summary(plan), "", *lines, *_totals(plan, machine, measured)])


def _totals(plan: Plan, machine: Machine, measured: Measured | None) -> list[str]:
    work = list(steps(plan.program, machine))
    run = simulate(plan.program, machine, plan.target.mesh)
    predicted = run.seconds
    sent = sum(s.sent * s.turns for s in work)
    lines = [f"predicted {seconds(predicted)} per run; {amount(sent)} between workers"]
    if machine is NOMINAL:
        lines.append("          (of a nominal machine: `ostinato calibrate` measures this one)")
    elif machine is unmeasured(plan.target.device):
        lines.append(f"          (of {machine.about}: `ostinato calibrate` measures this one)")
    elif machine.name in presets():
        lines[0] += f", simulated for {machine.name}"
    lines += waits(plan, run)
    lines += [
        f"split in time: axis {t.axis} ({t.extent}) of {t.of} in {t.turns} turns, which moves "
        f"{amount(t.moved)} more"
        for t in splits_in_time(plan.program, named(plan))
    ]
    lines += _into_memory(plan)
    if measured is not None and measured.runs:
        lines.append(
            f"measured  {seconds(measured.best)} at best, {seconds(measured.mean)} on average, "
            f"{measured.runs} run{'s' if measured.runs > 1 else ''}{_drift(measured.best, predicted)}"
        )
        if measured.how:
            lines.append(f"run       {measured.how}")
        if not measured.steps:
            lines.append("          (single operations are timed in the third run of longer plans)")
    else:
        lines.append("measured  not yet")
    lines += _roundings(plan, machine)
    lines += _sent(plan)
    lines += plan.report
    lines += _algorithms(plan)
    lines += dict.fromkeys(_rewritten(s.node) for s in work if s.node.op == "pair_distances")
    if plan.tuned is not None:
        lines += [f"timed     {line}" for line in told(plan.tuned.choices)]
    lines += _scratch(plan)
    k = plan.program.peak_node
    if k >= 0 and plan.arena_bytes:
        node = plan.program.graph.nodes[k]
        lines.append(
            f"memory is fullest at {title(node)}" + (f" ({node.line})" if node.line else "")
        )
    if who := described(plan.target.device).multiplies({s.node.op for s in work}):
        lines.append(f"products {who}")
    if who := described(plan.target.device).convolves({n.op for n in plan.traced.nodes}):
        lines.append(f"convolutions {who}")
    planning = sum(plan.seconds.values())
    if planning:
        slowest = max(plan.seconds, key=lambda name: plan.seconds[name])
        lines.append(
            f"planned in {seconds(planning)}, longest {slowest} {seconds(plan.seconds[slowest])}"
        )
    return lines


def _into_memory(plan: Plan) -> Iterator[str]:
    """Describe the steps that stay within the limit: what each frees and takes."""
    limit = plan.target.memory_limit
    if limit is None or not plan.ladder:
        return
    needs = plan.peak_bytes + sum(r.freed for r in plan.ladder)
    yield f"memory limit {amount(limit)}; a place for each value would need {amount(needs)}"
    for rung in plan.ladder:
        needs -= rung.freed
        takes = f", predicted {_sign(rung.seconds)}" if rung.seconds else ""
        yield f"  {rung.how}: {amount(rung.freed)} less, {amount(needs)}{takes}"
    if plan.offloaded_bytes:
        count, moved = _moved(plan.program)
        yield (
            f"    {count} values, {amount(plan.offloaded_bytes)} there; {amount(moved)} go and come in a run"
        )
    for what, times in made_again(plan.lowered).items():
        yield f"    {what}" + (f" x {times}" if times > 1 else "")


def _moved(program: Program, times: int = 1) -> tuple[int, int]:
    """How many values leave memory for a while, and the bytes that go and come."""
    graph = program.graph
    mine = [n for n in graph.nodes if n.op in OFFLOADED]
    count = sum(n.op == STASH for n in mine)
    moved = times * sum(local_bytes(graph.specs[n.inputs[0]]) for n in mine)
    for k, bodies in program.bodies.items():
        for body in bodies:
            more, inner = _moved(body, times * repeats(graph.nodes[k]))
            count, moved = count + more, moved + inner
    return count, moved


def made_again(graph: Graph) -> dict[str, int]:
    """The operations that are done again instead of keeping what they made, and how many of each."""
    builder, values = Builder(graph.inputs), list(range(len(graph.inputs)))
    found: dict[str, int] = {}
    for node in graph.nodes:
        for _, body in node.subgraphs():
            for what, times in made_again(body).items():
                found[what] = found.get(what, 0) + times
        inputs = [values[v] for v in node.inputs]
        if node.op == "barrier":
            values.extend(inputs[: len(node.specs)])
            continue
        before = len(builder.nodes)
        values.extend(builder.add(node.op, inputs, node.params, node.specs, node.line))
        if len(builder.nodes) == before and not OPS[node.op].is_view:
            what = node.op + (f" ({node.line})" if node.line else "")
            found[what] = found.get(what, 0) + 1
    return found


def _scratch(plan: Plan) -> Iterator[str]:
    """Describe what was divided, so that it needs less memory while it runs."""
    if (plan.target.scratch_limit, plan.target.memory_limit) == (None, None):
        return
    device, lines = described(plan.target.device), dict[str, int]()
    for graph, k, size in scratch_of_all(plan.program.graph, device):
        node = graph.nodes[k]
        whole = sum(scratch_bytes(device, graph, done_in(node, undivided(node.kw.get("way", "")))))
        line = f" ({node.line})" if node.line else ""
        if whole != size or size * 8 > plan.arena_bytes:
            text = f"scratch   {title(node)}: {amount(size)}" + f", not {amount(whole)}" * (
                whole != size
            )
            lines[text + line] = lines.get(text + line, 0) + 1
    for text, times in lines.items():
        yield text + (f" x {times}" if times > 1 else "")


def _drift(best: float, predicted: float) -> str:
    """How far a prediction was off, where that is worth telling."""
    ratio = best / predicted if predicted else 1.0
    return f"; {_digits(ratio)} x as predicted" if not 1 / OFF < ratio < OFF else ""


def told(choices: Sequence[Choice]) -> Iterator[str]:
    """A line for each choice that was timed, the same one once."""
    for choice in dict.fromkeys(c for c in choices if c.times):
        by = dict(choice.times)
        taken = choice.way or choice.times[0][0]
        others = ", ".join(f"{way} {seconds(t)}" for way, t in by.items() if way != taken)
        fastest, why = min(by, key=lambda way: (by[way], way != taken)), ""
        if fastest != taken:
            enough = 1 - 1 / SHARED if taken == ONE_THREAD else GAIN
            near = by[fastest] > (1 - enough) * by[taken]
            how = f"by less than {enough:.0%}" if near else "in too few rounds, or a busy moment"
            why = f"; {fastest} won {how}"
        line = f" ({choice.line})" if choice.line else ""
        yield f"{choice.what}: {taken} {seconds(by[taken])}, not {others}{why}{line}"


def _roundings(plan: Plan, machine: Machine) -> list[str]:
    """Describe roundings that were chosen for products, and what they bring."""
    policy = policy_of(plan.target.precision)
    if not isinstance(policy, Chosen):
        return []
    found = list(sites(simplify(plan.traced, plan.target)))
    told, lines = 0.0, dict[str, int]()
    for site, letter in zip(found, policy.products, strict=False):
        to = LETTERS[letter]
        if to is not None:
            told += site.seconds(machine, site.dtype) - site.seconds(machine, to)
            line = f"{site.op}: {site.dtype.name} -> {to.name}"
            line += f" ({site.line})" if site.line else ""
            lines[line] = lines.get(line, 0) + 1
    saved = sum(s.saved(x) for s, x in zip(found, policy.products, strict=False))
    down = sum(lines.values())
    head = f"rounded   {down} of {len(found)} products for tolerance {policy.tolerance!r}"
    if down:
        head += f": {amount(saved)} less to read, predicted {seconds(max(told, 0.0))} less"
    many = [f"{line} x {n}" if n > 1 else line for line, n in lines.items()]
    return [head, *(f"          {line}" for line in many)]


def _sent(plan: Plan) -> list[str]:
    """Which sums of addends are sent rounded, and what that saves."""
    found, less = dict[str, int](), 0
    for node, spec, times in _rounded(plan.lowered):
        (sent,) = node.specs
        line = f"{spec.bare} -> {sent.dtype.name}" + (f" ({node.line})" if node.line else "")
        found[line] = found.get(line, 0) + 1
        less += times * (largest_part(spec).nbytes - largest_part(sent).nbytes)
    if not found:
        return []
    count = sum(found.values())
    many = [f"{line} x {n}" if n > 1 else line for line, n in found.items()]
    head = f"sent      {count} sum{'s' if count > 1 else ''} of addends rounded: {amount(less)} less of each"
    return [f"{head} worker", *(f"          {line}" for line in many)]


def _rounded(graph: Graph, times: int = 1) -> Iterator[tuple[Node, Spec, int]]:
    """Describe what rounds addends, what it rounds, and how often."""
    for node in graph.nodes:
        if node.op == "round_addends":
            yield node, graph.specs[node.inputs[0]], times
        for _, body in node.subgraphs():
            yield from _rounded(body, times * int(node.kw.get("trips", 1)))


def _rewritten(node: Node) -> str:
    where = f" ({node.line})" if node.line else ""
    return (
        f"rewritten squared differences of all pairs of rows are a product, as rows are long; "
        f"pairs that lost over 3 bits are made from differences{where}"
    )


def _algorithms(plan: Plan) -> list[str]:
    """Describe which of several ways to spread an operation over workers was taken."""
    if plan.target.workers == 1:
        return []
    made = plan.lowered
    whole = {
        (n.op, n.line, tuple(made.specs[v].bare for v in n.inputs))
        for n in made.nodes
        if all(s.layout is not None and s.layout.is_whole for s in n.specs)
    }
    lines = []
    for node in plan.traced.nodes:
        if OPS[node.op].parallel.algorithms is not None:
            ins = tuple(plan.traced.specs[v].bare for v in node.inputs)
            how = "by every worker" if (node.op, node.line, ins) in whole else "in parts"
            lines.append(f"{node.op} of {ins[0]} is done {how} ({node.line})")
    return lines


# -- differences -------------------------------------------------------------------------------
@export
def differences(old: Plan, new: Plan) -> str:
    """In what two plans differ: their keys part by part, then operation by operation."""
    if old.id == new.id and old.program == new.program:
        return f"the same plan, {old.id[:12]}"
    lines = [f"{old.id[:12]} -> {new.id[:12]}"]
    for name, before in old.key.parts.items():
        after = new.key.parts[name]
        if name == "signature":
            pairs = zip(named(old), old.traced.inputs, new.traced.inputs, strict=False)
            lines.extend(f"  {what}: {a} -> {b}" for what, a, b in pairs if a is not b)
            if len(old.traced.inputs) != len(new.traced.inputs):
                lines.append(f"  inputs: {len(old.traced.inputs)} -> {len(new.traced.inputs)}")
        elif before != after and name != "graph":
            lines.append(f"  {name}: {before} -> {after}")
    a, b = (_operations(p.program.graph) for p in (old, new))
    changes = [
        d for d in difflib.unified_diff(a, b, lineterm="", n=1) if d[:3] not in ("---", "+++")
    ]
    lines.extend(f"  {d}" for d in changes if not d.startswith("@@"))
    if old.peak_bytes != new.peak_bytes:
        lines.append(f"  memory: {amount(old.peak_bytes)} -> {amount(new.peak_bytes)} per worker")
    return "\n".join(lines)


def _operations(graph: Graph) -> list[str]:
    """A line per node without the numbers of values, which shift when one node is added."""
    found = []
    for node in graph.nodes:
        told = ((k, v) for k, v in node.params if not isinstance(v, Graph) and k != "stays")
        params = ", ".join(f"{k}={v}" for k, v in told)  # without what is this machine's
        found.append(f"{node.op}({params}) -> {', '.join(map(str, node.specs))}")
        for name, body in node.subgraphs():
            found.extend(f"    {name}: {line}" for line in _operations(body))
    return found


# -- notebooks -----------------------------------------------------------------------------------
CARD = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:#1c2733;"
    "background:#fff;border:1px solid #d6dde4;border-radius:8px;padding:12px 16px;max-width:1100px;"
    "box-sizing:border-box;overflow-x:auto"
)


@export
def as_html(plan: Plan, measured: Measured | None, machine: Machine | None = None) -> str:
    """One self-contained piece of HTML: facts, memory as a bar, and the table of `explain`."""
    machine = machine or machine_of(plan.target)
    parts = (
        ("operands", plan.operand_bytes, "#3b6ea5"),
        ("results", max(0, plan.peak_bytes - plan.operand_bytes - plan.arena_bytes), "#5aa469"),
        ("intermediates", plan.arena_bytes, "#d9a441"),
    )
    total = max(1, sum(n for _, n, _ in parts))
    bar = "".join(
        f'<span title="{name} {amount(n)}" style="height:10px;width:{100 * n / total:.1f}%;'
        f'background:{colour}"></span>'
        for name, n, colour in parts
        if n
    )
    legend = "".join(
        '<span style="white-space:nowrap"><span style="display:inline-block;width:10px;height:10px;'
        f'border-radius:2px;margin-right:5px;background:{colour}"></span>{name} {amount(n)}</span>'
        for name, n, colour in parts
    )
    cell = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;white-space:pre"
    table = rows(plan, machine, measured)
    keep = [k for k in range(len(HEADS)) if any(row[k] for row in table)]
    head = "".join(
        f'<th style="{cell};border-bottom:1px solid #d6dde4">{HEADS[k]}</th>' for k in keep
    )
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{html.escape(row[k])}</td>' for k in keep) + "</tr>"
        for row in table[:200]
    )
    more = f"<p>and {len(table) - 200} more</p>" if len(table) > 200 else ""
    facts = html.escape(summary(plan))
    totals = html.escape("\n".join(_totals(plan, machine, measured)))
    wrapped = "margin:0;color:inherit;background:none;white-space:pre-wrap;overflow-wrap:anywhere"
    return (
        f'<div style="{CARD}"><pre style="{wrapped}">{facts}</pre>'
        '<div style="display:flex;background:#eef1f4;border-radius:3px;overflow:hidden;'
        f'margin:8px 0 4px">{bar}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:2px 18px;color:#4a5a68">{legend}</div>'
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse;margin:8px 0;'
        f'color:inherit"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'
        f'<pre style="{wrapped}">{totals}</pre></div>'
    )


def facts(plan: Plan) -> dict[str, Any]:
    """Numbers that tests pin: operations, collectives by kind, bytes sent, peak bytes per worker."""
    work = list(steps(plan.program, NOMINAL))
    nodes, kinds = count(plan.program)
    return {
        "operations": nodes,
        "collectives": kinds,
        "sent": sum(s.sent * s.turns for s in work),
        "peak_bytes": plan.peak_bytes,
    }
