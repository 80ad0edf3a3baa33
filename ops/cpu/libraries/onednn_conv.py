"""Convolutions by oneDNN: forward, and both backward ones, of channels that lie last.

Which of the three an operation by windows is follows from its windows. Weights are brought to the form that
the library likes best, in scratch memory, or once and for all where they stay; images are in parts, by
samples and rows, which threads share. What follows may be done as results are written
(ops/jit/library_steps.py). Only algorithms that keep to the stack are taken (onednn.py)."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.build import Builder
from ostinato.ops.core.device import Prepackable
from ostinato.ops.core.registry import Place, Scratch
from ostinato.ops.core.spec import DType, Shape, Spec, float32, uint8
from ostinato.ops.cpu.loops.flat import native_kernel
from ostinato.ops.jit.library_steps import LibraryStep
from ostinato.ops.nn.spatial import begins_of

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
    _reorder,
    _room,
    _Way,
    first_choice,
    library,
    user_scratchpad,
)

Ints = Sequence[int]
KINDS = tuple(_TYPES)  # names of dtypes that it has


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
    BIAS = 41
    STEP = 32768  # times its number, plus 2: the operand of a step; later versions have others
    WEIGHTS_FORM = 131
    WEIGHTS_SLOPES_FORM = 132
    LINEAR = 0x26
    RELU = 0x20
    HARD_SWISH = 0x34


# Algorithms that keep to the stack, and those around which signals are held, of which none is spoiled.
_GOOD = (*ON_STACK, "jit_1x1:", "jit_dw:", "brdgmm")
PARTS = 16  # of images, of which a quarter at least is worth it for few
SUMS = 4  # parts whose slopes of weights are added up; 2 of large ones
LARGE_WEIGHTS = 1 << 20  # bytes of weights
CACHE_WAY = 1 << 12  # bytes after which the first cache begins anew
MAX_FILTER = 121  # elements of a filter: where there are more, these are places of images


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
    begins = begins_of(at, p)
    steps = p["strides"], p["dilation"]
    space, over, made = x.shape[1 : k + 1], w.shape[:k], out.shape[1 : k + 1]
    n, o = x.shape[0], w.shape[-1]
    g, c = x.shape[-2:]
    if _is_forward(p):
        before = [-b for b in begins]
        apart = x.strides[0] - x.strides[-1] if n > 1 and c > 1 else 0
        large = math.prod(over) > math.prod(made)
        # slopes of weights: samples, which lie last, are summed
        if apart < 0 or (large and not apart):
            weights = (g, o, n, *made), _lies(out, (-2, -1, 0, *range(1, k + 1)))
            images = (c, g * n, *space), _images(x, -1, 0, k)
            results = (c, g * o, *over), _images(w, k, -1, k, 0)
            return _Conv("weights", *images, *weights, *results, *steps[::-1], before)
        weights = (g, o, c, *over), _lies(w, (-2, -1, k, *range(k)))
        images = (n, g * c, *space), _images(x, 0, -1, k)
        results = (n, g * o, *made), _images(out, 0, -1, k)
        return _Conv("forward", *images, *weights, *results, *steps, before)
    if not _is_backward(p):
        raise Unable("such windows")
    weights = (g, c, o, *over), _lies(w, (-2, k, -1, *range(k)))
    images = (n, g * o, *made), _images(out, 0, -1, k)
    results = (n, g * c, *space), _images(x, 0, -1, k)
    return _Conv("data", *images, *weights, *results, p["every"], [-d for d in steps[1]], begins)


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


# -- parts of images -------------------------------------------------------------------------
class _Part(NamedTuple):
    """A convolution of some samples and rows, the elements at which its images and results begin, and the
    first sample and row of its results."""

    conv: _Conv
    images: int
    results: int
    sample: int
    row: int = 0


def _parts(conv: _Conv, item: int, threads: int) -> list[_Part]:
    """As many as depend on extents only, so that threads share them: samples, and rows of few of these; no
    more than threads where weights are large, which each part reads, or makes."""
    n: int = conv.images[0]
    weights = item * math.prod(conv.weights)
    around = item * (math.prod(conv.images) + math.prod(conv.results))
    large = weights > max(LARGE_WEIGHTS, around)
    if conv.kind == "weights":
        most = min(threads, SUMS // 2) if large else SUMS if weights < LARGE_WEIGHTS else SUMS // 2
    else:
        most = min(PARTS, threads if large else max(PARTS // 4, -(-around // weights)))
    step = -(-n // most)
    found = list[_Part]()
    for start in range(0, n, step):
        count = min(step, n - start)
        images, results = (count, *conv.images[1:]), (count, *conv.results[1:])
        begins = start * conv.images_lie[0], start * conv.results_lie[0]
        found.append(_Part(conv._replace(images=images, results=results), *begins, start))
    bands = min(PARTS // 4, most) // len(found)
    return [band for part in found for band in _bands(part, bands)] if bands > 1 else found


def _bands(part: _Part, count: int) -> list[_Part]:
    """In bands of rows of what is made, or, for slopes of weights, of results."""
    conv, steps = part.conv, part.conv.strides[0]
    back = conv.kind == "data"
    rows, others = (conv.images, conv.results) if back else (conv.results, conv.images)
    reach, before = (conv.weights[3] - 1) * conv.dilation[0], conv.before[0]
    step = max(4, -(-rows[2] // count))
    if back and steps > 1:
        return [part]
    found = list[_Part]()
    for a in range(0, rows[2], step):
        b = min(rows[2], a + step)
        if back:  # row = result - before + filter's
            low, high = a + before - reach, b + before
            first = max(low, 0)
            ahead = before + a - first
        else:
            low, high = a * steps - before, (b - 1) * steps - before + reach + 1
            first = max(low, 0)
            ahead = first - low
        last = min(high, others[2])
        if first >= last:
            return [part]
        ours, theirs = (*rows[:2], b - a, *rows[3:]), (*others[:2], last - first, *others[3:])
        begins = (a, first) if back else (first, a)
        cut = conv._replace(
            images=ours if back else theirs,
            results=theirs if back else ours,
            before=(ahead, *conv.before[1:]),
        )
        found.append(
            _Part(
                cut,
                part.images + begins[0] * conv.images_lie[2],
                part.results + begins[1] * conv.results_lie[2],
                part.sample,
                begins[1],
            )
        )
    return found


# -- functions -------------------------------------------------------------------------------
def _is_forward(p: Mapping[str, Any]) -> bool:
    """Whether windows go forward over all there is, as those of convolutions and of slopes of weights."""
    return min(*p["strides"], *p["dilation"]) > 0 and set(p["every"]) == {1}


def _is_backward(p: Mapping[str, Any]) -> bool:
    """Whether windows go backward, one place after the other, as those of slopes of images."""
    return set(p["strides"]) == {1} and max(p["dilation"]) <= 0


def conv_room(
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    has_steps: bool = False,
    **p: Any,
) -> Sequence[Scratch]:
    """For weights in any form: with channels in blocks, which need not be full. Which operand these are follows
    from how arrays lie, which is not known yet, unless steps follow, as they do behind no slopes."""
    k, x, w, out = len(p["extents"]), *ins[:2], *outs
    if specs[0].dtype.name not in _TYPES or len(x) != k + 3 or len(w) != k + 3:
        return ()
    if not (_is_forward(p) or _is_backward(p)):
        return ()
    over, made, (g, o) = math.prod(w[:k]), math.prod(out[1 : k + 1]), w[-2:]
    alike = set(p["every"]) == {1}

    def packed(c: int, over: int, item: int) -> int:
        blocks = (16,) if g > 1 else (48, 64)
        each = g * math.prod(max(-(-n // b) * b for b in blocks) for n in (c, o))
        if g > 64 and c == o == 1:  # fewer may be done as other groups are
            each = -(-g // 64) * 64
        return each * over * item

    sizes = [0]
    if made >= over or not alike or over <= MAX_FILTER:
        sizes.append(packed(w[k], over, specs[1].dtype.itemsize))
    if alike and (over > made or made <= MAX_FILTER) and not has_steps:
        size = packed(out[0], made, 4)
        sizes.append(size * (SUMS if size < LARGE_WEIGHTS else SUMS // 2))
    return [Scratch((max(sizes),), uint8)]


def _dims(values: Ints) -> Any:
    return (ctypes.c_int64 * 12)(*values)


def _algorithm(
    owner: _Owner, conv: _Conv, narrow: DType, *forms: Any, bias: Any = None, after: Any = None
) -> Any:
    """The library's choice for images, weights and results; operands have this dtype."""
    lies = [conv.strides, [d - 1 for d in conv.dilation], conv.before, _after(conv)]
    steps, name = [_dims(v) for v in lies], "dnnl_convolution_{}_primitive_desc_create"
    images, weights, results = forms
    forward = (_engine(), _Name.INFERENCE, _Name.DIRECT, images, weights, bias, results, *steps)
    if conv.kind == "forward":
        return first_choice(owner, name.format("forward"), forward, _GOOD, after)
    shapes = conv.images, conv.weights[conv.weights[0] == 1 :], conv.results
    kind = _TYPES[narrow.name]
    made = [owner.make(*_ANYHOW, len(s), _dims(s), kind, _ANY) for s in shapes]
    hint = owner.make(
        "primitive_desc",
        name.format("forward"),
        *forward[:3],
        *made[:2],
        None,
        made[2],
        *steps,
        None,
    )
    given_bias = () if conv.kind == "data" else (None,)
    given = (_engine(), _Name.DIRECT, images, weights, *given_bias, results, *steps, hint)
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


