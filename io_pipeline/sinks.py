"""Arrays into files: made once, written in parts by whoever holds them, there at the end.

    sink.create()              a file beside the target, as large as it will be
    sink.write(part, box)      by each writer, wherever it runs; boxes do not overlap
    sink.finish()              the file takes the target's name

Until then, readers see the old file; after `discard`, too. All is on the disk before a file takes the
name, and its mode and owner are those of the old one. A sink is plain data: `as_data` tells another
process all that it needs to write its parts."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from ostinato.ops.core.disk import (
    Stage,
    clear,
    replace_folder,
    staged,
    sync,
    take_after,
    unstage,
    write,
)
from ostinato.ops.core.layout import Box, Shape, intersect, slices
from ostinato.ops.core.spec import DTYPES

from ostinato.errors import DataFileError

from . import chunks as zarr
from .array_files import SUFFIXES, chosen
from .direct import MIN_DIRECT_FILE_BYTES, PAGE, Bytes, Writing
from .remote import trouble
from .source import chunk_box, chunks_in, here, runs, version

LEADS = 10  # bytes of a .npy file before its header: magic, version, the header's length
# bytes of a stretch from which on writing it costs no more than copying it
MIN_PWRITE_BYTES = 1 << 16


class Sink:
    """Where an array goes. `write` may be called by several threads and processes."""

    chunks: Shape | None = None  # extents of what only one may write

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: str | None,
        shape: Shape,
        dtype: np.dtype[Any],
        part: str | None = None,
    ) -> None:
        self.path = os.path.realpath(path)  # a link stays, and leads to what is written
        self.dataset = dataset.strip("/") if dataset is not None else None
        if self.dataset is not None and {"", ".", ".."} & set(self.dataset.split("/")):
            raise trouble(self.path, f"dataset={dataset!r}", "names, with one / between them")
        self.shape, self.dtype = shape, dtype
        self.is_given = part is not None
        self.part = part if part is not None else staged(self.path)
        self.stage: Stage | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def as_data(self) -> dict[str, Any]:
        """Encode what another process needs to write its parts: numbers, words, lists."""
        return {
            "path": self.path,
            "dataset": self.dataset,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "part": self.part,
        }

    def create(self) -> None:
        """Make the file beside the target."""
        raise NotImplementedError

    def _begin_beside(self, target: str) -> None:
        """Where it is made, unless that was said; what may not be written to stays, as `open` has it."""
        if self.is_given:
            return
        if os.path.lexists(target):
            if not os.path.isfile(target) and not os.path.isdir(target):
                raise trouble(target, "something else than a file there", "another name")
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self.stage = Stage(target)
        self.part = self.stage.part

    def _end_beside(self) -> None:
        is_gone = unstage(self.part)
        if self.stage is not None:
            self.stage.let_go()
            if not is_gone:  # who read it may have looked while the stage was ours
                clear(self.stage.target)

    def write(self, part: np.ndarray[Any, Any], box: Box) -> Any:
        """Write a box of the array. What it gives, the caller of the engine gets."""
        raise NotImplementedError

    def _write_at(self, begin: int, part: np.ndarray[Any, Any], box: Box) -> None:
        """A box of an array that lies in order from a byte of the file on. Who will `finish` sees to it
        that all is on the disk; what others wrote elsewhere they do themselves."""
        whole = np.ascontiguousarray(part).reshape([hi - lo for lo, hi in box])
        first, _ = next(runs(whole, box, self.shape))
        if first.nbytes < MIN_PWRITE_BYTES and first.size < whole.size:
            lies = np.memmap(self.part, self.dtype, "r+", begin, self.shape)
            lies[tuple(slice(lo, hi) for lo, hi in box)] = whole
            lies.flush()
            return
        with Writing(self.part, self.nbytes) as file:
            for stretch, start in runs(whole, box, self.shape):
                _put(file, stretch, begin + start * self.dtype.itemsize)
            if self.is_given:
                file.sync()

    def finish(self) -> None:
        """Let the file take the target's name."""
        with self.trouble():
            take_after(self.part, self.path)
            sync(self.part)
            os.replace(self.part, self.path)
            sync(os.path.dirname(self.path))
        self._end_beside()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._end_beside()

    @contextlib.contextmanager
    def trouble(self) -> Iterator[None]:
        """Errors of the system as what they mean for this file."""
        try:
            yield
        except DataFileError:
            raise
        except OSError as error:
            got = error.strerror or str(error)
            raise trouble(self.path, got, f"a place to write {self.nbytes} bytes to") from None


