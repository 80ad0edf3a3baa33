"""What is large between products is made in blocks that stay in cache, if that moves fewer bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.nn import convolution
from ostinato.planner import lowering
from ostinato.planner.cpu import fuse
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes import cache_blocking
from ostinato.planner.plan import Plan

import ostinato as ost
from tests.sessions import forget_plans, use


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = q @ xp.swapaxes(k, -1, -2) / 4
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return (e / xp.sum(e, axis=-1, keepdims=True)) @ v


def nearest(xp: Any, x: Any, c: Any) -> Any:
    return xp.min((x * x).sum(1)[:, None] - 2 * (x @ c.T) + (c * c).sum(1), axis=1)


def lloyd(xp: Any, x: Any, c: Any) -> Any:
    d = (c * c).sum(1) - 2 * (x @ c.T)
    near = xp.astype(xp.argmin(d, axis=1)[:, None] == xp.arange(c.shape[0]), x.dtype)
    return near.T @ x, near.sum(0)


def network(xp: Any, x: Any, a: Any, b: Any) -> Any:
    return xp.maximum(x @ a, 0) @ b


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (attention, tuple(numbers(400, 40, seed=k) for k in range(3))),
    "heads": (attention, tuple(numbers(3, 300, 40, seed=k) for k in range(3))),
    "nearest": (nearest, (numbers(1500, 40), numbers(130, 40, seed=1))),
    "lloyd": (lloyd, (numbers(1500, 40), numbers(130, 40, seed=1))),
    "network": (network, (numbers(1500, 40), numbers(40, 130, seed=1), numbers(130, 30, seed=2))),
}


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything a hundredth of its size, and turns cost nothing."""
    forget_plans()
    for name, size in (("MIN_VALUE_BYTES", 1 << 18), ("CACHED_BYTES", 3 << 16), ("START", 0)):
        monkeypatch.setattr(cache_blocking, name, size)
    cpu = dataclasses.replace(lowering.RULES["cpu"], cache=1 << 15)
    monkeypatch.setitem(lowering.RULES, "cpu", cpu)
    monkeypatch.setattr(fuse, "WORTH", 0)
    yield
    forget_plans()


def turns(plan: Plan) -> list[int]:
    return [n.kw["turns"] for n in plan.lowered.nodes if n.op == "blocks"]


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("mesh", [(1,), (2,)])
@pytest.mark.parametrize("name", CASES)
def test_nothing_large_lies_between(name: str, mesh: tuple[int, ...]) -> None:
    function, given = CASES[name]
    wide = [x.astype(np.float64) for x in given]
    exact = function(np, *wide)
    with use(mesh):
        f = ost.compile(lambda *xs: function(ost, *xs))
        first, *others = given
        found = f(ost.asarray(first, split=0), *map(ost.asarray, others))
        assert len(turns(f.plan)) >= (name != "nearest")  # whose minima are made with its rows
        assert f.plan.arena_bytes < 600_000
        both = (found, exact) if isinstance(exact, tuple) else ((found,), (exact,))
        for y, z in zip(*both, strict=True):
            np.testing.assert_allclose(y, z, rtol=2e-4, atol=2e-4 * np.abs(z).max())
        again = decode_plan(encode_plan(f.plan))
        assert again.program == f.plan.program
        assert again.id == f.plan.id


@pytest.mark.usefixtures("small_cache")
def test_what_gains_nothing_stays_whole() -> None:
    x, c = numbers(1500, 40), numbers(130, 40, seed=1)
    for function, given in (
        (lambda x, c: x @ c.T, (x, c)),  # the product itself is wanted
        (lambda x, c: ost.exp(x @ c.T), (x, c)),  # made with the product's rows
        (lambda x: ost.nn.softmax(x * 2), (numbers(400, 400),)),  # one kernel
        (lambda x, c: (x[:100] @ c.T).sum(), (x, c)),  # small
    ):
        with use():
            assert turns(ost.compile(function).plan_for(*map(ost.asarray, given))) == []


@pytest.mark.usefixtures("small_cache")
def test_bits_of_any_workers_stay_what_they_are() -> None:
    function, given = CASES["attention"]
    with use((1,), "any-workers"):
        f = ost.compile(lambda *xs: function(ost, *xs))
        assert turns(f.plan_for(*map(ost.asarray, given))) == []


