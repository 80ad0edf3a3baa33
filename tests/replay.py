"""What the compiler makes of many programs, as digests: two versions of the code can be compared.

    python -m tests.replay record FILE       of the code that is here
    python -m tests.replay compare OLD NEW   where two records differ
    python -m tests.replay against COMMIT    both: that commit's tests and code beside those here

The programs are the samples of every operation and random programs, on one, two and three workers,
all functions of the benchmarks that are ours (small), the examples, and with --tests what the tests
of operations, planner and front door trace (ten minutes more). Of each plan a record has
the id, and digests of the lowered graph and of the program with the places of its values; of a
group of programs, the digests of all LLVM texts that were generated for it. A change that only
moves code replays without a difference."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "OSTINATO_CACHE": "off",
    "OSTINATO_TUNE": "off",  # timing would decide
    "OSTINATO_THREADS": "2",
    "BENCHMARK_SCALE": "0.05",
    "MPLBACKEND": "Agg",
}
SCENES = 200  # random programs
WORKERS = (1, 2, 3)
LIMIT = 1800  # seconds for a group
TESTS = ("ops", "planner", "front")
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0")

Record = dict[str, Any]


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


# -- recording, in a process of its own ------------------------------------------------------
class Recorder:
    """What is planned and generated while programs run."""

    def __init__(self) -> None:
        self.programs: dict[str, list[list[str]]] = {}
        self.texts: set[str] = set()
        self.name = ""
        self._listen()

    def _listen(self) -> None:
        from ostinato.ops.cpu.jit import llvm

        from ostinato.sessions import Session

        plan, compiled = Session.plan, llvm._compiled

        def planned(session: Session, *given: Any, **more: Any) -> Any:
            found = plan(session, *given, **more)
            self.programs.setdefault(self.name, []).append(in_digests(found[0]))
            return found

        def generated(text: str) -> Any:
            self.texts.add(digest(text))
            return compiled(text)

        Session.plan = planned  # type: ignore[assignment, method-assign]
        llvm._compiled = generated

    @contextlib.contextmanager
    def program(self, name: str) -> Iterator[None]:
        """What runs within it is this program's; an error is part of the record."""
        self.name = name
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        except (Exception, SystemExit) as error:
            said = type(error).__name__
            if os.environ.get("REPLAY_LOUD"):
                traceback.print_exc()
            self.programs.setdefault(name, []).append(["error", said])

    def content(self) -> Record:
        return {"programs": self.programs, "texts": sorted(self.texts)}


def in_digests(plan: Any) -> list[str]:
    from ostinato.ops.core.encode import encode_graph

    def placed(program: Any) -> Any:
        return [
            encode_graph(program.graph),
            [[s.kind, s.at] for s in program.slots],
            [list(s) for s in program.scratch],
            sorted((k, [placed(b) for b in inner]) for k, inner in program.bodies.items()),
            sorted(program.bases.items()),
            program.arena_bytes,
            [list(r) for r in program.reuse],
        ]

    return [
        plan.id,
        digest(json.dumps(encode_graph(plan.lowered))),
        digest(json.dumps(placed(plan.program))),
    ]


def record_group(group: str) -> Record:
    recorder = Recorder()
    name, _, rest = group.partition(":")
    run: dict[str, Callable[..., None]] = {
        "samples": _samples,
        "random": _random,
        "benchmarks": _benchmarks,
        "examples": _example,
        "tests": _tests,
    }
    run[name](recorder, *([rest] if rest else []))
    return recorder.content()


