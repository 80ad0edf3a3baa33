"""Running sums, products and extremes inside kernels in stages: NumPy's bits, and what goes into one kernel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.array.cumulative import running
from ostinato.ops.core.apply import apply
from ostinato.ops.core.registry import OPS, op
from ostinato.ops.core.spec import Spec

import ostinato as ost
from tests import sessions
from tests.helpers import ON_CPU
from tests.planner.test_nests import program_of
from tests.thorough import some

DTYPES = ["float64", "float32", "int64", "int32", "uint8", "bool", "complex64"]
ORDER = {"max": "maximum", "min": "minimum"}


def run(xp: Any, name: str, x: Any, axis: int) -> Any:
    if name in ORDER:
        return getattr(xp, ORDER[name]).accumulate(x, axis=axis)
    return getattr(xp, f"cum{name}")(x, axis=axis)


def drawdown(xp: Any, x: Any, axis: int = 1) -> Any:
    walk = run(xp, "sum", x, axis)
    return (run(xp, "max", walk, axis) - walk).max(axis)


def steps(r: random.Random, ndim: int, dtype: str) -> list[tuple[str, str, int, int, int]]:
    """What to do with which of the values so far, along which axis: mostly with one that is scanned."""
    names = ["sum"] if dtype in ("bool", "complex64") else ["sum", "prod", "max", "min"]
    axis = r.randrange(ndim)
    found = [("run", r.choice(names), axis, 0, 0)]
    for _ in range(r.randint(1, 4)):
        kind = r.choice(["run", "run", "pair", "pair", "less its largest"])
        axes = (axis, axis, axis, r.randrange(ndim))
        name = r.choice([n for n in names if n != "prod"])
        found.append((kind, name, r.choice(axes), r.randrange(9), r.randrange(9)))
    return found


def program(xp: Any, x: Any, todo: list[tuple[str, str, int, int, int]]) -> list[Any]:
    values = [x]
    for kind, name, axis, i, j in todo:
        later = values[1:] or values
        v, w = later[i % len(later)], later[j % len(later)]
        if kind == "run":
            values.append(run(xp, name, v, axis))
        elif kind == "pair" or v.dtype.kind == "c":
            values.append(v * 2 - w)
        else:
            values.append(v - xp.expand_dims(v.max(axis), axis=axis))
    (_, _, axis, i, _), last = todo[0], values[-1]
    results = [last, values[1 + len(values) // 3], last.sum(axis), last.mean(axis), last.sum(0)]
    if last.dtype.kind != "c":
        results += [last.max(axis), last.argmax(axis), last.min()]
    return [*results[:1], *results[1 + i % 2 :: 1 + len(todo) % 2]]


def operand(r: random.Random, dtype: str) -> Any:
    shape = [r.choice([1, 3, 17, 33, 70, 260]) for _ in range(r.randint(1, 2))]
    shape.insert(r.randint(0, len(shape)), r.choice([1024, 1500, 3001]))
    while np.prod(shape) > 300_000:
        shape[shape.index(min(shape))] //= 2
    rng = np.random.default_rng(r.randrange(1 << 30))
    x = rng.standard_normal([max(n, 1) for n in shape])
    x = (rng.integers(0, 4, x.shape) if dtype == "uint8" else 2 * x).astype(dtype)
    if x.dtype.kind == "f" and r.random() < 0.3:
        x[rng.random(x.shape) < 0.01] = np.nan
        x[rng.random(x.shape) < 0.1] = -0.0
    if r.random() < 0.3:
        x = np.asfortranarray(x)
    return np.repeat(x, 2, axis=-1)[..., ::2] if r.random() < 0.2 else x


def check(seed: int) -> bool:
    """A random program against NumPy; whether a kernel in stages had running values."""
    r = random.Random(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    x = operand(r, dtype)
    todo = steps(r, x.ndim, dtype)
    with np.errstate(all="ignore"):
        expected = program(np, x, todo)
    with sessions.use(((1,), (3,), (2,))[seed // 7 % 3]):
        f = ost.compile(lambda x: program(ost, x, todo))
        split = r.randrange(x.ndim) if r.random() < 0.7 else None
        results = [np.asarray(y) for y in f(ost.asarray(x, split=split))]
        graph = f.plan.program.graph
    floats = [np.abs(y[np.isfinite(y)]).max(initial=1) for y in expected if y.dtype.kind in "fc"]
    near = max(floats, default=1) * (1e-11 if dtype == "float64" else 2e-4)
    for n, (y, z) in enumerate(zip(results, expected, strict=True)):
        text = f"{seed}: {n} of {todo}, {x.dtype}{x.shape}"
        assert y.dtype == z.dtype, text
        if y.dtype.kind not in "fc":
            np.testing.assert_array_equal(y, z, text)
        elif np.isfinite(z).all() or dtype == "float64":
            np.testing.assert_allclose(y, z, rtol=1e-3, atol=near, err_msg=text)
    return any(_has_running(n) for n in graph.nodes)


def _has_running(node: Any) -> bool:
    return node.op == "fused_nest" and any(OPS[n.op].element.running for n in node.kw["body"].nodes)


@pytest.mark.parametrize("seed", some(range(60), 9))
def test_random_programs(seed: int) -> None:
    check(seed)


def test_some_of_the_random_programs_are_kernels() -> None:
    assert sum(check(seed) for seed in range(100, 112)) >= 4


# -- what goes together --------------------------------------------------------------------
X = np.random.default_rng(3).standard_normal((2000, 77)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_largest_drawdown_of_random_walks_is_one_kernel(axis: int) -> None:
    x = X if axis else np.ascontiguousarray(X.T)
    graph = program_of(lambda x: drawdown(ost, x, axis), x)
    assert [n.op for n in graph.nodes] == ["fused_nest"]
    for workers in (1, 3):
        with sessions.use((workers,)):
            made = ost.compile(lambda x: drawdown(ost, x, axis))(ost.asarray(x, split=1 - axis))
            near = 0 if ON_CPU else 1e-5  # else lines do not go in NumPy's order
            np.testing.assert_allclose(made, drawdown(np, x, axis), rtol=near)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "elementwise": lambda xp, x: xp.exp(-xp.abs(run(xp, "sum", x * 2, 1))) + 1,
    "what waits for the whole line": lambda xp, x: (
        lambda w: w / xp.expand_dims(w.max(1), axis=1))(run(xp, "sum", x, 1)),
    "over rows": lambda xp, x: (run(xp, "prod", 1 + x / 99, 1) * 3).mean(0),
    "where it was": lambda xp, x: run(xp, "min", x * x, 1).argmin(1),
    "behind a result": lambda xp, x: run(xp, "sum", x - xp.expand_dims(x.mean(1), axis=1), 1).max(1),
    "in three axes": lambda xp, x: run(xp, "max", x.reshape(40, 50, 77) * 2, 1).sum(1),
}  # fmt: skip


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_one_kernel(name: str) -> None:
    function = PROGRAMS[name]
    graph = program_of(lambda x: function(ost, x), X)
    assert [n.op for n in graph.nodes if n.op != "reshape"] == ["fused_nest"]
    with sessions.use():
        made = np.asarray(ost.compile(lambda x: function(ost, x))(ost.asarray(X)))
    np.testing.assert_allclose(made, function(np, X.astype(np.float64)), rtol=1e-3, atol=1e-3)


@pytest.mark.cpu_only
def test_sums_alone_and_few_lines_have_the_kernel_of_their_own() -> None:
    graph = program_of(lambda x: ost.cumsum(x, axis=1), X)
    assert [n.op for n in graph.nodes] == ["cumulative_sum"]
    graph = program_of(lambda x: ost.cumsum(x * 2, axis=1) + 1, X[:20])
    assert "cumulative_sum" in [n.op for n in graph.nodes]


@pytest.mark.cpu_only
def test_lines_of_which_the_cache_has_no_room_for_some_cost_no_other_kernel() -> None:
    x = np.random.default_rng(3).standard_normal((1024, 3000))

    def function(x: Any) -> Any:
        walk = ost.cumsum(ost.nn.softmax(x, axis=1), axis=1)
        return ost.nn.softmax(walk, axis=1)

    ops = [n.op for n in program_of(function, x).nodes]
    assert ops == ["fused_nest", "cumulative_sum", "fused_nest"]


def test_what_an_operation_says_decides() -> None:
    """An operation that says with which monoid it runs is in kernels, whatever it is called."""

    def kernel(xp: Any, out: Any, x: Any, *, axis: int) -> None:
        xp.maximum.accumulate(x, axis=axis, out=out)

    op("seen_so_far", infer=lambda x, *, axis: Spec(x.shape, x.dtype),
       takes=OPS["cumulative_max"].takes, indices=running, running="max", kernel=kernel)  # fmt: skip
    try:
        x = (9 * X).astype(np.int64)
        function = lambda x: (apply("seen_so_far", x, axis=1) - x).sum(1)  # noqa: E731
        graph = program_of(function, x)
        assert [n.op for n in graph.nodes] == ["fused_nest"]
        with sessions.use():
            made = np.asarray(ost.compile(function)(ost.asarray(x)))
        np.testing.assert_array_equal(made, (np.maximum.accumulate(x, axis=1) - x).sum(1))
    finally:
        del OPS["seen_so_far"]


def test_vmap_and_gradients_of_kernels_with_running_sums() -> None:
    with sessions.use():
        mapped = ost.compile(ost.vmap(lambda row: drawdown(ost, row, 0)))
        near = 0 if ON_CPU else 1e-5
        np.testing.assert_allclose(mapped(ost.asarray(X)), drawdown(np, X), rtol=near)
        assert [n.op for n in mapped.plan.program.graph.nodes] == ["fused_nest"]

        def loss(x: Any) -> Any:
            return ost.sum(ost.tanh(ost.cumsum(x, axis=1) / 9) * ost.cumulative_max(x, axis=1))

        x = X.astype(np.float64)
        slope = np.asarray(ost.compile(ost.grad(loss))(ost.asarray(x)))
        for row, column in ((0, 0), (9, 50), (1999, 76)):
            low, high = x.copy(), x.copy()
            low[row, column] -= 1e-6
            high[row, column] += 1e-6
            f = ost.compile(lambda rows: loss(rows))
            near = slice(row, row + 1)
            change = (float(f(high[near])) - float(f(low[near]))) / 2e-6
            assert abs(slope[row, column] - change) < 1e-5
