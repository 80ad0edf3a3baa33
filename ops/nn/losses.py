"""Losses: how far what a network gives is from what it should give. Those of halves are summed in
float32."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from ostinato.ops.array.arithmetic import abs as absolute
from ostinato.ops.array.arithmetic import maximum
from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import concat, stack
from ostinato.ops.array.creation import iota
from ostinato.ops.array.elementwise import floating, where
from ostinato.ops.array.indexing import take, take_along_axis
from ostinato.ops.array.moments import mean
from ostinato.ops.array.padding import pad
from ostinato.ops.array.reduction import sum as total_of
from ostinato.ops.array.shape import (
    accumulator,
    axes_of,
    axis_of,
    broadcast_to,
    expand_dims,
    moveaxis,
    reshape,
    squeeze,
    stop_gradient,
    widened,
)
from ostinato.ops.array.slicing import slice_axes
from ostinato.ops.array.transcendental import exp, log, log1p, softplus
from ostinato.ops.core.spec import is_integer
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, BoundsError, ShapeError

from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Axis, Operandish
from ..core.operand import Host
from ..flow.repeat_scan import scan
from .composed_layers import log_softmax

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "ctc_loss",
    "dice_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]

Reduction = Literal["mean", "sum", "none"]


def cross_entropy(
    logits: Operandish,
    targets: Operandish,
    /,
    *,
    axis: int = -1,
    weight: Operandish | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """The loss of class indices, or of distributions over the classes, under softmax(logits), as PyTorch has
    it: classes may have weights, by which a mean of indices is divided, a part of each target may be shared by
    all classes (`label_smoothing`), and what has no class (`ignore_index`) does not count.

    An index of no class is an error. What is computed later, as in compiled functions, counts negative
    ones from the last class, as `x[-1]` does.

    >>> ost.nn.cross_entropy([[2.0, 0.0], [0.0, 2.0]], [0, 1])
    Array(0.1269, dtype=float64)
    """
    name = "cross_entropy"
    x, t = floating(logits), as_array(targets)
    d = axis_of(axis, x.ndim, name)
    logp = log_softmax(widened(x), axis=d)
    if not 0 <= label_smoothing <= 1:
        raise misfit(ArgumentError, name, got=f"label_smoothing={label_smoothing}", needed="0 to 1")
    if is_integer(t.dtype):
        losses = _of_classes(logp, t, d, weight, label_smoothing, ignore_index, reduction, name)
        return astype(losses, x.dtype)
    if t.shape != x.shape:
        got = f"targets {t.spec.bare} for logits of shape {x.shape}"
        needed = "class indices, or a distribution in the shape of the logits"
        raise misfit(ShapeError, name, got=got, needed=needed)
    if label_smoothing:
        t = t * (1 - label_smoothing) + label_smoothing / x.shape[d]
    if weight is not None:
        t = t * _weights(weight, x, d, name)
    return astype(_reduced(-total_of(t * logp, axis=d), reduction, name), x.dtype)


def nll_loss(
    log_probs: Operandish,
    targets: Operandish,
    /,
    *,
    axis: int = -1,
    weight: Operandish | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """The loss of class indices under logarithms of probabilities; `weight` and `ignore_index` as in
    `cross_entropy`.

    >>> ost.nn.nll_loss([[-0.5, -1.0], [-2.0, -0.25]], [0, 1])
    Array(0.375, dtype=float64)
    """
    x, t = floating(log_probs), as_array(targets)
    d = axis_of(axis, x.ndim, "nll_loss")
    made = _of_classes(widened(x), t, d, weight, 0.0, ignore_index, reduction, "nll_loss")
    return astype(made, x.dtype)


def _of_classes(
    logp: Array,
    t: Array,
    d: int,
    weight: Operandish | None,
    smoothing: float,
    ignored: int | None,
    reduction: str,
    name: str,
) -> Array:
    left = (*logp.shape[:d], *logp.shape[d + 1 :])
    if t.shape != left or not is_integer(t.dtype):
        got, needed = (
            f"class indices {t.spec.bare}"
            if t.shape == left
            else f"class indices of shape {t.shape}",
            f"integers of shape {left}" if t.shape == left else f"shape {left}",
        )
        raise misfit(ShapeError, name, got=got, needed=needed)
    _check_classes(t, logp.shape[d], ignored, name)
    known = None if ignored is None else t != ignored
    t = t if known is None else where(known, t, 0)
    losses = -squeeze(take_along_axis(logp, expand_dims(t, axis=d), axis=d), d)
    count: Array | None = None
    along = None if weight is None else _weights(weight, logp, d, name)
    if along is not None:
        count = take(reshape(along, (logp.shape[d],)), t)
        losses = losses * count
    if smoothing:
        shared = -total_of(logp if along is None else logp * along, axis=d)
        losses = losses * (1 - smoothing) + shared * (smoothing / logp.shape[d])
    if known is not None:
        losses = where(known, losses, 0)
        count = astype(known, logp.dtype) if count is None else where(known, count, 0)
    if reduction == "mean" and count is not None:
        return total_of(losses) / total_of(count)
    return _reduced(losses, reduction, name)


def _weights(weight: Operandish, x: Array, d: int, name: str) -> Array:
    w = as_array(weight)
    if w.shape != (x.shape[d],):
        got = f"weights {w.spec.bare}"
        raise misfit(ShapeError, name, got=got, needed=f"one for each of {x.shape[d]} classes")
    return reshape(astype(w, accumulator(x.dtype)), (-1, *(1,) * (x.ndim - d - 1)))


def _check_classes(t: Array, classes: int, ignored: int | None, name: str) -> None:
    """All are classes, as far as they are known and lie in this process."""
    known = t._operand
    parts = [known.value] if isinstance(known, Host) else getattr(known, "parts", ())
    for part in parts:
        if not isinstance(part, np.ndarray) or not part.size:
            continue
        part = part if ignored is None else np.where(part == ignored, 0, part)
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= classes:
            got = f"class {low if low < 0 else high}"
            needed = f"classes from 0 to {classes - 1}"
            do = "say ignore_index=, the number that stands for no class"
            raise misfit(BoundsError, name, got=got, needed=needed, do=do)


def _reduced(losses: Array, reduction: str, name: str) -> Array:
    match reduction:
        case "mean":
            return mean(losses)
        case "sum":
            return total_of(losses)
        case "none":
            return losses
    got = f"reduction={reduction!r}"
    raise misfit(ArgumentError, name, got=got, needed="'mean', 'sum' or 'none'")


def _difference(x: Operandish, y: Operandish) -> Array:
    return as_array(x) - y


def mse_loss(x: Operandish, y: Operandish, /, *, reduction: Reduction = "mean") -> Array:
    """Squared differences.

    >>> ost.nn.mse_loss([1.0, 2.0], [1.0, 4.0])
    Array(2., dtype=float64)
    """
    difference = _difference(x, y)
    return _reduced(difference * difference, reduction, "mse_loss")


def l1_loss(x: Operandish, y: Operandish, /, *, reduction: Reduction = "mean") -> Array:
    """Absolute differences.

    >>> ost.nn.l1_loss([1.0, 2.0], [1.0, 4.0])
    Array(1., dtype=float64)
    """
    return _reduced(absolute(_difference(x, y)), reduction, "l1_loss")


def huber_loss(
    x: Operandish, y: Operandish, /, *, delta: float = 1.0, reduction: Reduction = "mean"
) -> Array:
    """Half of squared differences up to `delta`, and beyond straight on.

    >>> ost.nn.huber_loss([0.0, 0.0], [1.0, 4.0], reduction="none")
    Array([0.5, 3.5], dtype=float64)
    """
    far = absolute(_difference(x, y))
    losses = where(far <= delta, 0.5 * far * far, delta * (far - 0.5 * delta))
    return _reduced(losses, reduction, "huber_loss")


def smooth_l1_loss(
    x: Operandish, y: Operandish, /, *, beta: float = 1.0, reduction: Reduction = "mean"
) -> Array:
    """Absolute differences less half of `beta`; parabolas below that.

    >>> ost.nn.smooth_l1_loss([0.0, 0.0], [1.0, 4.0], beta=2.0, reduction="none")
    Array([0.25, 3.  ], dtype=float64)
    """
    far = absolute(_difference(x, y))
    losses = far if not beta else where(far < beta, far * far * (0.5 / beta), far - 0.5 * beta)
    return _reduced(losses, reduction, "smooth_l1_loss")


def binary_cross_entropy(
    probs: Operandish,
    targets: Operandish,
    /,
    *,
    weight: Operandish | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """The loss of probabilities of yes, where targets are 0, 1 or between; logarithms of 0 count as -100.

    >>> ost.nn.binary_cross_entropy([0.5, 0.75], [1.0, 0.0])
    Array(1.0397, dtype=float64)
    """
    p = floating(probs)
    x, t = widened(p), astype(as_array(targets), accumulator(p.dtype))
    yes = where(x > 0, log(where(x > 0, x, 1)), -100.0)
    no = where(x < 1, log1p(-where(x < 1, x, 0)), -100.0)
    losses = -(t * maximum(yes, -100.0) + (1 - t) * maximum(no, -100.0))
    losses = losses if weight is None else losses * weight
    return astype(_reduced(losses, reduction, "binary_cross_entropy"), p.dtype)


def binary_cross_entropy_with_logits(
    logits: Operandish,
    targets: Operandish,
    /,
    *,
    weight: Operandish | None = None,
    pos_weight: Operandish | None = None,
    reduction: Reduction = "mean",
) -> Array:
    """`binary_cross_entropy` of sigmoid(logits), without overflow; `pos_weight` is for the part of yes.

    >>> ost.nn.binary_cross_entropy_with_logits([0.0, 100.0], [1.0, 0.0])
    Array(50.3466, dtype=float64)
    """
    given = floating(logits)
    x, t = widened(given), astype(as_array(targets), accumulator(given.dtype))
    yes = t if pos_weight is None else t * pos_weight
    above = x > 0
    far, size = where(above, (1 - t) * x, -yes * x), where(above, x, -x)
    losses = far + (1 if pos_weight is None else 1 - t + yes) * softplus(-size)
    losses = losses if weight is None else losses * weight
    return astype(_reduced(losses, reduction, "binary_cross_entropy_with_logits"), given.dtype)


def kl_div(
    log_probs: Operandish,
    targets: Operandish,
    /,
    *,
    log_target: bool = False,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
) -> Array:
    """target * (log(target) - log_probs): the divergence of what is given by logarithms of probabilities
    from the targets, as PyTorch has it. "batchmean" is the sum for each sample of the first axis.

    >>> ost.nn.kl_div([-1.0, -0.5], [0.5, 0.5], reduction="sum")
    Array(0.0569, dtype=float64)
    """
    x = floating(log_probs)
    wide, t = widened(x), widened(floating(targets))
    losses = exp(t) * (t - wide) if log_target else t * (log(where(t > 0, t, 1)) - wide)
    if reduction == "batchmean":
        made = total_of(losses) / float(x.shape[0] if x.ndim else 1)
    else:
        made = _reduced(losses, reduction, "kl_div")
    return astype(made, x.dtype)


def dice_loss(
    probs: Operandish,
    targets: Operandish,
    /,
    *,
    axis: Axis = None,
    smooth: float = 1.0,
    squared: bool = False,
    reduction: Reduction = "mean",
) -> Array:
    """1 - (2 * sum(p*t) + smooth) / (sum(p) + sum(t) + smooth), summed over `axis`, such as those of space; of
    squares below, if so said. It says how little two masks overlap.

    >>> ost.nn.dice_loss([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], smooth=0.0)
    Array(0.3333, dtype=float64)
    """
    p = floating(probs)
    x, t = widened(p), astype(as_array(targets), accumulator(p.dtype))
    axes = axes_of(axis, x.ndim, "dice_loss")
    both, sizes = x * t, x * x + t * t if squared else x + t
    overlap = 2 * total_of(both, axis=axes) + smooth
    losses = 1 - overlap / (total_of(sizes, axis=axes) + smooth)
    return astype(_reduced(losses, reduction, "dice_loss"), p.dtype)


def ctc_loss(
    log_probs: Operandish,
    targets: Operandish,
    input_lengths: Operandish | None = None,
    target_lengths: Operandish | None = None,
    /,
    *,
    blank: int = 0,
    layout: Literal["NTC", "TNC"] = "NTC",
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Array:
    """The loss of sequences of labels (samples, length) under logarithms of probabilities for each sample,
    time and class: minus the logarithm of all ways to say them, each label once or more and blanks between.
    The mean is of losses over lengths of targets. What is too long for its input is infinite, or 0.

    >>> ost.nn.ctc_loss(ost.log([[[0.5, 0.5], [0.5, 0.5]]]), [[1]])
    Array(0.2877, dtype=float64)
    """
    name = "ctc_loss"
    x, t = floating(log_probs), as_array(targets)
    if layout not in ("NTC", "TNC") or x.ndim != 3:
        got = f"layout={layout!r:.20} of {x.ndim} axes"
        raise misfit(ArgumentError, name, got=got, needed="'NTC' or 'TNC', and three axes")
    p = widened(x if layout == "TNC" else moveaxis(x, 0, 1))
    long, samples, classes = p.shape
    if t.ndim != 2 or t.shape[0] != samples or not is_integer(t.dtype) or not 0 <= blank < classes:
        got = f"targets {t.spec.bare}, blank={blank} for {samples} samples of {classes} classes"
        needed = "integers (samples, length), and a blank that is a class"
        raise misfit(ShapeError, name, got=got, needed=needed)
    most = t.shape[1]
    lengths = [
        broadcast_to(as_array(n if given is None else given), (samples,))
        for given, n in ((input_lengths, long), (target_lengths, most))
    ]
    t = where(iota(t.shape, 1) < lengths[1][:, None], t, blank)
    never = -1e30  # the logarithm of 0, from which slopes are finite
    states = 2 * most + 1  # blank, label, blank, ..., label, blank
    blanks = apply("full", shape=(samples, most + 1), value=blank, dtype=t.dtype)
    pairs = reshape(stack([blanks[:, :most], t], axis=2), (samples, 2 * most))
    ways = concat([pairs, blanks[:, :1]], axis=1)
    behind = slice_axes(ways, {1: (0, max(states - 2, 0), 1)})
    ahead = slice_axes(ways, {1: (min(2, states), max(states - 2, 0), 1)})
    leap = pad((ahead != behind) & (ahead != blank), ((0, 0), (min(2, states), 0)))[:, :states]
    said = take_along_axis(p, broadcast_to(ways[None], (long, samples, states)), axis=2)
    said = where(said < never, never, said)

    def moved(a: Array, by: int) -> Array:
        whole = pad(a, ((0, 0), (by, 0)), value=never)
        return slice_axes(whole, {1: (0, states, 1)})

    def turn(a: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        e, time = item
        one, two = moved(a, 1), where(leap, moved(a, 2), never)
        top = stop_gradient(maximum(maximum(a, one), two))
        after = top + log(exp(a - top) + exp(one - top) + exp(two - top)) + e
        return where(time < lengths[0][:, None], after, a), None

    start = where(iota((samples, states), 1) == 0, astype(as_array(0.0), p.dtype), never)
    last, _ = scan(turn, start, (said, iota((long,), 0)))
    end = 2 * lengths[1][:, None]
    a = take_along_axis(last, end, axis=1)[:, 0]
    b = take_along_axis(last, where(end > 0, end - 1, 0), axis=1)[:, 0]
    b = where(lengths[1] > 0, b, never)
    top = stop_gradient(maximum(a, b))
    losses = -(top + log(exp(a - top) + exp(b - top)))
    losses = where(losses > -never / 2, 0.0 if zero_infinity else math.inf, losses)
    if reduction == "mean":
        losses = losses / astype(maximum(lengths[1], 1), p.dtype)
    return astype(_reduced(losses, reduction, name), x.dtype)
