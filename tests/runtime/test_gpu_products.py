"""Plans with products on a GPU, by cuBLASLt: what becomes one call of the library, that a repeated plan is one
launch, and what is said where the library is not there. On fakes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import DEVICES
from ostinato.ops.core.graph import Graph
from ostinato.ops.gpu.libraries import cublaslt
from ostinato.ops.gpu.libraries.cublaslt import BGRAD, BIAS, DRELU, GELU, RELU, RELU_AUX
from ostinato.ops.gpu.products import TILES, WAYS
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.gpu import take_results
from ostinato.planner.pipeline import tune
from ostinato.planner.plan import Choice, Tuned
from ostinato.planner.tuning import sites as tuning
from ostinato.planner.tuning.sites import APART, sites
from ostinato.planner.tuning.tuner import Budget, machine
from ostinato.runtime.engine import LocalEngine

import ostinato as ost
from ostinato import settings
from ostinato.sessions import Session
from tests.cuda_host import COMPILER
from tests.fake_device import BARE, FAKE, KERNELS, LT, MISSING
from tests.fake_xp import counted
from tests.sessions import JOB, use

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(120, 70)).astype("f4"), RNG.normal(size=(70, 50)).astype("f4")
B, C = RNG.normal(size=50).astype("f4"), RNG.normal(size=(120, 50)).astype("f4")


@pytest.fixture(autouse=True)
def by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As products of larger matrices are."""
    monkeypatch.setattr(take_results, "tiling_of", lambda *_: None)


def nodes(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def kinds(f: Any) -> list[str]:
    return nodes(f.plan.program.graph)


def bodies(f: Any) -> list[list[str]]:
    return [
        [op for op in nodes(n.kw["body"]) if op != "constant"]
        for n in f.plan.program.graph.nodes
        if n.op == "fused_matmul"
    ]


def planned(f: Any, *xs: Any, **how: Any) -> Any:
    """What has its plan, without a run."""
    with ost.connect(device=KERNELS, **how):
        return SimpleNamespace(plan=ost.compile(f).plan_for(*map(ost.asarray, xs)))


def run(f: Any, *xs: Any, device: str = KERNELS, **how: Any) -> tuple[Any, Any]:
    """The result, and the function, which keeps what explain said."""
    with ost.connect(device=device, **how):
        g, given = ost.compile(f), [*map(ost.asarray, xs)]
        for _ in range(3):
            made = ost.tree_map(np.asarray, g(*given))
        g(*given)
        g.said = g.plan.explain()
        return made, g


# -- what becomes one call -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "wanted", "taken"),
    [
        (lambda x, w, b, c: x @ w + b, X @ W + B, ["matmul", "add"]),
        (lambda x, w, b, c: c + x @ w, C + X @ W, ["matmul", "add"]),
        (lambda x, w, b, c: (x @ w) / 8 + c + b, X @ W / 8 + C + B, ["matmul", "divide", "add", "add"]),
        (lambda x, w, b, c: b - x @ w, B - X @ W, ["matmul", "subtract"]),
        (lambda x, w, b, c: c - (x @ w) * 0.5, C - X @ W * 0.5, ["matmul", "multiply", "subtract"]),
        (lambda x, w, b, c: ost.tanh(x @ w + b), np.tanh(X @ W + B), ["matmul", "add"]),
        (lambda x, w, b, c: x @ w + c[:, :1], X @ W + C[:, :1], None),
        (lambda x, w, b, c: ost.exp(x @ w * 0.01) + b, np.exp(X @ W * 0.01) + B, ["matmul", "multiply"]),
    ],
)  # fmt: skip
def test_sums_that_follow_are_a_part_of_the_call(function: Any, wanted: Any, taken: Any) -> None:
    before = LT.counted.products
    y, f = run(function, X, W, B, C)
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-4)
    assert bodies(f) == ([taken] if taken else [])
    assert LT.counted.products >= before + 2  # warmed up, and captured
    assert "as one graph" in f.said


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_functions_are_the_librarys_only_where_bits_do_not_matter(name: str) -> None:
    """Its relu loses NaN."""
    act = {"relu": ost.nn.relu, "gelu": lambda x: ost.nn.gelu(x, approximate=True)}[name]
    x = X.copy()
    x[3, 4] = np.nan
    same, f = run(lambda x, w, b: act(x @ w + b), x, W, B)
    assert np.isnan(same[3]).all()
    assert bodies(f) == [["matmul", "add"]]
    fast, g = run(lambda x, w, b: act(x @ w + b), X, W, B, numerics="fast")
    assert kinds(g) == ["fused_matmul"]
    assert LT.counted.epilogues[-1] == {"relu": RELU, "gelu": GELU}[name] | BIAS
    plain, _ = run(lambda x, w, b: act(x @ w + b), X, W, B)
    np.testing.assert_allclose(fast, plain, 1e-4, 1e-4)


