"""A forged plan file is refused in one sentence, or runs and gives what its graph says, within bounds.

Files and nodes are forged, read and run in processes of their own, in which NumPy's memory lies between
pages that nobody may touch (guard.py, forge.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops import OPS
from ostinato.ops.core.build import Builder
from ostinato.ops.core.encode import encode_graph
from ostinato.ops.core.graph import Graph, Node
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec, float64
from ostinato.planner.file import encode_plan
from ostinato.planner.pipeline import make_plan
from ostinato.planner.plan import Key, Plan, Target

import ostinato as ost
from ostinato.errors import OstinatoError, PlanFileError
from tests.sessions import use

from .conftest import Tally
from .forge import packed, sealed

HERE = Path(__file__).resolve().parents[2]
HUNG = 120  # seconds without a new forgery
WHOLE = Layout.whole((1,))


class Children:
    """Two processes that go through forgeries; one that ends is told from one that finished."""

    def __init__(self, what: str, count: int, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: dict[str, str] = {}
        half = count // 2
        parts = [(0, half), (half | 1, (half | 1) + count - half)]  # odd ones compile all they can
        jobs = [self.start(what, *part, folder / f"{part[0]}") for part in parts]
        while jobs:
            jobs = [again for job in jobs if (again := self.look(what, *job)) is not None]
            time.sleep(0.1)

    def start(self, what: str, first: int, last: int, report: Path) -> Any:
        words = ["-m", "tests.trust.forge", str(first), str(last), str(report), what]
        env = {**os.environ, "MALLOC_PERTURB_": "165", "OSTINATO_CACHE": "off"}
        with open(f"{report}.err", "wb") as said:
            job = subprocess.Popen([sys.executable, *words], cwd=HERE, env=env, stderr=said)
        return job, first, last, report, time.monotonic()

    def look(
        self,
        what: str,
        job: subprocess.Popen[bytes],
        first: int,
        last: int,
        report: Path,
        then: float,
    ) -> Any:
        """The job as it goes on; another one in its place, behind the forgery that ended it."""
        ended = job.poll()
        age = time.time() - report.stat().st_mtime if report.exists() else time.monotonic() - then
        if ended is None and age < HUNG:
            return job, first, last, report, then
        if ended is None:
            job.kill()
            ended = job.wait()
        assert report.exists(), Path(f"{report}.err").read_text()
        k, counts, wrong = json.loads(report.read_text())
        self.counts += Counter(counts)
        self.wrong |= wrong
        if ended == 0 and k == last:
            return None
        self.wrong[str(k)] = f"ended by {ended}" if age < HUNG else "hung"
        return (
            self.start(what, k + 2, last, report.with_name(f"{report.name}+{k}"))
            if k + 2 < last
            else None
        )


@pytest.mark.parametrize(("what", "few", "many"), [("files", 150, 20_000), ("nodes", 150, 20_000)])
def test_forgeries(
    what: str, few: int, many: int, tmp_path: Path, tally: Tally, thorough: bool
) -> None:
    found = Children(what, many if thorough else few, tmp_path)
    assert not found.wrong, found.wrong
    count = sum(found.counts.values())
    tally(f"forged {what}", count)
    tally("refused", found.counts["refused"])
    tally("right", found.counts["right"] + found.counts["the same"])
    assert found.counts["right"] > count // 50
    assert found.counts["refused"] > count // 4


# -- each operation alone -------------------------------------------------------------------------
def test_every_operation_counts_its_operands() -> None:
    x = Spec((2, 3), float64)
    for name, op in OPS.items():
        if op.made_by != "machine" and name not in ("concat", "call", "custom", "barrier"):
            with pytest.raises(OstinatoError):
                op.infer(*[x] * 9, nonsense=1)


HEAP: dict[str, Any] = {  # ran, and wrote or read where nothing was
    "put": ((4,), (9,), (2,), {"axis": 0, "mode": "set"}),
    "put_along_axis": ((4,), (9,), (9,), {"axis": 0}),
    "pair_distances": ((9, 9), (1,), (1,), (1, 1), (1, 1), {}),
    "broadcast_to": ((3,), {"shape": (2, 5)}),
    "iota": ({"shape": (2,), "axis": 5, "dtype": float64},),
    "pad": ((3,), {"widths": ((-2, 0),), "value": 0.0}),
    "searchsorted": ((2, 2), (3,), {"side": "left"}),
    "random_bits": ((7,), {"shape": (4,), "stream": 1, "wide": True}),
    "constant": ({"value": "x", "dtype": float64},),
    "permute_dims": ((2, 3), {"axes": (0, 0)}),
    "slice": ((3,), {"starts": (2,), "sizes": (5,), "steps": (1,)}),
    "sum": ((3,), {"axes": (0, 0), "dtype": float64}),
}


@pytest.mark.parametrize("name", HEAP)
def test_operands_that_do_not_belong_together(name: str) -> None:
    *shapes, params = HEAP[name]
    with pytest.raises(OstinatoError, match=r"got .*; needed"):
        OPS[name].infer(*(Spec(s, float64) for s in shapes), **params)


def test_steps_of_any_length() -> None:
    """What a rule refuses is not what users may write."""
    with use():
        x = ost.asarray(np.arange(5.0))
        assert np.asarray(x[:: 10**30]).tolist() == [0.0]
        assert np.asarray(x[:: -(10**30)]).tolist() == [4.0]
        assert np.asarray(x[3:1]).tolist() == []


# -- bounds ---------------------------------------------------------------------------------------
def nested(trips: int, depth: int) -> Plan:
    with use():
        x = ost.asarray(np.ones(3))

        def turns(s: Any, left: int) -> Any:
            return ost.repeat(trips, lambda s: turns(s, left - 1) if left else s * 0.5 + 1, s)

        return ost.compile(lambda x: turns(x, depth - 1)).plan_for(x)


def joined(count: int) -> bytes:
    builder = Builder([Spec((1,), float64, WHOLE)])
    y = builder.add("concat", [0] * count, {"axis": 0}, (Spec((count,), float64, WHOLE),))
    return encode_plan(make_plan(Key(builder.graph(y), Target())))


def inside(depth: int) -> Any:
    """A graph in a graph in a graph."""
    graph: Any = {"inputs": [], "nodes": [], "outputs": [], "specs": []}
    for _ in range(depth):
        graph = {**graph, "nodes": [["call", [], {"body": {"g": graph}}, []]]}
    return graph


def crowded(workers: int) -> bytes:
    """A plan for many workers, with many arrays whose parts have to be listed."""
    target = Target((workers,))
    lies = [Layout((workers,), (0,), (), blocks=True)] * 40
    builder = Builder([Spec((workers + k,), float64, at) for k, at in enumerate(lies)])
    outs = []
    for k, spec in enumerate(builder.inputs):
        outs += builder.add("exp", [k], {}, (spec,))
    lowered = builder.graph(outs)
    bare = [Node("exp", n.inputs, (), (n.specs[0].bare,)) for n in lowered.nodes]
    key = Key(Graph(lowered.inputs, tuple(bare), lowered.outputs), target)
    content = json.loads(encode_plan(nested(2, 1)).partition(b"\n")[2])
    content["source"], content["program"] = (encode_graph(g, True) for g in (key.graph, lowered))
    content |= {"mesh": [workers], "results": [["out", k] for k in range(40)], "names": []}
    return packed(content)


def with_source(change: Any) -> bytes:
    content = json.loads(encode_plan(nested(2, 1)).partition(b"\n")[2])
    change(content)
    return packed(content)


def _texts(size: int) -> Any:
    return lambda c: c.update(names=["x" * size])


BOMBS: dict[str, tuple[Any, str]] = {
    "turns": (lambda: encode_plan(nested(2**39, 1)), "seconds of work"),
    "turns in turns": (lambda: encode_plan(nested(2**14, 3)), "seconds of work"),
    "operands": (lambda: joined(20_000), "operands of one operation"),
    "a million operands": (
        lambda: with_source(lambda c: c["source"]["nodes"][0].__setitem__(1, [0] * 1_000_000)),
        "operands of one operation|no plan|cannot be",
    ),
    "values": (
        lambda: with_source(lambda c: c.update(more=[[]] * 5_000_000)),
        "bytes, of which|values, of which",
    ),
    "bytes": (lambda: with_source(lambda c: c.update(more="x" * (1 << 25))), "bytes, of which"),
    "deep lists": (lambda: sealed(b"[" * 200_000 + b"]" * 200_000), "no plan"),
    "deep graphs": (
        lambda: with_source(lambda c: c.update(source=inside(40))),
        "without end|no plan",
    ),
    "digits": (lambda: sealed(b'{"source":' + b"9" * 5000 + b"}"), "no plan"),
    "a name": (lambda: with_source(_texts(5000)), "names that are no text"),
    "a mesh": (
        lambda: crowded(1 << 17),
        "parts of arrays",
    ),
    "a shape": (
        lambda: with_source(lambda c: c["source"]["specs"][0].__setitem__(0, [2**40, 2**40])),
        "larger than any machine|fewer than",
    ),
}


@pytest.mark.parametrize("what", BOMBS)
def test_what_would_take_too_long(what: str, tmp_path: Path, tally: Tally) -> None:
    make, text = BOMBS[what]
    path = tmp_path / "bomb.plan"
    path.write_bytes(make())
    start = time.process_time()
    with pytest.raises(PlanFileError, match=text) as error:
        Plan.from_file(path)
    assert time.process_time() - start < 60
    assert len(str(error.value)) < 1000
    tally("bombs", 1)


def test_a_limit_may_be_raised(tmp_path: Path) -> None:
    plan = nested(2**39, 1)
    plan.to_file(tmp_path / "long.plan")
    with pytest.raises(PlanFileError, match="pass limit="):
        Plan.from_file(tmp_path / "long.plan")
    assert Plan.from_file(tmp_path / "long.plan", limit=None) == plan
    assert Plan.from_file(tmp_path / "long.plan", limit=1e9) == plan


def test_zero_strides_do_not_hide_work(tmp_path: Path) -> None:
    """A number that is looked at 2**50 times is as much to add up as if it lay there so often."""
    with use():
        plan = ost.compile(lambda x: ost.broadcast_to(x, (2**25, 2**25)).sum()).plan_for(
            ost.asarray(1.5)
        )
    plan.to_file(tmp_path / "wide.plan")
    with pytest.raises(PlanFileError, match=r"seconds of work|bytes of memory"):
        Plan.from_file(tmp_path / "wide.plan")


LONG = """
import sys, numpy as np, ostinato as ost
plan = ost.Plan.from_file(sys.argv[1])
try:
    print("runs", flush=True)
    np.asarray(ost.run(plan, ost.asarray(np.ones(3))))
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def test_long_loops_end_with_ctrl_c(tmp_path: Path) -> None:
    nested(2**33, 1).to_file(tmp_path / "long.plan")
    words = [sys.executable, "-c", LONG, str(tmp_path / "long.plan")]
    job = subprocess.Popen(words, cwd=HERE, stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "runs\n"
        for _ in range(300):  # the first may come before the loop has begun
            job.send_signal(signal.SIGINT)
            try:
                said, _ = job.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
        assert said == "ended\n"
    finally:
        job.kill()
        job.wait()


# -- names ----------------------------------------------------------------------------------------
def test_a_file_names_nothing_that_is_read(tmp_path: Path) -> None:
    """The user's lines in a file are shown; what stands there only if this process runs it."""
    secret = tmp_path / "secret.py"
    secret.write_text("password = 1\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with use():
        x = ost.asarray(np.ones(100_000))
        plan = ost.compile(lambda x: ost.exp(x) * 2 + 1).plan_for(x)
    content = json.loads(encode_plan(plan).partition(b"\n")[2])
    for graph in ("source", "program"):
        content[graph]["lines"] = [f"{p}:1" for p in (secret, pipe, "/dev/zero")][
            : len(content[graph]["lines"])
        ]
    (tmp_path / "named.plan").write_bytes(packed(content))
    again = Plan.from_file(tmp_path / "named.plan")
    for text in (again.source(), again.explain(), str(again.lowered)):
        assert "password" not in text
    with pytest.raises(PlanFileError, match="no plain file"):
        Plan.from_file(pipe)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u202e", "x" * 5000, 7, None])
def test_text_is_text(name: Any, tmp_path: Path) -> None:
    for field, value in (("names", [name]), ("called", name)):
        content = json.loads(encode_plan(nested(2, 1)).partition(b"\n")[2]) | {field: value}
        (tmp_path / "p").write_bytes(packed(content))
        with pytest.raises(PlanFileError) as error:
            Plan.from_file(tmp_path / "p")
        assert str(error.value).isprintable()
