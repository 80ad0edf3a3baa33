"""The networks of MagmaDNN's examples, for digits: two dense layers, and LeNet-5. They train on the
digits that scikit-learn ships, if it is there."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
from training import images, train

import ostinato as ost
from ostinato import nn


def mlp(inputs: int = 784, hidden: int = 500, classes: int = 10) -> Any:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.relu, nn.Linear(hidden, classes)
    )


def lenet5(classes: int = 10) -> Any:
    """For images of 28 x 28."""
    return nn.Sequential(
        nn.Conv(1, 6, 5, padding=2),
        ost.tanh,
        nn.AvgPool(2),
        nn.Conv(6, 16, 5),
        ost.tanh,
        nn.AvgPool(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        ost.tanh,
        nn.Linear(120, 84),
        ost.tanh,
        nn.Linear(84, classes),
    )


def digits(count: int) -> tuple[Any, Any]:
    if importlib.util.find_spec("sklearn") is None:
        return images(count, 1, 28, 28)
    from sklearn.datasets import load_digits

    found = load_digits()
    small = found.images[:count, None].astype(np.float32) / 16
    large = np.kron(small, np.ones((3, 3), np.float32))
    return np.pad(large, ((0, 0), (0, 0), (2, 2), (2, 2))), found.target[:count]


def main(count: int = 64, steps: int = 20) -> list[list[float]]:
    x, y = digits(count)
    return [train(m.init(seed=1), x, y, steps=steps, rate=0.05)[1] for m in (mlp(), lenet5())]


if __name__ == "__main__":
    print(nn.summary(lenet5(), (1, 1, 28, 28)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
