"""Chunks that slabs of several workers of a machine share are inflated by one of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import chunks
from ostinato.io_pipeline.feed import borders as feed_borders
from ostinato.io_pipeline.feed.borders import Borders
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.portions import rows_of
from ostinato.ops.core.layout import Layout, slices

import ostinato as ost
from ostinato.errors import SampleError

SHAPE, GRAIN = (4, 24, 20, 16), (1, 8, 10, 8)


@pytest.fixture(scope="module", params=["h5", "zarr"])
def store(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Callable[[], Pipe]:
    """What opens four volumes with masks, in compressed chunks."""
    root, r = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    x = {
        "volume": r.integers(0, 1000, SHAPE).astype(np.int16),
        "mask": r.integers(0, 3, SHAPE).astype(np.uint8),
    }
    if request.param == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(root / "x.h5", "w") as file:
            for name, values in x.items():
                file.create_dataset(name, data=values, chunks=GRAIN, compression="gzip")
    else:
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(root / "x.zarr", mode="w")
        for name, values in x.items():
            group.create_array(name, shape=SHAPE, chunks=GRAIN, dtype=values.dtype)[:] = values
    path = root / f"x.{request.param}"

    def opened() -> Pipe:
        leaves = {n: ost.load(path, dataset=n, resident=False) for n in x}
        return ost.io.arrays({**leaves, "label": np.arange(4)}).shuffle(2).to("numpy")

    return opened


class Crew:
    """Workers that are threads of this process, each with a pipe of its own."""

    def __init__(self, layout: Layout, halo: int, pipes: list[Pipe], offers: bool = True) -> None:
        self.layout, self.halo = layout, halo
        self.borders = [Borders(self.box) for _ in pipes]
        if offers:
            told = [b.offer("127.0.0.1") | {"rows": [0, 1]} for b in self.borders]
            for rank, b in enumerate(self.borders):
                b.meet(rank, told)
        self.made: list[Any] = [None] * len(pipes)
        work = [
            threading.Thread(target=self.run, args=(rank, pipe)) for rank, pipe in enumerate(pipes)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(60)

    def box(self, rank: int, shape: Any) -> Any:
        halos = dict.fromkeys(range(3), self.halo)
        return self.layout.with_halos(halos, shape).box(shape, rank)

    def run(self, rank: int, pipe: Pipe) -> None:
        def own(shape: Any) -> Any:
            return self.box(rank, shape)

        rows, epoch = rows_of(0, 1), 1
        batches = pipe.run_with(tune=False, threads=1 + rank).begin(
            epoch, 0, rows, False, own, self.borders[rank]
        )
        try:
            self.made[rank] = [*batches]
        except SampleError as error:
            self.made[rank] = error


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often each chunk was."""
    seen: Counter[Any] = Counter()
    chunk, other = files.Hdf5Source._chunk, chunks.ChunkSource._inflated

    def of_hdf5(self: Any, at: Any) -> Any:
        seen[self.dataset, tuple(k // n for k, n in zip(at, self.grain, strict=True))] += 1
        return chunk(self, at)

    def of_zarr(self: Any, handle: int, about: Any, name: str) -> Any:
        seen[self.folder, name] += 1
        return other(self, handle, about, name)

    monkeypatch.setattr(files.Hdf5Source, "_chunk", of_hdf5)
    monkeypatch.setattr(chunks.ChunkSource, "_inflated", of_zarr)
    return seen


CHAINS: dict[str, Callable[[Pipe], Pipe]] = {
    "as they are": lambda p: p,
    "crops": lambda p: p.random_crop3d((17, 16, 9)).random_flip3d(),
    "turns": lambda p: p.center_crop3d((18, 16, 16)).random_rotate90(),
    "values": lambda p: p.normalize3d(500.0, 200.0).gaussian_noise((0.1, 0.3)),
}
LAYOUTS = {
    "two": (Layout((2,), (0,)), 0),
    "two with halos": (Layout((2,), (0,)), 3),
    "five with halos": (Layout((5,), (0,)), 2),
    "across": (Layout((2, 2), (0, 1)), 1),
    "more than there is": (Layout((3,), (1,)), 30),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CHAINS)
def test_each_chunk_is_inflated_once(
    store: Callable[[], Pipe], inflated: Counter[Any], name: str, layout: str
) -> None:
    pipe = CHAINS[name](store()).batch(2)
    wanted = [*pipe.epoch(1)]
    inflated.clear()
    how, halo = LAYOUTS[layout]
    crew = Crew(
        how, halo, [CHAINS[name](store()).batch(2, split="depth") for _ in range(how.workers)]
    )
    for rank, made in enumerate(crew.made):
        for found, batch in zip(made, wanted, strict=True):
            shape = batch["volume"].shape[1:]
            part = slices(crew.box(rank, shape), tuple((0, n) for n in shape))
            for field, x in batch.items():
                whole = x if field == "label" else x[(slice(None), *part)]
                np.testing.assert_array_equal(found[field], whole)
    assert {*inflated.values()} == {1}
    assert not any(b.parcels.held for b in crew.borders)
    if layout != "two":
        assert sum(b.fetched for b in crew.borders) > 0


def test_who_is_given_nothing_reads_for_himself(
    store: Callable[[], Pipe], inflated: Counter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there; or what comes is something else."""
    monkeypatch.setattr(feed_borders, "PATIENCE", 0.1)
    (wanted, *_) = store().batch(4).epoch(1)
    for lost in (True, False):
        pipe = store().batch(4, split="depth")
        borders = Borders(lambda rank, shape: ((8 * rank, 8 * rank + 12), (0, 20), (0, 16)))
        told = [b.offer("127.0.0.1") | {"rows": [0, 1]} for b in (Borders(borders.boxes), borders)]
        borders.meet(1, told)
        if lost:
            borders.lines.offers[0]["token"] = "0" * len(told[0]["token"])
        else:
            monkeypatch.setattr(borders, "_fetch", lambda *_: [np.zeros(3), np.zeros(3, np.uint8)])
        inflated.clear()
        own = partial(borders.boxes, 1)
        (found,) = pipe.begin(1, 0, rows_of(0, 1), False, own, borders)
        np.testing.assert_array_equal(found["volume"], wanted["volume"][:, 8:20])
        np.testing.assert_array_equal(found["mask"], wanted["mask"][:, 8:20])
        assert {*inflated.values()} == {1}


def test_what_fails_on_one_worker_keeps_no_other_one_waiting(
    store: Callable[[], Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = [from_data(as_data(store().batch(4, split="depth"))) for _ in range(2)]

    def broken(self: Any, *given: Any) -> Any:
        raise OSError("a disk that is gone")

    source = pipes[0].source.sources[2]  # type: ignore[attr-defined]
    monkeypatch.setattr(source, "read_chunks", broken.__get__(source))
    monkeypatch.setattr(feed_borders, "PATIENCE", 1000.0)
    crew = Crew(Layout((2,), (0,)), 3, pipes)
    assert isinstance(crew.made[0], SampleError)
    assert "a disk that is gone" in str(crew.made[0])
    (found,) = crew.made[1]
    (wanted, *_) = store().batch(4).epoch(1)
    np.testing.assert_array_equal(found["volume"], wanted["volume"][:, 9:])
