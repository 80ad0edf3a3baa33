"""Calls of NumPy's functions, made up from their signatures: with NumPy's arrays, then with ours."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ostinato.ops.array import array_function
from ostinato.ops.core import array_methods
from ostinato.ops.core.spec import DTYPES

import ostinato as ost
from ostinato.errors import OstinatoError

Call = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def functions() -> dict[str, Callable[..., Any]]:
    """All that is public in NumPy and asks an array what it means."""
    found: dict[str, Callable[..., Any]] = {}
    for home, prefix in ((np, ""), (np.linalg, "linalg."), (np.fft, "fft.")):
        for name in sorted(dir(home)):
            f = getattr(home, name)
            if name.startswith(("_", "save")):
                continue
            if isinstance(f, np.ufunc) or hasattr(f, "_implementation"):
                found[prefix + name] = f
    return found


def arrays(dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    """Operands without ties and without what is singular."""
    rng = np.random.default_rng(7)

    def made(*shape: int) -> Any:
        n = int(np.prod(shape, dtype=int))
        values = rng.permutation(n) / 4 + 0.75 if dtype[0] in "fc" else rng.permutation(n) + 1
        if dtype == "bool":
            values = values % 2
        if dtype[0] == "c":
            values = values + 1j * rng.permutation(n)
        return values.reshape(shape).astype(dtype)

    square = made(3, 3) + (np.eye(3) * 20.1).astype(dtype)
    return {
        "m": square.astype(dtype),
        "h": (square + square.conj().T).astype(dtype),
        "n": made(3, 3),
        "v": made(5),
        "w": made(5),
        "three": made(3),
        "t": made(2, 3, 3),
        "s": made(),
        "none": made(0),
        "places": np.array([2, 0, 1]),
        "mask": np.array([[True, False, True]] * 3),
    }


FORMS = (
    "m", "h", "v", "t", "s", "none", "m n", "v w", "m three", "t m", "v s", "s v", "three three",
    "(m n)", "(v w)", "(t t)", "m places", "three places", "m mask", "mask m n", "mask m", "three 1",
    "m 1", "m 0", "v 2", "v -1", "m 0 1", "m -1 0", "m (9)", "v (5 1)", "m three 0", "ij,jk m n", "v v w",
    "m mask n", "m (0 1)", "v None", "t 1 0", "v 1.5", "m m m m",
)  # fmt: skip
OPTIONS: dict[str, tuple[Any, ...]] = {
    "axis": (0, 1, -1, None, (0, 1)),
    "keepdims": (True,),
    "dtype": ("float32", "int64", "complex128"),
    "ddof": (1,),
    "correction": (1,),
    "where": ("mask",),
    "out": ("new",),
    "initial": (2,),
    "order": ("F", "C"),
    "kind": ("stable", "quicksort"),
    "k": (1, -1),
    "n": (2,),
    "offset": (1,),
    "decimals": (1, -1),
    "ord": (1, 2, np.inf, "fro", "nuc"),
    "mode": ("wrap", "clip", "reflect", "edge", "complete"),
    "side": ("right",),
    "return_counts": (True,),
    "return_inverse": (True,),
    "equal_nan": (False, True),
    "shape": ((2,),),
    "indexing": ("ij",),
    "upper": (True,),
    "UPLO": ("U",),
    "full_matrices": (False,),
    "compute_uv": (False,),
    "casting": ("unsafe",),
    "invert": (True,),
    "weights": ("same",),
    "sparse": (True,),
    "hermitian": (True,),
    "include_initial": (True,),
    "constant_values": (3,),
    "reps": (2,),
}


def values(form: str, given: dict[str, Any]) -> tuple[Any, ...]:
    """A form's words as arguments; those in parentheses are one tuple."""
    found: list[list[Any]] = [[]]
    for word in form.replace("(", "( ").replace(")", " )").split():
        if word == "(":
            found.append([])
        elif word == ")":
            inner = tuple(found.pop())
            found[-1].append(inner)
        elif word in given:
            found[-1].append(given[word])
        else:
            found[-1].append(word if "," in word else eval(word))
    return tuple(found[0])


