"""A transformer that continues text, in GPT's form: norms before attention and dense layers, and a table
of places. It learns the help texts that Python ships, letter by letter."""

from __future__ import annotations

import sys
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from training import train

import ostinato as ost
from ostinato import nn


class Block(nn.Layer):
    """Attention, and a dense layer of four times the features, each added to what it reads."""

    def __init__(self, features: int, heads: int, rate: float) -> None:
        self.ln_1 = nn.LayerNorm(features)
        self.attn = nn.MultiHeadAttention(features, heads)
        self.ln_2 = nn.LayerNorm(features)
        self.mlp = nn.Sequential(
            nn.Linear(features, 4 * features),
            nn.Function(nn.gelu, approximate=True),
            nn.Linear(4 * features, features),
        )
        self.drop = nn.Dropout(rate)

    def forward(self, x: Any) -> Any:
        x = x + self.drop(self.attn(self.ln_1(x), is_causal=True))
        return x + self.drop(self.mlp(self.ln_2(x)))


class Transformer(nn.Layer):
    """Scores of the next letter for each place of (samples, length) letters."""

    def __init__(
        self,
        letters: int = 256,
        features: int = 384,
        blocks: int = 6,
        heads: int = 6,
        length: int = 256,
        rate: float = 0.1,
    ) -> None:
        init = nn.initializers.normal(0.02)
        self.letters = nn.Embedding(letters, features, weight_init=init)
        self.places = nn.Embedding(length, features, weight_init=init)
        self.blocks = nn.Sequential(*[Block(features, heads, rate) for _ in range(blocks)])
        self.ln = nn.LayerNorm(features)

    def forward(self, x: Any) -> Any:
        y = self.letters(x) + self.places(ost.arange(x.shape[1]))
        return self.ln(self.blocks(y)) @ self.letters.weight.T  # the table reads and writes


def text(samples: int, length: int) -> tuple[Any, Any]:
    """Parts of a text as bytes, and the bytes that follow each."""
    letters = np.frombuffer("\n".join(topics.values()).encode(), np.uint8).astype(np.int64)
    begins = np.random.default_rng(0).integers(0, len(letters) - length - 1, samples)
    parts = np.stack([letters[b : b + length + 1] for b in begins]) % 256
    return parts[:, :-1], parts[:, 1:]


def main(features: int = 32, blocks: int = 2, length: int = 32, steps: int = 30) -> list[float]:
    x, y = text(8, length)
    model = Transformer(256, features, blocks, 4, length).init(seed=1)
    return train(model, x, y, steps=steps, rate=0.05)[1]


if __name__ == "__main__":
    print(nn.summary(Transformer(), ost.spec((8, 256), "int64")))
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
