"""Kernels in stages as machine code: how threads share one, what it is told, and the function that runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit.llvm import function_of, vector_bits
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.loops.schedule import Nest

from .combine import TURNS, WAITING, nest_text
from .flat import GRAIN
from .squares import link_squares
from .stages import Facts, chunk_units, facts


@dataclass(frozen=True, slots=True)
class Crew:
    """How a nest is shared: turns, units of each, threads, and the bytes that all of them need."""

    turns: int
    each: int
    threads: int
    bytes: int


def crew_of(nest: Nest, told: Facts, threads: int) -> Crew:
    """Turns depend on extents only."""
    work = sum(
        math.prod(nest.extents[x] for x in nest.iterates(k)) for k in range(len(nest.body.nodes))
    )
    turns, each = told.units, 1
    if told.waiting:
        step = chunk_units(nest)
        most = max(1, min(TURNS, WAITING // told.waiting, -(-told.units // step)))
        each = max(step, -(-told.units // most // step) * step)
        turns = -(-told.units // each)
    threads = min(threads, work // GRAIN, turns)
    needed = max(threads, 1) * told.room + turns * told.waiting + 64
    return Crew(turns, each, threads, needed)


def nest_told(nest: Nest, threads: int) -> tuple[str, list[int]]:
    """A nest's functions, and what its kernel is told: the bytes that it needs, a thread's and a turn's
    among them, and then its meta array without addresses."""
    told = facts(nest)
    crew = crew_of(nest, told, threads)
    sizes = [crew.bytes, told.room, told.waiting]
    shares = [crew.turns, crew.threads, told.units, crew.each]
    return nest_text(nest, vector_bits()), [*sizes, *shares, *told.values]


def nest_kernel(
    code: str, told: Sequence[int], arrays: int, scratch: Sequence[Any] = ()
) -> Callable[..., None]:
    """The kernel of a nest of stages (`nest_told`), called as `kernel(*operands, *results)`; it works in
    memory that is given, if that is enough."""
    bytes_, each, waits, turns, threads, units, in_turn, *values = told
    room = scratch[0] if scratch and scratch[0].nbytes >= bytes_ else None
    if room is None:
        room = np.empty(bytes_, np.int8)
    start = -(-room.ctypes.data // 64) * 64
    waiting = start + max(threads, 1) * each
    front = [turns, threads, units, in_turn, start, each, waiting, waits]
    link_squares(code)
    text = f"{code}\n{around(arrays)}"
    return function_of(text, np.array([*front, *values], np.int64), room)


def nest_module(nest: Nest) -> str:
    """Its whole text, for this machine's vectors."""
    return f"{nest_text(nest, vector_bits())}\n{around(len(nest.strides))}"
