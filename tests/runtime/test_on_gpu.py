"""What only a GPU can show. `python -m pytest -m gpu` runs it where CuPy finds one; with
TESTED_DEVICE="fake kernels" it is rehearsed on the host, with kernels in CUDA C++ that the host compiles."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.array import from_operand
from ostinato.ops.core.device import Absent, find
from ostinato.ops.core.spec import is_inexact, real_of
from ostinato.ops.core.tree import flatten
from ostinato.ops.gpu import gpu_device as gpu

import ostinato as ost
from ostinato.errors import BoundsError
from tests.clusters import needs_mpi
from tests.helpers import compare_all
from tests.ops.nodes import SAMPLED, of
from tests.planner.test_any_layout import run_and_compare
from tests.programs import make_program
from tests.runtime.test_gpu_job import said
from tests.sessions import use

NAME = os.environ.get("TESTED_DEVICE", gpu.NAME)
REHEARSED = gpu.NAME != NAME
if REHEARSED:
    from tests import fake_device  # noqa: F401  (which makes it known)


def is_here() -> bool:
    try:
        find(NAME)
    except Absent:
        return False
    return True


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_here(), reason="needs CuPy and a GPU")]
X = np.random.default_rng(0).normal(size=(3000, 1000)).astype(np.float32)


def bound(name: str, wanted: Any) -> float | None:
    """Of the error of an element, where an algorithm adds up in an order of its own: its backward error is a
    modest number of roundings of what is largest."""
    if OPS[name].scalar or not is_inexact(wanted.dtype):
        return None
    sizes = np.abs(wanted[np.isfinite(wanted)])
    eps = ml_dtypes.finfo(real_of(wanted.dtype)).eps
    return float(max(32 * float(eps) * float(sizes.max(initial=0)), 1e-12))


@pytest.mark.parametrize("name", SAMPLED[::40] if REHEARSED else SAMPLED)
def test_samples(name: str) -> None:
    for sample in of(name):
        given = [np.asarray(x) for x in sample.inputs]
        with np.errstate(all="ignore"):
            wanted = sample.reference(*(x.copy() for x in given))
        with use(numerics=sample.numerics, device=NAME):
            run = ost.compile(lambda *xs, f=sample.function: f(*xs))
            found = run(*map(ost.asarray, given))
            rtol = max(sample.rtol or 0, 1e-6)
            for x, y in zip(flatten(found)[0], flatten(wanted)[0], strict=True):
                compare_all(x, y, name, rtol, bound(name, np.asarray(y)))


@pytest.mark.parametrize("seed", range(3 if REHEARSED else 100))
def test_random_programs(seed: int) -> None:
    r = random.Random(seed)
    numerics = r.choice(("same-plan", "any-workers"))
    run_and_compare(r, make_program(r), (1,), numerics, device=NAME)


def functions(x: Any) -> tuple[Any, Any]:
    y = ost.exp(-x * x) * ost.sin(3.0 * x) / (1.0 + ost.abs(x)) ** 0.7
    return y, ost.where(y > 0, ost.log1p(ost.abs(y)), ost.tanh(x))


def test_elements_have_the_bits_of_the_cpus_kernels() -> None:
    found = []
    for device in ("cpu", NAME):
        with use(device=device):
            found.append([np.asarray(y) for y in ost.compile(functions)(ost.asarray(X))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_sums_are_the_same_each_time_and_right() -> None:
    with use(device=NAME):
        for shape in ((3_000_000,), (3000, 1000), (300_000, 10), (1_000_000, 3)):
            x = X.reshape(shape)
            run = ost.compile(lambda x: ((x * 2).sum(-1), x.max(-1), x.mean(-1)))
            first = [np.asarray(y) for y in run(ost.asarray(x))]
            again = [np.asarray(y) for y in run(ost.asarray(x))]
            for a, b in zip(first, again, strict=True):
                np.testing.assert_array_equal(a, b)
            wide = x.astype(np.float64)
            np.testing.assert_allclose(first[0], 2 * wide.sum(-1), 1e-5, 1e-4)
            np.testing.assert_array_equal(first[1], x.max(-1))


def test_a_repeated_plan_allocates_only_what_it_gives() -> None:
    with use(device=NAME):
        run = ost.compile(lambda x: functions(x)[0].sum(1))
        x = ost.asarray(X)
        for _ in range(3):
            y = run(x)
        pool: Any = find(NAME).xp.get_default_memory_pool()
        before = pool.used_bytes()
        for _ in range(10):
            y = run(x)
        assert pool.used_bytes() - before <= 2 * y.nbytes + 1024


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("numerics", ["same-plan", "fast"])
def test_products_with_what_follows(dtype: str, numerics: Any) -> None:
    """By cuBLASLt, in one graph, however operands lie."""
    assert not isinstance(find(NAME).library, str), find(NAME).library  # type: ignore[attr-defined]
    tolerance = {"float64": 1e-12, "float16": 1e-2, "bfloat16": 1e-1}.get(dtype, 1e-4)
    xs = [X[:200, :96] / 10, X[200:300, :96] / 10, X[300, :100], X[400:600, :100]]

    def f(x: Any, w: Any, b: Any, c: Any) -> Any:
        y = 0.5 * (x @ w.mT) + c + b
        made = [y, y[8:, 1:].mT @ c[8:], ost.broadcast_to(x, (3, *x.shape))[:, 2:] @ w.mT]
        return made if dtype == "complex64" else [*made, ost.nn.relu(x @ w.mT + b)]

    def wanted(x: Any, w: Any, b: Any, c: Any) -> Any:
        y = 0.5 * (x @ w.T) + c + b
        made = [y, y[8:, 1:].T @ c[8:], np.stack([x[2:] @ w.T] * 3)]
        return made if dtype == "complex64" else [*made, np.maximum(x @ w.T + b, 0)]

    with use(numerics=numerics, device=NAME):
        run = ost.compile(f)
        given = [ost.asarray(x).astype(dtype) for x in xs]
        for _ in range(4):
            found = [
                np.asarray(y.astype("complex128" if dtype[0] == "c" else "float64"))
                for y in run(*given)
            ]
        assert "cuBLAS" not in run.plan.explain()
        assert "as one graph" in run.plan.explain()
    for y, z in zip(found, wanted(*(x.astype(float) for x in xs)), strict=True):
        np.testing.assert_allclose(y, z, tolerance, tolerance * max(1.0, np.abs(z).max()))


@pytest.mark.parametrize("precision", ["as-written", "mixed_bf16"])
def test_slopes_of_a_relu_are_a_cpus(precision: Any) -> None:
    """By bits that one call of cuBLASLt writes and another reads, if it has both."""

    def step(w: Any, b: Any, v: Any, x: Any) -> Any:
        def loss(w: Any, b: Any, v: Any) -> Any:
            return ((ost.nn.relu(x @ w + b) @ v) ** 2).mean()

        return ost.grad(loss, argnums=(0, 1, 2))(w, b, v)

    xs = [X[:96, :200] / 10, X[200, :200] / 10, X[200:400, :70] / 10, X[400:1100, :96]]
    found = []
    for device in ("cpu", NAME):
        with use(numerics="fast", precision=precision, device=device):
            run, given = ost.compile(step), [*map(ost.asarray, xs)]
            for _ in range(4):
                slopes = run(*given)
            found.append([np.asarray(y) for y in slopes])
            if device == NAME:
                kept = "positive_bits" in str(run.plan.program.graph)
                print(precision, "bits are kept:", kept, file=sys.stderr)
    loose = 1e-4 if precision == "as-written" else 3e-2
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, loose, loose * float(np.abs(a).max()))


def covariance(x: Any) -> Any:
    away = x - ost.mean(x, 0)
    return away.T @ away / x.shape[0]


# Functions of short products, and operands: at first few, as a rehearsal takes long.
SHORT: list[tuple[Any, list[tuple[int, ...]]]] = [
    (lambda s: s @ s @ ost.matrix_transpose(s), [(400, 8, 8)]),
    (lambda a, b: a[:, ::2] @ b, [(130, 130), (65, 9)]),
    (covariance, [(40_000, 16)]),
    (lambda a, v: 1 / (5 + a @ v), [(300, 90), (90,)]),
    (lambda s: s @ s, [(200_000, 3, 3)]),
    (lambda a, b, c: a @ b + c, [(64, 256), (256, 1024), (64, 1024)]),
    (lambda a, b, c: a @ b + c, [(128, 784), (784, 528), (528,)]),
    (lambda a, b: a @ b, [(200_000, 64), (64, 16)]),
    (lambda a, b: a.T @ b, [(200_000, 8), (200_000, 16)]),
    (covariance, [(1_000_000, 16)]),
    (lambda a, v: a @ v, [(4096, 4096), (4096,)]),
    (lambda a, b: a @ b, [(8, 4096), (4096, 4096)]),
]


@pytest.mark.parametrize("case", SHORT[:4] if REHEARSED else SHORT)
def test_short_products_are_right_and_the_same_each_time(case: Any) -> None:
    """By kernels of ours, as a library's tiles would be few or empty."""
    function, shapes = case
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    wanted = np.asarray(function(*(ost.asarray(x.astype(np.float64)) for x in given)))
    with use(device=NAME):
        run = ost.compile(function)
        on_gpu = [ost.asarray(x) for x in given]
        first, *others = [np.asarray(run(*on_gpu)) for _ in range(4)]
    np.testing.assert_allclose(first, wanted, 1e-4, 2e-6 * max(abs(wanted).max(), 1) * 20)
    for again in others:
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize(
    "shape", [(900, 7)] if REHEARSED else [(900, 7), (100_003, 33), (9000, 64)]
)
def test_factors_of_a_tall_matrix(shape: Any) -> None:
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    x *= np.logspace(0, -3, shape[1], dtype=np.float32)
    with use(device=NAME):
        q, r = (np.asarray(y, np.float64) for y in ost.compile(lambda x: ost.linalg.qr(x))(x))
    np.testing.assert_allclose(q.T @ q, np.eye(shape[1]), 0, 3e-6)
    np.testing.assert_allclose(q @ r, x, 0, 3e-6)
    assert (np.diagonal(r) > 0).all()


