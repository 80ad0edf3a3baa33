"""Names that NumPy, Dask or JAX have for what is called otherwise here."""

from __future__ import annotations

_ARC = {f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
OURS = {
    **_ARC,
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "array": "asarray",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "jit": "compile",
    "left_shift": "bitwise_left_shift",
    "norm": "linalg.vector_norm",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "unique": "unique_values",
}


def hint(name: str) -> str:
    """What to write instead, as the end of a sentence."""
    ours = OURS.get(name)
    if ours is None:
        return ""
    return f"; write {ours}" if "ostinato." in ours else f"; here it is ostinato.{ours}"
