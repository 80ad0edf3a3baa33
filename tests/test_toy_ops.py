"""A new op is one block: some of each kind, that nothing but toy_ops.py knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_ops_of_every_kind_are_one_block() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.toy_ops"],
        cwd=ROOT,
        env={**os.environ, "OSTINATO_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "all of them work"
