"""Refusals that a traced function hears: caught by their name they stay caught, swallowed they do not."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import errors
from ostinato.errors import DataDependentShapeError, OstinatoError, TracedValueError
from tests.helpers import counts_traces, on

X = np.array([1.0, 2.0, -4.0])
BOTH = (TracedValueError, DataDependentShapeError)


def by_name(x: Any) -> Any:
    try:
        return x * float(x.sum())
    except TracedValueError:
        return x * x.sum() + 0


def by_attribute(x: Any) -> Any:
    try:
        try:
            return x * int(x[0])
        except ZeroDivisionError:  # another one
            return x
    except (KeyError, ost.errors.TracedValueError):
        return x * ost.floor(x[0])


def by_base(x: Any) -> Any:
    try:
        if x[0] > 0:
            return x + 1
    except OstinatoError:
        pass
    return ost.where(x[0] > 0, x + 1, x)


def of_shapes(x: Any) -> Any:
    try:
        y = ost.sort(x[x > 0])
    except BOTH:
        y = ost.sort(x)
    return y[-1:]


def deep(x: Any) -> Any:
    def number(y: Any) -> float:
        return float(y.max())

    try:
        return x / number(x)
    except errors.TracedValueError:
        return x / x.max()


def suppressed(x: Any) -> Any:
    y = x
    with contextlib.suppress(TracedValueError):
        y = x + bool(x.any())
    return y + 1 if y is x else y


def in_a_loop(x: Any) -> Any:
    def step(s: Any) -> Any:
        try:
            return s * float(s[1])
        except TracedValueError:
            return s * s[1]

    try:
        ost.repeat(2, lambda s: s if s[0] > 0 else -s, x)
    except TracedValueError:
        x = x + 0
    return ost.repeat(1, step, x)


CAUGHT = [by_name, by_attribute, by_base, of_shapes, deep, suppressed, in_a_loop]


@counts_traces
@pytest.mark.parametrize("function", CAUGHT)
def test_what_is_caught_by_its_name_stays_caught(function: Any) -> None:
    """What a function does instead is traced, once, and is right for other values, too."""
    for workers in (1, 3):
        with on(workers):
            f = ost.compile(function)
            for sign in (1, 3):
                wanted = function(X * sign)
                np.testing.assert_allclose(f(ost.asarray(X * sign)), wanted, rtol=1e-15)
            assert len(f.misses) == 1


def test_gradients_and_vmap_of_what_is_done_instead() -> None:
    slope = ost.compile(ost.grad(lambda x: by_name(x).sum()))(ost.asarray(X))
    np.testing.assert_allclose(slope, [-2.0] * 3)
    rows = np.stack([X, X + 1])
    np.testing.assert_allclose(ost.vmap(by_name)(rows), rows * rows.sum(1, keepdims=True))


def test_what_was_kept_of_it_is_no_leak() -> None:
    @ost.compile
    def f(x: Any) -> Any:
        said = ""
        try:
            float(x.sum() * 2)
        except TracedValueError as error:
            said = str(error)
        return x + ("float()" in said)

    np.testing.assert_array_equal(f(ost.asarray(X)), X + 1)


def test_numbers_are_traced_again_with_their_values() -> None:
    @ost.compile
    def f(x: Any, n: int) -> Any:
        try:
            return x * 2 if n > 2 else x
        except TracedValueError:
            return x * 0

    for n in (1, 3, 1):
        np.testing.assert_array_equal(f(ost.asarray(X), n), X * (2 if n > 2 else 1))


def swallowed(x: Any) -> Any:
    try:
        return x * float(x.sum())
    except Exception:
        return x


def swallowed_first(x: Any) -> Any:
    scale = 1.0
    with contextlib.suppress(TypeError):
        scale = float(x.sum())
    try:
        return x * scale * float(x[0])
    except TracedValueError:
        return x


def in_another_clause(x: Any) -> Any:
    try:
        raise KeyError
    except KeyError:
        with contextlib.suppress(Exception):
            x = x * float(x[0])
    except TracedValueError:
        x = x * 2
    return x


@pytest.mark.parametrize("function", [swallowed, swallowed_first, in_another_clause])
def test_what_is_swallowed_is_said(function: Any) -> None:
    with pytest.raises(TracedValueError, match="float"):
        ost.compile(function)(ost.asarray(X))
