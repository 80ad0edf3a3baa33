"""The places where a row of bools is True, in order, shared among threads.

First each block is counted, 64 elements at a time: a comparison makes bits of them. Then each block
writes its places, bit by bit, from where the blocks before it end, and its share of the zeros that
stand behind all places."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.registry import Piece
from ostinato.ops.core.spec import int64
from ostinato.ops.cpu.jit.emitter import Code
from ostinato.ops.cpu.jit.llvm import function_of, why_not
from ostinato.ops.cpu.jit.parallel import TABLES, around
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.copies import Pieces

BLOCK = 1 << 14  # elements of a turn
WORD = 64  # elements that are looked at together
_FACTS = ("turns", "threads", "n", "size", "ends")


def true_places(arrays: Any, threads: int, *, size: int, **_: Any) -> Any:
    """The function of bools and places that lie so; NumPy's for few of them, or without LLVM."""
    x, out = arrays
    plain = x.flags.c_contiguous and out.flags.c_contiguous
    if why_not() or not plain or len(x) < LIMITS.compiled:
        return _by_numpy
    turns = -(-len(x) // BLOCK)
    ends = np.zeros(turns + 1, np.int64)  # of the blocks before, in `out`
    worth = min(threads, turns) if len(x) > LIMITS.places_wake else 0
    facts = np.array([turns, worth, len(x), size, ends.ctypes.data], np.int64)
    parts = [function_of(_text(writes), facts.copy(), ends) for writes in (False, True)]
    return Pieces([(part, Piece(0)) for part in parts])


def _by_numpy(x: Any, out: Any) -> None:
    (found,) = x.nonzero()
    many = min(len(found), len(out))
    out[:many] = found[:many]
    out[many:] = 0


@lru_cache(2)
def _text(writes: bool) -> str:
    code = Code()
    _load_facts(code)
    code.add("%x = call ptr @array(ptr %data, i64 0)")
    code.add("%out = call ptr @array(ptr %data, i64 1)")
    with code.loop("%lo", "%hi") as t:
        begin = code.times(t, str(BLOCK))
        end = code.least(code.sum(begin, str(BLOCK)), "%n")
        rest = code.let(f"and i64 {end}, {WORD - 1}")
        whole = code.let(f"sub i64 {end}, {rest}")
        seat = _at(code, "%room", t)
        place = code.cell(int64)
        first = code.let(f"load i64, ptr {seat}") if writes else "0"
        code.add(f"store i64 {first}, ptr {place}")
        each = _write if writes else _count
        with code.loop(begin, whole, WORD) as i:
            each(code, place, i, _bits(code, i))
        with code.loop(whole, end) as i:
            at = code.let(f"getelementptr i8, ptr %x, i64 {i}")
            is_true = code.let(f"icmp ne i8 {code.let(f'load i8, ptr {at}')}, 0")
            each(code, place, i, code.let(f"zext i1 {is_true} to i64"))
        if writes:
            _fill(code, t)
        else:
            total = code.let(f"load i64, ptr {place}")
            code.add(f"store i64 {total}, ptr {seat}")
    head = "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {"
    body = "\n".join([head, "entry:", *code.entry, *code.lines.text, "  ret void", "}"])
    finish = _nothing() if writes else _offsets()
    return "\n".join([TABLES, *sorted(code.lines.declared), body, finish, around(2)])


def _load_facts(code: Code) -> None:
    for k, name in enumerate(_FACTS):
        code.add(f"%{name} = call i64 @fact(ptr %meta, i64 {k})")
    code.add("%room = inttoptr i64 %ends to ptr")


def _at(code: Code, base: str, place: str) -> str:
    return code.let(f"getelementptr i64, ptr {base}, i64 {place}")


def _bits(code: Code, i: str) -> str:
    """Load a word of flags as bits, the first element's in the lowest."""
    at = code.let(f"getelementptr i8, ptr %x, i64 {i}")
    some = code.let(f"load <{WORD} x i8>, ptr {at}, align 1")
    flags = code.let(f"icmp ne <{WORD} x i8> {some}, zeroinitializer")
    return code.let(f"bitcast <{WORD} x i1> {flags} to i64")


def _ones(code: Code, bits: str) -> str:
    code.lines.declared.add("declare i64 @llvm.ctpop.i64(i64)")
    return code.let(f"call i64 @llvm.ctpop.i64(i64 {bits})")


def _count(code: Code, total: str, i: str, bits: str) -> None:
    had = code.let(f"load i64, ptr {total}")
    code.add(f"store i64 {code.sum(had, _ones(code, bits))}, ptr {total}")


def _write(code: Code, place: str, i: str, bits: str) -> None:
    """The places of these bits, as far as there is room."""
    code.lines.declared.add("declare i64 @llvm.cttz.i64(i64, i1)")
    first = code.let(f"load i64, ptr {place}")
    end = code.sum(first, _ones(code, bits))
    code.add(f"store i64 {end}, ptr {place}")
    left = code.cell(int64)
    code.add(f"store i64 {bits}, ptr {left}")
    with code.loop(first, code.least(end, "%size")) as k:
        some = code.let(f"load i64, ptr {left}")
        low = code.let(f"call i64 @llvm.cttz.i64(i64 {some}, i1 true)")
        code.add(f"store i64 {code.sum(i, low)}, ptr {_at(code, '%out', k)}")
        rest = code.let(f"and i64 {some}, {code.sum(some, '-1')}")
        code.add(f"store i64 {rest}, ptr {left}")


def _fill(code: Code, t: str) -> None:
    """A turn's share of what stands behind all places."""
    last = _at(code, "%room", "%turns")
    total = code.least(code.let(f"load i64, ptr {last}"), "%size")
    many = code.let(f"sub i64 %size, {total}")
    lo, hi = (code.let(f"udiv i64 {code.times(many, k)}, %turns") for k in (t, code.sum(t, "1")))
    code.clear(
        _at(code, "%out", code.sum(total, lo)), code.times(code.let(f"sub i64 {hi}, {lo}"), "8")
    )


def _offsets() -> str:
    """From counts to where each block begins; last, how many there are."""
    code = Code()
    _load_facts(code)
    before = code.cell(int64)
    code.add(f"store i64 0, ptr {before}")
    with code.loop("0", "%turns") as t:
        seat = _at(code, "%room", t)
        own, all_ = (code.let(f"load i64, ptr {p}") for p in (seat, before))
        code.add(f"store i64 {all_}, ptr {seat}")
        code.add(f"store i64 {code.sum(all_, own)}, ptr {before}")
    total = code.let(f"load i64, ptr {before}")
    code.add(f"store i64 {total}, ptr {_at(code, '%room', '%turns')}")
    head = "define internal void @finish(ptr %data, ptr %meta) {\nentry:"
    return "\n".join([head, *code.entry, *code.lines.text, "  ret void", "}"])


def _nothing() -> str:
    return "define internal void @finish(ptr %data, ptr %meta) {\n  ret void\n}"
