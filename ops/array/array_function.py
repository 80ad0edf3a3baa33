"""NumPy's functions of our arrays: `np.sum(x, axis=0)` is `ost.sum`, pending as any other.

`MEANT` says for each of NumPy's functions what it is here, with the parameters that have a meaning here
under NumPy's names; any other parameter has to be left at NumPy's default. What gives text, a Python
bool, a file, or writes to an array of NumPy's, reads values (`READ`). Anything else is refused."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ostinato.errors import ArgumentError

from .. import fft, linalg
from ..core.apply import as_array
from ..core.array import Array, weak_kind
from ..core.array_methods import functions
from ..core.spec import DTYPES, DType, bool_, float64, int64, is_inexact, promote
from ..core.spelling import numpy_counterpart
from ..core.user_line import misfit
from . import (
    arithmetic,
    assigning,
    casts,
    concatenation,
    contraction,
    creation,
    cumulative,
    elementary,
    grids,
    histograms,
    indexing,
    joining,
    masks,
    moments,
    numerical,
    padding,
    polynomials,
    quantiles,
    reduction,
    segments,
    selection,
    sets,
    shape,
    slicing,
    sliding,
    sorting,
    statistics,
    whole_numbers,
)
from . import elementwise as e

# -- what takes more than a name -----------------------------------------------------------


def _flat(x: Any) -> Array:
    return shape.reshape(x, (-1,))


def _along(function: Callable[..., Any], default: int = -1) -> Callable[..., Any]:
    """Along an axis; None means the elements in one row."""

    def run(a: Any, axis: int | None = default, **options: Any) -> Any:
        return (
            function(_flat(a), axis=0, **options)
            if axis is None
            else function(a, axis=axis, **options)
        )

    return run


def _in_order(run: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=-1, kind=None, stable=None: run(a, axis, kind, stable=stable)


def _reduced(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=None, keepdims=False: function(a, axis, keepdims=keepdims)


def _true(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=None, keepdims=False, where=None: function(
        a, axis, keepdims=keepdims, where=where
    )


def _extreme(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=None, keepdims=False, initial=None, where=None: function(
        a, axis, keepdims=keepdims, initial=initial, where=where
    )


def _summed(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=None, dtype=None, keepdims=False, initial=None, where=None: function(
        a, axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where
    )


def _cast(x: Any, dtype: Any) -> Array:
    return as_array(x) if dtype is None else casts.astype(x, dtype)


def _in(x: Any, dtype: Any, what: str) -> Array:
    """Convert what is to be averaged, in the dtype that the average is to have."""
    if dtype is not None and np.dtype(dtype).kind != "f":
        got = f"dtype={np.dtype(dtype).name} and an ostinato array"
        do = "convert the result with .astype"
        raise misfit(ArgumentError, f"np.{what}", got=got, needed="a real floating dtype", do=do)
    return _cast(x, dtype)


def _spread(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, axis=None, dtype=None, ddof=0, keepdims=False, where=None, correction=None: (
        function(
            _in(a, dtype, function.__name__),
            axis,
            correction=ddof if correction is None else correction,
            keepdims=keepdims,
            where=where,
        )
    )


def _with_shares(function: Callable[..., Array]) -> Callable[..., Array]:
    """Shares in a list are float64, as NumPy takes them."""

    def run(
        a: Any, q: Any, axis: Any = None, method: str = "linear", keepdims: bool = False
    ) -> Array:
        q = np.asarray(q) if isinstance(q, list | tuple) else q
        whole = isinstance(q, int) or getattr(q, "dtype", float64).kind in "iu"
        if whole and not is_inexact(as_array(a).dtype):
            got = "whole numbers as shares of whole numbers, and an ostinato array"
            do = "convert them with .astype(float)"
            raise misfit(ArgumentError, f"np.{function.__name__}", got=got, needed="floats", do=do)
        q = q.astype(np.float64) if isinstance(q, np.ndarray) and whole else q
        return function(a, q, axis, method=method, keepdims=keepdims)

    return run


def _broadcast(args: Sequence[Any]) -> tuple[Any, ...]:
    """Broadcast; what has a dtype that there is none of here stays NumPy's."""
    wide = np.broadcast_shapes(*[np.shape(x) for x in args])
    known = [isinstance(x, Array) or np.asarray(x).dtype.name in DTYPES for x in args]
    return tuple(
        shape.broadcast_to(x, wide) if ours else np.broadcast_to(x, wide)
        for x, ours in zip(args, known, strict=True)
    )


