"""Linear algebra against LAPACK, in norms: factors that multiply to the matrix, columns that are
orthonormal, equations that hold, to a few times eps times the size; whatever the matrix lacks, and
however it lies on the workers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from ostinato.ops.core.registry import OPS
from ostinato.ops.cpu.libraries import lapack
from ostinato.ops.cpu.threads import blas
from ostinato.ops.linalg import blocked
from ostinato.planner import machine
from ostinato.planner.machine import Rate
from ostinato.planner.seeing.explain import facts

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, DTypeError, GradientError, LinAlgError, ShapeError
from tests.helpers import assert_same, on
from tests.sessions import use
from tests.thorough import THOROUGH, some, turns

Array = np.ndarray[Any, Any]
KINDS = ("float64", "float32", "complex128")
WORKERS = (1, 2, 3, 4)


def random(*shape: int, kind: str = "float64", seed: int = 0) -> Array:
    r = np.random.default_rng([seed, *shape])
    made = r.normal(size=shape)
    return (made + 1j * r.normal(size=shape) if kind[0] == "c" else made).astype(kind)


def conditioned(m: int, n: int, cond: float, kind: str = "float64") -> Array:
    """A matrix whose singular values fall evenly from 1 to 1 / cond."""
    k = min(m, n)
    u, _ = np.linalg.qr(random(m, k, kind=kind, seed=1))
    v, _ = np.linalg.qr(random(n, k, kind=kind, seed=2))
    return ((u * np.geomspace(1, 1 / cond, k)) @ v.conj().T).astype(kind)


def lacking(m: int, n: int, rank: int, kind: str = "float64") -> Array:
    return random(m, rank, kind=kind) @ random(rank, n, kind=kind)


def of_zeros(kind: str = "float64") -> Array:
    x = random(200, 5, kind=kind)
    x[:, 1:3] = 0
    return x


def matrices(kind: str) -> dict[str, Array]:
    eps = np.finfo(kind).eps
    return {
        "tall": random(403, 7, kind=kind),
        "wide": random(6, 31, kind=kind),
        "square": random(40, 40, kind=kind),
        "no rows": np.zeros((0, 4), kind),
        "no columns": np.zeros((5, 0), kind),
        "one": random(1, 1, kind=kind),
        "a column": random(50, 1, kind=kind),
        "a row": random(1, 9, kind=kind),
        "ill-conditioned": conditioned(500, 12, 1e10, kind),
        "worse than eps": conditioned(500, 12, 1e3 / eps, kind),
        "ill-conditioned square": conditioned(30, 30, 1e10, kind),
        "lacking rank": lacking(300, 10, 4, kind),
        "columns of zeros": of_zeros(kind),
        "zeros": np.zeros((100, 3), kind),
        "of many scales": random(300, 6, kind=kind) * np.geomspace(1e-12, 1e12, 6).astype(kind),
        "few rows for the workers": random(13, 4, kind=kind),
        "large": (random(100, 4, kind=kind) * 1e15).astype(kind),
        "small": (random(100, 4, kind=kind) * 1e-15).astype(kind),
    }


OTHERS = "tall, one, ill-conditioned square, lacking rank, of many scales, few rows for the workers"
CASES = [
    (name, kind)
    for kind in KINDS
    for name in matrices(kind)
    if THOROUGH or kind == "float64" or name in OTHERS.split(", ")
]


def size(x: Array) -> float:
    return float(np.linalg.norm(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)))


def close(found: Array, wanted: Array, scale: float, what: str, times: float = 20.0) -> None:
    """The difference is rounding: some eps for each row and column."""
    room = times * np.finfo(found.dtype).eps * max(1, *found.shape, *wanted.shape)
    assert np.isfinite(found).all(), what
    assert size(found - wanted) <= room * scale + 1e-300, (
        f"{what}: {size(found - wanted) / (scale or 1):.2e} of its size, {room:.2e} allowed"
    )


def orthonormal(q: Array, what: str) -> None:
    one = np.eye(q.shape[-1], dtype=q.dtype)
    close(q.conj().T @ q, one, np.sqrt(max(1, q.shape[-1])), f"{what}: columns")


def everywhere(x: Array) -> Iterator[tuple[Any, str]]:
    """The matrix on some numbers of workers, in every layout; on fewer if it is not of float64, as what is
    sent to whom does not depend on that."""
    is_first = THOROUGH or x.dtype == np.float64
    for workers in WORKERS if THOROUGH else (1, 3, 4) if is_first else (1, 3):
        for split in ((0, 1) if is_first else (x.size % 2,)) if workers > 1 else (None,):
            with on(workers):
                yield ost.asarray(x, split=split), f"{workers} workers, split {split}"
    if is_first:
        with on(mesh=(2, 2)):
            yield ost.asarray(x, split=(0, 1)), "a 2 x 2 mesh"


def values(xs: Any) -> list[Array]:
    return [np.asarray(x) for x in xs]


# -- factors -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_qr(name: str, kind: str) -> None:
    a = matrices(kind)[name]
    for x, where in everywhere(a):
        q, r = values(ost.linalg.qr(x))
        assert q.shape == (a.shape[0], min(a.shape))
        assert r.shape == (min(a.shape), a.shape[1])
        close(q @ r, a, size(a), f"qr of {name}, {where}")
        orthonormal(q, f"qr of {name}, {where}")
        assert not np.tril(r, -1).any()
        assert (np.diagonal(r).real >= 0).all()
        close(np.diagonal(r).imag.astype(kind), np.diagonal(r) * 0, size(a), where)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_svd(name: str, kind: str) -> None:
    a = matrices(kind)[name]
    wanted = np.linalg.svd(a, compute_uv=False)
    for x, where in everywhere(a):
        u, s, vh = values(ost.linalg.svd(x, full_matrices=False))
        close((u * s) @ vh, a, size(a), f"svd of {name}, {where}")
        orthonormal(u, where)
        orthonormal(vh.conj().T, where)
        close(s, wanted, size(a), f"singular values of {name}, {where}")
        close(np.asarray(ost.linalg.svdvals(x)), wanted, size(a), where)


@pytest.mark.parametrize("shape", [(90, 6), (6, 90), (12, 9), (9, 12)])
@pytest.mark.parametrize("kind", ["float64", "complex64"])
def test_full_factors_fit_each_other_also_when_read_one_by_one(
    shape: tuple[int, int], kind: str
) -> None:
    a = random(*shape, kind=kind)
    for x, where in everywhere(a):
        made = ost.linalg.svd(x)
        u, s, vh = (np.asarray(y * 1) for y in made)  # each by a plan of its own
        assert (len(u), len(vh)) == shape
        k = len(s)
        close((u[:, :k] * s) @ vh[:k], a, size(a), f"full svd of {shape}, {where}")
        orthonormal(u, where)
        orthonormal(vh, where)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_lstsq_and_pinv(name: str, kind: str) -> None:
    """The residual is orthogonal to the columns, and the solution is in the rows' space."""
    a = matrices(kind)[name]
    b = random(a.shape[0], 2, kind=kind, seed=5)
    rtol = 1e-4 if kind == "float32" else 1e-9
    wide = a.astype(np.result_type(kind, float))
    wanted, _, rank, _ = (
        np.linalg.lstsq(wide, b, rtol) if a.size else (np.zeros((a.shape[1], 2)), 0, 0, 0)
    )
    inverse = np.linalg.pinv(wide, rtol=rtol)
    s = np.linalg.svd(a, compute_uv=False)
    counts = s[s > rtol * s[0]] if s.size else s
    cond = float(counts[0] / counts[-1]) if counts.size else 1.0
    for x, where in everywhere(a):
        found = ost.linalg.lstsq(x, ost.asarray(b, split=0), rtol=rtol)
        off = size(b - a @ wanted) / max(size(a) * size(wanted), 1e-9)
        times = 20 * cond * (1 + cond * off)
        close(np.asarray(found.x), wanted.astype(kind), size(wanted), f"{name}, {where}", times)
        assert int(found.rank) == rank, where
        rest = np.asarray(found.residuals)
        assert rest.shape == (2,)
        close(
            rest,
            (abs(b - a @ wanted) ** 2).sum(0).astype(rest.dtype),
            size(b) ** 2,
            where,
            20 * cond,
        )
        made = np.asarray(ost.linalg.pinv(x, rtol=rtol))
        close(made, inverse.astype(kind), size(inverse), f"pinv of {name}, {where}", 20 * cond)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_hermitian(kind: str, n: int) -> None:
    x = random(n, n, kind=kind)
    a = (x @ x.conj().T + np.eye(n)).astype(kind)
    for given, where in everywhere(a):
        lower = np.asarray(ost.linalg.cholesky(given))
        upper = np.asarray(ost.linalg.cholesky(given, upper=True))
        close(lower @ lower.conj().T, a, size(a), where)
        close(upper, lower.conj().T, size(a), where)
        assert not np.triu(lower, 1).any()
        w, v = values(ost.linalg.eigh(given))
        close((v * w) @ v.conj().T, a, size(a), where)
        orthonormal(v, where)
        close(np.asarray(ost.linalg.eigvalsh(given)), np.linalg.eigvalsh(a), size(a), where)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7, 7), (9, 4), (4, 9), (1, 1), (60, 60)])
