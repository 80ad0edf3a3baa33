"""Windows that slide along axes: looks at an operand in which neighbours overlap, and nothing is copied.

    windows of 3, step 2          [2y + r] -> y r        x[0:3], x[2:5], x[4:7], ...
    their adjoint                 [y + r] r -> y r       of what was put apart and surrounded with zeros

What reduces, multiplies or changes them reads through the look: kernels know strides alone, and two labels
may share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.errors import ArgumentError, ShapeError

from ..autodiff.batching import Mapped, given_axis
from ..autodiff.gradient import fitted
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish
from ..core.index import LETTERS, Indices, Window
from ..core.parameters import AXES, PLACES, Kind, unfit, whole
from ..core.registry import Params, Place, Specs, op
from ..core.spec import Shape, Spec, promote
from ..core.user_line import misfit
from .concatenation import add_zeros
from .expressions import Expression
from .shape import MOVE, add_up, axis_of, listed, permute_dims
from .slicing import flip, slice_axes

__all__ = ["sliding_window_view"]

NEW = -1  # along an axis of its own, at the end
BESIDE = Kind(
    "for each of the axes another one of the first operand, or -1 for a new one",
    lambda v, ins: (
        type(v) is tuple and all(type(a) is int and NEW <= a < len(ins[0].shape) for a in v)
    ),
    led=lambda v, _: tuple([a if a == NEW else a + 1 for a in v]),
)


def _rule(
    x: Spec, *, axes: Shape, sizes: Shape, steps: Shape, dilations: Shape, beside: Shape
) -> Spec:
    alike = len({len(p) for p in (axes, sizes, steps, dilations, beside)}) == 1
    apart = [*axes, *(b for b in beside if b != NEW)]
    if not alike or len({*apart}) < len(apart) or min((*steps, *dilations), default=1) < 1:
        raise unfit(
            "slide", (x,), "for each axis a size, a step, a dilation, and where windows lie"
        )
    shape = [*x.shape]
    for d, size, step, dilation, b in zip(axes, sizes, steps, dilations, beside, strict=True):
        rest = x.shape[d] - dilation * (size - 1)
        if size < 1 or rest < 1 or (b != NEW and x.shape[b] != size):
            raise unfit("slide", (x,), f"windows of 1 or more, and no longer than axis {d}")
        shape[d] = (rest - 1) // step + 1
        if b == NEW:
            shape.append(size)
    return Spec(tuple(shape), x.dtype)


def _labels(ndim: int, beside: Shape) -> list[int]:
    """Axes of the result that run through windows."""
    new = iter(range(ndim, ndim + len(beside)))
    return [next(new) if b == NEW else b for b in beside]


def _indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    labels = LETTERS[: outs[0].ndim]
    dims: list[str | Window] = [*labels[: ins[0].ndim]]
    inside = _labels(ins[0].ndim, p["beside"])
    for d, size, step, dilation, r in zip(
        p["axes"], p["sizes"], p["steps"], p["dilations"], inside, strict=True
    ):
        dims[d] = Window(labels[d], 0, step, size, labels[r], dilation)
    return Indices((tuple(dims),), (tuple(labels),))


def _view(xp: Any, x: Any, at: Place, **p: Any) -> Any:
    (box,), (has,) = at.outs, at.ins
    shape, strides = [hi - lo for lo, hi in box], [*x.strides, *[0] * (len(box) - x.ndim)]
    starts = [0] * x.ndim
    inside = _labels(x.ndim, p["beside"])
    for d, step, dilation, r in zip(p["axes"], p["steps"], p["dilations"], inside, strict=True):
        starts[d] = step * box[d][0] + dilation * box[r][0] - has[d][0]
        strides[r] += dilation * x.strides[d]
        strides[d] *= step
    if 0 in shape:
        return x[:0].reshape(-1)[:0].reshape(shape)
    return xp.lib.stride_tricks.as_strided(
        x[tuple([slice(a, None) for a in starts])], shape, strides
    )


def _grad(g: Array, y: Array, x: Array, **p: Any) -> Sequence[Array]:
    """Each element gets what the windows that have it get. It is the same look, at slopes that are put
    apart by the step, surrounded with zeros and turned around along windows."""
    inside = _labels(x.ndim, p["beside"])
    shape, widths, places = [*g.shape], [(0, 0)] * g.ndim, [1] * g.ndim
    for d, size, step, dilation in zip(
        p["axes"], p["sizes"], p["steps"], p["dilations"], strict=True
    ):
        places[d], shape[d] = step, step * (g.shape[d] - 1) + 1
        widths[d] = (dilation * (size - 1), x.shape[d] - shape[d])
    if any(n != 1 for n in places):
        apart = apply("full", shape=tuple(shape), value=0, dtype=g.dtype)
        params = {"starts": (0,) * g.ndim, "steps": tuple(places), "mode": "set"}
        g = apply("update_slice", apart, g, **params)
    ones = (1,) * len(inside)
    turned = add_zeros(flip(g, axis=tuple(inside)), widths)
    params = p | {"steps": ones, "beside": tuple(inside)}
    found = apply("slide", turned, **params)
    new = tuple([r for r, b in zip(inside, p["beside"], strict=True) if b == NEW])
    if not new:
        return (flip(found, axis=tuple(inside)),)
    return (add_up(found, new),)


op(
    "slide",
    infer=_rule,
    takes={"axes": AXES, "sizes": PLACES, "steps": PLACES, "dilations": PLACES, "beside": BESIDE},
    indices=_indices,
    view=_view,
    grad=_grad,
    slides=True,
    cost=MOVE,
)


def slide(
    x: Array,
    axes: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int] = (),
    dilations: Sequence[int] = (),
) -> Array:
    """Windows along axes, which are in order, with an axis for each at the end."""
    ones = (1,) * len(axes)
    return apply(
        "slide",
        x,
        axes=tuple(axes),
        sizes=tuple(sizes),
        steps=tuple(steps) or ones,
        dilations=tuple(dilations) or ones,
        beside=(NEW,) * len(axes),
    )


# -- products --------------------------------------------------------------------------------
def _correlation_rule(x: Spec, w: Spec, *, before: int, after: int) -> Spec:
    count = x.shape[-1] + before + after - w.shape[-1] + 1 if x.ndim and w.ndim else 0
    if count < 1 or (x.ndim > 1 < w.ndim and x.shape[:-1] != w.shape[:-1]):
        raise unfit("correlation", (x, w), "rows, of which the second one is no longer")
    return Spec((*(x if x.ndim > 1 else w).shape[:-1], count), promote(x.dtype, w.dtype))


def _correlation_indices(ins: Specs, outs: Specs, p: Params) -> Indices:
    batch = tuple(LETTERS[: outs[0].ndim - 1])
    window = Window("y", -p["before"], 1, ins[1].shape[-1], "z")
    left, right = (batch if v.ndim > 1 else () for v in ins)
    return Indices(((*left, window), (*right, "z")), ((*batch, "y"),), (("z", "sum"),))


def _correlation_kernel(
    xp: Any, out: Any, x: Any, w: Any, *, before: int, after: int, at: Place
) -> None:
    (lo, hi), (begin, end), (first, last) = at.outs[0][-1], at.ins[0][-1], at.ins[1][-1]
    size, count = last - first, hi - lo
    lo += first - before  # of `x` what this part's windows have
    wide = xp.zeros((*x.shape[:-1], max(count + size - 1, 0)), x.dtype)
    a, b = max(lo, begin), min(lo + wide.shape[-1], end)
    if a < b:
        wide[..., a - lo : b - lo] = x[..., a - begin : b - begin]
    shape, strides = (*wide.shape[:-1], count, size), (*wide.strides, x.itemsize)
    windows = xp.lib.stride_tricks.as_strided(wide, shape, strides)
    xp.copyto(out, xp.matmul(windows, w[..., None])[..., 0], casting="unsafe")


def _correlation_grad(
    g: Array, y: Array, x: Array, w: Array, *, before: int, after: int
) -> Sequence[Array]:
    """Slopes correlated with `w` backwards, and what slid correlated with slopes."""
    n, around = x.shape[-1], [w.shape[-1] - 1 - k for k in (before, after)]
    back = correlation(g, flip(w, axis=-1), max(around[0], 0), max(around[1], 0))
    last = back.ndim - 1
    back = slice_axes(back, {last: (max(-around[0], 0), n, 1)})
    slopes = correlation(x, g, before, after)
    return fitted(back, x.spec), fitted(slopes, w.spec)


def _correlation_batched(size: int, *xs: Mapped, before: int, after: int) -> Sequence[Mapped]:
    """One more axis; of both, if both have some then."""
    every = all(x.ndim > 1 for x, _ in xs)
    x, w = (given_axis(x, size) if every else x[0] for x in xs)
    return [(correlation(x, w, before, after), True)]


def spelled(x: Expression, w: Expression, *, before: int, after: int) -> Expression:
    """A correlation as a sum of products of windows."""
    last = len(x.shape) - 1
    if before or after:
        x = x.call("pad", widths=(*((0, 0),) * last, (before, after)), value=0)
    dtype = promote(x.dtype, w.dtype)
    ones, batch = (1,), LETTERS[: max(last, len(w.shape) - 1)]
    params = {"axes": (last,), "sizes": w.shape[-1:], "steps": ones, "dilations": ones}
    windows = x.astype(dtype).call("slide", **params, beside=(NEW,))
    left, right = batch if last else "", batch if len(w.shape) > 1 else ""
    return windows.call("einsum", w.astype(dtype), text=f"{left}yz,{right}z->{batch}y")


op(
    "correlation",
    infer=_correlation_rule,
    takes={"before": whole(0), "after": whole(0)},
    indices=_correlation_indices,
    kernel=_correlation_kernel,
    grad=_correlation_grad,
    batched=_correlation_batched,
    placed=True,
    cost=lambda ins, outs, p: (
        2.0 * outs[0].size * ins[1].shape[-1],
        float(sum(s.nbytes for s in (*ins, *outs))),
    ),
    dense=True,
)


def correlation(x: Array, w: Array, before: int, after: int) -> Array:
    """The sums of products of one row with each window of another one, which has so many zeros around it."""
    return apply("correlation", x, w, before=before, after=after)


def sliding_window_view(
    x: Operandish, window_shape: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Array:
    """Windows of neighbours along axes, with an axis for each at the end: what reduces or multiplies them
    reads the array, and nothing is copied. (NumPy's is in `np.lib.stride_tricks`.)

    >>> ost.sliding_window_view([1, 2, 3, 4], 3)
    Array([[1, 2, 3],
           [2, 3, 4]], dtype=int64)
    """
    found = as_array(x)
    sizes = listed(window_shape, "sliding_window_view")
    dims = range(found.ndim) if axis is None else listed(axis, "sliding_window_view")
    if len(sizes) != len(dims):
        got = f"{len(sizes)} extents of windows for {len(dims)} axes"
        raise misfit(ArgumentError, "sliding_window_view", got=got, needed="as many of both")
    axes = [axis_of(d, found.ndim, "sliding_window_view") for d in dims]
    for d, n in zip(axes, sizes, strict=True):
        if n < 0 or found.shape[d] < max(n, 1):
            got = f"windows of {n} of {found.shape[d]} along axis {d}"
            needed = "windows that are no longer than that"
            raise misfit(ShapeError, "sliding_window_view", got=got, needed=needed)
    if 0 in sizes:
        shape = [n - sum(k - 1 for d, k in zip(axes, sizes, strict=True) if d == e)
                 for e, n in enumerate(found.shape)]  # fmt: skip
        return apply("full", shape=(*shape, *sizes), value=0, dtype=found.dtype)
    if len({*axes}) < len(axes):  # windows of windows
        for d, n in zip(axes, sizes, strict=True):
            found = slide(found, (d,), (n,))
        return found
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    made = slide(found, [axes[k] for k in order], [sizes[k] for k in order])
    return permute_dims(
        made, (*range(found.ndim), *(found.ndim + order.index(k) for k in range(len(axes))))
    )
