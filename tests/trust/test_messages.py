"""Errors and plans name the user's own line, wherever the library is installed, and say what they mean.

The library is copied into a folder like site-packages, and a script of a user runs against it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, AssignmentError, DTypeError, LinAlgError, ShapeError
from tests.helpers import on

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
fails(lambda: np.exp.at(x, 0))  #!
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


@pytest.mark.parametrize("workers", [1, 3])
def test_errors_say_the_name_that_was_typed(workers: int) -> None:
    with on(workers):
        x = ost.zeros((3, 3))
        for call, name in (
            (lambda: ost.linalg.inv(x), "inv"),
            (
                lambda: ost.linalg.inv(
                    ost.asarray(np.zeros((6, 6)), split=0 if workers > 1 else None)
                ),
                "inv",
            ),
            (lambda: ost.linalg.solve(x, x), "solve"),
            (lambda: ost.compile(lambda x: ost.linalg.inv(x) + 1)(x), "inv"),
            (lambda: ost.repeat(2, lambda s: ost.linalg.inv(s), x), "inv"),
        ):
            with pytest.raises(
                LinAlgError, match=rf"^{name} \(tests/trust/test_messages.py:\d+\): got a singular"
            ):
                ost.evaluate(call())


def test_the_kind_of_an_error_is_the_kind_of_the_mistake() -> None:
    """As NumPy's, wherever NumPy has one: so `except` of programs catches ours."""
    x, v = ost.ones((2, 3)), np.ones((2, 3))

    def assign(y: Any) -> None:
        y.flags.writeable = False
        y[0] = 1.0

    def assign_ours(y: Any) -> Any:
        x[0] = y
        return y

    for ours, theirs, kind in (
        (lambda: ost.vmap(assign_ours)(x), lambda: assign(v.copy()), AssignmentError),
        (lambda: bool(x), lambda: bool(v), ShapeError),
        (lambda: x.item(), lambda: v.item(), ShapeError),
        (lambda: float(x), lambda: float(v), ArgumentError),
        (lambda: int(x), lambda: int(v), ArgumentError),
        (lambda: len(ost.asarray(1.0)), lambda: len(np.array(1.0)), ArgumentError),
        (lambda: {x}, lambda: {v}, ArgumentError),
        (lambda: [1][ost.asarray(0.0)], lambda: [1][np.array(0.0)], DTypeError),
        (lambda: x[5], lambda: v[5], IndexError),
        (lambda: x @ x, lambda: v @ v, ShapeError),
        (lambda: x + ost.ones(2), lambda: v + np.ones(2), ShapeError),
    ):
        with pytest.raises((TypeError, ValueError, IndexError)) as wanted:
            theirs()
        with pytest.raises(kind) as got:
            ours()
        assert isinstance(got.value, wanted.type), (got.value, wanted.type)


UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def test_the_rows_of_explain_add_up_to_its_total() -> None:
    def turn(c: Any, r: Any) -> Any:
        inner = ost.repeat(5, lambda s: ost.sort(s) + 1, c)
        return ost.cond(c.sum() > 0, lambda s: s + 1, lambda s: s * 2, inner), ost.sort(r)

    f = ost.compile(lambda x: ost.scan(turn, x[0], x)[1].sum() + ost.sort(x).sum())
    f(ost.ones((40, 300)))
    text = f.plan.explain()
    header = next(line for line in text.splitlines() if line.startswith("operation"))
    at = header.index("predicted")
    rows = [line[at:].split()[:2] for line in text.splitlines() if line[at:].strip()]
    found = [
        float(n) * UNITS[unit] for n, unit in (r for r in rows if len(r) == 2) if unit in UNITS
    ]
    (total,) = re.findall(r"^predicted ([\d.]+) (\S+) per run", text, re.M)
    assert len(found) > 5
    assert sum(found) == pytest.approx(float(total[0]) * UNITS[total[1]], rel=0.02)


@pytest.mark.parametrize(
    "arguments", [["cache", "list"], ["info"], ["--help"], ["cache", "show", "0"], ["--version"]]
)
def test_commands_end_quietly_when_nobody_reads(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ostinato", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OSTINATO_CACHE": str(tmp_path)}
    for k in range(60):  # more than fits into a pipe, if the command lists it
        (tmp_path / f"{k:064x}.plan").write_bytes(b"")
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as closed:
        found = subprocess.run(
            command, env=env, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert not found.stderr.count("Traceback"), found.stderr
    assert "Exception ignored" not in found.stderr
    assert "BrokenPipe" not in found.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_a_plan_that_two_functions_share_names_the_lines_of_each(workers: int) -> None:
    def one(x: Any) -> Any:
        return ost.linalg.cholesky(x) + 1

    def two(there: Any) -> Any:
        return ost.linalg.cholesky(there) + 1

    def loop_one(x: Any) -> Any:
        return ost.repeat(2, lambda s: ost.linalg.cholesky(s), x)

    def loop_two(there: Any) -> Any:
        return ost.repeat(2, lambda s: ost.linalg.cholesky(s), there)

    def line(f: Any) -> int:
        return int(f.__code__.co_firstlineno) + 1

    with on(workers):
        bad = ost.asarray(-np.eye(3))
        for f, g in ((one, two), (loop_one, loop_two)):
            plans = {}
            for h in (f, g, f):
                compiled = ost.compile(h)
                with pytest.raises(LinAlgError, match=f"test_messages.py:{line(h)}\\)") as raised:
                    np.asarray(compiled(bad))
                assert raised.value.line.endswith(f"test_messages.py:{line(h)}")
                plans[h] = compiled.plan
                assert {x.rpartition(":")[2] for x in compiled.plan.traced.lines()} == {
                    str(line(h))
                }
                assert f".py:{line(h)}" in compiled.plan.explain()
                assert compiled.plan.called == h.__name__
            assert plans[f].id == plans[g].id
            assert (plans[f].names, plans[g].names) == (("x",), ("there",))
        for _ in range(2):  # outside of functions, too
            with pytest.raises(LinAlgError) as raised:
                np.asarray(ost.linalg.cholesky(bad) + 1)
            here = raised.traceback[0].lineno + 1
            assert raised.value.line.endswith(f":{here}")
