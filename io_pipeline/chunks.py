"""Arrays in chunks, as Zarr (version 3) has them: a folder per array, a file per chunk.

    x.zarr/zarr.json     shape, dtype, extents of a chunk
    x.zarr/c.0.0 ...     the numbers of one chunk, in order, as they lie in memory

What is written here, any library of Zarr reads. What others wrote in this manner, in version 2 too, is
read here: of a chunk that is not compressed only the bytes that are wanted. With checksums chunks are
read whole, and what differs from what was written is refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import stat
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from ostinato.ops.core.disk import Held
from ostinato.ops.core.layout import Box, Shape, intersect, slices
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES

from ostinato.errors import DataFileError

from .inflate import can, inflated
from .remote import trouble
from .source import (
    ChunkCache,
    Source,
    chunk_box,
    chunks_in,
    filler,
    opened,
    read_box,
    version,
)
from .thread_counts import Index, each_of

HEADER = "zarr.json"
OLD_HEADER = ".zarray"  # of version 2
LONGEST_HEAD = 1 << 24  # bytes of what says what an array is
MIN_LISTED_CHUNKS = 1 << 12  # chunks at once, from which it is looked which of them there are
NOWHERE, CRC = (1 << 64) - 1, 4  # of a chunk that is not in its shard; bytes of a checksum
OPEN = 16  # shards that stay open
SPARE = 1 << 16  # bytes that a codec may need in addition
_KEYS = {"default": ("c", "/"), "v2": ("", ".")}  # what chunks' names begin with, and separators


def header(shape: Shape, dtype: np.dtype[Any], chunks: Shape) -> bytes:
    """Write what Zarr must know of an array."""
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
    """Write what Zarr must know of a folder of arrays."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def chunk_name(index: tuple[int, ...]) -> str:
    return ".".join(["c", *map(str, index)])


