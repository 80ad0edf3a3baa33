"""The memory of reads and of batches that wait, beside what was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.source import Source, read_places
from ostinato.io_pipeline.thread_counts import MIN_THREADED_BYTES
from ostinato.io_pipeline.tuner.drive import Drive

import ostinato as ost

MIB = 1 << 20


class Large(Source):
    """An array in chunks, each number of which says where it is."""

    path, dtype = "large", np.dtype(np.int64)

    def __init__(self, shape: tuple[int, ...], grain: tuple[int, ...]) -> None:
        self.shape, self.grain, self.boxes = shape, grain, list[Any]()

    def read(self, out: np.ndarray[Any, Any], box: Any) -> None:
        self.boxes.append(box)
        out[...] = self.at(np.ix_(*(np.arange(*b) for b in box)))

    def at(self, places: Any) -> Any:
        return sum(p * 10 ** (6 * k) for k, p in enumerate(reversed(places)))


@pytest.mark.parametrize(
    ("shape", "grain"),
    [
        ((4096, 16384), (256, 1024)),
        ((16384, 4096), (16384, 8)),
        ((512, 512, 512), (64, 64, 64)),
        ((100_000, 300), (100_000, 300)),
        ((1 << 20, 9), (64, 9)),
    ],
)
def test_boxes_around_places_are_no_wider_than_they_have_to_be(
    shape: tuple[int, ...], grain: tuple[int, ...]
) -> None:
    source, chunk = Large(shape, grain), 8 * int(np.prod(grain))
    rows = np.array([5, 3, shape[0] - 1, 700 % shape[0]])
    inner = [range(n) for n in shape[1:]]
    for axes in ([rows, *inner], [range(2), *inner[:-1], range(0, shape[-1], 7)]):
        out, source.boxes = np.empty([len(a) for a in axes], np.int64), []
        read_places(source, out, axes)
        np.testing.assert_array_equal(out, source.at(np.ix_(*(np.array(a) for a in axes))))
        read = [8 * int(np.prod([hi - lo for lo, hi in box])) for box in source.boxes]
        assert max(read) <= max(2 * chunk, MIN_THREADED_BYTES)
        assert len(read) < 200  # and chunks are not read one by one


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_wait_within_a_part_of_the_limit(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    x = np.zeros((4096, 512))
    pipe = ost.io.arrays(x).batch(64)  # of 256 KiB each
    with ost.connect(workers=workers, memory_limit=8 * MIB):
        with pipe.epoch(0) as epoch:
            work = epoch._work
            next(epoch)
            assert work.ahead == workers * 2 * MIB
            assert work.room == workers * 8
            tuner = Drive(pipe.identity(), 64)._begin(work)
            assert max(tuner.space.ahead) <= workers * 8
        with pipe.run_with(ahead=64 * MIB).epoch(0) as epoch:
            assert epoch._work.ahead == 64 * MIB
        with pipe.to("numpy").epoch(0) as epoch:
            assert epoch._work.ahead == pipe.ahead
    with ost.connect(), pipe.epoch(0) as epoch:
        assert epoch._work.ahead == pipe.ahead
