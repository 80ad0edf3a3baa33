"""Squares of elements that kernels in stages transpose: rows in memory become lanes in cache, or lanes rows.

A kernel with many operands has dozens of them, and a square is a hundred instructions. So each kind is one
function, which is compiled once for all kernels."""

from __future__ import annotations

import re
from typing import NamedTuple

from ostinato.ops.cpu.jit.code import symbol
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import linked
from ostinato.ops.cpu.limits import LIMITS

BYTES = LIMITS.line  # of a row of a square
# The first row, and bytes from row to row, of what is read and of what is written; the last row that is
# there; how many elements of rows are wanted; bytes from a row to one that is read later, of every so
# many rows one.
CALLED = "ptr, i64, ptr, i64, i64, i64, i64, i64"
_NAMED = (
    "ptr %from, i64 %from_step, ptr %to, i64 %to_step, i64 %last, i64 %width, i64 %ahead, i64 %each"
)
_NAME = re.compile(r"declare void @square_(rows|lanes)_(4|8|16)_(\d+|part)\(")


class Square(NamedTuple):
    """One kind."""

    source: str  # rows, which become lanes, or lanes
    item: int  # bytes of an element
    wanted: str  # how many elements of rows, or part: as many as is said

    @property
    def name(self) -> str:
        return f"@square_{self.source}_{self.item}_{self.wanted}"

    @property
    def declared(self) -> str:
        return f"declare void {self.name}({CALLED})"


def link_squares(code: str) -> None:
    """Make the kinds known that a text calls."""
    for source, item, wanted in _NAME.findall(code):
        square = Square(source, int(item), wanted)
        symbol(square.name.removeprefix("@"), linked(_text(square)))


def _text(square: Square) -> str:
    """The module of a kind."""
    code, many, parts = Code(), BYTES // square.item, max(1, square.item // 8)
    vector = f"<{many * parts} x i{8 * square.item // parts}>"
    align, rows = square.item // parts, square.source == "rows"
    part, width = square.wanted == "part", "%width" if square.wanted == "part" else square.wanted
    mask = ""
    if part:
        mask = code.inside(code.times(width, str(parts)), many * parts)
    elif int(width) < many:
        flags = ", ".join(f"i1 {int(k < int(width) * parts)}" for k in range(many * parts))
        mask = f"<{many * parts} x i1> <{flags}>"
    if rows:
        # what is read later, while this is at work
        with code.loop("0", str(many), "%each") as later:
            at = code.sum(code.times(code.least(later, "%last"), "%from_step"), "%ahead")
            code.fetch(code.let(f"getelementptr i8, ptr %from, i64 {at}", "a"))
    last = "%last" if rows else code.sum(width, "-1")
    found = []
    for k in range(many):
        row = code.least(str(k), last)
        step = code.times(row, "%from_step")
        at = code.let(f"getelementptr i8, ptr %from, i64 {step}", "a")
        if rows and mask:
            found.append(code.masked_load(at, vector, mask))
        else:
            found.append(code.let(f"load {vector}, ptr {at}, align {align if rows else BYTES}"))
    for k, made in enumerate(code.turned(found, vector, parts)):
        at = code.let(f"getelementptr i8, ptr %to, i64 {code.times(str(k), '%to_step')}", "a")
        if rows and not part:
            if k < int(width):
                code.add(f"store {vector} {made}, ptr {at}, align {BYTES}")
            continue
        with code.when(
            code.let(f"icmp slt i64 {k}, %width" if rows else f"icmp sle i64 {k}, %last")
        ):
            if mask and not rows:
                code.masked_store(made, at, vector, mask)
            else:
                code.add(f"store {vector} {made}, ptr {at}, align {BYTES if rows else align}")
    head = [f"define void @run({_NAMED}) {{", "entry:", *code.entry, "  br label %start", "start:"]
    return "\n".join([*sorted(code.lines.declared), *head, *code.lines.text, "  ret void", "}"])
