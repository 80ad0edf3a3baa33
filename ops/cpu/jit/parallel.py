"""How machine code is called, with arrays, and how threads share its turns.

Turns are cut into slices, which are claimed. Who calls a kernel offers it to the helpers, begins, and claims
what is left; a helper that has not begun when nothing is left finds the offer withdrawn. So only for
whom a slice is in the middle of is waited, and nobody waits awake for longer than it takes to wake a thread.
An offer is a word in the helper's own box, which is there for ever; of the region itself, which lies on
the caller's stack, a helper knows nothing before it has taken that word, and after it has given it back.

Each helper has an account: the time that it has saved, less that in which it was waited for, since the
system had given its core to somebody else. Who falls below zero is left alone, for some times that.

No handler of a signal may run while a library's code uses the stack pointer as it likes, since the system
puts the handler's frame below where that points to. So helpers take no signals at all, and who calls
such code takes them when it is back."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal

import numpy as np
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import int64
from ostinato.ops.cpu.threads import (
    ALLOWED,
    AT_START,
    BOX,
    HELPERS,
    MAX_BOXES,
    NUMBER,
    PLACED,
    SPIN,
    boxes,
    facts,
    has_pool,
)

from .code import CodeAddress, address_of, once, symbol
from .emitter import Code
from .llvm import has, linked, on_threads

# Each thread has a part of the turns, and takes it slice by slice; who is done takes from others,
# so that one whose core is busy with something else is not waited for.
SLICES = 8
# What a box says: nothing, or that its helper sleeps, works, works and is waited for, is done, is done and
# sleeps, has to end; else where the offer is.
FREE, ASLEEP, TAKEN, AWAITED, DONE, RESTS, END = range(7)
# Where else in a box: the account, until when the helper is left alone, the semaphores by which it is woken,
# and wakes who waits for it.
ACCOUNT, UNTIL, WAKE, BACK = 8, 16, 64, 96
PATIENCE = 8  # times what it cost too much
MOST_SAVED = 10_000_000  # nanoseconds that an account may have


class _Text(Code):
    """Text of what threads share."""

    def address(self, base: str, offset: int | str) -> str:
        return self.let(f"getelementptr i8, ptr {base}, i64 {offset}", "at")

    def read(self, base: str, offset: int = 0, kind: str = "i64") -> str:
        return self.let(f"load {kind}, ptr {self.address(base, offset)}")

    def write(self, value: str, base: str, offset: int | str, kind: str = "i64") -> None:
        self.add(f"store {kind} {value}, ptr {self.address(base, offset)}")

    def state(self, box: str) -> str:
        return self.let(f"load atomic i64, ptr {box} seq_cst, align 8")

    def swap(self, box: str, old: int | str, new: int | str) -> str:
        """Whether the box said that, and says this now."""
        pair = self.let(f"cmpxchg ptr {box}, i64 {old}, i64 {new} seq_cst seq_cst")
        return self.let(f"extractvalue {{i64, i1}} {pair}, 1")

    def test(self, a: str, word: str, b: int | str) -> str:
        return self.let(f"icmp {word} i64 {a}, {b}")

    def both(self, a: str, b: str) -> str:
        return self.let(f"and i1 {a}, {b}")

    def now(self) -> str:
        return self.let("call i64 @now()")

    def rest(self) -> None:
        if has("sse2"):
            self.lines.declared.add("declare void @llvm.x86.sse2.pause()")
            self.add("call void @llvm.x86.sse2.pause()")

    def either(self, a: str, b: str) -> str:
        return self.let(f"or i1 {a}, {b}")

    def is_done(self, box: str) -> str:
        state = self.state(box)
        return self.either(self.test(state, "eq", DONE), self.test(state, "eq", RESTS))

    def sleep(self, box: str, semaphore: int, *states: int) -> None:
        """While the box says one of these two."""
        with self.until() as ends:
            self.add(f"call i32 @sem_wait(ptr {self.address(box, semaphore)})")
            state = self.state(box)
            ends(self.both(*(self.test(state, "ne", one) for one in states)))

    def wake(self, box: str, semaphore: int) -> None:
        self.add(f"call i32 @sem_post(ptr {self.address(box, semaphore)})")

    def function(self, head: str, last: str) -> str:
        body = "\n".join([*self.entry, *self.lines.text])
        declared = "\n".join(sorted(self.lines.declared))
        return f"{declared}\n{_KNOWN}\ndefine {head} {{\nentry:\n{body}\n  {last}\n}}\n"


_KNOWN = """
declare i32 @sem_wait(ptr) nonlazybind
declare i32 @sem_post(ptr) nonlazybind
declare i32 @clock_gettime(i32, ptr) nonlazybind
declare i32 @gettid() nonlazybind
declare void @take_slices(ptr) nonlazybind
@facts_of_threads = external global i8
@boxes_of_helpers = external global i8

