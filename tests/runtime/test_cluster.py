"""Workers of a Dask cluster on this machine: the same answers, orders past the scheduler, and what happens when
something dies or somebody vanishes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.sinks import ZarrSink
from ostinato.runtime.crew import dask
from ostinato.runtime.crew.channel import Channel, Wire

import ostinato as ost
from ostinato import sessions
from ostinato.errors import (
    ArgumentError,
    CommunicatorError,
    ExecutionError,
    LayoutError,
    LinAlgError,
    MemoryLimitError,
    SessionError,
)
from tests.clusters import ROOT, gone, job, needs_dask, with_key
from tests.helpers import counts_traces
from tests.programs import make_program
from tests.thorough import THOROUGH, some

pytestmark = [
    needs_dask,
    pytest.mark.filterwarnings("ignore"),  # Dask's own
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ost.LocalCluster]:
    with ost.LocalCluster(2, heartbeat=60, dashboard=False) as cluster:  # it may be busy
        yield cluster


@pytest.fixture
def session(cluster: ost.LocalCluster) -> Iterator[sessions.Session]:
    assert cluster.session is not None
    with sessions.using(cluster.session):
        yield cluster.session


def processes(session: sessions.Session) -> list[int]:
    return [w["process"] for w in session.stats()["workers"]]


def caught(run: Callable[[], Any]) -> BaseException | None:
    try:
        run()
    except BaseException as error:
        return error
    return None


# -- the same answers ----------------------------------------------------------------------
@pytest.mark.parametrize("seed", some(range(12)))
def test_random_programs(session: sessions.Session, seed: int) -> None:
    r = random.Random(seed)
    program = make_program(r)
    inputs = [ost.asarray(x, split=r.choice((None, *range(x.ndim)))) for x in program.inputs]
    found = ost.compile(program.by_ostinato)(*inputs)
    for y, z in zip(found, program.by_numpy(), strict=True):
        assert y.dtype == z.dtype
        np.testing.assert_allclose(np.asarray(y), z, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [ost.bfloat16, ost.float32, ost.complex128, ost.bool])
def test_values_go_there_and_come_back(session: sessions.Session, dtype: Any) -> None:
    r = np.random.default_rng(0)
    for shape in ((), (0,), (7,), (5, 3), (300, 200)):
        x = (r.normal(size=shape) * 4).astype(dtype)
        for split in (None, *range(len(shape))):
            y = ost.asarray(x, split=split)
            np.testing.assert_array_equal(np.asarray(y), x)
            np.testing.assert_array_equal(np.asarray(ost.stack([y, y])), np.stack([x, x]))


def test_files_are_read_by_the_workers(session: sessions.Session, tmp_path: Path) -> None:
    x = np.arange(4000.0).reshape(1000, 4)
    np.save(tmp_path / "x.npy", x)
    y = ost.load(tmp_path / "x.npy", resident=False, split=0)
    np.testing.assert_allclose(np.asarray((y * 2).sum(0)), (x * 2).sum(0))
    np.testing.assert_array_equal(np.asarray(y), x)


@pytest.mark.parametrize("suffix", ["npy", "h5", "zarr"])
@pytest.mark.parametrize("split", [None, 0, 1])
def test_each_worker_writes_and_reads_its_part(
    session: sessions.Session, tmp_path: Path, suffix: str, split: int | None
) -> None:
    x = np.random.default_rng(0).normal(size=(37, 11))
    path = tmp_path / f"x.{suffix}"
    ost.save(path, ost.asarray(x, split=split) * 2)
    for other in (0, 1, None):
        y = ost.load(path, split=other)
        np.testing.assert_array_equal(np.asarray(y), x * 2)
    with ost.connect(3):
        np.testing.assert_array_equal(np.asarray(ost.load(path, split=0)), x * 2)


def test_checkpoints_of_a_cluster_load_anywhere(session: sessions.Session, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(41, 6)).astype("f4")
    state = {"w": ost.asarray(x, split=0), "b": ost.asarray(x[0]), "epoch": 3}
    pending = ost.save_state(tmp_path / "state", state, step=1, wait=False)
    pending.wait()
    ost.save_state(tmp_path / "state", {**state, "epoch": 4}, step=2)
    for there in (1, 3):
        with ost.connect(there):
            found = ost.load_state(tmp_path / "state", split=0)
            assert found["epoch"] == 4
            assert np.asarray(found["w"]).tobytes() == x.tobytes()
    found = ost.load_state(tmp_path / "state", step=1, split=1)
    assert np.asarray(found["w"]).tobytes() == x.tobytes()
    assert found["epoch"] == 3


@pytest.mark.parametrize("split", [None, 0, 1])
def test_dask_arrays_come_and_go_without_the_scheduler(
    cluster: ost.LocalCluster, session: sessions.Session, split: int | None
) -> None:
    da = pytest.importorskip("dask.array")
    dask_base = pytest.importorskip("dask")
    x = np.random.default_rng(0).normal(size=(50, 17))
    there = da.from_array(x, chunks=(13, 5)) * 2
    y = ost.from_dask(there, split=split)
    np.testing.assert_array_equal(np.asarray(y), x * 2)
    back = (y + 1).to_dask()
    parts = {None: ((50,), (17,)), 0: ((25, 25), (17,)), 1: ((50,), (9, 8))}[split]
    assert back.chunks == parts
    np.testing.assert_array_equal(cluster.client.compute(back, sync=True), x * 2 + 1)
    total, part = dask_base.compute(back.sum(0), dask_base.optimize(back)[0][3:40, 5])
    np.testing.assert_allclose(total, (x * 2 + 1).sum(0))
    np.testing.assert_array_equal(part, (x * 2 + 1)[3:40, 5])
    others = (y + 2).to_dask()  # of the same form
    np.testing.assert_array_equal((others - back).compute(), (x * 2 + 2) - (x * 2 + 1))
    np.testing.assert_array_equal(np.asarray(y), x * 2)


@pytest.mark.parametrize(
    ("chunks", "split"), [((10, 17), 0), ((50, 6), 1), ((13, 5), 0), ((50, 17), None)]
)
def test_dask_arrays_are_cut_as_their_chunks_are(
    session: sessions.Session, chunks: tuple[int, ...], split: int | None
) -> None:
    da = pytest.importorskip("dask.array")
    x = np.random.default_rng(0).normal(size=(50, 17))
    y = ost.from_dask(da.from_array(x, chunks=chunks) * 2)
    assert y.layout.splits == (split,)
    np.testing.assert_array_equal(np.asarray(y), x * 2)
    assert ost.from_dask(da.from_array(x, chunks=chunks), split=None).layout.is_whole


def test_what_dask_gets_is_a_copy_before_anybody_writes_over_it(
    cluster: ost.LocalCluster, session: sessions.Session
) -> None:
    f = ost.compile(lambda x: x + 1, donate=0)
    x = f(ost.asarray(np.zeros(10), split=0))
    for run in range(2):
        session.wait()
        busy = [
            cluster.client.submit(time.sleep, 0.5, workers=[w], pure=False)
            for w in cluster.client.scheduler_info(n_workers=-1)["workers"]
        ]
        there = x.to_dask()
        x = f(f(x)) if run else f(x)
        if run:
            del x
        session.wait()
        float(ost.asarray(np.ones(4), split=0).sum())
        found = cluster.client.compute(there, sync=True)
        np.testing.assert_array_equal(found, np.full(10, run + 1.0))
        del busy


def test_the_error_of_a_dask_array_is_told(session: sessions.Session) -> None:
    da = pytest.importorskip("dask.array")

    def bad(block: Any) -> Any:
        raise ZeroDivisionError("of a chunk")

    there = da.ones(8, chunks=4).map_blocks(bad, dtype=float)
    wanted = r"from_dask \(.*test_cluster.py:\d+\): got an error .*ZeroDivisionError: of a chunk"
    with pytest.raises(ExecutionError, match=wanted) as error:
        ost.from_dask(there, split=0)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert float(ost.asarray(np.ones(4), split=0).sum()) == 4


def test_dask_arrays_here() -> None:
    da = pytest.importorskip("dask.array")
    x = np.arange(12.0).reshape(4, 3)
    with ost.connect(2):
        y = ost.from_dask(da.from_array(x, chunks=2), split=0)
        back = (y * 2).to_dask()
        np.testing.assert_array_equal(back.compute(scheduler="threads"), x * 2)
        assert back.chunks == ((2, 2), (3,))
        with pytest.raises(ArgumentError, match="from_dask"):
            ost.from_dask(x)
        unknown = da.from_array(x, chunks=2)
        with pytest.raises(ArgumentError, match="unknown size"):
            ost.from_dask(unknown[unknown > 3])


def test_arrays_of_other_sessions_come_along(session: sessions.Session) -> None:
    with ost.connect(3):
        x = ost.asarray(np.arange(7.0), split=0) + 1
        ost.evaluate(x)
    np.testing.assert_array_equal(np.asarray(x * 2), (np.arange(7.0) + 1) * 2)


def test_the_same_seed_and_plan_give_what_threads_give(session: sessions.Session) -> None:
    def f() -> Any:
        x = ost.random.normal((1000, 8), split=0, seed=3)
        return x.sum(0), (x.T @ x)[0], x.mean()

    there = [np.asarray(y).tobytes() for y in f()]
    plan = ost.compile(lambda x: x.sum(0))
    plan(ost.asarray(np.ones((4, 2)), split=0))
    with ost.connect(2):
        here = [np.asarray(y).tobytes() for y in f()]
        same = ost.compile(lambda x: x.sum(0))
        same(ost.asarray(np.ones((4, 2)), split=0))
    assert here == there
    assert plan.plan.id == same.plan.id


# -- orders --------------------------------------------------------------------------------
@counts_traces
def test_an_iteration_is_one_small_message(session: sessions.Session) -> None:
    found = {}
    for count in (10, 100, 2000):

        def chain(x: Any, count: int = count) -> Any:
            for k in range(count):
                x = (x + 1.0) if k % 2 else (x * 0.5)
            return x

        f = ost.compile(chain)
        x = f(ost.asarray(np.ones(8), split=0))
        before = session.stats()["orders"]["run"]
        for _ in range(100):
            x = f(x)
        after = session.stats()["orders"]["run"]
        found[count] = [after[k] - before[k] for k in ("messages", "bytes")]
        assert np.isfinite(np.asarray(x)).all()
    assert len({tuple(f) for f in found.values()}) == 1
    messages, total = found[10]
    assert messages == 100
    assert total <= 100 * (64 + 2 * 16)


def test_what_the_scheduler_sees(cluster: ost.LocalCluster, session: sessions.Session) -> None:
    """No task, and no array."""

    def tasks() -> int:
        return cluster.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))

    gc.collect()
    assert soon(lambda: not tasks()), "those of other tests are forgotten a while later"
    f = ost.compile(lambda x: x + 1)
    x = ost.asarray(np.ones(1000), split=0)
    for _ in range(50):
        x = f(x)
    session.wait()
    assert tasks() == 0


def test_errors_come_with_the_users_line(session: sessions.Session) -> None:
    f = ost.compile(lambda a: ost.linalg.inv(a))
    with pytest.raises(LinAlgError, match=r"test_cluster.py:\d+"):
        np.asarray(f(ost.asarray(np.zeros((3, 3)))))
    np.testing.assert_array_equal(np.asarray(f(ost.asarray(np.eye(3)))), np.eye(3))


def test_a_failure_comes_with_the_next_read(session: sessions.Session) -> None:
    """Runs are not waited for: what came after the one that failed is lost, what was before is not."""
    f, g = ost.compile(lambda a: ost.linalg.inv(a)), ost.compile(lambda x: x + 1)
    good = g(ost.asarray(np.zeros(4), split=0))
    session.wait()
    bad = f(ost.asarray(np.zeros((3, 3))))
    end = time.monotonic() + 30

    def more() -> None:
        while time.monotonic() < end:
            g(good)
            time.sleep(0.01)

    error = caught(more)
    assert isinstance(error, LinAlgError)
    with pytest.raises(CommunicatorError, match="make it again"):
        np.asarray(bad)
    np.testing.assert_array_equal(np.asarray(good), np.ones(4))
    np.testing.assert_array_equal(np.asarray(g(good)), np.full(4, 2.0))


@pytest.mark.parametrize("who", ["the lead's desk", "another worker", "the program"])
def test_a_value_for_which_there_is_no_memory_is_one_error(
    cluster: ost.LocalCluster, session: sessions.Session, who: str
) -> None:
    def fill(is_full: bool) -> None:
        from ostinato.ops.core import spec
        from ostinato.runtime.crew import channel, member

        from ostinato.errors import MemoryLimitError

        def full(shape: Any, dtype: Any) -> Any:
            raise MemoryLimitError("there is no memory")

        room = member if who == "another worker" else channel
        room.empty_aligned = full if is_full else spec.empty_aligned  # type: ignore[attr-defined]

    x = np.arange(float(1 << 21) + 5)  # more than one piece
    good = ost.asarray(x, split=0) + 1
    ost.evaluate(good)
    here = who == "the program"
    everywhere = fill if here else partial(cluster.client.run, fill)
    use = partial(np.asarray, good) if here else lambda: ost.evaluate(ost.asarray(x, split=0) * 2)
    everywhere(True)
    try:
        with pytest.raises(MemoryLimitError, match="there is no memory"):
            use()
    finally:
        everywhere(False)
    np.testing.assert_array_equal(np.asarray(good), x + 1)
    np.testing.assert_array_equal(np.asarray(ost.asarray(x, split=0) * 2), x * 2)


def test_connect_says_what_it_needs(
    cluster: ost.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, LocalCluster

    with pytest.raises(ArgumentError, match="a Dask client, or an address"):
        ost.connect("nonsense")
    monkeypatch.setattr(dask, "ANSWER", 0.2)
    with pytest.raises(SessionError, match=r"test_cluster.py.*no scheduler at tcp://127.0.0.1:1 "):
        ost.connect("tcp://127.0.0.1:1")
    with pytest.raises(LayoutError, match="a mesh of 3 for the 2 workers of the cluster"):
        ost.connect(cluster.client, mesh=(3,))
    with pytest.raises(ArgumentError, match="workers='many'"):
        ost.LocalCluster("many")  # type: ignore[arg-type]
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
        ) as plain,
        Client(plain, set_as_default=False) as client,
        pytest.raises(SessionError, match="cannot reach each other by MPI"),
    ):
        ost.connect(client)


# -- faults --------------------------------------------------------------------------------
def test_workers_that_have_no_gpu_say_so(cluster: ost.LocalCluster) -> None:
    """At once, whatever the program's machine has; they can be used all the same."""
    with sessions.using(None):
        with pytest.raises(
            ArgumentError, match=r"device='cuda' for workers.*there, too: (CuPy|a GPU)"
        ):
            ost.connect(cluster, device="cuda")
        with ost.connect(cluster) as session:
            assert {w["device"] for w in session.stats()["workers"]} == {"cpu"}


