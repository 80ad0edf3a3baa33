"""SciPy's Fourier transforms, where SciPy is installed: `pip install scipy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any


@lru_cache
def function(name: str) -> Callable[..., Any] | None:
    """One of `scipy.fft`'s, which is looked for when the first transform is made."""
    try:
        found: Callable[..., Any] = getattr(import_module("scipy.fft"), name)
    except ImportError:
        return None
    return found
