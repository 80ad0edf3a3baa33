"""`python -m tests.trust.finalized`: finalizers that use Ostinato, in threads where nobody would expect them.

The threads are the one that reads blocks of a file ahead, the one in which kernels are compiled, and one of the
program's in which they are. A finalizer runs a plan that ran before, makes another, the same that is compiled just
then, reads a value that is pending, or closes the session. A line says what came of each, and whether what went on
meanwhile gave the right value."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops.cpu.jit import llvm
from ostinato.runtime import read_ahead

import ostinato as ost
from ostinato.errors import SessionError

X = np.arange(1 << 18) / (1 << 18)
WHERE = {"reader": "ostinato-reader", "compiler": "ostinato-compiler", "thread": "user"}
WHAT = ("known", "new", "same", "value", "close")


class Late:
    """Garbage that uses Ostinato when it is collected."""

    said = ""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.me = work, self

    def __del__(self) -> None:
        try:
            self.work()
            Late.said = "done"
        except SessionError as error:
            Late.said = f"refused: {error}"


late: list[Late] = []
thread = ""  # in which it is collected


def collect() -> None:
    if threading.current_thread().name.startswith(thread):
        late.clear()
        gc.collect()


class Source:
    """A file during whose reading garbage is collected."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def read(self, *args: Any) -> None:
        collect()
        self.source.read(*args)


begin, compiled = read_ahead.ReadAhead.__init__, llvm._machine_code


def collects(text: str) -> bytes:
    collect()
    return compiled(text)


def main(file: Path) -> None:
    global thread
    gc.disable()
    np.save(file, np.ones((1 << 19, 8)))
    read_ahead.ReadAhead.__init__ = lambda self, steps, sources: begin(  # type: ignore[method-assign]
        self, steps, [*map(Source, sources)]
    )
    llvm._machine_code = collects
    roots = 0  # each turn compiles another kernel
    for where in WHERE:
        for what in WHAT:
            session = ost.connect(1, memory_limit=16 << 20)
            x, known = ost.asarray(X), ost.compile(lambda x: (x * 2.0).sum())
            known(x)
            pending = x + 7.0
            roots += 1

            def made(x: Any, count: int = roots) -> Any:
                for _ in range(count):
                    x = np.sqrt(x + 1.0)
                return x.sum()

            def read() -> Any:
                return ost.load(file, resident=False).sum()

            does = {
                "known": lambda f=known, x=x: float(f(x)),
                "new": lambda x=x: float((np.exp(x) * 5.0 - 2.0).sum()),
                "same": lambda f=made, x=x: float(f(x)),
                "value": lambda y=pending: np.asarray(y),
                "close": session.close,
            }
            late[:], Late.said, thread = [Late(does[what])], "nothing", WHERE[where]
            got: list[float] = []
            work = read if where == "reader" else lambda f=made, x=x: f(x)

            def go(work: Any = work, got: list[float] = got) -> None:
                got.append(float(work()))

            if where == "thread":
                user = threading.Thread(target=go, name="user")
                user.start()
                user.join()
            else:
                go()
            wanted = 8 << 19 if where == "reader" else made(X)
            is_right = np.allclose(got, [wanted], rtol=1e-12)
            print(where, what, "right" if is_right else "wrong", Late.said, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
