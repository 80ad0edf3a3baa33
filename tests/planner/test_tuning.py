"""What timing may choose: every way computes the same, and a choice is made once and kept."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import disk_cache
from ostinato.ops.core.graph import Graph
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.pipeline import tune
from ostinato.planner.plan import ONE_THREAD, Choice, Plan, Tuned
from ostinato.planner.seeing.explain import told
from ostinato.planner.tuning import sites as tuning
from ostinato.planner.tuning import tuner as tuner_of
from ostinato.planner.tuning.sites import APART, Site, sites
from ostinato.planner.tuning.tuner import GAIN, Budget, Known, Tuner, decide
from ostinato.runtime.engine import LocalEngine

import ostinato as ost
from ostinato import settings
from ostinato.sessions import Session
from tests.planner.test_nests import check, make_small_things_count, program
from tests.planner.test_nests import run as steps_of
from tests.sessions import forget_plans, use

INF = float("inf")


def site(*ways: str, kind: str = "k") -> Site:
    return Site(kind, "matmul -> float32[8]", "a.py:1", ways, (Graph((), (), ()),) * len(ways))


class Clock:
    """Gives rounds that were agreed upon, and counts who asked."""

    def __init__(self, *row: float, times: int = 5) -> None:
        self.rounds = [row] * times
        self.asked: list[float] = []

    def __call__(self, programs: Sequence[Any], limit: float) -> Sequence[Sequence[float]]:
        self.asked.append(limit)
        return self.rounds


def tuner(clock: Clock, **more: Any) -> Tuner:
    given = {"known": Known(None, "here"), "budget": Budget(100.0), **more}
    return Tuner(clock, **given)


# -- every way is right --------------------------------------------------------------------
class Dice:
    """Takes any way of each site; counts them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.taken: list[str] = []

    def __call__(self, session: Session, plan: Plan) -> Plan:
        return tune(plan, self.choose, 2)

    def choose(self, found: Sequence[Site], room: int | None) -> Tuned:
        ways = [self.random.choice(["", *s.ways[1:]]) for s in found]
        self.taken += ways
        return Tuned("dice", tuple([Choice("", "", way) for way in ways]))


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> Dice:
    make_small_things_count(monkeypatch)
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    made = Dice(7)
    monkeypatch.setattr(Session, "_tuned", lambda session, plan: made(session, plan))
    return made


@pytest.mark.cpu_only
def test_any_way_computes_the_same(dice: Dice) -> None:
    for seed in range(500, 518):
        dice.random.seed(seed)
        dtype = (np.float64, np.float32)[seed % 3 == 0]
        check(seed, workers=(1, 2)[seed % 2], dtype=dtype, numerics="fast")
    assert {APART, ONE_THREAD, "64 rows at a time", "512 rows at a time"} <= {*dice.taken}


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_and_loops_in_any_way(dice: Dice, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 90, 90)).astype(dtype) / 9

    def steps(xp: Any, a: Any, b: Any) -> Any:
        y = a
        for _ in range(3):
            y = xp.tanh(y @ b) + xp.einsum("ij,kj->ik", y, b) / 2
        return y

    with use(numerics="fast"):
        f = ost.compile(lambda a, b: ost.repeat(3, lambda y: ost.tanh(y @ b) + ost.einsum(
            "ij,kj->ik", y, b) / 2, a))  # fmt: skip
        for seed in range(6):
            dice.random.seed(seed)
            y = f(ost.asarray(a), ost.asarray(b))
            np.testing.assert_allclose(y, steps(np, a, b), rtol=1e-4, atol=1e-5)
            forget_plans()  # and what runs them: each seed chooses other ways
            f = ost.compile(f.function)
    assert {*dice.taken} & (
        {"blas", "onednn packed", APART} if dtype == np.float32 else {ONE_THREAD}
    )


