"""Without LLVM, threads or oneDNN the same results come, and `ost.info()` says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import importlib.abc, sys
import numpy as np

missing = sys.argv[1]
if missing == "llvmlite":
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] == missing:
                raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    sys.meta_path.insert(0, Finder())

import gc, ostinato as ost
from ostinato.ops.cpu import threads

if missing == "threads":
    threads.has_pool.made[()] = False
assert gc.isenabled() and not gc.get_freeze_count(), "as before the import"

@ost.compile
def both(x, w):
    return ost.exp(-((x @ w) ** 2)).sum(0), ost.median(x, axis=0)

for workers in (1, 3):
    with ost.connect(workers=workers):
        x = ost.random.normal((500, 20), seed=1, split=0)
        w = ost.random.normal((20, 7), seed=2)
        y, middle = (np.asarray(v) for v in both(x, w))
        host = np.asarray(x)
        assert np.allclose(y, np.exp(-((host @ np.asarray(w)) ** 2)).sum(0), rtol=1e-4)
        assert np.allclose(middle, np.median(host, 0))
        slope = ost.grad(lambda x: ost.tanh(x).sum())(x)
        assert np.allclose(slope, 1 - np.tanh(host) ** 2, atol=1e-5)
        assert float(ost.repeat(3, lambda v: v * 2, 1.0)) == 8.0
        said = ost.info()
print(said["kernels"], said["thread pool"], said["products"], sep="\\n")
"""


@pytest.mark.parametrize("missing", ["llvmlite", "threads", "onednn"])
def test_what_is_missing_is_done_without(missing: str) -> None:
    off = {"OSTINATO_CACHE": "off", **({"OSTINATO_ONEDNN": "off"} if missing == "onednn" else {})}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, missing],
        cwd=ROOT,
        env={**os.environ, **off},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    kernels, pool, products = ran.stdout.splitlines()
    assert ("machine code" in kernels) == (missing != "llvmlite")
    assert pool.startswith("none") == (missing == "threads")
    assert products.startswith("oneDNN") == (missing != "onednn")
