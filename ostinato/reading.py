"""Reading values: pending graphs become plans and run.

What runs are the Arrays that are asked for and, on the way, every result that somebody still holds.
So a loop in plain Python keeps no history, and its second turn finds the plan of the first. What there
is no memory for, or is made of files and large, stays pending, and is made again (streaming.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import numpy as np

from ostinato.errors import (
    AssignmentError,
    DataDependentShapeError,
    MemoryLimitError,
    TracedValueError,
)
from ostinato.ops.core import array
from ostinato.ops.core.apply import DEEP
from ostinato.ops.core.array import Array, Term, Trace, from_term, settled
from ostinato.ops.core.device import described
from ostinato.ops.core.operand import File, Host, Operand, Split
from ostinato.ops.core.registry import Place
from ostinato.ops.core.spec import Spec, is_integer, lent
from ostinato.ops.core.trace import Collected, Ref, collect
from ostinato.ops.core.tracebacks import shorten
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import asked_by_library, misfit, on_behalf, short, user_line
from ostinato.ops.flow.callback import name_functions
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key
from ostinato.runtime.engine import Held

from .cards import array_card
from .corners import corners, is_large
from .hearing import unheard
from .interop import to_dask
from .pending import LARGEST, exact_values
from .sessions import Session, current, here, one_by_one
from .streaming import held_too, operands_of, reads_files, rebase, smaller, sorted_before
from .unrolled import place_of, tell

GLANCE = 1 << 18  # bytes that are copied sooner than a plan of views is found and run
MUCH = 1 << 16  # elements of what numbers among the arguments make, from which somebody is told


class CompileTrace(Trace):
    """The tracing of a compiled function. Some of its inputs are Python numbers that were
    lifted. Arrays from around it that are assigned to get their value back when it ends."""

    __slots__ = ("assigned", "lifted", "marks", "wrote")
    inner = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lifted: dict[int, Any] = {}
        self.assigned: dict[int, tuple[Array, Any]] = {}
        self.wrote: Callable[[], dict[Any, tuple[str, Any]]] = dict
        self.marks: dict[Trace, dict[Any, tuple[str, Any]]] = {}

    def lends(self, x: Array) -> bool:
        """Record what an Array stands for, before it is assigned to."""
        self.assigned.setdefault(id(x), (x, (x.spec, x._operand, x._term, x._k)))
        return True

    def take_back(self) -> list[tuple[Array, Array]]:
        """Give the Arrays that were assigned to their values back: these, and what they had become."""
        found = []
        for x, (spec, operand, term, k) in self.assigned.values():
            became = from_term(*array.term_of(x))
            with array.changing:
                x.spec, x._operand, x._term, x._k = spec, operand, term, k
                if term is not None and term.held(k) is None:
                    array.hold(term, k, x)
            found.append((x, became))
        self.assigned.clear()
        return found

    def begin_inner(self, inner: Trace) -> None:
        self.marks[inner] = self.wrote()

    def end_inner(self, inner: Trace) -> None:
        """Refuse what was assigned to within the body of a loop or the like, which runs as often as it will."""
        before = self.marks.pop(inner)
        for place, (name, value) in self.wrote().items():
            if place not in before or before[place][1] is not value:
                got = f"a function that assigns to {name}, which is outside of it"
                needed = "a function that gives all that it makes back"
                do = f"return the new value, and assign it to {name} behind it"
                raise misfit(AssignmentError, inner.name, got=got, needed=needed, do=do)


class NeedsValue(BaseException):
    """The function needs the value of numbers that were lifted: trace again with them in the
    signature."""

    def __init__(self, trace: CompileTrace, numbers: set[int]) -> None:
        super().__init__()
        self.trace = trace
        self.numbers = numbers


def evaluate(*trees: Any) -> None:
    """Compute pending arrays now, all in one plan. What turns out to be wrong, such as a place that is
    out of bounds, is an error here; on a GPU that waits for plans that may find something.

    >>> x = ost.arange(3) + 1
    >>> ost.evaluate(x)
    """
    leaves = [x for tree in trees for x in flatten(tree)[0] if isinstance(x, Array)]
    _Reader().settle(leaves)
    for engine in {id(e): e for x in leaves if (e := getattr(x._operand, "engine", None))}.values():
        engine.look()


class _Reader:
    """How Arrays read their values."""

    @property
    def device(self) -> str:
        session = here()
        return session.target.device if session is not None else "cpu"

    def value(self, x: Array) -> np.ndarray[Any, Any]:
        try:
            with unheard():
                return self._value(x)
        except Exception as error:
            shorten(error)
            raise

    def _value(self, x: Array) -> np.ndarray[Any, Any]:
        if x._operand is None:
            self.settle([x])
        operand = settled(x)
        if isinstance(operand, Host):
            operand.shared = True
            return lent(operand.value)
        if isinstance(operand, File):
            operand = current().hold_array(x)
        return operand.engine.get(operand)

    def on_gpu(self, x: Array) -> Any:
        """Its values where they lie, which is on one GPU of the session's; None if it is not. From now on
        nobody writes over them."""
        session = here()
        if session is None or described(session.target.device).is_host:
            return None
        if x._operand is None:
            self.settle([x])
        operand: Any = session.hold_array(x)
        layout = operand.spec.layout
        if not hasattr(operand, "parts"):  # it lies in other processes
            return None
        if layout is None or layout.stored or not (layout.workers == 1 or layout.is_whole):
            return None
        operand.shared = True
        operand.engine.look()
        return operand.parts[0]

    def adopt(self, values: Any, split: Split, copy: bool) -> Operand | None:
        """An operand of another library's array on a GPU; None if the session computes elsewhere."""
        session = here()
        memory = described(session.target.device) if session is not None else None
        found = memory.borrow(values) if memory is not None else None
        if found is None or memory is None or session is None:
            return None
        operand = session.put(memory.copy_from_host(found) if copy else found, split)
        operand.shared = not copy
        return operand

    def known(self, x: Array, what: str, shape: bool = False) -> np.ndarray[Any, Any]:
        try:
            self._refuse_traced(x, what, shape)
            return self.value(x)
        except Exception as error:
            shorten(error)
            raise

    def is_given(self, x: Array) -> bool:
        """Whether it depends on lifted numbers alone, with whose values its function can be traced again."""
        return x._term is not None and _numbers(placeholders(x._term)) is not None

    def place(self, x: Array) -> Spec:
        if x._operand is None:
            self.settle([x])
        return current().hold_array(x).spec

    def to_dask(self, x: Array) -> Any:
        self._refuse_traced(x, "to_dask", False)
        return to_dask(x, evaluate)

    def text(self, x: Array, edge: int, most: int, **how: Any) -> str | None:
        """The values in words; of more than `most` the first and last along each axis. None where these would
        take long to make, of a large array that is pending."""
        shown = self._shown(x, edge) if x.size > most else self.value(x)
        if shown is None:
            return None
        if shown.shape != x.shape:
            most = 0
        return np.array2string(shown, separator=", ", edgeitems=edge, threshold=most, **how)

    def _shown(self, x: Array, edge: int) -> np.ndarray[Any, Any] | None:
        """The values, or of a large array those that are shown, among others that are not."""
        session = current()
        if _is_at_hand(x, session) or not is_large(x, session):
            return self.value(x)
        blocks = corners(x, edge, session)
        if blocks is None:
            return None if x._operand is None else self.value(x)
        with one_by_one(session.settling, session):
            settle_terms([array.term_of(y) for y in _leaves(blocks)], session, ())
        return np.block(_values(blocks))

    def html(self, x: Array) -> str:
        """Render for a notebook: values, too, unless they lie in a file."""
        if x._is_traced:
            return array_card(x.spec, "not known while a function is traced", "")
        if isinstance(x._operand, File) or (x.spec.layout is not None and x.spec.layout.stored):
            return array_card(x.spec, "in a file", "")
        text = self.text(x, 2, 60, precision=4, max_line_width=100)
        if x._operand is None:
            return array_card(self.planned(x), "pending", text or "")
        return array_card(self.place(x), "", text or "")

    def planned(self, x: Array) -> Spec:
        """The array where it lies on several workers, or is to lie."""
        session = current()
        if session.workers == 1:
            return x.spec
        if x._operand is not None:
            return self.place(x)
        found = collect([array.term_of(x)])
        key = Key(rebase(found.graph, operands_of(found, session)), session.target)
        with suppress(MemoryLimitError):
            return make_plan(key, quick=True).out_specs[0]  # which times nothing
        return x.spec

    def settle(self, xs: Sequence[Array]) -> None:
        pending = [x for x in xs if x._operand is None]
        for x in pending:
            self._refuse_traced(x, _ITSELF, False)
        if not pending:
            return
        try:
            session = current()
            with one_by_one(session.settling, session):
                if roots := [ref for ref in _still(pending) if not _show(ref, session)]:
                    settle_terms(roots, session)
            _still(pending)
        except Exception as error:
            shorten(error)
            raise

    def show(self, xs: Sequence[Any], session: Session) -> bool:
        """Settle those of what a function is given that show a little of what is here; whether any did."""
        pending = [x for x in xs if isinstance(x, Array) and x._operand is None]
        pending = [x for x in pending if x._term is not None and not x._term.is_open]
        if not pending:
            return False
        with one_by_one(session.settling, session):
            return True in [_show(ref, session) for ref in _still(pending)]

    def row(self, x: Array, k: int) -> Operand | None:
        session = here()
        value = _find_value(x._operand, session) if session is not None else None
        if session is None or value is None or not value.ndim or not -len(value) <= k < len(value):
            return None
        row = value[k, ...]
        return session.put(row.copy()) if row.nbytes <= GLANCE else None

    def _refuse_traced(self, x: Array, what: str, shape: bool) -> None:
        if x._operand is not None or x._term is None or not x._term.is_traced:
            return
        owners = placeholders(x._term)
        traces = {t for term in owners for t in term.traces}
        error = _refusal(x, what, shape, owners, traces)
        for trace in traces:  # should the function go on as if it had not heard
            trace.refused.append(error)
        raise error


