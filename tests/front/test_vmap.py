"""A function of one element as a function of many: as a loop over the elements gives it."""

from __future__ import annotations

import inspect
import itertools
import pickle
import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.tree import flatten
from ostinato.ops.random.seeds import mix

import ostinato as ost
from ostinato.errors import ArgumentError, BoundsError, OstinatoError, ShapeError
from tests.helpers import assert_same, on
from tests.ops.nodes import SAMPLED, of, same
from tests.ops.samples import Sample
from tests.thorough import few

RNG = np.random.default_rng(7)
MATRIX, ROWS = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 3))


def looped(function: Callable[..., Any], *inputs: Any, axes: Any) -> list[Any]:
    """What the function gives for each element, stacked."""
    size = next(np.shape(x)[a] for x, a in zip(inputs, axes, strict=True) if a is not None)
    made = []
    for k in range(size):
        own = [x if a is None else np.take(x, k, a) for x, a in zip(inputs, axes, strict=True)]
        made.append([np.asarray(y) for y in flatten(function(*map(ost.asarray, own)))[0]])
    return [np.stack(ys) for ys in zip(*made, strict=True)]


def check(function: Callable[..., Any], *inputs: Any, axes: Any = None, out: int = 0) -> None:
    axes = axes or (0,) * len(inputs)
    wanted = looped(function, *inputs, axes=axes)
    mapped = ost.vmap(function, in_axes=axes, out_axes=out)
    for run in (mapped, ost.compile(mapped)):
        found = flatten(run(*map(ost.asarray, inputs)))[0]
        for y, w in zip(found, wanted, strict=True):
            same(np.asarray(y), np.moveaxis(w, 0, out), str(axes))


# -- every operation -------------------------------------------------------------------------
def others(x: Any, k: int) -> Any:
    """Another array of the same kind: places stay inside, definite matrices definite."""
    if x.dtype.kind in "biu":
        return np.roll(x, k, axis=-1) if x.ndim else x
    return (x * (1 + k / 4)).astype(x.dtype)


def mapped_like_a_loop(sample: Sample, chance: random.Random) -> bool:
    """Whether a sample could be mapped; its inputs along axes at random."""
    inputs, axes = [], []
    moving = [chance.random() < 0.7 for _ in sample.inputs]
    if not any(moving):
        moving[chance.randrange(len(moving))] = True
    for x, moves in zip(sample.inputs, moving, strict=True):
        axis = chance.randrange(x.ndim + 1)
        several = np.stack([others(x, k) for k in range(3)], axis)
        inputs.append(several if moves else x)
        axes.append(axis if moves else None)
    out = chance.choice((0, -1))
    try:
        with np.errstate(all="ignore"):
            wanted = looped(sample.function, *inputs, axes=axes)
    except (OstinatoError, np.linalg.LinAlgError, TypeError, ValueError, IndexError):
        return False  # it looks at NumPy arrays, or others have no meaning for it
    if len({w.shape for w in wanted}) == 0:
        return False
    with np.errstate(all="ignore"):
        made = ost.vmap(sample.function, in_axes=tuple(axes), out_axes=out)(
            *map(ost.asarray, inputs)
        )
        for y, w in zip(flatten(made)[0], wanted, strict=True):
            same(np.asarray(y), np.moveaxis(w, 0, out), f"{axes} -> {out}")
    return True


@pytest.mark.parametrize("name", [n for n in SAMPLED if OPS[n].made_by == "users"])
def test_every_operation_is_mapped(name: str) -> None:
    chance = random.Random(zlib.crc32(name.encode()))
    samples = [s for s in of(name) if s.inputs]
    if not samples:
        return  # made of nothing
    done = 0
    for sample in chance.sample(samples, min(few(6), len(samples))):
        done += mapped_like_a_loop(sample, chance)
    assert done, f"no sample of {name} could be mapped"


def test_what_has_no_rule_runs_element_by_element() -> None:
    lines = np.sort(RNG.normal(size=(4, 6)), axis=1)
    check(ost.searchsorted, lines, RNG.normal(size=(4, 3)))
    assert "loop" in operations(ost.vmap(ost.searchsorted), lines, lines)


