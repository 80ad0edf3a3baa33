"""Forged plan files, and the process that reads and runs them: `python -m tests.trust.forge FROM TO REPORT files|nodes`.

A forgery is made of a good file whose digest and id are right again: something in its lists is replaced,
taken away or doubled; or an operation, operand, parameter or shape of the source graph is changed, what
follows is inferred anew where it can be, and the passes themselves make the program of it. It has to be
refused in one sentence, or to run and give what its graph says, node by node, by NumPy. The report's
first line says which one is in hand, so that whoever reads it knows what ended the process."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import math
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ostinato.ops import OPS, Graph, Node
from ostinato.ops.core.encode import Malformed, encode_graph
from ostinato.ops.core.graph import canonical
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import DTYPES, Spec
from ostinato.ops.cpu.cpu_device import CPU
from ostinato.planner.check import check_graph, check_source, seconds_of
from ostinato.planner.cpu import fuse, loop_kernels
from ostinato.planner.file import FORMAT, MAGIC, _key, encode_plan
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key, Plan, Target

import ostinato as ost
from ostinato.errors import (
    ArgumentError,
    BoundsError,
    ExecutionError,
    LinAlgError,
    MemoryLimitError,
    OstinatoError,
    PlanFileError,
)
from tests.ops import nodes
from tests.programs import make_program
from tests.sessions import use

from . import guard

# bytes of what is run here; what is larger was accepted, which is all that is asked
LARGE = 1 << 20
SLOW = 0.5  # predicted seconds, the same
MESHES = ((1,), (1,), (1,), (1,), (1,), (2,), (3,), (2, 2))
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 5, 7, 8, 64, 1000, 2**31, 2**40, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63)),
    *(10**400, True, False, 1.0, -0.0, 0.5, 1e308, {"f": "nan"}, {"f": "inf"}, {"c": [1.0, -0.0]}),
)
WORDS: tuple[Any, ...] = (
    *("", "sum", "max", "argmin", "moments", "float32", "set", "add", "left", "reduced", "a\nb"),
    *("/etc/passwd", "../x", "ij,jk->ik", "i,i->", "ß\u202e", "x" * 5000, {"d": "float32"}, None),
    *(
        {"d": "bool"},
        {"d": "complex128"},
        {"d": "bfloat16"},
        {"g": {}},
        {"l": []},
        [],
        {},
        [0],
        [[0]],
    ),
)
EXTRA = ("way", "stays", "scratch", "at", "out", "xp", "axis", "threads", "self", "name")

# no file from elsewhere can name a function of this process's user
SAMPLED = [name for name in nodes.SAMPLED if name != "callback"]


# -- what is forged -------------------------------------------------------------------------------
@functools.lru_cache(400)
def base(k: int) -> Plan:
    """A good plan: of a random program, or of a sample of an operation."""
    r = random.Random(k)
    mesh = r.choice(MESHES)
    numerics = r.choice(("same-plan", "same-plan", "any-workers"))
    limit = r.choice((None, None, None, 20_000))
    if r.random() < 0.5:
        program = make_program(r, length=r.choice((2, 4, 8)))
        function, inputs = program.by_ostinato, program.inputs
    else:
        sample = r.choice(nodes.of(r.choice(SAMPLED)))
        function, inputs = sample.function, list(sample.inputs)
        numerics = sample.numerics if numerics == "same-plan" else numerics
    with use(mesh, numerics):
        split = r.choice((None, 0))
        xs = [ost.asarray(x, split=split if np.ndim(x) else None) for x in inputs]
        compiled = ost.compile(lambda *xs: function(*xs))
        plan = compiled.plan_for(*xs)
    if limit is not None and len(mesh) == 1 == mesh[0]:
        with contextlib.suppress(OstinatoError):
            target = Target(mesh, numerics=numerics, memory_limit=limit)
            return make_plan(Key(plan.traced, target), plan.names)
    return plan


def packed(content: Any) -> bytes:
    """A file of some content, as somebody who knows the format would make it."""
    with contextlib.suppress(Exception):
        content["id"] = _key(content).id
    return sealed(json.dumps(content, separators=(",", ":")).encode())


def sealed(rest: bytes) -> bytes:
    """The same of a text."""
    digest = hashlib.blake2b(rest, digest_size=32).hexdigest().encode()
    return b"%s %d %s %d\n" % (MAGIC, FORMAT, digest, len(rest)) + rest


def forged(r: random.Random) -> bytes:
    plan = base(r.randrange(1200))
    way = r.random()
    if way < 0.6:
        return by_source(r, plan)
    content = json.loads(encode_plan(plan).partition(b"\n")[2])
    if way < 0.75:  # one thing in both graphs
        doubled = forge_nodes(r, content["source"])
        forge_nodes(doubled, content["program"])
    else:
        for _ in range(r.choice((1, 1, 2, 3))):
            forge_lists(r, content)
    return packed(content)


# -- by lists -------------------------------------------------------------------------------------
def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for k in value:
            yield from places(value[k], (*path, k))
    elif isinstance(value, list):
        for k, v in enumerate(value):
            yield from places(v, (*path, k))


def forge_lists(r: random.Random, content: Any) -> None:
    found = [p for p in places(content) if "lines" not in p or r.random() < 0.05]
    place = r.choice(found)
    inner = content
    for k in place[:-1]:
        inner = inner[k]
    key, before = place[-1], inner[place[-1]]
    match r.randrange(8):
        case 0:
            del inner[key]
        case 1 if isinstance(inner, list):
            inner.insert(key, copy.deepcopy(before))
        case 2 if isinstance(inner, list):
            other = r.randrange(len(inner))
            inner[key], inner[other] = inner[other], inner[key]
        case 3 if isinstance(before, str) and before in OPS:
            inner[key] = r.choice(sorted(OPS))
        case 4 if isinstance(before, dict):
            before[r.choice(EXTRA)] = r.choice(NUMBERS + WORDS)
        case _:
            inner[key] = near(r, before)


def near(r: random.Random, value: Any) -> Any:
    """Something else in a value's place, often of its own kind."""
    if type(value) is int and r.random() < 0.7:
        return r.choice((value + 1, value - 1, -value, value * 2, r.choice(NUMBERS)))
    if type(value) is bool and r.random() < 0.7:
        return not value
    if isinstance(value, list) and value and r.random() < 0.7:
        made = copy.deepcopy(value)
        match r.randrange(4):
            case 0:
                made.pop(r.randrange(len(made)))
            case 1:
                made.append(copy.deepcopy(r.choice(made)))
            case 2:
                made.reverse()
            case _:
                k = r.randrange(len(made))
                made[k] = near(r, made[k])
        return made
    return r.choice(NUMBERS if r.random() < 0.5 else WORDS)


