"""Libraries that decode and resize images: imported when they are first needed, by whichever thread that is."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from ostinato.ops.core.locks import make_lock

from ostinato.errors import ArgumentError

INSTALL = "pip install 'ostinato[feed]'"
_lock = make_lock()


def _found(name: str) -> Any:
    """A module, or None if it is not there."""
    with _lock:
        try:
            return import_module(name)
        except ImportError:
            return None


@lru_cache(1)
def opencv() -> Any:
    """OpenCV, with one thread: those of the pipe are enough. None if it is not there."""
    cv2 = _found("cv2")
    if cv2 is not None:
        cv2.setNumThreads(1)
    return cv2


@lru_cache(1)
def simplejpeg() -> Any:
    """libjpeg-turbo without the lock of Python's interpreter; None if it is not there."""
    return _found("simplejpeg")


@lru_cache(1)
def pillow() -> Any:
    """Pillow's `Image`, which knows most formats; None if it is not there."""
    if _found("PIL") is None or _found("PIL.ImageFile") is None:
        return None
    image = _found("PIL.Image")
    with _lock:
        image.init()
    return image


@lru_cache(1)
def has_avif() -> bool:
    """Whether this Pillow decodes AVIF, which it then does with one thread: those of the pipe are enough."""
    with _lock:
        from PIL import features

        if "avif" not in features.modules or not features.check_module("avif"):
            return False
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
        return True


def needed(who: str, found: Any, name: str, install: str = INSTALL) -> Any:
    """A library, or a sentence that says how to get it."""
    if found is None:
        raise ArgumentError.because(who, got=f"no {name}", needed=name, do=install)
    return found
