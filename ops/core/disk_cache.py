"""Files that later processes find again: the cache on disk.

    cache/.ostinato-cache                     says whose folder this is
    cache/plans/VERSION/0123...ef.plan        planner/cache.py
    cache/kernels/0123...ef.o                 ops/cpu/jit/llvm.py
    cache/texts/0123...ef.z                   ops/cpu/jit/kept_text.py
    cache/tuned/0123456789abcdef.jsonl        planner/tuning/tuner.py
    cache/machine.json                        planner/machine.py

Some of them are machine code, and all are believed. So they are only used where nobody else can have
written them: file and folder belong to this user, and nobody else may write to them. Each begins with a
digest of its name and its content, so that none stands in for another. Anything else is a miss, and the
first one that somebody else may have to do with is told.

What is removed was made here: by its place, its name, its owner and its first line. In a folder that
holds other people's files, the cache is a folder beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ostinato.errors import OstinatoError

from .disk import write_whole
from .user_line import user_line

MARKER = ".ostinato-cache"
SAID = b"ostinato cache 1\nOstinato keeps plans and machine code here; all of it may be removed.\n"
INSIDE = "ostinato-cache"  # in a folder that is somebody else's
LARGEST = 1 << 30  # bytes of a file
_MAGIC = b"ostinato cache 1 "
_FRESH = 60.0  # seconds for which a file's time of use is good enough
_LEFT = 3600.0  # and after which a file that is still being written is not

_VERSION = r"\d+-[0-9a-f]{12}"
_FILES = {  # names in each kind of folder
    rf"plans/{_VERSION}": r"[0-9a-f]{32}\.plan",
    "kernels": r"[0-9a-f]{32}\.o",
    "texts": r"[0-9a-f]{32}\.z",
    "tuned": r"[0-9a-f]{16}\.jsonl",
    "": r"machine\.json",
}
_TOP = re.compile(rf"plans|kernels|tuned|machine\.json|\.({MARKER}|machine\.json)\..*\.part")
_BEGINS = re.compile(  # of files that this version wrote, and those before it
    rb'ostinato (cache|plan) \d+ |.{16}\x7fELF|[0-9a-f]{16} \{|\{"(machine|name)"', re.S
)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_told = False


@dataclass(frozen=True, slots=True)
class CacheFile:
    """One of ours."""

    path: Path
    size: int
    used: float  # when, as the system's clock has it


@lru_cache(64)
def open_cache(folder: Path | None) -> Cache:
    return Cache(folder)


class Cache:
    """Files by their names, such as `kernels/0123...ef.o`. Any number of processes may share them."""

    def __init__(self, folder: Path | None) -> None:
        self.asked = folder
        self._root: Path | None = None
        self._is_refused = False

    # -- where -----------------------------------------------------------------------------
    @property
    def root(self) -> Path | None:
        """The folder, if there is one that may be used."""
        return self._found(make=False)

    def where(self, name: str = "") -> Path | None:
        """Where a file is, or would be."""
        root = self._found(make=False) or self.asked
        return root / name if root is not None else None

    def _found(self, make: bool) -> Path | None:
        if self._root is None and self.asked is not None and not self._is_refused:
            with contextlib.suppress(OSError, RuntimeError):
                self._root = _settled(Path(os.path.realpath(self.asked)), make)
                self._is_refused = self._root is None  # and is not looked at again
        return self._root

    def _folder(self, name: str, make: bool) -> Path | None:
        """The folder of a file, with those on the way, if nobody else may write there."""
        folder = self._found(make)
        for step in name.split("/")[:-1]:
            if folder is None:
                return None
            folder /= step
            if make:
                folder.mkdir(0o700, exist_ok=True)
            folder = folder if _is_safe(folder) else None
        return folder

    # -- files -----------------------------------------------------------------------------
    def read(self, name: str) -> bytes | None:
        """Read a file of the cache by its name, if it is all there and nobody else's."""
        data = self._bytes(name)
        if data is None or not data.startswith(_MAGIC):  # cut off, or of an earlier version
            return None
        head, _, rest = data.partition(b"\n")
        if head != _head(name, rest):
            _tell(self.where(name), "other content than was written under this name", _ANEW)
            return None
        return rest

    def write(self, name: str, data: bytes) -> None:
        """Keep a file whole or not at all; a folder that cannot be written to is no reason to fail."""
        with contextlib.suppress(OSError):
            if (folder := self._folder(name, make=True)) is not None:
                whole = _head(name, data) + b"\n" + data
                write_whole(folder / name.rpartition("/")[2], whole, 0o600)

    def lines(self, name: str) -> list[str]:
        """The lines that were added to a file; what is damaged is left out."""
        data = self._bytes(name) or b""
        pairs = (line.split(" ", 1) for line in data.decode("utf-8", "replace").splitlines())
        return [p[1] for p in pairs if len(p) == 2 and p[0] == _sum(name, p[1])]

    def add(self, name: str, lines: Sequence[str]) -> None:
        """Add to a file, which others may do at the same time."""
        with contextlib.suppress(OSError):
            folder = self._folder(name, make=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            handle = self._open(name, flags) if folder is not None else None
            if handle is None:
                self.rewrite(name, lines)
                return
            with os.fdopen(handle, "wb", buffering=0) as file:
                file.write(_lines(name, lines))

    def rewrite(self, name: str, lines: Sequence[str]) -> None:
        """The lines of a file, in place of those that it has."""
        with contextlib.suppress(OSError):
            if (folder := self._folder(name, make=True)) is not None:
                write_whole(folder / name.rpartition("/")[2], _lines(name, lines), 0o600)

    def _open(self, name: str, flags: int) -> int | None:
        """A file that nobody else may write to."""
        root = self._folder(name, make=False)
        if root is None:
            return None
        path = root / name.rpartition("/")[2]
        try:
            handle = os.open(path, flags | _NOFOLLOW, 0o600)
        except OSError:
            if path.is_symlink():
                _tell(path, "a link", _ANEW)
            return None
        facts = os.fstat(handle)
        if (why := _wrong(facts, stat.S_ISREG)) or facts.st_size > LARGEST:
            os.close(handle)
            _tell(path, why or f"{facts.st_size} bytes", _ANEW)
            return None
        return handle

    def _bytes(self, name: str) -> bytes | None:
        try:
            handle = self._open(name, os.O_RDONLY)
            if handle is None:
                return None
            with os.fdopen(handle, "rb") as file:
                if time.time() - os.fstat(handle).st_mtime > _FRESH:
                    with contextlib.suppress(OSError, NotImplementedError):
                        os.utime(handle)
                return file.read()
        except OSError:
            return None

    # -- all of them -----------------------------------------------------------------------
    def files(self, *kinds: str) -> Iterator[CacheFile]:
        """Iterate over the cache's files, of all kinds or of some (`plans`, `plans/VERSION`,
        `kernels`, ...)."""
        for folder, name in self._listed(kinds):
            if name[0] != ".":
                with contextlib.suppress(OSError):
                    path = folder / name
                    facts = path.lstat()
                    if not _wrong(facts, stat.S_ISREG):
                        yield CacheFile(path, facts.st_size, facts.st_mtime)

    def _listed(self, kinds: Sequence[str]) -> Iterator[tuple[Path, str]]:
        """Folders of these kinds, and names in them that are like ours."""
        root = self.root
        folders = [] if root is None else ["", "kernels", "texts", "tuned", *_versions(root)]
        for name in folders:
            assert root is not None
            if kinds and not any(f"{name}/".startswith(f"{kind}/") for kind in kinds):
                continue
            pattern = next(p for kind, p in _FILES.items() if re.fullmatch(kind, name))
            ours = re.compile(rf"{pattern}|\.{pattern}\.[0-9a-f]{{12}}\.part")
            with contextlib.suppress(OSError):
                if not _wrong((root / name).lstat(), stat.S_ISDIR):
                    names = sorted(os.listdir(root / name))
                    yield from ((root / name, n) for n in names if ours.fullmatch(n))

    def keep_within(self, kind: str, size: float = float("inf"), count: int = 1 << 62) -> int:
        """Remove what was not used for longest, until no more than this is left; and what was left half
        written by who died. How many are left."""
        for folder, name in self._listed((kind,)):
            if name[0] == ".":
                with contextlib.suppress(OSError):
                    if time.time() - (folder / name).lstat().st_mtime > _LEFT:
                        remove(folder / name)
        found = sorted(self.files(kind), key=lambda f: f.used)
        total, left = sum(f.size for f in found), len(found)
        for file in found:
            if total <= size and left <= count:
                break
            remove(file.path)
            total, left = total - file.size, left - 1
        return left

    def forget(self, files: Iterable[CacheFile]) -> None:
        """Remove these, and the folders of versions in which nothing is left."""
        folders = set()
        for file in files:
            remove(file.path)
            folders.add(file.path.parent)
        for folder in folders:
            if re.fullmatch(_VERSION, folder.name):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file that lies where ours lie and has a name of ours, if it begins as ours do."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | _NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            begin = file.read(64)
            if _wrong(os.fstat(handle), stat.S_ISREG):
                return
        is_half = path.suffix == ".part" and _MAGIC.startswith(begin[: len(_MAGIC)])
        if is_half or _BEGINS.match(begin):
            path.unlink()


# -- whose ---------------------------------------------------------------------------------
def _settled(path: Path, make: bool) -> Path | None:
    """The folder to be used: this one, or one in it if other files are kept here. OSError if it is not
    there yet."""
    for place in (path, path / INSIDE):
        if make:
            place.mkdir(0o700, parents=True, exist_ok=True)
        if why := _wrong(place.lstat(), stat.S_ISDIR, others=0):
            _tell(place, why)
            return None
        names = {*os.listdir(place)}
        # Another process may make the folder at this moment: its marker is there before all else, but for
        # the marker's own beginning, so it is looked for after the names are listed.
        is_marked = os.path.lexists(place / MARKER)
        if is_marked:
            is_ours = (place / MARKER).read_bytes() == SAID
        else:
            known = all(_TOP.fullmatch(n) for n in names)
            is_begun = all(n.startswith(f".{MARKER}.") for n in names)
            is_ours = known and (is_begun or _has_ours(place))
        if is_ours:
            if not names and not make:
                raise FileNotFoundError(place)
            if not is_marked:
                write_whole(place / MARKER, SAID, 0o600)
            return place if _is_safe(place) else None
    _tell(path / INSIDE, "a folder that is not a cache of Ostinato")
    return None


def _has_ours(place: Path) -> bool:
    """Whether files of an earlier version are in a folder without a marker."""
    earlier = Cache(place)
    earlier._root = place
    return any(True for _ in earlier.files())


def _versions(root: Path) -> list[str]:
    with contextlib.suppress(OSError):
        if not _wrong((root / "plans").lstat(), stat.S_ISDIR):
            names = sorted(os.listdir(root / "plans"))
            return [f"plans/{n}" for n in names if re.fullmatch(_VERSION, n)]
    return []


def _wrong(facts: os.stat_result, kind: object, others: int = 0o022) -> str:
    """Why a file or folder may be somebody else's work, in words; nothing if it cannot be."""
    if not kind(facts.st_mode):  # type: ignore[operator]
        return "something else than a " + ("folder" if kind is stat.S_ISDIR else "file")
    if (me := getattr(os, "geteuid", None)) is not None:  # else a system where that is otherwise
        if facts.st_uid != me():
            return f"one of user {facts.st_uid}, not of this user ({me()})"
        if facts.st_mode & others:
            return f"mode {stat.S_IMODE(facts.st_mode):04o}, with which others may write to it"
    return ""


def _is_safe(folder: Path) -> bool:
    """Whether a folder is this user's; then nobody else may look into it from now on."""
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return False
    if why := _wrong(facts, stat.S_ISDIR, others=0):
        _tell(folder, why)
        return False
    if stat.S_IMODE(facts.st_mode) & 0o077:
        folder.chmod(0o700)
        return not folder.lstat().st_mode & 0o022
    return True


_ANEW = "it is made anew"
_ELSEWHERE = "set OSTINATO_CACHE to a folder of your own, or to off"


def _tell(path: Path | None, got: str, do: str = _ELSEWHERE) -> None:
    """Say once why something is not used."""
    global _told
    if not _told:
        _told = True
        error = OstinatoError.because(
            f"{path} is not used as a part of the cache",
            got=got,
            needed="what only this user can have written, as it holds machine code",
            do=do,
        )
        at, _, line = user_line().rpartition(":")
        warnings.warn_explicit(str(error), RuntimeWarning, at or __name__, int(line or 1))


# -- what ----------------------------------------------------------------------------------
def _head(name: str, data: bytes) -> bytes:
    digest = hashlib.blake2b(name.encode() + b"\0", digest_size=32)
    digest.update(data)
    return _MAGIC + digest.hexdigest().encode()


def _sum(name: str, line: str) -> str:
    return hashlib.blake2b(f"{name}\0{line}".encode(), digest_size=8).hexdigest()


def _lines(name: str, lines: Sequence[str]) -> bytes:
    return "".join(f"{_sum(name, line)} {line}\n" for line in lines).encode()
