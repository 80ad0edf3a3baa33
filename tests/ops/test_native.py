"""Generated kernels: every operation against NumPy, any strides."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops import OPS
from ostinato.ops.core import disk_cache
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.signals import clear
from ostinato.ops.core.spec import Spec, bfloat16
from ostinato.ops.cpu.jit import code, llvm, parallel
from ostinato.ops.cpu.jit.lines import can_lower
from ostinato.ops.cpu.loops import flat as native
from ostinato.ops.cpu.loops.flat import native_kernel
from ostinato.ops.cpu.threads import has_pool
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.scalar import differs
from ostinato.ops.jit.values import HALVES

import ostinato as ost
from ostinato import settings as knobs
from tests import sessions
from tests.thorough import THOROUGH

from .nodes import SAMPLED, nodes_of

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())


def single(name: str, dtypes: Sequence[Any], out: Any) -> Graph:
    builder = Builder([Spec((1,), np.dtype(d)) for d in dtypes])
    made = builder.add(name, range(len(dtypes)), (), [Spec((1,), np.dtype(out))])
    return builder.graph(made)


def run(body: Graph, *xs: Any, threads: int = 1, outs: Sequence[Any] | None = None) -> list[Any]:
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    made = [np.empty(shape, s.dtype) for s in body.out_specs] if outs is None else list(outs)
    looks = [np.broadcast_to(x, shape).strides for x in (*xs, *made)]
    native_kernel(body, shape, looks, threads)(*xs, *made)
    return made


# -- operations ----------------------------------------------------------------------------
LOWERED = [n for n in SAMPLED if OPS[n].scalar]


@pytest.mark.parametrize("name", LOWERED)
def test_operations_give_what_numpy_gives(name: str) -> None:
    """The same bits, but for the functions of which we have our own."""
    seen = set()
    for _, node, operands, (made,) in nodes_of(name):
        dtypes = tuple(x.dtype for x in operands)
        key = (dtypes, made.dtype, tuple(x.shape == made.shape for x in operands))
        if key in seen or made.size == 0 or not can_lower(name, dtypes, made.dtype):
            continue
        if not (THOROUGH or all(key[2]) or dtypes[0] == np.float64):
            continue  # what is repeated is found by addresses, which know no dtype
        seen.add(key)
        if not THOROUGH and len(seen) > 3 and (len(seen) + len(name)) % 3:
            continue  # of many dtypes every third one
        if (
            len({*dtypes, made.dtype}) > 1
            and {*dtypes, made.dtype} & {*HALVES}
            and name != "astype"
        ):
            continue  # 16 bits with others are float32 with others
        builder = Builder([Spec(x.shape, x.dtype) for x in operands])
        outs = builder.add(name, range(len(operands)), node.params, [Spec(made.shape, made.dtype)])
        (found,) = run(builder.graph(outs), *operands)
        eps = float(ml_dtypes.finfo(made.dtype).eps) if differs(name, dtypes) else 0.0
        if made.dtype == bfloat16:  # of which NumPy's own comparison knows no NaN
            found, made = found.astype(np.float32), made.astype(np.float32)
        if eps:
            near = (64 if name in ("betainc", "gamma_draw") else 8) * eps  # which are long
            np.testing.assert_allclose(found, made, rtol=near, atol=near, err_msg=str(dtypes))
        else:
            np.testing.assert_array_equal(found, made, err_msg=str(dtypes))


def test_the_basic_operations_can_all_be_generated() -> None:
    able = {n for n in LOWERED if any(
        can_lower(n, tuple(x.dtype for x in xs), y.dtype) for _, _, xs, (y,) in nodes_of(n)
    )}  # fmt: skip
    assert set(LOWERED) == able


# -- strides -------------------------------------------------------------------------------
def chain(dtype: str) -> Graph:
    """x * y + x, and x < y."""
    builder = Builder([Spec((1,), np.dtype(dtype))] * 2)
    xy = builder.call("multiply", 0, 1)
    return builder.graph([builder.call("add", xy, 0), builder.call("less", 0, 1)])


@st.composite
def looks(draw: Any, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """An array that broadcasts to a shape: permuted, with steps, backwards, repeated."""
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 2, 3, 4, -1, 0])) for _ in shape]
    sizes = [1 if s == 0 else shape[a] * max(abs(s), 1) for a, s in zip(axes, steps, strict=True)]
    x = np.asarray(np.random.default_rng(seed).integers(-9, 9, sizes)).astype(dtype)
    x = x[(..., *(slice(None, None, s or 1) for s in steps))]
    return x.transpose(np.argsort(axes)) if len(shape) else x


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_elements_are_done_together(count: int) -> None:
    """As the channels of pictures."""
    rng = np.random.default_rng(count)
    body, shape = chain("float32"), (9, 67, count)
    whole = rng.standard_normal((9, 67, 2 * count)).astype(np.float32)
    lies = [
        whole[..., :count],
        whole[..., ::-2],
        whole[0, 0, :count],
        whole[..., :1],
        np.asfortranarray(whole[..., count:]),
        whole[::-1, :, count:],
    ]
    for k, xy in enumerate(itertools.product(lies, lies)):
        if not THOROUGH and (k // 6 + k + count) % 2:
            continue
        out = np.empty((2, *shape[::-1]), np.float32).T
        x, y = (np.broadcast_to(z, shape) for z in xy)
        for outs in (None, [out[..., 0], np.empty(shape, bool)]):
            made, less = run(body, x, y, threads=2, outs=outs)
            np.testing.assert_array_equal(made, x * y + x)
            np.testing.assert_array_equal(less, x < y)


GUARD = 4096  # bytes on both sides of a result


def guarded(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Memory for a result, and all of the memory that it lies in."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    whole = np.full(size + 2 * GUARD, 0x5A, np.uint8)
    return whole[GUARD : GUARD + size].view(dtype).reshape(shape), whole


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_any_strides(data: Any) -> None:
    """Nothing is written but the results, of which there may be none."""
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17, 70]), max_size=4)))
    if math.prod(shape) > 20_000:
        shape = shape[:2]
    dtype = data.draw(st.sampled_from(["float32", "float64", "int16", "uint8", "float16"]))
    x, y = data.draw(looks(shape, dtype, 1)), data.draw(looks(shape, dtype, 2))
    x = np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape, shape))
    threads = data.draw(st.sampled_from([1, 2, 3, 7]))
    tiled = {"LEAST_TILED": 1, "FAR_APART": 2} if data.draw(st.booleans()) else {}
    least = data.draw(st.sampled_from([1, 1000]))
    with mock.patch.multiple(native, GRAIN=1, MANY_APART=least, **tiled):
        outs, memory = zip(guarded(x.shape, dtype), guarded(x.shape, bool), strict=True)
        total, less = run(chain(dtype), x, y, threads=threads, outs=outs)
    np.testing.assert_array_equal(total, x * y + x)
    np.testing.assert_array_equal(less, x < y)
    for whole in memory:
        assert (whole[:GUARD] == 0x5A).all()
        assert (whole[-GUARD:] == 0x5A).all()


@given(st.lists(st.integers(1, 6), max_size=5), st.data())
def test_loops_visit_every_element_once(shape: list[int], data: Any) -> None:
    x = data.draw(looks(tuple(shape), "int64", 3))
    whole = np.broadcast_to(x, tuple(shape))
    order = np.empty(tuple(shape), np.int64)
    loops = loops_over(tuple(shape), [whole.strides, order.strides])
    again = np.lib.stride_tricks.as_strided(whole, loops.extents, loops.strides[0])
    assert again.reshape(-1).tolist() == whole.reshape(-1).tolist()
    assert (
        np.lib.stride_tricks.as_strided(order, loops.extents, loops.strides[1]).size == order.size
    )
    assert len(loops.extents) <= max(1, len(shape))


def test_contiguous_arrays_are_one_loop() -> None:
    x = np.zeros((4, 5, 6))
    assert loops_over(x.shape, [x.strides] * 3).extents == (120,)
    row = np.broadcast_to(np.zeros(6), x.shape)
    assert loops_over(x.shape, [x.strides, row.strides]).extents == (20, 6)


def test_transposes_are_read_in_tiles() -> None:
    """So that a line of the cache is used up before it goes."""

    def tiled(*arrays: Any) -> native.Loops:
        loops = loops_over(arrays[0].shape, [a.strides for a in arrays])
        return native.tiled(loops, [a.itemsize for a in arrays])

    x, y = np.zeros((401, 300)), np.zeros((300, 401)).T
    found = tiled(x, y, x)
    assert found.extents == (7, 5, 64, 64)
    assert found.tiled == (0, 401, 300)
    assert found.strides[1] == (64 * 8, 64 * 401 * 8, 8, 401 * 8)
    cube = np.zeros((50, 7, 20, 50))
    assert tiled(cube.copy(), cube.swapaxes(0, 3)).extents == (1, 140, 1, 64, 64)
    short = np.zeros((5000, 4))
    for others in ((x, x), (x, x[:1]), (x[:, ::2], x[:, 1::2]), (short.T, short.T), (short, short)):
        assert tiled(*(np.broadcast_to(o, others[0].shape) for o in others)).tiled is None


@pytest.mark.parametrize(
    ("dtype", "step"),
    [("float32", 2), ("float32", 3), ("float64", 2)]
    + [(dtype, step) for dtype in ("int16", "uint8") for step in (2, 3, 4)],
)
def test_nothing_is_read_behind_the_last_of_what_lies_apart(dtype: str, step: int) -> None:
    """Memory ends with the operand's last element; the sum of a row is in chunks, too."""
    body = chain(dtype)
    builder = Builder([Spec((1,), np.dtype(dtype))])
    total = builder.graph([builder.call("sum", 0, axes=(0,), dtype=np.dtype(dtype))])
    for n in (128, 129, 1024, 1040, 2063):
        size = np.dtype(dtype).itemsize
        used = ((n - 1) * step + 1) * size
        pages = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
        whole = np.frombuffer(memory, np.uint8)
        nothing = ctypes.c_void_p(whole.ctypes.data + pages)
        protect = ctypes.CDLL(None).mprotect
        assert protect(nothing, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        flat = whole[pages - used : pages].view(dtype)
        flat[...] = np.random.default_rng(n).integers(0, 9, flat.size)
        x, y = flat[::step], np.arange(n).astype(dtype)
        assert native._apart(body, loops_over((n,), [x.strides, y.strides])) == {0: step}
        made, less = run(body, x, y)
        np.testing.assert_array_equal(made, x * y + x)
        np.testing.assert_array_equal(less, x < y)
        out = np.empty((), total.out_specs[0].dtype)
        native_kernel(total, (n,), [x.strides, (0,)], 1, 1)(x, out)
        assert out == x.sum(dtype=out.dtype)
        assert protect(nothing, ctypes.c_size_t(mmap.PAGESIZE), 3) == 0


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_large_results_pass_the_caches(data: Any) -> None:
    """Of any length, wherever their lines begin, shared by any number of threads."""
    dtype = data.draw(st.sampled_from(["float32", "float64", "int16", "uint8"]))
    n = data.draw(st.integers(4096, 9000))
    starts = [data.draw(st.integers(0, 70)) for _ in range(2)]
    x = np.random.default_rng(0).integers(-9, 9, n).astype(dtype)
    whole = [np.full(n + 200, 77).astype(t) for t in (dtype, "bool")]
    outs = [w[k : k + n] for w, k in zip(whole, starts, strict=True)]
    with mock.patch.object(native, "GRAIN", 1), mock.patch.object(native, "_last_cache", lambda: 0):
        assert native.streams(chain(dtype), loops_over((n,), [(x.itemsize,)] * 3 + [(1,)]))
        run(chain(dtype), x, x[::1], threads=data.draw(st.sampled_from([1, 2, 3])), outs=outs)
        wide = np.stack([x, x + x, x, x])  # rows, and one of them for all
        total, less = run(chain(dtype), wide, x, threads=data.draw(st.sampled_from([1, 3])))
    np.testing.assert_array_equal(total, wide * x + wide)
    np.testing.assert_array_equal(less, wide < x)
    np.testing.assert_array_equal(outs[0], x * x + x)
    np.testing.assert_array_equal(outs[1], np.zeros(n, bool))
    for w, k in zip(whole, starts, strict=True):
        assert (w[:k] == w[-1]).all()
        assert (w[k + n :] == w[-1]).all()


def test_which_results_pass_the_caches(monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "_last_cache", lambda: 1 << 20)
    monkeypatch.setattr(native, "processor", lambda: "skylake-avx512")
    body, steps = chain("float64"), [(8,)] * 3 + [(1,)]

    def passes(n: int, steps: Any = steps, body: Graph = body) -> bool:
        return native.streams(body, loops_over((n,), steps))

    assert passes(50_000)
    assert "nontemporal" in native.kernel_text(body, loops_over((50_000,), steps))
    assert not passes(5000), "what the cache holds"
    assert passes(50_000, [(8,), (16,), (8,), (1,)]), "what is brought side by side first"
    assert not passes(50_000, [(8,), (40,), (8,), (1,)]), "what does not lie in order"
    rows = [(40_000, 8), (0, 8), (40_000, 8), (5000, 1)]
    assert native.streams(body, loops_over((30, 5000), rows))
    assert not native.streams(body, loops_over((2, 5000), rows)), "what the cache holds"
    short = [(4000, 8), (0, 8), (4000, 8), (500, 1)]
    assert not native.streams(body, loops_over((300, 500), short)), "rows of less than some tiles"
    assert not passes(50_000, [(8,)] * 3 + [(0,)], reducing("float64", 1, 1, ["sum"]))
    monkeypatch.setattr(native, "processor", lambda: "znver4")
    assert not passes(50_000)
    assert passes(100_000)


@pytest.mark.cpu_only
@pytest.mark.parametrize("read", ["not", "by an operation", "in a loop", "by the next turn"])
def test_what_is_read_next_passes_the_caches_later(read: str, monkeypatch: Any) -> None:
    shares, streams = list[int](), native.streams

    def watched(body: Graph, loops: Any, share: int = native.SHARE) -> bool:
        shares.append(share)
        return streams(body, loops, share)

    def step(x: Any) -> Any:
        return ost.sort(x) * 3.0 + 1.0

    monkeypatch.setattr(native, "streams", watched)
    native._told.cache_clear()
    x = np.random.default_rng(5).standard_normal(20_000 + len(read))
    y = {
        "not": lambda x: x * 3.0 + 1.0,
        "by an operation": lambda x: ost.sort(x * 3.0 + 1.0),
        "in a loop": lambda x: ost.repeat(500, lambda y: 0.5 * y + y[0], x * 3.0 + 1.0),
        "by the next turn": lambda x: ost.repeat(3, step, x),
    }[read]
    with sessions.use():
        np.asarray(ost.compile(y)(x))
    assert {*shares} == {native.SHARE if read == "not" else 1}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [7, 16, 31, 32, 48, 64, 100, 129, 1500])
