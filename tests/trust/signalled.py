"""`python -m tests.trust.signalled HOW`: every family of native kernels at work, while others send signals.

It says its process and "begin", works until its standard input ends, and tells as JSON what it saw. HOW is
where the work is done: in the `main` thread, on `workers`, in a `thread` of the user's, in a child made by
`fork`; or `stack`, which looks where the stack pointer was whenever a signal came."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.kernels import gemm
from ostinato.ops.cpu.threads import most_threads

import ostinato as ost

Work = Callable[[], Any]
EVERY = 1e-3  # seconds between signals of the process's own timers
SEEN = 1 << 16  # places of the stack pointer that are kept
CONTEXT = 160  # where the system's record of a thread has its stack pointer (x86-64)
SIGINFO, ON_STACK, RESTART = 0x4, 0x08000000, 0x10000000
HANDLER = f"""
declare i32 @gettid()
@seen = external global i8

define void @run(i32 %number, ptr %about, ptr %context) {{
entry:
  %thread = call i32 @gettid()
  %whose_at = getelementptr i64, ptr @seen, i64 {SEEN + 1}
  %whose = load i32, ptr %whose_at
  %main = icmp eq i32 %thread, %whose
  br i1 %main, label %note, label %end
note:
  %at = getelementptr i8, ptr %context, i64 {CONTEXT}
  %pointer = load i64, ptr %at
  %count = atomicrmw add ptr @seen, i64 1 monotonic
  %place = urem i64 %count, {SEEN}
  %next = add i64 %place, 1
  %to = getelementptr i64, ptr @seen, i64 %next
  store i64 %pointer, ptr %to
  br label %end
end:
  ret void
}}
"""


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def compiled(function: Callable[..., Any], *given: Any) -> Work:
    made, arrays = ost.compile(function), [ost.asarray(x) for x in given]
    return lambda: made(*arrays)


def families() -> dict[str, Work]:
    """What calls each kind of machine code there is."""
    x, table, square = normal(160, 160), normal(300, 300, dtype=np.float64), normal(60, 60)
    numbers, where = normal(20_000), np.random.default_rng(0).integers(0, 500, 20_000)
    half, whole = x.astype(ost.bfloat16), where[:8100].reshape(90, 90).astype(np.int32)
    linalg, nn = ost.linalg, ost.nn
    return {
        "loops": compiled(lambda x: ost.tanh(x) * x + ost.exp(-x * x), table),
        "reductions": compiled(lambda x: (x.sum(0), x.max(1), x.argmin(0), x.std()), table),
        "nests": compiled(lambda x: nn.softmax(nn.layer_norm(x)).sum(0), x),
        "epilogues": compiled(lambda x, w: ost.tanh(x @ w + 1.0), x, x),
        "epilogues of bfloat16": compiled(lambda x, w: nn.relu(x @ w + 1.0), half, half),
        "turned products": compiled(lambda x, g: x.T @ g, normal(900, 600), normal(900, 64)),
        "gradients": compiled(ost.grad(lambda w, x: ost.tanh(x @ w).sum()), x, x),
        "whole numbers": compiled(lambda a: a @ a, whole),
        "vectors": compiled(lambda a, v: (a @ v, v @ a), table, table[0]),
        "systems": compiled(lambda a, b: linalg.solve(a, b), square, square),
        "cholesky": compiled(lambda a: linalg.cholesky(a @ a.T + 60 * ost.eye(60)), square),
        "factors": compiled(lambda a: (*linalg.qr(a), *linalg.svd(a)), square),
        "eigenvalues": compiled(lambda a: linalg.eigvalsh(a + a.T), square),
        "sorts": compiled(lambda x: (ost.sort(x), ost.argsort(x), *ost.topk(x, 9)), numbers),
        "searches": compiled(lambda x, y: ost.searchsorted(ost.sort(x), y), numbers, numbers),
        "scans": compiled(lambda x: (ost.cumulative_sum(x), ost.cumulative_prod(x)), numbers),
        "takes": compiled(lambda x, i: (ost.take(x, i), x[i] * 2), numbers, where),
        "scatters": compiled(ost.grad(lambda x, i: (x[i] ** 2).sum()), numbers, where),
        "distances": compiled(lambda p: ((p[:, None] - p[None]) ** 2).sum(-1).argmin(1), x[:, :8]),
        "draws": compiled(lambda: ost.random.normal((200, 200), seed=3)),
        "sequences": compiled(
            lambda v, w: ost.repeat(300, lambda s: ost.tanh(w @ s) + 0.5, v), x[0, :32], x[:32, :32]
        ),
    }


def each_way(n: int) -> dict[str, Work]:
    """Products by each library and algorithm there is, with one thread and with two."""
    found: dict[str, Work] = {}
    for kind in ("float32", "float64", "bfloat16"):
        a, out = normal(n, n, dtype=kind), np.empty((n, n), kind)
        for threads in sorted({1, min(2, most_threads())}):
            for way, make in gemm.ways(a, a, out, threads).items():
                if (function := make()) is not None:
                    found[f"{way} of {kind}, {threads} threads"] = filling(function, a, out)
    return found


def filling(function: Callable[..., Any], a: Any, out: Any) -> Work:
    def work() -> Any:
        out.fill(0)
        function(a, a, out)
        return out

    return work


def bits(value: Any) -> bytes:
    if isinstance(value, tuple | list):
        return b"".join(map(bits, value))
    return np.asarray(value).tobytes()


def listening(ends: threading.Event) -> None:
    """Until standard input ends."""

    def listen() -> None:
        sys.stdin.read()
        ends.set()

    threading.Thread(target=listen, daemon=True).start()


def works(before: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Rounds through all families; those whose bits were once other than without signals."""
    some, ends = families() | each_way(100), threading.Event()
    right = {name: bits(work()) for name, work in some.items()}
    listening(ends)
    before()
    print(os.getpid(), "begin", flush=True)
    rounds, wrong = 0, set[str]()
    while not (ends.is_set() and rounds):
        wrong |= {name for name, work in some.items() if bits(work()) != right[name]}
        rounds += 1
    timers(0)
    return {
        "families": len(some),
        "rounds": rounds,
        "wrong": sorted(wrong),
        "masks": masks(),
        "threads": most_threads(),
    }


