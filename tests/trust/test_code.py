"""Machine code stays as long as anybody runs it or has its address, and so does what it reads.

Functions and plans go while threads run them; pipes of all pairs of stages are made in fresh processes, by
threads that make at once what all of them use."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import signals
from ostinato.ops.cpu.jit import llvm

import ostinato as ost
from ostinato import sessions
from tests import kept
from tests.clusters import ROOT
from tests.io_pipeline.pictures import encoded, picture
from tests.sessions import keep_plans
from tests.thorough import THOROUGH
from tests.trust.conftest import Tally

from .test_threads import at_once, without_errors

PROCESSES, EVERY = (50, 1) if THOROUGH else (3, 20)


@pytest.mark.parametrize("which", range(PROCESSES))
def test_pairs_of_stages(which: int, tmp_path: Path, tally: Tally) -> None:
    for k in range(8):
        (tmp_path / f"{k}.jpg").write_bytes(encoded(picture(k, 36, 40), quality=85))
    asked = tmp_path, which, PROCESSES, EVERY
    told = subprocess.run(
        [sys.executable, "-m", "tests.trust.fresh", *map(str, asked)],
        env={**os.environ, "OSTINATO_CACHE": str(kept.folder() / "fresh")}, cwd=ROOT, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert told.returncode == 0, f"{told.returncode}: {told.stderr[-2000:]}"
    run, refused = map(int, told.stdout.split())
    assert run > 20
    assert refused < run / 3
    tally("pipes of pairs of stages", run - refused)


def test_functions_that_go_while_they_run(tally: Tally) -> None:
    """Nobody has a plan, its kernels or their code but the thread that runs them; another one lets go of all that is
    kept, and makes other code where it was."""
    steps = [ost.sin, ost.cos, ost.tanh, ost.exp, ost.sqrt, ost.abs]
    x, done = np.linspace(0.1, 0.9, 20_000), threading.Event()

    def runs(first: int) -> list[Any]:
        found = []
        for k in range(first, first + 12):
            chain = [steps[(k + j * (1 + k // len(steps))) % len(steps)] for j in range(3)]
            made = [ost.compile(lambda x, c=chain: c[0](c[1](c[2](x))) * ost.flip(x))]
            y = made.pop()(x)
            wanted = x
            for step in reversed(chain):
                wanted = getattr(np, step.__name__)(wanted)
            found.append((np.asarray(y), wanted * x[::-1]))
        return found

    def forgets() -> None:
        while not done.is_set():
            session.rest()
            keep_plans(session, 0)
            llvm._latest.clear()
            gc.collect()
            signals.clear()

    def until_done() -> list[Any]:
        try:
            return [
                pair
                for found in without_errors(at_once(lambda: runs(0), lambda: runs(7)))
                for pair in found
            ]
        finally:
            done.set()

    with sessions.using(None), ost.connect(threads=2) as session:
        found = without_errors(at_once(until_done, forgets))[0]
        for y, wanted in found:
            np.testing.assert_allclose(y, wanted, 1e-12, 1e-12)
    tally("functions that went", len(found))
