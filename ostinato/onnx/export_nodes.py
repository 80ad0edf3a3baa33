"""What becomes of our operations in ONNX: a function for each, by name.

A value whose channels are last, as windows have them here, is written with channels first, as ONNX has them,
and moved back only where somebody reads it so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from ostinato.errors import OstinatoError, UnknownOpError
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import DType, bool_, int64, is_float, promote
from ostinato.ops.core.user_line import short

Known = np.ndarray[Any, Any]
Names = Sequence[str]
Export = Callable[["Body", Node, range], Any]  # names of its results; None: it has put them

EXPORTS: dict[str, Export] = {}


def export(*names: str) -> Callable[[Export], Export]:
    """Enters a function into the table."""

    def enter(function: Export) -> Export:
        EXPORTS.update(dict.fromkeys(names, function))
        return function

    return enter


class Writer:
    """The nodes of an ONNX graph as they are made; graphs within it share its names and constants."""

    def __init__(self, opset: int, taken: set[str], outer: Writer | None = None) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, Known] = outer.constants if outer else {}
        self._taken = taken
        self._same: dict[Any, str] = outer._same if outer else {}
        self._counts: Iterator[int] = outer._counts if outer else itertools.count()

    def inner(self) -> Writer:
        return Writer(self.opset, self._taken, self)

    def fresh(self, op: str) -> str:
        while (name := f"{op.lower()}{next(self._counts)}") in self._taken:
            pass
        return name

    def node(self, op: str, inputs: Names, outputs: Names, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), **attributes))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = self.fresh(op)
        self.node(op, inputs, [name], **attributes)
        return name

    def constant(self, value: Any, dtype: Any = None, name: str = "") -> str:
        """Equal small ones once."""
        value = np.asarray(value, dtype)
        key = (value.dtype.name, value.shape, value.tobytes()) if value.size <= 64 else id(value)
        if key not in self._same:
            self._same[key] = name or self.fresh("constant")
            self.constants[self._same[key]] = value
        return self._same[key]

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def reads(self, node: Any) -> list[str]:
        """Names that a node reads, those of graphs within it too."""
        inner = [n for a in node.attribute for n in a.g.node]
        outs = [o.name for a in node.attribute for o in a.g.output]
        return [*node.input, *outs, *itertools.chain(*map(self.reads, inner))]

    def pruned(self, outputs: Names) -> list[Any]:
        """The nodes that outputs need."""
        wanted, kept = set(outputs), list[Any]()
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                wanted.update(self.reads(node))
                kept.append(node)
        return kept[::-1]


class Body:
    """A graph that is being written: the names of its values."""

    def __init__(
        self, writer: Writer, graph: Graph, names: Names, values: Mapping[int, Known]
    ) -> None:
        self.writer = writer
        self.graph = graph
        self.values = dict(values)  # that are known
        self.called = dict(enumerate(names))
        self.plain = {v: n for v, n in self.called.items() if v not in self.values}
        self.first: dict[int, str] = {}  # of those with channels last, moved to the second axis
        self.merged: dict[int, str] = {}  # of results of convolutions the same, groups side by side

    def put(self, v: int, name: str) -> None:
        self.plain[v] = name

    def shape(self, v: int) -> tuple[int, ...]:
        return self.graph.specs[v].shape

    def dtype(self, v: int) -> DType:
        return self.graph.specs[v].dtype

    def name(self, v: int) -> str:
        """A name of the value as it is."""
        if v not in self.plain:
            self.plain[v] = self._made(v)
        return self.plain[v]

    def _made(self, v: int) -> str:
        if v in self.values:
            return self.writer.constant(self.values[v], name=self.called.get(v, ""))
        if v in self.first:
            n = len(self.shape(v))
            return self.writer.add("Transpose", self.first[v], perm=[0, *range(2, n), 1])
        n = len(self.shape(v)) - 1
        last = self.writer.add("Transpose", self.merged[v], perm=[0, *range(2, n), 1])
        return self.writer.add("Reshape", last, self.writer.ints(self.shape(v)))

    def channels_first(self, v: int) -> str:
        if v not in self.first:
            n = len(self.shape(v))
            self.first[v] = self.writer.add(
                "Transpose", self.name(v), perm=[0, n - 1, *range(1, n - 1)]
            )
        return self.first[v]

    def cast(self, name: str, now: DType, dtype: DType) -> str:
        if now == dtype:
            return name
        return self.writer.add("Cast", name, to=helper.np_dtype_to_tensor_dtype(dtype))

    def named(self, v: int, dtype: DType) -> str:
        """A name of the value in a dtype."""
        if v in self.values and self.dtype(v) != dtype:
            return self.writer.constant(self.values[v].astype(dtype))
        return self.cast(self.name(v), self.dtype(v), dtype)

    def maker(self, v: int) -> Node | None:
        k = self.graph.producers[v]
        return self.graph.nodes[k] if k >= 0 else None


# -- elementwise -----------------------------------------------------------------------------
_SAME = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "copy": "Identity",
    "cos": "Cos",
    "cosh": "Cosh",
    "divide": "Div",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "mark": "Identity",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "pow": "Pow",
    "reciprocal": "Reciprocal",
    "rint": "Round",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "softplus": "Softplus",
    "sqrt": "Sqrt",
    "stop_gradient": "Identity",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}
_TESTS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "isinf": "IsInf",
    "isnan": "IsNaN",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "logical_xor": "Xor",
}
_BITS = {
    "bitwise_and": ("BitwiseAnd", "And"),
    "bitwise_invert": ("BitwiseNot", "Not"),
    "bitwise_or": ("BitwiseOr", "Or"),
    "bitwise_xor": ("BitwiseXor", "Xor"),
}


class _Terms:
    """Writes expressions: `t.Add(x, 1.0)` is a node; numbers are constants of the dtype."""

    def __init__(self, writer: Writer, dtype: DType) -> None:
        self._writer = writer
        self._dtype = dtype

    def __getattr__(self, op: str) -> Callable[..., str]:
        def make(*xs: Any) -> str:
            names = [x if isinstance(x, str) else self._number(x) for x in xs]
            return self._writer.add(op, *names)

        return make

    def _number(self, x: float) -> str:
        return self._writer.constant(np.asarray(x, self._dtype))


_COMPOSED: dict[str, Callable[..., str]] = {
    "cbrt": lambda t, x: t.Mul(t.Sign(x), t.Pow(t.Abs(x), 1 / 3)),
    "erfc": lambda t, x: t.Sub(1, t.Erf(x)),
    "exp2": lambda t, x: t.Pow(2, x),
    "expm1": lambda t, x: t.Sub(t.Exp(x), 1),
    "hypot": lambda t, x, y: t.Sqrt(t.Add(t.Mul(x, x), t.Mul(y, y))),
    "isfinite": lambda t, x: t.Not(t.Or(t.IsNaN(x), t.IsInf(x))),
    "log10": lambda t, x: t.Div(t.Log(x), math.log(10)),
    "log1p": lambda t, x: t.Log(t.Add(x, 1)),
    "log2": lambda t, x: t.Div(t.Log(x), math.log(2)),
    "logaddexp": lambda t, x, y: t.Add(
        t.Max(x, y), t.Log(t.Add(1, t.Exp(t.Neg(t.Abs(t.Sub(x, y))))))
    ),
    "logit": lambda t, x: t.Log(t.Div(x, t.Sub(1, x))),
    "not_equal": lambda t, x, y: t.Not(t.Equal(x, y)),
    "rsqrt": lambda t, x: t.Reciprocal(t.Sqrt(x)),
    "square": lambda t, x: t.Mul(x, x),
    "trunc": lambda t, x: t.Mul(t.Sign(x), t.Floor(t.Abs(x))),
}


# What has operands of two kinds, or is written otherwise for integers.
_OTHERS = {"floor_divide": "Floor", "remainder": "Mod", "where": "Where"}


def _quotient(t: Any, x: str, y: str, whole: bool) -> str:
    return t.Div(t.Sub(x, t.Mod(x, y)), y) if whole else t.Floor(t.Div(x, y))


def _rest(t: Any, x: str, y: str, whole: bool) -> str:
    return t.Mod(x, y) if whole else t.Sub(x, t.Mul(y, t.Floor(t.Div(x, y))))


def _elementwise(body: Body, node: Node, outs: range) -> str | None:
    writer, op, made = body.writer, node.op, node.specs[0].dtype
    dtypes = [body.dtype(v) for v in node.inputs]
    common = bool_ if op.startswith("logical_") else promote(*dtypes)
    wide = common if made == bool_ else made
    wanted = [bool_ if op == "where" and k == 0 else wide for k in range(len(dtypes))]
    names = _aligned(body, node, wanted)
    moved = names is not None
    if names is None:
        names = [body.named(v, d) for v, d in zip(node.inputs, wanted, strict=True)]
    terms = _Terms(writer, wide)
    if op == "where":
        relu = _is_relu(body, node)
        y = writer.add("Relu", names[2]) if relu else writer.add("Where", *names)
    elif op in _BITS:
        y = writer.add(_BITS[op][made == bool_], *names)
    elif op in _OTHERS:
        x, y = names
        y = (_quotient if op == "floor_divide" else _rest)(terms, x, y, not is_float(wide))
    elif op in _COMPOSED:
        y = _COMPOSED[op](terms, *names)
    else:
        y = writer.add(_SAME.get(op) or _TESTS[op], *names)
    if not moved:
        return y
    body.first[outs[0]] = y
    return None


def _is_relu(body: Body, node: Node) -> bool:
    """Whether it is `where(x <= 0, 0, x)`."""
    condition, zero, x = node.inputs
    test = body.maker(condition)
    return (
        test is not None
        and test.op == "less_equal"
        and test.inputs == (x, zero)
        and is_float(node.specs[0].dtype)
        and zero in body.values
        and not body.values[zero].any()
    )


def _aligned(body: Body, node: Node, dtypes: Sequence[DType]) -> list[str] | None:
    """Operands with channels first, if one is so, and the others, too, or numbers or rows of channels."""
    shape = node.specs[0].shape
    if len(shape) < 3 or not any(v in body.first and v not in body.plain for v in node.inputs):
        return None
    names = []
    for v, dtype in zip(node.inputs, dtypes, strict=True):
        n = len(body.shape(v))
        if v in body.first and n == len(shape):
            names.append(body.cast(body.first[v], body.dtype(v), dtype))
        elif n == 0:
            names.append(body.named(v, dtype))
        elif n == 1:
            to = (-1, *(1,) * (len(shape) - 2))
            if v in body.values:
                names.append(body.writer.constant(body.values[v].astype(dtype).reshape(to)))
            else:
                names.append(body.writer.add("Reshape", body.named(v, dtype), body.writer.ints(to)))
        else:
            return None
    return names


for _name in (*_SAME, *_TESTS, *_BITS, *_COMPOSED, *_OTHERS):
    EXPORTS[_name] = _elementwise


@export("astype")
def _astype(body: Body, node: Node, outs: range) -> str:
    return body.named(node.inputs[0], node.specs[0].dtype)


# -- shapes ----------------------------------------------------------------------------------
FOLDED: dict[str, Callable[..., Known]] = {
    "astype": lambda x, dtype: x.astype(dtype),
    "expand_dims": lambda x, axes: np.expand_dims(x, axes),
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "reshape": lambda x, shape: x.reshape(shape),
    "squeeze": lambda x, axes: np.squeeze(x, axes),
    "stop_gradient": lambda x: x,
}


@export("constant")
def _constant(body: Body, node: Node, outs: range) -> None:
    body.values[outs[0]] = np.asarray(node.kw["value"], node.specs[0].dtype)


@export("full")
def _full(body: Body, node: Node, outs: range) -> str:
    value = body.writer.constant(node.kw["value"], node.specs[0].dtype)
    return body.writer.add("Expand", value, body.writer.ints(node.specs[0].shape))


@export("iota")
def _iota(body: Body, node: Node, outs: range) -> str:
    spec, d, writer = node.specs[0], node.kw["axis"], body.writer
    ends = [writer.constant(np.array(n, np.int64)) for n in (0, spec.shape[d], 1)]
    row = writer.add("Range", *ends)
    to = [-1 if e == d else 1 for e in range(len(spec.shape))]
    row = body.cast(writer.add("Reshape", row, writer.ints(to)), int64, spec.dtype)
    return writer.add("Expand", row, writer.ints(spec.shape))


@export("reshape")
def _reshape(body: Body, node: Node, outs: range) -> str | None:
    (v,), shape = node.inputs, node.specs[0].shape
    if v in body.merged and shape == _together(body.shape(v)):
        body.first[outs[0]] = body.merged[v]
        return None
    if 0 in shape:
        return body.writer.add("Reshape", body.name(v), body.writer.ints(shape), allowzero=1)
    return body.writer.add("Reshape", body.name(v), body.writer.ints(shape))


def _together(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Groups of channels side by side."""
    return (*shape[:-2], shape[-2] * shape[-1])


