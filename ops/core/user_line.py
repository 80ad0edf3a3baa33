"""Whose line is it? Finds the user's own file and line under the library's frames, and makes errors
that name it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
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
_BETWEEN = tuple(
    os.path.join(_PYTHON, name) for name in ("contextlib.py", "functools.py", "threading.py")
)
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


def is_library_code(code: CodeType) -> bool:
    """Whether this code belongs to the library, or only leads from one of its functions to another."""
    return is_ours(code) and code.co_filename.startswith((*_FOLDERS, *_GENERATED, *_BETWEEN))


class _Instead(threading.local):
    line = ""


_instead = _Instead()


@contextlib.contextmanager
def on_behalf(line: str) -> Iterator[None]:
    """Within it, operations are made for one of this line."""
    before, _instead.line = _instead.line, line
    try:
        yield
    finally:
        _instead.line = before


def user_line() -> str:
    """`train.py:12` of the innermost frame that is not the library's own; empty if there is none."""
    if _instead.line:
        return _instead.line
    frame = _outside(sys._getframe(1)) or _outside(beginner())
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _outside(frame: FrameType | None) -> FrameType | None:
    known = _ours.get
    while frame is not None and (
        known(name := frame.f_code.co_filename) or (name not in _ours and is_ours(frame.f_code))
    ):
        frame = frame.f_back
    return frame


def asked_by_library() -> tuple[str, str]:
    """The library in whose code the innermost frame is that is not ours, unless it is NumPy, and the
    line of the user who called it; empty if the frame is the user's own."""
    frame, name = _outside(sys._getframe(1)), ""
    while frame is not None and "-packages" + os.sep in frame.f_code.co_filename:
        name = name or str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = _outside(frame.f_back)
    if frame is None or not name:
        return "", ""
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return "" if name == "numpy" else name, line


def short(line: str) -> str:
    """A line as people read it: relative to where they are, if that is shorter."""
    path, _, number = line.rpartition(":")
    if not path:
        return line
    return f"{cell(path) or _relative(path, os.getcwd())}:{number}"


def cell(path: str) -> str:
    """Name the notebook's cell whose code has this name, such as In[3]; empty for other code."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(path)
    return f"In[{number}]" if number is not None else ""


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
