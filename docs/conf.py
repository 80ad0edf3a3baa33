"""How `make docs` builds the site. Pages are Markdown, the reference is docstrings with examples; the pages
of the gallery, of commands and of settings are made here, from the examples, the parsers, and settings.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import pages  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import ostinato as ost  # noqa: E402

project = "Ostinato"
author = "The Ostinato developers"
copyright = author
release = version = ost.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "*.py", "**/__pycache__"]
html_theme = "furo"
html_title = "Ostinato"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Operandish": "ArrayLike"}
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"


MADE = {"ostinato.Plan", "ostinato.Array", "ostinato.io.Pipe", "ostinato.Saving"}


def readable(
    app: object, what: str, name: str, x: object, options: object, lines: list[str]
) -> None:
    """Docstrings as reStructuredText: what is indented is code, `x*` is no emphasis; examples stay as
    they are."""
    made: list[str] = []
    is_example = False
    for line in lines:
        is_example = line.startswith(">>>") or (is_example and line != "")
        if is_example:
            made.append(line)
            continue
        is_code = line.startswith("    ")
        if is_code and made and not made[-1] and not _in_code(made):
            made += ["::", ""]
        made.append(line if is_code else re.sub(r"(?<![`\\])([*|])(?![^`]*`[^`]*$)", r"\\\1", line))
    lines[:] = made


FOR_CHECKERS = {
    "ostinato.gradients",
    "ostinato.ops.flow.branches",
    "ostinato.ops.flow.repeat_scan",
    "ostinato.ops.flow.while_loops",
}  # overloads of which people need none


def one_signature(analyze: Any = ModuleAnalyzer.analyze) -> None:
    def found(self: ModuleAnalyzer) -> None:
        analyze(self)
        if self.modname in FOR_CHECKERS:
            self.overloads = {}

    ModuleAnalyzer.analyze = found  # type: ignore[method-assign]


def signed(
    app: object,
    what: str,
    name: str,
    x: object,
    options: object,
    signature: str | None,
    gives: str | None,
) -> tuple[str, str | None] | None:
    """Aliases within other types have their names. What classes take that nobody makes by hand is left
    out."""
    if what == "class" and name in MADE:
        return "", ""
    if signature is None:
        return None
    found = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature)
    return found.replace(" = -99", " = ..."), gives


def _in_code(made: list[str]) -> bool:
    """Whether the last paragraph that is not empty belongs to a block of code."""
    last = next((line for line in reversed(made) if line.strip()), "")
    return last.startswith("    ") or last == "::"


def outside(app: object, docname: str, source: list[str]) -> None:
    """Links to files beside the documents lead to the gallery, or become the file's name."""
    text = re.sub(r"\]\((?:\.\./)*examples/(\w+)\.py\)", _shown(docname), source[0])

    def kept(link: re.Match[str]) -> str:
        there = (HERE / docname).parent / link[2]
        return link[0] if there.resolve().is_relative_to(HERE) else link[1]

    source[0] = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)[^)]*\)", kept, text)


def _shown(docname: str) -> str:
    return "](" + "../" * docname.count("/") + r"made/gallery/\1.md)"


def setup(app: Any) -> None:
    one_signature()
    app.add_config_value("ran", ".*", "env", str)  # which examples are run for the gallery
    app.connect("autodoc-process-docstring", readable)
    app.connect("autodoc-process-signature", signed)
    app.connect("source-read", outside)
    app.connect("config-inited", lambda app, config: pages.write(HERE, config.ran))
