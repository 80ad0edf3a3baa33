"""The house itself: arrows point down, rooms have one name, the wheel has everything, and the door opens fast."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest
from ostinato.ops import OPS, Op

import ostinato as ost

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {"ops": 0, "planner": 1, "runtime": 2, "ostinato": 3}
LEAVES = ("ostinato.errors", "ostinato.settings")
HEAVY = {
    "asyncio",
    "ssl",
    "dask",
    "distributed",
    "mpi4py",
    "numba",
    "cupy",
    "nvmath",
    "networkx",
    "h5py",
    "zarr",
    "pyarrow",
    "torch",
    "jax",
}


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


@cache
def imports(path: Path, top_level: bool = False) -> list[tuple[str, bool]]:
    """What a file imports, and whether relatively; at the top level only, or anywhere but under TYPE_CHECKING."""
    found = []
    tree = tree_of(path)
    skip = {
        id(inner)
        for node in nodes_of(path)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if top_level else nodes_of(path):
        if id(node) in skip:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                f"{node.module}.{a.name}" if node.module == "ostinato" else str(node.module)
                for a in node.names
            ]
            found += [(name, node.level > 0) for name in names]
    return found


@pytest.mark.parametrize("room", FLOORS)
def test_arrows_point_down(room: str) -> None:
    for path in modules(room):
        for name, relative in imports(path):
            if relative or not name.startswith("ostinato") or name in LEAVES:
                continue
            parts = name.split(".")
            other = parts[1] if len(parts) > 1 and parts[1] in FLOORS else "ostinato"
            if other == room:
                continue
            late = (
                path.name == "array.py" and name == "ostinato"
            )  # the namespace that an array reports
            assert FLOORS[other] < FLOORS[room] or late, f"{path.relative_to(ROOT)} imports {name}"


def test_no_circles() -> None:
    """Nowhere, inside rooms too; imports within functions and for types count."""
    import networkx

    files = [path for room in (*FLOORS, "io_pipeline") for path in modules(room)]
    names = {module_name(path): path for path in files}
    arrows = networkx.DiGraph()
    for name, path in names.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom):
                outer = package.split(".")
                outer = outer[: len(outer) + 1 - node.level] if node.level else []
                base = ".".join([*outer, *([node.module] if node.module else [])])
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    other = inner if inner in names else base
                    if other in names and names[other].name != "__init__.py":
                        arrows.add_edge(name, other)
    assert arrows.number_of_edges() > 800
    assert [c for c in networkx.strongly_connected_components(arrows) if len(c) > 1] == []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "ostinato" else ("ostinato", *parts))


# -- what may only become less ---------------------------------------------------------------
# Numbers that stand for themselves: (now, the bar). Who makes one smaller writes the new one here.
BARS = {
    "numeric constants of modules": (694, 350),
    "constants named by size": (0, 0),
    "docstrings that begin with What, Of, Those or The same": (0, 0),
    "functions that begin with a preposition": (8, 5),
    "files above 900 lines": (0, 0),
    "functions above 80 lines": (4, 4),
    "public classes of one name in a room": (4, 0),
    "file names that are not unique": (0, 0),
    "words of the glossary": (14, 15),
}
SIZES = {"MOST", "FEW", "LEAST", "MANY", "SMALL", "LARGE", "LONG", "SHORT", "NEAR", "FAR"}
# as_, from_, to_, on_ and with_ are the field's: conversions, events, copies with a change
PREPOSITIONS = {
    "in",
    "of",
    "by",
    "at",
    "behind",
    "beside",
    "before",
    "after",
    "over",
    "under",
    "within",
}
TWINS = (ROOT / "ops/cpu", ROOT / "ops/gpu", ROOT / "planner/cpu", ROOT / "planner/gpu")


def is_number(node: ast.expr | None) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def constants(tree: ast.Module) -> list[tuple[str, ast.expr | None]]:
    """Names that a module assigns, each with what it is given."""
    found: list[tuple[str, ast.expr | None]] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            value = node.value  # type: ignore[attr-defined]
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            found += [(name.id, given) for name, given in pairs if isinstance(name, ast.Name)]
    return found


def counted() -> dict[str, list[str]]:
    """Of each of the bars, what counts."""
    found: dict[str, list[str]] = {name: [] for name in BARS}
    numbers, sizes, docs, prepositions, files, functions, classes, same, words = found.values()
    seen: dict[str, list[Path]] = {}
    for room in (*FLOORS, "io_pipeline"):
        named: dict[str, str] = {}
        for path in modules(room):
            at, text = str(path.relative_to(ROOT)), path.read_text()
            tree = tree_of(path)
            if path.name != "__init__.py":
                seen.setdefault(path.name, []).append(path)
            if text.count("\n") > 900:
                files.append(f"{at}: {text.count(chr(10))}")
            for name, value in constants(tree):
                if is_number(value):
                    numbers.append(f"{at}: {name}")
                if name.strip("_") in SIZES:
                    sizes.append(f"{at}: {name}")
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    other = named.setdefault(node.name, at)
                    classes += [f"{at}: {node.name}, as {other}"] * (other != at)
            for node in nodes_of(path):
                if isinstance(node, ast.FunctionDef):
                    if re.match(r"(What|Of|Those|The same)\b", ast.get_docstring(node) or ""):
                        docs.append(f"{at}: {node.name}")
                    if node.name.split("_")[0] in PREPOSITIONS:
                        prepositions.append(f"{at}: {node.name}")
                    if (node.end_lineno or 0) - node.lineno >= 80:
                        functions.append(f"{at}: {node.name}")
    for name, paths in seen.items():
        homes = {next((n for n in TWINS if n in p.parents), p.parent) for p in paths}
        if len(paths) > 1 and not (len(paths) == len(homes) and homes <= {*TWINS}):
            same.append(f"{name}: {', '.join(str(p.relative_to(ROOT)) for p in paths)}")
    glossary = (ROOT / "docs/architecture.md").read_text().partition("## Glossary")[2]
    words += re.findall(r"^\| (?!Word\b)(\w.*?) \|", glossary, re.MULTILINE)
    return found


COUNTED = cache(counted)


@pytest.mark.parametrize("what", BARS)
def test_the_house_only_gets_better(what: str) -> None:
    found = COUNTED()[what]
    assert len(found) <= max(BARS[what]), "\n".join(found)


def test_constants_are_counted() -> None:
    tree = ast.parse("A, B = 1, -2.0\nC: int = 3\nD = 1 << 4\nE = (1, 2)\ndef f():\n    G = 1\n")
    assert [name for name, value in constants(tree) if is_number(value)] == ["A", "B", "C"]


# What no op of users' is: what moves, control flow, what is known without operands.
MOVES = {"relayout", "resplit", "copy", "narrow", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "halo", "start", "wait"}  # fmt: skip
CONTROL = {"loop", "while", "branch", "blocks", "call", "custom", "with_gradient", "solution", "mark", "barrier"}  # fmt: skip
CONSTANTS = {"constant", "full", "iota"}
WORDS = {
    "max",
    "min",
    "sum",
    "prod",
    "any",
    "all",
    "put",
    "maximum",
    "minimum",
    "mean",
}  # monoids, orders, NumPy's


def test_passes_know_ops_by_their_facts() -> None:
    """So that a new op is one block: only rules between ops (algebra, distances, what orders are made of)
    name others."""
    ours = {name for name, op in OPS.items() if op.made_by != "users"}
    others = OPS.keys() - (MOVES | CONTROL | CONSTANTS | WORDS | ours)
    found = []
    for path in (*modules("planner"), *modules("runtime")):
        if path.name in ("simplify.py", "far_pairs.py", "slice_sums.py", "external.py"):
            continue
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
            for node in nodes_of(path)
            if isinstance(node, ast.Constant) and node.value in others
        ]
    assert found == []


# Files that may name several ops at once: how often, and why. A new op is none of these families.
FAMILIES = {
    "planner/check.py": (7, "what only passes make, and plan files hold"),
    "planner/gathered.py": (1, "collectives that bring parts of one array"),
    "planner/layouts/shardings.py": (1, "what only passes make"),
    "planner/passes/blocking.py": (1, "what only passes make"),
    "planner/passes/in_turns.py": (1, "what only passes make"),
    "planner/passes/cache_blocking.py": (1, "what only passes make"),
    "planner/passes/memory.py": (1, "what only passes make"),
    "planner/passes/recompute.py": (1, "what only passes make"),
    "planner/external.py": (1, "the two external sorts"),
    "planner/passes/far_pairs.py": (1, "algebra"),
    "planner/passes/simplify.py": (6, "algebra"),
    "runtime/bind.py": (1, "functions of NumPy that want `out` by name"),
    "runtime/graph_capture.py": (1, "control flow that a device decides"),
    "runtime/crew/orders.py": (1, "words of messages"),
    "ostinato/__init__.py": (1, "modules"),
    "ostinato/code_facts.py": (1, "methods of Python's containers"),
    "ostinato/reading.py": (1, "methods of NumPy's arrays"),
    "ops/jit/arrays.py": (1, "functions of `xp`"),
    "ops/jit/scalar.py": (1, "words of scalar expressions"),
    "ops/jit/special_formulas.py": (2, "words of scalar expressions"),
    "ops/cpu/kernels/gather_scatter.py": (3, "modes of `put`"),
    "ops/cpu/libraries/scipy_fft.py": (1, "functions of a library"),
    "ops/cpu/loops/loop_values.py": (1, "what writes a part of its operand"),
    "ops/cpu/natives.py": (3, "the list of who does an op better"),
    "ops/gpu/gpu_device.py": (2, "the list of who does an op better"),
    "ops/gpu/epilogue.py": (1, "what a library's epilogue adds"),
    "ops/gpu/jit/lines.py": (1, "functions of CUDA C++"),
}


def test_an_op_is_one_sitting() -> None:
    """What few ops say stands in a record of its kind."""
    for record in (Op, *(type(f.default) for f in fields(Op) if is_dataclass(f.default))):
        assert len(fields(record)) <= (20 if record is Op else 10), record


def test_sets_of_names_are_closed_families() -> None:
    """So that a new op is one block: what holds for some ops is a fact of these. May only become fewer."""
    found: dict[str, int] = {}
    for room in ("planner", "runtime", "ostinato", "ops/jit", "ops/cpu", "ops/gpu"):
        for path in modules(room):
            for node in nodes_of(path):
                if isinstance(node, ast.Tuple | ast.Set | ast.List):
                    values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
                    name = str(path.relative_to(ROOT))
                    found[name] = found.get(name, 0) + (
                        sum(isinstance(v, str) and v in OPS for v in values) > 1
                    )
    assert {name: n for name, n in found.items() if n} == {k: n for k, (n, _) in FAMILIES.items()}
    assert sum(n for n, _ in FAMILIES.values()) <= 44


def test_what_is_about_one_device_stays_in_its_rooms() -> None:
    """Ops mean the same everywhere, passes hold for every machine, and programs are bound to any device;
    what shows people a plan may look at kernels."""
    asks = re.compile(r"\bxp (is|is not|==|!=) np\b|\bdevice (==|!=) [\"']")
    homes = {ROOT / "ops/cpu", ROOT / "planner/cpu", ROOT / "planner/seeing"}
    may = {  # the lists of devices, what is timed, and threads of the host
        "ops/__init__.py": {"ostinato.ops.cpu.cpu_device"},
        "planner/lowering.py": {"ostinato.planner.cpu", "ostinato.planner.gpu"},
        "planner/tuning/sites.py": {"ostinato.ops.cpu.fused", "ostinato.planner.cpu.fuse"},
        "planner/tuning/tuner.py": {"ostinato.ops.cpu.libraries.onednn"},
        "runtime/worker.py": {"ostinato.ops.cpu.threads"},
        "runtime/engine.py": {"ostinato.ops.cpu.threads"},
        "runtime/crew/member.py": {"ostinato.ops.cpu.threads"},
    }
    found, seen = [], 0
    for room in ("ops", "planner", "runtime"):
        for path in modules(room):
            if homes & {*path.parents}:
                continue
            seen += 1
            name, package = str(path.relative_to(ROOT)), module_name(path.parent / "__init__.py")
            found += [f"{name}: {asked[0]}" for asked in asks.finditer(path.read_text())]
            for other, relative in imports(path):
                whole = f"{package}.{other}" if relative else other
                if re.match(r"ostinato\.(ops|planner)\.cpu\b", whole):
                    found += [f"{name} imports {whole}"] * (whole not in may.get(name, ()))
    assert seen > 90
    assert found == []


HOME = ROOT / "ops/cpu/jit/code.py"
BARE = {
    "CFUNCTYPE",
    "PYFUNCTYPE",
    "WINFUNCTYPE",
    "_as_parameter_",
}  # how a number becomes a function, and back
MAKES = {
    "linked",
    "made",
    "CDLL",
    "calls",
}  # what gives code, and what must be the same for all threads


def test_no_address_of_code_is_a_number() -> None:
    """It would keep nothing alive: who needs one has a `CodeAddress`, and what is made once is made under a lock."""
    found = []
    for path in [p for room in (*FLOORS, "io_pipeline") for p in modules(room) if p != HOME]:
        for node in nodes_of(path):
            named = getattr(node, "attr", getattr(node, "id", None))
            bare = named in BARE or (named == "get_function_address" and path.name != "llvm.py")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ctypes.cast":
                of, kind = map(ast.unparse, node.args)
                bare |= kind == "ctypes.c_void_p" and not of.startswith("ctypes.c_char_p(")
            if isinstance(node, ast.FunctionDef) and any(
                "cache" in ast.unparse(d) for d in node.decorator_list
            ):
                calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
                bare |= bool(MAKES & {getattr(f, "attr", getattr(f, "id", "")) for f in calls})
            if bare:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_the_runtime_knows_no_passes() -> None:
    for path in modules("runtime"):
        for name, _ in imports(path):
            assert name not in (
                "ostinato.planner.pipeline",
                "ostinato.planner.passes.layouts",
                "ostinato.planner.passes.simplify",
                "ostinato.planner.cache",
            ), path


def test_the_pipeline_stands_beside() -> None:
    for path in modules("io_pipeline"):
        for name, _ in imports(path):
            assert not re.match(r"ostinato\.(planner|runtime)", name)


@pytest.mark.parametrize("room", [*FLOORS, "io_pipeline"])
def test_rooms_have_one_name(room: str) -> None:
    """`import planner` would work from the checkout and make a second copy."""
    for path in modules(room):
        for name, relative in imports(path):
            assert relative or name.split(".")[0] not in (
                "ops",
                "planner",
                "runtime",
                "io_pipeline",
            ), path


def test_a_checkout_is_imported_under_one_name() -> None:
    code = "import sys, ostinato; print([m for m in ('ops', 'planner', 'runtime') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_heavy_libraries_are_imported_when_they_are_used() -> None:
    for room in (*FLOORS, "io_pipeline"):
        for path in modules(room):
            for name, _ in imports(path, top_level=True):
                assert name.split(".")[0] not in HEAVY, (
                    f"{path.relative_to(ROOT)} imports {name} at once"
                )


def run_python(code: str, cwd: Path | None = None, python: str = sys.executable) -> str:
    return subprocess.run(
        [python, "-c", code], cwd=cwd or ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_door_opens_fast_and_alone() -> None:
    code = f"import sys, ostinato; print(sorted(set(m.split('.')[0] for m in sys.modules) & {HEAVY!r}))"
    assert run_python(code).strip() == "[]"


def test_every_package_is_in_the_wheel_list() -> None:
    """A package that is missing there works in a checkout and is absent from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {"ostinato"}
    for room in ("ops", "planner", "runtime", "io_pipeline", "ostinato"):
        for init in (ROOT / room).rglob("__init__.py"):
            inner = ".".join(init.relative_to(ROOT).parts[:-1])
            there.add(inner if room == "ostinato" else f"ostinato.{inner}")
    assert set(listed["packages"]) == there
    assert set(listed["package-dir"]) >= {p for p in there if p.count(".") <= 1}


