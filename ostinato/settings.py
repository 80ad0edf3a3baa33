"""Settings from the environment; bad values are refused with the good ones named. They are read when the
library is imported, and what was changed since then, also by %env in a notebook or in os.environ, when a
session begins and when a plan is made.

OSTINATO_DEBUG      0-4: 1 a line per plan, 2 the passes, 3 graphs after each pass, 4 what workers run
OSTINATO_DUMP       a folder: the graph after each pass, as text
OSTINATO_CACHE      where plans and machine code are kept on disk, for this user alone; "off" for nowhere.
                    In a folder that has other files it is the folder ostinato-cache there
OSTINATO_CACHE_MB   how much of it, in megabytes; the least recently used plans go first
OSTINATO_MATH       whose exp, sin, pow, ... run: "own", in kernels, within 4 units in the last place;
                    or "libm", NumPy's, which stay out of kernels. A part of every plan's id
OSTINATO_TUNE       "on": what only timing can decide is timed when a plan is made (the default where
                    there is a cache on disk); "read": only what was timed before counts; "off": nothing
OSTINATO_TUNE_SECONDS  how long this process may spend on that, all together
OSTINATO_CHECK_NAN  1: look for NaN after each operation and name the first that made one
OSTINATO_CHECK_STALE  n: trace every n-th hit of a compiled function again, and raise an error if that gives
                    another graph, since something changed that is not watched
OSTINATO_HEARTBEAT  seconds without a sign of life after which a worker counts as lost, 2 or more
OSTINATO_DEVICE     where workers compute if nothing else is said: "cpu" or "cuda"
OSTINATO_MACHINE    the machine by which layouts are chosen: "here", which `ostinato calibrate`
                    measured, or else "nominal"; or "prompt", on which kernels and messages start at
                    once, so that small arrays are cut as large ones are
OSTINATO_PROGRESS   "auto": what takes longer than a second shows how far it is, in a terminal or a
                    notebook; "off": nowhere
OSTINATO_TRACEBACK  "short": of the library's frames, errors show where the user's code called it and
                    where it found the error; "full": all of them
OSTINATO_MPI        "auto": GPUs' messages that NCCL cannot carry go through MPI from GPU to GPU, if the MPI
                    library says that it can; "device": they do, whatever it says; "host": they go
                    through the host's memory
OSTINATO_ONEDNN     a libdnnl.so.3 to use instead of the wheel's; "off" for NumPy's library alone
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

LEAST_HEARTBEAT = 2.0  # signs of life come every second

debug: int
dump: str
cache: Path | None
cache_bytes: int
machine: str
math: str
check_nan: bool
check_stale: int
tune: str
tune_seconds: int
tune_again: bool = False  # what was timed before, too
progress: str
traceback: str
mpi: str
onednn: str
device: str
heartbeat: float


def is_heartbeat(seconds: object) -> bool:
    """Whether a number of seconds is finite and not too short."""
    return isinstance(seconds, (int, float)) and LEAST_HEARTBEAT <= seconds < inf


def _number(default: int, high: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        if text and (not text.isdecimal() or int(text) > high):
            raise ValueError(f"a whole number from 0 to {high}")
        return int(text or default)

    return parsed


def _heartbeat(text: str) -> float:
    try:
        seconds = float(text or 8)
    except ValueError:
        seconds = 0.0
    if not is_heartbeat(seconds):
        raise ValueError(f"seconds, {LEAST_HEARTBEAT:g} or more")
    return seconds


def _cache(text: str) -> Path | None:
    if text.lower() in ("off", "0", "none"):
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ostinato"
    try:
        return (Path(text) if text else base).expanduser()
    except RuntimeError:  # who runs this has no home
        return None


def _word(*words: str) -> Callable[[str], str]:
    """One of a few words; the first is the default."""

    def parsed(text: str) -> str:
        if (text or words[0]) not in words:
            raise ValueError(" or ".join(words))
        return text or words[0]

    return parsed


_PARSED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "OSTINATO_DEBUG": ("debug", _number(0, 4)),
    "OSTINATO_DUMP": ("dump", str),
    "OSTINATO_CACHE": ("cache", _cache),
    "OSTINATO_CACHE_MB": ("cache_bytes", lambda text: _number(256, 1 << 20)(text) * 2**20),
    "OSTINATO_MACHINE": ("machine", _word("here", "nominal", "prompt")),
    "OSTINATO_MATH": ("math", _word("own", "libm")),
    "OSTINATO_CHECK_NAN": ("check_nan", lambda text: bool(_number(0, 1)(text))),
    "OSTINATO_CHECK_STALE": ("check_stale", _number(0, 1 << 30)),
    "OSTINATO_TUNE": ("tune", _word("on", "read", "off")),
    "OSTINATO_TUNE_SECONDS": ("tune_seconds", _number(2, 1 << 20)),
    "OSTINATO_PROGRESS": ("progress", _word("auto", "off")),
    "OSTINATO_TRACEBACK": ("traceback", _word("short", "full")),
    "OSTINATO_MPI": ("mpi", _word("auto", "device", "host")),
    "OSTINATO_ONEDNN": ("onednn", str),
    "OSTINATO_DEVICE": ("device", lambda text: text or "cpu"),
    "OSTINATO_HEARTBEAT": ("heartbeat", _heartbeat),
}
_said: dict[str, str] = {}  # by the variables, when they were read last


def read() -> None:
    """Take what variables say that were changed since they were read last."""
    for name, (setting, parsed) in _PARSED.items():
        text = os.environ.get(name, "").strip()
        if _said.get(name) == text:
            continue
        try:
            globals()[setting] = parsed(text)
        except ValueError as error:
            raise ValueError(f"{name}={text!r}: needed {error}.") from None
        _said[name] = text
        if setting in ("cache", "tune") and not _said.get("OSTINATO_TUNE"):
            globals()["tune"] = "read" if globals()["cache"] is None else "on"


read()
