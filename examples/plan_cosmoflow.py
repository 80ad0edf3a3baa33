"""CosmoFlow's training step for 2,048 GPUs, on a laptop: how each layer is cut, simulation, scaling."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
from cosmoflow import cosmoflow


def main(cube: int = 512, mesh: Any = (256, 8), counts: Any = (8, 256, 2048)) -> Any:
    """A sample for each 8 GPUs of 16 GB, cut in slabs where it comes from: one of them could not hold it.

    Nobody says how the layers are cut."""
    model = cosmoflow(cube).init(seed=1)
    weights = ost.tree_map(lambda w: ost.spec(w.shape, w.dtype.name), model)

    def step(model: Any, momenta: Any, x: Any, y: Any, key: int) -> Any:
        def value_of(weights: Any) -> Any:
            return nn.mse_loss(nn.combine(weights, model).apply(x, key=key)[0], y)

        weights = nn.parameters(model)
        value, slopes = ost.value_and_grad(value_of)(weights)
        momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
        weights = ost.tree_map(lambda w, m: w - 0.001 * m, weights, momenta)
        return nn.combine(weights, model), momenta, value

    x = ost.spec((mesh[0], 4, cube, cube, cube), "float32", split=(0, 2))
    y = ost.spec((mesh[0], 4), "float32", split=(0, None))
    given = (step, weights, nn.parameters(weights), x, y, 1)
    on = {"mesh": mesh, "machine": "dgx-v100", "memory_limit": 16 << 30}
    plan = ost.plan(*given, **on, donate=("model", "momenta"))
    for node in [n for n in plan.lowered.nodes if n.op in ("conv", "matmul")][:11]:
        print(node.op, node.specs[0])
    found = plan.simulate()
    print(found, "a sample for each 8 workers:", sep="\n")
    print(*found.scaling(counts, weak=True), sep="\n")
    return found


if __name__ == "__main__":
    main()
