"""Chunks of images by machine code: the bits, faults and errors of the stages' own methods."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed import file_reads, making, native
from ostinato.io_pipeline.feed.batches import Batch
from ostinato.io_pipeline.feed.chain import Sample
from ostinato.io_pipeline.feed.portions import Portion
from ostinato.io_pipeline.feed.sample_draws import Draws
from ostinato.io_pipeline.images.resizing import linear, resize_by_pillow
from ostinato.ops.cpu.jit import llvm
from PIL import Image

import ostinato as ost
from ostinato.errors import SampleError
from tests.io_pipeline.pictures import encoded, picture

ROOT = Path(__file__).resolve().parents[2]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Make = Callable[[], Any]


# -- the parts ---------------------------------------------------------------------------------
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resizing_has_the_bits_of_two_resizes_by_pillow(channels: int) -> None:
    rng = np.random.default_rng(channels)
    for k in range(120):
        most = 12 if k % 2 else 150
        shape, size = rng.integers(1, most, 2), tuple(int(n) for n in rng.integers(1, most, 2))
        x = rng.integers(0 if k % 5 else 254, 256, (*shape, channels), dtype=np.uint8)
        if k % 7 == 0:
            x = np.flip(x, k % 2)
        if x.shape[:2] != size:
            found = linear(x, size, True)
            np.testing.assert_array_equal(found, resize_by_pillow(x, size, "linear"))
            if min(np.divide(size, x.shape[:2])) >= 1:
                np.testing.assert_array_equal(linear(x, size, False), found)


def test_resizing_touches_nothing_beside_its_memory() -> None:
    """Images, results and notes that end where a page ends that nobody may touch."""
    code = """
import itertools, os, sys
from tests.trust import guard
guard.install()
import numpy as np
from ostinato.io_pipeline.images.resizing import linear
sizes = ((1, 1), (3, 2), (2, 40), (65, 5), (129, 64), (900, 3), (2, 900))
for old, new in itertools.permutations(sizes, 2):
    for channels, smooth in itertools.product((1, 3, 4), (True, False)):
        x = np.full((*old, channels), 201, np.uint8)
        assert (linear(x, new, smooth) == 201).all()
print("done", flush=True)
os._exit(0)
"""
    if llvm.why_not() or sys.platform != "linux":
        pytest.skip("there is no machine code here, or no way to ask for such memory")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-2000:]


def test_files_read_by_a_finalizer_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same thread, when the first one has been read but not copied yet."""
    first, second = (tmp_path / name for name in "ab")
    first.write_bytes(b"A" * 20)
    second.write_bytes(b"B" * 30)
    known = [file_reads.whole(str(path)) for path in (first, second)]
    if None in known:
        pytest.skip("no machine code reads files here")
    copied, seen = file_reads.ctypes.string_at, list[Any]()

    def interrupted(*given: Any) -> bytes:
        monkeypatch.setattr(file_reads.ctypes, "string_at", copied)
        seen.append(file_reads.whole(str(second)))
        return copied(*given)

    monkeypatch.setattr(file_reads.ctypes, "string_at", interrupted)
    assert [file_reads.whole(str(first)), *seen] == known


