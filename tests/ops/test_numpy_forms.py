"""Calls in forms that programs for NumPy have: what NumPy gives, in any layout, compiled and not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import (
    AssignmentError,
    AssignmentWarning,
    OstinatoError,
    TracedValueError,
)
from tests.sessions import use

from .test_numpy_names import agree, flat

R = np.random.default_rng(0)
X, Y, Z = R.normal(size=(7, 5)), R.normal(size=(7, 5)), R.normal(size=(2, 6, 3))
V, W = R.normal(size=12), R.normal(size=5)
WHOLE = R.integers(-9, 9, (6, 4))

CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("mgrid", lambda xp, x: (
        x * xp.mgrid[0:7, -2:3], xp.mgrid[0:1:4j, 3:0:-1] * x[0, 0], xp.mgrid[1:2:0.25] + x[0, 0],
        xp.mgrid[:3, 1:9:3, -1:1:2j] * x[1, 1]), (X,)),
    ("ogrid", lambda xp, x: (
        [x * g for g in xp.ogrid[0:7, 0:1:5j]], xp.ogrid[-1:1:5j] * x), (X,)),
    ("r_", lambda xp, x, v, k: (
        xp.r_[v, 0, v[::-1]], xp.r_[x, x], xp.r_["1", x, x], xp.r_["-1,3", x, x[:, :1]],
        xp.r_["0,2", v[:5], x], xp.r_["1,2,0", v, v], xp.r_["0,3,1", v, v], xp.r_["0,3,-2", v, v],
        xp.r_[0:3, v, 1:2:3j], xp.r_[k[0], k[1]], xp.r_["0,2,0", v, 1:13]), (X, V, WHOLE)),
    ("c_", lambda xp, x, v, k: (
        xp.c_[v, v], xp.c_[x, x[:, 0]], xp.c_[v[:6], k], xp.c_[0:12, v, v]), (X, V, WHOLE)),
    ("order", lambda xp, x, z: (
        xp.reshape(z, (9, 4), "F"), z.reshape(4, 9, order="F"), z.reshape((-1, 3), order="F"),
        xp.ravel(z, "F"), z.ravel("A"), z.ravel(order="K"), z.flatten("F"), xp.reshape(x, (5, 7), order="A"),
        z.copy(order="F"), xp.copy(x, order="F"), x.reshape(7, 5, order="F")), (X, Z)),
    ("makers' orders", lambda xp, x: [x[0, 0] + made for made in (
        xp.zeros((2, 3), float, "F"), xp.ones(3, order="C"), xp.full((2, 2), 3, "f4", "F"),
        xp.array([[1, 2]], order="F"), xp.asarray([[1.0, 2]], order="F"), xp.eye(3, 4, 1, int), xp.eye(3, k=-1),
        xp.zeros_like(x, order="F"), xp.ones_like(x, shape=(2, 2)), xp.full_like(x, 7, shape=3),
        xp.ascontiguousarray(x), xp.asfortranarray(x), xp.asanyarray(x, "f4"))], (X,)),
    ("linspace", lambda xp, x: (
        [y * x[0, 0] for y in xp.linspace(0, 1, 5, retstep=True)], xp.linspace(start=0, stop=2, num=3) * x[0, 0],
        xp.linspace(x, 3, 4, False, True, float, -1)), (X,)),
    ("pad's widths", lambda xp, x, z: [
        *(xp.pad(x, w, mode=m) for m in ("constant", "edge", "wrap", "reflect", "symmetric", "empty")[:5] for w in (
            1, (2,), (0, 3), ((1, 2),), ((1, 0), (3, 2)), ((9, 20), (0, 11)), np.array([1, 2]))),
        xp.pad(z, {1: (1, 2), -1: 3}, "symmetric"), xp.pad(array=x, pad_width=2) if xp is np else xp.pad(x, pad_width=2),
        ], (X, Z)),
    ("pad's modes", lambda xp, x, k: [
        *(xp.pad(y, ((2, 3), (0, 4)), m, stat_length=s) for m in ("maximum", "minimum", "mean", "median")
          for y, s in ((x, ((1, 3), (2, 9))), (k, 2))),
        *(xp.pad(y, ((2, 3), (4, 0)), "linear_ramp", end_values=e) for y, e in ((x, ((1, 2), (3, 4))), (k, (-5, 5)))),
        *(xp.pad(y, ((2, 17), (9, 1)), m, reflect_type="odd") for y in (x, k) for m in ("reflect", "symmetric")),
        xp.pad(x, 2, constant_values=7), xp.pad(x, ((1, 2), (3, 0)), constant_values=((1, 2), (3, 4))),
        xp.pad(k, (1, 2), "constant", constant_values=(-1, 9)),
        xp.pad(x[:1], ((3, 2), (1, 1)), "reflect"), xp.pad(x[:1], ((3, 2), (0, 0)), "symmetric", reflect_type="odd"),
        ], (X, WHOLE)),
    ("sort", lambda xp, x, z, c: [
        xp.sort(x, None), xp.sort(x, axis=0, kind="mergesort"), xp.argsort(x, axis=None), xp.argsort(z, 1, "stable"),
        xp.argsort(z, kind="quicksort", axis=0), x.argsort(0), xp.sort(z, axis=1, kind="heapsort", stable=None),
        *(xp.sort(y, a) for y in (c, xp.round(c)) for a in (0, 1, None)),
        *(xp.argsort(y, a, kind="stable") for y in (c, xp.round(c)) for a in (0, 1, None))],
        (X, Z, X.round(1) + 1j * Y)),
    ("take", lambda xp, x, k: [
        xp.take(x, k, mode="wrap"), xp.take(x, k, 0, mode="clip"), xp.take(x, k % 5, axis=1, mode="raise"),
        x.take(k, axis=-1, mode="wrap"), xp.take(x, [9, -9], mode="clip", axis=0), xp.take(x, 40, mode="wrap")], (X, WHOLE)),
    ("choose", lambda xp, x, y, k: [
        xp.choose(abs(k[0, 0]) % 2, [x, y]), xp.choose(abs(k) % 3, [k, -k, 2 * k]), xp.choose(k, [k, x[:6, :4]], mode="wrap"),
        xp.choose(k, (1, k, 2.5), mode="clip")], (X, Y, WHOLE)),
    ("einsum", lambda xp, x, y: [
        xp.einsum(x, [0, 1], y, [2, 1], [0, 2]), xp.einsum(x, [7, 3], y, [7, 3]), xp.einsum(x, [4, 2]),
        xp.einsum(x, [..., 0], y, [..., 0], [...]), xp.einsum(x, (30, 1), [30]),
        xp.einsum("ij,kj,lj->il", x, y, [[1.0] * 5] * 2, optimize="optimal"),
        xp.einsum("ij,kj->ik", x, y, optimize=["einsum_path", (0, 1)])], (X, Y)),
    ("linalg", lambda xp, x, v: [
        abs(xp.linalg.qr(x, mode="r")), xp.linalg.eigvalsh(x[:5], "U"), xp.linalg.eigh(x[:5], UPLO="U")[0],
        xp.linalg.matrix_rank(x, 1.9), xp.linalg.matrix_rank(x[:5] + x[:5].T, tol=1.5, hermitian=True),
        *(y * 1.0 for y in xp.linalg.lstsq(x, v[:7], rcond=None)),
        *(y * 1.0 for y in xp.linalg.lstsq(x, x[:, :2] ** 2, rcond=1e-9))], (X, V)),
    ("axes", lambda xp, x, z: [
        xp.rollaxis(z, 2), xp.rollaxis(z, 0, 3), xp.rollaxis(z, -1, 1), xp.resize(x, (3, 30)), xp.resize(x, 4),
        xp.row_stack([x, x]) if xp is ost else np.vstack([x, x]),
        xp.apply_over_axes(xp.sum, z, (0, -1)), xp.apply_over_axes(xp.cumsum, z, 1)], (X, Z)),
    ("names of arguments", lambda xp, x, z, k: [
        xp.clip(x, a_min=-1, a_max=0.5), xp.clip(x, None, a_max=x[0]), xp.tile(x, reps=(2, 1)), xp.repeat(x, 2, 1),
        xp.repeat(x, [1, 2, 0, 1, 1], axis=1), xp.eye(N=3, M=4) + x[0, 0], xp.swapaxes(z, axis1=0, axis2=-1),
        x.swapaxes(0, 1), x.astype(dtype="f4"), xp.isin(k, test_elements=[1, 2], assume_unique=False, invert=True),
        xp.stack([x, x], 1, dtype="f4"), xp.concatenate([k, k], dtype=float, axis=1), xp.concat([k, k], dtype="f4"),
        xp.indices((7, 5), sparse=True)[0] * x, xp.meshgrid(x[0], x[:, 0], copy=False), xp.nan_to_num(1 / k, True, 3.0, 4.0),
        xp.cumsum(k, 0, "f4"), k.cumsum(axis=1, dtype=float), x.cumprod(0), xp.tri(3, 4, -1, int) * x[0, 0],
        xp.linalg.pinv(x[:5] + x[:5].T, hermitian=True), xp.linalg.svd(x[:5] + x[:5].T, compute_uv=False, hermitian=True),
        xp.sort(x[0]).searchsorted(x[1], sorter=xp.arange(5)), x.flat[3:9], x.flat[-1]], (X, Z, WHOLE)),
    ("by position", lambda xp, x, k: [
        xp.sum(k, 0, "i2"), xp.prod(x, 1, float, None, True), xp.mean(k, 0, float, None, True), xp.std(x, 0, float, None, 1),
        xp.any(x > 1, 0, None, True), k.sum(0, float), x.std(0, None, None, 1), x.max(0, None, True), x.argmax(1)], (X, WHOLE)),
    ("more names", lambda xp, x, v, z, c: [
        xp.matvec(x, v[:5]), xp.vecmat(c[0], x.T), xp.matvec(z, z[0, 0]), xp.vecmat(z[:, 0, :], z.swapaxes(1, 2)),
        xp.sort_complex(x), xp.sort_complex(c)], (X, V, Z, X + 1j * Y)),
    ("polyfit", lambda xp, v, w, x: [
        xp.asarray(part) * 1.0 for full in (False, True) for part in flat(xp.polyfit(w, v[:5], 2, full=full) )] + [
        *flat(xp.polyfit(v, xp.sin(v), 3, cov=True)), *flat(xp.polyfit(v, xp.sin(v), 1, w=v**2 + 1, cov="unscaled")),
        *flat(xp.polyfit(x[:, 0], x, 1, cov=True))], (V, W, X)),
    ("functions of lines", lambda xp, x, z: [
        xp.apply_along_axis(lambda v: v[::-1] * v.sum(), 0, x), xp.apply_along_axis(lambda v: v.max(), 1, z),
        xp.apply_along_axis(lambda v: xp.outer(v, v), 1, z), xp.apply_along_axis(lambda v, k, p=1: v * k**p, 0, x, 3, p=2),
        xp.piecewise(x, [x < 0, x >= 0], [lambda v: v * 2, 5]), xp.piecewise(x[0], x[0] > 0, [1, -1]),
        xp.piecewise(x, [x > 0], [lambda v, k: v * k], 3), xp.piecewise(x, [x > 0, x > 1], [abs, abs, -1]),
        xp.vectorize(lambda a, b: a * b + 1, otypes=[float])(x, x[0]), xp.vectorize(lambda a: a > 0, otypes="d")(x),
        xp.vectorize(lambda a, k: a * k, excluded=["k"])(x, k=3)], (X, Z)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "given"), CASES, ids=[c[0] for c in CASES])
def test_as_in_numpy(name: str, function: Any, given: tuple[Any, ...]) -> None:
    agree(name, function, given)
    with use(), np.errstate(all="ignore"):
        wanted, found = (flat(function(xp, *map(xp.asarray, given))) for xp in (np, ost))
        assert [y.dtype for y in found] == [y.dtype for y in wanted]


def test_dtypes_make_numbers_and_arrays() -> None:
    with use():
        for name in ("bool", "int8", "uint64", "float16", "bfloat16", "float32", "complex128"):
            kind = getattr(ost, name)
            one = kind(1)
            assert isinstance(one, kind)
            assert isinstance(one, np.generic)
            assert one.dtype == kind == kind.dtype
            assert {kind: 1}[one.dtype] == {one.dtype: 1}[kind] == 1
            assert kind([0, 1]).dtype == kind(ost.ones(2)).dtype == np.zeros(2, kind).dtype == kind
            assert kind.itemsize == one.itemsize
            assert pickle.loads(pickle.dumps(kind)) == kind
            assert str(kind) == name
        assert ost.float32 != ost.float64
        assert ost.float32 != "nonsense"
        assert ost.float32 is not None
        assert ost.int8 not in (None, 3)
        half = ost.compile(lambda x: ost.float16(x) * ost.int8(3))(ost.ones(2))
        assert half.dtype == ost.float16
        assert ost.compile(lambda x, kind: x.astype(kind))(ost.ones(2), ost.int8).dtype == "int8"
        assert ost.issubdtype(ost.bfloat16, ost.floating)
        assert not ost.issubdtype(ost.bfloat16, ost.integer)
        assert ost.promote_types("f4", ost.int64) == ost.float64


def test_ndarray_is_the_class_of_arrays_and_makes_them() -> None:
    with use():
        made = ost.ndarray((2, 3), ost.int32)
        assert (made.shape, made.dtype) == ((2, 3), ost.int32)
        assert ost.ndarray(4).dtype == ost.float64
        assert isinstance(made, ost.ndarray)
        assert not isinstance(np.ones(3), ost.ndarray)
        assert issubclass(ost.Array, ost.ndarray)
        assert ost.compile(lambda x: x if isinstance(x, ost.ndarray) else None)(made).shape == (
            2,
            3,
        )
        found = ost.ndarray(3, "i2", np.arange(4, dtype="i2").tobytes(), 2)
        np.testing.assert_array_equal(np.asarray(found), [1, 2, 3])


def test_sizes_and_names_of_numpys_own() -> None:
    with use():
        assert ost.asarray(X).item(3) == X.item(3)
        assert ost.asarray(X).item(-1, 2) == ost.asarray(X).item((-1, 2)) == X.item(-1, 2)
        assert (
            ost.frombuffer(X.tobytes(), offset=8, count=3).tolist() == X.reshape(-1)[1:4].tolist()
        )
        assert ost.fromiter(iter([1, 2.5]), ost.float32).tolist() == [1, 2.5]
        x = ost.zeros((2, 3))
        assert (ost.shape(x), ost.ndim([1]), ost.size(x), ost.size(x, -1)) == ((2, 3), 1, 6, 3)
        assert ost.intp is np.intp
        assert list(ost.ndindex(2)) == [(0,), (1,)]
        with ost.errstate(divide="ignore"):
            assert np.isinf(np.asarray(1 / ost.zeros(1)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ost.mgrid[3], "got a int; needed slices"),
        (lambda: ost.r_["c", X], "got 'c'; needed up to three whole numbers"),
        (lambda: ost.reshape(X, (5, 7), "B"), "order='B'; needed 'C', 'F', 'A' or 'K'"),
        (lambda: ost.zeros(3, order="G"), "order='G'"),
        (lambda: ost.sort(X, kind="best"), "kind='best'; needed 'quicksort'"),
        (lambda: ost.take(X, 3, mode="up"), "mode='up'; needed 'raise', 'wrap' or 'clip'"),
        (lambda: ost.pad(X, 1, "best"), "mode 'best'; needed 'constant', 'empty', 'edge'"),
        (lambda: ost.pad(X, 1, "reflect", reflect_type="up"), "reflect_type='up'"),
        (
            lambda: ost.pad(X, 1, constant_values=(1, 2, 3)),
            r"constant_values=\(1, 2, 3\); needed one, a pair",
        ),
        (lambda: ost.pad(X, (1, 2, 3)), "widths of 0 or more"),
        (lambda: ost.pad(ost.zeros((0, 2)), 1, "edge"), "an axis of 0 elements"),
        (lambda: ost.einsum(X, X), "needed text such as"),
        (lambda: ost.linalg.qr(X, "raw"), "needed 'reduced', 'complete' or 'r'"),
        (lambda: ost.unique(X[:0], axis=0, size=3), "needed at least one element"),
        (lambda: ost.vectorize(lambda x: x, otypes="dd")(X), "2 otypes for 1 results"),
        (lambda: np.asarray(ost.choose([0, 3], [1, 2])), "index 3"),
    ],
)
def test_what_is_refused(call: Any, says: str) -> None:
    with use(), pytest.raises(OstinatoError, match=says):
        call()


DRAWS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("beta", "f", "wald", "noncentral_chisquare"), (2.0, [3.0, 4.0])),
    **dict.fromkeys(("gumbel", "laplace", "logistic", "lognormal", "normal"), (1, np.ones(2))),
    **dict.fromkeys(("chisquare", "exponential", "pareto", "poisson", "power", "rayleigh"), (3,)),
    **dict.fromkeys(("standard_t", "weibull", "zipf", "standard_gamma"), ([2.5, 3.0],)),
    **dict.fromkeys(("geometric", "logseries"), (0.5,)),
    **dict.fromkeys(("binomial", "negative_binomial"), (5, 0.5)),
    **dict.fromkeys(("random", "standard_normal", "standard_exponential", "standard_cauchy"), ()),
    **dict.fromkeys(("random_sample", "ranf", "sample"), ()),
    "uniform": (-1, 2),
    "gamma": (2.0, 3.0),
    "vonmises": (0.0, 4.0),
    "triangular": (0, 1, 4),
    "noncentral_f": (3.0, 5.0, 2.0),
    "hypergeometric": (5, 6, 4),
    "randint": (3, 9),
    "multinomial": (10, [0.2, 0.8]),
    "dirichlet": ([1.0, 2.0],),
    "multivariate_normal": ([0.0, 5.0], [[1.0, 0.5], [0.5, 2.0]]),
    "choice": (7,),
}


def test_every_distribution_takes_numpys_arguments() -> None:
    """By position and by name, of the module and of a generator; compiled, with arrays among them."""
    vectors = ("multinomial", "dirichlet", "multivariate_normal")
    with use((2,)):
        for name, given in DRAWS.items():
            fits = name in vectors or not any(np.ndim(x) for x in given)
            for size in (None, (4, 2), *((3, ()) if fits else ())):
                wanted = np.asarray(getattr(np.random, name)(*given, size=size))
                made = getattr(ost.random, name)
                found = [made(*given, size=size)]
                if hasattr(ost.random.Generator, name):
                    found.append(getattr(ost.random.default_rng(0), name)(*given, size=size))
                if name in ("normal", "uniform", "gamma"):
                    found.append(made(*given, size))
                if size == 3:
                    found.append(ost.compile(lambda f=made, xs=given: f(*xs, size=3))())
                for x in found:
                    assert x.shape == wanted.shape, (name, size)
                    assert size is None or x.dtype == wanted.dtype, (name, size)


def test_what_stands_alone_is_a_shape_if_it_can_be_one() -> None:
    rand = ost.random
    with use():
        for x, shape, dtype in (
            (rand.normal(3), (3,), "float32"), (rand.normal((2, np.int64(3))), (2, 3), "float32"),
            (rand.normal(0.5), (), "float64"), (rand.normal([0.0, 5.0], 1), (2,), "float64"),
            (rand.uniform((2,), low=3, high=4), (2,), "float32"), (rand.uniform(0, 1), (), "float64"),
            (rand.gamma(2.0, 3), (3,), "float32"), (rand.gamma(shape=2.0, scale=3, size=4), (4,), "float64"),
            (rand.normal(loc=1, scale=2, size=2, dtype="f4"), (2,), "float32"), (rand.rand(2, 3), (2, 3), "float64"),
            (rand.RandomState(3).randint(5, size=2), (2,), "int64"), (rand.integers(5, size=3), (3,), "int64"),
        ):  # fmt: skip
            assert (x.shape, x.dtype) == (shape, dtype)
        far = ost.compile(lambda m: rand.normal(m, 0.1, (500,), seed=3))(7.0)
        assert abs(float(far.mean()) - 7) < 0.1
        assert set(np.asarray(rand.integers(0, 1, (99,), endpoint=True)).tolist()) == {0, 1}
        again = [rand.RandomState(5).rand(3) for _ in range(2)]
        np.testing.assert_array_equal(*map(np.asarray, again))


def test_lines_are_permuted_each_by_itself() -> None:
    x = np.arange(60).reshape(3, 20)
    wanted = None
    for mesh in ((1,), (3,)):
        with use(mesh):
            found = np.asarray(ost.random.permuted(ost.asarray(x, split=0), 1, seed=5))
            np.testing.assert_array_equal(np.sort(found, 1), x)
            assert len({tuple(line) for line in found - x[:, :1]}) == 3
            whole = np.asarray(ost.random.permuted(x, seed=5))
            np.testing.assert_array_equal(np.sort(whole.reshape(-1)), x.reshape(-1))
            wanted = found if wanted is None else wanted
            np.testing.assert_array_equal(found, wanted)


def test_as_many_results_as_the_data_has() -> None:
    rows = R.integers(0, 2, (9, 2, 2))
    with use((2,)):
        x = ost.asarray(rows, split=0)
        flags = {"return_index": True, "return_inverse": True, "return_counts": True}
        for axis in (None, 0, 1, -1):
            wanted = np.unique(rows, **flags, axis=axis)
            for k in range(3):
                own = {name: flags[name] for name in list(flags)[:k]}
                found = flat(ost.unique(x, **own, axis=axis))
                for y, w in zip(found, flat(np.unique(rows, **own, axis=axis)), strict=True):
                    np.testing.assert_array_equal(np.asarray(y), w)
            for size in (1, 4, 40):
                given = {"size": size, "axis": axis, "fill_value": 7}
                found = ost.compile(lambda x, given=given: ost.unique(x, **flags, **given))(x)
                n = wanted[0].shape[axis or 0]
                np.testing.assert_array_equal(
                    np.asarray(found[2]).reshape(-1), wanted[2].reshape(-1)
                )
                for part, fill in ((0, 7), (1, None), (3, 0)):
                    along = (axis or 0) if part == 0 else 0
                    values = np.moveaxis(np.asarray(found[part]), along, 0)
                    assert len(values) == size
                    w = np.moveaxis(wanted[part], along, 0)
                    np.testing.assert_array_equal(values[:n], w[:size])
                    assert fill is None or (values[n:] == fill).all()
        np.testing.assert_array_equal(np.asarray(ost.extract(x > 0, x * 3)), 3 * rows[rows > 0])
        mask = np.array([True, False, True])
        found = ost.compress(mask, ost.asarray(rows), axis=0)
        np.testing.assert_array_equal(np.asarray(found), np.compress(mask, rows, axis=0))
        gaps = np.array([np.nan, 1, np.nan])
        values, counts = ost.unique(gaps, return_counts=True)
        np.testing.assert_array_equal(np.asarray(counts), [1, 2])


def test_widths_and_modes_of_pad_are_numpys() -> None:
    """Drawn at random: shapes, dtypes, widths and modes; eagerly, and of parts."""
    rng = np.random.default_rng(5)
    modes = (
        "constant",
        "edge",
        "linear_ramp",
        "maximum",
        "mean",
        "median",
        "minimum",
        "reflect",
        "symmetric",
        "wrap",
    )
    with use((2,)):
        for _ in range(40):
            shape = tuple(rng.integers(1, 6, rng.integers(1, 4)).tolist())
            x = (rng.normal(size=shape) * 9).astype(rng.choice(["f8", "f4", "i4", "u1"]))
            width = rng.integers(0, 8, (len(shape), 2)).tolist()
            mode = str(rng.choice(modes))
            odd = mode in ("reflect", "symmetric") and x.dtype.kind != "u" and bool(rng.integers(2))
            how: dict[str, Any] = {"reflect_type": "odd"} if odd else {}
            wanted = np.pad(x, width, mode, **how)
            found = ost.pad(ost.asarray(x, split=int(rng.integers(len(shape)))), width, mode, **how)
            assert found.dtype == wanted.dtype
            atol = 1e-4 if x.dtype.kind == "f" else 0
            np.testing.assert_allclose(
                np.asarray(found),
                wanted,
                1e-5,
                atol,
                err_msg=f"{x.shape} {x.dtype} {width} {mode} {how}",
            )


def test_gradients_and_vmap_go_through() -> None:
    weights = R.normal(size=(19, 19))

    def loss(x: Any, xp: Any = ost) -> Any:
        made = [
            xp.pad(x, (3, 9), "reflect", reflect_type="odd"), xp.pad(x, (3, 9), "linear_ramp", end_values=2.0),
            xp.pad(x, (3, 9), "mean", stat_length=2), xp.pad(x, (3, 9), "symmetric"), xp.pad(x, (3, 9), "median"),
        ]  # fmt: skip
        total = sum((y * weights[: y.shape[0], : y.shape[1]]).sum() for y in made)
        total += (xp.sort(x, None) * weights[:7, :5].reshape(-1)).sum()
        return (
            total
            + (xp.reshape(x, (5, 7), "F") * weights[:5, :7]).sum()
            + xp.linalg.qr(x, "r")[0, 0] * 3
        )

    with use():
        slope = np.asarray(ost.grad(loss)(ost.asarray(X)))
        step = R.normal(size=X.shape)
        up, down = (float(loss(ost.asarray(X + s * 1e-6 * step))) for s in (1, -1))
        assert abs((slope * step).sum() - (up - down) / 2e-6) < 1e-5
        many = np.stack([X, Y])
        found = ost.vmap(loss)(ost.asarray(many))
        np.testing.assert_allclose(
            np.asarray(found), [float(loss(ost.asarray(x))) for x in many], 1e-9
        )


def test_what_numpy_does_in_place() -> None:
    """As statements; whoever takes the result has another array."""
    calls: list[Callable[..., Any]] = [
        lambda xp, x: xp.copyto(x, 3), lambda xp, x: xp.copyto(x, X[0], where=X > 0),
        lambda xp, x: xp.copyto(x, X * 2, casting="unsafe"), lambda xp, x: xp.put(x, [3, -1, 9], [1.0, 2.0]),
        lambda xp, x: xp.put(x, [[40], [2]], 5, mode="wrap"), lambda xp, x: xp.putmask(x, x > 0, [7.0, 8.0, 9.0]),
        lambda xp, x: xp.place(x, x > 0, [7.0, 8.0, 9.0]), lambda xp, x: xp.fill_diagonal(x, 4, wrap=True),
        lambda xp, x: xp.nan_to_num(x, copy=False, posinf=3),
    ]  # fmt: skip
    with use((2,)):
        for call in calls:
            wanted, found = X.copy(), ost.asarray(X, split=0)
            call(np, wanted)
            call(ost, found)
            np.testing.assert_array_equal(np.asarray(found), wanted)

            def traced(x: Any, call: Callable[..., Any] = call) -> Any:
                y = x + 0
                call(ost, y)
                return y

            np.testing.assert_array_equal(np.asarray(ost.compile(traced)(X)), wanted)
            if call not in calls[-2:]:
                through = ost.asarray(X)
                call(np, through)
                np.testing.assert_array_equal(np.asarray(through), wanted)
        x = ost.asarray(X)
        y = x.sort(axis=0)
        np.testing.assert_array_equal(np.asarray(x), X)
        x.sort(axis=0)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
        np.testing.assert_array_equal(np.asarray(x), np.sort(X, 0))
        with pytest.warns(AssignmentWarning, match="taken from"):
            x[0].sort()

        def sorts(x: Any) -> Any:
            y = x * 1
            y.sort(0)
            ost.random.shuffle(x)
            return y, x

        for rows, shuffled in (sorts(ost.asarray(X)), ost.compile(sorts)(ost.asarray(X))):
            np.testing.assert_array_equal(np.asarray(rows), np.sort(X, 0))
            mixed = np.asarray(shuffled)
            assert (mixed != X).any()
            np.testing.assert_array_equal(np.sort(mixed, 0), np.sort(X, 0))
        names = {"x": ost.asarray(V), "ost": ost}
        for line in ("x.sort()", "y = x[::-1].sort()"):  # at a prompt
            exec(compile(line, "<prompt>", "single"), names)
            np.testing.assert_array_equal(np.asarray(names["x"]), np.sort(V))
        rng = ost.random.default_rng(3)
        deck = ost.arange(20)
        rng.shuffle(deck)
        assert deck.tolist() != list(range(20)) == sorted(deck.tolist())
        with pytest.raises(AssignmentError, match="got a list, and nobody who takes the result"):
            ost.random.shuffle([1, 2, 3])
        x.flat[2:4] = 0
        assert x.tobytes() == np.asarray(x).tobytes()
        assert list(np.asarray(x.flat)[2:4]) == [0, 0] == [float(v) for v in x.flat][2:4]
        assert len(x.flat) == x.size
        found = ost.intersect1d([1, 3, 5], [5, 1, 1], return_indices=True)
        for y, w in zip(
            found, np.intersect1d([1, 3, 5], [5, 1, 1], return_indices=True), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(y), w)
        with pytest.raises(ost.linalg.LinAlgError):
            np.asarray(ost.linalg.cholesky(-ost.eye(2)))


def test_results_go_where_out_says() -> None:
    """The array that is given is the result, in its own dtype and shape."""
    calls: dict[Callable[..., Any], tuple[int, ...]] = {
        lambda xp, x, y, o: xp.dot(x, y.T, out=o): (7, 7), lambda xp, x, y, o: xp.matmul(x, y.T, o): (7, 7),
        lambda xp, x, y, o: xp.sum(x, 0, None, o): (5,), lambda xp, x, y, o: xp.mean(x, axis=0, out=o): (5,),
        lambda xp, x, y, o: xp.max(x, 0, o): (5,), lambda xp, x, y, o: x.min(1, out=o): (7,),
        lambda xp, x, y, o: xp.std(x, 0, None, o, 1): (5,), lambda xp, x, y, o: x.sum(0, "f8", o): (5,),
        lambda xp, x, y, o: xp.clip(x, 0, 1, o): (7, 5), lambda xp, x, y, o: xp.cumsum(x, axis=0, out=o): (7, 5),
        lambda xp, x, y, o: xp.einsum("ij,kj->ik", x, y, out=o): (7, 7), lambda xp, x, y, o: xp.outer(x[0], y[0], o): (5, 5),
        lambda xp, x, y, o: xp.take(x, [1, 2], axis=0, out=o, mode="clip"): (2, 5),
        lambda xp, x, y, o: xp.concatenate((x, y), axis=0, out=o): (14, 5),
        lambda xp, x, y, o: xp.stack((x, y), out=o): (2, 7, 5), lambda xp, x, y, o: xp.round(x, 1, out=o): (7, 5),
        lambda xp, x, y, o: xp.any(x > 0, 0, o): (5,), lambda xp, x, y, o: xp.argmin(x > 0, 0, o): (5,),
    }  # fmt: skip
    with use((2,)):
        for k, (call, shape) in enumerate(calls.items()):
            dtype = {16: "?", 17: "i8"}.get(k, "f8")
            wanted = call(np, X, Y, np.empty(shape, dtype))

            def run(
                x: Any, y: Any, call: Any = call, shape: Any = shape, dtype: Any = dtype
            ) -> Any:
                buffer = ost.zeros(shape, dtype)
                assert call(ost, x, y, buffer) is buffer
                return buffer

            for f in (run, ost.compile(run)):
                found = f(ost.asarray(X, split=0), ost.asarray(Y, split=1))
                assert found.dtype == wanted.dtype
                np.testing.assert_allclose(np.asarray(found), wanted, 1e-12, 1e-12)
        with pytest.raises(OstinatoError, match="shape"):
            ost.sum(X, 0, out=ost.zeros(4))


def test_a_function_that_asks_for_values_gets_them_one_by_one() -> None:
    """Where values are known, and no gradient would be lost."""

    def steps(c: Any, most: int = 9) -> Any:
        z, n = 0.0 * c, 0
        while abs(z) < 2 and n < most:
            z, n = z * z + c, n + 1
        return n

    def largest(v: Any) -> Any:
        return v[v > 0].sum() if v[0] > 0 else v[0]

    with use():
        for given in (X, X + 1j * Y, V):
            found = ost.vectorize(steps)(ost.asarray(given))
            np.testing.assert_array_equal(np.asarray(found), np.vectorize(steps)(given))
        found = ost.vectorize(steps, otypes=[float], excluded=["most"])(ost.asarray(X), most=3)
        assert found.dtype == ost.float64
        two = ost.vectorize(lambda a, b: (a, b) if a > b else (b, a))(ost.asarray(X), 0.5)
        np.testing.assert_array_equal(np.asarray(two[0]), np.maximum(X, 0.5))
        for axis in (0, 1):
            found = ost.apply_along_axis(largest, axis, ost.asarray(X))
            np.testing.assert_allclose(np.asarray(found), np.apply_along_axis(largest, axis, X))
        for run in (ost.compile, ost.grad, ost.vmap):
            with pytest.raises(TracedValueError):
                run(lambda x: ost.vectorize(steps)(x).sum() * 1.0)(ost.asarray(X))
