"""Counts of whole numbers, and sums and extremes of the numbers of groups, by machine code and
tables.

One long line is counted in blocks, which threads share: each of them has tables of its own,
several, so that equal neighbours need not wait for each other. Counts are whole numbers, so no
number of threads changes them. Sums are made in parts that depend on the line's length only,
each with tables of its own, which are added in the order of the parts: so nothing changes their
bits, either."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.monoid import identity
from ostinato.ops.core.spec import DType, int64, is_integer
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.lines import llvm_type
from ostinato.ops.cpu.jit.llvm import function_of, why_not
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.values import KINDS, Value, where

GRAIN = LIMITS.places_wake
BLOCK = 1 << 12  # elements of a turn
SIDES = 4  # tables that one thread takes in turn
MAX_THREAD_BINS = 1 << 16  # numbers up to which threads have tables of their own
_FACTS = ("turns", "threads", "n", "count", "tables", "own")
_OF_LINES = (*_FACTS[:4], "lines", "group")


class TallyKey(NamedTuple):
    """What a text depends on."""

    dtype: DType
    alone: bool  # whether a turn is lines, and counted where its result is
    across: bool = False  # whether the lines lie beside each other, element by element


def counting_kernel(x: Any, out: Any, axes: tuple[int, ...], threads: int) -> Any:
    """The function of whole numbers and counts that lie so; None if NumPy does it."""
    left = x.ndim - len(axes)
    count = out.shape[-1]
    across = left > 0 and axes == tuple(range(len(axes)))
    behind = axes == tuple(range(left, x.ndim))
    plain = x.flags.c_contiguous and out.flags.c_contiguous and (across or behind)
    if why_not() or not plain or not x.size or not count or not is_integer(x.dtype):
        return None
    lines = math.prod(out.shape[:-1])
    n = x.size // lines
    if lines == 1 and count <= MAX_THREAD_BINS:
        worth = max(1, min(threads, n // GRAIN))
        own = 8 * (SIDES * (count + 1) + 8)
        tables = np.zeros(worth * own // 8, np.int64)
        facts = [-(-n // BLOCK), worth if n > GRAIN else 0, n, count, tables.ctypes.data, own]
        return function_of(_text(TallyKey(x.dtype, False)), np.array(facts, np.int64), tables)
    group = 16 if across else 1
    turns = -(-lines // group)
    facts = [turns, min(threads, turns, x.size // GRAIN), n, count, lines, group]
    return function_of(_text(TallyKey(x.dtype, True, across)), np.array(facts, np.int64))


@lru_cache(16)
def _text(form: TallyKey) -> str:
    code = Code()
    for k, name in enumerate(_OF_LINES if form.alone else _FACTS):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    code.add("%x = call ptr @array(ptr %data, i64 0)")
    if form.alone:
        _lines(code, form)
        finish = "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}"
    else:
        _blocks(code, form)
        finish = _summed(code)
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    body = "\n".join([head, "entry:", *code.entry, *code.lines.text, "  ret void", "}"])
    return "\n".join([TABLES, *sorted(code.lines.declared), body, finish, around(2)])


def _number(code: Code, form: TallyKey, at: str) -> str:
    kind = llvm_type(form.dtype)
    place = code.let(f"getelementptr {kind}, ptr %x, i64 {at}")
    found = code.let(f"load {kind}, ptr {place}, align {form.dtype.itemsize}")
    if kind == "i64":
        return found
    return code.let(f"{'s' if form.dtype.kind == 'i' else 'z'}ext {kind} {found} to i64")


def _count(code: Code, number: str, table: str) -> None:
    """Count a number; those outside, taken without their sign, behind the others."""
    inside = code.let(f"icmp ult i64 {number}, %count")
    place = code.let(f"select i1 {inside}, i64 {number}, i64 %count")
    at = code.let(f"getelementptr i64, ptr {table}, i64 {place}")
    code.add(f"store i64 {code.sum(code.let(f'load i64, ptr {at}'), '1')}, ptr {at}")


def _blocks(code: Code, form: TallyKey) -> None:
    mine = code.sum("%tables", code.times("%thread", "%own"))
    base = code.let(f"inttoptr i64 {mine} to ptr")
    wide = code.sum("%count", "1")
    sides = [
        code.let(f"getelementptr i64, ptr {base}, i64 {code.times(wide, str(k))}")
        for k in range(SIDES)
    ]
    begin = code.times("%lo", str(BLOCK))
    end = code.least(code.times("%hi", str(BLOCK)), "%n")
    whole = code.let(f"sub i64 {end}, {SIDES - 1}")
    with code.loop(begin, whole, SIDES) as i:
        numbers = [_number(code, form, code.sum(i, str(k))) for k in range(SIDES)]
        for number, table in zip(numbers, sides, strict=True):
            _count(code, number, table)
    many = code.let(f"sub i64 {end}, {begin}")
    rest = code.let(f"and i64 {many}, {SIDES - 1}")
    with code.loop(code.let(f"sub i64 {end}, {rest}"), end) as i:
        _count(code, _number(code, form, i), sides[0])


def _summed(body: Code) -> str:
    """All tables together, which are left empty for the next time."""
    code = Code()
    for k, name in enumerate(_FACTS):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    code.add("%out = call ptr @array(ptr %data, i64 1)")
    code.clear("%out", code.times("%count", "8"))
    wide = code.sum("%count", "1")
    least = code.let("icmp slt i64 %threads, 1")
    threads = code.let(f"select i1 {least}, i64 1, i64 %threads")
    with code.loop("0", threads) as t:
        mine = code.sum("%tables", code.times(t, "%own"))
        base = code.let(f"inttoptr i64 {mine} to ptr")
        with code.loop("0", str(SIDES)) as side:
            table = code.let(f"getelementptr i64, ptr {base}, i64 {code.times(wide, side)}")
            with code.loop("0", "%count") as place:
                at, to = (
                    code.let(f"getelementptr i64, ptr {p}, i64 {place}") for p in (table, "%out")
                )
                had, more = (code.let(f"load i64, ptr {p}") for p in (to, at))
                code.add(f"store i64 {code.sum(had, more)}, ptr {to}")
        code.clear(base, "%own")
    body.lines.declared |= code.lines.declared
    head = "define internal void @finish(ptr %data, ptr %meta) {\nentry:"
    return "\n".join([head, *code.entry, *code.lines.text, "  ret void", "}"])


def _lines(code: Code, form: TallyKey) -> None:
    """Lines where their results are; what is outside goes to a place beside."""
    aside = code.cell(int64)
    code.add("%out = call ptr @array(ptr %data, i64 1)")

    def count(line: str, i: str) -> None:
        at = (
            code.sum(code.times(i, "%lines"), line)
            if form.across
            else code.sum(code.times(line, "%n"), i)
        )
        number = _number(code, form, at)
        inside = code.let(f"icmp ult i64 {number}, %count")
        place = code.sum(code.times(line, "%count"), number)
        there = code.let(f"getelementptr i64, ptr %out, i64 {place}")
        at = code.let(f"select i1 {inside}, ptr {there}, ptr {aside}")
        code.add(f"store i64 {code.sum(code.let(f'load i64, ptr {at}'), '1')}, ptr {at}")

    with code.loop("%lo", "%hi") as turn:
        first = code.times(turn, "%group")
        end = code.least(code.sum(first, "%group"), "%lines")
        table = code.let(f"getelementptr i64, ptr %out, i64 {code.times(first, '%count')}")
        code.clear(
            table, code.times(code.times(code.let(f"sub i64 {end}, {first}"), "%count"), "8")
        )
        if form.across:
            with code.loop("0", "%n") as i, code.loop(first, end) as line:
                count(line, i)
        else:
            with code.loop(first, end) as line, code.loop("0", "%n") as i:
                count(line, i)


# -- groups ------------------------------------------------------------------------------------
PARTS = 8  # of a line
_FOLDED = ("turns", "threads", "n", "count", "tables", "own")


class Fold(NamedTuple):
    """What a text depends on."""

    monoid: str
    value: DType
    places: DType


def folding_kernel(monoid: str, x: Any, ids: Any, out: Any, threads: int) -> Any:
    """The function of numbers, their groups, and what groups come to; None if there are rows, or
    too many groups for tables."""
    plain = all(a.ndim == 1 and a.flags.c_contiguous and a.size for a in (x, ids, out))
    known = x.dtype in KINDS.values() and x.dtype == out.dtype and x.dtype.kind in "iuf"
    if why_not() or not plain or not known or not is_integer(ids.dtype):
        return None
    n, count = len(x), len(out)
    if count > MAX_THREAD_BINS or n < 2 * PARTS * count:
        return None
    own = -(-x.itemsize * SIDES * (count + 1) // 64) * 64
    tables = np.full(PARTS * own // x.itemsize, identity(monoid, x.dtype), x.dtype)
    worth = max(1, min(threads, PARTS, n // GRAIN)) if n > GRAIN else 0
    facts = [PARTS, worth, n, count, tables.ctypes.data, own]
    return function_of(_folded(Fold(monoid, x.dtype, ids.dtype)), np.array(facts, np.int64), tables)


@lru_cache(64)
def _folded(form: Fold) -> str:
    code = Code()
    for k, name in enumerate(_FOLDED):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    code.add("%values = call ptr @array(ptr %data, i64 0)")
    code.add("%x = call ptr @array(ptr %data, i64 1)")
    wide, places = code.sum("%count", "1"), TallyKey(form.places, False)
    with code.loop("%lo", "%hi") as part:
        base = code.let(f"inttoptr i64 {code.sum('%tables', code.times(part, '%own'))} to ptr")
        sides = [_element(code, form, base, code.times(wide, str(k))) for k in range(SIDES)]
        begin, end = (
            code.let(f"udiv i64 {code.times(k, '%n')}, {PARTS}")
            for k in (part, code.sum(part, "1"))
        )
        whole = code.let(f"sub i64 {end}, {SIDES - 1}")
        with code.loop(begin, whole, SIDES) as i:
            at = [code.sum(i, str(k)) for k in range(SIDES)]
            numbers = [_number(code, places, k) for k in at]
            values = [_loaded(code, form, _element(code, form, "%values", k)) for k in at]
            for number, value, table in zip(numbers, values, sides, strict=True):
                _join(code, form, number, value, table)
        rest = code.let(f"and i64 {code.let(f'sub i64 {end}, {begin}')}, {SIDES - 1}")
        with code.loop(code.let(f"sub i64 {end}, {rest}"), end) as i:
            value = _loaded(code, form, _element(code, form, "%values", i))
            _join(code, form, _number(code, places, i), value, sides[0])
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    body = "\n".join([head, "entry:", *code.entry, *code.lines.text, "  ret void", "}"])
    finish = _together(code, form)
    return "\n".join([TABLES, *sorted(code.lines.declared), body, finish, around(3)])


def _element(code: Code, form: Fold, base: str, index: str) -> str:
    return code.let(f"getelementptr {llvm_type(form.value)}, ptr {base}, i64 {index}")


def _loaded(code: Code, form: Fold, at: str) -> Value:
    kind, size = llvm_type(form.value), form.value.itemsize
    return Value(code.lines, code.let(f"load {kind}, ptr {at}, align {size}"), form.value)


def _join(code: Code, form: Fold, number: str, value: Value, table: str) -> None:
    """Combine a value with its group's; those of no group go behind the others."""
    inside = code.let(f"icmp ult i64 {number}, %count")
    at = _element(code, form, table, code.let(f"select i1 {inside}, i64 {number}, i64 %count"))
    code.put(at, _joined(form, _loaded(code, form, at), value))


