"""The stages of a pipe, bound to the fields that samples have: what runs for each of them.

A chain is a list of steps, each of which knows the next one. It is made while the first sample goes
through: a function of the user's may give any tree, and the steps behind it are bound to what it gave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.tree import flatten, paths

from .draws import Draws
from .faults import Policy
from .fields import BOXES, DATA, Fields, by_name
from .stage import Map, Stage, takes_out
from .stats import Costs

Out = Sequence[Any]  # where the last step may put its results: arrays, or None


class Sample:
    """A sample on its way. Each thread has one and uses it again."""

    __slots__ = ("draws", "fields", "out", "place", "places", "step", "values")

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.place = 0  # in the epoch
        self.places: Sequence[int] = ()  # of all its samples, if this is a batch
        self.values: list[Any] = []
        self.fields: Fields | None = None
        self.out: Out | None = None
        self.step: Step | None = None  # where it is


@dataclass(frozen=True)
class Placed:
    """A stage in its pipe."""

    stage: Stage
    line: str  # where the user asked for it
    draw: int  # its number among those that draw
    policy: Policy


class Step:
    """A stage that is bound to fields."""

    def __init__(self, chain: Chain, k: int, fields: Fields) -> None:
        self.chain, self.k, self.fields = chain, k, fields
        self.placed = chain.stages[k]
        self.stage = stage = self.placed.stage
        stage.check(fields)
        self.draw = stage.draw if stage.is_random and not isinstance(stage, Map) else None
        self.number = self.placed.draw
        self.sized = fields.sized()
        self._next: Step | None = None
        self.is_bound = False  # whether the next one is known
        self.calls: list[tuple[int, Callable[..., Any], bool, bool]] = []
        for n, kind in enumerate(fields.kinds):
            method = stage.method(kind)
            if method is not None:
                self.calls.append((n, method, kind == BOXES, takes_out(method)))

    def run(self, sample: Sample) -> Step | None:
        """Let a sample through; the next step."""
        values = sample.values
        shape: tuple[int, ...] = ()
        if self.sized is not None:
            shape = getattr(values[self.sized], "shape", ())
        drawn = None
        if self.draw is not None:
            drawn = self.draw(sample.draws.at(sample.place, self.number), shape)
        following = self.following()
        out = sample.out if following is None else None
        for n, method, wants_shape, fills in self.calls:
            if wants_shape:
                values[n] = method(np, values[n], drawn, shape)
            elif fills and out is not None and out[n] is not None:
                values[n] = method(np, values[n], drawn, out=out[n])
            else:
                values[n] = method(np, values[n], drawn)
        sample.fields = self.fields
        return following

    def following(self) -> Step | None:
        """The next step, where this one leaves the fields as they are."""
        if not self.is_bound:
            self._next, self.is_bound = self.chain.step(self.k + 1, self.fields), True
        return self._next


class MapStep(Step):
    """A function of the user's."""

    def run(self, sample: Sample) -> Step | None:
        stage, values = self.stage, sample.values
        assert isinstance(stage, Map)
        more: tuple[Any, ...] = ()
        if stage.random:
            more = (sample.draws.at(sample.place, self.number).generator,)
        if stage.on is not None:
            for n in self.fields.of_kind(stage.on):
                values[n] = stage.function(values[n], *more)
            sample.fields = self.fields
            return self.following()
        leaves, structure = flatten(stage.function(self.fields.tree(values), *more))
        sample.values = leaves
        if structure == self.fields.structure and stage.kinds is None:
            sample.fields = self.fields
            return self.following()
        kinds = stage.kinds
        if kinds is None:
            named = [by_name(path) for path in paths(structure)]
            if set(named) == {DATA} and len(named) == len(self.fields.kinds):
                named = list(self.fields.kinds)
            kinds = tuple(named)
        sample.fields = Fields(kinds, structure)
        return self.chain.step(self.k + 1, sample.fields)


class BatchStep(Step):
    """A stage of batches: it is given what is drawn for each sample."""

    def run(self, sample: Sample) -> Step | None:
        values = sample.values
        shape = values[self.sized].shape[1:] if self.sized is not None else ()
        drawn = None
        if self.draw is not None:
            at = sample.draws.at
            drawn = [self.draw(at(place, self.number), shape) for place in sample.places]
        for n, method, wants_shape, _ in self.calls:
            more = (shape,) if wants_shape else ()
            values[n] = method(np, values[n], drawn, *more)
        sample.fields = self.fields
        return self.following()


class Chain:
    """The stages of a pipe, as steps for the fields that turn up."""

    def __init__(self, stages: Sequence[Placed]) -> None:
        self.stages = tuple(stages)
        self._steps: dict[tuple[int, Fields], Step] = {}
        self._lock = threading.Lock()

    def step(self, k: int, fields: Fields) -> Step | None:
        """The step of a stage for samples with such fields; None behind the last one."""
        if k == len(self.stages):
            return None
        found = self._steps.get((k, fields))
        if found is None:
            with self._lock:
                found = self._steps.get((k, fields))
                if found is None:
                    stage = self.stages[k].stage
                    kind = BatchStep if stage.batched else Step
                    kind = MapStep if isinstance(stage, Map) else kind
                    found = self._steps[k, fields] = kind(self, k, fields)
        return found

    def run(self, sample: Sample, costs: Costs | None = None) -> None:
        """A sample through all of it; `costs` if it is one that is timed."""
        assert sample.fields is not None
        step = self.step(0, sample.fields)
        while step is not None:
            sample.step, k = step, step.k
            step = step.run(sample)
            if costs is not None:
                costs.end(k + 1, sample.values)
        sample.step = None
