"""Tracebacks show the user's frames and where the library found the error, and no more."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.array import contraction
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.user_line import is_ours

import ostinato as ost
from ostinato import settings
from tests.helpers import ON_CPU
from tests.sessions import use

ROOT = Path(__file__).resolve().parents[2]
MOST = 2  # frames of the library's in a row


def inner(x: Any, y: Any) -> Any:
    return x + y


def outer(x: Any, y: Any) -> Any:
    return inner(x, y)


def broken(x: Any) -> Any:
    return [x][3]


A, B = np.ones((3, 4)), np.ones((5, 6))
WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "function": lambda a, b: ost.add(a, b),
    "operator": lambda a, b: a + b,
    "product": lambda a, b: a @ b,
    "method": lambda a, b: a.reshape(5),
    "reduction": lambda a, b: a.sum(7),
    "index": lambda a, b: a[9],
    "joined": lambda a, b: ost.concat([a, b]),
    "einsum": lambda a, b: ost.einsum("ij,jk->ik", a, b),
    "compiled": lambda a, b: ost.compile(outer)(a, b),
    "the user's own": lambda a, b: ost.compile(broken)(a),
    "traced": lambda a, b: ost.compile(lambda x: -x if x.sum() > 0 else x)(a),
    "gradient": lambda a, b: ost.grad(lambda x: x @ b)(a),
    "gradient of an array": lambda a, b: ost.grad(lambda x: x * 2)(a),
    "vjp": lambda a, b: ost.vjp(lambda x: x @ b, a),
    "loop": lambda a, b: ost.repeat(3, lambda s: s @ b, a),
    "cond": lambda a, b: ost.cond(a.sum() > 0, lambda: a, lambda: b),
    "run": lambda a, b: np.asarray(ost.linalg.cholesky(-ost.eye(3))),
    "compiled run": lambda a, b: np.asarray(ost.compile(ost.linalg.cholesky)(-ost.eye(3))),
    "out of bounds": lambda a, b: np.asarray(a[ost.asarray([9])]),
    "limit": lambda a, b: ost.compile(lambda x: x @ x.T, memory_limit=100)(a),
    "file": lambda a, b: ost.load("nowhere.npy"),
    "saved": lambda a, b: ost.save(Path("nowhere") / "x.npy", a),
    "connect": lambda a, b: ost.connect(2, mesh=(3,)),
    "plan": lambda a, b: ost.plan(lambda x: x @ x, ost.spec((3, 4))),
    "vmap": lambda a, b: ost.vmap(lambda x: x @ b)(a),
    "jacobian": lambda a, b: ost.jacobian(lambda x: x @ b)(a),
    "state": lambda a, b: ost.save_state("nowhere", {"a": object()}, step=1),
    "pipe": lambda a, b: list(ost.io.samples([A]).map(broken).batch(1).epoch(0)),
    "dtype": lambda a, b: ost.bitwise_and(a, a),
}


def caught(what: str) -> BaseException:
    with use():
        try:
            WRONG[what](ost.asarray(A), ost.asarray(B))
        except Exception as error:
            return error
    raise AssertionError("no error")


def frames(error: BaseException) -> Iterator[bool]:
    """Of each frame, from the first of the user's on, whether it is the library's."""
    entry = error.__traceback__
    while entry is not None:
        yield is_ours(entry.tb_frame.f_code)
        entry = entry.tb_next


@pytest.mark.parametrize("what", WRONG)
def test_few_frames_are_ours(what: str) -> None:
    error = caught(what)
    said = "".join("01"[ours] for ours in frames(error))
    assert said.startswith("00"), "this test, and the line that was wrong"
    assert max(map(len, re.findall("1*", said))) <= MOST, said
    cause = error.__cause__  # the user's own, if there is one
    assert cause is None or list(frames(cause)) == [False]


@pytest.mark.parametrize("what", ["product", "compiled", "run", "loop"])
def test_all_frames_on_demand(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = len(list(frames(caught(what))))
    monkeypatch.setattr(settings, "traceback", "full")
    error = caught(what)
    assert len(list(frames(error))) > short + 1
    assert (what == "run" and ON_CPU) == (
        error.__cause__ is not None
    )  # a GPU raises nothing itself


def test_the_users_frames_all_stay() -> None:
    names = [f.name for f in traceback.extract_tb(caught("compiled").__traceback__)]
    assert names[-3:-1] == ["outer", "inner"]
    names = [f.name for f in traceback.extract_tb(caught("the user's own").__traceback__)]
    assert names[-1] == "broken"


def test_an_error_of_the_librarys_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody raised on purpose."""

    def wrong(*given: Any) -> Any:
        raise AssertionError("a bug")

    here = type(wrong)(wrong.__code__.replace(co_filename=contraction.__file__), globals())
    monkeypatch.setitem(OPS, "matmul", replace(OPS["matmul"], infer=here))
    error = caught("product")
    assert isinstance(error, AssertionError)
    assert sum(frames(error)) > MOST + 1


SCRIPT = """
import ostinato as ost

def model(x, w):
    return ost.tanh(x @ w)

def main():
    step = ost.compile(lambda x, w: model(x, w).sum())
    step(ost.ones((3, 4)), ost.ones((5, 6)))

main()
"""


def run(*command: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    ).stderr


def test_a_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    text = run(str(path))
    places = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    found = [(Path(p).name, n) for p, n, _ in places[:-1]]
    assert found == [("train.py", line) for line in ("11", "9", "8", "5")]
    assert Path(places[-1][0]).name == "contraction.py"
    assert "direct cause" not in text
    assert text.splitlines()[-1].startswith("ostinato.errors.ShapeError: matmul (")
    full = re.findall(r'File "', run(str(path), OSTINATO_TRACEBACK="full"))
    assert len(full) > len(places) + 5


def test_a_cell_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose code is compiled under a name of its own, which is called In[3]."""
    name = "/tmp/ipykernel_12/345.py"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={name: 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    lines = SCRIPT.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, name, (len(SCRIPT), None, lines, name))
    with use(), pytest.raises(ost.errors.ShapeError) as caught:
        exec(compile(SCRIPT, name, "exec"), {})
    assert str(caught.value).startswith("matmul (In[3]:5): got")
    found = traceback.extract_tb(caught.value.__traceback__)[1:]
    assert [f.lineno for f in found if f.filename == name] == [11, 9, 8, 5]
    assert len([f for f in found if f.filename != name]) == 1


def test_a_test_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "test_model.py"
    path.write_text(SCRIPT.replace("\nmain()\n", "\ndef test_main():\n    main()\n"))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    places = re.findall(r"^(\S+\.py):(\d+): in (\S+)", run.stdout, re.M)
    assert [n for p, n, _ in places if p == "test_model.py"] == ["12", "9", "8", "5"]
    assert len(places) == 4 + 1, run.stdout


def test_the_setting_is_short_or_full() -> None:
    said = run("-c", "import ostinato", OSTINATO_TRACEBACK="long")
    assert "OSTINATO_TRACEBACK='long': needed short or full." in said