@export("permute_dims")
def _permute(body: Body, node: Node, outs: range) -> str | None:
    (v,), axes = node.inputs, tuple(node.kw["axes"])
    n = len(axes)
    if v in body.first and v not in body.plain and axes == (0, n - 1, *range(1, n - 1)):
        return body.first[v]
    if n > 2 and axes == (0, *range(2, n), 1):
        body.first[outs[0]] = body.name(v)
        return None
    return body.writer.add("Transpose", body.name(v), perm=axes)


@export("expand_dims", "squeeze")
def _axes(body: Body, node: Node, outs: range) -> str:
    op = "Squeeze" if node.op == "squeeze" else "Unsqueeze"
    return body.writer.add(op, body.name(node.inputs[0]), body.writer.ints(node.kw["axes"]))


@export("broadcast_to")
def _broadcast(body: Body, node: Node, outs: range) -> str:
    shape = body.writer.ints(node.specs[0].shape)
    return body.writer.add("Expand", body.name(node.inputs[0]), shape)


@export("concat")
def _concat(body: Body, node: Node, outs: range) -> str | None:
    dtype, axis = node.specs[0].dtype, node.kw["axis"]
    if all(v in body.first and v not in body.plain for v in node.inputs):
        n = len(node.specs[0].shape)
        at = 0 if axis == 0 else 1 if axis == n - 1 else axis + 1
        names = [body.cast(body.first[v], body.dtype(v), dtype) for v in node.inputs]
        body.first[outs[0]] = body.writer.add("Concat", *names, axis=at)
        return None
    return body.writer.add("Concat", *[body.named(v, dtype) for v in node.inputs], axis=axis)


