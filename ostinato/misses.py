"""Why a compiled function needed a new plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.exact import exact

from .guards import UNSET


@dataclass(slots=True)
class Miss:
    """A call that found no entry."""

    parts: dict[str, Any]
    source: str
    before: list[dict[str, Any]]
    change: str = ""  # around the function
    changed: str = ""  # what that was
    hits: int = 0  # until then

    @property
    def nearest(self) -> dict[str, Any] | None:
        return min(self.before, key=lambda p: len(differences(p, self.parts)), default=None)


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields in which two signatures differ, with both values."""
    found = []
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, UNSET), new.get(name, UNSET)
        if exact(a) != exact(b):
            before = "nothing" if a is UNSET else repr(a)
            after = "nothing" if b is UNSET else repr(b)
            found.append(f"{name}: {before} -> {after}")
    return found