def open_sink(
    path: str | os.PathLike[str],
    dataset: str | None,
    shape: Shape,
    dtype: np.dtype[Any],
    chunks: Shape,
) -> Sink:
    """A sink of the kind that the file's suffix says."""
    here(path)
    suffix = Path(path).suffix.lower()
    name = os.fspath(path)
    if suffix not in SUFFIXES:
        raise trouble(name, f"suffix {suffix!r}", " or ".join(SUFFIXES))
    if dataset is not None and suffix == ".npy":
        raise trouble(name, f"dataset={dataset!r}", "a .h5 or .zarr, which may hold several arrays")
    if dtype.kind == "V" and suffix != ".zarr":
        raise trouble(
            name,
            f"dtype {dtype.name}, for which {suffix} has no name",
            "a dtype of NumPy's",
            "save x.astype(ost.float32), or to a .zarr",
        )
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise trouble(name, "no folder to write it to", "a folder that exists", "make it first")
    if suffix == ".zarr":
        return ZarrSink(path, dataset, shape, dtype, chunks)
    kind = NpySink if suffix == ".npy" else Hdf5Sink
    return kind(path, dataset, shape, dtype)


def from_data(data: dict[str, Any]) -> Sink:
    about = data["path"], data["dataset"], tuple(data["shape"]), DTYPES[data["dtype"]]
    if "chunks" in data:
        return ZarrSink(*about, tuple(data["chunks"]), data["part"], data["checked"])
    if "begin" in data:
        return Hdf5Sink(*about, data["part"], data["begin"])
    return NpySink(*about, data["part"])


# -- npy -----------------------------------------------------------------------------------
class NpySink(Sink):
    def _data(self) -> int:
        """Where the numbers begin: behind a header of known length, which each writer would have to
        parse (source.PARSING)."""
        with open(self.part, "rb") as file:
            return LEADS + int.from_bytes(file.read(LEADS)[-2:], "little")

    def create(self) -> None:
        about = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": self.shape,
        }
        with self.trouble():
            self._begin_beside(self.path)
            self._make(about)

    def _make(self, about: dict[str, Any]) -> None:
        with open(self.part, "x+b") as file:
            np.lib.format.write_array_header_1_0(file, about)
            if self.nbytes >= MIN_DIRECT_FILE_BYTES:  # the numbers begin on a page
                self._go_on_page(file)
            file.flush()
            file.truncate(file.tell() + self.nbytes)
            if self.nbytes:
                _reserve(file.fileno(), self.nbytes)

    def _go_on_page(self, file: BinaryIO) -> None:
        """Lengthen the header by blanks to a whole page."""
        end = file.tell()
        file.seek(-1, os.SEEK_CUR)
        file.write(b" " * (-end % PAGE) + b"\n")
        file.seek(len(np.lib.format.magic(1, 0)))
        file.write((end + -end % PAGE - LEADS).to_bytes(2, "little"))
        file.seek(0, os.SEEK_END)

    def write(self, part: np.ndarray[Any, Any], box: Box) -> None:
        if not part.size:
            return
        with self.trouble():
            self._write_at(self._data(), part, box)


