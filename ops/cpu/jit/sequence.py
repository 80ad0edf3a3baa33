"""Calls of kernels turn after turn, without Python in between.

Kernels are functions of Python that read of their arrays no more than the type and where the elements
begin. So machine code can call them with stand-ins that have these two: `at_places` puts one where indices
say, and the turns of `sequence` have them for all arrays: they are filled in at the start, and
those of arrays that move on are moved in each turn. Values that are carried are written where the next
turn reads them: calls have three sets of stand-ins, for the first turn, and for odd and even ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.bounds import inside, outside
from ostinato.ops.core.device import Repeated

from .code import address_of, symbol
from .llvm import function_of
from .parallel import CALLS, TABLES

SETS = 3  # of stand-ins
_RECORD = 2 + SETS  # words of a call: kernel, count of arrays, and stand-ins
_OBJECT = 3  # words of a stand-in: a count that nobody reads, the type, the elements
Calls = Sequence["Call"]


class Spot(NamedTuple):
    """Where an array's elements begin."""

    array: int  # which of those given, or -1: at this address
    offset: int
    step: int = 0  # bytes further in each turn


class Call(NamedTuple):
    kernel: Callable[..., None]
    arrays: Sequence[Sequence[Spot]]  # of each, in the three sets


def sequence(
    body: Calls,
    arrays: int,
    index: Any = None,
    last: int = -1,
    condition: Calls = (),
    test: Any = None,
    held: Any = None,
) -> Repeated:
    """Turns of these calls, given so many arrays. `index` is set to the turn's number, or counts down from
    `last`. Where there is a `test`, a turn begins with the condition's calls, and is none if they leave
    it false. `held`: the arrays at whose addresses spots are."""
    for name in ("Py_DecRef", "PyLong_AsLongLong"):
        symbol(name, address_of(ctypes.pythonapi, name))
    calls = [*condition, *body]
    found = sorted({s for c in calls for a in c.arrays for s in a}, key=lambda s: (s.step == 0, s))
    spots = {s: k for k, s in enumerate(found)}  # those that move first
    moving = sum(s.step != 0 for s in found)
    objects = np.zeros((len(spots), _OBJECT), np.int64)
    objects[:, 1] = id(np.ndarray)
    where = np.array(found, np.int64).reshape(-1, 3)
    sets = [[objects.ctypes.data + 8 * _OBJECT * spots[a[k]] for a in c.arrays]
            for c in calls for k in range(SETS)]  # fmt: skip
    given = [np.array(s, np.int64) for s in sets]
    table = np.zeros((len(calls), _RECORD), np.int64)
    for k, c in enumerate(calls):
        table[k, :2] = id(c.kernel), len(c.arrays)
        table[k, 2:] = [x.ctypes.data for x in given[SETS * k : SETS * (k + 1)]]
    state = np.zeros(2, np.int64)
    facts = [1, 0, arrays, len(spots), len(condition), len(calls), last, moving]
    held = (objects, where, given, table, state, index, test, calls, held)
    facts += [
        0 if x is None else x.ctypes.data for x in (index, test, state, objects, where, table)
    ]

    return Repeated(function_of(_TEXT, np.array(facts, np.int64), held), state)


class Where(NamedTuple):
    """Which places along an axis are inside, and how far each is from the next, in bytes."""

    size: int
    step: int
    back: int  # places below this are counted from the end
    last: int
    clips: bool
    words: bytes  # of the error, if one is outside

    @classmethod
    def of(cls, size: int, extent: int, step: int, bounds: str) -> Where:
        back, last = inside(size, extent, bounds)
        return cls(
            size,
            step,
            back,
            last,
            bounds == "clip",
            outside("%lld", "%lld", extent, bounds).encode(),
        )


def at_places(
    kernel: Callable[..., None], where: Sequence[Where], source: bool, again: bool = False
) -> Callable[..., None]:
    """`run(x, *indices, out)`: what `kernel(x, out)` does, where x, the `source`, or else out, begins further
    by as many steps as the indices say. `again`: `kernel(x, out, out)`."""
    symbol("PyErr_Format", address_of(ctypes.pythonapi, "PyErr_Format"))
    symbol("index_error", IndexError)
    words = [ctypes.create_string_buffer(w.words) for w in where]
    facts = [1, 0, len(where), 0 if source else 1 + len(where), 3 if again else 2, id(kernel)]
    for w, text in zip(where, words, strict=True):
        facts += [*w[:5], ctypes.addressof(text)]
    return function_of(TABLES + CALLS + _PLACES, np.array(facts, np.int64), (kernel, words))


