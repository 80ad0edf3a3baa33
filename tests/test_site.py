"""The site: it builds without a warning, what it shows runs, and no public name is missing."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import settings

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*")
    if path.suffix in (".md", ".rst")
    and not {"made", "_build"} & set(path.relative_to(DOCS).parts)
    and re.search(r">>> |^\.\. auto", path.read_text(), re.M)
)
ENTRY = re.compile(r"^\.\. auto\w+:: ostinato\.([\w.]+)", re.M)
NEEDS = {
    "from_dask": "dask",
    "coming_from/dask": "dask",
    "from_onnx": "onnx",
    "to_onnx": "onnx",
    "reference/pipes": "PIL",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_examples_of_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a page together; each docstring that it shows by itself, as `help` shows it."""
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.M)
    for said, module in NEEDS.items():
        if (said in text or said in str(page)) and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    shown = {page.name: text}
    shown |= {name: shown_by_help(name) for name in ENTRY.findall(text)}
    told: list[str] = []
    with np.printoptions(precision=4, suppress=True), ost.connect():
        for name, examples in shown.items():
            test = doctest.DocTestParser().get_doctest(
                examples, {"ost": ost, "np": np}, name, str(page), 0
            )
            flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert not told, "".join(told)


def public_object(dotted: str) -> Any:
    return functools.reduce(getattr, dotted.split("."), ost)


def public() -> Iterator[str]:
    for name in dir(ost):
        if name.startswith("_") or name == "errors":  # which automodule shows
            continue
        x = getattr(ost, name)
        if isinstance(x, ModuleType):
            yield from (f"{name}.{inner}" for inner in getattr(x, "__all__", dir(x)))
        else:
            yield name


def test_the_reference_has_every_public_name_with_an_example() -> None:
    """In its docstring, so that `help` shows it, too; constants, which have none, in the page."""
    entries: dict[str, str] = {}
    for page in (DOCS / "reference").glob("*.rst"):
        for entry in re.split(r"^\.\. (?=auto|py:)", page.read_text(), flags=re.M)[1:]:
            name = re.match(r"\S+:: ostinato\.([\w.]+)", entry)
            assert name, entry
            assert name[1] not in entries, f"{name[1]} stands twice"
            entries[name[1]] = entry
    missing = sorted(set(public()) - entries.keys())
    assert not missing, (
        f"docs/reference has no entry `.. autofunction:: ostinato.NAME` of {missing}"
    )
    bare = [
        name
        for name, entry in entries.items()
        if ">>> " not in (entry if entry.startswith("py:") else shown_by_help(name))
    ]
    assert set(bare) <= {"LocalCluster", "errors"}, "each has an example"


def shown_by_help(name: str) -> str:
    return inspect.getdoc(public_object(name)) or ""


def test_names_of_ours_in_pages_exist() -> None:
    said = {
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"(?<![\w.])ost((?:\.\w+)+)", page.read_text())
    }
    assert len(said) > 60
    lost = [name for name in said if not _exists(name)]
    assert lost == [".concatenat"], "which is there to be refused"


def _exists(dotted: str) -> bool:
    x: Any = ost
    for name in dotted.strip(".").split("."):
        x = getattr(x, name, None)
    return x is not None


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        str(tmp_path / "d"),
    ]
    ran = subprocess.run(
        [*command, "-D", "ran=kmeans", str(DOCS), str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    site = tmp_path / "site"
    assert "fused(" in next((site / "_images").glob("kmeans*.svg")).read_text()
    shown = (site / "made" / "settings.html").read_text()
    variables = set(re.findall(r"^(OSTINATO_\w+)", settings.__doc__ or "", re.M))
    assert len(variables) > 10
    assert all(f">{name}<" in shown for name in variables)
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    for inner in ("TypeAliasForwardRef", " object at 0x", "&lt;function ", "~T"):
        assert not [page.name for page, text in pages.items() if inner in text], inner
    assert 'href="../trust.html"' in pages[site / "guides" / "plans.html"]
    gallery = (site / "made" / "gallery.html").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        assert f'href="gallery/{example.stem}.html"' in gallery
    assert re.search(r'<img[^>]*src="[^"]*kmeans[^"]*\.svg"', gallery)
    assert "k-means, written as one would on paper" in gallery
    commands = (site / "made" / "commands.html").read_text()
    assert all(f"ostinato {name}" in commands for name in ("run", "worker", "cache prune", "tune"))
