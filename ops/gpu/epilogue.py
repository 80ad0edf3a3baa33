"""What cuBLASLt does of what follows a product, as it writes the product.

    alpha * (a @ b) + beta * c + bias       a number, 1 or -1 times a matrix, a bias for each column
    relu, gelu by tanh                      of that, where `fast`
    positive_bits, where_positive, sum      what a relu's slope needs, that slope, and its columns' sums,
                                            which are a bias's slope, where `fast`

The library's relu makes 0 of NaN, its gelu has other bits than our functions, and it adds up in an order
of its own, so these belong to who asked for `numerics="fast"`. What else follows a product is a kernel
of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.array.bits import BITS, LINE, MASKED
from ostinato.ops.core.device import Function
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.registry import OPS
from ostinato.ops.core.spec import Spec, float32, strided_like
from ostinato.ops.jit.epilogues import begin_of, rest_of
from ostinato.ops.jit.stacks import Stack, stacked

from .libraries.cublaslt import BGRAD, DRELU, GELU, RELU, RELU_AUX, Library
from .operands import with_operands
from .products import (
    WITH_EPILOGUES,
    Launching,
    ProductRun,
    layout_like,
    product,
    product_key,
)

_GELU = math.sqrt(2 / math.pi), 0.044715
_CLOSE = 1e-6  # numbers that were rounded to float32
MAX_OPERATIONS = 16  # operations that a function consists of


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Of the product that is node `members[0]` of a graph: the nodes that are done with it, and the
    value that they give."""

    members: tuple[int, ...]
    value: int
    alpha: float = 1.0
    beta: float = 0.0
    c: int = -1  # values
    bias: int = -1
    act: int = 0
    bits: int = -1  # that a relu keeps
    masked: int = -1  # bits that one kept
    sums: int = -1

    @property
    def results(self) -> tuple[int, ...]:
        return tuple([v for v in (self.value, self.bits, self.sums) if v >= 0])


