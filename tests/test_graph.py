"""Graphs: canonical, encoded, shown; the same in every process and however they were written."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops.core.build import Builder
from ostinato.ops.core.encode import Malformed, decode_graph, digest, encode_graph
from ostinato.ops.core.graph import Graph, Node, canonical
from ostinato.ops.core.layout import Layout, Partial
from ostinato.ops.core.show import parse, parse_layout, show
from ostinato.ops.core.spec import Spec, float32, int64

import ostinato as ost
from tests.planner.test_any_layout import RELAXED, splits_for
from tests.programs import make_program
from tests.sessions import MESHES, use


def plan_id(function: Any, *shapes: tuple[int, ...]) -> str:
    with use():
        f = ost.compile(function)
        f(*(ost.zeros(s) for s in shapes))
        return f.plan.id


def test_names_and_order_of_independent_lines_make_no_difference() -> None:
    def one(x: Any, y: Any) -> Any:
        a = x * 2
        b = ost.exp(y)
        unused = a - b  # noqa: F841
        return a + b

    def other(first: Any, second: Any) -> Any:
        exponential = ost.exp(second)
        double = first * 2
        return double + exponential

    assert plan_id(one, (3,), (3,)) == plan_id(other, (3,), (3,))


def test_what_is_computed_twice_is_one() -> None:
    def twice(x: Any) -> Any:
        return ost.sin(x) + ost.sin(x)

    def once(x: Any) -> Any:
        s = ost.sin(x)
        return s + s

    assert plan_id(twice, (3,)) == plan_id(once, (3,))


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ("operation", lambda x: ost.cos(x) * 2.0),
        ("number", lambda x: ost.sin(x) * 3.0),
        ("kind of number", lambda x: ost.sin(x) * (2 + 0j)),
        ("order of operands", lambda x: 2.0 * ost.sin(x)),
        ("sign of zero", lambda x: ost.sin(x) * -0.0),
    ],
)
def test_each_change_is_another_id(change: str, other: Any) -> None:
    assert plan_id(lambda x: ost.sin(x) * 2.0, (3,)) != plan_id(other, (3,)), change


def test_the_id_knows_signature_mesh_and_policy() -> None:
    def f(x: Any) -> Any:
        return ost.sin(x).sum()

    ids = [plan_id(f, (3,)), plan_id(f, (4,))]
    with use():
        for x, options in (
            (ost.zeros(3, dtype=ost.float32), {}),
            (ost.zeros(3), {"numerics": "any-workers"}),
            (ost.zeros(3), {"memory_limit": 1 << 20}),
            (ost.zeros(3), {"donate": "x"}),
        ):
            g = ost.compile(f, **options) if not options else ost.compile(**options)(f)
            g(x)
            ids.append(g.plan.id)
    for mesh in ((2,), (2, 2)):
        for split in (None, 0):
            with use(mesh):
                g = ost.compile(f)
                g(ost.zeros(3, split=split))
                ids.append(g.plan.id)
    assert len(set(ids)) == len(ids)


CHILD = """
import ostinato as ost
import numpy as np

def loss(p, x, y):
    return ost.nn.cross_entropy(ost.tanh(x @ p['a'] + p['b']) @ p['c'], y)

@ost.compile
def step(p, x, y, lr):
    value, g = ost.value_and_grad(loss)(p, x, y)
    s = ost.repeat(3, lambda s: s * 0.5 + x.sum(), value)
    return {k: p[k] - lr * g[k] for k in p}, s

