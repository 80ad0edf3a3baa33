"""Arrays from Dask and to Dask. On a Dask cluster they stay on its workers: neither program nor
scheduler sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, SessionError
from ostinato.ops.array.creation import asarray
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.layout import Box, volume
from ostinato.ops.core.operand import Split
from ostinato.ops.core.spec import DTYPES
from ostinato.ops.core.user_line import misfit
from ostinato.planner.passes.layouts import resolve
from ostinato.runtime.crew.channel import Channel
from ostinato.runtime.crew.crew_engine import CrewEngine

from .sessions import Session, current

__all__ = ["from_dask"]


def _on_dask(session: Session) -> CrewEngine | None:
    engine = session.engine
    on = isinstance(engine, CrewEngine) and isinstance(engine.lead, Channel)
    return engine if on else None  # type: ignore[return-value]


AS_CHUNKS = "chunks"


def from_dask(x: Any, /, *, split: Split = AS_CHUNKS) -> Array:
    """A Dask array as an array of this session, split along the axis that has most chunks if nothing
    else is said (None: whole on each worker). In a session of a Dask cluster its chunks are computed
    there and go from worker to worker; else they are computed in this process.

    >>> import dask.array as da
    >>> ost.from_dask(da.ones(4, chunks=2))
    Array([1., 1., 1., 1.], dtype=float64)
    """
    if not hasattr(x, "__dask_graph__") or not hasattr(x, "chunks"):
        got = type(x).__name__
        raise misfit(ArgumentError, "from_dask", got=got, needed="an array of dask.array")
    if any(n != n for sizes in x.chunks for n in sizes):
        needed, do = "known ones", "call x.compute_chunk_sizes() first"
        raise misfit(ArgumentError, "from_dask", got="chunks of unknown size", needed=needed, do=do)
    if np.dtype(x.dtype).name not in DTYPES:
        got = f"dtype {x.dtype}"
        raise misfit(ArgumentError, "from_dask", got=got, needed="one of " + ", ".join(DTYPES))
    if split == AS_CHUNKS:
        most = max(x.numblocks, default=1)
        split = x.numblocks.index(most) if most > 1 else None
    session = current()
    engine = _on_dask(session)
    if engine is None:
        return asarray(x.compute(scheduler="threads"), split=split)
    blocks = session.target.numerics == "any-workers"
    layout = resolve(split, session.target.mesh, x.shape, blocks)
    return from_operand(engine.adopt(x, layout))


def to_dask(x: Array, evaluate: Callable[[Array], None]) -> Any:
    """A Dask array of the parts of an array: where they are, if the session is of a Dask cluster."""
    try:
        import dask.array as da
    except ImportError:
        do = "pip install 'dask[array]'"
        raise misfit(SessionError, "to_dask", got="no dask.array", needed="Dask", do=do) from None
    session = current()
    evaluate(x)
    operand = session.hold_array(x)
    engine = _on_dask(session)
    layout, shape = operand.spec.layout, operand.spec.shape
    assert layout is not None
    nothing = not volume(tuple((0, n) for n in shape))
    if engine is None or layout.stored or layout.windows or nothing:
        return da.from_array(np.asarray(x), chunks=layout.largest(shape) if shape else -1)
    owners: dict[Box, int] = {}
    for rank in range(layout.workers):
        box = layout.box(shape, rank)
        if volume(box):
            owners.setdefault(box, rank)
    lines = [sorted({box[axis] for box in owners}) for axis in range(len(shape))]
    chunks = tuple(tuple(hi - lo for lo, hi in line) for line in lines)
    # as if Dask had computed it: what it persists looks like this, with either of its array's kinds
    nothing_yet = np.broadcast_to(np.zeros((), operand.spec.dtype), shape)
    made = da.from_array(nothing_yet, chunks=chunks if shape else -1, name=False)
    keys = itertools.product([made.name], *(range(len(line)) for line in lines))
    ranks = [owners[box] for box in itertools.product(*lines)]
    rebuild, others = made.__dask_postpersist__()
    return rebuild(dict(zip(keys, engine.keep_parts(operand, ranks), strict=True)), *others)
