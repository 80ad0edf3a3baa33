"""What the search for layouts finds by itself, on shapes for which people would choose it by hand; and
that no plan that people make by hand is predicted to take less time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout, Partial
from ostinato.ops.core.spec import Spec, bfloat16, float32, float64
from ostinato.planner.layouts.costs import (
    graph_seconds,
    kernel_seconds,
    relayout_seconds,
    together_seconds,
)
from ostinato.planner.machine import Seen, resolve
from ostinato.planner.passes.communicate import communicate
from ostinato.planner.passes.layouts import choose_layouts, given, lay_out, places
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.pipeline import place_operands
from ostinato.planner.plan import Plan, Target
from ostinato.planner.prediction import legs
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from benchmarks.layouts import (
    HANDS,
    PLACES,
    Program,
    attention,
    convolved,
    heat,
    k_means,
    laid_out,
    lasso,
    network,
    product,
    projected,
    statistics,
    step,
)
from tests.thorough import turns

MACHINES = ("h200-ib", "cpu-10gbe")
each_machine = pytest.mark.parametrize("machine", MACHINES)
ROOM = 10**13  # bytes: what is found does not hang on memory here
spec = ost.spec
WHOLE, ROWS, COLUMNS, ADDENDS = ".", "0", "1", "+"


def planned(function: Any, *given: Any, mesh: Any = 8, machine: str = "h200-ib") -> Plan:
    plan = ost.plan(function, *given, mesh=mesh, machine=machine, memory_limit=ROOM)
    assert plan.gap == 0
    return plan


def collectives(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = facts(plan)["collectives"]
    return found


def lies(layout: Any) -> str:
    """Per axis of the mesh: the dimension that is cut, or + for addends."""
    return "".join(
        WHOLE if s is None else ADDENDS if isinstance(s, Partial) else str(s) for s in layout.splits
    )


def products(plan: Plan) -> list[tuple[str, str, str]]:
    """How the operands and the result of each lie, kernels' own included."""
    graph = simplify(plan.traced, plan.target)
    graph = choose_layouts(graph, plan.target)
    return [
        (*(lies(graph.specs[v].layout) for v in n.inputs), lies(n.specs[0].layout))
        for n in graph.nodes
        if n.op == "matmul"
    ]


def ends(plan: Plan) -> list[str]:
    return [lies(s.layout) for s in plan.out_specs]


# -- rows ------------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize("split", [0, None], ids=["rows", "whole"])
def test_k_means_by_rows(machine: str, split: int | None) -> None:
    # Points come by rows, or whole on every worker; centres are whole.
    plan = planned(k_means, spec((10_000_000, 16), split=split), spec((64, 16)), machine=machine)
    assert products(plan) == [(COLUMNS, ROWS, ADDENDS)]
    assert collectives(plan) == {"all_reduce": 1}, "sums of points, and how many they are"
    assert ends(plan) == [WHOLE]


@each_machine
@pytest.mark.parametrize("split", [0, None], ids=["rows", "whole"])
def test_lasso_by_rows(machine: str, split: int | None) -> None:
    n = 4_000_000
    given = spec((n, 100), split=split), spec(n, split=split), spec(100)
    plan = planned(lasso, *given, machine=machine)
    assert products(plan) == [(ROWS, WHOLE, ROWS), (COLUMNS, ROWS, ADDENDS)]
    assert collectives(plan) == {"all_reduce": 1}, "the slope"
    assert ends(plan) == [WHOLE]


@each_machine
def test_statistics_by_rows(machine: str) -> None:
    plan = planned(statistics, spec((4_000_000, 100), split=0), machine=machine)
    graph = choose_layouts(simplify(plan.traced, plan.target), plan.target)
    read = [lies(graph.specs[n.inputs[0]].layout) for n in graph.nodes if 0 in n.inputs]
    assert set(read) == {ROWS}, "nobody moves the table"
    sent = collectives(plan)
    assert 1 <= sent["all_reduce"] <= 4
    assert facts(plan)["sent"] < 2 * 8 * 100 * 4 * 6


# -- training --------------------------------------------------------------------------------------


