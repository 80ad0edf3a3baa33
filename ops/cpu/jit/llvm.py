"""Machine code from LLVM's text: a module's `run` becomes a function that Python calls directly, with
arrays, or one that other machine code calls.

It is kept on disk under a digest of its text and of the processor. Modules that are asked for together
are compiled side by side."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core import activity, disk_cache
from ostinato.ops.core.locks import free_in_child, make_lock
from ostinato.ops.core.signals import aside, clear, once_gone, thread_for
from ostinato.ops.cpu.threads import most_threads

from ostinato import settings

from .code import CodeAddress, address_of, once, symbol, untold

MOST_KEPT = 4096  # kernels on disk, of some 10 kB each; the oldest go first
APART = """\
!0 = !{!0}
!1 = !{!1, !0}
!2 = !{!2, !0}
!3 = !{!1}
!4 = !{!2}"""  # of a text: what is read (scope 3) and what is written (scope 4) are never the same
_DATA = 16  # where an array object keeps the address of its elements


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL, _KEYWORDS = 0x80, 0x02


class _Code:
    """A module's entry point, as Python calls it. Until its machine code is there, it is Python's own for
    the call of an object: a function's facts, which wait for the machine code."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lock = make_lock()
        self.is_ready = False
        self.definition = _MethodDef(b"kernel", None, _FASTCALL | _KEYWORDS, None)
        self._is(address_of(ctypes.pythonapi, "PyObject_Vectorcall"))

    def _is(self, code: CodeAddress) -> None:
        code.into(self.definition, "function")
        self.code = code

    def ready(self) -> None:
        """Machine code from disk, or made."""
        if not self.is_ready:
            aside(self._make)

    def _make(self) -> None:
        with self.lock:
            if not self.is_ready:
                self._is(_load_or_make(self.text))
                self.is_ready = True


# Each takes three of the maps of memory that a process may have (65,530): so what no function uses any
# more goes, but for the latest.
_made: dict[str, weakref.ref[_Code]] = {}
_latest: deque[_Code] = deque(maxlen=1024)
_asked = threading.local()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Kernels that are asked for in here are compiled at its end, side by side."""
    outer, _asked.codes = getattr(_asked, "codes", None), []
    try:
        yield
        late = [code for code in dict.fromkeys(_asked.codes) if not code.is_ready]
    finally:
        _asked.codes = outer
    if not late:
        return
    waiting = deque(late)
    what = f"compiling {len(late)} kernel{'' if len(late) == 1 else 's'}"

    def work() -> None:
        with contextlib.suppress(IndexError, RuntimeError):  # the end, or what is raised below
            while True:
                waiting.popleft().ready()
                seen.step()

    def all_of_them() -> None:
        team = [thread_for(work) for _ in late[1 : most_threads()]]
        for thread in team:
            thread.start()
        work()
        for thread in team:
            thread.join()
        for code in late:
            code.ready()

    with activity.task("compile", what, len(late)) as seen:
        try:
            aside(all_of_them)
        except BaseException:  # nobody waits for the others
            waiting.clear()
            late.clear()
            raise


@lru_cache(1)
def why_not() -> str:
    """Empty if this machine can; else the reason."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "kernels are called as CPython with its lock calls them"
    probe = np.zeros(1)
    if ctypes.c_void_p.from_address(id(probe) + _DATA).value != probe.ctypes.data:
        return "this NumPy keeps its arrays' addresses elsewhere"
    try:
        _tools()
    except (ImportError, OSError, RuntimeError) as error:
        return str(error)
    return ""


@lru_cache(1)
def _tools() -> Any:
    """LLVM, what this processor has, and both in words; the names that kernels call are known."""
    return aside(_begin)


def _begin() -> Any:
    import llvmlite.binding as llvm

    free_in_child(llvm.ffi.lib._lock._lock)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "PyErr_SetString"):
        symbol(name, address_of(ctypes.pythonapi, name))
    for name, thing in (("none", None), ("array_type", np.ndarray), ("type_error", TypeError)):
        symbol(name, thing)
    about = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {features.flatten()}"
    return llvm, features.flatten(), about


def _machine() -> Any:
    """This processor, for one thread."""
    llvm, features, _ = _tools()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="default"
    )


def processor() -> str:
    """Return LLVM's name of this processor."""
    return str(_tools()[0].get_host_cpu_name())


def processor_in_words() -> str:
    """LLVM and all that this processor has, in its words; or why no kernels are made here."""
    return why_not() or str(_tools()[2])


def vector_bits() -> int:
    """Return the width of this machine's widest registers, in bits."""
    about = _tools()[2]
    return 512 if "+avx512f" in about else 256 if "+avx" in about else 128


def has(*features: str) -> bool:
    """Whether this processor has what LLVM calls so."""
    return {f"+{name}" for name in features} <= {*_tools()[1].split(",")}


_telling = make_lock()