def test_errors_leave_it_usable() -> None:
    with use(device=NAME):
        x, places = ost.asarray(X[0]), ost.asarray(np.array([5, 10_000]))
        with pytest.raises(BoundsError):
            np.asarray(ost.compile(lambda x, i: x[i])(x, places))
        np.testing.assert_allclose(np.asarray(ost.compile(ost.sum)(x)), X[0].sum(), 1e-4)


def test_indexing_runs_as_one_graph() -> None:
    with use(device=NAME):
        run = ost.compile(lambda x, i: ost.exp(x[i]) * 2.0)
        x, places = ost.asarray(X[0]), ost.asarray(np.arange(0, 1000, 7))
        for _ in range(6):
            np.testing.assert_allclose(np.asarray(run(x, places)), np.exp(X[0, ::7]) * 2, 1e-6)
        assert "as one graph" in run.plan.explain()


def test_loops_and_branches_are_part_of_one_graph() -> None:
    """Their conditions are looked at by the GPU: as many turns as values ask for, and either side."""

    def f(x: Any) -> Any:
        y, n = ost.while_loop(
            lambda s: ost.abs(s[0]).max() > 1.0,
            lambda s: (ost.sin(s[0]) * 0.5 + s[0] * 0.25, s[1] + 1),
            (x, ost.asarray(0)),
        )
        return ost.cond(n % 2 == 0, lambda y: y * 2.0, lambda y: ost.exp(y), y), n

    def wanted(x: Any) -> tuple[Any, int]:
        n = 0
        while np.abs(x).max() > 1.0:
            x, n = np.sin(x) * 0.5 + x * 0.25, n + 1
        return x * 2 if n % 2 == 0 else np.exp(x), n

    with use(device=NAME):
        run, seen = ost.compile(f), set()
        for scale in (1, 2, 4, 9, 30, 100, 300, 1, 2, 4, 9, 30, 100, 300):
            x = X[:40, :30].astype(np.float64) * scale
            y, n = run(ost.asarray(x))
            right, turns = wanted(x)
            seen.add(turns % 2)
            assert int(n) == turns
            np.testing.assert_allclose(np.asarray(y), right, 1e-12)
        assert seen == {0, 1}
        run(ost.asarray(x))
        assert "as one graph" in run.plan.explain(), run.plan.explain()


