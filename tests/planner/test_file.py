"""Plan files: they come back whole, and nothing that was done to one gets past its reader."""

from __future__ import annotations

import copy
import hashlib
import json
import pickletools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.code_digest import code_digest
from ostinato.ops.core.encode import Malformed
from ostinato.planner.file import MAGIC, decode_plan, encode_plan
from ostinato.planner.plan import FORMAT, Plan

import ostinato as ost
from ostinato.errors import PlanFileError
from tests.sessions import use
from tests.trust.forge import packed, sealed


def everything(x: Any, w: Any) -> Any:
    h = ost.nn.softmax(ost.tanh(x @ w))
    h = ost.repeat(3, lambda s: s * 0.5 + x.sum(), h)
    last, path = ost.scan(lambda s, v: (s + v, s * v), h[0] * 0, h)
    h = h + ost.cond(h.sum() > 0, lambda: h, lambda: -h)
    h = ost.while_loop(lambda s: s.sum() > 1.0, lambda s: s * 0.5, h)
    return h[1:] - h[:-1], path.var(0), last, x[3], w


def a_plan(mesh: tuple[int, ...] = (1,), numerics: str = "same-plan") -> tuple[Plan, Any]:
    with use(mesh, numerics):
        f = ost.compile(everything)
        r = np.random.default_rng(0)
        x = ost.asarray(r.normal(size=(12, 5)), split=(0, *(None for _ in mesh[1:])))
        w = ost.asarray(r.normal(size=(5, 6)))
        return f.plan_for(x, w), (x, w)


PLAN, _ = a_plan()
GOOD = encode_plan(PLAN)
THIS = b"plan %d " % FORMAT


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
def test_a_plan_with_an_algorithm_comes_back(mesh: tuple[int, ...], tmp_path: Path) -> None:
    """What an op was replaced by is proven to be what the op brings."""
    with use(mesh):
        x = ost.asarray(np.random.default_rng(0).normal(size=(40_000, 4)), split=0)
        f = ost.compile(lambda x: ost.linalg.lstsq(x, x[:, 0] * 2).x)
        plan = f.plan_for(x)
        plan.to_file(tmp_path / "lstsq.plan")
        assert Plan.from_file(tmp_path / "lstsq.plan") == plan
        ops = [n.op for n in plan.lowered.nodes]
        assert ("qr_of_parts" in ops) == (len(mesh) * mesh[0] > 1)


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_a_plan_comes_back_and_runs(mesh: tuple[int, ...], numerics: str, tmp_path: Path) -> None:
    plan, inputs = a_plan(mesh, numerics)
    path = tmp_path / "everything.plan"
    plan.to_file(path)
    again = Plan.from_file(path)
    assert again == plan
    assert again.id == plan.id
    assert again.names == ("x", "w")
    assert again.called == "everything"
    with use(mesh, numerics):
        expected = [np.asarray(y) for y in everything(*inputs)]
        found = ost.run(again, *inputs)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12)


def test_it_runs_without_tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, inputs = a_plan()
    plan.to_file(tmp_path / "p")
    again = Plan.from_file(tmp_path / "p")
    from ostinato.ops.core import apply
    from ostinato.planner import pipeline

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("traced or planned")

    with use():
        ost.evaluate(*inputs)
        monkeypatch.setattr(apply, "apply_all", never)
        monkeypatch.setattr(pipeline, "PASSES", ())
        assert len(ost.run(again, *inputs)) == 5


def test_run_checks_what_it_is_given(tmp_path: Path) -> None:
    plan, (x, w) = a_plan()
    with use():
        with pytest.raises(ost.errors.ArgumentError, match="got 1 arrays; needed 2: x: float64"):
            ost.run(plan, x)
        with pytest.raises(
            ost.errors.ArgumentError, match=r"got float64\[5,6\] .* for x; needed float64\[12,5\]"
        ):
            ost.run(plan, w, w)
    with use((2,)), pytest.raises(ost.errors.ArgumentError, match="needed a session with mesh"):
        ost.run(plan, x, w)


def test_what_is_no_plan_and_no_place_for_one(tmp_path: Path) -> None:
    plan, (x, _) = a_plan()
    with pytest.raises(PlanFileError, match=r"nowhere/p: got No such file .*needed a folder that"):
        plan.to_file(tmp_path / "nowhere" / "p")
    with pytest.raises(ost.errors.ArgumentError, match=r"run .*got 5; needed a plan; take that of"):
        ost.run(5, x)  # type: ignore[arg-type]
    with pytest.raises(ost.errors.ArgumentError, match=r"needed a compiled function; decorate it"):
        ost.why_miss(a_plan)  # type: ignore[arg-type]


