"""Models of ONNX files as functions, and functions as ONNX models.

A file becomes plain data (`model_file`), of which an evaluation (`evaluation`) calls one function per
node (`operators`, by name, from the files of nodes) while a function is traced. The other way the
graph of a function is written (`exported`) by one function per operation (`export_nodes`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ostinato.errors import ArgumentError
from ostinato.ops.core.tracebacks import door
from ostinato.ops.core.user_line import misfit

if TYPE_CHECKING:
    from .imported import OnnxModel

__all__ = ["from_onnx", "to_onnx"]


def _check_package(who: str) -> None:
    if find_spec("onnx") is None:
        do = "pip install 'ostinato[onnx]'"
        raise misfit(ArgumentError, who, got="no package onnx", needed="it, for the format", do=do)


@door
def from_onnx(model: str | os.PathLike[str] | bytes | Any, /) -> OnnxModel:
    """The function that an ONNX model is: of a file's path, its bytes, or an `onnx.ModelProto`.

    Called, it computes results with its own `parameters`; `apply(parameters, ...)` takes others, to train
    them. Shapes, and what is computed of them, are folded while it is traced. Opsets 9 to 28, and
    older ones by ONNX's converter.

    >>> from onnx import parser
    >>> model = ost.from_onnx(parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'f (float[N] x) => (float[N] y) { y = Relu(x) }'))
    >>> model(np.array([-1.0, 2.0], "float32"))
    Array([0., 2.], dtype=float32)
    """
    _check_package("from_onnx")
    from .imported import imported

    return imported(model)


@door
def to_onnx(function: Callable[..., Any], /, *args: Any, opset: int = 20, **kwargs: Any) -> Any:
    """An `onnx.ModelProto` of a function, for arguments as in `ost.plan`.

    An argument `ost.spec(shape, dtype)` is an input of the model; arrays, alone or in pytrees, and what the
    function takes from around it are its weights. Names are those of parameters, such as "x" or
    "parameters['w']". An operation that ONNX does not have is an error that names the line.

    >>> model = ost.to_onnx(lambda x, w: ost.tanh(x @ w), ost.spec((1, 2)), np.eye(2, dtype="float32"))
    >>> [node.op_type for node in model.graph.node], model.graph.initializer[0].name
    (['MatMul', 'Tanh', 'Identity'], 'w')
    """
    _check_package("to_onnx")
    from .exported import exported

    return exported(function, args, kwargs, opset)