@each_machine
@pytest.mark.parametrize("split", [0, None], ids=["rows", "whole"])
def test_data_parallel_where_weights_are_small_and_the_batch_is_large(
    machine: str, split: int | None
) -> None:
    # The batch comes by rows, or whole; weights are whole.
    x = spec((262_144, 1024), split=split)
    plan = planned(step, [spec((1024, 1024))] * 3, x, x, machine=machine)
    forward, slope = (ROWS, WHOLE, ROWS), (COLUMNS, ROWS, ADDENDS)
    assert sorted(products(plan)) == sorted([forward] * 5 + [slope] * 3)
    assert collectives(plan) == {"all_reduce": 4}, "each slope once, and the loss"
    assert ends(plan) == [WHOLE] * 4


@each_machine
@pytest.mark.parametrize("given", ["whole", "parts"])
def test_columns_then_rows_where_weights_are_large_and_the_batch_is_small(
    machine: str, given: str
) -> None:
    # All is given whole; or weights as the products want them.
    cut = (1, 0) if given == "parts" else (None, None)
    first, second = spec((8192, 32_768), split=cut[0]), spec((32_768, 8192), split=cut[1])
    plan = planned(network, [first, second], spec((32, 8192)), machine=machine)
    assert products(plan) == [(WHOLE, COLUMNS, COLUMNS), (COLUMNS, ROWS, ADDENDS)]
    assert collectives(plan) == {"all_reduce": 1}
    assert ends(plan) == [WHOLE]


def alexnet(images: int, split: int | None, cut: tuple[int | None, ...] = (None,) * 3) -> Any:
    shapes = (9216, 4096), (4096, 4096), (4096, 1000)
    return (
        [spec((k, m)) for _, k, m in PLACES],
        [spec(s, split=c) for s, c in zip(shapes, cut, strict=True)],
        [spec((images * n, k), split=split) for n, k, _ in PLACES],
        spec((images, 9216), split=split),
        spec((images, 1000), split=split),
    )


@pytest.mark.parametrize("machine", ["h200-ib", "dgx-v100", "cpu-10gbe"])
def test_data_parallel_convolutions_and_model_parallel_vectors(machine: str) -> None:
    # The batch comes by rows, weights of patches whole, large weights in parts.
    plan = planned(convolved, *alexnet(256, 0, (1, 0, 1)), machine=machine)
    found = products(plan)
    graph = choose_layouts(simplify(plan.traced, plan.target), plan.target)
    nodes = [n for n in graph.nodes if n.op == "matmul"]
    for node, (a, b, c) in zip(nodes, found, strict=True):
        if max(graph.specs[node.inputs[0]].shape) > 10_000:  # patches
            assert (a, b, c) in {(ROWS, WHOLE, ROWS), (COLUMNS, ROWS, ADDENDS)}
    large = {(9216, 4096), (4096, 4096)}
    reads = [
        lies(graph.specs[v].layout)
        for n in nodes
        for v in n.inputs
        if graph.specs[v].shape in large or graph.specs[v].shape[::-1] in large
    ]
    assert reads
    assert WHOLE not in reads, "no worker has all of the large weights"
    slopes = [lies(n.specs[0].layout) for n in nodes if n.specs[0].shape in large]
    assert len(slopes) == 2
    assert ADDENDS not in slopes, "so their slopes are sent nowhere"


def test_the_same_where_large_weights_lie_whole() -> None:
    plan = planned(convolved, *alexnet(256, 0))
    found = products(plan)
    assert (WHOLE, COLUMNS, COLUMNS) in found, "the largest one is used by columns"
    assert found.count((COLUMNS, ROWS, ADDENDS)) == len(PLACES), "only patches' slopes are summed"


# -- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [*MACHINES, "nominal"])
def test_square_products_on_a_square_mesh_gather_rows_and_columns(machine: str) -> None:
    # As in SUMMA both lie in tiles, and so does what is made.
    a = spec((16_384, 16_384), split=(0, 1))
    plan = planned(product, a, a, mesh=(4, 4), machine=machine)
    assert products(plan) == [("0.", ".1", "01")]
    assert collectives(plan) == {"all_gather": 2}
    assert ends(plan) == ["01"]


@each_machine
def test_small_operands_are_gathered_once_and_large_ones_stay(machine: str) -> None:
    def shifted(x: Any, w: Any, b: Any) -> Any:
        return ost.tanh(x @ w + b) @ w.T - b

    x, w, b = spec((4_000_000, 64), split=0), spec((64, 64), split=0), spec(64, split=0)
    plan = planned(shifted, x, w, b, machine=machine)
    assert products(plan) == [(ROWS, WHOLE, ROWS)] * 2
    assert collectives(plan) == {"all_gather": 2}
    assert facts(plan)["sent"] == 7 * (64 * 64 + 64) * 4


