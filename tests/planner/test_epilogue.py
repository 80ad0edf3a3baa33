"""Products with what is elementwise behind them: which operations join, and that they are right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Spec, bfloat16, float32
from ostinato.ops.cpu.fused import WITH_PRODUCT
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels import gemm_epilogue, gemm_tiles, turned_gemm
from ostinato.ops.cpu.libraries import onednn

import ostinato as ost

pytestmark = pytest.mark.skipif(
    bool(why_not()) or isinstance(onednn.library(), str), reason="no kernels, or no oneDNN"
)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(np.float32)


def ops_of(f: Any) -> list[str]:
    return [n.op for n in f.plan.program.graph.nodes]


def run(f: Any, *arrays: np.ndarray, **how: Any) -> tuple[Any, list[str]]:
    compiled = ost.compile(f, **how)
    made = compiled(*(ost.asarray(x) for x in arrays))
    return ost.tree_map(np.asarray, made), ops_of(compiled)


STEPS: dict[str, Any] = {
    "bias": lambda xp, y, b, r: y + b,
    "residual": lambda xp, y, b, r: y - r * 0.5,
    "relu": lambda xp, y, b, r: xp.maximum(y, xp.zeros_like(b)),
    "mask": lambda xp, y, b, r: xp.where(r > 0, y, y * 0.25),
    "tanh": lambda xp, y, b, r: xp.tanh(y),
    "square": lambda xp, y, b, r: y * y * 0.1,
    "column": lambda xp, y, b, r: y + r[:, :1],
    "turned": lambda xp, y, b, r: y + r[::-1],
}


@settings(deadline=None, max_examples=30)
@given(
    shape=st.tuples(st.sampled_from([96, 130, 333]), st.sampled_from([16, 70, 129]),
                    st.sampled_from([70, 200])),
    turned=st.tuples(st.booleans(), st.booleans()),
    batch=st.sampled_from([(), (3,)]),
    chain=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    rows=st.sampled_from([None, "sum", "max"]),
    kept=st.booleans(),
)  # fmt: skip
def test_chains_behind_products(
    shape: Any, turned: Any, batch: Any, chain: list[str], rows: Any, kept: bool
) -> None:
    m, n, k = shape
    a, b = numbers(*batch, m, k), numbers(*batch, k, n, seed=1)
    given_ = [np.ascontiguousarray(np.swapaxes(x, -1, -2)) if t else x
              for x, t in zip((a, b), turned, strict=True)]  # fmt: skip
    bias, r = numbers(n, seed=2), numbers(m, n, seed=3)

    def f(xp: Any, a: Any, b: Any, bias: Any, r: Any) -> Any:
        a, b = (xp.swapaxes(x, -1, -2) if t else x for x, t in zip((a, b), turned, strict=True))
        product = y = a @ b
        for step in chain:
            y = STEPS[step](xp, y, bias, r)
        made = [y, product] if kept else [y]
        return [*made, getattr(xp, rows)(y, axis=-1)] if rows else made

    made, ops = run(lambda *xs: f(ost, *xs), *given_, bias, r)
    assert sum(op in WITH_PRODUCT for op in ops) == 1
    assert "matmul" not in ops
    right = f(np, *(x.astype(np.float64) for x in (*given_, bias, r)))
    for y, exact in zip(made, right, strict=True):
        np.testing.assert_allclose(y, exact, rtol=2e-5 * k, atol=2e-6 * k)


SIDE = 80


def program(xp: Any, r: random.Random, xs: Sequence[Any]) -> list[Any]:
    """A few operations on square matrices, a row, and a stack; many are products."""
    values = list(xs)
    for _ in range(r.randint(3, 10)):
        square = [v for v in values if v.shape == (SIDE, SIDE)]
        a, b = r.choice(square), r.choice(square)
        made: list[Callable[[], Any]] = [
            *[lambda a=a, b=b: (a @ b) * 0.02] * 3,  # type: ignore[misc]
            lambda a=a: xp.tanh(a),
            lambda a=a: a + r.choice([v for v in values if v.ndim < 3]),
            lambda a=a, b=b: a * b,
            lambda a=a: a.T,
            lambda a=a: a.sum(r.choice((0, 1))) * 0.1,
            lambda a=a: xp.max(a, axis=1),
            lambda a=a: a[None] + values[3],
            lambda a=a, b=b: xp.where(a > 0, b, a * 0.5),
        ]
        values.append(r.choice(made)())
    return [v for v in values[4:] if r.random() < 0.5] or values[-1:]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 30), st.booleans())
def test_random_programs_with_products(seed: int, given_away: bool) -> None:
    xs = [numbers(*s) for s in ((SIDE, SIDE), (SIDE, SIDE), (SIDE,), (3, SIDE, SIDE))]
    found, _ = run(
        lambda a, b, c, d: program(ost, random.Random(seed), [a, b, c, d]),
        *xs,
        donate=("a", "c") if given_away else (),
    )
    right = program(np, random.Random(seed), [x.astype(np.float64) for x in xs])
    for y, exact in zip(found, right, strict=True):
        assert np.abs(y - exact).max() <= 2e-3 * np.abs(exact).max()


def test_a_step_of_a_network_in_few_kernels() -> None:
    """A layer is three products with all that is behind: forward, the slope of its input, its new
    weights.
    """
    x, t = numbers(128, 200), numbers(128, 96, seed=5)
    layers = [(numbers(m, n, seed=k), numbers(n, seed=9)) for k, (m, n) in
              enumerate(((200, 160), (160, 112), (112, 96)))]  # fmt: skip

    def loss(layers: Any, x: Any, t: Any) -> Any:
        for w, b in layers[:-1]:
            x = ost.nn.relu(x @ w + b)
        w, b = layers[-1]
        return ((x @ w + b - t) ** 2).sum()

    def step(layers: Any, x: Any, t: Any) -> Any:
        return ost.tree_map(lambda p, g: p - 1e-3 * g, layers, ost.grad(loss)(layers, x, t))

    f = ost.compile(step)
    operands = ost.tree_map(ost.asarray, (layers, x, t))
    made = ost.tree_map(np.asarray, f(*operands))
    ops = ops_of(f)
    assert ops.count("fused_matmul") == 8
    assert ops.count("matmul") == 0
    rest = [op for op in ops if op not in ("fused_matmul", "matmul", "permute_dims", "constant")]
    assert set(rest) <= {"fused_nest", "sum", "multiply", "subtract"}  # the loss, and short biases
    values = [x.astype(np.float64)]
    for w, b in layers:
        values.append(values[-1] @ w + b)
        if w is not layers[-1][0]:
            values[-1] = np.maximum(values[-1], 0)
    g = 2 * (values[-1] - t)
    for k in (2, 1, 0):
        w, b = layers[k]
        np.testing.assert_allclose(made[k][0], w - 1e-3 * (values[k].T @ g), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(made[k][1], b - 1e-3 * g.sum(0), rtol=1e-3, atol=1e-4)
        g = (g @ w.T) * (values[k] > 0)


def test_new_weights_take_the_place_of_old_ones() -> None:
    w, x, g = numbers(160, 160), numbers(128, 160, seed=1), numbers(128, 160, seed=2)
    f = ost.compile(lambda w, x, g: w - 0.5 * (x.T @ g), donate=("w",))
    y = f(ost.asarray(w), ost.asarray(x), ost.asarray(g))
    assert "fused_matmul" in ops_of(f)
    assert f.plan.program.reuse == ((0, 0),)
    np.testing.assert_allclose(np.asarray(y), w - 0.5 * (x.T @ g), atol=1e-4)


def test_layers_of_one_shape_wait_for_nothing_of_each_other() -> None:
    """Each product's kernel makes the momenta and weights of its layer in their places, and no others'."""
    x = numbers(128, 64)
    layers = [numbers(64, 64, seed=k) * 0.1 for k in range(4)]

    @ost.compile(donate=("state",))
    def step(state: Any, x: Any) -> Any:
        def loss(layers: Any) -> Any:
            y = x
            for w in layers:
                y = ost.tanh(y @ w)
            return (y**2).sum()

        layers, momenta = state
        momenta = [0.9 * m + g for m, g in zip(momenta, ost.grad(loss)(layers), strict=True)]
        return [w - 0.1 * m for w, m in zip(layers, momenta, strict=True)], momenta

    state = ost.tree_map(ost.asarray, (layers, [np.ones_like(w) for w in layers]))
    step(state, ost.asarray(x))
    program, graph = step.plan.program, step.plan.program.graph
    updates = [graph.nodes[k] for k in {graph.producers[v] for v in graph.outputs}]
    assert [(n.op, len(n.specs)) for n in updates] == [("fused_matmul", 2)] * 4
    assert len(program.reuse) >= 6  # the last layer is read by the one before it


def test_a_matrix_of_the_product_keeps_its_place() -> None:
    """Other blocks still read what is given away, if it is multiplied, too."""
    w = numbers(160, 160)
    x = numbers(160, 160, seed=1)
    f = ost.compile(lambda w, x: w - 0.5 * (w @ x), donate=("w",))
    y = f(ost.asarray(w), ost.asarray(x))
    assert "fused_matmul" in ops_of(f)
    assert f.plan.program.reuse == ()
    np.testing.assert_allclose(np.asarray(y), w - 0.5 * (w @ x), atol=1e-4)


def test_what_is_reduced_of_rows_takes_no_operands_place() -> None:
    """All rows read the bias, also those after the first ones' maxima are written."""
    b, x, w = numbers(160), numbers(160, 100, seed=1), numbers(100, 160, seed=2)
    f = ost.compile(lambda b, x, w: (x @ w + b).max(1), donate=("b",))
    y = f(ost.asarray(b), ost.asarray(x), ost.asarray(w))
    assert "fused_matmul_rows" in ops_of(f)
    np.testing.assert_allclose(np.asarray(y), (x @ w + b).max(1), atol=1e-4)