def test_lu(kind: str, shape: tuple[int, int]) -> None:
    a = random(*shape, kind=kind)
    for x, where in everywhere(a):
        p, lower, upper = values(ost.linalg.lu(x))
        close(p @ lower @ upper, a, size(a), where)
        assert (
            abs(lower).max() <= 1.5
        )  # partial pivoting; LAPACK measures complex numbers by |re| + |im|
        assert not np.triu(lower, 1).any()
        assert not np.tril(upper, -1).any()
        np.testing.assert_array_equal(np.diagonal(lower), 1)
        np.testing.assert_array_equal(np.sort(abs(p), axis=0)[-1], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cond", [1.0, 1e5, 1e10])
def test_equations(kind: str, cond: float) -> None:
    """A solution is exact for a matrix nearby, however ill-conditioned."""
    a, b = conditioned(33, 33, cond, kind), random(33, 3, kind=kind)
    for x, where in everywhere(a):
        y = np.asarray(ost.linalg.solve(x, b))
        close(a @ y, b, size(a) * size(y) + size(b), where)
        t = a + 2 * np.eye(33, dtype=kind)
        for lower, transpose, unit in (
            (True, False, False),
            (False, True, False),
            (True, True, True),
        ):
            part = np.tril(t) if lower else np.triu(t)
            if unit:
                part = part / 20
                np.fill_diagonal(part, 1)
            facts_ = {"lower": lower, "transpose": transpose, "unit_diagonal": unit}
            y = np.asarray(ost.linalg.solve_triangular(ost.asarray(part + 0), b, **facts_))
            part = part.T if transpose else part
            close(part @ y, b, size(part) * size(y), f"{where}, {facts_}")


def without_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack, "found", lambda: False)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_library_of_numpy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its routines cannot be called, kernels do with `xp.linalg`."""
    without_lapack(monkeypatch)
    for name, a in matrices(kind).items():
        with on(3):
            x = ost.asarray(a, split=0) + 0
            q, r = values(ost.linalg.qr(x))
            close(q @ r, a, size(a), name)
            orthonormal(q, name)
    a, b = random(70, 70, kind=kind), random(70, 2, kind=kind)
    for mine, theirs in (
        (lambda: ost.linalg.solve(a, b), lambda: np.linalg.solve(a, b)),
        (lambda: ost.linalg.solve_triangular(a, b), lambda: np.linalg.solve(np.triu(a), b)),
        (lambda: ost.linalg.cholesky(a @ a.conj().T), lambda: np.linalg.cholesky(a @ a.conj().T)),
    ):
        y, z = np.asarray(mine()), theirs()
        close(y, z, size(z), "without", 1e6)
    p, lower, upper = values(ost.linalg.lu(a))
    close(p @ lower @ upper, a, size(a), "lu")


# -- in parts ----------------------------------------------------------------------------------
def plan_of(function: Callable[..., Any], *arrays: Any) -> tuple[Any, Any]:
    f = ost.compile(function)
    return f(*arrays), f.plan


@pytest.mark.parametrize("cond", [1.0, 1e4, 1e8, 1e15, np.inf])
@pytest.mark.parametrize("kind", ["f4", "f8", "c8"])
def test_tall_qr_without_lapack(kind: str, cond: float) -> None:
    """On a device: by Gram matrices in float64, to the last digit whatever the condition."""
    r, n = np.random.default_rng(5), 7
    u, _, v = np.linalg.svd(
        r.normal(size=(2003, n)) + (1j * r.normal(size=(2003, n)) if kind[0] == "c" else 0), False
    )
    sizes = np.r_[np.ones(n - 2), 0, 0] if np.isinf(cond) else np.logspace(0, -np.log10(cond), n)
    x = ((u * sizes) @ v).astype(kind)
    eps = float(np.finfo(kind).eps)
    with use(device="fake"):
        q, upper = map(np.asarray, ost.linalg.qr(ost.asarray(x)))
        found = np.asarray(ost.linalg.svdvals(ost.asarray(x)))
    wide = q.astype(np.complex128)
    assert np.abs(wide.conj().T @ wide - np.eye(n)).max() < 20 * eps
    assert np.abs(wide @ upper - x).max() < 20 * eps * np.abs(x).max()
    assert np.abs(found - sizes).max() < 20 * eps


@pytest.mark.parametrize("rows", [4000, 4001])
def test_tall_qr_gathers_the_small_factors_and_nothing_else(rows: int) -> None:
    a, workers, n = random(rows, 16), 4, 16
    with on(workers):
        x = ost.asarray(a, split=0)
        (q, r), plan = plan_of(lambda x: ost.linalg.qr(x), x)
        assert facts(plan)["collectives"] == {"all_gather": 1}
        assert facts(plan)["sent"] == (workers - 1) * workers * n * n * 8
        assert q.layout.splits == (0,)
        assert r.layout.is_whole
        for function in (ost.linalg.svdvals, ost.linalg.pinv):
            _, plan = plan_of(lambda x, f=function: f(x), x)
            assert facts(plan)["collectives"] == {"all_gather": 1}, function.__name__
            assert facts(plan)["sent"] == (workers - 1) * workers * n * n * 8
        _, plan = plan_of(lambda x, y: ost.linalg.lstsq(x, y).x, x, ost.asarray(a[:, :2], split=0))
        assert facts(plan)["collectives"] == {"all_gather": 1}
        assert facts(plan)["sent"] == (workers - 1) * workers * (n + 2) ** 2 * 8


def test_the_same_factors_on_any_number_of_workers() -> None:
    a = random(997, 9)
    found = [values(ost.linalg.qr(x)) for x, _ in everywhere(a)]
    for q, r in found[1:]:
        np.testing.assert_allclose(q, found[0][0], atol=1e-13)
        np.testing.assert_allclose(r, found[0][1], atol=1e-12)


def test_any_workers_gives_the_same_bits() -> None:
    a, b = random(301, 5), random(301, 2)
    found = []
    for workers in WORKERS:
        with on(workers, numerics="any-workers"):
            x, y = ost.asarray(a, split=0), ost.asarray(b, split=0)
            made = [*ost.linalg.qr(x), ost.linalg.lstsq(x, y).x, ost.linalg.svdvals(x)]
            found.append([z.tobytes() for z in values(made)])
    assert all(f == found[0] for f in found)


@pytest.fixture
def slow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nominal machine on which spreading the work always pays, and steps already for small
    matrices."""
    slow = dataclasses.replace(machine.PROMPT, name="slow", products=(Rate("float32", 1e3),))
    monkeypatch.setitem(machine.MACHINES, settings.machine, slow)
    monkeypatch.setattr(blocked, "MIN_ROWS", 150)


