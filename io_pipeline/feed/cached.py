"""What stages that draw nothing make of samples, kept in memory and on disk: later epochs begin behind them,
and so do later runs, where samples are on disk. What is kept is never written to.

Kept is what all stages in front of the cache make, or with where="auto" what some of them make: what saves
the most time with the room that there is, by what samples cost and how large they are. That is measured with
the first samples, and changes no bit."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, SampleError

from ..source import short
from .chain import Chain, PartStep, Placed, Sample, Step
from .content import Unhashable, fingerprint
from .faults import Policy
from .fields import Fields, hosted
from .kept_boxes import Boxes, Room
from .plain import Undescribed
from .sample_disk import FORMAT, Disk
from .sample_draws import Draws
from .samples import Samples, Through, digest, made_source, source_as_data
from .stage import Box3, Shape, made_stage, stage_as_data
from .store import Others, Server, offer_of

END, AUTO = WHERE = ("end", "auto")
LOOKED_AT = 32  # samples by which the place of a cache is chosen
RATES = {"memory": 1e10, "disk": 1e9}  # bytes per second that are brought back, about


class Cached(Through):
    """Samples of a source behind stages."""

    def __init__(
        self,
        source: Samples,
        chain: Chain,
        room: int,
        fields: Fields | None,
        disk: str | os.PathLike[str] | None = None,
        disk_bytes: int = 0,
        where: str = END,
        version: str = "",
    ) -> None:
        self.source, self.chain, self.room = source, chain, room
        self.fields = fields
        self.folder, self.disk_bytes, self.where, self.version = disk, disk_bytes, where, version
        self.space = Room(room)
        self.boxes: Boxes | None = None  # of samples that workers share
        self.disk: Disk | None = None
        # for each cut that of what makes its samples, as it was at first
        self._fingerprints: list[str] = []
        self._kept: dict[int, tuple[list[Any], Fields]] = {}
        self._lock = make_lock()
        self._server: Server | None = None  # for other workers
        self.others: Others | None = None
        self.made = 0  # samples that were neither here nor anywhere else
        self._costs = np.zeros((LOOKED_AT, len(chain.stages) + 1, 2))  # seconds and bytes
        self._looked = 0
        self.cut: int | None = len(chain.stages) if where == END or not chain.stages else None
        if disk is not None:
            self._check_hashable()
            if self.cut is None:
                self.cut = self._before()
            if self.cut is not None:
                self._open()

    def as_data(self) -> Any:
        stages = [[stage_as_data(p.stage), p.line] for p in self.chain.stages]
        fields = None if self.fields is None else self.fields.as_data()
        folder = None if self.folder is None else os.path.abspath(os.path.expanduser(self.folder))
        how = [self.room, folder, self.disk_bytes, self.where, self.version]
        return [source_as_data(self.source), stages, fields, how]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        source, stages, fields, (room, *how) = said
        placed = [Placed(made_stage(s), line, -1, Policy()) for s, line in stages]
        known = None if fields is None else Fields.from_data(fields)
        return cls(made_source(source), Chain(placed), room, known, *how)

    def read(self, index: int) -> tuple[list[Any], Fields]:
        if self.cut is None:
            return self._look(index)
        values, fields = self._kept_of(index)
        if self.cut == len(self.chain.stages):
            return list(values), fields
        sample = Sample(_NOTHING)
        sample.values, sample.fields = list(values), fields
        self._run(sample, self.cut, len(self.chain.stages))
        return sample.values, sample.fields

    def _kept_of(self, index: int) -> tuple[list[Any], Fields]:
        """Return what the stages in front of the cut make, from where it is kept."""
        found = self._kept.get(index)
        if found is None and self.others is not None:
            found = self.others.get(index)
        if found is not None:
            return found
        key = self._key(index)
        if key is not None and self.disk is not None:
            found = self.disk.get(key)
        is_new = found is None
        if found is None:
            self.made += 1
            sample = Sample(_NOTHING)
            sample.values, sample.fields = self.source.read(index)
            assert self.cut is not None
            self._run(sample, 0, self.cut)
            values = hosted(sample.values, sample.fields.kinds)
            found = [_frozen(v) for v in values], sample.fields
        size = sum(map(_bytes, found[0]))
        with self._lock:
            if index not in self._kept and self.space.take(size):
                self._kept[index] = found
        if is_new and key is not None and self.disk is not None:
            self.disk.put(key, *found)
        return found

    def _run(self, sample: Sample, first: int, last: int) -> None:
        """Through some of the stages. The last one makes all of an image, whatever comes behind it."""
        assert sample.fields is not None
        step = self.chain.step(first, sample.fields) if first < last else None
        try:
            sample.part = None
            while step is not None and step.k < last:
                sample.step, is_last = step, step.k + 1 == last
                whole = is_last and isinstance(step, PartStep)
                step = Step.run(step, sample) if whole else step.run(sample)
        except Exception as error:
            assert sample.step is not None
            name, line = sample.step.stage.name, sample.step.placed.line
            raise SampleError.because(name, got=short(error), line=line) from error

    def expect(self, indices: Sequence[int]) -> None:
        if self.disk is None and self.others is None:
            self.source.expect([k for k in indices if k not in self._kept])

    # -- which stages are kept -------------------------------------------------------------------
    def _look(self, index: int) -> tuple[list[Any], Fields]:
        """A sample whose costs are recorded; with the last of them, the place is chosen."""
        sample, stages = Sample(_NOTHING), len(self.chain.stages)
        rows = np.zeros((stages + 1, 2))
        begin = time.perf_counter()
        sample.values, sample.fields = self.source.read(index)
        rows[0] = time.perf_counter() - begin, sum(map(_bytes, sample.values))
        for k in range(stages):
            cpu = time.thread_time()
            self._run(sample, k, k + 1)
            rows[k + 1] = time.thread_time() - cpu, sum(map(_bytes, sample.values))
        with self._lock:
            if self._looked < LOOKED_AT:
                self._costs[self._looked] = rows
                self._looked += 1
                is_last = self._looked == min(LOOKED_AT, len(self))
                if is_last and self.cut is None:
                    cut = self._best()
                    self._open(cut)
                    self.cut = cut
        return sample.values, sample.fields

    def _best(self) -> int:
        """The cut that saves the most time in an epoch."""
        seconds, size = np.median(self._costs[: self._looked], 0).T
        before = np.cumsum(seconds)
        saved = []
        for k in range(len(size)):
            each = max(float(size[k]), 1.0) * len(self)
            memory = min(self.room / each, 1.0)
            disk = min(self.disk_bytes / each, 1.0) if self.folder is not None else 0.0
            disk = max(disk - memory, 0.0)
            gains = [max(before[k] - size[k] / RATES[name], 0.0) for name in ("memory", "disk")]
            saved.append(memory * gains[0] + disk * gains[1])
        return int(np.argmax(saved))

    # -- on disk ---------------------------------------------------------------------------------
    def _check_hashable(self) -> None:
        """Refuse what cannot be told from run to run, and so would be believed when it has changed."""
        try:
            self._fingerprints = [self._words(cut) for cut in self._cuts()]
            if len(self.source) and not self.version:
                self.source.made_of(0)
        except Unhashable as error:
            raise misfit(
                ArgumentError,
                "cache",
                got=f"{error} in front of a cache on disk",
                needed="what can be told from what it was in another run",
                do='say cache(disk=..., version="1"), and another version whenever it changes',
            ) from None
        except OSError:  # the sample's own fault
            pass

    def _words(self, cut: int) -> str:
        """Describe all that makes samples of this cut, in words."""
        stages = [p.stage for p in self.chain.stages[:cut]]
        parts = [f"format {FORMAT}", f"version {self.version}", code_of_stages()]
        told_of = ["" if self.version else fingerprint(stage) for stage in stages]
        parts += [f"{s.name} {words}" for s, words in zip(stages, told_of, strict=True)]
        return "; ".join(parts)

    def _home(self, cut: int) -> str:
        return digest("samples", self._fingerprints[cut])

    def _before(self) -> int | None:
        """The cut that another run has chosen."""
        assert self.folder is not None
        homes = [Path(self.folder).expanduser() / self._home(k) for k in self._cuts()]
        sizes = [sum(f.stat().st_size for f in home.glob("*.index")) for home in homes]
        return max(self._cuts(), key=lambda k: sizes[k]) if any(sizes) else None

    def _cuts(self) -> range:
        return range(len(self.chain.stages) + 1)

    def _open(self, cut: int | None = None) -> None:
        cut = self.cut if cut is None else cut
        if self.folder is not None and cut is not None:
            self.disk = Disk(self.folder, self._home(cut), self.disk_bytes, self._fingerprints[cut])

    def _key(self, index: int) -> bytes | None:
        if self.disk is None:
            return None
        try:
            said = self.source.made_of(index)
        except Unhashable:
            said = f"{self.source.identity()} {index}"
        except OSError:  # what reads it will say so
            return None
        return hashlib.blake2b(
            said.encode("utf-8", "surrogateescape"), digest_size=16, person=b"sample"
        ).digest()

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        if self.chain.stages or self.folder is not None:
            where = "behind stages" if self.chain.stages else "on disk"
            raise Undescribed(f"a cache {where}, which keeps whole samples")
        return (self.boxes or self.source).parts(index)

    # -- among workers ---------------------------------------------------------------------------
    def share(self, boxes: Callable[[int, Shape], Box3], rank: int) -> Boxes:
        """From here on, workers share single samples, of which each has such a box."""
        if self.boxes is None:
            self.boxes = Boxes(self.source, self.space)
        self.boxes.own.boxes, self.boxes.own.rank = boxes, rank
        return self.boxes

    def offer(self, host: str) -> dict[str, Any]:
        """Offer what is kept here, and where other workers are given it."""
        if self._server is None:
            self._server = Server(self._kept, host)
        with self._lock:
            return offer_of(self._server, self._kept, len(self), self.cut)

    def meet(self, rank: int, offers: Sequence[Any]) -> None:
        """Learn what all keep: from here on, what another one has comes from there."""
        self.others = Others(rank, offers)

    # -- as a source -----------------------------------------------------------------------------
    def identity(self) -> str:
        stages = [p.stage.identity() for p in self.chain.stages]
        return digest("cache", self.source.identity(), *stages)

    def made_of(self, index: int) -> str:
        known = self._fingerprints
        stages = known[-1] if known else self._words(len(self.chain.stages))
        return f"{self.source.made_of(index)}\0{stages}"

    def kept(self) -> list[dict[str, Any]]:
        """Describe what is kept, as plain data: behind which stage, how many samples, how many
        bytes of memory.
        """
        names = ["read", *(p.stage.name for p in self.chain.stages)]
        found = {
            "behind": names[self.cut] if self.cut is not None else "",
            "samples": len(self._kept) + (0 if self.boxes is None else len(self.boxes.own.kept)),
            "memory": self.space.used,
            "disk": len(self.disk) if self.disk is not None else 0,
        }
        return [*super().kept(), found]

    def remarks(self) -> list[str]:
        found = super().remarks()
        if self.disk is not None and self.disk.said:
            found += self.disk.said
            self.disk.said = []
        return found


def caches_of(source: Samples) -> list[Cached]:
    """The caches among a source's own sources, from without to within."""
    found = [source] if isinstance(source, Cached) else []
    return [*found, *(c for inner in source.inner() for c in caches_of(inner))]


_NOTHING = Draws(0, 0)  # for stages that draw nothing


def _bytes(value: Any) -> int:
    size: int = getattr(value, "nbytes", 0)
    return size or (len(value) if isinstance(value, (bytes, str)) else 64)


def _frozen(value: Any) -> Any:
    """A value that nobody changes by mistake, and which keeps no more memory alive than it has."""
    if not isinstance(value, np.ndarray):
        return value
    own = value if value.flags.owndata else value.copy()
    kept = own.view()
    kept.flags.writeable = False
    return kept


@lru_cache(1)
def code_of_stages() -> str:
    """A digest of all that stages of this package are written in, and of what decodes."""
    made = hashlib.blake2b(digest_size=8)
    home = Path(__file__).resolve().parents[1]
    for path in sorted(home.rglob("*.py")):
        made.update(path.name.encode() + b"\0" + path.read_bytes())
    versions = [np.__version__]
    for name in ("simplejpeg", "opencv-python-headless", "opencv-python", "pillow"):
        try:
            versions.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            versions.append("none")
    return f"code {made.hexdigest()} {' '.join(versions)}"
