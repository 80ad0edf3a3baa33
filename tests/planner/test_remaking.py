"""What is made again behind a product, rather than written and read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.show import parse
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.planner.fusion import remaking
from ostinato.planner.fusion.remaking import make_again
from ostinato.planner.plan import Target

import ostinato as ost
from ostinato import nn
from tests import sessions
from tests.fake_device import CONVOLVING

HERE = Target((1,))

BEFORE = """
    (%0: float32[20,600,1,8], %1: float32[1,8,1,8])
    %2 = conv(%0, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %3 = mean(%2; axes=(0, 1, 2), count=6000) : float32[8]
    %4 = subtract(%2, %3) : float32[20,600,1,8]
    %5 = tanh(%4) : float32[20,600,1,8]
    %6 = conv(%5, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %7 = multiply(%6, %4) : float32[20,600,1,8]
    return %7
"""
AFTER = """
    (%0: float32[20,600,1,8], %1: float32[1,8,1,8])
    %2 = conv(%0, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %3 = mean(%2; axes=(0, 1, 2), count=6000) : float32[8]
    %4 = subtract(%2, %3) : float32[20,600,1,8]
    %5 = tanh(%4) : float32[20,600,1,8]
    %6 = conv(%5, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %7 = barrier(%2, %5; outputs=1) : float32[20,600,1,8]
    %8 = subtract(%7, %3) : float32[20,600,1,8]
    %9 = multiply(%6, %8) : float32[20,600,1,8]
    return %9
"""
CUT_OFF = """
    (%0: float32[20,600,1,8], %1: float32[1,8,1,8], %2: float32[20,600,1,8])
    %3 = conv(%0, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %4 = add(%3, %2) : float32[20,600,1,8]
    %5 = constant(; dtype=dtype float32, value=0.0) : float32[]
    %6 = less_equal(%4, %5) : bool[20,600,1,8]
    %7 = where(%6, %5, %4) : float32[20,600,1,8]
    %8 = conv(%7, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %9 = where(%6, %5, %8) : float32[20,600,1,8]
    return %9
"""
ASKED = """
    (%0: float32[20,600,1,8], %1: float32[1,8,1,8], %2: float32[20,600,1,8])
    %3 = conv(%0, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %4 = add(%3, %2) : float32[20,600,1,8]
    %5 = constant(; dtype=dtype float32, value=0.0) : float32[]
    %6 = less_equal(%4, %5) : bool[20,600,1,8]
    %7 = where(%6, %5, %4) : float32[20,600,1,8]
    %8 = conv(%7, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,)) : float32[20,600,1,8]
    %9 = barrier(%7, %7; outputs=1) : float32[20,600,1,8]
    %10 = less_equal(%9, %5) : bool[20,600,1,8]
    %11 = where(%10, %5, %8) : float32[20,600,1,8]
    return %11
"""


SEVERAL = """
    (%0: float32[300,256], %1: float32[256,256], %2: float32[256])
    %3 = matmul(%0, %1) : float32[300,256]
    %4 = add(%3, %2) : float32[300,256]
    %5 = multiply(%4, %4) : float32[300,256]
    %6 = tanh(%5) : float32[300,256]
    %7 = multiply(%4, %6) : float32[300,256]
    %8 = matmul(%7, %1) : float32[300,256]
    %9 = multiply(%8, %6) : float32[300,256]
    %10 = multiply(%9, %4) : float32[300,256]
    %11 = multiply(%10, %5) : float32[300,256]
    return %11
"""
FROM_ONE = """
    (%0: float32[300,256], %1: float32[256,256], %2: float32[256])
    %3 = matmul(%0, %1) : float32[300,256]
    %4 = add(%3, %2) : float32[300,256]
    %5 = multiply(%4, %4) : float32[300,256]
    %6 = tanh(%5) : float32[300,256]
    %7 = multiply(%4, %6) : float32[300,256]
    %8 = matmul(%7, %1) : float32[300,256]
    %9 = barrier(%4, %7; outputs=1) : float32[300,256]
    %10 = multiply(%9, %9) : float32[300,256]
    %11 = tanh(%10) : float32[300,256]
    %12 = multiply(%8, %11) : float32[300,256]
    %13 = multiply(%12, %4) : float32[300,256]
    %14 = multiply(%13, %10) : float32[300,256]
    return %14
"""


@pytest.mark.parametrize(
    ("before", "after"), [(BEFORE, AFTER), (CUT_OFF, ASKED), (SEVERAL, FROM_ONE)]
)
def test_before_and_after(before: str, after: str) -> None:
    wanted = parse(after)
    assert canonical(make_again(parse(before), HERE)) == canonical(wanted)
    assert make_again(wanted, HERE) == wanted


def test_what_stays() -> None:
    """What is given back, of two large operands, of an operand of the plan, small, or read at once."""
    for old, new in [
        ("return %7", "return %7, %4"),
        ("subtract(%2, %3)", "subtract(%2, %0)"),
        ("subtract(%2, %3)", "subtract(%0, %3)"),
        ("600", "6"),
        (
            "multiply(%6, %4)",
            "conv(%4, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,))",
        ),
        (
            "%6 = conv(%5, %1; dilation=(1,), every=(1,), extents=(600,), offsets=(0,), strides=(1,))",
            "%6 = exp(%5)",
        ),
    ]:
        graph = parse(BEFORE.replace(old, new))
        assert make_again(graph, HERE) is graph, new


def test_what_several_operations_stay_for() -> None:
    """A limit of memory, what is made of two values, given back, or not behind a product."""
    graph = parse(SEVERAL)
    assert make_again(graph, Target((1,), memory_limit=1 << 30)) is graph
    for old, new in [
        ("%6 = tanh(%5)", "%6 = tanh(%3)"),
        ("return %11", "return %11, %5, %6"),
        ("%8 = matmul(%7, %1)", "%8 = exp(%7)"),
    ]:
        graph = parse(SEVERAL.replace(old, new))
        assert "tanh" not in [n.op for n in make_again(graph, HERE).nodes[6:]], new


@pytest.mark.parametrize("activation", [nn.gelu, nn.silu, nn.softplus, ost.tanh])
@pytest.mark.skipif(bool(why_not()), reason="there are no kernels")
def test_slopes_of_activations_are_made_of_what_they_were_made_of(activation: Any) -> None:
    """In the kernel of the product behind which they are, to the bits without; one more value is kept at most."""
    r = np.random.default_rng(0)
    ws = [r.standard_normal((128, 128)).astype(np.float32) / 11 for _ in range(3)]
    x = r.standard_normal((256, 128)).astype(np.float32)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = activation(x @ w + 0.25)
        return (x * x).sum()

    step = ost.compile(ost.value_and_grad(loss))
    value, slopes = step(ws, x)
    kept = [
        sum(s.shape == (256, 128) for s in n.specs)
        for n in step.plan.program.graph.nodes
        if n.op.startswith("fused_matmul")
    ]
    assert max(kept) <= 2, step.plan.program.graph
    limited = ost.compile(ost.value_and_grad(loss), memory_limit=1 << 40)
    other, others = limited(ws, x)
    np.testing.assert_allclose(np.asarray(value), np.asarray(other), rtol=1e-5)
    for a, b in zip(slopes, others, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


class Block(nn.Layer):
    """Beside what it adds to, in more channels."""

    def __init__(self, inputs: int, width: int) -> None:
        self.one = nn.Conv(inputs, width, 3, padding=1, bias=False)
        self.norm, self.beside = nn.BatchNorm(width), nn.BatchNorm(width)
        self.two = nn.Conv(inputs, width, 1, bias=False)
        self.end = nn.Conv(width, 3, 1)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.one(x)) + self.beside(self.two(x))
        return self.end(nn.relu(y))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("workers", [1, 2])
def test_slopes_of_norms_are_those_of_wide_numbers(workers: int, layout: str) -> None:
    """With ties at what is cut off, NaN apart; halves of a batch on two workers."""
    model = Block(4, 32).init(seed=3)
    x = np.random.default_rng(1).normal(size=(4, 4, 13, 11)).astype(np.float32)
    x[0, :, :3] = 0

    def slopes(model: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, _ = nn.combine(weights, model).apply(x)
            return (made**2).mean()

        return ost.grad(loss)(nn.parameters(model))

    def wide(v: Any) -> Any:
        return ost.asarray(np.asarray(v, np.float64))

    if layout == "NHWC":
        step = ost.compile(lambda m, x: slopes(m, ost.moveaxis(x, -1, 1)))
        given = np.moveaxis(x, 1, -1).copy()
    else:
        step, given = ost.compile(slopes), x
    with sessions.use((workers,)):
        found = ost.tree_map(np.asarray, step(model, ost.asarray(given)))
    wanted = ost.compile(slopes)(ost.tree_map(wide, model), wide(x))
    for a, b in zip(_leaves(found), _leaves(wanted), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=2e-3, atol=2e-5 * np.abs(b).max())


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    ost.tree_map(found.append, tree)
    return [np.asarray(v) for v in found]


@pytest.mark.skipif(bool(why_not()), reason="there are no kernels")
def test_a_norm_writes_its_result_and_nothing_else() -> None:
    """Of the size of images: neither what is without its mean, nor what was cut off."""
    model, x = Block(4, 32).init(seed=3), np.ones((4, 4, 32, 32), np.float32)

    @ost.compile
    def step(model: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, new = nn.combine(weights, model).apply(x)
            return (made**2).mean(), new

        return ost.value_and_grad(loss, has_aux=True)(nn.parameters(model))

    step(model, x)
    graph = step.plan.program.graph
    norms = [
        [s for s in n.specs if s.size >= 4 * 32 * 32 * 32]
        for n in graph.nodes
        if "fused" in n.op and any(m.op == "moments" for m in n.kw["body"].nodes)
    ]
    assert norms
    assert all(len(large) == 1 for large in norms), graph


def test_norms_on_a_gpu_write_no_differences_from_means() -> None:
    """A relu behind one writes its result, and a byte an element."""
    model, x = Block(4, 32).init(seed=3), np.ones((4, 4, 32, 32), np.float32)

    def step(model: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, new = nn.combine(weights, model).apply(x)
            return (made**2).mean(), new

        return ost.value_and_grad(loss, has_aux=True)(nn.parameters(model))

    given = ost.tree_map(lambda a: ost.spec(a.shape, str(a.dtype)), (model, x))
    graph = ost.plan(step, *given, machine="h100", device=CONVOLVING).program.graph
    relus = [
        [s for s in n.specs if s.size >= 4 * 32 * 32 * 32 and s.dtype == np.float32]
        for n in graph.nodes
        if n.op == "fused" and any(m.op == "less_equal" for m in n.kw["body"].nodes)
    ]
    assert relus
    assert all(len(large) == 1 for large in relus), graph


def test_slopes_of_norms_on_a_gpu_are_those_of_what_was_kept(monkeypatch: Any) -> None:
    model = Block(4, 8).init(seed=3)
    x = np.random.default_rng(0).normal(size=(2, 4, 16, 16)).astype(np.float32)

    def slopes(model: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, new = nn.combine(weights, model).apply(x)
            return (made**2).mean(), new

        return ost.value_and_grad(loss, has_aux=True)(nn.parameters(model))

    monkeypatch.setattr(remaking, "NEGLIGIBLE_BYTES", 1)
    with ost.connect(device=CONVOLVING):
        step = ost.compile(slopes)
        found = _leaves(step(model, ost.asarray(x)))
        nodes = step.plan.program.graph.nodes
        assert any(node.op == "barrier" for node in nodes), "nothing is made again"
    monkeypatch.setattr(remaking, "NEGLIGIBLE_BYTES", 1 << 60)
    with ost.connect(device=CONVOLVING):
        kept = _leaves(ost.compile(slopes)(model, ost.asarray(x)))
    for a, b in zip(found, kept, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6 * np.abs(b).max())
