"""Fourier transforms, by NumPy's names (`numpy.fft`): `. j -> . j`, whole along the axis that is
transformed.

Three operations are all there is: `fft` of complex or real lines, `rfft` of real lines, of which
half is enough, and `irfft` back. Transforms along several axes are one after the other, so of an
array in parts the planner transforms what a worker has whole, and exchanges parts in between.
Each is a linear map, and its gradient is another of the three. NumPy and CuPy compute; on CPUs
SciPy, if it is there, and else threads share the lines (ops/cpu/kernels/fft_libraries.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from .array.arithmetic import conj, real
from .array.casts import as_dtype, astype, check_device
from .array.comparisons import equal
from .array.concatenation import add_zeros, roll
from .array.creation import arange
from .array.cumulative import running
from .array.elementwise import where
from .array.shape import axis_of, listed, whole_number
from .array.slicing import slice_axes
from .core.apply import apply, as_array
from .core.array import Array
from .core.array_methods import Operandish
from .core.index import Indices, along
from .core.parameters import AXIS, FLAG, one_of, unfit, whole
from .core.registry import Params, Specs, op
from .core.spec import (
    DType,
    DTypeLike,
    Spec,
    complex64,
    complex128,
    float32,
    float64,
    int64,
    real_of,
)
from .core.spelling import missing
from .core.user_line import misfit

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Norm = Literal["backward", "ortho", "forward"] | None
Extents = Sequence[int | None] | None
NORMS = ("backward", "ortho", "forward")
_NORM = one_of(*NORMS)
_OTHER = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_HALVES = 2**40  # elements of a line at most


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("fft")


# -- the operations ------------------------------------------------------------------------
def _complex_of(dtype: DType) -> DType:
    return complex64 if dtype in (float32, complex64) else complex128


def _line(name: str, x: Spec, axis: int, kinds: str) -> int:
    """The extent of an axis that can be transformed."""
    if x.dtype not in (float32, float64, complex64, complex128) or x.dtype.kind not in kinds:
        needed = "complex64 or complex128" if kinds == "c" else "float32 or float64"
        raise unfit(name, (x,), needed + (", or complex" if kinds == "fc" else ""), DTypeError)
    if not x.shape[axis]:
        raise unfit(name, (x,), "at least one element along the axis")
    return x.shape[axis]


def _resized(x: Spec, axis: int, n: int, dtype: DType) -> Spec:
    return Spec((*x.shape[:axis], n, *x.shape[axis + 1 :]), dtype)


def _whole_line(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = along((p["axis"],), ins[0])
    return Indices((labels,), (labels,))


def _cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    n = max(ins[0].shape[p["axis"]], outs[0].shape[p["axis"]])
    lines = ins[0].size / ins[0].shape[p["axis"]]
    half = 2.5 if "f" in (ins[0].dtype.kind, outs[0].dtype.kind) else 5.0
    return half * lines * n * math.log2(max(n, 2)), float(ins[0].nbytes + outs[0].nbytes)


def _passes(ins: Specs, outs: Specs, p: Params) -> float:
    """A multiprocessor has up to 2^13 numbers of a line; halves of real lines are put together in one
    more."""
    n = max(ins[0].shape[p["axis"]], outs[0].shape[p["axis"]])
    return math.ceil(math.log2(max(n, 2)) / 13) + ("f" in (ins[0].dtype.kind, outs[0].dtype.kind))


def _fft_rule(x: Spec, *, axis: int, inverse: bool, norm: str) -> Spec:
    _line("fft", x, axis, "fc")
    return Spec(x.shape, _complex_of(x.dtype))


def _fft_grad(
    g: Array, y: Array, x: Array, *, axis: int, inverse: bool, norm: str
) -> Sequence[Array | None]:
    made = apply("fft", g, axis=axis, inverse=inverse, norm=norm)  # a symmetric matrix
    return (made if x.dtype.kind == "c" else real(made),)


op(
    "fft",
    infer=_fft_rule,
    takes={"axis": AXIS, "inverse": FLAG, "norm": _NORM},
    indices=running,
    kernel=lambda xp, out, x, *, axis, inverse, norm: xp.copyto(
        out, (xp.fft.ifft if inverse else xp.fft.fft)(x, axis=axis, norm=norm)
    ),
    grad=_fft_grad,
    cost=_cost,
    passes=_passes,
)


def _rfft_rule(x: Spec, *, axis: int, norm: str) -> Spec:
    n = _line("rfft", x, axis, "f")
    return _resized(x, axis, n // 2 + 1, _complex_of(x.dtype))


def _share(x: Array, axis: int, n: int, ends: float, inner: float) -> Array:
    """Times one number for the frequencies that stand for themselves, another for those that
    stand for two."""
    k = arange(x.shape[axis], dtype=int64).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    alone = equal(k, 0) | equal(2 * k, n)
    kind = real_of(x.dtype)
    return x * where(alone, astype(ends, kind), astype(inner, kind))


def _rfft_grad(g: Array, y: Array, x: Array, *, axis: int, norm: str) -> Sequence[Array | None]:
    n = x.shape[axis]
    half = _share(conj(g), axis, n, 1.0, 0.5)
    return (apply("irfft", half, axis=axis, n=n, norm=_OTHER[norm]),)


op(
    "rfft",
    infer=_rfft_rule,
    takes={"axis": AXIS, "norm": _NORM},
    indices=_whole_line,
    kernel=lambda xp, out, x, *, axis, norm: xp.copyto(out, xp.fft.rfft(x, axis=axis, norm=norm)),
    grad=_rfft_grad,
    cost=_cost,
    passes=_passes,
)


def _irfft_rule(x: Spec, *, axis: int, n: int, norm: str) -> Spec:
    if _line("irfft", x, axis, "c") != n // 2 + 1:
        raise unfit("irfft", (x,), f"{n // 2 + 1} frequencies of {n} numbers")
    return _resized(x, axis, n, real_of(x.dtype))


def _irfft_grad(
    g: Array, y: Array, x: Array, *, axis: int, n: int, norm: str
) -> Sequence[Array | None]:
    made = conj(apply("rfft", g, axis=axis, norm=_OTHER[norm]))
    return (_share(made, axis, n, 1.0, 2.0),)


op(
    "irfft",
    infer=_irfft_rule,
    takes={"axis": AXIS, "n": whole(1, _HALVES), "norm": _NORM},
    indices=_whole_line,
    kernel=lambda xp, out, x, *, axis, n, norm: xp.copyto(
        out, xp.fft.irfft(x, n, axis=axis, norm=norm)
    ),
    grad=_irfft_grad,
    cost=_cost,
    passes=_passes,
)


# -- what users call -----------------------------------------------------------------------
def _numbers(a: Operandish, name: str, real_only: bool = False) -> Array:
    """Convert to a dtype that there are transforms of: whole numbers are float64, halves float32."""
    x = as_array(a)
    if real_only and x.dtype.kind == "c":
        do = f"use {name.replace('rfft', 'fft').replace('ihfft', 'ifft')}"
        raise misfit(DTypeError, name, got=x.dtype.name, needed="real numbers", do=do)
    if x.dtype.kind == "c" or x.dtype in (float32, float64):
        return x
    return astype(x, float64 if x.dtype.kind in "biu" else float32)


def _norm(norm: str | None, name: str) -> str:
    if norm is not None and norm not in NORMS:
        raise misfit(ArgumentError, name, got=f"norm={norm!r}", needed=", ".join(map(repr, NORMS)))
    return norm or "backward"


def _fitted(x: Array, n: int | None, axis: int, name: str) -> Array:
    """Cropped, or with zeros at the end."""
    if n is None:
        return x
    wanted = whole_number(n, name)
    if wanted < 1:
        raise misfit(ShapeError, name, got=f"n={n}", needed="at least one element")
    have = x.shape[axis]
    if wanted < have:
        return slice_axes(x, {axis: (0, wanted, 1)})
    if wanted > have:
        return add_zeros(x, [(0, wanted - have if d == axis else 0) for d in range(x.ndim)])
    return x


def _both(
    a: Operandish, n: int | None, axis: int, norm: str | None, name: str, inverse: bool
) -> Array:
    x = _numbers(a, name)
    d = axis_of(axis, x.ndim, name)
    x = _fitted(x, n, d, name)
    return apply("fft", x, axis=d, inverse=inverse, norm=_norm(norm, name))


def fft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The discrete Fourier transform along an axis, of n elements: cropped, or with zeros.

    >>> ost.fft.fft([1.0, 2.0, 3.0, 4.0]) + 0.0
    Array([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j], dtype=complex128)
    """
    return _both(a, n, axis, norm, "fft", False)


