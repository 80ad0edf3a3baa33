"""Compressed chunks of which several workers of a machine need a part, since their slabs end within them or
have halos: one worker reads and inflates each, and gives the others their parts.

    chunks along depth        0     1     2     3     4
    worker 0 needs           ================
    worker 1 needs                       ================
    reads and inflates        0     0   0 | 1   1     1

All workers draw the same of a sample, so each knows what the others need of it. Of the chunks that several
need, they take turns. Each reads first what is its own, lays out what it has for others, and only then asks
them: nobody waits for somebody who waits. Who gets nothing in time reads for itself."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, intersect, slices, volume

from ..source import chunk_box, chunks_in
from ..thread_counts import Index, each_of
from .fields import Fields
from .samples import Row
from .stage import Box3, Shape
from .store import Lines, Server

ASKED = 0.2  # seconds after which who has nothing yet says so
PATIENCE = 10.0  # seconds after which who asked reads for itself
Numbers = np.ndarray[Any, Any]
Parcel = tuple[list[Any], Fields]


class Parcels:
    """What is laid out for others, until they take it."""

    def __init__(self) -> None:
        self.held: dict[int, Parcel] = {}
        self.some = threading.Condition()

    def put(self, key: int, parcel: Parcel) -> None:
        with self.some:
            self.held[key] = parcel
            self.some.notify_all()

    def get(self, key: int) -> Parcel | None:
        with self.some:
            self.some.wait_for(lambda: key in self.held, ASKED)
            return self.held.pop(key, None)


class Leaf:
    """An array of a sample, of which each worker of the machine needs a box."""

    def __init__(self, row: Row, rank: int, boxes: Mapping[int, Box3], out: Numbers) -> None:
        self.source, self.out, self.whole = row.source, out, row.box(())
        self.boxes = {r: row.box(box) for r, box in boxes.items()}
        self.box, self.grain = self.boxes[rank], self.source.grain or self.source.shape
        self.own: list[Index] = []  # chunks that are needed here alone,
        self.given: dict[Index, list[int]] = {}  # that these others need as well,
        self.taken: dict[int, list[Index]] = {}  # and that these read
        needs = {
            r: chunks_in(box, self.grain) for r, box in sorted(self.boxes.items()) if volume(box)
        }
        for index in itertools.product(*needs.get(rank, [range(0)])):
            users = [r for r, has in needs.items() if all(map(_is_in, index, has))]
            reader = users[sum(index) % len(users)]
            if len(users) == 1:
                self.own.append(index)
            elif reader == rank:
                self.given[index] = [r for r in users if r != rank]
            else:
                self.taken.setdefault(reader, []).append(index)

    def read(self) -> dict[int, Numbers]:
        """Reads what is read here; what others get of it, chunk after chunk."""
        if not self.given and not self.taken:
            self.source.read(self.out, self.box)
            return {}
        self.source.read_chunks(self.out, self.box, self.own)
        found: dict[Index, Numbers] = {}

        def bring(index: Index) -> None:
            box = self._within(index)
            found[index] = chunk = np.empty([hi - lo for lo, hi in box], self.out.dtype)
            self.source.read_chunks(chunk, box, [index])
            part = intersect(box, self.box)
            self.out[slices(part, self.box)] = chunk[slices(part, box)]

        each_of(bring, self.given, len(self.given) * math.prod(self.grain) * self.out.itemsize)
        gives: dict[int, list[Numbers]] = {}
        for index, users in self.given.items():
            box = self._within(index)
            for r in users:
                part = found[index][slices(intersect(box, self.boxes[r]), box)]
                gives.setdefault(r, []).append(part.reshape(-1))
        return {r: np.concatenate(parts) for r, parts in gives.items()}

    def take(self, reader: int, parcel: Any) -> None:
        """Take what another worker has read; None if it has not."""
        parts = {i: intersect(self._within(i), self.box) for i in self.taken.get(reader, ())}
        right = self.out.dtype, (sum(map(volume, parts.values())),)
        if not isinstance(parcel, np.ndarray) or (parcel.dtype, parcel.shape) != right:
            self.source.read_chunks(self.out, self.box, parts)
            return
        at = 0
        for part in parts.values():
            place = self.out[slices(part, self.box)]
            place[...] = parcel[at : at + place.size].reshape(place.shape)
            at += place.size

    def _within(self, index: Index) -> Box:
        """Return the box that a chunk has of this sample."""
        return intersect(chunk_box(index, self.grain), self.whole)


def _is_in(k: int, some: range) -> bool:
    return k in some


class Borders:
    """What this worker gives to others of its machine, and is given."""

    def __init__(self, boxes: Callable[[int, Shape], Box3]) -> None:
        self.boxes = boxes  # what each worker makes of volumes of such depth, height and width
        self.parcels = Parcels()
        self.rank, self.ranks = 0, [0]  # on this machine, of those that have the same samples
        self.fetched = 0

    def offer(self, host: str) -> dict[str, Any]:
        """Where others ask for what is laid out for them."""
        self._server = Server(self.parcels, host)
        return {"address": self._server.address, "token": self._server.token}

    def meet(self, rank: int, offers: Sequence[Any]) -> None:
        near = [(offer["address"][0], offer["rows"]) for offer in offers]  # machine, and samples
        self.rank, self.lines = rank, Lines(offers)
        self.ranks = [r for r, found in enumerate(near) if found == near[rank]]

    def read(
        self, place: int, fields: Fields, leaves: Sequence[Leaf], is_stopped: Callable[[], bool]
    ) -> None:
        """Fill in arrays of the sample at a place of the epoch."""
        gives: list[dict[int, Numbers]] = []
        try:
            gives.extend(leaf.read() for leaf in leaves)
        finally:  # who waits for what came to nothing is told
            for r in {r for leaf in leaves for users in leaf.given.values() for r in users}:
                parts = [g.get(r, np.empty(0, np.uint8)) for g in gives]
                parcel = parts if len(gives) == len(leaves) else []
                self.parcels.put(self._key(place, r), (parcel, fields))
        for r in sorted({r for leaf in leaves for r in leaf.taken}):
            found = self._fetch(place, r, is_stopped)
            for k, leaf in enumerate(leaves):
                if r in leaf.taken:
                    leaf.take(r, found[k] if len(found) == len(leaves) else None)

    def _key(self, place: int, rank: int) -> int:
        return place * len(self.lines.offers) + rank

    def _fetch(self, place: int, reader: int, is_stopped: Callable[[], bool]) -> list[Any]:
        """Fetch what another worker has read for this one; nothing, if it has not."""
        until = time.monotonic() + PATIENCE
        while not is_stopped() and time.monotonic() < until and reader not in self.lines.lost:
            found = self.lines.ask(reader, self._key(place, self.rank))
            if found is not None:
                self.fetched += 1
                return found[0]
        return []