def test_clients_come_and_go(cluster: ost.LocalCluster) -> None:
    """A crew ends with its session, and so does that of a program which dies; then comes the next."""
    assert cluster.session is not None
    with cluster.connect() as second:
        assert float(ost.asarray(np.ones(3), split=0).sum()) == 3
    with pytest.raises(SessionError):
        second.wait()
    code = (
        "import ostinato as ost, numpy as np, os, sys\n"
        "ost.connect(sys.argv[1])\n"
        "print(float(ost.asarray(np.ones(5), split=0).sum()), flush=True)\n"
        "os._exit(7)\n"
    )
    env = {**os.environ, **with_key(cluster), "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off"}
    run = subprocess.run(
        [sys.executable, "-c", code, cluster.scheduler_address],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 7, run.stderr
    assert run.stdout.split() == ["5.0"]
    with cluster.connect():
        assert float(ost.asarray(np.ones(4), split=0).sum()) == 4
    cluster.connect()


def test_crews_that_come_together_at_once_do_not_mix(cluster: ost.LocalCluster) -> None:
    """Of two programs, one comes to the first worker before the other, and later to the second."""
    ours, theirs = "0" * 15 + "1", "0" * 15 + "2"
    there = cluster.client.run(dask.present)
    first, second = sorted(there, key=lambda address: there[address]["rank"])
    ranks = sorted(found["rank"] for found in there.values())

    def enlist(name: str, worker: str) -> None:
        what = name, ranks, b"s" * 32, "127.0.0.1", None, "cpu"
        cluster.client.run(dask.enlist, *what, workers=[worker])

    for name, worker in ((ours, first), (theirs, second), (theirs, first), (ours, second)):
        enlist(name, worker)
    for name in (ours, theirs):
        where = cluster.client.run(dask.desk_of, name, workers=[first])[first]
        assert "error" not in where
        lead = Channel(where["address"], b"s" * 32, 2, 1, "the lead", 60.0)
        lead.wait()
        lead.close()

        def gone(name: str = name) -> bool:
            from ostinato.runtime.crew import dask

            return name not in dask._members

        assert soon(lambda gone=gone: all(cluster.client.run(gone).values()))


def soon(happened: Callable[[], bool]) -> bool:
    """Whether something comes true within some seconds."""
    end = time.monotonic() + 60
    while not (true := happened()) and time.monotonic() < end:
        time.sleep(0.05)
    return true


def engines(cluster: ost.LocalCluster) -> list[tuple[int, int]]:
    """Of each worker: members of crews that it remembers, and threads that serve."""

    def count() -> tuple[int, int]:
        import gc
        import threading

        from ostinato.runtime.crew.member import Member

        gc.collect()
        members = sum(isinstance(o, Member) for o in gc.get_objects())
        return members, sum(t.name == "ostinato-engine" for t in threading.enumerate())

    found: dict[str, tuple[int, int]] = cluster.client.run(count)
    return list(found.values())


def test_a_session_that_ended_leaves_nothing(cluster: ost.LocalCluster) -> None:
    with ost.connect(cluster.client):
        ost.evaluate(ost.asarray(np.ones(3), split=0) + 1)
        before = engines(cluster)
    assert soon(lambda: all(members == threads for members, threads in engines(cluster)))
    assert soon(lambda: max(engines(cluster)) < min(before))


def test_a_desk_that_cannot_open_sends_everybody_home(cluster: ost.LocalCluster) -> None:
    def break_it(on: bool) -> None:
        from ostinato.runtime.crew import channel, dask

        def bad(*_: Any) -> Any:
            raise OSError("no such address")

        dask.Desk = bad if on else channel.Desk  # type: ignore[misc,assignment]

    before = engines(cluster)
    cluster.client.run(break_it, True)
    try:
        with pytest.raises(SessionError, match="OSError: no such address"):
            ost.connect(cluster.client)
    finally:
        cluster.client.run(break_it, False)
    assert soon(lambda: max(engines(cluster)) <= min(before))
    with ost.connect(cluster.client):
        assert float(ost.asarray(np.ones(4), split=0).sum()) == 4


def test_a_client_of_our_own_is_nobody_elses_and_ends(cluster: ost.LocalCluster) -> None:
    from dask import config as dask_config
    from distributed.client import _get_global_client

    def clients() -> int:
        found = cluster.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.clients))
        return int(found)

    before, default = clients(), _get_global_client()
    names = ("ca-file", "client.cert", "client.key")
    key = {f"distributed.comm.tls.{name}": cluster.security.tls_ca_file for name in names}
    with (
        dask_config.set(key),
        ost.connect(cluster.scheduler_address) as session,
    ):
        client = session.engine.lead.client  # type: ignore[attr-defined]
        assert client.status == "running"
        assert _get_global_client() is default
    assert client.status == "closed"
    with ost.connect(cluster.client):
        pass
    assert cluster.client.status == "running"
    with (
        dask_config.set(key),
        pytest.raises(LayoutError),
    ):
        ost.connect(cluster.scheduler_address, mesh=(3,))
    assert soon(lambda: clients() == before), "also where connect failed"


