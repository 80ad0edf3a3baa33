"""what it takes to plan, layouts above all, and how near to the best layouts the answer is.

    python -m benchmarks planner [--workload NAME,...] [--mesh 2,4x2,256x8] [--repeat 3] [--save]
    python -m benchmarks planner --peers [--mesh 2,4x2]
    python -m benchmarks planner --shares 0.75,0.5,0.25 [--workload NAME,...] [--mesh 2]

Nothing runs: `ost.plan` on the machine "h200-ib", each time in a new process, imports not counted. The
batch is cut along the mesh's first axis, weights are whole.

nodes    of the function as it was traced
plan     from the function to the plan: trace, all passes, memory
layouts  of that, `choose_layouts`
gap      by how much the layouts may be worse than the best ones; 0: none are better

With --shares, what a memory limit costs: it leaves so much of the memory for intermediates that a step
takes without one. `plan` is what planning takes then, `time` how much longer the step is predicted to
take, and what was done to fit.

With --peers, what JAX and PyTorch's DTensor take for the same steps, where they are installed
(planner_peers.py). They are given where operands lie, and search for nothing.

Published for comparison, on other machines, not measured here: Alpa, compile time of an 8-layer BERT,
130 to 190 s of profiling and 136 s of compiling on the driver; AutoParallel (PyTorch), Llama-3-8B on 64
GPUs, 2-D mesh, 15 to 29 s to build its integer program and 36.5 s to solve it."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ostinato as ost
from ostinato.errors import MemoryLimitError

from . import machine, planner_peers, runner
from .planning import FLAT, MATRIX, WEIGHTS, Program, evaluate, program
from .workload import OURS, SYSTEMS

RESULTS = Path(__file__).resolve().parent / "results"
MESHES = ((2,), (4, 2), (256, 8))
Mesh = tuple[int, ...]
Row = dict[str, Any]
Made = tuple[Callable[..., Any], tuple[Any, ...]]  # a function, and what it is planned for


def batch(mesh: Mesh, *shape: int) -> Any:
    return ost.spec(shape, split=(0, *(None,) * (len(mesh) - 1)))


# -- programs ------------------------------------------------------------------------------------
def mlp(mesh: Mesh) -> Made:
    """16 layers, a step of gradient descent."""

    def loss(ws: Any, x: Any, y: Any) -> Any:
        for w, b in ws[:-1]:
            x = ost.nn.relu(x @ w + b)
        w, b = ws[-1]
        return ost.nn.mse_loss(x @ w + b, y)

    def step(ws: Any, x: Any, y: Any) -> Any:
        found, slopes = ost.value_and_grad(loss)(ws, x, y)
        return ost.tree_map(lambda w, g: w - 0.1 * g, ws, slopes), found

    wide = 1024
    ws = [(ost.spec((wide, wide)), ost.spec(wide)) for _ in range(16)]
    x = batch(mesh, 16_384, wide)
    return step, (ws, x, x)


def _layer(w: Any, x: Any) -> Any:
    def heads(y: Any) -> Any:
        return ost.permute_dims(ost.reshape(y, (*y.shape[:2], 16, -1)), (0, 2, 1, 3))

    y = ost.nn.layer_norm(x)
    q, k, v = (heads(y @ w[name]) for name in ("q", "k", "v"))
    scores = ost.nn.softmax(q @ ost.matrix_transpose(k) / q.shape[-1] ** 0.5)
    x = x + ost.reshape(ost.permute_dims(scores @ v, (0, 2, 1, 3)), x.shape) @ w["out"]
    return x + ost.nn.relu(ost.nn.layer_norm(x) @ w["up"]) @ w["down"]


def transformer(mesh: Mesh, depth: int = 24) -> Made:
    """24 layers: forward, backward, Adam."""

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w in layers:
            x = _layer(w, x)
        return ost.nn.mse_loss(x, y)

    def step(layers: Any, means: Any, squares: Any, x: Any, y: Any) -> Any:
        found, slopes = ost.value_and_grad(loss)(layers, x, y)
        means = ost.tree_map(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
        squares = ost.tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, slopes)

        def better(w: Any, m: Any, v: Any) -> Any:
            return w - 1e-3 * m / (ost.sqrt(v) + 1e-8)

        return ost.tree_map(better, layers, means, squares), means, squares, found

    wide = 1024
    shapes = dict.fromkeys(("q", "k", "v", "out"), (wide, wide))
    shapes |= {"up": (wide, 4 * wide), "down": (4 * wide, wide)}

    def state() -> Any:
        return [{name: ost.spec(s) for name, s in shapes.items()} for _ in range(depth)]

    x = batch(mesh, max(64, 8 * mesh[0]), 512, wide)
    return step, (state(), state(), state(), x, x)


def anywhere(mesh: Mesh) -> Made:
    """The same, whose state may lie anywhere."""
    step, (*state, x, y) = transformer(mesh)

    def free(s: Any) -> Any:
        return ost.spec(s.shape, split="auto")

    return step, (*(ost.tree_map(free, part) for part in state), x, y)


# Products of an image: (places in an image, inputs of a place, outputs of a place); then of a vector.
CONVOLUTIONS = ((3025, 363, 96), (729, 2400, 256), (169, 2304, 384), (169, 3456, 384))
DENSE = ((9216, 4096), (4096, 4096), (4096, 1000))


def alexnet(mesh: Mesh) -> Made:
    """AlexNet's products: each convolution as one of patches, which come as they are, and weights."""

    def loss(both: Any, patches: Any, x: Any, y: Any) -> Any:
        total: Any = 0.0
        for w, p in zip(both[0], patches, strict=True):
            total = total + ost.mean(ost.nn.relu(p @ w) ** 2)
        for w in both[1][:-1]:
            x = ost.nn.relu(x @ w)
        return total + ost.nn.mse_loss(x @ both[1][-1], y)

    def step(both: Any, patches: Any, x: Any, y: Any) -> Any:
        found, slopes = ost.value_and_grad(loss)(both, patches, x, y)
        return ost.tree_map(lambda w, g: w - 0.1 * g, both, slopes), found

    n = max(256, 4 * mesh[0])
    return step, (
        ([ost.spec((k, m)) for _, k, m in CONVOLUTIONS], [ost.spec(s) for s in DENSE]),
        [batch(mesh, n * places, k) for places, k, _ in CONVOLUTIONS],
        batch(mesh, n, DENSE[0][0]),
        batch(mesh, n, DENSE[-1][1]),
    )