def _is_at_hand(x: Array, session: Session) -> bool:
    """Whether to read its values takes nothing."""
    operand = x._operand
    if operand is None or isinstance(operand, (Host, File)):
        return isinstance(operand, Host)
    one = operand.spec.layout is not None and operand.spec.layout.workers == 1
    return one and hasattr(operand, "parts") and described(session.target.device).is_host


def _leaves(blocks: list[Any]) -> list[Array]:
    return [y for b in blocks for y in (_leaves(b) if isinstance(b, list) else [b])]


def _values(blocks: Any) -> Any:
    return [_values(b) for b in blocks] if isinstance(blocks, list) else np.asarray(blocks)


def _refusal(
    x: Array, what: str, shape: bool, owners: Sequence[Term], traces: set[Trace]
) -> BaseException:
    """Why a value is not there; or what would give it, if it depends on lifted numbers alone."""
    trace = next(iter(traces))
    if (numbers := _numbers(owners)) is not None:
        if sum(s.size for term in _history(x) for s in term.specs) >= MUCH:
            _tell_of_numbers(x, what, numbers[0])
        return NeedsValue(*numbers)
    got = f"{x.spec.bare} while {trace.name} is traced, where values are not known yet"
    if shape:
        needed = "a result whose shape does not depend on data"
        do = _STATIC.get(what, "compute it outside, or pass size=")
        return misfit(DataDependentShapeError, what, got=got, needed=needed, do=do)
    if what == _ITSELF:  # for NumPy, or for who makes a NumPy array of it
        library, line = asked_by_library()
        with on_behalf(line) if line else nullcontext():
            return misfit(
                TracedValueError,
                f"{what} in {library}" if library else what,
                got=got,
                needed="operations on arrays only",
                do=f"{_TABLE * is_integer(x.dtype)}use ost's functions, ost.callback(f, ost.spec(shape,"
                " dtype), x) for another library's f, or compute it outside",
            )
    do = _TRACED.get(what, f"{_TABLE * is_integer(x.dtype)}{_INSTEAD}")
    return misfit(TracedValueError, what, got=got, needed="operations on arrays only", do=do)


