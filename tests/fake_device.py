"""A device for tests: arrays of its own (fake_xp.py), in memory of the host, and no generated code.

It does in order, some time later, what it is asked to: what a run took is known only when somebody has
waited for it. Its time is counted in calls, a microsecond each."""

from __future__ import annotations

from typing import Any

from ostinato.ops.core.device import DEVICES, Device, add

from . import fake_xp
from .fake_xp import DeviceArray, counted, xp

CALL = 1e-6  # seconds


class FakeDevice(Device):
    def __init__(self) -> None:
        super().__init__("fake", xp)

    def from_host(self, value: Any) -> Any:
        return fake_xp.from_host(value)

    def to_host(self, value: Any) -> Any:
        return fake_xp.to_host(value)

    def clock(self) -> float:
        counted.done = counted.asked
        return counted.asked * CALL

    def mark(self) -> int:
        return counted.asked

    def seconds(self, first: int, last: int) -> float | None:
        return (last - first) * CALL if counted.done >= last else None


FAKE = DEVICES["fake"] if "fake" in DEVICES else add(FakeDevice(), DeviceArray)
