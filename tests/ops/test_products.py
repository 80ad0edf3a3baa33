"""Matrix products by oneDNN and by OpenBLAS in blocks, against NumPy in double precision."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.cpu import threads
from ostinato.ops.cpu.jit.llvm import why_not
from ostinato.ops.cpu.kernels import gemm, gemm_tiles, gemv, turned_gemm
from ostinato.ops.cpu.kernels.gemm import product
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.jit.stacks import stacked

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import ON_CPU

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
with_onednn = pytest.mark.skipif(
    isinstance(onednn.library(), str), reason=onednn.describe_library()
)

BITS = {
    "float64": 52,
    "complex128": 52,
    "float32": 23,
    "complex64": 23,
    "float16": 10,
    "bfloat16": 7,
}


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return x.astype(dtype)


def laid(x: np.ndarray, how: str) -> np.ndarray:
    """The same numbers, lying differently."""
    match how:
        case "turned":
            return np.ascontiguousarray(np.swapaxes(x, -1, -2)).swapaxes(-1, -2)
        case "apart":  # rows with something between them
            wide = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan).astype(x.dtype)
            wide[..., : x.shape[-1]] = x
            return wide[..., : x.shape[-1]]
        case "other":  # batches inside
            return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -2)), -2, 0)
    return np.ascontiguousarray(x)


def exact(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product and the sum of the terms' sizes, which bounds its error."""
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(kind), b.astype(kind)
    return a @ b, np.abs(a) @ np.abs(b)


def check(a: np.ndarray, b: np.ndarray, out: np.ndarray, count: int = 2) -> bool:
    """Whether there is a function for these; if so, that it is right."""
    f = product(a, b, out, count)
    if f is None:
        return False
    checked(f, a, b, out)
    return True


