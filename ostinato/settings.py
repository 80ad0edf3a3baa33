"""Settings from the environment, read once; bad values are refused with the good ones named.

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
from math import inf
from pathlib import Path


def _number(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name}={text!r}: needed a whole number from {low} to {high}.")
    return int(text)


LEAST_HEARTBEAT = 2.0  # signs of life come every second


def is_heartbeat(seconds: object) -> bool:
    """Whether a number of seconds is finite and not too short."""
    return isinstance(seconds, (int, float)) and LEAST_HEARTBEAT <= seconds < inf


def _heartbeat(default: float) -> float:
    text = os.environ.get("OSTINATO_HEARTBEAT", "").strip()
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    if not is_heartbeat(seconds):
        least = f"{LEAST_HEARTBEAT:g}"
        raise ValueError(f"OSTINATO_HEARTBEAT={text!r}: needed seconds, {least} or more.")
    return seconds


def _cache() -> Path | None:
    text = os.environ.get("OSTINATO_CACHE", "").strip()
    if text.lower() in ("off", "0", "none"):
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ostinato"
    try:
        return (Path(text) if text else base).expanduser()
    except RuntimeError:  # who runs this has no home
        return None


def _word(name: str, *words: str) -> str:
    """One of a few words; the first is the default."""
    text = os.environ.get(name, "").strip() or words[0]
    if text not in words:
        raise ValueError(f"{name}={text!r}: needed {' or '.join(dict.fromkeys(words))}.")
    return text


debug: int = _number("OSTINATO_DEBUG", 0, 0, 4)
dump: str = os.environ.get("OSTINATO_DUMP", "").strip()
cache: Path | None = _cache()
cache_bytes: int = _number("OSTINATO_CACHE_MB", 256, 0, 1 << 20) * 2**20
machine: str = _word("OSTINATO_MACHINE", "here", "nominal", "prompt")
math: str = _word("OSTINATO_MATH", "own", "libm")
check_nan: bool = bool(_number("OSTINATO_CHECK_NAN", 0, 0, 1))
check_stale: int = _number("OSTINATO_CHECK_STALE", 0, 0, 1 << 30)
tune: str = _word("OSTINATO_TUNE", "on" if cache is not None else "read", "on", "read", "off")
tune_seconds: int = _number("OSTINATO_TUNE_SECONDS", 2, 0, 1 << 20)
tune_again: bool = False  # what was timed before, too
progress: str = _word("OSTINATO_PROGRESS", "auto", "off")
traceback: str = _word("OSTINATO_TRACEBACK", "short", "full")
mpi: str = _word("OSTINATO_MPI", "auto", "device", "host")
onednn: str = os.environ.get("OSTINATO_ONEDNN", "").strip()
device: str = os.environ.get("OSTINATO_DEVICE", "").strip() or "cpu"
heartbeat: float = _heartbeat(8.0)
