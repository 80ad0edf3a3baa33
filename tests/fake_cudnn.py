"""cuDNN as nvidia-cudnn-frontend's module `cudnn` has it: the part that ops/gpu uses, for machines without a GPU.

It takes addresses and numbers, refuses what the library refuses, and is strict where that would write somewhere,
or give rubbish, later:

    - a graph is built in the order that the library wants, and changed no more then
    - images, filters and results fit each other, and lie as convolutions of channels that are last
    - addresses are aligned to 16 bytes and lie within arrays whose addresses somebody asked for
    - calls go to the stream that is current, by a handle of the thread that made it

Values are computed with NumPy from what lies at the addresses, when the stream comes to it, in float32."""

from __future__ import annotations

import ctypes
import enum
import itertools
import math
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from . import fake_cuda
from .fake_cuda import ask

Kind = enum.Enum("Kind", "NOT_SET FLOAT DOUBLE HALF BFLOAT16")
Heuristic = enum.Enum("Heuristic", "A B FALLBACK OPENSOURCE")
Note = enum.Enum(
    "Note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD"
    " STRICT_NAN_PROP",
)
_DTYPES: dict[Any, Any] = {
    Kind.FLOAT: np.dtype(np.float32),
    Kind.HALF: np.dtype(np.float16),
    Kind.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
# As the library ranks them: what is said of a plan, and bytes of workspace.
PLANS: list[tuple[set[Any], int]] = [
    ({Note.TENSOR_CORE}, 1 << 10), ({Note.NONDETERMINISTIC}, 0), (set(), 1 << 40), (set(), 1 << 12),
    ({Note.WINOGRAD}, 0), (set(), 0),
]  # fmt: skip


class cudnnGraphNotSupportedError(RuntimeError):
    pass


class _Tensor:
    def __init__(self, dim: Any, stride: Any, data_type: Any, uid: int) -> None:
        self.dim, self.stride, self.kind, self.uid, self.is_output = dim, stride, data_type, uid, 0

    def set_output(self, value: bool) -> _Tensor:
        self.is_output = value
        return self

    def set_uid(self, uid: int) -> _Tensor:
        self.uid = uid
        return self

    def set_data_type(self, kind: Any) -> _Tensor:
        self.kind = kind
        return self

    def set_dim(self, dim: list[int]) -> _Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> _Tensor:
        self.stride = stride
        return self

    def check(self) -> None:
        assert len(self.dim) in (4, 5), "2 or 3 axes of space"
        order = [0, *range(2, len(self.dim)), 1]
        lie = [math.prod(self.dim[e] for e in order[k + 1 :]) for k in range(len(order))]
        assert [self.stride[d] for d in order] == lie, "not by channels that are last"

    def at(self, address: int) -> Any:
        size = math.prod(self.dim) * _DTYPES[self.kind].itemsize
        memory = (ctypes.c_char * size).from_address(address)
        shape = [self.dim[0], *self.dim[2:], self.dim[1]]
        return np.moveaxis(np.frombuffer(memory, _DTYPES[self.kind]).reshape(shape), -1, 1)

    def memory(self, address: int) -> Any:
        assert address % 16 == 0, "misaligned address"
        return fake_cuda.array_at(address, math.prod(self.dim) * _DTYPES[self.kind].itemsize)


def _compute(kind: str, x: Any, w: Any, y: Any, before: Any, after: Any, s: Any, d: Any) -> Any:
    """Which of the three is made, from the other two; that one says its shape."""
    n, g, over = x.shape[0], x.shape[1] // w.shape[1], w.shape[2:]
    pads = [(0, 0)] * 3 + [*zip(before, after, strict=True)]
    x = np.pad(x.reshape(n, g, -1, *x.shape[2:]).astype(np.float32), pads)
    w = w.reshape(g, -1, *w.shape[1:]).astype(np.float32)
    results, k = y.shape[2:], w.shape[1]
    y = y.reshape(n, g, k, -1).astype(np.float32)
    made = {"forward": y, "data": x, "weights": w}[kind]
    made[...] = 0
    for tap in itertools.product(*map(range, over)):
        given = zip(tap, d, s, results, strict=True)
        cut = tuple(slice(r * b, r * b + a * (m - 1) + 1, a) for r, b, a, m in given)
        seen, factor = x[(..., *cut)], w[(..., *tap)]
        flat = seen.reshape(n, g, -1, y.shape[-1])
        if kind == "forward":
            y += np.einsum("ngcp,gkc->ngkp", flat, factor)
        elif kind == "data":
            seen += np.einsum("ngkp,gkc->ngcp", y, factor).reshape(seen.shape)
        else:
            factor[...] = np.einsum("ngkp,ngcp->gkc", y, flat)
    if kind == "data":
        ends = zip(before, x.shape[3:], after, strict=True)
        made = x[(..., *(slice(a, m - b) for a, m, b in ends))]
        return made.reshape(n, -1, *made.shape[3:])
    return made.reshape(n, -1, *results) if kind == "forward" else w.reshape(-1, *w.shape[2:])


class FakeGraph:
    def __init__(self, dnn: FakeDnn, io: Any, intermediate: Any, compute: Any, handle: Any) -> None:
        assert (intermediate, compute) == (Kind.FLOAT, Kind.FLOAT), "sums are float32's"
        dnn.check(handle)
        self.dnn, self.handle, self.state = dnn, handle, "open"
        self.left_out: set[int] = set()
        self.built: set[int] = set()

    def _comes(self, state: str, after: str) -> None:
        assert self.state == after, f"{state} after {self.state}"
        self.state = state

    def tensor(self, dim: Any, stride: Any, data_type: Any, name: str, uid: int) -> _Tensor:
        return _Tensor(dim, stride, data_type, uid)

    def _node(self, kind: str, x: Any, w: Any, y: Any, **how: Any) -> _Tensor:
        self._comes("described", "open")
        made = _Tensor(None, None, None, -1)
        self.kind, self.tensors = kind, [t if t is not None else made for t in (x, w, y)]
        self.how = [how[n] for n in ("pre_padding", "post_padding", "stride", "dilation")]
        self.made = made
        return made

    def conv_fprop(self, image: Any, weight: Any, name: str, **how: Any) -> _Tensor:
        return self._node("forward", image, weight, None, **how)

    def conv_dgrad(self, loss: Any, filter: Any, name: str, **how: Any) -> _Tensor:
        return self._node("data", None, filter, loss, **how)

    def conv_wgrad(self, image: Any, loss: Any, name: str, **how: Any) -> _Tensor:
        return self._node("weights", image, None, loss, **how)

    def validate(self) -> None:
        self._comes("valid", "described")
        for t in self.tensors:
            t.check()
        x, w, y = (t.dim for t in self.tensors)
        assert self.made.is_output
        assert {t.uid for t in self.tensors} == {1, 2, 3}
        assert x[0] == y[0]
        assert y[1] == w[0]
        assert x[1] % w[1] == 0
        assert w[0] % (x[1] // w[1]) == 0
        for n, m, r, a, b, s, d in zip(x[2:], y[2:], w[2:], *self.how, strict=True):
            assert min(a, b) >= 0
            assert (n + a + b - (r - 1) * d - 1) // s + 1 == m, "extents do not fit"
        if self.dnn.refuses(self):
            raise cudnnGraphNotSupportedError("no such graph")

    def build_operation_graph(self) -> None:
        self._comes("operation", "valid")

    def create_execution_plans(self, modes: Any) -> None:
        assert modes == [Heuristic.A, Heuristic.FALLBACK]
        self._comes("planned", "operation")

    def deselect_numeric_notes(self, notes: Any) -> None:
        assert self.state == "planned"
        self.left_out |= {k for k, (own, _) in enumerate(PLANS) if own & {*notes}}

    def check_support(self) -> None:
        self._comes("supported", "planned")

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def build_plan_at_index(self, k: int) -> None:
        assert self.state == "supported"
        if k in self.left_out:
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        self.built.add(k)

    def get_workspace_size_plan_at_index(self, k: int) -> int:
        assert k in self.built
        return PLANS[k][1]

    def execute_plan_at_index(self, given: Any, workspace: int, k: int, handle: Any) -> None:
        assert k in self.built
        assert handle is self.handle
        self.dnn.check(handle)
        assert handle.stream == fake_cuda.get_current_stream().ptr, "another stream"
        memories = [t.memory(given[t.uid]) for t in self.tensors]
        place = self.tensors.index(self.made)
        writes = [memories.pop(place)]
        if PLANS[k][1]:
            assert workspace % 256 == 0
            writes.append(fake_cuda.array_at(workspace, PLANS[k][1]))

        def work() -> None:
            x, w, y = (t.at(given[t.uid]) for t in self.tensors)
            to = (x, w, y)[place]
            to[...] = _compute(self.kind, x, w, y, *self.how).astype(to.dtype)
            for rest in writes[1:]:
                rest[...] = 0xA5

        self.dnn.done[self.kind] += 1
        self.dnn.plans.append(k)
        ask(work, memories, writes)


class FakeDnn:
    """The module. `refused`: kinds of convolutions that it has no plan for."""

    data_type, heur_mode, numerical_note = Kind, Heuristic, Note

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.plans: list[int] = []
        self.refused: set[str] = set()

    def refuses(self, graph: FakeGraph) -> bool:
        return graph.kind in self.refused

    def backend_version(self) -> int:
        return 91300

    def create_handle(self) -> Any:
        return SimpleNamespace(thread=threading.get_ident(), stream=0)

    def destroy_handle(self, handle: Any) -> None:
        handle.thread = None

    def check(self, handle: Any) -> None:
        assert handle.thread == threading.get_ident(), "a handle of another thread"

    def set_stream(self, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(
        self, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: Any
    ) -> FakeGraph:
        return FakeGraph(self, io_data_type, intermediate_data_type, compute_data_type, handle)
