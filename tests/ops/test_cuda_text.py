"""Kernels in CUDA C++, run on the host (cuda_host.py): to the bit what kernels of a CPU give."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DTYPES, DType, Spec, is_inexact, real_of
from ostinato.ops.cpu.jit.lines import can_lower
from ostinato.ops.cpu.loops.flat import native_kernel
from ostinato.ops.gpu.loops.flat import (
    blocks_of,
    kernel_of,
    team_of,
)
from ostinato.ops.gpu.loops.schedule import BLOCKS, THREADS
from ostinato.ops.gpu.loops.text import OPTIONS, Kernel
from ostinato.ops.jit.loops import loops_of, loops_over, strides_over

from tests import nvrtc
from tests.cuda_host import COMPILER, HostKernel
from tests.thorough import THOROUGH, some

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
KINDS = [d for d in DTYPES.values() if d.kind != "c"]
HALVES = [DTYPES["float16"], DTYPES["bfloat16"]]
SOME_INTEGERS = ("int8", "int64", "uint16", "uint32")  # each size, and each sign
CASTS = [d for d in KINDS if d.kind != "b"]


def edges(dtype: DType, count: int, seed: int = 0) -> Any:
    """Numbers of all sizes, among them those at the edges."""
    r = np.random.default_rng(seed)
    if dtype.kind == "b":
        return r.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        x = r.integers(least, most, count, dtype=dtype, endpoint=True)
        x[: count // 2] = r.integers(0 if dtype.kind == "u" else -9, 10, count // 2)
        x[:4] = [least, most, 0, 1]
        return x
    wide = r.normal(size=count) * 10.0 ** r.uniform(-8, 8, count)
    wide[: count // 2] = r.normal(size=count // 2)
    wide[:10] = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, 1e-40, 3e38]
    with np.errstate(over="ignore"):
        return wide.astype(dtype)


def run_on_host(kernel: Kernel, arrays: Sequence[Any]) -> None:
    room = np.zeros(kernel.room, np.uint8)
    more = (*map(np.int64, kernel.facts), *((room,) if kernel.room else ()))
    run = HostKernel(kernel.text, kernel.name, OPTIONS)
    run(kernel.grid, (THREADS,), (*arrays, *more))
    each = kernel.room // kernel.grid[1] if kernel.room else 16
    assert not any(room[at : at + 16].any() for at in range(0, kernel.room, each)), (
        "a count is left"
    )


def strides_of(body: Graph, shape: Sequence[int], arrays: Sequence[Any], axes: int) -> Any:
    return strides_over(body, tuple(shape), arrays, axes)


def run_both(body: Graph, shape: Sequence[int], ins: Sequence[Any], outs: Sequence[Any]) -> Any:
    """What a CPU's kernel gives, and what the GPU's does."""
    sums = [n for n in body.nodes if OPS[n.op].reduce]
    axes = len(sums[0].kw["axes"]) if sums else 0
    found = []
    for on_gpu in (False, True):
        made = [np.full_like(x, 1) for x in outs]
        arrays = [*ins, *made]
        strides = strides_of(body, shape, arrays, axes)
        if on_gpu:
            apart = len(shape) - axes if axes else -1
            run_on_host(kernel_of(body, loops_over(tuple(shape), strides, apart)), arrays)
        else:
            kernel = native_kernel(body, tuple(shape), strides, 1, axes)
            assert kernel is not None
            kernel(*arrays)
        found.append(made)
    return found


def same_bits(a: Any, b: Any, said: str) -> None:
    if a.dtype.kind == "c":
        a, b = (np.ascontiguousarray(x).view(real_of(x.dtype)) for x in (a, b))
    if is_inexact(a.dtype):
        nan = np.isnan(a.astype(np.float64))
        np.testing.assert_array_equal(nan, np.isnan(b.astype(np.float64)), said)
        a, b = (np.where(nan, 0, x.view(f"u{x.itemsize}")) for x in (a, b))
    np.testing.assert_array_equal(a, b, said)


def everything(dtype: DType, count: int) -> tuple[Graph, list[str]]:
    """All elementwise operations of one dtype in one body; of halves, which are float32 in between, a third, and
    of integers, whose texts differ by a word, a half."""
    body = Builder([Spec((count,), dtype)] * 3)
    made, names = [], []
    ops = sorted(OPS.items())
    alike = {d.name: (3, k) for k, d in enumerate(HALVES)}
    alike |= {name: (2, k) for k, name in enumerate(SOME_INTEGERS)}
    for name, op in some(ops, *alike.get(dtype.name, (1,))):
        if not op.scalar or op.scalar == "cast({0})" or op.element.draws or op.made_by != "users":
            continue
        many = 1 + ("{1}" in op.scalar) + ("{2}" in op.scalar)
        try:
            spec = op.infer(*[Spec((count,), dtype)] * many)
        except Exception:
            continue
        if not can_lower(name, (dtype,) * many, spec.dtype):
            continue
        made += body.add(name, tuple(range(many)), (), (spec,))
        names.append(name)
    for other in CASTS:
        if can_lower("astype", (dtype,), other):
            spec = Spec((count,), other)
            made += body.add("astype", (0,), (("dtype", other),), (spec,))
            names.append(f"astype {other.name}")
    return body.graph(made), names


@pytest.mark.parametrize(
    "dtype",
    [d for d in KINDS if THOROUGH or d.kind not in "iu" or d.name in SOME_INTEGERS],
    ids=lambda d: d.name,
)
def test_each_operation(dtype: DType) -> None:
    count = 601
    body, names = everything(dtype, count)
    assert len(names) > (30 if dtype.kind == "f" else 7)
    ins = [edges(dtype, count, seed) for seed in range(3)]
    outs = [np.empty(count, s.dtype) for s in body.out_specs]
    with np.errstate(all="ignore"):
        theirs, ours = run_both(body, (count,), ins, outs)
    for name, a, b in zip(names, theirs, ours, strict=True):
        same_bits(a, b, f"{name} of {dtype.name}")


@pytest.mark.parametrize("dtype", [np.dtype(np.complex64), np.dtype(np.complex128)], ids=str)
def test_complex_numbers_are_pairs(dtype: DType) -> None:
    count = 601
    body, names = everything(dtype, count)
    assert len(names) > 20
    parts = [edges(real_of(dtype), count, seed) for seed in range(6)]
    ins = [np.empty(count, dtype) for _ in range(3)]
    for x, real, imag in zip(ins, parts[::2], parts[1::2], strict=True):
        x.real, x.imag = real, imag
    outs = [np.empty(count, s.dtype) for s in body.out_specs]
    with np.errstate(all="ignore"):
        theirs, ours = run_both(body, (count,), ins, outs)
    for name, a, b in zip(names, theirs, ours, strict=True):
        same_bits(a, b, f"{name} of {dtype}")


# -- however arrays lie --------------------------------------------------------------------------
def chain(specs: Sequence[Spec], out: Spec) -> Graph:
    body = Builder(list(specs))
    y = body.add("multiply", (0, 1), (), (out,))[0]
    z = body.add("tanh", (y,), (), (out,))[0]
    return body.graph([body.add("add", (z, 2), (), (out,))[0], y])


def lies_somehow(r: random.Random, shape: Sequence[int], dtype: DType, result: bool) -> Any:
    """Numbers that lie in order, or with gaps, backwards, transposed, repeated, not aligned."""
    size = math.prod(shape)
    how = r.choice(("order", "gaps", "turned", "skewed", *(() if result else ("back", "again"))))
    x = np.random.default_rng(r.getrandbits(32)).normal(size=size).astype(dtype).reshape(shape)
    if how == "gaps":
        wide = np.empty([2 * n + 1 for n in shape], dtype)[
            tuple(slice(1, 2 * n + 1, 2) for n in shape)
        ]
    elif how == "turned":
        wide = np.empty(shape[::-1], dtype).T
    elif how == "skewed":
        wide = np.empty(size + 1, dtype)[1:].reshape(shape)
    elif how == "back":
        wide = np.empty(shape, dtype)[..., ::-1]
    elif how == "again" and shape:
        d = r.randrange(len(shape))
        return np.broadcast_to(x[(slice(None),) * d + (slice(1),)], shape)
    else:
        return x
    wide[...] = x
    return wide


@pytest.mark.parametrize("seed", range(40))
def test_any_strides(seed: int) -> None:
    r = random.Random(seed)
    shape = tuple(r.choice((1, 2, 3, 5, 64, 200, 300)) for _ in range(r.randrange(1, 4)))
    shape = shape if math.prod(shape) < 200_000 else shape[:2]
    dtype = np.dtype(r.choice(("float32", "float64", "float16", "complex64", "complex128")))
    spec = Spec(shape, dtype)
    body = chain([spec] * 3, spec)
    ins = [lies_somehow(r, shape, dtype, False) for _ in range(3)]
    arrays = [*ins, *(lies_somehow(r, shape, dtype, True) for _ in range(2))]
    run_on_host(kernel_of(body, loops_over(shape, strides_of(body, shape, arrays, 0))), arrays)
    theirs = [np.empty(shape, dtype) for _ in range(2)]
    plain = [*(x.copy() for x in ins), *theirs]
    kernel = native_kernel(body, shape, strides_of(body, shape, plain, 0), 1)
    assert kernel is not None
    kernel(*plain)
    for a, b in zip(theirs, arrays[3:], strict=True):
        same_bits(a, np.ascontiguousarray(b), f"{shape} {dtype}")


# -- reductions ----------------------------------------------------------------------------------
ROWS = [(1, 3), (500, 5), (3, 40), (41, 1000), (5, 1025), (3, 70_000), (1, 4096), (1, 200_001)]
ROWS += [(16, 9000), (90, 8200)]  # several blocks a row


def reduced(shape: Sequence[int], dtype: DType) -> Graph:
    """Sum, mean, largest and smallest of rows of 2 x, which is kept, too."""
    kind = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    spec, row = Spec(tuple(shape), dtype), Spec(tuple(shape[:1]), kind)
    body = Builder([spec])
    y = body.add("add", (0, 0), (), (spec,))[0]
    made = [y, *body.add("sum", (y,), (("axes", (1,)), ("dtype", kind)), (row,))]
    if dtype.kind == "f" and kind == dtype:
        made += body.add("mean", (y,), (("axes", (1,)), ("count", shape[1])), (row,))
    if kind == dtype:
        made += body.add("max", (y,), (("axes", (1,)),), (row,))
        made += body.add("min", (y,), (("axes", (1,)),), (row,))
    return body.graph(made)


SUMMED = [*itertools.product(ROWS, ("float32", "float64", "float16", "int32", "int64"))]


@pytest.mark.parametrize(("shape", "name"), some(SUMMED, 2), ids=str)
def test_rows(shape: tuple[int, int], name: str) -> None:
    """Sums are as if they were made in a wider dtype and rounded, or the number beside that."""
    dtype = np.dtype(name)
    r = np.random.default_rng(1)
    x = (r.integers(-99, 99, shape) if dtype.kind == "i" else r.normal(size=shape)).astype(dtype)
    body = reduced(shape, dtype)
    outs = [np.empty(s.shape, s.dtype) for s in body.out_specs]
    theirs, ours = run_both(body, shape, [x], outs)
    again = run_both(body, shape, [x], outs)[1]
    for a, b in zip(ours, again, strict=True):
        same_bits(a, b, "the same in each run")
    same_bits(theirs[0], ours[0], "elements")
    wide = (x + x).astype(np.longdouble if dtype.kind == "f" else np.int64)
    sums, size = wide.sum(1), np.abs(wide).sum(1)
    eps = 0.0 if dtype.kind == "i" else 2 * float(np.finfo(ours[1].dtype).eps)
    assert np.all(np.abs(ours[1].astype(wide.dtype) - sums) <= eps * (np.abs(sums) + 1e-3 * size))
    rest = ours[2:]
    if len(rest) == 3:
        np.testing.assert_allclose(rest[0], (sums / shape[1]).astype(dtype), 1e-5, 1e-6)
    if rest:
        same_bits(rest[-2], (x + x).max(1), "largest")
        same_bits(rest[-1], (x + x).min(1), "smallest")


@pytest.mark.parametrize("behind", range(4))
@pytest.mark.parametrize("shape", [(1, 70_001), (3, 1030), (5, 41), (2, 4099)], ids=str)
def test_sums_do_not_depend_on_where_arrays_lie(shape: tuple[int, int], behind: int) -> None:
    """Vectors begin where an address says; who adds what is the same, the rest of a row included."""
    r = np.random.default_rng(shape[1])
    body = reduced(shape, np.dtype(np.float32))
    x = r.normal(size=shape).astype(np.float32)
    moved = np.empty(x.size + behind, np.float32)[behind:].reshape(shape)
    moved[...] = x
    found = []
    for given in (x, moved):
        made = [
            np.empty(s.size + behind, s.dtype)[behind:].reshape(s.shape) for s in body.out_specs
        ]
        found.append(run_both(body, shape, [given], made)[1])
    for a, b in zip(*found, strict=True):
        same_bits(a, b, "wherever they lie")
    np.testing.assert_allclose(found[0][1], 2 * x.sum(1, dtype=np.float64), 1e-5, 1e-4)


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_a_sum_has_several_vectors_on_their_way() -> None:
    shape = (1, 1 << 22)
    body = reduced(shape, np.dtype(np.float32))
    arrays = [np.empty(s.shape, s.dtype) for s in (*body.inputs, *body.out_specs)]
    kernel = kernel_of(body, loops_over(shape, strides_of(body, shape, arrays, 1), 1))
    made = nvrtc.compiled(kernel.text, OPTIONS).replace(".nc", "")
    assert made.count("ld.global.v4.f32") == 4
    first, last = made.index("ld.global.v4.f32"), made.rindex("ld.global.v4.f32")
    assert "add.f32" not in made[first:last]


def test_rows_with_nan_and_infinities() -> None:
    shape = (6, 300)
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    x[1, 7], x[2, 250], x[3, 0], x[4, :] = math.nan, math.inf, -math.inf, -0.0
    x[5, ::2], x[5, 1::2] = math.inf, -math.inf
    body = reduced(shape, x.dtype)
    outs = [np.empty(s.shape, s.dtype) for s in body.out_specs]
    with np.errstate(all="ignore"):
        ours = run_both(body, shape, [x], outs)[1]
        wanted = [(2 * x).sum(1), (2 * x).mean(1), (2 * x).max(1), (2 * x).min(1)]
    for a, b in zip(ours[1:], wanted, strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(a, b, 1e-5)


def test_who_shares_a_row() -> None:
    """By its length alone, so that a sum's bits do not depend on the GPU."""
    assert [team_of(n) for n in (1, 8, 9, 1024, 1025)] == [1, 1, 32, 32, THREADS]
    assert [team_of(n, 4096) for n in (8, 9, 8192, 8193)] == [1, 32, 32, THREADS]
    assert blocks_of(10**9, 1) == BLOCKS
    assert blocks_of(10**6, 16) == blocks_of(10**9, 16) == BLOCKS // 16
    assert blocks_of(10**9, BLOCKS) == blocks_of(1000, 1) == 1


