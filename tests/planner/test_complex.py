"""Complex numbers in generated kernels: random programs against NumPy, what becomes one kernel, and
functions where their real parts would overflow."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.loops import flat
from ostinato.ops.jit.loops import loops_over
from ostinato.ops.jit.scalar import numbers
from ostinato.planner.cpu import fuse as rule

import ostinato as ost
from tests.planner.test_any_layout import RELAXED, run_and_compare
from tests.planner.test_fuse import ops
from tests.planner.test_nests import make_small_things_count
from tests.planner.test_numerics import bits
from tests.programs import Program
from tests.sessions import MESHES, use
from tests.thorough import few

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
LARGEST = 6.0  # of a program's values, so that each function is smooth where it is taken
Step = Callable[[Any, Any, Any], Any]  # of a namespace and two values

# Sums keep their axes; roots and logarithms are taken away from their cuts, quotients from poles.
STEPS: dict[str, Step] = {
    "add": lambda xp, a, b: (a + b) * 0.5,
    "subtract": lambda xp, a, b: a - b * (0.25 - 0.5j),
    "multiply": lambda xp, a, b: a * b / 4,
    "divide": lambda xp, a, b: a / (b + (8 + 1j)),
    "reciprocal": lambda xp, a, b: 4 / (a - 9j),
    "negative conj": lambda xp, a, b: -xp.conj(a),
    "exp": lambda xp, a, b: xp.exp(a / 4) + xp.expm1(b / 8),
    "log": lambda xp, a, b: xp.log(a + 9) + xp.log10(b + 9),
    "sqrt": lambda xp, a, b: xp.sqrt(a + 9),
    "sin": lambda xp, a, b: xp.sin(a / 4) - xp.cos(b / 4),
    "sinh": lambda xp, a, b: xp.sinh(a / 4) * xp.cosh(b / 8),
    "tanh": lambda xp, a, b: xp.tanh(a / 8) + xp.tan(b / 8),
    "cube": lambda xp, a, b: a**3 / 32,
    "abs": lambda xp, a, b: xp.abs(a) * 1j + b * 0.5,
    "sign": lambda xp, a, b: xp.sign(a + 9) - b * 0.5,
    "angle": lambda xp, a, b: xp.angle(a + 9) + b * 0.5,
    "parts": lambda xp, a, b: a.real * b.imag * 0.25 + 1j * a.imag,
    "to complex": lambda xp, a, b: xp.astype(a.real, np.complex128) - b.imag,
    "where": lambda xp, a, b: xp.where(xp.isfinite(a) & (b == b) & (a != 99), a, b),
    "turned": lambda xp, a, b: a[::-1].T[:, ::-1].T,
    "sum": lambda xp, a, b: xp.sum(a * 0.125, axis=-1, keepdims=True),
    "mean": lambda xp, a, b: a - xp.mean(a, axis=0, keepdims=True),
    "inner": lambda xp, a, b: xp.sum(xp.conj(a) * b, axis=(0, 1), keepdims=True) / 64,
    "product": lambda xp, a, b: xp.einsum("ij,ij->j", a, a)[None] / 16,
}


def make_program(r: random.Random, length: int = 6) -> Program:
    """Values that broadcast to one matrix, none of them large."""
    rng = np.random.default_rng(r.getrandbits(32))
    shape = r.choice([(1, 1), (3, 5), (17, 4), (40, 3), (9, 70), (5, 130)])
    shapes = [shape, (1, shape[1]), shape, (shape[0], 1)][: r.randint(2, 4)]
    program = Program([rng.normal(size=s) + 1j * rng.normal(size=s) for s in shapes])
    values: list[Any] = list(program.inputs)
    for _ in range(length):
        name = r.choice([*STEPS])
        step, a, b = STEPS[name], len(values) - 1, r.randrange(len(values))
        a = a if r.random() < 0.6 else r.randrange(len(values))
        made = np.asarray(step(np, values[a], values[b]))
        if np.abs(made).max() <= LARGEST:
            values.append(made)
            ours, theirs = (
                lambda x, y, f=step: f(ost, x, y),
                lambda x, y, f=step: f(np, x, y),
            )
            program.steps.append((name, (a, b), ours, theirs))
    first = len(program.inputs)
    program.outputs = sorted({len(values) - 1, r.randrange(first, len(values) + 1) - 1})
    return program


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_random_programs(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small, in any layout."""
    make_small_things_count(monkeypatch)
    monkeypatch.setattr(rule, "MIN_FUSED_ELEMENTS", 0)

    @settings(RELAXED, max_examples=few(24))
    @given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
    def check(r: random.Random, mesh: tuple[int, ...]) -> None:
        run_and_compare(r, make_program(r), mesh, numerics)

    check()


