"""A 3-D U-Net that says what each voxel is, trained on volumes and masks of which workers have slabs.

python examples/unet3d.py 2; behind it, `dashboard` makes the workers processes, and shows them in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
from training import step_of
from unet import loss, unet


def volumes(count: int, cube: int) -> dict[str, Any]:
    """Noisy balls and boxes, and which voxels are whose."""
    r, places = np.random.default_rng(0), np.mgrid[:cube, :cube, :cube]
    masks = np.zeros((count, cube, cube, cube), np.int64)
    for k in np.repeat(np.arange(count), 4):
        for kind, norm in ((1, 2), (2, np.inf)):
            at, size = r.uniform(0, cube, (3, 1, 1, 1)), r.uniform(cube / 8, cube / 4)
            masks[k][np.linalg.norm(places - at, norm, axis=0) < size] = kind
    noisy = np.choose(masks, (0.0, 1.0, -1.0)) + r.normal(0, 0.7, masks.shape)
    return {"volume": noisy.astype(np.float32), "mask": masks}


def tell(plan: Any) -> None:
    """Say where convolutions' images lie, on the way down, up and back, and what workers send."""
    made = dict.fromkeys(str(n.specs[0]) for n in plan.lowered.nodes if n.op == "conv")
    print(*made, sep="\n")
    sent = [n.kw.get("collective", n.op) for n in plan.lowered.nodes]
    print({kind: sent.count(kind) for kind in ("halo", "all_reduce")}, "in each step")


def main(
    cube: int = 32,
    width: int = 4,
    epochs: int = 5,
    workers: int = 2,
    dashboard: bool = False,
) -> list[float]:
    """The loss of each volume, in the order of training."""
    losses, state = [], unet(width=width, levels=2).init(seed=1)
    with ost.LocalCluster(workers) if dashboard else ost.connect(workers) as session:
        if isinstance(session, ost.LocalCluster):
            print("the dashboard:", session.dashboard_link)
        pipe = ost.io.arrays(volumes(8, cube)).shuffle(seed=1).random_flip3d()
        step, momenta = step_of(loss, 0.05), ost.tree_map(ost.zeros_like, nn.parameters(state))
        for epoch in range(epochs):
            for batch in pipe.batch(1, split="depth").epoch(epoch):
                x, y = batch["volume"][:, None], batch["mask"]
                state, momenta, value = step(state, momenta, x, y, epoch)
                losses.append(float(value))
            print(f"epoch {epoch + 1}: loss {np.mean(losses[-8:]):.3f}")
        print(f"volumes of {batch['volume'].shape}: {batch['volume'].layout}")
        tell(step.plan)
    print("`python examples/unet3d.py 2 dashboard` shows workers and their messages in a browser")
    return losses


if __name__ == "__main__":
    main(workers=int(sys.argv[1]) if sys.argv[1:] else 2, dashboard="dashboard" in sys.argv)
