"""Convolutions: single ones of AlexNet, ResNet-50, Inception v3 and CosmoFlow, forward and both backwards;
ten in a row with pools, forward and as a training step; and whole networks, training steps and inference.

Single ones have channels last; `onednn` is the library called by hand, with all arrays as it likes them.
Programs are written with channels first, as most people's are. `--scale` makes whole networks
smaller: fewer samples, fewer channels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import network_systems, onednn_by_hand
from .libraries import case
from .machine import THREADS
from .network_texts import NETWORKS, Network
from .peers import ostinato_end, torch_end, torch_host, torch_tensor
from .workload import SYSTEMS, Case, Numbers, System, Workload

WORKLOADS: list[Workload] = []
RATE = 0.01


class Conv(NamedTuple):
    """Images and filters with channels first."""

    name: str
    images: tuple[int, ...]
    filters: tuple[int, ...]
    stride: int
    pads: tuple[int, ...]
    groups: int = 1
    dilation: int = 1

    @property
    def made(self) -> tuple[int, ...]:
        given = zip(self.images[2:], self.filters[2:], self.pads, strict=True)
        space = [(n + 2 * p - self.dilation * (r - 1) - 1) // self.stride + 1 for n, r, p in given]
        return self.images[0], self.filters[0], *space

    @property
    def flops(self) -> float:
        return 2.0 * np.prod(self.made) * np.prod(self.filters[1:])

    @property
    def last(self) -> str:
        return "N" + "DHW"[-len(self.pads) :] + "C"

    def numbers(self) -> tuple[Numbers, Numbers, Numbers]:
        """Images, filters, slopes of results."""
        rng = np.random.default_rng(7)
        shapes = self.images, self.filters, self.made
        x, w, g = (rng.standard_normal(s, np.float32) for s in shapes)
        return x, w, g


CONVS = (
    Conv("alexnet1", (8, 3, 227, 227), (96, 3, 11, 11), 4, (0, 0)),
    Conv("alexnet2", (8, 96, 27, 27), (256, 48, 5, 5), 1, (2, 2), 2),
    Conv("resnet1", (4, 3, 224, 224), (64, 3, 7, 7), 2, (3, 3)),
    Conv("resnet2", (4, 64, 56, 56), (64, 64, 3, 3), 1, (1, 1)),
    Conv("resnet3", (4, 256, 56, 56), (64, 256, 1, 1), 1, (0, 0)),
    Conv("resnet5", (8, 512, 7, 7), (512, 512, 3, 3), 1, (1, 1)),
    Conv("inception", (8, 160, 17, 17), (160, 160, 1, 7), 1, (0, 3)),
    Conv("cosmoflow", (1, 32, 32, 32, 32), (64, 32, 3, 3, 3), 1, (1, 1, 1)),
    Conv("depthwise", (8, 128, 28, 28), (128, 1, 3, 3), 1, (1, 1), 128),
    Conv("depthwise-5-2", (8, 96, 56, 56), (96, 1, 5, 5), 2, (2, 2), 96),
    Conv("resnext", (8, 128, 28, 28), (128, 4, 3, 3), 1, (1, 1), 32),
    Conv("grey", (64, 1, 28, 28), (32, 1, 5, 5), 1, (0, 0)),
    Conv("grey3d", (1, 1, 64, 64, 64), (16, 1, 3, 3, 3), 1, (1, 1, 1)),
    Conv("few", (4, 64, 56, 56), (3, 64, 3, 3), 1, (1, 1)),
    Conv("small", (1, 64, 14, 14), (64, 64, 1, 1), 1, (0, 0)),
    Conv("last", (8, 512, 2, 2), (512, 512, 3, 3), 1, (1, 1)),
    Conv("last1", (8, 2048, 2, 2), (512, 2048, 1, 1), 1, (0, 0)),
    Conv("dilated", (4, 64, 56, 56), (64, 64, 3, 3), 1, (2, 2), 1, 2),
    Conv("speech", (8, 40, 150), (768, 40, 5), 1, (2,)),
    Conv("conformer", (8, 256, 200), (256, 1, 31), 1, (15,), 256),
    Conv("wave", (4, 1, 16000), (64, 1, 63), 1, (31,)),
    Conv("large", (1, 32, 64, 64), (32, 1, 31, 31), 1, (15, 15), 32),
    Conv("large-full", (2, 8, 64, 64), (8, 8, 31, 31), 1, (15, 15)),
)


def last(x: Any) -> Numbers:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def in_out(w: Any) -> Numbers:
    """OIHW as HWIO."""
    return np.ascontiguousarray(np.moveaxis(w, (1, 0), (-2, -1)))


def first(x: Any) -> Numbers:
    return np.moveaxis(np.asarray(x), -1, 1)


def out_in(w: Any) -> Numbers:
    return np.moveaxis(np.asarray(w), (-1, -2), (0, 1))


# -- single ones ---------------------------------------------------------------------------
def kind_of(vjp: Any, conv: Any, kind: str, x: Any, w: Any) -> Any:
    """The function of two arrays that a kind is."""
    if kind == "data":
        return lambda g, w: vjp(lambda x: conv(x, w), x)[1](g)[0]
    return (lambda x, g: vjp(lambda w: conv(x, w), w)[1](g)[0]) if kind == "weights" else conv


def two(c: Conv, kind: str) -> tuple[tuple[Numbers, Numbers], Any]:
    """A kind's operands, with channels last, and how results are turned back."""
    x, w, g = c.numbers()
    x, w, g = last(x), in_out(w), last(g)
    given = {"forward": (x, w), "data": (g, w), "weights": (x, g)}[kind]
    return given, out_in if kind == "weights" else first


