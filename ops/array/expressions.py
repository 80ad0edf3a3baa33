"""Values of a graph that passes build, with operators: `e.where(i < 0, i + n, i)`.

Each operator is one node, whose specs follow from the op's own rule. Numbers become constants of the
dtype that they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.build import Builder
from ..core.spec import DType, Shape, Spec, int64, real_of


class Expression:
    """One value; nodes that are made of it stand at its line."""

    __slots__ = ("builder", "line", "value")

    def __init__(self, builder: Builder, value: int, line: str = "") -> None:
        self.builder, self.value, self.line = builder, value, line

    @property
    def spec(self) -> Spec:
        return self.builder.specs[self.value]

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    def call(self, op: str, *others: Expression, **params: Any) -> Expression:
        values = [self.value, *(x.value for x in others)]
        return self._new(self.builder.call(op, *values, line=self.line, **params))

    def _new(self, value: int) -> Expression:
        return Expression(self.builder, value, self.line)

    def number(self, value: float) -> Expression:
        """A number beside this value: of its dtype, or that of its real and imaginary parts."""
        return constant(self.builder, value, real_of(self.dtype), self.line)

    def constant(self, value: float, dtype: DType) -> Expression:
        return constant(self.builder, value, dtype, self.line)

    def _with(self, op: str, other: Expression | float) -> Expression:
        other = other if isinstance(other, Expression) else self.number(other)
        return self.call(op, other)

    # -- elements --------------------------------------------------------------------------
    def __add__(self, other: Expression | float) -> Expression:
        return self._with("add", other)

    def __sub__(self, other: Expression | float) -> Expression:
        return self._with("subtract", other)

    def __mul__(self, other: Expression | float) -> Expression:
        return self._with("multiply", other)

    def __truediv__(self, other: Expression | float) -> Expression:
        return self._with("divide", other)

    def __floordiv__(self, other: Expression | float) -> Expression:
        return self._with("floor_divide", other)

    def __mod__(self, other: Expression | float) -> Expression:
        return self._with("remainder", other)

    def __lt__(self, other: Expression | float) -> Expression:
        return self._with("less", other)

    def __ge__(self, other: Expression | float) -> Expression:
        return self._with("greater_equal", other)

    def __and__(self, other: Expression) -> Expression:
        return self.call("logical_and", other)

    def __or__(self, other: Expression) -> Expression:
        return self.call("logical_or", other)

    def square(self) -> Expression:
        return self.call("square")

    def parts(self) -> tuple[Expression, Expression]:
        """Real and imaginary."""
        return self.call("real_part"), self.call("imag_part")

    def astype(self, dtype: DType) -> Expression:
        return self if self.dtype == dtype else self.call("astype", dtype=dtype)

    # -- shapes ----------------------------------------------------------------------------
    def reshape(self, *shape: int) -> Expression:
        return self if self.shape == shape else self.call("reshape", shape=shape)

    def permute_dims(self, *axes: int) -> Expression:
        return self.call("permute_dims", axes=axes)

    def expand_dims(self, *axes: int) -> Expression:
        return self.call("expand_dims", axes=axes) if axes else self

    def broadcast_to(self, shape: Shape) -> Expression:
        return self.call("broadcast_to", shape=shape)

    # -- parts -----------------------------------------------------------------------------
    def slice(self, parts: Sequence[tuple[int, int, int]]) -> Expression:
        """Slice: of each axis a start, a size and a step."""
        starts, sizes, steps = (tuple(p[k] for p in parts) for k in range(3))
        return self.call("slice", starts=starts, sizes=sizes, steps=steps)

    def take(self, places: Expression, axis: int) -> Expression:
        return self.call("take", places, axis=axis)

    def take_along_axis(self, places: Expression, axis: int) -> Expression:
        return self.call("take_along_axis", places, axis=axis)


def constant(builder: Builder, value: complex, dtype: DType = int64, line: str = "") -> Expression:
    return Expression(builder, builder.call("constant", value=value, dtype=dtype, line=line), line)


def iota(builder: Builder, shape: Shape, axis: int, line: str = "") -> Expression:
    """The place of each element along an axis."""
    params: dict[str, Any] = {"shape": shape, "axis": axis, "dtype": int64}
    return Expression(builder, builder.call("iota", line=line, **params), line)


def where(condition: Expression, x: Expression | float, y: Expression) -> Expression:
    x = x if isinstance(x, Expression) else y.number(x)
    return condition.call("where", x, y)


def permuted(builder: Builder, v: int, axes: Sequence[int], spec: Spec, line: str = "") -> int:
    """A value with its axes in another order."""
    return builder.add("permute_dims", (v,), {"axes": tuple(axes)}, (spec,), line)[0]


def prepend_axes(builder: Builder, v: int, count: int) -> int:
    """A value with so many more axes in front."""
    spec = builder.specs[v]
    spec = Spec((*(1,) * count, *spec.shape), spec.dtype, spec.layout)
    return builder.add("expand_dims", (v,), {"axes": tuple(range(count))}, (spec,))[0]


def reshaped(builder: Builder, v: int, spec: Spec, line: str = "") -> int:
    return builder.add("reshape", (v,), {"shape": spec.shape}, (spec,), line)[0]


def sliced(builder: Builder, v: int, starts: Sequence[int], spec: Spec, line: str = "") -> int:
    """Elements that follow each other from there on."""
    params = {"starts": tuple(starts), "sizes": spec.shape, "steps": (1,) * spec.ndim}
    return builder.add("slice", (v,), params, (spec,), line)[0]


def padded(
    builder: Builder, v: int, axis: int, before: int, spec: Spec, line: str = "", value: Any = 0
) -> int:
    """A value with others along an axis, so many before it, so that it has this spec."""
    behind = spec.shape[axis] - before - builder.specs[v].shape[axis]
    widths = tuple([(before, behind) if d == axis else (0, 0) for d in range(spec.ndim)])
    value = spec.dtype.type(value).item()
    return builder.add("pad", (v,), {"value": value, "widths": widths}, (spec,), line)[0]


def plane(builder: Builder, v: int, axis: int, n: int) -> int:
    """The nth along an axis that is counted from the end; all of what has no such axis, or is repeated
    along it."""
    spec = builder.specs[v]
    at = spec.ndim + axis
    if at < 0 or spec.shape[at] == 1:
        return v
    starts = [n * (d == at) for d in range(spec.ndim)]
    one = Spec((*spec.shape[:at], 1, *spec.shape[at + 1 :]), spec.dtype, spec.layout)
    return sliced(builder, v, starts, one)


def joined(builder: Builder, parts: Sequence[int], axis: int, spec: Spec, line: str = "") -> int:
    return builder.add("concat", parts, {"axis": axis}, (spec,), line)[0]


def without_axis(builder: Builder, v: int, axis: int, spec: Spec, line: str = "") -> int:
    """Without an axis of one element."""
    return builder.add("squeeze", (v,), {"axes": (axis,)}, (spec,), line)[0]


def cast(builder: Builder, value: int, spec: Spec, line: str = "") -> int:
    """A value in another dtype, where layouts are known."""
    return builder.add("astype", (value,), {"dtype": spec.dtype}, (spec,), line)[0]
