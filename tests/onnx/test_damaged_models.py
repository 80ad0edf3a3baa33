"""A damaged or hostile model is one clear error, in bounded time and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import OstinatoError

from ..thorough import few

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from ostinato.onnx import evaluation  # noqa: E402

from .test_from_onnx import BRANCH, LAYERS, LOOP, floats, model  # noqa: E402


def refused(given: Any, said: str, *inputs: Any) -> None:
    """In an error that says this, within seconds and some memory, as it is read or as it first runs."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OstinatoError, match=said):
        ost.from_onnx(given)(*inputs)
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_000_000  # KiB


@pytest.mark.parametrize("given", [b"", b"\x00" * 100, b"PK\x03\x04 a zip", b"\xff" * 1000])
def test_no_model(given: bytes) -> None:
    refused(given, "no ONNX model|without a graph")


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "No such file")
    refused(tmp_path, "Is a directory")
    refused(3, "got int; needed a path")


@pytest.mark.parametrize("seed", range(few(40)))
def test_damaged_bytes(seed: int) -> None:
    """A model with some bytes changed, or cut, still works, or is refused."""
    rng = np.random.default_rng(seed)
    weights = {"w": floats(8, 4), "b": floats(8), "v": floats(8, 2)}
    whole = [
        (model(LAYERS, weights=weights), (floats(3, 4),)),
        (model(BRANCH), (np.array(True), floats(3))),
        (model(LOOP.replace("LIMIT", "5.0")), (np.array(2), np.array(True), floats(3))),
    ]
    made, inputs = whole[seed % 3]
    data = bytearray(made.SerializeToString())
    for _ in range(10):
        bad = data.copy()
        for at in rng.integers(len(bad), size=rng.integers(1, 4)):
            bad[at] = rng.integers(256)
        bad = bad[: rng.integers(len(bad) // 2, len(bad) + 1)] if rng.random() < 0.3 else bad
        with contextlib.suppress(OstinatoError):
            ost.from_onnx(bytes(bad))(*inputs)


def one_node(op: str, inputs: dict[str, Any], **attributes: Any) -> Any:
    """A model of one node, all of whose inputs are in it."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], **attributes)],
        "g",
        [],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in inputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize(
    "given",
    [
        one_node("ConstantOfShape", {"s": np.array([1 << 40])}),
        one_node("ConstantOfShape", {"s": np.array([1 << 31, 1 << 31, 1 << 31])}),
        one_node("ConstantOfShape", {"s": np.array([-3])}),
        one_node("Expand", {"x": np.zeros(1, "float32"), "s": np.array([1 << 30, 1 << 30])}),
        one_node("Tile", {"x": np.zeros(9, "float32"), "r": np.array([1 << 60])}),
        one_node("Range", {"a": np.array(0), "b": np.array(1 << 60), "c": np.array(1)}),
        one_node("Pad", {"x": np.zeros(9, "float32"), "p": np.array([0, 1 << 60])}),
        one_node("OneHot", {"i": np.zeros(9, "int64"), "d": np.array(1 << 60), "v": np.zeros(2)}),
        one_node("Reshape", {"x": np.zeros(9, "float32"), "s": np.array([-1, -1])}),
        one_node("Transpose", {"x": np.zeros((2, 2), "float32")}, perm=[0, 7]),
        one_node("Gather", {"x": np.zeros(9, "float32"), "i": np.array([99])}),
        one_node("Split", {"x": np.zeros(9, "float32"), "s": np.array([-1, 10])}),
        one_node("Resize", {"x": np.zeros((1, 1, 2), "f4"), "": [], "s": np.full(3, 1e30, "f4")}),
        one_node(
            "Conv", {"x": np.zeros((1, 1, 4), "f4"), "w": np.zeros((1, 1, 2), "f4")}, strides=[0]
        ),
        one_node("Conv", {"x": np.zeros((1, 1, 4), "f4"), "w": np.zeros((1, 1, 2), "f4")}, group=0),
    ],
    ids=lambda given: given.graph.node[0].op_type,
)
def test_nodes_that_ask_for_too_much(given: Any) -> None:
    refused(given, r"\w")


def test_doubling() -> None:
    """Each node makes twice what it is given, sixty times."""
    for op, how in (("Concat", {"axis": 0}), ("Add", {})):
        nodes = [helper.make_node(op, [f"x{k}", f"x{k}"], [f"x{k + 1}"], **how) for k in range(60)]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x0", 1, [64])],
            [helper.make_tensor_value_info("x60", 1, None)],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        if op == "Add":
            assert float(ost.from_onnx(made)(np.ones(64, "float32"))[0]) == 2.0**60
        else:
            refused(made, r"\w", np.ones(64, "float32"))


def chain(count: int, width: int) -> Any:
    """Functions of which each calls the next one so many times."""
    return model(
        "f (float[N] x) => (float[N] y) { y = own.f0(x) }\n"
        + "".join(
            f'<domain: "own", opset_import: ["": 17, "own": 1]> f{k} (v) => (w) {{'
            + "".join(
                f"{'w' if j == width - 1 else f'a{j}'} = own.f{k + 1}({f'a{j - 1}' if j else 'v'})\n"
                for j in range(width)
            )
            + "}\n"
            for k in range(count)
        )
        + f'<domain: "own", opset_import: ["": 17]> f{count} (v) => (w) {{ w = Relu(v) }}'
    )


def test_functions_in_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(ost.from_onnx(chain(8, 2))(np.ones(2, "float32")), [1, 1])
    few_nodes = dataclasses.replace(evaluation.LIMITS, nodes=5_000)
    monkeypatch.setattr(evaluation, "LIMITS", few_nodes)
    refused(chain(25, 3), "nodes to evaluate", np.ones(2, "float32"))
    refused(chain(60, 1), "functions that call each other", np.ones(2, "float32"))
    own = """f (float[N] x) => (float[N] y) { y = own.g(x) }
    <domain: "own", opset_import: ["": 17, "own": 1]> g (v) => (w) { w = own.g(v) }"""
    refused(model(own), "functions that call each other", np.ones(2, "float32"))


def nested(depth: int) -> Any:
    """The bytes of a model of so many graphs within each other, put together from inside out."""

    def field(number: int, data: bytes) -> bytes:
        size, head = len(data), b""
        while size > 127:
            head, size = head + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + head + bytes([size]) + data

    value = helper.make_tensor_value_info("y", 1, None).SerializeToString()
    node = helper.make_node("Relu", ["x"], ["y"]).SerializeToString()
    for _ in range(depth):
        graph = field(1, node) + field(2, b"g") + field(12, value)
        sides = [
            field(5, field(1, name) + b"\xa0\x01\x05" + field(6, graph))
            for name in ([b"then_branch", b"else_branch"] if depth < 4 else [b"then_branch"])
        ]
        node = field(1, b"yes") + field(2, b"y") + field(4, b"If") + b"".join(sides)
    x = helper.make_tensor_value_info("x", 1, [2]).SerializeToString()
    yes = numpy_helper.from_array(np.array(True), "yes").SerializeToString()
    graph = field(1, node) + field(2, b"g") + field(5, yes) + field(11, x) + field(12, value)
    opset = helper.make_opsetid("", 17).SerializeToString()
    return b"\x08\x08" + field(7, graph) + field(8, opset)


@pytest.mark.parametrize("depth", [30, 65, 90, 300])
def test_graphs_in_graphs(depth: int) -> None:
    np.testing.assert_array_equal(ost.from_onnx(nested(3))(-np.ones(2, "float32")), [0, 0])
    said = r"graphs within each other|cannot be read|no ONNX model|else_branch"
    refused(nested(depth), said, np.ones(2, "float32"))


def test_cycles() -> None:
    refused(
        model("f (float[N] x) => (float[N] y) { a = Add(x, b)\n b = Relu(a)\n y = Relu(b) }"),
        "reads 'b' before",
    )
    refused(model("f (float[N] x) => (float[N] y) { a = Relu(x) }"), "output 'y' that no node")


@pytest.mark.parametrize("dims", [[1 << 40], [-1], [3, 3], [1 << 62, 1 << 62]])
def test_tensors_that_are_not_there(dims: list[int]) -> None:
    made = model("f (float[N] x) => (float[N] y) { y = Add(x, w) }")
    made.graph.initializer.append(
        TensorProto(name="w", data_type=1, dims=dims, raw_data=b"\x00" * 8)
    )
    refused(made, "a tensor 'w' of dims", np.ones(2, "float32"))


@pytest.mark.parametrize(
    ("location", "offset", "length", "said"),
    [
        ("../outside.bin", 0, 8, "in the model's own folder"),
        ("/etc/passwd", 0, 8, "in the model's own folder"),
        ("link.bin", 0, 8, "in the model's own folder"),
        ("inside.bin", 4, 8, "as many bytes as its dims say"),
        ("inside.bin", 0, 4, "as many bytes as its dims say"),
        ("inside.bin", -8, 8, "as many bytes as its dims say"),
        ("none.bin", 0, 8, "as many bytes as its dims say"),
        ("", 0, 8, "in the model's own folder"),
    ],
)
def test_data_beside_the_file(
    tmp_path: Path, location: str, offset: int, length: int, said: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\x00" * 8)
    (folder / "inside.bin").write_bytes(b"\x00" * 8)
    os.symlink(tmp_path / "outside.bin", folder / "link.bin")
    made = model("f (float[N] x) => (float[N] y) { y = Add(x, w) }")
    w = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        w.external_data.add(key=key, value=str(value))
    made.graph.initializer.append(w)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    refused(folder / "m.onnx", said)
    refused(made, "a path, beside which its data lie")


def test_opsets() -> None:
    refused(model("f (float[N] x) => (float[N] y) { y = Relu(x) }", opset=99), "opset 99")
    refused(model("f (float[N] x, float[N] z) => (float[N] y) { y = Relu(x, z) }"), "with 2 inputs")
