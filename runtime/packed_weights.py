"""Operands that stay the same from run to run, and what products keep of them.

A product may read a matrix faster in an order of its own. To bring it there pays if it is then read
many times, so that is done when the same array has come a few times in a row. From then on the array
is not written to unseen: only workers write to its memory, and they say so, or find it taken off their
lists. The product lets go when another array comes, when this one is written to, or is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ostinato.ops.core.device import Prepackable
from ostinato.ops.core.spec import is_own

OFTEN = 3  # times in a row that an array must come, twice as many after each time
PAYS = 8  # that it then came fewer than so many times as often


class UseCount:
    """Whether the same comes often enough to keep what is made of it."""

    def __init__(self, often: int = OFTEN) -> None:
        self.often = self.enough = often
        self.times = 0

    def again(self) -> bool:
        """Count a use of the same operand; true once there were enough."""
        self.times += 1
        return self.times >= self.enough

    def ends(self, was_kept: bool) -> None:
        """Another comes: the next one must come more often, if it was hardly worth it this time."""
        if was_kept:
            self.enough = self.often if self.times >= PAYS * self.enough else 2 * self.enough
        self.times = 0


class Prepacked:
    """What a worker's plans keep, by the array that it was made of."""

    def __init__(self) -> None:
        self.found: dict[int, list[PrepackedOperand]] = {}

    @property
    def bytes(self) -> int:
        return sum(operand.bytes for same in list(self.found.values()) for operand in same)

    def changes(self, array: int) -> None:
        """The array of this id is written to, or gone."""
        for operand in tuple(self.found.get(array, ())):
            operand.ends()


class PrepackedOperand:
    """An operand of a bound plan, which a product there may keep."""

    def __init__(
        self,
        number: int,
        look: Callable[[Any], Any] | None,
        product: Prepackable,
        names: dict[str, Any],
        name: str,
    ) -> None:
        self.number, self.look = number, look  # which operand, and how the product sees it
        self.product = product
        self.names, self.name = names, name  # where the plan's function finds the product
        self.array: Callable[[], Any] = _nothing
        self.use_count = UseCount()
        self.kept: Prepacked | None = None
        self.bytes = 0

    def is_due(self, array: Any) -> bool:
        """Whether this one, which comes next, has come often enough."""
        if self.array() is not array:
            self.ends()
            self.array = weakref.ref(array)
        due = self.use_count.again()
        return due and self.use_count.times == self.use_count.enough and is_own(array)

    def keep(self, array: Any, kept: Prepacked) -> None:
        """From now on the product has it as it is now."""
        made = self.product.keep(array if self.look is None else self.look(array))
        if made is None:
            self.use_count.enough *= 2
            return
        self.names[self.name], self.bytes = made
        self.kept, key = kept, id(array)
        kept.found.setdefault(key, []).append(self)
        self.array = weakref.ref(array, lambda _: kept.changes(key))

    def ends(self) -> None:
        """Another comes, or it changes."""
        self.use_count.ends(self.kept is not None)
        self.forget()

    def forget(self) -> None:
        """The product reads what it is given again."""
        self.array, self.use_count.times = _nothing, 0
        if self.kept is None:
            return
        self.names[self.name], self.bytes = self.product.function, 0
        for key, same in tuple(self.kept.found.items()):
            if self in same:
                same.remove(self)
                if not same:
                    del self.kept.found[key]
        self.kept = None


def _nothing() -> None:
    """No array."""
