"""Convolutions by oneDNN: forward, and both backward ones, of channels that lie last.

Which of the three an operation by windows is follows from its windows. Weights are brought to the form that
the library likes best, in scratch memory; images are in parts, which threads share. Only algorithms that keep
to the stack are taken (ops/cpu/libraries/onednn.py)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.registry import Place, Scratch
from ostinato.ops.core.spec import DType, Shape, Spec, uint8

from .onednn import (
    _ANY,
    _ANYHOW,
    _TYPES,
    ON_STACK,
    Unable,
    _alone,
    _Block,
    _engine,
    _function,
    _Owner,
    _owner,
    _plain,
    _Way,
    first_choice,
    user_scratchpad,
)

Ints = Sequence[int]


class _Name(IntEnum):
    """dnnl.h's numbers: what is done, operands, and what is asked of a primitive."""

    DIRECT = 1
    INFERENCE = 96
    SOURCE = 1
    RESULT = 17
    WEIGHTS = 33
    NOT_USED = 49  # by what is done here
    SOURCE_SLOPES = 129
    RESULT_SLOPES = 145
    WEIGHTS_SLOPES = 161
    WEIGHTS_FORM = 131
    WEIGHTS_SLOPES_FORM = 132


# Algorithms that keep to the stack, and that for depthwise ones, around which signals are held.
_GOOD = (*ON_STACK, "jit_dw:")
PARTS = 16  # of images
SUMS = 4  # parts whose slopes of weights are added up


class _Conv(NamedTuple):
    """A convolution as the library has it, and how arrays lie: strides in elements; images `n, channels,
    space...`, weights `groups, out, in, space...`."""

    kind: str  # "forward", "data" or "weights": what is made
    images: Ints
    images_lie: Ints
    weights: Ints
    weights_lie: Ints
    results: Ints
    results_lie: Ints
    strides: Ints
    dilation: Ints
    before: Ints


def _conv_of(x: Any, w: Any, out: Any, at: Place, p: Any) -> _Conv:
    """Describe a convolution in the library's terms; `Unable` if it has none."""
    k = len(p["extents"])
    if x.ndim != k + 3 or w.ndim != k + 3 or 0 in (*x.shape, *w.shape, *out.shape):
        raise Unable("stacks of images")
    every = p["every"]
    begins = [
        o + s * y[0] + d * r[0] - e * i[0]
        for o, s, d, e, y, r, i in zip(
            p["offsets"], p["strides"], p["dilation"], every,
            at.outs[0][1 : k + 1], at.ins[1][:k], at.ins[0][1 : k + 1], strict=True,
        )
    ]  # fmt: skip
    steps = p["strides"], p["dilation"]
    space, over, made = x.shape[1 : k + 1], w.shape[:k], out.shape[1 : k + 1]
    n, o = x.shape[0], w.shape[-1]
    g, c = x.shape[-2:]
    if min(*steps[0], *steps[1]) > 0 and set(every) == {1}:
        before = [-b for b in begins]
        if math.prod(over) > math.prod(made):  # slopes of weights: samples are summed
            weights = (g, o, n, *made), _lies(out, (-2, -1, 0, *range(1, k + 1)))
            images = (c, g * n, *space), _images(x, -1, 0, k)
            results = (c, g * o, *over), _images(w, k, -1, k, 0)
            return _Conv("weights", *images, *weights, *results, *steps[::-1], before)
        weights = (g, o, c, *over), _lies(w, (-2, -1, k, *range(k)))
        images = (n, g * c, *space), _images(x, 0, -1, k)
        results = (n, g * o, *made), _images(out, 0, -1, k)
        return _Conv("forward", *images, *weights, *results, *steps, before)
    if set(steps[0]) != {1} or max(steps[1]) > 0:
        raise Unable("such windows")
    weights = (g, c, o, *over), _lies(w, (-2, k, -1, *range(k)))
    images = (n, g * o, *made), _images(out, 0, -1, k)
    results = (n, g * c, *space), _images(x, 0, -1, k)
    return _Conv("data", *images, *weights, *results, every, [-d for d in steps[1]], begins)