def test_functions_of_another_library_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ost.settings, "math", "libm")

    def act(x: Any, w: Any, b: Any) -> Any:
        return ost.nn.gelu(x @ w + b, approximate=True)

    f = planned(act, X, W, B, numerics="fast")
    assert bodies(f) == [["matmul", "add"]]
    assert "tanh" in kinds(f)


def test_gelu_by_erf_is_a_kernel_behind() -> None:
    f = planned(lambda x, w, b: ost.nn.gelu(x @ w + b), X, W, B, numerics="fast")
    assert kinds(f) == ["fused_matmul", "fused"]
    assert bodies(f) == [["matmul", "add"]]


def test_kernels_in_stages_read_what_is_behind_a_product() -> None:
    f = planned(lambda x, w, b: ost.nn.softmax(x @ w + b), X, W, B)
    assert kinds(f) == ["fused_matmul", "fused_nest"]
    assert bodies(f) == [["matmul", "add"]]


def test_what_is_read_elsewhere_is_kept() -> None:
    """A gradient reads what a function was given."""

    def loss(w: Any, x: Any, b: Any) -> Any:
        return ost.nn.gelu(x @ w + b, approximate=True).sum()

    f = planned(lambda x, w, b: ost.grad(loss)(w, x, b), X, W, B, numerics="fast")
    assert bodies(f) == [["matmul", "add"]]


@pytest.mark.parametrize(("policy", "half"), [("mixed_bf16", "bfloat16"), ("mixed_f16", "float16")])
def test_rounded_operands_are_multiplied_into_float32(policy: str, half: str) -> None:
    y, f = run(lambda x, w, b: x @ w + b, X, W, B, precision=policy)
    assert bodies(f) == [["wide_matmul", "add"]]
    casts = [n for n in f.plan.program.graph.nodes if n.op in ("fused", "fused_foreach")]
    assert [s.dtype.name for n in casts for s in n.specs] == [half, half]
    np.testing.assert_allclose(y, X @ W + B, 0.05, 0.3)


