"""Products of float32 whose left matrix lies transposed, as slopes of weights are: `x.T @ g`.

Libraries read such a matrix with long steps, a page of memory for each term of a sum. Here some hundred
terms of a block of rows are turned in registers into a thread's own memory, and multiplied by oneDNN's
sgemm there; the sums of these terms are added up in the result, in order. Blocks are rows of the
result, and depend on extents only, so that no number of threads changes a bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from ostinato.ops.core.spec import float32, int32, int64
from ostinato.ops.cpu.jit.code import address_of, once, symbol
from ostinato.ops.cpu.jit.llvm import function_of, linked, vector_bits
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.jit.routine import Memory, Routine, functions, smaller
from ostinato.ops.cpu.libraries.onednn import CHECKED, check_symbols, library, omp
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.jit.stacks import Stack
from ostinato.ops.jit.values import Value, cast, where

ROWS, TERMS = LIMITS.turned_rows, LIMITS.turned_terms
STEP = TERMS + LIMITS.wide  # elements from row to row, so that no two are in one place of the cache


def turning_pays(m: int, n: int, k: int) -> bool:
    """Whether to turn such a matrix takes less time than it saves, as timed."""
    large = m * k >= LIMITS.turned_elements and k >= TERMS // 2 and n >= LIMITS.turned_columns
    return large and not isinstance(library(), str)


def turned_room(rows: int) -> int:
    """Bytes that a thread needs for a block of so many rows."""
    return 4 * rows * STEP


def turned_product(
    a: Stack, b: Stack, out: Stack, step_a: int, step_b: int, turn_b: bool, threads: int
) -> Callable[..., None]:
    """The function of three arrays, of which the first is turned, and the others' rows lie in one piece,
    or the second is turned, too."""
    (*_, m, n), k = out.shape, a.shape[-1]
    block = -(-m // -(-m // ROWS))
    turns = -(-m // block)
    team = max(1, min(threads, turns))
    room = np.empty(team * turned_room(block) + LIMITS.line, np.uint8)
    facts = [turns, team, 0, m, n, k, block, step_a, step_b, ord("T" if turn_b else "N")]
    about = np.array(
        [*facts, max(n, out.strides[-2]), room.ctypes.data + -room.ctypes.data % LIMITS.line]
    )
    return function_of(_text(), about.astype(np.int64), (room,))


_FACTS = ("m", "n", "k", "block", "step_a", "step_b", "turn_b", "step_c", "room")


@cache
def _text() -> str:
    name = block_of_turned()
    for called, code in omp().items():
        symbol(called, code)
    check_symbols()
    body = Routine(None, "body", data=[int64], meta=[int64], lo=int64, hi=int64, thread=int64)
    data, meta, lo, hi, thread = body.given
    f = {fact: meta[k] for k, fact in enumerate(_FACTS, 3)}
    a, b, out = (body.memory(data[k], float32) for k in range(3))
    room = body.memory(f["room"] + thread * (f["block"] * (4 * STEP)), float32)
    before = body.call("omp_get_max_threads", int32)
    body.call("omp_set_num_threads", None, body.lines.constant(1, int32))
    with body.each(hi, lo) as turn:
        row = turn * f["block"]
        m = smaller(f["block"], f["m"] - row)
        given = a.further(row), f["step_a"], m, b, f["step_b"], f["turn_b"], f["n"], f["k"]
        done = body.call(name, int64, *given, out.further(row * f["step_c"]), f["step_c"], room)
        meta[2] = meta[2] | done
    body.call("omp_set_num_threads", None, before)
    return "\n".join([*functions(body), CHECKED, around(3, "shared", held=True)])


@once
def block_of_turned() -> str:
    """The name by which texts may call what makes some rows of a product, and returns oneDNN's status: of
    the left matrix as it lies, elements from row to row there, and rows of the product; the same of the
    right one, whether that is turned ("T", "N") and its columns; terms; the result, and its elements
    from row to row; room."""
    symbol("dnnl_sgemm", address_of(library(), "dnnl_sgemm"))
    kinds = {"a": [float32], "step_a": int64, "m": int64, "b": [float32], "step_b": int64}
    kinds |= {"turn_b": int64, "n": int64, "k": int64, "c": [float32], "step_c": int64}
    made = Routine(int64, "turned_block", **kinds, room=[float32])
    a, step_a, m, b, step_b, turn_b, n, k, c, step_c, room = made.given
    status = made.variable(made.whole(0))
    one, zero = (made.lines.constant(x, float32) for x in (1.0, 0.0))
    plain = made.lines.constant(ord("N"), int32)
    along_b = where(turn_b == ord("T"), made.whole(1), step_b)
    with made.each(k, step=TERMS) as first:
        many = smaller(made.whole(TERMS), k - first)
        _turn(made, a.further(first * step_a), step_a, m, many, room)
        kept = where(first == 0, zero, one)
        done = made.call(
            "dnnl_sgemm", int32, plain, cast(turn_b, int32), m, n, many, one, room, made.whole(STEP),
            b.further(first * along_b), step_b, kept, c, step_c,
        )  # fmt: skip
        status.now = status.now | cast(done, int64)
    made.ends(status.now)
    symbol("turned_block", linked(made.text()))
    return "turned_block"


def _turn(made: Routine, a: Memory, step: Value, m: Value, many: Value, room: Memory) -> None:
    """Copies so many rows of a matrix as columns, square by square."""
    lanes = vector_bits() // 32
    lines, kind = made.lanes(lanes), f"<{lanes} x float>"
    rows, columns = (x - x % lanes for x in (many, m))
    with made.each(rows, step=lanes) as p, made.each(columns, step=lanes) as i:
        square = [a.lanes((p + r) * step + i, lanes).name for r in range(lanes)]
        for r, row in enumerate(made.turned(square, kind)):
            room.put((i + r) * STEP + p, Value(lines, row, float32))
    zero = made.whole(0)
    for p_begin, i_begin, i_end in ((zero, columns, m), (rows, zero, columns)):  # what is left
        with made.each(many, p_begin) as p, made.each(i_end, i_begin) as i:
            room[i * STEP + p] = a[p * step + i]
