"""What takes longer than a second is seen: a bar in a terminal or a notebook, and what programs ask for.

One thread looks, as long as something goes on that somebody wants to see, and ends when all has been
quiet for a while. Where nobody looks (no terminal, OSTINATO_PROGRESS=off) there is none."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Protocol

from ostinato import settings
from ostinato.ops.core import activity
from ostinato.ops.core.activity import RUN, Task
from ostinato.ops.core.helpers import begin_to_help

__all__ = ["Progress", "on_progress", "quiet"]

AFTER = 1.0  # seconds, before which nothing is shown
EVERY = 0.2  # between two looks
GAP = 0.1  # between steps that are one for who waits
IDLE = 2.0  # after which the thread ends
BAR = 24  # columns


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is that takes long.

    >>> ost.Progress("run step", 0.5, 2.0, False).share
    0.5
    """

    what: str  # in words: "compiling 17 kernels"
    share: float | None  # from 0 to 1; None where nobody knows
    seconds: float  # since it began
    done: bool  # whether this is the last that is told of it


class Screen(Protocol):
    """Where people see a step."""

    def show(self, task: Task, now: Progress) -> None: ...

    def hide(self) -> None: ...


# -- who looks -----------------------------------------------------------------------------
class _Watch:
    """All that goes on in this process, and the thread that looks at it."""

    def __init__(self, screen: Screen | None) -> None:
        self.screen = screen
        self.callbacks: list[Callable[[Progress], object]] = []
        self.reset()

    def reset(self) -> None:
        """Nothing goes on, as in a forked child."""
        self.going: list[Task] = []
        self.since: dict[Task, float] = {}  # for who waits, which may be before it began
        self.contexts: dict[Task, Context] = {}
        self.last = (0.0, 0.0)  # of the step before that was no run: since when, and its end
        self.told: set[Task] = set()
        self.over: list[Task] = []  # that ended, and were told of
        self.shown: Task | None = None
        self.thread: threading.Thread | None = None
        self.bell = threading.Event()
        self.drawing = threading.RLock()
        self.ends = False

    # -- in the threads that work ----------------------------------------------------------
    def began(self, task: Task) -> None:
        if task.minor:
            return
        since, end = self.last
        self.since[task] = since if task.begin - end < GAP else task.begin
        self.contexts[task] = copy_context()  # of the notebook's cell
        self.going.append(task)
        if self.thread is None and not self.ends:
            self._start()

    def ended(self, task: Task) -> None:
        if task.minor:
            return
        with contextlib.suppress(ValueError):
            self.going.remove(task)
        since = self.since.pop(task, task.begin)
        if task.kind != RUN:
            self.last = since, task.end
        if task in self.told:
            self.told.discard(task)
            self.over.append(task)
            self.bell.set()
        if self.shown is not None and self._of_interest() is None:
            self._hide()  # before the program prints something
        self.contexts.pop(task, None)

    def _start(self) -> None:
        if not self.drawing.acquire(blocking=False):
            return
        try:
            if self.thread is None:
                thread = threading.Thread(target=self._run, name="ostinato-progress", daemon=True)
                self.thread = thread
                thread.start()
        except RuntimeError:  # the interpreter ends
            self.thread = None
        finally:
            self.drawing.release()

    def _of_interest(self) -> Task | None:
        """The innermost step that lasts."""
        now = time.perf_counter()
        for task in [t for t in list(self.going) if t.end > t.begin]:
            with contextlib.suppress(ValueError):  # its end was interrupted
                self.going.remove(task)
        due = [t for t in list(self.going) if now - self.since.get(t, now) >= AFTER]
        return due[-1] if due else None

    # -- in the thread that looks ----------------------------------------------------------
    def _run(self) -> None:
        begin_to_help()
        busy = time.perf_counter()
        while not self.ends:
            now = time.perf_counter()
            going = list(self.going)
            if going or self.over:
                busy = now
            elif now - busy > IDLE:
                self.thread = None
                if not self.going:
                    return
                self.thread = threading.current_thread()  # something began in between
            begun = min((self.since.get(t, now) for t in going), default=now)
            wait = max(EVERY, begun + AFTER - now) if going else IDLE / 2
            self.bell.wait(min(wait, AFTER) if going else wait)
            self.bell.clear()
            self._tell()

    def _tell(self) -> None:
        task = self._of_interest()
        if task is not None:
            self.told.add(task)
            progress = self._progress(task)
            self._show(task, progress)
            self._call(progress)
        while self.over:
            task = self.over.pop(0)
            self._call(Progress(task.what, 1.0, task.end - task.begin, True))

    def _progress(self, task: Task) -> Progress:
        share, words = task.share()
        what = f"{task.what}, {words}" if words else task.what
        return Progress(what, share, time.perf_counter() - task.begin, False)

    def _call(self, progress: Progress) -> None:
        for each in list(self.callbacks):
            try:
                each(progress)
            except BaseException as error:  # it is asked no more
                self.remove(each)
                kind, trace = type(error), error.__traceback__
                threading.excepthook(
                    threading.ExceptHookArgs((kind, error, trace, threading.current_thread()))
                )

    # -- the screen ------------------------------------------------------------------------
    def _show(self, task: Task, progress: Progress) -> None:
        with self.drawing:
            context = self.contexts.get(task)
            if self.screen is None or context is None or activity.others:
                return
            self.shown = task
            with contextlib.suppress(RuntimeError, OSError, ValueError):  # of a stream that closed
                context.run(self.screen.show, task, progress)

    def _hide(self) -> None:
        with self.drawing:
            if self.shown is not None and self.screen is not None:
                self.shown = None
                with contextlib.suppress(RuntimeError, OSError, ValueError):
                    self.screen.hide()

    # -- who is told -----------------------------------------------------------------------
    def add(self, each: Callable[[Progress], object]) -> None:
        self.callbacks.append(each)
        self._listen()

    def remove(self, each: Callable[[Progress], object]) -> None:
        with contextlib.suppress(ValueError):
            self.callbacks.remove(each)
        self._listen()

    def use(self, screen: Screen | None) -> None:
        self._hide()
        self.screen = screen
        self._listen()

    def _listen(self) -> None:
        """Begin or cease to be told of what begins."""
        if self.screen is not None or self.callbacks:
            activity.listen(self)
        else:
            activity.leave(self)

    def end(self) -> None:
        """The interpreter ends."""
        self.ends = True
        self._hide()
        thread = self.thread
        self.bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)


