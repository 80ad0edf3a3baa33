"""What a name is called here that is not there: NumPy's, SciPy's, JAX's, PyTorch's and Dask's
names, the same name in another module, and the nearest one."""

from __future__ import annotations

import difflib
import sys
from typing import Any

_ARC = {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
OURS = {  # beginning with "ostinato.": more than a name
    **_ARC,
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "apply_along_axis": "vmap",
    "around": "round",
    "array": "asarray",
    "asanyarray": "asarray",
    "ascontiguousarray": "asarray",
    "bitwise_not": "bitwise_invert",
    "block_until_ready": "evaluate",
    "bmm": "matmul",
    "cat": "concat",
    "clamp": "clip",
    "compute": "evaluate",
    "conjugate": "conj",
    "copyto": "where",
    "device_put": "ostinato.asarray(x, split=...)",
    "div": "divide",
    "fabs": "abs",
    "fix": "trunc",
    "fori_loop": "repeat",
    "from_array": "asarray",
    "from_numpy": "asarray",
    "in1d": "isin",
    "index_add": "segment_sum",
    "invert": "bitwise_invert",
    "jit": "compile",
    "lgamma": "special.gammaln",
    "left_shift": "bitwise_left_shift",
    "mm": "matmul",
    "mod": "remainder",
    "mul": "multiply",
    "neg": "negative",
    "no_grad": "stop_gradient",
    "norm": "linalg.norm",
    "place": "where",
    "pmap": "ostinato.compile, and operands with split=",
    "power": "pow",
    "product": "prod",
    "rand": "random.uniform",
    "randn": "random.normal",
    "rechunk": "resplit",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
    "row_stack": "vstack",
    "scatter_add": "segment_sum",
    "sub": "subtract",
    "tensor": "asarray",
    "trapz": "trapezoid",
    "true_divide": "divide",
    "unique": "unique_values",
    "unsqueeze": "expand_dims",
    "vectorize": "vmap",
}
METHODS = {  # of arrays
    "block_until_ready": "ostinato.evaluate(x)",
    "byteswap": "np.asarray(x).byteswap()",
    "compress": "x[mask]",
    "compute": "np.asarray(x)",
    "cpu": "np.asarray(x)",
    "cuda": "ostinato.connect(device='cuda')",
    "dim": "x.ndim",
    "double": "x.astype(ostinato.float64)",
    "fill": "ostinato.full_like(x, value)",
    "flat": "x.ravel()",
    "float": "x.astype(ostinato.float32)",
    "half": "x.astype(ostinato.float16)",
    "itemset": "x.at[places].set(values)",
    "long": "x.astype(ostinato.int64)",
    "mm": "x @ y",
    "persist": "ostinato.evaluate(x)",
    "permute": "x.transpose(axes)",
    "put": "x.at[places].set(values)",
    "rechunk": "x.resplit(split)",
    "resize": "x.reshape(shape)",
    "scatter_add": "x.at[places].add(values)",
    "t": "x.T",
    "to": "x.astype(dtype) or x.to_device(device)",
    "tobytes": "np.asarray(x).tobytes()",
    "tofile": "ostinato.save(path, x)",
    "type": "x.astype(dtype)",
    "unsqueeze": "ostinato.expand_dims(x, axis=axis)",
}
ROOMS = ("linalg", "fft", "special", "random", "nn", "optim")
NEAR = 0.75  # how alike the nearest name is


def hint(name: str, room: str = "") -> str:
    """What to write instead of a name of `ostinato`, or of a module in it, as the end of a
    sentence."""
    if name.startswith("_"):
        return ""
    ours = OURS.get(name)
    if ours is not None and (not room or ours.startswith(f"{room}.") or "." not in ours):
        return f"; write {ours}" if "ostinato." in ours else f"; here it is ostinato.{ours}"
    elsewhere = "" if room == "random" else _elsewhere(name, room)  # a distribution is no function
    if elsewhere:
        return f"; here it is ostinato.{elsewhere}"
    places = dict.fromkeys((room, "", *ROOMS))
    known = {n: f"{r}.{n}" if r else n for r in reversed(places) for n in names_in(r)}
    near = difflib.get_close_matches(name, known, 1, NEAR)
    return f"; the nearest name is ostinato.{known[near[0]]}" if near else ""


def of_method(name: str) -> str:
    """The same of an attribute of arrays."""
    if name.startswith("_"):
        return ""
    ours = METHODS.get(name)
    if ours is None:
        here = name if name in names_in("") else _elsewhere(name, "")
        if not here and "ostinato." not in OURS.get(name, "ostinato."):
            here = OURS[name]
        ours = f"ostinato.{here}(x)" if here else None
    return f"; write {ours}" if ours else ""


def of_numpy(name: str) -> str:
    """What is here for one of NumPy's functions, such as `linalg.eig`; empty if nothing is."""
    room, _, own = name.rpartition(".")
    ours = OURS.get(own)
    if ours is not None and not room:
        return ours if "ostinato." in ours else f"ostinato.{ours}"
    if own in names_in(room):
        return f"ostinato.{name}"
    elsewhere = _elsewhere(own, room)
    return f"ostinato.{elsewhere}" if elsewhere else ""


def missing(room: str) -> Any:
    """A module's `__getattr__`."""

    def __getattr__(name: str) -> Any:
        here = f"ostinato.{room}"
        message = f"module {here!r} has no attribute {name!r}{hint(name, room)}"
        raise AttributeError(message, name=name, obj=sys.modules.get(f"ostinato.ops.{room}"))

    return __getattr__


def _elsewhere(name: str, room: str) -> str:
    for other in ("", *ROOMS):
        if other != room and name in names_in(other):
            return f"{other}.{name}" if other else name
    return ""


def names_in(room: str) -> list[str]:
    """What is public there; nothing, before all of it is imported."""
    front: Any = sys.modules.get("ostinato")
    if "__version__" not in vars(front or sys):
        return []
    module = getattr(front, room, None) if room else front
    return [n for n in getattr(module, "__all__", None) or dir(module) if not n.startswith("_")]