def ostinato_conv(c: Conv, kind: str) -> Case:
    import ostinato as ost

    pads = [(p, p) for p in c.pads]
    conv = functools.partial(
        ost.nn.conv,
        stride=c.stride,
        padding=pads,
        dilation=c.dilation,
        groups=c.groups,
        layout=c.last,
    )
    given, back = two(c, kind)
    x, w, _ = c.numbers()
    run = ost.compile(kind_of(ost.vjp, conv, kind, ost.asarray(last(x)), ost.asarray(in_out(w))))
    return case(run, [ost.asarray(v) for v in given], ostinato_end, back)


def jax_conv(c: Conv, kind: str) -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]

    letters = c.last[1:-1]
    names = (c.last, letters + "IO", c.last)

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (c.stride,) * len(c.pads), [(p, p) for p in c.pads],
            rhs_dilation=(c.dilation,) * len(c.pads), dimension_numbers=names,
            feature_group_count=c.groups,
        )  # fmt: skip

    given, back = two(c, kind)
    x, w, _ = c.numbers()
    run = jax.jit(kind_of(jax.vjp, conv, kind, last(x), in_out(w)))
    return case(run, [jax.device_put(v) for v in given], jax.block_until_ready, back)


def torch_conv(c: Conv, kind: str, is_last: bool) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(THREADS)
    k = len(c.pads)
    order = {2: torch.channels_last, 3: torch.channels_last_3d}
    form = order.get(k * is_last, torch.contiguous_format)
    x, w, g = (torch_tensor(v).contiguous(memory_format=form) for v in c.numbers())
    steps = ((c.stride,) * k, c.pads, (c.dilation,) * k, False, (0,) * k, c.groups)

    def forward(x: Any, w: Any) -> Any:
        return torch.ops.aten.convolution(x, w, None, *steps)

    def slopes(a: Any, b: Any) -> Any:
        given = (a, x, b) if kind == "data" else (b, a, w)
        mask = [kind == "data", kind == "weights", False]
        made = torch.ops.aten.convolution_backward(*given, None, *steps, mask)
        return made[kind == "weights"]

    run = forward if kind == "forward" else slopes
    operands = {"forward": (x, w), "data": (g, w), "weights": (x, g)}[kind]
    return case(torch.inference_mode()(run), operands, torch_end, torch_host)


def single(c: Conv, kind: str) -> Workload:
    def by_hand() -> Case:
        each = len(c.pads)
        given = (*c.numbers(), [c.stride] * each, [c.dilation] * each, c.pads, c.groups)
        return onednn_by_hand.conv_case(kind, *given)

    cases = {
        "ostinato": lambda: ostinato_conv(c, kind),
        "onednn": by_hand,
        "torch": lambda: torch_conv(c, kind, False),
        "torch/channels_last": lambda: torch_conv(c, kind, True),
        "jax": lambda: jax_conv(c, kind),
    }
    return Workload(
        f"conv-{c.name}-{kind}",
        f"{kind}, images {c.images}, filters {c.filters}, stride {c.stride}, {c.groups} groups",
        lambda: by_hand().answer(),
        cases,
        tolerance=1e-3,
        flops=c.flops,
        seconds=3.0,
        systems=SYSTEMS | {"onednn": System(("numpy",))},
    )


