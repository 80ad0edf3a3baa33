"""Sums of windows of one series become sums over all of it, so that they are one kernel (planner/gpu)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.planner.gpu.align_sums import align_sums
from ostinato.planner.plan import Target

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.sessions import JOB

TARGET = Target((1,), device=KERNELS)


def lagged(x: Any, lags: Any) -> list[Any]:
    return [(x[k:] * x[: x.shape[0] - k]).sum() for k in lags]


def is_aligned(function: Any, *shape: int, **how: Any) -> bool:
    """Whether all is one kernel with zeros in it."""
    plan = ost.plan(function, ost.spec(shape, "float32"), device=KERNELS, **how)
    graph = plan.program.graph
    one = len([n for n in graph.nodes if n.op.startswith("fused")]) == 1
    assert one or "pad(" not in str(graph)
    return "pad(" in str(graph)


@pytest.mark.parametrize(
    ("function", "aligned"),
    [
        (lambda x: lagged(x, range(8)), True),
        (lambda x: lagged(x - 1.0, (1, 3, 9, 100)), True),
        (lambda x: [ost.abs(x[k:] - x[:-k]).sum() for k in (1, 2, 5)], True),
        (lambda x: [((x[k:] - x[:-k]) ** 2).mean() for k in (1, 2, 5)], True),
        (lambda x: lagged(x, (1, 2)), False),  # few
        (lambda x: lagged(x, (400, 401, 402)), False),  # nearly half of the series is lacking
        (lambda x: [(x[k:] * x[:-k]).max() for k in (1, 2, 5)], False),
    ],
)
def test_which_sums_are_one_kernel(function: Any, aligned: bool) -> None:
    assert is_aligned(function, 1000) == aligned


def test_not_where_the_order_of_a_sum_is_said() -> None:
    assert not is_aligned(lambda x: lagged(x, range(5)), 100_000, numerics="any-workers")


def test_what_it_makes() -> None:
    """The zeros are behind; what has all elements stays as it is."""
    graph = ost.plan(lambda x: lagged(x, range(4)), ost.spec((50,)), device="fake").program.graph
    made = align_sums(graph, TARGET)
    pads = [n for n in made.nodes if n.op == "pad"]
    assert [(n.kw["widths"], n.specs[0].shape) for n in pads] == [
        (((0, k),), (50,)) for k in (1, 2, 3)
    ]
    assert align_sums(made, TARGET) == made
    assert made.out_specs == graph.out_specs


@pytest.mark.skipif(COMPILER is None, reason="the tests have no compiler")
@pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_as_numpy_adds(dtype: str) -> None:
    """Also infinities, which meet no zeros."""
    rng = np.random.default_rng(3)
    lags = (0, *sorted(rng.choice(60, 4, replace=False) + 1))
    x = (10 * rng.normal(size=3000)).astype(dtype)
    with ost.connect(device=KERNELS):
        run = ost.compile(lambda x: lagged(x, lags))
        for last in (x[-1], np.inf if x.dtype.kind == "f" else 7):
            x[-1] = last
            found = [np.asarray(y) for y in run(ost.asarray(x))]
            np.testing.assert_allclose(found, lagged(x.astype("f8"), lags), rtol=1e-5)
        assert len([n for n in run.plan.program.graph.nodes if n.op.startswith("fused")]) == 1
