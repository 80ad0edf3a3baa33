"""Tracebacks as users read them: their own frames, and the one of ours that says what is wrong.

The layers of the library call each other ten deep. Where an error leaves them, what lies between the
user's frame and the one that raised it is cut out; OSTINATO_TRACEBACK=full keeps it. What is no error of
the user's, such as an assertion of ours, keeps its frames."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from ostinato import settings
from ostinato.errors import OstinatoError, SampleError

from .user_line import is_library_code

F = TypeVar("F", bound=Callable[..., Any])


def door(function: F) -> F:
    """A function that users call, and not so often that one more call would be felt: its errors are
    short."""

    @functools.wraps(function)
    def short(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return cast(F, short)


def shorten(error: BaseException) -> None:
    """Cut frames out of an error that is about to leave the library's layers, and out of its causes."""
    if settings.traceback == "full":
        return
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        _cut(error)
        if _tells_all(error) and _is_inner(error.__cause__):
            error.__cause__, error.__suppress_context__ = None, True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]


def _cut(error: BaseException) -> None:
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    if len(entries) < 2:
        return
    last = entries[-1]
    ours = is_library_code(last.tb_frame.f_code)
    if ours and not isinstance(error, (OstinatoError, Warning)):
        return
    kept = [e for e in entries[:-1] if not is_library_code(e.tb_frame.f_code)] + [last]
    for a, b in itertools.pairwise(kept):
        a.tb_next = b
    error.__traceback__ = kept[0]


def _tells_all(error: BaseException) -> bool:
    """Whether its message tells what its cause does; of samples, programs ask for the cause."""
    return isinstance(error, OstinatoError) and not isinstance(error, SampleError)


def _is_inner(cause: BaseException | None) -> bool:
    """Whether only code of the library's was there."""
    entry = cause.__traceback__ if cause is not None else None
    if entry is None:
        return False
    while entry is not None:
        if not is_library_code(entry.tb_frame.f_code):
            return False
        entry = entry.tb_next
    return True
