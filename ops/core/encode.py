"""Graphs as plain JSON-able lists, and back: what is hashed for an id, kept in a plan file, and
sent to workers.

Decoding trusts nothing: every field is checked for its type and range, and `check_graph`
(planner/check.py) then checks the meaning."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .graph import Graph, Node
from .layout import Layout, Overlap, Partial, Placement
from .monoid import MONOIDS
from .spec import DTYPES, Spec

LARGEST = 2**64  # of any integer that a file may contain
DEEPEST = 32  # of graphs inside graphs


Lines = Mapping[str, str]
_AS_WRITTEN: Lines = {}


class Malformed(ValueError):
    """What is wrong with encoded data."""


def encode_value(value: Any, lines: bool = False) -> Any:
    """One parameter. Lists are tuples; what JSON has no word for is a one-key object."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": nan_bits(value) or repr(value)}
    if isinstance(value, complex):
        return {"c": [encode_value(value.real), encode_value(value.imag)]}
    if isinstance(value, tuple):
        return [encode_value(v) for v in value]
    if isinstance(value, np.dtype):
        return {"d": value.name}
    if isinstance(value, Layout):
        return {"l": encode_layout(value)}
    if isinstance(value, Graph):
        return {"g": encode_graph(value, lines)}
    raise TypeError(f"{type(value).__name__} cannot be a parameter of an operation")


def nan_bits(value: float) -> str:
    """Encode the bits of an unusual NaN; empty for other numbers."""
    found = struct.pack(">d", value).hex()
    return found if math.isnan(value) and found != "7ff8000000000000" else ""


def nan_of(text: str) -> float:
    need(re.fullmatch("[0-9a-f]{16}", text) is not None, f"a float {text!r:.40}")
    found = struct.unpack(">d", bytes.fromhex(text))[0]
    need(math.isnan(found), f"a float {text!r:.40}")
    return float(found)


def encode_layout(layout: Layout) -> list[Any]:
    splits = [s.monoid if isinstance(s, Partial) else s for s in layout.splits]
    windows = [[d, *w.numbers] for d, w in layout.windows]
    return [list(layout.mesh), splits, windows, layout.blocks, layout.stored]


def encode_spec(spec: Spec) -> list[Any]:
    layout = encode_layout(spec.layout) if spec.layout is not None else None
    return [list(spec.shape), spec.dtype.name, layout, spec.pending]


def encode_graph(graph: Graph, lines: bool = False) -> dict[str, Any]:
    """With `lines`, the user's lines too, which are no part of a graph's identity."""
    table: dict[Spec, int] = {}
    named: dict[str, int] = {}

    def index_of(spec: Spec) -> int:
        return table.setdefault(spec, len(table))

    inputs = [index_of(s) for s in graph.inputs]
    nodes = []
    for node in graph.nodes:
        params = {k: encode_value(v, lines) for k, v in node.params}
        made: list[Any] = [node.op, list(node.inputs), params, [index_of(s) for s in node.specs]]
        if lines:
            made.append(named.setdefault(node.line, len(named)))
        nodes.append(made)
    found: dict[str, Any] = {
        "inputs": inputs,
        "nodes": nodes,
        "outputs": list(graph.outputs),
        "specs": [encode_spec(s) for s in table],
    }
    if lines:
        found["lines"] = list(named)
    return found


def encoded_lines(value: Any) -> Iterator[str]:
    """Iterate over the lines of a graph that was encoded with them."""
    for _, _, params, _, number in value["nodes"]:
        yield value["lines"][number]
        for content in params.values():
            if isinstance(content, dict) and "g" in content:
                yield from encoded_lines(content["g"])


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Malformed(what)


def integer(value: Any, low: int = -LARGEST, high: int = LARGEST) -> int:
    need(type(value) is int and low <= value <= high, f"{value!r:.40} where a number was expected")
    return int(value)


def listing(
    value: Any, of: Callable[[Any], Any] | None = None, longest: int = 1 << 22
) -> list[Any]:
    need(
        isinstance(value, list) and len(value) <= longest,
        f"{value!r:.40} where a list was expected",
    )
    return [of(v) for v in value] if of is not None else list(value)


def fields(value: Any, *names: str) -> list[Any]:
    need(isinstance(value, dict), f"{value!r:.40} where an object was expected")
    for name in names:
        need(name in value, f"no field {name!r}")
    return [value[name] for name in names]


