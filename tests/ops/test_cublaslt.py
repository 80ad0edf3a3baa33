"""Products by cuBLASLt, on a fake of it that reads matrices as the library does: any layout, dtype and epilogue
against NumPy; and the names of the fake against those of the real bindings."""

from __future__ import annotations

import gc
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ostinato.ops.array.bits import bytes_of
from ostinato.ops.core.build import Builder
from ostinato.ops.core.graph import Graph
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.spec import Spec
from ostinato.ops.cpu import fused
from ostinato.ops.gpu import products
from ostinato.ops.gpu.epilogue import epilogue_of, with_epilogue
from ostinato.ops.gpu.libraries import cublaslt
from ostinato.ops.gpu.libraries.cublaslt import (
    BGRAD,
    BIAS,
    DRELU,
    GELU,
    RELU,
    RELU_AUX,
    Library,
)
from ostinato.ops.jit.stacks import stacked

from tests import fake_cublaslt
from tests.fake_cublaslt import FakeLt
from tests.fake_xp import DeviceArray, from_host, to_host, xp

DTYPES = {
    "float32": 1e-5,
    "float64": 1e-12,
    "complex64": 1e-5,
    "complex128": 1e-12,
    "float16": 4e-3,
    "bfloat16": 3e-2,
}
WIDE = {"float16": "float32", "bfloat16": "float32"}
LAYOUTS = ("rows", "columns", "rows of more", "columns of more", "apart", "repeated", "backwards")


