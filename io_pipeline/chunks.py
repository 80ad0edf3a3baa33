"""Arrays in chunks, as Zarr (version 3) has them: a folder per array, a file per chunk.

    x.zarr/zarr.json     shape, dtype, extents of a chunk
    x.zarr/c.0.0 ...     the numbers of one chunk, in order, as they lie in memory

What is written here, any library of Zarr reads. What others wrote in this manner, uncompressed, is
read here: of a chunk only the bytes that are wanted. With checksums chunks are read whole, and what
differs from what was written is refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from ostinato.ops.layout import Box, Shape, intersect, slices
from ostinato.ops.spec import DTYPES

from .source import Source, read_box, version

HEADER = "zarr.json"
LARGE = 1 << 22  # bytes for which it is worth to start threads
THREADS = 4
_KEYS = {"default": ("c", "/"), "v2": ("", ".")}  # what chunks' names begin with, and separators


def header(shape: Shape, dtype: np.dtype[Any], chunks: Shape) -> bytes:
    """What Zarr must know of an array."""
    zero: Any = [0.0, 0.0] if dtype.kind == "c" else False if dtype.kind == "b" else 0
    codec: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        codec["configuration"] = {"endian": sys.byteorder}
    about = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": zero,
        "codecs": [codec],
        "attributes": {},
    }
    return json.dumps(about, indent=1).encode()


def group() -> bytes:
    """What Zarr must know of a folder of arrays."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def chunk_name(index: tuple[int, ...]) -> str:
    return ".".join(["c", *map(str, index)])


def checksum(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


class ChunkSource(Source):
    """An array in chunks that are not compressed."""

    def __init__(
        self,
        path: str,
        dataset: str | None,
        shape: Shape,
        dtype: np.dtype[Any],
        chunks: Shape,
        sums: Mapping[str, str] | None = None,
        keys: tuple[str, str] = ("c", "."),
        empty: Any = 0,
    ) -> None:
        self.path, self.dataset = os.path.abspath(path), dataset
        self.folder = inside(self.path, dataset)
        self.shape, self.dtype, self.chunks = shape, dtype, chunks
        self.sums = sums
        self.grain = chunks if sums is not None else None
        self.keys = keys
        self.empty = empty  # the value of chunks that have no file
        self.opened = version(os.path.join(self.folder, HEADER))
        if sums is not None:
            self._checked(HEADER)

    def as_data(self) -> dict[str, Any]:
        data = super().as_data()
        if self.sums is not None:
            data |= {"chunks": list(self.chunks), "sums": dict(self.sums)}
        return data

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        whole: Any = out
        ranges = [range(lo // n, -(-hi // n)) for (lo, hi), n in zip(box, self.chunks, strict=True)]

        def read(index: tuple[int, ...]) -> None:
            chunk = tuple((k * n, (k + 1) * n) for k, n in zip(index, self.chunks, strict=True))
            common = intersect(chunk, box)
            self._read(whole[(*slices(common, box), ...)], index, chunk, common)

        found = list(itertools.product(*ranges))
        if self.sums is None:
            for index in found:
                read(index)
            self._look()
            return
        if len(found) == 1 or out.nbytes < LARGE:
            for index in found:
                read(index)
            return
        with ThreadPoolExecutor(THREADS, "ostinato-files") as pool:  # checksums take longest
            list(pool.map(read, found))

    def _read(self, out: Any, index: tuple[int, ...], chunk: Box, common: Box) -> None:
        if self.sums is not None:
            name = chunk_name(index)
            whole = np.frombuffer(self._checked(name), self.dtype)
            if whole.size != math.prod(self.chunks):
                raise self.trouble(f"{name} of {whole.size} elements", f"a chunk of {self.chunks}")
            out[...] = whole.reshape(self.chunks)[slices(common, chunk)]
            return
        begin, separator = self.keys
        name = separator.join([*([begin] if begin else []), *map(str, index)]) or "0"
        try:
            handle = os.open(os.path.join(self.folder, name), os.O_RDONLY)
        except FileNotFoundError:
            out[...] = self.empty
            return
        try:
            place = out if out.flags.c_contiguous else np.empty(out.shape, self.dtype)
            if read_box(handle, place, tuple(_inside(common, chunk)), self.chunks) is not None:
                self._look()
                raise self.trouble(f"chunk {name}, which is cut off", "a store that is whole")
            if place is not out:
                out[...] = place
        finally:
            os.close(handle)

    def _look(self) -> None:
        """Whether this is the store that was opened."""
        if version(os.path.join(self.folder, HEADER)) != self.opened:
            raise self.changed()

    def _checked(self, name: str) -> bytes:
        """The content of a file, if it is what was written."""
        assert self.sums is not None
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                data = file.read()
        except OSError as error:
            raise self.trouble(f"{name}: {error.strerror}", "all that was written") from None
        if checksum(data) != self.sums.get(name):
            raise self.trouble(f"{name} with other content than was written", "it undamaged")
        return data


def _inside(box: Box, outer: Box) -> Iterator[tuple[int, int]]:
    return ((lo - o, hi - o) for (lo, hi), (o, _) in zip(box, outer, strict=True))


def inside(path: str, dataset: str | None) -> str:
    """The folder of an array in a store."""
    return path if dataset is None else os.path.join(path, dataset.strip("/"))


def kind(folder: str) -> str:
    """What Zarr says a folder is: "array", "group", or nothing."""
    try:
        with open(os.path.join(folder, HEADER), "rb") as file:
            return str(json.load(file).get("node_type"))
    except (OSError, ValueError, AttributeError):  # version 2 has no groups for arrays of version 3
        return "array" if os.path.exists(os.path.join(folder, ".zarray")) else ""


def arrays(path: str) -> list[str]:
    """The names of the arrays in a group of Zarr's version 3."""
    found: list[str] = []
    if kind(path) != "group":
        return found
    for folder, inner, _ in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if kind(folder) == "array":
            found.append(os.path.relpath(folder, path))
            inner.clear()
    return found


def plain(path: str, dataset: str | None) -> ChunkSource | None:
    """The array in a folder, if this module can read it; else Zarr's own library must."""
    try:
        with open(os.path.join(inside(path, dataset), HEADER), "rb") as file:
            about = json.load(file)
        return _plain(path, dataset, about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(path: str, dataset: str | None, about: dict[str, Any]) -> ChunkSource | None:
    dtype, keys = DTYPES.get(about["data_type"]), about["chunk_key_encoding"]
    (codec,), empty = about["codecs"], about["fill_value"]
    begin, separator = _KEYS[keys["name"]]
    separator = keys.get("configuration", {}).get("separator", separator)
    endian = codec.get("configuration", {}).get("endian", sys.byteorder)
    chunks = tuple(about["chunk_grid"]["configuration"]["chunk_shape"])
    shape = tuple(about["shape"])
    known = (
        about["zarr_format"] == 3
        and about["node_type"] == "array"
        and about["chunk_grid"]["name"] == "regular"
        and codec["name"] == "bytes"
        and endian == sys.byteorder
        and not about.get("storage_transformers")
        and all(type(n) is int and n >= 0 for n in shape)
        and all(type(n) is int and n > 0 for n in chunks)
        and len(shape) == len(chunks)
        and math.prod(shape) < 1 << 62
        and separator in ("/", ".")
    )
    if not known or dtype is None:
        return None
    if dtype.kind == "c" and isinstance(empty, list):
        empty = complex(*empty)
    value = np.asarray(empty, dtype)  # raises where JSON has no number for it
    return ChunkSource(path, dataset, shape, dtype, chunks, None, (begin, separator), value)
