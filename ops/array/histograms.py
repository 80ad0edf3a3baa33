"""Histograms: tallies of the numbers of the bins that elements fall into, which are found by
arithmetic where bins have one width, else by a search."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ostinato.errors import ArgumentError, ShapeError

from ..core import array
from ..core.apply import apply, as_array
from ..core.array import Array
from ..core.array_methods import Operandish, is_count
from ..core.spec import DType, bfloat16, float32, float64, int32, is_inexact, promote
from ..core.user_line import misfit
from .arithmetic import abs as absolute
from .arithmetic import clip, maximum, minimum, nextafter
from .casts import astype
from .comparisons import equal, greater_equal, isinf, less, less_equal, logical_and
from .concatenation import concat, stack
from .cumulative import diff
from .elementwise import where
from .moments import mean, std
from .quantiles import _numbers, quantile
from .reduction import max as largest
from .reduction import min as smallest
from .segments import segment_sum, tally
from .shape import reshape, whole_number
from .sorting import searchsorted
from .transcendental import log2

__all__ = ["histogram", "histogram2d", "histogram_bin_edges", "histogramdd"]

Bins = int | str | Operandish
Range = tuple[Any, Any] | None


# -- bins --------------------------------------------------------------------------------------
def _ends(x: Array, between: Range, name: str) -> tuple[Any, Any]:
    """The first and the last edge: numbers if they are given, else of the data."""
    if between is not None:
        lo, hi = between
        known = not isinstance(lo, Array) and not isinstance(hi, Array)
        if known and not (math.isfinite(lo) and math.isfinite(hi) and lo <= hi):
            got = f"range={lo, hi}"
            raise misfit(ArgumentError, name, got=got, needed="two finite numbers that go up")
        if known:
            return (lo - 0.5, hi + 0.5) if lo == hi else (lo, hi)
    elif not x.size:
        return 0.0, 1.0
    else:
        lo, hi = smallest(x), largest(x)
    lo, hi = (astype(v, x.dtype) for v in (lo, hi))
    same = equal(lo, hi)
    return where(same, lo - 0.5, lo), where(same, hi + 0.5, hi)


class _Equal:
    """Bins of one width, with NumPy's edges to the bit: made in float64 of ends that are told,
    in the data's dtype of those that are found. An edge is `first + k * step`, so the bin that
    arithmetic finds is corrected by arithmetic."""

    first = 0

    def __init__(self, count: int, lo: Any, hi: Any, dtype: DType) -> None:
        self.count, self.dtype = count, dtype
        self.work = lo.dtype if isinstance(lo, Array) else float64
        self.lo, self.hi = astype(lo, self.work), astype(hi, self.work)
        self.step = (self.hi - self.lo) / float(count)
        places = apply("iota", shape=(count + 1,), axis=0, dtype=self.work)
        self.edges = where(equal(places, count), astype(hi, dtype), self._edge(places))

    def _edge(self, k: Array) -> Array:
        return astype(self.lo + astype(k, self.work) * self.step, self.dtype)

    def number(self, x: Array) -> Array:
        """The bin of each element; -1 beyond the ends, and of NaN."""
        x = astype(x, self.dtype)
        lo, hi = astype(self.lo, self.dtype), astype(self.hi, self.dtype)
        inside = logical_and(greater_equal(x, lo), less_equal(x, hi))
        scale = astype(float(self.count) / (self.hi - self.lo), self.dtype)
        off = where(inside, (x - lo) * scale, astype(0, self.dtype))
        k = clip(astype(off, int32), 0, self.count - 1)
        k = k - astype(less(x, self._edge(k)), int32)
        above = logical_and(greater_equal(x, self._edge(k + 1)), less(k, self.count - 1))
        return where(inside, maximum(k + astype(above, int32), 0), -1)


class _Edges:
    """Bins between edges that go up; the last one has both its edges. The first is number 1."""

    first = 1

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.count = edges.size - 1

    def number(self, x: Array) -> Array:
        kind = promote(x.dtype, self.edges.dtype)
        edges = astype(self.edges, float32 if kind == bfloat16 else kind)
        last = edges[-1:]
        beyond = astype(where(isinf(last), math.nan, nextafter(last, math.inf)), edges.dtype)
        return searchsorted(concat([edges[:-1], beyond]), x, side="right")


def _bins(a: Operandish, bins: Bins, between: Range, name: str) -> tuple[Array, _Equal | _Edges]:
    """Numbers, and the bins that they belong to."""
    x = _numbers(a, name)
    if isinstance(bins, str):
        bins = _estimated(x, bins, between, not is_inexact(as_array(a).dtype))
    if is_count(bins):
        count = whole_number(bins, name)
        if count < 1:
            raise misfit(ArgumentError, name, got=f"{count} bins", needed="1 or more")
        dtype = float32 if x.dtype == bfloat16 else x.dtype
        return x, _Equal(count, *_ends(x, between, name), dtype)
    edges = as_array(bins)
    if edges.ndim != 1 or edges.size < 1:
        got = f"edges of shape {edges.shape}"
        raise misfit(ArgumentError, name, got=got, needed="one axis, not empty")
    if not isinstance(bins, Array) and np.any(np.diff(np.asarray(bins)) < 0):
        raise misfit(ArgumentError, name, got="edges that go down", needed="edges that go up")
    return x, _Edges(edges)


def _estimated(x: Array, rule: str, between: Range, whole: bool) -> int:
    """How many bins a rule gives, as NumPy counts them. Most rules look at the data, and read a
    width."""
    if rule not in ("auto", "fd", "doane", "scott", "rice", "sqrt", "sturges"):
        needed = "a number, edges, or one of auto, fd, doane, scott, rice, sqrt, sturges"
        raise misfit(ArgumentError, "histogram", got=f"bins={rule!r}", needed=needed)
    flat, (lo, hi) = reshape(x, (-1,)), _ends(x, between, "histogram")
    if between is not None and flat.size:
        flat = flat[logical_and(greater_equal(flat, lo), less_equal(flat, hi))]
    n = flat.size
    if n == 0:
        return 1
    plain = {"sqrt": math.sqrt(n), "sturges": math.log2(n) + 1, "rice": 2 * n ** (1 / 3)}
    if rule in plain and between is None and not whole:
        return math.ceil(plain[rule])
    span = largest(flat) - smallest(flat)
    widths = {name: span / count for name, count in plain.items()}
    if rule in ("auto", "fd"):
        quarter = quantile(flat, [0.25, 0.75])
        widths["fd"] = 2.0 * (quarter[1] - quarter[0]) / n ** (1 / 3)
        most = maximum(widths["fd"], widths["sqrt"] / 2)
        widths["auto"] = minimum(most, widths["sturges"])
    elif rule == "scott":
        widths["scott"] = (24.0 * math.pi**0.5 / n) ** (1 / 3) * std(flat)
    elif rule == "doane":
        off, wide = flat - mean(flat), std(flat)
        skew = mean((off / where(equal(wide, 0), 1, wide)) ** 3)
        error = math.sqrt(6.0 * (n - 2) / ((n + 1.0) * (n + 3))) if n > 2 else math.inf
        widths["doane"] = span / (1.0 + math.log2(n) + log2(1.0 + absolute(skew) / error))
    read = stack([astype(v, float64) for v in (widths[rule], astype(hi, x.dtype) - lo)])
    width, spread = map(float, array.reader.known(read, "bins by a rule", shape=True))
    width = max(width, 1.0) if whole and width else width
    return math.ceil(spread / width) if width else 1


def histogram_bin_edges(
    a: Operandish, bins: Bins = 10, range: Range = None, weights: Operandish | None = None
) -> Array:
    """The edges that `histogram` would take.

    >>> ost.histogram_bin_edges([0.0, 1.0], bins=2)
    Array([0. , 0.5, 1. ], dtype=float64)
    """
    return _bins(a, bins, range, "histogram_bin_edges")[1].edges


# -- histograms --------------------------------------------------------------------------------
def _counted(k: Array, count: int, weights: Operandish | None, first: int = 0) -> Array:
    if weights is None:
        made = tally(k, first + count)
    else:
        w = as_array(weights)
        if w.shape != k.shape:
            got = f"weights of shape {w.shape}"
            raise misfit(ShapeError, "histogram", got=got, needed=f"{k.shape}")
        made = segment_sum(reshape(w, (-1,)), reshape(k, (-1,)), first + count)
    return made[first:] if first else made


def histogram(
    a: Operandish,
    bins: Bins = 10,
    range: Range = None,
    density: bool = False,
    weights: Operandish | None = None,
) -> tuple[Array, Array]:
    """How many elements fall into each bin, or the sum of their weights, and the bins' edges.
    Workers send their counts: one all-reduce, and one for the ends, unless `range` says them.

    >>> ost.histogram([1.0, 2.0, 2.5, 4.0], bins=3)
    (Array([1, 2, 1], dtype=int64), Array([1., 2., 3., 4.], dtype=float64))
    """
    x, found = _bins(a, bins, range, "histogram")
    made = _counted(found.number(x), found.count, weights, found.first)
    if not density:
        return made, found.edges
    share = astype(made, float64)
    return share / diff(found.edges) / share.sum(), found.edges


def histogramdd(
    sample: Operandish | Sequence[Operandish],
    bins: int | Sequence[Bins] = 10,
    range: Sequence[Range] | None = None,
    density: bool = False,
    weights: Operandish | None = None,
) -> tuple[Array, list[Array]]:
    """Count how many rows lie in each bin of several dimensions: of the rows of a matrix, or of the
    coordinates one by one.

    >>> ost.histogramdd([[0.1, 0.2], [0.9, 0.8]], bins=2)[0]
    Array([[0., 1.],
           [1., 0.]], dtype=float64)
    """
    columns = _columns(sample)
    n = len(columns)
    each: Sequence[Bins] = [bins] * n if is_count(bins) else list(cast(Any, bins))
    ends: Sequence[Range] = [None] * n if range is None else list(range)
    if len(each) != n or len(ends) != n:
        got, needed = f"{len(each)} bins and {len(ends)} ranges", f"one for each of {n} dimensions"
        raise misfit(ArgumentError, "histogramdd", got=got, needed=needed)
    pairs = [_bins(x, b, r, "histogramdd") for x, b, r in zip(columns, each, ends, strict=True)]
    found = [one for _, one in pairs]
    place: Array | None = None
    inside: Array | None = None
    for x, one in zip(columns, found, strict=True):
        k = astype(one.number(x), int32) - one.first
        there = logical_and(greater_equal(k, 0), less(k, one.count))
        inside = there if inside is None else logical_and(inside, there)
        place = k if place is None else place * one.count + k
    assert place is not None
    assert inside is not None
    shape = tuple(one.count for one in found)
    made = _counted(where(inside, place, -1), math.prod(shape), weights)
    made = reshape(astype(made, float64), shape)
    if density:
        made = made / made.sum()
        for d, one in enumerate(found):
            wide = (1,) * d + (-1,) + (1,) * (n - d - 1)
            made = made / reshape(diff(one.edges), wide)
    return made, [one.edges for one in found]


def _columns(sample: Any) -> list[Array]:
    if isinstance(sample, list | tuple):
        found = [_numbers(x, "histogramdd") for x in sample]
        kind = functools.reduce(promote, [x.dtype for x in found]) if found else float64
        found = [astype(x, kind) for x in found]  # they lie in one matrix
        if found and all(x.ndim == 1 and x.shape == found[0].shape for x in found):
            return found
        got = " and ".join(str(x.shape) for x in found[:4]) or "nothing"
        needed = "coordinates of one axis, as long as each other"
        raise misfit(ShapeError, "histogramdd", got=got, needed=needed)
    x = _numbers(sample, "histogramdd")
    if x.ndim == 1:
        return [x]
    if x.ndim != 2 or not x.shape[1]:
        raise misfit(ShapeError, "histogramdd", got=f"shape {x.shape}", needed="a row per sample")
    return [x[:, d] for d in builtins.range(x.shape[1])]


def histogram2d(
    x: Operandish,
    y: Operandish,
    bins: int | Sequence[Any] = 10,
    range: Sequence[Range] | None = None,
    density: bool = False,
    weights: Operandish | None = None,
) -> tuple[Array, Array, Array]:
    """Count how many points of two coordinates lie in each bin.

    >>> ost.histogram2d([0.1, 0.9], [0.1, 0.9], bins=2)[0]
    Array([[1., 0.],
           [0., 1.]], dtype=float64)
    """
    each: Any = bins
    if not is_count(bins) and len(each) != 2:
        each = [bins, bins]  # the edges of both
    made, (one, other) = histogramdd([x, y], each, range, density, weights)
    return made, one, other