def test_the_best_of_floats(dtype: str, n: int) -> None:
    """With infinities, zeros of both signs, and NaN of both signs: the same in any order."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((30_000 // n, n)).astype(dtype)  # too many for NumPy
    nan = np.array(np.nan, dtype)
    for row in x:
        few = rng.integers(0, n, 3)
        row[few] = rng.permutation([0.0, -0.0, rng.choice([np.inf, -np.inf, nan, -nan, 1.0])])
        if rng.random() < 0.5:
            row[...] = np.where(
                np.isnan(row), row, -np.abs(row) if rng.random() < 0.5 else abs(row)
            )
    mixed = rng.permuted(x, axis=1)
    with np.errstate(invalid="ignore"):
        for name in ("max", "min", "argmax", "argmin"):
            reduced = ost.compile(partial(getattr(ost, name), axis=1))
            wanted = getattr(np, name)(x, 1)
            found = np.asarray(reduced(x))
            np.testing.assert_array_equal(found, wanted)
            if not name.startswith("arg"):
                again = np.asarray(reduced(mixed))
                known = ~np.isnan(found)
                assert found[known].tobytes() == again[known].tobytes()
                is_zero = found == 0
                zeros = np.where(x == 0, ~np.signbit(x), name == "min")
                best = zeros.any(1) if name == "max" else zeros.all(1)
                assert (np.signbit(found) == ~best)[is_zero].all()


def test_a_result_over_an_operand() -> None:
    x, y = np.arange(1000.0), np.linspace(-1, 1, 1000)
    builder = Builder([Spec((1,), np.dtype("float64"))] * 2)
    body = builder.graph([builder.call("add", builder.call("multiply", 0, 1), 0)])
    for last_cache in (1 << 30, 0):
        wanted = x * y + x
        with mock.patch.object(native, "_last_cache", lambda n=last_cache: n):
            run(body, x, y, outs=[x])
        np.testing.assert_array_equal(x, wanted)


# -- machine code --------------------------------------------------------------------------
def test_machine_code_is_kept_and_damage_is_noticed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(knobs, "cache", tmp_path)
    monkeypatch.setattr(llvm, "_made", {})
    x, y = np.arange(50.0), np.arange(50.0)[::-1].copy()

    def results() -> None:
        llvm._made.clear()
        np.testing.assert_array_equal(run(chain("float64"), x, y)[0], x * y + x)

    monkeypatch.setattr(disk_cache, "_told", True)
    results()
    (path,) = (tmp_path / "kernels").iterdir()
    good = path.read_bytes()
    results()
    assert path.read_bytes() == good
    for bad in (b"", good[:100], good[:-1] + bytes([good[-1] ^ 1]), b"x" * len(good)):
        path.write_bytes(bad)
        results()
        assert path.read_bytes() == good, "made again"


def test_kept_machine_code_is_not_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(knobs, "cache", tmp_path)
    x, looks, made = np.arange(50.0), list[str](), list[str]()
    make, listed = llvm._machine_code, os.listdir
    llvm._tidy.cache_clear()
    monkeypatch.setattr(llvm, "_machine_code", lambda text: made.append(text) or make(text))
    monkeypatch.setattr(os, "listdir", lambda path: looks.append(str(path)) or listed(path))
    for _ in range(3):
        monkeypatch.setattr(llvm, "_made", {})
        for dtype in ("float64", "int16", "float32"):
            run(chain(dtype), x.astype(dtype), x.astype(dtype))
    assert len(made) == 3
    looks = [path for path in looks if path.endswith("kernels")]
    assert len(looks) == 2, "which may hold thousands, once in a process"


def test_kernels_of_one_plan_are_compiled_side_by_side(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(llvm, "_made", {})
    monkeypatch.setattr(llvm, "most_threads", lambda: 3)
    make, both = llvm._machine_code, threading.Barrier(3)

    def made(text: str) -> bytes:
        both.wait(20)  # nobody gets by here alone
        return make(text)

    monkeypatch.setattr(llvm, "_machine_code", made)
    monkeypatch.setattr(knobs, "cache", tmp_path)
    x = np.arange(300.0)
    kernels, outs = {}, {}
    with llvm.together():
        for dtype in ("float64", "int16", "float32"):
            outs[dtype] = np.empty(300, dtype), np.empty(300, bool)
            looks = [a.strides for a in (outs[dtype][0],) * 3] + [(1,)]
            kernels[dtype] = native_kernel(chain(dtype), (300,), looks, 1)
        assert not any(known().is_ready for known in llvm._made.values())
    assert all(known().is_ready for known in llvm._made.values())
    for dtype, kernel in kernels.items():
        y = x.astype(dtype)
        kernel(y, y, *outs[dtype])
        np.testing.assert_array_equal(outs[dtype][0], y * y + y)


def test_a_kernel_that_is_called_early_waits_for_its_machine_code(monkeypatch: Any) -> None:
    monkeypatch.setattr(llvm, "_made", {})
    x, out, less = np.arange(300.0), np.empty(300), np.empty(300, bool)
    with llvm.together():
        kernel = native_kernel(chain("float64"), (300,), [(8,)] * 3 + [(1,)], 1)
        for _ in range(3):
            kernel(x, x, out, less)
            np.testing.assert_array_equal(out, x * x + x)
            out[:] = 0


def test_what_cannot_be_compiled_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(llvm, "_made", {})

    def ask(*texts: str) -> None:
        with llvm.together():
            for text in texts:
                llvm.function_of(text, np.zeros(9, np.int64))

    for texts in (["nonsense"], ["nonsense", "more nonsense"]):
        with pytest.raises(RuntimeError, match="parsing error"):
            ask(*texts)


def test_old_machine_code_goes_first(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(llvm, "MOST_KEPT", 3)
    disk = disk_cache.open_cache(tmp_path)
    for k in range(5):
        disk.write(f"kernels/{k:032x}.o", b"code")
        os.utime(tmp_path / "kernels" / f"{k:032x}.o", (k, k))
    llvm._tidy(disk)
    assert [f.used for f in disk.files("kernels")] == [2, 3, 4]


def test_only_the_work_of_a_kernel_is_compiled() -> None:
    """Who takes its arrays and shares its turns is the same code for all kernels."""
    x = np.zeros(9)
    text = native.kernel_text(chain("float64"), loops_over(x.shape, [(8,)] * 3 + [(1,)]))
    lines = llvm.assembly(text).splitlines()
    assert sum(line.startswith("body:") for line in lines) == 1
    entry = lines[lines.index("run:") :]
    assert sum(line.startswith("\tjmp") and "call_kernel" in line for line in entry) == 1
    assert not any(line.startswith("\tcall") for line in lines)


def test_long_texts_are_optimised_at_a_lower_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest one unrolls what then takes ten times as long, and runs no faster."""
    x = np.zeros(9)
    text = native.kernel_text(chain("float64"), loops_over(x.shape, [(8,)] * 3 + [(1,)]))
    binding = llvm._tools()[0]
    usual, asked = binding.create_pipeline_tuning_options, []

    def options(speed_level: int) -> Any:
        asked.append(usual(speed_level=speed_level))
        return asked[-1]

    monkeypatch.setattr(binding, "create_pipeline_tuning_options", options)
    short = llvm.assembly(text)
    monkeypatch.setattr(llvm, "LONG_TEXT_CHARS", len(text))
    assert "body:" in llvm.assembly(text)
    assert "body:" in short
    assert [o.speed_level for o in asked] == [3, 2]
    assert [o.loop_unrolling for o in asked] == [True, False]


