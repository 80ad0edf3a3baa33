"""What users get: batches as arrays of some library. Those of the CPU share the batch's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError

Convert = Callable[[np.ndarray[Any, Any]], Any]


def _numpy() -> Convert:
    return lambda x: x


def _torch() -> Convert:
    import torch  # type: ignore[import-not-found, unused-ignore]

    def tensor(x: np.ndarray[Any, Any]) -> Any:
        if x.dtype.name == "bfloat16":  # of which NumPy has none of its own
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(x)

    return tensor


def _jax() -> Convert:
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    return lambda x: jnp.asarray(x)


FEEDS: dict[str, Callable[..., Any]] = {}  # by target: who makes epochs elsewhere, if need be
ROOMS: dict[str, Callable[[], int | None]] = {}  # and how many bytes may wait, if that is said
TARGETS: dict[str, Callable[[], Convert]] = {"numpy": _numpy, "torch": _torch, "jax": _jax}


WORKERS = "workers"  # that give parts of batches to a session
LATE = {"ostinato", WORKERS}  # whose arrays may be made later, by who takes them


def check_target(name: Any) -> str:
    if name not in TARGETS:
        needed = " or ".join(map(repr, TARGETS))
        raise misfit(ArgumentError, "to", got=repr(name), needed=needed)
    return str(name)


def converter(name: str) -> Convert:
    """Find the function that makes a library's arrays of batches."""
    if name == WORKERS:
        return _numpy()
    try:
        return TARGETS[name]()
    except ImportError:
        do = f"pip install {name}"
        raise misfit(ArgumentError, f"to({name!r})", got=f"no {name}", needed=name, do=do) from None
