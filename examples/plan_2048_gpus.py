"""A training step of a transformer for 2,048 GPUs, planned and simulated here: no GPU is needed, and no worker.

Try: python examples/plan_2048_gpus.py step.html   (also writes the timeline)"""

from __future__ import annotations

import sys
import time
from typing import Any

import ostinato as ost

HEADS = 32


def layer(w: Any, x: Any) -> Any:
    def heads(y: Any) -> Any:
        return ost.permute_dims(ost.reshape(y, (*y.shape[:2], HEADS, -1)), (0, 2, 1, 3))

    y = ost.nn.layer_norm(x)
    q, k, v = (heads(y @ w[name]) for name in ("q", "k", "v"))
    scores = q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5
    found = ost.permute_dims(ost.nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
    x = x + ost.reshape(found, x.shape) @ w["out"]
    return x + ost.nn.relu(ost.nn.layer_norm(x) @ w["up"]) @ w["down"]


def step(layers: Any, momenta: Any, x: Any, wanted: Any, rate: float) -> Any:
    """One step of gradient descent with momentum: layers in bfloat16, momenta in float32."""

    def loss(layers: Any) -> Any:
        y = x
        for w in layers:
            y = layer(w, y)
        return ost.nn.mse_loss(y, wanted)

    value, slopes = ost.value_and_grad(loss)(layers)
    momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
    layers = ost.tree_map(lambda w, m: (w - rate * m).astype(w.dtype), layers, momenta)
    return layers, momenta, value


def arrays(depth: int, batch: int, length: int, width: int) -> Any:
    """What the step takes: the batch is cut along the first axis of the mesh, the weights along the
    second, so that two products in a row need one sum over the GPUs of a node."""
    shapes = {
        **dict.fromkeys(("q", "k", "v"), ((width, width), (None, 1))),
        "out": ((width, width), (None, 0)),
        "up": ((width, 4 * width), (None, 1)),
        "down": ((4 * width, width), (None, 0)),
    }

    def layers(dtype: Any) -> Any:
        one = {name: ost.spec(shape, dtype, split) for name, (shape, split) in shapes.items()}
        return [one] * depth

    tokens = ost.spec((batch, length, width), ost.bfloat16, split=(0, None))
    return layers(ost.bfloat16), layers(ost.float32), tokens, tokens, 1e-3


def main(
    mesh: tuple[int, int] = (256, 8),
    depth: int = 4,
    batch: int = 1024,
    length: int = 2048,
    width: int = 4096,
    machine: str = "h200-ib",
    picture: str | None = None,
) -> Any:
    """The simulated step."""
    start = time.perf_counter()
    plan = ost.plan(
        step,
        *arrays(depth, batch, length, width),
        mesh=mesh,
        machine=machine,
        donate=("layers", "momenta"),
    )
    planned = time.perf_counter()
    found = plan.simulate()
    done = time.perf_counter()
    print(f"planned in {planned - start:.1f} s, simulated in {done - planned:.1f} s\n")
    print("layouts of what the first products make:")
    for node in [n for n in plan.lowered.nodes if n.op == "matmul"][:8]:
        print(
            f"  {node.specs[0].bare!s:<28} {node.specs[0].layout}  ({node.line.rpartition('/')[2]})"
        )
    print(f"\n{found}\n")
    full = mesh[0] * mesh[1]
    counts = [n for n in (full // 16, full // 4, full) if n >= mesh[1]]
    for what, weak in (("the same batch", False), ("a batch that grows with them", True)):
        print(f"on other numbers of GPUs, with {what}:")
        for row in found.scaling(counts, weak):
            print(
                f"  {row.workers:>5} {row.seconds * 1e3:>9.2f} ms, efficiency {row.efficiency:>4.0%}, "
                f"{row.peak_bytes / 2**30:.1f} GiB each"
            )
    if picture is not None:
        plan.timeline(picture)
        print(f"the timeline is in {picture}")
    return found


if __name__ == "__main__":
    main(picture=sys.argv[1] if len(sys.argv) > 1 else None)
