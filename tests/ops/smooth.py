"""Functions that can be differentiated at the inputs given, in double precision, for every
operation that has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ostinato.ops.array.indexing import near_places
from ostinato.ops.core.apply import apply, apply_all

import ostinato as ost

from .samples import (
    BINARY,
    CONDITION,
    MODES,
    OF_POSITIVE,
    OF_SHARES,
    OF_SIGNED,
    OF_TWO,
    ONLY_COMPLEX,
    UNARY,
    normal,
    special,
)

SMOOTH: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {}


def smooth(op: str, function: Callable[..., Any], *inputs: Any) -> None:
    SMOOTH.setdefault(op, []).append((function, tuple(np.asarray(x) for x in inputs)))


# -- elementwise ---------------------------------------------------------------------------
_rng = np.random.default_rng(8)


def inside(low: float, high: float, *shape: int) -> np.ndarray[Any, Any]:
    return _rng.uniform(low, high, shape)


_PLANE = inside(0.2, 0.8, 4, 3) + 1j * inside(0.2, 0.8, 4, 3)
_REAL_ONLY = ("floor", "ceil", "trunc", "rint", "cbrt", "softplus", "erf", "exp2")
for _name, (_function, _) in UNARY.items():
    if _name in ("isnan", "isinf", "isfinite", "signbit", "logical_not", "bitwise_invert"):
        continue
    if _name not in ONLY_COMPLEX:
        smooth(_name, _function, inside(1.2, 1.9, 4, 3) if _name == "acosh" else _PLANE.real)
    if _name not in _REAL_ONLY:
        smooth(_name, _function, _PLANE)
        smooth(_name, _function, -_PLANE.conj())
for _name in ("sin", "abs", "sign", "floor", "cbrt", "sigmoid", "softplus", "erf", "square"):
    smooth(_name, UNARY[_name][0], -2 * _PLANE.real)

for _name in BINARY:
    _function = BINARY[_name][0]
    if _name.startswith(("equal", "not_", "less", "greater", "logical", "bitwise", "nextafter")):
        continue
    smooth(_name, _function, inside(1.1, 1.9, 4, 3), inside(0.3, 0.8, 4, 3))
    smooth(_name, _function, inside(1.1, 1.9, 4, 3), inside(0.3, 0.8, 3))
    smooth(_name, _function, inside(1.1, 1.9, 4, 1), inside(-0.8, -0.3, 1, 3))
    smooth(_name, _function, inside(1.1, 1.9, 3), np.float64(0.7))
    smooth(_name, lambda x, f=_function: f(x, 1.0 + x * x), inside(0.3, 0.8, 4))
for _name in ("add", "subtract", "multiply", "divide"):
    smooth(_name, BINARY[_name][0], _PLANE, _PLANE[::-1].conj())
    smooth(_name, BINARY[_name][0], _PLANE, inside(0.3, 0.8, 3))
    smooth(_name, BINARY[_name][0], inside(0.3, 0.8, 4, 1), _PLANE)
smooth("pow", ost.pow, inside(0.3, 1.8, 4, 3), inside(-2, 2, 3))
smooth("pow", lambda x: x**3, -inside(0.3, 1.8, 4, 3))
smooth("pow", lambda x: x**-2.5, inside(0.3, 1.8, 4))
smooth("pow", lambda x: 2.5**x, inside(-1, 1, 4))
smooth("pow", ost.pow, _PLANE, _PLANE[::-1])
smooth("pow", lambda x: x ** np.array([0, 1, 2, 3]), inside(0.3, 1.8, 3, 4))
smooth("where", lambda x, y: ost.where(CONDITION, x, y), normal(3, 4), normal(4))
smooth("where", lambda x, y: ost.where(x > 0.5, x * y, y), _PLANE.real, _PLANE[0])
smooth("astype", lambda x: x.astype(ost.complex128) * (1 + 2j), normal(3))
smooth("astype", lambda x: ost.real(x).astype(ost.complex128) * x, _PLANE)

for _name in (*OF_SIGNED.split(), *OF_POSITIVE.split(), *OF_SHARES.split()):
    smooth(_name, special(_name)[0], inside(0.2, 0.8, 4, 3))
    if _name not in OF_SHARES:
        smooth(_name, special(_name)[0], inside(1.2, 9, 4))
    if _name in OF_SIGNED.split():
        smooth(_name, special(_name)[0], -inside(0.2, 0.8, 4))
for _name in OF_TWO.split():
    smooth(_name, special(_name)[0], inside(1.2, 3, 4, 3), inside(0.3, 2, 3))
smooth(
    "betainc", special("betainc")[0], inside(0.5, 3, 4, 3), inside(0.5, 3, 3), inside(0.2, 0.8, 3)
)
smooth("sinc", ost.special.sinc, np.array([1e-3, 0.0, -5e-3]))
smooth("exprel", ost.special.exprel, np.array([1e-3, 0.0, -5e-3]))

for _axis in (None, 0, 1, (0, 2), -1):
    for _name in ("sum", "mean", "prod", "min", "max"):
        smooth(
            _name, lambda x, a=_axis, n=_name: getattr(ost, n)(x, axis=a), inside(0.5, 2, 4, 3, 2)
        )
    smooth("moments", lambda x, a=_axis: ost.var(x, axis=a, correction=1), normal(4, 3, 2))
for _name in ("sum", "mean", "prod"):
    smooth(_name, lambda x, n=_name: getattr(ost, n)(x, axis=0), _PLANE)
smooth("prod", lambda x: ost.prod(x, axis=0), np.array([[0.0, 2, 0], [3, 4, 0], [5, 6, 7]]))
smooth("moments", lambda x: ost.var(x, axis=1), _PLANE)
smooth("moments", lambda x: apply_all("moments", x, axes=(0,))[1:], normal(4, 3))
smooth("moments", lambda x: ost.std(x, axis=0), normal(4, 3))
for _name in ("max", "min"):
    _function = getattr(ost, f"cumulative_{_name}")
    for _axis in (0, 1, -1):
        smooth(f"cumulative_{_name}", lambda x, f=_function, a=_axis: f(x, axis=a), normal(5, 4, 3))
    smooth(f"cumulative_{_name}", _function, normal(1))
for _name in ("sum", "prod"):
    _function = getattr(ost, f"cumulative_{_name}")
    smooth(f"cumulative_{_name}", lambda x, f=_function: f(x, axis=0), inside(0.5, 2, 4, 3))
    smooth(f"cumulative_{_name}", lambda x, f=_function: f(x, axis=-1), _PLANE)
    smooth(f"cumulative_{_name}", _function, np.array([1.5, 0.0, 2.0, 0.0, 3.0]))
    smooth(
        f"cumulative_{_name}",
        lambda x, f=_function: f(x, axis=1, include_initial=True),
        inside(0.5, 2, 2, 4),
    )

for _a, _b in (
    ((5, 4), (4, 3)),
    ((4,), (4, 3)),
    ((5, 4), (4,)),
    ((4,), (4,)),
    ((2, 5, 4), (4, 3)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((1, 1), (1, 1)),
):
    smooth("matmul", ost.matmul, normal(*_a), normal(*_b))
smooth("matmul", lambda x: x @ x, normal(3, 3))
smooth("matmul", ost.matmul, _PLANE, _PLANE.T)
smooth("matmul", ost.matmul, _PLANE, normal(3, 2))
smooth("einsum", lambda a, b: ost.einsum("abc,bcd->da", a, b), normal(3, 4, 2), normal(4, 2, 3))
smooth(
    "einsum",
    lambda a, b: ost.einsum("xaby,xcdy->xabcd", a, b),
    normal(2, 3, 2, 4),
    normal(2, 2, 3, 4, dtype="complex128"),
)
for _k in (-1, 0, 2):
    smooth("diagonal", lambda x, k=_k: ost.diagonal(x, offset=k), normal(2, 4, 3))

smooth("copy", ost.copy, normal(3))
smooth("resplit", lambda x: ost.resplit(x * x, 0), normal(5, 2))
smooth("reshape", lambda x: ost.reshape(x, (3, 4)) * 2, normal(2, 6))
smooth("reshape", lambda x: x.T.reshape(-1), normal(2, 6))
smooth("expand_dims", lambda x: ost.expand_dims(x, axis=(0, 2)), normal(2, 3))
smooth("squeeze", lambda x: ost.squeeze(x, 1), normal(2, 1, 3))
smooth("permute_dims", lambda x: ost.permute_dims(x, (2, 0, 1)), normal(2, 3, 4))
smooth("broadcast_to", lambda x: ost.broadcast_to(x, (4, 3)), normal(3))
smooth("broadcast_to", lambda x: ost.broadcast_to(x, (2, 4, 3)), normal(4, 1))
for _steps, _dilations in (((1, 1), (1, 1)), ((2, 1), (1, 3)), ((3, 2), (2, 1))):
    smooth(
        "slide",
        lambda x, s=_steps, d=_dilations: apply(
            "slide", x, axes=(0, 2), sizes=(3, 2), steps=s, dilations=d, beside=(-1, -1)
        ),
        normal(10, 2, 6),
    )
    smooth(
        "slide",
        lambda x, s=_steps, d=_dilations: apply(
            "slide", x, axes=(0,), sizes=(3,), steps=s[:1], dilations=d[:1], beside=(1,)
        ),
        normal(9, 3, 2),
    )
_WINDOWS = {"strides": (2, 1), "dilation": (1, 2), "offsets": (-1, 0), "every": (1, 1)}
for _every in ((1, 1), (2, 3)):
    smooth(
        "conv",
        lambda x, w, e=_every: apply("conv", x, w, **{**_WINDOWS, "every": e}, extents=(3, 4)),
        normal(2, 5, 7, 2, 2),
        normal(3, 2, 2, 2, 1),
    )
for _op in ("max_pool", "sum_pool"):
    smooth(
        _op,
        lambda x, o=_op: apply(o, x, **_WINDOWS, sizes=(3, 2), extents=(3, 4)),
        normal(2, 5, 7, 2),
    )
smooth(
    "matching_pool",
    lambda v: apply(
        "matching_pool", ost.ones((2, 3, 4, 2)), ost.ones((2, 5, 7, 2)), v,
        **_WINDOWS, sizes=(3, 2), extents=(3, 4),
    ),
    normal(2, 5, 7, 2),
)  # fmt: skip
for _x, _w in (((9,), (4,)), ((2, 9), (4,)), ((9,), (2, 4)), ((2, 9), (2, 4)), ((4,), (4,))):
    for _before, _after in ((0, 0), (3, 1), (5, 4)):
        smooth(
            "correlation",
            lambda x, w, b=_before, a=_after: apply("correlation", x, w, before=b, after=a),
            normal(*_x),
            normal(*_w),
        )
for _key in (np.s_[1:3], np.s_[::-2], np.s_[:, 1], np.s_[..., None, 2:], np.s_[3:1], np.s_[-1, 0]):
    smooth("slice", lambda x, k=_key: x[k] * x[k], normal(4, 3))
    for _mode in MODES:
        smooth(
            "update_slice",
            lambda x, v, k=_key, m=_mode: getattr(x.at[k], m)(v),
            normal(4, 3),
            normal(*np.zeros((4, 3))[_key].shape),
        )
smooth("update_slice", lambda x, v: x.at[1:].add(v), normal(4, 3), np.float64(2))
smooth("concat", lambda x, y: ost.concat([x, y, x], axis=1), normal(3, 2), normal(3, 4))
smooth("concat", lambda x, y: ost.stack([x, y]), normal(3), normal(3, dtype="complex128"))
smooth("concat", lambda x: ost.roll(x, 2, axis=0) * x, normal(5, 2))
smooth("pad", lambda x: ost.pad(x, ((1, 0), (2, 3)), value=7.0), normal(3, 2))
smooth("pad", lambda x: ost.pad(x, 2, mode="reflect"), normal(4, 3))

_PLACES = np.array([[2, 0], [0, -1]])
smooth("take", lambda x: ost.take(x, _PLACES, axis=0), normal(4, 3))
smooth("take", lambda x: x[:, [0, 0, 2]] * x, normal(4, 3))
smooth("take", lambda x: x[[0, 1, 1], [2, 0, 0]], normal(4, 3))
_NEAR = {"axis": 1, "near": near_places(np.array([0, 1, 1, 2]), 3)}
smooth(
    "take_near", lambda x: apply("take_near", x, ost.asarray([0, 1, 1, 2]), **_NEAR), normal(4, 3)
)
smooth(
    "put_near",
    lambda x, v: apply("put_near", x, ost.asarray([0, 1, 1, 2]), v, **_NEAR) * x,
    normal(2, 3),
    normal(2, 4),
)
for _axis in (0, 1):
    for _mode in MODES:
        for _i in (np.array([3, 0, 1]), np.array([2, 2, 0])):
            smooth(
                "put",
                lambda x, v, i=_i, a=_axis, m=_mode: apply(
                    "put", x, ost.asarray(i), v, axis=a, mode=m
                ),
                normal(4, 4),
                normal(*((3, 4) if _axis == 0 else (4, 3))),
            )
for _mode in MODES:
    smooth(
        "dynamic_update_slice",
        lambda x, v, m=_mode: getattr(x.at[ost.asarray(1), 1:3, ost.asarray(-1)], m)(v * v),
        normal(3, 4, 2),
        normal(2),
    )
smooth("dynamic_slice", lambda x: x[ost.asarray(1), :, ost.asarray(-1)] * x[0], normal(3, 4, 4))
smooth("dynamic_slice", lambda x: ost.dynamic_slice(x, (3, ost.asarray(1)), (2, 2)), normal(4, 4))
smooth(
    "dynamic_update_slice",
    lambda x, v: ost.dynamic_update_slice(x, v, [ost.asarray(9), ost.asarray(-3)]),
    normal(4, 4),
    normal(3, 2),
)
smooth("put", lambda x, v: x.at[_PLACES].set(v), normal(4, 3), normal(2, 2, 3))
smooth("put", lambda x, v: x.at[_PLACES].multiply(v), normal(4), normal(2, 2))
_LINES = _rng.integers(0, 3, (4, 2))
smooth("take_along_axis", lambda x: ost.take_along_axis(x, _LINES, axis=1), normal(4, 3))
smooth("take_along_axis", lambda x: ost.take_along_axis(x, _LINES, axis=1), normal(1, 3))
smooth(
    "put_along_axis",
    lambda x, v: apply("put_along_axis", x, ost.asarray(_LINES), v, axis=1),
    normal(4, 3),
    normal(4, 2),
)
for _axis in (0, 1):
    for _descending in (False, True):
        smooth(
            "sort",
            lambda x, a=_axis, d=_descending: ost.sort(x, axis=a, descending=d),
            normal(5, 4),
        )
        smooth("partition", lambda x, a=_axis: ost.partition(x, 2, axis=a), normal(5, 4))
smooth("order_statistics", lambda x: ost.quantile(x, [0.3, 0.8]), normal(9))
smooth("order_statistics", lambda x: ost.quantile(x, 0.4, axis=(0, 2)), normal(3, 2, 4))
smooth("order_statistics", lambda x: ost.median(x, axis=1), normal(3, 6))
smooth("distinct", lambda x: ost.unique_values(x, size=7) * 2, normal(5))
smooth("distinct", lambda x: ost.unique_values(x, size=3), normal(5))
_IDS = np.array([1, 0, 2, 1, 5, 1, -1])
for _name in ("sum", "prod", "min", "max"):
    smooth(
        f"segment_{_name}",
        lambda x, n=_name: getattr(ost, f"segment_{n}")(x, _IDS, 3) * 2,
        normal(7, 2),
    )
smooth("loop", lambda x: ost.repeat(3, lambda s: s * s + x, x), inside(0.1, 0.5, 3))
smooth(
    "loop",
    lambda c, xs: ost.scan(lambda s, x: (s * x, s + x * x), c, xs),
    normal(3),
    normal(4, 3),
)
for _flag in (True, False):
    smooth(
        "branch",
        lambda x, y, c=_flag: ost.cond(
            ost.asarray(c), lambda x: ost.sin(x) * y, lambda x: x * x, x
        ),
        normal(3),
        normal(3),
    )


# -- Fourier transforms ----------------------------------------------------------------------
for _norm in ("backward", "ortho", "forward"):
    smooth("fft", lambda x, m=_norm: ost.fft.fft(x, axis=0, norm=m), _PLANE)
    smooth("fft", lambda x, m=_norm: ost.fft.ifft(x, norm=m), _PLANE.real)
    for _n in (1, 3, 4):
        smooth("rfft", lambda x, m=_norm: ost.fft.rfft(x, norm=m), normal(2, _n))
        smooth(
            "irfft",
            lambda x, n=_n, m=_norm: ost.fft.irfft(x, n, norm=m),
            normal(2, 3, dtype=np.complex128),
        )


# -- matrices ------------------------------------------------------------------------------
def definite(x: Any) -> Any:
    """A positive definite matrix made of any."""
    return x @ ost.conj(ost.matrix_transpose(x)) + 0.5 * ost.eye(x.shape[-2], dtype=x.dtype)


def apart(x: Any) -> Any:
    """Something that depends on singular vectors, but not on their signs or phases."""
    u, s, vh = ost.linalg.svd(x, full_matrices=False)
    return s, (u * ost.exp(-s)[..., None, :]) @ vh, (u * s[..., None, :] ** 2) @ ost.conj(u.mT)


def spectrum(x: Any) -> Any:
    """Likewise of eigenvectors."""
    w, v = ost.linalg.eigh(definite(x))
    return w, (v * ost.sin(w)[..., None, :]) @ ost.conj(v.mT)


def general_spectrum(x: Any) -> Any:
    """What does not depend on vectors' phases."""
    w, v = ost.linalg.eig(x)
    return w, ost.abs(v) ** 2, (v * ost.sin(w)[..., None, :]) @ ost.conj(v.mT)


