"""Stages that blur, sharpen and erase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.images import filters as f
from PIL import Image, ImageEnhance
from scipy import ndimage

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.io_pipeline.pictures import picture
from tests.io_pipeline.stages import Array, check_device, check_threads, drawn_for, run

STAGES = [
    f.Sharpness(0.0), f.Sharpness(1.0), f.Sharpness(1.8, p=0.5), f.GaussianBlur(), f.GaussianBlur(1.5), f.GaussianBlur((2, 5), p=0.5),
    f.RandomErasing(), f.RandomErasing(1.0, fill=(1, 2, 3)), f.RandomErasing(0.7, fill="noise"),
]  # fmt: skip
ours = pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.identity())


def noise(seed: int = 0, shape: tuple[int, ...] = (37, 29, 3)) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.3, 4.0])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("by", ["opencv", "numpy"])
def test_blurring_is_scipys(
    sigma: float, dtype: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "numpy":
        monkeypatch.setattr(f, "opencv", lambda: None)
    for shape in ((37, 29, 3), (25, 14, 1), (3, 40, 2)):
        x = noise(0, shape)
        reach = max(int(np.ceil(3 * sigma)), 1)
        wanted = ndimage.gaussian_filter(
            x.astype(float), (sigma, sigma, 0), mode="mirror", radius=(reach, reach, 0)
        )
        factor = {"uint8": 1.0, "uint16": 257.0}.get(dtype, 1 / 255)
        found = run(f.GaussianBlur(sigma), (x * factor).astype(dtype))
        assert (found.dtype, found.shape) == (dtype, shape)
        atol = {"uint8": 0.5, "uint16": 0.53}.get(dtype, 1e-6)
        np.testing.assert_allclose(found.astype(float), wanted * factor, atol=atol * 1.001)


def test_sigmas_come_from_the_range() -> None:
    drawn = np.array([drawn_for(f.GaussianBlur((1, 3), p=0.5), (9, 9, 3), k) for k in range(600)])
    assert 240 < (drawn > 0).sum() < 360
    some = drawn[drawn > 0]
    assert (some >= 1).all()
    assert (some <= 3).all()
    assert abs(some.mean() - 2) < 0.12
    assert not f.GaussianBlur(2.0).is_random


@pytest.mark.parametrize("factor", [0, 0.5, 1.0, 1.9])
def test_sharpness_is_that_of_pillow(factor: float) -> None:
    for x in (picture(1), noise(), noise()[:2], noise()[:3, :3]):
        wanted = np.asarray(ImageEnhance.Sharpness(Image.fromarray(x)).enhance(factor)).astype(int)
        assert np.abs(run(f.Sharpness(factor), x) - wanted).max() <= 1
        floats = run(f.Sharpness(factor), (x / 255).astype(np.float32))
        assert np.abs(floats * 255 - wanted).max() <= 1.5


def test_parts_are_erased() -> None:
    x = noise() | 1
    stage = f.RandomErasing(0.6, scale=(0.1, 0.2), ratio=(0.5, 2))
    area, ratio, count, middle = [], [], 0, []
    for place in range(600):
        drawn = drawn_for(stage, x.shape, place)
        found = stage.image(np, x, drawn)
        gone = (found == 0).all(-1)
        np.testing.assert_array_equal(found[~gone], x[~gone])
        if drawn is None:
            assert not gone.any()
            continue
        count += 1
        rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
        assert gone.sum() == len(rows) * len(columns)
        assert gone.sum() == (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        area.append(gone.mean())
        ratio.append(len(rows) / len(columns))
        middle.append((rows.mean() / 36, columns.mean() / 28))
    assert 310 < count < 410
    assert 0.08 < np.min(area) < np.max(area) < 0.22
    assert abs(np.mean(area) - 0.15) < 0.01
    assert abs(np.mean(np.log(ratio))) < 0.06
    np.testing.assert_allclose(np.mean(middle, 0), 0.5, atol=0.04)


def test_what_is_painted() -> None:
    x = np.full((30, 40, 3), 77, np.uint8)
    found = run(f.RandomErasing(1.0, fill=(1, 2, 3)), x)
    gone = (found != 77).all(-1)
    assert gone.any()
    assert (found[gone] == (1, 2, 3)).all()
    for dtype, white in ((np.uint8, 255), (np.uint16, 65535), (np.float32, 1)):
        found = (
            run(f.RandomErasing(1.0, scale=(0.5, 0.6), fill="noise"), np.zeros((60, 60, 3), dtype))
            / white
        )
        some = found[found > 0]
        assert abs(some.mean() - 0.5) < 0.02
        assert abs(some.std() - 12**-0.5) < 0.01
        assert some.max() <= 1


@pytest.mark.parametrize("fill", [7.0, (1, 2, 3), "noise"])
def test_erasing_may_stand_behind_normalize(fill: Any) -> None:
    stage, x = f.RandomErasing(1.0, fill=fill), np.full((40, 50, 3), 9, np.float32)
    for place in range(5):
        drawn = drawn_for(stage, (3, 40, 50), place)
        window, noise_ = drawn
        assert window == drawn_for(stage, x.shape, place)[0]
        front = stage.image(np, np.moveaxis(x, -1, 0), drawn)
        behind = stage.image(
            np, x, (window, None if noise_ is None else np.moveaxis(noise_, 0, -1))
        )
        np.testing.assert_array_equal(np.moveaxis(front, 0, -1), behind)
        assert (behind != 9).any()


@ours
def test_forms_and_devices(stage: Any) -> None:
    for x in (noise(), noise()[:, ::-1], noise()[::-1], noise(0, (15, 16, 3))):
        for kind in (x, (x / 255).astype(np.float32), x.astype(np.uint16) * 257):
            for place in range(3):
                found = run(stage, kind, place=place)
                assert (found.shape, found.dtype) == (kind.shape, kind.dtype)
                np.testing.assert_array_equal(
                    found, run(stage, np.ascontiguousarray(kind), place=place)
                )
    check_device(stage, noise())
    check_device(stage, (noise() / 255).astype(np.float32))


def test_pipes_give_the_same_bits_whatever_the_threads() -> None:
    stages = [f.GaussianBlur(p=0.5), f.Sharpness(1.5, p=0.5), f.RandomErasing(fill="noise")]
    check_threads(stages, [noise(0, (30, 18, 20, 3)), noise(1, (30, 18, 20))], ["image", "mask"])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("gaussian_blur", {"sigma": 0}, "sigma=0; needed a number from 0.001 to 1000"),
        ("gaussian_blur", {"sigma": (3, 1)}, r"sigma=\(3, 1\); needed two numbers"),
        ("sharpness", {"factor": -1}, "factor=-1; needed a number, 0 or more"),
        ("random_erasing", {"scale": (0.5, 2)}, r"scale=\(0.5, 2\); needed two numbers from 0 to 1"),
        ("random_erasing", {"fill": "red"}, "fill='red'; needed a number, one for each channel, or 'noise'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_the_users_line(name: str, given: Any, said: str) -> None:
    pipe = ost.io.arrays(noise(0, (2, 8, 8, 3)))
    with pytest.raises(ArgumentError, match=rf"{name} \(.*test_filters.py:\d+\): got .*{said}"):
        getattr(pipe, name)(**given)
