"""Operations in parts that share their scratch memory: the same values, within the limits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.divided import OWN_KERNEL, Division, Stretch, axes_of, moved_place, parse
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.registry import Place
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes.scratch import divisible, scratch_of_all, ways_of
from ostinato.planner.pipeline import tune
from ostinato.planner.plan import Choice, Plan, Tuned, peak_bytes
from ostinato.planner.tuning import sites as tuning
from ostinato.planner.tuning.divided_sites import with_parts
from ostinato.planner.tuning.sites import Site, sites

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, MemoryLimitError
from ostinato.sessions import Session
from tests.sessions import forget_plans, use

CPU = DEVICES["cpu"]
COPIED = "columns"  # a way of convolutions


def test_the_place_of_a_part() -> None:
    at = Place((((4, 9), (0, 3)), ((0, 3),)), (((4, 9), (0, 2)),), ((20, 3), (3,)), ((20, 2),))
    moved = moved_place(at, (0, -1, 0), 2, 3)
    assert (moved.ins, moved.outs) == ((((6, 9), (0, 3)), ((0, 3),)), (((6, 9), (0, 2)),))
    assert (moved.in_shapes, moved.out_shapes) == (at.in_shapes, at.out_shapes)


# -- texts ---------------------------------------------------------------------------------------
def test_a_division_is_a_text_and_back() -> None:
    rng = random.Random(1)
    for _ in range(50):
        parts = [
            (rng.randint(1, 40), rng.choice(["", "onednn", COPIED, OWN_KERNEL]))
            for _ in range(rng.randint(1, 9))
        ]
        made, whole = Division.from_parts("n", parts), sum(n for n, _ in parts)
        assert parse(str(made)) == made
        found = [*made.parts(whole)]
        assert sorted(part[1:] for part in found) == sorted(parts)
        for extent in (0, 1, whole // 2, whole + 17):  # of other workers
            found = [*made.parts(extent)]
            assert sum(n for _, n, _ in found) == extent
            assert len([*made.stretches(extent)]) <= len(made.runs) + 1  # however many parts
            assert [begin for begin, *_ in found] == list(
                np.cumsum([0, *(p[1] for p in found)])[:-1]
            )
    for text in ("", "onednn", "3 x 32", "3 x 32 along nn", "0 x 1 along n", "1 x -1 along n",
                 "1 x 2 by 1 x 3 along n along n"):  # fmt: skip
        assert parse(text) is None


# -- values --------------------------------------------------------------------------------------
class Forced:
    """Does each site in a way that is made up for it, and counts these."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.taken: list[str] = []
        self.plan: Plan | None = None

    def __call__(self, plan: Plan) -> Plan:
        graph = plan.program.graph
        found = [self.way(around, k) for around, k, _ in tuning.places(graph, plan.target)]
        choices = tuple([Choice("", "", way) for way in found])
        self.taken += found
        self.plan = tune(plan, lambda sites, room: Tuned("forced", choices[: len(sites)]), 2)
        return self.plan

    def way(self, graph: Graph, k: int) -> str:
        node = graph.nodes[k]
        ins = tuple([graph.specs[v] for v in node.inputs])
        labels = axes_of(node, ins)
        if not labels or self.random.random() < 0.1:
            return ""
        label = self.random.choice([*labels])
        extent = labels[label].extent([s.shape for s in ins])
        ways = [way for way in ways_of(graph, node, CPU) if way != ""]
        sizes = [self.random.randint(1, max(extent, 1)) for _ in range(self.random.randint(1, 3))]
        return str(Division.from_parts(label, [(n, self.random.choice(ways)) for n in sizes]))


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Forced:
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    made = Forced(3)
    monkeypatch.setattr(Session, "_tuned", lambda session, plan: made(plan))
    return made


def layer(
    x: Any, w: Any, stride: int = 1, padding: int = 1, dilation: int = 1, groups: int = 1
) -> tuple[Any, Any, Any]:
    def loss(x: Any, w: Any) -> Any:
        y = ost.nn.conv(
            x, w, stride=stride, padding=padding, dilation=dilation, groups=groups, layout="NHWC"
        )
        return (ost.nn.relu(y) ** 2).sum() / y.size, y

    (_, y), slopes = ost.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, w)
    return (y, *slopes)


def with_case(case: dict[str, int]) -> Any:
    return lambda x, w: layer(x, w, **case)