def interrupted(run: Callable[[], Any]) -> None:
    """Ctrl-C while this is under way."""
    timer = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))

    def run_and_wait() -> None:
        timer.start()
        run()
        timer.join()  # where a machine was done before, the signal comes here, in no other test
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        run_and_wait()
    timer.join()


def test_after_an_interrupt_the_session_can_be_used(session: sessions.Session) -> None:
    lead: Any = session.engine.lead  # type: ignore[attr-defined]
    x = ost.asarray(np.random.default_rng(0).normal(size=(200, 200)) / 15, split=0)
    f = ost.compile(lambda x: ost.repeat(1000, lambda y: ost.tanh(y @ x), x))
    np.asarray(f(x))
    before = session.stats()["workers"][0]["operands"]
    large = ost.asarray(np.ones(1 << 25), split=0)  # more than a connection holds
    y = f(x)
    interrupted(lambda: session.hold_array(large))  # while the lead does not read
    z = f(x)
    interrupted(session.wait)
    interrupted(lambda: (f(x), np.asarray(f(x))))
    np.testing.assert_array_equal(np.asarray(y), np.asarray(z))
    assert lead.answers == {}
    del y, z
    gc.collect()
    kept = 1  # of x, which is gathered once while it stays the same
    assert session.stats()["workers"][0]["operands"] <= before + kept
    assert float(large.sum()) == 1 << 25


