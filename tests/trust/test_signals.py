"""No signal, in any thread, changes a bit or ends anything but by its own handler."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import sessions

from .conftest import Tally

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")

TGKILL = 234  # the system call that signals one thread (x86-64)
APART = 3e-4  # seconds between signals
LONG = 120  # seconds that nothing takes


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs find what others have compiled."""
    return tmp_path_factory.mktemp("kernels")


@contextlib.contextmanager
def program(name: str, how: str, cache: Path, tune: str = "off") -> Iterator[subprocess.Popen[str]]:
    """Without faulthandler, whose stack for signals hides faults, and which pytest switches on."""
    environment = os.environ | {"OSTINATO_CACHE": str(cache), "OSTINATO_TUNE": tune}
    environment["PYTHONFAULTHANDLER"] = ""
    command = [sys.executable, "-m", f"tests.trust.{name}", how]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def pestered(child: subprocess.Popen[str], count: int) -> dict[str, Any]:
    """What a program tells that got so many signals, to each of its threads in turn."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    begun = child.stdout.readline().split()
    if not begun:
        raise AssertionError(child.communicate()[1])
    send = ctypes.CDLL(None, use_errno=True).syscall
    process, sent = int(begun[0]), 0
    tasks = Path(f"/proc/{process}/task")
    while sent < count and child.poll() is None:
        for thread in [int(p.name) for p in tasks.iterdir()] if tasks.exists() else ():
            sent += send(TGKILL, process, thread, int(signal.SIGUSR1)) == 0
            time.sleep(APART)
    said, errors = child.communicate(timeout=LONG)
    assert child.returncode == 0, (child.returncode, errors[-2000:])
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert not errors, errors[-2000:]
    return told


@pytest.mark.parametrize("how", ["main", "workers", "thread", "fork"])
def test_signals_change_nothing(how: str, kernels: Path, thorough: bool, tally: Tally) -> None:
    count = 20_000 if thorough else 1500
    with program("signalled", how, kernels) as child:
        told = pestered(child, count)
    tally("signals", count)
    tally("runs of kernels", told["families"] * told["rounds"])
    assert told["wrong"] == []
    assert told["signals"] > 0, "handlers ran"
    if how != "fork" and told["threads"] > 1:  # else there is no pool
        assert told["masks"]["holding"] > 0, "the pool's threads take no signals"
    assert told["masks"]["taking"] > 0


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="stack pointers of x86-64")
def test_signals_come_only_while_the_stack_pointer_is_on_the_stack(
    kernels: Path, thorough: bool, tally: Tally
) -> None:
    """The system puts a handler's frame below where it points to: elsewhere that is somebody's memory."""
    count = 20_000 if thorough else 1500
    with program("signalled", "stack", kernels) as child:
        told = pestered(child, count)
    assert told["off"] == 0
    assert told["noted"] > 100
    tally("stack pointers", told["noted"])


# -- Ctrl-C --------------------------------------------------------------------------------
LOST = re.compile(  # in a callback of Python's imports: nobody can help that
    r"Exception ignored in: <function _get_module_lock.*?^KeyboardInterrupt: *\n", re.M | re.S
)


def interrupted(child: subprocess.Popen[str], soon: float) -> tuple[str, str]:
    """What a program says that Ctrl-C ends; it is pressed again where Python's imports have lost it."""
    for _ in range(5):
        child.send_signal(signal.SIGINT)
        try:
            said, errors = child.communicate(timeout=soon)
            return said, LOST.sub("", errors)
        except subprocess.TimeoutExpired as slow:
            if not LOST.search((slow.stderr or b"").decode()):
                break
    said, errors = child.communicate(timeout=LONG)
    return said, LOST.sub("", errors)


def test_ctrl_c_ends_a_cold_start_once(tmp_path: Path, thorough: bool, tally: Tally) -> None:
    """Whatever it interrupts: the import, the compiler, what is timed, a run. Nothing is left half done."""
    with program("cold", "ends", tmp_path / "right") as child:
        assert child.stdout is not None
        child.stdout.readline()
        begun = time.monotonic()
        right = child.stdout.readline()
        whole = time.monotonic() - begun
    rng, ended = random.Random(0), {"by it": 0, "after it": 0}
    for k in range(200 if thorough else 8):
        how, tune = ("ends", "on") if k % 2 else ("goes on", "off")
        with program("cold", how, tmp_path / str(k), tune) as child:
            assert child.stdout is not None
            assert child.stdout.readline(), child.communicate()[1]
            time.sleep(rng.uniform(0, 1.1 * whole))
            said, errors = interrupted(child, 5 * whole)
        if how == "goes on" and child.returncode == 0:
            assert errors == "", (k, errors[-3000:])
            assert said.endswith(right), "what was made after it"
            ended["after it"] += 1
            continue
        assert child.returncode in (-signal.SIGINT, 130, 1), (k, child.returncode, errors[-3000:])
        assert len(re.findall("^KeyboardInterrupt", errors, re.M)) == 1, (k, errors[-3000:])
        assert "ignored" not in errors, (k, errors[-3000:])
        ended["by it"] += 1
    assert min(ended.values()) > 0
    tally("cold starts interrupted", sum(ended.values()))


def test_what_is_gone_runs_no_python(tally: Tally) -> None:
    """A line of Python there may meet Ctrl-C, which Python would print and forget."""
    x, calls = ost.asarray(np.arange(1013.0)), []  # of whose shape there is nothing else

    def made() -> list[Any]:
        f = ost.compile(lambda x: np.sqrt(x * 2.0).sum())
        y = ost.concat([x, x]) * 3.0
        return [f, f(x), f(x), y, float(y[1]), ost.zeros((1013, 7))]

    things = made()
    sessions.current().plans.clear()  # which have specs, too
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        del things[:]
    finally:
        sys.setprofile(None)
    assert not calls
    tally("things that went", 6)