def _numbers(owners: Sequence[Term]) -> tuple[CompileTrace, set[int]] | None:
    """The lifted numbers that these are, and who traces; None if they are something else."""
    traces = {t for term in owners for t in term.traces}
    numbers = {term.number for term in owners}
    for trace in traces:
        if len(traces) == 1 and isinstance(trace, CompileTrace) and numbers <= trace.lifted.keys():
            return trace, numbers
    return None


def _tell_of_numbers(x: Array, what: str, trace: CompileTrace) -> None:
    line = user_line()
    tell(
        f"{what} ({short(line.partition(' (')[0])}): got {x.spec.bare} whose values are asked for while "
        f"{trace.name} is traced, made of numbers among its arguments: with each new number it is traced "
        "again, and computes meanwhile; use ost.where or ost.while_loop, or pass the numbers as arrays",
        *place_of(line),
    )


def _still(pending: Sequence[Array]) -> list[Ref]:
    """Arrays that have no value yet. One that another thread has computed is told so."""
    roots: list[Ref] = []
    for x in pending:
        if x._operand is not None:
            continue
        term, k = array.term_of(x)
        operand = term.operands[k] if term.operands is not None else None
        if operand is None:
            roots.append((term, k))
        else:
            term.tell(x, operand)
    return roots


_INSTEAD = "use ost.where or ost.cond for `if`, ost.while_loop for loops, or compute it outside"
_TABLE = "to index a NumPy array by it, write ost.asarray(B)[:, o]; "
_TRACED = {
    "x[start:stop]": "use ost.dynamic_slice(x, starts, sizes) with sizes that are known, or a stop that "
    "is start + a fixed number"
}
_ITSELF = "reading an array"
_STATIC = {
    "bincount": "pass length=, e.g. ost.bincount(x, length=n)",
    **dict.fromkeys(
        [f"segment_{monoid}" for monoid in ("sum", "max", "min", "prod", "mean")],
        "pass num_segments=",
    ),
    "x[mask]": "use ost.where(mask, x, 0) and reduce that, or ost.nonzero(mask, size=n)",
    "x[mask] = values": "write x = ost.where(mask, values, x), with values of the shape of x",
    "bins by a rule": "say how many, e.g. bins=20",
    "nonzero": "pass size=, e.g. ost.nonzero(x, size=n)",
    "unique_values": "pass size=, e.g. ost.unique_values(x, size=n)",
}


