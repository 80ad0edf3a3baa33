"""Chunks of samples by machine code, with one call: read, decoded, cropped, resized, into their batch.

Between two calls of a library a thread takes Python's lock, and waits for it if others compute: with a call
for each stage, four times for each image. So stages may say what they do to an image in machine code
(`Native`), and a chunk of samples goes through all of them without Python in between.

Machine code gives the bits of the ordinary way, or says that a sample is not for it: one that is damaged, or
odd, or too large. Such samples go the ordinary way, and so do all if one stage has no machine code.

What is known of an image on its way are the words of `FIELDS`. Functions are given these and a stage's
numbers, and answer 0, or `NOT_MINE`, or `NO_ROOM`; the first of them is what a source does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import CodeAddress, Words, address_of, once, symbol

FIELDS = (
    "data", "size",  # of a file's name at first, then of what is in it; 0 if there is none
    "pixels", "stride", "height", "width",  # 0 until it is decoded; rows may lie backwards,
    "step", "channels",  # and so may the pixels of a row
    "top", "left", "all_height", "all_width",  # where it is in the image that is still to be decoded
    "place", "number", "key0", "key1",  # what random numbers depend on: `number` is the stage's
    "out", "out0", "out1", "out2",  # of the last function: its place in the batch, and extents
    "stamp",  # of a file: what it was when it was read first, or 0; and what it is
    "filled",  # whether the result is there
    "room", "end", "wanted",  # memory that is free, and how much more it should be
)  # fmt: skip
NOT_MINE, NO_ROOM = 1, 2
FIRST, MOST = 1 << 22, 1 << 26  # bytes of a thread's room
ALIGN = 64
SAMPLE = ("data", "size", "pixels", "stride", "height", "width", "place", "stamp", "out", "answer")
STEP = ("function", "numbers", "number")
PIXELS = 1 << 25  # that are surely gone over in a second
CLOCKS = 1, 3  # CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID


class Form(NamedTuple):
    """What is known of images before any of them is there."""

    channels: int
    dtype: str = "uint8"


@dataclass(frozen=True)
class Native:
    """What a stage does to an image, as functions; None where it does nothing."""

    opens: CodeAddress | None = None  # says an image's extents
    looks: CodeAddress | None = None  # draws, and leaves out what the stage does not look at
    makes: CodeAddress | None = None  # all else
    numbers: Words | np.ndarray[Any, Any] | None = None
    form: Form | None = None  # of images behind it, if it changes that
    work: Callable[[bytes], float] | None = (
        None  # pixels that it goes over, at most, if that may be many
    )


# -- for those who write functions -------------------------------------------------------------
def get(*names: str) -> str:
    return "\n".join(
        f"  %{n}_at = getelementptr i64, ptr %s, i64 {FIELDS.index(n)}\n  %{n} = load i64, ptr %{n}_at"
        for n in names
    )


def put(**values: str | int) -> str:
    return "\n".join(
        f"  %{n}_to = getelementptr i64, ptr %s, i64 {FIELDS.index(n)}\n  store i64 {v}, ptr %{n}_to"
        for n, v in values.items()
    )


def number(*names: str) -> str:
    """A stage's numbers, in order, as float64."""
    return "\n".join(
        f"  %{n}_at = getelementptr double, ptr %numbers, i64 {k}\n  %{n} = load double, ptr %{n}_at"
        for k, n in enumerate(names)
        if n
    )


ROOM = f"""
define internal ptr @take(ptr %s, i64 %bytes) nounwind {{
entry:
{get("room", "end", "wanted")}
  %up = add i64 %room, {ALIGN - 1}
  %at = and i64 %up, {-ALIGN}
  %next = add i64 %at, %bytes
  %fits = icmp ule i64 %next, %end
  br i1 %fits, label %there, label %lacks
there:
{put(room="%next")}
  %found = inttoptr i64 %at to ptr
  ret ptr %found
lacks:
  %more = add i64 %wanted, %bytes
{put(wanted="%more")}
  ret ptr null
}}
"""


def made(text: str) -> CodeAddress:
    """The `run` of a function."""
    return llvm.linked(text)


@once
def can() -> bool:
    try:
        return not llvm.why_not() and bool(ctypes.CDLL(None).clock_gettime)
    except (AttributeError, OSError):
        return False


