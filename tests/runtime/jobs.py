"""What tests run under mpiexec: `mpiexec -n 3 python -m tests.runtime.jobs NAME ...`.

All processes come here; from `ost.connect()` on only the first goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from ostinato.ops.cpu.threads import blas
from ostinato.runtime.crew import crew, member
from ostinato.runtime.messages import mpi
from ostinato.runtime.worker import Worker

import ostinato as ost

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


NAMED: list[str] = []  # the scenario, if it is one of several


def say(**what: Any) -> None:
    print(json.dumps({NAMED[-1]: what} if NAMED else what), flush=True)


def each() -> None:
    """Scenarios of one crew, one after another: such as change nothing before all connect."""
    for name in sys.argv[2:]:
        NAMED.append(name)
        globals()[name]()
        if (session := ost.session()) is not None:
            session.close()


def fail_in(order: int, rank: int, go: Path | None = None) -> None:
    """This worker's step fails once, the `order`-th time; not before there is a file, if that is said."""
    if rank != RANK:
        return
    step, count = Worker.step, [0]

    def failing(self: Worker, *args: Any) -> Any:
        count[0] += 1
        if count[0] == order:
            end = time.monotonic() + 30
            while go is not None and not go.exists() and time.monotonic() < end:
                time.sleep(0.01)
            raise ZeroDivisionError("by test")
        return step(self, *args)

    Worker.step = failing  # type: ignore[method-assign]


