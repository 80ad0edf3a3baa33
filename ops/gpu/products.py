"""Products of matrices on a GPU, by cuBLASLt or by a kernel of our own (loops/tiles.py): which matrices of the
library's a product is, as operands and results lie, and the function that runs it.

What the library cannot read where it lies (no axis of a matrix has neighbours side by side, or rows
overlap) is copied in order first; what it refuses altogether is CuPy's `matmul`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ostinato.ops.array.contraction import Folds
from ostinato.ops.core.device import Function
from ostinato.ops.core.registry import OPS, Scratch
from ostinato.ops.core.spec import Shape, Spec, float32, int8, strided_like
from ostinato.ops.jit.stacks import Stack, stacked, transposed

from .libraries.cublaslt import (
    ALIGNED,
    BIAS,
    SCALES,
    WORKSPACE,
    Library,
    Matrix,
    Prepared,
    Problem,
    item,
)
from .loops import tiles
from .loops.text import Kernel

# Of matrices; where windows are, cuBLASLt has no call.
PRODUCTS = tuple([n for n, op in OPS.items() if op.product is not None and not op.run.placed])
WAYS = tuple([f"algorithm {n}" for n in range(1, 9)])  # as the library ranks them
TILES = "tiles"  # our own kernel
MIN_WORKSPACE_BYTES, MAX_WORKSPACE_BYTES = 1 << 20, 1 << 25  # bytes of a workspace
PARTS = 16  # of a sum that are kept at once: what splits it needs a result's memory for each
WITH_EPILOGUES = ("float32", *SCALES)
_MASK = ALIGNED - 1


@dataclass(frozen=True, slots=True)
class Launching:
    """Makes functions of kernels, and says of which card."""

    of: Callable[[Kernel], Function]
    rates: tiles.TileRates


def room(ins: Sequence[Shape], outs: Sequence[Shape], specs: Sequence[Spec]) -> Sequence[Scratch]:
    """A workspace for a product of these; of what is tiny, no more than all of its arrays take."""
    size = PARTS * math.prod(outs[0]) * max(4, specs[-1].dtype.itemsize)
    given = sum(math.prod(n) * s.dtype.itemsize for n, s in zip((*ins, *outs), specs, strict=False))
    tiny = given <= MIN_WORKSPACE_BYTES // PARTS
    size = min(size, given) if tiny else max(size, MIN_WORKSPACE_BYTES)
    return [Scratch((min(MAX_WORKSPACE_BYTES, size) + WORKSPACE,), int8)]


def ways(specs: Sequence[Spec], rates: tiles.TileRates) -> Sequence[str]:
    """List the ways of a product of these; the first is what the rules take."""
    like = [strided_like(s.shape, s.dtype) for s in specs]
    stacks = None if any(s.pending for s in specs) else stacked(*like)
    if stacks is None or {s.dtype for s in stacks} != {stacks[2].dtype}:
        return WAYS
    a, b, d = stacks
    extents = *a.shape[-2:][::-1], math.prod(d.shape[:-2])
    k, m, count = extents
    problem = m, b.shape[-1], k, count, d.dtype, rates
    if d.dtype not in tiles.DTYPES or not d.size or tiles.fastest(*problem) is None:
        return WAYS
    return (TILES, *WAYS) if tiles.tiling_of(*problem) is not None else (*WAYS, TILES)


def tiled_product(
    launching: Launching | None,
    stacks: Sequence[Stack] | None,
    way: str = "",
    behind: tiles.Behind | None = None,
    made: tuple[tiles.Made | None, tiles.Made | None] = (None, None),
) -> Function | None:
    """Make our kernel of a product, with what is made as it is read and written, if it is the way or, where
    none was chosen, clearly faster than the library."""
    if launching is None or stacks is None or way not in ("", TILES) or not stacks[2].size:
        return None
    a, b, d = stacks
    tiling: tiles.Tiling | tiles.TileRates = launching.rates
    if way == TILES:
        m, n, k, count = a.shape[-2], b.shape[-1], a.shape[-1], math.prod(d.shape[:-2])
        blocks = behind.blocks if behind is not None else 1
        found = tiles.fastest(m, n, k, count, a.dtype, launching.rates, False, blocks)
        if found is None:
            return None
        tiling = found[1]
    kernel = tiles.kernel_of(a, b, d, behind, tiling, made)
    return launching.of(kernel) if kernel is not None else None


# -- as the library counts -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ProductKey:
    """A product of arrays that lie in one way. `turned`: it is that of the transposes, whose left matrix
    is our right one. `starts`: where each stack begins, in bytes: of left, right, result, and what is
    added. `biases`: ways to add a bias to the columns, too, the best first."""

    problem: Problem
    turned: bool
    starts: tuple[tuple[int, int, int, int], ...]
    biases: tuple[Problem, ...] = ()

    @property
    def is_aligned(self) -> bool:
        """Whether all matrices begin at aligned addresses if the arrays do."""
        p = self.problem
        batches = [m.batch * item(m.dtype) for m in (p.a, p.b, p.d, p.c or p.d)]
        return not any(n & _MASK for own in (*self.starts, batches) for n in own)


def product_key(
    a: Stack,
    b: Stack,
    d: Stack,
    c: Stack | None = None,
    *,
    tf32: bool = False,
    epilogue: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    aux: int = 0,
) -> ProductKey | None:
    """The product as it is by columns, or that of the transposes; None where the library cannot read a
    matrix, or write the result."""
    turned = d.strides[-1] == 1 or d.shape[-1] == 1
    given = (b, a, d, c or d) if turned else (a, b, d, c or d)
    stacks = [transposed(x) if turned else x for x in given]
    outer = range(len(d.shape) - 2)
    along = max(outer, key=lambda axis: d.shape[axis], default=-1)  # the axis of a stack
    found = []
    for k, x in enumerate(stacks):
        matrix = _matrix(x, may_turn=k < 2)
        if matrix is None:
            return None
        if along >= 0:
            matrix = replace(matrix, batch=x.strides[along])
        if matrix.batch < 0:
            return None
        found.append(matrix)
    others = [axis for axis in outer if axis != along]
    starts = []
    for place in itertools.product(*(range(d.shape[axis]) for axis in others)):
        at = [
            sum(n * x.strides[axis] for n, axis in zip(place, others, strict=True))
            * item(x.dtype.name)
            for x in stacks
        ]
        starts.append((at[0], at[1], at[2], at[3]))
    first, second, made, added = found
    problem = Problem(
        first,
        second,
        made,
        d.shape[along] if along >= 0 else 1,
        None if c is None else added,
        alpha=alpha,
        beta=beta,
        epilogue=epilogue,
        aux=aux,
        tf32=tf32,
    )
    return ProductKey(problem, turned, tuple(starts), _biases(problem) if turned else ())


def _matrix(x: Stack, may_turn: bool) -> Matrix | None:
    """The last two axes as a matrix by columns, or its transpose as one; None if neither is. A matrix of
    one row or column lies in either way."""
    (rows, columns), (down, along) = x.shape[-2:], x.strides[-2:]
    for height, width, near, far, turned in (
        (rows, columns, down, along, False),
        (columns, rows, along, down, True),
    ):
        step = far if width > 1 else height
        if (near == 1 or height == 1) and step >= height and (may_turn or not turned):
            return Matrix(height, width, step, x.dtype.name, turned)
    return None


def _biases(problem: Problem) -> tuple[Problem, ...]:
    """By the library's epilogue, or as a matrix to add whose columns are all the same."""
    found = []
    if problem.d.dtype in WITH_EPILOGUES:
        found.append(replace(problem, epilogue=problem.epilogue | BIAS))
    if problem.c is None:
        same = replace(problem.d, step=0, batch=0)
        found.append(replace(problem, c=same, beta=1.0))
    return tuple(found)


