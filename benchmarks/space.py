"""networks cut in space: steps on several workers against one, what of halos is hidden, what is read.

    python -m benchmarks space [--workload NAME,...] [--workers 2] [--cube 64] [--width 8] [--seconds 4]

Steps of CosmoFlow and of a 3-D U-Net on one volume of `cube` voxels each way, of which each worker has a
slab: by threads of one process, and by ranks of MPI where there is an mpiexec. Workers have one core each.
`ratio` is by the clock; `of work` by the time of processors, which others who compute change less: that of
one worker over that of each of several.

Halos of volumes and plates are hidden behind the interior, on a link that is as slow as `overlap` says.
Samples of HDF5 and Zarr with masks are read by slabs and halos: bytes that a worker reads, over those of
its box; and, of workers that keep them (`cache`), in the next epoch, and how much of it moved instead."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.io_pipeline.feed.cached import caches_of
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.portions import rows_of
from ostinato.io_pipeline.feed.share import Share
from ostinato.ops.core.layout import Layout
from ostinato.runtime.crew.crew import job_size
from ostinato.runtime.crew.crew_feeding import mapped, slab_of

import ostinato as ost
from ostinato import nn

from . import machine, overlap, runner

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
HIDDEN = ("volumes", "plate")
READ = ("hdf5", "zarr")


# -- steps ---------------------------------------------------------------------------------------
def stepping(name: str, cube: int, width: int) -> Callable[[], object]:
    """A training step of a network, again and again."""
    sys.path.insert(0, str(MODELS))
    import cosmoflow  # type: ignore[import-not-found, unused-ignore]
    import training  # type: ignore[import-not-found, unused-ignore]
    import unet  # type: ignore[import-not-found, unused-ignore]

    rng = np.random.default_rng(0)
    loss: Any
    if name == "cosmoflow":
        model, loss, channels = cosmoflow.cosmoflow(cube, width=width), nn.mse_loss, 4
        y: Any = rng.normal(size=(1, 4)).astype(np.float32)
    else:
        model, loss, channels = unet.unet(width=width, levels=2), unet.loss, 1
        y = rng.integers(0, 3, (1, cube, cube, cube))
    x = abs(rng.normal(size=(1, channels, cube, cube, cube))).astype(np.float32)
    state = model.init(seed=1)
    kept = [state, ost.tree_map(ost.zeros_like, nn.parameters(state))]
    given = ost.asarray(x, split=2), ost.asarray(y, split=1 if name == "unet" else None)
    step = training.step_of(loss)

    def run() -> None:
        kept[0], kept[1], value = step(*kept, *given, 0)
        float(value)

    return run


def clocked(name: str, given: argparse.Namespace, workers: int) -> tuple[float, float]:
    """Seconds of a step, by the clock and of a worker's processor: the least of many."""
    in_job = job_size() > 1
    with ost.connect(None if in_job else workers, threads=1 if in_job else workers):
        run = stepping(name, given.cube, given.width)
        for _ in range(2):
            run()
        taken, end = list[tuple[float, float]](), time.perf_counter() + given.seconds
        while len(taken) < 3 or time.perf_counter() < end:
            start = time.perf_counter(), time.process_time()
            run()
            taken.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    each = 1 if in_job else workers
    return min(t for t, _ in taken), min(t for _, t in taken) / each


