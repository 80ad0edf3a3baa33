"""What is behind a product that its library does as it writes it; weights that stay in its form."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu import natives
from ostinato.ops.cpu.libraries import onednn, onednn_conv
from ostinato.runtime.packed_weights import OFTEN

import ostinato as ost
from ostinato import settings
from tests.helpers import on

STEPS = {
    "bias": lambda y, b, r: y + b,
    "before": lambda y, b, r: b + y,
    "scale": lambda y, b, r: (y - b) * (b + 2),
    "residual": lambda y, b, r: y + r,
    "half": lambda y, b, r: y * 0.5 + 1,
    "relu": lambda y, b, r: ost.nn.relu(y),
    "leaky": lambda y, b, r: ost.nn.leaky_relu(y, 0.3),
}


@pytest.fixture(autouse=True)
def there_is_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "tune", "off")  # which may find that they are better apart
    if isinstance(onednn.library(), str):
        pytest.skip(onednn.library())


def kinds(function: Any) -> list[str]:
    return [n.op for n in function.plan.program.graph.nodes]


def some(seed: int) -> tuple[Any, ...]:
    """Operands, and a function of them that ends with some steps."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    groups = draw.choice((1, 1, 2))
    channels, filters, size = draw.choice((4, 16)), draw.choice((8, 32)), draw.choice((1, 3))
    x = rng.normal(size=(draw.choice((1, 3, 17)), 9, 10, channels))
    w = rng.normal(size=(size, size, channels // groups, filters))
    b, r = rng.normal(size=filters), rng.normal(size=(len(x), 9, 10, filters))
    names = draw.sample(sorted(STEPS), draw.randint(1, 4))

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = ost.nn.conv(x, w, padding=size // 2, groups=groups, layout="NHWC")
        for name in names:
            y = STEPS[name](y, b, r)
        return y

    return function, (x, w, b, r), names


@pytest.mark.parametrize("seed", range(12))
def test_steps_are_done_with_the_product(seed: int) -> None:
    """And so are those of training, whose slopes ask the result where it was cut off."""
    function, operands, names = some(seed)

    def step(*xs: Any) -> Any:
        return ost.value_and_grad(lambda *xs: (function(*xs) ** 2).mean(), (0, 1, 2, 3))(*xs)

    with on(1):
        wanted = np.asarray(function(*operands))  # one after the other, in double precision
        exact = [np.asarray(g) for g in ost.compile(step)(*operands)[1]]
    low = [v.astype(np.float32) for v in operands]
    for workers in (1, 2, 3):
        with on(workers):
            for split in (None, 0, 1):
                made = ost.compile(function)
                found = np.asarray(made(ost.asarray(low[0], split=split), *low[1:]))
                np.testing.assert_allclose(found, wanted, 1e-3, 2e-5 * np.abs(wanted).max())
                done = kinds(made).count("fused_product")  # of several, interior and edges
                assert done == 1 if workers == 1 else 1 <= done <= 3
                assert "conv" not in kinds(made)
            trained: Any = ost.compile(step)
            for g, exactly in zip(trained(*low)[1], exact, strict=True):
                scale = np.abs(exactly).max()
                np.testing.assert_allclose(np.asarray(g), exactly, 0, 2e-5 * scale)
            if workers == 1 and names[0] != "scale":  # whose slopes read what is before
                assert "fused_product" in kinds(trained), names
            if {"relu", "leaky"}.isdisjoint(names[1:]):
                specs = [s for n in trained.plan.program.graph.nodes for s in n.specs]
                assert not any(s.dtype.kind == "b" for s in specs)


def test_results_are_turned_when_all_is_done() -> None:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=s) for s in ((2, 16, 20, 20), (16, 16, 3, 3), (16,)))
    for workers in (1, 2):
        with on(workers):
            made = ost.compile(lambda x, w, b: ost.nn.leaky_relu(ost.nn.conv(x, w, b, padding=1)))
            found = np.asarray(made(*(v.astype(np.float32) for v in (x, w, b))))
            assert {k for k in kinds(made) if k.startswith("fused")} == {"fused_product"}
            np.testing.assert_allclose(found, np.asarray(made(x, w, b)), 1e-3, 1e-4)


def test_what_is_not_a_number_stays_so() -> None:
    """And what is below 0 is 0 without a sign, what is above as it was."""
    x, w = np.ones((1, 64, 9, 9), np.float32), np.ones((64, 64, 3, 3), np.float32)
    x[0, 3, 2, 2], b = np.nan, np.zeros(64, np.float32)
    b[32:] = -1000
    with on(1):
        f = ost.compile(lambda x, w, b: ost.nn.relu(ost.nn.conv(x, w, b, padding=1)))
        y = np.asarray(f(x, w, b))
        assert "fused_product" in kinds(f)
    assert np.isnan(y[0, :, 1:4, 1:4]).all()
    assert np.isnan(y).sum() == 9 * 64
    assert (y[0, 32:, 5:] == 0).all()
    assert not np.signbit(y[0, 32:, 5:]).any()
    assert (y[0, :32, 5:8, 1:8] == 576).all()


def test_who_is_read_by_others_is_no_step() -> None:
    x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)

    def both(x: Any, w: Any) -> Any:
        y = ost.nn.conv(x, w, padding=1) + 1
        return y, ost.nn.relu(y)

    def twice(x: Any, w: Any) -> Any:
        y = ost.nn.conv(x, w, padding=1)
        return y + y, ost.nn.conv(y, w, padding=1) - x - x

    with on(1):
        for f in (both, twice):
            made = ost.compile(f)
            for a, b in zip(made(x, w), f(x.astype(float), w.astype(float)), strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-5)