p = {k: ost.zeros(s) for k, s in SHAPES}
step(p, ost.zeros((6, 5)), ost.asarray(np.zeros(6, int)), 0.1)
print(step.plan.id)
"""


def test_the_id_is_the_same_in_every_process_and_hash_seed() -> None:
    found = set()
    for seed, shapes in (
        ("1", "[('a', (5, 4)), ('b', (4,)), ('c', (4, 3))]"),
        ("7", "[('c', (4, 3)), ('b', (4,)), ('a', (5, 4))]"),
    ):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OSTINATO_CACHE": "off"}
        run = subprocess.run(
            [sys.executable, "-c", CHILD.replace("SHAPES", shapes)],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout.strip())
    assert len(found) == 1


def test_a_pinned_id() -> None:
    """Changes only when the format of plans changes; then this test, and FORMAT, change with it."""
    assert plan_id(lambda x: ost.sin(x) * 2.0 + 1.0, (3,)) == "aecc911aaffeb8079b19bf332b4416c3"


def graphs(r: random.Random, mesh: tuple[int, ...]) -> list[Graph]:
    program = make_program(r)
    with use(mesh):
        f = ost.compile(program.by_ostinato)
        f(*(ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in program.inputs))
        return [f.plan.traced, f.plan.program.graph]


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
def test_text_and_lists_come_back_as_they_were(r: random.Random, mesh: tuple[int, ...]) -> None:
    for graph in graphs(r, mesh):
        assert parse(show(graph)) == graph
        again = decode_graph(json.loads(json.dumps(encode_graph(graph, lines=True))))
        assert again == graph
        assert digest(again) == digest(graph)
        assert [n.line for n in again.nodes] == [n.line for n in graph.nodes]


@RELAXED
@given(st.randoms(use_true_random=False))
def test_canonical_is_idempotent_and_blind_to_order(r: random.Random) -> None:
    source, _ = graphs(r, (1,))
    assert canonical(source) == source
    # any other order in which each node follows its operands is the same graph
    left = list(range(len(source.nodes)))
    place = list(range(len(source.inputs))) + [-1] * (len(source.specs) - len(source.inputs))
    builder = Builder(source.inputs)
    while left:
        ready = [k for k in left if all(place[v] >= 0 for v in source.nodes[k].inputs)]
        k = r.choice(ready)
        left.remove(k)
        node = source.nodes[k]
        made = builder.add(node.op, [place[v] for v in node.inputs], node.params, node.specs)
        for v, new in zip(source.outs(k), made, strict=True):
            place[v] = new
    assert builder.graph([place[v] for v in source.outputs]) == source


def test_dead_nodes_go() -> None:
    s = Spec((2,), float32)
    graph = Graph((s,), (Node("exp", (0,), (), (s,)), Node("sin", (0,), (), (s,))), (2,))
    assert [n.op for n in canonical(graph).nodes] == ["sin"]


def test_layouts_as_text() -> None:
    for layout in (
        Layout((4,), (0,)),
        Layout((4,), (None,)),
        Layout((3, 2), (0, Partial("argmin"))),
        Layout((3, 2), (1, 1), (), True),
    ):
        assert parse_layout(repr(layout)) is layout


def test_parameters_tell_numbers_apart() -> None:
    found = set()
    for value in (1, 1.0, True, 0.0, -0.0, 1j):
        builder = Builder(())
        builder.add("constant", (), {"value": value, "dtype": int64}, (Spec((), int64),))
        found.add(digest(builder.graph([0])))
    assert len(found) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda g: g.update(outputs=[99]),
        lambda g: g.update(inputs=[-1]),
        lambda g: g.update(specs=[[[2], "float99", None, False]]),
        lambda g: g.update(specs=[[[-2], "float32", None, False]]),
        lambda g: g.update(specs=[[[2**62, 2**62], "float32", None, False]]),
        lambda g: g.update(specs=[[[2], "float32", [[2], [7], [], False], False]]),
        lambda g: g["nodes"].append(["exp", [5], {}, [0]]),
        lambda g: g["nodes"].append(["exp", [1], {}, [0]]),  # itself: a cycle
        lambda g: g["nodes"].append([{}, [0], {}, [0]]),
        lambda g: g["nodes"].append(["exp", [0], [], [0]]),
        lambda g: g["nodes"].append(["exp", [0], {"a": {"z": 1}}, [0]]),
        lambda g: g["nodes"].append(["exp", [0], {"a": {"d": "object"}}, [0]]),
        lambda g: g.pop("nodes"),
    ],
)
def test_damaged_lists_are_refused(damage: Any) -> None:
    s = Spec((2,), float32)
    good = json.loads(json.dumps(encode_graph(Graph((s,), (), (0,)))))
    assert decode_graph(good) == Graph((s,), (), (0,))
    damage(good)
    with pytest.raises(Malformed):
        decode_graph(good)


def test_specs_are_interned() -> None:
    assert Spec((2, 3), float32) is Spec((2, 3), np.dtype("f4"))
    assert Spec((2, 3), float32) is not Spec((2, 3), int64)