def checked(f: Any, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """That a function multiplies."""
    out[...] = np.nan
    f(a, b, out)
    right, size = exact(a, b)
    kind = right.dtype
    bits = BITS[out.dtype.name]
    steps = 2 * a.shape[-1] if bits > 10 else 2  # halves are accumulated in single precision
    bound = size * 2.0**-bits * steps + np.abs(right) * 2.0**-bits + 1e-30
    assert (np.abs(out.astype(kind) - right) <= bound).all()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which library each product was made by."""
    seen: list[str] = []
    by_onednn, by_blas = gemm.onednn_product, gemm._blas_product
    by_us = gemm.vector_product

    def first(*args: Any) -> Any:
        f = by_onednn(*args)
        seen.append("onednn")
        return f

    def second(*args: Any) -> Any:
        f = by_blas(*args)
        seen.append("numpy" if f is None else "blas")
        return f

    def third(*args: Any) -> Any:
        f = by_us(*args)
        seen.extend(["streams"] * (f is not None))
        return f

    monkeypatch.setattr(gemm, "vector_product", third)
    monkeypatch.setattr(gemm, "onednn_product", first)
    monkeypatch.setattr(gemm, "_blas_product", second)
    return seen


layouts = st.sampled_from(["plain", "turned", "apart"])
dtypes = st.sampled_from(["float32", "float64", "complex64", "complex128", "bfloat16", "float16"])


@settings(deadline=None, max_examples=75)
@given(
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.integers(1, 70),
    batch=st.sampled_from([(), (1,), (3,), (2, 3)]),
    lies=st.tuples(layouts, layouts, st.sampled_from(["plain", "apart"])),
    dtype=dtypes,
)
def test_products_of_any_form(m: int, n: int, k: int, batch: Any, lies: Any, dtype: str) -> None:
    a = laid(numbers((*batch, m, k), dtype), lies[0])
    b = laid(numbers((*batch, k, n), dtype, 1), lies[1])
    out = laid(numbers((*batch, m, n), dtype), lies[2])
    there = check(a, b, out)
    if dtype in gemm._LETTERS:  # BLAS reads all of these where they are
        assert there


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(300, 200, 280), (1, 3000, 900), (900, 3000, 1), (1, 40000, 1)])
@pytest.mark.parametrize("lies", ["plain", "turned"])
def test_products_that_threads_share(dtype: str, shape: Any, lies: str) -> None:
    m, k, n = shape
    a, b = laid(numbers((m, k), dtype), lies), laid(numbers((k, n), dtype, 1), lies)
    for count in (1, 2, 3):
        assert check(a, b, np.empty((m, n), dtype), count)
        assert check(a, b, np.empty((n, m), dtype).T, count)


@settings(deadline=None, max_examples=30)
@given(
    shape=st.tuples(*[st.sampled_from([2, 17, 48, 130])] * 3),
    batch=st.sampled_from([(), (3,)]),
    lies=st.tuples(layouts, layouts, st.sampled_from(["plain", "turned", "apart"])),
    dtype=dtypes,
)
def test_all_ways_are_right(shape: Any, batch: Any, lies: Any, dtype: str) -> None:
    m, n, k = shape
    a = laid(numbers((*batch, m, k), dtype), lies[0])
    b = laid(numbers((*batch, k, n), dtype, 1), lies[1])
    out = laid(numbers((*batch, m, n), dtype), lies[2])
    made = {name: make() for name, make in gemm.ways(a, b, out, 2).items()}
    assert len(made) >= (dtype in gemm._LETTERS)
    first = next((f for f in made.values() if f is not None), None)
    assert (first is None) == (product(a, b, out, 2) is None)
    for f in made.values():
        if f is not None:
            checked(f, a, b, out)


@with_onednn
@settings(deadline=None, max_examples=50)
@given(
    m=st.integers(1, 70),
    n=st.integers(2, 200),
    k=st.integers(1, 300),
    lies=st.tuples(layouts, layouts, st.sampled_from(["plain", "apart"])),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    count=st.integers(1, 2),
)
def test_products_that_keep_their_right_matrix(
    m: int, n: int, k: int, lies: Any, dtype: str, count: int
) -> None:
    a, b = laid(numbers((m, k), dtype), lies[0]), laid(numbers((k, n), dtype, 1), lies[1])
    out = laid(np.zeros((m, n), dtype), lies[2])
    made = gemm.any_product(a, b, out, count, "onednn kept", stays=True)
    if not isinstance(made, gemm.Prepackable):  # too little work
        return
    checked(made.function, a, b, out)
    plain, right = out.tobytes(), b.copy()
    found = made.keep(b)
    if found is None:
        return
    function, size = found
    assert size >= b.nbytes
    b[...] = 0  # which it does not look at
    function(a, b, out)
    assert out.tobytes() == plain
    b[...] = right[::-1]
    again = made.keep(b)
    assert again is not None
    checked(again[0], a, b, out)


@with_onednn
def test_most_matrices_can_be_kept() -> None:
    a, out = numbers((16, 528), "float32"), np.zeros((16, 528), np.float32)
    for lies in ("plain", "turned"):
        b = laid(numbers((528, 528), "float32", 1), lies)
        made = gemm.any_product(a, b, out, 2, "", stays=True)
        assert isinstance(made, gemm.Prepackable)
        assert made.keep(b) is not None
        assert not isinstance(gemm.any_product(a, b, out, 2, "", False), gemm.Prepackable)


def test_who_adds_up_in_another_order_is_found_out() -> None:
    a, b, out = numbers((16, 50), "float32"), numbers((50, 30), "float32"), np.zeros((16, 30), "f4")
    left, _, result = stacked(a, b, out)

    def backwards(a: Any, b: Any, out: Any) -> None:
        out[...] = sum(np.outer(a[:, k], b[k]) for k in reversed(range(50)))

    def forwards(a: Any, b: Any, out: Any) -> None:
        out[...] = sum(np.outer(a[:, k], b[k]) for k in range(50))

    assert onednn._alike(forwards, forwards, left, result, b)
    assert not onednn._alike(forwards, backwards, left, result, b)


@with_onednn
def test_the_ways_have_names() -> None:
    a, b, c = numbers((300, 300), "float32"), numbers((300, 300), "float32", 1), np.zeros((4, 4))
    assert list(gemm.ways(a, b, a.copy(), 2)) == ["onednn packed", "onednn", "blas"]
    assert list(gemm.ways(c, c, c.copy(), 2)) == ["blas"]  # it is tiny
    assert not gemm.ways(c[:0], c, c[:0], 2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_batches_that_share_a_matrix_are_rows(dtype: str) -> None:
    b = numbers((30, 50), dtype)
    for shape in ((5, 4, 40, 30), (6, 1, 30), (2, 3, 1, 30)):
        a = numbers(shape, dtype)
        out = np.empty((*shape[:-1], 50), dtype)
        stacks = stacked(a, b, out)
        assert stacks is not None
        assert [s.shape for s in stacks] == [(a.size // 30, 30), (30, 50), (a.size // 30, 50)]
        check(a, b, out)
    apart = laid(
        numbers((5, 4, 40, 30), dtype), "other"
    )  # rows of batches do not follow each other
    assert len(stacked(apart, b, np.empty((5, 4, 40, 50), dtype))[0].shape) > 2  # type: ignore[index]
    check(apart, b, np.empty((5, 4, 40, 50), dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_are_repeated_where_an_operand_lacks_them(dtype: str) -> None:
    stack, one = numbers((5, 4, 40, 30), dtype), numbers((30, 50), dtype)
    out = np.empty((5, 4, 40, 50), dtype)
    assert check(stack, np.broadcast_to(one, (5, 4, 30, 50)), out)
    assert check(stack, one, out)
    assert check(numbers((5, 1, 40, 30), dtype), numbers((4, 30, 50), dtype), out)
    assert check(laid(stack, "other"), one, out)


def test_vectors_may_have_steps() -> None:
    for dtype in ("float32", "float64"):
        a, x = numbers((200, 300), dtype), numbers((600,), dtype)
        assert check(a, x[::2], np.empty(200, dtype))
        assert check(x[:400:2], a, np.empty(300, dtype))
        assert check(x, x, np.empty((), dtype))
        assert check(a, x[:300], np.empty((200, 4), dtype)[:, 1])
        assert check(np.broadcast_to(a[0], (200, 300)), x[:300], np.empty(200, dtype)) is False
        assert check(a[::-1], x[:300], np.empty(200, dtype)) is False
        assert check(a[:, ::2], x[:150], np.empty(200, dtype)) is False


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_streams_of_columns(dtype: str, data: Any) -> None:
    """The bits do not depend on threads; parts, blocks and rests are as NumPy adds them."""
    terms, columns = data.draw(st.integers(1, 300)), data.draw(st.integers(4, 90))
    a, x = numbers((terms, columns + 1), dtype)[:, :-1], numbers((terms,), dtype, 1)
    given = (x, a) if data.draw(st.booleans()) else (a.T, x)
    out, found = np.full((columns, 3), np.nan, dtype)[:, 1], []
    part, block = (
        data.draw(st.sampled_from([100, 5000, 1 << 20])),
        64 * data.draw(st.integers(1, 9)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemv, "PART", part)
        patch.setattr(gemv, "BLOCK", block)
        for count in (0, 2, 3):
            made = gemm.ways(*given, out, count)["streams"]()
            assert isinstance(made, types.BuiltinFunctionType)
            out[...] = np.nan
            made(*given, out)
            found.append(out.copy())
    wanted, size = exact(x, a)
    assert (np.abs(out - wanted) <= 2.0 ** (2 - BITS[dtype]) * terms * size).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@with_onednn
@settings(deadline=None, max_examples=12)
@given(
    m=st.integers(1, 600),
    n=st.integers(1, 90),
    k=st.sampled_from([1, 17, 512, 513, 1100]),
    beside=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    turned=st.booleans(),
)
def test_left_matrices_that_are_turned(
    m: int, n: int, k: int, beside: tuple[int, ...], turned: bool
) -> None:
    """In any number of threads to the same bits; rows may lie in larger ones."""
    a, b = (
        numbers((k, m + beside[0]), "float32")[:, :m].T,
        numbers((k, n + beside[1]), "float32", 1),
    )
    b = numbers((n, k + beside[1]), "float32", 1)[:, :k].T if turned else b[:, :n]
    found = []
    for many in (1, 2, 5):
        out = np.full((m, n + beside[2]), 7, np.float32)
        stacks = stacked(a, b, out[:, :n])
        assert stacks is not None
        steps = (m + beside[0], (k if turned else n) + beside[1])
        turned_gemm.turned_product(*stacks, *steps, turned, many)(a, b, out[:, :n])
        found.append(out)
    exact, size = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    assert (np.abs(found[0][:, :n] - exact) <= 2.0**-22 * k**0.5 * size + 1e-30).all()
    assert (found[0][:, n:] == 7).all()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@with_onednn
def test_when_left_matrices_are_turned() -> None:
    def first(m: int, n: int, k: int, stays: bool = False) -> str:
        a, b = np.ones((k, m), np.float32).T, np.ones((k, n), np.float32)
        return next(iter(gemm.ways(a, b, np.empty((m, n), np.float32), 2, stays)))

    assert first(300, 100, 2048) == first(2048, 100, 300) == "turned"
    for shape in ((300, 100, 300), (300, 20, 2048), (8192, 100, 100)):
        assert first(*shape).startswith("onednn")
    assert first(300, 100, 2048, stays=True) == "onednn kept"


def test_which_rule_a_vector_takes() -> None:
    def first(*shape: int, turned: bool = False) -> str:
        a, x = np.ones(shape, np.float32), np.ones(shape[0 if turned else 1], np.float32)
        out = np.empty(shape[1 if turned else 0], np.float32)
        return next(iter(gemm.ways(*((x, a) if turned else (a, x)), out, 2)))

    rows = ((1000, 1000), (7, 32), (1000, 16), (3, 1000), (8, 1 << 16))
    assert {first(*shape) for shape in rows} == {"blas"}
    assert first(20000, 1000, turned=True) == "streams"
    assert first(1000, 1000, turned=True) == first(1 << 20, 8, turned=True) == "blas"


@with_onednn
@pytest.mark.parametrize(
    ("m", "n", "k", "turned", "first"),
    [
        (300, 6, 200, (False, False), "blas"),
        (300, 10, 200, (False, False), "onednn"),
        (300, 10, 200, (True, True), "blas"),
        (300, 20, 200, (True, False), "onednn packed"),
        (8, 300, 200, (False, False), "blas"),
        (8, 300, 200, (False, True), "onednn packed"),
        (8, 300, 200, (True, True), "onednn"),
        (8, 300, 2000, (False, False), "onednn"),
        (8, 2000, 2000, (False, False), "onednn packed"),
        (40, 300, 200, (True, False), "onednn packed"),
        (40, 300, 200, (True, True), "onednn"),
    ],
)
def test_which_rule_a_narrow_product_takes(
    m: int, n: int, k: int, turned: tuple[bool, bool], first: str
) -> None:
    shapes = (m, k), (k, n)
    a, b = (
        np.ones(s[::-1], np.float32).T if t else np.ones(s, np.float32)
        for s, t in zip(shapes, turned, strict=True)
    )
    known = gemm.ways(a, b, np.empty((m, n), np.float32), 2)
    assert next(iter(known)) == first


def test_what_blas_cannot_read_is_left_to_numpy() -> None:
    a = numbers((40, 80), "float64")[:, ::2]
    assert product(a, numbers((40, 8), "float64"), np.empty((40, 8)), 2) is None
    assert product(a[::-1], numbers((40, 8), "float64"), np.empty((40, 8)), 2) is None
    y = ost.asarray(numbers((40, 80), "float64"))[::-1, ::2] @ ost.asarray(
        numbers((40, 8), "float64")
    )
    right = numbers((40, 80), "float64")[::-1, ::2] @ numbers((40, 8), "float64")
    np.testing.assert_allclose(np.asarray(y), right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(3, 5, 4), (40, 50, 60), (1, 40000, 3), (300, 300, 300)])
def test_infinities_and_nan_go_where_they_go(dtype: str, shape: Any) -> None:
    m, k, n = shape
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    a[0, 1], b[2, 1] = np.inf, np.nan
    if m > 1:
        a[1, 1], a[1, 2] = np.inf, -np.inf
    out = np.full((m, n), np.nan).astype(dtype)
    f = product(a, b, out, 2)
    if f is None:
        pytest.skip("no product of these here")
    f(a, b, out)
    with np.errstate(invalid="ignore"):
        right = a.astype(np.float64) @ b.astype(np.float64)
    limits = ml_dtypes.finfo(dtype).max
    right = np.where(np.abs(right) > float(limits), np.copysign(np.inf, right), right)
    np.testing.assert_allclose(out.astype(np.float64), right, rtol=1e-2)


@pytest.mark.parametrize(
    "shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0,), (0,))]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_empty_ones(shapes: Any, dtype: str) -> None:
    a, b = (np.ones(s, dtype) for s in shapes)
    y = np.asarray(ost.compile(ost.matmul)(ost.asarray(a), ost.asarray(b)))
    right = a.astype(np.float64) @ b.astype(np.float64)
    assert y.shape == right.shape
    assert (y.astype(np.float64) == right).all()


def test_integers_wrap_as_in_numpy() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.int8, np.uint8, np.int32, np.int64):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        a = rng.integers(low, high, (40, 50), dtype)
        b = rng.integers(low, high, (50, 30), dtype)
        y = np.asarray(ost.compile(ost.matmul)(ost.asarray(a), ost.asarray(b)))
        np.testing.assert_array_equal(y, a @ b)


def steps(f: Any) -> list[str]:
    return [n.op for n in f.plan.program.graph.nodes]


@with_onednn
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8")])
def test_products_of_small_integers_are_exact(kinds: tuple[str, str]) -> None:
    if not onednn.can_widen(np.dtype(kinds[0]), np.dtype(kinds[1]), np.dtype("int32")):
        pytest.skip("not on this processor")
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (33, 70, 50), (300, 1000, 200), (1, 500, 3)):
        a, b = (
            rng.choice([np.iinfo(d).min, np.iinfo(d).max, 3], s).astype(d)
            for d, s in zip(kinds, ((m, k), (n, k)), strict=True)
        )
        f = ost.compile(lambda a, b: a.astype(ost.int32) @ b.astype(ost.int32).T)
        y = np.asarray(f(ost.asarray(a), ost.asarray(b)))
        assert "wide_matmul" in steps(f)
        assert "astype" not in steps(f)
        np.testing.assert_array_equal(y, a.astype(np.int32) @ b.astype(np.int32).T)


@with_onednn
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_are_summed_in_single_precision(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if not onednn.can_widen(kind, kind, np.dtype("float32")):
        pytest.skip("not on this processor")
    a, b = numbers((130, 400), kind), numbers((400, 90), kind, 1)
    f = ost.compile(
        lambda a, b: (a.astype(ost.float32) @ b.astype(ost.float32), a.astype(ost.float32))
    )
    y, wide = f(ost.asarray(a), ost.asarray(b))
    assert "wide_matmul" in steps(f)
    right, size = exact(a, b)
    assert (np.abs(np.asarray(y) - right) <= size * 400 * 2.0**-23).all()
    np.testing.assert_array_equal(np.asarray(wide), a.astype(np.float32))


@pytest.mark.cpu_only
def test_casts_that_are_not_for_products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers((13, 40), "float32"), numbers((40, 9), "float32", 1)
    f = ost.compile(lambda a, b: a.astype(ost.float64) @ b.astype(ost.float64))
    y = np.asarray(f(ost.asarray(a), ost.asarray(b)))
    assert "wide_matmul" not in steps(f)
    np.testing.assert_allclose(y, a.astype(float) @ b.astype(float), rtol=1e-12)
    monkeypatch.setattr(
        "ostinato.ops.cpu.cpu_device.can_widen", lambda *_: True
    )  # by the op's kernel
    g = ost.compile(lambda a, b: ost.exp(a.astype(ost.float64) @ b.astype(ost.float64)))
    z = np.asarray(g(ost.asarray(a), ost.asarray(b)))
    assert "wide_matmul" in steps(g)
    np.testing.assert_allclose(z, np.exp(a.astype(float) @ b.astype(float)), rtol=1e-11)


@pytest.mark.parametrize(
    "text",
    ["abc,cbd->ad", "abcd,abed->abce", "abc,bcd->da", "acb,dcb->cad", "abcd,cd->ba", "ab,cab->c"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_einsum_is_a_product_of_matrices(text: str, dtype: str, made: list[str]) -> None:
    sizes = {"a": 6, "b": 7, "c": 8, "d": 9, "e": 10}
    (left, right), out = text.split("->")[0].split(","), text.split("->")[1]
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a = numbers(tuple(sizes[c] for c in left), kind)
    b = numbers(tuple(sizes[c] for c in right), kind, 1)
    f = ost.compile(lambda a, b: ost.einsum(text, a, b) + 0)
    y = np.asarray(f(ost.asarray(a), ost.asarray(b))).astype(np.float64)
    right_one = np.einsum(text, a.astype(np.float64), b.astype(np.float64))
    scale = np.abs(right_one).max()
    np.testing.assert_allclose(y, right_one, atol=scale * 2.0 ** (3 - BITS[dtype]))
    assert made or not ON_CPU
    assert y.shape == tuple(sizes[c] for c in out)


# -- which library -------------------------------------------------------------------------
@with_onednn
@pytest.mark.parametrize(
    ("shapes", "dtype", "library"),
    [
        (((128, 784), (784, 528)), "float32", "onednn"),
        (((8, 8), (8, 8)), "float32", "blas"),
        (((128, 784), (784, 528)), "float64", "blas"),
        (((1000, 1000), (1000,)), "float32", "blas"),
        (((20000,), (20000, 1000)), "float32", "streams"),
        (((30, 40, 50), (30, 50, 60)), "float32", "onednn"),
        (((30, 40), (40, 50)), "complex64", "blas"),
    ],
)
def test_who_multiplies(made: list[str], shapes: Any, dtype: str, library: str) -> None:
    a, b = (ost.asarray(numbers(s, dtype)) for s in shapes)
    ost.compile(lambda a, b: (a @ b, a[0]))(a, b)  # a plan that no other test made
    assert made[-1] == library


@pytest.mark.cpu_only
def test_without_onednn_blas_does_all(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn.settings, "onednn", "off")
    onednn.library.cache_clear()
    try:
        assert onednn.describe_library() == "OSTINATO_ONEDNN is off"
        a, b = numbers((100, 200), "float32"), numbers((200, 300), "float32")
        operands = ost.asarray(a), ost.asarray(b)
        y = np.asarray(ost.compile(lambda a, b: a @ b)(*operands))
        assert made == ["blas"]
        np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)
        y = np.asarray(ost.compile(lambda a, b: (a @ b) * 3)(*operands))
        assert made == ["blas"] * (1 if gemm_tiles.gemm_key(a.dtype) else 2)
        np.testing.assert_allclose(y, (a @ b) * 3, rtol=1e-3, atol=1e-3)
        before = list(made)
        halves = [ost.asarray(x.astype(ml_dtypes.bfloat16)) for x in (a, b)]
        y = np.asarray(ost.compile(lambda a, b: a @ b)(*halves)).astype(np.float32)
        assert made == before  # it has no halves
        assert np.abs(y - a @ b).max() < 1
    finally:
        onednn.library.cache_clear()


def test_a_library_that_is_none_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/nowhere/libdnnl.so.3", threads.blas().library._name):
        monkeypatch.setattr(onednn.settings, "onednn", path)
        onednn.library.cache_clear()
        try:
            assert "pip install onednn-cpu-gomp" in onednn.describe_library()
        finally:
            onednn.library.cache_clear()


# -- threads -------------------------------------------------------------------------------
def pool_of_blas() -> int:
    found = threads.blas()
    assert found is not None
    return found.threads()


def test_blas_has_its_threads_back_and_one_meanwhile() -> None:
    """A product that fails midway, and one in each of two threads, would leave it at one."""
    import threading
    import time

    before = pool_of_blas()
    a = numbers((500, 500), "float64")
    out = np.empty_like(a)
    f = product(a, a, out, 2)
    assert f is not None
    fewest = before

    def work() -> None:
        b = np.empty_like(a)
        while not done.is_set():
            f(a, a, b)

    done = threading.Event()
    others = [threading.Thread(target=work) for _ in range(4)]
    for t in others:
        t.start()
    soon = time.monotonic() + 60
    while fewest != 1 and time.monotonic() < soon:  # a busy machine may run this thread seldom
        fewest = min(fewest, pool_of_blas())
    done.set()
    for t in others:
        t.join()
    assert fewest == 1
    assert pool_of_blas() == before
    assert gemm._state[0] == 0
    with pytest.raises(TypeError):
        f(a, a, "no array")
    assert pool_of_blas() == before
    assert gemm._state[0] == 0


def test_long_sums_have_the_same_bits_for_any_number_of_threads() -> None:
    for m, k, n in ((1, 100_000, 1), (7, 60_000, 5), (40_000, 7, 1)):
        a, b = numbers((m, k), "float64"), numbers((k, n), "float64")
        found = []
        for count in (1, 2, 3):
            out = np.empty((m, n))
            product(a, b, out, count)(a, b, out)  # type: ignore[misc]
            found.append(out.tobytes())
        assert len(set(found)) == 1


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_threads_that_cannot_be(count: Any) -> None:
    with pytest.raises(ArgumentError, match=r"connect.*: got threads=.*needed a whole number of 1"):
        ost.connect(threads=count)


@pytest.mark.parametrize(
    ("workers", "asked", "share"), [(1, 2, 2), (1, 100, 6), (3, None, 2), (2, 3, 1)]
)
def test_workers_share_the_cores(
    workers: int, asked: int | None, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.runtime.worker.most_threads", lambda: 6)
    with ost.connect(workers, threads=asked) as session:
        assert [w.threads for w in session.engine.workers] == [share] * workers


def test_any_workers_has_the_same_bits_for_any_number_of_threads() -> None:
    x = numbers((700, 90), "float32")

    def run(count: int) -> bytes:
        with ost.connect(numerics="any-workers", threads=count):
            a = ost.asarray(x)
            return np.asarray(ost.compile(lambda a: (a.T @ a) @ ost.exp(a[0]))(a)).tobytes()

    assert run(1) == run(2)


@pytest.mark.cpu_only
def test_a_forked_child_multiplies_alone() -> None:
    code = """
import os, signal, numpy as np, ostinato as ost
f = ost.compile(lambda x: (x @ x) * 2)
for dtype in (np.float32, np.float64):
    x = ost.asarray(np.ones((600, 600), dtype))
    f(x)
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        assert float(f(x)[1, 2]) == 1200
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert float(f(x)[1, 2]) == 1200
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_plans_start_no_threads_but_the_pool() -> None:
    """OpenBLAS's threads are made when NumPy is; products of all kinds add the pool's alone."""
    code = """
import os, numpy as np, ostinato as ost
from ostinato.ops.cpu.threads import most_threads
count = lambda: len(os.listdir("/proc/self/task"))
np.ones((300, 300)) @ np.ones((300, 300))
before = count()
for dtype in (np.float32, np.float64):
    x = ost.asarray(np.ones((600, 600), dtype))
    ost.compile(lambda x: ost.exp((x @ x) * 1e-3).sum(1) @ x)(x).numpy()
assert count() - before <= most_threads() - 1, (count(), before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# -- cores ---------------------------------------------------------------------------------
def group(root: Path, line: str, **files: str) -> float:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name.replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")).write_text(
            text
        )
    return threads.quota(str(root))


def test_limits_of_control_groups(tmp_path: Path) -> None:
    inf = float("inf")
    assert group(tmp_path / "a", "0::/\n", cpu_max="150000 100000\n") == 1.5
    assert group(tmp_path / "b", "0::/\n", cpu_max="max 100000\n") == inf
    above = {"x__cpu_max": "400000 100000\n", "x__y__cpu_max": "max 100000\n"}
    assert group(tmp_path / "c", "0::/x/y\n", **above) == 4
    old = {"cpu__z__cpu_cfs_quota_us": "50000\n", "cpu__z__cpu_cfs_period_us": "100000\n"}
    assert group(tmp_path / "d", "3:cpu,cpuacct:/z\n2:memory:/z\n", **old) == 0.5
    free = {"cpu__cpu_cfs_quota_us": "-1\n", "cpu__cpu_cfs_period_us": "100000\n"}
    assert group(tmp_path / "e", "3:cpu,cpuacct:/gone\n", **free) == inf
    assert threads.quota(str(tmp_path / "nowhere")) == inf


def test_cores_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    for text, count in (("3", 3), ("3,2", 3), ("20", 8), ("", 8), ("many", 8), ("0", 8)):
        monkeypatch.setattr(threads, "ASKED", text)
        assert threads.most_threads() == (count if threads.has_pool() else 1)


def test_what_others_ask_for_later_is_for_others() -> None:
    """Dask sets the variable for its own processes, in whoever starts them."""
    said = (
        "import os; from ostinato.ops.cpu import threads; before = threads.most_threads(); "
        "os.environ['OMP_NUM_THREADS'] = '1'; print(before, threads.most_threads())"
    )
    for asked, count in (("2", min(2, threads.cores())), ("1", 1)):
        ran = subprocess.run(
            [sys.executable, "-c", said],
            env={**os.environ, "OMP_NUM_THREADS": asked},
            capture_output=True,
            text=True,
            check=True,
        )
        count = count if threads.has_pool() else 1
        assert ran.stdout.split() == [str(count)] * 2


# -- what people are told ------------------------------------------------------------------
def test_info_says_who_multiplies_and_with_how_many_threads() -> None:
    with ost.connect(2, threads=2):
        found = ost.info()
    assert found["workers"] == 2
    assert found["threads per worker"] == 1
    assert found["cores"] == threads.cores()
    assert found["products"].startswith(onednn.describe_library())
    assert "OpenBLAS" in found["products"]


@pytest.mark.cpu_only
def test_a_plan_with_products_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ost.asarray(numbers((300, 300), "float32"))
    f = ost.compile(lambda a: a @ a)
    f(a)
    if not isinstance(onednn.library(), str):
        assert "oneDNN" not in f.plan.explain()
    monkeypatch.setattr("ostinato.ops.cpu.cpu_device.library", lambda: "no libdnnl: pip install it")
    assert "products by NumPy's library, no libdnnl: pip install it" in f.plan.explain()
    g = ost.compile(lambda a: a + a)
    g(a)
    assert "products by" not in g.plan.explain()