@once
def linked(text: str) -> CodeAddress:
    """A module's `run`, for others to call. It is the same for all threads."""
    return aside(lambda: _load_or_make(text))


def _compiled(text: str) -> _Code:
    """The entry point of a module's machine code, at once or at the end of `together`."""
    found = known() if (known := _made.get(text)) is not None else None
    if found is None:
        found = _Code(text)
        _made[text] = known = weakref.ref(found)
        once_gone(found, lambda: _made.pop(text) if _made.get(text) is known else None)
    _latest.append(found)
    waiting = getattr(_asked, "codes", None)
    if waiting is None:
        found.ready()
    else:
        waiting.append(found)
    return found


def _load_or_make(text: str) -> CodeAddress:
    """A module's `run`, which owns the engine in which it lies: each has its own, as all have that name."""
    llvm, _, about = _tools()
    clear()
    with _telling:
        while untold:
            llvm.add_symbol(*untold.popleft())
    digest = hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).hexdigest()
    disk, name = disk_cache.open_cache(settings.cache), f"kernels/{digest}.o"
    code = disk.read(name)
    if code is None:
        with activity.task("compile", "a kernel", minor=True):
            code = _machine_code(text)
        disk.write(name, code)
        _tidy(disk)
    empty = llvm.parse_assembly("", llvm.create_context())
    # in one piece: code reaches its constants by 32 bits, and pages that lie free may be far apart
    engine = llvm.create_mcjit_compiler(empty, _machine(), use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    found = CodeAddress(int(engine.get_function_address("run")), engine)
    once_gone(found, engine.close)
    return found


def _machine_code(text: str) -> bytes:
    llvm, machine = _tools()[0], _machine()
    module = _optimised(text, machine)
    with llvm.ffi.OutputString() as problem:
        made = _free("TargetMachineEmitToMemory")(machine, module, 1, problem)
        if not made:
            raise RuntimeError(str(problem))
    try:
        library = llvm.ffi.lib
        begin, size = library.LLVMPY_GetBufferStart(made), library.LLVMPY_GetBufferSize(made)
        return ctypes.string_at(begin, size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(made)


# Longer texts at the second level, and with their loops as they are: 2.4 times sooner there, at 400,000
# characters 6 times, and as fast. Of short ones an inner loop may be all there is.
LONG_TEXT_CHARS = 12_000


def _optimised(text: str, machine: Any) -> Any:
    """A kernel's text as LLVM's module, ready to become machine code."""
    llvm = _tools()[0]
    module = llvm.parse_assembly(
        f'target triple = "{machine.triple}"\n' + text, llvm.create_context()
    )
    module.verify()
    is_short = len(text) < LONG_TEXT_CHARS
    options = llvm.create_pipeline_tuning_options(speed_level=3 if is_short else 2)
    options.loop_vectorization = options.loop_interleaving = True
    options.loop_unrolling = is_short
    builder = llvm.create_pass_builder(machine, options)
    _free("RunNewModulePassManager")(builder.getModulePassManager(), module, builder)
    return module


def _free(name: str) -> Any:
    """A function of LLVM's that takes long, without llvmlite's lock around all of LLVM: our modules
    have a context and a machine of their own."""
    locked = getattr(_tools()[0].ffi.lib, f"LLVMPY_{name}")
    return getattr(locked, "_cfn", locked)


def assembly(text: str) -> str:
    """The machine code of a kernel's text, as text."""
    machine = _machine()
    return str(machine.emit_assembly(_optimised(text, machine)))


@lru_cache(1)  # once in a process: looking at thousands of files takes longer than a kernel
def _tidy(disk: disk_cache.Cache) -> None:
    disk.keep_within("kernels", count=MOST_KEPT)


on_threads: list[Callable[[int], None]] = []  # are told how many helpers a kernel may have


def function_of(text: str, about: Any, held: Any = None) -> Callable[..., None]:
    """A module's `run` as a Python function that knows these facts: turns, threads, and its own;
    `held` is memory that they point to."""
    code = _compiled(text)
    about = about.view(_Facts)
    about.held = held, code  # a function lets go of its facts last
    for begin in on_threads if about[1] > 1 else ():
        begin(int(about[1]) - 1)
    return about.function()


def is_kernel(function: Any) -> bool:
    """Whether it is one of these functions, which machine code can call as well."""
    return isinstance(getattr(function, "__self__", None), _Facts)


class _Facts(np.ndarray):
    """A meta array, and the memory that it points to."""

    held: Any = None
    __hash__ = object.__hash__  # type: ignore[assignment]  # each is one of its own

    def function(self) -> Callable[..., None]:
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
        made: Callable[..., None] = new(ctypes.byref(self.held[1].definition), self, None)
        return made

    def __call__(self, *arrays: Any) -> Any:
        """Wait for the machine code, and call it."""
        self.held[1].ready()
        return self.function()(*arrays)
