"""Calls of kernels turn after turn, without Python in between.

Kernels are functions of Python that read of their arrays no more than the type and where the elements
begin. So machine code can call them with stand-ins that have these two: `offset_kernel` puts one where indices
say, and the turns of `sequence` have them for all arrays: they are filled in at the start, and
those of arrays that move on are moved in each turn. Values that are carried are written where the next
turn reads them: calls have three sets of stand-ins, for the first turn, and for odd and even ones."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.bounds import inside, outside
from ostinato.ops.core.device import Repeated
from ostinato.ops.core.spec import DType, bool_, int64, uint8
from ostinato.ops.jit.values import Value, where

from .code import address_of, symbol
from .llvm import function_of
from .parallel import CALLS, TABLES
from .routine import Memory, Routine

SETS = 3  # of stand-ins
_RECORD = 2 + SETS  # words of a call: kernel, count of arrays, and stand-ins
_OBJECT = 3  # words of a stand-in: a count that nobody reads, the type, the elements
Calls = Sequence["Call"]


class Address(NamedTuple):
    """Where an array's elements begin."""

    array: int  # which of those given, or -1: at this address
    offset: int
    step: int = 0  # bytes further in each turn


class Call(NamedTuple):
    kernel: Callable[..., None]
    arrays: Sequence[Sequence[Address]]  # of each, in the three sets


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

    return Repeated(function_of(_turns(), np.array(facts, np.int64), held), state)


class Where(NamedTuple):
    """Which places along an axis are inside, and how far each is from the next, in bytes."""

    size: int
    step: int
    back: int  # places below this are counted from the end
    last: int
    clips: bool
    words: bytes  # of the error, if one is outside

    @classmethod
    def make(cls, size: int, extent: int, step: int, bounds: str) -> Where:
        back, last = inside(size, extent, bounds)
        return cls(
            size,
            step,
            back,
            last,
            bounds == "clip",
            outside("%lld", "%lld", extent, bounds).encode(),
        )


