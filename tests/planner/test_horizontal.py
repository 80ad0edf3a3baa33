"""Kernels with one expression over arrays of different shapes become one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.jit.foreach_parts import FOREACH, written_over
from ostinato.planner.fusion.horizontal import fuse_horizontally
from ostinato.planner.machine import NOMINAL
from ostinato.planner.plan import Target
from ostinato.planner.title import title

import ostinato as ost
from tests.fake_device import COMPILER, KERNELS
from tests.helpers import compare_all
from tests.planner.test_passes import ONE, graph
from tests.sessions import use
from tests.thorough import some

SHAPES = ((64,), (3, 5, 7), (9, 300), (1,), (2, 2), (17_000,), (130, 65), (64,), (5, 1))


def leaves(dtype: Any = np.float32, shapes: Any = SHAPES, seed: int = 0) -> list[Any]:
    """The same numbers whichever tests ran before."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=s) * 4).astype(dtype) for s in shapes]


def kernels(f: Any) -> list[str]:
    """The kernels of a compiled function's plan, and what else computes anything large."""
    nodes = f.plan.program.graph.nodes
    return [n.op for n in nodes if n.op.startswith("fused") or n.specs[0].size > 1]


BODY = """fused(%{0}, %{1}; body={{
    (%0: float32[{2}], %1: float32[{2}])
    %2 = constant(; value=0.9, dtype=dtype float32) : float32[]
    %3 = multiply(%0, %2) : float32[{2}]
    %4 = add(%3, %1) : float32[{2}]
    return %4
}}) : float32[{2}]"""
OPERANDS = "(%0: float32[64], %1: float32[64], %2: float32[9,64], %3: float32[9,64])"


def test_what_the_pass_does() -> None:
    two = f"%4 = {BODY.format(0, 1, '64')}\n%5 = {BODY.format(2, 3, '9,64')}"
    before = graph(f"{OPERANDS}\n{two}\nreturn %4, %5")
    after = fuse_horizontally(before, ONE)
    (node,) = after.nodes
    assert (node.op, node.inputs, node.kw["parts"]) == (FOREACH, (0, 1, 2, 3), ((0, 1), (2, 3)))
    assert after.out_specs == before.out_specs
    assert fuse_horizontally(after, ONE) is after
    assert title(node) == "fused(multiply, add) of 2 arrays"


def test_none_leads_to_another() -> None:
    """The second reads what the first makes, as a sum."""
    behind = (
        "%5 = sum(%4; axes=(0,), dtype=dtype float32) : float32[]\n%6 = negative(%5) : float32[]"
    )
    other = BODY.format(2, 6, "9,64").replace("%1: float32[9,64]", "%1: float32[]")
    before = graph(
        f"{OPERANDS}\n%4 = {BODY.format(0, 1, '64')}\n{behind}\n%7 = {other}\nreturn %4, %7"
    )
    assert fuse_horizontally(before, ONE) is before


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "update": lambda xp, a, b, s: (a * 0.9 + b * s, a - b),
    "functions": lambda xp, a, b, s: (xp.exp(-abs(a)) + xp.sqrt(abs(b) + 1),),
    "squares": lambda xp, a, b, s: ((a * a).sum(), (abs(b) * s).max()),
    "both": lambda xp, a, b, s: (a + s, (a * b).sum()),
    "choice": lambda xp, a, b, s: (xp.where(a > b, a, s),),
}


