"""The lines of a pipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .faults import Policy
from .portions import KEEP
from .samples import digest
from .slabs import SAMPLES, Splits
from .stage import Stage, describe_value


@dataclass(frozen=True)
class Shuffle:
    seed: int = 0
    block: int = 0
    window: int = 1


@dataclass(frozen=True)
class Repeat:
    passes: int


@dataclass(frozen=True)
class Cut:
    """Where batches are made."""

    size: int
    tail: str = KEEP
    pad: float | None = None
    # what workers share, by axes of their mesh
    split: Splits = field(default=(SAMPLES,), repr=False)
    # voxels on both sides of what they share
    halo: tuple[int, ...] = field(default=(0,), repr=False)
    collate: Callable[[list[Any]], Any] | None = field(default=None, repr=False)

    def identity(self) -> str:
        by = "" if self.collate is None else f" by {describe_value(self.collate)}"
        return f"{self!r}{by}"

    @property
    def has_slabs(self) -> bool:
        """Whether workers share single samples."""
        return any(name != SAMPLES for name in self.split)

    @property
    def halos(self) -> dict[str, int]:
        """Voxels of neighbours that workers read as well, by what they share."""
        found: dict[str, int] = {}
        for name, n in zip(self.split, self.halo, strict=True):
            found[name] = max(n, found.get(name, 0))
        return found


@dataclass(frozen=True, eq=False)
class Bucket:
    """How long samples are, for batches of those that are about as long."""

    lengths: np.ndarray[Any, Any]
    window: int

    def identity(self) -> str:
        return f"bucket({digest(self.lengths.tobytes().hex())}, {self.window})"


@dataclass(frozen=True, eq=False)
class Draw:
    """Samples by their weights, or as many of each class."""

    name: str
    numbers: np.ndarray[Any, Any]
    count: int
    replacement: bool
    seed: int

    def identity(self) -> str:
        given = f"{self.count}, {self.replacement}, {self.seed}"
        return f"{self.name}({digest(self.numbers.tobytes().hex())}, {given})"


@dataclass(frozen=True)
class OnError:
    policy: Policy


@dataclass(frozen=True)
class Entry:
    """One line of a pipe."""

    what: Stage | Shuffle | Repeat | Draw | Cut | Bucket | OnError
    line: str

    def uncollated(self) -> Entry:
        """Drop a function that collates, so that samples have rows of batches."""
        if isinstance(self.what, Cut):
            return Entry(dataclasses.replace(self.what, collate=None), self.line)
        return self

    def __str__(self) -> str:
        """As it was written, without what nobody had to say."""
        name = getattr(self.what, "name", "") or _NAMES.get(type(self.what), "bucket")
        if isinstance(self.what, Bucket):
            return f"bucket(window={self.what.window})"
        if isinstance(self.what, Draw):
            return f"{name}(count={self.what.count}, replacement={self.what.replacement})"
        if isinstance(self.what, OnError):
            return f"on_error({self.what.policy.do!r})"
        given = [(f, getattr(self.what, f.name)) for f in dataclasses.fields(self.what)]  # type: ignore[arg-type]
        said = [f"{f.name}={_brief(value)}" for f, value in given if value != f.default]
        return f"{name}({', '.join(said)})"


_NAMES: dict[type, str] = {Shuffle: "shuffle", Repeat: "repeat", Cut: "batch"}


def _brief(value: Any) -> str:
    return str(getattr(value, "__qualname__", "")) or f"{value!r:.40}"
