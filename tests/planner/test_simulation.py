"""The laws of simulated time, on plans that nobody runs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.traffic import moved
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.machine import NOMINAL, Link, Machine, resolve
from ostinato.planner.prediction import Reuse, bytes_sent, legs, local, steps, work_of
from ostinato.planner.simulation import COMPUTE, Simulation, mesh_of, simulate, worker_classes

import ostinato as ost
from ostinato.errors import ArgumentError, MemoryLimitError

CLUSTER = resolve("h200-ib")


def faster(machine: Machine, by: float) -> Machine:
    """The same with more bandwidth everywhere."""
    levels = tuple(
        (n, dataclasses.replace(link, bandwidth=link.bandwidth * by)) for n, link in machine.levels
    )
    stream = tuple((size, rate * by) for size, rate in machine.stream)
    return dataclasses.replace(machine, levels=levels, stream=stream)


def training(x: Any, y: Any, up: Any, down: Any) -> Any:
    def loss(ws: Any) -> Any:
        return ((ost.maximum(x @ ws[0], 0.0) @ ws[1] - y) ** 2).mean()

    value, slopes = ost.value_and_grad(loss)((up, down))
    return value, [w - 0.1 * s for w, s in zip((up, down), slopes, strict=True)]


def a_plan(mesh: Any = (4, 8), machine: Any = "h200-ib", rows: int = 4096) -> Any:
    wide, split = (ost.spec((rows, 256), split=0) for _ in range(2))
    weights = ost.spec((256, 512)), ost.spec((512, 256))
    return ost.plan(training, wide, split, *weights, mesh=mesh, machine=machine)


def alone(work: Any, *specs: Any, **options: Any) -> Any:
    return ost.plan(work, *specs, machine="cpu-10gbe", **options)


# -- time ----------------------------------------------------------------------------------------
def test_a_chain_takes_the_sum_of_its_kernels() -> None:
    def chain(x: Any) -> Any:
        for _ in range(5):
            x = ost.sort(x @ x, axis=0)
        return x

    plan = alone(chain, ost.spec((300, 300)))
    found = plan.simulate()
    kernels = [e.end - e.start for e in found.events]
    assert len(kernels) >= 10
    assert found.seconds == pytest.approx(found.machine.run_seconds + sum(kernels))
    each = [s.predicted for s in steps(plan.program, found.machine)]
    assert sorted(kernels) == pytest.approx(sorted(each))


def two_streams(link: Link, background: float = 1.0) -> tuple[Simulation, float, float, float]:
    """A product and an all-reduce that do not need each other; what each of them takes, and what is done
    before and after them."""
    machine = dataclasses.replace(CLUSTER, levels=((0, link),), background=background)

    def both(x: Any, w: Any, y: Any) -> Any:
        return y.sum(0), x @ w

    specs = ost.spec((8 * 2048, 2048), split=0), ost.spec((2048, 2048))
    plan = ost.plan(both, *specs, ost.spec((8 * 64, 1 << 16), split=0), mesh=8, machine=machine)
    found = plan.simulate()
    assert [e.name for e in found.events if e.stream != COMPUTE] == ["all_reduce"]
    sent = link.all_reduce(8, 4 * (1 << 16))
    kernels = {e.name: e.end - e.start for e in found.events if e.stream == COMPUTE}
    product = kernels.pop("matmul")
    assert kernels.keys() <= {"sum", "fused(sum)", "copy"}
    return found, sent, product, sum(kernels.values()) + machine.run_seconds


@pytest.mark.parametrize("bandwidth", [1e9, 1e11])
def test_two_streams_take_the_longer_of_both(bandwidth: float) -> None:
    found, sent, product, rest = two_streams(Link(1e-6, bandwidth))
    assert (sent > product) == (bandwidth == 1e9)
    assert found.seconds == pytest.approx(rest + max(sent, product))


def test_what_does_not_go_on_in_the_background_is_done_when_it_is_awaited() -> None:
    found, sent, product, rest = two_streams(Link(1e-6, 1e11), background=0.0)
    assert found.seconds == pytest.approx(rest + sent + product)


def test_more_bandwidth_is_never_slower() -> None:
    plan = a_plan()
    times = [plan.simulate(faster(CLUSTER, 2.0**k)).seconds for k in range(-3, 8)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_a_loop_takes_its_iterations() -> None:
    def work(n: int) -> Any:
        return alone(lambda x: ost.repeat(n, lambda s: ost.sort(s @ s, axis=0), x), SQUARE)

    ten, hundred, thousand = (work(n).simulate() for n in (10, 100, 1000))
    each = (hundred.seconds - ten.seconds) / 90
    assert thousand.seconds == pytest.approx(hundred.seconds + 900 * each)
    assert len(thousand.events) < 40
    assert sum(c.computing for c in thousand.classes) == pytest.approx(
        thousand.seconds - thousand.machine.run_seconds
    )


SQUARE = ost.spec((256, 256))


def test_a_loop_that_ends_when_it_ends_takes_as_long_as_is_said() -> None:
    def turns(most: int | None) -> Any:
        def root(x: Any) -> Any:
            return ost.while_loop(
                lambda x: ost.max(abs(x)) > 1.0, lambda x: ost.sort(x @ x, axis=0), x, most=most
            )

        return alone(root, ost.spec((256, 256)))

    unknown, few, many = turns(None), turns(20), turns(1000)
    assert "while x about 100 " in unknown.explain()
    assert "while x about 10 " in few.explain()
    assert unknown.simulate().seconds == pytest.approx(many.simulate().seconds)
    assert unknown.simulate().seconds == pytest.approx(10 * few.simulate().seconds, rel=0.05)


def test_collectives_in_a_loop_are_counted_as_often_as_they_run() -> None:
    def power(a: Any, v: Any) -> Any:
        return ost.repeat(50, lambda v: (a @ v).resplit(None), v)

    n = 8192  # so large that it is not gathered before the loop
    plan = alone(power, ost.spec((n, n), split=0), ost.spec((n,)), mesh=4)
    found = plan.simulate()
    assert [link.collectives for link in found.links] == [50]
    assert found.links[0].bytes == 50 * 4 * 3 * n


def test_a_branch_takes_its_longer_side() -> None:
    def work(x: Any, p: Any) -> Any:
        return ost.cond(p, lambda x: ost.sort(x @ x @ x, axis=0), lambda x: x + 1, x)

    found = alone(work, SQUARE, ost.spec((), np.bool_)).simulate()
    short = alone(lambda x: x + 1, SQUARE).simulate()
    assert found.seconds > 2 * short.seconds


# -- who does what -------------------------------------------------------------------------------
def test_bytes_by_link_are_what_crosses() -> None:
    moves = (
        lambda x: x.resplit(None) * 2,
        lambda x: ost.exp(x).resplit(1),
        lambda x: (x[1:] - x[:-1]).resplit(0),
    )
    kinds = set[str]()
    meshes = ((4, 8), (2, 2, 8), (16,), (3, 5))
    rows = ost.spec((4000, 96), split=0)
    plans = [a_plan(mesh, rows=4000) for mesh in meshes]
    plans += [ost.plan(f, rows, mesh=m, machine=CLUSTER) for f in moves for m in meshes]
    for plan in plans:
        found = plan.simulate()
        graph = plan.program.graph
        crossing = 0
        for node in graph.nodes:
            ins = [graph.specs[v] for v in node.inputs]
            if kind := collective_of(node.op, node.kw):
                kinds.add(kind)
                way = legs(node, ins, CLUSTER)
                sent = bytes_sent(node, ins)
                if kind in ("all_reduce", "reduce_scatter"):  # parts of parts are rounded down
                    assert sum(leg.sent for leg in way) == pytest.approx(sent, rel=1e-3)
                else:
                    ends = zip(ins, node.specs, strict=True)
                    assert sum(leg.sent for leg in way) == sum(
                        moved(s.layout, e.layout, s.shape) * s.dtype.itemsize for s, e in ends
                    )
                crossing += sum(leg.sent for leg in way)
        assert sum(link.bytes for link in found.links) == crossing > 0
    assert kinds >= {"all_reduce", "all_gather", "all_to_all", "halo"}


def test_the_inner_axis_has_the_inner_link() -> None:
    def gather(x: Any) -> Any:
        return x.resplit(None)

    inner = ost.plan(gather, ost.spec((64, 64), split=(None, 0)), mesh=(4, 8), machine=CLUSTER)
    outer = ost.plan(gather, ost.spec((64, 64), split=(0, None)), mesh=(4, 8), machine=CLUSTER)
    assert [link.name for link in inner.simulate().links] == ["NVLink"]
    assert [link.name for link in outer.simulate().links] == ["InfiniBand"]
    assert outer.simulate().seconds > inner.simulate().seconds


def test_workers_with_equal_parts_are_one_class() -> None:
    assert len(a_plan().simulate().classes) == 1
    uneven = alone(lambda x: ost.sort(x, axis=1), ost.spec((1003, 64), split=0), mesh=(5, 3))
    found = uneven.simulate()
    assert sum(c.workers for c in found.classes) == 15
    sizes = {}
    layout = uneven.program.graph.inputs[0].layout
    for r in range(15):
        sizes.setdefault(layout.local_shape((1003, 64), r), []).append(r)
    assert sorted(c.workers for c in found.classes) == sorted(map(len, sizes.values()))
    assert found.imbalance > 0
    assert a_plan().simulate().imbalance == 0


def test_classes_by_brute_force() -> None:
    """Each worker of a class has parts of the same sizes as its first one."""
    for mesh, extent in (((7,), 30), ((3, 4), 10), ((2, 3, 2), 25), ((8,), 5)):
        plan = alone(lambda x: (x[1:] - x[:-1]).sum(1), ost.spec((extent, 6), split=0), mesh=mesh)
        ids, firsts = worker_classes(plan.program, mesh)
        specs = [s for s in plan.program.graph.specs if s.layout is not None and not s.pending]
        for rank, c in enumerate(ids.tolist()):
            mine, first = local(mesh, rank), local(mesh, firsts[c])
            assert [mine(s).shape for s in specs] == [first(s).shape for s in specs]


def test_the_slowest_holds_up_those_who_wait_for_it() -> None:
    plan = alone(lambda x: ost.sort(x, axis=1).sum(0), ost.spec((9, 1 << 15), split=0), mesh=8)
    found = plan.simulate()
    assert len(found.classes) == 2
    most, least = sorted(found.classes, key=lambda c: -c.computing)
    assert most.computing > least.computing
    assert least.waiting > most.waiting
    ends = {e.start for e in found.events if e.stream != COMPUTE}
    assert len(ends) == 1  # together


def test_thousands_of_workers_are_simulated_as_a_few() -> None:
    plan = a_plan((256, 8), rows=256 * 8 * 4 + 3)
    found = plan.simulate()
    assert found.workers == 2048
    assert len(found.classes) < 8
    assert sum(c.workers for c in found.classes) == 2048


# -- what a kernel takes -------------------------------------------------------------------------
def test_work_is_that_of_a_workers_part() -> None:
    def one(x: Any) -> Any:
        return ost.exp(x) * 2 + x

    whole, half = (alone(one, ost.spec((4096, 64), split=0), mesh=n).program.graph for n in (1, 2))
    a, b = (work_of(g, g.nodes[-1]) for g in (whole, half))
    assert a.functions == 2 * b.functions == 4096 * 64
    assert a.moved == 2 * b.moved == 2 * 4 * 4096 * 64
    assert a.simple > 0


def test_what_was_just_made_comes_from_cache() -> None:
    def chain(x: Any) -> Any:
        return ost.sort(ost.sort(x, axis=0), axis=1)

    few, many = (alone(chain, ost.spec((n, n))).program for n in (64, 2048))
    machine = dataclasses.replace(NOMINAL, stream=((1e5, 1e12), (1e5 + 1, 1e9)))
    for program, rate in ((few, 1e12), (many, 1e9)):
        reuse = Reuse(program, local((1,), 0))
        size = sum(s.nbytes for s in (*program.graph.inputs, *program.graph.nodes[0].specs))
        assert reuse.seconds(0, machine, size) == pytest.approx(size / rate)


def test_looks_at_one_array_that_overlap_are_read_once() -> None:
    def stencil(u: Any) -> Any:
        return u[2:] + u[1:-1] + u[:-2]

    program = alone(stencil, ost.spec((1 << 16, 16))).program
    k = len(program.graph.nodes) - 1
    reuse = Reuse(program, local((1,), 0))
    size = 4 * 16 * (1 << 16)
    work = work_of(program.graph, program.graph.nodes[k])
    flat = dataclasses.replace(NOMINAL, stream=((1.0, 1e9),))
    assert work.moved == pytest.approx(4 * size, rel=1e-3)
    assert reuse.seconds(k, flat, work.moved) == pytest.approx(2 * size / 1e9, rel=1e-3)


def test_what_is_put_together_is_moved_once() -> None:
    graph = alone(lambda u, v: u.at[5:9].set(v), SQUARE, ost.spec((4, 256))).program.graph
    assert work_of(graph, graph.nodes[-1]).moved == 2 * 4 * 256 * 256


def test_wide_numbers_take_longer_than_narrow_ones() -> None:
    times = [
        ost.plan(lambda x: x @ x, ost.spec((4096, 4096), dtype), machine="dgx-v100").simulate()
        for dtype in (np.float64, np.float32, np.float16)
    ]
    assert times[0].seconds > times[1].seconds > times[2].seconds


# -- plans without workers -----------------------------------------------------------------------
def test_a_plan_without_workers_is_that_of_a_call() -> None:
    with ost.connect(2):
        step = ost.compile(training)
        x = ost.zeros((64, 8), dtype=ost.float32, split=0)
        w = ost.zeros((8, 8), dtype=ost.float32)
        step(x, x, w, w)
        there = step.plan
    rows, square = ost.spec((64, 8), split=0), ost.spec((8, 8))
    here = ost.plan(training, rows, rows, square, square, mesh=2, machine="prompt")
    assert here.id == there.id
    assert here.program.graph == there.program.graph


def test_what_a_function_takes_from_around_it_stays_where_it_is() -> None:
    table = ost.ones((8, 8), dtype=ost.float32) * 3
    plan = ost.plan(lambda x: x @ table, ost.spec((16, 8), split=0), mesh=4)
    assert [s.shape for s in plan.traced.inputs] == [(16, 8), (8, 8)]
    assert float(table.sum()) == 192.0


def test_arguments_may_be_trees_and_numbers() -> None:
    def step(weights: Any, rate: float, n: int) -> Any:
        return {k: ost.reshape(w * rate, (n, -1)) for k, w in weights.items()}

    plan = ost.plan(step, {"a": ost.spec((4, 6)), "b": ost.spec(12)}, 0.1, n=3)
    assert [s.shape for s in plan.out_specs] == [(3, 8), (3, 4)]
    assert plan.names == ("weights['a']", "weights['b']", "rate")


def test_a_model_that_does_not_fit_is_refused() -> None:
    huge = ost.spec((1 << 18, 1 << 16))
    with pytest.raises(MemoryLimitError):
        ost.plan(lambda x: ost.sort(x @ x.T, axis=0), huge, machine="p100-pcie")


def test_a_compiled_function_keeps_its_options() -> None:
    @ost.compile(donate="x", precision="mixed_bf16", numerics="any-workers")
    def work(x: Any) -> Any:
        return x @ x

    square = ost.spec((64, 64), split=0)
    plan = ost.plan(work, square, mesh=2)
    assert plan.key.donated == (0,)
    assert plan.target.numerics == "any-workers"
    assert plan.target.precision == "mixed_bf16"
    assert ost.plan(work, square, mesh=2, precision="f32").target.precision == "f32"
    auto = ost.compile(precision="auto", tolerance=1e-3)(lambda x: x @ x)
    assert ost.plan(auto, square).target.precision == "as-written"


def test_random_numbers_take_a_seed_more() -> None:
    def noisy(x: Any) -> Any:
        return x + ost.random.normal(x.shape)

    plan = ost.plan(noisy, ost.spec((64, 8)))
    there = ost.compile(noisy)
    with ost.connect(1):
        there(ost.zeros((64, 8), dtype=ost.float32))
    assert plan.traced.inputs == there.plan.traced.inputs
    assert plan.traced.inputs[-1].dtype == np.uint64
    assert plan.simulate().seconds > 0


@pytest.mark.parametrize("wrong", [{"shape": (3, -1)}, {"shape": 3, "dtype": "U3"}])
def test_a_spec_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="spec"):
        ost.spec(**wrong)


def test_arguments_that_do_not_fit_the_function() -> None:
    with pytest.raises(ArgumentError, match="missing"):
        ost.plan(training, ost.spec(3))


# -- scaling -------------------------------------------------------------------------------------
def test_meshes_of_other_sizes() -> None:
    assert [mesh_of(n, (256, 8)) for n in (1, 2, 8, 64, 4096)] == [
        (1, 1),
        (1, 2),
        (1, 8),
        (8, 8),
        (512, 8),
    ]
    assert mesh_of(6, (4,)) == (6,)


def test_strong_and_weak_scaling() -> None:
    found = a_plan((4, 8), rows=1 << 16).simulate()
    strong = found.scaling((1, 8, 32))
    assert [r.workers for r in strong] == [1, 8, 32]
    assert [r.mesh for r in strong] == [(1, 1), (1, 8), (4, 8)]
    assert strong[0].efficiency == 1
    assert strong[0].seconds > strong[1].seconds
    share = strong[0].seconds / strong[1].seconds / 8
    assert strong[1].efficiency == pytest.approx(share)
    assert strong[2].seconds == found.seconds
    weak = found.scaling((1, 32), weak=True)
    assert weak[1].seconds == found.seconds
    assert weak[0].seconds < strong[0].seconds / 4  # a 32nd of the rows
    assert weak[0].efficiency == 1 > weak[1].efficiency


def test_where_it_does_not_fit_there_is_no_time() -> None:
    big = ost.spec((1 << 20, 1 << 13), split=0)
    found = ost.plan(lambda x: ost.sort(x, axis=1), big, mesh=16, machine="p100-pcie").simulate()
    rows = found.scaling((1, 16))
    assert rows[0].seconds == math.inf
    assert "1 workers: no room" in str(rows[0])
    assert rows[1].efficiency == 1


def test_scaling_needs_a_plan_that_can_be_made_again() -> None:
    work = ost.compile(lambda x: x + 1)
    work(np.zeros(3))
    with pytest.raises(ArgumentError, match=r"ost\.plan"):
        work.plan.simulate().scaling((1, 2))


# -- seen ----------------------------------------------------------------------------------------
def test_a_simulation_in_words() -> None:
    text = str(a_plan().simulate())
    assert "simulated on 32 workers (mesh 4x8) of h200-ib" in text
    assert "InfiniBand" in text
    assert "per worker" in text


def test_the_trace_has_all_events(tmp_path: Path) -> None:
    plan = a_plan()
    plan.trace(tmp_path / "x.json")
    rows = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    found = plan.simulate()
    bars = [r for r in rows if r["ph"] == "X"]
    assert len(bars) == len(found.events)
    last = max(r["ts"] + r["dur"] for r in bars) / 1e6
    assert last == pytest.approx(found.seconds)
    threads = {r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    assert threads == {"kernels", "NVLink", "InfiniBand"}


def test_explain_says_what_the_simulation_says() -> None:
    plan = a_plan()
    told = re.search(r"predicted ([\d.]+) (ms|µs) per run", plan.explain())
    assert told is not None
    seconds = float(told[1]) * {"ms": 1e-3, "µs": 1e-6}[told[2]]
    assert seconds == pytest.approx(plan.simulate().seconds, rel=0.01)
    assert simulate(plan.program, CLUSTER, (4, 8)).seconds == plan.simulate().seconds


def test_replicas_are_one_class() -> None:
    assert Layout.whole((4, 8)).is_whole
    plan = ost.plan(lambda x: ost.sort(x @ x, axis=0), ost.spec((64, 64)), mesh=(4, 8))
    assert [c.workers for c in plan.simulate().classes] == [32]
