"""Stages that turn, move and tilt images: where pixels, masks and boxes go."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.feed.stage import Stage
from ostinato.io_pipeline.images import sampling
from ostinato.io_pipeline.images import warps as w
from PIL import Image
from scipy import ndimage

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.io_pipeline.pictures import picture
from tests.io_pipeline.stages import Array, check_device, check_threads, drawn_for, run

ROOT = Path(__file__).resolve().parents[2]
STAGES = [
    w.Rotate(30), w.Rotate(-117.5, expand=True), w.Rotate(90), w.RandomRotate(40), w.RandomRotate((10, 80), expand=True, p=0.5),
    w.Affine(20, (0.1, -0.2), 1.3, (10, -5)), w.Affine(shear=(30, 0), interpolation="nearest", fill=9),
    w.RandomAffine(30, (0.2, 0.1), (0.7, 1.4), 15), w.RandomAffine(shear=((-20, 20), (0, 10)), least=0.3, p=0.7),
    w.RandomPerspective(0.5, 1.0, fill=(1, 2, 3)), w.RandomPerspective(0.3), w.Pad(5), w.Pad((3, 1)), w.Pad((1, 2, 3, 4), fill=(9, 8, 7)),
]  # fmt: skip
ours = pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.identity())


def noise(seed: int = 0, shape: tuple[int, ...] = (37, 29, 3)) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def by_scipy(x: Array, matrix: w.Matrix, size: tuple[int, int], fill: float, order: int) -> Array:
    """Each pixel of the result where its middle comes from, in float64."""
    m = np.linalg.inv(np.reshape(matrix, (3, 3)))
    r, k = np.indices(size)
    u, v, z = np.einsum("ij,jrk->irk", m, np.stack((k + 0.5, r + 0.5, np.ones(size))))
    where = np.stack((v / z - 0.5, u / z - 0.5))
    planes = [
        ndimage.map_coordinates(
            np.pad(p.astype(float), 1, constant_values=fill),
            where + 1,
            order=order,
            mode="constant",
            cval=fill,
        )
        for p in np.moveaxis(x, -1, 0)
    ]
    return np.stack(planes, -1)


# -- against other libraries --------------------------------------------------------------------
@pytest.mark.parametrize("stage", STAGES[:11], ids=lambda s: s.identity())
def test_pixels_are_mixed_as_scipy_mixes_them(stage: Any) -> None:
    """But for places, which are rounded to 1/2048."""
    x = picture(2, 40, 56)
    for place in range(4):
        drawn = drawn_for(stage, x.shape, place)
        placed = stage.placed(drawn, x.shape)
        if placed is None:
            assert stage.image(np, x, drawn) is x
            continue
        if isinstance(stage.fill, tuple):
            continue
        order = int(stage.interpolation == "linear")
        wanted = by_scipy(x, *placed, stage.fill, order)
        found = stage.image(np, x, drawn)
        assert found.shape == wanted.shape
        away = np.abs(found - wanted)
        assert np.quantile(away, 0.999) <= (0.65 if order else 0)
        floats = stage.image(np, (x / 255).astype(np.float32), drawn)
        if stage.fill == 0:
            assert np.quantile(np.abs(floats * 255 - wanted), 0.999) <= 0.3


@pytest.mark.parametrize("angle", [0, 90, 180, 270, -90, 450])
def test_quarters_are_exact_and_against_the_clock(angle: int) -> None:
    square = noise(0, (31, 31, 3))
    np.testing.assert_array_equal(run(w.Rotate(angle), square), np.rot90(square, angle // 90))
    x = noise(1)
    np.testing.assert_array_equal(run(w.Rotate(angle, expand=True), x), np.rot90(x, angle // 90))
    mask = noise(2, (37, 29)).astype(np.int32)
    turned = run(w.Rotate(angle, expand=True), mask, "mask")
    np.testing.assert_array_equal(turned, np.rot90(mask, angle // 90))


def test_rotations_go_pillows_way() -> None:
    x = picture(3, 60, 60)
    wanted = np.asarray(Image.fromarray(x).rotate(25, Image.Resampling.BILINEAR)).astype(int)
    assert np.quantile(np.abs(run(w.Rotate(25), x) - wanted), 0.97) <= 3


def test_moves_are_to_the_right_and_down() -> None:
    x = noise(0, (20, 40, 3))
    moved = run(w.Affine(translate=(0.25, 0.1), fill=7), x)
    np.testing.assert_array_equal(moved[2:, 10:], x[:-2, :-10])
    assert (moved[:2] == 7).all()
    assert (moved[:, :10] == 7).all()
    large = run(w.Affine(scale=2.0), picture(1))
    wanted = np.asarray(Image.fromarray(picture(1)).resize((128, 96), Image.Resampling.BILINEAR))
    assert np.abs(large.astype(int) - wanted[24:72, 32:96]).max() <= 1


def test_shears_move_rows_along_themselves() -> None:
    x = noise(0, (21, 60, 1))
    found = run(w.Affine(shear=(45, 0), interpolation="nearest"), x)
    for r in range(21):
        np.testing.assert_array_equal(np.roll(found[r], 10 - r, 0)[11:-11], x[r, 11:-11])
    turned = run(w.Affine(shear=(0, 45), interpolation="nearest"), x.swapaxes(0, 1).copy())
    np.testing.assert_array_equal(turned, found.swapaxes(0, 1))


def test_perspectives_take_corners_to_corners() -> None:
    stage, shape = w.RandomPerspective(0.6, 1.0), (40, 60, 3)
    seen = []
    for place in range(300):
        m = np.reshape(stage.draw(Draws(1, 0).seek(place, 0), shape), (3, 3))
        corners = np.array([(0, 0, 1), (60, 0, 1), (60, 40, 1), (0, 40, 1)]) @ m.T
        assert (corners[:, 2] > 0).all()
        inwards = np.abs(corners[:, :2] / corners[:, 2:] - [(0, 0), (60, 0), (60, 40), (0, 40)])
        seen.append(inwards / (60, 40))
    assert np.min(seen) >= -1e-9
    assert 0.29 < np.max(seen) <= 0.3
    np.testing.assert_allclose(np.mean(seen, 0), 0.15, atol=0.02)


def test_padding_is_numpys() -> None:
    x = noise()
    np.testing.assert_array_equal(run(w.Pad(3), x), np.pad(x, ((3, 3), (3, 3), (0, 0))))
    for mode in ("edge", "reflect"):
        wanted = np.pad(x, ((1, 2), (3, 4), (0, 0)), mode=mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(run(w.Pad((1, 2, 3, 4), mode=mode), x), wanted)
        check_device(w.Pad((1, 2, 3, 4), mode=mode), x)
    found = run(w.Pad((2, 0), fill=(9, 8, 7)), x)
    assert (found[:2] == (9, 8, 7)).all()
    assert found.shape == (41, 29, 3)
    mask = run(w.Pad(2, mask_fill=255), x[..., 0], "mask")
    assert (mask[:2] == 255).all()
    boxes = run(w.Pad((1, 2, 3, 4)), np.array([[1, 2, 5, 6]], np.float32), "boxes", shape=x.shape)
    np.testing.assert_array_equal(boxes, [[4, 3, 8, 7]])


# -- image, mask and boxes -----------------------------------------------------------------------
@ours
def test_image_mask_and_boxes_go_together(stage: Any) -> None:
    """A square that is painted into the image and the mask ends where its box does."""
    black = replace(stage, fill=0, least=0.0) if isinstance(stage, w.Warp) else stage
    for place in range(12):
        x0, y0 = 14 + 3 * (place % 4), 12 + 2 * (place % 3)
        box = np.array([[x0, y0, x0 + 24, y0 + 20]], np.float32)
        image, mask = np.zeros((48, 64, 3), np.uint8), np.zeros((48, 64), np.int64)
        image[y0 : y0 + 20, x0 : x0 + 24], mask[y0 : y0 + 20, x0 : x0 + 24] = 255, 7
        drawn = drawn_for(stage, image.shape, place)
        after = black.image(np, image, drawn)
        covered = black.mask(np, mask, drawn)
        (found,) = black.boxes(np, box, drawn, image.shape)
        assert found.dtype == np.float32
        assert after.shape[:2] == covered.shape
        assert {*np.unique(covered)} == {0, 7}
        assert ((after[..., 0] > 128) != (covered == 7)).mean() < 0.01
        where = np.argwhere(covered == 7)
        (top, left), (bottom, right) = where.min(0), where.max(0) + 1
        np.testing.assert_allclose(found, [left, top, right, bottom], atol=1.3)


def test_boxes_of_which_little_is_left_become_nothing() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 10], [30, 0, 40, 10]], np.float32)
    moved = {"x": boxes, "shape": (40, 40, 3)}
    found = run(w.Affine(translate=(-0.2, 0)), moved["x"], "boxes", shape=moved["shape"])
    np.testing.assert_allclose(found, [[0, 0, 2, 10], [0, 0, 12, 10], [22, 0, 32, 10]], atol=1e-5)
    found = run(w.Affine(translate=(-0.2, 0), least=0.5), boxes, "boxes", shape=(40, 40, 3))
    np.testing.assert_allclose(found, [[0, 0, 0, 0], [0, 0, 12, 10], [22, 0, 32, 10]], atol=1e-5)
    assert run(w.Affine(angle=3), boxes[:0], "boxes", shape=(40, 40, 3)).shape == (0, 4)


def test_boxes_go_with_their_labels() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 10], [30, 0, 40, 10]], np.float32)

    def sample(k: int) -> dict[str, Any]:
        return {"image": noise(k, (40, 40, 3)), "boxes": boxes, "label": np.array([5, 6, 7]) + 10 * k,
                "score": np.array([0.5, 0.6, 0.7]), "data": np.eye(3), "weights": np.array([0.1, 0.2, 0.7])}  # fmt: skip

    kinds = ["boxes", "data", "image", "label", "data", "label"]  # by the order of keys
    pipe = ost.io.samples([sample(k) for k in range(3)], kinds=kinds)
    pipe = pipe.affine(translate=(-0.2, 0), least=0.5).drop_boxes(beside=("score",))
    found = list(pipe.epoch(0))
    assert len(found) == 3
    for k, one in enumerate(found):
        np.testing.assert_allclose(one["boxes"], [[0, 0, 12, 10], [22, 0, 32, 10]], atol=1e-5)
        np.testing.assert_array_equal(one["label"], [6 + 10 * k, 7 + 10 * k])
        np.testing.assert_array_equal(one["score"], [0.6, 0.7])
        np.testing.assert_array_equal(one["data"], np.eye(3))
        np.testing.assert_array_equal(one["weights"], [0.1, 0.2, 0.7])
    kept = next(iter(ost.io.samples([sample(0)], kinds=kinds).drop_boxes().epoch(0)))
    np.testing.assert_array_equal(kept["boxes"], boxes)
    small = next(iter(ost.io.samples([sample(0)], kinds=kinds).drop_boxes(150).epoch(0)))
    np.testing.assert_array_equal(small["label"], [6])
    assert len(small["score"]) == 3
    with pytest.raises(ArgumentError, match=r"drop_boxes .*needed names of fields"):
        ost.io.arrays({"boxes": np.zeros((2, 3, 4))}).drop_boxes(beside=("scores",))
    with pytest.raises(ArgumentError, match=r"drop_boxes .*got samples of image; needed boxes"):
        ost.io.arrays(noise(0, (2, 8, 8, 3))).drop_boxes()


# -- the same, whatever computes it ---------------------------------------------------------------
numbers = st.floats(-1.5, 1.5)
FORMS: list[tuple[tuple[int, ...], str]] = [((9, 13, 3), "uint8"), ((1, 1, 3), "uint8"), ((5, 2, 4), "uint8"), ((7, 7, 1), "uint8"), ((6, 5), "int64"), ((6, 5), "uint16"), ((8, 3, 2), "uint8"), ((2, 9), "float32"), ((9, 13, 3), "float32"), ((1, 2, 3), "float32"), ((8, 5, 4), "float32"), ((7, 6, 2), "float32"), ((2, 9), "float64"), ((3, 4), "bool"), ((3, 4), "complex128")]  # fmt: skip


@settings(deadline=None, max_examples=75)
@given(form=st.sampled_from(FORMS), way=st.sampled_from(["linear", "nearest"]), m=st.lists(numbers, min_size=6, max_size=6),
       tilt=st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2)), is_affine=st.booleans(), size=st.tuples(st.integers(1, 15), st.integers(1, 15)))  # fmt: skip
def test_machine_code_gives_the_bits_of_numpy(form: Any, way: str, m: list[float], tilt: Any, is_affine: bool, size: Any) -> None:  # fmt: skip
    shape, dtype = form
    if dtype not in ("uint8", "float32"):
        way = "nearest"
    x = noise(1, shape).astype(dtype)
    matrix = (m[0], m[1], 6 * m[2], m[3], m[4], 6 * m[5], *((0.0, 0.0) if is_affine else tilt), 1.0)
    fill = {"bool": 1, "float32": 0.1}.get(dtype, 9)
    memory = np.full(math.prod(size) * math.prod(shape[2:]) * x.itemsize + 64, 77, np.uint8)
    out = memory[32:-32].view(dtype).reshape(*size, *shape[2:])
    found = sampling.seen(np, x, matrix, size, way, fill, out)
    assert found is out or dtype == "complex128"  # of which there is no machine code
    assert (memory[:32] == 77).all()
    assert (memory[-32:] == 77).all()
    around = np.broadcast_to(np.asarray(fill, dtype), shape[2:])
    plain = sampling._nearest if way == "nearest" else sampling._linear
    np.testing.assert_array_equal(found, plain(np, x, matrix, size, around))


def test_nothing_behind_the_image_is_read() -> None:
    """The image ends where memory ends that may be read: a byte more would end the process."""
    code = """