@export("slice")
def _slice(body: Body, node: Node, outs: range) -> str:
    starts, sizes, steps = (node.kw[k] for k in ("starts", "sizes", "steps"))
    ends = []
    for start, size, step in zip(starts, sizes, steps, strict=True):
        end = start + (size - 1) * step + (1 if step > 0 else -1) if size else start
        ends.append(end if end >= 0 else -(1 << 62))
    ints = body.writer.ints
    given = ints(starts), ints(ends), ints(range(len(starts))), ints(steps)
    return body.writer.add("Slice", body.name(node.inputs[0]), *given)


@export("pad")
def _pad(body: Body, node: Node, outs: range) -> str:
    widths, dtype = node.kw["widths"], node.specs[0].dtype
    pads = body.writer.ints([*[b for b, _ in widths], *[a for _, a in widths]])
    fill = body.writer.constant(node.kw["value"], dtype)
    return body.writer.add("Pad", body.name(node.inputs[0]), pads, fill)


@export("take")
def _take(body: Body, node: Node, outs: range) -> str:
    x, i = node.inputs
    return body.writer.add("Gather", body.name(x), body.named(i, int64), axis=node.kw["axis"])


@export("take_along_axis")
def _take_along(body: Body, node: Node, outs: range) -> str:
    x, i = node.inputs
    d, shape = node.kw["axis"] % len(body.shape(x)), node.specs[0].shape
    wide = [n if e == d else m for e, (n, m) in enumerate(zip(body.shape(x), shape, strict=True))]
    names = []
    for v, to in ((x, tuple(wide)), (i, shape)):
        name = body.name(v) if v == x else body.named(v, int64)
        if body.shape(v) != to:
            name = body.writer.add("Expand", name, body.writer.ints(to))
        names.append(name)
    return body.writer.add("GatherElements", *names, axis=d)