def _samples(recorder: Recorder) -> None:
    import numpy as np

    import ostinato as ost
    from tests.helpers import on, splits_of
    from tests.ops.samples import SAMPLES

    for op, samples in sorted(SAMPLES.items()):
        for k, sample in enumerate(samples):
            for workers in WORKERS:
                with (
                    recorder.program(f"{op} {k} on {workers}"),
                    on(workers, numerics=sample.numerics),
                ):
                    for n in range(2 if workers > 1 else 1):  # split along the first axis, and not
                        splits = [splits_of(x, (workers,)) for x in sample.inputs]
                        given = [
                            ost.asarray(x, split=s[0] if n else None)
                            for x, s in zip(sample.inputs, splits, strict=True)
                        ]
                        compiled = ost.compile(plain(sample.function))(*given)
                        for x in compiled if isinstance(compiled, (tuple, list)) else (compiled,):
                            np.asarray(x)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays alone, whatever it has besides."""
    return lambda *xs: function(*xs)


def _random(recorder: Recorder) -> None:
    import numpy as np

    import ostinato as ost
    from tests.helpers import on
    from tests.programs import make_program

    for seed in range(SCENES):
        for workers in WORKERS:
            with recorder.program(f"program {seed} on {workers}"), on(workers):
                program = make_program(random.Random(seed), 4 + seed % 12)
                split = 0 if seed % 3 and all(x.ndim for x in program.inputs) else None
                given = [ost.asarray(x, split=split) for x in program.inputs]
                for y in ost.compile(program.by_ostinato)(*given):
                    np.asarray(y)


def _benchmarks(recorder: Recorder, name: str) -> None:
    from benchmarks.workload import OURS, split_name, workloads

    for workload in workloads(importlib.import_module(f"benchmarks.{name}")):
        for case, make in workload.cases.items():
            if split_name(case)[0] == OURS and not workload.system(case).launch:
                with recorder.program(f"{workload.name} {case}"):
                    made = make()
                    made.answer()


def _example(recorder: Recorder, path: str) -> None:
    before = sys.argv
    sys.argv = [path]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
            recorder.program(path),
        ):
            runpy.run_path(str(ROOT / path), run_name="__main__")
    finally:
        sys.argv = before


def _tests(recorder: Recorder, folder: str) -> None:
    import pytest

    class Names:
        def pytest_runtest_logstart(self, nodeid: str) -> None:
            recorder.name = nodeid

    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([*OPTIONS, f"tests/{folder}"], [Names()])


def groups(root: Path, tests: bool) -> Iterator[str]:
    sys.path.insert(0, str(root))
    yield from ("samples", "random")
    suites = (root / "benchmarks").glob("*.py")
    yield from (f"benchmarks:{p.stem}" for p in sorted(suites) if "\nWORKLOADS" in p.read_text())
    for path in sorted((root / "examples").glob("*.py")):
        if "LocalCluster" not in path.read_text():  # whose ports and processes differ
            yield f"examples:{path.relative_to(root)}"
    yield from (f"tests:{folder}" for folder in TESTS if tests)


# -- records ---------------------------------------------------------------------------------
def record(root: Path, only: str, tests: bool) -> Record:
    """All groups of a checkout, each in a process of its own."""
    found: Record = {}
    for group in groups(root, tests):
        if not group.startswith(only):
            continue
        ran = subprocess.run(
            [sys.executable, "-m", "tests.replay", "group", group],
            cwd=root,
            env={**os.environ, **SETTINGS, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            timeout=LIMIT,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"tests.replay: {group} of {root} ended with {ran.returncode}")
        found[group] = json.loads(ran.stdout.splitlines()[-1])
        plans = sum(map(len, found[group]["programs"].values()))
        print(
            f"{group}: {len(found[group]['programs'])} programs, {plans} plans, "
            f"{len(found[group]['texts'])} kernels",
            file=sys.stderr,
            flush=True,
        )
    return found


def differences(old: Record, new: Record) -> list[str]:
    """A line for each program and each set of kernels that differ."""
    lines = []
    what = ("plan id", "lowered graph", "places of values")
    for group in sorted({*old, *new}):
        a, b = old.get(group), new.get(group)
        if a is None or b is None:
            lines.append(f"{group}: only {'new' if a is None else 'old'}")
            continue
        for name in sorted({*a["programs"], *b["programs"]}):
            x, y = a["programs"].get(name, []), b["programs"].get(name, [])
            if len(x) != len(y):
                lines.append(f"{group}, {name}: {len(x)} plans -> {len(y)}")
                continue
            for k, (p, q) in enumerate(zip(x, y, strict=True)):
                if p != q:
                    differ = [w for w, s, t in zip(what, p, q, strict=False) if s != t]
                    if "error" in (p[0], q[0]):
                        differ = [f"{p[1]} -> {q[1]}"]
                    lines.append(f"{group}, {name}, plan {k}: {', '.join(differ)}")
        gone, come = {*a["texts"]} - {*b["texts"]}, {*b["texts"]} - {*a["texts"]}
        if gone or come:
            lines.append(f"{group}: {len(gone)} kernels are gone, {len(come)} are new")
    return lines


def against(commit: str, only: str, tests: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "there"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(there), commit], check=True)
        try:
            return differences(record(there, only, tests), record(ROOT, only, tests))
        finally:
            subprocess.run([*git, "remove", "--force", str(there)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("record", "compare", "against", "group"))
    parser.add_argument("given", nargs="+")
    parser.add_argument("--only", default="", help="groups, by how their names begin")
    parser.add_argument("--tests", action="store_true", help="what the tests trace, too")
    asked = parser.parse_args()
    if asked.what == "group":
        print(json.dumps(record_group(asked.given[0])))
        return 0
    if asked.what == "record":
        Path(asked.given[0]).write_text(json.dumps(record(ROOT, asked.only, asked.tests)))
        return 0
    if asked.what == "compare":
        old, new = (json.loads(Path(p).read_text()) for p in asked.given)
        found = differences(old, new)
    else:
        found = against(asked.given[0], asked.only, asked.tests)
    print("\n".join(found) or "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
