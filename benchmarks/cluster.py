"""Two processes that work together: what an order costs, and what is computed and sent between them.

Ours are two ranks under mpiexec, of which the first runs the loop; in `null_async` they are workers of
a Dask cluster, and the loop runs in a client. `mpi` is the same written by hand with mpi4py and NumPy,
each rank with its loop. Every process has one thread; JAX has one process with two devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import ranks
from .dispatch import (
    case,
    matvec_dask,
    matvec_heat,
    nothing,
    ones,
    plus_one,
    product,
    rotation,
    thousand,
)
from .kernels import kmeans, points
from .libraries import Jax, NumPy, Ostinato
from .libraries import case as again
from .peers import dask_client
from .workload import OURS, SYSTEMS, Case, Numbers, System, Workload, scaled

Step = Callable[..., Any]
PAIR = ("mpiexec", "-n", "2")
SEEN = 10  # iterations whose orders are looked at
FLIGHT = 8  # iterations that Ray may have on their way
_QUIET = {"OSTINATO_CACHE": "off"}
_PLAIN = "pip install 'ostinato[cluster]'"

START: dict[str, System] = {
    OURS: System(("mpi4py",), install=_PLAIN, launch=PAIR, threads=1, variables=_QUIET),
    "mpi": SYSTEMS["mpi"],
    "jax": dataclasses.replace(
        SYSTEMS["jax"],
        variables={
            **SYSTEMS["jax"].variables,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
    ),
    "heat": SYSTEMS["heat"],
    "dask": SYSTEMS["dask"],
    "ray": System(
        ("ray",),
        "pip install ray",
        threads=1,
        variables={"RAY_USAGE_STATS_ENABLED": "0", "RAY_CGRAPH_get_timeout": "200"},
    ),
}
FROM_CLIENT = {
    OURS: System(("mpi4py", "dask_mpi"), install=_PLAIN, threads=1, variables=_QUIET),
    f"{OURS}/mpiexec": START[OURS],
}
ALONE = {f"{OURS}/alone": dataclasses.replace(START[OURS], ranks=2)}


# -- in each library -----------------------------------------------------------------------
@functools.cache
def our_cluster() -> Any:
    """Stays until this process ends."""
    import ostinato as ost

    return ost.LocalCluster(2)


def ours(
    step: Step,
    start: Numbers,
    turns: int,
    *,
    held: Sequence[Numbers] = (),
    split: int | None = None,
    waits: bool = False,
    client: bool = False,
) -> Case:
    """`held` are split by rows and come before what goes from turn to turn."""
    import ostinato as ost

    session = our_cluster().connect() if client else ost.connect()
    given = [ost.asarray(x, split=0) for x in held]
    compiled = ost.compile(step)

    def turn(x: Any) -> Any:
        y = compiled(*given, x)
        if waits:
            session.wait()
        return y

    made = case(ost.asarray(start, split=split), turn, lambda x: session.wait(), np.asarray, turns)

    def note() -> str:
        before = session.stats()["orders"]["run"]
        assert made.loop is not None
        made.loop(SEEN)
        after = session.stats()["orders"]["run"]
        count, sent = (after[k] - before[k] for k in ("messages", "bytes"))
        return f"{sent / count:.0f} B an order, {count / SEEN:g} an iteration"

    return dataclasses.replace(made, note=note)


def by_mpi(
    step: Step,
    start: Numbers,
    turns: int,
    *,
    held: Sequence[Numbers] = (),
    split: int | None = None,
) -> Case:
    """`step(comm, *held, x)` on each rank, with its parts."""
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]

    comm = MPI.COMM_WORLD
    given = [ranks.mine(comm, x) for x in held]
    first = ranks.mine(comm, start) if split == 0 else start

    def host(x: Any) -> Any:
        return np.concatenate(comm.allgather(x)) if split == 0 else x

    return case(first, functools.partial(step, comm, *given), nothing, host, turns)


def two_devices() -> tuple[Any, Any]:
    """How an array lies by rows, and how it lies whole."""
    import jax  # type: ignore[import-not-found, unused-ignore]
    from jax.sharding import (  # type: ignore[import-not-found, unused-ignore]
        AxisType,
        NamedSharding,
        PartitionSpec,
    )

    mesh = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec("workers")), NamedSharding(mesh, PartitionSpec())


def by_jax(
    step: Step,
    start: Numbers,
    turns: int,
    *,
    held: Sequence[Numbers] = (),
    split: int | None = None,
    waits: bool = False,
) -> Case:
    """One process that has two devices. Where they wait for each other each turn is waited for, since
    XLA gives up when the devices are at different ones."""
    import jax  # type: ignore[import-not-found, unused-ignore]

    by_rows, whole = two_devices()
    given = [jax.device_put(x, by_rows) for x in held]
    lies = by_rows if split == 0 else whole
    compiled = jax.jit(step, out_shardings=lies)
    wait: Step = jax.block_until_ready

    def turn(x: Any) -> Any:
        y = compiled(*given, x)
        return wait(y) if waits else y

    return case(jax.device_put(start, lies), turn, wait, np.asarray, turns)


def by_heat(
    step: Step,
    start: Numbers,
    turns: int,
    *,
    held: Sequence[Numbers] = (),
    split: int | None = None,
) -> Case:
    import heat as ht  # type: ignore[import-not-found, unused-ignore]

    given = [ht.array(x, split=0) for x in held]
    first = ht.array(start, split=split)
    return case(first, lambda x: step(*given, x), nothing, lambda x: x.numpy(), turns)


def by_dask(step: Step, start: Numbers, turns: int, *, waits: bool = True) -> Case:
    """An array in two parts, each turn a graph for the scheduler."""
    import dask.array as da  # type: ignore[import-not-found, unused-ignore]
    from distributed import wait  # type: ignore[import-not-found, unused-ignore]

    dask_client()

    def turn(x: Any) -> Any:
        y = step(x).persist()
        if waits:
            wait(y)
        return y

    first = da.from_array(start, chunks=(-(-len(start) // 2), *start.shape[1:])).persist()
    return case(first, turn, wait, lambda x: x.compute(), turns)


class RayPart:
    """What an actor of Ray's keeps and does."""

    def __init__(self, step: Step, *kept: Any) -> None:
        self.step = step
        self.kept = kept

    def turn(self, x: Any) -> Any:
        return self.step(self, x)

    def value(self) -> Any:
        return self.kept[0]


