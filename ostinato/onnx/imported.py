"""`ost.from_onnx`: a model in a file as a function, and its parameters as arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ostinato.compiled import compile as compile_function
from ostinato.errors import (
    ArgumentError,
    DataDependentShapeError,
    DTypeError,
    TracedValueError,
    UnknownOpError,
)
from ostinato.ops.array.creation import asarray
from ostinato.ops.core.array import Array
from ostinato.ops.core.spec import is_inexact
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.user_line import misfit

from .evaluation import Evaluation, knows, reads_values
from .model_file import LIMITS, ModelFile, ModelInput, read_model, unknown_operators
from .operators import READS, TABLE, NodeCall, is_ours


class OnnxModel:
    """A model of an ONNX file, called with its inputs by place or name.

    `parameters`: its floating-point weights by name. `inputs`: what it takes, by name, as (shape,
    dtype), of which extents may be names, or None. `outputs`: the names of what it gives."""

    def __init__(self, file: ModelFile) -> None:
        self._read = reads_values(file, READS)
        self._file = file = _with_weights(file, self._read)
        graph = file.graph
        self.parameters: dict[str, Any] = {
            name: asarray(value)
            for name, value in graph.constants.items()
            if value.ndim
            and is_ours(value.dtype)
            and is_inexact(value.dtype)
            and name not in self._read
        }
        given = [i for i in graph.inputs if i.name not in graph.constants]
        self._inputs: dict[str, ModelInput] = {i.name: i for i in given}
        self.inputs = {i.name: (i.shape, i.dtype) for i in given}
        self.outputs = graph.outputs
        self._functions: OrderedDict[Any, Any] = OrderedDict()  # by the values that decide shapes

    def __repr__(self) -> str:
        takes = ", ".join(self._inputs)
        return f"OnnxModel({takes}) -> {', '.join(self.outputs)}"

    def apply(self, parameters: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        """Results with these parameters, as a function to compile, differentiate or map."""
        return self._evaluated(parameters, self._bound(args, named))

    @door
    def __call__(self, *args: Any, **named: Any) -> Any:
        """Results, by a compiled function, or, where values decide what is computed, operation by operation."""
        given = self._bound(args, named)
        fixed = {
            name: np.asarray(x)
            for name, x in given.items()
            if name in self._read and isinstance(x, (Array, np.ndarray))
        }
        free = dict[str, Any]()
        for name, x in given.items():
            if name in fixed:
                continue
            if not isinstance(x, (Array, np.ndarray)) or not is_ours(x.dtype):
                return self._evaluated(self.parameters, given)  # sequences, text, rare dtypes
            free[name] = x
        key = tuple([(k, v.tobytes(), v.shape, v.dtype.str) for k, v in sorted(fixed.items())])
        function = self._functions.get(key)
        if function is None:

            def model(parameters: Any, inputs: Any) -> Any:
                return self._evaluated(parameters, {**fixed, **inputs})

            function = self._functions[key] = compile_function(model)
            if len(self._functions) > 64:
                self._functions.popitem(last=False)
        if function is not self._evaluated:
            try:
                return function(self.parameters, free)
            except (TracedValueError, DataDependentShapeError):
                self._functions[key] = self._evaluated
        return self._evaluated(self.parameters, {**fixed, **free})

    def _bound(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs by name, in dtypes that the model takes."""
        names = list(self._inputs)
        given = dict(zip(names, args, strict=False))
        wrong = [n for n in named if n not in self._inputs or n in given]
        count = len(args) + len(named)
        given.update(named)
        absent = [n for n, i in self._inputs.items() if n not in given and not i.optional]
        if wrong or absent or len(args) > len(names):
            beside = f", of which {wrong[0]} is none of the model's or there twice" if wrong else ""
            needed = f"{', '.join(names)[:200] or 'none'}"
            raise misfit(ArgumentError, "from_onnx", got=f"{count} inputs{beside}", needed=needed)
        return {name: self._value(self._inputs[name], x) for name, x in given.items()}

    def _value(self, wanted: ModelInput, x: Any) -> Any:
        if x is None or (isinstance(x, (list, tuple)) and wanted.dtype is None):
            return x
        if not isinstance(x, (Array, np.ndarray)):
            x = np.asarray(x, None if hasattr(x, "dtype") else wanted.dtype)
        if not isinstance(x, Array) and x.dtype.kind in "US":
            x = x.astype(object)
        if wanted.dtype is not None and x.dtype != wanted.dtype:
            got = f"{x.dtype} for the input {wanted.name!r:.60}"
            do = f"convert it, e.g. x.astype({wanted.dtype.name!r})"
            raise misfit(DTypeError, "from_onnx", got=got, needed=str(wanted.dtype), do=do)
        fits = wanted.shape is None or (
            len(wanted.shape) == x.ndim
            and all(
                not isinstance(n, int) or n == m for n, m in zip(wanted.shape, x.shape, strict=True)
            )
        )
        if not fits:
            got = f"shape {x.shape} for the input {wanted.name!r:.60}"
            raise misfit(ArgumentError, "from_onnx", got=got, needed=f"{wanted.shape}")
        return x

    def _evaluated(self, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        graph = self._file.graph
        if parameters.keys() != self.parameters.keys():
            different = sorted(parameters.keys() ^ self.parameters.keys())
            got = f"parameters that differ from the model's in {', '.join(different)[:200]}"
            needed = "the names of its `parameters`"
            raise misfit(ArgumentError, "from_onnx", got=got, needed=needed)
        values: dict[str, Any] = {
            name: x
            if name in self._read or not isinstance(x, np.ndarray) or not is_ours(x.dtype)
            else asarray(x)
            for name, x in given.items()
        }
        values.update({name: None for name in self._inputs if name not in given})
        values.update({name: x for name, x in graph.constants.items() if name not in parameters})
        values.update(parameters)
        names = [i.name for i in graph.inputs]
        bare = type(graph)(graph.inputs, graph.outputs, graph.nodes)
        results = Evaluation(self._file).graph(bare, [values.get(n) for n in names], values)
        arrays = tuple([_array(x) for x in results])
        return arrays[0] if len(arrays) == 1 else arrays


def _with_weights(file: ModelFile, read: Container[str]) -> ModelFile:
    """The model with weights of equal numbers, which nodes make, among its constants."""
    graph, found, left = file.graph, dict[str, Any](), []
    for node in graph.nodes:
        shape = graph.constants.get(node.inputs[0]) if len(node.inputs) == 1 else None
        if node.op == "ConstantOfShape" and shape is not None and node.outputs[0] not in read:
            found[node.outputs[0]] = TABLE["", node.op](NodeCall(node, True, _no_graph), shape)
        else:
            left.append(node)
    made = replace(graph, nodes=tuple(left), constants={**graph.constants, **found})
    return replace(file, graph=made)


def _no_graph(*_: Any) -> list[Any]:
    raise ValueError("a graph in a node that has none")


def _is_host(x: Any) -> bool:
    """Whether it is NumPy's, in a dtype that ours may have."""
    return isinstance(x, np.ndarray) and is_ours(x.dtype)


def _array(x: Any) -> Any:
    """As users get it."""
    if isinstance(x, list):
        return [_array(v) for v in x]
    return asarray(x) if _is_host(x) else x


def imported(model: Any) -> OnnxModel:
    """The function of a model, if all its operators are known."""
    file = read_model(model)
    unknown = unknown_operators(file, knows)
    if unknown:
        listed = [f"{name} ({count})" for name, count in unknown.most_common(20)]
        more = f" and {len(unknown) - 20} more" if len(unknown) > 20 else ""
        got, needed = (
            f"{len(unknown)} operators that are not known, with how many nodes have them: "
            f"{', '.join(listed)}{more}",
            f"those of ONNX in opsets up to {LIMITS.newest}, or functions in the model",
        )
        raise misfit(UnknownOpError, "from_onnx", got=got, needed=needed)
    return OnnxModel(file)
