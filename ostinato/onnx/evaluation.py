"""Evaluating graphs of ONNX models, node by node, with the functions of the table."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from ostinato.errors import ArgumentError, OstinatoError
from ostinato.ops.core.user_line import misfit

from . import (
    elementwise_nodes,
    flow_nodes,
    image_nodes,
    network_nodes,
    reduction_nodes,
    shape_nodes,
    signal_nodes,
)
from .model_file import (
    LIMITS,
    ModelFile,
    ModelGraph,
    ModelNode,
    damaged,
    function_of,
    schema_of,
    with_attributes,
)
from .operators import TABLE, NodeCall, Value, is_known, is_ours

FAMILIES = (
    elementwise_nodes,
    flow_nodes,
    image_nodes,
    network_nodes,
    reduction_nodes,
    shape_nodes,
    signal_nodes,
)
Scope = MutableMapping[str, Value]


def knows(domain: str, op: str) -> bool:
    return (domain, op) in TABLE


class Evaluation:
    """One evaluation of a model."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.left = LIMITS.nodes
        self.depth = 0

    def graph(self, graph: ModelGraph, inputs: Sequence[Value], outer: Scope) -> list[Value]:
        """The values of a graph's outputs."""
        names = [i.name for i in graph.inputs]
        scope: Scope = ChainMap({}, outer)
        scope.update(graph.constants)
        scope.update(zip(names, inputs, strict=False))
        for node in graph.nodes:
            self._node(node, scope)
        return [scope.get(name) for name in graph.outputs]

    def _node(self, node: ModelNode, scope: Scope) -> None:
        self.left -= 1
        if self.left < 0:
            raise damaged(f"more than {LIMITS.nodes} nodes to evaluate", "less", "fewer loops")
        given = [scope[name] if name else None for name in node.inputs]
        try:
            results = self._results(node, given, scope)
        except OstinatoError as error:
            error.add_note(f"in the model's node {node.name!r:.80} ({node.title})")
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            got = f"{_described(given)}, which it cannot take ({error!s:.200})"
            raise misfit(
                ArgumentError, f"from_onnx: node {node.name!r:.80} ({node.title})", got=got
            ) from error
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                scope[name] = np.asarray(value) if isinstance(value, np.generic) else value

    def _results(self, node: ModelNode, given: list[Value], scope: Scope) -> Sequence[Value]:
        own = self.file.functions.get((node.domain, node.op, node.overload))
        if own is not None:
            return self._function(own, node, given)
        function = TABLE.get((node.domain, node.op))
        if function is None:
            return self._function(body_of(node, given, self.file.domains), node, given)
        arrays = [x for x in given if x is not None and not isinstance(x, list)]
        few = sum(x.size for x in arrays if is_known(x)) <= LIMITS.folded
        foreign = any(is_known(x) and not is_ours(x.dtype) for x in arrays)
        fixed = all(map(is_known, arrays)) and (few or foreign)
        at = NodeCall(node, fixed, lambda graph, xs: self.graph(graph, xs, scope))
        while given and given[-1] is None:
            given.pop()
        with np.errstate(all="ignore"):
            results = function(at, *given)
        return results if isinstance(results, tuple) else (results,)

    def _function(
        self, body: ModelGraph, node: ModelNode, given: Sequence[Value]
    ) -> Sequence[Value]:
        if self.depth >= LIMITS.functions:
            raise damaged(f"functions that call each other, such as {node.title}", "an end of it")
        attributes = {**body.attributes, **node.attributes}
        nodes = tuple([with_attributes(n, attributes) for n in body.nodes])
        padded = [*given, *[None] * (len(body.inputs) - len(given))]
        self.depth += 1
        try:
            return self.graph(ModelGraph(body.inputs, body.outputs, nodes), padded, {})
        finally:
            self.depth -= 1


def _described(given: Sequence[Value]) -> str:
    each = [
        "nothing"
        if x is None
        else f"{len(x)} values"
        if isinstance(x, list)
        else f"{x.dtype}{list(x.shape)}"
        for x in given
    ]
    return ", ".join(each)[:200] or "no inputs"


# -- operators that ONNX writes in others ----------------------------------------------------
def body_of(node: ModelNode, given: Sequence[Value], domains: Mapping[str, int]) -> ModelGraph:
    """The body that ONNX has for an operator that the table lacks."""
    schema = schema_of(node.op, node.opset, node.domain)
    if schema is None:
        raise damaged(f"an operator {node.title} that is not known")
    if schema.has_function:
        return _plain_body(node.op, node.domain, node.opset)
    asked = onnx.NodeProto()
    asked.CopyFrom(node.proto)
    del asked.attribute[:]
    written = {a.name: a for a in node.proto.attribute}
    for name, value in node.attributes.items():
        inner = isinstance(value, ModelGraph)
        asked.attribute.append(written[name] if inner else helper.make_attribute(name, value))
    types = [_type_of(x).SerializeToString() for x in given]
    versions = schema.context_dependent_function_opset_versions
    opset = max([v for v in versions if v <= node.opset], default=versions[0])
    made = schema.get_context_dependent_function_with_opset_version(
        opset, asked.SerializeToString(), types
    )
    if not made:
        raise ValueError("attributes for which ONNX has no meaning")
    f = onnx.FunctionProto()
    f.ParseFromString(made)
    return function_of(f, {**domains, node.domain: opset})


@lru_cache(1024)
def _plain_body(op: str, domain: str, opset: int) -> ModelGraph:
    schema = defs.get_schema(op, opset, domain)
    versions = schema.function_opset_versions
    at = max([v for v in versions if v <= opset], default=versions[0])
    f = onnx.FunctionProto()
    f.ParseFromString(schema.get_function_with_opset_version(at))
    return function_of(f, {"": opset})


def _type_of(x: Value) -> Any:
    if x is None:
        return onnx.TypeProto()
    if isinstance(x, list):
        inner = _type_of(x[0]) if x else helper.make_tensor_type_proto(1, None)
        return helper.make_sequence_type_proto(inner)
    kind = (
        onnx.TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    )
    return helper.make_tensor_type_proto(kind, x.shape)


def reads_values(file: ModelFile, reads: Mapping[tuple[str, str], tuple[int, ...]]) -> set[str]:
    """Names whose values decide shapes, so that they have to be known."""
    makers = dict[str, ModelNode]()
    wanted = list[str]()
    for maker in file.graph.walk():
        makers.update(dict.fromkeys(maker.outputs, maker))
        for k in reads.get((maker.domain, maker.op), ()):
            wanted += maker.inputs[k : k + 1]
    found = set[str]()
    while wanted:
        name = wanted.pop()
        if name in found or not name:
            continue
        found.add(name)
        node = makers.get(name)
        if node is not None and node.op not in ("Shape", "Size"):
            wanted += node.inputs
    return found
