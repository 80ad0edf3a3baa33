"""Pipes: always the same samples, whoever makes them; what fails has a name; no thread stays."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import file_reads, folders
from ostinato.io_pipeline.feed.executor import Work
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.stage import STAGES

import ostinato as ost
from ostinato.errors import ArgumentError, DataFileError, SampleError
from tests.io_pipeline.pictures import folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("images"), 27)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    if mine():  # perhaps of a pipe that is garbage
        gc.collect()
    assert settled() == []
    assert sys.getswitchinterval() == pytest.approx(before)


def settled(seconds: float = 60.0) -> list[str]:
    """The pipes' threads that are there still, when they had time to end."""
    until = time.monotonic() + seconds
    while (found := mine()) and time.monotonic() < until:
        time.sleep(0.005)
    return found


def mine() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ostinato-feed")]


def augmented(images: Path) -> Pipe:
    return (
        ost.io.images(f"{images}/**/*.jpg", labels="folder")
        .shuffle(seed=7)
        .decode()
        .random_resized_crop(16)
        .random_flip()
        .normalize((0.5, 0.4, 0.3), 0.2)
        .batch(8, tail="keep")
        .to("numpy")
    )


def numbers(n: int = 100, batch: int = 7, tail: str = "keep") -> Pipe:
    return ost.io.arrays(np.arange(n)).shuffle(seed=3).batch(batch, tail=tail).to("numpy")


def noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.random()


def joined(batches: Any) -> list[np.ndarray]:
    """All batches of an epoch, put together."""
    columns = zip(*(b if isinstance(b, tuple) else (b,) for b in batches), strict=True)
    return [np.concatenate(c) for c in columns]


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


# -- the same stream ---------------------------------------------------------------------------
def test_threads_and_chunks_change_no_bit(images: Path) -> None:
    pipe = augmented(images)
    wanted = joined(pipe.run_with(threads=1).epoch(3))
    assert wanted[0].shape == (27, 3, 16, 16)
    assert wanted[0].dtype == np.float32
    for threads, chunk, ahead in ((2, 1, 0), (3, 5, 1 << 20), (16, 2, 1 << 30), (4, 64, 0)):
        found = joined(pipe.run_with(threads=threads, chunk=chunk, ahead=ahead).epoch(3))
        same(found, wanted)
    assert not np.array_equal(joined(pipe.epoch(4))[0], wanted[0])


@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_parts_are_parts_of_the_same_batches(images: Path, workers: int, tail: str) -> None:
    pipe = augmented(images)
    pipe = Pipe(pipe.source, pipe.entries[:-1], "numpy").batch(8, tail=tail)
    wanted = list(pipe.epoch(1))
    assert len(wanted) == len(pipe) == {"drop": 3, "keep": 4, "pad": 4}[tail]
    each = [list(pipe.epoch(1, part=(rank, workers))) for rank in range(workers)]
    assert {len(batches) for batches in each} == {len(wanted)}
    for k, whole in enumerate(wanted):
        same(joined(batches[k] for batches in each), whole)


def test_a_tail_with_fewer_samples_than_workers_gives_everyone_a_batch() -> None:
    pipe = numbers(9, 8)
    each = [[len(b) for b in pipe.epoch(0, part=(rank, 3))] for rank in range(3)]
    assert each == [[2, 0], [3, 0], [3, 1]]


def test_an_epoch_has_every_sample_once_and_a_padded_one_some_twice() -> None:
    assert sorted(joined(numbers().epoch(5))[0]) == list(range(100))
    padded = joined(numbers(tail="pad").epoch(5))[0]
    assert len(padded) == 105
    assert {*padded} == {*range(100)}
    assert len(joined(numbers(tail="drop").epoch(5))[0]) == 98


def test_repeat_shuffles_each_pass_anew() -> None:
    pipe = ost.io.arrays(np.arange(50)).shuffle(seed=1).repeat(3).batch(10).to("numpy")
    found = joined(pipe.epoch(0))[0]
    for k in range(3):
        assert sorted(found[50 * k : 50 * k + 50]) == list(range(50))
    assert not np.array_equal(found[:50], found[50:100])


def test_a_stage_that_draws_nothing_changes_no_number() -> None:
    x = np.zeros(40)
    plain = ost.io.arrays(x).map(noisy, random=True)
    other = ost.io.arrays(x).map(np.negative).map(noisy, random=True).map(np.negative)
    a, b = (joined(p.batch(8).to("numpy").epoch(2))[0] for p in (plain, other))
    np.testing.assert_array_equal(a, -b)
    assert len({*a.tolist()}) == 40


