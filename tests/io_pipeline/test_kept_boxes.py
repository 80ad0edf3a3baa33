"""Samples that workers share, kept in boxes: read once, moved between workers, and to the bit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files, chunks
from ostinato.io_pipeline.feed import kept_boxes
from ostinato.io_pipeline.feed.cached import caches_of
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.samples import Arrays
from ostinato.io_pipeline.feed.share import Share
from ostinato.io_pipeline.feed.store import Lines
from ostinato.ops.core.layout import Layout, slices
from ostinato.ops.core.tree import flatten
from ostinato.runtime.crew.crew_feeding import mapped, slab_of

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.sessions import use

COUNT, SHAPE, GRAIN = 7, (13, 10, 8), (4, 5, 8)
EPOCHS = 3


@pytest.fixture(scope="module", params=["h5", "zarr", "files"])
def store(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Callable[[], Pipe]:
    """What opens seven volumes with masks and answers, which are in the file, too."""
    root, r = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    x: dict[str, Any] = {
        "volume": r.integers(0, 1000, (COUNT, *SHAPE, 2)).astype(np.int16),
        "mask": r.integers(0, 3, (COUNT, *SHAPE)).astype(np.uint8),
        "data": r.normal(size=(COUNT, 4)).astype(np.float32),
    }
    kinds = [*x, "label"]
    if request.param == "zarr":
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(root / "x.zarr", mode="w")
        for name, values in x.items():
            grain = (1, *GRAIN, 2)[: values.ndim] if values.ndim > 2 else values.shape
            group.create_array(name, shape=values.shape, chunks=grain, dtype=values.dtype)[:] = (
                values
            )
    elif request.param == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(root / "x.h5", "w") as file:
            for name, values in x.items():
                file.create_dataset(name, data=values)
    else:
        h5py = pytest.importorskip("h5py")
        for k in range(COUNT):  # of which each has another depth
            with h5py.File(root / f"{k}.h5", "w") as file:
                for name in ("volume", "mask"):
                    value = np.concatenate([x[name][k], x[name][k][: k % 3]])
                    file.create_dataset(name, data=value, chunks=value.shape, compression="gzip")

    def opened() -> Pipe:
        if request.param == "files":
            paths = [str(root / f"{k}.h5") for k in range(COUNT)]
            return ost.io.volumes(paths, labels=[*range(COUNT)], masks="mask", dataset="volume")
        leaves = {n: ost.load(root / f"x.{request.param}", dataset=n, resident=False) for n in x}
        return ost.io.arrays({**leaves, "label": np.arange(COUNT)}, kinds=sorted(kinds))

    return opened


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Bytes that were read of each array, by its kind."""
    seen: Counter[Any] = Counter()
    for kind in (array_files.Hdf5Source, chunks.ChunkSource):

        def counted(self: Any, out: Any, box: Any, before: Any = kind.read) -> None:
            seen[self.dataset or self.path] += out.nbytes
            before(self, out, box)

        monkeypatch.setattr(kind, "read", counted)
    return seen