def test_tf32_is_taken_where_a_policy_says_so() -> None:
    """In products, those with epilogues and those of einsum; not of doubles, and on no CPU."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return ost.tanh(x @ w + b) @ w.T + ost.einsum("ik,jk->ij", x, x).sum()

    for policy, computes in (("as-written", {68}), ("mixed_tf32", {77})):
        del LT.counted.computes[:]
        y, g = run(f, X, W, B, precision=policy)
        assert {*LT.counted.computes} == computes
        assert bodies(g) == [["matmul", "add"]]
        assert f"precision {policy}" in g.said
        del LT.counted.computes[:]
        run(lambda x, w: x @ w, X.astype("f8"), W.astype("f8"), precision=policy)
        assert {*LT.counted.computes} == {70}
        with use(precision=policy):
            h = ost.compile(f)
            np.testing.assert_allclose(y, np.asarray(h(X, W, B)), 1e-3, 1e-3)
            assert "tf32=" not in str(h.plan.program.graph)


def test_einsum_and_tensordot() -> None:
    q, k = (RNG.normal(size=(3, 20, 4, 16)).astype("f4") for _ in range(2))
    t = RNG.normal(size=(5, 8, 9)).astype("f4")

    def f(q: Any, k: Any, t: Any) -> Any:
        scores = ost.einsum("bqhd,bkhd->bhqk", q, k) / 4
        folded = ost.einsum("btk,btn->kn", t, t + 1)
        return scores, folded, ost.tensordot(t, t, axes=([0, 1], [0, 1]))

    before = LT.counted.products
    y, g = run(f, q, k, t)
    wanted = np.einsum("bqhd,bkhd->bhqk", q, k) / 4, np.einsum("btk,btn->kn", t, t + 1)
    for found, right in zip(y, (*wanted, np.einsum("btk,btn->kn", t, t)), strict=True):
        np.testing.assert_allclose(found, right, 1e-3, 1e-3)
    assert LT.counted.products > before
    assert "as one graph" in g.said


def test_splits_over_workers() -> None:
    """Rows, columns and terms: no worker's addends are followed by a bias."""
    with use((3,), device=KERNELS):
        f = ost.compile(lambda x, w, b: ost.tanh(x @ w + b) @ w.T)
        for splits in ((0, None), (None, 1), (1, 0), (None, None)):
            x, w = (ost.asarray(a, split=s) for a, s in zip((X, W), splits, strict=True))
            y = np.asarray(f(x, w, ost.asarray(B)))
            np.testing.assert_allclose(y, np.tanh(X @ W + B) @ W.T, 1e-3, 1e-3)


# -- a repeated plan -----------------------------------------------------------------------------
def step(w: Any, v: Any, b: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, v: Any, b: Any) -> Any:
        z = ost.nn.relu(x @ w + b) @ v
        return ((z - y) ** 2).mean()

    value, slopes = ost.value_and_grad(loss, argnums=(0, 1, 2))(w, v, b)
    return *(p - 0.01 * s for p, s in zip((w, v, b), slopes, strict=True)), value


def by_hand(w: Any, v: Any, b: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    before = x @ w + b
    hidden = np.maximum(before, 0)
    error = 2 * (hidden @ v - y) / y.size
    back = (error @ v.T) * (before > 0)
    return w - 0.01 * x.T @ back, v - 0.01 * hidden.T @ error, b - 0.01 * back.sum(0)


def test_a_training_step_is_one_launch() -> None:
    """Nothing is allocated, waited for or moved, and no algorithm asked for; weights are updated by the
    products that are their slopes."""
    v, y = RNG.normal(size=(50, 30)).astype("f4"), RNG.normal(size=(120, 30)).astype("f4")
    wanted = [a.astype("f8") for a in (W, v, B)]
    with ost.connect(device=KERNELS):
        f = ost.compile(step, donate=("w", "v", "b"))
        state, data = [*map(ost.asarray, (W, v, B))], [*map(ost.asarray, (X, y))]
        for turn in range(12):
            if turn == 6:
                before, known = vars(counted).copy(), (LT.counted.heuristics, LT.counted.products)
            *state, _ = f(*state, *data)
            wanted = by_hand(*wanted, X, y)
        did = {name: n - before[name] for name, n in vars(counted).items()}
        assert (LT.counted.heuristics, LT.counted.products) == known  # but in graphs
        assert [did[n] for n in ("allocations", "waits", "from_host", "to_host")] == [0] * 4
        for a, c in zip(state, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), c, 1e-3, 1e-4)
        f(*state, *data)
        assert "as one graph" in f.plan.explain()
        assert kinds(f).count("matmul") + kinds(f).count("fused_matmul") == 5
        assert bodies(f).count(["matmul", "multiply", "subtract"]) == 2