def masks() -> dict[str, int]:
    """How many threads take these signals and how many do not."""
    found = {"taking": 0, "holding": 0}
    for thread in Path("/proc/self/task").iterdir():
        lines = (thread / "status").read_text().splitlines()
        blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
        found["holding" if blocked >> (signal.SIGUSR1 - 1) & 1 else "taking"] += 1
    return found


def timers(seconds: float) -> None:
    for which in (signal.ITIMER_REAL, signal.ITIMER_PROF):
        signal.setitimer(which, seconds, seconds)


def python_handlers() -> list[int]:
    """Functions of Python as handlers; how often each was called."""
    seen = [0]

    def handler(*_: Any) -> None:
        seen[0] += 1

    for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, handler)
    return seen


class Action(ctypes.Structure):
    """sigaction's argument (Linux, 64 bits)."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def machine_handler() -> Any:
    """A handler that notes the stack pointer of what it interrupts, on a stack of its own."""
    seen, own, system = np.zeros(SEEN + 2, np.int64), np.zeros(1 << 17, np.uint8), ctypes.CDLL(None)
    seen[-1] = threading.get_native_id()
    symbol("seen", seen)
    symbol("gettid", address_of(system, "gettid"))
    stack = (ctypes.c_uint64 * 3)(own.ctypes.data, 0, own.nbytes)
    assert system.sigaltstack(stack, None) == 0
    alone = (ctypes.c_uint64 * 16)(-1)
    action, code = Action(None, alone, SIGINFO | ON_STACK | RESTART), llvm.linked(HANDLER)
    code.into(action, "handler")
    for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGPROF):
        assert system.sigaction(int(number), ctypes.byref(action), None) == 0
    _kept.extend((own, code))
    return seen


_kept: list[Any] = []


def off_the_stack(seen: Any) -> dict[str, int]:
    """How many places were noted, and how many of them lie elsewhere than on the main thread's stack."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    low, high = next(line.split()[0].split("-") for line in lines if line.endswith("[stack]"))
    places = seen[1 : 1 + min(int(seen[0]), SEEN)]
    off = (places < int(low, 16)) | (places >= int(high, 16))
    return {"noted": int(seen[0]), "off": int(off.sum())}


def main(how: str) -> None:
    if how == "stack":
        ost.connect(threads=1)
        seen = machine_handler()
        told = works(lambda: timers(EVERY / 4))
        print(json.dumps(told | off_the_stack(seen)))
        return
    calls = python_handlers()
    told: dict[str, Any] = {}
    if how == "workers":
        ost.connect(workers=3)
        told = works(lambda: timers(EVERY))
    elif how == "thread":
        thread = threading.Thread(target=lambda: told.update(works(lambda: timers(EVERY))))
        thread.start()
        while thread.is_alive():
            thread.join(0.01)  # a handler is called when the main thread comes back
    elif how == "fork":
        [bits(work()) for work in families().values()]
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from 3.12 on
        if child := os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        told = works(lambda: timers(EVERY))
    else:
        told = works(lambda: timers(EVERY))
    print(json.dumps(told | {"signals": calls[0]}), flush=True)
    if how == "fork":
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
