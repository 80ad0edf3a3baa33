"""`python -m tests.trust.fresh FOLDER WHICH OF EVERY`: pipes of pairs of stages, each as if nothing had been made
yet, by threads that all come to it at once.

What is made once is forgotten before each pipe, and again while its threads run, and garbage is collected: who
has the address of code or of a table has to hold it. Of the pairs, those of this process are run; a line says
how many were, with the number of those that were refused, as a stage's dtype may not suit the next one."""

from __future__ import annotations

import gc
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.io_pipeline import images, volumes  # noqa: F401, whose stages are known then
from ostinato.io_pipeline.feed.stage import STAGES
from ostinato.ops.core import signals
from ostinato.ops.cpu.jit import code

import ostinato as ost
from ostinato.errors import OstinatoError

SIZES = {"center_crop": 24, "random_crop": (20, 24), "random_resized_crop": 20, "resize": (28, 24)}
GIVEN: dict[str, dict[str, Any]] = {
    **{name: {"size": size} for name, size in SIZES.items()},
    **{name: {"size": (4, 5, 6)} for name in ("center_crop3d", "random_crop3d")},
    **{name: {"factor": 1.4} for name in ("brightness", "contrast", "saturation", "sharpness")},
    "hue": {"shift": 0.1},
    "gamma": {"gamma": 0.8},
    "posterize": {"bits": 4},
    "solarize": {"threshold": 99},
    "rotate": {"angle": 10.0},
    "random_rotate": {"degrees": 15.0},
    "pad": {"pixels": 3},
}
NATIVE = {
    *SIZES,
    "random_flip",
    "normalize",
}  # which machine code does one after the other, by one call
READ = [{}, {"channels": 1}, {"scale": "fast"}]
Pair = tuple[str, str]


def pairs() -> list[Pair]:
    """Of stages that may stand behind each other, in an order that spreads those of one stage."""
    of_images = [n for n, k in STAGES.items() if "image" in k.needs and n != "decode"]
    of_volumes = [n for n, k in STAGES.items() if k.needs == ("volume",)]
    both = [*itertools.product(of_images, of_images), *itertools.product(of_volumes, of_volumes)]
    made = [(a, b) for a, b in both if STAGES[a].batched <= STAGES[b].batched]
    made = [made[k * 577 % len(made)] for k in range(len(made))]  # a prime
    return sorted(made, key=lambda pair: not {*pair} <= NATIVE)


def share(which: int, of: int, every: int) -> list[tuple[int, Pair]]:
    """Those of a process, with their numbers, which say how they are read and by how many threads. Only some
    of those that are not machine code's alone."""
    own = [(k, pair) for k, pair in enumerate(pairs()) if k % of == which]
    return [(k, pair) for n, (k, pair) in enumerate(own) if {*pair} <= NATIVE or n % every == 0]


def pipe_of(k: int, pair: Pair, files: list[str]) -> Any:
    if "volume" in STAGES[pair[0]].needs and "image" not in STAGES[pair[0]].needs:
        volumes = np.random.default_rng(0).random((8, 6, 7, 8, 1)).astype(np.float32)
        pipe = ost.io.arrays(volumes, kinds=["volume"])
    else:
        pipe = ost.io.images(files, labels=[0] * len(files)).decode(**READ[k % len(READ)])
    is_batched = False
    for name in pair:
        stage = STAGES[name](**GIVEN.get(name, {"classes": 2} if STAGES[name].batched else {}))
        if stage.batched and not is_batched:
            pipe, is_batched = pipe.batch(4), True
        pipe = pipe.then(stage)
    pipe = pipe if is_batched else pipe.batch(4)
    return pipe.to("numpy").run_with(threads=2 + k % 3, chunk=1, tune=False)


def forget() -> None:
    """Leave of what was made only what is held, and something else where the rest was."""
    for made in gc.get_objects():
        if isinstance(made, code.once):
            made.cache_clear()
    gc.collect()
    signals.clear()
    for words in range(1, 64):
        np.full(words, 1, np.int64)


def bits(pipe: Any, forgets: bool) -> list[bytes]:
    found = []
    for batch in pipe.epoch(0):
        found += [np.asarray(x).tobytes() for x in (batch if isinstance(batch, tuple) else [batch])]
        if forgets:
            forget()
    return found


def main(folder: str, *told: str) -> None:
    sys.setswitchinterval(1e-4)
    gc.freeze()  # what there is by now need not be looked at again and again
    files = sorted(map(str, Path(folder).glob("*.jpg")))
    own, refused = share(*map(int, told)), 0
    for k, pair in own:
        forget()
        try:
            found = bits(pipe_of(k, pair, files), True)
            assert found == bits(pipe_of(k, pair, files), False), pair
        except OstinatoError:
            refused += 1
    print(len(own), refused)


if __name__ == "__main__":
    main(*sys.argv[1:])
