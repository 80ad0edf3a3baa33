"""Counts inside kernels: NumPy's bits, wherever an element is, and no array of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.cpu.jit.llvm import why_not

import ostinato as ost
from tests import sessions
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.sessions import JOB

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SHAPE = (150, 130)
N = 150 * 130
X = np.random.default_rng(0).standard_normal(SHAPE)
DTYPES = ["float64", "float32", "int64", "int32", "uint8", "uint64", "bool"]

# (namespace, an array of SHAPE) -> what has counts in it
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda xp, x: x * xp.reshape(xp.arange(150.0), (150, 1)),
    "columns": lambda xp, x: x * xp.arange(130),
    "both": lambda xp, x: x + xp.reshape(xp.arange(150), (150, 1)) * xp.arange(130),
    "all": lambda xp, x: x - xp.reshape(xp.arange(N), SHAPE),
    "turned": lambda xp, x: x - xp.reshape(xp.arange(N), (130, 150)).T,
    "backwards": lambda xp, x: x * xp.reshape(xp.arange(N)[::-1], SHAPE),
    "part": lambda xp, x: x * xp.reshape(xp.arange(3 * N + 7)[7::3], SHAPE),
    "steps": lambda xp, x: x + xp.reshape(xp.arange(0.25, 0.25 + 3.5 * N, 3.5), SHAPE),
    "linspace": lambda xp, x: x * xp.reshape(xp.linspace(-1, 2, N), SHAPE),
    "eye": lambda xp, x: x * xp.eye(150, 130, k=3),
    "triangle": lambda xp, x: xp.tril(x, 5),
    "meshgrid": lambda xp, x: sum(xp.meshgrid(xp.arange(130), xp.linspace(0, 1, 150))) - x,
    "indices": lambda xp, x: xp.indices(SHAPE) * x,
    "stack": lambda xp, x: xp.stack([x, xp.reshape(xp.arange(N) * 0.5, SHAPE)]),
    "alone": lambda xp, x: xp.reshape(xp.arange(N), SHAPE),
    "taken": lambda xp, x: xp.reshape(x, (-1,))[xp.arange(N)[::-1] // 2] + 1,
}  # fmt: skip


def counts(graph: Graph) -> int:
    """How many counts are in kernels; large ones may be nowhere else."""
    inside = 0
    for node in graph.nodes:
        assert node.op not in ("iota", "counted") or node.specs[0].size < 1000
        body = node.kw.get("body")
        if isinstance(body, Graph):
            inside += sum(n.op in ("iota", "counted") for n in body.nodes)
    return inside


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_numpy_counts(name: str) -> None:
    with sessions.use():
        f = ost.compile(lambda x: PROGRAMS[name](ost, x))
        made = np.asarray(f(X))
        assert counts(f.plan.program.graph) > 0
    wanted = np.asarray(PROGRAMS[name](np, X))
    assert made.dtype == wanted.dtype
    assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("mesh", "split"), [((3,), 0), ((2,), 1), ((2, 2), (0, 1)), ((2,), None)])
def test_parts_count_from_where_they_begin(name: str, mesh: Any, split: Any) -> None:
    wanted = np.asarray(PROGRAMS[name](np, X))
    with sessions.use(mesh):
        f = ost.compile(lambda x: PROGRAMS[name](ost, x))
        made = np.asarray(f(ost.asarray(X, split=split)))
    assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_any_dtype(dtype: str) -> None:
    """Small ones wrap as NumPy's cast does."""
    x = (np.arange(20001) % 5).astype(dtype)

    def f(xp: Any, x: Any) -> Any:
        return xp.stack([x, xp.arange(20001).astype(dtype) + x])

    with sessions.use():
        g = ost.compile(lambda x: f(ost, x))
        made = np.asarray(g(x))
        assert counts(g.plan.program.graph) == 1
    assert made.tobytes() == f(np, x).tobytes()


def test_beyond_32_bits() -> None:
    """From far on, in large steps, and of more numbers than memory has room for."""
    x = np.random.default_rng(0).standard_normal(1 << 13)
    with sessions.use():
        f = ost.compile(
            lambda x: (x + ost.arange(1 << 40)[:: 1 << 27], ost.arange(1 << 40)[-8192:])
        )
        far, last = map(np.asarray, f(x))
    np.testing.assert_array_equal(far, x + np.arange(1 << 13) * (1 << 27))
    np.testing.assert_array_equal(last, np.arange((1 << 40) - 8192, 1 << 40))


