"""Operations on Arrays: from a name, operands and parameters to pending results.

Operands of every kind become Arrays; Python numbers take the dtype of what they meet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from ostinato.errors import ArgumentError, DTypeError

from . import array
from .array import (
    DEFAULTS,
    Array,
    Late,
    Recipe,
    Term,
    Trace,
    Watch,
    current_thread,
    from_term,
    term_of,
    weak_kind,
)
from .array_methods import functions
from .exact import exact_items, holds_nothing, plain
from .graph import Items
from .operand import Scalar
from .registry import Op, lookup
from .spec import DType, Spec, bool_, complex64, complex128, float64, int64, is_inexact, promote
from .tracebacks import shorten
from .user_line import misfit, user_line

MOST_KNOWN = 4096  # forms of what a recipe is given
KEPT_FORMS = 256  # of operations, by what they are given; the oldest goes first
DEEPEST = 400  # operations that may wait one behind another; then they run, asked for or not
DEEP = 24  # the same where what waited ran before: as much in each turn of a loop, and one plan
STEPS = 8  # operations one behind another that tell a place in a loop


def later(recipe: Recipe, *given: Array) -> Array:
    """Make what a recipe makes, which nobody has yet, in the plan of who takes it (`Late`)."""
    key = tuple([x.spec for x in given])
    spec = recipe.known.get(key)
    if spec is None:
        made = recipe(*given)
        if made._term is None or made._term.op is None:  # what it was given
            return made
        spec = made.spec
        if len(recipe.known) >= MOST_KNOWN:
            recipe.known.clear()
        recipe.known[key] = spec
    return from_term(Late(spec, recipe, given))


_NO_TRACES: frozenset[Trace] = frozenset()


def apply_all(name: str, *operands: Array, **params: Any) -> tuple[Array, ...]:
    """The results of one operation, as pending Arrays. No code of the user's runs in here, so the
    function by which a trace hears of calls (before Python 3.12) rests meanwhile."""
    heard = sys.getprofile()
    try:
        if heard is None or not hasattr(heard, "of_trace"):
            return _apply_all(name, operands, params)
        sys.setprofile(None)
        try:
            return _apply_all(name, operands, params)
        finally:
            sys.setprofile(heard)
    except Exception as error:
        shorten(error)
        raise


def _apply_all(name: str, operands: Sequence[Array], params: dict[str, Any]) -> tuple[Array, ...]:
    op = lookup(name)
    given, inputs, traces = list[Spec](), list[tuple[Term, int]](), _NO_TRACES
    for x in operands:
        # what a mask picks, whose shape nobody knows (ops/array/picked.py)
        if x.__class__ is not Array:
            return cast("tuple[Array, ...]", functions["apply_picked"](op, operands, params))
        ref = term_of(x)
        given.append(x.spec)
        inputs.append(ref)
        if ref[0].traces:
            traces = traces | ref[0].traces if traces else ref[0].traces
    ins = (*given,)
    known = None if params else _made.get((name, ins, ()))
    specs, items = known or _inferred(op, ins, params)
    term = Term(op, tuple(inputs), items, specs, user_line(), traces)
    if term.depth > DEEP and not term.is_open and (_is_deepest(term) or _ran_here(term)):
        current_thread.place = _place(term)
        made = tuple([from_term(term, k) for k in range(len(specs))])
        array.reader.settle(made)
        return made
    if len(specs) == 1:
        return (from_term(term),)
    return tuple([from_term(term, k) for k in range(len(specs))])


def as_specs(inferred: Spec | tuple[Spec, ...]) -> tuple[Spec, ...]:
    return inferred if isinstance(inferred, tuple) else (inferred,)


_made: dict[Any, tuple[tuple[Spec, ...], Items]] = {}  # by operations, operands and parameters


def _inferred(
    op: Op, given: tuple[Spec, ...], params: dict[str, Any]
) -> tuple[tuple[Spec, ...], Items]:
    """The specs of an operation's results, and its parameters as plain data: programs repeat them for
    the same shapes. Equal ones are the same objects, as long as they are known."""
    try:
        key = op.name, given, exact_items(params.items()) if params else ()
        found = _made.get(key)
    except TypeError:  # a list, or what else is no parameter
        found = key = None
    if found is None:
        made = as_specs(op.infer(*given, **params))
        found = made, tuple([(k, plain(params[k])) for k in sorted(params)])
        if key is not None and holds_nothing(found[1]):
            _made[key] = found
            with suppress(KeyError, RuntimeError):  # another thread's change
                while len(_made) > KEPT_FORMS:
                    del _made[next(iter(_made))]
    return found


def _is_deepest(term: Term) -> bool:
    """Whether so much is waiting, when what has run meanwhile is left out."""
    stack = [term] if term.depth > DEEPEST else []
    seen = set[int]()
    while stack:
        found = stack[-1]
        inputs = [t for t, k in found.inputs if t.operands is None or t.operands[k] is None]
        if id(found) not in seen:
            seen.add(id(found))
            stack += [t for t in inputs if t.depth and id(t) not in seen and type(t) is Term]
        else:
            stack.pop()
            found.depth = 1 + max([t.depth for t in inputs], default=0)
    return term.depth > DEEPEST


def _place(term: Term) -> list[Any]:
    """Where in a program an operation is noted, as its line, its form and those before it tell."""
    found: list[Any] = [term.line]
    for _ in range(STEPS):
        found += term.op, term.params
        before = term.inputs[0][0] if term.inputs else None
        if type(before) is not Term or before.op is None:
            break
        term = before
    return found


def _ran_here(term: Term) -> bool:
    """Whether what waited ran with an operation like this one before."""
    place = current_thread.place
    return (
        place is not None
        and place[0] == term.line
        and place[1] is term.op
        and place == _place(term)
    )


def act(made: Array) -> None:
    """Let what makes this happen, though nobody may read it: with what is traced here, or else now."""
    term, _ = term_of(made)
    traces = [t for t in (*term.traces, current_thread.trace) if t and not isinstance(t, Watch)]
    if traces:
        inner = max(traces, key=lambda t: t.serial)
        term.traces |= {inner}
        inner.acts.append(made)
    else:
        array.reader.settle([made])


def acted(x: Array) -> Array:
    """Return the value, once all has happened that was to happen before."""
    trace = current_thread.trace
    while trace is not None and not trace.acts:
        trace = trace.outer
    return x if trace is None else apply("barrier", x, trace.acts[-1], outputs=1)


def apply(name: str, *operands: Array, **params: Any) -> Array:
    """The result of an operation that has one."""
    try:
        if sys.getprofile() is None:
            return _apply_all(name, operands, params)[0]
        return apply_all(name, *operands, **params)[0]
    except Exception as error:
        shorten(error)
        raise


def called(name: str, made: Array) -> Array:
    """The result of an operation that users know by another name, which errors then say."""
    if made._term is not None:
        made._term.line += f" ({name})"
    return made


# -- operands of every kind ----------------------------------------------------------------
def constant(value: Scalar, dtype: DType | None = None) -> Array:
    """A number as part of the graph."""
    kind = type(value)
    dtype = dtype if dtype is not None else DEFAULTS[kind]
    op = lookup("constant")
    specs, items = _inferred(op, (), {"value": _python(value, dtype), "dtype": dtype})
    return from_term(Term(op, (), items, specs, user_line()))


def _python(value: Scalar, dtype: DType) -> Scalar:
    """The Python number that a dtype makes of a number."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind in "iu":
        return int(value)  # type: ignore[arg-type]
    if dtype.kind == "c":
        return complex(value)
    return float(value)  # type: ignore[arg-type]


