"""Samples kept in files, for later epochs and later runs.

    folder/0123...ef/cache.json        which pipe's samples these are, in words
    folder/0123...ef/89ab...67.data    records, one after another
    folder/0123...ef/89ab...67.index   of each: its key, where it begins, how long it is

A record is a header (what it is, a checksum, the sample's key), the sample's form as JSON, and the bytes of
its arrays. Each process that adds some writes a pair of files of its own, so any number may share a folder.
Nothing is believed but what its checksum confirms: what a killed process left half written is a miss.

The key of a sample is a digest of what it is made of (a file's name, size and time, a row's content). So
samples whose files have changed are not found, and those that were moved in the list are."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.encode import Malformed
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES

from .fields import Fields
from .plain import Undescribed, made_structure, plain_structure

try:
    import fcntl
except ImportError:  # Windows: no folder is cleared for another
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MAGIC = b"OstSamp1"
HEADER = struct.Struct("<8sI16sIQ")  # MAGIC, checksum, key, bytes of the form, bytes of the rest
ENTRY = np.dtype([("key", "S16"), ("offset", "<u8"), ("size", "<u8")])
ALIGN = 64
NEWS = 5.0  # seconds after which a miss looks for what other processes have added
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDER = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{32}\.(data|index)|cache\.json|lock")

Place = tuple[int, int, int]  # number of a pair of files, offset, bytes


class Disk:
    """The samples of one pipe, in a folder that other pipes may have samples in, too."""

    def __init__(self, folder: str | os.PathLike[str], key: str, most: int, told: str) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(folder)))
        self.home, self.most = self.root / key, most
        self.kept = 0  # bytes of files in the root
        self.said: list[str] = []  # what users should be told, once
        self.is_closed = False  # nothing more is added
        self._told = told
        self._lock = make_lock()
        self._names: list[str] = []  # of pairs of files
        self._handles: dict[int, int] = {}
        self._ends: dict[str, int] = {}  # bytes of each index that are known
        self._found: dict[bytes, Place] = {}
        self._own: tuple[int, int, int] | None = None  # process, handles of data and index
        self._offset = 0
        self._looked = 0.0
        self._held: int | None = None
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._describe()
            self.look()
        except OSError as error:
            self._close("opened", error)

    def __len__(self) -> int:
        return len(self._found)

    # -- reading ---------------------------------------------------------------------------------
    def get(self, key: bytes) -> tuple[list[Any], Fields] | None:
        """A sample that was kept; None if there is none, or if its file is damaged."""
        place = self._found.get(key)
        if place is None and time.monotonic() - self._looked > NEWS:
            with contextlib.suppress(OSError):
                self.look()
            place = self._found.get(key)
        if place is None:
            return None
        try:
            data = self._read(place)
        except OSError:
            data = np.empty(0, np.uint8)
        found = decoded(key, data)
        if found is None:
            self._found.pop(key, None)
        return found

    def _read(self, place: Place) -> np.ndarray[Any, Any]:
        pair, offset, size = place
        handle = self._handles.get(pair)
        if handle is None:
            with self._lock:
                handle = self._handles.get(pair)
                if handle is None:
                    handle = os.open(self.home / f"{self._names[pair]}.data", os.O_RDONLY)
                    self._handles[pair] = handle
        if offset + size > os.fstat(handle).st_size:
            return np.empty(0, np.uint8)
        out: Any = np.empty(size, np.uint8)
        done = 0
        while done < size and (more := os.preadv(handle, [out[done:]], offset + done)):
            done += more
        return out[:done]

    def look(self) -> None:
        """Find what there is, and what other processes have added since."""
        with self._lock:
            self._looked = time.monotonic()
            for path in sorted(self.home.glob("*.index")):
                name = path.name[:-6]
                known = self._ends.get(name, 0)
                if not _FILE.fullmatch(path.name) or path.stat().st_size - known < ENTRY.itemsize:
                    continue
                with open(path, "rb") as file:
                    file.seek(known)
                    data = file.read()
                entries = np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
                self._ends[name] = known + entries.nbytes
                if name not in self._names:
                    self._names.append(name)
                pair = self._names.index(name)
                keys = entries.view(np.uint8).reshape(len(entries), -1)[:, :16].tobytes()
                places = zip(entries["offset"].tolist(), entries["size"].tolist(), strict=True)
                for k, (offset, size) in enumerate(places):
                    self._found[keys[16 * k : 16 * k + 16]] = pair, offset, size
            self.kept = sum(size for _, size in _files(self.root))

    # -- writing ---------------------------------------------------------------------------------
    def put(self, key: bytes, values: Sequence[Any], fields: Fields) -> None:
        """Keep a sample, if there is room and it can be written down. It never fails."""
        if self.is_closed or key in self._found:
            return
        data = encoded(key, values, fields)
        if data is None:
            return
        with self._lock:
            size = sum(map(len, data))
            if self.is_closed or key in self._found:
                return
            if self.kept + size + ENTRY.itemsize > self.most and not self._make_room(size):
                self.is_closed = True
                return
            try:
                self._write(key, data, size)
            except OSError as error:
                self._close("written to", error)

    def _write(self, key: bytes, data: Sequence[Any], size: int) -> None:
        if self._own is None or self._own[0] != os.getpid():
            name = secrets.token_hex(16)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            handles = [os.open(self.home / f"{name}.{e}", flags, 0o644) for e in ("data", "index")]
            self._own, self._offset = (os.getpid(), handles[0], handles[1]), 0
            self._names.append(name)
            self._handles[len(self._names) - 1] = handles[0]
        _, records, index = self._own
        name = self._names[-1]
        try:
            for part in data:
                _written(records, part)
        except OSError:
            with contextlib.suppress(OSError):  # give back what another may need
                os.ftruncate(records, self._offset)
            raise
        place = len(self._names) - 1, self._offset, size
        _written(index, np.array([(key, self._offset, size)], ENTRY).tobytes())
        self._offset += size
        self._ends[name] = self._ends.get(name, 0) + ENTRY.itemsize
        self.kept += size + ENTRY.itemsize
        self._found[key] = place

    def _close(self, what: str, error: OSError) -> None:
        """It grows no more, and users are told why, once."""
        self.is_closed = True
        reason = "the disk is full" if error.errno in FULL else (error.strerror or str(error))
        self.said.append(
            f"the cache of samples in {self.root} could not be {what}: {reason}. It stays as it is; "
            f"samples that are not in it are made again in each epoch."
        )

    # -- the folder ------------------------------------------------------------------------------
    def _hold(self) -> None:
        """Say that this pipe's samples are in use, so that nobody clears them away."""
        handle = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._held = handle
        os.utime(handle)
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _describe(self) -> None:
        path = self.home / "cache.json"
        if not path.exists():
            said = {"ostinato": "samples of a pipe", "format": FORMAT, "pipe": self._told}
            path.write_text(json.dumps(said, indent=1) + "\n")

    def _make_room(self, size: int) -> bool:
        """Clear away what other pipes have left and nobody uses, what was not used longest first."""
        if fcntl is None or size > self.most:
            return False
        others = [p for p in self.root.iterdir() if _FOLDER.fullmatch(p.name) and p != self.home]
        for _, path in sorted((_used(p), p) for p in others):
            if self.kept + size + ENTRY.itemsize <= self.most:
                break
            if not (path / "cache.json").is_file():
                continue
            with contextlib.suppress(OSError), open(path / "lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = [(p, n) for p, n in _files(path) if _FILE.fullmatch(p.name)]
                for file, count in gone:
                    file.unlink()
                    self.kept -= count
                with contextlib.suppress(OSError):
                    path.rmdir()
        return self.kept + size + ENTRY.itemsize <= self.most

    def __del__(self) -> None:
        own = self._own[1:] if self._own is not None else ()
        for handle in {*self._handles.values(), *own, *([self._held] if self._held else ())}:
            with contextlib.suppress(OSError):
                os.close(handle)


def _used(path: Path) -> float:
    try:
        return (path / "lock").stat().st_mtime
    except OSError:
        return 0.0


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Samples' files in a folder and those in it, with their bytes."""
    for path in [*folder.glob("*/*"), *folder.glob("*")]:
        with contextlib.suppress(OSError):
            if _FILE.fullmatch(path.name) and path.is_file():
                yield path, path.stat().st_size


def _written(handle: int, data: Any) -> None:
    """All of it, or an error."""
    left = memoryview(data).cast("B")
    while left:
        count = os.write(handle, left)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = left[count:]


def room_for(folder: str | os.PathLike[str]) -> int:
    """Bytes that samples may take in a folder if nobody says: those that they take, and half of what is
    free."""
    root = path = Path(os.path.abspath(os.path.expanduser(folder)))
    while not path.exists() and path != path.parent:
        path = path.parent
    return sum(size for _, size in _files(root)) + shutil.disk_usage(path).free // 2


# -- records -----------------------------------------------------------------------------------
def encoded(key: bytes, values: Sequence[Any], fields: Fields) -> list[Any] | None:
    """A record, in pieces; None of what cannot be written down."""
    try:
        structure = plain_structure(fields.structure)
    except Undescribed:
        return None
    leaves: list[Any] = []
    parts: list[Any] = []
    for value in values:
        leaf = _leaf(value)
        if leaf is None:
            return None
        leaves.append(leaf[0])
        if leaf[1] is not None:
            parts += [leaf[1], b"\0" * (-memoryview(leaf[1]).nbytes % ALIGN)]
    form = json.dumps({"kinds": fields.kinds, "tree": structure, "leaves": leaves}).encode()
    form += b" " * (-(len(form) + HEADER.size) % ALIGN)
    parts = [memoryview(p).cast("B") for p in parts if memoryview(p).nbytes]
    size = sum(map(len, parts))
    check = _checksum(key, form, parts)
    return [HEADER.pack(MAGIC, check, key, len(form), size), form, *parts]


def decoded(key: bytes, data: Any) -> tuple[list[Any], Fields] | None:
    """The sample of a record; None if it is not whole, or another one."""
    if len(data) < HEADER.size:
        return None
    magic, check, name, long, size = HEADER.unpack_from(data)
    begin = HEADER.size + long
    if (magic, name) != (MAGIC, key) or len(data) != begin + size:
        return None
    whole = memoryview(data)
    if _checksum(key, whole[HEADER.size : begin], [whole[begin:]]) != check:
        return None
    try:
        form = json.loads(bytes(whole[HEADER.size : begin]))
        values: list[Any] = []
        at = begin
        for leaf in form["leaves"]:
            value, size = _value(leaf, whole[at:])
            values.append(value)
            at += size + -size % ALIGN
        return values, Fields(tuple(form["kinds"]), made_structure(form["tree"]))
    except (
        Malformed,
        ValueError,
        TypeError,
        LookupError,
    ):  # another version's, though it says it is ours
        return None


def _checksum(key: bytes, form: Any, parts: Sequence[Any]) -> int:
    found = zlib.crc32(form, zlib.crc32(key))
    for part in parts:
        found = zlib.crc32(part, found)
    return found


def _leaf(value: Any) -> tuple[Any, Any] | None:
    """A leaf's form, and its bytes; None if it is nothing that files can hold."""
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "number"
        dtype = value.dtype
        name = dtype.name if DTYPES.get(dtype.name) == dtype else dtype.str
        if dtype.fields or dtype.hasobject or (dtype.kind == "V" and name != dtype.name):
            return None
        data = np.ascontiguousarray(value)
        return [kind, name, list(value.shape)], data.reshape(-1).view(np.uint8)
    if isinstance(value, bytes):
        return ["bytes", len(value)], value
    return (["json", value], None) if _is_json(value) else None


def _is_json(value: Any) -> bool:
    if type(value) in (type(None), bool, int, float, str):
        return True
    if type(value) is list:
        return all(map(_is_json, value))
    return type(value) is dict and all(
        type(k) is str and _is_json(k) and _is_json(v) for k, v in value.items()
    )


def _value(leaf: list[Any], data: memoryview) -> tuple[Any, int]:
    """Decode a leaf, and count its bytes."""
    kind = leaf[0]
    if kind == "json":
        return leaf[1], 0
    if kind == "bytes":
        return bytes(data[: leaf[1]]), leaf[1]
    dtype = DTYPES.get(leaf[1]) or np.dtype(leaf[1])
    shape = tuple(leaf[2])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    found = np.frombuffer(data[:size], np.uint8).view(dtype).reshape(shape)
    if kind == "number":
        return found[()], size
    found.flags.writeable = False
    return found, size
