"""What is made of a short product on a GPU is made where its sums are: which kernels are left, and values
against NumPy's, by texts that the host runs."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.loops import tiles
from ostinato.planner.gpu import fuse
from ostinato.planner.gpu import take_results as module
from ostinato.planner.prediction import runs

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS, WITH_KERNELS

F32 = "float32"


def any_tiling(*given: Any) -> Any:
    m, n, k, count, dtype, rates, blocks, _ = given
    best = tiles.fastest(m, n, k, count, dtype, rates, False, blocks)
    return best[1] if best is not None else None


def kernels(plan: Any) -> list[str]:
    graph = plan.program.graph
    return [node.op for k, node in enumerate(graph.nodes) if runs(plan.program, k)]


def planned(function: Any, *shapes: Any, **how: Any) -> list[str]:
    given = [ost.spec(s, F32) for s in shapes]
    return kernels(ost.plan(function, *given, device=KERNELS, **{"machine": "h100", **how}))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + ost.exp(-x))


def lstm(x: Any, h: Any, c: Any, w: Any, u: Any) -> Any:
    n, g = h.shape[1], x @ w + h @ u
    i, f, o = (sigmoid(g[:, j * n : (j + 1) * n]) for j in range(3))
    c = f * c + i * ost.tanh(g[:, 3 * n :])
    return o * ost.tanh(c), c


def gru(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    n, s, t = h.shape[1], x @ w, h @ u + b
    r, z = (sigmoid(s[:, k * n : (k + 1) * n] + t[:, k * n : (k + 1) * n]) for k in range(2))
    return (1 - z) * ost.tanh(s[:, 2 * n :] + r * t[:, 2 * n :]) + z * h


def other_gru(x: Any, h: Any, w: Any, u: Any, v: Any) -> Any:
    """Whose candidates are a product of their own."""
    n, s = h.shape[1], x @ w
    t = s[:, : 2 * n] + h @ u
    r, z = sigmoid(t[:, :n]), sigmoid(t[:, n:])
    return z * h + (1 - z) * ost.tanh(s[:, 2 * n :] + (r * h) @ v)


def training(act: Any, *sizes: int) -> Any:
    layers = [(ost.spec((m, n), F32), ost.spec((n,), F32)) for m, n in pairwise(sizes)]

    def loss(layers: Any, x: Any) -> Any:
        for w, b in layers[:-1]:
            x = act(x @ w + b)
        y = x @ layers[-1][0]
        return ost.sum(y * y)

    return ost.plan(
        ost.grad(loss), layers, ost.spec((128, sizes[0]), F32), device=KERNELS, machine="h100"
    )


CELLS: dict[
    str, tuple[Any, list[tuple[int, ...]], int]
] = {  # shapes for 64 units, and kernels of 256
    "lstm": (lstm, [(8, 40), (8, 64), (8, 64), (40, 256), (64, 256)], 2),
    "gru": (gru, [(8, 40), (8, 64), (40, 192), (64, 192), (192,)], 2),
    "other gru": (other_gru, [(8, 40), (8, 64), (40, 192), (64, 128), (64, 64)], 3),
    "elman": (
        lambda x, h, w, u: ost.tanh(x @ w + h @ u),
        [(8, 40), (8, 64), (40, 64), (64, 64)],
        2,
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_gates_are_a_products(name: str) -> None:
    function, shapes, wanted = CELLS[name]
    larger = [tuple([64 if n == 8 else 4 * n for n in shape]) for shape in shapes]
    found = planned(function, *larger)
    assert len(found) == wanted, found
    assert "fused" not in found


@pytest.mark.parametrize("act", [ost.nn.relu, ost.nn.silu, ost.tanh, ost.nn.gelu])
def test_activations_are_their_products(act: Any) -> None:
    """Of three layers forward: what is made behind a product, for slopes, too, is no kernel."""
    found = kernels(training(act, 784, 528, 528, 528, 528))
    assert found.count("fused_tiles") >= 3
    assert "fused" not in found


def test_the_larger_product_stays_the_librarys() -> None:
    assert planned(lambda x, w: ost.tanh(x @ w), (4096, 4096), (4096, 4096)) == ["matmul", "fused"]
    assert planned(lambda x, w: ost.tanh(x @ w), (64, 256), (256, 256)) == ["fused_tiles"]


def test_a_product_that_is_barely_the_librarys_is_ours_with_what_is_behind_it() -> None:
    extents = 528, 528, 128
    assert tiles.tiling_of(*extents, 1, tiles.float32, tiles.H100) is None
    assert planned(lambda x, w: x @ w, (528, 128), (128, 528)) == ["matmul"]
    assert planned(lambda x, w: ost.tanh(x @ w), (528, 128), (128, 528)) == ["fused_tiles"]


def test_what_waits_for_the_product_is_behind_it() -> None:
    def sorted_between(x: Any, w: Any) -> Any:
        y = x @ w
        return ost.exp(y) + ost.sort(y, axis=0)

    def halves_overlap(x: Any, w: Any) -> Any:
        y = x @ w
        return ost.tanh(y[:, :40]) * y[:, 24:]

    def stripes(x: Any, w: Any) -> Any:
        y = x @ w
        return ost.tanh(y[:, ::2]) * y[:, 32:]

    shapes = (64, 256), (256, 64)
    assert "fused_tiles" not in planned(sorted_between, *shapes)
    assert "fused_tiles" not in planned(halves_overlap, *shapes)
    assert "fused_tiles" not in planned(stripes, *shapes)
    assert "fused_tiles" not in planned(
        lambda x, w: ost.tanh(x @ w), *shapes, numerics="any-workers"
    )


def test_two_products_that_read_each_others_kernels_are_no_cycle() -> None:
    """Each kernel reads both products' values, by way of another operation."""

    def crossed(x: Any, w: Any, u: Any) -> Any:
        y, z = x @ w, x @ u
        return ost.tanh(y) * ost.sort(z, axis=0), ost.tanh(z) * ost.sort(y, axis=0)

    found = planned(crossed, (64, 256), (256, 64), (256, 64))
    assert found.count("matmul") + found.count("fused_tiles") == 2
    assert found.count("fused_tiles") <= 1


