"""A suite of benchmarks so small that it says nothing about speed: what the runner's processes import."""

from __future__ import annotations

import numpy as np

from benchmarks.dispatch import numpy_case, ostinato_case
from benchmarks.workload import Case, Workload


def ones():
    return np.ones(4, np.float32)


def double(x):
    return x + x


def fails():
    raise RuntimeError("it does not start")


WORKLOADS = (
    Workload(
        "double",
        "x + x",
        lambda: ones() * 8,
        {
            "ostinato": lambda: ostinato_case(ones(), double, 3),
            "numpy": lambda: numpy_case(ones(), double, 3),
            "numpy/wrong": lambda: numpy_case(ones(), lambda x: x + 1, 3),
            "numpy/fails": fails,
            "numpy/clock": lambda: Case(lambda: ones() * 8, clock=lambda: 0.25),
            "nowhere": lambda: numpy_case(ones(), double, 3),
        },
    ),
)
