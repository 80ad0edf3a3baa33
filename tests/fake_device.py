"""A device for tests: a GPU (ops/gpu/device.py) with arrays of fake_xp.py in place of CuPy's.

It does in order, some time later, what it is asked to: what a run took is known only when somebody has
waited for it. Its time is counted in calls. Another one has kernels in CUDA C++, which the host
runs (cuda_host.py)."""

from __future__ import annotations

from ostinato.ops.core.device import DEVICES, add
from ostinato.ops.gpu.device import NAME, Gpu
from ostinato.planner.lowering import RULES

from .fake_xp import DeviceArray, xp

FAKE = DEVICES["fake"] if "fake" in DEVICES else add(Gpu("fake", xp), DeviceArray)

KERNELS = "fake kernels"
if KERNELS not in DEVICES:
    add(Gpu(KERNELS, xp), DeviceArray)
    RULES[KERNELS] = RULES[NAME]
