"""What a pipe says of itself: quantiles in five numbers, which limit binds, metrics."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import folders, preview, seeing
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.stats import MIN_LAP_SECONDS, Consumer, Quantile

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import one_of
from tests.io_pipeline.pictures import folder


@pytest.mark.parametrize("part", [0.5, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_quantiles_are_about_right(part: float, seed: int) -> None:
    x = np.random.default_rng(seed).lognormal(0, 0.5, 2000)
    found = Quantile(part)
    for k, value in enumerate(x):
        found.add(float(value))
        if k < 5:
            assert found.value in x[: k + 1]
    assert abs(np.mean(x <= found.value) - part) < 0.03


def test_a_loops_step_and_wait_are_told_apart() -> None:
    consumer, laps = Consumer(), []
    consumer.watch = laps.append
    now = 5.0
    for _ in range(11):
        consumer.took(now, now + 0.25)
        now += 0.25 + 0.5
    assert consumer.first == 0.25
    assert [(lap.count, lap.step, lap.wait) for lap in laps] == [(1, 0.5, 0.25)] * 10
    assert consumer.step.as_data() == {"total": 5.0, "mean": 0.5, "median": 0.5, "p90": 0.5}
    assert consumer.wait.total == 2.5


def test_short_iterations_are_taken_together() -> None:
    consumer, laps = Consumer(), []
    consumer.watch = laps.append
    for k in range(1001):
        consumer.took(k * MIN_LAP_SECONDS / 10, (k + 0.5) * MIN_LAP_SECONDS / 10)
    assert 90 <= len(laps) <= 100
    assert sum(lap.count for lap in laps) <= 1000
    assert laps[0].step == pytest.approx(MIN_LAP_SECONDS / 20)


def numbers(n: int = 64) -> Pipe:
    return ost.io.arrays(np.arange(n)).batch(8).to("numpy")


@one_of(5)
def test_who_waits_is_known() -> None:
    """A step that takes long, and a stage that does."""

    def slow(x: Any) -> Any:
        time.sleep(0.004)
        return x

    pipe = numbers().map(np.negative)
    for _ in pipe.epoch(0):
        time.sleep(0.03)  # more than a busy machine keeps a thread waiting, most of the time
    assert pipe.stats()["binds"] == "step"
    assert pipe.stats()["headspace"] > 2
    assert "the step binds: the feed could be" in pipe.explain()
    pipe = ost.io.arrays(np.arange(64)).map(slow).batch(8).to("numpy")
    pipe = pipe.run_with(threads=2, chunk=2)
    assert len([*pipe.epoch(0)]) == 8
    found = pipe.stats()
    assert found["binds"] == "waits"
    slowest = max(found["stages"], key=lambda row: row["own_us"])
    assert slowest is found["stages"][1]
    assert slowest["own_us"] > 3000
    assert "its own waiting" in pipe.explain()
    assert "functions of its stages wait for something of their own" in pipe.explain()
    assert found["feed"] > 0.014  # 8 times 4 ms by 2 threads; more where others compute
    assert found["headspace"] < 0.5
    text = pipe.explain()
    assert "2 threads (given), chunk 2 (given), 268 MB ahead, 0 batches ready" in text
    assert re.search(r"^map +\d", text, re.M)


@one_of(5)
def test_functions_that_compute_wait_for_the_lock() -> None:
    """Threads of Python beside each other, and a loop that computes, too."""

    def long(x: Any) -> Any:
        return x + sum(range(20_000)) * 0

    pipe = ost.io.arrays(np.arange(200)).map(long).batch(8).to("numpy")
    pipe = pipe.run_with(threads=3, chunk=2)
    for _ in pipe.epoch(0):
        sum(range(20_000))
    row = pipe.stats()["stages"][1]
    assert row["wait_us"] > 50
    assert row["own_us"] == 0
    assert "its own waiting" not in pipe.explain()


@pytest.mark.parametrize(
    ("read", "stage", "threads", "wanted"),
    [(50, 0, 2, "read"), (0, 50, 2, "lock"), (0, 0, 2, "cpu"), (0, 0, 1, "threads")],
)
def test_the_limit_of_a_feed(read: int, stage: int, threads: int, wanted: str) -> None:
    rows = [
        {"wall_us": 60.0 + read, "wait_us": float(read)},
        {"wall_us": 50.0 + stage, "wait_us": float(stage)},
    ]
    times = {"step": {"mean": 1.0}, "wait": {"mean": 1.0}, "feed": 2.0}
    assert seeing.binds({**times, "stages": rows, "threads": threads, "cores": 2}) == wanted


@pytest.mark.parametrize(
    ("step", "wait", "feed", "wanted"),
    [
        (1e-6, 8e-6, 9e-6, "none"),  # that a batch is handed over is no wait,
        (1e-7, 8e-6, 1e-3, "none"),  # whatever the loop does
        (5e-3, 8e-6, 1e-3, "step"),
        (5e-3, 8e-6, 5e-3, "none"),  # there is nothing to spare, and nobody waits
        (5e-3, 2e-3, 1e-3, "uneven"),  # as who waits is not told that the feed is faster
        (5e-3, 2e-3, 7e-3, "threads"),
    ],
)
def test_what_binds_is_no_contradiction(step: float, wait: float, feed: float, wanted: str) -> None:
    rows = [{"wall_us": 60.0, "wait_us": 0.0}]
    times: dict[str, Any] = {"step": {"mean": step}, "wait": {"mean": wait}, "feed": feed}
    found = {**times, "stages": rows, "threads": 1, "cores": 2, "headspace": step / feed}
    found["binds"] = seeing.binds(found)
    assert found["binds"] == wanted
    said = seeing.limit(found)
    assert ("the feed binds" in said) == (wanted == "threads")
    assert (" times as fast" in said) == (feed < 0.95 * step and wanted != "threads")


def test_what_is_only_tried_is_told() -> None:
    pipe = numbers()
    list(pipe.epoch(0))
    assert "tried" not in pipe.explain()
    assert "1 thread (given), chunk 8, 0.00512 MB ahead, 3 batches" in seeing.explain(
        {**pipe.stats(), "threads": 1, "given": ["threads"], "chunk": 8, "ahead": 5120, "ready": 3}
    )
    assert "ahead (being tried), " in seeing.explain({**pipe.stats(), "is_tried": True})


@pytest.mark.parametrize(
    ("on", "off", "read", "wanted"),
    [
        (10.0, 0.0, 400.0, "read"),
        (5.0, 4.9, 40.0, "lock"),  # in line for cores, in the midst of reading, too
        (5.0, 0.0, 0.0, "lock"),  # between stages, where machine code gives Python back
        (9.5, 0.2, 2.0, "cpu"),
    ],
)
def test_threads_times_tell_what_stages_do_not(
    on: float, off: float, read: float, wanted: str
) -> None:
    """What a sample of a chunk took is not all: a chunk waits for Python's lock behind its call."""
    rows = [
        {"wall_us": 50.0 + read, "wait_us": read, "cpu_us": 50.0},
        {"wall_us": 500.0, "wait_us": 0.0, "cpu_us": 500.0},
    ]
    times: dict[str, Any] = {"step": {"mean": 1.0}, "wait": {"mean": 1.0}, "feed": 2.0}
    threads = {"threads": 2, "cores": 2, "busy": 10.0, "on_core": on, "in_line": off}
    assert seeing.binds({**times, **threads, "stages": rows}) == wanted