# -- whole chains ------------------------------------------------------------------------------
@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Files of many kinds, of which machine code knows most."""
    made = []
    for k in range(24):
        height, width = 40 + 7 * (k % 5), 70 - 9 * (k % 4)
        options: dict[str, Any] = {"quality": 85, "subsampling": k % 3, "progressive": k % 6 == 1}
        x, form = picture(k, height, width, channels=1 if k % 8 == 3 else 3), "JPEG"
        if k % 12 in (5, 7):
            exif = Image.Exif()
            exif[0x0112] = 6 if k % 12 == 5 else 1
            options["exif"] = exif
        if k % 12 == 9:
            form, options = "PNG", {}
        path = tmp_path / f"{k:02d}ä.jpg"
        data = encoded(x, form, **options)
        if k % 12 == 10:  # bytes that stray behind the first segment
            data = data[:20] + b"\xff\0\xc0\xff\0\0" + data[20:]
        path.write_bytes(data)
        made.append(str(path))
    return made


@pytest.fixture
def by_stages(monkeypatch: pytest.MonkeyPatch) -> Callable[[Make], list[Any]]:
    """All batches of a pipe by its stages' methods, one sample at a time."""

    def run(make: Make) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(making, "can", lambda: False)
            return list(make().epoch(1))

    return run


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places of samples that are made one at a time."""
    made: list[int] = []
    make = making.Maker._make

    def note(self: Any, batch: Any, row: int, *more: Any) -> None:
        made.append(batch.portion.places[row])
        make(self, batch, row, *more)

    monkeypatch.setattr(making.Maker, "_make", note)
    return made


CHAINS: dict[str, Callable[[Any], Any]] = {
    "resized crop": lambda p: p.decode().random_resized_crop(32).random_flip().normalize(MEAN, STD),
    "uint8": lambda p: p.decode().random_resized_crop((17, 29)).random_flip(),
    "no flip": lambda p: p.decode().random_resized_crop(24),
    "both flips": lambda p: p.decode().resize((33, 20)).random_flip().random_flip(0.5, vertical=True),
    "vertical": lambda p: p.decode().resize(19).random_flip(0.7, vertical=True).center_crop(16),
    "crop": lambda p: p.decode().random_crop(24).normalize(0.5, 0.25),
    "crop and flip": lambda p: p.decode().center_crop((21, 37)).random_flip().normalize(MEAN, STD),
    "crop of a crop": lambda p: p.decode().center_crop(34).random_crop((17, 20)).resize(16).center_crop(9),
    "resize to the shorter side": lambda p: p.decode().resize(40).center_crop(32).normalize(MEAN, STD),
    "float16": lambda p: p.decode().random_resized_crop((17, 32)).random_flip().normalize(MEAN, STD, "float16"),
    "bfloat16": lambda p: p.decode(channels=1).resize((32, 16)).random_flip().normalize(0.5, dtype="bfloat16"),
    "without antialiasing": lambda p: p.decode().resize((9, 90), antialias=False).random_flip(),
    "flips in front": lambda p: p.decode().random_flip().random_flip(0.5, vertical=True).random_crop((20, 31)).normalize(),
    "grey": lambda p: p.decode(channels=1).random_resized_crop(18).random_flip().normalize(0.5, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("labels", [True, False])
def test_chains_have_the_bits_of_their_stages(
    chain: str, labels: bool, images: list[str], by_stages: Any, single: list[int]
) -> None:
    def make() -> Any:
        given = [k % 5 for k in range(len(images))] if labels else None
        pipe = CHAINS[chain](ost.io.images(images, labels=given).shuffle(seed=3).repeat(3))
        return pipe.batch(16, tail="keep").to("numpy").run_with(threads=2, chunk=2, tune=False)

    wanted = by_stages(make)
    single.clear()
    epoch = make().epoch(1)
    found = list(epoch)
    assert len(found) == len(wanted) == 5
    for x, y in zip(found, wanted, strict=True):
        for a, b in zip(x if labels else [x], y if labels else [y], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert epoch._work.maker.native is not None
    assert len(single) < len(images) * 3 / 2  # some of the first batch, and what is odd


def test_cached_images_are_made_from_memory(
    images: list[str], by_stages: Any, single: list[int]
) -> None:
    def make() -> Any:
        pipe = ost.io.images(images, labels=list(range(24))).decode().cache()
        pipe = pipe.shuffle(seed=1).random_resized_crop(20).random_flip().normalize(MEAN, STD)
        return pipe.batch(8).to("numpy").run_with(threads=1, tune=False)

    wanted = by_stages(make)
    pipe = make()
    list(pipe.epoch(0))
    single.clear()
    for (x, y), (a, b) in zip(pipe.epoch(1), wanted, strict=True):
        np.testing.assert_array_equal(x, a)
        np.testing.assert_array_equal(y, b)
    assert len(single) <= 8 + 2  # the first batch, and the first of each, which is timed


def test_samples_may_be_in_files_or_decoded(images: list[str], by_stages: Any) -> None:
    files = [Path(p).read_bytes() for p in images]
    some = [{"image": picture(k, 50, 60) if k % 2 else files[k]} for k in range(24)]
    others = [{"image": picture(k, 50, 60, 1 + 2 * (k != 20))} for k in range(24)]
    others[19] = {"image": files[0]}
    others[21] = {"image": picture(1, 50, 60).astype(np.float32)}
    others[22] = {"image": picture(1, 50, 60)[:, ::-1]}
    others[23] = {"image": picture(1, 50, 60)[:0]}
    for items, do in ((some, lambda p: p.decode()), (others, lambda p: p)):

        def make(items: Any = items, do: Any = do) -> Any:
            pipe = do(ost.io.samples(items)).random_crop(32).random_flip().normalize(MEAN, STD)
            return pipe.on_error("skip", most=0.5).batch(6).to("numpy").run_with(threads=1)

        for x, y in zip(make().epoch(1), by_stages(make), strict=True):
            np.testing.assert_array_equal(x["image"], y["image"])


def test_files_that_change_are_faults(images: list[str]) -> None:
    """Those that are read by machine code, too."""
    pipe = CHAINS["resized crop"](ost.io.images(images)).on_error("skip", most=0.5).batch(12)
    pipe = pipe.to("numpy").run_with(threads=1, tune=False)
    assert [len(x) for x in pipe.epoch(0)] == [12, 12]
    Path(images[18]).write_bytes(Path(images[6]).read_bytes() + b"\xff\xd9")
    assert [len(x) for x in pipe.epoch(1)] == [12, 11]
    assert "another size or time than before" in pipe.faults()[0].reason


def test_one_call_for_a_chunk(images: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run = native.Run.__call__

    def note(self: Any, room: Any, keys: Any, values: Any, *more: Any) -> Any:
        calls.append(len(values))
        return run(self, room, keys, values, *more)

    monkeypatch.setattr(native.Run, "__call__", note)
    pipe = CHAINS["resized crop"](ost.io.images(images).repeat(8)).batch(16).to("numpy")
    assert len(list(pipe.run_with(threads=1, chunk=8, tune=False).epoch(0))) == 12
    assert calls[-11:] == [8 * making.AT_ONCE - 1] * 11  # the first of each batch is timed


def test_stopped_epochs_leave_their_chunks(images: list[str]) -> None:
    pipe = CHAINS["resized crop"](ost.io.images(images).repeat(9)).batch(24).to("numpy")
    epoch = pipe.run_with(threads=1, chunk=4, tune=False).epoch(0)
    next(epoch)
    work = epoch._work
    work.join()
    hand, sample = making.Hand(), Sample(Draws(1, 2))
    portion = Portion(0, [*range(24)], [*range(24)])
    assert work.assembly.form is not None
    assert work.maker.native is not None
    for stops in (False, True):
        work.is_stopped = stops
        batch = Batch(portion, 0, 24, work.assembly.form[0], [np.zeros((24, 3, 32, 32), "f4")])
        left = work.maker._make_natively(
            work.maker.native, batch, range(24), sample, hand, work.costs[0]
        )
        assert (len(left) == 24) == stops
        assert batch.slots is not None
        assert batch.slots[0].any() != stops


def test_what_has_no_machine_code_runs_as_ever(images: list[str]) -> None:
    base = ost.io.images(images).decode()
    for pipe in (
        base.resize(40).color_jitter(0.4).center_crop(32),
        base.resize((32, 32), "cubic"),
        base.map(lambda x: x, on="image").resize((32, 32)),
        base.resize((32, 32)).normalize(MEAN, STD, layout="hwc"),
        base.random_crop(24, padding=2),
        base.resize((40, 60), antialias=False).random_resized_crop(32),  # two sizes
    ):
        epoch = pipe.batch(8).to("numpy").epoch(0)
        assert len(list(epoch)) == 3
        assert epoch._work.maker.native is None


def test_large_files_get_more_room(tmp_path: Path, by_stages: Any, single: list[int]) -> None:
    rng = np.random.default_rng(0)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (1500, 2000, 3), dtype=np.uint8)).save(
        out, "JPEG", quality=95
    )
    for k in range(8):
        (tmp_path / f"{k}.jpg").write_bytes(out.getvalue())

    def make() -> Any:
        pipe = ost.io.images(str(tmp_path)).decode().resize((20, 30)).batch(2).to("numpy")
        return pipe.run_with(threads=1, chunk=1, tune=False)

    wanted = by_stages(make)
    single.clear()
    for x, y in zip(make().epoch(1), wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    assert len(single) < 6


# -- what fails --------------------------------------------------------------------------------
def damaged(images: list[str]) -> None:
    for k, path in enumerate(images):
        data = Path(path).read_bytes()
        if k % 6 == 2:
            Path(path).write_bytes((data[: len(data) // 2], b"", b"no image", data[:2])[k // 6])


@pytest.mark.parametrize("do", ["skip", "replace"])
def test_faults_are_those_of_the_stages(do: str, images: list[str], by_stages: Any) -> None:
    damaged(images)
    Path(images[10]).unlink()
    made: list[Any] = []

    def make() -> Any:
        pipe = ost.io.images(images, labels=list(range(24))).shuffle(seed=2)
        pipe = CHAINS["resized crop"](pipe).on_error(do, most=0.9).batch(6).to("numpy")
        made.append(pipe.run_with(threads=2, tune=False))
        return made[-1]

    wanted = by_stages(make)
    for x, y in zip(make().epoch(1), wanted, strict=True):
        for a, b in zip(x, y, strict=True):
            np.testing.assert_array_equal(a, b)
    faults = [
        sorted((f.place, f.name, f.stage, f.reason.split(" at 0x")[0]) for f in pipe.faults())
        for pipe in made
    ]
    assert len(faults[0]) == 5
    assert faults[0] == faults[1]


def test_machine_code_takes_no_file_that_may_take_longer_than_there_is_time(
    images: list[str], single: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(seconds: float) -> int:
        single.clear()
        pipe = (
            ost.io.images(images).decode().random_resized_crop(20).on_error("skip", timeout=seconds)
        )
        assert (
            sum(map(len, pipe.repeat(3).batch(12).to("numpy").run_with(threads=1).epoch(0))) == 72
        )
        return len(single)

    plain = made(60)
    assert plain < 36
    monkeypatch.setattr(native, "PIXELS", 40)  # in a second: the smallest are of 40 x 43 pixels
    assert plain < made(60) < 72 == made(30)


def test_errors_are_those_of_the_stages(images: list[str], by_stages: Any) -> None:
    Path(images[17]).write_bytes(Path(images[17]).read_bytes()[:400])

    def make() -> Any:
        return CHAINS["resized crop"](ost.io.images(images)).batch(8).to("numpy")

    said = []
    for run in (by_stages, lambda make: list(make().epoch(1))):
        with pytest.raises(SampleError) as caught:
            run(make)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert images[17] in said[0]


def test_mutated_files_give_the_same_by_machine_code() -> None:
    """In a process of its own: nothing crashes, and nothing is decoded that stages would refuse."""
    code = """
