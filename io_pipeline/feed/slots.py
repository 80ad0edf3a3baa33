"""Memory for batches, used again once nobody looks at it any more.

A batch's array lies in memory of this pool. Whatever is made of it without a copy (slices, tensors of other
libraries, an Ostinato array) keeps that array alive; when the last of them is gone, the memory comes back.
Fresh memory costs a page fault for each 4 KiB, which takes as long as decoding some of the samples."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

ALIGN = 64
MAX_PIECES = 64  # pieces of memory, and
ROOM = 256 << 20  # bytes that wait for the next batch, about

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Free = deque[Bytes]


class _Lease:
    """What arrays over a piece of memory refer to. NumPy lets views refer to the first array over
    what is no array itself."""

    def __init__(self, memory: Bytes, free: Free) -> None:
        self.memory, self.free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        if (len(self.free) + 1) * self.memory.nbytes <= ROOM:
            self.free.append(self.memory)


class Slots:
    """Pieces of memory, of a few sizes."""

    def __init__(self) -> None:
        self._free: Free = deque(maxlen=MAX_PIECES)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        lease = _Lease(self._memory(math.prod(shape) * dtype.itemsize), self._free)
        return np.asarray(lease).view(dtype).reshape(shape)

    def _memory(self, size: int) -> Bytes:
        for _ in range(len(self._free)):
            try:
                found = self._free.popleft()
            except IndexError:  # another thread took it
                break
            if found.nbytes == size:
                return found
            self._free.append(found)
        made = np.empty(size + ALIGN, np.uint8)
        start = -made.ctypes.data % ALIGN
        return made[start : start + size]
