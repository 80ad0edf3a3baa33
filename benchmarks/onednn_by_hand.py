"""Single convolutions by oneDNN as its guide has them: every array in the form that the library likes best,
weights packed before, its own threads. What no call of a convolution can be much faster than."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.cpu.libraries.onednn_conv import _KINDS, _dims, _Name

from .libraries import case, nothing
from .machine import THREADS
from .workload import Case, Numbers

F32, ANY, PLAIN = 3, 1, {3: 4, 4: 5, 5: 6}  # dnnl.h's: float32; any form; the order of axes


def conv_case(
    kind: str, x: Numbers, w: Numbers, g: Numbers, strides: Sequence[int], dilation: Sequence[int],
    pads: Sequence[int], groups: int,
) -> Case:  # fmt: skip
    """`kind`: "forward" of x and w, slopes of "data" of g and w, or of "weights" of x and g."""
    library, engine = onednn.library(), onednn._engine()
    onednn.omp()["omp_set_num_threads"].function(None, ctypes.c_int)(THREADS)
    owner, asked = onednn._Owner(library), w.shape
    n, m = x.ndim, x.ndim + (groups > 1)
    if groups > 1:
        w = w.reshape(groups, len(w) // groups, *w.shape[1:])
    tag = "dnnl_memory_desc_create_with_tag"
    shapes = [x.shape, w.shape, g.shape]
    best = [owner.make("memory_desc", tag, len(s), _dims(s), F32, ANY) for s in shapes]
    lies = [owner.make("memory_desc", tag, k, _dims(s), F32, PLAIN.get(k, 7))
            for k, s in zip((n, m, n), shapes, strict=True)]  # fmt: skip
    ends = [_dims(v) for v in (strides, [d - 1 for d in dilation], pads, pads)]
    name = "dnnl_convolution_{}_primitive_desc_create"
    forward = engine, _Name.INFERENCE, _Name.DIRECT, best[0], best[1], None, best[2], *ends
    pad = onednn.user_scratchpad(owner)
    made = owner.make("primitive_desc", name.format("forward"), *forward, pad)
    if kind != "forward":
        bias = (None,) if kind == "weights" else ()
        given = engine, _Name.DIRECT, best[0], best[1], *bias, best[2], *ends, made, pad
        made = owner.make("primitive_desc", name.format(f"backward_{kind}"), *given)
    order, which, _ = _KINDS[kind]
    query, held = library.dnnl_primitive_desc_query_md, []
    stream = owner.make("stream", "dnnl_stream_create", engine, 1)
    forms = [ctypes.c_void_p(query(made, _QUERIES[name], 0)) for name in which]
    places = [onednn._room(owner, form) for form in forms]
    memories = [owner.memory(f, at) for f, (_, at) in zip(forms, places, strict=True)]
    plain = [np.ascontiguousarray((x, w, g)[k]) for k in order]
    outside = [owner.memory(lies[k], a.ctypes.data) for k, a in zip(order, plain, strict=True)]
    for k in (0, 1):
        onednn._reorder(owner, lies[order[k]], outside[k], forms[k], memories[k])
    scratch = ctypes.c_void_p(query(made, onednn._QUERY_SCRATCHPAD, 0))
    room, at = onednn._room(owner, scratch)
    list_ = [onednn._Argument(w_, m_) for w_, m_ in zip(which, memories, strict=True)]
    list_.append(onednn._Argument(onednn._SCRATCHPAD, owner.memory(scratch, at)))
    arguments = (onednn._Argument * 4)(*list_)
    primitive = owner.make("primitive", "dnnl_primitive_create", made)
    held += [owner, places, plain, room, arguments]

    def run(*_: Any) -> Any:
        if library.dnnl_primitive_execute(primitive, stream, 4, arguments):
            raise RuntimeError("dnnl_primitive_execute")
        return held

    def host(_: Any) -> Any:
        onednn._reorder(owner, forms[2], memories[2], lies[order[2]], outside[2])
        return plain[2].reshape(asked) if kind == "weights" else plain[2]

    found = case(run, (), nothing, host)
    return Case(found.answer, found.loop, note=lambda: onednn._name(owner, made))


_QUERIES = {
    _Name.SOURCE: 129, _Name.WEIGHTS: 131, _Name.RESULT: 133,
    _Name.SOURCE_SLOPES: 130, _Name.WEIGHTS_SLOPES: 132, _Name.RESULT_SLOPES: 134,
}  # fmt: skip
