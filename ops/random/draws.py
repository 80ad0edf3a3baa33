"""Random numbers from (seed, stream, global index) alone: the same for any number of workers and
any layout. Users have them, and ops/random/distributions.py, as `ost.random` (ops/random/random.py).

Philox 4x32-10 turns the counter `(index // 4, stream)` under the key `seed` into four 32-bit words.
`bits` has one word per element, or two (64 bits). Everything else is arithmetic on `bits`. A seed
is an operand, not a parameter: another seed is no other plan."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..array.arithmetic import clip, minimum, nextafter
from ..array.assigning import changed
from ..array.casts import as_dtype, astype
from ..array.creation import ANYWHERE, as_shape, placed
from ..array.elementwise import broadcast
from ..array.indexing import take_along_axis
from ..array.reduction import argmax
from ..array.shape import axis_of, broadcast_to, moveaxis, whole_number
from ..array.sorting import argsort
from ..array.transcendental import log
from ..core.apply import apply, as_array
from ..core.array import Array, weak_kind
from ..core.array_methods import Operandish
from ..core.index import LETTERS, Indices
from ..core.operand import Split
from ..core.parameters import DTYPE, FLAG, SHAPE, unfit, whole
from ..core.registry import Params, Place, Scratch, Specs, op, stream_cost
from ..core.spec import (
    DType,
    DTypeLike,
    Shape,
    ShapeLike,
    Spec,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
    is_float,
    is_integer,
    promote,
    uint32,
    uint64,
)
from ..core.user_line import misfit
from ..jit.random_bits import LOW, MULTIPLIERS, NORMAL, STREAMS, WEYL
from .seeds import Seeds, as_seed

_CHUNK = 16384  # blocks of four words at a time, so that the rounds stay in cache


def philox(
    xp: Any, index: Any, stream: int, key: int, work: Sequence[Any]
) -> tuple[Any, Any, Any, Any]:
    """The four words of some counters, as uint64 arrays with the high half empty. `work`: six
    arrays like `index`."""
    c0, c1, c2, c3, p, q = work
    xp.bitwise_and(index, LOW, c0)
    xp.right_shift(index, 32, c1)
    c2[...] = stream & LOW
    c3[...] = stream >> 32
    k0, k1 = key & LOW, key >> 32
    for _ in range(10):
        # (hi0, lo0) = M0 * c0, (hi1, lo1) = M1 * c2; next = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        xp.multiply(c0, MULTIPLIERS[0], p)
        xp.multiply(c2, MULTIPLIERS[1], q)
        xp.right_shift(q, 32, c0)
        xp.bitwise_xor(c0, c1, c0)
        xp.bitwise_xor(c0, k0, c0)
        xp.right_shift(p, 32, c2)
        xp.bitwise_xor(c2, c3, c2)
        xp.bitwise_xor(c2, k1, c2)
        xp.bitwise_and(q, LOW, c1)
        xp.bitwise_and(p, LOW, c3)
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def _runs(at: Place) -> tuple[int, list[int]]:
    """A worker's box as runs of consecutive global indices: length of a run, and where they start."""
    shape, box = at.out_shapes[0], at.outs[0]
    inner = len(shape)
    while inner > 0 and box[inner - 1] == (0, shape[inner - 1]):
        inner -= 1
    split = max(inner - 1, 0)
    length = math.prod(hi - lo for lo, hi in box[split:])
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    starts = np.zeros((), np.int64)
    for d in range(split):
        starts = starts[..., None] + np.arange(*box[d]) * strides[d]
    offset = sum(box[d][0] * strides[d] for d in range(split, len(shape)))
    return length, (starts.reshape(-1) + offset).tolist()


