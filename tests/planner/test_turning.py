"""What is made of a transpose as its operand lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.planner.fusion.sink_transposes import sink_transposes
from ostinato.planner.plan import Target

import ostinato as ost
from tests import sessions

HERE = Target((1,))

BEFORE = """
    (%0: float32[6000,8])
    %1 = permute_dims(%0; axes=(1, 0)) : float32[8,6000]
    %2 = mean(%1; axes=(1,), count=6000) : float32[8]
    %3 = expand_dims(%2; axes=(1,)) : float32[8,1]
    %4 = subtract(%1, %3) : float32[8,6000]
    %5 = permute_dims(%4; axes=(1, 0)) : float32[6000,8]
    %6 = matmul(%4, %5) : float32[8,8]
    return %6
"""
AFTER = """
    (%0: float32[6000,8])
    %1 = mean(%0; axes=(0,), count=6000) : float32[8]
    %2 = expand_dims(%1; axes=(1,)) : float32[8,1]
    %3 = permute_dims(%2; axes=(1, 0)) : float32[1,8]
    %4 = subtract(%0, %3) : float32[6000,8]
    %5 = permute_dims(%4; axes=(1, 0)) : float32[8,6000]
    %6 = matmul(%5, %4) : float32[8,8]
    return %6
"""


def test_before_and_after() -> None:
    before, after = parse(BEFORE), parse(AFTER)
    assert canonical(sink_transposes(before, HERE)) == canonical(after)
    assert canonical(sink_transposes(after, HERE)) == canonical(after)


SLOPES = """
    (%0: float32[64,80], %1: float32[64,90], %2: float32[90,80])
    %3 = permute_dims(%0; axes=(1, 0)) : float32[80,64]
    %4 = matmul(%3, %1) : float32[80,90]
    %5 = permute_dims(%4; axes=(1, 0)) : float32[90,80]
    %6 = subtract(%2, %5) : float32[90,80]
    return %6
"""


def test_a_product_that_is_read_as_its_transpose_is_made_so() -> None:
    """Of one reader, and by a kernel; else it stays."""
    made = sink_transposes(parse(SLOPES), HERE)
    (product,) = (n for n in made.nodes if n.op == "matmul")
    assert product.specs[0].shape == (90, 80)
    assert [n.op for n in made.nodes][-2:] == ["matmul", "subtract"]
    for old, new in [
        ("return %6", "return %6, %4"),
        ("subtract(%2, %5) : float32[90,80]", "matmul(%5, %4) : float32[90,90]"),
    ]:
        graph = parse(SLOPES.replace(old, new))
        assert sink_transposes(graph, HERE) is graph


def test_what_stays() -> None:
    """What is given back, sorted, or met by something large that is not turned; and fixed trees."""
    given = """
        (%0: float32[6000,8])
        %1 = permute_dims(%0; axes=(1, 0)) : float32[8,6000]
        %2 = exp(%1) : float32[8,6000]
        %3 = sum(%2; axes=(1,), dtype=dtype float32) : float32[8]
        return %2, %3
    """
    other = """
        (%0: float32[6000,8], %1: float32[8,6000])
        %2 = permute_dims(%0; axes=(1, 0)) : float32[8,6000]
        %3 = subtract(%2, %1) : float32[8,6000]
        %4 = sum(%3; axes=(1,), dtype=dtype float32) : float32[8]
        return %4
    """
    ordered = """
        (%0: float32[6000,8])
        %1 = permute_dims(%0; axes=(1, 0)) : float32[8,6000]
        %2 = exp(%1) : float32[8,6000]
        %3 = sort(%2; axis=1) : float32[8,6000]
        return %3
    """
    turned = """
        (%0: float32[60,8,9])
        %1 = permute_dims(%0; axes=(2, 1, 0)) : float32[9,8,60]
        %2 = sum(%1; axes=(0,), dtype=dtype float32) : float32[8,60]
        return %2
    """
    for text in (given, other, ordered, turned):
        graph = parse(text)
        assert sink_transposes(graph, HERE) is graph
    fixed = Target((1,), numerics="any-workers")
    assert sink_transposes(parse(BEFORE), fixed) == parse(BEFORE)


PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cov": lambda xp, x, w: xp.cov(x.T),
    "means": lambda xp, x, w: x.T.mean(1),
    "variances": lambda xp, x, w: (x.T * 2).var(1),
    "product": lambda xp, x, w: (x.T * w[:, None] + 1) @ x,
    "twice": lambda xp, x, w: xp.exp(x.T) @ (x - w) + (xp.exp(x.T)).sum(1),
    "behind": lambda xp, x, w: (x.T - w[:, None]).T @ xp.ones((8, 3)),
    "both": lambda xp, x, w: ((x.T - x.T.max(0)) * x.T).sum(1),
    "given too": lambda xp, x, w: xp.concatenate([x.T * 2, (x.T * 2).sum(1, keepdims=True)], 1),
    "stacks": lambda xp, x, w: xp.swapaxes(xp.reshape(x, (50, -1, 8)) * 1, 1, 2).max(2),
    "stacks multiplied": lambda xp, x, w: (
        (xp.swapaxes(xp.reshape(x, (50, -1, 8)), 1, 2) + 1) @ xp.reshape(x, (50, -1, 8))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("mesh", "split"), [((1,), None), ((3,), 0), ((2,), 1)])
def test_values(name: str, mesh: Any, split: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3000, 8)), rng.normal(size=8)
    with sessions.use(mesh):
        f = ost.compile(lambda x, w: PROGRAMS[name](ost, x, w))
        made = np.asarray(f(ost.asarray(x, split=split), w))
    np.testing.assert_allclose(made, PROGRAMS[name](np, x, w), rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_kernels_write_rows_as_they_read_them() -> None:
    x = np.random.default_rng(0).normal(size=(30_000, 8)).astype(np.float32)
    with sessions.use():
        f = ost.compile(lambda x: ost.cov(x.T, dtype="float32"))
        np.testing.assert_allclose(np.asarray(f(x)), np.cov(x.T), rtol=1e-4, atol=1e-5)
        kernels = [n for n in f.plan.program.graph.nodes if n.op.startswith("fused")]
    assert [n.specs[0].shape for n in kernels] == [(8,), (30_000, 8)]


def test_what_is_made_of_a_row_and_a_column() -> None:
    """An outer product has no operand of its own size that could be a library's product."""
    rng = np.random.default_rng(5)
    x, r = rng.standard_normal((500, 3)), rng.random((500, 4))
    mean = x[:4]

    def spread(xp: Any, x: Any, r: Any) -> Any:
        apart = x[:, None] - mean[None]
        return xp.einsum("nk,nki,nkj->kij", r, apart, apart) / r.sum(0)[:, None, None]

    made = ost.compile(lambda x, r: spread(ost, x, r))(x, r)
    np.testing.assert_allclose(made, spread(np, x, r), 1e-12)
