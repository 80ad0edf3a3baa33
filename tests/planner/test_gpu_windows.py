"""Convolutions on a GPU without a library for them: products of copied windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.planner.prediction import runs

import ostinato as ost
from tests.fake_device import CONVOLVING, KERNELS

CASES = [  # images, filters, and how
    ((3, 8, 9, 10), (24, 8, 4, 5), {"padding": 2}),
    ((2, 9, 12, 11), (20, 9, 4, 4), {"padding": ((1, 2), (0, 3)), "stride": (2, 1)}),
    ((2, 16, 40), (17, 16, 9), {"dilation": 2, "padding": "same"}),
    ((2, 5, 6, 7, 5), (16, 5, 3, 3, 3), {"padding": 1, "stride": 2}),
    ((2, 12, 12, 16), (3, 3, 16, 18), {"padding": 1, "layout": "NHWC"}),
]


def slopes(how: dict[str, Any], weight: Any) -> Any:
    return ost.grad(lambda x, w: ost.sum(ost.nn.conv(x, w, **how) * weight), (0, 1))


def ops_of(f: Any, *specs: Any, **more: Any) -> list[str]:
    return [n.op for n in ost.plan(f, *specs, device=KERNELS, **more).program.graph.nodes]


@pytest.mark.parametrize(("x", "w", "how"), CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_slopes(x: Any, w: Any, how: Any, dtype: str) -> None:
    draw = np.random.default_rng(1)
    a, b = (draw.standard_normal(s).astype(dtype) for s in (x, w))
    wanted = ost.nn.conv(a, b, **how).numpy()
    g = draw.standard_normal(wanted.shape).astype(dtype)
    expected = [v.numpy() for v in slopes(how, g)(ost.asarray(a), ost.asarray(b))]
    near = 2e-5 if dtype == "float32" else 1e-12
    with ost.connect(1, device=KERNELS):
        made = ost.compile(lambda x, w: ost.nn.conv(x, w, **how))(ost.asarray(a), ost.asarray(b))
        np.testing.assert_allclose(made.numpy(), wanted, rtol=near, atol=near * 30)
        found = ost.compile(slopes(how, ost.asarray(g)))(ost.asarray(a), ost.asarray(b))
        for one, other in zip(found, expected, strict=True):
            scale = np.abs(other).max()
            np.testing.assert_allclose(one.numpy(), other, rtol=near, atol=near * scale)


def test_large_ones_are_one_product_each() -> None:
    x, w = ost.spec((32, 3, 224, 224), "float32"), ost.spec((64, 3, 7, 7), "float32")
    how: dict[str, Any] = {"padding": 3, "stride": 2}
    f = slopes(how, 1.0)
    ops = ops_of(f, x, w, machine="h200")
    # the slopes of filters are a sum over 401,408 places, which the operation's own kernel makes
    # by as many calls
    assert ops.count("matmul") == 1
    x, w = ost.spec((32, 64, 56, 56), "float32"), ost.spec((64, 64, 3, 3), "float32")
    assert ops_of(slopes({"padding": 1}, 1.0), x, w, machine="h200").count("matmul") == 2
    assert "conv" not in ops_of(slopes({"padding": 1}, 1.0), x, w, machine="h200")


def test_halves_are_multiplied_as_they_are() -> None:
    x, w = ost.spec((32, 64, 56, 56), "float32"), ost.spec((64, 64, 3, 3), "float32")
    ops = ops_of(lambda x, w: ost.nn.conv(x, w), x, w, machine="h200", precision="mixed_bf16")
    assert "wide_matmul" in ops
    assert "wide_conv" not in ops


def test_small_ones_stay_kernels() -> None:
    x, w = ost.spec((8, 1, 28, 28), "float32"), ost.spec((4, 1, 3, 3), "float32")
    assert "matmul" not in ops_of(lambda x, w: ost.nn.conv(x, w), x, w, machine="h200")


def test_windows_are_not_copied_where_memory_is_short() -> None:
    x, w = ost.spec((32, 64, 56, 56), "float32"), ost.spec((64, 64, 3, 3), "float32")
    f = lambda x, w: ost.nn.conv(x, w, padding=1)  # noqa: E731
    assert "matmul" not in ops_of(f, x, w, machine="h200", memory_limit=1_000_000_000)


@pytest.mark.parametrize("device", [KERNELS, CONVOLVING])
def test_chains_turn_images_at_their_ends_only(device: str) -> None:
    def chain(x: Any, ws: Any, b: Any) -> Any:
        for w in ws:
            x = ost.nn.relu(ost.nn.conv(x, w, b, padding=1))
        return ost.sum(ost.nn.conv(ost.nn.max_pool(x, 2), ws[0]) ** 2)

    draw = np.random.default_rng(0)
    ws = [draw.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12 for _ in range(5)]
    x, b = draw.standard_normal((4, 16, 12, 12)).astype(np.float32), np.ones(16, np.float32)
    slopes = ost.grad(chain, (0, 1))
    gx, gws = ost.compile(slopes)(ost.asarray(x), [*map(ost.asarray, ws)], ost.asarray(b))
    with ost.connect(1, device=device):
        f = ost.compile(chain)
        f(ost.asarray(x), [*map(ost.asarray, ws)], ost.asarray(b))
        program = f.plan.program
        copied = [
            n
            for k, n in enumerate(program.graph.nodes)
            if n.op in ("copy", "reshape") and runs(program, k)
            if n.specs[0].size == x.size and n.specs[0].shape[0] == len(x)
        ]
        assert len(copied) <= 1, program.graph
        found = ost.compile(slopes)(ost.asarray(x), [*map(ost.asarray, ws)], ost.asarray(b))
        for one, other in zip((found[0], *found[1]), (gx, *gws), strict=True):
            near = 3e-5 * np.abs(other.numpy()).max()
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=near)
