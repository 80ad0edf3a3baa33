"""Operand: a value that exists, in an engine's keeping, in the caller's memory, or in a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from .spec import Spec

Scalar = bool | int | float | complex
Split = int | str | tuple[int | None, ...] | None
FREE = "auto"  # the split of a Host that lies where plans make best use of it


class Operand:
    """A value that exists. Engines subclass it; `Host` is one in the caller's own memory.

    `shared`: more than one Array, a compiled function, or a NumPy view refers to it, so that no one may
    give it away. `spoiled`: it was given to a run that failed, which may have written over it."""

    __slots__ = ("__weakref__", "engine", "shared", "spec", "spoiled")
    spec: Spec
    shared: bool
    spoiled: bool
    engine: Any  # that holds it; None where the caller does

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.shared = self.spoiled = False
        self.engine = None


class Wish(tuple[int | None, ...]):
    """How an array lay on a mesh, for a session that may have another one."""

    def on(self, axes: int) -> Split:
        return tuple(self) if len(self) == axes else next((s for s in self if s is not None), None)


class Host(Operand):
    """A value in the caller's memory, to be placed on the workers when it is first used."""

    __slots__ = ("split", "value")

    def __init__(self, value: np.ndarray[Any, Any], split: Split = None) -> None:
        super().__init__(Spec(value.shape, value.dtype))
        self.value = value
        self.split = split


class File(Operand):
    """A value in a file, to be read by the workers where they need it.

    `source.read(out, box)` reads a box of it."""

    __slots__ = ("source", "split")

    def __init__(self, source: Any, split: Split = None) -> None:
        super().__init__(Spec(source.shape, source.dtype))
        self.source = source
        self.split = split
