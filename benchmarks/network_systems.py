"""Libraries that read the texts of networks: training steps by descent with momentum, and inference."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .machine import THREADS
from .network_texts import Arrays, Made, Network, Words, pooled
from .peers import ostinato_end, torch_compiled, torch_end, torch_host, torch_tensor
from .workload import Case, Within

STEPS, MOMENTUM = 3, 0.9
NARROW = ("avx512_bf16", "amx_bf16")  # processors' names of what multiplies bfloat16


# -- cases ---------------------------------------------------------------------------------
def case_of(
    network: Network,
    begin: Callable[[Made], tuple[Callable[[], Any], Callable[[Any], Any]]],
    trial: int = -1,
) -> Case:
    """`begin` makes what is run, and what waits for its result. Memory is what steps need beyond what was
    there before the library had anything of the network."""
    before = memory("VmRSS")
    run, end = begin(Made(network, trial))

    def loop(n: int) -> None:
        for _ in range(n):
            made = run()
        end(made)

    def answer() -> Any:
        made = [np.asarray(end(run())).reshape(-1) for _ in range(STEPS)]
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        return np.concatenate(made)

    return Case(answer, loop, note=lambda: f"{(memory('VmHWM') - before) >> 10:.0f} MiB at most")


def memory(what: str) -> int:
    """KiB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def only_with_bf16() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    if not any(name in flags for name in NARROW):
        raise ModuleNotFoundError("", name=" or ".join(NARROW) + " of the processor")


