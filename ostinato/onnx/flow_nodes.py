"""Operators with graphs in them, and those of sequences and optional values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.errors import OstinatoError

from .model_file import ModelGraph
from .operators import (
    NodeCall,
    Value,
    axes_of,
    is_known,
    known,
    number,
    operator,
    ours,
    whole_numbers,
)


class _Changes(Exception):
    """What a loop carries changes its shape, or when it ends is not known."""


def _is_traced(x: Value) -> bool:
    """Whether its value is not there while a function is traced."""
    return isinstance(x, ost.Array) and x._is_traced


@operator("If")
def either(at: NodeCall, condition: Value) -> Value:
    branches = at["then_branch"], at["else_branch"]
    if not _is_traced(condition):
        return tuple(at.run(branches[0 if known(condition).any() else 1], []))

    def arrays(graph: ModelGraph) -> tuple[Any, ...]:
        results = at.run(graph, [])
        if not _are_arrays(results):
            known(condition)  # which has no value yet, as the error says
        return tuple(map(ours, results))

    return tuple(ost.cond(condition.reshape(()), *[partial(arrays, b) for b in branches]))


def _are_arrays(xs: Any) -> bool:
    return all(isinstance(x, (ost.Array, np.ndarray)) and x.dtype != object for x in xs)


@operator("Loop")
def loop(at: NodeCall, trips: Value = None, condition: Value = None, *state: Value) -> Value:
    """A scan where it is known how often, a loop on the workers where only its end is of interest, and
    else turn by turn."""
    body, scanned = at["body"], len(at["body"].outputs) - 1 - len(state)
    known_trips = trips is None or not _is_traced(trips)
    ends = condition is not None and _is_traced(condition)
    most = None if trips is None or not known_trips else int(number(trips))
    if _are_arrays(state):
        for attempt in (_as_scan, _as_while):
            if (attempt is _as_scan and (most is None or ends or most < 1)) or (
                attempt is _as_while and (scanned or not known_trips)
            ):
                continue
            try:
                return attempt(at, body, most, condition, state)
            except (_Changes, OstinatoError, TypeError):
                continue
    return _turn_by_turn(at, body, trips, condition, list(state))


def _fitted(xs: list[Value], like: Any) -> tuple[Any, ...]:
    made = tuple(map(ours, xs)) if _are_arrays(xs) else ()
    if [(x.shape, x.dtype) for x in made] != [(x.shape, x.dtype) for x in like]:
        raise _Changes
    return made


def _goes_on(condition: Value) -> bool:
    if condition is None:
        return True
    if not is_known(condition):
        raise _Changes
    return bool(condition.any())


def _as_scan(at: NodeCall, body: ModelGraph, most: Any, condition: Value, state: Any) -> Value:
    if not (condition is None or known(condition).any()):
        raise _Changes
    begin = tuple(map(ours, state))

    def turn(carried: Any, i: Any) -> Any:
        ends, *made = at.run(body, [i, np.array(True), *carried])
        if not _goes_on(ends):
            raise _Changes
        return _fitted(made[: len(state)], begin), tuple(map(ours, made[len(state) :]))

    end, rows = ost.scan(turn, begin, ost.arange(most))
    return (*end, *rows)


def _as_while(at: NodeCall, body: ModelGraph, most: Any, condition: Value, state: Any) -> Value:
    begin = tuple(map(ours, state))
    first = ost.asarray(True) if condition is None else ours(condition).reshape(())

    def goes_on(carried: Any) -> Any:
        i, more, _ = carried
        return more if most is None else ost.logical_and(more, i < most)

    def turn(carried: Any) -> Any:
        i, _, values = carried
        ends, *made = at.run(body, [i, np.array(True), *values])
        more = ost.asarray(True) if ends is None else ours(ends).reshape(())
        return i + 1, more, _fitted(made, begin)

    return tuple(ost.while_loop(goes_on, turn, (ost.asarray(0), first, begin))[2])


def _turn_by_turn(
    at: NodeCall, body: ModelGraph, trips: Value, condition: Value, state: list[Value]
) -> Value:
    most = None if trips is None else int(number(trips))
    goes_on = condition is None or bool(known(condition).any())
    rows: list[list[Value]] = [[] for _ in body.outputs[1 + len(state) :]]
    i = 0
    while goes_on and (most is None or i < most):
        ends, *made = at.run(body, [np.array(i), np.array(True), *state])
        state = made[: len(state)]
        for row, x in zip(rows, made[len(state) :], strict=True):
            row.append(x)
        goes_on = ends is None or bool(known(ends).any())
        i += 1
    return (*state, *[_stacked(row) for row in rows])


def _stacked(row: list[Value]) -> Value:
    if not row:
        return np.zeros((0,), np.float32)
    return np.stack(row) if all(map(is_known, row)) else ost.stack([ours(x) for x in row])


@operator("Scan")
def scan(at: NodeCall, *given: Value) -> Value:
    body, count = at["body"], at["num_scan_inputs"]
    state, rows = given[: len(given) - count], given[len(given) - count :]
    made = len(body.outputs) - len(state)
    ins, outs = at.get("scan_input_axes") or [0] * count, at.get("scan_output_axes") or [0] * made
    ins_back = at.get("scan_input_directions") or [0] * count
    outs_back = at.get("scan_output_directions") or [0] * made
    xs = []
    for x, axis, back in zip(rows, ins, ins_back, strict=True):
        row = ost.moveaxis(ours(x), axis, 0)
        xs.append(ost.flip(row, 0) if back else row)
    begin = tuple(map(ours, state))

    def turn(carried: Any, each: Any) -> Any:
        results = at.run(body, [*carried, *each])
        return _fitted(results[: len(state)], begin), tuple(map(ours, results[len(state) :]))

    end, ys = ost.scan(turn, begin, tuple(xs))
    found = []
    for y, axis, back in zip(ys, outs, outs_back, strict=True):
        found.append(ost.moveaxis(ost.flip(y, 0) if back else y, 0, axis))
    return (*end, *found)


# -- sequences and optional values -----------------------------------------------------------
@operator("SequenceConstruct")
def sequence(at: NodeCall, *xs: Value) -> Value:
    return list(xs)


@operator("SequenceEmpty")
def empty_sequence(at: NodeCall) -> Value:
    return []


@operator("SequenceLength")
def sequence_length(at: NodeCall, xs: list[Value]) -> Value:
    return np.array(len(xs), np.int64)


def _place(xs: list[Value], k: Value, after: int = 0) -> int:
    i = int(number(k))
    if not -len(xs) <= i < len(xs) + after:
        raise IndexError(f"place {i} of {len(xs)}")
    return i % len(xs) if i < 0 else i


@operator("SequenceAt")
def sequence_at(at: NodeCall, xs: list[Value], k: Value) -> Value:
    return xs[_place(xs, k)]


@operator("SequenceInsert")
def sequence_insert(at: NodeCall, xs: list[Value], x: Value, k: Value = None) -> Value:
    i = len(xs) if k is None else _place(xs, k, 1)
    return [*xs[:i], x, *xs[i:]]


@operator("SequenceErase")
def sequence_erase(at: NodeCall, xs: list[Value], k: Value = None) -> Value:
    i = len(xs) - 1 if k is None else _place(xs, k)
    return [*xs[:i], *xs[i + 1 :]]


@operator("ConcatFromSequence")
def joined_sequence(at: NodeCall, xs: list[Value]) -> Value:
    join: Callable[..., Any] = ost.stack if at["new_axis"] else ost.concat
    return join([ours(x) for x in xs], axis=at["axis"])


@operator("SplitToSequence", reads=[1])
def split_to_sequence(at: NodeCall, x: Value, sizes: Value = None) -> Value:
    (d,) = axes_of([at["axis"]], x.ndim)
    n = x.shape[d]
    each = [1] * n
    if sizes is not None:
        given = whole_numbers(sizes)
        one = given[0]
        each = given if sizes.ndim else [one] * (n // one) + ([n % one] if n % one else [])
    ends = np.cumsum(each)
    key = (slice(None),) * d
    parts = [x[(*key, slice(int(e) - m, int(e)))] for e, m in zip(ends, each, strict=True)]
    if sizes is None and not at["keepdims"]:
        return [at.xp.squeeze(part, d) for part in parts]
    return parts


@operator("Optional")
def optional(at: NodeCall, x: Value = None) -> Value:
    return x


@operator("OptionalHasElement")
def has_element(at: NodeCall, x: Value = None) -> Value:
    return np.array(x is not None)


@operator("OptionalGetElement")
def get_element(at: NodeCall, x: Value) -> Value:
    if x is None:
        raise ValueError("nothing in it")
    return x