def ray_pair(step: Step, *kept: Numbers) -> tuple[Any, Any]:
    """Two actors with half the rows each, and a compiled graph that runs a turn of both."""
    import ray  # type: ignore[import-not-found, unused-ignore]
    from ray.dag import InputNode, MultiOutputNode  # type: ignore[import-not-found, unused-ignore]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    kind = ray.remote(RayPart)
    halves = zip(*(np.array_split(x, 2) for x in kept), strict=True)
    parts = [kind.remote(step, *half) for half in halves]
    with InputNode() as given:
        graph = MultiOutputNode([part.turn.bind(given) for part in parts])
    return graph.experimental_compile(), parts


def by_ray(step: Step, *kept: Numbers, turns: int, waits: bool = True) -> Case:
    """Each actor goes on from what it has."""
    import ray

    graph, parts = ray_pair(step, *kept)

    def loop(n: int) -> None:
        flying: list[Any] = []
        for _ in range(n):
            flying.append(graph.execute(0))
            if waits or len(flying) >= FLIGHT:
                ray.get(flying.pop(0))
        for refs in flying:
            ray.get(refs)

    def answer() -> Any:
        loop(turns)
        return np.concatenate(ray.get([part.value.remote() for part in parts]))

    return Case(answer, loop)


def ray_in_turn(step: Step, join: Step, start: Numbers, turns: int, *kept: Numbers) -> Case:
    """The program joins what the actors give, and sends it to both."""
    import ray

    graph, _ = ray_pair(step, *kept)
    return case(start, lambda x: join(ray.get(graph.execute(x))), nothing, np.asarray, turns)


# -- null ----------------------------------------------------------------------------------
def mpi_null(comm: Any, x: Numbers) -> Numbers:
    x = x + 1
    comm.Barrier()
    return x


def ray_null(part: RayPart, _: Any) -> int:
    part.kept = (part.kept[0] + 1,)
    return 0


def four_more() -> Numbers:
    return ones() + np.float32(4)


NULL = Workload(
    "null",
    "x + 1 on 8 numbers in two parts; each iteration is waited for",
    four_more,
    {
        OURS: lambda: ours(plus_one, ones(), 4, split=0, waits=True),
        "mpi": lambda: by_mpi(mpi_null, ones(), 4, split=0),
        "jax": lambda: by_jax(plus_one, ones(), 4, split=0, waits=True),
        "heat": lambda: by_heat(plus_one, ones(), 4, split=0),
        "dask": lambda: by_dask(plus_one, ones(), 4),
        "ray": lambda: by_ray(ray_null, ones(), turns=4),
    },
    systems=START,
)


