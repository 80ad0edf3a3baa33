"""The corners of an array that is too large to be made just to be looked at: made without the rest, if that
takes little.

    exp(x @ y)[:4, :4]     exp(x[:4] @ y[:, :4])

Which places of its operands an operation needs for some of its result follows from its indices
(ops/core/index.py), as it does for workers' parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ostinato.errors import MemoryLimitError, OstinatoError
from ostinato.ops.core.apply import apply_all, as_array
from ostinato.ops.core.array import Array, Term, term_of
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.index import Window
from ostinato.ops.core.registry import Place
from ostinato.ops.core.spec import int64
from ostinato.ops.core.trace import Ref, array_of, collect
from ostinato.planner.external import is_large as takes_much
from ostinato.planner.external import split_sorts
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key
from ostinato.planner.simulation import simulate

from .sessions import Session
from .streaming import operands_of, rebase

MAX_BYTES = 1 << 24  # bytes of an array of which only corners are made, and of what these may take
SOON = 0.02  # seconds that they may take, by the model of the machine
ROWS = 256  # of random numbers, which are drawn one after the other
DEEPEST = 100  # operations one behind another
MAX_AXES = 5  # axes with a middle that is not shown

Box = tuple[tuple[int, int], ...]


def corners(x: Array, edge: int, session: Session) -> list[Any] | None:
    """The first and last places along each axis, and one more between them, as blocks of blocks; pending, and
    planned. None where that would take long."""
    cuts = [[(0, edge + 1), (n - edge, n)] if n > 2 * edge else [(0, n)] for n in x.shape]
    if not 0 < sum(len(c) > 1 for c in cuts) <= MAX_AXES:
        return None
    made: dict[Any, Array] = {}
    parts = [part(term_of(x), box, made) for box in itertools.product(*cuts)]
    made.clear()
    if not _is_little(parts, session):
        return None
    grid = np.empty([len(c) for c in cuts], object)
    for at, y in zip(np.ndindex(grid.shape), parts, strict=True):
        grid[at] = y
    blocks: list[Any] = grid.tolist()
    return blocks


def is_large(x: Array, session: Session) -> bool:
    """Whether no more of it is made than is shown."""
    return x.nbytes > MAX_BYTES or takes_much(x.spec, session.target)


def _is_little(parts: Sequence[Array], session: Session) -> bool:
    """Whether some values take little memory and time together."""
    found = collect([term_of(x) for x in parts])
    graph = rebase(found.graph, operands_of(found, session))
    if split_sorts(graph, session.target)[0]:
        return False
    try:
        plan = make_plan(Key(graph, session.target), quick=True)  # which times nothing
    except MemoryLimitError:
        return False
    if plan.peak_bytes - plan.operand_bytes > MAX_BYTES:
        return False
    return simulate(plan.program, session.target.machine, session.target.mesh).seconds <= SOON


def part(ref: Ref, box: Box, made: dict[Any, Array], depth: int = 0) -> Array:
    """Some places of a pending result, made of those that they need; `made`: what is known so far."""
    key = (ref[0], ref[1], box)
    if key not in made:
        made[key] = _part(ref, box, made, depth)
    return made[key]


def _part(ref: Ref, box: Box, made: dict[Any, Array], depth: int) -> Array:
    (term, k), op = ref, ref[0].op
    if box == tuple([(0, n) for n in term.specs[k].shape]):
        return array_of(term, k)
    found = None
    if term.operands is None and op is not None and depth < DEEPEST:
        params = dict(term.params)
        if op.moves.selects == "slices" and min(params["steps"]) > 0:
            steps = zip(params["starts"], params["steps"], box, strict=True)
            seen = tuple([(a + s * lo, a + s * (hi - 1) + 1) for a, s, (lo, hi) in steps])
            x = part(term.inputs[0], seen, made, depth + 1)
            return x[tuple([slice(None, None, s) for s in params["steps"]])]
        if op.moves.concatenates:
            found = _joined(term, params["axis"], box, made, depth)
        elif op.element.random_in_kernel is not None:
            rows = math.prod([hi - lo for lo, hi in box[:-1]])
            found = _drawn(term, box) if rows <= ROWS else None
        elif op.name == "iota":
            shape, (first, _) = [hi - lo for lo, hi in box], box[params["axis"]]
            (x,) = apply_all("iota", **{**params, "shape": tuple(shape), "dtype": int64})
            found = (x + first).astype(params["dtype"])
        else:
            found = _of_parts(ref, box, made, depth)
    return array_of(term, k)[tuple([slice(*b) for b in box])] if found is None else found


def _joined(term: Term, axis: int, box: Box, made: dict[Any, Array], depth: int) -> Array:
    """Join those parts of a join's arrays that are seen."""
    first, seen = 0, []
    for t, j in term.inputs:
        n, (lo, hi) = t.specs[j].shape[axis], box[axis]
        lo, hi, first = max(lo - first, 0), min(hi - first, n), first + n
        if lo < hi:
            at = (*box[:axis], (lo, hi), *box[axis + 1 :])
            seen.append(part((t, j), at, made, depth + 1))
    return seen[0] if len(seen) == 1 else apply_all("concat", *seen, axis=axis)[0]


