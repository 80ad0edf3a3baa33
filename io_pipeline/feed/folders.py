"""Files as samples: found by patterns, read as they are; what is in them is for `decode` to know."""

from __future__ import annotations

import glob
import os
import stat
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError

from ..remote import Ahead, is_remote, trouble
from ..remote import find as find_remote
from ..source import stamp
from .content import fingerprint
from .fields import IMAGE, LABEL, MASK, Fields
from .file_reads import expect, stamp_of, whole
from .plain import as_plain, from_plain
from .samples import InFiles, Samples, digest

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
IMAGES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".webp",
    ".avif",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
)
MOST_BYTES = 1 << 30  # of a file that is read whole


class Files(Samples):
    """The contents of files, each with what else is known of it: a label, the file of its mask."""

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[Any] | None = None,
        masks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        base: str = "",
    ) -> None:
        self.paths, self.labels, self.masks = paths, labels, masks
        self.classes, self.base = classes, base
        self._stamps = array("q", bytes(8 * len(paths) * (1 if masks is None else 2)))
        beside = [(IMAGE, paths), (MASK, masks), (LABEL, labels)]
        kinds = [kind for kind, given in beside if given is not None]
        self.ahead = Ahead() if any(is_remote(p) for p in (*paths, *(masks or ()))) else None
        sample = tuple(kinds) if len(kinds) > 1 else kinds[0]
        self.fields: Fields = Fields(tuple(kinds), flatten(sample)[1])

    def as_data(self) -> Any:
        return [as_plain(x) for x in (*self._plain(), self.classes, self.base)]

    def _plain(self) -> list[Any]:
        given = (self.paths, self.labels, self.masks)
        return [None if x is None else list(x) for x in given]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        return cls(*map(from_plain, said))

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[list[Any], Fields]:
        found: list[Any] = [self._content(index, self.paths, 0)]
        if self.masks is not None:
            found.append(self._content(index, self.masks, len(self.paths)))
        if self.labels is not None:
            found.append(self.labels[index])
        return found, self.fields

    def _content(self, index: int, paths: Sequence[str], first: int) -> bytes:
        """Read a file, which must still be what it was when it was read first."""
        path = paths[index]
        if self.ahead is not None and is_remote(path):
            found = self.ahead.take((path, 0, None))
            stamp = stamp_of(len(found), zlib.crc32(found))
        else:
            found, stamp = content(path)
        before = self._stamps[first + index]
        if not before:
            self._stamps[first + index] = stamp
        elif before != stamp:
            raise trouble(path, "another size or time than before", "a file that stays as it is")
        return found

    def expect(self, indices: Sequence[int]) -> None:
        if self.ahead is not None:
            paths = [group[k] for k in indices for group in (self.paths, self.masks) if group]
            self.ahead.expect([(p, 0, None) for p in paths if is_remote(p)])

    def files(self, indices: Sequence[int]) -> InFiles | None:
        if self.masks is not None or self.ahead is not None:
            return None
        names = os.fsencode("\0".join([self.paths[k] for k in indices])).split(b"\0")
        if len(names) != len(indices):  # no file is called so
            return None
        labels, stamps = self.labels, self._stamps
        columns = [] if labels is None else [[labels[k] for k in indices]]
        return InFiles(names, columns, np.array([stamps[k] for k in indices], np.int64))

    def has_read(self, indices: Sequence[int], files: InFiles) -> None:
        stamps = self._stamps
        for k, found in zip(indices, files.stamps.tolist(), strict=True):
            if not stamps[k]:
                stamps[k] = found

    def identity(self) -> str:
        """Identify the names below the folder that all files are in, so that it may lie elsewhere."""
        below = len(self.base)
        masks = self.masks or ()
        labels = () if self.labels is None else map(str, self.labels)
        parts = ([p[below:].lstrip(os.sep) for p in self.paths], masks, labels)
        return digest("files", *("\0".join(words) for words in parts))

    def name(self, index: int) -> str:
        return f"file {self.paths[index]}"

    def made_of(self, index: int) -> str:
        parts = [stamp(self.paths[index])]
        if self.masks is not None:
            parts.append(stamp(self.masks[index]))
        if self.labels is not None:
            label = self.labels[index]
            parts.append(str(label) if type(label) is int else fingerprint(label))
        return "\0".join(parts)


