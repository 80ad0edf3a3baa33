"""Calls in forms that programs for NumPy have: what NumPy gives, in any layout, compiled and not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import OstinatoError
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
