"""Pipes: what users write down.

A pipe is a source and a tuple of stages; each method gives another pipe with one more. Nothing runs
before `epoch`. What an epoch holds depends on the pipe, its seed and the epoch's number alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit, short, user_line

from ostinato import settings
from ostinato.errors import ArgumentError

from ..tuner.drive import Drive
from ..tuner.place import own_cores
from . import preview, seeing
from .batch_arrays import FEEDS, LATE, ROOMS, check_target
from .batches import AHEAD, CHUNK, Recipe, Regroups
from .borders import Borders
from .cached import AUTO, END, WHERE, Cached
from .chain import Chain, Placed
from .combined_pipes import Selected
from .entries import Bucket, Cut, Draw, Entry, OnError, Repeat, Shuffle
from .epoch import Cursor, Epoch
from .faults import POLICIES, RAISE, Fault, Policy, Quarantine
from .fields import MASK, VOLUME, Fields
from .later import Later, can_move
from .plain import Undescribed
from .portions import DROP, KEEP, PAD, TAILS, Portions, Rows, StreamPortions, rows_of
from .processes import InProcesses, Unfit, needed_by
from .sample_disk import room_for
from .sample_order import Balanced, Buckets, Order, Weighted
from .samples import Samples, Stream, digest
from .slabs import NAMES, SAMPLES, SlabChain, Slabs
from .stage import STAGES, Box3, Filter, Map, Shape, Stage
from .timed import Timed

FORMAT = 1  # of states
STRICT, RELAXED = ORDERS = ("strict", "relaxed")  # in which batches are handed out
SINGLE = 16  # samples that are made together where nobody asked for batches


@dataclass(frozen=True)
class Pipe:
    """Samples from a source, through stages, in batches.

    >>> pipe = ost.io.samples(range(8)).shuffle(seed=1).batch(4)
    >>> len([batch for batch in pipe])
    2
    """

    source: Samples
    entries: tuple[Entry, ...] = ()
    target: str = "numpy"
    threads: int = 0  # 0: one for each core
    chunk: int = CHUNK
    ahead: int = AHEAD
    most_ahead: int = 0  # bytes that the tuner may go up to; 0: what the memory has
    given: frozenset[str] = frozenset()  # which of these the user has said
    tune: bool = True
    order: str = STRICT
    later: int = 0  # of the last stages, how many are left to who takes batches,
    moves: bool = False  # where the tuner finds that to be faster
    cursor: Cursor = field(default_factory=Cursor, compare=False, repr=False)

    # -- what makes it longer --------------------------------------------------------------------
    def shuffle(self, seed: int = 0, *, block: int = 0, window: int = 1) -> Pipe:
        """Each epoch in another order, which its number and the seed decide. The seed is that of all
        that is random in the pipe.

        block: runs of so many samples stay together, as they lie in a shard; `window` of them are
        shuffled together."""
        _whole("shuffle", "seed", seed, None)
        _whole("shuffle", "block", block, 0)
        _whole("shuffle", "window", window, 1)
        self._count("shuffle")
        return self._then(Shuffle(seed, block, window))

    def weigh(
        self, weights: Any, count: int | None = None, *, replacement: bool = True, seed: int = 0
    ) -> Pipe:
        """An epoch of `count` samples that are drawn with chances as their weights say, instead of a
        shuffle: each time of all, or without replacement of those that were not drawn yet, so heavy ones
        come sooner. weights: a number for each sample of the source. The seed is that of all that is
        random in the pipe.

        >>> pipe = ost.io.samples(range(3)).weigh([0.0, 1.0, 1.0], replacement=False).batch(3)
        >>> [sorted(x.tolist()) for x in pipe]
        [[1, 2]]
        """
        size = self._count("weigh")
        found = np.asarray(weights)
        good = found.shape == (size,) and found.dtype.kind in "iufb"
        found = found.astype(np.float64) if good else np.zeros(0)
        if not (np.isfinite(found).all() and (found >= 0).all() and found.any()):
            got = f"weights={weights!r:.60}"
            needed = f"{size} numbers of 0 or more, not all of them 0"
            raise misfit(ArgumentError, "weigh", got=got, needed=needed)
        most = None if replacement else np.count_nonzero(found)
        return self._draw("weigh", found, count, size if replacement else most, most, seed)

    def balance(
        self,
        labels: Any = None,
        count: int | None = None,
        *,
        replacement: bool = True,
        seed: int = 0,
    ) -> Pipe:
        """An epoch in which all classes are equally likely, instead of a shuffle; without replacement
        exactly equally many of each, as often as the smallest class has samples, others in each epoch.
        labels: a class for each sample of the source, unless that knows them, as
        ost.io.images(labels="folder") does.

        >>> pipe = ost.io.samples(range(6)).balance([0, 0, 0, 0, 1, 1], replacement=False).batch(4)
        >>> [sum(x.tolist()[k] > 3 for k in range(4)) for x in pipe]
        [2]
        """
        size = self._count("balance")
        found = np.asarray(self.source.labels if labels is None else labels)
        if found.shape != (size,) or found.dtype.kind not in "biuUS" or not size:
            got = "no labels" if found.ndim == 0 else f"labels of shape {list(found.shape)}"
            raise misfit(ArgumentError, "balance", got=got, needed=f"a class for each of {size}")
        _, classes, sizes = np.unique(found, return_inverse=True, return_counts=True)
        if replacement:
            return self._draw("balance", 1.0 / sizes[classes], count, size, None, seed)
        most = int(sizes.min()) * len(sizes)
        return self._draw("balance", classes, count, most, most, seed)

    def _draw(
        self, name: str, numbers: Any, count: int | None, usual: Any, most: Any, seed: int
    ) -> Pipe:
        """most: samples that there are without replacement."""
        _whole(name, "seed", seed, None)
        count = int(usual) if count is None else count
        _whole(name, "count", count, 1)
        if most is not None and count > most:
            needed = f"at most {most} without replacement"
            raise misfit(ArgumentError, name, got=f"count={count}", needed=needed)
        return self._then(Draw(name, numbers, int(count), most is None, seed))

    def _count(self, who: str) -> int:
        """How many samples the source has."""
        if isinstance(self.source, Stream):
            needed, do = "a source whose samples have numbers", "use ost.io.samples"
            raise misfit(ArgumentError, who, got="a stream", needed=needed, do=do)
        return len(self.source)

    def repeat(self, passes: int) -> Pipe:
        """All samples so many times in an epoch, shuffled anew each time."""
        _whole("repeat", "passes", passes, 1)
        self._count("repeat")
        return self._then(Repeat(passes))

    def map(
        self,
        function: Any,
        *,
        on: str | None = None,
        kinds: Sequence[str] | None = None,
        random: bool = False,
        processes: bool | int = False,
    ) -> Pipe:
        """A function of samples; behind `batch`, of batches. It runs in several threads at once.

        on: it is given the fields of this kind, one by one, instead of whole samples. kinds: what the
        leaves are of what it gives. random: it is also given a NumPy generator, which depends on
        nothing but the seed, the epoch and the sample's place.

        processes: it runs in so many processes instead, or as many as there are cores, for functions
        that are Python for the most part. They find it by its name: it is a function of a module, or
        of the script that is started, whose own work stands under `if __name__ == "__main__"`."""
        function = _in_processes("map", function, processes)
        return self._then(Map(function, on, None if kinds is None else tuple(kinds), random))

    def filter(
        self, function: Any, *, on: str | None = None, processes: bool | int = False
    ) -> Pipe:
        """Leaves out the samples of which a function says no. Batches are full all the same; how many
        there are is known at the end. Of several workers each makes all samples, to know which ones
        are its own: `select` is for what is known before. on: it is given the field of this kind.
        processes: as in `map`."""
        return self._then(Filter(_in_processes("filter", function, processes), on))

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        tail: str = KEEP,
        pad: float | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        split: str | Sequence[str] = SAMPLES,
        halo: int | Sequence[int] = 0,
    ) -> Pipe:
        """So many samples in one array each; of several workers, together. What is left at an
        epoch's end is a smaller batch, for which compiled functions are planned once more; it is left
        out with drop_last=True (or tail="drop"), and filled up with the epoch's first samples with
        tail="pad".

        collate: a function that is given the samples of a batch as a list, as the source and the stages
        have made them, and puts them together: collate functions of PyTorch's loaders are such ones.
        pad: a number that arrays are filled up with, where those of a batch have other extents. split:
        what workers share: "samples", or "depth", "height" or "width" of volumes, of which each
        reads and makes only its slab; or one of these for each axis of their mesh. halo: so many voxels
        on both sides of its slab each reads as well, so that stencils and convolutions need no messages;
        or a number for each of several splits."""
        _whole("batch", "size", size, 1)
        if tail not in TAILS or (drop_last and tail == PAD):
            needed = " or ".join(map(repr, TAILS))
            got = f"tail={tail!r}" + (", drop_last=True" if drop_last else "")
            raise misfit(ArgumentError, "batch", got=got, needed=needed)
        if collate is not None and not (callable(collate) and pad is None and split == SAMPLES):
            got = f"collate={collate!r:.60}" + callable(collate) * " beside pad= or split="
            raise misfit(ArgumentError, "batch", got=got, needed="a function, without these")
        if any(isinstance(e.what, Cut) for e in self.entries):
            raise misfit(ArgumentError, "batch", got="a second one", needed="one in a pipe")
        splits = (split,) if isinstance(split, str) else tuple(split)
        if not splits or not {*splits} <= {*NAMES}:
            needed = " or ".join(map(repr, NAMES)) + ", or one for each axis of the mesh"
            raise misfit(ArgumentError, "batch", got=f"split={split!r}", needed=needed)
        halos = tuple(halo) if isinstance(halo, Sequence) else (halo,) * len(splits)
        for n in halos:
            _whole("batch", "halo", n, 0)
        fits = len(halos) == len(splits)
        halos = tuple([0 if s == SAMPLES else int(n) for s, n in zip(splits, halos, strict=False)])
        if not fits or (np.any(halo) and not any(halos)):
            needed = "a number for each of what workers share, of depth, height or width"
            got = f"halo={halo!r}, split={split!r}"
            raise misfit(ArgumentError, "batch", got=got, needed=needed)
        tail = DROP if drop_last else tail
        cut = Cut(size, tail, None if pad is None else float(pad), splits, halos, collate)
        if cut.has_slabs:
            self._check_slabs(cut)
        return self._then(cut)

    def _check_slabs(self, cut: Cut) -> None:
        """Refuse what cannot be made of parts of samples."""
        wrong = "stages that are on a device" if self.later else ""
        for e in self.entries:
            if isinstance(e.what, Stage) and (why := e.what.why_whole()):
                wrong = wrong or f"{e.what.name}: {why}"
            if isinstance(e.what, OnError) and e.what.policy != Policy(RAISE, e.what.policy.most):
                wrong = wrong or f"on_error({e.what.policy.do!r}), which workers would do apart"
        known = self._fields()
        if known is not None and not known.select_kind(VOLUME, MASK):
            wrong = wrong or f"samples of {', '.join(known.kinds)}"
        try:
            if not isinstance(self.source, Stream) and len(self.source):
                self.source.parts(0)
        except Undescribed as error:
            wrong = wrong or str(error)
        if wrong or isinstance(self.source, Stream) or cut.pad is not None:
            split = cut.split if len(cut.split) > 1 else cut.split[0]
            raise misfit(
                ArgumentError,
                f"batch(split={split!r})",
                got=wrong or ("pad=" if cut.pad is not None else "a stream"),
                needed="volumes or masks in arrays, and stages that make a part of a part",
                do='leave split= out to share samples, or say kinds=("volume", ...)',
            )

    def bucket(self, lengths: Any, *, window: int = 50) -> Pipe:
        """Batches of samples that are about as long: of so many batches that follow each other, samples
        are sorted by length and the batches shuffled. lengths: a number for each sample of the source."""
        _whole("bucket", "window", window, 1)
        found = np.asarray(lengths)
        count = self._count("bucket")
        if found.shape != (count,) or found.dtype.kind not in "iuf":
            got = f"lengths of shape {list(found.shape)}"
            needed = f"a number for each of {count} samples"
            raise misfit(ArgumentError, "bucket", got=got, needed=needed)
        return self._then(Bucket(found, window))

    def cache(
        self,
        memory: int = 4 << 30,
        *,
        disk: str | os.PathLike[str] | None = None,
        disk_bytes: int | None = None,
        where: str = END,
        version: str = "",
    ) -> Pipe:
        """Keep what the stages so far make, so that later epochs begin there, up to so many bytes; no
        stage so far may be random. It changes no bit. Of volumes that workers share it stands right
        behind the source: each keeps its slabs, and gives them to those who need them later.

        disk: a folder in which samples are kept as well, so that later runs begin there, too, where
        stages and files (names, sizes, times) are the same; any number of processes may share it.
        disk_bytes: at most so many there; else half of what is free may be added. where: "auto" keeps
        what only some of the stages make, if that saves more time in this room. version: say another
        one whenever what these stages make changes in a way that cannot be seen."""
        _whole("cache", "memory", memory, 0)
        if where not in WHERE:
            needed = " or ".join(map(repr, WHERE))
            raise misfit(ArgumentError, "cache", got=f"where={where!r}", needed=needed)
        if disk is not None and disk_bytes is None:
            disk_bytes = room_for(disk)
        _whole("cache", "disk_bytes", disk_bytes or 0, 0)
        self._check_last("cache")
        stages = [e for e in self.entries if isinstance(e.what, Stage)]
        moving = next((e.what.name for e in stages if e.what.is_random), None)  # type: ignore[union-attr]
        if moving is not None or any(isinstance(e.what, Cut) for e in self.entries):
            got = f"{moving} in front of it" if moving else "batches"
            needed, do = "stages that give the same in every epoch", "write it further in front"
            raise misfit(ArgumentError, "cache", got=got, needed=needed, do=do)
        if where == AUTO and any(getattr(e.what, "scale", "full") == "fast" for e in stages):
            got, needed = "where='auto' behind decode(scale='fast')", "the same samples anywhere"
            raise misfit(ArgumentError, "cache", got=got, needed=needed, do="say where='end'")
        if any(isinstance(e.what, Filter) for e in stages):
            got, needed = "a filter in front of it", "all samples"
            do = "write it in front of the filter"
            raise misfit(ArgumentError, "cache", got=got, needed=needed, do=do)
        self._count("cache")
        placed = [Placed(e.what, e.line, -1, Policy()) for e in stages]  # type: ignore[arg-type]
        source = Cached(
            self.source,
            Chain(placed),
            memory,
            self._fields(),
            disk,
            disk_bytes or 0,
            where,
            version,
        )
        others = tuple(e for e in self.entries if not isinstance(e.what, Stage))
        return replace(self, source=source, entries=others, cursor=Cursor())

    def select(self, which: Any) -> Pipe:
        """Some samples of the source, by their numbers or a mask; before all stages."""
        if self.entries:
            raise misfit(ArgumentError, "select", got="stages in front of it", needed="a source")
        return replace(self, source=Selected(self.source, which), cursor=Cursor())

    def on_error(self, do: str, *, most: float = 0.01, timeout: float | None = None) -> Pipe:
        """Say what is to be done about samples that the source and the stages so far cannot make:
        "raise" the error, "skip" them, so that their batch is smaller, or "replace" them by others,
        which their places decide. If more than this part of all fails, an error is raised anyway.

        timeout: a sample that the source does not give within so many seconds has failed as well, and so
        has one for which decode or a function of map or filter takes longer. A process of such a function
        is ended; threads cannot be, and are left behind, up to 32 of each."""
        if do not in POLICIES or not 0 <= most <= 1:
            needed = " or ".join(map(repr, POLICIES)) + ", and a part of all from 0 to 1"
            raise misfit(ArgumentError, "on_error", got=f"{do!r}, most={most!r}", needed=needed)
        if timeout is not None:
            self._count("on_error")
            if not (isinstance(timeout, (int, float)) and 0 < timeout <= threading.TIMEOUT_MAX):
                got, needed = f"timeout={timeout!r}", "seconds, more than 0"
                raise misfit(ArgumentError, "on_error", got=got, needed=needed)
        return self._then(OnError(Policy(do, most, timeout)))

    def to(self, target: str) -> Pipe:
        """Whose arrays batches are: "numpy", "torch", "jax", "ostinato"."""
        return replace(self, target=check_target(target), cursor=Cursor())

    def run_with(
        self,
        *,
        threads: int | None = None,
        chunk: int | None = None,
        ahead: int | None = None,
        tune: bool | None = None,
        order: str | None = None,
    ) -> Pipe:
        """How it runs, which changes no bit of what it gives: threads; samples that one of them takes
        at a time; bytes of batches that wait to be taken. What is not said is tuned while it runs, by the
        time of an iteration, unless tune=False.

        order: "relaxed" hands batches out as they are made, so that one that takes long blocks no other
        ones, of which up to 64 may overtake it. What is in a batch stays the same."""
        if order is not None and order not in ORDERS:
            needed = " or ".join(map(repr, ORDERS))
            raise misfit(ArgumentError, "run_with", got=f"order={order!r}", needed=needed)
        for name, given, least in (
            ("threads", threads, 0),
            ("chunk", chunk, 1),
            ("ahead", ahead, 0),
        ):
            if given is not None:
                _whole("run_with", name, given, least)
        named = {"threads": threads or None, "chunk": chunk, "ahead": ahead}
        said = {name for name, value in named.items() if value is not None}
        return replace(
            self,
            threads=self.threads if threads is None else threads,
            chunk=self.chunk if chunk is None else chunk,
            ahead=self.ahead if ahead is None else ahead,
            tune=self.tune if tune is None else tune,
            order=order or self.order,
            given=self.given - ({"threads"} if threads == 0 else set()) | said,
            cursor=Cursor(),
        )

    def on_device(self, *names: str) -> Pipe:
        """The last stages are made of whole batches where these are taken: within the plan of a compiled
        function that is given the arrays, or in a plan of their own; so uint8 crosses to a device. It is
        written behind them, and changes no bit. names: of the last stages, in their order; without
        them, all that can; "auto": these, where the tuner finds that to be faster. Batches for other
        libraries are made on the host as ever."""
        stages = [e.what for e in self.entries if isinstance(e.what, Stage)]
        known = self._fields()
        count = 0
        if self._cut().has_slabs or self._cut().collate is not None:
            got = "parts of samples, which workers share"
            got = got if self._cut().has_slabs else "batches that a function has put together"
            raise misfit(ArgumentError, "on_device", got=got, needed="whole samples")
        while count < len(stages) and can_move(stages[-1 - count], known):
            count += 1
        moves, names = names == ("auto",), () if names == ("auto",) else names
        asked = len(names) if names else count
        last = [s.name for s in stages[len(stages) - asked :]]
        if asked > count or not asked or (names and last != [*names]):
            can = [s.name for s in stages[len(stages) - count :]]
            got = f"{', '.join(names) or 'stages'} of {', '.join(s.name for s in stages) or 'none'}"
            needed = f"the last stages, of which {', '.join(can) or 'none'} can be on a device"
            raise misfit(ArgumentError, "on_device", got=got, needed=needed)
        return replace(self, later=asked, moves=moves, cursor=Cursor())

    def then(self, stage: Stage) -> Pipe:
        """One more stage, of this package or of the user's."""
        return self._then(stage)

    def __getattr__(self, name: str) -> Callable[..., Pipe]:
        """Stages by their names (stage.py)."""
        kind = STAGES.get(name)
        if kind is None:
            said = f"a pipe has no stage {name!r}; it has {', '.join(sorted(STAGES))}"
            raise AttributeError(said, name=name, obj=self)

        def add(*given: Any, **named: Any) -> Pipe:
            try:
                made = kind(*given, **named)
            except TypeError as error:
                said = str(error).replace(f"{kind.__name__}.__init__()", name)
                raise misfit(ArgumentError, name, got=said, needed=_signature(kind)) from None
            return self._then(made)

        add.__name__, add.__doc__ = name, kind.__doc__
        return add

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *STAGES})

    def __repr__(self) -> str:
        count = "a stream" if isinstance(self.source, Stream) else f"{len(self.source):,} samples"
        kinds = "" if self.source.fields is None else f" of {', '.join(self.source.fields.kinds)}"
        return f"<Pipe: {count}{kinds}: {', '.join(str(e) for e in self.entries) or 'no stages'}>"

    def _then(self, what: Any) -> Pipe:
        behind = any(isinstance(e.what, Cut) for e in self.entries)
        if isinstance(what, Stage):
            self._check_last(what.name)
            if behind and self._cut().has_slabs:
                got = "parts of samples, which workers share"
                raise misfit(ArgumentError, what.name, got=got, needed="whole samples")
            if what.batched != behind and not isinstance(what, Map):
                got = "samples" if what.batched else "batches"
                needed = "batches" if what.batched else "single samples"
                do = f"write it {'behind' if what.batched else 'before'} `batch`"
                raise misfit(ArgumentError, what.name, got=got, needed=needed, do=do)
            known = self._fields()
            if known is not None:
                what.check(known)
        elif isinstance(what, Shuffle | Draw) and any(
            isinstance(e.what, Draw) or (isinstance(what, Draw) and isinstance(e.what, Shuffle))
            for e in self.entries
        ):
            name = getattr(what, "name", "shuffle")
            raise misfit(
                ArgumentError, name, got="a second order", needed="shuffle, weigh or balance"
            )
        elif behind and isinstance(what, Shuffle | Draw | Repeat | Bucket):
            name = getattr(what, "name", type(what).__name__.lower())
            do = "write it before `batch`"
            raise misfit(ArgumentError, name, got="batches", needed="samples", do=do)
        made = Entry(what, short(user_line()))
        return replace(self, entries=(*self.entries, made), cursor=Cursor())

    def _cut(self) -> Cut:
        return next((e.what for e in self.entries if isinstance(e.what, Cut)), Cut(SINGLE, KEEP))

    def _check_last(self, name: str) -> None:
        """Refuse what makes other stages the last ones."""
        if self.later:
            got = f"{name} behind stages that are on a device"
            raise misfit(ArgumentError, name, got=got, needed="stages in front of `on_device`")

    def _fields(self) -> Fields | None:
        """The fields of samples so far, where no function of the user's may have changed them."""
        maps = [e.what for e in self.entries if isinstance(e.what, Map)]
        return self.source.fields if all(m.on is not None for m in maps) else None

    # -- what runs -------------------------------------------------------------------------------
    def epoch(
        self, epoch: int = 0, *, part: tuple[int, int] = (0, 1), progress: bool = False
    ) -> Epoch:
        """The batches of an epoch, made ahead of who iterates over them. part: a worker's number, and
        how many there are; each has its part of every batch. progress: show how far it is (rich)."""
        _whole("epoch", "epoch", epoch, 0)
        rank, workers = part
        _whole("epoch", "part", rank, 0)
        _whole("epoch", "part", workers, 1)
        if rank >= workers:
            got = f"part={part!r}"
            raise misfit(ArgumentError, "epoch", got=got, needed="a number below that of workers")
        cursor = self.cursor
        goes_on = cursor.is_restored and cursor.epoch == epoch
        start, beyond = (cursor.place, cursor.beyond) if goes_on else (0, set())
        self._check_order(workers)
        cursor.epoch, cursor.place, cursor.is_restored = epoch, start, False
        cursor.has_begun, cursor.beyond = True, beyond
        cursor.fed, cursor.figures = None, []
        room = ROOMS[self.target]() if self.target in ROOMS and "ahead" not in self.given else None
        pipe = self
        if room is not None:
            pipe = replace(self, ahead=min(self.ahead, room), most_ahead=room)  # with this cursor
        if not beyond and (apart := FEEDS.get(self.target)) is not None and workers == 1:
            fed: Epoch | None = apart(pipe, epoch, start, progress)
            if fed is not None:
                return fed
        return pipe.begin(epoch, start, rows_of(rank, workers), progress)

    def _check_order(self, workers: int) -> None:
        """Batches that overtake each other are no parts of the same ones; and nobody knows how many
        samples a filter leaves."""
        cuts = [e.what for e in self.entries if isinstance(e.what, Cut)]
        is_filtered = self._is_filtered()
        why = {"without batches": not cuts, "and several workers": workers > 1}
        why["and a filter"] = is_filtered
        if self.order == RELAXED and any(why.values()):
            got = "order='relaxed' " + next(said for said, holds in why.items() if holds)
            needed = "whole batches of which it is known what is in them"
            raise misfit(ArgumentError, "epoch", got=got, needed=needed, do="leave it out")
        unknown = "a filter" if is_filtered else isinstance(self.source, Stream) * "a stream"
        if unknown and any(cut.tail == PAD for cut in cuts):
            got, needed = f"tail='pad' and {unknown}", "tail='drop' or tail='keep'"
            raise misfit(ArgumentError, "epoch", got=got, needed=needed)

    def begin(
        self,
        epoch: int,
        start: int,
        rows: Rows,
        progress: bool = False,
        box: Callable[[Shape], Box3] | None = None,
        borders: Borders | None = None,
    ) -> Epoch:
        """An epoch from a place on, or the part of it that one of several workers makes: these rows of
        each batch, and of volumes what the box says for their depth, height and width. borders: chunks of
        which others of these workers need parts as well."""
        cursor = self.cursor
        place = cursor.drive.place if cursor.drive is not None else 0
        recipe, portions = self._recipe_of(epoch, start, rows, frozenset(cursor.beyond), place)
        if box is not None:
            stages = recipe.chain.stages
            slabs = Slabs(recipe.source, stages, box, borders)
            recipe = replace(recipe, chain=SlabChain(stages), slabs=slabs)
        if self.is_tuned and cursor.drive is None:
            size = portions.size if recipe.regroups is None else recipe.regroups.size
            lo, hi = rows(size)
            cursor.drive = Drive(self.identity(), max(hi - lo, 1))
        is_unknown = isinstance(portions, StreamPortions) or self._is_filtered()
        return Epoch(
            recipe,
            portions,
            epoch,
            cursor=cursor,
            cut=self._cut(),
            target=self.target,
            count=None if is_unknown else len(portions),
            again=lambda place: self._recipe(place)[0],
            progress=progress,
        )

    @property
    def is_tuned(self) -> bool:
        """Whether there is anything to choose while it runs."""
        return self.tune and settings.tune == "on" and (len(self.given) < 3 or self.moves)

    def left_out(self) -> Later | None:
        """The stages that are left to who takes batches, whatever the tuner finds."""
        return None if self.moves else self._recipe()[0].later

    def portions(self, epoch: int, start: int = 0) -> Portions:
        """Return what is in each batch of an epoch, from a place on."""
        return self._recipe_of(epoch, start, rows_of(0, 1))[1]

    def _recipe_of(
        self,
        epoch: int,
        start: int,
        rows: Rows,
        beyond: frozenset[int] = frozenset(),
        place: int = 0,
    ) -> tuple[Recipe, Portions]:
        recipe, cut, order = self._recipe(place)
        kind = StreamPortions if isinstance(self.source, Stream) else Portions
        if self._is_filtered() and recipe.batched is not None:
            recipe = replace(recipe, regroups=Regroups(cut.size, cut.tail == KEEP, rows))
            cut, rows = Cut(SINGLE, KEEP), rows_of(0, 1)
        return recipe, kind(self.source, order, epoch, cut.size, cut.tail, rows, start, beyond)

    def _is_filtered(self) -> bool:
        return any(isinstance(e.what, Filter) for e in self.entries)

    def __iter__(self) -> Iterator[Any]:
        """The epoch after the last one, or what is left of one that was restored."""
        cursor = self.cursor
        is_first = not cursor.has_begun or cursor.is_restored
        return self.epoch(cursor.epoch if is_first else cursor.epoch + 1)

    def __len__(self) -> int:
        """Batches of an epoch, or samples if there are none."""
        if self._is_filtered():
            raise TypeError("how many samples a filter leaves is known at the end of an epoch")
        recipe, _, order = self._recipe()
        return len(order) if recipe.batched is None else len(self.portions(0))

    def _recipe(self, place: int = 0) -> tuple[Recipe, Cut, Order | Buckets]:
        """Return the recipe of batches. place: 1 to leave stages that may move to who takes them."""
        seed, passes, shuffled, drawn, cut, bucket = 0, 1, None, None, None, None
        before: list[Entry] = []
        behind: list[Entry] = []
        policies: dict[int, Policy] = {}  # of the source (-1) and of stages, by their places
        covered = -1
        for entry in self.entries:
            what = entry.what
            if isinstance(what, Shuffle):
                shuffled, seed = what, what.seed
            elif isinstance(what, Draw):
                drawn, seed = what, what.seed
            elif isinstance(what, Repeat):
                passes *= what.passes
            elif isinstance(what, Cut):
                cut = what
            elif isinstance(what, Bucket):
                bucket = what
            elif isinstance(what, OnError):
                policies |= dict.fromkeys(range(covered, len(before)), what.policy)
                covered = len(before)
            elif cut is None:
                before.append(entry)
            else:
                behind.append(entry)
        draws = iter(range(len(before) + len(behind)))

        def placed(entries: Sequence[Entry], is_behind: bool) -> list[Placed]:
            made = []
            for k, e in enumerate(entries):
                assert isinstance(e.what, Stage)
                policy = Policy() if is_behind else policies.get(k, Policy())
                number = next(draws) if e.what.is_random else -1
                made.append(Placed(e.what, e.line, number, policy))
            return made

        stages = placed(before, False)
        movable = self.later if cut is not None and self.target in LATE else 0
        if self.moves and (self._is_filtered() or needed_by(self.source, Chain(stages))):
            movable = 0  # what is under way could not be handed on
        count = len(stages) - (0 if self.moves and not place else movable)
        chain, later = Chain(stages[:count]), Later(stages[count:])
        batched = Chain(placed(behind, True)) if cut is not None else None
        length = 0 if isinstance(self.source, Stream) else len(self.source)
        blocks = () if shuffled is None else (shuffled.block, shuffled.window)
        shuffles = None if shuffled is None else shuffled.seed
        order: Order | Buckets = Order(length, shuffles, passes, *blocks)
        if drawn is not None:
            kind = Weighted if drawn.numbers.dtype.kind == "f" else Balanced
            numbers, again = drawn.numbers, drawn.replacement
            order = kind(drawn.count, seed, passes, weights=numbers, replacement=again)
        if bucket is not None and cut is not None:
            assert isinstance(order, Order)
            order = Buckets(order, bucket.lengths, cut.size, bucket.window)
        policy = policies.get(-1, Policy())
        recipe = Recipe(
            self.source if policy.timeout is None else Timed(self.source, policy.timeout),
            chain,
            batched,
            policy,
            seed,
            self.threads or own_cores(),
            self.chunk,
            self.ahead,
            cut.pad if cut is not None else None,
            cut.collate if cut is not None else None,
            self.given,
            later if later.stages else None,
            next((e.line for e in self.entries if isinstance(e.what, Cut)), ""),
            self.order == RELAXED,
            movable=movable if self.moves else 0,
            most_ahead=self.most_ahead,
        )
        return recipe, cut or Cut(SINGLE, KEEP), order

    def preview(
        self, count: int = 16, path: str | os.PathLike[str] = "preview.png", *, epoch: int = 0
    ) -> str:
        """A picture of the first samples of an epoch, in their files and as they come out of it; where it
        was written."""
        _whole("preview", "count", count, 1)
        _whole("preview", "epoch", epoch, 0)
        self._count("preview")
        own = replace(self, target="numpy", tune=False, order=STRICT, cursor=Cursor())
        own = replace(own, entries=tuple(map(Entry.uncollated, self.entries)))
        pairs: list[tuple[preview.Picture, preview.Picture]] = []
        with own.epoch(epoch) as batches:
            recipe, size = batches._work.recipe, batches._portions.size
            chains = [recipe.chain, *([recipe.batched] if recipe.batched is not None else [])]
            stages = [p.stage for chain in chains for p in chain.stages]
            while len(pairs) < count:
                try:
                    batch = batches._batch()
                except StopIteration:
                    break
                portion = batch.portion
                for row, place in enumerate(portion.places[: count - len(pairs)]):
                    is_single = recipe.batched is None
                    values, fields = (
                        batch.loose[row] if is_single else batches._work.assembly.row(batch, row)
                    )
                    index = row if portion.end is not None else place - portion.number * size
                    source = preview.source_picture(recipe, portion.samples[index])
                    pairs.append((source, preview.picture(values, fields, stages)))
        if not pairs:
            raise misfit(ArgumentError, "preview", got="an empty epoch", needed="samples")
        return preview.save(preview.sheet(pairs), path)

    # -- where it is -----------------------------------------------------------------------------
    @property
    def called(self) -> str:
        """Name the pipe for people, on pages with several: where it was written, and a few digits."""
        line = next((os.path.basename(e.line) for e in self.entries if e.line), "a pipe")
        return f"{line} {self.identity()[:6]}"

    def identity(self) -> str:
        """A digest of all that decides what the epochs hold."""
        told = [
            e.what.identity() if isinstance(e.what, Stage | Bucket | Draw | Cut) else repr(e.what)
            for e in self.entries
        ]
        if self.cursor.source is None:
            self.cursor.source = self.source.identity()
        return digest(self.cursor.source, *told)

    def state(self) -> dict[str, Any]:
        """Where it is: plain data of a few hundred bytes, and what failed so far. What was handed out
        counts as used."""
        cursor = self.cursor
        self._fed("gather")
        return {
            "format": FORMAT,
            "pipe": self.identity(),
            "epoch": cursor.epoch,
            "place": cursor.place,
            **({"beyond": sorted(cursor.beyond)} if cursor.beyond else {}),
            "quarantine": cursor.quarantine.as_data(),
        }

    def restore(self, state: dict[str, Any]) -> int:
        """Go on where a pipe with the same source and stages was: the epoch of the number that this
        gives begins there. Threads and workers may be others, of whom there may be more or fewer."""
        try:
            is_known = state["format"] == FORMAT
            pipe, epoch, place = state["pipe"], state["epoch"], state["place"]
            beyond = {*state.get("beyond", ())}
            quarantine = Quarantine.from_data(state["quarantine"])
        except (KeyError, TypeError):
            is_known = False
        if not is_known:
            got = "what no pipe gave, or one of another version"
            raise misfit(ArgumentError, "restore", got=got, needed="what `state` gave")
        if pipe != self.identity():
            needed = "one with the same source, stages, seed and batch"
            raise misfit(ArgumentError, "restore", got="the state of another pipe", needed=needed)
        _whole("restore", "epoch", epoch, 0)
        _whole("restore", "place", place, 0)
        cursor = self.cursor
        for number in beyond:
            _whole("restore", "beyond", number, 0)
        cursor.epoch, cursor.place, cursor.is_restored = epoch, place, True
        cursor.beyond = beyond
        cursor.quarantine = quarantine
        return int(epoch)

    def faults(self) -> list[Fault]:
        """The samples that could not be made so far, each with its reason."""
        self._fed("gather")
        return list(self.cursor.quarantine.faults.values())

    def stats(self) -> dict[str, Any]:
        """Return what the last epoch cost so far: its stages, its threads, and the loop that takes
        batches; plain data, empty before the first epoch. Of processes, of the one who waited longest."""
        self._fed("look")
        figures, work = self.cursor.figures, self.cursor.work
        if any(figures):
            rank = max(range(len(figures)), key=lambda k: figures[k]["wait"]["mean"])
            return {**figures[rank], "worker": rank, "workers": len(figures)}
        return {} if work is None else seeing.as_data(work)

    def _fed(self, what: str) -> None:
        """Have the epoch that other workers make learn something of them."""
        fed = self.cursor.fed() if self.cursor.fed is not None else None
        if fed is not None:
            getattr(fed, what)()

    def explain(self) -> str:
        """Explain what the last epoch cost so far, which limit binds, and how much is to spare."""
        held = self.cursor.held
        alone = f"\nThe program makes all samples and sends them: {held}." if held else ""
        return seeing.explain(self.stats()) + (alone if isinstance(held, str) else "")

    def metrics(self) -> str:
        """Return what the last epoch cost so far for Prometheus, as text to be served."""
        return seeing.metrics(self.stats())


def _signature(kind: type[Stage]) -> str:
    import inspect

    return str(inspect.signature(kind)).replace(" -> None", "")


def _in_processes(who: str, function: Any, processes: bool | int) -> Any:
    if not callable(function):
        raise misfit(ArgumentError, who, got=type(function).__name__, needed="a function")
    if not processes:
        return function
    most = 0 if processes is True else processes
    _whole(who, "processes", most, 0)
    try:
        return InProcesses(function, int(most))
    except Unfit as error:
        needed = "a function of a module, or of the script that is started"
        do = "write it at the top of a file"
        raise misfit(ArgumentError, who, got=str(error), needed=needed, do=do) from None


def _whole(who: str, what: str, given: Any, least: int | None) -> None:
    good = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    if not good or (least is not None and given < least):
        needed = "a whole number" + (f", {least} or more" if least is not None else "")
        raise misfit(ArgumentError, who, got=f"{what}={given!r}", needed=needed)