class _Walk:
    """From a product on, as long as the next step is the library's."""

    def __init__(self, graph: Graph, k: int) -> None:
        self.graph = graph
        self.members = [k]
        self.value = graph.starts[k]
        self.alpha, self.beta = 1.0, 0.0
        self.c = self.bias = self.bits = self.masked = self.sums = -1
        self.act = 0

    def step(self, fast: bool) -> bool:
        """One more operation, or a few that only together are one of the library's."""
        graph = self.graph
        if self.act or self.value in graph.outputs:
            return False
        users = dict.fromkeys(graph.uses[self.value])
        if len(users) == 1:
            (k,) = users
            if self._is_like(k) and self._linear(k, graph.nodes[k]):
                return True
            if fast and graph.nodes[k].op == MASKED and self._slope(k):
                return True
        return fast and graph.specs[self.value].dtype.name in WITH_EPILOGUES and self._activation()

    def _is_like(self, k: int) -> bool:
        """Whether a node makes something of the same form."""
        node, before = self.graph.nodes[k], self.graph.specs[self.value]
        if len(node.specs) != 1:
            return False
        after = node.specs[0]
        return (after.shape, after.dtype, after.layout) == (
            before.shape,
            before.dtype,
            before.layout,
        )

    def _linear(self, k: int, node: Node) -> bool:
        """A factor, a sign, a matrix or a bias to add."""
        if node.op == "negative":
            return self._scaled(k, -1.0)
        if len(node.inputs) != 2 or node.inputs.count(self.value) != 1:
            return False
        first = node.inputs[0] == self.value
        other = node.inputs[first]
        number = self._number(other)
        if node.op == "multiply" and number is not None:
            return self._scaled(k, number)
        if node.op == "divide" and first and number:
            return self._scaled(k, 1.0 / number)
        if node.op not in ("add", "subtract") or number is not None:
            return False
        sign = -1.0 if node.op == "subtract" else 1.0
        turned = sign < 0 and not first  # other - product
        if self._is_matrix(other) and self.c < 0 and not (turned and self.bias >= 0):
            self.alpha, self.beta = (-self.alpha, 1.0) if turned else (self.alpha, sign)
            self.c = other
        elif self._is_bias(other) and self.bias < 0 and (sign > 0 or (turned and self.c < 0)):
            self.alpha = -self.alpha if turned else self.alpha
            self.bias = other
        else:
            return False
        return self._took(k)

    def _scaled(self, k: int, by: float) -> bool:
        if self.c >= 0 or self.bias >= 0 or not math.isfinite(by) or by == 0:
            return False
        self.alpha *= by
        return self._took(k)

    def _took(self, *nodes: int) -> bool:
        self.members += nodes
        (self.value,) = self.graph.outs(nodes[-1])
        return True

    # -- operands ------------------------------------------------------------------------------
    def _number(self, v: int) -> float | None:
        """Return a number that is known when planning."""
        k = self.graph.producers[v]
        if k < 0 or self.graph.nodes[k].op != "constant":
            return None
        value = self.graph.nodes[k].kw["value"]
        return float(value) if isinstance(value, int | float) else None

    def _is_bias(self, v: int) -> bool:
        """One row, for all."""
        mine, other = self.graph.specs[self.value], self.graph.specs[v]
        if other.dtype != mine.dtype or not other.ndim or other.shape[-1] != mine.shape[-1]:
            return False
        return math.prod(other.shape) == other.shape[-1] and _columns(other) == _columns(mine)

    def _is_matrix(self, v: int) -> bool:
        mine, other = self.graph.specs[self.value], self.graph.specs[v]
        return (mine.shape, mine.dtype, mine.layout) == (other.shape, other.dtype, other.layout)

    # -- functions -----------------------------------------------------------------------------
    def _activation(self) -> bool:
        """All that is made of the value up to one that is made of nothing else of it."""
        graph, x = self.graph, self.value
        inside, made = list[int](), {x}
        marks = [k for k in dict.fromkeys(graph.uses[x]) if graph.nodes[k].op == BITS]
        waiting = {*graph.uses[x]} - {*marks}
        while waiting:
            k = min(waiting)
            node = graph.nodes[k]
            if len(node.specs) != 1 or node.specs[0].shape != graph.specs[x].shape:
                return False
            if any(v not in made and self._number(v) is None for v in node.inputs):
                return False
            inside.append(k)
            (y,) = graph.outs(k)
            act = RELU if self._is_relu(y, x) else GELU if self._is_gelu(y, x) else 0
            if act and self._is_like(k):
                hidden, mine = [v for v in made if v != y], {*inside, *marks}
                if any(v in graph.outputs or not {*graph.uses[v]} <= mine for v in hidden):
                    return False
                if len(marks) > (act == RELU):
                    return False
                self.act = RELU_AUX if marks else act
                self._took(*inside)
                self.members += marks
                for mark in marks:
                    (self.bits,) = graph.outs(mark)
                return True
            made.add(y)
            waiting = (waiting | {*graph.uses[y]}) - {k}
            if len(inside) > MAX_OPERATIONS:
                return False
        return False

    def _slope(self, k: int) -> bool:
        """That of a relu, and the sums of its columns."""
        graph, (bits, x) = self.graph, self.graph.nodes[k].inputs
        dtype = graph.specs[x].dtype
        if x != self.value or dtype.name not in WITH_EPILOGUES or self.c >= 0 or self.bias >= 0:
            return False
        self.masked, self.act = bits, DRELU
        self._took(k)
        for user in dict.fromkeys(graph.uses[self.value]):
            node = graph.nodes[user]
            if (
                node.op == "sum"
                and node.kw["axes"] == (0,)
                and node.specs[0].dtype == dtype == float32
            ):
                self.act |= BGRAD
                self.members.append(user)
                (self.sums,) = graph.outs(user)
                break
        return True

    def _node(self, v: int, op: str) -> Sequence[int] | None:
        """The operands of the operation that makes a value, if it is this one."""
        k = self.graph.producers[v]
        return self.graph.nodes[k].inputs if k >= 0 and self.graph.nodes[k].op == op else None

    def _is_relu(self, y: int, x: int) -> bool:
        """maximum(x, 0), or where(x <= 0, 0, x), as ours is."""
        if _either(self._node(y, "maximum"), lambda v: v == x, self._is_zero):
            return True
        three = self._node(y, "where")
        if three is None or three[2] != x or not self._is_zero(three[1]):
            return False
        tested = self._node(three[0], "less_equal")
        return tested is not None and tested[0] == x and self._is_zero(tested[1])

    def _is_zero(self, v: int) -> bool:
        return self._number(v) == 0

    def _is_gelu(self, y: int, x: int) -> bool:
        """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))"""

        def times(v: int, number: float, rest: Callable[[int], bool]) -> bool:
            return _either(self._node(v, "multiply"), lambda u: self._is_near(u, number), rest)

        def cube(v: int) -> bool:
            def squared(u: int) -> bool:
                return times(u, _GELU[1], lambda w: w == x)

            def twice(u: int) -> bool:
                return _either(self._node(u, "multiply"), squared, lambda w: w == x)

            return _either(self._node(v, "multiply"), twice, lambda w: w == x)

        def inner(v: int) -> bool:
            return _either(self._node(v, "add"), lambda u: u == x, cube)

        def hyperbolic(v: int) -> bool:
            found = self._node(v, "tanh")
            return found is not None and times(found[0], _GELU[0], inner)

        def one_more(v: int) -> bool:
            return _either(self._node(v, "add"), lambda u: self._is_near(u, 1.0), hyperbolic)

        return _either(
            self._node(y, "multiply"), lambda v: times(v, 0.5, lambda u: u == x), one_more
        )

    def _is_near(self, v: int, number: float) -> bool:
        found = self._number(v)
        return found is not None and math.isclose(found, number, rel_tol=_CLOSE)