def forge_nodes(r: random.Random, graph: Any) -> random.Random:
    """A node's operation, parameters or specs; gives what does the same to another graph."""
    state = random.Random(r.getrandbits(32))
    again = random.Random()
    again.setstate(state.getstate())
    graphs = [graph]
    for g in graphs:
        graphs += [
            p["g"] for n in g["nodes"] for p in n[2].values() if isinstance(p, dict) and "g" in p
        ]
    some = [n for g in graphs for n in g["nodes"]]
    if some:
        node = some[state.randrange(len(some))]
        if node[2] and state.random() < 0.8:
            key = sorted(node[2])[state.randrange(len(node[2]))]
            node[2][key] = near(state, node[2][key])
        else:
            node[0] = state.choice(sorted(OPS))
    return again


# -- by the source graph --------------------------------------------------------------------------
def by_source(r: random.Random, plan: Plan) -> bytes:
    graph = plan.traced
    for _ in range(r.choice((1, 1, 2))):
        graph = changed(r, graph)
    if r.random() < 0.7:
        graph = inferred(graph)
    target = plan.target
    with contextlib.suppress(Exception):
        check_source(graph)  # what rules refuse, the passes need not bear
        made = make_plan(Key(canonical(laid_inputs(graph, Layout.whole(target.mesh))), target))
        return packed(json.loads(json.dumps(made.content)))
    whole = Layout.whole(target.mesh)
    with contextlib.suppress(Exception):
        lies = laid(graph, whole)
        content = dict(plan.content)
        content["source"], content["program"] = (
            encode_graph(laid_inputs(graph, whole), True),
            encode_graph(lies, True),
        )
        content["results"] = [["out", k] for k in range(len(graph.outputs))]
        return packed(content)
    return packed(dict(plan.content))


