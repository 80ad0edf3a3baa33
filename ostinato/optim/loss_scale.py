"""A scale for losses whose gradients pass through float16.

Numbers of float16 end at 65,504 and lose digits below 6e-5, where gradients often are. So the loss is
multiplied before it is differentiated and the gradients are divided after; where something became
infinite on the way, the step is left out and the scale halved. All of that is arithmetic of the graph:
nobody waits for the workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ostinato.errors import ArgumentError
from ostinato.gradients import Numbers, value_and_grad
from ostinato.ops.array.arithmetic import maximum, minimum
from ostinato.ops.array.casts import astype
from ostinato.ops.array.comparisons import isfinite, logical_and
from ostinato.ops.array.creation import asarray
from ostinato.ops.array.elementwise import where
from ostinato.ops.array.reduction import all as all_of
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import float32, int32, promote
from ostinato.ops.core.tree import flatten, tree_map, unflatten
from ostinato.ops.core.user_line import misfit

__all__ = ["LossScale"]

MIN_SCALE, MAX_SCALE = 2.0**-14, 2.0**24


@dataclass(frozen=True)
class LossScale:
    """The state of a dynamic loss scale: arrays, which go through a compiled step like parameters.

        scale = ost.optim.LossScale.start()

        @ost.compile(precision="mixed_f16")
        def step(weights, scale, x, y):
            value, slopes = scale.value_and_grad(loss)(weights, x, y)
            new = ost.tree_map(lambda w, g: w - 0.1 * g, weights, slopes)
            scale, weights = scale.accept(slopes, new, weights)
            return weights, scale, value

    scale: what losses are multiplied by. good: steps since it changed. skipped: steps left out so far.
    patience: after so many good steps it is doubled.

    >>> scale = ost.optim.LossScale.start()
    >>> scale.value_and_grad(lambda w: (w**2).sum())(ost.arange(3.0, dtype="float32"))[1]
    Array([0., 2., 4.], dtype=float32)
    """

    scale: Any
    good: Any
    skipped: Any
    patience: Any

    @staticmethod
    def start(scale: float = 2.0**15, patience: int = 2000) -> LossScale:
        """The state before the first step."""
        if not (isinstance(scale, (int, float)) and MIN_SCALE <= scale <= MAX_SCALE):
            got, needed = f"scale={scale!r:.60}", f"a number from 2**-14 to {MAX_SCALE:.0f}"
            raise misfit(ArgumentError, "LossScale.start", got=got, needed=needed)
        if type(patience) is not int or not 1 <= patience < 2**31:
            got, needed = f"patience={patience!r:.60}", "a whole number of steps of 1 or more"
            raise misfit(ArgumentError, "LossScale.start", got=got, needed=needed)
        counts = [asarray(n, dtype=int32) for n in (0, 0, patience)]
        return LossScale(asarray(scale, dtype=float32), *counts)

    def value_and_grad(
        self, function: Callable[..., Any], argnums: Numbers = 0, *, has_aux: bool = False
    ) -> Callable[..., tuple[Any, Any]]:
        """As `ost.value_and_grad`, with the loss scaled on the way back, and gradients divided again,
        in float32 or wider."""

        @functools.wraps(function, updated=())
        def scaled(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            made = function(*args, **kwargs)
            value = made[0] if has_aux else made
            return as_array(value) * astype(self.scale, as_array(value).dtype), made

        def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            (_, made), slopes = value_and_grad(scaled, argnums, has_aux=True)(*args, **kwargs)
            return made, tree_map(self._divided, slopes)

        return both

    def _divided(self, slope: Array) -> Array:
        dtype = promote(slope.dtype, float32)
        return astype(slope, dtype) / as_array(self.scale)

    def accept(self, slopes: Any, new: Any, old: Any) -> tuple[LossScale, Any]:
        """The scale of the next step, and the state after this one: the new one if all gradients are
        finite, else the old one, in whose dtypes it stays."""
        fine = asarray(True)
        for slope in flatten(slopes)[0]:
            fine = logical_and(fine, all_of(isfinite(slope)))

        before, structure = flatten(old)
        after, found = flatten(new)
        if found != structure:
            got, needed = f"a new state {found}", f"the structure of the old one, {structure}"
            raise misfit(ArgumentError, "LossScale.accept", got=got, needed=needed)
        kept = [
            where(fine, astype(a, as_array(b).dtype), b) for a, b in zip(after, before, strict=True)
        ]
        return self._after(fine), unflatten(structure, kept)

    def _after(self, fine: Array) -> LossScale:
        scale, good = as_array(self.scale), as_array(self.good) + 1
        grows = good >= self.patience
        higher = where(grows, minimum(scale * 2, MAX_SCALE), scale)
        return LossScale(
            where(fine, higher, maximum(scale / 2, MIN_SCALE)),
            astype(where(logical_and(fine, ~grows), good, 0), int32),
            as_array(self.skipped) + where(fine, 0, 1).astype(int32),
            self.patience,
        )