def test_what_no_graph_can_have_runs_between_graphs() -> None:
    with use(device=NAME):
        run = ost.compile(lambda x: ost.exp(ost.sort(ost.sin(x) * 2.0, 1)) + 1.0)
        given = X[:100].astype(np.float64)
        x = ost.asarray(given)
        for _ in range(8):
            y = run(x)
        right = np.exp(np.sort(np.sin(given) * 2, 1)) + 1
        np.testing.assert_allclose(np.asarray(y), right, 1e-12)
        run(x)
        said = run.plan.explain()
        print(said, file=sys.stderr)
        assert "as 2 graphs" in said or "as one graph" in said  # if CuPy's sort can be captured


def test_batches_arrive_while_it_computes() -> None:
    with use(device=NAME) as session:
        run = ost.compile(lambda x: (x.astype("float32") * 2.0).sum(1))
        for k in range(20):
            batch = np.full((512, 700), k, np.uint8)
            x = from_operand(session.put(batch, None, again=True))
            batch[...] = 255
            np.testing.assert_array_equal(np.asarray(run(x)), np.full(512, 1400.0 * k))


@needs_mpi
@pytest.mark.parametrize("what", ["everything", "fails"])
def test_a_process_for_each_gpu(what: str) -> None:
    """Two of them, by NCCL if there are two GPUs, else by way of the host's memory."""
    if REHEARSED:
        pytest.skip("as test_gpu_job.py does")
    found = said(2, what, *(["1"] if what == "fails" else []), TESTED_DEVICE=NAME)
    if what == "fails":
        assert "by test" in str(found["text"])
        return
    assert found["values"] is found["stored"] is found["fed"] is True
    several = find(NAME).xp.cuda.runtime.getDeviceCount() > 1
    how = {messages for _, messages in found["states"]}  # type: ignore[attr-defined]
    print(how, file=sys.stderr)
    assert ("from device to device" in how) == several
