"""Values that leave memory for a while: the bits of a plan without a limit, within the limit, and nothing left
behind whatever fails."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import described
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, float32
from ostinato.planner.machine import NOMINAL, Link
from ostinato.planner.passes import fitting
from ostinato.planner.passes.memory import assign_memory
from ostinato.planner.passes.offload import offload
from ostinato.planner.plan import Plan, Program, Target, peak_bytes
from ostinato.runtime import disk_store

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, MemoryLimitError
from tests.planner.test_memory import check_memory
from tests.planner.test_recompute import MUCH, arrays, deep, flat, network, step_of
from tests.sessions import JOB, forget_plans, use
from tests.thorough import few

FAST = replace(NOMINAL, name="fast", away=Link(1e-7, 1e13, "disk"))
SLOW = replace(NOMINAL, name="slow", away=Link(1.0, 1e3, "disk"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is made in turns nor again: what is left is to move values."""
    monkeypatch.setattr(fitting, "cut_further", lambda *_: [])
    monkeypatch.setattr(fitting, "recomputed", lambda graph, program, *_: (graph, program))
    monkeypatch.setattr(fitting, "recomputed_below", lambda graph, *_: graph)
    forget_plans()
    yield
    forget_plans()


def halves(program: Program) -> dict[str, int]:
    """How often values leave and come back, also in bodies."""
    found = {"stash": 0, "fetch": 0}
    for node in program.graph.nodes:
        if node.op in found:
            found[node.op] += 1
    for bodies in program.bodies.values():
        for body in bodies:
            for op, n in halves(body).items():
                found[op] += n
    return found


def limit_of(plan: Plan, share: float) -> int:
    """Bytes that leave so much of the arena."""
    return plan.peak_bytes - plan.arena_bytes + int(share * plan.arena_bytes)


