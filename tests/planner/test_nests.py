"""Kernels in stages: what goes into one, and that it computes what NumPy computes."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.graph import Graph
from ostinato.ops.jit.stage_values import join_neighbours, label
from ostinato.planner.cpu import fuse
from ostinato.planner.fusion import stage_groups as stages
from ostinato.planner.seeing.python_source import source

import ostinato as ost
from tests import sessions
from tests.thorough import few, some

Values = dict[str, list[Any]]


# -- random programs -----------------------------------------------------------------------
def operands(r: random.Random, rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
    """Named by their indices: n is cut; d and k are short or long."""
    n = r.choice([1, 3, 40, 255, 256, 257, 1000, 5000])
    d = r.choice([1, 2, 5, 16, 17, 40, 70, 300] if n < 2000 else [1, 3, 16, 33])
    k = r.choice([1, 2, 8, 19])
    shapes = {"nd": (n, d), "dn": (d, n), "n": (n,), "d": (d,), "kd": (k, d), "dk": (d, k)}
    made = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    made["place"] = rng.integers(-k, k, n)
    if r.random() < 0.3:
        made["nd"] = np.asfortranarray(made["nd"])
    return made


def step(r: random.Random) -> tuple[str, Callable[[Any, Values], Any], str]:
    """One operation: the kind of its result, how it is made, and its text."""

    def pick(v: Values, kind: str, at: int) -> Any:
        return v[kind][at % len(v[kind])]

    i, j = r.randrange(99), r.randrange(99)
    smooth = r.choice(["exp", "tanh", "square", "abs"])

    def unary(xp: Any, x: Any) -> Any:
        return getattr(xp, smooth)(-xp.abs(x) if smooth == "exp" else x)

    steps: list[tuple[str, str, Callable[[Any, Values], Any]]] = [
        ("nd", "f(nd)", lambda xp, v: unary(xp, pick(v, "nd", i))),
        ("n", "f(n)", lambda xp, v: unary(xp, pick(v, "n", i))),
        ("nk", "f(nk)", lambda xp, v: unary(xp, pick(v, "nk", i))),
        ("nd", "nd + nd", lambda xp, v: pick(v, "nd", i) + pick(v, "nd", j)),
        ("nd", "nd * n", lambda xp, v: pick(v, "nd", i) * pick(v, "n", j)[:, None]),
        ("nd", "nd - d", lambda xp, v: pick(v, "nd", i) - pick(v, "d", j)),
        ("nd", "dn.T", lambda xp, v: pick(v, "dn", i).T * 0.5),
        ("n", "sum d", lambda xp, v: pick(v, "nd", i).sum(1) / 4),
        ("n", "mean d", lambda xp, v: pick(v, "nd", i).mean(1)),
        ("n", "max d", lambda xp, v: pick(v, "nd", i).max(1)),
        ("n", "var d", lambda xp, v: xp.var(pick(v, "nd", i), axis=1)),
        ("n", "nd @ d", lambda xp, v: pick(v, "nd", i) @ pick(v, "d", j) / 4),
        ("nk", "nd @ dk", lambda xp, v: pick(v, "nd", i) @ pick(v, "dk", j) / 4),
        ("nk", "nkd", lambda xp, v: (
            (pick(v, "nd", i)[:, None, :] - pick(v, "kd", j)) ** 2).sum(-1) / 8),
        ("n", "min k", lambda xp, v: pick(v, "nk", i).min(1)),
        ("nk", "nk - n", lambda xp, v: pick(v, "nk", i) - pick(v, "n", j)[:, None]),
        ("nk", "hot", lambda xp, v: xp.astype(
            xp.argmin(pick(v, "nk", i), axis=1)[:, None]
            == xp.arange(pick(v, "nk", i).shape[1]), pick(v, "nk", i).dtype)),
        ("n", "arg d", lambda xp, v: xp.astype(
            xp.argmax(pick(v, "nd", i), axis=1), pick(v, "nd", i).dtype)),
        ("n", "n * arange", lambda xp, v: pick(v, "n", i) * xp.arange(v["nd"][0].shape[0]) / 99),
        ("nd", "nd * arange", lambda xp, v: (
            pick(v, "nd", i) * xp.arange(v["nd"][0].shape[0])[:, None] / 99)),
        ("n", "nd at arg", lambda xp, v: xp.take_along_axis(
            pick(v, "nd", i), xp.argmax(pick(v, "nd", j), axis=1)[:, None], axis=1)[:, 0]),
        ("n", "nk at", lambda xp, v: xp.take_along_axis(
            pick(v, "nk", i), v["place"][0][:, None], axis=1)[:, 0]),
        ("nd", "kd at", lambda xp, v: xp.take(pick(v, "kd", i), v["place"][0], axis=0)),
        ("n", "nk[:, :]", lambda xp, v: (
            pick(v, "nk", i)[xp.arange(v["nd"][0].shape[0]), v["place"][0]])),
        ("out", "nk.T @ nd", lambda xp, v: pick(v, "nk", i).T @ pick(v, "nd", j)),
        ("out", "nd.T @ n", lambda xp, v: pick(v, "nd", i).T @ pick(v, "n", j)),
        ("out", "sum n", lambda xp, v: pick(v, "nd", i).sum(0)),
        ("out", "sum n k", lambda xp, v: pick(v, "nk", i).sum(0)),
        ("out", "max n", lambda xp, v: pick(v, "nd", i).max(0)),
        ("out", "mean all", lambda xp, v: pick(v, "nk", i).mean()),
        ("out", "var n", lambda xp, v: xp.var(pick(v, "nd", i), axis=0)),
        ("out", "var all", lambda xp, v: xp.var(pick(v, "nd", i))),
        ("out", "mean n", lambda xp, v: pick(v, "nd", i).mean(0)),
    ]  # fmt: skip
    kind, text, make = r.choice(steps)
    return kind, make, text


def run(xp: Any, steps: list[Any], given: dict[str, Any]) -> list[Any]:
    v: Values = {name: [x] for name, x in given.items()}
    v["nk"] = [v["nd"][0] @ v["dk"][0]]
    v["out"] = []
    for kind, make, _ in steps:
        v[kind].append(make(xp, v))
    results = [*v["out"], v["nd"][-1], v["nk"][-1], v["n"][-1]]
    return results[-6:]


def program(seed: int, dtype: Any) -> tuple[dict[str, Any], list[Any]]:
    """The operands and the steps of a random one."""
    r = random.Random(seed)
    given = operands(r, np.random.default_rng(seed), dtype)
    return given, [step(r) for _ in range(r.randint(4, 14))]


def check(seed: int, workers: int = 1, dtype: Any = np.float64, **session: Any) -> int:
    """A random program against NumPy in double precision; how many kernels in stages it had."""
    given, steps = program(seed, dtype)
    wide = {name: x.astype(np.float64) if x.dtype == dtype else x for name, x in given.items()}
    with np.errstate(all="ignore"):
        expected = run(np, steps, wide)
    with sessions.use((workers,), **session):
        f = ost.compile(lambda a: run(ost, steps, a))
        split = {"nd": 0, "dn": 1, "n": 0, "place": 0} if workers > 1 else {}
        lazy = {name: ost.asarray(x, split=split.get(name)) for name, x in given.items()}
        for _ in range(2):
            results = [np.asarray(y) for y in f(lazy)]
        count = sum(n.op == "fused_nest" for n in f.plan.program.graph.nodes)
    near = 1e-9 if dtype == np.float64 else 3e-4
    for y, z in zip(results, expected, strict=True):
        scale = np.abs(z).max(initial=0) + 1
        np.testing.assert_allclose(y, z, rtol=near, atol=near * scale, err_msg=text_of(steps))
    return count


def text_of(steps: list[Any]) -> str:
    return "; ".join(f"{kind} = {text}" for kind, _, text in steps)


@pytest.mark.parametrize("seed", some(range(24), 2))
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make_small_things_count(monkeypatch)
    check(seed, workers=(1, 3, 1, 2)[seed // 2 % 4], dtype=(np.float64, np.float32)[seed % 3 == 0])


def make_small_things_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "WORTH", 0)
    monkeypatch.setattr(stages, "ROWS", 1)
    monkeypatch.setattr(stages, "NEGLIGIBLE_BYTES", -1)


def test_the_random_programs_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small_things_count(monkeypatch)
    assert sum(check(seed) for seed in range(100, 105)) >= 3


# -- what goes together --------------------------------------------------------------------
X = np.random.default_rng(5).standard_normal((3000, 16))


def program_of(function: Callable[..., Any], *given: Any) -> Graph:
    with sessions.use():
        f = ost.compile(function)
        f(*(ost.asarray(x) for x in given))
        graph = f.plan.program.graph
        assert isinstance(graph, Graph)
        return graph


def large(graph: Graph, bytes_: int = 1 << 16) -> list[str]:
    """The operations with large results."""
    return [n.op for n in graph.nodes if any(s.nbytes > bytes_ for s in n.specs)]


def lloyd(x: Any, c: Any) -> Any:
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


def lloyd_by_products(x: Any, c: Any) -> Any:
    d = (x * x).sum(1)[:, None] - 2 * (x @ c.T) + (c * c).sum(1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


@pytest.mark.parametrize("step", [lloyd, lloyd_by_products])
def test_a_step_of_k_means_is_one_kernel(step: Any) -> None:
    graph = program_of(step, X, X[:8])
    assert [n.op for n in graph.nodes].count("fused_nest") == 1
    assert not large(graph)
    near = np.eye(8)[((X[:, None] - X[:8]) ** 2).sum(-1).argmin(1)]
    with sessions.use():
        made = np.asarray(ost.compile(step)(ost.asarray(X), ost.asarray(X[:8])))
    np.testing.assert_allclose(made, near.T @ X / near.sum(0)[:, None], rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_and_normalisation_are_one_kernel(axis: int) -> None:
    wide = np.random.default_rng(1).standard_normal((700, 900))

    def normal(x: Any) -> Any:
        off = x - x.mean(axis, keepdims=True)
        return off / ost.sqrt(x.var(axis, keepdims=True) + 1e-5)

    assert [n.op for n in program_of(lambda x: ost.nn.softmax(x, axis=axis), wide).nodes] == [
        "fused_nest"
    ]
    assert large(program_of(normal, wide)) == ["fused_nest"]


def test_a_logistic_gradient_reads_its_data_once() -> None:
    def step(w: Any, x: Any, y: Any) -> Any:
        return x.T @ (1 / (1 + ost.exp(-(x @ w))) - y)

    graph = program_of(step, X[0], X, X[:, 1])
    assert [n.op for n in graph.nodes] == ["fused_nest"]


def test_large_products_stay_with_libraries() -> None:
    a = np.random.default_rng(2).standard_normal((600, 300))
    graph = program_of(lambda a, b: ost.tanh(a @ b).sum(1), a, a.T)
    assert "matmul" in [n.op for n in graph.nodes]


def test_an_array_beside_its_own_transpose_is_two_indices() -> None:
    """Rows and columns are then no longer apart; NumPy's answer all the same."""
    a = np.random.default_rng(2).standard_normal((300, 300))
    with sessions.use():
        made = np.asarray(ost.compile(lambda a: (a + a.T * 2).sum(0))(ost.asarray(a)))
    np.testing.assert_allclose(made, (a + a.T * 2).sum(0), rtol=1e-12)


