"""Warnings of traces that take longer than they need: loops of Python's whose iterations are recorded one
by one, thousands of operations that each take part of a millisecond to plan, where one iteration could be;
and values that are asked for while a function is traced (reading.py)."""

from __future__ import annotations

import ast
import linecache
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from ostinato.errors import TraceWarning
from ostinato.ops.core.array import Term
from ostinato.ops.core.user_line import short

MIN_UNROLLED = 4000  # operations of one line of the user's
_told: set[tuple[str, int]] = set()


def tell_of_loops(name: str, terms: Iterable[Term]) -> None:
    """Warn, once at each line, of a line that recorded so many operations of a function's trace."""
    count = Counter([t.line for t in terms])
    for line, n in count.most_common():
        if n < MIN_UNROLLED:
            break
        path, number = place_of(line)
        if loop := loop_around(path, number):  # else one of our functions may have made them
            where = short(f"{path}:{loop}")
            message = (
                f"{name} ({where}): got a loop whose iterations were recorded one by one, with "
                f"{n:,} operations in line {number} alone, each of which takes time to plan; write it "
                "with ost.repeat or ost.scan, which record one iteration"
            )
            tell(message, path, loop)


def tell(message: str, path: str, number: int) -> None:
    """A TraceWarning at a line, once."""
    if (path, number) not in _told:
        _told.add((path, number))
        warnings.warn_explicit(f"{message}.", TraceWarning, path, number)


def place_of(line: str) -> tuple[str, int]:
    """The file and the number of a line, as operations have it."""
    path, _, number = line.rpartition(":")
    return path, int(number.partition(" ")[0] or 0) if number else 0


@lru_cache(64)
def loop_around(path: str, number: int) -> int:
    """The line at which the innermost loop begins whose body has this one; 0 if none is known."""
    try:
        module = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return 0
    loops = [n for n in ast.walk(module) if isinstance(n, (ast.For, ast.While))]
    return max((n.lineno for n in loops if n.lineno <= number <= (n.end_lineno or 0)), default=0)