def test_a_training_step_keeps_bits_where_it_may() -> None:
    """Forward and back each layer is one call, as the library makes the relu, its slope and the bias's."""
    v, y = RNG.normal(size=(50, 30)).astype("f4"), RNG.normal(size=(120, 30)).astype("f4")
    wanted = by_hand(*(a.astype("f8") for a in (W, v, B)), X, y)
    before = len(LT.counted.epilogues)
    found, f = run(step, W, v, B, X, y, numerics="fast")
    for a, c in zip(found, wanted, strict=False):
        np.testing.assert_allclose(a, c, 1e-3, 1e-4)
    assert {RELU_AUX | BIAS, DRELU | BGRAD} <= {*LT.counted.epilogues[before:]}
    assert bodies(f)[0] == ["matmul", "add", "less_equal", "where", "positive_bits"]
    assert ["matmul", "where_positive", "sum"] in bodies(f)
    assert "as one graph" in f.said
    wide = [s for s in f.plan.program.graph.specs if s.shape == (120, 50)]
    assert len(wide) == 2  # what is behind the relu, and its slope
    _, exact = run(step, W, v, B, X, y)
    assert not any("positive_bits" in ops for ops in bodies(exact))


def test_bits_are_kept_only_if_the_library_has_both() -> None:
    """What it says when planning; one of both is worth nothing, but sums may be a kernel."""
    v, y = RNG.normal(size=(50, 30)).astype("f4"), RNG.normal(size=(120, 30)).astype("f4")
    for refused, kept in (
        ({RELU_AUX, RELU_AUX | BIAS}, None),
        ({DRELU, DRELU | BGRAD}, None),
        ({DRELU | BGRAD}, ["matmul", "where_positive"]),
    ):
        LT.refused_epilogues |= refused
        try:
            f = planned(step, W, v, B, X, y, numerics="fast")
        finally:
            LT.refused_epilogues -= refused
        found = [ops for ops in bodies(f) if "where_positive" in ops]
        assert found == ([kept] if kept else [])
        assert any("positive_bits" in ops for ops in bodies(f)) == bool(kept)


@pytest.mark.parametrize("split", [0, None])
def test_bits_of_parts(split: int | None) -> None:
    """Of rows; a sum over them is one of addends."""
    v, y = RNG.normal(size=(50, 30)).astype("f4"), RNG.normal(size=(120, 30)).astype("f4")
    wanted = by_hand(*(a.astype("f8") for a in (W, v, B)), X, y)
    with use((3,), device=KERNELS, numerics="fast"):
        f = ost.compile(step)
        data = [ost.asarray(a, split=split) for a in (X, y)]
        for _ in range(4):
            found = f(*map(ost.asarray, (W, v, B)), *data)
        for a, c in zip(found, wanted, strict=False):
            np.testing.assert_allclose(np.asarray(a), c, 1e-3, 1e-4)
        assert ["matmul", "where_positive", "sum"] in bodies(f)


@pytest.mark.parametrize("turned", [False, True])
def test_a_loop_that_begins_elsewhere_is_one_launch(turned: bool) -> None:
    """Its first turn reads a matrix that lies in another way than those of later ones."""

    def f(a: Any, b: Any) -> Any:
        return ost.repeat(3, lambda y: ost.tanh(y @ a + b), a.T if turned else a)

    a, wanted = W[:50] / 9, W[:50].T / 9 if turned else W[:50] / 9
    for _ in range(3):
        wanted = np.tanh(wanted @ a + B)
    y, g = run(f, a, B)
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-5)
    assert "as one graph" in g.said


def test_the_workspace_is_the_plans() -> None:
    with ost.connect(device=KERNELS):
        f = ost.compile(lambda x, w: ost.exp(x @ w))
        plan = f.plan_for(ost.asarray(X), ost.asarray(W))
    (k,) = (k for k, n in enumerate(plan.program.graph.nodes) if n.op == "matmul")
    assert len(plan.program.scratch[k]) == 1
    assert plan.arena_bytes > 1 << 20


def test_halves_need_no_copies_in_float32() -> None:
    with ost.connect(device=KERNELS):
        x, w = (ost.asarray(a).astype("bfloat16") for a in (X, W))
        f = ost.compile(lambda x, w: x @ w)
        for _ in range(3):
            y = f(x, w)
        (node,) = (k for k, n in enumerate(f.plan.program.graph.nodes) if n.op == "matmul")
        assert len(f.plan.program.scratch[node]) == 1
        wanted = np.asarray(x).astype("f4") @ np.asarray(w).astype("f4")
        np.testing.assert_allclose(np.asarray(y).astype("f4"), wanted, 0.02, 0.05)