class Crew:
    """Workers that are threads of this process, each with a pipe of its own."""

    def __init__(self, pipe: Pipe, mesh: tuple[int, ...], halo: int = 0) -> None:
        splits = (0, 1)[-len(mesh) :] if len(mesh) < 3 else (0, 1, 2)
        names = tuple(("samples", "depth", "height")[d] for d in splits)
        halos = tuple(halo if d else 0 for d in splits)
        pipe = pipe.batch(3, split=names, halo=halos)
        shape = (3, 1, 1, 1)
        self.layout = Layout(mesh, splits).with_halos(dict(zip(splits, halos, strict=True)), shape)
        self.pipes = [from_data(as_data(pipe.run_with(tune=False))) for _ in range(self.size)]

    @property
    def size(self) -> int:
        return self.layout.workers

    def epoch(self, number: int, start: int = 0) -> list[Any]:
        """What each worker makes."""
        rows = mapped(self.layout, (0,))

        def own(rank: int, count: int) -> Any:
            return rows.box((count,), rank)[0]

        shares = [
            Share(
                pipe,
                number,
                start,
                partial(own, rank),
                partial(slab_of, self.layout),
                rank,
                lambda: None,
                None,
            )
            for rank, pipe in enumerate(self.pipes)
        ]
        offers = [s.offers("127.0.0.1") for s in shares]
        made: list[Any] = [None] * self.size

        def run(rank: int) -> None:
            shares[rank].meet(rank, offers)
            shares[rank].begin()
            try:
                batches = range(start // 3, len(self.pipes[0]))
                made[rank] = [shares[rank].take(number)[0] for number in batches]
            except SampleError as error:
                made[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return made

    def boxes(self) -> list[kept_boxes.Boxes]:
        found = [caches_of(pipe.source)[0].boxes for pipe in self.pipes]
        return [b for b in found if b is not None]

    def check(self, made: list[Any], wanted: list[Any]) -> None:
        """All have their parts of these batches."""
        rows = mapped(self.layout, (0,))
        for rank, batches in enumerate(made):
            assert len(batches) == len(wanted)
            for leaves, batch in zip(batches, wanted, strict=True):
                whole = flatten(batch)[0]
                first, last = rows.box((len(whole[0]),), rank)[0]
                for found, x in zip(leaves, whole, strict=True) if last > first else ():
                    part = x[first:last]
                    if x.ndim > 3:
                        box = slab_of(self.layout, rank, x.shape[1:4])
                        part = part[
                            (slice(None), *slices(box, tuple((0, n) for n in x.shape[1:4])))
                        ]
                    np.testing.assert_array_equal(found, part)
                    assert found.dtype == x.dtype


CHAINS: dict[str, Callable[[Pipe], Pipe]] = {
    "as they are": lambda p: p.center_crop3d((13, 10, 8)),
    "flips": lambda p: p.center_crop3d((13, 10, 8)).random_flip3d(),
    "crops": lambda p: p.random_crop3d((9, 8, 5)).random_flip3d().normalize3d(5.0, 2.0),
}
MESHES = {
    "one": ((1,), 0),
    "two": ((2,), 0),
    "four with halos": ((4,), 2),
    "two by two": ((2, 2), 1),
    "more than there are samples": ((4, 2), 0),
    "across": ((2, 2, 2), 1),
}


def is_even(crew: Crew) -> bool:
    """Whether all samples have the same extents, so that nothing is cropped."""
    return isinstance(caches_of(crew.pipes[0].source)[0].source, Arrays)


def cells_of(mesh: tuple[int, ...]) -> int:
    """Workers that share a sample."""
    return int(np.prod(mesh[1:] if len(mesh) > 1 else mesh))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CHAINS)
def test_files_are_read_in_the_first_epoch_alone(
    store: Callable[[], Pipe], read: Counter[Any], name: str, mesh: str
) -> None:
    crew = Crew(CHAINS[name](store().cache(1 << 20).shuffle(2)), *MESHES[mesh])
    plain = CHAINS[name](store().shuffle(2)).to("numpy").batch(3)
    cells, total = cells_of(MESHES[mesh][0]), 0
    for epoch in range(EPOCHS):
        wanted = [*plain.epoch(epoch)]
        read.clear()
        crew.check(crew.epoch(epoch), wanted)
        total += sum(read.values())
        assert total <= sum(b.own.room.used for b in crew.boxes())  # all once
        if name != "crops" and is_even(crew):  # others come to all boxes sooner or later
            assert (sum(read.values()) == 0) == (epoch > 0)
            assert sum(len(b.own.kept) for b in crew.boxes()) == COUNT * cells
    assert all(b.own.room.used < 1 << 20 for b in crew.boxes())
    if len(MESHES[mesh][0]) > 1:
        assert sum(b.lines.fetched for b in crew.boxes())


def test_boxes_come_from_the_same_position(
    store: Callable[[], Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no stage moves voxels: halos are kept, too, so one message brings all of a box."""
    crew = Crew(store().cache().shuffle(2), (2, 2), 1)
    if not is_even(crew):
        pytest.skip("volumes of several extents are cropped")
    crew.epoch(0)
    kept = [{*b.own.kept} for b in crew.boxes()]
    assert kept[0] == kept[1]
    assert kept[2] == kept[3]
    asked: list[Any] = []
    ask = Lines.ask

    def noted(self: Lines, holder: int, *key: Any) -> Any:
        asked.append((next(b.own.rank for b in crew.boxes() if b.lines is self), holder, *key))
        return ask(self, holder, *key)

    monkeypatch.setattr(Lines, "ask", noted)
    crew.epoch(1)
    assert asked
    assert all(one % 2 == other % 2 and one != other for one, other, *_ in asked)
    boxes = [found for found in asked if len(found) > 3]
    assert len({found[:3] for found in boxes}) == len(boxes)


@pytest.mark.parametrize("mesh", ["two", "two by two"])
def test_no_more_is_kept_than_there_is_room(
    store: Callable[[], Pipe], read: Counter[Any], mesh: str
) -> None:
    """The rest is read again, and only that."""
    room = 3 * int(np.prod(SHAPE)) * 5
    pipe = store().cache(room).center_crop3d((13, 10, 8)).random_flip3d().shuffle(2)
    crew = Crew(pipe, *MESHES[mesh])
    plain = store().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2).to("numpy").batch(3)
    totals = []
    for epoch in range(EPOCHS):
        wanted = [*plain.epoch(epoch)]
        read.clear()
        crew.check(crew.epoch(epoch), wanted)
        totals.append(sum(read.values()))
        assert all(0 < b.own.room.used <= room for b in crew.boxes())
    kept = sum(len(b.own.kept) for b in crew.boxes())
    assert 0 < kept < COUNT * cells_of(MESHES[mesh][0])
    assert 0 < totals[2] < totals[0] * 0.8


def test_epochs_go_on_in_the_middle(store: Callable[[], Pipe], read: Counter[Any]) -> None:
    """Of a crew that keeps nothing yet, and of the one that began it."""
    pipe = store().cache().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2)
    plain = store().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2).to("numpy").batch(3)
    old, new = Crew(pipe, (2, 2), 1), Crew(pipe, (2, 2), 1)
    old.epoch(0)
    wanted = [[*plain.epoch(e)] for e in range(4)]
    for crew in (old, new):
        crew.check(crew.epoch(1, 3), wanted[1][1:])
        crew.check(crew.epoch(2), wanted[2])
        read.clear()
        crew.check(crew.epoch(3), wanted[3])
        assert not read
        assert sum(len(b.own.kept) for b in crew.boxes()) == COUNT * 2


def test_another_layout_is_another_box(store: Callable[[], Pipe]) -> None:
    """The lead has one cache for all layouts of a pipe."""
    pipe = store().cache().center_crop3d((13, 10, 8)).shuffle(2)
    crew, other = Crew(pipe, (2,), 3), Crew(pipe, (2,), 0)
    plain = [*store().center_crop3d((13, 10, 8)).shuffle(2).to("numpy").batch(3).epoch(1)]
    crew.check(crew.epoch(1), plain)
    used = [b.own.room.used for b in crew.boxes()]
    crew.layout = other.layout
    crew.check(crew.epoch(1), plain)
    assert all(b.own.room.used < n for b, n in zip(crew.boxes(), used, strict=True))


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_who_gives_nothing_is_not_needed(
    store: Callable[[], Pipe], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is wrong with a file is told by who needs it."""
    pipe = store().cache().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2)
    plain = store().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2).to("numpy").batch(3)
    crew = Crew(pipe, (2, 2), 1)
    crew.epoch(0)
    if how == "gone":
        for b in crew.boxes()[:2]:
            monkeypatch.setattr(b.own, "get", lambda key: None)
        crew.check(crew.epoch(1), [*plain.epoch(1)])
        return
    for own in (b.own for b in crew.boxes()):
        own.kept.pop(4, None)

        def parts(index: int, before: Any = own.source.parts) -> Any:
            if index == 4:
                raise OSError("a disk that is gone")
            return before(index)

        monkeypatch.setattr(own.source, "parts", parts)
    made = crew.epoch(1)
    errors = [x for x in made if isinstance(x, SampleError)]
    assert len(errors) == 2  # of both workers that make it
    assert all("sample 4" in str(e) and "a disk that is gone" in str(e) for e in errors)


def test_what_is_not_kept_is_not_given(
    store: Callable[[], Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes of another layout, samples that cannot be read, and numbers of none; nor do they take room."""
    crew = Crew(store().cache().center_crop3d((13, 10, 8)), (1,))
    crew.epoch(0)
    (own,) = (b.own for b in crew.boxes())
    own.boxes = lambda rank, shape: ((0, 6), *((0, n) for n in shape[1:]))
    assert own.get((3, ((2, 6), (0, 10), (0, 8)))) is not None
    assert own.get((3, ((2, 7), (0, 10), (0, 8)))) is None
    assert own.get((COUNT, ((2, 6), (0, 10), (0, 8)))) is None
    del own.kept[4]
    used = own.room.used
    monkeypatch.setattr(own.source, "parts", None)
    assert own.get((4, ((2, 6), (0, 10), (0, 8)))) is None
    assert own.room.used == used


def test_caches_within_other_sources(store: Callable[[], Pipe], read: Counter[Any]) -> None:
    volumes, more = store(), ost.io.arrays(np.arange(COUNT) % 3)

    def joined(first: Pipe) -> Pipe:
        chosen = first.select([6, 0, 3, 4])
        return ost.io.zip(chosen, more.select([1, 2, 3, 4])).center_crop3d((13, 10, 8)).shuffle(5)

    crew, plain = Crew(joined(volumes.cache()), (2, 2), 1), joined(store()).to("numpy").batch(3)
    for epoch in range(EPOCHS):
        wanted = [tuple(flatten(b)[0]) for b in plain.epoch(epoch)]
        read.clear()
        crew.check(crew.epoch(epoch), wanted)
        assert (not read) == (epoch > 0)


def test_threads_of_one_process_keep_whole_samples(
    store: Callable[[], Pipe], read: Counter[Any]
) -> None:
    pipe = store().cache().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2)
    plain = store().center_crop3d((13, 10, 8)).random_flip3d().shuffle(2).to("numpy").batch(3)
    for mesh, split in (((2,), "depth"), ((2, 2), ("samples", "depth"))):
        cached = pipe.batch(3, split=split)
        with use(mesh):
            for epoch in range(2):
                wanted = [flatten(b)[0] for b in plain.epoch(epoch)]
                read.clear()
                for found, x in zip(cached.epoch(epoch), wanted, strict=True):
                    for a, b in zip(flatten(found)[0], x, strict=True):
                        np.testing.assert_array_equal(np.asarray(a), b)
                assert (not read) == (epoch > 0 or mesh == (2, 2))


def test_what_stages_make_is_kept_whole(store: Callable[[], Pipe], tmp_path: Path) -> None:
    for pipe, where in (
        (store().center_crop3d((13, 10, 8)).cache(), "behind stages"),
        (store().cache(version="1", disk=tmp_path), "on disk"),
    ):
        with pytest.raises(ArgumentError, match=f"a cache {where}, which keeps whole samples"):
            pipe.batch(3, split="depth")