def checksum(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


class ChunkSource(Source):
    """An array in chunks that are not compressed, or by a codec of which we know what it makes."""

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
        codec: str = "",
        head: str = HEADER,
        home: Held | None = None,
    ) -> None:
        """home: its folder, of which the header was read."""
        self.path, self.dataset, self.home = os.path.abspath(path), dataset, home
        self.folder = inside(self.path, dataset) if home is None else home.path
        self.shape, self.dtype, self.chunks = shape, dtype, chunks
        self.sums = sums
        self.codec, self.head, self.kept = codec, head, ChunkCache()
        self.grain = chunks if sums is not None or codec else None
        self.inflates = bool(codec)
        self.keys = keys
        self.empty = empty  # the value of chunks that have no file
        self.opened = version(os.path.join(self.folder, head))
        self.held: dict[str, bool] = {}  # folders of chunks: whether they are inside
        self.check_size(self.grain or ())
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
        ranges = chunks_in(box, self.chunks)
        wanted: Iterable[Index] = itertools.product(*ranges)
        many = math.prod(map(len, ranges))
        if self.sums is None and many > MIN_LISTED_CHUNKS:
            out[...] = self.empty
            wanted = (i for i in self._there() if all(map(_is_in, i, ranges)))
        self.read_chunks(out, box, wanted)

    def read_chunks(self, out: np.ndarray[Any, Any], box: Box, chunks: Iterable[Index]) -> None:
        whole: Any = out

        def read(index: Index) -> None:
            chunk = chunk_box(index, self.chunks)
            common = intersect(chunk, box)
            self._read(whole[(*slices(common, box), ...)], index, chunk, common)

        each_of(read, chunks, out.nbytes if self.grain is not None else 0)
        if self.sums is None:
            self._look()

    def _name(self, index: Index) -> str:
        begin, separator = self.keys
        return separator.join([*([begin] if begin else []), *map(str, index)]) or "0"

    def _read(self, out: Any, index: tuple[int, ...], chunk: Box, common: Box) -> None:
        if self.sums is not None:
            name = chunk_name(index)
            found = self.kept.get(index, None, lambda: self._numbers(name, self._checked(name)))
            out[...] = found[slices(common, chunk)]
            return
        name = self._name(index)
        handle = self._open(name)
        if handle is None:
            out[...] = self.empty
            return
        try:
            if self.codec:
                about = os.fstat(handle)
                state = about.st_ino, about.st_mtime_ns, about.st_size
                found = self.kept.get(index, state, lambda: self._inflated(handle, about, name))
                out[...] = found[slices(common, chunk)]
                return
            size, right = os.fstat(handle).st_size, self.chunk_bytes
            if size != right:
                self._look()
                what = "which is cut off" if size < right else f"{size - right} bytes too long"
                raise self.trouble(f"chunk {name}, {what}", "a store that is whole")
            place = out if out.flags.c_contiguous else np.empty(out.shape, self.dtype)
            box = tuple(_inside(common, chunk))
            if read_box(filler(handle, self.nbytes), place, box, self.chunks) is not None:
                self._look()
                raise self.changed()
            if place is not out:
                out[...] = place
        finally:
            os.close(handle)

    def _open(self, name: str) -> int | None:
        """A file of the store; None if there is none."""
        try:
            path = os.path.join(self.folder, name)
            self._stays(os.path.dirname(path), name)
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except DataFileError:
            raise
        except OSError as error:
            raise self.trouble(f"chunk {name}: {error.strerror}", "a file in the store") from None

    def _inflated(self, handle: int, about: os.stat_result, name: str) -> np.ndarray[Any, Any]:
        """A chunk's numbers, unless they are more than it has."""
        most = self.chunk_bytes + self.chunk_bytes // 8 + SPARE
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            got = f"chunk {name} of {about.st_size} bytes"
            raise self.trouble(got, f"at most {most}, as it has {self.chunk_bytes} inflated")
        data = os.pread(handle, about.st_size, 0)
        try:
            return self._numbers(name, inflated(self.codec, data, self.chunk_bytes))
        except ValueError as error:
            self._look()
            raise self.trouble(f"chunk {name}, {error}", "a store that is whole") from None

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self.dtype.itemsize

    def _numbers(self, name: str, data: Any) -> np.ndarray[Any, Any]:
        if len(data) != self.chunk_bytes:
            raise self.trouble(f"{name} of {len(data)} bytes", f"a chunk of {self.chunks}")
        return np.frombuffer(data, self.dtype).reshape(self.chunks)

    def stored_bytes(self) -> int:
        found = (os.path.join(at, name) for at, _, names in os.walk(self.folder) for name in names)
        return sum(os.lstat(path).st_size for path in found)

    def _there(self) -> Iterator[tuple[int, ...]]:
        """The chunks that have files."""
        begin, separator = self.keys
        for folder, _, names in os.walk(self.folder):
            inner = os.path.relpath(folder, self.folder)
            for name in names:
                key = (name if inner == "." else f"{inner}/{name}").split(separator)
                if begin and key.pop(0) != begin:
                    continue
                if len(key) == len(self.shape) and all(k.isascii() and k.isdigit() for k in key):
                    index = tuple(map(int, key))
                    if separator.join(map(str, index)) == separator.join(key):
                        yield index

    def _stays(self, folder: str, name: str) -> None:
        """Refuse a folder of chunks that leads out of the store."""
        while folder not in self.held:
            home = os.path.realpath(self.folder)
            stays = os.path.commonpath([os.path.realpath(folder), home]) == home
            if home == os.path.realpath(self.folder):  # else it got another name meanwhile
                self.held[folder] = stays
        if not self.held[folder]:
            raise self.trouble(f"chunk {name} behind a link", "a file in the store")

    def _look(self) -> None:
        """Whether this is the store that was opened."""
        if version(os.path.join(self.folder, self.head)) != self.opened:
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