def test_data_of_packages_is_in_the_wheel_list() -> None:
    """So is a file that is no module."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = set()
    for package, patterns in listed["package-data"].items():
        room = ROOT / listed["package-dir"][package]
        packed |= {path for pattern in patterns for path in room.glob(pattern)}
    there = {
        path
        for room in (*FLOORS, "io_pipeline")
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
    }
    assert packed == there


@pytest.mark.install
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    copy = tmp_path / "source"  # a build leaves its traces, and would find those of the last one
    for room in (*FLOORS, "io_pipeline"):
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "build_backend.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "-q",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(tmp_path),
            str(copy),
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    site = run_python(
        "import sysconfig; print(sysconfig.get_path('purelib'))", tmp_path, python
    ).strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, str(wheel)],
        check=True,
        capture_output=True,
    )
    # its dependencies, from where these tests run; the checkout itself stays out of sight
    (Path(site) / "dependencies.pth").write_text(str(Path(ml_dtypes_home())) + "\n")
    code = (
        "import ostinato as ost, numpy as np; f = ost.compile(lambda x: (x @ x.T).sum()); "
        "print(float(f(np.ones((2, 3)))), ost.__file__); f.plan.explain(); f.plan.draw('p.svg'); "
        "import ostinato.io_pipeline; from ostinato.planner.machine import presets, resolve; "
        "assert [resolve(name).name for name in presets()]"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=env
    )
    value, path = run.stdout.split()
    assert value == "12.0"
    assert path.startswith(site)


def ml_dtypes_home() -> str:
    import ml_dtypes

    return str(Path(ml_dtypes.__file__).parents[1])


def test_sources_name_no_place_of_one_machine() -> None:
    rooms = (*FLOORS, "io_pipeline", "tests", "examples", "benchmarks", "docs")
    for path in [*ROOT.glob("*.*"), *(p for room in rooms for p in (ROOT / room).rglob("*"))]:
        if path.suffix in (".py", ".md", ".toml"):
            text = path.read_text()
            for place in ("/wo" + "rk/", "/ho" + "me/", "/ro" + "ot/"):
                assert place not in text, f"{path.relative_to(ROOT)} names {place}"


def test_the_version_is_the_packages() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ost.__version__ == listed


def test_pipes_hold_no_text_of_machine_code() -> None:
    """What they bring is written in the kernel language (ops/cpu/jit/routine.py)."""
    words = r"getelementptr|\b[if]cmp \w|= phi |\bbr (label|i1) |\bdefine \w.*@|\bdeclare \w.*@|\.let\(|\.lines\.text"
    found = [str(p) for p in modules("io_pipeline") if re.search(words, p.read_text())]
    assert not found


LLVM_TEXT = (  # which is no picture of a graph: that has brackets behind an operation's name
    r"""(?m)^\s*(\*?\(?f?["'])?\s*%[\w{}.$]+ = (?!\w+\()|^\s*(define|declare) .*@"""
)


def test_the_house_does_not_silt_up() -> None:
    """These numbers only become smaller: of lines, of those that are LLVM's text, of those of a file."""
    texts = {path: path.read_text() for room in (*FLOORS, "io_pipeline") for path in modules(room)}
    lines = {path: text.count("\n") for path, text in texts.items()}
    written_out = sum(len(re.findall(LLVM_TEXT, text)) for text in texts.values())
    assert sum(lines.values()) <= 144_650
    assert written_out <= 318
    assert max(lines.values()) <= 900
