"""One wider halo in front of a chain: the values of one worker, fewer messages, and only where it is sooner done."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ostinato.ops.core.registry import OPS
from ostinato.planner.machine import NOMINAL, Machine
from ostinato.planner.passes import wide_halos
from ostinato.planner.passes.memory import contiguous
from ostinato.planner.plan import Plan, Target

import ostinato as ost
from tests.forced import halos_in, halos_widened, interiors_cut
from tests.sessions import JOB, MESHES, forget_plans, use
from tests.thorough import few

ALONE = (1,) if JOB == 1 else (JOB,)
SEVERAL = [m for m in MESHES if np.prod(m) > 1 and JOB in (1, np.prod(m))]
Layer = tuple[Callable[..., Any], list[Any]]  # of an array and weights; the weights


def machine(seconds: float, bandwidth: float) -> Machine:
    """One whose messages take so many seconds to start, and move so many bytes a second."""
    ((workers, link),) = NOMINAL.levels
    link = replace(link, seconds=seconds, bandwidth=bandwidth)
    return replace(NOMINAL, levels=((workers, link),), background=0.0)


@contextmanager
def narrow_links() -> Iterator[None]:
    """Within it, bytes are dear and messages are not, so that what is cut in space stays so."""
    forget_plans()
    with mock.patch.object(Target, "machine", machine(1e-9, 1e3)):
        yield
    forget_plans()


@contextmanager
def no_wider_halos() -> Iterator[None]:
    with mock.patch.object(wide_halos.Chains, "search", lambda _: False):
        yield


def some_layer(draw: random.Random, rng: Any, channels: int, k: int) -> Layer:
    each = lambda *values: tuple(draw.choices(values, k=k))  # noqa: E731
    pads = [(draw.randint(0, 1), draw.randint(0, 1)) for _ in range(k)]
    match draw.choice(
        ["conv", "conv", "pool", "mean", "pointwise", "stencil", "set", "skip", "pad", "flip"]
    ):
        case "conv":
            p: dict[str, Any] = {"stride": each(1, 1, 1, 2), "dilation": each(1, 1, 2)}
            p["padding"] = draw.choice(["same", pads])
            return lambda x, w: ost.nn.conv(x, w, **p), [
                rng.normal(size=(channels, channels, *each(1, 2, 3)))
            ]
        case "pool":
            stride = each(1, 2)
            return lambda x: ost.nn.max_pool(x, 3, stride=stride, padding=1), []
        case "mean":
            return lambda x: ost.nn.avg_pool(
                x, 2, stride=1, padding=pads, count_include_pad=False
            ), []
        case "pointwise":
            return lambda x, b: ost.sin(x) * b + x, [rng.normal(size=(channels, *(1,) * k))]
        case "stencil":
            return lambda x: x[:, :, 2:] - 0.5 * x[:, :, :-2] * x[:, :, 1:-1], []
        case "set":
            return lambda x: x.at[:, :, 1:-1].set(0.5 * (x[:, :, 2:] + x[:, :, :-2])), []
        case "skip":
            w = rng.normal(size=(channels, channels, *(3,) * k))
            return lambda x, w: x + ost.nn.relu(ost.nn.conv(x, w, padding=1)), [w]
        case "pad":
            widths = [(0, 0), (0, 0), *pads]
            return lambda x: ost.pad(x, widths, constant_values=0.5), []
    axis = draw.randint(2, k + 1)
    return lambda x: ost.flip(x, axis) + x, []


def some_chain(
    draw: random.Random, least: int = 2
) -> tuple[Callable[..., Any], Any, list[list[Any]]]:
    k, rng = draw.choice([1, 2, 2]), np.random.default_rng(draw.randrange(1 << 30))
    shape: tuple[int, ...] = (
        1,
        draw.randint(1, 2),
        *[draw.randint(9, 24 if k == 1 else 14) for _ in range(k)],
    )
    x, layers = rng.normal(size=shape), list[Layer]()
    while len(layers) < draw.randint(least, 5):
        layer, weights = some_layer(draw, rng, shape[1], k)
        made = ost.plan(layer, ost.spec(shape), *[ost.spec(w.shape) for w in weights]).out_specs[0]
        if min(made.shape) > 3 or made.shape[2:] == shape[2:]:
            layers.append((layer, weights))
            shape = made.shape

    def chain(x: Any, weights: Any) -> Any:
        for (layer, _), own in zip(layers, weights, strict=True):
            x = layer(x, *own)
        return x

    return chain, x, [w for _, w in layers]


def is_wide(plan: Any) -> bool:
    """Whether anything is computed with halos."""
    nodes = [n for n in plan.lowered.nodes if OPS[n.op].view is None and n.inputs]
    moves = ("halo", "narrow", "start", "wait")
    return any(n.specs[0].layout.windows for n in nodes if n.op not in moves)


@pytest.mark.parametrize("seed", [*range(few(40)), 117])  # in which slopes of a pool are wide
def test_chains_have_the_values_of_one_worker(seed: int, tmp_path: Any) -> None:
    """And of parts without wider halos the very bits, from files of plans, too."""
    draw = random.Random(seed)
    with use(ALONE):
        chain, x, weights = some_chain(draw)

        def step(x: Any, weights: Any) -> Any:
            if seed % 3:
                return chain(x, weights), x
            return ost.value_and_grad(lambda x: (ost.sin(chain(x, weights)) ** 2).sum())(x)

        wanted = [np.asarray(v) for v in ost.compile(step)(x, weights)]
    mesh, numerics = draw.choice(SEVERAL), draw.choice(["same-plan", "same-plan", "any-workers"])
    split = tuple([draw.randint(2, x.ndim - 1) for _ in mesh])
    with use(mesh, numerics), narrow_links():
        given = ost.asarray(x, split=split)
        each = ost.compile(lambda *a: step(*a))
        before = [np.asarray(v) for v in each(given, weights)]
        with halos_widened(), interiors_cut() if seed % 2 else nullcontext():
            wide = ost.compile(lambda *a: step(*a))
            found = [np.asarray(v) for v in wide(given, weights)]
        wide.plan.to_file(tmp_path / "plan")
    assert Plan.from_file(tmp_path / "plan").lowered == wide.plan.lowered
    for a, b, c in zip(found, wanted, before, strict=True):
        np.testing.assert_allclose(a, b, 1e-10, 1e-10)
        if "conv" not in str(wide.plan.lowered):
            np.testing.assert_array_equal(a, c)
    assert halos_in(wide.plan.lowered) <= halos_in(each.plan.lowered)


@pytest.mark.parametrize(("mesh", "split"), [((4,), 2), ((2, 2), (2, 3))], ids=["slabs", "blocks"])
def test_the_price_of_messages_decides(mesh: Any, split: Any) -> None:
    """Convolutions, activations, a pool, with and without slopes: a halo each, or one for several."""

    def chain(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = ost.nn.relu(ost.nn.conv(x, w, padding=1))
        return ost.nn.max_pool(x, 3, stride=2, padding=1)

    def loss(x: Any, w: Any) -> Any:
        return (chain(x, w) ** 2).sum()

    x, w = (
        ost.spec((1, 2, 48, 48, 48), "float32", split=split),
        ost.spec((2, 2, 3, 3, 3), "float32"),
    )
    for function, seconds, fewer in ((chain, 3e-5, 2), (ost.grad(loss, (0, 1)), 1e-4, 5)):
        near, far = machine(1e-8, 1e11), machine(seconds, 1e9)
        plan = partial(ost.plan, function, x, w, mesh=mesh)
        assert not is_wide(plan(machine=near))
        wide = plan(machine=far)
        with no_wider_halos():
            each = plan(machine=far)
        assert halos_in(wide.lowered) <= fewer < halos_in(each.lowered)
        assert wide.simulate(far).seconds < 0.97 * each.simulate(far).seconds
        if len(mesh) > 1:
            break  # with slopes, more than a halo of blocks is worth less than halves


SPLITS = [((2,), 2), ((2,), 3), ((2, 2), (2, 3))]


@pytest.mark.parametrize(("mesh", "split"), [s for s in SPLITS if s[0] in SEVERAL])
def test_pieces_are_read_where_they_lie(mesh: Any, split: Any) -> None:
    """By the interior of the next step; and joined, as they are and in the shape in which it reads them."""

    def step(x: Any, w: Any) -> Any:
        y = ost.nn.max_pool(x, 3, stride=1, padding=1)
        return y + ost.nn.relu(ost.nn.conv(y, w, padding=1))

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(1, 1, 12, 11)), rng.normal(size=(1, 1, 3, 3))
    with use(ALONE):
        wanted = np.asarray(ost.compile(step)(x, w))
    with use(mesh), narrow_links(), halos_widened(), interiors_cut():
        run = ost.compile(step)
        np.testing.assert_allclose(run(ost.asarray(x, split=split), w), wanted, 1e-12, 1e-12)
    graph, slots = run.plan.program.graph, run.plan.program.slots
    inner = [k for k, n in enumerate(graph.nodes) if n.op in ("max_pool", "conv")][:2]
    assert [graph.nodes[k].op for k in inner] == ["max_pool", "conv"]
    assert slots[graph.starts[inner[0]]].kind == "part"
    assert contiguous(graph)[graph.starts[inner[0]]] == (split == 2)


def heat(turns: int) -> Callable[[Any], Any]:
    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        u, t = state
        inner = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]) + 0.01 * ost.sin(t)
        return u.at[1:-1].set(inner), t + 1.0

    return lambda u: ost.repeat(turns, step, (u, 0.0))[0]


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
@pytest.mark.parametrize("mesh", [m for m in SEVERAL if len(m) == 1 and m[0] > 1][:3])
def test_turns_of_stencils_share_a_halo(mesh: Any, numerics: Any, tmp_path: Any) -> None:
    """The bits of one turn after the other, whatever is left over, with interiors of their own where parts
    have as many places as windows reach, and where not."""
    u = np.random.default_rng(0).normal(size=37)
    for turns in (1, 5, 11):
        with use(mesh, numerics):
            given = ost.asarray(u, split=0)
            with narrow_links():
                wanted = np.asarray(ost.compile(heat(turns))(given))
            with narrow_links(), halos_widened(), interiors_cut():
                run = ost.compile(heat(turns))
                found = np.asarray(run(given))
            run.plan.to_file(tmp_path / "plan")
        np.testing.assert_array_equal(found, wanted)
        assert Plan.from_file(tmp_path / "plan").lowered == run.plan.lowered
        loops = [n for n in run.plan.lowered.nodes if n.op == "loop"]
        sent = sum(n.kw["trips"] * halos_in(n.kw["body"]) for n in loops)
        assert sent == {1: 1, 5: 2, 11: 2}[turns]


@pytest.mark.parametrize("seed", range(few(16)))
def test_wider_halos_stay_within_the_limit(seed: int) -> None:
    """What needs no more memory than there is without them is not refused for them."""
    draw = random.Random(seed)
    with use(ALONE):
        chain, x, weights = some_chain(draw, 4)
    given = [ost.spec(w.shape) for own in weights for w in own]

    def flat(x: Any, *given: Any) -> Any:
        taken = iter(given)
        return chain(x, [[next(taken) for _ in own] for own in weights])

    far = machine(1e-3, 1e3)
    shape = (1, x.shape[1], *(4 * n for n in x.shape[2:]))
    plan = partial(ost.plan, flat, ost.spec(shape, split=2), *given, mesh=(4,), machine=far)
    with no_wider_halos():
        limit = plan().peak_bytes
    with halos_widened():
        assert plan(memory_limit=limit).peak_bytes <= limit
