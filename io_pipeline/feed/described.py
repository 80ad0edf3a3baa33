"""A pipe as plain data: what workers that are other processes are told, once, to make their parts of its
batches. It says which files there are and which stages, never what is in a file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from ostinato.ops.core.encode import need

from . import cached, combined_pipes, folders, shards, volume_files  # noqa: F401  (sources that are told of)
from .entries import Bucket, Cut, Draw, Entry, OnError, Repeat, Shuffle
from .faults import Policy
from .pipe import Pipe
from .plain import Undescribed, as_plain, from_plain
from .samples import made_source, source_as_data
from .stage import Stage, made_stage, stage_as_data

LINES = {kind.__name__: kind for kind in (Shuffle, Repeat, Draw, Cut, Bucket, OnError)}
APART = ("source", "entries", "target", "cursor")  # fields of a pipe that are no settings


def as_data(pipe: Pipe) -> Any:
    """Describe a pipe as data of which `from_data` makes the same one; `Undescribed` if that cannot
    be said."""
    settings = {
        f.name: as_plain(getattr(pipe, f.name)) for f in fields(pipe) if f.name not in APART
    }
    lines = [[_entry(e.what), e.line] for e in pipe.entries]
    return [source_as_data(pipe.source), lines, settings, pipe.identity()]


def _entry(what: Any) -> Any:
    if isinstance(what, Stage):
        return ["Stage", stage_as_data(what)]
    name = type(what).__name__
    if name not in LINES:
        raise Undescribed(f"{name.lower()} is done by the program alone")
    if isinstance(what, Cut) and what.collate is not None:
        raise Undescribed("batch(collate=...) is a function, which stays in the program")
    given = {f.name: getattr(what, f.name) for f in fields(what)}
    return [
        name,
        {k: _policy(v) if isinstance(v, Policy) else as_plain(v) for k, v in given.items()},
    ]


def _policy(policy: Policy) -> Any:
    return {f.name: as_plain(getattr(policy, f.name)) for f in fields(policy)}


def from_data(said: Any) -> Pipe:
    """The pipe, for NumPy's arrays. Its samples are those of the first, or it is refused."""
    source, lines, settings, identity = said
    entries = tuple(Entry(_made(*what), str(line)) for what, line in lines)
    pipe = Pipe(made_source(source), entries, **{k: from_plain(v) for k, v in settings.items()})
    if pipe.identity() != identity:
        raise Undescribed(
            "a worker finds other samples: see that all have the same files and version"
        )
    return pipe


def _made(name: str, given: Any) -> Any:
    if name == "Stage":
        return made_stage(given)
    need(name in LINES, f"a line {name!r:.40} of a pipe")
    if name == "OnError":
        return OnError(Policy(**{k: from_plain(v) for k, v in given["policy"].items()}))
    found = {k: from_plain(v) for k, v in given.items()}
    if name == "Bucket":
        found["lengths"] = np.asarray(found["lengths"])
    return LINES[name](**found)
