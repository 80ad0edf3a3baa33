"""Gradients of functions over pytrees."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

import numpy as np

from ostinato.errors import GradientError
from ostinato.ops.array.creation import ones_like
from ostinato.ops.array.shape import zero_of
from ostinato.ops.autodiff import gradient
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, Watch, from_term, term_of
from ostinato.ops.core.spec import is_inexact
from ostinato.ops.core.tracebacks import door, shorten
from ostinato.ops.core.tree import flatten, paths, unflatten
from ostinato.ops.core.user_line import misfit

Numbers = int | Sequence[int]
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=Any)  # the first argument


@overload
def value_and_grad(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[A, P], R], argnums: Literal[0] = 0, *, has_aux: bool = ...
) -> Callable[Concatenate[A, P], tuple[R, A]]: ...


@overload
def value_and_grad(
    function: Callable[P, R], argnums: Numbers, *, has_aux: bool = ...
) -> Callable[P, tuple[R, Any]]: ...


def value_and_grad(
    function: Callable[P, Any], argnums: Numbers = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that also gives the gradient of its scalar result with respect to some arguments.

    With `has_aux` the function returns (result, anything) and the anything is passed on.

    >>> ost.value_and_grad(lambda x: (x**2).sum())(ost.arange(3.0))
    (Array(5., dtype=float64), Array([0., 2., 4.], dtype=float64))
    """
    name = getattr(function, "__name__", "function")
    several = isinstance(argnums, Sequence) and not isinstance(argnums, str)
    wanted = cast("Sequence[int]", argnums if several else (argnums,))

    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        numbers = [number_of_argument(name, n, args) for n in wanted]
        watch = Watch()
        try:
            return sweep(args, kwargs, numbers, watch)
        except Exception as error:
            shorten(error)
            raise
        finally:
            watch.end()

    def sweep(args: Any, kwargs: Any, numbers: list[int], watch: Watch) -> tuple[Any, Any]:
        once = list(dict.fromkeys(numbers))
        marked, variables, structures = variables_of(args, once, name, watch)
        result = function(*marked, **kwargs)
        value, aux = pair(result, name) if has_aux else (result, None)
        if not isinstance(value, (Array, np.ndarray, np.generic, int, float, complex)):
            got = f"a result of type {type(value).__name__}"
            needed = "one real floating number"
            do = "return it, or a pair with has_aux=True"
            raise misfit(GradientError, f"gradient of {name}", got=got, needed=needed, do=do)
        y = as_array(value)
        if y.shape or not is_inexact(y.dtype) or y.dtype.kind == "c":
            got = f"a result {y.spec.bare}"
            needed = "one real floating number"
            do = "reduce it, e.g. with .sum() or .mean(), or use ost.vjp"
            raise misfit(GradientError, f"gradient of {name}", got=got, needed=needed, do=do)
        found = gradient.vjp([y], variables, [ones_like(y)])
        filled = iter(
            [ct if ct is not None else zero_of(x) for ct, x in zip(found, variables, strict=True)]
        )
        made = [unflatten(s, [next(filled) for _ in range(s.leaves)]) for s in structures]
        grads = [made[once.index(n)] for n in numbers]
        head = (value, aux) if has_aux else value
        return head, tuple(grads) if several else grads[0]

    return both


def pair(result: Any, name: str) -> tuple[Any, Any]:
    """The result of a function with `has_aux`."""
    if not (isinstance(result, (tuple, list)) and len(result) == 2):
        got = f"a result of type {type(result).__name__}"
        needed = "a pair: what to differentiate, and anything"
        raise misfit(GradientError, f"gradient of {name}(has_aux=True)", got=got, needed=needed)
    return result[0], result[1]


def number_of_argument(name: str, n: Any, args: Sequence[Any]) -> int:
    """The number of an argument, counted from the first."""
    if hasattr(n, "__index__") and -len(args) <= operator.index(n) < len(args):
        return operator.index(n) % len(args)
    got = f"argnums {n!r} of {len(args)} arguments"
    needed = "the number of an argument that is given by place, or several"
    raise misfit(GradientError, f"gradient of {name}", got=got, needed=needed)


def variables_of(
    args: Sequence[Any], numbers: Sequence[int], name: str, watch: Watch
) -> tuple[list[Any], list[Array], list[Any]]:
    """The arguments with the leaves of some of them made variables of their own, which stay what they
    are where the function assigns to its arguments."""
    marked, structures = list(args), []
    variables: list[Array] = []
    for n in numbers:
        leaves, structure = flatten(args[n])
        made = []
        for leaf, path in zip(leaves, paths(structure, f"argument {n}"), strict=True):
            x = as_array(leaf)
            if not is_inexact(x.dtype):
                got = f"{path} of dtype {x.dtype.name}"
                needed = "a floating or complex dtype"
                do = "convert it with .astype, or leave it out of argnums"
                raise misfit(GradientError, f"gradient of {name}", got=got, needed=needed, do=do)
            made.append(gradient.mark(x, watch))
        variables.extend(from_term(*term_of(x)) for x in made)
        structures.append(structure)
        marked[n] = unflatten(structure, made)
    return marked, variables, structures


@overload
def grad(
    function: Callable[Concatenate[A, P], Any],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[False] = False,
) -> Callable[Concatenate[A, P], A]: ...


