"""Functions by NumPy's names: what NumPy gives, in any layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
from ostinato.ops.array.array_function import OTHERWISE
from ostinato.ops.core import spelling

import ostinato as ost
from ostinato.errors import ArgumentError, OstinatoError
from tests.helpers import compare_all
from tests.sessions import MESHES, use
from tests.thorough import some

R = np.random.default_rng(0)
X, Y = R.normal(size=(7, 5)), R.normal(size=(7, 5))
V, W = R.normal(size=12), R.normal(size=5)
C = X + 1j * Y
GAPS = np.where(R.random((7, 5)) < 0.3, np.nan, X)
WHOLE = R.integers(-9, 9, (6, 4))
UP = np.sort(R.normal(size=9))
EDGES = np.array([0.0, -0.0, 1.5, -2.0, np.nan, np.inf, -np.inf, 1e300])
Z = R.normal(size=(2, 6, 3))

CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("gcd", lambda xp, i: (xp.gcd(i, i[::-1]), xp.gcd(i, 6)), (WHOLE,)),
    ("lcm", lambda xp, i: (xp.lcm(i, i[::-1]), xp.lcm(i, 6)), (WHOLE,)),
    ("bitwise_count", lambda xp, i: xp.bitwise_count(i), (WHOLE * 1234567,)),
    ("frexp", lambda xp, x: xp.frexp(x), (np.append(EDGES, [5e-324, -3e-310, 1 - 2**-53, 8]),)),
    ("ravel", lambda xp, x: xp.ravel(x), (X,)),
    ("transpose", lambda xp, x: (xp.transpose(x), xp.transpose(x, (1, 0, 2))), (Z,)),
    ("atleast_1d", lambda xp, x: xp.atleast_1d(x, 3.0), (X,)),
    ("atleast_2d", lambda xp, x: (xp.atleast_2d(x), xp.atleast_2d(x[0])), (V,)),
    ("atleast_3d", lambda xp, x: (xp.atleast_3d(x), xp.atleast_3d(x[0]), xp.atleast_3d(x[0, 0])), (X,)),
    ("concatenate", lambda xp, x, y: (xp.concatenate([x, y]), xp.concatenate([x, y], axis=None)), (X, Y)),
    ("append", lambda xp, x, y: (xp.append(x, y), xp.append(x, y, axis=1)), (X, Y)),
    ("vstack", lambda xp, x, v: xp.vstack([x, v]), (X, W)),
    ("hstack", lambda xp, x, y: (xp.hstack([x, y]), xp.hstack([x[0], y[1]])), (X, Y)),
    ("dstack", lambda xp, x, y: xp.dstack([x, y]), (X, Y)),
    ("column_stack", lambda xp, x, y: xp.column_stack([x[:, 0], y]), (X, Y)),
    ("array_split", lambda xp, v: (xp.array_split(v, 5), xp.array_split(v, [2, 3, -1, 99])), (V,)),
    ("split", lambda xp, x: (xp.split(x, 3), xp.split(x, [1, 4], axis=1)), (WHOLE,)),
    ("vsplit", lambda xp, x: xp.vsplit(x, 2), (WHOLE,)),
    ("hsplit", lambda xp, x: (xp.hsplit(x, 2), xp.hsplit(x[0], [1])), (WHOLE,)),
    ("dsplit", lambda xp, x: xp.dsplit(x, 3), (Z,)),
    ("fliplr", lambda xp, x: xp.fliplr(x), (X,)),
    ("flipud", lambda xp, x: xp.flipud(x), (X,)),
    ("rot90", lambda xp, x: [xp.rot90(x, k) for k in range(-2, 5)] + [xp.rot90(x, 1, (2, 0))], (Z,)),
    ("diag", lambda xp, x: (xp.diag(x), xp.diag(x, 1), xp.diag(x[0]), xp.diag(x[0], -2)), (X,)),
    ("diagflat", lambda xp, x: xp.diagflat(x[:2, :2], 1), (X,)),
    ("identity", lambda xp, x: x[:5] @ xp.identity(5), (X,)),
    ("tri", lambda xp, x: xp.tri(7, 5, 1) * x, (X,)),
    ("dot", lambda xp, x, y, v: (xp.dot(x.T, y), xp.dot(x, v), xp.dot(v, v), xp.dot(2.0, x)), (X, Y, W)),
    ("inner", lambda xp, x, y: (xp.inner(x, y), xp.inner(x[0], y[0])), (X, Y)),
    ("vdot", lambda xp, x, y: xp.vdot(x, y), (C, Y)),
    ("kron", lambda xp, x, v: xp.kron(x, v), (X, W)),
    ("cross", lambda xp, z: (xp.cross(z, z[::-1] + 1), xp.cross(z, z[0])), (Z,)),
    ("cumsum", lambda xp, x: (xp.cumsum(x), xp.cumsum(x, 0), xp.cumsum(x, axis=-1)), (X,)),
    ("cumprod", lambda xp, x: (xp.cumprod(x), xp.cumprod(x, 1)), (X,)),
    ("isclose", lambda xp, x: (xp.isclose(x, x + 1e-9), xp.isclose(x, x[::-1], equal_nan=True)), (EDGES,)),
    ("allclose", lambda xp, x: (xp.allclose(x, x + 1e-9), xp.allclose(x, 0.0)), (X,)),
    ("array_equal", lambda xp, x, y: (xp.array_equal(x, x), xp.array_equal(x, y), xp.array_equal(x, x[1:])), (X, Y)),
    ("array_equiv", lambda xp, x: (xp.array_equiv(x[:1], x[0]), xp.array_equiv(x, x[:, 1:])), (X,)),
    ("isposinf", lambda xp, x: xp.isposinf(x), (EDGES,)),
    ("isneginf", lambda xp, x: xp.isneginf(x), (EDGES,)),
    ("average", lambda xp, x, y, w: (
        xp.average(x), xp.average(x, 0, y**2), xp.average(x, axis=1, weights=w**2)), (X, Y, W)),
    ("ptp", lambda xp, x: (xp.ptp(x), xp.ptp(x, axis=0, keepdims=True)), (X,)),
    ("nan_to_num", lambda xp, x: (xp.nan_to_num(x), xp.nan_to_num(x, nan=7.0, posinf=1.0, neginf=2.0)), (EDGES,)),
    ("nansum", lambda xp, x: (xp.nansum(x), xp.nansum(x, 0), xp.nansum(x, axis=1, keepdims=True)), (GAPS,)),
    ("nanprod", lambda xp, x: (xp.nanprod(x), xp.nanprod(x, 0)), (GAPS,)),
    ("nanmean", lambda xp, x: (xp.nanmean(x), xp.nanmean(x, 0), xp.nanmean(x, axis=(0, 1))), (GAPS,)),
    ("nanvar", lambda xp, x: (xp.nanvar(x), xp.nanvar(x, 0)), (GAPS,)),
    ("nanstd", lambda xp, x: (xp.nanstd(x), xp.nanstd(x, 1, keepdims=True)), (GAPS,)),
    ("nanmax", lambda xp, x: (xp.nanmax(x), xp.nanmax(x, 0)), (GAPS,)),
    ("nanmin", lambda xp, x: (xp.nanmin(x), xp.nanmin(x, 1)), (GAPS,)),
    ("nanargmax", lambda xp, x: (xp.nanargmax(x), xp.nanargmax(x, 0)), (GAPS,)),
    ("nanargmin", lambda xp, x: (xp.nanargmin(x), xp.nanargmin(x, 1)), (GAPS,)),
    ("cov", lambda xp, x, y, w: (
        xp.cov(x), xp.cov(x[0]), xp.cov(x, y), xp.cov(x, rowvar=False, ddof=0), xp.cov(x, aweights=w**2)), (X, Y, W)),
    ("corrcoef", lambda xp, x, y: (xp.corrcoef(x), xp.corrcoef(x, y, rowvar=False)), (X, Y)),
    ("deg2rad", lambda xp, x: (xp.deg2rad(x), xp.radians(x)), (X,)),
    ("rad2deg", lambda xp, x: (xp.rad2deg(x), xp.degrees(x)), (X,)),
    ("angle", lambda xp, x, c: (xp.angle(x), xp.angle(c), xp.angle(c, deg=True)), (X, C)),
    ("sinc", lambda xp, x: xp.sinc(x), (EDGES[:4],)),
    ("heaviside", lambda xp, x: xp.heaviside(x, 0.5), (EDGES,)),
    ("select", lambda xp, x: xp.select([x > 1, x > 0], [x, -x], 9.0), (X,)),
    ("polyval", lambda xp, x, w: xp.polyval(w, x), (X, W)),
    ("vander", lambda xp, v: (xp.vander(v), xp.vander(v, 3), xp.vander(v, 4, increasing=True)), (W,)),
    ("digitize", lambda xp, x, u: (xp.digitize(x, u), xp.digitize(x, u, right=True),
        xp.digitize(x, [1.0, 0.5, -1.0]), xp.digitize(x, [1.0, 0.5, -1.0], right=True)), (X, UP)),
    ("interp", lambda xp, x, u, v: (
        xp.interp(x, u, v[:9]), xp.interp(u, u, v[:9]), xp.interp(x, u, v[:9], left=-1.0, right=2.0)), (X, UP, V)),
    ("convolve", lambda xp, v, w: [xp.convolve(a, b, m) for m in ("full", "same", "valid")
        for a, b in ((v, w), (w, v), (v, w[:2]))], (V, W)),
    ("correlate", lambda xp, v, w: [xp.correlate(a, b, m) for m in ("full", "same", "valid")
        for a, b in ((v, w), (w, v), (v, w[:2]), (w[:4], v), (v * 1j, w))], (V, W)),
    ("ediff1d", lambda xp, x: xp.ediff1d(x), (X,)),
    ("gradient", lambda xp, x, u: (
        xp.gradient(x), xp.gradient(x[:, 0], 0.5), xp.gradient(x, axis=0), xp.gradient(x, u[:7], u[:5])), (X, UP)),
    ("trapezoid", lambda xp, x, u: (
        xp.trapezoid(x), xp.trapezoid(x, dx=0.3, axis=0), xp.trapezoid(x, u[:5]), xp.trapezoid(x, x**2)), (X, UP)),
    ("logspace", lambda xp, w: w * xp.logspace(-1, 2, 5), (W,)),
    ("geomspace", lambda xp, w: w * xp.geomspace(-1, -8, 5), (W,)),
    ("block", lambda xp, x, w: (xp.block([[x, x], [x, x]]), xp.block([w, w]), xp.block(x)), (X, W)),
    ("insert", lambda xp, x, w: (
        xp.insert(x, 2, w, axis=0), xp.insert(x, [1, 1, 3], 7.0, axis=1), xp.insert(w, 1, [8.0, 9.0]),
        xp.insert(x, -1, 5.0)), (X, W)),
    ("delete", lambda xp, x: (
        xp.delete(x, 2, axis=0), xp.delete(x, [0, -1], axis=1), xp.delete(x, slice(1, 20, 3))), (X,)),
    ("indices", lambda xp, x: x * xp.indices((7, 5)), (X,)),
    ("unravel_index", lambda xp, k: xp.unravel_index(abs(k), (4, 5)), (WHOLE,)),
    ("diag_indices", lambda xp, x: x[xp.diag_indices(5)], (X,)),
    ("tril_indices", lambda xp, x: x[xp.tril_indices(7, -1, 5)], (X,)),
    ("triu_indices", lambda xp, x: x[xp.triu_indices(7, 1, 5)], (X,)),
    ("nancumsum", lambda xp, x: (xp.nancumsum(x), xp.nancumsum(x, 0)), (GAPS,)),
    ("nancumprod", lambda xp, x: (xp.nancumprod(x), xp.nancumprod(x, 1)), (GAPS,)),
    ("fmax", lambda xp, x, y: (xp.fmax(x, y), xp.fmax(y, x)), (GAPS, X)),
    ("fmin", lambda xp, x, k: (xp.fmin(x, x[::-1]), xp.fmin(k, 2)), (GAPS, WHOLE)),
    ("piecewise", lambda xp, x, k: (
        xp.piecewise(x, [x < 0, x > 1], [lambda v: -v, 7.0]),
        xp.piecewise(k, [k < 0, k < 3], [1, lambda v: v * 2, lambda v: v + 9])), (X, WHOLE)),
    ("polyfit", lambda xp, v, w: (xp.polyfit(w, v[:5], 2), xp.polyfit(w, v[:5], 1, w=w**2)), (V, W)),
    # as NumPy calls what the standard calls otherwise
    *[(name, lambda xp, x, f=name: getattr(xp, f)(x), (X / 9,)) for name in (
        "absolute", "amax", "amin", "arccos", "arcsin", "arcsinh", "arctan", "arctanh", "around",
        "conjugate", "fabs", "rint", "modf")],
    ("fix", lambda xp, x: xp.trunc(x) if xp is np else xp.fix(x), (X,)),  # np.fix is to go
    ("arccosh", lambda xp, x: xp.arccosh(x * x + 1), (X,)),
    *[(name, lambda xp, x, y, f=name: getattr(xp, f)(x, y), (X, Y)) for name in (
        "arctan2", "divmod", "fmod", "logaddexp2", "mod", "true_divide")],
    *[(name, lambda xp, k, f=name: getattr(xp, f)(k, 2), (WHOLE,)) for name in (
        "divmod", "float_power", "fmod", "left_shift", "mod", "power", "right_shift")],
    ("fmod", lambda xp, x: xp.fmod(x[:, None], x), (EDGES,)),
    ("modf", lambda xp, x: xp.modf(x), (EDGES,)),
    ("ldexp", lambda xp, x, k: xp.ldexp(x[:6, :4], k), (X, WHOLE)),
    ("invert", lambda xp, k: (xp.invert(k), xp.bitwise_not(k)), (WHOLE,)),
    ("isreal", lambda xp, c: (xp.isreal(xp.real(c)), xp.isreal(c - 1j * xp.imag(c)), xp.iscomplex(c)), (C,)),
    ("polyadd", lambda xp, v, w: (xp.polyadd(v, w), xp.polysub(w, v), xp.polymul(v, w)), (V, W)),
    ("polyder", lambda xp, w: (xp.polyder(w), xp.polyder(w, 2), xp.polyder(w[:1], 2)), (W,)),
    ("polyint", lambda xp, w: (xp.polyint(w), xp.polyint(w, 2, 3.0), xp.polyint(w, 2, [1.0, 2.0])), (W,)),
    ("poly", lambda xp, w, x: (xp.poly(w), xp.real(xp.poly(x[:3, :3] @ x[:3, :3].T))), (W, X)),
    ("ix_", lambda xp, x: (x[xp.ix_([4, 0], [1, 3])], x[xp.ix_([6], range(5))]), (X,)),
    ("ravel_multi_index", lambda xp, k: (
        xp.ravel_multi_index((abs(k) % 4, abs(k) % 3), (4, 3)),
        xp.ravel_multi_index((k, k), (4, 3), "wrap"), xp.ravel_multi_index((k, k), (4, 3), "clip")), (WHOLE,)),
    ("diag_indices_from", lambda xp, x: x[:5][xp.diag_indices_from(x[:5])], (X,)),
    ("tril_indices_from", lambda xp, x: (x[xp.tril_indices_from(x, -1)], x[xp.triu_indices_from(x, 1)]), (X,)),
    ("fromfunction", lambda xp, x: x * xp.fromfunction(lambda i, j: i - j, (7, 5)), (X,)),
    ("windows", lambda xp, v: [getattr(xp, f)(n) * v[:n] for f in (
        "bartlett", "blackman", "hamming", "hanning") for n in (0, 1, 4, 5)], (V,)),
    ("kaiser", lambda xp, v: [xp.kaiser(n, b) * v[:n] for n in (0, 1, 4, 5) for b in (0.0, 8.6, -2)], (V,)),
    # options of what there was
    ("gradient", lambda xp, x, w: [
        f for n in (1, 2) for f in (xp.gradient(x, 0.5, axis=0, edge_order=n),
                                    xp.gradient(x, xp.cumsum(w**2), axis=1, edge_order=n))], (X, W)),
    ("interp", lambda xp, x, v, w: xp.interp(x * 7, v[:5], w, period=3.5), (X, V, W)),
    ("ediff1d", lambda xp, x: xp.ediff1d(x, [1, 2], 9), (X,)),
    ("cross", lambda xp, x, y: (xp.cross(x[:3], y[:3], 0, 0),
        xp.cross(x[:3], y[:3], axisa=0, axisb=0, axisc=0)), (X, Y)),
    ("cov", lambda xp, x: (xp.cov(x, None, False, True), xp.cov(x, bias=True), xp.cov(x, ddof=2)), (X,)),
    ("average", lambda xp, x, w: (
        *xp.average(x, 1, w**2, returned=True), *xp.average(x, 0, returned=True)), (X, W)),
    ("std", lambda xp, x: (xp.std(x, ddof=1), xp.var(x, 0, ddof=2), xp.std(x, axis=1, dtype="f4")), (X,)),
    ("mean", lambda xp, k: (xp.mean(k, dtype="f4"), k.mean(dtype="f4")), (WHOLE,)),
    ("meshgrid", lambda xp, v, w: xp.meshgrid(v, w, sparse=True), (V, W)),
    ("diagonal", lambda xp, x: (xp.diagonal(x, 1, 0, 2), xp.trace(x, 0, 0, 1)), (Z,)),
    ("linspace", lambda xp, v: (v[0] * xp.linspace(0, 1), v[1] * xp.linspace(0, 1, 5, False)), (V,)),
    ("positional", lambda xp, x: (
        xp.tril(x, -1), xp.triu(x, 1), xp.tensordot(x, x, 2), xp.zeros((2, 3), "f4") + x[0, 0],
        xp.searchsorted(xp.sort(x[0]), x, "right"), xp.ones_like(x, "f4"), xp.full((2,), 3, "f4")), (X,)),
    ("sliding_window_view", lambda xp, x, v: (
        xp.lib.stride_tricks.sliding_window_view(x, (2, 3)), xp.lib.stride_tricks.sliding_window_view(x, 4, 0),
        xp.lib.stride_tricks.sliding_window_view(xp.concatenate([v] * 4), 40)), (X, V)),
    ("unwrap", lambda xp, x, v: (
        xp.unwrap(x * 4, axis=0), xp.unwrap(v * 5, 4.0), xp.unwrap(v[:1]), xp.unwrap(x * 9, period=5.0),
        xp.unwrap(v[0] * 0 + xp.asarray([0.0, 2.0, 0.0, -2.0]), period=4.0)), (X, V)),
    ("array", lambda xp, x: (xp.array(x, "f4"), xp.array(x[0], ndmin=3), xp.array([x[0], x[1]])), (X,)),
    ("einsum", lambda xp, x, y: xp.einsum("ij,kj,lj->il", x, y, x, optimize=True), (X, Y)),
    ("rows of one array", lambda xp, z: (
        xp.concatenate(z), xp.concat(z, 1), xp.stack(z, 1), xp.vstack(z), xp.hstack(z), xp.dstack(z)), (Z,)),
    ("axes left out", lambda xp, z: (
        xp.squeeze(z[:, :1]), xp.permute_dims(z), xp.diagonal(z), xp.trace(z), xp.linalg.trace(z)), (Z,)),
    ("flattened", lambda xp, x, y: (xp.outer(x, y[:2]), xp.outer(2, y), xp.meshgrid(x[:2], y[0, 0])), (X, Y)),
    ("cuts of an array", lambda xp, x: xp.array_split(x, np.array([1, 4])), (X,)),
    ("ranges of arrays", lambda xp, x, w: (
        xp.linspace(x, 2, 4), xp.linspace(x[0], w, 3, False), xp.linspace(x, w, 3, axis=-1),
        xp.linspace(-3, 9, 6, dtype=int) + w[0], xp.logspace(x, w, 3), xp.logspace(0, 3, 4) * w[0],
        xp.geomspace(xp.abs(x), 9, 4, axis=1), xp.geomspace(-xp.abs(x), -2, 3, False)), (X, W)),
    ("whole numbers, solved", lambda xp, i: (
        xp.linalg.solve(i[:4] + 20 * np.eye(4, dtype=int), i[0]), xp.linalg.det(i[:4]), xp.linalg.inv(i[:4]),
        xp.linalg.svd(i)[1], xp.linalg.pinv(i), xp.linalg.norm(i), xp.linalg.vector_norm(i, axis=1),
        xp.linalg.matrix_power(i[:4], 3), xp.linalg.matrix_power(i[:4], -1), xp.linalg.lstsq(i, i[:, 0])[0],
        xp.linalg.eigvalsh(i[:4] + i[:4].T), xp.linalg.matrix_rank(i), xp.linalg.cond(i)), (WHOLE,)),
    ("numbers of any dtype", lambda xp, i, x: (
        xp.isin(i, [1.0, 2.5, 3]), xp.isin(i, xp.round(x)), xp.isin(x, [1]),
        xp.gcd(i, xp.asarray([4, 6, 9, 2], dtype="i2")), xp.lcm(xp.astype(i, "i1"), xp.asarray(6, dtype="u1"))),
        (WHOLE, X)),
    ("complex numbers and NaN", lambda xp, c, g: (
        xp.nanvar(c + g), xp.nanstd(c * g, axis=0), xp.nan_to_num(c / (c - c[0]), nan=7)), (C, GAPS)),
]  # fmt: skip
OWN = (  # these give NumPy's own answers
    *("allclose", "array_equal", "array_equiv", "identity", "tri", "windows", "kaiser"),
    *("diag_indices_from", "tril_indices_from", "positional", "array", "interp", "ix_"),
    *(
        "sliding_window_view",
        "rows of one array",
        "flattened",
        "ranges of arrays",
        "numbers of any dtype",
        "whole numbers, solved",
    ),
)
READ = [
    ("argwhere", lambda xp, x: xp.argwhere(x > 0), X),
    ("flatnonzero", lambda xp, x: xp.flatnonzero(x > 0), X),
    ("where", lambda xp, x: xp.stack(xp.where(x > 0)), X),
    ("unique", lambda xp, x: xp.unique(x), np.where(X > 0, np.nan, X)),
    *[
        ("unique", lambda xp, x, k=k: xp.unique(x, **{k: True})[1], WHOLE)
        for k in ("return_index", "return_inverse", "return_counts")
    ],
]


def flat(made: Any) -> tuple[Any, ...]:
    if isinstance(made, (tuple, list)):
        return tuple(itertools.chain.from_iterable(flat(y) for y in made))
    return (made,)


def agree(name: str, function: Any, given: tuple[Any, ...]) -> None:
    """What ours gives, in any layout, compiled and not, is what NumPy gives."""
    with np.errstate(all="ignore"):
        wanted = flat(function(np, *given))
    turn = sum(map(ord, name))
    for k, mesh in enumerate([(1,), *some(MESHES[-2:], 2, turn)]):
        with use(mesh):
            splits = [None if k == 0 else (k + d) % x.ndim for d, x in enumerate(given)]
            xs = [
                ost.asarray(x, split=s) if len(mesh) == 1 else ost.asarray(x)
                for x, s in zip(given, splits, strict=True)
            ]
            found = ost.compile(lambda *xs: flat(function(ost, *xs)))(*xs)
            assert [y.shape for y in found] == [np.shape(y) for y in wanted], name
            compare_all(found, wanted, f"{name} on {mesh}", 1e-9, None)
            plain = flat(function(ost, *xs))
            compare_all(plain, wanted, f"{name}, not compiled", 1e-9, None)


@pytest.mark.parametrize(("name", "function", "given"), CASES, ids=[c[0] for c in CASES])
def test_as_in_numpy(name: str, function: Any, given: tuple[Any, ...]) -> None:
    agree(name, function, given)


@pytest.mark.parametrize(("name", "function", "x"), READ, ids=[c[0] for c in READ])
def test_as_many_results_as_the_data_has(name: str, function: Any, x: Any) -> None:
    with use():
        np.testing.assert_array_equal(np.asarray(function(ost, ost.asarray(x))), function(np, x))


def test_numpys_functions_take_ours() -> None:
    """`np.nanmean(x)` of our array is ours."""
    with use():
        for name, function, given in CASES:
            if name in (*OTHERWISE, *OWN):
                continue  # these are refused, or give NumPy's own answers
            found = flat(function(np, *map(ost.asarray, given)))
            assert any(isinstance(y, ost.Array) for y in found), name


def test_numbers_of_python_take_the_dtype_that_they_meet() -> None:
    """Where functions are made of several operations, too."""
    names = ("fmod", "logaddexp2", "heaviside", "copysign", "float_power")
    with use(), np.errstate(all="ignore"):
        for dtype, number in (("float32", 2.5), ("int8", 3), ("float16", 3)):
            for name, y in [*((name, number) for name in names), ("ldexp", 3)]:
                wanted = getattr(np, name)(np.ones(3, dtype), y).dtype
                found = getattr(ost, name)(ost.ones(3, dtype=dtype), y).dtype
                assert found == wanted, (name, dtype)
        for dtype, name in itertools.product(
            ("?", "i1", "i2", "i4", "u1"), ("modf", "frexp", "fabs", "rint", "deg2rad")
        ):
            made = getattr(ost, name)(ost.ones(3, dtype=dtype))
            wanted = getattr(np, name)(np.ones(3, dtype))
            assert [y.dtype for y in flat(made)] == [y.dtype for y in flat(wanted)], (name, dtype)


def test_values_at_lines_own_places() -> None:
    places, values = R.integers(0, 7, (3, 5)), R.normal(size=(3, 5))
    for mode in ("set", "add"):
        wanted = X.copy()
        if mode == "set":
            places = np.argsort(R.random((7, 5)), 0)[:3]
            np.put_along_axis(wanted, places, values, 0)
        else:
            np.add.at(wanted, (places, np.arange(5)), values)
        for split in (0, 1):
            with use((2,)):
                x = ost.asarray(X, split=split)
                found = ost.put_along_axis(x, places, values, 0, mode=mode)
                np.testing.assert_allclose(np.asarray(found), wanted)
                np.testing.assert_array_equal(np.asarray(x), X)
    with use():
        found = ost.put_along_axis(X, [3], 9.0, None)
        assert float(found[0, 3]) == 9


def test_dtypes_are_numpys() -> None:
    """Slopes of float32 are float32; complex numbers have correlations."""
    x = X.astype(np.float32)
    z = X + 1j * X[::-1]
    with use():
        for slope in (lambda xp: xp.gradient(x)[0], lambda xp: xp.gradient(x, 0.5, axis=0),
                      lambda xp: xp.trapezoid(x), lambda xp: xp.cov(x)):  # fmt: skip
            assert slope(ost).dtype == slope(np).dtype
        compare_all(ost.corrcoef(z), np.corrcoef(z), "corrcoef")


def test_gradients() -> None:
    """Those of what is made of differentiable operations."""
    with use():

        def loss(x: Any) -> Any:
            return (
                ost.nanmean(ost.where(x > 1, ost.nan, x)) + ost.trapezoid(x).sum() + ost.cov(x).sum()
                + ost.convolve(x[0], x[1]).sum() + ost.interp(x, UP, V[:9]).sum() + ost.gradient(x)[0].sum()
            )  # fmt: skip

        slope = np.asarray(ost.grad(loss)(ost.asarray(X)))
        step = R.normal(size=X.shape)
        h = 1e-6
        up, down = (float(loss(ost.asarray(X + s * h * step))) for s in (1, -1))
        assert abs((slope * step).sum() - (up - down) / (2 * h)) < 1e-5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ost.split(X, 3), "3 parts of 7"),
        (lambda: ost.array_split(V, 0), "0 parts"),
        (lambda: ost.dsplit(X, 2), "3 axes or more"),
        (lambda: ost.rot90(X, 1, (0, 0)), "two different axes"),
        (lambda: ost.average(X, weights=W), "weights of shape"),
        (lambda: ost.convolve(V, W, "wrong"), "mode='wrong'"),
        (lambda: ost.interp(X, UP, V), "one axis of the same length"),
        (lambda: ost.gradient(X[:1], axis=0), "two along each axis"),
        (lambda: ost.geomspace(-1, 1), "of one sign"),
        (lambda: ost.select([], []), "at least one"),
        (lambda: ost.diag(Z), "one axis or two"),
        (lambda: ost.piecewise(X, [X > 0], []), "1 conditions and 0 functions"),
        (lambda: ost.put_along_axis(X, WHOLE[0], 1.0), "as many axes in both"),
        (lambda: ost.put_along_axis(X, WHOLE, 1.0, 0, mode="best"), "mode='best'"),
        (lambda: ost.polyfit(X, V, 1), "one axis of the same length"),
        (lambda: ost.where(X > 0, X), "both, or none"),
        (lambda: ost.gradient(X[:2], axis=0, edge_order=2), "three along each axis"),
        (lambda: ost.interp(X, V, V, period=0), "period=0"),
        (lambda: ost.fill_diagonal(V, 0), "two axes or more"),
        (lambda: ost.ix_(X), "one axis each"),
        (lambda: ost.ravel_multi_index((1, 2), (3,)), "2 axes of places for 1 extents"),
        (lambda: ost.sliding_window_view(V, 13), "windows of 13 of 12"),
        (lambda: ost.polyint(V, 2, [1.0]), "1 constants"),
        (lambda: ost.fmod(C, 1), "real numbers"),
    ],
)
def test_what_is_refused(call: Any, says: str) -> None:
    with use(), pytest.raises(OstinatoError, match=says):
        call()


def test_no_hint_names_what_there_is() -> None:
    assert not [name for name in spelling.other_names()["here"] if name in dir(ost)]
    assert not [name for name in spelling.other_names()["of_arrays"] if name in dir(ost.Array)]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: ost.meidan, "'ostinato' has no attribute 'meidan'; the nearest name is ostinato.median"),
        (lambda: ost.det, "; here it is ostinato.linalg.det"),
        (lambda: ost.lgamma, "; here it is ostinato.special.gammaln"),
        (lambda: ost.pmap, "; write ostinato.compile"),
        (lambda: ost.linalg.sum, "module 'ostinato.linalg' has no attribute 'sum'; here it is ostinato.sum"),
        (lambda: ost.randperm, "; here it is ostinato.random.permutation"),
        (lambda: ost.packbits, "; only numpy.packbits has it"),
        (lambda: ost.special.fresnel, "; only scipy.special.fresnel has it"),
        (lambda: ost.nn.grid_sample, "; nothing here does that"),
        (lambda: ost.linalg.sovle, "; the nearest name is ostinato.linalg.solve"),
        (lambda: ost.randn, "; here it is ostinato.random.randn"),
        (lambda: ost.special.lgamma, "; here it is ostinato.special.gammaln"),
        (lambda: ost.nn.rellu, "; the nearest name is ostinato.nn.relu"),
        (lambda: ost.optim.sum, "; here it is ostinato.sum"),
        (lambda: ost.zeros(2).median, "an array has no attribute 'median'; write ostinato.median(x)"),
        (lambda: ost.zeros(2).cuda, "; write ostinato.connect(device="),
        (lambda: ost.zeros(2).det, "; write ostinato.linalg.det(x)"),
        (lambda: ost.zeros(2).norm, "; write ostinato.linalg.norm(x)"),
        (lambda: ost.zeros(2).multinomial, "; write ostinato.random.categorical("),
        (lambda: ost.zeros(2).outer, "; write ostinato.outer(x, b)"),
        (lambda: ost.zeros(2).numel, "; write x.size"),
        (lambda: ost.zeros(2).backward, "; write ostinato.grad(loss)(x)"),
        (lambda: ost.Adam, "; here it is ostinato.optim.Adam"),
        (lambda: ost.nn.Relu, "; the nearest name is ostinato.nn.relu"),
        (lambda: ost.nn.GELU, "; the nearest name is ostinato.nn.gelu"),
        (lambda: ost.debug.pritn, "; the nearest name is ostinato.debug.print"),
    ],
)  # fmt: skip
def test_a_missing_name_says_what_there_is(asked: Any, says: str) -> None:
    with use(), pytest.raises(AttributeError) as raised:
        asked()
    assert says in str(raised.value)


def test_each_name_of_numpy_and_scipy_is_here_or_has_a_hint() -> None:
    theirs = {
        "": np.__all__,
        "fft": np.fft.__all__,
        "linalg": [*np.linalg.__all__, *scipy.linalg.__all__],
        "random": [*np.random.__all__, *dir(np.random.Generator)],
        "special": scipy.special.__all__,
    }
    for room, names in theirs.items():
        module = getattr(ost, room) if room else ost
        for name in names:
            there = name.startswith("_") or name in dir(module)
            assert there or spelling.hint(name, room), (
                f"{room}.{name} needs a line in spelling.json"
            )


def test_what_nobody_has_is_just_missing() -> None:
    with use():
        for asked in (lambda: ost._median, lambda: ost.zeros(2)._sum, lambda: ost.zeros(2).quux):
            with pytest.raises(AttributeError) as raised:
                asked()
            assert ";" not in str(raised.value)


def test_numpys_functions_that_are_refused_name_ours() -> None:
    with use(), pytest.raises(ArgumentError, match=r"write ostinato\.special\.i0, or np\.i0\("):
        np.i0(ost.zeros(2))


def test_a_covariance_of_split_samples_sends_sums_only() -> None:
    with use((2,)):
        f = ost.compile(lambda x: ost.cov(x, rowvar=False))
        f(ost.asarray(R.normal(size=(4000, 3)), split=0))
        moved = [n for n in f.plan.program.graph.nodes if n.op in ("all_gather", "all_to_all")]
        assert not moved


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x, v, k: xp.linalg.vecdot(x, v, axis=0),
        lambda xp, x, v, k: xp.linalg.vecdot(v, x, axis=-1),
        lambda xp, x, v, k: xp.linalg.vecdot(xp.stack([x, x], axis=1), x, axis=0),
        lambda xp, x, v, k: xp.cov(xp.asarray(x, dtype="float32")),
        lambda xp, x, v, k: xp.corrcoef(xp.asarray(x, dtype="float32"), dtype="float32"),
        lambda xp, x, v, k: xp.logaddexp2(xp.asarray(v, dtype="float16"), k),
        lambda xp, x, v, k: xp.angle(xp.asarray(k, dtype="int8")),
        lambda xp, x, v, k: xp.digitize(v, xp.asarray([1.0, 0.0, -1.0])),
        lambda xp, x, v, k: xp.digitize(v, xp.asarray([-1.0, 0.0, 1.0]), right=True),
        lambda xp, x, v, k: xp.histogram2d(xp.asarray(v, dtype="float16"), k)[1],
    ],
)
def test_axes_and_precisions_are_numpys(call: Callable[..., Any]) -> None:
    x, v, k = R.normal(size=(3, 3)), R.normal(size=3), np.array([2, -1, 0])
    with use():
        made = np.asarray(call(ost, ost.asarray(x), ost.asarray(v), ost.asarray(k)))
    wanted = call(np, x, v, k)
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
    rtol = {"float16": 1e-3, "float32": 1e-6}.get(made.dtype.name, 1e-12)
    np.testing.assert_allclose(made, wanted, rtol=rtol, atol=rtol)


def test_covariances_are_no_whole_numbers() -> None:
    with use(), pytest.raises(ArgumentError, match=r"cov \(.*got int32; needed a floating dtype"):
        ost.cov(np.ones((2, 3)), dtype="int32")
