"""Samples that cannot be made: what is to be done then, and what is remembered of them.

Nothing depends on when a sample failed or in which thread: another sample that takes its place is drawn from
the place's own random numbers, and rates are counted in the order of the stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.errors import SampleError

RAISE, SKIP, REPLACE = POLICIES = ("raise", "skip", "replace")
TRIES = 16  # samples that are tried in the place of one
LISTED = 1000  # faults that are remembered one by one
MIN_SAMPLES = 1000  # samples: rates are of so many at least, since the first ones say little


@dataclass(frozen=True)
class Policy:
    """What to do with a sample that a stage cannot make: raise the error, leave it out, or take another
    one in its place; and the most of them that may be, as a part of all. Reading one, decoding it,
    or a function of the user's is a fault if it takes longer than `timeout` seconds."""

    do: str = RAISE
    most: float = 0.01
    timeout: float | None = field(default=None, repr=False)  # changes no sample that is read


@dataclass(frozen=True)
class Fault:
    """A sample that could not be made."""

    epoch: int
    place: int  # in the epoch
    sample: int
    name: str  # the file, or whatever the source calls it
    stage: str
    reason: str

    def as_data(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class Rate:
    """How many samples of an epoch could not be made so far, on one worker or on all."""

    faults: int = 0
    seen: int = 0
    last: Fault | None = None  # by its place

    def add(self, faults: int, seen: int, last: Fault | None) -> None:
        self.faults += faults
        self.seen += seen
        if last is not None and (self.last is None or last.place >= self.last.place):
            self.last = last

    def check(self, most: float) -> None:
        """Raise an error if more failed than may."""
        if self.last is None or self.faults <= most * max(MIN_SAMPLES, self.seen):
            return
        last = self.last
        raise SampleError.because(
            f"epoch {last.epoch}",
            got=f"{self.faults} samples of {self.seen} that could not be made, "
            f"the last one {last.name}, in {last.stage}: {last.reason}",
            needed=f"at most {most:.3g} of them",
            do="see pipe.faults(), or allow more with on_error(most=...)",
        )

    def as_data(self) -> list[Any]:
        return [self.faults, self.seen, None if self.last is None else self.last.as_data()]


@dataclass
class Quarantine:
    """The faults so far, each sample and stage once."""

    faults: dict[tuple[int, str], Fault] = field(default_factory=dict)
    count: int = 0

    def add(self, fault: Fault) -> None:
        self.count += 1
        if len(self.faults) < LISTED:
            self.faults.setdefault((fault.sample, fault.stage), fault)

    def as_data(self) -> dict[str, Any]:
        return {"count": self.count, "faults": [f.as_data() for f in self.faults.values()]}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Quarantine:
        made = cls()
        for fault in data["faults"]:
            made.add(Fault(**fault))
        made.count = data["count"]
        return made
