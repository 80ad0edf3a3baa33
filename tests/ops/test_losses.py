"""Losses against NumPy's words for them, far from 0 too, in every layout, and their gradients; embeddings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, DTypeError, ShapeError
from tests.helpers import assert_same, on

from .test_gradients import check, pullback

RNG = np.random.default_rng(8)
REDUCED = {"none": lambda v: v, "sum": np.sum, "mean": np.mean}


def log_softmax(x: Any, axis: int = -1) -> Any:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


# -- classes -------------------------------------------------------------------------------
def of_classes(x: Any, t: Any, w: Any, smoothing: float, ignored: int, reduction: str) -> Any:
    """PyTorch's words, sample by sample; classes along the last axis."""
    logp, losses, counts = log_softmax(x), np.zeros(t.shape), np.zeros(t.shape)
    for i in np.ndindex(t.shape):
        if t[i] != ignored:
            losses[i] = -(1 - smoothing) * w[t[i]] * logp[i][t[i]]
            losses[i] -= smoothing / len(w) * (w * logp[i]).sum()
            counts[i] = w[t[i]]
    return losses.sum() / counts.sum() if reduction == "mean" else REDUCED[reduction](losses)


@pytest.mark.parametrize("reduction", REDUCED)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_with_weights(reduction: Any, smoothing: float) -> None:
    x, w = RNG.normal(size=(7, 2, 5)) * 3, RNG.uniform(0.2, 2, 5)
    t = RNG.integers(0, 5, (7, 2))
    t[3, 1] = t[0, 0] = -100
    p: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    assert_same(
        lambda x, t, w: ost.nn.cross_entropy(x, t, weight=w, ignore_index=-100, **p),
        lambda x, t, w: of_classes(x, t, w, smoothing, -100, reduction),
        x, t, w, few=True,
    )  # fmt: skip
    plain = ost.nn.cross_entropy(np.moveaxis(x, 2, 1), t, axis=1, ignore_index=-100, **p)
    wanted = of_classes(x, t, np.ones(5), smoothing, -100, reduction)
    np.testing.assert_allclose(np.asarray(plain), wanted)
    mixed = np.exp(log_softmax(RNG.normal(size=(7, 2, 5))))
    mix = mixed * (1 - smoothing) + smoothing / 5
    assert_same(
        lambda x, t, w: ost.nn.cross_entropy(x, t, weight=w, **p),
        lambda x, t, w: REDUCED[reduction](-(w * mix * log_softmax(x)).sum(-1)),
        x, mixed, w, few=True,
    )  # fmt: skip
    with on(1):
        check(lambda x, w: ost.nn.cross_entropy(x, t, weight=w, ignore_index=-100, **p), x, w)
        logp = log_softmax(x)
        found = ost.nn.nll_loss(logp, t, weight=w, ignore_index=-100, reduction=reduction)
        wanted = of_classes(x, t, w, 0.0, -100, reduction)
        np.testing.assert_allclose(np.asarray(found), wanted)


def test_what_has_no_class_does_not_matter() -> None:
    x = np.array([[1.0, 2.0], [np.inf, np.nan], [0.0, 1.0]])
    t = np.array([0, 9, 1])
    loss = lambda x: ost.nn.cross_entropy(x, t, ignore_index=9)  # noqa: E731
    np.testing.assert_allclose(float(loss(x)), float(ost.nn.cross_entropy(x[::2], t[::2])))
    assert np.isnan(float(ost.nn.cross_entropy(x[:1], t[1:2], ignore_index=9)))
    assert float(ost.nn.cross_entropy(x[:1], t[1:2], ignore_index=9, reduction="sum")) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_losses_of_halves_are_summed_in_float32(dtype: str) -> None:
    """A thousand losses of 7 and 0.001 more each are no sum of halves."""
    x = ost.asarray(RNG.normal(size=(3000, 50)) * 4, dtype=dtype)
    t = RNG.integers(0, 50, 3000)
    exact = of_classes(np.asarray(x).astype(float), t, np.ones(50), 0.0, -1, "mean")
    made = ost.nn.cross_entropy(x, t)
    assert made.dtype == DTYPES[dtype]
    np.testing.assert_allclose(float(made), exact, float(ost.finfo(dtype).eps))
    p, y = ost.sigmoid(x), RNG.integers(0, 2, (3000, 50))
    wide = np.asarray(x).astype(float)
    exact = (np.logaddexp(0, wide) - y * wide).mean()
    made = ost.nn.binary_cross_entropy_with_logits(x, y)
    assert made.dtype == DTYPES[dtype]
    np.testing.assert_allclose(float(made), exact, float(ost.finfo(dtype).eps))
    assert ost.nn.binary_cross_entropy(p, y).dtype == DTYPES[dtype]


# -- numbers -------------------------------------------------------------------------------
X, Y = RNG.normal(size=(5, 4)) * 2, RNG.normal(size=(5, 4))
P, T = RNG.uniform(0.05, 0.95, (5, 4)), RNG.uniform(0, 1, (5, 4))
W = RNG.uniform(0.5, 2, 4)


