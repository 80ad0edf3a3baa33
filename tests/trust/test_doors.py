"""Only who has a cluster's key may speak to its scheduler and workers, and only its user can read the key."""

from __future__ import annotations

import asyncio
import os
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import sessions
from ostinato.errors import SessionError
from tests.clusters import PATIENCE, job, needs, needs_dask
from tests.trust.conftest import Tally

pytestmark = [
    needs_dask,
    needs("cryptography"),
    pytest.mark.filterwarnings("ignore"),  # Dask's own
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ost.LocalCluster]:
    with ost.LocalCluster(2, heartbeat=60) as cluster:
        before = sessions.in_use
        yield cluster
        sessions.in_use = before


def doors(cluster: ost.LocalCluster) -> list[str]:
    """Where scheduler and workers listen."""
    there = cluster.client.nthreads()
    found = [cluster.scheduler_address, *there]
    assert all(door.startswith("tls://127.0.0.1:") for door in found)
    return found


@pytest.mark.parametrize("protocol", ["tls", "tcp"])
@pytest.mark.parametrize("key", ["none", "another"])
def test_strangers_are_refused(
    cluster: ost.LocalCluster, protocol: str, key: str, tally: Tally
) -> None:
    """At each door, whatever they speak: no call of theirs is answered."""
    from distributed.core import connect
    from distributed.security import Security

    security = Security.temporary() if key == "another" else Security()
    words = security.get_connection_args("client") if (key, protocol) != ("none", "tls") else {}

    async def call(door: str) -> Any:
        comm = await connect(door, timeout=1, **words)
        try:
            await comm.write({"op": "identity", "reply": True})
            return await comm.read()
        finally:
            comm.abort()

    for door in doors(cluster):
        with pytest.raises((OSError, TypeError, RuntimeError)):
            asyncio.run(call(door.replace("tls", protocol)))
        tally("strangers refused", 1)
    assert float(ost.asarray(np.ones(4), split=0).sum()) == 4


def test_an_address_alone_is_refused_in_one_sentence(cluster: ost.LocalCluster) -> None:
    for address in (cluster.scheduler_address, cluster.scheduler_address.replace("tls", "tcp")):
        with pytest.raises(SessionError, match=r"test_doors.py.*with TLS give a client"):
            ost.connect(address)


def test_only_the_user_can_read_the_key(cluster: ost.LocalCluster) -> None:
    path = Path(cluster.security.tls_ca_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    lines = [line for line in path.read_text().splitlines() if len(line) == 64]
    assert len(lines) > 30
    for process in cluster.client.run(os.getpid).values():  # nor is it told on the way
        for name in ("cmdline", "environ"):
            said = Path(f"/proc/{process}/{name}").read_text()
            assert not any(line in said for line in lines)


def test_who_has_the_key_is_let_in(cluster: ost.LocalCluster) -> None:
    from distributed import Client

    with (
        Client(
            cluster.scheduler_address, security=cluster.security, set_as_default=False
        ) as client,
        ost.connect(client),
    ):
        assert float(ost.asarray(np.ones(5), split=0).sum()) == 5


def test_the_dashboard_only_shows(cluster: ost.LocalCluster) -> None:
    """It is without a key, on this machine alone, and has nothing that changes anything."""
    pytest.importorskip("bokeh")
    assert cluster.dashboard_link.startswith("http://127.0.0.1:")
    root = cluster.dashboard_link.removesuffix("/ostinato")
    for page in ("ostinato", "status", "metrics", "info/main/workers.html"):
        with urllib.request.urlopen(f"{root}/{page}", timeout=20) as answer:
            assert answer.status == 200
    with pytest.raises(OSError, match="404"):
        urllib.request.urlopen(f"{root}/api/v1/retire_workers", b"{}", timeout=20)


def test_asynchronous_clients(cluster: ost.LocalCluster) -> None:
    """They are asked in a loop of ours, since their own waits for us."""
    da = pytest.importorskip("dask.array")
    from distributed import Client

    async def work() -> None:
        security = cluster.security
        coming = Client(cluster.scheduler_address, asynchronous=True, security=security)
        with pytest.raises(SessionError, match="not connected yet; needed one that is connected"):
            ost.connect(coming)
        async with coming as client:
            with ost.connect(client):
                x = ost.asarray(np.arange(6.0), split=0) + 1
                assert float(x.sum()) == 21
                there = x.to_dask()  # kept, since another client holds its parts
                assert await client.compute(there.sum()) == 21
                assert float(ost.from_dask(da.ones(8, chunks=4), split=0).sum()) == 8
            assert client.status == "running"

    asyncio.run(work())


def test_what_is_changed_on_its_way_ends_a_session_and_not_the_next(tally: Tally) -> None:
    """Of either side's stream: nobody waits for ever for what a changed length says, or for what is kept back."""
    said = job("tampered")
    free = {name for name, (_, is_free) in said["found"].items() if is_free}
    assert free == {*said["found"]}, "the lead serves others"
    assert len(free) == 38
    kinds = {f["kind"] for f, _ in said["found"].values()}
    assert kinds == {"CommunicatorError", "Broken", "TimeoutError"}
    assert max(f["seconds"] for f, _ in said["found"].values()) < PATIENCE
    assert said["after"]
    tally("streams changed on their way", len(free))
