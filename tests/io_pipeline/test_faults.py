"""Samples that cannot be made: reads that hang, files that change, vanish or are no images; never a crash or a
hang, and what is said names the file, the stage and the line."""

from __future__ import annotations

import contextvars
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import file_reads, folders, timed
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.images.decode import Decode

import ostinato as ost
from ostinato.errors import ArgumentError, SampleError
from tests.io_pipeline.pictures import encoded, folder, picture
from tests.io_pipeline.test_pipes import joined, mine, same, settled


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert settled() == []


# -- reads that hang ---------------------------------------------------------------------------
class Found(timed._Call):
    """A call whose time is over as soon as it hangs, and not before, whoever has the machine."""

    at_work = threading.local()

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(partial(self.begin, work))
        self.hangs, self.answered, self.lock = False, self.lock, self  # type: ignore[assignment]

    def begin(self, work: Callable[[], Any]) -> Any:
        self.at_work.call = self
        return work()

    def acquire(self, timeout: float) -> bool:
        while not (is_there := self.answered.acquire(timeout=0.005)) and not self.hangs:
            pass
        return is_there

    def release(self) -> None:
        self.answered.release()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "_Call", Found)


class Hanging:
    """Samples of which some are not there until the end."""

    def __init__(self, count: int, late: set[int]) -> None:
        self.count, self.late, self.end = count, late, threading.Event()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> int:
        if k in self.late:
            self.asked.append(k)
            if (call := getattr(Found.at_work, "call", None)) is not None:
                call.hangs = True
            self.end.wait(30)
        return k


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging(40, {3, 17, 25})
    yield made
    made.end.set()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_read_that_hangs_is_a_fault_of_its_sample(hanging: Hanging, threads: int) -> None:
    pipe = ost.io.samples(hanging).on_error("skip", timeout=1).batch(8).to("numpy")
    pipe, begin = pipe.run_with(threads=threads), time.monotonic()
    found = joined(pipe.epoch(0))[0]
    np.testing.assert_array_equal(found, [k for k in range(40) if k not in hanging.late])
    assert time.monotonic() - begin < 25, "of them, one alone would answer after 30 s"
    assert {f.sample for f in pipe.faults()} == hanging.late
    assert {f.reason for f in pipe.faults()} == {
        "DataFileError: sample 3: got no answer within 1 s; needed a source that answers, or more "
        "time by on_error(timeout=...)".replace("sample 3", f"sample {k}")
        for k in hanging.late
    }
    assert len([n for n in mine() if n == "ostinato-feed-timed"]) >= 3
    hanging.end.set()


@pytest.mark.usefixtures("at_once")
def test_what_hangs_is_replaced_or_raised(hanging: Hanging) -> None:
    pipe = ost.io.samples(hanging).on_error("replace", timeout=0.4, most=1).batch(8).to("numpy")
    found = joined(pipe.epoch(0))[0]
    kept = [k for k in range(40) if k not in hanging.late]
    np.testing.assert_array_equal(found[kept], kept)
    assert not {*found} & hanging.late
    with pytest.raises(SampleError, match=r"sample 3, in read .*no answer within 0.4 s") as caught:
        list(ost.io.samples(hanging).on_error("raise", timeout=0.4).batch(8).to("numpy").epoch(0))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.usefixtures("at_once")
def test_no_more_than_so_many_hang(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "MOST_STUCK", 2)
    pipe = ost.io.samples(hanging).on_error("skip", timeout=0.4, most=1).batch(8, tail="keep")
    pipe = pipe.to("numpy").run_with(threads=1)
    found = joined(pipe.epoch(0))[0]
    assert hanging.asked == [3, 17]
    np.testing.assert_array_equal(found, [k for k in range(17) if k != 3])
    assert sum("2 calls hang already" in f.reason for f in pipe.faults()) == 22
    hanging.end.set()


