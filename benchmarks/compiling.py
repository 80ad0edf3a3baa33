"""What twenty new kernels cost, in a new process: `cold` with an empty cache folder, `warm` with
one that another process has filled, `untimed` cold, but without timing what only timing can decide.
Imports do not count; tracing and the first run do.

The functions are small pieces of what people write: chains of functions, sums and maxima of rows,
softmax and its gradient, normalisation, an optimizer's step, a step of k-means."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from .libraries import Function, Jax, NumPy, Ostinato, Torch
from .machine import THREADS
from .peers import torch_compiled
from .workload import Case, Numbers, Workload


# -- the functions -------------------------------------------------------------------------
def bell(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.exp(-x * x) * 0.3 + x


def errors(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.erf(x) * xp.exp(y)


def gelu(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return x * 0.5 * (1 + xp.tanh(0.79788 * (x + 0.044715 * x * x * x)))


def logarithms(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.log(x * x + 1.1) + xp.sqrt(xp.abs(x))


def waves(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.sin(x) * xp.cos(y)


def choice(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.where(x > y, x * y, x - y) / (1 + xp.abs(y))


def softplus(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0)


def adam(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    m, v = 0.9 * x + 0.1 * y, 0.999 * x * x + 0.001 * y * y
    return x - 0.01 * m / (xp.sqrt(v) + 1e-8)


def options(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    ratio = xp.log(xp.abs(x / (y * y + 1)) + 0.1) / (0.3 * xp.sqrt(xp.abs(x) + 0.1))
    return xp.erf(ratio * math.sqrt(0.5)) * x - y * xp.exp(x * -0.02)


def squares(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.sum((x - 0.3) ** 2) / (x.shape[0] * x.shape[1])


def distance(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.sqrt(xp.sum((x - y) ** 2, axis=1))


def highest(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.max(x * w, axis=1, keepdims=True) - xp.mean(y, axis=1)[:, None]


def entropy(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    p = xp.softmax(x, axis=1)
    return -xp.sum(p * xp.log(p + 1e-9), axis=1)


def softmax(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.softmax(x * 0.7, axis=1)


def slopes(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.exp(x) * (y - xp.sum(y * xp.exp(x), axis=1)[:, None] / 300)


def layer_norm(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return (x - xp.mean(x, axis=1)[:, None]) / (xp.std(x, axis=1)[:, None] + 1e-5) * w


def batch_norm(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return (x - xp.mean(x, axis=0)) / (xp.std(x, axis=0) + 1e-5)


def logistic(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    error = 1 / (1 + xp.exp(-(x @ w))) - y[:, 0]
    return w - 0.1 * (error @ x) / x.shape[0]


def nearest(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    small = x[:, :16]
    d = xp.sum((small[:, None, :] - c[None]) ** 2, axis=-1)
    near = xp.one_hot(xp.argmin(d, axis=1), c.shape[0])
    return (near.T @ small) / (xp.sum(near, axis=0)[:, None] + 1)


def weighted(xp: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    return xp.sum(xp.exp(-xp.abs(x)) * y * w, axis=0)


FUNCTIONS: tuple[Function, ...] = (
    bell, errors, gelu, logarithms, waves, choice, softplus, adam, options, squares, distance,
    highest, entropy, softmax, slopes, layer_norm, batch_norm, logistic, nearest, weighted,
)  # fmt: skip


def operands() -> tuple[Numbers, ...]:
    rng = np.random.default_rng(7)
    shapes = ((1024, 256), (1024, 256), (256,), (8, 16))
    return tuple(rng.standard_normal(s, np.float32) for s in shapes)


def summary(results: Any) -> list[float]:
    return [float(np.asarray(y, np.float64).mean()) for y in results]


# -- a new process -------------------------------------------------------------------------
def run(system: str) -> dict[str, Any]:
    """The first calls of all functions in this process."""
    made: list[Function] = []
    if system == "ostinato":
        import ostinato as ost

        ost.connect()
        given = [ost.asarray(x) for x in operands()]
        ost.evaluate(given)
        made = [ost.compile(functools.partial(f, Ostinato(ost))) for f in FUNCTIONS]
    elif system == "jax":
        import jax  # type: ignore[import-not-found, unused-ignore]
        import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

        given = [jax.device_put(x) for x in operands()]
        made = [jax.jit(functools.partial(f, Jax(jnp))) for f in FUNCTIONS]
    else:
        import torch  # type: ignore[import-not-found, unused-ignore]

        torch.set_num_threads(THREADS)
        given = [torch.from_numpy(x) for x in operands()]
        made = [torch_compiled(functools.partial(f, Torch(torch))) for f in FUNCTIONS]
    start = time.perf_counter()
    results = [np.asarray(f(*given)) for f in made]
    return {"seconds": time.perf_counter() - start, "answer": summary(results)}


def in_a_process(system: str, how: str) -> Case:
    """Each sample is one."""
    filled = tempfile.mkdtemp(prefix="ostinato-bench-")
    atexit.register(shutil.rmtree, filled, ignore_errors=True)

    def start(folder: str) -> dict[str, Any]:
        caches = {
            "OSTINATO_CACHE": folder,
            "OSTINATO_TUNE": "off" if how == "untimed" else "on",
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.compiling", system],
            env={**os.environ, **caches},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def clock() -> float:
        if how == "warm":
            return float(start(filled)["seconds"])
        with tempfile.TemporaryDirectory(prefix="ostinato-bench-") as empty:
            return float(start(empty)["seconds"])

    return Case(lambda: start(filled)["answer"], clock=clock)


WORKLOADS = (
    Workload(
        "twenty",
        "first calls of twenty functions in a new process",
        lambda: summary(f(NumPy(), *operands()) for f in FUNCTIONS),
        {
            f"{system}/{how}": functools.partial(in_a_process, system, how)
            for system, ways in (
                ("ostinato", ("cold", "untimed", "warm")),
                ("jax", ("cold", "warm")),
                ("torch", ("cold", "warm")),
            )
            for how in ways
        },
        tolerance=2e-3,
        seconds=120.0,
    ),
)

if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
