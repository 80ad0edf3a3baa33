"""Addends that are sent in a narrower dtype than they have. The tests of values are run over MPI, too."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.show import parse
from ostinato.ops.core.spec import bfloat16, float16, float32
from ostinato.ops.planned.collective import collective_of
from ostinato.planner.check import check_graph
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes.communicate import communicate
from ostinato.planner.passes.narrow_sums import MIN_ADDEND_BYTES, Sum, narrow_sums, sums
from ostinato.planner.plan import Plan, Target
from ostinato.planner.policy import Chosen, Precision, policy_of
from ostinato.planner.prediction import bytes_sent
from ostinato.planner.tolerance import MARGIN, choose_sums, room_for_sums

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import on
from tests.sessions import MESHES
from tests.trust.forge import packed

BF16 = Precision(wire="bf16")
TWO = Target((2,), precision=str(BF16))
LARGE = [mesh for mesh in MESHES if max(mesh) > 1]
ROWS = 24 * 1000  # which all these meshes can cut


def lowered(text: str, target: Target) -> Graph:
    made = communicate(narrow_sums(parse(text), target), target)
    check_graph(made)
    return made


def test_the_pass() -> None:
    before = """
        (%0: float32[64,32] @ partial sum of 2, %1: float32[32] @ partial sum of 2)
        %2 = relayout(%0) : float32[64,32] @ whole of 2
        %3 = relayout(%1) : float32[32] @ whole of 2
        %4 = relayout(%0) : float32[64,32] @ split 0 of 2
        return %2, %3, %4
    """
    after = parse("""
        (%0: float32[64,32] @ partial sum of 2, %1: float32[32] @ partial sum of 2)
        %2 = round_addends(%0; dtype=dtype bfloat16) : bfloat16[64,32] @ partial sum of 2
        %3 = relayout(%2) : bfloat16[64,32] @ whole of 2
        %4 = widen_sum(%3; dtype=dtype float32) : float32[64,32] @ whole of 2
        %5 = relayout(%1) : float32[32] @ whole of 2
        %6 = relayout(%2) : bfloat16[64,32] @ split 0 of 2
        %7 = widen_sum(%6; dtype=dtype float32) : float32[64,32] @ split 0 of 2
        return %4, %5, %7
    """)
    assert narrow_sums(parse(before), TWO) == after
    assert narrow_sums(after, TWO) == after
    for other in (Target((2,)), Target((2,), numerics="any-workers", precision=str(BF16))):
        assert narrow_sums(parse(before), other) == parse(before)
    scattered = lowered(before, TWO).nodes[-1]
    assert scattered.op == "reduce_scatter", "what is scattered is not rounded again"
    assert scattered.specs[0].dtype == float32


def test_which_sums_are_sent_narrow() -> None:
    def sent(
        policy: Precision, dtype: str, monoid: str = "sum", size: int = MIN_ADDEND_BYTES
    ) -> str:
        text = f"""
            (%0: {dtype}[{size}] @ partial {monoid} of 2)
            %1 = relayout(%0) : {dtype}[{size}] @ whole of 2
            return %1
        """
        made = lowered(text, Target((2,), precision=str(policy)))
        (found,) = {made.specs[n.inputs[0]].dtype for n in made.nodes if n.op == "all_reduce"}
        return str(found.name)

    assert sent(BF16, "float32") == "bfloat16"
    assert sent(Precision(wire="f16"), "float32") == "float16"
    assert sent(Precision(), "float32") == "float32"
    assert sent(BF16, "float32", size=MIN_ADDEND_BYTES // 4 - 1) == "float32"
    assert sent(BF16, "float32", "max") == "float32"
    assert sent(BF16, "float64") == "float64", "wider than what is accumulated in"
    assert sent(BF16, "int64") == "int64"
    assert sent(BF16, "bfloat16") == "bfloat16"
    assert sent(Precision(accumulate="f64", wire="bf16"), "float64") == "bfloat16"
    assert sent(Precision(wire="f32"), "float64") == "float32"
    assert sent(Precision(wire="f32"), "float32") == "float32"


def test_policies_say_so() -> None:
    text = "storage=as-written compute=bf16 accumulate=f32 wire=bf16"
    assert str(Precision(compute="bf16", wire="bf16")) == text
    assert str(policy_of(text)) == text
    assert str(Precision(compute="bf16")) == "mixed_bf16", "presets send what they sent before"
    assert Precision(wire="f16").sent(float32) == float16
    with pytest.raises(ArgumentError, match="wire='f64'"):
        Precision(wire="f64")
    for other in ("wire=bf16", text.replace("wire=bf16", "wire=as-written"), text + " "):
        with pytest.raises(ValueError, match="precision"):
            policy_of(other)
    chosen = "auto tolerance=0.001 products=b- sums=-b"
    assert policy_of(chosen) == Chosen(1e-3, "b-", "-b")
    assert str(policy_of(chosen)) == chosen
    with pytest.raises(ValueError, match="precision"):
        policy_of("auto tolerance=0.001 products=b- sums=")


# -- values ----------------------------------------------------------------------------------------
def whole_numbers(*shape: int, seed: int) -> np.ndarray:
    """Of which sums of products are exact in float32, in any order, and not in halves."""
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(np.float32)


def addends(x: np.ndarray, y: np.ndarray, mesh: tuple[int, ...]) -> list[np.ndarray]:
    """What each worker makes, its rows' share of a product."""
    parts = Layout(mesh, (0,) * len(mesh))
    boxes = [parts.box(x.shape, r) for r in range(parts.workers)]
    return [x[a:b].T @ y[a:b] for (a, b), _ in boxes]


