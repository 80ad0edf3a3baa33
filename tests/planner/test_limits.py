"""What a run is said to wait for is what makes it faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ostinato.planner.machine import Link, Machine, Rate
from ostinato.planner.plan import Plan

import ostinato as ost


def machine(**rates: float) -> Machine:
    """A machine of which all is fast but what is said."""
    given = {
        "products": 1e15,
        "elements": 1e15,
        "memory": 1e15,
        "link": 1e15,
        "starts": 0.0,
    } | rates
    return Machine(
        "of tests",
        given["starts"],
        ((1e3, given["memory"]), (1e9, given["memory"])),
        (Rate("float32", given["products"]),),
        (("float32", given["elements"]),),
        (("float32", given["elements"]),),
        ((0, Link(0.0, given["link"], "wire")),),
    )


def plan(model: Machine, rows: int = 4096, mesh: Any = 4) -> Plan:
    def step(w: Any, x: Any, y: Any) -> Any:
        return w - x.T @ (ost.tanh(x @ w) - y)

    x = ost.spec((rows, 512), split=0)
    return ost.plan(step, ost.spec((512, 512)), x, x, mesh=mesh, machine=model)


@pytest.mark.parametrize(
    ("rates", "what"),
    [
        ({"products": 1e9}, "products"),
        ({"elements": 1e6}, "functions of elements"),
        ({"memory": 1e6}, "memory"),
        ({"link": 1e5}, "wire"),
        ({"starts": 1e-2}, "starts of kernels"),
    ],
)
def test_the_slow_part_is_told(rates: dict[str, float], what: str) -> None:
    model = machine(**rates)
    made = plan(model)
    found = made.simulate()
    first = found.limits[0]
    assert first.what == what
    assert first.saves == pytest.approx(0.5, abs=0.02), "all else takes no time"
    assert f"limited by {what} (twice as fast: 50% less time)" in made.explain().replace(
        "49%", "50%"
    )


def test_what_is_saved_is_what_a_faster_machine_saves() -> None:
    model = machine(products=1e12, link=2e9)
    made = plan(model)
    saves = {each.what: each.saves for each in made.simulate().limits}
    assert saves.keys() == {"products", "wire"}
    wider = replace(model, levels=((0, Link(0.0, 4e9, "wire")),))
    ratio = made.simulate(wider).seconds / made.simulate(model).seconds
    assert saves["wire"] == pytest.approx(1 - ratio)


def test_a_larger_batch_pays_where_messages_are_not_larger() -> None:
    """Slopes are as large as weights, however many rows there are."""
    text = plan(machine(products=1e12, link=1e8)).explain()
    (line,) = [x for x in text.splitlines() if x.startswith("with more")]
    assert "x, y twice as long (8192)" in line
    assert "less time for each element" in line
    text = plan(machine(products=1e9), mesh=1).explain()
    assert "x, y twice as long (8192) take twice the time" in text


def test_plans_of_arrays_that_exist_are_told_what_limits_them() -> None:
    f = ost.compile(lambda x: ost.tanh(x @ x))
    f(ost.ones((300, 300)))
    text = f.plan.explain()
    assert "limited by" in text
    assert "with more" not in text
