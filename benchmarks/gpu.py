"""On one GPU, beside PyTorch (eager, and compiled with max-autotune), JAX and CuPy.

python -m benchmarks.gpu day        tests on the GPU, then the rows, in ten minutes (gpu_day.py)
python -m benchmarks gpu --save     the rows
BENCHMARK_DEVICE=cpu python -m benchmarks gpu --scale 0.01    a rehearsal without a GPU"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import dispatch, gpu_rows, kernels, training
from .libraries import Function, cupy_case, everywhere
from .workload import OURS, SYSTEMS, Case, Numbers, System, Workload, scaled

DEVICE = os.environ.get("BENCHMARK_DEVICE", "cuda")
_JAX = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_ENABLE_X64": "0",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # else float32 is multiplied by TF32
}
_TORCH = {"BENCHMARK_DEVICE": DEVICE}
_OURS = {"OSTINATO_DEVICE": DEVICE, "OSTINATO_CACHE": "off", "OSTINATO_TUNE": "on"}
GPU: dict[str, System] = {
    OURS: System(("numpy",), variables=_OURS),
    "jax": System(("jax",), variables=_JAX | ({"JAX_PLATFORMS": "cpu"} if DEVICE == "cpu" else {})),
    "torch": System(("torch",), variables=_TORCH),
    "torch/eager": System(("torch",), variables=_TORCH | {"BENCHMARK_EAGER": "1"}),
    "cupy": System(("cupy",)),
}


def on_gpu(
    found: Workload, function: Function | None = None, operands: Callable[[], Any] | None = None
) -> Workload:
    """A workload of another suite, for the systems that have GPUs; CuPy where it has the functions."""
    cases = {name: found.cases[name] for name in (OURS, "jax", "torch") if name in found.cases}
    if "torch" in cases:
        cases["torch/eager"] = cases["torch"]
    if function is not None and operands is not None:
        cases["cupy"] = lambda: cupy_case(function, operands())
    return replace(found, cases=cases, traffic=0, flops=0, systems={**SYSTEMS, **GPU})


def named(name: str) -> Workload:
    return next(w for w in kernels.WORKLOADS if w.name == name)


@functools.cache
def squares(n: int) -> tuple[Numbers, Numbers]:
    rng = np.random.default_rng(20)
    return tuple(rng.standard_normal((n, n), np.float32) for _ in range(2))  # type: ignore[return-value]


def product(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


@functools.cache
def layer(n: int) -> tuple[Numbers, ...]:
    rng = np.random.default_rng(21)
    more = rng.standard_normal(n, np.float32), rng.standard_normal((n, n), np.float32)
    return (*squares(n), *more)


def linear(xp: Any, x: Any, w: Any, bias: Any, residual: Any) -> Any:
    return x @ w + bias + residual


def halves() -> dict[str, Callable[[], Case]]:
    """A product whose operands are rounded to bfloat16 first."""

    def rounded(xp: Any, a: Any, b: Any) -> Any:
        import torch  # type: ignore[import-not-found, unused-ignore]

        return (a.to(torch.bfloat16) @ b.to(torch.bfloat16)).to(torch.float32)

    def in_jax(xp: Any, a: Any, b: Any) -> Any:
        return (a.astype("bfloat16") @ b.astype("bfloat16")).astype("float32")

    def ours() -> Case:
        import ostinato as ost

        from .libraries import case
        from .peers import ostinato_end

        run = ost.compile(precision="mixed_bf16")(lambda a, b: a @ b)
        given = [ost.asarray(x) for x in squares(scaled(4096))]
        return case(run, given, ostinato_end, np.asarray)

    of = functools.partial(squares, scaled(4096))
    return {
        OURS: ours,
        "jax": everywhere(in_jax, of)["jax"],
        "torch": everywhere(rounded, of)["torch"],
    }


def gemm() -> tuple[Workload, ...]:
    n = scaled(4096)
    of = functools.partial(squares, n)
    about = f"{n} x {n} x {n} in"
    one = Workload(
        "gemm",
        f"{about} float32",
        lambda: product(np, *of()),
        everywhere(product, of),
        tolerance=1e-3,
    )
    two = replace(one, name="gemm_bf16", about=f"{about} bfloat16", cases=halves())
    given = functools.partial(layer, n)
    three = Workload(
        "linear",
        f"x @ w + bias + residual of {n} x {n} float32",
        lambda: linear(np, *given()),
        everywhere(linear, given),
        tolerance=1e-3,
    )
    return (
        on_gpu(one, product, of),
        on_gpu(replace(two, tolerance=3e-2)),
        on_gpu(three, linear, given),
    )


def copy(xp: Any, x: Any) -> Any:
    return x + 1.0


WORKLOADS = (
    on_gpu(dispatch.NULL),
    on_gpu(dispatch.CHAIN),
    on_gpu(
        Workload(
            "copy",
            f"x + 1 of {scaled(20_000_000):,} numbers",
            lambda: kernels.twenty_million()[0] + np.float32(1),
            everywhere(copy, kernels.twenty_million),
        ),
        copy,
        kernels.twenty_million,
    ),
    on_gpu(named("poly"), kernels.poly, kernels.twenty_million),
    on_gpu(named("blackscholes"), kernels.blackscholes, kernels.options),
    on_gpu(named("norm"), kernels.norm, kernels.twenty_million),
    on_gpu(named("meanstd"), kernels.meanstd, kernels.table),
    on_gpu(named("softmax")),
    on_gpu(named("kmeans")),
    on_gpu(named("nearest")),
    *gemm(),
    on_gpu(training.mlp(4)),
    *(on_gpu(*row) for row in gpu_rows.ROWS),
)


if __name__ == "__main__":
    import sys

    from . import gpu_day

    if sys.argv[1:2] != ["day"]:
        sys.exit(
            "python -m benchmarks.gpu day [--out FOLDER] [--minutes N] [--no-tests] [--workload NAME,...]"
        )
    sys.exit(gpu_day.main(sys.argv[2:]))