def test_the_file_is_data() -> None:
    head, _, rest = GOOD.partition(b"\n")
    assert head.startswith(b"ostinato plan %d " % FORMAT)
    assert set(json.loads(rest)) >= {"source", "program", "results"}
    with pytest.raises(Exception):  # noqa: B017
        list(pickletools.genops(GOOD))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no plan file"),
        (b"PK\x03\x04 something else", "no plan file"),
        (b"\x80\x04\x95pickle", "no plan file"),
        (GOOD[:-10], "cut off"),
        (GOOD[: len(GOOD) // 2], "cut off"),
        (GOOD[:20], "no plan file"),
        (GOOD[:-3] + b"}]]", "damaged"),
        (GOOD.replace(THIS, b"plan %d " % (FORMAT + 1), 1), "newer than this version"),
        (GOOD.replace(THIS, b"plan %d " % (FORMAT - 1), 1), "too old"),
        (GOOD + b" ", "cut off"),
        (packed([1, 2, 3]), "an object was expected"),
        (packed({}), "no field 'source'"),
        (
            b"%s %d %s 2\n[["
            % (MAGIC, FORMAT, hashlib.blake2b(b"[[", digest_size=32).hexdigest().encode()),
            "no plan",
        ),
    ],
)
def test_damaged_foreign_and_other_versions(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(PlanFileError, match=message) as error:
        Plan.from_file(tmp_path / "bad")
    assert "make it again with plan.to_file" in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="No such file"):
        Plan.from_file(tmp_path / "nothing")
    with pytest.raises(PlanFileError):
        Plan.from_file(tmp_path)


def test_each_byte_counts() -> None:
    r = random.Random(0)
    for _ in range(400):
        data = bytearray(GOOD)
        k = r.randrange(len(data))
        data[k] ^= 1 << r.randrange(8)
        with pytest.raises(Malformed):
            decode_plan(bytes(data))


def content() -> Any:
    return json.loads(GOOD.partition(b"\n")[2])


def node(c: Any, op: str, graph: str = "program") -> Any:
    return next(n for n in c[graph]["nodes"] if n[0] == op)


