"""Policies: which stages they choose, how strong, and that these are what acts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.images import policies as p
from ostinato.io_pipeline.images.colour import Posterize, Solarize
from ostinato.io_pipeline.images.warps import Affine

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.io_pipeline.pictures import picture
from tests.io_pipeline.stages import check_device, check_threads, drawn_for, run

STAGES = [p.RandAugment(), p.RandAugment(3, 30, fill=7), p.TrivialAugment(), p.TrivialAugment(5, interpolation="nearest")]  # fmt: skip
ours = pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.identity())


def names(stage: Any, count: int = 4000) -> tuple[Counter[str], Counter[int]]:
    draws = Draws(1, 0)
    chosen = [stage.draw(draws.seek(k, 0), (48, 64, 3)) for k in range(count)]
    return Counter(one.identity() for some in chosen for one in some), Counter(map(len, chosen))


def test_rand_augment_chooses_evenly_at_its_strength() -> None:
    found, lengths = names(p.RandAugment(1, 15))
    assert lengths[0] / 4000 == pytest.approx(1 / 14, abs=0.015)
    signed = {
        k: n
        for k, n in found.items()
        if not k.startswith(("posterize", "solarize", "autocontrast", "equalize"))
    }
    assert len(found) - len(signed) == 4
    assert len(signed) == 18  # nine operations, in two directions
    for k, n in found.items():
        share = 1 / 28 if k in signed else 1 / 14
        assert n / 4000 == pytest.approx(share, abs=0.015), k
    kinds = " ".join(found)
    for factor in (0.55, 1.45):
        assert f"brightness(p=1.0, factor={factor})" in kinds
    assert Posterize(6).identity() in found
    assert Solarize(0.5).identity() in found
    assert Affine(15.0).identity() in found
    assert Affine(translate=(-150 / 331 / 2, 0.0)).identity() in found
    twice, lengths = names(p.RandAugment(2, 15))
    assert lengths[2] / 4000 == pytest.approx((13 / 14) ** 2, abs=0.02)
    assert {*twice} == {*found}


def test_trivial_augment_chooses_any_strength() -> None:
    found, lengths = names(p.TrivialAugment(3))
    assert {*lengths} == {0, 1}
    angles = {
        k
        for k in found
        if k.startswith("affine") and "translate=(0.0, 0.0), scale=1.0, shear=(0.0, 0.0)" in k
    }
    assert {a.partition("angle=")[2].partition(",")[0] for a in angles} - {"-0.0"} == {
        "-135.0",
        "-67.5",
        "0.0",
        "67.5",
        "135.0",
    }
    assert {k for k in found if k.startswith("posterize")} == {
        Posterize(b).identity() for b in (2, 5, 8)
    }


def test_the_stages_are_what_acts() -> None:
    x, mask = picture(1), np.arange(48 * 64).reshape(48, 64)
    boxes = np.array([[10, 12, 40, 30]], np.float32)
    stage = p.RandAugment(3, 20, fill=9, mask_fill=3)
    for place in range(60):
        drawn = drawn_for(stage, x.shape, place)
        wanted, covered, moved = x, mask, boxes
        for one in drawn:
            wanted = one.image(np, wanted, None)
            if one.moves:
                assert (one.fill, one.mask_fill) == (9, 3)
                covered, moved = one.mask(np, covered, None), one.boxes(np, moved, None, x.shape)
        np.testing.assert_array_equal(run(stage, x, place=place), wanted)
        np.testing.assert_array_equal(run(stage, mask, "mask", place, shape=x.shape), covered)
        np.testing.assert_array_equal(run(stage, boxes, "boxes", place, shape=x.shape), moved)


@ours
def test_image_mask_and_boxes_go_together(stage: Any) -> None:
    plain = replace(stage, fill=0.0)
    for place in range(40):
        image, mask = np.zeros((48, 64, 3), np.uint8), np.zeros((48, 64), np.int64)
        image[14:34, 20:44], mask[14:34, 20:44] = 255, 7
        drawn = tuple(one for one in drawn_for(plain, image.shape, place) if one.moves)
        after, covered = plain.image(np, image, drawn), plain.mask(np, mask, drawn)
        (found,) = plain.boxes(np, np.array([[20, 14, 44, 34]], np.float32), drawn, image.shape)
        assert ((after[..., 0] > 128) != (covered == 7)).mean() < 0.02
        where = np.argwhere(covered == 7)
        if len(drawn) > 1 or not len(where):
            continue  # bounds of bounds are larger
        (top, left), (bottom, right) = where.min(0), where.max(0) + 1
        np.testing.assert_allclose(found, [left, top, right, bottom], atol=1.6)


@ours
def test_devices_give_the_same(stage: Any) -> None:
    check_device(stage, picture(1), places=12)
    check_device(stage, picture(1)[..., 0].astype(np.int64), "mask", places=8, shape=(48, 64, 3))


def test_pipes_give_the_same_bits_whatever_the_threads() -> None:
    data = [np.stack([picture(k, 20, 22) for k in range(30)]), np.zeros((30, 20, 22), np.int64)]
    check_threads([p.RandAugment(), p.TrivialAugment()], data, ["image", "mask"])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("rand_augment", {"n": -1}, "n=-1; needed a whole number, 0 or more"),
        ("rand_augment", {"magnitude": 31}, "magnitude=31; needed a number from 0 to 30"),
        ("trivial_augment", {"bins": 1}, "bins=1; needed a whole number, 2 or more"),
        ("trivial_augment", {"interpolation": "cubic"}, "interpolation='cubic'; needed 'linear' or 'nearest'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_the_users_line(name: str, given: Any, said: str) -> None:
    pipe = ost.io.arrays(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(ArgumentError, match=rf"{name} \(.*test_policies.py:\d+\): got .*{said}"):
        getattr(pipe, name)(**given)