def test_one_operation_stays_one_operation() -> None:
    """Of elementwise functions, reductions, moves, and products with one matrix for all."""
    for function, inputs, axes, ops in (
        (lambda x: ost.exp(x).sum(), (ROWS,), 0, {"exp", "sum"}),
        (ost.add, (ROWS, RNG.normal(size=(5, 2, 3))), 0, {"reshape", "add"}),
        (lambda x: x.reshape(3, 1).T.sort(), (ROWS,), 0, {"reshape", "permute_dims", "sort"}),
        (lambda w, x: w @ x, (MATRIX, ROWS), (None, 0), {"permute_dims", "matmul"}),
        (lambda x, w: x @ w, (ROWS, MATRIX.T), (0, None), {"matmul"}),
        (ost.linalg.cholesky, (np.stack([np.eye(3)] * 2),), 0, {"cholesky"}),
    ):
        assert operations(ost.vmap(function, in_axes=axes), *inputs) == ops


def operations(function: Callable[..., Any], *inputs: Any) -> set[str]:
    compiled = ost.compile(function)
    compiled(*map(ost.asarray, inputs))
    return {n.op for n in compiled.plan.traced.nodes} - {"iota"}


@pytest.mark.parametrize("flags", [(0, 0), (0, None), (None, 0)])
def test_products_of_stacks(flags: tuple[int | None, int | None]) -> None:
    """Elements are vectors, matrices or stacks of matrices, on either side."""
    shapes = [(3,), (3, 3), (5, 3, 3), (2, 1, 3, 3)]
    for left, right in itertools.product(shapes, shapes):
        inputs = [
            RNG.normal(size=s if axis is None else (4, *s))
            for s, axis in zip((left, right), flags, strict=True)
        ]
        check(ost.matmul, *inputs, axes=flags)
        check(ost.linalg.solve, *inputs, axes=flags) if min(len(left), len(right)) > 1 else None


# -- axes ------------------------------------------------------------------------------------
@pytest.mark.parametrize("out", [0, 1, -1])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (-1, 1), (0, None), (None, 1)])
def test_axes(axes: tuple[int | None, int | None], out: int) -> None:
    a, b = RNG.normal(size=(3, 3)), RNG.normal(size=(3, 3))
    check(lambda x, y: x * 2 - ost.flip(y), a, b, axes=axes, out=out)


def test_trees() -> None:
    x = {"a": MATRIX, "b": [MATRIX * 2, np.arange(4.0)]}
    f = ost.vmap(lambda t, k: {"sum": t["a"].sum() + t["b"][1], "k": k}, in_axes=(0, None))
    made = f(x, 3.0)
    np.testing.assert_allclose(made["sum"], MATRIX.sum(1) + np.arange(4.0))
    np.testing.assert_array_equal(made["k"], [3.0] * 4)
    g = ost.vmap(
        lambda t: (t["a"] + t["b"][1], t["b"][0]),
        in_axes=({"a": 1, "b": [None, None]},),
        out_axes=(1, None),
    )
    given = {"a": MATRIX, "b": [MATRIX, np.arange(4.0)]}
    first, second = g(given)
    np.testing.assert_allclose(first, MATRIX + np.arange(4.0)[:, None])
    np.testing.assert_allclose(second, MATRIX)


def test_arguments_by_name_have_the_axis_first() -> None:
    f = ost.vmap(lambda x, *, y, power: (x + y) ** power)
    np.testing.assert_allclose(f(MATRIX, y=MATRIX, power=2), (2 * MATRIX) ** 2)


def test_nested() -> None:
    f = ost.vmap(ost.vmap(lambda x, y: (x * y).sum(), in_axes=(None, 0)), in_axes=(0, None))
    np.testing.assert_allclose(f(MATRIX, ROWS), MATRIX @ ROWS.T)
    g = ost.vmap(ost.vmap(lambda x: x.cumsum(), in_axes=1, out_axes=1), in_axes=2, out_axes=1)
    x = RNG.normal(size=(3, 4, 5))
    np.testing.assert_allclose(g(x), np.moveaxis(x.cumsum(0), 2, 1))


def test_none_and_no_elements() -> None:
    assert ost.vmap(lambda x: ost.exp(x))(np.zeros((0, 3))).shape == (0, 3)
    assert ost.vmap(lambda x: ost.repeat(3, ost.sin, x))(np.zeros((0, 3))).shape == (0, 3)


def test_layouts() -> None:
    def f(x: Any, w: Any) -> Any:
        return ost.vmap(lambda row: ost.tanh(w @ row).max() + row[1:].sum())(x)

    assert_same(f, lambda x, w: np.tanh(x @ w.T).max(1) + x[:, 1:].sum(1), ROWS, MATRIX)