def _history(x: Array) -> list[Term]:
    """Arrays that one is made of while a function is traced, itself included."""
    found = [x._term] if x._term is not None else []
    seen = {id(t) for t in found}
    for term in found:
        new = [t for t, _ in term.inputs if id(t) not in seen]
        seen.update(map(id, new))
        found += new
    return found


def placeholders(root: Term) -> list[Term]:
    found, seen, stack = [], {id(root)}, [root]
    while stack:
        term = stack.pop()
        if term.op is None and term.operands is None:
            found.append(term)
        for t, _ in term.inputs:
            if t.traces and id(t) not in seen:
                seen.add(id(t))
                stack.append(t)
    return found


def _find_value(operand: Operand | None, session: Session) -> np.ndarray[Any, Any] | None:
    """The values where this process has them in one piece, and little memory beside is not counted."""
    target = session.target
    if (
        target.workers > 1
        or target.memory_limit is not None
        or not described(target.device).is_host
    ):
        return None
    if isinstance(operand, Host):
        return operand.value
    if not isinstance(operand, Held) or operand.engine is not session.engine:
        return None
    value = operand.parts[0]
    return value if isinstance(value, np.ndarray) else None


def _show(ref: Ref, session: Session) -> bool:
    """Settle what views show of a value here by a copy, if it is little; whether that was done."""
    term, k = ref
    views = list[Term]()
    while not isinstance(term, array.Late) and term.operands is None and term.op is not None:
        if not term.op.is_view or ref[0].specs[0].nbytes > GLANCE:
            return False
        views.append(term)
        ((term, k),) = term.inputs
    found = term.operands[k] if views and term.operands is not None else None
    value = _find_value(found, session)
    if value is None:
        return False
    for view in reversed(views):
        assert view.op is not None
        assert view.op.view is not None
        shown = view.specs[0].shape
        ins, outs = (tuple((0, n) for n in shape) for shape in (value.shape, shown))
        at = Place((ins,), (outs,), (value.shape,), (shown,))
        value = view.op.view(np, value, at, **dict(view.params))
    ref[0].settle(0, session.put(value.copy()))
    return True