_MODES = {"set": "none", "add": "add", "multiply": "mul", "max": "max", "min": "min"}


@export("put")
def _put(body: Body, node: Node, outs: range) -> str:
    """By places along the first axis."""
    x, i, v = node.inputs
    d, writer, dtype = node.kw["axis"], body.writer, node.specs[0].dtype
    n, k = len(body.shape(x)), len(body.shape(i))
    there = [d, *range(d), *range(d + 1, n)]
    rows = [*range(d, d + k), *range(d), *range(d + k, n + k - 1)]
    target = writer.add("Transpose", body.named(x, dtype), perm=there)
    given = writer.add("Transpose", body.named(v, dtype), perm=rows)
    places = writer.add("Unsqueeze", body.named(i, int64), writer.ints([-1]))
    made = writer.add("ScatterND", target, places, given, reduction=_MODES[node.kw["mode"]])
    return writer.add("Transpose", made, perm=[int(e) for e in np.argsort(there)])


@export("put_along_axis")
def _put_along(body: Body, node: Node, outs: range) -> str:
    x, i, v = node.inputs
    dtype = node.specs[0].dtype
    names = body.named(x, dtype), body.named(i, int64), body.named(v, dtype)
    return body.writer.add("ScatterElements", *names, axis=node.kw["axis"], reduction="add")


