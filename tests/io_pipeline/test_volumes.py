"""Stages of volumes: where voxels go, masks with them, and what the values are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.feed.stage import Stage
from ostinato.io_pipeline.volumes import elastic as e
from ostinato.io_pipeline.volumes import intensity as i
from ostinato.io_pipeline.volumes import volume_geometry as g
from scipy import ndimage

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.stages import Array, check_device, check_threads, drawn_for, run

MOVES = [
    g.CenterCrop3d(8), g.CenterCrop3d((3, 10, 5)), g.RandomCrop3d((9, 7, 6)), g.RandomFlip3d(), g.RandomFlip3d(1.0, (1,)),
    g.RandomRotate90(), g.RandomRotate90((0, 2), 0.5), e.Elastic(2.0), e.Elastic(1.0, (3, 4, 2), p=0.5),
]  # fmt: skip
CHANGES = [
    i.GaussianNoise(3.0), i.GaussianNoise((1, 5), p=0.5), i.RandomIntensity((0.8, 1.2), (-3, 3)), i.RandomIntensity(gamma=(0.5, 2)),
    i.Normalize3d(), i.Normalize3d(10.0, 3.0), i.Normalize3d(clip=(50, 200), layout="cdhw"),
]  # fmt: skip
every_move = pytest.mark.parametrize("stage", MOVES, ids=lambda s: s.identity())
every_stage = pytest.mark.parametrize("stage", MOVES + CHANGES, ids=lambda s: s.identity())


def noise(seed: int = 0, shape: tuple[int, ...] = (11, 13, 12), dtype: str = "uint8") -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def smooth(shape: tuple[int, ...], seed: int = 0) -> Array:
    return ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=shape), 3) * 30


# -- voxels in whole steps -----------------------------------------------------------------------
def test_crops_are_parts() -> None:
    x = noise()
    np.testing.assert_array_equal(run(g.CenterCrop3d((3, 10, 5)), x, "volume"), x[4:7, 1:11, 3:8])
    corners = set()
    for place in range(400):
        corner = a, b, c = drawn_for(g.RandomCrop3d((9, 12, 11)), x.shape, place)
        corners.add(corner)
        found = run(g.RandomCrop3d((9, 12, 11)), x, "volume", place)
        np.testing.assert_array_equal(found, x[a : a + 9, b : b + 12, c : c + 11])
    assert corners == {(a, b, c) for a in range(3) for b in range(2) for c in range(2)}
    for stage in (g.CenterCrop3d(12), g.RandomCrop3d(12)):
        with pytest.raises(
            ValueError, match="a volume of 11 x 13 x 12 voxels is smaller than 12 x 12 x 12"
        ):
            run(stage, x, "volume")


def test_mirrors_and_quarters_are_numpys() -> None:
    x, seen = noise(), set()
    for place in range(100):
        axes = drawn_for(g.RandomFlip3d(), x.shape, place)
        seen.add(axes)
        np.testing.assert_array_equal(run(g.RandomFlip3d(), x, "volume", place), np.flip(x, axes))
    assert len(seen) == 8
    for axes in ((1, 2), (0, 2), (2, 1)):
        quarters = set()
        for place in range(60):
            k = drawn_for(g.RandomRotate90(axes), x.shape, place)
            quarters.add(k)
            found = run(g.RandomRotate90(axes), x, "volume", place)
            np.testing.assert_array_equal(found, np.rot90(x, k, axes))
        assert quarters == {0, 1, 2, 3}
    still = [drawn_for(g.RandomRotate90(p=0.2), x.shape, k) for k in range(400)]
    assert 300 < still.count(0) < 380


@every_move
def test_masks_go_with_volumes(stage: Any) -> None:
    """Of what is the same in both, the same comes; masks keep their numbers."""
    for place in range(5):
        mask = np.zeros((21, 22, 20), np.int64)
        mask[7:15, 8:16, 6:14] = 5
        drawn = drawn_for(stage, mask.shape, place)
        covered = stage.mask(np, mask, drawn)
        found = stage.volume(np, (mask / 5).astype(np.float32), drawn)
        assert covered.dtype == mask.dtype
        assert {*np.unique(covered)} <= {0, 5}
        assert found.shape == covered.shape
        assert ((found > 0.5) != (covered == 5)).mean() < 0.02
        two = stage.volume(np, np.stack((mask, mask * 2), -1), drawn)
        np.testing.assert_array_equal(two[..., 1], stage.volume(np, mask * 2, drawn))


# -- rubber ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_bending_is_scipys_interpolation(dtype: str) -> None:
    x = (smooth((17, 20, 14)) * 10 + 100).astype(dtype)
    grid = drawn_for(e.Elastic(2.0, 4), x.shape)
    moved = e.spread_out(np, grid.astype(np.float32), x.shape)
    where = np.indices(x.shape) + moved
    wanted = ndimage.map_coordinates(x.astype(float), where, order=1, mode="nearest")
    found = run(e.Elastic(2.0, 4), x, "volume")
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, atol=0.501 if dtype[0] in "iu" else 2e-3)
    mask = noise(1, x.shape, "int32")
    picked = ndimage.map_coordinates(mask, where, order=0, mode="nearest")
    assert (run(e.Elastic(2.0, 4), mask, "mask") != picked).mean() < 1e-3
    assert np.abs(found.astype(float) - x).mean() > 0.5


@settings(deadline=None, max_examples=40)
@given(shape=st.tuples(*[st.integers(1, 9)] * 3), channels=st.integers(0, 3), dtype=st.sampled_from(["uint8", "int16", "uint16", "float32", "int64", "bool"]),
       points=st.tuples(*[st.integers(2, 4)] * 3), strength=st.floats(0, 9), order=st.sampled_from("CFT"))  # fmt: skip
def test_machine_code_gives_the_bits_of_numpy(shape: Any, channels: int, dtype: str, points: Any, strength: float, order: str) -> None:  # fmt: skip
    x = noise(1, (*shape, *[channels] * (channels > 0)))
    x = (x.astype(np.int64) * 257 - 2**15 * (dtype == "int16")).astype(dtype)
    x = np.asfortranarray(x) if order == "F" else x[::-1, :, ::-1] if order == "T" else x
    grid = drawn_for(e.Elastic(strength, points), shape)
    for is_mixed, plain in ((True, e.bent), (False, e.nearest)):
        found = e.bend_compiled(np, x, grid, is_mixed)
        if found is None:
            assert e.bending.llvm.why_not() or (is_mixed and dtype in ("int64", "bool"))
            continue
        wanted = plain(np, x, grid)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_curves_go_through_their_points() -> None:
    grid = np.random.default_rng(0).normal(size=(3, 3, 4, 5)).astype(np.float32)
    moved = e.spread_out(np, grid, (9, 12, 15))  # of which each third voxel is a point
    np.testing.assert_allclose(moved[:, 1::3, 1::3, 1::3], grid, atol=1e-6)
    plane = np.broadcast_to(np.arange(6, dtype=np.float32), (3, 4, 4, 6))
    moved = e.spread_out(np, plane, (8, 8, 30))
    np.testing.assert_allclose(moved[0, 0, 0], (np.arange(30) + 0.5) / 5 - 0.5, atol=0.6)
    np.testing.assert_allclose(
        np.diff(moved[0, 0, 0])[8:-8], 0.2, atol=1e-5
    )  # straight lines stay straight
    jumps = np.abs(np.diff(e.spread_out(np, grid, (90, 8, 8)), 2, axis=1)).max()
    assert jumps < 0.02  # no corners


def test_points_move_as_far_as_they_should() -> None:
    grids = np.stack([drawn_for(e.Elastic(2.5), (9, 9, 9), k) for k in range(40)])
    assert grids.shape == (40, 3, 5, 5, 5)
    assert abs(grids.std() - 2.5) < 0.05
    assert np.abs(grids).max() <= 7.5
    x = noise()
    np.testing.assert_array_equal(run(e.Elastic(0.0), x, "volume"), x)


# -- values ---------------------------------------------------------------------------------------
def test_noise_has_its_deviation() -> None:
    x = np.full((30, 31, 32), 100, np.float32)
    for k in range(3):
        added = run(i.GaussianNoise(4.0), x, "volume", k) - x
        assert abs(added.std() - 4) < 0.08
        assert abs(added.mean()) < 0.1
        assert abs((np.abs(added) < 4).mean() - 0.6827) < 0.01
    whole = run(i.GaussianNoise(4.0), x.astype(np.int16), "volume") - 100
    assert abs(whole.std() - np.hypot(4, 12**-0.5)) < 0.1
    stds = [run(i.GaussianNoise((1, 5), p=0.5), x, "volume", k).std() for k in range(80)]
    some = [s for s in stds if s]
    assert 25 < len(some) < 55
    assert 0.9 < min(some) < 2
    assert 4 < max(some) < 5.1
    image = np.full((40, 40, 3), 250, np.uint8)
    assert run(i.GaussianNoise(20.0), image).max() == 255


def test_values_are_scaled_shifted_and_bent() -> None:
    x = smooth((12, 11, 10)).astype(np.float32)
    stage = i.RandomIntensity((0.5, 2), (-5, 5), (0.5, 2))
    seen = []
    for place in range(200):
        scale, shift, gamma = drawn = drawn_for(stage, x.shape, place)
        seen.append(drawn)
        if place < 10:
            y = x.astype(float)
            low, high = y.min(), y.max()
            wanted = (((y - low) / (high - low)) ** gamma * (high - low) + low) * scale + shift
            np.testing.assert_allclose(run(stage, x, "volume", place), wanted, rtol=1e-4, atol=1e-4)
    low, high = np.min(seen, 0), np.max(seen, 0)
    np.testing.assert_allclose(low, (0.5, -5, 0.5), atol=0.15)
    np.testing.assert_allclose(high, (2, 5, 2), atol=0.15)
    flat = np.full((3, 3, 3), 7, np.float32)
    np.testing.assert_array_equal(run(i.RandomIntensity(gamma=(2, 2)), flat, "volume"), flat)
    ends = run(i.RandomIntensity((100, 100)), noise(dtype="int16"), "volume")
    assert ends.max() == 25500
    assert run(i.RandomIntensity((300, 300)), noise(dtype="int16"), "volume").max() == 32767


def test_normalizing() -> None:
    x = noise(0, (9, 8, 7, 2), "int16")
    found = run(i.Normalize3d(), x, "volume")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (x - x.mean((0, 1, 2))) / x.std((0, 1, 2)), atol=1e-5)
    one = run(i.Normalize3d(), x[..., 0], "volume")
    np.testing.assert_allclose((one.mean(), one.std()), (0, 1), atol=1e-5)
    given = run(i.Normalize3d((1, 2), (3, 4), layout="cdhw"), x, "volume")
    np.testing.assert_allclose(
        given, np.moveaxis((x - np.array([1, 2])) / (3, 4), -1, 0), rtol=1e-5, atol=1e-6
    )
    assert run(i.Normalize3d(layout="cdhw"), x[..., 0], "volume").shape == (1, 9, 8, 7)
    cut = np.clip(x[..., 0], 50, 100).astype(float)
    found = run(i.Normalize3d(clip=(50, 100), dtype="float64"), x[..., 0], "volume")
    np.testing.assert_allclose(found, (cut - cut.mean()) / cut.std(), rtol=1e-10, atol=1e-12)
    flat = np.full((3, 3, 3), 7, np.uint8)
    np.testing.assert_array_equal(run(i.Normalize3d(), flat, "volume"), np.zeros((3, 3, 3)))
    with pytest.raises(ValueError, match="3 numbers for 2 channels"):
        run(i.Normalize3d((1, 2, 3), 1), x, "volume")


# -- what holds for all of them -------------------------------------------------------------------
@every_stage
def test_forms_and_devices(stage: Stage) -> None:
    for x in (
        noise(),
        noise(0, (11, 13, 12, 2), "int16"),
        noise(dtype="float32"),
        noise(dtype="float64"),
    ):
        found = run(stage, x, "volume")
        if not isinstance(stage, i.Normalize3d):
            assert found.dtype == x.dtype
            assert found.shape[3:] == x.shape[3:]
        check_device(stage, x, "volume")
        back = run(stage, np.asfortranarray(x), "volume")
        np.testing.assert_allclose(back, found, rtol=1e-5, atol=1e-5)
    if stage.moves:
        check_device(stage, noise(dtype="int64"), "mask")


def test_pipes_give_the_same_bits_whatever_the_threads() -> None:
    data = [noise(0, (12, 14, 13, 12), "int16"), noise(1, (12, 14, 13, 12))]
    stages = [
        e.Elastic(1.0),
        g.RandomCrop3d(9),
        g.RandomFlip3d(),
        g.RandomRotate90(),
        i.GaussianNoise(),
        i.RandomIntensity((0.9, 1.1)),
        i.Normalize3d(),
    ]
    check_threads(stages, data, ["volume", "mask"])
    pipe = ost.io.arrays({"volume": data[0], "mask": data[1]}).elastic(1.0).random_crop3d(9)
    pipe = (
        pipe.random_flip3d()
        .random_rotate90()
        .gaussian_noise(2.0)
        .normalize3d(layout="cdhw")
        .batch(3)
    )
    for batch in pipe.to("numpy").epoch(0):
        assert batch["volume"].shape == (3, 1, 9, 9, 9)
        assert batch["mask"].shape == (3, 9, 9, 9)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("random_crop3d", {"size": (1, 2)}, r"size=\(1, 2\); needed a whole number, 1 or more, or one each"),
        ("center_crop3d", {"size": 0}, "size=0; needed a whole number, 1 or more"),
        ("random_flip3d", {"axes": (0, 3)}, r"axes=\(0, 3\); needed some of \(0, 1, 2\)"),
        ("random_rotate90", {"axes": (1, 1)}, r"axes=\(1, 1\); needed two of \(0, 1, 2\)"),
        ("elastic", {"strength": -1}, "strength=-1; needed a number, 0 or more"),
        ("elastic", {"points": 1}, "points=1; needed a whole number, 2 or more"),
        ("gaussian_noise", {"std": (2, 1)}, r"std=\(2, 1\); needed two numbers"),
        ("random_intensity", {"gamma": (0, 1)}, r"gamma=\(0, 1\); needed two numbers, 0.001 or more"),
        ("normalize3d", {"mean": 1.0}, "mean=1.0, std=None; needed both of them, or none"),
        ("normalize3d", {"mean": 1.0, "std": 0.0}, r"std=\(0.0,\); needed numbers other than 0"),
        ("normalize3d", {"layout": "dhw"}, "layout='dhw'; needed None or 'cdhw'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_the_users_line(name: str, given: Any, said: str) -> None:
    pipe = ost.io.arrays(noise(0, (2, 8, 8, 8)), kinds=["volume"])
    with pytest.raises(ArgumentError, match=rf"{name} \(.*test_volumes.py:\d+\): got .*{said}"):
        getattr(pipe, name)(**given)


def test_volumes_are_needed() -> None:
    with pytest.raises(ArgumentError, match=r"random_flip3d .*got samples of image; needed volume"):
        ost.io.arrays(noise(0, (2, 8, 8, 3))).random_flip3d()
    both = ost.io.arrays({"volume": noise(0, (2, 8, 8, 8)), "boxes": np.zeros((2, 1, 4))})
    with pytest.raises(ArgumentError, match=r"random_flip3d .*got a sample with boxes"):
        both.random_flip3d()
    small = ost.io.arrays(noise(0, (2, 8, 8, 8)), kinds=["volume"]).random_crop3d(9).batch(2)
    with pytest.raises(
        SampleError, match=r"in random_crop3d .*8 x 8 x 8 voxels is smaller than 9 x 9 x 9"
    ):
        list(small.to("numpy").epoch(0))
    assert Draws(0, 0).seek(7, 3).place == 7
