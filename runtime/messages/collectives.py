"""What starts a collective, given its operands and results.

Small messages are made ready once, with memory of their own for whatever does not lie at the same place in
every run; large ones go from and to where operands and results are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.device import Device
from ostinato.ops.core.exchange import largest_piece, pieces_from, pieces_to
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, intersect, part_ranks, slices, volume
from ostinato.ops.core.monoid import MONOIDS
from ostinato.ops.core.spec import Spec
from ostinato.ops.planned.collective import REDUCING

from .communicator import Arrays, Communicator, Group, Request, Unpacked, fold

MAX_READY_BYTES = 1 << 16  # bytes of the largest message that is made ready
Start = Callable[[Arrays, Arrays], Request]
Slices = tuple[slice, ...]


def starter(
    comm: Communicator, graph: Graph, node: Node, kind: str, ins: Arrays, outs: Arrays
) -> Start:
    """For a node of this kind. `ins` and `outs` are its arrays, None where they are others in each run."""
    spec, made = graph.specs[node.inputs[0]], node.specs[0]
    here, there = spec.layout, made.layout
    assert here is not None
    assert there is not None
    if kind in REDUCING:
        monoid = str(node.kw["monoid"])
        group = part_ranks(here.mesh, node.kw["axes"], comm.rank)
        if kind == "all_reduce":
            specs = [graph.specs[v] for v in node.inputs]
            if len(specs) > MONOIDS[monoid].width:
                return _together(comm, specs, monoid, group)
            return _all_reduce(comm, specs, ins, monoid, group)
        own = here.box(spec.shape, comm.rank)
        parts = [slices(there.box(spec.shape, r), own) for r in group]
        return lambda xs, outs: comm.start_reduce_scatter(xs[0], outs[0], monoid, group, parts)
    if kind == "broadcast":
        everybody = tuple(range(here.workers))
        root = next(r for r in everybody if volume(here.box(spec.shape, r)))
        return lambda xs, outs: comm.start_broadcast(xs[0], outs[0], root, everybody)
    return _exchange(comm, spec, made, ins[0], outs[0], node.kw.get("edges"))


def staged(start: Start, ins: Arrays, outs: Arrays, device: Device) -> Start:
    """Stage arrays of another device: they are copied to and from these of the host."""

    def begin(xs: Arrays, made: Arrays) -> Request:
        for place, x in zip(ins, xs, strict=True):
            device.to_host(x, place)
        return _Staged(start(ins, outs), outs, made, device)

    return begin


class _Staged:
    def __init__(self, request: Request, outs: Arrays, made: Arrays, device: Device) -> None:
        self.request, self.outs, self.made, self.device = request, outs, made, device

    def wait(self) -> None:
        self.request.wait()
        for x, place in zip(self.made, self.outs, strict=True):
            self.device.xp.copyto(x, self.device.from_host(place))


def _all_reduce(
    comm: Communicator, specs: Sequence[Spec], ins: Arrays, monoid: str, group: Group
) -> Start:
    shapes = [s.layout.local_shape(s.shape, comm.rank) for s in specs if s.layout is not None]
    size = sum(math.prod(n) * s.dtype.itemsize for n, s in zip(shapes, specs, strict=True))
    others = [r for r in group if r != comm.rank]
    if others and size * len(others) <= MAX_READY_BYTES and not comm.on_device:
        places = [_memory(x, (), n, s) for x, n, s in zip(ins, shapes, specs, strict=True)]
        blocks = {
            r: [np.empty(n, s.dtype) for n, s in zip(shapes, specs, strict=True)] for r in others
        }
        mail = comm.prepare(
            [(r, place) for r in others for place, _ in places],
            [(r, block) for r in others for block in blocks[r]],
        )
        if mail is not None:
            copies = [(k, place) for k, (place, is_own) in enumerate(places) if is_own]

            def start(xs: Arrays, outs: Arrays) -> Request:
                for k, place in copies:
                    np.copyto(place, xs[k])
                states = [blocks.get(r, xs) for r in group]
                return mail.start(lambda: fold(states, outs, monoid))

            return start
    return lambda xs, outs: comm.start_all_reduce(xs, outs, monoid, group)


def _together(comm: Communicator, specs: Sequence[Spec], monoid: str, group: Group) -> Start:
    """Several all-reduces as one, of their arrays one behind the other."""
    shapes = [s.layout.local_shape(s.shape, comm.rank) for s in specs if s.layout is not None]
    ends = list(itertools.accumulate([math.prod(n) for n in shapes], initial=0))
    copy = comm.xp.copyto
    both = comm.xp.empty((2, ends[-1]), specs[0].dtype)
    sent, made = both[0], both[1]
    ranges = list(itertools.pairwise(ends))
    given = [sent[a:b].reshape(n) for (a, b), n in zip(ranges, shapes, strict=True)]
    found = [made[a:b].reshape(n) for (a, b), n in zip(ranges, shapes, strict=True)]
    row = Spec(sent.shape, sent.dtype, Layout.whole((1,)))
    start = _all_reduce(comm, (row,), (sent,), monoid, group)

    def begin(xs: Arrays, outs: Arrays) -> Request:
        for place, x in zip(given, xs, strict=True):
            copy(place, x)
        return Unpacked(start((sent,), (made,)), found, outs, comm.xp)

    return begin


def _exchange(
    comm: Communicator, spec: Spec, made: Spec, x: Any, out: Any, edges: Sequence[Layout] | None
) -> Start:
    """`edges`: all that is read of what is made, of which only that stays here and is copied."""
    here, there, rank = spec.layout, made.layout, comm.rank
    assert here is not None
    assert there is not None
    own, wanted = here.box(spec.shape, rank), there.box(spec.shape, rank)
    comes = pieces_to(here, there, spec.shape, rank)
    goes = pieces_from(here, there, spec.shape, rank)
    sends = [(p.target, slices(p.box, own)) for p in goes if p.target != rank]
    receives = [(p.source, slices(p.box, wanted)) for p in comes if p.source != rank]
    kept = [p.box for p in comes if p.source == rank]
    if edges is not None:
        read = [e.box(spec.shape, rank) for e in edges]
        kept = [b for box in kept for e in read if volume(b := intersect(box, e))]
    stays = [(slices(box, wanted), slices(box, own)) for box in kept]
    if comm.on_device:  # which puts what stays there in order with what comes
        return lambda xs, outs: comm.start_exchange(
            [(r, xs[0][s]) for r, s in (*sends, *((rank, s) for _, s in stays))],
            [(r, outs[0][s]) for r, s in (*receives, *((rank, s) for s, _ in stays))],
        )
    largest = largest_piece(here, there, spec.shape) * spec.dtype.itemsize
    if largest <= MAX_READY_BYTES:
        given = [_memory(x, s, _extents(s), spec) for _, s in sends]
        taken = [_memory(out, s, _extents(s), spec) for _, s in receives]
        mail = comm.prepare(
            [(r, place) for (r, _), (place, _) in zip(sends, given, strict=True)],
            [(r, place) for (r, _), (place, _) in zip(receives, taken, strict=True)],
        )
        if mail is not None:
            before = [(p, s) for (_, s), (p, is_own) in zip(sends, given, strict=True) if is_own]
            after = [(p, s) for (_, s), (p, is_own) in zip(receives, taken, strict=True) if is_own]

            def begin(xs: Arrays, outs: Arrays) -> Request:
                x, out = xs[0], outs[0]
                for place, s in before:
                    place[...] = x[s]

                def finish() -> None:
                    for place, s in after:
                        out[s] = place

                request = mail.start(finish if after else None)
                for to, source in stays:
                    out[to] = x[source]
                return request

            return begin

    def start(xs: Arrays, outs: Arrays) -> Request:
        (x,), (out,) = xs, outs
        request = comm.start_exchange(
            [(r, x[s]) for r, s in sends], [(r, out[s]) for r, s in receives]
        )
        for to, source in stays:
            np.copyto(out[to], x[source])
        return request

    return start


def _extents(s: Slices) -> tuple[int, ...]:
    return tuple(x.stop - x.start for x in s)


def _memory(x: Any, s: Slices, shape: tuple[int, ...], spec: Spec) -> tuple[Any, bool]:
    """A piece of an array, if it lies in one piece at the same place in each run; else memory of its own."""
    piece = None if x is None else x[(*s, ...)]
    if piece is None or not piece.flags.c_contiguous:
        return np.empty(shape, spec.dtype), True
    return piece, False
