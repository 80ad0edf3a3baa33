"""Memory: an independent check that no live value is written over, and counts of what a repeated plan allocates."""

from __future__ import annotations

import gc
import itertools
import math
import random
import tracemalloc
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.device import described
from ostinato.ops.core.layout import Partial
from ostinato.ops.core.registry import ANY, OPS, Place
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.flow.control import ONE_KERNEL
from ostinato.planner.cpu import fuse
from ostinato.planner.passes import memory
from ostinato.planner.plan import Program, local_bytes

import ostinato as ost
from ostinato import settings as chosen
from ostinato.errors import ArgumentError, DonatedError, LinAlgError, MemoryLimitError
from tests.helpers import assert_same, compare_all, counts_traces
from tests.planner.test_any_layout import RELAXED, splits_for
from tests.programs import make_program
from tests.sessions import MESHES, use
from tests.thorough import few

MIB = 1 << 20
needs_kernels = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Overwritten(AssertionError):
    """Memory that was needed held something else."""


def check_memory(program: Program, base: int = 0) -> None:
    """Play a program through on a map of memory: who wrote each byte last.

    Knows nothing of lifetimes: before each node it looks whether the operands' bytes still hold the operands.
    """
    graph, slots = program.graph, program.slots
    held: dict[Any, list[tuple[int, int, Any]]] = {}  # per buffer: intervals and what they hold

    def place(v: int) -> tuple[Any, int, int]:
        slot = slots[v]
        while slot.kind in ("alias", "part"):
            v, slot = slot.at, slots[slot.at]
        size = local_bytes(graph.specs[v])
        if slot.kind == "arena":
            return "arena", base + slot.at, base + slot.at + size
        buffer: Any = (slot.kind, slot.at)
        for (
            result,
            operand,
        ) in program.reuse:  # a result written over an operand that was given away
            if buffer == ("output", result):
                buffer = ("input", operand)
        return buffer, 0, size

    def runs(v: int) -> list[tuple[Any, int, int]]:
        """The intervals of bytes in which a value lies."""
        v = owner(v)
        if slots[v].kind != "part":
            return [place(v)]
        buffer, begin, _ = place(v)
        whole = graph.specs[slots[v].at]
        size = whole.dtype.itemsize
        numbers = np.arange(math.prod(largest(whole))).reshape(largest(whole))
        mine = np.sort(memory.part_getter(graph, v, largest, boxes)(numbers), axis=None)
        cuts = np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1) if mine.size else []
        return [(buffer, begin + size * c[0], begin + size * (c[-1] + 1)) for c in cuts]

    def boxes(node: Any) -> Place:  # of the first worker, who has the largest parts
        ins, outs = [graph.specs[v] for v in node.inputs], node.specs
        held = [tuple([s.layout.box(s.shape, 0) for s in of]) for of in (ins, outs)]
        return Place(*held, tuple([s.shape for s in ins]), tuple([s.shape for s in outs]))

    def owner(v: int) -> int:
        while slots[v].kind == "alias":
            v = slots[v].at
        return v

    def write(buffer: Any, lo: int, hi: int, what: Any) -> None:
        if lo == hi:
            return
        kept = []
        for a, b, w in held.get(buffer, []):
            if b <= lo or hi <= a:
                kept.append((a, b, w))
                continue
            if a < lo:
                kept.append((a, lo, w))
            if hi < b:
                kept.append((hi, b, w))
        held[buffer] = [*kept, (lo, hi, what)]

    def holds(v: int) -> None:
        root = owner(v)
        if slots[root].kind in ("constant", "none"):
            return
        for buffer, lo, hi in runs(v):
            covered = sum(
                min(b, hi) - max(a, lo)
                for a, b, w in held.get(buffer, [])
                if w == root and a < hi and lo < b
            )
            if covered != hi - lo:
                raise Overwritten(f"value {v} at {buffer} [{lo}, {hi}) is not there when read")

    def meets(a: tuple[Any, int, int], b: tuple[Any, int, int]) -> bool:
        return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]

    for k in range(len(graph.inputs)):
        write(*place(k), k)
    for k, node in enumerate(graph.nodes):
        for v in node.inputs:
            holds(v)
        if memory.is_joined(program, k):
            (whole,) = graph.outs(k)
            assert (
                sum(b - a for v in node.inputs for _, a, b in runs(v))
                == place(whole)[2] - place(whole)[1]
            )
            write(*place(whole), whole)
            continue
        outs = [v for v in graph.outs(k) if slots[v].kind in ("arena", "output", "part")]
        spans: list[tuple[Any, int, int]] = []
        if node.op in memory.CONTROL:
            need = max(p.arena_bytes for p in program.bodies[k])
            spans.append(("arena", base + program.bases[k], base + program.bases[k] + need))
            carried: Any = ()  # two buffers
            if node.op in ("loop", "while"):
                stays = memory.carried_in_place(node, program.bodies[k])
                carried = node.specs[: node.kw["counts"][1]]
                carried = [s for j, s in enumerate(carried) if j not in stays]
            elif node.op == "blocks":  # addends
                ends = node.kw["body"].out_specs
                carried = [s for s in ends if isinstance(s.layout.splits[-1], Partial)]
                behind = memory.written_specs(node, program.bodies[k][0].graph)
                files = [*memory.read_ahead(graph, node), *behind]
                carried = [*(s for s in files for _ in range(memory.BUFFERS)), *carried]
            sizes = [local_bytes(s) for s in carried]
        else:
            sizes = memory.scratch_bytes(described(chosen.device), graph, node)
        places = program.scratch[k]
        if node.op in memory.LOOPS:
            places = [p for j, p in enumerate(places) if j not in stays]
        spans += [("arena", base + at, base + at + n) for at, n in zip(places, sizes, strict=True)]
        # what a node writes may touch its operands only where it may write over one of them, exactly
        for i, v in enumerate(node.inputs):
            if (
                slots[owner(v)].kind in ("constant", "none")
                or slots[graph.starts[k]].kind == "alias"
                or (slots[v].kind == "part" and slots[v].at == graph.starts[k])
            ):
                continue
            for span in spans:
                assert not meets(place(v), span), f"{node.op}: scratch over operand {v}"
            for out in outs:
                if slots[out].kind == "part":
                    pairs = itertools.product(runs(v), runs(out))
                    assert not any(meets(a, b) for a, b in pairs), "a part over an operand"
                elif meets(place(v), place(out)) and place(v)[1] < place(v)[2]:
                    allowed: Any = OPS[node.op].run.overwrite
                    if node.op in memory.CONTROL:
                        allowed = {
                            memory.carried_in_place(node, program.bodies[k])[out - graph.starts[k]]
                        }
                    elif node.op in ONE_KERNEL.values():  # a state, over what it begins as
                        begin, states = node.kw["counts"][:2]
                        j = out - graph.starts[k]
                        allowed = {begin + j} if j < states else set()
                    assert allowed == ANY or i in allowed, (
                        f"{node.op} may not write over operand {i}"
                    )
                    assert place(v) == place(out), f"{node.op}: result and operand overlap askew"
                    made = graph.producers[owner(v)]
                    came = graph.nodes[made].op == "fetch" and graph.uses[owner(v)] == (
                        graph.producers[v],
                    )
                    assert owner(v) == v or came, f"{node.op} writes over what a view shows"
        written = spans + [run for v in outs for run in runs(v)]
        for n, a in enumerate(written):
            for b in written[:n]:
                assert not meets(a, b), f"{node.op}: results or scratch overlap"
        for span in spans:
            assert span[2] <= base + program.arena_bytes
            write(*span, "garbage")
        for v in outs:
            for buffer, lo, hi in runs(v):
                assert buffer != "arena" or hi <= base + program.arena_bytes
                write(buffer, lo, hi, v)
        for body in program.bodies.get(k, ()):
            check_memory(body, base + program.bases[k])
    for v in graph.outputs:
        holds(v)