def k_means(mesh: Mesh) -> Made:
    """A step of Lloyd's."""

    def lloyd(x: Any, c: Any) -> Any:
        d = ((x[:, None, :] - c[None]) ** 2).sum(-1)
        near = ost.nn.one_hot(d.argmin(1), c.shape[0])
        return (near.T @ x) / ost.maximum(near.sum(0), 1)[:, None], d.min(1).mean()

    return lloyd, (batch(mesh, 100_000_000, 16), ost.spec((64, 16)))


def drawn(nodes: int, mesh: Mesh) -> Made:
    """The random graph of `planning`, of matrices that are worth cutting."""
    side = 4096
    shapes = {MATRIX: (side, side), FLAT: (side * side,)}
    steps = tuple(
        [
            type(s)(
                s.function,
                s.operands,
                tuple([(k, shapes[v] if k == "shape" else v) for k, v in s.options]),
            )
            for s in program(nodes).steps
        ]
    )
    larger = Program(steps, program(nodes).outputs)

    def random(*values: Any) -> Any:
        return evaluate(ost, larger, values)

    weights = [ost.spec((side, side)) for _ in range(WEIGHTS)]
    return random, (batch(mesh, side, side), batch(mesh, side, side), *weights)


PROGRAMS: dict[str, Callable[[Mesh], Made]] = {
    "mlp-16": mlp,
    "transformer-24": transformer,
    "anywhere-24": anywhere,
    "alexnet": alexnet,
    "k-means": k_means,
    "random-1000": lambda mesh: drawn(1000, mesh),
    "random-10000": lambda mesh: drawn(10_000, mesh),
}


# -- rows ----------------------------------------------------------------------------------------
def once(name: str, mesh: Mesh) -> dict[str, Any]:
    """In this process, which has planned nothing before."""
    function, given = PROGRAMS[name](mesh)
    start = time.perf_counter()
    plan = ost.plan(function, *given, mesh=mesh, machine="h200-ib")
    took = time.perf_counter() - start
    return {
        "nodes": len(plan.traced.nodes),
        "plan_s": took,
        "layouts_s": plan.seconds["choose_layouts"],
        "gap": plan.gap,
        "passes": {k: round(v, 4) for k, v in plan.seconds.items()},
    }


def limited(name: str, mesh: Mesh, shares: Sequence[float]) -> None:
    """A line for each share of a program's memory."""
    function, given = PROGRAMS[name](mesh)
    whole = ost.plan(function, *given, mesh=mesh, machine="h200-ib", memory_limit=1 << 60)
    before = whole.simulate().seconds
    for share in shares:
        limit = whole.peak_bytes - int(whole.arena_bytes * (1 - share))
        start = time.perf_counter()
        row = f"{name:<16} {said(mesh):>7} {share:>6.0%} {limit / 2**20:>9,.0f} MiB"
        try:
            plan = ost.plan(function, *given, mesh=mesh, machine="h200-ib", memory_limit=limit)
        except MemoryLimitError as error:
            told = str(error).partition("making values again: ")[2].partition(";")[0]
            print(f"{row}{time.perf_counter() - start:>8.2f} s  refused, {told}", flush=True)
            continue
        took, longer = time.perf_counter() - start, plan.simulate().seconds / before - 1
        how = ", ".join(r.how for r in plan.ladder if r.seconds) or "nothing"
        print(f"{row}{took:>8.2f} s {longer:>+8.1%}  {how}", flush=True)


