"""Resized images against ONNX's definition, one element after the other, and their gradients."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.helpers import assert_same, on

from .test_gradients import check, pullback

AT = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
ROUND = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def place(i: int, n: int, m: int, s: float, at: str, roi: tuple[float, float]) -> float:
    long = s * n
    if at == "align_corners":
        return i * (n - 1) / (long - 1) if abs(long - 1) > 1e-9 else 0.0
    if at == "asymmetric":
        return i / s
    if at == "tf_crop_and_resize":
        if abs(long - 1) < 1e-9:
            return (roi[0] + roi[1]) * (n - 1) / 2
        return roi[0] * (n - 1) + i * (roi[1] - roi[0]) * (n - 1) / (long - 1)
    if at == "pytorch_half_pixel" and abs(long - 1) < 1e-9:
        return 0.0
    centre = n / 2 * (1 - m / long) if at == "half_pixel_symmetric" else 0.0
    return centre + (i + 0.5) / s - 0.5


def share(t: float, mode: str, a: float) -> float:
    t = abs(t)
    if mode == "linear":
        return max(1 - t, 0.0)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def line(x: Any, m: int, s: float, p: dict[str, Any], roi: tuple[float, float]) -> Any:
    """One axis, the last one."""
    n, out = x.shape[-1], np.zeros((*x.shape[:-1], m))
    at, mode, rounded = (p[k] for k in ("coordinate_transformation_mode", "mode", "nearest_mode"))
    for i in range(m):
        c = round(place(i, n, m, s, at, roi), 13)
        if at == "tf_crop_and_resize" and not 0 <= c <= n - 1:
            out[..., i] = p["extrapolation_value"]
        elif mode == "nearest":
            near = {
                "floor": math.floor(c),
                "ceil": math.ceil(c),
                "round_prefer_floor": math.ceil(c - 0.5),
                "round_prefer_ceil": math.floor(c + 0.5),
            }[rounded]
            out[..., i] = x[..., min(max(near, 0), n - 1)]
        else:
            narrow = min(s, 1.0) if p["antialias"] else 1.0
            far = math.ceil(3 / narrow) + 1
            total = 0.0
            for r in range(math.floor(c) - far, math.floor(c) + far + 1):
                w = share((r - c) * narrow, mode, p["cubic_coeff_a"])
                w *= not p["exclude_outside"] or 0 <= r < n
                total += w
                out[..., i] += w * x[..., min(max(r, 0), n - 1)]
            out[..., i] /= total or 1
    return out


def some(seed: int) -> tuple[Any, dict[str, Any], Any]:
    """Images with channels first, what is asked for, and what should come."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    k = draw.randint(1, 2)
    x = rng.normal(size=(2, 3, *(draw.randint(2, 7) for _ in range(k))))
    mode = draw.choice(("nearest", "linear", "cubic"))
    p: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw.choice(AT),
        "nearest_mode": draw.choice(ROUND),
        "antialias": mode != "nearest" and draw.random() < 0.4,
        "cubic_coeff_a": draw.choice((-0.75, -0.5)),
        "exclude_outside": mode == "cubic" and draw.random() < 0.3,
        "extrapolation_value": 7.0,
        "roi": [(draw.choice((0.0, 0.1)), draw.choice((0.6, 1.2))) for _ in range(k)],
    }
    if p["coordinate_transformation_mode"] != "tf_crop_and_resize":
        p["roi"] = None
    if draw.random() < 0.5:
        p["size"] = tuple(draw.randint(1, 14) for _ in range(k))
        scales = [m / n for m, n in zip(p["size"], x.shape[2:], strict=True)]
    else:
        scales = p["scale"] = [draw.choice((0.5, 0.6, 0.8, 2.0, 3.0, 2.3)) for _ in range(k)]
    y = x
    for d, s in enumerate(scales):
        m = p["size"][d] if "size" in p else math.floor(x.shape[d + 2] * s)
        made = line(np.moveaxis(y, d + 2, -1), m, s, p, (p["roi"] or [(0.0, 1.0)] * k)[d])
        y = np.moveaxis(made, -1, d + 2)
    return x, p, y


