"""The communicator of threads: every operation, started and awaited in any order, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.exchange import pieces_from, pieces_to
from ostinato.ops.core.layout import Layout, part_ranks, slices
from ostinato.ops.core.spec import bfloat16, float16
from ostinato.runtime.messages.communicator import Alone, ThreadCommunicator, ThreadWorld

from ostinato.errors import CommunicatorError

SIZES = [1, 2, 3, 5]


def team(size: int, work: Callable[[ThreadCommunicator], Any]) -> list[Any]:
    """What each of some threads makes of its communicator."""
    world = ThreadWorld(size)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        comm = world.communicator(rank)
        try:
            found[rank] = work(comm)
        except BaseException as error:
            comm.abort(error)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(t.is_alive() for t in threads), "a worker hangs"
    if errors:
        raise sorted(errors, key=lambda e: isinstance(e, CommunicatorError))[0]
    assert not world.board, "nothing is left behind"
    return found


def everybody(comm: ThreadCommunicator) -> tuple[int, ...]:
    return tuple(range(comm.size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("monoid", "combine"),
    [
        ("sum", np.sum),
        ("prod", np.prod),
        ("min", np.min),
        ("max", np.max),
        ("any", np.any),
        ("all", np.all),
    ],
)
def test_all_reduce(size: int, monoid: str, combine: Any) -> None:
    data = np.random.default_rng(0).normal(size=(size, 4, 3))
    data = data > 0.3 if monoid in ("any", "all") else data

    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty_like(data[0])
        comm.start_all_reduce((data[comm.rank],), (out,), monoid, everybody(comm)).wait()
        return out

    for out in team(size, work):
        np.testing.assert_allclose(out, combine(data, axis=0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(), (4, 3), (5, 0), (70_000,), (3, 40_000)])
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda d: d.name)
def test_halves_are_added_in_float32(size: int, shape: tuple[int, ...], dtype: Any) -> None:
    data = np.random.default_rng(0).normal(size=(size, *shape)).astype(dtype)
    right = data[0].astype(np.float32)
    for x in data[1:]:
        right = right + x.astype(np.float32)
    half = (slice(0, 1),) * bool(shape)

    def work(comm: ThreadCommunicator) -> Any:
        x, group = data[comm.rank], everybody(comm)
        out, part = np.empty(shape, dtype), np.empty(x[half].shape, np.float32)
        comm.start_all_reduce((x,), (out,), "sum", group).wait()
        comm.start_reduce_scatter(x, part, "sum", group, [half] * comm.size).wait()
        return out, part

    for out, part in team(size, work):
        np.testing.assert_array_equal(out, right.astype(dtype))
        np.testing.assert_array_equal(part, right[half], "a sum that is wanted wider")


@pytest.mark.parametrize("size", SIZES)
def test_states_of_several_arrays(size: int) -> None:
    r = np.random.default_rng(1)
    groups = [r.normal(size=(n, 3)) for n in (0, 5, 1, 7, 2)[:size]]
    every = np.concatenate(groups) if sum(map(len, groups)) else np.zeros((0, 3))

    def work(comm: ThreadCommunicator) -> Any:
        x = groups[comm.rank]
        mean = x.mean(0) if len(x) else np.zeros(3)
        state = (np.array(float(len(x))), mean, ((x - mean) ** 2).sum(0))
        out = tuple(np.empty_like(s) for s in state)
        comm.start_all_reduce(state, out, "moments", everybody(comm)).wait()
        return out

    for count, mean, square in team(size, work):
        assert count == len(every)
        if len(every):
            np.testing.assert_allclose(mean, every.mean(0))
            np.testing.assert_allclose(square, ((every - every.mean(0)) ** 2).sum(0))


def test_argmin_with_ties_nan_and_empty_parts() -> None:
    values = np.array([[3.0, 1.0, np.nan, 0.0], [2.0, 1.0, 5.0, 0.0], [2.0, 0.5, np.nan, 9.0]])
    places = np.array([[0, 0, 0, -1], [1, 1, 1, 1], [2, 2, 2, 2]])

    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty(4), np.empty(4, np.int64)
        state = values[comm.rank].copy(), places[comm.rank].copy()
        comm.start_all_reduce(state, out, "argmin", everybody(comm)).wait()
        return out[1]

    for found in team(3, work):
        assert found.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(size: int) -> None:
    data = np.random.default_rng(0).normal(size=(size, 7, 2))
    layout = Layout((size,), (0,))
    boxes = [layout.box((7, 2), r) for r in range(size)]
    whole = ((0, 7), (0, 2))

    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty(layout.local_shape((7, 2), comm.rank))
        parts = [slices(b, whole) for b in boxes]
        comm.start_reduce_scatter(data[comm.rank], out, "sum", everybody(comm), parts).wait()
        return out

    np.testing.assert_allclose(np.concatenate(team(size, work)), data.sum(0))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_exchange_moves_layouts(size: int) -> None:
    x = np.arange(42.0).reshape(6, 7)
    has, needs = Layout((size,), (0,)), Layout((size,), (1,))

    def work(comm: ThreadCommunicator) -> Any:
        own, wanted = has.box(x.shape, comm.rank), needs.box(x.shape, comm.rank)
        mine = x[slices(own, ((0, 6), (0, 7)))].copy()
        out = np.full(needs.local_shape(x.shape, comm.rank), np.nan)
        goes = pieces_from(has, needs, x.shape, comm.rank)
        comes = pieces_to(has, needs, x.shape, comm.rank)
        sends = [(p.target, mine[slices(p.box, own)]) for p in goes if p.target != comm.rank]
        receives = [(p.source, out[slices(p.box, wanted)]) for p in comes if p.source != comm.rank]
        request = comm.start_exchange(sends, receives)
        for p in comes:
            if p.source == comm.rank:
                out[slices(p.box, wanted)] = mine[slices(p.box, own)]
        request.wait()
        return out

    np.testing.assert_array_equal(np.concatenate(team(size, work), axis=1), x)


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(root: int) -> None:
    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty(3)
        comm.start_broadcast(np.full(3, float(comm.rank)), out, root, everybody(comm)).wait()
        return out

    for out in team(3, work):
        assert (out == root).all()


def test_send_and_receive_round_a_ring() -> None:
    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty(2)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        if comm.rank == 0:
            comm.send(np.full(2, 0.0), right)
            comm.receive(out, left)
        else:
            comm.receive(out, left)
            comm.send(out + 1, right)
        comm.barrier()
        return out

    assert [out[0] for out in team(4, work)] == [3.0, 0.0, 1.0, 2.0]


def test_lines_of_a_mesh_work_side_by_side() -> None:
    """Groups (0, 2) and (1, 3) beside messages from 0 to 2 and from 1 to 3."""

    def work(comm: ThreadCommunicator) -> Any:
        group = part_ranks((2, 2), (0,), comm.rank)
        total, got = np.empty(1), np.empty(1)
        x = np.array([float(comm.rank)])
        first = comm.start_all_reduce((x,), (total,), "sum", group)
        peer = (comm.rank + 2) % 4
        second = comm.start_exchange([(peer, x)], [(peer, got)])
        second.wait()
        first.wait()
        return total[0], got[0]

    assert team(4, work) == [(2.0, 2.0), (4.0, 3.0), (2.0, 0.0), (4.0, 1.0)]


def test_started_operations_are_awaited_in_any_common_order() -> None:
    def work(comm: ThreadCommunicator) -> Any:
        outs = [np.empty(1) for _ in range(4)]
        requests = [
            comm.start_all_reduce((np.array([10.0**k]),), (outs[k],), "sum", everybody(comm))
            for k in range(4)
        ]
        for k in (2, 0, 3, 1):
            requests[k].wait()
        return [o[0] for o in outs]

    assert team(3, work) == [[3.0, 30.0, 300.0, 3000.0]] * 3


def test_sums_do_not_depend_on_who_comes_first() -> None:
    """Addition in the order of ranks, whatever the threads do."""
    data = (
        np.random.default_rng(0).normal(size=(4, 1000)).astype("f4") * 10.0 ** np.arange(4)[:, None]
    )
    data = data.astype("f4")

    def work(comm: ThreadCommunicator) -> Any:
        out = np.empty_like(data[0])
        for _ in range(20):
            comm.start_all_reduce((data[comm.rank],), (out,), "sum", everybody(comm)).wait()
        return out.tobytes()

    found = {b for _ in range(5) for b in team(4, work)}
    assert found == {(((data[0] + data[1]) + data[2]) + data[3]).tobytes()}


def test_a_failure_releases_the_others() -> None:
    def work(comm: ThreadCommunicator) -> Any:
        if comm.rank == 1:
            raise ZeroDivisionError("here")
        out = np.empty(1)
        comm.start_all_reduce((np.ones(1),), (out,), "sum", everybody(comm)).wait()

    with pytest.raises(ZeroDivisionError):
        team(3, work)


def test_alone() -> None:
    comm = Alone()
    out = np.empty(2)
    comm.start_all_reduce((np.ones(2),), (out,), "sum", (0,)).wait()
    assert out.tolist() == [1, 1]
    comm.start_reduce_scatter(np.full(2, 3.0), out, "sum", (0,), [(slice(None),)]).wait()
    assert out.tolist() == [3, 3]
    comm.start_broadcast(np.full(2, 4.0), out, 0, (0,)).wait()
    assert out.tolist() == [4, 4]
    comm.start_exchange([], []).wait()
    comm.barrier()
    with pytest.raises(CommunicatorError, match="nobody to send to"):
        comm.send(out, 1)
    with pytest.raises(CommunicatorError, match="nobody to receive from"):
        comm.receive(out, 1)