@pytest.mark.parametrize("workers", [1, 3])
def test_any_division_of_a_convolution_gives_its_values(forced: Forced, workers: int) -> None:
    """Forward and both backward ones, of any windows and groups, in any mixture of ways."""
    rng = np.random.default_rng(5)
    for turn in range(14 if workers == 1 else 6):
        dtype = (np.float64, np.float32)[turn % 2]
        groups, (c, o) = int(rng.choice([1, 1, 2])), rng.integers(1, 4, 2)
        names = {"stride": (1, 3), "padding": (0, 3), "dilation": (1, 3)}
        case = {name: int(rng.integers(*r)) for name, r in names.items()} | {"groups": groups}
        x = rng.standard_normal((int(rng.integers(2, 8)), 9, 8, groups * c))
        w = rng.standard_normal((3, 2, c, groups * o))
        with use(numerics="any-workers"):
            known = [np.asarray(v) for v in layer(ost.asarray(x), ost.asarray(w), **case)]
        with use((workers,), "fast"):
            given = ost.asarray(x.astype(dtype), split=0), ost.asarray(w.astype(dtype))
            forget_plans()
            made = ost.compile(with_case(case))(*given)
            for y, expected in zip(made, known, strict=True):
                bound = {"f": 1e-4, "d": 1e-11}[np.dtype(dtype).char]
                np.testing.assert_allclose(y, expected, rtol=bound, atol=bound)
    divided = [way for way in forced.taken if parse(way) is not None]
    assert len(divided) > 6
    texts = " ".join(divided)
    assert all(word in texts for word in (COPIED, OWN_KERNEL, "along n", "along c"))


def test_any_division_of_other_operations_gives_their_values(forced: Forced) -> None:
    """Orders, factorizations, products with narrow operands: what needs scratch memory, and what does not."""
    rng = np.random.default_rng(6)
    a = rng.standard_normal((7, 6, 6)) + 6 * np.eye(6)
    functions: list[tuple[Any, Any]] = [
        (lambda a: ost.sort(a, axis=1), lambda a: np.sort(a, axis=1)),
        (lambda a: ost.argsort(a, axis=2), lambda a: np.argsort(a, axis=2)),
        (lambda a: ost.linalg.inv(a), np.linalg.inv),
        (lambda a: ost.linalg.pinv(a), np.linalg.pinv),
        (lambda a: a @ a, lambda a: a @ a),
        (lambda a: ost.einsum("bij,bkj->ik", a, a), lambda a: np.einsum("bij,bkj->ik", a, a)),
        (lambda a: ost.cumulative_sum(a, axis=1), lambda a: np.cumsum(a, axis=1)),
    ]
    for ours, theirs in functions:
        for _ in range(3):
            with use(numerics="fast"):
                forget_plans()
                made = ost.compile(ours)(ost.asarray(a))
            np.testing.assert_allclose(made, theirs(a), rtol=1e-9, atol=1e-9)
    assert sum(parse(way) is not None for way in forced.taken) > 8


def test_the_parts_of_a_reduced_index_are_combined(forced: Forced) -> None:
    """Slopes of weights over samples: 5 parts, and addends of two workers on top of that."""
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((11, 5, 5, 2)), rng.standard_normal((3, 3, 2, 3))
    with use(numerics="any-workers"):
        known = np.asarray(layer(ost.asarray(x), ost.asarray(w))[2])

    def way(graph: Graph, k: int) -> str:
        node = graph.nodes[k]
        if node.op != "conv" or node.specs[0].shape[1:3] != (3, 3):
            return ""
        assert axes_of(node, tuple(graph.specs[v] for v in node.inputs))["c"].monoid == "sum"
        return f"2 x 3 by {COPIED} + 1 x 2 by {OWN_KERNEL} along c"

    forced.way = way  # type: ignore[method-assign]
    for workers in (1, 2):
        with use((workers,), "fast"):
            forget_plans()
            step = ost.compile(lambda x, w: layer(x, w)[2])
            np.testing.assert_allclose(step(ost.asarray(x, split=0), ost.asarray(w)), known, 1e-10)
            assert sum("along c" in t for t in forced.taken) == workers


