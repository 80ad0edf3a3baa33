"""Pages that are made: the gallery from examples, commands from parsers, settings from a docstring."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ostinato import settings
from ostinato.command import commands

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 300  # seconds that an example may run

# Runs an example as a script, and draws the plan with most nodes of the functions that it compiled.
RUN = """
import runpy, sys
from ostinato.compiled import CompiledFunction
path, picture = sys.argv[1:]
sys.argv = [path]
space = runpy.run_path(path, run_name="__main__")
plans = [f.last.plan for f in space.values() if isinstance(f, CompiledFunction) and f.last]
if plans:
    max(plans, key=lambda plan: len(plan.traced.nodes)).draw(picture)
"""


def write(docs: Path, ran: str) -> None:
    """All of them, below docs/made; examples that `ran` matches are run."""
    made = docs / "made"
    (made / "gallery").mkdir(parents=True, exist_ok=True)
    (made / "commands.md").write_text(_commands())
    (made / "settings.md").write_text(_settings())
    titles, names = _titles(docs), list[str]()
    parts = [
        "# Gallery",
        "Each page is a file of `examples/`, what it prints, and one of its plans.",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        title = titles.get(path.stem, path.stem.replace("_", " ").capitalize())
        page = made / "gallery" / f"{path.stem}.md"
        text, first, pictures = _example(path, page, title, bool(re.fullmatch(ran, path.stem)))
        page.write_text(text)
        parts += [f"## [{title}](gallery/{page.name})", first.partition(" Try: ")[0]]
        parts += [
            f"```{{image}} gallery/{p}\n:class: small\n:alt: {title}\n```" for p in pictures[:2]
        ]
        names.append(f"gallery/{path.stem}")
    listed = "\n".join(names)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{listed}\n```")
    (made / "gallery.md").write_text("\n\n".join(parts) + "\n")


def _titles(docs: Path) -> dict[str, str]:
    """What the page on features calls the examples."""
    found = re.findall(
        r"\[([^\]]+)\]\(\.\./examples/(\w+)\.py\)", (docs / "features.md").read_text()
    )
    return {stem: " ".join((title[0].upper() + title[1:]).split()) for title, stem in found}


def _example(path: Path, page: Path, title: str, is_run: bool) -> tuple[str, str, list[str]]:
    """Its page, what it says of itself, and its pictures."""
    source = path.read_text()
    said = ast.get_docstring(ast.parse(source)) or ""
    first, _, rest = said.partition("\n\n")
    parts, pictures = [f"# {title}", first, rest], list[str]()
    parts.append(f"```python\n{source[source.index('from __future__') :].rstrip()}\n```")
    if is_run:
        picture = page.with_suffix(".svg")
        picture.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            printed = _run(path, picture, Path(folder))
            left = [p for p in sorted(Path(folder).rglob("*")) if p.suffix in (".png", ".svg")]
            shown = [shutil.copy(p, page.with_name(f"{path.stem}_{p.name}")) for p in left]
        parts.append(f"## What it prints\n\n```text\n{printed.rstrip()}\n```")
        pictures = [Path(p).name for p in shown]
        if pictures:
            parts += ["## Pictures that it leaves", *(f"![]({name})" for name in pictures)]
        if picture.exists():
            parts.append(f"## One of its plans\n\n![]({picture.name})")
            pictures.append(picture.name)
    return "\n\n".join(part for part in parts if part) + "\n", first, pictures


def _run(path: Path, picture: Path, folder: Path) -> str:
    """What an example prints that runs in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(path.parent)])}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(picture)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"{path.name} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return ran.stdout


def _commands() -> str:
    parts = ["# Commands", _block(commands())]
    for name, parser in sorted(_below(commands())):
        parts += [f"## ostinato {name}", _block(parser)]
    return "\n\n".join(parts) + "\n"


def _below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield name, one
                yield from ((f"{name} {inner}", other) for inner, other in _below(one))


def _block(parser: argparse.ArgumentParser) -> str:
    return f"```text\n{parser.format_help().rstrip()}\n```"


def _settings() -> str:
    """A section for each variable of the docstring: `NAME  what it does`, on lines indented alike."""
    first, table = (settings.__doc__ or "").split("\n\n", 1)
    parts = ["# Settings", first]
    for name, text in re.findall(r"^(OSTINATO_\w+) +(.*(?:\n +.*)*)", table, re.M):
        parts += [f"## {name}", re.sub(r"\s+", " ", text).strip()]
    return "\n\n".join(parts) + "\n"
