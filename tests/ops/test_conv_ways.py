"""Each way in which a CPU does a convolution, by itself: its results, its errors, the memory that it says."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import DEVICES
from ostinato.ops.cpu import natives
from ostinato.ops.cpu.kernels import conv_ways
from ostinato.ops.cpu.libraries import onednn
from ostinato.planner.passes.memory import scratch_bytes
from ostinato.planner.plan import Choice
from ostinato.planner.tuning import sites, tuner

import ostinato as ost
from ostinato import settings
from tests import thorough
from tests.helpers import on

from . import windows_by_numpy as by_numpy
from .test_convolution import some_conv

# By which an error may exceed the rounding of the sum of all products' sizes, for sums of hundreds of terms.
ERRORS = {"columns": 2, "direct": 2, "winograd2": 4, "winograd4": 40, "fft": 8}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that says the way of all convolutions from now on; a list of those done so."""
    wanted, done = [""], list[str]()

    def get(_: Any, site: sites.Site) -> Choice:
        if not any(n.op in ("conv", "fused_product") for n in site.graphs[0].nodes):
            return Choice(site.what, site.line)
        found = wanted[0] if wanted[0] in site.ways else ""
        done.append(found)
        return Choice(site.what, site.line, found)

    monkeypatch.setattr(tuner.Known, "get", get)
    monkeypatch.setattr(settings, "tune", "read")
    monkeypatch.setattr(sites, "WORTH", 0)
    for name in ("MIN_WINDOW", "MIN_CHANNELS"):  # small ones, too
        monkeypatch.setattr(conv_ways, name, 1)

    def force(way: str) -> list[str]:
        wanted[0] = way
        done.clear()
        return done

    return force