@pytest.mark.parametrize("split", [0, 1])
def test_any_number_of_workers_gives_the_same_bits(
    split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "MIN_FUSED_ELEMENTS", 0)
    a, b = sample(403, 7), sample(403, 7)[::-1]
    found = []
    for mesh in ((1,), (3,), (2, 2)):
        with use(mesh, "any-workers"):
            x, y = ost.asarray(a, split=split), ost.asarray(b, split=split)
            z = ost.exp(x * y) / (y + 9)
            results = z, ost.sum(z, axis=0), ost.sum(z, axis=1), ost.mean(abs(z) * z)
            found.append([bits(r) for r in results])
    assert found[0] == found[1] == found[2]


def sample(*shape: int, dtype: Any = np.complex64) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def compare(got: Any, wanted: Any) -> None:
    """In units of what rounds, of the largest."""
    assert got.dtype == wanted.dtype
    eps = float(np.finfo(wanted.dtype).eps)
    np.testing.assert_allclose(got, wanted, rtol=20 * eps, atol=20 * eps * np.abs(wanted).max())


KERNELS: dict[str, tuple[Step, list[str]]] = {
    "elementwise": (
        lambda xp, a, b: abs(xp.exp(a * b) / (a + 5)) + a.real * a.imag,
        ["fused"],
    ),
    "sums of rows": (lambda xp, a, b: xp.sum(xp.exp(a) * b, axis=1), []),
    "a sum": (lambda xp, a, b: (a * b).mean(), ["fused_rows"]),
    "what a sum is for": (
        lambda xp, a, b: a / xp.sqrt(xp.sum(abs(a) ** 2, axis=1, keepdims=True)) * b,
        ["fused_nest"],
    ),
    "sums of columns": (lambda xp, a, b: xp.sum(a * b, axis=0), ["fused_nest"]),
    "one part, which lies there": (lambda xp, a, b: a.imag * 2, ["imag_part", "fused"]),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("columns", [7, 8, 130])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_what_is_one_kernel(name: str, columns: int, dtype: Any) -> None:
    function, wanted = KERNELS[name]
    a, b = sample(3000, columns, dtype=dtype), sample(3000, columns, dtype=dtype)[::-1]
    with use():
        f = ost.compile(lambda x, y: function(ost, x, y))
        compare(np.asarray(f(ost.asarray(a), ost.asarray(b))), function(np, a, b))
        found = {n.op for n in f.plan.program.graph.nodes}
        assert found >= {*wanted}, found
        assert found.isdisjoint({"exp", "multiply", "abs", "divide", "add", "sum", "mean"})


def test_a_part_that_products_read_is_looked_at() -> None:
    """Also where kernels read the whole."""
    a = sample(400, 130)
    with use():
        f = ost.compile(lambda x: x.real @ x.real.T + ost.mean(abs(x)))
        compare(np.asarray(f(ost.asarray(a))), a.real @ a.real.T + abs(a).mean())
        assert {"real_part", "fused_rows"} <= {n.op for n in f.plan.program.graph.nodes}


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
def test_products_of_lines(dtype: Any) -> None:
    """Each of many lines with one other: no library does so few at once."""
    a = sample(5000, 8)
    a = a.astype(dtype) if dtype != np.float32 else a.real.copy()
    with use():
        f = ost.compile(lambda x, y: ost.einsum("ij,ij->i", x, y))
        got = np.asarray(f(ost.asarray(a), ost.asarray(a[::-1])))
        compare(got, np.einsum("ij,ij->i", a, a[::-1]))
        assert f.plan.program.graph.nodes[0].op == "fused_nest"


def test_numpy_keeps_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NumPy's own bits are asked for, sums are a kernel's and products are not."""
    monkeypatch.setattr("ostinato.settings.math", "libm")
    a = sample(40000)
    with ost.connect(1):
        f = ost.compile(lambda x: x * (x + 1) - x)
        compare(np.asarray(f(ost.asarray(a))), a * (a + 1) - a)
        assert ops(f.plan.program.graph) == ["fused(add)", "multiply", "fused(subtract)"]


def test_functions_where_real_ones_are_infinite() -> None:
    """exp(x) is too large here, exp(x) times a sine is not; nor are lengths, whose squares are."""
    for dtype, top, large in ((np.complex128, 709.0, 1e300), (np.complex64, 88.0, 1e38)):
        y = np.pi / 2 - np.array([1e-3, -1e-3, 1e-2], dtype(0).real.dtype)
        z = np.resize(np.array([1, -1])[:, None] * (top + 2) + 1j * y, 30000).astype(dtype)
        far = np.resize([large * (1 + 2j), -large * 1j, (3 + 4j) / large], 30000).astype(dtype)
        wide = [z.astype(np.clongdouble), far.astype(np.clongdouble)]
        tiny = float(np.finfo(dtype).tiny)
        with use():
            for name, x, exact in (
                *(("exp", z, wide[0]), ("sinh", z, wide[0]), ("cosh", z, wide[0])),
                *(("abs", far, wide[1]), ("sqrt", far, wide[1]), ("log", far, wide[1])),
            ):
                got = np.asarray(ost.compile(getattr(ost, name))(x))
                wanted = getattr(np, name)(exact)
                for part in ("real", "imag"):
                    with np.errstate(over="ignore"):
                        g, w = getattr(got, part), getattr(wanted, part).astype(got.real.dtype)
                    usual = np.isfinite(w) & (np.abs(w) >= tiny)
                    eps = np.finfo(dtype).eps
                    np.testing.assert_allclose(g[usual], w[usual], 40 * eps, 0, err_msg=name)
                    np.testing.assert_array_equal(g[np.isinf(w)], w[np.isinf(w)], err_msg=name)


def test_logarithms_of_what_is_near_one() -> None:
    """Their real part is as good as all others."""
    turn = np.random.default_rng(0).uniform(-3, 3, 30000)
    for dtype in (np.complex64, np.complex128):
        z = (np.exp(1j * turn) * (1 + 1e-6 * np.cos(9 * turn))).astype(dtype)
        wanted = np.log(z.astype(np.clongdouble)).real
        with use():
            got = np.asarray(ost.compile(lambda v: ost.log(v))(z)).real
        usual = np.abs(wanted) > 1e-9
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(got[usual], wanted[usual].astype(got.dtype), 4 * eps)
        small = sample(30000, dtype=dtype) * dtype(1e-3)
        wide = small.astype(np.clongdouble)
        wanted = np.log1p(2 * wide.real + abs(wide) ** 2) / 2
        with use():
            got = np.asarray(ost.compile(lambda v: ost.log1p(v))(small)).real
        usual = np.abs(wanted) > 1e-9
        np.testing.assert_allclose(got[usual], wanted[usual].astype(got.dtype), 4 * eps)


def test_slopes_of_lengths_are_one_kernel() -> None:
    """Directions, whose conjugates they are, are made beside them."""
    a = sample(20000)
    with use():
        f = ost.compile(ost.grad(lambda z: ost.sum(abs(z) ** 3)))
        compare(np.asarray(f(ost.asarray(a))), (3 * abs(a) * np.conj(a)).astype(a.dtype))
        assert [n.op for n in f.plan.program.graph.nodes] == ["fused"]


@pytest.mark.parametrize("step", [1, 2, 3, -1])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_large_results_and_steps(dtype: Any, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that go past the caches, operands that are put side by side first, several threads."""
    monkeypatch.setattr(flat, "_last_cache", lambda: 1 << 12)

    def function(x: Any) -> tuple[Any, Any]:
        x = x[::step]
        return x * 3 + x.real, abs(x)

    a = np.tile(sample(7, dtype=dtype), 9001)
    with use(threads=2):
        made, size = ost.compile(function)(ost.asarray(a))
        for got, wanted in zip((made, size), function(a), strict=True):
            compare(np.asarray(got), wanted)


def test_numbers_are_data() -> None:
    """Kernels that differ in them only share their machine code."""

    def body(value: complex) -> Graph:
        builder = Builder([Spec((9,), np.dtype(np.complex64))])
        c = builder.call("constant", value=value, dtype=np.dtype(np.complex64))
        return builder.graph([builder.call("multiply", 0, c)])

    for value, data in ((2.5 + 3.5j, [0, 1]), (2.5 + 0j, [0]), (1j, []), (-1.5j, [1])):
        graph = body(value)
        assert [part for _, part in numbers(graph)] == data
        loops = loops_over((9,), [(8,), (8,)])
        assert (flat.kernel_text(graph, loops) == flat.kernel_text(body(0.7 - 0.7j), loops)) == (
            len(data) == 2
        )
    a, b = sample(20000), sample(200, 100)
    with use():
        f = ost.compile(lambda x, y: (ost.sum(x * (0.7 - 3j) + 3.3j), ost.mean(y * 3.3j, axis=0)))
        total, mean = map(np.asarray, f(ost.asarray(a), ost.asarray(b)))
        compare(total, (a * np.complex64(0.7 - 3j) + np.complex64(3.3j)).sum())
        compare(mean, (b * np.complex64(3.3j)).mean(0))


def test_powers_are_products() -> None:
    a = sample(20000, dtype=np.complex128)
    with use():
        for power in (lambda x: x**3, lambda x: x**5, lambda x: x**8, lambda x: x**16.0):
            f = ost.compile(power)
            compare(np.asarray(f(ost.asarray(a))), power(a))
            assert [n.op for n in f.plan.program.graph.nodes] == ["fused"]
