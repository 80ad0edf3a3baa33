"""Chunks of samples by machine code, with one call: read, decoded, cropped, resized, into their batch.

Between two calls of a library a thread takes Python's lock, and waits for it if others compute: with a call
for each stage, four times for each image. So stages may say how machine code plans what they do (`Native`):
which part they look at (`Look`), and in which size. A chunk of samples then goes through all of them without
Python in between: only what is looked at is decoded, and only the last step writes to the batch.

Machine code gives the bits of the ordinary way, or says that a sample is not for it: one that is damaged, or
odd, or too large. Such samples go the ordinary way, and so do all if one stage does not say what it does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.spec import bool_, float32, float64, int32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import once
from ostinato.ops.cpu.jit.routine import Memory, Routine, larger, whole_of
from ostinato.ops.jit.values import Value, cast, shift, where

SAMPLE = (
    "data", "size",  # of a file's name, or of what is in it; 0 if there is none
    "pixels", "stride", "height", "width",  # of an image that is decoded
    "place", "stamp", "out", "answer",
)  # fmt: skip
NOT_MINE, NO_ROOM = 1, 2
MIN_ROOM, MAX_ROOM = 1 << 22, 1 << 26  # bytes of a thread's room
PIXELS = 1 << 25  # that are surely gone over in a second
MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157  # Philox4x64's, by which sample_draws.py draws
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10


class Form(NamedTuple):
    """What is known of images before any of them is there."""

    channels: int
    dtype: str = "uint8"


class Native(NamedTuple):
    """A stage's part in the machine code of a chain."""

    plan: Callable[[Look, int], object] | None = None  # by its number among those that draw
    opens: tuple[Routine, Routine] | None = None  # of a decoder: a file's extents, a part of it
    most: int = 0  # pixels that it decodes
    smooth: bool | None = None  # of a resize: whether pixels are mixed of all that they cover
    line: np.ndarray[Any, Any] | None = None  # of the last step: factors and addends
    form: Form | None = None  # of images behind it, if it changes that
    work: Callable[[bytes], float] | None = None  # pixels that it goes over, at most, if many


@once
def can() -> bool:
    return not llvm.why_not()


# -- one image ---------------------------------------------------------------------------------
class Look:
    """The part of an image that stages look at, as machine code finds it: rows and columns of the image,
    or of the size that a part of it was brought to."""

    def __init__(self, made: Routine, numbers: Memory, keys: tuple[Value, Value, Value]) -> None:
        self.made, self._numbers, self.keys = made, numbers, keys
        self.told: list[float] = []
        zero = made.whole(0)
        self.top, self.left, self.height, self.width = (made.variable(zero) for _ in range(4))
        self.down, self.right = made.variable(zero), made.variable(zero)  # 1: it is mirrored
        self.part = [made.variable(zero) for _ in range(4)]  # the window of a resize,
        self.rows, self.columns = made.variable(zero), made.variable(zero)  # and its size, or 0

    def number(self, value: float) -> Value:
        """A stage's number, which is no part of the text."""
        self.told.append(value)
        return self._numbers[len(self.told) - 1]

    def size(self, value: int) -> Value:
        return whole_of(self.number(float(value)), int64)

    def drawn(self, stage: int, turn: Value | int = 0) -> list[Value]:
        """The next four numbers in [0, 1) that are drawn for the sample in a stage."""
        found = self.made.own(4, float64)
        place, *keys = self.keys
        numbers = self.made.whole(stage), *keys, self.made.whole(turn)
        self.made.calls(_draw(), place, *numbers, found)
        return [found[k] for k in range(4)]

    def refuse_if(self, condition: Value) -> None:
        self.made.leaves_if(condition, NOT_MINE)

    def crop(self, top: Value, left: Value, height: Value, width: Value) -> None:
        """A part of it, which lies inside."""
        for at, extent, mirrored, begin, new in (
            (self.top, self.height, self.down, top, height),
            (self.left, self.width, self.right, left, width),
        ):
            at.now = at.now + where(mirrored.now == 0, begin, extent.now - begin - new)
            extent.now = new

    def resize(self, height: Value, width: Value) -> None:
        made, old = self.made, (self.height.now, self.width.now)
        with made.given_that((height != old[0]) | (width != old[1])):
            self.refuse_if((self.rows.now | self.down.now | self.right.now) != 0)
            window = self.top, self.left, self.height, self.width
            for kept, now in zip(self.part, window, strict=True):
                kept.now = now.now
            self.rows.now, self.columns.now = height, width
            self.height.now, self.width.now = height, width
            self.top.now = self.left.now = made.whole(0)

    def mirror(self, vertical: bool, does: Value) -> None:
        turned = self.down if vertical else self.right
        turned.now = turned.now ^ cast(does, int64)


