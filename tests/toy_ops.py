"""One op of each kind, registered here as a family would: each is one block, and nothing else knows it.

What planner, runtime and gradients do with ops must work for these as well; test_toy_ops.py runs this
file in a process of its own, as ops stay registered."""

from __future__ import annotations

import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.core.apply import apply, as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.index import Indices, Window, pointwise
from ostinato.ops.core.monoid import MONOIDS, Monoid, lowest
from ostinato.ops.core.parameters import AXIS, unfit
from ostinato.ops.core.registry import Params, Place, Product, Reduce, Specs, op
from ostinato.ops.core.spec import Spec

import ostinato as ost
from tests.helpers import MESHES, on, splits_of

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
    print("all of them work")


if __name__ == "__main__":
    sys.exit(main())