def ifft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """Invert `fft`: return what it makes the transform of.

    >>> ost.fft.ifft([4.0, 0.0, 0.0, 0.0]) + 0.0
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex128)
    """
    return _both(a, n, axis, norm, "ifft", True)


def rfft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The first n // 2 + 1 frequencies of real numbers; the others are their conjugates.

    >>> ost.fft.rfft([1.0, 2.0, 3.0, 4.0]) + 0.0
    Array([10.+0.j, -2.+2.j, -2.+0.j], dtype=complex128)
    """
    x = _numbers(a, "rfft", True)
    d = axis_of(axis, x.ndim, "rfft")
    x = _fitted(x, n, d, "rfft")
    return apply("rfft", x, axis=d, norm=_norm(norm, "rfft"))


def _half(
    a: Operandish, n: int | None, axis: int, norm: str | None, name: str, mirrored: bool
) -> Array:
    x = as_array(a)
    x = x if x.dtype.kind == "c" else _as_complex(x, name)
    d = axis_of(axis, x.ndim, name)
    many = 2 * (x.shape[d] - 1) if n is None else whole_number(n, name)
    if many < 1:
        got = f"{many} elements along the axis"
        raise misfit(ShapeError, name, got=got, needed="at least one", do="n=")
    x = _fitted(x, many // 2 + 1, d, name)
    way = _norm(norm, name)
    if mirrored:
        return apply("irfft", conj(x), axis=d, n=many, norm=_OTHER[way])
    return apply("irfft", x, axis=d, n=many, norm=way)


def _as_complex(x: Array, name: str) -> Array:
    x = _numbers(x, name)
    return astype(x, _complex_of(x.dtype))


def irfft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The n real numbers of these frequencies: an even number of them, unless n says otherwise.

    >>> ost.fft.irfft([10.0, -2.0 + 2.0j, -2.0])
    Array([1., 2., 3., 4.], dtype=float64)
    """
    return _half(a, n, axis, norm, "irfft", False)


