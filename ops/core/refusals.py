"""Refusals that a function heard while it was traced: of values and shapes that are not known yet.

Who catches one by its name means it, and what he does instead is traced. Any other who goes on has not
heard: code of libraries that tries something, or `except Exception`, whose results would be others than those
of the same function that is not compiled. Python does not tell which clause took an error, so it is read in the
source of the frame that the error ended in."""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from ostinato.errors import OstinatoError

from .array import Trace
from .user_line import is_ours


def end_refusals(trace: Trace) -> None:
    """Raise what was refused while a function was traced that has ended, unless that caught it by its name."""
    refused, trace.refused = trace.refused, []
    for error in refused:
        if not _was_named(error):
            raise error


def _was_named(error: BaseException) -> bool:
    """Whether the clause that took an error names one of ours."""
    place = error.__traceback__
    if place is None or is_ours(place.tb_frame.f_code):
        return False
    frame, line = place.tb_frame, place.tb_lineno
    for clauses in _around(frame, line):
        for clause in clauses:
            kinds = _classes(clause, frame)
            took = [k for k in kinds if isinstance(error, k)]
            if took:
                return any(issubclass(k, OstinatoError) for k in took)
    return False


def _around(frame: FrameType, line: int) -> Iterator[list[ast.expr | None]]:
    """The clauses of what stands around a line of a frame, from within: of `try`, and of `suppress`."""
    code = frame.f_code
    lines = linecache.getlines(code.co_filename, frame.f_globals)
    last = max((end for _, _, end in code.co_lines() if end is not None), default=line)
    found = []
    for node in ast.walk(_parsed("".join(lines))):
        if (
            not isinstance(node, (ast.Try, ast.With))
            or not code.co_firstlineno <= node.lineno <= last
        ):
            continue
        first, end = node.body[0].lineno, node.body[-1].end_lineno or 0
        if first <= line <= end:
            found.append((end - first, -first, node))
    for _, _, node in sorted(found, key=lambda f: f[:2]):
        if isinstance(node, ast.Try):
            yield [h.type for h in node.handlers]
        else:
            calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
            yield [a for c in calls if _value(c.func, frame) is contextlib.suppress for a in c.args]


@lru_cache(16)
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # another text than what runs
        return ast.Module([], [])


def _classes(clause: ast.expr | None, frame: FrameType) -> list[type[BaseException]]:
    value = BaseException if clause is None else _value(clause, frame)
    kinds = value if isinstance(value, tuple) else (value,)
    return [k for k in kinds if isinstance(k, type) and issubclass(k, BaseException)]


def _value(x: ast.expr, frame: FrameType) -> Any:
    """Evaluate names in a frame."""
    names = (ast.Name, ast.Attribute, ast.Tuple, ast.expr_context)
    if not all(isinstance(part, names) for part in ast.walk(x)):
        return None
    with contextlib.suppress(AttributeError, NameError):
        return eval(
            compile(ast.Expression(x), "<ostinato>", "eval"), frame.f_globals, frame.f_locals
        )
    return None
