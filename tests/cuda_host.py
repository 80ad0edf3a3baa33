"""CUDA kernels on the host: their text is compiled as C++ (cuda_host.h), and run on NumPy's memory."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.kept import kept

COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = (
    "-O0",
    "-march=native",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-std=c++17",
    "-w",
    "-fsanitize=alignment",  # which calls a function of the header
    *(["-fuse-ld=gold"] if shutil.which("ld.gold") else []),  # thrice as fast
)
# No others, which the linker would read for each text; the header has what the sanitizer calls.
LIBRARIES = ("-nostartfiles", "-nodefaultlibs", "-lm", "-lc", "-lgcc")
HEADER = Path(__file__).with_suffix(".h")
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
MOST_THREADS = 1024
MOST_BYTES = 4096  # of what a launch is given, where the driver is older than CUDA 12.1
_seeds = itertools.count()
_one_at_a_time = threading.Lock()  # a block's threads have static memory
# Memory for the threads of a block, and whose they are that lie there. Of each kernel its own would be more in a
# process of tests than the machine has, of which the system then makes no copy for a child.
_room = np.empty(MOST_THREADS << 18, np.uint8)
_stacks = (ctypes.c_void_p * 2)(_room.ctypes.data, None)
_folder = tempfile.TemporaryDirectory(prefix="cuda-host-")


class HostKernel:
    """As CuPy's `RawKernel`, but given NumPy's arrays."""

    def __init__(self, code: str, name: str, options: Sequence[str] = ()) -> None:
        assert "--fmad=false" in options, "products would become parts of sums"
        given = code.split(f" {name}(")[1].split(")")[0].split(", ")
        self.kinds = [one.rsplit(" ", 1)[0] for one in given]
        with _one_at_a_time:
            self.run = self._made(code, name)

    def _made(self, code: str, name: str) -> Any:
        places = ", ".join(f"*({kind}*)given[{n}]" for n, kind in enumerate(self.kinds))
        return _library(
            f'#include "{HEADER.name}"\n{code}\n'
            f"static void one_(void** given) {{ {name}({places}); }}\n"
            'extern "C" int run(void** given, const unsigned* grid, const unsigned* block, unsigned seed,'
            " Stacks_* stacks) { return launch_(one_, given, grid, block, seed, stacks); }\n"
        ).run

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        seed: int | None = None,
    ) -> None:
        """`seed`: of the order in which blocks and threads run; another one each time."""
        held: list[Any] = []
        for kind, x in zip(self.kinds, args, strict=True):
            if isinstance(x, np.ndarray) and x.dtype.names:  # by value
                held.append((ctypes.c_char * x.nbytes)(*x.tobytes()))
            elif isinstance(x, np.ndarray):
                assert kind.endswith("*"), (kind, x)
                held.append(ctypes.c_void_p(x.ctypes.data))
            else:
                assert (kind, type(x)) == ("s64", np.int64), (kind, x)
                held.append(ctypes.c_longlong(int(x)))
        given = (ctypes.c_void_p * len(held))(*(ctypes.addressof(x) for x in held))
        three = [(ctypes.c_uint * 3)(*n, *(1,) * (3 - len(n))) for n in (grid, block)]
        assert all(1 <= n <= most for n, most in zip(three[0], MOST_BLOCKS, strict=True)), grid
        assert 1 <= math.prod(three[1]) <= MOST_THREADS, block
        assert sum(map(ctypes.sizeof, held)) <= MOST_BYTES, "more than a launch is given"
        with _one_at_a_time:
            wrong = self.run(given, *three, next(_seeds) if seed is None else seed, _stacks)
        assert wrong != 1, "some threads of a block wait for others that have ended"
        assert wrong != 2, "a misaligned address"
        assert wrong != 3, "more than 48 KiB of shared memory"


@functools.lru_cache(4096)
def _library(text: str) -> Any:
    def make(at: Path) -> None:
        source = Path(_folder.name, f"{at.name}.cpp")
        source.write_text(text)
        _compile(text, "-shared", "-I", _headers(), "-o", str(at), str(source), *LIBRARIES)

    return ctypes.CDLL(str(kept("host", f"{_compiler()}\n{text}", make)))


@functools.lru_cache(1)
def _compiler() -> str:
    """All that a library depends on but its text."""
    assert COMPILER is not None
    command = [COMPILER, *FLAGS, "-Q", "--help=target"]  # with what this processor has
    about = subprocess.run(command, capture_output=True, text=True, check=False)
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return f"{version.stdout}\n{about.stdout}\n{HEADER.read_text()}"


@functools.lru_cache(1)
def _headers() -> str:
    """The folder of the header, which is compiled once."""
    header = shutil.copy(HEADER, _folder.name)
    _compile("the header", "-x", "c++-header", "-o", f"{header}.gch", header)
    return _folder.name


def _compile(text: str, *arguments: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, *FLAGS, "-fPIC", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{text}"
