"""Operators of signals."""

from __future__ import annotations

from typing import Any

import numpy as np

import ostinato as ost

from .operators import NodeCall, Value, axes_of, cast, dtype_of, known, number, operator, ours


def _complex(x: Any) -> Any:
    """Complex numbers whose parts are along the last axis, or real parts alone."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + x[..., 1] * 1j


def _parts(y: Any, dtype: np.dtype[Any]) -> Any:
    return cast(ost.stack([ost.real(y), ost.imag(y)], axis=-1), dtype)


@operator("DFT", reads=[1, 2])
def dft(at: NodeCall, x: Value, length: Value = None, axis: Value = None) -> Value:
    x = ours(x)
    d = at.get("axis", -2) if axis is None else int(number(axis))
    if at.version < 20:
        d = at["axis"]
    (d,) = axes_of([d], x.ndim)
    n = x.shape[d] if length is None else int(number(length))
    inverse, half = bool(at["inverse"]), bool(at["onesided"])
    if inverse and half:
        y = ost.fft.irfft(_complex(x), length and n, axis=d)
        return cast(ost.expand_dims(y, -1), x.dtype)
    y = (ost.fft.ifft if inverse else ost.fft.fft)(_complex(x), n, axis=d)
    if half:
        y = y[(slice(None),) * d + (slice(0, n // 2 + 1),)]
    return _parts(y, x.dtype)


@operator("STFT", reads=[1, 3])
def stft(at: NodeCall, x: Value, step: Value, window: Value = None, length: Value = None) -> Value:
    x, hop = ours(x), int(number(step))
    n = int(number(length)) if length is not None else window.shape[0]
    count = (x.shape[1] - n) // hop + 1
    places = np.arange(count)[:, None] * hop + np.arange(n)
    frames = ost.take(x, places.reshape(-1), axis=1).reshape((x.shape[0], count, n, x.shape[2]))
    values = _complex(frames)
    values = values if window is None else values * window
    y = ost.fft.fft(values, axis=2)
    return _parts(y[:, :, : n // 2 + 1] if at["onesided"] else y, x.dtype)


@operator("MelWeightMatrix", reads=[0, 1, 2, 3, 4])
def mel_weights(
    at: NodeCall, bins: Value, length: Value, rate: Value, low: Value, high: Value
) -> Value:
    """Triangles over the spectrum, on ONNX's scale of whole bins."""
    count, n = int(number(bins)), int(number(length))
    ends = [2595 * np.log10(1 + float(number(edge)) / 700) for edge in (low, high)]
    mels = np.arange(count + 2) * ((ends[1] - ends[0]) / (count + 2)) + ends[0]
    hertz = 700 * (np.power(10, mels / 2595) - 1)
    at_bin = ((n + 1) * hertz // known(rate)).astype(np.int64)
    rows = np.arange(n // 2 + 1)[:, None]
    first, centre, last = at_bin[:-2], at_bin[1:-1], at_bin[2:]
    up = (rows - first) / np.maximum(centre - first, 1)
    down = (last - rows) / np.maximum(last - centre, 1)
    rising = (rows >= first) & (rows <= centre)
    falling = (rows >= centre) & (rows < last)
    same = (rows == centre) & (first == centre)
    made = np.where(same, 1, np.where(falling, down, np.where(rising, up, 0)))
    return made.astype(dtype_of(at["output_datatype"]))
