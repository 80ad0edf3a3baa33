"""The array API standard: names, signatures, dtypes, and what functions give, against NumPy and
array-api-strict.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import math
import operator
import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.special
from ostinato.ops.core import spelling
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, ShapeError
from tests.helpers import assert_same, on

from .samples import BINARY, UNARY

strict = pytest.importorskip("array_api_strict")

# -- names and signatures ------------------------------------------------------------------
OWN = {  # of array-api-strict itself
    "Device",
    "ModuleType",
    "ArrayAPIStrictFlags",
    "get_array_api_strict_flags",
    "reset_array_api_strict_flags",
    "set_array_api_strict_flags",
}
LATER = {"linalg", "fft"}  # extensions
STANDARD = sorted(n for n in dir(strict) if not n.startswith("_") and n not in OWN | LATER)
FUNCTIONS = [n for n in STANDARD if inspect.isfunction(getattr(strict, n))]


@pytest.mark.parametrize("name", STANDARD)
def test_name_exists(name):
    assert hasattr(ost, name)


ROOMS: dict[str, Any] = {"": strict, "linalg": strict.linalg, "fft": strict.fft}
ROOMS["Array"] = type(strict.ones(1))
SHARED = vars(ROOMS["Array"]).keys() & set(dir(ost.Array)) - set(dir(object))
SHARED -= {"to_device"}  # whose stream is given by name in the standard
INSIDE = [
    f"{room}.{name}"
    for room in ("linalg", "fft", "Array")
    for name in sorted(getattr(ROOMS[room], "__all__", SHARED))
    if inspect.isfunction(getattr(ROOMS[room], name))
]


@pytest.mark.parametrize("name", [*FUNCTIONS, *INSIDE])
def test_signature(name):
    """Whatever may be passed by position or by name there, may be here."""
    mine = inspect.signature(operator.attrgetter(name)(ost)).parameters
    positional = [
        p for p in mine.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    room, _, own_name = name.rpartition(".")
    known = inspect.signature(getattr(ROOMS[room], own_name)).parameters.values()
    for k, theirs in enumerate(known):
        if theirs.kind == theirs.VAR_POSITIONAL:
            assert any(p.kind == p.VAR_POSITIONAL for p in mine.values())
            continue
        if theirs.kind != theirs.KEYWORD_ONLY:
            assert k < len(positional), f"{name}: {theirs.name} by position"
        if theirs.kind != theirs.POSITIONAL_ONLY:
            own = mine.get(theirs.name)
            assert own is not None, f"{name}: {theirs.name} by name"
            assert own.kind in (own.KEYWORD_ONLY, own.POSITIONAL_OR_KEYWORD)
        if theirs.default is not theirs.empty and theirs.kind == theirs.KEYWORD_ONLY:
            default = theirs.default
            own_default = mine[theirs.name].default
            assert own_default in (default, None) or type(default).__name__ == "Undef"


METHODS = [n for n in dir(strict.asarray(1)) if not n.startswith("_") or n.startswith("__")]
LESS = {"__buffer__"}  # for NumPy


@pytest.mark.parametrize("name", sorted(set(METHODS) - LESS - set(dir(object))))
def test_method_exists(name):
    assert hasattr(ost.Array, name)


def test_namespace():
    x = ost.ones(3)
    assert x.__array_namespace__() is ost
    assert x.__array_namespace__(api_version="2024.12") is ost
    with pytest.raises(ArgumentError, match=r"got '1999.01'; needed '2024.12'"):
        x.__array_namespace__(api_version="1999.01")
    assert ost.__array_api_version__ == "2024.12"
    info = ost.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is True
    assert info.default_device() == "cpu" in info.devices()
    assert info.default_dtypes()["real floating"] == ost.float64
    assert set(info.dtypes()) == {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    }
    assert set(info.dtypes(kind="signed integer")) == {"int8", "int16", "int32", "int64"}
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {
        *("bool", "complex64", "complex128"),
    }


def test_constants():
    assert (ost.e, ost.pi, ost.inf, ost.newaxis) == (math.e, math.pi, math.inf, None)
    assert math.isnan(ost.nan)
    assert ost.ones(3)[:, ost.newaxis].shape == (3, 1)


def test_most_axes():
    n = ost.__array_namespace_info__().capabilities()["max dimensions"]
    x = np.ones((2, *(1,) * (n - 1)))
    assert_same(lambda x: (x + 1).sum(0), lambda x: (x + 1).sum(0), x, few=True)


# -- dtypes --------------------------------------------------------------------------------
ALL = list(DTYPES.values())
STRICT = [d for d in ALL if d.name not in ("float16", "bfloat16")]


def half(dtypes: Any) -> Any:
    """NumPy knows little of bfloat16: beside a dtype that it cannot hold, it acts as float32."""
    names = {d.name for d in dtypes}
    narrow = names <= {"bfloat16", "bool", "int8", "uint8"}
    return [d if narrow or d.name != "bfloat16" else np.dtype(np.float32) for d in dtypes]


def numpy_dtype(function: Any, *dtypes: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*(np.ones(1, d) for d in half(dtypes))).dtype
    except TypeError:
        return None


@pytest.mark.parametrize(
    "name", [*BINARY, "pow", "bitwise_left_shift", "bitwise_right_shift", "where", "matmul"]
)
def test_binary_dtypes(name):
    """For any two dtypes the dtype that NumPy gives, or an error where it gives one."""
    mine = getattr(ost, name)
    theirs = BINARY[name][1] if name in BINARY else getattr(np, name, None)
    if name == "pow":
        theirs = np.power
    elif name.endswith("shift"):
        theirs = getattr(np, name[8:])
    elif name == "matmul":  # NumPy's own knows little of bfloat16
        theirs = lambda x, y: np.zeros(0, np.result_type(x, y))  # noqa: E731
    if name == "where":
        mine = lambda x, y: ost.where(True, x, y)  # noqa: E731
        theirs = lambda x, y: np.where(True, x, y)  # noqa: E731
    for a, b in itertools.product(ALL, ALL):
        wanted = numpy_dtype(theirs, a, b)
        x, y = ost.ones(1, dtype=a), ost.ones(1, dtype=b)
        if wanted is None:
            with pytest.raises(DTypeError, match=f"{a.name}|{b.name}"):
                mine(x, y)
        else:
            assert mine(x, y).dtype == wanted, f"{name}({a}, {b})"


@pytest.mark.parametrize("name", UNARY)
def test_unary_dtypes(name):
    mine, theirs = UNARY[name]
    if name == "rint":
        theirs = np.round
    if name in ("sigmoid", "rsqrt"):
        theirs = np.exp
    if name in ("softplus", "erf"):
        theirs = np.cbrt
    for d in ALL:
        wanted = numpy_dtype(theirs, d) if (name, d.kind) != ("conj", "b") else d
        x = ost.ones(1, dtype=d)
        if wanted is None:
            with pytest.raises(DTypeError, match=f"{d.name}"):
                mine(x)
        else:
            assert mine(x).dtype == wanted, f"{name}({d})"


OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.eq, operator.lt, operator.and_, operator.lshift),
]


@pytest.mark.parametrize("scalar", [True, 2, 2.5, 2.5j], ids=str)
@pytest.mark.parametrize("operation", OPERATORS, ids=lambda f: f.__name__)
def test_python_numbers_do_not_promote(operation, scalar):
    for d, flipped in itertools.product(ALL, (False, True)):
        x, y = np.ones(2, d), ost.ones(2, dtype=d)
        try:
            wanted = operation(scalar, x) if flipped else operation(x, scalar)
        except TypeError:
            with pytest.raises(TypeError):
                operation(scalar, y) if flipped else operation(y, scalar)
            continue
        dtype = wanted.dtype
        if d == ost.bfloat16 and type(scalar) is float and dtype == np.float32:
            dtype = d  # NumPy lets numbers promote foreign dtypes
        if (d.kind, operation, type(scalar)) == ("b", operator.pow, int):
            dtype = np.dtype(np.int64)  # int8 in NumPy, and for this one only
        found = operation(scalar, y) if flipped else operation(y, scalar)
        assert found.dtype == dtype, (d, flipped)


def test_python_numbers_by_example():
    assert (ost.ones(2, dtype=ost.float32) * 2.5).dtype == ost.float32
    assert (ost.ones(2, dtype=ost.bool) + 1).dtype == ost.int64
    assert (ost.ones(2) * 2).dtype == ost.float64
    assert (ost.ones(2, dtype=ost.bfloat16) + ost.ones(2, dtype=ost.float16)).dtype == ost.float32
    assert (ost.ones(2, dtype=ost.float32) + np.float64(1)).dtype == ost.float64
    for number in (300, -129):
        with pytest.raises(DTypeError, match=f"the number {number}.*from -128 to 127"):
            ost.ones(2, dtype=ost.int8) + number
    with pytest.raises(DTypeError, match="from 0 to 255"):
        -1 * ost.ones(2, dtype=ost.uint8)


def test_compiled_functions_do_not_promote_either():
    """Numbers that become inputs of a graph are still Python numbers."""
    scale = ost.compile(lambda x, a: x * a)
    for d in ("float16", "bfloat16", "float32", "int8", "complex64"):
        assert scale(ost.ones(2, dtype=d), 2).dtype == ost.ones(2, dtype=d).dtype
    assert scale(ost.ones(2, dtype="float32"), 2.5).dtype == ost.float32
    assert scale(ost.ones(2, dtype="int8"), 2.5).dtype == ost.float64
    assert scale(ost.ones(2, dtype="bool"), 3).dtype == ost.int64


NUMBERS = [
    lambda x, a: x * a,
    lambda x, a: x * (a + 1),
    lambda x, a: (a * 2 - 1) / x,
    lambda x, a: x * -a,
    lambda x, a: x * abs(a),
    lambda x, a: x * a**2,
    lambda x, a: x + (a > 1),
    lambda x, a: x * ost.sqrt(a),
    lambda x, a: x * ost.asarray(a),
    lambda x, a: x * ost.astype(a, ost.float64),
    lambda x, a: x * ost.maximum(a, 1),
    lambda x, a: x * ost.add(a, a),
    lambda x, a: ost.maximum(x, a),
    lambda x, a: ost.where(x > 0, x, a),
    lambda x, a: ost.clip(x, -a, a),
    lambda x, a: x * ost.full(2, a),
    lambda x, a: ost.concat([x, ost.stack([a, a])]),
    lambda x, a: x * ost.linspace(0.0, a, 2),
    lambda x, a: x * ost.broadcast_to(a, (2,)),
]


@pytest.mark.parametrize("k", range(len(NUMBERS)))
def test_numbers_are_the_same_inside(k):
    """Compiled or not, a number promotes alike, and so does what is made of it."""
    function = NUMBERS[k]
    for name, a in itertools.product(("int8", "float32", "bfloat16"), (3, 2.5)):
        x = ost.ones(2, dtype=name)
        plain, compiled = function(x, a), ost.compile(function)(x, a)
        assert compiled.dtype == plain.dtype
        np.testing.assert_array_equal(
            np.asarray(compiled).astype(float), np.asarray(plain).astype(float)
        )


def test_a_number_that_does_not_fit_is_refused_inside_too():
    shifted = ost.compile(lambda x, a: x + a)
    x = ost.ones(2, dtype=ost.int8)
    assert np.asarray(shifted(x, 100)).tolist() == [101, 101]
    with pytest.raises(DTypeError, match=r"the number 300.*from -128 to 127"):
        shifted(x, 300)


REDUCED = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "min": np.min,
    "max": np.max,
    "any": np.any,
    "all": np.all,
    "argmin": np.argmin,
    "argmax": np.argmax,
    "cumulative_sum": np.cumsum,
    "cumulative_prod": np.cumprod,
    "count_nonzero": np.count_nonzero,
    "sort": np.sort,
    "argsort": np.argsort,
    "diff": np.diff,
    "square": np.square,
}


@pytest.mark.parametrize("name", REDUCED)
def test_reduced_dtypes(name):
    for d in ALL:
        if d.kind == "c" and name in ("min", "max", "argmin", "argmax"):
            with pytest.raises(DTypeError, match=f"{d.name}; needed a dtype with an order"):
                getattr(ost, name)(ost.ones(3, dtype=d))
            continue
        wanted = np.asarray(REDUCED[name](np.ones(3, d))).dtype
        if name in ("any", "all"):
            wanted = np.dtype(bool)
        assert getattr(ost, name)(ost.ones(3, dtype=d)).dtype == wanted, d


@pytest.mark.parametrize("a", STRICT, ids=str)
def test_dtype_functions(a):
    theirs = getattr(strict, a.name)
    for kind in (
        "bool",
        "signed integer",
        "unsigned integer",
        "integral",
        "real floating",
        "complex floating",
        "numeric",
        ("bool", "integral"),
        (),
    ):
        assert ost.isdtype(a, kind) == strict.isdtype(theirs, kind)
    for b in STRICT:
        other = getattr(strict, b.name)
        assert ost.isdtype(a, b) == (a == b)
        try:
            wanted = strict.result_type(theirs, other)
        except TypeError:
            continue
        assert ost.result_type(a, b).name == str(wanted).rpartition(".")[2]
        assert ost.can_cast(a, b) == np.can_cast(a, b)
    if a.kind in "fc":
        mine, known = ost.finfo(a), strict.finfo(theirs)
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(mine, field) == getattr(known, field), field
        assert mine.dtype.name == str(known.dtype).rpartition(".")[2]
    if a.kind in "iu":
        mine, known = ost.iinfo(a), strict.iinfo(theirs)
        assert (mine.bits, mine.max, mine.min) == (known.bits, known.max, known.min)


def test_dtype_functions_of_arrays_and_numbers():
    x = ost.ones(2, dtype=ost.float32)
    assert ost.result_type(x, 2.5) == ost.float32
    assert ost.result_type(x, ost.ones(2, dtype=ost.int64)) == ost.float64
    assert ost.result_type(ost.int8, 1) == ost.int8
    assert ost.result_type(1, 2.5) == ost.float64
    assert ost.can_cast(x, ost.float64)
    assert not ost.can_cast(x, ost.int64)
    assert ost.finfo(x).bits == 32
    assert ost.finfo(ost.bfloat16).eps == 2.0**-7
    assert ost.isdtype(ost.bfloat16, "real floating")
    assert ost.isdtype("int8", "int8")
    with pytest.raises(ArgumentError, match=r"isdtype.*got 'whole'; needed a dtype or bool"):
        ost.isdtype(ost.int8, "whole")
    with pytest.raises(DTypeError, match=r"finfo.*got int8; needed a floating"):
        ost.finfo(ost.int8)
    with pytest.raises(DTypeError, match=r"iinfo.*got float32; needed an integer"):
        ost.iinfo(x)
    with pytest.raises(ArgumentError, match=r"result_type.*got nothing"):
        ost.result_type()
    assert ost.result_type(ost.bfloat16, ost.int8) == ost.bfloat16
    assert ost.result_type(ost.bfloat16, ost.int16) == ost.float32
    assert ost.result_type(ost.bfloat16, ost.int64) == ost.float64


@pytest.mark.parametrize("named", ["float32", np.float32, np.dtype("f4"), ost.float32])
def test_names_of_dtypes(named):
    assert ost.zeros(2, dtype=named).dtype == ost.float32


def test_unknown_dtypes():
    for named in ("float7", "U5", object, "datetime64[s]", 3.5):
        with pytest.raises(DTypeError, match=r"dtype.*needed one of bool, int8"):
            ost.zeros(2, dtype=named)


# -- functions -----------------------------------------------------------------------------
X = np.arange(24.0).reshape(2, 3, 4)
N = np.array([[3, 1, 2], [0, 2, 1]])
B = N > 1

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("broadcast_arrays", (X, X[0], X[:, :1]), {}),
    ("concat", ([X, X + 1],), {"axis": 2}),
    ("concat", ([X, N],), {"axis": None}),
    ("expand_dims", (X,), {"axis": 1}),
    ("flip", (X,), {}),
    ("flip", (X,), {"axis": (0, -1)}),
    ("moveaxis", (X, 0, -1), {}),
    ("moveaxis", (X, (0, 1), (2, 0)), {}),
    ("permute_dims", (X, (2, 0, 1)), {}),
    ("matrix_transpose", (X,), {}),
    ("repeat", (X, 3), {}),
    ("repeat", (X, 2), {"axis": 1}),
    ("repeat", (X, np.array([2, 0, 1])), {"axis": -2}),
    ("reshape", (X, (6, -1)), {}),
    ("reshape", (X, (6, 4)), {"copy": True}),
    ("roll", (X, 5), {}),
    ("roll", (X, -1), {"axis": 1}),
    ("roll", (X, (1, 2)), {"axis": (0, 2)}),
    ("roll", (X, 100), {"axis": 0}),
    ("squeeze", (X[:1, :, :1], (0, 2)), {}),
    ("stack", ([X, X, X],), {"axis": -1}),
    ("tile", (X, (2, 1)), {}),
    ("tile", (N, (2, 1, 3)), {}),
    ("tile", (N, (0, 1)), {}),
    ("unstack", (X,), {"axis": 1}),
    ("tril", (X,), {}),
    ("tril", (X > 0,), {}),
    ("triu", (X.astype("uint8"),), {}),
    ("tril", (X,), {"k": 1}),
    ("triu", (X,), {"k": -1}),
    ("argmax", (X,), {}),
    ("argmin", (X,), {"axis": 1, "keepdims": True}),
    ("count_nonzero", (N,), {"axis": 0}),
    ("nonzero", (N,), {}),
    ("searchsorted", (np.array([1.0, 2.0, 3.0]), X), {"side": "right"}),
    ("searchsorted", (np.array([2.0, 3.0, 1.0]), X), {"sorter": np.array([2, 0, 1])}),
    ("where", (B, N, -N), {}),
    ("argsort", (N,), {"axis": 0, "descending": True}),
    ("sort", (N,), {"axis": 0, "descending": True}),
    ("unique_all", (N,), {}),
    ("unique_counts", (N,), {}),
    ("unique_inverse", (N,), {}),
    ("unique_values", (N,), {}),
    ("isin", (N, np.array([1, 5, 3])), {}),
    ("isin", (N, np.array([], dtype=np.int64)), {}),
    ("cumulative_sum", (X,), {"axis": 1}),
    ("cumulative_sum", (X,), {"axis": 1, "include_initial": True}),
    ("cumulative_prod", (X,), {"axis": -1, "dtype": "float32"}),
    ("max", (X,), {"axis": (0, 1)}),
    ("mean", (X,), {"keepdims": True}),
    ("min", (X,), {"axis": -1}),
    ("prod", (N,), {"axis": 0}),
    ("std", (X,), {"axis": 0, "correction": 1}),
    ("sum", (N,), {"dtype": "float64"}),
    ("var", (X,), {"axis": (0, 2), "correction": 0.5, "keepdims": True}),
    ("all", (B,), {"axis": 0}),
    ("any", (X,), {"axis": (1, 2), "keepdims": True}),
    ("diff", (X,), {}),
    ("diff", (X,), {"axis": 0}),
    ("diff", (X,), {"axis": 1, "n": 2}),
    ("diff", (X,), {"prepend": X[..., :2], "append": X[..., :1]}),
    ("diff", (N,), {"n": 5}),
    ("matmul", (X, X[0].T), {}),
    ("tensordot", (X, X), {"axes": ((0, 2), (0, 2))}),
    ("tensordot", (X, X[0].T), {"axes": np.int64(1)}),
    ("tensordot", (X, X[0].T), {"axes": (np.int64(2), 0)}),
    ("tensordot", (X, N.astype(np.float64)), {"axes": 0}),
    ("vecdot", (X, X[0]), {}),
    ("vecdot", (X + 1j, X[0] - 2j), {"axis": -2}),
    ("take", (X, np.array([2, 0])), {"axis": 1}),
    ("take_along_axis", (X, np.argsort(X, 1)), {"axis": 1}),
    ("clip", (X,), {"min": 3.0, "max": 8.0}),
    ("clip", (X,), {"max": X[0]}),
    ("clip", (X,), {}),
    ("clip", (N, 1), {}),
    ("round", (X / 7,), {}),
    ("sign", (X - 5,), {}),
    ("reciprocal", (X + 1,), {}),
    ("real", (X + 1j,), {}),
    ("imag", (X + 1j,), {}),
    ("astype", (X, "float32"), {}),
    ("zeros_like", (X,), {}),
    ("ones_like", (N,), {"dtype": "float32"}),
    ("full_like", (X, 7), {}),
    ("meshgrid", (X[0, 0], X[0, :, 0], X[:, 0, 0]), {}),
    ("meshgrid", (X[0, 0], X[0, :, 0]), {"indexing": "ij"}),
    ("meshgrid", (X[0, 0],), {}),
    ("meshgrid", (), {}),
    ("arange", (5,), {}),
    ("arange", (2, 11, 3), {}),
    ("arange", (5, -3, -2), {"dtype": "float32"}),
    ("arange", (3, 3), {}),
    ("arange", (0.5, 3.0, 0.25), {}),
    ("arange", (5, 2), {}),
    ("arange", (5, 0, -1), {"dtype": "uint8"}),
    ("arange", (2**63 + 3, 2**63, -1), {"dtype": "uint64"}),
    ("linspace", (0.0, 1.0, 5), {}),
    ("linspace", (1.0, -2.0), {"num": 7, "endpoint": False}),
    ("linspace", (3.0, 4.0, 1), {}),
    ("linspace", (3.0, 4.0, 0), {}),
    ("linspace", (0.0, 1.0, 4), {"dtype": "float32"}),
    ("eye", (3,), {}),
    ("eye", (2, 4), {"k": 1, "dtype": "int8"}),
    ("eye", (0, 4), {}),
    ("zeros", ((2, 3),), {}),
    ("ones", (4,), {"dtype": "bool"}),
    ("full", ((2, 2), 3.5), {}),
    ("full", ((2,), True), {}),
    ("full", (3, 4), {"dtype": "complex64"}),
]


def arrays_in(value: Any, wrap: Any) -> Any:
    """The arguments of a call with arrays of a namespace."""
    if isinstance(value, np.ndarray):
        return wrap(value)
    if isinstance(value, list):
        return [arrays_in(v, wrap) for v in value]
    return value


def strictly(name: str, args: Any, kwargs: Any) -> Any:
    kwargs = {k: getattr(strict, v) if k == "dtype" else v for k, v in kwargs.items()}
    kwargs = {k: arrays_in(v, strict.asarray) for k, v in kwargs.items()}
    args = [
        getattr(strict, a) if isinstance(a, str) else arrays_in(a, strict.asarray) for a in args
    ]
    if name == "concat" and kwargs.get("axis", 0) is None:  # of one dtype only, there
        args = [[strict.astype(a, strict.float64) for a in args[0]]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(strict, name)(*args, **kwargs)
    if isinstance(made, (tuple, list)):
        return [np.asarray(y._array) for y in made]
    return np.asarray(made._array)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CALLS, ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(CALLS)]
)
def test_call(name, args, kwargs):
    """As array-api-strict has it, in every layout."""
    strict.set_array_api_strict_flags(api_version="2025.12")
    wanted = strictly(name, args, kwargs)
    free = [a for a in args if isinstance(a, np.ndarray)]
    if name in ("repeat", "searchsorted") or name.startswith("unique") or name == "nonzero":
        free = free[:1]  # the rest has to be known
    if name.startswith("unique") or name == "nonzero":
        with on(1):
            found = getattr(ost, name)(ost.asarray(args[0]))
        for mine, theirs in zip(
            found if isinstance(wanted, list) else [found],
            wanted if isinstance(wanted, list) else [wanted],
            strict=True,
        ):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(np.asarray(mine), theirs)
        return

    def call(*given: Any) -> Any:
        left = list(given)
        filled = [
            left.pop(0) if isinstance(a, np.ndarray) and left else arrays_in(a, ost.asarray)
            for a in args
        ]
        options = {k: arrays_in(v, ost.asarray) for k, v in kwargs.items()}
        made = getattr(ost, name)(*filled, **options)
        return list(made) if isinstance(made, tuple) else made

    assert_same(call, lambda *_: wanted, *free, few=True)


def test_special_values_of_isin():
    x = np.array([1.0, np.nan, 3.0])
    assert_same(lambda x: ost.isin(x, [np.nan, 3.0]), lambda x: np.isin(x, [np.nan, 3.0]), x)
    assert_same(lambda x: ost.isin(x, 3.0, invert=True), lambda x: ~np.isin(x, 3.0), x)
    z = np.array([1j, 2.0])
    assert_same(lambda x: ost.isin(x, [1j]), lambda x: np.isin(x, [1j]), z)


def test_each_nan_is_a_value_of_its_own():
    x = np.array([np.nan, 1.0, np.nan])
    for values in (ost.unique_values(x), ost.unique_values(x, size=3), ost.unique_all(x).values):
        np.testing.assert_array_equal(np.asarray(values), [1.0, np.nan, np.nan])


def test_unique_with_a_size():
    x = np.array([3, 1, 3, 2])
    assert_same(lambda x: ost.unique_values(x, size=3), np.unique, x)
    assert_same(lambda x: ost.unique_values(x, size=2), lambda x: np.array([1, 2]), x)
    assert_same(lambda x: ost.unique_values(x, size=5), lambda x: np.array([1, 2, 3, 1, 1]), x)
    assert_same(
        lambda x: ost.unique_values(x, size=5, fill_value=-1),
        lambda x: np.array([1, 2, 3, -1, -1]),
        x,
    )
    with pytest.raises(TypeError, match=r"unique_values.*while .* is traced.*pass size="):
        ost.compile(lambda x: ost.unique_values(x))(ost.asarray(x))


def test_beyond_the_standard():
    """Functions that NumPy has and the standard lacks."""
    assert_same(lambda x: ost.swapaxes(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), X)
    assert_same(lambda x: ost.logsumexp(x, axis=1), lambda x: np.log(np.exp(x).sum(1)), X / 9)
    assert_same(lambda x: ost.logsumexp(x), lambda x: np.float64(-np.inf), np.full(3, -np.inf))
    assert_same(ost.trace, np.trace, X)
    assert_same(ost.linalg.trace, np.linalg.trace, X)
    assert_same(ost.diagonal, np.diagonal, X)
    assert_same(ost.outer, np.outer, X[0, 0], X[0, :, 0])
    assert_same(lambda x: ost.round(x, 2), lambda x: np.round(x, 2), X / 7)
    assert_same(lambda x: ost.round(x, -1), lambda x: np.round(x, -1), X * 7)
    assert_same(lambda x: ost.round(x, -1), lambda x: np.round(x, -1), N * 7)
    assert_same(lambda x: ost.round(x, 2), lambda x: np.round(x, 2), N)
    assert_same(
        lambda x: ost.topk(x, 2, axis=1),
        lambda x: (-np.sort(-x, axis=1)[:, :2], np.argsort(-x, axis=1, kind="stable")[:, :2]),
        N,
    )
    assert_same(
        lambda x: ost.topk(x, 2, largest=False),
        lambda x: (np.sort(x)[..., :2], np.argsort(x, kind="stable")[..., :2]),
        X % 5,
    )
    assert_same(
        lambda x: ost.one_hot(x, 3),
        lambda x: (x[..., None] == np.arange(3)).astype(np.float32),
        N,
    )
    for mode in ("edge", "wrap", "reflect"):
        assert_same(
            lambda x, m=mode: ost.pad(x, ((1, 1), (2, 1), (0, 3)), mode=m),
            lambda x, m=mode: np.pad(x, ((1, 1), (2, 1), (0, 3)), mode=m),
            X,
            few=True,
        )
    assert_same(lambda x: ost.diff(x, prepend=0), lambda x: np.diff(x, prepend=0), X)
    assert_same(lambda x: ost.diff(x, n=0), lambda x: x, X)
    assert_same(lambda x: ost.diff(x), lambda x: np.diff(x), np.zeros((2, 0)))
    assert ost.broadcast_shapes((2, 1), (3,)) == (2, 3)


EINSUMS = [
    ("ij,jk->ik", (5, 4), (4, 3)),
    ("ij,jk", (5, 4), (4, 3)),
    ("ij->ji", (5, 4)),
    ("ij->", (5, 4)),
    ("ij->j", (5, 4)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("iij->j", (3, 3, 2)),
    ("i,i", (4,), (4,)),
    ("i,j->ij", (4,), (3,)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (3, 4, 5)),
    ("...i->...", (2, 3, 4)),
    ("ij,kj->ik", (5, 4), (3, 4)),
    ("ji,jk->ki", (4, 5), (4, 3)),
    ("ij,ij->i", (5, 4), (5, 4)),
    ("ij,j->i", (5, 4), (4,)),
    ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 2)),
    ("ab,bc,cd,da->", (2, 3), (3, 4), (4, 5), (5, 2)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("ii,i->", (1, 1), (3,)),
    ("ij,k->k", (2, 3), (4,)),
    (" i j , j k -> i k ", (5, 4), (4, 3)),
    ("ij,ij->ij", (1, 4), (5, 4)),
    ("ij,jk->ik", (5, 1), (4, 3)),
    ("abc,abd->cd", (2, 1, 3), (2, 4, 5)),
    (",i->i", (), (4,)),
    ("->", ()),
]


@pytest.mark.parametrize(("text", "shapes"), [(t, s) for t, *s in EINSUMS])
def test_einsum(text, shapes):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=s) for s in shapes]
    assert_same(lambda *xs: ost.einsum(text, *xs), lambda *xs: np.einsum(text, *xs), *xs, few=True)


# -- methods -------------------------------------------------------------------------------
def test_methods():
    assert_same(
        lambda x: (x.T, x.mT, x.sum(1), x.mean(), x.reshape(4, 6), x.reshape((4, -1)), x.ravel()),
        lambda x: (x.T, x.mT, x.sum(1), x.mean(), x.reshape(4, 6), x.reshape(4, 6), x.ravel()),
        X,
    )
    assert_same(
        lambda x: (x.prod(0), x.var(1, correction=1), x.std(), x.min(0), x.max((0, 1)), x.argmin()),
        lambda x: (x.prod(0), x.var(1, ddof=1), x.std(), x.min(0), x.max((0, 1)), x.argmin()),
        X,
    )
    assert_same(
        lambda x: (x.any(0), x.all(), x.cumsum(1), x.clip(2, 5), x.round(1), x.argmax(0), x.conj()),
        lambda x: (x.any(0), x.all(), x.cumsum(1), x.clip(2, 5), x.round(1), x.argmax(0), x.conj()),
        X / 3,
    )
    assert_same(
        lambda x: (x.sort(1), x.argsort(0), x.take([1, 0], 1), x.transpose(1, 2, 0), x.transpose()),
        lambda x: (
            np.sort(x, 1),
            np.argsort(x, 0, kind="stable"),
            x.take([1, 0], 1),
            x.transpose(1, 2, 0),
            x.transpose(),
        ),
        X % 5,
    )
    assert_same(
        lambda x: (x.real, x.imag, abs(x), -x, +x, x.flatten(), x.squeeze(), x.astype("complex64")),
        lambda x: (x.real, x.imag, abs(x), -x, +x, x.flatten(), x, x.astype("complex64")),
        X + 1j,
    )
    alike = lambda x: (x.swapaxes(0, 2), x.cumprod(1), x.repeat(2, 1), x.copy(), x.conjugate())  # noqa: E731
    assert_same(alike, alike, X / 3)
    alike = lambda x: (x.diagonal(), x.trace(1), *divmod(x, 0.7), *divmod(3, x))  # noqa: E731
    assert_same(alike, alike, X + 0.1)
    x = np.array([1.0, 0.0, 4.0])
    assert np.array_equal(ost.asarray(x).nonzero()[0], [0, 2])
    assert 4 in ost.asarray(x)
    assert 5 not in ost.asarray(x)
    made = ost.asarray(x)
    made.fill(2)
    assert np.array_equal(made, [2.0, 2.0, 2.0])
    assert np.array_equal(ost.asarray(np.sort(x)).searchsorted([2.0]), [2])
    assert_same(
        lambda x: (x.dot(x.T), round(x), x // 2, x % 3, ~x, x & 3, x | 1, x ^ 2, x << 1, x >> 1),
        lambda x: (x.dot(x.T), x, x // 2, x % 3, ~x, x & 3, x | 1, x ^ 2, x << 1, x >> 1),
        N,
    )
    assert_same(
        lambda x: (2 - x, 2 / x, 2**x, 7 // x, 7 % x, x != 3, x >= 3, x < 1, x @ x.mT),
        lambda x: (2 - x, 2 / x, 2**x, 7 // x, 7 % x, x != 3, x >= 3, x < 1, x @ x.mT),
        X[0] + 1,
    )


def test_numpy_on_the_left():
    x = ost.asarray(X)
    for made in (X + x, np.float64(2) * x, X @ x.mT, x == X):
        assert isinstance(made, ost.Array)


def test_numbers():
    x = ost.asarray([[2.5]])
    assert (float(x), int(x), bool(x), complex(x), x.item()) == (2.5, 2, True, 2.5 + 0j, 2.5)
    assert list(range(3))[ost.asarray(1)] == 1
    assert f"{ost.asarray(2.5):.2f}" == "2.50"
    with pytest.raises(
        ShapeError, match=r"bool\(\).*got an array of shape \(2,\); needed one element"
    ):
        bool(ost.ones(2))
    with pytest.raises(DTypeError, match=r"index.*got float64; needed an integer dtype"):
        operator.index(ost.asarray(1.0))


def test_asarray():
    value = np.arange(3.0)
    copied, borrowed = ost.asarray(value), ost.asarray(value, copy=False)
    value[0] = 7
    assert np.asarray(copied)[0] == 0
    assert np.asarray(borrowed)[0] == 7
    assert ost.asarray([1, 2]).dtype == ost.int64
    assert ost.asarray([1.5, 2], dtype=ost.float32).dtype == ost.float32
    assert ost.asarray([[ost.asarray(1.0), 2], [3, 4]]).shape == (2, 2)
    assert ost.asarray(copied) is copied
    assert ost.asarray(copied, dtype="int8").dtype == ost.int8
    assert ost.asarray(range(3)).shape == (3,)
    assert ost.asarray(np.arange(6).reshape(2, 3).T).shape == (3, 2)
    assert ost.from_dlpack(np.arange(3)).shape == (3,)
    assert np.from_dlpack(ost.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError, match=r"asarray\(copy=False\).*got a list; needed an array"):
        ost.asarray([1], copy=False)
    with pytest.raises(
        ArgumentError, match=r"asarray.*got list; needed numbers in a regular shape"
    ):
        ost.asarray([[1], [2, 3]])
    with pytest.raises(ArgumentError, match=r"asarray.*out of bounds for int8"):
        ost.asarray([300], dtype=ost.int8)
    with pytest.raises(DTypeError, match=r"asarray.*complex values for float32"):
        ost.asarray([1j], dtype=ost.float32)
    with pytest.raises(DTypeError, match=r"asarray.*got dtype <U1; needed one of bool"):
        ost.asarray(["a"])


@pytest.mark.parametrize("workers", [1, 3])
def test_dlpack_takes_whatever_the_standard_lets_one_ask_for(workers: int) -> None:
    kinds = [np.float32, np.int8, np.bool_, np.complex128, "bfloat16"]
    asked = itertools.product([None, True, False], [None, (0, 0), (1, 0), (2, 0)], [None, (1, 0)])
    with on(workers):
        for shape, (dtype, (copy, version, place)) in itertools.product(
            [(4, 3), (), (0,)], zip(itertools.cycle(kinds), asked, strict=False)
        ):
            x = ost.asarray(np.ones(shape), split=0 if shape else None).astype(dtype) + 0
            how = {"copy": copy, "max_version": version, "dl_device": place}

            class Foreign:
                """As a library that hands these on."""

                def __dlpack__(self, x: Any = x, how: Any = how, **_: Any) -> Any:
                    return x.__dlpack__(**how)

                def __dlpack_device__(self) -> tuple[int, int]:
                    return 1, 0

            if dtype == "bfloat16":
                x.__dlpack__(**how)  # which NumPy does not know
                continue
            taken = np.from_dlpack(Foreign())
            np.testing.assert_array_equal(taken, np.ones(shape, dtype))
            if copy is not None and taken.size and workers == 1:
                assert np.shares_memory(taken, np.asarray(x)) == (not copy)
            assert not (taken.flags.writeable and copy is None and np.shares_memory(taken, x))
            assert np.array_equal(ost.from_dlpack(x, device=x.device, copy=copy), x)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_masks_without_axes(shape: tuple[int, ...]) -> None:
    """One is a new axis of one element, or of none; assigned to is all, or nothing."""
    x = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    for flag in (True, False):
        assert_same(lambda x, flag=flag: x[flag], lambda x, flag=flag: x[flag], x)
        assert_same(
            lambda x, m: x.at[m].add(1), lambda x, m: np.where(m, x + 1, x), x, np.array(flag)
        )
        assert np.array_equal(ost.asarray(x)[ost.asarray(flag)], x[np.array(flag)])
        for values in (5.0, np.full(shape[-1:], 7.0), np.full((1, *shape), 8.0)):
            for ours in (flag, np.bool_(flag), ost.asarray(flag)):
                made, wanted = ost.asarray(x), x.copy()
                made[ours], wanted[np.array(flag)] = values, values
                assert np.array_equal(made, wanted), (flag, values)
    y = ost.asarray(x)
    y[y.sum() > 1] = 0
    assert not np.asarray(y).any() or x.sum() <= 1


def test_clip_is_numpys():
    x = np.array([1, 2, 3], np.int8)
    assert_same(lambda x: ost.clip(x, 0, 300), lambda x: np.clip(x, 0, 300), x)
    assert_same(lambda x: ost.clip(x, 1.5, 2.5), lambda x: np.clip(x, 1.5, 2.5), x)
    assert_same(lambda x: ost.clip(x, 3, 2), lambda x: np.clip(x, 3, 2), x)
    assert_same(lambda x: x.clip(max=2), lambda x: x.clip(max=2), x)
    with pytest.raises(DTypeError, match="the number 300"):
        ost.clip(ost.asarray(x), 300)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax", "any", "sort", "flip", "std"])
def test_an_axis_by_position(name):
    """As NumPy's users write it."""
    x = np.arange(12.0).reshape(3, 4) % 5
    assert np.array_equal(getattr(ost, name)(x, 1), getattr(np, name)(x, 1))