# -- control flow ----------------------------------------------------------------------------
def test_loops() -> None:
    w = RNG.normal(size=3)
    check(lambda x: ost.repeat(3, lambda s: ost.sin(s) + x * w, x), ROWS)
    check(lambda x: ost.scan(lambda s, y: (s + y, s * y), x[0], x), ROWS)
    check(lambda x: ost.scan(lambda s, y: (s + y, s), 0.0, w * x[0], reverse=True), ROWS)
    check(lambda x: ost.repeat(2, lambda s: (s[1], s[0] + s[1], s[2]), (x, w, 1.0)), ROWS)


def test_loops_that_end_when_data_says_so() -> None:
    def doubled(x: Any, limit: Any) -> Any:
        return ost.while_loop(
            lambda s: (s[0] ** 2).sum() < limit, lambda s: (2 * s[0], s[1] + 1), (x, 0)
        )

    limits = np.array([1.0, 1e6, 0.0, 30.0, 1e3])
    check(doubled, ROWS, limits)
    check(doubled, ROWS, np.asarray(50.0), axes=(0, None))
    check(doubled, ROWS[0], limits, axes=(None, 0))
    check(
        lambda x: ost.while_loop(lambda s: s[1] < 4, lambda s: (s[0] * x, s[1] + 1), (x, 0)), ROWS
    )
    check(lambda x: ost.while_loop(lambda s: s < 100, lambda s: 2 * s, abs(x[0]), most=3), ROWS)


def test_nested_loops_and_conditions() -> None:
    def f(x: Any) -> Any:
        def turn(s: Any) -> Any:
            grown = ost.while_loop(lambda u: u.sum() < 9, lambda u: u + 1, s)
            return ost.cond(grown[0] > 3, lambda u: u / 2, lambda u: u - x, grown)

        return ost.repeat(3, turn, x)

    check(f, ROWS)
    check(
        lambda c, x: ost.cond(c, ost.sin, lambda u: u * 0, x),
        np.asarray(True),
        ROWS,
        axes=(None, 0),
    )
    check(lambda c, x: ost.cond(c, lambda: x, lambda: MATRIX[0]), np.arange(5) > 2, ROWS)


# -- random numbers --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "draw",
    [
        lambda s: ost.random.uniform((3,), seed=s, dtype="float64"),
        lambda s: ost.random.normal((2, 3), seed=s),
        lambda s: ost.random.integers(0, 100, (4,), seed=s),
        lambda s: ost.random.permutation(7, seed=s),
        lambda s: ost.random.categorical(np.zeros(9), shape=(5,), seed=s),
    ],
)
def test_random_numbers(draw: Callable[[Any], Any]) -> None:
    """Each element's own, to the bit what the seeds that are folded give."""
    numbers = np.arange(6)

    def elements() -> Any:
        return ost.vmap(lambda k: draw(None))(numbers)

    ost.random.seed(5)
    found = np.asarray(elements())
    ost.random.seed(5)
    base = np.uint64(mix(5, 1))  # what the first draw would begin with
    wanted = [np.asarray(draw(ost.random.fold(base, int(k)))) for k in numbers]
    np.testing.assert_array_equal(found, np.stack(wanted))
    assert len({x.tobytes() for x in found}) == 6


def test_random_numbers_of_nested_maps_differ() -> None:
    f = ost.vmap(ost.vmap(lambda x: ost.random.uniform((), dtype="float64")))
    found = np.asarray(f(np.zeros((4, 5))))
    assert len(set(found.ravel().tolist())) == 20
    g = ost.vmap(lambda x: ost.scan(lambda s, _: (s, ost.random.uniform(())), 0.0, length=3)[1])
    assert len(set(np.asarray(g(np.zeros(4))).ravel().tolist())) == 12
    compiled = ost.compile(f)
    first, second = (np.asarray(compiled(np.zeros((4, 5)))) for _ in range(2))
    assert not np.intersect1d(first, second).size


def test_seeds_as_elements() -> None:
    seeds = np.arange(4, dtype=np.uint64)
    check(lambda s: ost.random.normal((3,), seed=s, dtype="float64"), seeds)


# -- gradients -------------------------------------------------------------------------------
def loss(w: Any, x: Any) -> Any:
    return ost.tanh(w @ x).sum() ** 2


