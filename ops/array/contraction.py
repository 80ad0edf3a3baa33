"""Products that sum over an index: matmul and its relatives.

`einsum` reads its indices off its own text. Whatever has at most one label each for rows, columns
and the sum is a matmul of transposed views; the rest is one `einsum` node, whose kernel folds the
groups."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, overload

import numpy as np

from ostinato.errors import ArgumentError, DTypeError, ShapeError

from ..autodiff.batching import Mapped, aligned
from ..core.apply import apply, as_array, unify
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.index import LETTERS, Indices, along, einsum_indices, product_labels, subscripts
from ..core.parameters import DTYPE, FARTHEST, TEXT, unfit, whole
from ..core.registry import Params, Product, Reduce, Scratch, Specs, op
from ..core.spec import DType, DTypeLike, Shape, Spec, float32, promote
from ..core.tracebacks import door
from ..core.user_line import misfit
from ..planned import folded, in_blocks
from .arithmetic import conj, convert
from .concatenation import add_zeros
from .elementwise import Out, broadcast, put_out
from .picked import Picked, product
from .shape import (
    accumulator,
    add_up,
    axis_of,
    broadcast_to,
    diagonal_number,
    expand_dims,
    listed,
    moveaxis,
    permute_dims,
    reshape,
    squeeze,
    swapaxes,
    whole_number,
)

__all__ = ["diagonal", "einsum", "matmul", "outer", "tensordot", "trace", "vecdot"]


# -- matmul --------------------------------------------------------------------------------
def _matmul_rule(a: Spec, b: Spec) -> Spec:
    """Vectors are a row on the left, a column on the right, and leave no axis."""
    if not a.ndim or not b.ndim or a.dtype != b.dtype:
        raise unfit("matmul", (a, b), "at least one axis each, and one dtype")
    if a.shape[-1] != b.shape[-2:][0]:
        needed, do = (
            f"as many columns on the left ({a.shape[-1]}) as rows on the right ({b.shape[-2:][0]})",
            "transpose one of them, e.g. b.mT",
        )
        raise misfit(ShapeError, "matmul", got=f"{a.bare} @ {b.bare}", needed=needed, do=do)
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return Spec((*batch, *a.shape[-2:-1], *columns), promote(a.dtype, b.dtype))


def _matmul_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    a, b = ins
    many = outs[0].ndim - (a.ndim > 1) - (b.ndim > 1)
    batch, (m, n, k) = LETTERS[:many], tuple(LETTERS[many : many + 3])
    rows, columns = (m,) if a.ndim > 1 else (), (n,) if b.ndim > 1 else ()

    def lead(spec: Spec) -> tuple[str | None, ...]:
        skip = many - max(spec.ndim - 2, 0)
        return tuple(
            batch[skip + d] if size == outs[0].shape[skip + d] else None
            for d, size in enumerate(spec.shape[:-2])
        )

    return Indices(
        ((*lead(a), *rows, k), (*lead(b), k, *columns)), ((*batch, *rows, *columns),), ((k, "sum"),)
    )


def _matmul_grad(g: Array, y: Array, a: Array, b: Array) -> Sequence[Array | None]:
    """The transposes' products; a vector's axis is put in and taken out again."""
    if a.ndim == 1 == b.ndim:
        return g * b, g * a
    if a.ndim == 1:
        row, rows = expand_dims(a, axis=0), expand_dims(g, axis=-2)
        back = apply("matmul", rows, swapaxes(b, -1, -2))
        return squeeze(back, (back.ndim - 2,)), apply("matmul", swapaxes(row, 0, 1), rows)
    if b.ndim == 1:
        column, columns = expand_dims(b, axis=0), expand_dims(g, axis=-1)
        back = apply("matmul", swapaxes(a, -1, -2), columns)
        return apply("matmul", columns, column), squeeze(back, (back.ndim - 1,))
    return _slope(g, swapaxes(b, -1, -2), a), _slope(swapaxes(a, -1, -2), g, b)


def _slope(left: Array, right: Array, of: Array) -> Array:
    """Compute the slope of a matrix that multiplies a stack, summed at once: a product for each, to
    be added up, would take as many times its memory."""
    batch = left.ndim - 2
    if of.ndim > 2 or not batch or left.shape[:-2] != right.shape[:-2]:
        return apply("matmul", left, right)
    stack, (m, n, k) = "".join(LETTERS[:batch]), tuple(LETTERS[batch : batch + 3])
    given = f"{stack}{k}{m},{stack}{k}{n}->{m}{n}"
    return apply("einsum", swapaxes(left, -1, -2), right, text=given)


def _straight(xp: Any, x: Any) -> Any:
    """As BLAS can read it: one of the last two axes contiguous; else a copy."""
    if x.size == 0 or x.ndim < 2:
        return x
    item, (rows, columns) = x.itemsize, x.strides[-2:]
    if (columns == item and rows >= item * x.shape[-1]) or (
        rows == item and columns >= item * x.shape[-2]
    ):
        return x
    return xp.ascontiguousarray(x)


def _wide_scratch(
    ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec], **_: Any
) -> Sequence[Scratch]:
    """Ask for float32 copies of operands and result where these are halves, since BLAS has no half."""
    if accumulator(specs[-1].dtype) == specs[-1].dtype:
        return ()
    return [Scratch(shape, float32) for shape in (*ins, *outs)]


def _matmul_kernel(xp: Any, out: Any, a: Any, b: Any, *, scratch: Sequence[Any]) -> None:
    if scratch:
        left, right, product = scratch
        xp.copyto(left, a)
        xp.copyto(right, b)
        xp.matmul(left, right, out=product)
        xp.copyto(out, product, casting="unsafe")
    elif out.dtype.kind in "fc":
        xp.matmul(_straight(xp, a), _straight(xp, b), out=out)
    else:
        xp.matmul(a, b, out=out)


def _matmul_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    return 2.0 * outs[0].size * ins[0].shape[-1], float(sum(s.nbytes for s in (*ins, *outs)))


MAX_GEMV_SIDE = 64  # rows and columns of matrices that many vectors are multiplied with one by one


def _adds_elements(a: Array, b: Array, rows: int, columns: int) -> bool:
    """Whether vectors of all elements, each with a vector or a small matrix of its own, are best
    multiplied as elements that are added up: in one kernel with what is around them."""
    if min(rows, columns) > 1 or max(rows, columns) > 2:
        return False
    sizes = a.shape[-rows:] + b.shape[-columns:]
    return (
        a.dtype.kind != "b"
        and a.dtype.itemsize > 2
        and (rows == columns or max(sizes) <= MAX_GEMV_SIDE)
    )


def _matmul_batched(size: int, *xs: Mapped) -> Sequence[Mapped]:
    """Vectors of all elements are the rows of a matrix where the other operand is one for all."""
    (a, has_a), (b, has_b) = xs
    rows, columns = a.ndim - has_a, b.ndim - has_b
    if not has_b and columns <= 2:
        made = apply("matmul", a, b)
    elif not has_a and columns == 1 and rows <= 2:
        made = apply("matmul", b, swapaxes(a, 0, 1) if rows == 2 else a)
    elif has_a and has_b and _adds_elements(a, b, rows, columns):
        if rows == 2:
            made = add_up(a * expand_dims(b, axis=1), (2,))
        else:
            made = add_up(expand_dims(a, axis=2) * b if columns == 2 else a * b, (1,))
    else:
        left = expand_dims(a, axis=-2) if rows == 1 else a
        right = expand_dims(b, axis=-1) if columns == 1 else b
        rank = max(rows, columns, 2)
        made = apply("matmul", aligned((left, has_a), rank), aligned((right, has_b), rank))
        gone = [made.ndim - 2] * (rows == 1) + [made.ndim - 1] * (columns == 1)
        made = squeeze(made, gone) if gone else made
    return [(made, True)]


op(
    "matmul",
    infer=_matmul_rule,
    indices=_matmul_indices,
    batched=_matmul_batched,
    ufunc="matmul",
    kernel=_matmul_kernel,
    scratch=_wide_scratch,
    grad=_matmul_grad,
    cost=_matmul_cost,
    dense=True,
    product=Product(wide="wide_matmul", squared="gram", gemm=True),
    reduce=Reduce("{0} * {1}"),
    in_blocks=in_blocks.matmul,
)


def _wide_rule(a: Spec, b: Spec, *, dtype: DType) -> Spec:
    return Spec(_matmul_rule(a, b).shape, dtype)


def _wide_kernel(xp: Any, out: Any, a: Any, b: Any, *, dtype: DType) -> None:
    xp.matmul(a.astype(dtype), b.astype(dtype), out=out)


# What the planner makes of a product of casts, where a library multiplies what is narrow.
op(
    "wide_matmul",
    infer=_wide_rule,
    takes={"dtype": DTYPE},
    made_by="machine",
    indices=_matmul_indices,
    kernel=_wide_kernel,
    cost=_matmul_cost,
    dense=True,
    product=Product(gemm=True),
)


def _same_dtype(a: Array, b: Array) -> tuple[Array, Array]:
    dtype = promote(a.dtype, b.dtype)
    return convert(a, dtype), convert(b, dtype)


@export
def matmul(a: Operandish, b: Operandish, /, out: Out = None) -> Array:
    """Matrix product; vectors count as a row on the left and a column on the right, other axes are
    batches.

    >>> ost.matmul(ost.ones((2, 3)), ost.ones(3))
    Array([3., 3.], dtype=float64)
    """
    a, b = unify(a, b)
    if not a.ndim or not b.ndim:
        got = f"{a.spec.bare} @ {b.spec.bare}"
        raise misfit(ShapeError, "matmul", got=got, needed="at least one axis each", do="use *")
    a, b = _same_dtype(a, b)
    if isinstance(a, Picked) or isinstance(b, Picked):
        return put_out(product(matmul, a, b), out, "matmul")
    return put_out(apply("matmul", a, b), out, "matmul")


# -- einsum --------------------------------------------------------------------------------
def _einsum_rule(a: Spec, b: Spec, *, text: str) -> Spec:
    operands, out = subscripts(text)
    lengths = [len(own) for own in operands]
    if lengths != [a.ndim, b.ndim] or not _is_product(operands[0], operands[1], out):
        needed = f"a product of two for {text!r:.60}, each of their axes with a letter of its own"
        raise unfit("einsum", (a, b), needed)
    if a.dtype != b.dtype:
        raise unfit("einsum", (a, b), "one dtype", DTypeError)
    sizes: dict[str, int] = {}
    for labels, x in zip(operands, (a, b), strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            if sizes.setdefault(label, n) != n:
                raise _two_extents(text, label, (a, b))
    return Spec(tuple(sizes[c] for c in out), a.dtype)


def _is_product(left: str, right: str, out: str) -> bool:
    """Whether each label stands once in an operand, and is summed only if it stands in both."""
    both = set(left) & set(right)
    every = set(left) | set(right)
    return (
        all(len({*own}) == len(own) for own in (left, right, out))
        and every <= set(string.ascii_letters)
        and every - both <= set(out) <= every
    )


def _two_extents(text: str, label: str, xs: Sequence[Spec] | Sequence[Array]) -> Exception:
    got = " and ".join(str(x.shape) for x in xs)
    return misfit(ShapeError, f"einsum({text!r})", got=got, needed=f"one extent for {label!r}")


class Folds:
    """Operands of an einsum as stacks of matrices, and its result."""

    def __init__(self, text: str, a: Any, b: Any) -> None:
        (left, right), self.result = subscripts(text)
        batch, rows, columns, summed = product_labels(text)
        self.extents = dict(zip((*left, *right), (*a.shape, *b.shape), strict=True))
        self.labels = left, right, self.result
        self.groups = (batch, rows, summed), (batch, summed, columns), (batch, rows, columns)

    def matrices(self, k: int, x: Any) -> Any:
        """Reshape an operand, or the result (2), to matrices; a view where that is possible."""
        return self.ordered(k, x).reshape(self.shape(k))

    def ordered(self, k: int, x: Any) -> Any:
        return x.transpose([self.labels[k].index(c) for c in "".join(self.groups[k])])

    def shape(self, k: int) -> list[int]:
        batch, *two = self.groups[k]
        return [self.extents[c] for c in batch] + [_size(self.extents, g) for g in two]

    def unfold(self, product: Any) -> Any:
        """The result as it should be, of its matrices."""
        order = "".join(self.groups[2])
        whole = product.reshape([self.extents[c] for c in order])
        return whole.transpose([order.index(c) for c in self.result])


def _einsum_kernel(xp: Any, out: Any, a: Any, b: Any, *, text: str, scratch: Sequence[Any]) -> None:
    if scratch:
        xp.copyto(scratch[0], a)
        xp.copyto(scratch[1], b)
        a, b = scratch[:2]
    folds = Folds(text, a, b)
    product = xp.matmul(folds.matrices(0, a), folds.matrices(1, b))
    xp.copyto(out, folds.unfold(product), casting="unsafe")


def _size(extents: dict[str, int], labels: str) -> int:
    return math.prod(extents[c] for c in labels)


def _einsum_cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
    operands, _ = subscripts(p["text"])
    extents = {
        c: n
        for labels, x in zip(operands, ins, strict=True)
        for c, n in zip(labels, x.shape, strict=True)
    }
    return 2.0 * math.prod(extents.values()), float(sum(s.nbytes for s in (*ins, *outs)))


def _einsum_grad(g: Array, y: Array, a: Array, b: Array, *, text: str) -> Sequence[Array | None]:
    (left, right), out = subscripts(text)
    return einsum(f"{out},{right}->{left}", g, b), einsum(f"{left},{out}->{right}", a, g)


def _einsum_batched(size: int, *xs: Mapped, text: str) -> Sequence[Mapped]:
    """One more letter."""
    operands, out = subscripts(text)
    more = next(c for c in LETTERS if c not in text)
    given = ",".join(more + own if has else own for own, (_, has) in zip(operands, xs, strict=True))
    return [(apply("einsum", *[x for x, _ in xs], text=f"{given}->{more}{out}"), True)]


op(
    "einsum",
    infer=_einsum_rule,
    batched=_einsum_batched,
    takes={"text": TEXT},
    indices=lambda ins, outs, p: einsum_indices(p["text"], ins),
    kernel=_einsum_kernel,
    scratch=_wide_scratch,
    grad=_einsum_grad,
    cost=_einsum_cost,
    dense=True,
    product=Product(folded=folded.einsum),
    reduce=Reduce("{0} * {1}"),
    in_blocks=in_blocks.einsum,
)


def _read_text(text: Any, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The operands' labels and the output's, with `...` spelled out and the output named."""
    text = text.replace(" ", "")
    left, arrow, out = text.partition("->")
    operands = left.split(",")
    if len(operands) != len(shapes) or not set(text) <= set(string.ascii_letters + ",.->"):
        got = f"{text!r} for {len(shapes)} operands"
        needed = "letters for each axis, operands separated by commas"
        raise misfit(ArgumentError, "einsum", got=got, needed=needed)
    spare = [c for c in reversed(LETTERS) if c not in text]
    more = max(
        (
            len(s) - len(labels.replace("...", ""))
            for labels, s in zip(operands, shapes, strict=True)
            if "..." in labels
        ),
        default=0,
    )
    dots = "".join(spare[:more])
    found = []
    for labels, shape in zip(operands, shapes, strict=True):
        here = len(shape) - len(labels.replace("...", ""))
        spelled = labels.replace("...", dots[len(dots) - here :] if here > 0 else "")
        if len(spelled) != len(shape):
            got, needed = f"shape {shape} for {labels!r}", "one letter for each axis"
            raise misfit(ShapeError, f"einsum({text!r})", got=got, needed=needed)
        found.append(spelled)
    every = "".join(found)
    if arrow:
        out = out.replace("...", dots)
    else:
        out = dots + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in dots))
    if len(set(out)) < len(out) or not set(out) <= set(every):
        needed = "labels of operands, each once"
        raise misfit(ArgumentError, f"einsum({text!r})", got=f"output {out!r}", needed=needed)
    return found, out


