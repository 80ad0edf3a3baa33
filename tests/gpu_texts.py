"""The texts of all kernels of a plan for a GPU, which nobody runs: a plan is bound for arrays whose memory is never
touched, so networks may have their full size."""

from __future__ import annotations

from typing import Any

import pytest
from ostinato.ops.core.device import DEVICES
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.runtime.bind import bind
from ostinato.runtime.messages.communicator import Alone

from tests import nvrtc


def texts_of(plan: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By names; as the device's compiler gets them while the plan is bound for one worker."""
    found: dict[str, str] = {}
    device: Any = DEVICES[plan.target.device]

    class Noted:
        def __init__(self, text: str, name: str, options: Any) -> None:
            assert options == OPTIONS
            found[name] = text

        def compile(self) -> None:
            """Left to who asked."""

    with monkeypatch.context() as patch:
        patch.setattr(device, "_compiled", {})
        patch.setattr(device.xp, "RawKernel", Noted)
        bind(plan.program, 0, Alone(), device, device.arena(plan.program.arena_bytes), "<texts>")
    return found


def compile_texts(texts: dict[str, str]) -> None:
    """By NVIDIA's compiler, up to what its optimizer is given; an error has its words and the text."""
    for text in texts.values():
        nvrtc.compiled(text, (*OPTIONS, "-dlto"))
