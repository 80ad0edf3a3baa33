"""Random networks of a few layers with odd extents: values layer by layer, slopes along a direction by differences."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import nn
from tests import sessions
from tests.forced import forced, interiors_cut
from tests.thorough import few

MESHES = [(1,), (2,), (3,), (2, 2)]
Layer = Callable[[Any, list[Any]], Any]  # of images, and of all that the layers before it made


class Network:
    """Layers that are drawn one by one, for channels that come first or last."""

    def __init__(self, seed: int) -> None:
        self.draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.axes = self.draw.choice([1, 2, 2, 3])
        self.last = self.draw.random() < 0.5
        letters = "DHW"[-self.axes :]
        self.layout = f"N{letters}C" if self.last else f"NC{letters}"
        most = {1: 40, 2: 14, 3: 7}[self.axes]
        space = [self.draw.randint(3, most) for _ in letters]
        self.x = self.array(self.draw.randint(1, 4), self.draw.randint(1, 9), *space)
        self.layers: list[Layer] = []
        made = [ost.asarray(self.x)]
        for _ in range(self.draw.randint(3, 6)):
            self.layers.append(self.layer(made))
            made.append(ost.asarray(np.asarray(self.layers[-1](made[-1], made))))  # by itself
        self.wanted = np.asarray(made[-1])
        self.weights = ost.asarray(self.rng.normal(size=self.wanted.shape))

    def array(self, samples: int, channels: int, *space: int) -> Any:
        shape = (samples, *space, channels) if self.last else (samples, channels, *space)
        return self.rng.normal(size=shape)

    def weight(self, *shape: int) -> Any:
        return ost.asarray(self.rng.normal(size=shape) / max(1.0, np.prod(shape) / shape[0]) ** 0.5)

    def layer(self, made: list[Any]) -> Layer:
        draw, p = self.draw, {"layout": self.layout}
        x, along = made[-1], -1 if self.last else 1
        c, space = x.shape[along], x.shape[1:-1] if self.last else x.shape[2:]

        def each(low: int, high: int) -> list[int]:
            return [draw.randint(low, high) for _ in space]

        match draw.randrange(9):
            case 0 | 1 | 2:
                groups, size = draw.choice([1, 1, c]), each(1, 3)
                o = groups * draw.randint(1, 2 if groups > 1 else 9)
                w = self.weight(o, c // groups, *size)
                w = ost.moveaxis(w, (0, 1), (-1, -2)) if self.last else w
                step, holes = each(1, 2), each(1, 2)
                pads = [(draw.randint(k, 4), draw.randint(k, 4)) for k in size]
                return lambda x, _: nn.relu(
                    nn.conv(x, w, stride=step, dilation=holes, padding=pads, groups=groups, **p)
                )
            case 3:
                pool, window, step = draw.choice([nn.max_pool, nn.avg_pool]), each(2, 3), each(1, 2)
                return lambda x, _: pool(x, window, stride=step, padding=1, **p)
            case 4:
                scale, shift = self.weight(c), self.weight(c)
                return lambda x, _: nn.batch_norm_train(x, scale, shift, eps=0.1, **p)[0]
            case 5:
                size, mode = each(2, 12), draw.choice(["nearest", "linear"])
                return lambda x, _: nn.upsample(x, size=size, mode=mode, **p)
            case 6:
                axis, shift = draw.randrange(x.ndim), draw.randint(-2, 2)
                return lambda x, _: ost.tanh(x) + ost.roll(x, shift, axis)
            case 7:
                w = self.weight(c, draw.randint(1, 9))
                return lambda x, _: ost.moveaxis(ost.moveaxis(x, along, -1) @ w, -1, along)
            case _:
                k = draw.choice([k for k, y in enumerate(made) if y.shape == x.shape])
                return lambda x, made: ost.concatenate([x, nn.sigmoid(made[k])], axis=along)

    def __call__(self, x: Any) -> Any:
        made = [x]
        for layer in self.layers:
            made.append(layer(made[-1], made))
        return made[-1]

    def loss(self, x: Any) -> Any:
        return (self(x) * self.weights).sum()


@pytest.mark.parametrize("seed", range(few(60)))
def test_values_and_slopes_in_any_layout(seed: int) -> None:
    draw = random.Random(seed)
    with sessions.use():
        net = Network(seed)
        toward = np.random.default_rng(seed).normal(size=net.x.shape)
        value = ost.compile(net.loss)
        known = [
            float(value(net.x + h * toward) - value(net.x - h * toward)) / (2 * h)
            for h in (1e-5, 1e-6, 1e-7)  # some may step over a kink
        ]
    mesh = draw.choice(MESHES)
    split = tuple(draw.randrange(net.x.ndim) for _ in mesh) if mesh != (1,) else None
    numerics = draw.choice(["same-plan", "any-workers"])
    with sessions.use(mesh, numerics), draw.choice([interiors_cut, lambda: forced(seed)])():
        step = ost.compile(lambda x: (net(x), ost.grad(net.loss)(x)))
        y, slopes = step(ost.asarray(net.x, split=split))
        np.testing.assert_allclose(y, net.wanted, 1e-9, 1e-9 * abs(net.wanted).max())
        slope = float((np.asarray(slopes) * toward).sum())
    size = abs(np.asarray(slopes) * toward).sum() + 1e-3
    assert min(abs(k - slope) for k in known) <= 1e-5 * size
