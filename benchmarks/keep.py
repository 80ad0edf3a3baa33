"""What has to earn its place: mechanisms of our own, and the same work without them.

`without` is the same program with the mechanism taken out: by the library that stands behind it, or by
what the planner would do next. `onednn` does bias and activation in the library's own product."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .kernels import workload
from .libraries import case, nothing, ostinato_case
from .products import in_turns, numbers
from .workload import Case, Numbers, Workload, scaled

Operands = Callable[[], Sequence[Numbers]]


def without(take_out: Callable[[], None], function: Any, operands: Operands) -> Case:
    """In a process of its own, so that nobody else misses it."""
    take_out()
    return ostinato_case(function, operands())


def natives(*names: str) -> Callable[[], None]:
    def take_out() -> None:
        from ostinato.ops.cpu.cpu_device import CPU

        for name in names:
            del CPU.natives[name]

    return take_out


def no_triangles() -> None:
    from ostinato.planner.cpu import symmetric

    _leave_out(symmetric.halve)


def no_epilogue() -> None:
    from ostinato.planner.cpu import fuse

    fuse.MIN_ROWS = 1 << 62  # type: ignore[attr-defined]


def nothing_stays() -> None:
    from ostinato.planner.cpu import prepack

    _leave_out(prepack.mark_prepacked)


def _leave_out(one: Any) -> None:
    """Plan without a pass."""
    from ostinato.planner.lowering import RULES

    RULES["cpu"] = replace(RULES["cpu"], passes=[p for p in RULES["cpu"].passes if p is not one])


def no_streams() -> None:
    from ostinato.ops.cpu.kernels import gemm

    gemm.STREAMS = 1 << 62  # type: ignore[attr-defined]


def no_zen() -> None:
    """Results go past the caches from the size on from which they do elsewhere."""
    from ostinato.ops.cpu.loops import flat

    flat.processor = str  # type: ignore[attr-defined]


def nobody_counts() -> None:
    from ostinato.planner.fusion import counting

    counting.MIN_READ_ELEMENTS = 1 << 62


# -- the work ------------------------------------------------------------------------------
def gram(xp: Any, x: Any) -> Any:
    return x.T @ x


def product(xp: Any, a: Any, b: Any) -> Any:
    return a @ b


def turned_left(xp: Any, a: Any, b: Any) -> Any:
    return a.T @ b


def plus(xp: Any, x: Any, y: Any) -> Any:
    return x + y


def counted(xp: Any, x: Any) -> Any:
    return x * xp.linspace(0, 1, x.size) + xp.arange(x.size)


def sort(xp: Any, x: Any) -> Any:
    return xp.sort(x, axis=-1)


def dense(xp: Any, x: Any, w: Any, b: Any) -> Any:
    return xp.maximum(x @ w + b, xp.zeros_like(b))


def by_onednn(operands: Operands) -> Case:
    """The library's own product with bias and maximum, called by ctypes."""
    from ostinato.ops.cpu.libraries.onednn import _Argument, _engine, _owner
    from ostinato.ops.jit.stacks import Stack, stacked

    x, w, b = operands()
    y = np.empty((x.shape[0], w.shape[1]), x.dtype)
    stacks = stacked(x, w, y)
    assert stacks is not None
    with _owner(*stacks) as owner:  # in as many threads as OpenMP has
        found = owner.library
        stream = owner.make("stream", "dnnl_stream_create", _engine(), 1)
        bias = Stack((1, b.size), (b.size, 1), b.dtype)
        forms = [owner.descriptor(s) for s in (*stacks, bias)]
        after = owner.make("post_ops", "dnnl_post_ops_create")
        none = ctypes.c_float(0)
        assert found.dnnl_post_ops_append_eltwise(after, 0x20, none, none) == 0  # relu
        attributes = owner.make("primitive_attr", "dnnl_primitive_attr_create")
        assert found.dnnl_primitive_attr_set_post_ops(attributes, after) == 0
        given = (_engine(), forms[0], forms[1], forms[3], forms[2], attributes)
        made = owner.make("primitive_desc", "dnnl_matmul_primitive_desc_create", *given)
        primitive = owner.make("primitive", "dnnl_primitive_create", made)
        held = [owner.memory(f, v.ctypes.data) for f, v in zip(forms, (x, w, y, b), strict=True)]
        which = (1, 33, 17, 41)  # source, weights, result, bias
        arguments = (_Argument * 4)(*map(_Argument, which, held))

    def run() -> Any:
        assert found.dnnl_primitive_execute(primitive, stream, 4, arguments) == 0
        found.dnnl_stream_wait(stream)
        return y

    return case(run, (), nothing, np.asarray)


