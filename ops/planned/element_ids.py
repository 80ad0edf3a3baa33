"""Which element is which, in kernels: numbers of elements that have no memory.

first_number    for each worker the number of its first element, where that depends on the worker
numbers         a look at it: from one element to the next along an axis so many bytes as its number
                grows. Nobody may read there; a kernel finds an element's number from its address
counted         these numbers as values: what `iota` has, and its slices and other looks at it"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.index import Indices
from ..core.parameters import DTYPE, PLACES, SHAPE, STRIDES
from ..core.registry import Params, Place, Specs, op, stream_cost
from ..core.spec import DType, Shape, Spec, int64


def _numbers_view(xp: Any, x: Any, at: Place, *, shape: Shape, steps: Sequence[int]) -> Any:
    local = [hi - lo for lo, hi in at.outs[0]]
    return xp.lib.stride_tricks.as_strided(x, local, list(steps))  # CuPy knows no more


def _first_number(xp: Any, out: Any, *, numbers: Sequence[int], at: Place) -> None:
    out[...] = numbers[at.outs[0][0][0]]


def _without_labels(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices(((None,),) * len(ins), ((None,) * outs[0].ndim,))


op(  # of each worker's first element
    "first_number",
    infer=lambda *, numbers: Spec((len(numbers),), int64),
    takes={"numbers": PLACES},
    made_by="machine",
    indices=_without_labels,
    kernel=_first_number,
    placed=True,
)
op(
    "numbers",
    infer=lambda first, *, shape, steps: Spec(shape, int64),
    takes={"shape": SHAPE, "steps": STRIDES},
    made_by="machine",
    indices=_without_labels,
    view=_numbers_view,
)


def _counted_kernel(xp: Any, out: Any, numbers: Any, *, dtype: DType) -> None:
    """As kernels in registers have them, by NumPy."""
    if not out.size:
        return
    found = xp.asarray(numbers[(0,) * numbers.ndim])
    for d, (n, step) in enumerate(zip(numbers.shape, numbers.strides, strict=True)):
        if n > 1 and step:
            found = found + (xp.arange(n) * step).reshape((-1,) + (1,) * (numbers.ndim - d - 1))
    xp.copyto(out, found, casting="unsafe")


op(
    "counted",
    infer=lambda numbers, *, dtype: Spec(numbers.shape, dtype),
    takes={"dtype": DTYPE},
    made_by="machine",
    kernel=_counted_kernel,
    scalar="cast({0})",
    cost=stream_cost(1),
)
