"""Products of a value's transpose with the value: which are found, and that results stay right."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels.syrk import TRIANGLE
from ostinato.ops.cpu.threads import blas
from ostinato.planner.cpu.symmetric import halve
from ostinato.planner.plan import Target
from ostinato.planner.tuning.sites import sites
from ostinato.runtime.bind import bind
from ostinato.runtime.messages.communicator import Alone

import ostinato as ost
from tests.helpers import ON_CPU
from tests.thorough import some

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

ROWS, COLUMNS = 9000, 48


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def run(f: Any, *arrays: np.ndarray, **how: Any) -> tuple[np.ndarray, list[str]]:
    compiled = ost.compile(f)
    made = np.asarray(compiled(*(ost.asarray(x, **how) for x in arrays)))
    return made, [n.op for n in compiled.plan.program.graph.nodes]


def test_the_pass() -> None:
    before = parse("""
        (%0: float32[9000,48], %1: float32[48,9000])
        %2 = permute_dims(%0; axes=(1, 0)) : float32[48,9000]
        %3 = matmul(%2, %0) : float32[48,48]
        %4 = permute_dims(%1; axes=(1, 0)) : float32[9000,48]
        %5 = matmul(%1, %4) : float32[48,48]
        %6 = matmul(%2, %4) : float32[48,48]
        return %3, %5, %6
    """)
    after = parse("""
        (%0: float32[9000,48], %1: float32[48,9000])
        %2 = permute_dims(%0; axes=(1, 0)) : float32[48,9000]
        %3 = gram(%0) : float32[48,48]
        %4 = permute_dims(%1; axes=(1, 0)) : float32[9000,48]
        %5 = gram(%4) : float32[48,48]
        %6 = matmul(%2, %4) : float32[48,48]
        return %3, %5, %6
    """)
    assert halve(before, Target((1,))) == after
    assert halve(after, Target((1,))) is after


FORMS: dict[str, Any] = {
    "x.T @ x": lambda xp, x: x.T @ x,
    "y @ y.T": lambda xp, x: (x.T * 1) @ (x.T * 1).T,
    "matmul": lambda xp, x: xp.matmul(xp.permute_dims(x, (1, 0)), x),
    "einsum": lambda xp, x: xp.einsum("ki,kj->ij", x, x),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))),
    "covariance": lambda xp, x: (x - x.mean(0)).T @ (x - x.mean(0)) / ROWS,
    "with a product beside": lambda xp, x: (x.T @ x) @ (x.T @ xp.cos(x[:, :3])),
    "with the transpose": lambda xp, x: (x.T @ x) + x.T[:, :1],
    "a part": lambda xp, x: x[:8000].T @ x[:8000],
    "columns": lambda xp, x: x[:, 3:40].T @ x[:, 3:40],
}


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMS)
def test_as_people_write_it(name: str, dtype: Any) -> None:
    x = numbers(ROWS, COLUMNS, dtype=dtype)
    y, ops = run(lambda x: FORMS[name](ost, x), x)
    assert ops.count("gram") == 1
    right = FORMS[name](np, x.astype(np.float64))
    bound = 30 * np.finfo(dtype).eps * max(1.0, float(np.abs(right).max()))
    np.testing.assert_allclose(y, right, atol=bound, rtol=0)


@pytest.mark.cpu_only
@pytest.mark.skipif(blas() is None, reason="NumPy has another library than OpenBLAS")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_that_are_large(dtype: Any) -> None:
    """A matrix of all pairs, and what is done to it: half of it is multiplied all the same."""
    x = numbers(600, 200, dtype=dtype) / 10

    def kernel(xp: Any, x: Any) -> Any:
        return xp.exp(-((x @ x.T) ** 2)) + xp.eye(600)

    y, ops = run(lambda x: kernel(ost, x), x)
    assert ops.count("gram") == 1
    np.testing.assert_allclose(y, kernel(np, x.astype(np.float64)), atol=1e-3)
    np.testing.assert_array_equal(y, y.T)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.T @ (x + 1),
        lambda x: x.T @ x[::-1],
        lambda x: x @ x.T[:, :50],
        lambda x: x[:100].T @ x[:100],
        lambda x: x[:, :4].T @ x[:, :4],
        lambda x: x.reshape(2, -1, COLUMNS).mT @ x.reshape(2, -1, COLUMNS),
    ],
)
def test_others_are_as_before(f: Any) -> None:
    x = numbers(ROWS, COLUMNS)
    y, ops = run(f, x)
    assert "gram" not in ops
    np.testing.assert_allclose(y, f(x.astype(np.float64)), rtol=1e-3, atol=0.2)


@pytest.mark.parametrize("dtype", ["int32", "complex64", "complex128", "float16"])
def test_other_numbers(dtype: str) -> None:
    x = numbers(ROWS, COLUMNS, dtype=np.float64)
    x = (x * 9).astype(dtype) if dtype[0] == "i" else x.astype(dtype)
    y, ops = run(lambda x: x.T @ x, x)
    assert "gram" not in ops
    wide = x if dtype == "int32" else x.astype(np.complex128 if dtype[0] == "c" else np.float64)
    np.testing.assert_allclose(y, wide.T @ wide, rtol=2e-3, atol=0.5)


@pytest.mark.parametrize(("workers", "split"), some([*product([1, 2, 3], [None, 0, 1])], of=2))
def test_layouts(workers: int, split: int | None) -> None:
    x = numbers(5 * ROWS, COLUMNS)
    right = x.astype(np.float64).T @ x.astype(np.float64)
    with ost.connect(workers):
        y, ops = run(lambda x: x.T @ x, x, split=split)
    assert "gram" in ops or split != 0 or not ON_CPU  # else each worker makes some of its columns
    np.testing.assert_allclose(y, right, atol=0.05)
    if split == 0:
        np.testing.assert_array_equal(y, y.T)


def test_in_loops() -> None:
    x = numbers(ROWS, COLUMNS)
    f = ost.compile(lambda x: ost.repeat(2, lambda c: (x.T @ x) * 1e-4 + c, ost.zeros((48, 48))))
    y = np.asarray(f(ost.asarray(x)))
    np.testing.assert_allclose(y, 2e-4 * (x.astype(np.float64).T @ x), atol=1e-5)


@pytest.mark.cpu_only
def test_a_memory_limit_that_leaves_no_room_for_it() -> None:
    x = numbers(ROWS, COLUMNS)
    f = ost.compile(lambda x: x.T @ x)
    f(ost.asarray(x))
    plan = f.plan
    needed = plan.operand_bytes + plan.result_bytes
    assert plan.arena_bytes > 0
    for limit, ops in ((plan.peak_bytes, ["gram"]), (needed, ["permute_dims", "matmul"])):
        with ost.connect(memory_limit=limit):
            y, found = run(lambda x: x.T @ x, x)
        assert found == ops
        np.testing.assert_allclose(y, x.astype(np.float64).T @ x, atol=0.05)


def test_gradients_and_any_workers() -> None:
    x = numbers(ROWS, COLUMNS)
    slope = np.asarray(ost.grad(lambda x: (x.T @ x).sum())(ost.asarray(x)))
    np.testing.assert_allclose(slope, 2 * x.sum(1, keepdims=True) + 0 * x, rtol=1e-3, atol=1e-3)
    with ost.connect(numerics="any-workers"):
        y, ops = run(lambda x: x.T @ x, x)
    assert "gram" not in ops
    np.testing.assert_allclose(y, x.astype(np.float64).T @ x, atol=0.05)


@pytest.mark.cpu_only
def test_timing_may_choose_another_way() -> None:
    """Each of which is right."""
    x = numbers(40_000, COLUMNS)
    right = x.astype(np.float64).T @ x
    f = ost.compile(lambda x: x.T @ x)
    np.testing.assert_allclose(np.asarray(f(ost.asarray(x))), right, atol=0.05)
    (one,) = sites(f.plan.program.graph, f.plan.target, 2)
    assert one.ways == (TRIANGLE,), "others have other bits"
    (site,) = sites(f.plan.program.graph, replace(f.plan.target, numerics="fast"), 2)
    assert site.ways[0] == TRIANGLE
    assert "blas" in site.ways
    for graph, way in zip(site.graphs[1:], site.ways[1:], strict=True):
        (node,) = (n for n in graph.nodes if n.op == "gram")
        assert node.kw["way"] == way
    plan_ops = [n.op for n in f.plan.program.graph.nodes]
    assert plan_ops == ["gram"]
    assert "gram" in f.plan.explain()
    for program in site.programs():
        y = np.full((COLUMNS, COLUMNS), np.nan, np.float32)
        arena = np.empty(program.arena_bytes, np.uint8)
        bind(program, 0, Alone(), CPU, arena, "<way>", 2).call(x, y)
        np.testing.assert_allclose(y, right, atol=0.05)
