"""Profiles: what ran when, on one worker, on threads, on processes; as a page and as a trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import activity

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError
from tests.clusters import MPIEXEC, ROOT, needs_mpi
from tests.front.test_seeing import Balanced
from tests.runtime.browser import CHROMIUM, Browser
from tests.sessions import use

RUNS = 5


def step(x: Any, w: Any) -> Any:
    return (ost.tanh(x @ w) ** 2).sum(0)


def a_profile(mesh: tuple[int, ...] = (1,), path: Path | None = None) -> ost.Profile:
    with use(mesh):
        f = ost.compile(step)
        x, w = ost.ones((500, 300), split=0), ost.ones((300, 40))
        f(x, w).numpy()
        with ost.profile(path) as p:
            for _ in range(RUNS):
                made = f(x, w)
            made.numpy()
        assert f(x, w).numpy() is not None
    return p


def test_operations_of_one_worker() -> None:
    p = a_profile()
    runs = [e for e in p.events if e.kind == "run"]
    assert len(runs) == RUNS
    products = [e for e in p.events if e.kind == "product"]
    assert len(products) == RUNS
    assert re.fullmatch(r".*test_profiling\.py:\d+", products[0].line)
    for e in p.events:
        assert 0 <= e.begin <= e.end <= p.seconds
    for run, product in zip(runs, products, strict=True):
        assert run.begin <= product.begin <= product.end <= run.end + 1e-6
    for a, b in pairwise(e for e in p.events if e.worker == 0 and e.kind != "run"):
        assert a.end <= b.begin + 1e-6, "one after another"


def test_messages_of_several_workers() -> None:
    p = a_profile((3,))
    assert {e.worker for e in p.events if e.worker >= 0} == {0, 1, 2}
    for worker in range(3):
        mine = [e for e in p.events if e.worker == worker]
        assert sum(e.kind == "run" for e in mine) == RUNS
        names = [e.name for e in mine if e.kind == "message"]
        assert names.count("all_reduce") == RUNS
    row = next(r for r in p.longest() if r[0] == "all_reduce")
    assert row[2] == RUNS, "times on each worker"


def test_nothing_of_it_stays() -> None:
    with use() as session:
        f = ost.compile(step)
        x, w = ost.ones((50, 30)), ost.ones((30, 4))
        with ost.profile():
            f(x, w)
            (loaded,) = session.engine.loaded(f.plan.id)
            assert "span" in loaded.bound.source
        f(x, w)
        assert "span" not in loaded.bound.source
        assert session.engine.workers[0].tape is None
    assert not activity.listeners


def test_a_profile_finds_the_same_bits() -> None:
    with use((2,)):
        f = ost.compile(step)
        x, w = ost.random.normal((300, 20), seed=1, split=0), ost.random.normal((20, 3), seed=2)
        plain = f(x, w).numpy()
        with ost.profile():
            assert (f(x, w).numpy() == plain).all()


def test_planning_compiling_and_files_are_there(tmp_path: Path) -> None:
    with use(), ost.profile() as p:
        x = ost.random.normal((4000, 100), seed=3)
        ost.save(tmp_path / "x.npy", x)
        y = ost.load(tmp_path / "x.npy", resident=False)
        with ost.connect(memory_limit=1 << 20):
            float(ost.compile(lambda y: ost.exp(y).sum())(y))
    names = {e.kind: [x.name for x in p.events if x.kind == e.kind] for e in p.events}
    assert "planning <lambda>" in names["trace"]
    assert "choose_layouts" in names["trace"]
    assert "saving x.npy" in names["file"]
    assert "a block" in names["file"], "which a thread reads"
    assert "wait for a block" in names["file"], "in the session that began within the profile"
    passes = [e for e in p.events if e.part and e.kind == "trace"]
    whole = [e for e in p.events if e.name.startswith("planning")]
    for e in passes:
        assert any(w.begin <= e.begin and e.end <= w.end and w.lane == e.lane for w in whole)
    assert not {e.name for e in passes} & {row[0] for row in p.longest()}


def test_the_end_of_an_error_is_the_end_of_the_profile(tmp_path: Path) -> None:
    with use(), pytest.raises(ZeroDivisionError), ost.profile(tmp_path / "x.html"):
        np.asarray(ost.ones(3) + 1 // 0)
    assert (tmp_path / "x.html").exists()
    assert not activity.listeners


def test_there_is_one_at_a_time() -> None:
    with use(), ost.profile(), pytest.raises(ArgumentError, match="got a profile within another"):
        ost.profile().__enter__()
    with pytest.raises(ArgumentError, match="needed a file's name"):
        ost.profile(3)  # type: ignore[arg-type]
    p = ost.profile(Path("nowhere") / "x.html")
    with pytest.raises(DataFileError, match="a folder that exists"), use(), p:
        pass


def test_a_profile_of_nothing() -> None:
    with use(), ost.profile() as p:
        pass
    assert str(p).endswith("nothing ran>")
    assert p._repr_html_()


def test_other_threads_are_lanes_of_their_own() -> None:
    with use(), ost.profile() as p:
        thread = threading.Thread(
            target=lambda: float(ost.compile(lambda x: x * 7.5)(ost.ones(3))[0]), name="another"
        )
        thread.start()
        thread.join()
    assert "another" in {e.lane for e in p.events}


def test_a_trace_for_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    p = a_profile((2,), path)
    rows = json.loads(path.read_text())["traceEvents"]
    spans = [r for r in rows if r["ph"] == "X"]
    assert len(spans) == len(p.events)
    named = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    assert {"worker 0", "worker 1"} <= set(named.values())
    assert all((s["pid"], s["tid"]) in named and s["dur"] >= 0 for s in spans)


def test_the_page(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    a_profile((2,), path)
    text = path.read_text()
    assert "http" not in text.replace("http://www.w3.org", ""), "it needs no network"
    assert "wait for messages" in text or "all_reduce" in text


def test_a_cell_of_a_notebook_shows_it() -> None:
    page = Balanced()
    page.feed(a_profile()._repr_html_())
    assert not page.open


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    a_profile((2,), path)
    with Browser() as browser:
        browser.open(f"file://{path}")
        browser.until("document.querySelectorAll('.bar').length > 20")
        assert "worker 1" in browser.text()
        lane = browser.value(
            "(() => { const s = document.querySelector('svg.time').getBoundingClientRect();"
            "return [...document.querySelectorAll('.bar')].every(b => { const r ="
            " b.getBoundingClientRect(); return r.left >= s.left && r.right <= s.right &&"
            " r.bottom <= s.bottom }) })()"
        )
        assert lane is True, "bars lie within the picture"
        x, y = browser.value(
            "(() => { const r = document.querySelectorAll('.bar')[0].getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + 3] })()"
        )
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert re.search(
            r"\d (ms|µs), from", browser.value("document.getElementById('tip').textContent")
        )
        before = browser.value("document.querySelectorAll('.bar')[0].getAttribute('width')")
        browser.ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-300)
        browser.until(f"document.querySelectorAll('.bar')[0].getAttribute('width') > {before}")
        assert browser.errors == []


JOB = """
import json, ostinato as ost
session = ost.connect()
f = ost.compile(lambda x: ost.tanh(x @ x.T).sum(0))
x = ost.ones((200, 30), split=0)
x.numpy()
with ost.profile() as p:
    for _ in range(3):
        f(x).numpy()
print(json.dumps([[e.name, e.kind, e.worker, e.lane, e.process, e.begin, e.end] for e in p.events]))
print(json.dumps(p.seconds))
"""


@needs_mpi
def test_processes() -> None:
    job = subprocess.run(
        [str(MPIEXEC), "-n", "2", sys.executable, "-c", JOB],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OSTINATO_CACHE": "off", "PYTHONPATH": str(ROOT)},
    )
    assert job.returncode == 0, job.stderr
    events, total = map(json.loads, job.stdout.splitlines())
    runs = [e for e in events if e[1] == "run"]
    assert sorted(e[2] for e in runs) == [0, 0, 0, 1, 1, 1]
    assert len({e[4] for e in runs}) == 2, "each in its process"
    assert any(e[1] == "message" and e[2] == 1 for e in events)
    assert any(e[1] == "compile" and e[4] != runs[0][4] for e in events), "steps of both"
    assert all(-0.01 <= e[5] <= e[6] <= total + 0.01 for e in events), "by one clock"