@export("update_slice")
def _update(body: Body, node: Node, outs: range) -> str:
    x, v = node.inputs
    shape, dtype, writer = body.shape(v), node.specs[0].dtype, body.writer
    if math.prod(shape) > 1 << 20:
        raise NotImplementedError("updates of so many elements")
    grid = np.moveaxis(np.indices(shape), 0, -1) * np.array(node.kw["steps"], np.int64)
    places = writer.constant((grid + np.array(node.kw["starts"])).astype(np.int64))
    names = body.named(x, dtype), places, body.named(v, dtype)
    return writer.add("ScatterND", *names, reduction=_MODES[node.kw["mode"]])


# -- reductions, orders, products ------------------------------------------------------------
_REDUCTIONS = {
    "max": "ReduceMax",
    "mean": "ReduceMean",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "sum": "ReduceSum",
}
_TRUTHS = {"all": "ReduceMin", "any": "ReduceMax"}


def _reduced(body: Body, node: Node, outs: range) -> str:
    dtype, axes = node.specs[0].dtype, body.writer.ints(node.kw["axes"])
    x = body.named(node.inputs[0], dtype)
    return body.writer.add(_REDUCTIONS[node.op], x, axes, keepdims=0)


def _truth(body: Body, node: Node, outs: range) -> str:
    (v,), narrow = node.inputs, np.dtype(np.int32)
    x = body.cast(body.named(v, bool_), bool_, narrow)
    axes = body.writer.ints(node.kw["axes"])
    return body.cast(body.writer.add(_TRUTHS[node.op], x, axes, keepdims=0), narrow, bool_)


EXPORTS.update(dict.fromkeys(_REDUCTIONS, _reduced))
EXPORTS.update(dict.fromkeys(_TRUTHS, _truth))


@export("argmax_pair", "argmin_pair")
def _extreme(body: Body, node: Node, outs: range) -> Names:
    (v,), axes, writer = node.inputs, node.kw["axes"], body.writer
    down, x = "Max" if node.op == "argmax_pair" else "Min", body.name(v)
    value = writer.add(f"Reduce{down}", x, writer.ints(axes), keepdims=0)
    if len(axes) > 1:
        left = [d for d in range(len(body.shape(v))) if d not in axes]
        shape = [*(body.shape(v)[d] for d in left), math.prod(body.shape(v)[d] for d in axes)]
        x = writer.add("Transpose", x, perm=[*left, *axes])
        x, axes = writer.add("Reshape", x, writer.ints(shape)), (len(left),)
    place = writer.add(f"Arg{down}", x, axis=axes[0], keepdims=0)
    return value, body.cast(place, int64, node.specs[1].dtype)


@export("moments")
def _moments(body: Body, node: Node, outs: range) -> Names:
    """How many, their mean, and the sum of squares around it."""
    (v,), axes, writer = node.inputs, node.kw["axes"], body.writer
    dtype, x = node.specs[1].dtype, body.named(node.inputs[0], node.specs[1].dtype)
    over = writer.ints(axes)
    away = writer.add("Sub", x, writer.add("ReduceMean", x, over, keepdims=1))
    count = np.full(node.specs[0].shape, math.prod(body.shape(v)[d] for d in axes))
    return (
        writer.constant(count, node.specs[0].dtype),
        writer.add("ReduceMean", x, over, keepdims=0),
        body.cast(
            writer.add("ReduceSumSquare", away, over, keepdims=0), dtype, node.specs[2].dtype
        ),
    )


