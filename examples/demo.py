"""The main job: k-means and a training, what was planned for them, and what it cost.

python examples/demo.py [folder for the pictures]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ostinato as ost


@ost.compile
def lloyd(x: Any, c: Any) -> Any:
    """k-means, one step, as on paper."""
    d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / near.sum(0)[:, None]


def loss(p: Any, x: Any, y: Any) -> Any:
    h = ost.tanh(x @ p["w"] + p["b"])
    return ost.nn.cross_entropy(h @ p["v"], y)


@ost.compile(donate="p")
def train(p: Any, x: Any, y: Any, rate: float) -> Any:
    """One step of gradient descent."""
    value, g = ost.value_and_grad(loss)(p, x, y)
    return {k: p[k] - rate * g[k] for k in p}, value


def title(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}")


def kmeans(points: int, steps: int) -> None:
    x = ost.random.normal((points, 16), seed=7, split=0)
    c = x[:8].resplit(None)
    ost.evaluate(x, c)
    start = time.perf_counter()
    c = lloyd(x, c)
    ost.evaluate(c)
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(steps - 1):
        c = lloyd(x, c)
    ost.evaluate(c)
    rest = (time.perf_counter() - start) / (steps - 1)
    print(
        f"call 1: traced, planned and run as {lloyd.plan.id[:12]} in {first * 1e3:.1f} ms; "
        f"calls 2-{steps}: {rest * 1e3:.1f} ms each, by the id"
    )


def mlp(rows: int, steps: int) -> list[float]:
    x = ost.random.normal((rows, 32), seed=1, split=0)
    y = (ost.sin(x[:, 0] * 3) + x[:, 1] > 0).astype(ost.int64)
    p: Any = {
        "w": ost.random.normal((32, 128), std=0.3, seed=2),
        "b": ost.zeros(128, dtype=ost.float32),
        "v": ost.random.normal((128, 2), std=0.1, seed=3),
    }
    losses = []
    for k in range(steps):
        p, value = train(p, x, y, 0.5 / (1 + k / 50))  # another rate each time, the same plan
        losses.append(float(value))
    shown = ", ".join(f"{v:.3f}" for v in losses[:: steps // 6])
    print(f"loss {shown}; {train}")
    return losses


def main(folder: str = "out", points: int = 500_000, steps: int = 20) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    title("k-means on one worker with all cores")
    with ost.connect():
        kmeans(points, steps)
        print(f"\n{lloyd.plan.explain()}")
        alone = lloyd.plan
    title("the same function on 3 workers")
    with ost.connect(workers=3):
        kmeans(points, steps)
        print(f"\n{lloyd.plan}\n\nwhat differs:")
        changes = alone.diff(lloyd.plan).splitlines()
        print(
            "\n".join(
                line for line in changes if "mesh" in line or "start" in line or "memory" in line
            )
        )
        title("training a network on 3 workers, with a learning rate that changes")
        mlp(20_000, 120)
        print(f"\n{train.plan}")
        train.plan.draw(out / "training.svg")
    lloyd.plan.draw(out / "kmeans.svg")
    lloyd.plan.to_file(out / "kmeans.plan")
    again = ost.Plan.from_file(out / "kmeans.plan")
    title("files")
    print(f"{out / 'kmeans.svg'} and {out / 'training.svg'}: the plans as pictures")
    print(f"{out / 'kmeans.plan'}: the plan as data, read back as {again!r}")
    print("a miss explains itself:")
    with ost.connect():
        x = ost.random.normal((1000, 16), seed=1)
        lloyd(x, x[:8])
    print(ost.why_miss(lloyd))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out")
