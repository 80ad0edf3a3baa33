"""Functions of the user's own, in Python and NumPy, as operations of a plan.

What a function gives is declared, so a plan knows its shapes before it runs. The node names the
function by a word that only this process knows: nobody else's plan can call it, and a plan that
another process kept finds nothing under its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, GradientError

from .core.array import Array, apply_all
from .core.device import device_of
from .core.index import Indices
from .core.parameters import SHAPE, TEXT, Kind, unfit
from .core.registry import Params, Specs, op
from .core.spec import DTYPES, DType, Shape, Spec
from .core.user_line import misfit

_WORD = os.urandom(8).hex()
_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # for as long as the process, as plans name them
_NAMES: dict[int, str] = {}
_count = itertools.count(1)
_SHAPES = Kind(
    "a tuple of shapes", lambda v, ins: type(v) is tuple and all(SHAPE.fits(s, ins) for s in v)
)
_DTYPES = Kind("a tuple of dtypes", lambda v, _: type(v) is tuple and {*v} <= {*DTYPES.values()})


def known(function: Callable[..., Any]) -> str:
    """The name under which plans of this process call a function."""
    name = _NAMES.get(id(function))
    if name is None:
        said = getattr(function, "__name__", "function")
        name = _NAMES[id(function)] = f"{said} {_WORD}-{next(_count)}"
        _FUNCTIONS[name] = function
    return name


def _rule(
    *xs: Spec, calls: str, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]
) -> tuple[Spec, ...]:
    if calls not in _FUNCTIONS or len(shapes) != len(dtypes) or not shapes:
        raise unfit("callback", xs, "a function of this process, and what it gives", ArgumentError)
    return tuple(Spec(s, d) for s, d in zip(shapes, dtypes, strict=True))


def _whole(ins: Specs, outs: Specs, p: Params) -> Indices:
    return Indices(tuple((None,) * s.ndim for s in ins), tuple((None,) * s.ndim for s in outs))


def _kernel(
    xp: Any,
    out: Any,
    *xs: Any,
    calls: str,
    shapes: tuple[Shape, ...],
    dtypes: tuple[DType, ...],
) -> None:
    outs = [out] if len(shapes) == 1 else list(out)
    given = []
    for x in xs:
        own = device_of(x).to_host(x).view()
        own.flags.writeable = False
        given.append(own)
    try:
        made = _FUNCTIONS[calls](*given)
    except Exception as error:
        raise RuntimeError(f"{calls.split()[0]} raised {type(error).__name__}: {error}") from error
    found = [np.asarray(y) for y in (made if isinstance(made, (list, tuple)) else (made,))]
    fits = len(found) == len(shapes) and all(
        y.shape == s and np.can_cast(y.dtype, d, "same_kind")
        for y, s, d in zip(found, shapes, dtypes, strict=True)
    )
    if not fits:
        said = " and ".join(f"{y.dtype}{list(y.shape)}" for y in found)
        wanted = " and ".join(f"{d}{list(s)}" for s, d in zip(shapes, dtypes, strict=True))
        raise TypeError(f"{calls.split()[0]} gave {said}, and was declared to give {wanted}")
    for y, place in zip(found, outs, strict=True):
        if place is not None:
            place[...] = device_of(place).from_host(y.astype(place.dtype, copy=False))


def _grad(g: Any, y: Any, *xs: Array, calls: str, **_: Any) -> Sequence[Array | None]:
    raise misfit(
        GradientError,
        f"gradient of callback({calls.split()[0]})",
        got="a function in Python, whose slopes nobody knows",
        needed="its gradient",
        do="pass gradient=, which is given cotangents and arguments, or cut it off with "
        "ost.stop_gradient",
    )


op(
    "callback",
    infer=_rule,
    takes={"calls": TEXT, "shapes": _SHAPES, "dtypes": _DTYPES},
    indices=_whole,
    kernel=_kernel,
    by_host=True,
    grad=_grad,
)


def called_back(
    function: Callable[..., Any], specs: Sequence[Spec], xs: Sequence[Array]
) -> tuple[Array, ...]:
    """The results of the function, as pending Arrays."""
    return apply_all(
        "callback",
        *xs,
        calls=known(function),
        shapes=tuple(s.shape for s in specs),
        dtypes=tuple(s.dtype for s in specs),
    )
