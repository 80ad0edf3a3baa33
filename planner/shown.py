"""Text and pictures that show themselves: as they read in a terminal, as HTML or SVG in a notebook."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable

from ostinato.ops.core.show import LONGEST, broken

_INDENT = " " * 10  # as far as the first word of a plan's lines


class Text(str):
    """Text for people. `as_html` makes what a notebook shows of it."""

    as_html: Callable[[], str] | None

    def __new__(cls, text: str, as_html: Callable[[], str] | None = None) -> Text:
        lines = "\n".join(broken(line, _INDENT) for line in text.split("\n")).split("\n")
        made = super().__new__(cls, "\n".join(map(_wrapped, lines)))
        made.as_html = as_html
        return made

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.as_html() if self.as_html is not None else f"<pre>{html.escape(self)}</pre>"


def _wrapped(line: str) -> str:
    if len(line) <= LONGEST:
        return line
    return textwrap.fill(line, LONGEST, subsequent_indent=_INDENT, break_on_hyphens=False)


class Picture(str):
    """A picture, as the text of an SVG file."""

    def __repr__(self) -> str:
        return f"<a picture, {len(self):,} characters of SVG; draw('plan.svg') writes it to a file>"

    def _repr_svg_(self) -> str:
        return str(self)
