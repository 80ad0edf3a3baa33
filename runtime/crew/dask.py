"""Crews inside Dask: workers that were started under MPI become a crew when a program connects to
their cluster, and are Dask's again when it leaves.

Dask carries what begins and ends a crew, on its own authenticated channel: who is there, who takes
part, where the lead listens and the secret that it expects. Engines live in threads of their own, so
Dask's loop goes on. Data and orders never pass the scheduler."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import secrets
import sys
import threading
import traceback
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from ostinato.ops.core.device import Absent, find
from ostinato.ops.core.user_line import misfit
from ostinato.planner.file import code_version
from ostinato.runtime.dashboard import page

from ostinato import settings
from ostinato.errors import ArgumentError, ExecutionError, SessionError

from .channel import Broken, Channel, Desk
from .crew import BEAT, Hand, Lead, job_size
from .member import openers
from .orders import KINDS

JOIN = 60.0  # seconds for a crew to come together
ANSWER = 8.0  # seconds for a scheduler to answer, and for a first worker to be there
_log = logging.getLogger("distributed.worker.ostinato")
_members: dict[str, Any] = {}  # of crews that this process takes part in
_desks: dict[str, dict[str, Any]] = {}  # of crews that this process leads: where, or why not


# -- in a Dask worker ----------------------------------------------------------------------
def version() -> str:
    """Version of the code that both sides of a channel must have in common."""
    return f"{code_version()}-{zlib.crc32(' '.join(KINDS).encode()):08x}"


def present(device: str = "cpu") -> dict[str, Any]:
    """Who this worker is among the processes that mpiexec started with it, and what it lacks to compute on
    such a device."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        return {"error": str(error)}
    lacks = ""
    try:
        find(device)
    except Absent as error:
        lacks = str(error)
    world = MPI.COMM_WORLD
    return {
        "rank": world.rank,
        "size": world.size,
        "host": platform.node(),
        "process": os.getpid(),
        "version": version(),
        "lacks": lacks,
    }


def count_started() -> int:
    """Count the workers that were started with this one, as far as it knows: by `ostinato worker` all."""
    return job_size() if "--no-scheduler" in sys.argv else 1


def enlist(
    name: str,
    ranks: Sequence[int],
    secret: bytes,
    host: str,
    threads: int | None,
    device: str,
    dask_worker: Any,
) -> None:
    """Take part in a crew; the first of the ranks leads."""
    threading.Thread(
        target=_take_part,
        args=(name, list(ranks), secret, host, threads, device, page.teller(dask_worker)),
        name="ostinato-engine",
        daemon=True,
    ).start()


def _take_part(
    name: str,
    ranks: list[int],
    secret: bytes,
    host: str,
    threads: int | None,
    device: str,
    teller: page.Teller,
) -> None:
    from mpi4py import MPI

    leads = MPI.COMM_WORLD.rank == ranks[0]
    try:
        # programs that connect at once have crews of their own
        tag = int(name, 16) % (int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0) + 1)
        comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks), tag)
        crew = Lead(comm, threads, host, device) if leads else Hand(comm, threads, device)
        _members[name] = crew.member
        with teller.watching(crew.member):
            if isinstance(crew, Hand):
                crew.serve()
            else:
                _lead(name, crew, secret, host)
    except BaseException as error:
        # as text: Dask keeps its log, and an error would keep all that this worker has
        _log.error("ostinato: this worker's engine ended: %s", traceback.format_exc())
        if leads:
            _desks[name] = {"error": f"{type(error).__name__}: {error}"}
    finally:
        _members.pop(name, None)


def _lead(name: str, lead: Lead, secret: bytes, host: str) -> None:
    """Serve a program; then everybody goes home, whatever happened."""
    try:
        desk = Desk(lead, secret, host)
        threads, heartbeat = lead.member.worker.threads, settings.heartbeat
        _desks[name] = {"address": desk.address, "threads": threads, "heartbeat": heartbeat}
        desk.serve(JOIN)
    finally:
        _desks.pop(name, None)
        lead.end()