# -- chunks ------------------------------------------------------------------------------------
class Room:
    """A thread's memory, for what is between two functions."""

    def __init__(self) -> None:
        self.fields = np.zeros(len(FIELDS), np.int64)
        self.at = self.fields.ctypes.data
        self.grow(FIRST)

    def grow(self, size: int) -> None:
        self.memory = np.empty(size, np.uint8)
        begin = self.memory.ctypes.data
        self.fields[_ROOM : _ROOM + 3] = begin, begin + size, 0

    def look(self) -> None:
        """Have more next time, if it was too little."""
        wanted, size = int(self.fields[_WANTED]), len(self.memory)
        if wanted:
            self.fields[_WANTED] = 0
            if size < MOST:
                self.grow(min(2 * (size + wanted), MOST))


_ROOM, _WANTED, _KEY, _OUT = (FIELDS.index(n) for n in ("room", "wanted", "key0", "out0"))
_CHANNELS = FIELDS.index("channels")
_PLACE, _ANSWER = SAMPLE.index("place"), SAMPLE.index("answer")


class Run:
    """The functions of a chain, one after another, for the image of a sample."""

    def __init__(
        self,
        parts: Sequence[tuple[int, int, Native]],
        reader: Native | None,
        form: Form,
        out: np.ndarray[Any, Any],
        seconds: float | None = None,
    ) -> None:
        """parts: of each stage its place in the chain, its number and what it does. reader: what a
        source does, given files' names. out: a sample's place in its batch. seconds: that a sample has,
        as nobody could end what takes longer here."""
        steps: list[tuple[int, Any, Any, int]] = []
        if reader is not None:
            steps.append((0, reader.makes, reader.numbers, 0))
        decodes: tuple[int, Any, Any, int] | None = None  # until it is known what is looked at
        for k, drawn, native in parts:
            at = native.numbers
            if native.opens is not None:
                steps.append((k + 1, native.opens, at, drawn))
                decodes = k + 1, native.makes, at, drawn
                continue
            if native.looks is not None:
                steps.append((k + 1, native.looks, at, drawn))
            if decodes is not None:
                steps.append(decodes)
                decodes = None
            if native.makes is not None:
                steps.append((k + 1, native.makes, at, drawn))
        if decodes is not None:
            steps.append(decodes)
        works = [native.work for _, _, native in parts if native.work is not None]
        self.work, self.most = works[0] if works and seconds else None, (seconds or 0.0) * PIXELS
        self.reads = reader is not None
        self.decodes = any(native.opens for _, _, native in parts)
        self.stages = [k for k, *_ in steps]
        self.steps = Words(*(word for _, *words in steps for word in words))
        self.form, self.shape, self.bytes = form, out.shape, out.nbytes
        self.fields: Any = None  # of samples, and
        self.leaf = 0  # which of their leaves is the image;
        self.beside = 0  # bytes of the others
        self.function = _function(form.channels, out.dtype == np.uint8)

    def times(self) -> np.ndarray[Any, Any]:
        """Nanoseconds on the wall and of CPU time, and bytes, before the first function and behind each."""
        return np.zeros((1 + len(self.stages), 3), np.int64)

    def __call__(
        self,
        room: Room,
        keys: tuple[int, int],
        values: Sequence[Any],
        places: Sequence[int],
        out: int,
        halt: np.ndarray[Any, Any],
        times: np.ndarray[Any, Any] | None,
        stamps: np.ndarray[Any, Any] | None = None,
    ) -> list[int]:
        """Bring images to their places, which begin at an address; what each of them was answered, the
        stamps of their files, and `times` of the first one. halt: a word; images that are left when it is
        not 0 are nobody's."""
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
        samples[:, _PLACE] = places
        samples[:, _PLACE + 2] = range(out, out + count * self.bytes, self.bytes)
        if stamps is not None:
            samples[:, _PLACE + 1] = stamps
        fields = room.fields
        fields[_KEY : _KEY + 2] = keys
        fields[_OUT : _OUT + 3] = self.shape
        fields[_CHANNELS] = self.form.channels
        at = 0 if times is None else times.ctypes.data
        given = samples.ctypes.data, count, halt.ctypes.data, at
        self.function(self.steps, len(self.stages), room.at, *given)
        if stamps is not None:
            stamps[:] = samples[:, _PLACE + 1]
        room.look()
        found: list[int] = samples[:, _ANSWER].tolist()
        return found

    def _fill(self, row: Any, value: Any) -> None:
        """Of an image that is decoded, or that is nothing for machine code."""
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


