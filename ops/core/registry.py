"""The registry: what an operation is, and the one place where all of them can be found.

A kernel has the form `kernel(xp, out, *operands, **params)`: `xp` is NumPy or CuPy, `out` the array
to write (a tuple of arrays, some of them perhaps None, where there are several results). It never
allocates what it can write in place, never keeps what it is given, and uses of `xp` and of arrays
what both libraries have: tests run it with a third `xp` that refuses the rest (tests/fake_xp.py).

`placed` kernels also get `at: Place`, the boxes of the global arrays that they see: a worker's
part, or a block of it. An op with a `view` makes its result without touching data; it may also have
a kernel, for operands that cannot be viewed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import UnknownOpError

from .graph import Graph
from .index import Indices, pointwise
from .layout import Box
from .parameters import Kind, complete
from .spec import Shape, Spec
from .user_line import misfit

Specs = tuple[Spec, ...]
ANY = (-1,)
Params = Mapping[str, Any]
Cost = tuple[float, float]  # operations, bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the global arrays a kernel works."""

    ins: tuple[Box, ...]
    outs: tuple[Box, ...]
    in_shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    first: bool = True  # of the workers whose results add up to one


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory a kernel needs while it runs; handed to it as `scratch`, a tuple of arrays."""

    shape: Shape
    dtype: np.dtype[Any]


class Piece(NamedTuple):
    """A part of a result, and the operand that is there; or the value that is everywhere in it."""

    operand: int  # -1 for none
    at: tuple[slice, ...] = ()
    value: Any = 0
    places: tuple[int, ...] = ()  # the operands that say where it begins along axes ...
    axes: tuple[int, ...] = ()
    bounds: tuple[str, ...] = ()  # (ops/array/indexing.py says which are inside)
    picks: bool = False  # ... of the operand, or else of the result
    combine: str = ""  # the op that makes one of what is there and the operand

    @property
    def is_whole(self) -> bool:
        """Whether the operand is all of the result."""
        return self.operand >= 0 and not self.places and not self.at and not self.combine

    def given(self, operands: Sequence[Any], result: Any) -> list[Any]:
        """The arrays of its kernel, of operands and its place in the result."""
        before = [operands[k] for k in (self.operand, *self.places) if k >= 0]
        return [*before, *[result] * (1 + (bool(self.combine) and not self.places))]


def stream_cost(flops_each: float) -> Callable[[Specs, Specs, Params], Cost]:
    """Reads its operands once, writes its results once. An operation on complex numbers is four."""

    def cost(ins: Specs, outs: Specs, params: Params) -> Cost:
        each = flops_each * (4 if any(s.dtype.kind == "c" for s in ins) else 1)
        return each * sum(s.size for s in outs[:1]), float(
            sum(s.nbytes for s in ins) + sum(s.nbytes for s in outs)
        )

    return cost


@dataclass(frozen=True, slots=True)
class Product:
    """What a sum of products of two operands' elements is to passes."""

    left: int = 0
    right: int = 1
    wide: str = ""  # the op that reads narrower operands, and sums in `dtype`
    squared: str = ""  # the op that multiplies a matrix's transpose with it
    # (builder, node, operands) -> a product of matrices that does the same on parts that lie so, if
    # there is one
    folded: Callable[..., int | None] | None = None
    # Of stacks of matrices, `... m k` and `... k n`; kernels may keep what they make of the right one.
    gemm: bool = False
    keeps: bool = False  # of others: whether kernels may keep what they make of the right one


@dataclass(frozen=True, slots=True)
class Reduce:
    """What a reduction is to kernels: it combines its elements with the monoid of its `indices`."""

    element: str = "{0}"  # an expression of its operands, which are in the result's dtype first
    divisor: str = ""  # the parameter by which what is combined is divided

    @property
    def factors(self) -> tuple[int, int] | None:
        """The operands whose product an element is."""
        found = re.fullmatch(r"\{(\d)\} \* \{(\d)\}", self.element)
        return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Moves:
    """Where the elements of a result come from, if they are its operands' own."""

    same_elements: bool = False  # those of its operand, each once, in another shape
    repeats: bool = False  # those of its operand again and again
    keeps_order: bool = False  # as a view it leaves contiguous data contiguous
    converts: bool = False  # to another dtype, and nothing else
    concatenates: bool = False  # its operands one behind the other along `axis`
    slides: bool = False  # it has its operand's elements in windows, as its indices say
    # Of its operand the "slices" that `starts`, `sizes` and `steps` say, or the "places" along
    # `axis` that its second operand says.
    selects: str = ""
    # Of what its second operand says are places along `axis`: "read", or "added" to, where there
    # is one in each line.
    places: str = ""
    # The operation that finds those at some ranks, if each line along `axis` has its own in order.
    ranked: str = ""
    # (shapes of operands, **params) -> what its result is put together of, if it is
    pieces: Callable[..., Sequence[Piece] | None] | None = None