@once
def _draw() -> Routine:
    """Draws as `Draws` does: of a place, a stage and two keys the k-th four numbers."""
    made = Routine(
        None, "draw", place=int64, stage=int64, key0=int64, key1=int64, k=int64, found=[float64]
    )
    place, stage, *keys, k, found = made.given
    c = [k + 1, place, stage, made.whole(0)]
    for _ in range(ROUNDS):
        (low0, high0), (low1, high1) = (made.product(c[2 * n], MULTIPLIERS[n]) for n in (0, 1))
        c = [high1 ^ c[1] ^ keys[0], low1, high0 ^ c[3] ^ keys[1], low0]
        keys = [key + (word - (1 << 64)) for key, word in zip(keys, WEYL, strict=True)]
    for n, word in enumerate(c):
        found[n] = cast(shift(word, "lshr", 11), float64) * 2.0**-53
    return made


class _Image:
    """The text of one image's way: `run` of rows of SAMPLE."""

    def __init__(
        self, parts: Sequence[tuple[int, Native]], form: Form, dtype: str, reader: Routine | None
    ) -> None:
        self.made = made = Routine(
            int64, "image", row=[int64], height=int64, width=int64, key0=int64, key1=int64,
            numbers=[float64], room=[uint8], bytes=int64, wanted=[int64], line=[float32],
        )  # fmt: skip
        self.row, *size, key0, key1, numbers, self.room, self.bytes, self.wanted, line = made.given
        self.of = {name: self.row[k] for k, name in enumerate(SAMPLE)}
        self.look = look = Look(made, numbers, (self.of["place"], key0, key1))
        self.channels, self.free = form.channels, made.variable(self.room.address)
        self.pixels = made.variable(self.of["pixels"])
        self.stride = made.variable(self.of["stride"])
        self.data = [made.variable(self.of[n]) for n in ("data", "size")]
        look.height.now, look.width.now = self.of["height"], self.of["width"]
        opens = next((n for _, n in parts if n.opens), None)
        if reader is not None:
            self._read(reader)
        if opens is not None and opens.opens is not None:
            self._open(opens.opens[0], look.number(float(opens.most)))
        extents = look.height.now, look.width.now
        for number, native in parts:
            if native.plan is not None:
                native.plan(look, number)
        look.refuse_if((look.height.now != size[0]) | (look.width.now != size[1]))
        is_resized = look.rows.now != 0
        whole = (look.top, look.left, look.height, look.width)
        window = [where(is_resized, a.now, b.now) for a, b in zip(look.part, whole, strict=True)]
        self._take_part(None if opens is None else opens.opens, window, extents)
        smooth = next((n.smooth for _, n in parts if n.smooth is not None), None)
        if smooth is not None:
            self._resize(smooth, window, size, is_plain=dtype == "uint8")
        self._finish(size, dtype, line)

    def take(self, size: Value) -> Memory:
        """So many bytes of the thread's room; where there are not as many, it is to have more next time."""
        made, begin = self.made, (self.free.now + 63) & -64
        end = begin + size - self.room.address
        with made.given_that(end > self.bytes):
            self.wanted[0] = larger(self.wanted[0], end)
            made.ends(NO_ROOM)
            made.label()
        self.free.now = begin + size
        return made.memory(begin, uint8)

    def _read(self, reader: Routine) -> None:
        """A file of a name, to a quarter of what is free."""
        made, of, size = self.made, self.of, shift(self.bytes, "lshr", 2)
        name, out, stamp = made.memory(of["data"], uint8), self.take(size), made.own(1, int64)
        stamp[0] = of["stamp"]
        count = made.calls(reader, name, of["size"], out, size, stamp)
        self.look.refuse_if(count <= 0)
        with made.given_that(count >= size):
            self.wanted[0] = self.bytes * 2
            made.ends(NO_ROOM)
            made.label()
        self.row[SAMPLE.index("stamp")] = stamp[0]
        self.data[0].now, self.data[1].now = out.address, count
        self.free.now = out.address + count

    def _open(self, header: Routine, most: Value) -> None:
        made, look, found = self.made, self.look, self.made.own(2, int64)
        with made.given_that(self.pixels.now == 0):
            data = made.memory(self.data[0].now, uint8)
            look.refuse_if(made.calls(header, data, self.data[1].now, found) != 0)
            area = found[0] * found[1]
            look.refuse_if((area <= 0) | (area > whole_of(most, int64)))
            look.height.now, look.width.now = found[0], found[1]

    def _take_part(
        self,
        opens: tuple[Routine, Routine] | None,
        window: list[Value],
        extents: tuple[Value, Value],
    ) -> None:
        """Decode a window of the image, or look at it where that is done."""
        made, channels = self.made, self.channels
        top, left, _, width = window
        with made.given_that(self.pixels.now != 0):
            self.pixels.now = self.pixels.now + top * self.stride.now + left * channels
        if opens is None:
            return
        from ..images.windows import ALIGNED, GREY, RGB, STATE, taken

        with made.given_that(self.pixels.now == 0):
            data, size = made.memory(self.data[0].now, uint8), self.data[1].now
            begin, wide, first, tall = taken(extents, window)
            columns, row_bytes = made.own(2, int32), (wide + ALIGNED) * channels
            columns[0], columns[1] = cast(begin, int32), cast(wide, int32)
            state, out = self.take(made.whole(STATE)), self.take(tall * row_bytes + 64)
            colours = made.lines.constant(GREY if channels == 1 else RGB, int32)
            failed = made.calls(
                opens[1], state, data, size, colours, cast(first, int32),
                cast(tall, int32), columns, row_bytes, out,
            )  # fmt: skip
            self.look.refuse_if(failed != 0)
            begin, wide = cast(columns[0], int64), cast(columns[1], int64)
            self.look.refuse_if((begin > left) | (begin + wide < left + width))
            self.stride.now = wide * channels
            first_row = out.address + (top - first) * self.stride.now
            self.pixels.now = first_row + (left - begin) * channels

    def _resize(self, smooth: bool, window: list[Value], size: list[Value], is_plain: bool) -> None:
        from ..images import resizing

        made, look, channels, of = self.made, self.look, self.channels, self.of
        rows, columns = look.rows.now, look.columns.now
        with made.given_that(rows != 0):
            height, width = window[2:]
            notes = resizing.notes_bytes(channels, height, width, rows, columns)
            free, to = self.take(notes), self.take(rows * columns * channels + 64)
            is_last = made.lines.constant(False, bool_)
            if is_plain:
                is_last = ((look.down.now | look.right.now) == 0) & (rows == size[0])
                is_last = is_last & (columns == size[1])
            to = made.memory(of["out"], uint8).select(is_last, to)
            x = made.memory(self.pixels.now, uint8)
            old = x, self.stride.now, height, width
            made.calls(resizing.routine(channels, smooth), *old, to, rows, columns, free)
            made.leaves_if(is_last, 0)
            self.stride.now = columns * channels
            self.pixels.now = to.address + look.top.now * self.stride.now + look.left.now * channels

    def _finish(self, size: list[Value], dtype: str, line: Memory) -> None:
        from ..images import kernels

        made, channels, stride = self.made, self.channels, self.stride.now
        down, right = self.look.down.now, self.look.right.now
        last = down * (size[0] - 1) * stride + right * (size[1] - 1) * channels
        x = made.memory(self.pixels.now + last, uint8)
        step = channels - right * (2 * channels)
        given: list[Any] = [x, stride - down * stride * 2, step, *size]
        out = made.memory(self.of["out"], uint8)
        if dtype == "uint8":
            made.calls(_copied(channels), *given, out)
        else:
            made.calls(kernels.routine(channels, dtype), *given, out, line)
        made.ends(0)


