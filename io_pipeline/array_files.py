"""Arrays in files: what they are is known from the header; any box of them can be read.

    data.npy            one array, as np.save writes it
    data.npz            one of several, as np.savez and np.savez_compressed write them
    data.h5, .hdf5      a dataset of an HDF5 file (h5py)
    data.zarr           an array of a Zarr store (numcodecs, where it is compressed; zarr, where it is
                        in another byte order or order of axes, in shards, or has filters)
    data.parquet, .csv  columns of a table (pyarrow; tables.py)

A file is data: nothing in it is ever unpickled. One that changes while it is in use is an error,
not other numbers."""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
import warnings
import weakref
import zipfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape, intersect, slices
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES

from ostinato.errors import DataFileError

from .chunks import LONGEST_HEAD, SPARE, ChunkSource, arrays, plain
from .inflate import inflated, unshuffled
from .members import ArchiveMember
from .merging import RUNS, RowsOfRuns, SortedRuns
from .remote import IN_FLIGHT, Address, absolute, is_remote, located, open_file, tried, trouble
from .source import (
    PARSING,
    ChunkCache,
    Get,
    Source,
    chunk_box,
    chunks_in,
    filler,
    read_box,
    regular,
    short,
)
from .tables import SUFFIXES as TABLES
from .tables import TableSource
from .thread_counts import Index, each_of

SUFFIXES = (".npy", ".h5", ".hdf5", ".zarr")  # of what is read and written
ONLY_READ = (".npz", *TABLES)
DEFLATE, SHUFFLE, FLETCHER = 1, 2, 3  # HDF5's numbers of filters
ASKED = 32  # chunks of an HDF5 file that its library is asked for one by one
MOST_CHUNKS = 1 << 16  # that Zarr's library is asked for at once
HEADS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
LOCAL = struct.Struct("<4s5H3L2H")  # what stands before a member of a zip file
MEMBER, ENCRYPTED = b"PK\x03\x04", 1
HEADER = 1 << 16  # bytes of a header, which has a shape and the name of a dtype
HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