def settle_terms(roots: Sequence[Ref], session: Session, also: Sequence[Ref] | None = None) -> None:
    """Run pending Terms, and all that is held on the way, or of it what there is memory for. Several threads
    may do this at once with the same Terms, each by what it found; the value that comes first stays."""
    asked = list(dict.fromkeys(roots))
    if also is None:
        found, also = _with_held(asked, session)
    else:
        found = collect([*asked, *also])
    operands = operands_of(found, session)
    made = _made(found, operands, session, bool(also))
    if made is None:
        settle_terms(asked, session, smaller(also, len(also) // 2))
        return
    for (term, k), operand in zip([*asked, *also], made, strict=True):
        term.settle(k, operand)


def _with_held(asked: Sequence[Ref], session: Session) -> tuple[Collected, list[Ref]]:
    """Collect what to run for what is asked, and which other results of it somebody holds: on the
    way, and beside it, if that is deep and would make again what is made now, as the other fields
    of a loop's step."""
    found = collect(asked)
    also = held_too(found, asked, session)
    beside = _beside(found, [*asked, *also])
    if not beside:
        return found.with_roots(also), also
    found = collect([*asked, *beside])
    also = held_too(found, asked, session)
    if not set(beside) <= set(also):  # there is no memory for all
        return collect([*asked, *also]), also
    also = list(dict.fromkeys([*beside, *also]))
    return found.with_roots(also[len(beside) :]), also


def _beside(found: Collected, kept: Sequence[Ref]) -> list[Ref]:
    """Pending results that are made of what was collected, and not only of what is kept of it."""
    waiting = [ref for ref in array.pending() if ref[0].depth > DEEP and not ref[0].is_open]
    if not waiting:
        return []
    stays = {id(term) for term, _ in kept}
    made = {id(t) for t in found.terms if t.inputs and t.op is not None and not t.op.is_view}
    made -= stays
    clean, beside = set[int](), list[Ref]()
    for ref in waiting:
        stack = [] if id(ref[0]) in stays else [ref]
        while stack:
            term, k = stack.pop()
            if id(term) in made:
                beside.append(ref)
                break
            is_there = term.operands is not None and term.operands[k] is not None
            if is_there or id(term) in clean or id(term) in stays or isinstance(term, array.Late):
                continue
            clean.add(id(term))
            stack += term.inputs
    return beside


def _made(
    found: Collected, operands: Sequence[Operand], session: Session, less: bool
) -> list[Operand] | None:
    """The results of what was collected; None if they take more memory than they may, and `less` can be
    asked for."""
    form = (found.form, *[o.spec for o in operands])
    known, fixed = session.pending.get(form), (values := exact_values(found))
    if known is not None:
        if vary := known.varying(found, values):
            operands = [*operands, *map(session.put, found.give(vary))]
            fixed = tuple([x for k, x in enumerate(values) if k not in known.vary])
        ready = known.ready.get(fixed)
        if ready is not None and ready.target is session.target:
            return ready.run(operands)
    graph = rebase(found.graph, operands)
    key = Key(graph, session.target)
    if less and key in session.refused:
        return None
    with ExitStack() as files:
        try:
            rest, given = files.enter_context(sorted_before(graph, operands, session))
            plan, _ = session.plan(key if rest is graph else Key(rest, session.target), quick=True)
        except MemoryLimitError:
            if less:
                session.refuse(key)
                return None
            plan, _ = session.plan(key)  # all at once, or an error that says what that takes
            given = list(operands)
        ready = session.ready(plan)
        is_plain = rest is graph and name_functions(graph) is graph and not reads_files(found)
        if is_plain and len(found.terms) <= LARGEST:
            session.know_pending(form, values, fixed, plan, ready)
        return ready.run(given)


array.install(_Reader())
