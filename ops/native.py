"""Kernels as machine code: a chain of elementwise operations in one loop, made with LLVM.

A kernel's text depends on what it computes, on dtypes, and on how operands are repeated, but not on
extents, so that few kernels serve many shapes. It is a function that Python calls directly, with
arrays; large ones are shared among threads by libgomp, which linear algebra libraries use too.
Machine code is kept on disk under a digest of its text and of the processor."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ostinato import settings

from .graph import Graph
from .scalar import Lines, Value, llvm_type, lower
from .spec import DType, Shape, bool_

GRAIN = 32768  # elements times operations that are worth a thread
MOST_KEPT = 4096  # kernels on disk, of some 10 kB each; the oldest go first
SHORT = 64  # an inner loop of at most so many turns is written for their number
_DATA = 16  # where an array object keeps the address of its elements


@dataclass(frozen=True, slots=True)
class Look:
    """How an operand lies in the memory of an array: bytes from its start, and to the next element
    along each axis.
    """

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loops:
    """Extents and, for each operand, strides of a nest of loops; neighbours that can be are one."""

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def loops_over(shape: Shape, strides: Sequence[Sequence[int]]) -> Loops:
    """The fewest loops that visit all elements, in the order of the result."""
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(shape):
        if n == 1 and len(shape) > 1:
            continue
        joins = bool(extents) and all(
            mine[-1] == own[d] * n for mine, own in zip(steps, strides, strict=True)
        )
        for mine, own in zip(steps, strides, strict=True):
            if joins:
                mine[-1] = own[d]
            else:
                mine.append(own[d])
        if joins:
            extents[-1] *= n
        else:
            extents.append(n)
    if not extents:
        extents, steps = [1], [[0] for _ in strides]
    return Loops(tuple(extents), tuple(map(tuple, steps)))


# -- text ----------------------------------------------------------------------------------
def kernel_text(body: Graph, loops: Loops) -> str:
    """A module in LLVM's language: `body` for some turns, `task` for a thread's share, and `run`
    for Python.
    """
    dtypes = [s.dtype for s in (*body.inputs, *body.out_specs)]
    many, last = len(dtypes), len(loops.extents) - 1
    short = last > 0 and loops.extents[-1] <= SHORT
    lines = Lines()
    hoisted: list[str] = []
    loads: list[str] = []
    values: list[Value] = []
    for k, s in enumerate(body.inputs):
        step = loops.strides[k][-1]
        text = hoisted if step == 0 else loads
        values.append(_load(lines, text, k, s.dtype, step))
    for node in body.nodes:
        ins = [values[v] for v in node.inputs]
        if node.op == "constant":
            values.append(lines.constant(node.kw["value"], node.specs[0].dtype))
        else:
            values.append(lower(node.op, ins, node.specs[0].dtype))
    stores: list[str] = []
    for k, v in enumerate(body.outputs, len(body.inputs)):
        _store(stores, k, values[v], loops.strides[k][-1])
    extent = str(loops.extents[-1]) if short else "%extent"
    # what the meta array holds: turns of the outer loops, threads, extents, then for each operand
    # its offset and strides
    meta = [f"  %m{k} = getelementptr i64, ptr %meta, i64 {k}" for k in range(3 + last)]
    outer = [f"  %e{d} = load i64, ptr %m{3 + d}" for d in range(last)]
    place = [f"  %r{last} = add i64 %o, 0"] if last else []
    for d in reversed(range(1, last)):
        place += [f"  %x{d} = urem i64 %r{d + 1}, %e{d}", f"  %r{d} = udiv i64 %r{d + 1}, %e{d}"]
    if last:
        place.append("  %x0 = add i64 %r1, 0")
    for k in range(many):
        at = 3 + last + k * (1 + len(loops.extents))
        place += [f"  %base{k} = load ptr, ptr {_slot('%data', k, 'ptr', place)}"]
        place += [f"  %off{k} = load i64, ptr {_slot('%meta', at, 'i64', place)}"]
        place.append(f"  %q{k}_0 = getelementptr i8, ptr %base{k}, i64 %off{k}")
        for d in range(last):
            slot = _slot("%meta", at + 1 + d, "i64", place)
            place += [
                f"  %s{k}_{d} = load i64, ptr {slot}",
                f"  %w{k}_{d} = mul i64 %s{k}_{d}, %x{d}",
                f"  %q{k}_{d + 1} = getelementptr i8, ptr %q{k}_{d}, i64 %w{k}_{d}",
            ]
        slot = _slot("%meta", at + 1 + last, "i64", place)
        place += [
            f"  %p{k} = getelementptr i8, ptr %q{k}_{last}, i64 0",
            f"  %step{k} = load i64, ptr {slot}",
        ]
    inner = ("0", extent) if last else ("%lo", "%hi")
    start = "row" if last else "entry"
    code = [
        "define internal void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi) {",
        "entry:",
        *meta,
        "  %extent = load i64, ptr %m2",
        *outer,
    ]
    if last:
        code += [
            "  %some = icmp slt i64 %lo, %hi",
            "  br i1 %some, label %row, label %end",
            "row:",
            "  %o = phi i64 [%lo, %entry], [%o1, %rowend]",
        ]
    code += [
        *place,
        *hoisted,
        f"  %any = icmp slt i64 {inner[0]}, {inner[1]}",
        "  br i1 %any, label %loop, label %rowend",
        "loop:",
        f"  %i = phi i64 [{inner[0]}, %{start}], [%i1, %loop]",
        *loads,
        *lines.text,
        *stores,
        "  %i1 = add nsw i64 %i, 1",
        f"  %more = icmp slt i64 %i1, {inner[1]}",
        "  br i1 %more, label %loop, label %rowend, !llvm.loop !0",
        "rowend:",
    ]
    if last:
        code += [
            "  %o1 = add nsw i64 %o, 1",
            "  %rest = icmp slt i64 %o1, %hi",
            "  br i1 %rest, label %row, label %end",
        ]
    else:
        code.append("  br label %end")
    code += ["end:", "  ret void", "}"]
    return "\n".join([*sorted(lines.declared), *code, _AROUND.replace("MANY", str(many))])


def _slot(base: str, k: int, kind: str, lines: list[str]) -> str:
    name = f"%g{len(lines)}"
    lines.append(f"  {name} = getelementptr {kind}, ptr {base}, i64 {k}")
    return name


def _address(text: list[str], k: int, dtype: DType, step: int) -> str:
    if step == 0:
        return f"%p{k}"
    if step == dtype.itemsize:
        kind = "i8" if dtype == bool_ else llvm_type(dtype)
        text.append(f"  %a{k} = getelementptr {kind}, ptr %p{k}, i64 %i")
    else:
        text.append(f"  %b{k} = mul i64 %step{k}, %i")
        text.append(f"  %a{k} = getelementptr i8, ptr %p{k}, i64 %b{k}")
    return f"%a{k}"


def _load(lines: Lines, text: list[str], k: int, dtype: DType, step: int) -> Value:
    address = _address(text, k, dtype, step)
    kind = "i8" if dtype == bool_ else llvm_type(dtype)
    text.append(
        f"  %l{k} = load {kind}, ptr {address}, align {dtype.itemsize}, !llvm.access.group !1"
    )
    if dtype != bool_:
        return Value(lines, f"%l{k}", dtype)
    text.append(f"  %l{k}b = icmp ne i8 %l{k}, 0")
    return Value(lines, f"%l{k}b", dtype)


def _store(text: list[str], k: int, value: Value, step: int) -> None:
    name, kind = value.name, llvm_type(value.dtype)
    if value.dtype == bool_:
        text.append(f"  %z{k} = zext i1 {name} to i8")
        name, kind = f"%z{k}", "i8"
    address = _address(text, k, value.dtype, step)
    size = value.dtype.itemsize
    text.append(f"  store {kind} {name}, ptr {address}, align {size}, !llvm.access.group !1")


_AROUND = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @PyErr_SetString(ptr, ptr)
@none = external global i8
@array_type = external global i8
@type_error = external global i8
@words = private constant [24 x i8] c"a kernel of arrays only\\00"

define internal void @task(ptr %job) {
  %data = load ptr, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  %meta = load ptr, ptr %j1
  %turns = load i64, ptr %meta
  %t = call i32 @omp_get_thread_num()
  %n = call i32 @omp_get_num_threads()
  %t0 = sext i32 %t to i64
  %t1 = add i64 %t0, 1
  %all = sext i32 %n to i64
  %x0 = mul i64 %turns, %t0
  %x1 = mul i64 %turns, %t1
  %lo = sdiv i64 %x0, %all
  %hi = sdiv i64 %x1, %all
  call void @body(ptr %data, ptr %meta, i64 %lo, i64 %hi)
  ret void
}

define ptr @run(ptr %self, ptr %args, i64 %given) {
entry:
  %right = icmp eq i64 %given, MANY
  br i1 %right, label %begin, label %wrong
wrong:
  call void @PyErr_SetString(ptr @type_error, ptr @words)
  ret ptr null
begin:
  %data = alloca [MANY x ptr]
  %job = alloca [2 x ptr]
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
  %more = icmp slt i64 %k1, MANY
  br i1 %more, label %fill, label %filled
filled:
  %turns = load i64, ptr %meta
  %m1 = getelementptr i64, ptr %meta, i64 1
  %threads = load i64, ptr %m1
  %one = icmp eq i64 %threads, 0
  br i1 %one, label %alone, label %together
alone:
  call void @body(ptr %data, ptr %meta, i64 0, i64 %turns)
  br label %done
together:
  store ptr %data, ptr %job
  %j1 = getelementptr ptr, ptr %job, i64 1
  store ptr %meta, ptr %j1
  %count32 = trunc i64 %threads to i32
  %state = call ptr @PyEval_SaveThread()
  call void @GOMP_parallel(ptr @task, ptr %job, i32 %count32, i32 0)
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @Py_IncRef(ptr @none)
  ret ptr @none
}
!0 = distinct !{!0, !2}
!1 = distinct !{}
!2 = !{!"llvm.loop.parallel_accesses", !1}
"""


