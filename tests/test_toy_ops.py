"""A new op is one block: some of each kind, that nothing but toy_ops.py and toy_windows.py know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["toy_ops", "toy_windows"])
def test_ops_of_every_kind_are_one_block(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.{name}"],
        cwd=ROOT,
        env={**os.environ, "OSTINATO_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().endswith("of them work")
