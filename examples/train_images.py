"""Files of images to a trained ResNet-18: a pipe reads, decodes and augments beside compiled steps.

    python examples/train_images.py             # images that it draws
    python examples/train_images.py photos      # photos/train/KIND/*.jpg and photos/test/KIND/*.jpg

It writes into train_images/; after Ctrl-C the same command goes on. A number at the end: of workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
from drawn_images import images_in
from resnet import resnet18
from training import classifying, judge

SIZES: Any = {"count": 200, "epochs": 10, "batch": 50, "size": 64, "width": 16}


def feeds(folder: Path, kinds: list[str], size: int, batch: int) -> tuple[Any, Any]:
    """Images with the numbers of their kinds: cut and mirrored by chance to train with, else as they are."""
    train, test = [
        ost.io.images(str(folder / part), labels="folder", classes=kinds).decode()
        for part in ("train", "test")
    ]
    train = train.shuffle(seed=7).random_resized_crop(size, scale=(0.5, 1.0)).random_flip()
    test = test.resize(size).center_crop(size)
    return train.normalize(0.5, 0.25).batch(batch, tail="drop"), test.normalize(0.5, 0.25).batch(50)


def main(
    folder: Path | None = None, workers: int | None = None, to: Path | None = None, **given: int
) -> Any:
    """The history, of which each epoch has the share of images that are named right."""
    count, epochs, batch, size, width = (SIZES | given).values()
    to = to or Path("train_images", folder.name if folder else "drawn")
    to.mkdir(parents=True, exist_ok=True)
    folder, kinds = images_in(folder, to, count)
    with ost.connect(workers=workers):
        train, test = feeds(folder, kinds, size, batch)
        print(f"images as they come, of {', '.join(kinds)}: {train.preview(8, to / 'sheet.png')}")
        model = resnet18(len(kinds), width).init(seed=1)
        whole = nn.summary(model, (batch, 3, size, size))
        print(f"ResNet-18: {whole.parameters:,} parameters, {whole.multiply_adds:,} multiply-adds")
        rate = ost.optim.Cosine(3e-3, steps=epochs * len(train))
        optimizer = ost.optim.AdamW(ost.optim.Warmup(rate, steps=len(train)), weight_decay=0.05)
        state = {"model": model, "optimizer": optimizer.init(nn.parameters(model))}
        how: Any = {"validate": (judge, test), "monitor": "val_right", "mode": "max", "best": 1}
        how |= {"checkpoint": to / "run", "resume": True}
        state, history = ost.fit(classifying(optimizer), state, train, epochs=epochs, **how)
        if history.stopped:
            print(f"stopped behind {len(history.curve)} steps; the same command goes on")
            return history
        history.plot(to / "curves.png")
        nn.save_weights(to / "weights.safetensors", state["model"])
        right = f"{history.epochs[-1]['val_right']:.0%} right"
        print(f"{train.explain()}\n{right}; curves: {to / 'curves.png'}")
    return history


if __name__ == "__main__":
    given = sys.argv[1:]
    count = int(given.pop()) if given and given[-1].isdecimal() else None
    main(Path(given[0]) if given else None, count)
