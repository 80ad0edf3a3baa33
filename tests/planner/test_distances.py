"""Squared differences of all pairs of rows: which become products, and that results keep their
digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.array.distances import CANCELLING_SHARE
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.show import parse
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.passes.far_pairs import MIN_ROW_ELEMENTS, multiply_differences
from ostinato.planner.plan import Target

import ostinato as ost

N, K, D = 900, 300, 200


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(dtype)


def all_ops(graph: Any) -> list[str]:
    return [
        op
        for n in graph.nodes
        for op in (n.op, *(inner for _, g in n.subgraphs() for inner in all_ops(g)))
    ]


def run(f: Any, *arrays: np.ndarray, **how: Any) -> tuple[np.ndarray, Any]:
    compiled = ost.compile(f)
    made = np.asarray(compiled(*(ost.asarray(x, **how) for x in arrays)))
    return made, compiled.plan


def exact(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    x, c = x.astype(np.float64), c.astype(np.float64)
    return np.stack([((row - c) ** 2).sum(-1) for row in x])


BEFORE = """
    (%0: float32[900,200], %1: float32[300,200])
    %2 = expand_dims(%0; axes=(1,)) : float32[900,1,200]
    %3 = subtract(%2, %1) : float32[900,300,200]
    %4 = square(%3) : float32[900,300,200]
    %5 = sum(%4; axes=(2,), dtype=dtype float32) : float32[900,300]
    return %5