def _copied(channels: int, many: int = 16) -> Routine:
    """An image to its place; pixels of a row may lie backwards, which are turned many at a time."""
    made = Routine(
        None, "copied", x=[uint8], stride=int64, step=int64, height=int64, width=int64, out=[uint8]
    )
    x, stride, step, height, width, out = made.given
    turned = [(many - 1 - k) * channels + c for k in range(many) for c in range(channels)]
    is_straight, wide = step == channels, width * channels
    with made.each(height) as r:
        row, to = x.further(r * stride), out.further(r * wide)
        with made.given_that(is_straight):
            to.copy(row, wide)
        with made.given_that(~is_straight):
            whole = width & -many
            with made.each(whole, step=many) as k:
                lanes = row.lanes((k + (many - 1)) * step, many * channels)
                to.put(k * channels, made.chosen(lanes, turned))
            with made.each(width, whole) as k:
                for c in range(channels):
                    to[k * channels + c] = row[k * step + c]
    return made


# -- chunks ------------------------------------------------------------------------------------
class Workspace:
    """A thread's memory, for what is between two steps."""

    def __init__(self) -> None:
        self.memory = np.empty(MIN_ROOM, np.uint8)
        self.wanted = np.zeros(1, np.int64)

    def look(self) -> None:
        """Have more next time, if it was too little."""
        wanted, self.wanted[0] = int(self.wanted[0]), 0
        if wanted and len(self.memory) < MAX_ROOM:
            self.memory = np.empty(min(2 * wanted, MAX_ROOM), np.uint8)


