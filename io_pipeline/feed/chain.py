"""The stages of a pipe, bound to the fields that samples have: what runs for each of them.

A chain is a list of steps, each of which knows the next one. It is made while the first sample goes
through: a function of the user's may give any tree, and the steps behind it are bound to what it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.tree import flatten, paths
from ostinato.ops.cpu.jit.routine import Routine

from .faults import Policy
from .fields import BOXES, DATA, IMAGE, Fields, hosted, kind_of_name
from .native import Form, Native, Run
from .sample_draws import Draws
from .stage import Filter, Map, Rejected, Stage, takes_out
from .stats import Costs
from .timed import Calls, LateError, timely

Out = Sequence[Any]  # where the last step may put its results: arrays, or None


class Sample:
    """A sample on its way. Each thread has one and uses it again."""

    __slots__ = ("draws", "fields", "out", "part", "place", "places", "planned", "step", "values")

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.place = 0  # in the epoch
        self.places: Sequence[int] = ()  # of all its samples, if this is a batch
        self.values: list[Any] = []
        self.fields: Fields | None = None
        self.out: Out | None = None
        self.part: Part | None = None  # of its image, if only that was decoded
        self.planned: Sequence[Any] = ()  # what stages have drawn, if that was looked at before
        self.step: Step | None = None  # where it is


class Part(NamedTuple):
    """What the next stage has drawn, when a decoder looked what it needs."""

    drawn: Any
    within: Any  # the same as seen from the part
    shape: tuple[int, ...]  # of the whole image


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
        # what the source, or a function of the user's, has made may be another library's
        self.hosts = k == 0 or isinstance(chain.stages[k - 1].stage, Map | Filter)
        self.number = self.placed.draw
        self.sized = fields.sized()
        self.seconds = self.placed.policy.timeout if stage.timed else None
        self.hurried = Calls()
        has_more = type(stage).together is not Stage.together
        self.together = stage.together if has_more else None
        self._next: Step | None = None
        self.is_bound = False  # whether the next one is known
        self.calls: list[tuple[int, Callable[..., Any], bool, bool]] = []
        for n, kind in enumerate(fields.kinds):
            method = stage.method(kind)
            if method is not None:  # what is late must not write into a batch
                fills = takes_out(method) and self.seconds is None
                self.calls.append((n, self.timed(method), kind == BOXES, fills))

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        seconds = self.seconds
        if seconds is None:
            return method
        return lambda *given: self.hurried.call_within(seconds, partial(method, *given))

    def run(self, sample: Sample) -> Step | None:
        """Let a sample through; the next step."""
        if self.hosts:
            sample.values = hosted(sample.values, self.fields.kinds)
        values = sample.values
        shape: tuple[int, ...] = ()
        if self.sized is not None:
            shape = getattr(values[self.sized], "shape", ())
        drawn = None
        if sample.part is not None:
            drawn, _, shape = sample.part
        elif self.draw is not None:
            drawn = self.draw(sample.draws.seek(sample.place, self.number), shape)
        following = self.following()
        out = sample.out if following is None else None
        for n, method, wants_shape, fills in self.calls:
            here = drawn
            if sample.part is not None and n == self.sized:
                here = sample.part.within
            if wants_shape:
                values[n] = method(np, values[n], here, shape)
            elif fills and out is not None and out[n] is not None:
                values[n] = method(np, values[n], here, out=out[n])
            else:
                values[n] = method(np, values[n], here)
        if self.together is not None:
            self.together(self.fields, values)
        sample.fields, sample.part = self.fields, None
        return following

    def following(self) -> Step | None:
        """The next step, where this one leaves the fields as they are."""
        if not self.is_bound:
            self._next, self.is_bound = self.chain.step(self.k + 1, self.fields), True
        return self._next


class PartStep(Step):
    """A decoder in front of a stage that looks at a part of the image, and has to see no more."""

    def run(self, sample: Sample) -> Step | None:
        following, n = self.following(), self.sized
        assert following is not None
        assert n is not None
        seen = self._part(sample, following, sample.values[n])
        if seen is None:
            return super().run(sample)
        image, sample_part = seen
        values = sample.values
        values[n] = image
        for k, method, _, _ in self.calls:
            if k != n:
                values[k] = method(np, values[k], None)
        sample.fields, sample.part = self.fields, sample_part
        return following

    def _part(self, sample: Sample, following: Step, encoded: Any) -> tuple[Any, Part] | None:
        """Decode only the part of an image that the next stage needs; None if it is decoded as
        ever, also for errors to be where they belong."""
        try:
            shape = self.stage.extents(encoded)
            if shape is None:
                return None
            drawn = None
            if following.draw is not None:
                drawn = following.draw(sample.draws.seek(sample.place, following.number), shape)
            shrinks = following.stage.shrinks(drawn, shape)
            small = None if shrinks is None else self.timed(self.stage.shrunk)(encoded, *shrinks)
            if small is not None:
                return small, Part(drawn, (0, 0, *small.shape[:2]), shape)
            asked = following.stage.window(drawn, shape)
            part = self.timed(self.stage.part)
            found = None if asked is None else part(encoded, shape, asked[0])
        except LateError:
            raise
        except Exception:
            return None
        return None if found is None or asked is None else (found, Part(drawn, asked[1], shape))


class MapStep(Step):
    """A function of the user's."""

    def __init__(self, chain: Chain, k: int, fields: Fields) -> None:
        super().__init__(chain, k, fields)
        assert isinstance(self.stage, Map | Filter)
        self.function = timely(self.stage.function, self.placed.policy.timeout)

    def run(self, sample: Sample) -> Step | None:
        stage, values = self.stage, sample.values
        assert isinstance(stage, Map)
        more: tuple[Any, ...] = ()
        if stage.random:
            more = (sample.draws.seek(sample.place, self.number).generator,)
        if stage.on is not None:
            for n in self.fields.select_kind(stage.on):
                values[n] = self.function(values[n], *more)
            sample.fields = self.fields
            return self.following()
        leaves, structure = flatten(self.function(self.fields.tree(values), *more))
        sample.values = leaves
        if structure == self.fields.structure and stage.kinds is None:
            sample.fields = self.fields
            return self.following()
        kinds = stage.kinds
        if kinds is None:
            named = [kind_of_name(path) for path in paths(structure)]
            if set(named) == {DATA} and len(named) == len(self.fields.kinds):
                named = list(self.fields.kinds)
            kinds = tuple(named)
        sample.fields = Fields(kinds, structure)
        return self.chain.step(self.k + 1, sample.fields)