define internal i64 @now() {
  %time = alloca [2 x i64]
  %got = call i32 @clock_gettime(i32 1, ptr %time)
  %part_at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %part = load i64, ptr %part_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %part
  ret i64 %now
}
"""
# A region: the arrays, the kernel's facts, its body, the count of threads, and a line for each of them: the
# counter of its slices, the region, the thread's number, how many slices it did, its box.
LINE, MADE, OF = 64, 24, 32


def _slices() -> str:
    """`run(line)`: does slices of a region until there are none."""
    c = _Text()
    region, t = c.read("%line", 8, "ptr"), c.read("%line", 16)
    data, meta, body = (c.read(region, k, "ptr") for k in (0, 8, 16))
    n, turns, made = c.read(region, 24), c.read(meta), c.cell(int64)
    slices = c.times(n, str(SLICES))
    c.add(f"store i64 0, ptr {made}")
    with c.loop("0", n) as d:
        whose = c.let(f"urem i64 {c.sum(t, d)}, {n}")
        counter = c.address(region, c.times(c.sum(whose, "1"), str(LINE)))
        first = c.times(whose, str(SLICES))
        with c.until() as ends:
            k = c.let(f"atomicrmw add ptr {counter}, i64 1 monotonic")
            ends(c.test(k, "sge", SLICES))
            s = c.sum(first, k)
            lo, hi = (c.let(f"sdiv i64 {c.times(turns, x)}, {slices}") for x in (s, c.sum(s, "1")))
            with c.when(c.test(lo, "slt", hi)):
                c.add(f"call void {body}(ptr {data}, ptr {meta}, i64 {lo}, i64 {hi}, i64 {t})")
            c.add(f"store i64 {c.sum(c.let(f'load i64, ptr {made}'), '1')}, ptr {made}")
    c.write(c.let(f"load i64, ptr {made}"), "%line", MADE)
    return c.function("void @run(ptr %line)", "ret void")


def _helper() -> str:
    """`run(box)`: what a helper does."""
    c = _Text()
    number = c.let("sext i32 %number to i64")
    c.write(number, "%box", 8 * NUMBER)
    begin = c.cell(int64)
    with c.until() as end:
        c.add(f"store i64 {c.now()}, ptr {begin}")
        with c.until() as ends:
            ends(c.test(c.state("%box"), "sge", END))
            c.rest()
            awake = c.let(f"sub i64 {c.now()}, {c.let(f'load i64, ptr {begin}')}")
            with c.when(c.test(awake, "sge", c.read("@facts_of_threads", 8 * SPIN))):
                for idle, asleep in ((FREE, ASLEEP), (DONE, RESTS)):
                    with c.when(c.swap("%box", idle, asleep)):
                        c.sleep("%box", WAKE, ASLEEP, RESTS)
                        # if there is nothing left, it sleeps at once
                        c.add(f"store i64 0, ptr {begin}")
        offer = c.state("%box")
        end(c.test(offer, "eq", END))
        with c.when(c.test(offer, "ugt", END)), c.when(c.swap("%box", offer, TAKEN)):
            c.add(f"call void @take_slices(ptr {c.let(f'inttoptr i64 {offer} to ptr')})")
            before = c.let(f"atomicrmw xchg ptr %box, i64 {DONE} seq_cst")
            with c.when(c.test(before, "eq", AWAITED)):
                c.wake("%box", BACK)
    c.entry.insert(0, "  %number = call i32 @gettid()")
    return c.function("ptr @run(ptr %box)", "ret ptr null")


def _region() -> str:
    """`run(data, meta, body)`: all turns of a kernel."""
    c = _Text()
    allowed, helpers, spin = (c.read("@facts_of_threads", 8 * k) for k in (ALLOWED, HELPERS, SPIN))
    turns, n = c.read("%meta"), c.least(c.read("%meta", 8), allowed)
    taken = c.cell(int64)
    c.add(f"store i64 1, ptr {taken}")

    def taken_now() -> str:
        return c.let(f"load i64, ptr {taken}")

    with c.when(c.both(c.test(n, "sgt", 1), c.test(helpers, "sgt", 0))):
        bytes_ = c.times(c.sum(n, "1"), str(LINE))
        region = c.let(f"alloca i8, i64 {bytes_}, align {LINE}")
        c.clear(region, bytes_)
        for k, x in enumerate(("%data", "%meta", "%body")):
            c.write(x, region, 8 * k, "ptr")
        c.write(n, region, 24)
        with c.loop("0", n) as t:
            line = c.address(region, c.times(c.sum(t, "1"), str(LINE)))
            c.write(region, line, 8, "ptr")
            c.write(t, line, 16)
        begin = c.now()
        with c.loop("0", helpers) as h, c.when(c.test(taken_now(), "slt", n)):
            box = c.address("@boxes_of_helpers", c.times(h, str(8 * BOX)))
            state, until = c.state(box), c.read(box, UNTIL)
            can = c.both(c.test(state, "ule", ASLEEP), c.test(until, "sle", begin))
            line = c.address(region, c.times(c.sum(taken_now(), "1"), str(LINE)))
            offer = c.let(f"ptrtoint ptr {line} to i64")
            with c.when(can), c.when(c.swap(box, state, offer)):
                c.write(box, line, OF, "ptr")
                with c.when(c.test(state, "eq", ASLEEP)):
                    c.wake(box, WAKE)
                c.add(f"store i64 {c.sum(taken_now(), '1')}, ptr {taken}")
        with c.when(c.test(taken_now(), "sgt", 1)):
            own = c.address(region, LINE)
            c.add(f"call void @take_slices(ptr {own})")
            worked = c.let(f"sub i64 {c.now()}, {begin}")
            made = c.read(own, MADE)
            with c.loop("1", taken_now()) as t:
                line = c.address(region, c.times(c.sum(t, "1"), str(LINE)))
                box, offer = c.read(line, OF, "ptr"), c.let(f"ptrtoint ptr {line} to i64")
                withdrawn = c.swap(box, offer, FREE)
                with c.when(c.let(f"xor i1 {withdrawn}, true")):
                    _back(c, box, line, worked, made, spin)
    with c.when(c.test(taken_now(), "eq", 1)):
        c.add(f"call void %body(ptr %data, ptr %meta, i64 0, i64 {turns}, i64 0)")
    return c.function("void @run(ptr %data, ptr %meta, ptr %body)", "ret void")


def _ending() -> str:
    """`run(box)`: tells a helper that does nothing to end; 0 if it is at work."""
    c = _Text()
    state = c.state("%box")
    with c.when(c.test(state, "ule", ASLEEP)):
        told = c.swap("%box", state, END)
        with c.when(told):
            c.wake("%box", WAKE)
    ended = c.test(c.state("%box"), "eq", END)
    return c.function("i64 @run(ptr %box)", f"ret i64 {c.let(f'zext i1 {ended} to i64')}")


def _back(c: _Text, box: str, line: str, worked: str, made: str, spin: str) -> None:
    """Waits for a helper that has begun, and keeps its account."""
    start = c.now()
    with c.until() as ends:
        waited = c.test(c.let(f"sub i64 {c.now()}, {start}"), "sgt", spin)
        ends(c.either(c.is_done(box), waited))
        c.rest()
    with c.when(c.swap(box, TAKEN, AWAITED)):
        c.sleep(box, BACK, AWAITED, AWAITED)
    end = c.now()
    theirs = c.times(c.read(line, MADE), worked)
    some = c.let(f"call i64 @llvm.smax.i64(i64 {made}, i64 1)")
    c.lines.declared.add("declare i64 @llvm.smax.i64(i64, i64)")
    saved = c.least(c.let(f"sdiv i64 {theirs}, {some}"), worked)
    cost = c.let(f"sub i64 {end}, {start}")
    gain = c.let(f"sub i64 {saved}, {cost}")
    account = c.least(c.sum(c.read(box, ACCOUNT), gain), str(MOST_SAVED))
    below = c.test(account, "slt", 0)
    with c.when(below):
        c.write(c.let(f"sub i64 {end}, {c.times(account, str(PATIENCE))}"), box, UNTIL)
    c.write(c.let(f"select i1 {below}, i64 0, i64 {account}"), box, ACCOUNT)
    with c.when(c.let(f"xor i1 {c.swap(box, DONE, FREE)}, true")):  # it rests
        c.add(f"store atomic i64 {ASLEEP}, ptr {box} seq_cst, align 8")


# What calls a kernel's `body` and `finish` is the same for all kernels, and compiled once. They find
# it in a table (nonlazybind): for a stub to jump by, LLVM's loader counts no memory.
_CALLER = """
declare void @share_turns(ptr, ptr, ptr) nonlazybind
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @PyErr_SetString(ptr, ptr)
@none = external global i8
@array_type = external global i8
@type_error = external global i8
@words = private constant [24 x i8] c"a kernel of arrays only\\00"

