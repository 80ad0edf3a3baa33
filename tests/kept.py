"""What compilers made of tests' texts: kept under a digest of all that it depends on, for other processes, and for the
next run if OSTINATO_TEST_KERNELS names a folder that stays."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

UNUSED = 30 * 86400.0  # seconds after which nobody needs it any more


def folder() -> Path:
    return Path(os.environ["OSTINATO_TEST_KERNELS"])


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def kept(kind: str, asked: str, make: Callable[[Path], object]) -> Path:
    """A file that was made of what is asked: by `make`, which is told where to put it, if it is not there."""
    path = folder() / kind / digest(asked)
    if path.exists():
        with contextlib.suppress(OSError):
            os.utime(path)
        return path
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        make(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def tidy() -> None:
    """Removes what no run has used for long."""
    for path in folder().rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - UNUSED:
                path.unlink()
