"""Samples that workers share: each reads and makes its slab, and together they have the bits of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.portions import rows_of
from ostinato.ops.core.layout import Layout, balanced
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.sessions import use


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Four volumes with masks, in files of each kind."""
    root, r = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    volumes = r.integers(0, 1000, (4, 24, 20, 16)).astype(np.int16)
    masks = r.integers(0, 3, (4, 24, 20, 16)).astype(np.uint8)
    np.save(root / "volumes.npy", volumes)
    np.save(root / "masks.npy", masks)
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "volumes.h5", "w") as file:
        for name, x in (("volume", volumes), ("mask", masks)):
            file.create_dataset(name, data=x, chunks=(1, 8, 10, 8), compression="gzip")
    return {"root": root, "volume": volumes, "mask": masks, "label": np.arange(4)}


def npy(files: dict[str, Any]) -> Pipe:
    root = files["root"]
    return ost.io.arrays(
        {"volume": root / "volumes.npy", "mask": root / "masks.npy", "label": files["label"]}
    ).shuffle(2)


CHAINS: dict[str, Callable[[Pipe], Pipe]] = {
    "as they are": lambda p: p,
    "flips": lambda p: p.random_flip3d(),
    "crops": lambda p: p.random_crop3d((17, 16, 9)).center_crop3d((15, 10, 9)),
    "turns": lambda p: p.center_crop3d((18, 16, 16)).random_rotate90(),
    "long turns": lambda p: p.center_crop3d(16).random_rotate90((0, 2)).random_flip3d(),
    "values": lambda p: p.random_intensity((0.9, 1.1), (-5, 5)).normalize3d(500.0, 200.0),
    "noise": lambda p: p.normalize3d(500.0, 200.0).gaussian_noise((0.1, 0.3)),
    "in front": lambda p: p.random_flip3d().normalize3d(500.0, 200.0, layout="cdhw"),
}


def part(pipe: Pipe, split: str, rank: int, workers: int, halo: int = 0) -> list[Any]:
    """What one worker makes of an epoch."""
    axis = ("depth", "height", "width").index(split)
    layout = Layout((workers,), (axis,))

    def box(shape: Any) -> Any:
        return layout.with_halos({axis: halo}, shape).box(shape, rank)

    return [*pipe.run_with(tune=False).begin(1, 0, rows_of(0, 1), box=box)]


@pytest.mark.parametrize("split", ["depth", "height", "width"])
@pytest.mark.parametrize("name", CHAINS)
def test_slabs_are_parts_of_the_whole(files: dict[str, Any], name: str, split: str) -> None:
    pipe = CHAINS[name](npy(files)).to("numpy")
    whole = [*pipe.batch(2).epoch(1)]
    axis = 1 + ("depth", "height", "width").index(split)
    for workers in (2, 3):
        parts = [part(pipe.batch(2, split=split), split, r, workers) for r in range(workers)]
        for k, batch in enumerate(whole):
            for field, x in batch.items():
                own = axis + (name == "in front" and field == "volume")
                pieces = [p[k][field] for p in parts]
                made = pieces[0] if field == "label" else np.concatenate(pieces, own)
                np.testing.assert_array_equal(made, x)
                assert made.dtype == x.dtype


@pytest.mark.parametrize("halo", [1, 4, 30])
@pytest.mark.parametrize("name", CHAINS)
def test_halos_are_the_neighbours_voxels(files: dict[str, Any], name: str, halo: int) -> None:
    pipe = CHAINS[name](npy(files)).to("numpy")
    for k, batch in enumerate(pipe.batch(2).epoch(1)):
        for rank in range(3):
            found = part(pipe.batch(2, split="depth", halo=halo), "depth", rank, 3, halo)[k]
            for field, x in batch.items():
                if field != "label":
                    first = 1 + (name == "in front" and field == "volume")
                    lo, hi = balanced(0, x.shape[first], 3, rank)
                    x = x.take(range(max(lo - halo, 0), min(hi + halo, x.shape[first])), first)
                np.testing.assert_array_equal(found[field], x)


def stencil(x: Any) -> Any:
    """In numbers that no order of additions changes."""
    return x[:, 2:].astype("float32") + x[:, :-2] - 2 * x[:, 1:-1]


