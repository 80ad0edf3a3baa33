"""Arrays of other libraries that lie on a GPU, taken and given without a copy and in the order of streams; on
a fake one. What plays the other library has a stream of its own (tests/fake_cuda.py finds work that does
not wait)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError
from tests import fake_cuda
from tests.fake_device import FAKE
from tests.fake_xp import DeviceArray, counted, to_host, xp
from tests.sessions import JOB, use

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
X = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)


class Library:
    """Another library: its arrays, its stream, and how it takes ours."""

    def __init__(self) -> None:
        self.stream = fake_cuda.Stream(non_blocking=True)

    def array(self, value: Any = X, dlpack: bool = True) -> Any:
        x = FAKE.from_host(value)
        self.stream.wait_event(fake_cuda.get_current_stream().record())
        with self.stream:
            made = x + 0.0  # which is on its way
        return (ByDlpack if dlpack else ByInterface)(self, made)

    def taken(self, x: Any) -> Any:
        with self.stream:
            return xp.from_dlpack(x)


class Foreign:
    def __init__(self, library: Library, x: Any) -> None:
        self.library, self.x, self.asked = library, x, []  # type: ignore[var-annotated]
        self.ndim, self.dtype, self.shape = x.ndim, x.dtype, x.shape


class ByDlpack(Foreign):
    def __dlpack__(self, **how: Any) -> Any:
        self.asked.append(how["stream"])
        with self.library.stream:
            return self.x.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class ByInterface(Foreign):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        with self.library.stream:
            return self.x.__cuda_array_interface__


@pytest.mark.parametrize("dlpack", [True, False])
def test_what_is_taken_is_copied_on_the_gpu_or_not_at_all(dlpack: bool) -> None:
    library = Library()
    with use(device="fake"):
        for copy in (None, True, False):
            theirs = library.array(dlpack=dlpack)
            before = vars(counted).copy()
            x = ost.asarray(theirs, copy=copy)
            y = x * 2.0
            ost.evaluate(y)
            assert (counted.from_host, counted.to_host) == (before["from_host"], before["to_host"])
            assert (x._operand.parts[0].data.ptr == theirs.x.data.ptr) == (copy is False)
            np.testing.assert_array_equal(np.asarray(y), X * 2)
            if dlpack:
                assert theirs.asked == [1]
                z = ost.from_dlpack(theirs, copy=copy)
                np.testing.assert_array_equal(np.asarray(z), X)


def test_what_is_borrowed_is_not_written_to() -> None:
    library = Library()
    with use(device="fake"):
        theirs = library.array()
        x = ost.asarray(theirs, copy=False)
        step = ost.compile(donate="x")(lambda x: x + 1.0)
        for _ in range(4):
            step(ost.asarray(theirs, copy=False))
        np.testing.assert_array_equal(np.asarray(step(x)), X + 1)
        np.testing.assert_array_equal(theirs.x._memory, X)


def test_what_is_copied_does_not_change_with_theirs() -> None:
    library = Library()
    with use(device="fake"):
        theirs = library.array()
        x = ost.asarray(theirs)
        library.stream.wait_event(fake_cuda.get_current_stream().record())
        with library.stream:
            xp.add(theirs.x, 1.0, theirs.x)
        np.testing.assert_array_equal(np.asarray(x), X)


def test_what_is_given_is_the_same_memory_and_waited_for() -> None:
    library = Library()
    with use(device="fake"):
        y = ost.asarray(X) * 2.0
        assert y.__dlpack_device__() == (2, 0)
        before = vars(counted).copy()
        theirs = library.taken(y)
        assert counted.to_host == before["to_host"]
        assert theirs.data.ptr == y._operand.parts[0].data.ptr
        with library.stream:
            z = theirs + 1.0
        library.stream.synchronize()
        np.testing.assert_array_equal(z._memory, X * 2 + 1)
        said = y.__cuda_array_interface__
        assert (said["version"], said["stream"], said["data"]) == (3, 1, (theirs.data.ptr, True))
        assert not theirs._memory.flags.writeable


def test_who_knows_no_mark_gets_a_copy() -> None:
    with use(device="fake"):
        y = ost.asarray(X) * 2.0
        ost.evaluate(y)
        part = y._operand.parts[0]
        before = counted.allocations
        y.__dlpack__(stream=1)
        assert counted.allocations == before + 1
        y.__dlpack__(stream=1, max_version=(1, 0))
        assert counted.allocations == before + 1
        assert isinstance(part, DeviceArray)


def test_what_is_given_is_not_given_away_or_used_again() -> None:
    library = Library()
    with use(device="fake"):
        step = ost.compile(donate="x")(lambda x: x + 1.0)
        x = ost.asarray(X) * 1.0
        seen = []
        for _ in range(6):
            x = step(x)
            seen.append(library.taken(x))
        library.stream.synchronize()
        for k, theirs in enumerate(seen):
            np.testing.assert_allclose(to_host(theirs), X + (k + 1), 1e-5)


def test_other_sessions_take_it_by_way_of_the_host() -> None:
    with use():
        np.testing.assert_array_equal(np.asarray(ost.asarray(FAKE.from_host(X)) + 1), X + 1)
        x = ost.asarray(X)
        assert x.__dlpack_device__() == (1, 0)
        assert not hasattr(x, "__cuda_array_interface__")
    with use((3,), device="fake"):
        y = ost.asarray(FAKE.from_host(X), split=0) + 1
        np.testing.assert_array_equal(np.asarray(y), X + 1)
        assert not hasattr(y, "__cuda_array_interface__")
        assert y.__dlpack_device__() == (1, 0)


def test_dtypes() -> None:
    with use(device="fake"):
        x = ost.asarray(FAKE.from_host(X), dtype="float64")
        np.testing.assert_array_equal(np.asarray(x), X.astype(np.float64))
        with pytest.raises(ArgumentError, match=r"copy=False.*float32 as float64"):
            ost.asarray(FAKE.from_host(X), dtype="float64", copy=False)
        with pytest.raises(ArgumentError, match=r"copy=False.*float32 as float64"):
            ost.asarray(ost.asarray(X), dtype="float64", copy=False)
        half = ost.asarray(X).astype("bfloat16")
        capsule = half.__dlpack__(stream=1, max_version=(1, 0))
        assert "dltensor_versioned" in repr(capsule)