@export("cumulative_sum")
def _sums(body: Body, node: Node, outs: range) -> str:
    x = body.named(node.inputs[0], node.specs[0].dtype)
    return body.writer.add("CumSum", x, body.writer.constant(node.kw["axis"], np.int64))


@export("sort", "argsort")
def _sorted(body: Body, node: Node, outs: range) -> str:
    (v,), d, writer = node.inputs, node.kw["axis"], body.writer
    count = node.specs[0].shape[d]
    made = [writer.fresh("sorted") for _ in range(2)]
    down = int(node.kw["descending"])
    writer.node("TopK", [body.name(v), writer.ints([count])], made, axis=d, largest=down)
    return made[node.op == "argsort"]


@export("matmul")
def _matmul(body: Body, node: Node, outs: range) -> str:
    dtype = node.specs[0].dtype
    return body.writer.add("MatMul", *[body.named(v, dtype) for v in node.inputs])


@export("einsum")
def _einsum(body: Body, node: Node, outs: range) -> str:
    dtype = node.specs[0].dtype
    names = [body.named(v, dtype) for v in node.inputs]
    return body.writer.add("Einsum", *names, equation=node.kw["text"])


# -- windows ---------------------------------------------------------------------------------
def _around(
    body: Body, x: str, space: Sequence[int], sizes: Sequence[int], p: Mapping[str, Any]
) -> tuple[str, list[int]]:
    """An image with channels first, without places that would make more windows, and its padding."""
    pads, cuts = list[tuple[int, int]](), list[tuple[int, int]]()
    rows = (space, sizes, p["strides"], p["dilation"], p["offsets"], p["extents"])
    for n, m, stride, step, offset, count in zip(*rows, strict=True):
        before = -offset
        after = (count - 1) * stride + step * (m - 1) + 1 - n - before
        pads.append((max(before, 0), max(after, 0)))
        cuts.append((max(-before, 0), n if -after < stride else n + after))
    if any(cut != (0, n) for cut, n in zip(cuts, space, strict=True)):
        ints = body.writer.ints
        ends = ints([b for b, _ in cuts]), ints([e for _, e in cuts])
        x = body.writer.add("Slice", x, *ends, ints(range(2, 2 + len(space))))
    return x, [*[b for b, _ in pads], *[a for _, a in pads]]


def _merged(body: Body, v: int) -> str:
    """Images `n space groups channels` with channels first, groups side by side."""
    maker, together = body.maker(v), _together(body.shape(v))
    if maker is not None and maker.op == "reshape" and body.shape(maker.inputs[0]) == together:
        return body.channels_first(maker.inputs[0])
    n = len(together)
    flat = body.writer.add("Reshape", body.name(v), body.writer.ints(together))
    return body.writer.add("Transpose", flat, perm=[0, n - 1, *range(1, n - 1)])


def _filters(body: Body, v: int, turned: bool) -> str:
    """Filters `space in groups out` as ONNX has them: groups and channels that are given (or taken, if turned)
    in front, then the others, then space."""
    shape, writer = body.shape(v), body.writer
    k = len(shape) - 3
    c, g, o = k, k + 1, k + 2
    axes = (g, c, o, *range(k)) if turned else (g, o, c, *range(k))
    sides = [shape[d] for d in axes]
    to = (sides[0] * sides[1], *sides[2:])
    if v in body.values:
        return writer.constant(np.ascontiguousarray(body.values[v].transpose(axes).reshape(to)))
    maker = body.maker(v)
    if not turned and shape[g] == 1 and maker is not None and maker.op == "reshape":
        inner = body.maker(maker.inputs[0])
        if (
            inner is not None
            and inner.op == "permute_dims"
            and tuple(inner.kw["axes"]) == (*range(2, k + 2), 1, 0)
            and body.shape(inner.inputs[0]) == to
        ):
            return body.name(inner.inputs[0])
    return writer.add("Reshape", writer.add("Transpose", body.name(v), perm=axes), writer.ints(to))


