"""One op of each kind, registered here as a family would: each is one block, and nothing else knows it.

What planner, runtime and gradients do with ops must work for these as well; test_toy_ops.py runs this
file in a process of its own, as ops stay registered."""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.array import Array, apply, as_array
from ostinato.ops.core.index import Indices, Window, pointwise, taps, windowed
from ostinato.ops.core.monoid import MONOIDS, Monoid, lowest
from ostinato.ops.core.parameters import AXIS, PLACES, STRIDES, Kind, unfit
from ostinato.ops.core.registry import OPS, Params, Place, Product, Reduce, Specs, op
from ostinato.ops.core.spec import Spec
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from tests.fake_device import FAKE
from tests.helpers import MESHES, on, splits_of
from tests.ops.test_indices import check, splittable, ways
from tests.sessions import use

Pair = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
PAIRS = Kind("how many before and after, for each window", lambda v, _: type(v) is tuple)

# -- elementwise: a smooth step ----------------------------------------------------------------
op(
    "toy_step",
    infer=lambda x: x.bare,
    indices=lambda ins, outs, p: pointwise(ins, outs),
    kernel=lambda xp, out, x: xp.divide(x, 1 + xp.abs(x), out=out),
    scalar="{0} / (1 + abs({0}))",
    grad=lambda g, y, x: (g / (1 + ost.abs(x)) ** 2,),
)


# -- reduction: the sum of squares along an axis -----------------------------------------------
def _squares(xp: Any, out: Any, x: Any, *, axis: int) -> None:
    xp.sum(x * x, axis=axis, out=out)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _along(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple("abcdefgh"[: ins[0].ndim])
    return Indices((labels,), (_without(labels, p["axis"]),), ((labels[p["axis"]], "sum"),))  # type: ignore[arg-type]


op(
    "toy_squares",
    infer=lambda x, *, axis: Spec(_without(x.shape, axis), x.dtype),
    takes={"axis": AXIS},
    indices=_along,
    reduce=Reduce("{0} * {0}"),
    kernel=_squares,
    grad=lambda g, y, x, *, axis: (2 * x * ost.expand_dims(g, axis=axis),),
)


# -- reductions with monoids of their own: bits that differ, the logarithm of a sum ---------------
def _toy_monoid(name: str, ufunc: str, scalar: str, identity: Any) -> None:
    def combine(xp: Any, out: Any, a: Any, b: Any) -> None:
        getattr(xp, ufunc)(a[0], b[0], out=out[0])

    def kernel(xp: Any, out: Any, x: Any, *, axis: int) -> None:
        getattr(xp, ufunc).reduce(x, axis=axis, out=out)

    def indices(ins: Specs, outs: Specs, p: Params) -> Indices:
        found = _along(ins, outs, p)
        return replace(found, reduce=tuple((label, name) for label, _ in found.reduce))

    MONOIDS[name] = Monoid(name, combine, ufunc=ufunc, identity=identity, scalar=scalar)
    op(
        name,
        infer=lambda x, *, axis: Spec(_without(x.shape, axis), x.dtype),
        takes={"axis": AXIS},
        indices=indices,
        reduce=Reduce(),
        kernel=kernel,
    )


_toy_monoid("toy_xor", "bitwise_xor", "{0} ^ {1}", lambda dtype: dtype.type(0))
_toy_monoid("toy_logs", "logaddexp", "logaddexp({0}, {1})", lowest)


# -- product: x y^T ----------------------------------------------------------------------------
def _turned_rule(x: Spec, y: Spec) -> Spec:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or x.dtype != y.dtype:
        raise unfit("toy_turned", (x, y), "two matrices with rows of one length")
    return Spec((x.shape[0], y.shape[0]), x.dtype)


op(
    "toy_turned",
    infer=_turned_rule,
    indices=lambda ins, outs, p: Indices((("m", "k"), ("n", "k")), (("m", "n"),), (("k", "sum"),)),
    kernel=lambda xp, out, x, y: xp.matmul(x, y.T, out=out),
    grad=lambda g, z, x, y: (g @ y, g.T @ x),
    product=Product(),
    dense=True,
)


# -- windowed: the sum of three neighbours along the first axis ---------------------------------
def _window(xp: Any, out: Any, x: Any, *, at: Place) -> None:
    (lo, hi), (has, _) = at.outs[0][0], at.ins[0][0]
    n = hi - lo
    if n:
        xp.add(x[lo - has : lo - has + n], x[lo - has + 1 : lo - has + 1 + n], out=out)
        xp.add(out, x[lo - has + 2 : lo - has + 2 + n], out=out)


def _window_grad(g: Array, y: Array, x: Array) -> tuple[Array]:
    zero = ost.zeros((2, *x.shape[1:]), dtype=x.dtype)
    padded = ost.concat([zero, g, zero])
    return (apply("toy_window", padded),)


def _window_rule(x: Spec) -> Spec:
    if x.ndim == 0 or x.shape[0] < 2:
        raise unfit("toy_window", (x,), "two elements along the first axis")
    return Spec((x.shape[0] - 2, *x.shape[1:]), x.dtype)


op(
    "toy_window",
    infer=_window_rule,
    indices=lambda ins, outs, p: Indices(
        ((Window("a", size=3), *"bcdefgh"[: ins[0].ndim - 1]),), (tuple("abcdefgh"[: ins[0].ndim]),)
    ),
    kernel=_window,
    grad=_window_grad,
    placed=True,
)


# -- windowed with indices of their own: correlations of images, and pools ------------------------
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
    kernel=_pool,
    grad=_pool_grad,
    placed=True,
)