# -- limits --------------------------------------------------------------------------------------
def most_scratch(plan: Plan) -> int:
    return max((n for *_, n in scratch_of_all(plan.program.graph, CPU)), default=0)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions by copied windows, as the rule says, so that limits have something to do."""
    monkeypatch.setattr(settings, "tune", "off")
    native = CPU.natives["conv"]

    def scratch(ins: Any, outs: Any, specs: Any, way: str = "", **p: Any) -> Any:
        assert native.scratch is not None
        return native.scratch(ins, outs, specs, way=way or COPIED, **p)

    def make(arrays: Any, threads: int, way: str = "", **p: Any) -> Any:
        return native.make(arrays, threads, way=way or COPIED, **p)

    changed = type(native)(make, scratch, lambda *_: [(COPIED,)], placed=native.placed)
    monkeypatch.setitem(CPU.natives, "conv", changed)
    forget_plans()
    yield
    forget_plans()


def given(samples: int = 13) -> tuple[Any, Any]:
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((samples, 10, 10, 4)), rng.standard_normal((3, 3, 4, 5)) / 6
    return ost.asarray(x), ost.asarray(w)


@pytest.mark.usefixtures("copying")
def test_a_scratch_limit_is_kept_with_the_same_values() -> None:
    operands = given()
    free = ost.compile(lambda x, w: layer(x, w))
    known = [np.asarray(y) for y in free(*operands)]
    most, seen = most_scratch(free.plan), []
    for limit in (most, most - 1, most // 4, most // 11, 30_000, 0):
        held = ost.compile(lambda x, w: layer(x, w), scratch_limit=limit)  # type: ignore[call-overload]
        for y, expected in zip(held(*operands), known, strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
        assert most_scratch(held.plan) <= limit
        ways = [n.kw.get("way", "") for n in held.plan.program.graph.nodes if n.op == "conv"]
        seen.append(ways)
        assert held.plan.id != free.plan.id
        again = decode_plan(encode_plan(held.plan))
        assert (again.id, again.program) == (held.plan.id, held.plan.program)
        if limit < most:
            assert "scratch   conv" in str(held.plan.explain())
    assert seen[0] == [""] * 3
    assert sum(way != "" for way in seen[1]) == 1  # one byte less than the largest needs
    (two,) = [way for way in seen[1] if way]
    assert two == "1 x 8 + 1 x 5 along n"
    assert all(parse(way) is not None for way in seen[2])
    assert all(OWN_KERNEL in way for way in seen[-1])


def test_parts_read_no_large_operand_again() -> None:
    """Of images, filters and results the large ones have samples; filters' slopes add up over these."""
    rng = np.random.default_rng(4)
    x, w, g = (rng.normal(size=n) for n in ((16, 3, 63, 63), (8, 3, 7, 7), (16, 8, 32, 32)))

    def layer(x: Any, w: Any, g: Any) -> Any:
        y, back = ost.vjp(lambda w: ost.nn.conv(x, w, stride=2, padding=3), w)
        return y, back(g)[0]

    with use():
        plan = ost.compile(layer, scratch_limit=700_000).plan_for(x, w, g)
    ways = [n.kw["way"] for n in plan.program.graph.nodes if "along" in n.kw.get("way", "")]
    assert [way[-1] for way in ways] == ["n", "c"]  # of slopes, c are samples


