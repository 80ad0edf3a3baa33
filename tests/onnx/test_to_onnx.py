"""Functions as ONNX models: checked by ONNX, run by another library, and read back."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.apply import apply

import ostinato as ost
from ostinato import nn
from ostinato.errors import ArgumentError, UnknownOpError

from ..thorough import few

onnx = pytest.importorskip("onnx")

S = ost.spec
I64 = "int64"
X = S((3, 4))


def run(model: Any, inputs: list[Any]) -> list[Any] | None:
    """By onnxruntime, or by ONNX's own evaluator, which does not know groups and directions everywhere."""
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        runner = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [i.name for i in runner.get_inputs()]
        return list(runner.run(None, dict(zip(names, inputs, strict=True))))
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            runner = ReferenceEvaluator(model)
            return list(runner.run(None, dict(zip(runner.input_names, inputs, strict=True))))
    except (ValueError, RuntimeError):
        return None


def both_ways(function: Callable[..., Any], *specs: Any, seed: int = 0) -> Any:
    """The model of a function, which gives what the function gives, and as a function again, too."""
    rng = np.random.default_rng(seed)
    model = ost.to_onnx(function, *specs)
    onnx.checker.check_model(model, full_check=True)
    inputs = [
        rng.standard_normal(s.shape).astype(s.dtype)
        if s.dtype.kind == "f"
        else rng.integers(0, 2, s.shape).astype(s.dtype)
        for s in specs
    ]
    wanted, again = function(*map(ost.asarray, inputs)), ost.from_onnx(model)(*inputs)
    wanted, again = (x if isinstance(x, tuple) else (x,) for x in (wanted, again))
    for made in (again, run(model, inputs) or again):
        for x, y in zip(wanted, made, strict=True):
            assert np.asarray(x).dtype == y.dtype
            np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5)
    return model


def nodes(model: Any) -> list[str]:
    return [n.op_type for n in model.graph.node]


RNG = np.random.default_rng(1)
W, B = (RNG.standard_normal(s).astype("float32") for s in ((6, 3, 3, 3), (6,)))
GROUPED = RNG.standard_normal((6, 2, 3, 3)).astype("float32")


def network(x: Any) -> Any:
    h = nn.relu(nn.conv(x, W, B, padding=1, stride=2))
    return nn.max_pool(nn.relu(nn.conv(h, GROUPED, groups=3, dilation=2, padding=2)), 2)


def test_a_network_stays_one() -> None:
    """Channels come first from end to end, and weights are in ONNX's order."""
    model = both_ways(network, S((2, 3, 16, 16)))
    assert nodes(model) == ["Conv", "Add", "Relu", "Conv", "Relu", "MaxPool", "Identity"]
    assert sorted(tuple(t.dims) for t in model.graph.initializer) == [
        (6, 1, 1),
        (6, 2, 3, 3),
        (6, 3, 3, 3),
    ]


def test_weights_are_named_as_parameters() -> None:
    parameters = {"w": W[:, :, 0, 0], "b": [B[:3]]}
    model = ost.to_onnx(lambda x, p: ost.tanh(x @ p["w"] + p["b"][0]), S((2, 6)), parameters)
    assert {t.name for t in model.graph.initializer} == {"p['w']", "p['b'][0]"}
    assert [i.name for i in model.graph.input] == ["x"]
    back = ost.from_onnx(model)
    np.testing.assert_array_equal(back.parameters["p['b'][0]"], B[:3])


