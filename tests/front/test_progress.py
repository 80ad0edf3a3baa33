"""What takes long is seen, and nothing else: bars, callbacks, positions in programs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import activity
from ostinato.runtime.run_progress import frame_of

import ostinato as ost
from ostinato import progress
from tests.sessions import use


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second lasts less here."""
    monkeypatch.setattr(progress, "AFTER", 0.1)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    monkeypatch.setattr(progress, "IDLE", 0.1)
    yield
    assert not activity.listeners, "a test leaves somebody who looks"
    assert gone(), "it would sleep as long as outside of tests while the next one begins"


class Told:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[ost.Progress] = []
        self.used: list[float] = []  # seconds of processor by then
        self.end = ost.on_progress(self.hear)

    def hear(self, p: ost.Progress) -> None:
        self.all.append(p)
        self.used.append(time.process_time())

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *error: object) -> None:
        comes(lambda: not self.all or self.all[-1].done)
        self.end()


def comes(true: Callable[[], object]) -> bool:
    """Whether it comes true; soon, unless others have the machine."""
    limit = time.monotonic() + 60
    while not (found := true()) and time.monotonic() < limit:
        time.sleep(0.01)
    return bool(found)


def gone(name: str = "ostinato-progress") -> bool:
    return comes(lambda: all(t.name != name for t in threading.enumerate()))


def slow(x: Any) -> Any:
    """A loop of some hundred turns of which each takes milliseconds."""
    return ost.repeat(200, lambda s: ost.tanh(s @ x) * 0.1, x)


def test_a_long_run_tells_how_far_it_is() -> None:
    with use():
        f = ost.compile(slow)
        x = ost.asarray(np.ones((400, 400)))
        f(x).numpy()
        with Told() as told:
            start = time.process_time()
            f(x).numpy()
            took = time.process_time() - start
    runs = [p for p in told.all if p.what == "running slow"]
    assert runs, f"nothing is told of a run of {took:.2f} s of processor"
    shares = [p.share for p in runs]
    assert all(s is not None for s in shares)
    assert shares == sorted(shares), "it never goes back"  # type: ignore[type-var]
    assert runs[-1] == ost.Progress("running slow", 1.0, runs[-1].seconds, True)
    for p, used in zip(told.all, told.used, strict=True):
        if p in runs[:-1]:
            assert p.share == pytest.approx((used - start) / took, abs=0.25)
    assert gone()


