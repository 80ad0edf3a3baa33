"""Programs that do the same, timed in turn.

They run on operands of their own, on one worker and without the others: what is timed has no
collectives. Each round runs each program a few times, in another order; who is clearly slow drops
out, and when the time is up it is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter as clock
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device
from ostinato.ops.core.spec import Spec
from ostinato.planner.plan import Program, largest_part

from .bind import bind
from .messages.communicator import Alone
from .packed_weights import Prepacked

SAMPLE = 2e-4  # seconds of one measurement, at least
ROUNDS = 25
PATTERN = 1 << 16  # numbers
HOPELESS = 1.5  # times as long as the best
TRUSTED = 3  # rounds before somebody is given up
COLD = 4  # a first run may take so many times as long as another program's, if it need not compile


def trials(
    programs: Sequence[Program], limit: float, threads: int, device: Device
) -> list[list[float]]:
    """Seconds of each program in each round, infinite for who dropped out, or was not tried since
    `limit` seconds were too few. To compile the first one is not counted: it will be needed."""
    end = 0.0
    graph = programs[0].graph
    arrays = [device.from_host(_some(largest_part(s))) for s in graph.inputs]
    arrays += [device.empty(s.shape, s.dtype) for s in map(largest_part, graph.out_specs)]
    arena = device.arena(max(p.arena_bytes for p in programs))
    calls: dict[int, Callable[[], None]] = {}
    each: dict[int, float] = {}
    cold = 0.0
    for k, program in enumerate(programs):
        if calls and clock() + max(cold, COLD * min(each.values())) + _rounds(each) > end:
            break
        begun = clock()
        try:
            bound = bind(program, 0, Alone(), device, arena, "<trial>", threads)
            call = partial(bound.call, *arrays)
            call()  # compiles, and touches the pages
            for operand in bound.stays:
                operand.keep(arrays[operand.number], Prepacked())
            start = _now(device)
            end = end or start + limit
            if start > end:
                break
            call()
            taken = _now(device) - start
        except Exception:  # on these operands, or here, this is no way
            if k == 0:
                break
            continue
        calls[k], each[k] = call, taken
        cold = max(cold, start - begun)
    return _in_turn(calls, each, len(programs), end, device) if len(calls) > 1 else []


def _now(device: Device) -> float:
    """When the device has done what it was asked for."""
    device.clock()
    return clock()


def _rounds(each: Mapping[int, float]) -> float:
    """Estimate the seconds of the rounds without which nothing is trusted."""
    return TRUSTED * sum(max(t, SAMPLE) for t in each.values())


def _in_turn(
    calls: Mapping[int, Callable[[], None]],
    each: Mapping[int, float],
    many: int,
    end: float,
    device: Device,
) -> list[list[float]]:
    times = {k: max(1, int(SAMPLE / max(t, 1e-7))) for k, t in each.items()}
    rounds: list[list[float]] = []
    left = list(calls)
    while len(rounds) < ROUNDS and clock() + sum(each[k] * times[k] for k in left) < end:
        row = [float("inf")] * many
        turn = len(rounds) % len(left)
        for k in (*left[turn:], *left[:turn]):
            start = _now(device)
            for _ in range(times[k]):
                calls[k]()
            row[k] = (_now(device) - start) / times[k]
        rounds.append(row)
        if len(rounds) >= TRUSTED:
            best = [min(r[k] for r in rounds) for k in range(many)]
            left = [k for k in left if k == 0 or best[k] < HOPELESS * min(best)]
    return rounds


def _some(part: Spec) -> Any:
    """Ordinary numbers, which no function finds hard, over and over."""
    made = np.empty(part.shape, part.dtype)
    rng, few = np.random.default_rng(0), min(part.size, PATTERN)
    whole = part.dtype.kind in "biu"
    numbers = rng.integers(0, 2, few) if whole else 0.5 + rng.random(few, np.float32)
    flat, numbers = made.reshape(-1), numbers.astype(part.dtype)
    for start in range(0, flat.size, PATTERN):
        flat[start : start + PATTERN] = numbers[: flat.size - start]
    return made