HOSTILE: dict[str, Any] = {
    "another operation": lambda c: node(c, "tanh").__setitem__(0, "sin"),
    "another operation in both graphs": lambda c: [
        node(c, "tanh", g).__setitem__(0, "../../bin/sh") for g in ("source", "program")
    ],
    "an operation with a path": lambda c: node(c, "tanh").__setitem__(0, "/etc/passwd"),
    "an operation that no program has": lambda c: node(c, "tanh").__setitem__(0, "mark"),
    "another operand": lambda c: node(c, "matmul").__setitem__(1, [0, 0]),
    "operands the other way round": lambda c: node(c, "divide")[1].reverse(),
    "a value from the future": lambda c: node(c, "tanh").__setitem__(1, [40]),
    "a negative value": lambda c: node(c, "tanh").__setitem__(1, [-1]),
    "another parameter": lambda c: node(c, "slice")[2].update(starts=[4, 0]),
    "a slice far outside": lambda c: node(c, "slice")[2].update(starts=[2**40, 0]),
    "a parameter too many": lambda c: node(c, "tanh")[2].update(x=1),
    "a loop without end": lambda c: node(c, "loop")[2].update(trips=2**60),
    "more turns": lambda c: node(c, "loop")[2].update(trips=4),
    "other counts": lambda c: node(c, "loop")[2].update(counts=[0, 2, 0]),
    "giant shapes": lambda c: c["program"]["specs"][0].__setitem__(0, [2**40, 2**20]),
    "a shape larger than any machine": lambda c: c["program"]["specs"][0].__setitem__(
        0, [2**50] * 6
    ),
    "another signature": lambda c: c["program"].update(inputs=[1, 0]),
    "another result": lambda c: c["results"].reverse(),
    "fewer results": lambda c: c["results"].pop(),
    "a result from nowhere": lambda c: c["results"].__setitem__(0, ["out", 77]),
    "another mesh": lambda c: c.update(mesh=[2]),
    "a giant mesh": lambda c: c.update(mesh=[2**20, 2**20]),
    "another numerics": lambda c: c.update(numerics="wrong"),
    "another math": lambda c: c.update(math="wrong"),
    "another kind of number": lambda c: c.update(donated=["x"]),
    "an operand that is given away twice": lambda c: c.update(donated=[0, 0]),
    "a function without a name": lambda c: c.update(called=[3]),
    "names that are no names": lambda c: c.update(names=[["x"], {"y": 1}]),
    "deep nesting": lambda c: node(c, "tanh")[2].update(a=json.loads("[" * 500 + "]" * 500)),
    "a graph inside a graph inside": lambda c: node(c, "tanh")[2].update(
        a={"g": {"g": {"inputs": [], "nodes": [], "outputs": [], "specs": []}}}
    ),
    "a huge number": lambda c: node(c, "constant")[2].update(value=2**70),
    "a list as the source": lambda c: c.update(source=[]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_content_with_a_proper_digest(what: str) -> None:
    changed = content()
    HOSTILE[what](changed)
    data = packed(changed)
    with pytest.raises(Malformed):
        decode_plan(data)


def test_the_proof_accepts_what_is_good() -> None:
    assert decode_plan(packed(content())) == PLAN
    with pytest.raises(Malformed, match="an id that is not its content's"):
        decode_plan(sealed(json.dumps({**content(), "numerics": "fast"}).encode()))


def test_a_wrong_layout_is_seen() -> None:
    plan, _ = a_plan((2,))
    good = json.loads(encode_plan(plan).partition(b"\n")[2])
    assert decode_plan(packed(good)) == plan
    table = good["program"]["specs"]
    seen = 0
    for k, spec in enumerate(table):
        if spec[2][1] == [0]:
            bad = copy.deepcopy(good)
            bad["program"]["specs"][k][2][1] = [None]
            with pytest.raises(Malformed):
                decode_plan(packed(bad))
            seen += 1
    assert seen > 1


def test_a_collective_left_out_is_seen() -> None:
    """A sum that is never combined would be a wrong result on two workers."""
    with use((2,)):
        f = ost.compile(lambda x: x.T @ x)
        f(ost.asarray(np.ones((1000, 2)), split=0))
    good = json.loads(encode_plan(f.plan).partition(b"\n")[2])
    k = next(i for i, n in enumerate(good["program"]["nodes"]) if n[0] == "all_reduce")
    good["program"]["nodes"][k][0] = "narrow"
    good["program"]["nodes"][k][2] = {}
    with pytest.raises(Malformed):
        decode_plan(packed(good))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for k in value:
            found += _places(value[k], (*path, k))
    elif isinstance(value, list):
        for k, v in enumerate(value):
            found += _places(v, (*path, k))
    return found


def test_random_changes_never_change_what_is_computed() -> None:
    """Whatever is changed in the lists: an error, or the same computation."""
    r = random.Random(1)
    good = content()
    places = [p for p in _places(good) if p[-1] != "lines" and "lines" not in p]
    junk = [
        None,
        True,
        0,
        1,
        -1,
        7,
        2**40,
        -0.5,
        "exp",
        "sum",
        [],
        [0],
        {},
        {"d": "float32"},
        {"f": "nan"},
    ]
    refused = 0
    for _ in range(300):
        changed = copy.deepcopy(good)
        place = r.choice(places)
        inner = changed
        for k in place[:-1]:
            inner = inner[k]
        if r.random() < 0.2 and isinstance(inner, list):
            inner.insert(place[-1], r.choice(junk))
        elif r.random() < 0.2:
            del inner[place[-1]]
        else:
            inner[place[-1]] = r.choice(junk)
        try:
            plan = decode_plan(packed(changed))
        except Malformed:
            refused += 1
            continue
        same_graph = plan.traced == PLAN.traced and plan.program == PLAN.program
        assert plan.id != PLAN.id or same_graph, f"{place} changed what is computed, not the id"
    assert refused > 190


@pytest.mark.parametrize("numerics", ["same-plan", "any-workers"])
def test_a_narrower_part_of_an_overlapping_one(numerics: str) -> None:
    """Both cuts of one dimension: a halo along one mesh axis, then less along the other."""
    with use((2, 2), numerics):
        x = ost.asarray(np.arange(2.0)[:, None], split=(0, 0))
        plan = ost.compile(lambda x: (x[1:2] - x[0:1]).sum(0)).plan_for(x)
        assert decode_plan(encode_plan(plan)).program == plan.program


def test_the_version_of_the_code_knows_where_each_module_lies(tmp_path: Path) -> None:
    """So that no plan of other code is used: nested modules count, and so do their places."""
    ops, planner = tmp_path / "ops", tmp_path / "planner"
    (ops / "core").mkdir(parents=True)
    planner.mkdir()
    (ops / "core" / "a.py").write_text("x = 1\n")
    (planner / "b.py").write_text("y = 2\n")
    seen = {code_digest(ops, planner)}

    def changed() -> bool:
        now = code_digest(ops, planner)
        known = now in seen
        seen.add(now)
        return not known

    assert not changed()
    (ops / "core" / "a.py").write_text("x = 3\n")
    assert changed()
    (ops / "core" / "a.py").rename(ops / "a.py")
    assert changed()
    (ops / "a.py").rename(planner / "a.py")
    assert changed()
    (planner / "b.py").rename(planner / "c.py")
    assert changed()
    (ops / "cpu" / "jit").mkdir(parents=True)
    (ops / "cpu" / "jit" / "d.py").write_text("")
    assert changed()
    assert not changed()
