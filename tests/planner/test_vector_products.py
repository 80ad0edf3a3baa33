"""On a GPU, products with one vector are sums of rows, and numbers made of sums belong to who reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.planner.prediction import runs

import ostinato as ost
from benchmarks import gpu_rows
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


def kernels(function: Any, *given: Any, **how: Any) -> list[str]:
    plan = ost.plan(function, *given, machine="h100", device=KERNELS, **how)
    graph = plan.program.graph
    return [node.op for k, node in enumerate(graph.nodes) if runs(plan.program, k)]


MATRIX, VECTOR = ost.spec((700, 90), "float32"), ost.spec((90,), "float32")


def test_what_is_around_a_vector_is_in_its_kernel() -> None:
    assert kernels(lambda a, v: ost.exp(a) @ v, MATRIX, VECTOR) == ["fused_rows"]
    column = ost.spec((90, 1), "float32")
    assert kernels(lambda a, v: a @ v, MATRIX, column) == ["fused_rows"]


@pytest.mark.parametrize(
    "case",
    [
        (lambda a, v: v @ a, (90, 700), (90,)),
        (lambda a, v: a.T @ v, (90, 700), (90,)),
        (lambda a, v: a @ v, (700, 90), (90, 2)),
    ],
)
def test_what_lies_across_is_the_librarys(case: Any) -> None:
    function, a, v = case
    assert "matmul" in kernels(function, ost.spec(a, "float32"), ost.spec(v, "float32"))


def test_halves_and_any_workers_are_as_before() -> None:
    halves = [ost.spec(s, "float16") for s in ((700, 90), (90,))]
    assert "matmul" in kernels(lambda a, v: a @ v, *halves)
    found = kernels(lambda a, v: a @ v, MATRIX, VECTOR, numerics="any-workers")
    assert any("matmul" in op or op == "blocks" for op in found)


def test_a_column_that_is_added_is_in_the_librarys_call() -> None:
    shapes = (700, 2000), (2000, 1), (700, 1)
    given = [ost.spec(s, "float32") for s in shapes]
    assert kernels(lambda a, v, c: c - a @ v, *given) == ["fused_matmul"]


def descent(a: Any, b: Any) -> Any:
    return gpu_rows.gradients(ost, a, b, steps=3)


def test_a_step_of_a_descent_is_three_kernels() -> None:
    n = 512
    found = kernels(descent, ost.spec((n, n), "float32"), ost.spec((n,), "float32"))
    assert len(found) == 1 + 3 + 3 + 3, found


@needs_compiler
def test_values() -> None:
    rng = np.random.default_rng(4)
    with ost.connect(device=KERNELS):
        for m, k, dtype in ((40, 70, "f4"), (3, 2000, "f8"), (1, 5, "f4"), (33, 1, "f4")):
            a, v = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k,)))
            got = ost.compile(lambda a, v: (a @ v, a @ v[:, None] + 1))(a, v)
            np.testing.assert_allclose(np.asarray(got[0]), a @ v, 1e-5, 1e-4)
            np.testing.assert_allclose(np.asarray(got[1]), a @ v[:, None] + 1, 1e-5, 1e-4)
        square = rng.standard_normal((24, 24)).astype("f4")
        square = square @ square.T + 24 * np.eye(24, dtype="f4")
        b = rng.standard_normal(24).astype("f4")
        got = np.asarray(ost.compile(descent)(square, b))
    np.testing.assert_allclose(got, np.asarray(descent(*map(ost.asarray, (square, b)))), 1e-4, 1e-5)


def test_numbers_that_are_results_or_of_constants_stay() -> None:
    n = ost.spec((512,), "float32")

    def both(x: Any, y: Any) -> Any:
        ratio = ost.sum(x * x) / ost.sum(y)
        return x * ratio, ratio

    assert len(kernels(both, n, n)) == 3
    assert len(kernels(lambda x, y: x * (ost.sum(x * x) / ost.sum(y)), n, n)) == 2
