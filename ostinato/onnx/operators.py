"""The table of operators, and what their functions have in common.

A function takes the node's attributes as `at`, and its inputs: NumPy arrays where values are known on the
host, ours elsewhere, lists for sequences, None for what is left out. `at.xp` is NumPy if all are known, so that
shapes and what else is small are computed while tracing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import helper, numpy_helper

import ostinato as ost
from ostinato.errors import MemoryLimitError
from ostinato.ops.core.spec import DTYPES, is_float
from ostinato.ops.core.user_line import misfit

from .model_file import LIMITS, Known, ModelGraph, ModelNode

Value: TypeAlias = Any  # known, an Array, a list of such, or None
Operator = Callable[..., Value]

TABLE: dict[tuple[str, str], Operator] = {}  # by domain and name
READS: dict[tuple[str, str], tuple[int, ...]] = {}  # inputs whose values decide shapes


class NodeCall:
    """A node that is evaluated: its attributes, and who evaluates graphs within it."""

    __slots__ = ("known", "node", "run", "xp")

    def __init__(
        self,
        node: ModelNode,
        known: bool,
        run: Callable[[ModelGraph, Sequence[Value]], list[Value]],
    ) -> None:
        self.node = node
        self.known = known
        self.xp: Any = np if known else ost
        self.run = run

    @property
    def version(self) -> int:
        """The opset in which the operator became what it is here."""
        return self.node.version

    @property
    def results(self) -> int:
        return len(self.node.outputs)

    def wants(self, k: int) -> bool:
        """Whether somebody may read result k."""
        return k < len(self.node.outputs) and bool(self.node.outputs[k])

    def __getitem__(self, name: str) -> Any:
        return self.node.attributes[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.node.attributes.get(name, otherwise)


def operator(
    *names: str, reads: Sequence[int] = (), domain: str = ""
) -> Callable[[Operator], Operator]:
    """Enters a function into the table."""

    def enter(function: Operator) -> Operator:
        for name in names:
            TABLE[domain, name] = function
            READS[domain, name] = tuple(reads)
        return function

    return enter


# -- values ----------------------------------------------------------------------------------
def is_known(x: Value) -> bool:
    return isinstance(x, np.ndarray)


def is_ours(dtype: np.dtype[Any]) -> bool:
    """Whether our arrays may have it."""
    return dtype.name in DTYPES


def known(x: Value) -> Known:
    """The values of an array, which have to be known."""
    return x if isinstance(x, np.ndarray) else np.asarray(x)


def whole_numbers(x: Value) -> list[int]:
    return [int(n) for n in known(x).reshape(-1)]


def number(x: Value) -> Any:
    """The only element of an array, as Python has it."""
    return known(x).reshape(-1)[0].item()


def attribute_or_input(at: NodeCall, name: str, given: Value) -> list[int] | None:
    """Whole numbers that older opsets have as an attribute and newer ones as an input."""
    if given is not None:
        return whole_numbers(given)
    found = at.get(name)
    return list(found) if found is not None else None


def dtype_of(kind: int) -> np.dtype[Any]:
    """By ONNX's number."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def cast(x: Value, dtype: np.dtype[Any]) -> Value:
    """In a dtype, whatever either is; those that our arrays do not have are known values."""
    if x.dtype == dtype:
        return x
    if is_known(x) or not is_ours(dtype):
        with np.errstate(all="ignore"):
            return known(x).astype(dtype)
    return ost.astype(x, dtype)


def saturated(x: Value, dtype: np.dtype[Any]) -> Value:
    """In a dtype of 8 bits, the largest number for what is larger."""
    return numpy_helper.saturate_cast(known(x), dtype)


def ours(x: Value) -> Any:
    """As an Array."""
    if isinstance(x, np.ndarray) and not is_ours(x.dtype):
        x = x.astype(np.float32 if is_float(x.dtype) or x.dtype.kind == "V" else np.int32)
    return ost.asarray(x)


def bounded(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """A shape that a file asks for; nothing that is larger than any memory."""
    shape = tuple(map(int, shape))
    if math.prod(shape) * dtype.itemsize > 1 << 48 or any(n < 0 for n in shape):
        got = f"a tensor of shape {shape}"
        raise misfit(MemoryLimitError, "from_onnx", got=got, needed="less memory")
    return shape


def filled(shape: Sequence[int], value: Any, dtype: np.dtype[Any]) -> Value:
    """Equal elements: known if they are few."""
    shape = bounded(shape, dtype)
    if math.prod(shape) <= LIMITS.folded or not is_ours(dtype):
        if math.prod(shape) * dtype.itemsize > LIMITS.tensor:
            got = f"{dtype.name} {shape}"
            raise misfit(MemoryLimitError, "from_onnx", got=got, needed="less memory")
        return np.full(shape, value, dtype)
    return ost.full(shape, value, dtype=dtype)


def space_for(at: NodeCall, elements: int) -> Any:
    """NumPy if all that is read is known, and what is made is small."""
    return np if at.known and elements <= LIMITS.folded else ost


def axes_of(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    found = []
    for d in axes:
        if not -ndim <= d < ndim:
            raise ValueError(f"axis {d} of an array of {ndim} axes")
        found.append(d % ndim)
    return tuple(found)