def test_a_product_over_what_it_adds() -> None:
    """The sum takes the memory of the matrix that dies in it, whoever adds."""

    def f(x: Any, w: Any, c: Any) -> Any:
        return ost.sort(x @ w + ost.sort(ost.exp(c), axis=0), axis=0)

    wanted = np.sort(X @ W + np.sort(np.exp(C), 0), 0)
    for refused in (set[int](), {1}):
        algorithms, LT.algorithms = LT.algorithms, 0 if refused else LT.algorithms
        try:
            y, g = run(f, X, W, C)
        finally:
            LT.algorithms = algorithms
        np.testing.assert_allclose(y, wanted, 1e-4, 1e-4)
        program = g.plan.program
        (k,) = (k for k, n in enumerate(program.graph.nodes) if n.op == "fused_matmul")
        made, added = program.graph.starts[k], program.graph.nodes[k].inputs[2]
        assert program.slots[made] == program.slots[added]


# -- which algorithm -------------------------------------------------------------------------------
def test_timing_chooses_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded in the plan, and taken where the plan runs."""
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    seen: list[tuple[str, ...]] = []

    def third(found: Any, room: Any) -> Tuned:
        seen.extend(s.ways for s in found)
        ways = ["algorithm 3" if "algorithm 3" in s.ways else "" for s in found]
        return Tuned("here", tuple(Choice("", "", way) for way in ways))

    monkeypatch.setattr(Session, "_tuned", lambda s, plan: tune(plan, third, 2))
    given = X * 0.1, W * 0.1, B
    y, f = run(lambda x, w, b: ost.exp(x @ w + b) @ w.T, *given, numerics="fast")
    np.testing.assert_allclose(y, np.exp(X @ W * 0.01 + B) @ W.T * 0.1, 1e-3, 1e-3)
    assert LT.counted.algorithms[-2:] == [3, 3]
    assert f.plan.tuned.ways.count("algorithm 3") == 2
    assert (*WAYS, TILES, APART) in seen
    assert (*WAYS, TILES) in seen
    assert not any("thread" in way for ways in seen for way in ways)


def test_each_way_computes_the_same_and_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    with ost.connect(device=KERNELS, numerics="fast") as session:
        f = ost.compile(lambda x, w, b: x @ w + b)
        plan = f.plan_for(*map(ost.asarray, (X, W, B)))
        (site,) = [s for s in sites(plan.program.graph, plan.target, 2) if APART in s.ways]
        assert [n.op for n in site.graphs[-1].nodes] == ["matmul", "fused"]
        programs = site.programs()
        rounds = session.engine.trials(programs, 5.0)
        assert len(rounds) >= 3
        assert all(t > 0 for t in rounds[0])
        assert counted.done == counted.asked  # it was waited for
    said = machine(1, DEVICES[KERNELS])
    assert "a GPU that is not there; CuPy 14; cuBLASLt 130200" in said
    assert said != machine(1, DEVICES["cpu"])


def test_an_algorithm_is_measured_once_and_only_under_fast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under `same-plan` prices alone choose between a kernel of ours and the library, and its first
    algorithm is taken; what `fast` timed is kept for sessions and plans to come, and goes with a plan."""
    monkeypatch.setattr(settings, "cache", tmp_path)
    monkeypatch.setattr(settings, "tune", "on")
    monkeypatch.setattr(ost.sessions, "budget", Budget(20.0, site=5.0))
    monkeypatch.setattr(tuning, "WORTH", 0.0)
    timed: list[int] = []

    def trials(engine: Any, programs: Any, limit: float) -> list[list[float]]:
        timed.append(len(programs))
        return [[2.0, 2.0, 1.0, *[2.0] * (len(programs) - 3)]] * 5

    monkeypatch.setattr(LocalEngine, "trials", trials)

    def both(x: Any, w: Any) -> Any:
        return x @ w, x.T @ x

    asked = dict[str, list[Any]]()
    for numerics in ("same-plan", "fast"):
        for _ in range(2):
            _, f = run(both, X, W, numerics=numerics)
            asked.setdefault(numerics, []).append(f.plan)
        for file in (tmp_path / "plans").rglob("*.plan"):
            file.unlink()  # and another session plans anew
        asked[numerics].append(planned(lambda x, w: both(x, w), X, W, numerics=numerics).plan)
        if numerics == "same-plan":
            assert not timed
    assert timed == [len((*WAYS, TILES))] * 2, "of each product once"
    for plan in asked["same-plan"]:
        assert not any(choice.times for choice in plan.tuned.choices)
        assert not any(plan.tuned.ways)
    first, *others = asked["fast"]
    assert {*first.tuned.ways} - {""} <= {*WAYS, TILES}
    assert len([way for way in first.tuned.ways if way]) == 2
    for plan in (*others, decode_plan(encode_plan(first), None)):
        assert plan.tuned == first.tuned
        assert str(plan.program.graph) == str(first.program.graph)


