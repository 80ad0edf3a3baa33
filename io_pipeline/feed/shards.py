"""Tar files of samples, as WebDataset writes them: members of the same name but for what is behind its
first dot are one sample, `n01/0007.jpg` and `n01/0007.cls`.

Each file is looked through once, header by header, and then read at any place, so samples are shuffled like
those in folders. Nothing is ever unpacked to a disk: names are only names. Links, devices, absolute names and
names that lead out of a folder are refused all the same, for nobody writes them in good faith."""

from __future__ import annotations

import io
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError

from ..remote import IN_FLIGHT, PIECE, Ahead, is_remote, open_file, trouble
from ..source import regular, short, stamp
from ..thread_counts import each_of
from .fields import DATA, IMAGE, LABEL, MASK, Fields
from .file_reads import stamp_of
from .folders import IMAGES, find
from .samples import Samples, digest

BLOCK = 512  # bytes of a header, and what members are padded to
MOST_NAME = 1 << 16  # bytes of an extended header
MOST_MEMBER = 1 << 30  # bytes of a member, which is read whole
OPEN = 64  # shards that are open at a time
FILES, PAX, LONG_NAME, COMMON, FOLDER = (b"0", b"\0"), b"x", b"L", b"g", b"5"

Where = tuple[int, int, int]  # shard, offset, bytes


@dataclass(frozen=True)
class Member:
    name: str
    offset: int
    size: int


