"""What an epoch takes of its source: the last batch, faults of whole batches, weights, classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ostinato.io_pipeline.feed.described import as_data, from_data
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.sample_order import _log

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import folder

LABELS = np.repeat([7, 3, 5], [60, 10, 30])


def taken(pipe: Pipe, epoch: int = 0) -> list[int]:
    pipe = pipe if pipe.target == "numpy" else pipe.to("numpy")
    return [k for b in pipe.epoch(epoch) for k in b.tolist()]


def numbers(n: int = 100) -> Pipe:
    return ost.io.samples(range(n))


# -- the last batch ----------------------------------------------------------------------------
@pytest.mark.parametrize("source", ["numbers", "stream", "filter"])
def test_the_last_batch_is_short_unless_it_is_left_out(source: str) -> None:
    pipe = {
        "numbers": numbers(32),
        "stream": ost.io.stream(lambda: iter(range(32))),
        "filter": numbers(40).filter(lambda x: x < 32),
    }[source].to("numpy")
    for size, kept, whole in (
        (64, [32], []),
        (12, [12, 12, 8], [12, 12]),
        (16, [16, 16], [16, 16]),
    ):
        assert [len(b) for b in pipe.batch(size).epoch(0)] == kept
        assert [len(b) for b in pipe.batch(size, drop_last=True).epoch(0)] == whole
    with pytest.raises(ArgumentError, match=r"tail='pad', drop_last=True"):
        pipe.batch(4, tail="pad", drop_last=True)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_batches_of_faults_alone_do_not_come(size: int, threads: int) -> None:
    def checked(x: int) -> int:
        if x < 4 or x == 9:
            raise ValueError("bad")
        return x

    pipe = numbers(12).map(checked).on_error("skip").batch(size).to("numpy")
    pipe = pipe.run_with(threads=threads, chunk=1, tune=False)
    found = list(pipe.epoch(0))
    assert [len(b) for b in found] == ([1] * 7 if size == 1 else [2, 2, 1, 2])
    assert np.concatenate(found).tolist() == [4, 5, 6, 7, 8, 10, 11]
    assert len(pipe.faults()) == 5
    epoch = pipe.epoch(1)
    next(epoch)
    epoch.close()
    rest = taken(pipe, pipe.restore(pipe.state()))
    assert rest == [4, 5, 6, 7, 8, 10, 11][size:]
    with pytest.raises(SampleError, match="nothing is known of a batch without samples"):
        next(pipe.epoch(2, part=(0, 2)))  # whatever threads have made of later ones


# -- weights -----------------------------------------------------------------------------------
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])


def test_weights_are_chances() -> None:
    pipe = numbers(6).weigh(WEIGHTS, count=16000, seed=1).batch(1000)
    counts = np.bincount(taken(pipe), minlength=6)
    wanted = 16000 * WEIGHTS / 8
    assert counts[WEIGHTS == 0].tolist() == [0, 0, 0]
    assert (abs(counts - wanted) <= 5 * np.sqrt(wanted)).all()
    first = [
        taken(numbers(6).weigh(WEIGHTS, replacement=False, seed=k).batch(6)) for k in range(800)
    ]
    assert {tuple(sorted(f)) for f in first} == {(1, 2, 4)}
    counts = np.bincount([f[0] for f in first], minlength=6)
    assert (abs(counts - 800 * WEIGHTS / 8) <= 5 * np.sqrt(800 * WEIGHTS / 8)).all()
    second = np.bincount([f[1] for f in first if f[0] == 4], minlength=6)
    assert abs(second[2] - second.sum() * 2 / 3) <= 5 * np.sqrt(second.sum() * 2 / 9)


def ways() -> list[Pipe]:
    weights = np.linspace(0.5, 4, 100)
    return [
        numbers().weigh(weights, seed=4),
        numbers().weigh(weights, 50, replacement=False, seed=4),
        numbers().balance(LABELS, seed=4),
        numbers().balance(LABELS, replacement=False, seed=4).repeat(2),
    ]


@pytest.mark.parametrize("k", range(4))
def test_the_same_for_any_worker_and_from_any_place(k: int) -> None:
    pipe = ways()[k].batch(7)
    whole = taken(pipe, 3)
    assert whole != taken(pipe, 2)
    assert whole == taken(ways()[k].batch(7).run_with(threads=3, chunk=1), 3)
    host = pipe.to("numpy")
    for n in (2, 3):
        parts = [list(host.epoch(3, part=(r, n))) for r in range(n)]
        assert [int(x) for b in zip(*parts, strict=True) for p in b for x in p] == whole
    epoch = host.epoch(3)
    for _ in range(4):
        next(epoch)
    epoch.close()
    again = ways()[k].batch(7).to("numpy")
    assert taken(again, again.restore(host.state())) == whole[28:]
    told = from_data(as_data(ost.io.arrays(np.arange(100)).batch(7)))
    assert len(told) == 15


def test_it_is_told_to_other_processes() -> None:
    rows = ost.io.arrays(np.arange(100))
    for pipe in (rows.weigh(np.arange(100)), rows.balance(LABELS, replacement=False)):
        assert taken(from_data(as_data(pipe.batch(8))), 1) == taken(pipe.batch(8), 1)


# -- classes -----------------------------------------------------------------------------------
def test_classes_come_equally_often() -> None:
    whole = taken(numbers().balance(LABELS, replacement=False).batch(9))
    assert len({*whole}) == len(whole) == 30
    assert np.unique(LABELS[whole], return_counts=True)[1].tolist() == [10, 10, 10]
    assert np.unique(LABELS[whole[:15]], return_counts=True)[1].min() > 1  # and are shuffled
    some = taken(numbers().balance(LABELS, 10, replacement=False).batch(9))
    assert sorted(np.unique(LABELS[some], return_counts=True)[1].tolist()) == [3, 3, 4]
    others = taken(numbers().balance(LABELS, replacement=False).batch(9), 1)
    assert {*others} != {*whole}
    again = taken(numbers().balance(LABELS, 9000).batch(100))
    assert (abs(np.unique(LABELS[again], return_counts=True)[1] - 3000) < 5 * np.sqrt(2000)).all()


def test_sources_that_know_their_classes(tmp_path: Path) -> None:
    folder(tmp_path, 12)
    pipe = ost.io.images(f"{tmp_path}/**/*.jpg", labels="folder")
    labels = np.bincount([y for _, y in pipe.balance(replacement=False).to("numpy").epoch(0)])
    assert len({*labels}) == 1
    rows = ost.io.arrays({"x": np.zeros((100, 2)), "label": LABELS}).select(range(40, 100))
    found = [int(b["label"]) for b in rows.balance(replacement=False).to("numpy").epoch(0)]
    assert np.bincount(found)[[3, 5, 7]].tolist() == [10, 10, 10]
    by_word = numbers(4).balance(["a", "b", "b", "b"], replacement=False).batch(4)
    assert 0 in taken(by_word)


def test_what_is_no_weight_and_no_class() -> None:
    for wrong in ([1.0], [-1.0, 1, 1], [0, 0, 0], [np.nan, 1, 1], ["a", "b", "c"]):
        with pytest.raises(ArgumentError, match=r"weigh .*needed 3 numbers of 0 or more, not all"):
            numbers(3).weigh(wrong)
    with pytest.raises(ArgumentError, match=r"count=3; needed at most 2 without replacement"):
        numbers(3).weigh([0, 1, 1], 3, replacement=False)
    with pytest.raises(ArgumentError, match=r"balance .*no labels; needed a class for each of 3"):
        numbers(3).balance()
    with pytest.raises(ArgumentError, match=r"count=5; needed at most 2"):
        numbers(3).balance([0, 0, 1], 5, replacement=False)
    with pytest.raises(ArgumentError, match="a second order; needed shuffle, weigh or"):
        numbers(3).shuffle().weigh([1, 1, 1])
    with pytest.raises(ArgumentError, match="a stream"):
        ost.io.stream([1]).weigh([1])


def test_logarithms_are_of_sums_and_products() -> None:
    x = np.concatenate(
        [np.random.default_rng(0).random(1000), 2.0 ** -np.arange(1.0, 53), [1 - 2.0**-52]]
    )
    np.testing.assert_allclose(_log(x), np.log(x), rtol=1e-12, atol=1e-15)