# -- without the library ----------------------------------------------------------------------------
def test_without_the_library_products_are_cupys_and_explain_says_so() -> None:
    y, f = run(lambda x, w, b: ost.tanh(x @ w + b), X, W, B, device=BARE)
    np.testing.assert_allclose(y, np.tanh(X @ W + B), 1e-4, 1e-4)
    assert kinds(f) == ["matmul", "fused"]
    said = f.said
    assert said.count("products by CuPy's calls of cuBLAS, which no graph repeats") == 1
    assert MISSING in said
    assert "and operation by operation matmul" in said
    _, g = run(lambda x: ost.exp(x), X, device=BARE)
    assert "cuBLAS" not in g.said
    y, h = run(lambda x, w: x @ w, X, W, device=BARE, precision="mixed_bf16")
    assert "wide_matmul" not in kinds(h)


def test_what_the_library_refuses_is_said() -> None:
    refused = dict(FAKE.library.refused)  # type: ignore[union-attr]
    LT.algorithms, before = 0, LT.algorithms
    try:
        y, f = run(lambda x, w, b: x[:7] @ w + b, X, W, B, device="fake")
        said = f.said
    finally:
        LT.algorithms = before
        FAKE.library.refused.clear()  # type: ignore[union-attr]
        FAKE.library.refused.update(refused)  # type: ignore[union-attr]
    np.testing.assert_allclose(y, X[:7] @ W + B, 1e-4, 1e-4)
    assert "where cuBLASLt has no algorithm: 7 x 50 x 70 of float32" in said


def test_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.delitem(sys.modules, "nvmath.bindings", raising=False)
    assert cublaslt.found(None) == MISSING


def test_products_of_parts_with_one_matrix_are_one_product() -> None:
    """Of all rows, that is: where half of these were nobody's, each is its own."""

    def recurrence(xp: Any, x: Any, w: Any, u: Any) -> Any:
        h = x[0][:, :6] * 0
        for k in range(5):
            h = xp.tanh(x[k] @ w + h @ u)
        return h

    def rows(xp: Any, x: Any, w: Any, u: Any) -> Any:
        return x[:3] @ w, x[3:9] @ w - 1, x[9:] @ u, x[:1] @ u

    r = np.random.default_rng(4)
    x, w, u = r.normal(size=(5, 12, 8)), r.normal(size=(8, 6)), r.normal(size=(6, 6))
    both = r.normal(size=(8, 6))
    with use(device=KERNELS):
        run = ost.compile(lambda *given: recurrence(ost, *given))
        found = np.asarray(run(*map(ost.asarray, (x, w, u))))
        assert products(run) == 1 + 5
        parts = ost.compile(lambda *given: rows(ost, *given))
        made = [np.asarray(y) for y in parts(*map(ost.asarray, (x[0], w, both)))]
        assert products(parts) == 3
    np.testing.assert_allclose(found, recurrence(np, x, w, u), rtol=1e-12)
    for a, b in zip(made, rows(np, x[0], w, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def products(run: Any) -> int:
    return sum("matmul" in n.op for n in run.plan.program.graph.nodes)
