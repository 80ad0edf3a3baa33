"""What a mask picks while a function is traced: `x[mask]`, of which nobody knows how many there are.

Most programs do not ask. A Picked has the array that is picked from, and the mask; then

    x[mask] = f(x[mask])     where(mask, f(where(mask, x, 0.5)), x)
    x[mask].mean()           mean(x, where=mask)
    nonzero(mask)            iota[mask], along each axis

Operations of elements are done on all, with others in the place of those that are not picked (`Op.calm`),
so that these make no NaN, in gradients neither. Who asks for a shape, or for anything else that depends on
it, gets the error that names what to do."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, cast

from ostinato.errors import DataDependentShapeError

from ..core import array
from ..core.apply import apply, apply_all, as_array, as_array_of
from ..core.array import Array, Term
from ..core.array_methods import Axis, Operandish, export, functions
from ..core.exact import exact_items
from ..core.registry import Op
from ..core.spec import DType, Shape, int64, is_inexact
from ..core.user_line import is_ours, misfit, on_behalf, user_line
from .casts import astype
from .elementwise import where
from .shape import axes_of, reshape

P = ParamSpec("P")
MOST_COMPARED = 1000  # operations that two masks are made of


class Picked(Array):
    """The elements of an array for which a mask is True; the mask's axes begin at `axis`, and become one.
    Its size, a number that is not known yet, may be used in computations."""

    __slots__ = ("along", "axis", "line", "mask", "what", "whole")
    along: int | None  # the axis of the mask whose places these are, as `nonzero` gives them
    axis: int
    line: str  # of the user, who picked them
    what: str  # that made them
    mask: Array
    whole: Array

    if not TYPE_CHECKING:
        spec = property(lambda self: self.refuse())
        _operand = property(lambda self: self.refuse())
        _term = property(lambda self: self.refuse())
        _is_traced = True

    def refuse(self) -> NoReturn:
        """Raise the error of who asks how many there are."""
        with on_behalf(self.line):
            array.reader.known(self.mask, self.what, shape=True)
        raise AssertionError("a mask that is known")

    @property
    def dtype(self) -> DType:
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        return self.whole.ndim - self.mask.ndim + 1

    @property
    def trailing(self) -> int:
        """The axes behind those of the mask."""
        return self.whole.ndim - self.axis - self.mask.ndim

    @property
    def size(self) -> int:
        if is_ours(sys._getframe(1).f_code):
            self.refuse()
        return self._count * (self.whole.size // max(self.mask.size, 1))

    @property
    def shape(self) -> Shape:
        if is_ours(sys._getframe(1).f_code):
            self.refuse()
        before = self.whole.shape[: self.axis]
        return (*before, self._count, *self.whole.shape[self.axis + self.mask.ndim :])

    @property
    def _count(self) -> int:
        """A number for the user's computations; the library's own would decide by it."""
        count = functions["sum"](self.mask)
        count.weak = int
        return cast(int, count)

    def __repr__(self) -> str:
        return f"Array({self.dtype.name}, as many as a mask picks, traced)"

    __str__ = __repr__

    def like(self, whole: Array, axis: int) -> Picked:
        """Pick by the same mask of another array."""
        return pick(whole, self.mask, axis, self.what, self.line)

    def __copy__(self) -> Array:
        return self.like(self.whole, self.axis)

    def ravel(self, order: str = "C") -> Array:
        return self.__copy__() if self.ndim == 1 else super().ravel(order)

    flatten = ravel

    @property
    def T(self) -> Array:
        """With its axes reversed; those of the mask stay in order."""
        first, last = range(self.axis), range(self.axis + self.mask.ndim, self.whole.ndim)
        own = range(self.axis, self.axis + self.mask.ndim)
        return self.like(self.whole.transpose([*last[::-1], *own, *first[::-1]]), self.trailing)

    def _become(self, made: Array) -> None:
        if not isinstance(made, Picked):
            self.refuse()
        self.whole, self.mask, self.axis = made.whole, made.mask, made.axis

    @property
    def places(self) -> Array:
        """The mask, with axes that broadcast to the array's."""
        return (
            reshape(self.mask, self.mask.shape + (1,) * self.trailing)
            if self.trailing
            else self.mask
        )

    def filled(self, value: float, whole: int = 1) -> Array:
        """All elements, with a number where they are not picked, another one among whole numbers."""
        number = as_array_of(value if is_inexact(self.dtype) else whole, self.dtype)
        return where(self.places, self.whole, astype(number, self.dtype))

    def running(self, function: Callable[[Array], Array], neutral: Any) -> Picked:
        """Apply a running function of a row, which gives of each element and all before it, one of
        which changes nothing."""
        if self.ndim > 1:
            self.refuse()
        row = where(self.mask, self.whole, astype(neutral, self.dtype))
        return self.like(reshape(function(reshape(row, (-1,))), self.mask.shape), 0)

    def place(self, find: Callable[[Array], Array], worst: Any) -> Array:
        """The place, among what is picked, of an element that is found in a row: how many are before it."""
        all_of = reshape(where(self.places, self.whole, astype(worst, self.dtype)), (-1,))
        picked = functions["broadcast_to"](self.places, self.whole.shape)
        numbers = apply("iota", shape=all_of.shape, axis=0, dtype=int64)
        before = reshape(picked, (-1,)) & (numbers < find(all_of))
        return functions["sum"](before)

    def flattened_picks(self) -> Array:
        """Return what is picked among zeros, the axes of the mask as one."""
        y, end = self.filled(0, 0), self.axis + self.mask.ndim
        return reshape(y, (*y.shape[: self.axis], self.mask.size, *y.shape[end:]))

    def goes_with(self, other: Picked) -> bool:
        """Whether the other one has as many, by the same mask."""
        return self.trailing == other.trailing and are_same(self.mask, other.mask)

    def aligned(self, x: Array, name: str) -> Array:
        """Another operand, as it is to stand beside all elements."""
        if isinstance(x, Picked):
            if not self.goes_with(x):
                raise _apart(name, "what two masks pick", "the same mask of both")
            return x.whole
        if x.ndim <= self.trailing:
            return x
        at = x.ndim - self.trailing - 1
        if x.shape[at] != 1:
            raise _apart(name, f"x[mask] and {x.spec.bare}", "as many of both")
        return reshape(x, (*x.shape[:at], *(1,) * self.mask.ndim, *x.shape[at + 1 :]))

    def reduced(
        self,
        function: Callable[..., Array],
        nothing: Callable[[DType], Any] | None,
        axis: Axis,
        which: Operandish | None = None,
        keepdims: bool = False,
        **how: Any,
    ) -> Array:
        """A reduction along some of its axes. `nothing`: what there is of no elements in dtypes that have no
        NaN."""
        axes = axes_of(axis, self.ndim, function.__name__)
        width = self.mask.ndim
        its = range(self.axis, self.axis + width)
        spread = [a + (width - 1) * (a > self.axis) for a in axes if a != self.axis]
        mask = (
            None if which is None else self.aligned(as_array(which), f"{function.__name__}(where=)")
        )
        how["keepdims"] = keepdims
        if self.axis not in axes:
            made = function(self.filled(0.5), tuple(spread), where=mask, **how)
            before = 0 if keepdims else sum(a < self.axis for a in axes)
            return self.like(made, self.axis - before)
        mask = self.places if mask is None else self.places & mask
        fallback = nothing is not None and how.get("initial") is None and self.dtype.kind != "c"
        if fallback and nothing is not None:
            how["initial"] = as_array_of(nothing(self.dtype), self.dtype)
        whole_axes = (*spread, *its)
        made = function(self.whole, whole_axes, where=mask, **how)
        if fallback and is_inexact(self.dtype):
            counted = functions["broadcast_to"](mask, self.whole.shape)
            count = functions["sum"](counted, whole_axes, keepdims=keepdims)
            made = where(count > 0, made, astype(math.nan, self.dtype))
        if keepdims and width > 1:
            shape = made.shape
            made = reshape(made, (*shape[: self.axis], 1, *shape[self.axis + width :]))
        return made


