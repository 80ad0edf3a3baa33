"""Bugs planted on purpose, one in each rule, to see that the random programs find them.

python -m tests.planner.plants        which plants were found, and after how many programs
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest import mock

from ostinato.ops.core import exchange, layout, monoid, traffic
from ostinato.ops.core.array import placeholder, term_of
from ostinato.ops.core.index import LETTERS, Indices, Window
from ostinato.ops.core.registry import OPS, Place
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.trace import collect
from ostinato.ops.planned import reproducible
from ostinato.planner.cache import PlanCache
from ostinato.planner.layouts import shardings
from ostinato.planner.passes import communicate, memory, parts, simplify
from ostinato.runtime import bind
from ostinato.runtime.messages import collectives, communicator

import ostinato as ost
from ostinato.reading import CompileTrace
from tests import sessions
from tests.ops.nodes import graphs
from tests.programs import Program, make_program

Plant = Callable[[], Any]
PLANTS: dict[str, Plant] = {}
MOST = 1500  # programs until a plant counts as not found
FEW = 200  # programs that have most operations among them


def plant(name: str) -> Callable[[Plant], Plant]:
    def add(make: Plant) -> Plant:
        PLANTS[name] = make
        return make

    return add


@contextmanager
def op(name: str, **facts: Any) -> Iterator[None]:
    """An op with other facts, for a while."""
    before = OPS[name]
    OPS[name] = replace(before, **facts)
    try:
        yield
    finally:
        OPS[name] = before


def whole_index(change: Callable[[Indices], Indices], name: str) -> Any:
    rule = OPS[name].indices
    return op(name, indices=lambda i, o, p: change(rule(i, o, p)))


def shifted(by: int) -> Callable[[Indices], Indices]:
    """Every window a little beside."""

    def change(found: Indices) -> Indices:
        ins = tuple(
            tuple(replace(d, offset=d.offset + by) if isinstance(d, Window) else d for d in dims)
            for dims in found.ins
        )
        return replace(found, ins=ins)

    return change


def all_parallel(name: str) -> Any:
    """An op that claims all its indices can be cut."""
    return op(
        name,
        indices=lambda ins, outs, p: Indices(
            tuple(tuple(LETTERS[: s.ndim]) for s in ins),
            tuple(tuple(LETTERS[: s.ndim]) for s in outs),
        ),
    )


def displaced(name: str) -> Any:
    """A kernel that believes its part starts at 0."""
    kernel = OPS[name].kernel
    assert kernel is not None

    def blind(xp: Any, out: Any, *ins: Any, at: Place, **params: Any) -> None:
        def home(boxes: Any) -> Any:
            return tuple(tuple((0, hi - lo) for lo, hi in box) for box in boxes)

        kernel(
            xp,
            out,
            *ins,
            at=Place(home(at.ins), home(at.outs), at.in_shapes, at.out_shapes),
            **params,
        )

    return op(name, kernel=blind)


def with_monoid(name: str, other: str) -> Any:
    return whole_index(lambda f: replace(f, reduce=tuple((c, other) for c, _ in f.reduce)), name)


for _name in ("slice", "concat", "pad", "update_slice"):
    plant(f"{_name}: its window one beside")(lambda n=_name: whole_index(shifted(1), n))
for _name in ("sort", "argsort", "cumulative_sum", "take_along_axis", "diagonal"):
    if _name != "diagonal":
        plant(f"{_name}: claims that it can be cut along its axis")(lambda n=_name: all_parallel(n))
for _name in ("take", "iota", "argmin_pair", "put", "concat", "pad", "update_slice"):
    plant(f"{_name}: forgets where its part lies")(lambda n=_name: displaced(n))
plant("sum: combined as if it were max")(lambda: with_monoid("sum", "max"))
plant("max: combined as if it were min")(lambda: with_monoid("max", "min"))
plant("min: combined as if it were sum")(lambda: with_monoid("min", "sum"))
plant("any: combined as if it were all")(lambda: with_monoid("any", "all"))
plant("matmul: a sum that nobody combines")(
    lambda: whole_index(
        lambda f: replace(f, reduce=tuple((c, "max") for c, _ in f.reduce)), "matmul"
    )
)
plant("einsum: a sum that nobody combines")(
    lambda: whole_index(
        lambda f: replace(f, reduce=tuple((c, "max") for c, _ in f.reduce)), "einsum"
    )
)
plant("reshape: may be cut where the pieces do not agree")(
    lambda: mock.patch.object(shardings, "_chunks_agree", lambda *a: True)
)


@plant("moments: groups of different size weigh the same")
def _moments() -> Any:
    def combine(xp: Any, out: Any, a: Any, b: Any) -> None:
        n, m, s = a[0] + b[0], (a[1] + b[1]) / 2, a[2] + b[2]
        for target, value in zip(out, (n, m, s), strict=True):
            xp.copyto(target, value)

    return mock.patch.dict(
        monoid.MONOIDS, moments=replace(monoid.MONOIDS["moments"], combine=combine)
    )


@plant("argmin: of equal values the later one")
def _later() -> Any:
    def combine(xp: Any, out: Any, a: Any, b: Any) -> None:
        wins = (b[0] <= a[0]) & (b[1] >= 0) | (a[1] < 0)
        xp.copyto(out[0], xp.where(wins, b[0], a[0]))
        xp.copyto(out[1], xp.where(wins, b[1], a[1]))

    return mock.patch.dict(
        monoid.MONOIDS, argmin=replace(monoid.MONOIDS["argmin"], combine=combine)
    )


@plant("layout: two axes that split one dimension in the wrong order")
def _order() -> Any:
    rule = layout._bounds

    def bounds(has: Any, size: int, dim: int, coords: Any) -> Any:
        if has.splits.count(dim) == 2:
            coords = tuple(reversed(coords))
        return rule(has, size, dim, coords)

    return mock.patch.object(layout, "_bounds", bounds)


@plant("layout: believes that everything is there already")
def _everything() -> Any:
    return mock.patch.object(layout, "_contains", lambda has, needs, shape: True)


@plant("window: one short")
def _short() -> Any:
    rule = layout.Overlap.image

    def image(self: Any, lo: int, hi: int, size: int) -> Any:
        start, end = rule(self, lo, hi, size)
        return start, max(start, end - 1)

    return mock.patch.object(layout.Overlap, "image", image)


@plant("halos: merged to less than both")
def _merged() -> Any:
    return mock.patch.object(communicate, "_around", lambda a, b: a)


@plant("exchange: one message lost")
def _lost() -> Any:
    to, from_ = exchange.pieces_to, exchange.pieces_from

    def gone(has: Any, needs: Any, shape: Any) -> list[Any]:
        last = has.workers - 1
        return [p for p in to(has, needs, shape, last) if p.source != last][-1:]

    def less(rule: Any) -> Any:
        def pieces(has: Any, needs: Any, shape: Any, rank: int) -> Any:
            lost = gone(has, needs, shape)
            return tuple(p for p in rule(has, needs, shape, rank) if p not in lost)

        return pieces

    return mock.patch.multiple(collectives, pieces_to=less(to), pieces_from=less(from_))


@plant("combine: the last worker is left out")
def _left_out() -> Any:
    rule = communicator.fold
    return mock.patch.object(
        communicator, "fold", lambda states, outs, *how: rule(states[:-1] or states, outs, *how)
    )


@plant("broadcast: from the wrong worker")
def _root() -> Any:
    rule = communicator.ThreadCommunicator.start_broadcast

    def start(self: Any, x: Any, out: Any, root: int, group: Any) -> Any:
        return rule(self, x, out, group[(group.index(root) + 1) % len(group)], group)

    return mock.patch.object(communicator.ThreadCommunicator, "start_broadcast", start)


@plant("parts: made in parts though somebody reads it whole")
def _parts() -> Any:
    def another(spec: Any, ends: Any) -> Any:
        others = [e for e in ends if e is not spec.layout and parts._has(spec, e)]
        return others[0] if others else None

    return mock.patch.object(parts, "_another", another)


@plant("memory: written over while it is still read")
def _over() -> Any:
    rule = memory._Assigner._last_reads

    def last(self: Any) -> Any:
        return [k - 1 if 0 < k < len(self.graph.nodes) else k for k in rule(self)]

    return mock.patch.object(memory._Assigner, "_last_reads", last)


@plant("memory: a view does not keep what it views")
def _view() -> Any:
    rule = memory._Assigner._last_reads

    def last(self: Any) -> Any:
        found = rule(self)
        alone = [-1] * len(found)
        for k, node in enumerate(self.graph.nodes):
            for v in (*node.inputs, *self.graph.outs(k)):
                alone[v] = k
        for v in self.graph.outputs:
            alone[v] = len(self.graph.nodes)
        return [
            a if self.root[v] == v else f for v, (a, f) in enumerate(zip(alone, found, strict=True))
        ]

    return mock.patch.object(memory._Assigner, "_last_reads", last)


@plant("loop: the state is read from the buffer that is written")
def _turn() -> Any:
    rule = bind._Binder.loop_

    def loop(self: Any, *args: Any) -> None:
        with mock.patch.object(bind._Binder, "turn", lambda self, c, n, s: None):
            rule(self, *args)

    return mock.patch.object(bind._Binder, "loop_", loop)


@plant("loop: turns run in the other order")
def _backwards() -> Any:
    rule = bind._Binder.loop_

    def loop(self: Any, at: Any) -> None:
        params = tuple((n, (not v) if n == "reverse" else v) for n, v in at.node.params)
        rule(self, replace(at, node=replace(at.node, params=params)))

    return mock.patch.object(bind._Binder, "loop_", loop)


@plant("simplify: slices of slices forget the first one's steps")
def _steps() -> Any:
    rule = simplify._RULES["slice"]

    def move(s: Any, node: Any) -> Any:
        before = s.maker(node.inputs[0])
        if node.op == "slice" and before is not None and before.op == "slice":
            old, kw = before.kw, node.kw
            starts = tuple(a + b for a, b in zip(old["starts"], kw["starts"], strict=True))
            return s.add("slice", before.inputs, {**kw, "starts": starts}, node)
        return rule(s, node)

    return mock.patch.dict(simplify._RULES, slice=move)


@plant("simplify: two permutations in the wrong order")
def _permutations() -> Any:
    rule = simplify._RULES["permute_dims"]

    def move(s: Any, node: Any) -> Any:
        before = s.maker(node.inputs[0])
        if before is not None and before.op == "permute_dims":
            axes = tuple(node.kw["axes"][a] for a in before.kw["axes"])
            return s.add("permute_dims", before.inputs, {"axes": axes}, node)
        return rule(s, node)

    return mock.patch.dict(simplify._RULES, permute_dims=move)


@plant("simplify: x - 1 taken for x - 0")
def _neutral() -> Any:
    rule = simplify._RULES["subtract"]

    def neutral(s: Any, node: Any) -> Any:
        if s.number(node.inputs[1]) == 1 and s.spec(node.inputs[0]) is node.specs[0]:
            return node.inputs[:1]
        return rule(s, node)

    return mock.patch.dict(simplify._RULES, subtract=neutral)


@plant("blocks: the last one is lost (any-workers)")
def _blocks() -> Any:
    rule = reproducible._blocks_here
    return mock.patch.object(
        reproducible, "_blocks_here", lambda at, axis: rule(at, axis)[:-1] or rule(at, axis)
    )


@plant("tree: the odd one out is lost (any-workers)")
def _odd() -> Any:
    def pairs(xp: Any, combine: Any, rows: Any) -> None:
        n = rows.shape[0]
        while n > 1:
            for k in range(n // 2):
                combine(rows[2 * k : 2 * k + 1], rows[2 * k + 1 : 2 * k + 2], rows[k : k + 1])
            n //= 2

    return mock.patch.object(reproducible, "_pairs", pairs)


def fresh() -> None:
    """Forget plans and layouts that were made before or under a plant."""
    for module in (layout, exchange, traffic):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
    for session in sessions._sessions.values():
        session.plans = PlanCache()
        session.engine.launchers.clear()
        for worker in session.engine.workers:
            worker.plans.clear()


def drawn(seed: int) -> tuple[random.Random, tuple[int, ...], Program]:
    r = random.Random(seed)
    mesh = r.choice([m for m in sessions.MESHES if m != (1,)])
    return r, mesh, make_program(r)


@lru_cache(MOST)
def ops_of(seed: int) -> frozenset[str]:
    """What a random program consists of before it is planned."""
    _, _, program = drawn(seed)
    trace = CompileTrace("program")
    specs = [Spec(x.shape, x.dtype) for x in program.inputs]
    made = program.by_ostinato(*[placeholder(s, k, trace) for k, s in enumerate(specs)])
    graph = collect([term_of(y) for y in made], specs, trace).graph
    return frozenset(node.op for g in graphs(graph) for node in g.nodes)


def fails(seed: int, numerics: str) -> str:
    """How one random program, placed at random, goes wrong; empty if it does not."""
    from tests.planner.test_any_layout import run_and_compare

    r, mesh, program = drawn(seed)
    try:
        run_and_compare(r, program, mesh, numerics)
    except AssertionError:
        return "a wrong result"
    except (ost.errors.OstinatoError, ValueError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def hunt(name: str, most: int = MOST) -> tuple[int, str] | None:
    """Which program found a plant, and how it showed; None if none did. First come programs that have the
    operation in which it is."""
    numerics = "any-workers" if "any-workers" in name else "same-plan"
    likely = [seed for seed in range(min(FEW, most)) if name.partition(":")[0] in ops_of(seed)]
    with ExitStack() as stack:
        fresh()
        stack.enter_context(PLANTS[name]())
        stack.callback(fresh)
        for seed in (*likely, *range(most)):
            how = fails(seed, numerics)
            if how:
                return seed + 1, how
    return None


def main() -> None:
    for name in PLANTS:
        start = time.perf_counter()
        found = hunt(name)
        what = "NOT FOUND" if found is None else f"program {found[0]:>4}: {found[1][:60]}"
        print(f"{time.perf_counter() - start:5.1f} s  {name:<58}  {what}", flush=True)


if __name__ == "__main__":
    main()