VALUES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    **{name: (function, shapes) for name, (function, shapes, _) in CELLS.items()},
    "a stack": (lambda x, w, r: ost.tanh(0.5 * (x @ w) + r), [(3, 9, 20), (3, 20, 60), (60,)]),
    "the product, too": (lambda x, w: (x @ w, ost.exp(x @ w), x @ w > 0), [(9, 400), (400, 30)]),
    "a column": (lambda x, w, c: ost.sin(x @ w - c) * c, [(9, 400), (400, 30), (9, 1)]),
    "made before and behind": (lambda x, m, w: ost.exp((x - m) @ w), [(70, 129), (129,), (129, 9)]),
    "turned": (lambda x, w: ost.tanh(w.T @ x.T) * 2, [(9, 400), (400, 30)]),
    "two columns": (lambda x, w: ost.tanh(x @ w) - 1, [(90, 600), (600, 2)]),
}


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "tiling_of", any_tiling)
    monkeypatch.setattr(fuse, "_staged", lambda *_, **__: [])  # as on a GPU, which has larger ones
    monkeypatch.setattr(WITH_KERNELS, "has_own_kernels", own)
    function, shapes = VALUES[name]
    rng = np.random.default_rng(math.prod(shapes[0]))
    given = [(rng.standard_normal(s) / 2).astype("f4") for s in shapes]
    wanted = function(*(ost.asarray(x.astype("f8")) for x in given))
    with ost.connect(device=KERNELS):
        f = ost.compile(function)
        got = [f(*given) for _ in range(2)]
    assert "fused_tiles" in kernels(f.plan)
    some = [x if isinstance(x, tuple) else (x,) for x in (wanted, *got)]
    for right, first, second in zip(*some, strict=True):
        np.testing.assert_allclose(np.asarray(first), np.asarray(right), 1e-4, 1e-4)
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_nan_stays_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "_staged", lambda *_, **__: [])
    x, w = np.ones((9, 600), np.float32), np.ones((600, 40), np.float32)
    x[2, 1] = np.nan
    with ost.connect(device=KERNELS):
        f = ost.compile(lambda x, w: ost.nn.relu(x @ w))
        got = np.asarray(f(x, w))
    assert kernels(f.plan) == ["fused_tiles"]
    assert np.isnan(got[2]).all()
    assert (np.delete(got, 2, 0) == 600).all()
