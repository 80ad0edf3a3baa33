"""ONNX files as plain data: nodes, graphs and functions, checked before anything runs.

Whatever a file says is bounded by what it has: a tensor by its bytes, data beside the file by the file's
folder, and nesting by the format's reader."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import defs, external_data_helper, helper, numpy_helper

from ostinato.errors import ArgumentError, DataFileError, OstinatoError
from ostinato.ops.core.user_line import misfit

Known = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Limits:
    """How much of what a file may ask for."""

    oldest: int = 9  # opset; older ones are converted
    newest: int = 28
    functions: int = 32  # within each other
    graphs: int = 64  # within each other
    nodes: int = 100_000  # evaluated in one trace, those of loops each time
    folded: int = 1 << 16  # elements of what is computed while tracing
    tensor: int = 1 << 31  # bytes of a sparse tensor, which its file does not hold


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FromCaller:
    """An attribute that a function's caller gives."""

    name: str


@dataclass(frozen=True, slots=True)
class ModelNode:
    op: str
    domain: str
    inputs: tuple[str, ...]  # "" is one that is left out
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str
    overload: str = ""
    opset: int = 0
    version: int = 0  # the opset in which the operator became what it is here
    proto: Any = field(default=None, compare=False, repr=False)  # as it was in the file

    @property
    def title(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op


@dataclass(frozen=True, slots=True)
class ModelInput:
    name: str
    dtype: np.dtype[Any] | None  # None: no tensor
    shape: tuple[int | str | None, ...] | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelGraph:
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[ModelNode, ...]
    constants: Mapping[str, Known] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)  # a function's defaults

    def walk(self) -> Iterable[ModelNode]:
        """All nodes, those of graphs within nodes too."""
        for node in self.nodes:
            yield node
            for value in node.attributes.values():
                for inner in value if isinstance(value, list) else (value,):
                    if isinstance(inner, ModelGraph):
                        yield from inner.walk()


FunctionName = tuple[str, str, str]  # domain, name, overload


@dataclass(frozen=True, slots=True)
class ModelFile:
    graph: ModelGraph
    functions: Mapping[FunctionName, ModelGraph]
    domains: Mapping[str, int]


def damaged(what: str, needed: str = "", do: str = "") -> OstinatoError:
    return misfit(DataFileError, "from_onnx", got=what, needed=needed, do=do)


# -- reading ---------------------------------------------------------------------------------
def read_model(model: Any) -> ModelFile:
    """The model in a file, in bytes or in a ModelProto."""
    folder = ""
    if isinstance(model, (str, os.PathLike)):
        folder = os.path.dirname(os.path.abspath(model))
        try:
            model = Path(model).read_bytes()
        except OSError as error:
            raise damaged(f"{error.strerror or error}: {os.fspath(model)}") from None
    if isinstance(model, (bytes, bytearray, memoryview)):
        parsed = onnx.ModelProto()
        try:
            parsed.ParseFromString(bytes(model))
        except (DecodeError, RuntimeError, ValueError):
            raise damaged(
                "bytes that are no ONNX model", "a whole file in the binary format"
            ) from None
        model = parsed
    if not isinstance(model, onnx.ModelProto):
        needed = "a path, bytes or an onnx.ModelProto"
        raise misfit(ArgumentError, "from_onnx", got=type(model).__name__, needed=needed)
    if not model.HasField("graph"):
        raise damaged("a model without a graph")
    model = _renewed(model)
    domains = {_domain(entry.domain): entry.version for entry in model.opset_import}
    try:
        functions = {
            (_domain(f.domain), f.name, f.overload): function_of(f, domains, folder)
            for f in model.functions
        }
        made = ModelFile(_graph(model.graph, domains, folder), functions, domains)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UnicodeError) as error:
        if isinstance(error, OstinatoError):
            raise
        raise damaged(f"a model that cannot be read ({error!s:.200})") from None
    _check_names(made.graph, set())
    for f in functions.values():
        _check_names(f, set())
    return made


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _renewed(model: onnx.ModelProto) -> onnx.ModelProto:
    """In an opset that is known: older ones are converted."""
    opset = max((e.version for e in model.opset_import if not _domain(e.domain)), default=0)
    if not opset and not any(e.domain for e in model.opset_import):
        opset = 1
    if opset > min(LIMITS.newest, defs.onnx_opset_version()):
        raise damaged(
            f"opset {opset}", f"one up to {min(LIMITS.newest, defs.onnx_opset_version())}"
        )
    if 0 < opset < LIMITS.oldest:
        from onnx import version_converter

        try:
            return version_converter.convert_version(model, LIMITS.oldest)
        except Exception as error:
            raise damaged(
                f"opset {opset}, which onnx.version_converter does not convert ({error!s:.200})",
                f"opset {LIMITS.oldest} or later",
            ) from None
    return model