CASES: dict[str, tuple[Any, ...]] = {
    "activations": (
        lambda x: (nn.gelu(x), nn.silu(x), nn.elu(x), nn.softmax(x), nn.log_softmax(x)),
        X,
    ),
    "attention": (lambda q, k: nn.attention(q, k, k, is_causal=True), *[S((2, 3, 5, 4))] * 2),
    "batch norm": (lambda x, m: nn.batch_norm(x, m, m * m, m, m), S((2, 3, 4, 4)), S(3)),
    "call": (lambda x: ost.checkpoint(lambda v: ost.sin(v) * x)(x), X),
    "casts": (lambda x: (x.astype("int32") // 3, ost.arange(4) + x, (x > 0) + 1), X),
    "channels last": (
        lambda x, w: nn.relu(nn.conv(x, w, layout="NHWC")),
        S((2, 9, 8, 3)),
        S((3, 3, 3, 5)),
    ),
    "cond": (lambda x: ost.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2, x), X),
    "elements": (
        lambda x, y: (x % y, x // y, ost.exp2(x), ost.log1p(abs(x)), ost.expm1(x), ost.trunc(x)),
        X,
        X,
    ),
    "einsum": (
        lambda x, y: (ost.einsum("bij,bkj->bik", x, y), ost.einsum("bij,j->bi", x, y[0, 0])),
        *[S((2, 3, 4))] * 2,
    ),
    "gradient of a loss": (
        ost.grad(lambda w, x: nn.cross_entropy(x @ w, np.array([0, 1, 2]))),
        S((4, 5)),
        X,
    ),
    "images enlarged": (
        lambda x: (nn.upsample(x, 2), nn.upsample(x, size=(7, 9), mode="linear")),
        S((2, 3, 5, 4)),
    ),
    "more elements": (
        lambda x, y: (ost.logaddexp(x, y), ost.hypot(x, y), ost.cbrt(x), ost.clip(x, -0.5, 0.5)),
        X,
        X,
    ),
    "norms": (lambda x, s: (nn.layer_norm(x, s, s), nn.rms_norm(x), x.std(0)), X, S(4)),
    "picks": (
        lambda x, i: (x[i], x[:, i], ost.take_along_axis(x, i[:, None], 1), *ost.topk(x, 2)),
        X,
        S(3, I64),
    ),
    "puts": (
        lambda x, i: (
            x.at[0].set(1.0),
            x.at[::2, 1:].add(2.0),
            x.at[i].add(3.0),
            x.at[:, i].add(x[:, :3]),
        ),
        X,
        S(3, I64),
    ),
    "reductions": (
        lambda x: (x.sum(), x.max(1), x.prod(0), ost.argmin(x), ost.argmax(x, 0), x.var(1)),
        X,
    ),
    "repeat": (lambda x: ost.repeat(4, lambda v: v * 0.5 + x, x), X),
    "rows": (
        lambda x: (x[::-1, 1:], x[:, None].T, ost.tile(x, (2, 1)), ost.roll(x, 1, 0), x.ravel()),
        X,
    ),
    "same results": (lambda x: (x, x, 3.0), X),
    "scan": (lambda x: ost.scan(lambda c, a: (c + a, c * a * x[0]), x[0], x), X),
    "scan back": (lambda x: ost.scan(lambda c, a: (c * 0.5 + a, c), x[0], x, reverse=True), X),
    "sorts": (lambda x: (ost.sort(x, 0), ost.argsort(x, 1), ost.cumsum(x, 1)), X),
    "tests": (
        lambda x, y: (
            ost.isfinite(x / (y > 0)),
            x != y,
            (x > 0) & ~(y > 0),
            ost.any(x > 0, 1),
            ost.all(x > 0),
            ost.count_nonzero(x > 0),
        ),
        X,
        X,
    ),
    "while": (
        lambda x: ost.while_loop(
            lambda s: s[1].max() < 10, lambda s: (s[0] + 1, s[1] * 2 + abs(x)), (0, x)
        ),
        X,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    both_ways(*CASES[name])


@pytest.mark.parametrize("seed", range(few(48)))
def test_windows(seed: int) -> None:
    """Convolutions, transposed ones and pools of 1 to 3 axes, of any padding, strides and groups."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 4))
    groups, each, made = (int(n) for n in rng.integers(1, 4, 3))
    size, stride, step = (tuple(map(int, rng.integers(1, 4, k))) for _ in range(3))
    space = tuple(int(n) for n in rng.integers(7, 11, k))
    padding = [tuple(map(int, rng.integers(0, 3, 2))) for _ in range(k)]
    how: dict[str, Any] = {"stride": stride, "dilation": step, "padding": padding}
    x = S((2, groups * each, *space))
    match seed % 3:
        case 0:
            both_ways(
                lambda x, w: nn.conv(x, w, groups=groups, **how),
                x,
                S((groups * made, each, *size)),
                seed=seed,
            )
        case 1:
            more = [int(rng.integers(0, max(s, d))) for s, d in zip(stride, step, strict=True)]
            more = [min(m, s - 1) for m, s in zip(more, stride, strict=True)]
            how["padding"] = [(b, a if rng.integers(2) else 0) for b, a in padding]
            both_ways(
                lambda x, w: nn.conv_transpose(x, w, groups=groups, output_padding=more, **how),
                x,
                S((groups * each, made, *size)),
                seed=seed,
            )
        case 2:
            how["padding"] = [(int(rng.integers(m)), int(rng.integers(m))) for m in size]
            how["ceil_mode"] = bool(rng.integers(2))
            counted = bool(rng.integers(2))
            del how["dilation"]
            both_ways(
                lambda x: (
                    nn.max_pool(x, size, **how),
                    nn.avg_pool(x, size, count_include_pad=counted, **how),
                ),
                x,
                seed=seed,
            )


@pytest.mark.parametrize("wrt", [0, 1])
def test_gradients_of_convolutions(wrt: int) -> None:
    """They are convolutions in other windows."""

    def loss(*xs: Any) -> Any:
        x, w = xs if wrt == 0 else xs[::-1]
        return (nn.conv(x, w, stride=2, padding=1) ** 2).sum()

    specs = [S((2, 3, 8, 9)), S((4, 3, 3, 3))]
    model = both_ways(ost.grad(loss), *(specs if wrt == 0 else specs[::-1]))
    assert nodes(model).count("ConvTranspose") + nodes(model).count("Conv") == 2


def test_windows_that_leave_places_out() -> None:
    """Before the first one, and more behind the last one than a stride."""
    how = {"strides": (2,), "dilation": (1,), "offsets": (1,), "every": (1,), "extents": (3,)}
    both_ways(lambda x, w: apply("conv", x, w, **how), S((1, 12, 1, 2)), S((3, 2, 1, 4)))
    how["sizes"] = (3,)
    both_ways(lambda x: apply("max_pool", x, **how), S((1, 12, 2)))


def sliced(key: Any) -> Callable[[Any], Any]:
    return lambda x: x[key]


def test_slices() -> None:
    rng = np.random.default_rng(7)
    steps = [s for s in range(-3, 4) if s]
    for a, b in itertools.islice(itertools.product(steps, steps), few(36)):
        begin, end = (tuple(map(int, rng.integers(-6, 7, 2))) for _ in range(2))
        key = slice(begin[0], end[0], a), slice(begin[1], None, b)
        both_ways(sliced(key), S((5, 6)))


def test_what_onnx_does_not_have() -> None:
    here = "test_to_onnx.py"
    with pytest.raises(
        UnknownOpError, match=rf"svd \(.*{here}:\d+\): got an operation, which ONNX"
    ):
        ost.to_onnx(lambda x: ost.linalg.svd(x)[1], X)
    with pytest.raises(UnknownOpError, match=rf"fft \(.*{here}:\d+\): got complex numbers, which"):
        ost.to_onnx(lambda x: ost.fft.fft(x), X)
    with pytest.raises(ArgumentError, match="got random numbers"):
        ost.to_onnx(lambda x: nn.dropout(x), X)
    with pytest.raises(ArgumentError, match="got no results; needed a function with some"):
        ost.to_onnx(lambda x: None, X)
    with pytest.raises(ArgumentError, match="opset=3"):
        ost.to_onnx(ost.exp, X, opset=3)
    told = []

    def writes(x: Any) -> Any:
        told.append(x * 2)
        return x

    with pytest.raises(ArgumentError, match="a function that writes to what is around it"):
        ost.to_onnx(writes, X)


@pytest.mark.parametrize("opset", [20, 21, 22, 23])
def test_opsets(opset: int) -> None:
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("this onnx does not have it")
    model = ost.to_onnx(network, S((2, 3, 16, 16)), opset=opset)
    onnx.checker.check_model(model, full_check=True)
    x = RNG.standard_normal((2, 3, 16, 16)).astype("float32")
    np.testing.assert_allclose(ost.from_onnx(model)(x), network(x), rtol=1e-4, atol=1e-5)