def _chunks(lo: int, end: int, words: int) -> Iterator[tuple[int, int, int, int]]:
    """Elements from lo to end in pieces that need at most _CHUNK counters each, and these."""
    while lo < end:
        first = lo // words
        hi = min((first + _CHUNK) * words, end)
        yield lo, hi, first, -(-hi // words)
        lo = hi


def _drawn_blocks(
    xp: Any, out: Any, seed: Any, stream: int, words: int, at: Place, scratch: Sequence[Any]
) -> Iterator[tuple[Any, Any]]:
    """The words of some counters after others, and where what is made of them is put: a row for each counter,
    an element in each of so many columns."""
    key = int(seed) & (2**64 - 1)
    length, starts = _runs(at)
    target, done = out.reshape(-1), 0
    for start in starts if length else ():
        for lo, hi, first, last in _chunks(start, start + length, words):
            work = [s[: last - first] for s in scratch[:7]]
            work[6][...] = xp.arange(first, last, dtype=uint64)
            mixed = scratch[7].view(out.dtype)[: (last - first) * words].reshape(-1, words)
            yield philox(xp, work[6], stream, key, work[:6]), mixed
            skip = lo - first * words
            target[done : done + hi - lo] = mixed.reshape(-1)[skip : skip + hi - lo]
            done += hi - lo


def _bits_kernel(
    xp: Any,
    out: Any,
    seed: Any,
    *,
    shape: Shape,
    stream: int,
    wide: bool,
    at: Place,
    scratch: Sequence[Any],
) -> None:
    for c, mixed in _drawn_blocks(xp, out, seed, stream, 2 if wide else 4, at, scratch):
        if wide:
            for k in range(2):
                xp.left_shift(c[2 * k + 1], 32, c[2 * k + 1])
                xp.bitwise_or(c[2 * k], c[2 * k + 1], mixed[:, k])
        else:
            for k in range(4):
                mixed[:, k] = c[k]


def _bits_scratch(
    ins: Sequence[Shape],
    outs: Sequence[Shape],
    specs: Sequence[Spec],
    *,
    shape: Shape,
    stream: int,
    wide: bool,
) -> Sequence[Scratch]:
    n = min(_CHUNK, math.prod(outs[0]) // (2 if wide else 4) + 2)
    return (*(Scratch((n,), uint64) for _ in range(7)), Scratch((2 * n,), uint64))


def _bits_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices(((),), (tuple(LETTERS[: outs[0].ndim]),))


def _check_seed(name: str, seed: Spec) -> None:
    if seed.shape or seed.dtype != uint64:
        raise unfit(name, (seed,), "a seed uint64[]")


def _bits_rule(seed: Spec, *, shape: Shape, stream: int, wide: bool) -> Spec:
    _check_seed("random_bits", seed)
    return Spec(shape, uint64 if wide else uint32)


op(
    "random_bits",
    infer=_bits_rule,
    takes={"shape": SHAPE, "stream": whole(0, 2**64 - 1), "wide": FLAG},
    indices=_bits_indices,
    kernel=_bits_kernel,
    scratch=_bits_scratch,
    cost=lambda ins, outs, p: (100.0 * outs[0].size, float(outs[0].nbytes)),
    placed=True,
    random_in_kernel=lambda p, math: "bits64" if p["wide"] else "bits32",
)


def seed(value: int | None = None) -> int:
    """Start the sequence of draws that name no seed of their own. Without a value, the seed that this
    process has drawn by itself, or was given: with it, another process draws the same numbers.

    >>> ost.random.seed(7)
    7
    """
    if value is not None:
        Seeds.start(whole_number(value, "seed") & (2**64 - 1))
    return Seeds._base


def bits(shape: Shape, stream: str, seed: Any, *, wide: bool, split: Split) -> Array:
    """Random words, one per element."""
    x = apply("random_bits", as_seed(seed), shape=shape, stream=STREAMS[stream], wide=wide)
    return placed(x, split)


def _float_dtype(dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if not is_float(kind):
        raise misfit(DTypeError, "random numbers", got=kind.name, needed="a real floating dtype")
    return kind


def _unit(
    shape: Shape, stream: str, seed: Any, dtype: DType, split: Split, *, open_below: bool = False
) -> Array:
    """Uniform in [0, 1), or (0, 1] if open below; as many bits as the dtype has exactly."""
    wide, digits = dtype == float64, _DIGITS[dtype]
    raw = bits(shape, stream, seed, wide=wide, split=split)
    whole = astype(raw >> (64 - digits if wide else 32 - digits), dtype)
    if open_below:
        whole = whole + 1
    return whole * 2.0**-digits


_DIGITS = {float64: 53, float32: 24, float16: 11, bfloat16: 8}


def asked(shape: Any, size: Any, dtype: Any) -> tuple[Any, Any]:
    """The shape and the dtype: NumPy's `size` comes with NumPy's float64."""
    kind = float32 if size is None else float64
    return shape if size is None else size, kind if dtype is None else dtype


def sorted_out(
    name: str,
    given: tuple[Any, ...],
    shape: Any,
    size: Any,
    dtype: Any,
    named: Sequence[Any],
    defaults: Sequence[Any],
) -> tuple[Any, Any, list[Any]]:
    """Shape, dtype and parameters of a call that is ours, `f(shape, parameter=...)`, or NumPy's, whose
    size comes behind the parameters. One whole number, or several in a tuple, alone are a shape."""
    numpys = size is not None or len(given) > 1 or not all(map(_is_shape, given))
    if not numpys and given:
        shape = given[0]
    elif len(given) > len(named):
        *given_first, size = given
        given = tuple(given_first)
    found = [*given, *named[len(given) :]] if numpys else list(named)
    if len(found) != len(named):
        needed = f"a shape, or {len(named)} parameters and a size"
        raise misfit(ArgumentError, name, got=f"{len(found) + 1} arguments", needed=needed)
    found = [d if x is None else x for x, d in zip(found, defaults, strict=True)]
    kind = float64 if numpys else float32
    return (size if numpys else shape), kind if dtype is None else dtype, found


def _is_shape(x: Any) -> bool:
    """Whether what stands alone is an extent, or several, not a parameter."""
    if isinstance(x, Array):
        return x.weak is int
    each = x if isinstance(x, (tuple, list)) else [x]
    return all(isinstance(n, (int, np.integer, Array)) for n in each)


# -- distributions -------------------------------------------------------------------------
@overload
def uniform(
    shape: ShapeLike = (),
    *,
    low: Operandish = 0.0,
    high: Operandish = 1.0,
    size: ShapeLike | None = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
@overload
def uniform(
    low: Operandish = 0.0,
    high: Operandish = 1.0,
    size: ShapeLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
def uniform(
    *given: Any,
    low: Any = None,
    high: Any = None,
    size: Any = None,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Numbers from [low, high). NumPy's `uniform(low, high, size)` is float64, as there.

    >>> ost.random.uniform((3,), seed=7)
    Array([0.495 , 0.1717, 0.3112], dtype=float32)
    >>> ost.random.uniform(-1, 1, 2, seed=7)
    Array([-0.6565, -0.5494], dtype=float64)
    """
    shape, dtype, (low, high) = sorted_out(
        "uniform", given, shape, size, dtype, (low, high), (0.0, 1.0)
    )
    kind = _float_dtype(dtype)
    x = _unit(_shape_of("uniform", shape, low, high), "uniform", seed, kind, split)
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        if (low, high) == (0, 1):
            return x
        if not low <= high:
            raise misfit(ArgumentError, "uniform", got=f"[{low}, {high})", needed="low <= high")
    bottom, top = (astype(as_array(v), kind) for v in (low, high))
    return minimum(x * (top - bottom) + bottom, nextafter(top, bottom))  # rounding may reach top


def _shape_of(name: str, shape: Any, *parameters: Any) -> Shape:
    """The shape that was asked for, or that of the parameters."""
    if shape is not None:
        return as_shape(shape)
    return broadcast(name, *(as_array(x).shape for x in parameters))


@overload
def normal(
    shape: ShapeLike = (),
    *,
    mean: Operandish = 0.0,
    std: Operandish = 1.0,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
@overload
def normal(
    loc: Operandish = 0.0,
    scale: Operandish = 1.0,
    size: ShapeLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array: ...
def normal(
    *given: Any,
    loc: Any = None,
    scale: Any = None,
    size: Any = None,
    shape: Any = None,
    mean: Any = None,
    std: Any = None,
    dtype: DTypeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Normally distributed numbers (Box-Muller, on the words of an element's own pair). NumPy's
    `normal(loc, scale, size)` is float64, as there.

    >>> ost.random.normal((3,), seed=7)
    Array([ 0.2049, -0.2786,  0.2009], dtype=float32)
    >>> ost.random.normal(5, 0.1, 2, seed=7)
    Array([5.0084, 5.0562], dtype=float64)
    """
    named = (mean if loc is None else loc, std if scale is None else scale)
    shape, dtype, (mean, std) = sorted_out("normal", given, shape, size, dtype, named, (0.0, 1.0))
    kind, size = _float_dtype(dtype), _shape_of("normal", shape, mean, std)
    x = apply("normal", as_seed(seed), shape=size, dtype=promote(kind, float32))
    x = placed(x, split)
    if not (type(std) is float and std == 1.0):
        x = x * std
    if not (type(mean) is float and mean == 0.0):
        x = x + mean
    return astype(x, kind)


def _normal_kernel(
    xp: Any, out: Any, seed: Any, *, shape: Shape, dtype: DType, at: Place, scratch: Sequence[Any]
) -> None:
    """Elements 2i and 2i+1 are the cosine and the sine of one pair of words."""
    wide = dtype == float64
    words, unit = (2, 2.0**-53) if wide else (4, 2.0**-24)
    for c, mixed in _drawn_blocks(xp, out, seed, NORMAL, words, at, scratch):
        radius, angle, line = (scratch[k].view(dtype)[: len(mixed)] for k in (4, 5, 6))
        for k in range(0, words, 2):
            if wide:
                for half in (0, 2):  # two words to 53 bits
                    xp.left_shift(c[half + 1], 21, c[half + 1])
                    xp.right_shift(c[half], 11, c[half])
                    xp.bitwise_or(c[half], c[half + 1], c[half])
                first_word, second_word = c[0], c[2]
            else:
                xp.right_shift(c[k], 8, c[k])
                xp.right_shift(c[k + 1], 8, c[k + 1])
                first_word, second_word = c[k], c[k + 1]
            xp.copyto(radius, first_word, casting="unsafe")
            xp.copyto(angle, second_word, casting="unsafe")
            xp.add(radius, 1, radius)
            xp.multiply(radius, unit, radius)
            xp.log(radius, radius)
            xp.multiply(radius, -2, radius)
            xp.sqrt(radius, radius)
            xp.multiply(angle, 2 * math.pi * unit, angle)
            xp.cos(angle, line)
            xp.multiply(radius, line, mixed[:, k])
            xp.sin(angle, line)
            xp.multiply(radius, line, mixed[:, k + 1])


def _normal_rule(seed: Spec, *, shape: Shape, dtype: DType) -> Spec:
    _check_seed("normal", seed)
    if dtype not in (float32, float64):
        raise misfit(DTypeError, "normal", got=dtype.name, needed="float32 or float64")
    return Spec(shape, dtype)


def _normal_drawn(p: Params, math: str) -> str:
    """With NumPy's logarithm there is none."""
    if math == "libm":
        return ""
    return "normal64" if p["dtype"] == float64 else "normal32"


op(
    "normal",
    infer=_normal_rule,
    takes={"shape": SHAPE, "dtype": DTYPE},
    indices=_bits_indices,
    kernel=_normal_kernel,
    scratch=lambda ins, outs, specs, *, shape, dtype: _bits_scratch(
        ins, outs, specs, shape=shape, stream=2, wide=dtype == float64
    ),
    cost=lambda ins, outs, p: (150.0 * outs[0].size, float(outs[0].nbytes)),
    placed=True,
    random_in_kernel=_normal_drawn,
)


def integers(
    low: int,
    high: int | None = None,
    shape: ShapeLike = (),
    *,
    size: ShapeLike | None = None,
    endpoint: bool = False,
    dtype: DTypeLike = int64,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Whole numbers from low up to, but without, high, unless `endpoint` is True; from 0 up to low, if
    there is no high.

    >>> ost.random.integers(0, 10, (4,), seed=7)
    Array([1, 8, 2, 2], dtype=int64)
    """
    low, high = (0, low) if high is None else (low, high)
    shape = shape if size is None else size
    kind = as_dtype(dtype)
    if not is_integer(kind):
        raise misfit(DTypeError, "integers", got=kind.name, needed="an integer dtype")
    limits = np.iinfo(kind)
    low, high = whole_number(low, "integers"), whole_number(high, "integers")
    high += bool(endpoint)
    if not (limits.min <= low < high <= int(limits.max) + 1):
        got = f"[{low}, {high}) in {kind.name}"
        raise misfit(ArgumentError, "integers", got=got, needed="low < high, both within the dtype")
    raw = bits(as_shape(shape), "integers", seed, wide=True, split=split)
    span = high - low
    spread = raw % np.uint64(span) if span < 2**64 else raw
    return astype(astype(spread, int64) + low, kind) if kind != uint64 else spread + np.uint64(low)


def bernoulli(
    p: Operandish = 0.5,
    shape: ShapeLike | None = None,
    *,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """True with probability p.

    >>> ost.random.bernoulli(0.3, (4,), seed=7)
    Array([False, False,  True, False], dtype=bool)
    """
    p = as_array(p)
    size = p.shape if shape is None else as_shape(shape)
    return _unit(size, "bernoulli", seed, float32, split) < p


def permutation(
    n: int | Operandish, *, seed: Any = None, axis: int = 0, split: Split = ANYWHERE
) -> Array:
    """The numbers below n, or the slices of an array along an axis, in random order.

    >>> ost.random.permutation(4, seed=7)
    Array([2, 1, 0, 3], dtype=int64)
    """
    if weak_kind(n) is int or isinstance(n, np.integer):
        return placed(_order(whole_number(n, "permutation"), seed), split)
    x = as_array(n)
    d = axis_of(axis, x.ndim, "permutation")
    return placed(apply("take", x, _order(x.shape[d], seed), axis=d), split)


def _order(count: int, seed: Any) -> Array:
    return argsort(bits(as_shape(count), "permutation", seed, wide=True, split=ANYWHERE))


def categorical(
    logits: Operandish,
    *,
    axis: int = -1,
    shape: ShapeLike | None = None,
    seed: Any = None,
    split: Split = ANYWHERE,
) -> Array:
    """Classes with probabilities softmax(logits), by the Gumbel trick.

    >>> ost.random.categorical([0.0, 0.0, 9.0], shape=(4,), seed=7)
    Array([2, 2, 2, 2], dtype=int64)
    """
    x = as_array(logits)
    d = axis_of(axis, x.ndim, "categorical")
    if not is_float(x.dtype):
        raise misfit(DTypeError, "categorical", got=x.dtype.name, needed="real floating logits")
    left = (*x.shape[:d], *x.shape[d + 1 :])
    size = left if shape is None else as_shape(shape)
    if broadcast("categorical", size, left) != size:
        got = f"shape {size}"
        raise misfit(ShapeError, "categorical", got=got, needed=f"one that {left} broadcasts to")
    x = broadcast_to(moveaxis(x, d, -1), (*size, x.shape[d]))
    kind = promote(x.dtype, float32)
    u = _unit(x.shape, "categorical", seed, kind, ANYWHERE, open_below=True)
    u = clip(u, None, 1 - 2.0 ** -_DIGITS[kind])
    return placed(argmax(x - log(-log(u)), axis=-1), split)


def permuted(
    x: Operandish, /, axis: int | None = None, *, seed: Any = None, split: Split = ANYWHERE
) -> Array:
    """The elements along an axis in random order, in each line another; all of them, without an axis.

    >>> ost.random.permuted([[1, 2, 3], [4, 5, 6]], axis=1, seed=7)
    Array([[3, 2, 1],
           [6, 4, 5]], dtype=int64)
    """
    x = as_array(x)
    if axis is None:
        return placed(permutation(x.reshape(-1), seed=seed).reshape(x.shape), split)
    d = axis_of(axis, x.ndim, "permuted")
    keys = bits(x.shape, "permutation", seed, wide=True, split=ANYWHERE)
    return placed(take_along_axis(x, argsort(keys, axis=d), axis=d), split)


def shuffle(x: Operandish, /, axis: int = 0, *, seed: Any = None) -> Array:
    """The slices of an array along an axis, in random order. As a statement it shuffles the array itself,
    as NumPy's does.

    >>> ost.random.shuffle(ost.arange(4), seed=7)
    Array([2, 1, 0, 3], dtype=int64)
    """
    made = permutation(as_array(x), axis=axis, seed=seed)
    return changed(x, made, "shuffle", sys._getframe(1))


# -- in kernels ----------------------------------------------------------------------------
def _place_of(numbers: Any) -> tuple[Shape, Place]:
    """The global shape, as far as it matters, and the box, from how `numbers` lies."""
    if not numbers.ndim:
        return (), Place((), ((),), (), ((),))
    rest, box = int(numbers[(0,) * numbers.ndim]), []
    for step, n in zip(numbers.strides, numbers.shape, strict=True):
        lo, rest = divmod(rest, step)
        box.append((lo, lo + n))
    inner = [a // b for a, b in itertools.pairwise(numbers.strides)]
    shape = (box[0][1], *inner)
    return shape, Place((), (tuple(box),), (), (shape,))


def _drawn(kernel: Callable[..., None], dtype: DType) -> Callable[..., None]:
    """Make a kernel that draws what generated ones do (ops/jit/random_bits.py), by NumPy, where
    these numbers are."""
    wide = dtype.itemsize == 8

    def draw(xp: Any, out: Any, seed: Any, numbers: Any, stream: Any = NORMAL) -> None:
        if not out.size:
            return
        shape, at = _place_of(numbers)
        bits: dict[str, Any] = {"shape": shape, "stream": int(stream), "wide": wide}
        needs = _bits_scratch((), (out.shape,), (), **bits)
        params = bits if kernel is _bits_kernel else {"shape": shape, "dtype": dtype}
        scratch = [xp.empty(s.shape, s.dtype) for s in needs]
        flat = out if out.flags.c_contiguous else xp.empty(out.shape, out.dtype)
        kernel(xp, flat, seed, at=at, scratch=scratch, **params)
        if flat is not out:  # which lies with gaps
            out[...] = flat

    return draw


def _drawn_rule(dtype: DType, count: int) -> Callable[..., Spec]:
    def infer(*ins: Spec) -> Spec:
        if len(ins) != count or ins[0].shape or ins[1].dtype != int64:
            raise unfit("random numbers", ins, "a seed, numbers of elements, perhaps a stream")
        return Spec(ins[1].shape, dtype)

    return infer


for _name, _dtype in (("bits32", uint32), ("bits64", uint64)):
    op(
        _name,
        infer=_drawn_rule(_dtype, 3),
        made_by="machine",
        kernel=_drawn(_bits_kernel, _dtype),
        scalar=f"{_name}({{0}}, {{1}}, {{2}})",
        cost=stream_cost(100),
        draws=True,
    )
for _name, _dtype in (("normal32", float32), ("normal64", float64)):
    op(
        _name,
        infer=_drawn_rule(_dtype, 2),
        made_by="machine",
        kernel=_drawn(_normal_kernel, _dtype),
        scalar=f"{_name}({{0}}, {{1}})",
        cost=stream_cost(150),
        draws=True,
    )