def _like(function: Callable[..., Array], full: bool = False) -> Callable[..., Array]:
    def run(
        a: Any = None,
        fill_value: Any = None,
        dtype: Any = None,
        shape: Any = None,
        prototype: Any = None,
    ) -> Array:
        x = as_array(a if prototype is None else prototype)
        given = [as_array(fill_value)] if full else []
        if shape is None:
            return function(x, *given, dtype=dtype)
        plain = functions[function.__name__.removesuffix("_like")]
        return plain(shape, *given, dtype=x.dtype if dtype is None else dtype)

    return run


def _clipped(
    a: Any, a_min: Any = None, a_max: Any = None, min: Any = None, max: Any = None
) -> Array:
    return arithmetic.clip(a, a_min if min is None else min, a_max if max is None else max)


def _padded(
    array: Any,
    pad_width: Any,
    mode: str = "constant",
    constant_values: Any = 0,
    stat_length: Any = None,
    end_values: Any = 0,
    reflect_type: str = "even",
) -> Array:
    return padding.pad(
        array,
        pad_width,
        mode,
        constant_values=constant_values,
        stat_length=stat_length,
        end_values=end_values,
        reflect_type=reflect_type,
    )


def _places(indices: Any) -> Array:
    x = as_array(indices)
    return casts.astype(x, int64) if x.dtype == bool_ else x


def _double(x: Any) -> Array:
    """Convert to double precision, as NumPy does there whatever it is given."""
    found = as_array(x)
    return casts.astype(found, promote(found.dtype, float64))


def _chosen(condition: Any, x: Any = None, y: Any = None) -> Any:
    return masks.nonzero(condition) if x is None else e.where(condition, x, y)


def _difference(ar1: Any, ar2: Any, assume_unique: bool = False) -> Array:
    if assume_unique:  # which keeps the order, and what occurs twice
        got = "assume_unique=True and an ostinato array"
        do = "write x[~ost.isin(x, y)], which keeps the order"
        raise misfit(ArgumentError, "np.setdiff1d", got=got, needed="assume_unique=False", do=do)
    return sets.setdiff1d(ar1, ar2)


def _counts(x: Any, weights: Any = None, minlength: int = 0) -> Array:
    found = segments.bincount(x, weights, minlength)
    return found if as_array(x).size else casts.astype(found, int64)  # as NumPy counts nothing


