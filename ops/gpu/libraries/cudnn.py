"""Convolutions by cuDNN, through nvidia-cudnn-frontend, NVIDIA's bindings of its graphs.

A convolution is prepared once: a graph of one node, and the first of the plans that the library's heuristics
propose for it which it can build. A run is one call with addresses, on the stream that is current, which may
be captured; its workspace is given. Images are `n, space..., channels` in memory, filters `out, space..., in`,
which is how the library counts what it does best; for it the axes are `n, channels, space...`.

The sums are float32's, always of the same bits: no plan adds in an order that differs from run to run, and of
float32 none reads less than it is given, unless TF32 is asked for. Sums by transforms are those of who may
choose by time."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.ops.core.spec import Shape

from .cublaslt import INSTALL

TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
# Of each kind the function, its operands' names, and which of images, filters and results they are; the rest
# is what it makes.
FUNCTIONS = {
    "forward": ("conv_fprop", ("image", "weight"), (0, 1, 2)),
    "data": ("conv_dgrad", ("loss", "filter"), (2, 1, 0)),
    "weights": ("conv_wgrad", ("image", "loss"), (0, 2, 1)),
}
NEVER = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")
BY_TRANSFORMS = ("WINOGRAD", "FFT")
NOT_OF_FLOAT32 = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")
KEPT = {"refusals": 8, "plans": 512}  # of refusals, for people


@dataclass(frozen=True, slots=True)
class Convolution:
    """What the library is asked for; `kind` is what is made: results ("forward"), slopes of images ("data") or
    of filters ("weights"). Axes as the library counts them."""

    kind: str
    images: Shape
    filters: Shape
    results: Shape
    before: Shape
    after: Shape
    strides: Shape
    dilation: Shape
    read: str  # dtypes
    made: str
    tf32: bool = False
    transforms: bool = False  # may be used

    def __str__(self) -> str:
        sizes = (" x ".join(map(str, s)) for s in (self.images, self.filters))
        return f"{self.kind} {' by '.join(sizes)} of {self.read} into {self.made}"


class Convolver:
    """The bindings, a handle for each GPU and thread, and what was prepared for these."""

    def __init__(self, functions: Any, xp: Any) -> None:
        self.functions, self.xp = functions, xp
        self.known: dict[Any, PreparedConvolution | str] = {}
        self.refused: dict[str, None] = {}

    def place(self) -> tuple[int, int]:
        """Identify thread and GPU: a handle is for one of each."""
        return threading.get_ident(), self.xp.cuda.runtime.getDevice()

    def prepared(self, asked: Convolution, room: int, nth: int = 0) -> PreparedConvolution | None:
        """Prepare it; None where the library cannot, and then it says why (`refused`)."""
        key = (*self.place(), asked, room, nth)
        if key not in self.known:
            if len(self.known) == KEPT["plans"]:
                del self.known[next(iter(self.known))]
            try:
                self.known[key] = PreparedConvolution(self, asked, room, nth)
            except Exception as error:  # of the library, whose kinds of errors differ by version
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self.known[key] = f"{asked}: {lines[-1][:100]}"
        found = self.known[key]
        if isinstance(found, str):
            if len(self.refused) < KEPT["refusals"]:
                self.refused[found] = None
            return None
        return found


def installed() -> Sequence[str]:
    """The versions of what is installed, which takes no library to be loaded."""
    from importlib.metadata import PackageNotFoundError, version  # which takes long

    versions = []
    for name in ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13"):
        with contextlib.suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return versions


def found(xp: Any) -> Convolver | str:
    """The library, or why there is none."""
    try:
        import cudnn
    except Exception as error:  # it looks for libraries as it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == "cudnn":
            return f"nvidia-cudnn-frontend is not installed: {INSTALL}"
        return f"nvidia-cudnn-frontend cannot be imported: {error}"
    try:
        cudnn.destroy_handle(cudnn.create_handle())
    except Exception as error:  # no such library, or none for this driver
        return f"cuDNN cannot be used: {error}"
    return Convolver(cudnn, xp)


class PreparedConvolution:
    """The `nth` plan of the library's for a convolution that needs no more than `room` bytes of
    workspace, or the last one."""

    def __init__(self, library: Convolver, asked: Convolution, room: int, nth: int) -> None:
        dnn = self.functions = library.functions
        self.handle = _handle(library)
        self.stream = library.xp.cuda.get_current_stream
        kinds, flt = dnn.data_type, dnn.data_type.FLOAT
        self.graph = graph = dnn.pygraph(
            io_data_type=getattr(kinds, TYPES[asked.read]),
            intermediate_data_type=flt,
            compute_data_type=flt,
            handle=self.handle,
        )
        name, operands, order = FUNCTIONS[asked.kind]
        tensors = [asked.images, asked.filters, asked.results]
        given: dict[str, Any] = {}
        for uid, (operand, k) in enumerate(zip(operands, order, strict=False), 1):
            kind = getattr(kinds, TYPES[asked.read])
            given[operand] = graph.tensor(
                dim=[*tensors[k]],
                stride=[*lying(tensors[k])],
                data_type=kind,
                name=operand,
                uid=uid,
            )
        made = getattr(graph, name)(
            **given,
            pre_padding=[*asked.before],
            post_padding=[*asked.after],
            stride=[*asked.strides],
            dilation=[*asked.dilation],
            name="conv",
        )
        shape = tensors[order[2]]
        made.set_output(True).set_uid(3).set_data_type(getattr(kinds, TYPES[asked.made]))
        made.set_dim([*shape]).set_stride([*lying(shape)])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([dnn.heur_mode.A, dnn.heur_mode.FALLBACK])
        plain = asked.read == "float32" and not asked.tf32
        notes = (
            *NEVER,
            *(() if asked.transforms else BY_TRANSFORMS),
            *(NOT_OF_FLOAT32 if plain else ()),
        )
        graph.deselect_numeric_notes([getattr(dnn.numerical_note, note) for note in notes])
        graph.check_support()
        self.plan = -1
        error: Exception = ValueError("no plan")
        for k in range(graph.get_execution_plan_count()):
            try:
                graph.build_plan_at_index(k)  # not of those that were left out
                if graph.get_workspace_size_plan_at_index(k) > room:
                    raise ValueError(f"a workspace of more than {room} bytes")
            except Exception as why:
                error = why
                continue
            self.plan = k
            nth -= 1
            if nth < 0:
                break
        if self.plan < 0:
            raise error

    def __call__(self, first: int, second: int, made: int, workspace: int) -> None:
        """Addresses."""
        self.functions.set_stream(self.handle, self.stream().ptr)
        self.graph.execute_plan_at_index(
            {1: first, 2: second, 3: made}, workspace, self.plan, self.handle
        )


_handles = threading.local()  # which are destroyed with their threads' end, or with the process


def _handle(library: Convolver) -> Any:
    known = _handles.__dict__
    key = f"{id(library.functions)} {library.place()[1]}"
    if key not in known:
        known[key] = library.functions.create_handle()
    return known[key]


def lying(shape: Sequence[int]) -> list[int]:
    """Strides of axes `n, channels, space...` whose memory is `n, space..., channels`."""
    order = (0, *range(2, len(shape)), 1)
    found = [0] * len(shape)
    for place, d in enumerate(order):
        found[d] = math.prod(shape[e] for e in order[place + 1 :])
    return found
