"""Windows that slide: kernels read through them, whatever reduces, multiplies or changes them, and nothing of
their size is ever made."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from ostinato.ops.core.apply import apply
from ostinato.ops.core.registry import Place
from ostinato.ops.cpu.loops import nest_kernels

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.helpers import on
from tests.ops.test_cuda_stages import results, run_on_host
from tests.planner.test_found_layouts import collectives
from tests.sessions import JOB, use

rng = np.random.default_rng(33)
alone = pytest.mark.skipif(JOB > 1, reason="kernels of one worker")
EDGE = 1 << 18  # bytes beside operands and results


def slide(x: Any, axes: Any, sizes: Any, steps: Any, dilations: Any) -> Any:
    """The op, or NumPy's look."""
    if isinstance(x, np.ndarray):
        wide = [(n - 1) * d + 1 for n, d in zip(sizes, dilations, strict=True)]
        cut: list[slice] = [slice(None)] * x.ndim
        for axis, step in zip(axes, steps, strict=True):
            cut[axis] = slice(None, None, step)
        return sliding_window_view(x, wide, axes)[
            (*cut, *(slice(None, None, d) for d in dilations))
        ]
    params = {"axes": axes, "sizes": sizes, "steps": steps, "dilations": dilations}
    return apply("slide", x, beside=(-1,) * len(axes), **params)


def random_case(r: random.Random) -> tuple[Any, Callable[..., Any], Callable[..., Any], str]:
    """An operand, its windows, what is done with them, and how that is called."""
    dtype = r.choice(["f4", "f8", "f8", "c16", "i4"])
    shape = r.choice([(4000,), (70, 90), (90, 70), (3, 60, 50)])
    axes = tuple(sorted(r.sample(range(len(shape)), r.randint(1, min(len(shape), 2)))))
    small = len(axes) > 1 or shape[axes[0]] < 60
    sizes = tuple(
        [r.choice([1, 2] if shape[d] < 9 else [2, 3] if small else [5, 17]) for d in axes]
    )
    steps = tuple([r.choice([1, 1, 2, 3]) for _ in axes])
    dilations = tuple([r.choice([1, 2, 3] if shape[d] > 9 else [1]) for d in axes])
    x = rng.integers(-9, 9, shape).astype(dtype) if dtype == "i4" else rng.normal(size=shape)
    x = x.astype(dtype)
    if r.random() < 0.3:
        x = np.asfortranarray(x)
    w = rng.integers(-9, 9, sizes).astype(x.dtype)
    last = tuple(range(-len(axes), 0))
    letters = "abc"[: len(shape)], "rs"[: len(axes)]
    text = f"{''.join(letters)},{letters[1]}->{letters[0]}"
    kinds: dict[str, Callable[[Any, Any], Any]] = {
        "product": lambda xp, v: xp.einsum(text, v, w),
        "sum": lambda xp, v: (v * w).sum(last) + 1,
        "mean of squares": lambda xp, v: xp.sqrt(xp.square(v - 1).mean(last) + 1),
        "max": lambda xp, v: v.max(last) * 2 - v.min(last),
        "softmax": lambda xp, v: xp.exp(v - v.max(last, keepdims=True)).sum(last),
        "place": lambda xp, v: v.argmax(-1) if len(axes) == 1 else v.min(last),
        "spread": lambda xp, v: v - v.mean(last, keepdims=True),
    }
    name = r.choice(["product", "sum"] if dtype == "c16" else list(kinds))
    if dtype == "i4" and name == "softmax":
        name = "max"
    return x, lambda x: slide(x, axes, sizes, steps, dilations), kinds[name], f"{name} {dtype}"


