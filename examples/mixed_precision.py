"""One training in four precisions: float32, halves where products read, what a tolerance allows."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import ostinato as ost

LossScale = ost.optim.LossScale


def loss(layers: Any, x: Any, y: Any) -> Any:
    for w in layers[:-1]:
        x = ost.tanh(x @ w)
    return ((x @ layers[-1] - y) ** 2).mean()


def step(layers: Any, x: Any, y: Any) -> Any:
    value, slopes = ost.value_and_grad(loss)(layers, x, y)
    return ost.tree_map(lambda p, g: p - 0.3 * g, layers, slopes), value


def scaled_step(layers: Any, scale: LossScale, x: Any, y: Any) -> Any:
    value, slopes = scale.value_and_grad(loss)(layers, x, y)
    new = ost.tree_map(lambda p, g: p - 0.3 * g, layers, slopes)
    scale, layers = scale.accept(slopes, new, layers)  # the old ones, if something overflowed
    return layers, scale, value


def main(rows: int = 512, steps: int = 200, workers: Any = None) -> dict[str, float]:
    """The last loss in each precision."""
    ends: dict[str, float] = {}
    with ost.connect(workers=workers):
        x = ost.random.normal((rows, 32), dtype="float32", seed=1).resplit(0)
        y = 2 * ost.sin(x[:, :4] + x[:, 4:8])
        sizes = list(pairwise((32, 128, 128, 4)))
        start = [ost.random.normal(s, dtype="float32", std=s[0] ** -0.5, seed=s[1]) for s in sizes]
        for precision, tolerance in (("f32", None), ("mixed_bf16", None), ("auto", 1e-2)):
            run, layers = ost.compile(precision=precision, tolerance=tolerance)(step), start
            for _ in range(steps):
                layers, value = run(layers, x, y)
            ends[precision] = float(value)
        told = run.plan.explain()
        print(told[told.index("rounded") :].partition("\nmeasured error on call")[0])

        scaled, layers = ost.compile(precision="mixed_f16")(scaled_step), start
        scale = LossScale.start(2.0**24)  # too high: steps that overflow are left out, and halve it
        for _ in range(steps):
            layers, scale, value = scaled(layers, scale, x, y)
        ends["mixed_f16"] = float(value)
        print(f"float16: {int(scale.skipped)} steps left out, a scale of {float(scale.scale):.0f}")
    print("losses: " + ", ".join(f"{name} {end:.4f}" for name, end in ends.items()))
    return ends


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