def keep(
    name: str,
    about: str,
    function: Any,
    operands: Operands,
    take_out: Callable[[], None],
    traffic: float,
    flops: float = 0,
    **others: Callable[[], Case],
) -> Workload:
    """As it is, without, and by NumPy."""
    cases: dict[str, Callable[[], Case]] = {f"ostinato/{n}": make for n, make in others.items()}
    cases["ostinato/without"] = functools.partial(without, take_out, function, operands)
    only = ("ostinato", "numpy", *cases)
    return workload(name, about, function, operands, traffic, flops, others=cases, only=only)


ROWS, LONG = scaled(200_000), scaled(10_000_000)
X = numbers((ROWS, 400))
LAYER = numbers((128, 784), (784, 528), (528,))
WEIGHTS = numbers((16, 1024), (1024, 1024))


def changing(function: Any) -> Case:
    nothing_stays()
    return in_turns(function, WEIGHTS, 1)


WORKLOADS = (
    keep(
        "triangle",
        f"x.T @ x of ({ROWS:,}, 400): half of it, against a whole product",
        gram,
        X,
        no_triangles,
        1600 * ROWS,
        400 * 401 * ROWS,
    ),
    keep(
        "streams_turned",
        "x.T @ y, (50000, 300) and (50000,), in float64: our streams, against BLAS",
        turned_left,
        numbers((50_000, 300), (50_000,), dtype=np.float64),
        no_streams,
        120e6,
    ),
    keep(
        "in_caches",
        "x + y, 1,500,000 float32 each: on Zen 4 what the caches hold stays there",
        plus,
        numbers((1_500_000,), (1_500_000,)),
        no_zen,
        12 * 1_500_000,
    ),
    keep(
        "counts",
        "x * linspace + arange, 1,000,000 float64: kernels count, against arrays of numbers",
        counted,
        numbers((1_000_000,), dtype=np.float64),
        nobody_counts,
        16 * 1_000_000,
    ),
    keep(
        "sort",
        f"{LONG:,} float32: by digits, against NumPy's",
        sort,
        numbers((LONG,)),
        natives("sort"),
        8 * LONG,
    ),
    keep(
        "sort_rows",
        f"({LONG // 1000:,}, 1000) float32, along rows",
        sort,
        numbers((LONG // 1000, 1000)),
        natives("sort"),
        8 * LONG,
    ),
    keep(
        "dense",
        "max(x @ w + b, 0), 128 x 784 x 528: in blocks behind the product, against two kernels",
        dense,
        LAYER,
        no_epilogue,
        4 * (128 * 784 + 784 * 528 + 128 * 528),
        2 * 128 * 784 * 528,
        onednn=functools.partial(by_onednn, LAYER),
    ),
    workload(
        "stays",
        "16 x 1024 x 1024: weights that stay are kept packed, against never",
        product,
        WEIGHTS,
        4 * (16 * 1024 + 1024 * 1024 + 16 * 1024),
        2 * 16 * 1024 * 1024,
        others={
            "ostinato": functools.partial(in_turns, product, WEIGHTS, 1),
            "ostinato/without": functools.partial(changing, product),
        },
        only=("ostinato", "ostinato/without", "numpy"),
    ),
)