# -- programs ------------------------------------------------------------------------------
DEPTH, WIDTH, SIDE, BATCH, POOLED = 10, 64, 64, 8, (1, 4, 7)
Layers = Sequence[tuple[Any, Any]]


def layers() -> list[tuple[Numbers, Numbers]]:
    rng = np.random.default_rng(12)
    ins = [3, *[WIDTH] * (DEPTH - 1)]
    deviations = [np.float32((2 / (9 * n)) ** 0.5) for n in ins]
    return [
        (rng.standard_normal((WIDTH, n, 3, 3), np.float32) * d, np.full(WIDTH, 0.01, np.float32))
        for n, d in zip(ins, deviations, strict=True)
    ]


def pictures() -> Numbers:
    return np.random.default_rng(13).standard_normal((BATCH, 3, SIDE, SIDE), np.float32)


def chain(conv: Any, relu: Any, pool: Any, layers: Layers, x: Any) -> Any:
    for k, (w, b) in enumerate(layers):
        x = relu(conv(x, w, b))
        x = pool(x) if k in POOLED else x
    return x


def flat(layers: Layers) -> Any:
    return np.concatenate([np.asarray(p).reshape(-1) for pair in layers for p in pair])


def ostinato_chain(train: bool) -> Case:
    import ostinato as ost

    run = functools.partial(
        chain,
        functools.partial(ost.nn.conv, padding=1),
        ost.nn.relu,
        lambda x: ost.nn.max_pool(x, 2),
    )
    x, state = ost.asarray(pictures()), ost.tree_map(ost.asarray, layers())
    if not train:
        return case(ost.compile(run), (state, x), ostinato_end, np.asarray)

    @ost.compile(donate=("layers",))
    def step(layers: Any, x: Any) -> Any:
        _, slopes = ost.value_and_grad(lambda ws: (run(ws, x) ** 2).mean())(layers)
        return ost.tree_map(lambda p, g: p - RATE * g, layers, slopes)

    return steps(state, lambda s: step(s, x), ostinato_end)


def jax_chain(train: bool) -> Case:
    import jax  # type: ignore[import-not-found, unused-ignore]

    def conv(x: Any, w: Any, b: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), [(1, 1), (1, 1)])
        return y + b[:, None, None]

    def pool(x: Any) -> Any:
        window = (1, 1, 2, 2)
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, window, "VALID")

    run = functools.partial(chain, conv, jax.nn.relu, pool)
    x, state = jax.device_put(pictures()), jax.tree.map(jax.device_put, layers())
    if not train:
        return case(jax.jit(run), (state, x), jax.block_until_ready, np.asarray)

    def step(layers: Any, x: Any) -> Any:
        slopes = jax.grad(lambda ws: (run(ws, x) ** 2).mean())(layers)
        return jax.tree.map(lambda p, g: p - RATE * g, layers, slopes)

    compiled = jax.jit(step, donate_argnums=0)
    return steps(state, lambda s: compiled(s, x), jax.block_until_ready)


def torch_chain(train: bool, is_last: bool) -> Case:
    import torch  # type: ignore[import-not-found, unused-ignore]

    nn = torch.nn.functional
    torch.set_num_threads(THREADS)
    form = torch.channels_last if is_last else torch.contiguous_format
    run = functools.partial(
        chain,
        functools.partial(nn.conv2d, padding=1),
        nn.relu,
        functools.partial(nn.max_pool2d, kernel_size=2),
    )
    x = torch_tensor(pictures()).contiguous(memory_format=form)
    state = [(torch_tensor(w).contiguous(memory_format=form), torch_tensor(b)) for w, b in layers()]
    if not train:
        return case(torch.inference_mode()(run), (state, x), torch_end, torch_host)
    parameters = [p.requires_grad_() for pair in state for p in pair]
    descent = torch.optim.SGD(parameters, lr=RATE)

    def step(state: Any) -> Any:
        descent.zero_grad()
        (run(state, x) ** 2).mean().backward()
        descent.step()
        return state

    return steps(state, step, torch_end, torch_host)


