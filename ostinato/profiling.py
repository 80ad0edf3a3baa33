"""`ost.profile`: when which operation ran on which worker, and what else took its time, as a page.

Workers run plans that are bound with a clock between their operations as long as a profile lasts;
elsewhere nothing is timed for it. The page needs no network; a name that ends with .json gives a
trace for chrome://tracing and Perfetto."""

from __future__ import annotations

import contextlib
import html
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.errors import ArgumentError, OstinatoError
from ostinato.ops.core.activity import RUN
from ostinato.ops.core.disk import write_page
from ostinato.ops.core.user_line import misfit
from ostinato.planner.seeing.explain import seconds
from ostinato.planner.seeing.timeline import Bar, page, picture
from ostinato.runtime.profile_tape import WHOLE, Steps

from . import sessions
from .sessions import Session

__all__ = ["Event", "Profile", "profile"]

COLOURS = {
    "product": ("#3b6ea5", "products"),
    "kernel": ("#7fa7d1", "other operations"),
    "message": ("#d9a441", "messages"),
    "file": ("#5aa469", "files, and waiting for them"),
    "trace": ("#a58bc4", "tracing and planning"),
    "compile": ("#b05c8a", "compilation"),
    "tune": ("#a3a13c", "timing of choices"),
    WHOLE: ("#c9d3dc", "runs of plans"),
}
ALIKE = {"read": "file", "write": "file", "plan": "trace"}
DEEPEST = 7  # bars above each other in a lane
ROWS = 20  # of the table


