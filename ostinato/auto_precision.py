"""`precision="auto"`: products, and sums between workers, are rounded as far as a tolerance allows, measured
on the operands of a call.

The first call runs the function in float64 and as written, then a plan in which what each product reads
can be rounded by two operands more (planner/tolerance.py), then plans that send some sums rounded, where
that is faster, and at last what was chosen. Calls 2, 4, 8, ...
compare with float64 again; one that finds more than the tolerance warns, chooses anew before it gives
results, and from then on nothing becomes narrower than that."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import ArgumentError
from ostinato.ops.core.device import described
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import DType, float32
from ostinato.ops.core.user_line import misfit
from ostinato.planner.passes.narrow_sums import Sum
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.pipeline import sums_of
from ostinato.planner.plan import Key, Plan, Target
from ostinato.planner.policy import LETTERS, Chosen
from ostinato.planner.seeing.explain import seconds
from ostinato.planner.tolerance import (
    RoundingChoice,
    RoundingSite,
    choose,
    choose_sums,
    relative_error,
    room_for_sums,
    sites,
    widened,
    with_knobs,
)
from ostinato.runtime.engine import Launcher

from .sessions import Session
from .tracing import Traced

AUTO, TOLERANCE = "auto", 1e-3
SHARE = 0.7  # of the tolerance that what was chosen may take on the operands it was chosen for
RUNS = 3  # of which the best counts
MAX_TOLD = 4  # results whose errors are told
FLOOR = 2.0**-48  # relative; what float64 gives is not told from what is exact

Values = list[np.ndarray[Any, Any]]
Tolerance = float | dict[Any, float]


def check_tolerance(who: str, given: Any) -> Tolerance:
    """A relative error that results may have, all of them, or those that are named."""
    if given is None:
        return TOLERANCE
    each = list(given.values()) if isinstance(given, dict) else [given]
    if each and all(isinstance(t, float) and 0 < t < 1 for t in each):
        return dict(given) if isinstance(given, dict) else float(given)
    got = f"tolerance={given!r:.60}"
    needed = "a number between 0 and 1, the relative error that results may have, or a dict of them"
    raise misfit(ArgumentError, who, got=got, needed=needed, do="write e.g. tolerance=1e-3")


def budgets(tolerance: Tolerance, traced: Traced, called: str) -> list[float]:
    """List for each output of the graph the relative error that it may have; infinite for those
    that are not named."""
    if isinstance(tolerance, float):
        return [tolerance] * len(traced.graph.outputs)
    structure = traced.structure
    names = structure.extra if structure.extra is not None else range(len(structure.children))
    if missing := tolerance.keys() - set(names):
        got = f"a result {next(iter(missing))!r}"
        needed = f"names of what it returns: {', '.join(map(repr, names)) or 'one result has none'}"
        raise misfit(ArgumentError, f"compile(tolerance=) of {called}", got=got, needed=needed)
    found = [math.inf] * len(traced.graph.outputs)
    leaves = iter(traced.outputs)
    for name, child in zip(names, structure.children, strict=True):
        for where, k in itertools.islice(leaves, child.leaves):
            if where == "ref":
                found[k] = min(found[k], tolerance.get(name, math.inf))
    return found


class Letters(NamedTuple):
    """How narrow products and sums are."""

    products: str = ""
    sums: str = ""

    @property
    def wide(self) -> Letters:
        return Letters("-" * len(self.products), "-" * len(self.sums))

    def policy(self, tolerance: float) -> str:
        return str(Chosen(tolerance, self.products, self.sums if set(self.sums) - {"-"} else ""))


@dataclass(slots=True)
class Tolerated:
    """A plan within a tolerance: its key, what was measured, and what calls are compared with."""

    key: Key
    letters: Letters
    report: list[str]
    exact: Plan
    plan: Plan  # which is given no operands


class _Runs:
    """What plans of one graph give for the operands of one call."""

    def __init__(self, session: Session, operands: Sequence[Operand]) -> None:
        self.session, self.operands = session, operands

    def plan(self, key: Key, called: str) -> Plan:
        return self.session.plan(Key(key.graph, key.target), (), called)[0]

    def values(self, plan: Plan, more: Sequence[Operand] = ()) -> Values:
        given = [*self.operands, *more]
        return results(self.session, plan, given, self.session.launcher(plan)(given))

    def compared(self, plan: Plan, other: Plan) -> str:
        """Time one and the other: the best of a few runs of each."""
        best = [math.inf, math.inf]
        for _ in range(RUNS):
            for k, each in enumerate((plan, other)):
                launch = self.session.launcher(each)
                start = time.perf_counter()
                launch(self.operands)
                self.session.wait()
                best[k] = min(best[k], time.perf_counter() - start)
        return f"measured time {seconds(best[0])} a run, as written {seconds(best[1])}"


def results(
    session: Session, plan: Plan, given: Sequence[Operand], made: Sequence[Operand]
) -> Values:
    """The value of each output of the source."""
    found = [made[k] if where == "out" else given[k] for where, k in plan.results]
    return [session.engine.get(x) for x in found]


def tolerated(
    session: Session,
    key: Key,
    operands: Sequence[Operand],
    allowed: Sequence[float],
    called: str,
    most: Letters | None = None,
) -> Tolerated:
    """The plan of a call, in which products and sums are rounded as far as is allowed for each output."""
    most = most or Letters()
    target, runs = key.target, _Runs(session, operands)
    exact = runs.plan(Key(key.graph, replace(target, precision="f64")), called)
    right = runs.values(exact)
    as_written = runs.plan(key, called)
    written = runs.values(as_written)
    off = [relative_error(x, y) for x, y in zip(written, right, strict=True)]
    _refuse(key, off, allowed, called)

    graph = simplify(key.graph, target)
    device = described(target.device)
    found = [replace(s, formats=_formats(s, target, device.halves)) for s in sites(graph)]
    knobs = runs.plan(Key(with_knobs(graph, target), target), called) if found else as_written

    def errors(codes: Sequence[int], scales: Sequence[float]) -> Sequence[float]:
        more = [session.put(np.array(codes, np.int64)), session.put(np.array(scales, np.float64))]
        made = runs.values(knobs, more)
        return [relative_error(x, y) for x, y in zip(made, written, strict=True)]

    sizes, tolerance = [y.size for y in right], min(allowed, default=TOLERANCE)
    choice = choose(found, errors, off, sizes, allowed, most.products)

    def policed(letters: Letters) -> Key:
        return Key(key.graph, replace(target, precision=letters.policy(tolerance)), key.donated)

    def fits(letters: Letters) -> tuple[Values, int, bool]:
        """Return a plan's results, the worst of them, and whether that is close enough."""
        made = runs.values(runs.plan(policed(letters), called))
        over = [
            relative_error(x, y) / max(SHARE * t, o) if t < math.inf else 0.0
            for x, y, t, o in zip(made, right, allowed, off, strict=True)
        ]
        worst = max(range(len(over)), key=lambda o: over[o], default=0)
        return made, worst, not over or over[worst] <= 1

    letters = Letters(choice.letters)
    while True:
        made, worst, close = fits(letters)
        if close or not set(letters.products) - {"-"}:
            break
        shares = [s[worst] for s in choice.shares]
        letters = Letters(widened(found, letters.products, shares))
    choice = replace(choice, letters=letters.products)
    sums = sums_of(policed(letters)) if close else []
    sent = _sent(sums, letters, runs, policed, made, written, off, sizes, allowed, called, most)
    while sums:
        letters = Letters(letters.products, sent.letters)
        made, worst, close = fits(letters)
        if close or not set(sent.letters) - {"-"}:
            break
        shares = [s[worst] for s in sent.shares]
        sent = replace(sent, letters=widened(sums, sent.letters, shares))
    errors_now = [relative_error(x, y) for x, y in zip(made, right, strict=True)]
    chosen = policed(letters)
    plan = runs.plan(chosen, called)
    report = [
        *_told(found, choice, off),
        *_describe_sums(sums, sent),
        _describe_errors(off, errors_now),
        runs.compared(plan, as_written),
    ]
    return Tolerated(chosen, letters, report, exact, plan)