def test_all_pairs_of_rows_are_one_kernel() -> None:
    """One array along two indices, of which nothing that has both is in memory."""

    def forces(xp: Any, x: Any, mass: Any) -> Any:
        apart = x[None, :, :] - x[:, None, :]
        squares = (apart * apart).sum(2) + 0.01
        return ((mass[None, :] / (squares * xp.sqrt(squares)))[:, :, None] * apart).sum(1)

    x, mass = X[:900, :3], abs(X[:900, 3])
    graph = program_of(lambda x, mass: forces(ost, x, mass), x, mass)
    assert large(graph, x.nbytes) == []
    with sessions.use():
        made = np.asarray(ost.compile(lambda x, mass: forces(ost, x, mass))(x, mass))
    np.testing.assert_allclose(made, forces(np, x, mass), rtol=1e-9)


# -- exactness -----------------------------------------------------------------------------
def kernel_sums(xp: Any, x: Any, y: Any) -> Any:
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :]
    return xp.exp(-(squares - 2 * x @ y.T)).sum(1)


def distances(xp: Any, x: Any, y: Any) -> Any:
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :]
    return xp.sqrt(xp.maximum(squares - 2 * (x @ y.T), 0))


@pytest.mark.parametrize(("of_pairs", "large_ones"), [(kernel_sums, 0), (distances, 1)])
def test_pairs_of_squares_are_made_where_their_product_is(of_pairs: Any, large_ones: int) -> None:
    """They are as large as the product; two columns of squares are in memory instead."""
    r = np.random.default_rng(3)
    x, y = (r.standard_normal((n, 16)).astype("float32") for n in (3000, 700))
    graph = program_of(lambda x, y: of_pairs(ost, x, y), x, y)
    assert len(large(graph, x.nbytes)) == large_ones
    with sessions.use():
        made = np.asarray(ost.compile(lambda x, y: of_pairs(ost, x, y))(x, y))
    wanted = of_pairs(np, x.astype(float), y.astype(float))
    np.testing.assert_allclose(made, wanted, rtol=1e-3)