def test_while_loops_tell_their_iteration() -> None:
    def f(x: Any) -> Any:
        return ost.while_loop(
            lambda s: s[0] < 300, lambda s: (s[0] + 1, ost.tanh(s[1] @ x)), (ost.asarray(0), x)
        )[1]

    with use(), Told() as told:
        ost.compile(f)(ost.asarray(np.ones((400, 400)))).numpy()
    said = [m for p in told.all if (m := re.fullmatch(r"running f, iteration (\d+)", p.what))]
    assert len(said) > 1
    assert all(p.share is None for p in told.all if "iteration" in p.what)
    numbers = [int(m[1]) for m in said]
    assert numbers == sorted(numbers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What all steps are timed by, which goes on only where a test says so."""
    assert gone(), "whose thread would end by another clock"
    now = [time.perf_counter()]
    monkeypatch.setattr(progress._watch, "last", (0.0, 0.0))  # by that clock
    for module in (activity, progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def looked() -> None:
    """The thread that looks has looked."""
    progress._watch.bell.set()
    progress._watch._tell()


def test_what_is_short_is_not_told(clock: list[float]) -> None:
    with use(), Told() as told:
        f = ost.compile(lambda x: x + 1)
        for _ in range(100):
            f(ost.ones(3)).numpy()
            clock[0] += progress.AFTER
        looked()
        with activity.task("read", "shorter than a second, which is a tenth of one here"):
            clock[0] += 0.9 * progress.AFTER
            looked()
        clock[0] += 9.0
    assert told.all == []
    assert gone()


def test_short_runs_in_a_row_are_not_one_long_run(clock: list[float]) -> None:
    """By a clock that goes on in runs alone, each of which takes less than what is shown."""
    now = clock

    class Passing:
        runs = 0

        def began(self, task: activity.Task) -> None:
            if task.kind == activity.RUN:
                self.runs += 1
                now[0] += 0.9 * progress.AFTER
            progress._watch._tell()

        def ended(self, task: activity.Task) -> None:
            pass

    passing = Passing()
    with use(), Told() as told:
        f = ost.compile(lambda x: ost.tanh(x @ x))
        x = ost.asarray(np.ones((30, 30)))
        f(x).numpy()
        now[0] += 1  # what was done before the first run is long ago
        activity.listen(passing)
        for _ in range(20):
            f(x).numpy()
        activity.leave(passing)
    assert passing.runs >= 10
    assert told.all == []


def test_steps_before_the_first_run_are_one_wait(clock: list[float]) -> None:
    """Each is short, and who waits sees them together."""
    with Told() as told:
        for kind in ("trace", "plan", "tune", "compile"):
            with activity.task(kind, kind):
                clock[0] += 0.6 * progress.AFTER
                looked()
    assert {p.what for p in told.all} == {"plan", "tune", "compile"}


def test_kernels_that_are_compiled_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.ops.cpu.jit import llvm

    make = llvm._machine_code

    def slower(text: str) -> bytes:
        time.sleep(0.1)
        return make(f"; {time.time()}\n{text}")

    monkeypatch.setattr(llvm, "_machine_code", slower)
    monkeypatch.setattr(llvm.disk_cache.open_cache(None), "read", lambda name: None, raising=False)
    number = time.time() % 1
    with use(), Told() as told:
        f = ost.compile(
            lambda x: [ost.exp(x[k] + number + k).sum() * (x[k] * number) for k in range(4)]
        )
        f(ost.ones((4, 5000)))
    said = {p.what for p in told.all}
    assert any(re.fullmatch(r"compiling \d+ kernels", s) for s in said), said


def test_loads_and_saves_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.runtime.engine import LocalEngine

    for name in ("read", "write"):
        plain = getattr(LocalEngine, name)

        def slower(*given: Any, plain: Any = plain) -> Any:
            found, before = plain(*given), len(told.all)
            assert comes(
                lambda: any(p.what.startswith(kinds) and not p.done for p in told.all[before:])
            )
            return found

        monkeypatch.setattr(LocalEngine, name, slower)
    kinds = "saving", "loading"  # on a busy machine planning may take long enough to be told, too
    with use(), Told() as told:
        ost.save(tmp_path / "x.npy", ost.ones((500, 500)))
        ost.load(tmp_path / "x.npy").numpy()
        ost.save_state(tmp_path / "states", {"a": ost.ones(9), "b": ost.ones(9)}, step=3)
        ost.load_state(tmp_path / "states")
    said = [p for p in told.all if p.done and p.what.startswith(kinds)]
    assert [p.what for p in said] == [
        "saving x.npy", "loading x.npy", "saving step 3", "loading step 3",
    ]  # fmt: skip
    if sys.platform == "linux":
        saved = [p.share for p in told.all if p.what == "saving x.npy" and not p.done]
        assert max(s or 0.0 for s in saved) == activity.MAX_ESTIMATE, (
            "the system counts what is written"
        )


def test_a_callback_that_fails_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    ost.on_progress(lambda p: 1 // 0)
    with Told() as told, activity.task("read", "x"):
        assert comes(lambda: len(told.all) > 2), "others are told all the same"
    assert len(failed) == 1
    assert failed[0].exc_type is ZeroDivisionError


def test_a_callback_cannot_wait_for_the_run_that_waits_for_it() -> None:
    """Nor does it compute."""
    said: list[str] = []

    def ask(p: ost.Progress) -> None:
        try:
            float(ost.ones(3).sum())
        except ost.errors.SessionError as error:
            said.append(str(error))

    end = ost.on_progress(ask)
    with activity.task("read", "x"):
        assert comes(lambda: said)
    end()
    assert "nothing can be computed" in said[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_looks_by_itself() -> None:
    with Told() as told, activity.task("read", "here"):
        assert comes(lambda: told.all)
        child = os.fork()
        if not child:
            told.all.clear()
            with activity.task("read", "there"):
                comes(lambda: told.all)
            os._exit(0 if {p.what for p in told.all} == {"there"} else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_positions_weigh_operations_by_their_cost() -> None:
    """The large product is most of the program, wherever the small ones stand."""
    seen: list[float] = []
    with use() as session:
        f = ost.compile(lambda x, y: ost.tanh(y @ y) + ost.tanh(x @ x).sum())
        x, y = ost.ones((512, 512)), ost.ones((8, 8))
        f(x, y)
        loaded = session.engine.loaded(f.plan.id)[0]
        bound = loaded.bound
        assert bound is not None
        assert [s.node.op for s in bound.map.spans if s.seconds > 1e-3] == ["matmul"]
        name, me = f"<plan {f.plan.id}>", threading.get_ident()

        def look(frame: Any, event: str, arg: object) -> Any:
            if frame.f_code.co_filename != name:
                return None
            found = frame_of(name, me)
            assert found is frame
            seen.append(bound.map.share(frame)[0] or 0.0)
            return look

        before = sys.gettrace()
        sys.settrace(look)
        try:
            f(x, y)
        finally:
            sys.settrace(before)
    assert seen == sorted(seen)
    steps = np.diff([*seen, 1.0])
    assert steps.max() > 0.9


# -- screens -------------------------------------------------------------------------------
SCRIPT = """
import sys, time
{first}
import ostinato as ost
from ostinato import progress
from ostinato.ops.core import activity
progress.AFTER, progress.EVERY = 0.1, 0.02
{then}
with activity.task("read", "loading x.npy", 4) as seen:
    for _ in range(4):
        time.sleep(0.3)
        seen.step()
print("done", file=sys.stderr)
"""


def on_terminal(code: str, **env: str) -> str:
    """What a script writes to a terminal."""
    lead, end = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=end,
        stderr=end,
        env={**os.environ, "OSTINATO_PROGRESS": "auto", "TERM": "xterm", "COLUMNS": "100", **env},
    )
    os.close(end)
    found = b""
    while True:
        try:
            more = os.read(lead, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        found += more
    os.close(lead)
    assert child.wait(30) == 0, found.decode()
    return found.decode()


def last_line(text: str) -> str:
    return text.replace("\r\n", "\n").rstrip("\n").rpartition("\n")[2]


def test_a_terminal_shows_a_bar() -> None:
    text = on_terminal(SCRIPT.format(first="import rich.progress", then=""))
    assert "loading x.npy" in text
    assert "━" in text
    assert re.search(r"(25|50|75)%, 0:0", text)
    assert text.rstrip().endswith("done")
    assert "\x1b[2K" in text.rpartition("loading")[2], "the line is gone in the end"


def test_without_rich_the_line_is_plain() -> None:
    text = on_terminal(SCRIPT.format(first="sys.modules['rich'] = None", then=""))
    assert re.search(r"\rloading x\.npy  (25|50|75)%, 0:0", text)
    assert "━" not in text
    assert last_line(text).rpartition("\r")[2] == "done"


@pytest.mark.parametrize("how", ["variable", "call", "pipe"])
def test_nothing_is_shown_where_nobody_wants_it(how: str) -> None:
    code = SCRIPT.format(first="", then="ost.quiet()" if how == "call" else "")
    if how == "pipe":
        env = {**os.environ, "OSTINATO_PROGRESS": "auto"}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        text = run.stdout + run.stderr
    else:
        text = on_terminal(code, **({"OSTINATO_PROGRESS": "off"} if how == "variable" else {}))
    assert text.split() == ["done"]


def test_progress_is_auto_or_off() -> None:
    env = {**os.environ, "OSTINATO_PROGRESS": "on"}
    run = subprocess.run(
        [sys.executable, "-c", "import ostinato"], env=env, capture_output=True, text=True
    )
    assert "OSTINATO_PROGRESS='on': needed auto or off." in run.stderr


NOTEBOOK = """
import sys, types
class ZMQInteractiveShell: pass
shown = []
class Handle:
    def update(self, page): shown.append(page.data)
class HTML:
    def __init__(self, data): self.data = data
def display(page, display_id):
    assert display_id is True
    shown.append(page.data)
    return Handle()
ipython = types.ModuleType("IPython")
ipython.get_ipython = ZMQInteractiveShell
ipython.display = types.ModuleType("IPython.display")
ipython.display.HTML, ipython.display.display = HTML, display
sys.modules.update({"IPython": ipython, "IPython.display": ipython.display})
"""


def test_a_notebook_shows_html() -> None:
    code = SCRIPT.format(first=NOTEBOOK, then="") + "print(*shown, sep='\\n')"
    env = {**os.environ, "OSTINATO_PROGRESS": "auto"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stderr == "done\n"
    pages = run.stdout.splitlines()
    assert pages.pop() == "", "the bar is gone in the end"
    assert len(pages) > 3
    for page in pages:
        assert "loading x.npy" in page
        assert "<script" not in page
    assert re.search(r"width:75.0%", pages[-1])


def test_an_epochs_line_is_the_only_one() -> None:
    from ostinato.io_pipeline.feed.progress_line import Line

    shown: list[str] = []

    class Screen:
        def show(self, task: activity.Task, now: ost.Progress) -> None:
            shown.append(now.what)

        def hide(self) -> None:
            pass

    with progress.nested_screen(Screen()), Told() as told:
        line = Line(1, 10)
        with activity.task("read", "beside an epoch"):
            assert comes(lambda: told.all)
        line.stop()
        line.stop()
        with activity.task("read", "alone"):
            assert comes(lambda: shown)
    assert set(shown) == {"alone"}