def _sent(
    sums: Sequence[Sum],
    letters: Letters,
    runs: _Runs,
    policed: Callable[[Letters], Key],
    wide: Values,
    written: Values,
    off: Sequence[float],
    sizes: Sequence[int],
    allowed: Sequence[float],
    called: str,
    most: Letters,
) -> RoundingChoice:
    """How sums are sent, beside products that are rounded so."""
    products = [relative_error(x, y) for x, y in zip(wide, written, strict=True)]

    def errors(sent: str) -> Sequence[float]:
        made = runs.values(runs.plan(policed(Letters(letters.products, sent)), called))
        return [relative_error(x, y) for x, y in zip(made, wide, strict=True)]

    limit = most.sums
    if limit and len(limit) != len(sums):  # they lie otherwise now
        limit = "-" * len(sums)
    return choose_sums(sums, errors, room_for_sums(products, off, sizes, allowed), limit)


def _formats(site: RoundingSite, target: Target, halves: Sequence[DType]) -> str:
    """The letters that are worth while: what is narrow is faster to multiply, or to send."""
    multiplied = (float32, *halves)
    return "".join(
        letter
        for letter, dtype in LETTERS.items()
        if dtype is not None
        and (target.workers > 1 or (dtype in multiplied and site.gains_on(target.machine, letter)))
    )


