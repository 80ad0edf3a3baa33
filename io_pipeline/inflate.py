"""Compressed chunks, which may not become more than they say.

A chunk's extents say how many bytes it has. A few bytes of a compressed chunk may hold gigabytes, or say
that they do: nothing here makes more of them than was said, and nothing is allocated for more."""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

BLOCK = 1 << 17  # bytes of one of Zstandard's blocks, at most
LOOSE = 16  # times as much as there is may be what blocks of unknown extents could hold ...
LITTLE = 1 << 26  # ... or so many bytes
_ZSTD = b"\x28\xb5\x2f\xfd"


class TooMuchError(ValueError):
    """More than was said."""

    def __init__(self, size: int, found: str = "") -> None:
        super().__init__(
            f"which holds {found} in place of {size}"
            if found
            else f"which holds more than its {size} bytes"
        )


def _stream(data: bytes, size: int, begin: Callable[[], Any]) -> bytes:
    """Decompress by one of Python's decompressors, one member behind the other."""
    found = b""
    while data:
        member = begin()
        found += member.decompress(data, size + 1 - len(found))
        if len(found) > size:
            raise TooMuchError(size)
        if not member.eof:
            raise ValueError("which is cut off")
        data = member.unused_data
    return found


@lru_cache(1)
def _libdeflate() -> Any:
    """Its binding, which takes half of zlib's time; None if it is not there."""
    try:
        import deflate
    except ImportError:
        return None
    return deflate


def _plain(data: bytes, size: int) -> Any:
    """Inflates one member with nothing behind it, by libdeflate; None of anything else. It does not tell
    what it left unread, so the last bytes have to say what a member's do of the result."""
    library = _libdeflate()
    is_gzip = data[:2] == b"\x1f\x8b"
    if library is None or not size:
        return None
    try:
        found = (library.gzip_decompress if is_gzip else library.zlib_decompress)(data, size)
    except Exception:  # its own, of all that is damaged or longer
        return None
    end = (
        struct.pack("<I", size & 0xFFFFFFFF) if is_gzip else struct.pack(">I", zlib.adler32(found))
    )
    return found if len(found) == size and data.endswith(end) else None


def _gzip(data: bytes, size: int) -> Any:
    plain = _plain(data, size)
    if plain is not None:
        return plain
    return _stream(data, size, lambda: zlib.decompressobj(zlib.MAX_WBITS | 32))


def _blosc(data: bytes, size: int) -> Any:
    from numcodecs import blosc

    _says(data[4:8], size)
    return blosc.decompress(data)


def _lz4(data: bytes, size: int) -> Any:
    from numcodecs import lz4

    _says(data[:4], size)
    return lz4.decompress(data)


def _zstd(data: bytes, size: int) -> Any:
    from numcodecs import zstd

    known, most = zstd_bytes(data)
    if most > (size if known else max(LOOSE * size, LITTLE)):
        raise TooMuchError(size, f"{most} bytes" if known else "")
    return zstd.decompress(data)


def zstd_bytes(data: bytes) -> tuple[bool, int]:
    """Whether frames say how many bytes they hold; and these, or as many as their blocks may hold."""
    at, total = 0, 0
    while at < len(data):
        if data[at : at + 4] != _ZSTD:
            raise ValueError("which is damaged")
        about = data[at + 4]
        single = about >> 5 & 1
        at += 6 - single + (0, 1, 2, 4)[about & 3]
        length = (single, 2, 4, 8)[about >> 6]
        if length:
            said = int.from_bytes(data[at : at + length], "little")
            return True, said + (256 if length == 2 else 0)
        last = 0
        while not last:
            head = int.from_bytes(data[at : at + 3], "little")
            last, kind, held = head & 1, head >> 1 & 3, head >> 3
            if kind == 3 or at + 3 > len(data):
                raise ValueError("which is damaged")
            total += BLOCK if kind == 2 else held
            at += 3 + (1 if kind == 1 else held)
        at += 4 * (about >> 2 & 1)  # a checksum
    return False, total


def _says(number: bytes, size: int) -> None:
    said = int.from_bytes(number, "little")
    if said != size:
        raise TooMuchError(size, f"{said} bytes")


CODECS: Mapping[str, Callable[[bytes, int], Any]] = {
    "gzip": _gzip,
    "zlib": _gzip,
    "bz2": lambda data, size: _stream(data, size, bz2.BZ2Decompressor),
    "blosc": _blosc,
    "lz4": _lz4,
    "zstd": _zstd,
}


def can(codec: str) -> bool:
    if codec in ("gzip", "zlib", "bz2"):
        return True
    try:
        import numcodecs  # noqa: F401
    except ImportError:
        return False
    return codec in CODECS


def inflated(codec: str, data: bytes, size: int) -> memoryview:
    """The bytes of a compressed chunk; raises a ValueError that ends a sentence about it, unless it is
    as many as there should be."""
    try:
        found = memoryview(CODECS[codec](data, size)).cast("B")
    except ValueError:
        raise
    except Exception as error:  # of libraries that meet anything
        raise ValueError(f"which is damaged ({error!s:.80})") from None
    if len(found) != size:
        raise TooMuchError(size, f"{len(found)} bytes")
    return found


def unshuffled(data: Any, each: int) -> np.ndarray[Any, Any]:
    """Bytes of numbers of which the first bytes, the second bytes, ... came together."""
    flat = np.frombuffer(data, np.uint8)
    count = len(flat) // each
    found = np.empty(len(flat), np.uint8)
    found[: count * each].reshape(count, each)[...] = flat[: count * each].reshape(each, count).T
    found[count * each :] = flat[count * each :]
    return found