@pytest.mark.parametrize("kind", ["npy", "h5"])
@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)])
def test_stencils_of_slabs_with_halos_need_no_message(
    files: dict[str, Any], mesh: Any, kind: str
) -> None:
    pipe = npy(files)
    if kind == "h5":
        path = files["root"] / "volumes.h5"
        names = ("volume", "mask")
        volumes = {n: ost.load(path, dataset=n, resident=False) for n in names}
        pipe = ost.io.arrays({**volumes, "label": files["label"]}).shuffle(2)
    split = "depth" if len(mesh) == 1 else ("samples", "depth")
    wanted = [*pipe.random_flip3d().to("numpy").batch(2).epoch(1)]
    for halo, collectives in ((2, {}), (0, {"halo": 2})):
        with use(mesh):
            step = ost.compile(lambda x, y: (stencil(x), stencil(y)))
            batches = pipe.random_flip3d().batch(2, split=split, halo=halo).epoch(1)
            for found, batch in zip(batches, wanted, strict=True):
                for field, x in found.items():
                    np.testing.assert_array_equal(np.asarray(x), batch[field])
                made = step(found["volume"], found["mask"])
                assert facts(step.plan)["collectives"] == collectives
                for x, field in zip(made, ("volume", "mask"), strict=True):
                    np.testing.assert_array_equal(np.asarray(x), stencil(batch[field]))


@pytest.mark.parametrize("mesh", [(1,), (2,), (3,), (2, 2)])
def test_threads_get_arrays_that_are_split_so(files: dict[str, Any], mesh: Any) -> None:
    with use(mesh):
        split = "height" if len(mesh) == 1 else ("samples", "depth")
        pipe = CHAINS["in front"](npy(files)).batch(2, split=split)
        wanted = [*pipe.to("numpy").epoch(1)]
        for found, batch in zip(pipe.epoch(1), wanted, strict=True):
            for field, x in found.items():
                np.testing.assert_array_equal(np.asarray(x), batch[field])
            if mesh == (3,):
                layouts = [str(found[f].layout) for f in ("volume", "mask", "label")]
                assert layouts == ["split 3 of 3", "split 2 of 3", "whole of 3"]
            if mesh == (2, 2):
                assert found["volume"].layout.splits == (0, 2)
                assert found["mask"].layout.splits == (0, 1)
                assert found["label"].layout.splits == (0, None)