class Step(NamedTuple):
    """A kernel, and which of the arrays given it is given."""

    kernel: Callable[..., None]
    arrays: Sequence[int]
    unless_one: bool = False  # not if its two arrays begin at one place


def in_order(steps: Sequence[Step], arrays: int) -> Callable[..., None]:
    """A kernel of so many arrays that calls these, one after the other, until one fails."""
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    text = [_FIRST.replace("MANY", str(arrays))]
    for k, step in enumerate(steps):
        room = f"[{len(step.arrays)} x ptr]"
        text += [
            f"step{k}:",
            f"  %kernel{k} = call ptr @array(ptr %meta, i64 {2 + k})",
            f"  %given{k} = alloca {room}",
        ]
        for j, which in enumerate(step.arrays):
            text += [
                f"  %x{k}_{j} = call ptr @array(ptr %args, i64 {which})",
                f"  %at{k}_{j} = getelementptr {room}, ptr %given{k}, i64 0, i64 {j}",
                f"  store ptr %x{k}_{j}, ptr %at{k}_{j}",
            ]
        if step.unless_one:
            text += [
                *(f"  %data{k}_{j} = call i64 @fact(ptr %x{k}_{j}, i64 2)" for j in range(2)),
                f"  %one{k} = icmp eq i64 %data{k}_0, %data{k}_1",
                f"  br i1 %one{k}, label %step{k + 1}, label %call{k}",
                f"call{k}:",
            ]
        text += [
            f"  %answer{k} = call ptr @called(ptr %kernel{k}, ptr %given{k}, i64 {len(step.arrays)})",
            f"  %failed{k} = icmp eq ptr %answer{k}, null",
            f"  br i1 %failed{k}, label %bad, label %good{k}",
            f"good{k}:",
            f"  call void @Py_DecRef(ptr %answer{k})",
            f"  br label %step{k + 1}",
        ]
    text.append(_LAST.replace("END", str(len(steps))))
    kernels = [step.kernel for step in steps]
    facts = np.array([1, 0, *map(id, kernels)], np.int64)
    return function_of(TABLES + CALLS + "\n".join(text), facts, kernels)


_FIRST = """
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@none = external global i8

define ptr @run(ptr %self, ptr %args, i64 %given) {
  %meta = call ptr @array(ptr %self, i64 2)
  %right = call i1 @are_arrays(ptr %args, i64 %given, i64 MANY)
  br i1 %right, label %step0, label %bad
"""
_LAST = """
stepEND:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
bad:
  ret ptr null
}
"""