def _joined(form: Fold, old: Value, new: Value) -> Value:
    match form.monoid:
        case "sum":
            return old + new
        case "prod":
            return old * new
    stays = old < new if form.monoid == "min" else old > new
    if form.value.kind == "f":  # NaN stays
        stays = stays | (old != old)
    return where(stays, old, new)


def _together(body: Code, form: Fold) -> str:
    """All tables in their order; then they are as they were."""
    code = Code()
    for k, name in enumerate(_FOLDED):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    code.add("%out = call ptr @array(ptr %data, i64 2)")
    wide = code.sum("%count", "1")
    first = code.lines.constant(identity(form.monoid, form.value), form.value)
    with code.loop("0", "%count") as group:
        code.put(_element(code, form, "%out", group), first)
    with code.loop("0", str(PARTS)) as part:
        base = code.let(f"inttoptr i64 {code.sum('%tables', code.times(part, '%own'))} to ptr")
        with code.loop("0", str(SIDES)) as side:
            table = _element(code, form, base, code.times(wide, side))
            with code.loop("0", wide) as group:
                at = _element(code, form, table, group)
                with code.when(code.let(f"icmp slt i64 {group}, %count")):
                    to = _element(code, form, "%out", group)
                    code.put(to, _joined(form, _loaded(code, form, to), _loaded(code, form, at)))
                code.put(at, first)
    body.lines.declared |= code.lines.declared
    head = "define internal void @finish(ptr %data, ptr %meta) {\nentry:"
    return "\n".join([head, *code.entry, *code.lines.text, "  ret void", "}"])