@pytest.mark.cpu_only
def test_bits_of_any_workers_do_not_depend_on_timing(dice: Dice) -> None:
    x = np.random.default_rng(2).standard_normal((400, 30)).astype(np.float32)
    seen = set()
    for workers in (1, 3):
        with use((workers,), "any-workers"):
            f = ost.compile(lambda x: (ost.exp(x - x.mean(0)) @ x.T).sum(1))
            for _ in range(3):
                seen.add(np.asarray(f(ost.asarray(x, split=0))).tobytes())
    assert len(seen) == 1
    assert {*dice.taken} <= {"", ONE_THREAD}
    assert ONE_THREAD in dice.taken


@pytest.mark.parametrize(("numerics", "count"), [("same-plan", 16), ("fast", 3)])
def test_timing_changes_no_bit_unless_it_may(
    numerics: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each cache was filled while another way seemed the fastest."""
    make_small_things_count(monkeypatch)
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    monkeypatch.setattr(settings, "tune", "on")
    monkeypatch.setattr(ost.sessions, "budget", Budget(1e9))
    of_few = np.random.default_rng(3).standard_normal((33, 777)).astype(np.float32)
    more: list[tuple[Any, Any]] = [
        (lambda x: ost.maximum(x @ x.T + x[:, 0], 0), of_few),
        (lambda x: x.T @ x, of_few.T),
        (lambda x: x @ x[0], of_few),
        (lambda x: ost.einsum("ij,kj->ik", x, x), of_few[:9]),
    ]
    for seed in range(600, 600 + count):
        given, steps = program(seed, (np.float64, np.float32)[seed % 2])
        more.append((lambda a, steps=steps: steps_of(ost, steps, a), given))
    taken, seen = set[str](), list[list[bytes]]()
    for k in (1, -2, -1):

        def stopwatch(self: Any, programs: Sequence[Any], limit: float, k: int = k) -> Any:
            return [[1.0 if j != k % len(programs) else 0.1 for j in range(len(programs))]] * 5

        monkeypatch.setattr(LocalEngine, "trials", stopwatch)
        monkeypatch.setattr(settings, "cache", tmp_path / str(k))
        with ost.connect(numerics=numerics, threads=2):
            functions = [ost.compile(f) for f, _ in more]
            made: list[Any] = []
            for f, (_, x) in zip(functions, more, strict=True):
                ost.tree_map(made.append, f(ost.tree_map(ost.asarray, x)))
            seen.append([np.asarray(y).tobytes() for y in made])
            taken |= {way for f in functions if f.plan.tuned for way in f.plan.tuned.ways}
    assert {ONE_THREAD, "64 rows at a time"} <= taken
    assert (seen[0] == seen[1] == seen[2]) == (numerics == "same-plan")
    assert (APART in taken) == (numerics == "fast")


def test_who_needs_more_memory_than_allowed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ost.zeros((4096, 256), dtype=ost.float32)
    limit = 2 * x.nbytes + 600_000
    monkeypatch.setattr(Session, "_tuned", lambda s, p: tune(p, all_apart, 1))

    def all_apart(found: Sequence[Site], room: int | None) -> Tuned:
        assert room is not None
        return Tuned("", tuple([Choice("", "", s.ways[-1]) for s in found]))

    def plan() -> Plan:
        return ost.compile(lambda x: ost.nn.softmax(x * x - x.max(1)[:, None])).plan_for(x)

    with ost.connect(memory_limit=limit, numerics="fast"):
        assert plan().tuned is None
        assert plan().peak_bytes <= limit
    with ost.connect(memory_limit=9 * limit, numerics="fast"):
        assert plan().tuned is not None
        assert plan().peak_bytes > limit


# -- kinds of sites ------------------------------------------------------------------------
def kinds(function: Any, *shapes: tuple[int, ...], dtype: Any = np.float32) -> list[str]:
    with use():
        plan = ost.compile(function).plan_for(*(ost.zeros(s, dtype=dtype) for s in shapes))
        return [s.kind for s in sites(plan.program.graph, plan.target, 2)]


def test_alike_are_of_one_kind() -> None:
    def chain(c: float) -> Any:
        return lambda x: ost.exp(x * c) + 1

    (here,) = kinds(chain(2.5), (1_000_000,))
    assert kinds(chain(3.5), (1_001_000,)) == [here]
    assert kinds(chain(2.5), (4_000_000,)) != [here]
    assert kinds(chain(2.5), (1_000_000,), dtype=np.float64) != [here]
    assert kinds(lambda x: ost.exp(x + 2.5) * 1, (1_000_000,)) != [here]
    assert kinds(chain(2.5), (10,)) == []


def test_ways_are_those_of_sites_in_order() -> None:
    """Down into bodies."""
    with use():
        f = ost.compile(lambda x: ost.exp(ost.repeat(3, lambda y: ost.tanh(y @ x) @ x, x @ x) + 1))
        plan = f.plan_for(ost.zeros((700, 700), dtype=ost.float32))
    names = [str(k) for k in range(len(sites(plan.program.graph, plan.target, 2)))]
    done = tuning.with_ways(plan.program.graph, plan.target, names)
    assert len(names) >= 4
    assert [around.nodes[k].kw["way"] for around, k, _ in tuning.places(done, plan.target)] == names
    assert len({around for around, *_ in tuning.places(done, plan.target)}) == 2


# -- decisions -----------------------------------------------------------------------------
def test_a_clear_gain_is_taken() -> None:
    assert decide(site("a", "b", "c"), [(1.0, 0.8, 0.7)] * 5).way == "c"


@pytest.mark.parametrize(
    ("rounds", "taken"),
    [
        ([(1.0, 2.0, 1.19)] * 5, ONE_THREAD),
        ([(1.0, 2.0, 1.21)] * 5, ""),
        ([(1.0, 0.5, 0.55)] * 5, ONE_THREAD),  # of the way that is best
        ([(1.0, 0.5, 0.65)] * 5, "b"),
        ([(1.0, 0.5, INF)] * 5, "b"),
        ([(1.0, 2.0, 1.1)] * 3 + [(1.0, 2.0, 1.5)] * 2, ""),  # too seldom
    ],
)
def test_all_threads_have_to_be_worth_it(rounds: Any, taken: str) -> None:
    """They are others' cores, too."""
    assert decide(site("a", "b", ONE_THREAD), rounds).way == taken


@pytest.mark.parametrize(
    "rounds",
    [
        [(1.0, 1 - GAIN / 2)] * 9,  # too little
        [(1.0, 0.5)] * 2,  # too seldom
        [(1.0, 0.5), (0.4, 0.9), (1.0, 0.9), (0.6, 0.9), (1.0, 0.5)],  # now this, now that
        [(1.0, 0.5), (1.0, 0.5), (1.0, INF), (1.0, INF)],  # given up
        [(1.0, INF)] * 5,  # not tried
        [],
    ],
)
def test_else_the_rule_stays(rounds: Any) -> None:
    assert decide(site("a", "b"), rounds).way == ""


def test_a_choice_says_what_was_timed() -> None:
    found = decide(site("a", "b", "c"), [(3.0, 1.0, INF), (5.0, 1.0, INF), (4.0, 2.0, INF)])
    assert found.times == (("a", 4.0), ("b", 1.0))


# -- who is asked --------------------------------------------------------------------------
def test_a_kind_is_timed_once() -> None:
    clock = Clock(1.0, 0.5)
    ask = tuner(clock)
    ways = [ask([site("a", "b")]).ways, ask([site("a", "b"), site("a", "b")]).ways]
    assert (ways, len(clock.asked)) == ([["b"], ["b", "b"]], 1)
    ask([site("a", "b", kind="other")])
    assert len(clock.asked) == 2
    ask([site("a")])
    assert len(clock.asked) == 2, "nothing to choose"


def test_timing_ends_with_its_budget() -> None:
    clock = Clock(1.0, 0.5)
    budget = Budget(1.0, site=0.4)
    ask = tuner(clock, budget=budget)
    for k in range(6):
        budget.spent = 0.3 * k
        ask([site("a", "b", kind=str(k))])
    assert clock.asked == pytest.approx([0.4, 0.4, 0.4, 0.1])


def test_what_is_known_may_be_read_only_or_timed_again() -> None:
    known = Known(None, "here")
    known.put(site("a", "b"), Choice("", "", "b", (("a", 2.0), ("b", 1.0))))
    clock = Clock(1.0, 1.0)
    assert tuner(clock, known=known, times=False)([site("a", "b")]).ways == ["b"]
    assert tuner(clock, known=known, times=False)([site("a", "b", kind="x")]).ways == [""]
    assert clock.asked == []
    again = tuner(clock, known=known, again=True)
    assert again([site("a", "b"), site("a", "b")]).ways == ["", ""]
    assert len(clock.asked) == 1


def test_a_way_that_is_gone_is_not_taken() -> None:
    known = Known(None, "here")
    known.put(site("a", "b"), Choice("", "", "b"))
    assert known.get(site("a", "c")) is None


def test_a_busy_moment_is_measured_again_and_not_kept() -> None:
    calm, busy = [(1.0, 0.5)] * 5, [(1.0, 0.1), (2.0, 0.5), (2.0, 0.5), (0.5, 0.2)]
    cases = {
        "b": (calm,),
        "a is kept": ([(0.5, 1.0)] * 5,),
        "later": (busy, calm),
        "": (busy, busy),
    }
    for name, shown in cases.items():
        left, asked = iter(shown), [0]

        def clock(programs: Any, limit: float, left: Any = left, asked: Any = asked) -> Any:
            asked[0] += 1
            return next(left)

        known = Known(None, "here")
        (choice,) = tuner(clock, known=known)([site("a", "b")]).choices
        assert choice.way == ("b" if name in ("b", "later") else "")
        assert choice.times, "it says what it saw"
        assert (known.get(site("a", "b")) is None) == (name == "")
        assert asked == [len(shown)]


# -- on disk -------------------------------------------------------------------------------
def test_what_was_found_outlives_the_process(tmp_path: Path) -> None:
    found = Choice("matmul -> float32[8]", "a.py:1", "b", (("a", 2.0), ("b", 1.0)))
    Known(tmp_path, "here").put(site("a", "b"), replace(found, way="a"))
    other = Known(tmp_path, "here")
    other.put(site("a", "b"), found)
    assert Known(tmp_path, "here").get(site("a", "b")) == found
    assert Known(tmp_path, "there").get(site("a", "b")) is None
    (file,) = (tmp_path / "tuned").iterdir()
    assert json.loads(file.read_text().splitlines()[0].split(" ", 1)[1]) == {"machine": "here"}


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"kind": "k"}', '{"kind": 1, "times": 3}',
                                    '{"kind": "k", "way": "a", "times": {"a": "soon"}}', "\x00" * 99])  # fmt: skip
