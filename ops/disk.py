"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE, _EXCHANGE = -100, 2  # of Linux: AT_FDCWD, RENAME_EXCHANGE


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step: readers see the old one or the whole new one."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write(path: str | os.PathLike[str], data: Any, durable: bool = False) -> None:
    """Write a file that nobody looks for yet. If durable, it outlives the machine's next stop."""
    with open(path, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        if durable:
            os.fsync(file.fileno())


def sync_folder(path: str | os.PathLike[str]) -> None:
    """See to it that the names in a folder outlive the machine's next stop."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_folder(
    made: str | os.PathLike[str], target: str | os.PathLike[str], durable: bool = False
) -> None:
    """Give a folder the name of another, which goes: in one step where the system can exchange two,
    else it is called like the first, with `.old` behind it, for a moment."""
    made, target = Path(made), Path(target)
    old = None
    if not target.exists():
        made.rename(target)
    elif _exchange(made, target):
        old = made
    else:
        old = made.with_name(made.name + ".old")
        target.rename(old)
        made.rename(target)
    if durable:
        sync_folder(target.parent)
    if old is not None:
        shutil.rmtree(old)


def _exchange(a: Path, b: Path) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(_HERE, bytes(a), _HERE, bytes(b), _EXCHANGE)