def _lies(x: Any, axes: Ints) -> Ints:
    return [x.strides[d] // x.itemsize for d in axes]


def _images(x: Any, samples: int, channels: int, k: int, first: int = 1) -> Ints:
    """Strides of images whose groups and channels are one axis."""
    step, own, groups = x.strides[channels], x.shape[channels], x.shape[-2]
    if groups > 1 and x.strides[-2] != step * own and own > 1:
        raise Unable("groups that lie apart")
    step = step if own > 1 else x.strides[-2] if groups > 1 else step
    return [s // x.itemsize for s in (x.strides[samples], step, *x.strides[first : first + k])]


def _after(conv: _Conv) -> Ints:
    """Padding behind, from that before and all extents."""
    given = zip(
        conv.images[2:], conv.weights[3:], conv.results[2:], conv.strides, conv.dilation,
        conv.before, strict=True,
    )  # fmt: skip
    return [(y - 1) * s + (r - 1) * d + 1 - n - b for n, r, y, s, d, b in given]


# -- functions -------------------------------------------------------------------------------
def conv_room(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **p: Any
) -> Sequence[Scratch]:
    """For weights in any form: with channels in blocks, which need not be full."""
    k, x, w, out = len(p["extents"]), *ins, *outs
    if specs[0].dtype.name not in _TYPES or len(x) != k + 3 or len(w) != k + 3:
        return ()
    slopes = math.prod(w[:k]) > math.prod(out[1 : k + 1]) and set(p["every"]) == {1}
    c, over = (out[0], out[1 : k + 1]) if slopes else (w[k], w[:k])
    g, o = w[-2:]
    block = 16 if g > 1 else 64
    each = g * math.prod(-(-n // block) * block for n in (c, o))
    if g > 1 and c == o == 1:
        each = -(-g // 64) * 64
    size = each * math.prod(over) * (4 * SUMS if slopes else specs[1].dtype.itemsize)
    return [Scratch((size,), uint8)]


def _dims(values: Ints) -> Any:
    return (ctypes.c_int64 * 12)(*values)


def _algorithm(owner: _Owner, conv: _Conv, *forms: Any) -> Any:
    """The library's algorithm for these images, weights and results."""
    lies = [conv.strides, [d - 1 for d in conv.dilation], conv.before, _after(conv)]
    steps, name = [_dims(v) for v in lies], "dnnl_convolution_{}_primitive_desc_create"
    images, weights, results = forms
    forward = (_engine(), _Name.INFERENCE, _Name.DIRECT, images, weights, None, results, *steps)
    if conv.kind == "forward":
        return first_choice(owner, name.format("forward"), forward, _GOOD)
    hint = owner.make("primitive_desc", name.format("forward"), *forward, None)
    bias = () if conv.kind == "data" else (None,)
    given = (_engine(), _Name.DIRECT, images, weights, *bias, results, *steps, hint)
    return first_choice(owner, name.format(f"backward_{conv.kind}"), given, _GOOD)


# Of each kind: the operation's operands among images, weights and results, and the library's names.
_KINDS = {
    "forward": ((0, 1, 2), (_Name.SOURCE, _Name.WEIGHTS, _Name.RESULT), _Name.WEIGHTS_FORM),
    "data": (
        (2, 1, 0),
        (_Name.RESULT_SLOPES, _Name.WEIGHTS, _Name.SOURCE_SLOPES),
        _Name.WEIGHTS_FORM,
    ),
    "weights": (
        (0, 2, 1),
        (_Name.SOURCE, _Name.RESULT_SLOPES, _Name.WEIGHTS_SLOPES),
        _Name.WEIGHTS_SLOPES_FORM,
    ),
}


def onednn_conv(
    arrays: Sequence[Any], at: Place, threads: int, room: Any, **p: Any
) -> Callable[..., None]:
    """The function of three arrays that lie so; `Unable` if oneDNN cannot do it well."""
    x, w, out = arrays
    conv = _conv_of(x, w, out, at, p)
    order, which, query = _KINDS[conv.kind]
    dtypes = [v.dtype for v in (x, w, out)]
    kinds = [dtypes[order.index(k)] for k in range(3)]  # of images, weights, results
    slopes, n = conv.kind == "weights", conv.images[0]
    packed_kind = np.dtype(np.float32) if slopes else kinds[1]
    alone = conv.weights[0] == 1  # without groups
    shape, lie = conv.weights[alone:], conv.weights_lie[alone:]
    step = -(-n // (SUMS if slopes else PARTS))
    with _owner(x, w, out) as owner, _alone():

        def lying(shape: Ints, strides: Ints, dtype: DType) -> Any:
            name, lies = "dnnl_memory_desc_create_with_strides", _dims(_plain(shape, strides))
            kind = _TYPES[dtype.name]
            return owner.make("memory_desc", name, len(shape), _dims(shape), kind, lies)

        best = owner.make(*_ANYHOW, len(shape), _dims(shape), _TYPES[packed_kind.name], _ANY)
        ways, blocks, each, size = dict[int, _Way](), list[_Block](), list[_Way](), 0
        for k, start in enumerate(range(0, n, step)):
            count = min(step, n - start)
            if count not in ways:
                images, results = (count, *conv.images[1:]), (count, *conv.results[1:])
                part = conv._replace(images=images, results=results)
                around = (
                    lying(images, conv.images_lie, kinds[0]),
                    lying(results, conv.results_lie, kinds[2]),
                )
                made = _algorithm(owner, part, around[0], best, around[1])
                if not ways:
                    best = ctypes.c_void_p(
                        owner.library.dnnl_primitive_desc_query_md(made, query, 0)
                    )
                    size = owner.library.dnnl_memory_desc_get_size(best)
                    size += -size % 64
                forms = around[0], best, around[1]
                ways[count] = _Way(made, [forms[v] for v in order], None, which)
            begins = (
                start * conv.images_lie[0] * kinds[0].itemsize,
                k * size if slopes else 0,
                start * conv.results_lie[0] * kinds[2].itemsize,
            )
            blocks.append(_Block((), tuple([begins[v] for v in order])))
            each.append(ways[count])
        if size * (len(blocks) if slopes else 1) > room.nbytes:
            raise Unable("weights that need more room")
        run = _function(owner, blocks, each, (0, 1, 2), threads, False)
        given = lying(shape, lie, kinds[1])
        ends = (best, given) if slopes else (given, best)
        made = owner.make(
            "primitive_desc", "dnnl_reorder_primitive_desc_create",
            ends[0], _engine(), ends[1], _engine(), user_scratchpad(owner),
        )  # fmt: skip
        way = _Way(
            made, (ends[0], ends[0], ends[1]), None, (_Name.SOURCE, _Name.NOT_USED, _Name.RESULT)
        )
        turn = _function(owner, [_Block((), (0, 0, 0))], [way], (0, 1, 2), 1, True)
    if not slopes:
        return partial(_packed, run, turn, room)
    parts = room[: size * len(blocks)].view(np.float32).reshape(len(blocks), -1)
    return partial(_added_up, run, turn, room, parts)


def _packed(run: Any, pack: Any, room: Any, x: Any, w: Any, out: Any) -> None:
    pack(w, w, room)
    run(x, room, out)


def _added_up(run: Any, unpack: Any, room: Any, parts: Any, x: Any, w: Any, out: Any) -> None:
    run(x, w, room)
    for part in parts[1:]:
        np.add(parts[0], part, out=parts[0])
    unpack(room, room, out)
