"""ResNet-18 and ResNet-50 v1.5 (the stride is in the 3x3); torchvision's weights load by name."""

from __future__ import annotations

import sys
from typing import Any

from training import images, train

from ostinato import nn

HE = nn.initializers.he_normal(fan="out")


def conv(inputs: int, outputs: int, window: int, stride: int = 1) -> nn.Conv:
    padding = window // 2
    return nn.Conv(
        inputs, outputs, window, stride=stride, padding=padding, bias=False, weight_init=HE
    )


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm(outputs))


class Basic(nn.Layer):
    """Two convolutions beside what they add to."""

    grows = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm(width, scale_init=nn.initializers.zeros())
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Any) -> Any:
        y = nn.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nn.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Layer):
    """Three convolutions, of which the one of 3 x 3 sees fewer channels."""

    grows = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = width * self.grows
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm(width)
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm(outputs, scale_init=nn.initializers.zeros())
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Any) -> Any:
        y = nn.relu(self.bn1(self.conv1(x)))
        y = nn.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return nn.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Layer):
    """Four stages, each of half the size and twice the channels of the one before."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        blocks: tuple[int, ...],
        classes: int = 1000,
        width: int = 64,
    ) -> None:
        self.conv1 = conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm(width)
        inputs, stages = width, []
        for k, count in enumerate(blocks):
            stage = []
            for j in range(count):
                stage.append(block(inputs, width * 2**k, 2 if k and not j else 1))
                inputs = width * 2**k * block.grows
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Any) -> Any:
        x = nn.relu(self.bn1(self.conv1(x)))
        x = nn.max_pool(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(nn.global_avg_pool(x))


def resnet18(classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet(Basic, (2, 2, 2, 2), classes, width)


def resnet50(classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, width)


def main(depth: int = 18, width: int = 8, image: int = 32, steps: int = 20) -> list[float]:
    x, y = images(16, 3, image, image)
    model = {18: resnet18, 50: resnet50}[depth](10, width).init(seed=1)
    return train(model, x, y, steps=steps, rate=0.02)[1]


if __name__ == "__main__":
    print(nn.summary(resnet50(), (1, 3, 224, 224)))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 18)