class Run:
    """The stages of a chain, for the images of a chunk."""

    def __init__(
        self,
        parts: Sequence[tuple[int, Native]],
        reader: Routine | None,
        form: Form,
        out: np.ndarray[Any, Any],
        seconds: float | None = None,
    ) -> None:
        """parts: of each stage its number and what it does. reader: of a source that is given files' names.
        out: a sample's place in its batch. seconds: that a sample has, as nobody could end what takes
        longer here."""
        works = [n.work for _, n in parts if n.work is not None]
        self.work, self.most = works[0] if works and seconds else None, (seconds or 0.0) * PIXELS
        self.reads, self.decodes = reader is not None, any(n.opens for _, n in parts)
        self.line = next((n.line for _, n in parts if n.line is not None), None)
        self.form, self.shape, self.bytes = form, out.shape, out.nbytes
        self.size = out.shape[:2] if self.line is None else out.shape[1:]
        self.fields: Any = None  # of samples, and
        self.leaf = 0  # which of their leaves is the image
        image = _Image(parts, form, out.dtype.name, reader)
        self.numbers = np.array([*image.look.told, 0.0])
        self.function = _function(_chunk(image.made).text())

    def __call__(
        self,
        room: Workspace,
        keys: tuple[int, int],
        values: Sequence[Any],
        places: Sequence[int],
        out: int,
        halt: np.ndarray[Any, Any],
        stamps: np.ndarray[Any, Any] | None = None,
    ) -> list[int]:
        """Bring images to their places, which begin at an address; what each of them was answered, and the
        stamps of their files. halt: a word; images that are left when it is not 0 are nobody's."""
        count = len(values)
        samples = np.zeros((count, len(SAMPLE)), np.int64)
        if self.decodes and self.work is None and all(type(v) is bytes for v in values):
            samples[:, 0] = np.frombuffer(
                memoryview((ctypes.c_char_p * count)(*values)).cast("B"), np.int64
            )
            samples[:, 1] = [len(v) for v in values]
        else:
            for row, value in zip(samples, values, strict=True):
                self._fill(row, value)
        samples[:, SAMPLE.index("place")] = places
        samples[:, SAMPLE.index("out")] = range(out, out + count * self.bytes, self.bytes)
        samples[:, -1] = NOT_MINE
        if stamps is not None:
            samples[:, SAMPLE.index("stamp")] = stamps
        line = 0 if self.line is None else self.line.ctypes.data
        addresses = [x.ctypes.data for x in (self.numbers, room.memory, room.wanted, halt, samples)]
        numbers, memory, wanted, stops, at = addresses
        more = numbers, memory, len(room.memory), wanted, line, stops
        self.function(at, count, *self.size, *keys, *more)
        if stamps is not None:
            stamps[:] = samples[:, SAMPLE.index("stamp")]
        room.look()
        found: list[int] = samples[:, -1].tolist()
        return found

    def _fill(self, row: Any, value: Any) -> None:
        """Fill the row of an image that is decoded, or that is nothing for machine code."""
        if type(value) is bytes and self.decodes:
            if self.work is not None and self.work(value) > self.most:
                return
            address = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
            row[:2] = address, len(value)
            return
        channels = self.form.channels
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3:
            return
        if value.size and value.strides[1:] == (channels, 1) and value.shape[2] == channels:
            row[2:6] = value.ctypes.data, value.strides[0], *value.shape[:2]


def _chunk(image: Routine) -> Routine:
    """One image after the other."""
    given: dict[str, Any] = {**image.kinds, "halt": [int64]}
    given.pop("row")
    made = Routine(None, "chunk", rows=[int64], count=int64, **given)
    rows, count, *more, halt = made.given
    with made.each(count) as k:
        row = rows.further(k * len(SAMPLE))
        with made.given_that((halt.latest() == 0) & ((row[1] | row[2]) != 0)):
            row[len(SAMPLE) - 1] = made.does(image, row, *more)
    return made


@once
def _function(text: str) -> Any:
    long, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    kinds = pointer, *[long] * 5, pointer, pointer, long, *[pointer] * 3
    return llvm.linked(text).function(None, *kinds)