def largest(spec: Spec) -> tuple[int, ...]:
    """The shape of the largest part."""
    assert spec.layout is not None
    return tuple(spec.layout.largest(spec.shape))


def programs_of(session: Any) -> list[Program]:
    return [plan.program for plan in session.plans.plans.values()]


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
def test_no_live_value_is_written_over(r: random.Random, mesh: tuple[int, ...]) -> None:
    program = make_program(r, 10)
    with use(mesh):
        inputs = [ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in program.inputs]
        given_away = [k for k in range(len(inputs)) if r.random() < 0.3]
        run = ost.compile(lambda *xs: program.by_ostinato(*xs))
        run(*inputs)
        check_memory(run.plan.program)
        redone = memory.assign_memory(run.plan.program.graph, CPU, given_away)
        check_memory(redone)


def test_the_checker_sees_what_is_wrong() -> None:
    """Swap two places of a good program, and it must object."""
    f = ost.compile(lambda x: (ost.sin(x) @ ost.cos(x)) + ost.tanh(x))
    with use():
        f(ost.ones((8, 8)))
    good = f.plan.program
    check_memory(good)
    places = {k for k, s in enumerate(good.slots) if s.kind == "arena"}
    assert len({good.slots[k].at for k in places}) > 1
    slots = tuple(type(s)("arena", 0) if s.kind == "arena" else s for s in good.slots)
    bad = Program(good.graph, slots, good.scratch, good.bodies, good.bases, good.arena_bytes)
    with pytest.raises(AssertionError):
        check_memory(bad)


