"""Dynamic loss scaling: within the step, with what overflows left out and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import counts_traces, on

LossScale = ost.optim.LossScale


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(np.float32)


def loss(weights: Any, x: Any, y: Any) -> Any:
    return ((ost.tanh(x @ weights["in"]) @ weights["out"] - y) ** 2).mean()


def plain(weights: Any, x: Any, y: Any) -> Any:
    value, slopes = ost.value_and_grad(loss)(weights, x, y)
    return ost.tree_map(lambda w, g: w - 0.3 * g, weights, slopes), value


def scaled(weights: Any, scale: Any, x: Any, y: Any) -> Any:
    value, slopes = scale.value_and_grad(loss)(weights, x, y)
    new = ost.tree_map(lambda w, g: w - 0.3 * g, weights, slopes)
    scale, weights = scale.accept(slopes, new, weights)
    return weights, scale, value


def problem(seed: int = 0) -> tuple[Any, Any, Any]:
    x = numbers(128, 16)
    weights = {"in": numbers(16, 24, seed=1) * 0.5, "out": numbers(24, 3, seed=2) * 0.5}
    return weights, x, np.tanh(x @ numbers(16, 3, seed=3))


def state(scale: Any) -> tuple[float, int, int]:
    return float(scale.scale), int(scale.good), int(scale.skipped)


@counts_traces
@pytest.mark.parametrize("workers", [1, 2])
def test_what_overflows_is_left_out(workers: int) -> None:
    weights, x, y = problem()
    with on(workers):
        step = ost.compile(scaled, precision="mixed_f16")
        scale = LossScale.start(2.0**14, patience=3)
        given = ost.asarray(x, split=0), ost.asarray(y, split=0)
        for k in range(1, 3):
            weights, scale, _ = step(weights, scale, *given)
            assert state(scale) == (2.0**14, k, 0)
        before = ost.tree_map(np.asarray, weights)
        bad = np.asarray(x).copy()
        bad[3, 2] = 1e6  # beyond float16
        weights, scale, value = step(weights, scale, ost.asarray(bad, split=0), given[1])
        assert np.isfinite(float(value)) or np.isnan(float(value))
        assert state(scale) == (2.0**13, 0, 1)
        for name, was in before.items():
            np.testing.assert_array_equal(np.asarray(weights[name]), was)
        for k in (1, 2):
            weights, scale, _ = step(weights, scale, *given)
            assert state(scale) == (2.0**13, k, 1)
        weights, scale, _ = step(weights, scale, *given)
        assert state(scale) == (2.0**14, 0, 1)  # doubled after three good ones
        assert (np.asarray(weights["in"]) != before["in"]).any()
        assert len(step.misses) <= 2  # NumPy's arrays at first


def test_training_comes_as_far() -> None:
    ends = {}
    for precision, function in (("f32", plain), ("mixed_f16", scaled)):
        weights, x, y = problem()
        step = ost.compile(function, precision=precision)
        scale = LossScale.start(2.0**24, patience=50)  # far too high at first
        for _ in range(200):
            if function is plain:
                weights, value = step(weights, x, y)
            else:
                weights, scale, value = step(weights, scale, x, y)
        ends[precision] = float(value)
        assert all(w.dtype == np.float32 for w in weights.values())
    start = float(loss(*problem()))
    assert ends["f32"] < 0.1 * start
    assert ends["mixed_f16"] == pytest.approx(ends["f32"], rel=0.02)
    assert 2 <= int(scale.skipped) < 15


def test_small_gradients_survive() -> None:
    """Those of a loss of 1e-7 are nothing in float16; scaled, they keep their digits."""
    weights, x, y = problem()

    def little(weights: Any, x: Any, y: Any) -> Any:
        return loss(weights, x, y) * 1e-7

    def slopes(weights: Any, scale: Any, x: Any, y: Any) -> Any:
        return scale.value_and_grad(little)(weights, x, y)

    right = ost.grad(little)(weights, x, y)["in"]
    errors = []
    for scale in (1.0, 2.0**20):
        f = ost.compile(slopes, precision="mixed_f16")
        value, found = f(weights, LossScale.start(scale), x, y)
        assert float(value) == pytest.approx(float(little(weights, x, y)), rel=1e-2)
        off = np.asarray(found["in"]) - np.asarray(right)
        errors.append(np.linalg.norm(off) / np.linalg.norm(np.asarray(right)))
    assert errors[0] > 0.05
    assert errors[1] < 0.005


def test_it_never_leaves_its_range() -> None:
    step = ost.compile(lambda scale, g: scale.accept({"g": g}, {"w": g * 2}, {"w": g})[0])
    low, high = LossScale.start(2.0**-14), LossScale.start(2.0**24, patience=1)
    for _ in range(2):
        low = step(low, np.float32([np.nan]))
        high = step(high, np.float32([1.0]))
    assert state(low) == (2.0**-14, 0, 2)
    assert state(high) == (2.0**24, 0, 0)


def test_values_and_auxiliaries_are_passed_on() -> None:
    x = numbers(12, 5)
    scale = LossScale.start(4.0)
    (value, aux), slopes = scale.value_and_grad(
        lambda w, x: ((w * x).sum(), {"seen": x + 1}), has_aux=True
    )(x, x)
    assert float(value) == pytest.approx(float((x * x).sum()), rel=1e-6)
    np.testing.assert_array_equal(np.asarray(aux["seen"]), x + 1)
    np.testing.assert_array_equal(np.asarray(slopes), x)
    halves = scale.value_and_grad(lambda w: (w * w).sum())(x.astype(np.float16))[1]
    assert halves.dtype == np.float32


def test_what_is_no_scale() -> None:
    for options, message in (
        ({"scale": 0}, "got scale=0; needed a number from 2"),
        ({"scale": "high"}, "got scale='high'"),
        ({"patience": 0}, "got patience=0; needed a whole number of steps of 1 or more"),
        ({"patience": 1.5}, r"got patience=1\.5"),
    ):
        with pytest.raises(ArgumentError, match=message):
            LossScale.start(**options)  # type: ignore[arg-type]
    x = numbers(3)
    with pytest.raises(ArgumentError, match=r"a new state.*needed the structure of the old one"):
        LossScale.start().accept(x, {"a": x}, {"b": x})