# -- machine code --------------------------------------------------------------------------
class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_lock = threading.Lock()
_made: dict[str, _MethodDef] = {}
_kept: list[Any] = []  # what machine code needs to stay


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
    """LLVM for this processor, and the names that kernels call."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    features["prefer-256-bit"] = False
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten(),
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "PyErr_SetString"):
        llvm.add_symbol(name, _address_of(ctypes.pythonapi, name))
    for name, thing in (("none", None), ("array_type", np.ndarray), ("type_error", TypeError)):
        llvm.add_symbol(name, id(thing))
    for name, address in _threads().items():
        llvm.add_symbol(name, address)
    about = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {features.flatten()}"
    return llvm, machine, about


def _address_of(library: Any, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


@lru_cache(1)
def _threads() -> dict[str, int]:
    """libgomp's entry points; without it (Debian: libgomp1, 0.3 MB) kernels use one thread."""
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # threads that wait leave the cores to others
    try:
        library = ctypes.CDLL("libgomp.so.1")
    except OSError:
        return dict.fromkeys(names, id(None))  # never called
    return {name: _address_of(library, name) for name in names}


@lru_cache(1)
def most_threads() -> int:
    """As many as this process has cores, or OMP_NUM_THREADS; 1 without libgomp."""
    if _threads()["GOMP_parallel"] == id(None):
        return 1
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isdigit() and int(asked) else cores