def _either(pair: Sequence[int] | None, *tests: Callable[[int], bool]) -> bool:
    """Whether one operand passes one test and the other one the other, in some order."""
    if pair is None or len(pair) != 2:
        return False
    one, other = tests
    return any(one(a) and other(b) for a, b in (pair, pair[::-1]))


def _columns(spec: Spec) -> list[int]:
    """The axes of the mesh that the last axis is split over."""
    splits = spec.layout.splits if spec.layout is not None else ()
    return [axis for axis, split in enumerate(splits) if split == spec.ndim - 1]


def epilogue_of(graph: Graph, k: int, fast: bool = True) -> Epilogue:
    """Find the epilogue that the library does after the product that is node `k`."""
    walk = _Walk(graph, k)
    while walk.step(fast):
        pass
    return Epilogue(
        tuple(walk.members), walk.value, walk.alpha, walk.beta, walk.c, walk.bias, walk.act,
        walk.bits, walk.masked, walk.sums,
    )  # fmt: skip


# -- functions ---------------------------------------------------------------------------------
Compile = Callable[
    [Graph, Sequence[Any]], Function
]  # elementwise operations over arrays like these


def with_epilogue(
    library: Library,
    xp: Any,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    way: str,
    body: Graph,
    compiled: Compile,
    launching: Launching | None = None,
) -> Function:
    """The function of the operands and the result of a kernel that begins with a product, as they lie."""
    which, count = begin_of(body), len(body.inputs)
    left, right = body.nodes[which].inputs
    if not arrays[count].size:
        return lambda *_: None
    found = epilogue_of(body, which)
    if not body.nodes[which].kw.get("tf32", False):
        own = with_operands(launching, arrays, body, way)
        if own is not None:
            return own
    if found.bits >= 0 or found.masked >= 0:
        apart = _node_by_node(library, xp, arrays, scratch, way, body)
    else:
        assert len(arrays) == count + 1, "one result"
        apart = _apart(library, xp, arrays, scratch, way, body, compiled, launching)
    run = _whole(library, arrays, scratch, way, body, found)
    if run is None:
        return apart
    places = {v: count + n for n, v in enumerate(body.outputs)}
    c, bias, sums = found.c, found.bias, places.get(found.sums, -1)
    aux = places.get(found.bits, found.masked)

    def multiply(*given: Any) -> None:
        more = [given[k] if k >= 0 else None for k in (c, bias, aux, sums)]
        if not run(given[left], given[right], given[count], *more):
            apart(*given)

    return multiply


