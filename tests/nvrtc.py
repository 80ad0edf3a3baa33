"""CUDA C++ through NVIDIA's compiler, which needs no GPU."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from tests.kept import kept


@functools.lru_cache(1)
def _library() -> Any:
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvrtc.so"):
                return ctypes.CDLL(str(file.locate()))
    return None


def is_here() -> bool:
    return _library() is not None


def compiled(code: str, options: Sequence[str], arch: str = "sm_90") -> str:
    """The text in PTX; what the compiler says stands in an error, and so does the assembler, as for too much
    shared memory."""
    asked = "\n".join([_library()._name, *options, arch, code])
    path = kept("ptx", asked, lambda at: at.write_text(_compiled(code, options, arch)))
    return path.read_text()


def _compiled(code: str, options: Sequence[str], arch: str) -> str:
    lib, program = _library(), ctypes.c_void_p()
    made = lib.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"k.cu", 0, None, None)
    assert made == 0, made
    given = [option.encode() for option in (*options, f"--gpu-architecture={arch}")]
    wrong = lib.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    if wrong:
        raise AssertionError(f"{_text(lib, 'ProgramLog', program)}\n{code}")
    return _text(lib, "PTX", program)


def _text(lib: Any, what: str, program: Any) -> str:
    size = ctypes.c_size_t()
    assert getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(lib, f"nvrtcGet{what}")(program, text) == 0
    return text.value.decode()
