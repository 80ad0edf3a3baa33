"""Equations of triangles and of matrices with a few diagonals, beside SciPy and whole matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from ostinato.ops.cpu import kernels
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.linalg import banded

import ostinato as ost
from tests.helpers import on
from tests.ops.samples import solved_bands
from tests.thorough import some

KINDS = ("float32", "float64", "complex64", "complex128")


def near(y, wanted, kind):
    eps = np.finfo(kind).eps
    np.testing.assert_allclose(y, wanted, rtol=0, atol=3e3 * eps * max(1, abs(wanted).max()))
    assert y.dtype == kind


def drawn(rng, kind, *shape):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if "c" in kind else x).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_any_diagonals_along_any_axis_in_any_order_of_memory(kind):
    """By kernels and without; not dominant, so rows change places. Views of one row are read as such."""
    rng = np.random.default_rng(KINDS.index(kind))
    for lower, upper in ((1, 1), *some([(0, 1), (2, 1), (1, 2), (2, 2), (0, 0)], 2), (3, 1)):
        axis = int(rng.integers(3))
        shape = [int(n) for n in rng.integers(3, 30, 3)]
        shape[int(rng.integers(3))] = 40
        order = rng.permutation(3)
        arrays = []
        for _ in range(lower + upper + 2):
            x = drawn(rng, kind, *(shape[d] for d in order)).transpose(np.argsort(order))
            arrays.append(np.broadcast_to(x[:1], x.shape) if rng.random() < 0.3 and axis else x)
        facts = {"lower": lower, "axis": axis, "transposed": bool(rng.integers(2))}
        wanted = solved_bands(*(x.astype(np.result_type(kind, "float64")) for x in arrays), **facts)
        out = np.empty(shape, kind)
        made = kernels.band_solve.banded_kernel([*arrays, out], 2, **facts)
        assert (made is None) == (max(lower, upper) > banded.NARROW)
        if made is not None:
            made(*arrays, out)
            good(out, wanted, arrays, facts)
        before = out.copy()
        banded._kernel(np, out, *arrays, **facts)
        if made is not None and "f" in np.dtype(kind).kind:
            np.testing.assert_array_equal(out, before, "to the bit, so no layout changes one")
        good(out, wanted, arrays, facts)


def good(y, wanted, arrays, facts):
    """As far as the equations' condition allows: the most of them, as some of so many are poor."""
    error = abs(y - wanted).max(facts["axis"]) / abs(wanted).max(facts["axis"])
    assert np.median(error) < 100 * np.finfo(y.dtype).eps, facts
    assert np.quantile(error, 0.9) < 1e4 * np.finfo(y.dtype).eps, facts


@pytest.mark.parametrize("kind", KINDS)
def test_as_scipy(kind):
    rng = np.random.default_rng(7)
    for n, lower, upper in ((1, 1, 1), (2, 1, 1), (9, 2, 3), (50, 1, 1), (30, 4, 0)):
        ab = drawn(rng, kind, lower + upper + 1, n)
        ab[upper] += 6
        for b in (drawn(rng, kind, n), drawn(rng, kind, n, 5)):
            y = np.asarray(ost.linalg.solve_banded((lower, upper), ab, b))
            near(y, scipy.linalg.solve_banded((lower, upper), ab, b), kind)
    t = drawn(rng, kind, 8, 8) + 6 * np.eye(8, dtype=kind)
    b = drawn(rng, kind, 8, 2)
    for trans in (0, 1, 2, "N", "T", "C"):
        y = np.asarray(ost.linalg.solve_triangular(t, b, trans, lower=True))
        near(y, scipy.linalg.solve_triangular(t, b, trans, lower=True), kind)


def test_systems_along_an_axis_or_as_in_jax():
    rng = np.random.default_rng(3)
    dl, d, du, b = (rng.standard_normal((5, 6)) for _ in range(4))
    d += 5
    wanted = solved_bands(dl, d, du, b, lower=1, axis=1, transposed=False)
    solve = ost.linalg.solve_tridiagonal
    for y in (
        solve(dl, d, du, b),
        solve(dl, d, du, b[..., None])[..., 0],
        solve(dl.T, d.T, du.T, b.T, axis=0).T,
        solve(dl[:, 1:], d, du[:, :-1], b, axis=-1),
        ost.vmap(solve)(dl, d, du, b),
        ost.vmap(solve, in_axes=(0, 0, 0, 1))(dl, d, du, b.T),
    ):
        near(np.asarray(y), wanted, "float64")
    whole = solved_bands(
        *(np.broadcast_to(x[0][:, None], (6, 5)) for x in (dl, d, du)),
        b.T,
        lower=1,
        axis=0,
        transposed=False,
    )
    for y in (
        solve(dl[0], d[0], du[0], b.T),
        solve(dl[0], d[0], du[0], b, axis=1).T,
        ost.vmap(solve, in_axes=(None, None, None, 0), out_axes=1)(dl[0], d[0], du[0], b),
    ):
        near(np.asarray(y), whole, "float64")
    same = solve(np.full(6, -1.0), np.full(6, 2.5), np.full(6, -1.0), b, axis=1)
    near(np.asarray(solve(-1.0, 2.5, -1, b)), np.asarray(same), "float64")


