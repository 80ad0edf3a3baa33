"""Sources of sources, caches, padding and buckets: what comes is what should, and always the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.io_pipeline.feed.combined_pipes import _spread, _whole
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.sample_order import Buckets, Order

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import folder
from tests.io_pipeline.test_pipes import joined, noisy, same


def numbers(start: int, count: int) -> Pipe:
    return ost.io.arrays(np.arange(start, start + count))


# -- several sources ---------------------------------------------------------------------------
def test_zipped_samples_are_tuples() -> None:
    pair = ost.io.arrays({"image": np.zeros((6, 4, 4, 3), "u1"), "label": np.arange(6)})
    pipe = ost.io.zip(pair, numbers(10, 6)).shuffle(seed=1).random_flip()
    for first, second in pipe.batch(3).to("numpy").epoch(0):
        np.testing.assert_array_equal(first["label"] + 10, second)
        assert first["image"].shape == (3, 4, 4, 3)
    items = ost.io.zip(ost.io.samples(["a", "b"]), numbers(0, 2)).batch(2).to("numpy")
    assert next(items.epoch(0))[0] == ["a", "b"]
    with pytest.raises(
        ArgumentError, match=r"zip \(.*sources of 2, 3 samples; needed equally many"
    ):
        ost.io.zip(numbers(0, 2), numbers(0, 3))
    with pytest.raises(ArgumentError, match="a pipe with stages; needed sources"):
        ost.io.zip(numbers(0, 2).shuffle(), numbers(0, 2))
    with pytest.raises(ArgumentError, match="got a stream"):
        ost.io.mix(numbers(0, 2), ost.io.stream([1]))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 9)), min_size=1, max_size=4),
)
def test_mixtures_have_all_samples_in_their_proportions(parts: list[tuple[int, float]]) -> None:
    sources = [numbers(1000 * k, n) for k, (n, _) in enumerate(parts)]
    weights = [w for _, w in parts]
    mixed = ost.io.mix(*sources, weights=weights)
    found = np.concatenate([*mixed.batch(16, tail="keep").to("numpy").epoch(0)])
    counts = _whole(weights)
    assert len(found) % sum(counts) == 0
    for k, (n, _) in enumerate(parts):
        mine = found[found // 1000 == k] - 1000 * k
        np.testing.assert_array_equal(mine, np.arange(len(mine)) % n)
        assert len(mine) >= n
        assert len(mine) * sum(counts) == len(found) * counts[k]
    shuffled = mixed.shuffle(seed=1).batch(16, tail="keep").to("numpy")
    np.testing.assert_array_equal(np.sort(joined(shuffled.epoch(0))[0]), np.sort(found))


def test_proportions_are_spread_evenly() -> None:
    assert _whole([0.7, 0.3]) == [7, 3]
    assert _whole([2, 2]) == [1, 1]
    assert _whole([1, 1e9])[0] == 1
    assert _spread([1, 1]) == [0, 1]
    turn = _spread([7, 3])
    gaps = np.diff(np.flatnonzero(np.array([*turn, *turn]) == 1))
    assert {*gaps} <= {3, 4}
    with pytest.raises(ArgumentError, match="a number above 0 for each source"):
        ost.io.mix(numbers(0, 2), weights=[0])


def test_selected_samples() -> None:
    mask = np.arange(20) % 3 == 0
    for which in (mask, np.flatnonzero(mask), [0, 3, 6, 9, 12, 15, 18]):
        pipe = numbers(100, 20).select(which).shuffle(seed=2).batch(7).to("numpy")
        np.testing.assert_array_equal(np.sort(joined(pipe.epoch(0))[0]), 100 + np.arange(0, 20, 3))
    for bad in ([20], [-1], [0.5], mask[:5]):
        with pytest.raises(
            ArgumentError, match=r"select \(.*numbers from 0 to 19, or a mask of 20"
        ):
            numbers(0, 20).select(bad)
    with pytest.raises(ArgumentError, match="stages in front of it"):
        numbers(0, 20).shuffle().select([1])


# -- caches ------------------------------------------------------------------------------------
def test_caches_change_no_bit_and_save_work(tmp_path: Path) -> None:
    root = folder(tmp_path, 12)
    made: list[int] = []

    def count(x: Any) -> Any:
        made.append(1)
        return x

    base = ost.io.images(str(root), labels="folder").shuffle(seed=3).decode().map(count, on="image")

    def behind(pipe: Pipe) -> Pipe:
        return pipe.random_resized_crop(16).random_flip().normalize().batch(4).to("numpy")

    wanted = [joined(behind(base).epoch(e)) for e in range(3)]
    for memory, each in (
        (1 << 30, (12, 12, 12)),
        (5 * (48 * 64 * 3 + 64), (12, 19, 26)),
        (0, (12, 24, 36)),
    ):
        pipe = behind(base.cache(memory))
        made.clear()
        for e in range(3):
            same(joined(pipe.epoch(e)), wanted[e])
            assert len(made) == each[e]
    state = behind(base.cache()).state()
    other = behind(base.cache(5))
    list(itertools.islice(other.epoch(0), 1))
    other.restore(state)


def test_what_is_kept_is_not_written_to() -> None:
    def spoil(x: Any) -> Any:
        x += 1
        return x

    pipe = ost.io.arrays(np.zeros((4, 3))).map(np.negative).cache().map(spoil).batch(4).to("numpy")
    with pytest.raises(SampleError, match="read-only"):
        list(pipe.epoch(0))
    x = np.zeros((4, 3))
    list(ost.io.samples(list(x)).cache().batch(2).to("numpy").epoch(0))
    x[0] = 1
    own = [np.zeros(3)]
    list(ost.io.samples(own).cache().batch(1).to("numpy").epoch(0))
    own[0][0] = 1


def test_errors_within_a_cache_name_stage_and_line() -> None:
    pipe = numbers(0, 8).map(lambda x: 1 // (x - 5)).cache().batch(4).to("numpy")
    with pytest.raises(
        SampleError, match=r"row 5 of the arrays, in read .*got map \(.*test_combine.py:\d+\)"
    ):
        list(pipe.map(np.negative).epoch(0))
    with pytest.raises(
        ArgumentError, match=r"cache .*got map in front of it.*write it further in front"
    ):
        numbers(0, 8).map(noisy, random=True).cache()
    with pytest.raises(ArgumentError, match=r"got batches"):
        numbers(0, 8).batch(2).cache()


# -- samples of all lengths --------------------------------------------------------------------
def words(n: int = 100) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, n)
    return [np.full(k, i, np.int32) for i, k in enumerate(lengths)], lengths


def test_batches_are_padded_to_their_longest() -> None:
    items, lengths = words()
    pipe = ost.io.samples(items).shuffle(seed=1).map(lambda x: (x, len(x)))
    for x, n in pipe.batch(8, pad=-1, tail="keep").to("numpy").epoch(0):
        assert x.dtype == np.int32
        assert x.shape == (len(n), max(n))
        for row, k in zip(x, n, strict=True):
            assert (row[:k] == row[0]).all()
            assert lengths[row[0]] == k
            assert (row[k:] == -1).all()
    wanted = joined(b.sum(1) for b in ost.io.samples(items).batch(9, pad=0).to("numpy").epoch(0))
    np.testing.assert_array_equal(wanted[0], [x.sum() for x in items])
    mixed = [np.zeros((2, 3)), np.zeros(4)]
    with pytest.raises(SampleError, match=r"needed one of sample float64\[2, 3\]"):
        list(ost.io.samples(mixed).batch(2, pad=0).to("numpy").epoch(0))


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 400),
    size=st.integers(1, 20),
    window=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_buckets_are_orders(n: int, size: int, window: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 30, n)
    buckets = Buckets(Order(n, seed, passes=2), lengths, size, window)
    whole = buckets.samples(1, np.arange(2 * n))
    np.testing.assert_array_equal(np.sort(whole), np.arange(2 * n) // 2)
    for k in range(0, 2 * n, 37):
        assert buckets.samples(1, np.array([k]))[0] == whole[k]


def test_buckets_save_padding_and_change_no_promise() -> None:
    items, lengths = words(640)
    plain = ost.io.samples(items).shuffle(seed=1)
    pipe = plain.bucket(lengths, window=8).batch(16, pad=-1).to("numpy")
    sizes = [sum(b.size for b in p.epoch(0)) for p in (plain.batch(16, pad=-1).to("numpy"), pipe)]
    assert sizes[1] < 0.65 * sizes[0]
    assert sizes[1] >= lengths.sum()
    wanted = list(pipe.epoch(2))
    assert sorted(int(row[0]) for b in wanted for row in b) == list(range(640))
    same(list(pipe.run_with(threads=5, chunk=3).epoch(2)), wanted)
    means = [b.shape[1] for b in wanted]
    assert np.abs(np.diff(means)).mean() > 5  # batches are shuffled
    list(itertools.islice(pipe.epoch(2), 7))
    pipe.restore(pipe.state())
    same(list(pipe.epoch(2)), wanted[7:])
    with pytest.raises(ArgumentError, match="the state of another pipe"):
        plain.bucket(lengths + 1, window=8).batch(16, pad=-1).restore(pipe.state())
    with pytest.raises(ArgumentError, match=r"bucket .*a number for each of 640 samples"):
        plain.bucket([1, 2])