def huber(x: Any, y: Any, d: float) -> Any:
    far = np.abs(x - y)
    return np.where(far <= d, 0.5 * far**2, d * (far - d / 2))


def by_logits(x: Any, t: Any, w: Any) -> Any:
    return w * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)


NUMBERS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "mse": (ost.nn.mse_loss, lambda x, y: (x - y) ** 2, (X, Y)),
    "l1": (ost.nn.l1_loss, lambda x, y: np.abs(x - y), (X, Y)),
    "huber": (
        lambda x, y, **r: ost.nn.huber_loss(x, y, delta=1.5, **r),
        lambda x, y: huber(x, y, 1.5),
        (X, Y),
    ),
    "smooth_l1": (
        lambda x, y, **r: ost.nn.smooth_l1_loss(x, y, beta=0.5, **r),
        lambda x, y: huber(x, y, 0.5) / 0.5,
        (X, Y),
    ),
    "bce": (
        lambda p, t, w, **r: ost.nn.binary_cross_entropy(p, t, weight=w, **r),
        lambda p, t, w: -w * (t * np.log(p) + (1 - t) * np.log(1 - p)),
        (P, T, W),
    ),
    "bce_with_logits": (
        lambda x, t, **r: ost.nn.binary_cross_entropy_with_logits(x, t, **r),
        lambda x, t: by_logits(x, t, 1),
        (X, T),
    ),
    "bce_with_weights": (
        lambda x, t, w, **r: ost.nn.binary_cross_entropy_with_logits(
            x, t, weight=w, pos_weight=w + 1, **r
        ),
        lambda x, t, w: w * by_logits(x, t, w + 1),
        (X, T, W),
    ),
    "kl_div": (ost.nn.kl_div, lambda x, t: t * (np.log(t) - x), (X, T)),
    "kl_div_of_logs": (
        lambda x, t, **r: ost.nn.kl_div(x, t, log_target=True, **r),
        lambda x, t: np.exp(t) * (t - x),
        (X, Y),
    ),
    "dice": (
        lambda p, t, **r: ost.nn.dice_loss(p, t, axis=1, **r),
        lambda p, t: 1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1),
        (P, T),
    ),
    "dice_of_squares": (
        lambda p, t, **r: ost.nn.dice_loss(p, t, axis=(0, 1), smooth=0.1, squared=True, **r),
        lambda p, t: 1 - (2 * (p * t).sum() + 0.1) / ((p * p).sum() + (t * t).sum() + 0.1),
        (P, T),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_losses_of_numbers(name: str) -> None:
    function, reference, inputs = NUMBERS[name]
    assert_same(function, lambda *a: np.mean(reference(*a)), *inputs, few=True)
    for reduction in ("none", "sum"):
        found = function(*inputs, reduction=reduction)
        np.testing.assert_allclose(np.asarray(found), REDUCED[reduction](reference(*inputs)))
    with on(1):
        check(lambda *a: function(*a, reduction="none"), *inputs)
        check(pullback(lambda *a: function(*a, reduction="none")), *inputs)


def test_far_out() -> None:
    """No overflow, no lost digits, and slopes that are right where functions have a kink or an end."""
    x, t = np.array([0.0, 1e3, -1e3, 40.0, -40.0]), np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    loss = lambda x: ost.nn.binary_cross_entropy_with_logits(x, t, reduction="none")  # noqa: E731
    np.testing.assert_allclose(
        np.asarray(loss(x)), [np.log(2), 1e3, 1e3, np.exp(-40.0), np.exp(-40.0)], 1e-12
    )
    slopes = np.asarray(ost.grad(lambda x: loss(x).sum())(x))
    np.testing.assert_allclose(slopes[:3], [-0.5, 1, -1])
    np.testing.assert_allclose(slopes[3:], [-np.exp(-40.0), np.exp(-40.0)], 1e-12)
    p = np.array([0.0, 1.0, 0.0, 1.0, 0.5])
    yes = np.array([1.0, 0.0, 0.0, 1.0, 0.5])
    found = ost.nn.binary_cross_entropy(p, yes, reduction="none")
    np.testing.assert_allclose(np.asarray(found), [100, 100, 0, 0, np.log(2)])
    assert np.isfinite(ost.grad(lambda p: ost.nn.binary_cross_entropy(p, yes))(p)).all()
    assert float(ost.nn.kl_div([-1.0, -2.0], [0.0, 1.0], reduction="batchmean")) == 1
    slopes = ost.grad(lambda t: ost.nn.kl_div(np.zeros(2), t))(np.array([0.0, 1.0]))
    assert np.isfinite(np.asarray(slopes)).all()


# -- sequences -----------------------------------------------------------------------------
def ctc(logp: Any, labels: Any, blank: int) -> float:
    """Over all that could be said."""
    total = -np.inf
    for path in itertools.product(range(logp.shape[1]), repeat=len(logp)):
        said = [c for c, _ in itertools.groupby(path) if c != blank]
        if said == list(labels):
            total = np.logaddexp(total, sum(row[c] for row, c in zip(logp, path, strict=True)))
    return -total


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_loss(blank: int) -> None:
    long, classes = 5, 3
    labels = [c for c in range(classes) if c != blank]
    a, b = labels
    targets = np.array([[a, b, a], [a, a, -7], [b, 99, 99], [a, b, b], [5, 5, 5]])
    counts, lengths = np.array([3, 2, 1, 3, 0]), np.array([5, 4, 3, 4, 2])
    logp = log_softmax(RNG.normal(size=(5, long, classes)))
    wanted = np.array(
        [
            ctc(p[:n], t[:k], blank)
            for p, t, n, k in zip(logp, targets, lengths, counts, strict=True)
        ]
    )
    assert np.isfinite(wanted).all()

    def loss(p: Any, **how: Any) -> Any:
        return ost.nn.ctc_loss(p, targets, lengths, counts, blank=blank, **how)

    assert_same(lambda p: loss(p, reduction="none"), lambda p: wanted, logp, few=True)
    with on(1):
        mean = (wanted / np.maximum(counts, 1)).mean()
        np.testing.assert_allclose(float(loss(logp)), mean)
        first = loss(np.moveaxis(logp, 0, 1), layout="TNC", reduction="sum")
        np.testing.assert_allclose(float(first), wanted.sum())
        check(lambda p: loss(p, reduction="none"), logp)
        made = ost.grad(lambda x: loss(ost.nn.log_softmax(x), reduction="sum"))(logp)
        assert (np.asarray(made)[2, 3:] == 0).all()  # behind its length
        np.testing.assert_allclose(np.asarray(made).sum(-1), 0, atol=1e-12)
        two = ost.vmap(lambda p: loss(p, reduction="none"))(np.stack([logp, logp]))
        np.testing.assert_allclose(np.asarray(two), [wanted] * 2)


def test_ctc_of_what_cannot_be_said() -> None:
    """Two equal labels need three places; a class of probability 0 is none."""
    logp = np.log(np.full((1, 2, 3), 1 / 3))
    for zero, wanted in ((False, np.inf), (True, 0.0)):
        loss = lambda p, z=zero: ost.nn.ctc_loss(p, [[1, 1]], zero_infinity=z)  # noqa: E731
        assert float(loss(logp)) == wanted
        assert (np.asarray(ost.grad(loss)(logp)) == 0).all()
    none = np.array([[[0.0, -np.inf, -np.inf], [-np.inf, 0.0, -np.inf]]])
    loss = lambda p: ost.nn.ctc_loss(p, [[1]])  # noqa: E731
    assert float(loss(none)) == 0
    assert np.isfinite(np.asarray(ost.grad(loss)(none))).all()
    only = np.where(np.eye(4)[[[1, 1, 1, 1]]] > 0, 0.0, -np.inf)  # states that only come from such
    loss = lambda p: ost.nn.ctc_loss(p, [[1, 2, 3]])  # noqa: E731
    assert float(loss(only)) == np.inf
    assert (np.asarray(ost.grad(loss)(only)) == 0).all()
    assert ost.nn.ctc_loss(ost.asarray(logp, dtype="float16"), [[1]]).dtype == ost.float16
    assert float(ost.nn.ctc_loss(logp, np.zeros((1, 0), int))) == pytest.approx(2 * np.log(3))


# -- embeddings ----------------------------------------------------------------------------
def test_embedding() -> None:
    table, ids = RNG.normal(size=(6, 4)), RNG.integers(0, 6, (3, 5))
    assert_same(ost.nn.embedding, lambda i, t: t[i], ids, table)
    with on(1):
        check(lambda t: ost.nn.embedding(ids, t), table)
        with pytest.raises(BoundsError):
            np.asarray(ost.nn.embedding([6], table))


A = ost.ones((2, 3))
WRONG = [
    (
        lambda: ost.nn.cross_entropy(A, [0, 1], weight=[1.0]),
        ShapeError,
        "got weights .*; needed one for each of 3 classes",
    ),
    (
        lambda: ost.nn.cross_entropy(A, [0, 4], ignore_index=-1),
        BoundsError,
        "got class 4; needed classes from 0 to 2; .*ignore_index",
    ),
    (lambda: ost.nn.cross_entropy(A, [0, 1], label_smoothing=2.0), ArgumentError, "needed 0 to 1"),
    (lambda: ost.nn.nll_loss(A, [0, 1, 2]), ShapeError, r"shape \(3,\); needed shape \(2,\)"),
    (lambda: ost.nn.nll_loss(A, [0.0, 1.0]), ShapeError, "float64.*; needed integers of shape"),
    (lambda: ost.nn.huber_loss(A, A, reduction="max"), ArgumentError, "reduction='max'"),
    (lambda: ost.nn.ctc_loss(A[None], [[1, 2]], blank=3), ShapeError, "needed integers .* a class"),
    (lambda: ost.nn.ctc_loss(A, [[1, 2]]), ArgumentError, "layout='NTC' of 2 axes"),
    (lambda: ost.nn.embedding([0.5], A), DTypeError, "needed integers, and a table"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_losses.py:{run.__code__.co_firstlineno}" in str(caught.value)