@once
def _function(channels: int, is_image: bool) -> Any:
    symbol("clock_gettime", address_of(ctypes.CDLL(None), "clock_gettime"))
    long, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    kinds = (pointer, long, pointer, pointer, long, pointer, pointer)
    return llvm.linked(_text(channels, is_image)).function(None, *kinds)


def _text(channels: int, is_image: bool) -> str:
    """`run`: steps and how many, fields, samples and how many, a word that ends it, times or null.
    is_image: what the last function leaves goes to the batch as it is, if it did not put it there."""
    row = 8 * len(SAMPLE)
    loads = "\n".join(
        f"  %{n}_from = getelementptr i64, ptr %sample, i64 {k}\n  %{n}_new = load i64, ptr %{n}_from"
        for k, n in enumerate(SAMPLE[:-1])
    )
    begun = {n: f"%{n}_new" for n in SAMPLE[:6]} | {"place": "%place_new", "stamp": "%stamp_new"}
    clocks = "\n".join(
        f"  %c{k} = call i32 @clock_gettime(i32 {clock}, ptr %now)\n"
        f"  %s{k} = load i64, ptr %now\n  %s{k}n = mul i64 %s{k}, 1000000000\n"
        f"  %n{k}p = getelementptr i64, ptr %now, i64 1\n  %n{k} = load i64, ptr %n{k}p\n"
        f"  %t{k} = add i64 %s{k}n, %n{k}\n"
        f"  %t{k}p = getelementptr i64, ptr %times, i64 {k}\n  store i64 %t{k}, ptr %t{k}p"
        for k, clock in enumerate(CLOCKS)
    )
    return f"""
declare i32 @clock_gettime(i32, ptr) nonlazybind
{copied(channels)}
define internal void @look(ptr %times, ptr %s) nounwind {{
entry:
  %now = alloca [2 x i64]
{clocks}
{get("pixels", "size", "height", "width")}
  %is_coded = icmp eq i64 %pixels, 0
  %area = mul i64 %height, %width
  %bytes = mul i64 %area, {channels}
  %there = select i1 %is_coded, i64 %size, i64 %bytes
  %bp = getelementptr i64, ptr %times, i64 2
  store i64 %there, ptr %bp
  ret void
}}

define void @run(ptr %steps, i64 %count, ptr %s, ptr %samples, i64 %n, ptr %halt, ptr %times)
    nounwind {{
entry:
{get("room")}
  %final = sub i64 %count, 1
  br label %samples_loop
samples_loop:
  %i = phi i64 [0, %entry], [%in, %answered]
  %so = mul i64 %i, {row}
  %sample = getelementptr i8, ptr %samples, i64 %so
{loads}
{put(**begun, step=channels, top=0, left=0, out=0, filled=0, room="%room")}
  %given = or i64 %size_new, %pixels_new
  %has_image = icmp ne i64 %given, 0
  %stops = load volatile i64, ptr %halt
  %goes_on = icmp eq i64 %stops, 0
  %is_given = and i1 %has_image, %goes_on
  %has_times = icmp ne ptr %times, null
  %is_first = icmp eq i64 %i, 0
  %looks = and i1 %has_times, %is_first
  br i1 %is_given, label %given_one, label %nothing
nothing:
  br label %answered
given_one:
  br i1 %looks, label %begin, label %steps_loop
begin:
  call void @look(ptr %times, ptr %s)
  br label %steps_loop
steps_loop:
  %j = phi i64 [0, %given_one], [0, %begin], [%jn, %on]
  %jo = mul i64 %j, {len(STEP)}
  %step_p = getelementptr i64, ptr %steps, i64 %jo
  %f = load ptr, ptr %step_p
  %np = getelementptr i64, ptr %step_p, i64 1
  %numbers = load ptr, ptr %np
  %kp = getelementptr i64, ptr %step_p, i64 2
  %k = load i64, ptr %kp
  %is_last = icmp eq i64 %j, %final
  %out_now = select i1 %is_last, i64 %out_new, i64 0
{put(number="%k").replace("_to", "_step")}
  %out_at = getelementptr i64, ptr %s, i64 {FIELDS.index("out")}
  store i64 %out_now, ptr %out_at
  %said = call i64 %f(ptr %s, ptr %numbers) nounwind
  br i1 %looks, label %look, label %on
look:
  %to0 = mul i64 %j, 3
  %to = add i64 %to0, 3
  %tp = getelementptr i64, ptr %times, i64 %to
  call void @look(ptr %tp, ptr %s)
  br label %on
on:
  %jn = add i64 %j, 1
  %more = icmp slt i64 %jn, %count
  %good = icmp eq i64 %said, 0
  %goes = and i1 %more, %good
  br i1 %goes, label %steps_loop, label %over
over:
  br i1 %good, label %done, label %answered
done:
  %put = call i64 @copied(ptr %s, ptr null, i64 {int(is_image)}, i64 %out_new)
  br label %answered
answered:
  %answer = phi i64 [{NOT_MINE}, %nothing], [%said, %over], [%put, %done]
  %ap = getelementptr i64, ptr %sample, i64 {_ANSWER}
  store i64 %answer, ptr %ap
{get("stamp")}
  store i64 %stamp, ptr %stamp_from
  %in = add i64 %i, 1
  %left_over = icmp slt i64 %in, %n
  br i1 %left_over, label %samples_loop, label %end
end:
{put(room="%room").replace("_to", "_end")}
  ret void
}}
"""


