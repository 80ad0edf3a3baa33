"""What documents say of the checkout is true: paths, lines, passes, commands, names."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from ostinato.planner import pipeline
from ostinato.planner.cpu import passes as cpu
from ostinato.planner.passes.memory import assign_memory

import ostinato as ost
from benchmarks.__main__ import SUITES
from ostinato import command

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("ops", "planner", "runtime", "ostinato", "io_pipeline")
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", *(f"{room}/**/*.md" for room in ROOMS))
    for path in ROOT.glob(pattern)
    if not {"made", "_build"} & set(path.parts)  # which `make docs` leaves
)
ARCHITECTURE = ROOT / "docs/architecture.md"
USERS = ("train.py", "script.py")  # files that users of examples have
COLUMNS, LINES, WORDS = 100, 215, 25

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=str)


def spans(text: str) -> list[str]:
    """What stands in backticks, outside of blocks of code."""
    return re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def commands(text: str) -> Iterator[list[str]]:
    """Commands for a shell: lines of blocks of code, and what stands in backticks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()] + spans(text)
    for line in lines:
        for one in line.partition("#")[0].split("&&"):
            words = one.split()
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


def test_all_documents_are_looked_at() -> None:
    names = {str(d) for d in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ops/cpu/README.md"} <= names
    assert {f"docs/{n}.md" for n in ("architecture", "cluster", "performance", "trust")} <= names


# -- paths -----------------------------------------------------------------------------------
def is_path(word: str) -> bool:
    """Whether it names a file or folder of a checkout: `ops/cpu`, `tests/`, `conftest.py`, not `a / b`."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", word) or word in USERS:
        return False
    return "/" in word or word.endswith((".py", ".md", ".toml"))


@every_document
def test_paths_exist(document: Path) -> None:
    text = (ROOT / document).read_text()
    here = ROOT / document.parent
    links = [
        link.partition("#")[0]
        for link in re.findall(r"\]\(([^)]+)\)", text)
        if not link.startswith(("http", "#"))
    ]
    lost = [link for link in links if not (here / link).exists()]
    named = [word for word in spans(text) if is_path(word)]
    lost += [word for word in named if not ((here / word).exists() or (ROOT / word).exists())]
    assert not lost, f"{document} names what is not there: {lost}"


def test_the_rooms_are_those_that_there_are() -> None:
    """The tree of folders in the architecture, one and two deep."""
    (block,) = re.findall(r"^## The rooms\n+```\n(.*?)^```", ARCHITECTURE.read_text(), re.M | re.S)
    listed, room = set(), ""
    for indent, name in re.findall(r"^( *)(\w+)/ ", block, re.M):
        room = room if indent else name
        listed.add(f"{room}/{name}" if indent else name)
    packages = {
        str(path.parent.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")
    }
    assert listed == {p for p in packages if p.count("/") < 2}


def remarks(path: Path) -> Iterator[str]:
    """The comments and docstrings of a file."""
    with path.open("rb") as file:
        yield from (
            t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT
        )
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_files_that_comments_name_exist() -> None:
    """From the file's own folder, or from one above it: `conftest.py`, or `tests/conftest.py`."""
    lost = []
    for room in (*ROOMS, "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / room).rglob("*.py")):
            above = [folder for folder in path.parents if folder == ROOT or ROOT in folder.parents]
            names = {
                name
                for name in re.findall(r"(?<![\w./-])\w[\w/-]*\.py\b", path.read_text())
                if name not in USERS and not any((folder / name).exists() for folder in above)
            }  # also in code, which is told apart only then
            said = "\n".join(remarks(path)) if names else ""
            lost += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in sorted(names)
                if re.search(rf"(?<![\w./-]){re.escape(name)}\b", said)
            ]
    assert not lost, "\n".join(lost)


# -- lines -----------------------------------------------------------------------------------
@every_document
def test_lines_are_short(document: Path) -> None:
    """Addresses, which cannot be broken, do not count."""
    lines = (ROOT / document).read_text().splitlines()
    long = {
        n: len(line)
        for n, line in enumerate(lines, 1)
        if len(re.sub(r"https?://[^\s)]+", "", line)) > COLUMNS
    }
    assert not long, f"{document} has lines of more than {COLUMNS} columns: {long}"


def rows(heading: str) -> list[str]:
    """The first cells of the table under a heading of the architecture."""
    _, _, rest = ARCHITECTURE.read_text().partition(f"\n## {heading}\n")
    found = re.findall(r"^\| (.*?) \|", rest.partition("\n## ")[0], re.M)
    return [re.sub("`", "", cell) for cell in found[1:]]


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text().splitlines()) <= LINES
    assert 10 < len(rows("Glossary")) <= WORDS