@alone
@pytest.mark.parametrize("seed", range(24))
def test_random_windows(seed: int) -> None:
    x, windows, then, name = random_case(random.Random(seed))
    f = ost.compile(lambda x: then(ost, windows(x)))
    pairs = x.dtype.kind == "c" and COMPILER is not None and JOB == 1
    with use(device=KERNELS) if pairs and seed < 12 else on():  # a GPU's stages have none
        found = np.asarray(f(ost.asarray(x)))
        wanted = then(np, windows(x))
        near = 1e-4 if x.dtype == np.float32 else 1e-11
        np.testing.assert_allclose(found, wanted, near, near * np.abs(wanted).max(), err_msg=name)
        assert found.dtype == wanted.dtype, name


PROGRAMS: dict[str, tuple[tuple[int, ...], Callable[[Any, Any], Any]]] = {
    "taps": ((20_000,), lambda xp, x: xp.einsum("yr,r->y", slide(x, (0,), (200,), (1,), (1,)), W)),
    "convolve": ((20_000,), lambda xp, x: xp.convolve(x, W, "valid")),
    "lags": (
        (20_063,),
        lambda xp, x: xp.einsum("yr,y->r", slide(x, (0,), (64,), (1,), (1,)), x[:20_000]),
    ),
    "pool": (
        (512, 512),
        lambda xp, x: xp.exp(slide(x, (0, 1), (3, 3), (2, 2), (1, 1)).max((-1, -2))) + 1,
    ),
    "edges": (
        (250, 260),
        lambda xp, x: xp.exp(slide(xp.pad(x, 1), (0, 1), (3, 3), (1, 2), (1, 1)).max((-1, -2))) + 1,
    ),
    "spread": ((20_000,), lambda xp, x: slide(x, (0,), (31,), (1,), (2,)).std(-1)),
    "image": (
        (2, 3, 60, 64),
        lambda xp, x: xp.maximum(
            xp.einsum("ncyxrs,ocrs->noyx", slide(x, (2, 3), (3, 5), (1, 2), (2, 1)), K), 0
        ),
    ),
}
W, K = rng.normal(size=200), rng.normal(size=(4, 3, 3, 5))


@alone
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_one_kernel_and_nothing_is_copied(name: str) -> None:
    shape, function = PROGRAMS[name]
    x = rng.normal(size=shape)
    f = ost.compile(lambda x: function(ost, x))
    with on():
        a = ost.asarray(x)
        found = np.asarray(f(a))
        np.testing.assert_allclose(found, function(np, x), 1e-10, 1e-10)
        program = f.plan.program
    kernels = [n for n in program.graph.nodes if ost.ops.lookup(n.op).view is None]
    others = ("constant", "copy")  # of what a product of vectors is a row of
    assert [n.op for n in kernels if n.op not in others] == ["fused_nest"], program.graph
    windows = [n.specs[0].nbytes for n in f.plan.lowered.nodes if n.op == "slide"]
    assert program.arena_bytes <= EDGE < min(windows) / 4, program.arena_bytes
    assert f.plan.peak_bytes <= x.nbytes + found.nbytes + W.nbytes + K.nbytes + EDGE


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_get_edges_of_their_neighbours(name: str) -> None:
    shape, function = PROGRAMS[name]
    x = rng.normal(size=shape)
    with on(3):
        f = ost.compile(lambda x: function(ost, x))
        for split in range(x.ndim):
            found = np.asarray(f(ost.asarray(x, split=split)))
            np.testing.assert_allclose(found, function(np, x), 1e-10, 1e-10)
        f = ost.compile(lambda x: slide(x, (0,), (3,), (1,), (1,)).max(-1))
        f(ost.asarray(rng.normal(size=(3000, 40)), split=0))
        assert collectives(f.plan) == {"halo": 1}