def some(way: str, seed: int) -> tuple[Any, Any, dict[str, Any], Any]:
    draw = random.Random(f"{way}{seed}")
    x, w, p, pads = some_conv(draw, seed % 3 + 1)
    if way.startswith("winograd"):
        rng = np.random.default_rng(seed)
        c, o = draw.choice(((16, 16), (17, 20)))
        x = rng.normal(size=(draw.randint(1, 3), c, draw.randint(4, 11), draw.randint(4, 12)))
        w, pads = rng.normal(size=(o, c, 3, 3)), [(draw.randint(0, 2), 1) for _ in range(2)]
        p = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
    if way == "direct" and seed > 2:  # few filters of many channels
        rng = np.random.default_rng(seed)
        x, w = (
            rng.normal(size=(2, 16 * p["groups"], *x.shape[2:])),
            rng.normal(size=(3 * p["groups"], 16, *w.shape[2:])),
        )
    if way == "fft":
        p["stride"] = (1,) * (x.ndim - 2)
    return x, w, p, pads


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("way", "seed"), thorough.some([*itertools.product(conv_ways.CONV_WAYS, range(5))], 2)
)
def test_a_way_alone(way: str, seed: int, forced: Any) -> None:
    """Forward and both backwards, of whole images and of parts, with something behind; slopes whose windows
    the way has not are done by rule."""
    x, w, p, pads = some(way, seed)
    wanted = by_numpy.conv(x, w, p["stride"], pads, p["dilation"], p["groups"]) + 1
    size = by_numpy.conv(abs(x), abs(w), p["stride"], pads, p["dilation"], p["groups"]).max()
    g = np.random.default_rng(seed).normal(size=wanted.shape)

    def step(x: Any, w: Any, g: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            y = ost.nn.conv(x, w, padding=pads, **p) + 1
            return (y * g).sum(), y

        (_, y), slopes = ost.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return y, *slopes

    with on(1):
        exact = [np.asarray(v) for v in ost.compile(step)(x, w, g)]
    np.testing.assert_allclose(exact[0], wanted, 1e-11, 1e-11)
    for dtype in (np.float32, np.float64):
        if way.startswith("winograd") and dtype == np.float64:
            continue
        low = [v.astype(dtype) for v in (x, w, g)]
        bound = ERRORS[way] * np.finfo(dtype).eps * size
        for workers, split in ((1, None), (2, 0), (2, 2)):
            done = forced(way)
            with on(workers, numerics="fast"):
                found = ost.compile(step)(ost.asarray(low[0], split=split), *low[1:])
                assert way in done or workers > 1
                for k, (y, exactly) in enumerate(zip(found, exact, strict=True)):
                    scale = max(bound, 1e-5 * np.abs(exactly).max() * (k > 0))
                    np.testing.assert_allclose(np.asarray(y), exactly, 0, scale)


@pytest.mark.cpu_only
@pytest.mark.parametrize("way", conv_ways.CONV_WAYS)
def test_memory_of_a_way_is_the_arenas(way: str, forced: Any) -> None:
    """Said of the node before it runs, and so not taken where it does not fit."""
    x, w = np.ones((2, 20, 12, 13), np.float32), np.ones((24, 20, 3, 3), np.float32)

    by = 1.5 + conv_ways.CONV_WAYS.index(way)  # else the plan that was made of another way would do

    def function(x: Any, w: Any) -> Any:
        return ost.nn.conv(x, w, padding=1, layout="NCHW") * by

    forced(way)
    with on(1, numerics="fast"):
        made = ost.compile(function)
        np.testing.assert_allclose(np.asarray(made(x, w))[0, 0, 5, 5], 180 * by, 1e-5)
        program, least = made.plan.program, 0
    for node in program.graph.nodes:
        if node.kw.get("way") == way:
            least = sum(scratch_bytes(DEVICES["cpu"], program.graph, node))
    assert program.arena_bytes >= least >= 4 * 2 * 20 * 12 * 13
    forced("")
    with on(1, numerics="fast"):
        other = ost.compile(lambda x, w: function(x, w) + 1)
        other(x, w)
        limit = other.plan.peak_bytes + 64
    if made.plan.peak_bytes <= limit:
        return  # it needs no more than the rule's
    forced(way)
    with on(1, numerics="fast", memory_limit=limit):
        bounded = ost.compile(function)
        np.testing.assert_allclose(np.asarray(bounded(x, w))[0, 0, 5, 5], 180 * by, 1e-5)
        assert not any(n.kw.get("way") == way for n in bounded.plan.program.graph.nodes)


RULED = [  # images, filters, stride, groups; the ways of forward and both backwards
    ((3, 16, 90), (16, 1, 31), 1, 16, ["direct"] * 3),
    ((2, 1, 500), (16, 1, 63), 1, 1, ["direct", "direct", "direct"]),
    ((2, 1, 20, 21), (32, 1, 5, 5), 1, 1, ["", "direct", ""]),
    ((2, 1, 9, 8, 7), (32, 1, 3, 3, 3), 1, 1, ["direct", "direct", ""]),
    ((2, 32, 21, 22), (32, 1, 5, 5), 2, 32, ["", "", "direct"]),
    ((1, 16, 8, 9, 7), (16, 1, 3, 3, 3), 1, 16, ["direct"] * 3),
    ((2, 4, 45, 46), (8, 4, 21, 20), 1, 1, ["", "", "direct"]),
    ((2, 32, 20, 20), (32, 32, 3, 3), 1, 1, ["", "", ""]),
]


@pytest.mark.parametrize("case", RULED)
def test_what_the_library_has_not(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By rule, without timing, and without NumPy's product for each element of a window."""
    if isinstance(onednn.library(), str):
        pytest.skip(onednn.library())
    shape, filters, stride, groups, ways = case
    k, done = len(shape) - 2, list[str]()
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=shape), rng.normal(size=filters)
    pads = [(1, 1)] * k
    wanted = by_numpy.conv(x, w, (stride,) * k, pads, (1,) * k, groups)
    g = rng.normal(size=wanted.shape)

    def told(way: str, *given: Any) -> Any:
        done.append(way)
        made = conv_by(way, *given)
        assert made is not None
        return made

    conv_by = natives.conv_by
    monkeypatch.setattr(settings, "tune", "off")
    monkeypatch.setattr(natives, "conv_by", told)

    def step(x: Any, w: Any, g: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            y = ost.nn.conv(x, w, stride=stride, padding=1, groups=groups)
            return (y * g).sum(), y

        (_, y), slopes = ost.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return y, *slopes

    with on(1):
        exact = [np.asarray(v) for v in ost.compile(step)(x, w, g)]
        done.clear()
        found = ost.compile(step)(*(v.astype(np.float32) for v in (x, w, g)))
    np.testing.assert_allclose(exact[0], wanted, 1e-11, 1e-11)
    assert sorted(done) == sorted(filter(None, ways))
    for y, exactly in zip(found, exact, strict=True):
        np.testing.assert_allclose(np.asarray(y), exactly, 0, 2e-6 * np.abs(exactly).max())
