"""Inception v3: windows of 7 x 7 as 1 x 7 and 7 x 1, batch norms everywhere, one head."""

from __future__ import annotations

import sys
from typing import Any

from training import images, train

from ostinato import nn

INIT = nn.initializers.truncated_normal(0.1)


class InceptionV3(nn.Layer):
    """For images of 299 x 299; without its head of 75 x 75 or more. Channels are divided by `part`."""

    def __init__(self, classes: int = 1000, *, head: bool = True, part: int = 1) -> None:
        one, two, three, channels = 32 // part, 64 // part, 80 // part, 192 // part

        def conv(inputs: int, outputs: int, window: Any, stride: int = 1, padding: Any = 0) -> Any:
            return nn.Sequential(
                nn.Conv(
                    inputs,
                    outputs,
                    window,
                    axes=2,
                    stride=stride,
                    padding=padding,
                    bias=False,
                    weight_init=INIT,
                ),
                nn.BatchNorm(outputs, eps=1e-3),
                nn.relu,
            )

        def chain(*steps: Any, of: int) -> tuple[Any, int]:
            """Convolutions of (channels, window, stride), padded where the stride is 1; and what they make."""
            made = []
            for outputs, window, *stride in steps:
                outputs //= part
                step, padding = (stride[0], 0) if stride else (1, "same")
                made.append(conv(of, outputs, window, step, padding))
                of = outputs
            return nn.Sequential(*made), of

        def mixed(*branches: Any) -> Any:
            """Branches of convolutions; one that ends with two at once is (..., "both", ...)."""
            nonlocal channels
            made: list[Any] = []
            total = 0
            for branch in branches:
                if branch == "max":
                    made.append(nn.MaxPool(3, stride=2))
                    total += channels
                    continue
                pool = [nn.AvgPool(3, stride=1, padding=1)] if branch[0] == "avg" else []
                steps = branch[1:] if pool else branch
                both = steps[-1] == "both"
                layers, width = chain(*(steps[:-1] if both else steps), of=channels)
                if both:
                    ends = [chain((384, window), of=width)[0] for window in ((1, 3), (3, 1))]
                    layers, width = nn.Sequential(layers, nn.Branches(*ends)), 2 * (384 // part)
                made.append(nn.Sequential(*pool, layers))
                total += width
            channels = total
            return nn.Branches(*made)

        def a(p: int) -> Any:
            return mixed(
                [(64, 1)],
                [(48, 1), (64, 5)],
                [(64, 1), (96, 3), (96, 3)],
                ["avg", (p, 1)],
            )

        def c(n: int) -> Any:
            wide, tall = (1, 7), (7, 1)
            return mixed(
                [(192, 1)],
                [(n, 1), (n, wide), (192, tall)],
                [(n, 1), (n, tall), (n, wide), (n, tall), (192, wide)],
                ["avg", (192, 1)],
            )

        def e() -> Any:
            return mixed(
                [(320, 1)], [(384, 1), "both"], [(448, 1), (384, 3), "both"], ["avg", (192, 1)]
            )

        self.stem = nn.Sequential(
            conv(3, one, 3, 2),
            conv(one, one, 3),
            conv(one, two, 3, padding=1),
            nn.MaxPool(3, stride=2),
            conv(two, three, 1),
            conv(three, channels, 3),
            nn.MaxPool(3, stride=2),
        )
        b = ([(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)], "max")
        d = ([(192, 1), (320, 3, 2)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)], "max")
        self.first = nn.Sequential(a(32), a(64), a(64), mixed(*b), c(128), c(160), c(160), c(192))
        width = 128 // part
        self.head = (
            nn.Sequential(
                nn.AvgPool(5, stride=3),
                conv(channels, width, 1),
                conv(width, 768 // part, 5),
                nn.Flatten(),
                nn.Linear(768 // part, classes),
            )
            if head
            else None
        )
        self.second = nn.Sequential(mixed(*d), e(), e())
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Any) -> Any:
        """The scores; in training those of the head, too."""
        first = self.first(self.stem(x))
        y = self.fc(self.drop(nn.global_avg_pool(self.second(first))))
        return (y, self.head(first)) if self.training and self.head is not None else y


def main(part: int = 16, image: int = 75, steps: int = 12) -> list[float]:
    x, y = images(8, 3, image, image)
    model = InceptionV3(10, head=False, part=part).init(seed=1)
    return train(model, x, y, steps=steps, rate=0.05)[1]


if __name__ == "__main__":
    print(nn.summary(InceptionV3(), (1, 3, 299, 299), train=True))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
