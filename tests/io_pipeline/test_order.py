"""Orders are bijections, near from anywhere; what is drawn depends on where it is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.feed.sample_order import MAX_SORTED, Bijection, Order, keyed


def places(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.int64)


@settings(deadline=None, max_examples=30)
@given(
    n=st.one_of(st.integers(1, 300), st.integers(MAX_SORTED - 2, 4 * MAX_SORTED + 9)),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
)
def test_a_shuffle_has_every_sample_once(n: int, seed: int, epoch: int) -> None:
    found = Order(n, seed).samples(epoch, places(n))
    np.testing.assert_array_equal(np.sort(found), places(n))


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 3000),
    block=st.integers(1, 200),
    window=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_so_has_one_of_blocks(n: int, block: int, window: int, seed: int) -> None:
    order = Order(n, seed, block=block, window=window)
    np.testing.assert_array_equal(np.sort(order.samples(3, places(n))), places(n))


@pytest.mark.parametrize("n", [1000, MAX_SORTED * 3 + 1])
def test_any_place_is_found_alone(n: int) -> None:
    for order in (Order(n, 5), Order(n, 5, block=16, window=2), Order(n, 5, passes=3), Order(n)):
        whole = order.samples(2, places(len(order)))
        for k in range(0, len(order), 97):
            assert order.samples(2, np.array([k]))[0] == whole[k]


def test_blocks_stay_near() -> None:
    """Of a window of 4 blocks of 32, all samples come before those of the next window."""
    found = Order(32 * 64, 1, block=32, window=4).samples(0, places(32 * 64))
    for k in range(0, len(found), 128):
        assert len({*(found[k : k + 128] // 32)}) == 4
    assert (np.diff(found) != 1).mean() > 0.9


def test_every_pass_and_epoch_has_its_own_order() -> None:
    order = Order(5000, 3, passes=2)
    first, second = np.split(order.samples(0, places(10_000)), 2)
    np.testing.assert_array_equal(np.sort(second), places(5000))
    for other in (second, order.samples(1, places(5000)), Order(5000, 4).samples(0, places(5000))):
        assert (first == other).mean() < 0.01


@pytest.mark.parametrize("n", [8, MAX_SORTED + 1, 10 * MAX_SORTED])
def test_shuffles_are_even(n: int) -> None:
    """Where the first sample lands, over many keys; and how places that follow each other differ."""
    keys = 4000
    lands = np.array([Bijection(n, keyed(k))(np.array([0], np.int64))[0] for k in range(keys)])
    counts = np.bincount(lands * 8 // n, minlength=8)
    assert (np.abs(counts - keys / 8) < 5 * np.sqrt(keys / 8)).all(), counts
    if n > 8:
        found = Bijection(n, 7)(places(n))
        assert abs(np.corrcoef(places(n), found)[0, 1]) < 5 / np.sqrt(n)
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 5 / np.sqrt(n)


def test_keys_tell_numbers_apart() -> None:
    given = [
        (0,),
        (1,),
        (-1,),
        (2**64 - 1,),
        (2**64,),
        (0, 0),
        (0, 1),
        (1, 0),
        (-(2**64),),
        (2**65,),
    ]
    assert len({keyed(*g) for g in given}) == len(given)


def test_what_is_drawn_depends_on_where() -> None:
    draws = Draws(7, 1)
    first = draws.seek(12, 3).random(5)
    draws.seek(13, 3).random(100)
    np.testing.assert_array_equal(draws.seek(12, 3).random(5), first)
    np.testing.assert_array_equal(Draws(7, 1).seek(12, 3).random(5), first)
    others = [
        lambda: Draws(8, 1).seek(12, 3),
        lambda: Draws(7, 2).seek(12, 3),
        lambda: draws.seek(12, 4),
        lambda: draws.seek(13, 3),
    ]
    for other in others:
        assert not np.isin(other().random(5), first).any()


def test_numbers_are_spread_as_they_should() -> None:
    draws = Draws(1, 0)
    normal = draws.seek(0, 0).normal(20_000)
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    integers = [draws.seek(k, 0).integer(3, 7) for k in range(4000)]
    assert min(np.bincount(integers, minlength=7)[3:]) > 850
    assert set(integers) == {3, 4, 5, 6}
    assert 0.27 < np.mean([draws.seek(k, 1).chance(0.3) for k in range(4000)]) < 0.33
    uniform = draws.seek(0, 2).uniform(-2, 4, 4000)
    assert -2 <= uniform.min() < -1.9
    assert 3.9 < uniform.max() < 4
