"""Beside an optimizer: gradients that are clipped or gathered, parameters that are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.ops.array.arithmetic import clip, maximum, minimum, sqrt
from ostinato.ops.array.casts import astype
from ostinato.ops.array.concatenation import stack
from ostinato.ops.array.creation import asarray
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import float32, int32
from ostinato.ops.core.tree import flatten, tree_map, unflatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.flow.branches import cond

from .optimizers import Optimizer, State, copy_of, is_trained, paired, wide, zeros_laid_like


def global_norm(grads: Any) -> Array:
    """The norm of all gradients together.

    >>> ost.optim.global_norm({"a": ost.asarray([3.0]), "b": ost.asarray([4.0])})
    Array(5., dtype=float64)
    """
    squares = []
    for g in _floats(grads):
        g = astype(as_array(g), wide(g.dtype))
        squares.append((g * g).sum())
    return sqrt(stack(squares).sum() if squares else as_array(0.0))


def _floats(tree: Any) -> list[Any]:
    return [as_array(x) for x in flatten(tree)[0] if is_trained(x)]


def clip_by_norm(grads: Any, most: float) -> Any:
    """Gradients, shorter if the norm of all together is larger.

    >>> ost.optim.clip_by_norm({"a": ost.asarray([3.0]), "b": ost.asarray([4.0])}, 1.0)
    {'a': Array([0.6], dtype=float64), 'b': Array([0.8], dtype=float64)}
    """
    _check_limit("clip_by_norm", most)
    scale = most / maximum(global_norm(grads), most)
    return tree_map(lambda g: g * astype(scale, g.dtype) if is_trained(g) else g, grads)


def clip_by_value(grads: Any, most: float) -> Any:
    """Gradients whose elements lie between -most and most.

    >>> ost.optim.clip_by_value(ost.asarray([3.0, -0.5]), 1.0)
    Array([ 1. , -0.5], dtype=float64)
    """
    _check_limit("clip_by_value", most)
    return tree_map(lambda g: clip(g, -most, most) if is_trained(g) else g, grads)


def _check_limit(who: str, most: Any) -> None:
    if type(most) in (int, float) and not most > 0:
        raise misfit(ArgumentError, who, got=f"most={most!r}", needed="a number above 0")


@dataclass(frozen=True)
class EMA:
    """A running mean of parameters, to be evaluated with.

        ema = ost.optim.EMA(0.999)
        mean = ema.init(params)
        mean = ema.update(mean, params)
        accuracy(ema.params(mean, params), x, y)

    warm_up: the first steps count more, so that it soon forgets where it began.

    >>> ema = ost.optim.EMA(0.75)
    >>> ema.update(ema.init(ost.zeros(1)), ost.ones(1))["mean"]
    Array([0.25], dtype=float64)
    """

    decay: float = 0.999
    warm_up: bool = False

    def __post_init__(self) -> None:
        if type(self.decay) in (int, float) and not 0 <= self.decay < 1:
            got = f"decay={self.decay!r:.60}"
            raise misfit(ArgumentError, "EMA", got=got, needed="a number from 0 to below 1")

    def init(self, params: Any) -> State:
        """The mean of the parameters as they are now, in float32 or wider; None for what is none."""

        def copy(x: Any) -> Any:
            return copy_of(x, wide(as_array(x).dtype)) if is_trained(x) else None

        return {"step": asarray(0, dtype=int32), "mean": tree_map(copy, params)}

    def update(self, state: State, params: Any) -> State:
        """The mean after one more step."""
        step = as_array(state["step"]) + 1
        decay: Any = self.decay
        if self.warm_up:
            count = astype(step, float32)
            decay = minimum((1 + count) / (10 + count), decay)
        mean, structure = flatten(state["mean"])

        def mixed(old: Array, x: Array) -> Array:
            share = 1 - (astype(decay, old.dtype) if isinstance(decay, Array) else decay)
            return old + share * (astype(x, old.dtype) - old)

        made = [mixed(as_array(m), x) for m, x in zip(mean, _floats(params), strict=True)]
        return {"step": step, "mean": unflatten(structure, made)}

    def params(self, state: State, params: Any) -> Any:
        """The mean in the place of parameters, in their dtypes; whatever else as it is."""
        mean = iter(flatten(state["mean"])[0])
        return tree_map(
            lambda x: astype(as_array(next(mean)), as_array(x).dtype) if is_trained(x) else x,
            params,
        )


@dataclass(frozen=True)
class Accumulate:
    """An optimizer that makes one update of the mean of so many gradients, at the last of these.

    >>> opt = ost.optim.Accumulate(ost.optim.SGD(0.1), every=2)
    >>> w = ost.ones(1)
    >>> w, state = opt.update(w, ost.ones(1), opt.init(w))
    >>> w, opt.update(w, 3 * ost.ones(1), state)[0]
    (Array([1.], dtype=float64), Array([0.8], dtype=float64))
    """

    optimizer: Optimizer
    every: int

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:
            got = f"every={self.every!r:.60}"
            raise misfit(ArgumentError, "Accumulate", got=got, needed="a whole number, 1 or more")

    def init(self, params: Any) -> State:
        """The state before the first gradient."""
        leaves, structure = flatten(params)
        sums = [
            zeros_laid_like(x, wide(as_array(x).dtype)) if is_trained(x) else None for x in leaves
        ]
        return {
            "count": asarray(0, dtype=int32),
            "sum": unflatten(structure, sums),
            "optimizer": self.optimizer.init(params),
        }

    def update(self, params: Any, grads: Any, state: State, *, lr: Any = None) -> tuple[Any, State]:
        """One more gradient; parameters change with the last of `every`."""
        leaves, structure = flatten(params)
        trained = [is_trained(x) for x in leaves]
        old, around = flatten(state["sum"])
        slopes = paired(grads, trained, structure)
        total = [
            as_array(s) + astype(as_array(g), as_array(s).dtype)
            for s, g in zip(old, slopes, strict=True)
        ]
        count = as_array(state["count"]) + 1
        given = [x for x, t in zip(leaves, trained, strict=True) if t]

        def tree(values: Any) -> Any:
            rest = iter(values)
            return unflatten(
                structure, [next(rest) if t else x for x, t in zip(leaves, trained, strict=True)]
            )

        def steps(given: Any, total: Any, inner: Any) -> Any:
            mean = unflatten(around, [s / self.every for s in total])
            new, inner = self.optimizer.update(tree(given), mean, inner, lr=lr)
            new = [x for x, t in zip(flatten(new)[0], trained, strict=True) if t]
            return new, [s * 0 for s in total], inner

        def waits(given: Any, total: Any, inner: Any) -> Any:
            return given, total, inner

        last = count >= self.every
        new, total, inner = cond(last, steps, waits, given, total, state["optimizer"])
        made = {"count": count % self.every, "sum": unflatten(around, total), "optimizer": inner}
        return tree(new), made
