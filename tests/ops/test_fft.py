"""Fourier transforms: what NumPy gives for all that may be said, in any layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from ostinato.ops.cpu.kernels import fft_libraries as kernels
from ostinato.ops.cpu.libraries import scipy_fft

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, ShapeError
from tests.sessions import use

R = np.random.default_rng(1)
X = R.normal(size=(6, 5))
C = X + 1j * R.normal(size=(6, 5))
LINES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
PLANES = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")


def given(name: str) -> np.ndarray[Any, Any]:
    return X if name.startswith(("rfft", "ihfft")) else C


def check(name: str, x: Any, *args: Any, **options: Any) -> None:
    wanted = getattr(np.fft, name)(x, *args, **options)
    found = getattr(ost.fft, name)(ost.asarray(x), *args, **options)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(getattr(np.fft, name)(ost.asarray(x), *args, **options), found)


@pytest.mark.parametrize("name", LINES)
def test_along_an_axis(name: str) -> None:
    with use():
        for n, axis, norm in itertools.product((None, 3, 9), (0, -1), ("ortho", "forward")):
            check(name, given(name), n, axis, norm)


@pytest.mark.parametrize("name", PLANES)
def test_along_several_axes(name: str) -> None:
    with use():
        check(name, given(name))
        check(name, given(name), s=(4, 7), axes=(0, 1), norm="ortho")
        check(name, given(name), axes=(1, 0))
        check(name, given(name), s=(-1, 3), axes=(1, 0))


def test_dtypes_are_numpys() -> None:
    with use():
        for dtype in ("bool", "int16", "float32", "complex64"):
            check("fft", np.ones(4, dtype))
        assert ost.fft.fft(ost.ones(4, dtype=ost.float16)).dtype == ost.complex64


def test_frequencies_and_shifts() -> None:
    with use():
        for n in (1, 2, 5, 8):
            for name in ("fftfreq", "rfftfreq"):
                found = getattr(ost.fft, name)(n, 0.3)
                np.testing.assert_array_equal(found, getattr(np.fft, name)(n, 0.3))
            for name, axes in itertools.product(("fftshift", "ifftshift"), (None, 0, (1,))):
                x = np.arange(3 * n).reshape(n, 3)
                found = getattr(ost.fft, name)(ost.asarray(x), axes)
                np.testing.assert_array_equal(found, getattr(np.fft, name)(x, axes))
        assert ost.fft.fftfreq(4, dtype=ost.float32).dtype == ost.float32


def test_a_plane_in_parts_is_exchanged_between_its_axes() -> None:
    """What a worker has whole it transforms; parts change hands once, and nobody gathers all."""
    x = R.normal(size=(64, 32))
    with use((2,)):
        f = ost.compile(lambda x: ost.fft.fft2(x))
        found = f(ost.asarray(x, split=0))
        np.testing.assert_allclose(np.asarray(found), np.fft.fft2(x), atol=1e-10)
        moved = [n.op for n in f.plan.program.graph.nodes]
        assert moved.count("all_to_all") == 1
        assert "all_gather" not in moved


def test_threads_share_lines_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = (R.normal(size=(40, 30)) + 1j).astype(np.complex64)
    asked: list[tuple[int, ...]] = []

    def transform(x: Any, axis: int, out: Any) -> None:
        asked.append(x.shape)
        np.fft.fft(x, axis=axis, out=out)

    monkeypatch.setattr(kernels, "MIN_THREAD_ELEMENTS", 100)
    for axis, shapes in ((1, {(13, 30), (14, 30)}), (0, {(40, 10)})):
        out = np.empty_like(x)
        asked.clear()
        kernels.shared((x, out), axis, 3, transform)(x, out)
        assert len(asked) == 3
        assert set(asked) == shapes
        np.testing.assert_array_equal(out, np.fft.fft(x, axis=axis))

    def fails(x: Any, axis: int, out: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        kernels.shared((x, x), 1, 2, fails)(x, x)


@pytest.mark.parametrize("way", ["direct", "copied", "no SciPy"])
def test_with_and_without_scipy(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A line has the same bits beside others and alone; and all agree with NumPy."""
    if way == "no SciPy":
        monkeypatch.setattr(scipy_fft, "function", lambda name: None)
    else:
        pytest.importorskip("scipy.fft")
        monkeypatch.setattr(scipy_fft, "function", scipy_fft.function.__wrapped__)
    if way == "copied":  # what lies below SciPy's own names takes other arguments
        monkeypatch.setattr(scipy_fft, "_FORMS", dict.fromkeys(scipy_fft._FORMS, "good_size"))
    x = R.normal(size=(5, 30))
    for name, given, how in (
        ("fft", x.astype(np.complex64), {"norm": "backward"}),
        ("fft", x, {"norm": "ortho"}),
        ("ifft", x + 1j, {"norm": "ortho"}),
        ("rfft", x, {"norm": "forward"}),
        ("irfft", np.fft.rfft(x), {"norm": "forward", "n": 31}),
    ):
        wanted = getattr(np.fft, name)(given, axis=1, **how)
        out, alone = np.empty_like(wanted), np.empty_like(wanted[:1])
        kernels.transforming((given, out), 1, 2, name, **how)(given, out)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
        kernels.transforming((given[2:3], alone), 1, 2, name, **how)(given[2:3], alone)
        assert alone.tobytes() == out[2:3].tobytes()
    found = scipy_fft.function("fft")
    assert found.__name__ == way if found else way == "no SciPy"


def test_under_compile_vmap_and_gradients() -> None:
    with use():

        def low(x: Any) -> Any:
            f = ost.fft.rfft(x)
            keep = ost.fft.rfftfreq(x.shape[-1]) < 0.25
            return ost.fft.irfft(f * keep, x.shape[-1])

        x = ost.asarray(X)
        np.testing.assert_allclose(ost.vmap(low)(x), ost.compile(low)(x))
        slope = ost.jacobian(low)(x[0])
        np.testing.assert_allclose(slope @ x[0], low(x[0]), atol=1e-12)  # a linear map
        ost.jvp(low, (x[0],), (x[1],))
        np.testing.assert_allclose(ost.jvp(low, (x[0],), (x[1],))[1], low(x[1]), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ost.fft.fft(X, 0), ShapeError, "at least one element"),
        (lambda: ost.fft.fft(ost.zeros((3, 0))), ShapeError, "at least one element along the axis"),
        (lambda: ost.fft.rfft(C), DTypeError, "rfft .*got complex128.* use fft"),
        (lambda: ost.fft.irfft(C[:, :1]), ShapeError, "0 elements"),
        (lambda: ost.fft.fft(X, norm="best"), ArgumentError, "norm='best'"),
        (lambda: ost.fft.fftn(X, s=(1, 2, 3)), ShapeError, "no more extents than axes"),
        (lambda: ost.fft.fftn(X, s=(1,), axes=(0, 1)), ArgumentError, "as many of both"),
        (lambda: ost.fft.fftfreq(0), ArgumentError, "n=0"),
        (lambda: ost.fft.fftt, AttributeError, "nearest name is ostinato.fft.fft"),
    ],
)
def test_what_is_refused(call: Any, error: Any, says: str) -> None:
    with use(), pytest.raises(error, match=says):
        call()
