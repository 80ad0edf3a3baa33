"""Samples that workers share, in the memory of all: each keeps its boxes, and gives others what they need.

    epoch 0    workers 0 and 1 make sample 5:    0 reads planes 0..17     1 reads planes 15..32
    epoch 1    workers 2 and 3 make it:          0 -- 0..17 --> 2         1 -- 15..32 --> 3

Which box a worker keeps of a sample follows from the layout and the sample's extents; so who knows whose a
sample is knows who has which of its voxels. It is theirs of whom most kept it when the epoch began, else of
those that make it. These are asked also for boxes that they have not read yet: they do so then, and keep
them, if there is room. So each box is read once, and of crops or mirrored samples one may come from several.

Nothing is evicted: all samples are needed once in each epoch, in another order, so what is kept is worth as
much as what would take its place. What nobody keeps is read from the file by who needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, around, intersect, slices, volume
from ostinato.ops.core.locks import make_lock

from ..source import Source
from .batches import bytes_of
from .fields import Fields
from .samples import Row, Samples
from .slabs import axes_of
from .stage import Box3, Shape
from .store import Lines, Server, kept_bits, offer_of

Leaves = tuple[list[Any], Fields]
Pieces = list[tuple[Box3, list[Any] | None]]  # with what arrays have there, if that is kept


class Room:
    """Bytes that may be kept."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self._lock = make_lock()

    def take(self, size: int) -> bool:
        """Take so many of them, if they are there; below 0, give them back."""
        with self._lock:
            fits = self.used + size <= self.size
            self.used += size if fits else 0
        return fits


class Own:
    """Boxes that this worker keeps. Others ask it by threads of their own."""

    def __init__(self, source: Samples, room: Room) -> None:
        self.source, self.room = source, room
        self.boxes: Callable[[int, Shape], Box3] = lambda rank, shape: ()  # of each worker
        self.rank = 0
        self.kept: dict[int, tuple[Box3, list[Any]]] = {}
        self.known: dict[int, Leaves] = {}  # of samples, without voxels
        self._locks = [make_lock() for _ in range(64)]

    def about(self, index: int) -> Leaves:
        """A sample, with no voxel of what is cut."""
        found = self.known.get(index)
        if found is None:
            leaves, fields = self.source.parts(index)
            found = [_form(kind, x) for kind, x in zip(fields.kinds, leaves, strict=True)], fields
            self.learn(index, found)
        return found

    def learn(self, index: int, about: Leaves) -> None:
        size = sum(map(bytes_of, about[0]))
        if self.room.take(size) and self.known.setdefault(index, about) is not about:
            self.room.take(-size)

    def get(self, key: int | tuple[int, Box3], /) -> Leaves | None:
        """Give what is known of a sample, or its arrays' part in a box; None if that is not kept here."""
        try:
            if isinstance(key, int):
                return self.about(key)
            index, part = key
            found = self._box(index)
            if found is None or intersect(found[0], part) != part:  # others have another layout
                return None
            return [x[slices(part, found[0])] for x in found[1]], self.about(index)[1]
        except Exception:  # who asked reads it from the file, and tells what is wrong
            return None

    def _box(self, index: int) -> tuple[Box3, list[Any]] | None:
        """The box of a sample, which is read now if that was not done; None if there is no room."""
        leaves, fields = self.about(index)
        deep = deep_leaves(leaves, fields)
        box = self.boxes(self.rank, leaves[deep[0]].shape[1:4])
        with self._locks[index % len(self._locks)]:
            found = self.kept.get(index)
            if found is not None and found[0] == box:
                return found
            if found is not None:  # of a layout before
                self.room.take(-sum(x.nbytes for x in self.kept.pop(index)[1]))
            inner = sum(math.prod(leaves[k].shape[4:]) * leaves[k].itemsize for k in deep)
            if not self.room.take(size := volume(box) * inner):
                return None
            try:
                rows, _ = self.source.parts(index)
                found = box, [rows[k].read(box) for k in deep]
            except BaseException:
                self.room.take(-size)
                raise
            self.kept[index] = found
            return found