@pytest.mark.parametrize("workers", [2, 3])
def test_split_systems_stay_where_they_are(workers):
    """Of one matrix, and of one for each; a gradient of split columns adds up what the matrix gets."""
    rng = np.random.default_rng(4)
    dl, d, du = rng.standard_normal((3, 40))
    d += 5
    b = rng.standard_normal((40, 211))

    def loss(dl, d, du, b):
        return (ost.linalg.solve_tridiagonal(dl, d, du, b) ** 2).sum()

    def all_slopes(dl, d, du, b):
        return ost.grad(loss, (0, 1, 2, 3))(dl, d, du, b)

    with on(1):
        wanted = [np.asarray(x) for x in all_slopes(dl, d, du, b)]
    with on(workers):
        x = ost.asarray(b, split=1)
        f = ost.compile(lambda b: ost.linalg.solve_tridiagonal(dl, d, du, b))
        y = f(x)
        near(np.asarray(y), solved_bands(
            *(np.broadcast_to(v[:, None], b.shape) for v in (dl, d, du)), b, lower=1, axis=0, transposed=False
        ), "float64")  # fmt: skip
        assert not {"all_gather", "exchange"} & {n.op for n in f.plan.lowered.nodes}
        for mine, w in zip(ost.compile(all_slopes)(dl, d, du, x), wanted, strict=True):
            near(np.asarray(mine), w, "float64")


def test_bits_are_the_same_on_any_workers():
    """Where some have enough for a kernel, too, and others have not."""
    rng = np.random.default_rng(6)
    *diagonals, b = rng.standard_normal((4, 70, 8))
    t = rng.standard_normal((70, 8, 8)) + 8 * np.eye(8)
    found = []
    for workers in (1, 2, 3):
        with on(workers, numerics="any-workers"):
            given = [ost.asarray(x, split=0) for x in (*diagonals, b, t)]
            f = ost.compile(lambda dl, d, du, b, t: (
                ost.linalg.solve_tridiagonal(dl, d, du, b),
                ost.linalg.solve_triangular(t, b[..., None]),
            ))  # fmt: skip
            found.append([np.asarray(y) for y in f(*given)])
    for made in found[1:]:
        for y, z in zip(made, found[0], strict=True):
            np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("many", [3, 100])
def test_a_singular_system_leaves_those_beside_it(many):
    """By an operation's own kernel, and by a compiled one."""
    rng = np.random.default_rng(5)
    dl, d, du, b = (rng.standard_normal((many, 10)) for _ in range(4))
    dl[1] = d[1] = du[1] = 0
    y = np.asarray(ost.linalg.solve_tridiagonal(dl, d, du, b))
    assert not np.isfinite(y[1]).all()
    keep = np.arange(many) != 1
    given = (x[keep] for x in (dl, d, du, b))
    wanted = solved_bands(*given, lower=1, axis=1, transposed=False)
    good(y[keep], wanted, (), {"axis": 1})


def test_errors_say_what_is_needed():
    x = np.ones(4)
    with pytest.raises(ost.errors.ShapeError, match="needed 4 elements along the systems"):
        ost.linalg.solve_tridiagonal(np.ones(6), x, x, x)
    with pytest.raises(ost.errors.ShapeError, match="needed 3 diagonals, each of as many"):
        ost.linalg.solve_banded((1, 1), np.ones((2, 4)), x)
    with pytest.raises(ost.errors.ArgumentError, match=r"needed numbers of diagonals, \(lower"):
        ost.linalg.solve_banded((-1, 1), np.ones((1, 4)), x)
    with pytest.raises(ost.errors.ArgumentError, match="got trans=3; needed 0, 1, 2"):
        ost.linalg.solve_triangular(np.eye(4), x, 3)
    with pytest.raises(ost.errors.DTypeError, match="float32, float64, complex64 or complex128"):
        ost.linalg.solve_tridiagonal(*(ost.ones(4, dtype=ost.float16),) * 4)


@pytest.mark.skipif(bool(why_not()), reason="needs LLVM")
@pytest.mark.parametrize("kind", KINDS)
def test_stacks_of_triangles_however_they_lie(kind):
    """With one column on the right or several; transposes, matrices for all of a stack, and unit diagonals."""
    rng = np.random.default_rng(KINDS.index(kind))
    for columns in (1, 5):
        n, many = int(rng.integers(1, 30)), int(rng.integers(2, 40))
        a = drawn(rng, kind, *((many,) if rng.random() < 0.7 else ()), n, n) / n
        a[..., np.arange(n), np.arange(n)] += 2
        b = drawn(rng, kind, 3, many, n, columns)
        if rng.random() < 0.5:
            a, b = a.swapaxes(-1, -2), b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
        upper, unit = bool(rng.integers(2)), bool(rng.integers(2))
        t = np.triu(a) if upper else np.tril(a)
        if unit:
            t = t - t * np.eye(n, dtype=kind) + np.eye(n, dtype=kind)
        out = np.empty(b.shape, kind)
        kernels.triangular.triangular_kernel([a, b, out], 2, upper=upper, unit=unit)(a, b, out)
        wanted = np.linalg.solve(t, b)
        near(out, wanted, kind)
        over = b + 0  # over the right-hand sides
        lying = [a, over, over]
        kernels.triangular.triangular_kernel(lying, 1, upper=upper, unit=unit)(*lying)
        near(over, wanted, kind)


def test_one_singular_triangle_of_many_is_an_error():
    a = np.broadcast_to(np.eye(8), (200, 8, 8)).copy()
    a[7, 3, 3] = 0
    with pytest.raises(ost.errors.LinAlgError, match="singular"):
        np.asarray(ost.linalg.solve_triangular(a, np.ones((200, 8, 1))))