def does_steps(specs: Sequence[Spec], p: Any) -> bool:
    """Whether it is one whose results may be followed by steps: no slopes."""
    (x, w, out), k = specs, len(p["extents"])
    forward = min(*p["strides"], *p["dilation"]) > 0 and set(p["every"]) == {1}
    made = math.prod(w.shape[:k]) <= math.prod(out.shape[1 : k + 1])
    plain = x.ndim == w.ndim == k + 3 and {x.dtype.name, out.dtype.name} <= {*_TYPES}
    return forward and made and plain and library().dnnl_version().contents.minor < 4


def onednn_conv(
    arrays: Sequence[Any],
    at: Place,
    threads: int,
    room: Any,
    *,
    stays: bool = False,
    steps: Sequence[LibraryStep] = (),
    **p: Any,
) -> Callable[..., None] | Prepackable:
    """The function of two operands, those of `steps`, and the result, which lie so; `Unable` if oneDNN cannot
    do it well."""
    x, w, *others, out = arrays
    conv = _conv_of(x, w, out, at, p)
    if steps and conv.kind != "forward":
        raise Unable("steps behind slopes")
    made = partial(_made, conv, (x, w, out), others, steps, threads)
    if not stays or conv.kind == "weights":
        return made(room, None)[0]

    def keep(weights: Any) -> tuple[Callable[..., None], int] | None:
        with contextlib.suppress(Unable, MemoryError):
            return made(None, weights)
        return None

    return Prepackable(made(room, None)[0], keep)


