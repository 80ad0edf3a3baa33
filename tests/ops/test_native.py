"""Generated kernels: every operation against NumPy, any strides."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops import OPS, native
from ostinato.ops.graph import Builder, Graph
from ostinato.ops.native import loops_over, native_kernel
from ostinato.ops.scalar import can_lower, has_own_bits
from ostinato.ops.spec import Spec, bfloat16

from ostinato import settings as knobs

from .nodes import SAMPLED, nodes_of

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())


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
        seen.add(key)
        builder = Builder([Spec(x.shape, x.dtype) for x in operands])
        outs = builder.add(name, range(len(operands)), node.params, [Spec(made.shape, made.dtype)])
        (found,) = run(builder.graph(outs), *operands)
        if has_own_bits(name):
            tolerance = 8 * np.finfo(made.dtype).eps
            np.testing.assert_allclose(
                found, made, rtol=tolerance, atol=tolerance, err_msg=str(dtypes)
            )
        else:
            if made.dtype == bfloat16:  # of which NumPy's own comparison knows no NaN
                found, made = found.astype(np.float32), made.astype(np.float32)
            np.testing.assert_array_equal(found, made, err_msg=str(dtypes))


def test_the_basic_operations_can_all_be_generated() -> None:
    able = {n for n in LOWERED if any(
        can_lower(n, tuple(x.dtype for x in xs), y.dtype) for _, _, xs, (y,) in nodes_of(n)
    )}  # fmt: skip
    assert set(LOWERED) - able == {"conj", "imag_part", "real_part"}  # of complex numbers


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
    steps = [draw(st.sampled_from([1, 1, 2, -1, 0])) for _ in shape]
    sizes = [1 if s == 0 else shape[a] * max(abs(s), 1) for a, s in zip(axes, steps, strict=True)]
    x = np.asarray(np.random.default_rng(seed).integers(-9, 9, sizes)).astype(dtype)
    x = x[(..., *(slice(None, None, s or 1) for s in steps))]
    return x.transpose(np.argsort(axes)) if len(shape) else x


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_strides(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 17, 70]), max_size=4)))
    if math.prod(shape) > 20_000:
        shape = shape[:2]
    dtype = data.draw(st.sampled_from(["float32", "float64", "int16", "uint8"]))
    x, y = data.draw(looks(shape, dtype, 1)), data.draw(looks(shape, dtype, 2))
    x = np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape, shape))
    threads = data.draw(st.sampled_from([1, 2, 3, 7]))
    with mock.patch.object(native, "GRAIN", 1):
        total, less = run(chain(dtype), x, y, threads=threads)
    np.testing.assert_array_equal(total, x * y + x)
    np.testing.assert_array_equal(less, x < y)


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


def test_a_result_over_an_operand() -> None:
    x, y = np.arange(1000.0), np.linspace(-1, 1, 1000)
    builder = Builder([Spec((1,), np.dtype("float64"))] * 2)
    body = builder.graph([builder.call("add", builder.call("multiply", 0, 1), 0)])
    wanted = x * y + x
    run(body, x, y, outs=[x])
    np.testing.assert_array_equal(x, wanted)


# -- machine code --------------------------------------------------------------------------
def test_machine_code_is_kept_and_damage_is_noticed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(knobs, "cache", tmp_path)
    monkeypatch.setattr(native, "_made", {})
    x, y = np.arange(50.0), np.arange(50.0)[::-1].copy()

    def results() -> None:
        native._made.clear()
        np.testing.assert_array_equal(run(chain("float64"), x, y)[0], x * y + x)

    results()
    (path,) = (tmp_path / "kernels").iterdir()
    good = path.read_bytes()
    results()
    assert path.read_bytes() == good
    for bad in (b"", good[:100], good[:-1] + bytes([good[-1] ^ 1]), b"x" * len(good)):
        path.write_bytes(bad)
        results()
        assert path.read_bytes() == good, "made again"


def test_one_kernel_serves_many_shapes() -> None:
    native._made.clear()
    for n in (3, 100, 5000):
        run(chain("float32"), np.ones(n, "f4"), np.ones(n, "f4"))
    for n in (100, 200):  # rows of 70, one of them repeated
        run(chain("float32"), np.ones((n, 70), "f4"), np.ones(70, "f4"))
    assert len(native._made) == 2


def test_threads_make_kernels_at_once() -> None:
    native._made.clear()
    x, errors = np.arange(200_000.0), []

    def work() -> None:
        for _ in range(20):
            total, _ = run(chain("float64"), x, x, threads=2)
            if not np.array_equal(total, x * x + x):
                errors.append("wrong")

    team = [threading.Thread(target=work) for _ in range(4)]
    for t in team:
        t.start()
    for t in team:
        t.join(60)
    assert not errors
    assert len(native._made) == 1


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
        made.append(builder.call(kind, value, axes=over, **more))
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


@settings(max_examples=120, deadline=None)
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
