"""AlexNet, twice: of the paper in Caffe's form (two groups, local response norm), and the "one weird
trick" variant that torchvision has, whose weights load by name."""

from __future__ import annotations

import sys
from typing import Any

from training import images, train

from ostinato import nn


def _places(image: int, *windows: tuple[int, int, int]) -> int:
    for window, stride, padding in windows:
        image = (image + 2 * padding - window) // stride + 1
    return image


def caffe(classes: int = 1000, image: int = 227, part: int = 1, recipe: bool = True) -> Any:
    """For images of 227 x 227; channels divided by `part`. recipe: first weights of Caffe's recipe."""
    small = nn.initializers.normal(0.01) if recipe else nn.initializers.he_normal()
    wide = nn.initializers.normal(0.005) if recipe else nn.initializers.he_normal()
    some = nn.initializers.constant(0.1)
    a, b, c, d = 96 // part, 256 // part, 384 // part, 4096 // part
    place = _places(image, (11, 4, 0), (3, 2, 0), (5, 1, 2), (3, 2, 0), (3, 2, 0))
    norm = nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0)  # alpha is divided by 5, as Caffe does
    return nn.Sequential(
        nn.Conv(3, a, 11, stride=4, weight_init=small),
        nn.relu,
        norm,
        nn.MaxPool(3, stride=2),
        nn.Conv(a, b, 5, padding=2, groups=2, weight_init=small, bias_init=some),
        nn.relu,
        norm,
        nn.MaxPool(3, stride=2),
        nn.Conv(b, c, 3, padding=1, weight_init=small),
        nn.relu,
        nn.Conv(c, c, 3, padding=1, groups=2, weight_init=small, bias_init=some),
        nn.relu,
        nn.Conv(c, b, 3, padding=1, groups=2, weight_init=small, bias_init=some),
        nn.relu,
        nn.MaxPool(3, stride=2),
        nn.Flatten(),
        nn.Linear(b * place**2, d, weight_init=wide, bias_init=some),
        nn.relu,
        nn.Dropout(0.5),
        nn.Linear(d, d, weight_init=wide, bias_init=some),
        nn.relu,
        nn.Dropout(0.5),
        nn.Linear(d, classes, weight_init=small),
    )


class AlexNet(nn.Layer):
    """torchvision's, for images of 63 x 63 or more."""

    def __init__(self, classes: int = 1000, part: int = 1) -> None:
        a, b, c, d = 64 // part, 192 // part, 256 // part, 4096 // part
        self.features = nn.Sequential(
            nn.Conv(3, a, 11, stride=4, padding=2),
            nn.relu,
            nn.MaxPool(3, stride=2),
            nn.Conv(a, b, 5, padding=2),
            nn.relu,
            nn.MaxPool(3, stride=2),
            nn.Conv(b, 2 * b, 3, padding=1),
            nn.relu,
            nn.Conv(2 * b, c, 3, padding=1),
            nn.relu,
            nn.Conv(c, c, 3, padding=1),
            nn.relu,
            nn.MaxPool(3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(c * 36, d),
            nn.relu,
            nn.Dropout(0.5),
            nn.Linear(d, d),
            nn.relu,
            nn.Linear(d, classes),
        )

    def forward(self, x: Any) -> Any:
        x = nn.adaptive_avg_pool(self.features(x), 6)
        return self.classifier(x.reshape(len(x), -1))


def main(part: int = 8, image: int = 99, steps: int = 20) -> list[list[float]]:
    x, y = images(16, 3, image, image)
    models = [(caffe(10, image, part, recipe=False), 0.01), (AlexNet(10, part), 0.04)]
    return [train(m.init(seed=1), x, y, steps=steps, rate=rate)[1] for m, rate in models]


if __name__ == "__main__":
    print(nn.summary(caffe(), (1, 3, 227, 227)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
