"""Arrays in files: what they are is known from the header; any box of them can be read.

    data.npy            one array, as np.save writes it
    data.h5, .hdf5      a dataset of an HDF5 file (h5py)
    data.zarr           an array of a Zarr store (zarr, where it is compressed, of version 2 or in
                        another byte order)

A file is data: nothing in it is ever unpickled. One that changes while it is in use is an error,
not other numbers."""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.layout import Box, Shape
from ostinato.ops.spec import DTYPES

from ostinato.errors import DataFileError

from .chunks import ChunkSource, arrays, plain
from .source import Source, read_box, trouble

SUFFIXES = (".npy", ".h5", ".hdf5", ".zarr")
HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


# -- npy -----------------------------------------------------------------------------------
class NpySource(Source):
    """Read with `preadv`, straight to where it is wanted."""

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
        if self.by_columns:  # a file of the transposed array
            turned = np.empty(out.shape[::-1], self.dtype)
            self._fill(turned, box[::-1], self.shape[::-1])
            out[...] = turned.T
        else:
            self._fill(out, box, self.shape)
        if self._state() != self.state:
            raise self.changed()
        if self.stored != self.dtype:
            out.byteswap(inplace=True)

    def _fill(self, out: np.ndarray[Any, Any], box: Box, shape: Shape) -> None:
        end = read_box(self.handle, out, box, shape, self.begin)
        if end is not None:
            raise self.trouble(
                f"its end behind byte {end}", "the rest of the array", "it was cut off meanwhile"
            )


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
        self.dataset = chosen(self.path, names, dataset)
        self.data = self.file[self.dataset]
        self.shape = tuple(int(n) for n in self.data.shape)
        self.dtype = self.known(self.data.dtype)
        self.grain = self.data.chunks

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        try:
            self.data.read_direct(out, tuple(slice(lo, hi) for lo, hi in box))
        except OSError as error:
            raise self.trouble(str(error), "an HDF5 file that is whole") from None


def chosen(path: str, names: list[str], dataset: str | None) -> str:
    """The one dataset that there is, or the one that is asked for."""
    wanted = dataset.strip("/") if dataset is not None else None
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        assert wanted is not None
        return wanted
    shown = ", ".join(names[:8]) or "none"
    asked = "no dataset=" if dataset is None else f"dataset={dataset!r}"
    raise trouble(path, f"{asked} and the datasets {shown}", "the name of one of them")


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
            found: Any = zarr.open(self.path, mode="r")
        except Exception as error:  # zarr has many
            raise self.trouble(f"{error}", "a Zarr array or group") from None
        if not hasattr(found, "dtype"):
            names = [name for name, item in found.members(None) if hasattr(item, "dtype")]
            self.dataset = chosen(self.path, sorted(names), dataset)
            found = found[self.dataset]
        self.data = found
        self.shape = tuple(int(n) for n in found.shape)
        self.dtype = self.known(np.dtype(found.dtype))
        self.grain = tuple(int(n) for n in found.chunks)

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        try:
            out[...] = self.data[tuple(slice(lo, hi) for lo, hi in box)]
        except Exception as error:  # of a store that lost a chunk, or holds a damaged one
            raise self.trouble(
                f"{type(error).__name__}: {error}", "a store that is whole"
            ) from None


# -- which of them ---------------------------------------------------------------------------
def open_source(path: str | os.PathLike[str], dataset: str | None = None) -> Source:
    """The array in a file, found by the file's suffix."""
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise DataFileError.because(
            f"file {name}", got=f"suffix {suffix!r}", needed=" or ".join(SUFFIXES)
        )
    if dataset is not None and suffix == ".npy":
        raise trouble(name, f"dataset={dataset!r}", "a .h5 or .zarr, which may hold several arrays")
    if suffix in (".h5", ".hdf5"):
        return Hdf5Source(name, dataset)
    if suffix == ".npy":
        return NpySource(name)
    found = plain(name, dataset)
    if found is None and dataset is None and (names := arrays(name)):
        found = plain(name, chosen(name, names, None))
    return found or ZarrSource(name, dataset)


def from_data(data: dict[str, Any]) -> Source:
    """The source that `as_data` told of, opened here."""
    shape, dtype = tuple(data["shape"]), DTYPES[data["dtype"]]
    if "sums" in data:
        return ChunkSource(data["path"], None, shape, dtype, tuple(data["chunks"]), data["sums"])
    found = open_source(data["path"], data["dataset"])
    if (found.shape, found.dtype) != (shape, dtype):
        raise found.trouble(
            f"{found.dtype}{list(found.shape)}",
            f"{dtype}{list(shape)}, as where it was loaded",
            "see that all workers have the same file",
        )
    return found