# -- functions ---------------------------------------------------------------------------------
class ProductRun:
    """Multiplies arrays that lie in one way; tells whether the library did."""

    def __init__(
        self, library: Library, form: ProductKey, scratch: Sequence[Any], way: str
    ) -> None:
        self.library, self.form = library, form
        self.nth = WAYS.index(way) if way in WAYS else 0
        self.workspace = self.room = 0
        self.scratch = scratch
        if scratch:
            start = scratch[0].data.ptr
            self.workspace = -(-start // WORKSPACE) * WORKSPACE
            self.room = max(0, start + scratch[0].nbytes - self.workspace)
        self.is_aligned = form.is_aligned
        self.known: dict[tuple[bool, ...], Prepared | None] = {}  # by what is aligned, and read

    def __call__(
        self, a: Any, b: Any, d: Any, c: Any = None, bias: Any = None, aux: Any = None,
        sums: Any = None,
    ) -> bool:  # fmt: skip
        left, right = (b, a) if self.form.turned else (a, b)
        at_a, at_b, at_d = left.data.ptr, right.data.ptr, d.data.ptr
        at_c = c.data.ptr if c is not None else at_d
        at_bias = bias.data.ptr if bias is not None else 0
        at_aux, at_sums = (x.data.ptr if x is not None else 0 for x in (aux, sums))
        if (at_aux | at_sums) & _MASK:
            return False
        aligned = self.is_aligned and not (at_a | at_b | at_c | at_d) & _MASK
        key = aligned, not at_bias & _MASK, bias is not None
        if key not in self.known:
            self.known[key] = self._prepared(*key)
        run = self.known[key]
        if run is None:
            return False
        for i, j, k, n in self.form.starts:
            added = at_bias if run.adds_bias else at_c + n
            vector = at_bias or at_sums
            run(at_a + i, at_b + j, at_d + k, added, vector, self.workspace, self.room, at_aux)
        return True

    def has_algorithm(self, bias: bool) -> bool:
        """For arrays that are aligned, with a workspace."""
        self.room = MAX_WORKSPACE_BYTES
        return self._prepared(True, True, bias) is not None

    def _prepared(self, aligned: bool, bias_aligned: bool, bias: bool) -> Prepared | None:
        """The first that the library has an algorithm for. Whether a bias is aligned is nothing that it
        can be told."""
        for problem in self.form.biases if bias else (self.form.problem,):
            by_epilogue = bool(problem.epilogue & BIAS)
            if by_epilogue and not bias_aligned:
                continue
            all_aligned = aligned and (bias_aligned or not bias)
            made = Prepared(self.library, problem, self.room, all_aligned, self.nth)
            if made.works:
                made.adds_bias = bias and not by_epilogue
                return made
        return None


def product(
    library: Library,
    xp: Any,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    *,
    way: str = "",
    tf32: bool = False,
    launching: Launching | None = None,
    **_: Any,
) -> Function:
    """The function of two operands and a result that lie so. `launching`: what makes functions of kernels,
    where these are ours, too."""
    if arrays[2].size == 0 or arrays[0].size == 0:
        return lambda a, b, out: out.fill(0)
    if not tf32:
        own = tiled_product(launching, stacked(*map(layout_like, arrays)), way)
        if own is not None:
            return own
    for copied in _COPIES:
        stacks = stacked(*(layout_like(x, c) for x, c in zip(arrays, copied, strict=True)))
        form = product_key(*stacks, tf32=tf32) if stacks is not None else None
        if form is not None:
            break
    assert form is not None
    run = ProductRun(library, form, scratch, way)
    copies_a, copies_b, copies_out = copied

    def multiply(a: Any, b: Any, out: Any) -> None:
        left = xp.ascontiguousarray(a) if copies_a else a
        right = xp.ascontiguousarray(b) if copies_b else b
        made = xp.empty(out.shape, out.dtype) if copies_out else out
        if not run(left, right, made):
            library.refuses(form.problem)
            multiply_wide(xp, left, right, made)
        if copies_out:
            xp.copyto(out, made)

    return multiply


def layout_like(x: Any, in_order: bool = False) -> Any:
    """Without memory: as it lies, or as its copy does."""
    return strided_like(x.shape, x.dtype, None if in_order else x.strides)


_COPIES = tuple(itertools.product((False, True), repeat=3))


def multiply_wide(xp: Any, a: Any, b: Any, out: Any) -> None:
    """As CuPy does it: halves in float32."""
    wide = float32 if a.dtype.name in SCALES else a.dtype
    made = xp.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    xp.copyto(out, made, casting="unsafe")


def einsum(
    library: Library,
    xp: Any,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    *,
    text: str,
    **how: Any,
) -> Function:
    """A product of matrices, which are copies only where they must be."""
    folds = Folds(text, *arrays[:2])
    like, views = [], []
    for k, x in enumerate(arrays):
        seen = _as_matrices(folds, k, x)
        views.append(seen is not None)
        like.append(strided_like(folds.shape(k), x.dtype) if seen is None else seen)
    run = product(library, xp, like, scratch, **how)

    def multiply(a: Any, b: Any, out: Any) -> None:
        left, right = folds.matrices(0, a), folds.matrices(1, b)
        made = folds.matrices(2, out) if views[2] else xp.empty(folds.shape(2), out.dtype)
        run(left, right, made)
        if not views[2]:
            xp.copyto(out, folds.unfold(made))

    return multiply


def _as_matrices(folds: Folds, k: int, x: Any) -> Any:
    """Without memory, as it lies; None if that needs a copy."""
    try:
        return np.reshape(folds.ordered(k, layout_like(x)), folds.shape(k), copy=False)
    except ValueError:
        return None
