"""Stages that are made where batches are taken: the same bits, within the plan of who takes them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline.feed.later import can_move
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.stage import STAGES
from ostinato.io_pipeline.tuner.drive import Drive
from ostinato.io_pipeline.tuner.feed_tuner import Measure
from ostinato.ops.core.device import DEVICES

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, SampleError
from tests.fake_device import KERNELS
from tests.io_pipeline.stages import drawn_for
from tests.sessions import JOB, use

COUNT, BATCH = 22, 8
r = np.random.default_rng(3)
IMAGES = r.integers(0, 256, (COUNT, 12, 16, 3), np.uint8)
MASKS = r.integers(0, 5, (COUNT, 12, 16))
VOLUMES = r.integers(0, 256, (COUNT, 6, 7, 8), np.uint8)
BOXES = np.tile(np.array([[1, 2, 9, 8]], np.float32), (COUNT, 1, 1))
LABELS = np.arange(COUNT)
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)


def images() -> Pipe:
    return ost.io.arrays(IMAGES, LABELS, kinds=["image", "label"]).shuffle(seed=5)


def bytes_of(pipe: Pipe, epoch: int = 1, **how: Any) -> list[list[tuple[Any, ...]]]:
    return [
        [(np.asarray(x).tobytes(), x.shape, np.dtype(x.dtype)) for x in batch]
        for batch in pipe.epoch(epoch, **how)
    ]


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
def test_the_same_bits(layout: str, dtype: str, tail: str) -> None:
    pipe = images().random_flip().random_flip(0.3, vertical=True).center_crop(10)
    pipe = pipe.normalize(MEAN, STD, dtype, layout).batch(BATCH, tail=tail)
    wanted = bytes_of(pipe)
    assert len(wanted) == COUNT // BATCH + (tail != "drop")
    for names in (
        (),
        ("normalize",),
        ("center_crop", "normalize"),
        ("random_flip", "random_flip", "center_crop", "normalize"),
    ):
        assert bytes_of(pipe.on_device(*names)) == wanted
    parts = [bytes_of(pipe.on_device(), part=(k, 2)) for k in range(2)]
    assert parts == [bytes_of(pipe, part=(k, 2)) for k in range(2)]


@pytest.mark.parametrize("batch", [True, False])
def test_what_goes_with_images(batch: bool) -> None:
    """Masks move as images do; other libraries, and single samples, are made on the host."""
    source = ost.io.arrays(IMAGES, MASKS, kinds=["image", "mask"]).shuffle(seed=5)
    pipe = source.center_crop(10).random_flip().normalize(MEAN, STD)
    pipe = pipe.batch(BATCH) if batch else pipe
    assert bytes_of(pipe.on_device()) == bytes_of(pipe)
    assert bytes_of(pipe.on_device().to("numpy")) == bytes_of(pipe)


def test_volumes() -> None:
    source = ost.io.arrays(VOLUMES, VOLUMES, kinds=["volume", "mask"]).shuffle(seed=5)
    pipe = source.random_flip3d(axes=(2, 0)).batch(BATCH)
    assert bytes_of(pipe.on_device("random_flip3d")) == bytes_of(pipe)


def test_samples_that_are_left_out() -> None:
    """Numbers are drawn for those that stayed."""

    def made(x: Any) -> Any:
        if not x.sum() % 3:
            raise ValueError("a bad one")
        return x

    pipe = images().map(made, on="image").on_error("skip", most=1).random_flip().batch(BATCH)
    found = bytes_of(pipe.on_device("random_flip"))
    assert found == bytes_of(pipe)
    assert any(batch[0][1][0] < BATCH for batch in found)


@pytest.mark.parametrize("workers", [1, 2])
def test_within_the_plan_of_a_step(workers: int) -> None:
    """uint8 is what the plan is given, and there is no other plan."""
    pipe = images().random_flip().normalize(MEAN, STD).batch(BATCH, drop_last=True)
    with ost.connect(workers=workers) as session:
        wanted = [np.asarray(x) for x, _ in pipe.epoch(0)]

        @ost.compile
        def step(w: Any, batch: Any) -> Any:
            return (batch["x"] * w).sum(axis=(1, 2, 3)), batch["x"], batch["y"] + 1

        w = ost.asarray(np.float32([2.0]))
        before = set(session.plans.plans)
        for (x, y), was in zip(pipe.on_device().epoch(0), wanted, strict=True):
            assert (x.shape, x.dtype) == (was.shape, was.dtype)
            sums, again, _ = step(w, {"x": x, "y": y})
            assert np.asarray(again).tobytes() == was.tobytes()
            np.testing.assert_allclose(sums, 2 * was.sum((1, 2, 3)), rtol=1e-4)
        assert len(step.entries) == 1
        assert step.plan.names[:4] == ("w", "batch['x']", "batch['x'][random_flip]", "batch['y']")
        assert [str(s.dtype) for s in step.plan.traced.inputs[1:3]] == ["uint8", "bool"]
        made = [p for k, p in session.plans.plans.items() if k not in before]
        assert [p.called for p in made if p.called] == ["step"]
        assert not any("uint8" in map(str, p.traced.inputs) for p in made if not p.called)


def test_a_step_that_is_given_its_batch() -> None:
    """What is given away is made before, since its memory is to be used again."""
    pipe = images().normalize(MEAN, STD).batch(BATCH, drop_last=True)

    @ost.compile(donate="x")
    def step(x: Any) -> Any:
        return x * 2

    wanted = [2 * np.asarray(x) for x, _ in pipe.epoch(0)]
    for (x, _), was in zip(pipe.on_device().epoch(0), wanted, strict=True):
        np.testing.assert_array_equal(step(x), was)
    assert str(step.plan.traced.inputs[0].dtype) == "float32"


def test_a_batch_is_an_array_like_any_other() -> None:
    pipe = images().random_flip().normalize(MEAN, STD).batch(BATCH, drop_last=True)
    wanted = [np.asarray(x) for x, _ in pipe.epoch(0)]

    @ost.compile
    def mean(x: Any) -> Any:
        return x.mean()

    def around(x: Any) -> Any:
        return ost.compile(lambda t: (t + x).sum())(ost.zeros(1, dtype="float32"))

    for (x, y), was in zip(pipe.on_device().epoch(0), wanted, strict=True):
        lazy = x * 2 + y.reshape((-1, 1, 1, 1))
        assert float(mean(x)) == float(mean(ost.asarray(was)))
        np.testing.assert_allclose(float(around(x)), was.sum(), rtol=1e-3)
        slope = ost.grad(lambda v: (v * v).sum())(x)
        np.testing.assert_array_equal(slope, 2 * was)
        np.testing.assert_array_equal(x, was)
        assert float(mean(x)) == float(mean(ost.asarray(was)))  # now that it has its value
        np.testing.assert_array_equal(lazy, was * 2 + np.asarray(y).reshape((-1, 1, 1, 1)))


def test_a_changed_stage_is_another_plan() -> None:
    @ost.compile
    def step(x: Any) -> Any:
        return x + 0

    for mean in (0.25, 0.5, 0.25):
        pipe = images().normalize(mean, STD).batch(BATCH, drop_last=True)
        (x, _), *_ = pipe.on_device().epoch(0)
        (was, _), *_ = pipe.epoch(0)
        assert np.asarray(step(x)).tobytes() == np.asarray(was).tobytes()
    assert len(step.entries) == 2
    assert "normalize(mean=(0.25,)" in ost.why_miss(step)


def test_places_may_change_from_run_to_run() -> None:
    pipe = images().random_flip().normalize(MEAN, STD).batch(BATCH, drop_last=True)
    there = pipe.on_device("normalize")
    assert pipe.identity() == there.identity()
    batches = iter(pipe)
    next(batches)
    there.restore(pipe.state())
    (_, labels), *_ = there
    np.testing.assert_array_equal(labels, next(batches)[1])
    assert there.stats()["later"] == ["normalize"]
    assert "normalize: in the plans of who takes batches" in there.explain()


def test_every_stage_says_the_same_in_rows() -> None:
    """With NumPy's arrays and Ostinato's."""
    made = {
        "center_crop": STAGES["center_crop"](8),  # type: ignore[call-arg]
        "normalize": STAGES["normalize"](MEAN, STD),  # type: ignore[call-arg]
        "random_flip3d": STAGES["random_flip3d"](axes=(0, 2)),  # type: ignore[call-arg]
    }
    seen = set()
    for name, kind_of in STAGES.items():
        for kind, given in (("image", IMAGES), ("mask", MASKS), ("volume", VOLUMES)):
            if not hasattr(kind_of, f"{kind}_rows"):
                continue
            stage = made[name] if name in made else kind_of()
            given = VOLUMES if name.endswith("3d") else given
            assert can_move(stage, None)
            seen.add(name)
            drawn = [drawn_for(stage, given.shape[1:], place) for place in range(COUNT)]
            method, together = stage.method(kind), stage.rows(kind)
            assert method is not None
            assert together is not None
            wanted = np.stack([method(np, x, d) for x, d in zip(given, drawn, strict=True)])
            rows = np.asarray(stage.as_rows(drawn)) if stage.is_random else None
            found = together(np, given, rows)
            there = together(ost, ost.asarray(given), None if rows is None else ost.asarray(rows))
            for x in (found, np.asarray(there)):
                assert (x.dtype, x.shape) == (wanted.dtype, wanted.shape)
                np.testing.assert_array_equal(x, wanted)
    assert seen == {"center_crop", "normalize", "random_flip", "random_flip3d"}


@dataclass(frozen=True)
class Doubling(ost.io.Stage):
    """A user's own, which says nothing of devices."""

    name = "doubling"

    def image(self, xp: Any, x: Any, drawn: Any) -> Any:
        return x * 2