def triangle(x: Any) -> Any:
    return x + 3 * ost.eye(x.shape[-1], dtype=x.dtype)


COMPLEX = "complex128"
_square = [normal(4, 4), normal(3, 3, dtype=COMPLEX), normal(2, 3, 3)]
for _x in _square:
    for _upper in (False, True):
        smooth("cholesky", lambda x, u=_upper: ost.linalg.cholesky(definite(x), upper=u), _x)
    smooth("lu", lambda x: ost.linalg.lu(x)[1:], _x)
    smooth("det", ost.linalg.det, _x)
    smooth("slogdet", ost.linalg.slogdet, _x)
    smooth("eigh", spectrum, _x)
    smooth("eig", general_spectrum, _x)
    smooth("expm", ost.linalg.expm, _x)
    smooth("sqrtm", lambda x: ost.linalg.sqrtm(definite(x) + x / 9), _x)
    smooth("logm", lambda x: ost.linalg.logm(definite(x) + x / 9), _x)
    smooth("signm", lambda x: ost.linalg.signm(definite(x) + x / 9 - 2 * ost.eye(x.shape[-1])), _x)
    smooth("solve", ost.linalg.inv, _x)
    for _low, _turned, _unit in ((True, False, False), (False, True, True), (False, False, False)):
        smooth(
            "solve_triangular",
            lambda a, b, lo=_low, t=_turned, u=_unit: ost.linalg.solve_triangular(
                triangle(a), b, lower=lo, transpose=t, unit_diagonal=u
            ),
            _x,
            normal(*_x.shape[:-1], 2, dtype=_x.dtype.name),
        )