"""


def test_the_pass() -> None:
    before = parse(BEFORE)
    after = parse("""
        (%0: float32[900,200], %1: float32[300,200])
        %2 = isfinite(%1) : bool[300,200]
        %3 = constant(; dtype=dtype float32, value=0.0) : float32[]
        %4 = where(%2, %1, %3) : float32[300,200]
        %5 = mean(%4; axes=(0,), count=300) : float32[200]
        %6 = subtract(%0, %5) : float32[900,200]
        %7 = subtract(%1, %5) : float32[300,200]
        %8 = permute_dims(%7; axes=(1, 0)) : float32[200,300]
        %9 = matmul(%6, %8) : float32[900,300]
        %10 = square(%6) : float32[900,200]
        %11 = sum(%10; axes=(1,), dtype=dtype float32) : float32[900]
        %12 = square(%7) : float32[300,200]
        %13 = sum(%12; axes=(1,), dtype=dtype float32) : float32[300]
        %14 = pair_distances(%9, %11, %13, %0, %1) : float32[900,300]
        return %14
    """)
    assert multiply_differences(before, Target((1,))) == after
    assert multiply_differences(after, Target((1,))) == after
    assert multiply_differences(before, Target((1,), numerics="any-workers")) is before


def test_a_bad_row_spoils_no_other() -> None:
    """Its pairs are made from differences; all pairs would be, had the middle no value."""
    x, c = numbers(N, D) + 100, numbers(K, D, seed=1) + 100
    c[7], c[9, 3], x[5] = np.nan, np.inf, -np.inf
    values: list[Any] = [x, c]
    with np.errstate(all="ignore"):
        for node in multiply_differences(parse(BEFORE), Target((1,))).nodes:
            if node.op == "pair_distances":
                break
            given, (spec,) = [values[v] for v in node.inputs], node.specs
            if node.op == "permute_dims":
                values.append(given[0].T)
                continue
            values.append(np.empty(spec.shape, spec.dtype))
            op: Any = OPS[node.op]
            if op.run.ufunc:
                getattr(np, op.run.ufunc)(*given, out=values[-1])
            else:
                op.kernel(np, values[-1], *given, **node.kw)
        products, a, q = (values[v] for v in node.inputs[:3])
        far = a[:, None] + q - 2 * products > CANCELLING_SHARE * (a[:, None] + q)
    good = np.isfinite(x).all(1)[:, None] & np.isfinite(c).all(1)
    assert good.sum() == (N - 1) * (K - 2)
    assert far[good].all()


FORMS: dict[str, Any] = {
    "columns": lambda x, c: ((x[:, None, :] - c[None]) ** 2).sum(-1),
    "broadcast": lambda x, c: ((x[:, None] - c) ** 2).sum(2),
    "the other way": lambda x, c: ((c - x[:, None]) ** 2).sum(2),
    "multiplied": lambda x, c: ((x[:, None] - c) * (x[:, None] - c)).sum(2),
    "reshaped": lambda x, c: ((x.reshape(N, 1, D) - c.reshape(1, K, D)) ** 2).sum(2),
    "turned": lambda x, c: ((c[:, None] - x) ** 2).sum(2).T,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMS)
def test_as_people_write_it(name: str, dtype: Any) -> None:
    x, c = numbers(N, D, dtype=dtype), numbers(K, D, dtype=dtype, seed=1)
    c[:50] = x[:50] * dtype(1.0001)
    y, plan = run(FORMS[name], x + dtype(100), c + dtype(100))
    assert all_ops(plan.program.graph).count("pair_distances") == 1
    right = exact(x + dtype(100), c + dtype(100))
    np.testing.assert_allclose(y, right, rtol=100 * np.finfo(dtype).eps)
    assert "rewritten squared differences" in plan.explain()


@pytest.mark.parametrize(
    "f",
    [
        lambda x, c: ((x[:, None] - c)[..., : MIN_ROW_ELEMENTS - 1] ** 2).sum(2),
        lambda x, c: ((x[:, None] - c[:10]) ** 2).sum(2),
        lambda x, c: ((x[:, None] - c) ** 2).sum(2, dtype=np.float64),
        lambda x, c: ((x[:, None] - c) ** 3).sum(2),
        lambda x, c: ((x[:, None] - c) ** 2).sum(1),
        lambda x, c: ((x[:K, None] - x[:K, None] * c) ** 2).sum(2),
        lambda x, c: (lambda d: (d**2).sum(2) + d[..., 0])(x[:, None] - c),
        lambda x, c: ((x[:, None] - c) ** 2).sum((1, 2)),
    ],
)
def test_others_are_as_before(f: Any) -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)
    y, plan = run(f, x, c)
    assert "pair_distances" not in all_ops(plan.program.graph)
    assert "rewritten" not in plan.explain()
    found = y[::30]  # a row of x has nothing to do with others
    right = f(x[::30].astype(np.float64), c.astype(np.float64))[: len(found)]
    np.testing.assert_allclose(found, right, rtol=1e-2)


def test_a_step_of_k_means() -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)

    def step(x: Any, c: Any) -> Any:
        near = ost.nn.one_hot(((x[:, None] - c) ** 2).sum(-1).argmin(1), K)
        return near.T @ x

    y, plan = run(step, x, c)
    assert "pair_distances" in all_ops(plan.program.graph)
    right = np.zeros((K, D))
    np.add.at(right, exact(x, c).argmin(1), x.astype(np.float64))
    np.testing.assert_allclose(y, right, atol=1e-4)


@pytest.mark.cpu_only
def test_what_is_large_is_never_whole() -> None:
    x, c = ost.asarray(numbers(40_000, 128)), ost.asarray(numbers(1024, 128, seed=1))
    f = ost.compile(lambda x, c: ((x[:, None] - c) ** 2).sum(-1).argmin(1))
    y = np.asarray(f(x, c))
    assert "blocks" in [n.op for n in f.plan.program.graph.nodes]
    assert f.plan.arena_bytes < 40_000 * 1024 * 4 / 8
    some = np.asarray(x)[::400]
    np.testing.assert_array_equal(y[::400], exact(some, np.asarray(c)).argmin(1))


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("split", [0, 1, None])
def test_layouts(workers: int, split: int | None) -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)
    with ost.connect(workers):
        f = ost.compile(FORMS["columns"])
        y = np.asarray(f(ost.asarray(x, split=split), ost.asarray(c)))
        assert "pair_distances" in all_ops(f.plan.program.graph)
    np.testing.assert_allclose(y, exact(x, c), rtol=1e-5)


def test_threads_change_no_bit() -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)
    found = set()
    for threads in (1, 2):
        with ost.connect(threads=threads):
            found.add(run(FORMS["columns"], x, c)[0].tobytes())
    assert len(found) == 1


def test_precision_and_numerics() -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)
    f = ost.compile(FORMS["columns"], precision="mixed_bf16")
    np.testing.assert_allclose(
        np.asarray(f(ost.asarray(x), ost.asarray(c))), exact(x, c), rtol=1e-5
    )
    with ost.connect(numerics="any-workers"):
        y, plan = run(FORMS["columns"], x, c)
    assert "pair_distances" not in all_ops(plan.program.graph)
    np.testing.assert_allclose(y, exact(x, c), rtol=1e-5)


def test_in_loops_gradients_and_files() -> None:
    x, c = numbers(N, D), numbers(K, D, seed=1)
    y, plan = run(
        lambda x, c: ost.repeat(
            2, lambda s: s * 0.5 + ((x[:, None] - c) ** 2).sum(-1), ost.zeros((N, K))
        ),
        x,
        c,
    )
    assert "pair_distances" in all_ops(plan.program.graph)
    np.testing.assert_allclose(y, 1.5 * exact(x, c), rtol=1e-5)
    again = decode_plan(encode_plan(plan), None)
    assert again.program.graph == plan.program.graph
    slope = ost.grad(lambda x, c: ((x[:, None] - c) ** 2).sum(-1).sum())
    found = np.asarray(slope(ost.asarray(x[:300]), ost.asarray(c)))
    wide = x[:300].astype(np.float64)
    right = 2 * (K * wide - c.astype(np.float64).sum(0))
    np.testing.assert_allclose(found, right, atol=1e-2)