class Boxes:
    """A source's samples, of which workers keep boxes."""

    def __init__(self, source: Samples, room: Room) -> None:
        self.own, self.lines = Own(source, room), Lines(())
        self._server: Server | None = None
        # workers that make the same samples, those of this one first; and whose each sample is
        self.homes = [[0]], np.zeros(len(source), np.int32)

    # -- among workers ---------------------------------------------------------------------------
    def offer(self, host: str) -> dict[str, Any]:
        """Offer what is kept here, and where other workers are given it."""
        if self._server is None:
            self._server = Server(self.own, host)
        return offer_of(self._server, [*self.own.kept], len(self.own.source), 0)

    def meet(self, rank: int, offers: Sequence[Any]) -> None:
        """Learn whose samples are, by what all keep now."""
        rows = [tuple(offer["rows"]) for offer in offers]
        known = sorted({*rows}, key=lambda found: (found != rows[rank], found))
        groups = [[r for r, found in enumerate(rows) if found == g] for g in known]
        home, most = np.zeros((2, len(self.own.source)), np.int32)
        for k, ranks in enumerate(groups):
            count = sum(kept_bits(offers[r]).astype(np.int32) for r in ranks)
            home, most = np.where(count > most, k, home), np.maximum(count, most)
        self.lines, self.homes = Lines(offers), (groups, home)

    # -- as a source -----------------------------------------------------------------------------
    def parts(self, index: int) -> tuple[list[Any], Fields]:
        """A sample, of which what is cut is still where it is."""
        own, (groups, home) = self.own, self.homes
        known, ranks = own.known.get(index), groups[home[index]]
        if known is None and own.rank not in ranks:
            at = groups[0].index(own.rank) % len(ranks)
            known = self.lines.ask(ranks[at], index)
            if known is not None:
                own.learn(index, known)
        leaves, fields = known or own.about(index)
        pieces: dict[Box3, Pieces] = {}
        found = [*leaves]
        for k, n in enumerate(deep_leaves(leaves, fields)):
            found[n] = Row(KeptArray(self, index, n, k, leaves[n], pieces))
        return found, fields

    def gather(self, index: int, box: Box3, shape: Shape) -> Pieces:
        """A box of a sample of these extents, in pieces from those who keep them."""
        own, (groups, home) = self.own, self.homes
        left, found = [box] if volume(box) else [], list[Any]()
        has = {r: own.boxes(r, shape) for r in groups[home[index]]}
        for r in sorted(has, key=lambda r: (-volume(intersect(has[r], box)), r != own.rank)):
            for one in [*left]:
                if not volume(piece := intersect(one, has[r])):
                    continue
                is_own = r == own.rank
                given = own.get((index, piece)) if is_own else self.lines.ask(r, index, piece)
                if given is not None:
                    left.remove(one)
                    left += _outside(one, piece)
                    found.append((piece, given[0]))
        return [*found, *((one, None) for one in left)]


class KeptArray(Source):
    """An array of a sample, in the memory of workers."""

    def __init__(
        self, boxes: Boxes, index: int, leaf: int, k: int, form: Any, pieces: dict[Box3, Pieces]
    ) -> None:
        """k: its number among those that are cut. pieces: what was gathered for all of these."""
        self.shape, self.dtype = form.shape[1:], form.dtype
        self._boxes, self._pieces, self._at = boxes, pieces, (index, leaf, k)

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        (index, leaf, k), part = self._at, box[:3]
        if part not in self._pieces:
            self._pieces[part] = self._boxes.gather(index, part, self.shape[:3])
        for piece, arrays in self._pieces[part]:
            if arrays is not None:
                out[slices(piece, part)] = arrays[k]
                continue
            row: Row = self._boxes.own.source.parts(index)[0][leaf]
            if piece == part:
                row.read(part, out)
            else:
                out[slices(piece, part)] = row.read(piece)


def deep_leaves(leaves: Sequence[Any], fields: Fields) -> list[int]:
    """Which ones are cut, of those that `about` gives."""
    return [
        k for k, (kind, x) in enumerate(zip(fields.kinds, leaves, strict=True)) if _is_form(kind, x)
    ]


def _form(kind: str, leaf: Any) -> Any:
    """An array of none, for one in a file that is cut; other ones as they are."""
    if not isinstance(leaf, Row):
        return leaf
    if len(axes_of(kind, leaf.ndim, 0)) > 1:
        return np.empty((0, *leaf.shape), leaf.dtype)
    return leaf.read(())


def _is_form(kind: str, leaf: Any) -> bool:
    is_none = isinstance(leaf, np.ndarray) and leaf.shape[:1] == (0,)
    return is_none and len(axes_of(kind, leaf.ndim - 1, 0)) > 1


def _outside(box: Box3, piece: Box3) -> list[Box3]:
    """Boxes of all that a box has besides a piece of it."""
    slabs = around(slices(piece, box), [hi - lo for lo, hi in box])
    cuts = [[(lo + s.start, lo + s.stop) for (lo, _), s in zip(box, slab)] for slab in slabs]  # noqa: B905
    return [(*cut, *box[len(cut) :]) for cut in cuts]
