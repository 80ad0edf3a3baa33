"""Lines in order of which few elements are read: on a GPU these are found, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS

SHAPE = (9, 40, 5)
F32 = ost.spec(SHAPE, "float32")
READ: dict[str, Callable[[Any, Any], Any]] = {
    "one of each line": lambda xp, x: xp.sort(x, 1)[:, 20],
    "the last one, in all lines": lambda xp, x: xp.sort(x, -1)[..., -1],
    "two of some lines": lambda xp, x: (s := xp.sort(x, 0))[3, 2:4] + s[4, 2:4],
    "every third": lambda xp, x: xp.sort(x, 1)[:, 1:20:3, 1:],
    "the first ones": lambda xp, x: xp.sort(x, 1)[:, :6],
    "of a partition": lambda xp, x: xp.partition(x, (7, 30), 1)[:, 7:31:23],
}


def ops_of(function: Callable[..., Any], spec: Any = F32) -> list[str]:
    plan = ost.plan(function, spec, device=KERNELS)
    return [node.op for node in plan.program.graph.nodes]


@pytest.mark.skipif(not COMPILER, reason="needs a C++ compiler")
@pytest.mark.parametrize("how", READ)
def test_few_elements_are_found_by_rank(how: str) -> None:
    x = np.random.default_rng(0).integers(-4, 5, SHAPE).astype("f4")
    x[x == 3], x[x == 4] = -0.0, np.nan
    found = ops_of(lambda x: READ[how](ost, x))
    assert "order_statistics" in found
    assert {"sort", "partition"}.isdisjoint(found)
    with ost.connect(device=KERNELS):
        made = np.asarray(ost.compile(lambda x: READ[how](ost, x))(x))
    np.testing.assert_array_equal(made, READ[how](np, x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ost.sort(x, 1),
        lambda x: (s := ost.sort(x, 1), s[:, 3]),
        lambda x: (s := ost.sort(x, 1))[:, 3] + ost.sum(s, 1),
        lambda x: ost.sort(x, 1)[:, :33],
        lambda x: ost.argsort(x, 1)[:, 3],
        lambda x: ost.sort(x, 1, descending=True)[:, 3],
    ],
)
def test_else_lines_are_put_in_order(function: Any) -> None:
    assert "order_statistics" not in ops_of(function)
