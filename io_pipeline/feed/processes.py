"""Functions of `map` that run in processes of their own: for those that are Python for the most part, of which
one process runs one at a time, whatever its threads.

A thread of the feed that comes to such a stage takes a process, gives it the sample by memory that both
share, and waits for what comes of it. So samples have their order and their places as ever. Functions are
found by name in the process: those of modules and of the script that was started, which is imported
there by another name; what lies in other functions has no name. Processes are started anew, none is forked.

They begin with the first sample that needs them. Behind a whole epoch they wait for the next one, a minute at
most; they end with an epoch that is broken off, with the pipe, and with the program. One that dies is
replaced once for its sample; if that one dies, too, the sample is a fault."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ostinato.errors import SampleError

from ..tuner.place import own_cores
from .child import FAILED, MAIN, Arena, pack, receive, send
from .samples import Samples

SCRIPT = str(Path(__file__).with_name("child.py"))
PATIENCE = 2.0  # seconds for a process to end


class Unfit(Exception):
    """A function that no other process would find; its text says why."""


class Ended(RuntimeError):
    """The epoch has ended meanwhile."""


class _Child:
    """One process, and the memory that it shares with us."""

    def __init__(self, setup: dict[str, Any]) -> None:
        handles = [_memory() for _ in range(2)]
        self.into, self.out = Arena(handles[0]), Arena(handles[1])
        command = [sys.executable, "-P", SCRIPT, *map(str, handles)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=handles, bufsize=0
            )
        except BaseException:
            for handle in handles:
                os.close(handle)
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._write, self._read = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.setup: dict[str, Any] | None = setup  # until it knows its function

    def ask(self, value: Any, seconds: float | None = None) -> tuple[int, Any]:
        """Ask the process what comes of a value; EOFError if the process is gone, TimeoutError if
        it takes longer."""
        try:
            send(self._write, self.into, 0, pack(value))
            if seconds is not None:
                answers = select.poll()
                answers.register(self._read, select.POLLIN)
                if not answers.poll(seconds * 1e3):
                    raise TimeoutError
            return receive(self._read, self.out)
        except (BrokenPipeError, ConnectionError):
            raise EOFError from None

    def end(self, now: bool) -> None:
        """End it, at once if it is at work."""
        process = self.process
        if process.poll() is None:
            if now:
                process.kill()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Close what goes to it and comes from it; of a process that nobody waits for."""
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def __del__(self) -> None:
        if "process" in vars(self):
            self.close()
        for arena in (self.into, self.out):
            with contextlib.suppress(OSError):
                os.close(arena.handle)

    def why(self) -> str:
        """How it ended."""
        code = self.process.wait()
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
            more = ", as when memory runs out" if -code == signal.SIGKILL else ""
            return f"by signal {name}{more}"
        return f"with exit code {code}"