def _histogram(
    a: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> tuple[Array, Array]:
    found, edges = histograms.histogram(a, bins, range, bool(density), weights)
    whole = weights is not None and not density and not is_inexact(as_array(weights).dtype)
    return casts.astype(found, as_array(weights).dtype) if whole else found, edges


# -- what each of NumPy's functions is -----------------------------------------------------

OTHERWISE = (  # ours, whose dtypes or edges are not NumPy's
    *("geomspace", "logspace", "deg2rad", "degrees", "rad2deg", "radians", "piecewise", "poly"),
    *("ix_", "ravel_multi_index", "fromfunction", "indices"),
)


def _slopes(f: Any, /, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    found = numerical.gradient(f, *varargs, axis=axis, edge_order=edge_order)
    return tuple(found) if isinstance(found, list) else found


MEANT: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(module, name)
        for module in (
            *(joining, histograms, numerical, grids, polynomials, quantiles),
            *(segments, selection, sets, statistics),
        )
        for name in module.__all__
        if name not in OTHERWISE and hasattr(np, name)
    },
    **{name: _true(getattr(reduction, name)) for name in ("all", "any")},
    **{name: _extreme(getattr(reduction, name)) for name in ("max", "min")},
    **{name: _reduced(getattr(reduction, name)) for name in ("argmax", "argmin", "count_nonzero")},
    "setdiff1d": _difference,
    "intersect1d": lambda ar1, ar2: sets.intersect1d(as_array(ar1), as_array(ar2)),
    "setxor1d": lambda ar1, ar2, assume_unique=False: sets.setxor1d(
        *((ar1, ar2) if assume_unique else map(as_array, (ar1, ar2)))
    ),
    "bincount": _counts,
    "gradient": _slopes,
    "histogram": _histogram,
    "interp": lambda x, xp, fp, left=None, right=None, period=None: numerical.interp(
        _double(x), _double(xp), _double(fp), left, right, period
    ),
    "lib.stride_tricks.sliding_window_view": sliding.sliding_window_view,
    "vander": lambda x, N=None, increasing=False: numerical.vander(
        _double(x) if is_inexact(as_array(x).dtype) else x, N, increasing
    ),
    "amax": _extreme(reduction.max),
    "amin": _extreme(reduction.min),
    "sum": _summed(reduction.sum),
    "prod": _summed(reduction.prod),
    "mean": lambda a, axis=None, dtype=None, keepdims=False, where=None: moments.mean(
        _in(a, dtype, "mean"), axis, keepdims=keepdims, where=where
    ),
    "var": _spread(moments.var),
    "std": _spread(moments.std),
    "cumulative_sum": cumulative.cumulative_sum,
    "cumulative_prod": cumulative.cumulative_prod,
    "diff": lambda a, n=1, axis=-1, prepend=None, append=None: cumulative.diff(
        a, n=n, axis=axis, prepend=prepend, append=append
    ),
    **{
        name: _with_shares(getattr(quantiles, name))
        for name in ("quantile", "percentile", "nanquantile", "nanpercentile")
    },
    # sorting
    "lexsort": sorting.lexsort,
    "sort": _in_order(sorting.sort),
    "argsort": _in_order(sorting.argsort),
    "searchsorted": lambda a, v, side="left", sorter=None: sorting.searchsorted(
        a, v, side=side, sorter=sorter
    ),
    "isin": lambda element, test_elements, invert=False: sets.isin(
        element, test_elements, invert=invert
    ),
    "unique": sets.unique,
    "nonzero": lambda a: masks.nonzero(a),
    "where": _chosen,
    "take": lambda a, indices, axis=None, mode="raise": indexing.take(
        a, _places(indices), axis, mode=mode
    ),
    "take_along_axis": lambda arr, indices, axis=-1: _along(
        lambda x, axis: indexing.take_along_axis(x, indices, axis=axis)
    )(arr, axis),
    # elements
    "astype": lambda x, dtype: assigning.astype(x, dtype),
    "around": lambda a, decimals=0: arithmetic.round(a, decimals),
    "round": lambda a, decimals=0: arithmetic.round(a, decimals),
    "clip": _clipped,
    "fix": lambda x: arithmetic.trunc(x),
    "iscomplex": elementary.iscomplex,
    "isreal": elementary.isreal,
    "imag": lambda val: arithmetic.imag(val),
    "real": lambda val: arithmetic.real(val),
    # shapes
    "broadcast_arrays": lambda *args: _broadcast(args),
    "broadcast_to": lambda array, shape: functions["broadcast_to"](array, shape),
    "concat": joining.concatenate,
    "copy": lambda a, order="K": shape.copy(a, order),
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: contraction.diagonal(a, offset, axis1, axis2),
    "expand_dims": lambda a, axis: shape.expand_dims(a, axis),
    "flip": lambda m, axis=None: slicing.flip(m, axis),
    "matrix_transpose": lambda x: shape.matrix_transpose(x),
    "meshgrid": lambda *xi, indexing="xy", sparse=False: tuple(
        creation.meshgrid(*xi, indexing=indexing, sparse=sparse)
    ),
    "moveaxis": lambda a, source, destination: shape.moveaxis(a, source, destination),
    "pad": _padded,
    "permute_dims": lambda a, axes=None: as_array(a).transpose(*([] if axes is None else [axes])),
    "repeat": lambda a, repeats, axis=None: functions["repeat"](a, repeats, axis=axis),
    "reshape": lambda a, shape, order="C", copy=None: functions["reshape"](
        a, shape, order, copy=copy
    ),
    "roll": lambda a, shift, axis=None: concatenation.roll(a, shift, axis),
    "squeeze": lambda a, axis=None: as_array(a).squeeze(axis),
    "stack": lambda arrays, axis=0, dtype=None: _cast(
        concatenation.stack(list(arrays), axis), dtype
    ),
    "swapaxes": lambda a, axis1, axis2: shape.swapaxes(a, axis1, axis2),
    "tile": lambda A, reps: concatenation.tile(A, reps),
    "tril": lambda m, k=0: shape.tril(m, k=k),
    "triu": lambda m, k=0: shape.triu(m, k=k),
    "unstack": lambda x, axis=0: concatenation.unstack(x, axis),
    **{
        f"{name}_like": _like(getattr(creation, f"{name}_like"))
        for name in ("empty", "ones", "zeros")
    },
    "full_like": _like(creation.full_like, full=True),
    # products
    "einsum": lambda *operands: contraction.einsum(*operands),
    "outer": lambda a, b: contraction.outer(as_array(a), as_array(b)),
    "tensordot": lambda a, b, axes=2: contraction.tensordot(as_array(a), as_array(b), axes=axes),
    "trace": lambda a, offset=0, axis1=0, axis2=1, dtype=None: contraction.trace(
        a, offset, axis1, axis2, dtype
    ),
    # transforms
    **{f"fft.{name}": getattr(fft, name) for name in fft.__all__ if "freq" not in name},
    # linear algebra
    "linalg.cholesky": lambda a, upper=False: linalg.cholesky(a, upper=upper),
    "linalg.cross": lambda x1, x2, axis=-1: joining.cross(x1, x2, axis=axis),
    "linalg.cond": lambda x, p=None: linalg.cond(x, p),
    "linalg.det": lambda a: linalg.det(a),
    "linalg.diagonal": lambda x, offset=0: linalg.diagonal(x, offset=offset),
    "linalg.eigh": lambda a, UPLO="L": linalg.eigh(a, UPLO),
    "linalg.eigvalsh": lambda a, UPLO="L": linalg.eigvalsh(a, UPLO),
    "linalg.inv": lambda a: linalg.inv(a),
    "linalg.matmul": lambda x1, x2: contraction.matmul(x1, x2),
    "linalg.matrix_norm": lambda x, keepdims=False, ord="fro": linalg.matrix_norm(
        x, keepdims=keepdims, ord=ord
    ),
    "linalg.matrix_power": lambda a, n: linalg.matrix_power(a, n),
    "linalg.matrix_rank": lambda A, tol=None, hermitian=False, rtol=None: linalg.matrix_rank(
        A, tol, hermitian, rtol=rtol
    ),
    "linalg.matrix_transpose": lambda x: shape.matrix_transpose(x),
    "linalg.multi_dot": lambda arrays: linalg.multi_dot(arrays),
    "linalg.norm": lambda x, ord=None, axis=None, keepdims=False: linalg.norm(
        x, ord, axis, keepdims
    ),
    "linalg.outer": lambda x1, x2: linalg.outer(x1, x2),
    "linalg.pinv": lambda a, rtol=None: linalg.pinv(a, rtol=rtol),
    "linalg.qr": lambda a, mode="reduced": linalg.qr(a, mode=mode),
    "linalg.slogdet": lambda a: linalg.slogdet(a),
    "linalg.solve": lambda a, b: linalg.solve(a, b),
    "linalg.svd": lambda a, full_matrices=True, compute_uv=True: (
        linalg.svd(a, full_matrices=full_matrices) if compute_uv else linalg.svdvals(a)
    ),
    "linalg.svdvals": lambda x: linalg.svdvals(x),
    "linalg.tensordot": lambda x1, x2, axes=2: contraction.tensordot(x1, x2, axes=axes),
    "linalg.tensorinv": lambda a, ind=2: linalg.tensorinv(a, ind),
    "linalg.tensorsolve": lambda a, b, axes=None: linalg.tensorsolve(a, b, axes),
    "linalg.trace": lambda x, offset=0, dtype=None: linalg.trace(x, offset=offset, dtype=dtype),
    "linalg.vecdot": lambda x1, x2, axis=-1: contraction.vecdot(x1, x2, axis=axis),
    "linalg.vector_norm": lambda x, axis=None, keepdims=False, ord=2: linalg.vector_norm(
        x, axis=axis, keepdims=keepdims, ord=ord
    ),
}

