"""Slices with steps, and updates of what a slice sees: each is the other's gradient.

A basic slice is a `Window` on each axis: for the outputs `[a, b)` it needs the inputs `[start +
step*a, ...)`. An update is that seen from the other side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.errors import BoundsError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, export
from ..core.build import Builder
from ..core.index import LETTERS, Indices, Window, taps
from ..core.parameters import SIZES, STARTS, STEPS, one_of, unfit
from ..core.registry import Numbers, Params, Piece, Place, Specs, op
from ..core.spec import Shape, Spec
from ..core.user_line import misfit
from .casts import astype
from .shape import MOVE, axes_of, zero_of

__all__ = ["flip"]


# -- slices --------------------------------------------------------------------------------
def _slice_rule(x: Spec, *, starts: Shape, sizes: Shape, steps: Shape) -> Spec:
    _inside("slice", x, starts, sizes, steps)
    return Spec(sizes, x.dtype)


def _inside(name: str, x: Spec, starts: Shape, sizes: Shape, steps: Shape) -> None:
    for start, size, step, n in zip(starts, sizes, steps, x.shape, strict=True):
        last = start + step * (size - 1)
        if step == 0 or size < 0 or (size > 0 and not (0 <= start < n and 0 <= last < n)):
            got = f"{size} elements from {start} on in steps of {step}"
            raise misfit(BoundsError, name, got=got, needed=f"elements of an axis with {n}")


def _slice_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    dims = tuple(
        LETTERS[d]
        if (start, size, step) == (0, n, 1)
        else Window(LETTERS[d], offset=start, stride=step)
        for d, (start, size, step, n) in enumerate(
            zip(p["starts"], p["sizes"], p["steps"], ins[0].shape, strict=True)
        )
    )
    return Indices((dims,), (tuple(LETTERS[: outs[0].ndim]),))


def _slice_view(xp: Any, x: Any, at: Place, *, starts: Shape, sizes: Shape, steps: Shape) -> Any:
    windows = [Window("", start, step) for start, step in zip(starts, steps, strict=True)]
    return x[taps(windows, at.outs[0], at.ins[0])[1]]


def _slice_grad(
    g: Array, y: Array, x: Array, *, starts: Shape, sizes: Shape, steps: Shape
) -> Sequence[Array | None]:
    zeros = apply("full", shape=x.shape, value=0, dtype=g.dtype)
    return (apply("update_slice", zeros, g, starts=starts, steps=steps, mode="set"),)


def _is_plain(params: Params) -> bool:
    """Whether it has elements side by side, so that they are a box."""
    return all(step == 1 for step in params["steps"])


def _moving(by: Mapping[int, int]) -> dict[str, Any]:
    """Say that boxes begin along some axes where values tell, which is inside."""
    return {"axes": tuple(by), "bounds": ("clip",) * len(by)}


def _slice_given(
    builder: Builder,
    ins: Sequence[int],
    by: Mapping[int, int],
    *,
    starts: Shape,
    sizes: Shape,
    steps: Shape,
) -> int:
    shape = builder.specs[ins[0]].shape
    rest = [n if d in by else m for d, (n, m) in enumerate(zip(shape, sizes, strict=True))]
    begins = [0 if d in by else a for d, a in enumerate(starts)]
    x = builder.call("slice", *ins, starts=tuple(begins), sizes=tuple(rest), steps=steps)
    some = tuple(sizes[d] for d in by)
    return builder.call("dynamic_slice", x, *by.values(), sizes=some, **_moving(by))


op(
    "slice",
    infer=_slice_rule,
    numbers=Numbers("starts", _slice_given, _is_plain),
    takes={"starts": STARTS, "sizes": SIZES, "steps": STEPS},
    indices=_slice_indices,
    view=_slice_view,
    grad=_slice_grad,
    cost=MOVE,
    selects="slices",
)


def slice_axes(x: Array, parts: dict[int, tuple[int, int, int]]) -> Array:
    """Slices `axis: (start, size, step)`, each inside its axis."""
    full = [(0, n, 1) for n in x.shape]
    for axis, part in parts.items():
        full[axis] = part
    return sliced(x, full)


def sliced(x: Array, parts: Sequence[tuple[int, int, int]]) -> Array:
    """These parts (start, size, step) of its axes, each inside its axis."""
    if all(p == (0, n, 1) for p, n in zip(parts, x.shape, strict=True)):
        return x
    starts, sizes, steps = zip(*parts, strict=True)
    return apply("slice", x, starts=starts, sizes=sizes, steps=steps)


@export
def flip(x: Operandish, /, axis: int | Sequence[int] | None = None) -> Array:
    """Backwards along axes; all of them for None.

    >>> ost.flip([1, 2, 3])
    Array([3, 2, 1], dtype=int64)
    """
    x = as_array(x)
    axes = axes_of(axis, x.ndim, "flip")
    return slice_axes(x, {a: (x.shape[a] - 1, x.shape[a], -1) for a in axes if x.shape[a] > 1})


# -- updates -------------------------------------------------------------------------------
MODES = ("set", "add", "multiply", "min", "max")

COMBINES = {"add": "add", "multiply": "multiply", "min": "minimum", "max": "maximum"}


def _update_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    dims: list[str | Window] = []
    for d, (start, step, n, size) in enumerate(
        zip(p["starts"], p["steps"], ins[0].shape, ins[1].shape, strict=True)
    ):
        plain = (start, size, step) == (0, n, 1)
        dims.append(LETTERS[d] if plain else Window.placing(LETTERS[d], start, step))
    labels = tuple(LETTERS[: ins[0].ndim])
    return Indices((labels, tuple(dims)), (labels,))


def update_box(
    xp: Any, out: Any, x: Any, v: Any, *, starts: Shape, steps: Shape, mode: str, at: Place
) -> None:
    if out is not x:
        xp.copyto(out, x)
    windows = [Window.placing("", *places) for places in zip(starts, steps, strict=True)]
    target, source = taps(windows, at.outs[0], at.ins[1])
    place, values = out[target], v[source]
    if mode == "set":
        xp.copyto(place, values, casting="unsafe")
    else:
        getattr(xp, COMBINES[mode])(place, values, out=place, casting="unsafe")


def _update_pieces(ins: Sequence[Shape], *, starts: Shape, steps: Shape, mode: str) -> list[Piece]:
    ends = [a + step * n for a, step, n in zip(starts, steps, ins[1], strict=True)]
    at = [slice(a, z if z >= 0 else None, s) for a, z, s in zip(starts, ends, steps, strict=True)]
    return [Piece(0), Piece(1, tuple(at), combine=COMBINES.get(mode, ""))]


def _update_grad(
    g: Array, y: Array, x: Array, v: Array, *, starts: Shape, steps: Shape, mode: str
) -> Sequence[Array | None]:
    parts = {d: (starts[d], v.shape[d], steps[d]) for d in range(v.ndim)}

    def put(values: Array) -> Array:
        return apply("update_slice", g, values, starts=starts, steps=steps, mode="set")

    return grad_of_update(mode, g, y, x, v, lambda of: slice_axes(of, parts), put)


def grad_of_update(
    mode: str,
    g: Array,
    y: Array,
    x: Array,
    v: Array,
    part: Callable[[Array], Array],
    put: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """To an array and values, of which each element went to a place of its own: `part` is what lies there,
    `put` the gradient of the result with something there."""
    at_v = part(g)
    match mode:
        case "set":
            return put(zero_of(at_v)), at_v
        case "add":
            return g, at_v
        case "multiply":
            return put(at_v * v), at_v * part(x)
    won = part(y)
    by_x, by_v = astype(part(x) == won, g.dtype), astype(v == won, g.dtype)
    share = at_v / (by_x + by_v)
    return put(share * by_x), share * by_v


def _update_rule(x: Spec, v: Spec, *, starts: Shape, steps: Shape, mode: str) -> Spec:
    if v.ndim != x.ndim or v.dtype != x.dtype:
        raise unfit("update_slice", (x, v), "as many axes in both, and one dtype")
    _inside("update_slice", x, starts, v.shape, steps)
    return Spec(x.shape, x.dtype)


def _update_given(
    builder: Builder,
    ins: Sequence[int],
    by: Mapping[int, int],
    *,
    starts: Shape,
    steps: Shape,
    mode: str,
) -> int:
    rest = tuple([0 if d in by else a for d, a in enumerate(starts)])
    given = (*ins, *by.values())
    return builder.call("dynamic_update_slice", *given, starts=rest, mode=mode, **_moving(by))


op(
    "update_slice",
    infer=_update_rule,
    numbers=Numbers("starts", _update_given, _is_plain),
    takes={"starts": STARTS, "steps": STEPS, "mode": one_of(*MODES)},
    indices=_update_indices,
    kernel=update_box,
    pieces=_update_pieces,
    grad=_update_grad,
    cost=MOVE,
    placed=True,
    overwrite=(0,),
)