def test_what_is_read_in_a_kernel_in_stages_stays_there() -> None:
    """Nobody outside makes it again: the sum of all pairs of squares is in the kernel that reads it."""
    x = X[:900, :8]

    def spread(x: Any) -> Any:
        squares = (x * x).sum(1)
        near = ost.exp(-(squares[:, None] + squares[None, :]))
        return (near / near.sum(1)[:, None]).max(0)

    graph = program_of(spread, x)
    assert large(graph, x.nbytes) == []


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((40_000, 16)).astype(np.float32)
    found = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr("ostinato.runtime.worker.most_threads", lambda n=threads: n)
        with sessions.use():
            made = ost.compile(lambda x: (lloyd(x, x[:8]), x.mean(0), x.std(0)))(ost.asarray(x))
            found.append([np.asarray(y).tobytes() for y in made])
    assert all(f == found[0] for f in found)


def test_sums_and_moments_over_rows_are_as_exact_as_can_be() -> None:
    """A mean of 1,000 beside a deviation of 1, over a million rows."""
    x = (1000 + np.random.default_rng(4).standard_normal((1_000_000, 3))).astype(np.float32)
    wide = x.astype(np.float64)
    with sessions.use():
        f = ost.compile(lambda x: (x.mean(0), x.std(0), (x * 2).sum(0), x.std()))
        mean, std, total, every = (np.asarray(y) for y in f(ost.asarray(x)))
    np.testing.assert_allclose(mean, wide.mean(0), rtol=1e-7)
    np.testing.assert_allclose(std, wide.std(0), rtol=1e-5)
    np.testing.assert_allclose(total, 2 * wide.sum(0), rtol=1e-7)
    np.testing.assert_allclose(every, wide.std(), rtol=1e-5)


