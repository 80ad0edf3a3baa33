"""From the bytes of a file to an image: height x width x channels of uint8.

JPEG files go through libjpeg-turbo with the accurate transform, which simplejpeg, Pillow and OpenCV all
have, with the same bits. What else there is (PNG, WebP, AVIF, TIFF, GIF, BMP, PPM, JPEG in CMYK) Pillow
decodes.

| a file | what comes of it |
|---|---|
| EXIF orientation | the image is turned upright |
| grey, where colours are asked for | the same value in all three |
| colours, where grey is asked for | their luma |
| alpha | left out, unless there are to be four channels |
| a palette | its colours; of a mask its indices |
| CMYK | converted to RGB, without a colour profile |
| 16 bits | the upper 8, or all of them with dtype="uint16" |
| truncated | an error, or with truncated=True what there is; the rest is 128 of JPEG by simplejpeg, else 0 |
| more than `most_pixels` | an error, before anything is decoded |

In front of a crop only the crop is decoded, with the same bits (windows.py). Damage that lies behind it in
the file is then not seen, other than a missing end."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..feed.fields import IMAGE, MASK
from ..feed.native import Form, Native
from ..feed.stage import Shape, Stage, Window, stage
from .backends import has_avif, needed, opencv, pillow, simplejpeg
from .headers import MOST_PIXELS, Header, is_jpeg, jpeg_header, read_header, upright
from .windows import decode_window, decoder

Image = np.ndarray[Any, Any]
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "PPM", "JPEG2000", "TGA")  # safe to open,
AVIF = "AVIF"  # and this, where Pillow has it
FULL, FAST = "full", "fast"
GREY = 128  # what is missing in a JPEG file
SCALES = (8, 4, 2)  # for which libjpeg has transforms that take less time than the whole one
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@stage("decode")
@dataclass(frozen=True)
class Decode(Stage):
    """Decodes images, and masks of class numbers. channels: 1, 3 or 4; dtype: "uint8" or "uint16".

    scale: "fast" decodes JPEG files at 1/2, 1/4 or 1/8 in front of a resize or random_resized_crop that
    makes them smaller still. That gives other numbers, and windows to a pixel of that scale."""

    channels: int = 3
    dtype: str = "uint8"
    most_pixels: int = MOST_PIXELS
    truncated: bool = False
    scale: str = FULL

    needs = (IMAGE, MASK)
    timed = True

    def __post_init__(self) -> None:
        for name, given, good in (
            ("channels", self.channels, (1, 3, 4)),
            ("dtype", self.dtype, ("uint8", "uint16")),
            ("scale", self.scale, (FULL, FAST)),
        ):
            if given not in good:
                wanted = " or ".join(map(repr, good))
                raise misfit(ArgumentError, "decode", got=f"{name}={given!r}", needed=wanted)

    def image(self, xp: Any, x: Any, drawn: Any) -> Image:
        if isinstance(x, np.ndarray):
            return x
        if self.dtype == "uint16":
            return self._deep(x)
        return self._jpeg(x) if is_jpeg(x) else self._other(x)

    def extents(self, x: Any) -> Shape | None:
        if self.dtype != "uint8" or not isinstance(x, bytes) or not is_jpeg(x):
            return None
        header = jpeg_header(x)
        good = header.orientation == 1 and header.bits == 8 and header.channels in (1, 3)
        if not good or not 0 < header.height * header.width <= self.most_pixels:
            return None
        return header.height, header.width, self.channels

    def part(self, x: Any, shape: Shape, window: Window) -> Image | None:
        return decode_window(x, (shape[0], shape[1]), window, self.channels)

    def shrunk(self, x: Any, window: Window, size: tuple[int, int]) -> Image | None:
        top, left, height, width = window
        fits = (k for k in SCALES if height // k >= size[0] and width // k >= size[1])
        k = next(fits, 1) if self.scale == FAST and self.channels in (1, 3) else 1
        if k == 1:
            return None
        whole = self._at(x, k)
        tall, wide = (height + k // 2) // k, (width + k // 2) // k
        top = min((top + k // 2) // k, whole.shape[0] - tall)
        left = min((left + k // 2) // k, whole.shape[1] - wide)
        return whole[top : top + tall, left : left + wide]

    def _at(self, data: bytes, k: int) -> Image:
        """The image of a JPEG file at 1/k, by libjpeg's transform for that."""
        header, library = jpeg_header(data), simplejpeg()
        height, width = header.height, header.width
        if library is None:
            picture = self._opened(data)
            picture.draft(MODES[self.channels], (width // k, height // k))
            found = np.asarray(picture)
            return found if found.ndim == 3 else found[..., None]
        least = {"min_height": -(-height // k), "min_width": -(-width // k), "min_factor": float(k)}
        return library.decode_jpeg(data, "GRAY" if self.channels == 1 else "RGB", **least)

    def native(self, form: Form | None) -> Native | None:
        if self.scale != FULL:
            return None
        if self.dtype != "uint8" or self.channels not in (1, 3):
            return None
        opens = decoder()
        if opens is None:
            return None
        given = (read_header(), opens), self.most_pixels
        return Native(None, *given, form=Form(self.channels), work=_pixels_of_scans)

    def mask(self, xp: Any, x: Any, drawn: Any) -> Image:
        if isinstance(x, np.ndarray):
            return x
        picture = self._opened(x)
        if picture.mode not in ("P", "L", "1", "I", "I;16"):
            raise ValueError(f"a mask of mode {picture.mode}, where numbers of classes are needed")
        return np.asarray(picture)

    def _jpeg(self, data: bytes) -> Image:
        header = jpeg_header(data)
        self._check_size(header.height, header.width)
        library = simplejpeg()
        if library is None or header.channels not in (1, 3) or header.bits != 8:
            return self._other(data)
        mode = "GRAY" if self.channels == 1 else MODES[self.channels]
        try:
            found = library.decode_jpeg(data, mode)
        except ValueError:  # also of what is only odd, which Pillow tells from what is broken
            if not self.truncated:
                return self._other(data)
            shape = header.height, header.width, self.channels
            found = np.full(shape, GREY, np.uint8)  # as libjpeg has what is missing inside
            found = library.decode_jpeg(data, mode, strict=False, buffer=found)
        return self._upright(found, header)

    def _upright(self, found: Image, header: Header) -> Image:
        if header.orientation == 1:
            return found
        return np.ascontiguousarray(upright(found, header.orientation))

    def _other(self, data: bytes) -> Image:
        picture = self._opened(data)
        if self.channels == 1 and picture.format == "JPEG" and picture.mode == "RGB":
            picture.draft("L", picture.size)
        try:
            picture.load()
        except OSError:
            if not self.truncated:
                raise
            picture.tile = []  # nothing more is to be decoded
            picture.load()
        orientation = picture.getexif().get(0x0112, 1)
        if picture.mode in ("I", "I;16", "I;16B", "I;16L"):
            grey = (np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8)
            found = grey[..., None].repeat(MODES_OF[self.channels], -1)
            if self.channels == 4:
                found = np.concatenate((found, np.full_like(found[..., :1], 255)), -1)
        else:
            if picture.mode == "P" and "transparency" in picture.info:
                picture = picture.convert("RGBA")
            if picture.mode != MODES[self.channels]:
                picture = picture.convert(MODES[self.channels])
            found = np.asarray(picture)
        found = found if found.ndim == 3 else found[..., None]
        turned = upright(found, orientation if 1 <= orientation <= 8 else 1)
        return np.ascontiguousarray(turned)

    def _opened(self, data: bytes) -> Any:
        library = needed("decode", pillow(), "Pillow")
        formats: tuple[str, ...] = FORMATS
        if data[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1", b"ftypmsf1"):
            needed("decode", has_avif() or None, "Pillow with AVIF", "pip install -U pillow")
            formats = (AVIF,)
        try:
            picture = library.open(io.BytesIO(data), formats=formats)
        except library.UnidentifiedImageError:  # whose words name an address
            raise ValueError(f"no image of a known kind: it begins with {data[:8]!r}") from None
        self._check_size(picture.height, picture.width)
        return picture

    def _deep(self, data: bytes) -> Image:
        """16 bits; of files with 8, each of them twice, so that white stays white."""
        self._opened(data)
        library = needed("decode(dtype='uint16')", opencv(), "OpenCV")
        flags = library.IMREAD_ANYDEPTH | (
            library.IMREAD_GRAYSCALE if self.channels == 1 else library.IMREAD_COLOR
        )
        found = library.imdecode(np.frombuffer(data, np.uint8), flags)
        if found is None or found.dtype not in (np.uint8, np.uint16):
            raise ValueError("an image that is damaged, or has neither 8 nor 16 bits")
        found = found.astype(np.uint16) * 257 if found.dtype == np.uint8 else found
        if self.channels == 1:
            return found[..., None] if found.ndim == 2 else found
        if self.channels == 3:
            return np.asarray(library.cvtColor(found, library.COLOR_BGR2RGB))
        alpha = np.full_like(found[..., :1], 65535)
        return np.concatenate((found[..., ::-1], alpha), -1)

    def _check_size(self, height: int, width: int) -> None:
        if height * width > self.most_pixels:
            raise ValueError(
                f"an image of {height} x {width} pixels, of which there may be {self.most_pixels}"
            )
        if height * width == 0:
            raise ValueError(f"an image of {height} x {width} pixels")


def _pixels_of_scans(data: bytes) -> float:
    """Pixels that decoding a JPEG file goes over, at most: all of them for each scan, of which a file of
    100 kB may have thousands."""
    try:
        header = jpeg_header(data)
    except ValueError:
        return math.inf
    return header.height * header.width * data.count(b"\xff\xda")


MODES_OF = {1: 1, 3: 3, 4: 3}  # channels that a grey value is repeated in