async def desk_of(name: str) -> dict[str, Any]:
    """Where a crew's lead listens, asked at the lead."""
    import asyncio  # with ssl it takes a while, and who has a cluster has it

    for _ in range(int(JOIN / 0.01)):
        if name in _desks:
            return _desks[name]
        await asyncio.sleep(0.01)
    return {"error": f"the workers did not come together within {JOIN:g} s"}


def part_of(name: str, handle: int) -> Any:
    """A copy of this worker's part of an operand, for Dask to keep."""
    member = _members[name]
    member.memory.use()
    return np.array(member.memory.to_host(member.parts[handle]))


def chunk(key: tuple[Any, ...]) -> Any:
    """A chunk of a Dask array that this worker keeps."""
    from distributed import Worker

    for worker in list(Worker._instances):
        if key in worker.data:
            return worker.data[key]
    raise KeyError(f"Dask does not keep chunk {key} here any more")


openers["chunk"] = chunk


# -- in the program ------------------------------------------------------------------------
def as_client(cluster: Any) -> AbstractContextManager[Any]:
    """A client of Dask: the one given, or, for an address or an asynchronous client, which could not be
    waited for in its own loop, one of our own for this long."""
    security = None
    if not isinstance(cluster, str):
        if cluster.scheduler is None:
            got = "a Dask client that is closed, or not connected yet"
            do = "make another, or await it first: client = await Client(..., asynchronous=True)"
            raise misfit(SessionError, "connect", got=got, needed="one that is connected", do=do)
        if not cluster._asynchronous:
            return contextlib.nullcontext(cluster)
        cluster, security = cluster.scheduler.address, cluster.security
    try:
        return client_of(cluster, security, ANSWER)
    except (OSError, ValueError, TypeError) as error:  # Dask's of TLS without a key are TypeErrors
        got, needed, do = (
            f"no scheduler at {cluster} ({error})",
            "the address of a Dask scheduler that is running, and its key if it speaks TLS",
            "start one with `dask scheduler`, and workers with `ostinato worker`; with TLS give a "
            "client: Client(address, security=...)",
        )
        raise misfit(SessionError, "connect", got=got, needed=needed, do=do) from None


def client_of(address: str, security: Any, timeout: float) -> Any:
    from distributed import Client

    client: Any = Client.__new__(Client)  # what fails to connect is nowhere else
    try:
        client.__init__(address, timeout=timeout, set_as_default=False, security=security)
    except BaseException:
        give_up(client)
        raise
    return client


def give_up(client: Any) -> None:
    """A client that did not connect, or could not be closed, is closed. As garbage it would wait for a
    loop: in whatever thread the collector runs, perhaps for a lock that waits for this thread."""
    client.status = "closed"
    if hasattr(client, "_loop_runner"):
        client._loop_runner.stop()


def await_workers(client: Any) -> int:
    """Count a cluster's workers, those included that are about to come, as all of a job are."""
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(1, ANSWER)
        client.wait_for_workers(max(client.run(count_started).values()), JOIN)
    if not (there := len(client.nthreads())):
        got, do = "a Dask cluster without workers", "start some with `ostinato worker`"
        raise misfit(SessionError, "connect", got=got, needed="one worker or more", do=do)
    return there