def _made(
    conv: _Conv,
    arrays: Sequence[Any],
    others: Sequence[Any],
    steps: Sequence[LibraryStep],
    threads: int,
    room: Any,
    kept: Any,
) -> tuple[Callable[..., None], int]:
    """The function, and the bytes that it keeps: of these weights, if there are such, else it has room for
    what it makes of those that it is given."""
    x, w, out = arrays
    order, which, query = _KINDS[conv.kind]
    dtypes = [v.dtype for v in arrays]
    kinds = [dtypes[order.index(k)] for k in range(3)]  # of images, weights, results
    slopes = conv.kind == "weights"
    packed_kind = np.dtype(np.float32) if slopes else kinds[1]
    alone = conv.weights[0] == 1  # without groups
    shape, lie = conv.weights[alone:], conv.weights_lie[alone:]
    with _owner(x, w, out) as owner, _alone():
        lying = partial(_lying, owner)
        best = owner.make(*_ANYHOW, len(shape), _dims(shape), _TYPES[packed_kind.name], _ANY)
        ways, blocks, each, size = dict[Any, _Way](), list[_Block](), list[_Way](), 0
        packed: Any = None
        memory: Any = None
        parts = _parts(conv, dtypes[0].itemsize, threads)
        for k, whole in enumerate(parts):
            part, images, results = whole[:3]
            key = part.images, part.results, (*part.before,)
            ends = [lying(part.images, conv.images_lie, kinds[0], images=True)]
            ends += [lying(part.results, conv.results_lie, kinds[2], images=True)]
            behind = _listed(owner, lying, whole, steps, others, out)
            if key not in ways:
                made = _algorithm(
                    owner,
                    part,
                    x.dtype,
                    ends[0],
                    best,
                    ends[1],
                    bias=behind.bias,
                    after=behind.list,
                )
                if not ways:
                    best = ctypes.c_void_p(
                        owner.library.dnnl_primitive_desc_query_md(made, query, 0)
                    )
                    size = owner.library.dnnl_memory_desc_get_size(best)
                    size += -size % 64
                    if kept is not None:
                        packed, start = _room(owner, best)
                        memory = owner.memory(best, start)
                        form = lying(shape, lie, kinds[1])
                        _reorder(owner, form, owner.memory(form, kept.ctypes.data), best, memory)
                forms = [(ends[0], best, ends[1])[v] for v in order]
                forms[2:2], names = behind.forms, (*which[:2], *behind.which, which[2])
                ways[key] = _Way(made, forms, memory, names)
            begins = (
                images * kinds[0].itemsize,
                k * size if slopes else 0,
                results * kinds[2].itemsize,
            )
            first, second, last = (begins[v] for v in order)
            blocks.append(_Block((), (first, second, *behind.begins, last)))
            each.append(ways[key])
        function = _function(
            owner, blocks, each, range(3 + len(others)), threads, False, packed, *others
        )
        if kept is not None:
            return function, packed.nbytes
        if size * (len(blocks) if slopes else 1) > room.nbytes:
            raise Unable("weights that need more room")
        given, made = lying(shape, lie, kinds[1]), best
        given, made = (made, given) if slopes else (given, made)
        turn = _turning(owner, given, made, shape, threads, alone, lie if slopes else ())
    if not slopes:
        return partial(_packed, function, turn, room), 0
    sums = room[: size * len(blocks)].view(np.float32).reshape(len(blocks), -1)
    return partial(_added_up, function, turn, room, sums, _adding(sums, threads)), 0


