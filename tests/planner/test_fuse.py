"""The pass that makes one kernel of elementwise operations."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu.fused import FUSED
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.loops import flat, stages
from ostinato.ops.jit.scalar import Part, numbers
from ostinato.planner.cpu import fuse as rule
from ostinato.planner.title import title

import ostinato as ost
from ostinato import settings
from tests.helpers import ON_CPU
from tests.planner.test_any_layout import RELAXED, run_and_compare
from tests.planner.test_nests import make_small_things_count
from tests.programs import make_program
from tests.sessions import MESHES, use

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason=llvm.why_not())
ROWS = np.random.default_rng(0).normal(size=(200, 300))
ROWS.flags.writeable = False  # so that what captures it need not be told of writes


def program_of(function: Any, *inputs: Any, mesh: tuple[int, ...] = (1,), **options: Any) -> Graph:
    with use(mesh):
        f = ost.compile(function, **options)
        f(*(ost.asarray(x, split=0) for x in inputs))
        return f.plan.program.graph


def ops(graph: Graph) -> list[str]:
    return [title(n) for n in graph.nodes if n.op not in ("constant", "wait")]


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_random_programs_however_small(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_small_things_count(monkeypatch)
    monkeypatch.setattr(rule, "MIN_FUSED_ELEMENTS", 0)

    @RELAXED
    @given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
    def check(r: random.Random, mesh: tuple[int, ...]) -> None:
        run_and_compare(r, make_program(r, 6), mesh, numerics)

    check()


def test_a_chain_is_one_kernel_and_needs_no_memory() -> None:
    with use():
        f = ost.compile(lambda x: ost.exp(ost.tanh(x) * 2 + 1) - x)
        y = f(ost.asarray(ROWS))
        assert ops(f.plan.program.graph) == ["fused(tanh, multiply, add, ... 5 operations)"]
        assert f.plan.arena_bytes == 0
        np.testing.assert_allclose(np.asarray(y), np.exp(np.tanh(ROWS) * 2 + 1) - ROWS, rtol=1e-13)


def test_several_results_and_what_is_read_elsewhere() -> None:
    def function(x: Any) -> Any:
        y = ost.exp(x)
        z = y * 2
        return z.sum(0), y, z - x

    with use():
        f = ost.compile(function)
        total, y, z = (np.asarray(v) for v in f(ost.asarray(ROWS)))
        assert ops(f.plan.program.graph) == ["fused(exp, multiply, sum, subtract)"]
        np.testing.assert_allclose(y, np.exp(ROWS), rtol=1e-14)
        np.testing.assert_allclose(z, 2 * np.exp(ROWS) - ROWS, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(total, 2 * np.exp(ROWS).sum(0))


@pytest.mark.cpu_only
def test_nothing_joins_what_runs_before_it_is_known() -> None:
    """The product stands between: two kernels, in the right order."""
    graph = program_of(lambda x: ost.tanh((ost.exp(x) @ x.T) * 0.5) + 1, ROWS)
    assert [n.split("(")[0] for n in ops(graph)] == ["fused", "permute_dims", "matmul", "fused"]
    graph = program_of(lambda x: ost.exp(x) * 2 + (ost.sort(ost.exp(x), axis=0) + 1), ROWS)
    assert ops(graph) == ["fused(exp, multiply)", "sort", "fused(add)"]


def test_operands_are_read_as_they_lie() -> None:
    """Transposed, sliced, repeated: no copies."""

    def function(x: Any) -> Any:
        return (x[::-2, 1:101].T * 2 - x[:100, None, 7]) * ost.broadcast_to(x[0, :100], (100, 100))

    with use():
        f = ost.compile(function)
        y = np.asarray(f(ost.asarray(ROWS)))
        assert "copy" not in ops(f.plan.program.graph)
        wanted = (ROWS[::-2, 1:101].T * 2 - ROWS[:100, None, 7]) * ROWS[0, :100]
        np.testing.assert_array_equal(y, wanted)


def test_loops_and_views_of_what_they_carry() -> None:
    def turn(s: Any) -> Any:
        return s.T * 0.5 + ost.exp(-ost.abs(s))

    with use():
        x = ROWS[:, :200]
        f = ost.compile(lambda x: ost.repeat(3, turn, x))
        g = ost.compile(
            lambda x: ost.repeat(3, turn, x.T[::-1])
        )  # begins elsewhere than it goes on
        h = ost.compile(lambda x: ost.scan(lambda s, v: (s + v * 2, ost.tanh(s) * v), x[0] * 0, x))
        y, z = x, x.T[::-1]
        for _ in range(3):
            y, z = (v.T * 0.5 + np.exp(-np.abs(v)) for v in (y, z))
        np.testing.assert_allclose(np.asarray(f(ost.asarray(x))), y, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(g(ost.asarray(x))), z, rtol=1e-12)
        end, steps = h(ost.asarray(x))
        s = np.zeros(200)
        for v, found in zip(x, np.asarray(steps), strict=True):
            np.testing.assert_allclose(found, np.tanh(s) * v, rtol=1e-12, atol=1e-14)
            s = s + v * 2
        np.testing.assert_allclose(np.asarray(end), s, rtol=1e-12)


@pytest.mark.cpu_only
def test_small_plans_stay_with_numpy() -> None:
    assert "fused" not in [n.op for n in program_of(lambda x: ost.exp(x) + 1, ROWS[:2, :3]).nodes]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_any_workers_the_same_bits(workers: int) -> None:
    def function(x: Any) -> Any:
        y = ost.tanh(x) * ost.exp(-x) + ost.log1p(ost.abs(x))
        return y, ost.nn.softmax(y, axis=1), (y * 2).sum(0)

    found = []
    for mesh in ((1,), (workers,)):
        with use(mesh, "any-workers"):
            made = ost.compile(function)(ost.asarray(ROWS, split=0))
            found.append([np.asarray(v).tobytes() for v in made])
    assert found[0] == found[1]


def test_functions_of_numpy(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """They stay out of kernels, the rest does not; it is another plan, also in its file."""
    function = lambda x: ost.pow(ost.exp(x * 2 + 1), 3) / 2 + ost.sqrt(ost.abs(x))  # noqa: E731
    own = program_of(function, ROWS)
    assert len(ops(own)) == 1
    with use():
        f = ost.compile(function)
        f(ost.asarray(ROWS))
    monkeypatch.setattr(settings, "math", "libm")
    with ost.connect():
        g = ost.compile(function)
        y = np.asarray(g(ost.asarray(ROWS)))
        names = ops(g.plan.program.graph)
        assert [n for n in names if not n.startswith("fused")] == ["exp", "pow"]
        assert "fused(multiply, add)" in names
        wanted = np.exp(ROWS * 2 + 1) ** 3 / 2 + np.sqrt(np.abs(ROWS))
        np.testing.assert_allclose(y, wanted, rtol=0 if ON_CPU else 1e-14)  # else it is CUDA's
        assert g.plan.id != f.plan.id
        assert "math libm" in str(g.plan)
        assert "math" in g.plan.diff(f.plan)
        g.plan.to_file(tmp_path / "plan")
    monkeypatch.setattr(settings, "math", "own")
    again = ost.Plan.from_file(tmp_path / "plan")
    assert again.id == g.plan.id
    assert ops(again.program.graph) == names


def test_a_file_holds_the_graph_without_kernels(tmp_path: Any) -> None:
    with use((2,)):
        f = ost.compile(lambda x: (ost.exp(x) * 2 + 1).sum(0) @ ost.tanh(x).T)
        x = ost.asarray(ROWS, split=0)
        wanted = np.asarray(f(x))
        f.plan.to_file(tmp_path / "plan")
        assert b"fused" not in (tmp_path / "plan").read_bytes()
        again = ost.Plan.from_file(tmp_path / "plan")
        assert again.id == f.plan.id
        assert ops(again.program.graph) == ops(f.plan.program.graph)
        np.testing.assert_array_equal(np.asarray(ost.run(again, x)), wanted)


@pytest.mark.cpu_only
def test_without_machine_code_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    function = lambda x: ost.exp(x) * 2 + ost.nn.gelu(x)  # noqa: E731
    fused = program_of(function, ROWS)
    assert len(ops(fused)) < 4
    monkeypatch.setattr(rule, "why_not", lambda: "no compiler today")
    with ost.connect():
        f = ost.compile(function)
        y = np.asarray(f(ost.asarray(ROWS)))
        assert "fused" not in [n.op for n in f.plan.program.graph.nodes]
    with use():
        np.testing.assert_allclose(
            y, np.asarray(ost.compile(function)(ost.asarray(ROWS))), rtol=1e-13
        )


def test_the_kernel_of_numpy_agrees() -> None:
    """What runs where strides are not known."""
    function = lambda x: (ost.nn.gelu(x) * 2, ost.where(x > 0, x, -x), (x * x).max(1))  # noqa: E731
    with use():
        f = ost.compile(function)
        wanted = [np.asarray(v) for v in f(ost.asarray(ROWS))]
        (node,) = f.plan.program.graph.nodes
    outs = tuple(np.empty(s.shape, s.dtype) for s in node.specs)
    ost.ops.lookup(node.op).kernel(np, outs, ROWS, body=node.kw["body"])
    for made, value in zip(outs, wanted, strict=True):
        np.testing.assert_allclose(made, value, rtol=1e-12, atol=1e-15)


def test_the_peak_is_known() -> None:
    with use():
        f = ost.compile(lambda x: (ost.exp(x) @ ost.tanh(x).T).sum())
        f(ost.asarray(ROWS))
        assert f.plan.arena_bytes >= 2 * ROWS.nbytes
        assert "fused(exp, tanh)" in f.plan.explain()


# -- rows ----------------------------------------------------------------------------------
def test_reductions_join_what_they_reduce() -> None:
    """Squared distances: none of the large intermediate."""
    with use():
        g = ost.compile(lambda x, c: ((x[:, None] - c[None]) ** 2).sum(-1))
        c = ROWS[:9]
        d = np.asarray(g(ost.asarray(ROWS), ost.asarray(c)))
        np.testing.assert_allclose(d, ((ROWS[:, None] - c[None]) ** 2).sum(-1), rtol=1e-12)
        assert [n for n in ops(g.plan.program.graph) if "sum" in n] == [
            "fused(subtract, square, sum)"
        ]
        assert g.plan.arena_bytes < 4096


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
def test_rows_and_totals_on_any_layout(mesh: tuple[int, ...]) -> None:
    def function(x: Any) -> Any:
        y = ost.exp(x) * 0.5
        return y.sum(), y.mean(1), y.max(), (x * x).sum((0, 1)), y.min(1), y

    with use(mesh):
        for split in (None, 0, 1):
            f = ost.compile(function)
            found = [np.asarray(v) for v in f(ost.asarray(ROWS, split=split))]
            y = np.exp(ROWS) * 0.5
            wanted = (y.sum(), y.mean(1), y.max(), (ROWS * ROWS).sum(), y.min(1), y)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_result_is_not_written_over_what_other_rows_read() -> None:
    """An operand of the result's shape that every row reads keeps its memory."""
    x = np.random.default_rng(1).normal(size=(150, 150))

    def function(x: Any, b: Any) -> Any:
        return (x * (b + 1)).sum(1)

    with use():
        f = ost.compile(function)
        found = np.asarray(f(ost.asarray(x), ost.asarray(x[0])))
        np.testing.assert_allclose(found, (x * (x[0] + 1)).sum(1), rtol=1e-12, atol=1e-12)


