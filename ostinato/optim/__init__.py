"""Optimizers, schedules of their rates, and what stands between gradients and parameters.

An optimizer is a frozen recipe. Its state is a dict of trees like the parameters, which goes through a
compiled step as these do: `params, state = opt.update(params, grads, state)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.core.spelling import missing

from .loss_scale import LossScale
from .optimizers import LAMB, LARS, SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSprop
from .schedules import Cosine, Exponential, OneCycle, Piecewise, Polynomial, StepDecay, Warmup
from .transforms import EMA, Accumulate, clip_by_norm, clip_by_value, global_norm

__all__ = [
    "EMA",
    "LAMB",
    "LARS",
    "SGD",
    "Accumulate",
    "Adagrad",
    "Adam",
    "AdamW",
    "Cosine",
    "Exponential",
    "Lion",
    "LossScale",
    "OneCycle",
    "Optimizer",
    "Piecewise",
    "Polynomial",
    "RMSprop",
    "StepDecay",
    "Warmup",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("optim")