for _kind in ("float64", COMPLEX):
    _right = normal(4, 2, dtype=_kind)
    smooth(
        "solve_banded",
        lambda dl, d, du, b: ost.linalg.solve_tridiagonal(dl, d + 4, du, b),
        *(normal(k, dtype=_kind) for k in (3, 4, 4)),
        _right,
    )
    smooth(
        "solve_banded",
        lambda ab, b: ost.linalg.solve_banded((0, 2), ab / 9 + 1, b),
        normal(3, 4, dtype=_kind),
        _right,
    )
smooth("solve", ost.linalg.solve, normal(4, 4), normal(4, 2))
smooth("solve", ost.linalg.solve, normal(3, 3, dtype=COMPLEX), normal(3, dtype=COMPLEX))
smooth("solve", ost.linalg.solve, normal(2, 3, 3), normal(3, 2))
for _shape in ((5, 3), (3, 5), (4, 4), (9, 2), (2, 4, 3)):
    for _kind in ("float64", COMPLEX):
        _x = normal(*_shape, dtype=_kind)
        smooth("qr", ost.linalg.qr, _x)
        smooth("svd", apart, _x)
        smooth("pinv", ost.linalg.pinv, _x)
        smooth(
            "lstsq",
            lambda a, b: ost.linalg.lstsq(a, b)[:2],
            _x,
            normal(*_shape[:-1], 2, dtype=_kind),
        )
smooth("qr", lambda x: ost.linalg.qr(x).R, normal(6, 2))
smooth("svd", ost.linalg.svdvals, normal(3, 4))
smooth("lstsq", lambda a, b: ost.linalg.lstsq(a, b).singular_values, normal(4, 3), normal(4))
smooth(
    "callback",
    lambda x: ost.callback(
        np.sin, ost.spec(x.shape, x.dtype), x, gradient=lambda g, x: g * ost.cos(x)
    ),
    normal(3, 4),
)
