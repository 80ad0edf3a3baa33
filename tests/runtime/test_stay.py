"""Operands that products keep in an order of their own: always what is in them now, and no longer
than they are there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as example
from hypothesis import strategies as st
from ostinato.ops.core.spec import Own
from ostinato.ops.cpu.kernels import gemm
from ostinato.ops.cpu.libraries import onednn
from ostinato.runtime import packed_weights

import ostinato as ost
from ostinato.sessions import current

pytestmark = pytest.mark.skipif(isinstance(onednn.library(), str), reason=onednn.describe_library())

N = 96
OFTEN = packed_weights.OFTEN


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    """One that has not seen any plan."""
    with ost.connect(mesh=(1,)):
        yield


def kept() -> int:
    """Bytes that the workers keep."""
    return sum(w["kept_bytes"] for w in current().engine.stats()["workers"])


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = numbers(0, 16, N)


def run_of(function: Callable[..., Any] = lambda x, w: x @ w) -> Callable[[Any], np.ndarray]:
    """A function of weights, that says what comes out."""
    x, run = ost.asarray(X), ost.compile(function)
    return lambda w: np.asarray(run(x, w))


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def same_often(run: Callable[[Any], np.ndarray], w: Any, times: int = OFTEN) -> np.ndarray:
    for _ in range(times):
        found = run(w)
    return found


def test_what_comes_often_is_kept_and_no_bit_changes() -> None:
    run, w = run_of(), ost.asarray(numbers(1, N, N))
    found = []
    for k in range(1, 3 * OFTEN):
        found.append(run(w))
        assert (kept() > 0) == (k >= OFTEN)
    assert kept() >= 4 * N * N
    assert len({x.tobytes() for x in found}) == 1
    near(found[-1], X @ numbers(1, N, N))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x, w: x @ w.T, lambda x, w: x @ w.T),
        (lambda x, w: x @ w @ w, lambda x, w: x @ w @ w),
        (
            lambda x, w: ost.repeat(3, lambda x: (x @ w) * 0.1, x),
            lambda x, w: x @ w @ w @ w * 1e-3,
        ),
        (
            lambda x, w: (x.reshape(4, 4, N) @ w).sum(0),
            lambda x, w: (x.reshape(4, 4, N) @ w).sum(0),
        ),
        (lambda x, w: x.reshape(32, 48) @ w[48:], lambda x, w: x.reshape(32, 48) @ w[48:]),
        (lambda x, w: x @ w[8:].T, lambda x, w: x @ w[8:].T),
    ],
    ids=["turned", "twice", "in a loop", "of batches", "a part", "a part, turned"],
)
def test_where_products_keep(function: Any, wanted: Any) -> None:
    run = run_of(function)
    for seed in (1, 2):
        w = ost.asarray(numbers(seed, N, N))
        near(same_often(run, w, 2 * OFTEN + 1), wanted(X, numbers(seed, N, N)))
        assert kept() > 0


changes = st.lists(
    st.tuples(st.sampled_from(["other", "given away", "made again", "back"]), st.integers(1, 8)),
    min_size=1,
    max_size=8,
)


@example(deadline=None, max_examples=40)
@given(changes=changes, turned=st.booleans())
def test_weights_that_change_in_any_way(changes: list[tuple[str, int]], turned: bool) -> None:
    """Each change is followed by some runs that see no change."""
    with ost.connect(mesh=(1,)):
        check_changes(changes, turned)


def check_changes(changes: list[tuple[str, int]], turned: bool) -> None:
    run = run_of((lambda x, w: x @ w.T) if turned else (lambda x, w: x @ w))
    make = ost.compile(lambda w, k: w * 0 + k)
    step = ost.compile(lambda w: w * 0.5 + 1, donate=["w"])
    first = ost.asarray(numbers(1, N, N))
    w, value = first, numbers(1, N, N)
    for k, (change, times) in enumerate(changes):
        match change:
            case "other":
                value = numbers(k, N, N)
                w = ost.asarray(value)
            case "given away" if w is not first:
                w, value = step(w), value * np.float32(0.5) + 1
            case "made again":
                w = None  # so that its memory is free
                w, value = make(first, float(k)), np.full((N, N), k, np.float32)
            case "back":
                w, value = first, numbers(1, N, N)
        found = same_often(run, w, times)
        near(found, X @ (value.T if turned else value))


def test_memory_that_was_given_away_holds_other_numbers() -> None:
    run, step = run_of(), ost.compile(lambda w: w * 2, donate=["w"])
    w = ost.asarray(numbers(1, N, N))
    same_often(run, w)
    assert kept() > 0
    array = w._operand.parts[0]
    w = step(w)
    assert w._operand.parts[0] is array
    near(run(w), X @ (2 * numbers(1, N, N)))
    assert kept() == 0


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_result_that_is_kept_is_not_written_over(forgotten: bool) -> None:
    """Its memory would be used again once nobody else refers to it."""
    run, make = run_of(), ost.compile(lambda w, k: w * k)
    first = ost.asarray(numbers(1, N, N))
    w = make(first, 1.0)
    if forgotten:
        current().engine.forget(make.plan_for(first, 1.0).id)
    same_often(run, w)
    assert kept() > 0
    del w
    assert kept() == 0
    near(run(make(first, 2.0)), X @ (2 * numbers(1, N, N)))


def test_memory_goes_with_the_array_with_others_and_with_the_plan() -> None:
    run = run_of()
    w = ost.asarray(numbers(1, N, N))
    same_often(run, w)
    size = kept()
    assert size > 0
    run(ost.asarray(numbers(2, N, N)))
    assert kept() == 0
    del w
    x, w = ost.asarray(X), ost.asarray(numbers(1, N, N))
    product = ost.compile(lambda x, w: x @ w)
    for _ in range(4 * OFTEN):
        product(x, w)
    assert kept() == size
    current().engine.forget(product.plan_for(x, w).id)
    assert kept() == 0
    for _ in range(4 * OFTEN):  # also after that it runs
        found = product(x, w)
    near(np.asarray(found), X @ numbers(1, N, N))
    assert kept() == size
    del w
    gc.collect()
    assert kept() == 0


def test_plans_that_rest_keep_nothing() -> None:
    run, w = run_of(), ost.asarray(numbers(1, N, N))
    near(same_often(run, w), X @ numbers(1, N, N))
    (worker,) = current().engine.workers
    run(w)
    worker._rest()
    assert kept() > 0  # since it ran
    worker._rest()
    assert kept() == 0
    near(run(w), X @ numbers(1, N, N))


def test_borrowed_memory_may_be_written_to_by_its_owner() -> None:
    run, value = run_of(), numbers(1, N, N)
    w = ost.asarray(value, copy=False)
    for weights in (w, value):
        for k in range(1, 3 * OFTEN):
            value[...] = numbers(k, N, N)
            near(run(weights), X @ value)
            near(same_often(run, weights), X @ value)
    assert kept() == 0


def test_who_changes_often_is_asked_more_of(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    keeps = gemm.with_weights
    monkeypatch.setattr(gemm, "with_weights", lambda *args: [keeps(*args), made.append(1)][0])
    run = run_of()
    for k in range(12):
        near(same_often(run, ost.asarray(numbers(k, N, N)), OFTEN + 1), X @ numbers(k, N, N))
    assert len(made) == 1
    w = ost.asarray(numbers(1, N, N))
    same_often(run, w, 2 * OFTEN * packed_weights.PAYS)  # this one is worth it
    for k in range(2):
        assert len(made) == 2 + k
        same_often(run, ost.asarray(numbers(k, N, N)), OFTEN)


def test_what_would_have_other_bits_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_alike", lambda *args: False)
    run, w = run_of(), ost.asarray(numbers(1, N, N))
    near(same_often(run, w, 3 * OFTEN), X @ numbers(1, N, N))
    assert kept() == 0


@pytest.mark.parametrize("split", [None, 1])
def test_workers_keep_their_own_parts(split: int | None) -> None:
    with ost.connect(mesh=(2,)):
        x = ost.asarray(numbers(0, 32, N), split=None if split else 0)
        w = ost.asarray(numbers(1, N, 4 * N), split=split)
        run = ost.compile(lambda x, w: x @ w)
        for _ in range(2 * OFTEN):
            found = np.asarray(run(x, w))
        assert [s["kept_bytes"] > 0 for s in current().engine.stats()["workers"]] == [True, True]
        near(found, numbers(0, 32, N) @ numbers(1, N, 4 * N))
        del w
        gc.collect()
        assert kept() == 0


def test_copies_are_our_own_and_what_users_see_is_not() -> None:
    x = ost.asarray(numbers(1, N, N))
    run_of()(x)
    (part,) = x._operand.parts
    assert type(part.base) is Own
    assert type(np.asarray(x).base) is not Own
    assert not np.asarray(x).flags.writeable
