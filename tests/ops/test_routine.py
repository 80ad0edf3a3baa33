"""Functions of machine code that are written with numbers, memory, loops and calls."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from ostinato.ops.core.spec import float32, float64, int32, int64, uint8
from ostinato.ops.cpu.jit import llvm
from ostinato.ops.cpu.jit.code import address_of, symbol
from ostinato.ops.cpu.jit.routine import Routine, larger, smaller, whole_of
from ostinato.ops.jit.values import cast, where

pytestmark = pytest.mark.skipif(bool(llvm.why_not()), reason="no machine code here")


def test_loops_memory_and_ends() -> None:
    made = Routine(int64, x=[float32], count=int64, most=float32)
    x, count, most = made.given
    total = made.variable(made.whole(0))
    with made.each(count, 1, step=2) as k:
        made.leaves_if(x[k] > most, -1)
        with made.given_that(x[k] > 0.0):
            total.now = total.now + whole_of(x[k], int64)
        x[k] = smaller(larger(x[k], -1.0), 2.5)
    made.ends(total.now)
    run, given = made.made(), np.arange(-3, 7, dtype="f4")
    assert run(given.ctypes.data, 10, 9.0) == 2 + 4 + 6
    np.testing.assert_array_equal(given, [-3, -1, -1, 0, 1, 2, 3, 2.5, 5, 2.5])
    assert run(given.ctypes.data, 10, 2.0) == -1


def test_until_something_holds() -> None:
    made = Routine(int64, n=int64)
    (n,) = made.given
    now, turns = made.variable(n), made.variable(made.whole(0))
    with made.until() as ends:
        ends((now.now == 1).name)
        now.now = where((now.now & 1) == 0, now.now // 2, now.now * 3 + 1)
        turns.now = turns.now + 1
    made.ends(turns.now)
    assert [made.made()(n) for n in (1, 6, 27)] == [0, 8, 111]


@pytest.mark.parametrize("apart", [False, True])
def test_routines_call_others_and_c(apart: bool) -> None:
    symbol("ostinato_test_pow", address_of(ctypes.CDLL("libm.so.6"), "pow"))
    inner = Routine(float64, "inner", x=float64, y=[float64])
    x, y = inner.given
    inner.ends(inner.call("ostinato_test_pow", float64, x, y[1]))
    outer = Routine(float64, x=float64, y=[float64])
    x, y = outer.given
    outer.ends((outer.calls if apart else outer.does)(inner, x + 1.0, y.further(1)))
    assert outer.made()(2.0, np.array([9.0, 9.0, 3.0]).ctypes.data) == 27.0


@pytest.mark.parametrize("count", [1, 7, 16])
def test_lanes(count: int) -> None:
    made = Routine(None, x=[uint8], count=int64, out=[uint8], sums=[int32])
    x, many, out, sums = made.given
    both = x.lanes(0, 16)
    out.put_some(0, made.chosen(both, range(15, -1, -1)), many)
    found = cast(both, int32) * made.spread(sums[0], 16) + 1
    for k in range(16):
        sums[k] = made.lane(found, k)
    out.further(16).copy(x, many)
    given, out_, sums_ = np.arange(240, 256, dtype="u1"), np.zeros(32, "u1"), np.full(16, 3, "i4")
    made.made()(given.ctypes.data, count, out_.ctypes.data, sums_.ctypes.data)
    np.testing.assert_array_equal(sums_, given.astype("i4") * 3 + 1)
    np.testing.assert_array_equal(out_[:count], given[::-1][:count])
    np.testing.assert_array_equal(out_[16 : 16 + count], given[:count])
    assert not out_[count:16].any()
    assert not out_[16 + count :].any()


def test_both_halves_of_a_product() -> None:
    made = Routine(None, x=int64, found=[int64])
    x, found = made.given
    found[0], found[1] = made.product(x, 0xD2E7470EE14C6C93)
    halves = np.zeros(2, "u8")
    for x in (1, -1, 1 << 62, -12345678901234567):
        made.made()(x, halves.ctypes.data)
        assert int(halves[1]) << 64 | int(halves[0]) == (x % (1 << 64)) * 0xD2E7470EE14C6C93
