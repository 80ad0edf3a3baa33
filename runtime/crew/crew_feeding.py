"""Batches of samples on the workers of a crew: each makes its rows, from its own files, ahead of the loop.

    describe    what a pipe is, once: plain data; whether everybody can open it
    feed        an epoch of it begins: threads of each worker make its rows of each batch
    batch       the next one becomes operands: what lies in the workers' memory already

Nobody sends a sample. A batch is one order of 48 bytes and some. In the first one, and where samples may be
left out or padded, all tell the lead what they have, and agree on the shape; rows are moved between
workers if some made fewer than their share.

The layout of a feed is that of an array of samples x depth x height x width: by which of these workers share
a batch, and how far each reaches into what its neighbours have. Of each array of a sample it is known
which axes these are; those that it does not have are no reason to cut it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from ostinato.ops.core.encode import Malformed, decode_spec, encode_spec, need
from ostinato.ops.core.layout import Box, Layout
from ostinato.ops.core.spec import DTYPES, DType, Shape, Spec

from ostinato.errors import SampleError

from .orders import LEAD

MOST_LEAVES = 64  # of a sample
CALM = 16  # batches between two looks of a tuner that has found what it looked for
_Axes = tuple[int, ...]  # of a batch, that are samples, depth, height and width
_Form = tuple[Shape, DType, _Axes] | None  # extents of a whole sample; None of what lies in lists


class Share(Protocol):
    """What one worker makes of an epoch (io_pipeline/feed/share.py)."""

    pad: float | None
    meets: bool  # whether workers give each other samples, or parts of them
    name: str  # of the pipe, for people

    def stats(self) -> dict[str, Any]:
        """Costs of the feed, and how many batches wait."""

    def offers(self, host: str) -> list[Any]:
        """Samples that are kept here, and where they are had."""

    def meet(self, rank: int, offers: Sequence[Any]) -> None:
        """Learn what all workers keep."""

    def begin(self) -> None:
        """Threads begin to work."""

    def take(self, number: int) -> tuple[list[Any], list[_Form], Any]:
        """The leaves of a batch, their forms, and their fields as data."""

    def rate(self) -> Any:
        """How many samples could not be made here so far."""

    def check_rate(self, told: Sequence[Any]) -> None:
        """At the lead: an error if on all workers together more failed than may."""

    def told(self) -> Any:
        """Seconds of iterations here since this was asked last."""

    def decide(self, told: Sequence[Any]) -> list[Any]:
        """At the lead, by what all told: how they go on, and whether it is tuned further."""

    def go_on(self, said: Any) -> None:
        """As the lead says, from here on."""


def mapped(layout: Layout, axes: Sequence[int], shape: Shape = ()) -> Layout:
    """The layout of an array whose samples, depth, height and width are these axes; with halos, if its
    shape is given."""
    known = dict(enumerate(axes))
    splits = tuple([known.get(s) if isinstance(s, int) else None for s in layout.splits])
    halos = {known[d]: -w.offset for d, w in layout.windows if shape and d in known}
    return Layout(layout.mesh, splits, (), layout.blocks).with_halos(halos, shape)


def slab_of(layout: Layout, rank: int, shape: Shape) -> Box:
    """Slab that a worker makes of volumes of this depth, height and width."""
    shape = (1, *shape)
    return mapped(layout, range(len(shape)), shape).box(shape, rank)[1:]


# -- on each worker ------------------------------------------------------------------------
class Portion:
    """A worker's part of an epoch."""

    def __init__(self, share: Share, layout: Layout, comm: Any, host: str) -> None:
        self.share, self.layout, self.comm = share, mapped(layout, (0,)), comm
        self.has_slabs = any(isinstance(s, int) and s > 0 for s in layout.splits)
        self.forms: list[_Form] = []
        if share.meets:
            share.meet(comm.rank, _spread(comm, comm.gather_text(share.offers(host), LEAD)))
        share.begin()

    def batch(self, number: int, agrees: bool, tunes: bool) -> tuple[list[Any], Any]:
        """The arrays of a batch, and what the lead says of it."""
        goes_on = self._tuned() if tunes else False
        values, found, fields = self.share.take(number)
        answer: dict[str, Any] | None = {} if self.comm.rank == LEAD else None
        if agrees:
            values, answer = self._agreed(number, values, found, fields)
        elif found != self.forms:
            raise _unlike(number, self.comm.rank, found, "the first batch", self.forms)
        return values, None if answer is None else {**answer, "tunes": goes_on}

    def _tuned(self) -> bool:
        """All run from here on as the lead decides; whether it is tuned further."""
        told = self.comm.gather_text(self.share.told(), LEAD)
        said, goes_on = _spread(self.comm, None if told is None else self.share.decide(told))
        self.share.go_on(said)
        return bool(goes_on)

    def _agreed(
        self, number: int, values: list[Any], forms: list[_Form], fields: Any
    ) -> tuple[list[Any], Any]:
        """All make one batch of what they have."""
        comm = self.comm
        said = {
            "rows": len(values[0]) if values else 0,
            "forms": [f and [list(f[0]), f[1].name, list(f[2])] for f in forms],
            "fields": fields,
            "rate": self.share.rate(),
            "lists": [v if f is None else None for v, f in zip(values, forms, strict=True)],
        }
        try:
            json.dumps(said)
        except (TypeError, ValueError):
            raise SampleError(
                f"batch {number}: what is no array, and no text or number, stays on its worker; take "
                "it out of samples with map, or make arrays of it."
            ) from None
        told = comm.gather_text(said, LEAD)
        answer = None
        if comm.rank == LEAD:
            assert told is not None
            self.share.check_rate([t["rate"] for t in told])
            answer = _together(number, told, self.share.pad is not None)
            if self.has_slabs and None in answer["forms"]:
                raise SampleError(
                    f"batch {number}: got values that are no arrays; needed arrays and numbers alone "
                    "in samples that workers share."
                )
        rows, extents = _spread(comm, answer and [answer["rows"], answer["forms"]])
        self.forms = list(map(_decoded, extents))
        made: list[Any] = []
        for k, form in enumerate(self.forms):
            if form is not None:
                value = values[k] if values else np.empty((0, *form[0]), form[1])
                if self.has_slabs:
                    made.append(value)
                    continue
                made.append(self._moved(_padded(value, form[0], self.share.pad), rows))
        if answer is not None:
            answer["rows"] = sum(rows)
        return made, answer

    def _moved(self, value: Any, rows: Sequence[int]) -> Any:
        """Rows where the layout has them, if not all were made."""
        comm, total = self.comm, sum(rows)
        wanted = [self.layout.box((total,), r)[0] for r in range(comm.size)]
        starts = np.cumsum([0, *rows]).tolist()
        held = [(starts[r], starts[r + 1]) for r in range(comm.size)]
        if held == wanted:
            return value
        (lo, hi), (a, b) = wanted[comm.rank], held[comm.rank]
        made = np.empty((hi - lo, *value.shape[1:]), value.dtype)
        sends, receives = [], []
        for r in range(comm.size):
            give, take = _common((a, b), wanted[r]), _common(held[r], (lo, hi))
            if r == comm.rank and give[0] < give[1]:
                made[give[0] - lo : give[1] - lo] = value[give[0] - a : give[1] - a]
                continue
            if give[0] < give[1]:
                sends.append((r, value[give[0] - a : give[1] - a]))
            if take[0] < take[1]:
                receives.append((r, made[take[0] - lo : take[1] - lo]))
        comm.start_exchange(sends, receives).wait()
        return made


