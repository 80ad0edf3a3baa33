"""Functions in processes of their own: the same bits, errors with their line, and no process stays."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.processes import InProcesses

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline import functions
from tests.io_pipeline.functions import (
    Pair,
    as_pair,
    changed,
    dying,
    dying_once,
    failing,
    hanging,
    killed,
    noisy,
    refusing,
    scaled,
    sleeping,
)  # fmt: skip
from tests.io_pipeline.test_pipes import joined, same, settled

ROOT = Path(__file__).resolve().parents[2]


def children() -> list[str]:
    """Command lines of processes of ours that have not ended, or that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            said = (path / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and ("child.py" in said or not said):
            found.append(said)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert settled() == []
    assert ended()


def ended() -> bool:
    """Whether no process is left, within a minute."""
    until = time.monotonic() + 60
    while children() and time.monotonic() < until:
        gc.collect()  # pipes are in circles, and threads that have just ended held them
        time.sleep(0.01)
    return children() == []


def base() -> Pipe:
    return ost.io.arrays(np.arange(96.0).reshape(24, 4), kinds=["data"]).shuffle(seed=3)


def test_bits_and_order_are_those_of_threads() -> None:
    def pipe(processes: Any) -> Pipe:
        made = base().map(noisy, random=True, processes=processes)
        made = made.map(functools.partial(scaled, by=3.0), processes=processes)
        made = made.map(changed, processes=processes).map(lambda t: (t["x"], t["n"], t["big"]))
        return made.batch(4).to("numpy")

    wanted = joined(pipe(False).epoch(1))
    for threads, processes in ((1, 1), (4, 2), (3, True)):
        with pipe(processes).run_with(threads=threads).epoch(1) as epoch:
            same(joined(epoch), wanted)
    state = pipe(False).state()
    pipe(2).restore(state)


def test_they_are_other_processes_as_many_as_asked_for() -> None:
    pipe = base().map(changed, processes=2).map(lambda t: t["pid"]).batch(1).to("numpy")
    found = {int(x[0]) for x in pipe.run_with(threads=4).epoch(0)}
    assert 1 <= len(found) <= 2
    assert os.getpid() not in found
    (pair,) = base().map(as_pair, processes=1).batch(24).to("numpy").epoch(0)
    assert isinstance(pair, Pair)
    behind = base().batch(8).map(functools.partial(scaled, by=2.0), processes=1).to("numpy")
    same(joined(behind.epoch(0)), [2 * joined(base().batch(8).to("numpy").epoch(0))[0]])


def test_they_stay_for_the_next_epoch_and_end_with_the_pipe() -> None:
    pipe = base().map(changed, processes=2).map(lambda t: t["pid"]).batch(24).to("numpy")
    pipe = pipe.run_with(threads=2, chunk=1)
    found = [{*x.tolist()} for e in range(3) for x in pipe.epoch(e)]
    assert len(set.union(*found)) <= 2
    assert 1 <= len(children()) <= 2
    for pid in set.union(*found):
        os.kill(pid, 9)
    (again,) = pipe.epoch(0)
    assert not {*again.tolist()} & set.union(*found)
    halves = base().map(changed, processes=2).map(lambda t: t["pid"]).batch(12).to("numpy")
    with halves.epoch(0) as epoch:
        next(epoch)
        assert len(settled()) == 0  # all is made, and the last batch is left where it is
        assert len(children()) > 1
    del pipe
    assert ended()


# -- what fails --------------------------------------------------------------------------------
def test_errors_have_the_line_that_they_were_raised_at() -> None:
    line = failing.__code__.co_firstlineno + 2
    pipe = base().map(failing, processes=2).batch(4).to("numpy")
    with pytest.raises(SampleError) as caught:
        list(pipe.epoch(0))
    said = str(caught.value)
    assert "in map (place" in said
    assert f"got ValueError: 20.0 is bad ({functions.__file__}:{line} in failing)" in said
    assert "test_processes.py:" in said.partition("got")[0]
    cause = caught.value.__cause__
    assert cause is not None
    assert isinstance(cause.__cause__, ValueError)
    skipped = base().map(failing, processes=2).on_error("skip").batch(24).to("numpy")
    assert len(next(skipped.epoch(0))) == 23
    with pytest.raises(SampleError, match=r"Can't (pickle|get) .*lambda"):
        list(base().map(refusing, processes=1).batch(4).to("numpy").epoch(0))


@pytest.mark.parametrize(
    ("function", "said"),
    [(dying, "with exit code 3"), (killed, "by signal SIGKILL, as when memory runs out")],
)
def test_a_process_that_dies_twice_is_a_fault_of_its_sample(function: Any, said: str) -> None:
    skipped = base().map(function, processes=2).on_error("skip").batch(24).to("numpy")
    assert len(next(skipped.epoch(0))) == 23
    (fault,) = skipped.faults()
    assert f"its end {said}, also when it was tried again" in fault.reason
    assert fault.sample == 5


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    function = functools.partial(dying_once, folder=str(tmp_path))
    pipe = base().map(function, processes=2).batch(24).to("numpy")
    same(joined(pipe.epoch(0)), joined(base().batch(24).to("numpy").epoch(0)))
    assert len([*tmp_path.iterdir()]) == 3


def test_a_process_that_hangs_is_ended_and_replaced() -> None:
    begin = time.monotonic()
    pipe = base().map(hanging, processes=2).on_error("skip", timeout=1.2, most=1)
    pipe = pipe.batch(4, tail="keep").to("numpy").run_with(threads=3)
    with pipe.epoch(0) as epoch:
        found = joined(epoch)[0]
        assert time.monotonic() - begin < 50
        faults = pipe.faults()
        assert {f.sample for f in faults} == {2, 5, 11}
        assert sorted(found[:, 0]) == [4.0 * k for k in range(24) if k not in (2, 5, 11)]
        assert {f.reason for f in faults} == {
            "SampleError: hanging: got no answer within 1.2 s (its process was ended); needed more time "
            "by on_error(timeout=...)"
        }
    with pytest.raises(SampleError, match=r"in map .*hanging: got no answer within 0.2 s"):
        list(base().map(hanging, processes=1).on_error("raise", timeout=0.2).batch(4).epoch(0))


def test_functions_without_a_name_are_refused() -> None:
    def inner(x: Any) -> Any:
        return x

    for function in (inner, lambda x: x):
        with pytest.raises(
            ArgumentError,
            match=r"map \(.*test_processes.py.*which has no name that .*needed a function of a module",
        ):
            base().map(function, processes=True)
    with pytest.raises(ArgumentError, match="got processes=-1"):
        base().map(failing, processes=-1)


# -- the end -----------------------------------------------------------------------------------
def leave(pipe: Pipe) -> None:
    with pipe.epoch(0) as epoch:
        next(epoch)
        raise KeyError


def test_break_and_exceptions_end_what_is_at_work() -> None:
    pipe = ost.io.arrays(np.arange(24.0)[:, None]).map(sleeping, processes=2).batch(2)
    pipe = pipe.to("numpy").run_with(threads=2)
    begin = time.monotonic()
    for _ in pipe.epoch(0):
        assert children()
        break
    gc.collect()
    with pytest.raises(KeyError):
        leave(pipe)
    assert children() == []
    epoch = pipe.epoch(0)
    next(epoch)
    del epoch
    assert settled() == []
    assert children() == []
    assert time.monotonic() - begin < 50


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import ostinato as ost

class Own(tuple):
    pass

def double(x):
    if x > 30 and len(sys.argv) > 1 and sys.argv[1] == "hang":
        time.sleep(60)
    return 2 * x, os.getpid()

if __name__ == "__main__":
    pipe = ost.io.arrays(np.arange(40)).map(double, processes=2).batch(4).to("numpy")
    pids = set()
    try:
        for k, (x, pid) in enumerate(pipe.run_with(threads=2).epoch(0)):
            pids |= {*pid.tolist()}
            assert x.tolist() == [8 * k, 8 * k + 2, 8 * k + 4, 8 * k + 6]
            if k == 3 and sys.argv[1] == "kill":
                print(*pids, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if k == 3 and sys.argv[1] == "hang":
                threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            if k == 3 and sys.argv[1] == "exit":
                sys.exit(print(*pids, flush=True))
    except KeyboardInterrupt:
        pass
    print(*pids, flush=True)
"""


@pytest.mark.parametrize("how", ["run", "hang", "exit", "kill"])
def test_scripts_have_functions_too_and_leave_no_process(tmp_path: Path, how: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, str(path), how],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == (-9 if how == "kill" else 0), ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    pids = [int(p) for p in ran.stdout.split()]
    assert pids
    until = time.monotonic() + 60
    while time.monotonic() < until and any(Path(f"/proc/{p}").exists() for p in pids):
        time.sleep(0.02)
    assert not [p for p in pids if Path(f"/proc/{p}").exists()]


def test_caches_know_functions_in_processes(tmp_path: Path) -> None:
    for processes in (False, 1):
        pipe = base().map(failing, processes=processes)
        assert isinstance(pipe.entries[-1].what.function, InProcesses) == bool(processes)  # type: ignore[union-attr]
    kept = (
        base()
        .map(functools.partial(scaled, by=2.0), processes=1)
        .cache(0, disk=tmp_path)
        .batch(8)
        .to("numpy")
    )
    for _ in range(2):
        same(joined(kept.epoch(0)), [2 * joined(base().batch(8).to("numpy").epoch(0))[0]])