def begin(client: Any, threads: int | None = None, device: str = "cpu") -> Channel:
    """Make a crew of a cluster's workers, and connect to its lead."""
    found = client.run(present, device)
    errors = [f["error"] for f in found.values() if "error" in f]
    ranks = sorted(f["rank"] for f in found.values() if "error" not in f)
    if errors or len(set(ranks)) != len(found):
        got = f"{len(found)} Dask workers that cannot reach each other by MPI" + (
            f" ({errors[0]})" if errors else ""
        )
        needed = "workers that one mpiexec has started"
        do = "start them with ost.LocalCluster(n), `ostinato worker`, or dask-mpi"
        raise SessionError.because("connect", got=got, needed=needed, do=do)
    others = sorted({f["host"] for f in found.values() if f["version"] != version()})
    if others:
        got = f"workers on {', '.join(others)} with another version of ostinato than this program's"
        do = "install it there, and start the workers again"
        raise SessionError.because("connect", got=got, needed="the same one everywhere", do=do)
    for f in found.values():
        if f["lacks"]:
            got = f"device={device!r} for workers of which one is on {f['host']}"
            raise misfit(ArgumentError, "connect", got=got, needed=f"there, too: {f['lacks']}")
    by_rank = {f["rank"]: address for address, f in found.items()}
    lead = by_rank[ranks[0]]
    host = lead.split("://")[-1].rsplit(":", 1)[0].strip("[]")
    name, secret = secrets.token_hex(8), secrets.token_bytes(32)
    client.run_on_scheduler(page.install)
    client.run(enlist, name, ranks, secret, host, threads, device)
    where = client.run(desk_of, name, workers=[lead])[lead]
    if "error" in where:
        raise SessionError.because("connect", got=where["error"], needed="workers that are free")
    first = found[lead]
    lead_name = f"the lead of the workers (process {first['process']} on {first['host']})"
    heartbeat, address = float(where["heartbeat"]), tuple(where["address"])
    try:
        channel = Channel(address, secret, len(ranks), int(where["threads"]), lead_name, heartbeat)
    except (Broken, OSError) as error:
        got = f"no greeting from {lead_name} ({error})"
        needed = f"a way from here to {address[0]}, port {address[1]}"
        do = "connect again; see whether something between changes or keeps back what is sent"
        raise misfit(SessionError, "connect", got=got, needed=needed, do=do) from error
    channel.client, channel.crew = client, name
    channel.addresses = [by_rank[r] for r in ranks]
    return channel


def keep_parts(channel: Channel, handle: int, ranks: Sequence[int]) -> list[Any]:
    """Dask's futures of copies of an operand's parts on these workers, once they are made."""
    submit = channel.client.submit
    futures = [
        submit(part_of, channel.crew, handle, workers=[channel.addresses[r]], pure=False)
        for r in ranks
    ]
    _await(channel, futures, "to_dask")
    from distributed.client import _get_global_client, _set_global_client

    if _get_global_client() is None:  # `compute()` goes where the parts are
        _set_global_client(channel.client)
    return futures


def keep(channel: Channel, array: Any) -> tuple[list[Any], list[tuple[Any, int]]]:
    """Dask's futures of an array's chunks, which workers keep; the key of each, and the rank that has it."""
    from distributed import futures_of

    futures = futures_of(channel.client.persist(array))
    _await(channel, futures, "from_dask")
    held = channel.client.who_has(futures)
    ranks = {address: k for k, address in enumerate(channel.addresses)}
    found = []
    for key in [future.key for future in futures]:
        who = [ranks[a] for a in held.get(key, ()) if a in ranks]
        if not who:
            got = f"a Dask array whose chunk {key[1:]} no worker of the session keeps"
            needed = "an array of the session's own cluster"
            raise misfit(SessionError, "from_dask", got=got, needed=needed)
        found.append((key, min(who)))
    return futures, found


def _await(channel: Channel, futures: Sequence[Any], what: str) -> None:
    """Until Dask has made all of these, or says why it cannot, or a worker is lost."""
    from distributed import wait

    done = False
    while not done:
        with contextlib.suppress(TimeoutError), channel.client.as_current():
            wait(futures, timeout=BEAT)
            done = True
        channel.check()
    for future in futures:
        if future.status != "finished":
            error = future.exception() if future.status == "error" else None
            why = future.status if error is None else f"{type(error).__name__}: {error}"
            raise misfit(ExecutionError, what, got=f"an error from Dask ({why})") from error