def _graph(graph: Any, domains: Mapping[str, int], folder: str) -> ModelGraph:
    constants = {t.name: tensor(t, folder) for t in graph.initializer}
    for t in graph.sparse_initializer:
        constants[t.values.name] = _dense(t, folder)
    return ModelGraph(
        tuple(map(_input, graph.input)),
        tuple([o.name for o in graph.output]),
        tuple([_node(n, domains, folder) for n in graph.node]),
        constants,
    )


def function_of(f: Any, domains: Mapping[str, int], folder: str = "") -> ModelGraph:
    """A function's body; `domains` are its caller's."""
    own = {**domains, **{_domain(e.domain): e.version for e in f.opset_import}}
    return ModelGraph(
        tuple([ModelInput(name, None, None) for name in f.input]),
        tuple(f.output),
        tuple([_node(n, own, folder) for n in f.node]),
        {},
        {
            **dict.fromkeys(f.attribute),
            **{a.name: _attribute(a, own, folder) for a in f.attribute_proto},
        },
    )


def _input(given: Any) -> ModelInput:
    kind = given.type
    optional = kind.HasField("optional_type")
    if optional:
        kind = kind.optional_type.elem_type
    if not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
        return ModelInput(given.name, None, None, optional)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
    if not kind.tensor_type.HasField("shape"):
        return ModelInput(given.name, dtype, None, optional)
    shape = [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None
        for d in kind.tensor_type.shape.dim
    ]
    return ModelInput(given.name, dtype, tuple(shape), optional)


@lru_cache(4096)
def schema_of(op: str, opset: int, domain: str) -> Any:
    """The operator's schema in an opset, or None."""
    try:
        return defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None


@lru_cache(4096)
def _defaults(op: str, opset: int, domain: str) -> dict[str, Any]:
    schema = schema_of(op, opset, domain)
    given = {name: a.default_value for name, a in schema.attributes.items()} if schema else {}
    return {name: _attribute(a, {}, "") for name, a in given.items() if a.name}


def _node(n: Any, domains: Mapping[str, int], folder: str) -> ModelNode:
    domain = _domain(n.domain)
    opset = domains.get(domain, 0)
    schema = schema_of(n.op_type, opset, domain)
    attributes = {
        **_defaults(n.op_type, opset, domain),
        **{a.name: _attribute(a, domains, folder) for a in n.attribute},
    }
    count = len(n.input)
    if schema is not None and not schema.min_input <= count <= schema.max_input:
        raise damaged(
            f"a node {n.name!r:.60} ({n.op_type}) with {count} inputs",
            f"{schema.min_input} to {schema.max_input}",
        )
    return ModelNode(
        n.op_type,
        domain,
        tuple(n.input),
        tuple(n.output),
        attributes,
        n.name,
        n.overload,
        opset,
        schema.since_version if schema is not None else 0,
        n,
    )


def _attribute(a: Any, domains: Mapping[str, int], folder: str) -> Any:
    if a.ref_attr_name:
        return FromCaller(a.ref_attr_name)
    kinds = onnx.AttributeProto
    match a.type:
        case kinds.TENSOR:
            return tensor(a.t, folder)
        case kinds.TENSORS:
            return [tensor(t, folder) for t in a.tensors]
        case kinds.SPARSE_TENSOR:
            return _dense(a.sparse_tensor, folder)
        case kinds.GRAPH:
            return _graph(a.g, domains, folder)
        case kinds.GRAPHS:
            return [_graph(g, domains, folder) for g in a.graphs]
        case kinds.STRING:
            return a.s.decode("utf-8")
        case kinds.STRINGS:
            return [s.decode("utf-8") for s in a.strings]
        case _:
            found = helper.get_attribute_value(a)
            return list(found) if a.type in (kinds.INTS, kinds.FLOATS) else found


def tensor(t: Any, folder: str) -> Known:
    """A tensor's values; its dims are only believed if as many are there."""
    dims = tuple(t.dims)
    if any(n < 0 for n in dims):
        raise damaged(f"a tensor {t.name!r:.60} of dims {dims}", "dims of 0 or more")
    if external_data_helper.uses_external_data(t):
        t = _loaded(t, folder)
    try:
        found = numpy_helper.to_array(t)
    except Exception as error:
        raise damaged(
            f"a tensor {t.name!r:.60} of dims {dims} whose values are not there ({error!s:.120})",
            "as many values as its dims say",
        ) from None
    return found.astype(object) if found.dtype.kind in "US" else found