def definite(x: Any) -> Any:
    return (x @ x.mT / 300 + ost.eye(x.shape[0])).resplit(0)


SPREAD: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda x: ost.linalg.cholesky(definite(x)),
    "upper": lambda x: ost.linalg.cholesky(definite(x), upper=True),
    "lu": lambda x: tuple(ost.linalg.lu(x)),
    "solve": lambda x: ost.linalg.solve(x, x[:, :3] + 1),
    "qr": lambda x: tuple(ost.linalg.qr(x)),
    "wide qr": lambda x: tuple(ost.linalg.qr(x[:180])),
    "inv": ost.linalg.inv,
    "det": lambda x: ost.linalg.det(x / 10),
    "slogdet": lambda x: tuple(ost.linalg.slogdet(x)),
    "back": lambda x: ost.linalg.solve_triangular(x / 20 + 2 * ost.eye(x.shape[0]), x[:, 0]),
    "forth": lambda x: ost.linalg.solve_triangular(
        x / 20 + 2 * ost.eye(x.shape[0]), x[:, :2], lower=True
    ),
}


@pytest.mark.usefixtures("slow_products")
@pytest.mark.parametrize("name", SPREAD)
def test_square_matrices_in_parts(name: str) -> None:
    """Block after block gives what one worker gives, and was really done."""
    a = random(211, 211, seed=3)
    wanted = values([y] if not isinstance(y := SPREAD[name](ost.asarray(a)), tuple) else y)
    meshes = [((2,), 0), ((3,), 1), ((4,), 0), ((2, 2), (0, 1)), ((2, 2), (None, 0))]
    for mesh, split in some(meshes, 2, 1):
        with on(mesh=mesh):
            f = ost.compile(lambda x: SPREAD[name](x))
            made = f(ost.asarray(a, split=split))
            found = values(made if isinstance(made, tuple) else [made])
            for y, z in zip(found, wanted, strict=True):
                np.testing.assert_allclose(y, z, rtol=1e-7, atol=1e-9 * max(1, abs(z).max()))
            kinds = ("lu", "cholesky", "solve_triangular", "reflectors")
            steps = sum(n.op in kinds for n in f.plan.lowered.nodes)
            assert steps > 2, f"{name} on {mesh} in {steps} step"


