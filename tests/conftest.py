"""Plans of tests are kept nowhere on disk, unless a test says so. OSTINATO_TEST_KERNELS may name a folder for machine
code: what one process or run of the tests compiled, others load."""

from __future__ import annotations

import os

os.environ.setdefault("OSTINATO_CACHE", "off")

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ostinato.ops.core import disk_cache
from ostinato.ops.cpu.jit import llvm
from ostinato.runtime.crew.crew import job_size

import ostinato as ost

from . import fake_device  # noqa: F401  (OSTINATO_DEVICE=fake runs tests there)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off behind `&`


def share_kernels(folder: Path) -> None:
    """Who has no cache has this one."""
    at = disk_cache.at
    shared: Any = SimpleNamespace(at=lambda asked: at(folder if asked is None else asked))
    llvm.disk_cache = shared


if "OSTINATO_TEST_KERNELS" in os.environ:
    share_kernels(Path(os.environ["OSTINATO_TEST_KERNELS"]))

if job_size() > 1:  # under mpiexec the first process runs the tests, and the others leave here
    ost.connect()
