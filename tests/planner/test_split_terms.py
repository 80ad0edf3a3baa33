"""Products of few results and very many terms on a GPU: in parts that occupy it, and their sum."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.planner.gpu import split_terms
from ostinato.planner.prediction import runs

import ostinato as ost
from tests.fake_device import KERNELS
from tests.sessions import use


def kernels(function: Any, *specs: Any, machine: str = "h100") -> list[Any]:
    program = ost.plan(function, *specs, machine=machine, device=KERNELS).program
    return [n for k, n in enumerate(program.graph.nodes) if runs(program, k)]


@pytest.mark.parametrize("seed", range(12))
def test_any_way_that_operands_lie(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_terms, "MIN_TERMS", 512)
    monkeypatch.setattr(split_terms, "PARTS", 16)
    r, rng = random.Random(seed), np.random.default_rng(seed)
    terms, m, n = r.choice((1024, 1500, 4097)), r.randint(1, 9), r.randint(1, 9)
    x, y = rng.normal(size=(terms, m)), rng.normal(size=(terms, n))
    left, right = r.random() < 0.5, r.random() < 0.5
    given = x if left else np.ascontiguousarray(x.T), y if right else np.ascontiguousarray(y.T)

    def product(a: Any, b: Any) -> Any:
        return (a.T if left else a) @ (b if right else b.T)

    seen: list[int] = []
    before = split_terms._terms_of_part

    def parts(terms: int) -> int:
        seen.append(terms)
        return before(terms)

    monkeypatch.setattr(split_terms, "_terms_of_part", parts)
    with use(device=KERNELS):
        found = np.asarray(ost.compile(product)(*map(ost.asarray, given)))
    assert seen == [terms]
    np.testing.assert_allclose(found, x.T @ y, 1e-12, 1e-10)


def test_the_matrix_itself_is_read_in_parts_that_are_alike() -> None:
    """Nothing is copied; a remainder is only where terms have no divisor."""

    def gram(x: Any) -> Any:
        return x.T @ x

    a, b = kernels(gram, ost.spec((1_000_000, 16), "float32"))
    assert (a.op, a.specs[0].shape, b.op) == ("matmul", (500, 16, 16), "fused_nest")
    assert len(kernels(gram, ost.spec((1_000_003, 16), "float32"))) <= 4
    assert len(kernels(gram, ost.spec((1_000_000, 512), "float32"))) == 1  # results enough


def test_a_product_in_stages_has_a_price() -> None:
    """Of many rows it is the library's, of few it stays in the kernel of what follows."""

    def rates(x: Any, w: Any) -> Any:
        return ost.nn.softmax(x @ w, 1)

    w = ost.spec((64, 16), "float32")
    assert [n.op for n in kernels(rates, ost.spec((200_000, 64), "float32"), w)] == [
        "matmul",
        "fused_nest",
    ]
    assert [n.op for n in kernels(rates, ost.spec((500, 64), "float32"), w)] == ["fused_nest"]
