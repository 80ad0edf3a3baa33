"""Graphs as text that people read and that parses back.

(%0: float32[8,4], %1: float32[4])
%2 = add(%0, %1) : float32[8,4]
%3 = sum(%2; axes=(1,), keepdims=False) : float32[8]
return %3
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from .encode import nan_bits, nan_of
from .graph import Graph, Node
from .layout import Layout, Overlap, Partial, Placement
from .spec import DTYPES, Spec


def show_value(value: Any, indent: str = "") -> str:
    if isinstance(value, np.dtype):
        return f"dtype {value.name}"
    if isinstance(value, Layout):
        return f"<{value}>"
    if isinstance(value, Graph):
        return "{\n" + show(value, indent + "    ") + f"\n{indent}" + "}"
    if isinstance(value, tuple):
        inner = ", ".join(show_value(v, indent) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, complex):
        return f"complex({show_value(value.real)}, {show_value(value.imag)})"
    if isinstance(value, float) and (bits := nan_bits(value)):
        return f"nan '{bits}'"
    return repr(value)


LONGEST = 200  # characters of a line
_PIECES = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|<[^>]*>|[^'"<])+?(?:, |$)""")


def broken(line: str, indent: str) -> str:
    """A line that is too long, as several, which end behind commas that are in no text and no layout."""
    if len(line) <= LONGEST:
        return line
    rows, pieces = [""], _PIECES.findall(line)
    if "".join(pieces) != line:  # of people's words, in which there is an apostrophe
        return line
    for piece in pieces:
        if len(rows[-1]) + len(piece) > LONGEST and rows[-1].strip():
            rows.append(indent)
        rows[-1] += piece
    return "\n".join(row.rstrip() for row in rows)


def show(graph: Graph, indent: str = "") -> str:
    rows = [indent + "(" + ", ".join(f"%{k}: {s}" for k, s in enumerate(graph.inputs)) + ")"]
    for node, first in zip(graph.nodes, graph.starts, strict=True):
        left = ", ".join(f"%{first + k}" for k in range(len(node.specs)))
        inner = ", ".join(f"%{v}" for v in node.inputs)
        if node.params:
            inner += "; " + ", ".join(f"{k}={show_value(v, indent)}" for k, v in node.params)
        types = ", ".join(map(str, node.specs))
        rows.append(f"{indent}{left} = {node.op}({inner}) : {types}")
    rows.append(indent + "return " + ", ".join(f"%{v}" for v in graph.outputs))
    return "\n".join(broken(line, indent + "  ") for row in rows for line in row.split("\n"))


Graph.__repr__ = show  # type: ignore[method-assign, assignment]


_TOKEN = re.compile(
    r"\s*(?:(?P<value>%\d+)|(?P<layout><[^>]*>)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<mesh>\d+(?:x\d+)+)|(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)\b)|(?P<name>[A-Za-z_]\w*)|(?P<mark>[^\s\w]))"
)


class _Reader:
    """A cursor over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens = list(self._scan(text))
        self.at = 0

    @staticmethod
    def _scan(text: str) -> Iterator[tuple[str, str]]:
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"cannot read graph text at {text[at : at + 30]!r}")
            at = match.end()
            yield str(match.lastgroup), match[str(match.lastgroup)]

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def next(self, kind: str = "") -> str:
        found, text = self.tokens[self.at]
        if kind and found != kind:
            raise ValueError(f"expected a {kind} where {text!r} stands")
        self.at += 1
        return text

    def skip(self, text: str) -> bool:
        if self.peek() == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.skip(text):
            raise ValueError(f"expected {text!r} where {self.peek()!r} stands")

    def spec(self) -> Spec:
        pending = self.skip("pending")
        dtype = DTYPES[self.next("name")]
        self.expect("[")
        shape = []
        while not self.skip("]"):
            shape.append(int(self.next("number")))
            self.skip(",")
        layout = self.layout() if self.skip("@") else None
        return Spec(tuple(shape), dtype, layout, pending)

    def layout(self) -> Layout:
        words: list[str] = []
        while words[-2:-1] != ["of"]:
            words.append(self.next())
        while self.peek() in ("in", "on"):
            words += [self.next(), self.next()]
        return parse_layout(" ".join(words))

    def param(self) -> Any:
        kind, text = self.tokens[self.at]
        if text == "{":
            self.at += 1
            graph = self.graph()
            self.expect("}")
            return graph
        if text == "(":
            self.at += 1
            values = []
            while not self.skip(")"):
                values.append(self.param())
                self.skip(",")
            return tuple(values)
        self.at += 1
        if kind == "layout":
            return parse_layout(text[1:-1])
        if kind == "text":
            import ast

            return ast.literal_eval(text)
        if kind == "number":
            if text == "nan" and self.tokens[self.at][0] == "text":
                return nan_of(self.next()[1:-1])
            return float(text) if re.search(r"[.en]", text) else int(text)
        if text == "dtype":
            return DTYPES[self.next("name")]
        if text == "complex":
            return complex(*self.param())
        return {"True": True, "False": False, "None": None}[text]

    def values(self) -> list[int]:
        found = []
        while self.peek().startswith("%"):
            found.append(int(self.next("value")[1:]))
            if not self.skip(","):
                break
        return found

    def graph(self) -> Graph:
        self.expect("(")
        inputs = []
        while not self.skip(")"):
            self.next("value")
            self.expect(":")
            inputs.append(self.spec())
            self.skip(",")
        nodes = []
        while not self.skip("return"):
            self.values()
            self.expect("=")
            name = self.next("name")
            self.expect("(")
            read = self.values()
            params = {}
            if self.skip(";"):
                while self.peek() != ")":
                    key = self.next("name")
                    self.expect("=")
                    params[key] = self.param()
                    self.skip(",")
            self.expect(")")
            self.expect(":")
            specs = [self.spec()]
            while self.skip(","):
                specs.append(self.spec())
            nodes.append(Node(name, tuple(read), tuple(sorted(params.items())), tuple(specs)))
        return Graph(tuple(inputs), tuple(nodes), tuple(self.values()))


def parse(text: str) -> Graph:
    """The graph that `show` wrote."""
    reader = _Reader(text)
    graph = reader.graph()
    if reader.at != len(reader.tokens):
        raise ValueError(f"more text after the graph: {reader.peek()!r}")
    return graph


def parse_layout(text: str) -> Layout:
    """The layout that its repr wrote: `split 0 on axis 0, partial sum on axis 1 of 3x2 in
    blocks`."""
    text, stored = text.removesuffix(" on disk"), text.endswith(" on disk")
    text, blocks = text.removesuffix(" in blocks"), text.endswith(" in blocks")
    words, _, mesh_text = text.rpartition(" of ")
    mesh = tuple(int(n) for n in mesh_text.replace(" ", "").split("x"))
    splits: list[Placement] = [None] * len(mesh)
    windows: dict[int, Overlap] = {}
    for word in re.split(r"\s*,\s*", words):
        match = re.fullmatch(
            r"(?:split (\d+)(?: window ([-\d :]+))?|partial (\w+))(?: on axis (\d+))?", word.strip()
        )
        if match is None:
            if word.strip() != "whole":
                raise ValueError(f"cannot read the layout {text!r}")
            continue
        dim, window, monoid, axis = match.groups()
        splits[int(axis or 0)] = Partial(monoid) if monoid else int(dim)
        if window:
            windows[int(dim)] = Overlap(*(int(n) for n in window.replace(" ", "").split(":")))
    return Layout(mesh, tuple(splits), tuple(sorted(windows.items())), blocks, stored)
