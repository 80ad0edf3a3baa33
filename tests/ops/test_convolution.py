"""Convolutions and pools: random windows against NumPy, in every layout, and their gradients."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.apply import apply
from ostinato.ops.cpu import natives
from ostinato.ops.cpu.libraries import onednn, onednn_conv
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, DTypeError, ShapeError
from tests.helpers import assert_same, on

from . import windows_by_numpy as by_numpy
from .test_gradients import check, pullback

LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def some_conv(
    draw: random.Random, k: int
) -> tuple[Any, Any, dict[str, Any], list[tuple[int, int]]]:
    rng = np.random.default_rng(draw.randrange(1 << 30))
    groups, ins, outs = draw.choice(((1, 3, 2), (2, 2, 1), (3, 1, 2), (4, 1, 1), (1, 1, 1)))
    dilation, stride, sizes = (tuple(draw.choices((1, 2, 3), k=k)) for _ in range(3))
    space = tuple([d * (m - 1) + draw.randint(1, 5) for d, m in zip(dilation, sizes, strict=True)])
    pads = [(draw.randint(0, 2), draw.randint(0, 2)) for _ in range(k)]
    x = rng.normal(size=(draw.randint(1, 3), groups * ins, *space))
    w = rng.normal(size=(groups * outs, ins, *sizes))
    return x, w, {"stride": stride, "dilation": dilation, "groups": groups}, pads


@pytest.mark.parametrize("seed", range(9))
def test_convolutions(seed):
    draw = random.Random(seed)
    k = seed % 3 + 1
    x, w, p, pads = some_conv(draw, k)
    wanted = by_numpy.conv(x, w, p["stride"], pads, p["dilation"], p["groups"])
    assert_same(
        lambda x, w: ost.nn.conv(x, w, padding=pads, **p), lambda *_: wanted, x, w, few=True
    )
    last = f"N{LETTERS[k]}C"
    with on(1):
        found = ost.nn.conv(
            np.moveaxis(x, 1, -1), np.moveaxis(w, (1, 0), (-2, -1)), padding=pads, layout=last, **p
        )
        np.testing.assert_allclose(np.moveaxis(np.asarray(found), -1, 1), wanted, 1e-11, 1e-11)
        function = lambda x, w: ost.nn.conv(x, w, padding=pads, **p)  # noqa: E731
        check(function, x, w)
        check(pullback(function), x, w, rtol=1e-5)
        two = np.stack([x, 2 - x]), np.stack([w, w + 1])
        for axes in ((0, None), (None, 0), (0, 0)):
            given = [two[i] if axis == 0 else (x, w)[i] for i, axis in enumerate(axes)]
            made = ost.compile(ost.vmap(function, axes))
            for j, y in enumerate(np.asarray(made(*given))):
                a, b = (v if axis is None else v[j] for v, axis in zip(given, axes, strict=True))
                whole = by_numpy.conv(a, b, p["stride"], pads, p["dilation"], p["groups"])
                np.testing.assert_allclose(y, whole, 1e-11, 1e-11)
            assert [n.op for n in made.plan.traced.nodes].count("conv") == 1


@pytest.mark.parametrize("seed", range(6))
def test_transposed_ones_are_slopes_of_convolutions(seed):
    draw = random.Random(100 + seed)
    x, w, p, pads = some_conv(draw, seed % 3 + 1)

    def forward(x: Any) -> Any:
        return ost.nn.conv(x, w, padding=pads, **p)

    y = forward(ost.asarray(x))
    g = np.random.default_rng(seed).normal(size=y.shape)
    wanted = ost.grad(lambda x: (forward(x) * g).sum())(ost.asarray(x))
    reaches = [d * (m - 1) + 1 for d, m in zip(p["dilation"], w.shape[2:], strict=True)]
    given = zip(x.shape[2:], y.shape[2:], p["stride"], pads, reaches, strict=True)
    more = [n - ((e - 1) * s - sum(pad) + r) for n, e, s, pad, r in given]
    found = ost.nn.conv_transpose(g, w, padding=pads, output_padding=more, **p)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), 1e-11, 1e-11)


def test_same_padding_and_bias():
    x, w = np.random.default_rng(0).normal(size=(1, 2, 7, 7)), np.ones((3, 2, 3, 2))
    y = ost.nn.conv(x, w, np.arange(3.0), stride=(2, 3), padding="SAME")
    assert y.shape == (1, 3, 4, 3)
    pads = [(1, 1), (0, 1)]
    wanted = by_numpy.conv(x, w, (2, 3), pads, (1, 1)) + np.arange(3)[:, None, None]
    np.testing.assert_allclose(np.asarray(y), wanted)
    assert ost.nn.conv_transpose(y, w, stride=(2, 3), padding="same").shape == (1, 2, 8, 9)


@pytest.mark.parametrize("seed", range(9))
def test_pools(seed):
    draw = random.Random(200 + seed)
    k = seed % 3 + 1
    rng = np.random.default_rng(seed)
    sizes, stride, dilation = (tuple(draw.choices((1, 2, 3), k=k)) for _ in range(3))
    reaches = [d * (m - 1) + 1 for d, m in zip(dilation, sizes, strict=True)]
    pads = [(draw.randint(0, (r - 1) // 2), draw.randint(0, (r - 1) // 2)) for r in reaches]
    x = rng.normal(size=(2, 3, *(r + draw.randint(0, 5) for r in reaches)))
    for ceil in (False, True):
        options = {"stride": stride, "dilation": dilation, "padding": pads, "ceil_mode": ceil}
        y = ost.nn.max_pool(x, sizes, **options)
        extents = y.shape[2:]
        for n, e, s, r, pad in zip(x.shape[2:], extents, stride, reaches, pads, strict=True):
            assert (e - 1) * s < n + pad[0]  # a window that begins in what is there
            assert (e - 1) * s + r <= n + sum(pad) + (s - 1) * ceil
        wanted = by_numpy.pool(x, np.max, sizes, stride, pads, dilation, extents)
        assert_same(
            lambda x, o=options: ost.nn.max_pool(x, sizes, **o),
            lambda x, y=wanted: y,
            x,
            few=True,
        )
        check(lambda x, o=options: ost.nn.max_pool(x, sizes, **o), x)
        mean = by_numpy.pool(x, np.nanmean, sizes, stride, pads, dilation, extents)
        apart = lambda x, o=options: ost.nn.avg_pool(x, sizes, count_include_pad=False, **o)  # noqa: E731
        np.testing.assert_allclose(np.asarray(apart(x)), mean, 1e-11, 1e-11)
        check(apart, x)
        zeros = np.pad(x, [(0, 0), (0, 0), *pads])
        mean = by_numpy.pool(zeros, np.nanmean, sizes, stride, [(0, 0)] * k, dilation, extents)
        whole = ost.nn.avg_pool(x, sizes, **options)
        np.testing.assert_allclose(np.asarray(whole), mean, 1e-11, 1e-11)
    check(pullback(lambda x: ost.nn.max_pool(x, sizes, **options)), x, rtol=1e-5)


def test_equal_maxima_share_slopes():
    slope = ost.grad(lambda x: ost.nn.max_pool(x, 2).sum())(ost.asarray([[[1.0, 1.0, 0.0, 2.0]]]))
    assert np.asarray(slope).tolist() == [[[0.5, 0.5, 0, 1]]]


def test_pools_of_all_sizes():
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 9))
    for size in (1, 2, 7, (3, 9), (5, 4)):
        m = (size, size) if isinstance(size, int) else size
        cuts = [
            [slice(i * n // e, -(-(i + 1) * n // e)) for i in range(e)]
            for n, e in zip(x.shape[2:], m, strict=True)
        ]
        for name, by in (("avg", np.mean), ("max", np.max)):
            function = getattr(ost.nn, f"adaptive_{name}_pool")
            wanted = np.stack(
                [np.stack([by(x[:, :, a, b], (2, 3)) for b in cuts[1]], -1) for a in cuts[0]], -2
            )
            np.testing.assert_allclose(np.asarray(function(x, size)), wanted, 1e-12, 1e-12)
            check(lambda x, f=function, s=size: f(x, s), x)
    np.testing.assert_allclose(np.asarray(ost.nn.global_avg_pool(x)), x.mean((2, 3)))
    last = ost.nn.global_max_pool(np.moveaxis(x, 1, -1), layout="NHWC")
    np.testing.assert_array_equal(np.asarray(last), x.max((2, 3)))


# -- what plans make of them -----------------------------------------------------------------
def network(x: Any, w: Any) -> Any:
    return ost.nn.max_pool(ost.nn.conv(x, w, padding=1, stride=(2, 1)), 3, stride=2, padding=1)


def test_workers_send_halos_only():
    w = ost.spec((64, 64, 3, 3), "float32")
    for workers in (2, 3, 5, 6):
        for split in (0, 2, 3):
            x = ost.spec((32, 64, 960, 960), "float32", split=split)
            kinds = {
                *facts(ost.plan(network, x, w, mesh=(workers,), machine="h200-ib"))["collectives"]
            }
            assert kinds == ({"halo"} if split else set()), (workers, split)
    slopes = ost.grad(lambda x, w: (network(x, w) ** 2).sum(), (0, 1))
    for split in (0, 2):
        x = ost.spec((32, 64, 960, 960), "float32", split=split)
        kinds = {*facts(ost.plan(slopes, x, w, mesh=(4,), machine="h200-ib"))["collectives"]}
        assert kinds <= {"halo", "all_reduce"}, split
    x = ost.spec((32, 64, 960, 960), "float32", split=(2, 3))
    assert {*facts(ost.plan(network, x, w, mesh=(2, 3), machine="h200-ib"))["collectives"]} == {
        "halo"
    }


def test_a_chain_turns_images_at_its_ends_only():
    def chain(x: Any, ws: Any, b: Any) -> Any:
        for w in ws:
            x = ost.nn.relu(ost.nn.conv(x, w, b, padding=1))
        return ost.nn.conv(ost.nn.max_pool(x, 2), ws[0])

    with on(1):
        f = ost.compile(chain)
        rng = np.random.default_rng(0)
        ws = [rng.normal(size=(16, 16, 3, 3)).astype(np.float32) / 12 for _ in range(9)]
        x = rng.normal(size=(2, 16, 12, 12)).astype(np.float32)
        f(x, ws, np.ones(16, np.float32))
        graph = f.plan.program.graph
        assert sum(n.op in ("conv", "fused_product") for n in graph.nodes) == 10
        turned = [
            n for n in graph.nodes if n.op == "permute_dims" and n.specs[0].shape[0] == len(x)
        ]
        assert len(turned) == 2, graph


def test_the_same_bits_on_any_workers():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 40, 17, 9)).astype(np.float32)
    w = rng.normal(size=(24, 40, 3, 3)).astype(np.float32)
    bits = set()
    for workers in (1, 2, 3, 5):
        with on(workers, numerics="any-workers"):
            for split in (1, 2):
                function = ost.compile(lambda x, w: ost.nn.conv(x, w, padding=1, stride=(2, 1)))
                bits.add(np.asarray(function(ost.asarray(x, split=split), w)).tobytes())
                assert "ordered_conv" in [n.op for n in function.plan.lowered.nodes]
    assert len(bits) == 1


def test_halves():
    x, w, p, pads = some_conv(random.Random(6), 2)
    a, b = x.astype(np.float32), w.astype(np.float32)
    halves = [np.asarray(ost.asarray(v).astype(ost.bfloat16), np.float32) for v in (a, b)]
    wanted = by_numpy.conv(*halves, p["stride"], pads, p["dilation"], p["groups"])
    with on(1, precision="mixed_bf16"):
        found = ost.compile(lambda x, w: ost.nn.conv(x, w, padding=pads, **p))(a, b)
        np.testing.assert_allclose(np.asarray(found), wanted, 1e-5, 1e-5)
    for dtype in ("bfloat16", "float16"):
        low = [ost.asarray(v, dtype=dtype) for v in (a, b)]
        found = ost.nn.conv(*low, padding=pads, **p)
        assert found.dtype.name == dtype
        np.testing.assert_allclose(np.asarray(found).astype(float), wanted, 0.05, 0.05)
    assert np.asarray(ost.nn.conv(np.ones((1, 1, 3), int), np.ones((1, 1, 2), int))).tolist() == [
        [[2, 2]]
    ]


def test_what_does_not_fit_is_said():
    x, w = np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3))
    with pytest.raises(ShapeError, match="1 to 3 axes of space"):
        ost.nn.conv(x[0, 0], w)
    with pytest.raises(ArgumentError, match="NCHW"):
        ost.nn.conv(x, w, layout="NCWW")
    with pytest.raises(ShapeError, match="OIHW beside channels first"):
        ost.nn.conv(x, w, groups=2)
    with pytest.raises(DTypeError, match="real numbers"):
        ost.nn.conv(x + 1j, w)
    with pytest.raises(ArgumentError, match="stride"):
        ost.nn.conv(x, w, stride=0)
    with pytest.raises(ArgumentError, match="padding"):
        ost.nn.conv(x, w, padding="full")
    with pytest.raises(ArgumentError, match="no window is empty"):
        ost.nn.max_pool(x, 2, padding=2)
    with pytest.raises(ShapeError, match="channels and groups"):
        apply("conv", ost.ones((1, 3, 1, 2)), ost.ones((2, 3, 1, 1)), strides=(1,), dilation=(1,),
              offsets=(0,), every=(1,), extents=(2,))  # fmt: skip


# -- oneDNN ----------------------------------------------------------------------------------
LARGER = [  # images, filters, strides, padding, dilation, groups
    ((4, 16, 12, 13), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((18, 8, 12, 13), (8, 4, 3, 3), (2, 1), (1, 0), (1, 2), 2),
    ((2, 3, 31, 31), (32, 3, 7, 7), (2, 2), (3, 3), (1, 1), 1),
    ((2, 32, 9, 9), (32, 1, 3, 3), (1, 1), (1, 1), (1, 1), 32),
    ((5, 16, 9, 9), (16, 1, 2, 2), (1, 1), (0, 1), (1, 1), 16),
    ((1, 16, 23, 9), (16, 16, 3, 3), (2, 1), (1, 1), (1, 1), 1),
    ((3, 16, 8, 8), (8, 16, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((5, 4, 20), (6, 4, 3), (2,), (1,), (1,), 1),
    ((2, 4, 6, 7, 8), (5, 4, 3, 3, 3), (1, 2, 1), (1, 1, 1), (1, 1, 1), 1),
    ((4, 1, 14, 13), (32, 1, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    ((8, 64, 2, 2), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((4, 128, 2, 2), (64, 128, 1, 1), (1, 1), (0, 0), (1, 1), 1),
]


@pytest.fixture
def algorithms(monkeypatch):
    """What the library took: kinds, and names."""
    if isinstance(onednn.library(), str):
        pytest.skip(onednn.library())
    monkeypatch.setattr(settings, "tune", "off")  # which may find that NumPy is as quick
    made = []

    def told(owner: Any, conv: Any, narrow: Any, *forms: Any, **more: Any) -> Any:
        found = algorithm(owner, conv, narrow, *forms, **more)
        made.append((conv.kind, onednn._name(owner, found)))
        return found

    algorithm = onednn_conv._algorithm
    monkeypatch.setattr(onednn_conv, "_algorithm", told)
    return made


@pytest.mark.parametrize("case", LARGER)
def test_by_onednn(case, algorithms):
    """Forward and both backwards are three primitives, of whole images and of workers' parts, and none
    by an algorithm that a signal's handler may spoil."""
    shape, filters, stride, padding, dilation, groups = case
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=shape), rng.normal(size=filters)
    pads = [(p, p) for p in padding]
    wanted = by_numpy.conv(x, w, stride, pads, dilation, groups)
    g = rng.normal(size=wanted.shape)

    def function(x: Any, w: Any, g: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            y = ost.nn.conv(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
            return (y * g).sum(), y

        (_, y), slopes = ost.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return y, *slopes

    with on(1):
        exact = [np.asarray(v) for v in ost.compile(function)(x, w, g)]
        np.testing.assert_allclose(exact[0], wanted, 1e-11, 1e-11)
        assert not algorithms
    low = [v.astype(np.float32) for v in (x, w, g)]
    for workers in (1, 2, 3):
        with on(workers):
            algorithms.clear()
            for split in (None, 0, 2):
                found = ost.compile(function)(ost.asarray(low[0], split=split), *low[1:])
                for y, exactly in zip(found, exact, strict=True):
                    scale = np.abs(exactly).max()
                    np.testing.assert_allclose(np.asarray(y), exactly, 0, 2e-6 * scale)
            kinds = {kind for kind, _ in algorithms}
            if shape[1] > workers:
                assert kinds == {"forward", "data", "weights"}
            elif shape[1] == 1:  # of which slopes of images are few filters' (test_conv_ways.py)
                assert kinds >= {"forward", "weights"}
            else:  # a worker may have one of several channels of slopes, which lies apart
                assert "forward" in kinds
            names = {name for _, name in algorithms}
            assert all(name.startswith(onednn_conv._GOOD) for name in names), names


def test_parts_of_images_by_onednn(algorithms):
    """Each worker's part is one call, which knows where it begins."""
    x, w = (np.random.default_rng(k).normal(size=(2, 8, 40, 40)) for k in (0, 1))
    x, w = x.astype(np.float32), np.concatenate([w] * 4)[:, :, :3, :3].astype(np.float32)
    wanted = by_numpy.conv(x.astype(float), w.astype(float), (1, 1), [(1, 1)] * 2, (1, 1))
    for workers in (2, 3):
        with on(workers):
            function = ost.compile(lambda x, w: ost.nn.conv(x, w, padding=1, layout="NCHW"))
            algorithms.clear()
            found = function(ost.asarray(x, split=2), w)
            np.testing.assert_allclose(np.asarray(found), wanted, 1e-3, 1e-4)
            assert "halo" in facts(function.plan)["collectives"]
            assert algorithms
            assert len(algorithms) % workers == 0


@pytest.mark.parametrize("precision", ["mixed_bf16", "as-written"])
def test_halves_by_onednn(precision, algorithms):
    """Forward and both slopes, by halves where the processor has them, and summed in single precision."""
    rng = np.random.default_rng(1)
    x, w, b = (
        rng.normal(size=s).astype(np.float32) for s in ((8, 16, 9, 9), (16, 16, 3, 3), (16,))
    )
    has_halves = onednn.can_widen(
        np.dtype(ost.bfloat16), np.dtype(ost.bfloat16), np.dtype("float32")
    )

    def step(x: Any, w: Any, b: Any) -> Any:
        def loss(x: Any, w: Any, b: Any) -> Any:
            return (ost.nn.relu(ost.nn.conv(x, w, b, padding=1)) ** 2).mean()

        made, slopes = ost.value_and_grad(loss, (0, 1, 2))(x, w, b)
        return made, *slopes

    with on(1):
        exact = [
            np.asarray(v) for v in ost.compile(step)(*(v.astype(np.float64) for v in (x, w, b)))
        ]
    dtype = "bfloat16" if precision == "as-written" else "float32"
    for workers in (1, 2):
        algorithms.clear()
        with on(workers, precision=precision):
            operands = [ost.asarray(v).astype(dtype) for v in (x, w, b)]
            found = ost.compile(step)(*operands)
        for y, exactly in zip(found, exact, strict=True):
            scale = np.abs(exactly).max()
            np.testing.assert_allclose(np.asarray(y).astype(float), exactly, 0, 0.03 * scale)
        if has_halves:
            assert {kind for kind, _ in algorithms} == {"forward", "data", "weights"}


def test_the_same_by_products(monkeypatch):
    """Where the library is missing."""
    x, w = np.ones((2, 3, 6, 6), np.float32), np.ones((4, 3, 3, 3), np.float32)
    by_library = np.asarray(ost.compile(lambda x, w: ost.nn.conv(x, w, padding=1))(x, w))

    def unable(*_: Any, **__: Any) -> None:
        raise onednn.Unable("there is none")

    monkeypatch.setattr(natives, "onednn_conv", unable)
    by_products = np.asarray(ost.compile(lambda x, w: ost.nn.conv(x, w, padding=(1, 1)) + 0)(x, w))
    np.testing.assert_array_equal(by_library, by_products)


def test_pools_and_convolutions_are_built_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(self: Any) -> bool:
        raise AssertionError("a value is asked for")

    x, w = ost.ones((1, 2, 4, 4)), ost.ones((2, 2, 3, 3))
    monkeypatch.setattr(type(x), "__bool__", asked)
    ost.nn.conv(x, w, padding=1)
    for pool in (ost.nn.max_pool, ost.nn.avg_pool):
        pool(x, 2, padding=1)
    for over in (ost.nn.adaptive_max_pool, ost.nn.adaptive_avg_pool):
        over(x, 3)


def test_slopes_of_filters_are_a_product_for_each_of_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the filters are small, and the images that they are multiplied by are windows of hundreds."""
    from ostinato.ops.nn import convolution

    seen: list[tuple[int, ...]] = []
    before = convolution._by_results

    def counted(xp: Any, made: Any, *more: Any) -> None:
        seen.append(made.shape)
        before(xp, made, *more)

    monkeypatch.setattr(convolution, "_by_results", counted)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(3, 2, 2, 2))

    def loss(w: Any) -> Any:
        return (ost.nn.conv_transpose(x, w, stride=2) ** 2).sum()

    slope = np.asarray(ost.grad(loss)(w))
    assert [s[1:3] for s in seen] == [(2, 2)]
    step = 1e-6 * rng.normal(size=w.shape)
    wanted = float(loss(w + step)) - float(loss(w - step))
    assert float((slope * step).sum()) == pytest.approx(wanted / 2, rel=1e-5)