def test_names_of_others():
    """What NumPy calls otherwise is named, with what it is called here; only what is public is listed."""
    with pytest.raises(AttributeError, match=r"no attribute 'clamp'; here it is ostinato\.clip"):
        _ = ost.clamp
    here, in_rooms, of_arrays = map(spelling.other_names().get, ("here", "in_rooms", "of_arrays"))
    for name, ours in (here | in_rooms).items():
        with pytest.raises(AttributeError):
            operator.attrgetter(name)(ost)
        if spelling._is_name(ours):
            assert operator.attrgetter(ours)(ost) is not None
    for ours in {**here, **in_rooms, **of_arrays}.values():
        if spelling._is_name(ours):
            continue
        for root, dotted in re.findall(
            r"(?<![\w.])(ostinato|np|scipy|x)((?:\.[A-Za-z_]\w*)+)", ours
        ):
            roots = {"ostinato": ost, "np": np, "scipy": scipy, "x": ost.ones((2, 2))}
            found: Any = roots[root]
            for part in dotted.split(".")[1:]:  # of what a method returns nothing is known
                if (found := getattr(found, part)) is None or root == "x":
                    break
            assert found is not None, ours


def test_a_suggested_call_has_what_it_needs():
    """Of any function of ours that is looked for among the methods of an array."""
    known = {"x": ost.ones((2, 2)), "ostinato": ost}
    count = 0
    for room in ("", *spelling.ROOMS):
        for name in spelling.names_in(room):
            text = spelling._call(f"{room}.{name}" if room else name)
            if text:
                call = ast.parse(text, mode="eval").body
                assert isinstance(call, ast.Call)
                function = eval(ast.unparse(call.func), {**known})
                named = {k.arg: k.value for k in call.keywords}
                inspect.signature(function).bind(*call.args, **named)
                count += 1
    assert count > 300
    assert set(dir(ost)) >= {"sum", "nn", "linalg", "random", "errors", "compile"}
    assert not set(dir(ost)) & {"annotations", "ops", "planner", "settings"}
    assert dir(ost.nn) == sorted(ost.nn.__all__)