def _lying(owner: _Owner, shape: Ints, strides: Ints, dtype: DType, images: bool = False) -> Any:
    """`images`: a single channel lies last, too, as else the library takes it for one that lies first."""
    plain = _plain(shape, strides)
    if images:
        first, last, *space = _plain(*([x[0], *x[2:], x[1]] for x in (shape, strides)))
        plain = [first, space[-1], last, *space[:-1]]
    name, lies = "dnnl_memory_desc_create_with_strides", _dims(plain)
    return owner.make("memory_desc", name, len(shape), _dims(shape), _TYPES[dtype.name], lies)


def _turning(
    owner: _Owner, given: Any, made: Any, shape: Ints, threads: int, alone: bool, written: Ints
) -> Callable[..., None]:
    """A function of two arrays of weights that brings one to the other's form, in pieces of filters; or of
    channels, of which the library's blocks have 16, where what is `written` with such strides would have all
    filters in one set of the first cache."""
    across = alone and written[1:2] == [1] and not 4 * written[0] % CACHE_WAY
    name = "dnnl_memory_desc_create_submemory"
    which = (_Name.SOURCE, _Name.RESULT)
    axis, step = (1, 16) if across else (0, -(-shape[0] // 512) * 64)  # whole blocks in any form
    if not across and (4 * math.prod(shape) < LARGE_WEIGHTS // 4 or not alone):
        step = shape[0]

    def piece(at: int, count: int) -> _Way:
        dims, offsets, ends = [*shape], [0] * len(shape), [given, made]
        dims[axis], offsets[axis] = count, at
        if count < shape[axis]:
            ends = [owner.make("memory_desc", name, e, _dims(dims), _dims(offsets)) for e in ends]
        algorithm = owner.make(
            "primitive_desc", "dnnl_reorder_primitive_desc_create",
            ends[0], _engine(), ends[1], _engine(), user_scratchpad(owner),
        )  # fmt: skip
        return _Way(algorithm, ends, None, which)

    try:
        ways = [piece(k, min(step, shape[axis] - k)) for k in range(0, shape[axis], step)]
    except Unable:
        ways = [piece(0, shape[axis])]
    return _function(owner, [_Block((), (0, 0))] * len(ways), ways, (0, 1), threads, False)


def _adding(sums: Any, threads: int) -> Callable[..., None] | None:
    """A function of addends and their sum."""
    count, n = sums.shape
    spec = Spec((n,), float32)
    body, v = Builder([spec] * count), 0
    for k in range(1, count):
        (v,) = body.add("add", (v, k), (), (spec,))
    if count == 1:
        return None
    return native_kernel(body.graph([v]), (n,), [(4,)] * (count + 1), threads)


def _packed(run: Any, pack: Any, room: Any, x: Any, w: Any, *others: Any) -> None:
    pack(w, room)
    run(x, room, *others)


def _added_up(
    run: Any, unpack: Any, room: Any, parts: Any, add: Any, x: Any, w: Any, out: Any
) -> None:
    run(x, w, room)
    if add is not None:
        add(*parts, parts[0])
    unpack(room, out)


# -- what is behind them -----------------------------------------------------------------------
class _Listed(NamedTuple):
    """What a part is followed by: a number for each channel that is added first, a list of the library's; and
    the operands' forms, names, and where they begin."""

    bias: Any
    list: Any
    forms: Sequence[Any]
    which: Sequence[int]
    begins: Sequence[int]


_BINARY = {"+": 0x1FFF0, "*": 0x1FFF1, "/": 0x1FFF4, "-": 0x1FFF5}


def _listed(
    owner: _Owner,
    lying: Any,
    part: _Part,
    steps: Sequence[LibraryStep],
    others: Sequence[Any],
    out: Any,
) -> _Listed:
    """Steps as the library has them; what lies where the result will is added to there. Its relu makes 0 of
    NaN, so that is done as `y * clip(y * 3e38, 0, 1)`, plus 0, which leaves NaN as it is (and makes it of
    minus infinity)."""
    if not steps:
        return _Listed(None, None, (), (), ())
    found, forms, names = owner.make("post_ops", "dnnl_post_ops_create"), list[Any](), list[int]()
    begins, bias, listed = list[int](), None, 0
    results, lies = part.conv.results, part.conv.results_lie

    def elements(which: int, alpha: float, beta: float = 0.0) -> None:
        nonlocal listed
        owner.library.dnnl_post_ops_append_eltwise(
            found, which, ctypes.c_float(alpha), ctypes.c_float(beta)
        )
        listed += 1

    for step in steps:
        if step.kind == "relu":
            if step.number:
                elements(_Name.RELU, step.number)
            else:
                elements(_Name.HARD_SWISH, 3e38)
                elements(_Name.LINEAR, 1.0)
        elif step.operand < 0:
            alpha = (
                step.number if step.kind == "*" else 1 / step.number if step.kind == "/" else 1.0
            )
            beta = {"+": step.number, "-": -step.number}.get(step.kind, 0.0)
            elements(_Name.LINEAR, alpha, beta)
        else:
            x = others[len(forms)]
            is_over = x.ctypes.data == out.ctypes.data
            if x.size == results[1] and not is_over:
                ones = [1] * (len(results) - 2)
                form = lying((1, x.size, *ones), (x.size, 1, *[x.size] * len(ones)), x.dtype)
                begins.append(0)
            else:
                here = _lies(x, (0, -1, *range(1, x.ndim - 1)))
                if any(n > 1 and a != b for n, a, b in zip(results, here, lies, strict=True)):
                    raise Unable("operands that lie otherwise")
                form = lying(results, here, x.dtype)
                begins.append((part.sample * here[0] + part.row * here[2]) * x.itemsize)
            if is_over:
                owner.library.dnnl_post_ops_append_sum(found, ctypes.c_float(1.0), 0, 0)
                names.append(_Name.NOT_USED)
                listed += 1
            elif step is steps[0] and step.kind == "+" and x.size == results[1]:
                bias = form = lying((x.size,), (1,), x.dtype)
                names.append(_Name.BIAS)
            else:
                if owner.library.dnnl_post_ops_append_binary(found, _BINARY[step.kind], form):
                    raise Unable("such a step")
                names.append(_Name.STEP * (listed + 1) | 2)
                listed += 1
            forms.append(form)
    return _Listed(bias, found if listed else None, forms, names, begins)
