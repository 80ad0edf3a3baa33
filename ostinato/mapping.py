"""`vmap`: a function of one element as a function of many.

The function is called once, with placeholders for one element. What it did with them is then done
for all elements at once (ops/batching.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError, BoundsError, ShapeError
from ostinato.ops.batching import Batch, given_axis
from ostinato.ops.core.array import Array, Trace, as_array
from ostinato.ops.core.spec import Spec, int64
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import Structure, fields_of, flatten, in_order, paths, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.creation import iota
from ostinato.ops.seeds import seeds
from ostinato.ops.shape import moveaxis

from .gradients import P

Axes = Any  # an axis, None, or a tree of them in the form of what they are the axes of


def vmap(function: Callable[P, Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[P, Any]:
    """The function for each of many elements, at once: `vmap(f)(xs)[k]` is `f(xs[k])`.

    `in_axes` says along which axis of each argument its elements lie: one axis for all, or one for
    each, or a tree of them in the form of the arguments; None for what is the same for all.
    `out_axes` says where the results have that axis. Arrays given by name have it first.

    A loop runs until all elements are done; of a condition for each element both sides run. Random
    numbers that name no seed differ: where the function drew from seed s, element k draws from
    `ost.random.fold(s, k)`. vmap, grad and compile go inside each other in any order.

    >>> ost.vmap(ost.dot, in_axes=(0, None))(rows, vector)
    """
    name = getattr(function, "__name__", "function")

    @door
    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        named = paths(structure, "argument")
        positions = structure.children[0]
        axes = [
            *_spread(in_axes, positions, f"vmap of {name}", "in_axes"),
            *(0 if _has_axes(x) else None for x in leaves[positions.leaves :]),
        ]
        size = _size(leaves, axes, named, name)
        trace = Trace(f"vmap of {name}")
        batch = Batch(trace, size)
        items = []
        for leaf, axis in zip(leaves, axes, strict=True):
            if axis is None:
                items.append(leaf)
                continue
            whole = moveaxis(as_array(leaf), axis, 0)
            items.append(batch.enter(Spec(whole.shape[1:], whole.dtype), whole))
        number = batch.enter(Spec((), int64), iota((size,), 0))
        own, given = unflatten(structure, items)
        with trace, seeds.by_element(number):
            results = function(*own, **given)
        outs, out_structure = flatten(results)
        found = batch.of([as_array(y) for y in outs])
        if trace.refused is not None:  # which the function swallowed
            raise trace.refused
        places = _spread(out_axes, out_structure, f"vmap of {name}", "out_axes")
        made = []
        for y, place in zip(found, places, strict=True):
            if place is not None:
                whole = given_axis(y, size)
                made.append(moveaxis(whole, 0, _axis(place, whole.ndim, name, "out_axes")))
                continue
            if y[1]:
                raise misfit(
                    ArgumentError,
                    f"vmap of {name}",
                    got="out_axes None for a result that differs from element to element",
                    needed="an axis for it",
                )
            made.append(y[0])
        return unflatten(out_structure, made)

    return mapped


def _has_axes(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray)) and x.ndim > 0


def _axis(axis: int, ndim: int, name: str, what: str) -> int:
    if -ndim <= axis < ndim:
        return axis % ndim
    raise misfit(
        BoundsError,
        f"vmap of {name}",
        got=f"{what} {axis} for an array with {ndim} axes",
        needed=f"an axis from {-ndim} to {ndim - 1}, or None" if ndim else "None",
    )


def _size(leaves: list[Any], axes: list[int | None], named: Sequence[str], name: str) -> int:
    """How many elements there are."""
    sizes: dict[int, str] = {}
    for k, (leaf, axis) in enumerate(zip(leaves, axes, strict=True)):
        if axis is None:
            continue
        x = leaves[k] = as_array(leaf)
        axes[k] = d = _axis(axis, x.ndim, name, "in_axes")
        sizes.setdefault(x.shape[d], f"{x.shape[d]} in {named[k]} {x.shape} along axis {d}")
    if len(sizes) == 1:
        return next(iter(sizes))
    raise misfit(
        ShapeError,
        f"vmap of {name}",
        got=" and ".join(sizes.values()) or "nothing that has elements",
        needed="as many elements in all that has an axis in in_axes",
    )


def _spread(axes: Axes, structure: Structure, who: str, what: str) -> list[int | None]:
    """The axis of each leaf."""
    if axes is None or hasattr(axes, "__index__"):
        return [None if axes is None else int(axes)] * structure.leaves
    if isinstance(axes, dict):
        inner = [axes[k] for k in in_order(tuple(axes))]
    elif isinstance(axes, (tuple, list)):
        inner = list(axes)
    else:
        kind: type = type(axes)
        inner = [getattr(axes, field) for field in fields_of(kind) or ()]
    if len(inner) != len(structure.children):
        raise misfit(
            ArgumentError,
            who,
            got=f"{what} {axes!r:.60}",
            needed=f"an axis, None, or a tree of them in the form {structure}",
        )
    found: list[int | None] = []
    for one, child in zip(inner, structure.children, strict=True):
        found.extend(_spread(one, child, who, what))
    return found
