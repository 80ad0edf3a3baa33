"""Stages that mix the samples of a batch: who with whom, how much of it, and what labels become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.images import mixing as m

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.fake_xp import from_host, to_host, xp
from tests.io_pipeline.stages import Array, check_threads

STAGES = [m.Mixup(0.4, 10), m.Mixup(1.0, 10, p=0.6), m.CutMix(1.0, 10), m.CutMix(classes=10, p=0.6)]
ours = pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.identity())


def noise(seed: int = 0, shape: tuple[int, ...] = (8, 12, 14, 3), dtype: str = "uint8") -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def drawn_for(stage: Any, places: list[int], shape: tuple[int, ...]) -> list[m.Drawn]:
    draws = Draws(1, 0)
    return [stage.draw(draws.seek(place, 0), shape) for place in places]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32", "float64"])
def test_mixup_is_a_weighted_mean(dtype: str) -> None:
    x, stage = noise(dtype=dtype), m.Mixup(1.0, 5)
    drawn = drawn_for(stage, list(range(8)), x.shape[1:])
    found = stage.image(np, x, drawn)
    assert found.dtype == dtype
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    weights = stage.label(np, labels, drawn)
    assert (weights.shape, weights.dtype) == ((8, 5), np.float32)
    for k in range(8):
        share, other = drawn[k].share, k ^ 1
        wanted = x[k] * share + x[other].astype(float) * (1 - share)
        assert np.abs(found[k] - wanted).max() <= (1e-4 if dtype[0] == "f" else 0.5001)
        row = np.zeros(5)
        row[labels[k]] += share
        row[labels[other]] += 1 - share
        np.testing.assert_allclose(weights[k], row, atol=1e-6)
    again = stage.label(np, weights, drawn)
    np.testing.assert_allclose(again.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_cutmix_takes_a_rectangle_and_its_area_of_the_label(layout: str) -> None:
    x, masks, stage = noise(), noise(1, (8, 12, 14)), m.CutMix(1.0, 8)
    given = x if layout == "hwc" else x.transpose(0, 3, 1, 2).copy()
    drawn = drawn_for(stage, list(range(8)), given.shape[1:])
    found = stage.image(np, given, drawn)
    found = found if layout == "hwc" else found.transpose(0, 2, 3, 1)
    covered = stage.mask(np, masks, drawn)
    weights = stage.label(np, np.arange(8), drawn)
    cut = 0
    for k in range(8):
        top, left, height, width = drawn[k].window
        inside = np.zeros((12, 14), bool)
        inside[top : top + height, left : left + width] = True
        cut += inside.any() and not inside.all()
        np.testing.assert_array_equal(found[k], np.where(inside[..., None], x[k ^ 1], x[k]))
        np.testing.assert_array_equal(covered[k], np.where(inside, masks[k ^ 1], masks[k]))
        np.testing.assert_allclose(weights[k, k], 1 - inside.mean(), atol=1e-6)
        np.testing.assert_allclose(weights[k, k ^ 1], inside.mean(), atol=1e-6)
    assert cut >= 6


def test_shares_are_beta_distributed() -> None:
    draws = Draws(1, 0)
    for alpha in (0.2, 1.0, 4.0):
        shares = np.array([m.Mixup(alpha).draw(draws.seek(k, 0), ()).share for k in range(3000)])
        assert abs(shares.mean() - 0.5) < 0.025
        np.testing.assert_allclose(shares.var(), 1 / (4 * (2 * alpha + 1)), rtol=0.08)
    some = np.array([m.Mixup(1.0, p=0.3).draw(draws.seek(k, 0), ()).share for k in range(2000)])
    assert abs((some < 1).mean() - 0.3) < 0.035
    areas = [1 - m.CutMix(1.0).draw(draws.seek(k, 0), (60, 80, 3)).share for k in range(3000)]
    assert 0.25 < np.mean(areas) < 0.4  # less than half: rectangles are cut off at the edges


@ours
def test_who_has_no_partner_stays(stage: Any) -> None:
    x = noise(0, (5, 12, 14, 3))
    for places, alone in (([0, 1, 2, 3, 4], [4]), ([3, 4, 5, 6, 8], [0, 3, 4]), ([7], [0])):
        drawn = drawn_for(stage, places, x.shape[1:])
        found = stage.image(np, x[: len(places)], drawn)
        weights = stage.label(np, np.arange(len(places)), drawn)
        for k in alone:
            np.testing.assert_array_equal(found[k], x[k])
            assert weights[k, k] == 1
        assert len(alone) == len(places) or not np.array_equal(found, x[: len(places)])


@ours
def test_devices_give_the_same_bits(stage: Any) -> None:
    labels = np.arange(8)
    for dtype in ("uint8", "uint16", "int32", "float16", "float32", "float64"):
        x = noise(dtype=dtype)
        drawn = drawn_for(stage, list(range(8)), x.shape[1:])
        before = x.copy()
        wanted = stage.image(np, x, drawn)
        np.testing.assert_array_equal(x, before)
        found = to_host(stage.image(xp, from_host(x), drawn))
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(
        to_host(stage.label(xp, from_host(labels), drawn)), stage.label(np, labels, drawn)
    )


def pipe_of(stage: m.Mixing, n: int = 26) -> Any:
    pipe = ost.io.arrays(noise(0, (n, 6, 7, 3)), np.arange(n) % 10, kinds=["image", "label"])
    return pipe.shuffle(seed=5).batch(8, tail="keep").then(stage).to("numpy")


@ours
def test_pipes_give_the_same_bits_whatever_the_threads_and_workers(stage: Any) -> None:
    check_threads([], [noise(0, (26, 6, 7, 3)), np.arange(26) % 10], ["image", "label"], [stage])
    wanted = list(pipe_of(stage).epoch(1))
    assert [w.shape for _, w in wanted] == [(8, 10)] * 3 + [(2, 10)]
    parts = [list(pipe_of(stage).epoch(1, part=(rank, 2))) for rank in range(2)]
    for k, (image, label) in enumerate(wanted[:3]):
        np.testing.assert_array_equal(np.concatenate([p[k][0] for p in parts]), image)
        np.testing.assert_array_equal(np.concatenate([p[k][1] for p in parts]), label)
    other = pipe_of(stage)
    taken = other.epoch(1)
    next(taken)
    again = pipe_of(stage)
    again.restore(other.state())
    for found, was in zip(again.epoch(1), wanted[1:], strict=True):
        np.testing.assert_array_equal(found[0], was[0])


def test_partners_of_skipped_samples_stay() -> None:
    """Places tell who is whose partner, also where samples are left out."""

    def refuse(x: Array) -> Array:
        if x[0, 0, 0] in (3, 12):
            raise ValueError("no")
        return x

    x = np.broadcast_to(np.arange(16, dtype=np.uint8)[:, None, None, None], (16, 4, 5, 3))
    pipe = ost.io.arrays(x, np.arange(16), kinds=["image", "label"])
    pipe = pipe.map(refuse, on="image").on_error("skip", most=1).batch(8).mixup(1.0, classes=16)
    seen = []
    for image, label in pipe.to("numpy").epoch(0):
        for one, row in zip(image[:, 0, 0, 0], label, strict=True):
            (own, *other), weights = np.flatnonzero(row), row[row > 0]
            seen.append((own, *other))
            assert abs(float((np.flatnonzero(row) * weights).sum()) - one) <= 0.51
    assert seen.count((2,)) == 1
    assert seen.count((13,)) == 1
    assert {s for s in seen if len(s) == 2} == {(k, k + 1) for k in (0, 4, 6, 8, 10, 14)}
    assert len(seen) == 14


def test_what_cannot_be_mixed_is_refused() -> None:
    data = {
        "image": noise(),
        "mask": noise(1, (8, 12, 14)),
        "boxes": np.zeros((8, 2, 4), np.float32),
    }
    masked = ost.io.arrays({k: data[k] for k in ("image", "mask")}).batch(4)
    with pytest.raises(
        ArgumentError, match=r"mixup \(.*test_mixing.py:\d+\): got a sample with mask"
    ):
        masked.mixup()
    masked.cutmix()
    with pytest.raises(ArgumentError, match=r"cutmix .*got a sample with boxes"):
        ost.io.arrays(data).batch(4).cutmix()
    with pytest.raises(ArgumentError, match=r"mixup .*needed batches; write it behind `batch`"):
        ost.io.arrays(data).mixup()
    for given, said in (
        ({"alpha": 0}, "alpha=0; needed a number from 0.001"),
        ({"classes": -1}, "classes=-1; needed a whole number of classes"),
        ({"p": 3}, "p=3; needed a chance"),
    ):
        with pytest.raises(ArgumentError, match=said):
            masked.cutmix(**given)
    labelled = ost.io.arrays(noise(), np.arange(8), kinds=["image", "label"]).batch(8).to("numpy")
    with pytest.raises(
        SampleError, match=r"in mixup .*say of how many classes, as in mixup\(classes=1000\)"
    ):
        list(labelled.mixup().epoch(0))
    with pytest.raises(SampleError, match="a label of 7, where there are 7 classes"):
        list(labelled.mixup(classes=7).epoch(0))
