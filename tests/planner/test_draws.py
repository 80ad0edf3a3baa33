"""Random numbers inside kernels: the bits of the op alone, whatever is around and wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.planner.fusion import kernel_draws as random

import ostinato as ost
from tests import sessions

SHAPES = [(9001,), (70, 130), (5, 33, 61), (4096, 2)]
DRAW: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda s, n: ost.random.uniform(n, seed=s),
    "uniform64": lambda s, n: ost.random.uniform(n, dtype=ost.float64, seed=s, low=-1, high=3),
    "bernoulli": lambda s, n: ost.random.bernoulli(0.3, n, seed=s),
    "integers": lambda s, n: ost.random.integers(-5, 1000, n, seed=s),
    "normal": lambda s, n: ost.random.normal(n, seed=s),
    "normal64": lambda s, n: ost.random.normal(n, mean=1.0, std=2.0, dtype=ost.float64, seed=s),
}


def drawn(make: Any, shape: Any, seed: int = 77) -> Any:
    return np.asarray(ost.compile(lambda s: make(s, shape))(np.uint64(seed)))


def by_numpy(make: Any, shape: Any, seed: int = 77) -> Any:
    with mock.patch.object(random, "MIN_DRAWN_ELEMENTS", 1 << 60), ost.connect():
        return drawn(make, shape, seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DRAW)
def test_as_numpy_makes_them(name: str, shape: Any) -> None:
    """Integer arithmetic to the bit; functions of normal numbers within some units."""
    wanted = by_numpy(DRAW[name], shape)
    with sessions.use():
        made = drawn(DRAW[name], shape)
    if "normal" in name:
        unit = np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(made, wanted, rtol=16 * unit, atol=8 * unit)
    else:
        assert made.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
@pytest.mark.parametrize("name", DRAW)
def test_no_layout_and_no_neighbour_changes_a_bit(name: str, numerics: str) -> None:
    """Alone, beside other work, in parts of rows or columns, on two axes, with more workers."""
    shape = (70, 130)
    with sessions.use(numerics=numerics):
        wanted = drawn(DRAW[name], shape)
    for mesh, split in (((1,), None), ((2,), 0), ((3,), 1), ((2, 2), (0, 1)), ((2, 2), (1, 1))):
        with sessions.use(mesh, numerics=numerics):
            zero = ost.asarray(np.zeros(shape, wanted.dtype), split=split)
            f = ost.compile(lambda x, s: (DRAW[name](s, shape) ^ x if wanted.dtype == bool
                                          else DRAW[name](s, shape) + x))  # fmt: skip
            assert np.asarray(f(zero, np.uint64(77))).tobytes() == wanted.tobytes(), (mesh, split)
            kernels = [n for n in f.plan.program.graph.nodes if n.op == "fused"]
            assert any(OPS[m.op].element.draws for n in kernels for m in n.kw["body"].nodes)


def test_dropout_stores_no_mask() -> None:
    x = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    x.flags.writeable = False
    with sessions.use():
        f = ost.compile(lambda x, s: ost.nn.softmax(ost.nn.dropout(ost.tanh(x), 0.3, seed=s)))
        made = np.asarray(f(x, np.uint64(5)))
        nodes = f.plan.program.graph.nodes
    assert [n.op for n in nodes] == ["constant", "numbers", "fused_nest"]
    h = by_numpy(lambda s, n: ost.nn.dropout(ost.asarray(np.tanh(x)), 0.3, seed=s), x.shape, 5)
    wanted = np.exp(h) / np.exp(h).sum(1, keepdims=True)
    np.testing.assert_allclose(made, wanted, rtol=1e-5)


def test_noise_joins_what_it_is_added_to() -> None:
    x = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    with sessions.use():
        f = ost.compile(lambda x, s: ost.exp(x * 2 + 0.1 * ost.random.normal(x.shape, seed=s)))
        made = np.asarray(f(x, np.uint64(5)))
        nodes = f.plan.program.graph.nodes
        assert "normal32(" in f.plan.source()
    assert [n.op for n in nodes if n.specs[0].size > 1] == ["numbers", "fused"]
    noise = by_numpy(lambda s, n: ost.random.normal(n, seed=s), x.shape, 5)
    np.testing.assert_allclose(made, np.exp(x * 2 + np.float32(0.1) * noise), rtol=1e-5)


def test_what_is_read_twice_is_drawn_once() -> None:
    """In a kernel, a draw is dear: stages that read it again find it in cache."""
    with sessions.use():
        f = ost.compile(lambda s: ost.nn.softmax(ost.random.normal((300, 400), seed=s)))
        f(np.uint64(5))
        (kernel,) = [n for n in f.plan.program.graph.nodes if n.op == "fused_nest"]
    assert [m.op for m in kernel.kw["body"].nodes].count("normal32") == 1
    from ostinato.ops.cpu.loops.schedule import analyse_in_order

    body, rest = kernel.kw["body"], {k: v for k, v in kernel.kw.items() if k != "body"}
    shapes = [s.shape for s in (*body.inputs, *body.out_specs)]
    nest = analyse_in_order(body, **rest, shapes=shapes)
    assert nest is not None
    maker = next(k for k, m in enumerate(body.nodes) if m.op == "normal32")
    assert body.starts[maker] in nest.held


def test_functions_of_libm_draw_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.settings.math", "libm")
    with ost.connect(1):
        f = ost.compile(lambda s: ost.random.normal((9001,), seed=s) * 2)
        made = np.asarray(f(np.uint64(77)))
        assert "normal" in [n.op for n in f.plan.program.graph.nodes]
    wanted = by_numpy(DRAW["normal"], (9001,)) * np.float32(2)
    assert made.tobytes() == wanted.tobytes()


def test_in_turns_under_a_limit() -> None:
    """Blocks of rows begin at their own numbers."""
    shape = (4000, 500)

    def f(s: Any) -> Any:
        u = ost.random.uniform(shape, seed=s)
        return (u * u).sum(0), u.max(1)

    u = by_numpy(DRAW["uniform"], shape).astype(np.float64)
    with ost.connect(1, memory_limit=3_000_000):
        g = ost.compile(f)
        total, top = (np.asarray(y) for y in g(np.uint64(77)))
    np.testing.assert_allclose(total, (u * u).sum(0), rtol=1e-5)
    np.testing.assert_array_equal(top, u.max(1).astype(np.float32))


def test_the_kernel_of_numpy_agrees() -> None:
    """What runs where it is not known how operands lie."""
    with sessions.use((3,)):
        f = ost.compile(lambda s: DRAW["integers"](s, (70, 130)) * 2)
        wanted = np.asarray(f(np.uint64(77)))
    absent = mock.patch("ostinato.ops.cpu.cpu_device.native_kernel", lambda *a: None)
    with absent, ost.connect(3):
        f = ost.compile(lambda s: DRAW["integers"](s, (70, 130)) * 2)
        assert np.asarray(f(np.uint64(77))).tobytes() == wanted.tobytes()
        assert "fused" in [n.op for n in f.plan.program.graph.nodes]


def test_sums_of_columns_that_lie_with_gaps() -> None:
    found = []
    for workers in (1, 3):
        with sessions.use((workers,)):
            f = ost.compile(lambda s: (DRAW["normal64"](s, (70, 130)).resplit(1) * 2).sum())
            found.append(float(f(np.uint64(77))))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
