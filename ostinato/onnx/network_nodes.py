"""Operators of networks: windows, norms, resizing, recurrent layers, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ostinato as ost
from ostinato import nn

from .operators import NodeCall, Value, axes_of, bounded, cast, known, operator, ours, whole_numbers
from .reduction_nodes import centred, quantized

Pairs = list[tuple[int, int]]


# -- windows ---------------------------------------------------------------------------------
def _each(at: NodeCall, name: str, k: int) -> list[int]:
    return list(at.get(name) or [1] * k)


def _padding(at: NodeCall, sizes: Sequence[int], reaches: Sequence[int]) -> Pairs:
    """How many places around each axis."""
    k = len(sizes)
    auto = at.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return [(0, 0)] * k
    if auto == "NOTSET":
        pads = at.get("pads") or [0] * 2 * k
        return list(zip(pads[:k], pads[k:], strict=True))
    found = []
    for n, stride, reach in zip(sizes, _each(at, "strides", k), reaches, strict=True):
        total = max((-(-n // stride) - 1) * stride + reach - n, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return found


def _reaches(at: NodeCall, sizes: Sequence[int]) -> list[int]:
    steps = _each(at, "dilations", len(sizes))
    return [d * (m - 1) + 1 for d, m in zip(steps, sizes, strict=True)]


@operator("Conv")
def conv(at: NodeCall, x: Value, w: Value, bias: Value = None) -> Value:
    space, k = x.shape[2:], x.ndim - 2
    return nn.conv(
        ours(x),
        ours(w),
        bias,
        stride=_each(at, "strides", k),
        padding=_padding(at, space, _reaches(at, w.shape[2:])),
        dilation=_each(at, "dilations", k),
        groups=at["group"],
    )


@operator("ConvTranspose")
def conv_transpose(at: NodeCall, x: Value, w: Value, bias: Value = None) -> Value:
    k = x.ndim - 2
    strides, more = _each(at, "strides", k), list(at.get("output_padding") or [0] * k)
    reaches = _reaches(at, w.shape[2:])
    whole = [
        (n - 1) * s + r + m for n, s, r, m in zip(x.shape[2:], strides, reaches, more, strict=True)
    ]
    auto, wanted = at.get("auto_pad", "NOTSET"), at.get("output_shape")
    pads: Pairs
    if wanted or auto.startswith("SAME"):
        sizes = (wanted or [])[-k:] or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        totals = [max(n - m, 0) for n, m in zip(whole, sizes, strict=True)]
        more = [m + max(s - n, 0) for m, n, s in zip(more, whole, sizes, strict=True)]
        pads = [
            (t // 2, t - t // 2) if auto == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals
        ]
    else:
        pads = _padding(at, x.shape[2:], reaches)
    taken = [min(m, max(b, 0)) for m, (_, b) in zip(more, pads, strict=True)]
    return nn.conv_transpose(
        ours(x),
        ours(w),
        bias,
        stride=strides,
        padding=[(b, a - t) for (b, a), t in zip(pads, taken, strict=True)],
        output_padding=[
            min(m - t, max(s, d) - 1)
            for m, t, s, d in zip(more, taken, strides, _each(at, "dilations", k), strict=True)
        ],
        dilation=_each(at, "dilations", k),
        groups=at["group"],
    )


def _windows(at: NodeCall, x: Value) -> dict[str, Any]:
    k = x.ndim - 2
    sizes = at["kernel_shape"]
    return {
        "stride": _each(at, "strides", k),
        "padding": _padding(at, x.shape[2:], _reaches(at, sizes)),
        "dilation": _each(at, "dilations", k),
        "ceil_mode": bool(at.get("ceil_mode", 0)),
    }


def _positions(at: NodeCall, x: Value) -> tuple[Any, Any]:
    """The windows of an image side by side, and where in it their elements are, -1 around it."""
    how = _windows(at, x)
    sizes, space = at["kernel_shape"], x.shape[2:]
    k = len(space)
    flat, row = np.zeros([1] * 2 * k, np.int64), math.prod(space)
    there = np.ones([1] * 2 * k, bool)
    for d, (m, n) in enumerate(zip(sizes, space, strict=True)):
        stride, step, (before, after) = (how[w][d] for w in ("stride", "dilation", "padding"))
        rest = n + before + after - step * (m - 1) - 1
        count = rest // stride + 1
        if how["ceil_mode"]:
            count = -(-rest // stride) + 1
            count -= (count - 1) * stride >= n + before
        i = (np.arange(count) * stride - before)[:, None] + np.arange(m) * step
        i = i.reshape([count if e == d else m if e == k + d else 1 for e in range(2 * k)])
        row //= n
        flat, there = flat + i * row, there & (i >= 0) & (i < n)
    outs, each = flat.shape[:k], math.prod(flat.shape[k:])
    flat = np.where(there, flat, -1).reshape(-1, each)
    images = ours(x).reshape((*x.shape[:2], math.prod(space)))
    near = ost.take(images, np.maximum(flat, 0).reshape(-1), axis=2)
    return near.reshape((*x.shape[:2], *outs, each)), flat.reshape((*outs, each))


@operator("MaxPool")
def max_pool(at: NodeCall, x: Value) -> Value:
    x = ours(x)
    y = nn.max_pool(x, at["kernel_shape"], **_windows(at, x))
    if not at.wants(1):
        return y
    near, places = _positions(at, x)
    low = -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    first = ost.argmax(ost.where(places >= 0, near, low), axis=near.ndim - 1, keepdims=True)
    wide = ost.broadcast_to(ost.asarray(places), near.shape)
    found = ost.squeeze(ost.take_along_axis(wide, first, near.ndim - 1), near.ndim - 1)
    space = x.shape[2:]
    if at.get("storage_order", 0):  # the first axis counts fastest
        found = sum(
            (found // math.prod(space[d + 1 :]) % n) * math.prod(space[:d])
            for d, n in enumerate(space)
        )
    images = ost.arange(math.prod(x.shape[:2])).reshape((*x.shape[:2], *(1,) * len(space)))
    return y, found + images * math.prod(space)


@operator("MaxUnpool", reads=[2])
def max_unpool(at: NodeCall, x: Value, places: Value, wanted: Value = None) -> Value:
    k = x.ndim - 2
    pads = at.get("pads") or [0] * 2 * k
    given = zip(x.shape[2:], _each(at, "strides", k), at["kernel_shape"], range(k), strict=True)
    usual = [(n - 1) * s - pads[d] - pads[k + d] + m for n, s, m, d in given]
    shape = (*x.shape[:2], *usual)
    flat = ost.zeros(math.prod(shape), dtype=x.dtype).at[ours(places).reshape(-1)]
    y = flat.set(ours(x).reshape(-1)).reshape(shape)
    if wanted is None:
        return y
    more = zip(whole_numbers(wanted), y.shape, strict=True)
    return ost.pad(y, [(0, n - m) for n, m in more])


@operator("AveragePool")
def avg_pool(at: NodeCall, x: Value) -> Value:
    counted = bool(at.get("count_include_pad", 0))
    how = _windows(at, x)
    y = nn.avg_pool(ours(x), at["kernel_shape"], count_include_pad=counted, **how)
    return cast(y, x.dtype)


@operator("LpPool")
def lp_pool(at: NodeCall, x: Value) -> Value:
    p, how = at["p"], _windows(at, x)
    around = ost.pad(ost.abs(ours(x)) ** p, [(0, 0), (0, 0), *how.pop("padding")])
    size, ceil = math.prod(at["kernel_shape"]), how.pop("ceil_mode")
    if ceil:  # places behind, as many windows as reach beyond the padding
        wide = nn.max_pool(around, at["kernel_shape"], ceil_mode=True, **how).shape
        around = ost.pad(around, [(0, 0), (0, 0), *[(0, s) for s in how["stride"]]])
    y = nn.avg_pool(around, at["kernel_shape"], **how)
    y = y[tuple([slice(0, n) for n in wide])] if ceil else y
    return cast((y * size) ** (1 / p), x.dtype)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(at: NodeCall, x: Value) -> Value:
    x, over = ours(x), tuple(range(2, x.ndim))
    if at.node.op == "GlobalMaxPool":
        return ost.max(x, axis=over, keepdims=True)
    if at.node.op == "GlobalAveragePool":
        return ost.mean(x, axis=over, keepdims=True)
    return ost.sum(ost.abs(x) ** at["p"], axis=over, keepdims=True) ** (1 / at["p"])


@operator("ConvInteger")
def conv_integer(
    at: NodeCall, x: Value, w: Value, x_zero: Value = None, w_zero: Value = None
) -> Value:
    wide = np.dtype(np.float64)  # sums of products of bytes are exact in it
    y = conv(at, cast(centred(x, x_zero, -1), wide), cast(centred(w, w_zero, 0), wide))
    return cast(y, np.dtype(np.int32))


@operator("QLinearConv")
def quantized_conv(
    at: NodeCall,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value = None,
) -> Value:
    wide = np.dtype(np.float64)
    sums = conv(at, cast(centred(x, x_zero, -1), wide), cast(centred(w, w_zero, 0), wide))
    each = [-1 if d == 1 else 1 for d in range(x.ndim)]
    if bias is not None:
        sums = sums + cast(ours(bias), wide).reshape(each)
    factor = cast(ours(x_scale), wide) * cast(ours(w_scale), wide) / cast(ours(y_scale), wide)
    factor = factor.reshape(each if factor.size > 1 else ())
    return quantized(sums * factor, y_zero, y_zero.dtype, sums)


@operator("Col2Im", reads=[1, 2])
def columns_to_image(at: NodeCall, x: Value, image: Value, block: Value) -> Value:
    """Blocks added where they were in an image."""
    space, sizes = whole_numbers(image), whole_numbers(block)
    k = len(space)
    pads = at.get("pads") or [0] * 2 * k
    steps, strides = _each(at, "dilations", k), _each(at, "strides", k)
    n, c = x.shape[0], x.shape[1] // math.prod(sizes)
    flat, there, row = np.zeros([1] * 2 * k, np.int64), np.ones([1] * 2 * k, bool), math.prod(space)
    for d, (m, size) in enumerate(zip(space, sizes, strict=True)):
        count = (m + pads[d] + pads[k + d] - steps[d] * (size - 1) - 1) // strides[d] + 1
        i = np.arange(size)[:, None] * steps[d] + np.arange(count) * strides[d] - pads[d]
        i = i.reshape([size if e == d else count if e == k + d else 1 for e in range(2 * k)])
        row //= m
        flat, there = flat + i * row, there & (i >= 0) & (i < m)
    flat = np.where(there, flat, math.prod(space)).reshape(-1)
    values = ours(x).reshape((n * c, flat.size))
    sums = ost.zeros((n * c, math.prod(space) + 1), dtype=x.dtype).at[:, flat].add(values)
    return sums[:, :-1].reshape((n, c, *space))


# -- norms -----------------------------------------------------------------------------------
@operator("BatchNormalization")
def batch_norm(
    at: NodeCall, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> Value:
    x, eps = ours(x), at["epsilon"]
    if not at.get("training_mode", at.version < 14 and at.wants(1)):
        y = nn.batch_norm(x, mean, variance, scale, bias, eps=eps, layout=_layout(x))
        return (y, ours(mean), ours(variance)) if at.results > 1 else y
    y, *seen = nn.batch_norm_train(x, scale, bias, eps=eps, layout=_layout(x))
    kept = at["momentum"]
    running = [
        cast(r * kept + s * (1 - kept), r.dtype)
        for r, s in zip((ours(mean), ours(variance)), seen, strict=True)
    ]
    return (y, *running)


def _layout(x: Any) -> str | None:
    return "NC" if x.ndim == 2 else None


@operator("InstanceNormalization")
def instance_norm(at: NodeCall, x: Value, scale: Value, bias: Value) -> Value:
    return nn.instance_norm(ours(x), scale, bias, eps=at["epsilon"])


@operator("LayerNormalization")
def layer_norm(at: NodeCall, x: Value, scale: Value, bias: Value = None) -> Value:
    x = ours(x)
    (d,) = axes_of([at["axis"]], x.ndim)
    over, eps = tuple(range(d, x.ndim)), at["epsilon"]
    y = nn.layer_norm(x, axis=over, epsilon=eps) * scale
    y = y if bias is None else y + bias
    if at.results == 1:
        return y
    wide = x if x.dtype.itemsize > 2 else cast(x, np.dtype(np.float32))
    mean = ost.mean(wide, axis=over, keepdims=True)
    return y, mean, ost.rsqrt(ost.var(wide, axis=over, keepdims=True) + eps)


@operator("RMSNormalization")
def rms_norm(at: NodeCall, x: Value, scale: Value) -> Value:
    x = ours(x)
    (d,) = axes_of([at["axis"]], x.ndim)
    return nn.rms_norm(x, axis=tuple(range(d, x.ndim)), eps=at["epsilon"]) * scale


@operator("LRN")
def local_response_norm(at: NodeCall, x: Value) -> Value:
    how = {name: at[name] for name in ("size", "alpha", "beta")}
    return nn.local_response_norm(ours(x), k=at["bias"], **how)


# -- resizing --------------------------------------------------------------------------------
@operator("Resize", "Upsample", reads=[1, 2, 3])
def resize(at: NodeCall, x: Value, *given: Value) -> Value:
    given = (None, *given) if at.version < 11 else given  # scales came first
    region, scales, sizes = [*given, None, None, None][:3]
    axes = axes_of(at.get("axes") or range(x.ndim), x.ndim)
    extents = [x.shape[d] for d in axes]
    how: dict[str, Any] = {"scale": at.get("scales")}  # up to opset 8
    if sizes is not None and sizes.size:
        made = whole_numbers(sizes)
        policy = at.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            ratios = [m / n for m, n in zip(made, extents, strict=True)]
            one = min(ratios) if policy == "not_larger" else max(ratios)
            made = [math.floor(n * one + 0.5) for n in extents]
        how = {"size": made}
    else:
        if scales is not None:
            how = {"scale": known(scales).reshape(-1).tolist()}
        made = [int(n * s) for n, s in zip(extents, how["scale"], strict=True)]
    if max(bounded(made, x.dtype)) > 1 << 24:
        raise ValueError(f"extents {made}")
    where, nearest = at.get("coordinate_transformation_mode", "asymmetric"), at.get("nearest_mode")
    if where == "tf_half_pixel_for_nn":  # of opset 11, as it is with "floor"
        where, nearest = "half_pixel", "round_prefer_ceil"
    if where == "tf_crop_and_resize":
        ends = known(region).reshape(-1).tolist()
        how["roi"] = list(zip(ends[: len(axes)], ends[len(axes) :], strict=True))
    names = ("antialias", "cubic_coeff_a", "exclude_outside", "extrapolation_value")
    how |= {name: at[name] for name in names if at.get(name) is not None}
    return nn.resize(
        ours(x),
        mode=at["mode"],
        coordinate_transformation_mode=where,
        nearest_mode=nearest or "floor",
        axes=axes,
        **how,
    )


# -- recurrent layers ------------------------------------------------------------------------
_ACTIVATIONS: dict[str, Any] = {
    "affine": lambda x, a, b: x * a + b,
    "elu": lambda x, a, b: nn.elu(x, a),
    "hardsigmoid": lambda x, a, b: ost.clip(x * a + b, 0, 1),
    "leakyrelu": lambda x, a, b: nn.leaky_relu(x, a),
    "relu": lambda x, a, b: nn.relu(x),
    "scaledtanh": lambda x, a, b: a * ost.tanh(b * x),
    "sigmoid": lambda x, a, b: ost.sigmoid(x),
    "softplus": lambda x, a, b: ost.softplus(x),
    "softsign": lambda x, a, b: nn.softsign(x),
    "tanh": lambda x, a, b: ost.tanh(x),
    "thresholdedrelu": lambda x, a, b: ost.where(x > a, x, 0),
}
_SCALES = {
    "elu": (1.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
}
_GATES = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _activations(at: NodeCall, direction: int) -> list[Any]:
    count = len(_GATES[at.node.op])
    names = at.get("activations") or _GATES[at.node.op] * 2
    alphas, betas = (list(at.get(f"activation_{n}") or []) for n in ("alpha", "beta"))
    functions = []
    for name in names:
        kind = name.lower()
        a, b = _SCALES.get(kind, (1.0, 0.0))
        if kind in ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"):
            a = alphas.pop(0) if alphas else a
        if kind in ("affine", "hardsigmoid", "scaledtanh"):
            b = betas.pop(0) if betas else b
        functions.append(lambda x, f=_ACTIVATIONS[kind], a=a, b=b: f(x, a, b))
    return functions[direction * count : (direction + 1) * count]


def _recurrence(at: NodeCall, direction: int, r: Any, rb: Any, peep: Any, hidden: int) -> Any:
    """One step: of the state and what the input gives to the gates, the next state."""
    fs, limit = _activations(at, direction), at.get("clip")

    def cut(x: Any) -> Any:
        return x if limit is None else ost.clip(x, -limit, limit)

    def parts(x: Any) -> list[Any]:
        return [x[:, k * hidden : (k + 1) * hidden] for k in range(x.shape[1] // hidden)]

    def rnn(state: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        return (fs[0](cut(x + state[0] @ r.T + rb)),)

    def gru(state: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        (h,) = state
        xz, xr, xh = parts(x)
        if at["linear_before_reset"]:
            hz, hr, hh = parts(h @ r.T + rb)
            z, reset = fs[0](cut(xz + hz)), fs[0](cut(xr + hr))
            new = fs[1](cut(xh + reset * hh))
        else:
            hz, hr = parts(h @ r[: 2 * hidden].T + rb[: 2 * hidden])
            z, reset = fs[0](cut(xz + hz)), fs[0](cut(xr + hr))
            new = fs[1](cut(xh + (reset * h) @ r[2 * hidden :].T + rb[2 * hidden :]))
        return ((1 - z) * new + z * h,)

    def lstm(state: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        h, c = state
        i, o, f, g = parts(x + h @ r.T + rb)
        pi, po, pf = peep
        i, f = fs[0](cut(i + pi * c)), fs[0](cut(f + pf * c))
        f = 1 - i if at["input_forget"] else f
        c = f * c + i * fs[1](cut(g))
        return fs[0](cut(o + po * c)) * fs[2](c), c

    return {"RNN": rnn, "GRU": gru, "LSTM": lstm}[at.node.op]


@operator("RNN", "GRU", "LSTM")
def recurrent(
    at: NodeCall,
    x: Value,
    w: Value,
    r: Value,
    bias: Value = None,
    lengths: Value = None,
    h: Value = None,
    c: Value = None,
    peepholes: Value = None,
) -> Value:
    """A scan over time for each direction; of samples that have ended the state stays, and results are 0."""
    x, w, r = ours(x), ours(w), ours(r)
    first = bool(at.get("layout", 0))
    x = ost.swapaxes(x, 0, 1) if first else x
    steps, batch, _ = x.shape
    ways, hidden, gates = r.shape[0], r.shape[2], r.shape[1]
    states = 2 if at.node.op == "LSTM" else 1
    outs, ends = [], list[Any]()
    for k in range(ways):
        wb = rb = ost.zeros((gates,), dtype=x.dtype)
        if bias is not None:
            wb, rb = ours(bias)[k, :gates], ours(bias)[k, gates:]
        zero = ost.zeros((hidden,), dtype=x.dtype)
        peep = [zero] * 3
        if peepholes is not None:
            peep = [ours(peepholes)[k, j * hidden : (j + 1) * hidden] for j in range(3)]
        step = _recurrence(at, k, r[k], rb, peep, hidden)
        begin = []
        for given in (h, c)[:states]:
            if given is None:
                begin.append(ost.zeros((batch, hidden), dtype=x.dtype))
            else:
                begin.append(ours(given)[:, k] if first else ours(given)[k])
        back = k == 1 or at["direction"] == "reverse"
        gated = ost.matmul(x, w[k].T) + wb
        times = ost.arange(steps)

        def turn(state: Any, given: Any, step: Any = step) -> Any:
            gate, t = given
            new = step(state, gate)
            if lengths is None:
                return tuple(new), new[0]
            there = (t < ours(lengths))[:, None]
            kept = tuple([ost.where(there, a, b) for a, b in zip(new, state, strict=True)])
            return kept, ost.where(there, new[0], 0)

        end, made = ost.scan(turn, tuple(begin), (gated, times), reverse=back)
        outs.append(made)
        ends.append(end)
    y = ost.stack(outs, 1)  # time, direction, sample, feature
    last = [ost.stack([e[j] for e in ends], 0) for j in range(states)]
    if first:
        y, last = ost.permute_dims(y, (2, 0, 1, 3)), [ost.swapaxes(s, 0, 1) for s in last]
    return (y, *last)
