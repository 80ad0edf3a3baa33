"""What factorizations.py, spectral.py and blocked.py share: rules for stacks of matrices."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from ostinato.ops.array.arithmetic import conj
from ostinato.ops.array.creation import eye
from ostinato.ops.array.shape import expand_dims, matrix_transpose
from ostinato.ops.core.device import device_of
from ostinato.ops.core.index import LETTERS, Indices, along
from ostinato.ops.core.registry import Params, Specs
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.user_line import misfit

from ostinato.errors import DTypeError, ShapeError

from ..core.apply import apply
from ..core.array import Array

WHOLE = ("float32", "float64", "complex64", "complex128")


# -- rules -----------------------------------------------------------------------------------
def matrix(
    name: str, x: Spec, square: bool = False, dtypes: Collection[str] | None = WHOLE
) -> Spec:
    """A stack of matrices of a dtype that can be factorized, or an error."""
    if dtypes is not None and x.dtype.name not in dtypes:
        needed = "float32, float64, complex64 or complex128"
        do = "convert it first, e.g. x.astype(ost.float64)"
        raise misfit(DTypeError, name, got=str(x.bare), needed=needed, do=do)
    if x.ndim < 2:
        raise misfit(ShapeError, name, got=str(x.bare), needed="a matrix: two axes or more")
    if square and x.shape[-1] != x.shape[-2]:
        needed = "square matrices: the last two axes of one extent"
        raise misfit(ShapeError, name, got=str(x.bare), needed=needed)
    return x


def one_matrix(name: str, x: Spec) -> Spec:
    """Two axes, and such a dtype."""
    if matrix(name, x).ndim != 2:
        raise misfit(ShapeError, name, got=str(x.bare), needed="one matrix")
    return x


def whole(ins: Specs, outs: Specs, p: Params) -> Indices:
    """Leading axes are parallel, those of the matrices whole."""
    batch = ins[0].ndim - 2
    lead = tuple(LETTERS[:batch])
    found = tuple(lead + (None,) * (s.ndim - batch) for s in outs)
    return Indices((along((batch, batch + 1), ins[0]),), found)


def cubic(factor: float) -> Callable[[Specs, Specs, Params], tuple[float, float]]:
    def cost(ins: Specs, outs: Specs, p: Params) -> tuple[float, float]:
        *batch, m, n = ins[0].shape
        flops = factor * math.prod(batch) * m * n * min(m, n)
        return flops, float(sum_bytes(ins, outs))

    return cost


def sum_bytes(ins: Specs, outs: Specs) -> int:
    return sum(s.nbytes for s in (*ins, *outs))


def each(x: Any, *others: Any) -> Iterator[tuple[Any, ...]]:
    """The matrices of a stack, each with its own part of what else there is; None stays None."""
    for place in np.ndindex(x.shape[:-2]):
        at = (*place, ...)
        yield tuple(None if y is None else y[at] for y in (x, *others))


MAX_NUMPY_ROWS = 256  # rows and columns of matrices that NumPy's own functions are quicker for


def is_one_call(x: Any) -> bool:
    """Whether to leave a stack of matrices to one call of xp.linalg."""
    return max(x.shape[-2:]) <= MAX_NUMPY_ROWS


@contextlib.contextmanager
def factoring(x: Any, otherwise: str) -> Iterator[None]:
    """Say this of matrices that `xp.linalg` finds to have no such factors."""
    try:
        with device_of(x).factoring(otherwise):
            yield
    except np.linalg.LinAlgError:
        raise np.linalg.LinAlgError(otherwise) from None


def turned(x: Any) -> Any:
    """The adjoint of each matrix of a stack."""
    return x.conj().swapaxes(-1, -2)


def put(xp: Any, out: Any, value: Any) -> None:
    if out is not None:
        xp.copyto(out, value, casting="unsafe")


def bar_of(g: Array | None) -> Array | None:
    return None if g is None else conj(g)


def adjoint(x: Array) -> Array:
    return conj(matrix_transpose(x))


def as_diagonal(x: Array) -> Array:
    """Vectors as diagonal matrices."""
    return expand_dims(x, axis=-1) * eye(x.shape[-1], dtype=x.dtype)


def diagonal_of(x: Array) -> Array:
    return apply("diagonal", x, offset=0)


def is_tall(m: int, n: int) -> bool:
    return m >= 4 * n > 0