def _common(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


def _decoded(form: Any) -> _Form:
    return form and (tuple(form[0]), DTYPES[form[1]], tuple(form[2]))


def _padded(value: Any, extents: Shape, pad: float | None) -> Any:
    if value.shape[1:] == extents:
        return value
    made = np.full((len(value), *extents), pad, value.dtype)
    made[tuple(map(slice, value.shape))] = value
    return made


def _together(number: int, told: Sequence[Any], pads: bool) -> dict[str, Any]:
    """Join a batch from what all have of it."""
    if not any(t["rows"] for t in told):  # which nobody is given
        return {"rows": [0] * len(told), "forms": [], "fields": None, "lists": []}
    have = [(rank, t) for rank, t in enumerate(told) if t["fields"] is not None]
    first, one = have[0]
    forms = one["forms"]
    need(len(forms) <= MOST_LEAVES, f"samples of {len(forms)} values")
    for rank, t in have[1:]:
        alike = t["fields"] == one["fields"] and len(t["forms"]) == len(forms)
        if not alike or not all(map(_fits, forms, t["forms"], [pads] * len(forms))):
            raise _unlike(number, rank, t["forms"], f"worker {first}", forms)
    if pads:
        columns = zip(*(t["forms"] for _, t in have), strict=True)
        forms = [
            c[0] and [[max(n) for n in zip(*(f[0] for f in c), strict=True)], *c[0][1:]]
            for c in columns
        ]
    lists = [
        [x for _, t in have for x in t["lists"][k]] if f is None else None
        for k, f in enumerate(forms)
    ]
    return {
        "rows": [t["rows"] for t in told],
        "forms": forms,
        "fields": one["fields"],
        "lists": lists,
    }


def _fits(a: Any, b: Any, pads: bool) -> bool:
    if a is None or b is None:
        return a is b
    return a[1] == b[1] and (len(a[0]) == len(b[0]) if pads else a[0] == b[0])


def _unlike(number: int, rank: int, here: Any, whose: str, there: Any) -> SampleError:
    def words(forms: Any) -> str:
        return ", ".join("a list" if f is None else f"{f[1]}{list(f[0])}" for f in forms)

    error = SampleError.because(
        f"batch {number}",
        got=f"samples of {words(here)} on worker {rank}",
        needed=f"{words(there)}, as {whose} has",
        do="bring samples to one shape before `batch`, e.g. with resize, or pad=",
    )
    assert isinstance(error, SampleError)
    return error


def _spread(comm: Any, value: Any) -> Any:
    """Spread what the lead says to everybody."""
    everybody = tuple(range(comm.size))
    said = np.frombuffer(json.dumps(value).encode(), np.uint8) if comm.rank == LEAD else None
    length = np.array([0 if said is None else said.size])
    comm.start_broadcast(length, length, LEAD, everybody).wait()
    text = np.empty(int(length[0]), np.uint8) if said is None else said.copy()
    comm.start_broadcast(text, text, LEAD, everybody).wait()
    return json.loads(text.tobytes())


# -- at the program ------------------------------------------------------------------------
class Feed:
    """An epoch that a crew makes."""

    def __init__(
        self,
        engine: Any,
        pipe: Any,
        layout: Layout,
        about: Sequence[int],
        size: int,
        progress: bool,
        tunes: bool,
    ) -> None:
        self.engine, self.layout = engine, layout
        self.tunes = self.may_tune = tunes
        spec = Spec((size, 1, 1, 1), DTYPES["uint8"], layout)
        said = [*about, encode_spec(spec)]
        own = None if engine.is_elsewhere else progress
        self.handle = engine.make("feed", spec, operands=(pipe.number,), text=said, value=own)
        self.forms: list[_Form] | None = None
        self.fields: Any = None

    def take(self, number: int, count: int, varies: bool) -> tuple[list[Any], Any]:
        """The leaves of a batch of so many samples: operands, or lists; and their fields."""
        rows = mapped(self.layout, (0,))
        sizes = [rows.box((count,), r)[0] for r in range(self.engine.size)]
        agrees = (
            varies or self.forms is None or None in self.forms or any(lo == hi for lo, hi in sizes)
        )
        tunes = self.tunes or (self.may_tune and number % CALM == 0)
        if not agrees:
            assert self.forms is not None
            specs = [self._spec(count, f) for f in self.forms if f is not None]
            said = [number, False, tunes]
            if not tunes:
                return self.engine.told("batch", specs, self.handle, said), self.fields
            answer, arrays = self.engine.asked("batch", self.handle, said, lambda _: specs)
            self.tunes = answer["tunes"]
            return arrays, self.fields
        whole = count if rows is not self.layout else None  # of samples that workers share
        answer, arrays = self.engine.asked(
            "batch", self.handle, [number, True, tunes], lambda answer: self._made(answer, whole)
        )
        self.tunes = answer["tunes"]
        made, left = [], iter(arrays)
        for form, inner in zip(self.forms or (), answer["lists"], strict=True):
            made.append(inner if form is None else next(left))
        self.fields = answer["fields"]
        return made, self.fields

    def _made(self, answer: Any, count: int | None) -> list[Spec]:
        try:
            self.forms = list(map(_decoded, answer["forms"]))
            count = answer["rows"] if count is None else count
        except (KeyError, TypeError):
            raise Malformed("an answer about a batch that is none") from None
        return [self._spec(count, f) for f in self.forms if f is not None]

    def _spec(self, count: int, form: tuple[Shape, DType, _Axes]) -> Spec:
        shape = (count, *form[0])
        return Spec(shape, form[1], mapped(self.layout, form[2], shape))

    def ask(self, what: str) -> list[Any]:
        """Ask each worker for its part."""
        found: list[Any] = self.engine.ask(what, self.handle)
        return found


def layout_of(text: Any) -> Layout:
    """The layout that an order to begin an epoch names."""
    layout = decode_spec(text).layout
    if layout is None:
        raise Malformed("a feed without a layout")
    return layout
