"""Processes that mpiexec starts: the same answers as threads give, one small message per iteration, and what
happens when one of them fails or dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.encode import Malformed
from ostinato.ops.cpu.libraries import onednn
from ostinato.ops.cpu.threads import blas
from ostinato.runtime.crew.orders import HEAD, KINDS, Order, described, unpack

import ostinato as ost
from ostinato.cluster import mpiexec as launcher
from ostinato.errors import CommunicatorError
from tests.clusters import ROOT, gone, needs_dask, needs_mpi
from tests.sessions import use
from tests.thorough import some


def mpiexec(count: int, *arguments: str, limit: float = 120, **settings: str) -> Any:
    """A job that is ended with all its processes if it does not end itself."""
    command = [*launcher(), "-n", str(count), sys.executable, *arguments]
    env = {**os.environ, "OSTINATO_CACHE": "off", "PYTHONPATH": str(ROOT)} | settings
    env.pop("PYTEST_XDIST_WORKER", None)
    job = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        raise AssertionError(f"{arguments} hangs:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, job.returncode, out, err)


def scenario(count: int, *arguments: str, **settings: str) -> dict[str, Any]:
    """What a scenario of jobs.py said."""
    job = mpiexec(count, "-m", "tests.runtime.jobs", *arguments, **settings)
    found: dict[str, Any] = {"status": job.returncode, "stderr": job.stderr}
    for line in job.stdout.splitlines():
        if line.startswith("{"):  # the launcher may go on in the same line
            found |= json.JSONDecoder().raw_decode(line)[0]
    return found


def good(count: int, *arguments: str) -> dict[str, Any]:
    found = scenario(count, *arguments)
    assert found["status"] == 0, found
    return found


@pytest.fixture(scope="module")
def pair() -> dict[str, Any]:
    """What several scenarios of two processes said, which share them."""
    return good(2, "each", "orders", "matrices_stay", "idle", "singular", "called_back")


@pytest.fixture(scope="module")
def trio() -> dict[str, Any]:
    return good(3, "each", "progress", "freed", "narrow_sums", "two_sessions", "closes")


# -- the same answers ----------------------------------------------------------------------
@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("count", some([3, 2, 4]))
def test_files_of_tests_give_the_same_answers(count: int) -> None:
    """Random programs in any layout; addends that are sent narrow, with the bits that NumPy has; replicas of
    operands that stay, which are for three. All in one job."""
    files = ["planner/test_any_layout", "planner/test_narrow_sums", "planner/test_space"]
    files += ["runtime/test_replicas"] if count == 3 else []
    chosen = "test_any_layout or test_replicas or values or inside or loops or test_layers"
    paths = [f"tests/{file}.py" for file in files]
    job = mpiexec(count, "-m", "pytest", "-q", "-p", "no:xdist", *paths, "-k", chosen, limit=280)
    assert job.returncode == 0, job.stdout[-4000:] + job.stderr[-2000:]
    assert "passed" in job.stdout or "[100%]" in job.stdout


@needs_mpi
def test_addends_that_are_sent_narrow(trio: dict[str, Any]) -> None:
    """Half the bytes."""
    wide, narrow = trio["narrow_sums"]["sent"]
    assert 0 < narrow < 0.51 * wide


@needs_mpi
@pytest.mark.parametrize("count", some([3, 2, 5]))
def test_the_communicator_over_mpi(count: int) -> None:
    job = mpiexec(count, "-m", "tests.runtime.over_mpi")
    assert job.returncode == 0, job.stdout[-4000:] + job.stderr[-4000:]
    assert f"{count} workers: all" in job.stdout


@needs_mpi
def test_messages_longer_than_mpi_counts() -> None:
    assert good(3, "long_messages")["ok"]


@needs_mpi
def test_what_was_started_goes_on_by_itself(trio: dict[str, Any]) -> None:
    assert trio["progress"]["done"]


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 1))
def test_small_messages_are_made_ready_once(count: int) -> None:
    found = good(count, "made_ready")
    assert found["right"] == [True] * 20
    assert len(found["errors"]) == 1
    assert "by test" in found["errors"][0]
    mails, flows = zip(*found["counts"], strict=True)
    assert set(mails) == {2}
    assert not any(f for k, f in enumerate(flows) if k % 5)  # the others come after a new array
    assert found["left"] == 0
    assert "persistent" not in found["stderr"]  # which MPI says of what was not given back


# -- one small message ---------------------------------------------------------------------
@needs_mpi
def test_an_iteration_costs_the_same_whatever_the_plan_contains(pair: dict[str, Any]) -> None:
    found = pair["orders"]["found"]
    assert set(found) == {"10", "100", "2000"}
    for messages, total in found.values():
        assert messages == 20
        assert total <= 20 * (64 + 2 * 16)
    assert len({tuple(f) for f in found.values()}) == 1


@needs_mpi
def test_handles_that_nobody_holds_are_freed_everywhere(trio: dict[str, Any]) -> None:
    found = trio["freed"]
    assert found["operands"] == [2, 2, 2]
    assert found["value"] == 101


@needs_mpi
def test_everybody_keeps_a_matrix_that_stays(pair: dict[str, Any]) -> None:
    found = pair["matrices_stay"]
    assert found["right"] == [True] * 4
    assert found["kept"] == [[not isinstance(onednn.library(), str)] * 2] * 2


@needs_mpi
@pytest.mark.skipif(blas() is None, reason="NumPy with another library than OpenBLAS")
def test_products_of_numpy_have_the_threads_of_a_worker() -> None:
    """Those of all ranks together would wait awake for cores that others have."""
    found = good(2, "shared_cores")
    assert found["behind"] == 8
    assert found["share"] < 8
    assert {*found["inside"]} == {found["share"]}


@needs_mpi
def test_who_has_nothing_to_do_sleeps(pair: dict[str, Any]) -> None:
    """Looking for orders all the time would take the whole core."""
    assert max(pair["idle"]["share"]) < 0.1


def test_orders_are_refused_if_anything_is_wrong_with_them() -> None:
    order = Order("get", 7, 1, bytes(range(16)), (3, 4), (9,), 11, ["text", {"a": 1}])
    said = order.pack()
    assert unpack(said) == order
    assert len(Order("run", 1, operands=(1,)).pack()) == HEAD.size + 8 <= 64 + 16
    for cut in range(len(said)):
        with pytest.raises(Malformed):
            unpack(said[:cut])
    with pytest.raises(Malformed):
        unpack(said + b"x")
    wrong = bytearray(said)
    wrong[4] = len(KINDS)
    with pytest.raises(Malformed, match="kind"):
        unpack(bytes(wrong))
    wrong = bytearray(said)
    wrong[8:12] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(Malformed, match="handles"):
        unpack(bytes(wrong))
    with pytest.raises(Malformed, match="text"):
        unpack(said[:-1] + b"{")


# -- faults --------------------------------------------------------------------------------
@needs_mpi
@pytest.mark.parametrize("rank", some([0, 1, 2], 2))
def test_one_worker_fails_in_the_middle_of_a_sum(rank: int) -> None:
    found = good(3, "one_fails", str(rank))
    error = found["error"]
    assert "by test" in error["text"]
    assert rank == 0 or f"worker {rank}" in error["text"]
    assert error["seconds"] < 30
    assert found["again"] == pytest.approx([1 / 12] * 12), "afterwards all is well"


@needs_mpi
def test_a_failure_that_nobody_waits_for_is_told_later() -> None:
    found = good(3, "late_failure")
    assert "worker 2" in found["error"]["text"]
    assert "ZeroDivisionError: by test" in found["error"]["text"]
    for later in (found["use"], found["read"]):
        assert later["kind"] == "CommunicatorError"
        assert "make it again" in later["text"]
    assert found["good"] == [2.0] * 12
    assert found["again"] == [3.0] * 12


@needs_mpi
@pytest.mark.parametrize("rank", some([2, 0], 2))
def test_what_the_lead_puts_off_is_done_before_anything_else(tmp_path: Path, rank: int) -> None:
    found = good(3, "put_off", str(rank), str(tmp_path / "go"))
    assert found["behind"] == [1, 0, 0]
    assert found["sums"] == pytest.approx([12, 1, 1])
    assert "by test" in found["error"]["text"]
    assert "make it again" in found["use"]["text"]
    assert found["operands"] == [3] * 3, "also what was freed by orders that failed"


@needs_mpi
def test_an_error_of_the_operation_names_the_line(pair: dict[str, Any]) -> None:
    found = pair["singular"]
    assert found["error"]["kind"] == "LinAlgError"
    assert "jobs.py:" in found["error"]["text"]
    assert found["good"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    found = pair["called_back"]
    assert found["good"] == 4
    for words in ("jobs.py:", "got workers that are other processes; needed threads"):
        assert words in found["error"]["text"]


@needs_mpi
def test_a_worker_that_is_not_where_the_others_are() -> None:
    found = good(3, "astray")
    assert "worker 1 got order" in found["error"]["text"]
    assert found["error"]["seconds"] < 30
    assert found["again"] == pytest.approx(1)
    error = good(3, "unknown")["error"]
    assert "which worker 1 was not given" in error["text"]


@needs_mpi
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_worker_dies(name: str) -> None:
    found = scenario(3, "killed", name, OSTINATO_HEARTBEAT="3")
    assert name == "SIGKILL" or "error" in found
    if "error" in found:  # else mpich's launcher was quicker, and ended the lead, too
        error = found["error"]
        assert error["kind"] == "CommunicatorError"
        assert "worker 2 (process" in error["text"]
        assert error["seconds"] < 30
    assert found["status"] != 0
    assert gone(found["processes"])


@needs_mpi
@pytest.mark.parametrize(
    ("how", "status"), some([("raise", 1), ("exit", 3), ("kill", 9), ("abrupt", 4)], 2)
)
def test_the_script_ends_and_so_do_the_workers(how: str, status: int) -> None:
    found = scenario(3, "leaves", how)
    assert found["status"] & status == status, "mpiexec joins everybody's"
    assert gone(found["processes"])
    assert how != "raise" or "the script's own" in found["stderr"]


@needs_mpi
def test_an_interrupt_leaves_all_ready_for_more() -> None:
    found = good(2, "interrupted")
    assert found["error"]["kind"] == "KeyboardInterrupt"
    assert found["again"] == pytest.approx(1)


@needs_mpi
def test_a_process_that_never_comes() -> None:
    found = scenario(3, "absent")
    assert "fewer than 3 processes within 2 s" in found["error"]["text"]
    assert found["status"] != 0


def test_a_lifeline_waits_for_no_length_that_nobody_says() -> None:
    from ostinato.runtime.crew import crew

    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = json.dumps(described(ValueError("\0" * 10**7))).encode()
        telling = threading.Thread(target=crew._tell, args=(ours, b"e", said))
        telling.start()
        assert crew._hear(theirs) == (b"e", said)
        telling.join()
        ours.sendall(crew._SAID.pack(b"e", 1 << 31) + b"and no more")
        theirs.settimeout(10)
        assert crew._hear(theirs) is None


@needs_mpi
def test_strangers_at_the_door_do_not_keep_workers_out() -> None:
    found = good(3, "strangers")
    assert found["value"] == pytest.approx(1)
    assert found["cut"] == [True] * 8
    assert found["soon"], "nobody waits for one who is silent"


@needs_mpi
def test_strangers_at_the_desk_do_not_keep_the_program_out() -> None:
    found = good(1, "silent")
    assert found["soon"]
    assert set(found["cut"]) <= {"", "ConnectionResetError"}
    assert found["ended"] == "ConnectionRefusedError", "the door is closed behind the program"


def _way_outwards() -> bool:
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as way:
        way.connect(("198.51.100.1", 9))
        return True
    return False


@needs_mpi
@pytest.mark.skipif(not _way_outwards(), reason="this machine has no network")
def test_lifelines_between_machines_are_where_others_can_come() -> None:
    found = good(2, "apart")
    assert found["value"] == pytest.approx(1)
    assert not any(host.startswith("127.") for host in found["hosts"])


@needs_mpi
def test_sessions_of_one_crew_follow_each_other(trio: dict[str, Any]) -> None:
    found = trio["closes"]
    assert found["y"] == [1, 2, 3, 4, 5, 6]
    assert found["late"]["kind"] == "SessionError"
    assert found["z"] == [0, 2, 4, 6, 8, 10]
    assert found["operands"] == [1, 1, 1] or found["operands"] == [0, 0, 0]


@needs_mpi
def test_sessions_of_one_crew_have_arrays_of_their_own(trio: dict[str, Any]) -> None:
    found = trio["two_sessions"]
    x = np.arange(6.0)
    assert found["before"] == found["after"] == (2 * x).tolist()
    assert found["outer"] == x.tolist()
    assert found["inner"] == [198.0] * 6
    assert found["again"] == [2.0] * 6
    assert "got threads=7" in found["threads"]["text"]


@needs_mpi
def test_plans_that_workers_do_not_have_are_sent_again() -> None:
    found = good(3, "forgotten")
    assert "by test" in found["error"]["text"]
    assert found["new"] == [-1.0] * 6
    assert found["old"] == [1.0] * 6


@needs_mpi
def test_what_was_ordered_before_a_failure_is_made() -> None:
    found = good(3, "behind")
    assert found["error"]["kind"] == "KeyboardInterrupt"
    assert found["right"]
    assert found["again"] == 6


@needs_mpi
def test_a_second_interrupt_waits_for_workers_that_compute() -> None:
    found = good(2, "impatient", "2")
    assert found["error"]["kind"] == "KeyboardInterrupt"
    assert found["again"]["kind"] == ""
    assert "waiting for workers that still compute" in found["stderr"]


@needs_mpi
def test_a_third_interrupt_waits_no_longer() -> None:
    found = scenario(2, "impatient", "3")
    assert "was interrupted while it waited" in found["error"]["text"], found
    assert found["again"]["kind"] == "CommunicatorError"
    assert found["status"] != 0


@needs_mpi
def test_a_failure_while_an_order_goes_down_the_tree() -> None:
    found = good(4, "forwards")
    assert "by test" in found["error"]["text"]
    assert found["y"] == [1.0] * 8
    assert found["z"] == 0


@needs_mpi
def test_more_failures_than_mpi_has_communicators() -> None:
    found = good(2, "often", "300")
    assert 100 < found["held"] < 100_000
    assert found["kinds"] == ["LinAlgError"]
    assert found["good"] == [[1, 0], [0, 1]]


@needs_mpi
def test_nothing_is_written_to_what_was_given_up() -> None:
    found = good(2, "given_up")
    assert found["all"] == [[True] * 3] * 2
    assert all(found["done"])


@needs_mpi
def test_plans_run_while_workers_write_a_checkpoint(tmp_path: Path) -> None:
    found = good(3, "saves", str(tmp_path))
    x = np.arange(6.0)
    assert found["found"] == x.tolist()
    assert not found["early"]
    for _ in range(5):
        x = x + x.sum() / 6
    np.testing.assert_allclose(found["meanwhile"], x)
    assert found["error"]["kind"] == "ExecutionError"
    assert "worker 2: OSError: [Errno 28] no space left" in found["error"]["text"]
    np.testing.assert_allclose(found["after"], x + x.sum() / 6)
    assert found["recovered"] is None, "nothing else was lost"
    assert found["steps"] == []


@needs_mpi
@pytest.mark.parametrize("count", some([2, 3], 2, 0))
def test_each_worker_streams_its_part_into_a_file(tmp_path: Path, count: int) -> None:
    pytest.importorskip("h5py")
    value = np.random.default_rng(0).normal(size=(1201, 7))
    np.save(tmp_path / "x.npy", value)
    found = good(count, "streams", str(tmp_path))
    for each in found["found"]:
        np.testing.assert_allclose(each, np.exp(value) + 1, rtol=1e-13)
    assert not found["kept"]
    assert found["most"] <= 4200
    assert found["count"] < 1.5 * 3 * value.nbytes / 4096 / count, "the first worker's share"
    assert found["alive"] == sum(range(1, count + 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy", "y.h5", "y.npy", "y.zarr"]


@needs_mpi
def test_processes_work_through_a_file_in_blocks(tmp_path: Path) -> None:
    """Running sums, an external merge, and QR of a tall matrix, in less memory than it takes."""
    value = np.random.default_rng(0).normal(size=(6001, 3))
    np.save(tmp_path / "x.npy", value)
    found = good(3, "works_in_blocks", str(tmp_path))
    np.testing.assert_allclose(np.load(tmp_path / "sums.npy"), np.cumsum(value, 0), rtol=1e-9)
    np.testing.assert_array_equal(np.load(tmp_path / "sorted.npy"), np.sort(value, 0)[::-1])
    q = np.load(tmp_path / "q.npy")
    np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(q @ (q.T @ value), value, atol=1e-12)
    np.testing.assert_allclose(found["values"], np.linalg.svd(value, False)[1])
    names = ["q.npy", "sorted.npy", "sums.npy", "x.npy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


@needs_mpi
def test_processes_read_and_write_files_of_each_kind(tmp_path: Path) -> None:
    """Each its part, in less memory than all takes; rows in another order, and pieces that are joined.
    What only the program can make, no other process is asked for."""
    h5py, pyarrow = pytest.importorskip("h5py"), pytest.importorskip("pyarrow")
    parquet, csv = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.csv")
    rng = np.random.default_rng(0)
    value = rng.normal(size=(6001, 3)).round(2)
    places = rng.integers(-6001, 6001, 5000)
    np.save(tmp_path / "x.npy", value)
    np.save(tmp_path / "places.npy", places)
    np.savez(tmp_path / "x.npz", x=value)
    np.savez_compressed(tmp_path / "deflated.npz", x=value)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=value, chunks=(100, 3))
    with use():
        ost.save(tmp_path / "x.zarr", value)
        order = np.asarray(ost.random.permutation(6001, seed=3))
    table = pyarrow.table({name: value[:, k] for k, name in enumerate("abc")})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=500)
    csv.write_csv(table, tmp_path / "x.csv")
    given = {p.name for p in tmp_path.iterdir()}

    found = good(4, "sources_and_sinks", str(tmp_path))
    kinds = ["npy", "h5", "zarr", "npz", "deflated", "parquet", "csv"]
    assert list(found["sums"]) == kinds
    for total in found["sums"].values():
        np.testing.assert_allclose(total, 2 * value.sum(0), rtol=1e-9)
    iterator, function = found["refused"]
    assert "got an iterator for 4 workers" in iterator
    assert "other process" in function
    by_key = np.argsort(value[:, 1], kind="stable")
    expected = {f"of_{kind}.zarr": value + 1 for kind in kinds[4:]} | {
        "order.npy": by_key,
        "by_key.h5": value[by_key],
        "by_places.npy": value[places],
        "shuffled.npy": value[order],
        "tiled.zarr": np.tile(value * 2, (2, 1)),
        "padded.npy": np.pad(value, ((3, 2), (1, 0)), mode="edge"),
        "repeated.h5": np.repeat(value * 2, 3, axis=0),
    }
    for name, wanted in expected.items():
        np.testing.assert_array_equal(np.asarray(ost.load(tmp_path / name)), wanted, name)
    assert {p.name for p in tmp_path.iterdir()} == given | expected.keys()


@needs_mpi
def test_nothing_ends_before_its_checkpoint_is_there(tmp_path: Path) -> None:
    found = good(3, "saves_last", str(tmp_path))
    assert found["stderr"] == ""
    assert found["found"] == list(range(6))
    assert np.asarray(ost.load_state(tmp_path, step=2)).tolist() == list(range(7))


@needs_dask
def test_processes_do_not_each_start_a_cluster() -> None:
    job = mpiexec(2, "-c", "import ostinato as ost\nost.LocalCluster(1)")
    assert job.returncode == 1
    assert job.stderr.count("call ost.connect() to use those that are there") == 2


@needs_dask
def test_two_clusters_on_one_machine_and_one_that_is_broken_closes_soon() -> None:
    """Each has a port of its own; when a worker of one dies, nobody waits for its scheduler."""
    before = ost.session()
    one, other = (ost.LocalCluster(1, dashboard=False) for _ in range(2))
    idle = ost.session()
    try:
        assert one.scheduler_address != other.scheduler_address
        session = one.connect()
        process = session.stats()["workers"][0]["process"]
        os.kill(process, signal.SIGKILL)
        with pytest.raises(CommunicatorError, match=f"process {process} "):
            session.wait()
        start = time.monotonic()
        one.close()
        assert time.monotonic() - start < 20, "Dask's client would look for it for a minute"
        with other.connect() as session:
            assert idle.engine.closed, "nobody used it"
            assert float(ost.asarray(np.ones(3)).sum()) == 3
        assert ost.session() is before
        process = other.connect().stats()["workers"][0]["process"]
    except BaseException:
        other.close()
        raise
    finally:
        one.close()
    with pytest.warns(UserWarning, match="its workers end, as nobody holds it any more"):
        del other
    assert ost.session() is before
    assert gone([process])
