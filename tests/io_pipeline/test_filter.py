"""Filters: full batches of what stays, always the same ones, gone on with anywhere."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.pipe import Pipe

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.helpers import one_of
from tests.io_pipeline.functions import is_small
from tests.io_pipeline.pictures import folder
from tests.io_pipeline.test_pipes import joined, noisy, same, settled


def third(x: Any) -> bool:
    return bool(x % 3 == 0)


def pipe(keep: Any = third, count: int = 1000, batch: int = 7, tail: str = "keep") -> Pipe:
    made = ost.io.arrays(np.arange(count), kinds=["data"]).shuffle(seed=4).filter(keep)
    return made.map(noisy, random=True).batch(batch, tail=tail).to("numpy")


def reference(keep: Any = third, count: int = 1000, batch: int = 7, epoch: int = 2) -> list[Any]:
    """One by one: the same numbers, since places decide what is drawn."""
    made = ost.io.arrays(np.arange(count), kinds=["data"]).shuffle(seed=4)
    drawn = made.map(lambda x, rng: (x, noisy(x, rng)), random=True).to("numpy").epoch(epoch)
    stay = [y for x, y in drawn if keep(x)]
    return [np.array(stay[k : k + batch]) for k in range(0, len(stay), batch)]


@pytest.mark.parametrize("batch", [1, 7, 40, 500])
def test_batches_are_full_and_the_same_for_any_threads(batch: int) -> None:
    wanted = reference(batch=batch)
    assert sum(map(len, wanted)) == 334
    for threads, chunk, ahead in ((1, 8, 1 << 28), (4, 1, 0), (3, 5, 1 << 10)):
        run = pipe(batch=batch).run_with(threads=threads, chunk=chunk, ahead=ahead)
        same(list(run.epoch(2)), wanted)
    dropped = [b for b in wanted if len(b) == batch]
    same(list(pipe(batch=batch, tail="drop").epoch(2)), dropped)
    assert settled() == []


@pytest.mark.parametrize("keep", [lambda x: False, lambda x: True, lambda x: x == 17])
def test_filters_may_leave_none_or_all(keep: Any) -> None:
    wanted = reference(keep, 90)
    same(list(pipe(keep, 90).epoch(2)), wanted)
    assert len(list(pipe(keep, 90, tail="drop").epoch(2))) == (12 if len(wanted) > 1 else 0)


@pytest.mark.parametrize("stop", [0, 1, 20, 47, 48])
def test_epochs_go_on_where_they_were(stop: int) -> None:
    wanted = list(pipe().epoch(1))
    first, second = pipe().run_with(threads=3), pipe().run_with(threads=2)
    same(list(itertools.islice(first.epoch(1), stop)), wanted[:stop])
    state = json.loads(json.dumps(first.state()))
    assert len(json.dumps(state)) < 200
    assert second.restore(state) == 1
    same(list(second.epoch(1)), wanted[stop:])
    same(list(second.epoch(1)), wanted)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_have_parts_of_the_same_batches(workers: int) -> None:
    wanted = list(pipe(batch=8).epoch(0))
    each = [list(pipe(batch=8).epoch(0, part=(rank, workers))) for rank in range(workers)]
    assert {len(batches) for batches in each} == {len(wanted)}
    for k, whole in enumerate(wanted):
        same(joined(batches[k] for batches in each), (whole,))
    with ost.connect(workers):
        found = [np.asarray(x) for x in pipe(batch=6).to("ostinato").epoch(0)]
    same(found, list(pipe(batch=6).epoch(0)))


def test_stages_behind_and_single_samples(tmp_path: Path) -> None:
    root = folder(tmp_path, 24)
    base = ost.io.images(str(root), labels="folder").shuffle(seed=1)
    base = base.filter(lambda y: y != 1, on="label").decode().random_resized_crop(16)
    x, y = next(base.batch(8).mixup(0.4, classes=3).to("numpy").epoch(0))
    assert x.shape == (8, 16, 16, 3)
    assert y.shape == (8, 3)
    assert not y[:, 1].any()
    singles = list(base.to("numpy").epoch(0))
    assert len(singles) == 16
    batches = list(base.batch(5, tail="keep").to("numpy").epoch(0))
    same(joined(batches), [np.stack([s[k] for s in singles]) for k in range(2)])
    assert Path(base.batch(5).preview(9, tmp_path / "sheet.png")).exists()
    stream = ost.io.stream(lambda: iter(range(50))).filter(third).batch(4, tail="keep").to("numpy")
    np.testing.assert_array_equal(joined(stream.epoch(0))[0], np.arange(0, 50, 3))
    other = ost.io.arrays(np.arange(60)).filter(is_small, processes=1).batch(4).to("numpy")
    np.testing.assert_array_equal(joined(other.epoch(0))[0], np.arange(20))


@one_of(5)
def test_what_a_filter_costs_is_known() -> None:
    """Also of samples that it leaves out, which here are all that are timed."""

    def slow(x: Any) -> bool:
        time.sleep(0.002)
        return bool(x % 2)

    made = ost.io.arrays(np.arange(160)).filter(slow).map(np.negative).batch(8).to("numpy")
    made = made.run_with(threads=2, chunk=8)
    assert len(list(made.epoch(0))) == 10
    rows = {row["stage"]: row for row in made.stats()["stages"]}
    assert rows["filter"]["timed"] >= 20
    assert rows["filter"]["own_us"] > 1500
    assert rows["map"]["timed"] == 0
    assert made.stats()["binds"] == "waits"


# -- faults ------------------------------------------------------------------------------------
def failing(*bad: int) -> Any:
    def check(x: Any) -> bool:
        if x in bad:
            raise ValueError(f"{x} is bad")
        return third(x)

    return check


def faulty(do: str, *bad: int, count: int = 200, most: float = 1.0, threads: int = 3) -> Pipe:
    made = ost.io.samples(range(count)).filter(failing(*bad)).on_error(do, most=most)
    return made.batch(8, tail="keep").to("numpy").run_with(threads=threads)


def test_what_is_skipped_is_made_up_for() -> None:
    stay = [k for k in range(200) if k % 3 == 0 and k not in (30, 31, 90)]
    for threads in (1, 4):
        skipped = faulty("skip", 30, 31, 90, threads=threads)
        found = list(skipped.epoch(0))
        assert [len(b) for b in found] == [8] * 8 + [1]
        np.testing.assert_array_equal(joined(found)[0], stay)
        assert [f.sample for f in skipped.faults()] == [30, 31, 90]
    replaced = joined(faulty("replace", 30, 90).epoch(0))[0]
    assert not np.isin(replaced, (30, 90)).any()
    same([replaced], joined(faulty("replace", 30, 90, threads=1).epoch(0)))


@pytest.mark.parametrize("bad", [(50,), (199,), tuple(range(200)), (180, 50)])
def test_errors_are_raised_with_the_batch_of_their_place(bad: tuple[int, ...]) -> None:
    before = len([k for k in range(min(bad)) if third(k)]) // 8
    for threads in (1, 4):
        found: list[Any] = []
        with pytest.raises(
            SampleError, match=rf"sample {min(bad)}, in filter .* {min(bad)} is bad"
        ):
            found.extend(faulty("raise", *bad, threads=threads).epoch(0))
        assert [len(b) for b in found] == [8] * before


def test_too_many_faults_are_an_error_even_if_nothing_stays() -> None:
    with pytest.raises(SampleError, match=r"needed at most 0.01 of them"):
        list(faulty("skip", *range(3000), count=3000, most=0.01).epoch(0))
    none = faulty("skip", *range(40), count=40)
    assert list(none.epoch(0)) == []
    assert len(none.faults()) == 40


def test_what_filters_cannot_do_is_said() -> None:
    for make, said in (
        (lambda: pipe(batch=4, tail="pad").epoch(0), "tail='pad' and a filter; needed tail='drop'"),
        (
            lambda: ost.io.stream(range(4)).batch(3, tail="pad").epoch(0),
            "tail='pad' and a stream; needed tail='drop'",
        ),
        (lambda: pipe().filter(third), "filter .*got batches.*write it before `batch`"),
        (lambda: pipe().run_with(order="relaxed").epoch(0), "order='relaxed' and a filter"),
        (lambda: ost.io.arrays(np.arange(4)).filter(3), "needed a function"),
        (
            lambda: ost.io.arrays(np.arange(4)).filter(third).cache(),
            "cache .*a filter in front of it; needed all samples; write it in front of the filter",
        ),
        (lambda: list(pipe(lambda x: x, 9).epoch(0)), ""),
    ):
        if said:
            with pytest.raises(ArgumentError, match=said):
                make()
        else:
            make()
    with pytest.raises(TypeError, match="how many samples a filter leaves is known at the end"):
        len(pipe())
    with pipe().epoch(0) as epoch, pytest.raises(TypeError, match="known at the end"):
        len(epoch)
    with pytest.raises(SampleError, match=r"in filter .*truth value of an array"):
        list(ost.io.arrays(np.zeros((4, 3))).filter(lambda x: x > 0).batch(2).to("numpy").epoch(0))
    assert pipe().identity() != pipe(lambda x: x % 2 == 0).identity()
