"""What all files have in common: an array of which any box can be read."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape
from ostinato.ops.core.spec import DTYPES, MOST_AXES, misshapen

from ostinato.errors import DataFileError

LONGEST = 1 << 30  # bytes of one read or write
NEAR = 1 << 14  # bytes between two rows that are sooner read than left out,
LARGEST_CHUNK = 1 << 30  # bytes of what is read whole
HOLES = 1 << 30  # bytes of an array that may be all holes
RATIO = 1100  # times as large as its file: more than compression makes of numbers
_LAZY = "load it with resident=False, and use parts of it"
SLAB = 1 << 16  # if no more than this is read at once


def trouble(path: str, got: str, needed: str, do: str = "") -> DataFileError:
    """What is wrong with a file."""
    error = DataFileError.because(f"file {path}", got=got, needed=needed, do=do)
    assert isinstance(error, DataFileError)
    return error


class Source:
    """An array in a file. `read` may be called by several threads."""

    path: str
    dataset: str | None = None
    shape: Shape
    dtype: np.dtype[Any]
    grain: Shape | None = None  # extents of chunks that are read whole
    by_columns = False  # whether the first axis is the one whose neighbours are next to each other

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """Fill `out`, an array in order, with a box of the file's."""
        raise NotImplementedError

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Source:
        """A slice of it, of which nothing is read yet."""
        return self._part().sliced(starts, sizes, steps)

    def taken(self, places: Any, axis: int) -> Source:
        """These places along an axis, of which nothing is read yet."""
        return self._part().taken(places, axis)

    def _part(self) -> Source:
        from .picks import Part  # which is a Source

        return Part(self, [range(n) for n in self.shape])

    def trouble(self, got: str, needed: str, do: str = "") -> DataFileError:
        return trouble(self.path, got, needed, do)

    def changed(self) -> DataFileError:
        return self.trouble(
            "other content than when it was opened",
            "a file that does not change while it is in use",
            "load it again",
        )

    def as_data(self) -> dict[str, Any]:
        """What another process needs to open the same array: numbers, words, lists."""
        return {
            "path": self.path,
            "dataset": self.dataset,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
        }

    def check_size(self, chunk: Sequence[int] = ()) -> None:
        """Refuse extents that no array can have, and chunks that no memory should have to hold."""
        size = self.dtype.itemsize
        if misshapen(self.shape, size):
            needed = f"at most {MOST_AXES} extents of 0 or more, of fewer than 2**62 bytes"
            raise self.trouble(f"extents {self.shape!r:.80}", needed)
        if chunk and math.prod(chunk) * size > LARGEST_CHUNK:
            raise self.trouble(
                f"chunks {tuple(chunk)!r:.80}", f"at most {LARGEST_CHUNK} bytes each"
            )

    def stored_bytes(self) -> int | None:
        """The bytes that it takes in the file, if that may be much less than in memory."""
        return None

    def check_resident(self, most: int) -> None:
        """Refuse to read all of an array that memory cannot hold, or that is almost all holes."""
        size = math.prod(self.shape) * self.dtype.itemsize
        if size > most:
            raise self.trouble(
                f"an array of {size} bytes", f"at most {most}, which this machine has", _LAZY
            )
        stored = self.stored_bytes() if size > HOLES else None
        if stored is not None and stored * RATIO < size:
            raise self.trouble(
                f"an array of {size} bytes in {stored}",
                "no such holes in what memory must hold",
                _LAZY,
            )

    def known(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in this machine's byte order, if arrays can have it."""
        found = dtype.newbyteorder("=")
        if dtype.hasobject:
            raise self.trouble(
                "Python objects, which only a pickle could hold",
                "numbers",
                "save a numeric array; pickles are never read",
            )
        if found not in DTYPES.values():
            raise self.trouble(f"dtype {dtype}", "one of " + ", ".join(DTYPES))
        return found


def short(error: BaseException) -> str:
    """What a library says, as part of a sentence."""
    said = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {said:.200}" if said else type(error).__name__


def opened(path: str, most: int | None = None) -> bytes:
    """What is in a file, if it is one and no longer than it may be."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or (most is not None and found.st_size > most):
            raise OSError(errno.EINVAL, "no file, or one that is too long", path)
        return file.read()


def regular(path: str) -> None:
    """Raises an OSError unless this is a file: opening a pipe would wait for who writes to it."""
    found = os.stat(path).st_mode
    if not stat.S_ISREG(found):
        kind = errno.EISDIR if stat.S_ISDIR(found) else errno.EINVAL
        raise OSError(
            kind, os.strerror(kind) if stat.S_ISDIR(found) else "not a regular file", path
        )


def version(path: str) -> tuple[int, int] | None:
    """What differs as soon as a file is replaced or written to; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def runs(
    out: np.ndarray[Any, Any], box: Box, shape: Shape
) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """The stretches of a box that lie in one piece in the file: where each goes, and the number of
    its first element."""
    if out.size == 0:
        return
    first, steps, start = _lies(box, shape)
    for place in np.ndindex(out.shape[:first]):
        offset = sum(k * step for k, step in zip(place, steps, strict=False))
        yield out[(*place, ...)], start + offset


def _lies(box: Box, shape: Shape) -> tuple[int, list[int], int]:
    """From which axis on a box lies in one piece, the steps of all axes, and its first element."""
    whole = len(shape)  # from this axis on the box has all
    while whole and box[whole - 1] == (0, shape[whole - 1]):
        whole -= 1
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(lo * step for (lo, _), step in zip(box, steps, strict=True))
    return max(whole - 1, 0), steps, start


def read_box(
    handle: int, out: np.ndarray[Any, Any], box: Box, shape: Shape, begin: int = 0
) -> int | None:
    """Fill `out`, an array in order, with a box of the array that begins at a byte of a file; the byte
    behind which the file ends, if it ends too early. Of rows that are near each other, what lies
    between them is read, too: a call for each would take much longer."""
    if out.size == 0:
        return None
    first, steps, start = _lies(box, shape)
    rows = out if first else out[None]
    size, outer = out.dtype.itemsize, max(first - 1, 0)
    lies = tuple(step * size for step in steps[outer if first else 0 :])
    lies = lies if first else (out.nbytes, *lies)  # one row
    length = rows[(0,) * (outer + 1)].nbytes
    many = max(SLAB // lies[0], 1) if lies[0] - length <= NEAR else 1
    for place in np.ndindex(rows.shape[:outer]):
        at = begin + size * (start + sum(k * n for k, n in zip(place, steps, strict=False)))
        for k in range(0, rows.shape[outer], many):
            part, here = rows[(*place, slice(k, k + many))], at + k * lies[0]
            if len(part) == 1:
                if not fill(handle, part, here):
                    return here
                continue
            slab = np.empty((len(part) - 1) * lies[0] + length, np.uint8)
            if not fill(handle, slab, here):
                return here
            part[...] = np.ndarray(part.shape, out.dtype, slab, 0, lies)
    return None


def fill(handle: int, out: np.ndarray[Any, Any], at: int) -> bool:
    """Read an array's bytes, straight to where they are wanted; False if the file ends before."""
    left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while left:
        count = os.preadv(handle, [left[:LONGEST]], at)
        if not count:
            return False
        left, at = left[count:], at + count
    return True