def members(path: str) -> list[Member]:
    """The files in a tar file, in their order."""
    found: list[Member] = []
    with open_file(path, PIECE) as file:
        end, at, more = file.seek(0, os.SEEK_END), 0, dict[str, str]()
        while True:
            file.seek(at)
            header = file.read(BLOCK)
            if len(header) < BLOCK:
                if at == 0 or header:
                    raise trouble(path, "a tar file that is cut off, or none", "a whole one")
                return found
            if not header.strip(b"\0"):
                return found
            size = _checked(path, header)
            kind, begin = header[156:157], at + BLOCK
            if kind in (PAX, LONG_NAME, COMMON):
                if size > MOST_NAME:
                    raise trouble(path, f"a name of {size} bytes", f"at most {MOST_NAME}")
                more |= _extended(kind, file.read(size))
            else:
                size = _number(path, more.get("size"), size)
                if begin + size > end:
                    raise trouble(path, "a tar file that is cut off", "a whole one")
                name = more.get("path") or _name(header)
                _check(path, name, kind)
                if kind in FILES:
                    found.append(Member(name, begin, size))
                more = {}
            at = begin + -(-size // BLOCK) * BLOCK


def _checked(path: str, header: bytes) -> int:
    """The bytes of a member, of a header whose sum is right."""
    try:
        wanted = int(header[148:156].strip(b"\0 ") or b"0", 8)
        size = header[124:136]
        count = (
            int.from_bytes(size[1:], "big")
            if size[0] & 0x80
            else int(size.strip(b"\0 ") or b"0", 8)
        )
    except ValueError:
        wanted, count = -1, -1
    if wanted != sum(header) - sum(header[148:156]) + 8 * 32 or count < 0:
        raise trouble(
            path, "what is no header of a tar file", "a tar file, which is not compressed"
        )
    return count


def _name(header: bytes) -> str:
    name, prefix = (header[a:b].partition(b"\0")[0] for a, b in ((0, 100), (345, 500)))
    whole = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return whole.decode("utf-8", "surrogateescape")


def _extended(kind: bytes, data: bytes) -> dict[str, str]:
    """Parse what the next member's header has no room for."""
    if kind == LONG_NAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if kind == COMMON:
        return {}
    found = {}
    while data:
        length, _, rest = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            break
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
    return found


def _number(path: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise trouble(path, f"a size {text!r:.40}", "a number")
    return int(text)


def _check(path: str, name: str, kind: bytes) -> None:
    if kind not in (*FILES, FOLDER):
        got = f"a member {name!r:.200} that is a link or a device"
        raise trouble(path, got, "files and folders alone")
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        got = f"a member called {name!r:.200}"
        raise trouble(path, got, "names within the shard")


# -- what is in a member -------------------------------------------------------------------------
def _itself(data: bytes) -> Any:
    return data


def _array(data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # which may be of any kind, since NumPy parses Python here
        raise ValueError(f"no .npy file of numbers ({short(error)})") from None


_READ: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    **{suffix[1:]: (IMAGE, _itself) for suffix in IMAGES},
    "cls": (LABEL, int),
    "npy": (DATA, _array),
    "json": (DATA, json.loads),
    "txt": (DATA, lambda data: data.decode("utf-8")),
}


def _field(name: str) -> tuple[tuple[str, ...], str, Callable[[bytes], Any]]:
    """Parse a user's name of a field: endings to look for ("jpg;png"), its kind, and how it is
    read. "mask.png" is a mask."""
    endings = tuple(name.lower().split(";"))
    kind, read = _READ.get(endings[0].rpartition(".")[2], (DATA, _itself))
    if kind == IMAGE and endings[0].startswith(("mask.", "seg.")):
        kind = MASK
    return endings, kind, read


class Shards(Samples):
    """The samples in tar files."""

    def __init__(self, paths: Sequence[str], fields: Sequence[str]) -> None:
        self.paths, self.endings = list(paths), list(fields)
        self.wanted = [_field(name) for name in fields]
        self.names: list[str] = []
        self.places: list[tuple[Where, ...]] = []
        self.count: list[int] = []
        found: dict[int, tuple[int, list[Member]]] = {}

        def look(index: tuple[int, ...]) -> None:
            found[index[0]] = self._members(self.paths[index[0]])

        is_far = any(map(is_remote, self.paths))
        self.ahead = Ahead() if is_far else None
        numbers = ((k,) for k in range(len(self.paths)))
        each_of(look, numbers, 0, threads=IN_FLIGHT if is_far else 0)
        for shard, path in enumerate(self.paths):
            self._look_through(shard, path, found[shard][1])
        self._stamps = [found[k][0] for k in range(len(self.paths))]
        sample = tuple(fields) if len(fields) > 1 else fields[0]
        self.fields: Fields = Fields(tuple(kind for _, kind, _ in self.wanted), flatten(sample)[1])
        self._open: OrderedDict[int, _Handle] = OrderedDict()
        self._lock = make_lock()

    def as_data(self) -> Any:
        return [self.paths, self.endings]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        return cls(*said)

    def _members(self, path: str) -> tuple[int, list[Member]]:
        """A shard's stamp, and what is in it."""
        try:
            regular(path)
            now = None if is_remote(path) else os.stat(path)
            stamp = 0 if now is None else stamp_of(now.st_size, now.st_mtime_ns)
            return stamp, members(path)
        except OSError as error:
            if isinstance(error, DataFileError):
                raise
            said = error.strerror or type(error).__name__
            raise trouble(path, said[:1].lower() + said[1:], "a tar file") from None

    def _look_through(self, shard: int, path: str, found: Sequence[Member]) -> None:
        samples: dict[str, dict[str, Where]] = {}
        for m in found:
            folder, slash, name = m.name.rpartition("/")
            stem, _, ending = name.partition(".")
            samples.setdefault(folder + slash + stem, {})[ending.lower()] = shard, m.offset, m.size
        before = len(self.places)
        for key, parts in samples.items():
            chosen = [
                next((parts[e] for e in ends if e in parts), None) for ends, _, _ in self.wanted
            ]
            if any(c is not None for c in chosen):
                lost = next(
                    (e for c, (e, _, _) in zip(chosen, self.wanted, strict=True) if c is None), None
                )
                if lost is not None:
                    got = f"a sample {key!r:.200} without {' or '.join(lost)}"
                    raise trouble(path, got, "all fields of each sample")
                self.names.append(key)
                self.places.append(tuple(c for c in chosen if c is not None))
        self.count.append(len(self.places) - before)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, index: int) -> tuple[list[Any], Fields]:
        found = []
        for (shard, offset, size), (_, _, read) in zip(
            self.places[index], self.wanted, strict=True
        ):
            if size > MOST_MEMBER:
                raise trouble(
                    self.paths[shard], f"a member of {size} bytes", f"at most {MOST_MEMBER}"
                )
            found.append(read(self._bytes(shard, offset, size)))
        return found, self.fields

    def _bytes(self, shard: int, offset: int, size: int) -> bytes:
        """Read a member's bytes."""
        path = self.paths[shard]
        if self.ahead is not None and is_remote(path):
            return self.ahead.take((path, offset, offset + size))
        handle = self._handle(shard)  # which keeps it open
        data = os.pread(handle.number, size, offset)
        while len(data) < size and (
            more := os.pread(handle.number, size - len(data), offset + len(data))
        ):
            data += more
        if len(data) < size:
            raise trouble(path, "less than when it was opened", "a file that stays as it is")
        return data

    def expect(self, indices: Sequence[int]) -> None:
        if self.ahead is not None:
            places = [w for k in indices for w in self.places[k] if w[2] <= PIECE]
            keys = [(self.paths[s], at, at + size) for s, at, size in places]
            self.ahead.expect([key for key in keys if is_remote(key[0])])

    def _handle(self, shard: int) -> _Handle:
        with self._lock:
            found = self._open.get(shard)
            if found is None:
                found = self._open[shard] = _Handle(self.paths[shard], self._stamps[shard])
                if len(self._open) > OPEN:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return found

    def identity(self) -> str:
        names = [os.path.basename(p) for p in self.paths]
        return digest("shards", *names, *self.count, *(e for e, _, _ in self.wanted), *self.names)

    def name(self, index: int) -> str:
        return f"file {self.paths[self.places[index][0][0]]}, member {self.names[index]}"

    def made_of(self, index: int) -> str:
        shards = {shard for shard, _, _ in self.places[index]}
        endings = [e for e, _, _ in self.wanted]
        return f"{[stamp(self.paths[s]) for s in sorted(shards)]} {self.places[index]} {endings}"


class _Handle:
    """An open shard. It is closed when nobody reads from it any more."""

    number = -1

    def __init__(self, path: str, stamp: int) -> None:
        self.number = os.open(path, os.O_RDONLY)
        found = os.fstat(self.number)
        if stamp_of(found.st_size, found.st_mtime_ns) != stamp:
            raise trouble(path, "another size or time than before", "a file that stays as it is")

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def shards_of(who: str, paths: Any, fields: Sequence[str]) -> Shards:
    """Shards of a pattern, in which {000..127} may stand, or of a list."""
    if not fields:
        raise misfit(ArgumentError, who, got="no fields", needed='endings such as ("jpg", "cls")')
    found = []
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        for one in _numbered(os.fspath(path)):
            found += find(one, (".tar",))
    if not found:
        raise misfit(ArgumentError, who, got=f"no file for {paths!r}", needed="tar files")
    return Shards(found, fields)


def _numbered(pattern: str) -> list[str]:
    """`{08..11}` as 08, 09, 10, 11."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        return [pattern]
    low, high = match.groups()
    return [
        whole
        for k in range(int(low), int(high) + 1)
        for whole in _numbered(
            f"{pattern[: match.start()]}{k:0{len(low)}d}{pattern[match.end() :]}"
        )
    ]
