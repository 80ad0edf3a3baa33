"""An array in a file, larger than memory may hold, through exp into another file.

All read and write Zarr without compression, in the same chunks. Before each sample the pages of the
source are taken out of the system's memory, so that it comes from the disk (or from what lies under it
and cannot be asked to forget); a sample ends when what was written is on the disk. `copy` copies the same
files and computes nothing: no other can be much faster than that."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .workload import SYSTEMS, Case, Numbers, System, Workload, scaled

BYTES, COLUMNS, ROWS = 8_000_000_000, 4096, 2048  # of the array, and of a chunk: 32 MiB
ROOM = 4  # times its extents that the disk has free, or it is made smaller
LIMITS = 8  # times the memory that plans may use
HOME = "BENCHMARK_STREAMING"  # where the source is, for the processes that measure
Stream = Callable[[Path, Path], object]  # from one store to another


def chunks() -> int:
    """As many as the disk has room for."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    size = min(scaled(BYTES), free // ROOM)
    return max(size // (4 * ROWS * COLUMNS), 2)


def home() -> Path:
    """The folder of this run, made once and gone at its end."""
    if HOME not in os.environ:
        made = Path(tempfile.mkdtemp(prefix="ostinato-streaming-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        write_source(made / "x.zarr", chunks())
        os.environ[HOME] = str(made)
    return Path(os.environ[HOME])


def write_source(path: Path, count: int) -> None:
    from ostinato.io_pipeline.chunks import HEADER, chunk_name, header

    path.mkdir()
    dtype, rng = np.dtype(np.float32), np.random.default_rng(17)
    for k in range(count):
        rng.random((ROWS, COLUMNS), dtype).tofile(path / chunk_name((k, 0)))
    (path / HEADER).write_bytes(header((count * ROWS, COLUMNS), dtype, (ROWS, COLUMNS)))
    on_disk(path)


def on_disk(path: Path, forget: bool = False) -> None:
    """When all files of a store are on the disk; also no more in memory."""
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        if forget:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def some_rows(store: Path) -> Numbers:
    """One row of each chunk."""
    from ostinato.io_pipeline.array_files import open_source

    source: Any = open_source(store)
    found = np.empty((source.shape[0] // ROWS, COLUMNS), np.float32)
    source.sliced((7, 0), found.shape, (ROWS, 1)).read(found, tuple((0, n) for n in found.shape))
    return found


def case(make: Callable[[], Stream], after: Callable[[Numbers], Numbers] = lambda y: y) -> Case:
    source, goal, run = home() / "x.zarr", home() / f"{os.getpid()}.zarr", make()
    size = sum(p.stat().st_size for p in source.iterdir())
    took = [0.0]

    def clock() -> float:
        on_disk(source, forget=True)
        start = time.perf_counter()
        run(source, goal)
        took[0] = time.perf_counter() - start
        shutil.rmtree(goal)
        return took[0]

    def answer() -> Numbers:
        run(source, goal)
        found = after(some_rows(goal))
        shutil.rmtree(goal)
        return found

    return Case(answer, clock=clock, note=lambda: f"{size / took[0] / 1e6:.0f} MB/s")


# -- who streams -----------------------------------------------------------------------------
def ostinato() -> Stream:
    import ostinato as ost

    rows = 4 * ROWS * COLUMNS * chunks_there()
    session = ost.connect(memory_limit=max(rows // LIMITS, 64 << 20))

    def run(source: Path, goal: Path) -> None:
        ost.save(goal, ost.exp(ost.load(source, resident=False)))
        session.wait()

    return run


def chunks_there() -> int:
    return len(list((home() / "x.zarr").glob("c.*")))


def dask() -> Stream:
    import dask.array as da  # type: ignore[import-not-found, unused-ignore]

    from .peers import dask_threads

    dask_threads()

    def run(source: Path, goal: Path) -> None:
        da.to_zarr(da.exp(da.from_zarr(str(source))), str(goal), compressors=None)
        on_disk(goal)

    return run


def numpy() -> Stream:
    """Chunk by chunk, as one writes it in five lines."""

    def run(source: Path, goal: Path) -> None:
        goal.mkdir()
        for file in sorted(source.iterdir()):
            if file.name.startswith("c."):
                x = np.fromfile(file, np.float32)
                np.exp(x, out=x).tofile(goal / file.name)
            else:
                shutil.copyfile(file, goal / file.name)
        on_disk(goal)

    return run


def copy() -> Stream:
    def run(source: Path, goal: Path) -> None:
        shutil.copytree(source, goal)
        on_disk(goal)

    return run


STREAMING = Workload(
    "streaming",
    f"exp of a Zarr of up to {BYTES / 1e9:.0f} GB of float32, {LIMITS} times the memory limit, into another",
    lambda: np.exp(some_rows(home() / "x.zarr")),
    {
        "ostinato": lambda: case(ostinato),
        "copy": lambda: case(copy, np.exp),
        "dask": lambda: case(dask),
        "numpy": lambda: case(numpy),
    },
    traffic=2.0 * 4 * ROWS * COLUMNS * chunks(),
    seconds=40.0,
    limit=900.0,
    systems={
        **SYSTEMS,
        "copy": System(()),
        "dask": replace(SYSTEMS["dask"], modules=("dask.array", "zarr")),
    },
)
