"""Whether `precision="auto"` keeps its tolerance on inputs that it has not seen.

python -m tests.planner.tolerance_trials [trials [workers]]

Each trial is a random program with random sizes and tolerance, chosen for one set of inputs and run on
another; what counts is the largest error of a result beside float64, over the tolerance."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.planner.policy import Chosen, policy_of
from ostinato.planner.tolerance import relative_error

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import on


def perceptron(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    depth, width = draw.randint(1, 4), draw.choice([16, 33, 64])

    def f(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = ost.tanh(x @ w)
        return x

    return f, [(draw.randint(8, 100), width), *[(width, width)] * depth]


def training(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    f, shapes = perceptron(draw)

    def step(x: Any, *weights: Any) -> Any:
        value, slopes = ost.value_and_grad(lambda w: (f(x, *w) ** 2).mean())(weights)
        return value, ost.tree_map(lambda w, g: w - 0.1 * g, weights, slopes)

    return step, shapes


def attention(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    rows, width = draw.randint(8, 64), draw.choice([8, 32])

    def f(q: Any, k: Any, v: Any) -> Any:
        return ost.nn.softmax(q @ k.T) @ v

    return f, [(rows, width)] * 3


def least_squares(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    rows, width = draw.randint(50, 200), draw.randint(3, 20)

    def f(x: Any, w: Any) -> Any:
        off = x @ w - 1
        return (off * off).mean(), w - 0.01 * (x.T @ off) / rows

    return f, [(rows, width), (width, 1)]


def statistics(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    rows, width = draw.randint(50, 300), draw.randint(4, 40)

    def f(x: Any) -> Any:
        centred = x - x.mean(axis=0)
        covariance = centred.T @ centred / rows
        return covariance, ost.linalg.trace(covariance)

    return f, [(rows, width)]


def iterations(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    width, times = draw.randint(8, 40), draw.randint(2, 6)

    def f(x: Any, w: Any) -> Any:
        return ost.repeat(times, lambda x: 0.5 * x + ost.sin(x @ w), x)

    return f, [(20, width), (width, width)]


def pairs(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    m, n, width = draw.randint(5, 50), draw.randint(5, 50), draw.randint(2, 30)

    def f(x: Any, y: Any) -> Any:
        return ost.exp(x @ y.T / width), ost.einsum("ik,jk->i", x, y) + 10 * (x * x).sum(axis=1)

    return f, [(m, width), (n, width)]


def slopes(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """A step whose slopes, of some weights, are summed by workers that have rows of the batch each."""
    depth, width = draw.randint(1, 2), draw.choice([160, 200, 256])

    def step(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            h = x
            for w in weights:
                h = ost.tanh(h @ w)
            return (h * h).sum() / 2

        value, found = ost.value_and_grad(loss)(weights)
        return value, [g.resplit(None) for g in found]

    return step, [(2000, width), *[(width, width)] * depth]


def covariances(draw: random.Random) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    width = draw.choice([160, 200, 256])

    def f(x: Any) -> Any:
        return (x.T @ x / 2000).resplit(None), (x.T @ ost.sin(x)).resplit(None)

    return f, [(2000, width)]


PROGRAMS = (perceptron, training, attention, least_squares, statistics, iterations, pairs)
SPREAD = (slopes, covariances)


def trial(seed: int, inputs: int = 1, workers: int = 1) -> tuple[float, Chosen | None]:
    """The largest error over the tolerance on fresh inputs, and what was chosen, if anything fits."""
    with on(workers):
        return _trial(seed, inputs, SPREAD if workers > 1 else PROGRAMS)


def _trial(seed: int, inputs: int, programs: Sequence[Any]) -> tuple[float, Chosen | None]:
    draw = random.Random(seed)
    f, shapes = programs[seed % len(programs)](draw)
    dtype = np.dtype(draw.choice([np.float32, np.float64]))
    tolerance = float(f"{10 ** draw.uniform(-5 if dtype.itemsize == 4 else -7, -1):.2g}")
    rng = np.random.default_rng(seed)

    def given() -> list[Any]:
        scaled = [rng.normal(size=s) / (s[0] ** 0.5 if k else 1) for k, s in enumerate(shapes)]
        first, *others = [x.astype(dtype) for x in scaled]
        return [ost.asarray(first, split=0), *others]

    chosen = ost.compile(f, precision="auto", tolerance=tolerance)
    exact = ost.compile(f, precision="f64")
    try:
        chosen(*given())
    except ArgumentError:
        return 0.0, None
    policy = policy_of(chosen.plan.target.precision)
    assert isinstance(policy, Chosen)
    worst = 0.0
    for _ in range(inputs):
        fresh = given()
        found, right = ost.run(chosen.plan, *fresh), flat(exact(*fresh))  # calls would be checked
        for x, y in zip(flat(found), right, strict=True):
            worst = max(worst, relative_error(np.asarray(x), np.asarray(y)) / tolerance)
    return worst, policy


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [x for inner in tree for x in flat(inner)]
    return [tree]


def main(trials: int, workers: int) -> None:
    over, rounded, sent, refused, worst = 0, 0, 0, 0, 0.0
    for seed in range(trials):
        found, policy = trial(seed, workers=workers)
        refused += policy is None
        rounded += policy is not None and bool(set(policy.products) - {"-"})
        sent += policy is not None and bool(policy.sums)
        over += found > 1
        worst = max(worst, found)
        if found > 1:
            print(f"trial {seed}: {found:.2f} x the tolerance, {policy}")
    kept = trials - over
    print(
        f"{trials} trials: kept in {kept} ({kept / trials:.1%}), at most {worst:.2f} x the tolerance; "
        f"{rounded} rounded something, {sent} sent sums so, {refused} were refused"
    )


if __name__ == "__main__":
    asked = [int(n) for n in sys.argv[1:]]
    main(*asked, *(200, 1)[len(asked) :])