@one_of(5)
def test_reading_is_what_reading_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what its chunk waits for in front of the call that reads."""
    pytest.importorskip("simplejpeg")
    root, seen = folder(tmp_path, 16), folders.Files.files

    def slow(self: Any, indices: Any) -> Any:
        time.sleep(0.06)
        return seen(self, indices)

    monkeypatch.setattr(folders.Files, "files", slow)
    pipe = ost.io.images(str(root)).decode().resize((16, 16)).batch(8).to("numpy")
    pipe = pipe.run_with(threads=1, chunk=4)
    for epoch in range(4):
        list(pipe.epoch(epoch))
        assert pipe.cursor.work is not None
        assert pipe.cursor.work.maker.native is not None
    read = pipe.stats()["stages"][0]
    assert read["timed"] > 0
    assert read["wall_us"] < 50_000
    assert pipe.stats()["busy"] > pipe.stats()["on_core"] + 0.06


def test_metrics_are_what_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    pipe = numbers()
    assert pipe.metrics() == ""
    assert pipe.explain() == "no epoch was begun yet"
    for _ in pipe.epoch(2):
        time.sleep(0.001)
    families = {f.name: f for f in parser.text_string_to_metric_families(pipe.metrics())}
    assert families["ostinato_feed_batches"].samples[0].value == 8
    assert families["ostinato_feed_epoch"].samples[0].value == 2
    labels = [s.labels["stage"] for s in families["ostinato_feed_cpu_seconds"].samples]
    assert labels == ["read", "batch"]
    names = [s.name for s in families["ostinato_feed_step_seconds"].samples]
    assert names[-1] == "ostinato_feed_step_seconds_count"


@one_of(5)
def test_threads_park_and_come_back_and_change_no_bit() -> None:
    wanted = [*numbers(800).epoch(1)]
    seen: set[str] = set()

    def note(x: Any) -> Any:
        seen.add(threading.current_thread().name)
        time.sleep(0.0005)
        return x

    pipe = ost.io.arrays(np.arange(800)).map(note).batch(8).to("numpy")
    pipe = pipe.run_with(threads=1, chunk=1, ahead=0)
    found, at_once = [], []
    with pipe.epoch(1) as epoch:
        for k, batch in enumerate(epoch):
            found.append(batch)
            if k % 10 == 0:
                at_once.append(len(seen))
                epoch._work.run_with((1, 3, 2)[k // 10 % 3], 1 + k % 5, 1 << 10)
            if k % 10 == 4:
                seen.clear()
        begun = len(epoch._work.threads)
    np.testing.assert_array_equal(found, wanted)
    assert begun == 3
    assert {at_once[2], at_once[5]} == {3}
    assert {at_once[1], at_once[4]} == {1}


# -- pictures and progress ---------------------------------------------------------------------
@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("images"), 12)


def test_a_sheet_shows_samples_before_and_after(images: Path, tmp_path: Path) -> None:
    from PIL import Image

    pipe = ost.io.images(f"{images}/**/*.jpg", labels="folder").shuffle(seed=3).decode()
    plain = pipe.resize((48, 64)).normalize((0.5, 0.4, 0.3), (0.2, 0.1, 0.3)).batch(5)
    where = plain.preview(8, tmp_path / "a.png")
    x = np.asarray(Image.open(where)).astype(int)
    assert x.shape == (4 * 180 + 6, 2 * 332 + 6, 3)
    for k in range(8):  # what is only normalised looks as it did
        top, left = 6 + k // 2 * 180, 6 + k % 2 * 332
        a, b = (x[top : top + 160, left + n * 163 :][:, :160] for n in range(2))
        assert a[40:120].std() > 5
        assert np.abs(a - b).max() <= 1
    again = plain.preview(8, tmp_path / "b.png")
    assert Path(again).read_bytes() == Path(where).read_bytes()
    flipped = pipe.resize((48, 64)).random_flip(1.0).batch(5).preview(3, tmp_path / "c.png")
    y = np.asarray(Image.open(flipped)).astype(int)
    a, b = (y[6:166, 6 + n * 163 :][:, :160] for n in range(2))
    assert np.abs(a - b).mean() > 20
    assert np.abs(a - b[:, ::-1]).mean() < 5
    assert pipe.state()["place"] == 0


def test_a_sheet_shows_masks_boxes_and_labels(tmp_path: Path) -> None:
    """Where they are, in the image as it is and as it comes out, and no empty boxes."""
    from PIL import Image

    n = 4
    image = np.full((n, 80, 160, 3), 128, np.uint8)
    mask = np.zeros((n, 80, 160), np.int64)
    mask[:, 40:, :80] = 7
    boxes = np.tile(np.array([[100, 10, 140, 60], [0, 0, 0, 0]], np.float32), (n, 1, 1))
    fields: dict[str, Any] = {
        "image": image,
        "mask": mask,
        "boxes": boxes,
        "label": np.full((n, 2), 3),
    }
    pipe = ost.io.arrays(fields).random_flip(1.0).normalize(0.5, 0.25, "bfloat16").batch(2)
    x = np.asarray(Image.open(pipe.preview(2, tmp_path / "a.png"))).astype(int)
    assert x.shape == (2 * 166 + 6, 332 + 6, 3)
    for flipped in range(2):
        part = x[6 + 40 :, 6 + flipped * 163 :][:80, :160]
        part = part[:, ::-1] if flipped else part
        colour, grey = part[60, 20], part[20, 20]
        np.testing.assert_array_equal(grey, [128] * 3)
        assert np.ptp(colour) > 60
        assert np.abs(part[41:, :79] - colour).max() <= 1
        line = part[35, 99]
        assert np.ptp(line) > 100
        assert (part[25:55, 99] == line).all()
        assert (part[:9, 90:] == grey).all()
    fields["label"] = np.eye(n, 9, dtype=np.float32)
    fields["boxes"] = boxes[:, :0]
    y = np.asarray(Image.open(ost.io.arrays(fields).preview(2, tmp_path / "b.png")))
    assert y.shape == (2 * 180 + 6, 332 + 6, 3)
    assert (y[6 + 121 : 6 + 135, 6:40] < 100).any()


def test_words_of_labels() -> None:
    def said(*labels: Any) -> str:
        return preview._labelled([], labels)[1]

    assert said(np.int64(3), b"cat") == "3; cat"
    assert said(np.array([0.25, 0, 0.05, 0.7], np.float32)) == "3: 0.7, 0: 0.25, 2: 0.05"
    boxes = [(0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)]
    found = preview._labelled(boxes, [np.array([5, 6]), 1])
    assert found == ([(boxes[0], "5")], "1")


def test_a_sheet_of_single_samples_and_volumes(images: Path, tmp_path: Path) -> None:
    single = ost.io.images(f"{images}/**/*.jpg").decode()
    assert Path(single.preview(20, tmp_path / "a.png")).stat().st_size > 1000
    x = np.random.default_rng(0).random((4, 8, 9, 10)).astype("f4")
    volumes = ost.io.arrays({"volume": x}).gaussian_noise(0.1).batch(2)
    assert Path(volumes.preview(3, tmp_path / "b.png")).stat().st_size > 1000
    with pytest.raises(ArgumentError, match="needed an image or a volume"):
        numbers().preview(2, tmp_path / "c.png")


def test_progress_is_shown_until_the_epoch_ends(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    before = {*threading.enumerate()}  # others may end meanwhile
    for k, _ in enumerate(numbers().epoch(4, progress=True)):
        time.sleep(0.03)
        if k == 0:
            assert len({*threading.enumerate()} - before) <= 2  # those of the feed
    shown = capsys.readouterr().out
    assert "epoch 4" in shown
    assert "8/8" in shown
    with numbers().epoch(5, progress=True) as epoch:
        next(epoch)
    assert "1/8" in capsys.readouterr().out
    epoch = numbers().epoch(6, progress=True)
    for _ in range(8):  # and is never asked for a ninth one
        next(epoch)
    del epoch
    assert "8/8" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 120])
@one_of(5)
def test_a_line_of_progress_fits_its_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words give way; how far it is does not."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    for _ in numbers().epoch(11, progress=True):
        time.sleep(0.01)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "epoch 11" in x)
    assert len(line.rstrip()) <= width
    assert re.match(r"epoch 11 \S+ 8/8 \S+ step ", line)
    if width != 80:
        assert ("…" in line) == (width == 60)
        assert ("the step binds" in line) == (width > 60)


@one_of(5)
def test_a_line_of_progress_in_a_file_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.delenv("COLUMNS", raising=False)
    for _ in numbers().epoch(11, progress=True):
        time.sleep(0.01)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "epoch 11" in x)
    assert line.rstrip().endswith("the step binds")


def test_a_pipe_says_what_it_is() -> None:
    assert repr(ost.io.arrays(np.arange(5))) == "<Pipe: 5 samples of label: no stages>"
    assert repr(ost.io.stream([1]).on_error("skip")) == "<Pipe: a stream: on_error('skip')>"
    made = ost.io.arrays(np.zeros((1200, 4, 4, 3), "u1"), kinds=["image"]).random_flip(0.25)
    made = made.map(np.negative).shuffle(seed=3).bucket(np.ones(1200)).batch(4, drop_last=True)
    assert repr(made) == (
        "<Pipe: 1,200 samples of image: random_flip(p=0.25), map(function=negative), "
        "shuffle(seed=3), bucket(window=50), batch(size=4, tail='drop')>"
    )
    with made.epoch(2) as epoch:
        next(epoch)
        assert repr(epoch) == "<Epoch 2, 299 batches left>"