# -- npy -----------------------------------------------------------------------------------
class NpySource(Source):
    """Read with `preadv`, straight to where it is wanted."""

    stored: np.dtype[Any]  # in the file's byte order
    begin = 0  # of what `get` reads: the header, then the numbers
    get: Get
    fill: Get  # what reads bytes of the file itself

    def __init__(self, path: str, dataset: str | None = None) -> None:
        self.path, self.is_far = absolute(path), is_remote(path)
        try:
            self._open()
            self.end = self._find(dataset)
            self._header()
        except OSError as error:
            if isinstance(error, DataFileError):
                raise
            raise self.trouble(str(error), "a file that can be read") from None
        there, needed = self.end, self.begin + math.prod(self.shape) * self.dtype.itemsize
        if there < needed:
            raise self.trouble(f"{there} bytes", f"{needed}, as its header says", "it is cut off")

    def _open(self) -> None:
        """Open the file's bytes."""
        if self.is_far:
            address = Address(self.path)
            self.handle, self.state, self.fill = -1, (address.size, 0), address.fill
            return
        regular(self.path)
        self.handle = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)
        self.state = self._state()
        self.fill = filler(self.handle, self.state[0])
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def _find(self, dataset: str | None) -> int:
        """Choose how bytes are read; return where they end."""
        self.get = self.fill
        return self.state[0]

    def _header(self) -> None:
        # a header may say that it is of any length
        first = np.empty(max(min(HEADER, self.end - self.begin), 0), np.uint8)
        self.get(first, self.begin)
        try:
            head = io.BytesIO(first.tobytes())
            version = np.lib.format.read_magic(head)
            if version not in HEADERS:
                raise ValueError(f"format {version}")
            with PARSING:
                self.shape, self.by_columns, self.stored = HEADERS[version](head)
            self.begin += head.tell()
        except OSError:
            raise
        except Exception as error:  # of a parser that meets anything
            raise self.trouble(short(error), "an array that np.save wrote") from None
        self.by_columns = self.by_columns and len(self.shape) > 1
        self.dtype = self.known(self.stored)
        self.check_size()

    def _state(self) -> tuple[int, int]:
        if self.is_far:
            return self.state
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
        def rows(index: Index) -> None:
            first = box[0][0] + index[0] if box else 0
            part, here = (out[index[0] : index[0] + each], box) if box else (out, box)
            here = ((first, first + len(part)), *box[1:]) if box else box
            end = read_box(self.get, part, here, shape, self.begin)
            if end is not None:
                raise self.trouble(
                    f"its end behind byte {end}",
                    "the rest of the array",
                    "it was cut off meanwhile",
                )

        # a request for each row
        apart = self.is_far and box[1:] != tuple((0, n) for n in shape[1:])
        count = len(out) if box else 1
        each = -(-count // IN_FLIGHT) if apart else max(count, 1)
        starts = ((k,) for k in range(0, count, each))
        each_of(rows, starts, 0, threads=IN_FLIGHT if apart else 0)


# -- npz -----------------------------------------------------------------------------------
def members_of(path: str) -> dict[str, zipfile.ZipInfo]:
    """The arrays in an npz file, by their names."""
    try:
        regular(path)
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            found = [m for m in archive.infolist() if m.filename.endswith(".npy")]
    except Exception as error:  # of a parser that meets anything
        raise trouble(path, short(error), "a file that np.savez wrote") from None
    return {m.filename.removesuffix(".npy"): m for m in found}


class NpzSource(NpySource):
    """A member of what `np.savez` wrote, read as an npy file; of what `np.savez_compressed` wrote, inflated
    on the way (see members.py)."""

    def _find(self, dataset: str | None) -> int:
        members = members_of(self.path)
        self.dataset = chosen(self.path, sorted(members), dataset)
        member = members[self.dataset]
        head = np.zeros(LOCAL.size, np.uint8)
        self.fill(head, member.header_offset)
        magic, *_, name, extra = LOCAL.unpack(head.tobytes())
        if magic != MEMBER or member.flag_bits & ENCRYPTED:
            raise self.trouble(f"a member {self.dataset!r:.60} that is damaged", "it as it was")
        begin = member.header_offset + LOCAL.size + name + extra
        self.bytes = member.compress_size
        if member.compress_type == zipfile.ZIP_STORED:
            self.get, self.begin = self.fill, begin
            return min(begin + member.file_size, self.state[0])
        if member.compress_type != zipfile.ZIP_DEFLATED:
            raise self.trouble(f"compression {member.compress_type}", "deflate, as np.savez has it")
        self.inflates = True
        self.get = ArchiveMember(self, begin, member).fill
        return member.file_size

    def stored_bytes(self) -> int:
        return self.bytes


# -- HDF5 ----------------------------------------------------------------------------------
class ChunkTable:
    """Where chunks of an HDF5 dataset lie. The library goes through all of them to find one; so after some
    that were asked for, they are listed here."""

    def __init__(self, data: Any) -> None:
        self.id, self.lock, self.asked = data.id, make_lock(), 0
        self.grid = [-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True)]
        self.grain = data.chunks
        self.numbers, self.places = array("q"), array("q")  # sorted; three places for each

    def find(self, at: Sequence[int]) -> tuple[int, int, int]:
        """Offset, bytes and skipped filters of the chunk that begins at an element; no bytes: there is
        none."""
        self.asked += 1
        if self.asked <= ASKED or not hasattr(self.id, "chunk_iter"):
            found = self.id.get_chunk_info_by_coord(tuple(at))
            return _place(found)
        if self.asked > ASKED and not self.numbers:
            self._list()
        number = self._number(at)
        k = bisect_left(self.numbers, number)
        if k == len(self.numbers) or self.numbers[k] != number:
            return 0, 0, 0
        offset, size, skipped = self.places[3 * k : 3 * k + 3]
        return offset, size, skipped

    def _number(self, at: Sequence[int]) -> int:
        number = 0
        for k, each, count in zip(at, self.grain, self.grid, strict=True):
            number = number * count + k // each
        return number

    def _list(self) -> None:
        with self.lock:
            if self.numbers:
                return
            found: list[tuple[int, tuple[int, int, int]]] = []

            def take(chunk: Any) -> None:
                where = zip(chunk.chunk_offset, self.grain, self.grid, strict=True)
                if all(k // each < count for k, each, count in where):
                    found.append((self._number(chunk.chunk_offset), _place(chunk)))

            self.id.chunk_iter(take)
            found.sort()
            self.places = array("q", itertools.chain.from_iterable(p for _, p in found))
            self.numbers = array("q", [number for number, _ in found])


def _place(chunk: Any) -> tuple[int, int, int]:
    if not chunk.size:  # of which the library says nothing else
        return 0, 0, 0
    return chunk.byte_offset or 0, chunk.size, chunk.filter_mask


class Hdf5Source(Source):
    def __init__(self, path: str, dataset: str | None) -> None:
        self.path = absolute(path)
        try:
            import h5py
        except ImportError:
            raise self.trouble(
                "no h5py to read it with", "h5py", "install it: pip install h5py"
            ) from None
        names: list[str] = []
        try:
            regular(self.path)
            self.file = h5py.File(open_file(path) if is_remote(path) else self.path, "r")
            self.file.visititems(  # which follows no links
                lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
            )
        except Exception as error:  # of a library that meets anything
            raise self.trouble(short(error), "an HDF5 file that can be read") from None
        try:
            self._choose(names, dataset)
        except BaseException:
            self.file.close()
            raise

    def _choose(self, names: list[str], dataset: str | None) -> None:
        self.dataset = chosen(self.path, names, dataset)
        try:
            self.data = self.file[self.dataset]
            shape, dtype, self.grain = self.data.shape, self.data.dtype, self.data.chunks
            elsewhere = self.data.external or self.data.is_virtual
        except Exception as error:
            raise self.trouble(short(error), "an array of numbers") from None
        if elsewhere:
            raise self.trouble(
                "an array whose numbers lie in other files",
                "one that is in this file",
                "open those files themselves",
            )
        if shape is None:
            raise self.trouble("a dataset without extents", "an array")
        self.dtype = self.known(dtype)
        self.shape = tuple(int(n) for n in shape)
        self.check_size(self.grain or ())
        how = self.data.id.get_create_plist()
        self.filters = [how.get_filter(k)[:1] for k in range(how.get_nfilters())]
        self.kept, self.inflates = ChunkCache(), bool(self.filters)
        # the file's own, through which it stays what it is when another one takes its name
        self.handle = -1 if is_remote(self.path) else int(self.file.id.get_vfd_handle())
        self.opened = self._state()
        self.table = ChunkTable(self.data) if self.filters else None

    def stored_bytes(self) -> int:
        return int(self.data.id.get_storage_size())

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        if self.filters:
            assert self.grain is not None
            self.read_chunks(out, box, itertools.product(*chunks_in(box, self.grain)))
            return
        self._read(out, box)
        self._look()

    def read_chunks(self, out: np.ndarray[Any, Any], box: Box, chunks: Iterable[Index]) -> None:
        state, grain = self._state(), self.grain
        assert grain is not None
        whole: Any = out

        def read(index: Index) -> None:
            chunk = chunk_box(index, grain)
            common = intersect(chunk, box)
            at = tuple(lo for lo, _ in chunk)
            found = self.kept.get(index, state, partial(self._chunk, at))
            whole[(*slices(common, box), ...)] = found[slices(common, chunk)]

        each_of(read, chunks, out.nbytes)
        self._look()

    def _look(self) -> None:
        if self._state() != self.opened:
            raise self.changed()

    def _state(self) -> tuple[int, int] | None:
        if self.handle < 0:
            return None
        found = os.fstat(self.handle)
        return found.st_size, found.st_mtime_ns

    def _read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """In the same order as in the file, past the library, which lets one thread in at a time."""
        begin = None if self.grain is not None else self.data.id.get_offset()
        known = self.data.dtype == self.dtype and not self.file.userblock_size
        if begin is not None and known and self.handle >= 0:
            get = filler(self.handle, self.nbytes)
            if read_box(get, out, box, self.shape, begin) is None:
                return
        try:
            self.data.read_direct(out, tuple(slice(lo, hi) for lo, hi in box))
        except Exception as error:
            raise self.trouble(short(error), "an HDF5 file that is whole") from None

    def _chunk(self, at: Shape) -> np.ndarray[Any, Any]:
        """All numbers of a chunk, of one at the end as many as are in the array; its own bytes, inflated
        no further than it says, where that can be said."""
        assert self.grain is not None
        ends = (min(lo + n, end) for lo, n, end in zip(at, self.grain, self.shape, strict=True))
        box = tuple(zip(at, ends, strict=True))
        size = math.prod(self.grain) * self.data.dtype.itemsize
        try:
            assert self.table is not None
            _, length, skipped = self.table.find(at)
            used = [f for k, f in enumerate(self.filters) if not skipped >> k & 1]
            sums = [f for f in used if f[0] == FLETCHER]
            known = used and length and [f for f in used if f not in sums][-1:]
            if known and known[0][0] == DEFLATE and used[-1] in (*known, *sums):
                if length > size + size // 8 + SPARE:
                    raise ValueError(f"of {length} bytes, which are more than its {size}")
                data = self.data.id.read_direct_chunk(at)[1]
                data = inflated("zlib", data[: -4 * len(sums) or None], size)
                rest = [f for f in used if f not in (*known, *sums)]
                if not sums and [f[0] for f in rest] in ([], [SHUFFLE]):
                    each = self.data.dtype.itemsize
                    plain = unshuffled(data, each) if rest else np.frombuffer(data, np.uint8)
                    whole = plain.view(self.data.dtype).reshape(self.grain)
                    return whole.astype(self.dtype, copy=False)
        except Exception as error:
            text = str(error) if isinstance(error, ValueError) else short(error)
            raise self.trouble(f"the chunk at {at}, {text}", "an HDF5 file that is whole") from None
        found = np.empty([hi - lo for lo, hi in box], self.dtype)
        self._read(found, box)
        return found


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
        self.path = absolute(path)
        try:
            import zarr
        except ImportError:
            raise self.trouble(
                "no zarr to read it with", "zarr", "install it: pip install zarr"
            ) from None
        if is_remote(path):
            located(path)
        elif not os.path.isdir(self.path):
            raise self.trouble("no folder of that name", "a Zarr store")
        else:
            self._look_inside()
        try:
            with warnings.catch_warnings():  # which it has for what it does not know
                warnings.simplefilter("ignore")
                found: Any = self._try(partial(zarr.open, self.path, mode="r"))
                if not hasattr(found, "dtype"):
                    names = [name for name, item in found.members(None) if hasattr(item, "dtype")]
                    self.dataset = chosen(self.path, sorted(names), dataset)
                    found = found[self.dataset]
                shape, dtype, chunks = found.shape, np.dtype(found.dtype), found.chunks
        except DataFileError:
            raise
        except Exception as error:  # zarr has many
            raise self.trouble(short(error), "a Zarr array or group") from None
        self.data, self.dtype = found, self.known(dtype)
        self.shape, self.grain = tuple(map(int, shape)), tuple(map(int, chunks))
        if not all(n > 0 for n in self.grain):
            raise self.trouble(f"chunks {self.grain!r:.80}", "extents of 1 or more")
        self.check_size(self.grain)

    def _try(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call the library, again where an answer may be another one."""
        return tried(function, *given) if is_remote(self.path) else function(*given)

    def _look_inside(self) -> None:
        """The bytes of all files of the store; raises if there are others, or links."""
        self.bytes = 0
        waiting = [self.path]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                        raise self.trouble(
                            f"{entry.name!r:.60}, a link or no file", "files and folders"
                        )
                    if entry.is_dir():
                        waiting.append(entry.path)
                        continue
                    size = entry.stat().st_size
                    self.bytes += size
                    if entry.name in HEADS and size > LONGEST_HEAD:
                        raise self.trouble(
                            f"{entry.name} of {size} bytes", f"{LONGEST_HEAD} at most"
                        )

    def stored_bytes(self) -> int | None:
        return None if is_remote(self.path) else self.bytes

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        assert self.grain is not None
        many = math.prod(-(-hi // n) - lo // n for (lo, hi), n in zip(box, self.grain, strict=True))
        if many > MOST_CHUNKS:
            raise self.trouble(
                f"a read of {many} chunks", f"at most {MOST_CHUNKS}", "read parts of it"
            )
        try:
            out[...] = self._try(self.data.__getitem__, tuple(slice(lo, hi) for lo, hi in box))
        except Exception as error:  # of a store that lost a chunk, or holds a damaged one
            raise self.trouble(
                f"{type(error).__name__}: {error}", "a store that is whole"
            ) from None


# -- which of them ---------------------------------------------------------------------------
def open_source(path: str | os.PathLike[str], dataset: str | Sequence[str] | None = None) -> Source:
    """The array in a file, found by the file's suffix."""
    name = os.fspath(path)
    suffix = Path(name.partition("?")[0] if is_remote(name) else name).suffix.lower()
    if suffix not in (*SUFFIXES, *ONLY_READ):
        needed = " or ".join((*SUFFIXES, *ONLY_READ))
        raise DataFileError.because(f"file {name}", got=f"suffix {suffix!r}", needed=needed)
    if suffix in TABLES:
        return TableSource(name, dataset)
    if dataset is not None and not isinstance(dataset, str):
        raise trouble(name, f"dataset={dataset!r:.80}", "one name; of a table, several columns")
    if dataset is not None and suffix == ".npy":
        several = "a .npz, .h5 or .zarr, which may hold several arrays"
        raise trouble(name, f"dataset={dataset!r}", several)
    if suffix == ".npz":
        return NpzSource(name, dataset)
    if suffix in (".h5", ".hdf5"):
        return Hdf5Source(name, dataset)
    if suffix == ".npy":
        return NpySource(name)
    if is_remote(name):
        return ZarrSource(name, dataset)
    found = plain(name, dataset)
    if found is None and dataset is None and (names := arrays(name)):
        found = plain(name, chosen(name, names, None))
    return found or ZarrSource(name, dataset)


def from_data(data: dict[str, Any]) -> Source:
    """The source that `as_data` told of, opened here."""
    shape, dtype = tuple(data["shape"]), DTYPES[data["dtype"]]
    if "rows" in data:
        order = from_data(data["order"])
        assert isinstance(order, SortedRuns)
        return RowsOfRuns(from_data(data["rows"]), order)
    if "falls" in data:
        made = RUNS[data["kind"]]
        return made(data["path"], shape, dtype, tuple(data["bounds"]), data["falls"])
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
