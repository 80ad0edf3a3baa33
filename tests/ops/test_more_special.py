"""Special functions that are a few of the others: what SciPy gives, and slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.sessions import use

R = np.random.default_rng(4)
N = np.array([0.0, 1.0, 2.0, 5.0, 30.5, 400.0, 12345.0])
K = np.array([0.0, 1.0, 0.5, 3.0, 30.0, 7.0, 12.0])
S = np.array([-3.0, -0.2, 0.0, 1e-9, 0.7, 2.0, 5.0])
P = np.abs(S) + 0.1
L = np.array([-1.5, 0.0, 1e-9, 0.3, 1.0, 2.0, 0.0])

CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("binom", (N, K)), ("comb", (np.floor(N), np.floor(K))), ("comb", (np.array([3, -1, 2]), np.array([5, 1, -1]))),
    ("binom", (np.array([-1.5, 3.3, 0.5, 1.25, 2.0, -2.0, 4.0]), np.array([7.75, 4.4, -7.25, -1.5, 7.75, 0.5, -1]))),
    ("comb", (N, K)), ("huber", (np.array([1.0, np.nan]), np.array([np.nan, 1.0]))),
    ("zeta", (np.array([-30.0, -7.25, -2, -0.3, -0.2, -1e-9, 0, 0.5, 1, 3]),)),
    ("factorial", (np.array([0, 1, 5, 20, -1, 170]),)), ("factorial", (np.array([0.5, 4.5]),)),
    ("exp10", (S,)), ("log_expit", (S * 300,)), ("boxcox", (P, L)), ("boxcox1p", (P - 0.1, L)),
    ("inv_boxcox", (S / 9, L)), ("huber", (np.array([1.0, 2, 1, 0, -1, 3, 1]), S)),
    ("pseudo_huber", (np.array([1.0, 2, 1, 0, -1, 3, 1]), S)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), CASES, ids=[c[0] for c in CASES])
def test_as_in_scipy(name: str, given: tuple[Any, ...]) -> None:
    with np.errstate(all="ignore"):
        wanted = getattr(scipy.special, name)(*given)
    with use():
        f = getattr(ost.special, name)
        for run in (f, ost.compile(f)):
            np.testing.assert_allclose(np.asarray(run(*given)), wanted, rtol=1e-12, atol=1e-15)
        assert f(*(np.float32(2) for _ in given)).dtype == ost.float32


def test_of_matrices_and_sets() -> None:
    with use():
        for d in (1, 3):
            wanted = scipy.special.multigammaln(N[3:], d)
            np.testing.assert_allclose(ost.special.multigammaln(N[3:], d), wanted, rtol=1e-13)
        found = ost.special.comb([4, 5], 2, repetition=True)
        assert found.tolist() == [scipy.special.comb(n, 2, repetition=True) for n in (4, 5)]
        for name in ("comb", "factorial"):
            with pytest.raises(ArgumentError, match=f"exact=True.*use math.{name}"):
                getattr(ost.special, name)(*(3, 2)[: 1 + (name == "comb")], exact=True)


def test_slopes_are_those_of_the_functions() -> None:
    with use():
        for name, given in (
            ("binom", (5.5, 2.3)), ("boxcox", (1.7, 0.0)), ("boxcox", (1.7, 0.4)), ("huber", (1.0, 2.0)),
            ("pseudo_huber", (1.3, 0.4)), ("inv_boxcox", (0.3, 0.7)), ("log_expit", (0.3,)),
        ):  # fmt: skip
            h, at = 1e-6, len(given) - 1 if name != "boxcox" else 0
            f = getattr(ost.special, name)
            near = [
                float(f(*(v + s * h * (k == at) for k, v in enumerate(given)))) for s in (1.0, -1.0)
            ]
            slope = float(ost.grad(f, argnums=at)(*given))
            assert slope == pytest.approx((near[0] - near[1]) / (2 * h), rel=1e-6), name


# -- networks' functions ---------------------------------------------------------------------
def test_activations() -> None:
    x = S
    wanted = {
        "celu": np.maximum(x, 0) + np.minimum(0, np.expm1(x)),
        "selu": 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "relu6": np.clip(x, 0, 6),
        "hard_tanh": np.clip(x, -1, 1),
        "hard_sigmoid": np.clip(x + 3, 0, 6) / 6,
        "softsign": x / (1 + abs(x)),
        "mish": x * np.tanh(np.log1p(np.exp(x))),
    }
    with use():
        for name, y in wanted.items():
            np.testing.assert_allclose(getattr(ost.nn, name)(x), y, atol=1e-14, err_msg=name)
        half = R.normal(size=(3, 4))
        wanted_half = half[:, :2] / (1 + np.exp(-half[:, 2:]))
        np.testing.assert_allclose(ost.nn.glu(half), wanted_half)
        np.testing.assert_allclose(ost.nn.glu(half.T, 0), wanted_half.T)
        with pytest.raises(ShapeError, match="3 along axis 0; needed an even number"):
            ost.nn.glu(half, 0)


@pytest.mark.parametrize("mesh", [(1,), (2,)])
def test_attention(mesh: Any) -> None:
    q, k, v = R.normal(size=(2, 5, 4)), R.normal(size=(2, 7, 4)), R.normal(size=(2, 7, 3))
    seen = np.ones((5, 7), bool)
    seen[:, 2] = False
    more = R.normal(size=(5, 7))

    def plain(scores: Any) -> Any:
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    scores = q @ k.swapaxes(-1, -2)
    with use(mesh):
        given = [ost.asarray(x, split=0) for x in (q, k, v)]
        for wanted, options in (
            (scores / 2, {}),
            (scores * 3, {"scale": 3.0}),
            (np.where(seen, scores / 2, -np.inf), {"mask": seen}),
            (scores / 2 + more, {"mask": more}),
            (np.where(np.tri(5, 7, dtype=bool), scores / 2, -np.inf), {"is_causal": True}),
        ):
            found = ost.nn.attention(*given, **options)
            np.testing.assert_allclose(np.asarray(found), plain(wanted), err_msg=str(options))
        with pytest.raises(ShapeError, match="length, features"):
            ost.nn.attention(q[0, 0], k, v)