@export("conv")
def _conv(body: Body, node: Node, outs: range) -> None:
    x, w = node.inputs
    p, space, sizes = node.kw, body.shape(x)[1:-2], body.shape(w)[:-3]
    k = len(p["extents"])
    if len(body.shape(x)) != k + 3 or len(body.shape(w)) != k + 3:
        raise NotImplementedError("several filters at once")
    image, groups = _merged(body, x), body.shape(w)[-2]
    if set(p["every"]) == {1} and min(p["dilation"]) > 0:
        image, pads = _around(body, image, space, sizes, p)
        body.merged[outs[0]] = body.writer.add(
            "Conv",
            image,
            _filters(body, w, False),
            strides=p["strides"],
            dilations=p["dilation"],
            pads=pads,
            group=groups,
            kernel_shape=sizes,
        )
        return
    if set(p["strides"]) != {1} or max(p["dilation"]) >= 0:
        raise NotImplementedError("no counterpart for such windows")
    before, after, more = list(p["offsets"]), [], []
    steps = [-d for d in p["dilation"]]
    for n, m, s, d, b, e in zip(space, sizes, p["every"], steps, before, p["extents"], strict=True):
        rest = (n - 1) * s + d * (m - 1) + 1 - b - e
        after.append(max(rest, 0))
        more.append(max(-rest, 0))
    body.merged[outs[0]] = body.writer.add(
        "ConvTranspose",
        image,
        _filters(body, w, True),
        strides=p["every"],
        dilations=steps,
        pads=[*before, *after],
        output_padding=more,
        group=groups,
        kernel_shape=sizes,
    )


@export("max_pool", "sum_pool")
def _pool(body: Body, node: Node, outs: range) -> None:
    (v,), p, writer = node.inputs, node.kw, body.writer
    k, sizes = len(p["extents"]), p["sizes"]
    if len(body.shape(v)) != k + 2 or set(p["every"]) != {1} or min(p["dilation"]) < 0:
        raise NotImplementedError("no counterpart for such windows")
    x, pads = _around(body, body.channels_first(v), body.shape(v)[1:-1], sizes, p)
    how = {"kernel_shape": sizes, "strides": p["strides"]}
    if node.op == "max_pool":
        made = writer.add("MaxPool", x, pads=pads, dilations=p["dilation"], **how)
    else:
        if any(pads):
            widths = [0, 0, *pads[:k], 0, 0, *pads[k:]]
            x = writer.add("Pad", x, writer.ints(widths))
        mean = writer.add("AveragePool", x, dilations=p["dilation"], **how)
        size = writer.constant(math.prod(sizes), node.specs[0].dtype)
        made = writer.add("Mul", mean, size)
    body.first[outs[0]] = made


# -- graphs in nodes -------------------------------------------------------------------------
def _within(
    body: Body, writer: Writer, graph: Graph, given: Sequence[int | str]
) -> tuple[Body, list[str]]:
    """A graph's nodes, of values of ours or of names, and the names of its results."""
    values = {
        k: body.values[v] for k, v in enumerate(given) if isinstance(v, int) and v in body.values
    }
    names = [v if isinstance(v, str) else "" if v in body.values else body.name(v) for v in given]
    inner = Body(writer, graph, names, values)
    inner.called = {}
    emit(inner)
    return inner, [inner.name(v) for v in graph.outputs]


@export("call")
def _call(body: Body, node: Node, outs: range) -> Names:
    return _within(body, body.writer, node.kw["body"], node.inputs)[1]


@export("custom", "with_gradient")
def _custom(body: Body, node: Node, outs: range) -> Names:
    """The values, without who differentiates them."""
    return [body.name(v) for v in node.inputs[: node.kw["outputs"]]]


def _graph(writer: Writer, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """A graph whose results have names of their own."""
    made = []
    for spec, value in outputs:
        own = writer.add("Identity", value)
        made.append(value_info(own, spec))
    kept = writer.pruned([o.name for o in made])
    return helper.make_graph(kept, name, list(inputs), made)


def value_info(name: str, spec: Any) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(spec.dtype), spec.shape
    )


@export("branch")
def _branch(body: Body, node: Node, outs: range) -> Names:
    condition, *given = node.inputs
    sides = {}
    for side, called in {"then": "then_branch", "otherwise": "else_branch"}.items():
        for v in given:  # outside, so that both sides may read it
            if v not in body.values:
                body.name(v)
        writer = body.writer.inner()
        _, results = _within(body, writer, node.kw[side], given)
        sides[called] = _graph(writer, side, [], list(zip(node.specs, results, strict=True)))
    made = [body.writer.fresh("either") for _ in outs]
    body.writer.node("If", [body.named(condition, bool_)], made, **sides)
    return made


