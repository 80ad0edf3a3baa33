"""3-D U-Net: which of three kinds each place of a volume is, seen from near and from afar."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from training import images, train

import ostinato as ost
from ostinato import nn


def convs(inputs: int, *widths: int) -> Any:
    """Convolutions of 3 x 3 x 3, each with its norm."""
    layers: list[Any] = []
    for width in widths:
        layers += [
            nn.Conv(
                inputs,
                width,
                3,
                axes=3,
                padding=1,
                bias=False,
                weight_init=nn.initializers.he_normal(),
            ),
            nn.BatchNorm(width),
            nn.relu,
        ]
        inputs = width
    return nn.Sequential(*layers)


class Level(nn.Layer):
    """One size of the volume, and all smaller ones below it."""

    def __init__(self, inputs: int, width: int, below: int) -> None:
        self.down = convs(inputs, width, 2 * width)
        self.below: Any = (
            Level(2 * width, 2 * width, below - 1)
            if below > 1
            else convs(2 * width, 2 * width, 4 * width)
        )
        self.up = nn.ConvTranspose(4 * width, 4 * width, 2, stride=2, axes=3)
        self.out = convs(6 * width, 2 * width, 2 * width)

    def forward(self, x: Any) -> Any:
        near = self.down(x)
        far = self.up(self.below(nn.max_pool(near, 2)))
        return self.out(ost.concat([far, near], axis=1))


def unet(inputs: int = 1, classes: int = 3, width: int = 32, levels: int = 3) -> Any:
    """For volumes whose sides are multiples of 2**levels."""
    return nn.Sequential(Level(inputs, width, levels), nn.Conv(2 * width, classes, 1, axes=3))


def loss(scores: Any, kinds: Any) -> Any:
    return nn.cross_entropy(scores, kinds, axis=1)


def main(cube: int = 16, width: int = 4, levels: int = 2, steps: int = 20) -> list[float]:
    x, _ = images(2, 1, cube, cube, cube, classes=2)
    kinds = np.digitize(x[:, 0], [-0.5, 0.5])
    return train(unet(width=width, levels=levels).init(seed=1), x, kinds, loss, steps, 0.1)[1]


if __name__ == "__main__":
    print(nn.summary(unet(), (1, 1, 128, 128, 128)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
