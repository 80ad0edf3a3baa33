"""`ostinato info`: what this library computes with here, and what could be installed beside it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import settings

_ABOUT = """What is installed, what computes, where plans are kept, and what is missing, with the line that
installs it.

    ostinato info"""

# What is optional: the package, what it is for, and how it is installed.
OPTIONAL = (
    ("mpi4py", "processes", "pip install 'ostinato[cluster]'"),
    ("dask", "clusters", "pip install 'ostinato[cluster]'"),
    ("distributed", "clusters", "pip install 'ostinato[cluster]'"),
    ("dask-mpi", "clusters", "pip install 'ostinato[cluster]'"),
    ("bokeh", "the dashboard", "pip install 'ostinato[cluster]'"),
    ("rich", "live lines of `ostinato run`", "pip install rich"),
    ("h5py", "HDF5 files", "pip install 'ostinato[io]'"),
    ("zarr", "Zarr files", "pip install 'ostinato[io]'"),
    ("cupy", "GPUs", "pip install 'ostinato[gpu]'"),
)


_ASK = """import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())"""


def add(commands: Any) -> None:
    made = commands.add_parser(
        "info",
        help="what is installed and what is missing",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(do=lambda asked: show())


def show() -> int:
    lines = list(facts())
    wide = max(len(name) for name, _ in lines)
    for name, said in lines:
        print(f"{name:<{wide}}  {said}")
    missing = list(absent())
    if missing:
        print("\nmissing")
        for name, purpose, install in missing:
            print(f"  {name:<{wide}}  for {purpose}: {install}")
    return 0


def facts() -> Iterator[tuple[str, str]]:
    """Pairs of a name and what there is to say about it."""
    from ostinato import __version__
    from ostinato.ops.cpu.jit.llvm import why_not
    from ostinato.ops.cpu.libraries.onednn import describe_library
    from ostinato.ops.cpu.threads import blas, cores, has_pool, most_threads

    yield "ostinato", f"{__version__}, {Path(__file__).parent}"
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    for name in ("numpy", "llvmlite"):
        yield name, version(name) or "missing"
    yield "cores", f"{cores()}, threads {most_threads()}"
    yield "thread pool", "our own" if has_pool() else "none: it needs Linux"
    yield "kernels", why_not() or "machine code"
    found = blas()
    yield "products", describe_library()
    yield "BLAS", f"OpenBLAS, kernels {found.kernels}" if found is not None else "not OpenBLAS"
    for name, *_ in OPTIONAL:
        if said := version(name):
            yield name, said
    yield "MPI", mpi()
    yield "cache", cache()
    yield "calibrated", calibrated()


def version(package: str) -> str:
    """Empty if it is not installed."""
    for name in (
        (package, f"{package}-cuda13x", f"{package}-cuda12x") if package == "cupy" else (package,)
    ):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def mpi() -> str:
    """The library behind mpi4py and the command that starts processes."""
    from .cluster import mpiexec

    asked = subprocess.run(  # here, MPI would begin, or be there without having begun
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, timeout=60
    )
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["it does not start"])[-1]
        return f"none ({why}): pip install mpi4py mpich"
    library = asked.stdout.strip("\0 \n").splitlines()[0]
    try:
        return f"{' '.join(library.split())}, {mpiexec()[0]}"
    except Exception:
        return f"{' '.join(library.split())}, but no mpiexec: pip install mpich"


def cache() -> str:
    if settings.cache is None:
        return "off (OSTINATO_CACHE)"
    from ostinato.ops.core import disk_cache

    disk = disk_cache.open_cache(settings.cache)
    files = list(disk.files())
    plans, size = sum(f.path.suffix == ".plan" for f in files), sum(f.size for f in files)
    return f"{disk.where()}: {plans} plans, {size / 2**20:.1f} MB in all"


def calibrated() -> str:
    """With what kinds of workers this machine was measured."""
    from ostinato.planner.machine import kinds_known

    return ", ".join(kinds_known()) or "no: ostinato calibrate"


def absent() -> Iterator[tuple[str, str, str]]:
    for package, purpose, install in OPTIONAL:
        if not version(package):
            yield package, purpose, install