def pick(whole: Array, mask: Array, axis: int, what: str = "x[mask]", line: str = "") -> Picked:
    made: Picked = object.__new__(Picked)
    made.whole, made.mask, made.axis, made.along = whole, mask, axis, None
    made.what, made.line = what, line or user_line()
    made._k, made._began, made._of, made.weak = 0, array._traces, None, None
    return made


def places_of(mask: Array) -> list[Picked]:
    """The places along each axis where a mask is True."""
    found = []
    for d in range(mask.ndim):
        numbers = apply("iota", shape=mask.shape, axis=d, dtype=int64)
        found.append(pick(numbers, mask, 0, "nonzero"))
        found[-1].along = d
    return found


def _apart(name: str, got: str, needed: str) -> Exception:
    return misfit(
        DataDependentShapeError,
        name,
        got=f"{got} while a function is traced, where nobody knows how many there are",
        needed=needed,
        do="use ost.where(mask, x, 0) in the place of x[mask]",
    )


def are_same(a: Array, b: Array) -> bool:
    """Whether two arrays are made of the same by the same operations; copies are what they are of."""
    waiting = [(array.term_of(a), array.term_of(b))]
    seen = set[tuple[tuple[int, int], tuple[int, int]]]()
    while waiting:
        (s, j), (t, k) = map(_original, waiting.pop())
        pair = ((id(s), j), (id(t), k))
        if (s is t and j == k) or pair in seen:
            continue
        seen.add(pair)
        if len(seen) > MOST_COMPARED or not _alike(s, t, j, k):
            return False
        if s.op is not None:
            waiting.extend(zip(s.inputs, t.inputs, strict=True))
    return True


