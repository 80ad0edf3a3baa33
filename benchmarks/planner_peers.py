"""What it takes others to spread the same steps over the same meshes, given where operands lie.

    python -m benchmarks.planner_peers jax mlp-16 4x2

JAX      `jit(...).lower(...)` traces, `compile()` carries the given shardings on through the program (Shardy),
         partitions it, and makes machine code for its CPU devices; it searches for nothing, as the automatic
         search was taken out of JAX.
DTensor  a step whose tensors are fake, on a fake group of processes: each operation finds the layouts of what
         it gives from those of what it is given. `again` is the same step with all that remembered.

Arrays are only described; nothing is computed. The batch is cut along the first axis, weights are whole."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

WIDE, BATCH, LAYERS, DEPTH, HEADS, WORDS = 1024, 16_384, 16, 24, 16, 512
PEERS = (("jax", "mlp-16"), ("jax", "transformer-24"), ("torch", "mlp-16"))
Mesh = tuple[int, ...]


def jax_row(name: str, mesh: Mesh) -> dict[str, float]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={math.prod(mesh)}"
    import jax  # type: ignore[import-not-found, unused-ignore]
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]
    import numpy as np

    shape = tuple(mesh)
    axes = tuple("abcd"[: len(shape)])
    devices = jax.sharding.Mesh(np.array(jax.devices()).reshape(shape), axes)

    def lies(*splits: str) -> Any:
        return jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(*splits))

    def spec(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    make = {"mlp-16": _jax_mlp, "transformer-24": _jax_transformer}[name]
    step, state, x = make(jax, jnp, spec, mesh)
    placed = (*([lies()] * len(state)), lies("a"), lies("a"))
    start = time.perf_counter()
    lowered = jax.jit(step, in_shardings=placed).lower(*state, x, x)
    traced = time.perf_counter()
    lowered.compile()
    return {"trace_s": traced - start, "compile_s": time.perf_counter() - traced}


def _jax_mlp(jax: Any, jnp: Any, spec: Callable[..., Any], mesh: Mesh) -> tuple[Any, Any, Any]:
    def loss(ws: Any, x: Any, y: Any) -> Any:
        for w, b in ws[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = ws[-1]
        return ((x @ w + b - y) ** 2).mean()

    def step(ws: Any, x: Any, y: Any) -> Any:
        found, slopes = jax.value_and_grad(loss)(ws, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, slopes), found

    return step, ([(spec(WIDE, WIDE), spec(WIDE)) for _ in range(LAYERS)],), spec(BATCH, WIDE)


def _jax_transformer(
    jax: Any, jnp: Any, spec: Callable[..., Any], mesh: Mesh
) -> tuple[Any, Any, Any]:
    def norm(x: Any) -> Any:
        off = x - x.mean(-1, keepdims=True)
        return off / jnp.sqrt((off * off).mean(-1, keepdims=True) + 1e-5)

    def heads(y: Any) -> Any:
        return y.reshape(*y.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    def layer(w: Any, x: Any) -> Any:
        y = norm(x)
        q, k, v = (heads(y @ w[name]) for name in ("q", "k", "v"))
        scores = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5)
        x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w["out"]
        return x + jax.nn.relu(norm(x) @ w["up"]) @ w["down"]

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w in layers:
            x = layer(w, x)
        return ((x - y) ** 2).mean()

    def step(layers: Any, means: Any, squares: Any, x: Any, y: Any) -> Any:
        found, slopes = jax.value_and_grad(loss)(layers, x, y)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, slopes)

        def better(w: Any, m: Any, v: Any) -> Any:
            return w - 1e-3 * m / (jnp.sqrt(v) + 1e-8)

        return jax.tree.map(better, layers, means, squares), means, squares, found

    shapes = dict.fromkeys(("q", "k", "v", "out"), (WIDE, WIDE))
    shapes |= {"up": (WIDE, 4 * WIDE), "down": (4 * WIDE, WIDE)}
    state = [[{k: spec(*s) for k, s in shapes.items()} for _ in range(DEPTH)] for _ in range(3)]
    return step, state, spec(max(64, 8 * mesh[0]), WORDS, WIDE)


def torch_row(name: str, mesh: Mesh) -> dict[str, float]:
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed as group  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed.tensor as split  # type: ignore[import-not-found, unused-ignore]
    from torch._subclasses.fake_tensor import (  # type: ignore[import-not-found, unused-ignore]
        FakeTensorMode,
    )
    from torch.distributed.device_mesh import (  # type: ignore[import-not-found, unused-ignore]
        init_device_mesh,
    )
    from torch.testing._internal.distributed.fake_pg import (  # type: ignore[import-not-found, unused-ignore]
        FakeStore,
    )

    group.init_process_group("fake", rank=0, world_size=math.prod(mesh), store=FakeStore())
    devices = init_device_mesh("cpu", mesh)
    whole = [split.Replicate()] * len(mesh)
    rows = [split.Shard(0), *whole[1:]]

    def weight(*shape: int) -> Any:
        return split.DTensor.from_local(torch.empty(shape), devices, whole).requires_grad_()

    with FakeTensorMode():
        pairs = [(weight(WIDE, WIDE), weight(WIDE)) for _ in range(LAYERS)]
        part = torch.empty(BATCH // mesh[0], WIDE)
        x, y = (split.DTensor.from_local(part, devices, rows) for _ in range(2))
        every = [t for pair in pairs for t in pair]

        def step() -> Any:
            made = x
            for w, b in pairs[:-1]:
                made = torch.relu(made @ w + b)
            w, b = pairs[-1]
            found = ((made @ w + b - y) ** 2).mean()
            slopes = torch.autograd.grad(found, every)
            return [w - 0.1 * g for w, g in zip(every, slopes, strict=True)]

        took = []
        for _ in range(2):
            start = time.perf_counter()
            step()
            took.append(time.perf_counter() - start)
    return {"first_s": took[0], "again_s": took[1]}


def told(peer: str, name: str, mesh: str, row: dict[str, float]) -> str:
    parts = ", ".join(f"{k.removesuffix('_s')} {v:.3f} s" for k, v in row.items())
    return f"{peer + ' ' + name:<24} {mesh:>7}  {parts}"


if __name__ == "__main__":
    _, peer, name, mesh = sys.argv
    row = {"jax": jax_row, "torch": torch_row}[peer]
    print(json.dumps(row(name, tuple(map(int, mesh.split("x"))))))