def numbers(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    made = rng.uniform(-1, 1, shape)
    if dtype.kind == "c":
        made = made + 1j * rng.uniform(-1, 1, shape)
    return made.astype(dtype)


def on_device(x: Any, how: str) -> DeviceArray:
    """A matrix, or a stack, on the device, where it lies in one of these ways."""
    *batch, m, n = x.shape
    if how == "columns":
        return from_host(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    if how == "columns of more":
        return on_device(x.swapaxes(-1, -2), "rows of more").swapaxes(-1, -2)
    if how == "rows of more":
        more = np.zeros((*batch, m + 2, n + 3), x.dtype)
        more[..., 1 : m + 1, 2 : n + 2] = x
        return from_host(more)[..., 1 : m + 1, 2 : n + 2]
    if how == "apart":
        more = np.zeros((*batch, m, 2 * n), x.dtype)
        more[..., ::2] = x
        return from_host(more)[..., ::2]
    if how == "repeated":  # a row for all
        return xp.broadcast_to(from_host(np.ascontiguousarray(x[..., :1, :])), x.shape)
    if how == "backwards":
        return from_host(np.ascontiguousarray(x[..., ::-1, :]))[..., ::-1, :]
    return from_host(np.ascontiguousarray(x))


def space(size: int = 1 << 16) -> list[DeviceArray]:
    return [xp.empty(size, np.int8)]


SHAPES = st.tuples(*[st.sampled_from([1, 2, 3, 7, 16, 33])] * 3)
BATCHES = st.sampled_from(
    [((), (), ()), ((3,), (3,), (3,)), ((3,), (), (3,)), ((), (4,), (4,)), ((2, 3), (2, 3), (2, 3)),
     ((2, 1), (3,), (2, 3)), ((5, 1), (1, 2), (5, 2)), ((1,), (1,), (1,))]
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    shape=SHAPES, batches=BATCHES, kind=st.sampled_from([*DTYPES, "wide float16", "wide bfloat16"]),
    hows=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    made=st.sampled_from(["rows", "columns", "rows of more", "columns of more", "apart"]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_matrices(shape: Any, batches: Any, kind: str, hows: Any, made: str, seed: int) -> None:
    m, n, k = shape
    rng, lt = np.random.default_rng(seed), FakeLt()
    name = kind.removeprefix("wide ")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    result = np.dtype(np.float32) if kind != name else dtype
    a = on_device(numbers(rng, (*batches[0], m, k), dtype), hows[0])
    b = on_device(numbers(rng, (*batches[1], k, n), dtype), hows[1])
    out = on_device(np.full((*batches[2], m, n), 77, result), made)
    around = to_host(_base(out)).copy()
    run = products.product(Library(lt, xp), xp, [a, b, out], space())
    run(a, b, out)
    wide = WIDE.get(name, name)
    wanted = to_host(a).astype(wide) @ to_host(b).astype(wide)
    tolerance = DTYPES[name] if result == dtype else 1e-5
    np.testing.assert_allclose(to_host(out).astype(wide), wanted, tolerance, tolerance * k)
    _nothing_else(out, around)
    assert lt.counted.products > 0


def _base(x: DeviceArray) -> DeviceArray:
    memory = x._memory
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    made = object.__new__(DeviceArray)
    object.__setattr__(made, "_memory", memory)
    return made


def _nothing_else(out: DeviceArray, before: Any) -> None:
    """What lies between the result's rows is as it was."""
    kept = to_host(out)
    out._memory[...] = 77
    np.testing.assert_array_equal(to_host(_base(out)), before)
    out._memory[...] = kept


@pytest.mark.parametrize(
    "shapes", [((7,), (7, 5)), ((4, 7), (7,)), ((7,), (7,)), ((3, 4, 7), (7,))]
)
def test_vectors(shapes: Any) -> None:
    rng, lt = np.random.default_rng(0), FakeLt()
    x, y = (numbers(rng, s, np.dtype(np.float32)) for s in shapes)
    a, b = from_host(x), from_host(y)
    out = xp.empty((x @ y).shape, np.float32)
    products.product(Library(lt, xp), xp, [a, b, out], space())(a, b, out)
    np.testing.assert_allclose(to_host(out), x @ y, 1e-5, 1e-5)


def test_what_lies_so_that_it_can_be_read_is_not_copied() -> None:
    """Transposes, slices, stacks and what is repeated along them; stacks that share a right matrix are one."""
    a, b = (np.ones((4, 8, 16), np.float32), np.ones((16, 8), np.float32))
    for left, right, count, rows in (
        (a, b, 1, 32),
        (a, np.ones((8, 16), np.float32).T, 1, 32),
        (np.ones((4, 16, 8), np.float32).swapaxes(1, 2), b, 4, 8),
        (np.broadcast_to(a[0], a.shape), np.ones((4, 16, 8), np.float32), 4, 8),
        (a[:, 2:7, 3:9], b[3:9], 4, 5),
    ):
        out = np.empty((*left.shape[:-1], 8), np.float32)
        form = products.product_key(*stacked(left, right, out))  # type: ignore[misc]
        assert form is not None
        assert form.turned
        assert (form.problem.count, form.problem.d.columns) == (count, rows)
        assert len(form.starts) == 1
    assert products.product_key(*stacked(a[0, ::2, ::2], b[::2], out[0, :4])) is None  # type: ignore[misc]
    swapped = a[:, 2:7, 3:9][::-1]
    assert products.product_key(*stacked(swapped, b[3:9], out)) is None  # type: ignore[misc]


def test_by_rows_and_by_columns() -> None:
    """D = A B by rows is D' = B' A' by columns: what the library is told, number by number."""
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 5), np.float32)
    form = products.product_key(*stacked(a, b, np.zeros((2, 5), np.float32)))  # type: ignore[misc]
    assert form is not None
    p = form.problem
    assert [(m.rows, m.columns, m.step, m.turned) for m in (p.a, p.b, p.d)] == [
        (5, 3, 5, False), (3, 2, 3, False), (5, 2, 5, False),
    ]  # fmt: skip
    form = products.product_key(*stacked(a, b, np.zeros((5, 2), np.float32).T))  # type: ignore[misc]
    assert form is not None
    p = form.problem
    assert not form.turned
    assert [(m.rows, m.columns, m.step, m.turned) for m in (p.a, p.b, p.d)] == [
        (3, 2, 3, True), (5, 3, 5, True), (2, 5, 2, False),
    ]  # fmt: skip
    assert not form.biases  # those belong to the columns of ours


@pytest.mark.parametrize(
    "text", ["abc,cbd->ad", "abc,bcd->da", "acb,dcb->cad", "abcd,abed->abce", "ab,cab->c"]
)
def test_einsum(text: str) -> None:
    rng, sizes = np.random.default_rng(1), {"a": 3, "b": 4, "c": 5, "d": 2, "e": 6}
    left, right, out = text.replace("->", ",").split(",")
    x, y = (numbers(rng, tuple(sizes[c] for c in s), np.dtype(np.float64)) for s in (left, right))
    arrays = [from_host(x), from_host(y), xp.empty([sizes[c] for c in out], np.float64)]
    products.einsum(Library(FakeLt(), xp), xp, arrays, space(), text=text)(*arrays)
    np.testing.assert_allclose(to_host(arrays[2]), np.einsum(text, x, y), 1e-12, 1e-12)


def test_addresses_that_are_not_aligned_have_algorithms_of_their_own() -> None:
    lt, rng = FakeLt(), np.random.default_rng(2)
    x, y = numbers(rng, (6, 8), np.dtype(np.float32)), numbers(rng, (8, 4), np.dtype(np.float32))
    a, b, out = from_host(x), from_host(y), xp.empty((6, 4), np.float32)
    flat = from_host(np.concatenate([[0], x.ravel()]).astype(np.float32))
    off = flat[1:].reshape(6, 8)
    run = products.product(Library(lt, xp), xp, [a, b, out], space())
    for left in (a, off, a, off):
        run(left, b, out)
        np.testing.assert_allclose(to_host(out), x @ y, 1e-5)
    assert lt.counted.heuristics == 2


def test_ways_are_the_algorithms_in_their_order() -> None:
    lt = FakeLt()
    a, b, out = (
        xp.ones((8, 8), np.float32),
        xp.ones((8, 8), np.float32),
        xp.empty((8, 8), np.float32),
    )
    for way in ("", *products.WAYS):
        products.product(Library(lt, xp), xp, [a, b, out], space(), way=way)(a, b, out)
    assert lt.counted.algorithms == [1, 1, 2, *[3] * 6]  # it has three


def test_descriptors_go_with_the_function() -> None:
    lt = FakeLt()
    a, b, out = (
        xp.ones((8, 8), np.float32),
        xp.ones((8, 8), np.float32),
        xp.empty((8, 8), np.float32),
    )
    run: Any = products.product(Library(lt, xp), xp, [a, b, out], space())
    run(a, b, out)
    assert lt.counted.alive > 0
    del run
    gc.collect()
    assert lt.counted.alive == 0


def test_what_the_library_refuses_is_done_by_hand_and_said() -> None:
    lt = FakeLt()
    lt.algorithms = 0
    library = Library(lt, xp)
    for name in ("float32", "bfloat16"):
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        a, b, out = (from_host(np.ones((8, 8), dtype)) for _ in range(3))
        products.product(library, xp, [a, b, out], space())(a, b, out)
        np.testing.assert_array_equal(to_host(out).astype(float), np.full((8, 8), 8.0))
    assert [*library.refused] == ["8 x 8 x 8 of float32", "8 x 8 x 8 of bfloat16"]


# -- epilogues -----------------------------------------------------------------------------------
class Body:
    """A graph that begins with a product."""

    def __init__(
        self, shape: tuple[int, int, int], batch: tuple[int, ...], dtype: Any, out: Any
    ) -> None:
        m, n, k = shape
        self.layout, self.made = Layout((1,), (None,)), out
        whole = (*batch, m, n)
        specs = [
            ((*batch, m, k), dtype),
            ((k, n), dtype),
            (whole, out),
            (whole, out),
            ((n,), out),
            ((1, n), out),
        ]
        self.builder = Builder([self.spec(s, d) for s, d in specs])
        self.c, self.other, self.bias, self.row = 2, 3, 4, 5
        name, params = ("matmul", ()) if dtype == out else ("wide_matmul", (("dtype", out),))
        (self.value,) = self.builder.add(name, (0, 1), params, [self.spec(whole, out)])
        self.whole = whole

    def spec(self, shape: Any, dtype: Any) -> Spec:
        return Spec(tuple(shape), np.dtype(dtype), self.layout)

    def number(self, x: float) -> int:
        params = (("dtype", self.made), ("value", x))
        return self.builder.add("constant", (), params, [self.spec((), self.made)])[0]

    def do(self, op: str, *values: int, dtype: Any = None) -> int:
        spec = self.spec(self.whole, dtype or self.made)
        return self.builder.add(op, values, (), [spec])[0]

    def then(self, name: str) -> None:
        y, do, number = self.value, self.do, self.number
        match name:
            case "scale":
                self.value = do("multiply", number(0.5), y)
            case "minus":
                self.value = do("negative", y)
            case "over":
                self.value = do("divide", y, number(4.0))
            case "bias":
                self.value = do("add", y, self.bias)
            case "row":
                self.value = do("add", self.row, y)
            case "from row":
                self.value = do("subtract", self.row, y)
            case "add":
                self.value = do("add", self.c, y)
            case "less":
                self.value = do("subtract", y, self.c)
            case "from":
                self.value = do("subtract", self.other, y)
            case "relu":
                zero = number(0.0)
                self.value = do("where", do("less_equal", y, zero, dtype=bool), zero, y)
            case "maximum":
                self.value = do("maximum", y, number(0.0))
            case "gelu":
                cubed = do("multiply", do("multiply", do("multiply", number(0.044715), y), y), y)
                inner = do("multiply", number(0.7978845608028654), do("add", y, cubed))
                half = do("multiply", number(0.5), y)
                self.value = do("multiply", half, do("add", number(1.0), do("tanh", inner)))
            case "exp":
                self.value = do("exp", y)

    def graph(self, *more: int) -> Graph:
        """With its values numbered as they were made."""
        return Graph(self.builder.inputs, tuple(self.builder.nodes), (self.value, *more))


REFERENCE: dict[str, Any] = {
    "scale": lambda y, c, other, bias, row: 0.5 * y,
    "minus": lambda y, c, other, bias, row: -y,
    "over": lambda y, c, other, bias, row: y / 4,
    "bias": lambda y, c, other, bias, row: y + bias,
    "row": lambda y, c, other, bias, row: row + y,
    "from row": lambda y, c, other, bias, row: row - y,
    "add": lambda y, c, other, bias, row: c + y,
    "less": lambda y, c, other, bias, row: y - c,
    "from": lambda y, c, other, bias, row: other - y,
    "relu": lambda y, c, other, bias, row: np.maximum(y, 0),
    "maximum": lambda y, c, other, bias, row: np.maximum(y, 0),
    "gelu": lambda y, c, other, bias, row: (
        0.5 * y * (1 + np.tanh(0.7978845608028654 * (y + 0.044715 * y**3)))
    ),
    "exp": lambda y, c, other, bias, row: np.exp(y),
}


def reference(steps: Any, y: Any, *given: Any) -> Any:
    for name in steps:
        y = REFERENCE[name](y, *given)
    return y


def elements(body: Graph, arrays: Any) -> Any:
    """The kernel behind a product, by the operations' own kernels."""
    return lambda *xs: fused._kernel(xp, xs[-1], *xs[:-1], body=body)


STEPS = sorted(REFERENCE)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(*[st.sampled_from([1, 2, 7, 16])] * 3), batch=st.sampled_from([(), (3,), (2, 3)]),
    kind=st.sampled_from(["float32", "float64", "bfloat16", "wide bfloat16", "wide float16"]),
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    hows=st.tuples(*[st.sampled_from(["rows", "columns", "rows of more"])] * 3),
    made=st.sampled_from(["rows", "rows of more", "columns"]), over=st.booleans(),
    refused=st.booleans(), off=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_epilogue(
    shape: Any, batch: Any, kind: str, steps: Any, hows: Any, made: str, over: bool,
    refused: bool, off: bool, seed: int,
) -> None:  # fmt: skip
    """What the library does, and what is a kernel behind it, whatever it refuses and however all lies; also
    where the result takes the place of what is added."""
    name = kind.removeprefix("wide ")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    result = np.dtype(np.float32) if kind != name else dtype
    body = Body(shape, batch, dtype, result)
    for step in steps:
        body.then(step)
    m, n, k = shape
    rng, lt = np.random.default_rng(seed), FakeLt()
    if refused:
        lt.refused_epilogues |= {BIAS, RELU | BIAS, GELU}
    arrays = [
        on_device(numbers(rng, (*batch, m, k), dtype), hows[0]),
        on_device(numbers(rng, (k, n), dtype), hows[1]),
        on_device(numbers(rng, (*batch, m, n), result), made if over else hows[2]),
        from_host(numbers(rng, (*batch, m, n), result)),
        from_host(numbers(rng, (n + 1,), result))[off : n + off],
        from_host(numbers(rng, (1, n), result)),
    ]
    given = [to_host(x).astype(WIDE.get(name, name)) for x in arrays]
    out = on_device(np.zeros((*batch, m, n), result), made)
    out = arrays[2] if over and "less" not in steps[1:] and steps.count("add") == 1 else out
    run = with_epilogue(Library(lt, xp), xp, [*arrays, out], space(), "", body.graph(), elements)
    run(*arrays, out)
    wanted = reference(steps, given[0] @ given[1], *given[2:])
    tolerance = 1e-5 if kind != name else DTYPES[name]
    loose = tolerance * 4 ** len(steps) * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(to_host(out).astype(wanted.dtype), wanted, tolerance * 8, loose)


@pytest.mark.parametrize(
    ("steps", "taken", "fast"),
    [
        (["bias"], 1, False),
        (["scale", "minus", "over", "add", "bias"], 5, False),
        (["bias", "add"], 2, False),
        (["less", "row"], 2, False),
        (["from", "row"], 2, False),
        (["from row"], 1, False),
        (["bias", "from"], 1, False),  # minus the bias
        (["bias", "row"], 1, False),  # one only
        (["add", "from"], 1, False),
        (["bias", "scale"], 1, False),  # alpha is the product's alone
        (["exp", "bias"], 0, False),
        (["bias", "relu"], 1, False),  # NaN would be lost
        (["bias", "relu"], 2, True),
        (["bias", "maximum"], 2, True),
        (["gelu"], 1, True),
        (["bias", "gelu"], 1, False),
        (["bias", "gelu"], 2, True),
        (["relu", "bias"], 1, True),
    ],
)
def test_what_the_library_does(steps: list[str], taken: int, fast: bool) -> None:
    body = Body((4, 5, 6), (), np.dtype(np.float32), np.dtype(np.float32))
    values = [body.value]
    for step in steps:
        body.then(step)
        values.append(body.value)
    assert epilogue_of(body.graph(), 0, fast).value == values[taken]


def test_numbers_of_an_epilogue() -> None:
    body = Body((4, 5, 6), (), np.dtype(np.float32), np.dtype(np.float32))
    for step in ("scale", "minus", "from", "bias", "relu"):
        body.then(step)
    e = epilogue_of(body.graph(), 0)
    assert (e.alpha, e.beta, e.c, e.bias, e.act) == (0.5, 1.0, body.other, body.bias, RELU)


def test_what_is_read_elsewhere_too_is_not_hidden() -> None:
    body = Body((4, 5, 6), (), np.dtype(np.float32), np.dtype(np.float32))
    body.then("bias")
    between = body.value
    body.then("gelu")
    assert epilogue_of(body.graph(between), 0).value == between
    assert epilogue_of(body.graph(between + 2), 0).value == between


def test_calls_of_an_epilogue() -> None:
    """One call for all of it; a bias that is not aligned is added as a matrix of equal columns."""
    body = Body((8, 16, 8), (), np.dtype(np.float32), np.dtype(np.float32))
    for step in ("bias", "relu"):
        body.then(step)
    lt = FakeLt()
    arrays = [
        xp.ones(s, np.float32) for s in ((8, 8), (8, 16), (8, 16), (8, 16), (16,), (1, 16), (8, 16))
    ]
    more = from_host(np.arange(17, dtype=np.float32))
    run = with_epilogue(Library(lt, xp), xp, arrays, space(), "", body.graph(), elements)
    for bias in (arrays[4], more[1:]):
        run(*arrays[:4], bias, *arrays[5:])
        np.testing.assert_array_equal(to_host(arrays[-1])[0], 8 + to_host(bias))
    assert lt.counted.epilogues == [BIAS | RELU, RELU]
    assert lt.counted.products == 2


# -- a relu, and its slope -----------------------------------------------------------------------
def forward(shape: tuple[int, int, int], dtype: Any) -> Graph:
    """relu(x @ w + b), and which elements are positive."""
    body = Body(shape, (), dtype, dtype)
    for step in ("bias", "relu"):
        body.then(step)
    before = body.graph().nodes[-1].inputs[2]
    spec = body.spec((shape[0], bytes_of(shape[1])), np.uint8)
    (bits,) = body.builder.add("positive_bits", (before,), (), [spec])
    return body.graph(bits)


def backward(shape: tuple[int, int, int], dtype: Any, sums: bool) -> Graph:
    """g @ v where the bits are, and the sums of its columns."""
    m, n, k = shape
    layout = Layout((1,), (None,))
    g, v, bits, made = (
        Spec(s, np.dtype(d), layout)
        for s, d in (
            ((m, k), dtype),
            ((k, n), dtype),
            ((m, bytes_of(n)), np.uint8),
            ((m, n), dtype),
        )
    )
    builder = Builder([g, v, bits])
    (product,) = builder.add("matmul", (0, 1), (), [made])
    (value,) = builder.add("where_positive", (2, product), (), [made])
    outputs = [value]
    if sums:
        how = (("axes", (0,)), ("dtype", np.dtype(dtype)))
        outputs += builder.add("sum", (value,), how, [Spec((n,), np.dtype(dtype), layout)])
    return Graph(builder.inputs, tuple(builder.nodes), tuple(outputs))


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("shape", [(5, 1, 6), (4, 7, 3), (9, 128, 2), (3, 130, 8), (6, 40, 1)])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_what_a_relu_keeps_is_what_its_slope_reads(name: str, shape: Any, refused: bool) -> None:
    """One call each; node by node to the same bits where the library refuses, or where bits are not aligned."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    (m, n, k), sums, lt = shape, name == "float32", FakeLt()
    none = {RELU_AUX, RELU_AUX | BIAS, DRELU, DRELU | BGRAD}
    lt.refused_epilogues |= none if refused else set()
    rng, library, width = np.random.default_rng(3), Library(lt, xp), bytes_of(n)
    x, w, b = (numbers(rng, s, dtype) for s in ((m, k), (k, n), (n,)))
    w[:, 0] = b[0] = 0  # what is 0 has no slope
    more = xp.empty(m * width + 16, np.uint8)
    for off in (0, 1):
        bits = more[off : off + m * width].reshape((m, width))
        given = [*map(from_host, (x, w))]
        whole = [from_host(numbers(rng, (m, n), dtype)) for _ in range(2)]
        given += [*whole, from_host(b), from_host(b[None])]
        outs = [xp.empty((m, n), dtype), bits]
        run = with_epilogue(
            library, xp, [*given, *outs], space(), "", forward(shape, dtype), elements
        )
        run(*given, *outs)
        before = x.astype("f4") @ w.astype("f4") + b.astype("f4")
        np.testing.assert_allclose(
            to_host(outs[0]).astype("f4"), np.maximum(before, 0), DTYPES[name], 3e-2 * (not sums)
        )
        found = np.unpackbits(to_host(bits), axis=1, bitorder="little")
        np.testing.assert_array_equal(found[:, :n], to_host(outs[0]).astype("f4") > 0)
        assert not found[:, n:].any()
        body, slopes = backward(shape, dtype, sums), numbers(rng, (m, k), dtype)
        back = [from_host(slopes), from_host(w), bits]
        outs = [xp.empty((m, n), dtype), *([xp.empty(n, dtype)] if sums else [])]
        run = with_epilogue(library, xp, [*back, *outs], space(), "", body, elements)
        run(*back, *outs)
        wanted = (slopes.astype("f4") @ w.astype("f4")) * found[:, :n]
        loose = 1e-5 if sums else 3e-2
        np.testing.assert_allclose(to_host(outs[0]).astype("f4"), wanted, DTYPES[name], loose)
        if sums:
            np.testing.assert_allclose(to_host(outs[1]), wanted.sum(0), 1e-5, 1e-4)
    slope = DRELU | BGRAD * sums
    one = [RELU_AUX | BIAS, slope if k > 1 else 1]  # a slope has two terms at least
    assert lt.counted.epilogues == ([1] * 4 if refused else [*one, 1, 1])


def test_what_a_slope_is_of() -> None:
    """Only where bits do not matter, and of what nothing was added to; sums of halves are a kernel's."""
    body = backward((4, 5, 6), np.dtype("f4"), True)
    e = epilogue_of(body, 0)
    assert (e.act, e.masked, e.results, e.members) == (DRELU | BGRAD, 2, (4, 5), (0, 1, 2))
    assert epilogue_of(body, 0, fast=False).members == (0,)
    assert epilogue_of(backward((4, 5, 6), np.dtype("f2"), True), 0).members == (0, 1)
    body = forward((4, 5, 6), np.dtype("f4"))
    e = epilogue_of(body, 0)
    assert (e.act, e.results) == (RELU_AUX, body.outputs)
    assert epilogue_of(body, 0, fast=False).act == 0
    assert epilogue_of(body, 0, fast=False).bits < 0


# -- the real bindings -------------------------------------------------------------------------
def test_names_and_numbers_of_the_real_bindings() -> None:
    """All that is used of the fake, the real one has, with the same names, numbers, sizes and arguments."""
    lt: Any = pytest.importorskip("nvmath.bindings.cublasLt")
    from nvmath import CudaDataType
    from nvmath.bindings import cublas

    for name, fake in vars(fake_cublaslt).items():
        if name.startswith("Matmul") and not inspect.isclass(fake):
            real = getattr(lt, name)
            for member, value in vars(fake).items():
                assert int(getattr(real, member)) == value, (name, member)
    real = lt.MatrixLayoutAttribute
    for member, value in vars(fake_cublaslt.MatrixLayoutAttribute).items():
        assert int(getattr(real, member)) == value, member
    for table, ask in (
        (fake_cublaslt._OF_DESC, lt.get_matmul_desc_attribute_dtype),
        (fake_cublaslt._OF_LAYOUT, lt.get_matrix_layout_attribute_dtype),
        (fake_cublaslt._OF_PREFERENCE, lt.get_matmul_preference_attribute_dtype),
    ):
        for attribute, dtype in table.items():
            assert np.dtype(ask(attribute)) == np.dtype(dtype), attribute
    for name, function in inspect.getmembers(FakeLt, inspect.isfunction):
        if not name.startswith("_"):
            said = getattr(lt, name).__doc__.split("(")[1].split(")")[0]
            many = len([one for one in said.split(",") if one.strip()])
            assert many == len(inspect.signature(function).parameters) - 1, name
    assert (lt.Epilogue.BIAS, lt.Epilogue.RELU, lt.Epilogue.GELU) == (BIAS, RELU, GELU)
    assert lt.Epilogue.RELU_BIAS == RELU | BIAS
    assert lt.Epilogue.GELU_BIAS == GELU | BIAS
    assert lt.Epilogue.RELU_AUX_BIAS == RELU_AUX | BIAS
    assert (lt.Epilogue.RELU_AUX, lt.Epilogue.DRELU) == (RELU_AUX, DRELU)
    assert lt.Epilogue.DRELU_BGRAD == DRELU | BGRAD
    assert lt.ReductionScheme.COMPUTE_TYPE == cublaslt.IN_COMPUTE_TYPE
    kinds = {"float": "R", "bfloat": "R", "complex": "C"}
    for name, number in cublaslt.TYPES.items():
        letters = name.rstrip("0123456789")
        bits = int(name[len(letters) :]) // (2 if letters == "complex" else 1)
        said = f"CUDA_{kinds[letters]}_{bits}{'BF' if letters == 'bfloat' else 'F'}"
        assert int(CudaDataType[said]) == number, name
    for name in ("COMPUTE_32F", "COMPUTE_32F_FAST_TF32", "COMPUTE_64F"):
        assert int(cublas.ComputeType[name]) == getattr(cublaslt, name)
    assert (cublas.Operation.N, cublas.Operation.T) == (cublaslt.NORMAL, cublaslt.TRANSPOSED)
    results = lt.MatmulHeuristicResult(3)
    assert lt.matmul_heuristic_result_dtype == fake_cublaslt.matmul_heuristic_result_dtype
    assert results.ptr > 0
    assert len(results.state) == 3
    assert isinstance(lt.MatmulHeuristicResult(1).state, int)
    assert issubclass(lt.cuBLASLtError, Exception)