@pytest.mark.skipif(sys.platform != "linux" or sys.maxsize < 1 << 32, reason="for Linux, 64 bits")
def test_code_and_its_constants_are_never_far_apart() -> None:
    """LLVM ended the process, where it found room for a part here and for another 2 GiB away."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.scattered"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "all as NumPy\n"), done.stderr


def test_one_kernel_serves_many_shapes() -> None:
    llvm._made.clear()
    for n in (3, 100, 5000):
        run(chain("float32"), np.ones(n, "f4"), np.ones(n, "f4"))
    for n in (100, 200):  # rows of 70, one of them repeated
        run(chain("float32"), np.ones((n, 70), "f4"), np.ones(70, "f4"))
    assert len(llvm._made) == 2


def test_threads_make_kernels_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(knobs, "cache", tmp_path)
    llvm._made.clear()
    x, errors = np.arange(200_000.0), []

    def work() -> None:
        for _ in range(20):
            total, _ = run(chain("float64"), x, x, threads=2)
            if not np.array_equal(total, x * x + x):
                errors.append("wrong")

    parallel = [threading.Thread(target=work) for _ in range(4)]
    for t in parallel:
        t.start()
    for t in parallel:
        t.join(60)
    assert not errors
    assert len(llvm._made) == 1


# The first turn waits until the last one of its thread's part has been done, or for very long.
PATIENT = """
define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %out = load ptr, ptr %data
  %m = getelementptr i64, ptr %meta, i64 2
  %last = load i64, ptr %m
  %flag = getelementptr i64, ptr %out, i64 %last
  %isfirst = icmp eq i64 %lo, 0
  br i1 %isfirst, label %wait, label %turn
