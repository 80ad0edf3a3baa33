"""Checkpoints in a folder: a folder per step, there whole or not at all.

    path/step-100/manifest     what was saved, and the checksum of every file; its own comes first
    path/step-100/params.w/    an array in chunks, as Zarr has it; so is all of step-100
    path/.step-110.part/       a step while it is written
    path/.step-90.part.old/    a step while another takes its name, on systems that need a moment
    path/.lock                 held by who writes

A step gets its name when all of it is on the disk, and only then the oldest go. So whenever a
process is killed, what was there before is there, and the next writer clears away what it left. The
newest step is the one that was written last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ostinato.ops.core.disk import make_folders, replace_folder, sync, write

from ostinato.errors import DataFileError

from . import chunks as zarr
from .remote import trouble
from .source import here

MANIFEST = "manifest"
MAGIC = b"ostinato state 1"
_STEP = re.compile(r"step-(0|[1-9]\d*)|\.step-(0|[1-9]\d*)\.part\.old")
_HEAD = 256  # bytes of a first line at the most


class Steps:
    """The checkpoints in a folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        here(path)
        self.path = Path(os.path.abspath(path))

    def folder(self, step: int) -> Path:
        named, old = self.path / f"step-{step}", self.path / f".step-{step}.part.old"
        return old if old.exists() and not named.exists() else named

    # -- reading ---------------------------------------------------------------------------
    def known(self) -> list[int]:
        """The steps in the order in which they were written. Those of which that is not known come
        last, to be looked at first."""
        numbers = self._numbered()
        return sorted(self._there(), key=lambda s: (s not in numbers, numbers.get(s, s)))

    def _there(self) -> list[int]:
        names = os.listdir(self.path) if self.path.is_dir() else []
        return [*{int(m[1] or m[2]) for name in names if (m := _STEP.fullmatch(name))}]

    def _numbered(self) -> dict[int, int]:
        """The how manyth each was that was written here; damaged ones are left out."""
        found = {}
        for step in self._there():
            with (
                contextlib.suppress(OSError, ValueError),
                open(self.folder(step) / MANIFEST, "rb") as file,
            ):
                found[step] = _head(file.read(_HEAD))[0]
        return found

    def read(self, step: int) -> dict[str, Any]:
        path = self.folder(step) / MANIFEST
        try:
            data = path.read_bytes()
            number, digest, rest = _head(data)
            if _digest(number, rest) != digest:
                raise ValueError("other content than was written")
            content = json.loads(rest)
            if not isinstance(content, dict):
                raise ValueError("no manifest")
            return content
        except OSError as error:
            reason = error.strerror or str(error)
            raise trouble(str(path), reason, "a checkpoint's manifest") from None
        except (ValueError, RecursionError) as error:
            raise trouble(str(path), str(error), "it undamaged") from None

    # -- writing ---------------------------------------------------------------------------
    @contextlib.contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """A folder for a step's arrays, which goes if they are not published."""
        try:
            make_folders(self.path)
            with _locked(self.path / ".lock"):
                for number in self._there():
                    self.folder(number).rename(self.path / f"step-{number}")
                for left in self.path.glob(".step-*.part*"):  # by who died
                    shutil.rmtree(left)
                part = self.path / f".step-{step}.part"
                part.mkdir()
                try:
                    yield part
                finally:
                    shutil.rmtree(part, ignore_errors=True)
        except DataFileError:
            raise
        except OSError as error:
            raise trouble(str(self.path), str(error), "a folder to write checkpoints to") from None

    def publish(self, part: Path, step: int, content: dict[str, Any], keep: int | None) -> None:
        """Let a step be seen, then let the oldest go."""
        top = zarr.group()
        write(part / zarr.HEADER, top, durable=True)
        content["sums"] = {zarr.HEADER: zarr.checksum(top)}
        number = max(self._numbered().values(), default=0) + 1
        rest = json.dumps(content, separators=(",", ":")).encode()
        line = b"%s %d %s\n" % (MAGIC, number, _digest(number, rest).encode())
        write(part / MANIFEST, line + rest, durable=True)
        sync(part)
        replace_folder(part, self.folder(step), durable=True)
        if keep is not None:
            numbers = self._numbered()
            self._forget(sorted(numbers, key=numbers.__getitem__)[:-keep])

    def forget(self, step: int) -> None:
        """Let a step go."""
        with _locked(self.path / ".lock"):
            self._forget([step])

    def _forget(self, steps: list[int]) -> None:
        for step in steps:
            part = self.path / f".step-{step}.part"
            self.folder(step).rename(part)  # at once, so that nobody takes a half for the whole
            shutil.rmtree(part)


def _digest(number: int, rest: bytes) -> str:
    return hashlib.sha256(b"%d\n" % number + rest).hexdigest()


def _head(data: bytes) -> tuple[int, str, bytes]:
    """The first line's number and digest, and what comes behind it."""
    line, newline, rest = data.partition(b"\n")
    words = line[len(MAGIC) :].split()
    if not newline or not line.startswith(MAGIC + b" ") or len(words) != 2 or len(line) > _HEAD:
        raise ValueError("a first line that is damaged")
    if not words[0].isdigit() or len(words[0]) > 18:
        raise ValueError("a first line that is damaged")
    return int(words[0]), words[1].decode("ascii", "replace"), rest


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone, among all processes; the system lets go when this one dies."""
    with open(path, "ab") as file:
        try:
            import fcntl
        except ImportError:  # a system without
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # a process that was forked meanwhile has the file open, too
            fcntl.flock(file, fcntl.LOCK_UN)
