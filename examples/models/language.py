"""An LSTM that continues text, letter by letter: two layers, with dropout before and behind each (as
Zaremba's), on the help texts that Python ships."""

from __future__ import annotations

import sys
from typing import Any

from training import train
from transformer import text

import ostinato as ost
from ostinato import nn


class Language(nn.Layer):
    """Scores of the next letter for each place of (samples, length) letters."""

    def __init__(
        self, letters: int = 256, features: int = 650, layers: int = 2, rate: float = 0.5
    ) -> None:
        self.embedding = nn.Embedding(letters, features, weight_init=nn.initializers.uniform(0.05))
        self.cells = nn.LSTM(features, features, layers=layers, dropout=rate)
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(features, letters)

    def forward(self, x: Any) -> Any:
        y, _ = self.cells(self.drop(self.embedding(x)))
        return self.head(self.drop(y))


def main(features: int = 32, length: int = 16, steps: int = 20) -> list[float]:
    x, y = text(8, length)
    model = Language(256, features, rate=0.1).init(seed=1)
    return train(model, x, y, steps=steps, rate=0.5)[1]


if __name__ == "__main__":
    print(nn.summary(Language(), ost.spec((20, 35), "int64")))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