def test_nan_and_infinity() -> None:
    x = X[:500].copy()
    x[7, 3], x[8, 5], x[9, :] = np.nan, np.inf, -np.inf
    with sessions.use():
        f = ost.compile(lambda x: (ost.argmin(x * 2, axis=1), (x * 2).max(0), (x * 2).sum(0)))
        place, top, total = (np.asarray(y) for y in f(ost.asarray(x)))
    np.testing.assert_array_equal(place, np.argmin(x * 2, axis=1))
    np.testing.assert_array_equal(top, (x * 2).max(0))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(total), np.isnan((x * 2).sum(0)))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_square_of_a_large_mean_is_no_part_of_a_variance(dtype: str) -> None:
    """It is infinite, and so NaN beside the rows of a worker, or of a kernel's beginning, that has none."""
    large = 1e30 if np.dtype(dtype).itemsize < 16 and dtype != "f8" else 1e200
    for workers, rows in ((1, 5000), (3, 1), (3, 2), (3, 4), (3, 5000)):
        with sessions.use((workers,)):
            x = ost.asarray(np.full((rows, 3), large, dtype), split=0)
            wide = ost.asarray(np.full((min(rows, 4), 9000), large, dtype), split=0)
            for y in (
                ost.var(x, axis=0),
                ost.compile(lambda x: ost.std(x * 1, axis=0))(x),
                ost.var(wide),
            ):
                assert not np.isnan(np.asarray(y)).any(), (workers, rows)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rows", [50, 5000, 200_000])
def test_a_mean_beside_a_variance_may_be_infinite(rows: int, workers: int) -> None:
    """By NumPy, by kernels and by several workers, as the mean alone is."""
    x = np.random.default_rng(0).standard_normal((rows, 4))
    x[[1, -1], 0] = x[1, 1] = np.inf
    x[[1, -1], 2] = np.inf, -np.inf
    with sessions.use((workers,)):
        both = ost.compile(lambda x: (x.mean(0), x.var(0)))(ost.asarray(x, split=0))
        mean, var = (np.asarray(y) for y in both)
    np.testing.assert_allclose(mean, [np.inf, np.inf, np.nan, x[:, 3].mean()], rtol=1e-9)
    np.testing.assert_allclose(var, [np.nan, np.nan, np.nan, x[:, 3].var()], rtol=1e-9)


def test_ties_go_to_the_first() -> None:
    x = np.zeros((400, 9))
    x[::2, 4:] = -1
    with sessions.use():
        made = np.asarray(ost.compile(lambda x: ost.argmin(x * 2, axis=1))(ost.asarray(x)))
    np.testing.assert_array_equal(made, np.argmin(x, axis=1))


