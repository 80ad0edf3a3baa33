"""Plans of tests are kept nowhere on disk, unless a test says so. Processes of one run of the tests share a folder of
machine code: what one of them compiled, others load. OSTINATO_TEST_KERNELS may name another one, which stays for the
next run, as `make test` does: machine code lies there under a digest of its text, of the processor, of LLVM and of
how we call it. Bytecode lies where Python keeps it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OSTINATO_CACHE", "off")
if "OSTINATO_TEST_FOLDER" not in os.environ:  # else the process that started this one has made it
    folder = os.environ["OSTINATO_TEST_FOLDER"] = tempfile.mkdtemp(prefix="ostinato-tests-")
    process = os.getpid()
    atexit.register(
        lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True)  # not a fork
    )
    os.environ.setdefault("OSTINATO_TEST_KERNELS", os.path.join(folder, "kernels"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # else its threads turn for long: to 2**n
os.environ.setdefault("OSTINATO_PROGRESS", "off")  # though tests may have a terminal
os.environ.setdefault("OSTINATO_MACHINE", "prompt")  # small arrays are cut, too
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")  # in containers all are root
os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")

import gc
import signal
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples
from ostinato.ops.core import disk_cache
from ostinato.ops.cpu.jit import llvm
from ostinato.runtime.crew.crew import job_size

import ostinato as ost
from ostinato import sessions, settings

from . import fake_device, kept, seconds, thorough  # noqa: F401  (OSTINATO_DEVICE=fake runs tests there)

GPU_IS_LOST = pytest.StashKey[bool]()
WORDS = ("illegaladdress", "misalignedaddress", "launchfailed")

if settings.device != "cpu":  # on borrowed machines packages may lack what they need
    try:
        import zarr  # noqa: F401
    except Exception:
        sys.modules["zarr"] = None  # type: ignore[assignment]  # as if it were absent

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off behind `&`


examples.register_profile(  # examples that hypothesis draws are the same every time
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
examples.load_profile("repeatable")


def share_kernels(folder: Path) -> None:
    """Who has no cache has this one."""
    at = disk_cache.open_cache
    shared: Any = SimpleNamespace(open_cache=lambda asked: at(folder if asked is None else asked))
    llvm.disk_cache = shared


share_kernels(kept.folder() / f"llvm-{kept.digest(Path(llvm.__file__).read_text())}")


@pytest.fixture(autouse=True, scope="module")
def no_session_of_several_is_left() -> Iterator[None]:
    """A file of tests ends the sessions that it opened: they are not those of the next one. Nobody looks for
    garbage among what it leaves behind."""
    yield
    if job_size() == 1:
        assert [s.target.mesh for s in sessions._everybodys if s.workers > 1] == []
    gc.collect()
    gc.freeze()


def pytest_collection() -> None:
    gc.disable()  # as nothing of what is imported is garbage


def pytest_collection_finish() -> None:
    """Nobody looks again and again for garbage among the tests themselves, which are half a million objects;
    and among what is new, only when there is more of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        kept.tidy()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What names no seed draws the same numbers in each run, whatever ran before."""
    seed = zlib.crc32(item.nodeid.encode())
    ost.random.seed(seed)
    np.random.seed(seed)
    before = seconds.used()
    done = yield
    if "OSTINATO_TEST_SECONDS" in os.environ:
        seconds.note(item.nodeid, seconds.used() - before)
    if item.stash.get(GPU_IS_LOST, False) and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(1)  # another process goes on with the next test
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """After an address that is not there a process can use a GPU no more: what fails with it is one test."""
    report = yield
    said = report.longreprtext.replace("_", "").lower() if report.failed else ""
    if any(words in said for words in WORDS):
        item.stash[GPU_IS_LOST] = True
    return report


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Processes that share the files (xdist's) end together if the long ones come first."""
    here, took = Path(__file__).parent, seconds.recorded()
    if settings.device != "cpu":
        reason = f"about a CPU's plans, kernels, threads or memory, on {settings.device}"
        for item in items:
            if item.get_closest_marker("cpu_only"):
                item.add_marker(pytest.mark.skip(reason=reason))
    if thorough.QUICK:
        chosen = thorough.quick(items, took)
        config.hook.pytest_deselected(items=[item for item in items if item not in {*chosen}])
        items[:] = chosen
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -took.get(item.path.relative_to(here).as_posix(), 0.0))


if job_size() > 1:  # under mpiexec the first process runs the tests, and the others leave here
    ost.connect()