def _loaded(t: Any, folder: str) -> Any:
    """A tensor with its data, which are in a file of their own in the model's folder."""
    entries = {e.key: e.value for e in t.external_data}
    location = entries.get("location", "")
    path = Path(folder, location) if folder else None
    inside = path is not None and Path(os.path.realpath(path)).is_relative_to(
        os.path.realpath(folder)
    )
    if path is None or not location or os.path.isabs(location) or not inside:
        raise damaged(
            f"a tensor {t.name!r:.60} with data in {location!r:.80}",
            "data in the model's own folder" if folder else "a path, beside which its data lie",
            "" if folder else "give from_onnx the path of the file",
        )
    size = path.stat().st_size if path.is_file() else -1
    offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    bits = _bits(t.data_type)
    if offset < 0 or length != -(-math.prod(t.dims) * bits // 8) or offset + length > size:
        raise damaged(
            f"a tensor {t.name!r:.60} of dims {tuple(t.dims)} in {length} bytes at {offset} of "
            f"{location!r:.80}, which has {max(size, 0)}",
            "as many bytes as its dims say",
        )
    made = onnx.TensorProto()
    made.CopyFrom(t)
    external_data_helper.load_external_data_for_tensor(made, folder)
    made.data_location = onnx.TensorProto.DEFAULT
    del made.external_data[:]
    return made


def _bits(kind: int) -> int:
    name = onnx.TensorProto.DataType.Name(kind)
    for ending, bits in {"INT4": 4, "FLOAT4E2M1": 4, "INT2": 2}.items():
        if name.endswith(ending):
            return bits
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind)).itemsize * 8


def _dense(t: Any, folder: str) -> Known:
    values, places, dims = tensor(t.values, folder), tensor(t.indices, folder), tuple(t.dims)
    if min(dims, default=0) < 0 or math.prod(dims) * values.itemsize > LIMITS.tensor:
        raise damaged(f"a sparse tensor of dims {dims}", f"at most {LIMITS.tensor} bytes")
    found = np.zeros(dims, values.dtype)
    try:
        at = np.unravel_index(places, dims) if places.ndim == 1 else tuple(places.T)
        found[at] = values
    except (IndexError, ValueError):
        raise damaged(f"a sparse tensor of dims {dims}", "places within them") from None
    return found


# -- checks ----------------------------------------------------------------------------------
def _check_names(graph: ModelGraph, outer: set[str], depth: int = 0) -> None:
    """Names are made before they are read, so that no node waits for itself."""
    if depth > LIMITS.graphs:
        raise damaged(f"more than {LIMITS.graphs} graphs within each other")
    known = outer | {i.name for i in graph.inputs} | graph.constants.keys()
    for node in graph.nodes:
        for name in node.inputs:
            if name and name not in known:
                raise damaged(
                    f"a node {node.name!r:.60} ({node.title}) that reads {name!r:.60} before "
                    "a node makes it",
                    "nodes in an order in which they can run, without cycles",
                )
        for value in node.attributes.values():
            for inner in value if isinstance(value, list) else (value,):
                if isinstance(inner, ModelGraph):
                    _check_names(inner, known, depth + 1)
        known |= set(filter(None, node.outputs))
    for name in graph.outputs:
        if name and name not in known:
            raise damaged(f"an output {name!r:.60} that no node makes")


def unknown_operators(file: ModelFile, knows: Any) -> Counter[str]:
    """Operators of a model that nobody knows, and how many nodes have them."""
    found: Counter[str] = Counter()
    graphs: Sequence[ModelGraph] = (file.graph, *file.functions.values())
    for graph in graphs:
        for node in graph.walk():
            own = (node.domain, node.op, node.overload) in file.functions
            if not own and not knows(node.domain, node.op) and not has_body(node):
                found[node.title] += 1
    return found


def has_body(node: ModelNode) -> bool:
    """Whether ONNX says in other operators what this one does."""
    schema = schema_of(node.op, node.opset, node.domain)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def with_attributes(node: ModelNode, given: Mapping[str, Any]) -> ModelNode:
    """A node of a function, with the attributes that its caller gives, in graphs within it, too."""
    if not any(isinstance(v, (FromCaller, ModelGraph)) for v in node.attributes.values()):
        return node
    defaults = _defaults(node.op, node.opset, node.domain)
    found = dict[str, Any]()
    for name, value in node.attributes.items():
        if isinstance(value, FromCaller):
            value = given.get(value.name)
            if value is None:
                value = defaults.get(name)
        elif isinstance(value, ModelGraph):
            value = replace(value, nodes=tuple([with_attributes(n, given) for n in value.nodes]))
        if value is not None:
            found[name] = value
    return replace(node, attributes=found)