class FilterStep(MapStep):
    """A function of the user's that says which samples stay."""

    def run(self, sample: Sample) -> Step | None:
        stage, values = self.stage, sample.values
        assert isinstance(stage, Filter)
        if stage.on is not None:
            stays = self.function(values[self.fields.select_kind(stage.on)[0]])
        else:
            stays = self.function(self.fields.tree(values))
        if not stays:
            raise Rejected
        sample.fields = self.fields
        return self.following()


class BatchStep(Step):
    """A stage of batches: it is given what is drawn for each sample."""

    def run(self, sample: Sample) -> Step | None:
        values = sample.values
        shape = values[self.sized].shape[1:] if self.sized is not None else ()
        drawn = None
        if self.draw is not None:
            at = sample.draws.seek
            drawn = [self.draw(at(place, self.number), shape) for place in sample.places]
        for n, method, wants_shape, _ in self.calls:
            more = (shape,) if wants_shape else ()
            values[n] = method(np, values[n], drawn, *more)
        sample.fields = self.fields
        return self.following()


def undecoded(step: Step | None, values: Sequence[Any], error: Exception) -> tuple[str, str, str]:
    """Explain what a stage got, what it needed and what to do, if it was late, or failed for fields
    that are no arrays; empty words if it failed for something else."""
    if isinstance(error, LateError):
        return (
            f"{error} (a thread cannot be ended: it stays)",
            "more time by on_error(timeout=...)",
            "",
        )
    if step is not None and isinstance(error, (AttributeError, TypeError)):
        for n, _, _, _ in [] if isinstance(step, MapStep) else step.calls:
            kind, value = step.fields.kinds[n], values[n]
            if hasattr(value, "shape"):
                continue
            what = type(value[0] if step.stage.batched and value else value).__name__
            got = f"{kind}s of type {what}, which lie in no array" if step.stage.batched else ""
            before = "`batch`" if step.stage.batched else "it"
            do = f"write decode() before {before}" if what == "bytes" else "make arrays with map"
            return got or f"{kind} of type {what}, which is no array", "arrays", do
    return "", "", ""