@alone
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", PROGRAMS)
def test_cuda_text_reads_through_windows(name: str) -> None:
    shape, function = PROGRAMS[name]
    x = rng.normal(size=shape)
    with use(device=KERNELS):
        graph = ost.compile(lambda x: function(ost, x)).plan_for(x).program.graph
    values: list[Any] = [x, *{"taps": [W], "convolve": [W], "image": [K]}.get(name, [])]
    for node in graph.nodes:
        ins, rule = [values[v] for v in node.inputs], ost.ops.lookup(node.op)
        if node.op == "fused_nest":
            made = results(node)
            run_on_host(node, [*ins, *made])
            values += made
        elif rule.is_view:
            boxes = [tuple([(0, n) for n in s]) for s in (ins[0].shape, node.specs[0].shape)]
            at = Place((boxes[0],), (boxes[1],), (ins[0].shape,), (node.specs[0].shape,))
            values.append(rule.view(np, ins[0], at, **node.kw))
        else:
            assert node.op in ("copy", "constant")
            values += ins or [np.asarray(node.kw["value"])]
    (v,) = graph.outputs
    np.testing.assert_allclose(values[v], function(np, x), 1e-10, 1e-10)


def test_vmap_and_gradient() -> None:
    x, w = rng.normal(size=(4, 40)), rng.normal(size=5)

    def loss(x: Any) -> Any:
        return (ost.einsum("yr,r->y", slide(x, (0,), (5,), (2,), (3,)), w) ** 2).sum()

    with on():
        slopes = np.asarray(ost.vmap(ost.grad(loss))(ost.asarray(x)))
        f = ost.compile(ost.vmap(loss))
        for k in range(4):
            for n in (0, 11, 39):
                d = np.zeros_like(x)
                d[k, n] = 1e-5
                high, low = np.asarray(f(x + d))[k], np.asarray(f(x - d))[k]
                np.testing.assert_allclose(slopes[k, n], (high - low) / 2e-5, 1e-6, 1e-6)
        assert "loop" not in [n.op for n in f.plan.program.graph.nodes]


@alone
@pytest.mark.parametrize("taps", [9, 40])
def test_edges_of_long_windows_are_in_memory(taps: int) -> None:
    """So that whether an element is inside is not asked for each of its products."""
    x, w = rng.normal(size=20_000), rng.normal(size=taps)
    with on():
        f = ost.compile(lambda x: ost.convolve(x, w, "same"))
        np.testing.assert_allclose(np.asarray(f(x)), np.convolve(x, w, "same"), 1e-10, 1e-10)
    kernels = [n.op for n in f.plan.program.graph.nodes if ost.ops.lookup(n.op).view is None]
    assert ("pad" in kernels) is (taps == 40), kernels


@pytest.mark.cpu_only
@alone
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_windows_are_done_together(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What windows of one row read, those of the next ones read, too, of any number of rows; whole numbers show
    each element that is missed or counted twice."""
    r, together = random.Random(seed), list[bool]()
    text = nest_kernels.nest_text
    monkeypatch.setattr(nest_kernels, "nest_text", lambda nest, bits: (
        together.append(nest.abreast >= 0), text(nest, bits))[1])  # fmt: skip
    taps, rows, width = (
        r.choice([5, 16, 31, 40]),
        r.choice([61, 62, 63, 64, 67]),
        r.choice([70, 300]),
    )
    dtype = r.choice(["float32", "float64", "int32"])
    x = rng.integers(-9, 9, (rows + taps - 1, width)).astype(dtype)
    w, z = (rng.integers(-9, 9, n).astype(dtype) for n in (taps, (rows, width)))
    reduced = lambda a, z: a - a.max(1)[:, None]  # noqa: E731
    behind = r.choice([lambda a, z: a, lambda a, z: a * z + 1, reduced])

    def f(xp: Any, x: Any) -> Any:
        windows = slide(x, (0,), (taps,), (1,), (1,))
        return behind(xp.einsum("icr,r->ic", windows, w), z)

    with on():
        np.testing.assert_array_equal(np.asarray(ost.compile(lambda x: f(ost, x))(x)), f(np, x))
    assert any(together) is (behind is not reduced), "these rows are done one by one"
