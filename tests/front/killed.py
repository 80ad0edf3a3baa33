"""Checkpoints of processes that are killed. python -m tests.front.killed 100

A process forks children that write checkpoints one after another, and kills them: at random moments,
or as they are about to open, rename or remove a file, for each such moment of a save. The checkpoint
that was there before must load after each."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core import disk

import ostinato as ost

MOMENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "fcntl.flock")


def state(step: int) -> dict[str, Any]:
    rows = np.arange(1200.0).reshape(200, 6)
    return {
        "step": step,
        "w": rows + step,
        "more": [np.full(3, step, "i4"), {"b": np.float32(step)}],
    }


def check(folder: Path) -> int:
    """The step of the newest checkpoint, which is whole; nothing else is ever seen to be damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ost.load_state(folder)
    wanted = state(found["step"])
    assert ost.saved_steps(folder)[-1] == found["step"]
    for a, b in zip(*(ost_leaves(t) for t in (found, wanted)), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    for step in ost.saved_steps(folder):
        assert ost.load_state(folder, step=step)["step"] == step
    return int(found["step"])


def ost_leaves(tree: Any) -> list[Any]:
    return [tree["step"], tree["w"], tree["more"][0], tree["more"][1]["b"]]


def save(folder: Path, step: int, wait: bool = True) -> None:
    made = state(step)
    made["w"] = ost.asarray(made["w"], split=0)
    ost.save_state(folder, made, step=step, keep=2, wait=wait)


def child(work: Any) -> int:
    """A forked process that does some work and never comes back."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(1)


def at_random(folder: Path, kills: int, seed: int) -> int:
    """How many checkpoints were written between so many kills. A child is killed a while after it
    wrote none, one or two."""
    chance = random.Random(seed)
    start = time.perf_counter()
    save(folder, 0)
    took = time.perf_counter() - start
    last = 0
    for k in range(kills):
        heard, told = os.pipe()

        def work(first: int = last + 1, k: int = k, told: int = told) -> None:
            with ost.connect(1 + k % 2):
                for step in itertools.count(first):
                    save(folder, step, wait=step % 3 > 0)
                    if step % 3 > 0:
                        os.write(told, b".")

        pid = child(work)
        os.close(told)
        wrote = sum(len(os.read(heard, 1)) for _ in range(k % 3))
        time.sleep(chance.uniform(0, 2 * took))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(heard)
        assert os.WIFSIGNALED(status), "it ended by itself"
        found = check(folder)
        assert found >= last + wrote
        last = found
    return last


def at_each_moment(folder: Path) -> int:
    """How many moments a save has. Half of the time the step is one that is there, which stays."""
    save(folder, 1)
    save(folder, 2)
    for moment in itertools.count(1):
        before, step = ost.saved_steps(folder), 2 + moment % 2

        def work(step: int = step, moment: int = moment) -> None:
            count = itertools.count(1)
            sys.addaudithook(
                lambda event, args: (
                    os._exit(9) if event in MOMENTS and next(count) == moment else None
                )
            )
            save(folder, step)

        _, status = os.waitpid(child(work), 0)
        assert check(folder) in (step, before[-1])
        stay = [*(s for s in before if s != step), step][-2:]
        assert {*before} & {*stay} <= {*ost.saved_steps(folder)} <= {*before, step}
        if os.waitstatus_to_exitcode(status) == 0:
            return moment - 1
        assert os.waitstatus_to_exitcode(status) == 9
    raise AssertionError


@contextlib.contextmanager
def without_exchange() -> Iterator[None]:
    """As on systems that cannot exchange two names."""
    exchange = disk._exchange
    disk._exchange = lambda a, b: False
    try:
        yield
    finally:
        disk._exchange = exchange


def main(kills: int, seed: int) -> None:
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as folder:
        moments = at_each_moment(Path(folder) / "a")
        with without_exchange():
            moments += at_each_moment(Path(folder) / "c")
        written = at_random(Path(folder) / "b", kills, seed)
        left = sorted(p.name for p in (Path(folder) / "b").iterdir())
        save(Path(folder) / "b", written + 1)
        now = sorted(p.name for p in (Path(folder) / "b").iterdir())
    assert now == [".lock", *sorted(f"step-{n}" for n in (now_step(now), written + 1))], now
    print(
        f"{moments} moments, {kills} kills, {written} checkpoints, {len(left)} files left, seed {seed}"
    )


def now_step(names: list[str]) -> int:
    return min(int(n.removeprefix("step-")) for n in names if n.startswith("step-"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**6)