def hfft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The transform of numbers whose second half mirrors the first, which is real.

    >>> ost.fft.hfft([1.0, 0.5, 0.0])
    Array([2., 1., 0., 1.], dtype=float64)
    """
    return _half(a, n, axis, norm, "hfft", True)


def ihfft(a: Operandish, n: int | None = None, axis: int = -1, norm: Norm = None) -> Array:
    """The first half of what has this real transform.

    >>> ost.fft.ihfft([2.0, 1.0, 0.0, 1.0]) + 0.0
    Array([1. +0.j, 0.5+0.j, 0. +0.j], dtype=complex128)
    """
    back: Any = _OTHER[_norm(norm, "ihfft")]
    return conj(rfft(_numbers(a, "ihfft", True), n, axis, back))


# -- along several axes --------------------------------------------------------------------
def _axes(
    x: Array, s: Extents, axes: Sequence[int] | None, name: str, least: int = 0
) -> tuple[list[int | None], list[int]]:
    """Extents and axes, as NumPy completes what is not given."""
    if axes is None:
        many = x.ndim if s is None else len(s)
        if many > x.ndim:
            got = f"s={s} of {x.ndim} axes"
            raise misfit(ShapeError, name, got=got, needed="no more extents than axes")
        found = list(range(x.ndim - many, x.ndim))
    else:
        found = [axis_of(d, x.ndim, name) for d in axes]
    if len(found) < least:
        raise misfit(ArgumentError, name, got="no axes", needed="at least one")
    if s is None:
        return [None] * len(found), found
    if len(s) != len(found):
        raise misfit(ArgumentError, name, got=f"s={s} and axes={axes}", needed="as many of both")
    return [x.shape[d] if n == -1 else n for n, d in zip(s, found, strict=True)], found


def _several(
    a: Operandish, s: Extents, axes: Sequence[int] | None, norm: Norm, name: str, inverse: bool
) -> Array:
    x = as_array(a)
    extents, found = _axes(x, s, axes, name)
    for n, d in zip(reversed(extents), reversed(found), strict=True):
        x = _both(x, n, d, norm, name, inverse)
    return x


def _real_several(
    a: Operandish, s: Any, axes: Sequence[int] | None, norm: Norm, name: str
) -> Array:
    x = _numbers(a, name, True)
    extents, found = _axes(x, s, axes, name, least=1)
    x = rfft(x, extents[-1], found[-1], norm)
    return _several(x, extents[:-1], found[:-1], norm, name, False)


def _back_several(
    a: Operandish, s: Any, axes: Sequence[int] | None, norm: Norm, name: str
) -> Array:
    x = as_array(a)
    x = x if x.dtype.kind == "c" else _as_complex(x, name)
    extents, found = _axes(x, s, axes, name, least=1)
    if s is not None and s[-1] == -1:
        extents[-1] = 2 * (x.shape[found[-1]] - 1)
    x = _several(x, extents[:-1], found[:-1], norm, name, True)
    return irfft(x, extents[-1], found[-1], norm)


def fftn(
    a: Operandish, s: Extents = None, axes: Sequence[int] | None = None, norm: Norm = None
) -> Array:
    """The transform along several axes, all of them unless said otherwise.

    >>> ost.fft.fftn([[1.0, 2.0], [3.0, 4.0]]) + 0.0
    Array([[10.+0.j, -2.+0.j],
           [-4.+0.j,  0.+0.j]], dtype=complex128)
    """
    return _several(a, s, axes, norm, "fftn", False)


def ifftn(
    a: Operandish, s: Extents = None, axes: Sequence[int] | None = None, norm: Norm = None
) -> Array:
    """Invert `fftn`: return what it makes the transform of.

    >>> ost.fft.ifftn([[10.0, -2.0], [-4.0, 0.0]]) + 0.0
    Array([[1.+0.j, 2.+0.j],
           [3.+0.j, 4.+0.j]], dtype=complex128)
    """
    return _several(a, s, axes, norm, "ifftn", True)


def rfftn(
    a: Operandish, s: Extents = None, axes: Sequence[int] | None = None, norm: Norm = None
) -> Array:
    """Transform real numbers along several axes: of the last axis one half.

    >>> ost.fft.rfftn([[1.0, 2.0], [3.0, 4.0]]) + 0.0
    Array([[10.+0.j, -2.+0.j],
           [-4.+0.j,  0.+0.j]], dtype=complex128)
    """
    return _real_several(a, s, axes, norm, "rfftn")


def irfftn(
    a: Operandish, s: Extents = None, axes: Sequence[int] | None = None, norm: Norm = None
) -> Array:
    """Invert `rfftn`: return what it makes the transform of; `s` says how many there were.

    >>> ost.fft.irfftn([[10.0, -2.0], [-4.0, 0.0]])
    Array([[1., 2.],
           [3., 4.]], dtype=float64)
    """
    return _back_several(a, s, axes, norm, "irfftn")


def fft2(
    a: Operandish, s: Extents = None, axes: Sequence[int] = (-2, -1), norm: Norm = None
) -> Array:
    """The transform along two axes.

    >>> ost.fft.fft2([[1.0, 2.0], [3.0, 4.0]]) + 0.0
    Array([[10.+0.j, -2.+0.j],
           [-4.+0.j,  0.+0.j]], dtype=complex128)
    """
    return _several(a, s, axes, norm, "fft2", False)


def ifft2(
    a: Operandish, s: Extents = None, axes: Sequence[int] = (-2, -1), norm: Norm = None
) -> Array:
    """Invert `fft2`: return what it makes the transform of.

    >>> ost.fft.ifft2([[10.0, -2.0], [-4.0, 0.0]]) + 0.0
    Array([[1.+0.j, 2.+0.j],
           [3.+0.j, 4.+0.j]], dtype=complex128)
    """
    return _several(a, s, axes, norm, "ifft2", True)


def rfft2(
    a: Operandish, s: Extents = None, axes: Sequence[int] = (-2, -1), norm: Norm = None
) -> Array:
    """Transform real numbers along two axes: of the last axis one half.

    >>> ost.fft.rfft2([[1.0, 2.0], [3.0, 4.0]]) + 0.0
    Array([[10.+0.j, -2.+0.j],
           [-4.+0.j,  0.+0.j]], dtype=complex128)
    """
    return _real_several(a, s, axes, norm, "rfft2")


def irfft2(
    a: Operandish, s: Extents = None, axes: Sequence[int] = (-2, -1), norm: Norm = None
) -> Array:
    """Invert `rfft2`: return what it makes the transform of; `s` says how many there were.

    >>> ost.fft.irfft2([[10.0, -2.0], [-4.0, 0.0]])
    Array([[1., 2.],
           [3., 4.]], dtype=float64)
    """
    return _back_several(a, s, axes, norm, "irfft2")


# -- frequencies ---------------------------------------------------------------------------
def _places(n: int, d: float, dtype: DTypeLike | None, first: int, many: int) -> Array:
    kind = float64 if dtype is None else as_dtype(dtype)
    k = arange(first, first + many, dtype=int64)
    return astype(k * (1.0 / (n * d)), kind)


def _count(n: int, name: str) -> int:
    many = whole_number(n, name)
    if many < 1:
        raise misfit(ArgumentError, name, got=f"n={n}", needed="at least one")
    return many


def fftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: str | None = None
) -> Array:
    """The frequency of each element of a transform of n samples that are d apart.

    >>> ost.fft.fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float64)
    """
    check_device("fftfreq", device)
    many = _count(n, "fftfreq")
    return roll(_places(many, d, dtype, -(many // 2), many), -(many // 2))


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike | None = None, device: str | None = None
) -> Array:
    """Return the frequencies of `rfft`.

    >>> ost.fft.rfftfreq(4)
    Array([0.  , 0.25, 0.5 ], dtype=float64)
    """
    check_device("rfftfreq", device)
    many = _count(n, "rfftfreq")
    return _places(many, d, dtype, 0, many // 2 + 1)


def _shifted(x: Operandish, axes: int | Sequence[int] | None, name: str, sign: int) -> Array:
    given = as_array(x)
    asked = range(given.ndim) if axes is None else listed(axes, name)
    found = [axis_of(d, given.ndim, name) for d in asked]
    halves = [sign * (given.shape[d] // 2) for d in found]
    return roll(given, halves, found) if found else given


def fftshift(x: Operandish, axes: int | Sequence[int] | None = None) -> Array:
    """With the frequency 0 in the middle.

    >>> ost.fft.fftshift([0, 1, -2, -1])
    Array([-2, -1,  0,  1], dtype=int64)
    """
    return _shifted(x, axes, "fftshift", 1)


def ifftshift(x: Operandish, axes: int | Sequence[int] | None = None) -> Array:
    """Undo `fftshift`.

    >>> ost.fft.ifftshift([-2, -1, 0, 1])
    Array([ 0,  1, -2, -1], dtype=int64)
    """
    return _shifted(x, axes, "ifftshift", -1)