@export("loop")
def _loop(body: Body, node: Node, outs: range) -> Names:
    p, graph = node.kw, node.kw["body"]
    fixed, carried, rows = p["counts"]
    given, writer = list(node.inputs), body.writer.inner()
    for v in given:
        body.name(v)
    begin, xs = given[fixed : fixed + carried], given[fixed + carried :]
    specs = graph.inputs
    inner = [writer.fresh("each") for _ in range(1 + carried + rows)]
    _, results = _within(body, writer, graph, [inner[0], *given[:fixed], *inner[1:]])
    where = [0, *range(1 + fixed, len(specs))]
    infos = [value_info(n, specs[k]) for n, k in zip(inner, where, strict=True)]
    states, count = infos[1 : 1 + carried], body.writer
    made_specs = [graph.specs[v] for v in graph.outputs]
    turn = _graph(
        writer,
        "turn",
        [*states, infos[0], *infos[1 + carried :]],
        list(zip(made_specs, results, strict=True)),
    )
    times = count.constant(np.arange(p["trips"], dtype=np.int64))
    made = [count.fresh("loop") for _ in outs]
    back, stacked = int(p["reverse"]), len(made) - carried
    count.node(
        "Scan",
        [*map(body.name, begin), times, *map(body.name, xs)],
        made,
        body=turn,
        num_scan_inputs=1 + rows,
        scan_input_directions=[back] * (1 + rows),
        **({"scan_output_directions": [back] * stacked} if stacked else {}),
    )
    return made


@export("while")
def _while(body: Body, node: Node, outs: range) -> Names:
    p, writer = node.kw, body.writer.inner()
    fixed, carried = p["counts"]
    given = list(node.inputs)
    for v in given:
        body.name(v)
    begin, graph = given[fixed:], p["body"]
    _, (first,) = _within(body, body.writer, p["condition"], given)
    inner = [writer.fresh("each") for _ in range(2 + carried)]
    _, results = _within(body, writer, graph, [*given[:fixed], *inner[2:]])
    _, (more,) = _within(body, writer, p["condition"], [*given[:fixed], *results])
    scalar = p["condition"].specs[p["condition"].outputs[0]]
    count = helper.make_tensor_value_info(inner[0], helper.np_dtype_to_tensor_dtype(int64), ())
    infos = [value_info(n, s) for n, s in zip(inner[2:], graph.inputs[fixed:], strict=True)]
    outputs = [(scalar, more), *zip(node.specs, results, strict=True)]
    turn = _graph(writer, "turn", [count, value_info(inner[1], scalar), *infos], outputs)
    most = body.writer.constant(p["most"], np.int64) if p["most"] >= 0 else ""
    made = [body.writer.fresh("while") for _ in outs]
    body.writer.node("Loop", [most, first, *map(body.name, begin)], made, body=turn)
    return made


# -- all nodes of a graph --------------------------------------------------------------------
def emit(body: Body) -> None:
    """All nodes of a graph, each by its function of the table."""
    graph = body.graph
    for k, node in enumerate(graph.nodes):
        outs = graph.outs(k)
        if any(s.dtype.kind == "c" for s in node.specs):
            raise refusal(node, "complex numbers")
        if node.op in FOLDED and all(v in body.values for v in node.inputs):
            body.values[outs[0]] = FOLDED[node.op](
                *[body.values[v] for v in node.inputs], **node.kw
            )
            continue
        function, here = EXPORTS.get(node.op), OPS[node.op].parallel.here
        if function is None and here is not None:  # its windows are for workers
            name, params = here(node.kw)
            node = Node(name, node.inputs, tuple(sorted(params.items())), node.specs, node.line)
            function = EXPORTS.get(name)
        if function is None:
            raise refusal(node, "an operation")
        try:
            made = function(body, node, outs)
        except NotImplementedError as error:
            raise refusal(node, str(error)) from None
        if made is not None:
            for v, name in zip(outs, (made,) if isinstance(made, str) else made, strict=True):
                body.put(v, name)


def refusal(node: Node, what: str) -> OstinatoError:
    return UnknownOpError.because(
        f"to_onnx: {node.op}",
        got=f"{what}, which ONNX does not have",
        needed="operations that ONNX has",
        do="compute it outside of the function",
        line=short(node.line),
    )
