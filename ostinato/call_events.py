"""How a trace hears of calls: by `sys.monitoring`, or a profiling function where Python is older."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from ostinato.ops.core.locks import make_lock

from .code_facts import is_library_code
from .hearing import here as _local
from .reach import Reach


@contextlib.contextmanager
def reaching(reach: Reach, frame: types.FrameType) -> Iterator[None]:
    """Within it, all that this frame calls is looked at."""
    outer = getattr(_local, "reach", None)
    _local.reach, reach.base = reach, id(frame)
    try:
        with _heard(reach):
            yield
    finally:
        _local.reach = outer


if sys.version_info >= (3, 12):
    _tool: list[int] = []  # of `sys.monitoring`, while anybody traces
    _tracing = 0
    _lock = make_lock()

    def _begins(code: types.CodeType, offset: int) -> Any:
        reach = getattr(_local, "reach", None)
        if code is _entering:
            if reach is not None:
                reach.enters(sys._getframe(1))
        elif is_library_code(code, sys._getframe(1)):
            return sys.monitoring.DISABLE
        elif reach is not None:
            reach.called(code, sys._getframe(1))
        return None

    def _ends(code: types.CodeType, offset: int, value: object) -> Any:
        reach = getattr(_local, "reach", None)
        if code is _entering or is_library_code(code, sys._getframe(1)):
            return sys.monitoring.DISABLE
        if reach is not None:
            reach.returned(sys._getframe(1))
        return None

    @contextlib.contextmanager
    def _heard(reach: Reach) -> Iterator[None]:
        global _tracing
        monitoring = sys.monitoring
        events = monitoring.events
        with _lock:
            if not _tracing:
                tool = next(n for n in (4, 3, 5, 1, 2, 0) if monitoring.get_tool(n) is None)
                monitoring.use_tool_id(tool, "ostinato")
                monitoring.register_callback(tool, events.PY_START, _begins)
                monitoring.register_callback(tool, events.PY_RETURN, _ends)
                monitoring.set_events(tool, events.PY_START | events.PY_RETURN)
                _tool[:] = [tool]
            _tracing += 1
        try:
            yield
        finally:
            with _lock:
                _tracing -= 1
                if not _tracing:
                    monitoring.set_events(_tool[0], 0)
                    monitoring.free_tool_id(_tool[0])

else:

    @contextlib.contextmanager
    def _heard(reach: Reach) -> Iterator[None]:
        known: dict[int, types.CodeType | None] = {}  # by id, as codes are hashed anew each time

        def hear(frame: types.FrameType, event: str, arg: Any) -> None:
            if getattr(_local, "reach", None) is None:
                return
            if event == "call":
                code = frame.f_code
                if id(code) not in known:
                    known[id(code)] = None if is_library_code(code, frame) else code
                if known[id(code)] is not None:
                    reach.called(code, frame)
                elif code is _entering:
                    reach.enters(frame)
            elif event == "return" and known.get(id(frame.f_code)) is not None:
                reach.returned(frame)

        hear.of_trace = True  # type: ignore[attr-defined]
        before = sys.getprofile()
        sys.setprofile(hear)
        try:
            yield
        finally:
            restore = getattr(before, "enable", None)  # cProfile's
            if restore is not None:
                sys.setprofile(None)
                restore()
            else:
                sys.setprofile(before)


_entering: types.CodeType | None = None  # the code of a compiled function's call


def watch_calls_of(function: Any) -> None:
    """Tell which code a call of a compiled function enters."""
    global _entering
    _entering = function.__code__
