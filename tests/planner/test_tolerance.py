"""Which products are rounded for a tolerance: the model, the graph that measures it, and the choice."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import float32, float64
from ostinato.ops.cpu.cpu_device import Cpu
from ostinato.planner import tolerance as planned
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.machine import NOMINAL, Rate
from ostinato.planner.passes.precision import mix_precision
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.plan import Key, Plan, Target
from ostinato.planner.policy import Chosen, Precision, policy_of
from ostinato.planner.tolerance import (
    CODES,
    MARGIN,
    PROBES,
    ROUNDOFF,
    SMALL_RESULT,
    SMALL_RESULT_MARGIN,
    RoundingSite,
    relative_error,
    sites,
    widened,
    with_knobs,
)

import ostinato as ost
from tests.helpers import on
from tests.planner.tolerance_trials import trial
from tests.trust.forge import packed

ONE = Target()


@pytest.fixture(autouse=True)
def _both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this processor multiplied both, whichever it has."""
    monkeypatch.setattr(Cpu, "halves", (np.dtype(ost.bfloat16), np.dtype(np.float16)))


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(dtype)


def looped(x: Any, w: Any, n: Any) -> Any:
    """Four products of floats, two of them in bodies, and one of integers."""
    h = ost.tanh(x @ w)
    h = ost.repeat(3, lambda h: ost.sin(h @ w), h)
    h = ost.cond(h[0, 0] > -9, lambda h: (h * 2) @ w, lambda h: h, h)
    return h, (h.T @ x).sum(), n @ n


def given() -> list[np.ndarray]:
    return [numbers(6, 5), numbers(5, 5, seed=1), np.arange(9).reshape(3, 3)]


def test_products_have_numbers_down_into_bodies() -> None:
    f = ost.compile(looped)
    f(*given())
    graph = simplify(f.plan.traced, ONE)
    found = list(sites(graph))
    assert [s.times for s in found] == [1, 3, 1, 1]
    assert {s.dtype for s in found} == {float32}
    assert found[0].flops == 2 * 6 * 5 * 5
    for k in range(4):
        letters = "".join("b" if j == k else "-" for j in range(4))
        made = mix_precision(graph, Target(precision=str(Chosen(0.1, letters))))
        assert made != graph
        again = mix_precision(made, Target(precision=str(Chosen(0.1, letters))))
        assert again == made


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_knobs_do_what_policies_do(workers: int, dtype: str) -> None:
    """Each site turned alone gives what a plan gives in which it is rounded alone."""
    with on(workers) as session:
        values = [x.astype(dtype) if x.dtype == np.float32 else x for x in given()]
        arrays = [ost.asarray(x, split=0) for x in values]
        f = ost.compile(looped)
        written = [np.asarray(y) for y in f(*arrays)]
        target = f.plan.target
        graph = f.plan.traced
        plan, _ = session.plan(Key(with_knobs(simplify(graph, target), target), target))
        held = [session.hold_array(x) for x in arrays]

        def turned(codes: Sequence[int]) -> list[np.ndarray]:
            knobs = [np.array(codes), np.ones(len(codes))]
            made = session.launcher(plan)([*held, *map(session.put, knobs)])
            return [session.engine.get(made[k]) for _, k in plan.results]

        close = 1e-6 if dtype == "float32" else 1e-12
        for y, right in zip(turned([0] * 4), written, strict=True):
            np.testing.assert_allclose(y, right, rtol=close, atol=close)
        for k, letter in enumerate("bhbh"):
            codes = [CODES[letter] if j == k else 0 for j in range(4)]
            letters = "".join(letter if j == k else "-" for j in range(4))
            key = Key(graph, Target(target.mesh, precision=str(Chosen(0.1, letters))))
            alone, _ = session.plan(key)
            made = session.launcher(alone)(held)
            wanted = [session.engine.get(made[j]) for _, j in alone.results]
            # sums of halves are of float32 there
            close = 1e-5
            for y, right in zip(turned(codes), wanted, strict=True):
                np.testing.assert_allclose(y, right, rtol=close, atol=close)
            assert any(relative_error(y, x) > 1e-5 for y, x in zip(wanted, written, strict=True))


def choose(
    found: Any, errors: Any, written: Any, sizes: Any, tolerance: float, most: str = ""
) -> Any:
    return planned.choose(found, errors, written, sizes, [tolerance] * len(written), most)


def site(flops: float = 1.0, dtype: Any = float32) -> RoundingSite:
    return RoundingSite("", "matmul", dtype, ((2, 3), (3, 4)), flops, 1)