import ctypes, itertools, mmap
import numpy as np
from ostinato.io_pipeline.images import sampling

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
assert protect(first + page, page, 0) == 0
bytes_ = np.frombuffer(memory, np.uint8)
for channels, dtype in itertools.product((1, 2, 3, 4, 5), ("uint8", "float32")):
    for height, width in ((1, 1), (2, 2), (5, 7), (9, 3)):
        size = height * width * channels
        x = bytes_[page - size * np.dtype(dtype).itemsize : page].view(dtype).reshape(height, width, channels)
        x[:] = np.arange(size).reshape(x.shape) % 251
        for matrix in ((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), (0.4, 0.1, -1.0, 0.2, 0.5, -1.0), (-1.0, 0.0, 8.3, 0.0, -1.0, 9.1)):
            for way in ("linear", "nearest"):
                found = sampling.seen(np, x, (*matrix, 0.0, 0.0, 1.0), (12, 13), way)
                other = sampling.seen(np, x.copy(), (*matrix, 0.0, 0.0, 1.0), (12, 13), way)
                assert np.array_equal(found, other)
print("done", flush=True)
import os
os._exit(0)
"""
    if sampling.llvm.why_not() or sys.platform != "linux":
        pytest.skip("there is no machine code here, or no way to ask for such memory")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


@ours
def test_devices_give_the_same_bits(stage: Stage) -> None:
    check_device(stage, noise())
    check_device(stage, (noise() / 255).astype(np.float32))
    check_device(stage, (noise()[..., 0] // 40).astype(np.int64), "mask")
    boxes = np.array([[1, 2, 9, 12], [5, 5, 29, 37]], np.float32)
    check_device(stage, boxes, "boxes", shape=(37, 29, 3))


@ours
def test_forms_are_kept(stage: Stage) -> None:
    if not isinstance(getattr(stage, "fill", 0), tuple):
        for dtype in (np.uint16, np.float16, np.float32, np.float64):
            for channels in (1, 2, 9):
                x = noise(0, (12, 9, channels)).astype(dtype)
                found = run(stage, x)
                assert (found.dtype, found.shape[2]) == (dtype, channels)
    flipped = noise()[:, ::-1]
    np.testing.assert_array_equal(run(stage, flipped), run(stage, np.ascontiguousarray(flipped)))
    upside = noise()[::-1]
    np.testing.assert_array_equal(run(stage, upside), run(stage, np.ascontiguousarray(upside)))


def test_pipes_give_the_same_bits_whatever_the_threads() -> None:
    boxes = np.tile(np.array([[1, 2, 9, 12], [5, 5, 14, 17]], np.float32), (30, 1, 1))
    data = [noise(0, (30, 18, 20, 3)), noise(1, (30, 18, 20)), boxes]
    stages = [
        w.RandomRotate(30),
        w.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5),
        w.RandomPerspective(),
        w.Pad(2),
    ]
    check_threads(stages, data, ["image", "mask", "boxes"])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("rotate", {"angle": "x"}, "angle='x'; needed a number"),
        ("random_rotate", {"degrees": (5, 1)}, r"degrees=\(5, 1\); needed two numbers, the smaller one first"),
        ("affine", {"scale": 0}, "scale=0; needed a number, 0.001 or more"),
        ("affine", {"translate": 1}, "translate=1; needed two numbers"),
        ("affine", {"shear": (90, 0)}, "shear=90; needed a number from -89 to 89"),
        ("random_affine", {"translate": (2, 0)}, "translate=2; needed a number from 0 to 1"),
        ("random_affine", {"shear": 90}, "shear=90; needed a number from 0 to 89"),
        ("random_perspective", {"distortion": 1}, "distortion=1; needed a number from 0 to 0.99"),
        ("rotate", {"angle": 1, "interpolation": "cubic"}, "interpolation='cubic'; needed 'linear' or 'nearest'"),
        ("rotate", {"angle": 1, "least": 2}, "least=2; needed a number from 0 to 1"),
        ("rotate", {"angle": 1, "fill": "red"}, "fill='red'; needed a number, or one for each channel"),
        ("pad", {"pixels": (1, 2, 3)}, r"pixels=\(1, 2, 3\); needed 1, 2 or 4 numbers"),
        ("pad", {"pixels": 1, "mode": "wrap"}, "mode='wrap'; needed 'constant' or 'edge' or 'reflect'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_the_users_line(name: str, given: Any, said: str) -> None:
    pipe = ost.io.arrays(noise(0, (2, 8, 8, 3)))
    with pytest.raises(ArgumentError, match=rf"{name} \(.*test_warps.py:\d+\): got .*{said}"):
        getattr(pipe, name)(**given)