# -- attention, stencils, small problems -----------------------------------------------------------


def test_attention_by_sequence_where_there_is_one_head() -> None:
    # Queries, keys and values come in parts of the sequence.
    for machine in MACHINES:
        plan = planned(attention, *[spec((32_768, 64), split=0)] * 3, machine=machine)
        assert products(plan) == [(ROWS, WHOLE, ROWS)] * 2
        assert collectives(plan) == {"all_gather": 2}, "of keys and values"
        assert ends(plan) == [ROWS]


def test_attention_by_heads_where_they_come_so() -> None:
    for machine in MACHINES:
        plan = planned(attention, *[spec((8, 16, 2048, 64), split=1)] * 3, machine=machine)
        assert products(plan) == [(COLUMNS, COLUMNS, COLUMNS)] * 2
        assert collectives(plan) == {}


def test_attention_by_features_where_weights_come_so() -> None:
    # Weights by columns for queries, keys, values, and by rows after them: as in tensor parallelism.
    ws = [spec((4096, 4096), split=1)] * 3 + [spec((4096, 4096), split=0)]
    plan = planned(projected, spec((1, 512, 4096)), ws)
    heads = [(WHOLE, COLUMNS, "2")] * 3 + [(COLUMNS, COLUMNS, COLUMNS)] * 2
    assert sorted(products(plan)) == sorted([*heads, ("2", ROWS, ADDENDS)])
    assert collectives(plan) == {"all_reduce": 1}


@each_machine
def test_a_stencil_exchanges_halos(machine: str) -> None:
    plan = planned(heat, spec((80_002, 1000), split=0), machine=machine)
    assert collectives(plan) == {"halo": 1}
    assert facts(plan)["sent"] <= 7 * 2 * 2 * 1000 * 4
    assert ends(plan) == [ROWS]


@each_machine
def test_a_tiny_problem_is_done_by_everyone_alone(machine: str) -> None:
    plan = planned(step, [spec((16, 16))] * 3, spec((32, 16)), spec((32, 16)), machine=machine)
    assert collectives(plan) == {}
    assert set(products(plan)) == {(WHOLE, WHOLE, WHOLE)}


# -- costs -----------------------------------------------------------------------------------------
SUM = Partial("sum")


@each_machine
@pytest.mark.parametrize("mesh", [(4, 2), (2, 4, 8)], ids=str)
@pytest.mark.parametrize("placed", [SUM, 0], ids=["all_reduce", "all_gather"])
def test_collectives_along_several_axes_count_as_they_are_predicted(
    placed: Any, mesh: tuple[int, ...], machine: str
) -> None:
    model, x = resolve(machine), Spec((4096, 512), float32)
    has, gets = Layout(mesh, (placed,) * len(mesh)), Layout.whole(mesh)
    asked = Node("relayout", (0,), (), (x.at(gets),))
    made = communicate(Graph((x.at(has),), (asked,), (1,)), Target(mesh, named=model))
    way = 0.0
    for node in made.nodes:
        way += sum(leg.seconds for leg in legs(node, [made.specs[v] for v in node.inputs], model))
    counted = relayout_seconds(model, x.shape, 4, has, gets)
    assert counted == pytest.approx(way + model.links(mesh)[0].seconds)


@each_machine
def test_addends_that_belong_together_count_as_one_message(machine: str) -> None:
    """As those of a variance: a count, means, and sums of squares."""
    model, mesh = resolve(machine), (8,)
    has, gets = Layout(mesh, (Partial("moments"),)), Layout.whole(mesh)
    state = [Spec((), float64), Spec((4096,), float32), Spec((4096,), float32)]
    asked = Node("relayout", (0, 1, 2), (), tuple([s.at(gets) for s in state]))
    graph = Graph(tuple([s.at(has) for s in state]), (asked,), (3, 4, 5))
    (made,) = communicate(graph, Target(mesh, named=model)).nodes
    way = sum(leg.seconds for leg in legs(made, graph.inputs, model))
    counted = together_seconds(model, graph.inputs, asked.specs)
    assert counted == pytest.approx(way + model.links(mesh)[0].seconds)
    apart = sum(together_seconds(model, [s.at(has)], [s.at(gets)]) for s in state)
    assert counted < 0.9 * apart


