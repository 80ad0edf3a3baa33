"""Handwritten digits, trained by `ost.fit`: optimizer, validation, checkpoints, and a run that goes on."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np

import ostinato as ost

EPOCHS, BATCH = 12, 64
RATE = ost.optim.Warmup(ost.optim.Cosine(1e-2, steps=EPOCHS * 22), steps=22)
ADAM = ost.optim.AdamW(RATE, weight_decay=0.05, mask=lambda path: "'b" not in path)


def network(w: Any, x: Any) -> Any:
    x = ost.nn.gelu(x.reshape((-1, 64)) @ w["in"] + w["b_in"])
    return x @ w["out"] + w["b_out"]


def step(state: Any, batch: Any) -> Any:
    x, y = batch
    loss, slopes = ost.value_and_grad(lambda w: ost.nn.cross_entropy(network(w, x), y))(state["w"])
    slopes = ost.optim.clip_by_norm(slopes, 1.0)
    w, adam = ADAM.update(state["w"], slopes, state["adam"])
    return {"w": w, "adam": adam}, {"loss": loss}


def judge(state: Any, batch: Any) -> Any:
    """The loss of digits that were not trained with, and the share that is named right."""
    x, y = batch
    z = network(state["w"], x)
    return {"loss": ost.nn.cross_entropy(z, y), "right": (z.argmax(1) == y).mean()}


def begin() -> Any:
    r = np.random.default_rng(0)
    shapes = {"in": (64, 96), "b_in": (96,), "out": (96, 10), "b_out": (10,)}
    w = {n: r.normal(0, s[0] ** -0.5, s).astype("f4") * (len(s) > 1) for n, s in shapes.items()}
    w = ost.tree_map(ost.asarray, w)
    return {"w": w, "adam": ADAM.init(w)}


def train(folder: str, epochs: int) -> Any:
    train, test = (ost.io.datasets.digits(split) for split in ("train", "test"))
    pipe = ost.io.arrays(*train).shuffle(seed=7).batch(BATCH, tail="drop")
    return ost.fit(
        step, begin(), pipe, epochs=epochs, validate=(judge, test), checkpoint=folder, resume=True
    )


def main(workers: Any = None, to: str = "curves.png") -> tuple[float, bool]:
    """The share of digits that are named right, and whether a stop on the way changes a bit."""
    with tempfile.TemporaryDirectory() as folder, ost.connect(workers=workers):
        train(f"{folder}/stopped", EPOCHS // 2)
        state, history = train(f"{folder}/stopped", EPOCHS)
        whole, _ = train(f"{folder}/whole", EPOCHS)
        history.plot(to)
        pairs = [(state["w"][n], whole["w"][n]) for n in whole["w"]]
        same = all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
        right = history.epochs[-1]["val_right"]
        print(f"{right:.1%} right; the same bits after a stop: {same}; curves: {to}")
    return right, same


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if len(sys.argv) > 1 else None)