def test_in_loops_and_by_the_ops_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = numbers(100, 100) * 0.1, numbers(130, 100, seed=1)

    def f(x: Any, w: Any) -> Any:
        return ost.repeat(3, lambda x: ost.tanh(x @ w + 0.5), x)

    right = x.astype(np.float64)
    for _ in range(3):
        right = np.tanh(right @ w + 0.5)
    made, _ = run(f, x, w)
    np.testing.assert_allclose(made, right, atol=1e-5)
    monkeypatch.setattr(gemm_epilogue, "_in_blocks", lambda *_: None)  # product, then the rest
    made, _ = run(f, x, w)
    np.testing.assert_allclose(made, right, atol=1e-5)
    monkeypatch.setattr(gemm_epilogue, "_in_turn", lambda *_: None)  # node by node
    made, _ = run(f, x, w)
    np.testing.assert_allclose(made, right, atol=1e-5)


def test_matrices_that_sgemm_cannot_read() -> None:
    a, b = numbers(130, 200), numbers(100, 96, seed=1)
    made, ops = run(lambda a, b: ost.exp(a[:, ::2] @ b) + 1, a, b)
    assert "fused_matmul" in ops
    np.testing.assert_allclose(made, np.exp(a[:, ::2] @ b) + 1, rtol=1e-4)