def test_gradients_through_rows() -> None:
    def loss(x: Any) -> Any:
        return (ost.nn.log_softmax(x, axis=1) * ROWS).sum() + ost.nn.layer_norm(x).max(1).mean()

    with use():
        x = ost.asarray(ROWS)
        g = np.asarray(ost.compile(ost.grad(loss))(x))
        rng = np.random.default_rng(3)
        d = rng.normal(size=ROWS.shape)
        f = ost.compile(loss)
        slope = (float(f(ROWS + 1e-6 * d)) - float(f(ROWS - 1e-6 * d))) / 2e-6
        np.testing.assert_allclose((g * d).sum(), slope, rtol=1e-5)


@pytest.mark.cpu_only
def test_a_forked_child_does_not_wait_for_threads(tmp_path: Any) -> None:
    code = """
import os, signal, numpy as np, ostinato as ost
f = ost.compile(lambda x: ost.exp(x) * 2 + 1)
x = ost.asarray(np.ones(3_000_000))
f(x)
child = os.fork()
if child == 0:
    signal.alarm(60)
    g = ost.compile(lambda x: ost.tanh(x) * 2 + ost.exp(x))
    assert abs(float(f(x)[1]) - 6.43656) < 1e-4 and abs(float(g(x)[1]) - 4.24147) < 1e-4
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert abs(float(f(x)[1]) - 6.43656) < 1e-4
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


# -- numbers -------------------------------------------------------------------------------
MORE = np.random.default_rng(1).normal(size=(1500, 400))  # enough for a kernel in stages


def shifted(x: Any, c: float) -> Any:
    return ost.exp(-((x - c) ** 2)) * c + 1 / c


def of_rows(x: Any, c: float) -> Any:
    return ((x * c - 0.7) * x).mean(1)


def in_stages(x: Any, c: float) -> Any:
    y = x * c
    e = ost.exp(y - y.max(1)[:, None])
    return e * c / e.mean(1)[:, None]


def of_integers(x: Any, c: float) -> Any:
    return x.astype("int32") * int(100 * c) + ost.where(x > c, 7, int(999 * c))


LAYERS = (shifted, of_rows, in_stages, of_integers)


@pytest.mark.cpu_only
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_differ_in_numbers_share_their_machine_code(layer: Any) -> None:
    llvm._made.clear()
    with use((1,)):
        for k in range(9):
            f = ost.compile(functools.partial(lambda k, x: layer(x, 1.33 + k / 10), k))
            f(ost.asarray(MORE[k:]))
            assert [n.op in FUSED for n in f.plan.program.graph.nodes].count(True) == 1
    assert len(llvm._made) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", LAYERS)
def test_numbers_as_data_give_the_bits_of_numbers_in_the_text(
    layer: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[bytes]:
        with use((1,)):
            x = ost.asarray(MORE.astype(dtype))
            made = ost.compile(lambda x: [layer(x, c) for c in (1.3, 0.1, 3.0, 2.5, 1e-3)])(x)
            return [np.asarray(y).tobytes() for y in made]

    as_data = found()
    for room in (flat, stages):
        monkeypatch.setattr(room, "numbers", lambda body: counts(body))
    assert found() == as_data


def counts(body: Graph) -> dict[Part, int]:
    """What means divide by, alone."""
    found = numbers(body)
    return {p: b for p, b in found.items() if body.nodes[body.producers[p[0]]].op == "mean"}


@pytest.mark.parametrize("number", [0.0, -1.0, 0.5, 4096.0, float("inf"), float("nan")])
def test_numbers_without_a_mantissa_stay_in_the_text(number: float) -> None:
    builder = Builder([Spec((9,), np.dtype("float64"))])
    c = builder.call("constant", value=number, dtype=np.dtype("float64"))
    assert numbers(builder.graph([builder.call("multiply", 0, c)])) == {}


def test_what_an_operation_is_better_for_knowing_stays_in_the_text() -> None:
    for op, kind in (("pow", "f8"), ("floor_divide", "i8"), ("bitwise_left_shift", "i8")):
        builder = Builder([Spec((9,), np.dtype(kind))])
        c = builder.call("constant", value=3, dtype=np.dtype(kind))
        assert numbers(builder.graph([builder.call(op, 0, c)])) == {}
        assert len(numbers(builder.graph([builder.call("add", 0, c)]))) == 1
        row = builder.call("expand_dims", c, axes=(0,))
        assert numbers(builder.graph([builder.call(op, 0, row)])) == {}, "nor behind a view"


@pytest.mark.cpu_only
def test_small_chains_are_kernels_beside_large_ones() -> None:
    small = np.linspace(0, 1, 1500)
    large = np.linspace(0, 1, 100_000)

    def f(x: Any) -> Any:
        return ost.exp(x * 0.5) + x

    alone = ost.compile(lambda x: f(x))
    alone(ost.asarray(small))
    assert [n.op for n in alone.plan.program.graph.nodes].count("fused") == 0
    beside = ost.compile(lambda x, y: (f(x), f(y) * 3))
    beside(ost.asarray(small), ost.asarray(large))
    assert [n.op for n in beside.plan.program.graph.nodes].count("fused") == 2
    few = ost.compile(lambda x, y: (f(x), f(y) * 3))
    few(ost.asarray(small[:100]), ost.asarray(large))
    assert [n.op for n in few.plan.program.graph.nodes].count("fused") == 1


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    "step",
    [
        lambda u: (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4,
        lambda u: u[:-1] * 2 + u[1:] - u.T[:1].T[1:] * u[1:] + u[0][None],
    ],
)
def test_neighbours_are_one_kernel_per_step(step: Any) -> None:
    """What looks at an array, e.g. a slice of it, is there as early as the array."""
    x = np.random.default_rng(4).normal(size=(150, 150))
    compiled = ost.compile(lambda u: step(step(u)))
    np.testing.assert_allclose(np.asarray(compiled(x)), step(step(x)), rtol=1e-12)
    ops = [n.op for n in compiled.plan.program.graph.nodes]
    assert sum(op.startswith("fused") for op in ops) == 2
    assert not {"add", "subtract", "multiply", "divide"} & {*ops}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_products_of_elements_are_reduced_as_sums_are(dtype: str) -> None:
    x = np.random.default_rng(0).integers(1, 9, (900, 130)).astype(dtype)
    x = x if dtype == "int64" else x / 1000
    for axis, kernel in ((1, "fused_rows"), (0, "fused_nest")):
        f = ost.compile(lambda x: (x + 1).prod(axis))  # noqa: B023
        with ost.connect(1):
            np.testing.assert_allclose(np.asarray(f(x)), (x + 1).prod(axis), 1e-3)
            assert [n.op for n in f.plan.program.graph.nodes] == [kernel]
