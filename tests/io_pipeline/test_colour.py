"""Stages of colours: the numbers are Pillow's or those of the definition, whatever computes them."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.stage import Stage
from ostinato.io_pipeline.images import colour as c
from ostinato.io_pipeline.images import pixel_values as values
from ostinato.io_pipeline.images import pixels
from PIL import Image, ImageEnhance, ImageOps

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import picture
from tests.io_pipeline.stages import Array, check_device, check_threads, drawn_for, run

STAGES = [
    *(c.Brightness(f) for f in (0, 0.3, 1.0, 1.7)),
    *(c.Contrast(f) for f in (0, 0.3, 1.0, 1.7)),
    *(c.Saturation(f) for f in (0, 0.3, 1.0, 1.7)),
    *(c.Hue(s) for s in (-0.5, -0.2, 0.0, 0.1, 0.37)),
    c.ColorJitter(0.4, 0.3, 0.5, 0.2), c.ColorJitter((0.5, 2), (1, 3), p=0.5), c.Grayscale(), c.Grayscale(3),
    c.RandomGrayscale(0.5), c.Gamma(2.2), c.Gamma(0.5, p=0.5), c.RandomGamma((0.5, 2)), c.Invert(),
    *(c.Posterize(bits) for bits in (1, 4, 8)), c.Solarize(0.5), c.Solarize(0.0), c.AutoContrast(), c.Equalize(),
]  # fmt: skip
ours = pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.identity())


def noise(seed: int = 0, shape: tuple[int, ...] = (37, 29, 3)) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def pictures() -> list[Array]:
    dark = picture(3) // 3 + 20
    return [noise(), picture(1), dark, np.full((5, 7, 3), 77, np.uint8), noise(1)[:1, :1]]


def exact_luma(x: Array) -> Array:
    return x.astype(float) @ (0.299, 0.587, 0.114)


def rounded(y: Any, x: Array) -> Array:
    return np.clip(np.rint(y), 0, 255).astype(x.dtype)


# -- against the definitions ----------------------------------------------------------------
@pytest.mark.parametrize("factor", [0, 0.25, 1.0, 1.6])
def test_factors_are_exact_but_for_one_rounding(factor: float) -> None:
    for x in pictures():
        y, gray = x.astype(float), exact_luma(x)
        wanted = {
            c.Brightness: y * factor,
            c.Contrast: gray.mean() + (y - gray.mean()) * factor,
            c.Saturation: gray[..., None] + (y - gray[..., None]) * factor,
        }
        for kind, values_ in wanted.items():
            found = run(kind(factor), x)
            assert found.dtype == np.uint8
            assert np.abs(found - np.clip(values_, 0, 255)).max() <= 0.5 + 1e-4
            deep = run(kind(factor), x.astype(np.uint16) * 257)
            np.testing.assert_allclose(deep / 257, np.clip(values_, 0, 255), atol=0.01)
            floats = run(kind(factor), x.astype(np.float32) / 255)
            assert floats.dtype == np.float32
            np.testing.assert_allclose(floats * 255, np.clip(values_, 0, 255), atol=1e-3)


@pytest.mark.parametrize("factor", [0, 0.25, 1.0, 1.6])
def test_factors_are_those_of_pillow(factor: float) -> None:
    """Which cuts fractions off, and rounds the luma."""
    x = picture(1)
    for kind, theirs in (
        (c.Brightness, ImageEnhance.Brightness),
        (c.Contrast, ImageEnhance.Contrast),
        (c.Saturation, ImageEnhance.Color),
    ):
        wanted = np.asarray(theirs(Image.fromarray(x)).enhance(factor))
        assert np.abs(run(kind(factor), x).astype(int) - wanted).max() <= 2


@pytest.mark.parametrize("shift", [-0.5, -0.21, 0.0, 0.1, 0.5])
def test_hues_are_turned_in_hsv(shift: float) -> None:
    x = noise(2, (9, 11, 3))
    wanted = np.empty(x.shape)
    for k in np.ndindex(x.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*x[k] / 255)
        wanted[k] = colorsys.hsv_to_rgb((h + shift) % 1, s, v)
    assert np.abs(run(c.Hue(shift), x) - wanted * 255).max() <= 0.5 + 1e-3
    np.testing.assert_allclose(run(c.Hue(shift), x / 255), wanted, atol=1e-6)


def test_tables_are_those_of_pillow() -> None:
    for x in pictures():
        image = Image.fromarray(x)
        np.testing.assert_array_equal(run(c.Invert(), x), ImageOps.invert(image))
        np.testing.assert_array_equal(run(c.Equalize(), x), ImageOps.equalize(image))
        np.testing.assert_array_equal(run(c.Solarize(100 / 255), x), ImageOps.solarize(image, 100))
        for bits in (1, 3, 8):
            np.testing.assert_array_equal(
                run(c.Posterize(bits), x), ImageOps.posterize(image, bits)
            )
        stretched = np.asarray(ImageOps.autocontrast(image)).astype(int)
        assert 0 <= (run(c.AutoContrast(), x) - stretched).max() <= 1  # who cuts fractions off
        assert (
            np.abs(run(c.Grayscale(), x)[..., 0] - np.asarray(image.convert("L")).astype(int)).max()
            <= 1
        )
        bent = rounded(255 * (x / 255) ** 2.2, x)
        np.testing.assert_array_equal(run(c.Gamma(2.2), x), bent)


def test_autocontrast_uses_the_whole_range() -> None:
    x = picture(3) // 3 + 20
    low, high = x.min((0, 1)).astype(float), x.max((0, 1)).astype(float)
    np.testing.assert_array_equal(
        run(c.AutoContrast(), x), rounded((x - low) * (255 / (high - low)), x)
    )
    flat = np.full((4, 4, 3), 9, np.uint8)
    np.testing.assert_array_equal(run(c.AutoContrast(), flat), flat)
    found = run(c.AutoContrast(), x.astype(np.float32) / 255)
    assert (found.min(), found.max()) == (0, 1)


def test_floats_are_coarse_in_steps() -> None:
    x = np.linspace(0, 1, 101, dtype=np.float32).reshape(1, 101, 1)
    np.testing.assert_allclose(run(c.Posterize(2), x), np.minimum(np.floor(x * 4), 3) / 4)
    np.testing.assert_allclose(run(c.Solarize(0.5), x), np.where(x >= 0.5, 1 - x, x))


def test_color_jitter_is_its_steps_in_the_order_drawn() -> None:
    stage, x = c.ColorJitter(0.4, 0.3, (0.2, 2), 0.2), picture(5)
    kinds: dict[str, Any] = {"brightness": c.Brightness, "contrast": c.Contrast, "saturation": c.Saturation, "hue": c.Hue}  # fmt: skip
    orders, factors = set(), []
    for place in range(200):
        drawn = drawn_for(stage, x.shape, place)
        orders.add(tuple(name for name, _ in drawn))
        factors.append([dict(drawn)[name] for name in kinds])
        if place < 30:
            wanted = x
            for name, value in drawn:
                wanted = run(kinds[name](value), wanted)
            found = stage.image(np, x, drawn)
            assert np.abs(found.astype(int) - wanted).max() == 0
    assert len(orders) == 24
    low, high = np.min(factors, 0), np.max(factors, 0)
    assert (low >= (0.6, 0.7, 0.2, -0.2)).all()
    assert (high <= (1.4, 1.3, 2, 0.2)).all()
    np.testing.assert_allclose(np.mean(factors, 0), (1, 1, 1.1, 0), atol=0.12)
    assert {name for name, _ in drawn_for(c.ColorJitter(0.4), x.shape)} == {"brightness"}


def test_chances_are_kept() -> None:
    x = picture(1)
    for stage in (
        c.Invert(p=0.3),
        c.RandomGrayscale(0.3),
        c.ColorJitter(0.4, p=0.3),
        c.RandomGamma((2, 3), p=0.3),
    ):
        done = sum(not np.array_equal(run(stage, x, place=k), x) for k in range(400))
        assert 85 < done < 155
    assert not c.Invert().is_random


# -- what holds for all of them ---------------------------------------------------------------
@ours
def test_forms_are_kept(stage: Stage) -> None:
    for x in (
        noise(),
        noise()[:, ::-1],
        np.asfortranarray(noise()),
        noise()[3:20, 4:9],
        noise(0, (8, 9, 1)),
    ):
        found = run(stage, x)
        channels = stage.channels if isinstance(stage, c.Grayscale) else x.shape[2]
        assert (found.shape, found.dtype) == ((*x.shape[:2], channels), np.uint8)
        np.testing.assert_array_equal(found, run(stage, np.ascontiguousarray(x)))
    if isinstance(stage, c.Equalize):
        return
    for dtype in (np.uint16, np.float16, np.float32, np.float64):
        x = (noise() / 255 * (65535 if dtype == np.uint16 else 1)).astype(dtype)
        found = run(stage, x)
        assert found.dtype == dtype
        coarse = run(stage, noise()) / (255 if dtype != np.uint16 else 255 / 65535)
        if not isinstance(stage, c.Posterize | c.Solarize):
            np.testing.assert_allclose(
                found.astype(float), coarse, atol=0.02 * x.max().astype(float)
            )


@ours
def test_alpha_stays(stage: Stage) -> None:
    x = noise(0, (12, 13, 4))
    found = run(stage, x)
    if not isinstance(stage, c.Grayscale):
        np.testing.assert_array_equal(found[..., 3], x[..., 3])
    np.testing.assert_array_equal(found[..., :3], run(stage, x[..., :3].copy()))


@ours
def test_devices_and_hosts_without_libraries(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [run(stage, noise(), place=k) for k in range(4)]
    for x in (noise(), noise(0, (8, 9, 1))):
        check_device(stage, x)
        if not isinstance(stage, c.Equalize):
            check_device(stage, (x / 255).astype(np.float32))
    for module in (values, c):
        monkeypatch.setattr(module, "opencv", lambda: None)
    monkeypatch.setattr(pixels.llvm, "why_not", lambda: "no machine code")
    for k, was in enumerate(wanted):
        found = run(stage, noise(), place=k)
        if stage.exact:
            np.testing.assert_array_equal(found, was)
        else:
            assert np.abs(found.astype(int) - was).max() <= 1


def test_colours_are_needed_where_they_are_changed() -> None:
    five = noise(0, (6, 7, 5))
    assert run(c.Brightness(2), five).shape == (6, 7, 5)
    for stage in (c.Saturation(2), c.Hue(0.1), c.Grayscale()):
        with pytest.raises(ValueError, match="5 channels, where colours are needed"):
            run(stage, five)
    with pytest.raises(TypeError, match="int32, where unsigned integers or floats"):
        run(c.Brightness(2), noise().astype(np.int32))
    with pytest.raises(TypeError, match="equalization of an image of float32, where uint8"):
        run(c.Equalize(), noise().astype(np.float32))


@pytest.mark.parametrize("name", ["invert", "color_jitter", "random_gamma", "gaussian_blur", "rotate", "random_affine", "pad", "rand_augment", "random_flip", "resize", "center_crop", "random_crop", "random_resized_crop"])  # fmt: skip
def test_channels_in_front_are_refused(name: str) -> None:
    """As `normalize` puts them: a stage would take them for rows."""
    given = {
        "color_jitter": (0.4,),
        "rotate": (3,),
        "pad": (2,),
        "rand_augment": (9,),
        "resize": (5,),
        "center_crop": (2,),
        "random_crop": (2,),
        "random_resized_crop": (4,),
    }.get(name, ())
    pipe = ost.io.arrays(noise(0, (4, 8, 9, 3))).normalize()
    pipe = getattr(pipe, name)(*given).batch(4).to("numpy")
    with pytest.raises(
        SampleError, match=rf"in {name} .*3 x 8 x 9, whose channels are in front: write this"
    ):
        list(pipe.epoch(0))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("brightness", {"factor": -1}, "factor=-1; needed a number, 0 or more"),
        ("saturation", {"factor": "2"}, "factor='2'; needed a number"),
        ("hue", {"shift": 0.7}, "shift=0.7; needed a number from -0.5 to 0.5"),
        ("color_jitter", {"contrast": (2, 1)}, r"contrast=\(2, 1\); needed two numbers, 0 or more, the smaller one first"),
        ("color_jitter", {"hue": 0.6}, "hue=0.6; needed a number from 0 to 0.5"),
        ("color_jitter", {"p": 2}, "p=2; needed a chance from 0 to 1"),
        ("grayscale", {"channels": 2}, "channels=2; needed 1 or 3"),
        ("posterize", {"bits": 9}, "bits=9; needed a whole number from 1 to 8"),
        ("random_gamma", {"range": 3}, "range=3; needed two numbers"),
        ("invert", {"p": -1}, "p=-1; needed a chance"),
        ("gamma", {}, "missing 1 required positional argument: 'gamma'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_the_users_line(name: str, given: Any, said: str) -> None:
    pipe = ost.io.arrays(noise(0, (2, 8, 8, 3)))
    with pytest.raises(ArgumentError, match=rf"{name} \(.*test_colour.py:\d+\): got .*{said}"):
        getattr(pipe, name)(**given)


def test_pipes_give_the_same_bits_whatever_the_threads(tmp_path: Path) -> None:
    x = [noise(0, (30, 16, 17, 3)), noise(1, (30, 16, 17))]
    stages = [
        c.ColorJitter(0.4, 0.4, 0.4, 0.1),
        c.RandomGrayscale(0.2),
        c.RandomGamma(),
        c.Solarize(0.5, p=0.5),
        c.Equalize(p=0.5),
    ]
    check_threads(stages, x, ["image", "mask"])
    pipe = ost.io.arrays(*x, kinds=["image", "mask"]).color_jitter(0.9).batch(30).to("numpy")
    ((image, mask),) = pipe.epoch(0)
    assert not np.array_equal(image, x[0])
    np.testing.assert_array_equal(mask, x[1])
    wrong = ost.io.arrays(x[0].astype(np.int32), kinds=["image"]).invert().batch(3).to("numpy")
    with pytest.raises(SampleError, match=r"in invert .*int32, where unsigned"):
        list(wrong.epoch(0))
