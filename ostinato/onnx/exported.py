"""`ost.to_onnx`: the graph of a function as an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from ostinato.compiled import CompiledFunction
from ostinato.errors import ArgumentError
from ostinato.ops.core.array import Array, Term
from ostinato.ops.core.operand import Operand
from ostinato.ops.core.spec import Spec
from ostinato.ops.core.trace import array_of
from ostinato.ops.core.user_line import misfit
from ostinato.planner.plan import Target
from ostinato.planning import AbstractEngine, AbstractSession, ArraySpec, traced_for_specs
from ostinato.tracing import Traced

from .export_nodes import Body, Writer, emit, value_info

IR_VERSION = {20: 9, 21: 10, 22: 10, 23: 11}  # the oldest that has the opset


class _Values(AbstractSession):
    """A session in which nothing runs, that keeps the values of what a function takes from around it."""

    def __init__(self) -> None:
        mesh = (1,)
        super().__init__(AbstractEngine(mesh, "cpu"), Target(mesh, "cpu"))
        self.values = dict[Operand, np.ndarray[Any, Any]]()

    def hold_array(self, x: Array) -> Operand:
        held = super().hold_array(x)
        self.values[held] = np.asarray(x)
        return held

    def hold_leaf(self, term: Term, k: int, operand: Operand) -> Operand:
        return self.hold_array(array_of(term, k))


def exported(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], opset: int
) -> Any:
    """The model of a function for arguments of which `ost.spec` ones are inputs."""
    if opset not in IR_VERSION:
        got = f"opset={opset!r}"
        raise misfit(ArgumentError, "to_onnx", got=got, needed="one of 20, 21, 22, 23")
    compiled = function if isinstance(function, CompiledFunction) else CompiledFunction(function)
    session = _Values()
    leaves, call, found = traced_for_specs(compiled, args, kwargs, session, "to_onnx")
    held, names = call.leaves, call.names
    _check(found, compiled.name)
    values: dict[int, Any] = {}  # of inputs of the graph that are no inputs of the model
    inputs = list[tuple[str, Spec]]()
    called = list[str]()
    for n, k in enumerate(found.inputs):
        called.append(names[k])
        if isinstance(leaves[k], ArraySpec):
            inputs.append((names[k], found.graph.inputs[n]))
        else:
            x, dtype = held[k], found.graph.inputs[n].dtype
            values[n] = session.values[x] if isinstance(x, Operand) else np.asarray(x, dtype)
    for operand in found.captured:
        values[len(called)] = session.values[operand]
        called.append(f"constant{len(called)}")
    writer = Writer(opset, set(called))
    body = Body(writer, found.graph, called, values)
    emit(body)
    outputs = _outputs(body, found)
    graph = helper.make_graph(
        writer.pruned([name for name, _ in outputs]),
        compiled.name or "function",
        [value_info(*each) for each in inputs],
        [value_info(*each) for each in outputs],
    )
    read = {name for n in graph.node for name in writer.reads(n)}
    graph.initializer.extend(
        [numpy_helper.from_array(v, k) for k, v in writer.constants.items() if k in read]
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION[opset],
        producer_name="ostinato",
    )


def _check(found: Traced, name: str) -> None:
    got = (
        "random numbers"
        if found.draws
        else "a function that writes to what is around it, or to its arguments"
        if found.stores or found.assigned or found.state.given
        else ""
    )
    if got:
        needed = "a function that gives the same for the same arguments"
        do = "make them an argument" if found.draws else "return what is written"
        raise misfit(ArgumentError, f"to_onnx of {name}", got=got, needed=needed, do=do)


def _outputs(body: Body, found: Traced) -> list[tuple[str, Spec]]:
    """Results under names of their own."""
    made = list[tuple[str, Spec]]()
    for how, k in found.outputs:
        if how != "ref":
            if k is None:
                continue
            value = np.asarray(k)
            name, spec = body.writer.constant(value), Spec(value.shape, value.dtype)
        else:
            v = body.graph.outputs[k]
            name, spec = body.name(v), body.graph.specs[v]
        own = f"output{len(made)}"
        body.writer.node("Identity", [name], [own])
        made.append((own, spec))
    if not made:
        raise misfit(ArgumentError, "to_onnx", got="no results", needed="a function with some")
    return made