def added(found: list[np.ndarray], dtype: Any) -> np.ndarray:
    """Rounded, and added in float32 in the order of ranks."""
    total = found[0].astype(dtype).astype(np.float32)
    for x in found[1:]:
        total = total + x.astype(dtype).astype(np.float32)
    return total


@pytest.mark.parametrize("mesh", [m for m in LARGE if len(m) == 1], ids=str)
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("width", [40, 700])  # messages that are made ready, and in parts
def test_values_to_the_bit(mesh: tuple[int, ...], dtype: Any, width: int) -> None:
    rows = ROWS if width < 100 else 4800
    x, y = whole_numbers(rows, 40, seed=1), whole_numbers(rows, width, seed=2)
    wire = Precision(wire="bf16" if dtype == bfloat16 else "f16")
    with on(mesh=mesh):
        given = [ost.asarray(v, split=0) for v in (x, y)]
        f = ost.compile(lambda x, y: (x.T @ y).resplit(None), precision=wire)
        g = ost.compile(lambda x, y: (x.T @ y).resplit(0), precision=wire)
        found, parts = np.asarray(f(*given)), np.asarray(g(*given))
        plain = np.asarray(ost.compile(lambda x, y: x.T @ y)(*given))
        for made, kind in ((f, "all_reduce"), (g, "reduce_scatter")):
            assert narrow(made.plan) == [(kind, dtype)]
    right = added(addends(x, y, mesh), dtype)
    np.testing.assert_array_equal(parts, right)
    np.testing.assert_array_equal(found, right.astype(dtype).astype(np.float32))
    np.testing.assert_array_equal(plain, x.T @ y)
    assert (plain != found).any()


@pytest.mark.parametrize("mesh", [m for m in LARGE if min(m) > 1 and len(m) > 1], ids=str)
def test_inside_first_then_outside(mesh: tuple[int, ...]) -> None:
    """A sum along both axes, nested: rounded once more between them."""
    x, y = whole_numbers(ROWS, 60, seed=1), whole_numbers(ROWS, 200, seed=2)
    with on(mesh=mesh):
        given = [ost.asarray(v, split=(0, 0)) for v in (x, y)]
        f = ost.compile(lambda x, y: x.T @ y, precision=BF16)
        found = np.asarray(f(*given))
        kinds = narrow(f.plan)
    assert {dtype for _, dtype in kinds} == {bfloat16}
    each = addends(x, y, mesh)
    right = added(each, bfloat16)
    if len(kinds) > 1:
        assert [kind for kind, _ in kinds] == ["reduce_scatter", "all_reduce", "all_gather"]
        n = mesh[1]
        inner = [added(each[k : k + n], bfloat16) for k in range(0, len(each), n)]
        right = added(inner, bfloat16)
    np.testing.assert_array_equal(found, right.astype(bfloat16).astype(np.float32))


