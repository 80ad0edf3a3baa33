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
    "asarray_chkfinite": "asarray",
    "ascontiguousarray": "asarray",
    "asfortranarray": "asarray",
    "asmatrix": "atleast_2d",
    "block_until_ready": "evaluate",
    "bmat": "block",
    "bmm": "matmul",
    "bool8": "bool",
    "bool_": "bool",
    "c_": "column_stack",
    "cat": "concat",
    "cdist": "ostinato.linalg.vector_norm(x[:, None] - y, axis=-1)",
    "cdouble": "complex128",
    "choose": "ostinato.select([k == 0, k == 1], [x, y])",
    "clamp": "clip",
    "Client": "connect",
    "common_type": "result_type",
    "complex_": "complex128",
    "compress": "x[mask], or ostinato.take(x, places, axis)",
    "compute": "evaluate",
    "conv": "convolve",
    "conv2d": "ostinato.sliding_window_view and ostinato.einsum",
    "copyto": "where",
    "csingle": "complex64",
    "custom_jvp": "custom_gradient",
    "custom_vjp": "custom_gradient",
    "debug": "ostinato.callback(print, ...)",
    "delayed": "compile",
    "device_get": "np.asarray(x)",
    "device_put": "ostinato.asarray(x, split=...)",
    "div": "divide",
    "dot_product_attention": "nn.attention",
    "double": "float64",
    "dtype": "np.dtype(...)",
    "einsum_path": "ostinato.einsum, which takes the cheapest path",
    "euler_gamma": "np.euler_gamma",
    "eval_shape": "ostinato.plan(f, ostinato.spec(shape)).out_specs",
    "extract": "x[mask]",
    "fftconvolve": "ostinato.fft.irfft(ostinato.fft.rfft(x, n) * ostinato.fft.rfft(y, n), n)",
    "float_": "float64",
    "floating": "ostinato.isdtype(x.dtype, 'real floating')",
    "fori_loop": "repeat",
    "from_array": "asarray",
    "from_numpy": "asarray",
    "from_zarr": "ostinato.load(path, resident=False)",
    "frombuffer": "ostinato.asarray(np.frombuffer(bytes, dtype))",
    "fromfile": "ostinato.asarray(np.fromfile(path, dtype))",
    "fromiter": "ostinato.asarray(list(values))",
    "frompyfunc": "vectorize",
    "genfromtxt": "ostinato.load('table.csv')",
    "in1d": "isin",
    "index_add": "segment_sum",
    "index_exp": "np.index_exp[...], which makes slices",
    "int_": "int64",
    "integer": "ostinato.isdtype(x.dtype, 'integral')",
    "integrate": "solve.rk45",
    "intp": "int64",
    "iota": "arange",
    "isscalar": "np.isscalar(x)",
    "issubdtype": "isdtype",
    "jacfwd": "jacobian",
    "jacrev": "jacobian",
    "jit": "compile",
    "lax": "ostinato.while_loop, ostinato.scan, ostinato.cond",
    "lgamma": "special.gammaln",
    "loadtxt": "ostinato.load('table.csv')",
    "ma": "ostinato.where(mask, x, ostinato.nan), and ostinato.nanmean and its kin",
    "manual_seed": "random.seed",
    "map_blocks": "ostinato.compile, which works in blocks by itself",
    "map_overlap": "ostinato.compile, which exchanges edges by itself",
    "masked_fill": "where",
    "matvec": "ostinato.matmul(a, x[..., None])[..., 0]",
    "may_share_memory": "np.may_share_memory(np.asarray(x), np.asarray(y))",
    "memmap": "ostinato.load(path, resident=False)",
    "mgrid": "ostinato.meshgrid(x, y, indexing='ij')",
    "mm": "matmul",
    "mul": "multiply",
    "ndarray": "Array",
    "ndim": "x.ndim",
    "neg": "negative",
    "no_grad": "stop_gradient",
    "norm": "linalg.norm",
    "numel": "x.size",
    "numpy": "ostinato.sum(x), without a module between",
    "ogrid": "ostinato.meshgrid(x, y, indexing='ij', sparse=True)",
    "optimize": "solve.lbfgs",
    "persist": "evaluate",
    "place": "where",
    "pmap": "ostinato.compile, and operands with split=",
    "pmax": "ostinato.max of an array in parts",
    "pmean": "ostinato.mean of an array in parts",
    "pmin": "ostinato.min of an array in parts",
    "poly1d": "polyval",
    "polydiv": "np.polydiv(np.asarray(u), np.asarray(v))",
    "polynomial": "ostinato.polyfit, ostinato.polyval and their kin",
    "printoptions": "np.printoptions(...), which holds for these arrays, too",
    "product": "prod",
    "promote_types": "result_type",
    "psum": "ostinato.sum of an array in parts",
    "pure_callback": "callback",
    "put": "ostinato.put_along_axis, or x[places] = values",
    "putmask": "where",
    "r_": "concat",
    "rand": "random.uniform",
    "randint": "random.integers",
    "randn": "random.normal",
    "real_if_close": "ostinato.real(x)",
    "rechunk": "resplit",
    "relu": "nn.relu",
    "remat": "checkpoint",
    "resize": "reshape",
    "rfft": "fft.rfft",
    "rollaxis": "moveaxis",
    "row_stack": "vstack",
    "s_": "np.s_[...], which makes slices",
    "savetxt": "np.savetxt(path, np.asarray(x))",
    "savez": "ostinato.save_state(path, {'x': x})",
    "savez_compressed": "ostinato.save_state(path, {'x': x})",
    "scatter_add": "segment_sum",
    "set_printoptions": "np.set_printoptions(...), which holds for these arrays, too",
    "shape": "x.shape",
    "shard_map": "ostinato.compile, and operands with split=",
    "signal": "ostinato.convolve, or ostinato.fft",
    "single": "float32",
    "size": "x.size",
    "softmax": "nn.softmax",
    "sort_complex": "ostinato.lexsort((x.imag, x.real))",
    "spacing": "ostinato.nextafter(x, ostinato.inf) - x",
    "sparse": "ostinato.solve.cg(lambda x: product, b)",
    "stats": "ostinato.random, ostinato.special and ostinato.quantile",
    "sub": "subtract",
    "switch": "cond",
    "tensor": "asarray",
    "Tensor": "Array",
    "testing": "np.testing.assert_allclose(x, y), which takes these arrays",
    "to_zarr": "save",
    "top_k": "topk",
    "trapz": "trapezoid",
    "tree": "tree_map",
    "trim_zeros": "ostinato.asarray(np.trim_zeros(np.asarray(x)))",
    "unsqueeze": "expand_dims",
    "vecmat": "ostinato.matmul(x.conj()[..., None, :], a)[..., 0, :]",
    "with_sharding_constraint": "resplit",
}
IN_ROOMS = {  # of a module's own
    "fft.dct": "ostinato.fft.rfft of the array and its mirror image",
    "fft.next_fast_len": "scipy.fft.next_fast_len(n)",
    "io.csv": "io.table",
    "io.DataLoader": "ostinato.io.samples(dataset).shuffle().batch(n)",
    "io.Dataset": "io.samples",
    "io.from_generator": "io.stream",
    "io.from_tensor_slices": "io.arrays",
    "io.ImageFolder": "ostinato.io.images(pattern, labels='folder')",
    "io.load": "load",
    "io.parquet": "io.table",
    "io.read_csv": "io.table",
    "io.save": "save",
    "io.TensorDataset": "io.arrays",
    "linalg.eigh_tridiagonal": "ostinato.linalg.eigh of the whole matrix",
    "linalg.eigvalsh_tridiagonal": "ostinato.linalg.eigvalsh of the whole matrix",
    "linalg.fractional_matrix_power": "v * w**p @ ostinato.linalg.inv(v) of w, v = ostinato.linalg.eig(x)",
    "linalg.funm": "v * f(w) @ ostinato.linalg.inv(v) of w, v = ostinato.linalg.eig(x)",
    "linalg.hilbert": "1 / (i[:, None] + i + 1) of i = ostinato.arange(n)",
    "linalg.ishermitian": "ostinato.allclose(x, x.mT.conj())",
    "linalg.issymmetric": "ostinato.allclose(x, x.mT)",
    "linalg.ldl": "ostinato.linalg.cholesky, or ostinato.linalg.lu",
    "linalg.LinAlgError": "errors.LinAlgError",
    "linalg.null_space": "ostinato.linalg.svd(x).Vh[rank:].mT",
    "linalg.orth": "ostinato.linalg.svd(x, full_matrices=False).U[:, :rank]",
    "linalg.orthogonal_procrustes": "U @ Vh of U, _, Vh = ostinato.linalg.svd(a.T @ b)",
    "linalg.pinvh": "linalg.pinv",
    "linalg.schur": "ostinato.linalg.eigh of symmetric matrices, ostinato.linalg.eig of others",
    "linalg.solve_banded": "ostinato.linalg.solve of the whole matrix",
    "linalg.solve_circulant": "ostinato.fft.ifft(ostinato.fft.fft(b) / ostinato.fft.fft(c)).real",
    "linalg.solve_sylvester": "ostinato.linalg.solve of ostinato.kron(eye, a) + ostinato.kron(b.T, eye)",
    "linalg.solve_toeplitz": "ostinato.linalg.solve(ostinato.linalg.toeplitz(c), b)",
    "linalg.solveh_banded": "ostinato.linalg.solve of the whole matrix",
    "nn.avg_pool2d": "ostinato.sliding_window_view(x, (2, 2), axis=(-2, -1))[..., ::2, ::2, :, :].mean(...)",
    "nn.batch_norm": "(x - x.mean(0)) / ostinato.sqrt(x.var(0) + eps)",
    "nn.conv2d": "ostinato.sliding_window_view and ostinato.einsum",
    "nn.Conv2d": "ostinato.sliding_window_view and ostinato.einsum",
    "nn.CrossEntropyLoss": "nn.cross_entropy",
    "nn.Dense": "x @ w + b, with w and b in a dict",
    "nn.dot_product_attention": "nn.attention",
    "nn.embedding": "weights[tokens]",
    "nn.Embedding": "weights[tokens]",
    "nn.hard_swish": "x * ostinato.nn.hard_sigmoid(x)",
    "nn.LayerNorm": "nn.layer_norm",
    "nn.Linear": "x @ w + b, with w and b in a dict",
    "nn.logmeanexp": "logsumexp",
    "nn.max_pool2d": "ostinato.sliding_window_view(x, (2, 2), axis=(-2, -1))[..., ::2, ::2, :, :].max(...)",
    "nn.Module": "a function of a dict of weights",
    "nn.MSELoss": "nn.mse_loss",
    "nn.ReLU": "nn.relu",
    "nn.rms_norm": "x / ostinato.sqrt((x * x).mean(-1, keepdims=True) + eps)",
    "nn.scaled_dot_product_attention": "nn.attention",
    "nn.Sequential": "a function that calls others in turn",
    "nn.soft_sign": "nn.softsign",
    "nn.swish": "nn.silu",
    "optim.adam": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.Adam": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.AdamW": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.adamw": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.GradScaler": "optim.LossScale",
    "optim.LBFGS": "solve.lbfgs",
    "optim.RMSprop": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.sgd": "the update with ostinato.tree_map, as examples/mlp.py does",
    "optim.SGD": "the update with ostinato.tree_map, as examples/mlp.py does",
    "random.bytes": "os.urandom(n)",
    "random.get_state": "ostinato.random.seed(), which tells the seed",
    "random.hypergeometric": "ostinato.random.permutation(marbles)[:n].sum()",
    "random.key": "ostinato.random.normal(..., seed=7)",
    "random.maxwell": "ostinato.sqrt(ostinato.random.chisquare(3.0, shape))",
    "random.MT19937": "random.default_rng",
    "random.noncentral_f": "noncentral_chisquare(n, nonc) / n / (chisquare(d) / d) of ostinato.random",
    "random.PCG64": "random.default_rng",
    "random.permuted": "ostinato.vmap(lambda row: ostinato.random.permutation(row))(x)",
    "random.Philox": "random.default_rng",
    "random.PRNGKey": "ostinato.random.normal(..., seed=7)",
    "random.rademacher": "2 * ostinato.random.bernoulli(0.5, shape) - 1",
    "random.random": "random.uniform",
    "random.random_integers": "random.integers",
    "random.random_sample": "random.uniform",
    "random.RandomState": "random.default_rng",
    "random.ranf": "random.uniform",
    "random.sample": "random.uniform",
    "random.SeedSequence": "random.fold",
    "random.set_state": "ostinato.random.seed(n)",
    "random.SFC64": "random.default_rng",
    "random.split": "random.fold",
    "random.standard_cauchy": "random.cauchy",
    "random.standard_exponential": "random.exponential",
    "random.standard_gamma": "random.gamma",
    "random.standard_normal": "random.normal",
    "solve.bfgs": "solve.lbfgs",
    "solve.bisect": "solve.newton",
    "solve.brentq": "solve.newton",
    "solve.curve_fit": "solve.levenberg_marquardt",
    "solve.fsolve": "solve.newton",
    "solve.least_squares": "solve.levenberg_marquardt",
    "solve.leastsq": "solve.levenberg_marquardt",
    "solve.minimize": "solve.lbfgs",
    "solve.minres": "solve.gmres",
    "solve.odeint": "solve.rk45",
    "solve.quad": "ostinato.trapezoid, or ostinato.solve.rk45 of the integrand",
    "solve.RK45": "solve.rk45",
    "solve.root": "solve.newton",
    "solve.root_scalar": "solve.newton",
    "solve.solve_ivp": "solve.rk45",
    "solve.spsolve": "ostinato.solve.gmres(lambda x: product, b)",
    "special.airy": "ostinato.callback(scipy.special.airy, ostinato.spec(x.shape, x.dtype), x)",
    "special.betaincc": "ostinato.special.betainc(b, a, 1 - x)",
    "special.betaincinv": "ostinato.solve.newton(lambda x: ostinato.special.betainc(a, b, x) - y, x0).x",
    "special.chdtr": "ostinato.special.gammainc(v / 2, x / 2)",
    "special.chdtrc": "ostinato.special.gammaincc(v / 2, x / 2)",
    "special.ellipe": "ostinato.callback(scipy.special.ellipe, ostinato.spec(x.shape, x.dtype), x)",
    "special.ellipk": "ostinato.callback(scipy.special.ellipk, ostinato.spec(x.shape, x.dtype), x)",
    "special.exp1": "ostinato.callback(scipy.special.exp1, ostinato.spec(x.shape, x.dtype), x)",
    "special.expi": "ostinato.callback(scipy.special.expi, ostinato.spec(x.shape, x.dtype), x)",
    "special.gammaincinv": "ostinato.solve.newton(lambda x: ostinato.special.gammainc(a, x) - y, x0).x",
    "special.hyp2f1": "ostinato.callback(scipy.special.hyp2f1, ostinato.spec(x.shape, x.dtype), x)",
    "special.iv": "ostinato.special.i0 or i1, the orders that are here",
    "special.ive": "ostinato.special.i0e or i1e, the orders that are here",
    "special.jn": "ostinato.special.j0 or j1, the orders that are here",
    "special.jv": "ostinato.special.j0 or j1, the orders that are here",
    "special.kn": "ostinato.special.k0 or k1, the orders that are here",
    "special.kv": "ostinato.special.k0 or k1, the orders that are here",
    "special.kve": "ostinato.special.k0e or k1e, the orders that are here",
    "special.lambertw": "ostinato.solve.newton(lambda w: w * ostinato.exp(w) - x, x0).x",
    "special.loggamma": "special.gammaln",
    "special.pdtr": "ostinato.special.gammaincc(k + 1, m)",
    "special.poch": "ostinato.exp(ostinato.special.gammaln(z + m) - ostinato.special.gammaln(z))",
    "special.rgamma": "1 / ostinato.special.gamma(x)",
    "special.yn": "ostinato.special.y0 or y1, the orders that are here",
    "special.yv": "ostinato.special.y0 or y1, the orders that are here",
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
ROOMS = ("linalg", "fft", "special", "random", "nn", "optim", "solve")
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
