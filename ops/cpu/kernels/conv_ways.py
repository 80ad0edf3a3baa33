"""Convolutions by other algorithms than a library's, each a way of the same operation that may be timed against
the others: it has a name, memory that it needs meanwhile, which the arena gives, and does the node.

    direct       sums in registers, over images that zeros surround (direct_conv.py)
    columns      windows are copied, one product of matrices
    winograd2/4  tiles of 2 or 4 places a side by 2.25 or 4 times fewer multiplications, for filters of 3 x 3
    fft          images and filters are transformed, so that the filters' extents do not matter

Errors of `columns` and `fft` are those of products; `winograd4` adds numbers 20 times as large as their sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.array.expressions import Expression
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.index import taps
from ostinato.ops.core.registry import Place, Scratch
from ostinato.ops.core.spec import DType, Shape, Spec, complex64, complex128, float32, float64
from ostinato.ops.cpu.limits import LIMITS
from ostinato.ops.cpu.loops.copies import copying
from ostinato.ops.cpu.loops.flat import native_kernel
from ostinato.ops.nn.spatial import windows_of

from .direct_conv import Lanes, direct_rows, lanes_of
from .fft_libraries import transforming
from .gemm import product

Function = Callable[..., None]
MIN_WINDOW = 49  # elements of a window from which transforms may pay
MAX_TERMS = 1 << 16  # of a sum of the direct kernel
MIN_CHANNELS = 16  # from which fewer multiplications may pay for what is done before and after
_TILES = {"winograd2": 2, "winograd4": 4}
_IMAGES: dict[int, Any] = {  # by places of a tile: what makes sums of its images
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        *((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0)),
        *((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
    ),
}
_FILTERS: dict[int, Any] = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        *((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6)),
        *((1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
    ),
}
_RESULTS: dict[int, Any] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}


class _Sizes(NamedTuple):
    """Extents of a convolution: samples, groups, channels, filters, images, windows and results."""

    n: int
    g: int
    c: int
    o: int
    images: Shape
    over: Shape
    made: Shape

    @property
    def rows(self) -> int:
        return self.n * math.prod(self.made)


def _sizes(x: Shape, w: Shape, out: Shape, p: Any) -> _Sizes | None:
    k = len(p["extents"])
    if not len(x) == len(w) == len(out) == k + 3 or 0 in (*x, *w, *out):
        return None
    g, c = x[-2:]
    return _Sizes(x[0], g, c, w[-1], x[1 : k + 1], w[:k], out[1 : k + 1])


def conv_ways(ins: Sequence[Shape], outs: Sequence[Shape], dtype: DType, p: Any) -> list[str]:
    """Name all that can do a convolution and might be fast."""
    s = _sizes(ins[0], ins[1], outs[0], p)
    if s is None or dtype not in (float32, float64):
        return []
    found = ["columns"] if math.prod(s.over) > 1 else []
    if {*p["every"]} == {1} and min(p["strides"]) > 0 and is_direct(s, dtype):
        found.append("direct")
    if {*p["strides"], *p["every"]} == {1}:
        tiles = s.over == (3, 3) and s.g == 1 and {*map(abs, p["dilation"])} == {1}
        if tiles and dtype == float32 and min(s.c, s.o) >= MIN_CHANNELS:
            found += [way for way, m in _TILES.items() if min(s.made) >= m]
        if min(math.prod(s.over), math.prod(s.made)) >= MIN_WINDOW:
            found.append("fft")
    return found


def is_direct(s: _Sizes, dtype: DType) -> bool:
    """Whether vectors are half full, and sums not too long."""
    lanes = lanes_of(s.g, s.c, s.o, dtype.itemsize)
    full = lanes.summed or 2 * lanes.many >= MIN_CHANNELS
    return full and math.prod(s.over) * s.c <= MAX_TERMS


def rule_way(
    ins: Sequence[Shape], outs: Sequence[Shape], dtype: DType, p: Any, has_library: bool
) -> str:
    """The way that is taken untimed, "" for a library's or the operation's own: by extents, as timed over the
    single convolutions of benchmarks/networks.py. Never one that spreads what is not a number."""
    s = _sizes(ins[0], ins[1], outs[0], p)
    if s is None or "direct" not in conv_ways(ins, outs, dtype, p):
        return ""
    k, over, made = len(s.over), math.prod(s.over), math.prod(s.made)
    if not has_library or dtype != float32:
        filters = over * s.c * s.g * s.o * dtype.itemsize
        near = filters <= LIMITS.conv_filters or s.made[-1] >= LIMITS.conv_places
        return "direct" if near else ""
    slopes = over > made  # of weights; the library has none of large ones,
    if slopes and made >= LIMITS.conv_window:
        return "direct"
    if s.g > 1 and s.o == 1:  # and for one channel each only two axes, and no strides
        strided = slopes and max(map(abs, p["dilation"])) > 1
        return "direct" if k != 2 or strided else ""
    if slopes:
        return "direct" if k == s.n == s.g == 1 else ""
    few = lanes_of(s.g, s.c, s.o, dtype.itemsize).summed and s.o <= LIMITS.conv_few
    return "direct" if few or (k != 2 and s.g == s.c == 1) else ""


def conv_scratch(
    way: str, ins: Sequence[Shape], outs: Sequence[Shape], dtype: DType, p: Any
) -> list[Scratch]:
    """The memory that a way needs while it runs."""
    s = _sizes(ins[0], ins[1], outs[0], p)
    return [] if s is None else [Scratch(*one) for one in _ROOMS[way](s, dtype, p, way)]


def conv_by(
    way: str, arrays: Sequence[Any], at: Place, threads: int, room: Sequence[Any], p: Any
) -> Function | None:
    """The function of images, filters and results that lie so."""
    x, w, out = arrays
    s = _sizes(x.shape, w.shape, out.shape, p)
    if s is None or len(room) != len([*_ROOMS[way](s, x.dtype, p, way)]):
        return None
    made: Function | None = _MADE[way](arrays, s, at, threads, room, p)
    return made


# -- parts of these ------------------------------------------------------------------------
def _copy(source: Any, target: Any, threads: int) -> Function:
    made = copying(source.shape, source.itemsize, source.strides, target.strides, threads)
    return made or (lambda source, target: np.copyto(target, source))


class _Copies:
    """Copies of parts of one array to parts of others."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.all: list[tuple[Function, Any, Any]] = []

    def add(self, like: Any, part: Any, target: Any) -> None:
        if target.size:
            self.all.append((_copy(like[part], target, self.threads), part, target))

    def run(self, source: Any) -> None:
        for copy, part, target in self.all:
            copy(source[part], target)


