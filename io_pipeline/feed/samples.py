"""Sources of samples: what is there, by number. All are read by several threads at once."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.encode import need
from ostinato.ops.core.layout import Box
from ostinato.ops.core.tree import flatten, paths
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

from ..array_files import from_data, open_source
from ..source import Part, Source, stamp
from .content import Unhashable, fingerprint
from .fields import DATA, IMAGE, KINDS, LABEL, Fields, fields_of, kind_of_name
from .plain import MOST_BYTES, Undescribed, as_plain, from_plain

SOURCES: dict[str, type[Samples]] = {}  # by their names


class InFiles(NamedTuple):
    """Files to be read elsewhere."""

    names: list[bytes]
    columns: list[list[Any]]  # of the other leaves
    stamps: np.ndarray[Any, np.dtype[np.int64]]  # of files that were read before; else 0


class Samples:
    """A source of samples. It is plain data, or says where it is not."""

    fields: Fields | None = None  # None: known once a sample was read
    labels: Any = None  # the class of each sample, where these are known before it is read

    def __init_subclass__(cls) -> None:
        SOURCES[cls.__name__] = cls

    def as_data(self) -> Any:
        """Encode what another process needs to read the same samples; `Undescribed` if that cannot
        be said."""
        raise Undescribed(f"what {type(self).__name__.lower()} gives is known to the program alone")

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        """The source that `as_data` told of."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, index: int) -> tuple[list[Any], Fields]:
        """The leaves of a sample. Threads call this side by side."""
        raise NotImplementedError

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        """As `read`, but what lies in a file may stay there, as a `Row`."""
        raise Undescribed(f"{type(self).__name__.lower()} give whole samples")

    def identity(self) -> str:
        """Identify the samples: words that are the same for the same samples in the same order, in
        every process."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Name a sample for people."""
        return f"sample {index}"

    def made_of(self, index: int) -> str:
        """Describe what a sample is made of, as text that changes with it: for caches on disk."""
        raise Unhashable(
            f"samples of {type(self).__name__.lower()}, which may be others in each run"
        )

    def inner(self) -> Sequence[Samples]:
        return ()

    def kept(self) -> list[dict[str, Any]]:
        """List what caches in it keep."""
        return [found for source in self.inner() for found in source.kept()]

    def remarks(self) -> list[str]:
        """List what users should be told of it since it was asked last."""
        return [said for source in self.inner() for said in source.remarks()]

    def expect(self, indices: Sequence[int]) -> None:
        """These samples will be read soon: what waits for answers may ask now."""

    def files(self, indices: Sequence[int]) -> InFiles | None:
        """Return the files of samples whose first leaf is what is in a file; None where there is
        more to reading."""
        return None

    def has_read(self, indices: Sequence[int], files: InFiles) -> None:
        """These files were read, and had these stamps."""

    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
        """Shape and dtype of each leaf, of a source that has `gather`."""
        return None

    def gather(self, indices: Sequence[int], out: Sequence[np.ndarray[Any, Any]]) -> None:
        """Many samples at once, straight to where they are wanted."""
        raise NotImplementedError


class Through(Samples):
    """A source whose samples are those of another, or of others of which `find` says which."""

    source: Samples

    def __len__(self) -> int:
        return len(self.source)

    def find(self, index: int) -> tuple[Samples, int]:
        """Find the source that has a sample, and its number there."""
        return self.source, index

    def read(self, index: int) -> tuple[list[Any], Fields]:
        source, inner = self.find(index)
        return source.read(inner)

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        source, inner = self.find(index)
        return source.parts(inner)

    def name(self, index: int) -> str:
        source, inner = self.find(index)
        return source.name(inner)

    def made_of(self, index: int) -> str:
        source, inner = self.find(index)
        return source.made_of(inner)

    def expect(self, indices: Sequence[int]) -> None:
        for source, inner in map(self.find, indices):
            source.expect([inner])

    def inner(self) -> Sequence[Samples]:
        return (self.source,)


def source_as_data(source: Samples) -> Any:
    return [type(source).__name__, source.as_data()]


def made_source(said: Any) -> Samples:
    name, about = said
    need(name in SOURCES, f"a source {name!r:.40}")
    return SOURCES[name].from_data(about)


def digest(*parts: Any) -> str:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(str(part).encode("utf-8", "surrogateescape") + b"\0")
    return made.hexdigest()


