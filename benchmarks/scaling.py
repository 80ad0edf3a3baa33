"""what networks are predicted to take on more and more GPUs, beside what others published.

    python -m benchmarks scaling [--only alexnet,googlenet,cosmoflow] [--gpus 1,16] [--cube 512]

Nothing runs: training steps are planned and simulated on named machines (ostinato/planner/machines).

alexnet, googlenet    images a second on GPUs of Tesla K80, beside Table 1 of dMath (arXiv 1611.07819,
                      columns "Expresso v0.5"): batches of 1024, smaller ones where the table has them,
                      and AlexNet with a batch of 256. No memory for how an algorithm was chosen.
cosmoflow             MLPerf's network at 512^3 on V100 of 16 GB, up to 2,048: weak, a sample for each 8
                      GPUs, and strong, 128 samples. Of the hybrid-parallel paper (arXiv 2007.12856) the
                      abstract is what can be quoted: good weak and strong scaling up to 2K GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato import nn
from ostinato.errors import MemoryLimitError

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
COUNTS = (1, 2, 4, 8, 16, 32, 64)
NODE = 16  # GPUs
VOLUMES = (8, 64, 512, 2048)  # GPUs of CosmoFlow
# dMath, Table 1: what is published, and batches on the first so many GPUs where they are smaller
PUBLISHED: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "alexnet, 1024": ((479, 940, 1996, 3103, 4198, 5187, 5786), 1024, (512,)),
    "googlenet, 1024": ((115, 215, 370, 873, 1498, 2330, 3025), 1024, (128, 128, 128)),
    "alexnet, 256": ((533, 915, 1440, 1702, 2008, 2104, 2271), 256, ()),
}


def model(name: str, *rest: Any) -> Any:
    """One of examples/models."""
    if str(MODELS) not in sys.path:
        sys.path.insert(0, str(MODELS))
    if name == "alexnet":
        from alexnet import caffe

        return caffe()
    if name == "googlenet":
        from googlenet import GoogLeNet

        return GoogLeNet(heads=False)
    from cosmoflow import cosmoflow

    return cosmoflow(*rest)


def seconds(made: Any, x: Any, y: Any, loss: Callable[[Any, Any], Any], **on: Any) -> float:
    """A step of gradient descent with momentum; weights and momenta lie on each worker."""
    weights = ost.tree_map(lambda w: ost.spec(w.shape, w.dtype.name), made)
    momenta = nn.parameters(weights)

    def step(model: Any, momenta: Any, x: Any, y: Any, key: int) -> Any:
        def value_of(weights: Any) -> Any:
            return loss(nn.combine(weights, model).apply(x, key=key)[0], y)

        weights = nn.parameters(model)
        value, slopes = ost.value_and_grad(value_of)(weights)
        momenta = ost.tree_map(lambda m, g: 0.9 * m + g, momenta, slopes)
        weights = ost.tree_map(lambda w, m: w - 0.01 * m, weights, momenta)
        return nn.combine(weights, model), momenta, value

    given = (step, weights, momenta, x, y, 1)
    return float(ost.plan(*given, donate=("model", "momenta"), **on).simulate().seconds)


def images(name: str, workers: int, batch: int, made: Any) -> float:
    """Images a second."""
    side = 227 if name == "alexnet" else 224
    mesh = (workers // NODE, NODE) if workers > NODE else (workers,)
    x, y = ost.spec((batch, 3, side, side), split=0), ost.spec((batch,), "int64", split=0)
    return batch / seconds(made, x, y, nn.cross_entropy, mesh=mesh, machine="k80-fdr")


def predicted(which: str, counts: Sequence[int]) -> Iterator[tuple[int, float, int]]:
    """Of each number of GPUs, images a second as predicted, and as published."""
    published, batch, first = PUBLISHED[which]
    name = which.partition(",")[0]
    made = model(name).init(seed=1)
    for workers in counts:
        k = COUNTS.index(workers)
        many = first[k] if k < len(first) else batch
        yield workers, images(name, workers, many, made), published[k]


def volumes(samples: int, workers: int, cube: int, made: Any) -> float:
    """Samples a second; 0 where they do not fit."""
    mesh = (samples, workers // samples) if samples < workers else workers
    split: Any = (0, 2) if samples < workers else 0
    x = ost.spec((samples, 4, cube, cube, cube), "float32", split=split)
    y = ost.spec((samples, 4), "float32", split=(0, None) if samples < workers else 0)
    try:
        on = {"mesh": mesh, "machine": "dgx-v100", "memory_limit": 16 << 30}
        return samples / seconds(made, x, y, nn.mse_loss, **on)
    except MemoryLimitError:
        return 0.0


def cosmoflow(counts: Sequence[int], cube: int) -> Iterator[tuple[str, int, int, float]]:
    """Weak scaling, then strong: GPUs, samples, samples a second."""
    made = model("cosmoflow", cube).init(seed=1)
    for workers in counts:
        yield "weak", workers, workers // 8, volumes(workers // 8, workers, cube, made)
    for workers in counts[-2:]:
        yield "strong", workers, counts[-2] // 4, volumes(counts[-2] // 4, workers, cube, made)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--only", default="", help="networks, by how their names begin")
    parser.add_argument("--gpus", default="", help="of Table 1, how many, e.g. 1,16,64")
    parser.add_argument("--cube", type=int, default=512, help="side of CosmoFlow's volumes")
    given = parser.parse_args(arguments)
    only = [w for w in given.only.split(",") if w]
    counts = tuple([int(n) for n in given.gpus.split(",") if n]) or COUNTS

    def wanted(name: str) -> bool:
        return not only or any(name.startswith(w) for w in only)

    for which in filter(wanted, PUBLISHED):
        print(f"{which:<16} {'GPUs':>5} {'predicted':>10} {'published':>10}")
        for workers, ours, theirs in predicted(which, counts):
            print(f"{'':<16} {workers:>5} {ours:>8,.0f}/s {theirs:>8,}/s", flush=True)
    if wanted("cosmoflow"):
        print(f"{'cosmoflow':<16} {'GPUs':>5} {'samples':>10} {'predicted':>10}")
        for kind, workers, samples, found in cosmoflow(VOLUMES, given.cube):
            told = f"{found:>8,.1f}/s" if found else "does not fit"
            print(f"{kind:<16} {workers:>5} {samples:>10} {told}", flush=True)
    return 0
