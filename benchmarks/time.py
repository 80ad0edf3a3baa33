"""what limits of memory cost: training steps of networks by seconds over bytes, drawn.

    python -m benchmarks time [--models layers,alexnet,resnet18] [--dtype float64] [--batch 16] [--part 8]
                              [--image 63] [--shares 1,0.5,0.25,0.1] [--runs 5] [--save]

Scratch memory is what operations take beside operands and results. Shares are of what the step's largest one
takes where there is no limit; the first is a byte less than that.

undivided   an operation is done whole, or in a way that needs less
divided     with scratch_limit=, in parts (workspace reuse)
memory      with memory_limit=, so that scratch memory has as much beside all values (workspace division)
ladder      with shares of all memory: parts, turns, and values made again

Seconds are of the processor: the least of `--runs` runs, in turn with those of the step without a limit, and
the ratio to these. Say OMP_NUM_THREADS=1, as threads that wait take such seconds, too."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ostinato.ops.core.device import DEVICES
from ostinato.planner.passes import scratch
from ostinato.planner.plan import Plan
from ostinato.planner.tuning import divided_sites
from ostinato.planner.tuning.tuner import Budget

import ostinato as ost
from ostinato import nn, sessions, settings
from ostinato.errors import MemoryLimitError

from . import machine

RESULTS = Path(__file__).resolve().parent / "results"
LADDER = (0.9, 0.75, 0.6)
FLOOR = 1 << 18  # bytes that draws and such take, which have no parts


@dataclass(frozen=True)
class Row:
    model: str
    how: str
    limit: int | None  # of scratch memory, or of all
    scratch: int  # bytes of the largest operation's
    peak: int
    seconds: float
    ratio: float  # to the step without a limit


def network(name: str, classes: int, part: int, image: int) -> Any:
    sys.path.append(str(RESULTS.parents[1] / "examples" / "models"))
    if name == "alexnet":
        from alexnet import AlexNet

        return AlexNet(classes, part)
    if name == "layers":  # two convolutions of images, with filters of 7 x 7 and 5 x 5
        a, b = 64 // part, 128 // part
        return nn.Sequential(
            nn.Conv(3, a, 7, padding=3),
            nn.relu,
            nn.MaxPool(2),
            nn.Conv(a, b, 5, padding=2),
            nn.relu,
            nn.Flatten(),
            nn.Linear(b * (image // 2) ** 2, classes),
        )
    from resnet import resnet18

    return resnet18(classes, 64 // part)


Given = tuple[Any, Any, Any]


def step_of(model: Any) -> Callable[..., Any]:
    def step(weights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            made, _ = nn.combine(weights, model).apply(x, key=0)
            return nn.cross_entropy(made, y)

        value, slopes = ost.value_and_grad(loss)(weights)
        return ost.tree_map(lambda w, g: w - 0.01 * g, weights, slopes), value

    return step


@contextmanager
def undivided() -> Iterator[None]:
    """Operations are done whole."""
    with (
        mock.patch.object(scratch, "sizes", lambda n: [n]),
        mock.patch.object(divided_sites, "sizes", lambda n: [n]),
    ):
        yield


def most_scratch(plan: Plan) -> int:
    found = scratch.scratch_of_all(plan.program.graph, DEVICES["cpu"])
    return max((size for *_, size in found), default=0)


class Measured:
    """A step of a model without a limit, and with any."""

    def __init__(self, name: str, model: Any, operands: Sequence[Any], runs: int) -> None:
        self.name, self.operands, self.runs = name, operands, runs
        self.step = step_of(model)
        self.free = self.compiled()
        self.free(*operands)

    def compiled(self, **limits: Any) -> Any:
        return ost.compile(numerics="fast", **limits)(self.step)

    def row(self, how: str, limit: int | None, **limits: Any) -> Row:
        made = self.compiled(**limits) if limits else self.free
        made(*self.operands)
        times: dict[Any, list[float]] = {self.free: [], made: []}
        for _ in range(self.runs):
            for each in times:
                start = time.process_time()
                ost.evaluate(each(*self.operands))
                times[each].append(time.process_time() - start)
        best = {each: min(t) for each, t in times.items()}
        plan = made.plan
        ratio = best[made] / best[self.free]
        return Row(self.name, how, limit, most_scratch(plan), plan.peak_bytes, best[made], ratio)


def rows(measured: Measured, shares: Sequence[float]) -> Iterator[Row]:
    yield measured.row("no limit", None)
    need, peak = most_scratch(measured.free.plan), measured.free.plan.peak_bytes
    least = measured.compiled(scratch_limit=FLOOR).plan_for(*measured.operands).peak_bytes
    for share in shares:
        limit = max(FLOOR, int(share * need) - (share == 1))
        with undivided():  # a byte less, as the plans of one limit are one plan
            yield measured.row("undivided", limit, scratch_limit=limit - 1)
        yield measured.row("divided", limit, scratch_limit=limit)
        if least + limit < peak:
            yield measured.row("memory", least + limit, memory_limit=least + limit)
    for share in LADDER:
        try:
            yield measured.row("ladder", int(share * peak), memory_limit=int(share * peak))
        except MemoryLimitError:
            break


# -- a picture -----------------------------------------------------------------------------------
WIDE, HIGH = 300, 180  # of a frame
FRAMES = {
    "scratch memory": {"undivided": "#c0504d", "divided": "#3b6ea5"},
    "all memory": {"memory": "#5aa469", "ladder": "#d9a441"},
}
STYLE = (
    "svg{background:#fff}.frame{fill:none;stroke:#5b6b7b}.grid{stroke:#e3e7ec}"
    ".curve{fill:none;stroke-width:2}text{font:12px sans-serif}"
)


def drawn(found: Sequence[Row]) -> str:
    """Curves of each model: speed relative to no limit, over the limit relative to what that takes."""
    models, texts = list(dict.fromkeys(r.model for r in found)), list[str]()

    def write(x: float, y: float, text: str, colour: str = "#000", anchor: str = "middle") -> None:
        at = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"'
        texts.append(f"<text {at}>{text}</text>")

    for (k, model), (n, kind) in itertools.product(enumerate(models), enumerate(FRAMES)):
        free, x0, y0 = next(r for r in found if r.model == model), 60 + 380 * k, 40 + 270 * n

        def place(x: float, y: float, x0: int = x0, y0: int = y0) -> tuple[float, float]:
            return x0 + WIDE * min(x, 1.0), y0 + HIGH * (1 - min(y, 1.2) / 1.2)

        texts.append(f'<rect x="{x0}" y="{y0}" width="{WIDE}" height="{HIGH}" class="frame"/>')
        write(x0, y0 - 12, f"{model}: speed over share of {kind}", anchor="start")
        for share in (0.25, 0.5, 0.75, 1.0):
            x, y = place(share, share)
            texts.append(f'<path d="M{x0} {y}h{WIDE}M{x} {y0}v{HIGH}" class="grid"/>')
            write(x0 - 18, y + 4, f"{share:.2f}")
            write(x, y0 + HIGH + 16, f"{share:.2f}")
        for j, (how, colour) in enumerate(FRAMES[kind].items()):
            most = free.peak if kind == "all memory" else max(free.scratch, 1)
            mine = [r for r in found if (r.model, r.how) == (model, how)]
            points = [place((r.limit or 0) / most, 1 / r.ratio) for r in mine]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            texts.append(f'<polyline points="{line}" stroke="{colour}" class="curve"/>')
            marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 - 2 * j}"' for x, y in points]
            texts += [f'{mark} fill="{colour}"/>' for mark in marks]
            write(x0 + 90 * j, y0 + HIGH + 36, how, colour, "start")
    size = f'width="{60 + 380 * len(models)}" height="{20 + 270 * len(FRAMES)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    return "\n".join([head, *texts, "</svg>\n"])


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks time", description=__doc__)
    parser.add_argument("--models", default="layers,alexnet,resnet18")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--part", type=int, default=8, help="channels are divided by this")
    parser.add_argument("--image", type=int, default=63)
    parser.add_argument("--shares", default="1,0.5,0.25,0.1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--save", action="store_true", help="rows and picture, in benchmarks/results"
    )
    given = parser.parse_args(args)
    settings.read()
    sessions.budget = Budget(1e6, 20.0)
    rng, found = np.random.default_rng(0), list[Row]()
    shares = [float(share) for share in given.shares.split(",")]
    for name in given.models.split(","):
        model = network(name, 10, given.part, given.image).init(0)
        weights = ost.tree_map(
            lambda w: ost.asarray(np.asarray(w, given.dtype)), nn.parameters(model)
        )
        x = rng.standard_normal((given.batch, 3, given.image, given.image)).astype(given.dtype)
        y = rng.integers(0, 10, given.batch)
        operands = (weights, ost.asarray(x), ost.asarray(y))
        for row in rows(Measured(name, model, operands, given.runs), shares):
            limit = "" if row.limit is None else f"{row.limit / 2**20:.2f}"
            print(f"{row.model:<9} {row.how:<10} {limit:>9} MiB  scratch {row.scratch / 2**20:8.2f}  "
                  f"peak {row.peak / 2**20:8.2f}  {row.seconds * 1e3:8.1f} ms  x{row.ratio:.2f}",
                  flush=True)  # fmt: skip
            found.append(row)
    if given.save:
        about = {
            "machine": machine.versions(),
            "given": vars(given),
            "rows": [*map(asdict, found)],
        }
        (RESULTS / f"time-{given.dtype}.json").write_text(json.dumps(about, indent=1) + "\n")
        (RESULTS / f"time-{given.dtype}.svg").write_text(drawn(found))
    return 0