def caught(run: Callable[[], Any]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        run()
    except BaseException as error:
        took = time.perf_counter() - start
        return {"kind": type(error).__name__, "text": str(error), "seconds": took}
    return {"kind": "", "text": "", "seconds": time.perf_counter() - start}


def _sum() -> Any:
    return ost.compile(lambda x: x / x.sum())


def state() -> None:
    """Everybody's state."""
    ost.connect()
    say(state=ost.session().stats()["workers"])


def orders() -> None:
    """Bytes per iteration of graphs of 10, 100 and many nodes."""
    session = ost.connect()
    found = {}
    for count in (10, 100, 2000):

        def chain(x: Any, count: int = count) -> Any:
            for k in range(count):
                x = (x + 1.0) if k % 2 else (x * 0.5)
            return x

        f = ost.compile(chain)
        x = f(ost.asarray(np.ones(8), split=0))
        session.wait()
        before = session.engine.lead.stats()["run"]  # type: ignore[attr-defined]
        for _ in range(20):
            x = f(x)
        after = session.engine.lead.stats()["run"]  # type: ignore[attr-defined]
        found[count] = [after[k] - before[k] for k in ("messages", "bytes")]
        assert np.isfinite(np.asarray(x)).all()
    say(found=found)


def freed() -> None:
    """Operands that nobody refers to are gone everywhere."""
    session = ost.connect()
    f = ost.compile(lambda x: x + 1)
    x = ost.asarray(np.zeros(100), split=0)
    for _ in range(50):
        x = f(x)
    kept = [f(x) for _ in range(5)]
    del kept[1:]
    session.wait()
    say(
        operands=[w["operands"] for w in session.stats()["workers"]], value=float(x[0] + kept[0][0])
    )


def matrices_stay() -> None:
    """A matrix that comes again and again is kept in another order by everybody, until it is given away."""
    session = ost.connect()
    x, w = np.ones((32, 96), np.float32), np.ones((96, 400), np.float32)
    run, twice = ost.compile(lambda x, w: x @ w), ost.compile(lambda w: w * 2, donate=["w"])
    kept, right = [], []
    for split in (None, 1):
        left, matrix = ost.asarray(x), ost.asarray(w, split=split)
        for k in range(1, 3):
            for _ in range(6):
                found = np.asarray(run(left, matrix))
            right.append(bool((found == 96 * k).all()))
            kept.append([s["kept_bytes"] > 0 for s in session.stats()["workers"]])
            matrix = twice(matrix)
    say(kept=kept[::2], right=right)


def shared_cores() -> None:
    """Threads of NumPy's products while workers run a plan, and before and behind."""
    found, run = [], Worker.step

    def noted(self: Worker, *args: Any) -> Any:
        found.append(_blas())
        return run(self, *args)

    Worker.step = noted  # type: ignore[method-assign]
    known = blas()
    if known is not None:
        known.limit(8)
    session = ost.connect(threads=2 * SIZE)
    x = ost.asarray(np.ones((6, 4)), split=0)
    np.asarray(ost.compile(lambda x: x @ x.T)(x))
    say(inside=found, behind=_blas(), share=session.engine.lead.member.worker.threads)  # type: ignore[attr-defined]


def _blas() -> int:
    known = blas()
    return known.threads() if known is not None else 0


def one_fails() -> None:
    """In the middle of a sum over all; then everything works again."""
    fail_in(3, int(sys.argv[2]))
    ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    f(x)
    good = f(x)
    error = caught(lambda: np.asarray(f(x)))
    again = np.asarray(f(good))
    say(error=error, again=again.tolist())


def put_off() -> None:
    """The lead does a short plan when it has given the next order; what fails then is told then."""
    member.MAX_PUT_OFF_SECONDS = 1e9  # on a busy machine nothing is short
    go = Path(sys.argv[3])
    fail_in(40, int(sys.argv[2]), go)
    session = ost.connect()
    lead = session.engine.lead  # type: ignore[attr-defined]
    f, g, x = _sum(), ost.compile(lambda x: x.sum()), ost.asarray(np.ones(12), split=0)
    kept = [f(x) for _ in range(20)]
    totals = [g(x) for _ in range(18)]
    behind = [lead.number - lead.did]
    total = float(np.asarray(totals[-1]))  # which the lead has, too
    behind.append(lead.number - lead.did)
    good = f(x)
    kept.pop()
    lost = f(x)
    go.touch()  # else another may have failed, and the lead know it, within that call
    time.sleep(0.3)  # another's failure is known before the lead has done its share
    end = time.monotonic() + (30 if int(sys.argv[2]) else 0)
    while lead.failed is None and time.monotonic() < end:
        time.sleep(0.01)
    error = caught(lambda: f(x))
    use = caught(lambda: f(lost))
    again = f(good)
    kept, totals, lost = [], [], None
    session.wait()
    behind.append(lead.number - lead.did)
    operands = [w["operands"] for w in session.stats()["workers"]]
    sums = [float(np.asarray(y).sum()) for y in (good, again)]
    say(behind=behind, sums=[total, *sums], error=error, use=use, operands=operands)


def narrow_sums() -> None:
    """Bytes that the lead sends in a run that sums a matrix, as it is and in bfloat16."""
    session = ost.connect()
    x = ost.asarray(np.ones((4800, 300), np.float32), split=0)
    comm = session.engine.lead.communicator  # type: ignore[attr-defined]
    found = []
    for policy in (ost.Precision(), ost.Precision(wire="bf16")):
        f = ost.compile(lambda x: (x.T @ x).resplit(None), precision=policy)
        f(x)
        session.wait()
        before = sum(comm.bytes_to)
        f(x)
        session.wait()
        found.append(sum(comm.bytes_to) - before)
    say(sent=found)


def late_failure() -> None:
    """Of a plan in which nobody waits for anybody: the lead hears of it later."""
    fail_in(2, SIZE - 1)
    session = ost.connect()
    f, x = ost.compile(lambda x: x + 1), ost.asarray(np.ones(12), split=0)
    y = f(x)
    lost = f(y)
    error = caught(session.wait)
    use = caught(lambda: f(lost))
    read = caught(lambda: np.asarray(lost))
    say(
        error=error,
        use=use,
        read=read,
        good=np.asarray(y).tolist(),
        again=np.asarray(f(y)).tolist(),
    )


def called_back() -> None:
    """Another process has no function of the script's."""
    ost.connect()
    x, spec = ost.ones(4, split=0), ost.spec((4,), "float64")
    f = ost.compile(lambda x: ost.callback(np.sqrt, spec, x))
    error = caught(lambda: np.asarray(f(x)))
    say(error=error, good=float(x.sum()))


def singular() -> None:
    """An error of the operation itself, the same on all workers."""
    ost.connect()
    zeros = ost.asarray(np.zeros((3, 3)))
    f = ost.compile(lambda a: ost.linalg.inv(a))
    error = caught(lambda: np.asarray(f(zeros)))
    good = np.asarray(f(ost.asarray(np.eye(3))))
    say(error=error, good=good.tolist())


def astray() -> None:
    """A worker that counts otherwise."""
    if RANK == 1:
        obey = crew.Hand._obey

        def wrong(self: Any, order: Any) -> None:
            if order.kind == "run" and not hasattr(self, "done"):
                self.done, self.number = True, self.number - 1
            obey(self, order)

        crew.Hand._obey = wrong  # type: ignore[method-assign]
    ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    error = caught(lambda: np.asarray(f(x)))
    say(error=error, again=np.asarray(f(x)).sum())


def unknown() -> None:
    """A worker that has another plan than the others."""
    if RANK == 1:
        from ostinato.runtime.crew.member import Member

        load = Member._load

        def other(self: Any, order: Any, value: Any) -> None:
            load(self, order, value)
            self.plans.clear()

        Member._load = other  # type: ignore[method-assign]
    ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    say(error=caught(lambda: np.asarray(f(x))))


def long_messages() -> None:
    """Messages that are longer than MPI counts, at a lower limit."""
    mpi.LONGEST, mpi.AT_ONCE = 1000, 512
    ost.connect()
    r = np.random.default_rng(0)
    a = r.normal(size=(97, 61))
    x = ost.asarray(a, split=0)
    g = ost.compile(lambda x: (x.T @ x, x.resplit(1) * 2, x.sum(0), x.argmax(0)))
    gram, turned, total, best = (np.asarray(y) for y in g(x))
    np.testing.assert_allclose(gram, a.T @ a)
    np.testing.assert_allclose(turned, a * 2)
    np.testing.assert_allclose(total, a.sum(0))
    np.testing.assert_array_equal(best, a.argmax(0))
    np.testing.assert_array_equal(np.asarray(ost.asarray(a)), a)
    say(ok=True)


def progress() -> None:
    """A sum over all goes on while everybody does something else."""
    comm = mpi.MpiCommunicator(MPI.COMM_WORLD.Dup())
    x, out = np.full(1_000_000, float(RANK)), np.zeros(1_000_000)
    everybody = tuple(range(SIZE))
    flow: Any = comm.overlap(comm.start_all_reduce((x,), (out,), "sum", everybody))
    end = time.monotonic() + 60
    while not flow.done and time.monotonic() < end:
        time.sleep(0.01)  # no call of MPI's here
    done = flow.done
    flow.wait()
    assert (out == sum(everybody)).all()
    if RANK == 0:
        say(done=done)


def made_ready() -> None:
    """Small messages are made ready once per plan, in whatever way its arrays lie, also after a failure;
    what MPI keeps for them goes with the plan."""
    flows, start = [], mpi.Flow.__init__

    def counted(self: mpi.Flow, *args: Any) -> None:
        flows.append(self)
        start(self, *args)

    mpi.Flow.__init__ = counted  # type: ignore[method-assign]
    fail_in(9, SIZE - 1)
    session = ost.connect()
    a, v = np.arange(56.0).reshape(7, 8), np.arange(8.0)
    comm = session.engine.lead.communicator  # type: ignore[attr-defined]

    def ready() -> int:
        return sum(bool(mail._sends or mail._receives) for mail in comm.mails)

    @ost.compile
    def step(a: Any, v: Any) -> Any:
        turned = ost.sin(a.resplit(1))  # pieces with gaps, to and from the arena
        return turned.resplit(0) + 1, (a @ v).resplit(None), a.resplit(1), a.sum(axis=0) + v, v * 2

    given, w = ost.asarray(a, split=0), ost.asarray(v)
    right, counts, errors = [], [], []
    while len(right) < 20:
        try:
            found = step(given, w)
            session.wait()
        except Exception as error:
            errors.append(f"{error}")
            continue
        wanted = np.sin(a) + 1, a @ v, a, a.sum(axis=0) + v, v * 2
        counts.append((ready(), len(flows)))
        right.append(all(np.allclose(x, y) for x, y in zip(found, wanted, strict=True)))
        w, v = found[-1], v * 2
        if len(right) % 5 == 0:
            w, v = ost.asarray(np.arange(8.0)), np.arange(8.0)
        flows.clear()
    session.engine.forget(step.plan.id)
    session.wait()
    say(right=right, counts=counts, errors=errors, left=ready())


def idle() -> None:
    """What workers use of a core while nothing is asked of them."""
    import psutil

    session = ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    others = [psutil.Process(w["process"]) for w in session.stats()["workers"][1:]]
    shares = []
    for waits in (
        True,
        False,
    ):  # else they are in the middle of the last run, which the lead puts off
        for _ in range(10):
            f(x)
        if waits:
            session.wait()
        time.sleep(0.2)
        before = [sum(p.cpu_times()[:2]) for p in others]
        time.sleep(1.5)
        shares += [sum(p.cpu_times()[:2]) - b for p, b in zip(others, before, strict=True)]
    say(share=[s / 1.5 for s in shares])


def killed() -> None:
    """A worker dies while the others wait for it."""
    session = ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    f(x)
    workers = session.stats()["workers"]
    say(processes=[w["process"] for w in workers])
    os.kill(workers[-1]["process"], getattr(signal, sys.argv[2]))

    def on() -> None:
        while True:
            np.asarray(f(x))

    say(error=caught(on))


def leaves() -> None:
    """The script ends in some way of its own."""
    session = ost.connect()
    f, x = _sum(), ost.asarray(np.ones(12), split=0)
    f(x)
    say(processes=[w["process"] for w in session.stats()["workers"]])
    match sys.argv[2]:
        case "exit":
            sys.exit(3)
        case "raise":
            raise ValueError("the script's own")
        case "abrupt":
            os._exit(4)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "interrupt":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.SIGINT)