def model(shares: Sequence[Sequence[float]], more: float = 1.0) -> Any:
    """Errors as the model has them; `more` times as large when several are rounded."""
    letter = {code: x for x, code in CODES.items()}

    def errors(codes: Sequence[int], _: Sequence[float]) -> list[float]:
        ratios = [ROUNDOFF[letter[c]] / ROUNDOFF["b"] for c in codes]
        size = more if sum(map(bool, codes)) > 1 else 1.0
        return [
            size * math.hypot(*(r * s[o] for r, s in zip(ratios, shares, strict=True)))
            for o in range(len(shares[0]))
        ]

    return errors


def test_the_narrowest_formats_that_fit() -> None:
    shares = [(1e-3,), (4e-3,), (0.0,), (0.5,)]
    found = [site() for _ in shares]

    def letters(tolerance: float, **more: Any) -> str:
        return choose(found, model(shares), [0.0], [SMALL_RESULT], tolerance, **more).letters

    assert letters(0.9) == "bbbh"
    assert letters(1e-2 * MARGIN) == "bbb-"
    assert letters(2e-3 * MARGIN) == "bhb-"
    assert letters(1e-6) == "--b-"
    assert letters(0.9, most="h-hb") == "h-hh"
    wide = [site(dtype=float64) for _ in shares]
    assert choose(wide, model(shares), [0.0], [SMALL_RESULT], 1e-6, "").letters == "ssb-"
    none = [RoundingSite("", "matmul", float32, ((2, 3),), 1.0, 1, formats="s") for _ in shares]
    assert choose(none, model(shares), [0.0], [SMALL_RESULT], 0.9).letters == "----"


def test_formats_that_gain() -> None:
    """A machine whose halves start slowly gains by them in large products only."""
    rates = (Rate("float32", 1e11), Rate("bfloat16", 4e11, half=1e8), Rate("float16", 1e10))
    machine = replace(NOMINAL, products=rates)
    small, large = (
        RoundingSite("", "matmul", float32, ((n, n), (n, n)), 2.0 * n**3, 1) for n in (64, 2048)
    )
    assert [x.gains_on(machine, "b") for x in (small, large)] == [False, True]
    assert not large.gains_on(machine, "h")
    assert all(
        site(dtype=float64).gains_on(machine, x) for x in "bhs"
    )  # it says nothing of float64
    assert small.gains_on(NOMINAL, "b")
    flops = large.flops / NOMINAL.products[0].most
    took = [large.seconds(NOMINAL, d) for d in (float64, float32, np.dtype(np.float16))]
    np.testing.assert_allclose(took, [2 * flops, flops, flops / 2], rtol=1e-2)
    assert (small.letters, site(dtype=float64).letters) == ("bh-", "bhs-")


def test_what_gains_most_for_its_error_goes_first() -> None:
    shares = [(1e-3,), (1e-3,), (1e-3,)]
    found = [site(1.0), site(100.0), site(10.0)]
    made = choose(found, model(shares), [0.0], [SMALL_RESULT], MARGIN * 1.1e-3)
    assert made.letters == "hbh"
    small = choose(found, model(shares), [0.0], [1], SMALL_RESULT_MARGIN * 1.1e-3)
    assert small.letters == "hbh"
    assert choose(found, model(shares), [0.0], [1], MARGIN * 1.1e-3).letters != "hbh"
    off = choose(
        found, model(shares), [1e-2], [SMALL_RESULT], 1e-2 + MARGIN * 1.1e-3
    )  # as written already
    assert off.letters == "hbh"


def test_each_result_has_its_budget() -> None:
    shares = [(1e-3, 0.0), (0.0, 1e-2), (1e-3, 1e-3)]
    made = choose(
        [site()] * 3, model(shares), [0.0, 0.0], [SMALL_RESULT, SMALL_RESULT], MARGIN * 2e-3
    )
    assert made.letters == "bhb"
    free = [MARGIN * 2e-3, math.inf]
    made = planned.choose(
        [site()] * 3, model(shares), [0.0, math.inf], [SMALL_RESULT, SMALL_RESULT], free
    )
    assert made.letters == "bbb"


