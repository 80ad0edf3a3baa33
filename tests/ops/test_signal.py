"""Signals: what SciPy gives, or a dozen lines of NumPy; there and back; slopes; parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, ShapeError
from tests.sessions import use

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 203))


def hann(n: int) -> Any:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


def stft(x: Any, n: int, hop: int, length: int, center: bool) -> Any:
    """As PyTorch's is written down."""
    window = np.zeros(n)
    window[(n - length) // 2 :][:length] = hann(length)
    x = np.pad(x, [(0, 0), (n // 2, n // 2)], "reflect") if center else x
    count = 1 + (x.shape[-1] - n) // hop
    return np.stack([np.fft.rfft(x[:, k * hop :][:, :n] * window) for k in range(count)], -1)


@pytest.mark.parametrize(("n", "hop", "length", "center"), [
    (16, 4, 16, True), (16, 5, 10, True), (15, 7, 15, False), (8, 8, 8, True), (9, 12, 4, False),
])  # fmt: skip
@pytest.mark.parametrize("workers", [1, 3])
def test_short_transforms(n: int, hop: int, length: int, center: bool, workers: int) -> None:
    with use((workers,)):
        f = ost.compile(lambda x: ost.signal.stft(x, n, hop=hop, length=length, center=center))
        found = np.asarray(f(ost.asarray(X, split=0)))
        np.testing.assert_allclose(found, stft(X, n, hop, length, center), 1e-12, 1e-12)


@pytest.mark.parametrize(
    ("n", "hop", "window"), [(16, 4, "hann"), (16, 5, "hamming"), (20, 10, "blackman")]
)
def test_and_back(n: int, hop: int, window: str) -> None:
    s = ost.signal.stft(X, n, hop=hop, window=window)
    found = np.asarray(ost.signal.istft(s, hop=hop, window=window, samples=203))
    last = (203 // hop) * hop  # what lies behind the last frame's middle is in half of one
    np.testing.assert_allclose(found[:, :last], X[:, :last], 1e-9, 1e-9)
    single = ost.signal.stft(X.astype(np.float32), n, hop=hop)
    assert (single.dtype, ost.signal.istft(single, hop=hop).dtype) == (np.complex64, np.float32)


def test_short_transforms_are_scipys() -> None:
    signal = pytest.importorskip("scipy.signal")
    made = signal.ShortTimeFFT(hann(16), 4, 1.0, phase_shift=None)
    wanted = made.stft(X, p0=2, p1=40)  # whose frames lie around 0, 4, 8, ...
    found = np.asarray(ost.signal.stft(X, 16, hop=4, center=False))
    np.testing.assert_allclose(found[..., :38], wanted, 1e-11, 1e-11)


@pytest.mark.parametrize("type", [2, 3])
@pytest.mark.parametrize("norm", [None, "ortho"])
@pytest.mark.parametrize("axis", [0, -1])
def test_cosines_are_scipys(type: int, norm: Any, axis: int) -> None:
    fft = pytest.importorskip("scipy.fft")
    for n in (1, 2, 7, 16):
        x = RNG.normal(size=(n, n + 1))
        for ours, theirs in ((ost.signal.dct, fft.dct), (ost.signal.idct, fft.idct)):
            found = np.asarray(ours(x, type, axis=axis, norm=norm))
            np.testing.assert_allclose(found, theirs(x, type, axis=axis, norm=norm), 1e-11, 1e-11)


@pytest.mark.parametrize("window", ["hann", "hamming", "blackman"])
@pytest.mark.parametrize("periodic", [True, False])
def test_windows_are_scipys(window: str, periodic: bool) -> None:
    signal = pytest.importorskip("scipy.signal")
    for n in (1, 2, 9):
        wanted = signal.get_window(window, n, fftbins=periodic)
        found = np.asarray(ost.signal.get_window(window, n, periodic=periodic))
        np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)


def test_mel_filters() -> None:
    """Torchaudio's, as its documentation says them: each peak is the next one's foot."""
    for scale in ("htk", "slaney"):
        found = np.asarray(
            ost.signal.mel_filters(20, 512, 16_000, low=60, scale=scale, dtype=np.float64)
        )
        assert found.shape == (20, 257)
        bins = np.linspace(0, 8000, 257)
        inner = (bins > bins[found[0].argmax()]) & (bins < bins[found[-1].argmax()])
        np.testing.assert_allclose(found.sum(0)[inner], 1, 1e-9)
    mels = 2595 * np.log10(1 + np.array([60.0, 8000.0]) / 700)
    peaks = 700 * (10 ** (np.linspace(*mels, 22)[1:-1] / 2595) - 1)
    found = np.asarray(ost.signal.mel_filters(20, 512, 16_000, low=60))
    assert np.abs(bins[found.argmax(1)] - peaks).max() < 32
    area = np.asarray(ost.signal.mel_filters(20, 4096, 16_000, area=True)).sum(1) * 16_000 / 4096
    np.testing.assert_allclose(area, 1, 1e-2)
    slaney = ost.signal.mel_filters(3, 64, 8000, scale="slaney", high=1000, dtype=np.float64)
    assert np.asarray(slaney).argmax(1).tolist() == [2, 4, 6], "up to 1 kHz the scale is even"


def test_a_tone_is_where_it_is_heard() -> None:
    rate = 16_000
    tone = np.sin(2 * np.pi * 1000 / rate * np.arange(rate // 4))
    loud = np.asarray(ost.signal.mel_spectrogram(tone, rate, mels=40, n_fft=512, hop=160))
    filters = np.asarray(ost.signal.mel_filters(40, 512, rate))
    assert loud.shape == (40, 26)
    assert set(loud[:, 2:-2].argmax(0)) == {filters[:, 32].argmax()}
    power = np.abs(stft(tone[None], 512, 160, 512, True)[0])
    found = ost.signal.mel_spectrogram(tone, rate, mels=40, n_fft=512, hop=160, power=1)
    np.testing.assert_allclose(np.asarray(found), filters @ power, 1e-5, 1e-6)


def test_slopes() -> None:
    functions = {
        "stft": lambda x: ost.sum(ost.abs(ost.signal.stft(x, 8, hop=3)) ** 2 * 0.3),
        "there and back": lambda x: ost.sum(ost.signal.istft(ost.signal.stft(x, 8)) ** 3),
        "mel": lambda x: ost.sum(
            ost.log(ost.signal.mel_spectrogram(x, 8000, n_fft=32, mels=4) + 1)
        ),
        "cosines": lambda x: ost.sum(ost.signal.dct(x, norm="ortho") ** 3 + ost.signal.idct(x, 3)),
    }
    x, way = RNG.normal(size=40), RNG.normal(size=40)
    for name, f in functions.items():
        slope = float(np.asarray(ost.grad(f)(ost.asarray(x))) @ way)
        step = 1e-5
        near = [float(f(ost.asarray(x + sign * step * way))) for sign in (1, -1)]
        assert slope == pytest.approx((near[0] - near[1]) / (2 * step), rel=2e-5), name


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="got 'round'; needed 'hann', 'hamming', 'blackman'"):
        ost.signal.get_window("round", 3)
    with pytest.raises(ShapeError, match=r"got shape \(3,\); needed at least 5 samples"):
        ost.signal.stft([1.0, 2.0, 3.0], 8)
    with pytest.raises(ShapeError, match=r"got float64\[3\]; needed complex numbers"):
        ost.signal.istft([1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match="got type=1, norm=None; needed type 2 or 3"):
        ost.signal.dct([1.0], 1)
    with pytest.raises(ArgumentError, match="scale='bark'"):
        ost.signal.mel_filters(3, 8, 8000, scale="bark")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one axis of at most n_fft=4 samples"):
        ost.signal.stft(X, 4, window=np.ones(5))