define ptr @run(ptr %self, ptr %args, i64 %given, i64 %many, ptr %body, ptr %finish) {
entry:
  %right = icmp eq i64 %given, %many
  br i1 %right, label %begin, label %wrong
wrong:
  call void @PyErr_SetString(ptr @type_error, ptr @words)
  ret ptr null
begin:
  %data = alloca ptr, i64 %many
  %m = getelementptr i8, ptr %self, i64 16
  %meta = load ptr, ptr %m
  br label %fill
fill:
  %k = phi i64 [0, %begin], [%k1, %array]
  %from = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %from
  %kindfield = getelementptr i8, ptr %object, i64 8
  %kind = load ptr, ptr %kindfield
  %is = icmp eq ptr %kind, @array_type
  br i1 %is, label %array, label %wrong
array:
  %field = getelementptr i8, ptr %object, i64 16
  %elements = load ptr, ptr %field
  %to = getelementptr ptr, ptr %data, i64 %k
  store ptr %elements, ptr %to
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %many
  br i1 %more, label %fill, label %filled
filled:
  HOLD
  %turns = load i64, ptr %meta
  %m1 = getelementptr i64, ptr %meta, i64 1
  %threads = load i64, ptr %m1
  %small = icmp eq i64 %threads, 0
  br i1 %small, label %alone, label %together
alone:
  call void %body(ptr %data, ptr %meta, i64 0, i64 %turns, i64 0)
  call void %finish(ptr %data, ptr %meta)
  FREE
  br label %done
together:
  %state = call ptr @PyEval_SaveThread()
  call void @share_turns(ptr %data, ptr %meta, ptr %body)
  call void %finish(ptr %data, ptr %meta)
  FREE
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
}
"""
_STUB = """
declare ptr @CALLER(ptr, ptr, i64, i64, ptr, ptr) nonlazybind
declare void @PyErr_SetString(ptr, ptr)