def laid(graph: Graph, layout: Layout) -> Graph:
    """All of it on every worker."""
    made = []
    for n in graph.nodes:
        params = tuple((k, laid(v, layout) if isinstance(v, Graph) else v) for k, v in n.params)
        made.append(Node(n.op, n.inputs, params, tuple(s.at(layout) for s in n.specs), n.line))
    return Graph(tuple(s.at(layout) for s in graph.inputs), tuple(made), graph.outputs)


def laid_inputs(graph: Graph, layout: Layout) -> Graph:
    return Graph(tuple(s.at(layout) for s in graph.inputs), graph.nodes, graph.outputs)


def changed(r: random.Random, graph: Graph) -> Graph:
    """One node's operation, an operand, a parameter or a result of it otherwise; or an input."""
    if not graph.nodes or r.random() < 0.1:
        if not graph.inputs:
            return graph
        ins = list(graph.inputs)
        k = r.randrange(len(ins))
        ins[k] = other_spec(r, ins[k])
        return Graph(tuple(ins), graph.nodes, graph.outputs)
    k = r.randrange(len(graph.nodes))
    node = graph.nodes[k]
    op, inputs, params, specs = node.op, list(node.inputs), dict(node.params), list(node.specs)
    before = graph.starts[k]
    bodies = [name for name, _ in node.subgraphs()]
    if bodies and r.random() < 0.5:
        name = r.choice(bodies)
        params[name] = changed(r, params[name])
    else:
        match r.randrange(6):
            case 0:
                alike = [o for o in sorted(OPS) if OPS[o].made_by == "users"]
                op = r.choice(alike)
            case 1 | 2 if inputs:
                fits = [
                    v for v in range(before) if graph.specs[v].dtype == graph.specs[inputs[0]].dtype
                ]
                inputs[r.randrange(len(inputs))] = r.choice(
                    fits or range(before) if r.random() < 0.7 else range(before)
                )
                if r.random() < 0.2:
                    inputs.insert(r.randrange(len(inputs) + 1), r.randrange(before))
            case 3 if specs:
                j = r.randrange(len(specs))
                specs[j] = other_spec(r, specs[j])
            case _ if params:
                key = r.choice(sorted(params))
                params[key] = other_value(r, params[key])
            case _:
                j = r.randrange(len(specs))
                specs[j] = other_spec(r, specs[j])
    made = Node(op, tuple(inputs), tuple(sorted(params.items())), tuple(specs), node.line)
    return Graph(graph.inputs, (*graph.nodes[:k], made, *graph.nodes[k + 1 :]), graph.outputs)


def other_spec(r: random.Random, spec: Spec) -> Spec:
    shape, dtype = list(spec.shape), spec.dtype
    if r.random() < 0.35:
        dtype = DTYPES[r.choice(sorted(DTYPES))]
    elif shape:
        k = r.randrange(len(shape))
        match r.randrange(6):
            case 0:
                shape.pop(k)
            case 1:
                shape.insert(k, r.choice((0, 1, 2, shape[k])))
            case 2:
                shape[k] = r.choice((0, 1, 2, 2**20, 2**40))
            case 3:
                shape.reverse()
            case _:
                shape[k] = max(0, shape[k] + r.choice((-1, 1, 2, shape[k])))
    else:
        shape = [r.choice((0, 1, 3))]
    with contextlib.suppress(OstinatoError):
        return Spec(tuple(shape), dtype, spec.layout)
    return spec