def test_a_damaged_line_says_nothing(tmp_path: Path, damage: str) -> None:
    Known(tmp_path, "here").put(site("a", "b"), Choice("", "", "b"))
    (file,) = (tmp_path / "tuned").iterdir()
    with file.open("a") as f:
        f.write(f"{damage}\n")
    disk_cache.open_cache(tmp_path).add(f"tuned/{file.name}", [damage])
    known = Known(tmp_path, "here")
    assert known.get(site("a", "b")) is not None
    known.put(site("a", "b", kind="2"), Choice("", "", "a"))
    assert Known(tmp_path, "here").get(site("a", "b", kind="2")) is not None


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "MOST", 20)
    known = Known(tmp_path, "here")
    looks = []
    read = disk_cache.Cache.lines
    monkeypatch.setattr(
        disk_cache.Cache, "lines", lambda self, name: looks.append(self) or read(self, name)
    )
    for k in range(100):
        known.put(site("a", "b", kind=str(k)), Choice("", "", "b"))
    assert len(looks) == 8, "only when there are too many: at first after 20, then after 10 more"
    (file,) = (tmp_path / "tuned").iterdir()
    assert len(file.read_text().splitlines()) <= 22
    known = Known(tmp_path, "here")
    assert known.get(site("a", "b", kind="99")) is not None
    assert known.get(site("a", "b", kind="0")) is None
    assert json.loads(disk_cache.open_cache(tmp_path).lines(f"tuned/{file.name}")[0]) == {
        "machine": "here"
    }


