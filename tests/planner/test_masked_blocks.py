"""What a mask known at planning excludes: that it is not computed, that results and slopes are those of
NumPy, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.machine import NOMINAL
from ostinato.planner.passes import masked_blocks

import ostinato as ost

Mask = Callable[[Any, Any, int], Any]
MASKS: dict[str, Mask] = {
    "causal": lambda i, j, w: i >= j,
    "strict": lambda i, j, w: j <= i - 1,  # of which the first row sees nothing
    "later": lambda i, j, w: i <= j,
    "offset": lambda i, j, w: i + w >= j,
    "band": lambda i, j, w: abs(i - j) < w,
    "window": lambda i, j, w: (i >= j) & (i - j < w),
    "inverted": lambda i, j, w: ~(j > i + w),
    "scattered": lambda i, j, w: (i + j) % 3 == 0,
}


def attend(q: Any, k: Any, v: Any, mask: Mask, width: int, turned: bool = False) -> Any:
    n, m = q.shape[-2], k.shape[-2]
    seen = mask(ost.arange(n)[:, None], ost.arange(m)[None, :], width)
    scores = q @ ost.matrix_transpose(k) * 0.3
    scores = ost.where(~seen, -np.inf, scores) if turned else ost.where(seen, scores, -np.inf)
    top = ost.stop_gradient(scores.max(-1, keepdims=True))
    e = ost.exp(scores - ost.where(ost.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return (e / ost.where(total == 0, 1, total)) @ v


def by_numpy(q: Any, k: Any, v: Any, g: Any, seen: Any) -> list[Any]:
    """The result and the slopes."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scores = np.where(seen, q @ np.swapaxes(k, -1, -2) * 0.3, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    dp = g @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * 0.3
    back = np.swapaxes
    return [p @ v, ds @ k, back(ds, -1, -2) @ q, back(p, -1, -2) @ g]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing took time but products, so that small arrays are cut."""
    fast = (("float32", 1e30),)
    machine = replace(NOMINAL, call_seconds=0.0, stream=((1, 1e30),), elements=fast)
    for name, value in {"ROWS": {2: 8, 4: 16}, "NOMINAL": machine}.items():
        monkeypatch.setattr(masked_blocks, name, value)


def plan_of(*shapes: Any, f: Any, dtype: str = "float32", **how: Any) -> Any:
    return ost.plan(f, *[ost.spec(s, dtype) for s in shapes], **how)


def multiplied(graph: Graph) -> float:
    """Operations of products."""
    specs = graph.specs
    return sum(
        OPS[n.op].cost(tuple([specs[v] for v in n.inputs]), n.specs, n.kw)[0]
        for n in graph.nodes
        if OPS[n.op].product
    )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("seed", range(3))
def test_results_and_slopes_are_numpys(name: str, seed: int) -> None:
    rng = np.random.default_rng((seed, [*MASKS].index(name)))
    n, m, d = (int(rng.integers(*r)) for r in ((33, 90), (33, 90), (1, 9)))
    width, batch = int(rng.integers(1, 12)), [(), (2,), (2, 3)][seed]
    dtype, near = [(np.float32, 3e-4), (np.float64, 1e-9)][seed % 2]
    shapes = ((n, d), (m, d), (m, d), (n, d))
    q, k, v, g = (rng.standard_normal((*batch, *s)).astype(dtype) for s in shapes)

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        def made(p: Any) -> Any:
            return attend(*p, MASKS[name], width, turned=seed == 1)

        return made((q, k, v)), ost.grad(lambda p: (made(p) * g).sum())((q, k, v))

    compiled = ost.compile(both)
    y, slopes = compiled(q, k, v, g)
    seen = MASKS[name](np.arange(n)[:, None], np.arange(m)[None, :], width)
    for made, wanted in zip((y, *slopes), by_numpy(q, k, v, g, seen), strict=True):
        np.testing.assert_allclose(np.asarray(made), wanted, rtol=near, atol=near)
    assert ("concat" in str(compiled.plan.lowered)) == (name != "scattered")


def causal(q: Any, k: Any, v: Any) -> Any:
    return ost.nn.attention(q, k, v, is_causal=True)


def slopes(q: Any, k: Any, v: Any) -> Any:
    return ost.grad(lambda p: (causal(*p) ** 2).sum())((q, k, v))


@pytest.mark.parametrize("f", [causal, slopes])
@pytest.mark.parametrize("n", [256, 1024])
def test_four_blocks_multiply_five_eighths(f: Any, n: int) -> None:
    shapes = [(2, 4, n, 64)] * 3
    plan = plan_of(*shapes, f=f)
    whole = plan_of(*shapes, f=f, numerics="any-workers")  # of which no sum is taken apart
    masked = multiplied(plan.lowered)
    assert masked == pytest.approx(multiplied(whole.traced) * 5 / 8, rel=0.01)


def test_a_band_multiplies_what_is_near_it() -> None:
    def banded(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, MASKS["window"], 128)

    plan = plan_of(*[(4, 2048, 64)] * 3, f=banded)
    assert multiplied(plan.lowered) < 0.35 * multiplied(plan.traced)


def test_what_stays_as_it_is() -> None:
    def given(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return ost.nn.attention(q, k, v, mask=mask)

    def added(q: Any, k: Any, v: Any) -> Any:  # nothing makes an end of what is behind the mask
        scores = q @ ost.matrix_transpose(k)
        i, j = ost.arange(scores.shape[-2])[:, None], ost.arange(scores.shape[-1])[None, :]
        return ost.where(i >= j, scores, 1.0) @ v

    def bare(q: Any, k: Any, v: Any) -> Any:  # weights are wanted whole
        scores = ost.where(MASKS["causal"](*np.ix_(range(512), range(512)), 0), q @ k.mT, -np.inf)
        return ost.exp(scores)

    shapes = [(2, 512, 64)] * 3
    plans = [
        ost.plan(given, *[ost.spec(s, "float32") for s in shapes], ost.spec((512, 512), "bool")),
        plan_of(*shapes, f=added),
        plan_of(*shapes, f=bare),
        plan_of(*[(2, 128, 64)] * 3, f=causal),  # which does not pay
        plan_of(*shapes, f=causal, numerics="any-workers"),
        plan_of(*shapes, f=causal, memory_limit=1 << 30),
    ]
    assert not any("concat" in str(plan.lowered) for plan in plans)


def test_what_is_behind_the_mask_is_not_read() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((512, 64)).astype(np.float32) for _ in range(3))
    wanted = np.asarray(ost.compile(causal)(q, k, v))
    v[-1] = np.nan
    made = np.asarray(ost.compile(causal)(q, k, v))
    np.testing.assert_array_equal(made[:384], wanted[:384])
    assert np.isnan(made[-1]).all()


def test_a_plan_file_says_so_too() -> None:
    plan = plan_of(*[(2, 512, 64)] * 3, f=slopes)
    assert "concat" in str(plan.lowered)
    assert decode_plan(encode_plan(plan)).lowered == plan.lowered


def test_long_ones_still_stay_in_cache() -> None:
    plan = plan_of(*[(6, 4096, 64)] * 3, f=slopes)
    assert sum(n.op == "blocks" for n in plan.lowered.nodes) == 3
    assert plan.peak_bytes < 300 << 20


def test_tables_that_are_no_masks_are_left_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of places alone exclude nothing, however large a table of them is."""
    sizes, computed = [0], masked_blocks.computed

    def counted(node: Any, args: Any) -> Any:
        made = computed(node, args)
        sizes.append(made.size)
        return made

    monkeypatch.setattr(masked_blocks, "computed", counted)

    def blurred(x: Any) -> Any:
        i = ost.arange(1024)
        return ost.exp(-((i[:, None] - i[None]) ** 2) / 50) @ x

    x = np.ones((1024, 3), np.float32)
    ost.compile(blurred).plan_for(x)
    assert max(sizes) <= 1
    ost.compile(lambda x: ost.where(ost.arange(1024)[:, None] >= ost.arange(1024), 1.0, 0.0) @ x)(x)
    assert max(sizes) == 1024**2
