"""The tests of communicators, over MPI: `mpiexec -n 3 python -m tests.runtime.over_mpi`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from ostinato.runtime.messages import mpi
from ostinato.runtime.messages.mpi import MpiCommunicator

from tests.runtime import cases
from tests.runtime import test_communicator as tests

WORLD = MPI.COMM_WORLD


def team(size: int, work: Callable[[Any], Any]) -> list[Any]:
    """What the first processes make of their communicators."""
    group = WORLD.Split(WORLD.rank < size)
    found: list[Any] = []
    if WORLD.rank < size:
        comm = MpiCommunicator(group)
        found = group.allgather(work(comm))
        assert not comm.left
    found = WORLD.bcast(found)
    group.Free()
    return found


def main() -> None:
    tests.team = team  # type: ignore[assignment]
    count = 0
    for at_once in (1 << 18, 0):  # small states go to all, large ones in parts
        mpi.AT_ONCE = at_once
        for name, test in vars(tests).items():
            if not name.startswith("test_") or name in (
                "test_alone",
                "test_a_failure_releases_the_others",
            ):
                continue
            for arguments in cases.of(test):
                if arguments.get("size", least(name)) <= WORLD.size:
                    test(**arguments)
                    count += 1
    assert count > 20
    if WORLD.rank == 0:
        print(f"{WORLD.size} workers: all {count} hold")


def least(name: str) -> int:
    """Workers that a test needs which has no parameter for them."""
    return 3 if any(w in name for w in ("argmin", "broadcast", "any_common_order")) else 4


if __name__ == "__main__":
    main()