def test_what_others_added_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "MOST", 20)
    mine, other = Known(tmp_path, "here"), Known(tmp_path, "here")
    for k in range(15):
        mine.put(site("a", "b", kind=f"mine {k}"), Choice("", "", "b"))
        other.put(site("a", "b", kind=f"other {k}"), Choice("", "", "b"))
    for k in range(15, 22):
        mine.put(site("a", "b", kind=f"mine {k}"), Choice("", "", "b"))
    both = Known(tmp_path, "here").choices.keys()
    assert {"mine 21", "mine 14", "other 14"} <= both
    assert not {"mine 0", "other 0"} & both


def test_a_file_that_cannot_be_made_shorter_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Known, "MOST", 20)
    known = Known(tmp_path, "here")

    def fails(*names: Any) -> None:
        raise OSError("the disk is full")

    known.put(site("a", "b", kind="0"), Choice("", "", "b"))
    monkeypatch.setattr(os, "replace", fails)
    for k in range(1, 30):
        known.put(site("a", "b", kind=str(k)), Choice("", "", "b"))
    (file,) = (tmp_path / "tuned").iterdir()
    assert len(file.read_text().splitlines()) == 31


# -- plans ---------------------------------------------------------------------------------
def a_tuned_plan() -> Plan:
    with use(numerics="fast"):
        x = ost.zeros((600, 600), dtype=ost.float32)
        plan = ost.compile(lambda x: x @ x + 1).plan_for(x)
        return tune(plan, tuner(Clock(2e-3, 1e-3, 3e-3)), 2)