def test_the_kernel_of_numpy_agrees() -> None:
    """What runs where it is not known how operands lie."""
    with sessions.use():
        f = ost.compile(lloyd)
        wanted = np.asarray(f(ost.asarray(X), ost.asarray(X[:8])))
        graph = f.plan.program.graph
    node = next(n for n in graph.nodes if n.op == "fused_nest")
    outs = [np.empty(s.shape, s.dtype) for s in node.specs]
    ost.ops.lookup(node.op).kernel(np, tuple(outs), X, X[:8], **node.kw)
    sums, counts = outs if outs[0].ndim == 2 else reversed(outs)
    np.testing.assert_allclose(sums / counts[:, None], wanted, rtol=1e-12)


def test_indices_that_cannot_be_one_are_refused() -> None:
    from ostinato.ops.core.registry import OPS
    from ostinato.ops.core.spec import Spec, float64
    from ostinato.ops.jit.labels import Labels

    square = Spec((5, 5), float64)
    labels = Labels()

    def fit(name: str, *ins: int, **params: Any) -> Any:
        specs = (square,) * len(ins)
        outs = (OPS[name].infer(*specs, **params),)
        return labels.fit(OPS[name].indices(specs, outs, params), ins, specs, outs)

    turned = fit("permute_dims", 0, axes=(1, 0))
    labels.take(turned, [1])
    assert labels.dims == {0: (0, 1), 1: (1, 0)}
    assert fit("add", 0, 1) is None
    assert fit("add", 0, 0) is not None
    with mock.patch.dict(labels.dims, {2: (0, 1)}):
        assert fit("matmul", 0, 2) is None


@pytest.mark.parametrize("shape", [(16, 4096), (128, 1000), (20, 300_000)])
def test_few_rows_and_long_ones_are_one_kernel(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)

    def f(x: Any) -> Any:
        return ost.nn.softmax(ost.nn.layer_norm(x))

    assert large(program_of(f, x), 4 * shape[0]) == ["fused_nest"]
    wide = x.astype(np.float64)
    wide = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    wanted = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    with sessions.use():
        made = np.asarray(ost.compile(f)(x))
    np.testing.assert_allclose(made, wanted, rtol=3e-4)


def test_an_argmax_over_rows_runs_column_by_column() -> None:
    """What needs all rows leaves the columns to cut."""
    x = np.random.default_rng(7).standard_normal((5000, 40))
    graph = program_of(lambda x: (ost.exp(x) * 2).argmax(0), x)
    assert not large(graph)
    with sessions.use():
        made = np.asarray(ost.compile(lambda x: (ost.exp(x) * 2).argmax(0))(x))
    np.testing.assert_array_equal(made, x.argmax(0))


@pytest.mark.parametrize(("n", "m", "d"), [(300, 257, 50), (70, 5000, 64), (2000, 300, 9)])
def test_pairs_of_rows_are_made_block_by_block(n: int, m: int, d: int) -> None:
    """Distances of all pairs: the second operand is turned once for each block of it."""
    rng = np.random.default_rng(8)
    x, c = rng.standard_normal((n, d)), rng.standard_normal((m, d))

    def pairs(xp: Any, x: Any, c: Any) -> Any:
        t = ((x[:, None, :] - c) ** 2).sum(-1)
        return xp.sqrt(t), xp.exp(-t).sum(0)

    graph = program_of(lambda x, c: pairs(ost, x, c), x, c)
    assert [node.op for node in graph.nodes] == ["fused_nest"]
    with sessions.use():
        made = ost.compile(lambda x, c: pairs(ost, x, c))(x, c)
    for y, z in zip(made, pairs(np, x, c), strict=True):
        np.testing.assert_allclose(np.asarray(y), z, rtol=1e-11)


def nest_of(graph: Graph) -> Any:
    from ostinato.ops.cpu.loops.schedule import analyse_in_order

    (kernel,) = [n for n in graph.nodes if n.op == "fused_nest"]
    specs = (*kernel.kw["body"].inputs, *kernel.specs)
    return analyse_in_order(**kernel.kw, shapes=[s.shape for s in specs])


def test_lanes_run_where_most_of_the_work_is() -> None:
    """Along the means, though the data's own neighbours are along the features."""
    rng = np.random.default_rng(9)
    x, c = rng.standard_normal((3000, 90)), rng.standard_normal((200, 90))
    nest = nest_of(program_of(lambda x, c: ((x[:, None, :] - c) ** 2).sum(-1).argmin(1), x, c))
    assert nest.extents[nest.lane] == 200
    assert nest.packed == {1}
    both = nest_of(program_of(lambda x, c: ((x[:, None, :] - c) ** 2).sum(-1), x, c))
    assert both.extents[both.lane] == 200
    assert both.rows[0] == both.lane
    assert both.packed == {1}
    soft = nest_of(program_of(ost.nn.softmax, rng.standard_normal((300, 400))))
    assert soft.extents[soft.lane] == 400
    assert not soft.packed


