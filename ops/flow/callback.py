"""Functions of the user's own, in Python and NumPy, as operations of a plan; and what prints.

What a function gives is declared, so a plan knows its shapes before it runs. The node names the
function by a word that only this process knows: nobody else's plan can call it, and a plan that
another process kept finds nothing under its own. The name of a node that a user's code made holds
the function (`Called`); plans in caches have the name alone (`name_functions`), so that a function goes
with who holds it, and with what was made of it."""

from __future__ import annotations

import builtins
import itertools
import os
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from string import Formatter
from types import MethodType
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, GradientError

from ..core.apply import act, acted, apply, apply_all, constant
from ..core.array import Array
from ..core.device import device_of
from ..core.graph import Graph
from ..core.index import opaque
from ..core.parameters import SHAPE, Kind, unfit
from ..core.registry import Place, Specs, op
from ..core.spec import DTYPES, DType, Shape, Spec, bool_
from ..core.user_line import misfit

_WORD = os.urandom(8).hex()
_functions: dict[str, Callable[[], Callable[..., Any] | None]] = {}  # as plans name them
_names: dict[Any, str] = {}  # by function, or object and method
_SWEEP_FROM = 64  # functions, of which those that are gone are looked for
_count = itertools.count(1)
_SHAPES = Kind(
    "a tuple of shapes", lambda v, ins: type(v) is tuple and all(SHAPE.fits(s, ins) for s in v)
)
_DTYPES = Kind("a tuple of dtypes", lambda v, _: type(v) is tuple and {*v} <= {*DTYPES.values()})


_CALLS = Kind("text", lambda v, _: isinstance(v, str))


class Called(str):
    """The name of a function, which holds it."""

    function: Callable[..., Any]


def known(function: Callable[..., Any]) -> Called:
    """The name under which plans of this process call a function, the same as long as that is there."""
    key: Any = id(function)
    if is_method := isinstance(function, MethodType):
        key = id(function.__self__), id(function.__func__)
    name = _names.get(key)
    there = None if name is None else _function(name)
    if name is None or not (there is function or (is_method and there == function)):
        if len(_functions) >= _SWEEP_FROM and len(_functions) & (len(_functions) - 1) == 0:
            _forget()
        said = getattr(function, "__name__", "function")
        name = f"{said} {_WORD}-{next(_count)}"
        try:
            _functions[name] = weakref.WeakMethod(function) if is_method else weakref.ref(function)
        except TypeError:  # of what cannot be held so, as ufuncs
            _functions[name] = lambda: function
        _names[key] = name
    found = Called(name)
    found.function = function
    return found


def _function(name: str) -> Callable[..., Any] | None:
    held = _functions.get(name)
    return None if held is None else held()


def _forget() -> None:
    """Names of functions that are gone."""
    for name in [name for name, held in list(_functions.items()) if held() is None]:
        _functions.pop(name, None)
    for key in [key for key, name in list(_names.items()) if name not in _functions]:
        _names.pop(key, None)


def name_functions(graph: Graph) -> Graph:
    """The graph with functions named, and not held; itself where it has none."""
    nodes, is_same = [], True
    for node in graph.nodes if _names else ():
        params = tuple((k, _named(v)) for k, v in node.params)
        same = all(v is w for (_, v), (_, w) in zip(params, node.params, strict=True))
        nodes.append(node if same else replace(node, params=params, key=None))
        is_same = is_same and same
    return graph if is_same else Graph(graph.inputs, tuple(nodes), graph.outputs)


def _named(value: Any) -> Any:
    if isinstance(value, Graph):
        return name_functions(value)
    return str(value) if isinstance(value, Called) else value


def _rule(
    *xs: Spec, calls: str, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]
) -> tuple[Spec, ...]:
    if _function(calls) is None or len(shapes) != len(dtypes) or not shapes:
        raise unfit("callback", xs, "a function of this process, and what it gives", ArgumentError)
    return tuple(Spec(s, d) for s, d in zip(shapes, dtypes, strict=True))


def _kernel(
    xp: Any, out: Any, *xs: Any, calls: str, shapes: tuple[Shape, ...], dtypes: tuple[DType, ...]
) -> None:
    outs = [out] if len(shapes) == 1 else list(out)
    given = []
    for x in xs:
        own = device_of(x).to_host(x).view()
        own.flags.writeable = False
        given.append(own)
    function = _function(calls)
    assert function is not None, f"{calls.split()[0]}, which is in another process"
    try:
        made = function(*given)
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
    takes={"calls": _CALLS, "shapes": _SHAPES, "dtypes": _DTYPES},
    indices=opaque,
    kernel=_kernel,
    host_callback=True,
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


# -- printing --------------------------------------------------------------------------------
# Its first operand orders: what was to happen before comes before it. Its result says that it was.
_FORM = re.compile(r"(.?[<>=^])?[-+ ]?z?#?0?\d{0,3}[_,]?(\.\d{1,3})?[a-zA-Z%]?", re.DOTALL)


def _is_text(text: Any, ins: Specs) -> bool:
    """Whether each field is an operand's number, with a format of an element or none."""
    if type(text) is not str:
        return False
    try:
        fields = [(name, form or "", how) for _, name, form, how in Formatter().parse(text)]
    except ValueError:
        return False
    numbers = {str(k) for k in range(len(ins) - 1)}
    return all(
        name is None or (name in numbers and _FORM.fullmatch(form) and how is None)
        for name, form, how in fields
    )


class _Printed:
    """An array of which each element has a format."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x

    def __format__(self, form: str) -> str:
        if not form:
            return str(self.x)
        x = self.x.astype(np.float32) if self.x.dtype.kind == "V" else self.x  # bfloat16
        if not x.ndim:
            return format(x[()], form)
        return np.array2string(x, formatter={"all": lambda v: format(v, form)})


def _print_rule(token: Spec, *xs: Spec, text: str) -> Spec:
    if token.bare != Spec((), bool_):
        raise unfit("print", (token, *xs), "a bool[] that orders")
    return token.bare


def _print_kernel(xp: Any, out: Any, token: Any, *xs: Any, text: str, at: Place) -> None:
    if at.first:
        found = [_Printed(device_of(x).to_host(x)) for x in xs]
        try:
            line = text.format(*found)
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"{text!r:.60}: {error}") from error
        builtins.print(line, flush=True)
    out[...] = False


op(
    "print",
    infer=_print_rule,
    takes={"text": Kind("text with numbers of operands, such as '{0:.3f}'", _is_text)},
    indices=opaque,
    kernel=_print_kernel,
    placed=True,
    host_callback=True,
)


def printed(text: str, xs: Sequence[Array]) -> None:
    """Print this when what is traced runs, or else now."""
    act(apply("print", acted(constant(False)), *xs, text=text))