@pytest.mark.usefixtures("slow_products")
def test_a_singular_matrix_in_parts() -> None:
    a = random(211, 211)
    a[:, 100] = a[:, 7]
    with on(3):
        x = ost.asarray(a, split=1)
        assert abs(float(ost.linalg.det(x * 0))) == 0
        with pytest.raises(LinAlgError, match="not positive definite"):
            np.asarray(ost.linalg.cholesky(x - 100 * ost.eye(211)))


def test_small_or_distant_is_gathered() -> None:
    """Where messages would take longer than the work, one message brings the matrix."""
    with on(4):
        x = ost.asarray(random(64, 64), split=0)
        for function in (ost.linalg.inv, ost.linalg.lu, ost.linalg.eigh, ost.linalg.det):
            _, plan = plan_of(lambda x, f=function: f(x), x)
            assert facts(plan)["collectives"] == {"all_gather": 1}


def test_workers_share_the_threads_of_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would start as many as there are cores."""
    found = blas()
    assert found is not None
    seen = []

    def kernel(xp: Any, out: Any, x: Any, **params: Any) -> None:
        seen.append(found.threads())
        out[...] = 0

    changed = dataclasses.replace(OPS["cholesky"], kernel=kernel)
    monkeypatch.setitem(OPS, "cholesky", changed)
    before = found.threads()
    try:
        found.limit(6)
        with on(3) as session:
            share = session.engine.threads
            np.asarray(ost.linalg.cholesky(ost.asarray(random(3, 7, 7), split=0)))
        assert seen == [share] * 3
        assert found.threads() == 6
    finally:
        found.limit(before)


def test_explain_says_which_way_was_taken() -> None:
    with on(4):
        x = ost.asarray(random(40_000, 6), split=0)
        _, plan = plan_of(lambda x: (ost.linalg.qr(x).Q, ost.linalg.det(x.T @ x)), x)
        said = plan.explain()
        assert "qr of float64[40000,6] is done in parts" in said
        assert "det of float64[6,6] is done by every worker" in said


def test_batches_need_no_communication() -> None:
    a = random(8, 5, 5)
    with on(4):
        x = ost.asarray(a @ a.transpose(0, 2, 1) + np.eye(5), split=0)
        for function in (
            *(ost.linalg.cholesky, ost.linalg.qr, ost.linalg.svd, ost.linalg.eigh),
            *(ost.linalg.inv, ost.linalg.det, ost.linalg.lu, ost.linalg.pinv, ost.linalg.expm),
            *(ost.linalg.eig, ost.linalg.cond),
        ):
            made, plan = plan_of(lambda x, f=function: f(x), x)
            assert facts(plan)["collectives"] == {}, function.__name__
            first = made[0] if isinstance(made, tuple) else made
            assert first.layout.splits == (0,)


def test_a_product_on_a_mesh_gathers_along_its_lines_only() -> None:
    """SUMMA's traffic: each worker gets its row of a and its column of b, and keeps its part."""
    n = 64
    with on(mesh=(2, 2)):
        a, b = (ost.asarray(random(n, n, seed=k), split=(0, 1)) for k in range(2))
        y, plan = plan_of(lambda a, b: (a @ b).resplit((0, 1)), a, b)
        assert y.layout.splits == (0, 1)
        assert facts(plan)["sent"] == 2 * 4 * (n // 2) ** 2 * 8
        np.testing.assert_allclose(np.asarray(y), random(n, n) @ random(n, n, seed=1))


def test_low_rank() -> None:
    a = lacking(600, 80, 5) + 1e-9 * random(600, 80)
    wanted = np.linalg.svd(a, compute_uv=False)[:5]
    for workers in WORKERS:
        with on(workers):
            u, s, vh = values(ost.linalg.svd_lowrank(ost.asarray(a, split=0), 5))
            assert (u.shape, s.shape, vh.shape) == ((600, 5), (5,), (5, 80))
            np.testing.assert_allclose(s, wanted, rtol=1e-10)
            orthonormal(u, "low rank")
            close((u * s) @ vh, a, size(a), "low rank", 1e5)


# -- the rest, against NumPy -------------------------------------------------------------------
NORMS = ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
A, B = random(4, 4), random(4, 4, seed=9)
ALIKE: list[tuple[Callable[..., Any], tuple[Array, ...]]] = [
    *((lambda xp, x, o=o: xp.linalg.matrix_norm(x, ord=o), (random(2, 5, 3),)) for o in NORMS),
    *((lambda xp, x, o=o: xp.linalg.matrix_norm(x, ord=o, keepdims=True), (A,)) for o in NORMS),
    *(
        (lambda xp, x, o=o, a=a: xp.linalg.vector_norm(x, ord=o, axis=a), (random(2, 5, 3),))
        for o in (2, 1, 0, 3, -1, np.inf, -np.inf)
        for a in (None, 1, (0, 2))
    ),
    (lambda xp, x: xp.linalg.vector_norm(x, keepdims=True), (random(3, 2, kind="complex128"),)),
    *(
        (lambda xp, x, o=o: xp.linalg.matrix_norm(x, ord=o), (random(2, 0, 3),))
        for o in (1, np.inf)
    ),
    *(
        (lambda xp, x, o=o: xp.linalg.matrix_norm(x, ord=o), (random(3, 0),))
        for o in (1, 2, np.inf)
    ),
    (lambda xp, x: xp.linalg.vector_norm(x, ord=np.inf, axis=1), (random(2, 0),)),
    *((lambda xp, x, n=n: xp.linalg.matrix_power(x, n), (A,)) for n in (-3, -1, 0, 1, 2, 5, 8)),
    (lambda xp, x: xp.linalg.matrix_power(x, np.int64(3)), (A,)),
    (lambda xp, x: xp.linalg.matrix_rank(x), (lacking(9, 6, 3),)),
    (lambda xp, x: xp.linalg.matrix_rank(x), (random(2, 5, 3),)),
    (lambda xp, x: xp.linalg.matrix_rank(x, rtol=0.5), (random(6, 4),)),
    (lambda xp, x, y: xp.linalg.cross(x, y), (random(5, 3), random(5, 3, seed=1))),
    (lambda xp, x, y: xp.linalg.cross(x, y, axis=0), (random(3, 4), random(3, 4, seed=1))),
    (lambda xp, x: xp.linalg.trace(x), (A,)),
    (lambda xp, x: xp.linalg.diagonal(x, offset=1), (random(2, 3, 4),)),
    (lambda xp, x, y: xp.linalg.outer(x, y), (A[0], B[1])),
    (lambda xp, x, y: xp.linalg.tensordot(x, y, axes=1), (A, B)),
    (lambda xp, x, y: xp.linalg.vecdot(x, y), (A, B)),
    (lambda xp, x, y: xp.linalg.matmul(x, y), (A, B)),
    (lambda xp, x: xp.linalg.matrix_transpose(x), (random(2, 3, 4),)),
    (lambda xp, x, y: xp.linalg.solve(x, y), (A, B[0])),
]


@pytest.mark.parametrize("k", range(len(ALIKE)))
def test_alike(k: int) -> None:
    function, inputs = ALIKE[k]
    assert_same(
        functools.partial(function, ost),
        functools.partial(function, np),
        *inputs,
        rtol=1e-9,
        few=not THOROUGH,
    )


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (4, 5)), ((3,), (2,)), ((2, 3), (4,)), ((2,), (2, 1, 3)), ((), (2, 2))]
)
def test_kron(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert_same(ost.linalg.kron, np.kron, random(*a), random(*b, seed=1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_expm(scale: float) -> None:
    a = random(12, 12) * scale / 4
    wanted = scipy.linalg.expm(a)
    close(np.asarray(ost.linalg.expm(a)), wanted, size(wanted), "expm", 1e3)


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1e-6, 1, 1e6), (2, 2, 2)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_roots_logarithms_and_signs(kind: str, sizes: Any, symmetric: bool) -> None:
    """Also where there are too few eigenvectors, and of numbers far apart."""
    a = np.diag(sizes).astype(kind)
    a += 0 if symmetric else np.triu(random(3, 3), 1) * np.sqrt(np.outer(sizes, sizes))
    root, log, sign = (
        np.asarray(f(a)) for f in (ost.linalg.sqrtm, ost.linalg.logm, ost.linalg.signm)
    )
    close(root @ root, a, size(a), "sqrtm", 1e3)
    close(scipy.linalg.expm(log), a, size(a), "logm", 1e4)
    close(sign, np.eye(3), 3.0, "signm", 1e2)
    close(np.asarray(ost.linalg.signm(-a)), -np.eye(3), 3.0, "signm", 1e2)


def test_functions_of_matrices_that_have_none() -> None:
    """NaN of real matrices with negative eigenvalues, of which complex ones have them."""
    turn, skew = np.diag([1.0, -4.0]), np.array([[1.0, 5.0], [0.0, -4.0]])
    for a in (turn, skew):
        assert np.isnan(np.asarray(ost.linalg.sqrtm(a))).all()
        assert np.isnan(np.asarray(ost.linalg.logm(a))).all()
        root, log = (np.asarray(f(a + 0j)) for f in (ost.linalg.sqrtm, ost.linalg.logm))
        np.testing.assert_allclose(root @ root, a, atol=1e-13)
        np.testing.assert_allclose(log, scipy.linalg.logm(a), atol=1e-13)
    for f in (ost.linalg.sqrtm, ost.linalg.logm, ost.linalg.signm):
        assert np.isnan(np.asarray(f(np.eye(3, k=1)))).all()
        assert np.isnan(np.asarray(f(np.full((2, 2), np.inf)))).all()
    few = random(6, 2) @ random(2, 6, seed=1)
    for symmetric in (few @ few.T, few.T @ few):  # of rank 2
        root = np.asarray(ost.linalg.sqrtm(symmetric))
        close(root @ root, symmetric, size(symmetric), "sqrtm", 1e3)


def test_slope_of_det_where_there_is_no_inverse() -> None:
    a = random(4, 4)
    a[3] = a[0] + a[1]
    found = np.asarray(ost.grad(lambda x: ost.linalg.det(x))(a))
    wanted = np.empty((4, 4))
    for i, j in np.ndindex(4, 4):
        wanted[i, j] = (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
    np.testing.assert_allclose(found, wanted, atol=1e-10)


def test_slopes_of_norms_at_zero() -> None:
    zero = np.zeros((3, 2))
    for norm in (ost.linalg.vector_norm, ost.linalg.matrix_norm):
        np.testing.assert_array_equal(np.asarray(ost.grad(norm)(zero)), zero)


# -- what is refused ---------------------------------------------------------------------------
REFUSED = [
    (
        lambda: ost.linalg.qr(np.ones((3, 3), np.float16)),
        DTypeError,
        r"qr .*got float16\[3,3\]; needed float32.*x.astype",
    ),
    (lambda: ost.linalg.svd(np.ones(3)), ShapeError, r"svd .*got float64\[3\]; needed a matrix"),
    (lambda: ost.linalg.inv(np.ones((3, 2))), ShapeError, r"inv .*\[3,2\]; needed square"),
    (lambda: ost.linalg.det(np.ones((3, 2))), ShapeError, "det .*needed square"),
    (lambda: ost.linalg.cholesky(np.ones((2, 3))), ShapeError, "cholesky .*needed square"),
    (
        lambda: ost.linalg.solve(np.ones((3, 3)), np.ones((2, 1))),
        ShapeError,
        r"solve .*rows.*\(2\).*\(3\)",
    ),
    (lambda: ost.linalg.lstsq(np.ones((3, 2)), np.ones(4)), ShapeError, "lstsq .*as many rows"),
    (
        lambda: ost.linalg.qr(np.ones((3, 2)), mode="raw"),
        ArgumentError,
        "mode='raw'; needed 'reduced'",
    ),
    (lambda: ost.linalg.matrix_norm(np.ones((3, 2)), ord=3), ArgumentError, "ord=3; needed 'fro'"),
    (lambda: ost.linalg.outer(np.ones((2, 2)), np.ones(2)), ShapeError, "outer .*two vectors"),
    (
        lambda: ost.linalg.matrix_power(np.ones((2, 2)), 0.5),
        ArgumentError,
        "got 0.5; needed a whole",
    ),
    (lambda: ost.linalg.cross(np.ones(2), np.ones(2)), ShapeError, "cross .*three elements"),
    (lambda: ost.linalg.svd_lowrank(np.ones((3, 2)), 3), ArgumentError, "rank=3 .*needed 1 to 2"),
    (lambda: ost.linalg.svd_lowrank(np.ones((3, 2)), 1.5), ArgumentError, "svd_lowrank.*got 1.5"),
    (lambda: ost.linalg.pinv(np.ones((3, 2)), rtol="x"), ArgumentError, "pinv .*rtol='x'"),
    (lambda: ost.linalg.eigh(np.ones((2, 2), np.float16)), DTypeError, r"eigh .*float16"),
]


@pytest.mark.parametrize(
    ("run", "kind", "text"), REFUSED, ids=[str(k) for k in range(len(REFUSED))]
)
def test_refused(run: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        run()
    assert f"test_linalg.py:{run.__code__.co_firstlineno}" in str(caught.value)


SINGULAR = np.ones((3, 3))
FAILS = [
    (
        lambda x: ost.linalg.cholesky(-x),
        r"cholesky \(.*test_linalg.py:\d+\): got a matrix that is not positive definite\.",
    ),
    (
        lambda x: ost.linalg.inv(x * 0),
        r"inv \(.*test_linalg.py:\d+\): got a singular matrix; use ost.linalg.lstsq",
    ),
    (lambda x: ost.linalg.solve_triangular(x * 0, x), r"solve_triangular .*singular"),
    (lambda x: ost.linalg.svdvals(x * np.nan), "svd .*did not converge"),
]


@pytest.mark.parametrize(("function", "text"), FAILS, ids=[str(k) for k in range(len(FAILS))])
@pytest.mark.parametrize("workers", [1, 3])
def test_what_shows_when_it_is_read(function: Callable[..., Any], text: str, workers: int) -> None:
    """One sentence, with the operation and the line; what NumPy's own error catches, catches it."""
    with on(workers):
        pending = function(ost.asarray(SINGULAR, split=0))
        with pytest.raises(np.linalg.LinAlgError, match=text) as caught:
            np.asarray(pending)
        assert isinstance(caught.value, LinAlgError)
        np.testing.assert_array_equal(np.asarray(ost.asarray(SINGULAR, split=0) + 1), 2)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: ost.linalg.qr(x, mode="complete").Q, "gradient of qr.*use mode='reduced'"),
        (lambda x: ost.linalg.svd(x).U, "gradient of svd.*use full_matrices=False"),
        (lambda x: ost.linalg.lu(x).U, "gradient of lu.*needed square"),
    ],
)
def test_no_gradient(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(GradientError, match=text):
        ost.grad(lambda x: function(x).sum())(random(4, 2))


# -- by NumPy's names ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("axis", "order", "keepdims"),
    turns(
        [None, 0, -1, (0, 2), (2, 0), (1, -1)],
        [None, 2, 1, math.inf, -1, -2, 0, 3.5, "fro", "nuc"],
        [False, True],
    ),
)
def test_norm(order: Any, axis: Any, keepdims: bool) -> None:
    x = random(4, 3, 5)
    try:
        wanted = np.linalg.norm(x, order, axis, keepdims)
    except ValueError:
        with pytest.raises((ShapeError, ArgumentError)):
            ost.linalg.norm(x, order, axis, keepdims)
        return
    assert_same(
        lambda x: ost.linalg.norm(x, order, axis, keepdims),
        lambda x: wanted,
        x,
        rtol=1e-10,
        few=True,
    )


def test_norms_of_few_axes() -> None:
    x = random(6)
    for order in (None, 1, 2, 3, math.inf, -math.inf, 0):
        np.testing.assert_allclose(ost.linalg.norm(x, order), np.linalg.norm(x, order))
    for order in (None, "fro", 1, 2, -math.inf):
        y = random(4, 5)
        np.testing.assert_allclose(ost.linalg.norm(y, order), np.linalg.norm(y, order))
    assert float(ost.linalg.norm([3, 4])) == 5


def test_a_norm_of_what_is_split_sends_one_number() -> None:
    with on(4):
        x = ost.asarray(random(64, 8), split=0)
        _, plan = plan_of(lambda x: ost.linalg.norm(x), x)
        assert facts(plan)["collectives"] == {"all_reduce": 1}
        assert facts(plan)["sent"] <= 4 * 4 * 8


@pytest.mark.parametrize("order", [None, 2, -2, 1, math.inf, "fro", "nuc"])
def test_cond(order: Any) -> None:
    x = random(3, 4, 4)
    np.testing.assert_allclose(ost.linalg.cond(x, order), np.linalg.cond(x, order), rtol=1e-10)


def test_products_in_the_order_that_multiplies_least() -> None:
    sizes = (30, 35, 15, 5, 10, 20, 25)
    given = [random(a, b) for a, b in itertools.pairwise(sizes)]
    assert_same(
        lambda *xs: ost.linalg.multi_dot(xs), lambda *xs: np.linalg.multi_dot(xs), *given, rtol=1e-9
    )
    chain = (random(5), *(random(5, 5, seed=k) for k in range(2)), random(5))
    np.testing.assert_allclose(
        np.asarray(ost.linalg.multi_dot(chain)), np.linalg.multi_dot(chain), rtol=1e-12
    )
    thin = [random(a, b) for a, b in ((1000, 2), (2, 1000), (1000, 2))]
    _, plan = plan_of(lambda *xs: ost.linalg.multi_dot(xs), *map(ost.asarray, thin))
    assert {s.shape for n in plan.program.graph.nodes for s in n.specs} == {(2, 2), (1000, 2)}
    with pytest.raises(ShapeError, match="multi_dot"):
        ost.linalg.multi_dot((random(2, 2), random(2), random(2, 2)))
    with pytest.raises(ArgumentError, match="two or more"):
        ost.linalg.multi_dot((random(2, 2),))


def test_tensor_equations() -> None:
    a, b = random(2, 3, 6), random(2, 3)
    np.testing.assert_allclose(
        np.asarray(ost.linalg.tensorsolve(a, b)), np.linalg.tensorsolve(a, b), rtol=1e-9
    )
    turned = np.moveaxis(a, 2, 1)
    np.testing.assert_allclose(
        np.asarray(ost.linalg.tensorsolve(turned, b, axes=(1,))),
        np.linalg.tensorsolve(turned, b, axes=(1,)),
        rtol=1e-9,
    )
    c = random(4, 6, 8, 3)
    np.testing.assert_allclose(
        np.asarray(ost.linalg.tensorinv(c)), np.linalg.tensorinv(c), rtol=1e-7, atol=1e-9
    )
    with pytest.raises(ShapeError, match="tensorinv"):
        ost.linalg.tensorinv(c, ind=1)
    with pytest.raises(ShapeError, match="tensorsolve"):
        ost.linalg.tensorsolve(a, random(2, 2))


def test_eigenvalues_of_any_matrix() -> None:
    for dtype, made in (("float32", "complex64"), ("complex128", "complex128")):
        x = random(2, 5, 5).astype(dtype)
        w, v = (np.asarray(y) for y in ost.linalg.eig(x))
        assert w.dtype == v.dtype == made
        np.testing.assert_allclose(x @ v, v * w[:, None, :], atol=1e-5)
        np.testing.assert_array_equal(np.asarray(ost.linalg.eigvals(x)), w)
    assert np.asarray(ost.linalg.eigvals(np.eye(3))).dtype == np.complex128
    with pytest.raises(ShapeError, match="square"):
        ost.linalg.eig(random(3, 4))
