"""What users type means what they expect: copies, pickles, NumPy's functions, random numbers, dataclasses.

Each is checked against what NumPy, or Python, does with the same text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .conftest import Tally

ROOT = Path(__file__).resolve().parents[2]


def script(code: str, *args: str, **env: str) -> str:
    """What a script prints."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": "off", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not found.returncode, found.stderr
    return found.stdout


# -- random numbers ------------------------------------------------------------------------
DRAWN = """
import os, sys
import ostinato as ost
if len(sys.argv) > 1:
    ost.random.seed(int(sys.argv[1]))
noisy = ost.compile(lambda x: x + ost.random.uniform((2,), dtype=ost.float64))

def drawn():
    return *ost.random.uniform((2,)).tolist(), *noisy(ost.zeros(2)).tolist()

def of_a_child():
    ends = os.pipe()
    if not os.fork():
        os.write(ends[1], repr(drawn()).encode())
        os._exit(0)
    os.wait()
    return eval(os.read(ends[0], 1000))
"""


def test_each_process_and_each_forked_child_draws_numbers_of_its_own(tally: Tally) -> None:
    """And the seed that it tells makes them again; plans are the same."""
    code = DRAWN + (
        "seed = ost.random.seed()\n"
        "print((of_a_child(), of_a_child(), drawn(), drawn(), of_a_child(), seed, noisy.plan.id))"
    )
    first, second = eval(script(code)), eval(script(code))
    again = eval(script(code, str(first[-2])))
    assert again == first
    rows = [*first[:5], *second[:5]]
    assert len({x for row in rows for x in row}) == sum(map(len, rows))
    assert first[-2] != second[-2]
    assert first[-1] == second[-1]
    tally("processes with numbers of their own", 9)
