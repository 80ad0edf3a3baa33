"""The few routines of BLAS and LAPACK that kernels call by themselves, in the library that NumPy
already uses.

NumPy's own functions compute in double precision, copy what they are given, and have no triangular
solve. Kernels have this module as `device_of(x).lapack`; where that is None (another device, another
build of NumPy), they use `xp.linalg`.

LAPACK counts columns first. An array in C order is its transpose to LAPACK, so each function here
says what it does in terms of C order, and nothing is transposed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from ostinato.ops.core.spec import DType, int32, int64
from ostinato.ops.cpu.jit.code import address_of, once, symbol
from ostinato.ops.cpu.jit.llvm import function_of
from ostinato.ops.cpu.jit.routine import Memory, Routine
from ostinato.ops.cpu.jit.sequence import Entry

_LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_NAMES = (  # how builds of NumPy call `dpotrf`, and their integers
    ("scipy_{}_64_", ctypes.c_int64),
    ("{}_64_", ctypes.c_int64),
    ("scipy_{}_", ctypes.c_int32),
    ("{}_", ctypes.c_int32),
)


@once
def _library() -> tuple[Any, str, Any] | None:
    """The library, its way of naming, its integers."""
    from numpy.linalg import _umath_linalg

    try:
        library = ctypes.CDLL(_umath_linalg.__file__)
    except (OSError, AttributeError, TypeError):
        return None
    for form, integer in _NAMES:
        if all(hasattr(library, form.format(f)) for f in ("spotrf", "dtrsm", "cgelqf", "zgetrf")):
            return library, form, integer
    return None


def found() -> bool:
    """Whether this module's functions can be called."""
    return _library() is not None


@cache
def _routine(name: str) -> Any:
    known = _library()
    assert known is not None
    library, form, _ = known
    routine = getattr(library, form.format(name))
    routine.restype = None
    return routine


def _call(routine: str, *args: Any) -> int:
    """Call by reference, as Fortran does; the value of `info`, which comes last."""
    known = _library()
    assert known is not None
    integer = known[2]
    info = integer(0)
    passed: list[Any] = []
    letters = 0
    for x in (*args, info):
        if isinstance(x, np.ndarray):
            passed.append(ctypes.c_void_p(x.ctypes.data))
        elif isinstance(x, str):
            passed.append(ctypes.c_char_p(x.encode()))
            letters += 1
        else:
            passed.append(ctypes.byref(integer(x) if isinstance(x, int) else x))
    lengths = [ctypes.c_size_t(1)] * letters  # Fortran's hidden lengths of strings
    _routine(routine)(*passed, *lengths)
    return int(info.value)