def interrupted() -> None:
    """Ctrl-C while all work; then everything works again."""
    ost.connect()
    x = ost.asarray(np.ones((64, 64)), split=0)
    f = ost.compile(lambda x: ost.repeat(1_000_000, lambda y: (y @ x) / (y @ x).sum(), x))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    error = caught(lambda: f(x))
    say(error=error, again=float(_sum()(x).sum()))


def absent() -> None:
    """One process fails before it comes to connect."""
    crew.JOIN = 2.0
    if RANK == 1:
        os._exit(5)
    say(error=caught(ost.connect))


def closes() -> None:
    """A closed session, and a new one of the same crew."""
    with ost.connect():
        x = ost.asarray(np.arange(6.0), split=0)
        y = np.asarray(x + 1).tolist()
    late = caught(lambda: np.asarray(x))
    session = ost.connect()
    z = np.asarray(ost.asarray(np.arange(6.0), split=0) * 2).tolist()
    say(y=y, late=late, z=z, operands=[w["operands"] for w in session.stats()["workers"]])


def two_sessions() -> None:
    """Of one crew at a time: each has its own arrays, and plans that both use."""
    f = ost.compile(lambda x: x * 2)
    ost.connect()
    x = ost.asarray(np.arange(6.0), split=0)
    before = np.asarray(f(x)).tolist()
    with ost.connect(numerics="fast"):
        y = ost.asarray(np.full(6, 99.0), split=0)
        inner = np.asarray(f(y)).tolist()
        outer = np.asarray(x).tolist()
    with ost.connect():
        again = np.asarray(f(ost.asarray(np.ones(6), split=0))).tolist()
    after, threads = np.asarray(f(x)).tolist(), caught(lambda: ost.connect(threads=7))
    say(before=before, inner=inner, outer=outer, again=again, after=after, threads=threads)