@dataclass(frozen=True, slots=True)
class Event:
    """What one worker, or a thread of a process, did from one second to another."""

    name: str
    kind: str  # "product", "kernel", "message", "file", "trace", "compile", "tune", "run"
    line: str  # the user's, or nothing
    worker: int  # its rank, or -1 for a process's own steps
    lane: str  # "worker 2", or a thread
    begin: float  # seconds since the profile began
    end: float
    part: bool = False  # whether it is a part of another event of its lane
    host: str = ""
    process: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Profile:
    """What happened within `with ost.profile(...)`.

    >>> spent = ost.profile()
    >>> with spent:
    ...     _ = float(ost.arange(5).sum())
    >>> len(spent.longest()) > 0
    True
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise misfit(
                ArgumentError, "profile", got=repr(path)[:80], needed="a file's name, or nothing"
            )
        self.path = path
        self.events: list[Event] = []
        self.seconds = 0.0
        self.missed = 0  # operations behind the first hundred thousand of a worker
        self._steps = Steps()
        self._taken: list[dict[str, Any]] = []
        self._sessions: list[Session] = []

    # -- recording -------------------------------------------------------------------------
    def __enter__(self) -> Profile:
        if sessions.profiles:
            got = "a profile within another"
            raise misfit(ArgumentError, "profile", got=got, needed="one at a time")
        self._steps = Steps()
        self._taken, self._sessions, self.events = [], [], []
        self._began = time.time()
        sessions.profiles.append(self)
        self._steps.begin()
        session = sessions.here()
        if session is not None:
            self.begin(session)
        return self

    def begin(self, session: Session) -> None:
        """A session whose workers write down what they do."""
        if session not in self._sessions:
            self._sessions.append(session)
            session.engine.record()

    def end(self, session: Session) -> None:
        """It closes, or the profile ends."""
        if session in self._sessions:
            self._sessions.remove(session)
            with contextlib.suppress(OstinatoError):  # its workers are gone
                self._taken += session.engine.recorded()

    def __exit__(self, *_: object) -> None:
        try:
            for session in list(self._sessions):
                self.end(session)
        finally:
            self._steps.end()
            sessions.profiles.remove(self)
        self.seconds = time.time() - self._began
        self.events = sorted(self._found(), key=lambda e: (e.begin, -e.end))
        self.missed = sum(taken.get("missed", 0) for taken in self._taken)
        if self.path is not None:
            self.save(self.path)

    def _found(self) -> Iterable[Event]:
        here = self._steps.as_data()
        for taken in [here, *self._taken]:
            who = taken["host"], taken["process"]
            for number, begin, end in taken.get("spans", ()):
                name, what, line, _ = taken["labels"][number]
                lane = f"worker {taken['rank']}"
                yield self._event(name, what, line, taken["rank"], lane, False, begin, end, *who)
            if taken is not here and who == (here["host"], here["process"]):
                continue  # whose steps are in ours
            for what, name, thread, minor, begin, end in taken.get("steps", ()):
                if what != RUN:
                    lane = thread.removeprefix("ostinato-").replace("MainThread", "main thread")
                    lane = lane.replace("worker-", "begin of worker ")
                    what = ALIKE.get(what, what)
                    yield self._event(name, what, "", -1, lane, minor, begin, end, *who)

    def _event(
        self,
        name: str,
        kind: str,
        line: str,
        worker: int,
        lane: str,
        part: bool,
        begin: float,
        end: float,
        host: str,
        process: int,
    ) -> Event:
        first = self._began
        return Event(
            name, kind, line, worker, lane, begin - first, end - first, part, host, process
        )

    # -- what it shows ---------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page (HTML), or a trace for chrome://tracing and Perfetto (.json)."""
        is_trace = os.fspath(path).lower().endswith(".json")
        write_page(path, self._trace() if is_trace else self._page())

    def longest(self) -> list[tuple[str, str, int, float]]:
        """Operations and other steps with their lines, how often they were done, and the seconds that
        this took all together on one worker, the longest first."""
        spent: dict[tuple[str, str], list[float]] = {}
        workers = max(1, len({e.worker for e in self.events if e.worker >= 0}))
        for e in self.events:
            if e.kind != WHOLE and not e.part:
                entry = spent.setdefault((e.name, e.line), [0.0, 0.0])
                share = workers if e.worker >= 0 else 1
                entry[0] += e.seconds / share
                entry[1] += 1 / share
        rows = [(n, line, max(1, round(k)), took) for (n, line), (took, k) in spent.items()]
        return sorted(rows, key=lambda row: -row[3])

    def __str__(self) -> str:
        if not self.events:
            return f"<Profile of {seconds(self.seconds)}: nothing ran>"
        lines = [f"profile of {seconds(self.seconds)}"]
        lines += [
            f"  {seconds(took):>9} {count:>6} x {name:<32.32} {line}"
            for name, line, count, took in self.longest()[:ROWS]
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Profile of {seconds(self.seconds)}: {len(self.events)} events>"

    def _repr_html_(self) -> str:
        """The page within a notebook's cell."""
        text = html.escape(self._page(), quote=True)
        return (
            f'<iframe srcdoc="{text}" style="width:100%;height:520px;border:1px solid #d6dde4;'
            'border-radius:8px"></iframe>'
        )

    # -- the page --------------------------------------------------------------------------
    def _lanes(self) -> dict[tuple[str, int, str], int]:
        """Workers in the order of ranks, then threads; each with its row."""
        workers = sorted(
            {(e.worker, e.host, e.process, e.lane) for e in self.events if e.worker >= 0}
        )
        found = [(host, process, lane) for _, host, process, lane in workers]
        found += dict.fromkeys((e.host, e.process, e.lane) for e in self.events if e.worker < 0)
        return {lane: k for k, lane in enumerate(dict.fromkeys(found))}

    def _page(self) -> str:
        lanes = self._lanes()
        processes = len({(host, process) for host, process, _ in lanes})
        named = [
            (f"process {process}" if processes > 1 else "", lane) for _, process, lane in lanes
        ]
        bars = _stacked(self.events, lanes)
        kinds = {e.kind for e in self.events}
        key = "".join(
            f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>'
            for kind, (colour, name) in COLOURS.items()
            if kind in kinds
        )
        facts = "".join(
            f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
            for name, value in self._facts()
        )
        title = f"profile of {seconds(self.seconds)}"
        rows = "".join(
            f"<tr><td>{html.escape(name)}<td class=n>{count}<td class=n>{seconds(took)}"
            f"<td class=n>{took / max(self.seconds, 1e-9):.0%}<td>{html.escape(line)}"
            for name, line, count, took in self.longest()[:ROWS]
        )
        missed = (
            f"<p>{self.missed:,} operations more ran, which were not written down.</p>"
            if self.missed
            else ""
        )
        return page(
            title,
            f"<h1>{html.escape(title)}</h1><section class=facts>{facts}</section>"
            f"<section><h2>what ran when</h2>{picture(named, bars, self.seconds or 1.0)}"
            f"<div id=tip></div><div class=key>{key}<span>the wheel zooms, a double click shows all"
            f"</span></div>{missed}</section>"
            "<section><h2>what takes longest, on each worker</h2><table><tr><th>operation"
            "<th class=n>times<th class=n>together<th class=n>of the profile<th>line"
            f"{rows}</table></section>",
        )

    def _facts(self) -> Iterable[tuple[str, str]]:
        workers = {e.worker for e in self.events if e.worker >= 0}
        yield "all together", seconds(self.seconds)
        yield "workers", str(len(workers))
        for kinds, name in (
            (("product", "kernel"), "operations, per worker"),
            (("message",), "messages, per worker"),
        ):
            took = sum(e.seconds for e in self.events if e.kind in kinds and e.worker >= 0)
            yield name, seconds(took / max(1, len(workers)))
        for kind, name in (
            ("trace", "tracing and planning"),
            ("compile", "compilation"),
            ("file", "files"),
        ):
            spans = [(e.begin, e.end) for e in self.events if e.kind == kind]
            if spans:
                yield name, seconds(_covered(spans))

    # -- for other tools -------------------------------------------------------------------
    def _trace(self) -> str:
        lanes = self._lanes()
        rows: list[dict[str, object]] = []
        for (host, process, lane), k in lanes.items():
            who = {"pid": process, "tid": k}
            rows.append({"ph": "M", "name": "thread_name", **who, "args": {"name": lane}})
            name = f"process {process} on {host}"
            rows.append({"ph": "M", "name": "process_name", **who, "args": {"name": name}})
        rows += [
            {
                "ph": "X",
                "name": e.name,
                "cat": e.kind,
                "pid": e.process,
                "tid": lanes[e.host, e.process, e.lane],
                "ts": e.begin * 1e6,
                "dur": e.seconds * 1e6,
                "args": {"line": e.line},
            }
            for e in self.events
        ]
        return json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"})


def _stacked(events: Sequence[Event], lanes: dict[tuple[str, int, str], int]) -> list[Bar]:
    """Stack bars: an event within another, or beside it in a thread of the same name, is drawn
    below."""
    ends: dict[int, list[float]] = {}
    bars = []
    for e in events:
        lane = lanes[e.host, e.process, e.lane]
        last = ends.setdefault(lane, [])
        depth = next((d for d, end in enumerate(last) if end <= e.begin + 1e-7), len(last))
        depth = min(depth, DEEPEST)
        last[depth:] = [e.end]
        colour = COLOURS.get(e.kind, COLOURS["kernel"])[0]
        line = f", {e.line}" if e.line else ""
        told = f"{e.name}: {seconds(e.seconds)}, from {seconds(e.begin)} to {seconds(e.end)}{line}"
        bars.append(Bar(lane, e.begin, e.end, colour, told, depth))
    return bars


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one lasted."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def profile(path: str | os.PathLike[str] | None = None, /) -> Profile:
    """Write down when which operation ran on which worker, what messages, files, planning and
    compilation took, as long as `with` lasts:

        with ost.profile("run.html"):
            step(x, w)

    The page needs no network; "run.json" is a trace for chrome://tracing and Perfetto instead. The
    Profile has `events`, `longest()` and `save`, and shows itself in a notebook.

    >>> spent = ost.profile()
    >>> with spent:
    ...     _ = float(ost.arange(5).sum())
    >>> type(spent).__name__
    'Profile'
    """
    return Profile(path)