def _begins(at: Place, p: Any) -> list[int]:
    """Where the first window of a part begins in its images: the last place of it, where it goes back."""
    k = len(p["extents"])
    given = zip(
        p["offsets"], p["strides"], p["dilation"], at.outs[0][1 : k + 1], at.ins[1][:k],
        at.ins[0][1 : k + 1], strict=True,
    )  # fmt: skip
    return [o + s * y[0] + d * (r[0] if d > 0 else r[1] - 1) - i[0] for o, s, d, y, r, i in given]


def _surrounded(x: Any, begins: Sequence[int], target: Any) -> tuple[Any, Any]:
    """The parts of images, and of an array that begins there, that both have."""
    ours, theirs = list[slice](), list[slice]()
    for n, b, m in zip(x.shape[1:], begins, target.shape[1:], strict=False):
        low, high = max(0, b), max(0, b, min(n, b + m))
        ours.append(slice(low, high))
        theirs.append(slice(low - b, high - b))
    return (slice(None), *ours), target[(slice(None), *theirs)]


# -- sums in registers ---------------------------------------------------------------------
def _direct_room(s: _Sizes, dtype: DType, p: Any, way: str) -> Iterator[tuple[Shape, DType]]:
    lanes = lanes_of(s.g, s.c, s.o, dtype.itemsize)
    inside = [
        (n - 1) * e + r + 1 for n, e, r in zip(s.made, p["strides"], _reach(s, p), strict=True)
    ]
    # vectors of the last groups read beyond these
    yield (s.n * math.prod(inside) * s.g * s.c + lanes.width,), dtype
    yield lanes.packed(s.over, s.c), dtype


