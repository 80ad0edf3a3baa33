"""What a process of `map(processes=True)` runs: it is given samples, and gives back what a function makes of
them.

It imports nothing of this package. Requests come by its standard input, answers go out by what was its standard
output; both only say how long the pieces are that lie in memory which is shared with its parent. When its
parent is gone, or has no more for it, its input ends, and so does it."""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import runpy
import select
import signal
import struct
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

ALIGN = 64
IDLE = 60.0  # seconds after which it ends if it is not needed; its parent starts another one then
DONE, FAILED = 0, 1
MAIN = "__ostinato_main__"  # what the script that was started is called here
COUNT = struct.Struct("<BI")  # how it went, and how many pieces there are


class Arena:
    """Memory that two processes share, written by one of them. Pieces lie one behind another."""

    def __init__(self, handle: int) -> None:
        self.handle, self.size = handle, 0
        self.map: Any = b""

    def _of(self, size: int) -> None:
        """Map at least so many bytes."""
        if size > self.size:
            self.size = -(-max(size, 2 * self.size) // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.handle).st_size < self.size:
                os.ftruncate(self.handle, self.size)
            self.map = mmap.mmap(self.handle, self.size)

    def put(self, pieces: Sequence[Any]) -> list[int]:
        """Write pieces; how long they are."""
        views = [memoryview(p).cast("B") for p in pieces]
        self._of(sum(len(v) + ALIGN for v in views))
        at = 0
        for view in views:
            self.map[at : at + len(view)] = view
            at += -(-len(view) // ALIGN) * ALIGN
        return [len(v) for v in views]

    def get(self, sizes: Sequence[int]) -> list[bytearray]:
        """Copies of pieces, since what is written next is written over them."""
        self._of(sum(n + ALIGN for n in sizes))
        found, at = [], 0
        whole = memoryview(self.map)
        for size in sizes:
            found.append(bytearray(whole[at : at + size]))
            at += -(-size // ALIGN) * ALIGN
        whole.release()
        return found


def pack(value: Any) -> list[Any]:
    """A value in pieces: how it is built, and the contents of its arrays."""
    buffers: list[Any] = []
    stream = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return [stream, *(b.raw() for b in buffers)]


def unpack(pieces: Sequence[bytearray]) -> Any:
    return pickle.loads(pieces[0], buffers=pieces[1:])


def send(handle: int, arena: Arena, how: int, pieces: Sequence[Any]) -> None:
    sizes = arena.put(pieces)
    left = memoryview(COUNT.pack(how, len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes))
    while left:
        left = left[os.write(handle, left) :]


def receive(handle: int, arena: Arena) -> tuple[int, Any]:
    """How it went, and what it is; EOFError if the other one is gone."""
    how, count = COUNT.unpack(_exactly(handle, COUNT.size))
    sizes = struct.unpack(f"<{count}Q", _exactly(handle, 8 * count))
    return how, unpack(arena.get(sizes))


def _exactly(handle: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(handle, size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def failure(error: BaseException) -> tuple[str, str, bytes | None]:
    """An error: in words, the line that it was raised at, and as it is, if it can be sent."""
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    try:
        whole = pickle.dumps(error)
        pickle.loads(whole)
    except Exception:
        return what, where, None
    return what, where, whole


def _function(given: dict[str, Any]) -> Callable[..., Any]:
    """The function that is to be run. Its module is imported; if that is the script that was started, it
    is imported by another name, so that what stands under `if __name__ == "__main__"` does not run."""
    sys.path[:] = given["path"]
    sys.argv[:] = given["argv"]
    if given["module"]:
        sys.modules["__main__"] = importlib.import_module(given["module"])
    elif given["main"]:
        made = types.ModuleType(MAIN)
        made.__dict__.update(runpy.run_path(given["main"], run_name=MAIN))
        sys.modules["__main__"] = sys.modules[MAIN] = made
    found: Callable[..., Any] = pickle.loads(given["function"])
    return found


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    answers = os.dup(1)
    os.dup2(2, 1)  # what a function prints
    requests, into = Arena(int(sys.argv[1])), Arena(int(sys.argv[2]))
    function: Callable[..., Any] | None = None
    while True:
        try:
            if not select.select([0], [], [], IDLE)[0]:
                os._exit(0)
            _, given = receive(0, requests)
        except EOFError:
            os._exit(0)
        try:
            if function is None:
                function, made = _function(given), None
            else:
                made = function(*given)
            how, pieces = DONE, pack(made)
        except BaseException as error:
            how, pieces = FAILED, pack(failure(error))
        sys.stdout.flush()
        try:
            send(answers, into, how, pieces)
        except OSError:
            os._exit(0)


if __name__ == "__main__":
    main()
