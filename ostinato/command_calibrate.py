"""`ostinato calibrate`: what this machine, or a cluster, can do."""

from __future__ import annotations

import argparse
import time
from typing import Any

from . import settings

_ABOUT = """Measure what workers here can do: rates of products and of memory by dtype and size, what it takes
to start a kernel, latency and bandwidth of collectives along each axis of a mesh, and how much of them
goes on beside computing. What is found is kept in the cache, is part of no plan's id, and is what explain,
the dashboard and layouts go by from then on.

    ostinato calibrate                      one worker with all cores, and one for each core
    ostinato calibrate -n 4                 four workers that are threads
    mpiexec -n 4 ostinato calibrate         the processes of a job
    ostinato calibrate tcp://host:8786      the workers of a Dask cluster
    ostinato calibrate --mesh 2,4           along both axes of a mesh"""


def add(commands: Any) -> None:
    made = commands.add_parser(
        "calibrate",
        help="measure what this machine can do",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("address", nargs="?", help="of a Dask scheduler")
    made.add_argument("-n", "--workers", type=_counts, help="numbers of workers, such as 1,2,4")
    made.add_argument("--mesh", type=_counts, help="how they are arranged, such as 2,4")
    made.add_argument("--seconds", type=float, default=50.0, help="in all, about (50)")
    made.set_defaults(do=_calibrate)


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(n) for n in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"got {text}; needed numbers such as 2,4")
    return found


def _calibrate(asked: argparse.Namespace) -> int:
    from ostinato.ops.core import disk_cache
    from ostinato.ops.cpu.threads import cores
    from ostinato.planner.machine import known
    from ostinato.runtime.crew.crew import job_size

    from .calibration import calibrate
    from .sessions import connect

    job = asked.address is not None or job_size() > 1
    counts: tuple[Any, ...] = (asked.address,)
    if not job and asked.mesh is None:
        counts = asked.workers or tuple(dict.fromkeys((1, cores())))
    for workers in counts:
        start = time.perf_counter()
        with connect(workers, mesh=asked.mesh) as session:
            found = calibrate(asked.seconds / len(counts))
            took = time.perf_counter() - start
            is_kept = known(found.device, session.target.mesh, job) == found
            print(f"{session}, measured in {took:.0f} s\n{describe_machine(found)}\n")
    disk = disk_cache.open_cache(settings.cache).where("machine.json")
    why = f"{disk} cannot be written" if disk else "OSTINATO_CACHE is off"
    print(f"kept in {disk}" if is_kept else f"kept nowhere, since {why}")
    return 0


def describe_machine(machine: Any) -> str:
    """A machine for people."""
    from ostinato.planner.seeing.explain import amount, seconds

    def table(rates: Any) -> str:
        return ", ".join(f"{dtype} {rate / 1e9:.3g}" for dtype, rate in rates)

    lines = [
        f"  to start a plan {seconds(machine.run_seconds)}, a kernel "
        f"{seconds(machine.call_seconds)}, in a loop {seconds(machine.again_seconds or 0)}",
        "  memory "
        + ", ".join(f"{amount(n)} {rate / 1e9:.3g}" for n, rate in machine.stream)
        + " GB/s",
        f"  products {table((r.dtype, r.most) for r in machine.products)} Gop/s",
        f"  factorizations {table((r.dtype, r.most) for r in machine.factors)} Gop/s",
        f"  sums of elements {table(machine.elements)}, functions {table(machine.functions)} G/s",
    ]
    lines += [
        f"  {link.name}: {s.kind} {seconds(s.seconds)} and {s.bandwidth / 1e9:.3g} GB/s"
        for _, link in machine.levels
        for s in link.seen
    ]
    lines.append(f"  {machine.background:.0%} of a started collective goes on beside kernels")
    return "\n".join(lines)
