"""Linear systems by products with the matrix alone: conjugate gradients, BiCGSTAB, GMRES.

Each is one `while_loop`, so it is one node of a plan, and its gradient is one more system, with the
transposed matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..array.arithmetic import conj, maximum, real, sqrt
from ..array.casts import astype
from ..array.concatenation import concat, stack
from ..array.contraction import matmul
from ..array.creation import eye
from ..array.elementwise import where
from ..array.shape import matrix_transpose, reshape, whole_number, zero_of
from ..autodiff.batching import each
from ..autodiff.gradient import vjp
from ..autodiff.tangents import solid
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.graph import Graph
from ..core.spec import int64, is_inexact, real_of
from ..core.trace import inline
from ..core.tree import flatten, unflatten
from ..core.user_line import misfit
from ..flow.repeat_scan import repeat
from ..flow.while_loops import while_loop
from ..linalg import lstsq
from ..linalg import solve as solve_whole
from .implicit import kind, solution

Linear = Callable[[Any], Any]
DENSE = 64  # unknowns up to which the systems of gradients are solved by a factorization


class Solution(NamedTuple):
    """What a solver found, and 0 if that is one, or else how many turns it took in vain.

    >>> int(ost.solve.cg(lambda v: 2 * v, ost.ones(2), maxiter=0).info)
    0
    """

    x: Any
    info: Array


def _row_of(tree: Any) -> Any:
    """A list of Python's numbers is one array, of float64, as everywhere else; another one is a tree."""
    if isinstance(tree, list) and tree and all(isinstance(x, (int, float)) for x in tree):
        return as_array(np.asarray(tree, np.float64))
    return tree


class Raveled:
    """A tree as one Array: its leaf if it has one, else all of them behind each other."""

    def __init__(self, tree: Any, who: str) -> None:
        leaves, self.structure = flatten(_row_of(tree))
        self.leaves = [as_array(x) for x in leaves]
        if not self.leaves or not all(is_inexact(x.dtype) for x in self.leaves):
            got = " and ".join(str(x.spec.bare) for x in self.leaves) or "nothing"
            do = "convert them with .astype(ost.float64)"
            raise misfit(ArgumentError, who, got=got, needed="arrays of floating numbers", do=do)
        self.value = self.ravel(self.leaves)

    def ravel(self, leaves: Sequence[Array]) -> Array:
        if len(leaves) == 1:
            return leaves[0]
        return concat([reshape(x, (-1,)) for x in leaves])

    def join(self, tree: Any, who: str) -> Array:
        """Another tree of that form."""
        leaves, structure = flatten(tree)
        xs = [as_array(x) for x in leaves]
        if structure != self.structure and self._is_row(tree, xs):
            structure, xs = self.structure, [stack(xs)]
        if structure != self.structure or [x.shape for x in xs] != [x.shape for x in self.leaves]:
            got = f"{structure} of {', '.join(str(x.shape) for x in xs)}"
            needed = f"{self.structure} of {', '.join(str(x.shape) for x in self.leaves)}"
            raise misfit(ShapeError, who, got=got, needed=needed)
        return astype(self.ravel(xs), self.value.dtype)

    def _is_row(self, tree: Any, xs: Sequence[Array]) -> bool:
        """Whether it lists the numbers of an array, as functions for SciPy's solvers do."""
        mine = [x.shape for x in self.leaves]
        listed = isinstance(tree, (list, tuple)) and not any(x.shape for x in xs)
        return listed and mine == [(len(xs),)]

    def split(self, whole: Array) -> Any:
        """The tree again, of arrays that may have more axes in front."""
        if len(self.leaves) == 1:
            return unflatten(self.structure, [whole])
        at, parts = 0, []
        for x in self.leaves:
            own = whole[..., at : at + x.size]
            parts.append(reshape(own, (*whole.shape[:-1], *x.shape)))
            at += x.size
        return unflatten(self.structure, parts)


def flat(x: Array) -> Array:
    return x if x.ndim == 1 else reshape(x, (-1,))


def dot(x: Array, y: Array) -> Array:
    """Sum of conj(x) * y over all elements."""
    product = conj(x) * y if x.dtype.kind == "c" else x * y
    return product.sum()


def square(x: Array) -> Array:
    return real(dot(x, x))


