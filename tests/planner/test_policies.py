"""Policies of precision: what computes in which dtype, what stays as written, and what plans say of it."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.show import parse
from ostinato.ops.core.spec import bfloat16, complex64, complex128, is_inexact
from ostinato.planner.check import check_graph
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes.precision import mix_precision
from ostinato.planner.passes.simplify import simplify
from ostinato.planner.plan import Plan, Target
from ostinato.planner.policy import FLOATS, PRESETS, Chosen, Precision

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import on
from tests.ops.nodes import graphs, traced
from tests.ops.samples import SAMPLES
from tests.trust.forge import packed

F32, F64 = Target(precision="f32"), Target(precision="f64")


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(dtype)


def net(x: Any, w: Any) -> Any:
    h = ost.tanh(x @ w)
    return ost.nn.softmax(h), (x[:2] * 2).sum(), h.var(), h.argmax(0)


def test_all_arithmetic_is_in_one_dtype() -> None:
    before = parse("""
        (%0: float64[4], %1: float64[9], %2: int32[4])
        %3 = slice(%1; sizes=(4,), starts=(0,), steps=(1,)) : float64[4]
        %4 = add(%0, %3) : float64[4]
        %5 = divide(%2, %2) : float64[4]
        %6 = less(%4, %5) : bool[4]
        return %4, %6, %3
    """)
    after = parse("""
        (%0: float64[4], %1: float64[9], %2: int32[4])
        %3 = astype(%0; dtype=dtype float32) : float32[4]
        %4 = slice(%1; sizes=(4,), starts=(0,), steps=(1,)) : float64[4]
        %5 = astype(%4; dtype=dtype float32) : float32[4]
        %6 = add(%3, %5) : float32[4]
        %7 = astype(%6; dtype=dtype float64) : float64[4]
        %8 = astype(%2; dtype=dtype float32) : float32[4]
        %9 = divide(%8, %8) : float32[4]
        %10 = less(%6, %9) : bool[4]
        return %7, %10, %4
    """)
    assert (
        mix_precision(before, F32) == after
    )  # of an argument, parts are taken and given as they are
    assert mix_precision(after, F32) == after
    assert mix_precision(before, F64) is not after


@pytest.mark.parametrize("text", ["f32", "f64", "storage=f32 compute=f16 accumulate=f64"])
def test_every_operation_follows(text: str) -> None:
    """Of each sample: the graph makes sense, gives what it gave, and computes in no other dtype."""
    target, kinds = Target(precision=text), {FLOATS[text[-3:]]}
    kinds |= {complex64 if text == "f32" else complex128}
    for name, samples in SAMPLES.items():
        for sample in samples:
            graph = simplify(traced(sample)[0], target)
            made = mix_precision(graph, target)
            check_graph(made)
            assert mix_precision(made, target) == made, name
            assert [s.bare for s in made.out_specs] == [s.bare for s in graph.out_specs], name
            for node in (n for g in graphs(made) for n in g.nodes if text in PRESETS):
                op = OPS[node.op]
                if (
                    op.moves.converts
                    or op.moves.same_elements
                    or op.moves.selects
                    or op.element.random_in_kernel
                    or "mome" in op.name
                ):
                    continue  # moments count in float64
                if op.name in ("sorted_numbers", "callback"):  # what keys or users say
                    continue
                found = {s.dtype for s in node.specs if is_inexact(s.dtype)}
                assert found <= kinds, f"{name}: {node.op} in {found}"


@pytest.mark.parametrize("policy", ["f32", "f64", Precision(storage="bf16")])
def test_results_keep_their_dtypes(policy: Any) -> None:
    f = ost.compile(net, precision=policy)
    right = net(*map(ost.asarray, (numbers(20, 30), numbers(30, 5, seed=1))))
    close = {"f32": 1e-5, "f64": 1e-6}.get(str(policy), 0.2)
    for dtype in ("float32", "float64"):
        made = f(numbers(20, 30, dtype=dtype), numbers(30, 5, seed=1, dtype=dtype))
        assert [y.dtype.name for y in made] == [dtype] * 3 + ["int64"]
        for y, wanted in zip(made[:3], right, strict=False):
            np.testing.assert_allclose(np.asarray(y), np.asarray(wanted), rtol=close, atol=close)
    x = numbers(50, dtype=np.float32)  # a result has all digits if it is asked for them inside
    g = ost.compile(lambda x: ost.exp(x).astype(ost.float64), precision="f64")
    np.testing.assert_allclose(np.asarray(g(x)), np.exp(x.astype(float)), rtol=1e-14)


@pytest.mark.parametrize("workers", [1, 2])
def test_in_loops_and_branches(workers: int) -> None:
    def f(x: Any, w: Any) -> Any:
        twice = ost.repeat(2, lambda x: ost.sin(x @ w), x)
        many = ost.while_loop(lambda s: (s * s).sum() < 50, lambda s: s * 1.5, x)
        _, rows = ost.scan(lambda s, row: (s + row.sum(), s * 2), x[0, 0], x)
        either = ost.cond(x[0, 0] > 0, lambda a: ost.exp(a), lambda a: a - 1, x)
        return twice, many, rows, either, x + ost.random.normal((6, 5), seed=3)

    x, w = numbers(6, 5), numbers(5, 5, seed=1)
    with on(workers):
        right = ost.compile(f)(ost.asarray(x, split=0), w)
        g = ost.compile(f, precision="f32")
        made = g(ost.asarray(x, split=0), w)
        for y, wanted in zip(made, right, strict=True):
            error = np.abs(np.asarray(y) - np.asarray(wanted)).max()
            assert y.dtype == np.float64
            assert 0 < error < 1e-5
        inside = [n for h in graphs(g.plan.lowered) for n in h.nodes if n.op == "sin"]
        assert [n.specs[0].dtype.name for n in inside] == ["float32"]


def test_random_numbers_are_drawn_as_written() -> None:
    def f(x: Any) -> Any:
        return x * ost.random.normal((99,), dtype="float32", seed=3), ost.random.uniform(
            (9,), seed=1
        )

    x = numbers(99, dtype=np.float32)
    for policy in ("f32", "f64"):
        for y, right in zip(ost.compile(f, precision=policy)(x), f(x), strict=True):
            np.testing.assert_allclose(np.asarray(y), np.asarray(right), rtol=2e-7)
    g = ost.compile(lambda: ost.random.normal((99,), dtype="float32", seed=3).astype("float64"))
    wide = ost.compile(g.function, precision="f64")
    np.testing.assert_array_equal(np.asarray(wide()), np.asarray(g()))


def test_complex_numbers_are_pairs() -> None:
    f = ost.compile(lambda z: (abs(z * z), z.conj()), precision="f32")
    z = numbers(30) + 1j * numbers(30, seed=1)
    size, conj = f(z)
    assert (size.dtype, conj.dtype) == (np.float64, np.complex128)
    assert 0 < np.abs(np.asarray(conj) - z.conj()).max() < 1e-7
    np.testing.assert_allclose(np.asarray(size), abs(z * z), rtol=1e-6)


def casts(graph: Graph) -> list[str]:
    return [n.specs[0].dtype.name for n in graph.nodes if OPS[n.op].moves.converts]


def test_sums_as_wide_as_is_said() -> None:
    x = (1 + numbers(1000, dtype=np.float32) * 1e-4) * 1e4
    f = ost.compile(
        lambda x: (x.sum(), x.mean(), x @ x, x.var()), precision=Precision(accumulate="f64")
    )
    wide = x.astype(float)
    exact = wide.sum(), wide.mean(), wide @ wide, wide.var()
    for y, right in zip(f(x), exact, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_allclose(float(y), right, rtol=2.0**-23)
    narrow = ost.compile(f.function)(x)
    assert abs(float(narrow[3]) - exact[3]) > 1e-6 * exact[3]


def test_products_wider_than_their_sums_stay() -> None:
    x = numbers(4, 4)
    f = ost.compile(lambda x: x @ x, precision="mixed_f16")
    np.testing.assert_array_equal(np.asarray(f(x)), np.asarray(ost.compile(f.function)(x)))
    assert casts(f.plan.lowered) == []
    g = ost.compile(lambda x: x @ x, precision=Precision("f64", "f32", "f32"))
    y = np.asarray(g(x))
    assert casts(g.plan.lowered) == ["float32", "float64"]  # one product of floats
    np.testing.assert_array_equal(y, (x.astype(np.float32) @ x.astype(np.float32)).astype(float))


def test_mixed_halves() -> None:
    x, w = numbers(40, 30, dtype=np.float32), numbers(30, 20, seed=1, dtype=np.float32)
    f = ost.compile(lambda x, w: ost.nn.softmax(x @ w), precision="mixed_f16")
    f(x, w)
    assert casts(f.plan.lowered) == ["float16", "float32"] * 2
    h = (x.astype(np.float16).astype(float)) @ w.astype(np.float16).astype(float)
    right = np.exp(h - h.max(1, keepdims=True))
    right /= right.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(f(x, w)), right, rtol=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
def test_loops_read_what_was_rounded_once(workers: int, tmp_path: Path) -> None:
    """Constants of loops, of loops in loops too; one that is read as it is stays beside."""

    def f(x: Any, w: Any, v: Any) -> Any:
        def inner(x: Any) -> Any:
            return ost.repeat(2, lambda x: ost.sin(x @ w) @ w.T, x)

        def turn(s: Any, row: Any) -> Any:
            return inner(s) + row, (s @ v).sum() + (s.T @ x).sum() + (s * x).sum()

        y, sums = ost.scan(turn, x, ost.stack([x, x * 2]))
        return ost.while_loop(
            lambda s: (s @ w).sum() < 50, lambda s: s @ (w @ w.T) * 0.1 + 9, y
        ), sums

    given = [numbers(*s, seed=k, dtype=np.float32) for k, s in enumerate(((8, 6), (6, 4), (6, 3)))]
    with on(workers):
        arrays = [ost.asarray(x, split=0) for x in given]
        g = ost.compile(f, precision="mixed_f16")
        made = [np.asarray(y) for y in g(*arrays)]
        right = [np.asarray(y) for y in ost.compile(f)(*arrays)]
        assert g.plan.target.workers == workers
        for y, wanted in zip(made, right, strict=True):
            error = np.linalg.norm(y - wanted) / np.linalg.norm(wanted)
            assert 1e-6 < error < 1e-2
        graph = mix_precision(simplify(g.plan.traced, g.plan.target), g.plan.target)
        outside = sorted(s.shape for s in rounded_of(graph))
        assert outside == [(6, 3), (6, 4), (6, 6), (8, 6)]  # v, w, w @ w.T, x
        inside = [h for h in graphs(graph) if h is not graph]
        shapes = {s.shape for h in inside for s in rounded_of(h)}
        assert shapes == {(8, 6), (8, 4)}  # what turns make
        assert mix_precision(graph, g.plan.target) == graph
        g.plan.to_file(tmp_path / "plan")
        assert Plan.from_file(tmp_path / "plan") == g.plan


def rounded_of(graph: Graph) -> list[Any]:
    """What is cast to a half there."""
    halves = [n for n in graph.nodes if OPS[n.op].moves.converts and n.specs[0].dtype.itemsize == 2]
    return [n.specs[0] for n in halves]


def test_texts_are_policies() -> None:
    names = ("as-written", *FLOATS)
    texts = set()
    for storage, compute, accumulate in itertools.product(
        names, (*names, "tf32"), ("as-written", "f32", "f64")
    ):
        try:
            policy = Precision(storage, compute, accumulate)
        except ArgumentError:
            continue
        again = Precision.from_text(str(policy))
        assert (str(again), again.dtypes) == (str(policy), policy.dtypes)
        texts.add(str(policy))
    assert set(PRESETS) < texts
    assert str(Precision(storage="f64")) == "f64"
    assert Precision("bf16").dtypes == (bfloat16, bfloat16, np.float32)
    for text in ("", "f33", "storage=f32", "storage=f32 compute=f32 accumulate=f32", "f32 " * 20):
        with pytest.raises(ValueError, match="precision"):
            Precision.from_text(text)


def test_policies_that_are_none() -> None:
    for options, message in (
        (
            {"storage": "half"},
            "Precision.*got storage='half'; needed 'as-written' or 'f16' or 'bf16'",
        ),
        ({"accumulate": "bf16"}, "got accumulate='bf16'; needed 'as-written' or 'f32' or 'f64'"),
        ({"compute": 16}, "got compute=16; needed"),
        (
            {"compute": "f64", "accumulate": "f32"},
            "got compute='f64' with accumulate='f32'; needed sums at least as wide",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            Precision(**options)  # type: ignore[arg-type]
    for given in ("half", Target(), None, 3, str(Chosen(0.1, "b"))):
        with pytest.raises(ArgumentError, match=r"connect.*got precision=.*or an ost\.Precision"):
            ost.connect(precision=given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"'auto' looks at what a call is given"):
        ost.connect(precision="auto")


def test_what_was_chosen_can_be_given() -> None:
    x = numbers(8, 8, dtype=np.float32)
    f = ost.compile(triple, precision=str(Chosen(0.1, "b")))
    right = ost.compile(triple, precision="mixed_bf16")(x)
    np.testing.assert_array_equal(np.asarray(f(x)), np.asarray(right))
    assert "rounded   1 of 1 products for tolerance 0.1" in f.plan.explain()
    for letters in ("", "bb"):
        with pytest.raises(
            ArgumentError, match=r"letters for other products.*one for each product"
        ):
            ost.compile(triple, precision=str(Chosen(0.1, letters)))(x)


def triple(x: Any) -> Any:
    return x @ x * 3


tripled = ost.compile(triple, precision=Precision("f32", "bf16"))


def test_they_are_part_of_the_plan(tmp_path: Path) -> None:
    x = numbers(8, 8)
    plans = {}
    for policy in ("as-written", "f32", "f64", "mixed_f16", Precision("f32", "f16", "f64")):
        f = ost.compile(triple, precision=policy)
        f(x)
        plans[f.plan.id] = f.plan
        assert f"precision {policy}\n" in f.plan.explain()
        path = tmp_path / f.plan.id
        f.plan.to_file(path)
        again = Plan.from_file(path)
        assert again == f.plan
        np.testing.assert_array_equal(np.asarray(ost.run(again, x)), np.asarray(f(x)))
    assert len(plans) == 5
    with ost.connect(precision=Precision("f32")):
        y = ost.asarray(x) @ ost.asarray(x) * 3
        assert y.dtype == np.float64
        right = np.asarray(ost.compile(triple, precision="f32")(x))
        np.testing.assert_array_equal(np.asarray(y), right)
        assert (np.asarray(y) != x @ x * 3).any()
    again = pickle.loads(pickle.dumps(tripled))
    assert again.precision == tripled.precision == "storage=f32 compute=bf16 accumulate=f32"


def test_files_that_compute_otherwise_are_refused() -> None:
    f, g = (ost.compile(triple, precision=p) for p in ("f32", "f64"))
    x = numbers(8, 8, dtype=np.float32)
    f(x), g(x)
    narrow, wide = (json.loads(encode_plan(p.plan).partition(b"\n")[2]) for p in (f, g))
    assert decode_plan(packed(wide)) == g.plan
    for changed, message in (
        ({**wide, "program": narrow["program"]}, "something else than its source"),
        ({**wide, "precision": "storage=f32"}, "precision 'storage=f32'"),
        ({**wide, "precision": 64}, "precision 64"),
    ):
        with pytest.raises(Exception, match=message):
            decode_plan(packed(changed))
