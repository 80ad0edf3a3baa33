"""The planner finds data parallelism where activations are large, and model parallelism where weights are:
small weights for patches of images, then large ones, as in AlexNet. Nothing here says which is which."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np

import ostinato as ost

PLACES, PATCH, CHANNELS = 64, 75, 32  # of an image; numbers of a patch; what a place comes to
WIDTHS = (PLACES * CHANNELS, 2048, 2048, 10)


def forward(patch: Any, dense: Any, x: Any) -> Any:
    x = ost.reshape(ost.nn.relu(x @ patch), (-1, WIDTHS[0]))
    return ost.nn.relu(ost.nn.relu(x @ dense[0]) @ dense[1]) @ dense[2]


@ost.compile
def step(patch: Any, dense: Any, x: Any, y: Any) -> Any:
    def loss(weights: Any) -> Any:
        return ost.nn.cross_entropy(forward(weights[0], weights[1], x), y)

    value, slopes = ost.value_and_grad(loss)((patch, dense))
    return ost.tree_map(lambda w, g: w - 0.1 * g, (patch, dense), slopes), value


def main(
    images: int = 512, steps: int = 10, workers: Any = None
) -> tuple[list[float], dict[str, str]]:
    """The loss along the way, and how operands lie."""
    rng = np.random.default_rng(1)

    def some(*shape: int) -> Any:  # "auto": where arrays lie is left to the planner
        x = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        return ost.asarray(x, split="auto")

    with ost.connect(workers=workers):
        patch = some(PATCH, CHANNELS)
        dense = [some(m, n) for m, n in pairwise(WIDTHS)]
        x, y = some(images * PLACES, PATCH) * 100, ost.asarray(rng.integers(0, 10, images))
        losses = []
        for _ in range(steps):
            (patch, dense), value = step(patch, dense, x, y)
            losses.append(float(value))
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {steps} steps; {step}")
        found = dict(zip(step.plan.names, step.plan.traced.inputs, strict=True))
        for name, spec in found.items():
            print(f"  {name:<9} {spec}")
        return losses, {name: str(spec.layout) for name, spec in found.items()}


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