# -- going on where it was ---------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_what_goes_on_equals_what_was_never_interrupted(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def pipe() -> Pipe:
        x = np.arange(90.0)
        made = ost.io.arrays(x).shuffle(seed=seed).map(noisy, random=True).batch(8, tail="keep")
        return made.to("numpy").run_with(threads=int(rng.integers(1, 6)))

    wanted = list(pipe().epoch(4))
    stop = int(rng.integers(0, len(wanted)))
    first, second = pipe(), pipe()
    same(list(itertools.islice(first.epoch(4), stop)), wanted[:stop])
    state = json.loads(json.dumps(first.state()))
    assert len(json.dumps(state)) < 300
    assert second.restore(state) == 4
    same(list(second.epoch(4)), wanted[stop:])
    same(list(second.epoch(4)), wanted)  # which is restored once


def test_other_workers_go_on() -> None:
    pipe = numbers()
    wanted = list(pipe.epoch(1))
    list(itertools.islice(pipe.epoch(1, part=(1, 2)), 5))
    state, each = pipe.state(), []
    for rank in range(3):
        other = numbers()
        other.restore(state)
        each.append(list(other.epoch(1, part=(rank, 3))))
    for k, whole in enumerate(wanted[5:]):
        same(joined(b[k] for b in each), (whole,))


def test_iterating_over_a_pipe_goes_from_epoch_to_epoch() -> None:
    pipe = numbers()
    for epoch in range(3):
        same(joined(pipe), joined(numbers().epoch(epoch)))
    other = numbers()
    list(itertools.islice(pipe, 4))
    other.restore(pipe.state())
    same(joined(other), joined(itertools.islice(numbers().epoch(3), 4, None)))


def test_a_late_place_is_near() -> None:
    """Nothing before it is made."""
    asked = []

    class Samples:
        def __len__(self) -> int:
            return 1_200_000

        def __getitem__(self, k: int) -> int:
            asked.append(k)
            return k

    pipe = ost.io.samples(Samples()).shuffle(seed=1).batch(100).to("numpy")
    pipe.restore({**pipe.state(), "epoch": 2, "place": 1_000_000})
    with pipe.epoch(2) as epoch:
        next(epoch)
        assert len(epoch) == 1999
    assert 100 <= len(asked) < 100_000, "what is made ahead depends on threads"


@pytest.mark.parametrize("change", ["place", "epoch", "format", "pipe"])
def test_no_other_state_is_taken(change: str) -> None:
    with pytest.raises(ArgumentError, match=r"restore \(.*test_pipes.py:"):
        numbers().restore({**numbers().state(), change: "other"})
    for other in (numbers(99), numbers(batch=8), ost.io.arrays(np.arange(100)).batch(7)):
        with pytest.raises(ArgumentError, match="the state of another pipe"):
            other.restore(numbers().state())


# -- faults ------------------------------------------------------------------------------------
BAD = (5, 17, 40)


def failing(x: Any) -> Any:
    if x in BAD:
        raise ValueError(f"{x} is bad")
    return x


def faulty(do: str, most: float = 0.01, threads: int = 3, batch: int = 8) -> Pipe:
    made = ost.io.samples(range(60)).shuffle(seed=2).map(failing).on_error(do, most=most)
    return made.batch(batch, tail="keep").to("numpy").run_with(threads=threads)


def test_an_error_names_sample_stage_and_line() -> None:
    line = faulty.__code__.co_firstlineno + 1
    told = []
    for threads, batch in ((1, 8), (4, 8), (1, 60), (4, 60)):
        with pytest.raises(SampleError) as caught:
            list(faulty("raise", threads=threads, batch=batch).epoch(0))
        told.append(str(caught.value))
        assert isinstance(caught.value.__cause__, ValueError)
    assert len({*told}) == 1
    plain = joined(ost.io.samples(range(60)).shuffle(seed=2).batch(60).to("numpy").epoch(0))[0]
    first = int(np.flatnonzero(np.isin(plain, BAD))[0])
    assert f"in map (place {first} of epoch 0" in told[0]
    assert f"test_pipes.py:{line}): got ValueError: " in told[0]
    assert told[0].startswith("sample ")


