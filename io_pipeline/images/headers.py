"""What the first bytes of an image file say: enough to know its extents without decoding it."""

from __future__ import annotations

import struct
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import int64, uint8
from ostinato.ops.cpu.jit.routine import Memory, Number, Routine, larger, smaller
from ostinato.ops.jit.values import Value, cast, where

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of frame headers
_ALONE = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))  # markers without a length, and none at all
MOST_PIXELS = 1 << 27  # of an image, be it in a file or what a stage makes of it


class Header(NamedTuple):
    """Of a JPEG file: extents as they are stored, and how they are to be turned."""

    height: int
    width: int
    channels: int
    bits: int
    orientation: int  # EXIF's, 1 to 8


def is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def jpeg_header(data: bytes) -> Header:
    """Walks over the markers, and what strays between them, to the frame header, of which there is one
    before the first scan."""
    k, end, orientation = 2, len(data) - 10, 1
    while (k := data.find(b"\xff", k, end)) >= 0:
        marker = data[k + 1]
        if marker == 0xFF:
            k += 1
            continue
        if marker in _ALONE:
            k += 2
            continue
        if marker in _FRAMES:
            bits, height, width, channels = struct.unpack_from(">BHHB", data, k + 4)
            return Header(height, width, channels, bits, orientation)
        length = data[k + 2] << 8 | data[k + 3]
        if marker == 0xE1 and data[k + 4 : k + 10] == b"Exif\0\0":
            orientation = exif_orientation(data[k + 10 : k + 2 + length])
        k += 2 + max(length, 2)
    raise ValueError("a JPEG file without a frame header")


def exif_orientation(exif: bytes) -> int:
    """The number of EXIF's orientation; 1 if there is none, or none that makes sense."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None or len(exif) < 14:
        return 1
    (start,) = struct.unpack_from(order + "I", exif, 4)
    if start + 2 > len(exif):
        return 1
    (count,) = struct.unpack_from(order + "H", exif, start)
    for k in range(min(count, (len(exif) - start - 2) // 12)):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, start + 2 + 12 * k)
        if tag == 0x0112:
            return int(value) if kind == 3 and 1 <= value <= 8 else 1
    return 1


def upright(x: np.ndarray[Any, Any], orientation: int) -> np.ndarray[Any, Any]:
    """An image as it is to be looked at; a view."""
    if orientation >= 5:
        x = x.swapaxes(0, 1)
    down = orientation in (3, 4, 7, 8)
    right = orientation in (2, 3, 6, 7)
    if down:
        x = x[::-1]
    return x[:, ::-1] if right else x


# -- machine code ------------------------------------------------------------------------------
def read_header() -> Routine:
    """Looks at a JPEG file that is as most are: 0, and its extents; 1 of what is damaged or turned, has
    other colours, or no end."""
    made = Routine(int64, "read_header", data=[uint8], size=int64, found=[int64])
    data, size, found = made.given
    made.leaves_if(size < 13, 1)
    made.leaves_if(_word(data, 0, 3) != 0xFFD8FF, 1)
    k, back = made.variable(made.whole(2)), made.variable(made.whole(2))
    with made.until() as ends:
        ends((_word(data, size - back.now, 2) == 0xFFD9).name)
        back.now = back.now + 1
        made.leaves_if((back.now > 64) | (back.now > size), 1)
    with made.until() as ends:
        at, marker = data.further(k.now), cast(data[k.now + 1], int64)
        made.leaves_if((k.now >= size - 10) | (at[0] != 0xFF), 1)
        is_fill, is_frame, is_alone = (
            marker == 0xFF,
            _is_in(marker, _FRAMES),
            _is_in(marker, _ALONE),
        )
        with made.given_that(is_frame):
            found[0], found[1] = _word(at, 5, 2), _word(at, 7, 2)
            is_known = (at[4] == 8) & ((at[9] == 1) | (at[9] == 3))
            made.ends(cast(~is_known, int64))
            made.label()
        length = _word(at, 2, 2)
        is_exif = (marker == 0xE1) & (_word(at, 4, 6) == int.from_bytes(b"Exif\0\0", "big"))
        with made.given_that(is_exif):
            end = smaller(k.now + 2 + length, size)
            made.leaves_if(made.does(_is_turned(), at.further(10), end - k.now - 10) != 0, 1)
        k.now = k.now + where(is_fill, 1, where(is_alone, 2, larger(length, 2) + 2))
    return made


def _is_in(marker: Value, markers: frozenset[int]) -> Value:
    return reduce(lambda a, b: a | b, (marker == m for m in sorted(markers)))


def _is_turned() -> Routine:
    """Asks EXIF whether an image is to be turned."""
    made = Routine(int64, "is_turned", exif=[uint8], size=int64)
    exif, size = made.given
    made.leaves_if(size < 14, 0)
    order = _word(exif, 0, 2)
    is_big = order == int.from_bytes(b"MM", "big")
    made.leaves_if(~is_big & (order != int.from_bytes(b"II", "big")), 0)

    def word(k: Number, count: int) -> Value:
        return where(is_big, _word(exif, k, count), _word(exif, k, count, -1))

    start = word(4, 4) + 2
    made.leaves_if(start > size, 0)
    with made.each(smaller(word(start - 2, 2), (size - start) // 12)) as k:
        entry = start + k * 12
        with made.given_that(word(entry, 2) == 0x0112):
            kind, value = word(entry + 2, 2), word(entry + 8, 2)
            made.ends(cast((kind == 3) & (value >= 2) & (value <= 8), int64))
            made.label()
    made.ends(0)
    return made


def _word(data: Memory, k: Number, count: int, step: int = 1) -> Value:
    """So many bytes as a number, of which the first one counts most, or least."""
    words = [cast(data[data.code.whole(k) + n], int64) for n in range(count)]
    return reduce(lambda a, b: a * 256 + b, words[::step])