def _direct(
    arrays: Sequence[Any], s: _Sizes, at: Place, threads: int, room: Sequence[Any], p: Any
) -> Function | None:
    x, w, out = arrays
    lanes, k = lanes_of(s.g, s.c, s.o, x.itemsize), len(s.over)
    apart = s.g > 1 and s.o == 1
    inside = [
        (n - 1) * e + r + 1 for n, e, r in zip(s.made, p["strides"], _reach(s, p), strict=True)
    ]
    order = (*range(k + 1), k + 2, k + 1) if apart else (*range(k + 3),)
    padded = room[0][: s.n * math.prod(inside) * s.g * s.c]
    padded = padded.reshape([(s.n, *inside, s.g, s.c)[d] for d in order]).transpose(order)
    part, target = _surrounded(x, _begins(at, p), padded)
    copies, fits = _Copies(threads), target.size == padded.size
    plain = (
        fits and x.strides[-2 if apart else -1] == x.itemsize and not (apart and lanes.is_ragged)
    )
    like = x[part] if plain else padded
    if not plain:
        copies.add(x, part, target)
    strides = [*(abs(d) * t for d, t in zip(p["dilation"], like.strides[1:-2], strict=True))]
    back = [slice(None, None, 1 if d > 0 else -1) for d in p["dilation"]]
    chunk = lanes.lanes if lanes.summed else 1  # channels of a term
    extents = zip((*s.over, s.c // chunk), (*strides, chunk * like.strides[-1]), strict=True)
    terms = sum(
        step * np.arange(n).reshape([-1 if e == d else 1 for e in range(k + 1)])
        for d, (n, step) in enumerate(extents)
    ).reshape(-1)
    run = direct_rows(like, out, lanes, terms, p["strides"], apart, threads)
    if run is None:
        return None
    packs = _packing(w, room[1], lanes, back, apart, threads)

    def direct(x: Any, w: Any, out: Any) -> None:
        if plain:
            images = x[part]
        else:
            if not fits:
                padded.fill(0)
            copies.run(x)
            images = padded
        for pack, view, to in packs:
            pack(view(w), to)
        run(images, room[1], out)

    return direct


def _packing(
    w: Any, packed: Any, lanes: Lanes, back: Sequence[slice], apart: bool, threads: int
) -> list[tuple[Function, Callable[[Any], Any], Any]]:
    """Functions that bring filters to blocks: whole ones, and the rest, behind which are zeros."""
    whole = lanes.many // lanes.width * lanes.width

    def units(w: Any) -> Any:
        w = w[*back]
        return w[..., 0][None] if apart else np.moveaxis(w, -2, 0)  # u r s c l

    def full(w: Any) -> Any:
        w = units(w)[..., :whole]
        return np.moveaxis(w.reshape(*w.shape[:-1], -1, lanes.width), -2, 1)

    found = list[tuple[Function, Callable[[Any], Any], Any]]()
    if lanes.summed:

        def turned(w: Any) -> Any:
            return np.moveaxis(units(w), -1, 1)

        return [(_copy(turned(w), packed, threads), turned, packed)]
    if whole:
        target = packed[:, : whole // lanes.width]
        found.append((_copy(full(w), target, threads), full, target))
    if lanes.is_ragged:

        def rest(w: Any) -> Any:
            return units(w)[..., whole:]

        packed[:, -1] = 0
        target = packed[:, -1, ..., : lanes.many - whole]
        copy, last = _copy(rest(w), target, threads), packed[:, -1]

        def ragged(view: Any, target: Any) -> None:
            last.fill(0)
            copy(view, target)

        found.append((ragged, rest, target))
    return found


# -- windows as columns --------------------------------------------------------------------
def _columns_room(s: _Sizes, dtype: DType, p: Any, way: str) -> Iterator[tuple[Shape, DType]]:
    yield (s.g, s.n, *s.made, *s.over, s.c), dtype
    yield (s.g, *s.over, s.c, s.o), dtype


def _columns(
    arrays: Sequence[Any], s: _Sizes, at: Place, threads: int, room: Sequence[Any], p: Any
) -> Function | None:
    x, w, out = arrays
    columns, weights = room
    k = len(s.over)
    made = _matrices(out, s)
    if made is None:
        return None
    steps = {name: p[name] for name in ("strides", "dilation", "offsets", "every")}
    windows = windows_of(at.in_shapes[1][:k], **steps)
    ranges, boxes = at.ins[1][:k], (at.outs[0][1 : k + 1], at.ins[0][1 : k + 1])
    copies, covered = _Copies(threads), 0

    def turned(a: Any) -> Any:
        return np.moveaxis(a, -2, 0)  # groups first

    for rs in itertools.product(*(range(*own) for own in ranges)):
        ours, theirs = taps(windows, *boxes, rs)
        which = [r - lo for r, (lo, _) in zip(rs, ranges, strict=True)]
        target = columns[(slice(None), slice(None), *ours, *which)]
        covered += target.size
        copies.add(turned(x), (slice(None), slice(None), *theirs), target)
    order = [k + 1, *range(k + 1), k + 2]
    pack = _copy(w.transpose(order), weights, threads)
    left, right = columns.reshape(s.g, s.rows, -1), weights.reshape(s.g, -1, s.o)
    multiply = product(left, right, made, threads) or np.matmul

    def run(x: Any, w: Any, out: Any) -> None:
        if covered < columns.size:
            columns.fill(0)
        copies.run(turned(x))
        pack(w.transpose(order), weights)
        multiply(left, right, _matrices(out, s))

    return run


def _matrices(out: Any, s: _Sizes) -> Any:
    """Results as a matrix for each group; None if they do not lie so."""
    try:
        return np.moveaxis(out.reshape((s.rows, s.g, s.o), copy=False), 1, 0)
    except ValueError:
        return None


# -- tiles by fewer multiplications --------------------------------------------------------
def _winograd_room(s: _Sizes, dtype: DType, p: Any, way: str) -> Iterator[tuple[Shape, DType]]:
    m = _TILES[way]
    tiles = [-(-n // m) for n in s.made]
    yield (s.n, *(m * t + 2 for t in tiles), s.c), dtype
    yield (m + 2, m + 2, s.n, *tiles, s.c), dtype
    yield (m + 2, m + 2, s.c, s.o), dtype
    yield (m + 2, m + 2, s.n, *tiles, s.o), dtype
    if any(n % m for n in s.made):
        yield (s.n, *(m * t for t in tiles), s.o), dtype


def _winograd(
    arrays: Sequence[Any], s: _Sizes, at: Place, threads: int, room: Sequence[Any], p: Any
) -> Function | None:
    x, w, out = arrays
    padded, images, filters, sums, *larger = room
    m, back = len(images) - 2, [slice(None, None, d) for d in p["dilation"]]
    part, target = _surrounded(x[..., 0, :], _begins(at, p), padded)
    copies = _Copies(threads)
    copies.add(x[..., 0, :], part, target)
    tiles = images.shape[3:5]

    def pieces(a: Any) -> list[Any]:
        """Return each place of all tiles."""
        places = itertools.product(range(m + 2), repeat=2)
        ends = [m * (t - 1) + 1 for t in tiles]
        return [a[:, r : r + ends[0] : m, q : q + ends[1] : m] for r, q in places]

    def given(w: Any) -> list[Any]:
        turned = w[*back]
        return [turned[r, q, :, 0] for r in range(3) for q in range(3)]

    def results(out: Any) -> list[Any]:
        return [out[:, r::m, q::m] for r in range(m) for q in range(m)]

    def flat(a: Any) -> list[Any]:
        return [a[r, q] for r in range(m + 2) for q in range(m + 2)]

    whole = larger[0] if larger else out[..., 0, :]
    before = _transform("images", m, pieces(padded), flat(images), threads)
    weigh = _transform("filters", m, given(w), flat(filters), threads)
    after = _transform("results", m, flat(sums), results(whole), threads)
    left, right, made = (a.reshape((m + 2) ** 2, -1, a.shape[-1]) for a in (images, filters, sums))
    multiply = product(left, right, made, threads) or np.matmul
    if before is None or weigh is None or after is None:
        return None
    read, wrote, inside = [*pieces(padded), *flat(images)], flat(filters), flat(sums)
    fits = target.size == padded.size
    own = tuple(slice(0, n) for n in (s.n, *s.made))

    def run(x: Any, w: Any, out: Any) -> None:
        if not fits:
            padded.fill(0)
        copies.run(x[..., 0, :])
        before(*read)
        weigh(*given(w), *wrote)
        multiply(left, right, made)
        out = out[..., 0, :]
        after(*inside, *results(larger[0] if larger else out))
        if larger:
            np.copyto(out, larger[0][own])

    return run


def _transform(
    what: str, m: int, ins: Sequence[Any], outs: Sequence[Any], threads: int
) -> Function | None:
    """Elements of a square as sums of those of another, by a matrix along each side."""
    shape = ins[0].shape
    body = _transformed(what, m, ins[0].dtype)
    return native_kernel(body, shape, [a.strides for a in (*ins, *outs)], threads)


@lru_cache(16)
def _transformed(what: str, m: int, dtype: DType) -> Graph:
    matrix = {"images": _IMAGES, "filters": _FILTERS, "results": _RESULTS}[what][m]
    n = len(matrix[0])
    builder = Builder([Spec((1,), dtype)] * n**2)
    x = [[Expression(builder, n * r + q) for q in range(n)] for r in range(n)]
    half = [[_sum(row, [x[r][q] for r in range(n)]) for q in range(n)] for row in matrix]
    found = [_sum(row, line) for line in half for row in matrix]
    return builder.graph([e.value for e in found])


def _sum(factors: Sequence[float], terms: Sequence[Expression]) -> Expression:
    known = sorted(
        ((f, t) for f, t in zip(factors, terms, strict=True) if f), key=lambda one: one[0] < 0
    )
    (f, first), *rest = known
    made = first if f == 1 else first * f
    for f, t in rest:
        part = t if abs(f) == 1 else t * abs(f)
        made = made + part if f > 0 else made - part
    return made


# -- transforms ----------------------------------------------------------------------------
def _fast(n: int) -> int:
    """The next length of factors 2, 3 and 5."""
    while True:
        m = n
        for f in (2, 3, 5):
            while m % f == 0:
                m //= f
        if m == 1:
            return n
        n += 1


def _reach(s: _Sizes, p: Any) -> list[int]:
    return [abs(d) * (r - 1) for d, r in zip(p["dilation"], s.over, strict=True)]


def _fft_room(s: _Sizes, dtype: DType, p: Any, way: str) -> Iterator[tuple[Shape, DType]]:
    lengths = [_fast(n + r) for n, r in zip(s.made, _reach(s, p), strict=True)]
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    pairs = complex64 if dtype == float32 else complex128
    for shape in ((s.n, *lengths, s.g, s.c), (s.c, *lengths, s.g, s.o), (s.n, *lengths, s.g, s.o)):
        yield shape, dtype
        yield (shape[0], *half, *shape[-2:]), pairs


def _fft(
    arrays: Sequence[Any], s: _Sizes, at: Place, threads: int, room: Sequence[Any], p: Any
) -> Function | None:
    """Filters go backwards, so that products of what is transformed are of windows."""
    x, w, out = arrays
    padded, images, spread, filters, whole, sums = room
    k, reach = len(s.over), _reach(s, p)
    copies = _Copies(threads)
    copies.add(x, *_surrounded(x, _begins(at, p), padded))
    back = tuple(slice(None, None, -1 if d > 0 else 1) for d in p["dilation"])
    steps = zip(reach, p["dilation"], strict=True)
    places = spread[(slice(None), *(slice(0, r + 1, abs(d)) for r, d in steps))]

    def turned(w: Any) -> Any:
        return np.moveaxis(w[back], -3, 0)  # c r s g o

    spread_out = _copy(turned(w), places, threads)
    found = whole[(slice(None), *(slice(r, r + n) for r, n in zip(reach, s.made, strict=True)))]
    take = _copy(found, out, threads)
    forward = [_axes(a, b, k, threads) for a, b in ((padded, images), (spread, filters))]
    backward = [
        *(transforming((sums, sums), d, threads, "ifft", "backward") for d in range(1, k)),
        transforming((sums, whole), k, threads, "irfft", "backward", whole.shape[k]),
    ]
    multiply = _frequencies(images, filters, sums, s, threads)

    def run(x: Any, w: Any, out: Any) -> None:
        padded.fill(0)
        copies.run(x)
        spread.fill(0)
        spread_out(turned(w), places)
        for transform in forward:
            transform()
        multiply()
        for inner in backward[:-1]:
            inner(sums, sums)
        backward[-1](sums, whole)
        take(found, out)

    return run


def _axes(x: Any, made: Any, k: int, threads: int) -> Callable[[], None]:
    first = transforming((x, made), k, threads, "rfft", "backward")
    others = [transforming((made, made), d, threads, "fft", "backward") for d in range(1, k)]

    def run() -> None:
        first(x, made)
        for transform in others:
            transform(made, made)

    return run


def _frequencies(x: Any, w: Any, made: Any, s: _Sizes, threads: int) -> Callable[[], None]:
    """Products of numbers, where there is one channel, else of matrices for each frequency and group."""
    if s.c == 1:
        shape, kind = made.shape, x.dtype
        builder = Builder([Spec(shape, kind)] * 2)
        body = builder.graph([builder.call("multiply", 0, 1)])
        a, b = np.broadcast_to(x, shape), np.broadcast_to(w, shape)
        times = native_kernel(body, shape, [v.strides for v in (a, b, made)], threads)
        if times is not None:
            return lambda: times(a, b, made)
    left, right, out = (np.moveaxis(a, 0, -2) for a in (x, w, made))  # frequencies g n c
    multiply = product(left, right, out, threads) or np.matmul
    return lambda: multiply(left, right, out)


_ROOMS = {
    "direct": _direct_room,
    "columns": _columns_room,
    **dict.fromkeys(_TILES, _winograd_room),
    "fft": _fft_room,
}
_MADE = {"direct": _direct, "columns": _columns, **dict.fromkeys(_TILES, _winograd), "fft": _fft}
CONV_WAYS = (*_ROOMS,)
