"""Chunks that several threads deal with: each once, and the same error in every run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from ostinato.io_pipeline.thread_counts import MIN_THREADED_BYTES, each_of

CHUNKS = [(k,) for k in range(101)]


def names() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "ostinato-files"]


@pytest.mark.parametrize("size", [MIN_THREADED_BYTES, MIN_THREADED_BYTES - 1])
def test_each_chunk_is_dealt_with_once(size: int) -> None:
    seen: list[Any] = []
    each_of(seen.append, iter(CHUNKS), size)
    assert sorted(seen) == CHUNKS
    assert not names()


def test_several_threads_work_who_calls_among_them() -> None:
    both, seen = threading.Event(), set[str]()

    def work(index: Any) -> None:
        seen.add(threading.current_thread().name)
        if len(seen) == 2:
            both.set()
        if index[0] in (0, 1, 2):
            assert both.wait(20)

    each_of(work, CHUNKS, MIN_THREADED_BYTES)
    assert threading.current_thread().name in seen
    assert "ostinato-files" in seen


def test_the_first_error_is_raised_and_ends_the_others() -> None:
    done: list[int] = []

    def work(index: Any) -> None:
        done.append(index[0])
        if index[0] == 3:
            time.sleep(0.05)  # later than the one behind it
        if index[0] in (3, 17):
            raise ValueError(f"chunk {index[0]}")

    for _ in range(5):
        done.clear()
        with pytest.raises(ValueError, match="chunk 3"):
            each_of(work, CHUNKS, MIN_THREADED_BYTES)
        assert len(done) < 90
        assert not names()


def test_without_threads_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    seen: list[Any] = []
    each_of(seen.append, CHUNKS, MIN_THREADED_BYTES)
    assert seen == CHUNKS
