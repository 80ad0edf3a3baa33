"""What calls lead to: an entry for each signature, and how it is run.

Most calls find theirs by one look at the arguments (`quick`)."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ostinato import settings
from ostinato.errors import AssignmentError
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import copied
from ostinato.ops.core.tree import flatten
from ostinato.ops.core.user_line import misfit
from ostinato.ops.random.seeds import seeds
from ostinato.planner.plan import Plan
from ostinato.runtime.engine import Launcher

from .arguments import NUMBERS, UNREADY, Call, is_itself, scan
from .donation import launch_given
from .guards import Change, Guards
from .sessions import Session
from .side_effects import Effects, Outside
from .tracing import Traced

MAX_SIGNATURES = 4096  # signatures of a function; then the oldest go


@dataclass(slots=True, weakref_slot=True, eq=False)
class Entry:
    """What a signature leads to."""

    plan: Plan
    launch: Launcher
    leaves: tuple[int, ...]  # arguments that are inputs of the graph
    captured: tuple[Operand, ...]
    draws: bool  # whether the last input is a seed
    outputs: tuple[tuple[str, Any], ...]  # ("out", k), ("in", argument), ("is", value)
    assigned: dict[int, tuple[str, Any]]  # arguments that it assigns to, and what they become
    build: Callable[[Sequence[Any]], Any]  # what the function returns, around its leaves
    donated: tuple[int, ...]  # arguments
    made: bool  # whether the results are what the plan makes, one by one
    simple: bool  # arrays in and one array out, nothing captured, given or drawn
    traced: Traced | None  # to be compared with, if asked for
    guards: Guards  # what the trace read of what is around
    hold: Callable[[Sequence[Any]], bool] | None  # whether that is as it was
    effects: Effects | None  # what it reads and writes of what is around
    owner: weakref.ref[Entries]
    key: Any = None
    # where `quick` leads to it, and the objects among the arguments, with which it goes
    quick: set[tuple[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=set)
    objects: list[weakref.ref[Any]] = field(default_factory=list)

    def drop(self) -> None:
        """Its plan, its session or an object among its arguments is gone."""
        if (owner := self.owner()) is not None:
            owner.drop(self)

    def run(
        self,
        name: str,
        leaves: Sequence[Any],
        given: list[Any],
        session: Session,
        state: tuple[list[Any], list[Any]] | None,
        arguments: Outside | None,
    ) -> Any:
        operands: list[Any] = [operand_of(x, session) for x in [given[k] for k in self.leaves]]
        if state is not None:
            operands += [operand_of(x, session) for x in state[0]]
        if self.captured:
            operands += self.captured
        if self.draws:
            operands.append(session.put(np.asarray(seeds.advance(), np.uint64)))
        effects = self.effects
        numbers: list[Any] = []
        if effects is not None:
            if arguments is not None:
                effects.check(arguments, name)
            if effects.numbers is not None:
                more = state[0] if state is not None else ()
                numbers = effects.numbers.evaluate([*[given[k] for k in self.leaves], *more])
        for k in self.assigned:
            if sum(x is leaves[k] for x in leaves) > 1:
                got = "an array that it assigns to and that is also another argument"
                needed = "an array that is passed once"
                do = "pass a copy, x.copy(), as one of them"
                raise misfit(AssignmentError, name, got=got, needed=needed, do=do)
        if self.donated:
            positions = {k: n for n, k in enumerate(self.leaves)}
            away = [(positions[k], leaves[k]) for k in self.donated]
            given.clear()  # for the same reason
            made = launch_given(self.launch, operands, away, session, f"{name}(donate=)")
        else:
            made = self.launch(operands)
        if self.made:
            return self.build([from_operand(o) for o in made])
        known: dict[tuple[str, Any], Any] = {}  # one Array for each output, whoever gets it

        def result(where: str, k: Any) -> Any:
            if where == "is":
                return k
            if where == "number":
                return numbers[k]
            at: tuple[str, Any] = k if where == "item" else (where, k)
            if at not in known:
                if at[0] == "state" and state is not None:
                    known[at] = state[1][at[1]]
                else:
                    kind, n = at
                    known[at] = self._result(kind, n, leaves, operands, made, session)
            return known[at].item() if where == "item" else known[at]

        results = [result(at, k) for at, k in self.outputs]
        if effects is not None:
            effects.store(result, leaves, arguments or {})
        if self.assigned:
            self._assign(leaves, operands, made)
        return self.build(results)

    def _result(
        self,
        where: str,
        k: Any,
        leaves: Sequence[Any],
        operands: Sequence[Operand],
        made: Sequence[Operand],
        session: Session,
    ) -> Any:
        """A result that is not simply the next one that was made."""
        if where == "out":
            return from_operand(made[k])
        if where == "in":
            x = leaves[k]
            if isinstance(x, np.ndarray):  # which the caller may change
                return from_operand(session.put(copied(x)))
            keep = isinstance(x, Array) and not (k in self.donated or k in self.assigned)
            return x if keep else from_operand(operands[self.leaves.index(k)])
        if where == "captured":
            return from_operand(self.captured[k])
        return k

    def _assign(
        self, leaves: Sequence[Any], operands: Sequence[Operand], made: Sequence[Operand]
    ) -> None:
        """Give to arguments what the function assigned to them, as without compiling."""
        known = [*self.outputs, *self.assigned.values()]
        for k, (where, n) in self.assigned.items():
            if where == "captured":
                found = self.captured[n]
            else:
                found = made[n] if where == "out" else operands[self.leaves.index(n)]
            found.shared = found.shared or where != "out" or known.count((where, n)) > 1
            if isinstance(leaves[k], Array):
                leaves[k]._become(from_operand(found))
            else:
                np.copyto(leaves[k], found.engine.get(found))


@dataclass(slots=True)
class Known:
    """What calls of one form lead to."""

    values: tuple[int, ...]  # leaves whose value matters
    order: list[int] | None  # leaves as seen, in the order of the signature
    rest: tuple[Any, ...]  # leaves of defaults
    entry: Entry  # where no value matters; else the entries by them
    entries: dict[tuple[Any, ...], Entry]


class Entries:
    """The entries of a function, by the signatures that lead to them."""

    __slots__ = (
        "__dict__",
        "__weakref__",
        "entries",
        "last",
        "needed",
        "parameters",
        "quick",
        "signature",
    )
    signature: inspect.Signature
    parameters: tuple[str, ...]

    def __init__(self) -> None:
        self.entries: dict[Any, Entry] = {}
        self.quick: dict[tuple[Any, ...], Known] = {}  # by what one look at the arguments gives
        self.needed: set[tuple[Any, int]] = set()  # numbers that turned out to be needed by value
        self.last: Entry | None = None

    def keep(self, entry: Entry, key: Any, leaves: Sequence[Any], session: Session) -> None:
        gone = functools.partial(_gone, weakref.ref(entry))
        entry.key = key
        entry.objects = [weakref.ref(x, gone) for x in leaves if is_itself(x)]
        while len(self.entries) >= MAX_SIGNATURES:
            self.drop(self.entries[next(iter(self.entries))])
        self.entries[key] = entry
        session.keep(self, entry, entry.plan)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]
        for tokens, values in tuple(entry.quick):
            known = self.quick.get(tokens)
            if known is not None and known.entries.pop(values, None) is not None:
                left = next(iter(known.entries.values()), None)
                if left is None:
                    del self.quick[tokens]
                else:
                    known.entry = left
        if self.last is entry:
            self.last = replace(
                entry,
                launch=_ended,
                captured=(),
                guards=Guards(()),
                hold=None,
                effects=None,
                objects=[],
            )

    def forget_session(self, number: int) -> None:
        """A session ends, and all that was made for it."""
        for key in list(self.entries):
            if key[0][2] == number and (entry := self.entries.get(key)) is not None:
                self.drop(entry)
        self.needed = {n for n in list(self.needed) if n[0][2] != number}

    def known(
        self, key: Any, leaves: Sequence[Any], session: Session
    ) -> tuple[Entry | None, Change | None]:
        """The entry of a signature, if all that it read is as it was; else what changed."""
        entry = self.entries.get(key)
        if entry is None:
            return None, None
        change = None
        if entry.hold is not None and not entry.hold(leaves):
            change = entry.guards.change(leaves)
        if change is None and entry.effects is not None:
            change = entry.effects.change(leaves, session)
        return (entry if change is None else None), change

    def remember(
        self,
        entry: Entry,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        leaves: Sequence[Any],
    ) -> None:
        """Lead calls of the same form to the entry directly, if one look at the arguments is
        enough."""
        if settings.check_stale:
            return
        session = call.session
        tokens: list[Any] = [session.number]
        seen: list[Any] = []
        parts: dict[str, range] = {}
        try:
            for a in args:
                scan(a, session.engine, tokens, seen, [])
            places = list(range(len(seen)))
            if kwargs:
                tokens.append(tuple(kwargs))
            for name, a in kwargs.items():
                before = len(seen)
                scan(a, session.engine, tokens, seen, [])
                parts[name] = range(before, len(seen))
        except UNREADY:
            return
        rest: list[Any] = []
        for name in self.parameters[len(args) :]:
            parameter = self.signature.parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                return
            if name in parts:
                places += parts[name]
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                more = flatten(parameter.default)[0]
                if any(isinstance(x, Array) for x in more):
                    return
                places += range(len(seen) + len(rest), len(seen) + len(rest) + len(more))
                rest += more
        found = [*seen, *rest]
        if len(places) != len(leaves) or any(
            found[p] is not x for p, x in zip(places, leaves, strict=True)
        ):
            return
        inputs = set(call.inputs)
        values = tuple(k for k, x in enumerate(leaves) if k not in inputs and not is_itself(x))
        if any(isinstance(leaves[k], (float, complex)) for k in values):
            return  # 0.0 and -0.0 are equal
        order = None if places == list(range(len(leaves))) and not rest else places
        if self.entries.get(entry.key) is not entry:  # dropped meanwhile
            return
        form, value = tuple(tokens), tuple([leaves[k] for k in values])
        if len(self.quick) >= MAX_SIGNATURES or len(entry.quick) >= MAX_SIGNATURES:
            self.quick = {}
            entry.quick.clear()
        known = self.quick.get(form)
        if known is None or known.values != values:
            known = self.quick[form] = Known(values, order, tuple(rest), entry, {})
        known.rest = tuple(rest)  # defaults may have been changed
        known.entries[value] = known.entry = entry
        entry.quick.add((form, value))


_VALUES = frozenset((*NUMBERS, np.ndarray))


def _gone(entry: weakref.ref[Entry], _: object) -> None:
    if (found := entry()) is not None:
        found.drop()


def _ended(operands: Sequence[Operand]) -> list[Operand]:
    raise AssertionError("what was dropped is not run")


def operand_of(x: Any, session: Session) -> Any:
    """A number, or NumPy's array, as an operand."""
    if x.__class__ not in _VALUES:
        return x
    return session.put(x if isinstance(x, np.ndarray) else np.asarray(x, NUMBERS[type(x)]))