class Chain:
    """The stages of a pipe, as steps for the fields that turn up."""

    def __init__(self, stages: Sequence[Placed]) -> None:
        self.stages = tuple(stages)
        self._steps: dict[tuple[int, Fields], Step] = {}
        self._lock = make_lock()

    def step(self, k: int, fields: Fields) -> Step | None:
        """The step of a stage for samples with such fields; None behind the last one."""
        if k == len(self.stages):
            return None
        found = self._steps.get((k, fields))
        if found is None:
            with self._lock:
                found = self._steps.get((k, fields))
                if found is None:
                    found = self._steps[k, fields] = self.make(k, fields)
        return found

    def make(self, k: int, fields: Fields) -> Step:
        """A stage for such fields."""
        stage = self.stages[k].stage
        kind = BatchStep if stage.batched else Step
        kind = PartStep if self._reads_parts(k, fields) else kind
        kind = MapStep if isinstance(stage, Map) else kind
        kind = FilterStep if isinstance(stage, Filter) else kind
        return kind(self, k, fields)

    def _reads_parts(self, k: int, fields: Fields) -> bool:
        """Whether a stage decodes images for one that need not see all of them."""
        if k + 1 == len(self.stages) or len(fields.select_kind(IMAGE)) != 1:
            return False
        reader, user = type(self.stages[k].stage), type(self.stages[k + 1].stage)
        looks = user.window is not Stage.window or user.shrinks is not Stage.shrinks
        return reader.part is not Stage.part and looks

    def native(
        self, fields: Fields, value: Any, out: np.ndarray[Any, Any], reader: Routine | None
    ) -> Run | None:
        """All of it as machine code, for samples with such fields, an image like this one and such a place
        in the batch; None if there is no machine code for one of its stages."""
        n, form = fields.sized(), None
        if n is None or fields.select_kind(IMAGE) != [n]:
            return None
        if isinstance(value, np.ndarray):
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in (1, 3, 4):
                return None
            form = Form(value.shape[2])
        elif type(value) is not bytes:
            return None
        parts: list[tuple[int, Native]] = []
        seconds: list[float] = []
        step = self.step(0, fields)
        while step is not None:
            if step.together is not None or isinstance(step, MapStep) or step.fields != fields:
                return None
            if step.calls:
                first = form
                if [m for m, *_ in step.calls] != [n]:
                    return None
                part = step.stage.native(form) if form is not None or not parts else None
                if part is None:
                    return None
                if part.smooth is not None and any(p.smooth is not None for _, p in parts):
                    return None  # a second size
                parts.append((step.number, part))
                seconds += [] if step.seconds is None else [step.seconds]
                form = part.form or form
                if first is not None and form is not None and first.channels != form.channels:
                    return None
            step = step.following()
        good = form is not None and parts and form.dtype == out.dtype.name
        if not good or form is None or not out.flags.c_contiguous or out.ndim != 3:
            return None
        return Run(parts, None if seconds else reader, form, out, min(seconds, default=None))

    def run(self, sample: Sample, costs: Costs | None = None) -> None:
        """A sample through all of it; `costs` if it is one that is timed."""
        assert sample.fields is not None
        step, sample.part = self.step(0, sample.fields), None
        while step is not None:
            sample.step, k = step, step.k
            step = step.run(sample)
            if costs is not None:
                costs.end(k + 1, sample.values)
        sample.step = None