def quiet(be: bool = True) -> None:
    """Show no progress from now on; `quiet(False)` shows it again, where there is a screen for it.

    A program without a terminal shows none, nor does one with OSTINATO_PROGRESS=off.

    >>> ost.quiet()
    >>> ost.quiet(False)
    """
    _watch.use(None if be else screen_here())


def on_progress(callback: Callable[[Progress], object], /) -> Callable[[], None]:
    """Call a function about five times a second with how far the step is that goes on, for all that
    takes longer than a second: plans that run, loads, saves, compilation, timing. What this returns
    ends that.

    It is called in a thread of its own, where nothing can be computed with arrays.

    >>> stop = ost.on_progress(lambda step: None)
    >>> stop()
    """
    _watch.add(callback)
    return lambda: _watch.remove(callback)


# -- screens -------------------------------------------------------------------------------
def screen_here() -> Screen | None:
    """A notebook, a terminal, or nothing."""
    if "ZMQInteractiveShell" in _shell():
        return Notebook()
    stream = sys.stderr
    try:
        is_terminal = stream is not None and stream.isatty()
    except (ValueError, AttributeError):
        is_terminal = False
    return Terminal() if is_terminal and os.environ.get("TERM") != "dumb" else None


def _shell() -> str:
    """The class of IPython's shell, if this runs in one."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return " ".join(c.__name__ for c in type(shell).__mro__)


def clock(seconds: float) -> str:
    """As clocks show it: 0:07."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_progress(now: Progress) -> str:
    """Behind the bar: how much, how long, and how long yet."""
    if now.share is None:
        return clock(now.seconds)
    left = now.seconds * (1 - now.share) / now.share if now.share > 0.01 else None
    rest = f", {clock(left)} left" if left is not None else ""
    return f"{now.share:.0%}, {clock(now.seconds)}{rest}"


