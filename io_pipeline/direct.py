"""Files written past the system's cache of pages, as far as that can be.

What is larger than memory finds no room in that cache: it pushes out what others read, and each page that
is taken for it costs more than the disk does. So whole pages of long stretches go from an array straight
to the disk, or by way of a buffer where the array does not begin on a sector. What is left of a page at
both ends goes through the cache, and so does all where the file system does not let it pass."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from typing import Any

import numpy as np

from .source import LONGEST

PAGE = 1 << 12  # bytes to which places in the file are aligned,
SECTOR = 1 << 9  # and in memory
MIN_DIRECT_BYTES = 1 << 20  # bytes of a stretch that goes past the cache,
MIN_DIRECT_FILE_BYTES = 1 << 26  # and of a file; what is smaller is soon read again
BUFFER = 8 << 20

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_PAST = getattr(os, "O_DIRECT", 0)  # 0 on systems without


class _Buffers(threading.local):
    """Of each thread that writes what does not begin on a sector, one."""

    here: Bytes | None = None

    def get(self) -> Bytes:
        if self.here is None:
            self.here = np.frombuffer(mmap.mmap(-1, BUFFER), np.uint8)
        return self.here


_buffers = _Buffers()


class Writing:
    """A file that is open to be written to, of so many bytes in the end."""

    def __init__(self, path: str, size: int, flags: int = 0) -> None:
        self.handle = os.open(path, os.O_WRONLY | flags, 0o666)
        self.past = -1
        if _PAST and size >= MIN_DIRECT_FILE_BYTES:
            with contextlib.suppress(OSError):  # a file system without
                self.past = os.open(path, os.O_WRONLY | _PAST)

    def put(self, data: Bytes, at: int) -> None:
        """Write bytes at a place of the file."""
        head = min(-at % PAGE, data.size)
        middle = (data.size - head) // PAGE * PAGE
        if self.past < 0 or middle < MIN_DIRECT_BYTES:
            self._through(data, at)
            return
        self._through(data[:head], at)
        done = head + self._pass(data[head : head + middle], at + head)
        self._through(data[done:], at + done)

    def _through(self, data: Bytes, at: int) -> None:
        left = memoryview(data)  # type: ignore[arg-type]
        while left:
            count = os.pwrite(self.handle, left[:LONGEST], at)
            left, at = left[count:], at + count

    def _pass(self, data: Bytes, at: int) -> int:
        """Whole pages, until all are written or some would not pass: how many bytes were."""
        straight, done = data.ctypes.data % SECTOR == 0, 0
        while done < data.size:
            if straight:
                part = data[done : done + LONGEST]
            else:
                part = _buffers.get()[: data.size - done]
                part[...] = data[done : done + part.size]
            try:
                count = os.pwrite(self.past, part, at + done)  # type: ignore[arg-type]
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return done  # aligned otherwise than this file system wants
            done += count
            if count % PAGE:
                break
        return done

    def sync(self) -> None:
        os.fsync(self.handle)

    def close(self) -> None:
        os.close(self.handle)
        if self.past >= 0:
            os.close(self.past)

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