NULL_ASYNC = Workload(
    "null_async",
    "the same from a client of Dask's, which waits at the end only; beside it the loop under mpiexec",
    four_more,
    {
        OURS: lambda: ours(plus_one, ones(), 4, split=0, client=True),
        f"{OURS}/mpiexec": lambda: ours(plus_one, ones(), 4, split=0),
        "jax": lambda: by_jax(plus_one, ones(), 4, split=0),
        "dask": lambda: by_dask(plus_one, ones(), 4, waits=False),
        "ray": lambda: by_ray(ray_null, ones(), turns=4, waits=False),
    },
    systems={**START, **FROM_CLIENT},
)


# -- chain ---------------------------------------------------------------------------------
def chain(count: int, x: Any) -> Any:
    for k in range(count):
        x = x * 0.5 if k % 2 else x + 1.0
    return x


def chain_in_place(count: int, x: Numbers) -> Numbers:
    one, half = np.float32(1), np.float32(0.5)
    for k in range(count):
        np.multiply(x, half, x) if k % 2 else np.add(x, one, x)
    return x


def ray_chain(count: int, part: RayPart, _: Any) -> int:
    part.kept = (chain_in_place(count, part.kept[0].copy()),)
    return 0


def chain_of(count: int) -> Workload:
    """The same order whatever the plan contains."""
    step = functools.partial(chain, count)

    def by_hand(comm: Any, x: Numbers) -> Numbers:
        return chain_in_place(count, x.copy())

    others: dict[str, Callable[[], Case]] = {
        "jax": lambda: by_jax(step, ones(), 2, split=0),
        "dask": lambda: by_dask(step, ones(), 2),
    }
    return Workload(
        f"chain{count}",
        f"{count:,} operations on 8 numbers in two parts, which need nothing from each other",
        lambda: chain(2 * count, ones()),
        {
            OURS: lambda: ours(step, ones(), 2, split=0),
            "mpi": lambda: by_mpi(by_hand, ones(), 2, split=0),
            "heat": lambda: by_heat(step, ones(), 2, split=0),
            "ray": lambda: by_ray(functools.partial(ray_chain, count), ones(), turns=2),
            **(others if count <= 1000 else {}),  # minutes of compiling, or of scheduling
        },
        seconds=8.0,
        systems=START,
    )


# -- matvec --------------------------------------------------------------------------------
def mpi_matvec(comm: Any, a: Numbers, x: Numbers) -> Numbers:
    y = np.empty_like(x)
    comm.Allgather(a @ x, y)
    return y


def ray_matvec(part: RayPart, x: Numbers) -> Numbers:
    return part.kept[0] @ x


def ours_matvec(a: Any, x: Any) -> Any:
    return (a @ x).resplit(None)


MATVEC = Workload(
    "matvec",
    "x = A @ x with A of 1000 x 1000 in float32, each with half the rows",
    lambda: functools.reduce(lambda x, _: rotation() @ x, range(10), thousand()),
    {
        OURS: lambda: ours(ours_matvec, thousand(), 10, held=[rotation()]),
        "mpi": lambda: by_mpi(mpi_matvec, thousand(), 10, held=[rotation()]),
        "jax": lambda: by_jax(product, thousand(), 10, held=[rotation()], waits=True),
        "heat": matvec_heat,
        "dask": lambda: matvec_dask(True),
        "ray": lambda: ray_in_turn(ray_matvec, np.concatenate, thousand(), 10, rotation()),
    },
    tolerance=1e-4,
    systems=START,
)


# -- kmeans --------------------------------------------------------------------------------
def cloud() -> tuple[Numbers, ...]:
    return points(8, 500_000)


def expected_centres() -> Numbers:
    x, c = cloud()
    for _ in range(3):
        c = np.asarray(kmeans(NumPy(), x, c), np.float32)
    return c


def ours_kmeans() -> Case:
    import ostinato as ost

    x, c = cloud()
    return ours(functools.partial(kmeans, Ostinato(ost)), c, 3, held=[x])


def jax_kmeans() -> Case:
    import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]

    x, c = cloud()
    return by_jax(functools.partial(kmeans, Jax(jnp)), c, 3, held=[x], waits=True)


def heat_kmeans() -> Case:
    import heat as ht

    x, c = cloud()

    def turn(x: Any, c: Any) -> Any:
        moved = ranks.heat_kmeans(ht, x, c)
        moved.resplit_(None)
        return moved

    return by_heat(turn, c, 3, held=[x])


def ray_sums(part: RayPart, c: Numbers) -> Numbers:
    return ranks.sums_of_near(part.kept[0], c)


def centres(parts: Sequence[Numbers]) -> Numbers:
    sums = parts[0] + parts[1]
    made: Numbers = sums[:, :-1] / sums[:, -1:]
    return made


