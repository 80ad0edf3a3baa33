"""Matrix products by cuBLASLt, through nvmath-python's bindings of its C interface.

A product is prepared once, for matrices that lie in one way: descriptors, and one of the algorithms that
the library proposes. A run is one call with addresses: it allocates nothing, waits for nothing, and may
be captured in a graph. Its workspace is given.

    D = act(alpha * op(A) op(B) + beta * C + bias)        all of them by columns, as cuBLAS counts

A matrix by rows is its transpose by columns, so a product by rows is that of the transposes: D' = B' A'.
The bias has a number for each row of D by columns, which are the columns of ours. (The library also knows
an order by rows, but has no epilogues there.)"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType

INSTALL = "pip install 'ostinato[gpu]'"
ALIGNED = 16  # bytes: what algorithms need at the most to read vectors; biases always
WORKSPACE = 256  # bytes that a workspace is aligned to
# cudaDataType_t, and of what is multiplied, cublasComputeType_t and the type of alpha and beta
TYPES = {
    "float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5, "bfloat16": 14,
}  # fmt: skip
COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
SCALES = {"float16": "float32", "bfloat16": "float32"}
KINDS = {(name,) * 3 for name in TYPES} | {(name, name, "float32") for name in SCALES}
NORMAL, TRANSPOSED = 0, 1  # cublasOperation_t
SUCCESS = 0
BIAS, RELU, GELU = 4, 2, 32  # bits of cublasLtEpilogue_t
# A relu that keeps which elements are positive, the slope of one, and the sums of D's rows by columns.
RELU_AUX, DRELU, BGRAD = RELU | 128, 8 | 128, 16
_VECTORS = BIAS | BGRAD  # which have the bias's address
_NOWHERE = 1 << 8  # an address, for who only asks for algorithms
IN_COMPUTE_TYPE = 2  # cublasLtReductionScheme_t: parts of a sum are added in float32
LIMIT = 8  # refusals that are remembered, for people


@dataclass(frozen=True, slots=True)
class Matrix:
    """As it lies by columns, `turned` where the product reads its transpose. `step`: elements from one
    column to the next; `batch`: to the next matrix."""

    rows: int
    columns: int
    step: int
    dtype: str
    turned: bool = False
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """A stack of products."""

    a: Matrix
    b: Matrix
    d: Matrix
    count: int = 1  # of matrices in the stack
    c: Matrix | None = None
    alpha: complex = 1.0
    beta: complex = 0.0
    epilogue: int = 0  # bits
    aux: int = 0  # bits from one column of D to the next in what a relu keeps
    tf32: bool = False  # reads 10 bits of the mantissa of float32

    def __str__(self) -> str:
        names = {BIAS: "bias", RELU: "relu", GELU: "gelu", 8: "a relu's slope", BGRAD: "sums"}
        k = self.a.rows if self.a.turned else self.a.columns
        more = ["a matrix to add"] if self.c is not None else []
        more += [name for bit, name in names.items() if self.epilogue & bit]
        stack = f"{self.count} x " if self.count > 1 else ""
        about = f"{stack}{self.d.columns} x {self.d.rows} x {k} of {self.a.dtype}"
        about += f" into {self.d.dtype}" if self.d.dtype != self.a.dtype else ""
        return about + (f" with {' and '.join(more)}" if more else "")


class Library:
    """The bindings, and a handle for each GPU of this process."""

    def __init__(self, functions: Any, xp: Any) -> None:
        self.functions, self.xp = functions, xp
        self.handles: dict[int, int] = {}
        self.refused: dict[str, None] = {}  # what it had no algorithm for

    def handle(self) -> int:
        """Return the handle of the GPU that the thread uses."""
        number = self.xp.cuda.runtime.getDevice()
        if number not in self.handles:
            self.handles[number] = self.functions.create()
        return self.handles[number]

    def refuses(self, problem: Problem) -> None:
        if len(self.refused) < LIMIT:
            self.refused[str(problem)] = None


def found(xp: Any) -> Library | str:
    """The library, or why there is none."""
    try:
        from nvmath.bindings import cublasLt
    except Exception as error:  # it looks for libraries as it is imported
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nvmath"):
            return f"nvmath-python is not installed: {INSTALL}"
        return f"nvmath-python cannot be imported: {error}"
    made = Library(cublasLt, xp)
    try:
        made.handle()
    except Exception as error:  # no such library, or none for this driver
        return f"cuBLASLt cannot be used: {error}"
    return made


class Prepared:
    """A product of matrices that lie in one way, by the `nth` of the algorithms for it that need no
    more than `room` bytes of workspace, or by the last one; `works` tells whether there is any.
    `aligned`: whether all addresses are multiples of `ALIGNED`."""

    def __init__(
        self, library: Library, problem: Problem, room: int, aligned: bool, nth: int = 0
    ) -> None:
        lt = self.lt = library.functions
        self.handle = library.handle()
        self.stream = library.xp.cuda.get_current_stream
        made: list[tuple[Any, int]] = []
        weakref.finalize(self, _destroy, made)
        kind = SCALES.get(problem.a.dtype, problem.a.dtype)
        compute = COMPUTE_64F if kind in ("float64", "complex128") else COMPUTE_32F
        compute = COMPUTE_32F_FAST_TF32 if problem.tf32 and kind == "float32" else compute
        self.descriptor = lt.matmul_desc_create(compute, TYPES[kind])
        made.append((lt.matmul_desc_destroy, self.descriptor))
        which = lt.MatmulDescAttribute
        self._describe(which.TRANSA, TRANSPOSED if problem.a.turned else NORMAL)
        self._describe(which.TRANSB, TRANSPOSED if problem.b.turned else NORMAL)
        self.bias = self._cell(which.BIAS_POINTER, lt.get_matmul_desc_attribute_dtype)
        if problem.epilogue:
            self._describe(which.EPILOGUE, problem.epilogue)
        self.aux = self._cell(which.EPILOGUE_AUX_POINTER, lt.get_matmul_desc_attribute_dtype)
        if problem.epilogue & _VECTORS:
            self._describe(which.BIAS_DATA_TYPE, TYPES[problem.d.dtype])
            self._point(which.BIAS_POINTER, self.bias, _NOWHERE)
        if problem.aux:
            self._describe(which.EPILOGUE_AUX_LD, problem.aux)
            self._point(which.EPILOGUE_AUX_POINTER, self.aux, _NOWHERE)
        self.layouts: list[int] = []
        known: dict[Matrix, int] = {}  # a result over what is added has one descriptor with it
        for matrix in (problem.a, problem.b, problem.c or problem.d, problem.d):
            if matrix in known:
                self.layouts.append(known[matrix])
                continue
            layout = lt.matrix_layout_create(
                TYPES[matrix.dtype], matrix.rows, matrix.columns, matrix.step
            )
            made.append((lt.matrix_layout_destroy, layout))
            self.layouts.append(layout)
            known[matrix] = layout
            if problem.count > 1:
                self._lay(layout, lt.MatrixLayoutAttribute.BATCH_COUNT, problem.count)
                self._lay(layout, lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, matrix.batch)
        self.scales = np.array([problem.alpha, problem.beta]).astype(kind)
        self.alpha = self.scales.ctypes.data
        self.beta = self.alpha + self.scales.itemsize
        self.has_bias, self.has_c = bool(problem.epilogue & _VECTORS), problem.c is not None
        self.has_aux = problem.aux > 0
        self.adds_bias = False  # as a matrix
        self.algorithm = self._algorithm(problem, room, aligned, nth)

    @property
    def works(self) -> bool:
        return self.algorithm != 0

    def __call__(
        self, a: int, b: int, d: int, c: int, bias: int, workspace: int, room: int, aux: int = 0
    ) -> None:
        """Addresses."""
        if self.has_bias and self.bias[0] != bias:
            self._point(self.lt.MatmulDescAttribute.BIAS_POINTER, self.bias, bias)
        if self.has_aux and self.aux[0] != aux:
            self._point(self.lt.MatmulDescAttribute.EPILOGUE_AUX_POINTER, self.aux, aux)
        at_a, at_b, at_c, at_d = self.layouts
        self.lt.matmul(
            self.handle, self.descriptor,
            self.alpha, a, at_a, b, at_b,
            self.beta, c if self.has_c else d, at_c, d, at_d,
            self.algorithm, workspace, room, self.stream().ptr,
        )  # fmt: skip

    # -- descriptors -----------------------------------------------------------------------
    def _describe(self, which: Any, value: int) -> None:
        cell = self._cell(which, self.lt.get_matmul_desc_attribute_dtype)
        cell[0] = value
        self.lt.matmul_desc_set_attribute(self.descriptor, which, cell.ctypes.data, cell.nbytes)

    def _point(self, which: Any, cell: Any, address: int) -> None:
        cell[0] = address
        self.lt.matmul_desc_set_attribute(self.descriptor, which, cell.ctypes.data, cell.nbytes)

    def _lay(self, layout: int, which: Any, value: int) -> None:
        cell = self._cell(which, self.lt.get_matrix_layout_attribute_dtype)
        cell[0] = value
        self.lt.matrix_layout_set_attribute(layout, which, cell.ctypes.data, cell.nbytes)

    def _cell(self, which: Any, dtype_of: Any) -> Any:
        return np.zeros(1, dtype_of(which))

    def _algorithm(self, problem: Problem, room: int, aligned: bool, nth: int) -> int:
        """Its address; 0 if there is none."""
        lt = self.lt
        which = lt.MatmulPreferenceAttribute
        spare = ALIGNED if problem.epilogue else 0  # as nvmath-python keeps, too
        asked: dict[Any, int] = {which.MAX_WORKSPACE_BYTES: max(0, room - spare)}
        sides = (
            (which.MIN_ALIGNMENT_A_BYTES, problem.a),
            (which.MIN_ALIGNMENT_B_BYTES, problem.b),
            (which.MIN_ALIGNMENT_C_BYTES, problem.c or problem.d),
            (which.MIN_ALIGNMENT_D_BYTES, problem.d),
        )
        for attribute, matrix in sides:
            asked[attribute] = ALIGNED if aligned else item(matrix.dtype)
        if problem.d.dtype in SCALES:
            asked[which.REDUCTION_SCHEME_MASK] = IN_COMPUTE_TYPE
        preference = lt.matmul_preference_create()
        count = np.zeros(1, np.int32)
        self.results = lt.MatmulHeuristicResult(nth + 1)  # its memory has the algorithms
        try:
            for attribute, value in asked.items():
                cell = self._cell(attribute, lt.get_matmul_preference_attribute_dtype)
                cell[0] = value
                lt.matmul_preference_set_attribute(
                    preference, attribute, cell.ctypes.data, cell.nbytes
                )
            at_a, at_b, at_c, at_d = self.layouts
            lt.matmul_algo_get_heuristic(
                self.handle, self.descriptor, at_a, at_b, at_c, at_d, preference,
                nth + 1, self.results.ptr, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:
            return 0
        finally:
            lt.matmul_preference_destroy(preference)
        states = np.atleast_1d(self.results.state)[: count[0]]
        good = [k for k, state in enumerate(states) if state == SUCCESS]
        if not good:
            return 0
        at: int = self.results.ptr + good[-1] * lt.matmul_heuristic_result_dtype.itemsize
        return at


def item(dtype: str) -> int:
    """Bytes of a number."""
    return 2 if dtype in SCALES else np.dtype(dtype).itemsize


def _destroy(made: Sequence[tuple[Any, int]]) -> None:
    for destroy, what in reversed(made):
        destroy(what)


def multiplies(a: DType, b: DType, out: DType) -> bool:
    return (a.name, b.name, out.name) in KINDS