def as_array(x: Any, dtype: DType | None = None) -> Array:
    """Any operand as an Array; numbers become constants, foreign arrays are copied."""
    if isinstance(x, Array):
        return x if x.weak is None else from_term(*term_of(x))
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return constant(x, dtype)
    return cast(Array, functions["asarray"](x, dtype=dtype))


def unmasked(x: Any, who: str) -> None:
    """Refuse a masked array, or a list with some of them: what does not count would count."""
    kinds = set(map(type, x)) if isinstance(x, list) else (type(x),)
    for kind in kinds:
        if issubclass(kind, np.ndarray) and hasattr(kind, "mask"):
            needed = "an array all of whose elements count"
            do = "pass x.filled(value), or the values and the mask as two arrays for ost.where"
            raise misfit(ArgumentError, who, got="a masked array", needed=needed, do=do)


def weak_dtype(kind: type, beside: DType) -> DType:
    """The dtype that a Python number takes beside an array: its own kind only if that is the higher
    one."""
    if kind is bool:
        return beside if beside.kind != "b" else bool_
    if kind is int:
        return beside if beside.kind != "b" else int64
    if kind is float:
        return beside if is_inexact(beside) else float64
    return (
        beside
        if beside.kind == "c"
        else promote(beside, complex64)
        if is_inexact(beside)
        else complex128
    )


def unify(*xs: Any) -> list[Array]:
    """Operands of one operation as Arrays; Python numbers take the dtype of the arrays that they
    meet."""
    for x in xs:
        if x.__class__ is not Array or x.weak is not None:
            break
    else:
        return [*xs]
    strong = [x if isinstance(x, Array) else as_array(x) for x in xs if weak_kind(x) is None]
    if not strong:
        kinds = [weak_kind(x) for x in xs]
        dtype = promote(*(DEFAULTS[k] for k in kinds if k is not None))
        return [as_array_of(x, dtype) for x in xs]
    if len(strong) == len(xs):
        return strong
    beside = promote(*(x.dtype for x in strong))
    arrays = iter(strong)
    found = []
    for x in xs:
        kind = weak_kind(x)
        found.append(next(arrays) if kind is None else as_array_of(x, weak_dtype(kind, beside)))
    return found


def as_array_of(x: Any, dtype: DType) -> Array:
    """A Python number, or one lifted to an input, in a dtype."""
    if isinstance(x, Array) and x.weak is int and dtype.kind in "iu" and dtype != int64:
        turns = x._term is not None and any(type(t) is Trace for t in x._term.traces)
        # the value decides whether it fits; in a loop, the first one did
        x = x if turns else int(x)
    if isinstance(x, Array):
        return x if x.dtype == dtype else cast(Array, functions["astype"](x, dtype))
    if dtype.kind in "iu" and isinstance(x, int):
        limits = np.iinfo(dtype)
        if not limits.min <= x <= limits.max:
            got = f"an operand of dtype {dtype.name}"
            needed = f"a number from {limits.min} to {limits.max}"
            do = "convert the array first, e.g. x.astype(ost.int64)"
            raise misfit(DTypeError, f"the number {x}", got=got, needed=needed, do=do)
    return constant(x, dtype)
