"""A GPU that has too little memory, and what profilers and people are told of one; on a fake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import MemoryLimitError
from tests.fake_cuda import Ranges, memory_of
from tests.fake_device import FAKE
from tests.sessions import JOB

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
N = 1 << 18
X = np.random.default_rng(0).normal(size=N)
MIB = X.nbytes / 2**20
assert MIB == 2


def works(f: Any, x: Any) -> None:
    for _ in range(4):
        np.testing.assert_allclose(np.asarray(f(x)), np.exp(np.sin(X) + 1))


def test_what_there_is_too_little_for_is_named() -> None:
    """The plan, the operation, what is needed and what is free; the worker goes on."""
    f = ost.compile(lambda x: ost.exp(ost.sin(x) + 1.0))
    wide = ost.compile(lambda x: ost.sort(ost.concat([x, x, x, x]), descending=True) * 2.0)
    with ost.connect(device="fake"), memory_of(int(8.5 * 2**20)):
        x = ost.asarray(X)
        works(f, x)
        where = r"\(tests/runtime/test_gpu_memory.py:\d+\)"
        said = rf"{where}: got no 8 MiB of memory for .* of plan [0-9a-f]{{8}}; \d+ MiB are free"
        for _ in range(2):
            with pytest.raises(MemoryLimitError, match=said):
                np.asarray(wide(x))
            works(f, x)


def test_what_an_operation_needs_in_between_is_named_too() -> None:
    g = ost.compile(lambda x: ost.sort(x, descending=True))
    f = ost.compile(lambda x: ost.exp(ost.sin(x) + 1.0))
    with ost.connect(device="fake"):
        x = ost.asarray(X)
        ost.evaluate(x)
        with memory_of(int(4.5 * 2**20)):
            said = r"sort .*: got Out of memory allocating 2,097,152 bytes .*, in plan .{8}; \d MiB are"
            with pytest.raises(MemoryLimitError, match=said):
                np.asarray(g(x))
            works(f, x)
        np.testing.assert_array_equal(np.asarray(g(x)), np.sort(X)[::-1])


def test_an_operand_that_does_not_fit() -> None:
    with ost.connect(device="fake"), memory_of(1 << 20):
        x = ost.asarray(X)
        with pytest.raises(MemoryLimitError, match=r"no 2 MiB of memory for an operand; 1 MiB are"):
            np.asarray(x + 1)
        assert np.asarray(ost.asarray([1.0]) + 1).tolist() == [2]


def test_what_is_kept_for_later_goes_first() -> None:
    """Buffers and arenas of other plans; what somebody holds stays."""
    with ost.connect(device="fake") as session, memory_of(11 << 20):
        x = ost.asarray(X)
        f = ost.compile(lambda x: ost.exp(ost.sin(x) + 1.0))
        g = ost.compile(lambda x: ost.roll(ost.cos(x), 1) + ost.sin(x))
        for _ in range(3):
            works(f, x)
            kept = g(x)
        np.testing.assert_allclose(np.asarray(kept), np.roll(np.cos(X), 1) + np.sin(X))
        assert session.stats()["workers"][0]["memory"]["total"] == 11 << 20


def test_a_profiler_of_the_gpu_sees_each_operation() -> None:
    with ost.connect(device="fake"):
        f = ost.compile(lambda x: ost.sort(ost.exp(x)) + 1.0)
        x = ost.asarray(X)
        f(x)
        before = len(Ranges.found)
        f(x)
        assert len(Ranges.found) == before
        with ost.profile():
            f(x)
        assert Ranges.found[before:] == ["exp", "sort", "add"]
        assert not Ranges.open
    assert FAKE.memory()["free"] > 0
