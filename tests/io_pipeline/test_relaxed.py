"""Batches that are handed out as they are made: each once, the same ones, and states that know which."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import executor
from ostinato.io_pipeline.feed.pipe import Pipe

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.test_pipes import noisy, same


class Slow:
    """Some samples wait until they are told to go on."""

    def __init__(self, *late: int) -> None:
        self.late, self.go_on = late, threading.Event()

    def __call__(self, x: Any) -> Any:
        if x in self.late:
            assert self.go_on.wait(30)
        return x


def pipe(slow: Any, count: int = 80, threads: int = 3, order: str = "relaxed") -> Pipe:
    made = ost.io.arrays(np.arange(count)).map(slow).map(noisy, random=True).batch(4)
    return made.to("numpy").run_with(threads=threads, chunk=1, order=order)


def test_a_batch_that_takes_long_blocks_no_other() -> None:
    slow = Slow(5)
    wanted = list(pipe(np.positive, order="strict").epoch(1))
    found = []
    with pipe(slow).epoch(1) as epoch:
        for batch in epoch:
            found.append(batch)
            if len(found) == 19:
                assert not slow.go_on.is_set()
                assert len(epoch) == 1
                slow.go_on.set()
    assert len(found) == len(wanted) == 20
    same(sorted(found, key=lambda b: b[0]), wanted)  # to the bit, each once
    same(found[-1:], wanted[1:2])


def test_no_more_than_so_many_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_AHEAD", 6)
    slow = Slow(0)
    with pipe(slow).epoch(0) as epoch:
        found = [next(epoch) for _ in range(5)]
        timer = threading.Timer(0.3, slow.go_on.set)
        timer.start()
        found.append(next(epoch))
        assert slow.go_on.is_set()
        assert min(int(b[0]) for b in found) == 0
        found += list(epoch)
        timer.join()
    assert len(found) == 20


@pytest.mark.parametrize("stop", [0, 1, 7, 18, 20])
@pytest.mark.parametrize("order", ["strict", "relaxed"])
def test_states_know_which_batches_were_handed_out(stop: int, order: str) -> None:
    slow = Slow(2, 21)
    first = pipe(slow)
    wanted = list(pipe(np.positive, order="strict").epoch(3))
    found = []
    with first.epoch(3) as epoch:
        while len(found) < stop:
            if len(found) == 18:
                slow.go_on.set()
            found.append(next(epoch))
        state = json.loads(json.dumps(first.state()))
        slow.go_on.set()
    if stop == 7:
        assert state["place"] == 0
        assert state["beyond"] == [1, 2, 3, 4, 6, 7, 8]
    assert len(json.dumps(state)) < 500
    second = pipe(slow, order=order)
    assert second.restore(state) == 3
    with second.epoch(3) as epoch:
        assert len(epoch) == 20 - stop
        rest = list(epoch)
    assert len(rest) == 20 - stop
    same(sorted(found + rest, key=lambda b: b[0]), wanted)
    if order == "strict":
        same(rest, sorted(rest, key=lambda b: b[0]))
    assert len(second) == 20
    assert second.state()["place"] == 80
    assert len(list(second.epoch(3))) == 20


def test_what_goes_on_with_several_workers() -> None:
    slow = Slow(2)
    first = pipe(slow)
    with first.epoch(0) as epoch:
        found = [next(epoch) for _ in range(3)]
        state = first.state()
        slow.go_on.set()
    each = []
    for rank in range(2):
        other = pipe(Slow(), order="strict")
        other.restore(state)
        each.append(list(other.epoch(0, part=(rank, 2))))
    rest = [np.concatenate(pair) for pair in zip(*each, strict=True)]
    whole = list(pipe(np.positive, order="strict").epoch(0))
    same(sorted(found + rest, key=lambda b: b[0]), whole)


def test_what_cannot_be_relaxed_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"run_with .*needed 'strict' or 'relaxed'"):
        pipe(np.positive, order="fast")
    with pytest.raises(ArgumentError, match=r"epoch .*order='relaxed' and several workers; needed"):
        pipe(np.positive).epoch(0, part=(0, 2))
    with pytest.raises(
        ArgumentError, match=r"order='relaxed' without batches; needed whole batches"
    ):
        ost.io.arrays(np.arange(9)).run_with(order="relaxed").epoch(0)
    assert pipe(np.positive).identity() == pipe(np.positive, order="strict").identity()


def test_errors_come_with_their_batch() -> None:
    slow = Slow(0)

    def failing(x: Any) -> Any:
        if x == 9:
            slow.go_on.set()
            raise ValueError("bad")
        return slow(x)

    with pipe(failing).epoch(0) as epoch, pytest.raises(SampleError, match=r"row 9 of .* in map"):
        list(epoch)
