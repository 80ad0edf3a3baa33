"""What the first bytes of an image file say: enough to know its extents without decoding it."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

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