def test_products_count_at_the_rate_of_their_dtype() -> None:
    model, found = resolve("h200-ib"), []
    for dtype in (float32, bfloat16):
        a = Spec((4096, 4096), dtype)
        found.append(kernel_seconds(model, Node("matmul", (0, 1), (), (a,)), [a, a], [a]))
    assert found[0] > 5 * found[1]


# -- against plans made by hand --------------------------------------------------------------------


def programs() -> dict[str, Program]:
    """Functions, their operands, which of these are data, and how the largest results shall lie."""
    small, large, long = spec((1024, 1024)), spec((8192, 8192)), spec((262_144, 1024), split=0)
    short, table = spec((32, 8192)), spec((4_000_000, 100), split=0)
    y = spec(4_000_000, split=0)
    found: dict[str, Program] = {
        "k-means": (k_means, (spec((10_000_000, 16), split=0), spec((64, 16))), (0,), None),
        "lasso": (lasso, (table, y, spec(100)), (0, 1), None),
        "statistics": (statistics, (table,), (0,), None),
        "small weights": (step, ([small] * 3, long, long), (1, 2), None),
        "large weights": (step, ([large] * 2, short, short), (1, 2), None),
        "two products": (
            network,
            ([spec((8192, 131_072)), spec((131_072, 8192))], short),
            (1,),
            None,
        ),
        "alexnet": (convolved, alexnet(256, 0), (2, 3, 4), None),
        "attention": (attention, (spec((32_768, 64), split=0),) * 3, (0, 1, 2), 0),
        "projected": (
            projected,
            (spec((8, 512, 4096), split=0), [spec((4096, 4096))] * 4),
            (0,),
            0,
        ),
        "square": (product, (spec((16_384, 16_384)),) * 2, (0,), 0),
        "heat": (heat, (spec((80_002, 1000), split=0),), (0,), 0),
    }
    return found


def predicted(program: Program, kind: str | None, mesh: Any, machine: str) -> tuple[float, float]:
    """What the search counts, and what the simulation does, in seconds."""
    args = program[1]
    plan = ost.plan(laid_out(program, kind), *args, mesh=mesh, machine=machine, memory_limit=ROOM)
    graph = simplify(plan.traced, plan.target)
    graph = lay_out(graph, given(graph, plan.target), plan.target)
    return graph_seconds(resolve(machine), graph), plan.simulate().seconds


@pytest.mark.parametrize(
    ("name", "machine", "mesh"), turns([*programs()], MACHINES, [8, (4, 2)]), ids=str
)
def test_no_plan_made_by_hand_takes_less(name: str, mesh: Any, machine: str) -> None:
    program = programs()[name]
    counted, simulated = predicted(program, None, mesh, machine)
    for kind in HANDS:
        by_search, by_simulation = predicted(program, kind, mesh, machine)
        assert counted <= by_search * (1 + 1e-6), kind
        assert simulated <= by_simulation * 1.03, kind


def test_of_layouts_that_take_about_as_long_the_fused_program_decides() -> None:
    """Sums that take longer to start than to gather what was found for each row would make rows whole;
    but one kernel does all of k-means where the rows are in parts."""
    model = resolve("cpu-10gbe")
    seen = (
        Seen("all_reduce", 2, 146e-6, 3.7e9),
        Seen("reduce_scatter", 2, 167e-6, 3.8e9),
        Seen("all_gather", 2, 54e-6, 26.2e9),
        Seen("all_to_all", 2, 40e-6, 37.3e9),
    )
    link = replace(model.levels[0][1], seconds=3e-5, bandwidth=26e9, seen=seen)
    model = replace(model, name="slow sums", levels=((0, link),))
    graph = planned(k_means, spec((400_000, 16)), spec((64, 16)), mesh=2).traced
    target = Target((2,), named=model)
    best, *near = places(graph, target, [0, 1], 0.0)
    assert lies(best.inputs[0].layout) == WHOLE
    assert ROWS in [lies(g.inputs[0].layout) for g in near]
    rows, centres = place_operands(graph, target, [0, 1])
    assert (lies(rows), lies(centres)) == (ROWS, WHOLE)