def _original(made: tuple[Term, int]) -> tuple[Term, int]:
    while (op := made[0].op) is not None and op.name == "copy":
        (made,) = made[0].inputs
    return made


def _alike(s: Term, t: Term, j: int, k: int) -> bool:
    """Whether two terms do the same to what they are given."""
    if s.op is None or t.op is None:
        value = s.operands[j] if s.operands is not None else None
        return value is not None and t.operands is not None and value is t.operands[k]
    if s.op is not t.op or j != k or len(s.inputs) != len(t.inputs) or s.specs != t.specs:
        return False
    return exact_items(s.params) == exact_items(t.params)


# -- operations and reductions -------------------------------------------------------------
@export
def apply_picked(op: Op, operands: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    """The results of an operation some of whose operands are what a mask picks."""
    first = next(x for x in operands if isinstance(x, Picked))
    if not op.aligns or (op.takes and not op.moves.converts):
        first.refuse()
    beside = [first.aligned(x, op.name) for x in operands]
    given = [
        x.filled(op.element.calm) if isinstance(x, Picked) else y
        for x, y in zip(operands, beside, strict=True)
    ]
    made = apply_all(op.name, *given, **params)
    return tuple([first.like(y, y.ndim - first.trailing - first.mask.ndim) for y in made])


def product(multiply: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """The product of matrices some of which a mask picks: over what is picked, or row by row."""
    rows = b.ndim - min(b.ndim, 2)
    if isinstance(a, Picked) and isinstance(b, Picked):
        if a.axis < a.ndim - 1 or b.axis != rows:
            a.refuse()
        if not are_same(a.mask, b.mask):
            raise _apart("matmul", "what two masks pick", "the same mask of both")
        return multiply(a.flattened_picks(), b.flattened_picks())
    if isinstance(a, Picked):
        if a.axis != a.ndim - 2 or b.ndim > 2:
            a.refuse()
        return a.like(multiply(a.filled(0, 0), b), a.axis)
    assert isinstance(b, Picked)
    if b.axis <= rows or b.mask.ndim > 1:
        b.refuse()
    made = multiply(a, b.filled(0, 0))
    return b.like(made, made.ndim - 1)


def takes_picks(
    nothing: Callable[[DType], Any] | None = None,
) -> Callable[[Callable[P, Array]], Callable[P, Array]]:
    """Let a reduction that has `where=` take what a mask picks."""

    def decorate(function: Callable[P, Array]) -> Callable[P, Array]:
        @functools.wraps(function)
        def run(*args: P.args, **named: P.kwargs) -> Array:
            x: Any = args[0] if args else None
            if x.__class__ is not Picked:
                return function(*args, **named)
            axis: Any = args[1] if len(args) > 1 else None
            how: dict[str, Any] = {"axis": axis, **named}
            return x.reduced(function, nothing, how.pop("axis"), how.pop("where", None), **how)

        return run

    return decorate