@pytest.mark.parametrize("seed", range(60))
def test_resize(seed: int) -> None:
    x, p, wanted = some(seed)
    if seed % 6:
        with on(1):
            made = ost.nn.resize(np.moveaxis(x, 1, -1), layout=("NWC", "NHWC")[x.ndim - 3], **p)
            np.testing.assert_allclose(np.moveaxis(np.asarray(made), -1, 1), wanted, 1e-9, 1e-9)
            return
    assert_same(lambda x: ost.nn.resize(x, **p), lambda x: wanted, x, few=True, rtol=1e-9)
    with on(1):
        check(lambda x: ost.nn.resize(x, **p), x)
        check(pullback(lambda x: ost.nn.resize(x, **p)), x)
        both = ost.vmap(lambda x: ost.nn.resize(x, **p))(np.stack([x, x]))
        np.testing.assert_allclose(np.asarray(both)[1], wanted, 1e-9, 1e-9)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_upsample(mode: Any) -> None:
    x = np.random.default_rng(2).normal(size=(2, 3, 4, 5))
    p: dict[str, Any] = {
        "coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel",
        "nearest_mode": "floor",
        "mode": mode,
    }
    for function, more in (
        (lambda x: ost.nn.upsample(x, 2, mode=mode), {"scale": 2}),
        (lambda x: ost.nn.upsample(x, size=(7, 3), mode=mode), {"size": (7, 3)}),
    ):
        wanted = np.asarray(ost.nn.resize(x, **p, **more))
        assert_same(function, lambda x, y=wanted: y, x, few=True)
    if mode == "nearest":
        y = np.repeat(np.repeat(x, 2, 2), 2, 3)
        np.testing.assert_array_equal(np.asarray(ost.nn.upsample(x, 2)), y)
        whole = ost.nn.upsample(np.arange(6).reshape(1, 1, 6), size=12)
        assert whole.dtype == ost.int64
    corners = ost.nn.upsample(x, size=(9, 9), mode=mode, align_corners=True)
    np.testing.assert_allclose(np.asarray(corners)[:, :, ::8, ::8], x[:, :, ::3, ::4])


def test_what_is_repeated_is_read_once_and_halves_are_mixed_in_float32() -> None:
    """Whole scales are repeats, whose slopes are sums; others read few places, in one kernel."""
    x = np.random.default_rng(0).normal(size=(2, 16, 32, 32))
    with on(1):
        for function, most in (
            (lambda x: ost.nn.upsample(x, 2), 0),
            (lambda x: ost.nn.resize(x, scale=0.5, nearest_mode="ceil"), 0),
            (lambda x: ost.nn.upsample(x, size=(48, 48)), 2),
            (lambda x: ost.nn.upsample(x, 2, mode="linear"), 4),
        ):
            made = ost.compile(function)
            made(ost.asarray(x))
            assert [n.op for n in made.plan.traced.nodes].count("take_near") == most
        fine = ost.compile(lambda x: ost.nn.upsample(x, 2, mode="linear"))
        np.asarray(fine(ost.asarray(x)))
        large = [n for n in fine.plan.program.graph.nodes if n.specs and n.specs[0].size > x.size]
        assert [n.op for n in large if n.op != "broadcast_to"] == ["fused_nest"]
        half = ost.nn.upsample(ost.asarray(x, dtype="float16"), size=(50, 50), mode="cubic")
        assert half.dtype == ost.float16
        exact = np.asarray(ost.nn.upsample(x, size=(50, 50), mode="cubic"))
        np.testing.assert_allclose(np.asarray(half).astype(float), exact, 2e-3, 2e-3)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_repeated_along_all_axes_at_once(layout: str) -> None:
    """Images are written once, and the gradient is one sum."""
    x = np.random.default_rng(5).normal(size=(2, 16, 18, 20))
    up = lambda x: ost.nn.upsample(x, 3, layout=layout)  # noqa: E731
    axes = [d for d, c in enumerate(layout) if c in "HW"]
    wanted = x.repeat(3, axes[0]).repeat(3, axes[1])
    with on(1):
        forward = ost.compile(up)
        np.testing.assert_array_equal(np.asarray(forward(x)), wanted)
        shapes = {n.specs[0].size for n in forward.plan.program.graph.nodes}
        assert shapes == {x.size, wanted.size}
        back = ost.compile(lambda x, g: ost.vjp(up, x)[1](g)[0])
        np.testing.assert_allclose(np.asarray(back(x, wanted)), 9 * x)
        kinds = [n.op for n in back.plan.program.graph.nodes]
    assert kinds == ["reshape", "fused_nest"]


A = ost.ones((1, 2, 4))
WRONG = [
    (lambda: ost.nn.resize(A), ArgumentError, "size=None and scale=None; needed one of the two"),
    (lambda: ost.nn.resize(A, scale=(2, 2)), ArgumentError, "needed one number above 0, or 1"),
    (lambda: ost.nn.upsample(A, 0.0), ArgumentError, "scale=0.0"),
    (lambda: ost.nn.upsample(A, 2, mode="area"), ArgumentError, "mode='area'; needed one of near"),
    (lambda: ost.nn.resize(A[0], 2), ShapeError, "an array of 2 axes"),
    (lambda: ost.nn.resize(A[..., :0], 2), ArgumentError, "needed elements along axis 2"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_upsampling.py:{run.__code__.co_firstlineno}" in str(caught.value)
