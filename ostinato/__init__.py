"""Ostinato: NumPy-like code, compiled to plans that workers keep and run again and again.

import ostinato as ost
"""

from __future__ import annotations

import gc as _gc
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _CHECKED

_here = _os.path.dirname(_os.path.realpath(__file__))
_root = _os.path.dirname(_here)
if _os.path.isdir(_os.path.join(_root, "planner")) and _os.path.isfile(
    _os.path.join(_root, "pyproject.toml")
):
    __path__[:] = [_here, _root]  # a checkout, perhaps by links: the rooms lie beside this folder

_looked = _gc.isenabled()
_gc.disable()  # among what is imported is no garbage: looking for it would take an eighth of the time
try:
    from . import compiled as _compiled  # and with it nearly all that is named below
finally:
    if not _gc.get_freeze_count():  # else somebody has hidden objects of his
        _gc.freeze()
        _gc.unfreeze()  # all that is there is old now, and is not looked at soon
    if _looked:
        _gc.enable()

from ostinato.ops import fft as fft
from ostinato.ops import linalg as linalg
from ostinato.ops import nn as nn
from ostinato.ops import signal as signal
from ostinato.ops import solve as solve
from ostinato.ops.array.aliases import *
from ostinato.ops.array.arithmetic import *
from ostinato.ops.array.assigning import *
from ostinato.ops.array.boxes import *
from ostinato.ops.array.comparisons import *
from ostinato.ops.array.concatenation import *
from ostinato.ops.array.contraction import *
from ostinato.ops.array.creation import *
from ostinato.ops.array.cumulative import *
from ostinato.ops.array.elementary import *
from ostinato.ops.array.elementwise import *
from ostinato.ops.array.grids import *
from ostinato.ops.array.histograms import *
from ostinato.ops.array.indexing import *
from ostinato.ops.array.joining import *
from ostinato.ops.array.makers import *
from ostinato.ops.array.masks import *
from ostinato.ops.array.moments import *
from ostinato.ops.array.numerical import *
from ostinato.ops.array.padding import *
from ostinato.ops.array.polynomials import *
from ostinato.ops.array.quantiles import *
from ostinato.ops.array.reduction import *
from ostinato.ops.array.scalar_types import *
from ostinato.ops.array.segments import *
from ostinato.ops.array.selection import *
from ostinato.ops.array.sets import *
from ostinato.ops.array.shape import *
from ostinato.ops.array.slicing import *
from ostinato.ops.array.sliding import *
from ostinato.ops.array.sorting import *
from ostinato.ops.array.statistics import *
from ostinato.ops.array.transcendental import *
from ostinato.ops.array.whole_numbers import *
from ostinato.ops.array.window_functions import *
from ostinato.ops.core.array import Array as Array
from ostinato.ops.core.tree import tree_map as tree_map
from ostinato.ops.flow.branches import *
from ostinato.ops.flow.composed_flow import *
from ostinato.ops.flow.repeat_scan import *
from ostinato.ops.flow.while_loops import *
from ostinato.ops.random import random as random
from ostinato.ops.special import special as special
from ostinato.planner.plan import Plan as Plan
from ostinato.planner.policy import Precision as Precision

from . import debug as debug
from . import errors as errors
from . import optim as optim
from .callbacks import callback as callback
from .cluster import LocalCluster as LocalCluster
from .compiled import compile as compile
from .compiled import run as run
from .compiled import why_miss as why_miss
from .files import from_blocks as from_blocks
from .files import load as load
from .files import save as save
from .gradients import checkpoint as checkpoint
from .gradients import custom_gradient as custom_gradient
from .gradients import grad as grad
from .gradients import value_and_grad as value_and_grad
from .gradients import vjp as vjp
from .info import *
from .info import __array_api_version__ as __array_api_version__
from .info import __array_namespace_info__ as __array_namespace_info__
from .interop import from_dask as from_dask
from .jacobians import hessian as hessian
from .jacobians import jacobian as jacobian
from .jacobians import jvp as jvp
from .jacobians import linearize as linearize
from .jacobians import value_and_jacobian as value_and_jacobian
from .mapping import apply_along_axis as apply_along_axis
from .mapping import vectorize as vectorize
from .mapping import vmap as vmap
from .onnx import from_onnx as from_onnx
from .onnx import to_onnx as to_onnx
from .planning import plan as plan
from .planning import spec as spec
from .profiling import Profile as Profile
from .profiling import profile as profile
from .progress import Progress as Progress
from .progress import on_progress as on_progress
from .progress import quiet as quiet
from .reading import evaluate as evaluate
from .sessions import connect as connect
from .sessions import current as _current
from .states import Saving as Saving
from .states import load_state as load_state
from .states import save_state as save_state
from .states import saved_steps as saved_steps

if _CHECKED:
    from numpy import dtype as dtype

    from . import io as io
    from . import training as training
    from .training.training_loop import fit as fit

for _room in (fft, linalg, nn, random, signal, solve, special):  # `from ostinato.nn import Conv`
    _sys.modules[f"{__name__}.{_room.__name__.rpartition('.')[2]}"] = _room
bool, session = bool_, _current  # under these names for type checkers, too
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name in ("io", "training", "fit"):  # which not every worker needs
        from importlib import import_module

        module = import_module("ostinato.io" if name == "io" else "ostinato.training")
        return module.fit if name == "fit" else module
    if name == "lib":  # where NumPy has it, and others look for it
        from types import SimpleNamespace

        return SimpleNamespace(
            stride_tricks=SimpleNamespace(sliding_window_view=sliding_window_view)
        )
    from ostinato.ops.core.spelling import hint, other_names

    if name in other_names()["numpys"]:
        import numpy

        return getattr(numpy, name)
    message = f"module 'ostinato' has no attribute {name!r}{hint(name)}"
    raise AttributeError(message, name=name, obj=_sys.modules[__name__])


def __dir__() -> list[str]:
    hidden = {n for n, x in globals().items() if isinstance(x, type(_sys))} | {"annotations"}
    return sorted(
        globals().keys() - hidden
        | {"debug", "errors", "fft", "fit", "io", "linalg", "nn", "optim", "random", "solve"}
        | {"signal", "special", "training"}
    )