def calls(name: str, f: Callable[..., Any], dtype: str, most: int) -> Iterator[Call]:
    """Calls that NumPy answers."""
    given = arrays(dtype)
    names = [] if isinstance(f, np.ufunc) else list(inspect.signature(f).parameters)
    if isinstance(f, np.ufunc):
        names = ["dtype", "out"]  # what `where` leaves out is memory as it was
    count = 0
    for form in FORMS:
        if (name in HERMITIAN and form != "h") or (name in TEXTS and " " in form):
            continue
        if name in UNASKED and form == "none":
            continue
        args = values(form, given)
        wanted = answer(f, args, {})
        if wanted is REFUSED:
            continue
        count += 1
        yield name, f, args, {}
        if count <= most:
            for option in [n for n in names if n in OPTIONS]:
                for value in OPTIONS[option]:
                    if value == "new":
                        if not isinstance(wanted, np.ndarray):
                            continue
                        value = np.zeros_like(wanted)
                    elif value == "mask":
                        value = np.arange(np.size(args[0])).reshape(np.shape(args[0])) % 3 > 0
                    elif value == "same":
                        value = np.abs(np.asarray(args[0])) + 1
                    if answer(f, args, {option: value}) is not REFUSED:
                        yield name, f, args, {option: value}
    if isinstance(f, np.ufunc) and f.nin == 2 and f.nout == 1 and f.signature is None:
        m, v, w = given["m"], given["v"], given["w"]
        for method, args in (
            ("reduce", (m,)), ("reduce", (m, 1)), ("reduce", (m, None)), ("accumulate", (m,)),
            ("accumulate", (m, 1)), ("outer", (v, w)), ("at", (v.copy(), [0, 0], w[:2])), ("reduceat", (v, [0, 2])),
        ):  # fmt: skip
            if name in OUT_OF_ORDER and method.startswith("reduce"):
                continue
            if answer(getattr(f, method), args, {}) is not REFUSED:
                yield f"{name}.{method}", getattr(f, method), args, {}


REFUSED = object()
OUT_OF_ORDER = ("arctan2", "atan2", "float_power", "pow", "power")  # by vectors, NumPy's own groups


