"""Machine code from LLVM's text: a module's `run` becomes a function that Python calls directly, with
arrays, or one that other machine code calls.

It is kept on disk under a digest of its text and of the processor. Modules that are asked for together
are compiled side by side."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from ostinato import settings

from . import kept
from .threads import address_of, most_threads, pool

MOST_KEPT = 4096  # kernels on disk, of some 10 kB each; the oldest go first
_DATA = 16  # where an array object keeps the address of its elements


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_CALL = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t)


class _Code:
    """A module's entry point, as Python calls it. Who calls it before its machine code is there
    waits for that.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lock = threading.Lock()
        self.is_ready = False
        self.engine: Any = None  # whose memory the machine code lies in
        self.first = _CALL(self.late)
        address = ctypes.cast(self.first, ctypes.c_void_p).value
        self.definition = _MethodDef(b"kernel", address, _FASTCALL, None)

    def ready(self) -> None:
        """Machine code from disk, or made."""
        with self.lock:
            if not self.is_ready:
                self.definition.function, self.engine = _load_or_make(self.text)
                self.is_ready = True

    def late(self, *call: Any) -> Any:
        self.ready()
        return _CALL(self.definition.function)(*call)


# Each takes three of the maps of memory that a process may have (65,530): so what no function uses any
# more goes, but for the latest.
_made: weakref.WeakValueDictionary[str, _Code] = weakref.WeakValueDictionary()
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
    waiting = deque(late)

    def work() -> None:
        with contextlib.suppress(IndexError, RuntimeError):  # the end, or what is raised below
            while True:
                waiting.popleft().ready()

    team = [
        threading.Thread(target=work, name="ostinato-compiler") for _ in late[1 : most_threads()]
    ]
    for thread in team:
        thread.start()
    work()
    for thread in team:
        thread.join()
    for code in late:
        code.ready()


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
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "PyErr_SetString"):
        llvm.add_symbol(name, address_of(ctypes.pythonapi, name))
    for name, thing in (("none", None), ("array_type", np.ndarray), ("type_error", TypeError)):
        llvm.add_symbol(name, id(thing))
    for name, address in pool().items():
        llvm.add_symbol(name, address)
    about = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {features.flatten()}"
    return llvm, features.flatten(), about


def _machine() -> Any:
    """This processor, for one thread."""
    llvm, features, _ = _tools()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="default"
    )


def vector_bits() -> int:
    """Of this machine's widest registers."""
    about = _tools()[2]
    return 512 if "+avx512f" in about else 256 if "+avx" in about else 128


def has(*features: str) -> bool:
    """Whether this processor has what LLVM calls so."""
    return {f"+{name}" for name in features} <= {*_tools()[1].split(",")}


def symbol(name: str, address: int) -> None:
    """A name that texts may call."""
    _tools()[0].add_symbol(name, address)


def linked(text: str) -> int:
    """The address of a module's `run`, for others to call. It stays, and is the same for all threads."""
    with _linking:
        if text not in _linked:
            _linked[text] = _load_or_make(text)
        return _linked[text][0]


_linking = threading.Lock()
_linked: dict[str, tuple[int, Any]] = {}


def _compiled(text: str) -> _Code:
    """The entry point of a module's machine code, at once or at the end of `together`."""
    found = _made.get(text)
    if found is None:
        found = _made.setdefault(text, _Code(text))
    _latest.append(found)
    waiting = getattr(_asked, "codes", None)
    if waiting is None:
        found.ready()
    else:
        waiting.append(found)
    return found


def _load_or_make(text: str) -> tuple[int, Any]:
    """The address of `run`, and the engine in which it lies: each has its own, as all have that name."""
    llvm, _, about = _tools()
    digest = hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).hexdigest()
    disk, name = kept.at(settings.cache), f"kernels/{digest}.o"
    code = disk.read(name)
    if code is None:
        code = _machine_code(text)
        disk.write(name, code)
        _tidy(disk)
    empty = llvm.parse_assembly("", llvm.create_context())
    # in one piece: code reaches its constants by 32 bits, and pages that lie free may be far apart
    engine = llvm.create_mcjit_compiler(empty, _machine(), use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return int(engine.get_function_address("run")), engine


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


def _optimised(text: str, machine: Any) -> Any:
    """A kernel's text as LLVM's module, ready to become machine code."""
    llvm = _tools()[0]
    module = llvm.parse_assembly(
        f'target triple = "{machine.triple}"\n' + text, llvm.create_context()
    )
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.loop_interleaving = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    _free("RunNewModulePassManager")(builder.getModulePassManager(), module, builder)
    return module


def _free(name: str) -> Any:
    """A function of LLVM's that takes long, without llvmlite's lock around all of LLVM: our modules
    have a context and a machine of their own.
    """
    locked = getattr(_tools()[0].ffi.lib, f"LLVMPY_{name}")
    return getattr(locked, "_cfn", locked)


def assembly(text: str) -> str:
    """The machine code of a kernel's text, as text."""
    machine = _machine()
    return str(machine.emit_assembly(_optimised(text, machine)))


@lru_cache(1)  # once in a process: looking at thousands of files takes longer than a kernel
def _tidy(disk: kept.Cache) -> None:
    disk.keep_within("kernels", count=MOST_KEPT)


def function_of(text: str, about: Any, held: Any = None) -> Callable[..., None]:
    """A module's `run` as a Python function that knows these facts: turns, threads, and its own;
    `held` is memory that they point to.
    """
    code = _compiled(text)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p]
    about = about.view(_Facts)
    about.held = held, code  # a function lets go of its facts last
    if about[1] > 1:
        _shared[id(about)] = about
    made: Callable[..., None] = new(ctypes.byref(code.definition), about, None)
    return made


def is_kernel(function: Any) -> bool:
    """Whether it is one of these functions, which machine code can call as well."""
    return isinstance(getattr(function, "__self__", None), _Facts)


class _Facts(np.ndarray):
    """A meta array, and the memory that it points to."""

    held: Any = None


# Kernels that use threads, by their meta arrays: a forked child has none of libgomp's threads, and
# would wait for them forever.
_shared: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _alone() -> None:
    """What a forked child does: all kernels run in one thread from now on."""
    for about in list(_shared.values()):
        about[1] = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
