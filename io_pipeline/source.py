"""What all files have in common: an array of which any box can be read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from ostinato.ops.layout import Box, Shape
from ostinato.ops.spec import DTYPES

from ostinato.errors import DataFileError

LONGEST = 1 << 30  # bytes of one read or write


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

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """Fill `out`, an array in order, with a box of the file's."""
        raise NotImplementedError

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
    whole = len(shape)  # from this axis on the box has all
    while whole and box[whole - 1] == (0, shape[whole - 1]):
        whole -= 1
    first = max(whole - 1, 0)
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(lo * step for (lo, _), step in zip(box, steps, strict=True))
    for place in np.ndindex(out.shape[:first]):
        offset = sum(k * step for k, step in zip(place, steps, strict=False))
        yield out[(*place, ...)], start + offset


def fill(handle: int, out: np.ndarray[Any, Any], at: int) -> bool:
    """Read an array's bytes, straight to where they are wanted; False if the file ends before."""
    left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while left:
        count = os.preadv(handle, [left[:LONGEST]], at)
        if not count:
            return False
        left, at = left[count:], at + count
    return True