def _compiled(text: str) -> _MethodDef:
    """The entry point of a module's machine code, from this process, from disk, or made."""
    found = _made.get(text)
    if found is not None:
        return found
    with _lock:
        found = _made.get(text)
        if found is None:
            found = _made[text] = _MethodDef(b"kernel", _load_or_make(text), _FASTCALL, None)
    return found


def _load_or_make(text: str) -> int:
    llvm, machine, about = _tools()
    digest = hashlib.blake2b(f"{about}\n{text}".encode(), digest_size=16).hexdigest()
    path = settings.cache / "kernels" / f"{digest}.o" if settings.cache is not None else None
    stored = _read(path)
    # without `run`'s name in other modules: each has an engine of its own
    module = llvm.parse_assembly(f'target triple = "{machine.triple}"\n' + text)
    engine = llvm.create_mcjit_compiler(module, machine)
    if stored is None:
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.loop_interleaving = options.loop_unrolling = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    engine.set_object_cache(lambda _, code: _write(path, code), lambda _: stored)
    engine.finalize_object()
    _kept.append(engine)
    return int(engine.get_function_address("run"))


def _read(path: Path | None) -> bytes | None:
    """Machine code that was kept, if it is whole."""
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:16], data[16:]
    return code if hashlib.blake2b(code, digest_size=16).digest() == digest else None


def _write(path: Path | None, code: bytes) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.blake2b(code, digest_size=16).digest() + code)
        os.replace(name, path)
        kept = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime)
        for old in kept[: len(kept) - MOST_KEPT]:
            old.unlink()


def native_kernel(
    body: Graph, shape: Shape, looks: Sequence[Look], threads: int
) -> Callable[..., None]:
    """The kernel for operands and results that lie so, called as `kernel(*operands, *results)`.

    `shape` is that of the results on this worker, `looks` are of all operands and results, with a
    stride for each axis of the shape."""
    loops = loops_over(shape, [look.strides for look in looks])
    definition = _compiled(kernel_text(body, loops))
    size = 1
    for n in loops.extents:
        size *= n
    work = size * max(1, len(body.nodes))
    share = min(threads, work // GRAIN)
    turns = loops.extents[-1] if len(loops.extents) == 1 else size // max(1, loops.extents[-1])
    meta = [turns, share if share > 1 else 0, loops.extents[-1], *loops.extents[:-1]]
    for look, strides in zip(looks, loops.strides, strict=True):
        meta += [look.offset, *strides]
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p],
    )
    made: Callable[..., None] = new(ctypes.byref(definition), np.array(meta, np.int64), None)
    return made
