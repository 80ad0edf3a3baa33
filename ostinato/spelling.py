"""Names that NumPy, Dask or JAX have for what is called otherwise here."""

from __future__ import annotations

_ARC = {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
OURS = {
    **_ARC,
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "array": "asarray",
    "concatenate": "concat",
    "conjugate": "conj",
    "cumprod": "cumulative_prod",
    "cumsum": "cumulative_sum",
    "degrees": "180 / ostinato.pi * x",
    "dot": "matmul",
    "hstack": "concat, with axis=1",
    "invert": "bitwise_invert",
    "jit": "compile",
    "left_shift": "bitwise_left_shift",
    "norm": "linalg.vector_norm",
    "power": "pow",
    "radians": "ostinato.pi / 180 * x",
    "ravel": "reshape, to -1",
    "right_shift": "bitwise_right_shift",
    "transpose": "permute_dims",
    "unique": "unique_values",
    "vstack": "concat, with axis=0",
}


def hint(name: str) -> str:
    """What to write instead, as the end of a sentence."""
    ours = OURS.get(name)
    if ours is None:
        return ""
    return f"; write {ours}" if "ostinato." in ours else f"; here it is ostinato.{ours}"
