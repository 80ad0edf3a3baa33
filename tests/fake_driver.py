"""What cuda-bindings has of CUDA's driver (`cuda.bindings.driver`) that conditional nodes need, on the graphs of
fake_cuda.py. Arguments and answers are those of the real functions (tests/runtime/test_conditions.py). What
the driver would refuse, or do at another time, is an error here:

    - a node that is not behind what its stream has captured, or that nothing of its stream waits for
    - a body that is not captured, or with what a body may not have
    - a condition that no kernel has set when it is looked at (fake_cuda.Conditional)"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from . import fake_cuda
from .fake_cuda import Conditional, Graph


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


class CUstreamCaptureMode(enum.IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class CUgraphNodeType(enum.IntEnum):
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13


class CUgraphConditionalNodeType(enum.IntEnum):
    CU_GRAPH_COND_TYPE_IF = 0
    CU_GRAPH_COND_TYPE_WHILE = 1


class CUstreamUpdateCaptureDependencies_flags(enum.IntEnum):
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1


class CUstream(int):
    """By its number."""


class _Conditional:
    handle: Any = None
    type: Any = None
    size = 0
    ctx: Any = None
    phGraph_out: Any = ()


class CUgraphNodeParams:
    def __init__(self) -> None:
        self.type: Any = None
        self.conditional = _Conditional()


class _Handle(int):
    """The address of a word that kernels set."""

    word: Any
    graph: Graph


class _Body(Graph):
    is_captured = False


GOOD = CUresult.CUDA_SUCCESS
_CONTEXT = object()
version = 13000


def cuDriverGetVersion() -> Any:
    return GOOD, version


def cuCtxGetCurrent() -> Any:
    return GOOD, _CONTEXT


def cuStreamGetCaptureInfo(hStream: Any) -> Any:
    stream = fake_cuda.stream_of(hStream)
    graph = stream.graph
    assert graph is not None, "a stream that captures nothing"
    last = [graph.steps[-1]] if graph.steps else []
    return GOOD, 1, 7, graph, last, None, len(last)


def cuGraphConditionalHandleCreate(
    hGraph: Any, ctx: Any, defaultLaunchValue: int, flags: int
) -> Any:
    assert ctx is _CONTEXT
    word = ctypes.c_uint32(Conditional.UNSET)
    made = _Handle(ctypes.addressof(word))
    made.word, made.graph = word, hGraph
    return GOOD, made


def cuGraphAddNode(
    hGraph: Any, dependencies: Any, dependencyData: Any, numDependencies: int, nodeParams: Any
) -> Any:
    said = nodeParams.conditional
    assert nodeParams.type == CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    assert said.ctx is _CONTEXT
    assert said.handle.graph is hGraph, "the handle is of another graph"
    assert len(dependencies) == numDependencies
    assert [*dependencies] == hGraph.steps[-1:], "it is not behind what was captured"
    turns = said.type == CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    assert said.size in ((1,) if turns else (1, 2))
    said.phGraph_out = [_Body._of(hGraph.origin) for _ in range(said.size)]
    node: Any = (Conditional(said.handle.word, turns, said.phGraph_out), [], [])
    hGraph.steps.append(node)
    hGraph.wrong = hGraph.wrong or "nothing waits for a conditional node"
    return GOOD, node


def cuStreamUpdateCaptureDependencies(
    hStream: Any, dependencies: Any, dependencyData: Any, numDependencies: int, flags: int
) -> Any:
    graph = fake_cuda.stream_of(hStream).graph
    assert graph is not None
    assert flags == CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    (node,) = dependencies
    assert numDependencies == 1
    assert node is graph.steps[-1]
    if "conditional node" in graph.wrong:
        graph.wrong = ""
    return (GOOD,)


def cuStreamBeginCaptureToGraph(
    hStream: Any,
    hGraph: Any,
    dependencies: Any,
    dependencyData: Any,
    numDependencies: int,
    mode: Any,
) -> Any:
    assert mode == CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    assert not hGraph.steps
    assert not numDependencies
    fake_cuda.stream_of(hStream).captures(hGraph)
    hGraph.is_captured = True
    return (GOOD,)


def cuStreamEndCapture(hStream: Any) -> Any:
    """What the body reads and writes, its node does, too."""
    stream = fake_cuda.stream_of(hStream)
    body = stream.graph
    assert isinstance(body, _Body)
    if any(other is not stream for other in body.others):
        body.breaks("a body with what another stream does")
    try:
        stream.end_capture()
    except fake_cuda.CUDARuntimeError:
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None
    around = body.around
    assert around is not None
    _, reads, writes = around.steps[-1]
    for _, read, written in body.steps:
        reads += read
        writes += written
    fake_cuda.touch(around.origin, reads, writes)
    return GOOD, body
