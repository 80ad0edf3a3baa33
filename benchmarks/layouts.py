"""what layouts are worth: programs laid out by the planner, and by hand in four usual ways, on 2 and 4 workers.

    python -m benchmarks layouts [--workload NAME,...] [--workers 2,4] [--seconds 1] [--families]

Workers are threads of this process. Operands lie where each plan wants them before the clock starts, as
those of a program do that runs again and again: for the planner they are made with split="auto". Measure
the machine before, `ostinato calibrate -n 1,2,4`: layouts are chosen by what it can do.

data        data by rows, weights whole
model       weights by their last axis, and so what lies between; data whole
replicated  everybody does everything
column/row  weights by columns, then by rows, in turn

With --families, programs of all families of operations (families.py): where their operands lie in rows, in
columns, and whole; results are left where they are made."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ostinato as ost

from . import machine, runner
from .families import Family, families

SPLITS = {"rows": 0, "columns": -1, "whole": None}
HANDS = ("data", "model", "replicated", "column/row")
Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...], int | None]
PLACES = ((3025, 363, 96), (729, 2400, 256), (169, 2304, 384))  # of an image; inputs, outputs


# -- programs: `at` names what lies between, and may lay it out ---------------------------------------
def k_means(x: Any, c: Any, at: Any = lambda name, x: x) -> Any:
    d = at("rows", ((x[:, None, :] - c[None]) ** 2).sum(-1))
    near = ost.nn.one_hot(d.argmin(1), c.shape[0])
    return (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None]


def lasso(x: Any, y: Any, w: Any, at: Any = lambda name, x: x) -> Any:
    w = w - 0.01 * x.T @ at("vector", x @ w - y) / x.shape[0]
    return ost.sign(w) * ost.maximum(abs(w) - 0.001, 0)


def statistics(x: Any, at: Any = lambda name, x: x) -> Any:
    x = at("rows", x)
    return x.mean(0), x.std(0), x.min(0), x.max(0)


def network(ws: Any, x: Any, at: Any = lambda name, x: x) -> Any:
    for k, w in enumerate(ws[:-1]):
        x = ost.nn.relu(at("even" if k % 2 else "odd", x @ w))
    return at("last", x @ ws[-1])


def step(ws: Any, x: Any, y: Any, at: Any = lambda name, x: x) -> Any:
    found, slopes = ost.value_and_grad(lambda ws: ost.nn.mse_loss(network(ws, x, at), y))(ws)
    return ost.tree_map(lambda w, g: w - 0.1 * g, ws, slopes), found


def convolved(ws: Any, dense: Any, patches: Any, x: Any, y: Any, at: Any = lambda n, x: x) -> Any:
    """AlexNet's products: of patches, where activations are large, then of vectors, where weights are."""

    def loss(both: Any) -> Any:
        total: Any = 0.0
        for w, p in zip(both[0], patches, strict=True):
            total = total + ost.mean(ost.nn.relu(at("image", p @ w)) ** 2)
        return total + ost.nn.mse_loss(network(both[1], x, at), y)

    found, slopes = ost.value_and_grad(loss)((ws, dense))
    return ost.tree_map(lambda w, g: w - 0.1 * g, (ws, dense), slopes), found


def product(a: Any, b: Any, at: Any = lambda name, x: x) -> Any:
    return at("square", a @ b)


def attention(q: Any, k: Any, v: Any, at: Any = lambda name, x: x) -> Any:
    scores = at("scores", ost.nn.softmax(q @ ost.matrix_transpose(k) * 0.1))
    return at("attended", scores @ v)


def projected(x: Any, ws: Any, at: Any = lambda name, x: x) -> Any:
    """Attention with its projections."""

    def heads(y: Any) -> Any:
        return ost.permute_dims(ost.reshape(y, (*y.shape[:2], 16, -1)), (0, 2, 1, 3))

    q, k, v = (heads(at("heads", x @ w)) for w in ws[:3])
    y = ost.reshape(ost.permute_dims(attention(q, k, v), (0, 2, 1, 3)), x.shape)
    return at("last", x + y @ ws[3])


def heat(u: Any, at: Any = lambda name, x: x) -> Any:
    return at("rows", u[1:-1] * 0.5 + (u[:-2] + u[2:]) * 0.25)


def programs() -> dict[str, Program]:
    """Functions, the shapes of their operands, which of these are data, and how the largest results lie."""
    dense = [(2304, 1024), (1024, 1024), (1024, 250)]
    images = 4
    patches = [(images * n, k) for n, k, _ in PLACES]
    return {
        "k-means": (k_means, ((400_000, 16), (64, 16)), (0,), None),
        "lasso": (lasso, ((400_000, 100), (400_000,), (100,)), (0, 1), None),
        "statistics": (statistics, ((400_000, 100),), (0,), None),
        "small weights": (step, ([(512, 512)] * 3, (8192, 512), (8192, 512)), (1, 2), None),
        "large weights": (step, ([(4096, 4096)] * 2, (32, 4096), (32, 4096)), (1, 2), None),
        "two products": (network, ([(2048, 16_384), (16_384, 2048)], (32, 2048)), (1,), None),
        "alexnet": (
            convolved,
            ([(k, m) for _, k, m in PLACES], dense, patches, (images, 2304), (images, 250)),
            (2, 3, 4),
            None,
        ),
        "attention": (attention, ((4096, 64),) * 3, (0, 1, 2), 0),
        "projected": (projected, ((4, 256, 1024), [(1024, 1024)] * 4), (0,), 0),
        "square": (product, ((2048, 2048),) * 2, (0,), 0),
        "heat": (heat, ((8002, 1000),), (0,), 0),
    }