def test_what_cannot_be_there() -> None:
    with pytest.raises(
        ArgumentError, match="got doubling of random_flip, doubling; needed the last"
    ):
        images().random_flip().then(Doubling()).on_device("doubling")
    with pytest.raises(ArgumentError, match="of which random_flip, normalize can be on a device"):
        images().resize(8).random_flip().normalize().on_device("random_flip")
    with pytest.raises(ArgumentError, match="got stages of doubling"):
        images().then(Doubling()).on_device()
    with pytest.raises(ArgumentError, match="normalize behind stages that are on a device"):
        images().random_flip().on_device().normalize()
    with pytest.raises(ArgumentError, match="cache"):
        images().normalize().on_device().cache()
    volumes = ost.io.arrays(VOLUMES, kinds=["volume"]).random_flip3d()
    with pytest.raises(ArgumentError, match="got stages that are on a device; needed volumes"):
        volumes.on_device().batch(BATCH, split="depth")
    with pytest.raises(ArgumentError, match="got parts of samples"):
        volumes.batch(BATCH, split="depth").on_device()
    boxed = ost.io.arrays(IMAGES, BOXES, kinds=["image", "boxes"])
    with pytest.raises(ArgumentError, match="on_device"):
        boxed.random_flip().on_device()
    mapped = boxed.map(lambda t: t).random_flip().batch(BATCH)
    with pytest.raises(SampleError, match=r"in random_flip.*of image, boxes cannot be on a device"):
        next(mapped.on_device().epoch())
    with pytest.raises(SampleError, match=r"in random_flip.*write this stage before"):
        next(images().normalize().random_flip().batch(BATCH).on_device("random_flip").epoch())


