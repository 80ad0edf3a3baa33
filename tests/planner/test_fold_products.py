"""Slopes of matrices that multiply whole batches: one product, without one for each of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.show import parse
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.fusion.fold_products import fold_products
from ostinato.planner.plan import Target

import ostinato as ost
from tests.helpers import on

TWO = Target((2,))


def test_the_pass() -> None:
    before = parse("""
        (%0: float32[8,30,40] @ split 0 of 2, %1: float32[8,30,50] @ split 0 of 2)
        %2 = einsum(%0, %1; text='btk,btn->kn') : float32[40,50] @ partial sum of 2
        %3 = einsum(%0, %1; text='btk,btn->nk') : float32[50,40] @ partial sum of 2
        return %2, %3
    """)
    after = parse("""
        (%0: float32[8,30,40] @ split 0 of 2, %1: float32[8,30,50] @ split 0 of 2)
        %2 = reshape(%0; shape=(240, 40)) : float32[240,40] @ split 0 of 2
        %3 = permute_dims(%2; axes=(1, 0)) : float32[40,240] @ split 1 of 2
        %4 = reshape(%1; shape=(240, 50)) : float32[240,50] @ split 0 of 2
        %5 = matmul(%3, %4) : float32[40,50] @ partial sum of 2
        %6 = permute_dims(%4; axes=(1, 0)) : float32[50,240] @ split 1 of 2
        %7 = matmul(%6, %2) : float32[50,40] @ partial sum of 2
        return %5, %7
    """)
    assert str(fold_products(before, TWO)).count("matmul") == 2
    found, wanted = fold_products(before, TWO), after
    assert {str(n.op) for n in found.nodes} == {str(n.op) for n in wanted.nodes}
    assert found.out_specs == wanted.out_specs
    assert fold_products(found, TWO) == found
    products = [n for n in found.nodes if n.op == "matmul"]
    assert [[found.specs[v] for v in n.inputs] for n in products] == [
        [wanted.specs[v] for v in n.inputs] for n in wanted.nodes if n.op == "matmul"
    ]


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        ("7,30,40] @ split 0", "7,30,50] @ split 0", "btk,btn->kn"),  # parts of two sizes
        ("8,30,40] @ split 1", "8,30,50] @ split 1", "btk,btn->kn"),  # an inner axis is cut
        ("8,30,40] @ split 0", "30,8,50] @ split 1", "btk,tbn->kn"),  # in another order
        ("8,3,4] @ split 0", "8,3,5] @ split 0", "btk,btn->kn"),  # too small to be worth it
    ],
)
def test_what_stays_a_sum_over_axes(left: str, right: str, text: str) -> None:
    sizes = {"8,3,4]": "4,5"}.get(left.split(" ")[0], "40,50")
    graph = parse(f"""
        (%0: float32[{left} of 2, %1: float32[{right} of 2)
        %2 = einsum(%0, %1; text='{text}') : float32[{sizes}] @ partial sum of 2
        return %2
    """)
    assert fold_products(graph, TWO) == graph


def slopes(x: Any, w: Any) -> Any:
    return ost.grad(lambda w: ost.sin(x @ w).sum())(w)


def turned(x: Any, w: Any) -> Any:
    return ost.grad(lambda w: ost.sin(w.T @ ost.swapaxes(x, -1, -2)).sum())(w)


@pytest.mark.parametrize("function", [slopes, turned])
@pytest.mark.parametrize("split", [0, 1, 2, None])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("batch", [(6, 40), (7, 41), (2, 3, 40)], ids=str)
def test_values(function: Any, split: int | None, workers: int, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(*batch, 30)), rng.normal(size=(30, 50))
    with on(workers):
        f = ost.compile(function)
        found = np.asarray(f(ost.asarray(x, split=split), w))
        assert decode_plan(encode_plan(f.plan)) == f.plan
    rows = x.reshape(-1, 30)
    np.testing.assert_allclose(found, rows.T @ np.cos(rows @ w), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", [slopes, turned])
def test_any_workers_any_bits(function: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 11, 30)).astype(np.float32)
    w = rng.normal(size=(30, 50)).astype(np.float32)
    found = set()
    for workers in (1, 2, 3, 4):
        with on(workers, numerics="any-workers"):
            for split in (0, None):
                made = ost.compile(function)(ost.asarray(x, split=split), w)
                found.add(np.asarray(made).tobytes())
    assert len(found) == 1


def test_the_batch_takes_no_memory() -> None:
    x, w = np.ones((64, 8, 100), np.float32), np.ones((100, 200), np.float32)
    for precision in ("as-written", "mixed_bf16"):
        f = ost.compile(slopes, precision=precision)
        f(x, w)
        products = 64 * 100 * 200 * 4
        assert f.plan.arena_bytes < products / 2
        assert not [n for n in f.plan.program.graph.nodes if n.op == "einsum"]


def test_slopes_of_slopes() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4, 5)), rng.normal(size=(5, 6))

    def second(w: Any) -> Any:
        return ost.grad(lambda w: (ost.grad(lambda w: ((x @ w) ** 3).sum())(w) ** 2).sum())(w)

    rows = x.reshape(-1, 5)
    y = rows @ w
    first = rows.T @ (3 * y**2)
    right = rows.T @ (6 * y * (rows @ (2 * first)))
    np.testing.assert_allclose(np.asarray(second(w)), right, rtol=1e-9)


def test_any_workers_keep_their_parts_of_the_batch() -> None:
    """There each of the batch has its product, whose sum is that of fixed blocks: nobody gathers it."""
    x, g = np.ones((4, 64, 30), np.float32) / 3, np.ones((4, 64, 50), np.float32) / 7
    with on(2, numerics="any-workers"):
        f = ost.compile(lambda x, g: ost.einsum("btk,btn->kn", x, g))
        h = ost.compile(lambda x, g: (ost.swapaxes(x, 1, 2) @ g).sum(axis=0))
        given = [ost.asarray(v, split=0) for v in (x, g)]
        assert np.asarray(f(*given)).tobytes() == np.asarray(h(*given)).tobytes()
        assert peaks(f) <= peaks(h)


def peaks(f: Any) -> int:
    return int(f.plan.peak_bytes)