READ = frozenset(  # NumPy's own answer from the values, as text, a bool, a file, or in place
    [
        "allclose",
        "array_equal",
        "array_equiv",
        "array2string",
        "array_repr",
        "array_str",
        "save",
        "savez",
        "savez_compressed",
        "savetxt",
        "may_share_memory",
        "shares_memory",
        "copyto",
        "putmask",
        "place",
        "put",
        "put_along_axis",
        "fill_diagonal",
    ]
)
FORMS = frozenset(  # NumPy's own code, which asks for shape and dtype only, and slices
    [
        "shape",
        "ndim",
        "size",
        "iscomplexobj",
        "isrealobj",
        "common_type",
        "array_split",
        "split",
        "hsplit",
        "vsplit",
        "dsplit",
    ]
)
TYPES = frozenset(("result_type", "can_cast"))  # of dtypes, for which an array stands

INSTEAD = {
    **{name: f"ost.{name}" for name in OTHERWISE},
    "linalg.eig": "ost.linalg.eig(a), whose results are complex",
    "linalg.eigvals": "ost.linalg.eigvals(a), which are complex",
    "linalg.lstsq": "ost.linalg.lstsq(a, b)",
    "linalg.multi_dot": "a @ b @ c",
}


# -- calls ---------------------------------------------------------------------------------
def call_function(function: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call our counterpart of a function of NumPy's, for arguments some of which are ours."""
    for kind in types:
        theirs = kind.__array_function__
        if not issubclass(kind, Array) and theirs is not np.ndarray.__array_function__:
            return NotImplemented
    name = _named(function)
    if name in FORMS:
        return function._implementation(*args, **kwargs)
    if name in TYPES:
        return function(*_each(args, lambda x: x.dtype), **kwargs)
    if name in READ:
        if name in _IN_PLACE and args and isinstance(args[0], Array):
            return _written(name, *args, **kwargs)
        return function(*_read(args), **_read(kwargs))
    given = _given(name, args, kwargs)
    if isinstance(out := given.arguments.get("out"), Array):
        rest = {n: v for n, v in kwargs.items() if n != "out"}
        if len(rest) == len(kwargs):
            raise _unchanged(name)
        return assigning.written(out, call_function(function, types, args, rest), f"np.{name}")
    if _goes_to_numpy(name, given.arguments.get("out")):
        return function(*_read(args), **_read(kwargs))
    ours = MEANT.get(name)
    if ours is None:
        raise _refused(name)
    known = _parameters(name)
    several = [v for n, v in given.arguments.items() if n in _SEVERAL for v in v]
    named = {n: v for n, v in given.arguments.items() if n not in _SEVERAL}
    named.update(named.pop("kwargs", {}))
    named = {n: v for n, v in named.items() if v is not np._NoValue}
    for n in [n for n in named if n not in known]:
        if not _is_default(name, n, named[n]):
            got = f"{n}= and an ostinato array"
            needed = "no more than " + ", ".join(known)
            do = f"leave it out, or write np.{name}(np.asarray(x), ...)"
            raise misfit(ArgumentError, f"np.{name}", got=got, needed=needed, do=do)
        del named[n]
    positional = [named.pop(n) for n in list(named) if known.get(n) == "first"]
    return ours(*positional, *several, **named)


def call_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    plain = UFUNCS.get(ufunc.__name__, functions.get(OURS.get(ufunc.__name__, ufunc.__name__)))
    if method == "at":
        if not isinstance(inputs[0], Array):
            return getattr(ufunc, method)(*_read(inputs))
    else:
        match options.get("out"):
            case (Array(),):
                pass
            case out:
                if _goes_to_numpy(name, out):
                    return getattr(ufunc, method)(*_read(inputs), **_read(options))
                options = {n: v for n, v in options.items() if n != "out"}
    run = plain if method == "__call__" else getattr(plain, method, None)
    if run is None and getattr(np, ufunc.__name__, None) is not ufunc:  # SciPy's and Numba's
        here = numpy_counterpart(ufunc.__name__)
        call = "ost.callback(f, ost.spec(x.shape, x.dtype), x)"
        got = "an ostinato array"
        needed = "a function that ostinato has too, or values"
        do = f"write {f'{here}, or {call}' if here else call}"
        raise misfit(
            ArgumentError, f"{ufunc.__name__} of another library", got=got, needed=needed, do=do
        )
    if run is None or (method == "__call__" and ufunc.nout > 1 and options):
        raise _refused(name)
    if method not in ("__call__", "outer"):
        return run(*inputs, **options)
    unknown = options.keys() - {"out", "where"}
    if unknown:
        got = f"{', '.join(sorted(unknown))}= and an ostinato array"
        do = f"leave them out, or write np.{name}(np.asarray(x), ...)"
        raise misfit(ArgumentError, f"np.{name}", got=got, needed="no such options", do=do)

    def alike(*given: Any) -> Any:
        return _alike(ufunc, given, run(*given))

    ours = OURS.get(ufunc.__name__, ufunc.__name__)
    return e.into(alike, ours, inputs, options.get("out"), options.get("where"), f"np.{name}")


OURS = {  # NumPy's names of ufuncs that are called otherwise here
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
}
UFUNCS: dict[str, Callable[..., Any]] = {  # those that are more than one function here
    "deg2rad": lambda x: arithmetic.multiply(x, math.pi / 180),
    "degrees": lambda x: arithmetic.multiply(x, 180 / math.pi),
    **{
        name: getattr(elementary, name)
        for name in ("divmod", "fabs", "float_power", "fmod", "ldexp", "logaddexp2", "modf")
    },
    "fmax": numerical.fmax,
    "fmin": numerical.fmin,
    "heaviside": numerical.heaviside,
    **{name: getattr(whole_numbers, name) for name in whole_numbers.__all__},
    "rad2deg": lambda x: arithmetic.multiply(x, 180 / math.pi),
    "radians": lambda x: arithmetic.multiply(x, math.pi / 180),
}
# parameters that take any number of arguments
_SEVERAL = ("args", "arys", "operands", "varargs", "xi")
_ALL_THE_SAME = ("assume_unique", "copy", "kind", "optimize", "subok")  # of what is not changed
_IN_PLACE = ("copyto", "putmask", "place", "put", "put_along_axis", "fill_diagonal")


def _written(name: str, x: Array, *args: Any, **options: Any) -> None:
    """Call a function that writes to its first argument, which is ours."""
    made = getattr(grids, name)(x, *args, **options)
    if made is not None:
        assigning.written(x, made, f"np.{name}")


def _alike(ufunc: Any, inputs: Sequence[Any], results: Any) -> Any:
    """The results, if NumPy would give them this dtype; some functions of integers differ in that."""
    kinds = tuple([weak_kind(x) or as_array(x).dtype for x in inputs])
    wanted = _dtypes(ufunc, kinds)
    got = tuple([x.dtype for x in (results if isinstance(results, tuple) else (results,))])
    if wanted is None or wanted == got:
        return results
    raise misfit(
        ArgumentError,
        f"np.{ufunc.__name__}",
        got=" and ".join(k.__name__ if isinstance(k, type) else k.name for k in kinds),
        needed=f"dtypes for which the result is NumPy's {wanted[0].name}, not {got[0].name}",
        do="use ostinato's function, or convert with .astype first",
    )


@lru_cache(4096)
def _dtypes(ufunc: np.ufunc, kinds: tuple[DType | type, ...]) -> tuple[Any, ...] | None:
    """Return the dtypes of NumPy's results, if it has any of these dtypes."""
    given = tuple(int if k is bool else k for k in kinds)  # NumPy knows no weak bool
    try:
        return tuple(ufunc.resolve_dtypes((*given, *(None,) * ufunc.nout))[ufunc.nin :])
    except TypeError:
        return None


def _named(function: Any) -> str:
    module = str(getattr(function, "__module__", "")).removeprefix("numpy").strip(".")
    return f"{module}.{function.__name__}" if module else str(function.__name__)


@lru_cache(1024)
def _signature(name: str) -> inspect.Signature:
    """Return the signature of one of NumPy's functions."""
    try:
        function: Any = functools.reduce(getattr, name.split("."), np)
        return inspect.signature(function)
    except ValueError:  # an older NumPy does not tell
        return inspect.signature(lambda *args, **kwargs: None)


@lru_cache(1024)
def _parameters(name: str) -> dict[str, str]:
    """The parameters of one of ours; the first ones may go by no other name."""
    return {
        p.name: "first" if p.kind is p.POSITIONAL_ONLY else "named"
        for p in inspect.signature(MEANT[name]).parameters.values()
    }


def _given(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return _signature(name).bind(*args, **kwargs)
    except TypeError as error:
        raise misfit(ArgumentError, f"np.{name}", got=str(error)) from None


def _is_default(function: str, name: str, value: Any) -> bool:
    """Whether a parameter says nothing that would matter here."""
    if name in _ALL_THE_SAME or (name, value) in (("order", "K"), ("order", "C"), ("order", "A")):
        return True
    p = _signature(function).parameters.get(name)
    return p is not None and value is p.default


def _goes_to_numpy(name: str, out: Any) -> bool:
    """Whether the results are to be written to NumPy's arrays, so that NumPy computes."""
    outs = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    if any(isinstance(x, Array) for x in outs):
        raise _unchanged(name)
    return bool(outs)


def _each(tree: Any, function: Callable[[Array], Any]) -> Any:
    if isinstance(tree, Array):
        return function(tree)
    if type(tree) in (list, tuple):
        return type(tree)(_each(x, function) for x in tree)
    return {k: _each(x, function) for k, x in tree.items()} if type(tree) is dict else tree


def _read(tree: Any) -> Any:
    return _each(tree, np.asarray)


def _unchanged(name: str) -> Exception:
    got = "an ostinato array to be written to"
    do = "assign what you get without it: x[...] = values"
    return misfit(ArgumentError, f"np.{name}", got=got, needed="an array of NumPy's", do=do)


def _refused(name: str) -> Exception:
    ours = numpy_counterpart(name)
    read = f"np.{name}(np.asarray(x), ...), which reads the values"
    do = INSTEAD.get(name) or (f"{ours}, or {read}" if ours else read)
    got, needed = "an ostinato array", "a function that ostinato has too, or values"
    return misfit(ArgumentError, f"np.{name}", got=got, needed=needed, do=f"write {do}")


functions["__array_function__"] = call_function
functions["__array_ufunc__"] = call_ufunc