def other_value(r: random.Random, value: Any) -> Any:
    if isinstance(value, tuple) and value and r.random() < 0.9:
        made = list(value)
        match r.randrange(5):
            case 0:
                made.pop(r.randrange(len(made)))
            case 1:
                made.append(r.choice(made))
            case 2:
                made.reverse()
            case _:
                k = r.randrange(len(made))
                made[k] = other_value(r, made[k])
        return tuple(made)
    if isinstance(value, np.dtype):
        return DTYPES[r.choice(sorted(DTYPES))]
    if type(value) is bool:
        return not value if r.random() < 0.8 else r.choice((0, 1, 2, "x", None))
    if type(value) in (int, float) and r.random() < 0.9:
        kinds = (
            value + 1,
            value - 1,
            -value,
            value * 2,
            0,
            2**40,
            -1,
            2**63,
            float(value),
            0.5,
            True,
        )
        return r.choice((*kinds, math.nan, -math.inf, 10**30))
    if isinstance(value, str):
        return r.choice([w for w in WORDS if isinstance(w, str)])
    return r.choice((0, -1, (), "x", None, 0.5))


def inferred(graph: Graph) -> Graph:
    """The specs that follow, as far as rules have something to say."""
    specs, made = list(graph.inputs), []
    for node in graph.nodes:
        found: tuple[Spec, ...] = node.specs
        with contextlib.suppress(Exception):
            new = OPS[node.op].infer(*(specs[v].bare for v in node.inputs), **node.kw)
            new = new if isinstance(new, tuple) else (new,)
            found = new if len(new) == len(found) else found
        made.append(Node(node.op, node.inputs, node.params, found, node.line))
        specs += found
    return Graph(graph.inputs, tuple(made), graph.outputs)


# -- what it should give --------------------------------------------------------------------------
class Wild(Exception):
    """Numbers so large, or none at all, that the order of operations shows."""


class Endless(Exception):
    """A `while` whose condition goes on holding, as far as anybody would look: nobody can refuse that."""


def by_numpy(graph: Graph, inputs: list[Any]) -> list[Any]:
    values = list(inputs)
    for node in graph.nodes:
        values += tame(node_by_numpy(graph, node, [values[v] for v in node.inputs]))
    return [values[v] for v in graph.outputs]


def tame(values: list[Any]) -> list[Any]:
    for x in values:
        if x.dtype.kind not in "biu" and x.size:
            size = np.abs(x.astype(np.complex128))
            if not np.all(size < 1e6) or np.any((size < 1e-6) & (size > 0)):
                raise Wild
    return values


def node_by_numpy(graph: Graph, node: Node, xs: list[Any]) -> list[Any]:
    kw = node.kw
    match node.op:
        case "searchsorted" if np.any(xs[0][1:] < xs[0][:-1]):
            raise Wild  # what it finds in disorder is nobody's promise
        case "argsort" if not kw["stable"]:
            ordered = np.sort(xs[0], axis=kw["axis"])
            if np.any(np.diff(ordered.astype(np.float64), axis=kw["axis"]) == 0):
                raise Wild  # nor the order of equals
        case "custom" | "barrier":
            return xs[: kw["outputs"]]
        case "call":
            return by_numpy(kw["body"], xs)
        case "branch":
            return by_numpy(kw["then"] if xs[0] else kw["otherwise"], xs[1:])
        case "while":
            nc, _ = kw["counts"]
            turns = 0
            while turns != kw["most"] and by_numpy(kw["condition"], xs)[0]:
                xs = xs[:nc] + by_numpy(kw["body"], xs)
                turns += 1
                if turns > 300:
                    raise Endless
            return xs[nc:]
        case "loop":
            nc, ns, _ = kw["counts"]
            state, stacked = xs[nc : nc + ns], [np.empty(s.shape, s.dtype) for s in node.specs[ns:]]
            turns = range(kw["trips"])
            for t in reversed(turns) if kw["reverse"] else turns:
                items = [x[t] for x in xs[nc + ns :]]
                made = by_numpy(kw["body"], [np.int64(t), *xs[:nc], *state, *items])
                state = made[:ns]
                for whole, y in zip(stacked, made[ns:], strict=True):
                    whole[t] = y
            return [*state, *stacked]
    return nodes.run(graph, node, [np.asarray(x) for x in xs])