def test_what_is_measured_together_counts() -> None:
    """Where the model is too hopeful, products are widened until it fits."""
    shares = [(1e-3,), (2e-3,), (1e-3,)]
    found, tolerance = [site()] * 3, MARGIN * 3e-3
    assert choose(found, model(shares), [0.0], [SMALL_RESULT], tolerance).letters == "bbb"
    assert choose(found, model(shares, 2.0), [0.0], [SMALL_RESULT], tolerance).letters == "bhb"
    assert (
        choose(found, model(shares, 1e5), [0.0], [SMALL_RESULT], tolerance).letters.count("-") >= 2
    )

    def overflowing(codes: Sequence[int], scales: Sequence[float]) -> list[float]:
        far = CODES["h"] in codes and max(scales) > 8
        return [math.inf] if far else model(shares)(codes, scales)

    tight = choose(found, model(shares), [0.0], [SMALL_RESULT], MARGIN * 4e-4).letters
    assert tight == "hhh"
    assert choose(found, overflowing, [0.0], [SMALL_RESULT], MARGIN * 4e-4).letters == "---"
    assert widened([site(dtype=float64)], "b", [1.0]) == "h"


def test_many_products_are_measured_in_groups() -> None:
    shares = [(1e-4,)] * (2 * PROBES + 6)
    runs = []

    def errors(codes: Sequence[int], scales: Sequence[float]) -> list[float]:
        runs.append(codes)
        return list(model(shares)(codes, scales))

    made = choose([site()] * len(shares), errors, [0.0], [SMALL_RESULT], 0.1)
    assert set(made.letters) == {"b"}
    assert len(runs) < PROBES + 10
    assert all(0.9e-4 < s < 1.1e-4 for (s,) in made.shares)


def test_errors_of_results() -> None:
    x = np.array([3.0, 4.0])
    assert relative_error(x, x) == 0
    assert relative_error(np.array([3.0, 4.05]), x) == pytest.approx(0.01)
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.full(2, 1e-30), np.zeros(2)) == math.inf
    assert relative_error(np.array([np.inf, 4]), x) == math.inf
    assert relative_error(np.array([np.nan, 4.0]), np.array([np.nan, 4.0])) == 0
    assert relative_error(np.array([np.inf, 4.4]), np.array([np.inf, 4.0])) == pytest.approx(0.1)
    assert relative_error(np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4])) == 0.25
    assert relative_error(np.array([True]), np.array([True])) == 0
    assert relative_error(np.array([3.3j]), np.array([3j])) == pytest.approx(0.1)
    halves = np.array([1.0, 2.0], ost.bfloat16)
    assert relative_error(halves * halves.dtype.type(2), halves) == 1


def test_the_decision_is_the_policy() -> None:
    text = str(Chosen(1e-3, "bb-h"))
    assert text == "auto tolerance=0.001 products=bb-h"
    assert policy_of(text) == Chosen(1e-3, "bb-h")
    assert policy_of("f32") == Precision.from_text("f32")
    for other in (
        "auto",
        "auto tolerance=1e-3 products=b",
        "auto tolerance=0.001 products=x",
        text + " ",
    ):
        with pytest.raises(ValueError, match="precision"):
            policy_of(other)


def test_files_that_round_otherwise_are_refused() -> None:
    f = ost.compile(lambda x: (x @ x) @ x, precision="auto", tolerance=0.1)
    f(numbers(8, 8))

    def content(plan: Plan) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(encode_plan(plan).partition(b"\n")[2])
        return made

    good = content(f.plan)
    assert good["precision"] == "auto tolerance=0.1 products=bb"
    assert decode_plan(packed(good)) == f.plan
    for letters, message in (
        ("b", "a letter for each product"),
        ("bbb", "a letter for each product"),
        ("b-", "something else than its source"),
        ("bh", "something else than its source"),
    ):
        target = replace(f.plan.target, precision=str(Chosen(0.1, letters)))
        other = replace(f.plan, key=Key(f.plan.traced, target))
        with pytest.raises(Exception, match=message):
            decode_plan(packed(content(other)))
    with pytest.raises(Exception, match="precision 'auto"):
        decode_plan(packed({**good, "precision": "auto tolerance=0.1 products=bx"}))


def test_fresh_inputs_stay_within_the_tolerance() -> None:
    """A few of the trials; `python -m tests.planner.tolerance_trials` runs 200."""
    found = [trial(seed) for seed in range(7, 21)]
    assert max(error for error, _ in found) < 1
    letters = "".join(policy.products for _, policy in found if policy)
    assert {"b", "s", "-"} <= set(letters)


def test_fresh_inputs_of_workers_that_send_sums_narrow() -> None:
    """A few of the trials of four workers."""
    found = [trial(seed, workers=4) for seed in (3, 4)]
    assert max(error for error, _ in found) < 1
    assert "b" in "".join(policy.sums for _, policy in found if policy)
