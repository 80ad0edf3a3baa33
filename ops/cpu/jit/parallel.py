"""How machine code is called, with arrays, and how threads share its turns.

Threads of a pool that wait for each other are best on cores of their own. The system puts one where
another runs at times, as when both have slept, and leaves it there for some milliseconds: the one
that waits awake has the core, and the one that has work has not. So a thread that has done a slice
looks where the others are, and one that is on its core, or has not begun, may go on elsewhere only; it
may be anywhere again at once.

No handler of a signal may run while a library's code uses the stack pointer as it likes, since the system
puts the handler's frame below where that points to. So threads of the pool take no signals at all, and
who calls such code takes them when it is back."""

from __future__ import annotations

import ctypes
import signal
import time

import numpy as np

from .code import address_of, once, symbol
from .llvm import linked

# Volatile, or LLVM calls a function for it.
_CLEAR = """
define internal void @clear_lines(ptr %to, i64 %bytes) alwaysinline {
entry:
  br label %clear
clear:
  %z = phi i64 [%bytes, %entry], [%z1, %clear]
  %z1 = sub i64 %z, 64
  %line = getelementptr i8, ptr %to, i64 %z1
  store volatile <8 x i64> zeroinitializer, ptr %line, align 64
  %onward = icmp sgt i64 %z1, 0
  br i1 %onward, label %clear, label %end
end:
  ret void
}
"""
# Each thread has a part of the turns, and takes it slice by slice; who is done takes from others,
# so that one whose core is busy with something else is not waited for.
SLICES = 8
# What calls a kernel's `body` and `finish` is the same for all kernels, and compiled once. They find
# it in a table (nonlazybind): for a stub to jump by, LLVM's loader counts no memory.
_CALLER = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @begin_turns(ptr, i64)
declare void @part_threads(ptr, i64, i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @PyErr_SetString(ptr, ptr)
@none = external global i8
@array_type = external global i8
@type_error = external global i8
@words = private constant [24 x i8] c"a kernel of arrays only\\00"

define internal void @task(ptr %job) {
entry:
  %data = load ptr, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  %meta = load ptr, ptr %j1
  %j2 = getelementptr ptr, ptr %job, i64 2
  %body = load ptr, ptr %j2
  %counters = getelementptr i8, ptr %job, i64 64
  %turns = load i64, ptr %meta
  %t32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %t = sext i32 %t32 to i64
  %n = sext i32 %n32 to i64
  %all = mul i64 %n, SLICES
  %over = mul i64 %n, 64
  %cores = getelementptr i8, ptr %counters, i64 %over
  %own = getelementptr i16, ptr %cores, i64 %t
  call void @begin_turns(ptr %own, i64 %t)
  br label %share
share:
  %d = phi i64 [0, %entry], [%d1, %next]
  %yet0 = phi i1 [true, %entry], [%yet1, %next]
  %from = add i64 %t, %d
  %whose = urem i64 %from, %n
  %row = mul i64 %whose, 64
  %counter = getelementptr i8, ptr %counters, i64 %row
  %first = mul i64 %whose, SLICES
  br label %slice
slice:
  %yet1 = phi i1 [%yet0, %share], [%yet1, %mine], [false, %work], [false, %look]
  %k = atomicrmw add ptr %counter, i64 1 monotonic
  %left = icmp slt i64 %k, SLICES
  br i1 %left, label %mine, label %next
mine:
  %s0 = add i64 %first, %k
  %s1 = add i64 %s0, 1
  %x0 = mul i64 %turns, %s0
  %x1 = mul i64 %turns, %s1
  %lo = sdiv i64 %x0, %all
  %hi = sdiv i64 %x1, %all
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %work, label %slice
work:
  call void %body(ptr %data, ptr %meta, i64 %lo, i64 %hi, i64 %t)
  br i1 %yet1, label %look, label %slice
look:
  call void @part_threads(ptr %cores, i64 %n, i64 %t)
  br label %slice
next:
  %d1 = add i64 %d, 1
  %others = icmp slt i64 %d1, %n
  br i1 %others, label %share, label %end
end:
  ret void
}

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
  %count32 = trunc i64 %threads to i32
  %state = call ptr @PyEval_SaveThread()
  %one = icmp eq i64 %threads, 1
  br i1 %one, label %single, label %team
single:
  call void %body(ptr %data, ptr %meta, i64 0, i64 %turns, i64 0)
  br label %ready
team:
  %lines = mul i64 %threads, 66
  %most = add i64 %lines, 127
  %bytes = and i64 %most, -64
  %job = alloca i8, i64 %bytes, align 64
  call void @clear_lines(ptr %job, i64 %bytes)
  store ptr %data, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  store ptr %meta, ptr %j1
  %j2 = getelementptr ptr, ptr %job, i64 2
  store ptr %body, ptr %j2
  call void @GOMP_parallel(ptr @task, ptr %job, i32 %count32, i32 0)
  br label %ready
ready:
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
    """What Python calls: takes so many arrays' addresses and shares the turns of `body`. `held`: no
    handler of a signal may run meanwhile."""
    caller = _caller(_ready() and held)
    text = _STUB.replace("MANY", str(many)).replace("CALLER", caller)
    return text.replace("@run(", f"@{name}(")


@once
def _caller(held: bool) -> str:
    """The name of what calls a kernel's parts."""
    text = (_CLEAR + _CALLER).replace("SLICES", str(SLICES))
    free = [_FREE.replace("freed", f"freed{k}") if held else "" for k in range(2)]
    text = text.replace("HOLD", _HOLD if held else "")
    text = text.replace("FREE", free[0], 1).replace("FREE", free[1], 1)
    name = "call_held_kernel" if held else "call_kernel"
    symbol(name, linked((_MASKS if held else "") + text))
    return name


# -- threads apart -------------------------------------------------------------------------
MOST = 1024  # threads, and cores, that are known
COARSE = time.CLOCK_MONOTONIC_COARSE if hasattr(time, "CLOCK_MONOTONIC_COARSE") else 0
_SYSTEM = (
    *("pthread_self", "gettid", "sched_getcpu", "sched_getaffinity", "sched_setaffinity"),
    *("clock_gettime", "pthread_key_create", "pthread_getspecific", "pthread_setspecific"),
    "pthread_sigmask",
)
# Who each thread is, and its number for the system; in the first one's row also how often one was moved,
# and whether one is being moved now: of two who did that at once, one would keep what the other had left out;
# and the key under which each thread notes that it has begun before.
_crew = np.zeros((MOST, 8), np.int64)
MOVED, MOVING, KEY = 2, 3, 4
# All but what a thread's own instruction raises: to hold that ends the process.
_OWN = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT")
_held = np.zeros(16, np.int64)
_held[0] = -1 - sum(1 << (getattr(signal, n) - 1) for n in _OWN if hasattr(signal, n))
_BEGIN = """
declare ptr @pthread_self()
declare i32 @gettid()
declare i32 @sched_getcpu()
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
@crew = external global i8
@held_signals = external global i8

define void @run(ptr %place, i64 %t) {
entry:
  %core = call i32 @sched_getcpu()
  %core1 = add i32 %core, 1
  %told = trunc i32 %core1 to i16
  store atomic i16 %told, ptr %place monotonic, align 2
  %key_at = getelementptr i64, ptr @crew, i64 KEY
  %key = load i32, ptr %key_at
  %noted = call ptr @pthread_getspecific(i32 %key)
  %known = icmp ne ptr %noted, null
  br i1 %known, label %row_of, label %first
first:
  %note = call i32 @pthread_setspecific(i32 %key, ptr @crew)
  %caller = icmp eq i64 %t, 0
  br i1 %caller, label %row_of, label %hold
hold:
  %held = call i32 @pthread_sigmask(i32 BLOCK, ptr @held_signals, ptr null)
  br label %row_of
row_of:
  %few = icmp ult i64 %t, MOST
  br i1 %few, label %look, label %end
look:
  %over = shl i64 %t, 6
  %row = getelementptr i8, ptr @crew, i64 %over
  %who = call ptr @pthread_self()
  %was = load ptr, ptr %row
  %same = icmp eq ptr %who, %was
  %still = and i1 %same, %known
  br i1 %still, label %end, label %new
new:
  %number = call i32 @gettid()
  %to = getelementptr i64, ptr %row, i64 1
  store i32 %number, ptr %to
  store ptr %who, ptr %row
  br label %end
end:
  ret void
}
"""
_PART = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
@crew = external global i8

define void @run(ptr %cores, i64 %n, i64 %mine) {
entry:
  %allowed = alloca [16 x i64]
  %here = call i32 @sched_getcpu()
  %here1 = add i32 %here, 1
  %told = trunc i32 %here1 to i16
  %many = icmp ult i64 %n, MOST
  %last = select i1 %many, i64 %n, i64 MOST
  %moving = getelementptr i64, ptr @crew, i64 MOVING
  %placed = icmp ult i32 %here, MOST
  br i1 %placed, label %each, label %end
each:
  %t = phi i64 [0, %entry], [%t1, %next]
  %more = icmp slt i64 %t, %last
  br i1 %more, label %look, label %end
look:
  %at = getelementptr i16, ptr %cores, i64 %t
  %core = load atomic i16, ptr %at monotonic, align 2
  %late = icmp eq i16 %core, 0
  %beside = icmp eq i16 %core, %told
  %waits = or i1 %late, %beside
  %other = icmp ne i64 %t, %mine
  %is = and i1 %waits, %other
  br i1 %is, label %known, label %next
known:
  %over = shl i64 %t, 6
  %row = getelementptr i8, ptr @crew, i64 %over
  %number_at = getelementptr i64, ptr %row, i64 1
  %number = load i32, ptr %number_at
  %some = icmp ne i32 %number, 0
  br i1 %some, label %free, label %next
free:
  %taken = atomicrmw xchg ptr %moving, i64 1 acquire
  %mine_now = icmp eq i64 %taken, 0
  br i1 %mine_now, label %ask, label %end
ask:
  %asked = call i32 @sched_getaffinity(i32 %number, i64 128, ptr %allowed)
  %good = icmp eq i32 %asked, 0
  br i1 %good, label %move, label %moved
move:
  %c = zext i32 %here to i64
  %which = lshr i64 %c, 6
  %within = and i64 %c, 63
  %bit = shl i64 1, %within
  %not = xor i64 %bit, -1
  %word = getelementptr i64, ptr %allowed, i64 %which
  %before = load i64, ptr %word
  %fewer = and i64 %before, %not
  store i64 %fewer, ptr %word
  %gone = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %allowed)
  store i64 %before, ptr %word
  %went = icmp eq i32 %gone, 0
  br i1 %went, label %back, label %moved
back:
  %anywhere = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %allowed)
  %tally = getelementptr i64, ptr @crew, i64 MOVED
  %count = atomicrmw add ptr %tally, i64 1 monotonic
  br label %moved
