"""What all files have in common: an array of which any box can be read, and parts that need not be boxes:
every third row, columns backwards, some rows.

Of each axis a part has a range, or places in any order, each as often as it likes. What is read of it is
read in boxes of the file: places that follow each other are one, and so are those whose gaps hold
fewer bytes than the system reads anyway (`CLOSE`), or which lie in one chunk of what is read in chunks."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from ostinato.ops.core.layout import Box, Shape
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES, MOST_AXES, misshapen

from ostinato.errors import DataFileError

from .remote import IN_FLIGHT, Address, absolute, is_remote, trouble
from .thread_counts import MIN_THREADED_BYTES, Index, each_of

LONGEST = 1 << 30  # bytes of one read or write
PASSING = 1 << 20  # bytes of one read that leaves nothing in the system's cache,
CACHED = 4  # since the file takes such a share of the memory that there is, or more
DONTCACHE = 0x80  # RWF_DONTCACHE, of Linux 6.14, for which Python has no name yet
MAX_GAP_BYTES = 1 << 14  # bytes between two rows that are sooner read than left out,
LARGEST_CHUNK = 1 << 30  # bytes of what is read whole
HOLES = 1 << 30  # bytes of an array that may be all holes
RATIO = 1100  # times as large as its file: more than compression makes of numbers
_LAZY = "load it with resident=False, and use parts of it"
SLAB = 1 << 16  # if no more than this is read at once
CLOSE = 1 << 12  # bytes between two places that are sooner read than left out
# bytes of a box that is read beside what is wanted, about; LARGE of what is in chunks
LARGEST_BOX = 1 << 18
KEPT = 8 << 20  # bytes of chunks that stay for who reads another part of them
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object, as Python's own words have it
MAX_PLAIN_READS = 64  # reads that are not worth looking for fewer
LITTLE = 1 << 20  # bytes that are always there to note places in
NOTES = 40  # bytes for each of them,
SORTED = 20  # and where they are put in order only

PARSING = make_lock()  # Python 3.11 fails where threads take turns in its parser of literals

Places = np.ndarray[Any, np.dtype[np.int64]]
Get = Callable[[np.ndarray[Any, Any], int], bool]  # reads what begins at a byte; False at the end
Rows = tuple[Hashable, int, int]  # a key, and the first and the last number but one
Run = tuple[int, int, Places, Places]  # a range; where in it places are, and where they go


class Source:
    """An array in a file. `read` may be called by several threads."""

    path: str
    dataset: str | list[str] | None = None
    shape: Shape
    dtype: np.dtype[Any]
    grain: Shape | None = None  # extents of chunks that are read whole
    inflates = False  # whether chunks are more work than copying what is wanted of them
    in_turn = False  # whether it is made in order, so that threads side by side only wait
    once = False  # and can be read only once
    is_far = False  # whether reads wait for answers, so that many of them are made at a time
    by_columns = False  # whether the first axis is the one whose neighbours are next to each other

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        """Fill `out`, an array in order, with a box of the file's."""
        raise NotImplementedError

    def read_chunks(self, out: np.ndarray[Any, Any], box: Box, chunks: Iterable[Index]) -> None:
        raise NotImplementedError

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Source:
        """A slice of it, of which nothing is read yet."""
        return self._part().sliced(starts, sizes, steps)

    def taken(self, places: Any, axis: int) -> Source:
        """These places along an axis, of which nothing is read yet."""
        return self._part().taken(places, axis)

    def merged(self, axes: int) -> Source:
        """View the source with its first axes in one row, followed by axes of 1."""
        row = [range(math.prod(self.shape[:axes])), *[range(1)] * (axes - 1)]
        return Part(self, [*row, *map(range, self.shape[axes:])], axes)

    def joined(self, others: Sequence[Source]) -> Source:
        """Join others behind it along the first axis."""
        return Joined([self, *others])

    def whose_rows(self, lo: int, hi: int) -> Iterator[Rows]:
        """Where rows lie: equal keys and numbers are the same rows, whoever shows them."""
        yield (id(self), 1, tuple(map(range, self.shape[1:]))), lo, hi

    def _part(self) -> Source:
        return Part(self, [range(n) for n in self.shape])

    def trouble(self, got: str, needed: str, do: str = "") -> DataFileError:
        return trouble(self.path, got, needed, do)

    def changed(self) -> DataFileError:
        return self.trouble(
            "other content than when it was opened",
            "a file that does not change while it is in use",
            "load it again",
        )

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def as_data(self) -> dict[str, Any]:
        """Encode what another process needs to open the same array: numbers, words, lists."""
        return {
            "path": self.path,
            "dataset": self.dataset,
            "shape": list(self.shape),
            "dtype": self.dtype.name,
        }

    def check_size(self, chunk: Sequence[int] = ()) -> None:
        """Refuse extents that no array can have, and chunks that no memory should have to hold."""
        size = self.dtype.itemsize
        if misshapen(self.shape, size):
            needed = f"at most {MOST_AXES} extents of 0 or more, of fewer than 2**62 bytes"
            raise self.trouble(f"extents {self.shape!r:.80}", needed)
        if chunk and math.prod(chunk) * size > LARGEST_CHUNK:
            raise self.trouble(
                f"chunks {tuple(chunk)!r:.80}", f"at most {LARGEST_CHUNK} bytes each"
            )

    def stored_bytes(self) -> int | None:
        """The bytes that it takes in the file, if that may be much less than in memory."""
        return None

    def check_resident(self, most: int) -> None:
        """Refuse to read all of an array that memory cannot hold, or that is almost all holes."""
        size = self.nbytes
        if size > most:
            raise self.trouble(
                f"an array of {size} bytes", f"at most {most}, which this machine has", _LAZY
            )
        stored = self.stored_bytes() if size > HOLES else None
        if stored is not None and stored * RATIO < size:
            raise self.trouble(
                f"an array of {size} bytes in {stored}",
                "no such holes in what memory must hold",
                _LAZY,
            )

    def known(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in this machine's byte order, if arrays can have it."""
        found = dtype.newbyteorder("=")
        if dtype.hasobject:
            raise self.trouble(
                "Python objects, which only a pickle could hold",
                "numbers",
                "save a numeric array; pickles are never read",
            )
        if found not in DTYPES.values():
            raise self.trouble(f"dtype {dtype}", "one of " + ", ".join(DTYPES))
        return found


def short(error: BaseException) -> str:
    """Print what a library says, as part of a sentence that is the same in every run."""
    said = ADDRESS.sub("", " ".join(str(error).split())).rstrip(".")
    return f"{type(error).__name__}: {said:.200}" if said else type(error).__name__


def opened(path: str, most: int | None = None) -> bytes:
    """Read a file, if it is one and no longer than it may be."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or (most is not None and found.st_size > most):
            raise OSError(errno.EINVAL, "no file, or one that is too long", path)
        return file.read()


def regular(path: str) -> None:
    """Raises an OSError unless this is a file: opening a pipe would wait for who writes to it."""
    if is_remote(path):  # of which whoever opens it says so
        return
    found = os.stat(path).st_mode
    if not stat.S_ISREG(found):
        kind = errno.EISDIR if stat.S_ISDIR(found) else errno.EINVAL
        raise OSError(
            kind, os.strerror(kind) if stat.S_ISDIR(found) else "not a regular file", path
        )


def here(path: str | os.PathLike[str]) -> None:
    """Refuse to write behind an address."""
    if is_remote(path):
        got, needed = "an address, behind which nothing is written", "a path of this machine"
        raise trouble(os.fspath(path), got, needed, "copy the file there afterwards")


def version(path: str) -> tuple[int, int] | None:
    """Identify a file's version, which differs as soon as it is replaced or written to; None if
    there is none, or if that would be asked elsewhere each time."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def stamp(path: str) -> str:
    """A file, and what changes when somebody writes to it."""
    if is_remote(path):
        return Address(path).stamp
    found = os.stat(path)
    return f"{absolute(path)} {found.st_size} {found.st_mtime_ns}"


def runs(
    out: np.ndarray[Any, Any], box: Box, shape: Shape
) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """The stretches of a box that lie in one piece in the file: where each goes, and the number of
    its first element."""
    if out.size == 0:
        return
    first, steps, start = _lies(box, shape)
    for place in np.ndindex(out.shape[:first]):
        offset = sum(k * step for k, step in zip(place, steps, strict=False))
        yield out[(*place, ...)], start + offset


def _lies(box: Box, shape: Shape) -> tuple[int, list[int], int]:
    """From which axis on a box lies in one piece, the steps of all axes, and its first element."""
    whole = len(shape)  # from this axis on the box has all
    while whole and box[whole - 1] == (0, shape[whole - 1]):
        whole -= 1
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    start = sum(lo * step for (lo, _), step in zip(box, steps, strict=True))
    return max(whole - 1, 0), steps, start


def read_box(
    get: Get, out: np.ndarray[Any, Any], box: Box, shape: Shape, begin: int = 0
) -> int | None:
    """Fill `out`, an array in order, with a box of the array that begins at a byte of a file; the byte
    behind which the file ends, if it ends too early. Of rows that are near each other, what lies
    between them is read, too: a call for each would take much longer."""
    if out.size == 0:
        return None
    first, steps, start = _lies(box, shape)
    rows = out if first else out[None]
    size, outer = out.dtype.itemsize, max(first - 1, 0)
    lies = tuple(step * size for step in steps[outer if first else 0 :])
    lies = lies if first else (out.nbytes, *lies)  # one row
    length = rows[(0,) * (outer + 1)].nbytes
    many = max(SLAB // lies[0], 1) if lies[0] - length <= MAX_GAP_BYTES else 1
    for place in np.ndindex(rows.shape[:outer]):
        at = begin + size * (start + sum(k * n for k, n in zip(place, steps, strict=False)))
        for k in range(0, rows.shape[outer], many):
            part, here = rows[(*place, slice(k, k + many))], at + k * lies[0]
            if len(part) == 1:
                if not get(part, here):
                    return here
                continue
            slab = np.empty((len(part) - 1) * lies[0] + length, np.uint8)
            if not get(slab, here):
                return here
            part[...] = np.ndarray(part.shape, out.dtype, slab, 0, lies)
    return None


def fill(handle: int, out: np.ndarray[Any, Any], at: int) -> bool:
    """Read an array's bytes, straight to where they are wanted; False if the file ends before."""
    left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    while left:
        count = os.preadv(handle, [left[:LONGEST]], at)
        if not count:
            return False
        left, at = left[count:], at + count
    return True


def fill_once(handle: int, out: np.ndarray[Any, Any], at: int) -> bool:
    """Fill an array, but so that what is read in long stretches does not stay in the system's
    cache, unless it was there: of a file that does not fit in there, each page would only push out
    another."""
    left = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    if len(left) < PASSING:
        return fill(handle, out, at)
    while left:
        try:
            count = os.preadv(handle, [left[:PASSING]], at, DONTCACHE)
        except (OSError, NotImplementedError) as error:
            known = errno.EOPNOTSUPP, errno.EINVAL
            if isinstance(error, OSError) and error.errno not in known:
                raise
            rest = np.frombuffer(left, np.uint8)
            return fill(handle, rest, at)  # a system without
        if not count:
            return False
        left, at = left[count:], at + count
    return True


def filler(handle: int, size: int) -> Get:
    """Choose the function that reads a file of so many bytes."""
    return partial(fill_once if size * CACHED > _memory() else fill, handle)


@cache
def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# -- chunks that are read whole ---------------------------------------------------------------
class ChunkCache:
    """The chunks that were read last, as many as there is room for, since parts of one run often need
    the same ones; each with what tells whether it is still what lies in the file."""

    def __init__(self) -> None:
        self.lock = make_lock()
        self.chunks: OrderedDict[tuple[int, ...], tuple[Any, np.ndarray[Any, Any]]] = OrderedDict()
        self.bytes = 0

    def get(
        self, index: tuple[int, ...], state: Any, read: Callable[[], np.ndarray[Any, Any]]
    ) -> np.ndarray[Any, Any]:
        """A chunk, read if it is not here as it is now."""
        with self.lock:
            found = self.chunks.get(index)
            if found is not None and found[0] == state:
                self.chunks.move_to_end(index)
                return found[1]
        chunk = read()
        if chunk.nbytes <= KEPT:
            with self.lock:
                before = self.chunks.pop(index, None)
                self.chunks[index] = state, chunk
                self.bytes += chunk.nbytes - (before[1].nbytes if before else 0)
                while self.bytes > KEPT:
                    _, (_, oldest) = self.chunks.popitem(last=False)
                    self.bytes -= oldest.nbytes
        return chunk


def chunks_in(box: Box, chunks: Shape) -> list[range]:
    """The numbers of the chunks that have a part of a box, along each axis."""
    return [range(lo // n, -(-hi // n)) for (lo, hi), n in zip(box, chunks, strict=True)]


def chunk_box(index: Sequence[int], chunks: Shape) -> Box:
    return tuple((k * n, (k + 1) * n) for k, n in zip(index, chunks, strict=True))


# -- parts that are no boxes ------------------------------------------------------------------
class Listed:
    """Places along an axis that are themselves listed in a file, and read there as they are needed."""

    def __init__(self, source: Source, within: Wanted) -> None:
        self.source, self.within = source, within

    def __len__(self) -> int:
        return self.source.shape[0]

    def __getitem__(self, part: slice) -> Places:
        lo, hi, _ = part.indices(len(self))
        found = np.empty(max(hi - lo, 0), self.source.dtype)
        self.source.read(found, ((lo, max(hi, lo)),))
        return _at(self.within, _from_front(found, len(self.within)))


Axis = range | Places
Wanted = Axis | Listed


class Part(Source):
    """Some places of each axis of another array, of which the first axes may count as one row."""

    def __init__(self, source: Source, axes: Sequence[Wanted], row: int = 1) -> None:
        self.source, self.axes, self.row = source, tuple(axes), row
        self.path, self.dataset, self.dtype = source.path, source.dataset, source.dtype
        self.shape = tuple(map(len, self.axes))
        self.in_turn = source.in_turn

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        (begin, end), *_ = box
        inner = [axis[lo:hi] for axis, (lo, hi) in zip(self.axes[1:], box[1:], strict=True)]
        out = out.reshape(end - begin, *out.shape[self.row :])
        inner = inner[self.row - 1 :]
        first = self.axes[0]
        if isinstance(first, range) and _is_range(first[begin:end]):
            if self.row == 1:
                read_places(self.source, out, [first[begin:end], *inner])
                return
            if all(map(_is_range, inner)):
                read_row(self.source, out, first[begin:end], inner, self.row)
                return
        many = max(out.nbytes, LITTLE) // SORTED
        for k in range(begin, end, many):
            here = out[k - begin : k - begin + many]
            self._read_few(here, first[k : min(k + many, end)], inner)

    def _read_few(self, out: np.ndarray[Any, Any], places: Axis, inner: Sequence[Any]) -> None:
        """Read what stands at some places. Where these are many, they are put in order first: else
        what lies together in the file would be read again for each few of them."""
        many = max(out.nbytes // 4, LITTLE) // NOTES
        if len(places) <= many or isinstance(places, range):
            for k in range(0, len(places), many):
                self._read_near(out[k : k + many], places[k : k + many], inner)
            return
        order = np.argsort(places)
        for k in range(0, len(places), many):
            few = order[k : k + many]
            found = np.empty((len(few), *out.shape[1:]), out.dtype)
            self._read_near(found, places[few], inner)
            out[few] = found

    def _read_near(self, out: np.ndarray[Any, Any], places: Axis, inner: Sequence[Any]) -> None:
        if self.row == 1:
            read_places(self.source, out, [places, *inner])
        else:
            read_single(self.source, out, places, inner, self.row)

    def whose_rows(self, lo: int, hi: int) -> Iterator[Rows]:
        first, *inner = self.axes
        own = super().whose_rows(lo, hi)
        if isinstance(first, range) and first.step == 1:
            ranges = tuple([axis for axis in inner if isinstance(axis, range)])
            if len(ranges) == len(inner):
                own = iter(
                    [((id(self.source), self.row, ranges), first.start + lo, first.start + hi)]
                )
        yield from own

    def sliced(self, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Source:
        cuts = zip(self.axes, starts, sizes, steps, strict=True)
        return Part(self.source, [_cut(*cut) for cut in cuts], self.row)

    def taken(self, places: Any, axis: int) -> Source:
        own = self.axes[axis]
        wanted: Wanted
        wanted = (
            Listed(places, own)
            if isinstance(places, Source)
            else _at(own, _from_front(places, len(own)))
        )
        # a plan keeps the memory of the last places only
        axes = [a.copy() if isinstance(a, np.ndarray) else a for a in self.axes]
        return Part(self.source, [*axes[:axis], wanted, *axes[axis + 1 :]], self.row)


class Joined(Source):
    """Arrays one behind the other along the first axis."""

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        self.sources = [*sources]
        self.path, self.dataset, self.dtype = first.path, first.dataset, first.dtype
        self.shape = (sum(s.shape[0] for s in sources), *first.shape[1:])
        self.in_turn = any(s.in_turn for s in sources)

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        (begin, end), *rest = box
        at = 0  # where one begins
        for source in self.sources:
            lo, hi = max(begin - at, 0), min(end - at, source.shape[0])
            if lo < hi:
                source.read(out[lo + at - begin : hi + at - begin], ((lo, hi), *rest))
            at += source.shape[0]

    def whose_rows(self, lo: int, hi: int) -> Iterator[Rows]:
        for source in self.sources:
            n = source.shape[0]
            if max(lo, 0) < min(hi, n):
                yield from source.whose_rows(max(lo, 0), min(hi, n))
            lo, hi = lo - n, hi - n


def _cut(axis: Wanted, start: int, size: int, step: int) -> Wanted:
    if isinstance(axis, Listed):
        return Listed(axis.source.sliced((start,), (size,), (step,)), axis.within)
    if not isinstance(axis, range):
        return axis[start + step * np.arange(size)]
    begin, by = axis.start + axis.step * start, axis.step * step
    return range(begin, begin + by * size, by)


def _at(axis: Wanted, places: Places) -> Places:
    """Return what stands at these places of an axis."""
    if isinstance(axis, Listed):
        found = np.empty(len(places), axis.source.dtype)
        axis.source.taken(places, 0).read(found, ((0, len(places)),))
        return _at(axis.within, _from_front(found, len(axis.within)))
    if not isinstance(axis, range):
        return axis[places]
    return places if (axis.start, axis.step) == (0, 1) else axis.start + axis.step * places


def _from_front(places: Any, size: int) -> Places:
    """Places counted from the first; itself, if all are."""
    if not places.size:
        return np.zeros(0, np.int64)
    low, high = int(places.min()), int(places.max())
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise IndexError(f"index {bad} is out of bounds for an axis with {size} elements")
    found: Places = places.astype(np.int64, copy=False)
    return np.where(found < 0, found + size, found) if low < 0 else found


def read_places(source: Source, out: np.ndarray[Any, Any], axes: Sequence[Axis]) -> None:
    """Fill `out`, an array in order, with all that has one of these places on each axis."""
    if all(map(_is_range, axes)):
        source.read(out, tuple((int(a[0]), int(a[-1]) + 1) for a in axes))
        return
    ranges = _ranges(source, axes)

    def read(index: Index) -> None:
        runs = [each[k] for each, k in zip(ranges, index, strict=True)]
        box = tuple((lo, hi) for lo, hi, _, _ in runs)
        if all(map(_straight, runs)) and all(
            hi - lo == len(a) for (lo, hi), a in zip(box[1:], axes[1:], strict=True)
        ):
            first = runs[0][3]
            source.read(out[first[0] : first[-1] + 1], box)
            return
        found = np.empty([hi - lo for lo, hi in box], out.dtype)
        source.read(found, box)
        out[np.ix_(*(to for _, _, _, to in runs))] = found[np.ix_(*(at for _, _, at, _ in runs))]

    each = itertools.product(*(range(len(r)) for r in ranges))
    each_of(read, each, 0, threads=IN_FLIGHT if source.is_far else 0)


def read_row(
    source: Source, out: np.ndarray[Any, Any], row: Axis, inner: Sequence[Axis], axes: int
) -> None:
    """Fill `out` with what lies from one place to another, the first axes counted in one row."""
    rest = tuple((int(a[0]), int(a[-1]) + 1) for a in inner)
    at = 0
    for lead in _boxes(int(row[0]), int(row[-1]) + 1, source.shape[:axes]):
        sizes = [hi - lo for lo, hi in lead]
        end = at + math.prod(sizes)
        part = out[at:end]
        source.read(part.reshape(*sizes, *part.shape[1:]), (*lead, *rest))
        at = end


def _boxes(lo: int, hi: int, shape: Shape) -> Iterator[Box]:
    """Iterate over the boxes from one place to another, in order: rows, and parts of the first and
    the last one."""
    each = math.prod(shape[1:])
    if lo >= hi:
        return
    first, last = -(-lo // each), hi // each
    if first > last:  # within one row
        yield from (((last, last + 1), *b) for b in _boxes(lo % each, hi - last * each, shape[1:]))
        return
    if lo % each:
        inner = _boxes(lo % each, each, shape[1:])
        yield from (((first - 1, first), *b) for b in inner)
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    if hi % each:
        yield from (((last, last + 1), *b) for b in _boxes(0, hi % each, shape[1:]))


def read_single(
    source: Source, out: np.ndarray[Any, Any], places: Axis, inner: Sequence[Axis], axes: int
) -> None:
    """Fill `out` with what has one of these places in the row of the first axes, and of each other axis
    one of these. Those in one tile of the file, whose numbers are near each other, are read at once."""
    size = source.dtype.itemsize * math.prod(map(len, inner))
    in_order = source.grain is None and not source.by_columns and all(map(_is_range, inner))
    if isinstance(places, range) and in_order and abs(places.step) * size <= 4 * NOTES:
        low, high = sorted((places[0], places[-1]))  # with what lies between
        between = np.empty((high - low + 1, *out.shape[1:]), out.dtype)
        read_row(source, between, range(low, high + 1), inner, axes)
        out[...] = between[:: places.step]
        return
    row = np.arange(places.start, places.stop, places.step) if isinstance(places, range) else places
    shape = source.shape[:axes]
    index = np.unravel_index(row, shape)
    order, starts = _in_tiles(index, shape, _tile(source, MAX_GAP_BYTES))
    if source.grain is None and len(starts) > MAX_PLAIN_READS:
        large = _in_tiles(index, shape, _tile(source, LARGEST_BOX))
        if _covered(index, *large) * size <= (len(starts) + 1) * MAX_GAP_BYTES:
            order, starts = large  # fewer reads of no more bytes
    rest = _ranges(source, [*[range(1)] * axes, *inner])[axes:]
    for here in np.split(order, starts):
        at = [i[here] for i in index]
        lead = tuple((int(i.min()), int(i.max()) + 1) for i in at)
        own = tuple(i - lo for i, (lo, _) in zip(at, lead, strict=True))
        for runs in itertools.product(*rest):
            box = (*lead, *((lo, hi) for lo, hi, _, _ in runs))
            found = np.empty([hi - lo for lo, hi in box], out.dtype)
            source.read(found, box)
            wanted = np.ix_(np.arange(len(here)), *(k for _, _, k, _ in runs))
            out[np.ix_(here, *(to for _, _, _, to in runs))] = found[own][wanted]


def _in_tiles(index: Sequence[Places], shape: Shape, tile: Shape) -> tuple[Places, Places]:
    """Places in the order of the tiles in which they are, and where tiles begin but for the first."""
    each = [i // n for i, n in zip(index, tile, strict=False)]
    number = np.ravel_multi_index(each, shape)
    order = np.argsort(number, kind="stable")
    return order, np.flatnonzero(np.diff(number[order])) + 1


def _covered(index: Sequence[Places], order: Places, starts: Places) -> int:
    """The elements of the boxes around the places of each tile."""
    begins = np.concatenate([[0], starts])
    total: Any = 1
    for i in index:
        total = total * (
            np.maximum.reduceat(i[order], begins) - np.minimum.reduceat(i[order], begins) + 1
        )
    return int(np.sum(total))


def _tile(source: Source, room: int) -> Shape:
    """The extents of what is read at once for single elements: so many bytes."""
    if source.grain is not None:
        return source.grain
    left, found = room // source.dtype.itemsize, []
    for n in source.shape if source.by_columns else reversed(source.shape):
        found.append(max(min(left, n), 1))
        left //= max(n, 1)
    return tuple(found if source.by_columns else reversed(found))


def _is_range(axis: Axis) -> bool:
    return isinstance(axis, range) and (axis.step == 1 or len(axis) == 1)


def _straight(run: Run) -> bool:
    """Whether a range is wanted as it is, in one piece."""
    _, _, at, to = run
    return bool((np.diff(at) == 1).all() and (np.diff(to) == 1).all())


def _span(axis: Axis) -> int:
    if isinstance(axis, range):
        return abs(axis[-1] - axis[0]) + 1
    return int(axis.max() - axis.min()) + 1


def _ranges(source: Source, axes: Sequence[Axis]) -> list[list[Run]]:
    """The ranges of each axis that together have all its places. Those of inner axes are as long as
    they may be, before those of outer ones are, which have whole chunks in any case."""
    found: list[list[Run]] = [[] for _ in axes]
    size = room = source.dtype.itemsize
    least = [min(_span(a), n) for a, n in zip(axes, source.grain or [1] * len(axes), strict=True)]
    left = math.prod(least)
    for d in range(len(axes)) if source.by_columns else reversed(range(len(axes))):
        grain = source.grain[d] if source.grain else 1
        left //= max(least[d], 1)  # elements of what outer axes have at least
        largest = LARGEST_BOX if source.grain is None else MIN_THREADED_BYTES
        most = -(-max(largest // (room * max(left, 1)), 1) // grain) * grain
        found[d] = list(_runs(axes[d], CLOSE // size, most, grain))
        size *= _span(axes[d])
        room *= max(hi - lo for lo, hi, _, _ in found[d])
    return found


def _runs(axis: Axis, near: int, most: int, grain: int) -> Iterator[Run]:
    """The ranges of one axis: apart if more lies between, and no longer than may be."""
    places = np.arange(axis.start, axis.stop, axis.step) if isinstance(axis, range) else axis
    order = np.argsort(places, kind="stable")
    places = places[order]
    apart = np.diff(places) > 1 + near
    if grain > 1:
        apart &= np.diff(places // grain) > 0
    for run in np.split(np.arange(len(places)), np.flatnonzero(apart) + 1):
        begin = 0
        while begin < len(run):  # in pieces, if it is long
            low = int(places[run[begin]])
            end = begin + int(np.searchsorted(places[run[begin:]], low // grain * grain + most))
            here = run[begin:end]
            yield low, int(places[here[-1]]) + 1, places[here] - low, order[here]
            begin = end
