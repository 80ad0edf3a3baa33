"""Convolutions on a GPU, by cuDNN: which of the library's three an operation by windows is, and the function
that runs it.

    position in images = before + stride * place in results + dilation * place in filters

What does not lie as the library has it is copied first: filters, which are small, and images seldom. What it
refuses is the operation's own kernel, or was spelled as a product when the plan was made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ostinato.ops.core.device import Function, plain
from ostinato.ops.core.registry import OPS, Params, Place, Scratch
from ostinato.ops.core.spec import Shape, Spec, int8
from ostinato.ops.nn.spatial import begins_of

from .libraries.cublaslt import ALIGNED, WORKSPACE
from .libraries.cudnn import TYPES, Convolution, Convolver

CONVOLUTIONS = tuple([n for n, op in OPS.items() if op.product is not None and op.run.placed])
# As the library ranks them: without transforms, and, of float32, where it may use them, too.
PLANS, TRANSFORMS = ("plan 1", "plan 2", "plan 3", "plan 4"), ("any plan 1", "any plan 2")
# Of a workspace: beside what all arrays have, for forms of them that the library makes.
ROOM_BYTES = {"more": 1 << 25, "most": 1 << 29}


class Form(NamedTuple):
    """What to ask for, and axes of operands and result as `n, space..., groups, channels` of images and
    results, or `groups, out, space..., in` of filters."""

    asked: Convolution
    axes: tuple[tuple[int, ...], ...]


def room(ins: Sequence[Shape], outs: Sequence[Shape]) -> int:
    """Bytes of a workspace."""
    return min(ROOM_BYTES["most"], ROOM_BYTES["more"] + 4 * sum(map(math.prod, (*ins, *outs))))


def scratch(ins: Sequence[Shape], outs: Sequence[Shape]) -> Sequence[Scratch]:
    return [Scratch((room(ins, outs),), int8)]


def whole(specs: Sequence[Spec]) -> Place:
    """The place of arrays that are here as they are."""
    boxes = [tuple((0, n) for n in s.shape) for s in specs]
    shapes = [s.shape for s in specs]
    return Place(tuple(boxes[:2]), tuple(boxes[2:]), tuple(shapes[:2]), tuple(shapes[2:]))


def form_of(arrays: Sequence[Any], at: Place, p: Params) -> Form | None:
    """Find the library's form of a convolution of arrays, or specs, of these shapes; None if it has none."""
    x, w, out = (tuple(v.shape) for v in arrays)
    read, made = arrays[0].dtype.name, arrays[2].dtype.name
    k = len(p["extents"])
    if not {read, made} <= {*TYPES} or made not in (read, "float32"):
        return None
    if len(x) != k + 3 or len(w) != k + 3 or 0 in (*x, *w, *out):
        return None
    every, strides, dilation = (tuple(p[name]) for name in ("every", "strides", "dilation"))
    before: Sequence[int] = begins_of(at, p)
    axes = tuple(range(k + 3))
    inner, g = axes[1 : k + 1], w[-2]
    if min(*strides, *dilation) > 0 and set(every) == {1}:
        before = [-b for b in before]
        if math.prod(w[:k]) > math.prod(out[1 : k + 1]):  # slopes of filters: samples are summed
            kind, strides, dilation = "weights", dilation, strides
            turns = (
                (k + 2, *inner, k + 1, 0), (k, *range(k), k + 1, k + 2), (k + 1, k + 2, *inner, 0)
            )  # fmt: skip
        else:
            kind, turns = "forward", (axes, (k + 1, k + 2, *range(k), k), axes)
    elif set(strides) == {1} and max(dilation) < 0:
        kind, strides, dilation = "data", every, tuple(-d for d in dilation)
        turns = (axes, (k + 1, k, *range(k), k + 2), axes)
    else:
        return None
    seen = [tuple(s[d] for d in turn) for s, turn in zip((x, w, out), turns, strict=True)]
    images, filters, results = {
        "forward": seen, "data": seen[::-1], "weights": [seen[0], seen[2], seen[1]]
    }[kind]  # fmt: skip
    sizes = images[1:-2], filters[2:-1], results[1:-2]
    after = []
    for n, m, y, s, d, b in zip(*sizes, strides, dilation, before, strict=True):
        least = (y - 1) * s + (m - 1) * d + 1 - n - b  # it may leave some places out at the end
        given = b if least <= b < least + s else max(least, 0)
        if b < 0 or given >= least + s:
            return None
        after.append(given)
    flat = [0] * (k == 1)  # the library has two axes of space, or three

    def counted(samples: int, channels: int, space: Sequence[int]) -> Shape:
        return (samples, channels, *[1] * (k == 1), *space)

    asked = Convolution(
        kind,
        counted(images[0], g * images[-1], sizes[0]),
        counted(g * filters[1], filters[-1], sizes[1]),
        counted(results[0], g * results[-1], sizes[2]),
        (*flat, *before),
        (*flat, *after),
        (*[1] * (k == 1), *strides),
        (*[1] * (k == 1), *dilation),
        read,
        made,
        bool(p.get("tf32", False)) and read == "float32",
    )
    return Form(asked, turns)


def does(library: Convolver, specs: Sequence[Spec], p: Params) -> bool:
    form = form_of(specs, whole(specs), p)
    if form is None:
        return False
    shapes = [s.shape for s in specs]
    return library.prepared(form.asked, usable(room(shapes[:2], shapes[2:]))) is not None


def usable(size: int) -> int:
    """Bytes of memory that may have to be aligned."""
    return size - WORKSPACE


def convolution(
    library: Convolver,
    xp: Any,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    op: str,
    at: Place,
    way: str = "",
    **p: Any,
) -> Function | None:
    """The function of two operands and a result of these shapes."""
    form = form_of(arrays, at, p)
    if form is None or not scratch:
        return None
    start = scratch[0].data.ptr
    workspace = -(-start // WORKSPACE) * WORKSPACE
    ranked = TRANSFORMS if way in TRANSFORMS else PLANS
    asked = replace(form.asked, transforms=way in TRANSFORMS)
    nth = ranked.index(way) if way in ranked else 0
    run = library.prepared(asked, usable(scratch[0].nbytes), nth)
    if run is None:
        return None
    own, params = OPS[op].kernel, plain(p)
    assert own is not None

    def convolve(x: Any, w: Any, out: Any) -> None:
        first, second, made = (
            v.transpose(turn) for v, turn in zip((x, w, out), form.axes, strict=True)
        )
        first, second = xp.ascontiguousarray(first), xp.ascontiguousarray(second)
        target = made if made.flags.c_contiguous else xp.empty(made.shape, made.dtype)
        a, b, c = (v.data.ptr for v in (first, second, target))
        if (a | b | c) % ALIGNED:
            own(xp, out, x, w, at=at, **params)
            return
        run(a, b, c, workspace)
        if target is not made:
            xp.copyto(made, target)

    return convolve
