"""Files behind addresses: "s3://bucket/x.npy", "https://...", "memory://...", whatever fsspec knows.

They are read in ranges, many at a time, since each waits for its answer; what fails and may pass is asked for
again. All other modules see bytes at places, as those of a file. Nothing is written behind an address."""

from __future__ import annotations

import io
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from ostinato.ops.core.locks import make_lock

from ostinato.errors import DataFileError

from .thread_counts import each_of

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z0-9+.-]+)*://")
IN_FLIGHT = 32  # requests of a read, and of those that nobody waits for yet
EXPECTED = 512  # of the latter that are remembered
PIECE = 4 << 20  # bytes of a request
TRIES, PAUSE = 5, 0.1  # of a request, and seconds between the first two, which double
PASSING = (408, 425, 429)  # of HTTP, beside 500 and more
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, ValueError)
INSTALL = "install what reads it: pip install 'ostinato[remote]'"
T = TypeVar("T")
Key = tuple[str, int, int | None]  # an address, and a range of bytes


def is_remote(path: object) -> bool:
    return isinstance(path, str) and ADDRESS.match(path) is not None


def absolute(path: str | os.PathLike[str]) -> str:
    """A path that other processes find the same file by."""
    name = os.fspath(path)
    return name if is_remote(name) else os.path.abspath(name)


def located(path: str) -> tuple[Any, str]:
    """The file system of an address, and what the file is called there."""
    scheme = path.partition("://")[0]
    try:
        import fsspec

        return cast(tuple[Any, str], fsspec.core.url_to_fs(path))
    except ImportError as error:
        got = f"no package for {scheme}:// ({' '.join(str(error).split()):.120})"
        raise trouble(path, got, "fsspec and what it needs", INSTALL) from None
    except Exception as error:
        raise trouble(path, _said(error), "an address that fsspec knows") from None


def tried(function: Callable[..., T], *given: Any) -> T:
    """Make a request, again where the answer may be another."""
    pause = PAUSE
    for _ in range(TRIES - 1):
        try:
            return function(*given)
        except Exception as error:
            status = getattr(error, "status", None)
            if isinstance(status, int) and status < 500 and status not in PASSING:
                raise
            if isinstance(error, (DataFileError, *LASTING)):
                raise
        time.sleep(pause)
        pause *= 2
    return function(*given)


class Address:
    """A file that is read in ranges."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fs, self.name = located(path)
        about = answered(path, self.fs.info, self.name)
        if about.get("type") != "file" or about.get("size") is None:
            raise trouble(path, "what is no file, or of no known length", "a file")
        self.size = int(about["size"])
        more = [about.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "created")]
        self.stamp = f"{path} {self.size} {[str(x) for x in more if x is not None]}"

    def bytes(self, lo: int, hi: int) -> bytes:
        return fetched((self.path, lo, min(hi, self.size)), self.size)

    def fill(self, out: np.ndarray[Any, Any], at: int) -> bool:
        """Read an array's bytes, in several requests if they are many; False if the file ends before."""
        flat = out.reshape(-1).view(np.uint8)
        if at + flat.size > self.size:
            return False

        def piece(index: tuple[int, ...]) -> None:
            (k,) = index
            here = flat[k : k + PIECE]
            here[...] = np.frombuffer(self.bytes(at + k, at + k + here.size), np.uint8)

        several = flat.size > PIECE
        pieces = ((k,) for k in range(0, flat.size, PIECE))
        each_of(piece, pieces, 0, threads=IN_FLIGHT if several else 0)
        return True


class _Raw(io.RawIOBase):
    """The same as Python's files are read."""

    def __init__(self, address: Address) -> None:
        self.address, self.at = address, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.address.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        view = np.frombuffer(buffer, np.uint8)
        count = max(min(view.size, self.address.size - self.at), 0)
        self.address.fill(view[:count], self.at)
        self.at += count
        return count


def open_file(path: str, ahead: int = 1 << 16) -> BinaryIO:
    """A file to be read, here or behind an address, of which so many bytes are read at once."""
    if not is_remote(path):
        return open(path, "rb")
    raw = _Raw(Address(path))
    return cast(BinaryIO, io.BufferedReader(raw, max(min(ahead, raw.address.size), 1)))


def fetched(key: Key, size: int | None = None) -> bytes:
    """A range of a file, or all of it. size: of the whole file, if that is known."""
    path, lo, hi = key
    fs, name = located(path)

    def get() -> bytes:
        if hi is None:
            return cast(bytes, fs.cat_file(name))
        found: bytes = fs.cat_file(name, lo, hi)
        if len(found) == size != hi - lo:  # of a server that gives no ranges
            found = found[lo:hi]
        if len(found) != hi - lo:
            raise ConnectionError(f"{len(found)} bytes of {hi - lo}")
        return found

    return answered(path, get) if lo != hi else b""


def answered(path: str, function: Callable[..., T], *given: Any) -> T:
    """Make a request; errors name the address."""
    try:
        return tried(function, *given)
    except DataFileError:
        raise
    except ImportError as error:
        raise trouble(path, _said(error), "what fsspec needs", INSTALL) from None
    except Exception as error:
        raise trouble(path, _said(error), "a file that can be read") from None


def find(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files of a pattern, or below a folder."""
    fs, name = located(pattern)
    if any(c in name for c in ("*[" if "http" in pattern[:5] else "*?[")):
        names = answered(pattern, fs.glob, name)
    elif not name.lower().endswith(suffixes) and answered(pattern, fs.isdir, name):
        names = answered(pattern, fs.find, name)
    else:
        return [pattern]
    return sorted(fs.unstrip_protocol(n) for n in names if n.lower().endswith(suffixes))


class Ahead:
    """Requests whose answers will be asked for: they are under way before."""

    def __init__(self) -> None:
        self.lock, self.process = make_lock(), 0
        self.found: OrderedDict[Key, Future[bytes]] = OrderedDict()

    def expect(self, keys: Iterable[Key]) -> None:
        with self.lock:
            if self.process != os.getpid():  # a child of a fork has no threads
                self.found.clear()
                self.process = os.getpid()
            for key in keys:
                if key not in self.found:
                    self.found[key] = _pool(self.process).submit(fetched, key)
            while len(self.found) > EXPECTED:  # of epochs that were left
                self.found.popitem(last=False)[1].cancel()

    def take(self, key: Key) -> bytes:
        with self.lock:
            found = self.found.pop(key, None) if self.process == os.getpid() else None
        return fetched(key) if found is None else found.result()


_pools: dict[int, ThreadPoolExecutor] = {}


def _pool(process: int) -> ThreadPoolExecutor:
    if process not in _pools:
        _pools.clear()
        _pools[process] = ThreadPoolExecutor(IN_FLIGHT, "ostinato-remote")
    return _pools[process]


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text:.200}" if text else type(error).__name__


def trouble(path: str, got: str, needed: str, do: str = "") -> DataFileError:
    error = DataFileError.because(f"file {path}", got=got, needed=needed, do=do)
    assert isinstance(error, DataFileError)
    return error