def test_only_the_slab_is_read(files: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.io_pipeline import array_files as kinds

    read: list[Any] = []
    before = kinds.NpySource.read

    def counted(self: Any, out: Any, box: Any) -> None:
        read.append((out.nbytes, box[1]))
        before(self, out, box)

    monkeypatch.setattr(kinds.NpySource, "read", counted)
    total = files["volume"].nbytes + files["mask"].nbytes
    for halo in (0, 3):
        for rank, (lo, hi) in enumerate([(0, 8), (8, 16), (16, 24)]):
            read.clear()
            lo, hi = max(lo - halo, 0), min(hi + halo, 24)
            part(npy(files).to("numpy").batch(2, split="depth"), "depth", rank, 3, halo)
            assert sum(size for size, _ in read) == total * (hi - lo) // 24
            assert {rows for _, rows in read} == {(lo, hi)}


def test_chunks_are_read_by_who_needs_them(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.io_pipeline import array_files as kinds

    read: list[Any] = []
    before = kinds.Hdf5Source._chunk

    def counted(self: Any, index: Any, *more: Any) -> Any:
        read.append((self.dataset, index))
        return before(self, index, *more)

    monkeypatch.setattr(kinds.Hdf5Source, "_chunk", counted)
    path = files["root"] / "volumes.h5"
    volume, mask = (ost.load(path, dataset=d, resident=False) for d in ("volume", "mask"))
    pipe = ost.io.arrays({"volume": volume, "mask": mask}).to("numpy").batch(2, split="depth")
    seen = []
    for rank in range(3):
        read.clear()
        part(pipe, "depth", rank, 3)
        assert len(read) == len({*read}) == 2 * 4 * 1 * 2 * 2
        seen += read
    assert len(seen) == len({*seen})  # slabs end where chunks do: each is read once


def test_files_with_a_volume_each(files: dict[str, Any], tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for k, (x, y) in enumerate(zip(files["volume"], files["mask"], strict=True)):
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        with h5py.File(tmp_path / "ab"[k % 2] / f"{k}.h5", "w") as file:
            file.create_dataset("scan", data=x, chunks=(8, 10, 8), compression="gzip")
            file.create_dataset("tissue", data=y)
        np.save(tmp_path / f"{k}.npy", x)
    order = [0, 2, 1, 3]  # by folders
    pipe = ost.io.volumes(tmp_path, dataset="scan", masks="tissue", labels="folder")
    assert len(pipe) == 8  # with those of NumPy
    pipe = ost.io.volumes(f"{tmp_path}/*/*.h5", dataset="scan", masks="tissue", labels="folder")
    batches = [*pipe.to("numpy").batch(2).epoch(0)]
    x, y, z = (np.concatenate(column) for column in zip(*batches, strict=True))
    np.testing.assert_array_equal(x, files["volume"][order])
    np.testing.assert_array_equal(y, files["mask"][order])
    assert z.tolist() == [0, 0, 1, 1]
    split = pipe.to("numpy").random_flip3d().batch(4, split="depth")
    (whole,) = split.epoch(1)
    for n, axis in enumerate((1, 1, None)):
        pieces = [part(split, "depth", rank, 2)[0][n] for rank in range(2)]
        made = pieces[0] if axis is None else np.concatenate(pieces, axis)
        np.testing.assert_array_equal(made, whole[n])
    other = from_data(as_data(split))
    np.testing.assert_array_equal(next(iter(other.epoch(1)))[0], whole[0])
    plain = ost.io.volumes([tmp_path / f"{k}.npy" for k in range(4)]).to("numpy").batch(4)
    np.testing.assert_array_equal(next(iter(plain.epoch())), files["volume"])
    ost.save(tmp_path / "x.zarr", ost.asarray(files["volume"][0]))
    zarr = ost.io.volumes(tmp_path / "x.zarr").to("numpy").batch(1)
    np.testing.assert_array_equal(next(iter(zarr.epoch()))[0], files["volume"][0])
    with pytest.raises(ArgumentError, match=r"volumes.*got no file for .*\.npy, \.h5"):
        ost.io.volumes(f"{tmp_path}/*.jpg")


@pytest.mark.parametrize(
    ("pipe", "text"),
    [
        (lambda p: p.elastic(), "elastic: it looks at whole samples"),
        (lambda p: p.normalize3d(), "normalize3d: without mean= and std= it needs those of all"),
        (lambda p: p.random_intensity(gamma=(0.5, 2)), "random_intensity: gamma needs the ends"),
        (lambda p: p.on_error("skip"), "on_error('skip'), which workers would do apart"),
        (lambda p: p.map(lambda x: x), "map: it looks at whole samples"),
        (lambda p: p.normalize3d(5.0, 2.0).cache(), "a cache behind stages, which keeps whole"),
    ],
)
def test_what_needs_whole_samples_is_refused(
    files: dict[str, Any], pipe: Callable[[Pipe], Pipe], text: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        pipe(npy(files)).batch(2, split="depth")
    assert "batch(split='depth')" in str(error.value)
    assert text in str(error.value)


def test_other_splits_are_refused(files: dict[str, Any]) -> None:
    for split in ("time", (), ("depth", 3)):
        with pytest.raises(ArgumentError, match="'samples' or 'depth' or 'height' or 'width'"):
            npy(files).batch(2, split=split)  # type: ignore[arg-type]
    for halo, given in ((-1, "depth"), (1.5, "depth"), ((1, 2), "depth"), (2, "samples")):
        with pytest.raises(ArgumentError, match=r"batch .*halo="):
            npy(files).batch(2, split=given, halo=halo)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="samples of image"):
        ost.io.arrays(np.zeros((4, 8, 8, 3))).batch(2, split="depth")
    with pytest.raises(ArgumentError, match=r"got pad=; needed volumes"):
        npy(files).batch(2, split="depth", pad=0)
    with pytest.raises(ArgumentError, match=r"mixup.*parts of samples"):
        npy(files).batch(2, split="depth").mixup()
    pipe = npy(files).batch(2, split="depth", halo=2)
    assert pipe.identity() == npy(files).batch(2).identity()