def test_gradients_of_each_element() -> None:
    wanted = np.stack([np.asarray(ost.grad(loss)(MATRIX, ost.asarray(x))) for x in ROWS])
    found = ost.vmap(ost.grad(loss), in_axes=(None, 0))
    np.testing.assert_allclose(found(MATRIX, ROWS), wanted)
    np.testing.assert_allclose(ost.compile(found)(MATRIX, ROWS), wanted)
    values, slopes = ost.vmap(ost.value_and_grad(loss), in_axes=(None, 0))(MATRIX, ROWS)
    np.testing.assert_allclose(values, [float(loss(ost.asarray(MATRIX), x)) for x in ROWS])
    np.testing.assert_allclose(slopes, wanted)


def test_gradients_through_a_map() -> None:
    def mapped(w: Any, x: Any) -> Any:
        return ost.vmap(loss, in_axes=(None, 0))(w, x).sum()

    def plain(w: Any, x: Any) -> Any:
        return (ost.tanh(x @ w.T).sum(1) ** 2).sum()

    for argnums in (0, 1):
        wanted = ost.grad(plain, argnums)(ost.asarray(MATRIX), ost.asarray(ROWS))
        for run in (ost.grad(mapped, argnums), ost.compile(ost.grad(mapped, argnums))):
            np.testing.assert_allclose(run(MATRIX, ROWS), wanted)
    twice = ost.vmap(ost.grad(lambda x: ost.grad(lambda v: (v**4).sum())(x).sum()))
    np.testing.assert_allclose(twice(ROWS), 12 * ROWS**2)


def test_gradients_through_loops() -> None:
    f = ost.vmap(lambda x: ost.repeat(3, lambda s: s * x + 1, x).sum())
    wanted = [np.asarray(ost.grad(lambda x: f(x[None]).sum())(ost.asarray(x))) for x in ROWS]
    np.testing.assert_allclose(ost.grad(lambda x: f(x).sum())(ROWS), np.stack(wanted))
    g = ost.vmap(ost.grad(lambda x: ost.repeat(3, lambda s: s * x + 1, x).sum()))
    np.testing.assert_allclose(g(ROWS), np.stack(wanted))


def test_checkpoints() -> None:
    f = ost.checkpoint(lambda x: ost.sin(ost.exp(x)))
    check(f, ROWS)
    found = ost.grad(lambda x: ost.vmap(f)(x).sum())(ROWS)
    np.testing.assert_allclose(found, np.cos(np.exp(ROWS)) * np.exp(ROWS))


def test_gradients_of_the_users_own() -> None:
    """The rule is asked for an element, inside the map and outside of it."""

    @ost.custom_gradient
    def clipped(x: Any, w: Any) -> Any:
        return (x * w).sum(), lambda g: (g * w * 100, None)

    def outside(x: Any) -> Any:
        return ost.vmap(clipped, in_axes=(0, None))(x, MATRIX[0]).sum()

    wanted = np.broadcast_to(MATRIX[0] * 100, ROWS.shape)
    np.testing.assert_allclose(ost.grad(outside)(ROWS), wanted)
    inside = ost.vmap(ost.grad(lambda x: clipped(x, ost.asarray(MATRIX[0]))))
    np.testing.assert_allclose(inside(ROWS), wanted)
    nested = ost.vmap(ost.vmap(clipped))
    x = np.stack([ROWS, ROWS])
    found = ost.grad(lambda x: nested(x, ost.stack([ost.asarray(ROWS)] * 2)).sum())(x)
    np.testing.assert_allclose(found, x * 100)


def test_compiled_functions_are_mapped() -> None:
    compiled = ost.compile(lambda x: ost.exp(x).sum())
    np.testing.assert_allclose(ost.vmap(compiled)(ROWS), np.exp(ROWS).sum(1))


# -- errors ----------------------------------------------------------------------------------
def test_errors() -> None:
    f = ost.vmap(lambda x, y: x + y, in_axes=(0, 1))
    with pytest.raises(ShapeError, match=r"4 in argument.* and 3 in argument"):
        f(MATRIX, ROWS)
    with pytest.raises(BoundsError, match="in_axes 0 for an array with 0 axes"):
        ost.vmap(ost.exp)(1.0)
    with pytest.raises(ShapeError, match="nothing that has elements"):
        ost.vmap(ost.exp, in_axes=None)(1.0)
    with pytest.raises(ArgumentError, match=r"in_axes \(0, 0\)"):
        ost.vmap(ost.exp, in_axes=(0, 0))(ROWS)
    with pytest.raises(ArgumentError, match="differs from element to element"):
        ost.vmap(ost.exp, out_axes=None)(ROWS)
    with pytest.raises(OstinatoError, match="while vmap of <lambda> is traced"):
        ost.vmap(lambda x: float(x[0]))(ROWS)


