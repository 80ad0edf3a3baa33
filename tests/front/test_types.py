"""Type checkers see what users see: real signatures, from a checkout, a wheel and an editable install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
import venv
from pathlib import Path
from typing import Any

import pytest

import ostinato as ost
from tests import kept
from tests.front.typed_mistakes import BEGIN, RIGHT, WRONG

pytest.importorskip("mypy")
ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("ops", "planner", "runtime", "io_pipeline", "ostinato")
MISTAKES = WRONG.strip().splitlines()
CONFIGURATION = """[mypy]
[mypy-dask.*,distributed.*,bokeh.*,tornado.*,h5py.*,zarr.*,PIL.*,pyarrow.*,jax.*,torch.*,rich.*]
follow_imports = skip
[mypy-ostinato.*]
ignore_errors = true
"""
NAMESPACES = {
    "": ost,
    "fft.": ost.fft,
    "linalg.": ost.linalg,
    "nn.": ost.nn,
    "nn.initializers.": ost.nn.initializers,
    "random.": ost.random,
    "special.": ost.special,
    "signal.": ost.signal,
    "solve.": ost.solve,
    "optim.": ost.optim,
    "debug.": ost.debug,
    "io.": ost.io,
    "io.datasets.": ost.io.datasets,
    "training.": ost.training,
    "errors.": ost.errors,
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package lies as it does when it is installed."""
    folder = tmp_path_factory.mktemp("linked")
    (folder / "ostinato").mkdir()
    for path in (ROOT / "ostinato").iterdir():
        if (
            path.suffix in (".py", ".pyi")
            or path.name == "py.typed"
            or (path / "__init__.py").exists()
        ):
            (folder / "ostinato" / path.name).symlink_to(path)
    for room in ROOMS[:-1]:
        (folder / "ostinato" / room).symlink_to(ROOT / room)
    return folder


@pytest.fixture(scope="module")
def cache() -> Path:
    """What mypy knows of a file it knows of the same file elsewhere, and in the next run: it compares what
    they contain."""
    return kept.folder() / "mypy"


