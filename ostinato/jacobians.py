"""Derivatives of functions of many numbers: forward mode, Jacobians, Hessians.

A Jacobian is one sweep for all rows or all columns at once, since the sweep is mapped over unit
vectors (`vmap`): backwards, a row for each element of the result, or forwards, a column for each
element of the arguments, whichever are fewer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from ostinato.errors import GradientError
from ostinato.ops.array.creation import eye
from ostinato.ops.array.shape import moveaxis, reshape
from ostinato.ops.autodiff import gradient, tangents
from ostinato.ops.core.apply import apply, as_array
from ostinato.ops.core.array import Array, Watch
from ostinato.ops.core.spec import is_inexact
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.tree import Structure, flatten, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.flow.control import leaves_of

from .gradients import Numbers, P, R, number_of_argument, pair, variables_of
from .mapping import vmap

Mode = Literal["forward", "reverse"]


def jvp(function: Callable[..., R], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, R]:
    """The results, and how they change if the arguments change by `tangents`: forward mode, which
    keeps nothing and works where a loop's end depends on data.

    >>> ost.jvp(lambda x: x**2, (3.0,), (1.0,))
    (Array(9., dtype=float64), Array(6., dtype=float64))
    """
    name = getattr(function, "__name__", "function")
    watch = Watch()
    try:
        marked, variables, structures = _marked(tuple(primals), name, watch)
        outputs, structure = leaves_of(function(*marked))
        given = _changes(tangents, variables, structures, name)
        made, moved = _pushed(outputs, variables, given)
        return cast(R, unflatten(structure, made)), cast(R, unflatten(structure, moved))
    finally:
        watch.end()


def linearize(function: Callable[..., R], *primals: Any) -> tuple[R, Callable[..., R]]:
    """The results, and a function from changes of the arguments to those of the results.

    >>> y, change = ost.linearize(lambda x: x**2, 3.0)
    >>> change(0.5)
    Array(3., dtype=float64)
    """
    name = getattr(function, "__name__", "function")
    watch = Watch()
    marked, variables, structures = _marked(primals, name, watch)
    outputs, structure = leaves_of(function(*marked))

    def change(*tangents: Any) -> R:
        given = _changes(tangents, variables, structures, name)
        return cast(R, unflatten(structure, _pushed(outputs, variables, given)[1]))

    weakref.finalize(change, watch.end)
    return cast(R, unflatten(structure, outputs)), change


def value_and_jacobian(
    function: Callable[P, R],
    argnums: Numbers = 0,
    *,
    has_aux: bool = False,
    mode: Mode | None = None,
) -> Callable[P, tuple[R, Any]]:
    """A function that also gives the Jacobian of its results with respect to some arguments.

    For a result of shape (m,) and an argument of shape (n,) it is a matrix (m, n); of trees, a tree
    of the arguments' in each leaf of the results'. `mode` is "forward" or "reverse"; by itself it is
    what takes fewer sweeps.

    >>> ost.value_and_jacobian(lambda x: x**2)(ost.arange(2.0))
    (Array([0., 1.], dtype=float64), Array([[0., 0.],
           [0., 2.]], dtype=float64))
    """
    name = getattr(function, "__name__", "function")
    several = isinstance(argnums, Sequence) and not isinstance(argnums, str)
    wanted = cast("Sequence[int]", argnums if several else (argnums,))

    @door
    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def both(*args: Any, **kwargs: Any) -> tuple[R, Any]:
        numbers = [number_of_argument(name, n, args) for n in wanted]
        once = list(dict.fromkeys(numbers))
        watch = Watch()
        try:
            marked, variables, structures = variables_of(args, once, name, watch)
            result = cast(Any, function)(*marked, **kwargs)
            value = pair(result, name)[0] if has_aux else result
            outputs, structure = leaves_of(value)
            _refuse_complex([*variables, *outputs], name)
            rows = _by_sweeps(outputs, variables, mode)
        finally:
            watch.end()
        found = []
        for row in rows:
            left = iter(row)
            trees = [unflatten(s, [next(left) for _ in range(s.leaves)]) for s in structures]
            picked = tuple(trees[once.index(n)] for n in numbers)
            found.append(picked if several else picked[0])
        return cast(R, result), unflatten(structure, found)

    return both


def jacobian(
    function: Callable[P, Any],
    argnums: Numbers = 0,
    *,
    has_aux: bool = False,
    mode: Mode | None = None,
) -> Callable[P, Any]:
    """The Jacobian of a function's results with respect to some arguments (`value_and_jacobian`).

    >>> ost.jacobian(lambda x: x**2)(ost.arange(3.0))
    Array([[0., 0., 0.],
           [0., 2., 0.],
           [0., 0., 4.]], dtype=float64)
    """
    both = value_and_jacobian(function, argnums, has_aux=has_aux, mode=mode)

    @door
    @functools.wraps(function, updated=())  # the state of a wrapper is its own
    def only(*args: Any, **kwargs: Any) -> Any:
        value, slopes = both(*args, **kwargs)
        return (slopes, value[1]) if has_aux else slopes

    return only


def hessian(
    function: Callable[P, Any], argnums: Numbers = 0, *, has_aux: bool = False
) -> Callable[P, Any]:
    """The second derivatives of a function with respect to some arguments: forwards over backwards.

    >>> ost.hessian(lambda x: (x**3).sum())(ost.arange(3.0))
    Array([[ 0.,  0.,  0.],
           [ 0.,  6.,  0.],
           [ 0.,  0., 12.]], dtype=float64)
    """
    slopes = jacobian(function, argnums, has_aux=has_aux, mode="reverse")
    return jacobian(slopes, argnums, has_aux=has_aux, mode="forward")


# -- sweeps ----------------------------------------------------------------------------------
def _by_sweeps(
    outputs: Sequence[Array], variables: Sequence[Array], mode: Mode | None
) -> list[list[Array]]:
    """For each output what each variable does to it."""
    rows = sum(y.size for y in outputs if is_inexact(y.dtype))
    columns = sum(x.size for x in variables)
    if mode is None:
        mode = "reverse" if rows < columns else "forward"
    return (_rows if mode == "reverse" else _columns)(outputs, variables)


def _rows(outputs: Sequence[Array], variables: Sequence[Array]) -> list[list[Array]]:
    def row(k: int, ct: Array) -> list[Array]:
        cts = [ct if j == k else None for j in range(len(outputs))]
        found = gradient.vjp(outputs, variables, cts)
        return [tangents.solid(g, x) for g, x in zip(found, variables, strict=True)]

    made = []
    for k, y in enumerate(outputs):
        if is_inexact(y.dtype):
            found = vmap(functools.partial(row, k))(_units(y))
            made.append(
                [reshape(g, (*y.shape, *x.shape)) for g, x in zip(found, variables, strict=True)]
            )
        else:
            made.append([_flat(y, x) for x in variables])
    return made


def _columns(outputs: Sequence[Array], variables: Sequence[Array]) -> list[list[Array]]:
    def column(k: int, change: Array) -> list[Array]:
        changes = [change if j == k else None for j in range(len(variables))]
        return _pushed(outputs, variables, changes)[1]

    made: list[list[Array]] = [[] for _ in outputs]
    for k, x in enumerate(variables):
        found = vmap(functools.partial(column, k))(_units(x))
        for own, y, t in zip(made, outputs, found, strict=True):
            own.append(reshape(moveaxis(t, 0, -1), (*y.shape, *x.shape)))
    return made


def _units(x: Array) -> Array:
    """All unit vectors of a shape."""
    return reshape(eye(x.size, dtype=x.dtype), (x.size, *x.shape))


def _flat(y: Array, x: Array) -> Array:
    """Return the derivative of what does not change: zeros."""
    return apply("full", shape=(*y.shape, *x.shape), value=0, dtype=x.dtype)


def _pushed(
    outputs: Sequence[Array], variables: Sequence[Array], changes: Sequence[Array | None]
) -> tuple[list[Array], list[Array]]:
    made, moved = tangents.push(outputs, variables, changes)
    return made, [tangents.solid(t, y) for t, y in zip(moved, made, strict=True)]


def _marked(
    primals: Sequence[Any], name: str, watch: Watch
) -> tuple[list[Any], list[Array], list[Structure]]:
    return variables_of(primals, range(len(primals)), name, watch)


def _changes(
    given: Sequence[Any], variables: Sequence[Array], structures: Sequence[Structure], name: str
) -> list[Array | None]:
    """The change of each variable, in its shape and dtype."""
    trees = [flatten(tree) for tree in given]
    if [structure for _, structure in trees] != list(structures):
        got = f"tangents {', '.join(str(s) for _, s in trees)}"
        needed = f"the structure of the arguments, {', '.join(map(str, structures))}"
        raise misfit(GradientError, f"jvp of {name}", got=got, needed=needed)
    found: list[Array | None] = []
    for leaf, x in zip((t for leaves, _ in trees for t in leaves), variables, strict=True):
        t = as_array(leaf)
        if t.shape != x.shape:
            got = f"a tangent of shape {t.shape}"
            raise misfit(GradientError, f"jvp of {name}", got=got, needed=f"shape {x.shape}")
        found.append(gradient.fitted(t, x.spec))
    return found


def _refuse_complex(xs: Sequence[Array], name: str) -> None:
    for x in xs:
        if x.dtype.kind == "c":
            got = f"{x.spec.bare}"
            needed = "real arguments and results"
            do = "take ost.real and ost.imag as arguments, or use ost.jvp or ost.vjp"
            raise misfit(GradientError, f"jacobian of {name}", got=got, needed=needed, do=do)
