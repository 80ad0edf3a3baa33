"""The loop around a training step: `ost.fit`, and what it tells of a run."""

from __future__ import annotations

from .history import History
from .training_loop import Run
from .training_loop import fit as fit

__all__ = ["History", "Run"]


def __dir__() -> list[str]:
    return __all__
