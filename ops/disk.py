"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.errors import DataFileError, OstinatoError

_HERE, _EXCHANGE = -100, 2  # of Linux: AT_FDCWD, RENAME_EXCHANGE


def write_whole(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """Write a file in one step: readers see the old one or the whole new one. Its mode is this, less
    what umask takes away."""
    target = Path(path)
    made = target.parent / f".{target.name}.{secrets.token_hex(6)}.part"
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(made, target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


@contextmanager
def writing(
    path: str | os.PathLike[str], kind: type[OstinatoError] = DataFileError, what: str = "file"
) -> Iterator[None]:
    """What goes wrong at a file that the user named, as an error of this kind."""
    try:
        yield
    except OSError as error:
        raise kind.because(
            f"{what} {os.fspath(path)}",
            got=error.strerror or str(error),
            needed="a folder that exists and may be written to",
        ) from None


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write what people will read."""
    with writing(path):
        write_whole(path, text.encode())


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