def test_an_error_names_the_file(tmp_path: Path) -> None:
    folder(tmp_path, 9)
    broken = tmp_path / "b" / "004.jpg"
    for content, said in (
        (b"", "an empty file"),
        (b"no image at all", "no image of a known kind: it begins with b'no image'"),
        (broken.read_bytes()[:-300], "truncated"),
        (None, "no such file or directory"),
        ("fifo", "what is no file"),
    ):
        pipe = ost.io.images(str(tmp_path)).decode().resize((8, 8)).batch(3).to("numpy")
        broken.unlink()
        if isinstance(content, bytes):
            broken.write_bytes(content)
        elif content:
            os.mkfifo(broken)
        with pytest.raises(SampleError, match=r"file .*004\.jpg") as caught:
            list(pipe.epoch(0))
        assert said in str(caught.value), str(caught.value)
        if content is None:
            assert isinstance(caught.value.__cause__, DataFileError)
            broken.write_bytes(b"")


def test_what_is_skipped_is_missing_in_its_batch() -> None:
    pipe, whole = faulty("skip"), ost.io.samples(range(60)).shuffle(seed=2)
    wanted = [b[~np.isin(b, BAD)] for b in whole.batch(8, tail="keep").to("numpy").epoch(0)]
    for threads in (1, 5):
        same(list(pipe.run_with(threads=threads).epoch(0)), wanted)
    list(pipe.epoch(0))
    assert sorted(f.sample for f in pipe.faults()) == [*BAD]
    assert {f.reason for f in pipe.faults()} == {f"ValueError: {k} is bad" for k in BAD}
    assert {f.stage for f in pipe.faults()} == {"map"}
    other = faulty("skip")
    other.restore(json.loads(json.dumps(pipe.state())))
    assert other.faults() == pipe.faults()


def test_what_is_replaced_is_always_replaced_by_the_same() -> None:
    wanted = list(faulty("replace").epoch(0))
    assert [len(b) for b in wanted] == [8] * 7 + [4]
    assert not np.isin(joined(wanted)[0], BAD).any()
    for threads in (1, 2, 8):
        same(list(faulty("replace", threads=threads).epoch(0)), wanted)
    plain = joined(ost.io.samples(range(60)).shuffle(seed=2).batch(60).to("numpy").epoch(0))[0]
    assert (joined(wanted)[0] != plain).sum() == len(BAD)
    other = ost.io.samples(range(60)).shuffle(seed=5).map(failing).on_error("replace")
    found = joined(other.batch(60).to("numpy").epoch(0))[0]
    assert {*np.delete(found, np.unique(found, return_index=True)[1])} != {
        *np.delete(joined(wanted)[0], np.unique(joined(wanted)[0], return_index=True)[1])
    }  # which depends on the seed


@pytest.mark.parametrize("do", ["skip", "replace"])
def test_too_many_faults_are_an_error(do: str) -> None:
    with pytest.raises(
        SampleError, match=r"3 samples of .* needed at most 0.002 of them; see pipe"
    ):
        list(faulty(do, 0.002).epoch(0))
    with pytest.raises(SampleError, match="needed at most 0 of them"):
        list(faulty(do, 0).epoch(0))


def test_if_no_sample_can_be_made_replacing_ends() -> None:
    def never(x: Any) -> Any:
        raise OSError("never")

    pipe = ost.io.samples(range(9)).map(never).on_error("replace", most=1).batch(3).to("numpy")
    with pytest.raises(SampleError, match="OSError: never"):
        list(pipe.epoch(0))


def test_policies_are_of_what_stands_before_them() -> None:
    pipe = ost.io.samples(range(60)).on_error("skip").map(failing).batch(8).to("numpy")
    with pytest.raises(SampleError, match="is bad"):
        list(pipe.epoch(0))


# -- samples and batches -----------------------------------------------------------------------
def test_samples_may_be_any_tree() -> None:
    items = [
        {"x": np.full((2, k and 2), k), "name": f"n{k}", "two": (k, k / 2)} for k in range(1, 7)
    ]
    (batch,) = ost.io.samples(items).batch(6).to("numpy").epoch(0)
    assert batch["name"] == [f"n{k}" for k in range(1, 7)]
    np.testing.assert_array_equal(batch["two"][0], range(1, 7))
    assert batch["two"][1].dtype == np.float64
    assert batch["x"].shape == (6, 2, 2)


