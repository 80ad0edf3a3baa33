"""Convolutions by windows of one element, and those of one window, are products of matrices on a GPU."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.planner.prediction import runs

import ostinato as ost
from tests.fake_device import CONVOLVING
from tests.ops.test_cudnn import both, close, fresh  # noqa: F401
from tests.sessions import use


def ops_of(f: Any, *given: Any) -> list[str]:
    """What runs forward and back, by the user's own layout of the machine's memory."""

    def all_of(*xs: Any) -> Any:
        y, back = ost.vjp(f, *xs)
        return y, *back(ost.cos(y))

    with use(device=CONVOLVING):
        program = ost.compile(all_of).plan_for(*given).program
    return [n.op for k, n in enumerate(program.graph.nodes) if runs(program, k)]


@pytest.mark.parametrize("seed", range(12))
def test_values_and_slopes(seed: int) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    k, layout = r.choice((1, 2, 2, 3)), r.choice((True, False))
    n, i, o = r.choice((1, 3, 8)), r.choice((1, 4, 17)), r.choice((1, 8, 30))
    one = seed % 3 == 2  # window in all
    space = [r.randrange(3, 9) for _ in range(k)]
    window = space if one else [1] * k
    stride = 1 if one else r.choice((1, 2, 3))
    x = rng.standard_normal((n, *space, i) if layout else (n, i, *space)).astype(np.float32)
    w = rng.standard_normal((*window, i, o) if layout else (o, i, *window)).astype(np.float32)
    last = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[k]
    how: Any = {"stride": stride, "layout": last if layout else "NC" + last[1:-1]}

    def conv(x: Any, w: Any) -> Any:
        return ost.nn.conv(x, w, **how)

    close(*both(conv, x, w), 2e-4)
    ops = ops_of(conv, x, w)
    assert "conv" not in ops or one, ops  # its slopes of images have many windows
    assert ops.count("conv") <= 1


@pytest.mark.parametrize("stride", [1, 2])
def test_nothing_is_copied(stride: int) -> None:
    """Images with channels last and filters as they come, in any dtype of the library; of strided ones what is
    read."""
    x, w = np.ones((4, 24, 24, 32), np.float32), np.ones((48, 32, 1, 1), np.float32)

    def conv(x: Any, w: Any) -> Any:
        y = ost.nn.conv(x.transpose((0, 3, 1, 2)), w, stride=stride)
        return y.transpose((0, 2, 3, 1))

    ops = ops_of(conv, x, w)
    assert ops.count("matmul") + ops.count("fused_matmul") == 3
    assert ops.count("reshape") == (stride > 1) * 2, ops
    assert ops.count("copy") <= 2  # of results that are views


def test_what_has_groups_or_edges_is_left() -> None:
    x, w = np.ones((4, 32, 24, 24), np.float32), np.ones((48, 8, 1, 1), np.float32)
    assert "conv" in ops_of(lambda x, w: ost.nn.conv(x, w, groups=4), x, w)
    assert "conv" in ops_of(
        lambda x, w: ost.nn.conv(x, w, padding=1), x, np.ones((48, 32, 1, 1), np.float32)
    )
