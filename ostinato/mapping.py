"""`vmap`: a function of one element as a function of many.

The function is called once, with placeholders for one element. What it did with them is then done
for all elements at once (ops/autodiff/batching.py)."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ostinato.errors import (
    ArgumentError,
    BoundsError,
    DataDependentShapeError,
    ShapeError,
    TracedValueError,
)
from ostinato.ops.array.casts import as_dtype, astype
from ostinato.ops.array.creation import iota
from ostinato.ops.array.shape import broadcast_shapes, broadcast_to, moveaxis, reshape
from ostinato.ops.autodiff.batching import Batch, given_axis
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, Trace, have_values
from ostinato.ops.core.refusals import end_refusals
from ostinato.ops.core.spec import Spec, int64
from ostinato.ops.core.trace import check_ended
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import Structure, fields_of, flatten, in_order, paths, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.seeds import seeds

from .gradients import P, R

Axes = Any  # an axis, None, or a tree of them in the form of what they are the axes of


def vmap(function: Callable[P, R], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[P, R]:
    """The function for each of many elements, at once: `vmap(f)(xs)[k]` is `f(xs[k])`.

    `in_axes` says along which axis of each argument its elements lie: one axis for all, or one for
    each, or a tree of them in the form of the arguments; None for what is the same for all.
    `out_axes` says where the results have that axis. Arrays given by name have it first.

    A loop runs until all elements are done; of a condition for each element both sides run. Random
    numbers that name no seed differ: where the function drew from seed s, element k draws from
    `ost.random.fold(s, k)`. vmap, grad and compile go inside each other in any order.

    >>> ost.vmap(ost.dot, in_axes=(0, None))(ost.eye(2), ost.arange(2.0))
    Array([0., 1.], dtype=float64)
    """
    name = getattr(function, "__name__", "function")

    @door
    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def mapped(*args: Any, **kwargs: Any) -> Any:
        trace = Trace(f"vmap of {name}")
        found = map_elements(trace, args, kwargs)
        check_ended(trace)
        return found

    def map_elements(trace: Trace, args: Any, kwargs: Any) -> Any:
        axes_of_args = _without_defaults(function, in_axes, args)
        leaves, structure = flatten((args, kwargs))
        named = paths(structure, "argument")
        positions = structure.children[0]
        axes = [
            *_spread(axes_of_args, positions, f"vmap of {name}", "in_axes"),
            *(0 if _has_axes(x) else None for x in leaves[positions.leaves :]),
        ]
        size = _size(leaves, axes, named, name)
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
        with trace, seeds.folding(number):
            results = function(*own, **given)
        outs, out_structure = flatten(results)
        found = batch.compute([as_array(y) for y in outs])
        end_refusals(trace)
        places = _spread(out_axes, out_structure, f"vmap of {name}", "out_axes")
        made = []
        for y, place in zip(found, places, strict=True):
            if place is not None:
                whole = given_axis(y, size)
                made.append(moveaxis(whole, 0, _axis(place, whole.ndim, name, "out_axes")))
                continue
            if y[1]:
                got = "out_axes None for a result that differs from element to element"
                raise misfit(ArgumentError, f"vmap of {name}", got=got, needed="an axis for it")
            made.append(y[0])
        return unflatten(out_structure, made)

    return mapped


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any
) -> Any:
    """A function of one line for each line along an axis, all at once, by `vmap`. The axes of what it makes of
    a line take that axis's place. A function that asks for values gets line after line, outside of compiled
    functions and gradients.

    >>> ost.apply_along_axis(lambda v: v - v.mean(), 0, [[1.0, 2.0], [3.0, 6.0]])
    Array([[-1., -2.],
           [ 1.,  2.]], dtype=float64)
    """
    x = as_array(arr)
    d = _axis(axis, x.ndim, "apply_along_axis", "axis")
    rest = (*x.shape[:d], *x.shape[d + 1 :])
    lines = reshape(moveaxis(x, d, -1), (-1, x.shape[d]))
    try:
        made, structure = flatten(vmap(lambda line: func1d(line, *args, **kwargs))(lines))
    except _ASKS:
        if not have_values([x]):
            raise
        each = np.apply_along_axis(
            lambda v: np.asarray(func1d(as_array(v), *args, **kwargs)), d, np.asarray(x)
        )
        return as_array(each)
    found = []
    for y in made:
        inner = y.shape[1:]
        whole = reshape(y, (*rest, *inner))
        last = tuple(range(len(rest), whole.ndim))
        found.append(moveaxis(whole, last, tuple(range(d, d + len(inner)))))
    return unflatten(structure, found)


_ASKS = (TracedValueError, DataDependentShapeError)  # for values, which `vmap` has not


def vectorize(
    pyfunc: Callable[..., Any],
    otypes: Any = None,
    doc: str | None = None,
    excluded: Collection[int | str] | None = None,
    cache: bool = False,
    signature: str | None = None,
) -> Callable[..., Any]:
    """A function of numbers as one of arrays, which broadcast; or, with a signature such as "(n),(n)->()", of
    arrays with more axes in front. It is called once, with all elements at the same time, by `vmap`; so it is
    made of our operations. What is `excluded` goes to it as it is. `otypes` are the results' dtypes, in a
    list or as NumPy's letters; `cache` is there since NumPy has it. A function that asks for values, as `if`
    does, is called for one element after the other, outside of compiled functions and gradients.

    >>> ost.vectorize(lambda a, b: ost.where(a > b, a - b, a + b))([1, 2, 3], 2)
    Array([3, 4, 1], dtype=int64)
    """

    excluded = () if excluded is None else excluded
    kinds = None if otypes is None else [as_dtype(kind) for kind in otypes]

    def typed(tree: Any) -> Any:
        if kinds is None:
            return tree
        made, structure = flatten(tree)
        if len(made) != len(kinds):
            got = f"{len(kinds)} otypes for {len(made)} results"
            raise misfit(ArgumentError, "vectorize", got=got, needed="as many of both")
        return unflatten(structure, [astype(y, k) for y, k in zip(made, kinds, strict=True)])

    @functools.wraps(pyfunc)
    def run(*args: Any, **kwargs: Any) -> Any:
        own = [k for k in range(len(args)) if k not in excluded]
        named = [k for k in kwargs if k not in excluded]
        ranks = _ranks(signature, len(own) + len(named))
        xs = [as_array(args[k]) for k in own] + [as_array(kwargs[k]) for k in named]
        name = getattr(pyfunc, "__name__", "a function")
        for x, r in zip(xs, ranks, strict=True):
            if x.ndim < r:
                got, needed = f"shape {x.shape}", f"{r} axes at least, by signature={signature!r}"
                raise misfit(ShapeError, f"vectorize of {name}", got=got, needed=needed)
        fronts = [x.shape[: x.ndim - r] for x, r in zip(xs, ranks, strict=True)]
        front = broadcast_shapes(*fronts)
        axes, given = [], []
        for x, r, f in zip(xs, ranks, fronts, strict=True):
            inner = x.shape[x.ndim - r :]
            axes.append(0 if f else None)
            given.append(reshape(broadcast_to(x, (*front, *inner)), (-1, *inner)) if f else x)

        def one(*parts: Any) -> Any:
            all_args, all_named = list(args), dict(kwargs)
            for k, part in zip([*own, *named], parts, strict=True):
                if isinstance(k, int):
                    all_args[k] = part
                else:
                    all_named[str(k)] = part
            return pyfunc(*all_args, **all_named)

        if not front:
            return typed(one(*given))
        try:
            made, structure = flatten(vmap(one, in_axes=tuple(axes))(*given))
        except _ASKS:
            if not have_values(given):
                raise
            each = np.vectorize(pyfunc, otypes, None, set(excluded), False, signature)
            read = [np.asarray(x) if isinstance(x, Array) else x for x in args]
            by_name = {k: np.asarray(x) if isinstance(x, Array) else x for k, x in kwargs.items()}
            made, structure = flatten(each(*read, **by_name))
            return unflatten(structure, [as_array(y) for y in made])
        whole = [reshape(y, (*front, *y.shape[1:])) for y in made]
        return typed(unflatten(structure, whole))

    if doc is not None:
        run.__doc__ = doc
    return run


def _ranks(signature: str | None, many: int) -> list[int]:
    """Count the axes of each operand that the function itself sees."""
    if signature is None:
        return [0] * many
    operands = re.findall(r"\(([^()]*)\)", signature.partition("->")[0])
    if len(operands) != many or "->" not in signature:
        got = f"signature={signature!r:.60} for {many} operands"
        needed = "each operand's axes in brackets, such as '(n),(n)->()'"
        raise misfit(ArgumentError, "vectorize", got=got, needed=needed)
    return [len([n for n in own.split(",") if n.strip()]) for own in operands]


def _without_defaults(function: Callable[..., Any], in_axes: Axes, args: Sequence[Any]) -> Axes:
    """The axes, but none for last arguments that have a default and are no arrays: `compile` hands defaults
    over like what is given."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return in_axes
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        return in_axes
    needed = sum(p.kind is not p.KEYWORD_ONLY and p.default is p.empty for p in given)
    count = len(args)
    while count > needed and not any(map(_has_axes, flatten(args[count - 1])[0])):
        count -= 1
    none = (None,) * (len(args) - count)
    if not none or in_axes is None:
        return in_axes
    if hasattr(in_axes, "__index__"):
        return (*(int(in_axes),) * count, *none)
    if isinstance(in_axes, (tuple, list)) and count <= len(in_axes) < len(args):
        return (*in_axes, *(None,) * (len(args) - len(in_axes)))
    return in_axes


def _has_axes(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray)) and x.ndim > 0


def _axis(axis: int, ndim: int, name: str, what: str) -> int:
    if -ndim <= axis < ndim:
        return axis % ndim
    got = f"{what} {axis} for an array with {ndim} axes"
    needed = f"an axis from {-ndim} to {ndim - 1}, or None" if ndim else "None"
    raise misfit(BoundsError, f"vmap of {name}", got=got, needed=needed)


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
    got = " and ".join(sizes.values()) or "nothing that has elements"
    needed = "as many elements in all that has an axis in in_axes"
    raise misfit(ShapeError, f"vmap of {name}", got=got, needed=needed)


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
        needed = f"an axis, None, or a tree of them in the form {structure}"
        raise misfit(ArgumentError, who, got=f"{what} {axes!r:.60}", needed=needed)
    found: list[int | None] = []
    for one, child in zip(inner, structure.children, strict=True):
        found.extend(_spread(one, child, who, what))
    return found
