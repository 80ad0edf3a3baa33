"""Where values go for a while that memory is short for, on a disk: a file of each bound program's own.

    stash     a value is written, by a thread, while the next kernels run
    fetch     it is read back by the same thread, in the order in which both were asked for

The file has no name in its folder, so it is gone whenever its process is. It is opened when the first value is
written, and used again in each run; while its plan rests it takes no room. What fails is raised where the
program waits for it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from ostinato.ops.core import activity
from ostinato.ops.core.helpers import begin_to_help
from ostinato.ops.core.user_line import misfit

from ostinato.errors import DataFileError

SIZES = {"place": 1 << 12, "piece": 1 << 23}  # bytes: of what places are multiples; done at once
LASTING = Path("/var/tmp")  # where large files go that live for a while; /tmp may be memory
Job = Callable[[], None]


def usual_folder() -> Path:
    """That of the environment (TMPDIR), or one that is on a disk."""
    if "TMPDIR" not in os.environ and LASTING.is_dir() and os.access(LASTING, os.W_OK):
        return LASTING
    return Path(tempfile.gettempdir())


class _Request:
    """Something that the thread is to do."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        self.done.wait()
        if self.error is not None:
            raise self.error


class DiskStore:
    """Places in a file, of one worker's program."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else usual_folder()
        self.size = 0  # bytes of all places
        self.written = self.read = 0  # bytes, so far
        self.process = os.getpid()  # a forked child has no thread, and its parent's file
        self.file: int | None = None
        self.jobs: SimpleQueue[_Request | None] = SimpleQueue()
        self.is_stopped = False

    def place(self, size: int) -> int:
        """A place for so many bytes: where it begins."""
        at, self.size = self.size, self.size + -(-size // SIZES["place"]) * SIZES["place"]
        return at

    def stash(self, at: int, x: Any) -> _Request:
        """Begin to write a value to its place."""
        self._open()
        return self._ask(lambda: self._write(at, _bytes(x)))

    def fetch(self, at: int, out: Any) -> _Request:
        """Begin to read it."""
        return self._ask(lambda: self._read(at, _bytes(out)))

    def flush(self) -> None:
        """Leave what was written on the disk alone, as memory that files have beside it may not last."""
        if self.file is not None:
            os.fsync(self.file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def settle(self) -> None:
        """Drop what was asked for and is not done; nothing is read or written when it returns."""
        if self.file is None or os.getpid() != self.process:
            return
        self.is_stopped = True
        last = self._ask(lambda: None)
        last.done.wait()
        self.is_stopped = False

    def let_go(self) -> None:
        """Take no room on the disk until something is written again."""
        if self.file is not None and os.getpid() == self.process:
            self.settle()
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, 0)

    # -- the thread ------------------------------------------------------------------------
    def _open(self) -> None:
        if self.file is not None:
            return
        try:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:  # which has no name
                self.file = os.dup(file.fileno())
        except OSError as error:
            raise self._failed(error) from None
        threading.Thread(
            target=_serve, args=(self.jobs,), name="ostinato-offload", daemon=True
        ).start()
        weakref.finalize(self, _end, self.jobs, self.file, self.process)

    def _ask(self, job: Job) -> _Request:
        request = _Request(job)
        self.jobs.put(request)
        return request

    def _write(self, at: int, value: memoryview) -> None:
        with activity.task("write", "a value that leaves memory", minor=True):
            self.written += self._all(
                lambda begin, n: self._put(at + begin, value, begin, n), value
            )

    def _read(self, at: int, value: memoryview) -> None:
        with activity.task("read", "a value that comes back", minor=True):
            self.read += self._all(lambda begin, n: self._get(at + begin, value, begin, n), value)

    def _put(self, at: int, value: memoryview, begin: int, n: int) -> int:
        assert self.file is not None
        return os.pwrite(self.file, value[begin : begin + n], at)

    def _get(self, at: int, value: memoryview, begin: int, n: int) -> int:
        assert self.file is not None
        return os.preadv(self.file, [value[begin : begin + n]], at)

    def _all(self, some: Callable[[int, int], int], value: memoryview) -> int:
        """Piece by piece, of which a system may do less than it was asked for."""
        done, size = 0, len(value)
        while done < size and not self.is_stopped:
            try:
                count = some(done, min(SIZES["piece"], size - done))
            except OSError as error:
                raise self._failed(error) from None
            if not count:
                raise self._failed(f"a file that ends {size - done} bytes too soon")
            done += count
        return done

    def _failed(self, error: OSError | str) -> Exception:
        got = error if isinstance(error, str) else f"{error.strerror or error}"
        return misfit(
            DataFileError,
            f"values that leave memory for {str(self.folder)!r}",
            got=got,
            needed=f"a folder on a disk with {self.size / 2**20:.1f} MiB of room",
            do="name another one (offload=folder), or allow a larger memory_limit",
        )


def _bytes(x: Any) -> memoryview:
    return memoryview(x.reshape(-1).view(np.uint8))


def _serve(jobs: SimpleQueue[_Request | None]) -> None:
    begin_to_help()
    while (request := jobs.get()) is not None:
        try:
            request.job()
        except BaseException as error:  # raised where somebody waits
            request.error = error
        request.job = _nothing  # which held arrays, and the store
        request.done.set()
        del request


def _nothing() -> None:
    pass


def _end(jobs: SimpleQueue[_Request | None], file: int, process: int) -> None:
    """Nobody has the store any more. In a forked child the thread does not exist."""
    if os.getpid() == process:
        jobs.put(_Request(lambda: os.close(file)))
        jobs.put(None)
    else:
        os.close(file)
