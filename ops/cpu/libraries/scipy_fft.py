"""SciPy's Fourier transforms, where SciPy is installed: `pip install scipy`.

What `scipy.fft` has for all makes each result in new memory, whose pages take as long as the
transform. The module below it writes where it is told; as it is not for all, it is tried first."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

_FORMS = {"fft": "c2c", "ifft": "c2c", "rfft": "r2c", "irfft": "c2r"}
_BEFORE = {"backward": 0, "ortho": 1, "forward": 2}  # what results are divided by: 1, √n, n


@lru_cache
def function(name: str) -> Callable[..., None] | None:
    """One of SciPy's as `(x, out, axis=, workers=, norm=)`, which is looked for when the first
    transform is made."""
    try:
        known: Callable[..., Any] = getattr(import_module("scipy.fft"), name)
    except ImportError:
        return None
    try:
        module = import_module("scipy.fft._pocketfft.pypocketfft")
        direct = _direct(getattr(module, _FORMS[name]), name)
        if _same(direct, known, name):
            return direct
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        pass  # another SciPy: as it has it for all

    def copied(x: Any, out: Any, axis: int, workers: int, norm: str) -> None:
        size = {"n": out.shape[axis]} if name == "irfft" else {}
        np.copyto(out, known(x, axis=axis, workers=workers, norm=norm, **size))

    return copied


def _direct(made: Callable[..., Any], name: str) -> Callable[..., None]:
    forward = name in ("fft", "rfft")

    def direct(x: Any, out: Any, axis: int, workers: int, norm: str) -> None:
        divided = _BEFORE[norm] if forward else 2 - _BEFORE[norm]
        size = (out.shape[axis],) if name == "irfft" else ()
        made(x, (axis,), *size, forward, divided, out, workers)

    return direct


def _same(direct: Callable[..., None], known: Callable[..., Any], name: str) -> bool:
    x = np.arange(1.0, 7.0).reshape(2, 3)
    for norm in _BEFORE:
        size = {"n": 5} if name == "irfft" else {}
        wanted = known(x, axis=1, norm=norm, **size)
        out = np.empty_like(wanted)
        direct(x + 0j if name == "irfft" else x, out, 1, 1, norm)
        if not np.array_equal(out, wanted):
            return False
    return True