moved:
  store atomic i64 0, ptr %moving release, align 8
  br label %next
next:
  %t1 = add i64 %t, 1
  br label %each
end:
  ret void
}
"""
PATIENCE = 1 << 14  # looks at threads that have not begun
# All meet at most once in a tick of the system's coarse clock, some milliseconds.
_GATHER = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @clock_gettime(i32, ptr)
declare void @begin_turns(ptr, i64)
declare void @part_threads(ptr, i64, i64)
@latest = internal global i64 0

define internal void @each(ptr %cores) {
entry:
  %t32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %t = sext i32 %t32 to i64
  %n = sext i32 %n32 to i64
  %own = getelementptr i16, ptr %cores, i64 %t
  call void @begin_turns(ptr %own, i64 %t)
  %first = icmp eq i64 %t, 0
  br i1 %first, label %wait, label %follow
follow:
  call void @part_threads(ptr %cores, i64 1, i64 %t)
  ret void
wait:
  %looks = phi i64 [0, %entry], [%looks1, %wait]
  %k = phi i64 [1, %entry], [%k1, %wait]
  %at = getelementptr i16, ptr %cores, i64 %k
  %core = load atomic i16, ptr %at monotonic, align 2
  %begun = icmp ne i16 %core, 0
  %more = zext i1 %begun to i64
  %k1 = add i64 %k, %more
  %looks1 = add i64 %looks, 1
  %all = icmp sge i64 %k1, %n
  %long = icmp sgt i64 %looks1, PATIENCE
  %over = or i1 %all, %long
  br i1 %over, label %part, label %wait
part:
  call void @part_threads(ptr %cores, i64 %n, i64 0)
  ret void
}

define void @run(i64 %n) {
entry:
  %time = alloca [2 x i64]
  store [2 x i64] zeroinitializer, ptr %time
  %got = call i32 @clock_gettime(i32 COARSE, ptr %time)
  %part_at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %part = load i64, ptr %part_at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %part
  %then = load atomic i64, ptr @latest monotonic, align 8
  %often = icmp eq i64 %now, %then
  %few = icmp slt i64 %n, 2
  %no = or i1 %often, %few
  br i1 %no, label %end, label %gather
gather:
  store atomic i64 %now, ptr @latest monotonic, align 8
  %flags = shl i64 %n, 1
  %most = add i64 %flags, 63
  %bytes = and i64 %most, -64
  %cores = alloca i8, i64 %bytes, align 64
  call void @clear_lines(ptr %cores, i64 %bytes)
  %team = trunc i64 %n to i32
  call void @GOMP_parallel(ptr @each, ptr %cores, i32 %team, i32 0)
  br label %end
end:
  ret void
}
"""
_NOTHING = "define void @run(ptr %place, i64 %t) {\n  ret void\n}\n"
_NUMBERS = {
    "MOST": MOST,
    "MOVED": MOVED,
    "MOVING": MOVING,
    "PATIENCE": PATIENCE,
    "COARSE": COARSE,
    "KEY": KEY,
    "BLOCK": _BLOCK,
}


@once
def _ready() -> bool:
    """What texts call to keep threads apart is there from now on; where the system cannot, which is the
    answer, it does nothing. `gather_threads(n)` is for who calls a library that uses the pool: all of
    them meet, and part.
    """
    system = ctypes.CDLL(None)
    can = all(hasattr(system, name) for name in _SYSTEM)
    for name in _SYSTEM if can else ():
        symbol(name, address_of(system, name))
    symbol("crew", _crew)
    symbol("held_signals", _held)
    if can:
        key = ctypes.c_uint()
        system.pthread_key_create(ctypes.byref(key), None)
        _crew[0, KEY] = key.value
    for name, text in (
        ("begin_turns", _BEGIN),
        ("part_threads", _PART),
        ("gather_threads", _CLEAR + _GATHER),
    ):
        symbol(name, linked(_known(text) if can else _NOTHING))
    return can


def _known(text: str) -> str:
    for word, number in _NUMBERS.items():
        text = text.replace(word, str(number))
    return text


def moved() -> int:
    """How often a thread was moved to another core."""
    return int(_crew[0, MOVED])


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