define ptr @run(ptr %self, ptr %args, i64 %given) {
  %made = tail call ptr @CALLER(ptr %self, ptr %args, i64 %given, i64 MANY, ptr @body, ptr @finish)
  ret ptr %made
}
!0 = distinct !{!0, !2}
!1 = distinct !{}
!2 = !{!"llvm.loop.parallel_accesses", !1}
"""


# A signal meanwhile goes to another thread of the process, if one takes it, or waits.
_BLOCK, _SET = (int(getattr(signal, name, 0)) for name in ("SIG_BLOCK", "SIG_SETMASK"))
_HOLD = f"""
  %signals = alloca [16 x i64]
  %held = call i32 @pthread_sigmask(i32 {_BLOCK}, ptr @held_signals, ptr %signals)"""
_FREE = f"%freed = call i32 @pthread_sigmask(i32 {_SET}, ptr %signals, ptr null)"
_MASKS = """
declare i32 @pthread_sigmask(i32, ptr, ptr)
@held_signals = external global i8
"""


def around(many: int, name: str = "run", held: bool = False) -> str:
    """Write the function that Python calls: it takes so many arrays' addresses and shares the turns
    of `body`. `held`: no handler of a signal may run meanwhile."""
    caller = _caller(_ready() and held)
    text = _STUB.replace("MANY", str(many)).replace("CALLER", caller)
    return text.replace("@run(", f"@{name}(")


@once
def _caller(held: bool) -> str:
    """The name of what calls a kernel's parts."""
    text = _CALLER
    free = [_FREE.replace("freed", f"freed{k}") if held else "" for k in range(2)]
    text = text.replace("HOLD", _HOLD if held else "")
    text = text.replace("FREE", free[0], 1).replace("FREE", free[1], 1)
    name = "call_held_kernel" if held else "call_kernel"
    symbol(name, linked((_MASKS if held else "") + text))
    return name


# -- helpers -------------------------------------------------------------------------------
# All but what a thread's own instruction raises: to hold that ends the process.
_OWN = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT")
_held = np.zeros(16, np.int64)
_held[0] = -1 - sum(1 << (getattr(signal, n) - 1) for n in _OWN if hasattr(signal, n))
_helpers: list[tuple[ctypes.c_ulong, CodeAddress]] = []  # and the code that each is in
_making = make_lock()