def steps(state: Any, step: Any, end: Any, host: Any = np.asarray) -> Case:
    """Steps that go on from what the last one made; the answer is what the first makes."""

    def loop(n: int) -> None:
        nonlocal state
        for _ in range(n):
            state = step(state)
        end(state)

    def answer() -> Any:
        loop(1)
        return flat([(host(w), host(b)) for w, b in state])

    return Case(answer, loop)


def program(train: bool) -> Workload:
    cases = {
        "ostinato": lambda: ostinato_chain(train),
        "jax": lambda: jax_chain(train),
        "torch": lambda: torch_chain(train, False),
        "torch/channels_last": lambda: torch_chain(train, True),
    }
    ins = [3, *[WIDTH] * (DEPTH - 1)]
    sides = [SIDE >> sum(p < k for p in POOLED) for k in range(DEPTH)]
    work = [2.0 * BATCH * WIDTH * 9 * n * s * s for n, s in zip(ins, sides, strict=True)]
    return Workload(
        f"chain-{'step' if train else 'forward'}",
        f"{DEPTH} convolutions, bias, relu and {len(POOLED)} pools, {BATCH} images of {SIDE}^2"
        + ("; slopes and descent" if train else ""),
        lambda: expected(train),
        cases,
        tolerance=2e-3,
        flops=3 * sum(work) - work[0] if train else sum(work),
        seconds=6.0,
    )


def expected(train: bool) -> Any:
    """By windows of NumPy, in double precision: another text than all that are measured."""
    values, masks, x = [], [], pictures().astype(np.float64)
    state = [(w.astype(np.float64), b.astype(np.float64)) for w, b in layers()]

    def conv(x: Any, w: Any) -> Any:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    def split(x: Any) -> Any:
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2)

    for k, (w, b) in enumerate(state):
        values.append(x)
        x = np.maximum(conv(x, w) + b[:, None, None], 0)
        masks.append(x)
        x = split(x).max((3, 5)) if k in POOLED else x
    if not train:
        return x
    g, made = 2 * x / x.size, []
    for k in reversed(range(DEPTH)):
        w, b = state[k]
        if k in POOLED:
            wide = split(masks[k])
            equal = wide == wide.max((3, 5), keepdims=True)
            share = g[:, :, :, None, :, None] / equal.sum((3, 5), keepdims=True)
            g = (equal * share).reshape(masks[k].shape)
        g = g * (masks[k] > 0)
        padded = np.pad(values[k], ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        slopes = np.tensordot(g, seen, ((0, 2, 3), (0, 2, 3)))
        made.append((w - RATE * slopes, b - RATE * g.sum((0, 2, 3))))
        g = conv(g, w[:, :, ::-1, ::-1].swapaxes(0, 1))
    return flat(made[::-1])


WORKLOADS += [single(c, kind) for c in CONVS for kind in ("forward", "data", "weights")]
WORKLOADS += [program(False), program(True)]


# -- whole networks ------------------------------------------------------------------------
def whole(network: Network, train: bool) -> Workload:
    ours = functools.partial(network_systems.ostinato, network, train)
    torch = functools.partial(network_systems.torch, network, train)
    cases: dict[str, Any] = {
        "ostinato": ours,
        "ostinato/bf16": lambda: ours("mixed_bf16"),
        "torch": torch,
        "torch/channels_last": lambda: torch("channels_last"),
        "torch/compile": lambda: torch("channels_last", "compile"),
        "torch/bf16": lambda: torch("channels_last", "bf16"),
        "jax": lambda: network_systems.jax(network, train),
    }
    if not train:
        cases["onnxruntime"] = lambda: network_systems.onnxruntime(network, train)
    return Workload(
        f"{'train' if train else 'infer'}-{network.name}",
        network.about + ("; a step of descent with momentum" if train else ""),
        lambda: network_systems.expected(network, train),
        cases,
        tolerance=1e-4 if train else 5e-3,
        tolerances=dict.fromkeys(("ostinato/bf16", "torch/bf16"), 0.1),
        flops=network.flops(train),
        seconds=12.0,
        limit=600.0,
        systems=SYSTEMS
        | {"onnxruntime": System(("onnxruntime", "onnx"), "pip install onnxruntime onnx")},
    )


WORKLOADS += [whole(n, train) for n in NETWORKS for train in (True, False)]