def _drawn(term: Term, box: Box) -> Array:
    """Random numbers by their places, as a worker makes those of its part."""
    op, params = term.op, dict(term.params)
    assert op is not None
    assert op.kernel is not None
    assert op.run.scratch is not None
    given = [np.asarray(array_of(t, j)) for t, j in term.inputs]  # seeds
    ins, shape = tuple([x.shape for x in given]), tuple([hi - lo for lo, hi in box])
    boxes = tuple([tuple([(0, n) for n in s]) for s in ins])
    needed = op.run.scratch(ins, (shape,), [t.specs[j] for t, j in term.inputs], **params)
    out, scratch = (
        np.empty(shape, term.specs[0].dtype),
        [np.empty(s.shape, s.dtype) for s in needed],
    )
    at = Place(boxes, (box,), ins, (term.specs[0].shape,))
    op.kernel(np, out, *given, at=at, scratch=scratch, **params)
    return as_array(out)


def _of_parts(ref: Ref, box: Box, made: dict[Any, Array], depth: int) -> Array | None:
    """Make a part of an operation's result of parts of its operands; None if it needs all of them,
    or to know where in them it is."""
    (term, k), op = ref, ref[0].op
    assert op is not None
    views = op.view is not None and not (op.turns_axes or op.renames_axes)
    views = views or not term.inputs
    bodies = any(isinstance(value, Graph) for _, value in term.params)
    if views or bodies or op.run.placed or op.run.host_callback or op.run.carries_state:
        return None
    ins = tuple([t.specs[j] for t, j in term.inputs])
    indices = op.indices(ins, term.specs, dict(term.params))
    cut: dict[str, tuple[int, int]] = {}
    for label, n, (lo, hi) in zip(indices.outs[k], term.specs[k].shape, box, strict=True):
        if hi - lo == n:
            continue
        if label is None or label in indices.chunked or label in dict(indices.parts):
            return None
        cut[label] = lo, hi
    if any(isinstance(d, Window) and cut.keys() & d.labels for dims in indices.ins for d in dims):
        return None
    given = []
    for (t, j), dims in zip(term.inputs, indices.ins, strict=True):
        ends = [
            cut.get(d, (0, n)) if isinstance(d, str) else (0, n)
            for d, n in zip(dims, t.specs[j].shape, strict=True)
        ]
        given.append(part((t, j), tuple(ends), made, depth + 1))
    try:
        x = apply_all(op.name, *given, **dict(term.params))[k]
    except OstinatoError:  # parameters that say how large operands are
        return None
    return x if x.shape == tuple([hi - lo for lo, hi in box]) else None
