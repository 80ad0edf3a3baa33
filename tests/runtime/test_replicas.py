"""Operands that a plan gathers: gathered once while they stay the same, and never a stale one. Run over MPI,
too."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.planner.file import decode_plan, encode_plan
from ostinato.planner.gathered import gathers, given
from ostinato.runtime.crew.crew_engine import CrewEngine
from ostinato.runtime.packed_weights import OFTEN, PAYS

import ostinato as ost
from ostinato import replicas
from ostinato.sessions import current
from tests.sessions import JOB

MESH = (JOB,) if JOB > 1 else (2,)
X = np.random.default_rng(0).normal(size=(1200, 150)).astype(np.float32)
WEIGHTS = 150 * 120 * 4  # bytes


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    """One that has not seen any plan."""
    with ost.connect(mesh=MESH):
        yield


def sent() -> int:
    """Bytes that workers sent each other, in this process."""
    engine: Any = current().engine
    current().wait()
    if isinstance(engine, CrewEngine):
        return sum(engine.lead.communicator.bytes_to)  # type: ignore[union-attr]
    return int(engine.world.bytes)


def bytes_of(run: Any, *operands: Any) -> tuple[int, np.ndarray]:
    before = sent()
    made = run(*operands)
    found = sent() - before
    return found, np.asarray(made)


def weights(seed: int = 1, split: int = 0) -> Any:
    w = np.random.default_rng(seed).normal(size=(150, 120)).astype(np.float32)
    return ost.asarray(w, split=split)


def layers() -> Any:
    return ost.compile(lambda x, w: ost.tanh(x @ w) @ w.T)


def rows() -> Any:
    return ost.asarray(X, split=0)


def test_what_stays_is_gathered_once_and_no_bit_changes() -> None:
    run, x, w = layers(), rows(), weights()
    found = [bytes_of(run, x, w) for _ in range(OFTEN + 3)]
    assert [n > 0 for n, _ in found] == [True] * OFTEN + [False] * 3
    assert len({y.tobytes() for _, y in found}) == 1
    told = run.plan.explain()
    assert "gathered  once while it stays the same: w, 70.3 KiB of each worker" in told
    x = ost.asarray(X * 2, split=0)  # what is not gathered may change
    run(x, w)  # which brings x to the workers
    n, y = bytes_of(run, x, w)
    assert n == 0
    w = np.asarray(w)
    np.testing.assert_allclose(y, np.tanh(2 * X @ w) @ w.T, rtol=1e-3, atol=1e-3)


def test_another_one_is_gathered_anew() -> None:
    run, x = layers(), rows()
    for seed in (1, 2, 1):
        w = weights(seed)
        for _ in range(2 * OFTEN):
            n, y = bytes_of(run, x, w)
            v = np.asarray(w)
            np.testing.assert_allclose(y, np.tanh(X @ v) @ v.T, rtol=1e-3, atol=1e-3)
        n, _ = bytes_of(run, x, weights(seed))
        assert n > 0, "an array of the same values is another one"


def test_what_hardly_paid_must_come_more_often() -> None:
    run, x = layers(), rows()

    def until_kept() -> int:
        w, count = weights(), 0
        while bytes_of(run, x, w)[0]:
            count += 1
        return count

    assert [until_kept() for _ in range(3)] == [OFTEN, 2 * OFTEN, 4 * OFTEN]
    w = weights()
    for _ in range(8 * OFTEN * PAYS):
        run(x, w)
    assert until_kept() == OFTEN, "it paid, so it is trusted again"


def test_state_that_changes_is_never_kept() -> None:
    step = ost.compile(lambda x, w: (w - 1e-3 * (x.T @ (x @ w))).resplit(0))
    x, w = rows(), weights()
    v = np.asarray(w)
    for _ in range(3 * OFTEN):
        w = step(x, w)
        v = v - np.float32(1e-3) * (X.T @ (X @ v))
    np.testing.assert_allclose(np.asarray(w), v, rtol=1e-3, atol=1e-3)
    assert not any(r.ids for r in current()._made.replicas.values())


def test_what_is_given_away_is_not_kept() -> None:
    run, x = layers(), rows()
    scaled = ost.compile(lambda w: w * 2, donate=["w"])
    w = ost.asarray(np.asarray(weights()) + 0, split=0)
    for _ in range(4):
        for _ in range(OFTEN + 1):
            _, y = bytes_of(run, x, w)
        v = np.asarray(w) + 0
        np.testing.assert_allclose(y, np.tanh(X @ v) @ v.T, rtol=1e-3, atol=1e-3)
        w = scaled(w * 1)


def kept() -> list[Any]:
    """The replicas that there are."""
    found = current()._made.replicas.values()
    return [s.replica for r in found for s in r.sites if s.replica is not None]


def test_a_replica_goes_with_its_operand() -> None:
    run, x, w = layers(), rows(), weights()
    for _ in range(OFTEN):
        run(x, w)
    (replica,) = kept()
    gone = weakref.ref(replica)
    assert replica.spec.layout.is_whole
    del replica
    w = None
    until = time.monotonic() + 60
    while gone() is not None and time.monotonic() < until:  # a worker may still be at its last run
        gc.collect()
        time.sleep(0.01)
    assert gone() is None
    w = weights()
    for _ in range(2 * OFTEN):
        run(x, w)
    (replica,) = kept()
    gone = weakref.ref(replica)
    del replica
    current().rest()
    gc.collect()
    assert gone() is None, "a session that rests keeps no replicas"
    assert bytes_of(run, x, w)[0] > 0


def test_the_memory_counts() -> None:
    run, x, w = layers(), rows(), weights()
    run(x, w)
    plan = run.plan
    (found,) = gathers(plan)
    other = given(plan, (0,))
    assert found.bytes == WEIGHTS
    assert other.operand_bytes == plan.operand_bytes + WEIGHTS
    assert other.id != plan.id
    assert decode_plan(encode_plan(other), trusted=True) == other
    with pytest.raises(Exception, match="somebody else"):
        decode_plan(encode_plan(other))
    for room, is_kept in ((0, False), (WEIGHTS, True)):
        tight = ost.compile(
            lambda x, w: ost.tanh(x @ w) @ w.T,
            memory_limit=max(plan.peak_bytes, other.peak_bytes - WEIGHTS) + room,
        )
        for _ in range(2 * OFTEN):
            n, _ = bytes_of(tight, x, w)
        assert (n == 0) == is_kept or other.peak_bytes <= plan.peak_bytes


def test_what_is_sent_rounded_is_kept_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MIN_BYTES", 0)
    run = ost.compile(lambda x, w: ost.tanh(x @ w.T), precision="mixed_bf16")
    x, w = ost.asarray(X[:, :120] + 0, split=0), weights()
    found = [bytes_of(run, x, w) for _ in range(OFTEN + 2)]
    assert [n > 0 for n, _ in found] == [True] * OFTEN + [False] * 2
    assert len({y.tobytes() for _, y in found}) == 1
    assert [r.spec.dtype for r in kept()] == [np.dtype(ost.bfloat16)]


def test_small_ones_must_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "RARELY", 5)
    run = ost.compile(lambda x, w: x @ w)
    x, w = rows(), ost.asarray(np.ones((150, 2), np.float32), split=0)
    found = [bytes_of(run, x, w)[0] > 0 for _ in range(7)]
    assert found == [True] * 5 + [False] * 2


@pytest.mark.parametrize("numerics", ["any-workers", "fast"])
def test_other_numerics(numerics: str) -> None:
    run = ost.compile(lambda x, w: ost.tanh(x @ w) @ w.T, numerics=numerics)
    x, w = rows(), weights()
    found = [bytes_of(run, x, w) for _ in range(OFTEN + 2)]
    assert len({y.tobytes() for _, y in found}) == 1
    assert [n > 0 for n, _ in found] == [True] * OFTEN + [False] * 2
