"""Products under `mixed_bf16`: what is rounded, how often, and that all the rest stays float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ostinato.ops.core.graph import Node
from ostinato.ops.core.show import parse
from ostinato.ops.core.spec import bfloat16, float32
from ostinato.ops.cpu.fused import WITH_PRODUCT
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels import gemm_tiles
from ostinato.ops.cpu.libraries import onednn
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes.precision import mix_precision
from ostinato.planner.plan import Plan, Target

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.trust.forge import packed

BF16 = np.dtype(ml_dtypes.bfloat16)
MIXED = Target((1,), precision="mixed_bf16")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(BF16).astype(np.float64)


def mixed(f: Callable[..., Any]) -> Any:
    return ost.compile(f, precision="mixed_bf16")  # type: ignore[call-overload]


def casts(graph: Any) -> int:
    return sum(
        node.op == "astype" and node.kw["dtype"] == BF16 for node in graph.nodes
    ) + sum(casts(g) for node in graph.nodes for _, g in node.subgraphs())  # fmt: skip


def test_the_pass() -> None:
    before = parse("""
        (%0: float32[4,6], %1: float32[6,4], %2: float64[4,4])
        %3 = matmul(%0, %1) : float32[4,4]
        %4 = permute_dims(%0; axes=(1, 0)) : float32[6,4]
        %5 = matmul(%4, %3) : float32[6,4]
        %6 = matmul(%2, %2) : float64[4,4]
        return %5, %6
    """)
    after = parse("""
        (%0: float32[4,6], %1: float32[6,4], %2: float64[4,4])
        %3 = astype(%0; dtype=dtype bfloat16) : bfloat16[4,6]
        %4 = astype(%3; dtype=dtype float32) : float32[4,6]
        %5 = permute_dims(%4; axes=(1, 0)) : float32[6,4]
        %6 = astype(%1; dtype=dtype bfloat16) : bfloat16[6,4]
        %7 = astype(%6; dtype=dtype float32) : float32[6,4]
        %8 = matmul(%4, %7) : float32[4,4]
        %9 = astype(%8; dtype=dtype bfloat16) : bfloat16[4,4]
        %10 = astype(%9; dtype=dtype float32) : float32[4,4]
        %11 = matmul(%5, %10) : float32[6,4]
        %12 = matmul(%2, %2) : float64[4,4]
        return %11, %12
    """)
    assert mix_precision(before, MIXED) == after
    assert mix_precision(after, MIXED) == after
    assert mix_precision(before, Target((1,))) is before


def wide_products(f: Any) -> list[Node]:
    """Products of halves, in kernels too."""
    nodes = f.plan.program.graph.nodes
    inside = [m for n in nodes if n.op in WITH_PRODUCT for m in n.kw["body"].nodes]
    return [n for n in (*nodes, *inside) if n.op == "wide_matmul"]


@pytest.mark.parametrize("shape", [(3, 5, 4), (130, 300, 97), (1, 700, 30)])
@pytest.mark.parametrize("how", ["here", "without bfloat16", "two workers", "any-workers"])
def test_products_of_rounded_numbers(
    shape: tuple[int, int, int], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = shape
    a, b = numbers(m, k), numbers(k, n, seed=1)
    if how == "without bfloat16":
        monkeypatch.setattr("ostinato.ops.cpu.cpu_device.can_widen", lambda *_: False)
    numerics = "any-workers" if how == "any-workers" else "same-plan"
    with ost.connect(workers=2 if how == "two workers" else 1, numerics=numerics):
        f = mixed(lambda a, b: ost.tanh(a @ b))
        y = f(ost.asarray(a, split=0), ost.asarray(b))
        assert y.dtype == np.float32
        right = rounded(a) @ rounded(b)
        size = np.abs(rounded(a)) @ np.abs(rounded(b))
        assert (np.abs(np.asarray(y) - np.tanh(right)) <= size * k * 2.0**-23 + 1e-6).all()
        wide = len(wide_products(f))
        if how == "without bfloat16" or how == "any-workers":
            assert wide == 0
        elif onednn.can_widen(BF16, BF16, np.dtype("float32")):
            assert wide == 1


def test_a_value_is_rounded_once() -> None:
    x, w, v = numbers(40, 30), numbers(30, 20, seed=1), numbers(30, 10, seed=2)

    def f(x: Any, w: Any, v: Any) -> Any:
        return x @ w, x @ v, x.T @ (x @ w), ost.reshape(x, (30, 40)) @ x

    g = mixed(f)
    made = g(*map(ost.asarray, (x, w, v)))
    assert casts(g.plan.lowered) == 4  # x, w, v, x @ w
    r = rounded(x)
    np.testing.assert_allclose(np.asarray(made[3]), r.reshape(30, 40) @ r, atol=1e-5)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(
    not onednn.can_widen(BF16, BF16, np.dtype("float32")), reason="no products of bfloat16"
)
def test_casts_are_in_the_kernels_that_make_a_value() -> None:
    x, w, b = numbers(200, 160), numbers(160, 160, seed=1), numbers(160, seed=2)
    f = mixed(lambda x, w, b: ost.tanh(x @ w + b) @ w)
    f(*map(ost.asarray, (x, w, b)))
    assert "astype" not in [n.op for n in f.plan.program.graph.nodes]
    assert len(wide_products(f)) == 2
    nodes = f.plan.program.graph.nodes
    bodies = [n.kw["body"] for n in nodes if n.op in ("fused", "fused_matmul")]
    assert [s.dtype for s in bodies[-1].out_specs] == [BF16]  # the rest of tanh never is in memory


tiled = pytest.mark.skipif(
    gemm_tiles.gemm_key(bfloat16, right=float32) is None, reason="no tiles of bfloat16"
)


@tiled
def test_products_round_the_weights_that_they_read() -> None:
    """A step of a network has no copy of its weights, and is three kernels for a layer."""
    x, t = numbers(128, 96), numbers(128, 96, seed=5)
    layers = [(numbers(96, 96, seed=k) * 0.1, numbers(96, seed=9)) for k in range(3)]

    def loss(layers: Any, x: Any, t: Any) -> Any:
        for w, b in layers:
            x = ost.tanh(x @ w + b)
        return ((x - t) ** 2).sum()

    def step(layers: Any, x: Any, t: Any) -> Any:
        return ost.tree_map(lambda p, g: p - 1e-2 * g, layers, ost.grad(loss)(layers, x, t))

    f = ost.compile(step, precision="mixed_bf16", donate=("layers",))
    made = f(*ost.tree_map(ost.asarray, (layers, x, t)))
    nodes = f.plan.program.graph.nodes
    products = [n for n in nodes if n.op == "fused_matmul"]
    assert len(products) == 8  # three layers, without the slope of x
    assert [n.op for n in nodes].count("wide_matmul") == 0
    rounded_late = [n for n in products if n.kw["body"].inputs[1].dtype == np.float32]
    assert len(rounded_late) == 5  # forward, and the slopes of what is between layers
    assert {v for v, _ in f.plan.program.reuse} >= {0, 2, 4}
    values, r = [x.astype(np.float64)], rounded
    for w, b in layers:
        values.append(np.tanh(r(values[-1]) @ r(w) + b))
    g = 2 * (values[-1] - t)
    for k in (2, 1, 0):
        g = g * (1 - values[k + 1] ** 2)
        w, b = layers[k]
        right = w - 1e-2 * (r(values[k]).T @ r(g)), b - 1e-2 * g.sum(0)
        for y, exact in zip(made[k], right, strict=True):
            np.testing.assert_allclose(np.asarray(y), exact, rtol=1e-2, atol=2e-3)
        g = r(g) @ r(w).T


@tiled
def test_a_product_that_rounds_may_be_alone() -> None:
    """What it rounds is an operand of the plan; what is made on the way is rounded where it is made."""
    x, w = numbers(130, 96), numbers(96, 80, seed=1)
    f = mixed(lambda x, w: (x @ w, (x * 2) @ w))
    made = f(ost.asarray(x), ost.asarray(w))
    for y, left in zip(made, (x, x * 2), strict=True):
        np.testing.assert_allclose(np.asarray(y), rounded(left) @ rounded(w), atol=1e-4)
    odd = numbers(130, 97), numbers(97, 80)  # pairs would not come out even
    y = mixed(lambda x, w: ost.exp(x @ w))(*map(ost.asarray, odd))
    np.testing.assert_allclose(np.asarray(y), np.exp(rounded(odd[0]) @ rounded(odd[1])), rtol=1e-4)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_kernels_round_as_numpy_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    special = [
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0xFF800001,
        0x7F7FFFFF,
        1,
        0x3F808000,
    ]
    x = np.concatenate([bits, np.array(special, np.uint32)]).view(np.float32)
    f = ost.compile(lambda x: (ost.abs(x).astype(ost.bfloat16), (-x).astype(ost.bfloat16)))
    made = f(ost.asarray(x))
    assert "astype" not in [n.op for n in f.plan.program.graph.nodes]
    with np.errstate(all="ignore"):
        for y, right in zip(made, (np.abs(x).astype(BF16), (-x).astype(BF16)), strict=True):
            np.testing.assert_array_equal(np.asarray(y).view(np.uint16), right.view(np.uint16))
    three = ost.asarray(1.5, dtype=ost.bfloat16)
    g = ost.compile(lambda h: h.astype(ost.float32) * three.astype(ost.float32))
    h = np.resize(np.asarray(made[1]), 40_000)
    y = np.asarray(g(ost.asarray(h)))
    assert "astype" not in [n.op for n in g.plan.program.graph.nodes]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, h.astype(np.float32) * 1.5)


def test_gradients_go_through() -> None:
    x, w, v = numbers(60, 50), numbers(50, 40, seed=1), numbers(40, 7, seed=2)

    def loss(w: Any, v: Any, x: Any) -> Any:
        return (ost.tanh(x @ w) @ v).sum() / 60

    slopes = mixed(ost.grad(loss, argnums=(0, 1)))(*map(ost.asarray, (w, v, x)))
    exact = ost.compile(ost.grad(loss, argnums=(0, 1)))(*map(ost.asarray, (w, v, x)))
    for found, right in zip(slopes, exact, strict=True):
        assert found.dtype == np.float32
        size = np.linalg.norm(np.asarray(right))
        assert 0 < np.linalg.norm(np.asarray(found) - np.asarray(right)) < 2.0**-7 * size


def test_training_comes_as_far() -> None:
    x, right = numbers(256, 30), numbers(30, 4, seed=1)
    y = np.tanh(x @ right)

    def trained(precision: str) -> tuple[float, Any]:
        @ost.compile(precision=precision)
        def step(w: Any, x: Any, y: Any) -> Any:
            g = ost.grad(lambda w: ((ost.tanh(x @ w) - y) ** 2).mean())(w)
            return w - 3.0 * g

        w, given, wanted = map(ost.asarray, (np.zeros((30, 4), np.float32), x, y))
        for _ in range(150):
            w = step(w, given, wanted)
        return float(((np.tanh(x @ np.asarray(w)) - y) ** 2).mean()), w

    start, (mixed_end, w), (end, _) = (y**2).mean(), trained("mixed_bf16"), trained("as-written")
    assert w.dtype == np.float32
    assert (np.asarray(w) != rounded(np.asarray(w))).any()  # master weights keep all their bits
    assert end < 1e-3 * start
    assert mixed_end < 3e-3 * start


def test_in_loops_and_where_nothing_is_float32() -> None:
    x, w = numbers(20, 16), numbers(16, 16, seed=1)
    f = mixed(lambda x, w: ost.repeat(2, lambda x: ost.tanh(x @ w), x))
    y = np.asarray(f(ost.asarray(x), ost.asarray(w)))
    right = x
    for _ in range(2):
        right = np.tanh(rounded(right) @ rounded(w)).astype(np.float32)
    np.testing.assert_allclose(y, right, atol=5e-3)
    g = mixed(lambda x, w: x @ w)
    g(ost.asarray(x.astype(float)), ost.asarray(w.astype(float)))
    assert casts(g.plan.lowered) == 0


def test_it_is_part_of_the_plan(tmp_path: Path) -> None:
    a, b = ost.asarray(numbers(8, 8)), ost.asarray(numbers(8, 8, seed=1))
    f, g = ost.compile(ost.matmul), mixed(ost.matmul)
    f(a, b), g(a, b)
    assert f.plan.id != g.plan.id
    assert "precision mixed_bf16" in g.plan.explain()
    assert "precision" in str(g.plan.diff(f.plan))
    with ost.connect(precision="mixed_bf16"):
        h = ost.compile(ost.matmul)
        y = h(ost.asarray(numbers(8, 8)), ost.asarray(numbers(8, 8, seed=1)))
        assert h.plan.id == g.plan.id
        as_read = ost.asarray(numbers(8, 8)) @ ost.asarray(numbers(8, 8, seed=1))
        np.testing.assert_array_equal(np.asarray(as_read), np.asarray(y))
    g.plan.to_file(tmp_path / "p")
    again = Plan.from_file(tmp_path / "p")
    assert again == g.plan
    np.testing.assert_array_equal(np.asarray(ost.run(again, a, b)), np.asarray(g(a, b)))


def test_a_file_that_rounds_elsewhere_is_refused() -> None:
    a, b = ost.asarray(numbers(8, 8)), ost.asarray(numbers(8, 8, seed=1))
    f, g = ost.compile(ost.matmul), mixed(ost.matmul)
    f(a, b), g(a, b)
    plain, good = (json.loads(encode_plan(p.plan).partition(b"\n")[2]) for p in (f, g))
    assert decode_plan(packed(good)) == g.plan
    for changed, message in (
        ({**good, "program": plain["program"]}, "something else than its source"),
        ({**plain, "program": good["program"]}, "something else than its source"),
        ({**good, "precision": "as-written"}, "something else than its source"),
        ({**good, "precision": "mixed_int3"}, "precision 'mixed_int3'"),
    ):
        with pytest.raises(Exception, match=message):
            decode_plan(packed(changed))


def test_policies_that_are_none() -> None:
    with pytest.raises(
        ArgumentError,
        match="got precision='fp8'; needed 'as-written' or 'f32' or 'f64' or 'mixed_bf",
    ):
        ost.connect(precision="fp8")
    with pytest.raises(ArgumentError, match=r"compile.*precision='half'"):
        ost.compile(lambda x: x, precision="half")  # type: ignore[call-overload]
