"""CosmoFlow, as MLPerf HPC has it: four numbers of a universe from how its dark matter lies in a cube."""

from __future__ import annotations

import math
import sys
from typing import Any

from training import images, train

import ostinato as ost
from ostinato import nn


def cosmoflow(cube: int = 128, channels: int = 4, width: int = 32, most: int = 512) -> Any:
    """A block for each halving of the cube to 4 x 4 x 4: 5 for 128, 7 for 512."""
    leaky = nn.Function(nn.leaky_relu, slope=0.3)
    layers: list[Any] = [nn.Function(ost.log1p)]
    for k in range(int(math.log2(cube)) - 2):
        outputs = min(width * 2**k, most)
        layers += [nn.Conv(channels, outputs, 3, axes=3, padding="same"), leaky, nn.MaxPool(2)]
        channels = outputs
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * 64, 128),
        leaky,
        nn.Dropout(0.5),
        nn.Linear(128, 64),
        leaky,
        nn.Dropout(0.5),
        nn.Linear(64, 4),
        ost.tanh,
        nn.Function(ost.multiply, 1.2),
    )


def main(cube: int = 16, width: int = 8, steps: int = 20) -> list[float]:
    x, y = images(8, 4, cube, cube, cube, classes=4)
    targets = ost.nn.one_hot(y, 4) - 0.5
    return train(
        cosmoflow(cube, width=width).init(seed=1), abs(x), targets, nn.mse_loss, steps, 0.02
    )[1]


if __name__ == "__main__":
    print(nn.summary(cosmoflow(), (1, 4, 128, 128, 128)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
