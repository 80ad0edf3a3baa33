"""Sounds and other signals: short-time Fourier transforms and back, mel filters, cosine transforms, windows.

All of it is made of transforms (`ost.fft`), products and views: it has gradients, and its arrays may be in
parts. Frames are steps of `hop` samples that lie beside each other, so nothing is gathered."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from .array.arithmetic import abs as absolute
from .array.arithmetic import imag, real, square
from .array.casts import astype
from .array.concatenation import add_zeros, concat
from .array.contraction import matmul
from .array.creation import asarray
from .array.elementwise import where
from .array.padding import pad
from .array.shape import axis_of, broadcast_to, moveaxis, reshape, swapaxes, whole_number
from .array.slicing import flip, slice_axes
from .array.window_functions import blackman, hamming, hanning
from .core.apply import as_array
from .core.array import Array
from .core.array_methods import Operandish
from .core.spec import DType, DTypeLike, complex64, complex128, float32, real_of
from .core.spelling import missing
from .core.user_line import misfit
from .fft import irfft, rfft

__all__ = ["dct", "get_window", "idct", "istft", "mel_filters", "mel_spectrogram", "stft"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("signal")

WINDOWS: dict[str, Callable[[int], Array]] = {
    "hann": hanning,
    "hamming": hamming,
    "blackman": blackman,
}
Scale = Literal["htk", "slaney"]
Norm = Literal["ortho"] | None


# -- windows and frames ------------------------------------------------------------------------
def get_window(name: str, n: int, *, periodic: bool = True) -> Array:
    """A window of n samples, "hann", "hamming" or "blackman": the first of the next one would follow its last,
    or it is symmetric.

    >>> ost.signal.get_window("hann", 4)
    Array([0. , 0.5, 1. , 0.5], dtype=float64)
    """
    if name not in WINDOWS:
        needed = ", ".join(map(repr, WINDOWS))
        raise misfit(ArgumentError, "get_window", got=f"{name!r}", needed=needed)
    count = whole_number(n, "get_window", 1)
    made = WINDOWS[name](count + (periodic and count > 1))
    return slice_axes(made, {0: (0, count, 1)})


def _window(window: str | Operandish, length: int, n_fft: int, dtype: DType, who: str) -> Array:
    """A window with zeros around it, as long as a frame."""
    found = get_window(window, length) if isinstance(window, str) else as_array(window)
    if found.ndim != 1 or found.shape[0] > n_fft:
        got = f"a window of shape {found.shape}"
        raise misfit(ShapeError, who, got=got, needed=f"one axis of at most n_fft={n_fft} samples")
    left = (n_fft - found.shape[0]) // 2
    right = n_fft - found.shape[0] - left
    return astype(add_zeros(found, [(left, right)]) if left or right else found, dtype)


def _frames(x: Array, n_fft: int, hop: int) -> Array:
    """The frames along the last axis: each is so many steps of `hop` samples, one beside the other."""
    *outer, length = x.shape
    count, steps = 1 + (length - n_fft) // hop, -(-n_fft // hop)
    rows = count + steps - 1
    missing = max(0, rows * hop - length)
    x = add_zeros(x, [*[(0, 0)] * len(outer), (0, missing)]) if missing else x
    x = slice_axes(x, {len(outer): (0, rows * hop, 1)})
    x = reshape(x, (*outer, rows, hop))
    found = [slice_axes(x, {len(outer): (k, count, 1)}) for k in range(steps)]
    made = concat(found, axis=-1) if steps > 1 else found[0]
    return slice_axes(made, {len(outer) + 1: (0, n_fft, 1)})


def _overlapped(frames: Array, hop: int) -> Array:
    """The sums of what frames say of each sample."""
    *outer, count, n_fft = frames.shape
    steps, before = -(-n_fft // hop), [(0, 0)] * len(outer)
    frames = add_zeros(frames, [*before, (0, 0), (0, steps * hop - n_fft)])
    split = reshape(frames, (*outer, count, steps, hop))
    axis = len(outer) + 1
    total: Array | None = None
    for k in range(steps):
        part = reshape(slice_axes(split, {axis: (k, 1, 1)}), (*outer, count, hop))
        part = add_zeros(part, [*before, (k, steps - 1 - k), (0, 0)])
        total = part if total is None else total + part
    assert total is not None
    whole = reshape(total, (*outer, (count + steps - 1) * hop))
    return slice_axes(whole, {len(outer): (0, (count - 1) * hop + n_fft, 1)})


def _floats(x: Operandish) -> Array:
    found = as_array(x)
    return found if found.dtype.kind == "f" and found.dtype.itemsize > 2 else astype(found, float32)


def _steps(n_fft: int, hop: int | None, length: int | None, who: str) -> tuple[int, int, int]:
    n_fft = whole_number(n_fft, who, 1)
    length = n_fft if length is None else whole_number(length, who, 1)
    return n_fft, length // 4 or 1 if hop is None else whole_number(hop, who, 1), length


def stft(
    x: Operandish,
    n_fft: int,
    *,
    hop: int | None = None,
    length: int | None = None,
    window: str | Operandish = "hann",
    center: bool = True,
) -> Array:
    """The transforms of frames of n_fft samples, one each `hop` (a quarter of a window): `(..., frequencies,
    frames)` of the signals along the last axis, as PyTorch's. `window`: a name, or so many numbers, of
    `length` samples (n_fft), in the middle of a frame. `center`: frames begin half of one earlier, and
    signals are mirrored at their ends.

    >>> ost.abs(ost.signal.stft(ost.ones(8), 4, hop=4))
    Array([[2., 2., 2.],
           [1., 1., 1.],
           [0., 0., 0.]], dtype=float64)
    """
    n_fft, step, length = _steps(n_fft, hop, length, "stft")
    found = _floats(x)
    least = n_fft // 2 + 1 if center else n_fft
    if found.ndim < 1 or found.shape[-1] < least:
        got = f"shape {found.shape}"
        raise misfit(ShapeError, "stft", got=got, needed=f"at least {least} samples")
    if center:
        found = pad(found, [*[(0, 0)] * (found.ndim - 1), (n_fft // 2, n_fft // 2)], "reflect")
    frames = _frames(found, n_fft, step)
    return swapaxes(rfft(frames * _window(window, length, n_fft, found.dtype, "stft")), -1, -2)


def istft(
    s: Operandish,
    *,
    hop: int | None = None,
    length: int | None = None,
    window: str | Operandish = "hann",
    center: bool = True,
    samples: int | None = None,
) -> Array:
    """The signal whose `stft` is nearest: frames are added where they overlap, and divided by what their
    windows squared are together. `samples`: how many it has.

    >>> x = ost.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    >>> ost.signal.istft(ost.signal.stft(x, 4))
    Array([1., 2., 3., 4., 5., 6., 7., 8.], dtype=float64)
    """
    found = as_array(s)
    if found.ndim < 2 or found.dtype.kind != "c" or found.shape[-2] < 2:
        got = f"{found.dtype.name}{list(found.shape)}"
        needed = "complex numbers of (..., frequencies, frames)"
        raise misfit(ShapeError, "istft", got=got, needed=needed)
    n_fft, step, length = _steps(2 * (found.shape[-2] - 1), hop, length, "istft")
    shape = _window(window, length, n_fft, real_of(found.dtype), "istft")
    made = _overlapped(irfft(swapaxes(found, -1, -2), n_fft) * shape, step)
    weight = _overlapped(broadcast_to(square(shape), (found.shape[-1], n_fft)), step)
    made = made / where(weight > 1e-11, weight, 1)
    begin = n_fft // 2 if center else 0
    end = made.shape[-1] - begin if samples is None else begin + whole_number(samples, "istft", 1)
    if end > made.shape[-1]:
        made = add_zeros(made, [*[(0, 0)] * (made.ndim - 1), (0, end - made.shape[-1])])
    return slice_axes(made, {made.ndim - 1: (begin, end - begin, 1)})


# -- mel ---------------------------------------------------------------------------------------
def _mels(hertz: np.ndarray | float, scale: Scale) -> np.ndarray:
    if scale == "htk":
        return np.asarray(2595 * np.log10(1 + np.asarray(hertz) / 700))
    low = np.asarray(hertz) * 3 / 200  # up to 1 kHz, then 27 each 6.4-fold
    return np.where(low < 15, low, 15 + 27 * np.log(np.maximum(low, 15) / 15) / math.log(6.4))


def _hertz(mels: np.ndarray, scale: Scale) -> np.ndarray:
    if scale == "htk":
        return np.asarray(700 * (10 ** (mels / 2595) - 1))
    return np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * math.log(6.4) / 27))


def mel_filters(
    mels: int,
    n_fft: int,
    rate: float,
    *,
    low: float = 0.0,
    high: float | None = None,
    scale: Scale = "htk",
    area: bool = False,
    dtype: DTypeLike = float32,
) -> Array:
    """Triangles over the frequencies of a transform of n_fft samples, at equal steps of the mel scale
    (HTK's, or Slaney's): `(mels, frequencies)`. `rate`: samples a second; `low`, `high`: in hertz (0, half
    of the rate); `area`: each has the same area, as Slaney's, and not the same height.

    >>> ost.signal.mel_filters(2, 8, 8000.0)
    Array([[0.    , 0.6759, 0.    , 0.    , 0.    ],
           [0.    , 0.3241, 0.9055, 0.4528, 0.    ]], dtype=float32)
    """
    count, n_fft = whole_number(mels, "mel_filters", 1), whole_number(n_fft, "mel_filters", 2)
    top = rate / 2 if high is None else high
    if scale not in ("htk", "slaney") or not 0 <= low < top:
        got = f"scale={scale!r}, low={low}, high={top}"
        needed = "'htk' or 'slaney', and 0 <= low < high"
        raise misfit(ArgumentError, "mel_filters", got=got, needed=needed)
    edges = np.linspace(_mels(low, scale), _mels(top, scale), count + 2)
    points = _hertz(edges, scale)
    bins = np.arange(n_fft // 2 + 1) * (rate / n_fft)
    up = (bins - points[:-2, None]) / np.diff(points)[:-1, None]
    down = (points[2:, None] - bins) / np.diff(points)[1:, None]
    made = np.maximum(0, np.minimum(up, down))
    if area:
        made *= (2 / (points[2:] - points[:-2]))[:, None]
    return asarray(made, dtype=dtype)


def mel_spectrogram(
    x: Operandish,
    rate: float,
    *,
    n_fft: int = 400,
    hop: int | None = None,
    length: int | None = None,
    mels: int = 80,
    power: float = 2.0,
    low: float = 0.0,
    high: float | None = None,
    scale: Scale = "htk",
    area: bool = False,
    center: bool = True,
) -> Array:
    """How loud signals are in each mel band and frame: `(..., mels, frames)`, of amplitudes (`power` 1)
    or their squares (2).

    >>> tone = ost.sin(ost.arange(1600) * (2 * np.pi / 8))
    >>> ost.signal.mel_spectrogram(tone, 8000, mels=8).sum(1).argmax()
    Array(3, dtype=int64)
    """
    s = stft(x, n_fft, hop=hop, length=length, center=center)
    loud = square(real(s)) + square(imag(s)) if power == 2 else absolute(s) ** power
    filters = mel_filters(
        mels, n_fft, rate, low=low, high=high, scale=scale, area=area, dtype=loud.dtype
    )
    return matmul(filters, loud)


# -- cosines -----------------------------------------------------------------------------------
def dct(x: Operandish, type: int = 2, *, axis: int = -1, norm: Norm = None) -> Array:
    """The cosine transform along an axis, of type 2 or 3, as SciPy's: `norm="ortho"` keeps lengths.

    >>> ost.signal.dct([1.0, 2.0, 3.0])
    Array([12.    , -3.4641, -0.    ], dtype=float64)
    """
    return _cosines(x, type, axis, norm, False, "dct")


def idct(x: Operandish, type: int = 2, *, axis: int = -1, norm: Norm = None) -> Array:
    """Back from `dct` of this type.

    >>> ost.signal.idct(ost.signal.dct([1.0, 2.0, 3.0]))
    Array([1., 2., 3.], dtype=float64)
    """
    return _cosines(x, type, axis, norm, True, "idct")


def _cosines(x: Operandish, type: int, axis: int, norm: Norm, back: bool, who: str) -> Array:
    if type not in (2, 3) or norm not in (None, "ortho"):
        got = f"type={type!r}, norm={norm!r}"
        raise misfit(ArgumentError, who, got=got, needed="type 2 or 3, and norm None or 'ortho'")
    found = _floats(x)
    d = axis_of(axis, found.ndim, who)
    line, n = moveaxis(found, d, -1), found.shape[d]
    scale = np.full(n, math.sqrt(0.5 / n))
    second = (type == 2) != back
    scale[0] *= math.sqrt(0.5 if second else 2)
    factors = asarray(scale, dtype=line.dtype)
    if norm is not None and not second:
        line = line * factors
    made = _second(line, n) if second else _third(line, n)
    if norm is not None and second:
        made = made * factors
    return moveaxis(made / (2 * n) if norm is None and back else made, -1, d)


def _turns(n: int, sign: int, dtype: DType) -> Array:
    """Quarter turns of n frequencies, as complex numbers."""
    narrow = complex64 if dtype == float32 else complex128
    return asarray(np.exp(np.arange(n) * (sign * 0.5j * math.pi / n)), dtype=narrow)


def _second(x: Array, n: int) -> Array:
    """By the transform of a line and its mirror."""
    both = rfft(concat([x, flip(x, axis=-1)], axis=-1))
    return real(slice_axes(both, {x.ndim - 1: (0, n, 1)}) * _turns(n, -1, x.dtype))


def _third(x: Array, n: int) -> Array:
    whole = add_zeros(x * _turns(n, 1, x.dtype), [*[(0, 0)] * (x.ndim - 1), (0, 1)])
    return slice_axes(irfft(whole, 2 * n) * (2 * n), {x.ndim - 1: (0, n, 1)})
