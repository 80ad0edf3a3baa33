"""Pipes that feed workers which are processes: each makes its own part, nobody sends a sample, the bits are those
of one process, and whatever fails leaves the crew usable."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.plain import Undescribed
from ostinato.io_pipeline.tuner.together import slowest
from ostinato.ops.core.layout import balanced
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato import sessions
from ostinato.errors import SampleError
from tests.clusters import needs_dask, needs_mpi
from tests.io_pipeline.pictures import folder
from tests.runtime.test_job import mpiexec
from tests.thorough import some


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 images, and a shard of samples of all lengths."""
    root = folder(tmp_path_factory.mktemp("crews"), 27)
    np.save(root / "rows.npy", np.arange(33.0).reshape(11, 3))
    with tarfile.open(root / "lengths.tar", "w") as tar:
        for k in range(11):
            array = io.BytesIO()
            np.save(array, np.arange(k + 1))
            parts = {"npy": array.getvalue(), "cls": b"%d" % (k % 3), "txt": b"text %d" % k}
            for ending, data in parts.items():
                about = tarfile.TarInfo(f"s{k:02d}.{ending}")
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))
    return root


@pytest.fixture(scope="module")
def damaged(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("damaged") / "images"
    shutil.copytree(root, copy)
    (copy / "b" / "004.jpg").write_bytes(b"no picture")
    return copy


def job(count: int, name: str, root: Path, *more: str, **settings: str) -> dict[str, Any]:
    """What a scenario of crew_jobs.py said."""
    done = mpiexec(count, "-m", "tests.io_pipeline.crew_jobs", name, str(root), *more, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = {"stderr": done.stderr}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.JSONDecoder().raw_decode(line)[0]
    return found


@pytest.fixture(scope="module")
def several(root: Path) -> Callable[[int], dict[str, Any]]:
    """What scenarios said that share their processes, of which there are so many."""
    return functools.cache(lambda count: job(count, "each", root, "tails", "later", "alone"))


# -- processes of mpiexec ----------------------------------------------------------------------
@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 1))
def test_each_makes_its_part_and_nobody_sends_samples(root: Path, count: int) -> None:
    found = job(count, "epochs", root)
    assert found["right"] == [4, True, 4, True]
    read = [found[f"read{rank}"] for rank in range(count)]
    assert sum(read) == 2 * 27
    assert max(read) <= 2 * (27 // count + 4)  # of four batches, each a sample more
    orders = found["orders"]
    assert orders["describe"]["messages"] == 1
    assert orders["feed"]["messages"] == 2
    assert orders["batch"]["messages"] == 8
    assert orders["batch"]["bytes"] < 8 * 80
    assert "put" not in orders
    assert found["between"] < 1000  # bytes that the lead sent besides: of forms, once an epoch
    assert found["layouts"] == [f"split 0 of {count}"]
    assert "random_resized_crop" in found["explained"]


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_uneven_parts_never_hang(several: Callable[[int], Any], count: int) -> None:
    right = several(count)["tails"]["right"]
    assert len(right) == 7
    assert all(right.values()), right


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_epochs_go_on_from_states_and_after_failures(root: Path, count: int) -> None:
    found = job(count, "goes_on", root)
    assert found["right"] == [True] * 4
    assert "singular" in found["errors"][0]
    assert found["left"] == [0, 0]


@needs_mpi
def test_any_mesh_and_epochs_beside_each_other(root: Path) -> None:
    np.save(root / "volume.npy", np.arange(4 * 6 * 8 * 5).reshape(4, 6, 8, 5))
    found = job(4, "meshes", root)
    assert len(found["right"]) == 9
    assert all(found["right"].values()), found["right"]
    assert found["layouts"] == [
        "split 0 on axis 0, split 2 on axis 1 of 2x2 in blocks",
        "split 0 on axis 0 of 2x2 in blocks",
    ]
    assert "put" not in found["orders"]


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_a_damaged_file_on_any_worker(damaged: Path, count: int) -> None:
    found = job(count, "damaged", damaged)
    assert "b/004.jpg, in decode (place 26 of epoch 0)" in found["error"]
    assert "crew_jobs.py" in found["line"]
    assert found["total"] == 10
    assert found["right"] == [True, True, True]
    assert found["faults"] == [True, True]


@needs_mpi
def test_what_cannot_be_told_is_made_by_the_program(several: Callable[[int], Any]) -> None:
    found = several(2)["alone"]
    assert found["right"] == [True] * 4
    assert found["said"]["stage"] == ""
    assert "map(<lambda>) is a function" in found["said"]["map"]
    assert "1310720 bytes" in found["said"]["memory"]
    assert found["said"]["samples"]
    assert found["explained"].startswith("The program makes all samples and sends them: map(")


@needs_mpi
def test_ctrl_c_while_somebody_makes_a_batch(root: Path) -> None:
    found = job(2, "interrupted", root)
    assert found["seen"] == ["KeyboardInterrupt"] * 2
    assert found["took"] < 7  # and not as long as the batch, which takes ten seconds
    assert found["right"]


@needs_mpi
@pytest.mark.parametrize(
    ("count", "split", "halo"),
    some([(2, "depth", 0), (3, "height", 0), (3, "height", 2), (2, "depth", 2)], 2),
)
def test_each_reads_its_slab(tmp_path: Path, count: int, split: str, halo: int) -> None:
    r = np.random.default_rng(0)
    volume = r.integers(0, 100, (6, 12, 15, 8)).astype(np.int16)
    np.save(tmp_path / "volume.npy", volume)
    np.save(tmp_path / "mask.npy", (volume > 50).astype(np.uint8))
    found = job(count, "slabs", tmp_path, split, str(halo))
    assert all(found["right"]), found["right"]
    axis = 1 + ("depth", "height").index(split)
    extent = volume.shape[axis]
    reach = f" window {extent}:{-halo}:1:{2 * halo + 1}" if halo else ""
    layouts = [f"split {axis}{reach} of {count}"] * 2 + [f"whole of {count}"]
    assert found["layouts"] == layouts
    total = volume.nbytes + volume.size  # bytes of all volumes and masks
    parts = [balanced(0, extent, count, r) for r in range(count)]
    slabs = [min(hi + halo, extent) - max(lo - halo, 0) for lo, hi in parts]
    assert [found[f"read{r}"] for r in range(count)] == [total // extent * n for n in slabs]
    exchanges = [found[f"started{r}"] for r in range(count)]  # that plans have made ready
    assert all(n == 0 for n in exchanges) if halo else all(n >= 2 for n in exchanges)
    assert "put" not in found["orders"]


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_all_count_their_faults_together(root: Path, tmp_path: Path, count: int) -> None:
    shutil.copytree(root, tmp_path / "images")
    bad = sorted((tmp_path / "images").glob("**/*.jpg"))[::4]
    for path in bad:
        path.write_bytes(b"no picture")
    found = job(count, "rates", tmp_path / "images")
    skip, skip_alone, replace, replace_alone = found["said"]
    assert skip == skip_alone  # at the same batch, in the same words
    assert replace == replace_alone
    for batches, error in (skip, replace):
        assert 0 < batches < 6
        assert "that could not be made, the last one" in error
        assert "needed at most 0.003 of them" in error
    assert found["total"] == 10


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_stages_on_a_device_are_part_of_the_plan(several: Callable[[int], Any], count: int) -> None:
    found = several(count)["later"]
    assert all(found["right"].values()), found["right"]
    assert len(found["right"]) == 13
    assert found["inputs"][0].startswith("uint8")


@needs_mpi
def test_each_chunk_is_inflated_by_one_worker(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    r = np.random.default_rng(0)
    for k in range(5):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            x = r.integers(0, 100, (20, 12, 8)).astype(np.int16)
            file.create_dataset("x", data=x, chunks=(4, 6, 8), compression="gzip")
    for count, mesh in ((3, "3"), (4, "2,2")):
        found = job(count, "borders", tmp_path, mesh)
        assert found["right"]
        assert sum(found[f"seen{rank}"] for rank in range(count)) == 5 * (5 * 2 * 1)


@needs_mpi
def test_all_change_how_they_run_at_the_same_batch(root: Path) -> None:
    found = job(2, "tuned", root, OSTINATO_TUNE="on")
    assert found["switches0"] == found["switches1"]
    assert len(found["switches0"]) > 3
    assert max(threads for _, threads, _, _ in found["switches0"]) > 1  # for the slow one's sake
    assert found["orders"]["messages"] == found["batches"]


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 1))
def test_each_sample_is_made_once_and_given_to_who_needs_it(root: Path, count: int) -> None:
    found = job(count, "stored", root, str(1 << 20))
    assert found["right"] == [True] * 3
    made, fetched, size, kept = np.array([found[f"counts{r}"] for r in range(count)]).T
    assert made.sum(1).tolist() == [27] * 3  # in the first epoch, and never again
    assert kept.sum(1).tolist() == [27 * (16 * 16 * 3 + 64)] * 3
    assert fetched.sum(1)[0] == 0
    assert 27 * (count - 1) / count / 2 < fetched.sum(1)[1] < 27
    assert (size == fetched * 16 * 16 * 3).all()


@needs_mpi
def test_a_store_has_no_more_than_its_room(root: Path) -> None:
    room = 7 * (16 * 16 * 3 + 64) + 100
    found = job(2, "stored", root, str(room))
    assert found["right"] == [True] * 3
    made, fetched, _, kept = np.array([found[f"counts{r}"] for r in range(2)]).T
    assert (kept == 7 * (16 * 16 * 3 + 64)).all()
    assert made.sum(1).tolist() == [27, 27 + 13, 27 + 26]  # what there was no room for
    assert fetched.sum(1)[2] > 0


def volumes(root: Path) -> int:
    """Files of seven volumes; how many bytes all of them have."""
    h5py, r = pytest.importorskip("h5py"), np.random.default_rng(0)
    for k in range(7):
        with h5py.File(root / f"{k}.h5", "w") as file:
            file.create_dataset("x", data=r.integers(0, 100, (20, 12, 8)).astype(np.int16))
    return 7 * 20 * 12 * 8 * 2


@needs_mpi
@pytest.mark.parametrize("mesh", some(["2", "2,2", "4"], 2, 1))
def test_boxes_of_volumes_are_read_once_and_move(tmp_path: Path, mesh: str) -> None:
    total, sizes = volumes(tmp_path), [*map(int, mesh.split(","))]
    found = job(int(np.prod(sizes)), "boxes", tmp_path, mesh, str(1 << 20))
    assert found["right"] == [True] * 4
    counts = np.array([found[f"counts{r}"][:3] for r in range(int(np.prod(sizes)))])
    read, fetched, kept = counts.transpose(2, 1, 0)
    assert read.sum(1).tolist() == [total + total // 20 * 2 * (sizes[-1] - 1), 0, 0]  # with halos
    assert (fetched.sum(1) > 0).all()
    assert (kept[2] - kept[0] <= 7 * 64).all()  # labels of what others gave
    assert (kept.sum(1) < 1.5 * total).all()


@needs_mpi
def test_boxes_of_volumes_have_no_more_than_their_room(tmp_path: Path) -> None:
    total = volumes(tmp_path)
    room = total // 7
    found = job(2, "boxes", tmp_path, "2", str(room))
    assert found["right"] == [True] * 4
    read, _, kept = np.array([found[f"counts{r}"][:3] for r in range(2)]).transpose(2, 1, 0)
    assert (kept <= room).all()
    assert 0.5 * total < read.sum(1)[2] < 0.95 * total


def test_the_slowest_decides() -> None:
    waits, works, idles = (
        [1.0, 0.5, 3.0, 1.0, 0.0],
        [1.4, 0.1, 9.0, 1.0, 0.0],
        [1.4, 0.1, 1.0, 1.0, 0.0],
    )
    assert slowest([idles, waits, works]) == waits
    assert slowest([idles, works]) == works


# -- workers of a Dask cluster -----------------------------------------------------------------
@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ost.LocalCluster(2, heartbeat=60, dashboard=False) as cluster:
        yield cluster


@pytest.fixture
def session(cluster: Any) -> Iterator[sessions.Session]:
    with sessions.using(cluster.session):
        yield cluster.session


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_are_fed(session: sessions.Session, root: Path) -> None:
    pipe = (
        ost.io.images(f"{root}/**/*.jpg", labels="folder")
        .shuffle(seed=7)
        .decode()
        .random_resized_crop(16)
        .normalize(0.5, 0.2)
        .batch(8, tail="keep")
    )
    total = ost.compile(lambda x, y: (x.sum((1, 2, 3)), y * 2))
    for epoch in range(3):
        before = session.engine.stats()["orders"]
        wanted = [*pipe.to("numpy").epoch(epoch)]
        made = [total(x, y) for x, y in pipe.epoch(epoch)]
        after = session.engine.stats()["orders"]
        assert len(made) == 4
        for (sums, twice), (x, y) in zip(made, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(sums), x.sum((1, 2, 3)), rtol=1e-3, atol=1e-3)
            np.testing.assert_array_equal(np.asarray(twice), y * 2)
        batches = [x.get("batch", {"messages": 0, "bytes": 0}) for x in (before, after)]
        assert batches[1]["messages"] - batches[0]["messages"] == 4
        assert batches[1]["bytes"] - batches[0]["bytes"] < 4 * 100
        assert "put" not in after
    assert after["describe"]["messages"] == 1
    figures = pipe.stats()
    assert (figures["epoch"], figures["batches"], figures["workers"]) == (2, 4, 2)
    assert "of 2 waited longest" in pipe.explain()
    operands = [w["operands"] for w in session.stats()["workers"]]
    del made, sums, twice, x, y
    assert [w["operands"] for w in session.stats()["workers"]] < operands


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_cluster_keep_boxes(session: sessions.Session, tmp_path: Path) -> None:
    """Of files whose content is gone then."""
    volumes(tmp_path)
    plain = ost.io.volumes([tmp_path / f"{k}.h5" for k in range(7)])
    wanted = [
        [*plain.shuffle(3).random_flip3d().to("numpy").batch(2).epoch(epoch)] for epoch in range(3)
    ]
    pipe = plain.cache(1 << 20).shuffle(3).random_flip3d().batch(2, split="depth", halo=1)
    for epoch in range(3):
        found = [np.asarray(x) for x in pipe.epoch(epoch)]
        for a, b in zip(found, wanted[epoch], strict=True):
            np.testing.assert_array_equal(a, b)
        for path in tmp_path.glob("*.h5"):
            path.write_bytes(b"")
    assert not isinstance(pipe.cursor.held, str)
    (kept,) = pipe.stats()["kept"]
    assert (kept["behind"], kept["samples"]) == ("read", 7)


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_a_failure_in_a_cluster_and_a_state(
    session: sessions.Session, damaged: Path, root: Path
) -> None:
    plain = ost.io.images(f"{damaged}/**/*.jpg").shuffle(1).decode()

    def run() -> None:
        for _ in plain.resize((16, 16)).batch(8, tail="keep").epoch():
            session.wait()

    with pytest.raises(SampleError, match=r"b/004.jpg, in decode.*test_crews.py"):
        run()
    pipe = plain.on_error("skip").resize((16, 16)).batch(8, tail="keep")
    local = pipe.to("numpy")
    wanted = [*local.epoch(2)]
    batches = iter(pipe.epoch(2))
    found = [next(batches) for _ in range(2)]
    state = json.loads(json.dumps(pipe.state()))
    del batches
    assert pipe.restore(state) == 2
    found += [*pipe]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
    assert [f.name for f in pipe.faults()] == [f.name for f in local.faults()] != []
    assert len(next(iter(pipe))) == 8  # of the epoch after it


# -- what workers are told ---------------------------------------------------------------------
def test_a_pipe_is_plain_data(root: Path, tmp_path: Path) -> None:
    files = ost.io.images(f"{root}/**/*.jpg", labels="folder")
    rows = ost.io.arrays({"a": f"{root}/rows.npy", "label": np.arange(11)})
    tars = ost.io.shards(f"{root}/lengths.tar", ("npy", "cls"))
    pipes = [
        files.shuffle(7, block=3, window=2).decode().random_affine(degrees=(-10, 10)).batch(4),
        files.decode().resize(16).cache(1 << 20).rand_augment().normalize((0.5,) * 3, 0.2).batch(4),
        files.decode().resize((8, 8)).batch(4).mixup(0.2, classes=3).run_with(threads=2, chunk=3),
        files.decode().resize(16).cache(0, disk=tmp_path, where="auto").random_flip().batch(4),
        files.on_error("replace", timeout=9).decode().center_crop(9).batch(4),
        rows.repeat(2).on_error("skip", most=0.5).batch(3, tail="pad"),
        rows.select([3, 1, 2]).bucket([1, 2, 3], window=2).batch(2),
        ost.io.mix(rows, rows, weights=(3, 1)).batch(4, tail="keep"),
        ost.io.zip(rows, rows.select(np.arange(11)[::-1])).batch(4),
        tars.bucket(np.arange(11)).batch(4, pad=0.0),
    ]
    for pipe in pipes:
        said = json.loads(json.dumps(as_data(pipe)))
        other = from_data(said)
        assert other.identity() == pipe.identity()
        assert (other.threads, other.given) == (pipe.threads, pipe.given)
        pairs = zip(other.epoch(1), pipe.to("numpy").epoch(1), strict=True)
        for one, two in pairs:
            for a, b in zip(flatten(one)[0], flatten(two)[0], strict=True):
                np.testing.assert_array_equal(a, b)


def test_pipes_over_other_files_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "lengths.tar", tmp_path / "x.tar")
    said = as_data(ost.io.shards(f"{tmp_path}/x.tar", ("npy",)).batch(2))
    shutil.copy(root / "lengths.tar", tmp_path / "y.tar")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        about = tarfile.TarInfo("s.npy")
        tar.addfile(about, io.BytesIO(b""))
    with pytest.raises(Undescribed, match="a worker finds other samples"):
        from_data(said)
    stage: Any = json.loads(json.dumps(as_data(ost.io.images(f"{root}/**/*.jpg").decode())))
    stage[1][0][0][1][0] = "unheard_of"
    with pytest.raises(Undescribed, match="unheard_of is a stage that workers do not know"):
        from_data(stage)


@needs_mpi
def test_a_training_that_was_broken_off_goes_on(root: Path, tmp_path: Path) -> None:
    found = job(2, "trained", root, str(tmp_path))
    assert found["same"]
    assert found["histories"]
    assert found["losses"][1] < found["losses"][0]