def checked(cache: Path, at: Path, how: dict[str, str], **texts: str) -> dict[str, str]:
    """What mypy says of scripts that are nobody's but the user's. `how`: a python in which the package is
    installed, or else a path on which it lies."""
    at.mkdir(exist_ok=True)
    for name, text in texts.items():
        (at / f"{name}.py").write_text(text)
    (at / "mypy.ini").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    python = how.get("python", sys.executable)
    command += ["--python-executable", python, "--cache-dir", str(cache)]
    command += [f"{name}.py" for name in texts]
    run = subprocess.run(
        command,
        cwd=at,
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "MYPYPATH": how.get("path", ""),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    lines = run.stdout.splitlines(True)
    return {name: "".join(x for x in lines if x.startswith(f"{name}.py:")) for name in texts}


def check(cache: Path, at: Path, **how: str) -> None:
    """Nothing is said of what is right, and something of each mistake."""
    said = checked(cache, at, how, right=RIGHT, wrong=BEGIN + WRONG)
    assert said["right"] == ""
    first = len(BEGIN.splitlines()) + 2
    found = {int(n) for n in re.findall(r"^wrong\.py:(\d+): error", said["wrong"], re.M)}
    assert min(found) >= first, said["wrong"]
    missed = [line for n, line in enumerate(MISTAKES, first) if n not in found]
    assert missed == []


def test_there_are_sixty() -> None:
    assert len(set(MISTAKES)) == len(MISTAKES) >= 60


def test_each_mistake_is_found(linked: Path, cache: Path, tmp_path: Path) -> None:
    check(cache, tmp_path, path=str(linked))


def test_signatures_are_real(linked: Path, cache: Path, tmp_path: Path) -> None:
    """No function takes just anything and gives just anything."""
    names = [
        f"{prefix}{name}"
        for prefix, space in NAMESPACES.items()
        for name in dir(space)
        if not name.startswith("_") and isinstance(getattr(space, name), types.FunctionType)
    ]
    assert len(names) > 350
    text = "import ostinato as ost\n" + "".join(f"reveal_type(ost.{n})\n" for n in names)
    said = checked(cache, tmp_path, {"path": str(linked)}, script=text)["script"]
    told = re.findall(r'^script\.py:\d+: note: Revealed type is "(.*)"$', said, re.M)
    assert len(told) == len(names), said[:2000]
    loose = [n for n, kind in zip(names, told, strict=True) if kind[4:] == "(*Any, **Any) -> Any"]
    assert loose == []
    for n, kind in zip(names, told, strict=True):
        assert not re.search(r"\bUnknown\b|\bNever\b", kind), n


BIN = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
PYRIGHT = shutil.which("pyright") or shutil.which("basedpyright", path=BIN)


@pytest.mark.skipif(PYRIGHT is None, reason="no pyright: pip install basedpyright")
def test_pyright_finds_them_too(linked: Path, tmp_path: Path) -> None:
    check_by_pyright(tmp_path, sys.executable, extraPaths=[str(linked)])


def check_by_pyright(at: Path, python: str, **configuration: Any) -> None:
    """As `check` does."""
    configuration["typeCheckingMode"] = "strict"
    (at / "pyrightconfig.json").write_text(json.dumps(configuration))
    texts = {"right.py": RIGHT, "wrong.py": BEGIN + WRONG}
    for name, text in texts.items():
        (at / name).write_text(text)
    run = subprocess.run(
        [str(PYRIGHT), "--outputjson", "--pythonpath", python, *texts],
        cwd=at,
        capture_output=True,
        text=True,
    )
    found: dict[str, dict[int, str]] = {name: {} for name in texts}
    for d in json.loads(run.stdout)["generalDiagnostics"]:
        if d["severity"] == "error" and not d.get("rule", "").startswith("reportUnknown"):
            found[Path(d["file"]).name][d["range"]["start"]["line"] + 1] = d["message"]
    assert found["right.py"] == {}
    first = len(BEGIN.splitlines()) + 2
    assert min(found["wrong.py"]) >= first
    assert [line for n, line in enumerate(MISTAKES, first) if n not in found["wrong.py"]] == []


# -- completion ----------------------------------------------------------------------------
@pytest.mark.parametrize("prefix", NAMESPACES)
def test_completion_lists_no_internals(prefix: str) -> None:
    """What stands behind the dot is what users may use: no modules of ours, nothing that was imported."""
    space = NAMESPACES[prefix]
    spaces = {name.rstrip(".") for name in NAMESPACES}
    names = [n for n in dir(space) if not n.startswith("_")]
    assert names
    assert names == sorted(names) or prefix == "io."
    for name in names:
        value = getattr(space, name)
        if isinstance(value, types.ModuleType):
            assert f"{prefix}{name}" in spaces, f"{prefix}{name} is a module"
        home = getattr(value, "__module__", None) or "ostinato"
        assert home.startswith("ostinato") or not callable(value), f"{prefix}{name} is of {home}"


def test_completion_of_objects() -> None:
    x = ost.ones(3)
    f = ost.compile(lambda x: x)
    for thing in (x, f, ost.session(), ost.profile()):
        assert "__class__" in dir(thing)
        assert [n for n in dir(thing) if not n.startswith("_")]


# -- installed -----------------------------------------------------------------------------
@pytest.mark.install
@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_types_of_an_installed_package(how: str, cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "build_backend.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = str(home / "bin" / "python")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    import ml_dtypes

    (site / "dependencies.pth").write_text(f"{Path(ml_dtypes.__file__).parents[1]}\n")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    command += ["--no-build-isolation", *(["-e"] if how == "editable" else []), str(copy)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    if how == "wheel" or PYRIGHT is None:
        check(cache, tmp_path / "user", python=python)
        return
    (tmp_path / "user").mkdir()
    check_by_pyright(tmp_path / "user", python)
    (copy / "ostinato" / "new.py").write_text("from .ops.later import MADE as MADE")
    (copy / "ops" / "later.py").write_text("MADE = 'of files that were made since'")
    asked = [python, "-c", "import ostinato.new as n; print(n.MADE)"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert said.stdout == "of files that were made since\n"
