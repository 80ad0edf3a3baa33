"""QR of tall matrices of float32 on a GPU by their Gram matrices, as ops/linalg/tall_qr.py has it, all in one
stream: products of our own with sums in float64, a kernel of one block for what is done with small
matrices, and one look at what came out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ostinato.ops.core.device import Function
from ostinato.ops.core.spec import DType, float32, float64, int64
from ostinato.ops.jit.stacks import Stack, transposed

from .jit.lines import c_type
from .loops import tiles
from .loops.text import Kernel, whole


class ThinQr:
    """Of matrices that lie in one way."""

    most_columns = 64
    most_layouts = 32  # that are known at once
    most_parts = 528  # of the rows: four for each multiprocessor

    def __init__(self, gpu: Any, x: Any, q: Any, near: float) -> None:
        self.gpu, (self.rows, self.columns) = gpu, x.shape
        self.parts = max(1, min(self.most_parts, self.rows // (4 * self.columns)))
        self.each = self.rows // self.parts
        self.end = self.each * self.parts
        self.grams = [self._grams(stack) for stack in (_stack(x), _stack(q))]
        n = self.columns
        found = tiles.fastest(self.rows, n, n, 1, float64, gpu.tile_rates)
        assert found is not None
        square = Stack((n, n), (n, 1), float64)
        kernel = tiles.kernel_of(_stack(x), square, _stack(q), tiling=found[1])
        assert kernel is not None
        self.turn = gpu.launching(kernel)
        self.factors = [
            gpu.launching(_factor(n, dtype, near if k else math.inf, k))
            for k, dtype in enumerate((float64, x.dtype))
        ]

    def __call__(self, x: Any, q: Any) -> tuple[Any, Any] | None:
        """Write q, and return w and R of x = q w R; None where x is too far from full rank."""
        xp, n = self.gpu.xp, self.columns
        over, upper = (xp.empty((n, n), float64) for _ in range(2))
        last, both = (xp.empty((n, n), x.dtype) for _ in range(2))
        words = xp.empty(2, int64)
        self.factors[0](self._gram(x, 0), upper, over, upper, words)
        self.turn(x, over, q)
        self.factors[1](self._gram(q, 1), upper, last, both, words)
        return None if self.gpu.to_host(words).any() else (last, both)

    def _grams(self, x: Stack) -> tuple[Function, Function | None]:
        """The products of the parts of rows, and that of what is left of them."""
        (down, across), n, each = x.strides, self.columns, self.each

        def made(parts: int, rows: int) -> Function:
            right = Stack((parts, rows, n), (each * down, down, across), x.dtype)
            found = tiles.fastest(n, n, rows, parts, float64, self.gpu.tile_rates)
            assert found is not None
            d = Stack((parts, n, n), (n * n, n, 1), float64)
            kernel = tiles.kernel_of(transposed(right), right, d, tiling=found[1])
            run: Function = self.gpu.launching(kernel)
            return run

        rest = self.rows - self.end
        return made(self.parts, each), made(1, rest) if rest else None

    def _gram(self, x: Any, which: int) -> Any:
        all_parts, rest = self.grams[which]
        n = self.columns
        stack = self.gpu.xp.empty((self.parts + (rest is not None), n, n), float64)
        all_parts(x, x, stack)
        if rest is not None:
            left = x[self.end :]
            rest(left, left, stack[self.parts :])
        return stack.sum(0)


def thin_qr(gpu: Any, x: Any, q: Any, near: float, known: dict[Any, Any]) -> tuple[Any, Any] | None:
    """`near`: how far the second Gram matrix may be from 1."""
    if (
        x.dtype != float32
        or not 0 < x.shape[1] <= ThinQr.most_columns
        or x.shape[0] < 2 * x.shape[1]
    ):
        return None
    made = gpu.xp.empty(x.shape, x.dtype) if q is None else q
    key = "qr", x.shape, x.strides, made.strides, near
    if key not in known:
        _keep(known, key, ThinQr(gpu, x, made, near))
    run: ThinQr = known[key]
    return run(x, made)


def times(gpu: Any, q: Any, w: Any, known: dict[Any, Any]) -> bool:
    """q = q w in place, where a tile has whole rows."""
    if q.dtype != float32 or w.dtype != float32 or not q.size:
        return False
    key = "times", q.shape, q.strides, w.strides
    if key not in known:
        found = tiles.fastest(*q.shape, q.shape[1], 1, q.dtype, gpu.tile_rates, True)
        kernel = found and tiles.kernel_of(_stack(q), _stack(w), _stack(q), tiling=found[1])
        _keep(known, key, gpu.launching(kernel) if kernel else None)
    if known[key] is None:
        return False
    known[key](q, w, q)
    return True


def _keep(known: dict[Any, Any], key: Any, made: Any) -> None:
    if len(known) == ThinQr.most_layouts:
        del known[next(iter(known))]
    known[key] = made


def _stack(x: Any) -> Stack:
    return Stack(x.shape, tuple([step // x.dtype.itemsize for step in x.strides]), x.dtype)


def _factor(n: int, made: DType, near: float, turn: int) -> Kernel:
    """Makes of a Gram matrix U'U the inverse of U, and U times the factor before (itself in the first turn),
    as `made`; and a word that is 1 where there is no U, or the matrix is not near 1."""
    text = f"typedef {c_type(made)} O; enum {{ N = {n}, PITCH = {n + 1}, TURN = {turn} }};"
    given = ["u8* q0", "u8* q1", "u8* q2", "u8* q3", "u8* q4", "s64 bits"]
    bits = int(np.array(near, float64).view(int64))
    return whole("factor", given, _FACTOR.splitlines(), {text}, (1, 1), (bits,))


_FACTOR = """\
__shared__ double s[N * PITCH];  // L below the diagonal, and its inverse, transposed, above
__shared__ double least[N], far[N];
__shared__ u32 bad;
const double* const gram = (const double*)q0;
const int t = threadIdx.x, threads = blockDim.x;
if (t == 0) bad = 0;
for (int at = t; at < N * N; at += threads) s[at / N * PITCH + at % N] = gram[at];
__syncthreads();
for (int j = t; j < N; j += threads) {
  double sum = 0;
  for (int i = 0; i < N; ++i) sum += fabs(s[i * PITCH + j] - (i == j));
  far[j] = sum;
  least[j] = 10 * 0x1p-52 * s[j * PITCH + j];
}
__syncthreads();
for (int k = 0; k < N; ++k) {
  const double pivot = s[k * PITCH + k];
  const double root = sqrt(pivot);
  __syncthreads();
  if (t == 0) {
    if (!(pivot > least[k]) || !(far[k] < __longlong_as_double(bits))) bad = 1;
    s[k * PITCH + k] = root;
  }
  for (int i = k + 1 + t; i < N; i += threads) s[i * PITCH + k] /= root;
  __syncthreads();
  const int side = N - 1 - k;
  for (int at = t; at < side * side; at += threads) {
    const int i = k + 1 + at / side, j = k + 1 + at % side;
    if (j <= i) s[i * PITCH + j] -= s[i * PITCH + k] * s[j * PITCH + k];
  }
  __syncthreads();
}
for (int j = t; j < N; j += threads) {
  const double first = 1 / s[j * PITCH + j];
  for (int i = j + 1; i < N; ++i) {
    double sum = s[i * PITCH + j] * first;
    for (int k = j + 1; k < i; ++k) sum += s[i * PITCH + k] * s[j * PITCH + k];
    s[j * PITCH + i] = -sum / s[i * PITCH + i];
  }
}
__syncthreads();
for (int at = t; at < N * N; at += threads) {
  const int i = at / N, j = at % N;
  ((O*)q2)[at] = (O)(i > j ? 0 : i < j ? s[i * PITCH + j] : 1 / s[i * PITCH + i]);
  double upper = i > j ? 0 : s[j * PITCH + i];
  if (TURN) {
    upper = 0;
    for (int k = i; k <= j; ++k) upper += s[k * PITCH + i] * ((const double*)q1)[k * N + j];
  }
  ((O*)q3)[at] = (O)upper;
}
if (t == 0) ((s64*)q4)[TURN] = bad;"""