@pytest.mark.parametrize("heads", ["both", "left", "rows"])
def test_heads_that_lie_between_each_other(heads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of matrices that are no one axis; the right ones may be the same for some of them."""
    monkeypatch.setattr(gemm_epilogue, "_in_turn", None)  # the product is nowhere as a whole
    q, k, c = numbers(5, 90, 3, 72), numbers(5, 84, 3, 72, seed=1), numbers(3, 1, 84, seed=2)

    def f(xp: Any, q: Any, k: Any, c: Any) -> Any:
        left, right = xp.permute_dims(q, (0, 2, 1, 3)), xp.permute_dims(k, (0, 2, 3, 1))
        y = left @ (right[:, :1] if heads == "left" else right) + c
        return xp.max(y, axis=-1) if heads == "rows" else xp.tanh(y)

    made, ops = run(lambda *xs: f(ost, *xs), q, k, c)
    assert {*ops} & {"fused_matmul", "fused_matmul_rows"}
    np.testing.assert_allclose(made, f(np, q, k, c), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_with_several_threads(threads: int) -> None:
    with ost.connect(threads=threads) if threads < 3 else ost.connect(workers=2):
        a, b, c = numbers(301, 200), numbers(200, 130, seed=1), numbers(130, seed=2)
        for split in (None, 0) if threads == 3 else (None,):
            f = ost.compile(lambda a, b, c: (ost.tanh(a @ b + c), (a @ b).max(1)))
            y, z = f(ost.asarray(a, split=split), ost.asarray(b), ost.asarray(c))
            assert "fused_matmul_rows" in ops_of(f)
            right = a.astype(np.float64) @ b
            np.testing.assert_allclose(np.asarray(y), np.tanh(right + c), atol=1e-5)
            np.testing.assert_allclose(np.asarray(z), right.max(1), atol=1e-4)


@pytest.mark.parametrize("way", [gemm_epilogue.TILES, gemm_epilogue.SGEMM])
def test_who_makes_the_blocks(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows are cut, for many threads. Their number changes no bit."""
    monkeypatch.setattr(gemm_epilogue, "_in_turn", None)
    in_blocks = gemm_epilogue._in_blocks
    monkeypatch.setattr(gemm_epilogue, "most_threads", lambda: 8)
    a, b = numbers(261, 200), numbers(700, 200, seed=1)
    bias, r = numbers(700, seed=2), numbers(261, 700, seed=3)
    found = []
    for threads in (1, 2, 8):

        def forced(arrays: Any, rest: Any, _: int, room: Any, __: str, n: int = threads) -> Any:
            return in_blocks(arrays, rest, n, room, way)

        monkeypatch.setattr(gemm_epilogue, "_in_blocks", forced)
        with ost.connect():
            f = ost.compile(lambda a, b, bias, r: (ost.maximum(a @ b.T + bias, 0) * r, bias > 0))
            found.append(np.asarray(f(*map(ost.asarray, (a, b, bias, r)))[0]))
    exact = np.maximum(a.astype(np.float64) @ b.T + bias, 0) * r
    np.testing.assert_allclose(found[0], exact, atol=1e-4)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_a_left_matrix_that_lies_transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are turned in memory that was asked for; the number of threads changes no bit."""
    monkeypatch.setattr(gemm_epilogue, "_in_turn", None)
    monkeypatch.setattr(gemm_epilogue, "most_threads", lambda: 8)
    names, text = list[str](), gemm_epilogue.block_of_turned
    monkeypatch.setattr(gemm_epilogue, "block_of_turned", lambda: names.append(text()) or names[0])
    in_blocks, found = gemm_epilogue._in_blocks, list[Any]()
    x, g, w = numbers(700, 801), numbers(700, 530, seed=1), numbers(801, 530, seed=2)
    gemm_epilogue._text.cache_clear()
    for threads in (1, 2, 8):

        def forced(arrays: Any, rest: Any, _: int, room: Any, way: str, n: int = threads) -> Any:
            return in_blocks(arrays, rest, n, room, way)

        monkeypatch.setattr(gemm_epilogue, "_in_blocks", forced)
        with ost.connect():
            f = ost.compile(lambda x, g, w: w - 0.1 * (x.T @ g))
            found.append(np.asarray(f(*map(ost.asarray, (x, g, w)))))
    assert names
    np.testing.assert_allclose(found[0], w - 0.1 * (x.T.astype(np.float64) @ g), atol=1e-4)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_blocks_cover_a_product(dtype: Any) -> None:
    """And fit into the memory that was asked for, for any number of threads."""
    form = gemm_tiles.gemm_key(dtype)
    if form is None:
        pytest.skip("this processor has no tiles")
    for m, n, k in (
        (64, 16, 8),
        (128, 528, 528),
        (1000, 64, 1024),
        (96, 5000, 300),
        (4096, 700, 64),
    ):
        for threads in (1, 2, 3, 8, 64):
            for turned, whole in ((False, False), (True, False), (True, True)):
                grid = gemm_epilogue.blocks_of_tiles(form, m, n, k, 1, threads, turned, whole)
                assert grid.blocks * grid.block >= m > (grid.blocks - 1) * grid.block
                assert grid.strips * grid.strip >= n > (grid.strips - 1) * grid.strip
                assert grid.width >= grid.strip
                assert not whole or grid.strips == 1
                room, *_ = gemm_epilogue._room(form, grid.width, grid.block, grid.block, k)
                specs = Spec((m, k), dtype), Spec((k, n), dtype)
                (given_,) = gemm_epilogue.epilogue_scratch(
                    [s.shape for s in specs], [(m, n)], specs, body=Graph((), (), ())
                )
                assert room * gemm_epilogue.most_threads() <= given_.shape[0]


def test_blocks_of_sgemm_cover_a_product() -> None:
    """For any number of threads, and what is turned beside them; columns are cut by their number alone."""
    for m, n, k in ((64, 16, 8), (1000, 5000, 1024), (96, 5000, 300), (3, 530, 2048)):
        strips = set[tuple[int, ...]]()
        for threads in (1, 2, 3, 8, 64):
            for batches, whole in ((1, False), (1, True), (5, False)):
                grid = gemm_epilogue.blocks_of_sgemm(m, n, batches, threads, whole)
                assert grid.blocks * grid.block >= m > (grid.blocks - 1) * grid.block
                assert grid.strips * grid.strip >= n > (grid.strips - 1) * grid.strip
                assert not whole or grid.strips == 1
                strips |= {(whole, grid.strip)}
                rows = grid.block * turned_gemm.turning_pays(m, n, k)
                room, *_ = gemm_epilogue._room(None, grid.width, grid.block, rows, k)
                specs = Spec((batches, m, k), float32), Spec((k, n), float32)
                (given,) = gemm_epilogue.epilogue_scratch(
                    [s.shape for s in specs], [(batches, m, n)], specs, body=Graph((), (), ())
                )
                assert room * gemm_epilogue.most_threads() <= given.shape[0]
        assert len(strips) == 2


def test_workers_without_rows() -> None:
    with ost.connect(workers=3):
        a, b = numbers(2, 96, 80), numbers(80, 70, seed=1)
        f = ost.compile(lambda a, b: ost.exp(a @ b))
        y = f(ost.asarray(a, split=0), ost.asarray(b))
        assert "fused_matmul" in ops_of(f)
        np.testing.assert_allclose(np.asarray(y), np.exp(a @ b), rtol=1e-4)


def test_others_may_begin_where_a_product_is_read_first() -> None:
    a, b, big = numbers(130, 100), numbers(100, 96, seed=1), numbers(5, 130, 96, seed=2)

    def f(a: Any, b: Any, big: Any) -> Any:
        product = a @ b
        return ost.exp((product + big) * 0.1) * big, ost.tanh(product) * 2

    def g(a: Any, b: Any, big: Any) -> Any:
        product = a @ b
        return (product + big).sum(0), ost.tanh(product) * 2, product.T @ product

    exact = a.astype(np.float64) @ b
    (y, z), ops = run(f, a, b, big)
    assert sorted(ops) == ["fused", "fused_matmul"]
    np.testing.assert_allclose(y, np.exp((exact + big) * 0.1) * big, atol=1e-4)
    np.testing.assert_allclose(z, np.tanh(exact) * 2, atol=1e-4)
    (y, z, square), _ = run(g, a, b, big)
    np.testing.assert_allclose(y, (exact + big).sum(0), atol=1e-3)
    np.testing.assert_allclose(z, np.tanh(exact) * 2, atol=1e-4)
    np.testing.assert_allclose(square, exact.T @ exact, atol=1e-2)


def test_what_stays_apart() -> None:
    a, b = numbers(300, 200), numbers(200, 130, seed=1)
    for f, arrays, how in (
        (lambda a, b: a @ b, (a, b), {}),
        (lambda a, b: ost.exp(a @ b), (a[:20], b), {}),  # too few rows for threads
        (lambda a, b: ost.exp(a @ b), (numbers(100, 2000), numbers(2000, 64)), {}),  # long sums
        (lambda a, b: ost.exp(a @ b), (a.astype(np.float64), b.astype(np.float64)), {}),
        (lambda a: ost.exp(a @ a), (numbers(130, 130),), {}),
    ):
        assert not set(WITH_PRODUCT) & set(run(f, *arrays, **how)[1])
    with ost.connect(numerics="any-workers"):
        assert not set(WITH_PRODUCT) & set(run(lambda a, b: ost.exp(a @ b), a, b)[1])


def test_kernels_in_stages_keep_what_only_they_read() -> None:
    """The logits' scale is part of the softmax that reads them."""
    a, b = numbers(300, 80), numbers(80, 500, seed=1)
    made, ops = run(lambda a, b: ost.nn.softmax((a @ b) * 0.5, axis=-1), a, b)
    assert "fused_nest" in ops
    assert "matmul" in ops
    z = (a.astype(np.float64) @ b) * 0.5
    e = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(made, e / e.sum(1, keepdims=True), rtol=1e-3)


def test_the_source_says_that_a_product_comes_first() -> None:
    f = ost.compile(lambda a, b: ost.exp(a @ b))
    f(ost.asarray(numbers(300, 200)), ost.asarray(numbers(200, 130)))
    assert "# x0 is a product, 300x200 by 200x130" in f.plan.source()
    assert "exp(x0[i])" in f.plan.source()
    assert "fused(matmul, exp)" in f.plan.explain()
    assert "@body" in f.plan.source(llvm=True)
