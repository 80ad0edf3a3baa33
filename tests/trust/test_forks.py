"""A child of a process with an open cluster or job gets one error at once or a session of its own, and harms nobody."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.planner.passes import fitting

import ostinato as ost
from ostinato.errors import DataFileError
from tests.clusters import MPIEXEC, ROOT, needs, needs_dask, needs_mpi
from tests.thorough import some
from tests.trust.conftest import Tally

OPEN = {"cluster": "cluster = ost.LocalCluster(2, dashboard=False); session = cluster.connect()"}
OPEN["job"] = "cluster, session = None, ost.connect()"
FORKS = """
import gc, json, os, signal, sys, time
import numpy as np
import ostinato as ost

{open}
f = ost.compile(lambda x: x + 1)
x = f(ost.asarray(np.ones(6), split=0))

def own(workers=None):
    with ost.connect(workers):
        return float((ost.asarray(np.ones(5), split=0) * 2).sum())

def new():
    return float(f(ost.asarray(np.ones(3))).sum())

USES = dict(
    read=lambda: np.asarray(x),
    call=lambda: f(x),
    eager=lambda: float((x * 3).sum()),
    put=new,
    wait=session.wait,
    stats=session.stats,
    cluster=lambda: cluster.connect(),
    report=lambda: cluster.report("x.html"),
)
RIGHT = dict(own=own, two=lambda: own(2), close=lambda: session.close(), shut=lambda: cluster.close(), nothing=int)
RIGHT["collect"] = lambda: (globals().update(x=None, session=None, cluster=None), gc.collect())[:0]
ENDS = dict(exit=lambda: sys.exit(3), abrupt=lambda: os._exit(3), kill=lambda: os.kill(os.getpid(), 9))

def fork(name, use, end):
    here, there = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that hangs is ended
        try:
            said = ["", str(use())]
        except Exception as error:
            said = [type(error).__name__, str(error)]
        os.write(there, json.dumps(said).encode())
        ENDS[end]()
    os.close(there)
    said = os.read(here, 9999).decode() or "null"
    os.close(here)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    total = float(f(x).sum())
    print(json.dumps(dict(name=name, end=end, status=status, said=json.loads(said), total=total)), flush=True)

for name, use in (USES | RIGHT).items():
    if cluster is not None or name not in ("cluster", "report", "shut"):
        for end in ENDS if name in ("read", "nothing") else ["exit"]:
            fork(name, use, end)
with ost.connect() if cluster is None else cluster.connect():
    print(json.dumps(new()), flush=True)
"""


def run(folder: Path, kind: str, script: str, *words: str, count: int = 2) -> list[str]:
    path = folder / "script.py"
    path.write_text(script.replace("{open}", OPEN[kind]))
    command = [sys.executable, str(path), *words]
    if kind == "job":
        command = [str(MPIEXEC), "-n", str(count), *command]
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


KINDS = [pytest.param("cluster", marks=needs_dask), pytest.param("job", marks=needs_mpi)]


@pytest.mark.parametrize("kind", some(KINDS, 2, 1))
def test_a_forked_child_is_told_at_once_and_leaves_the_parents_workers_alone(
    tmp_path: Path, kind: str, tally: Tally
) -> None:
    *lines, last = run(tmp_path, kind, FORKS)
    assert json.loads(last) == 6
    for line in lines:
        told = json.loads(line)
        name, (error, text) = told["name"], told["said"]
        assert told["total"] == 18, "the parent's session goes on"
        assert told["status"] == (-9 if told["end"] == "kill" else 3), told
        if name in ("own", "two"):
            assert (error, text) == ("", "10.0"), told
        elif name in ("close", "shut", "nothing", "collect"):
            assert error == "", told
        else:
            assert error == "SessionError", told
            assert "script.py" in text, told
            assert "a process that was forked" in text, told
            assert "call ost.connect() here" in text, told
        tally("forked children", 1)


CHILDREN = """
import json, multiprocessing, os, sys
import numpy as np
import ostinato as ost

def work(n):
    with ost.connect() as session:
        return session.workers, float((ost.asarray(np.arange(float(n)), split=0) * 2).sum())

def main():
    global cluster, session
    {open}
    x = ost.asarray(np.ones(6), split=0) + 1
    ost.evaluate(x)
    found = {}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            found[method] = pool.map(work, range(4))
        child = context.Process(target=work, args=(3,))
        child.start()
        child.join(60)
        found[method + " alone"] = child.exitcode
    try:
        import joblib
    except ImportError:
        pass
    else:
        found["joblib"] = joblib.Parallel(n_jobs=2)(joblib.delayed(work)(n) for n in range(4))
    print(json.dumps([found, float((x * 2).sum())]), flush=True)
    session.close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("kind", some(KINDS, 2, 0))