def operands(r: np.random.Generator, graph: Graph) -> list[Any]:
    """Small numbers, most of them exact; matrices are none too singular."""
    made = []
    for s in graph.inputs:
        kind = s.dtype.kind
        if kind == "b":
            x = r.random(s.shape) < 0.5
        elif kind in "iu":
            x = r.integers(0, 3, s.shape)
        else:
            x = r.integers(-8, 9, s.shape) / 4
        made.append(np.asarray(x).astype(s.dtype))
    return made


def same(got: Any, wanted: Any) -> bool:
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    if wanted.dtype.kind in "biu":
        return bool(np.array_equal(got, wanted))
    whole = np.complex128
    exact = (
        4e-2
        if wanted.dtype.itemsize == 2
        else 1e-2
        if wanted.dtype.name in ("float32", "complex64")
        else 1e-5
    )
    most = float(np.abs(wanted.astype(whole)).max(initial=1.0))
    return bool(np.allclose(got.astype(whole), wanted.astype(whole), rtol=exact, atol=exact * most))


# -- a trial --------------------------------------------------------------------------------------
def whole_work(plan: Plan) -> bool:
    specs = (*plan.traced.inputs, *plan.out_specs)
    large = sum(s.nbytes for s in specs) > LARGE or plan.arena_bytes > LARGE
    return large or seconds_of(plan.lowered) > SLOW


def trial(k: int, folder: Path) -> str:
    """One word for how it went, or what is wrong."""
    r = random.Random(k)
    path = folder / "forged.plan"
    path.write_bytes(forged(r))
    start = time.perf_counter()
    try:
        plan = Plan.from_file(path)
    except PlanFileError as error:
        text = str(error)
        plain = text.isprintable() and len(text) < 1000 and text.endswith(".")
        return "refused" if plain else f"no sentence: {text[:300]!r}"
    finally:
        took = time.perf_counter() - start
    if took > 20:
        return f"reading took {took:.0f} s"
    if plan.id == base_id(k):
        return "the same"
    if whole_work(plan):
        return "accepted, too large to run here"
    return run(k, plan)


def base_id(k: int) -> str:
    return base(random.Random(k).randrange(1200)).id


def run(k: int, plan: Plan) -> str:
    arrays = operands(np.random.default_rng(k), plan.traced)
    wrong: BaseException | None = None
    try:
        with np.errstate(all="ignore"):
            wanted = by_numpy(plan.traced, tame([x.copy() for x in arrays]))
    except (Wild, Endless):
        if any(n.op == "while" for g in nodes.graphs(plan.traced) for n in g.nodes):
            return "accepted, too large to run here"
        wanted = None
    except (IndexError, np.linalg.LinAlgError, ValueError, ZeroDivisionError) as error:
        wrong, wanted = error, None
    with use(plan.target.mesh, plan.target.numerics):
        given = [
            ost.asarray(x).resplit(tuple(s.layout.splits))
            if s.layout and not s.layout.is_whole
            else ost.asarray(x)
            for x, s in zip(arrays, plan.traced.inputs, strict=True)
        ]
        try:
            found = ost.run(plan, *given)
        except (BoundsError, LinAlgError) as error:
            return "raised what depends on data" if wanted is None else f"raised {error}"
        except ExecutionError as error:
            return "raised what depends on data" if wrong is not None else f"raised {error}"
        except (ArgumentError, MemoryLimitError):  # a session, or memory, that nobody has here
            return "for elsewhere"
        got = [np.asarray(y) for y in (found if isinstance(found, tuple) else (found,))]
    if wrong is not None and type(wrong) is not ValueError:
        return f"gave results where NumPy says {wrong}"
    if wanted is None:
        return "ran"
    if not all(map(same, got, map(np.asarray, wanted))):
        return "gave something else than its graph"
    return "right"


