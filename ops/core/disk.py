"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.errors import DataFileError, OstinatoError

try:
    import fcntl
except ImportError:  # a system without
    fcntl = None  # type: ignore[assignment]

_HERE, _EXCHANGE = -100, 2  # of Linux: AT_FDCWD, RENAME_EXCHANGE
_HANDLES = "/proc/self/fd"  # where Linux has what this process has open


def write_whole(
    path: str | os.PathLike[str],
    data: bytes | Iterable[bytes | memoryview],
    mode: int | None = None,
    durable: bool = False,
) -> None:
    """Write a file, or pieces that make one, in one step: readers see the old one or the whole new one.
    Without a mode, a link leads to what is written, and mode and owner are those of the old file. If
    durable, it outlives the machine's next stop."""
    target = Path(path if mode is not None else os.path.realpath(path))
    made = target.parent / f".{target.name}.{secrets.token_hex(6)}.part"
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
        if mode is None:
            take_after(made, target)
        if durable:
            sync(made)
        os.replace(made, target)
        if durable:
            sync(target.parent)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


@contextmanager
def writing(
    path: str | os.PathLike[str], kind: type[OstinatoError] = DataFileError, what: str = "file"
) -> Iterator[None]:
    """Raise errors of the system, at a file that the user named, as errors of this kind."""
    try:
        yield
    except OSError as error:
        got, needed = error.strerror or str(error), "a folder that exists and may be written to"
        raise kind.because(f"{what} {os.fspath(path)}", got=got, needed=needed) from None


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write what people will read."""
    with writing(path):
        write_whole(path, text.encode(), durable=True)


def write(path: str | os.PathLike[str], data: Any, durable: bool = False) -> None:
    """Write a file that nobody looks for yet. If durable, it outlives the machine's next stop."""
    with open(path, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        if durable:
            os.fsync(file.fileno())


def sync(path: str | os.PathLike[str]) -> None:
    """See to it that a file's content, or the names in a folder, outlive the machine's next stop."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.path.isdir(path):  # one that this user may write to and not list
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # not for folders, on some file systems
            raise
    finally:
        os.close(handle)


def make_folders(path: Path) -> None:
    """Make a folder, and those above it, so that they outlive the machine's next stop."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def take_after(made: str | os.PathLike[str], old: str | os.PathLike[str]) -> None:
    """Give a new file or folder mode and owner of the one whose place it takes, if there is one; the
    owner as far as this user may."""
    try:
        facts = os.stat(old)
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(facts.st_mode) & (0o3777 if stat.S_ISDIR(facts.st_mode) else 0o777)
    if hasattr(os, "chown"):
        for owner in (facts.st_uid, -1):
            with contextlib.suppress(OSError):
                os.chown(made, owner, facts.st_gid)
                break
        if os.stat(made).st_gid != facts.st_gid:  # another group gets what all others have
            mode &= ~0o070 | (mode & 0o007) << 3
    os.chmod(made, mode)


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
        sync(target.parent)
    if old is not None:
        _remove(old)


class Held:
    """A folder that is read: who gives its name to another one leaves it whole until nobody reads it.
    `path` leads to it, whatever it is called by then."""

    def __init__(self, path: str) -> None:
        self.path = path
        handle = -1
        while fcntl is not None and handle < 0 and os.path.isdir(_HANDLES):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # whoever opens what is in it says so
                return
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                is_going = True
            except OSError:  # a file system without
                os.close(handle)
                return
            else:
                is_going = not os.fstat(handle).st_nlink
            if is_going:  # another one has its name
                os.close(handle)
                handle = -1
        if handle >= 0:
            self.path = f"{_HANDLES}/{handle}"
            weakref.finalize(self, _let_go, handle, os.path.realpath(path))


def _let_go(handle: int, target: str) -> None:
    """Nobody reads a folder here any more; one that has lost its name goes."""
    with contextlib.suppress(OSError):
        has_moved = os.readlink(f"{_HANDLES}/{handle}") != target
        os.close(handle)
        if has_moved:
            clear(target)


def _remove(folder: str | os.PathLike[str]) -> bool:
    """Remove a folder, unless somebody reads it."""
    handle = -1
    try:
        if fcntl is not None:
            with contextlib.suppress(PermissionError):
                handle = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                except OSError as error:  # a file system without
                    if error.errno not in (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EBADF):
                        raise
        shutil.rmtree(folder)
        return True
    finally:
        if handle >= 0:
            os.close(handle)


def _exchange(a: Path, b: Path) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(_HERE, bytes(a), _HERE, bytes(b), _EXCHANGE)


# -- beside a target -----------------------------------------------------------------------
LOCK = "lock"
# seconds after which what another machine left is nobody's, if nobody holds its lock
AGED = 86400.0
_STAGE = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part", re.S)
_MARK = (
    b"ostinato writes what is beside this; it was left behind if nobody holds a lock on this file: "
)


class Stage:
    """A folder beside a target, for this user alone, in which the next one is made:

        .x.npy.0123abcd.part/x.npy     it
        .x.npy.0123abcd.part/lock      held while its writer lives

    What dead writers left there goes first."""

    def __init__(self, target: str) -> None:
        clear(target)
        self.target, taken = target, None
        while taken is None:
            self.part = staged(target)
            os.mkdir(os.path.dirname(self.part), 0o700)
            taken = _taken(os.path.join(os.path.dirname(self.part), LOCK))
        self.let_go = weakref.finalize(self, os.close, taken)


def staged(target: str) -> str:
    """A name for what will take a target's place."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part", name)


def unstage(part: str) -> bool:
    """Leave nothing behind of where something was made; False if it is left to somebody who reads it."""
    folder = os.path.dirname(part)
    if _STAGE.fullmatch(os.path.basename(folder)):
        for path in (part, part + ".old"):
            if os.path.isdir(path) and not os.path.islink(path):
                with contextlib.suppress(OSError):
                    if not _remove(path):
                        return False  # to who reads it last, or writes next
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, LOCK))
        with contextlib.suppress(OSError):  # of somebody else, or gone
            os.rmdir(folder)
    return True


def _is_read(folder: str) -> bool:
    """Whether somebody reads a folder; False of what is gone."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _taken(path: str) -> int | None:
    """A handle of a new lock that is held; None if somebody took it for left behind meanwhile."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:  # a file system without: then nothing is ever taken for left behind
            pass
        if not os.fstat(handle).st_nlink:
            os.close(handle)
            return None
    try:
        os.write(handle, _MARK + platform.node().encode())
    except OSError:  # of a full disk
        os.close(handle)
        unstage(path)
        raise
    return handle


def clear(target: str) -> None:
    """Remove what writers of this target left who are no more. Who stops reading while another one holds the
    lock leaves it to that one, who looks once more when the lock is free."""
    folder, name = os.path.split(target)
    names: list[str] = []
    with contextlib.suppress(OSError):  # of a folder that this user may not list
        names = os.listdir(folder) if fcntl is not None else []
    for left in names:
        if (m := _STAGE.fullmatch(left)) and m[1] == name:
            stage = os.path.join(folder, left)
            parts = [os.path.join(stage, name + end) for end in ("", ".old")]
            with contextlib.suppress(OSError):
                while not _clear_one(target, stage) and not any(map(_is_read, parts)):
                    pass


def _clear_one(target: str, stage: str) -> bool:
    """Remove one folder; False if it is left to somebody who reads it."""
    if not stat.S_ISDIR(os.lstat(stage).st_mode):
        return True
    lock, part = os.path.join(stage, LOCK), os.path.join(stage, os.path.basename(target))
    if not os.listdir(stage):  # its writer died at once, or has to look for another name
        os.rmdir(stage)
        return True
    handle = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said, facts = os.read(handle, 1024), os.fstat(handle)
        if said and not said.startswith(_MARK):
            return True
        here = not said or said == _MARK + platform.node().encode()
        if not here:  # whose locks may not be seen from here
            newest = max(os.lstat(os.path.join(stage, n)).st_mtime for n in os.listdir(stage))
            if time.time() - max(newest, facts.st_mtime) < AGED:
                return True
        if os.path.exists(part + ".old") and not os.path.exists(target):
            os.rename(part + ".old", target)
        return unstage(part)
    finally:
        os.close(handle)