def by_ranks(name: str, given: argparse.Namespace) -> tuple[float, float] | None:
    """The same in a job of its own."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpiexec is None:
        return None
    asked = [
        "--cube",
        str(given.cube),
        "--width",
        str(given.width),
        "--seconds",
        str(given.seconds),
    ]
    command = [mpiexec, "-n", str(given.workers), sys.executable, "-m", "benchmarks", "space"]
    done = subprocess.run(
        [*command, "--rank-of", name, *asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    wall, work = json.loads(done.stdout.splitlines()[-1])
    return wall, work


def steps(given: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
    alone = clocked(name, given, 1)
    for how in ("threads", "ranks"):
        found = clocked(name, given, given.workers) if how == "threads" else by_ranks(name, given)
        if found is not None:
            row: dict[str, Any] = {
                "program": name,
                "how": how,
                "one": alone[0],
                "several": found[0],
            }
            yield row | {"ratio": alone[0] / found[0], "of work": alone[1] / found[1]}


# -- samples -------------------------------------------------------------------------------------
def samples(kind: str, folder: Path, cube: int) -> Pipe:
    """Volumes and masks, in chunks of a plane."""
    rng, shape = np.random.default_rng(0), (2, cube, cube, cube)
    made: dict[str, Any] = {"volume": rng.normal(size=shape).astype(np.float32)}
    made["mask"] = rng.integers(0, 3, shape).astype(np.uint8)
    found = {}
    for name, x in made.items():
        chunks, path = (1, 1, *shape[2:]), folder / f"{name}.{kind}"
        if kind == "hdf5":
            import h5py

            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=x, chunks=chunks)
        else:
            import zarr

            zarr.create_array(path, shape=shape, chunks=chunks, dtype=x.dtype, compressors=None)[
                :
            ] = x
        more = {"dataset": "x"} if kind == "hdf5" else {}
        found[name] = ost.load(path, resident=False, **more)
    return ost.io.arrays(found).to("numpy").batch(1, split="depth", halo=1)


def reads(kind: str, cube: int, workers: int) -> float:
    """Bytes that a worker reads of an epoch, over those of its boxes: the most of any."""
    found = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        pipe = samples(kind, Path(folder), cube)
        for rank in (0, *range(workers)):  # the first time modules are read, too

            def box(shape: Any, rank: int = rank) -> Any:
                return Layout((workers,), (0,)).with_halos({0: 1}, shape).box(shape, rank)

            before = _read()
            epoch = pipe.run_with(tune=False).begin(1, 0, rows_of(0, 1), box=box)
            size = sum(x.nbytes for batch in epoch for x in batch.values())
            found.append((_read() - before) / size)
    return max(found[1:])


def kept(kind: str, cube: int, workers: int) -> tuple[float, float]:
    """Bytes that twice as many workers read and are given in the second epoch, over those of their boxes."""
    layout = Layout((2, workers), (0, 1)).with_halos({1: 1}, (2, 1, 1, 1))
    rows = mapped(layout, (0,))
    with tempfile.TemporaryDirectory() as folder:
        given = samples(kind, Path(folder), cube).source
        pipe = Pipe(given).run_with(tune=False).cache().shuffle(0)
        pipe = pipe.batch(2, split=("samples", "depth"), halo=(0, 1))
        pipes = [from_data(as_data(pipe)) for _ in range(layout.workers)]
        for epoch in range(2):
            before = _read()
            shares = []
            for rank, one in enumerate(pipes):

                def own(count: int, rank: int = rank) -> tuple[int, int]:
                    return rows.box((count,), rank)[0]

                boxes = partial(slab_of, layout)
                shares.append(Share(one, epoch, 0, own, boxes, rank, lambda: None, None))
            offers = [share.offers("127.0.0.1") for share in shares]
            for rank, share in enumerate(shares):
                share.meet(rank, offers)
                share.begin()
            size = sum(x.nbytes for share in shares for x in share.take(0)[0])
    found = [cache.boxes for one in pipes for cache in caches_of(one.source)]
    moved = sum(boxes.lines.bytes for boxes in found if boxes is not None)
    return (_read() - before) / size, moved / size


def _read() -> int:
    """Bytes that this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("rchar")).split()[1])


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks space", description=__doc__)
    parser.add_argument("--workload", default="", help="programs, by how their names begin")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cube", type=int, default=64)
    parser.add_argument("--width", type=int, default=8, help="channels of the first layer")
    parser.add_argument("--seconds", type=float, default=4.0, help="of runs for each figure")
    parser.add_argument("--share", type=float, default=0.5, help="of messages to computation")
    parser.add_argument("--rank-of", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(args)
    if given.rank_of:
        print(json.dumps(clocked(given.rank_of, given, given.workers)))
        return 0
    if not given.json:
        print(machine.in_words(runner.probe()), flush=True)
    wanted = tuple(given.workload.split(","))

    def tell(row: dict[str, Any]) -> None:
        if given.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                "  ".join(
                    f"{k} {v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items()
                )
            )

    for name in ("cosmoflow", "unet"):
        for row in steps(given, name) if name.startswith(wanted) else ():
            tell(row)
    for name in HIDDEN:
        if name.startswith(wanted):
            seen = overlap.measure(name, given.workers, given.share, 50e-6, given.seconds)
            tell({"program": name, "messages": seen.messages, "hidden": seen.hidden})
    for kind in READ:
        if kind.startswith(wanted):
            for _ in range(2):  # the first time modules are read, too
                again, moved = kept(kind, given.cube, given.workers)
            row = {"program": kind, "read": reads(kind, given.cube, given.workers)}
            tell(row | {"read again": again, "moved": moved})
    return 0