# -- passes ----------------------------------------------------------------------------------
def called(node: ast.AST) -> Iterator[str]:
    """Names of functions in the order in which they are called."""
    for inner in ast.iter_child_nodes(node):
        yield from called(inner)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield node.func.id


def test_the_table_of_passes_is_what_runs() -> None:
    named = [run.__name__ for run in (*pipeline.PASSES, *cpu.PASSES, assign_memory)]
    assert rows("The passes") == named


# -- commands and names ----------------------------------------------------------------------
def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def complaint(words: list[str], known: set[str]) -> str:
    """What is wrong with a command; empty if nothing."""
    match words:
        case ["make", target, *_]:
            return "" if target in known else "no such target"
        case ["python", "-m", "benchmarks", suite, *_]:
            return "" if suite in SUITES else "no such suite"
        case ["python", "-m", module, *_]:
            return "" if importlib.util.find_spec(module) else "no such module"
        case ["python", path, *_] if path not in USERS:
            return "" if (ROOT / path).exists() else "no such file"
        case ["ostinato", name, *_] if not name.startswith("-"):
            return "" if re.search(rf"^    ostinato {name}\b", command._ABOUT, re.M) else "no such"
    return ""


@every_document
def test_commands_exist(document: Path) -> None:
    known = targets()
    wrong = [
        f"{' '.join(words)}: {said}"
        for words in commands((ROOT / document).read_text())
        if (said := complaint(words, known))
    ]
    assert not wrong, f"{document}: {wrong}"


@every_document
def test_names_exist(document: Path) -> None:
    """What is called `ost.x` or `plan.x` in backticks, and variables of the environment."""
    text = (ROOT / document).read_text()
    said = " ".join(spans(text))
    lost = [n for n in re.findall(r"\bost\.(\w+)", said) if not hasattr(ost, n)]
    of_plans = {*dir(ost.Plan), *(f.name for f in fields(ost.Plan))}
    lost += [n for n in re.findall(r"(?<![\"/])\bplan\.(\w+)", said) if n not in of_plans]
    product = "".join(p.read_text() for room in ROOMS for p in (ROOT / room).rglob("*.py"))
    lost += [n for n in set(re.findall(r"\bOSTINATO_[A-Z_]+\b", text)) if n not in product]
    assert not lost, f"{document} names what is not there: {lost}"


@pytest.mark.parametrize(
    "document",
    ["docs/architecture.md", "ops/cpu/README.md", "CONTRIBUTING.md"],
)
def test_code_has_what_is_called_so(document: str) -> None:
    """Names in backticks, such as `Op.pieces`, `same_program` or `kernel=`, are names in the code."""
    files = [p for room in (*ROOMS, "tests/ops") for p in (ROOT / room).rglob("*.py")]
    code = "".join(p.read_text() for p in files)
    known = {*re.findall(r"\w+", code), *targets()}
    said = [
        name
        for span in spans((ROOT / document).read_text())
        if not is_path(span) and (match := re.fullmatch(r"([A-Za-z_][\w.]*)(=|\(.*\))?", span))
        for name in match[1].split(".")
    ]
    assert len(said) > 10
    lost = [name for name in said if name not in known]
    assert not lost, f"{document} names what is not there: {lost}"


def test_the_operation_of_the_guide_is_one() -> None:
    """The block of CONTRIBUTING.md, in a process of its own, with its kernel and gradient."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    code = f"""
import numpy as np
import ostinato as ost
from ostinato.ops.array.elementwise import *
from ostinato.ops.array.elementwise import Unary, unary

def _softsign_kernel(xp, out, x):
    xp.divide(x, 1 + xp.abs(x), out)

{block}
x = np.linspace(-3, 3, 50_000)
for f in (softsign, ost.compile(lambda x: softsign(2 * x) * 2)):
    k = 1 if f is softsign else 2
    np.testing.assert_allclose(f(ost.asarray(x)), k * k * x / (1 + k * abs(x)), rtol=1e-15)
assert "/ (" in f.plan.source(), f.plan.source()
slope = ost.grad(lambda x: softsign(x).sum())(ost.asarray(x))
np.testing.assert_allclose(slope, 1 / (1 + abs(x)) ** 2, rtol=1e-14)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
