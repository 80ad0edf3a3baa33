"""One kernel over several groups of arrays (ops/jit/foreach_parts.py): threads share the turns of all of them.

    part            a       b    c                      turns 0 ... 100 ... 130 ... 132
    its turns       100     30   2                      a thread's slice may end one and begin the next

Parts whose loops have the same text are one module, which finds a slice's parts in a table; where some lie
otherwise there are several, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.graph import Node
from ostinato.ops.core.spec import Shape, Spec, int64
from ostinato.ops.cpu.jit.llvm import function_of, is_kernel
from ostinato.ops.cpu.jit.parallel import around
from ostinato.ops.cpu.jit.routine import Memory, Routine, functions, larger, smaller
from ostinato.ops.cpu.jit.sequence import Step, chain_kernels
from ostinato.ops.jit.foreach_parts import parts_of
from ostinato.ops.jit.loops import dense_loops, space
from ostinato.ops.jit.values import Value

from .copies import copy_by_rows
from .flat import GRAIN, code_and_facts

Kernel = Callable[..., None]


def foreach_kernel(
    node: Node, shape: Callable[[Spec], Shape], arrays: Sequence[Any], threads: int, share: int
) -> Kernel | None:
    """The kernel for operands and results that lie so, called as `kernel(*operands, *results)`."""
    steps: list[Step] = []
    alike: dict[str, list[_Told]] = {}
    for part in parts_of(node):
        places = part.places(len(node.inputs))
        own = [arrays[k] for k in places]
        body, whole, axes = space(part.node, shape)
        loops = dense_loops(body, whole, own, axes)
        if loops is not None:
            code, facts = code_and_facts(body, loops, threads, min(axes, 1), share)
            work = math.prod(whole) * len(body.nodes)
            alike.setdefault(code, []).append(_Told(places, work, facts))
        elif (kernel := copy_by_rows(body, whole, own, threads, axes)) is not None:
            steps.append(Step(kernel, places))
        else:
            return None
    for code, parts in alike.items():
        kernel = _parts_kernel(code, parts, threads)
        steps.append(Step(kernel, [k for part in parts for k in part.places]))
    if all(is_kernel(step.kernel) for step in steps):
        return chain_kernels(steps, len(arrays))

    def run(*given: Any) -> None:
        for kernel, places, _ in steps:
            kernel(*[given[k] for k in places])

    return run


class _Told(NamedTuple):
    """A part: where its arrays stand, its operations, and what its loops are told."""

    places: Sequence[int]
    work: int
    facts: Sequence[int]


def _parts_kernel(code: str, parts: Sequence[_Told], threads: int) -> Kernel:
    """The kernel of parts with one text, given the arrays of one after those of another."""
    starts, offsets, behind = [0], list[int](), list[int]()
    for part in parts:
        starts.append(starts[-1] + part.facts[0])
        offsets.append(2 * len(parts) + 4 + len(behind))
        behind += part.facts
    worth = sum(part.work for part in parts) // GRAIN
    front = [starts[-1], min(threads, worth, starts[-1]), len(parts)]
    about = np.array([*front, *starts, *offsets, *behind], np.int64)
    arrays = len(parts[0].places)
    text = "\n".join([_module(code, arrays), around(len(parts) * arrays)])
    return function_of(text, about)


@lru_cache(64)
def _module(code: str, arrays: int) -> str:
    """The loops of one part, and who calls them for each."""
    own = code.replace("@body(", "@part(").replace("@finish(", "@finish_part(")
    return "\n".join([own, *functions(_turns(arrays), _ending(arrays))])


class _Walk(Routine):
    """A function that calls those of parts."""

    def does_part(self, name: str, data: Memory, meta: Memory, *more: Value) -> None:
        self._call(name, None, (data, meta, *more))


def _turns(arrays: int) -> Routine:
    facts = {"lo": int64, "hi": int64, "thread": int64}
    walk = _Walk(None, "body", data=[int64], meta=[int64], **facts)
    data, meta, lo, hi, thread = walk.given
    many, starts = meta[2], meta.further(3)
    with walk.each(many) as k:
        begin = starts[k]
        first, last = larger(lo, begin), smaller(hi, starts[k + 1])
        with walk.given_that(first < last):
            own = data.further(k * arrays), meta.further(starts[many + 1 + k])
            walk.does_part("part", *own, first - begin, last - begin, thread)
    walk.ends()
    return walk


def _ending(arrays: int) -> Routine:
    """Do what is left to do for each part."""
    walk = _Walk(None, "finish", data=[int64], meta=[int64])
    data, meta = walk.given
    many = meta[2]
    with walk.each(many) as k:
        offset = meta[many + 4 + k]
        walk.does_part("finish_part", data.further(k * arrays), meta.further(offset))
    walk.ends()
    return walk
