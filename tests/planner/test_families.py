"""Programs of all families of operations (benchmarks/families.py) are laid out as well as in rows, in
columns, or whole; and the choices that `python -m benchmarks layouts --families` found to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ostinato.planner.plan import Plan

import ostinato as ost
from benchmarks.families import families

WAYS: dict[str, Callable[[int], Any]] = {
    "auto": lambda ndim: "auto",
    "rows": lambda ndim: 0,
    "columns": lambda ndim: ndim - 1,
    "whole": lambda ndim: None,
}


def planned(name: str, way: str, mesh: int) -> Plan:
    function, shapes = families()[name]
    specs = [ost.spec(s, split=WAYS[way](len(s))) for s in shapes]
    return ost.plan(function, *specs, mesh=mesh, machine="cpu-10gbe")


@pytest.mark.parametrize("mesh", [2, 4])
def test_no_simple_layout_is_predicted_to_take_less(mesh: int) -> None:
    for name in families():
        found, *simple = (planned(name, way, mesh).simulate().seconds for way in WAYS)
        assert found <= 1.15 * min(simple), name


def layouts(name: str, mesh: int = 2) -> list[Any]:
    """Where the operands that users give lie."""
    count = len(families()[name][1])
    return [s.layout.splits[0] for s in planned(name, "auto", mesh).program.graph.inputs[:count]]


def operations(name: str, way: str, mesh: int = 2) -> set[str]:
    return {node.op for node in planned(name, way, mesh).program.graph.nodes}


@pytest.mark.parametrize("mesh", [2, 4])
def test_choices_that_were_measured(mesh: int) -> None:
    assert layouts("sums of rows", mesh) == layouts("softmax", mesh) == [0]
    assert layouts("sort columns", mesh) == layouts("order of columns", mesh) == [1]
    assert layouts("sort rows", mesh) == layouts("largest of rows", mesh) == [0]
    assert layouts("halves of columns", mesh) == [0]
    assert layouts("halves of rows", mesh) == [1]
    assert layouts("running sums down", mesh) == [1]
    assert layouts("running sums along", mesh) == [0]


def test_selections_are_priced_by_what_they_do() -> None:
    """A few long columns in rows are brought together: digits took 18 times as long."""
    assert "tally" not in operations("medians of columns", "rows")
    assert "order_statistics" in operations("medians of columns", "rows")
    assert layouts("medians of columns") == layouts("medians of columns", 4) == [1]


def test_parts_that_are_cut_otherwise_are_not_there() -> None:
    """Windows of columns of what lies in rows are sent; sums of rows are a few numbers."""
    found = planned("sums of halves", "rows", 2).program.graph
    assert [n.op for n in found.nodes if n.op in ("all_reduce", "start", "halo")] == ["all_reduce"]


def test_of_the_product_with_its_own_transpose_a_half_is_made_on_each_worker() -> None:
    for way in WAYS:
        assert "gram" in operations("gram of rows", way), way
        assert "matmul" not in operations("gram of rows", way), way