def _whole(
    library: Library,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    way: str,
    body: Graph,
    found: Epilogue,
) -> ProductRun | None:
    """All of it in one call, if it is no more than that and the matrices can be read as they lie."""
    count = len(body.inputs)
    out = arrays[count]
    stacks = _stacks(arrays, body, found)
    if stacks is None:
        return None
    tf32 = body.nodes[found.members[0]].kw.get("tf32", False)
    aux = (
        arrays[count + 1]
        if found.bits >= 0
        else arrays[found.masked]
        if found.masked >= 0
        else None
    )
    form = product_key(
        *stacks, tf32=tf32, epilogue=found.act, alpha=found.alpha, beta=found.beta,
        aux=0 if aux is None else 8 * aux.strides[0],
    )  # fmt: skip
    if form is None:
        return None
    if aux is not None and (not form.turned or aux.strides[1] != 1 or aux.strides[0] % LINE):
        return None
    if found.sums >= 0 and arrays[count + 1].strides[-1] != out.dtype.itemsize:
        return None
    if found.bias >= 0:
        bias = arrays[found.bias]
        in_order = bias.size == 1 or bias.strides[-1] == bias.dtype.itemsize
        if not form.biases or bias.size != out.shape[-1] or not in_order:
            return None
    return ProductRun(library, form, scratch, way)


def _stacks(arrays: Sequence[Any], body: Graph, found: Epilogue) -> tuple[Stack, ...] | None:
    """The matrices of a kernel that is no more than a product and what is done with it, and what lies over the
    result; None if there is more, or if they do not lie as a product's do."""
    count = len(body.inputs)
    out = arrays[count]
    if found.results != body.outputs or max(found.c, found.bias, found.masked) >= count:
        return None
    done = [k for k, n in enumerate(body.nodes) if n.op != "constant"]
    left, right = (arrays[v] for v in body.nodes[found.members[0]].inputs)
    if sorted(found.members) != done or left.size == 0:
        return None
    over = [arrays[found.c]] if found.c >= 0 else []
    if any(x.shape != out.shape for x in over):
        return None
    return stacked(*map(layout_like, (left, right, out, *over)))


def is_one_call(library: Library, body: Graph, arrays: Sequence[Any]) -> bool:
    """Whether the library has an algorithm for all of a kernel, for arrays that lie so."""
    found = epilogue_of(body, begin_of(body))
    run = _whole(library, arrays, (), "", body, found)
    return run is not None and run.has_algorithm(found.bias >= 0)


def _node_by_node(
    library: Library, xp: Any, arrays: Sequence[Any], scratch: Sequence[Any], way: str, body: Graph
) -> Function:
    """The product, then what is behind it by the operations' own kernels."""
    rest, used = rest_of(body)
    node, count = body.nodes[begin_of(body)], len(body.inputs)
    (left, right), tf32 = node.inputs, node.kw.get("tf32", False)
    shape, dtype = arrays[count].shape, rest.inputs[0].dtype
    matrices = [arrays[left], arrays[right], strided_like(shape, dtype)]
    run = product(library, xp, matrices, scratch, way=way, tf32=tf32)
    behind = OPS["fused"].kernel
    assert behind is not None

    def both(*given: Any) -> None:
        made, outs = xp.empty(shape, dtype), given[count:]
        run(given[left], given[right], made)
        to = outs if len(outs) > 1 else outs[0]
        behind(xp, to, made, *(given[v] for v in used), body=rest)

    return both


def _apart(
    library: Library,
    xp: Any,
    arrays: Sequence[Any],
    scratch: Sequence[Any],
    way: str,
    body: Graph,
    compiled: Compile,
    launching: Launching | None,
) -> Function:
    """The product, then a kernel for the rest, which reads the product where the result will be, or
    elsewhere if an operand is there."""
    rest, used = rest_of(body)
    node = body.nodes[begin_of(body)]
    (left, right), tf32 = node.inputs, node.kw.get("tf32", False)
    spec, out = rest.inputs[0], arrays[-1]
    others = [arrays[v] for v in used]
    shape = out.shape
    in_order = strided_like(shape, spec.dtype)
    products: dict[bool, Function] = {}
    kernels: dict[bool, Function] = {}

    def both(*given: Any) -> None:
        to = given[-1]
        here = to.dtype == spec.dtype and all(given[v].data.ptr != to.data.ptr for v in used)
        if here not in kernels:  # made when it is needed, which is rare
            like = out if here else in_order
            matrices = [arrays[left], arrays[right], like]
            products[here] = product(
                library, xp, matrices, scratch, way=way, tf32=tf32, launching=launching
            )
            kernels[here] = compiled(rest, [like, *others, out])
        made = to if here else xp.empty(shape, spec.dtype)
        products[here](given[left], given[right], made)
        kernels[here](made, *(given[v] for v in used), to)

    return both
