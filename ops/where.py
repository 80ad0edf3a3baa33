"""Whose line is it? Finds the user's own file and line under the library's frames, and makes errors
that name it.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from types import CodeType

from ostinato.errors import OstinatoError

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ROOMS = tuple(
    os.path.join(_HERE, room) + os.sep
    for room in ("ops", "planner", "runtime", "ostinato", "io_pipeline")
)
_GENERATED = ("<plan ", "<ostinato", "<frozen ")
_ours: dict[CodeType, bool] = {}


def is_ours(code: CodeType) -> bool:
    """Whether this code belongs to the library."""
    found = _ours.get(code)
    if found is None:
        name = code.co_filename
        found = _ours[code] = name.startswith(_ROOMS) or name.startswith(_GENERATED)
    return found


def user_line() -> str:
    """`file.py:12` of the innermost frame that is not the library's own; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def short(line: str) -> str:
    """A line as people read it: relative to where they are, if that is shorter."""
    path, _, number = line.rpartition(":")
    return f"{_relative(path, os.getcwd())}:{number}" if path else line


@lru_cache(1024)
def _relative(path: str, here: str) -> str:
    try:
        return min(os.path.relpath(path, here), path, key=len)
    except ValueError:  # another drive
        return path


def misfit(
    kind: type[OstinatoError], what: str, *, got: str = "", needed: str = "", do: str = ""
) -> OstinatoError:
    """An error at the user's own line."""
    return kind.because(what, got=got, needed=needed, do=do, line=short(user_line()))