@pytest.mark.parametrize("columns", [16, 300])
def test_long_columns_are_summed_in_parts(columns: int) -> None:
    """Even if something short follows: sums along the whole of a column would lose digits."""
    rows = {16: 400_000, 300: 100_000}[columns]
    x = np.random.default_rng(6).normal(1, 2, (rows, columns)).astype(np.float32)
    with sessions.use():
        f = ost.compile(lambda x: (x.mean(0), x.std(0) * 2, x.sum(0)))
        found = [np.asarray(y).astype(np.float64) for y in f(ost.asarray(x))]
        (nest,) = (n for n in f.plan.program.graph.nodes if n.op == "fused_nest")
    assert nest.kw["rows"] == (0,)
    exact = x.astype(np.float64)
    for y, z in zip(found, (exact.mean(0), exact.std(0) * 2, exact.sum(0)), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-6)


# -- several axes --------------------------------------------------------------------------
REDUCED: dict[str, Any] = {
    "sum": lambda xp, x, axes: x.sum(axes),
    "mean": lambda xp, x, axes: x.mean(axes),
    "max": lambda xp, x, axes: x.max(axes),
    "var": lambda xp, x, axes: x.var(axes),
    "squares": lambda xp, x, axes: (x * x).sum(axes),
    "normal": lambda xp, x, axes: (
        (x - x.mean(axes, keepdims=True)) / xp.sqrt(x.var(axes, keepdims=True) + 1)
    ),
    "log": lambda xp, x, axes: xp.log(xp.exp(x).sum(axes)),
    "with the last": lambda xp, x, axes: (x.sum(axes), x[..., :1].max(axes), x * 2),
}


