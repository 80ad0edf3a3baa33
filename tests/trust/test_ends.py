"""A cluster or job ends within 15 seconds with nothing left, whichever process is stopped or killed at whatever moment."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from ostinato.errors import SessionError
from tests.clusters import ROOT, needs_dask
from tests.thorough import some
from tests.trust.conftest import Tally

pytestmark = needs_dask

LIMIT = 60.0  # seconds in which all ends
MARK = "OSTINATO_TRIAL"
CLUSTER = """
import ostinato as ost
with ost.LocalCluster(2, dashboard=False) as cluster:
    x = ost.asarray([1.0, 2.0, 3.0], split=0)
    f = ost.compile(lambda x: x / x.sum())
    while True:
        x = f(x)
        float(x[0])
        print("runs", flush=True)
"""
JOB = """
import ostinato as ost
ost.connect()
x = ost.asarray([1.0, 2.0, 3.0], split=0)
f = ost.compile(lambda x: x / x.sum())
while True:
    x = f(x)
    float(x[0])
    print("runs", flush=True)
"""


class Trial:
    """A program with a cluster, or `ostinato run`, in a folder of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        folder.mkdir()
        self.mark = secrets.token_hex(8)
        script = folder / "script.py"
        script.write_text(CLUSTER if kind == "cluster" else JOB)
        command = [sys.executable, str(script)]
        if kind == "job":
            command = [sys.executable, "-m", "ostinato", "run", "-n", "2", str(script)]
        temporary = folder / "tmp"
        temporary.mkdir()
        more = {"OSTINATO_CACHE": "off", "TMPDIR": str(temporary), MARK: self.mark}
        with open(folder / "said", "wb") as out:
            self.program = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(ROOT), **more},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def processes(self) -> list[int]:
        """All that the program has started, and itself, as long as they run."""
        wanted, found = f"\0{MARK}={self.mark}\0".encode(), []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and wanted in b"\0" + Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                pass
        return sorted(found)

    def runs(self) -> bool:
        """Whether it comes so far that it computes."""
        end = time.monotonic() + 60
        while "runs" not in (self.folder / "said").read_text() and time.monotonic() < end:
            if self.program.poll() is not None:
                break
            time.sleep(0.02)
        return "runs" in (self.folder / "said").read_text()

    def find(self, who: str) -> int:
        """A process by what it is."""
        for p in self.processes():
            said = Path(f"/proc/{p}/cmdline").read_text()
            rank = re.search(r"\0PMI_RANK=(\d+)", Path(f"/proc/{p}/environ").read_text())
            if who == f"rank {rank[1]}" if rank else f"/{who}\0" in said:
                return p
        raise AssertionError(f"no {who} among {self.names()}")

    def names(self) -> list[str]:
        return [
            " ".join(Path(f"/proc/{p}/cmdline").read_text().split("\0"))[:90]
            for p in self.processes()
        ]

    def left(self) -> list[str]:
        """What there should not be in the end."""
        self.program.poll()
        found = [f"process {p}" for p in self.processes()]
        found += [path.name for path in (self.folder / "tmp").iterdir()]
        return found

    def ends(self) -> list[str]:
        """Whether nothing is left in time; else what is."""
        end = time.monotonic() + LIMIT
        while (found := self.left()) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def clear(self) -> None:
        for p in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(p, signal.SIGKILL)
        self.program.wait(60)


def shared() -> set[str]:
    """Names of memory that MPI shares and that no process has."""
    found = {f"/dev/shm/{n}" for n in os.listdir("/dev/shm") if n.startswith(("mpich_", "ucx_"))}
    for maps in Path("/proc").glob("[0-9]*/maps") if found else ():
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        found -= {name for name in found if name in text}
    return found


def left_after(trial: Trial, victim: int, sign: int, later: float, how: int) -> str:
    """A process is stopped or killed, and then the program ends, in some way; what is left."""
    there, names = trial.processes(), trial.names()
    told = f"signal {sign} to {victim} of {there}, {later:.2f} s later {how} to the program"
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(victim, sign)
    time.sleep(later)
    stopped = victim == trial.program.pid and sign == signal.SIGSTOP
    trial.program.send_signal(signal.SIGKILL if stopped else how)
    if not (left := trial.ends()):
        return ""
    said = (trial.folder / "said").read_text()[-1500:]
    return "\n".join((told, *names, "left:", *left, *trial.names(), "said:", said))


