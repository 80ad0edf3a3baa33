"""Looking into compiled code while it runs: what it computes, and where NaN comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato import settings
from ostinato.errors import ArgumentError, SessionError
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spelling import missing
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import flatten, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.flow.callback import printed
from ostinato.runtime.engine import LocalEngine
from ostinato.runtime.worker import bind_anew

from .sessions import here

__all__ = ["nans", "print"]

_OPEN, _CLOSE = "\ue000", "\ue001"  # around a number of an operand; in no text of people's
_BRACES = {
    **{ord(brace): 2 * brace for brace in "{}"},
    **{ord(mark): brace for mark, brace in zip(_OPEN + _CLOSE, "{}", strict=True)},
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("debug")


class _Field:
    """Stands for an array while its text is made."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = False

    def __format__(self, form: str) -> str:
        self.used = True
        return f"{_OPEN}{self.number}{':' * bool(form)}{form}{_CLOSE}"

    def __repr__(self) -> str:
        return format(self)


@door
def print(text: str, /, *args: Any, **kwargs: Any) -> None:
    """Print text with values, as `text.format(*args, **kwargs)`, each time that it runs: within
    compiled functions, loops, conditions, gradients and `vmap`, in the order in which it was asked
    for, and whether or not anything is made of it. Outside of them it prints at once.

    A format such as `{:.3f}` is that of each element. Several workers print once, by the first of
    them, where that runs: of a Dask cluster, in its log. `vmap` prints for each element. What gradients
    compute again is not printed again.

    >>> @ost.compile
    ... def half(x):
    ...     ost.debug.print("x is {}, its sum {total:.1f}", x, total=x.sum())
    ...     return x / 2
    >>> half(ost.arange(3.0))
    x is [0. 1. 2.], its sum 3.0
    Array([0. , 0.5, 1. ], dtype=float64)
    """
    if not isinstance(text, str):
        raise misfit(
            ArgumentError,
            "debug.print",
            got=f"a {type(text).__name__} where the text is",
            needed="text, and values behind it",
            do="write ost.debug.print('{}', x)",
        )
    leaves, structure = flatten((args, kwargs))
    arrays: list[Array] = []
    fields: list[_Field] = []
    for k, x in enumerate(leaves):
        if isinstance(x, (Array, np.ndarray, np.number, np.bool_)):
            leaves[k] = field = _Field(len(arrays))
            arrays.append(as_array(x))
            fields.append(field)
    own, named = unflatten(structure, leaves)
    try:
        made = text.format(*own, **named)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        got = f"{text!r:.60} ({type(error).__name__}: {error})"
        needed = "text with fields for the values behind it, such as 'loss {:.3f}'"
        do = "write ost.debug.print('{}', x)"
        raise misfit(ArgumentError, "debug.print", got=got, needed=needed, do=do) from None
    if not all(field.used for field in fields):
        got = f"{text!r:.60}, which leaves out some of {len(fields)} arrays"
        do = "write {} where its value is to be"
        raise misfit(ArgumentError, "debug.print", got=got, needed="a field for each", do=do)
    printed(made.translate(_BRACES), arrays)


@contextlib.contextmanager
def nans() -> Iterator[None]:
    """Within it, the first operation that makes NaN of operands without NaN is an error at its line.
    What is computed outside of it is not looked at. It takes time, as each result is read.

    >>> with ost.debug.nans():
    ...     ost.evaluate(ost.log(ost.asarray([-1.0])))
    Traceback (most recent call last):
        ...
    ostinato.errors.NaNError: log (...): got 1 NaN in float64[1] from operands that have none...
    """
    session = here()
    if session is not None and not isinstance(session.engine, LocalEngine):
        got = "workers in other processes"
        do = "start them with OSTINATO_CHECK_NAN=1, or use ost.connect(workers)"
        raise misfit(SessionError, "debug.nans", got=got, needed="workers of this process", do=do)
    before = settings.check_nan
    _look(True)
    try:
        yield
    finally:
        _look(before)


def _look(wanted: bool) -> None:
    """Look for NaN from now on, or no more; plans are bound anew for it."""
    if settings.check_nan != wanted:
        settings.check_nan = wanted
        bind_anew()
