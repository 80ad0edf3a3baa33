"""Norms against NumPy: random shapes, orders of axes and layouts, their gradients and their kernels."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.tree import flatten

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.helpers import assert_same, on

from .test_gradients import check, pullback

LETTERS = {0: "", 1: "W", 2: "HW", 3: "DHW"}
RNG = np.random.default_rng(6)


def normed(x: Any, axes: Any, eps: float) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def beside(v: Any, x: Any) -> Any:
    """Numbers for the channels of what has them first."""
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def batch(x: Any, scale: Any, bias: Any, eps: float = 1e-5) -> Any:
    axes = (0, *range(2, x.ndim))
    y = normed(x, axes, eps) * beside(scale, x) + beside(bias, x)
    return y, x.mean(axes), x.var(axes)


def group(x: Any, groups: int, scale: Any, bias: Any, eps: float = 1e-5) -> Any:
    parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    y = normed(parts, tuple(range(2, parts.ndim)), eps).reshape(x.shape)
    return y * beside(scale, x) + beside(bias, x)


def response(x: Any, size: int, alpha: float, beta: float, k: float) -> Any:
    n, total = x.shape[1], np.zeros_like(x)
    for c in range(n):
        total[:, c] = (x[:, max(c - (size - 1) // 2, 0) : c + size // 2 + 1] ** 2).sum(1)
    return x / (k + alpha * total) ** beta


def any_order(layout: str) -> Any:
    """Takes and gives images as `layout` says, as if channels came first."""
    axes = [layout.index(c) for c in "NC" + LETTERS[len(layout) - 2]]
    there = lambda x: np.transpose(x, axes)  # noqa: E731
    back = lambda y: np.transpose(y, np.argsort(axes))  # noqa: E731
    return there, back


@pytest.mark.parametrize("seed", range(8))
def test_norms_of_channels(seed: int) -> None:
    draw = random.Random(seed)
    k = seed % 4
    letters = list("NC" + LETTERS[k])
    if k:
        draw.shuffle(letters)
    layout = "".join(letters)
    there, back = any_order(layout)
    groups, each = draw.choice(((1, 3), (2, 2), (3, 1)))
    shape = [{"N": 3, "C": groups * each}.get(c) or draw.randint(2, 4) for c in letters]
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 3 + 1
    scale, bias, mean = (rng.normal(size=groups * each) for _ in range(3))
    var, eps = rng.uniform(0.5, 2, groups * each), draw.choice((1e-5, 0.1))
    p: dict[str, Any] = {"eps": eps, "layout": layout}

    def given(x: Any, m: Any, v: Any, s: Any, b: Any) -> Any:
        z = there(x)
        y = (z - beside(m, z)) / np.sqrt(beside(v, z) + eps)
        return back(y * beside(s, z) + beside(b, z))

    def trained(x: Any, s: Any, b: Any) -> Any:
        y, *rest = batch(there(x), s, b, eps)
        return back(y), *rest

    size, alpha, beta, more = draw.randint(1, 6), 0.3, draw.choice((0.75, 0.6)), 1.5
    near: dict[str, Any] = {"size": size, "alpha": alpha, "beta": beta, "k": more, "layout": layout}
    cases: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (lambda *a: ost.nn.batch_norm(*a, **p), given, (x, mean, var, scale, bias)),
        (lambda *a: ost.nn.batch_norm_train(*a, **p), trained, (x, scale, bias)),
        (
            lambda x, s, b: ost.nn.group_norm(x, groups, s, b, **p),
            lambda x, s, b: back(group(there(x), groups, s, b, eps)),
            (x, scale, bias),
        ),
        (
            lambda x: ost.nn.local_response_norm(x, divide=False, **near),
            lambda x: back(response(there(x), size, alpha, beta, more)),
            (x,),
        ),
    ]
    if k:
        cases.append(
            (
                lambda x, s, b: ost.nn.instance_norm(x, s, b, **p),
                lambda x, s, b: back(group(there(x), groups * each, s, b, eps)),
                (x, scale, bias),
            )
        )
    for function, reference, inputs in cases:
        assert_same(function, reference, *inputs, few=True)
        with on(1):
            check(function, *inputs, rtol=1e-5)
            two = [np.stack([a, a + 0.5]) for a in inputs]
            found = ost.vmap(function)(*two)
            for j in range(2):
                wanted = reference(*(a[j] for a in two))
                for a, b in zip(flatten(found)[0], flatten(wanted)[0], strict=True):
                    np.testing.assert_allclose(np.asarray(a)[j], b, 1e-10, 1e-10)


@pytest.mark.parametrize(
    ("layout", "count", "samples"),
    [("NC", 6, 2), ("NCW", 7, 3), ("NHWC", 5, 1), ("CNW", 4, 9), ("NDHWC", 6, 4)],
)
def test_statistics_of_so_many_samples_at_a_time(layout: str, count: int, samples: int) -> None:
    """What workers with so many samples would do; what is left over is a group, too."""
    there, back = any_order(layout)
    rng = np.random.default_rng(count)
    x = rng.normal(size=[{"N": count, "C": 3}.get(c, 3) for c in layout]) * 3 + 1
    scale, bias = rng.normal(size=(2, 3))

    def reference(x: Any, s: Any, b: Any) -> Any:
        z = there(x)
        cuts = range(0, count, samples)
        made = [batch(z[k : k + samples], s, b) for k in cuts]
        shares = [len(z[k : k + samples]) / count for k in cuts]
        rest = [sum(w * m[j] for w, m in zip(shares, made, strict=True)) for j in (1, 2)]
        return back(np.concatenate([y for y, *_ in made])), *rest

    def function(x: Any, s: Any, b: Any) -> Any:
        return ost.nn.batch_norm_train(x, s, b, layout=layout, samples=samples)

    assert_same(function, reference, x, scale, bias, few=True, meshes=(((3,), 2), ((2, 2), 2)))
    with on(1):
        check(function, x, scale, bias, rtol=1e-5)
        two = ost.vmap(function)(*(np.stack([a, a + 0.5]) for a in (x, scale, bias)))
        for a, b in zip(two, reference(x + 0.5, scale + 0.5, bias + 0.5), strict=True):
            np.testing.assert_allclose(np.asarray(a)[1], b, 1e-10, 1e-10)
        model = ost.nn.BatchNorm(3, layout=layout, samples=samples).init(dtype="float64")
        y, new = model.apply(x)
        plain, mean, var = reference(x, np.ones(3), np.zeros(3))
        np.testing.assert_allclose(y, plain, 1e-10, 1e-10)
        np.testing.assert_allclose(new.running_mean, 0.1 * mean)
        n = there(x)[:samples, 0].size
        np.testing.assert_allclose(new.running_var, 0.9 + 0.1 * var * n / max(n - 1, 1))
        np.testing.assert_allclose(new(x), new.replace(samples=None)(x))


def test_groups_within_workers_need_no_messages() -> None:
    """Statistics of a whole batch are one sum over workers, forward and back; those of groups that workers
    have whole are none. Images are gone through as often."""
    x = ost.spec((32, 64, 56, 56), "float32", split=0)
    s = ost.spec(64, "float32")

    def sums(samples: int | None, slopes: bool) -> int:
        def loss(x: Any, s: Any, b: Any) -> Any:
            return (ost.nn.batch_norm_train(x, s, b, samples=samples)[0] ** 3).sum()

        norm = lambda x, s, b: ost.nn.batch_norm_train(x, s, b, samples=samples)[0]  # noqa: E731
        plan = ost.plan(ost.grad(loss) if slopes else norm, x, s, s, mesh=4, machine="h200-ib")
        sent = [n.kw.get("collective", n.op) for n in plan.lowered.nodes]
        assert not {"all_gather", "all_to_all", "halo"} & set(sent)
        return sent.count("all_reduce")

    for slopes in (False, True):
        assert sums(None, slopes) > 0
        assert [sums(n, slopes) for n in (8, 4, 1)] == [0, 0, 0]
    a, one = RNG.normal(size=(12, 8, 10, 10)), np.ones(8)
    total = lambda x, s: (ost.nn.batch_norm_train(x, s, samples=4)[0] ** 3).sum()  # noqa: E731
    with on(1):
        assert len(passes(total, a, one)) <= 2
        assert len(passes(ost.grad(total, (0, 1)), a, one)) <= 3


def test_second_gradients() -> None:
    x, s = RNG.normal(size=(3, 4, 3)), RNG.normal(size=4)
    with on(1):
        check(pullback(lambda x, s: ost.nn.batch_norm_train(x, s)[0]), x, s, rtol=1e-5)
        check(pullback(ost.nn.rms_norm), x, RNG.normal(size=3), rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0, (0, 2)])
def test_rms_norm(axis: Any) -> None:
    def reference(x: Any, s: Any) -> Any:
        return x / np.sqrt((x * x).mean(axis, keepdims=True) + 1e-6) * s

    x, s = RNG.normal(size=(3, 4, 5)), RNG.normal(size=5)
    assert_same(lambda x, s: ost.nn.rms_norm(x, s, axis=axis), reference, x, s)
    with on(1):
        check(lambda x, s: ost.nn.rms_norm(x, s, axis=axis), x, s, rtol=1e-5)


def test_divided_or_not() -> None:
    """Caffe's alpha is for the mean of the squares, that of AlexNet's paper for their sum."""
    x = RNG.normal(size=(2, 7, 3))
    for divide, alpha in ((True, 0.2), (False, 1.0)):
        made = ost.nn.local_response_norm(x, 5, 1.0, k=2.0, divide=divide)
        np.testing.assert_allclose(np.asarray(made), response(x, 5, alpha, 0.75, 2.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_statistics_of_halves_are_wide(dtype: str) -> None:
    """Squares of 300 are no halves; a mean of 200 has few digits there."""
    rough = ost.asarray(RNG.normal(size=(4, 6, 8)) * 100 + 200, dtype=dtype)
    x, one, zero = np.asarray(rough).astype(float), np.full(6, 0.5), np.ones(6)
    y, mean, var = ost.nn.batch_norm_train(rough, one, zero)
    assert (y.dtype, mean.dtype, var.dtype) == (rough.dtype, ost.float32, ost.float32)
    exact, centre, spread = batch(x, one, zero)
    np.testing.assert_allclose(np.asarray(mean), centre, 1e-5)
    np.testing.assert_allclose(np.asarray(var), spread, 1e-5)
    by_given = ost.nn.batch_norm(rough, mean, var, one, zero)
    columns = normed(x, 2, 1e-5)
    for found, wanted in (
        (y, exact),
        (by_given, exact),
        (ost.nn.group_norm(rough, 2, one, zero), group(x, 2, one, zero)),
        (ost.nn.instance_norm(rough), columns),
        (ost.nn.layer_norm(rough), columns),
        (ost.nn.rms_norm(rough), x / np.sqrt((x * x).mean(2, keepdims=True))),
        (ost.nn.local_response_norm(rough, alpha=1.0), response(x, 5, 0.2, 0.75, 1.0)),
    ):
        assert found.dtype == rough.dtype
        tolerance = 1e-5 if dtype == "float32" else float(ost.finfo(dtype).eps)
        np.testing.assert_allclose(
            np.asarray(found).astype(float), wanted, tolerance, tolerance / 10
        )


def passes(function: Any, x: Any, *more: Any) -> list[str]:
    """What goes through values as large as `x`, without views and moves of filters."""
    made = ost.compile(function)
    ost.tree_map(np.asarray, made(*map(ost.asarray, (x, *more))))
    graph = made.plan.program.graph
    moves = ("constant", "reshape", "expand_dims", "broadcast_to")
    return [
        n.op
        for n in graph.nodes
        if n.op not in moves
        and max(s.size for s in (*n.specs, *(graph.specs[v] for v in n.inputs))) >= x.size
    ]


def test_norms_are_few_kernels() -> None:
    """Statistics and what they are for; the way back makes its sums in one pass. Between convolutions
    nothing is transposed."""
    x, s, b = RNG.normal(size=(8, 64, 10, 10)), np.ones(64), np.zeros(64)
    w = RNG.normal(size=(64, 64, 3, 3))

    def total(x: Any, s: Any, b: Any, layout: str) -> Any:
        return (ost.nn.batch_norm_train(x, s, b, layout=layout)[0] ** 3).sum()

    def net(x: Any, w: Any, s: Any, b: Any) -> Any:
        for _ in range(2):
            x = ost.nn.conv(x, w, padding=1)
            x = ost.nn.relu(ost.nn.batch_norm_train(x, s, b)[0])
        return (x * x).sum()

    with on(1):
        for layout, z in (("NCHW", x), ("NHWC", np.ascontiguousarray(np.moveaxis(x, 1, -1)))):
            by = lambda x, s, b, at=layout: total(x, s, b, at)  # noqa: E731
            assert len(passes(by, z, s, b)) <= 2
            assert len(passes(ost.grad(by, (0, 1, 2)), z, s, b)) <= 3
            near = lambda x, at=layout: ost.nn.local_response_norm(x, layout=at)  # noqa: E731
            assert len(passes(near, z)) == 1
            assert len(passes(ost.grad(lambda x, f=near: (f(x) ** 2).sum()), z)) <= 2
        ops = passes(net, x, w, s, b)
        assert (ops[0], ops.count("permute_dims")) == ("permute_dims", 1)
        assert len(ops) <= 3 + 4
        ops = passes(ost.grad(net, (1, 2, 3)), x, w, s, b)
        assert ops.count("conv") == 5
        moves = ("conv", "permute_dims", "barrier")
        assert [op for op in ops if op not in moves] == ["fused_nest"] * 3


A = ost.ones((2, 6, 3))
WRONG = [
    (lambda: ost.nn.group_norm(A, 4), ArgumentError, "group_norm.*got groups=4 of 6 channels"),
    (lambda: ost.nn.batch_norm(A, [1.0], [1.0]), ShapeError, r"got mean .*; needed shape \(6,\)"),
    (
        lambda: ost.nn.batch_norm_train(A, ost.ones(3)),
        ShapeError,
        r"batch_norm_train.*got scale .*\(6,\): one number",
    ),
    (
        lambda: ost.nn.batch_norm_train(A, samples=0),
        ArgumentError,
        "batch_norm_train.*got samples=0; needed one whole number of 1 or more",
    ),
    (
        lambda: ost.nn.BatchNorm(6, samples=2.0),
        ArgumentError,
        "BatchNorm.*got samples=2.0; needed a",
    ),
    (lambda: ost.nn.instance_norm(A[0]), ShapeError, "an array of 2 axes; needed samples, ch"),
    (lambda: ost.nn.batch_norm_train(A, layout="NHWC"), ArgumentError, "needed the letters NCW"),
    (lambda: ost.nn.local_response_norm(A, 0), ArgumentError, "got size=0"),
]


@pytest.mark.parametrize(("run", "error", "text"), WRONG, ids=[str(k) for k in range(len(WRONG))])
def test_wrong(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run()
    assert f"test_nn_norms.py:{run.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_groups_are_put_together_of_channels(layout: str) -> None:
    """Nothing as large as the images is taken apart into groups, whose channels lie apart if they are last."""
    x = RNG.normal(size=(3, 16, 24, 32))
    g = RNG.normal(size=x.shape)
    norm = lambda x: ost.nn.group_norm(x, 4, layout=layout)  # noqa: E731
    back = ost.compile(lambda x, g: ost.vjp(norm, x)[1](g)[0])
    with on(1):
        back(x, g)
        shapes = [s.shape for n in back.plan.program.graph.nodes for s in n.specs]
    assert {len(shape) for shape in shapes if np.prod(shape) == x.size} == {4}
