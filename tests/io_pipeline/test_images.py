"""Stages of images: what they decode, where pixels, masks and boxes go, and what the numbers are."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.images import backends, finish, windows
from ostinato.io_pipeline.images.decode import Decode
from ostinato.io_pipeline.images.finish import Normalize
from ostinato.io_pipeline.images.geometry import (
    CenterCrop,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    nearest,
)
from ostinato.io_pipeline.images.headers import jpeg_header, upright
from PIL import Image, ImageOps, features

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import encoded, folder, picture

ROOT = Path(__file__).resolve().parents[2]


def decoded(data: bytes, **options: Any) -> np.ndarray:
    return Decode(**options).image(np, data, None)


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    found = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode))
    return found if found.ndim == 3 else found[..., None]


# -- decoding ----------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["simplejpeg", "pillow"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_images_are_upright(
    form: str, orientation: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "pillow":
        monkeypatch.setattr("ostinato.io_pipeline.images.decode.simplejpeg", lambda: None)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(1, 40, 56), form, exif=exif)
    found = decoded(data)
    assert found.shape == ((40, 56, 3) if orientation < 5 else (56, 40, 3))
    np.testing.assert_array_equal(found, by_pillow(data))
    assert found.flags.c_contiguous


def test_orientations_are_exifs() -> None:
    x = np.arange(6).reshape(2, 3, 1)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(x.astype(np.uint8), "PNG", exif=exif)
        np.testing.assert_array_equal(upright(x, orientation), by_pillow(data, "L"))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_files_are_as_libjpeg_decodes_them(subsampling: int, progressive: bool) -> None:
    for k, (h, w) in enumerate([(1, 1), (7, 9), (48, 64), (33, 130)]):
        data = encoded(
            picture(k, h, w), quality=85, subsampling=subsampling, progressive=progressive
        )
        header = jpeg_header(data)
        assert (header.height, header.width, header.channels) == (h, w, 3)
        np.testing.assert_array_equal(decoded(data), by_pillow(data))
        assert decoded(data, channels=1).shape == (h, w, 1)
        four = decoded(data, channels=4)
        np.testing.assert_array_equal(four[..., :3], decoded(data))
        assert (four[..., 3] == 255).all()


@pytest.mark.parametrize("strays", [b"\0", b"\x7fab\xda", b"\xff\0\xc0", b"\xff" * 5, bytes(300)])
def test_bytes_that_stray_between_markers(strays: bytes) -> None:
    """As many files have them, which Pillow reads."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for k, options in enumerate(({}, {"exif": exif}, {"progressive": True})):
        whole = encoded(picture(k), quality=85, **options)
        parts, at = [whole[:2]], 2
        while whole[at + 1] != 0xDA:  # the first scan
            end = at + 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
            parts += [whole[at:end], strays]
            at = end
        data = b"".join([*parts, whole[at:]])
        assert jpeg_header(data) == jpeg_header(whole)
        np.testing.assert_array_equal(by_pillow(data), by_pillow(whole))
        np.testing.assert_array_equal(decoded(data), by_pillow(data))


def test_files_of_other_kinds() -> None:
    rgb, grey = picture(3), picture(3, channels=1)
    np.testing.assert_array_equal(decoded(encoded(rgb, "PNG")), rgb)
    np.testing.assert_array_equal(decoded(encoded(grey, "PNG")), grey.repeat(3, -1))
    np.testing.assert_array_equal(decoded(encoded(grey, "PNG"), channels=1), grey)
    jpeg = decoded(encoded(grey))
    assert jpeg.shape == (48, 64, 3)
    assert (np.ptp(jpeg, -1) == 0).all()
    alpha = np.concatenate((rgb, grey), -1)
    np.testing.assert_array_equal(decoded(encoded(alpha, "PNG")), rgb)
    np.testing.assert_array_equal(decoded(encoded(alpha, "PNG"), channels=4), alpha)
    both = Image.fromarray(grey[..., 0]).convert("LA")
    out = io.BytesIO()
    both.save(out, "PNG")
    np.testing.assert_array_equal(decoded(out.getvalue(), channels=1), grey)
    out = io.BytesIO()
    Image.fromarray(rgb).convert("P").save(out, "PNG")
    np.testing.assert_array_equal(decoded(out.getvalue()), by_pillow(out.getvalue()))
    out = io.BytesIO()
    Image.fromarray(rgb).convert("CMYK").save(out, "JPEG", quality=95)
    assert np.abs(decoded(out.getvalue()).astype(int) - rgb).mean() < 8
    np.testing.assert_array_equal(decoded(out.getvalue()), by_pillow(out.getvalue()))


