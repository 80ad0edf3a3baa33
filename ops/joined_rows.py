"""What is put around an array, or in place of some of its rows, as rows that are joined: so can be told by
rows, block after block, what is large."""

from __future__ import annotations

from typing import Any

from .core.spec import Shape
from .expressions import Expression


def padded(x: Expression, *, widths: tuple[tuple[int, int], ...], value: Any) -> Expression:
    """An array with a number put around it."""

    def ring(axis: int, count: int) -> list[Expression]:
        shape = *x.shape[:axis], count, *x.shape[axis + 1 :]
        about = {"shape": shape, "value": value, "dtype": x.dtype}
        made = x.builder.call("full", **about, line=x.line) if count else -1
        return [Expression(x.builder, made, x.line)] if count else []

    for axis, counts in enumerate(widths):
        before, after = [ring(axis, count) for count in counts]
        parts = [*before, x, *after]
        x = parts[0].call("concat", *parts[1:], axis=axis) if len(parts) > 1 else x
    return x


def updated(
    x: Expression, v: Expression, *, starts: Shape, steps: Shape, mode: str
) -> Expression | None:
    """An array with others in place of some of its elements: the rows before them, what is made of those
    between, and the rows after them; None where no rows stay as they are, or every other one."""
    if not x.shape or (steps[0] != 1 and v.shape[0] > 1) or v.shape[0] in (0, x.shape[0]):
        return None
    start, end, rest = starts[0], starts[0] + v.shape[0], [(0, n, 1) for n in x.shape[1:]]
    here = x.slice([(start, end - start, 1), *rest])
    if mode != "set" or v.shape[1:] != x.shape[1:]:
        params = {"starts": (0, *starts[1:]), "steps": (1, *steps[1:]), "mode": mode}
        v = here.call("update_slice", v, **params)
    ends = (0, start), (end, x.shape[0])
    before, after = [[x.slice([(lo, hi - lo, 1), *rest])] * (hi > lo) for lo, hi in ends]
    parts = [*before, v, *after]
    return parts[0].call("concat", *parts[1:], axis=0)