@dataclass(frozen=True, slots=True)
class Element:
    """What else is known of an element, beside its `scalar` expression."""

    types: str = ""  # NumPy's function to whose types generated kernels convert operands
    # Operands with which it and its slopes are finite, for elements that do not count.
    calm: float = 0.5
    # What is known without operands: the "value" that is a parameter, or its own "index" along
    # `axis`.
    source: str = ""
    # The monoid that combines it, along `axis` and in order, with all that stand before it.
    running: str = ""
    draws: bool = False  # a random number of the element's own number
    refuses: bool = False  # some operands, which its kernel looks for where a device does not
    # (params, math) -> the op that makes such random numbers in registers, if one does
    random_in_kernel: Callable[[Params, str], str] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a kernel needs, and what it does beside its result."""

    # This function of xp does it, as f(*operands, out); where there is a kernel too, only of
    # contiguous operands and without scratch.
    ufunc: str = ""
    placed: bool = False  # it gets `at: Place`
    # (in shapes, out shapes, specs.., **params)
    scratch: Callable[..., Sequence[Scratch]] | None = None
    overwrite: tuple[int, ...] = ()  # operands whose memory may take the result; ANY: of its size
    writes_parts: bool = False  # it writes as well where a result lies with gaps
    dense: bool = False  # products, which run at another rate than functions of elements
    may_be_singular: bool = False  # of a matrix, which may turn out to have none
    bounds_checked: bool = False  # it looks if places are inside (ops/core/notes.py)
    # It calls what only the host can, and once in each run; `at` then says who of the workers is
    # first.
    host_callback: bool = False
    # Along its `axis` from where the block before ended: its scratch stays as it is from turn to
    # turn, and goes from worker to worker.
    carries_state: bool = False

    def may_overwrite(self, results: int) -> tuple[int, ...]:
        """The operands whose memory one of so many results may take: of several those of kernels, which
        have read an element of each before they write any of it."""
        return self.overwrite if results == 1 or self.writes_parts else ()


@dataclass(frozen=True, slots=True)
class Parallel:
    """How it is done in parts, beside what its `indices` say."""

    algorithms: Callable[[Specs, Specs, Params], Sequence[Graph]] | None = None  # that do the same
    # How often parts of long lines are gone over where no multiprocessor has a whole one.
    passes: Callable[[Specs, Specs, Params], float] | None = None
    # (node, *operands) -> the same of fixed blocks in a fixed tree (`any-workers`), as expressions
    # (ops/array/expressions.py)
    in_blocks: Callable[..., Sequence[Any]] | None = None
    # Operands that may come as addends of sums, together: what it makes of them are addends of its
    # result; what else it takes is one number each.
    adds: tuple[tuple[int, ...], ...] = ()
    # (params) -> the operation, and its parameters, that does the same with parts that have all that
    # its windows may read, and which kernels know better
    here: Callable[[Params], tuple[str, dict[str, Any]]] | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers among its parameters that may be operands of a plan."""

    param: str  # one number, or a tuple of whole ones
    # (builder, operands, {position in the tuple, or 0: the value that is this number}, **params)
    # -> the same
    given: Callable[..., int]
    fits: Callable[[Params], bool] = lambda params: True  # whether they may with these


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, whole."""

    # What it means.
    name: str
    infer: Callable[..., Spec | Specs]  # (*operand specs, **params): complete, whoever asks
    indices: Callable[[Specs, Specs, Params], Indices]
    takes: Mapping[str, Kind] = field(default_factory=lambda: MappingProxyType({}))  # parameters
    numbers: Numbers | None = None
    aligns: bool = False  # its operands broadcast: their axes are counted from the last
    # Whose functions have it: "users"; "passes", which put it into what plan files hold; or
    # "machine": what is lowered for the machine it runs on, and never in a file.
    made_by: str = "users"
    # What is made of it.
    grad: Callable[..., Sequence[Any]] | None = None  # (g, y, *operands, **params) -> Arrays
    # (tangents, *operands, **params) -> results, then their tangents, where the gradient does not
    # say it (ops/autodiff/tangents.py); None: not of these
    forward: Callable[..., Sequence[Any] | None] | None = None
    # (size, *(operand, whether it has one more axis of this size in front), **params) -> the same
    # of its results, where that does not follow from `indices` and `takes` (ops/autodiff/batching.py);
    # None: not of these
    batched: Callable[..., Sequence[tuple[Any, bool]] | None] | None = None
    # How it is done.
    kernel: Callable[..., None] | None = None
    view: Callable[..., Any] | None = None  # (xp, x, at, **params) -> view
    scalar: str = ""  # expression of {0}, {1}, ... where elementwise
    reduce: Reduce | None = None  # what kernels combine, and how
    product: Product | None = None
    cost: Callable[[Specs, Specs, Params], Cost] = field(default_factory=lambda: stream_cost(1))
    element: Element = Element()
    moves: Moves = Moves()
    run: Run = Run()
    parallel: Parallel = Parallel()

    @property
    def work(self) -> tuple[float, float]:
        """Count the work of its scalar expression per element: simple operations, and functions
        such as exp."""
        return (
            _work(self.scalar)
            if self.scalar and not self.element.draws
            else (1.0, _DRAWN if self.element.draws else 0.0)
        )

    @property
    def is_cheap(self) -> bool:
        """Whether it is one simple operation of each element."""
        return bool(self.scalar) and self.work == (1.0, 0.0) and not self.element.draws

    @property
    def rearranges(self) -> bool:
        """Whether its result has its operand's elements, in another shape or again and again."""
        return self.moves.same_elements or self.moves.repeats

    @property
    def computes(self) -> bool:
        """Whether its elements have to be made."""
        return not (self.element.source or self.rearranges)

    @property
    def reshapes(self) -> bool:
        """Whether its result looks at its operand's memory only where that is in order."""
        return self.moves.same_elements and not self.is_view

    @property
    def renames_axes(self) -> bool:
        """Whether it puts axes of one element in, or takes them out, and does nothing else."""
        return self.moves.same_elements and self.is_view and self.moves.keeps_order

    @property
    def turns_axes(self) -> bool:
        """Whether it puts axes in another order, and does nothing else."""
        return self.moves.same_elements and self.is_view and not self.moves.keeps_order

    @property
    def is_view(self) -> bool:
        """Whether its result is always another look at its operand's memory."""
        return self.view is not None and self.kernel is None