@pytest.mark.parametrize("mesh", [m for m in LARGE if len(m) == 1][:2], ids=str)
def test_in_loops_and_together(mesh: tuple[int, ...]) -> None:
    """Sums in the body of a loop, and several in one message."""

    def f(x: Any, y: Any) -> Any:
        first = ost.repeat(3, lambda w: w / 2 + (x.T @ (y + w[:1, :1])).resplit(None), y[:40])
        return first, (y.T @ y).resplit(None), (x.T @ x).resplit(None)

    x, y = whole_numbers(2400, 40, seed=1), whole_numbers(2400, 40, seed=2)
    with on(mesh=mesh):
        given = [ost.asarray(v, split=0) for v in (x, y)]
        made = ost.compile(f, precision=BF16)
        loop, second, third = map(np.asarray, made(*given))
        kinds = narrow(made.plan)
        assert {dtype for kind, dtype in kinds if kind == "all_reduce"} == {bfloat16}
        assert len(kinds) >= 2
    w = y[:40]
    for _ in range(3):
        total = added(addends(x, y + w[:1, :1], mesh), bfloat16)
        w = w / 2 + total.astype(bfloat16).astype(np.float32)
    np.testing.assert_allclose(loop, w, rtol=1e-2, atol=30)
    for found, z in ((second, y), (third, x)):
        right = added(addends(z, z, mesh), bfloat16)
        np.testing.assert_array_equal(found, right.astype(bfloat16).astype(np.float32))


def narrow(plan: Plan) -> list[tuple[str, Any]]:
    """Collectives, and the dtypes in which they send."""
    return [(kind, ins[0].dtype) for _, kind, ins in sent(plan.lowered)]


def sent(graph: Graph) -> list[Any]:
    found = []
    for node in graph.nodes:
        kind = collective_of(node.op, node.kw)
        if kind:
            found.append((node, kind, [graph.specs[v] for v in node.inputs]))
        for _, body in node.subgraphs():
            found += sent(body)
    return found


def test_half_the_bytes_and_what_explain_says() -> None:
    x, y = whole_numbers(ROWS, 40, seed=1), whole_numbers(ROWS, 60, seed=2)

    def f(x: Any, y: Any) -> Any:
        return (x.T @ y).resplit(None)

    with on(2):
        plans = []
        for policy in (Precision(), BF16):
            made = ost.compile(f, precision=policy)
            made(*(ost.asarray(v, split=0) for v in (x, y)))
            plans.append(made.plan)
    totals = [sum(bytes_sent(n, ins) for n, _, ins in sent(p.lowered)) for p in plans]
    assert totals == [2 * 40 * 60 * 4, 2 * 40 * 60 * 2]
    told = plans[1].explain()
    assert "sent      1 sum of addends rounded: 4.69 KiB less of each worker" in told
    assert "float32[40,60] -> bfloat16 (" in told
    assert "sent      1" not in plans[0].explain()
    assert decode_plan(encode_plan(plans[1])) == plans[1]


def test_files_that_round_otherwise_are_refused() -> None:
    x = whole_numbers(ROWS, 40, seed=1)
    with on(2):
        f = ost.compile(lambda x: (x.T @ x).resplit(None), precision=BF16)
        f(ost.asarray(x, split=0))
        plan = f.plan

    def refused(target: Target, message: str) -> None:
        other = replace(plan, key=replace(plan.key, target=target))
        with pytest.raises(Exception, match=message):
            decode_plan(packed(json.loads(encode_plan(other).partition(b"\n")[2])))

    refused(replace(plan.target, precision="as-written"), "addends sent in another dtype")
    refused(replace(plan.target, precision=str(Precision(wire="f16"))), "addends sent in another")
    for letters in ("", "s"):
        policy = str(Chosen(1e-3, "-", letters))
        refused(replace(plan.target, precision=policy), "more sums rounded than the policy says")


# -- letters ---------------------------------------------------------------------------------------
LETTERED = """
    (%0: float32[300,300] @ partial sum of 2, %1: float64[300,300] @ partial sum of 2)
    %2 = relayout(%0) : float32[300,300] @ whole of 2
    %3 = relayout(%1) : float64[300,300] @ whole of 2
    return %2, %3
"""


