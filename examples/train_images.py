"""Files of images to a trained ResNet-18: a pipe reads, decodes and augments beside compiled steps.

    python examples/train_images.py             # images that it draws
    python examples/train_images.py photos      # photos/train/KIND/*.jpg and photos/test/KIND/*.jpg

All that it writes is in train_images/. Ctrl-C ends it with a checkpoint there, and the same command goes
on from it. A number at the end says how many workers there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ostinato as ost
from ostinato import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
from resnet import resnet18

DRAWN: Any = {"rings": np.hypot, "stripes": lambda y, x: x, "bows": lambda y, x: x + y * y / 40}


def draw(folder: Path, count: int, seed: int) -> None:
    """JPEG files of patterns in any place and colours, in a folder for each kind."""
    r = np.random.default_rng(seed)
    for kind, across in DRAWN.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for k in range(count):
            y, x = np.mgrid[:80, :100] - r.uniform(20, 60, (2, 1, 1))
            light = 0.5 + 0.5 * np.sin(across(y, x) / r.uniform(1.5, 3))
            (a, b), noise = r.uniform(0, 255, (2, 3)), r.normal(0, 8, (80, 100, 3))
            picture = np.clip(a + light[..., None] * (b - a) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(folder / kind / f"{k:04}.jpg", quality=90)


def feeds(folder: Path, size: int, batch: int, kinds: list[str]) -> tuple[Any, Any]:
    """Images with the numbers of their kinds: cut and mirrored by chance to train with, else as they are."""
    train, test = (
        ost.io.images(str(folder / part), labels="folder", classes=kinds).decode()
        for part in ("train", "test")
    )
    train = train.shuffle(seed=7).random_resized_crop(size, scale=(0.5, 1.0)).random_flip()
    test = test.resize(size).center_crop(size)
    return train.normalize(0.5, 0.25).batch(batch, tail="drop"), test.normalize(0.5, 0.25).batch(50)


def metrics(scores: Any, y: Any) -> dict[str, Any]:
    return {"loss": nn.cross_entropy(scores, y), "right": (scores.argmax(1) == y).mean()}


def step_of(optimizer: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        model, (x, y) = state["model"], batch

        def loss(weights: Any) -> Any:
            scores, new = nn.combine(weights, model).apply(x)
            told = metrics(scores, y)
            return told["loss"], (new, told)

        weights = nn.parameters(model)
        slopes, (new, told) = ost.grad(loss, has_aux=True)(weights)
        weights, rest = optimizer.update(weights, slopes, state["optimizer"])
        return {"model": nn.combine(weights, new), "optimizer": rest}, told

    return step


def judge(state: Any, batch: Any) -> dict[str, Any]:
    """How images that were not trained with are named."""
    x, y = batch
    return metrics(state["model"](x), y)


def main(
    folder: Path | None = None,
    workers: int | None = None,
    to: Path | None = None,
    *,
    count: int = 200,
    epochs: int = 10,
    batch: int = 50,
    size: int = 64,
    width: int = 16,
) -> Any:
    """The history, of which each epoch has the share of images that are named right."""
    to = to or Path("train_images", folder.name if folder else "drawn")
    to.mkdir(parents=True, exist_ok=True)
    if folder is None:
        folder = to
        for part, many in (("test", count // 4), ("train", count)):
            if not (to / part).exists():  # for whoever stopped it while it drew
                draw(to / "half", many, many)
                (to / "half").rename(to / part)
    if not (folder / "train").is_dir():
        sys.exit(
            f"no folder {folder}/train: images are looked for in {folder}/train/KIND, and .../test/KIND"
        )
    kinds = sorted(p.name for p in (folder / "train").iterdir() if p.is_dir())
    with ost.connect(workers=workers):
        train, test = feeds(folder, size, batch, kinds)
        print(f"images as they come, of {', '.join(kinds)}: {train.preview(8, to / 'sheet.png')}")
        model = resnet18(len(kinds), width).init(seed=1)
        whole = nn.summary(model, (batch, 3, size, size))
        print(f"ResNet-18: {whole.parameters:,} parameters, {whole.multiply_adds:,} multiply-adds")
        steps = len(train)
        rate = ost.optim.Warmup(ost.optim.Cosine(3e-3, steps=epochs * steps), steps=steps)
        optimizer = ost.optim.AdamW(rate, weight_decay=0.05)
        state = {"model": model, "optimizer": optimizer.init(nn.parameters(model))}
        state, history = ost.fit(
            step_of(optimizer),
            state,
            train,
            epochs=epochs,
            validate=(judge, test),
            checkpoint=to / "run",
            resume=True,
            monitor="val_right",
            mode="max",
            best=1,
        )
        if history.stopped:
            print(f"stopped behind {len(history.curve)} steps; the same command goes on")
            return history
        history.plot(to / "curves.png")
        nn.save_weights(to / "weights.safetensors", state["model"])
        right = history.epochs[-1]["val_right"]
        print(f"{train.explain()}\n{right:.0%} right; curves: {to / 'curves.png'}")
    return history


if __name__ == "__main__":
    given = sys.argv[1:]
    count = int(given.pop()) if given and given[-1].isdecimal() else None
    main(Path(given[0]) if given else None, count)