def offset_kernel(
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
    return function_of(_at_places(), np.array(facts, np.int64), (kernel, words))


class Step(NamedTuple):
    """A kernel, and which of the arrays given it is given."""

    kernel: Callable[..., None]
    arrays: Sequence[int]
    unless_one: bool = False  # not if its two arrays begin at one place


def chain_kernels(steps: Sequence[Step], arrays: int) -> Callable[..., None]:
    """A kernel of so many arrays that calls these, one after the other, until one fails."""
    symbol("Py_DecRef", address_of(ctypes.pythonapi, "Py_DecRef"))
    run = Entry()
    run.checks(run.args, run.whole(arrays))
    for k, step in enumerate(steps):
        kernel, room = run.words(run.meta[2 + k]), run.own(len(step.arrays), int64)
        given = [run.words(run.args[which]) for which in step.arrays]
        for j, x in enumerate(given):
            room[j] = x
        is_one = given[0][2] == given[1][2] if step.unless_one else None
        with contextlib.nullcontext() if is_one is None else run.given_that(~is_one):
            run.asks(kernel, room, run.whole(len(given)))
    run.ends_well()
    kernels = [step.kernel for step in steps]
    facts = np.array([1, 0, *map(id, kernels)], np.int64)
    return function_of(run.text(), facts, kernels)


# -- machine code ------------------------------------------------------------------------------
class Entry(Routine):
    """A function that Python calls, or one for it: what it knows is at `meta`, what it was given at `args`.
    It answers with an address, which is 0 if it failed."""

    def __init__(self, result: DType = int64, title: str = "run", /, **given: Any) -> None:
        known = {"self": [int64], "args": [int64], "given": int64}
        super().__init__(result, title, **(given or known))
        self.lines.declared.add("@none = external global i8")
        if not given:
            me, self.args, self.count = self.given
            self.meta = self.words(me[2])

    def words(self, address: Value) -> Memory:
        return self.memory(address, int64)

    def fails(self, error: str, words: str) -> None:
        """Leaves with an error of Python's, which is a symbol."""
        kind = f"[{len(words) + 1} x i8]"
        self.lines.declared.add(f'@words = private constant {kind} c"{words}\\00"')
        self.add(f"call void @PyErr_SetString(ptr @{error}, ptr @words)")
        self.ends(0)
        self.label()

    def checks(self, args: Memory, many: Value) -> None:
        """Leaves unless so many arrays were given."""
        count = self.count if args is self.args else self.count - 2
        self.leaves_if(~self._call("are_arrays", bool_, (args, count, many)), 0)

    def answer(self, kernel: Memory, arrays: Memory, count: Value) -> Value:
        """A kernel's."""
        given = f"ptr {kernel.name}, ptr {arrays.name}, i64 {count.name}"
        return Memory(self, self.let(f"call ptr @called({given})"), int64).address

    def asks(self, kernel: Memory, arrays: Memory, count: Value) -> None:
        """Leaves if a kernel fails."""
        answer = self.answer(kernel, arrays, count)
        self.leaves_if(answer == 0, 0)
        self.call("Py_DecRef", None, self.words(answer))

    def ends_well(self) -> None:
        none = Memory(self, "@none", int64)
        self.call("Py_IncRef", None, none)
        self.ends(none.address)

    def text(self) -> str:
        return TABLES + CALLS + super().text()


@lru_cache(1)
def _at_places() -> str:
    run = Entry()
    run.lines.declared |= {
        "declare ptr @PyErr_Format(ptr, ptr, ...)",
        "@index_error = external global i8",
    }
    args, meta = run.args, run.meta
    many, which, count = (meta[k] for k in (2, 3, 4))
    run.checks(args, many + 2)
    there = run.variable(run.words(args[which])[2])
    with run.each(many) as k:
        place = run.words(run.words(args[k + 1])[2])[0]
        about = meta.further(6 * k + 6)
        size, step, back, last, clips, words = (about[j] for j in range(6))
        front = where(place < back, place + size, place)
        with run.given_that(((front < 0) | (front > last)) & (clips == 0)):
            said = (
                f"ptr @index_error, ptr {run.words(words).name}, i64 {place.name}, i64 {size.name}"
            )
            run.let(f"call ptr (ptr, ptr, ...) @PyErr_Format({said})")
            run.ends(0)
            run.label()
        inside = where(front > last, last, where(front < 0, run.whole(0), front))
        there.now = there.now + inside * step
    stand, arrays = run.own(3, int64), run.own(3, int64)
    stand[1], stand[2] = Memory(run, "@array_type", int64), there.now
    is_source = which == 0
    arrays[0] = stand.select(is_source, run.words(args[0]))
    arrays[1] = arrays[2] = run.words(args[many + 1]).select(is_source, stand)
    run.ends(run.answer(run.words(meta[5]), arrays, count))
    return run.text()


def _calls() -> Entry:
    """Some of the calls, with a set of stand-ins; whether all did well."""
    made = Entry(bool_, "calls", table=[int64], begin=int64, end=int64, which=int64)
    table, begin, end, which = made.given
    with made.each(end, begin) as k:
        record = table.further(k * _RECORD)
        made.asks(made.words(record[0]), made.words(record[which + 2]), record[1])
    made.ends(1)
    return made


@lru_cache(1)
def _turns() -> str:
    run, calls = Entry(), _calls()
    args, meta = run.args, run.meta
    arrays, after = meta[2], args.further(2)
    with run.given_that(run.count - 2 != arrays):
        run.fails("type_error", "turns of two numbers and arrays")
    run.checks(after, arrays)
    spots, until, every, last, moving = (meta[k] for k in range(3, 8))
    index, test, state, objects, about, table = (run.words(meta[k]) for k in range(8, 14))
    begin, end = (run.call("PyLong_AsLongLong", int64, run.words(args[k])) for k in (0, 1))
    is_down, zero = last >= 0, run.whole(0)
    start = where(is_down, last - begin, begin)
    with run.each(spots) as s:
        array, offset, step = (about[3 * s + k] for k in range(3))
        first = run.variable(zero)
        with run.given_that(array >= 0):
            first.now = run.words(after[array])[2]
        objects[_OBJECT * s + 2] = first.now + offset + step * start
    state[1] = 0
    turn = run.variable(begin)
    with run.until() as ends:
        t = turn.now
        state[0] = t
        ends((t >= end).name)
        with run.given_that(index.address != 0):
            index[0] = where(is_down, last - t, t)
        which = where(t == 0, zero, 2 - (t & 1))
        with run.given_that(test.address != 0):
            run.leaves_if(~run.does(calls, table, zero, until, which), 0)
            with run.given_that(test.view(uint8)[0] == 0):
                state[1] = 1
                run.ends_well()
                run.label()
        run.leaves_if(~run.does(calls, table, until, every, which), 0)
        with run.each(moving) as p:
            step, place = about[3 * p + 2], _OBJECT * p + 2
            objects[place] = objects[place] + where(is_down, -step, step)
        turn.now = t + 1
    run.ends_well()
    return run.text()