@settings(deadline=None, max_examples=few(30))
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5, 17, 33, 70]), min_size=1, max_size=5),
    which=st.integers(1, 31),
    how=st.sampled_from(["as it is", "turned", "sliced", "split"]),
    name=st.sampled_from(list(REDUCED)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_reductions_over_any_axes(
    shape: list[int], which: int, how: str, name: str, dtype: Any
) -> None:
    while math.prod(shape) > 200_000:
        shape.remove(max(shape))
    axes = tuple(d for d in range(len(shape)) if which >> d & 1) or (0,)
    x = np.random.default_rng((*shape, which)).normal(size=shape)
    f = REDUCED[name]

    def step(xp: Any, x: Any) -> Any:
        x = x.T if how == "turned" else x[::-1][:, ...] if how == "sliced" else x
        made = f(xp, x, axes)
        return made if isinstance(made, tuple) else (made,)

    with pytest.MonkeyPatch.context() as patch, sessions.use((2,) if how == "split" else (1,)):
        make_small_things_count(patch)
        lazy = ost.asarray(x.astype(dtype), split=len(shape) // 2 if how == "split" else None)
        made = ost.compile(lambda x: step(ost, x))(lazy)
    expected = step(np, x.astype(dtype).astype(np.float64))
    for y, z in zip(made, expected, strict=True):
        near = 1e-10 if dtype == np.float64 else 2e-4
        np.testing.assert_allclose(np.asarray(y), z, rtol=near, atol=near * (1 + np.abs(z).max()))


def test_neighbours_that_go_together_are_one_index() -> None:
    """Two loops over rows instead of four, whatever the axes are called."""
    x = np.zeros((60, 70, 6, 5))
    for f, extents in [
        (lambda x: x.sum((0, 1)), {4200, 30}),
        (lambda x: x.max((2, 3)), {4200, 30}),
        (lambda x: (x * x).sum((0, 2, 3)), {60, 70, 30}),
        (lambda x: ost.exp(x).sum((0, 1, 2)), {25200, 5}),
        (lambda x: (x * ost.arange(5.0)).sum((2, 3)), {4200, 6, 5}),
        (lambda x: (x - x.mean((2, 3), keepdims=True)).max((2, 3)), {4200, 30}),
    ]:
        assert {n for n in nest_of(program_of(f, x)).extents if n > 1} == extents
    nest = nest_of(program_of(lambda x: x.sum((0, 1)), x))
    body, dims = nest.body, [range(4)]
    for strides, extents in [
        ([(16800, 240, 40, 8), (32, 8)], {4200, 6, 4}),  # a part of each row
        ([(19200, 240, 40, 8), (32, 8)], {60, 70, 6, 4}),  # and something behind each block
    ]:
        made = label(body, dims, (0,), [(60, 70, 6, 4), (6, 4)], strides)
        assert made is not None
        join_neighbours(made)
        assert {n for n in made.extents if n > 1} == extents


def test_a_variance_beside_what_has_more_axes() -> None:
    """Each row counts once, though its kernel's lanes run along another index."""
    r = np.random.default_rng(8)
    x, y = r.random(5000), r.random((5000, 100))

    def f(xp: Any, x: Any, y: Any) -> Any:
        return xp.var(x), (y * x[:, None]).min(1), xp.exp(y) * x[:, None]

    with sessions.use((1,)):
        made = ost.compile(lambda x, y: f(ost, x, y))(x, y)
    for a, b in zip(made, f(np, x, y), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12)


def test_pooling_is_one_kernel() -> None:
    """What is reshaped is read as it is."""
    x = np.random.default_rng(9).normal(size=(8, 16, 20, 20)).astype(np.float32)
    with sessions.use((1,)):
        for name in ("mean", "max"):
            f = ost.compile(
                lambda x, name=name: getattr(x.reshape(8, 16, 10, 2, 10, 2), name)((3, 5)) + 1
            )
            made = np.asarray(f(x))
            assert [n.op for n in f.plan.program.graph.nodes] == ["reshape", "fused_nest"]
            right = getattr(x.reshape(8, 16, 10, 2, 10, 2), name)((3, 5)) + 1
            np.testing.assert_allclose(made, right, rtol=1e-5, atol=1e-6)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shape", [(16, 2, 16, 2, 64), (16, 16, 3, 48), (40, 12, 2, 33)])
def test_short_sums_leave_neighbours_together(shape: tuple[int, ...]) -> None:
    """Units are cut along the axes outside, however long the last one is, and are no single vectors."""
    x = np.random.default_rng(3).normal(size=shape)
    axes = tuple([d for d, n in enumerate(shape) if n < 4])
    nest = nest_of(program_of(lambda x: x.sum(axes), x))
    (last,) = [x for x, step in nest.strides[0].items() if step == 8]
    assert last == nest.lane
    assert last not in nest.rows
    made = ost.compile(lambda x: x.sum(axes))(x)
    np.testing.assert_allclose(np.asarray(made), x.sum(axes), rtol=1e-12)


def test_small_parts_may_need_more_room_than_large_ones() -> None:
    """Three of five rows are reduced otherwise than two: the plan has room for both."""
    x = np.random.default_rng(0).normal(size=(5, 5, 5, 17, 17)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch, sessions.use((2,)):
        make_small_things_count(patch)
        for axes in ((2, 4), (0, 4), (3, 4), (1, 3)):
            y = ost.compile(lambda x, axes=axes: x.sum(axes))(ost.asarray(x, split=2))
            np.testing.assert_allclose(np.asarray(y), x.sum(axes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("axis", [0, 2, (0, 1), (1, 2), None], ids=str)
def test_moments_of_parts_are_made_in_kernels(mesh: tuple[int, ...], axis: Any) -> None:
    """Their counts, by which they are put together, are those of the parts."""
    x = np.random.default_rng(0).normal(3.0, size=(61, 5, 1301))
    with sessions.use(mesh):
        for split in (0, 1, 2):
            f = ost.compile(lambda x: (ost.exp(x * 0.1).mean(axis), ost.exp(x * 0.1).std(axis)))
            mean, std = f(ost.asarray(x, split=split))
            y = np.exp(x * 0.1)
            np.testing.assert_allclose(np.asarray(mean), y.mean(axis), rtol=1e-12)
            np.testing.assert_allclose(np.asarray(std), y.std(axis), rtol=1e-11)
            ops = [n.op for n in f.plan.program.graph.nodes]
            assert "moments" not in ops


@pytest.mark.parametrize("chain", range(4))
def test_sums_over_many_rows_keep_their_lanes_beside_each_other(chain: int) -> None:
    """What a unit of columns would keep of all rows is far larger than a cache: it is made again, and no lanes
    run down the columns. Small values that are made once cost nothing again."""
    x, g = np.random.default_rng(chain).standard_normal((2, 8, 28, 28, 64)).astype(np.float32)
    axes = (0, 1, 2)

    def f(xp: Any, x: Any, g: Any) -> Any:
        if chain == 0:
            z = g * x.var(axes)
            return z - z.sum(axes)
        y = (x - x.mean(axes)) * (1 / xp.sqrt(x.var(axes) + 1.0))
        z = [y * y, xp.where(y > 0, g, 0), xp.tanh(y) * g][chain - 1]
        return z * y - z.sum(axes) - y * (z * y).mean(axes)

    with sessions.use():
        made = ost.compile(lambda x, g: f(ost, x, g))
        y = np.asarray(made(x, g))
        text = source(made.plan, llvm=False, assembly=False)
    (lane,) = re.findall(r"lanes run along (\w)", text)
    assert {*re.findall(r"\b[xy]\d\[.*?(\w)\]", text)} == {lane}, text
    wanted = f(np, x.astype(float), g.astype(float))
    np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    "part",
    [
        np.s_[::-1],
        np.s_[::2],
        np.s_[::-2],
        np.s_[20:3:-3],
        np.s_[3:20],
        np.s_[:, ::-1],
        np.s_[:, 1::2],
    ],
    ids=str,
)
def test_updates_in_any_steps_are_made_in_kernels(part: Any) -> None:
    """What a part in steps is set to, or not, is asked for each element."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((28, 28)), rng.standard_normal((28, 28))
    new = y[: x[part].shape[0], : x[part].shape[1]]

    def pairs(xp: Any, x: Any, new: Any) -> Any:
        z = xp.zeros((28, 28))
        z[part] = new * 1.5
        all_ = (z[:, :, None] * 2) * (x[:, :, None] - x[:, None, :])
        return all_.sum(2) - all_.sum(1)

    made = ost.compile(lambda x, new: pairs(ost, x, new))
    np.testing.assert_allclose(made(x, new), pairs(np, x, new), 1e-10, 1e-10)
    assert "fused_nest" in {node.op for node in made.plan.program.graph.nodes}


def test_a_sum_over_an_index_that_no_operand_has() -> None:
    """Of one number as an array, as slopes of sums are: its indices are the kernel's own."""

    def centred(xp: Any, c: Any) -> Any:
        whole = xp.broadcast_to(c.reshape((1, 1, 1)), (2, 70, 90))
        return whole + (-whole).sum(0) / 4

    made = ost.compile(lambda c: centred(ost, c))
    np.testing.assert_allclose(made(np.array(0.3)), centred(np, np.array(0.3)), 1e-12)


def test_a_reduction_of_which_a_unit_has_no_room_is_apart() -> None:
    """What is before it stays in a kernel: slopes of pools, whose sum over all places is that of a bias."""
    r = np.random.default_rng(5)
    x, b = r.standard_normal((1, 64, 64, 64, 8)).astype("f"), r.standard_normal(8).astype("f")

    def loss(x: Any, b: Any) -> Any:
        made = ost.nn.leaky_relu(x + b)
        return (ost.nn.max_pool(made, 2, layout="NDHWC") ** 2).sum()

    graph = program_of(ost.grad(loss, (0, 1)), x, b)
    assert "matching_pool" not in [n.op for n in graph.nodes]
    with sessions.use():
        dx, db = ost.compile(ost.grad(loss, (0, 1)))(x, b)
    np.testing.assert_allclose(np.asarray(dx).sum((0, 1, 2, 3), dtype=float), db, rtol=1e-3)


def test_a_group_that_is_read_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the group of a reader takes it in, only the reader's operations are tried again."""
    tried: list[int] = []
    merged: list[tuple[int, int]] = []  # operations of the group that is read, and how many tried
    attempt, merge = stages._try, stages._both

    def try_one(graph: Graph, k: int, *rest: Any, **more: Any) -> int:
        tried.append(k)
        return attempt(graph, k, *rest, **more)

    def merge_both(graph: Graph, one: Any, other: Any, units: Any) -> Any:
        members = {*other.members}
        tried.clear()
        made = merge(graph, one, other, units)
        if made is not None:
            merged.append((len(members), len(members.intersection(tried))))
        return made

    monkeypatch.setattr(stages, "_try", try_one)
    monkeypatch.setattr(stages, "_both", merge_both)

    def total(xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = ost.tanh(x / x.sum(1)[:, None]) + y
        return y.sum(0)

    with sessions.use((1,)):
        f = ost.compile(total)
        _ = f.plan_for([np.ones((300, 70), np.float32)] * 8)
    assert merged
    assert all(size > 1 and again == 0 for size, again in merged)
