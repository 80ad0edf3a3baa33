"""Machine code for images in another size (resizing.py): each row goes to the new width, rounded to whole
numbers, then all columns go to the new height, band by band of the result.

Rows go to the new width in groups, whose pixels are put side by side, 16 numbers for each place in a row: so a
weight is that of a whole vector, whatever its place."""

from __future__ import annotations

import ctypes
from typing import Any

from ostinato.ops.core.spec import float64, int32, int64
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.jit.values import Value, cast, where

BITS = 22  # of a weight
CHANNELS = (1, 3, 4)  # of which there is machine code
GROUP = 16  # numbers of a place in a group of rows
BLOCK = 32  # numbers of a row that are made together
BAND = 64  # rows of the result for which rows of the new width are kept
_TYPES = (
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 3,
    ctypes.c_void_p,
    *[ctypes.c_ssize_t] * 2,
    ctypes.c_void_p,
)


def notes_bytes(channels: int, height: Any, width: Any, rows: Any, columns: Any) -> Any:
    """Memory that the function notes places, weights (at most 2 * old + 3 * new of an axis) and rows in."""
    axes = (height + width) * 8 + (rows + columns) * 28
    band = (height // rows + 1) * (BAND + 2) + GROUP
    return axes + (width + 1) * GROUP + band * (columns * channels + BLOCK)


@once
def function(channels: int, smooth: bool) -> Any:
    return llvm.linked(text(channels, smooth)).function(None, *_TYPES)


def text(channels: int, smooth: bool) -> str:
    """`run`: image, bytes of a row, height, width; result, its height and width; notes. smooth: a pixel is
    mixed of all those that it covers."""
    parts = [_axis(smooth), _across(channels), _down(), _run(channels, smooth)]
    declared = set().union(*(code.lines.declared for _, code in parts))
    made = [
        "\n".join([f"define {head} nounwind {{\nentry:", *code.entry, *code.lines.text])
        + "\n  ret void\n}"
        for head, code in parts
    ]
    return "\n".join([*sorted(declared), *made])


def _axis(smooth: bool) -> tuple[str, Code]:
    """Of each of the new pixels of an axis the first old one, how many there are, and their weights."""
    code = Code()
    old, new = (cast(Value(code.lines, f"%{n}", int64), float64) for n in ("old", "new"))
    scale = old / new
    reach = where(scale < 1.0, 1.0, scale) if smooth else scale.like(1.0)
    nearness = reach.like(1.0) / reach
    with code.loop("0", "%new") as k:
        middle = (cast(Value(code.lines, k, int64), float64) + 0.5) * scale
        ends = middle - reach + 0.5, middle + reach + 0.5
        first, end = (code.lines.convert("fptosi", v, int64) for v in ends)
        first = where(first < 0, 0, first)
        last = Value(code.lines, "%old", int64)
        end = where(end > last, last, end)
        many = end - first
        for n, value in enumerate((first, many)):
            code.add(f"store i64 {value.name}, ptr {_at(code, 'i64', '%places', k, 2, n)}")

        def weight(t: str) -> Value:
            away = cast(first + Value(code.lines, t, int64), float64) - middle + 0.5
            found = 1.0 - abs(away * nearness)
            return where(found > 0.0, found, 0.0)

        total = code.cell(float64)
        code.put(total, scale.like(0.0))
        with code.loop("0", many.name) as t:
            code.put(total, code.get(total, float64) + weight(t))
        with code.loop("0", many.name) as t:
            part = weight(t) / code.get(total, float64) * float(1 << BITS) + 0.5
            whole = code.lines.convert("fptosi", part, int32)
            code.add(f"store i32 {whole.name}, ptr {_weight(code, k, t)}")
    return (
        "internal void @axis(i64 %old, i64 %new, i64 %most, ptr noalias %places, ptr noalias %weights)",
        code,
    )


def _at(code: Code, kind: str, base: str, k: str, step: int | str = 1, more: int | str = 0) -> str:
    place = code.sum(code.times(k, str(step)), str(more))
    return code.let(f"getelementptr {kind}, ptr {base}, i64 {place}")


def _weight(code: Code, k: str, t: str) -> str:
    return _at(code, "i32", "%weights", k, "%most", t)


def _mixed(code: Code, k: str, x: str, step: str, lanes: int) -> str:
    """The bytes of the k-th of the new pixels, of what lies at `x` and goes on by a step: so many lanes."""
    wide, bytes_ = f"<{lanes} x i32>", f"<{lanes} x i8>"
    first, many = (
        code.let(f"load i64, ptr {_at(code, 'i64', '%places', k, 2, n)}") for n in (0, 1)
    )
    total = code.name("total")
    code.entry.append(f"  {total} = alloca {wide}")
    code.add(f"store {wide} splat (i32 {1 << (BITS - 1)}), ptr {total}")
    with code.loop("0", many) as t:
        weight = code.let(f"load i32, ptr {_weight(code, k, t)}")
        one = code.let(f"insertelement {wide} poison, i32 {weight}, i32 0")
        all_ = code.let(
            f"shufflevector {wide} {one}, {wide} poison, <{lanes} x i32> zeroinitializer"
        )
        there = _at(code, "i8", x, code.sum(first, t), step)
        values = code.let(
            f"zext {bytes_} {code.let(f'load {bytes_}, ptr {there}, align 1')} to {wide}"
        )
        had = code.let(f"load {wide}, ptr {total}")
        more = code.let(f"mul nuw {wide} {values}, {all_}")
        code.add(f"store {wide} {code.let(f'add nuw {wide} {had}, {more}')}, ptr {total}")
    down = code.let(f"lshr {wide} {code.let(f'load {wide}, ptr {total}')}, splat (i32 {BITS})")
    return code.let(f"trunc {wide} {down} to {bytes_}")


def _across(channels: int) -> tuple[str, Code]:
    code, slot = Code(), 1 if channels == 1 else 4
    many, pixel = GROUP // slot, f"i{8 * slot}"
    final, last = code.let("sub i64 %width, 1"), code.let("sub i64 %height, 1")
    with code.loop("0", "%height", many) as r:
        rows = [
            _at(code, "i8", "%x", code.least(code.sum(r, str(j)), last), "%stride")
            for j in range(many)
        ]
        with code.loop("0", final) as k:
            for j, row in enumerate(rows):
                value = code.let(f"load {pixel}, ptr {_at(code, 'i8', row, k, channels)}, align 1")
                code.add(
                    f"store {pixel} {value}, ptr {_at(code, 'i8', '%group', k, GROUP, j * slot)}"
                )
        for j, row in enumerate(rows):  # behind which there may be no fourth number
            for c in range(channels):
                value = code.let(f"load i8, ptr {_at(code, 'i8', row, final, channels, c)}")
                code.add(
                    f"store i8 {value}, ptr {_at(code, 'i8', '%group', final, GROUP, j * slot + c)}"
                )
        with code.loop("0", "%columns") as k:
            made = _mixed(code, k, "%group", str(GROUP), GROUP)
            parts = code.let(f"bitcast <{GROUP} x i8> {made} to <{many} x {pixel}>")
            for j in range(many):
                part = code.let(f"extractelement <{many} x {pixel}> {parts}, i32 {j}")
                row = _at(code, "i8", "%found", code.sum(r, str(j)), "%line")
                code.add(f"store {pixel} {part}, ptr {_at(code, 'i8', row, k, channels)}, align 1")
    return (
        "internal void @across(ptr noalias %x, i64 %stride, i64 %height, i64 %width, i64 %columns, i64 %most, "
        "ptr noalias %places, ptr noalias %weights, ptr noalias %group, ptr noalias %found, i64 %line)",
        code,
    )


def _down() -> tuple[str, Code]:
    code = Code()
    rest = code.let(f"and i64 %count, {BLOCK - 1}")
    whole = code.let(f"sub i64 %count, {rest}")
    vector = f"<{BLOCK} x i8>"
    with code.loop("%begin", "%end") as r:
        row = _at(code, "i8", "%out", r, "%count")

        def block(k: str, row: str = row, r: str = r) -> tuple[str, str]:
            x, to = (code.let(f"getelementptr i8, ptr {p}, i64 {k}") for p in ("%x", row))
            return _mixed(code, r, x, "%line", BLOCK), to

        with code.loop("0", whole, BLOCK) as k:
            made, to = block(k)
            code.add(f"store {vector} {made}, ptr {to}, align 1")
        with code.when(code.let(f"icmp ne i64 {rest}, 0")):
            made, to = block(whole)
            code.masked_store(made, to, vector, code.inside(rest, BLOCK))
    return (
        "internal void @down(ptr noalias %x, i64 %line, i64 %begin, i64 %end, i64 %count, i64 %most, "
        "ptr noalias %places, ptr noalias %weights, ptr noalias %out)",
        code,
    )


def _run(channels: int, smooth: bool) -> tuple[str, Code]:
    code = Code()
    free = "%notes"

    def take(count: str, size: int) -> str:
        nonlocal free
        found, free = free, _at(code, "i8", free, count, size)
        return found

    axes, seats = [], [take("%columns", 16), take("%rows", 16)]
    for places, old, new in zip(seats, ("%width", "%height"), ("%columns", "%rows"), strict=True):
        most = "3"
        if smooth:  # two for each of those that it covers, and one more
            up = code.sum(old, new, "-1")
            most = code.sum(code.times(code.let(f"sdiv i64 {up}, {new}"), "2"), "1")
        weights = take(code.times(new, most), 4)
        code.add(f"call void @axis(i64 {old}, i64 {new}, i64 {most}, ptr {places}, ptr {weights})")
        axes.append(f"i64 {most}, ptr {places}, ptr {weights}")
    count = code.times("%columns", str(channels))
    line = code.sum(count, str(BLOCK))
    group = take(code.sum("%width", "1"), GROUP)
    with code.loop("0", "%rows", BAND) as r:
        end = code.least(code.sum(r, str(BAND)), "%rows")
        final = code.sum(end, "-1")
        first, last, more = (
            code.let(f"load i64, ptr {_at(code, 'i64', seats[1], k, 2, n)}")
            for k, n in ((r, 0), (final, 0), (final, 1))
        )
        high = code.let(f"sub i64 {code.sum(last, more)}, {first}")
        x = _at(code, "i8", "%x", first, "%stride")
        code.add(
            f"call void @across(ptr {x}, i64 %stride, i64 {high}, i64 %width, i64 %columns, {axes[0]}, "
            f"ptr {group}, ptr {free}, i64 {line})"
        )
        zero = _at(code, "i8", free, code.let(f"sub i64 0, {first}"), line)
        code.add(
            f"call void @down(ptr {zero}, i64 {line}, i64 {r}, i64 {end}, i64 {count}, {axes[1]}, ptr %out)"
        )
    return (
        "void @run(ptr noalias %x, i64 %stride, i64 %height, i64 %width, ptr noalias %out, i64 %rows, "
        "i64 %columns, ptr noalias %notes)",
        code,
    )
