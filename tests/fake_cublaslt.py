"""cuBLASLt as `nvmath.bindings.cublasLt` has it: the part that ops/gpu uses, for machines without a GPU.

It takes what the library takes, addresses of memory and numbers, refuses what that refuses, and is strict
where that would write somewhere, or give rubbish, later:

    - attributes have their sizes, descriptors are used while they live
    - matrices fit each other, and lie within arrays whose addresses somebody asked for
    - dtypes are those of the library's table; alpha and beta are of the type that belongs to them
    - addresses are aligned as the algorithm was promised, biases to 16 bytes, workspaces to 256
    - a bias has a number for each row of D by columns; there is none for doubles and complex numbers
    - bits that a relu keeps begin with each column, by 128, 16 bytes aligned; its slope takes no sums over
      one term
    - who asks for algorithms has said that there are a bias and bits, by some address
    - C may be D if both lie alike, and must not overlap it otherwise
    - calls go to the stream that is current

Values are computed with NumPy from what lies at the addresses, when the stream comes to it: a graph that
was captured computes with what lies there by then. Sums of halves are float32's."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from . import fake_cuda
from .fake_cuda import ask

_DTYPES: dict[int, Any] = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float64),
    2: np.dtype(np.float16),
    4: np.dtype(np.complex64),
    5: np.dtype(np.complex128),
    14: np.dtype(ml_dtypes.bfloat16),
}
# compute type, type of alpha and beta, of A and B, of C and D -> whether there are epilogues
_TABLE = {
    (68, 0, 0, 0): True, (77, 0, 0, 0): True, (68, 0, 2, 2): True, (68, 0, 2, 0): True,
    (68, 0, 14, 14): True, (68, 0, 14, 0): True, (68, 4, 4, 4): False, (77, 4, 4, 4): False,
    (70, 1, 1, 1): False, (70, 5, 5, 5): False,
}  # fmt: skip
NOT_SUPPORTED, INVALID, SUCCESS = 15, 7, 0
BIAS, RELU, GELU = 4, 2, 32
RELU_AUX, DRELU, BGRAD = 130, 136, 16
EPILOGUES = {
    *(1, BIAS, RELU, RELU | BIAS, GELU, GELU | BIAS),
    *(RELU_AUX, RELU_AUX | BIAS, DRELU, DRELU | BGRAD),
}


class cuBLASLtError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUBLAS status {status}")


def _enum(**members: int) -> SimpleNamespace:
    return SimpleNamespace(**members)


MatmulDescAttribute = _enum(
    COMPUTE_TYPE=0, SCALE_TYPE=1, POINTER_MODE=2, TRANSA=3, TRANSB=4, TRANSC=5, FILL_MODE=6,
    EPILOGUE=7, BIAS_POINTER=8, BIAS_BATCH_STRIDE=10, EPILOGUE_AUX_POINTER=11, EPILOGUE_AUX_LD=12,
    BIAS_DATA_TYPE=26,
)  # fmt: skip
MatrixLayoutAttribute = _enum(
    TYPE=0, ORDER=1, ROWS=2, COLS=3, LD=4, BATCH_COUNT=5, STRIDED_BATCH_OFFSET=6
)
MatmulPreferenceAttribute = _enum(
    SEARCH_MODE=0, MAX_WORKSPACE_BYTES=1, REDUCTION_SCHEME_MASK=3, MIN_ALIGNMENT_A_BYTES=5,
    MIN_ALIGNMENT_B_BYTES=6, MIN_ALIGNMENT_C_BYTES=7, MIN_ALIGNMENT_D_BYTES=8,
)  # fmt: skip
_OF_DESC = {
    3: np.int32,
    4: np.int32,
    7: np.uint32,
    8: np.int64,
    10: np.int64,
    11: np.int64,
    12: np.int64,
    26: np.int32,
}
_OF_LAYOUT = {1: np.int32, 4: np.int64, 5: np.int32, 6: np.int64}
_OF_PREFERENCE = {
    1: np.uint64,
    3: np.uint32,
    5: np.uint32,
    6: np.uint32,
    7: np.uint32,
    8: np.uint32,
}
matmul_heuristic_result_dtype = np.dtype(
    [
        ("algo", [("data_", "<u8", (8,))]),
        ("workspace_size", "<u8"),
        ("state", "<i4"),
        ("waves_count", "<f4"),
        ("reserved", "<i4", (4,)),
    ]
)


class MatmulHeuristicResult:
    def __init__(self, size: int = 1) -> None:
        self._data = np.zeros(size, matmul_heuristic_result_dtype)
        self._data["state"] = NOT_SUPPORTED

    @property
    def ptr(self) -> int:
        return int(self._data.ctypes.data)

    @property
    def state(self) -> Any:
        found = self._data["state"]
        return int(found[0]) if found.size == 1 else found


@dataclass
class _Thing:
    """A descriptor."""

    kind: str
    facts: dict[int, Any] = field(default_factory=dict)


@dataclass
class Counts:
    heuristics: int = 0
    products: int = 0
    alive: int = 0  # descriptors
    epilogues: list[int] = field(default_factory=list)  # of the products
    algorithms: list[int] = field(default_factory=list)
    computes: list[int] = field(default_factory=list)  # compute types


@dataclass(frozen=True)
class _Matrix:
    """As its layout says."""

    dtype: Any
    rows: int
    columns: int
    step: int
    count: int
    batch: int

    def end(self) -> int:
        """Bytes behind its first element."""
        far = (self.columns - 1) * self.step + self.rows - 1 + (self.count - 1) * self.batch
        return (far + 1) * int(self.dtype.itemsize)

    def at(self, address: int) -> Any:
        memory = (ctypes.c_char * self.end()).from_address(address)
        flat, size = np.frombuffer(memory, self.dtype), self.dtype.itemsize
        steps = (self.batch * size, size, self.step * size)
        return np.lib.stride_tricks.as_strided(flat, (self.count, self.rows, self.columns), steps)


class FakeLt:
    """The functions. `refuses(problem)` may say that there is no algorithm, `algorithms` how many there are."""

    cuBLASLtError = cuBLASLtError
    MatmulDescAttribute = MatmulDescAttribute
    MatrixLayoutAttribute = MatrixLayoutAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    MatmulHeuristicResult = MatmulHeuristicResult
    matmul_heuristic_result_dtype = matmul_heuristic_result_dtype

    def __init__(self) -> None:
        self.things: dict[int, _Thing] = {}
        self.numbers = itertools.count(0x1000, 8)
        self.counted = Counts()
        self.algorithms = 3
        self.refused_epilogues: set[int] = set()

    # -- descriptors -----------------------------------------------------------------------
    def _make(self, kind: str, **facts: Any) -> int:
        number = next(self.numbers)
        self.things[number] = _Thing(kind, {int(k[1:]): v for k, v in facts.items()})
        self.counted.alive += kind not in ("handle",)
        return number

    def _get(self, number: int, kind: str) -> _Thing:
        found = self.things[number]  # KeyError: it was destroyed, or never made
        assert found.kind == kind, f"a {found.kind} for a {kind}"
        return found

    def _destroy(self, number: int, kind: str) -> None:
        self._get(number, kind)
        del self.things[number]
        self.counted.alive -= 1

    def _set(self, number: int, kind: str, known: Any, attr: int, buf: int, size: int) -> None:
        thing, dtype = self._get(number, kind), np.dtype(known[attr])
        if size != dtype.itemsize:
            raise cuBLASLtError(INVALID)
        raw = ctypes.string_at(buf, size)
        thing.facts[attr] = np.frombuffer(raw, dtype)[0].item()

    def get_version(self) -> int:
        return 130200

    def create(self) -> int:
        return self._make("handle")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._make(
            "matmul", _0=compute_type, _1=scale_type, _3=0, _4=0, _7=1, _8=0, _11=0, _12=0
        )

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        self._set(desc, "matmul", _OF_DESC, attr, buf, size)

    def matmul_desc_destroy(self, desc: int) -> None:
        self._destroy(desc, "matmul")

    def get_matmul_desc_attribute_dtype(self, attr: int) -> Any:
        return _OF_DESC[attr]

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        assert min(rows, cols) > 0
        assert type in _DTYPES
        return self._make("layout", _0=type, _1=0, _2=rows, _3=cols, _4=ld, _5=1, _6=0)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        self._set(layout, "layout", _OF_LAYOUT, attr, buf, size)

    def matrix_layout_destroy(self, layout: int) -> None:
        self._destroy(layout, "layout")

    def get_matrix_layout_attribute_dtype(self, attr: int) -> Any:
        return _OF_LAYOUT[attr]

    def matmul_preference_create(self) -> int:
        return self._make("preference", _1=0, _3=7, _5=256, _6=256, _7=256, _8=256)

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size: int) -> None:
        self._set(pref, "preference", _OF_PREFERENCE, attr, buf, size)

    def matmul_preference_destroy(self, pref: int) -> None:
        self._destroy(pref, "preference")

    def get_matmul_preference_attribute_dtype(self, attr: int) -> Any:
        return _OF_PREFERENCE[attr]

    # -- products --------------------------------------------------------------------------
    def _matrix(self, layout: int, is_c: bool = False) -> _Matrix:
        facts = self._get(layout, "layout").facts
        assert facts[1] == 0, "by columns"
        made = _Matrix(_DTYPES[facts[0]], *(facts[k] for k in (2, 3, 4, 5, 6)))
        if made.step < made.rows and not (is_c and made.step == 0):
            raise cuBLASLtError(INVALID)
        assert made.count > 0
        return made

    def _checked(self, desc: int, *layouts: int) -> tuple[Any, list[_Matrix]]:
        """What may be multiplied so; raises as the library does where it has no algorithm."""
        facts = self._get(desc, "matmul").facts
        a, b, c, d = (self._matrix(n, k == 2) for k, n in enumerate(layouts))
        (m, k), (k2, n) = (
            (x.columns, x.rows) if turned else (x.rows, x.columns)
            for x, turned in ((a, facts[3]), (b, facts[4]))
        )
        if (m, n, k) != (d.rows, d.columns, k2) or (c.rows, c.columns) != (m, n):
            raise cuBLASLtError(INVALID)
        if len({x.count for x in (a, b, c, d)}) > 1 or a.dtype != b.dtype or c.dtype != d.dtype:
            raise cuBLASLtError(INVALID)
        numbers = {dtype: number for number, dtype in _DTYPES.items()}
        key = (facts[0], facts[1], numbers[a.dtype], numbers[d.dtype])
        if key not in _TABLE:
            raise cuBLASLtError(NOT_SUPPORTED)
        if facts[7] != 1 and (not _TABLE[key] or facts[7] in self.refused_epilogues):
            raise cuBLASLtError(NOT_SUPPORTED)
        assert facts[7] in EPILOGUES, "an epilogue that is none of ours"
        if facts[7] & (BIAS | BGRAD):
            assert facts[26] == numbers[d.dtype], "the bias has D's type"
            if not facts[8]:
                raise cuBLASLtError(INVALID)
        if facts[7] & 128:
            assert facts[12] % 128 == 0, "bits of a column"
            if not facts[11] or facts[12] < d.rows or d.count > 1:
                raise cuBLASLtError(INVALID)
            if facts[7] & 8 and k == 1:
                raise cuBLASLtError(NOT_SUPPORTED)
        if d.batch == 0 and d.count > 1:
            raise cuBLASLtError(INVALID)
        return facts, [a, b, c, d]

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, pref: int,
        asked: int, results: int, count: int,
    ) -> None:  # fmt: skip
        self._get(handle, "handle")
        self.counted.heuristics += 1
        _, (_, _, _, made) = self._checked(desc, a, b, c, d)
        wanted = self._get(pref, "preference").facts
        if made.dtype.itemsize == 2:
            assert wanted[3] == 2, "halves are summed in float32"
        size = matmul_heuristic_result_dtype.itemsize
        memory = (ctypes.c_char * (asked * size)).from_address(results)
        found = np.frombuffer(memory, matmul_heuristic_result_dtype)
        many = 0
        for k in range(min(asked, self.algorithms)):
            needs = (k + 1) << 12  # bytes of workspace
            if needs > wanted[1]:
                needs = 0
            found["algo"]["data_"][k] = [
                k + 1,
                needs,
                *(wanted[n] for n in (5, 6, 7, 8)),
                desc,
                made.rows,
            ]
            found["workspace_size"][k], found["state"][k] = needs, SUCCESS
            many += 1
        ctypes.c_int32.from_address(count).value = many

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int,
        beta: int, c: int, cdesc: int, d: int, ddesc: int,
        algo: int, workspace: int, room: int, stream: int,
    ) -> None:  # fmt: skip
        self._get(handle, "handle")
        assert stream == fake_cuda.get_current_stream().ptr, "another stream than the current one"
        facts, matrices = self._checked(desc, adesc, bdesc, cdesc, ddesc)
        number, needs, *promised, whose, rows = np.frombuffer(
            ctypes.string_at(algo, 64), np.uint64
        ).tolist()
        assert (whose, rows) == (desc, matrices[3].rows), "an algorithm of another product"
        assert number > 0
        for address, bytes_, m in zip((a, b, c, d), promised, matrices, strict=True):
            assert address % bytes_ == 0, f"misaligned address: {address % 256} of 256"
            assert m.batch * m.dtype.itemsize % bytes_ == 0 or m.count == 1, "misaligned stack"
        assert workspace % 256 == 0
        assert needs <= room, "too little workspace"
        scale = _DTYPES[facts[1]]
        by, times = (
            np.frombuffer(ctypes.string_at(at, scale.itemsize), scale)[0] for at in (alpha, beta)
        )
        left, right, added, made = matrices
        reads = [fake_cuda.array_at(at, m.end()) for at, m in zip((a, b), matrices, strict=False)]
        writes = [fake_cuda.array_at(d, made.end())]
        if times:
            reads.append(fake_cuda.array_at(c, added.end()))
            apart = c + added.end() <= d or d + made.end() <= c
            assert apart or (c == d and added == made and cdesc == ddesc), "C and D overlap"
        for at, m in ((a, left), (b, right)):
            assert at + m.end() <= d or d + made.end() <= at, "an operand and D overlap"
        if needs:
            writes.append(fake_cuda.array_at(workspace, needs))
        epilogue, bias = facts[7], facts[8]
        if epilogue & BIAS:
            assert bias, "no bias"
            assert bias % 16 == 0, "misaligned address of a bias"
            reads.append(fake_cuda.array_at(bias, made.rows * made.dtype.itemsize))
        elif epilogue & BGRAD:
            assert bias % 16 == 0, "misaligned address of sums"
            writes.append(fake_cuda.array_at(bias, made.rows * made.dtype.itemsize))
        aux, line = facts[11], facts[12] // 8
        bits = epilogue & 128 and ((made.columns - 1) * line + -(-made.rows // 128) * 16)
        if bits:
            assert aux % 16 == 0, "misaligned address of bits"
            assert aux + bits <= d or d + made.end() <= aux, "bits and D overlap"
            (reads if epilogue & 8 else writes).append(fake_cuda.array_at(aux, bits))
        wide = scale if scale.kind == "c" or scale.itemsize == 8 else np.dtype(np.float32)

        def work() -> None:
            x, y = left.at(a).astype(wide), right.at(b).astype(wide)
            x = x.transpose(0, 2, 1) if facts[3] else x
            y = y.transpose(0, 2, 1) if facts[4] else y
            z = by * (x @ y)
            if times:
                z = z + times * added.at(c).astype(wide)
            if epilogue & BIAS:
                row = _Matrix(made.dtype, made.rows, 1, made.rows, 1, 0).at(bias)
                z = z + row.astype(wide)
            if bits:
                octets = np.frombuffer((ctypes.c_uint8 * bits).from_address(aux), np.uint8)
                width = -(-made.rows // 128) * 16
                lines = np.lib.stride_tricks.as_strided(octets, (made.columns, width), (line, 1))
                if epilogue & 8:
                    found = np.unpackbits(lines, axis=1, bitorder="little")[:, : made.rows]
                    z = np.where(found.T[None], z, 0)
                else:
                    whole = np.zeros((made.columns, 8 * width), bool)
                    whole[:, : made.rows] = z[0].T > 0
                    lines[...] = np.packbits(whole, axis=1, bitorder="little")
            if epilogue & BGRAD:
                _Matrix(made.dtype, made.rows, 1, made.rows, 1, 0).at(bias)[0, :, 0] = z[0].sum(1)
            if epilogue & RELU:
                z = np.fmax(z, 0)  # NaN becomes 0
            if epilogue & GELU:
                z = 0.5 * z * (1 + np.tanh(np.float32(0.7978845608) * (z + 0.044715 * z * z * z)))
            if needs:
                np.frombuffer((ctypes.c_char * needs).from_address(workspace), np.uint8)[...] = 0xA5
            made.at(d)[...] = z.astype(made.dtype)

        self.counted.products += 1
        self.counted.epilogues.append(epilogue)
        self.counted.algorithms.append(number)
        self.counted.computes.append(facts[0])
        ask(work, reads, writes)