def test_nothing_is_left_of_what_runs(tmp_path: Path, tally: Tally) -> None:
    def ends(kind: str, who: str, sign: int, how: int) -> str:
        trial = Trial(tmp_path / f"{kind} {who} {sign}", kind)
        try:
            assert trial.runs(), (trial.folder / "said").read_text()
            return left_after(trial, trial.find(who), sign, 0.0, how)
        finally:
            trial.clear()

    cases = [
        ("cluster", "rank 0", signal.SIGSTOP, signal.SIGINT),  # the scheduler
        ("cluster", "rank 2", signal.SIGSTOP, signal.SIGKILL),
        ("cluster", "keeper.py", signal.SIGKILL, signal.SIGKILL),
        ("cluster", "keeper.py", signal.SIGSTOP, signal.SIGKILL),
        ("job", "hydra_pmi_proxy", signal.SIGSTOP, signal.SIGTERM),
        ("job", "mpiexec", signal.SIGKILL, signal.SIGINT),
    ]
    cases = some(cases, 2)
    for found in side_by_side(ends, cases):
        assert not found, found
    tally("processes stopped or killed", len(cases))


def side_by_side(trial: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Most of a trial is to wait."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda case: trial(*case), cases))


def attempt(folder: Path, r: random.Random) -> str:
    """Something is stopped or killed at some moment, and then the program ends, in some way; what is left."""
    kind, sign = r.choice(("cluster", "job")), r.choice((signal.SIGSTOP, signal.SIGKILL))
    moment, later = r.uniform(0, 4), r.choice((0.0, r.uniform(0, 2)))
    how = r.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    trial = Trial(folder, kind)
    try:
        time.sleep(moment)
        found = left_after(trial, r.choice(trial.processes()), sign, later, how)
        return f"{kind} after {moment:.2f} s: {found}" if found else ""
    finally:
        trial.clear()


def test_nothing_is_left_whatever_is_stopped_or_killed(
    tmp_path: Path, thorough: bool, tally: Tally
) -> None:
    before, count = shared(), 100 if thorough else 4
    seed = int(os.environ.get("OSTINATO_SEED", "0")) or (secrets.randbits(32) if thorough else 0)
    cases = [(tmp_path / str(k), random.Random(f"{seed}-{k}")) for k in range(count)]
    for k, found in enumerate(side_by_side(attempt, cases)):
        assert not found, f"OSTINATO_SEED={seed}, trial {k}: {found}"
    tally("processes stopped or killed", count)
    end = time.monotonic() + LIMIT
    while (left := shared() - before) and time.monotonic() < end:
        time.sleep(0.05)  # what others have just made is nobody's for a moment
    assert not left


def test_nobody_waits_for_what_was_stopped_at_the_start(tmp_path: Path, tally: Tally) -> None:
    def ends(kind: str, who: str, moment: float) -> None:
        trial = Trial(tmp_path / f"{kind} {who}", kind)
        try:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                with contextlib.suppress(AssertionError, OSError):
                    victim = trial.find(who)
                    break
                time.sleep(0.02)
            time.sleep(moment)
            os.kill(victim, signal.SIGSTOP)
            assert not trial.ends(), trial.names()
            said = (trial.folder / "said").read_text()
            assert re.search(f"process {victim}\\b.*was stopped for", said), said
            assert trial.program.wait(30) == 1
        finally:
            trial.clear()

    cases = [("cluster", "rank 1", 0.0), ("cluster", "rank 0", 1.5), ("job", "rank 1", 0.0)]
    cases = some(cases, 2)
    side_by_side(ends, cases)
    tally("processes stopped or killed", len(cases))


def test_no_client_is_left_open_as_garbage(tmp_path: Path, tally: Tally) -> None:
    """Dask closes one that the collector finds, in whatever thread, and waits for locks there."""
    cluster = ost.LocalCluster(1, dashboard=False)
    scheduler = cluster.client.run_on_scheduler(os.getpid)
    client = cluster.client
    os.kill(scheduler, signal.SIGKILL)
    cluster.close()
    assert client.status == "closed"
    assert not client._loop_runner.is_started()
    threads = {t for t in threading.enumerate() if t.name == "IO loop"}
    with pytest.raises(SessionError, match="no scheduler at"):
        ost.connect(cluster.scheduler_address)
    assert {t for t in threading.enumerate() if t.name == "IO loop"} <= threads
    tally("clients of Dask left open", 0)