@once
def _ready() -> bool:
    """Define the symbols that texts call to share iterations; return whether signals can be held."""
    system = ctypes.CDLL(None)
    names = ("sem_wait", "sem_post", "clock_gettime", "gettid", "pthread_sigmask")
    for name in names:  # without helpers none is called
        symbol(name, address_of(system, name) if hasattr(system, name) else None)
    symbol("held_signals", _held)
    symbol("facts_of_threads", facts)
    symbol("boxes_of_helpers", boxes)
    symbol("take_slices", linked(_slices()))
    symbol("share_turns", linked(_region()))
    return hasattr(system, "pthread_sigmask")


def _begin(count: int) -> None:
    """So many helpers at least."""
    if len(_helpers) >= count or not has_pool():
        return
    main, system, before = linked(_helper()), ctypes.CDLL(None), (ctypes.c_int64 * 16)()
    anywhere = (ctypes.c_uint64 * 16)()
    for k in AT_START:
        anywhere[k // 64 % 16] |= 1 << k % 64
    with _making:
        system.pthread_sigmask(_BLOCK, ctypes.c_void_p(_held.ctypes.data), before)
        for k in range(len(_helpers), min(count, MAX_BOXES)):
            at = boxes[k].ctypes.data
            for semaphore in (WAKE, BACK):
                system.sem_init(ctypes.c_void_p(at + semaphore), 0, 0)
            thread = ctypes.c_ulong()
            if system.pthread_create(ctypes.byref(thread), None, main, ctypes.c_void_p(at)):
                break  # the system has no more
            system.pthread_setname_np(thread, b"ostinato")
            if PLACED:  # not where who makes it is bound to
                system.pthread_setaffinity_np(thread, 128, ctypes.byref(anywhere))
            _helpers.append((thread, main))
            facts[HELPERS] = k + 1
        system.pthread_sigmask(_SET, before, None)


@atexit.register
def _end() -> None:
    """Helpers go before the code that they are in."""
    facts[ALLOWED] = 1
    if not _helpers:
        return
    end, system = linked(_ending()).function(ctypes.c_int64, ctypes.c_void_p), ctypes.CDLL(None)
    for k, (thread, _) in enumerate(_helpers):
        if end(boxes[k].ctypes.data):
            system.pthread_join(thread, None)
    _helpers.clear()


def _alone() -> None:
    """A forked child has no helpers; their code stays, as a copy of what they were in."""
    _helpers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
on_threads.append(_begin)


# -- without threads -----------------------------------------------------------------------
# For texts without `around`: numbers and addresses that stand in a row, whether so many arrays were given,
# and calls of other kernels. A function of Python has its entry point in the record that its third word
# leads to, and what it was made with in the fourth.
CALLS = """
declare void @PyErr_SetString(ptr, ptr)
@array_type = external global i8
@type_error = external global i8
@no_arrays = private constant [24 x i8] c"a kernel of arrays only\\00"

define internal i1 @are_arrays(ptr %args, i64 %given, i64 %wanted) {
entry:
  %right = icmp eq i64 %given, %wanted
  br i1 %right, label %next, label %no
next:
  %k = phi i64 [0, %entry], [%k1, %look]
  %more = icmp slt i64 %k, %wanted
  br i1 %more, label %look, label %yes
look:
  %object = call ptr @array(ptr %args, i64 %k)
  %kind = call ptr @array(ptr %object, i64 1)
  %k1 = add i64 %k, 1
  %is = icmp eq ptr %kind, @array_type
  br i1 %is, label %next, label %no
yes:
  ret i1 true
no:
  call void @PyErr_SetString(ptr @type_error, ptr @no_arrays)
  ret i1 false
}

define internal ptr @called(ptr %kernel, ptr %arrays, i64 %count) alwaysinline {
  %record = call ptr @array(ptr %kernel, i64 2)
  %function = call ptr @array(ptr %record, i64 1)
  %own = call ptr @array(ptr %kernel, i64 3)
  %answer = call ptr %function(ptr %own, ptr %arrays, i64 %count)
  ret ptr %answer
}
"""
TABLES = """
define internal i64 @fact(ptr %meta, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %meta, i64 %k
  %value = load i64, ptr %at
  ret i64 %value
}

define internal ptr @array(ptr %data, i64 %k) alwaysinline {
  %at = getelementptr ptr, ptr %data, i64 %k
  %value = load ptr, ptr %at
  ret ptr %value
}
"""
