"""Image files to batches: decoding, random crops, flips, normalising, by two threads or processes.

What is reported is the time of an image, and what processors spent on it, which says more on a machine that
others use, too. The files are made here: 500 x 375, JPEG of quality 90, with the
spectrum of photographs. All loaders shuffle, decode with libjpeg-turbo's accurate transform, crop and
resize to 224, mirror, normalise to float32 with channels in front, and make batches of 128.

`threads` is what one would write by hand: threads that make whole batches with simplejpeg and OpenCV. The
loaders of Python (torch, Grain, SPDL) run the same function; TensorFlow has operations of its own, and
decodes only what a crop needs, too. `one core` is our stages in a loop, without a pipe. Slabs of volumes
are in slabs.py, a training step that is fed in fed.py."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .fed import TRAIN
from .photographs import AGAIN, BATCH, FEEDS, MEAN, SIZE, STD, files, label
from .runner import family
from .slabs import VOLUMES
from .workload import Case, Numbers, Workload

ROUND = 4  # batches of one iteration
THREADS = 2


# -- what people write by hand ------------------------------------------------------------------
@functools.cache
def table() -> Numbers:
    x = np.arange(256, dtype=np.float32)[:, None] / 255
    return ((x - np.array(MEAN)) / np.array(STD))[None].astype(np.float32)


def augmented(
    path: str,
    rng: np.random.Generator,
    out: Numbers | None,
    u8: bool,
    kept: Mapping[str, Numbers] | None = None,
) -> Numbers:
    """One image, by simplejpeg and OpenCV; or from memory."""
    import cv2
    import simplejpeg

    if kept is not None:
        x = kept[path]
    else:
        with open(path, "rb") as file:
            x = simplejpeg.decode_jpeg(file.read())
    height, width = x.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        h = w = min(height, width)
    top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    x = cv2.resize(x[top : top + h, left : left + w], (SIZE, SIZE))
    if rng.random() < 0.5:
        x = cv2.flip(x, 1)
    if u8:
        found = x
    else:
        found = cv2.LUT(x, table()).transpose(2, 0, 1)
    if out is None:
        return np.ascontiguousarray(found)
    out[...] = found
    return out


def form(u8: bool) -> tuple[tuple[int, ...], Any]:
    return ((SIZE, SIZE, 3), np.uint8) if u8 else ((3, SIZE, SIZE), np.float32)


Batches = Iterator[tuple[Any, Any]]


def by_threads(
    u8: bool, threads: int = THREADS, kept: Mapping[str, Numbers] | None = None
) -> Batches:
    """Each thread makes whole batches; a queue holds a few."""
    import cv2

    cv2.setNumThreads(1)
    ready: queue.Queue[Any] = queue.Queue(2)
    paths, (shape, dtype) = files(), form(u8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while True:
            chosen = rng.integers(0, len(paths), BATCH)
            x = np.empty((BATCH, *shape), dtype)
            y = np.array([label(paths[k]) for k in chosen])
            for row, k in zip(x, chosen, strict=True):
                augmented(paths[k], rng, row, u8, kept)
            ready.put((x, y))

    for k in range(threads):
        threading.Thread(target=work, args=(k,), daemon=True).start()
    while True:
        yield ready.get()


# -- loaders -----------------------------------------------------------------------------------
def by_ostinato(u8: bool, threads: int = THREADS) -> Batches:
    import ostinato as ost

    paths = files()
    made = ost.io.images(paths, labels=[label(p) for p in paths]).shuffle(seed=1).repeat(AGAIN)
    made = made.decode().random_resized_crop(SIZE, antialias=False).random_flip()
    made = made if u8 else made.normalize(MEAN, STD)
    pipe = made.batch(BATCH).to("numpy").run_with(threads=threads)
    yield from pipe.epoch(0)


def by_cache(u8: bool, threads: int = THREADS) -> Batches:
    """From the second epoch on, of images that are kept decoded."""
    import ostinato as ost

    paths = files()
    made = ost.io.images(paths, labels=[label(p) for p in paths]).decode().cache(4 << 30)
    made = made.repeat(AGAIN).random_resized_crop(SIZE, antialias=False).random_flip()
    made = made if u8 else made.normalize(MEAN, STD)
    pipe = made.batch(BATCH).to("numpy").run_with(threads=threads)
    batches = pipe.epoch(0)
    for _ in range(len(paths) // BATCH + 1):
        next(batches)
    yield from batches


def by_threads_from_memory(u8: bool) -> Batches:
    import simplejpeg

    kept = {p: simplejpeg.decode_jpeg(Path(p).read_bytes()) for p in files()}
    return by_threads(u8, kept=kept)


def by_stages(u8: bool) -> Batches:
    """Our stages in a loop: the rate of one core."""
    from ostinato.io_pipeline.feed.folders import content
    from ostinato.io_pipeline.feed.sample_draws import Draws
    from ostinato.io_pipeline.images.decode import Decode
    from ostinato.io_pipeline.images.finish import Normalize
    from ostinato.io_pipeline.images.geometry import RandomFlip, RandomResizedCrop

    decode, crop, flip, finish = (
        Decode(),
        RandomResizedCrop(SIZE),
        RandomFlip(),
        Normalize(MEAN, STD),
    )
    paths, (shape, dtype) = files(), form(u8)
    draws, rng = Draws(1, 0), np.random.default_rng(0)
    memory = [np.empty((BATCH, *shape), dtype) for _ in range(2)]
    while True:
        chosen = rng.integers(0, len(paths), BATCH)
        memory.reverse()
        for row, k in zip(memory[0], chosen, strict=True):
            data, _ = content(paths[k])
            shape = decode.extents(data) or ()
            drawn = crop.draw(draws.seek(int(k), 0), shape)
            window, within = crop.window(drawn, shape)
            x = decode.part(data, shape, window)
            if x is None:
                x, within = decode.image(np, data, None), drawn
            x = crop.image(np, x, within)
            x = flip.image(np, x, flip.draw(draws.seek(int(k), 1), x.shape))
            if u8:
                row[...] = x
            else:
                finish.image(np, x, None, out=row)
        yield memory[0], chosen


def by_torch(u8: bool, workers: int) -> Batches:
    import cv2
    import torch  # type: ignore[import-not-found, unused-ignore]

    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    paths = files()

    class Images(torch.utils.data.Dataset):  # type: ignore[misc, name-defined, unused-ignore]
        rng: Any = None

        def __len__(self) -> int:
            return len(paths) * 1000

        def __getitem__(self, k: int) -> Any:
            self.rng = self.rng or np.random.default_rng()
            path = paths[k % len(paths)]
            return torch.from_numpy(augmented(path, self.rng, None, u8)), label(path)

    loader = torch.utils.data.DataLoader(
        Images(), BATCH, shuffle=True, num_workers=workers, drop_last=True
    )
    while True:
        yield from loader


def by_tensorflow(u8: bool) -> Batches:
    import tensorflow as tf  # type: ignore[import-not-found, import-untyped, unused-ignore]

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    paths = files()

    def load(path: Any, y: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros((1, 0, 4)), min_object_covered=0.0, area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.concat([begin[:2], size[:2]], 0)
        x = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_ACCURATE")
        x = tf.image.random_flip_left_right(tf.image.resize(x, (SIZE, SIZE)))
        if u8:
            return tf.cast(tf.round(x), tf.uint8), y
        return tf.transpose((x / 255.0 - MEAN) / STD, (2, 0, 1)), y

    made = tf.data.Dataset.from_tensor_slices((paths, [label(p) for p in paths]))
    made = made.shuffle(len(paths)).repeat().map(load, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = THREADS
    for x, y in (
        made.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options)
    ):
        yield x.numpy(), y.numpy()


def by_grain(u8: bool, processes: int) -> Batches:
    import cv2
    import grain  # type: ignore[import-not-found, unused-ignore]

    cv2.setNumThreads(1)

    def load(path: str, rng: np.random.Generator) -> Any:
        return augmented(path, rng, None, u8), label(path)

    made = grain.MapDataset.source(files()).seed(1).shuffle().repeat(1000).random_map(load)
    options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=2 * BATCH)
    stream = made.to_iter_dataset(options).batch(BATCH, drop_remainder=True)
    if processes:
        from absl import flags  # type: ignore[import-untyped, import-not-found, unused-ignore]

        flags.FLAGS.mark_as_parsed()  # which absl's own programs do
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    yield from stream


def by_spdl(u8: bool) -> Batches:
    import cv2
    from spdl.pipeline import (  # type: ignore[import-not-found, unused-ignore]
        PipelineBuilder,
    )

    cv2.setNumThreads(1)
    paths, rng = files(), np.random.default_rng(0)
    local = threading.local()

    def source() -> Iterator[str]:
        while True:
            yield from (paths[k] for k in rng.permutation(len(paths)))

    def load(path: str) -> Any:
        own = local.rng = getattr(local, "rng", None) or np.random.default_rng()
        return augmented(path, own, None, u8), label(path)

    def collate(rows: list[Any]) -> Any:
        return np.stack([x for x, _ in rows]), np.array([y for _, y in rows])

    builder = PipelineBuilder().add_source(source()).pipe(load, concurrency=THREADS)
    pipeline = builder.aggregate(BATCH).pipe(collate).add_sink(2).build(num_threads=THREADS + 1)
    with pipeline.auto_stop():
        yield from pipeline


# -- cases -------------------------------------------------------------------------------------
def cpu() -> float:
    """Seconds that this process and all that came of it have computed so far."""
    ticks = 0
    for process in family(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Feed:
    """A loader that is asked for batches, without end."""

    batches: Batches
    images: int = 0
    seconds: float = 0.0  # of processors

    def check(self, u8: bool) -> Numbers:
        """The form of a batch, and that its numbers are what they should be, about."""
        x, y = next(self.batches)
        x, y = np.asarray(x), np.asarray(y)
        dtype = form(u8)[1]
        middle, spread = float(x.mean()), float(x.std())
        wanted = (118.0, 50.0) if u8 else (0.0, 1.0)
        good = x.dtype == dtype and y.shape == (BATCH,)
        good &= abs(middle - wanted[0]) < 0.3 * wanted[1] and 0.6 < spread / wanted[1] < 1.4
        return np.array([*x.shape, float(good)])

    def loop(self, n: int) -> None:
        begin = cpu()
        for _ in range(n * ROUND):
            next(self.batches)
        self.images += n * ROUND * BATCH
        self.seconds += cpu() - begin

    def note(self) -> str:
        return f"{self.seconds / max(self.images, 1) * 1e3:.2f} ms of processors"


def case(make: Callable[[bool], Batches], u8: bool = False) -> Callable[[], Case]:
    def ready() -> Case:
        feed = Feed(make(u8))
        return Case(lambda: feed.check(u8), feed.loop, per=ROUND * BATCH, note=feed.note)

    return ready


def busy(make: Callable[[bool], Batches]) -> Callable[[], Case]:
    """The main thread computes in Python meanwhile, and another one takes the batches."""

    def ready() -> Case:
        feed = Feed(make(False))
        turns: list[float] = []

        def loop(n: int) -> None:
            taker = threading.Thread(target=feed.loop, args=(n,))
            begin, count = time.perf_counter(), 0
            taker.start()
            while taker.is_alive():
                for _ in range(1000):
                    count += 1
            turns.append(count / (time.perf_counter() - begin))

        def alone() -> float:
            begin, count = time.perf_counter(), 0
            while time.perf_counter() - begin < 0.2:
                for _ in range(1000):
                    count += 1
            return count / 0.2

        rate = alone()

        def note() -> str:
            return f"the main thread has {np.median(turns) / rate:.0%} of its rate alone"

        return Case(lambda: feed.check(False), loop, per=ROUND * BATCH, note=note)

    return ready


# -- the tuner ---------------------------------------------------------------------------------
LATENCY = 0.003  # seconds, as of a store behind a network
SMALL = 32  # images of a batch here
SOON, LAPS = 40, 200  # batches after which what it runs with is compared with the best
TRIED = [(t, c) for t in range(1, 4 * THREADS + 1) for c in (1, 2, 4, 8, 16, 32)]


def far(x: Any) -> Any:
    time.sleep(LATENCY)
    return x


def from_afar(**how: Any) -> Any:
    import ostinato as ost

    paths = files()
    made = ost.io.images(paths, labels=[label(p) for p in paths]).shuffle(seed=1).repeat(AGAIN)
    made = (
        made.map(far, on="image").decode().random_resized_crop(SIZE, antialias=False).random_flip()
    )
    return made.normalize(MEAN, STD).batch(SMALL).to("numpy").run_with(**how)


Way = tuple[int, int]  # threads, chunk


def compared(ways: list[Way], rounds: int) -> dict[Way, float]:
    """Seconds of a batch for each of them, in turns: the least that a round has seen."""
    found = dict.fromkeys(ways, np.inf)
    with from_afar(tune=False, threads=THREADS).epoch(0) as epoch:
        next(epoch)
        for k in range(rounds):
            for t, c in ways[:: (1, -1)[k % 2]]:
                epoch._work.run_with(t, c, 4 * epoch._work.batch_bytes)
                for _ in range(4):
                    next(epoch)
                begin = time.perf_counter()
                for _ in range(8):
                    next(epoch)
                found[t, c] = min(found[t, c], (time.perf_counter() - begin) / 8)
    return found


def searched() -> Way:
    """The best of all threads and chunks; those that come near it are compared again."""
    times = compared(TRIED, 2)
    few = sorted(times, key=lambda way: times[way])[:5]
    again = compared(few, 6)
    return min(few, key=lambda way: again[way])


def tuned(how: str) -> Callable[[], Case]:
    """As a pipe begins; as the tuner runs it after `LAPS` batches; as the best of all that were tried."""

    def ready() -> Case:
        from ostinato import settings

        settings.tune = "on"
        if how == "as it begins":
            return made(from_afar(tune=False).epoch(0), "")
        t, c = best = searched()
        if how == "best of all":
            said = f"{t} threads, chunk {c}"
            return made(from_afar(tune=False, threads=t, chunk=c).epoch(0), said)
        epoch, ways = from_afar().epoch(0), []
        for _ in range(LAPS):
            next(epoch)
            ways.append((epoch._work.active, epoch._work.chunk))
        marks = [way for way in (ways[SOON - 1], ways[-1]) if way != best]
        times = compared([best, *dict.fromkeys(marks)], 8)
        told = [
            f"after {n} batches {way[0]} threads, chunk {way[1]}: {times[way] / times[best]:.2f} of "
            "the best's time"
            for n, way in ((SOON, ways[SOON - 1]), (LAPS, ways[-1]))
        ]
        said = "; ".join(told)
        return made(epoch, said)

    def made(epoch: Any, said: str) -> Case:
        def loop(n: int) -> None:
            for _ in range(n * ROUND):
                next(epoch)

        def answer() -> Numbers:
            x, y = next(epoch)
            return np.array([*x.shape, *y.shape])

        return Case(answer, loop, per=ROUND * SMALL, note=lambda: said)

    return ready


def loaders(kind: Callable[..., Callable[[], Case]], **more: Any) -> dict[str, Callable[[], Case]]:
    return {
        "ostinato": kind(by_ostinato, **more),
        "threads": kind(by_threads, **more),
        "torch/1 worker": kind(lambda u8: by_torch(u8, 1), **more),
        "torch/2 workers": kind(lambda u8: by_torch(u8, 2), **more),
        "torch/3 workers": kind(lambda u8: by_torch(u8, 3), **more),
        "tensorflow": kind(by_tensorflow, **more),
        "grain/threads": kind(lambda u8: by_grain(u8, 0), **more),
        "grain/2 processes": kind(lambda u8: by_grain(u8, 2), **more),
        "spdl": kind(by_spdl, **more),
    }


def expected(u8: bool) -> Callable[[], Numbers]:
    return lambda: np.array([BATCH, *form(u8)[0], 1.0])


WORKLOADS = (
    Workload(
        "jpeg",
        "files to batches of 128 x 3 x 224 x 224 float32; time of an image",
        expected(False),
        {
            **loaders(case),
            "ostinato/1 thread": case(lambda u8: by_ostinato(u8, 1)),
            "one core": case(by_stages),
            "threads/1 thread": case(lambda u8: by_threads(u8, 1)),
        },
        seconds=12.0,
        systems=FEEDS,
    ),
    Workload(
        "jpeg_u8",
        "the same to 128 x 224 x 224 x 3 uint8",
        expected(True),
        loaders(case, u8=True),
        seconds=12.0,
        systems=FEEDS,
    ),
    Workload(
        "busy",
        "`jpeg` while the main thread runs Python",
        expected(False),
        {k: v for k, v in loaders(busy).items() if k.split("/")[0] not in ("tensorflow",)},
        seconds=12.0,
        systems=FEEDS,
    ),
    Workload(
        "tune",
        "files with 3 ms of latency to batches of 32: what the tuner finds, and after how many batches",
        lambda: np.array([SMALL, 3, SIZE, SIZE, SMALL]),
        {f"ostinato/{k}": tuned(k) for k in ("as it begins", "tuned", "best of all")},
        seconds=8.0,
        systems=FEEDS,
    ),
    Workload(
        "epoch2",
        "`jpeg` from the second epoch on, of images that are kept decoded in memory",
        expected(False),
        {
            "ostinato": case(by_cache),
            "ostinato/1 thread": case(lambda u8: by_cache(u8, 1)),
            "threads": case(by_threads_from_memory),
        },
        seconds=12.0,
        systems=FEEDS,
    ),
    *VOLUMES,
    TRAIN,
)