def forgotten() -> None:
    """A plan that workers let go is sent again; so is one that came while a worker failed."""
    fail_in(2, SIZE - 1)
    session = ost.connect()
    f, x = ost.compile(lambda x: x + 1), ost.asarray(np.zeros(6), split=0)
    f(x)
    f(x)  # fails, and nobody has heard of it
    g = ost.compile(lambda x: x - 1)
    error = caught(lambda: [np.asarray(g(x)) for _ in range(1000)])
    new = np.asarray(g(x)).tolist()
    session.engine.forget(f.plan.id)
    say(error=error, new=new, old=np.asarray(f(x)).tolist())


def behind() -> None:
    """An interrupt while a worker is some orders behind: what was ordered before is still made."""
    step = Worker.step

    def slow(self: Worker, *args: Any) -> Any:
        time.sleep(0.3 if RANK == SIZE - 1 else 0)
        return step(self, *args)

    Worker.step = slow  # type: ignore[method-assign]
    ost.connect()
    f = ost.compile(lambda u: ost.concat([u[1:], ost.zeros(1)]) + 1)
    u = ost.asarray(np.zeros(6), split=0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    done = 0

    def on() -> None:
        nonlocal u, done
        for _ in range(100):
            u = f(u)
            done += 1

    error = caught(on)
    wanted = np.zeros(6)
    for _ in range(done):
        wanted = np.append(wanted[1:], 0) + 1
    say(error=error, right=np.asarray(u).tolist() == wanted.tolist(), again=len(np.asarray(f(u))))


def impatient() -> None:
    """Ctrl-C, and again while a worker still computes."""
    step, begun = Worker.step, False

    def slow(self: Worker, *args: Any) -> Any:
        nonlocal begun
        if RANK == 0 and not begun:  # the other has the order, however long the plan took
            begun = True
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        time.sleep(1.5 if RANK == 1 else 0)
        return step(self, *args)

    Worker.step = slow  # type: ignore[method-assign]
    ost.connect()
    f, x = _sum(), ost.asarray(np.ones(6), split=0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    presses, count = int(sys.argv[2]), 0

    def pressed(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == presses:
            signal.setitimer(signal.ITIMER_REAL, 0)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGALRM, pressed)
    error = caught(lambda: np.asarray(f(x)))
    say(error=error, again=caught(lambda: np.asarray(f(x))), count=count)


def forwards() -> None:
    """A long order is on its way down the tree, to one who is busy, when another fails."""
    fail_in(2, 1)
    step = Worker.step

    def slow(self: Worker, *args: Any) -> Any:
        time.sleep({1: 0.8, 3: 2.0}.get(RANK, 0))
        return step(self, *args)

    Worker.step = slow  # type: ignore[method-assign]
    ost.connect()
    f, x = ost.compile(lambda x: x + 1), ost.asarray(np.zeros(8), split=0)
    y = f(x)
    f(x)

    def chain(x: Any) -> Any:
        for k in range(1000):  # a plan whose text is long
            x = ost.sin(x) * k
        return x

    g = ost.compile(chain)
    error = caught(lambda: [np.asarray(g(x)) for _ in range(3)])
    say(error=error, y=np.asarray(y).tolist(), z=float(np.asarray(g(x)).sum()))


def often() -> None:
    """More failures than MPI has communicators, of which others have nearly all."""
    held = list[Any]()
    with contextlib.suppress(MPI.Exception):
        while len(held) < 100_000:
            held.append(MPI.COMM_WORLD.Dup())
    for free in held[-100:]:
        free.Free()
    ost.connect()
    x = ost.asarray(np.zeros((2, 2)))
    f = ost.compile(lambda a: ost.linalg.inv(a))
    kinds = {caught(lambda: np.asarray(f(x)))["kind"] for _ in range(int(sys.argv[2]))}
    good = np.asarray(f(ost.asarray(np.eye(2)))).tolist()
    say(kinds=sorted(kinds), good=good, held=len(held))


def given_up() -> None:
    """What was under way when others failed is written to no more."""
    comm = mpi.MpiCommunicator(MPI.COMM_WORLD.Dup())
    other = 1 - RANK
    early, late = np.zeros(1000), np.zeros(1_000_000)
    flows: list[Any] = [comm.start_exchange([], [(other, x)]) for x in (early, late)]
    flows.append(comm.overlap(comm.start_exchange([(other, np.ones(1000))], [])))
    for_nobody: list[Any] = [np.full(size, 5.0) for size in (10, 20, 30)]
    flows += [comm.start_exchange([(other, x)], []) for x in for_nobody]
    ready: list[Any] = [comm.prepare([(other, x)], [(other, np.empty(40))]) for x in for_nobody]
    ready[0].start(lambda: None)
    new = MPI.COMM_WORLD.Dup()
    comm.restart(new, lambda happened: comm.until(happened))
    strange = 0
    for _ in range(20):  # of which one has the number of the old one
        again = MPI.COMM_WORLD.Dup()
        MPI.COMM_WORLD.Barrier()
        strange += again.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        MPI.COMM_WORLD.Barrier()
        again.Free()
    kept = not comm.going and not comm.left and not any(mail._receives for mail in ready)
    seen = early.copy()
    comm.start_exchange([(other, np.full(1_000_000, 7.0))], [(other, np.empty(1_000_000))]).wait()
    comm.barrier()
    say_all = MPI.COMM_WORLD.gather((kept, bool((early == seen).all()), not strange))
    if RANK == 0:
        say(all=say_all, done=[flow.advance() for flow in flows])


def saves_last() -> None:
    """What is written in the background, as the session closes and as the script ends."""
    from ostinato.io_pipeline.sinks import ZarrSink

    folder = Path(sys.argv[2])
    write = ZarrSink.write

    def late(sink: ZarrSink, part: Any, box: Any) -> Any:
        end = time.monotonic() + 30
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
        return write(sink, part, box)

    ZarrSink.write = late  # type: ignore[method-assign]
    with ost.connect():
        ost.save_state(folder, ost.asarray(np.arange(6.0), split=0), step=1, wait=False)
        threading.Timer(0.2, (folder / "go").touch).start()
    session = ost.connect()
    say(found=np.asarray(ost.load_state(folder)).tolist())
    session.wait()
    (folder / "go").unlink()
    ost.save_state(folder, ost.asarray(np.arange(7.0), split=0), step=2, wait=False)
    threading.Timer(0.2, (folder / "go").touch).start()


def saves() -> None:
    """A checkpoint whose files no worker can write for a while; and one on a disk that is full."""
    from ostinato.io_pipeline.sinks import ZarrSink

    folder = Path(sys.argv[2])
    write = ZarrSink.write

    def late(sink: ZarrSink, part: Any, box: Any) -> Any:
        end = time.monotonic() + 30
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.01)
        if "full" in sink.path and RANK == SIZE - 1:
            raise OSError(28, "no space left on the device")
        return write(sink, part, box)

    ZarrSink.write = late  # type: ignore[method-assign]
    session = ost.connect()
    f = ost.compile(lambda x: x + x.sum() / 6.0, donate=0)
    x = ost.asarray(np.arange(6.0), split=0)
    saving = ost.save_state(folder / "state", x, step=1, wait=False)
    for _ in range(5):
        x = f(x)
    meanwhile = np.asarray(x).tolist()
    early = saving.done
    (folder / "go").touch()
    saving.wait()
    found = np.asarray(ost.load_state(folder / "state")).tolist()
    error = caught(lambda: ost.save_state(folder / "full", x, step=2))
    after = np.asarray(f(x)).tolist()
    recovered = session.stats()["orders"].get("recover")
    say(early=early, meanwhile=meanwhile, found=found, error=error, after=after)
    say(recovered=recovered, steps=ost.saved_steps(folder / "full"))


def streams() -> None:
    """What is read from a file is written to others block by block."""
    from ostinato.io_pipeline import sinks
    from ostinato.planner.passes import blocking

    from ostinato import streaming

    folder, put = Path(sys.argv[2]), sinks._put
    sizes: list[int] = []
    blocking.READ_BYTES = streaming.READ_BYTES = 4096

    def seen(handle: int, stretch: Any, at: int) -> None:
        sizes.append(stretch.nbytes)
        put(handle, stretch, at)

    sinks._put, sinks.MIN_PWRITE_BYTES = seen, 1
    session = ost.connect()
    y = ost.exp(ost.load(folder / "x.npy", resident=False)) + 1
    for name in ("y.npy", "y.h5", "y.zarr"):
        ost.save(folder / name, y)
    found = [np.asarray(ost.load(folder / name)).tolist() for name in ("y.npy", "y.h5", "y.zarr")]
    say(kept=y._operand is not None, most=max(sizes), count=len(sizes), found=found)
    workers = ost.asarray(np.arange(float(SIZE)), split=0)
    say(alive=float((workers + 1).sum()), operands=session.stats()["workers"][-1]["operands"])


def works_in_blocks() -> None:
    """What goes on from process to process, and what is sorted for all of them."""
    from ostinato.planner.passes import blocking

    from ostinato import streaming

    folder = Path(sys.argv[2])
    blocking.READ_BYTES = streaming.READ_BYTES = 4096
    ost.connect(memory_limit=40_000)
    x = ost.load(folder / "x.npy", resident=False)
    ost.save(folder / "sums.npy", ost.cumulative_sum(x, axis=0))
    ost.save(folder / "sorted.npy", ost.sort(x, axis=0, descending=True))
    ost.save(folder / "q.npy", ost.linalg.qr(x).Q)
    say(values=np.asarray(ost.linalg.svdvals(x)).tolist())


def sources_and_sinks() -> None:
    """Files of each kind, read by each process, and into files of each kind."""
    from ostinato.planner.passes import blocking

    from ostinato import streaming

    folder = Path(sys.argv[2])
    blocking.READ_BYTES = streaming.READ_BYTES = 4096
    ost.connect(memory_limit=20_000)

    def lies(name: str, dataset: Any = None) -> ost.Array:
        return ost.load(folder / name, dataset=dataset, resident=False)

    columns = ["a", "b", "c"]
    given = {
        "npy": lies("x.npy"),
        "h5": lies("x.h5", "x"),
        "zarr": lies("x.zarr"),
        "npz": lies("x.npz", "x"),
        "deflated": lies("deflated.npz", "x"),
        "parquet": lies("x.parquet", columns),
        "csv": lies("x.csv", columns),
    }
    totals = {name: (x * 2).sum(axis=0) for name, x in given.items()}
    ost.evaluate(totals)  # in one plan
    sums = {name: np.asarray(total).tolist() for name, total in totals.items()}
    x = given["npy"]
    for name in ("deflated", "parquet", "csv"):
        ost.save(folder / f"of_{name}.zarr", given[name] + 1)
    ost.save(folder / "order.npy", ost.argsort(given["csv"][:, 1]))
    ost.save(folder / "by_key.h5", ost.take(given["h5"], ost.argsort(given["npz"][:, 1]), axis=0))
    ost.save(folder / "by_places.npy", ost.take(x, lies("places.npy"), axis=0))
    ost.save(folder / "shuffled.npy", ost.random.permutation(given["parquet"], seed=3))
    ost.save(folder / "tiled.zarr", ost.tile(given["zarr"] * 2, (2, 1)))
    ost.save(folder / "padded.npy", ost.pad(given["deflated"], ((3, 2), (1, 0)), mode="edge"))
    ost.save(folder / "repeated.h5", ost.repeat(x * 2, 3, axis=0))
    refused = []
    for name, source in {
        "iterator": ost.from_blocks(iter([np.ones(3)] * 2000), (6000,), "f8"),
        "function": ost.from_blocks(lambda at: np.ones(at[0].stop - at[0].start), 6000, "f8"),
    }.items():
        try:
            refused.append(f"{name} {float(source.sum())}")
        except Exception as error:
            refused.append(str(error))
    say(sums=sums, refused=refused)


def strangers() -> None:
    """Come to the lead's door before the others: silent, slow, and with nonsense."""
    import socket
    import threading

    crew.GREET = 3.0
    kept = []
    meet = crew.callers

    def visited(server: Any, *rest: Any) -> Any:
        server.listen(20)

        def visit(said: bytes) -> socket.socket:
            line = socket.create_connection(server.getsockname())
            line.sendall(said)
            kept.append(line)
            return line

        def slowly(line: socket.socket) -> None:
            while True:
                line.sendall(b"x")
                time.sleep(0.2)

        visit(b"")
        for text in (b"{", b"[]", b'{"token": "\xc3\xa9"}', b"\xff", b'{"rank": 1}'):
            visit(crew._SAID.pack(b"h", len(text)) + text)
        visit(crew._SAID.pack(b"h", 1 << 31))
        line = visit(crew._SAID.pack(b"h", 100))
        threading.Thread(target=lambda: caught(lambda: slowly(line)), daemon=True).start()
        return meet(server, *rest)

    if RANK == 0:
        crew.callers = visited
    start = time.monotonic()
    ost.connect()
    took = time.monotonic() - start
    value = float(_sum()(ost.asarray(np.ones(12), split=0)).sum())
    cut = []
    for line in kept:
        line.settimeout(20)
        cut.append(caught(lambda line=line: line.recv(1))["kind"] in ("", "ConnectionResetError"))
    say(value=value, cut=cut, soon=took < crew.GREET)


def fuzz() -> None:
    """Damaged, oversized, repeated, unsigned messages to a lead, thousands of them."""
    import random
    import socket
    import threading

    from ostinato.runtime.crew import channel
    from ostinato.runtime.crew.channel import Wire, greet
    from ostinato.runtime.crew.orders import HEAD, KINDS, Order

    count, r = int(sys.argv[2]), random.Random(int(sys.argv[3]))
    lead = crew.Lead(MPI.COMM_SELF)
    ran: dict[str, int] = {}
    now = [""]
    obey = lead.member.obey

    def watched(order: Any, value: Any = None) -> Any:
        ran[now[0]] = ran.get(now[0], 0) + 1
        return obey(order, value)

    lead.member.obey = watched  # type: ignore[method-assign]
    secret = b"s" * 32
    wait = Order("wait", 1).pack()
    put = Order(
        "put", 1, first=5, text=[[2], "float64", [[1], [None], [], False, False], False]
    ).pack()
    server = socket.create_server(("127.0.0.1", 0))

    def talk(how: str) -> None:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
        done = threading.Event()

        def serve() -> None:
            try:
                channel._Talk(lead, greet(there, secret, leads=True)).serve()
            except (channel.Broken, OSError):
                there.close()
            done.set()

        threading.Thread(target=serve, daemon=True).start()
        here.settimeout(10)
        try:
            if how == "stranger":
                here.sendall(r.randbytes(r.randrange(1, 200)))
                here.shutdown(socket.SHUT_WR)
                while here.recv(4096):
                    pass
            else:
                wire: Wire = greet(here, b"x" * 32 if how == "liar" else secret, leads=False)
                send(wire, how)
                here.shutdown(socket.SHUT_WR)
                while here.recv(4096):
                    pass
        except (channel.Broken, OSError):
            pass
        finally:
            here.close()
            assert done.wait(10), how

    def send(wire: Wire, how: str) -> None:
        order = bytearray(r.choice((wait, put)))
        match how:
            case "damaged":
                bad = bytearray(signed(wire, order))
                bad[r.randrange(len(bad))] ^= 1 << r.randrange(8)
                wire.sock.sendall(bad)
            case "oversized":
                order[:4] = r.randrange(1 << 30, 1 << 32).to_bytes(4, "little")
                wire.sock.sendall(signed(wire, order))
            case "unsigned":
                wire.sock.sendall(bytes(order) + r.randbytes(16))
            case "repeated":
                wire.sock.sendall(signed(wire, wait) * 2)
            case "cut":
                wire.sock.sendall(bytes(order)[: r.randrange(len(order))])
            case "nonsense":  # signed, by somebody who knows the secret and makes no sense
                kind = r.choice(KINDS)
                text = r.choice((None, [], {}, "x", [1], [[1 << 40], "float64", None, False], -1))
                handles = [r.randrange(1 << 63) for _ in range(r.randrange(3))]
                said = Order(
                    kind,
                    r.randrange(3),
                    r.randrange(2),
                    r.randbytes(16),
                    tuple(handles),
                    (),
                    7,
                    text,
                )
                wire.sock.sendall(signed(wire, said.pack()))

    def signed(wire: Wire, order: bytes) -> bytes:
        head, rest = bytes(order[: HEAD.size]), bytes(order[HEAD.size :])
        found = head + wire._signed(head)
        return found + rest + wire._signed(rest) if rest else found

    hows = ("stranger", "liar", "damaged", "oversized", "unsigned", "repeated", "cut", "nonsense")
    before = threading.active_count()
    for k in range(count):
        now[0] = hows[k % len(hows)]
        talk(now[0])
    assert lead.fatal is None
    now[0] = "end"
    lead.order("wait")
    say(ran=ran, threads=threading.active_count() - before)


def tampered() -> None:
    """Streams that somebody between program and lead changes: each ends with an error, and the next program
    finds a lead that is free."""
    from ostinato.ops.core.encode import encode_spec
    from ostinato.ops.core.layout import Layout
    from ostinato.ops.core.spec import Spec
    from ostinato.runtime.crew import channel

    from tests.runtime.between import Between, changes

    channel.BEAT, channel.GREET, channel.settings.heartbeat = 0.05, 0.5, 0.5
    lead, secret = crew.Lead(MPI.COMM_SELF), b"s" * 32
    x = np.arange(100.0)
    text = encode_spec(Spec(x.shape, x.dtype, Layout.whole((1,))))

    def program(address: tuple[str, int], heartbeat: float) -> bool:
        there = channel.Channel(address, secret, 1, 1, "the lead", heartbeat)
        there.wait()
        there.order("put", value=x, first=5, text=text)
        found = there.order("get", operands=(5,), text=text)
        for _ in range(3):
            there.wait()
        there.close()
        return bool((found == x).all())

    def through(change: Any) -> tuple[dict[str, Any], bool]:
        """What a program sees, and whether the lead is free when it has ended."""
        desk = channel.Desk(lead, secret)
        serving = threading.Thread(target=desk.serve, args=(1.0,), daemon=True)
        serving.start()
        with Between(desk.address, change) as between:
            found = caught(lambda: program(between.address, 0.5))
            if change.has_begun:
                serving.join(20)
        serving.join(20)
        return found, not serving.is_alive()

    found = {name: through(change) for name, change in changes()}
    desk = channel.Desk(lead, secret)
    threading.Thread(target=desk.serve, daemon=True).start()
    say(found=found, after=program(desk.address, 30.0))


def apart() -> None:
    """As if on several machines, each of which calls itself 127.0.1.1."""
    import socket

    crew.Crew._beside = staticmethod(lambda comm: (0, 1))
    socket.gethostbyname = lambda name: "127.0.1.1"
    session = ost.connect()
    value = float(_sum()(ost.asarray(np.ones(12), split=0)).sum())
    lines = session.engine.lead.lines.values()  # type: ignore[attr-defined]
    say(value=value, hosts=[line.getsockname()[0] for line in lines])


def silent() -> None:
    """Strangers at a desk that say nothing, or nonsense one byte at a time, before the program comes."""
    import socket
    import threading

    from ostinato.runtime.crew import channel

    channel.GREET = 3.0
    lead, secret = crew.Lead(MPI.COMM_SELF), b"s" * 32
    desk = channel.Desk(lead, secret)
    desk.server.listen(20)
    serving = threading.Thread(target=desk.serve)
    kept = [socket.create_connection(desk.address) for _ in range(8)]
    serving.start()

    def slowly() -> None:
        while True:
            kept[0].sendall(b"x")
            time.sleep(0.2)

    threading.Thread(target=lambda: caught(slowly), daemon=True).start()
    start = time.monotonic()
    there = channel.Channel(desk.address, secret, 1, 1, "the lead", 8.0)
    took = time.monotonic() - start
    cut = []
    for line in kept:  # they were greeted with 32 bytes
        line.settimeout(20)
        cut.append(caught(lambda line=line: [*iter(lambda: line.recv(32), b"")])["kind"])
    there.wait()
    there.close()
    serving.join(10)
    ended = (
        not serving.is_alive()
        and caught(lambda: socket.create_connection(desk.address, timeout=5))["kind"]
    )
    say(soon=took < channel.GREET, cut=cut, ended=ended)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