@overload
def grad(
    function: Callable[Concatenate[A, P], tuple[Any, R]],
    argnums: Literal[0] = 0,
    *,
    has_aux: Literal[True],
) -> Callable[Concatenate[A, P], tuple[A, R]]: ...


@overload
def grad(
    function: Callable[P, Any], argnums: Numbers, *, has_aux: bool = ...
) -> Callable[P, Any]: ...


def grad(
    function: Callable[..., Any], argnums: Numbers = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of a scalar function with respect to some arguments.

    >>> ost.grad(lambda x: x**3)(2.0)
    Array(12., dtype=float64)
    """
    both = value_and_grad(function, argnums, has_aux=has_aux)

    @door
    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def only(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return only


@door
def vjp(function: Callable[..., R], *args: Any) -> tuple[R, Callable[[Any], tuple[Any, ...]]]:
    """The results, and a function from their cotangents to those of the arguments.

    >>> y, back = ost.vjp(lambda x: x**2, ost.arange(3.0))
    >>> back(ost.ones(3))
    (Array([0., 2., 4.], dtype=float64),)
    """
    name = getattr(function, "__name__", "function")
    watch = Watch()
    marked, variables, structures = variables_of(args, range(len(args)), name, watch)
    result = function(*marked)
    leaves, structure = flatten(result)
    outputs = [as_array(y) for y in leaves]

    def back(cotangents: Any) -> tuple[Any, ...]:
        given, found_structure = flatten(cotangents)
        if found_structure != structure:
            got = f"cotangents {found_structure}"
            needed = f"the structure of the results, {structure}"
            raise misfit(GradientError, f"vjp of {name}", got=got, needed=needed)
        cts: list[Array | None] = []
        for ct, y in zip(given, outputs, strict=True):
            x = as_array(ct)
            if x.shape != y.shape:
                got = f"a cotangent of shape {x.shape}"
                raise misfit(GradientError, f"vjp of {name}", got=got, needed=f"shape {y.shape}")
            cts.append(x)
        found = gradient.vjp(outputs, variables, cts)
        filled = iter(
            [ct if ct is not None else zero_of(x) for ct, x in zip(found, variables, strict=True)]
        )
        return tuple(unflatten(s, [next(filled) for _ in range(s.leaves)]) for s in structures)

    weakref.finalize(back, watch.end)
    return cast(R, unflatten(structure, outputs)), back


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function whose intermediates are computed again for its gradient instead of kept.

    >>> ost.grad(ost.checkpoint(lambda x: ost.sin(x) ** 2))(0.5)
    Array(0.8415, dtype=float64)
    """

    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten(args)
        places = [k for k, x in enumerate(leaves) if isinstance(x, (Array, np.ndarray))]
        arrays = [as_array(leaves[k]) for k in places]
        shape: list[Any] = []

        def inner(*given: Array) -> list[Array]:
            filled = list(leaves)
            for k, x in zip(places, given, strict=True):
                filled[k] = x
            outs, out_structure = flatten(function(*unflatten(structure, filled), **kwargs))
            shape[:] = [out_structure]
            return [as_array(y) for y in outs]

        made = gradient.checkpointed(inner, arrays)
        return unflatten(shape[0], made)

    return run


def custom_gradient(function: Callable[P, tuple[R, Callable[[Any], Any]]]) -> Callable[P, R]:
    """A function with a gradient of its own. It returns its result and a function from the result's
    cotangent to those of its arguments (one, or a tuple of as many as there are; None for no
    gradient). Within loops, conditions, `vmap` and `checkpoint` that function is traced with it.

    >>> @ost.custom_gradient
    ... def clipped(x):
    ...     return x, lambda g: ost.clip(g, -1, 1)
    >>> ost.grad(lambda x: 5 * clipped(x))(2.0)
    Array(1., dtype=float64)
    """

    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def run(*args: Any) -> Any:
        leaves, structure = flatten(args)
        arrays = [as_array(x) for x in leaves]
        result, back = cast(Any, function)(*unflatten(structure, arrays))
        outs, out_structure = flatten(result)
        results = [as_array(y) for y in outs]

        def rule(gs: Sequence[Array | None]) -> Sequence[Array | None]:
            solid = [g if g is not None else zero_of(y) for g, y in zip(gs, results, strict=True)]
            found = back(unflatten(out_structure, solid))
            if len(args) == 1 and not (isinstance(found, tuple) and len(found) == 1):
                found = (found,)
            given = found if isinstance(found, tuple) else (found,)
            cts: list[Array | None] = []
            for ct, child in zip(given, structure.children, strict=False):
                cts.extend(
                    [None] * child.leaves if ct is None else [as_array(c) for c in flatten(ct)[0]]
                )
            for ct, x in zip(cts, arrays, strict=False):
                if ct is not None and ct.shape != x.shape:
                    raise misfit(
                        GradientError,
                        f"custom gradient of {getattr(function, '__name__', 'function')}",
                        got=f"a cotangent of shape {ct.shape} for an argument of shape {x.shape}",
                        needed="the shape of the argument",
                    )
            return cts

        return unflatten(out_structure, gradient.attach_rule(results, arrays, rule))

    return cast("Callable[P, R]", run)