def pool(x: Any, **p: Any) -> Array:
    return apply("toy_pool", as_array(x), **p)


def ours(x: Any, y: Any) -> Any:
    x, y = as_array(x), as_array(y)
    a = apply("toy_step", x * 2 + 1)
    b = apply("toy_turned", a, y)
    c = apply("toy_window", b)
    return ost.exp(apply("toy_squares", c, axis=1) / 50).sum() + apply("toy_step", c).mean()


def numpys(x: Any, y: Any) -> Any:
    def step(x: Any) -> Any:
        return x / (1 + abs(x))

    b = step(x * 2 + 1) @ y.T
    c = b[:-2] + b[1:-1] + b[2:]
    return np.exp((c * c).sum(1) / 50).sum() + step(c).mean()


def fused_reductions(rng: np.random.Generator) -> None:
    """A new reduction is a stage of a kernel, whatever it combines, and with what."""
    x = rng.normal(size=(900, 130))
    words = rng.integers(0, 1 << 40, (900, 130))

    def ours(name: str, x: Any, axis: int) -> Any:
        return ost.expand_dims(apply(name, as_array(x), axis=axis), axis=axis)

    cases: dict[str, tuple[Any, Any, Any]] = {
        "toy_squares": (x, lambda x, y: x / y, lambda x, a: (x * x).sum(a, keepdims=True)),
        "toy_logs": (x, lambda x, y: x - y, lambda x, a: np.logaddexp.reduce(x, a, keepdims=True)),
        "toy_xor": (words, lambda x, y: x ^ y, lambda x, a: np.bitwise_xor.reduce(
            x, a, keepdims=True)),
    }  # fmt: skip
    for name, axis in itertools.product(cases, (0, 1)):
        given, then, numpys = cases[name]
        with on(1):
            f = ost.compile(lambda x: then(x + 1, ours(name, x + 1, axis)))  # noqa: B023
            y = given + 1
            np.testing.assert_allclose(np.asarray(f(given)), then(y, numpys(y, axis)), 1e-12, 1e-12)
            made = [n.op for n in f.plan.program.graph.nodes]
            assert made[0] == "fused_nest", (name, made)
            assert name not in made, (name, made)
            if axis:  # all in one; along the other axis what follows waits for all rows
                assert len(made) == 1, (name, made)
                assert " over j of " in f.plan.source(), f.plan.source()
            f = ost.compile(lambda x: ours(name, x * 2, axis))  # noqa: B023
            np.testing.assert_allclose(np.asarray(f(given)), numpys(given * 2, axis), 1e-12, 1e-12)
            made = [n.op for n in f.plan.program.graph.nodes]
            assert made[0] == ("fused_rows" if axis else "fused_nest"), (name, made)


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