# -- moved while it runs -----------------------------------------------------------------------
@dataclass(frozen=True)
class Slow(ost.io.Stage):
    """Takes long on the host, and no time elsewhere; the same either way."""

    name = "slow"
    places = ("host", "device")
    exact = True

    seconds: float = 0.004

    def draw(self, rng: Any, shape: Any) -> int:
        return rng.integer(0, 100)

    def image(self, xp: Any, x: Any, drawn: Any) -> Any:
        time.sleep(self.seconds)
        return x + np.uint8(drawn)

    def as_rows(self, drawn: list[int]) -> Any:
        return np.array(drawn, np.uint8)

    def image_rows(self, xp: Any, x: Any, drawn: Any) -> Any:
        return x + drawn.reshape(-1, 1, 1, 1)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "tune", "on")
    monkeypatch.setattr(settings, "cache", tmp_path)


def movable(seconds: float = 0.004) -> Pipe:
    pipe = images().repeat(60).random_flip().then(Slow(seconds)).batch(BATCH, tail="keep")
    return pipe.run_with(threads=2, chunk=2, ahead=1 << 14)


def has_decided(pipe: Pipe) -> bool:
    drive: Any = pipe.cursor.drive
    return drive is not None and drive.tuner is not None and drive.tuner.result is not None


def test_stages_move_where_that_pays(tuned: None) -> None:
    """In the middle of an epoch, and no bit changes; the next epoch, and the next run, begin there."""
    auto, places = movable().on_device("auto"), []
    for epoch in range(10):  # on a busy machine few laps may count
        wanted, found = bytes_of(movable(0.0).run_with(tune=False), epoch), []
        for batch in auto.epoch(epoch):
            places.append(bool(auto.stats()["later"]))
            time.sleep(0.002)
            found.append([(np.asarray(x).tobytes(), x.shape, np.dtype(x.dtype)) for x in batch])
        assert found == wanted
        if places[-1] and has_decided(auto):
            break
    assert not places[0]
    assert places[-1], "\n".join(auto.stats()["decisions"])
    assert "the last stages on the device" in auto.explain()
    with auto.epoch(epoch + 1) as again:
        assert again._work.recipe.later is not None
    other = movable().on_device("auto")
    with other.epoch(1) as first:
        for x, _ in first:
            time.sleep(0.002)
            np.asarray(x)
    assert other.stats()["later"] == ["random_flip", "slow"]
    assert "remembered" in other.stats()["decisions"][0]


