"""What a name is called here that is not there: NumPy's, SciPy's, JAX's, PyTorch's and Dask's
names, the same name in another module, and the nearest one."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any

OURS = {  # what is no name is what to write
    "apply_over_axes": "ostinato.sum(x, axis=axes), or what it applies",
    "array2string": "str(x), or np.array2string(np.asarray(x))",
    "array_repr": "repr(x)",
    "array_str": "str(x)",
    "asanyarray": "asarray",
    "ascontiguousarray": "asarray",
    "asfortranarray": "asarray",
    "block_until_ready": "evaluate",
    "bmat": "block",
    "bmm": "matmul",
    "bool8": "bool",
    "bool_": "bool",
    "cat": "concat",
    "cdouble": "complex128",
    "cdist": "ostinato.linalg.vector_norm(x[:, None] - y, axis=-1)",
    "choose": "ostinato.select([k == 0, k == 1], [x, y])",
    "clamp": "clip",
    "common_type": "result_type",
    "complex_": "complex128",
    "compress": "x[mask], or ostinato.take(x, places, axis)",
    "compute": "evaluate",
    "copyto": "where",
    "csingle": "complex64",
    "custom_jvp": "custom_gradient",
    "custom_vjp": "custom_gradient",
    "debug": "ostinato.callback(print, ...)",
    "device_get": "np.asarray(x)",
    "device_put": "ostinato.asarray(x, split=...)",
    "div": "divide",
    "dot_product_attention": "nn.attention",
    "double": "float64",
    "einsum_path": "ostinato.einsum, which takes the cheapest path",
    "eval_shape": "ostinato.plan(f, ostinato.spec(shape)).out_specs",
    "extract": "x[mask]",
    "fftconvolve": "ostinato.fft.irfft(ostinato.fft.rfft(x, n) * ostinato.fft.rfft(y, n), n)",
    "float_": "float64",
    "fori_loop": "repeat",
    "frombuffer": "ostinato.asarray(np.frombuffer(bytes, dtype))",
    "fromiter": "ostinato.asarray(list(values))",
    "from_array": "asarray",
    "from_numpy": "asarray",
    "from_zarr": "ostinato.load(path, resident=False)",
    "frompyfunc": "vectorize",
    "gcd": "math.gcd, or np.gcd(np.asarray(x), ...)",
    "genfromtxt": "ostinato.load('table.csv')",
    "in1d": "isin",
    "index_add": "segment_sum",
    "int_": "int64",
    "intp": "int64",
    "iota": "arange",
    "issubdtype": "isdtype",
    "jacfwd": "jacobian",
    "jacrev": "jacobian",
    "jit": "compile",
    "lgamma": "special.gammaln",
    "lcm": "math.lcm, or np.lcm(np.asarray(x), ...)",
    "loadtxt": "ostinato.load('table.csv')",
    "map_blocks": "ostinato.compile, which works in blocks by itself",
    "map_overlap": "ostinato.compile, which exchanges edges by itself",
    "masked_fill": "where",
    "matvec": "ostinato.matmul(a, x[..., None])[..., 0]",
    "may_share_memory": "np.may_share_memory(np.asarray(x), np.asarray(y))",
    "mm": "matmul",
    "mul": "multiply",
    "ndarray": "Array",
    "ndim": "x.ndim",
    "neg": "negative",
    "no_grad": "stop_gradient",
    "norm": "linalg.norm",
    "numel": "x.size",
    "persist": "evaluate",
    "place": "where",
    "pmap": "ostinato.compile, and operands with split=",
    "pmean": "ostinato.mean of an array in parts",
    "poly1d": "polyval",
    "product": "prod",
    "promote_types": "result_type",
    "psum": "ostinato.sum of an array in parts",
    "pure_callback": "callback",
    "put": "ostinato.put_along_axis, or x[places] = values",
    "putmask": "where",
    "rand": "random.uniform",
    "randint": "random.integers",
    "randn": "random.normal",
    "rechunk": "resplit",
    "remat": "checkpoint",
    "resize": "reshape",
    "rfft": "fft.rfft",
    "rollaxis": "moveaxis",
    "row_stack": "vstack",
    "savetxt": "np.savetxt(path, np.asarray(x))",
    "savez": "ostinato.save_state(path, {'x': x})",
    "savez_compressed": "ostinato.save_state(path, {'x': x})",
    "scatter_add": "segment_sum",
    "shape": "x.shape",
    "shard_map": "ostinato.compile, and operands with split=",
    "single": "float32",
    "size": "x.size",
    "sort_complex": "ostinato.lexsort((x.imag, x.real))",
    "sub": "subtract",
    "switch": "cond",
    "tensor": "asarray",
    "to_zarr": "save",
    "top_k": "topk",
    "trapz": "trapezoid",
    "tree": "tree_map",
    "unsqueeze": "expand_dims",
    "vecmat": "ostinato.matmul(x.conj()[..., None, :], a)[..., 0, :]",
    "with_sharding_constraint": "resplit",
}
IN_ROOMS = {  # of a module's own
    "linalg.LinAlgError": "errors.LinAlgError",
    "linalg.eigh_tridiagonal": "ostinato.linalg.eigh of the whole matrix",
    "linalg.logm": "v * ostinato.log(w) @ ostinato.linalg.inv(v) of w, v = ostinato.linalg.eig(x)",
    "linalg.null_space": "ostinato.linalg.svd(x).Vh[rank:].mT",
    "linalg.orth": "ostinato.linalg.svd(x, full_matrices=False).U[:, :rank]",
    "linalg.pinvh": "linalg.pinv",
    "linalg.sqrtm": "v * ostinato.sqrt(w) @ ostinato.linalg.inv(v) of w, v = ostinato.linalg.eig(x)",
    "linalg.solve_sylvester": "ostinato.linalg.solve of ostinato.kron(eye, a) + ostinato.kron(b.T, eye)",
    "nn.dot_product_attention": "nn.attention",
    "nn.hard_swish": "x * ostinato.nn.hard_sigmoid(x)",
    "nn.logmeanexp": "logsumexp",
    "nn.soft_sign": "nn.softsign",
    "nn.swish": "nn.silu",
    "random.PRNGKey": "ostinato.random.normal(..., seed=7)",
    "random.RandomState": "random.default_rng",
    "random.key": "ostinato.random.normal(..., seed=7)",
    "random.random": "random.uniform",
    "random.random_sample": "random.uniform",
    "random.ranf": "random.uniform",
    "random.sample": "random.uniform",
    "random.split": "random.fold",
    "random.standard_cauchy": "random.cauchy",
    "random.standard_exponential": "random.exponential",
    "random.standard_gamma": "random.gamma",
    "random.standard_normal": "random.normal",
    "special.loggamma": "special.gammaln",
    "special.iv": "ostinato.special.i0 or i1, the orders that are here",
    "special.jv": "ostinato.special.j0 or j1, the orders that are here",
    "special.kn": "ostinato.special.k0 or k1, the orders that are here",
    "special.kv": "ostinato.special.k0 or k1, the orders that are here",
    "special.yn": "ostinato.special.y0 or y1, the orders that are here",
    "special.jn": "ostinato.special.j0 or j1, the orders that are here",
}
METHODS = {  # of arrays
    "__array_interface__": "np.asarray(x)",  # which is what Pillow's Image.fromarray asks for
    "block_until_ready": "ostinato.evaluate(x)",
    "byteswap": "np.asarray(x).byteswap()",
    "compress": "x[mask]",
    "compute": "np.asarray(x)",
    "cpu": "np.asarray(x)",
    "cuda": "ostinato.connect(device='cuda')",
    "dim": "x.ndim",
    "double": "x.astype(ostinato.float64)",
    "fill": "x[...] = value",
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
    ours = IN_ROOMS.get(f"{room}.{name}") or OURS.get(name)
    if ours is not None and not _is_name(ours):
        return f"; write {ours}"
    if ours is not None and (not room or room in ours.split(".") or name not in names_in("")):
        return f"; here it is ostinato.{ours}"
    elsewhere = "" if room == "random" else _elsewhere(name, room)  # a distribution is no function
    if elsewhere:
        return f"; here it is ostinato.{elsewhere}"
    places = dict.fromkeys((room, "", *ROOMS))
    known = {n: f"{r}.{n}" if r else n for r in reversed(places) for n in names_in(r)}
    near = difflib.get_close_matches(name, known, 1, NEAR)
    return f"; the nearest name is ostinato.{known[near[0]]}" if near else ""


def _is_name(ours: str) -> bool:
    return re.fullmatch(r"(?!x\.|np\.)\w+(\.\w+)?", ours) is not None


def of_method(name: str) -> str:
    """The same of an attribute of arrays."""
    ours = METHODS.get(name)
    if name.startswith("_") and ours is None:
        return ""
    if ours is None:
        here = name if name in names_in("") else _elsewhere(name, "")
        if not here and _is_name(OURS.get(name, "")):
            here = OURS[name]
        ours = f"ostinato.{here}(x)" if here else None
    return f"; write {ours}" if ours else ""


def of_numpy(name: str) -> str:
    """What is here for one of NumPy's functions, such as `linalg.eig`; empty if nothing is."""
    room, _, own = name.rpartition(".")
    ours = OURS.get(own)
    if ours is not None and not room:
        return f"ostinato.{ours}" if _is_name(ours) else ours
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
