"""A transformer's training step for 2,048 GPUs, on a laptop: plan, simulation, trace (under the name given)."""

from __future__ import annotations

import sys
from typing import Any

import ostinato as ost


def layer(w: Any, x: Any) -> Any:
    def heads(y: Any) -> Any:
        return ost.permute_dims(ost.reshape(y, (*y.shape[:2], 32, -1)), (0, 2, 1, 3))

    y = ost.nn.layer_norm(x)
    q, k, v = (heads(y @ w[name]) for name in ("q", "k", "v"))
    scores = ost.nn.softmax(q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5)
    x = x + ost.reshape(ost.permute_dims(scores @ v, (0, 2, 1, 3)), x.shape) @ w["out"]
    return x + ost.nn.relu(ost.nn.layer_norm(x) @ w["up"]) @ w["down"]


def step(layers: Any, momenta: Any, x: Any, wanted: Any, rate: float) -> Any:
    def loss(layers: Any) -> Any:
        y = x
        for w in layers:
            y = layer(w, y)
        return ost.nn.mse_loss(y, wanted)

    slopes = ost.grad(loss)(layers)
    momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
    return ost.tree_map(lambda w, m: (w - rate * m).astype(w.dtype), layers, momenta), momenta


def main(depth: int = 4, mesh: Any = (256, 8), size: Any = (1024, 2048, 4096), to: str = "") -> Any:
    """The batch is cut along the first axis, weights along the second: a node has eight GPUs."""
    wide = size[-1]
    down, up = (None, 0), (None, 1)
    shapes = dict.fromkeys(("q", "k", "v"), ((wide, wide), up)) | {"out": ((wide, wide), down)}
    shapes |= {"up": ((wide, 4 * wide), up), "down": ((4 * wide, wide), down)}

    def layers(dtype: Any) -> Any:
        return [{name: ost.spec(s, dtype, split) for name, (s, split) in shapes.items()}] * depth

    x = ost.spec(size, ost.bfloat16, split=(0, None))
    given = (step, layers(ost.bfloat16), layers(ost.float32), x, x, 1e-3)
    plan = ost.plan(*given, mesh=mesh, machine="h200-ib", donate=("layers", "momenta"))
    for node in [n for n in plan.lowered.nodes if n.op == "matmul"][:8]:
        print(f"{node.specs[0]}  {node.line.rpartition('/')[2]}")
    found = plan.simulate()
    counts = [mesh[0] * mesh[1] // n for n in (16, 4, 1)]
    print(found, "the same batch:", *found.scaling(counts), sep="\n")
    print("a batch that grows with them:", *found.scaling(counts, weak=True), sep="\n")
    if to:
        found.trace(to)
    return found


if __name__ == "__main__":
    main(to=sys.argv[1] if len(sys.argv) > 1 else "")
