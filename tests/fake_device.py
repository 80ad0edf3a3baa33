"""A device for tests: a GPU (ops/gpu/gpu_device.py) with arrays of fake_xp.py in place of CuPy's.

It does in order, some time later, what it is asked to: what a run took is known only when somebody has
waited for it. Its time is counted in calls. Another one has kernels in CUDA C++, which the host
runs (cuda_host.py). Both multiply by a fake of cuBLASLt (fake_cublaslt.py), and their graphs look at
conditions (fake_driver.py); a third one has kernels and neither."""

from __future__ import annotations

from typing import Any

from ostinato.ops.core.device import DEVICES, add
from ostinato.ops.gpu.gpu_device import NAME, Gpu
from ostinato.ops.gpu.libraries import cudnn
from ostinato.ops.gpu.libraries.cublaslt import Library
from ostinato.planner.lowering import RULES

from . import fake_driver
from .cuda_host import COMPILER
from .fake_cublaslt import FakeLt
from .fake_cudnn import FakeDnn
from .fake_xp import DeviceArray, xp

KERNELS, BARE, CONVOLVING = "fake kernels", "fake without a library", "fake with cuDNN"
MISSING = "nvmath-python is not installed: pip install 'ostinato[gpu]'"
NO_CUDNN = "nvidia-cudnn-frontend is not installed: pip install 'ostinato[gpu]'"
NO_BINDINGS = "cuda-bindings is not installed: pip install 'ostinato[gpu]'"


def _made(
    name: str, library: Library | str, driver: Any, convolving: cudnn.Convolver | str = NO_CUDNN
) -> Gpu:
    if name in DEVICES:
        found = DEVICES[name]
        assert isinstance(found, Gpu)
        return found
    made = Gpu(name, xp, library, driver, convolving)
    add(made, DeviceArray)
    return made


LT = FakeLt()
DRIVER: Any = fake_driver if COMPILER else "the tests have no compiler"  # of what sets conditions
FAKE = _made("fake", Library(LT, xp), DRIVER)
WITH_KERNELS = _made(KERNELS, Library(LT, xp), DRIVER)
WITHOUT_LIBRARY = _made(BARE, MISSING, NO_BINDINGS)
DNN = FakeDnn()
WITH_CUDNN = _made(CONVOLVING, Library(LT, xp), DRIVER, cudnn.Convolver(DNN, xp))
FAKE.has_own_kernels = False
for _name in (KERNELS, BARE, CONVOLVING):
    RULES[_name] = RULES[NAME]
