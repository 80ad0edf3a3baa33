"""Operations by windows, registered here as a family would: a correlation of images, as convolutions
are, and the largest of a pool. Each is one block, and nothing else knows it.

test_toy_ops.py runs this file in a process of its own, as ops stay registered."""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.apply import apply, as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.device import device_of
from ostinato.ops.core.index import Window, taps, windowed
from ostinato.ops.core.parameters import PLACES, STRIDES, Kind, unfit
from ostinato.ops.core.registry import OPS, Place, Product, Reduce, op
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from tests.cuda_host import COMPILER
from tests.fake_device import FAKE
from tests.helpers import on, splits_of
from tests.ops.test_cuda_stages import graph_of, results, run_on_host
from tests.ops.test_indices import check, splittable, ways
from tests.sessions import use

Pair = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
PAIRS = Kind("how many before and after, for each window", lambda v, _: type(v) is tuple)


# -- toy_conv ----------------------------------------------------------------------------------
def _conv_rule(
    x: Spec, w: Spec, *, strides: Pair, dilation: Pair, offsets: Pair, every: Pair, extents: Pair
) -> Spec:
    alike = x.dtype == w.dtype and x.ndim == w.ndim >= 4 and x.shape[:-4] == w.shape[:-4]
    if not alike or x.shape[-3] != w.shape[-3] or min(strides) < 1 or min(every) < 1:
        raise unfit("toy_conv", (x, w), "images and filters of as many channels")
    return Spec((*x.shape[:-3], w.shape[-4], *extents), x.dtype)


def _conv(xp: Any, out: Any, x: Any, w: Any, *, extents: Pair, at: Place, **steps: Pair) -> None:
    """One element of the filters after the other, so that the bits do not depend on the parts."""
    ranges, sizes = at.ins[1][-2:], at.in_shapes[1][-2:]
    windows = _windows(sizes, **steps)
    out[...] = 0
    for c, r, s in itertools.product(range(x.shape[-3]), *(range(*own) for own in ranges)):
        ours, theirs = taps(windows, at.outs[0][-2:], at.ins[0][-2:], (r, s))
        factor = w[..., c, r - ranges[0][0], s - ranges[1][0]][..., None, :, None, None]
        part = out[(..., *ours)]
        xp.add(part, x[(..., slice(c, c + 1), *theirs)] * factor, out=part)


def _windows(
    sizes: Sequence[int], *, strides: Pair, dilation: Pair, offsets: Pair, every: Pair
) -> list[Window]:
    given = zip(offsets, strides, sizes, dilation, every, strict=True)
    return [Window("", o, s, n, "", d, e) for o, s, n, d, e in given]


def _conv_grad(g: Array, y: Array, x: Array, w: Array, **p: Any) -> tuple[Array, Array]:
    """Both are the same operation with other windows: `position = (offset + stride*y + dilation*r) /
    every`, solved for `y`, and with `y` and `r` in each other's place."""
    back = {
        "strides": p["every"],
        "dilation": tuple(-d for d in p["dilation"]),
        "offsets": tuple(-o for o in p["offsets"]),
        "every": p["strides"],
        "extents": x.shape[-2:],
    }
    swapped = {**p, "strides": p["dilation"], "dilation": p["strides"], "extents": w.shape[-2:]}
    x, w, turned = (ost.swapaxes(v, -4, -3) for v in (x, w, g))
    return conv(g, w, **back), ost.swapaxes(conv(x, turned, **swapped), -4, -3)


op(
    "toy_conv",
    infer=_conv_rule,
    takes={
        **dict.fromkeys(("strides", "dilation", "offsets"), STRIDES),
        **dict.fromkeys(("every", "extents"), PLACES),
    },
    indices=windowed("... n c [y:r] [x:s], ... o c r s -> ... n o y x", sums="c r s"),
    kernel=_conv,
    grad=_conv_grad,
    product=Product(),
    dense=True,
    placed=True,
)


def conv(x: Any, w: Any, **p: Any) -> Array:
    return apply("toy_conv", as_array(x), as_array(w), **p)