# -- Ostinato ------------------------------------------------------------------------------
class Ostinato(Arrays):
    def __init__(self, *given: Any) -> None:
        import ostinato as ost

        super().__init__(*given)
        nn = ost.nn
        self.tanh, self.relu, self.log1p, self.scores = nn.tanh, nn.relu, ost.log1p, _scores
        self.mean, self.lrn, self.cross_entropy = nn.global_avg_pool, nn.local_response_norm, _cross
        self.leaky = functools.partial(nn.leaky_relu, slope=0.3)
        self.gelu = functools.partial(nn.gelu, approximate=True)
        self.layer_normed, self.concat = nn.layer_norm, functools.partial(ost.concat, axis=1)
        self.nn = nn

    def convolved(self, x: Any, w: Any, b: Any, stride: Any, pads: Any, groups: int) -> Any:
        return self.nn.conv(x, w, b, stride=stride, padding=pads, groups=groups)

    def spread(self, x: Any, w: Any, b: Any) -> Any:
        return self.nn.conv_transpose(x, w, b, stride=2)

    def product(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def normed(self, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
        if not self.training:
            return self.nn.batch_norm(x, mean, var, w, b, eps=eps)
        y, now, apart = self.nn.batch_norm_train(x, w, b, eps=eps)
        self.updated += blended(mean, var, now, apart, x.size // now.size)
        return y

    def max_pool(
        self, x: Any, window: int, stride: int = 0, pad: int = 0, ceil: bool = False
    ) -> Any:
        return self.nn.max_pool(x, window, stride=stride or window, padding=pad, ceil_mode=ceil)

    def avg_pool(self, x: Any, window: int, stride: int, pad: int = 0) -> Any:
        return self.nn.avg_pool(x, window, stride=stride, padding=pad)

    def flat(self, x: Any) -> Any:
        return x.reshape((x.shape[0], -1))

    def rows_of(self, table: Any, ids: Any) -> Any:
        return self.nn.embedding(ids, table)

    def attend(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        shape = *q.shape[:2], heads, -1
        parts = [z.reshape(shape).transpose((0, 2, 1, 3)) for z in (q, k, v)]
        made = self.nn.attention(*parts, is_causal=True)
        return made.transpose((0, 2, 1, 3)).reshape(q.shape)


def _scores(x: Any, table: Any) -> Any:
    return x @ table.T


def _cross(scores: Any, y: Any) -> Any:
    import ostinato as ost

    return ost.nn.cross_entropy(scores, y, axis=1)


def blended(mean: Any, var: Any, now: Any, apart: Any, count: int) -> list[Any]:
    """Running statistics, as PyTorch has them."""
    return [0.9 * mean + 0.1 * now, 0.9 * var + 0.1 * count / (count - 1) * apart]


def ostinato(network: Network, train: bool, precision: str = "as-written", trial: int = -1) -> Case:
    import ostinato as ost

    if precision != "as-written":
        only_with_bf16()

    def begin(made: Made) -> Any:
        weights, running, x, y = ost.tree_map(
            ost.asarray, (made.weights, made.running, made.x, made.y)
        )
        text, loss = network.text, network.loss
        if not train:
            forward = ost.compile(precision=precision)(
                lambda weights, running, x: text(Ostinato(weights, running, False), x)
            )
            return lambda: forward(weights, running, x), _ended

        @ost.compile(donate=("state",), precision=precision)
        def step(state: Any, x: Any, y: Any) -> Any:
            weights, momenta, running = state

            def value(weights: Any) -> Any:
                f = Ostinato(weights, running, True)
                return loss(f, text(f, x), y), f.updated

            (value_, running), slopes = ost.value_and_grad(value, has_aux=True)(weights)
            momenta = ost.tree_map(lambda m, g: MOMENTUM * m + g, momenta, slopes)
            weights = ost.tree_map(lambda w, m: w - network.rate * m, weights, momenta)
            return (weights, momenta, running), value_

        state = weights, ost.tree_map(ost.zeros_like, weights), running

        def run() -> Any:
            nonlocal state
            state, value = step(state, x, y)
            return value

        return run, _ended

    return case_of(network, begin, trial)


def _ended(made: Any) -> Any:
    ostinato_end(made)
    return made


# -- PyTorch -------------------------------------------------------------------------------
class Torch(Arrays):
    def __init__(self, *given: Any) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]

        super().__init__(*given)
        self.torch, self.nn = torch, torch.nn.functional
        self.relu, self.tanh, self.log1p = torch.relu, torch.tanh, torch.log1p
        self.scores, self.product, self.cross_entropy = self.nn.linear, self.nn.linear, self.cross
        self.leaky = functools.partial(self.nn.leaky_relu, negative_slope=0.3)
        self.gelu = functools.partial(self.nn.gelu, approximate="tanh")
        self.concat = functools.partial(torch.cat, dim=1)

    def convolved(self, x: Any, w: Any, b: Any, stride: Any, pads: Any, groups: int) -> Any:
        conv = self.nn.conv2d if len(pads) == 2 else self.nn.conv3d
        return conv(x, w, b, stride, pads, 1, groups)

    def spread(self, x: Any, w: Any, b: Any) -> Any:
        return self.nn.conv_transpose3d(x, w, b, 2)

    def cross(self, scores: Any, y: Any) -> Any:
        return self.nn.cross_entropy(scores, y)

    def normed(self, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
        return self.nn.batch_norm(x, mean, var, w, b, self.training, 0.1, eps)

    def lrn(self, x: Any) -> Any:
        return self.nn.local_response_norm(x, 5)

    def layer_normed(self, x: Any, w: Any, b: Any) -> Any:
        return self.nn.layer_norm(x, w.shape, w, b)

    def max_pool(
        self, x: Any, window: int, stride: int = 0, pad: int = 0, ceil: bool = False
    ) -> Any:
        pool = self.nn.max_pool2d if x.ndim == 4 else self.nn.max_pool3d
        return pool(x, window, stride or window, pad, ceil_mode=ceil)

    def avg_pool(self, x: Any, window: int, stride: int, pad: int = 0) -> Any:
        return self.nn.avg_pool2d(x, window, stride, pad)

    def mean(self, x: Any) -> Any:
        return x.mean((2, 3))

    def flat(self, x: Any) -> Any:
        return x.flatten(1)

    def rows_of(self, table: Any, ids: Any) -> Any:
        return self.nn.embedding(ids, table)

    def attend(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        parts = [z.unflatten(2, (heads, -1)).transpose(1, 2) for z in (q, k, v)]
        return (
            self.nn.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        )


def torch(network: Network, train: bool, *how: str, trial: int = -1) -> Case:
    """`how`: "channels_last", "compile", "bf16"."""
    import torch

    torch.set_num_threads(THREADS)
    if "bf16" in how:
        only_with_bf16()
    forms = {4: torch.channels_last, 5: torch.channels_last_3d} if "channels_last" in how else {}

    def given(x: Any) -> Any:
        return torch_tensor(x).contiguous(memory_format=forms.get(x.ndim, torch.contiguous_format))

    def begin(made: Made) -> Any:
        weights, running = ([given(w) for w in ws] for ws in (made.weights, made.running))
        x, y = given(made.x), given(made.y)
        cast = functools.partial(torch.autocast, "cpu", torch.bfloat16, enabled="bf16" in how)

        def value() -> Any:
            f = Torch(weights, running, train)
            with cast():
                found = network.text(f, x)
            if not train:
                return found
            if "bf16" in how:
                found = [s.float() for s in found] if isinstance(found, list) else found.float()
            return network.loss(f, found, y)

        called = torch_compiled(value) if "compile" in how else value
        if not train:
            return torch.inference_mode()(called), lambda made: torch_host(made.float())
        for w in weights:
            w.requires_grad_()
        descent = torch.optim.SGD(weights, lr=network.rate, momentum=MOMENTUM, fused=True)

        def run() -> Any:
            descent.zero_grad()
            loss = called()
            loss.backward()
            descent.step()
            return loss

        def end(loss: Any) -> Any:
            torch_end(loss)
            return torch_host(loss)

        return run, end

    return case_of(network, begin, trial)


# -- JAX -----------------------------------------------------------------------------------
class Jax(Arrays):
    """With channels last, as Flax has them."""

    def __init__(self, *given: Any) -> None:
        import jax  # type: ignore[import-not-found, unused-ignore]

        super().__init__(*given)
        self.jax, self.np, self.lax = jax, jax.numpy, jax.lax
        self.relu, self.tanh, self.log1p = jax.nn.relu, jax.numpy.tanh, jax.numpy.log1p
        self.leaky = functools.partial(jax.nn.leaky_relu, negative_slope=0.3)
        self.gelu, self.scores = functools.partial(jax.nn.gelu, approximate=True), _scores
        self.concat = functools.partial(jax.numpy.concatenate, axis=-1)

    def channels(self, x: Any) -> int:
        return int(x.shape[-1])

    def convolved(self, x: Any, w: Any, b: Any, stride: Any, pads: Any, groups: int) -> Any:
        letters = "DHW"[-len(pads) :]
        names = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        y = self.lax.conv_general_dilated(
            x, w, stride, [(p, p) for p in pads], dimension_numbers=names, feature_group_count=groups
        )  # fmt: skip
        return y if b is None else y + b

    def spread(self, x: Any, w: Any, b: Any) -> Any:
        names = ("NDHWC", "DHWIO", "NDHWC")
        made = self.lax.conv_transpose(
            x, w, (2, 2, 2), "VALID", dimension_numbers=names, transpose_kernel=True
        )
        return made + b

    def product(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def cross_entropy(self, scores: Any, y: Any) -> Any:
        logp = self.jax.nn.log_softmax(scores)
        return -self.np.take_along_axis(logp, y[..., None], axis=-1).mean()

    def normed(self, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
        if self.training:
            over = tuple(range(x.ndim - 1))
            now = x.mean(over)
            apart = self.np.maximum((x * x).mean(over) - now * now, 0)  # as Flax does
            self.updated += blended(mean, var, now, apart, x.size // x.shape[-1])
            mean, var = now, apart
        return (x - mean) * (self.lax.rsqrt(var + eps) * w) + b

    def lrn(self, x: Any) -> Any:
        sums = self.lax.reduce_window(
            x * x, 0.0, self.lax.add, (1, 1, 1, 5), (1, 1, 1, 1), [(0, 0)] * 3 + [(2, 2)]
        )
        return x / (1 + 1e-4 / 5 * sums) ** 0.75

    def layer_normed(self, x: Any, w: Any, b: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        apart = self.np.maximum((x * x).mean(-1, keepdims=True) - mean * mean, 0)
        return (x - mean) * self.lax.rsqrt(apart + 1e-5) * w + b

    def _windows(self, x: Any, window: int, step: int, pad: int, ceil: bool = False) -> Any:
        space = x.shape[1:-1]
        ends = [(pooled(n, window, step, pad, ceil) - 1) * step + window - n - pad for n in space]
        sizes, steps = ((1, *[n] * len(space), 1) for n in (window, step))
        return sizes, steps, [(0, 0), *[(pad, max(e, 0)) for e in ends], (0, 0)]

    def max_pool(
        self, x: Any, window: int, stride: int = 0, pad: int = 0, ceil: bool = False
    ) -> Any:
        windows = self._windows(x, window, stride or window, pad, ceil)
        return self.lax.reduce_window(x, -np.inf, self.lax.max, *windows)

    def avg_pool(self, x: Any, window: int, stride: int, pad: int = 0) -> Any:
        windows = self._windows(x, window, stride, pad)
        return self.lax.reduce_window(x, 0.0, self.lax.add, *windows) / window**2

    def mean(self, x: Any) -> Any:
        return x.mean((1, 2))

    def flat(self, x: Any) -> Any:
        return self.np.moveaxis(x, -1, 1).reshape((x.shape[0], -1))

    def rows_of(self, table: Any, ids: Any) -> Any:
        return table[ids]

    def attend(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        parts = [z.reshape((*z.shape[:2], heads, -1)) for z in (q, k, v)]
        return self.jax.nn.dot_product_attention(*parts, is_causal=True).reshape(q.shape)


def jax(network: Network, train: bool) -> Case:
    import jax

    def begin(made: Made) -> Any:
        def filters(w: Any) -> Any:
            """OIHW as HWIO, and those of transposed convolutions so, too."""
            return w if w.ndim < 4 else np.moveaxis(w, (1, 0), (-2, -1))

        x = made.x if made.x.ndim < 4 else np.moveaxis(made.x, 1, -1)
        x, y = jax.device_put(np.ascontiguousarray(x)), jax.device_put(made.y)
        weights = [jax.device_put(np.ascontiguousarray(filters(w))) for w in made.weights]
        running, text = [jax.device_put(v) for v in made.running], network.text
        if not train:
            forward = jax.jit(lambda weights, running, x: text(Jax(weights, running, False), x))
            return lambda: forward(weights, running, x), jax.block_until_ready

        def step(state: Any, x: Any, y: Any) -> Any:
            weights, momenta, running = state

            def value(weights: Any) -> Any:
                f = Jax(weights, running, True)
                return network.loss(f, text(f, x), y), f.updated

            (value_, running), slopes = jax.value_and_grad(value, has_aux=True)(weights)
            momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, slopes)
            weights = jax.tree.map(lambda w, m: w - network.rate * m, weights, momenta)
            return (weights, momenta, running), value_

        compiled = jax.jit(step, donate_argnums=0)
        state = weights, jax.tree.map(jax.numpy.zeros_like, weights), running

        def run() -> Any:
            nonlocal state
            state, value = compiled(state, x, y)
            return value

        return run, jax.block_until_ready

    return case_of(network, begin)


# -- ONNX Runtime --------------------------------------------------------------------------
class Onnx(Words):
    """Nodes of a model, with weights in it; arrays are names."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.nodes, self.held, self.axes = list[Any](), list[Any](), 2
        one = functools.partial(functools.partial, self.node)
        self.relu, self.tanh, self.add = one("Relu"), one("Tanh"), one("Add")
        self.leaky, self.gelu = one("LeakyRelu", alpha=0.3), one("Gelu", approximate="tanh")
        self.flat, self.layer_normed = one("Flatten"), one("LayerNormalization", epsilon=1e-5)
        self.lrn = one("LRN", size=5, alpha=1e-4, beta=0.75, bias=1.0)

    def channels(self, x: Any) -> int:
        return 0  # a name does not say, and who asks has its weights

    def node(self, kind: str, *given: Any, **how: Any) -> str:
        from onnx import helper

        names = [self.held_name(v) for v in given if v is not None]
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [made], **how))
        return made

    def held_name(self, v: Any) -> str:
        """Of a result; numbers are held by the model."""
        from onnx import numpy_helper

        if isinstance(v, str):
            return v
        name = f"w{id(v)}"
        if all(h.name != name for h in self.held):
            self.held.append(numpy_helper.from_array(v, name))
            self.updated.append(v)  # so that ids stay
        return name

    def convolved(self, x: Any, w: Any, b: Any, stride: Any, pads: Any, groups: int) -> Any:
        return self.node("Conv", x, w, b, strides=stride, pads=[*pads, *pads], group=groups)

    def spread(self, x: Any, w: Any, b: Any) -> Any:
        return self.node("ConvTranspose", x, w, b, strides=[2, 2, 2])

    def product(self, x: Any, w: Any, b: Any) -> Any:
        return self.node("Add", self.scores(x, w), b)

    def scores(self, x: Any, w: Any) -> Any:
        return self.node("MatMul", x, np.ascontiguousarray(w.T))

    def normed(self, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
        return self.node("BatchNormalization", x, w, b, mean, var, epsilon=eps)

    def _pool(self, kind: str, x: Any, window: int, stride: int, pad: int, **how: Any) -> Any:
        k = self.axes
        how |= {"kernel_shape": [window] * k, "strides": [stride] * k, "pads": [pad] * 2 * k}
        return self.node(kind, x, **how)

    def max_pool(
        self, x: Any, window: int, stride: int = 0, pad: int = 0, ceil: bool = False
    ) -> Any:
        return self._pool("MaxPool", x, window, stride or window, pad, ceil_mode=int(ceil))

    def avg_pool(self, x: Any, window: int, stride: int, pad: int = 0) -> Any:
        return self._pool("AveragePool", x, window, stride, pad, count_include_pad=1)

    def mean(self, x: Any) -> Any:
        return self.flat(self.node("GlobalAveragePool", x))

    def concat(self, xs: Sequence[Any]) -> Any:
        return self.node("Concat", *xs, axis=1)

    def log1p(self, x: Any) -> Any:
        return self.node("Log", self.node("Add", x, np.ones(1, np.float32)))

    def scale(self, x: Any, by: float) -> Any:
        return self.node("Mul", x, np.full(1, by, np.float32))

    def rows_of(self, table: Any, ids: Any) -> Any:
        return self.node("Gather", table, ids)

    def first_rows(self, table: Any, count: int) -> Any:
        return table[:count]

    def attend(self, q: Any, k: Any, v: Any, heads: int) -> Any:
        return self.node("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads, is_causal=1)


class _Operand(str):
    """The name of what a model is given, which has a shape."""

    shape: tuple[int, ...] = ()


def onnx_model(network: Network, made: Made) -> Any:
    """The text as a model of one operand, `x`."""
    from onnx import TensorProto, helper

    f = Onnx(made.weights, made.running, False)
    f.axes = made.x.ndim - 2
    given = _Operand("x")
    given.shape = made.x.shape
    end = network.text(f, given)
    kind = TensorProto.FLOAT if made.x.dtype.kind == "f" else TensorProto.INT64
    ends = [helper.make_tensor_value_info("x", kind, made.x.shape)]
    outs = [helper.make_tensor_value_info(end, TensorProto.FLOAT, None)]
    graph = helper.make_graph(f.nodes, network.name, ends, outs, f.held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def onnxruntime(network: Network, train: bool) -> Case:
    import onnxruntime  # type: ignore[import-not-found, unused-ignore]

    assert not train

    def begin(made: Made) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        text, x = onnx_model(network, made).SerializeToString(), made.x
        session = onnxruntime.InferenceSession(text, options, ["CPUExecutionProvider"])
        return lambda: session.run(None, {"x": x})[0], lambda y: y

    return case_of(network, begin)


TRIALS, ALLOWED = 4, 8.0


def expected(network: Network, train: bool) -> Any:
    """What PyTorch makes, or where it is absent we ourselves: another text of each network would be as long.
    Losses are those of float64, each with how far off it may be: so many times what the same library is off in
    float32 at most, over trials whose operands are moved by a unit in the last place. So networks that amplify
    rounding, as norms of few samples do, are allowed what float32 cannot do better, and others are not."""
    os.environ["OSTINATO_CACHE"] = "off"
    system: Any = torch if importlib.util.find_spec("torch") else ostinato
    if not train:
        return system(network, train).answer()
    exact, *rounded = [system(network, train, trial=k).answer() for k in range(1 + TRIALS)]
    return Within(exact, ALLOWED * np.max([np.abs(r - exact) for r in rounded], axis=0))