class Told(Drive):
    """Hears that the loop takes 3 ms and waits for nothing, whatever the clock says."""

    def _heard(self, work: Any, lap: Measure) -> None:
        super()._heard(work, replace(lap, step=0.003, wait=0.0, busy=0.001 * lap.made))


def test_stages_stay_where_it_does_not(tuned: None) -> None:
    auto = movable(0.0).on_device("auto")
    auto.cursor.drive = Told("", BATCH)
    for x, _ in auto.epoch(0):
        np.asarray(x)
        if has_decided(auto):
            break
    assert has_decided(auto)
    assert auto.stats()["later"] == []
    assert ["stays" in said for said in auto.stats()["decisions"]] == [True]


def test_moving_there_and_back_loses_no_batch() -> None:
    """Whenever it happens, whatever is under way."""
    r = np.random.default_rng(0)
    wanted = bytes_of(movable(0.0).run_with(tune=False), 3)
    for attempt in range(6):
        pipe = movable(0.0).on_device("auto")
        pipe.cursor.drive = Idle("", BATCH)
        epoch, found, place = pipe.epoch(3), [], 0
        for k, batch in enumerate(epoch):
            for _ in range(r.integers(0, 3)):
                place = 1 - place
                epoch._move(place)
            found.append([(np.asarray(x).tobytes(), x.shape, np.dtype(x.dtype)) for x in batch])
            if attempt == 5 and k == 20:
                break
        assert found == wanted[: len(found)]
        assert len(found) in (21, len(wanted))
        if attempt != 5:  # else it is let go of
            epoch.close()
        del epoch
    until = time.monotonic() + 60
    while any(t.name.startswith("ostinato-feed") for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


class Idle(Drive):
    """Decides nothing."""

    def attend(self, work: Any, move: Any = None) -> None:
        pass


def test_where_it_cannot_move_it_stays() -> None:
    """For other libraries, and where samples are regrouped, or made by processes."""
    kept = images().filter(lambda t: True).random_flip().batch(BATCH)
    apart = images().map(np.negative, on="image", processes=True).random_flip().batch(BATCH)
    for pipe in (movable().to("numpy"), kept, apart):
        recipe = pipe.on_device("auto")._recipe(1)[0]
        assert (recipe.movable, recipe.later) == (0, None)
    assert movable().on_device("auto")._recipe(1)[0].later is not None


def test_filtered_samples_are_drawn_for() -> None:
    def odd(sample: Any) -> bool:
        return bool(sample[1] % 2)

    pipe = images().filter(odd).random_flip().batch(4, tail="keep")
    found = bytes_of(pipe.on_device("random_flip"))
    assert found == bytes_of(pipe)
    assert len(found) == 3


@pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
@pytest.mark.parametrize("device", ["fake", KERNELS])
def test_what_crosses_to_a_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of uint8, and what was drawn; once, whoever takes them."""
    pipe = images().random_flip().center_crop(10).normalize(MEAN, STD).batch(BATCH, drop_last=True)
    wanted = [np.asarray(x) for x, _ in pipe.to("numpy").epoch(0)]
    crossed: list[int] = []
    memory = DEVICES[device]
    for name in ("from_host", "copy_from_host"):
        real = getattr(memory, name)

        def count(x: Any, real: Any = real) -> Any:
            crossed.append(x.nbytes)
            return real(x)

        monkeypatch.setattr(memory, name, count)

    with use((1,), device=device):
        step = ost.compile(lambda x, y: (x, y + 1))
        for where, size in ((pipe, 4 * 3 * 10 * 10), (pipe.on_device(), 3 * 12 * 16 + 1)):
            with where.epoch(0) as epoch:
                for k, ((x, y), was) in enumerate(zip(epoch, wanted, strict=True)):
                    same, _ = step(x, y)
                    if k:  # behind the first one, when constants cross; from when it is taken
                        assert sum(crossed) == BATCH * (size + 8)
                    crossed.clear()
                    assert np.asarray(same).tobytes() == was.tobytes()
        assert len(step.entries) == 2
