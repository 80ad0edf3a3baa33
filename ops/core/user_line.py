"""Whose line is it? Finds the user's own file and line under the library's frames, and makes errors
that name it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from ostinato.errors import OstinatoError

from .signals import beginner


def _folder(function: Callable[..., Any]) -> str:
    """Where code says that it comes from, which is what frames have."""
    return os.path.dirname(function.__code__.co_filename) + os.sep


_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_folder(_folder))))
_FOLDERS = (  # in a checkout the rooms lie beside the front door, installed they lie in it
    _folder(OstinatoError.because.__func__),  # type: ignore[attr-defined]
    *(os.path.join(_ROOT, room) + os.sep for room in ("ops", "planner", "runtime", "io_pipeline")),
)
_PYTHON = os.path.dirname(os.__file__) + os.sep  # copy, pickle and others that call us
_GENERATED = ("<plan ", "<ostinato", "<frozen ")
_ours: dict[str, bool] = {}  # by file, as the hash of a string is kept, and that of code is not


def is_ours(code: CodeType) -> bool:
    """Whether this code belongs to the library, or to Python's own."""
    name = code.co_filename
    found = _ours.get(name)
    if found is None:
        found = _ours[name] = name.startswith((*_FOLDERS, *_GENERATED)) or (
            name.startswith(_PYTHON) and "-packages" not in name
        )
    return found


def user_line() -> str:
    """`train.py:12` of the innermost frame that is not the library's own; empty if there is none."""
    frame = _outside(sys._getframe(1)) or _outside(beginner())
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _outside(frame: FrameType | None) -> FrameType | None:
    known = _ours.get
    while frame is not None and (
        known(name := frame.f_code.co_filename) or (name not in _ours and is_ours(frame.f_code))
    ):
        frame = frame.f_back
    return frame


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