@pytest.mark.parametrize("device", ["cpu", KERNELS])
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("seed", some(range(12), 4))
def test_of_random_shapes_layouts_and_workers(name: str, seed: int, device: str) -> None:
    r = random.Random(f"{name} {seed}")
    if device == KERNELS and (COMPILER is None or seed > 0 or name not in ("update", "both")):
        pytest.skip("needs a compiler, which takes long")
    f = EXPRESSIONS[name]
    dtype = r.choice((np.float32, np.float64))
    shapes = [tuple(r.choice((1, 2, 5, 33, 64)) for _ in range(r.randint(1, 3))) for _ in range(9)]
    shapes += [(20_000,), (3, 4096)]
    a, b, s = leaves(dtype, shapes, 2 * seed), leaves(dtype, shapes, 2 * seed + 1), dtype(1.5)
    exact = [f(np, np.float64(x), np.float64(y), np.float64(s)) for x, y in zip(a, b, strict=True)]
    wanted = [tuple([np.asarray(y).astype(dtype) for y in ys]) for ys in exact]  # sums lose nothing
    mesh = r.choice(((1,), (3,), (2, 2)))
    turned = [r.random() < 0.2 and x.ndim == 2 for x in a]  # they lie as transposes do

    def run(a: Any, b: Any, s: Any) -> Any:
        a = [x.T if t else x for x, t in zip(a, turned, strict=True)]
        return [f(ost, x, y, s) for x, y in zip(a, b, strict=True)]

    with use(mesh, device=device):
        splits = [r.choice((None, *range(x.ndim))) if len(mesh) == 1 else None for x in a]
        before = [x.T if t else x for x, t in zip(a, turned, strict=True)]
        ins = [ost.asarray(x, split=split) for x, split in zip(before, splits, strict=True)]
        sides = zip(b, splits, turned, strict=True)
        given = [ost.asarray(y, split=1 - s if t and s is not None else s) for y, s, t in sides]
        made = ost.compile(run)
        rtol = {2: 1e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
        for k, (found, want) in enumerate(zip(made(ins, given, s), wanted, strict=True)):
            compare_all(found, want, f"{name} of {shapes[k]} on {mesh}", rtol, rtol)
        assert FOREACH in kernels(made), kernels(made)


# -- updates ---------------------------------------------------------------------------------
sys.path.append(str(Path(__file__).parents[2] / "examples/models"))
OPTIMIZERS = {
    "sgd": ost.optim.SGD(0.1, momentum=0.9),
    "adam": ost.optim.Adam(1e-3),
    "adamw": ost.optim.AdamW(1e-3, weight_decay=0.1, mask=lambda path: "bias" not in path),
}


def compiled(rule: Any, **how: Any) -> Any:
    return ost.compile(lambda p, g, s: rule.update(p, g, s), **how)


def parameters(name: str) -> Any:
    """Zeros like a network's parameters."""
    made = {
        "resnet": lambda: import_module("resnet").resnet18(10, 8),
        "transformer": lambda: import_module("transformer").Transformer(256, 64, 2, 4, 32),
    }[name]()
    weights = ost.nn.parameters(made.init(0))
    return ost.tree_map(lambda p: np.zeros(p.shape, np.float32), weights)


@pytest.mark.parametrize("model", ["resnet", "transformer"])
def test_updates_of_networks_are_few_kernels(model: str) -> None:
    weights = parameters(model)
    with use():
        given = ost.tree_map(ost.asarray, weights)
        for name, rule in OPTIMIZERS.items():
            f = compiled(rule)
            f(given, given, rule.init(given))
            assert len(kernels(f)) <= 2, (name, kernels(f))
        g = ost.compile(lambda g: ost.optim.clip_by_norm(g, 1.0))
        g(given)
        assert kernels(g) == [FOREACH, "concat", FOREACH]


@pytest.mark.parametrize("mesh", [(1,), (3,)])
def test_updates_are_in_place(mesh: tuple[int, ...]) -> None:
    rule = ost.optim.SGD(0.1, momentum=0.9)
    given, slopes = leaves(np.float64), leaves(np.float64, seed=1)
    with use(mesh):
        step = compiled(rule, donate=("p", "s"))
        p = [ost.asarray(x.copy(), split=0) for x in given]
        g = [ost.asarray(x, split=0) for x in slopes]
        s = rule.init(p)
        for _ in range(3):
            p, s = step(p, g, s)
        assert kernels(step) == [FOREACH]
        program = step.plan.program
        assert len(program.reuse) >= 2 * len(given)
        assert program.arena_bytes < 1 << 12
        for x, y, found in zip(given, slopes, p, strict=True):
            np.testing.assert_allclose(np.asarray(found), x - 0.561 * y, 1e-12, 1e-12)


def test_what_two_parts_read_is_written_over_by_none() -> None:
    """Else the part that runs later read what the other one made."""
    a, b, c = leaves(np.float64, [(5000,)] * 3)
    with use():
        f = ost.compile(lambda a, b, c: ((a * 2 + c), (b[::-1] * 2 + c)[::-1]), donate=("c",))
        both = f(ost.asarray(a), ost.asarray(b), ost.asarray(c.copy()))
        compare_all(both, (a * 2 + c, (b[::-1] * 2 + c)[::-1]), "both")
    body = "(%0: float64[9], %1: float64[9])\n%2 = add(%0, %1) : float64[9]\nreturn %2"
    two = [f"%{3 + k} = fused(%{k}, %2; body={{{body}}}) : float64[9]" for k in range(2)]
    made = graph(
        "\n".join(["(%0: float64[9], %1: float64[9], %2: float64[9])", *two, "return %3, %4"])
    )
    (node,) = fuse_horizontally(made, ONE).nodes
    assert [written_over(node, k) for k in range(2)] == [(0,), (2,)]
    assert node.kw["parts"] == ((0, 1), (2, 1))


@pytest.mark.parametrize(("extent", "count"), [(16, 1), (4096, 2)])
def test_what_is_large_does_not_wait(extent: int, count: int) -> None:
    """Of products that only the kernel reads large ones are read at once, and not at the end of all."""
    shapes = [f"float64[{extent},{n}]" for n in (extent, 8)]
    body = "(%0: {0})\n%1 = exp(%0) : {0}\nreturn %1"
    lines = [f"({', '.join(f'%{k}: {s}' for k, s in enumerate(shapes))})"]
    lines += [f"%{2 + k} = sort(%{k}; axis=0) : {s}" for k, s in enumerate(shapes)]
    lines += [
        f"%{4 + k} = fused(%{2 + k}; body={{{body.format(s)}}}) : {s}" for k, s in enumerate(shapes)
    ]
    made = fuse_horizontally(graph("\n".join([*lines, "return %4, %5"])), Target(named=NOMINAL))
    assert sum(n.op.startswith("fused") for n in made.nodes) == count


def test_a_limit_leaves_no_room_for_what_waits() -> None:
    weights = leaves(np.float32, [(300, 300 + k) for k in range(6)])

    def step(xs: Any, x: Any) -> Any:
        return [(x @ w) @ w.T * 0.5 - x for w in xs]

    x = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    wanted = [(x @ w) @ w.T * 0.5 - x for w in weights]
    with use():
        f = ost.compile(step)
        f([ost.asarray(w) for w in weights], ost.asarray(x))
        peak = f.plan.peak_bytes
    with use(memory_limit=peak):
        g = ost.compile(step)
        made = g([ost.asarray(w) for w in weights], ost.asarray(x))
        compare_all(made, wanted, "within the limit", 1e-3, 1e-2)


def test_a_file_holds_the_graph_without_them(tmp_path: Path) -> None:
    with use():
        f = ost.compile(lambda xs: [ost.exp(x * 0.5) + x for x in xs])
        given = [ost.asarray(x) for x in leaves()]
        f(given)
        assert kernels(f) == [FOREACH]
        f.plan.to_file(tmp_path / "plan")
        assert FOREACH not in (tmp_path / "plan").read_text()
        again = ost.Plan.from_file(tmp_path / "plan")
        assert [n.op for n in again.program.graph.nodes] == [FOREACH]
        assert "fused(multiply, exp, add) of 9 arrays" in f.plan.explain()


def test_the_same_bits_for_any_workers() -> None:
    given, found = leaves(np.float64), []
    for mesh in ((1,), (3,)):
        with use(mesh, "any-workers"):
            f = ost.compile(lambda xs: [(ost.exp(x * 0.5) + x, (x * x).sum()) for x in xs])
            made = f([ost.asarray(x, split=0) for x in given])
            found.append([np.asarray(v).tobytes() for pair in made for v in pair])
    assert found[0] == found[1]


def test_within_a_loop() -> None:
    given, slopes = leaves(np.float64), leaves(np.float64, seed=1)
    with use():
        g = [ost.asarray(x) for x in slopes]
        f = ost.compile(lambda xs: ost.repeat(
            5, lambda xs: [x - 0.1 * y for x, y in zip(xs, g, strict=True)], xs))  # fmt: skip
        made = f([ost.asarray(x) for x in given])
        wanted = [x - 0.5 * g for x, g in zip(given, slopes, strict=True)]
        compare_all(made, wanted, "five steps", 1e-12, 1e-12)
        (loop,) = [n for n in f.plan.program.graph.nodes if n.op == "loop"]
        assert [n.op for n in loop.kw["body"].nodes if n.op.startswith("fused")] == [FOREACH]