@pytest.mark.usefixtures("at_once")
def test_functions_that_hang_are_faults_of_their_samples(hanging: Hanging) -> None:
    def slow(x: Any) -> Any:
        return hanging[int(x)]

    def stays(x: Any) -> bool:
        return hanging[int(x)] >= 0

    numbers = ost.io.arrays(np.arange(40), kinds=["data"]).on_error("skip")
    for pipe in (numbers.map(slow), numbers.filter(stays), numbers.map(slow, on="data")):
        pipe = pipe.on_error("skip", timeout=0.4).batch(8, tail="keep").to("numpy")
        pipe = pipe.run_with(threads=2)
        found = joined(pipe.epoch(0))[0]
        np.testing.assert_array_equal(found, [k for k in range(40) if k not in hanging.late])
        assert [f.sample for f in pipe.faults()] == sorted(hanging.late)
        for fault in pipe.faults():
            assert re.fullmatch(
                r"SampleError: (slow|stays) \(.*test_faults\.py:\d+\): got no answer within 0.4 s \(a "
                r"thread cannot be ended: it stays\); needed more time by on_error\(timeout=...\); "
                r"processes=True ends what hangs",
                fault.reason,
            ), fault.reason
    with pytest.raises(SampleError, match=r"sample 3, row 3 of .*, in map .*slow .*no answer"):
        list(numbers.map(slow).on_error("raise", timeout=0.4).batch(8).to("numpy").epoch(0))
    hanging.end.set()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cropped", [False, True])