def windows() -> None:
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

    windows_in_plans()


LARGE = {"strides": (2, 1), "dilation": (1, 2), "offsets": (-1, -2), "every": (1, 1)}
LARGE_POOL = {"sizes": (3, 3), "strides": (2, 2), "pads": ((1, 1), (1, 1))}


def network(x: Any, w: Any) -> Any:
    return pool(conv(x, w, **LARGE, extents=(x.shape[2] // 2, x.shape[3])), **LARGE_POOL)


def windows_in_plans() -> None:
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


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(13, 6)) / 3, rng.normal(size=(5, 6)) / 3
    wanted = numpys(x, y)
    slope = np.array(
        [
            (numpys(x + d, y) - numpys(x - d, y)) / 2e-6
            for d in (1e-6 * np.eye(x.size)).reshape(-1, *x.shape)
        ]
    ).reshape(x.shape)
    for mesh, _ in (((1,), 1), *MESHES):  # every layout
        with on(mesh=mesh):
            for sx in splits_of(x, mesh):
                for sy in splits_of(y, mesh):
                    a, b = ost.asarray(x, split=sx), ost.asarray(y, split=sy)
                    np.testing.assert_allclose(float(ost.compile(ours)(a, b)), wanted, 1e-12)
            found = ost.compile(ost.grad(ours))(ost.asarray(x), ost.asarray(y))
            np.testing.assert_allclose(np.asarray(found), slope, 1e-5, 1e-8)
    with on(1):  # a kernel takes what is elementwise
        f = ost.compile(lambda x: ost.exp(apply("toy_step", x) + 1) * x)
        big = rng.normal(size=(500, 300))
        np.testing.assert_allclose(np.asarray(f(big)), np.exp(big / (1 + abs(big)) + 1) * big)
        assert [n.op for n in f.plan.program.graph.nodes] == ["fused"], f.plan.program.graph
        assert "1 + abs(" in f.plan.source().replace(" ", " "), f.plan.source()
    fused_reductions(rng)
    with ost.connect(memory_limit=3_000_000) as session, session:  # in blocks of time
        large = rng.normal(size=(20_000, 8))
        g = ost.compile(
            lambda x: apply(
                "toy_squares",
                apply("toy_turned", apply("toy_step", x), as_array(y[:, :2].repeat(4, 1))),
                axis=0,
            )
        )
        step = large / (1 + abs(large))
        made = np.asarray(g(ost.asarray(large)))
        np.testing.assert_allclose(made, ((step @ y[:, :2].repeat(4, 1).T) ** 2).sum(0), 1e-10)
        assert any(n.op == "blocks" for n in g.plan.lowered.nodes), g.plan.lowered
    with on(1), tempfile.TemporaryDirectory() as folder:  # files, tables and pictures
        f = ost.compile(ours)
        f(x, y)
        path = Path(folder, "toy.plan")
        f.plan.to_file(path)
        again = ost.Plan.from_file(path)
        np.testing.assert_allclose(float(ost.run(again, x, y)), wanted, 1e-12)
        f.plan.draw(Path(folder, "toy.svg"))
        picture, table = Path(folder, "toy.svg").read_text(), f.plan.explain()
        for name in ("toy_turned", "toy_window", "toy_squares"):
            assert name in table, table
            assert name in picture
    with on(1, precision="mixed_bf16"):  # what a product multiplies is rounded
        h = ost.compile(lambda x, y: apply("toy_turned", x, y))
        a, b = x.astype(np.float32), y.astype(np.float32)
        found = np.asarray(h(a, b))
        halves = [np.asarray(ost.asarray(v).astype(ost.bfloat16), np.float32) for v in (a, b)]
        np.testing.assert_array_equal(found, halves[0] @ halves[1].T)
    windows()
    print("all of them work")


if __name__ == "__main__":
    sys.exit(main())