def _reserve(handle: int, size: int) -> None:
    """An error now, and not while parts are written, if a file does not fit."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    except AttributeError:  # a system without
        pass


def _put(file: Writing, stretch: np.ndarray[Any, Any], at: int) -> None:
    file.put(_bytes_of(stretch), at)


def _bytes_of(stretch: np.ndarray[Any, Any]) -> Bytes:
    return np.ascontiguousarray(stretch).reshape(-1).view(np.uint8)


# -- HDF5 ----------------------------------------------------------------------------------
class Hdf5Sink(Sink):
    """One dataset. Others that the file has stay."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: str | None,
        shape: Shape,
        dtype: np.dtype[Any],
        part: str | None = None,
        begin: int | None = None,
    ) -> None:
        super().__init__(path, dataset, shape, dtype, part)
        self.replaces = version(self.path)
        self.begin = begin  # where in the file the numbers lie, in order; None of one

    def as_data(self) -> dict[str, Any]:
        return super().as_data() | {"begin": self.begin}

    def create(self) -> None:
        try:
            import h5py
        except ImportError:
            raise trouble(
                self.path, "no h5py to write it with", "h5py", "install it: pip install h5py"
            ) from None
        with self.trouble():
            self._begin_beside(self.path)
            self._copy_others(h5py)
            with h5py.File(self.part, "a", **self._on_pages()) as file:
                assert self.dataset is not None
                if isinstance(file.get(self.dataset), h5py.Dataset):
                    del file[self.dataset]
                try:
                    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # each byte is written once
                    made = file.create_dataset(self.dataset, self.shape, self.dtype, dcpl=plan)
                    self.begin = made.id.get_offset()
                except (ValueError, TypeError) as error:
                    # the name is a group's, or goes through a dataset
                    raise trouble(
                        self.path, f"dataset={self.dataset!r}: {error}", "another name"
                    ) from None

    def _on_pages(self) -> dict[str, int]:
        """Large arrays begin on a page."""
        if self.nbytes < MIN_DIRECT_FILE_BYTES:
            return {}
        return {"alignment_threshold": MIN_DIRECT_FILE_BYTES, "alignment_interval": PAGE}

    def _copy_others(self, h5py: Any) -> None:
        """Begin with what the file has beside this dataset."""
        names: list[str] = []
        groups: dict[str, bool] = {}  # and whether each has attributes

        def look(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                names.append(name)
            else:
                groups[name] = bool(item.attrs)

        if os.path.exists(self.path):
            with h5py.File(self.path, "r") as old:
                look("", old)
                old.visititems(look)
        if self.dataset is None:
            self.dataset = chosen(self.path, names, None) if names else "data"
        around = {"", *itertools.accumulate(self.dataset.split("/"), "{}/{}".format)}
        if set(names) - {self.dataset} or set(groups) - around or any(groups.values()):
            shutil.copyfile(self.path, self.part)

    def write(self, part: np.ndarray[Any, Any], box: Box) -> None:
        if not part.size:
            return
        with self.trouble():
            if self.begin is not None:
                self._write_at(self.begin, part, box)
                return
            import h5py

            with h5py.File(self.part, "r+") as file:  # one number
                file[self.dataset][()] = part
            sync(self.part)

    def finish(self) -> None:
        if version(self.path) != self.replaces:
            raise trouble(
                self.path,
                "other content than when this array was begun",
                "one writer at a time",
                "save it again",
            )
        super().finish()


# -- Zarr ----------------------------------------------------------------------------------
class ZarrSink(Sink):
    """A folder with a file per chunk. `checked`: `write` gives each file's name and checksum."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: str | None,
        shape: Shape,
        dtype: np.dtype[Any],
        chunks: Shape,
        part: str | None = None,
        checked: bool = False,
    ) -> None:
        super().__init__(path, dataset, shape, dtype, part)
        self.chunks: Shape = chunks
        self.checked = checked
        self.mended = False  # whether chunks were written in parts
        # What is made is the first folder on the way that is not there yet, or else the array's own.
        steps = self.dataset.split("/") if self.dataset else []
        self.target, self.above = self.path, list[str]()
        while steps and os.path.isdir(self.target):
            self.above.append(self.target)
            self.target = os.path.join(self.target, steps.pop(0))
        self.inner = "/".join(steps)  # the array's folder in it
        self.part = part if part is not None else staged(self.target)

    def as_data(self) -> dict[str, Any]:
        return super().as_data() | {"chunks": list(self.chunks), "checked": self.checked}

    @property
    def folder(self) -> str:
        return os.path.join(self.part, self.inner) if self.inner else self.part

    def create(self) -> None:
        with self.trouble():
            self._refuse_others()
            for folder in self.above:  # which writers may have made and died
                clear(folder)
            self._begin_beside(self.target)
            os.mkdir(self.part)
            folder = self.part
            for step in self.inner.split("/") if self.inner else []:
                write(os.path.join(folder, zarr.HEADER), zarr.group(), durable=True)
                os.mkdir(folder := os.path.join(folder, step))

    def _refuse_others(self) -> None:
        """Only an array makes way for an array, and only groups have arrays in them."""
        if os.path.isfile(self.target) or (os.path.isdir(self.target) and os.listdir(self.target)):
            if zarr.kind(self.target) != "array":
                raise trouble(
                    self.target,
                    "something else than an array there",
                    "a new name, or that of an array",
                    "name an array within a store by dataset=",
                )
        elif self.target != self.path and zarr.kind(os.path.dirname(self.target)) != "group":
            raise trouble(
                os.path.dirname(self.target),
                "no group of Zarr version 3",
                "a group",
                "use a new name",
            )

    def write(self, part: np.ndarray[Any, Any], box: Box) -> Any:
        if not self._is_chunk(box):
            return self._write_some(part, box)
        index = tuple(lo // n for (lo, _), n in zip(box, self.chunks, strict=True))
        name = zarr.chunk_name(index)
        if part.shape != self.chunks:  # at the array's edge, chunks reach beyond
            whole = np.zeros(self.chunks, self.dtype)
            whole[tuple(slice(n) for n in part.shape)] = part
            part = whole
        data, path = _bytes_of(part), os.path.join(self.folder, name)
        with self.trouble(), Writing(path, self.nbytes, os.O_CREAT | os.O_TRUNC) as file:
            file.put(data, 0)
            file.sync()
        return name, zarr.checksum(data) if self.checked else ""

    def _is_chunk(self, box: Box) -> bool:
        sizes = zip(box, self.chunks, self.shape, strict=True)
        return all(lo % n == 0 and hi == min(lo + n, size) for (lo, hi), n, size in sizes)

    def _write_some(self, part: np.ndarray[Any, Any], box: Box) -> None:
        """Write what chunks have of a box, of which others may be writing the rest."""
        if not part.size:
            return
        assert not self.checked, "of chunks as a whole"
        self.mended = True
        size = math.prod(self.chunks) * self.dtype.itemsize
        with self.trouble():
            for index in itertools.product(*chunks_in(box, self.chunks)):
                chunk = chunk_box(index, self.chunks)
                common = intersect(chunk, box)
                inside = tuple(
                    (lo - at, hi - at) for (lo, hi), (at, _) in zip(common, chunk, strict=True)
                )
                piece = np.ascontiguousarray(part[slices(common, box)])
                name = os.path.join(self.folder, zarr.chunk_name(index))
                with Writing(name, self.nbytes, os.O_CREAT) as file:
                    os.ftruncate(file.handle, size)
                    for stretch, start in runs(piece, inside, self.chunks):
                        _put(file, stretch, start * self.dtype.itemsize)
                    if self.is_given:
                        file.sync()

    def seal(self) -> tuple[str, str]:
        """Write what Zarr must know of the array: that file's name and checksum."""
        about = zarr.header(self.shape, self.dtype, self.chunks)
        with self.trouble():
            for name in os.listdir(self.folder) if self.mended else ():
                sync(os.path.join(self.folder, name))
            write(os.path.join(self.folder, zarr.HEADER), about, durable=True)
            folder = self.folder
            sync(folder)
            while folder != self.part:
                sync(folder := os.path.dirname(folder))
        return zarr.HEADER, zarr.checksum(about)

    def finish(self) -> None:
        self.seal()
        with self.trouble():
            while self.inner and os.path.isdir(self.target):  # another made this group meanwhile
                step, _, self.inner = self.inner.partition("/")
                self.target = os.path.join(self.target, step)
                rest = Stage(self.target)
                os.rename(os.path.join(self.part, step), rest.part)
                self._end_beside()
                self.part, self.stage = rest.part, rest
            self._refuse_others()
            if self.inner:
                os.rename(self.part, self.target)
                sync(os.path.dirname(self.target))
            else:
                self._take_after()
                replace_folder(self.part, self.target, durable=True)
        self._end_beside()

    def _take_after(self) -> None:
        """Modes and owners of an array's folder and files, as those that were there had them."""
        if os.path.exists(before := os.path.join(self.target, zarr.HEADER)):
            for name in os.listdir(self.part):
                take_after(file := os.path.join(self.part, name), before)
                sync(file)
        take_after(self.part, self.target)
        sync(self.part)
