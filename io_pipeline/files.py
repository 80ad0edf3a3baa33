"""Arrays in files: what they are is known from the header; any box of them can be read.

    data.npy            one array, as np.save writes it
    data.h5, .hdf5      a dataset of an HDF5 file (h5py)
    data.zarr           an array of a Zarr store (zarr)

A file is data: nothing in it is ever unpickled. One that changes while it is in use is an error,
not other numbers."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.layout import Box, Shape
from ostinato.ops.spec import DTYPES

from ostinato.errors import DataFileError

SUFFIXES = (".npy", ".h5", ".hdf5", ".zarr")
LONGEST = 1 << 30  # bytes of one read
HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Source:
    """An array in a file. `read` may be called by several threads."""

    path: str
    shape: Shape
    dtype: np.dtype[Any]

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """Fill `out`, an array in order, with a box of the file's."""
        raise NotImplementedError

    def trouble(self, got: str, needed: str, do: str = "") -> DataFileError:
        error = DataFileError.because(f"file {self.path}", got=got, needed=needed, do=do)
        assert isinstance(error, DataFileError)
        return error

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


def open_source(path: str | os.PathLike[str], dataset: str | None = None) -> Source:
    """The array in a file, found by the file's suffix."""
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataFileError.because(
            f"file {name}", got=f"suffix {suffix!r}", needed=" or ".join(SUFFIXES)
        )
    if suffix in (".h5", ".hdf5"):
        return Hdf5Source(name, dataset)
    return ZarrSource(name, dataset) if suffix == ".zarr" else NpySource(name)


# -- npy -----------------------------------------------------------------------------------
class NpySource(Source):
    """Read with `preadv`, straight to where it is wanted."""

    by_columns: bool  # Fortran order
    stored: np.dtype[Any]  # in the file's byte order

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        try:
            with open(self.path, "rb") as file:
                self._header(file)
                self.begin = file.tell()
            self.handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            if isinstance(error, DataFileError):
                raise
            raise self.trouble(str(error), "a file that can be read") from None
        weakref.finalize(self, os.close, self.handle)
        self.state = self._state()
        needed = self.begin + math.prod(self.shape) * self.dtype.itemsize
        if self.state[0] < needed:
            raise self.trouble(
                f"{self.state[0]} bytes", f"{needed}, as its header says", "it is cut off"
            )
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _header(self, file: Any) -> None:
        try:
            version = np.lib.format.read_magic(file)
            if version not in HEADERS:
                raise ValueError(f"format {version}")
            self.shape, self.by_columns, self.stored = HEADERS[version](file)
        except ValueError as error:
            raise self.trouble(str(error), "an array that np.save wrote") from None
        self.by_columns = self.by_columns and len(self.shape) > 1
        self.dtype = self.known(self.stored)

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self.handle)
        return found.st_size, found.st_mtime_ns

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if self.by_columns:
            self._columns(out, box)
        else:
            for place, start in runs(out, box, self.shape):
                self._fill(place, self.begin + start * self.dtype.itemsize)
        if self._state() != self.state:
            raise self.trouble(
                "other content than when it was opened",
                "a file that does not change while it is in use",
                "load it again",
            )
        if self.stored != self.dtype:
            out.byteswap(inplace=True)

    def _columns(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """In Fortran order: a file of the transposed array."""
        turned = np.empty(out.shape[::-1], self.dtype)
        for place, start in runs(turned, box[::-1], self.shape[::-1]):
            self._fill(place, self.begin + start * self.dtype.itemsize)
        out[...] = turned.T

    def _fill(self, out: np.ndarray[Any, Any], at: int) -> None:
        left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        while left:
            count = os.preadv(self.handle, [left[:LONGEST]], at)
            if not count:
                raise self.trouble(
                    f"its end at byte {at}", "the rest of the array", "it was cut off meanwhile"
                )
            left, at = left[count:], at + count


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


# -- HDF5 ----------------------------------------------------------------------------------
class Hdf5Source(Source):
    def __init__(self, path: str, dataset: str | None) -> None:
        self.path = os.path.abspath(path)
        try:
            import h5py
        except ImportError:
            raise self.trouble(
                "no h5py to read it with", "h5py", "install it: pip install h5py"
            ) from None
        try:
            self.file = h5py.File(self.path, "r")
        except OSError as error:
            raise self.trouble(str(error), "an HDF5 file that can be read") from None
        names: list[str] = []
        self.file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        self.data = self.file[_chosen(self, names, dataset)]
        self.shape = tuple(int(n) for n in self.data.shape)
        self.dtype = self.known(self.data.dtype)

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        try:
            self.data.read_direct(out, tuple(slice(lo, hi) for lo, hi in box))
        except OSError as error:
            raise self.trouble(str(error), "an HDF5 file that is whole") from None


def _chosen(source: Source, names: list[str], dataset: str | None) -> str:
    """The one dataset that there is, or the one that is asked for."""
    wanted = dataset.strip("/") if dataset is not None else None
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        assert wanted is not None
        return wanted
    shown = ", ".join(names[:8]) or "none"
    asked = "no dataset=" if dataset is None else f"dataset={dataset!r}"
    raise source.trouble(f"{asked} and the datasets {shown}", "the name of one of them")


# -- Zarr ----------------------------------------------------------------------------------
class ZarrSource(Source):
    def __init__(self, path: str, dataset: str | None) -> None:
        self.path = os.path.abspath(path)
        try:
            import zarr
        except ImportError:
            raise self.trouble(
                "no zarr to read it with", "zarr", "install it: pip install zarr"
            ) from None
        if not os.path.isdir(self.path):
            raise self.trouble("no folder of that name", "a Zarr store")
        try:
            found = zarr.open(self.path, mode="r")
        except Exception as error:  # zarr has many
            raise self.trouble(f"{error}", "a Zarr array or group") from None
        if not hasattr(found, "dtype"):
            names = [name for name, item in found.members(None) if hasattr(item, "dtype")]
            found = found[_chosen(self, sorted(names), dataset)]
        self.data = found
        self.shape = tuple(int(n) for n in found.shape)
        self.dtype = self.known(np.dtype(found.dtype))

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        try:
            out[...] = self.data[tuple(slice(lo, hi) for lo, hi in box)]
        except Exception as error:  # of a store that lost a chunk, or holds a damaged one
            raise self.trouble(
                f"{type(error).__name__}: {error}", "a store that is whole"
            ) from None