class Row:
    """A row of an array in a file, or all of it, of which nobody has read anything yet."""

    def __init__(self, source: Source, index: int | None = None) -> None:
        self.source, self.index, self.dtype = source, index, source.dtype
        self.shape = tuple(source.shape if index is None else source.shape[1:])
        self.ndim = len(self.shape)

    def box(self, part: Box) -> Box:
        """Where a box of its first axes is in the file's array."""
        whole = (*part, *((0, n) for n in self.shape[len(part) :]))
        return whole if self.index is None else ((self.index, self.index + 1), *whole)

    def room(self, part: Box, out: Any = None) -> np.ndarray[Any, Any]:
        """An array for a box of its first axes: where it is wanted, if that fits."""
        shape = tuple(hi - lo for lo, hi in part) + self.shape[len(part) :]
        if out is None or (out.shape, out.dtype) != (shape, self.dtype):
            out = np.empty(shape, self.dtype)
        found: np.ndarray[Any, Any] = out
        return found

    def as_in_file(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array as the file's has it."""
        return x if self.index is None else x[None]

    def read(self, part: Box, out: Any = None) -> np.ndarray[Any, Any]:
        """A box of its first axes, to where it is wanted if that fits."""
        found = self.room(part, out)
        self.source.read(self.as_in_file(found), self.box(part))
        return found


class Arrays(Samples):
    """The rows of arrays: of NumPy's, or in files, of which only what is asked for is read."""

    def __init__(self, arrays: Any, kinds: Sequence[str] | None = None) -> None:
        leaves, structure = flatten(arrays)
        self.sources = [_opened(x) for x in leaves]
        names = paths(structure)
        if not self.sources:
            raise misfit(ArgumentError, "arrays", got="none", needed="one or more")
        lengths = [x.shape[0] if len(x.shape) else -1 for x in self.sources]
        if len({*lengths}) > 1 or lengths[0] < 0:
            got = ", ".join(str(tuple(x.shape)) for x in self.sources)
            needed = "as many rows in each of them"
            raise misfit(ArgumentError, "arrays", got=f"shapes {got}", needed=needed)
        if kinds is None:
            kinds = [
                found if (found := kind_of_name(n)) != DATA else _kind_of(x)
                for n, x in zip(names, self.sources, strict=True)
            ]
        check_kinds("arrays", kinds, len(leaves))
        self.fields = Fields(tuple(kinds), structure)
        self.count = lengths[0]
        known = [self.sources[k] for k in self.fields.select_kind(LABEL)]
        self.labels = next((x for x in known if isinstance(x, np.ndarray) and x.ndim == 1), None)

    def as_data(self) -> Any:
        """Arrays in files are read by who needs them; small ones in memory, such as labels, are told of."""
        said = []
        for x in self.sources:
            if isinstance(x, Part):
                raise Undescribed("a part of an array in a file is known to the program alone")
            is_file = isinstance(x, Source)
            said.append(["file", x.as_data()] if is_file else ["array", as_plain(x, MOST_BYTES)])
        assert self.fields is not None
        return [said, self.fields.as_data()]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        arrays, fields = said
        found = Fields.from_data(fields)
        leaves = [from_data(x) if kind == "file" else from_plain(x) for kind, x in arrays]
        return cls(found.tree(leaves), found.kinds)

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> tuple[list[Any], Fields]:
        assert self.fields is not None
        return [_row(x, index) for x in self.sources], self.fields

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        assert self.fields is not None
        return [
            Row(x, index) if isinstance(x, Source) else x[index] for x in self.sources
        ], self.fields

    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
        if any(x.dtype.kind in "OUSV" and x.dtype.name != "bfloat16" for x in self.sources):
            return None
        return [(tuple(x.shape[1:]), x.dtype) for x in self.sources]

    def gather(self, indices: Sequence[int], out: Sequence[np.ndarray[Any, Any]]) -> None:
        places = np.array(indices, np.int64)
        for x, into in zip(self.sources, out, strict=True):
            if isinstance(x, Source):
                x.taken(places, 0).read(into, tuple((0, n) for n in into.shape))
            else:
                np.take(x, places, 0, into, "clip")  # "raise" would take what it gathers twice

    def identity(self) -> str:
        arrays = []
        for x in self.sources:
            where = (x.path, x.dataset) if isinstance(x, Source) else _some_of(x)
            arrays.append((where, tuple(x.shape), str(x.dtype)))
        return digest("arrays", *arrays)

    def name(self, index: int) -> str:
        found = [x.path for x in self.sources if isinstance(x, Source)]
        return f"row {index} of {', '.join(found) or 'the arrays'}"

    def made_of(self, index: int) -> str:
        """Describe a sample of arrays in memory by what is in their rows."""
        parts = []
        for x in self.sources:
            if not isinstance(x, Source):
                parts.append(fingerprint(x[index]))
            elif os.path.isdir(x.path):
                raise Unhashable(f"the folder {x.path}, in which chunks may change unseen")
            else:
                parts.append(f"{stamp(x.path)} {x.dataset} {index}")
        return "\0".join(parts)


def _opened(x: Any) -> Any:
    """An array, or the source of one in a file."""
    if isinstance(x, (str, os.PathLike)):
        return open_source(os.fspath(x))
    return x if isinstance(x, Source) else np.asarray(x)


def _row(x: Any, index: int) -> Any:
    if not isinstance(x, Source):
        return x[index]
    out = np.empty((1, *x.shape[1:]), x.dtype)
    x.read(out, ((index, index + 1), *((0, n) for n in x.shape[1:])))
    return out[0]


def _kind_of(x: Any) -> str:
    """Guess the kind of an array without a name: images have channels behind, labels are whole
    numbers."""
    if len(x.shape) == 4 and x.shape[-1] in (1, 3, 4):
        return IMAGE
    return LABEL if len(x.shape) == 1 and x.dtype.kind in "iu" else DATA


def _some_of(x: np.ndarray[Any, Any]) -> str:
    """Some bytes of an array, to tell it from others."""
    rows = x[:: max(len(x) // 64, 1)] if x.size else x
    few = rows.reshape(len(rows), -1)[:, :64] if x.size else rows
    return digest(np.ascontiguousarray(few).tobytes().hex())


def check_kinds(who: str, kinds: Sequence[str], leaves: int) -> None:
    if len(kinds) != leaves or any(kind not in KINDS for kind in kinds):
        got = f"kinds={list(kinds)!r} for {leaves} fields"
        raise misfit(ArgumentError, who, got=got, needed=f"one for each, of {', '.join(KINDS)}")


class Items(Samples):
    """Whatever has a length and gives samples by number: lists, datasets of other libraries."""

    def __init__(self, items: Any, kinds: Sequence[str] | None = None) -> None:
        if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
            needed = "what has a length and gives samples by number"
            do = "use ost.io.stream for what can only be iterated over"
            raise misfit(ArgumentError, "samples", got=type(items).__name__, needed=needed, do=do)
        self.items = items
        self.kinds = None if kinds is None else tuple(kinds)

    def __len__(self) -> int:
        return len(self.items)

    def read(self, index: int) -> tuple[list[Any], Fields]:
        fields, leaves = fields_of(self.items[index], self.kinds)
        return leaves, fields

    def identity(self) -> str:
        kind = type(self.items)
        return digest("samples", kind.__module__, kind.__qualname__, len(self.items), self.kinds)


class Stream(Samples):
    """What can only be iterated over. It is read by one thread at a time and in its own order, so it is
    not shuffled; to go on at a place, it is read from its beginning."""

    def __init__(
        self,
        items: Callable[[], Iterable[Any]] | Iterable[Any],
        length: int | None = None,
        kinds: Sequence[str] | None = None,
    ) -> None:
        if not callable(items) and not hasattr(items, "__iter__"):
            raise misfit(ArgumentError, "stream", got=type(items).__name__, needed="an iterable")
        self.items, self.length = items, length
        self.kinds = None if kinds is None else tuple(kinds)
        self.once = not callable(items) and iter(items) is items
        self.is_used = False

    def __len__(self) -> int:
        raise TypeError("the length of a stream is not known")

    def read(self, index: int) -> tuple[list[Any], Fields]:
        raise TypeError("a stream has no sample of a number")

    def begin(self) -> Iterator[Any]:
        """From the beginning, for one epoch."""
        if self.once and self.is_used:
            got = "a second epoch of an iterator, which is used up"
            needed = "what can be iterated over again"
            do = "give a function that makes the iterator"
            raise misfit(ArgumentError, "stream", got=got, needed=needed, do=do)
        self.is_used = True
        made = self.items() if callable(self.items) else self.items
        return itertools.islice(made, self.length)

    def identity(self) -> str:
        return digest("stream", type(self.items).__qualname__, self.length, self.kinds)