def decode_value(value: Any, depth: int = 0, now: Lines = _AS_WRITTEN) -> Any:
    need(depth < DEEPEST, "parameters inside parameters without end")
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, list):
        return tuple(decode_value(v, depth + 1, now) for v in value)
    need(isinstance(value, dict) and len(value) == 1, f"a parameter {value!r:.40}")
    ((kind, content),) = value.items()
    match kind:
        case "f":
            need(isinstance(content, str), f"a float {content!r:.40}")
            return float(content) if content in ("nan", "inf", "-inf") else nan_of(content)
        case "c":
            real, imag = listing(content, longest=2)
            return complex(decode_value(real, depth + 1), decode_value(imag, depth + 1))
        case "d":
            need(isinstance(content, str) and content in DTYPES, f"a dtype {content!r:.40}")
            return DTYPES[content]
        case "l":
            return decode_layout(content)
        case "g":
            return decode_graph(content, depth + 1, now)
    raise Malformed(f"a parameter of kind {kind!r:.40}")


def decode_layout(value: Any) -> Layout:
    parts = listing(value, longest=5)
    need(len(parts) == 5 and all(type(p) is bool for p in parts[3:]), "a layout that is none")
    mesh = tuple(listing(parts[0], lambda n: integer(n, 1, 1 << 20), 8))
    need(math.prod(mesh) <= 1 << 20, "a mesh of more than a million workers")

    def placement(s: Any) -> Placement:
        if isinstance(s, str):
            need(s in MONOIDS, f"a monoid {s!r:.40}")
            return Partial(s)
        return None if s is None else integer(s, 0, 63)

    splits = tuple(listing(parts[1], placement, 8))
    need(len(splits) == len(mesh), "a layout with more splits than mesh axes")
    windows = []
    for w in listing(parts[2], longest=64):
        numbers = [integer(v) for v in listing(w, longest=6)]
        need(len(numbers) >= 5, "a window that is none")
        dim, window = numbers[0], Overlap(*numbers[1:])
        need(0 <= dim < 64 and window.count >= 0 and window.reach >= 0, "a window that is none")
        need(window.every >= 1 and window.numbers == (*numbers[1:],), "a window that is none")
        windows.append((dim, window))
    return Layout(mesh, splits, tuple(windows), parts[3], parts[4])


def decode_spec(value: Any) -> Spec:
    parts = listing(value, longest=4)
    need(len(parts) == 4 and isinstance(parts[3], bool), "a spec that is none")
    shape = tuple(listing(parts[0], lambda n: integer(n, 0), 64))
    need(math.prod(shape) <= LARGEST, "an array larger than any machine")
    need(isinstance(parts[1], str) and parts[1] in DTYPES, f"a dtype {parts[1]!r:.40}")
    layout = decode_layout(parts[2]) if parts[2] is not None else None
    if layout is not None:
        for split in layout.splits:
            need(not isinstance(split, int) or split < len(shape), "a split of no dimension")
    return Spec(shape, DTYPES[parts[1]], layout, parts[3])


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 4096 and value.isprintable()


def digest(graph: Graph) -> str:
    """Identify a computation: 128 bits over its canonical content."""
    text = json.dumps(encode_graph(graph), separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def decode_graph(value: Any, depth: int = 0, now: Lines = _AS_WRITTEN) -> Graph:
    """The graph, or `Malformed`. Values are only ever read after they were made, so there can be no
    cycle. `now`: what has become of the lines that were written."""
    need(depth < DEEPEST, "graphs inside graphs without end")
    inputs, nodes, outputs, table = fields(value, "inputs", "nodes", "outputs", "specs")
    lines = value.get("lines", [""])
    need(isinstance(lines, list) and all(map(_is_line, lines)), "lines that are no text")
    lines = [now.get(x, x) for x in lines]
    specs = listing(table, decode_spec)

    def spec_of(k: Any) -> Spec:
        found: Spec = specs[integer(k, 0, len(specs) - 1)]
        return found

    known = [spec_of(k) for k in listing(inputs)]
    count = len(known)
    made = []
    for node in listing(nodes):
        parts = listing(node, longest=5)
        need(len(parts) in (4, 5) and isinstance(parts[0], str), "a node that is none")
        need(isinstance(parts[2], dict), "parameters that are no object")
        read = tuple(integer(v, 0, count - 1) for v in listing(parts[1]))
        params = tuple(sorted((k, decode_value(v, depth + 1, now)) for k, v in parts[2].items()))
        outs = tuple(spec_of(k) for k in listing(parts[3], longest=1 << 16))
        line = lines[integer(parts[4], 0, len(lines) - 1)] if len(parts) == 5 else ""
        made.append(Node(parts[0], read, params, outs, line))
        count += len(outs)
    results = tuple(listing(outputs, lambda v: integer(v, 0, count - 1)))
    return Graph(tuple(known), tuple(made), results)