def held(function: Callable[..., Any], *given: Any, share: float, **options: Any) -> Any:
    """A function under a limit."""
    plan = ost.compile(function, memory_limit=MUCH).plan_for(*given)  # without a limit less is kept
    return ost.compile(memory_limit=limit_of(plan, share), offload=True, **options)(function)


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(flat(found), flat(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def far(x: Any, w: Any) -> Any:
    """Something that is read again after much else, which cannot be done in turns."""
    y = kept = ost.cumulative_sum(x, axis=0)
    for _ in range(3):
        y = ost.cumulative_sum(ost.cumulative_sum(y * w, axis=1), axis=0)
    return ost.cumulative_sum(y * kept, axis=0)


def squares(n: int = 256) -> tuple[Any, Any]:
    r = np.random.default_rng(0)
    x, w = (r.normal(size=(n, n)) / 16 for _ in range(2))
    return x, w


def mesh(workers: int) -> tuple[int, ...]:
    """So many workers, or under MPI all."""
    return (workers if JOB == 1 else JOB,)


def stores(session: Any) -> list[Any]:
    """What this process's workers have elsewhere."""
    workers = getattr(session.engine, "workers", ())
    bound = [p.bound for w in workers for p in w.kept_plans if p.bound is not None]
    return [b.away for b in bound if b.away is not None]


# -- values ------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(few(6)))
def test_random_networks_have_the_bits_of_plans_without_limits(alone: None, seed: int) -> None:
    r = random.Random(seed)
    step, given = network(r)
    gives, share = r.random() < 0.5, r.choice((0.3, 0.45, 0.6))
    mesh = ((1,) if r.random() < 0.7 else (2,)) if JOB == 1 else (JOB,)
    with use(mesh, "any-workers") as session:  # else what takes scratch memory is divided, too
        wanted = ost.compile(step)(*given)
        options: dict[str, Any] = {"donate": (0,)} if gives else {}
        for less in (share, 0.75, 0.9):
            function = held(step, *given, share=less, **options)
            try:
                plan = function.plan_for(*given)
            except MemoryLimitError:  # one operation alone needs more
                continue
            break
        else:
            return
        assert plan.peak_bytes <= plan.target.memory_limit
        check_memory(plan.program)
        for _ in range(3):
            state = [ost.array(w) for w in given[0]] if gives else given[0]
            same(function(state, *given[1:]), wanted)
        for worker in getattr(session.engine, "workers", ()):
            assert worker.arena.size >= plan.arena_bytes
        moved = {s.size: (s.written, s.read) for s in stores(session)}
        assert bool(moved) == bool(plan.offloaded_bytes) or JOB > 1


def test_bytes_go_once_and_come_as_often_as_they_are_read(alone: None) -> None:
    """A value that is read early, in between, and late goes once."""

    def three(x: Any, w: Any) -> Any:
        kept = ost.tanh(x @ w)
        y = kept
        for _ in range(3):
            y = ost.sort(y @ w, axis=0)
        y = ost.sort((y + kept) @ w, axis=0)
        for _ in range(3):
            y = ost.sort(y @ w, axis=0)
        return y * kept

    r = np.random.default_rng(0)
    x, w = (r.normal(size=(256, 256)).astype("f4") for _ in range(2))
    with use(mesh(1)) as session:
        wanted = ost.compile(three)(x, w)
        function = held(three, x, w, share=0.7)
        plan = function.plan_for(x, w)
        assert halves(plan.program) == {"stash": 1, "fetch": 2}
        assert plan.offloaded_bytes == x.nbytes
        check_memory(plan.program)
        for n in range(1, 4):
            same(function(x, w), wanted)
            if JOB == 1:
                (store,) = stores(session)
                assert (store.written, store.read) == (n * x.nbytes, 2 * n * x.nbytes)
                assert store.size == x.nbytes


@pytest.mark.parametrize("scans", [False, True])
def test_loops_of_training_steps_use_the_same_places(alone: None, scans: bool) -> None:
    ws, x, y = arrays(3, 512)
    step = step_of(deep)

    def loop(ws: Any, x: Any, y: Any) -> Any:
        if scans:
            return ost.scan(lambda s, _: step(s, x, y), ws, ost.arange(3))
        return ost.repeat(3, lambda s: step(s, x, y)[0], ws)

    with use(mesh(1)) as session:
        wanted = ost.compile(loop, memory_limit=MUCH)(ws, x, y)
        function = held(loop, ws, x, y, share=0.7)
        plan = function.plan_for(ws, x, y)
        (bodies,) = plan.program.bodies.values()
        assert halves(plan.program)["stash"] == halves(bodies[0])["stash"] >= 1
        check_memory(plan.program)
        for _ in range(2):
            same(function(ws, x, y), wanted)
        if JOB == 1:
            (store,) = stores(session)
            assert store.size == plan.offloaded_bytes
            assert store.written == 2 * 3 * plan.offloaded_bytes
        assert "moved to a disk and back" in str(plan.explain())


def test_state_that_is_given_away_is_written_over(alone: None) -> None:
    ws, x, y = arrays(3, 512)
    step = step_of(deep)
    with use(mesh(1)):
        wanted, state = ost.compile(step, memory_limit=MUCH), list(ws)
        function = held(step, ws, x, y, share=0.7, donate=(0,))
        given = [ost.array(w) for w in ws]
        for _ in range(3):
            state, value = wanted(state, x, y)
            given, found = function(given, x, y)
            same([given, found], [state, value])
        assert function.plan.program.reuse
        assert function.plan.offloaded_bytes


# -- the pass ----------------------------------------------------------------------------------
def stripped(graph: Graph) -> Graph:
    """The graph as if nothing had moved."""
    values, builder = list(range(len(graph.inputs))), Builder(graph.inputs)
    for node in graph.nodes:
        inputs = [values[v] for v in node.inputs]
        if node.op in ("stash", "fetch", "wait", "barrier"):
            values += inputs[: len(node.specs)]
            continue
        params = {k: stripped(v) if isinstance(v, Graph) else v for k, v in node.params}
        values += builder.add(node.op, inputs, params, node.specs, node.line)
    return builder.graph([values[v] for v in graph.outputs])


CPU = described("cpu")
LIES = Layout.whole((1,))
SQUARE = Spec((64, 64), float32, LIES)


def moved(graph: Graph, limit: int) -> Program:
    target = Target(memory_limit=limit, offload="on")
    return offload(assign_memory(graph, CPU), target, CPU)


def chain(b: Builder, v: int, count: int) -> int:
    for _ in range(count):
        (v,) = b.add("matmul", (v, 0), (), (SQUARE,))
    return v


@pytest.mark.parametrize("seed", range(few(180)))
def test_random_programs_do_the_same_in_the_same_order(seed: int) -> None:
    """Views, updates in place and barriers among them."""
    r, (half, turned) = random.Random(seed), (Spec(n, float32, LIES) for n in ((32, 64), (4096,)))
    b = Builder([SQUARE] * 2)
    known = [0, 1, *(b.add("matmul", (0, 1), (), (SQUARE,)))]
    for _ in range(r.randrange(10, 60)):
        old, new = r.choice(known), r.choice(known[-3:])
        kind = r.choice(("matmul", "matmul", "add", "view", "update", "again", "wide"))
        if kind in ("matmul", "add"):
            (made,) = b.add(kind, (old, new), (), (SQUARE,))
        elif kind == "again":
            (made,) = b.add("barrier", (old, new), {"outputs": 1}, (SQUARE,))
            (made,) = b.add("tanh", (made,), (), (SQUARE,))
        elif kind == "wide":
            (made,) = b.add("reshape", (old,), {"shape": (4096,)}, (turned,))
            (made,) = b.add("tanh", (made,), (), (turned,))
            (made,) = b.add("reshape", (made,), {"shape": (64, 64)}, (SQUARE,))
        else:
            cut = {"starts": (r.choice((0, 32)), 0), "steps": (1, 1), "shape": (32, 64)}
            (part,) = b.add("slice", (old,), cut, (half,))
            if kind == "update":
                at = {"starts": (0, 0), "steps": (1, 1)}
                (made,) = b.add("update_slice", (new, part), at, (SQUARE,))
            else:
                (part,) = b.add("tanh", (part,), (), (half,))
                (made,) = b.add("concat", (part, part), {"axis": 0}, (SQUARE,))
        known.append(made)
    graph = b.graph([chain(b, v, 1) for v in r.sample(known[2:], 2)])
    start = assign_memory(graph, CPU)
    limit = peak_bytes(start) - start.arena_bytes
    fits = []
    for share in (0.3, 0.6, 0.8):
        found = moved(graph, limit + int(share * start.arena_bytes))
        check_memory(found)
        assert stripped(found.graph) == stripped(start.graph)
        assert [
            n.op for n in found.graph.nodes if OPS[n.op].view is None and n.op not in NO_KERNEL
        ] == [n.op for n in start.graph.nodes if OPS[n.op].view is None and n.op not in NO_KERNEL]
        fits.append(found.arena_bytes <= int(share * start.arena_bytes))
        assert fits[-1] or found.arena_bytes <= start.arena_bytes
    assert fits == sorted(fits)


NO_KERNEL = ("stash", "fetch", "wait", "barrier", "copy")


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_came_back_is_written_over(is_seen: bool) -> None:
    """Else there would be three places at the moment where it is read last; also by who looks at it as who
    read it before did."""
    b, flat = Builder([SQUARE]), Spec((4096,), float32, LIES)
    v = kept = chain(b, 0, 1)
    if is_seen:
        (v,) = b.add("reshape", (kept,), {"shape": (4096,)}, (flat,))
        (kept,) = b.add("reshape", (v,), {"shape": (2, 2048)}, (Spec((2, 2048), float32, LIES),))
        (kept,) = b.add("reshape", (kept,), {"shape": (64, 64)}, (SQUARE,))
        (v,) = b.add("tanh", (v,), (), (flat,))
        (v,) = b.add("reshape", (v,), {"shape": (64, 64)}, (SQUARE,))
    late = chain(b, v, 4)
    if not is_seen:  # what others look at is not written over
        (kept,) = b.add("add", (kept, late), (), (SQUARE,))
    (last,) = b.add("matmul", (kept, late), (), (SQUARE,))
    start = assign_memory(b.graph([last]), CPU)
    assert start.arena_bytes == 3 * SQUARE.nbytes
    found = moved(start.graph, peak_bytes(start) - SQUARE.nbytes)
    check_memory(found)
    assert halves(found) == {"stash": 1, "fetch": 1}
    assert found.arena_bytes == 2 * SQUARE.nbytes


def test_halves_stand_as_far_apart_as_the_link_is_slow() -> None:
    b = Builder([SQUARE])
    kept = chain(b, 0, 1)
    v = chain(b, kept, 15)
    wide = [v := chain(b, v, 1) for _ in range(3)]
    for w in wide:  # in the middle there is least room
        (v,) = b.add("add", (chain(b, v, 1), w), (), (SQUARE,))
    (v,) = b.add("add", (chain(b, v, 15), kept), (), (SQUARE,))
    start = assign_memory(b.graph([chain(b, v, 1)]), CPU)
    limit = peak_bytes(start) - SQUARE.nbytes
    apart = {}
    for machine in (FAST, SLOW):
        target = Target(memory_limit=limit, offload="on", named=machine)
        found = offload(start, target, CPU)
        assert peak_bytes(found) <= limit
        nodes, producers = found.graph.nodes, found.graph.producers
        waits = [k - producers[n.inputs[0]] for k, n in enumerate(nodes) if n.op == "wait"]
        apart[machine.name] = sum(waits) / len(waits)
    assert apart["fast"] <= 2
    assert apart["slow"] > 5


def test_by_price() -> None:
    """By what the link takes, values are moved or made again."""
    free = ost.plan(far, *squares(), machine=NOMINAL)
    limit = limit_of(free, 0.7)
    asked = ost.compile(memory_limit=limit, offload=True)(far)
    plans = {m.name: ost.plan(asked, *squares(), machine=m) for m in (FAST, SLOW)}
    assert all(p.peak_bytes <= limit for p in plans.values())
    assert plans["fast"].offloaded_bytes
    assert not plans["slow"].offloaded_bytes
    assert [r.how for r in plans["fast"].ladder][-1] == "moved to a disk and back"
    assert {e.name for e in plans["fast"].simulate().events} >= {"stash", "fetch"}
    never = ost.compile(memory_limit=limit)(far)
    assert not ost.plan(never, *squares(), machine=FAST).offloaded_bytes


def test_a_plan_file_is_moved_where_it_is_read(alone: None, tmp_path: Path) -> None:
    with use(mesh(1)):
        plan = held(far, *squares(), share=0.7).plan_for(*squares())
        plan.to_file(tmp_path / "plan")
        again = Plan.from_file(tmp_path / "plan")
    assert again.id == plan.id
    assert halves(again.program) == halves(plan.program) == {"stash": 1, "fetch": 1}
    assert all(n.op not in ("stash", "fetch") for n in plan.lowered.nodes)


def test_what_is_told(alone: None) -> None:
    with use(mesh(1)):
        plan = held(far, *squares(), share=0.7).plan_for(*squares())
        text = str(plan.explain())
        assert "moved to a disk and back: " in text
        assert "1 values, 512 KiB there; 1 MiB go and come in a run" in text
        tight = limit_of(ost.compile(far).plan_for(*squares()), 0.3)
        with pytest.raises(MemoryLimitError, match="nor moving them to a disk: at least"):
            ost.compile(memory_limit=tight, offload=True)(far)(*squares())
        with pytest.raises(MemoryLimitError, match=r"let values leave memory.*\(offload=True\)"):
            ost.compile(memory_limit=tight)(far)(*squares())


@pytest.mark.parametrize(
    ("said", "match"),
    [("dusk", "needed .host., .disk., a folder"), (3, "offload=3"), ("host", "on 'cpu'")],
)
def test_places_that_cannot_be(said: Any, match: str) -> None:
    with use(mesh(1)), pytest.raises(ArgumentError, match=match):
        ost.compile(memory_limit=1 << 20, offload=said)(lambda x: x + 1)(np.ones(3))


def test_what_a_session_says_holds_where_a_function_says_nothing(alone: None) -> None:
    with use(mesh(1)):
        wanted = ost.compile(far)(*squares())
        limit = limit_of(ost.compile(far, memory_limit=MUCH).plan_for(*squares()), 0.7)
    with use(mesh(1), memory_limit=limit, offload=True):
        function = ost.compile(far)
        same(function(*squares()), wanted)
        assert function.plan.offloaded_bytes
        assert function.plan.peak_bytes <= limit
        with pytest.raises(MemoryLimitError):
            ost.compile(far, offload=False)(*squares())
    with pytest.raises(ArgumentError, match=r"^connect .*got offload='host' on 'cpu'"):
        ost.connect(offload="host")


# -- failures ----------------------------------------------------------------------------------
@pytest.fixture
def training(alone: None, tmp_path: Path) -> Iterator[Any]:
    """A function that moves a value to a folder, its operands, and what it gives."""
    with use(mesh(1)):
        wanted = ost.compile(far)(*squares())
        limit = limit_of(ost.compile(far).plan_for(*squares()), 0.7)
        yield ost.compile(memory_limit=limit, offload=tmp_path)(far), squares(), wanted, tmp_path


def only_here() -> Any:
    return pytest.mark.skipif(JOB > 1, reason="what fails is replaced in this process")


@only_here()
def test_a_full_disk_is_one_sentence(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, given, wanted, folder = training
    write, count = os.pwrite, iter(range(1000))

    def full(*args: Any) -> int:
        if next(count) >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setitem(disk_store.SIZES, "piece", 50_000)
    for _ in range(2):
        with pytest.raises(
            DataFileError, match=r"got No space left on device; needed .* MiB of room"
        ):
            step(*given)
    monkeypatch.setattr(os, "pwrite", write)
    same(step(*given), wanted)
    assert list(folder.iterdir()) == []


@only_here()
def test_a_system_may_do_less_than_it_is_asked_for(
    training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, given, wanted, _ = training
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, x, at: write(f, x[:1000], at))
    monkeypatch.setattr(os, "preadv", lambda f, xs, at: read(f, [xs[0][:777]], at))
    monkeypatch.setitem(disk_store.SIZES, "piece", 5000)
    for _ in range(2):
        same(step(*given), wanted)


@only_here()
def test_a_file_that_was_cut_off_is_an_error(
    training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, given, wanted, _ = training
    read = os.preadv

    def cut(file: int, *args: Any) -> int:
        os.ftruncate(file, 0)
        return read(file, *args)

    monkeypatch.setattr(os, "preadv", cut)
    with pytest.raises(DataFileError, match=r"got a file that ends \d+ bytes too soon"):
        step(*given)
    monkeypatch.setattr(os, "preadv", read)
    same(step(*given), wanted)


@only_here()
def test_no_folder_is_an_error(training: Any) -> None:
    step, given, wanted, folder = training
    folder.rmdir()
    with pytest.raises(DataFileError, match=f"for '{folder}'.*: got No such file"):
        step(*given)
    folder.mkdir()
    same(step(*given), wanted)
    same(step(*given), wanted)
    assert list(folder.iterdir()) == []  # the file has no name


@only_here()
def test_an_operation_that_fails_leaves_nothing_on_its_way(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that comes back late must not come to memory that another plan has by then."""

    def failing(x: Any, w: Any, k: Any) -> Any:
        y = kept = ost.tanh(x @ w)
        for _ in range(3):
            y = ost.cumulative_sum(y, axis=0) @ w
        return ost.take(y, k, axis=0) * kept

    given, k = squares(), np.arange(256)
    read, slow = os.preadv, threading.Event()

    def late(*args: Any) -> int:
        slow.wait(0.2)
        return read(*args)

    with use(mesh(1)) as session:
        wanted = ost.compile(failing)(*given, k)
        function = held(failing, *given, k, share=0.75)
        same(function(*given, k), wanted)
        assert function.plan.offloaded_bytes
        monkeypatch.setattr(os, "preadv", late)
        with pytest.raises(ost.errors.BoundsError):
            function(*given, k + 1)
        assert all(s.jobs.empty() for s in stores(session))
        slow.set()
        same(function(*given, k), wanted)


@only_here()
def test_a_plan_that_rests_takes_no_room_and_one_that_is_gone_no_thread(alone: None) -> None:
    before = {*threading.enumerate()}
    with use(mesh(2)) as session:
        wanted = ost.compile(far)(*squares())
        function = held(far, *squares(), share=0.7)
        same(function(*squares()), wanted)
        found, workers = stores(session), session.engine.workers  # type: ignore[attr-defined]
        assert len(found) == 2
        assert all(os.fstat(s.file).st_size for s in found)
        for worker in workers:
            for loaded in worker.kept_plans:
                loaded.let_go()
        assert not any(os.fstat(s.file).st_size for s in found)
        same(function(*squares()), wanted)
        files = [s.file for s in found]
        threads = {*threading.enumerate()} - before
        threads = {t for t in threads if t.name == "ostinato-offload"}
        assert len(threads) == 2
        del found, loaded
        for worker in workers:
            worker.restart()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for file in files:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(file)
        same(function(*squares()), wanted)