def copied(channels: int) -> str:
    """An image to its place, unless it is there; pixels of a row may lie backwards, which are turned many
    at a time."""
    many = 16
    size = many * channels
    turned = ", ".join(
        f"i32 {(many - 1 - k) * channels + c}" for k in range(many) for c in range(channels)
    )
    single = "\n".join(
        f"  %f{c} = getelementptr i8, ptr %from, i64 {c}\n  %v{c} = load i8, ptr %f{c}\n"
        f"  %g{c} = getelementptr i8, ptr %to, i64 {c}\n  store i8 %v{c}, ptr %g{c}"
        for c in range(channels)
    )
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define internal i64 @copied(ptr %s, ptr %numbers, i64 %is_image, i64 %out_new) nounwind {{
entry:
{get("filled", "pixels", "stride", "step", "height", "width", "out0", "out1", "out2")}
  %is_there = icmp ne i64 %filled, 0
  br i1 %is_there, label %good, label %look
look:
  %may = icmp ne i64 %is_image, 0
  %has = icmp ne i64 %pixels, 0
  %e0 = icmp eq i64 %out0, %height
  %e1 = icmp eq i64 %out1, %width
  %e2 = icmp eq i64 %out2, {channels}
  %a = and i1 %may, %has
  %b = and i1 %e0, %e1
  %ab = and i1 %a, %b
  %all = and i1 %ab, %e2
  br i1 %all, label %rows, label %bad
rows:
  %x = inttoptr i64 %pixels to ptr
  %out_p = inttoptr i64 %out_new to ptr
  %wide = mul i64 %width, {channels}
  %is_straight = icmp eq i64 %step, {channels}
  br label %row
row:
  %r = phi i64 [0, %rows], [%rn, %next]
  %ro = mul i64 %r, %stride
  %xr = getelementptr i8, ptr %x, i64 %ro
  %oo = mul i64 %r, %wide
  %o = getelementptr i8, ptr %out_p, i64 %oo
  br i1 %is_straight, label %whole, label %many
whole:
  call void @llvm.memcpy.p0.p0.i64(ptr %o, ptr %xr, i64 %wide, i1 false)
  br label %next
many:
  %k = phi i64 [0, %row], [%kn, %turns]
  %kn = add i64 %k, {many}
  %fits = icmp sle i64 %kn, %width
  br i1 %fits, label %turns, label %rest
turns:
  %last = sub i64 %kn, 1
  %fo = mul i64 %last, %step
  %fp = getelementptr i8, ptr %xr, i64 %fo
  %bytes = load <{size} x i8>, ptr %fp, align 1
  %turned = shufflevector <{size} x i8> %bytes, <{size} x i8> poison, <{size} x i32> <{turned}>
  %to_o = mul i64 %k, {channels}
  %to_p = getelementptr i8, ptr %o, i64 %to_o
  store <{size} x i8> %turned, ptr %to_p, align 1
  br label %many
rest:
  %e = phi i64 [%k, %many], [%en, %single]
  %left = icmp slt i64 %e, %width
  br i1 %left, label %single, label %next
single:
  %eo = mul i64 %e, %step
  %from = getelementptr i8, ptr %xr, i64 %eo
  %et = mul i64 %e, {channels}
  %to = getelementptr i8, ptr %o, i64 %et
{single}
  %en = add i64 %e, 1
  br label %rest
next:
  %rn = add i64 %r, 1
  %more = icmp slt i64 %rn, %height
  br i1 %more, label %row, label %good
good:
  ret i64 0
bad:
  ret i64 {NOT_MINE}
}}
"""
