"""Functions that run in processes of their own, in a module that they can import fast."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
    a: Any
    b: Any


def changed(x: Any) -> Any:
    return {"x": x[::-1] * 2, "n": int(x[0]), "pid": os.getpid(), "big": np.full(5000, x[0])}


def noisy(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.random(x.shape)


def scaled(x: Any, by: float) -> Any:
    x *= by  # which is its own
    return x


def as_pair(x: Any) -> Any:
    return Pair(x, str(x[0]))


def failing(x: Any) -> Any:
    if x[0] == 20:
        raise ValueError(f"{x[0]} is bad")
    return x


def dying(x: Any) -> Any:
    if x[0] == 20:
        os._exit(3)
    return x


def killed(x: Any) -> Any:
    if x[0] == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def dying_once(x: Any, folder: str) -> Any:
    mark = Path(folder) / str(x[0])
    if x[0] < 12 and not mark.exists():
        mark.touch()
        os._exit(3)
    return x


def refusing(x: Any) -> Any:
    return lambda: x


def sleeping(x: Any) -> Any:
    time.sleep(60 if x[0] > 8 else 0)
    return x


def hanging(x: Any) -> Any:
    if x[0] in (8, 20, 44):
        time.sleep(60)
    return x


def is_small(x: Any) -> bool:
    return bool(x < 20)
