"""What epochs are made by, the batches that are being made, and the forms of their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import SampleError

from .chain import Chain
from .faults import Fault, Policy
from .fields import Fields
from .later import Later
from .portions import Portion, Rows
from .samples import Samples
from .slabs import Slabs

CHUNK = 8  # samples that a thread takes at a time
AHEAD = 256 << 20  # bytes of batches that wait to be taken
Form = tuple[tuple[int, ...], np.dtype[Any]] | None  # None: of what lies in a list


class Regroups(NamedTuple):
    """Batches of those samples that a filter leaves."""

    size: int
    keeps: bool  # what is left at the end
    rows: Rows  # that are wanted here


@dataclass(frozen=True)
class Recipe:
    """What makes batches, but for which samples they have."""

    source: Samples
    chain: Chain
    batched: Chain | None  # stages of whole batches; None if samples stay single
    policy: Policy  # of the source
    seed: int
    threads: int
    chunk: int = CHUNK
    ahead: int = AHEAD
    pad: float | None = None  # what arrays of other shapes are filled up with
    collate: Callable[[list[Any]], Any] | None = None  # the user's own way to put samples together
    given: frozenset[str] = frozenset()  # what of threads, chunk and ahead the user has said
    later: Later | None = None  # stages that are left to who takes batches
    line: str = ""  # where the user asked for batches
    relaxed: bool = False  # batches are handed out as they are made
    slabs: Slabs | None = None  # reads only a part of each sample
    regroups: Regroups | None = None  # samples are put in batches once it is known which stay
    most_ahead: int = 0  # bytes of batches that the tuner may have wait, if that is bounded
    movable: int = 0  # of the last stages, how many may be left to who takes batches, if that pays


@dataclass
class Failure:
    """A sample that could not be made."""

    row: int
    fault: Fault
    error: SampleError | None  # None: it is left out


@dataclass
class Batch:
    """A batch that is being made."""

    portion: Portion
    taken: int = 0  # samples that a thread has taken
    left: int = 0  # samples that are not done yet
    fields: Fields | None = None
    slots: list[Any] | None = None  # of each leaf: an array of all samples, or a list
    loose: dict[int, tuple[list[Any], Fields]] = field(default_factory=dict)  # what fits none
    drawn: list[Any] = field(default_factory=list)  # for stages that are left to who takes it
    failures: list[Failure] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # also of what was replaced
    error: BaseException | None = None
    is_done: bool = False

    @property
    def count(self) -> int:
        return len(self.portion.places)


# -- forms -------------------------------------------------------------------------------------
def form_of(value: Any) -> Form:
    """Shape and dtype of what lies in an array; None for what lies in a list."""
    if isinstance(value, (np.ndarray, np.generic)):
        return (
            (value.shape, value.dtype)
            if value.dtype.kind not in "OUSV" or value.dtype.name == "bfloat16"
            else None
        )
    if isinstance(value, (bool, int, float, complex)):
        return (), np.asarray(value).dtype
    return None


def form_of_rows(slot: Any) -> Form:
    """The form of each row of a batch's leaf."""
    return (slot.shape[1:], slot.dtype) if isinstance(slot, np.ndarray) and slot.ndim else None


def fits_in(slot: np.ndarray[Any, Any], value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.shape == slot.shape[1:] and value.dtype == slot.dtype
    form = form_of(value)
    return form is not None and form == (slot.shape[1:], slot.dtype)


def alike(a: Any, b: Any, pads: bool) -> bool:
    """Whether values of these forms can lie in one array."""
    if a is None or b is None:
        return a is b
    return len(a[0]) == len(b[0]) if pads else a[0] == b[0]


def put_together(column: Sequence[Any], pad: float | None) -> np.ndarray[Any, Any]:
    """Values in one array, as large as the largest of them along each axis."""
    arrays = [np.asarray(v) for v in column]
    if pad is None or len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    shape = [max(sizes) for sizes in zip(*(a.shape for a in arrays), strict=True)]
    made = np.full((len(arrays), *shape), pad, np.result_type(*{a.dtype for a in arrays}))
    for row, a in zip(made, arrays, strict=True):
        row[tuple(map(slice, a.shape))] = a
    return made


def total_bytes(slots: Sequence[Any]) -> int:
    return sum(s.nbytes for s in slots if isinstance(s, np.ndarray))


def own_value(value: Any) -> Any:
    """A value that users may write to: no view of the source's memory."""
    is_view = isinstance(value, np.ndarray) and not value.flags.owndata
    return value.copy() if is_view else value


def bytes_of(value: Any) -> int:
    size: int = getattr(value, "nbytes", 64)
    return size


def form_words(fields: Fields, forms: Sequence[Any]) -> str:
    """A sample's fields in words."""
    names = [name.strip("[]'.") or "sample" for name in fields.names]
    return ", ".join(
        f"{name} {form[1]}{list(form[0])}" if form is not None else name
        for name, form in zip(names, forms, strict=True)
    )
