"""A compiled training step that a pipe feeds, beside the same step on batches that are in memory.

The network looks at patches of 16 x 16 pixels; most of its work are matrix products. `a core each`: the step
has one thread, and the feed another one, which needs less time than the step; what the pipe costs is what the
step takes longer. `both on both`: each has two threads, so there is more to do than two processors can in the
time that the step takes alone; what to compare with is that of all work, evenly on both. Notes tell what
processors did, which holds on a machine that others use, too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .photographs import AGAIN, BATCH, FEEDS, MEAN, SIZE, STD, files, label
from .workload import Case, Numbers, Workload

SMALL = min(64, BATCH)  # images of a batch
PATCH, WIDTH, CLASSES = 16, 256, 8
PATCHES = SIZE // PATCH
KEPT = 16  # batches in memory: more than caches hold
STEPS = 3  # whose losses are compared
ROUND = 4  # steps of one iteration


def weights() -> dict[str, Numbers]:
    r = np.random.default_rng(1)
    shapes = {
        "look": (3 * PATCH**2, WIDTH),
        "mix": (PATCHES**2, PATCHES**2),
        "name": (WIDTH, CLASSES),
    }
    return {k: r.normal(0, s[0] ** -0.5, s).astype(np.float32) for k, s in shapes.items()}


def training() -> Callable[[Any, Any, Any], Any]:
    """The step: other weights, and the loss."""
    import ostinato as ost

    def network(w: Any, x: Any) -> Any:
        n, p = PATCHES, PATCH
        x = (
            x.reshape((-1, 3, n, p, n, p))
            .transpose(0, 2, 4, 1, 3, 5)
            .reshape((-1, n * n, 3 * p * p))
        )
        x = ost.nn.gelu(x @ w["look"])
        x = x + ost.nn.gelu(w["mix"] @ ost.nn.layer_norm(x))
        return ost.nn.layer_norm(x).mean(1) @ w["name"]

    @ost.compile(donate=("w",))
    def step(w: Any, x: Any, y: Any) -> Any:
        loss, slopes = ost.value_and_grad(lambda w: ost.nn.cross_entropy(network(w, x), y))(w)
        return ost.tree_map(lambda w, g: w - 0.05 * g, w, slopes), loss

    return step


def pipe(*on_device: str, threads: int = 1) -> Any:
    import ostinato as ost

    paths = files()
    made = ost.io.images(paths, labels=[label(p) for p in paths]).shuffle(seed=1).repeat(AGAIN)
    made = made.decode().random_resized_crop(SIZE).random_flip().normalize(MEAN, STD).batch(SMALL)
    made = made.run_with(threads=threads, tune=False)
    return made.on_device(*on_device) if on_device else made


def kept() -> list[Any]:
    """The first batches of the pipe, as they are in memory."""
    with pipe().epoch(0) as epoch:
        return list(itertools.islice(epoch, KEPT))


def case(feed: Callable[[], Iterator[Any]], threads: int) -> Callable[[], Case]:
    def ready() -> Case:
        import ostinato as ost

        session = ost.connect(threads=threads)
        step, batches = training(), feed()
        w = ost.tree_map(ost.asarray, weights())
        spent = {"steps": 0, "step": 0.0, "all": 0.0, "wait": 0.0}

        def run(count: int) -> list[float]:
            nonlocal w
            losses = []
            for _ in range(count):
                begin, own, all_of_it = time.perf_counter(), time.thread_time(), time.process_time()
                x, y = next(batches)
                taken = time.perf_counter()
                w, loss = step(w, x, y)
                losses.append(loss)
                session.wait()
                spent["steps"] += 1
                spent["wait"] += taken - begin
                spent["step"] += time.thread_time() - own
                spent["all"] += time.process_time() - all_of_it
            return [float(x) for x in losses]

        def answer() -> Numbers:
            found = np.array(run(STEPS))
            spent.update(dict.fromkeys(spent, 0))
            return found

        def note() -> str:
            count = max(spent["steps"], 1)
            own, everything, wait = (spent[k] / count * 1e3 for k in ("step", "all", "wait"))
            said = f"{everything:.0f} ms of processors, {everything / 2:.0f} if both had half"
            return f"{said}; its own thread {own:.0f}; waits {wait:.1f} ms"

        return Case(answer, lambda n: run(n * ROUND), per=ROUND, note=note)

    return ready


def losses() -> Numbers:
    """Of the first steps, with the data in memory."""
    return np.asarray(case(lambda: iter(kept()), 1)().answer())


def in_memory() -> Iterator[Any]:
    return itertools.cycle(kept())


TRAIN = Workload(
    "train",
    f"a training step on {SMALL} images of 3 x {SIZE} x {SIZE}, with data in memory and from files",
    losses,
    {
        "ostinato/a core each, in memory": case(in_memory, 1),
        "ostinato/a core each, fed": case(lambda: pipe().epoch(0), 1),
        "ostinato/a core each, fed uint8": case(lambda: pipe("normalize").epoch(0), 1),
        "ostinato/both on both, in memory": case(in_memory, 2),
        "ostinato/both on both, fed": case(lambda: pipe(threads=2).epoch(0), 2),
        "ostinato/both on both, fed uint8": case(lambda: pipe("normalize", threads=2).epoch(0), 2),
    },
    tolerance=1e-3,
    seconds=16.0,
    systems=FEEDS,
)