def content(path: str) -> tuple[bytes, int]:
    """Read a file, and its stamp. A name that leads to no file is refused: opening a pipe, we would
    wait."""
    found = whole(path)
    if found is not None:
        return found
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return _read(path, handle)
        finally:
            os.close(handle)
    except OSError as error:
        if isinstance(error, DataFileError):
            raise
        said = error.strerror or type(error).__name__
        raise trouble(path, said[:1].lower() + said[1:], "a file that can be read") from None


def _read(path: str, handle: int) -> tuple[bytes, int]:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise trouble(path, "what is no file", "a file")
    if not found.st_size:
        raise trouble(path, "an empty file", "one with content")
    if found.st_size > MOST_BYTES:
        raise trouble(path, f"{found.st_size} bytes", f"at most {MOST_BYTES}")
    expect(found.st_size)
    parts, left = [], found.st_size
    while left > 0 and (more := os.read(handle, left)):
        parts.append(more)
        left -= len(more)
    return b"".join(parts), stamp_of(found.st_size, found.st_mtime_ns)


def find(paths: Paths, suffixes: Sequence[str] = IMAGES) -> list[str]:
    """Files in the order of their names: of a pattern, of a folder and those in it, or a list as it
    is."""
    if not isinstance(paths, (str, os.PathLike)):
        return [os.fspath(p) for p in paths]
    if is_remote(os.fspath(paths)):
        return find_remote(os.fspath(paths), tuple(suffixes))
    pattern = os.path.expanduser(os.fspath(paths))
    if os.path.isdir(pattern) and not pattern.lower().endswith(tuple(suffixes)):
        pattern = os.path.join(glob.escape(pattern), "**", "*")
    elif not glob.has_magic(pattern):
        return [pattern]
    found = glob.glob(pattern, recursive=True)
    return sorted(p for p in found if p.lower().endswith(tuple(suffixes)))


def files(
    who: str,
    paths: Paths,
    labels: str | Sequence[Any] | Mapping[str, Any] | Callable[[str], Any] | None,
    masks: Sequence[str | os.PathLike[str]] | Callable[[str], str] | None,
    classes: Sequence[str] | None,
    suffixes: Sequence[str] = IMAGES,
) -> Files:
    found = find(paths, suffixes)
    if not found:
        needed = f"files that end with {', '.join(suffixes)}, or a list of files"
        raise misfit(ArgumentError, who, got=f"no file for {paths!r}", needed=needed)
    folders = [os.path.dirname(p) for p in (min(found), max(found))]  # all others lie between
    is_one_tree = len(found) > 1 and len({os.path.isabs(p) for p in folders}) == 1
    is_one_tree = is_one_tree and not any(map(is_remote, folders))
    base = os.path.commonpath(folders) if is_one_tree else ""
    made: list[Any] | None = None
    if labels == "folder":
        names = [os.path.basename(os.path.dirname(p)) for p in found]
        known = sorted({*names}) if classes is None else list(classes)
        numbers = {name: k for k, name in enumerate(known)}
        lost = next((n for n in names if n not in numbers), None)
        if lost is not None:
            needed = f"one of {', '.join(known)}"
            raise misfit(ArgumentError, who, got=f"a folder {lost!r}", needed=needed)
        made, classes = [numbers[n] for n in names], known
    elif callable(labels):
        made = [labels(p) for p in found]
    elif isinstance(labels, Mapping):
        try:
            made = [labels[p] for p in found]
        except KeyError as error:
            got = f"no label for {error}"
            raise misfit(ArgumentError, who, got=got, needed="one for each file") from None
    elif labels is not None and not isinstance(labels, str):
        made = list(labels)
    elif labels is not None:
        needed = "'folder', a list, a dict by file, or a function of the file's name"
        raise misfit(ArgumentError, who, got=f"labels={labels!r}", needed=needed)
    covers: list[str] | None = None
    if callable(masks):
        covers = [os.fspath(masks(p)) for p in found]
    elif masks is not None:
        covers = [os.fspath(p) for p in masks]
    for name, given in (("labels", made), ("masks", covers)):
        if given is not None and len(given) != len(found):
            got = f"{len(given)} {name} for {len(found)} files"
            raise misfit(ArgumentError, who, got=got, needed="one for each")
    return Files(found, made, covers, classes, base)