# -- toy_pool ----------------------------------------------------------------------------------
def _pool(xp: Any, out: Any, x: Any, *, sizes: Pair, strides: Pair, pads: Pairs, at: Place) -> None:
    out[...] = -xp.inf
    given = zip(pads, strides, sizes, strict=True)
    windows = [Window("", -before, s, n, "") for (before, _), s, n in given]
    for rs in itertools.product(*map(range, sizes)):
        ours, theirs = taps(windows, at.outs[0][-2:], at.ins[0][-2:], rs)
        part = out[(..., *ours)]
        xp.maximum(part, x[(..., *theirs)], out=part)


def _pool_rule(x: Spec, *, sizes: Pair, strides: Pair, pads: Pairs) -> Spec:
    given = zip(x.shape[-2:], sizes, strides, pads, strict=True)
    return Spec((*x.shape[:-2], *((n + b + a - r) // s + 1 for n, r, s, (b, a) in given)), x.dtype)


def _pool_grad(
    g: Array, y: Array, x: Array, *, sizes: Pair, strides: Pair, pads: Pairs
) -> tuple[Array]:
    """To all that are as large as the largest, by slices in steps and updates there."""
    wide = ost.pad(x, [(0, 0)] * (x.ndim - 2) + list(pads), constant_values=-np.inf)
    cuts = [
        (
            ...,
            *(
                slice(r, r + s * (n - 1) + 1, s)
                for r, s, n in zip(rs, strides, y.shape[-2:], strict=True)
            ),
        )
        for rs in itertools.product(*map(range, sizes))
    ]
    share = g / sum((wide[cut] == y).astype(g.dtype) for cut in cuts)
    made = ost.zeros_like(wide)
    for cut in cuts:
        made = made.at[cut].add((wide[cut] == y) * share)
    return (made[(..., *(slice(b, b + n) for (b, _), n in zip(pads, x.shape[-2:], strict=True)))],)


op(
    "toy_pool",
    infer=_pool_rule,
    takes={"sizes": PLACES, "strides": PLACES, "pads": PAIRS},
    indices=windowed("... [y:r] [x:s] -> ... y x", max="r s"),
    reduce=Reduce(),
    kernel=_pool,
    grad=_pool_grad,
    placed=True,
)


def pool(x: Any, **p: Any) -> Array:
    return apply("toy_pool", as_array(x), **p)


# -- what the windows must go through ------------------------------------------------------------
def some_conv(draw: random.Random, least: int = 5) -> tuple[Any, Any, dict[str, Pair]]:
    """Images, filters, and how they meet: strided, dilated, padded; outputs as many as there are."""
    r = np.random.default_rng(draw.randrange(1 << 30))
    x = r.normal(
        size=(draw.randint(1, 4), draw.randint(1, 3), *draw.choices(range(least, 13), k=2))
    )
    w = r.normal(size=(draw.randint(1, 4), x.shape[1], *draw.choices((1, 2, 3), k=2)))
    strides, dilation = (tuple(draw.choices((1, 2, 3), k=2)) for _ in range(2))
    pads = tuple(draw.choices((0, 1, 2), k=2))
    extents = tuple(
        max(1, (n + 2 * p - d * (m - 1) - 1) // s + 1)
        for n, p, d, m, s in zip(x.shape[2:], pads, dilation, w.shape[2:], strides, strict=True)
    )
    offsets = tuple(-p for p in pads)
    steps = {"strides": strides, "dilation": dilation, "offsets": offsets, "every": (1, 1)}
    return x, w, {**steps, "extents": extents}


def by_numpy(x: Any, w: Any, *, extents: Pair, **steps: Pair) -> Any:
    """By the definition, element by element."""
    made = np.zeros((x.shape[0], w.shape[0], *extents))
    rows, columns = _windows(w.shape[2:], **steps)
    for y, z, r, s in itertools.product(*map(range, (*extents, *w.shape[2:]))):
        at = []
        for k, i, j in ((rows, y, r), (columns, z, s)):
            place, rest = divmod(k.offset + k.stride * i + k.dilation * j, k.every)
            at.append(-1 if rest else place)
        if all(0 <= p < n for p, n in zip(at, x.shape[2:], strict=True)):
            made[:, :, y, z] += x[:, :, at[0], at[1]] @ w[:, :, r, s].T
    return made


def by_differences(f: Any, x: Any) -> Any:
    """Slopes of a function of an array, one element after the other."""
    each = (1e-6 * np.eye(x.size)).reshape(-1, *x.shape)
    return np.array([(f(x + d) - f(x - d)) / 2e-6 for d in each]).reshape(x.shape)


def main() -> None:
    draw = random.Random(0)
    for k in range(12):  # each way to cut each index, by the kernels
        x, w, p = some_conv(draw)
        if k % 3:  # the adjoints' windows
            p |= {"every": (2, 3), "dilation": (-1, 2), "extents": (7, 9)}
        each_way(lambda x, w: conv(x, w, **p), by_numpy(x, w, **p), x, w)  # noqa: B023
    x, w, p = some_conv(draw, 9)
    pooled = {"sizes": (3, 2), "strides": (2, 2), "pads": ((1, 1), (0, 1))}
    wide = np.pad(x, ((0, 0), (0, 0), *pooled["pads"]), constant_values=-np.inf)
    views = np.lib.stride_tricks.sliding_window_view(wide, pooled["sizes"], (2, 3))
    maxima = views[:, :, ::2, ::2].max((-2, -1))
    each_way(lambda x: pool(x, **pooled), maxima, x)

    weights = np.cos(np.arange(np.prod(p["extents"]))).reshape(p["extents"])

    def loss(x: Any, w: Any) -> Any:
        return (conv(x, w, **p) ** 2 * weights).sum() + (pool(x, **pooled) ** 2).sum()

    wanted = (by_numpy(x, w, **p) ** 2 * weights).sum() + (maxima**2).sum()
    with on(1):
        slopes = [
            by_differences(lambda v: float(loss(v, w)), x),
            by_differences(lambda v: float(loss(x, v)), w),
        ]
    for mesh in ((1,), (2,), (3,), (4,), (5,), (6,), (2, 2), (2, 3)):  # runs, and slopes
        with on(mesh=mesh):
            for split in draw.sample(splits_of(x, mesh), 3):
                a = ost.asarray(x, split=split)
                value, found = ost.compile(ost.value_and_grad(loss, (0, 1)))(a, w)
                np.testing.assert_allclose(float(value), wanted, 1e-10)
                for slope, by in zip(found, slopes, strict=True):
                    np.testing.assert_allclose(np.asarray(slope), by, 1e-4, 1e-5)

    natives()
    kernels(random.Random(4))
    products()
    plans()
    print("both of them work")


# -- toy_rows ----------------------------------------------------------------------------------
def _rows(xp: Any, out: Any, x: Any, w: Any, *, offsets: Any, at: Place) -> None:
    out[...] = 0
    windows = [Window("", offsets[0], 1, len(w), "")]
    for r in range(len(w)):
        ours, theirs = taps(windows, at.outs[0][1:2], at.ins[0][1:2], (r,))
        out[(slice(None), *ours)] += x[(slice(None), *theirs)] @ w[r]


op(
    "toy_rows",
    infer=lambda x, w, *, offsets: Spec((*x.shape[:2], w.shape[2]), x.dtype),
    takes={"offsets": STRIDES},
    indices=windowed("n [y:r] c, r c o -> n y o", sums="r c"),
    kernel=_rows,
    product=Product(),
    placed=True,
)


def products() -> None:
    """Of many channels: windows are copied, and a library multiplies them."""
    r = np.random.default_rng(5)
    x, w, bias = r.normal(size=(3, 16, 21, 18)), r.normal(size=(17, 16, 3, 3)), r.normal(size=17)
    p: Any = {"strides": (2, 1), "dilation": (1, 2), "offsets": (-1, 0), "every": (1, 1)}
    p |= {"extents": (11, 14)}
    line, v = r.normal(size=(2, 60, 32)), r.normal(size=(5, 32, 20))
    wide = np.pad(line, ((0, 0), (3, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, 5, 1)
    by_rows = np.einsum("nycr,rco->nyo", windows, v)
    shifted = by_numpy(x, w, **p) + bias[:, None, None]

    def layer(x: Any, w: Any, bias: Any) -> Any:
        return ost.maximum(conv(x, w, **p) + bias[:, None, None], 0)

    def rows(x: Any, w: Any) -> Any:
        return apply("toy_rows", as_array(x), as_array(w), offsets=(-3,)) * 2

    for workers in (1, 2):
        with on(workers):
            f, g, split = ost.compile(layer), ost.compile(rows), 0 if workers > 1 else None
            found = np.asarray(f(ost.asarray(x, split=split), w, bias))
            np.testing.assert_allclose(found, np.maximum(shifted, 0), 1e-10, 1e-10)
            found = np.asarray(g(ost.asarray(line, split=split), v))
            np.testing.assert_allclose(found, 2 * by_rows[:, :60], 1e-10, 1e-10)
            multiplied = ["matmul" in " ".join(operations(each)) for each in (f, g)]
            assert multiplied == [workers == 1] * 2, (operations(f), operations(g))


# -- kernels -------------------------------------------------------------------------------------
def operations(f: Any) -> list[str]:
    return [n.op for n in f.plan.program.graph.nodes if n.op != "constant"]


def wider(draw: random.Random, adjoint: bool) -> tuple[Any, Any, dict[str, Pair]]:
    """As `some_conv`, of images and windows that are worth a kernel."""
    r, (h, w) = np.random.default_rng(draw.randrange(1 << 30)), draw.choices((24, 33, 40), k=2)
    x, filters = r.normal(size=(2, 3, h, w)), r.normal(size=(4, 3, 3, draw.choice((2, 3))))
    strides, dilation, every = (tuple(draw.choices((1, 2), k=2)) for _ in range(3))
    offsets = tuple(-p for p in draw.choices((1, 2, 3), k=2))
    steps = {"strides": strides, "dilation": dilation, "offsets": offsets, "every": (1, 1)}
    if adjoint:
        steps |= {"every": every, "dilation": tuple(-d for d in dilation), "offsets": (1, 2)}
    return x, filters, {**steps, "extents": tuple(draw.choices((20, 23, 37), k=2))}


def kernels(draw: random.Random) -> None:
    """By windows, with edges, and with what is behind: one kernel, on CPUs and as a GPU's text."""
    texts = 0
    for k in range(6):
        x, w, p = wider(draw, k % 2 == 1)
        bias, residual = np.cos(np.arange(4.0))[:, None, None], np.sin(np.arange(37.0))[:20]
        residual = np.resize(residual, p["extents"])

        def layer(x: Any, w: Any, bias: Any, residual: Any) -> Any:
            return ost.maximum(conv(x, w, **p) + bias, 0) * 2 + residual  # noqa: B023

        def total(x: Any, w: Any) -> Any:
            return (conv(x, w, **p) ** 2).sum((2, 3))  # noqa: B023

        made = by_numpy(x, w, **p)
        wanted = np.maximum(made + bias, 0) * 2 + residual
        for workers in (1, 2):
            with on(workers):
                f, split = ost.compile(layer), 0 if workers > 1 else None
                found = f(ost.asarray(x, split=split), w, bias, residual)
                np.testing.assert_allclose(np.asarray(found), wanted, 1e-10, 1e-10)
                assert operations(f) == ["fused_nest"], (p, operations(f))
        with on(1):
            f = ost.compile(total)
            np.testing.assert_allclose(np.asarray(f(x, w)), (made**2).sum((2, 3)), 1e-10, 1e-10)
        texts += as_cuda(layer, (x, w, bias, residual), wanted)
    for k in range(4):
        x = np.random.default_rng(k).normal(size=(3, 7, *draw.choices((48, 57, 66), k=2)))
        sizes, strides = (tuple(draw.choices((2, 3), k=2)) for _ in range(2))
        pads = tuple([(draw.randint(0, 1), 1) for _ in range(2)])

        def behind(x: Any) -> Any:
            made = pool(x, sizes=sizes, strides=strides, pads=pads)  # noqa: B023
            return (ost.maximum(made, 0) - 0.5) * 2

        wide = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=-np.inf)
        views = np.lib.stride_tricks.sliding_window_view(wide, sizes, (2, 3))
        maxima = views[:, :, :: strides[0], :: strides[1]].max((-2, -1))
        with on(1):
            f = ost.compile(behind)
            np.testing.assert_allclose(np.asarray(f(x)), (np.maximum(maxima, 0) - 0.5) * 2)
            assert operations(f) == ["fused_nest"], operations(f)
        texts += as_cuda(behind, (x,), (np.maximum(maxima, 0) - 0.5) * 2)
    assert texts == 10, texts


def as_cuda(f: Any, given: Sequence[Any], wanted: Any) -> bool:
    """The text for GPUs, run by a compiler for this machine, if it has one; whether there is one kernel."""
    nodes = [n for n in graph_of(f, *given).nodes if n.op == "fused_nest"]
    if COMPILER is None or not nodes:
        return COMPILER is None
    os.environ.setdefault("OSTINATO_TEST_KERNELS", tempfile.mkdtemp())
    (node,) = nodes
    found = results(node)
    run_on_host(node, [*given, *found])
    np.testing.assert_allclose(found[0], wanted, 1e-10, 1e-10)
    return True


LARGE = {"strides": (2, 1), "dilation": (1, 2), "offsets": (-1, -2), "every": (1, 1)}
LARGE_POOL = {"sizes": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1))}


def network(x: Any, w: Any) -> Any:
    return pool(conv(x, w, **LARGE, extents=(x.shape[2] // 2, x.shape[3])), **LARGE_POOL)


def plans() -> None:
    """Halos are all that is sent; plans, files and tables; other numerics; all elements of vmap at once."""
    images, filters = ost.spec((32, 64, 960, 960), "float32"), ost.spec((64, 64, 3, 3), "float32")
    both = {"network": network, "slopes": ost.grad(lambda x, w: (network(x, w) ** 2).sum(), (0, 1))}
    for mesh, splits in (((k,), (0, 2, 3)) for k in range(2, 7)):
        for split, (name, f) in itertools.product(splits, both.items()):
            x = ost.spec(images.shape, "float32", split=split)
            plan = ost.plan(f, x, filters, mesh=mesh, machine="h200-ib")
            sums = {"all_reduce"} if name == "slopes" else set()
            kinds = {*facts(plan)["collectives"]}
            assert kinds <= {"halo"} | sums, (mesh, split, name, kinds)
            assert ("halo" in kinds) == (split > 0), (mesh, split, name, kinds)
    for mesh in ((2, 2), (2, 3)):
        for splits in itertools.permutations((0, 2, 3), 2):
            x = ost.spec(images.shape, "float32", split=splits)
            plan = ost.plan(network, x, filters, mesh=mesh, machine="h200-ib")
            assert {*facts(plan)["collectives"]} == {"halo"}, (mesh, splits)
            assert "toy_conv" in plan.explain()
            assert plan.simulate().seconds > 0
    draw = random.Random(1)
    x, w, p = some_conv(draw, 9)
    wanted = by_numpy(x, w, **p)
    with on(mesh=(2,)):  # a plan of a stranger's is proven, and does the same
        f = ost.compile(lambda x, w: conv(x, w, **p))
        f(ost.asarray(x, split=2), w)
        again = decode_plan(encode_plan(f.plan))
        assert again == f.plan
        np.testing.assert_allclose(np.asarray(ost.run(again, ost.asarray(x, split=2), w)), wanted)
    bits = set()
    for workers in (1, 2, 3, 5):
        with on(workers, numerics="any-workers"):
            made = ost.compile(lambda x, w: conv(x, w, **p))(ost.asarray(x, split=2), w)
            bits.add(np.asarray(made).tobytes())
    assert len(bits) == 1
    with on(1):
        for x_axis, w_axis in ((0, None), (None, 0), (0, 0)):
            xs, ws = (
                v if axis is None else np.stack([v, 2 - v])
                for v, axis in ((x, x_axis), (w, w_axis))
            )
            f = ost.compile(ost.vmap(lambda x, w: conv(x, w, **p), (x_axis, w_axis)))
            pairs = [
                (xs if x_axis is None else xs[k], ws if w_axis is None else ws[k]) for k in (0, 1)
            ]
            np.testing.assert_allclose(np.asarray(f(xs, ws)), [by_numpy(*v, **p) for v in pairs])
            ops = [n.op for n in f.plan.traced.nodes]
            assert ops.count("toy_conv") == 1, ops
            assert not any("body" in n.kw for n in f.plan.traced.nodes), ops
    for count in (1, 8):  # in blocks of time, also of one image alone
        large = np.random.default_rng(0).normal(size=(count, 2, 4000 // count, 60))
        steps = {"strides": (1, 1), "dilation": (1, 1), "offsets": (-1, -1), "every": (1, 1)}
        three = np.ones((2, 2, 3, 3))

        def squares(x: Any) -> Any:
            return (conv(x, three, **steps, extents=x.shape[2:]) ** 2).sum((0, 3))  # noqa: B023

        def running(x: Any) -> Any:  # which no kernel has room for
            made = conv(x, three, **steps, extents=x.shape[2:])  # noqa: B023
            return (ost.cumulative_sum(made, axis=1) ** 2).sum((0, 3))

        with ost.connect(memory_limit=6_500_000) as session, session:
            f, g = ost.compile(squares), ost.compile(running)
            total, sums = np.asarray(f(large)), np.asarray(g(large))
        assert operations(f) == ["fused_nest"], f.plan.lowered  # nothing of it is in memory
        assert [n.op for n in g.plan.lowered.nodes] == ["blocks"], g.plan.lowered
        edges = np.pad(large, ((0, 0), (0, 0), (1, 1), (1, 1)))
        boxes = np.lib.stride_tricks.sliding_window_view(edges, (3, 3), (2, 3)).sum((1, -2, -1))
        squared = (boxes**2).sum((0, 2))
        np.testing.assert_allclose(total, np.stack([squared, squared]))
        np.testing.assert_allclose(sums, np.stack([squared, 4 * squared]))
    with on(1, precision="mixed_bf16"):
        a, b = x.astype(np.float32), w.astype(np.float32)
        found = np.asarray(ost.compile(lambda x, w: conv(x, w, **p))(a, b))
        halves = [np.asarray(ost.asarray(v).astype(ost.bfloat16), np.float32) for v in (a, b)]
        np.testing.assert_allclose(found, by_numpy(*halves, **p), 1e-5, 1e-5)
    with use((2,), device=FAKE.name):  # a device that is not the host
        given = ost.asarray(x, split=2), w
        np.testing.assert_allclose(
            np.asarray(ost.compile(lambda x, w: conv(x, w, **p))(*given)), wanted
        )


def natives() -> None:
    """A library's kernel works on parts, if it asks where they are."""
    made = list[Place]()

    def make(arrays: Any, threads: int, *, scratch: Any, at: Place, **p: Pair) -> Any:
        made.append(at)
        return lambda x, w, out: _conv(device_of(out).xp, out, x, w, at=at, **p)

    CPU.runs("toy_conv", make, placed=lambda at, _: at)
    FAKE.runs("toy_conv", make, placed=lambda at, _: at)
    x, w, p = some_conv(random.Random(2), 9)
    wanted = by_numpy(x, w, **p)
    for device, mesh in itertools.product((CPU, FAKE), ((1,), (2,), (3,), (2, 2))):
        with use(mesh, device=device.name):
            f = ost.compile(lambda x, w: conv(x + 1, w, **p) * 2)
            made.clear()
            found = f(ost.asarray(x - 1, split=2 if len(mesh) == 1 else (2, 3)), w)
            np.testing.assert_allclose(np.asarray(found), 2 * wanted, 1e-11, 1e-11)
            assert len(made) == np.prod(mesh), (device.name, mesh)
    for device in (CPU, FAKE):
        del device.natives["toy_conv"]


def each_way(f: Any, wanted: Any, *given: Any) -> None:
    """The last operation of a function, done in parts, for each index that can be cut."""
    graph = ost.plan(f, *given).traced
    (node,) = graph.nodes
    ins = tuple(s.bare for s in graph.inputs)
    indices = OPS[node.op].indices(ins, node.specs, node.kw)
    found = {c: ways(indices, c, node, ins) for c in splittable(indices)}
    assert len(found) >= 4, found
    for label, each in found.items():
        for way in each:
            check(graph, node, given, [wanted], {label: way})


if __name__ == "__main__":
    sys.exit(main())