def test_functions_may_change_the_tree() -> None:
    pipe = (
        ost.io.arrays(np.arange(6))
        .map(lambda x: {"a": x, "b": (x, -x)})
        .map(lambda s: (s["a"] + s["b"][1], s["b"][0]))
    )
    (a, b), _ = pipe.batch(3).to("numpy").epoch(0)
    np.testing.assert_array_equal(a, [0, 0, 0])
    np.testing.assert_array_equal(b, [0, 1, 2])


def test_functions_behind_batch_are_given_batches() -> None:
    pipe = (
        ost.io.arrays(np.arange(8), np.arange(8.0)).batch(4).map(lambda b: (b[0].sum(), b[1] * 2))
    )
    (s, x), _ = pipe.to("numpy").epoch(0)
    assert s == 6
    np.testing.assert_array_equal(x, [0, 2, 4, 6])
    with pytest.raises(SampleError, match=r"batch 0 of epoch 0, in map \(.*test_pipes.py"):
        list(ost.io.arrays(np.arange(8)).batch(4).map(lambda b: 1 / 0).to("numpy").epoch(0))


def test_without_batches_there_are_samples() -> None:
    x = np.arange(40).reshape(20, 2)
    pipe = ost.io.arrays(x).shuffle(seed=1).to("numpy")
    found = list(pipe.epoch(0))
    assert len(found) == len(pipe) == 20
    np.testing.assert_array_equal(np.sort(np.stack(found), 0), x)
    found[0][:] = -1
    assert x.min() == 0
    first = list(itertools.islice(pipe.epoch(0), 7))
    state = pipe.state()
    pipe.restore(state)
    same([*first, *pipe.epoch(0)], list(pipe.epoch(0)))