def _refuse(key: Key, off: Sequence[float], allowed: Sequence[float], called: str) -> None:
    """A tolerance that the function as it is written does not keep."""
    for k, (e, tolerance) in enumerate(zip(off, allowed, strict=True)):
        least = max(2 * e, FLOOR)
        if tolerance >= least:
            continue
        what = "float64 itself rounds as much"
        if least > FLOOR:
            dtype = key.graph.out_specs[k].dtype.name
            what = f"result {k} ({dtype}) as written is {e:.2g} off float64 already"
        got = f"tolerance={tolerance!r}"
        needed = f"at least {least:.2g}, as {what}" if math.isfinite(least) else what
        raise misfit(ArgumentError, f"compile(tolerance=) of {called}", got=got, needed=needed)


def _told(found: Sequence[RoundingSite], choice: RoundingChoice, off: Sequence[float]) -> list[str]:
    lines = []
    for site, letter, shares in zip(found, choice.letters, choice.shares, strict=True):
        if letter == "-" and site.letters != "-":
            where = f" ({site.line})" if site.line else ""
            lines.append(
                f"stays     {site.op}, which in bfloat16 changes a result by "
                f"{max(shares, default=0.0):.2g}{where}"
            )
    return lines


def _describe_sums(found: Sequence[Sum], choice: RoundingChoice) -> list[str]:
    """Say why sums that would be faster if they were narrower are not."""
    lines = []
    for each, letter, shares in zip(found, choice.letters, choice.shares, strict=True):
        if letter == "-" and each.letters != "-":
            where = f" ({each.line})" if each.line else ""
            lines.append(
                f"stays     sum of {each.has.bare}, which in {LETTERS[each.letters[0]]} changes a result "
                f"by {max(shares, default=0.0):.2g}{where}"
            )
    return lines


def _describe_errors(off: Sequence[float], errors: Sequence[float]) -> str:
    order = sorted(range(len(errors)), key=lambda k: -errors[k])
    told = [f"{errors[k]:.2g} of result {k} (as written {off[k]:.2g})" for k in order if errors[k]]
    if len(told) > MAX_TOLD:
        told[MAX_TOLD:] = [f"less of {len(told) - MAX_TOLD} others"]
    return f"measured error beside float64: {', '.join(told) or 'none'}"


class Watched:
    """A launcher that now and then compares what it gives with float64. `again` chooses for operands
    beyond the tolerance, and gives what to launch then."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        chosen: Tolerated,
        allowed: Sequence[float],
        again: Callable[[str, Session, Sequence[Operand]], Launcher],
    ) -> None:
        self.session = weakref.ref(session)  # which nobody keeps by keeping this
        self.launch = session.launcher(plan)
        self.chosen, self.allowed, self.again = chosen, allowed, again
        self.calls = 0

    def __call__(self, operands: Sequence[Operand]) -> list[Operand]:
        self.calls += 1
        session = self.session()
        if session is None or self.calls == 1 or self.calls & (self.calls - 1):
            return self.launch(operands)
        runs = _Runs(session, operands)
        errors = [
            relative_error(x, y)
            for x, y in zip(
                runs.values(self.chosen.plan), runs.values(self.chosen.exact), strict=True
            )
        ]
        over = [e / t for e, t in zip(errors, self.allowed, strict=True) if t < math.inf]
        self.chosen.report.append(
            f"measured error on call {self.calls}: at most {max(errors, default=0.0):.2g}, "
            f"{max(over, default=0.0):.2f} x the tolerance"
        )
        for k, (error, tolerance) in enumerate(zip(errors, self.allowed, strict=True)):
            if error > tolerance:
                what = (
                    f"result {k} of call {self.calls} would be {error:.2g} off float64, where "
                    f"tolerance={tolerance!r}, so what to round was chosen again"
                )
                return self.again(what, session, operands)(operands)
        return self.launch(operands)
