"""Pairs of stages in fresh processes, whose threads make at once what all of them use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kept
from tests.clusters import ROOT
from tests.thorough import THOROUGH

from .fresh import share
from .pictures import encoded, picture

PROCESSES, EVERY = (50, 1) if THOROUGH else (3, 20)


@pytest.mark.parametrize("which", range(PROCESSES))
def test_pairs_of_stages(which: int, tmp_path: Path) -> None:
    for k in range(8):
        (tmp_path / f"{k}.jpg").write_bytes(encoded(picture(k, 36, 40), quality=85))
    asked = tmp_path, which, PROCESSES, EVERY
    told = subprocess.run(
        [sys.executable, "-m", "tests.io_pipeline.fresh", *map(str, asked)],
        env={**os.environ, "OSTINATO_CACHE": str(kept.folder() / "fresh")}, cwd=ROOT, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert told.returncode == 0, f"{told.returncode}: {told.stderr[-2000:]}"
    run, refused = map(int, told.stdout.split())
    assert run == len(share(*asked[1:])) > 20
    assert refused < run / 3
