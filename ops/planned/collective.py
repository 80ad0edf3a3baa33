"""Collectives: what moves between workers. The planner puts them into graphs; nobody types them.

`relayout` is the question (this value in that layout); `communicate` replaces it by one of the
answers. Their layouts are in their specs: that of the operand is what each worker has, that of the
result what each gets. An op with several operands combines a state of several arrays, or, all_reduce,
several arrays at once. Halves are added in float32, and rounded once; reduce_scatter may give the sum in
a wider `dtype`.

    narrow            a part of what is here already: a view
    join_pieces       pieces of a worker's part -> the part
    addend            a replica -> addends: the first worker's, and zeros
    round_addends     addends as they are sent: each rounded to a narrower dtype
    widen_sum         what was summed of such, in the dtype that the addends had
    all_reduce        addends -> replicas of the combination
    reduce_scatter    addends -> parts of the combination
    all_gather        parts -> replicas
    broadcast         the one part that is not empty -> replicas
    all_to_all        parts -> other parts
    halo              parts -> overlapping parts
    start, wait       any of them in two halves; between them stands a pending value
    read              what lies in a file -> parts in memory; each worker reads its own
    write             parts in memory -> the number of elements that went into a file
    slice_file        what lies in a file -> a slice of it, of which nothing is read yet
    take_file         the same for places along an axis, which stay as they are until it is read
    merge_file        the same with its first axes in one row, followed by axes of 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np

from ostinato.errors import ShapeError

from ..core.index import LETTERS, Indices, opaque
from ..core.layout import Box, Shape, slices
from ..core.monoid import MONOIDS
from ..core.parameters import DTYPE, MESH_AXES, MONOID, PLACES, one_of, unfit, whole
from ..core.registry import Params, Place, Specs, lookup, op
from ..core.spec import DType, Spec, int64, is_float, is_inexact
from ..core.targets import targets
from ..core.user_line import misfit

REDUCING = ("all_reduce", "reduce_scatter")
MOVING = ("all_gather", "all_to_all", "halo", "broadcast")
COLLECTIVES = (*REDUCING, *MOVING)
PIECES = "join_pieces"


def _alike(*xs: Spec) -> Specs:
    return tuple(x.bare for x in xs)


def _reducing(*xs: Spec, monoid: str, axes: tuple[int, ...], **more: Any) -> Specs:
    width = MONOIDS[monoid].width
    if not xs or len(xs) % width or (width > 1 and len(xs) > width):
        raise unfit(monoid, xs, f"a state of {width}, or several of one")
    if not more:
        return _alike(*xs)
    if more.keys() != {"dtype"} or monoid != "sum" or len(xs) > 1:
        raise unfit(monoid, xs, "one array, of which the sum has another dtype")
    return (Spec(xs[0].shape, _wider(xs[0], more["dtype"])),)


def _wider(x: Spec, dtype: Any) -> DType:
    if not DTYPE.fits(dtype, (x,)) or not is_float(dtype) or not is_float(x.dtype):
        raise unfit("sum", (x,), "floats, to be summed in a dtype of floats")
    if dtype.itemsize <= x.dtype.itemsize:
        raise unfit("sum", (x,), f"something narrower than {dtype.name}")
    return cast(DType, dtype)


_COMBINES = {"monoid": MONOID, "axes": MESH_AXES}


def _wire_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 0.0, float(sum(s.nbytes for s in ins))


for _name in ("relayout", *MOVING):
    op(_name, infer=_alike, indices=opaque, cost=_wire_cost, made_by="passes")
for _name in REDUCING:
    op(_name, infer=_reducing, takes=_COMBINES, indices=opaque, cost=_wire_cost, made_by="passes")


op(
    "narrow",
    infer=_alike,
    indices=opaque,
    view=lambda xp, x, at: x[slices(at.outs[0], at.ins[0])],
    cost=lambda ins, outs, p: (0.0, 0.0),
    made_by="passes",
)


def _joined_rule(*xs: Spec) -> Spec:
    if len({x.bare for x in xs}) != 1:
        raise unfit(PIECES, xs, "pieces of one array")
    return xs[0].bare


def _joined_kernel(xp: Any, out: Any, *xs: Any, at: Place) -> None:
    for x, box in zip(xs, at.ins, strict=True):
        xp.copyto(out[slices(box, at.outs[0])], x)


op(
    PIECES,
    infer=_joined_rule,
    indices=opaque,
    kernel=_joined_kernel,
    placed=True,
    made_by="machine",
)


def _addend_kernel(xp: Any, out: Any, x: Any, *, at: Place) -> None:
    if at.first:
        xp.copyto(out, x)
    else:
        zero = -0.0 if is_inexact(x.dtype) else 0  # nothing changes by -0.0, nor does -0.0 itself
        out.fill(complex(zero, zero) if x.dtype.kind == "c" else zero)


def _rounded_rule(x: Spec, *, dtype: DType) -> Spec:
    _wider(Spec(x.shape, dtype), x.dtype)
    return Spec(x.shape, dtype)


def _cast_kernel(xp: Any, out: Any, x: Any, *, dtype: DType) -> None:
    xp.copyto(out, x, casting="unsafe")


op(
    "round_addends",
    infer=_rounded_rule,
    takes={"dtype": DTYPE},
    indices=opaque,
    kernel=_cast_kernel,
    scalar="cast({0})",
    made_by="passes",
)
op(
    "widen_sum",
    infer=lambda x, *, dtype: Spec(x.shape, _wider(x, dtype)),
    takes={"dtype": DTYPE},
    kernel=_cast_kernel,
    scalar="cast({0})",
    converts=True,
    made_by="passes",
)
op("addend", infer=_alike, indices=opaque, kernel=_addend_kernel, placed=True, made_by="passes")


SLOWER = 16.0  # than memory, about, is a file
STRETCH = 1 << 12  # bytes that it takes as long to read or write as to begin another row


def _file_cost(x: Spec) -> tuple[float, float]:
    rows = math.prod(x.shape[:-1])  # fewer on each worker where it is rows that are cut
    return 0.0, SLOWER * (x.nbytes + STRETCH * rows)


op(
    "read",
    infer=_alike,
    kernel=lambda xp, out, x, *, at: x.read(out, at.outs[0]),
    cost=lambda ins, outs, p: _file_cost(outs[0]),
    placed=True,
    made_by="passes",
)


# A sum over all indices, so it is cut in space and in time as sums are: each worker, and each turn,
# writes what it has. When the number is there, all is written. `rows`: where it begins in the file, or
# each time that it is there; `axes`: how many of its axes, counted in one row, are the file's first.
def _write_rule(x: Spec, target: Spec, *, rows: Shape, axes: int) -> Spec:
    if target.shape or target.dtype != int64 or axes > max(x.ndim, 1):
        raise unfit("write", (x, target), "an array, and the number of a file")
    return Spec((), int64)


def _write_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = tuple(LETTERS[: ins[0].ndim])
    return Indices((labels, ()), ((),), tuple((c, "sum") for c in labels))


def _write_kernel(
    xp: Any,
    out: Any,
    x: Any,
    target: Any,
    *,
    rows: Shape,
    axes: int,
    at: Place,
    later: Callable[[Callable[[], object]], None] | None = None,
) -> None:
    """`later`: takes what writes, to call it when its turn has come."""
    if at.first:
        part = x if isinstance(x, np.ndarray) else x.get()
        write = partial(
            _write_rows,
            targets[int(target[()])],
            part,
            at.ins[0],
            at.in_shapes[0][:axes],
            rows,
            axes,
        )
        write() if later is None else later(write)
    out[...] = math.prod(hi - lo for lo, hi in at.ins[0]) * len(rows)


def _write_rows(sink: Any, part: Any, box: Box, lead: Shape, rows: Shape, axes: int) -> None:
    if not box:
        sink.write(part, box)
        return
    for begin, piece in _in_rows(part, box[:axes], lead):
        for row in rows:
            sink.write(piece, ((begin + row, begin + row + len(piece)), *box[axes:]))


def _in_rows(part: Any, box: Box, shape: Shape) -> Iterator[tuple[int, Any]]:
    """A part of the first axes counted in one row, by what is in one piece there."""
    if all(ends == (0, n) for ends, n in zip(box[1:], shape[1:], strict=True)):
        inner = math.prod(shape[1:])
        yield box[0][0] * inner, part.reshape(-1, *part.shape[len(box) :])
        return
    for place in np.ndindex(*part.shape[: len(box) - 1]):
        at = [k + lo for k, (lo, _) in zip((*place, 0), box, strict=True)]
        yield int(np.ravel_multi_index(at, shape)), part[place]


op(
    "write",
    infer=_write_rule,
    takes={"rows": PLACES, "axes": whole(1)},
    indices=_write_indices,
    kernel=_write_kernel,
    cost=lambda ins, outs, p: _file_cost(ins[0]),
    placed=True,
    made_by="passes",
)


# whose results lie in files, too
STORED = ("slice_file", "take_file", "merge_file", "join_files")


def _file_op(name: str, **about: Any) -> None:
    """Another look at a file, of which nothing is read yet."""
    nothing: dict[str, Any] = {
        "indices": opaque,
        "cost": lambda ins, outs, p: (0.0, 0.0),
        "made_by": "passes",
    }
    op(name, **nothing, **about)


def _take_file_rule(i: Spec, x: Spec, **kw: Any) -> Spec | Specs:
    if i.ndim != 1:
        raise misfit(ShapeError, "take_file", got=f"places {i.shape}", needed="one axis of them")
    return lookup("take").infer(x, i, **kw)


_file_op(
    "slice_file",
    infer=lambda x, **kw: lookup("slice").infer(x, **kw),
    view=lambda x, **kw: x.sliced(**kw),
)
# the places come first: it is their memory that has to stay
_file_op("take_file", infer=_take_file_rule, view=lambda i, x, *, axis: x.taken(i, axis))


def _merge_file_rule(x: Spec, *, axes: int) -> Spec:
    if not 2 <= axes <= x.ndim:
        raise unfit("merge_file", (x,), f"{axes} axes or more")
    row = math.prod(x.shape[:axes])
    return Spec((row, *(1,) * (axes - 1), *x.shape[axes:]), x.dtype)


_file_op(
    "merge_file",
    infer=_merge_file_rule,
    takes={"axes": whole(2)},
    view=lambda x, *, axes: x.merged(axes),
)


def _start_rule(*xs: Spec, collective: str, **params: Any) -> Specs:
    made = lookup(collective).infer(*xs, **params)
    assert isinstance(made, tuple)
    return tuple(Spec(x.shape, x.dtype, None, True) for x in made)


def _wait_rule(*xs: Spec) -> Specs:
    """Requests first, then what they send, which has to stay until they are done."""
    half = len(xs) // 2
    if len(xs) % 2 or not all(x.pending for x in xs[:half]):
        raise unfit("wait", xs, "requests, and as many operands")
    return tuple(Spec(x.shape, x.dtype) for x in xs[:half])


op(
    "start",
    infer=_start_rule,
    takes={"collective": one_of(*COLLECTIVES)},
    indices=opaque,
    cost=_wire_cost,
    made_by="passes",
)
op(
    "wait",
    infer=_wait_rule,
    indices=opaque,
    cost=lambda ins, outs, p: (0.0, 0.0),
    made_by="passes",
)


def collective_of(name: str, params: Params) -> str:
    """Which collective a node is, started or not; empty if none."""
    if name == "start":
        return str(params["collective"])
    return name if name in COLLECTIVES else ""


_file_op(
    "join_files",  # one behind the other along the first axis
    infer=lambda *xs: lookup("concat").infer(*xs, axis=0),
    view=lambda *xs: xs[0].joined(xs[1:]),
)