@pytest.mark.usefixtures("copying")
def test_scratch_memory_gives_way_before_anything_is_cut() -> None:
    """Under a limit of all memory the same plan runs, with less scratch memory where little is left."""
    operands = given()
    free = ost.compile(lambda x, w: layer(x, w))
    known = [np.asarray(y) for y in free(*operands)]
    before = free.plan.peak_bytes
    for share in (0.9, 0.75, 0.6):
        limit = int(before * share)
        held = ost.compile(lambda x, w: layer(x, w), memory_limit=limit)  # type: ignore[call-overload]
        for y, expected in zip(held(*operands), known, strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
        assert peak_bytes(held.plan.program) <= limit
        nodes = held.plan.program.graph.nodes
        assert not any(n.op == "blocks" for n in nodes)
        assert any(parse(n.kw.get("way", "")) is not None for n in nodes if n.op == "conv")


@pytest.mark.usefixtures("copying")
def test_limits_hold_in_loops_and_on_workers() -> None:
    x, w = given(24)
    with use((3,)):
        x = ost.asarray(np.asarray(x), split=0)
        limit = 24 * 100 * 36 * 8 // 3 // 2  # half of what a worker's part would take
        held = ost.compile(  # type: ignore[call-overload]
            lambda x, w: ost.repeat(3, lambda u: layer(x, u)[2] * 0.1 + u, w), scratch_limit=limit
        )
        made = np.asarray(held(x, w))
        assert 0 < most_scratch(held.plan) <= limit
    u = np.asarray(w)
    with use(numerics="any-workers"):
        for _ in range(3):
            u = np.asarray(layer(ost.asarray(np.asarray(x)), ost.asarray(u))[2]) * 0.1 + u
    np.testing.assert_allclose(made, u, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("copying")
def test_nothing_is_divided_under_any_workers() -> None:
    with use(numerics="any-workers"):
        held = ost.compile(lambda x: ost.sort(x, axis=1), scratch_limit=0)  # type: ignore[call-overload]
        x = ost.asarray(np.random.default_rng(9).standard_normal((64, 3000, 4)))
        with pytest.raises(MemoryLimitError, match=r"undivided under any-workers.*scratch_limit=0"):
            held(x)
    with pytest.raises(ArgumentError, match="scratch_limit=-1"):
        ost.compile(scratch_limit=-1)(layer)


# -- timing --------------------------------------------------------------------------------------
def test_timing_finds_the_fastest_division(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied windows of 50 us a part and 1 us an element, and an own kernel of 60 us an element: of 13
    samples 3 fit at once, so 4 parts of 3 and one of 1 are best, by copied windows."""
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    monkeypatch.setattr(settings, "tune", "off")
    each = {COPIED: (50e-6, 1e-6), OWN_KERNEL: (0.0, 60e-6)}
    asked: list[Site] = []

    def seconds(way: str, extent: int) -> float:
        found = parse(way)
        parts = [(extent, way)] if found is None else [p[1:] for p in found.parts(extent)]
        return sum(start + n * one for n, w in parts for start, one in [each.get(w, (1.0, 1.0))])

    def clock(found: Sequence[Site], room: int | None = None) -> Tuned:
        asked.extend(found)
        choices = []
        for site in found:
            (out,) = site.graphs[0].out_specs[:1]
            times = {way: seconds(way, out.shape[0]) for way in site.ways}
            best = min(times, key=lambda way: times[way]) if "conv" in site.what else ""
            choices.append(Choice(site.what, site.line, best, tuple(times.items())))
        return Tuned("clock", tuple(choices))

    operands = given()
    with use(numerics="fast"):
        held = ost.compile(  # type: ignore[call-overload]
            lambda x, w: ost.nn.conv(x, w, padding=1, layout="NHWC"),
            scratch_limit=3 * 100 * 36 * 8 + 36 * 5 * 8 + 63,
        )
        plan = tune(held.plan_for(*operands), clock, 1)
    (conv,) = [n for n in plan.program.graph.nodes if n.op == "conv"]
    assert conv.kw["way"] == f"4 x 3 by {COPIED} + 1 x 1 by {COPIED} along n"
    probes = [way for site in asked for way in site.ways if parse(way) is not None]
    assert {f"1 x {n} by {COPIED} along n" for n in (3, 1)} < {*probes}
    assert COPIED not in {way for site in asked for way in site.ways}
    assert most_scratch(plan) <= (plan.target.scratch_limit or 0)


def test_parts_stay_in_cache_where_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 MiB of copied windows are offered in parts of at most 4 MiB, none of 2 MiB is."""
    monkeypatch.setattr(settings, "tune", "off")
    for samples, divided in ((180, True), (70, False)):
        asked: list[Site] = []

        def clock(found: Sequence[Site], asked: list[Site] = asked) -> Tuned:
            asked.extend(found)
            times = [tuple((way, 1.0 / len(way)) for way in site.ways) for site in found]
            return Tuned("clock", tuple([Choice("", "", "", t) for t in times]))

        with use(numerics="fast"):
            held = ost.compile(lambda x, w: ost.nn.conv(x, w, padding=1, layout="NHWC"))
            plan = held.plan_for(*given(samples))
            program = plan.program
            found = sites(program.graph, plan.target, 1)
            made = with_parts(found, program, plan.target, 1, clock)
        texts = [way for site in asked for way in site.ways]
        assert bool(texts) == divided == (made != found)
        assert all("1 x 180 by" not in text and COPIED in text for text in texts)


def test_what_needs_no_scratch_memory_is_not_divided() -> None:
    x = ost.compile(lambda x: x @ x).plan_for(ost.ones((8, 8))).program.graph
    assert divisible(x, 0, CPU) is None
    assert parse(str(Division("n", (Stretch(1, 2, ""),)))) == Division("n", (Stretch(1, 2, ""),))


def test_kernels_in_stages_come_apart_where_they_have_no_room() -> None:
    x = np.random.default_rng(10).standard_normal((300, 700))
    known = np.exp(x - x.max(1, keepdims=True)).sum(0)
    for limit in (None, 0):
        held = ost.compile(  # type: ignore[call-overload]
            lambda x: ost.exp(x - x.max(1)[:, None]).sum(0), scratch_limit=limit
        )
        np.testing.assert_allclose(held(ost.asarray(x)), known, rtol=1e-12)
        assert (most_scratch(held.plan) > 0) == (limit is None)