def answer(f: Callable[..., Any], args: Any, options: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return result(f, copied(args), copied(options))
        except Exception:
            return REFUSED


def result(f: Callable[..., Any], args: Any, options: Any) -> Any:
    """What a call gives; of one that gives nothing, the array that it wrote to."""
    made = f(*args, **options)
    return args[0] if made is None and args else made


def copied(tree: Any) -> Any:
    return _each(tree, lambda x: x.copy())


def ours(tree: Any) -> Any:
    return _each(tree, ost.asarray)


def _each(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, np.ndarray):
        return function(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_each(x, function) for x in tree)
    if isinstance(tree, dict):
        return {k: _each(x, function) for k, x in tree.items()}
    return tree


HERMITIAN = ("linalg.cholesky", "linalg.eigh", "linalg.eigvalsh")
UNASKED = ("poly", "roots")  # they look at the elements, and answer by themselves if there are none
TEXTS = ("array2string", "array_repr", "array_str")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NARROW = ("float16", "float32")
THEIRS = {  # where NumPy computes in less than what it returns, or wraps around, and ours does not
    "trapezoid": ("bool", "int8", *UNSIGNED),
    "unwrap": UNSIGNED,
    "lcm": ("int8",),
    "nanvar": (*NARROW, "complex64"),
    "nanstd": (*NARROW, "complex64"),
    "polymul": ("bool",),
    "polyval": ("bool",),
    "intersect1d": ("bool",),  # which says of what is not unique that it is
    "setxor1d": ("bool",),
    # whole numbers as `q` give float64, floating ones do not; of truths a truth
    **dict.fromkeys(("percentile", "nanpercentile"), NARROW),
    **dict.fromkeys(("quantile", "nanquantile"), ("bool", *NARROW)),
    "histogramdd": NARROW,  # of nothing
    **{f"fft.{name}": ("float16",) for name in (
        "hfft", "ifft", "ifft2", "ifftn", "ihfft", "irfft", "irfft2", "irfftn"
    )},
}  # fmt: skip
SIGNS = ("linalg.eigh", "linalg.svd", "linalg.qr")  # vectors are theirs up to a sign


def verdict(call: Call) -> str:
    """ "same", "refused", or what is wrong."""
    name, f, args, options = call
    stable = {"stable": True} if name == "argsort" and "kind" not in options else {}
    wanted = answer(f, args, options | stable)
    given = dict(options)
    if isinstance(args[0] if args else None, tuple):  # NumPy makes one array of ours, and sorts it
        given |= stable
    if "out" not in options:
        given = ours(given)
    asked: list[Any] = []
    wrapped = dict(array_methods.functions)
    for protocol in ("__array_function__", "__array_ufunc__"):
        array_methods.functions[protocol] = lambda *a, p=protocol: asked.append(p) or wrapped[p](*a)
    try:
        return _verdict(name, f, args, given, wanted, asked if "out" not in options else [])
    finally:
        array_methods.functions.update(wrapped)


def _verdict(name: str, f: Any, args: Any, given: Any, wanted: Any, asked: list[Any]) -> str:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            got = result(f, ours(args), given)
            return differs(name, got, wanted, not asked)
        except OstinatoError as error:
            named = name.split(".")[-1] in str(error) or "np." in str(error)
            return "refused" if named or error.line else f"an error without a place: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def differs(name: str, got: Any, wanted: Any, unasked: bool) -> str:
    """`unasked`: NumPy may answer by itself, as it did not look at ours, or has where to write."""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(wanted):
            return f"got {type(got).__name__} of {len(got)}, needed {len(wanted)}"
        said = [differs(name, g, w, unasked) for g, w in zip(got, wanted, strict=True)]
        return next((s for s in said if s != "same"), "same")
    if name in ("partition", "argpartition"):  # what stands on each side is in any order
        got, wanted = np.sort(np.asarray(got), None), np.sort(wanted, None)
        return "same" if np.array_equal(got, wanted, equal_nan=True) else "other elements"
    reads = name in array_function.READ | array_function.FORMS | array_function.TYPES
    strange = isinstance(wanted, np.ndarray) and wanted.dtype.name not in DTYPES  # stays NumPy's
    reads = reads or (name == "broadcast_arrays" and strange)
    if not isinstance(got, ost.Array):
        if not (reads or unasked):
            return f"gave a {type(got).__name__}, not an Array"
        if not isinstance(wanted, (np.ndarray, np.generic)):
            return "same" if got == wanted else f"got {got!r}, needed {wanted!r}"
    value, wanted = np.asarray(got), np.asarray(wanted)
    if value.dtype != wanted.dtype or value.shape != wanted.shape:
        return f"got {value.dtype}{value.shape}, needed {wanted.dtype}{wanted.shape}"
    if name == "empty_like":
        return "same"
    if name == "unique_values":  # in any order
        value, wanted = np.sort(value), np.sort(wanted)
    if name in SIGNS:
        value, wanted = np.abs(value), np.abs(wanted)
    few = {"e": 2e-2, "f": 2e-4, "F": 2e-4}.get(wanted.dtype.char, 1e-8)
    if value.dtype.kind in "OUS":
        return "same" if value.tolist() == wanted.tolist() else f"got {value}, needed {wanted}"
    near = np.allclose(value, wanted, few, few, equal_nan=True)
    return "same" if near else f"got {value}, needed {wanted}"


def trials(dtypes: list[str], most: int) -> Iterator[Call]:
    for dtype, (name, f) in itertools.product(dtypes, functions().items()):
        if dtype in THEIRS.get(name, ()):
            continue
        for call in calls(name, f, dtype, most):
            if name != "interp" or _increases(call[2]):
                yield call


def _increases(args: Sequence[Any]) -> bool:
    """Of other places numpy.interp gives what its manual calls nonsense."""
    at = np.asarray(args[1]) if len(args) > 1 else np.zeros(0)
    return at.ndim != 1 or bool((np.diff(at.astype(float)) > 0).all())