_PLAIN = {  # a few instructions
    *("abs", "max", "min", "bool", "cast", "conj", "floor", "ceil", "trunc", "rint"),
    *("sign", "copysign", "signbit", "isinf", "isfinite"),
}
_DRAWN = 3.0  # functions that a random number is worth
_SLOW = 4.0  # of those that divide or take a root, against one that adds


@lru_cache(1024)
def _work(scalar: str) -> tuple[float, float]:
    calls = re.findall(r"([a-z]\w*)\(", scalar)
    functions = {c for c in calls if c not in _PLAIN and c != "sqrt"}
    slow = calls.count("sqrt") + sum(scalar.count(sign) for sign in "/%")
    signs = len(re.findall(r" (?:[-+*<>&|^]|==|!=|<=|>=|<<|>>|and|or|if) ", scalar))
    return max(1.0, signs + _SLOW * slow), float(len(functions))


OPS: dict[str, Op] = {}


def op(
    name: str,
    *,
    infer: Callable[..., Spec | Specs],
    takes: Mapping[str, Kind] = MappingProxyType({}),
    indices: Callable[[Specs, Specs, Params], Indices] | None = None,
    **facts: Any,
) -> Op:
    """Register an operation: its rule, what its parameters may be (each of them), and the facts that
    `Op` and its records have room for."""
    assert name not in OPS, f"{name} is registered twice"
    infer = complete(name, infer, takes)
    if indices is None:
        indices = _pointwise
        facts.setdefault("aligns", True)
    for record, names in _RECORDS.items():
        if own := {n: facts.pop(n) for n in names & facts.keys()}:
            facts[record.__name__.lower()] = record(**own)
    OPS[name] = made = Op(name, infer, indices, takes=takes, **facts)
    return made


_RECORDS = {r: {f.name for f in fields(r)} for r in (Element, Moves, Run, Parallel)}


def _pointwise(ins: Specs, outs: Specs, params: Params) -> Indices:
    return pointwise(ins, outs)


_NOTHING = Op("", _pointwise, _pointwise)  # type: ignore[arg-type]


def op_of(name: str) -> Op:
    """The op of this name, or one of which nothing is known: of what is in plans only."""
    return OPS.get(name, _NOTHING)


def lookup(name: str) -> Op:
    found = OPS.get(name)
    if found is None:
        near = ", ".join(sorted(n for n in OPS if n[:3] == name[:3])[:5])
        got = "a name that is not registered"
        needed = "one of ostinato's operations" + (f", such as {near}" if near else "")
        raise misfit(UnknownOpError, f"operation {name[:60]!r}", got=got, needed=needed)
    return found