@pytest.mark.cpu_only
def test_a_plan_tells_and_keeps_what_was_chosen() -> None:
    plan = a_tuned_plan()
    assert plan.tuned is not None
    assert plan.tuned.ways == ["onednn packed", ONE_THREAD]
    text = plan.explain()
    assert (
        "timed     matmul -> float32[600,600]: onednn packed 1 ms, not onednn kept 2 ms, blas 3 ms"
        in text
    )
    assert "matmul, onednn packed  " in text
    assert "won" not in text
    back = decode_plan(encode_plan(plan))
    assert back.tuned == plan.tuned
    assert back.program == plan.program
    assert back.id == plan.id


@pytest.mark.parametrize(
    ("times", "why"),
    [((1.0, 0.97), "; b won by less than 5%"), ((1.0, 0.5), "; b won in too few rounds"), ((1.0, 1.0), "")],
)  # fmt: skip
def test_it_is_said_why_the_fastest_is_not_taken(times: Any, why: str) -> None:
    choice = Choice("matmul", "a.py:1", "", tuple(zip("ab", times, strict=True)))
    (line,) = told([choice])
    assert ("won" in line) == bool(why)
    assert why in line


def test_it_is_said_that_all_threads_gained_too_little() -> None:
    (line,) = told([Choice("exp", "a.py:1", ONE_THREAD, (("all threads", 1.0), (ONE_THREAD, 1.1)))])
    assert "; all threads won by less than 17%" in line


@pytest.mark.cpu_only
def test_a_plan_that_is_tuned_again_begins_with_the_rules() -> None:
    plan = a_tuned_plan()
    seen: list[Sequence[Site]] = []

    def choose(found: Sequence[Site], room: int | None) -> Tuned:
        seen.append(found)
        return Tuned("", tuple([Choice() for _ in found]))

    again = tune(plan, choose, 2)
    assert [s.what.split(" ->")[0] for s in seen[0]] == ["matmul", "fused(add)"]
    assert not any("way" in n.kw for n in again.program.graph.nodes)