def test_few_elements_are_spread_over_more_blocks() -> None:
    blocks = []
    for n in (1 << 14, 1 << 17, 1 << 20):
        spec = Spec((n,), np.dtype(np.float32))
        body = Builder([spec])
        made = body.graph(body.add("exp", (0,), (), (spec,)))
        blocks.append(kernel_of(made, loops_over((n,), [(4,)] * 2)).grid[0])
    assert blocks == [64, 512, 1024]


# -- NVIDIA's compiler ---------------------------------------------------------------------------
@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize("name", ["bool", "int8", "uint32", "float16", "bfloat16", "float32"])
def test_nvrtc_compiles_each_operation(name: str) -> None:
    dtype = DTYPES[name]
    body, names = everything(dtype, 601)
    sizes = [s.dtype.itemsize for s in (*body.inputs, *body.out_specs)]
    gaps = (1, 2) if THOROUGH or name == "bfloat16" else (1,)  # side by side, and not
    for gap in gaps:
        loops = loops_over((601,), [(gap * size,) for size in sizes])
        kernel = kernel_of(body, loops)
        made = nvrtc.compiled(kernel.text, OPTIONS)
        assert kernel.name in made
        assert names


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_four_floats_are_read_and_written_at_once_and_products_stay_alone() -> None:
    spec = Spec((1 << 20,), np.dtype(np.float32))
    body = Builder([spec] * 2)
    y = body.add("multiply", (0, 1), (), (spec,))[0]
    kernel = kernel_of(
        body.graph(body.add("add", (y, 0), (), (spec,))), loops_over((1 << 20,), [(4,)] * 3)
    )
    made = nvrtc.compiled(kernel.text, OPTIONS).replace(".nc", "")
    assert made.count("ld.global.v4.f32") == 2
    assert made.count("st.global.v4.f32") == 1
    assert "fma" not in made
    assert ".ftz" not in made
    assert "fma" in nvrtc.compiled(kernel.text, [o for o in OPTIONS if "fmad" not in o])


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_nvrtc_compiles_reductions(shape: tuple[int, int]) -> None:
    for dtype in (DTYPES["float32"], DTYPES["int64"], DTYPES["float16"]):
        body = reduced(shape, dtype)
        arrays = [np.empty(s.shape, s.dtype) for s in (*body.inputs, *body.out_specs)]
        loops = loops_of(shape, strides_of(body, shape, arrays, 1), 1)
        assert loops is not None
        kernel = kernel_of(body, loops)
        made = nvrtc.compiled(kernel.text, OPTIONS)
        assert ("shfl.sync" in made) == (shape[1] > 8)
        assert ("atom.global" in made) == bool(kernel.room) == (blocks_of(shape[1], shape[0]) > 1)
