"""Errors and plans name the user's own line, wherever the library is installed, and say what they mean.

The library is copied into a folder like site-packages, and a script of a user runs against it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .conftest import Tally

ROOT = Path(__file__).resolve().parents[2]

USER = """
import copy, pickle
import numpy as np
import ostinato as ost

def fails(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("no error")

x = ost.ones((2, 3))
traced = lambda function: ost.compile(function)(x)
given = ost.ones(3)
ost.compile(lambda x: x + 1, donate="x")(given)

fails(lambda: x @ x)  #!
fails(lambda: x[5])  #!
fails(lambda: bool(x))  #!
fails(lambda: given + 1)  #!
fails(lambda: copy.deepcopy(given))  #!
fails(lambda: pickle.dumps([given]))  #!
fails(lambda: ost.linalg.inv(ost.zeros((3, 3))).tolist())  #!
fails(lambda: ost.linalg.cholesky(-ost.eye(3)).tolist())  #!
fails(lambda: traced(lambda y: float(y.sum())))  #!
fails(lambda: traced(lambda y: y[y > 0]))  #!
fails(lambda: ost.grad(lambda y: y * 2)(x))  #!
fails(lambda: ost.repeat(3, lambda s: s[1:], x))  #!
fails(lambda: ost.cond(x, lambda: x, lambda: x))  #!
fails(lambda: ost.connect(numerics="any"))  #!
fails(lambda: ost.random.seed("x"))  #!
fails(lambda: ost.load("there-is-none.npy"))  #!
fails(lambda: ost.save_state("state", {"a": object()}, step=1))  #!
fails(lambda: np.add.at(x, 0, 1))  #!
fails(lambda: ost.nn.dropout(x, 2.0))  #!

@ost.compile
def step(w, b):
    loss, (dw,) = ost.value_and_grad(lambda w: ((b @ w - 1) ** 2).mean(), argnums=(0,))(w)
    u, s, v = ost.linalg.svd(dw)
    return ost.scan(lambda c, r: (c + ost.tanh(r), r * c), u[0], b)[0], loss, (s * 2)[::-1]

step(ost.ones((3, 3)), x)
print("PLAN")
print(step.plan.traced)
print(step.plan.explain())
print(step.plan.source())
"""


def test_lines_are_the_users_from_an_installed_library(tmp_path: Path, tally: Tally) -> None:
    site = tmp_path / "lib" / "site-packages"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ostinato", site / "ostinato", ignore=skip)
    for room in ("ops", "planner", "runtime", "io_pipeline"):
        shutil.copytree(ROOT / room, site / "ostinato" / room, ignore=skip)
    (tmp_path / "prog.py").write_text(USER)
    env = {**os.environ, "PYTHONPATH": str(site), "OSTINATO_CACHE": "off"}
    run = [sys.executable, "-P", "prog.py"]
    found = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert not found.returncode, found.stderr
    errors, plan = found.stdout.split("PLAN\n")
    lines = [k for k, line in enumerate(USER.splitlines(), 1) if line.endswith("#!")]
    for number, said in zip(lines, errors.splitlines(), strict=True):
        assert f"(prog.py:{number})" in said, said
    assert "ostinato/" not in plan
    assert plan.count("prog.py:") > 12
    tally("messages and plan lines from an installation", len(lines) + plan.count("prog.py:"))