def dask_kmeans() -> Case:
    """Each worker holds half of the points; a turn is two tasks and one that adds."""
    client, (x, c) = dask_client(), cloud()
    names = list(client.scheduler_info()["workers"])
    halves = [
        client.scatter(half, workers=[name])
        for half, name in zip(np.array_split(x, 2), names, strict=True)
    ]

    def turn(c: Any) -> Any:
        sums = [client.submit(ranks.sums_of_near, half, c, pure=False) for half in halves]
        return client.submit(centres, sums, pure=False)

    return case(client.scatter(c), turn, lambda x: x.result(), lambda x: x.result(), 3)


KMEANS = Workload(
    "kmeans",
    f"a step over {scaled(500_000):,} x 16 with 8 centres, each with half of the points",
    expected_centres,
    {
        OURS: ours_kmeans,
        "mpi": lambda: by_mpi(ranks.mpi_kmeans, cloud()[1], 3, held=cloud()[:1]),
        "jax": jax_kmeans,
        "heat": heat_kmeans,
        "dask": dask_kmeans,
        "ray": lambda: ray_in_turn(ray_sums, centres, cloud()[1], 3, cloud()[0]),
    },
    tolerance=1e-3,
    systems=START,
)


# -- allreduce -----------------------------------------------------------------------------
def rows(count: int) -> Numbers:
    """Two rows for each."""
    return np.random.default_rng(9).random((4, count), np.float32)


def add_rows(x: Any) -> Any:
    return x.sum(0)


def ours_allreduce(count: int) -> Case:
    import ostinato as ost

    session = ost.connect()
    x, run = ost.asarray(rows(count), split=0), ost.compile(add_rows)
    return again(run, (x,), lambda _: session.wait(), np.asarray)


def ours_alone(count: int) -> Case:
    """What carries it, without orders and plans."""
    from mpi4py import MPI
    from ostinato.runtime.messages.mpi import MpiCommunicator

    comm = MpiCommunicator(MPI.COMM_WORLD.Dup(), 2)
    x = ranks.mine(MPI.COMM_WORLD, rows(count)).sum(0)
    out = np.empty_like(x)

    def step() -> Numbers:
        comm.start_all_reduce((x,), (out,), "sum", (0, 1)).wait()
        return out

    return again(step, (), nothing, np.asarray)


def mpi_allreduce(count: int, alone: bool) -> Case:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    one, other = ranks.mine(comm, rows(count))
    x = one + other
    out = np.empty_like(x)

    def step() -> Numbers:
        if not alone:
            np.add(one, other, x)
        comm.Allreduce(x, out)
        return out

    return again(step, (), nothing, np.asarray)


def jax_allreduce(count: int) -> Case:
    import jax

    by_rows, whole = two_devices()
    x = jax.device_put(rows(count), by_rows)
    run = jax.jit(add_rows, out_shardings=whole)
    return again(lambda: jax.block_until_ready(run(x)), (), nothing, np.asarray)


def heat_allreduce(count: int) -> Case:
    import heat as ht

    x = ht.array(rows(count), split=0)
    return again(lambda: ht.sum(x, axis=0), (), nothing, lambda y: y.numpy())


def dask_allreduce(count: int) -> Case:
    import dask.array as da
    from distributed import wait

    dask_client()
    x = da.from_array(rows(count), chunks=(2, count)).persist()
    wait(x)

    def step() -> Any:
        y = x.sum(0).persist()
        wait(y)
        return y

    return again(step, (), nothing, lambda y: y.compute())


def allreduce(size: int, name: str) -> Workload:
    count = size // 4
    return Workload(
        f"allreduce{name}",
        f"the sum of four rows of {size:,} bytes, of which each has two; `alone`: their sums are there, "
        "and only sent and added",
        lambda: rows(count).sum(0),
        {
            OURS: lambda: ours_allreduce(count),
            "mpi": lambda: mpi_allreduce(count, False),
            f"{OURS}/alone": lambda: ours_alone(count),
            "mpi/alone": lambda: mpi_allreduce(count, True),
            "jax": lambda: jax_allreduce(count),
            "heat": lambda: heat_allreduce(count),
            "dask": lambda: dask_allreduce(count),
        },
        seconds=8.0,
        systems={**START, **ALONE},
    )


WORKLOADS = (
    NULL,
    NULL_ASYNC,
    *(chain_of(count) for count in (10, 100, 1000, 10_000)),
    MATVEC,
    KMEANS,
    *(
        allreduce(size, name)
        for size, name in (
            (8, "8B"),
            (1 << 10, "1KB"),
            (1 << 16, "64KB"),
            (1 << 20, "1MB"),
            (1 << 24, "16MB"),
            (1 << 26, "64MB"),
        )
    ),
)