def test_each_kernel_counts_for_itself() -> None:
    """What lies between two kernels that read the same count is not made for them."""
    with sessions.use():
        f = ost.compile(lambda x: ost.cumsum(x * ost.arange(N)) * ost.arange(N))
        made = np.asarray(f(X.ravel()))
        nodes = f.plan.program.graph.nodes
    large = [n for n in nodes if n.specs[0].size >= N and n.op != "numbers"]
    assert [n.op for n in large] == ["fused", "cumulative_sum", "fused"]
    assert f.plan.arena_bytes <= 2 * 8 * N + 4096
    np.testing.assert_allclose(made, np.cumsum(X.ravel() * np.arange(N)) * np.arange(N))


def test_source_says_what_is_counted() -> None:
    with sessions.use():
        f = ost.compile(lambda x: x * ost.arange(130))
        f(X)
        text = f.plan.source()
    assert "# x1: numbers of elements, [130]" in text
    assert "cast(x1[j])" in text


def test_the_arena_has_no_room_for_counts() -> None:
    with sessions.use():
        f = ost.compile(lambda x: (x * ost.linspace(0, 1, N) - ost.arange(N)).sum())
        found = float(f(X.ravel()))
        assert f.plan.arena_bytes < 8 * N
    assert found == pytest.approx((X.ravel() * np.linspace(0, 1, N) - np.arange(N)).sum())


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_counts(axis: int) -> None:
    """Of rows and of columns, split and not: kernels in stages have their own indices."""

    def f(xp: Any, x: Any) -> Any:
        return (x * xp.reshape(xp.arange(150), (150, 1)) * xp.arange(130)).sum(axis)

    for mesh, split in (((1,), None), ((2,), 0), ((3,), 1)):
        with sessions.use(mesh):
            made = np.asarray(ost.compile(lambda x: f(ost, x))(ost.asarray(X, split=split)))
        np.testing.assert_allclose(made, f(np, X), rtol=1e-12)


def test_in_turns_under_a_limit() -> None:
    """Blocks of rows begin at their own numbers."""
    shape = (4000, 500)

    def f(xp: Any) -> Any:
        k = xp.reshape(xp.arange(4000 * 500), shape) % 1000
        return (k * 1.0).sum(0), k.max(1)

    with ost.connect(1, memory_limit=3_000_000):
        made = [np.asarray(y) for y in ost.compile(lambda: f(ost))()]
    for a, b in zip(made, f(np), strict=True):
        np.testing.assert_array_equal(a, b)


def test_in_loops() -> None:
    x = np.random.default_rng(0).standard_normal(20001)
    wanted = x
    for _ in range(3):
        wanted = wanted * 0.5 + np.arange(20001)
    for mesh, split in (((1,), None), ((2,), 0)):
        with sessions.use(mesh):
            f = ost.compile(lambda x: ost.repeat(3, lambda y: y * 0.5 + ost.arange(20001), x))
            made = np.asarray(f(ost.asarray(x, split=split)))
        np.testing.assert_array_equal(made, wanted)


def test_numpy_counts_where_there_is_no_machine_code() -> None:
    absent = mock.patch("ostinato.ops.cpu.cpu_device.native_kernel", lambda *a: None)
    for name in ("all", "turned", "part", "both"):
        with absent, ost.connect(3):
            f = ost.compile(lambda x, name=name: PROGRAMS[name](ost, x))
            made = np.asarray(f(ost.asarray(X, split=0)))
            assert "fused" in [n.op for n in f.plan.program.graph.nodes]
        assert made.tobytes() == PROGRAMS[name](np, X).tobytes()


@pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("mesh", [(1,), (3,)])
def test_kernels_of_a_gpu_count_too(mesh: Sequence[int]) -> None:
    def f(xp: Any, x: Any) -> Any:
        k = xp.reshape(xp.arange(N)[::-1], SHAPE)
        return x * k + xp.arange(130), xp.linspace(0, 1, 15001), (x * xp.arange(130)).sum(1)

    with sessions.use(tuple(mesh), device=KERNELS):
        g = ost.compile(lambda x: f(ost, x))
        made = [np.asarray(y) for y in g(ost.asarray(X, split=0))]
        assert counts(g.plan.program.graph) > 0
    wanted = f(np, X)
    for a, b in zip(made[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(made[2], wanted[2], rtol=1e-12)
