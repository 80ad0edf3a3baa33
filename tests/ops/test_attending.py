"""Attention with masks and groups of heads, and rotary features, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.helpers import assert_same, on

from .test_gradients import check, pullback

RNG = np.random.default_rng(9)


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: Any = None
) -> Any:
    """Head by head: each of queries with its own of keys."""
    heads = q.shape[-3]
    k, v = (np.repeat(a, heads // a.shape[-3], -3) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0) @ v


MASKS = {
    "none": None,
    "seen": RNG.random((5, 7)) < 0.5,
    "seen by heads": RNG.random((2, 4, 5, 7)) < 0.5,
    "added": RNG.normal(size=(4, 1, 7)) * 3,
}
MASKS["seen"][2] = False  # a query that sees nothing


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("name", "causal"), [*itertools.product(MASKS, (False, True))])
def test_attention(heads: int, name: str, causal: bool) -> None:
    mask = MASKS[name]
    q, k, v = (RNG.normal(size=s) for s in ((2, 4, 5, 3), (2, heads, 7, 3), (2, heads, 7, 6)))
    scale = 0.7 if causal else None

    def function(q: Any, k: Any, v: Any) -> Any:
        return ost.nn.attention(q, k, v, mask=mask, is_causal=causal, scale=scale)

    def reference(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, mask, causal, scale)

    if heads == 2 and not causal:
        assert_same(function, reference, q, k, v, few=True)
    with on(1):
        np.testing.assert_allclose(np.asarray(function(q, k, v)), reference(q, k, v), 1e-11, 1e-13)
        if heads < 4:
            check(function, q, k, v, rtol=1e-5)
    if (heads, name, causal) == (2, "seen by heads", True):
        with on(1):
            check(pullback(function), q, k, v, rtol=1e-5)
            unmasked = ost.vmap(lambda q: ost.nn.attention(q, k, v, is_causal=True))
            wanted = attention(-q, k, v, None, True)
            np.testing.assert_allclose(np.asarray(unmasked(np.stack([q, -q])))[1], wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_of_halves_are_wide(dtype: str) -> None:
    """Sums of 600 products of size 10 are far from halves, and so are their exponentials."""
    q, k, v = (ost.asarray(RNG.normal(size=(2, 9, 600)) * 3, dtype=dtype) for _ in range(3))
    made = ost.nn.attention(q, k, v)
    assert made.dtype == DTYPES[dtype]
    exact = attention(*(np.asarray(a).astype(float) for a in (q, k, v)))
    eps = float(ost.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(made).astype(float), exact, 4 * eps, 16 * eps)


def test_heads_that_share_a_key_are_one_product() -> None:
    """No key is repeated: the largest value in memory is the scores."""
    q, k = np.ones((8, 64, 16)), np.ones((2, 64, 16))
    with on(1):
        f = ost.compile(lambda q, k: ost.nn.attention(q, k, k))
        f(ost.asarray(q), ost.asarray(k))
        products = [n for n in f.plan.traced.nodes if n.op == "matmul"]
        assert [n.specs[0].shape for n in products] == [(2, 256, 64), (2, 256, 16)]


@pytest.mark.parametrize(("dtype", "divisions"), [("float32", 0), ("float16", 1)])
def test_what_is_divided(dtype: str, divisions: int) -> None:
    """Results instead of scores, of which slopes then keep only exponentials; but sums of halves could
    be too large for halves."""
    q, v = np.ones((2, 4, 3), dtype), np.full((2, 4, 3), 60_000, dtype)
    with on(1):
        f = ost.compile(
            lambda q, v: ost.value_and_grad(lambda q: ost.nn.attention(q, q, v).max())(q)
        )
        top, slopes = f(q, v)
        assert (float(top), np.asarray(slopes).any()) == (np.dtype(dtype).type(60_000), False)
        kinds = [n.op for n in f.plan.traced.nodes if n.specs[0].shape == (2, 4, 4)]
    assert (kinds.count("exp"), kinds.count("divide") > 0) == (1, divisions > 0), kinds


def turned(x: Any, places: Any, base: float, count: int, beside: bool) -> Any:
    """As complex numbers."""
    pairs = np.arange(count // 2)
    a, b = (2 * pairs, 2 * pairs + 1) if beside else (pairs, pairs + count // 2)
    angles = places[..., None] / base ** (2 * pairs / count)
    z, y = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angles), x.copy()
    y[..., a], y[..., b] = z.real, z.imag
    return y


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("count", [None, 4])
def test_rotary(beside: bool, count: int | None) -> None:
    x, places = RNG.normal(size=(2, 3, 5, 6)), RNG.integers(0, 90, (2, 1, 5))
    p: dict[str, Any] = {"base": 500.0, "features": count, "interleaved": beside}
    assert_same(
        lambda x, i: ost.nn.rotary(x, i, **p),
        lambda x, i: turned(x, i, 500.0, count or 6, beside),
        x, places, few=True,
    )  # fmt: skip
    with on(1):
        check(lambda x: ost.nn.rotary(x, places, **p), x)
        y = ost.nn.rotary(x, **p)
        np.testing.assert_allclose(
            np.asarray(y), turned(x, np.arange(5), 500.0, count or 6, beside)
        )
        half = ost.nn.rotary(ost.asarray(x, dtype="bfloat16"), places + 10_000, **p)
        assert half.dtype == ost.bfloat16
        exact = turned(x, places + 10_000, 500.0, count or 6, beside)
        np.testing.assert_allclose(np.asarray(half).astype(float), exact, 0.02, 0.04)


A = ost.ones((6, 4, 2))
WRONG = [
    (
        lambda: ost.nn.attention(A, A[:4], A[:4]),
        ShapeError,
        "6 heads of queries, 4 of keys, 4 of values; needed as many",
    ),
    (lambda: ost.nn.attention(A, A[:3], A[:2]), ShapeError, "as many of keys as of values"),
    (lambda: ost.nn.attention(A[0, 0], A, A), ShapeError, r"needed \(..., length, features\)"),
    (lambda: ost.nn.rotary(A, features=3), ArgumentError, "got features=3 of .* an even number"),
    (lambda: ost.nn.rotary(A[0, 0]), ArgumentError, r"of shape \(2,\)"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_attending.py:{run.__code__.co_firstlineno}" in str(caught.value)