_PLACES = """
declare ptr @PyErr_Format(ptr, ptr, ...)
@index_error = external global i8

define ptr @run(ptr %self, ptr %args, i64 %given) {
entry:
  %meta = call ptr @array(ptr %self, i64 2)
  %many = call i64 @fact(ptr %meta, i64 2)
  %which = call i64 @fact(ptr %meta, i64 3)
  %count = call i64 @fact(ptr %meta, i64 4)
  %kernel = call ptr @array(ptr %meta, i64 5)
  %end = add i64 %many, 1
  %arrays_given = add i64 %many, 2
  %right = call i1 @are_arrays(ptr %args, i64 %given, i64 %arrays_given)
  br i1 %right, label %known, label %wrong
wrong:
  ret ptr null
known:
  %moving = call ptr @array(ptr %args, i64 %which)
  %begin = call i64 @fact(ptr %moving, i64 2)
  br label %next
next:
  %k = phi i64 [0, %known], [%k1, %inside]
  %there = phi i64 [%begin, %known], [%onward, %inside]
  %more = icmp slt i64 %k, %many
  br i1 %more, label %look, label %call
look:
  %k1 = add i64 %k, 1
  %index = call ptr @array(ptr %args, i64 %k1)
  %index_at = call ptr @array(ptr %index, i64 2)
  %place = load i64, ptr %index_at
  %down = mul i64 %k, 6
  %about = getelementptr i64, ptr %meta, i64 %down
  %size = call i64 @fact(ptr %about, i64 6)
  %step = call i64 @fact(ptr %about, i64 7)
  %back = call i64 @fact(ptr %about, i64 8)
  %last = call i64 @fact(ptr %about, i64 9)
  %clips = call i64 @fact(ptr %about, i64 10)
  %words = call ptr @array(ptr %about, i64 11)
  %from_end = icmp slt i64 %place, %back
  %added = add i64 %place, %size
  %front = select i1 %from_end, i64 %added, i64 %place
  %low = icmp slt i64 %front, 0
  %high = icmp sgt i64 %front, %last
  %out = or i1 %low, %high
  %strict = icmp eq i64 %clips, 0
  %fails = and i1 %out, %strict
  br i1 %fails, label %bad, label %inside
bad:
  %said = call ptr (ptr, ptr, ...) @PyErr_Format(ptr @index_error, ptr %words, i64 %place, i64 %size)
  ret ptr null
inside:
  %least = select i1 %low, i64 0, i64 %front
  %most = select i1 %high, i64 %last, i64 %least
  %far = mul i64 %most, %step
  %onward = add i64 %there, %far
  br label %next
call:
  %stand = alloca [3 x i64]
  %stand_type = getelementptr i64, ptr %stand, i64 1
  store ptr @array_type, ptr %stand_type
  %stand_data = getelementptr i64, ptr %stand, i64 2
  store i64 %there, ptr %stand_data
  %first = call ptr @array(ptr %args, i64 0)
  %result = call ptr @array(ptr %args, i64 %end)
  %is_source = icmp eq i64 %which, 0
  %source = select i1 %is_source, ptr %stand, ptr %first
  %target = select i1 %is_source, ptr %result, ptr %stand
  %arrays = alloca [3 x ptr]
  store ptr %source, ptr %arrays
  %second_at = getelementptr ptr, ptr %arrays, i64 1
  store ptr %target, ptr %second_at
  %third_at = getelementptr ptr, ptr %arrays, i64 2
  store ptr %target, ptr %third_at
  %answer = call ptr @called(ptr %kernel, ptr %arrays, i64 %count)
  ret ptr %answer
}
"""