GOOD = ("refused", "the same", "right", "ran", "for elsewhere", "raised what depends on data")
GOOD += ("accepted, too large to run here",)


# -- a node alone -----------------------------------------------------------------------------------
def one_of(r: random.Random, name: str) -> tuple[Node, tuple[Spec, ...]]:
    """A node of an operation, with its operands' specs, from its samples, bodies included."""
    graph, _ = nodes.traced(r.choice(nodes.of(name)))
    found = [(g, n) for g in nodes.graphs(graph) for n in g.nodes if n.op == name]
    g, node = r.choice(found)
    return node, nodes.ins_of(g, node)


def walk(k: int, folder: Path) -> str:
    """One thing about one node otherwise: a named error, or what the kernel makes is what was inferred."""
    r = random.Random(k)
    name = SAMPLED[k % len(SAMPLED)]
    node, ins = one_of(r, name)
    xs, params = list(ins), node.kw
    match r.randrange(3):
        case 0 if xs:
            j = r.randrange(len(xs))
            xs[j] = other_spec(r, xs[j])
        case 1 if xs:
            j = r.randrange(len(xs))
            xs[j : j + 1] = r.choice(([], [xs[j]] * 2, [r.choice(xs)]))
        case _ if params:
            key = r.choice(sorted(params))
            value = params[key]
            if isinstance(value, Graph):
                params[key] = inferred(changed(r, value))
            else:
                params[key] = (
                    other_value(r, value) if r.random() < 0.8 else r.choice(NUMBERS + WORDS)
                )
        case _:
            params[r.choice(EXTRA)] = r.choice(NUMBERS)
    try:
        made = OPS[name].infer(*xs, **params)
        for body in params.values():
            if isinstance(body, Graph):
                check_graph(body)  # whose nodes are held to their own rules
    except (OstinatoError, Malformed) as error:
        return "refused" if "\n" not in str(error) else f"no sentence: {error}"
    specs = made if isinstance(made, tuple) else (made,)
    if sum(s.nbytes for s in (*xs, *specs)) > LARGE or params.get("trips", 0) > 1000:
        return "accepted, too large to run here"
    items = tuple(sorted(params.items()))
    graph = Graph(tuple(xs), (Node(name, tuple(range(len(xs))), items, specs),), ())
    arrays = operands(np.random.default_rng(k), graph)
    try:
        with np.errstate(all="ignore"):
            found = node_by_numpy(graph, graph.nodes[0], arrays)
    except (Wild, Endless):
        return "ran"
    except (IndexError, np.linalg.LinAlgError):
        return "raised what depends on data"
    except ValueError as error:
        return (
            "raised what depends on data"
            if "negative integer powers" in str(error)
            else f"raised {error}"
        )
    if [(y.shape, y.dtype) for y in found] != [(s.shape, s.dtype) for s in specs]:
        return f"gave {[(y.shape, y.dtype) for y in found]} for {specs}"
    return "right"


def main(first: int, last: int, report: Path, what: str) -> None:
    room = 24 << 30
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if first % 2:  # machine code however little there is to do
        fuse.WORTH = fuse.BESIDE = loop_kernels.WORTH = 0
        for name, native in CPU.natives.items():
            CPU.natives[name] = replace(native, least=0)
    guard.install()
    guard.at_the_edge()
    counts: Counter[str] = Counter()
    wrong: dict[int, str] = {}

    def say(k: int) -> None:
        report.write_text(json.dumps([k, counts, wrong]))

    with tempfile.TemporaryDirectory() as folder:
        for k in range(first, last):
            say(k)
            try:
                outcome = (walk if what == "nodes" else trial)(k, Path(folder))
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            counts[outcome if outcome in GOOD else "wrong"] += 1
            if outcome not in GOOD:
                wrong[k] = outcome[:500]
    say(last)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