def test_errors_name_the_users_line() -> None:
    f = ost.vmap(lambda a: ost.linalg.inv(a))  # the line
    with pytest.raises(OstinatoError, match="singular") as caught:
        np.asarray(f(np.zeros((2, 3, 3))))
    line = inspect.unwrap(f).__code__.co_firstlineno
    assert f"test_vmap.py:{line}" in str(caught.value)


def test_workers_have_parts_of_the_elements() -> None:
    with on(2):
        x = ost.asarray(np.arange(12.0).reshape(6, 2), split=0)
        y = ost.vmap(lambda v: ost.sort(v * -1))(x)
        assert y.split == 0
        np.testing.assert_allclose(y, np.sort(-np.arange(12.0).reshape(6, 2), 1))


def test_defaults_need_no_axis() -> None:
    """Which a compiled function hands over like what is given."""

    def scaled(x: Any, y: Any, k: float = 2.0) -> Any:
        return (x * y).sum() * k

    x = np.arange(6.0).reshape(3, 2)
    mapped = ost.vmap(scaled, in_axes=(0, None))
    for run in (mapped, ost.compile(mapped)):
        same(np.asarray(run(ost.asarray(x), ost.ones(2))), 2 * x.sum(1), "")
    both = ost.compile(ost.vmap(scaled))
    same(np.asarray(both(ost.asarray(x), ost.asarray(x))), 2 * (x * x).sum(1), "")
    with pytest.raises(ost.errors.ArgumentError, match="in_axes"):
        mapped(x, x[0], x[0])


def test_along_an_axis() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for axis in (0, 1, -1):
        for f in (lambda v: v - v.mean(), lambda v: v.sum(), lambda v: v[:2, None] * v):
            found = ost.apply_along_axis(f, axis, ost.asarray(x))
            same(np.asarray(found), np.apply_along_axis(f, axis, x), str(axis))
    low, high = ost.apply_along_axis(lambda v, n: (v[0], v[n]), 1, x, 2)
    same(np.asarray(high - low), x[:, 2] - x[:, 0], "")


def test_what_mapped_functions_reach_can_be_sent() -> None:
    """cloudpickle sends functions by value, with what they read of their modules."""
    cloudpickle = pytest.importorskip("cloudpickle")
    f = pickle.loads(cloudpickle.dumps(ost.vmap(lambda x: x + 1)))
    np.testing.assert_array_equal(np.asarray(f(np.arange(3))), [1, 2, 3])


def test_vectorize() -> None:
    """As NumPy's, in one call of the function."""
    calls = []

    def f(a: Any, b: Any, power: int = 1) -> Any:
        calls.append(a.shape)
        return ost.where(a > b, a - b, a + b) ** power

    theirs = np.vectorize(lambda a, b: a - b if a > b else a + b)
    x, y = np.arange(6.0).reshape(3, 2), np.asarray([2.0, 3.0])
    same(np.asarray(ost.vectorize(f)(x, y)), theirs(x, y), "")
    same(np.asarray(ost.vectorize(f, excluded={"power"})(x, 2.5, power=2)), theirs(x, 2.5) ** 2, "")
    same(np.asarray(ost.vectorize(f, excluded={2})(x, 2.5, 2)), theirs(x, 2.5) ** 2, "")
    assert len(calls) == 3
    turned = ost.vectorize(lambda a, word: -a if word == "down" else a, excluded={1})
    same(np.asarray(turned(x, "down")), -x, "")
    assert float(ost.vectorize(f)(3.0, 1.0)) == 2
    dots = ost.vectorize(ost.dot, signature="(n),(n)->()")
    same(np.asarray(dots(x[:, None], x)), x @ x.T, "")
    rows = ost.vectorize(lambda m, v: (m @ v, v[:1]), signature="(m,n),(n)->(m),(k)")
    made, first = rows(np.ones((3, 1, 4, 2)), x)
    assert (made.shape, first.shape) == ((3, 3, 4), (3, 3, 1))
    with pytest.raises(ost.errors.ShapeError, match="1 axes at least"):
        dots(1.0, x)
    with pytest.raises(ost.errors.ArgumentError, match="for 2 operands"):
        ost.vectorize(ost.dot, signature="(n)->()")(x, y)