@pytest.mark.cpu_only
@pytest.mark.parametrize("ways", [["bogus", "bogus"], ["apart", "apart"], [], ["blas"] * 9])
def test_ways_that_do_not_exist_change_nothing(ways: list[str]) -> None:
    plan = a_tuned_plan()
    assert plan.tuned is not None
    other = replace(plan, tuned=replace(plan.tuned, choices=tuple(Choice("", "", w) for w in ways)))
    back = decode_plan(encode_plan(other), plan.key)
    x = np.random.default_rng(3).standard_normal((600, 600)).astype(np.float32) / 30
    with use() as session:
        (y,) = session.launcher(back)([session.put(x)])
        np.testing.assert_allclose(session.engine.get(y), x @ x + 1, rtol=1e-4)


@pytest.mark.cpu_only
def test_small_plans_do_not_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose name takes many times as long as they do."""

    def look(threads: int, device: Any) -> str:
        raise AssertionError("nobody needs to know")

    monkeypatch.setattr(ost.sessions, "machine", look)
    monkeypatch.setattr(settings, "tune", "on")
    with ost.connect():
        f = ost.compile(lambda x: ost.exp(x) + 1)
        np.testing.assert_allclose(f(ost.zeros(8)), 2.0)
        assert f.plan.tuned is None
        with pytest.raises(AssertionError, match="nobody needs"):
            ost.compile(lambda x: x @ x)(ost.zeros((500, 500)))


@pytest.mark.cpu_only
def test_sessions_time_what_is_worth_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once: afterwards plans and other sessions know it."""
    monkeypatch.setattr(settings, "cache", tmp_path)
    monkeypatch.setattr(ost.sessions, "budget", Budget(20.0, site=5.0))
    monkeypatch.setattr(tuner_of, "BUSY", INF)  # as this machine may be
    x = np.ones((500, 500), np.float32)

    def run(mode: str) -> tuple[Plan, float]:
        monkeypatch.setattr(settings, "tune", mode)
        before = ost.sessions.budget.spent
        with ost.connect(numerics="fast"):
            f = ost.compile(lambda x: x @ x)
            np.testing.assert_allclose(f(ost.asarray(x)), 500.0)
            return f.plan, ost.sessions.budget.spent - before

    plan, spent = run("on")
    assert plan.tuned is not None
    assert dict(plan.tuned.choices[0].times).keys() >= {"onednn kept", "blas"}
    assert spent > 0
    again, spent = run("on")
    assert (again.tuned, spent) == (plan.tuned, 0)
    for file in (tmp_path / "plans").rglob("*.plan"):
        file.unlink()
    read, spent = run("read")
    assert (read.tuned, spent) == (plan.tuned, 0)
    for file in (tmp_path / "plans").rglob("*.plan"):
        file.unlink()
    off, spent = run("off")
    assert (off.tuned, spent) == (None, 0)


@pytest.mark.cpu_only
def test_what_a_busy_machine_chose_is_on_no_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session has it; who comes later times it himself."""
    monkeypatch.setattr(settings, "cache", tmp_path)
    monkeypatch.setattr(settings, "tune", "on")
    x, seen = np.ones((500, 500), np.float32), []
    for busy in (True, True, False, False):
        monkeypatch.setattr(tuner_of, "BUSY", 0.0 if busy else INF)  # none is calm, or all are
        monkeypatch.setattr(ost.sessions, "budget", Budget(20.0, site=5.0))
        with ost.connect(numerics="fast"):
            f = ost.compile(lambda x: x @ x)
            np.testing.assert_allclose(f(ost.asarray(x)), 500.0)
            assert f.plan.tuned is not None
            assert f.plan.tuned.choices[0].times
            seen.append(ost.sessions.budget.spent > 0)
    assert seen == [True, True, True, False]