wait:
  %n = phi i64 [0, %entry], [%n1, %wait]
  %n1 = add i64 %n, 1
  %seen = load atomic i64, ptr %flag acquire, align 8
  %done = icmp ne i64 %seen, 0
  %long = icmp sgt i64 %n, 10000000000
  %over = or i1 %done, %long
  br i1 %over, label %turn, label %wait
turn:
  %i = phi i64 [%lo, %entry], [%lo, %wait], [%i1, %turn]
  %to = getelementptr i64, ptr %out, i64 %i
  %mark = add i64 %thread, 1
  %old = atomicrmw add ptr %to, i64 %mark release
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %turn, label %end
end:
  ret void
}
define internal void @finish(ptr %data, ptr %meta) {
  ret void
}
"""


@pytest.mark.skipif(not has_pool(), reason="one thread")
def test_who_is_done_takes_turns_from_who_is_busy() -> None:
    turns = 1000
    about = np.array([turns, 2, turns // 2 - 1], np.int64)
    out = np.zeros(turns, np.int64)
    llvm.function_of(PATIENT + parallel.around(1), about)(out)
    assert set(out) <= {1, 2}
    assert out[turns // 2 - 1] != out[0], "who waited did not do it itself"


def test_threads_that_link_at_once_get_the_same_code() -> None:
    """One that another thread made, too, would be gone as soon as that is kept instead."""
    text = "define void @run() {\n  ret void\n}\n; of this test\n"
    meet, found = threading.Barrier(4), list[code.CodeAddress]()

    def link() -> None:
        meet.wait()
        found.append(llvm.linked(text))

    parallel = [threading.Thread(target=link) for _ in range(4)]
    for thread in parallel:
        thread.start()
    for thread in parallel:
        thread.join()
    assert all(one is llvm.linked(text) for one in found)


def a_kernel(out: Any) -> tuple[Callable[..., None], Any]:
    """One of plans, which waits until its last element is not 0; and the engine that its code lies in."""
    about = np.array([len(out), 1, len(out) - 1], np.int64)
    made: Any = llvm.function_of(PATIENT + parallel.around(1), about)
    return made, made.__self__.held[1].code.owner


def a_called_function(out: Any) -> tuple[Callable[..., None], Any]:
    """The same as the pipe's native part has functions: one of ctypes', which is given words."""
    run = PATIENT.replace("internal void @body", "void @run")
    meta = code.Words(0, 0, len(out) - 1)
    made = llvm.linked(run).function(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
    return lambda out: made(code.Words(out), meta, 0, len(out), 0), made.code.owner


@pytest.mark.parametrize("make", [a_kernel, a_called_function])
def test_code_that_runs_stays(make: Callable[[Any], tuple[Callable[..., None], Any]]) -> None:
    """Also if nobody but who runs it has the function any more; then it goes."""
    out = np.zeros(4, np.int64)
    function, engine = make(out)
    functions = [function]
    del function
    thread = threading.Thread(target=lambda: functions.pop()(out))

    def forget() -> None:
        llvm.linked.cache_clear()
        llvm._latest.clear()
        gc.collect()
        clear()

    thread.start()
    while functions:
        pass
    for _ in range(3):
        forget()
        assert not engine.closed
        other = llvm._load_or_make(PATIENT + parallel.around(1))  # where it lay, if it is gone
        assert other.owner is not engine
    out[-1] = 1
    thread.join()
    assert list(out) == [1, 1, 1, 2]
    del thread
    forget()
    assert engine.closed


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 40])
def test_each_turn_is_done_once(threads: int) -> None:
    body = chain("float64")
    for n in (1, 5, 17, 1000, 3001):
        x, y, less = np.arange(float(n)), np.linspace(-1, 1, n), np.empty(n, bool)
        wanted = x * y + x
        with mock.patch.object(native, "GRAIN", 1):
            run(body, x, y, outs=[x, less], threads=threads)
        np.testing.assert_array_equal(x, wanted)


def test_only_arrays_are_taken() -> None:
    kernel = native_kernel(chain("float64"), (), [()] * 4, 1)
    x, out, less = np.array(2.0), np.array(0.0), np.array(False)
    kernel(x, x, out, less)
    assert out == 6
    for wrong in ((x, 2.0, out, less), (x, np.float64(2), out, less), (x, x, out), (), (None,) * 4):
        with pytest.raises(TypeError, match="arrays only"):
            kernel(*wrong)


def test_large_kernels_let_other_threads_run() -> None:
    """Also those that use one thread: workers that are threads would wait for each other."""
    x = np.full(1_000_000, 0.5)
    builder = Builder([Spec((1,), np.dtype("float64"))])
    value = 0
    for _ in range(20):
        value = builder.call("tanh", value)
    out = np.empty_like(x)
    looks = [x.strides, out.strides]
    kernel = native_kernel(builder.graph([value]), x.shape, looks, 1)
    assert kernel is not None
    begin, seen = threading.Event(), list[str]()
    other = threading.Thread(target=lambda: (begin.wait(), seen.append("here")))
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is made to let go
    try:
        begin.set()
        until = time.monotonic() + 30
        while not seen and time.monotonic() < until:  # others may have the cores for a while
            kernel(x, out)
        during = list(seen)
    finally:
        sys.setswitchinterval(interval)
    other.join()
    assert during == ["here"]


def test_references_are_counted() -> None:
    x = np.ones(10)
    kernel = native_kernel(chain("float64"), (10,), [(8,)] * 3 + [(1,)], 1)
    outs = np.empty(10), np.empty(10, bool)
    before = sys.getrefcount(x), sys.getrefcount(None)
    for _ in range(1000):
        assert kernel(x, x, *outs) is None
    assert sys.getrefcount(x) == before[0]
    assert abs(sys.getrefcount(None) - before[1]) < 100


# -- reductions ----------------------------------------------------------------------------
def reducing(dtype: str, ndim: int, axes: int, kinds: Sequence[str], count: int = 1) -> Graph:
    """x * y + x, that itself, and it reduced over the last axes."""
    spec = Spec((1,) * ndim, np.dtype(dtype))
    builder = Builder([spec] * 2)
    value = builder.call("add", builder.call("multiply", 0, 1), 0)
    over = tuple(range(ndim - axes, ndim))
    made = [value]
    for kind in kinds:
        more: dict[str, Any] = {"sum": {"dtype": np.dtype(dtype)}, "mean": {"count": count}}.get(
            kind, {}
        )
        # the count is the operands', not the body's
        left = (Spec(spec.shape[: ndim - axes], spec.dtype),)
        made += builder.add(kind, (value,), {"axes": over, **more}, left)
    return builder.graph(made)


def run_reducing(body: Graph, x: Any, y: Any, axes: int, threads: int = 1) -> list[Any]:
    shape = x.shape
    left = shape[: len(shape) - axes]
    made = [np.empty(shape, body.out_specs[0].dtype)]
    made += [np.full(left, 77, s.dtype) for s in body.out_specs[1:]]
    strides = [np.broadcast_to(a, shape).strides for a in (x, y, made[0])]
    strides += [(*m.strides, *(0,) * axes) for m in made[1:]]
    kernel = native_kernel(body, shape, strides, threads, axes)
    assert kernel is not None
    for _ in range(2):  # the second time over old partial results
        assert kernel(x, np.asarray(y), *made) is None
    return made


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_reductions_over_the_last_axes(data: Any) -> None:
    shape = tuple(
        data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 65, 1100]), min_size=1, max_size=3))
    )
    if math.prod(shape) > 60_000:
        shape = shape[:2] if math.prod(shape[:2]) < 60_000 else shape[:1]
    axes = data.draw(st.integers(1, len(shape)))
    dtype = data.draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.integers(-50, 50, shape).astype(dtype)
    y = rng.integers(-50, 50, shape if axes > 1 else shape[-1:]).astype(dtype)
    if data.draw(st.booleans()) and len(shape) > axes:
        x = np.ascontiguousarray(x[::-1])[::-1]
    kinds = data.draw(st.permutations(["sum", "max", "min"]))[: data.draw(st.integers(1, 3))]
    kinds += ["mean"] if dtype.startswith("f") else []
    count = math.prod(shape[len(shape) - axes :])
    body = reducing(dtype, len(shape), axes, kinds, count)
    with mock.patch.object(native, "GRAIN", 1), mock.patch.object(native, "BLOCK", 512):
        value, *found = run_reducing(body, x, y, axes, data.draw(st.sampled_from([1, 2, 3])))
    wanted = x * y + x
    np.testing.assert_array_equal(value, wanted)
    over = tuple(range(len(shape) - axes, len(shape)))
    for kind, result in zip(kinds, found, strict=True):
        expected = getattr(np, kind)(
            wanted.astype("float64") if kind == "mean" else wanted, axis=over
        )
        np.testing.assert_allclose(result, expected, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_at_least_as_good_as_those_of_numpy(dtype: str) -> None:
    rng = np.random.default_rng(5)
    one = np.zeros((), dtype)
    for n in (1000, 100_000, 3_000_000):
        for x in (rng.normal(size=n), rng.uniform(0, 1, n), 1e6 + rng.normal(size=n)):
            x = x.astype(dtype)
            true = math.fsum(x.tolist())
            body = reducing(dtype, 1, 1, ["sum"])
            _, total = run_reducing(body, x, one, 1, threads=2)
            unit = float(np.spacing(np.abs(np.asarray(true, dtype)))) + 1e-300
            mine, theirs = abs(float(total) - true), abs(float(x.sum()) - true)
            size = float(np.abs(x.astype("f8")).sum()) * float(np.finfo(dtype).eps)
            assert mine <= max(2 * theirs, 2 * unit, size / 8), (n, mine, theirs, unit)


def test_sums_have_the_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).normal(size=500_000)
    one = np.ones(())
    body = reducing("float64", 1, 1, ["sum", "max"])
    found = {tuple(v.tobytes() for v in run_reducing(body, x, one, 1, t)[1:]) for t in (1, 2, 3, 5)}
    assert len(found) == 1


def test_nan_and_infinity_are_passed_on() -> None:
    one = np.ones(())
    for special in (np.nan, np.inf, -np.inf):
        for n in (5, 3000, 40_000):
            x = np.linspace(-1, 1, n)
            x[n // 3] = special
            kinds = ["sum", "max", "min", "mean"]
            _, *found = run_reducing(reducing("float64", 1, 1, kinds, n), x, one, 1)
            for kind, y in zip(kinds, found, strict=True):
                np.testing.assert_allclose(y, getattr(np, kind)(2 * x))


def test_rows_that_are_no_single_loop_are_refused() -> None:
    x = np.zeros((4, 6, 5))[:, ::2]
    body = reducing("float64", 3, 2, ["sum"])
    looks = [
        x.strides,
        x.strides,
        np.zeros(x.shape).strides,
        (8, 0, 0),
    ]
    assert native_kernel(body, x.shape, looks, 1, 2) is None


def test_backward_rows_beside_numbers_of_rows_compile() -> None:
    """LLVM with assertions ended the process where it had two opinions on the best vectors for such a loop."""
    program = """
        import numpy as np
        import ostinato as ost

        for n in (15, 30, 31, 33):
            x, y = np.random.default_rng(n).standard_normal((2, 900, n))

            def step(xp, x, y, least, more):
                return more + xp.where(x[:, ::-1] > least, y, 0)

            for dtype in ("float64", "float32", "int32"):
                given = [(v * 9).astype(dtype) for v in (x, y, x[:, :1], y[:, 1:2])]
                made = ost.compile(lambda *given: step(ost, *given))(*given)
                np.testing.assert_allclose(made, step(np, *given), 1e-6)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
