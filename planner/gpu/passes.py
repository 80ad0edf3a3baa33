"""The passes of a GPU, in order."""

from __future__ import annotations

from ostinato.planner.passes.order import order

from .fuse import fuse

PASSES = (fuse, order)