class InProcesses:
    """A function that is called in other processes. It is called by several threads at once."""

    def __init__(self, function: Callable[..., Any], most: int = 0) -> None:
        functools.update_wrapper(self, function)  # so that it is told from others by what it runs
        self.function, self.most = function, most
        self.setup = _setup(function)
        self.lock = threading.RLock()  # for finalizers may end it anywhere
        self.some = threading.Condition(self.lock)
        self.home, self.users = os.getpid(), 0  # epochs that are being made
        self.free: list[_Child] = []
        self.all: list[_Child] = []
        weakref.finalize(self, _end_own, os.getpid(), self.all, self.free)

    def __call__(self, *given: Any) -> Any:
        return self.call_within(None, *given)

    def call_within(self, seconds: float | None, *given: Any) -> Any:
        """Call the function in another process. A process that takes longer is ended, and another
        one takes its place; the time until it has found the function does not count."""
        child, is_second = self._taken(), False
        while True:
            try:
                if child.setup is not None:
                    how, found = child.ask(child.setup)
                    if how == FAILED:
                        raise _raised(found, "it could not be found in a process of its own")
                    child.setup = None
                how, found = child.ask(given, seconds)
                self._given_back(child)
            except TimeoutError:
                self._gone(child)
                raise self._late(seconds) from None
            except EOFError:
                child = self._another(child, is_second)
                is_second = True
                continue
            except BaseException:
                self._gone(child)
                raise
            if how == FAILED:
                raise _raised(found)
            return found

    def _late(self, seconds: float | None) -> SampleError:
        made = SampleError.because(
            getattr(self.function, "__name__", type(self.function).__name__),
            got=f"no answer within {seconds:g} s (its process was ended)",
            needed="more time by on_error(timeout=...)",
        )
        assert isinstance(made, SampleError)
        return made

    def _taken(self) -> _Child:
        """A process for one sample."""
        with self.lock:
            most = self.most or own_cores()
            while not self.free:
                if self.users and len(self.all) < most:
                    break
                if not self.users:
                    raise Ended
                self.some.wait(1.0)
            if self.free:
                return self.free.pop()
            return self._new()

    def _new(self) -> _Child:
        made = _Child(self.setup)
        if self.users:
            self.all.append(made)
            return made
        made.end(now=True)  # a finalizer has ended the epoch meanwhile
        raise Ended

    def _given_back(self, child: _Child) -> None:
        with self.lock:
            if child in self.all:
                self.free.append(child)
                self.some.notify()

    def _gone(self, child: _Child) -> None:
        """A process is used no more."""
        with self.lock:
            if child in self.all:
                self.all.remove(child)
                self.some.notify()
        child.end(now=True)
        child.close()  # who tells of its end may hold it, in a circle

    def _another(self, child: _Child, is_second: bool) -> _Child:
        """In the place of one that died."""
        self._gone(child)
        with self.lock:
            if not self.users:
                raise Ended
            if not is_second:
                return self._new()
        got = f"its end {child.why()}, also when it was tried again"
        needed = "a function that returns or raises an error"
        raise SampleError.because("a process of map", got=got, needed=needed)

    def begin(self) -> None:
        """An epoch may need it."""
        with self.lock:
            if self.home != os.getpid():  # after a fork: these are the parent's
                self.home, self.users = os.getpid(), 0
                self.free, self.all = [], []
                weakref.finalize(self, _end_own, os.getpid(), self.all, self.free)
            self.users += 1

    def end(self) -> None:
        """An epoch needs it no more: its processes wait for the next one."""
        with self.lock:
            self.users -= 1
            self.some.notify_all()

    def drop(self) -> None:
        """An epoch was broken off. Unless another one needs them, processes end."""
        with self.lock:
            if self.users > 0:
                return
            children, idle = [*self.all], [*self.free]
            self.all.clear()
            self.free.clear()
        _end(children, idle)


def _end_own(home: int, children: list[_Child], idle: list[_Child]) -> None:
    """Nobody has the function any more, or the interpreter ends."""
    if home == os.getpid():
        _end(children, idle)


def _end(children: list[_Child], idle: list[_Child]) -> None:
    """End processes, those that are at work at once."""
    for child in children:
        if child in idle:
            assert child.process.stdin is not None
            child.process.stdin.close()
        else:
            child.process.kill()
    for child in children:
        child.end(now=child not in idle)


def _setup(function: Callable[..., Any]) -> dict[str, Any]:
    """Encode what another process has to know to find a function."""
    try:
        stream = pickle.dumps(function)
    except Exception:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise Unfit(f"{name}, which has no name that another process would find it by") from None
    module, main = "", ""
    if b"__main__" in stream:
        there = sys.modules["__main__"]
        spec = getattr(there, "__spec__", None)
        if spec is not None:  # python -m
            module = spec.name
        else:
            main = os.path.abspath(getattr(there, "__file__", None) or "")
            if not os.path.isfile(main):
                raise Unfit("a function that is in no file")
            sys.modules.setdefault(MAIN, there)  # of which results may be
    path = [os.path.abspath(p) for p in sys.path]
    return {"function": stream, "main": main, "module": module, "path": path, "argv": [*sys.argv]}


def _raised(found: tuple[str, str, bytes | None], what: str = "") -> SampleError:
    said, where, whole = found
    text = f"{what}: {said}" if what else said
    made = SampleError(f"{text} ({where})" if where else text)
    if whole is not None:
        with contextlib.suppress(Exception):
            made.__cause__ = pickle.loads(whole)
    return made


def _memory() -> int:
    """A file in memory that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ostinato-feed", 0)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def needed_by(source: Samples, *chains: Any) -> list[InProcesses]:
    """The functions in processes that an epoch may need."""
    return [*dict.fromkeys(_found(source, chains))]


def _found(source: Samples, chains: Any) -> Iterator[InProcesses]:
    for chain in (*chains, getattr(source, "chain", None)):
        for placed in chain.stages if chain is not None else ():
            function = getattr(placed.stage, "function", None)
            if isinstance(function, InProcesses):
                yield function
    for inner in source.inner():
        yield from _found(inner, ())
