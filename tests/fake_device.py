"""A device for tests: a GPU (ops/gpu/device.py) with arrays of fake_xp.py in place of CuPy's.

It does in order, some time later, what it is asked to: what a run took is known only when somebody has
waited for it. Its time is counted in calls. Another one has kernels in CUDA C++, which the host
runs (cuda_host.py). Both multiply by a fake of cuBLASLt (fake_cublaslt.py); a third one has kernels and
no such library."""

from __future__ import annotations

from ostinato.ops.core.device import DEVICES, add
from ostinato.ops.gpu.device import NAME, Gpu
from ostinato.ops.gpu.libraries.cublaslt import Library
from ostinato.planner.lowering import RULES

from .fake_cublaslt import FakeLt
from .fake_xp import DeviceArray, xp

KERNELS, BARE = "fake kernels", "fake without a library"
MISSING = "nvmath-python is not installed: pip install 'ostinato[gpu]'"


def _made(name: str, library: Library | str) -> Gpu:
    if name in DEVICES:
        found = DEVICES[name]
        assert isinstance(found, Gpu)
        return found
    made = Gpu(name, xp, library)
    add(made, DeviceArray)
    return made


LT = FakeLt()
FAKE = _made("fake", Library(LT, xp))
WITH_KERNELS = _made(KERNELS, Library(LT, xp))
WITHOUT_LIBRARY = _made(BARE, MISSING)
for _name in (KERNELS, BARE):
    RULES[_name] = RULES[NAME]