def row(name: str, mesh: Mesh, repeat: int) -> Row:
    """The middle one of so many processes."""
    command = [sys.executable, "-m", "benchmarks.planner", name, said(mesh)]
    found = []
    for _ in range(repeat):
        with runner.settled():
            made = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                cwd=runner.ROOT,
                env=runner.environment(SYSTEMS[OURS]),
            )
        found.append(json.loads(made.stdout))
    found.sort(key=lambda f: f["plan_s"])
    return {"program": name, "mesh": list(mesh), "n": repeat, **found[len(found) // 2]}


def of_peers(meshes: Sequence[Mesh], repeat: int) -> None:
    """A line for each of them, the middle one of so many processes."""
    for peer, name in planner_peers.PEERS:
        for mesh in meshes:
            found = []
            for _ in range(repeat):
                with runner.settled():
                    made = subprocess.run(
                        [sys.executable, "-m", "benchmarks.planner_peers", peer, name, said(mesh)],
                        capture_output=True,
                        text=True,
                        cwd=runner.ROOT,
                        env=runner.environment(SYSTEMS[peer]),
                    )
                if made.returncode:
                    last = (made.stderr.strip().splitlines() or ["nothing"])[-1]
                    print(f"{peer} {name:<18} {said(mesh):>7}  did not run: {last:.70}", flush=True)
                    break
                found.append(json.loads(made.stdout.strip().splitlines()[-1]))
            if len(found) == repeat:
                found.sort(key=lambda f: sum(f.values()))
                row = found[repeat // 2]
                print(planner_peers.told(peer, name, said(mesh), row), flush=True)


def said(mesh: Mesh) -> str:
    return "x".join(map(str, mesh))


def told(row: Row) -> str:
    gap = f"{row['gap']:.2%}" if row["gap"] else "0"
    where = said(tuple(row["mesh"]))
    return (
        f"{row['program']:<16} {where:>7} {row['nodes']:>7,} {row['plan_s']:>9.3f} s "
        f"{row['layouts_s']:>9.3f} s {gap:>8}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks planner", description=__doc__)
    parser.add_argument("--workload", default="", help="programs, by how their names begin")
    parser.add_argument("--mesh", default="", help="meshes, e.g. 2,4x2,256x8")
    parser.add_argument("--shares", default="", help="of memory, e.g. 0.75,0.5: what they cost")
    parser.add_argument("--peers", action="store_true", help="what others take, where installed")
    parser.add_argument("--repeat", type=int, default=3, help="processes per row")
    parser.add_argument("--json", action="store_true", help="one line of JSON per row")
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results")
    given = parser.parse_args(arguments)
    which = [w for w in given.workload.split(",") if w]
    names = [n for n in PROGRAMS if not which or any(n.startswith(w) for w in which)]
    meshes = [tuple(map(int, m.split("x"))) for m in given.mesh.split(",") if m] or MESHES
    if given.shares:
        shares = [float(share) for share in given.shares.split(",")]
        print(f"{'program':<16} {'mesh':>7} {'share':>6} {'limit':>13} {'plan':>9} {'time':>8}")
        for name in names:
            for mesh in meshes:
                limited(name, mesh, shares)
        return 0
    known = runner.probe()
    if given.peers:
        print(machine.in_words(known), flush=True)
        of_peers([m for m in meshes if m in MESHES[:2] or given.mesh], max(1, given.repeat))
        return 0
    lines = [json.dumps({"machine": known})]
    print(lines[0] if given.json else machine.in_words(known), flush=True)
    if not given.json:
        print(f"{'program':<16} {'mesh':>7} {'nodes':>7} {'plan':>11} {'layouts':>11} {'gap':>8}")
    for name in names:
        for mesh in meshes:
            found = row(name, mesh, max(1, given.repeat))
            lines.append(json.dumps(found))
            print(lines[-1] if given.json else told(found), flush=True)
    if given.save:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"planner-{datetime.date.today():%Y-%m-%d}.json"
        path.write_text("\n".join(lines) + "\n")
        print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    print(json.dumps(once(sys.argv[1], tuple(map(int, sys.argv[2].split("x"))))))
