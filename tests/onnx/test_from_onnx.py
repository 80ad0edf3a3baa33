"""Models as functions: inputs, parameters, shapes that are folded, control flow, opsets, workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import ArgumentError, DTypeError, UnknownOpError

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper, parser  # noqa: E402

RNG = np.random.default_rng(5)


def model(text: str, opset: int = 17, weights: dict[str, Any] | None = None) -> Any:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> {text}')
    for name, value in (weights or {}).items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return made


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def ops(function: Any, *specs: Any) -> list[str]:
    return [n.op for n in ost.plan(function, *specs).key.graph.nodes]


LAYERS = """f (float[N,4] x) => (float[N,2] y) {
    h = Gemm<transB = 1>(x, w, b)
    r = Relu(h)
    y = MatMul(r, v)
}"""


def test_a_model_is_trained() -> None:
    weights = {"w": floats(8, 4), "b": floats(8), "v": floats(8, 2)}
    f = ost.from_onnx(model(LAYERS, weights=weights))
    assert f.parameters.keys() == weights.keys()
    assert f.inputs == {"x": (("N", 4), np.dtype("float32"))}
    x, target = floats(64, 4), floats(64, 2) * 0.1

    def loss(parameters: Any) -> Any:
        return ((f.apply(parameters, x) - target) ** 2).mean()

    hidden = np.maximum(x @ weights["w"].T + weights["b"], 0)
    np.testing.assert_allclose(f(x), hidden @ weights["v"], rtol=2e-5, atol=2e-5)
    slopes = ost.grad(loss)(f.parameters)
    error = hidden @ weights["v"] - target
    np.testing.assert_allclose(slopes["v"], hidden.T @ error / 64, rtol=1e-4, atol=1e-5)
    step = ost.compile(lambda p: ost.tree_map(lambda w, g: w - 0.05 * g, p, ost.grad(loss)(p)))
    parameters, before = f.parameters, float(loss(f.parameters))
    for _ in range(20):
        parameters = step(parameters)
    assert float(loss(parameters)) < 0.2 * before


def test_parameters_are_all_there() -> None:
    f = ost.from_onnx(model(LAYERS, weights={"w": floats(8, 4), "b": floats(8), "v": floats(8, 2)}))
    with pytest.raises(ArgumentError, match="differ from the model's in b"):
        f.apply({"w": f.parameters["w"], "v": f.parameters["v"]}, floats(3, 4))


def test_shapes_are_folded() -> None:
    """A chain of shapes leaves nothing in the plan, and a number that decides one is no parameter."""
    text = """f (float[N,C,H] x) => (float[M,K] y) {
        s = Shape(x)
        zero = Constant<value = int64[1] {0}>()
        n = Gather<axis = 0>(s, zero)
        rest = Constant<value = int64[1] {-1}>()
        to = Concat<axis = 0>(n, rest)
        flat = Reshape(x, to)
        many = Cast<to = 7>(factors)
        y = Tile(flat, many)
    }"""
    f = ost.from_onnx(model(text, weights={"factors": np.array([1, 2], "float32")}))
    assert f.parameters == {}
    x = floats(3, 2, 4)
    np.testing.assert_array_equal(f(x), np.tile(x.reshape(3, 8), (1, 2)))
    made = ops(lambda x: f.apply({}, x), ost.spec((3, 2, 4)))
    assert set(made) <= {"reshape", "expand_dims", "broadcast_to", "concat"}


def test_inputs_that_decide_shapes_are_values() -> None:
    f = ost.from_onnx(model("f (float[N] x, int64[K] to) => (float[A,B] y) { y = Reshape(x, to) }"))
    x = floats(12)
    for shape in ([3, 4], [2, -1], [3, 4]):
        np.testing.assert_array_equal(f(x, to=np.array(shape)), x.reshape(shape))
    assert len(f._functions) == 2


def test_inputs_are_checked() -> None:
    f = ost.from_onnx(model("f (float[2,N] x, float[N] y) => (float[2,N] z) { z = Add(x, y) }"))
    x, y = floats(2, 3), floats(3)
    np.testing.assert_array_equal(f(y=y, x=x), x + y)
    np.testing.assert_array_equal(f([[1.0], [2.0]], [3.0]), [[4], [5]])
    for args, kind, said in (
        ((x,), ArgumentError, "needed x, y"),
        ((x, y, y), ArgumentError, "needed x, y"),
        ((x.astype("float64"), y), DTypeError, "float64 for the input 'x'; needed float32"),
        ((x[:1], y), ArgumentError, r"shape \(1, 3\) for the input 'x'"),
    ):
        with pytest.raises(kind, match=said):
            f(*args)
    with pytest.raises(ArgumentError, match="of which w is none of the model's"):
        f(x, y, w=y)


def test_unknown_operators_are_named_at_once() -> None:
    text = """f (float[N] x) => (float[N] y) {
        a = own.Strange(x)
        b = own.Strange(a)
        c = Nowhere(b)
        y = Relu(c)
    }"""
    with pytest.raises(UnknownOpError, match=r"2 operators .*own.Strange \(2\), Nowhere \(1\)"):
        ost.from_onnx(model(text))


def test_functions_of_a_model() -> None:
    """With attributes that the caller gives, or that have defaults."""
    text = """f (float[N] x) => (float[N] y) {
        a = own.leaky<slope = 0.5>(x)
        y = own.leaky(a)
    }
    <domain: "own", opset_import: ["": 17]>
    leaky <slope: float = 0.25> (v) => (w) { w = LeakyRelu<alpha: float = @slope>(v) }"""
    f = ost.from_onnx(model(text))
    np.testing.assert_array_equal(f(np.array([-8, 2], "float32")), [-1, 2])
    bare = text.replace("slope: float = 0.25", "slope")  # then the operator's own, 0.01
    f = ost.from_onnx(model(bare))
    np.testing.assert_allclose(f(np.array([-8, 2], "float32")), [-0.04, 2], rtol=1e-6)


# -- control flow ----------------------------------------------------------------------------
BRANCH = """f (bool c, float[N] x) => (float[N] y) {
    y = If (c) <
        then_branch = g () => (float[N] a) { a = Exp(x) },
        else_branch = h () => (float[N] b) { b = Neg(x) }
    >
}"""


def test_a_condition_that_is_data_is_one_node() -> None:
    f, x = ost.from_onnx(model(BRANCH)), floats(3)
    np.testing.assert_allclose(f(np.array(True), x), np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(f(np.array(False), x), -x)
    made = ops(lambda c, x: f.apply({}, c, x), ost.spec((), "bool"), ost.spec(3))
    assert set(made) <= {"branch", "copy"}


LOOP = """f (int64 n, bool c, float[K] x) => (float[K] y) {
    y = Loop (n, c, x) <
        body = g (int64 i, bool before, float[K] v) => (bool after, float[K] w) {
            w = Add(v, v)
            top = ReduceMax<keepdims = 0>(w)
            limit = Constant<value = float {LIMIT}>()
            after = Less(top, limit)
        }
    >
}"""


@pytest.mark.parametrize(("trips", "limit", "end"), [(3, 1e9, 8), (50, 100.0, 128), (0, 1.0, 1)])
def test_a_loop_runs_on_the_workers(trips: int, limit: float, end: int) -> None:
    f = ost.from_onnx(model(LOOP.replace("LIMIT", str(limit))))
    y = f(np.array(trips), np.array(True), np.ones(3, "float32"))
    np.testing.assert_array_equal(y, np.full(3, end))


def test_loops_by_kind() -> None:
    """One that only ends is a `while`; one of known length that gives rows a scan; else turn by turn."""
    ends = ost.from_onnx(model(LOOP.replace("LIMIT", "100.0")))
    made = ops(lambda c, x: ends.apply({}, np.array(50), c, x), ost.spec((), "bool"), ost.spec(3))
    assert "while" in made
    text = """f (float[K] x) => (float[K] y, float[M,K] rows) {
        n = Constant<value = int64 {4}>()
        c = Constant<value = bool {1}>()
        y, rows = Loop (n, c, x) <
            body = g (int64 i, bool before, float[K] v) => (bool after, float[K] w, float[K] r) {
                after = Identity(before)
                step = Cast<to = 1>(i)
                w = Add(v, step)
                r = Mul(w, w)
            }
        >
    }"""
    f = ost.from_onnx(model(text))
    assert "loop" in ops(lambda x: f.apply({}, x), ost.spec(2))
    y, rows = f(np.zeros(2, "float32"))
    np.testing.assert_array_equal(y, [6, 6])
    np.testing.assert_array_equal(rows[:, 0], [0, 1, 9, 36])
    growing = """f (float[K] x) => (float[M] y) {
        n = Constant<value = int64 {3}>()
        y = Loop (n, , x) <
            body = g (int64 i, bool before, float[A] v) => (bool after, float[B] w) {
                after = Identity(before)
                w = Concat<axis = 0>(v, v)
            }
        >
    }"""
    assert ost.from_onnx(model(growing))(np.ones(2, "float32")).shape == (16,)


def test_what_values_decide_runs_op_by_op() -> None:
    f = ost.from_onnx(model("f (float[N] x) => (int64[1,M] y) { y = NonZero(x) }"))
    np.testing.assert_array_equal(f(np.array([0, 3, 0, 1], "float32")), [[1, 3]])
    np.testing.assert_array_equal(f(np.array([2, 0], "float32")), [[0]])


# -- opsets, files, workers ------------------------------------------------------------------
@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21])
def test_axes_are_attributes_and_then_inputs(opset: int) -> None:
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["a"], axes=[0])
        if opset < 13
        else helper.make_node("Unsqueeze", ["x", "first"], ["a"]),
        helper.make_node("ReduceMean", ["a"], ["b"], axes=[1], keepdims=0)
        if opset < 18
        else helper.make_node("ReduceMean", ["a", "second"], ["b"], keepdims=0),
        helper.make_node("Softmax", ["b"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", 1, [3, 4])],
        [tensor("y", 1, None)],
        [
            numpy_helper.from_array(np.array([k]), name)
            for k, name in enumerate(("first", "second"))
            if opset >= 13 + 5 * k
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = floats(3, 4)
    want = np.exp(x.mean(0)) / np.exp(x.mean(0)).sum()
    np.testing.assert_allclose(ost.from_onnx(made)(x)[0], want, rtol=1e-5)


def test_weights_beside_the_file(tmp_path: Path) -> None:
    weights = {"w": floats(8, 4), "b": floats(8), "v": floats(8, 2)}
    made, path = model(LAYERS, weights=weights), tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert path.stat().st_size < 1000
    f, x = ost.from_onnx(path), floats(5, 4)
    np.testing.assert_array_equal(f.parameters["v"], weights["v"])
    np.testing.assert_array_equal(f(x), ost.from_onnx(model(LAYERS, weights=weights))(x))


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_share_a_network(workers: int) -> None:
    text = """f (float[N,3,H,W] x) => (float[N,5] y) {
        a = Conv<pads = [1, 1, 1, 1], strides = [2, 1]>(x, w, b)
        n = BatchNormalization(a, scale, b, b, scale)
        r = Relu(n)
        p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(r)
        m = GlobalAveragePool(p)
        y = Flatten(m)
    }"""
    weights = {"w": floats(5, 3, 3, 3), "b": floats(5), "scale": np.abs(floats(5)) + 0.5}
    x = floats(7, 3, 9, 8)
    with ost.connect():
        alone = np.asarray(ost.from_onnx(model(text, weights=weights))(x))
    with ost.connect(workers=workers):
        f = ost.from_onnx(model(text, weights=weights))
        shared = f(ost.asarray(x, split=0))
        np.testing.assert_allclose(shared, alone, rtol=1e-4, atol=1e-5)