def test_shapes_may_change_from_batch_to_batch_but_not_within() -> None:
    sizes = [np.zeros((2 + k // 4, 3)) for k in range(12)]
    shapes = [b.shape for b in ost.io.samples(sizes).batch(4).to("numpy").epoch(0)]
    assert shapes == [(4, 2, 3), (4, 3, 3), (4, 4, 3)]
    with pytest.raises(
        SampleError,
        match=r"batch \(.*test_pipes.py:\d+\): got a sample of sample float64\[3, 3\] \(sample 4\); needed "
        r"one of sample float64\[2, 3\], .*\(sample 3\); bring them to one shape with resize",
    ):
        list(ost.io.samples(sizes).batch(3).to("numpy").epoch(0))


def test_files_of_arrays_are_read_by_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((30, 4, 5))
    np.save(tmp_path / "x.npy", x)
    pipe = ost.io.arrays({"data": tmp_path / "x.npy", "label": np.arange(30)}).shuffle(seed=1)
    for batch in pipe.batch(6).to("numpy").epoch(0):
        np.testing.assert_array_equal(batch["data"], x[batch["label"]])
    with pytest.raises(DataFileError, match=r"test_pipes.py"):
        ost.io.arrays(tmp_path / "none.npy")


@pytest.mark.parametrize(
    "size", [1, 1000, file_reads.FIRST - 1, file_reads.FIRST, 3 * file_reads.FIRST]
)
def test_files_of_all_lengths_are_read_whole(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reads._Guess, "size", file_reads.FIRST)
    data = np.random.default_rng(0).bytes(size)
    path = tmp_path / "bytes é"
    path.write_bytes(data)
    found = os.stat(path)
    stamped = data, file_reads.stamp_of(found.st_size, found.st_mtime_ns)
    assert folders.content(str(path)) == stamped
    assert folders.content(str(path)) == stamped
    assert file_reads.whole(str(path)) == stamped  # since it is known how long files may be
    assert file_reads.whole(str(tmp_path)) is None
    assert file_reads.whole(str(tmp_path / "none")) is None


def test_files_may_lie_anywhere(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sorted(map(str, images.rglob("*.jpg")))
    monkeypatch.chdir(images)
    mixed = [os.path.relpath(names[0]), *names[1:3]]
    pipe = ost.io.images(mixed).decode().batch(3).to("numpy")
    same(next(pipe.epoch(0)), next(ost.io.images(names[:3]).decode().batch(3).to("numpy").epoch(0)))
    elsewhere = [os.path.relpath(n) for n in names]
    assert ost.io.images(names).identity() == ost.io.images(elsewhere).identity()


def test_an_npz_file_is_a_dict_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.zeros((6, 4, 5, 3), "u1"), label=np.arange(6))
    pipe = ost.io.arrays(tmp_path / "x.npz").random_flip().batch(3).to("numpy")
    assert [sorted(b) for b in pipe.epoch(0)] == [["image", "label"]] * 2
    (tmp_path / "x.npz").write_bytes(b"PK")
    with pytest.raises(
        DataFileError, match=r"x.npz: got .*needed a file that np.savez .*test_pipes.py"
    ):
        ost.io.arrays(tmp_path / "x.npz")


def test_the_stage_of_the_document_is_one(images: Path) -> None:
    text = (ROOT / "docs/io_pipeline.md").read_text()
    (block,) = re.findall(r"```python\n(@ost.*?)```", text, re.S)
    known: dict[str, Any] = {"ost": ost, "dataclass": dataclass}
    base = ost.io.images(str(images)).decode()
    try:
        exec(compile(block, "document", "exec"), known)
        both = base, base.random_invert(p=1)
    finally:
        STAGES.pop("random_invert", None)
    a, b = (next(p.batch(9).to("numpy").epoch(0)) for p in both)
    np.testing.assert_array_equal(b, 255 - a)


def test_streams_are_read_in_order() -> None:
    def count() -> Iterator[int]:
        yield from range(23)

    pipe = ost.io.stream(count).map(lambda x: 2 * x).batch(5, tail="keep").to("numpy")
    for epoch in range(2):
        np.testing.assert_array_equal(joined(pipe.epoch(epoch))[0], np.arange(23) * 2)
    each = [list(pipe.epoch(0, part=(rank, 2))) for rank in range(2)]
    for k, whole in enumerate(pipe.epoch(0)):
        same(joined(b[k] for b in each), (whole,))
    list(itertools.islice(pipe.epoch(1), 2))
    pipe.restore(pipe.state())
    np.testing.assert_array_equal(joined(pipe.epoch(1))[0], np.arange(10, 23) * 2)
    once = ost.io.stream(iter(range(4))).batch(2).to("numpy")
    assert len(list(once.epoch(0))) == 2
    with pytest.raises(ArgumentError, match="used up"):
        once.epoch(1)
    with pytest.raises(
        ArgumentError, match=r"shuffle \(.*needed a source whose samples have numbers"
    ):
        pipe.shuffle(seed=1)


def test_batches_are_arrays_of_the_session(images: Path) -> None:
    pipe = augmented(images)
    wanted = list(pipe.epoch(0))
    for workers in (1, 2):
        with ost.connect(workers):
            for (x, y), (a, b) in zip(pipe.to("ostinato").epoch(0), wanted, strict=True):
                assert isinstance(x, ost.Array)
                same((np.asarray(x), np.asarray(y)), (a, b))
                np.testing.assert_allclose(np.asarray(x.sum()), a.sum(), rtol=1e-4)


def test_memory_is_used_again_once_nobody_looks() -> None:
    x = np.arange(4000.0).reshape(40, 100)
    pipe = ost.io.arrays(x).batch(4).to("numpy").run_with(threads=2)
    kept, seen = [], set()
    for batch in pipe.epoch(0):
        seen.add(batch.ctypes.data)
        kept.append(batch[1:].reshape(-1)[3:])
    assert len(seen) == 10
    np.testing.assert_array_equal(np.concatenate(kept)[:100], x[1:].reshape(-1)[3:103])
    kept.clear()
    many = ost.io.arrays(x).repeat(20).batch(4).to("numpy").run_with(threads=2, ahead=4 * 3200)
    assert len({batch.ctypes.data for batch in many.epoch(0)}) <= 8
    with many.epoch(0) as epoch:
        for batch, wanted in zip(epoch, np.split(x, 10) * 20, strict=True):
            np.testing.assert_array_equal(batch, wanted)


# -- mistakes ----------------------------------------------------------------------------------
def test_mistakes_are_told_where_they_are_made(images: Path) -> None:
    base = ost.io.images(str(images))
    for make, said in (
        (lambda: base.batch(0), r"batch \(.*got size=0; needed a whole number, 1 or more"),
        (lambda: base.batch(4, tail="other"), "needed 'drop' or 'keep' or 'pad'"),
        (lambda: base.batch(4).batch(2), "a second one"),
        (lambda: base.batch(4).shuffle(), r"shuffle .*write it before `batch`"),
        (lambda: base.batch(4).random_flip(), r"random_flip .*write it before `batch`"),
        (
            lambda: base.random_flip(q=1),
            r"random_flip .*unexpected keyword argument 'q'; needed \(p: ",
        ),
        (lambda: base.random_flip(p=2), r"needed a chance from 0 to 1"),
        (lambda: base.random_resized_crop(0), "needed pixels, or a pair of height and width"),
        (lambda: base.normalize(0, (1, 0)), "none of std 0"),
        (lambda: base.decode(channels=2), "needed 1 or 3 or 4"),
        (lambda: base.on_error("ignore"), "needed 'raise' or 'skip' or 'replace'"),
        (lambda: base.to("tensorflow"), "needed 'numpy' or 'torch' or 'jax' or 'ostinato'"),
        (lambda: base.epoch(0, part=(2, 2)), "needed a number below that of workers"),
        (lambda: base.epoch(-1), "epoch=-1"),
        (lambda: base.map(3), "map .*needed a function"),
        (lambda: ost.io.images("/nowhere/*.jpg"), "no file for '/nowhere/"),
        (lambda: ost.io.images(str(images), labels=[1]), "1 labels for 27 files"),
        (lambda: ost.io.arrays(np.zeros(3), np.zeros(4)), "as many rows in each"),
        (
            lambda: ost.io.arrays(np.zeros(3)).random_flip(),
            "random_flip .*got samples of data; needed",
        ),
        (lambda: ost.io.samples(3), "use ost.io.stream"),
        (lambda: ost.io.stream(3), "got int; needed an iterable"),
    ):
        with pytest.raises(ArgumentError, match=said) as caught:
            make()  # type: ignore[no-untyped-call]
        assert "test_pipes.py:" in str(caught.value)
    with pytest.raises(
        AttributeError, match=r"a pipe has no stage 'random_flop'; it has .*random_flip"
    ):
        base.random_flop()
    assert "random_flip" in dir(base)


# -- threads -----------------------------------------------------------------------------------
def slow(x: Any) -> Any:
    time.sleep(0.002)
    return x


def sluggish() -> Pipe:
    return ost.io.arrays(np.arange(10_000)).map(slow).batch(4).to("numpy").run_with(threads=3)


def test_break_and_exceptions_leave_no_thread() -> None:
    for _ in sluggish().epoch(0):
        assert len(mine()) == 3
        assert sys.getswitchinterval() < 1e-3
        break
    assert settled() == []

    def fail() -> None:
        for _ in sluggish().epoch(0):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert settled() == []


def test_what_nobody_has_leaves_no_thread() -> None:
    epoch = sluggish().epoch(0)
    next(epoch)
    del epoch
    assert settled() == []
    circle: list[Any] = [sluggish().epoch(0)]
    circle.append(circle)
    del circle
    gc.collect()
    assert settled() == []


def test_an_end_leaves_no_thread_at_once() -> None:
    list(numbers().epoch(0))
    assert mine() == []
    with sluggish().epoch(0) as epoch:
        next(epoch)
    assert mine() == []
    with pytest.raises(StopIteration):
        next(epoch)


def run_script(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    script = f"""
import os, sys, time
import numpy as np
import ostinato as ost
def slow(x):
    time.sleep(0.002)
    return x
pipe = ost.io.arrays(np.arange(10_000)).map(slow).batch(4).to("numpy").run_with(threads=3)
{code}
"""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT, capture_output=True, text=True, timeout=60, **options,
    )  # fmt: skip


def test_the_interpreter_ends_while_threads_run() -> None:
    for end in ("", "sys.exit(0)", "raise SystemExit"):
        ran = run_script(f"it = pipe.epoch(0)\nnext(it)\nprint('one')\n{end}")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "one\n", "")


def test_interrupts_end_it() -> None:
    code = f"""
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), {int(signal.SIGINT)})).start()
    for x in pipe.epoch(0):
        pass
except KeyboardInterrupt:
    pass
until = time.monotonic() + 30
while (left := [t.name for t in threading.enumerate() if 'feed' in t.name]) and time.monotonic() < until:
    time.sleep(0.01)
print(left)
"""
    ran = run_script(code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_begins_anew() -> None:
    code = """
it = pipe.epoch(0)
next(it)
child = os.fork()
if not child:
    try:
        next(it)
    except ost.errors.SessionError as error:
        assert "begin it after the fork" in str(error)
        it.close()
        del it
        assert sys.getswitchinterval() > 1e-3
        first = next(pipe.epoch(0))
        os._exit(0 if list(first) == [0, 1, 2, 3] else 3)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(next(it).tolist())
"""
    ran = run_script(code)
    assert (ran.returncode, ran.stdout) == (0, "[4, 5, 6, 7]\n"), ran.stderr


def test_a_thread_that_cannot_go_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody waits for what it had taken."""

    def no_memory(self: Work, *_: Any) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(Work, "_finish", no_memory)
    with pytest.raises(MemoryError, match="none left"):
        list(sluggish().epoch(0))
    assert settled() == []


def test_a_straggler_blocks_nobody() -> None:
    """One sample waits until those of later batches are made."""
    later = threading.Event()

    def wait(x: int) -> int:
        if x == 0:
            assert later.wait(20)
        if x == 15:
            later.set()
        return x

    pipe = ost.io.samples(range(40)).map(wait).batch(8).to("numpy").run_with(threads=2, chunk=2)
    np.testing.assert_array_equal(joined(pipe.epoch(0))[0], np.arange(40))


def test_batches_are_not_made_far_ahead() -> None:
    made = []

    def note(x: Any) -> Any:
        made.append(1)
        return x

    x = np.zeros((400, 1000))
    pipe = ost.io.arrays(x).map(note).batch(10).to("numpy").run_with(threads=4, ahead=3 * 80_000)

    def settles(count: int) -> None:
        until = time.monotonic() + 20
        while len(made) < count and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.1)
        assert len(made) == count

    with pipe.epoch(0) as epoch:
        next(epoch)
        settles(40)
        next(epoch)
        settles(50)


def test_costs_are_known(images: Path) -> None:
    pipe = augmented(images)
    assert pipe.stats() == {}
    list(pipe.epoch(0))
    rows = {row["stage"]: row for row in pipe.stats()["stages"]}
    assert [*rows] == ["read", "decode", "random_resized_crop", "random_flip", "normalize", "batch"]
    assert 8 < rows["decode"]["bytes"] <= 48 * 64 * 3 + 8
    assert rows["normalize"]["bytes"] == 3 * 16 * 16 * 4 + 8
    assert all(row["timed"] >= 4 or row["stage"] == "batch" for row in rows.values())
    assert all(row["wall_us"] > 0 for row in rows.values())


def test_rows_of_arrays_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are rows of arrays come in one piece, from memory and from files, as one by one."""
    x = np.random.default_rng(0).random((300, 4, 5)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    given = {"a": x, "b": tmp_path / "x.npy", "label": np.arange(300)}
    pipe = ost.io.arrays(given).shuffle(seed=5).batch(32, tail="keep").to("numpy")
    found = list(pipe.run_with(threads=3).epoch(1))
    with monkeypatch.context() as patch:
        patch.setattr("ostinato.io_pipeline.feed.samples.Arrays.forms", lambda self: None)
        wanted = list(pipe.epoch(1))
    for a, b in zip(found, wanted, strict=True):
        same(a.values(), b.values())
        np.testing.assert_array_equal(a["a"], x[a["label"]])
    (row,) = pipe.stats()["stages"][:1]
    assert row["timed"] >= 300 / 8
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(SampleError, match=r"sample \d+, row \d+ of .*x\.npy, in read"):
        list(pipe.epoch(0))


@pytest.mark.parametrize("workers", [1, 2])
def test_arrays_keep_their_memory_until_they_are_used(workers: int) -> None:
    """What is computed of batches later sees them as they were, whatever the pipe made meanwhile."""
    x = np.random.default_rng(0).random((640, 64)).astype("f4")
    with ost.connect(workers):
        pipe = ost.io.arrays(x).batch(16).run_with(threads=2, ahead=3 * 16 * 64 * 4)
        sums = [batch.sum(1) * 2 for batch in pipe.epoch(0)]
        halves = [batch for k, batch in enumerate(pipe.epoch(0)) if k % 2]
        found = np.concatenate([np.asarray(s) for s in sums])
        np.testing.assert_allclose(found, x.sum(1) * 2, rtol=1e-5)
        for k, batch in enumerate(halves):
            np.testing.assert_array_equal(np.asarray(batch), x[32 * k + 16 : 32 * k + 32])