class Terminal:
    """A line that is gone when the step is: by rich, or plain."""

    def __init__(self) -> None:
        self.live: Any = None
        self.bar: Any = None
        self.wide = 0

    def show(self, task: Task, now: Progress) -> None:
        if self.live is None and not self.wide:
            self.live = _rich()
            if self.live is not None:
                self.bar = self.live.add_task(now.what, total=None, said=format_progress(now))
                self.live.start()
        if self.live is None:
            self._plain(now)
            return
        total = None if now.share is None else 1.0
        self.live.update(
            self.bar,
            description=now.what,
            total=total,
            completed=now.share or 0.0,
            said=format_progress(now),
        )
        self.live.refresh()

    def _plain(self, now: Progress) -> None:
        columns = _columns()
        room = max(10, columns - len(format_progress(now)) - 4)
        text = f"{now.what[:room]}  {format_progress(now)}"[: columns - 1]
        sys.stderr.write("\r" + text.ljust(self.wide))
        sys.stderr.flush()
        self.wide = len(text)

    def hide(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.stop()
        if self.wide:
            sys.stderr.write("\r" + " " * self.wide + "\r")
            sys.stderr.flush()
            self.wide = 0


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def _rich() -> Any:
    """A line of rich's, if it is installed."""
    try:
        from rich import console, progress
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(BAR),
        progress.TextColumn("{task.fields[said]}", markup=False),
        console=console.Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class Notebook:
    """A bar of HTML below the cell, without widgets."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.context: Context | None = None

    def show(self, task: Task, now: Progress) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        page = HTML(as_html(now))
        if self.handle is None:
            self.context = copy_context()
            self.handle = display(page, display_id=True)
        else:
            self.handle.update(page)

    def hide(self) -> None:
        from IPython.display import HTML

        handle, self.handle = self.handle, None
        if handle is not None and self.context is not None:
            self.context.copy().run(handle.update, HTML(""))


def as_html(now: Progress) -> str:
    """The bar, in colours that stand out on white and on black."""
    import html

    known = now.share is not None
    width = f"{100 * now.share:.1f}%" if now.share is not None else "100%"
    colour = "#3b6ea5" if known else "#7fa7d1"
    return (
        '<div style="font:13px/1.5 system-ui,sans-serif;display:flex;gap:10px;align-items:center;'
        f'max-width:760px"><span style="white-space:nowrap">{html.escape(now.what)}</span>'
        '<span style="flex:1;min-width:80px;height:8px;border-radius:4px;overflow:hidden;'
        'background:rgba(128,128,128,.25)">'
        f'<span style="display:block;height:8px;width:{width};background:{colour}"></span></span>'
        f'<span style="white-space:nowrap;font-variant-numeric:tabular-nums">{format_progress(now)}</span>'
        "</div>"
    )


@contextlib.contextmanager
def nested_screen(screen: Screen | None) -> Iterator[Screen | None]:
    """Another screen for a while."""
    before = _watch.screen
    _watch.use(screen)
    try:
        yield screen
    finally:
        _watch.use(before)


_watch = _Watch(None)
atexit.register(_watch.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.reset)
_set = settings.progress


def show_as_set() -> None:
    """Show it or not, if the setting was changed."""
    global _set
    if settings.progress != _set:
        _set = settings.progress
        _watch.use(screen_here() if _set == "auto" else None)


if _set == "auto" and "OSTINATO_WATCH" not in os.environ:
    _watch.use(screen_here())