def test_a_letter_for_each_sum() -> None:
    graph = parse(LETTERED)

    def made(letters: str) -> list[Any]:
        target = Target((2,), precision=str(Chosen(1e-3, "", letters)))
        found = narrow_sums(graph, target)
        return [n.specs[0].dtype for n in found.nodes if n.op == "round_addends"]

    assert made("") == []
    assert made("b-") == [bfloat16]
    assert made("-s") == [float32]
    assert made("bb") == [bfloat16, bfloat16]
    for other in ("b", "bbb"):
        with pytest.raises(ArgumentError, match="letters for other sums"):
            made(other)


def some(count: int) -> list[Sum]:
    (each, _) = sums(parse(LETTERED), Target((2,)))
    return [each] * count


def test_what_room_is_left_for_sums() -> None:
    t = 3e-2
    assert room_for_sums([0.0], [0.0], [100], [t]) == [pytest.approx(t / MARGIN)]
    assert room_for_sums([3e-3], [1e-2], [100], [t])[0] == pytest.approx(
        (((t - 1e-2) / MARGIN) ** 2 - 3e-3**2) ** 0.5
    )
    assert room_for_sums([t], [0.0], [100], [t]) == [0.0]
    assert room_for_sums([t], [0.0], [100], [float("inf")]) == [float("inf")]


def test_sums_are_chosen_by_what_they_change() -> None:
    shares = [1e-3, 1e-2, 2e-3, 1e-3]
    runs: list[str] = []

    def errors(letters: str, more: float = 1.0) -> list[float]:
        runs.append(letters)
        each = [s for s, x in zip(shares, letters, strict=True) if x == "b"]
        size = more if len(each) > 1 else 1.0
        return [size * sum(s * s for s in each) ** 0.5]

    def chosen(room: float, most: str = "", more: float = 1.0) -> str:
        runs.clear()
        return choose_sums(some(4), lambda x: errors(x, more), [room], most).letters

    assert chosen(2e-2) == "bbbb"
    assert len(runs) == 1, "all together fit"
    assert chosen(3e-3) == "b-bb"
    assert chosen(1.5e-3) == "b--b"
    assert chosen(0.0) == "----"
    assert chosen(2e-2, most="-b-b") == "-b-b"
    assert chosen(3e-3, more=1.4) == "b--b", "what was measured together counts"
    assert chosen(3e-3, more=1e9).count("b") <= 1


def test_auto_sends_sums_narrow_where_the_tolerance_allows() -> None:
    def f(x: Any, w: Any) -> Any:
        h = x @ w
        return ost.tanh(h).sum(0), (x.T @ h).resplit(None)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 500)).astype(np.float32)
    w = rng.normal(size=(500, 500)).astype(np.float32)

    def chosen(tolerance: Any) -> tuple[Any, Chosen]:
        made = ost.compile(f, precision="auto", tolerance=tolerance)
        made(ost.asarray(x, split=0), w)
        policy = policy_of(made.plan.target.precision)
        assert isinstance(policy, Chosen)
        return made, policy

    with on(4):
        made, policy = chosen(2e-2)
        assert policy.sums == "b", "the vector is too small to gain"
        told = made.plan.explain()
        assert "float32[500,500] -> bfloat16 (" in told
        assert "measured error beside float64" in told
        assert decode_plan(encode_plan(made.plan)) == made.plan
        exact = ost.compile(f, precision="f64")
        fresh: list[Any] = [rng.normal(size=v.shape).astype(np.float32) for v in (x, w)]
        fresh[0] = ost.asarray(fresh[0], split=0)
        found, right = ost.run(made.plan, *fresh), exact(*fresh)
        for a, b in zip(found, right, strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b)
            assert np.linalg.norm(a - b) < 2e-2 * np.linalg.norm(b)
        made, policy = chosen(3e-3)
        assert policy.sums == ""
        assert "stays     sum of float32[500,500], which in bfloat16 changes" in made.plan.explain()
    with on(1):
        assert chosen(2e-2)[1].sums == ""
