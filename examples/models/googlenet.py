"""GoogLeNet (Inception v1) with its two heads, as Caffe has it: pools count a last window in part, and
each mixed layer joins 1 x 1, 3 x 3, 5 x 5 and a pool. With `norm` there are batch norms in place of
biases; torchvision's has these, and 3 x 3 in place of 5 x 5 (`five=3`)."""

from __future__ import annotations

import sys
from typing import Any

from training import images, train

from ostinato import nn

# 1x1 | 3x3 reduced, 3x3 | 5x5 reduced, 5x5 | behind the pool
MIXED = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
HE = nn.initializers.he_normal()


class GoogLeNet(nn.Layer):
    """Channels are divided by `part`; heads are for images of `image` x `image`."""

    def __init__(
        self,
        classes: int = 1000,
        *,
        heads: bool = True,
        norm: bool = False,
        five: int = 5,
        image: int = 224,
        part: int = 1,
    ) -> None:
        a, inputs = 64 // part, 192 // part

        def conv(inputs: int, outputs: int, window: int, stride: int = 1) -> Any:
            made = nn.Conv(
                inputs,
                outputs,
                window,
                stride=stride,
                padding=window // 2,
                bias=not norm,
                weight_init=HE,
            )
            return nn.Sequential(made, *([nn.BatchNorm(outputs, eps=1e-3)] * norm), nn.relu)

        def mixed(name: str) -> Any:
            nonlocal inputs
            a, b, c, d, e, f = (n // part for n in MIXED[name])
            branches = (
                conv(inputs, a, 1),
                nn.Sequential(conv(inputs, b, 1), conv(b, c, 3)),
                nn.Sequential(conv(inputs, d, 1), conv(d, e, five)),
                nn.Sequential(nn.MaxPool(3, stride=1, padding=1), conv(inputs, f, 1)),
            )
            inputs = a + c + e + f
            return nn.Branches(*branches)

        def head() -> Any:
            place = (image // 16 - 5) // 3 + 1
            return nn.Sequential(
                nn.AvgPool(5, stride=3),
                conv(inputs, 128 // part, 1),
                nn.Flatten(),
                nn.Linear(128 // part * place**2, 1024 // part),
                nn.relu,
                nn.Dropout(0.7),
                nn.Linear(1024 // part, classes),
            )

        pool = nn.MaxPool(3, stride=2, ceil_mode=True)
        lrn = [] if norm else [nn.LocalResponseNorm(5, 1e-4, 0.75)]
        self.stem = nn.Sequential(
            conv(3, a, 7, 2), pool, *lrn, conv(a, a, 1), conv(a, inputs, 3), *lrn, pool
        )
        self.first = nn.Sequential(mixed("3a"), mixed("3b"), pool, mixed("4a"))
        self.head1 = head() if heads else None
        self.second = nn.Sequential(mixed("4b"), mixed("4c"), mixed("4d"))
        self.head2 = head() if heads else None
        self.third = nn.Sequential(mixed("4e"), pool, mixed("5a"), mixed("5b"))
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        """The scores; in training those of the heads, too."""
        first = self.first(self.stem(x))
        second = self.second(first)
        y = self.fc(self.drop(nn.global_avg_pool(self.third(second))))
        if not self.training or self.head1 is None or self.head2 is None:
            return y
        return y, self.head1(first), self.head2(second)


def loss(scores: Any, labels: Any) -> Any:
    main, *heads = scores
    return nn.cross_entropy(main, labels) + sum(0.3 * nn.cross_entropy(h, labels) for h in heads)


def main(part: int = 8, image: int = 96, steps: int = 20) -> list[float]:
    x, y = images(8, 3, image, image)
    model = GoogLeNet(10, image=image, part=part).init(seed=1)
    return train(model, x, y, loss, steps)[1]


if __name__ == "__main__":
    print(nn.summary(GoogLeNet(), (1, 3, 224, 224), train=True))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
