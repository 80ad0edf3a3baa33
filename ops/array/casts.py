"""Dtypes: what names one, values in another one, and numbers as parts of a graph."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ostinato.errors import ArgumentError, DTypeError

from ..core import array
from ..core.apply import apply, as_array, unmasked
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.operand import Scalar
from ..core.parameters import DTYPE, NUMBER, check_value
from ..core.registry import Numbers, op
from ..core.spec import DTYPES, DType, DTypeLike, Spec, is_inexact
from ..core.user_line import misfit


def check_device(name: str, device: str | None) -> None:
    """Arrays live where their session's workers are."""
    here = array.reader.device
    if device not in (None, here):
        needed = f"{here!r} or None"
        raise misfit(ArgumentError, name, got=f"device={device!r}", needed=needed, do=_PLACED)


_PLACED = "arrays live where their session's workers are; see ost.connect"


def _astype_kernel(xp: Any, out: Any, x: Any, *, dtype: DType) -> None:
    xp.copyto(
        out, x.real if x.dtype.kind == "c" and dtype.kind not in "cb" else x, casting="unsafe"
    )


def _astype_rule(x: Spec, *, dtype: DType) -> Spec:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        got, do = f"{x.dtype.name} to {dtype.name}", "take ost.real(x) or abs(x) first"
        raise misfit(DTypeError, "astype", got=got, needed="a complex or bool dtype", do=do)
    return Spec(x.shape, dtype)


op(
    "astype",
    infer=_astype_rule,
    takes={"dtype": DTYPE},
    kernel=_astype_kernel,
    grad=lambda g, y, x, *, dtype: (g if is_inexact(x.dtype) else None,),
    scalar="cast({0})",
    converts=True,
)

_OURS = frozenset(DTYPES.values())


def as_dtype(dtype: Any) -> DType:
    """A dtype from whatever names one."""
    if isinstance(dtype, np.dtype) and dtype in _OURS:
        return dtype
    try:
        found = DTYPES[dtype] if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        got, needed = repr(dtype), "one of " + ", ".join(DTYPES)
        raise misfit(DTypeError, "dtype", got=got, needed=needed, do="pass e.g. ost.float32")
    return found


def number_of(name: str, value: Any, dtype: DType) -> Scalar:
    """A number as a dtype holds it."""
    unmasked(value, name)
    try:
        found = np.asarray(value).reshape(())[()]
        if np.iscomplexobj(found) and dtype.kind not in "cb":
            raise TypeError
        with np.errstate(all="ignore"):
            return cast(Scalar, dtype.type(found.item()).item())
    except (AttributeError, TypeError, ValueError, OverflowError):
        needed = f"one number that {dtype.name} can hold"
        raise misfit(DTypeError, name, got=f"the value {value!r:.60}", needed=needed) from None


def astype(
    x: Operandish, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None
) -> Array:
    """The values in another dtype, or the array itself (but see assigning.py)."""
    check_device("astype", device)
    x, dtype = as_array(x), as_dtype(dtype)
    return x if x.dtype == dtype else apply("astype", x, dtype=dtype)


# -- constants -----------------------------------------------------------------------------
def _constant_kernel(xp: Any, out: Any, *, value: Any, dtype: DType) -> None:
    out[...] = value


def _constant_rule(*, value: Scalar, dtype: DType) -> Spec:
    check_value("constant", value, dtype)
    return Spec((), dtype)


op(
    "constant",
    infer=_constant_rule,
    takes={"value": NUMBER, "dtype": DTYPE},
    kernel=_constant_kernel,
    source="value",
    numbers=Numbers("value", lambda builder, ins, by, **params: by[0]),
)
