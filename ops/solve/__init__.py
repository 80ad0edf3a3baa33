"""Solvers: linear systems by products alone, least squares and minima, differential equations.

Each is a `while_loop`, so it is one node of a plan and runs in any layout and under `vmap`; its
gradient follows from what it is a solution of (implicit.py)."""

from typing import TYPE_CHECKING

from ..core.spelling import missing
from .linear import Solution, bicgstab, cg, gmres
from .ode import Trajectory, rk45
from .optimize import Minimum, lbfgs, levenberg_marquardt, newton

__all__ = [
    "Minimum",
    "Solution",
    "Trajectory",
    "bicgstab",
    "cg",
    "gmres",
    "lbfgs",
    "levenberg_marquardt",
    "newton",
    "rk45",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:
    __getattr__ = missing("solve")
