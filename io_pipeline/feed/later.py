"""The last stages of a pipe, made of whole batches by who takes them: part of the plan of a compiled step, or
of a plan of their own, wherever its workers compute. What crosses is what these stages are given: uint8,
before `normalize`.

Their random numbers are drawn beside the batch, by the same rule as ever, and cross as arrays with a row
for each sample. So the place of a stage changes no bit, if the stage says so (`exact`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.apply import called, later
from ostinato.ops.core.array import Array
from ostinato.ops.core.array_methods import functions
from ostinato.ops.core.locks import cached_property
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import Spec

from .chain import Placed
from .fields import Fields
from .sample_draws import Draws
from .stage import DEVICE, Map, Stage

Rows = np.ndarray[Any, Any]  # with an element for each sample


class _Symbols:
    """The functions of Ostinato's arrays, as stages know those of NumPy's."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functions[name]


def can_move(stage: Stage, fields: Fields | None) -> bool:
    """Whether a stage can be made of whole batches on a device, to the same bits."""
    if isinstance(stage, Map) or not stage.exact or DEVICE not in stage.places or stage.batched:
        return False
    kinds = stage.needs if fields is None else fields.kinds
    known = [kind for kind in kinds if stage.method(kind) is not None]
    return bool(known) and all(stage.rows(kind) is not None for kind in known)


class FieldRecipe:
    """What makes one field of what the feed gives for it: its rows, and what was drawn. Equal ones are
    parts of equal plans."""

    def __init__(self, stages: Sequence[Stage], kind: str) -> None:
        self.kind = kind
        self.stages = [s for s in stages if s.rows(kind) is not None]
        self.known: dict[Any, Spec] = {}
        self._key = kind, *((type(s), s.identity()) for s in self.stages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldRecipe) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return " ".join(s.identity() for s in self.stages)

    @cached_property
    def names(self) -> list[str]:
        drawn = [f"[{s.name}]" for s in self.stages if s.is_random]
        return ["", *drawn]

    def __call__(self, *given: Array) -> Array:
        x, *drawn = given
        left = iter(drawn)
        for stage in self.stages:
            method = stage.rows(self.kind)
            assert method is not None
            made = method(_Symbols(), x, next(left) if stage.is_random else None)
            x = made if made is x else called(stage.name, made)
        return x


class Later:
    """The stages that run where batches are taken."""

    def __init__(self, stages: Sequence[Placed]) -> None:
        self.stages = tuple(stages)
        self._recipes: dict[str, FieldRecipe] = {}

    @property
    def names(self) -> list[str]:
        return [p.stage.name for p in self.stages]

    def draw(
        self, draws: Draws, places: Sequence[int], fields: Fields, slots: Sequence[Any]
    ) -> list[Rows]:
        """Draw for the samples of a batch, for each stage that draws."""
        for p in self.stages:
            p.stage.check(fields)
            if not can_move(p.stage, fields):
                told = ", ".join(fields.kinds)
                raise ValueError(f"{p.stage.name} of {told} cannot be on a device")
        n, found = fields.sized(), list[Rows]()
        empty = np.zeros(0) if n is None else slots[n][:0]  # what stages make of its shape
        kind = "" if n is None else fields.kinds[n]
        for p in self.stages:
            stage, rows = p.stage, None
            if stage.is_random:
                at, shape = draws.seek, empty.shape[1:]
                drawn = [stage.draw(at(place, p.draw), shape) for place in places]
                found.append(rows := np.asarray(stage.as_rows(drawn)))
            if (method := stage.rows(kind)) is not None:
                empty = method(np, empty, None if rows is None else rows[:0])
        return found

    def made(
        self,
        fields: Fields,
        slots: Sequence[Any],
        drawn: Sequence[Any],
        convert: Callable[[Any], Array],
    ) -> list[Any]:
        """The fields of a batch as arrays, of which some are still to be made. slots: what the feed gives,
        or operands of it."""
        numbers = [convert(rows) for rows in drawn]
        random = [p.stage for p in self.stages if p.stage.is_random]
        found = []
        for kind, x in zip(fields.kinds, slots, strict=True):
            if not isinstance(x, (np.ndarray, Operand)):
                found.append(x)
                continue
            recipe = self._recipe(kind)
            own = [y for s, y in zip(random, numbers, strict=True) if s.rows(kind) is not None]
            found.append(later(recipe, convert(x), *own) if recipe.stages else convert(x))
        return found

    def _recipe(self, kind: str) -> FieldRecipe:
        if kind not in self._recipes:
            self._recipes[kind] = FieldRecipe([p.stage for p in self.stages], kind)
        return self._recipes[kind]