# -- layouts by hand ---------------------------------------------------------------------------------
def every_other(seen: list[None]) -> bool:
    """True for the first, false for the second, and so on."""
    seen.append(None)
    return len(seen) % 2 == 1


def by_hand(kind: str, x: Any, data: bool, column: bool) -> Any:
    """An array laid out as this kind of plan has it."""
    if x.ndim == 0 or not isinstance(x, ost.Array):
        return x
    last = x.ndim - 1
    if kind == "column/row":
        return x.resplit(None if data else last if column else max(0, last - 1))
    return x.resplit({"data": 0 if data else None, "model": None if data else last}.get(kind))


def laid_out(program: Program, kind: str | None) -> Callable[..., Any]:
    """The function with its operands and what lies between laid out by hand, or not; its results where
    they shall be."""
    function, _, data, end = program

    def run(*args: Any) -> Any:
        def at(name: str, x: Any) -> Any:
            if kind is None:
                return x
            whole = kind == "replicated" or (kind == "column/row" and not every_other(between))
            return x.resplit(None if whole else 0 if kind == "data" else x.ndim - 1)

        weights: list[None] = []
        between: list[None] = []
        if kind is not None:

            def entering(x: Any, data: bool) -> Any:
                return by_hand(kind, x, data, data or every_other(weights))

            args = tuple(
                [ost.tree_map(lambda x, d=k in data: entering(x, d), a) for k, a in enumerate(args)]
            )
        results = function(*args, at=at)
        return ost.tree_map(lambda x: x.resplit(end) if x.ndim else x, results)

    return run


# -- runs --------------------------------------------------------------------------------------------
def arrays(shapes: Any, seed: int = 0) -> Any:
    if isinstance(shapes, list):
        return [arrays(s, seed + 10 * k) for k, s in enumerate(shapes)]
    return np.random.default_rng(seed).standard_normal(shapes, np.float32) * 0.1


def prepared(program: Program, kind: str | None) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The program compiled, and its operands where it wants them."""
    _, shapes, data, _ = program
    values = [arrays(s, k + 1) for k, s in enumerate(shapes)]
    run = ost.compile(laid_out(program, kind))
    if kind is None:
        given = [ost.tree_map(lambda x: ost.asarray(x, split="auto"), v) for v in values]
    else:
        weights: list[None] = []

        def lies(x: Any, of_data: bool) -> Any:
            return by_hand(kind, ost.asarray(x), of_data, of_data or every_other(weights))

        given = [ost.tree_map(lambda x, d=k in data: lies(x, d), v) for k, v in enumerate(values)]
    ost.evaluate(*leaves(run(*given)))
    return run, given


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in leaves(part)]
    return [tree]


def placed(family: Family, split: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A function compiled, and its operands, which all lie so."""
    function, shapes = family
    run = ost.compile(lambda *given: function(*given))
    values = [arrays(s, k + 1) for k, s in enumerate(shapes)]
    given = [ost.asarray(x, split=x.ndim - 1 if split == -1 else split) for x in values]
    ost.evaluate(*leaves(run(*given)))
    return run, given


def measure(program: Program | Family, workers: int, seconds: float) -> dict[str, float]:
    """The best time of each way to lay it out, run in turn."""
    with ost.connect(workers):
        if len(program) == 2:
            ready = {kind: placed(program, split) for kind, split in SPLITS.items()}
            ready = {"planned": placed(program, "auto"), **ready}
        else:
            ready = {kind or "planned": prepared(program, kind) for kind in (None, *HANDS)}
        best = dict.fromkeys(ready, float("inf"))
        end = time.perf_counter() + seconds * len(ready)
        rounds = 0
        while rounds < 5 or time.perf_counter() < end:
            for kind, (run, given) in ready.items():
                start = time.perf_counter()
                ost.evaluate(*leaves(run(*given)))
                best[kind] = min(best[kind], time.perf_counter() - start)
            rounds += 1
    return best


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks layouts", description=__doc__)
    parser.add_argument("--workload", default="", help="programs, by how their names begin")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--families", action="store_true", help="programs of all operations")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(args)
    wanted = tuple(given.workload.split(","))
    hands = tuple(SPLITS) if given.families else HANDS
    known: dict[str, Any] = families() if given.families else programs()
    if not given.json:
        print(machine.in_words(runner.probe()), flush=True)
        heads = "".join(f"{kind:>13}" for kind in ("planned", *hands))
        print(f"{'program':<20}{'workers':>8}{heads}{'planned/best':>14}", flush=True)
    for workers in map(int, given.workers.split(",")):
        for name, program in known.items():
            if not name.startswith(wanted):
                continue
            best = measure(program, workers, given.seconds)
            ratio = best["planned"] / min(best[kind] for kind in hands)
            if given.json:
                row = {"program": name, "workers": workers, **best, "ratio": ratio}
                print(json.dumps(row), flush=True)
                continue
            figures = "".join(f"{1e3 * best[kind]:>10.2f} ms" for kind in best)
            print(f"{name:<20}{workers:>8}{figures}{ratio:>14.2f}", flush=True)
    return 0