def test_the_same_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: Any, **__: Any) -> None:
        raise onednn.Unable("there is none")

    monkeypatch.setattr(natives, "onednn_conv", unable)
    for seed in range(4):
        function, operands, _ = some(seed)
        low = [v.astype(np.float32) for v in operands]
        wanted = np.asarray(function(*operands))
        for workers in (1, 2):
            with on(workers):
                made = ost.compile(function)
                found = np.asarray(made(ost.asarray(low[0], split=1), *low[1:]))
                assert "fused_product" in kinds(made)
            np.testing.assert_allclose(found, wanted, 1e-3, 2e-5 * np.abs(wanted).max())


def block(x: Any, w: Any, v: Any, u: Any, up: Any, down: Any, b: Any) -> Any:
    """A block whose input goes around it by a convolution, and one where it goes as it is. Sums over 2048
    channels are begun in the result's memory."""
    y = ost.nn.relu(ost.nn.conv(x, w) - b)
    y = ost.nn.relu(ost.nn.conv(y, v, padding=1) * b + ost.nn.conv(x, u))
    z = ost.nn.relu(ost.nn.conv(y, up))
    return ost.nn.relu(y + (ost.nn.conv(z, down) - b)).mean((2, 3))


def compiled_as_exact(function: Any, operands: Sequence[Any]) -> Any:
    """A function that gives for two workers, and for one at last, what doubles give."""
    wanted = np.asarray(function(*operands))
    for workers in (2, 1):
        with on(workers):
            made = ost.compile(function)
            found = np.asarray(made(*(v.astype(np.float32) for v in operands)))
            np.testing.assert_allclose(found, wanted, 1e-3, 2e-5 * np.abs(wanted).max())
    return made


