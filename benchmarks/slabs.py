"""Slabs of a compressed volume: 512^3 numbers of uint8 in chunks of 64^3, of which each slab has 8 x 8.

What is reported is the time of a slab, into memory that is there. `1 core` may run on one processor only;
h5py and zarr are given the threads that help them: h5py has a lock around all it does, and zarr threads
of its own."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .workload import SYSTEMS, Case, Numbers, System, Workload, scaled

EXTENT, CHUNK = scaled(512, 128) // 64 * 64, 64
SLABS = EXTENT // CHUNK
Read = Callable[[int, Numbers], object]  # a slab, to where it is wanted


def volume() -> Numbers:
    """Smooth, with noise: about two thirds of it are left when it is compressed."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(118, 40, (EXTENT // 16,) * 3).astype(np.float32)
    x = coarse.repeat(16, 0).repeat(16, 1).repeat(16, 2)
    for axis in range(3):
        x += np.roll(x, 5, axis) + np.roll(x, -5, axis)
        x /= np.float32(3)
    x += rng.normal(0, 2, x.shape).astype(np.float32)
    return np.clip(x, 0, 255).astype(np.uint8)


@functools.cache
def home() -> Path:
    """Files of all runs on this machine."""
    found = Path(tempfile.gettempdir()) / f"ostinato-volume-{EXTENT}-{os.getuid()}"
    if not (found / "complete").exists():
        import h5py
        import zarr

        found.mkdir(exist_ok=True)
        x, chunks = volume(), (CHUNK,) * 3
        with h5py.File(found / "x.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=chunks, compression="gzip")
        zarr.create_array(
            found / "x.zarr", shape=x.shape, chunks=chunks, dtype=x.dtype, overwrite=True
        )[:] = x
        (found / "complete").touch()
    return found


def by_ostinato(name: str) -> Read:
    from ostinato.io_pipeline.array_files import open_source

    source = open_source(home() / name)
    rest = ((0, EXTENT), (0, EXTENT))
    return lambda k, out: source.read(out, ((k * CHUNK, (k + 1) * CHUNK), *rest))


def by_h5py(threads: int) -> Read:
    import h5py

    data = h5py.File(home() / "x.h5")["x"]
    pool = ThreadPoolExecutor(threads)
    part = CHUNK * max(EXTENT // CHUNK // (2 * threads), 1)

    def read(k: int, out: Numbers) -> None:
        def some(begin: int) -> None:
            rows, columns = slice(k * CHUNK, (k + 1) * CHUNK), slice(begin, begin + part)
            data.read_direct(out, np.s_[rows, columns], np.s_[:, columns])

        list(pool.map(some, range(0, EXTENT, part)))

    return read


def by_zarr() -> Read:
    import zarr

    data: Any = zarr.open_array(home() / "x.zarr", mode="r")

    def read(k: int, out: Numbers) -> None:
        out[...] = data[k * CHUNK : (k + 1) * CHUNK]

    return read


def case(make: Callable[[], Read], cores: int = 2) -> Callable[[], Case]:
    def ready() -> Case:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[:cores])
        read, out = make(), np.zeros((CHUNK, EXTENT, EXTENT), np.uint8)

        def answer() -> Numbers:
            read(SLABS - 1, out)
            return out[::7, ::5, ::3].astype(np.float32)

        def loop(n: int) -> None:
            for _ in range(n):
                for k in range(SLABS):
                    read(k, out)

        return Case(answer, loop, per=SLABS)

    return ready


def expected() -> Numbers:
    import h5py

    with h5py.File(home() / "x.h5") as file:
        found: Numbers = file["x"][-CHUNK:][::7, ::5, ::3].astype(np.float32)
    return found


OURS = replace(SYSTEMS["ostinato"], modules=("h5py", "zarr"), install="pip install 'ostinato[io]'")
SYSTEMS_OF_SLABS = {
    "ostinato": OURS,
    "h5py": System(("h5py",), "pip install h5py zarr"),
    "zarr": System(("zarr",), "pip install h5py zarr"),
}
VOLUMES = (
    Workload(
        "volume_gzip",
        f"slabs of {CHUNK} planes of a {EXTENT}^3 of uint8, HDF5 with gzip; time of a slab",
        expected,
        {
            "ostinato": case(lambda: by_ostinato("x.h5")),
            "ostinato/1 core": case(lambda: by_ostinato("x.h5"), 1),
            "h5py": case(lambda: by_h5py(1)),
            "h5py/2 threads": case(lambda: by_h5py(2)),
        },
        seconds=12.0,
        systems=SYSTEMS_OF_SLABS,
    ),
    Workload(
        "volume_zarr",
        f"slabs of {CHUNK} planes of a {EXTENT}^3 of uint8, Zarr with zstd; time of a slab",
        expected,
        {
            "ostinato": case(lambda: by_ostinato("x.zarr")),
            "ostinato/1 core": case(lambda: by_ostinato("x.zarr"), 1),
            "zarr": case(by_zarr),
            "zarr/1 core": case(by_zarr, 1),
        },
        seconds=12.0,
        systems=SYSTEMS_OF_SLABS,
    ),
)
