"""Memory: an independent check that no live value is written over, and counts of what a repeated plan allocates."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.layout import Partial
from ostinato.ops.registry import ANY, OPS
from ostinato.planner import memory
from ostinato.planner.plan import Program, local_bytes

import ostinato as ost
from ostinato.errors import ArgumentError, DonatedError, LinAlgError, MemoryLimitError
from tests.planner.test_any_layout import RELAXED, splits_for
from tests.programs import make_program
from tests.sessions import MESHES, use

MIB = 1 << 20


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
        while slot.kind == "alias":
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
        buffer, lo, hi = place(v)
        covered = sum(
            min(b, hi) - max(a, lo)
            for a, b, w in held.get(buffer, [])
            if w == root and a < hi and lo < b
        )
        if covered != hi - lo:
            raise Overwritten(f"value {v} at {buffer} [{lo}, {hi}) is not there when it is read")

    def meets(a: tuple[Any, int, int], b: tuple[Any, int, int]) -> bool:
        return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]

    for k in range(len(graph.inputs)):
        write(*place(k), k)
    for k, node in enumerate(graph.nodes):
        for v in node.inputs:
            holds(v)
        outs = [v for v in graph.outs(k) if slots[v].kind in ("arena", "output")]
        spans: list[tuple[Any, int, int]] = []
        if node.op in memory.CONTROL:
            need = max(p.arena_bytes for p in program.bodies[k])
            spans.append(("arena", base + program.bases[k], base + program.bases[k] + need))
            carried: Any = ()  # two buffers
            if node.op in ("loop", "while"):
                carried = node.specs[: node.kw["counts"][1]]
            elif node.op == "blocks":  # addends
                ends = node.kw["body"].out_specs
                carried = [s for s in ends if isinstance(s.layout.splits[-1], Partial)]
            sizes = [local_bytes(s) for s in carried]
        elif OPS[node.op].scratch is not None:
            sizes = memory.scratch_bytes(OPS[node.op], graph, node)
        else:
            sizes = []
        spans += [
            ("arena", base + at, base + at + n)
            for at, n in zip(program.scratch[k], sizes, strict=True)
        ]
        # what a node writes may touch its operands only where it may write over one of them, exactly
        for i, v in enumerate(node.inputs):
            if (
                slots[owner(v)].kind in ("constant", "none")
                or slots[graph.starts[k]].kind == "alias"
            ):
                continue
            for span in spans:
                assert not meets(place(v), span), f"{node.op}: scratch over operand {v}"
            for out in outs:
                if meets(place(v), place(out)) and place(v)[1] < place(v)[2]:
                    allowed = OPS[node.op].overwrite
                    assert allowed == ANY or i in allowed, (
                        f"{node.op} may not write over operand {i}"
                    )
                    assert place(v) == place(out), f"{node.op}: result and operand overlap askew"
                    assert owner(v) == v, f"{node.op} writes over what a view shows"
        for n, a in enumerate(spans + [place(v) for v in outs]):
            for b in (spans + [place(v) for v in outs])[:n]:
                assert not meets(a, b), f"{node.op}: results or scratch overlap"
        for span in spans:
            assert span[2] <= base + program.arena_bytes
            write(*span, "garbage")
        for v in outs:
            buffer, lo, hi = place(v)
            assert buffer != "arena" or hi <= base + program.arena_bytes
            write(buffer, lo, hi, v)
        for body in program.bodies.get(k, ()):
            check_memory(body, base + program.bases[k])
    for v in graph.outputs:
        holds(v)


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
        redone = memory.assign_memory(run.plan.program.graph, given_away)
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


def test_elementwise_chains_work_in_place() -> None:
    with use():
        f = ost.compile(lambda x: ost.exp(ost.sin(x * 2) + 1).sum())
        f(ost.ones(1000))
        assert f.plan.arena_bytes == 8000
        g = ost.compile(lambda x: ost.exp(ost.sin(x * 2) + 1))
        g(ost.ones(1000))
        assert g.plan.arena_bytes == 0


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
            r"needed at most memory_limit=8\.0 MiB, which no split in time reaches; .*",
        ):
            f(ost.ones((1000, 40)))
        gc.collect()
        assert session.engine.workers[0].allocations == 1, "of the ones, and of nothing else"
        assert f(ost.ones((50, 4))).shape == ()


def test_memory_limit_of_a_session() -> None:
    with ost.connect(memory_limit=MIB), pytest.raises(MemoryLimitError):
        print(ost.ones((1000, 1000)) + 1)


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
            x = ost.tanh(x * 1.1 + 0.1)
        return x

    def peak(wrap: Any) -> int:
        def loss(x: Any) -> Any:
            for _ in range(4):
                x = wrap(layers)(x)
            return x.sum()

        f = ost.compile(ost.grad(loss))
        with use():
            f(ost.ones(10_000))
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
