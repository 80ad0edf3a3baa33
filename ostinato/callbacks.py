"""`callback`: a function of the user's, in Python, in the middle of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.array.shape import zero_of
from ostinato.ops.autodiff import gradient as gradients
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.tree import flatten, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.flow.callback import called_back
from ostinato.runtime.crew.crew_engine import CrewEngine

from .sessions import current


def callback(
    function: Callable[..., Any],
    result: Any,
    *args: Any,
    gradient: Callable[..., Any] | None = None,
) -> Any:
    """Return what a function makes of NumPy arrays, as a lazy array: it is called when the plan
    runs. It has to give the same of the same, since equal calls are one, and what nobody reads is
    not called.

    `result` says what it gives: `ost.spec(shape, dtype)`, or a list or tuple of these. Each worker
    calls it with whole arrays, so on several workers it is called as often; they have to be threads
    of this process. Under `vmap` it is called for each element. `gradient(cotangents, *args)` gives
    the cotangents of the arguments (one, or a tuple; None for none); without it, there are none.
    Forward mode transposes it; if it calls back, too, that is once for each of 64 results at most.

    >>> ost.callback(np.sort, ost.spec((3,), ost.float64), ost.asarray([3.0, 1.0, 2.0])) * 2
    Array([2., 4., 6.], dtype=float64)
    """
    leaves, structure = flatten(result)
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            got, do = f"a result {leaf!r:.60}", "pass ost.spec(shape, dtype), or a tuple of these"
            needed = "what the function gives"
            raise misfit(ArgumentError, "callback", got=got, needed=needed, do=do)
    if not leaves or not callable(function):
        got = f"{function!r:.60} that gives {result!r:.60}"
        needed = "a function, and the result that it gives"
        raise misfit(ArgumentError, "callback", got=got, needed=needed)
    if isinstance(current().engine, CrewEngine):
        got, needed = "workers that are other processes", "threads of this one"
        do = "call the function outside, with np.asarray(x)"
        raise misfit(ArgumentError, "callback", got=got, needed=needed, do=do)
    specs = [Spec(tuple(leaf.shape), leaf.dtype) for leaf in leaves]
    xs = [as_array(x) for x in args]
    made = called_back(function, specs, xs)
    if gradient is None:
        return unflatten(structure, made)
    own = gradient

    def rule(gs: Any) -> list[Array | None]:
        cts = [zero_of(y) if g is None else g for g, y in zip(gs, made, strict=True)]
        found = own(unflatten(structure, cts), *xs)
        several = found if isinstance(found, (list, tuple)) else (found,)
        return [None if ct is None else as_array(ct) for ct in several]

    return unflatten(structure, gradients.attach_rule(made, xs, rule))
