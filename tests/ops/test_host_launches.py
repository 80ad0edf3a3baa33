"""The stand-in for launches of kernels (tests/cuda_host.py): it finds what a GPU would do otherwise; and kernels
of all kinds give the same bits in whatever order blocks, warps and lanes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten
from ostinato.ops.gpu.loops.text import OPTIONS, PREAMBLE

import ostinato as ost
from tests.cuda_host import COMPILER, HostKernel
from tests.fake_device import KERNELS
from tests.sessions import JOB

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the tests have no compiler"),
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
]
HERE = "const int t = threadIdx.x; float* x = (float*)q0;\n"


def kernel(code: str) -> HostKernel:
    head = 'extern "C" __global__ void planted(u8* q0, s64 n)'
    return HostKernel(f"{PREAMBLE}\n{head} {{\n{HERE}{code}\n}}\n", "planted", OPTIONS)


def made(code: str, seed: int, grid: int = 3, threads: int = 96) -> bytes:
    found = np.zeros(4 * threads, np.float32)
    kernel(code)((grid, 1), (threads,), (found, np.int64(threads)), seed)
    return found.tobytes()


TURNED = "__shared__ float held[96]; held[t] = t; {} x[t] = held[95 - t];"
BLOCKS = "x[n * (1 + blockIdx.x) + t] = blockIdx.x ? x[n * blockIdx.x + t] + 1 : t;"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (TURNED.format("__syncthreads();"), TURNED.format("")),
        (TURNED.format("__syncthreads();"), "__shared__ float held[96]; x[t] = held[t];"),
        ("x[t] = t;", BLOCKS),
    ],
)
def test_what_depends_on_who_runs_first_shows(right: str, wrong: str) -> None:
    assert len({made(right, seed) for seed in range(8)}) == 1
    rubbish = np.frombuffer(b"\x5a" * 4, np.float32)
    some = {made(wrong, seed) for seed in range(8)}
    assert len(some) > 1 or np.frombuffer(some.pop(), np.float32)[1] == rubbish


@pytest.mark.parametrize(
    ("code", "grid", "threads", "said"),
    [
        ("__shared__ double held[6200]; held[t] = t;", (1, 1), 32, "48 KiB"),
        ("x[0] = 1;", (1, 65536), 32, "65536"),
        ("x[0] = 1;", (1, 1), 1056, "1056"),
        ("x[0] = 1;", (0, 1), 32, "0"),
        ("if (t) __syncthreads();", (1, 1), 32, "ended"),
    ],
)
def test_what_a_gpu_refuses(code: str, grid: Any, threads: int, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        kernel(code)(grid, (threads,), (np.zeros(8192, np.float32), np.int64(0)))


def rows(*shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


SOME = [lambda x, k=k: x * k + 1 for k in range(1, 14)]
PROGRAMS: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "long sums": (lambda x: (ost.sum(x * x), ost.max(x)), [rows(70_001)]),
    "sums of columns": (lambda x: tuple(f(x).sum(0) for f in SOME), [rows(2100, 5)]),
    "moments": (lambda x: tuple(f(x).var(0) for f in SOME[:9]), [rows(260, 33)]),
    "sums beside lines": (
        lambda x: tuple((f(x) * (x / ost.abs(x).sum(1, keepdims=True))).sum(0) for f in SOME),
        [rows(3, 8193)],
    ),
    "lines": (lambda x: ost.exp(x - x.max(1, keepdims=True)), [rows(9, 2050, dtype="f4")]),
    "many arrays": (
        lambda *xs: [(x * 0.5, ost.sum(x * x)) for x in xs],
        [rows(n) for n in (7, 5000, 9000, 64, 3)],
    ),
    "running sums": (lambda x: ost.cumulative_sum(x), [rows(40_000, dtype="f4")]),
    "running sums of columns": (lambda x: ost.cumulative_sum(x, axis=0), [rows(900, 40)]),
    "sorts": (lambda x: (ost.sort(x, 0), ost.argsort(x, 1)), [rows(130, 40, dtype="f4")]),
    "counts": (lambda i: ost.bincount(i, length=300), [np.arange(20_000) * 7919 % 300]),
    "joins": (lambda x: ost.roll(x, 1, 0) + ost.roll(x, -3, 1), [rows(61, 77, dtype="f4")]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_bits_in_any_order(name: str) -> None:
    """Each launch has another one."""
    function, given = PROGRAMS[name]
    wanted = ost.compile(lambda *xs: function(*xs))(*given)
    with ost.connect(device=KERNELS):
        run = ost.compile(lambda *xs: function(*xs))
        xs = [ost.asarray(x) for x in given]
        found = [[np.asarray(y) for y in flatten(run(*xs))[0]] for _ in range(2)]
        assert any(n.op.startswith("fused") for n in run.plan.program.graph.nodes) or name in (
            "running sums", "running sums of columns", "sorts", "counts",
        )  # fmt: skip
    for k, w in enumerate(flatten(wanted)[0]):
        assert len({some[k].tobytes() for some in found}) == 1
        np.testing.assert_allclose(found[0][k], np.asarray(w), rtol=1e-5, atol=1e-5)