def image_slopes(stride: int, x: Any, w: Any, g: Any) -> Any:
    return ost.grad(lambda x: (ost.nn.conv(x, w, padding=1, stride=stride) * g).sum())(x)


def weight_slopes(stride: int, x: Any, w: Any, g: Any) -> Any:
    return ost.grad(lambda w: (ost.exp(ost.nn.conv(x, w, padding=1, stride=stride)) * g).sum())(w)


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("slopes", [image_slopes, weight_slopes])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [24, 26])
def test_slopes_of_volumes_in_turns(
    slopes: Any, stride: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns begin at other places; the library's function is that of all whose windows begin alike."""
    by_numpy, own = [0], convolution._kernel

    def counted(*given: Any, **facts: Any) -> None:
        by_numpy[0] += 1
        own(*given, **facts)

    monkeypatch.setattr(convolution, "_kernel", counted)
    x, w = numbers(1, 12, size, 24, 24), numbers(8, 12, 3, 3, 3) / 9
    given = x, w, numbers(1, 8, size // stride, 24 // stride, 24 // stride)
    with use(numerics="any-workers"):
        whole = ost.compile(lambda *xs: slopes(stride, *xs))(*map(ost.asarray, given))
    by_numpy[0] = 0
    with use():
        f = ost.compile(lambda *xs: slopes(stride, *xs))
        found = f(*map(ost.asarray, given))
        assert turns(f.plan) or stride > 1
        np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-3 * np.abs(whole).max())
    if stride == 1 and not isinstance(onednn.library(), str):
        assert by_numpy == [0]


def two_deep(x: Any, w: Any, v: Any, g: Any) -> Any:
    def loss(x: Any) -> Any:
        made = ost.nn.relu(ost.nn.conv(x, w, padding="same"))
        return (ost.nn.conv(made, v, padding="same") * g).sum()

    return ost.grad(loss)(x)


VOLUME, MADE = (1, 32, 64, 64, 64), (1, 16, 64, 64, 64)
BY_SHAPES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], bool]] = {
    "one convolution": (lambda *xs: image_slopes(1, *xs), (VOLUME, (16, 32, 3, 3, 3), MADE), True),
    # each turn would make three rows of windows on windows again
    "two": (two_deep, (VOLUME, (32, 32, 3, 3, 3), (16, 32, 3, 3, 3), MADE), False),
    "two by one element": (two_deep, (VOLUME, (32, 32, 1, 1, 1), (16, 32, 1, 1, 1), MADE), True),
    "attention": (lambda *xs: attention(ost, *xs), ((4096, 64),) * 3, True),
    "lloyd": (lambda *xs: lloyd(ost, *xs), ((200_000, 32), (256, 32)), True),
}


@pytest.mark.parametrize("machine", ["nominal", "prompt"])
@pytest.mark.parametrize("name", BY_SHAPES)
def test_what_turns_make_again_is_weighed(name: str, machine: str) -> None:
    function, shapes, pays = BY_SHAPES[name]
    plan = ost.plan(function, *map(ost.spec, shapes), machine=machine)
    assert bool(turns(plan)) == pays


def test_slopes_of_attention_at_full_size() -> None:
    q, k, v = (numbers(3000, 40, seed=s) for s in range(3))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (attention(ost, q, k, v) ** 2).sum()

    with use():
        f = ost.compile(ost.grad(loss))
        plan = f.plan_for(*map(ost.asarray, (q, k, v)))
        assert len(turns(plan)) >= 1
        assert plan.arena_bytes < 3000 * 3000 * 4
        g = np.asarray(f(*map(ost.asarray, (q, k, v))))
        step = numbers(3000, 40, seed=9)
        ahead, behind = (
            float(np.sum(attention(np, q + s * step, k, v).astype(np.float64) ** 2))
            for s in (1e-3, -1e-3)
        )
    slope = float(np.sum(g.astype(np.float64) * step))
    assert abs(slope - (ahead - behind) / 2e-3) < 2e-2 * abs(slope)
