"""Matrices made of a few numbers, and factors that are used again: what SciPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.sessions import MESHES, use

R = np.random.default_rng(3)
A = R.normal(size=(5, 5))
SPD = A @ A.T + np.eye(5)
B = R.normal(size=(5, 2))
C = A + 1j * R.normal(size=(5, 5))


def close(found: Any, wanted: Any) -> None:
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-11)


@pytest.mark.parametrize("mesh", [(1,), MESHES[-1]])
def test_made_of_a_few_numbers(mesh: Any) -> None:
    with use(mesh):
        x, c = ost.asarray(A), ost.asarray(C)
        close(ost.linalg.block_diag(x, B, [1.0, 2.0]), scipy.linalg.block_diag(A, B, [1.0, 2.0]))
        assert (
            ost.linalg.block_diag(np.ones((1, 1), "i4"), np.ones((1, 1), "f4")).dtype == ost.float64
        )
        close(ost.linalg.toeplitz(x[0], x[1, :3]), scipy.linalg.toeplitz(A[0], A[1, :3]))
        close(ost.linalg.toeplitz(c[0]), scipy.linalg.toeplitz(C[0]))
        close(ost.linalg.circulant(x[0]), scipy.linalg.circulant(A[0]))


def test_factored_once_solved_often() -> None:
    with use():
        for lower in (False, True):
            factor = ost.linalg.cho_factor(SPD, lower)
            wanted = scipy.linalg.cho_factor(SPD, lower)[0]
            close(factor[0], np.tril(wanted) if lower else np.triu(wanted))
            close(ost.linalg.cho_solve(factor, B), np.linalg.solve(SPD, B))
            close(ost.linalg.cho_solve(factor, B[:, 0]), np.linalg.solve(SPD, B[:, 0]))
        for m in (A, C):
            factors = ost.linalg.lu_factor(m)
            close(factors.lu, scipy.linalg.lu_factor(m)[0])
            for trans, turned in enumerate((m, m.T, m.conj().T)):
                close(ost.linalg.lu_solve(factors, B, trans), np.linalg.solve(turned, B))
            close(ost.linalg.lu_solve(factors, B[:, 0]), np.linalg.solve(m, B[:, 0]))
        slope = ost.grad(lambda m: ost.linalg.lu_solve(ost.linalg.lu_factor(m), B).sum())(A)
        close(slope, -np.outer(np.linalg.solve(A.T, np.ones(5)), np.linalg.solve(A, B).sum(1)))


def test_lu_as_scipy_gives_it() -> None:
    with use():
        for m in (A, B, B.T, np.stack([A, SPD]), C):
            for options in ({"p_indices": True}, {"permute_l": True}, {}):
                found = ost.linalg.lu(ost.asarray(m), **options)
                for y, wanted in zip(found, scipy.linalg.lu(m, **options), strict=True):
                    close(y, wanted)


def test_polar() -> None:
    with use():
        for m, side in ((A, "right"), (C, "left"), (B, "right"), (B.T, "left")):
            for y, wanted in zip(
                ost.linalg.polar(m, side), scipy.linalg.polar(m, side), strict=True
            ):
                close(y, wanted)


def test_options_of_decompositions() -> None:
    with use():
        close(ost.linalg.svd(A, compute_uv=False), np.linalg.svd(A, compute_uv=False))
        close(ost.linalg.svd(B, False).U, ost.linalg.svd(B, full_matrices=False).U)
        thin = np.outer(A[0], A[1]) + 1e-9 * A
        close(ost.linalg.lstsq(thin, B, rcond=1e-6).x, np.linalg.lstsq(thin, B, rcond=1e-6)[0])
        close(ost.linalg.pinv(thin, 1e-6), np.linalg.pinv(thin, 1e-6))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ost.linalg.block_diag(np.ones((1, 1, 1))), ShapeError, "needed matrices"),
        (lambda: ost.linalg.toeplitz(A), ShapeError, "one axis"),
        (lambda: ost.linalg.lu_factor(B), ShapeError, "square matrices"),
        (lambda: ost.linalg.lu_solve((A, [0, 1, 2, 3, 4]), B, 3), ArgumentError, "trans=3"),
        (lambda: ost.linalg.polar(A, "up"), ArgumentError, "side='up'"),
    ],
)
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with use(), pytest.raises(error, match=says):
        call()