import sys, tempfile, os
import numpy as np
import ostinato as ost
from ostinato.io_pipeline.feed import making
from tests.io_pipeline.pictures import encoded, picture
rng = np.random.default_rng(1)
folder = tempfile.mkdtemp()
paths = []
for k in range(800):
    data = bytearray(encoded(picture(k % 7), quality=80, progressive=bool(k % 2), subsampling=k % 3))
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(0, len(data)))
        kind = rng.integers(0, 4)
        if kind == 0:
            data[at] = int(rng.integers(0, 256))
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 40))]
        elif kind == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 20)))
        else:
            del data[at:]
        if len(data) < 4:
            break
    if k % 3:
        data += b"\\xff\\xd9"
    if k % 5 == 4:  # behind the last row
        data[-2:-2] = bytes((255, 192 + k % 63, *rng.bytes(4)))
    paths.append(os.path.join(folder, f"{k}.jpg"))
    with open(paths[-1], "wb") as file:
        file.write(data)
def run(is_native):
    making.can = lambda: is_native
    pipe = ost.io.images(paths).decode(most_pixels=1 << 20).random_resized_crop(16).random_flip()
    pipe = pipe.normalize().on_error("skip", most=1.0).batch(50, tail="keep").to("numpy")
    pipe = pipe.run_with(threads=2, tune=False)
    found = [x.copy() for x in pipe.epoch(0)]
    told = [(f.place, f.stage, f.reason.split(" at 0x")[0]) for f in pipe.faults()]
    return found, sorted(told)
wanted, faults = run(False)
found, others = run(True)
same = all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
print(sum(map(len, found)), len(faults), int(same), int(faults == others))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    good, refused, same, alike = map(int, ran.stdout.split())
    assert good + refused == 800
    assert min(good, refused) > 100
    assert same == alike == 1