class ShardSource(ChunkSource):
    """An array whose files have many chunks each, and where each lies: offset and bytes of all, then a
    checksum, behind the chunks or before them."""

    def __init__(self, *given: Any, shard: Shape, at_end: bool, crc: Any) -> None:
        super().__init__(*given)
        self.shard, self.at_end, self.crc = shard, at_end, crc
        self.grain = self.chunks
        self.within = tuple(n // k for n, k in zip(shard, self.chunks, strict=True))
        self.open: OrderedDict[str, Shard | None] = OrderedDict()
        self.lock = make_lock()
        self.check_size(shard)

    def _place(self, index: Index) -> tuple[Shard | None, int, int]:
        """The file that has a chunk, and where in it; no bytes: nowhere."""
        both = [divmod(k, n) for k, n in zip(index, self.within, strict=True)]
        shard = self._opened(self._name(tuple(k for k, _ in both)))
        if shard is None:
            return None, 0, 0
        offset, size = shard.places[tuple(k for _, k in both)].tolist()
        return (None, 0, 0) if offset == size == NOWHERE else (shard, offset, size)

    def _opened(self, name: str) -> Shard | None:
        now = version(f"{self.folder}/{name}")
        with self.lock:
            known = self.open.get(name)
            if name in self.open and (None if known is None else known.state) == now:
                self.open.move_to_end(name)
                return known
        handle = self._open(name)
        found = None if handle is None else Shard(self, name, handle)
        with self.lock:
            self.open[name] = found
            while len(self.open) > OPEN:
                self.open.popitem(last=False)
        return found

    def _read(self, out: Any, index: tuple[int, ...], chunk: Box, common: Box) -> None:
        shard, offset, size = self._place(index)
        if shard is None:
            out[...] = self.empty
            return
        name, most = f"{shard.name} at {index}", self.chunk_bytes + self.chunk_bytes // 8 + SPARE
        if offset + size > shard.size or size > most:
            self._look()
            raise self.trouble(f"chunk {name} of {size} bytes", f"at most {most}, in its file")

        def read() -> np.ndarray[Any, Any]:
            data: Any = os.pread(shard.handle, size, offset)
            try:
                data = data if not self.codec else inflated(self.codec, data, self.chunk_bytes)
                return self._numbers(f"chunk {name}", data)
            except ValueError as error:
                self._look()
                raise self.trouble(f"chunk {name}, {error}", "a store that is whole") from None

        out[...] = self.kept.get(index, shard.state, read)[slices(common, chunk)]

    def _there(self) -> Iterator[tuple[int, ...]]:
        for index in super()._there():
            parts = [range(k * n, (k + 1) * n) for k, n in zip(index, self.within, strict=True)]
            yield from itertools.product(*parts)


class Shard:
    """An open file of chunks."""

    def __init__(self, source: ShardSource, name: str, handle: int) -> None:
        self.name, self.handle = name, handle
        weakref.finalize(self, os.close, handle)
        about = os.fstat(handle)
        count = math.prod(source.within)
        length, self.size = 16 * count + CRC, about.st_size
        self.state = about.st_ino, about.st_mtime_ns
        if not stat.S_ISREG(about.st_mode) or self.size < length:
            raise source.trouble(f"chunk {name} of {self.size} bytes", f"{length} or more")
        data = os.pread(handle, length, self.size - length if source.at_end else 0)
        if source.crc(data[:-CRC]) != int.from_bytes(data[-CRC:], "little"):
            source._look()
            raise source.trouble(f"chunk {name} with another checksum", "a store that is whole")
        self.places = np.frombuffer(data, "<u8", 2 * count).reshape(*source.within, 2)


def _inside(box: Box, outer: Box) -> Iterator[tuple[int, int]]:
    return ((lo - o, hi - o) for (lo, hi), (o, _) in zip(box, outer, strict=True))


def _is_in(index: int, wanted: range) -> bool:
    return index in wanted


def inside(path: str, dataset: str | None) -> str:
    """The folder of an array in a store."""
    if dataset is not None and {"..", "."} & {*dataset.split("/")}:
        raise trouble(path, f"dataset={dataset!r:.60}", "a name of the store's own")
    return path if dataset is None else os.path.join(path, dataset.strip("/"))


def kind(folder: str) -> str:
    """Return what Zarr says a folder is: "array", "group", or nothing."""
    try:
        return str(_about(folder).get("node_type"))
    except (
        OSError,
        ValueError,
        AttributeError,
        RecursionError,
    ):  # version 2 has no groups for arrays of version 3
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
    folder = inside(path, dataset)
    store = os.path.realpath(path)
    if os.path.commonpath([os.path.realpath(folder), store]) != store:
        raise trouble(path, f"an array {dataset!r:.60} behind a link", "a folder in the store")
    home = Held(folder)
    for head, read in ((HEADER, _plain), (OLD_HEADER, _plain_old)):
        try:
            about = json.loads(opened(os.path.join(home.path, head), LONGEST_HEAD))
            return read(path, dataset, about, home)
        except DataFileError:
            raise
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        except (ArithmeticError, RecursionError, MemoryError):
            return None
    return None


def _about(folder: str) -> Any:
    return json.loads(opened(os.path.join(folder, HEADER), LONGEST_HEAD))


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """JSON's value as one of a dtype; raises where that is another number, or none."""
    if dtype.kind == "c":
        real, imag = (float(_number(part, np.dtype(np.float64))) for part in value)
        return np.asarray(complex(real, imag), dtype)
    words = ("NaN", "Infinity", "-Infinity")
    kinds: Any = bool if dtype.kind == "b" else int if dtype.kind in "iu" else (int, float)
    fits = isinstance(value, kinds) and (dtype.kind == "b") == isinstance(value, bool)
    if not fits and not (dtype.kind in "fV" and value in words):
        raise ValueError(value)
    return np.asarray(float(value) if dtype.kind in "fV" else value, dtype)


def _plain(path: str, dataset: str | None, about: dict[str, Any], home: Held) -> ChunkSource | None:
    dtype, named = DTYPES.get(about["data_type"]), about["chunk_key_encoding"]
    (codec, *more), empty = about["codecs"], about["fill_value"]
    chunks = tuple(about["chunk_grid"]["configuration"]["chunk_shape"])
    shard, in_shards = chunks, codec["name"] == "sharding_indexed" and not more
    if in_shards:
        inner = codec["configuration"]
        chunks, (codec, *more) = tuple(inner["chunk_shape"]), inner["codecs"]
        ends, *sums = inner["index_codecs"]
        crc = _crc32c() if [c["name"] for c in sums] == ["crc32c"] else None
        fits = len(chunks) == len(shard) and all(
            type(n) is int and n > 0 and k % n == 0 for k, n in zip(shard, chunks, strict=True)
        )
        little = ends["name"] == "bytes" and ends["configuration"]["endian"] == "little"
        where = inner.get("index_location", "end")
        if crc is None or not (fits and little) or where not in ("start", "end"):
            return None
    (packed,) = [c["name"] for c in more] or [""]
    begin, separator = _KEYS[named["name"]]
    separator = named.get("configuration", {}).get("separator", separator)
    endian = codec.get("configuration", {}).get("endian", sys.byteorder)
    shape = tuple(about["shape"])
    known = (
        about["zarr_format"] == 3
        and about["node_type"] == "array"
        and about["chunk_grid"]["name"] == "regular"
        and codec["name"] == "bytes"
        and endian == sys.byteorder
        and not about.get("storage_transformers")
        and all(type(n) is int and n >= 0 for n in shape)
        and all(type(n) is int and n > 0 for n in shard)
        and len(shape) == len(shard)
        and separator in ("/", ".")
        and (not packed or can(packed))
    )
    if not known or dtype is None:
        return None
    value, keys = _number(empty, dtype), (begin, separator)
    given = (path, dataset, shape, dtype, chunks, None, keys, value, packed, HEADER, home)
    if in_shards:
        return ShardSource(*given, shard=shard, at_end=where == "end", crc=crc)
    return ChunkSource(*given)


def _crc32c() -> Callable[[bytes], int] | None:
    """The checksum of shards, by the library that Zarr's has for it."""
    try:
        from google_crc32c import value
    except ImportError:
        return None
    found: Callable[[bytes], int] = value
    return found


def _plain_old(
    path: str, dataset: str | None, about: dict[str, Any], home: Held
) -> ChunkSource | None:
    """Open an array of Zarr's version 2."""
    dtype, shape, chunks = np.dtype(about["dtype"]), tuple(about["shape"]), tuple(about["chunks"])
    packed = "" if about["compressor"] is None else about["compressor"]["id"]
    separator = about.get("dimension_separator", ".")
    known = (
        about["zarr_format"] == 2
        and type(about["dtype"]) is str
        and dtype.isnative
        and about["order"] == "C"
        and not about["filters"]
        and all(type(n) is int and n >= 0 for n in shape)
        and all(type(n) is int and n > 0 for n in chunks)
        and len(shape) == len(chunks)
        and separator in ("/", ".")
        and (not packed or can(packed))
    )
    if not known or dtype not in DTYPES.values():
        return None
    empty = about["fill_value"]
    value = np.zeros((), dtype) if empty is None else _number(empty, dtype)
    keys = ("", separator)
    return ChunkSource(
        path, dataset, shape, dtype, chunks, None, keys, value, packed, OLD_HEADER, home
    )