@pytest.mark.parametrize("has_library", [True, False])
def test_sums_are_made_where_an_addend_lies(
    has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of five convolutions is one kernel with all behind it, and adds to what nobody reads later."""
    if not has_library:

        def unable(*_: Any, **__: Any) -> None:
            raise onednn.Unable("there is none")

        monkeypatch.setattr(natives, "onednn_conv", unable)
    n, rng = 3 + has_library, np.random.default_rng(0)  # other plans than those that are bound
    filters = (32, 8, 1, 1), (32, 32, 3, 3), (32, 8, 1, 1), (2048, 32, 1, 1), (32, 2048, 1, 1)
    operands = [rng.normal(size=s) for s in ((n, 8, 11, 10), *filters, (32, 1, 1))]
    made = compiled_as_exact(block, operands)
    graph, slots = made.plan.program.graph, made.plan.program.slots
    assert [k for k in kinds(made) if k.startswith(("conv", "fused"))] == ["fused_product"] * 5
    over = [
        slots[v] == slots[graph.starts[k]]
        for k, node in enumerate(graph.nodes)
        for v in node.inputs
        if node.op == "fused_product" and graph.specs[v] is node.specs[0]
    ]
    assert over == [True, True]


def test_what_is_read_later_is_not_added_to() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s) for s in ((4, 8, 14, 14), (8, 8, 3, 3)))

    def function(x: Any, w: Any) -> Any:
        y = ost.nn.relu(ost.nn.conv(x, w, padding=1))
        z = ost.nn.relu(ost.nn.conv(y, w, padding=1) + y)
        return (z + ost.nn.relu(ost.nn.conv(z, w, padding=1) - y)).mean((2, 3)), z.max((2, 3))

    low = [v.astype(np.float32) for v in (x, w)]
    with on(1):
        given = ost.compile(lambda x, w: ost.nn.conv(x, w, padding=1) + x, donate=("x",))
        found = given(ost.asarray(low[0]) + 0, low[1])  # in memory that is given away
        made = ost.compile(function)(*low)
    exact = np.asarray(ost.nn.conv(x, w, padding=1) + x)
    for a, b in zip((found, *made), (exact, *function(x, w)), strict=True):
        wanted = np.asarray(b)
        np.testing.assert_allclose(np.asarray(a), wanted, 1e-3, 2e-5 * np.abs(wanted).max())


def test_room_is_for_weights_alone() -> None:
    """And not for slopes, which have no steps: of few places with many channels these would need more."""
    x, w = np.ones((2, 8, 4, 4), np.float32), np.ones((2048, 8, 1, 1), np.float32)
    with on(1):
        made = ost.compile(lambda x, w: ost.nn.relu(ost.nn.conv(x, w)).mean((2, 3)))
        assert (np.asarray(made(x, w)) == 8).all()
        assert "fused_product" in kinds(made)
    made_bytes, packed = 2 * 4 * 4 * 2048 * 4, 64 * 2112 * 4  # whole blocks of channels
    assert made.plan.program.arena_bytes < made_bytes + packed + (1 << 14)


def test_joined_channels_lie_last() -> None:
    """As what is joined does, and convolutions and pools read it: nothing is copied but by the join."""
    rng = np.random.default_rng(0)
    shapes = (3, 8, 14, 14), (16, 8, 1, 1), (24, 8, 3, 3), (8, 40, 1, 1)
    operands = [rng.normal(size=s) for s in shapes]

    def function(x: Any, a: Any, b: Any, w: Any) -> Any:
        y = ost.concat([ost.nn.relu(ost.nn.conv(x, a)), ost.nn.conv(x, b, padding=1)], axis=1)
        z = ost.nn.conv(ost.nn.avg_pool(y, 3, stride=1, padding=1), w)
        return (ost.nn.relu(ost.nn.conv(y, w)) + z).mean((2, 3))

    made = compiled_as_exact(function, operands)
    graph = made.plan.program.graph
    (join,) = (n for n in graph.nodes if n.op == "concat")
    assert join.specs[0].shape == (3, 14, 14, 40)
    assert "copy" not in kinds(made)


def test_weights_stay_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first few calls on nothing brings them to the library's form, until others come."""
    packs = []
    packed = onednn_conv._packed
    monkeypatch.setattr(onednn_conv, "_packed", lambda *xs: (packs.append(1), packed(*xs)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 16, 9, 9)).astype(np.float32)
    ws = [rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for _ in range(3)]

    def chain(x: Any, ws: Any) -> Any:
        for w in ws:
            x = ost.nn.relu(ost.nn.conv(x, w, padding=1))
        return x

    for body in (chain, lambda x, ws: chain(x, ws) + ost.nn.conv(x, ws[0], padding=1)):
        with on(1):
            held = [ost.asarray(w) for w in ws]
            made = ost.compile(body)
            first = np.asarray(made(x, held))
            for _ in range(OFTEN):
                made(x, held)
            packs.clear()
            assert np.asarray(made(x, held)).tobytes() == first.tobytes()
            assert not packs
            held[1] = held[1] * 2
            other = made(x, held)
            assert len(packs) == 1
            np.testing.assert_allclose(np.asarray(other), np.asarray(body(x, held)), 1e-4, 1e-4)


def network(x: Any, layers: Any) -> Any:
    for k, (w, b) in enumerate(layers):
        x = ost.nn.relu(ost.nn.conv(x, w, b, padding=1))
        x = ost.nn.max_pool(x, 2) if k in (2, 5) else x
    return x


def test_images_are_turned_at_the_ends_only() -> None:
    """Of ten convolutions with pools, forward and in training; weights are read as they lie."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5, 32, 32)).astype(np.float32)
    ins = [5, *[16] * 9]
    layers = [
        (rng.normal(size=(16, n, 3, 3)).astype(np.float32) / 8, np.ones(16, np.float32))
        for n in ins
    ]

    def train(x: Any, layers: Any) -> Any:
        slopes = ost.grad(lambda p: (network(x, p) ** 2).mean())(layers)
        return ost.tree_map(lambda p, g: p - 0.1 * g, layers, slopes)

    for function in (network, train):
        with on(1):
            made = ost.compile(function)
            made(x, layers)
        program, turned = made.plan.program, 0
        graph = program.graph
        for k, node in enumerate(graph.nodes):
            seen = [v for v in node.inputs if is_turned(graph, v)]
            is_view = program.slots[graph.starts[k]].kind == "alias"
            turned += bool(seen) and not is_view and not node.op.startswith(("conv", "fused_pro"))
        assert turned <= 2, graph
        assert kinds(made).count("fused_product") == 10


def is_turned(graph: Any, v: int) -> bool:
    """Whether a value looks at images with another order of axes."""
    while (k := graph.producers[v]) >= 0:
        node = graph.nodes[k]
        if node.op == "permute_dims" and node.specs[0].ndim == 4:
            return bool(6 in node.specs[0].shape)
        if node.op not in ("reshape", "expand_dims", "permute_dims"):
            break
        (v,) = node.inputs
    return False
