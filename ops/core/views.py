"""What NumPy would have made a view. Here it is a value of its own, so an assignment to it does not reach
what it was taken from; who writes one is told so, once at each line.

    row = x[0]; row += 1            told: x stays as it is
    x[0][2] = 1                     told
    x[0] += 1                       not: Python assigns the sum to x[0]
    row = x[0].copy(); row += 1     not"""

from __future__ import annotations

import dis
import warnings
from functools import lru_cache
from types import CodeType, FrameType, NoneType
from typing import Any

import numpy as np

from ostinato.errors import AssignmentWarning

from .spec import Spec
from .user_line import is_ours, short

_BASIC = (int, slice, NoneType, type(Ellipsis), np.integer)
_PRINTS = ("PRINT_EXPR", "CALL_INTRINSIC_1")  # the latter since Python 3.12; it does little else
_TO_NAMES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


def takes_view(key: Any) -> bool:
    """Whether NumPy gives a view for it."""
    keys = key if isinstance(key, tuple) else (key,)
    return all(isinstance(k, _BASIC) and not isinstance(k, bool) for k in keys)


def tell(what: str, spec: Spec, base: Spec, frame: FrameType, to_name: bool) -> None:
    """Warn of an assignment in this frame, if it is of the user's own code; with `to_name`, if its result
    goes to a name, and not back to where it was taken from."""
    code = frame.f_code
    if is_ours(code) or "-packages" in code.co_filename:
        return
    if to_name and not _next(code, frame.f_lasti).startswith(_TO_NAMES):
        return
    line = f"{code.co_filename}:{frame.f_lineno}"
    warnings.warn_explicit(
        f"{what} ({short(line)}): got {spec.bare} that was taken from {base.bare} by indexing, which "
        "stays as it is, unlike NumPy's; assign to that one, as in x[0] += 1, or take a copy, as in "
        "x[0].copy().",
        AssignmentWarning,
        code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def is_dropped(frame: FrameType) -> bool:
    """Whether the user's call in this frame is a statement, whose result nobody takes."""
    return not is_ours(frame.f_code) and _next(frame.f_code, frame.f_lasti) == "POP_TOP"


def is_shown(frame: FrameType) -> bool:
    """Whether it is one at a prompt, or the last one of a notebook's cell, whose result is printed."""
    return not is_ours(frame.f_code) and _next(frame.f_code, frame.f_lasti) in _PRINTS


@lru_cache(256)
def _next(code: CodeType, at: int) -> str:
    """The instruction that takes what this one made."""
    for step in dis.get_instructions(code):
        if step.offset > at and step.opname not in ("CACHE", "EXTENDED_ARG"):
            return step.opname
    return ""