def test_files_that_take_long_to_decode_are_faults(
    threads: int, cropped: bool, tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever decoding begins: of all of a file, or of a window of it."""
    paths, late = [tmp_path / f"{k}.jpg" for k in range(12)], [2, 7]
    for k, path in enumerate(paths):  # machine code has no time for what may have so many scans
        path.write_bytes(b"\xff\xd8" + comment(k, 9000 * (k in late)) + encoded(picture(k))[2:])
    decode, part = Decode.image, Decode.part

    def image(self: Any, xp: Any, data: bytes, drawn: Any) -> Any:
        return None if data[6] in late and hanging[3] else decode(self, xp, data, drawn)

    def window(self: Any, data: bytes, *more: Any) -> Any:
        return None if data[6] in late and hanging[3] else part(self, data, *more)

    monkeypatch.setattr(Decode, "image", image)
    monkeypatch.setattr(Decode, "part", window)
    decoded = ost.io.images(list(map(str, paths))).decode()
    decoded = decoded.center_crop(16) if cropped else decoded.resize((16, 16))

    def made(do: str) -> Pipe:
        pipe = decoded.on_error(do, timeout=0.4).batch(4).to("numpy")
        return pipe.run_with(threads=threads)

    pipe = made("skip")
    assert [len(b) for b in pipe.epoch(0)] == [3, 3, 4]
    told = [(f.sample, f.stage, f.reason) for f in pipe.faults()]
    assert told == [(k, "decode", "LateError: no answer within 0.4 s") for k in late]
    with pytest.raises(SampleError, match=r"2.jpg, in decode .*a thread cannot be ended: it stays"):
        list(made("raise").epoch(0))
    hanging.end.set()


def comment(k: int, scans: int) -> bytes:
    """Of a JPEG file, with a number and what looks like so many scans."""
    text = bytes([k]) + b"\xff\xda" * scans
    return b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text


def test_reasons_are_the_same_in_every_run(tmp_path: Path) -> None:
    """Pillow names the address of what it cannot open, and so may anybody."""
    image = pytest.importorskip("PIL.Image")

    def opened(data: bytes) -> Any:
        return image.open(io.BytesIO(data))

    folder(tmp_path, 1)
    (tmp_path / "a.png").write_bytes(b"no picture")
    pipe = ost.io.images(str(tmp_path)).map(opened, on="image").on_error("skip", most=1)
    pipe = pipe.batch(2).to("numpy")
    assert len(list(pipe.epoch(0))) == 1
    (fault,) = pipe.faults()
    assert fault.reason == "UnidentifiedImageError: cannot identify image file <_io.BytesIO object>"


def test_functions_in_time_have_their_context_and_errors() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    def shifted(x: Any) -> Any:
        if x == 13:
            raise KeyError("13")
        return x + variable.get()

    variable.set(100)
    pipe = ost.io.arrays(np.arange(20), kinds=["data"]).map(shifted)
    pipe = pipe.on_error("skip", timeout=20).batch(4, tail="keep").to("numpy")
    found = joined(pipe.epoch(0))[0]
    np.testing.assert_array_equal(found, [100 + k for k in range(20) if k != 13])
    assert [f.reason for f in pipe.faults()] == ["KeyError: '13'"]


def test_who_is_in_time_pays_little_and_gives_the_same(tmp_path: Path) -> None:
    root = folder(tmp_path, 12)
    plain = ost.io.images(str(root), labels="folder").shuffle(seed=1)
    wanted = joined(plain.decode().batch(4).to("numpy").epoch(0))
    timed_pipe = plain.on_error("raise", timeout=20).decode().batch(4).to("numpy")
    same(joined(timed_pipe.epoch(0)), wanted)
    x = np.arange(60).reshape(20, 3)
    rows = ost.io.arrays(x).on_error("skip", timeout=20).batch(4).to("numpy")
    np.testing.assert_array_equal(joined(rows.epoch(0))[0], x)
    state = rows.state()
    ost.io.arrays(x).on_error("skip", timeout=5).batch(4).to("numpy").restore(state)
    for given in (0, -1, "1"):
        with pytest.raises(ArgumentError, match="needed seconds, more than 0"):
            plain.on_error("skip", timeout=given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="got a stream"):
        ost.io.stream([1]).on_error("skip", timeout=1)


# -- files -------------------------------------------------------------------------------------
@pytest.mark.parametrize("native", [True, False])
def test_files_that_change_are_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setattr(file_reads, "_function", lambda: None)
    root = folder(tmp_path, 9)
    pipe = ost.io.images(str(root)).on_error("skip", most=1).decode().batch(9).to("numpy")
    assert len(next(pipe.epoch(0))) == 9
    changed = sorted(root.rglob("*.jpg"))[2:5]
    changed[0].write_bytes(encoded(picture(77)))
    size = changed[1].stat().st_size
    changed[1].write_bytes(bytes(size))  # of the same size
    os.utime(changed[1], ns=(5, 5))
    changed[2].unlink()
    assert len(next(pipe.epoch(1))) == 6
    reasons = {Path(re.findall(r"/\S*\.jpg", f.name)[0]): f.reason for f in pipe.faults()}
    assert reasons.keys() == {*changed}
    assert all("another size or time than before" in reasons[p] for p in changed[:2])
    assert "no such file or directory" in reasons[changed[2]]
    again = ost.io.images(str(root)).on_error("skip", most=1).batch(8).to("numpy")
    assert len(next(again.epoch(0))) == 8  # for another pipe they are as they are


CONTENTS: dict[str, Any] = {
    "empty": b"",
    "text": b"not an image\n" * 40,
    "gzip": b"\x1f\x8b\x08" + bytes(300),
    "html": b"<!doctype html><html><body>404</body></html>",
    "start": b"\xff\xd8\xff\xe0",
    "zeros": bytes(5000),
    "cut": 0.5,
    "folder": "folder",
    "fifo": "fifo",
    "socket": "dangling",
    "gone": None,
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_bad_file_is_a_fault_with_its_name(tmp_path: Path, kind: str) -> None:
    root, content = folder(tmp_path, 9), CONTENTS[kind]
    bad = sorted(root.rglob("*.jpg"))[4]
    whole = bad.read_bytes()
    pipe = ost.io.images(str(root)).on_error("skip").decode().on_error("skip").batch(9).to("numpy")
    bad.unlink()
    if isinstance(content, bytes):
        bad.write_bytes(content)
    elif isinstance(content, float):
        bad.write_bytes(whole[: int(content * len(whole))])
    elif content == "folder":
        bad.mkdir()
    elif content == "fifo":
        os.mkfifo(bad)
    elif content == "dangling":
        bad.symlink_to(tmp_path / "nowhere")
    assert len(next(pipe.epoch(0))) == 8
    (fault,) = pipe.faults()
    assert fault.name == f"file {bad}"
    assert fault.reason
    assert fault.stage == ("decode" if isinstance(content, (bytes, float)) and content else "read")


def test_what_may_not_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs this: an administrator may read all."""
    root = folder(tmp_path, 6)
    bad, really = str(sorted(root.rglob("*.jpg"))[1]), os.open

    def refused(path: Any, *more: Any, **named: Any) -> int:
        if path == bad:
            raise PermissionError(13, "Permission denied")
        return really(path, *more, **named)

    monkeypatch.setattr(folders, "whole", lambda path: None)
    monkeypatch.setattr(folders.os, "open", refused)
    pipe = ost.io.images(str(root)).on_error("skip").decode().batch(6).to("numpy")
    assert len(next(pipe.epoch(0))) == 5
    assert "permission denied" in pipe.faults()[0].reason


def test_mutated_files_in_pipes_never_crash(tmp_path: Path) -> None:
    """And which of them are left out depends on no thread."""
    root, rng = folder(tmp_path, 60), np.random.default_rng(3)
    for path in sorted(root.rglob("*.jpg"))[::3]:
        data = bytearray(path.read_bytes())
        for _ in range(30):
            data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
        path.write_bytes(data[: int(rng.integers(1, len(data)))])

    def pipe(threads: int, do: str) -> Pipe:
        made = ost.io.images(str(root), labels="folder").shuffle(seed=5).decode()
        made = made.random_resized_crop(16).on_error(do, most=1).batch(16).to("numpy")
        return made.run_with(threads=threads)

    for do in ("skip", "replace"):
        one, four = pipe(1, do), pipe(4, do)
        same(joined(one.epoch(0)), joined(four.epoch(0)))
        assert one.faults() == four.faults()
        assert 10 <= len(one.faults()) <= 20


# -- what cannot be put together ---------------------------------------------------------------
def batches(samples: Any) -> Pipe:
    return ost.io.samples(samples).batch(2).to("numpy")


def test_samples_that_do_not_go_together_are_told() -> None:
    images = [{"image": np.zeros((8 + k, 9, 3), "u1"), "label": k} for k in range(2)]
    line = batches.__code__.co_firstlineno + 1
    with pytest.raises(SampleError) as caught:
        list(batches(images).epoch(0))
    assert str(caught.value).endswith(
        f"test_faults.py:{line}): got a sample of image uint8[9, 9, 3], label int64[] (sample 1); "
        "needed one of image uint8[8, 9, 3], label int64[], as the first of its batch (sample 0); bring "
        "them to one shape with resize or center_crop, fill arrays up with batch(pad=0), or take samples "
        "that are about as long together with bucket."
    )
    with pytest.raises(SampleError, match="give samples the same fields with map, before `batch`"):
        list(batches([{"a": 1}, {"b": 1}]).epoch(0))
    raw = [{"image": b"JPEG", "label": 1}] * 2
    with pytest.raises(
        SampleError,
        match=r"in mixup \(.*: got images of type bytes, .*; needed arrays; write decode\(\) before `batch`",
    ):
        list(batches(raw).mixup(0.2).epoch(0))
    with pytest.raises(
        SampleError,
        match=r"in random_flip .*image of type bytes, which is no array; .* before it\.",
    ):
        list(ost.io.samples(raw).random_flip().batch(2).to("numpy").epoch(0))
    with pytest.raises(
        ArgumentError, match=r"mixup.*: got samples of data; needed image or volume"
    ):
        list(batches([[1], [2]]).mixup(0.2).epoch(0))