def ratio(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0, as what comes to a halt stands still."""
    zero = b == 0
    return where(zero, 0, a / where(zero, 1, b))


# -- the methods -----------------------------------------------------------------------------
# Each takes functions of one Array, and gives x, whether it is a solution, and the turns taken.
Found = tuple[Array, Array, Array]


def _conjugate(
    a: Linear, m: Linear, b: Array, start: Array | None, limit: Array, most: int
) -> Found:
    x, r = _begin(a, b, start)
    z = m(r)
    begin = (x, r, z, real(dot(r, z)), square(r), 0)

    def turn(s: Any) -> Any:
        x, r, p, rz, _, k = s
        q = a(p)
        alpha = ratio(rz, real(dot(p, q)))
        x, r = x + alpha * p, r - alpha * q
        z = m(r)
        after = real(dot(r, z))
        return x, r, z + ratio(after, rz) * p, after, square(r), k + 1

    made = while_loop(lambda s: (s[4] > limit) & (s[5] < most), turn, begin)
    return made[0], made[4] <= limit, made[5]


def _begin(a: Linear, b: Array, start: Array | None) -> tuple[Array, Array]:
    """The first x, and what is left over of b; of zeros that is b, without a product."""
    return (zero_of(b), b) if start is None else (start, b - a(start))


def _stabilized(
    a: Linear, m: Linear, b: Array, start: Array | None, limit: Array, most: int
) -> Found:
    x, r = _begin(a, b, start)
    begin = (x, r, r, dot(r, r), square(r), 0)

    def turn(s: Any) -> Any:
        x, r, p, rho, _, k = s
        ahead = m(p)
        v = a(ahead)
        alpha = ratio(rho, dot(shadow, v))
        half = r - alpha * v
        beyond = m(half)
        t = a(beyond)
        omega = ratio(dot(t, half), dot(t, t))
        x, r = x + alpha * ahead + omega * beyond, half - omega * t
        after = dot(shadow, r)
        beta = ratio(after, rho) * ratio(alpha, omega)
        return x, r, r + beta * (p - omega * v), after, square(r), k + 1

    shadow = r
    made = while_loop(lambda s: (s[4] > limit) & (s[5] < most), turn, begin)
    return made[0], made[4] <= limit, made[5]


def _minimal(
    a: Linear, m: Linear, b: Array, start: Array | None, limit: Array, most: int, restart: int
) -> Found:
    """Cycles of as many steps; each makes what is left over as small as its vectors can."""
    size = min(restart, b.size)

    def cycle(s: Any) -> Any:
        x, r, left, k = s
        norm = sqrt(left)
        first = flat(r) * ratio(norm * 0 + 1, norm)
        basis = apply("full", shape=(size + 1, b.size), value=0, dtype=b.dtype).at[0].set(first)
        columns = apply("full", shape=(size, size + 1), value=0, dtype=b.dtype)

        def step(state: Any) -> Any:
            basis, columns, j = state
            w = flat(a(m(reshape(basis[j], b.shape))))
            h = matmul(conj(basis), w)
            w = w - matmul(h, basis)
            again = matmul(conj(basis), w)  # what rounding left
            w, h = w - matmul(again, basis), h + again
            norm = sqrt(square(w))
            w = w * ratio(norm * 0 + 1, norm)
            return basis.at[j + 1].set(w), columns.at[j].set(h.at[j + 1].add(norm)), j + 1

        basis, columns, _ = repeat(size, step, (basis, columns, 0))
        goal = apply("full", shape=(size + 1,), value=0, dtype=b.dtype).at[0].set(norm)
        weights = lstsq(columns.T, goal).x
        x = x + m(reshape(matmul(weights, basis[:size]), b.shape))
        r = b - a(x)
        return x, r, square(r), k + 1

    x, r = _begin(a, b, start)
    made = while_loop(lambda s: (s[2] > limit) & (s[3] < most), cycle, (x, r, square(r), 0))
    return made[0], made[2] <= limit, made[3]


# -- what users call -------------------------------------------------------------------------
def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> Solution:
    """x with A x = b by conjugate gradients, for a Hermitian, positive definite A: a matrix, or a
    function that multiplies with it. `M`, of the same kind, is near A's inverse; gradients solve
    the transposed system with M transposed. x is one if `norm(b - A x) <= max(rtol * norm(b),
    atol)`. b may be a tree.

    >>> x, info = ost.solve.cg([[4.0, 1.0], [1.0, 3.0]], [1.0, 2.0])
    >>> x
    Array([0.0909, 0.6364], dtype=float64)
    >>> int(info)
    0
    """
    return _solved("cg", A, b, x0, M, rtol, atol, maxiter, 0)


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> Solution:
    """x with A x = b by stabilized biconjugate gradients, for any square A; as `cg`.

    >>> ost.solve.bicgstab(lambda v: 2 * v, ost.ones(2)).x
    Array([0.5, 0.5], dtype=float64)
    """
    return _solved("bicgstab", A, b, x0, M, rtol, atol, maxiter, 0)


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
) -> Solution:
    """x with A x = b by generalized minimal residuals, for any square A; as `cg`, in at most
    `maxiter` cycles of `restart` products.

    >>> ost.solve.gmres([[4.0, 1.0], [0.0, 3.0]], [5.0, 3.0]).x
    Array([1., 1.], dtype=float64)
    """
    restart = whole_number(restart, "gmres", 1)
    return _solved("gmres", A, b, x0, M, rtol, atol, maxiter, restart)


def _solved(
    method: str,
    A: Any,
    b: Any,
    x0: Any,
    M: Any,
    rtol: float,
    atol: float,
    maxiter: int | None,
    restart: int,
) -> Solution:
    tree = Raveled(b if _is_function(A) else as_array(b), method)  # a list beside a matrix is a row
    a = _function(A, tree, method, "A")
    m = _function(M, tree, method, "M") if M is not None else _same
    x0 = x0 if x0 is None or _is_function(A) else as_array(x0)
    start = None if x0 is None else tree.join(x0, method)
    most = 10 * tree.value.size if maxiter is None else whole_number(maxiter, method, 0)
    run = a
    # rows of many small ones are added up the faster way
    if method == "cg" and not _is_function(A):
        matrix = as_array(A)
        run = lambda x: conj(matmul(conj(x), matrix))  # noqa: E731
    x, done, turns = _run(method, run, m, tree.value, start, rtol, atol, most, restart)
    right = tree.value
    (x,) = solution(
        [x],
        lambda v: [a(v) - right, *([] if M is None else [m(v)])],
        [right.spec],
        kind="root",
        method=method,
        rtol=rtol,
        atol=atol,
        most=most,
    )
    return Solution(tree.split(x), where(done, 0, astype(turns, int64)))


def _run(
    method: str,
    a: Linear,
    m: Linear,
    b: Array,
    start: Array | None,
    rtol: float,
    atol: float,
    most: int,
    restart: int,
) -> Found:
    limit = maximum(square(b) * rtol**2, atol**2)
    limit = astype(limit, real_of(b.dtype))
    if method == "gmres":
        return _minimal(a, m, b, start, limit, most, restart)
    return (_conjugate if method == "cg" else _stabilized)(a, m, b, start, limit, most)


def _same(x: Array) -> Array:
    return x


def _is_function(given: Any) -> bool:
    return callable(given) and not isinstance(given, Array)


def _function(given: Any, tree: Raveled, who: str, name: str) -> Linear:
    """A matrix, or a user's function of trees, as a function of one Array."""
    if _is_function(given):
        return lambda x: tree.join(given(tree.split(x)), f"{name} of {who}")
    matrix = as_array(given)
    size = tree.value.size
    if matrix.shape != (size, size) or len(tree.leaves) > 1 or tree.value.ndim != 1:
        got = f"{name} of shape {matrix.shape} and b {tree.value.spec.bare}"
        needed = "a square matrix of as many rows as the vector b has, or a function"
        raise misfit(ShapeError, who, got=got, needed=needed)
    return lambda x: matmul(matrix, x)


# -- gradients -------------------------------------------------------------------------------
@kind("root")
def _root_grad(
    gs: Sequence[Array],
    xs: Sequence[Array],
    given: Sequence[Array],
    *,
    law: Graph,
    method: str,
    rtol: float,
    atol: float,
    most: int,
) -> Sequence[Array | None]:
    (g,), (x,) = gs, xs
    own = [apply("mark", v) for v in (x, *given)]
    r, *near = inline(law, own)  # and what the preconditioner makes of x

    def turned(v: Array) -> Array:
        """With the transposed derivative of the law by x."""
        return solid(vjp([r], own[:1], [v])[0], x)

    def inverse(v: Array) -> Array:
        if method == "cg":  # Hermitian
            return conj(inline(law, [conj(v), *given])[1])
        return solid(vjp(near, own[:1], [v])[0], x)

    if method == "dense" or (x.size <= DENSE and method != "cg"):
        weights = _dense(turned, g)
    else:
        weights = _again(method, turned, inverse if near else None, g, rtol, most)
    return vjp([r], own[1:], [-weights])


def _dense(turned: Linear, g: Array) -> Array:
    units = reshape(eye(g.size, dtype=g.dtype), (g.size, *g.shape))
    rows, _ = each(lambda v: [turned(v)], [(units, True)], g.size)[0]
    square = matrix_transpose(reshape(rows, (g.size, g.size)))
    return reshape(solve_whole(square, reshape(g, (-1,))), g.shape)


def _again(
    method: str, turned: Linear, m: Linear | None, g: Array, rtol: float, most: int
) -> Array:
    """Apply the same method to the transposed system, with the preconditioner transposed, too."""
    x, _, _ = _run(method, turned, m or _same, g, None, rtol, 0.0, most, 20)

    def law(v: Array) -> list[Array]:
        return [turned(v) - g, *([] if m is None else [m(v)])]

    (x,) = solution([x], law, [g.spec], kind="root", method=method, rtol=rtol, most=most)
    return x
