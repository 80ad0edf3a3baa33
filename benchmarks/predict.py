"""what was predicted against what was measured: time and memory of twelve programs.

    python -m benchmarks predict [--workload NAME,...] [--workers 1,2] [--seconds 1] [--layouts]
                                 [--share 0.5]

Workers are threads of this process. Measure the machine before, `ostinato calibrate -n 1,2`; what nobody
measured is predicted by the nominal machine. Time is that of the fastest run; memory is what a run holds
at its height, beside what was there: operands, results, the arena. With --share, a memory limit leaves
each program so much of the memory for intermediates that it would take, or the next larger share of those
in `SHARES` that it can do with. With --layouts, six computations run
with their operands in all layouts, and it is told for how many pairs that differ by more than 20 % the
faster one was predicted to be that."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost
from ostinato.errors import MemoryLimitError
from ostinato.sessions import current

Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


# -- programs ------------------------------------------------------------------------------------
def some(*shape: int, seed: int = 1, split: Any = 0) -> Any:
    return ost.random.normal(shape, seed=seed, split=split)


def k_means() -> Any:
    def lloyd(x: Any, c: Any) -> Any:
        d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
        near = ost.nn.one_hot(d.argmin(1), c.shape[0])
        moved = (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]
        return moved, d.min(1).mean()

    return lloyd, (some(200_000, 4), some(8, 4, split=None))


def logistic_regression() -> Any:
    def step(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            z = x @ w
            return ost.mean(ost.nn.softplus(z) - y * z)

        value, slope = ost.value_and_grad(loss)(w)
        return w - 0.1 * slope, value

    return step, (some(64, split=None), some(100_000, 64), some(100_000, seed=2))


def mlp() -> Any:
    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w in weights[:-1]:
            x = ost.maximum(x @ w, 0.0)
        return ((x @ weights[-1] - y) ** 2).mean()

    def step(weights: Any, x: Any, y: Any) -> Any:
        value, slopes = ost.value_and_grad(loss)(weights, x, y)
        return [w - 0.01 * g for w, g in zip(weights, slopes, strict=True)], value

    sides = (256, 512, 512, 64)
    weights = [some(a, b, split=None, seed=a) for a, b in itertools.pairwise(sides)]
    return step, (weights, some(1024, 256), some(1024, 64, seed=3))


def heat() -> Any:
    def spread(u: Any) -> Any:
        def turn(u: Any) -> Any:
            inner = u[1:-1, 1:-1]
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            return u.at[1:-1, 1:-1].set(inner + 0.2 * (around - 4 * inner))

        return ost.repeat(20, turn, u)

    return spread, (some(800, 800),)


def attention() -> Any:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5
        return ost.nn.softmax(scores, axis=-1) @ v

    return attend, tuple(some(16, 512, 64, seed=s) for s in (1, 2, 3))


def black_scholes() -> Any:
    def price(s: Any, k: Any, t: Any) -> Any:
        root = 0.3 * ost.sqrt(t)
        a = (ost.log(s / k) + (0.02 + 0.045) * t) / root
        b = a - root

        def normal(x: Any) -> Any:
            return 0.5 * (1 + ost.erf(x / 2**0.5))

        return s * normal(a) - k * ost.exp(-0.02 * t) * normal(b)

    return price, tuple(ost.exp(0.1 * some(1_000_000, seed=s)) for s in (1, 2, 3))


def covariance() -> Any:
    def gram(x: Any) -> Any:
        y = x - x.mean(0)
        return y.T @ y / x.shape[0]

    return gram, (some(20_000, 256),)


def power_iteration() -> Any:
    def largest(a: Any, v: Any) -> Any:
        def turn(v: Any) -> Any:
            y = a @ v
            return y / ost.sqrt((y * y).sum())

        return ost.repeat(20, turn, v)

    return largest, (some(1500, 1500), some(1500, split=None, seed=2))


def cholesky() -> Any:
    def solve(a: Any, b: Any) -> Any:
        return ost.linalg.solve_triangular(ost.linalg.cholesky(a), b)

    x = np.random.default_rng(1).normal(size=(768, 768)).astype(np.float32)
    a = x @ x.T / 768 + np.eye(768, dtype=np.float32)
    if not hasattr(ost.linalg, "solve_triangular"):
        return (lambda a, b: ost.linalg.solve(a, b)), (
            ost.asarray(a),
            some(768, 8, split=None),
        )
    return solve, (ost.asarray(a), some(768, 8, split=None))


def statistics() -> Any:
    def describe(x: Any) -> Any:
        return x.mean(0), x.std(0), x.min(0), x.max(0)

    return describe, (some(200_000, 32),)


def random_numbers() -> Any:
    def estimate(radius: Any) -> Any:
        x, y = (ost.random.uniform((2_000_000,), seed=s, split=0) for s in (1, 2))
        return 4 * (x * x + y * y < radius).mean()

    return estimate, (ost.asarray(np.float32(1.0)),)


def transformer() -> Any:
    heads = 8

    def norm(x: Any) -> Any:
        y = x - x.mean(-1, keepdims=True)
        return y / ost.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)

    def layer(w: Any, x: Any) -> Any:
        def split(y: Any) -> Any:
            return ost.permute_dims(ost.reshape(y, (*y.shape[:2], heads, -1)), (0, 2, 1, 3))

        y = norm(x)
        q, k, v = (split(y @ w[name]) for name in "qkv")
        scores = q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5
        found = ost.permute_dims(ost.nn.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
        x = x + ost.reshape(found, x.shape) @ w["out"]
        return x + ost.maximum(norm(x) @ w["up"], 0.0) @ w["down"]

    width = 256
    shapes = {
        **dict.fromkeys(("q", "k", "v", "out"), (width, width)),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    w = {n: some(*s, seed=k, split=None) / 16 for k, (n, s) in enumerate(shapes.items())}
    return layer, (w, some(8, 128, width))


PROGRAMS: dict[str, Make] = {
    f.__name__: f
    for f in (
        k_means,
        logistic_regression,
        mlp,
        heat,
        attention,
        black_scholes,
        covariance,
        power_iteration,
        cholesky,
        statistics,
        random_numbers,
        transformer,
    )
}


# -- layouts -------------------------------------------------------------------------------------
def products(work: Callable[..., Any], *shapes: tuple[int, ...]) -> dict[str, Make]:
    """The same with its operands in all layouts."""
    found: dict[str, Make] = {}
    for splits in itertools.product((0, 1, None), repeat=len(shapes)):

        def make(splits: Any = splits) -> Any:
            pairs = enumerate(zip(shapes, splits, strict=True))
            return work, tuple(some(*shape, seed=k, split=split) for k, (shape, split) in pairs)

        found[str(splits)] = make
    return found


RIVALS: dict[str, dict[str, Make]] = {
    "square product": products(lambda x, w: x @ w, (768, 768), (768, 768)),
    "tall product": products(lambda x, w: (x @ w).sum(0), (8192, 128), (128, 128)),
    "gram": products(lambda x: x.T @ x, (8192, 128)),
    "two layers": products(
        lambda x, up, down: ost.maximum(x @ up, 0.0) @ down, (256, 512), (512, 2048), (2048, 512)
    ),
    "softmax": products(lambda x: ost.nn.softmax(x, axis=1), (2048, 512)),
    "distances": products(
        lambda x, c: ((x[:, None, :] - c[None]) ** 2).sum(-1).min(1), (20_000, 16), (64, 16)
    ),
}
APART = 1.2  # times by which two layouts differ that have an order


def ranked(workers: int, seconds: float) -> list[tuple[str, int, int]]:
    """Of each computation: pairs of layouts that differ, and in how many the faster one was predicted to
    be that."""
    found = []
    with ost.connect(workers):
        for name, rivals in RIVALS.items():
            rows = [measure(name, seconds, make) for make in rivals.values()]
            pairs = [
                (a, b)
                for a, b in itertools.combinations(rows, 2)
                if not 1 / APART < a.measured / b.measured < APART
            ]
            right = sum((a.predicted < b.predicted) == (a.measured < b.measured) for a, b in pairs)
            found.append((name, len(pairs), right))
    return found


# -- rows ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    program: str
    workers: int
    predicted: float  # seconds
    measured: float
    predicted_bytes: int  # per worker
    measured_bytes: int

    @property
    def memory(self) -> float:
        """Predicted against measured."""
        return self.predicted_bytes / self.measured_bytes if self.measured_bytes else math.nan

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def compiled(work: Callable[..., Any], operands: Sequence[Any], share: float) -> Any:
    """The function under a memory limit, in the session in use."""
    free: Any = ost.compile(work)
    if share == 1.0:
        return free
    free(*operands)
    plan = free.plan
    for larger in (s for s in SHARES if s >= share):
        limit = plan.peak_bytes - int(plan.arena_bytes * (1 - larger))
        made: Any = ost.compile(memory_limit=limit)(work)
        with contextlib.suppress(MemoryLimitError):
            made(*operands)
            return made
    return free


def measure(name: str, seconds: float, make: Make | None = None, share: float = 1.0) -> Row:
    """In the session in use."""
    work, operands = (make or PROGRAMS[name])()
    ost.evaluate(*_arrays(operands))
    made = compiled(work, operands, share)
    end = time.perf_counter() + seconds
    best, runs = math.inf, 0
    while runs < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        made(*operands)
        best, runs = min(best, time.perf_counter() - start), runs + 1
    plan = made.plan
    return Row(name, plan.target.workers, plan.simulate().seconds, best, plan.peak_bytes, 0)


def weigh(name: str, share: float) -> int:
    """The bytes per worker that a program takes, in the session in use."""
    work, operands = PROGRAMS[name]()
    made = compiled(work, operands, share)
    made(*operands)
    held = _held(lambda: made(*operands))
    return round(held / made.plan.target.workers) + made.plan.operand_bytes if held else 0


def weighed(rows: Sequence[Row], share: float) -> list[Row]:
    """With the memory that programs take, measured in a process where all that is freed goes back to the
    system at once."""
    asked = [
        "--memory",
        "--share",
        str(share),
        "--workload",
        ",".join(dict.fromkeys(r.program for r in rows)),
    ]
    asked += ["--workers", ",".join(dict.fromkeys(str(r.workers) for r in rows))]
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks", "predict", *asked],
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 17)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = {(name, workers): n for name, workers, n in map(json.loads, child.stdout.splitlines())}
    return [replace(r, measured_bytes=found[r.program, r.workers]) for r in rows]


LEAST = 1 << 20  # bytes per worker whose prediction counts


def _held(run: Callable[[], object]) -> int:
    """The memory that runs need beside what is there, as the system counts it; 0 where it does not tell."""
    try:
        run()  # what is compiled again is not counted
        current().rest()
        _trim()
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now
        for _ in range(3):
            run()
        return _resident("VmHWM") - before
    except OSError:
        return 0


def _trim() -> None:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def _arrays(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for x in tree:
            yield from _arrays(x)
    else:
        yield tree


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'program':<20} workers   predicted    measured  ratio      memory    measured  ratio"
    ]
    lines += [
        f"{r.program:<20} {r.workers:>7}  {r.predicted * 1e3:>7.3f} ms  "
        f"{r.measured * 1e3:>7.3f} ms  {r.ratio:>5.2f}  {r.predicted_bytes / 2**20:>6.1f} MiB  "
        f"{r.measured_bytes / 2**20:>6.1f} MiB  {r.memory:>5.2f}"
        for r in rows
    ]
    for what, errors in (
        ("time", [r.error for r in rows]),
        (
            "memory of more than 1 MiB",
            [abs(r.memory - 1) for r in rows if r.measured_bytes > LEAST],
        ),
    ):
        if errors:
            middle, late = (float(np.quantile(errors, q)) for q in (0.5, 0.9))
            lines.append(f"error of {what}: median {middle:.0%}, 90th percentile {late:.0%}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks predict", description=__doc__)
    parser.add_argument("--workload", default="", help="programs, by how their names begin")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, e.g. 1,2,4")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each of them")
    parser.add_argument("--share", type=float, default=1.0, help="of the memory, e.g. 0.5")
    parser.add_argument("--layouts", action="store_true", help="which of two is faster, instead")
    parser.add_argument("--memory", action="store_true", help="only what it takes, as JSON")
    parser.add_argument("--json", action="store_true", help="one line of JSON per row")
    given = parser.parse_args(arguments)
    which = [w for w in given.workload.split(",") if w]
    names = [n for n in PROGRAMS if not which or any(n.startswith(w) for w in which)]
    if given.layouts:
        for workers in map(int, given.workers.split(",")):
            found = ranked(workers, given.seconds)
            for name, pairs, right in found:
                print(f"{name:<16} {workers} workers  {right:>4} of {pairs:>4} pairs in order")
            pairs, right = sum(n for _, n, _ in found), sum(n for _, _, n in found)
            print(f"all on {workers} workers: {right / max(pairs, 1):.0%} of {pairs} pairs")
        return 0
    rows = []
    for workers in map(int, given.workers.split(",")):
        with ost.connect(workers):
            if given.memory:
                for name in names:
                    print(json.dumps((name, workers, weigh(name, given.share))))
                continue
            rows += [measure(name, given.seconds, None, given.share) for name in names]
    if rows:
        rows = weighed(rows, given.share)
        lines = [json.dumps(asdict(row)) for row in rows]
        print("\n".join(lines) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
