"""Stacks of small products whose operands are turned, as heads of attention are, are one call of a GPU's library."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.products import product_key
from ostinato.ops.jit.stacks import stacked
from ostinato.planner.gpu.stacked_operands import _is_one_step

import ostinato as ost
from tests.fake_device import CONVOLVING
from tests.sessions import use

F32 = np.dtype(np.float32)


def heads(q: Any, k: Any, v: Any) -> Any:
    parts = [x.reshape((*x.shape[:2], 6, -1)).transpose((0, 2, 1, 3)) for x in (q, k, v)]
    made = ost.nn.softmax(parts[0] @ parts[1].mT) @ parts[2]
    return made.transpose((0, 2, 1, 3)).reshape(q.shape)


def test_heads_are_copied_once_for_all_products() -> None:
    """Of queries, keys, values and what comes back, for six products of six calls each."""
    x = ost.spec((8, 256, 384), "float32")

    def step(q: Any, k: Any, v: Any, g: Any) -> Any:
        y, back = ost.vjp(heads, q, k, v)
        return y, *back(g)

    graph = ost.plan(step, x, x, x, x, machine="h100", device=CONVOLVING).program.graph
    made = [n for n in graph.nodes if n.op == "copy" and n.specs[0].ndim == 4]
    assert len(made) == 4
    assert {n.specs[0].shape for n in made} == {(8, 6, 256, 64)}
    assert sum(n.op in ("matmul", "fused_matmul") for n in graph.nodes) == 6


def test_what_is_large_or_in_order_is_not_copied() -> None:
    for n, heads_of in ((4096, 2), (16, 1)):
        x = ost.spec((8, n, heads_of, 512), "float32")
        graph = ost.plan(
            lambda x: x.transpose((0, 2, 1, 3)) @ x.transpose((0, 2, 3, 1)),
            x, machine="h100", device=CONVOLVING,
        ).program.graph  # fmt: skip
        assert "copy" not in [node.op for node in graph.nodes]


@pytest.mark.parametrize("seed", range(20))
def test_what_lies_one_step_apart_is_one_call(seed: int) -> None:
    r = random.Random(seed)
    axes = tuple(r.sample(range(5), 5))
    shape = [r.choice((1, 2, 3)) for _ in axes]
    shape[axes[-1]] = shape[axes[-2]] = 4
    x = np.empty(shape, F32).transpose(axes)
    others = strided_like((*x.shape[:-2], 4, 4), F32), strided_like((*x.shape[:-2], 4, 4), F32)
    stacks = stacked(x, *others)
    key = product_key(*stacks) if stacks is not None else None
    if key is not None:
        assert (len(key.starts) == 1) == _is_one_step(tuple(shape), axes)


def test_values() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, 16, 24)).astype(np.float32) for _ in range(3))
    with use(device=CONVOLVING):
        made = np.asarray(ost.compile(heads)(q, k, v))
    wanted = np.asarray(ost.compile(heads)(q, k, v))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