def test_pools_of_processes_have_sessions_of_their_own(
    tmp_path: Path, kind: str, tally: Tally
) -> None:
    """By fork, by spawn, and by joblib, beside a session that stays open."""
    # with all of a job's processes but the first in ost.connect(), children would find them
    found, total = json.loads(run(tmp_path, kind, CHILDREN)[-1])
    assert total == 24
    wanted = [[1, float(n * (n - 1))] for n in range(4)]
    for name, said in found.items():
        assert said == (0 if name.endswith("alone") else wanted), name
        tally("pools of processes", 1)
    assert {"fork", "spawn"} <= found.keys()


def _forked(work: Callable[[], None]) -> int:
    """Do something in a forked child; its exit code."""
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_process(work: Callable[..., None], *args: Any) -> None:
    """Do something in a new process, of which a copy takes little memory."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=args)
    process.start()
    process.join(150)
    assert process.exitcode == 0


def _beside_threads() -> None:
    x, stopped = np.random.default_rng(0).normal(size=(40, 40)), threading.Event()

    def program(turns: int) -> Any:
        def function(x: Any, c: float) -> Any:
            for k in range(turns):
                x = ost.tanh(x * c) + ost.cumulative_sum(x @ x, axis=k % 2) * c
            return x.sum(axis=0)

        return ost.compile(function)

    def work() -> None:
        while not stopped.is_set():
            for turns in range(1, 4):
                np.asarray(program(turns)(x, 0.5))
                np.asarray(ost.asarray(x) * 2 + 1)

    known = program(2)
    wanted = np.asarray(known(x, 0.25))

    def same() -> None:
        np.testing.assert_array_equal(known(x, 0.25), wanted)
        np.testing.assert_array_equal(program(2)(x, 0.25), wanted)
        np.testing.assert_array_equal(ost.asarray(x) * 3 + 1, x * 3 + 1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for k in range(4):
            time.sleep(0.05 * k)
            assert _forked(same) == 0
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without")
def test_children_compute_whatever_other_threads_were_doing(tally: Tally) -> None:
    """Their locks are free in a child: of sessions, plans, layouts, kernels, LLVM and what is made once."""
    _in_process(_beside_threads)
    tally("forked children", 4)


def _with_a_file(folder: Path) -> None:
    # nothing is made in turns nor again: what is left is to move values
    changed: Any = fitting
    changed.cut_further = lambda *_: []
    changed.recomputed = lambda graph, program, *_: (graph, program)
    changed.recomputed_below = lambda graph, *_: graph
    x, w = (r.normal(size=(256, 256)) / 16 for r in map(np.random.default_rng, range(2)))

    def far(x: Any, w: Any) -> Any:
        y = kept = ost.cumulative_sum(x, axis=0)
        for _ in range(3):
            y = ost.cumulative_sum(ost.cumulative_sum(y * w, axis=1), axis=0)
        return ost.cumulative_sum(y * kept, axis=0)

    wanted, whole = np.asarray(ost.compile(far)(x, w)), ost.compile(far).plan_for(x, w)
    limit = whole.peak_bytes - int(0.3 * whole.arena_bytes)
    step = ost.compile(memory_limit=limit, offload=folder)(far)

    def same() -> None:
        np.testing.assert_array_equal(step(x, w), wanted)

    def own() -> None:
        folder.rmdir()  # which shows that it opens another one
        try:
            step(x, w)
        except DataFileError:
            folder.mkdir()
            return same()
        raise AssertionError("a child used its parent's file")

    same()
    assert step.plan.offloaded_bytes
    assert _forked(own) == 0
    same()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without")
def test_a_child_has_a_file_of_its_own_for_what_leaves_memory(tmp_path: Path, tally: Tally) -> None:
    """And leaves its parent's alone."""
    folder = tmp_path / "away"
    folder.mkdir()
    _in_process(_with_a_file, folder)
    tally("forked children", 1)


SUITE = """
import os
import numpy as np
import ostinato as ost
import pytest

@pytest.mark.parametrize("n", range(6))
def test_own(n):
    with ost.connect() as session:
        assert session.workers == 1
        assert float((ost.asarray(np.arange(float(n))) * 2).sum()) == n * (n - 1)
"""
XDIST = """
import subprocess, sys
import numpy as np
import ostinato as ost

{open}
x = ost.asarray(np.ones(6), split=0) + 1
ost.evaluate(x)
command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "suite.py"]
done = subprocess.run(command, capture_output=True, text=True)
print(done.returncode, (done.stdout + done.stderr)[-2000:])
assert float((x * 2).sum()) == 24
assert "6 passed" in done.stdout
"""


@needs("xdist")
@needs_mpi
def test_workers_of_pytest_have_sessions_of_their_own(tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "suite.py").write_text(SUITE)
    run(tmp_path, "job", XDIST)
    tally("suites by pytest-xdist", 1)
