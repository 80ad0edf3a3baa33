"""Searches in what is sorted as machine code, shared among threads.

Several values are looked for at the same time, without branches, so that a processor need neither guess
nor wait: while one value's next element comes from memory, the others' do, too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import DType, bool_, int64, uint8
from ostinato.ops.cpu.jit.emitter import Code, memory_type, places
from ostinato.ops.cpu.jit.lines import llvm_type
from ostinato.ops.cpu.jit.llvm import function_of, why_not
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.values import KINDS, Value

CHAINS = LIMITS.chains
WIDE = 20 * CHAINS  # values in a turn
QUICK, GRAIN = LIMITS.search_quick, LIMITS.search_wake


class SearchKey(NamedTuple):
    """What a text depends on."""

    dtype: DType
    right: bool
    straight: bool  # whether the table lies without steps


_FACTS = (
    *("turns", "threads", "n", "step", "steps", "inner", "across0", "across1"),
    *("wide", "groups", "dims"),
)


def searching_kernel(x: Any, v: Any, out: Any, right: bool, threads: int) -> Any:
    """The function of a table, values and their places, that lie so; None if NumPy does it."""
    dtype = uint8 if x.dtype == bool_ else x.dtype
    if why_not() or not x.size or not v.size or v.dtype != x.dtype or x.dtype.name not in KINDS:
        return None
    loops = loops_over(v.shape, [v.strides, out.strides])
    *outer, (inner, across, down) = zip(loops.extents, *loops.strides, strict=True)
    n, groups = len(x), -(-inner // WIDE)
    turns, steps = groups * math.prod(axis[0] for axis in outer), (n - 1).bit_length()
    work = v.size * (steps + 1)
    worth = 0 if work <= QUICK else max(1, min(threads, turns, work // GRAIN))
    facts = [turns, worth, n, x.strides[0], steps, inner, across, down]
    facts += [WIDE, groups, len(outer)]
    text = _text(SearchKey(dtype, right, x.strides[0] == dtype.itemsize))
    return function_of(text, np.array([*facts, *(n for axis in outer for n in axis)], np.int64))


@lru_cache(32)
def _text(form: SearchKey) -> str:
    code = Code()
    entry = [f"  %{name} = call i64 @fact(ptr %meta, i64 {k})" for k, name in enumerate(_FACTS)]
    entry.append(f"  %axes = getelementptr i64, ptr %meta, i64 {len(_FACTS)}")
    entry.append("  %x = call ptr @array(ptr %data, i64 0)")
    nan = _place_of_nan(code, form)
    with code.loop("%lo", "%hi") as t:
        which, g = (code.let(f"{op} i64 {t}, %groups") for op in ("udiv", "urem"))
        v, out = code.begins(which, (1, 2))
        first = code.times(g, "%wide")
        end = code.least(code.sum(first, "%wide"), "%inner")
        last = code.sum(end, "-1")
        with code.loop(first, end, step=CHAINS) as i:
            where = [code.least(code.sum(i, str(k)), last) for k in range(CHAINS)]
            values = [_load(code, _over(code, v, k, "%across0"), form.dtype) for k in where]
            found = _searched(code, form, values)
            for k, place, value in zip(where, found, values, strict=True):
                if form.dtype.kind == "f":
                    known = value == value
                    place = code.let(f"select i1 {known.name}, i64 {place}, i64 {nan}")
                code.add(f"store i64 {place}, ptr {_over(code, out, k, '%across1')}")
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    finish = "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}\n!9 = !{}"
    body = "\n".join([head, "entry:", *code.entry, *entry, *code.lines.text, "  ret void", "}"])
    return "\n".join([TABLES, places(2), *sorted(code.lines.declared), body, finish, around(3)])


def _over(code: Code, base: str, count: str, step: str) -> str:
    return code.let(f"getelementptr i8, ptr {base}, i64 {code.times(count, step)}")


def _load(code: Code, at: str, dtype: DType) -> Value:
    kind = memory_type(dtype)
    return Value(code.lines, code.let(f"load {kind}, ptr {at}, align {dtype.itemsize}"), dtype)


def _searched(code: Code, form: SearchKey, values: Sequence[Value | None]) -> list[str]:
    """How many elements of the table come before each value, or before its NaN."""
    cells = [code.cell(int64) for _ in values]
    left = code.cell(int64)
    for cell in cells:
        code.add(f"store i64 0, ptr {cell}")
    code.add(f"store i64 %n, ptr {left}")

    def go_on(cell: str, half: str, before: str, value: Value | None) -> None:
        """If that element is before the value, half of them are."""
        place = code.let(f"load i64, ptr {cell}")
        probe = code.sum(place, before)
        if form.straight:
            at = code.let(f"getelementptr {llvm_type(form.dtype)}, ptr %x, i64 {probe}")
        else:
            at = _over(code, "%x", probe, "%step")
        x = _load(code, at, form.dtype)
        is_before = x == x if value is None else x <= value if form.right else x < value
        on = code.sum(place, half)
        made = code.let(f"select i1 {is_before.name}, i64 {on}, i64 {place}, !unpredictable !9")
        code.add(f"store i64 {made}, ptr {cell}")

    with code.loop("0", "%steps"):
        many = code.let(f"load i64, ptr {left}")
        half = code.let(f"lshr i64 {many}, 1")
        before = code.sum(half, "-1")
        for cell, value in zip(cells, values, strict=True):
            go_on(cell, half, before, value)
        code.add(f"store i64 {code.let(f'sub i64 {many}, {half}')}, ptr {left}")
    for cell, value in zip(cells, values, strict=True):
        go_on(cell, "1", "0", value)
    return [code.let(f"load i64, ptr {cell}") for cell in cells]


def _place_of_nan(code: Code, form: SearchKey) -> str:
    """NaN comes last: before the others, or at the end."""
    if form.dtype.kind != "f" or form.right:
        return "%n"
    return _searched(code, form, [None])[0]
