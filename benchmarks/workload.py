"""What a suite is made of.

A workload is a name, what it must compute, and one function per system (and variant of it). The
function runs in a process of its own, imports its library, prepares, and returns a `Case`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Numbers = np.ndarray[Any, Any]
OURS = "ostinato"
SHOWN = 512  # elements of an answer that are compared


@dataclass(frozen=True)
class Case:
    """A workload made ready on one system.

    `loop(n)` makes n iterations and waits for their end. `clock`, where there is one, makes one
    iteration and says itself what it took, in seconds; then `loop` is not needed.
    """

    answer: Callable[[], Any]  # the result that is compared; called first
    loop: Callable[[int], object] | None = None
    clock: Callable[[], float] | None = None
    per: int = 1  # what is reported is the time of an iteration divided by this
    note: Callable[[], str] | None = None  # what else there is to say at the end


@dataclass(frozen=True)
class System:
    """How a library is started, and what it needs."""

    modules: tuple[str, ...]
    install: str = "pip install 'ostinato[bench]'"
    launch: tuple[str, ...] = ()  # a command in front of Python
    ranks: int = 1  # processes that run the case together
    threads: int = 2
    variables: Mapping[str, str] = field(default_factory=dict)


SYSTEMS: dict[str, System] = {
    OURS: System(("numpy",), variables={"OSTINATO_CACHE": "off"}),
    "numpy": System(("numpy",)),
    "numba": System(("numba",)),
    "jax": System(("jax",), variables={"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}),
    "torch": System(("torch",)),
    "dask": System(("dask.array", "distributed"), threads=1),
    "sklearn": System(("sklearn",), install="pip install scikit-learn"),
    "heat": System(("heat", "mpi4py"), launch=("mpiexec", "-n", "2"), ranks=2, threads=1),
    "mpi": System(("mpi4py",), launch=("mpiexec", "-n", "2"), ranks=2, threads=1),
}


def split_name(name: str) -> tuple[str, str]:
    """`"jax/pytree"` as system and variant."""
    system, _, variant = name.partition("/")
    return system, variant


@dataclass(frozen=True)
class Workload:
    """`cases` has one function for each "system" or "system/variant"."""

    name: str
    about: str
    expect: Callable[[], Any]
    cases: Mapping[str, Callable[[], Case]]
    tolerance: float = 1e-5  # relative to the greatest element
    tolerances: Mapping[str, float] = field(default_factory=dict)  # of some cases, another
    traffic: float = 0  # bytes that must at least be read and written
    flops: float = 0  # operations that must at least be done
    seconds: float = 20.0  # spent on measuring one system, at the most
    limit: float = 300.0  # for a system to become ready, or to make one sample
    systems: Mapping[str, System] = field(default_factory=lambda: SYSTEMS)

    def system(self, name: str) -> System:
        """How a case is started: as its variant, or else as its system."""
        return self.systems.get(name) or self.systems[split_name(name)[0]]


def workloads(suite: ModuleType) -> tuple[Workload, ...]:
    found: tuple[Workload, ...] = suite.WORKLOADS
    return found


# -- answers -------------------------------------------------------------------------------
class Within(NamedTuple):
    """An answer that is expected, and how far off each of its elements may be, beside the tolerance."""

    answer: Numbers
    bounds: Numbers


def summary(answer: Any) -> dict[str, Any]:
    """An answer in few numbers: some of its elements, and the sum of their sizes."""
    if isinstance(answer, Within):
        return summary(answer.answer) | {"bounds": summary(answer.bounds)["shown"]}
    values = np.asarray(answer)
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], -1)
    flat = values.reshape(-1)
    at = np.linspace(0, flat.size - 1, min(flat.size, SHOWN)).astype(np.int64)
    parts = (flat[k : k + PART].astype(np.float64) for k in range(0, flat.size, PART))
    return {
        "shape": list(values.shape),
        "shown": flat[at].astype(np.float64).tolist(),
        "norm": float(sum(np.abs(part).sum() for part in parts)),
    }


PART = 1 << 20  # elements that are added up at a time: some answers are large


def scaled(n: int, least: int = 64) -> int:
    """An extent of a large workload, made smaller where that was asked for."""
    return max(least, round(n * float(os.environ.get("BENCHMARK_SCALE", "1"))))


def agree(found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float) -> str:
    """Empty if two summaries are of the same answer; else what differs."""
    if found["shape"] != wanted["shape"]:
        return f"shape {tuple(found['shape'])}, expected {tuple(wanted['shape'])}"
    a, b = np.array(found["shown"]), np.array(wanted["shown"])
    scale = max(1e-30, float(np.abs(b).max(initial=0.0)))
    bounds = np.array(wanted.get("bounds", 0.0))
    worst = float((np.abs(a - b) - bounds).max(initial=0.0))
    if not worst <= tolerance * scale:  # also where there is a NaN
        return f"off by {worst / scale:.1e} of the greatest element" + " more than rounding" * (
            "bounds" in wanted
        )
    if (
        not abs(found["norm"] - wanted["norm"])
        <= tolerance * max(wanted["norm"], 1e-30) + bounds.sum()
    ):
        return f"sum of sizes {found['norm']:.6g}, expected {wanted['norm']:.6g}"
    return ""