def test_sixteen_bits() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (5, 6)).astype(np.uint16)
    data = encoded(deep, "PNG")
    np.testing.assert_array_equal(decoded(data)[..., 0], deep >> 8)
    np.testing.assert_array_equal(decoded(data, channels=1, dtype="uint16")[..., 0], deep)
    np.testing.assert_array_equal(decoded(data, dtype="uint16"), deep[..., None].repeat(3, -1))
    rgb = picture(2)
    found = decoded(encoded(rgb, "PNG"), dtype="uint16")
    np.testing.assert_array_equal(found, rgb.astype(np.uint16) * 257)
    four = decoded(encoded(rgb, "PNG"), channels=4, dtype="uint16")
    np.testing.assert_array_equal(four[..., 0], found[..., 0])
    assert (four[..., 3] == 65535).all()


def test_truncated_and_huge_images() -> None:
    data = encoded(picture(1), quality=95)
    with pytest.raises(OSError, match="truncated"):
        decoded(data[: len(data) // 2])
    assert windows.decode_window(data, (48, 64), (0, 0, 8, 8), 3) is not None
    assert windows.decode_window(data[:-300], (48, 64), (0, 0, 8, 8), 3) is None
    found = decoded(data[: len(data) // 2], truncated=True)
    np.testing.assert_array_equal(found[:12, :32], decoded(data)[:12, :32])
    assert found.shape == (48, 64, 3)
    for form in ("JPEG", "PNG"):
        with pytest.raises(ValueError, match="48 x 64 pixels, of which there may be 3000"):
            decoded(encoded(picture(1), form), most_pixels=3000)
    for broken in (b"\xff\xd8\xff", data[:20], b"\xff\xd8\xff\xe1\x00\x00" + b"Exif\0\0" * 9):
        with pytest.raises((ValueError, OSError)):
            decoded(broken)


@pytest.mark.parametrize("form", ["JPEG", "progressive", "PNG", "PPM", "TIFF", "BMP"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_what_is_missing_in_a_file_has_a_stated_colour(form: str, channels: int) -> None:
    """Wherever it ends, nothing that was in memory before is in the image."""
    options: dict[str, Any] = {"optimize": True} if form in ("JPEG", "progressive") else {}
    whole = encoded(
        picture(1), "JPEG" if options else form, progressive=form == "progressive", **options
    )
    stage, seen, grey = Decode(channels=channels, truncated=True), set[int](), min(channels, 3)

    def decode(size: int, before: int) -> Any:
        other = np.full((48, 64, channels), before, np.uint8)
        del other  # for the image to lie there
        return stage.image(np, whole[:size], None)[..., :grey]

    for size in range(100, len(whole) * 2 // 3, 1 + len(whole) // 150):
        try:
            found = decode(size, 77)
        except (ValueError, OSError):
            continue
        np.testing.assert_array_equal(found, decode(size, 99))
        if form != "progressive":
            seen |= {*np.unique(found[0 if form == "BMP" else -1]).tolist()}
        elif (found == found[0, 0]).all():
            seen.add(int(found[0, 0, 0]))
    assert seen == {128 if options else 0}


def test_masks_keep_their_numbers() -> None:
    mask = np.random.default_rng(0).integers(0, 20, (48, 64)).astype(np.uint8)
    stage = Decode()
    np.testing.assert_array_equal(stage.mask(np, encoded(mask, "PNG"), None), mask)
    indexed = Image.fromarray(mask, "P")
    indexed.putpalette(list(range(60)))
    out = io.BytesIO()
    indexed.save(out, "PNG")
    np.testing.assert_array_equal(stage.mask(np, out.getvalue(), None), mask)
    with pytest.raises(ValueError, match="a mask of mode RGB"):
        stage.mask(np, encoded(picture(0), "PNG"), None)


@pytest.mark.parametrize("missing", ["simplejpeg", "cv2", "PIL"])
def test_what_is_not_installed_has_a_sentence_or_a_substitute(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    libraries = (backends.simplejpeg, backends.opencv, backends.pillow)
    for library in libraries:
        library.cache_clear()
    try:
        data = encoded(picture(0)) if missing != "PIL" else b""
        if missing == "simplejpeg":
            np.testing.assert_array_equal(decoded(data), by_pillow(data))
        elif missing == "cv2":
            assert decoded(data).shape == (48, 64, 3)
            with pytest.raises(ArgumentError, match=r"resize: got no OpenCV; .*ostinato\[feed\]"):
                Resize(8, "cubic", antialias=False).image(np, picture(0), None)
        else:
            with pytest.raises(ArgumentError, match=r"resize: got no Pillow; .*ostinato\[feed\]"):
                Resize(8, "cubic").image(np, np.zeros((9, 9, 3), np.uint8), None)
            with pytest.raises(ArgumentError, match=r"decode: got no Pillow; .*ostinato\[feed\]"):
                decoded(b"any other file")
    finally:
        for library in libraries:
            library.cache_clear()


def test_avif_is_decoded_where_pillow_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(picture(0), "AVIF")
    (tmp_path / "a.avif").write_bytes(data)
    pipe = ost.io.images(str(tmp_path)).decode().batch(1).to("numpy")
    np.testing.assert_array_equal(next(pipe.epoch(0))[0], by_pillow(data))
    with pytest.raises(ValueError, match="no image of a known kind"):
        decoded(data[:40])
    for modules in ({}, {"avif": ("PIL._no_avif", None)}):  # of old ones, and of some builds
        monkeypatch.setattr(features, "modules", modules)
        backends.has_avif.cache_clear()
        with pytest.raises(ArgumentError, match=r"decode: got no Pillow with AVIF; .*install -U"):
            decoded(data)
    backends.has_avif.cache_clear()


# -- geometry ----------------------------------------------------------------------------------
def test_sizes() -> None:
    x = picture(0, 40, 60)
    for size, shape in ((20, (20, 30)), ((7, 9), (7, 9)), (40, (40, 60))):
        found = Resize(size).image(np, x, None)
        assert found.shape == (*shape, 3)
        assert Resize(size).mask(np, x[..., 0], None).shape == shape
    assert Resize(20).image(np, x.swapaxes(0, 1), None).shape == (30, 20, 3)
    assert Resize((7, 9)).image(np, x[..., :1], None).shape == (7, 9, 1)
    np.testing.assert_array_equal(CenterCrop((20, 20)).image(np, x, None), x[10:30, 20:40])
    with pytest.raises(ValueError, match="40 x 60 pixels is smaller than 50 x 50"):
        CenterCrop(50).image(np, x, None)


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1)])
def test_an_image_in_proportion_is_no_larger_than_files_may_be(
    shape: tuple[int, int], tmp_path: Path
) -> None:
    x = np.zeros((*shape, 3), np.uint8)
    stage = Resize(128)
    for method, y in ((stage.image, x), (stage.mask, x[..., 0])):
        with pytest.raises(
            ValueError, match="128 at its shorter side would have 327680000; there may be"
        ):
            method(np, y, None)
    paths = [tmp_path / f"{k}.jpg" for k in range(9)]
    for k, path in enumerate(paths):
        path.write_bytes(encoded(x if k in (0, 7) else picture(k)))
    pipe = ost.io.images(list(map(str, paths))).decode().resize(128).center_crop(99)
    pipe = pipe.on_error("skip").batch(3).to("numpy").run_with(threads=2)
    assert [len(b) for b in pipe.epoch(0)] == [2, 3, 2]
    assert {f.sample: f.stage for f in pipe.faults()} == {0: "resize", 7: "resize"}


def linear(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Interpolation between the middles of pixels, in float64."""
    for axis, n in enumerate(size):
        old = x.shape[axis]
        at = np.clip((np.arange(n) + 0.5) * old / n - 0.5, 0, old - 1)
        low = np.minimum(at.astype(int), max(old - 2, 0))
        part = (at - low).reshape((-1, *[1] * (x.ndim - 1)))
        moved = np.moveaxis(x, axis, 0).astype(float)
        high = np.minimum(low + 1, old - 1)
        x = np.moveaxis(moved[low] * (1 - part) + moved[high] * part, 0, axis)
    return x


@pytest.mark.parametrize("size", [(20, 30), (97, 64), (13, 150)])
def test_resizing_interpolates_between_middles(size: tuple[int, int]) -> None:
    x = picture(4, 48, 64)
    for dtype in (np.uint8, np.uint16, np.float32):
        found = Resize(size, antialias=False).image(np, x.astype(dtype), None)
        assert np.abs(found.astype(float) - linear(x, size)).max() < 1.01


def test_antialiasing_is_on_or_off() -> None:
    for stage in (Resize, RandomResizedCrop):
        with pytest.raises(ArgumentError, match="got antialias=None; needed True or False"):
            stage(8, antialias=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("filter_", ["linear", "cubic", "area", "lanczos"])
@pytest.mark.parametrize("shrink", [1.07, 1.5, 4, 8, 30])
def test_what_shrinks_is_as_pillow_makes_it(filter_: str, shrink: float) -> None:
    """Of noise, in which every pixel that is left out shows."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (241, 307, 4), dtype=np.uint8)
    size = round(241 / shrink), round(307 / shrink / 1.3)
    way = {"linear": 2, "cubic": 3, "area": 4, "lanczos": 1}[filter_]

    def by_pillow(x: np.ndarray) -> np.ndarray:
        planes = (Image.fromarray(v).resize(size[::-1], way) for v in np.moveaxis(x, -1, 0))
        return np.stack([*map(np.asarray, planes)], -1).astype(float)

    for part in (x[..., :3], x[..., :1], x):
        wanted = by_pillow(part)
        crop = RandomResizedCrop(size, interpolation=filter_).image(np, part, (0, 0, 241, 307))
        np.testing.assert_array_equal(crop, Resize(size, filter_).image(np, part, None))
        assert np.abs(crop - wanted).max() <= 1
    faint = rng.integers(90, 166, x.shape, dtype=np.uint8)  # nothing of it is cut off between
    for dtype, scale in ((np.uint16, 257), (np.float32, 1 / 255)):
        deep = Resize(size, filter_).image(np, faint.astype(dtype) * dtype(scale), None)
        assert (deep.dtype, deep.shape) == (dtype, (*size, 4))
        assert np.abs(deep / scale - by_pillow(faint)).max() <= 1.5


@given(h=st.integers(1, 40), w=st.integers(1, 40), a=st.integers(1, 60), b=st.integers(1, 60))
def test_masks_take_the_nearest(h: int, w: int, a: int, b: int) -> None:
    x = np.arange(h * w).reshape(h, w)
    found = nearest(np, x, (a, b))
    for n, old, k in ((a, h, 0), (b, w, 1)):
        wanted = np.floor((np.arange(n) + 0.5) * old / n + 1e-9).astype(int)
        line = found[:, 0] // w if k == 0 else found[0] % w
        np.testing.assert_array_equal(line, wanted)
    np.testing.assert_array_equal(nearest(np, x, (h, w)), x)


@settings(deadline=None, max_examples=40)
@given(
    h=st.integers(1, 90), w=st.integers(1, 90), place=st.integers(0, 1000), size=st.integers(1, 40)
)
def test_random_crops_stay_within(h: int, w: int, place: int, size: int) -> None:
    rng, shape = Draws(3, 0).seek(place, 0), (h, w, 3)
    stage = RandomResizedCrop(size)
    top, left, height, width = window = stage.draw(rng, shape)
    assert 0 <= top <= top + height <= h
    assert 0 <= left <= left + width <= w
    assert min(height, width) >= 1
    assert stage.window(window, shape) == (window, (0, 0, height, width))
    assert stage.image(np, np.zeros(shape, np.uint8), window).shape == (size, size, 3)
    if size <= min(h, w):
        top, left, *rest = RandomCrop(size).draw(rng, shape)
        assert rest == [size, size]
        assert 0 <= top <= h - size
        assert 0 <= left <= w - size


def test_random_crops_are_as_they_are_drawn() -> None:
    draws, shape = Draws(3, 0), (300, 400, 3)
    stage = RandomResizedCrop(8, scale=(0.25, 0.5))
    found = np.array([stage.draw(draws.seek(k, 0), shape) for k in range(2000)], float)
    area = found[:, 2] * found[:, 3] / (300 * 400)
    assert area.min() > 0.24
    assert area.max() < 0.51
    assert abs(area.mean() - 0.375) < 0.01
    ratio = np.log(found[:, 3] / found[:, 2])
    assert abs(ratio).max() < np.log(4 / 3) + 0.02
    assert abs(ratio.mean()) < 0.02
    middle = (found[:, 0] + found[:, 2] / 2).mean(), (found[:, 1] + found[:, 3] / 2).mean()
    np.testing.assert_allclose(middle, (150, 200), atol=4)


def test_padding_is_around_the_image() -> None:
    x = picture(0, 8, 9) | 1
    stage, draws, seen = RandomCrop(8, padding=4), Draws(0, 0), set()
    for k in range(300):
        top, left, *_ = drawn = stage.draw(draws.seek(k, 0), x.shape)
        seen.add((top, left))
        padded = np.pad(x, ((4, 4), (4, 4), (0, 0)))
        wanted = padded[top + 4 : top + 12, left + 4 : left + 12]
        np.testing.assert_array_equal(stage.image(np, x, drawn), wanted)
    assert {t for t, _ in seen} == {*range(-4, 5)}
    assert {w for _, w in seen} == {*range(-4, 6)}


@pytest.mark.parametrize(
    "stage",
    [RandomResizedCrop(32), RandomCrop(30), RandomFlip(1), RandomFlip(1, vertical=True), Resize((30, 70)), CenterCrop((31, 20))],
    ids=lambda s: s.identity(),
)  # fmt: skip
def test_image_mask_and_boxes_go_together(stage: Any) -> None:
    """A square that is painted into the image and the mask ends where its box does."""
    for place in range(12):
        x0, y0 = 8 + 3 * (place % 4), 10 + 2 * (place % 3)
        box = np.array([[x0, y0, x0 + 24, y0 + 20]], np.float32)
        image, mask = np.zeros((48, 64, 3), np.uint8), np.zeros((48, 64), np.int64)
        image[y0 : y0 + 20, x0 : x0 + 24], mask[y0 : y0 + 20, x0 : x0 + 24] = 255, 7
        drawn = stage.draw(Draws(1, 0).seek(place, 0), image.shape) if stage.is_random else None
        after = stage.image(np, image, drawn)
        covered = stage.mask(np, mask, drawn)
        (found,) = stage.boxes(np, box, drawn, image.shape)
        assert after.shape[:2] == covered.shape
        assert {*np.unique(covered)} <= {0, 7}
        assert ((after[..., 0] > 128) != (covered == 7)).mean() < 0.07
        where = np.argwhere(covered == 7)
        if len(where):
            (top, left), (bottom, right) = where.min(0), where.max(0) + 1
            np.testing.assert_allclose(found, [left, top, right, bottom], atol=1.1)
        else:
            assert (found[2] - found[0]) * (found[3] - found[1]) < 3


@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 1), (5, 7, 4), (5, 7), (1, 1, 3)])
@pytest.mark.parametrize("vertical", [False, True])
def test_flips_fill_their_places(shape: tuple[int, ...], vertical: bool) -> None:
    for dtype in (np.uint8, np.uint16, np.float32):
        x = np.random.default_rng(0).integers(0, 256, (9, 9, *shape[2:])).astype(dtype)
        x = x[2 : 2 + shape[0], 1 : 1 + shape[1]]
        rows = np.zeros((3, *shape), dtype)
        found = RandomFlip(1, vertical=vertical).image(np, x, True, out=rows[1])
        assert np.shares_memory(found, rows) == (dtype is np.uint8)
        np.testing.assert_array_equal(found, np.flip(x, 0 if vertical else 1))
        assert not rows[::2].any()


def test_masks_follow_in_a_pipe(tmp_path: Path) -> None:
    root = folder(tmp_path, 6)
    for path in root.rglob("*.jpg"):
        x = np.asarray(Image.open(path))
        Image.fromarray((x[..., 0] > 128).astype(np.uint8)).save(path.with_suffix(".png"))
    names = sorted(map(str, root.rglob("*.jpg")))
    pipe = ost.io.images(names, masks=lambda p: p.replace(".jpg", ".png"), labels="folder")
    pipe = pipe.decode().random_resized_crop(24).random_flip().batch(3).to("numpy")
    for image, mask, label in pipe.epoch(0):
        assert (image.shape, mask.shape, label.shape) == ((3, 24, 24, 3), (3, 24, 24), (3,))
        assert ((image[..., 0] > 128) == mask).mean() > 0.93


# -- the last step -----------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("by", ["kernels", "numpy"])
def test_normalizing_is_the_same_to_the_bit(
    layout: str, channels: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "numpy":
        monkeypatch.setattr(finish, "opencv", lambda: None)
        monkeypatch.setattr(finish.kernels, "planes", lambda *_: False)
    mean, std = (0.485, 0.456, 0.406, 0.5)[:channels], (0.229, 0.224, 0.225, 0.3)[:channels]
    stage = Normalize(mean, std, layout=layout)
    x = np.random.default_rng(0).integers(0, 256, (31, 23, channels)).astype(np.uint8)
    exact = (x / 255 - mean) / std
    scale = (1 / (255 * np.array(std))).astype(np.float32)
    wanted = x.astype(np.float32) * scale + (-np.array(mean) / std).astype(np.float32)
    np.testing.assert_allclose(wanted, exact, atol=1e-6)
    wanted, exact = (v if layout == "hwc" else v.transpose(2, 0, 1) for v in (wanted, exact))
    for given_x in (x, np.flip(np.flip(x, 0).copy(), 0), np.asfortranarray(x)):
        out = np.empty(wanted.shape, np.float32)
        assert stage.image(np, given_x, None, out=out) is out
        np.testing.assert_array_equal(out, wanted)
    flipped = stage.image(np, x[:, ::-1], None)
    np.testing.assert_array_equal(flipped, np.flip(wanted, 1 if layout == "hwc" else 2))
    part = stage.image(np, x[3:20, 5:9], None)
    cut = (slice(3, 20), slice(5, 9))
    np.testing.assert_array_equal(part, wanted[cut if layout == "hwc" else (slice(None), *cut)])
    for dtype in ("float16", "bfloat16"):
        halves = Normalize(mean, std, dtype=dtype, layout=layout)
        for way in (slice(None), slice(None, None, -1)):
            found = halves.image(np, x[:, way], None)
            again = wanted[:, way] if layout == "hwc" else wanted[..., way]
            assert found.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(found, again.astype(dtype))
    small = np.full((1, 1, channels), 0.25, np.float32)
    found = stage.image(np, small, None).reshape(-1)
    np.testing.assert_allclose(found, (0.25 - np.array(mean)) / std, rtol=1e-6)


@pytest.mark.parametrize("width", [16, 32, 48, 40])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_whole_lines_are_written_past_the_caches(width: int, channels: int) -> None:
    """With the same bits, from wherever the pixels lie, also behind what is no whole line."""
    image = np.random.default_rng(0).integers(0, 256, (9, 64, channels)).astype(np.uint8)
    memory = np.empty(channels * 9 * width * 4 + 128, np.uint8)
    stage = Normalize(0.4, 0.3)
    for x in (image[:, 5 : 5 + width], image[::-1, 63 - width : 63][:, ::-1]):
        wanted = stage.image(np, x.astype(np.float32) / 255, None)
        for shift in (0, 4):
            start = -memory.ctypes.data % 64 + shift
            out = memory[start : start + wanted.nbytes].view("f4").reshape(wanted.shape)
            assert stage.image(np, x, None, out=out) is out
            np.testing.assert_allclose(out, wanted, atol=1e-5)
            np.testing.assert_array_equal(out, stage.image(np, x.astype(np.uint8).copy(), None))


def test_torch_is_given_the_bits_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in, which takes what PyTorch takes."""

    class Torch:
        bfloat16 = "bfloat16"

        @staticmethod
        def from_numpy(x: np.ndarray) -> np.ndarray:
            assert x.dtype in (np.int16, np.float16)
            return x

    monkeypatch.setitem(sys.modules, "torch", Torch)
    x = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    for dtype in ("float16", "bfloat16"):
        base = ost.io.arrays(x, kinds=["image"]).normalize(0.5, 0.25, dtype)
        (found,) = base.batch(1).to("torch").epoch(0)
        np.testing.assert_array_equal(found, *base.batch(1).to("numpy").epoch(0))


def test_as_many_channels_as_numbers(tmp_path: Path) -> None:
    root = folder(tmp_path, 2)
    pipe = ost.io.images(str(root)).decode(channels=1).normalize((1, 2, 3), 1).batch(2).to("numpy")
    with pytest.raises(SampleError, match="3 numbers for 1 channels"):
        list(pipe.epoch(0))


# -- windows of files --------------------------------------------------------------------------
def windows_of(rng: np.random.Generator, h: int, w: int) -> tuple[int, int, int, int]:
    height, width = int(rng.integers(1, max(0.7 * h, 2))), int(rng.integers(1, w + 1))
    return int(rng.integers(0, h - height + 1)), int(rng.integers(0, w - width + 1)), height, width


@pytest.mark.parametrize("restart", [0, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_window_has_the_same_bits(
    channels: int, subsampling: int, progressive: bool, restart: int
) -> None:
    rng = np.random.default_rng(subsampling)
    for k in range(25):
        h, w = int(rng.integers(20, 120)), int(rng.integers(8, 150))
        noise = rng.integers(-20, 20, (h, w, 3))
        x = np.clip(picture(k, h, w) + noise, 0, 255).astype(np.uint8)
        x = x[..., :1] if k % 5 == 0 else x
        data = encoded(
            x,
            quality=88,
            subsampling=subsampling,
            progressive=progressive,
            restart_marker_rows=restart,
        )
        whole = decoded(data, channels=channels)
        for _ in range(6):
            top, left, height, width = window = windows_of(rng, h, w)
            found = windows.decode_window(data, (h, w), window, channels)
            assert found is not None
            wanted = whole[top : top + height, left : left + width]
            np.testing.assert_array_equal(found, wanted, err_msg=f"{(h, w)}, {window}")


def test_pipes_decode_windows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits as without."""
    root = folder(tmp_path, 12, height=60, width=80)
    taken: list[Any] = []

    def note(*given: Any) -> Any:
        found = windows.decode_window(*given)
        taken.append(found is not None)
        return found

    monkeypatch.setattr("ostinato.io_pipeline.images.decode.decode_window", note)
    for name, size in (("random_resized_crop", 16), ("center_crop", 32), ("random_crop", 20)):
        made = getattr(ost.io.images(str(root), labels="folder").shuffle(seed=3).decode(), name)(
            size
        )
        pipe = made.random_flip().batch(4).to("numpy")
        found = [b[0] for b in pipe.epoch(0)]
        with monkeypatch.context() as patch:
            patch.setattr("ostinato.io_pipeline.images.decode.decode_window", lambda *_: None)
            wanted = [b[0] for b in pipe.epoch(0)]
        np.testing.assert_array_equal(found, wanted)
    assert np.mean(taken) > 0.8
    with pytest.raises(
        SampleError, match=r"in center_crop .* 60 x 80 pixels is smaller than 70 x 70"
    ):
        list(ost.io.images(str(root)).decode().center_crop(70).batch(4).to("numpy").epoch(0))


def test_masks_and_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path, 6)
    for path in root.rglob("*.jpg"):
        Image.fromarray(picture(5, channels=1)[..., 0]).save(path.with_suffix(".png"))
    names = sorted(map(str, root.rglob("*.jpg")))
    pipe = ost.io.images(names, masks=lambda p: p.replace(".jpg", ".png")).decode()
    pipe = pipe.random_resized_crop(24).batch(6).to("numpy")
    (found,) = pipe.epoch(0)
    monkeypatch.setattr("ostinato.io_pipeline.images.decode.decode_window", lambda *_: None)
    (wanted,) = pipe.epoch(0)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_mutated_files_never_crash() -> None:
    """In a process of its own: what comes is an image, or an error of Python's."""
    code = """
import io, sys
import numpy as np
from PIL import Image
from ostinato.io_pipeline.images import windows
from ostinato.io_pipeline.images.decode import Decode
from tests.io_pipeline.pictures import encoded, picture
rng, stage, counts = np.random.default_rng(0), Decode(), [0, 0, 0, 0]
for k in range(2000):
    data = bytearray(encoded(picture(k % 7), quality=80, progressive=bool(k % 2), subsampling=k % 3))
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(0, len(data)))
        kind = rng.integers(0, 4)
        if kind == 0:
            data[at] = int(rng.integers(0, 256))
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 40))]
        elif kind == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 20)))
        else:
            del data[at:]
        if len(data) < 4:
            break
    if k % 3:
        data += b"\\xff\\xd9"
    data, part = bytes(data), None
    try:
        shape = stage.extents(data)
        if shape is not None:
            size = shape[0] // 2 + 1, shape[1] // 2 + 1
            top, left = shape[0] // 4, shape[1] // 4
            part = stage.part(data, shape, (top, left, *size))
            counts[2] += part is not None and part.shape == (*size, 3)
    except ValueError:
        pass
    try:
        image = stage.image(np, data, None)
        assert image.dtype == np.uint8 and image.ndim == 3
        counts[0] += 1
        if part is not None:
            counts[3] += not np.array_equal(part, image[top : top + size[0], left : left + size[1]])
    except (ValueError, OSError, SyntaxError, OverflowError, Image.DecompressionBombError):
        counts[1] += 1
print(*counts)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    good, refused, parts, differ = map(int, ran.stdout.split())
    assert good + refused == 2000
    assert min(good, refused, parts) > 150
    assert differ == 0