def test_a_message_that_was_cut_ends_its_session(
    cluster: ost.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ost.connect(cluster.client) as session:
        lead: Any = session.engine.lead  # type: ignore[attr-defined]

        def cut(head: bytes, *_: Any) -> None:
            lead.wire.sock.sendall(head[:20])
            raise KeyboardInterrupt

        monkeypatch.setattr(lead.wire, "send", cut)
        with pytest.raises(KeyboardInterrupt):
            session.wait()
        with pytest.raises(CommunicatorError, match="part of a message, which was interrupted"):
            session.wait()


def test_who_hangs_up_after_the_end_is_not_lost(cluster: ost.LocalCluster) -> None:
    session = ost.connect(cluster.client)
    lead: Any = session.engine.lead  # type: ignore[attr-defined]
    check = lead.check

    def late() -> None:  # the answer is there, and so is the end of the connection
        if lead.counts["end"]:
            lead.listener.join(20)
        check()

    lead.check = late
    session.close()
    assert not lead.listener.is_alive()
    assert not session.is_lost


def test_messages_and_values_that_arrive_together_are_told_apart() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one = Wire(ours, b"k" * 32, b"program", b"lead")
        other = Wire(theirs, b"k" * 32, b"lead", b"program")
        value = np.arange(1000).astype(np.uint8)
        one.send(b"first")
        one.send(b"again", b" and more", value)
        one.send(b"third")
        assert other.has_more
        for said in (b"first", b"again and more", b"third"):
            assert other.receive(5, lambda head: {b"again": 14}.get(head, 5)) == said
            if said.startswith(b"again"):
                found = other.array(value.shape, value.dtype)
        assert not other.has_more
        np.testing.assert_array_equal(found, value)


AWAY = """
import platform, sys, threading
if sys.argv[1]:
    platform.node = lambda: sys.argv[1]
from ostinato.runtime.crew import preload
preload.LATE = preload.keeper.SURELY = 0.0
preload.dask_setup(None)
for thread in threading.enumerate():
    if thread.name == "ostinato-parent":
        thread.join(20)
print("goes on", flush=True)
"""


@pytest.mark.parametrize("machine", ["", "another"])
def test_only_processes_beside_the_program_look_whether_it_is_there(machine: str) -> None:
    """Elsewhere the same number is another process, or none."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(code: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(
            command, env=env | more, capture_output=True, text=True, timeout=60, check=False
        )

    program = run(
        "import json; from ostinato.runtime.crew.keeper import Job; print(json.dumps(Job('x').environment()))"
    )
    found = run(AWAY, machine, **json.loads(program.stdout))  # when that program has ended
    assert (found.returncode, found.stdout) == ((0, "goes on\n") if machine else (1, ""))
    assert "Traceback" not in found.stderr


def test_silence_is_as_long_as_the_lead_says(session: sessions.Session) -> None:
    assert session.engine.lead.heartbeat == 60  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="heartbeat=1; needed 2 seconds or more"):
        ost.LocalCluster(1, heartbeat=1)


def test_thousands_of_bad_messages() -> None:
    """To the lead's door: damaged, oversized, repeated, unsigned, from strangers: nothing of them runs."""
    count = 10_000 if THOROUGH else 2000
    ran = job("fuzz", str(count), "5")["ran"]
    assert set(ran) <= {"repeated", "nonsense", "end"}, "what was signed, once, may run"
    assert ran["repeated"] == count // 8


@pytest.mark.slow
@pytest.mark.parametrize("who", ["worker", *some(["stopped", "lead", "scheduler"])])
def test_something_dies(who: str) -> None:
    """One clear error within seconds; no process is left; the next cluster works."""
    with ost.LocalCluster(2, heartbeat=3, dashboard=False) as cluster:
        session = cluster.session
        assert session is not None
        f = ost.compile(lambda x: x / x.sum())
        x = f(ost.asarray(np.ones(12), split=0))
        session.wait()
        found = processes(session)
        everybody = [*found, cluster.client.run_on_scheduler(os.getpid)]
        victim, sign = {
            "worker": (found[1], signal.SIGKILL),
            "lead": (found[0], signal.SIGKILL),
            "scheduler": (everybody[2], signal.SIGKILL),
            "stopped": (found[1], signal.SIGSTOP),
        }[who]
        os.kill(victim, sign)
        start = time.monotonic()
        error = caught(lambda: [(f(x), session.wait()) for _ in iter(time.monotonic, start + 60)])
        assert time.monotonic() - start < 30, "Dask alone would wait for a minute"
        assert isinstance(error, CommunicatorError), error
        assert re.search(r"process \d+ on .*start again", str(error))
        with pytest.raises(SessionError, match="a cluster that lost a worker"):
            cluster.connect()
        assert repr(cluster).startswith("<LocalCluster: 2 workers, dashboard ")
    assert gone(everybody)
    if who == "worker":
        with ost.LocalCluster(1, dashboard=False), contextlib.closing(ost.session()):
            assert float(ost.asarray(np.ones(3)).sum()) == 3


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_on_the_workers_that_remain(tmp_path: Path) -> None:
    path, killed = tmp_path / "state", []

    def train() -> tuple[int, float]:
        step, w = 0, ost.asarray(np.zeros(30), split=0)
        if ost.saved_steps(path):
            state = ost.load_state(path, split=0)
            step, w = state["step"], state["w"]
        f = ost.compile(lambda w: w + w.sum() / 30 + 1)
        while step < 6:
            w, step = f(w), step + 1
            ost.save_state(path, {"w": w, "step": step}, step=step)
            if step == 3 and not killed:
                assert ost.session().workers == 2
                killed.append(processes(ost.session())[1])
                os.kill(killed[0], signal.SIGKILL)
        return ost.session().workers, float(w[0])

    with ost.LocalCluster(2, heartbeat=3, restart=True, dashboard=False) as cluster:
        assert cluster.run(train) == (1, 2.0**6 - 1)
        assert cluster.workers == 1
    assert len(killed) == 1


@pytest.mark.slow
def test_a_run_goes_on_though_its_last_checkpoint_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when the worker died; and the mesh was one for more workers."""
    create, lost = ZarrSink.create, []

    def late(sink: ZarrSink) -> None:
        session, end = ost.session(), time.monotonic() + 60
        while session.workers == 2 and not session.is_lost and time.monotonic() < end:
            time.sleep(0.01)
        create(sink)

    monkeypatch.setattr(ZarrSink, "create", late)

    def train() -> tuple[int, list[int]]:
        session = ost.session()
        saving = ost.save_state(tmp_path, {"w": ost.ones(8, split=0)}, step=1, wait=False)
        if session.workers == 2:
            os.kill(processes(session)[1], signal.SIGKILL)
            lost.append(saving)
            while True:
                session.wait()
        saving.wait()
        return session.workers, ost.saved_steps(tmp_path)

    with ost.LocalCluster(2, heartbeat=3, restart=True, dashboard=False) as cluster:
        cluster.connect(mesh=(2,))
        assert cluster.run(train) == (1, [1])
    assert len(lost) == 1
    assert lost[0].done


def test_dask_hears_of_its_workers_while_they_compute(
    cluster: ost.LocalCluster, session: sessions.Session
) -> None:
    x = ost.asarray(np.random.default_rng(0).normal(size=(200, 200)) / 15, split=0)
    f = ost.compile(lambda x: ost.repeat(1500, lambda y: ost.tanh(y @ x), x))
    f(x)
    session.wait()
    y = f(x)
    waits = []
    for _ in range(10):
        start = time.perf_counter()
        cluster.client.run(os.getpid)
        waits.append(time.perf_counter() - start)
    assert max(waits) < 20, "the loop of a worker stood still"
    assert np.isfinite(np.asarray(y)).all()


@pytest.mark.slow
@pytest.mark.parametrize("how", some(["raise", "exit", "kill"], 2))
def test_the_program_ends_and_so_does_its_cluster(how: str, tmp_path: Path) -> None:
    code = (
        "import ostinato as ost, os, sys, signal, json\n"
        "cluster = ost.LocalCluster(1, dashboard=False)\n"
        "session = cluster.connect()\n"
        "found = [w['process'] for w in session.stats()['workers']]\n"
        "found += [cluster.client.run_on_scheduler(os.getpid), cluster.job.keeper.pid]\n"
        "shared = [p for p in open(f'/proc/{found[0]}/maps') if 'mpich_shm_' in p]\n"
        "assert all('(deleted)' in p for p in shared), shared\n"
        "print(json.dumps([found, str(cluster.folder)]), flush=True)\n"
        "how = sys.argv[1]\n"
        "if how == 'raise': raise ValueError('its own')\n"
        "if how == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off", "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code, how],
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    found, folder = json.loads(run.stdout.splitlines()[0])
    assert run.returncode == {"exit": 0, "raise": 1, "kill": -signal.SIGKILL}[how], run.stderr
    assert how != "raise" or "its own" in run.stderr
    assert gone(found)
    assert not Path(folder).exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(("dask", "ostinato"))]


def test_a_cluster_that_ends_leaves_the_session_before_it() -> None:
    import distributed.client  # which sets the level when it is imported first

    before = ost.session()
    level = distributed.client.logger.level
    cluster = ost.LocalCluster(1, dashboard=False)
    first = cluster.session
    assert ost.session() is first is not before
    with cluster:
        assert ost.session() is first
        x = ost.ones(3, split=0) + 1
        ost.evaluate(x)
        second = cluster.connect()
        third = ost.connect(cluster.client)
        assert ost.session() is third is not second
        assert not first.engine.closed
    assert all(s.engine.closed for s in (first, second, third))
    assert ost.session() is before
    assert repr(cluster).startswith("<LocalCluster: 1 worker, dashboard ")
    for use in (cluster.connect, cluster.__enter__, cluster.stats, lambda: ost.connect(cluster)):
        with pytest.raises(SessionError, match=r"a cluster that was closed; .*start another"):
            use()
    with pytest.raises(SessionError, match="a cluster that was closed"):
        cluster.report("nowhere.html")
    with pytest.raises(SessionError, match="got one that lay on the workers of a session that was"):
        np.asarray(x)
    assert ost.session() is before
    assert distributed.client.logger.level == level
    assert float(ost.asarray(np.ones(3)).sum()) == 3