_TURNS = """
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@none = external global i8
@words = private constant [32 x i8] c"turns of two numbers and arrays\\00"

define internal i1 @calls(ptr %table, i64 %from, i64 %to, i64 %set) {
entry:
  %some = icmp slt i64 %from, %to
  br i1 %some, label %call, label %good
call:
  %k = phi i64 [%from, %entry], [%k1, %done]
  %down = mul i64 %k, RECORD
  %record = getelementptr i64, ptr %table, i64 %down
  %kernel = load ptr, ptr %record
  %count = call i64 @fact(ptr %record, i64 1)
  %which = add i64 %set, 2
  %given = call ptr @array(ptr %record, i64 %which)
  %answer = call ptr @called(ptr %kernel, ptr %given, i64 %count)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %bad, label %done
done:
  call void @Py_DecRef(ptr %answer)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %to
  br i1 %more, label %call, label %good
good:
  ret i1 true
bad:
  ret i1 false
}

define ptr @run(ptr %self, ptr %args, i64 %given) {
entry:
  %meta = call ptr @array(ptr %self, i64 2)
  %arrays = call i64 @fact(ptr %meta, i64 2)
  %beyond = sub i64 %given, 2
  %enough = icmp eq i64 %beyond, %arrays
  br i1 %enough, label %check, label %wrong
wrong:
  call void @PyErr_SetString(ptr @type_error, ptr @words)
  ret ptr null
check:
  %after = getelementptr ptr, ptr %args, i64 2
  %right = call i1 @are_arrays(ptr %after, i64 %beyond, i64 %arrays)
  br i1 %right, label %numbers, label %failed
numbers:
  %spots = call i64 @fact(ptr %meta, i64 3)
  %until = call i64 @fact(ptr %meta, i64 4)
  %all = call i64 @fact(ptr %meta, i64 5)
  %last = call i64 @fact(ptr %meta, i64 6)
  %moving = call i64 @fact(ptr %meta, i64 7)
  %index = call ptr @array(ptr %meta, i64 8)
  %test = call ptr @array(ptr %meta, i64 9)
  %state = call ptr @array(ptr %meta, i64 10)
  %objects = call ptr @array(ptr %meta, i64 11)
  %where = call ptr @array(ptr %meta, i64 12)
  %table = call ptr @array(ptr %meta, i64 13)
  %args0 = call ptr @array(ptr %args, i64 0)
  %begin = call i64 @PyLong_AsLongLong(ptr %args0)
  %args1 = call ptr @array(ptr %args, i64 1)
  %end = call i64 @PyLong_AsLongLong(ptr %args1)
  %down = icmp sge i64 %last, 0
  %back = sub i64 %last, %begin
  %start = select i1 %down, i64 %back, i64 %begin
  %any = icmp sgt i64 %spots, 0
  br i1 %any, label %spot, label %ready
spot:
  %s = phi i64 [0, %numbers], [%s1, %filled]
  %s3 = mul i64 %s, 3
  %about = getelementptr i64, ptr %where, i64 %s3
  %array = call i64 @fact(ptr %about, i64 0)
  %offset = call i64 @fact(ptr %about, i64 1)
  %step = call i64 @fact(ptr %about, i64 2)
  %fixed = icmp slt i64 %array, 0
  br i1 %fixed, label %fill, label %base
base:
  %object = call ptr @array(ptr %after, i64 %array)
  %elements = call i64 @fact(ptr %object, i64 2)
  br label %fill
fill:
  %from = phi i64 [0, %spot], [%elements, %base]
  %moved = mul i64 %step, %start
  %near = add i64 %from, %offset
  %there = add i64 %near, %moved
  %o3 = mul i64 %s, OBJECT
  %o_at = getelementptr i64, ptr %objects, i64 %o3
  %data_at = getelementptr i64, ptr %o_at, i64 2
  store i64 %there, ptr %data_at
  br label %filled
filled:
  %s1 = add i64 %s, 1
  %more_spots = icmp slt i64 %s1, %spots
  br i1 %more_spots, label %spot, label %ready
ready:
  %no_index = icmp eq ptr %index, null
  %no_test = icmp eq ptr %test, null
  %ended_at = getelementptr i64, ptr %state, i64 1
  store i64 0, ptr %ended_at
  br label %next
next:
  %t = phi i64 [%begin, %ready], [%t1, %moving_done]
  store i64 %t, ptr %state
  %unfinished = icmp slt i64 %t, %end
  br i1 %unfinished, label %number, label %done
number:
  %backward = sub i64 %last, %t
  %i = select i1 %down, i64 %backward, i64 %t
  br i1 %no_index, label %choose, label %store_index
store_index:
  store i64 %i, ptr %index
  br label %choose
choose:
  %odd = and i64 %t, 1
  %even_set = sub i64 2, %odd
  %is_first = icmp eq i64 %t, 0
  %set = select i1 %is_first, i64 0, i64 %even_set
  br i1 %no_test, label %work, label %ask
ask:
  %asked = call i1 @calls(ptr %table, i64 0, i64 %until, i64 %set)
  br i1 %asked, label %decide, label %failed
decide:
  %answer = load i8, ptr %test
  %go = icmp ne i8 %answer, 0
  br i1 %go, label %work, label %over
over:
  store i64 1, ptr %ended_at
  br label %done
work:
  %worked = call i1 @calls(ptr %table, i64 %until, i64 %all, i64 %set)
  br i1 %worked, label %onward, label %failed
onward:
  %some_move = icmp sgt i64 %moving, 0
  br i1 %some_move, label %move, label %moving_done
move:
  %p = phi i64 [0, %onward], [%p1, %move]
  %p3 = mul i64 %p, 3
  %p_about = getelementptr i64, ptr %where, i64 %p3
  %p_step = call i64 @fact(ptr %p_about, i64 2)
  %p_back = sub i64 0, %p_step
  %p_by = select i1 %down, i64 %p_back, i64 %p_step
  %p_object = mul i64 %p, OBJECT
  %p_at = getelementptr i64, ptr %objects, i64 %p_object
  %p_data = getelementptr i64, ptr %p_at, i64 2
  %p_was = load i64, ptr %p_data
  %p_is = add i64 %p_was, %p_by
  store i64 %p_is, ptr %p_data
  %p1 = add i64 %p, 1
  %more_moves = icmp slt i64 %p1, %moving
  br i1 %more_moves, label %move, label %moving_done
moving_done:
  %t1 = add i64 %t, 1
  br label %next
done:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
failed:
  ret ptr null
}
"""
_TEXT = TABLES + CALLS + _TURNS.replace("RECORD", str(_RECORD)).replace("OBJECT", str(_OBJECT))