def _step(x: Any) -> int:
    """Elements from one row to the next, of a matrix whose rows lie in order."""
    assert x.ndim == 2
    assert x.shape[1] < 2 or x.strides[1] == x.itemsize
    return max(1, x.shape[1], x.strides[0] // x.itemsize if x.shape[0] > 1 else 1)


def rows_in_order(x: Any) -> bool:
    """Whether these functions can work on a matrix as it lies."""
    return x.shape[1] < 2 or (
        x.strides[1] == x.itemsize and (x.shape[0] < 2 or x.strides[0] >= x.itemsize * x.shape[1])
    )


def letter(x: Any) -> str:
    return _LETTER[x.dtype.name]


def potrf(a: Any) -> int:
    """a = L Lᴴ in place, of which only the lower triangle is read and written. The number of the
    first pivot that is not positive; 0 if all are."""
    return _call(f"{letter(a)}potrf", "U", a.shape[0], a, _step(a))


def trsm(t: Any, b: Any, *, upper: bool, left: bool, unit: bool = False, turned: str = "N") -> None:
    """b = t⁻¹ b in place, or b t⁻¹ (`left=False`); t turned by T or C (its adjoint) before."""
    one = np.ones(1, b.dtype)
    args = (
        *("R" if left else "L", "L" if upper else "U", turned, "U" if unit else "N"),
        *(b.shape[1], b.shape[0], one, t, _step(t), b, _step(b)),
    )
    _call(f"{letter(b)}trsm", *args)


def gelqf(a: Any, tau: Any) -> None:
    """Householder vectors in place, of a = Q R."""
    m, n = a.shape
    work = np.empty(max(1, 64 * n), a.dtype)
    info = _call(f"{letter(a)}gelqf", n, m, a, _step(a), tau, work, work.size)
    assert info == 0


def orglq(a: Any, tau: Any) -> None:
    """Q of those vectors, in place; as many columns as `a` has."""
    m, n = a.shape
    name = "unglq" if a.dtype.kind == "c" else "orglq"
    work = np.empty(max(1, 64 * n), a.dtype)
    info = _call(f"{letter(a)}{name}", n, m, tau.size, a, _step(a), tau, work, work.size)
    assert info == 0


def getrf(a: Any, swaps: Any) -> int:
    """P a = L U in place, where `a` holds the transpose of the matrix (columns in order). The number
    of the first pivot that is zero; 0 if there is none. Row k was swapped with row swaps[k] - 1."""
    n, m = a.shape
    return _call(f"{letter(a)}getrf", m, n, a, _step(a), swaps)


def gbsv(diagonals: Sequence[Any], lower: int, b: Any) -> Any:
    """x of a x = b, for diagonals from the lowest on, element i of each in row i. NaN if a is singular."""
    n, upper = len(b), len(diagonals) - 1 - lower
    ab = np.zeros((n, 2 * lower + upper + 1), b.dtype)  # columns in order
    for o, x in zip(range(-lower, upper + 1), diagonals, strict=True):
        rows = np.arange(max(0, -o), n - max(0, o))
        ab[rows + o, lower + upper - o] = x[rows]
    x, swaps = b.T.copy(), np.empty(n, integer())
    info = _call(f"{letter(b)}gbsv", n, lower, upper, len(x), ab, ab.shape[1], swaps, x, max(1, n))
    return (np.full_like(x, np.nan) if info else x).T


def solving(n: int, columns: int, dtype: Any, otherwise: str) -> Callable[..., None]:
    """The function of a matrix of n rows, right-hand sides and what becomes of the unknowns, all in order.
    A matrix row by row is its transpose to LAPACK, which is factored, and turned back as it solves.
    `otherwise`: what is said of a singular one."""
    item, kind = dtype.itemsize, _LETTER[dtype.name]
    known = _library()
    assert known is not None
    library, form, integer = known
    for name in ("getrf", "getrs"):
        symbol(f"{kind}{name}", address_of(library, form.format(f"{kind}{name}")))
    symbol("singular_error", np.linalg.LinAlgError)
    room = np.empty((n * n + n * columns) * item + 8 * n, np.int8)
    start = room.ctypes.data
    facts = [1, 0, n, columns, start, start + n * n * item, start + (n * n + n * columns) * item]
    whole = int64 if integer is ctypes.c_int64 else int32
    return function_of(_solve(kind, item, whole, otherwise), np.array(facts, np.int64), room)


@lru_cache(8)
def _solve(kind: str, item: int, whole: DType, otherwise: str) -> str:
    run, across = Entry(), _across(item)
    run.checks(run.args, run.whole(3))
    run.lines.declared |= {
        "@singular_error = external global i8",
        '@turned = private constant [2 x i8] c"T\\00"',
    }
    n, k = run.meta[2], run.meta[3]
    factors, side, swaps = (run.words(run.meta[j]) for j in (4, 5, 6))
    matrix, given, result = (run.words(run.words(run.args[j])[2]) for j in range(3))
    rows, columns, info = (run.own(1, int64) for _ in range(3))
    rows[0], columns[0], info[0] = n, k, 0
    factors.copy(matrix, n * n * item)
    run.call(f"{kind}getrf", None, rows, rows, factors, rows, swaps, info)
    with run.given_that(info.view(whole)[0] != 0):
        run.fails("singular_error", otherwise)
    run.does(across, given, side, n, k)
    found = factors, rows, swaps, side, rows, info, run.whole(1)
    run.call(f"{kind}getrs", None, Memory(run, "@turned", int64), rows, columns, *found)
    run.does(across, side, result, k, n)
    run.ends_well()
    return run.text()


def _across(item: int) -> Routine:
    """Copies a matrix's transpose."""
    made = Routine(None, "across", x=[int64], out=[int64], rows=int64, columns=int64)
    x, out, rows, columns = made.given
    x, out = (m.view(int32) if item == 4 else m for m in (x, out))
    words = max(1, item // 8)
    with made.each(rows) as i, made.each(columns) as j:
        for w in range(words):
            out[(j * rows + i) * words + w] = x[(i * columns + j) * words + w]
    return made


def integer() -> Any:
    """The dtype of LAPACK's integers."""
    known = _library()
    assert known is not None
    return np.dtype(known[2])