def _lettered(given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The text of a call that has each operand's labels behind it, in a list, and perhaps the result's
    at the end; letters in the order of the numbers."""
    lists, end = given[1::2], given[-1] if len(given) % 2 else None
    lists = lists if end is None else (*lists, end)
    numbers = {n for own in lists if isinstance(own, (list, tuple)) for n in own}
    try:
        letters = {n: string.ascii_letters[n] for n in numbers - {...}} | {...: "..."}
        words = ["".join(letters[n] for n in own) for own in lists]
    except (TypeError, IndexError):
        got = " and ".join(type(x).__name__ for x in given[:3])
        needed = "text such as 'ij,jk->ik', or behind each operand a list of whole numbers below 52"
        raise misfit(ArgumentError, "einsum", got=got, needed=needed) from None
    arrow = "" if end is None else f"->{words.pop()}"
    return ",".join(words) + arrow, given[0 : len(given) - len(given) % 2 : 2]


@overload
def einsum(text: str, /, *operands: Operandish, out: Out = None, optimize: Any = True) -> Array: ...
@overload
def einsum(
    a: Operandish,
    labels: Sequence[int | EllipsisType],
    /,
    *more: Any,
    out: Out = None,
    optimize: Any = True,
) -> Array: ...
@export
@door
def einsum(text: Any, /, *operands: Any, out: Out = None, optimize: Any = True) -> Array:
    """Sums of products, in Einstein's notation: `einsum("ij,jk->ik", a, b)`, or with numbers in place
    of letters, `einsum(a, [0, 1], b, [1, 2], [0, 2])`. The order of several products is always the
    cheapest; `optimize` is there since NumPy has it.

    >>> ost.einsum("ij,kj->ik", ost.eye(2), [[1, 2], [3, 4]])
    Array([[1., 3.],
           [2., 4.]], dtype=float64)
    """
    if not isinstance(text, str):
        text, operands = _lettered((text, *operands))
    xs = unify(*operands) if operands else []
    labels, result = _read_text(text, [x.shape for x in xs])
    _drop_repeated(text, xs, labels)
    while len(xs) > 1:
        i, j = _cheapest(labels, xs) if len(xs) > 2 else (0, 1)
        b, right = xs.pop(j), labels.pop(j)
        a, left = xs.pop(i), labels.pop(i)
        later = set(result).union(*labels)
        kept = "".join(dict.fromkeys(c for c in left + right if c in later))
        if not labels:
            kept = result
        xs.append(_pair(a, left, b, right, kept))
        labels.append(kept)
    return put_out(_single(xs[0], labels[0], result), out, "einsum")


def _drop_repeated(text: str, xs: list[Array], labels: list[str]) -> None:
    """Diagonals of labels that an operand has twice; and away with axes of size 1 whose label has a
    larger extent elsewhere: the operand is repeated there."""
    extents: dict[str, int] = {}
    for k, (x, own) in enumerate(zip(list(xs), list(labels), strict=True)):
        for c, n in zip(own, x.shape, strict=True):
            known = extents.get(c, 1)
            if n != known != 1 != n or n != x.shape[own.index(c)]:
                raise _two_extents(text, c, xs)
            extents[c] = n if known == 1 else known
        xs[k], labels[k] = _diagonals(x, own)
    for k, (x, own) in enumerate(zip(xs, labels, strict=True)):
        pairs = enumerate(zip(own, x.shape, strict=True))
        gone = tuple(d for d, (c, n) in pairs if n == 1 != extents[c])
        if gone:
            xs[k] = squeeze(x, gone)
            labels[k] = "".join(c for d, c in enumerate(own) if d not in gone)


def _cheapest(labels: Sequence[str], xs: Sequence[Array]) -> tuple[int, int]:
    """Which two operands to multiply first: as NumPy's greedy path does."""
    stand_ins = [np.broadcast_to(np.float64(0), x.shape) for x in xs]
    path = np.einsum_path(",".join(labels), *stand_ins, optimize="greedy")[0][1]
    i, j = sorted(path[:2])
    return i, j


def _diagonals(x: Array, labels: str) -> tuple[Array, str]:
    """An operand in which each label stands once."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            first = labels.index(c)
            second = labels.index(c, first + 1)
            x = diagonal(x, 0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + c
    return x, labels


def _single(x: Array, labels: str, out: str) -> Array:
    """One operand: sums, and another order."""
    gone = tuple(d for d, c in enumerate(labels) if c not in out)
    if gone:
        x = add_up(x, gone)
        labels = "".join(c for c in labels if c in out)
    return permute_dims(x, [labels.index(c) for c in out])


def _pair(a: Array, left: str, b: Array, right: str, out: str) -> Array:
    """Two operands; what stands in one of them only and is summed, is summed first."""
    own = "".join(dict.fromkeys(c for c in left if c in right or c in out))
    a, left = _single(a, left, own), own
    own = "".join(dict.fromkeys(c for c in right if c in left or c in out))
    b, right = _single(b, right, own), own
    a, b = _same_dtype(a, b)
    text = f"{left},{right}->{out}"
    batch, rows, columns, summed = product_labels(text)
    if not summed:  # a product of elements
        full = batch + rows + columns
        a = _place(a, left, full)
        b = _place(b, right, full)
        return permute_dims(a * b, [full.index(c) for c in out])
    if max(len(rows), len(columns), len(summed)) > 1:
        return apply("einsum", a, b, text=text)
    a = permute_dims(a, [left.index(c) for c in batch + rows + summed])
    b = permute_dims(b, [right.index(c) for c in batch + summed + columns])
    if not rows:
        a = expand_dims(a, axis=len(batch))
    if not columns:
        b = expand_dims(b, axis=b.ndim)
    y = apply("matmul", a, b)
    gone = tuple(len(batch) + k for k, c in enumerate((rows, columns)) if not c)
    y = squeeze(y, gone) if gone else y
    order = batch + rows + columns
    return permute_dims(y, [order.index(c) for c in out])


def _place(x: Array, labels: str, full: str) -> Array:
    """Axes where `full` has them, of size 1 where `labels` lacks them."""
    x = permute_dims(x, [labels.index(c) for c in full if c in labels])
    missing = tuple(d for d, c in enumerate(full) if c not in labels)
    return expand_dims(x, axis=missing) if missing else x


@export
def tensordot(
    a: Operandish, b: Operandish, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """Sum over the last axes of a and the first of b, or over the pairs of axes that are given.

    >>> ost.tensordot(ost.ones((2, 3)), ost.ones((3, 2)), axes=1)
    Array([[3., 3.],
           [3., 3.]], dtype=float64)
    """
    a, b = unify(a, b)
    if isinstance(axes, tuple | list) and len(axes) == 2:
        over = tuple(
            [axis_of(d, x.ndim, "tensordot") for d in listed(own, "tensordot")]
            for own, x in zip(axes, (a, b), strict=True)
        )
    else:
        count = whole_number(axes, "tensordot")
        if not 0 <= count <= min(a.ndim, b.ndim):
            needed = f"0 to {min(a.ndim, b.ndim)}, as both have that many axes"
            raise misfit(ArgumentError, "tensordot", got=f"axes={count}", needed=needed)
        over = [*range(a.ndim - count, a.ndim)], [*range(count)]
    if any(len({*own}) < len(own) for own in over):
        raise misfit(ArgumentError, "tensordot", got=f"axes={axes}", needed="each axis once")
    if len(over[0]) != len(over[1]) or any(
        a.shape[i] != b.shape[j] for i, j in zip(*over, strict=True)
    ):
        got = f"{a.shape} and {b.shape} over {axes}"
        raise misfit(ShapeError, "tensordot", got=got, needed="pairs of axes of one extent")
    left = list(LETTERS[: a.ndim])
    right = list(LETTERS[a.ndim : a.ndim + b.ndim])
    for i, j in zip(*over, strict=True):
        right[j] = left[i]
    out = [c for c in (*left, *right) if (c in left) != (c in right)]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


@export
def vecdot(a: Operandish, b: Operandish, /, *, axis: int = -1) -> Array:
    """Sum of conj(a) * b along an axis.

    >>> ost.vecdot([[1, 2], [3, 4]], [1, 1])
    Array([3, 7], dtype=int64)
    """
    a, b = unify(a, b)
    axis_of(axis, min(a.ndim, b.ndim), "vecdot")
    d = axis if axis < 0 else axis - max(a.ndim, b.ndim)
    # the first axes of both, say, which do not lie upon each other
    if axis >= 0 and a.ndim != b.ndim:
        a, b, d = moveaxis(a, axis, -1), moveaxis(b, axis, -1), -1
    shape = broadcast("vecdot", a.shape, b.shape)
    if a.shape[d] != b.shape[d]:
        got = f"{a.shape} and {b.shape}"
        raise misfit(ShapeError, "vecdot", got=got, needed=f"the same extent along axis {axis}")
    return add_up(conj(a) * b, (d + len(shape),))


@export
def outer(a: Operandish, b: Operandish, /, out: Out = None) -> Array:
    """Each element of one array, flat, times each of the other.

    >>> ost.outer([1, 2], [3, 4])
    Array([[3, 4],
           [6, 8]], dtype=int64)
    """
    a, b = unify(a, b)
    a, b = (x if x.ndim == 1 else reshape(x, (-1,)) for x in (a, b))
    return put_out(expand_dims(a, axis=1) * expand_dims(b, axis=0), out, "outer")


# -- diagonals -----------------------------------------------------------------------------
def _diagonal_length(shape: Shape, offset: int) -> int:
    rows, columns = shape[-2:]
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


def _diagonal_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    n = ins[0].ndim
    labels = along((n - 2, n - 1), ins[0])
    return Indices((labels,), ((*labels[:-2], None),))


def _diagonal_grad(g: Array, y: Array, x: Array, *, offset: int) -> Sequence[Array | None]:
    """Each element back to its place: row i, column i + offset."""
    from .creation import eye
    from .elementwise import where

    side = x.shape[-2] if offset >= 0 else x.shape[-1]
    line = add_zeros(g, [(0, 0)] * (g.ndim - 1) + [(0, side - g.shape[-1])])
    wide = broadcast_to(expand_dims(line, axis=-1 if offset >= 0 else -2), x.shape)
    return (where(eye(x.shape[-2], x.shape[-1], offset, bool), wide, 0),)


def _diagonal_rule(x: Spec, *, offset: int) -> Spec:
    if x.ndim < 2:
        raise misfit(ShapeError, "diagonal", got=f"shape {x.shape}", needed="two axes or more")
    if not -x.shape[-2] <= offset <= x.shape[-1]:
        raise unfit("diagonal", (x,), f"a diagonal {offset}")
    return Spec((*x.shape[:-2], _diagonal_length(x.shape, offset)), x.dtype)


op(
    "diagonal",
    infer=_diagonal_rule,
    takes={"offset": whole(-FARTHEST)},
    indices=_diagonal_indices,
    view=lambda xp, x, at, *, offset: xp.diagonal(x, offset, -2, -1),
    grad=_diagonal_grad,
)


@export
def diagonal(x: Operandish, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonals of two axes: the first two, unless said otherwise, as in NumPy.

    `ost.linalg.diagonal` takes those of the last two.

    >>> ost.diagonal([[1, 2], [3, 4]])
    Array([1, 4], dtype=int64)
    """
    x = as_array(x)
    if x.ndim < 2:
        raise misfit(ShapeError, "diagonal", got=f"shape {x.shape}", needed="two axes or more")
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    k = diagonal_number(whole_number(offset, "diagonal"), x.shape, "diagonal")
    return apply("diagonal", x, offset=k)


@export
def trace(
    x: Operandish,
    /,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
) -> Array:
    """The sums of the diagonals of two axes: the first two, unless said otherwise, as in NumPy.

    `ost.linalg.trace` takes those of the last two.

    >>> ost.trace([[1, 2], [3, 4]])
    Array(5, dtype=int64)
    """
    from .reduction import sum

    return sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)