def mlp(p: dict[str, Any], x: Any, y: Any, lr: Any) -> Any:
    def loss(p: Any) -> Any:
        h = ost.tanh(x @ p["w"] + p["b"])
        return ost.nn.cross_entropy(h @ p["v"], y)

    value, g = ost.value_and_grad(loss)(p)
    return {k: p[k] - lr * g[k] for k in p}, value


def mlp_inputs(rows: int = 512) -> tuple[Any, ...]:
    r = np.random.default_rng(0)
    p = {
        "w": ost.asarray(r.normal(size=(64, 256)).astype("f4")),
        "b": ost.zeros(256, dtype=ost.float32),
        "v": ost.asarray(r.normal(size=(256, 10)).astype("f4")),
    }
    return (
        p,
        ost.asarray(r.normal(size=(rows, 64)).astype("f4")),
        ost.asarray(r.integers(0, 10, rows)),
    )


CASES: dict[str, Any] = {
    "elementwise": lambda x: ost.tanh(x * 2 + 1) - ost.exp(-x),
    "reductions": lambda x: x - x.mean(0) + x.sum(1)[:, None] / x.max(),
    "matmul": lambda x: (x @ x.T) @ x,
    "views": lambda x: x.T[1:, ::2].T + x[:, 1:][::2],
    "softmax": lambda x: ost.nn.softmax(x),
    "statistics": lambda x: (x - x.mean(0)) / ost.sqrt(x.var(0) + 1e-6),
    "loop": lambda x: ost.repeat(5, lambda s: s * 0.5 + 1, x),
    "where": lambda x: ost.where(x > 0, x, -x).argmin(1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_repeated_plan_allocates_no_array(name: str) -> None:
    with use() as session:
        f = ost.compile(CASES[name])
        x = ost.asarray(np.random.default_rng(0).normal(size=(1000, 1000)).astype("f4"))
        for _ in range(6):
            y = f(x)
        worker = session.engine.workers[0]
        before = worker.allocations
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(5):
                y = f(x)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert worker.allocations == before
        assert peak < 200_000, "an array of this plan has a million bytes or more"
        del y


@counts_traces
def test_a_training_step_allocates_nothing() -> None:
    with use() as session:
        step = ost.compile(mlp)
        p, x, y = mlp_inputs()
        for k in range(6):
            p, loss = step(p, x, y, 0.1 / (k + 1))
        worker = session.engine.workers[0]
        before = worker.allocations
        tracemalloc.start()
        try:
            for k in range(5):
                p, loss = step(p, x, y, 0.01 / (k + 1))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert worker.allocations == before
        assert peak < 64_000
        assert len(step.misses) == 1
        assert float(loss) > 0


def test_the_counter_of_allocations_counts() -> None:
    """Kept results need fresh memory each time."""
    with use() as session:
        f = ost.compile(lambda x: x + 1)
        x = ost.zeros(1000)
        f(x)
        before = session.engine.workers[0].allocations
        kept = [f(x) for _ in range(10)]
        assert session.engine.workers[0].allocations >= before + 9
        assert len(kept) == 10


def test_views_cost_nothing() -> None:
    with use():
        f = ost.compile(lambda x: (x.T[::2, 1:]).reshape(10, 19)[:, None, ::-1].sum())
        x = ost.ones((20, 20))
        assert float(f(x)) == 190
        names = [n.op for n in f.plan.program.graph.nodes]
        assert "copy" not in names
        g = ost.compile(lambda x: x[5:15][:, None].sum())
        g(x)
        assert g.plan.arena_bytes == 0


@pytest.mark.cpu_only
def test_elementwise_chains_work_in_place() -> None:
    with use():
        f = ost.compile(lambda x: ost.exp(ost.sin(x * 2) + 1).sum())
        f(ost.ones(1000))
        assert f.plan.arena_bytes == 8000
        g = ost.compile(lambda x: ost.exp(ost.sin(x * 2) + 1))
        g(ost.ones(1000))
        assert g.plan.arena_bytes == 0


@needs_kernels
def test_what_is_joined_is_made_in_its_place() -> None:
    def rotated(x: Any, c: Any, s: Any) -> Any:
        a, b = x[:, :40], x[:, 40:]
        return ost.concat([a * c - b * s, a * s + b * c], axis=1)

    x, c, s = (np.random.default_rng(k).random((500, n)) for k, n in enumerate((80, 40, 40)))
    wanted = np.concatenate([x[:, :40] * c - x[:, 40:] * s, x[:, :40] * s + x[:, 40:] * c], 1)
    with use():
        f, g = ost.compile(rotated), ost.compile(lambda *xs: ost.exp(rotated(*xs)).sum(0))
        np.testing.assert_array_equal(np.asarray(f(x, c, s)), wanted)
        np.testing.assert_allclose(np.asarray(g(x, c, s)), np.exp(wanted).sum(0))
    for made, most in ((f, 0), (g, wanted.nbytes)):
        program = made.plan.program
        check_memory(program)
        assert [n.op for n in program.graph.nodes].count("fused_joins") == 1
        assert program.arena_bytes <= most + 4096, "and what the sum works in"
        assert "concat" not in made.plan.explain()


@needs_kernels
def test_edges_that_are_joined_are_kernels_too() -> None:
    """Small ones, that would not be worth it alone: all of a gradient is one kernel."""
    x = np.random.default_rng(0).normal(size=(300, 200))
    with use():
        f = ost.compile(lambda x: ost.gradient(x, axis=0))
        np.testing.assert_array_equal(np.asarray(f(x)), np.gradient(x, axis=0))
        program = f.plan.program
        assert [n.op for n in program.graph.nodes] == ["fused_joins"]
        assert f.plan.arena_bytes == 0


def test_what_is_joined_from_short_rows_or_read_elsewhere_is_copied() -> None:
    x = np.random.default_rng(0).random((500, 30))

    def few(x: Any) -> Any:
        return ost.stack([x + 1, x * 2], axis=-1)

    def again(x: Any) -> Any:
        y = x + 1
        return ost.concat([y, x * 2]), y.sum(0)

    def given(x: Any) -> Any:
        return ost.concat([x, x * 2])

    with use():
        for f in map(ost.compile, (few, again, given)):
            f(x)
            assert "part" not in [slot.kind for slot in f.plan.program.slots]


@settings(RELAXED, max_examples=few(50))
@given(st.data())
def test_joined_anywhere(data: Any) -> None:
    """Along any axis, of parts of any length, in loops, read by anything, given away."""
    shape = data.draw(st.lists(st.sampled_from([1, 3, 40]), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    new = data.draw(st.booleans())
    lengths = (
        [shape[axis]] * 3
        if new
        else data.draw(st.lists(st.integers(1, 40), min_size=3, max_size=3))
    )
    then = data.draw(st.sampled_from(["nothing", "exp", "sum", "product", "turns"]))
    xs = []
    for k, n in enumerate(lengths):
        xs.append(np.random.default_rng(k).random((*shape[:axis], n, *shape[axis + 1 :])))

    def program(xp: Any, *xs: Any) -> Any:
        a, b, c = (xp.sqrt(x) * (k + 1) - x for k, x in enumerate(xs))
        made = xp.stack([a, b, c], axis=axis) if new else xp.concat([a, b, c], axis=axis)
        match then:
            case "exp":
                return xp.exp(made) + 1
            case "sum":
                return xp.sum(made, axis=axis)
            case "product":
                flat = xp.reshape(made, (-1,))
                return flat @ flat, made
            case "turns":

                def turn(s: Any) -> Any:
                    parts = [s * 0.5, s * s, 1 - s]
                    joined = xp.concat(parts, axis=axis) if not new else xp.stack(parts, axis=axis)
                    return xp.sum(xp.reshape(joined, (3, *s.shape)), axis=0) / 4

                if xp is ost:
                    return ost.repeat(3, turn, a)
                for _ in range(3):
                    a = turn(a)
                return a
        return made

    with mock.patch.multiple(fuse, WORTH=0, BESIDE=0):
        assert_same(
            partial(program, ost), partial(program, np), *xs, few=True, rtol=1e-12, atol=1e-12
        )
        with use():
            f = ost.compile(lambda *xs: program(ost, *xs), donate=("xs",))
            given_away = [ost.asarray(x.copy()) for x in xs]
            compare_all(f(*given_away), program(np, *xs), "given away", 1e-12, 1e-12)
            check_memory(f.plan.program)


def test_donation_gives_the_memory_to_the_result() -> None:
    with use():
        f = ost.compile(lambda x, y: x * 0.5 + y, donate="x")
        x, y = ost.ones(1000), ost.ones(1000)
        ost.evaluate(x, y)
        address = x._operand.parts[0].ctypes.data
        z = f(x, y)
        assert z._operand.parts[0].ctypes.data == address
        np.testing.assert_array_equal(np.asarray(z), 1.5)
        assert f.plan.peak_bytes < 3 * 8000
        with pytest.raises(
            DonatedError, match=r"donated array .*test_memory.py:\d+\): got float64\[1000\]"
        ):
            x + 1
        with pytest.raises(DonatedError):
            f(x, y)
        with pytest.raises(ValueError, match="also used as another argument"):
            f(y, y)
        assert float(y.sum()) == 1000


def test_a_donated_operand_that_is_a_result_is_not_written_over() -> None:
    x = np.arange(6400.0).reshape(80, 80)
    with use():
        f = ost.compile(lambda x, y: (y * 2, x.T.T), donate="x")
        double, same = f(ost.asarray(x), ost.ones((80, 80)))
        np.testing.assert_array_equal(double, np.full((80, 80), 2.0))
        np.testing.assert_array_equal(same, x)


def test_a_failed_run_keeps_donated_operands() -> None:
    with use():
        f = ost.compile(lambda x, i: ost.take(x, i) * 2, donate="x")
        x, i = ost.ones(4), ost.asarray([9])
        with pytest.raises(IndexError, match="index 9 is out of bounds"):
            f(x, i)
        np.testing.assert_array_equal(np.asarray(x), np.ones(4))


@pytest.mark.parametrize("name", ["elementwise", "matmul", "statistics", "softmax"])
def test_predicted_peak_is_the_measured_one(name: str) -> None:
    with ost.connect():
        values = np.random.default_rng(0).normal(size=(1000, 1000))
        ost.compile(lambda x: ost.tanh(x) * 3)(values)  # loads the compiler
        f = ost.compile(CASES[name])
        gc.collect()
        tracemalloc.start()
        try:
            x = ost.asarray(values)
            y = f(x)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert abs(f.plan.peak_bytes - peak) < 0.1 * peak, (f.plan.peak_bytes, peak)
        assert y.shape


def test_memory_limit_refuses_before_it_runs() -> None:
    with ost.connect() as session:
        f = ost.compile(
            lambda x: ost.sort(((x[:, None] - x[None]) ** 2).reshape(-1))[0], memory_limit=8 * MIB
        )
        with pytest.raises(
            MemoryLimitError,
            match=r"(?s)peak is at (fused.subtract, square.|sort).*test_memory.py:\d+\): got \d\d\d\.\d MiB per worker.*"
            r"needed at most memory_limit=8\.0 MiB, which no split in time reaches, nor making values again: at least .* MiB; .*",
        ):
            f(ost.ones((1000, 40)))
        gc.collect()
        assert session.engine.workers[0].allocations == 1, "of the ones, and of nothing else"
        assert f(ost.ones((50, 4))).shape == ()


def test_memory_limit_of_a_session() -> None:
    with ost.connect(memory_limit=MIB), pytest.raises(MemoryLimitError):
        (ost.ones((1000, 1000)) + 1).numpy()


def test_splitting_divides_the_peak() -> None:
    def peak(workers: int) -> int:
        with use((workers,)):
            f = ost.compile(lambda x: ost.tanh(x * 2).sum(0))
            f(ost.asarray(np.ones((4000, 100)), split=0))
            return f.plan.peak_bytes

    assert peak(4) < 0.3 * peak(1)


def test_checkpoint_lowers_the_peak() -> None:
    def layers(x: Any) -> Any:
        for _ in range(6):
            x = ost.tanh(x @ np.full((100, 100), 0.1))  # products are no part of kernels
        return x

    def peak(wrap: Any) -> int:
        def loss(x: Any) -> Any:
            for _ in range(4):
                x = wrap(layers)(x)
            return x.sum()

        f = ost.compile(ost.grad(loss))
        with use():
            f(ost.ones((100, 100)))
        return f.plan.arena_bytes

    assert peak(ost.checkpoint) < 0.6 * peak(lambda f: f)


def test_a_failed_run_takes_only_what_it_may_have_written_to() -> None:
    """Here the result is written over the operand before the factorization fails."""
    with use():
        f = ost.compile(lambda x, s: (x * 2, ost.linalg.cholesky(s)), donate="x")
        x = ost.ones((3, 3)) + 0
        with pytest.raises(LinAlgError):
            f(x, -np.eye(3))
        with pytest.raises(DonatedError, match="make the array again, if the function failed"):
            np.asarray(x)
        same, _ = f(ost.ones((3, 3)), np.eye(3))
        np.testing.assert_array_equal(np.asarray(same), np.full((3, 3), 2.0))


def test_what_waits_for_an_operand_still_finds_it() -> None:
    with use():
        f = ost.compile(lambda x: x * 0.5 + 1, donate="x")
        made, given = ost.arange(4.0) + 0, ost.asarray(np.arange(4.0))
        for x in (made, given):
            waiting = x + 1  # of one that is pending itself, and of one that is there
            f(x)
            np.testing.assert_array_equal(np.asarray(waiting), [1, 2, 3, 4])


def test_who_looks_at_memory_keeps_what_he_sees() -> None:
    with use():
        f = ost.compile(lambda x: x * 0.5 + 1, donate="x")
        for size in (4, 10_000):  # little ones lie where they come
            x = ost.arange(size, dtype=ost.float64) + 0
            seen = np.asarray(x)[1:]
            f(x)
            np.testing.assert_array_equal(seen, np.arange(size)[1:])


@pytest.mark.parametrize("is_writeable", [True, False])
def test_a_numpy_array_is_not_given_away(is_writeable: bool) -> None:
    with use():
        f = ost.compile(lambda x: x * 0.5 + 1, donate="x")
        x = np.arange(4.0)
        x.flags.writeable = is_writeable
        np.testing.assert_array_equal(np.asarray(f(x)), np.arange(4) * 0.5 + 1)
        np.testing.assert_array_equal(x, np.arange(4))


def test_a_plan_that_is_given_operands_takes_them_wherever_it_runs() -> None:
    with use():
        f = ost.compile(lambda x, y: x * 2 + y, donate="x")
        plan, one = f.plan_for(ost.zeros(4), ost.zeros(4)), np.ones(4)
        x, y = ost.arange(4.0) + 0, ost.ones(4)
        z = x + 1
        np.testing.assert_array_equal(np.asarray(ost.run(plan, x, y)), [1, 3, 5, 7])
        np.testing.assert_array_equal(np.asarray(z), [1, 2, 3, 4])
        with pytest.raises(DonatedError):
            np.asarray(x)
        with pytest.raises(ArgumentError, match="also used as another argument"):
            ost.run(plan, y, y)
        np.testing.assert_array_equal(np.asarray(ost.run(plan, one, one)), np.full(4, 3.0))
        np.testing.assert_array_equal(one, np.ones(4))


def test_results_of_another_shape_are_made_where_they_go():
    x = np.ones((40, 30), np.float32)
    with ost.connect(workers=1):
        f = ost.compile(lambda x: (ost.expand_dims(x @ x.T, 1), (x.T @ x).reshape(30, 5, 6)))
        first, second = map(np.asarray, f(x))
        slots, graph = f.plan.program.slots, f.plan.program.graph
        ops = [n.op for n in graph.nodes]
    made = [slots[graph.starts[k]].kind for k, op in enumerate(ops) if op in ("matmul", "gram")]
    assert made == ["part", "part"], graph
    assert first.shape == (40, 1, 40)
    assert (first == 30).all()
    assert second.shape == (30, 5, 6)
    assert (second == 40).all()


@pytest.mark.parametrize(("channels", "side"), [(16, 3), (1024, 1)])
def test_slopes_of_filters_are_written_in_the_order_of_filters(channels: int, side: int) -> None:
    """A library has them in a form of its own first: no kernel reads them crosswise, and nothing is copied."""
    rng = np.random.default_rng(0)
    shapes = (2, channels, 9, 9), (40, channels, side, side)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in shapes)

    def change(w: Any, x: Any) -> Any:
        return w - 0.5 * ost.grad(lambda w: (ost.nn.conv(x, w) ** 2).sum())(w)

    with use():
        f = ost.compile(change)
        found = np.asarray(f(ost.asarray(w), ost.asarray(x)))
        program = f.plan.program
    copies = [k for k, node in enumerate(program.graph.nodes) if node.op == "copy"]
    assert [memory.is_joined(program, k) for k in copies] == [True], program.graph
    with ost.connect(numerics="any-workers"):
        wanted = np.asarray(change(ost.asarray(w), ost.asarray(x)))
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5 * abs(wanted).max())


def test_kernels_of_several_results_write_over_several_operands() -> None:
    w, m, g = (np.arange(5000.0) + k for k in range(3))

    def step(state: Any, g: Any) -> Any:
        w, m = state
        m = 0.9 * m + g
        return w - 0.5 * m, m

    with use():
        f = ost.compile(step, donate="state")
        found = f((ost.asarray(w), ost.asarray(m)), ost.asarray(g))
        program = f.plan.program
        compare_all(found, step((w, m), g), "given away", 1e-12, 1e-12)
    assert [{*pairs} for pairs in zip(*program.reuse, strict=True)] == [{0, 1}] * 2, program.graph
    assert sum(node.op == "fused" for node in program.graph.nodes) == 1
