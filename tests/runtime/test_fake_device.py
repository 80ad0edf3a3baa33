"""Programs on a device that is not the CPU (tests/fake_device.py): they give what NumPy gives, and only
what has to be moved is."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import DEVICES

import ostinato as ost
from ostinato import settings
from ostinato.errors import ArgumentError, BoundsError, LinAlgError, NaNError
from tests.fake_device import FAKE
from tests.fake_xp import CALL, DeviceArray, counted
from tests.helpers import compare_all
from tests.ops.nodes import SAMPLED, of
from tests.planner.test_any_layout import run_and_compare, splits_for
from tests.programs import make_program
from tests.runtime.descent import train
from tests.sessions import JOB, use
from tests.thorough import some

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
MESHES: tuple[tuple[int, ...], ...] = ((1,), (2,), (3,), (2, 2))
LONG = np.random.default_rng(0).normal(size=(300, 40))


def since(before: dict[str, int]) -> dict[str, int]:
    return {name: n - before[name] for name, n in vars(counted).items()}


# -- what it computes ------------------------------------------------------------------------
@pytest.mark.parametrize("seed", some(range(60)))
def test_random_programs(seed: int) -> None:
    r = random.Random(seed)
    mesh = r.choice(MESHES)
    numerics = r.choice(("same-plan", "any-workers"))
    run_and_compare(r, make_program(r), mesh, numerics, device="fake")


@pytest.mark.parametrize("name", SAMPLED)
def test_samples(name: str) -> None:
    """Each operation gives what its samples say; split at random, too."""
    r = random.Random(name)
    for sample in some(of(name), 6):
        given = [np.asarray(x) for x in sample.inputs]
        with np.errstate(all="ignore"):
            wanted = sample.reference(*(x.copy() for x in given))
        mesh = r.choice(MESHES)
        with use(mesh, sample.numerics, device="fake"):
            inputs = [ost.asarray(x, split=splits_for(r, x.ndim, mesh)) for x in given]
            run = ost.compile(lambda *xs, f=sample.function: f(*xs))
            compare_all(run(*inputs), wanted, f"{name} on {mesh}", sample.rtol, None)


def test_gradients_and_a_training_step() -> None:
    def trained(device: str, mesh: tuple[int, ...]) -> tuple[Any, list[float]]:
        with use(mesh, device=device):
            y = ost.asarray(LONG[:, :3] > 0, split=0) * 1.0
            return train(ost.zeros((40, 3)), ost.asarray(LONG, split=0), y, 5)

    wanted, values = trained("cpu", (1,))
    for mesh in MESHES:
        found, here = trained("fake", mesh)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        np.testing.assert_allclose(here, values, rtol=1e-10)


def test_loops_and_branches() -> None:
    def newton(a: Any) -> Any:
        x = ost.while_loop(
            lambda x: ost.abs(x * x - a) > 1e-10, lambda x: 0.5 * (x + a / x), a, most=50
        )
        y, rows = ost.scan(lambda c, k: (c + k, c * 2.0), x, ost.arange(4.0))
        return ost.cond(y > 7.0, lambda y: y * 2.0, lambda y: y, y), rows

    for mesh in MESHES:
        with use(mesh, device="fake"):
            y, rows = ost.compile(newton)(ost.asarray(2.0))
            root = np.sqrt(2.0)
            np.testing.assert_allclose(float(y), 2 * (root + 6))
            np.testing.assert_allclose(np.asarray(rows), 2 * (root + np.array([0, 0, 1, 3])))


def test_random_numbers_are_those_of_the_cpu() -> None:
    def draw() -> Any:
        u = ost.random.uniform((50, 7), seed=5)
        return u, ost.random.normal((9, 9), seed=6), ost.random.permutation(20, seed=7)

    for mesh in MESHES:
        found = []
        for device in ("cpu", "fake"):
            with use(mesh, device=device):
                found.append([np.asarray(x) for x in ost.compile(draw)()])
        for x, y in zip(*found, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_files(tmp_path: Path, kind: str) -> None:
    """A file is read part by part, or block by block where memory is short, and written."""
    path = tmp_path / f"x.{kind}"
    ost.save(path, ost.asarray(LONG))
    for mesh in MESHES:
        with use(mesh, device="fake"):
            x = ost.load(path, split=0, resident=False)
            np.testing.assert_allclose(np.asarray((x * 2).sum(0)), 2 * LONG.sum(0))
            np.testing.assert_allclose(np.asarray(x[5:9, ::3]), LONG[5:9, ::3])
            np.testing.assert_allclose(np.asarray(x[ost.asarray([7, 2])]), LONG[[7, 2]])
            ost.save(tmp_path / f"y.{kind}", ost.exp(x))
            np.testing.assert_allclose(np.asarray(ost.load(tmp_path / f"y.{kind}")), np.exp(LONG))
    with ost.connect(device="fake", memory_limit=60_000):
        x = ost.load(path, resident=False)
        f = ost.compile(lambda x: (ost.exp(x) * 2).sum(0))
        np.testing.assert_allclose(np.asarray(f(x)), 2 * np.exp(LONG).sum(0))
        assert "blocks" in [n.op for n in f.plan.program.graph.nodes]


# -- what is moved, and when -------------------------------------------------------------------
def test_a_run_moves_nothing() -> None:
    """Operands stay where they are; of a result that is read, that result is moved."""
    with use(device="fake"):
        f = ost.compile(lambda x, w: ost.tanh(x @ w) + 1.0)
        x, w = ost.asarray(LONG), ost.asarray(LONG[:40])
        y = f(x, w)
        before = vars(counted).copy()
        for _ in range(5):
            y = f(x, w)
        moved = since(before)
        assert (moved["from_host"], moved["to_host"], moved["waits"]) == (0, 0, 0)
        assert moved["asked"] > 0
        np.testing.assert_allclose(np.asarray(y), np.tanh(LONG @ LONG[:40]) + 1)
        assert since(before)["to_host"] == 1


def test_a_collective_of_workers_that_share_a_device_moves_nothing() -> None:
    with use((3,), device="fake"):
        f = ost.compile(lambda x: (x * 2).sum(0))
        x = ost.asarray(LONG, split=0)
        f(x)
        before = vars(counted).copy()
        f(x)
        moved = since(before)
        assert (moved["from_host"], moved["to_host"]) == (0, 0)


def test_buffers_are_used_again() -> None:
    with use(device="fake") as session:
        f = ost.compile(lambda x: ost.exp(x) + 1.0)
        x = ost.asarray(LONG)
        for _ in range(4):
            y = f(x)
        (worker,) = session.engine.workers  # type: ignore[attr-defined]
        before = worker.allocations
        for _ in range(10):
            y = f(x)
        assert worker.allocations == before
        (part,) = y._operand.parts
        assert isinstance(part, DeviceArray)


def test_time_is_the_devices() -> None:
    """What runs took is counted by its own clock, as soon as it is known to be done with them."""
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x: ost.exp(ost.sin(x) + 1.0) * 3.0)
        x = ost.asarray(LONG)
        for _ in range(4):
            y = f(x)
        (worker,) = session.engine.workers  # type: ignore[attr-defined]
        (loaded,) = worker.plans.values()
        known = loaded.clocked
        assert loaded.going  # nobody has waited for the last run
        np.asarray(y)
        f(x)
        assert loaded.clocked > known
        each = sum(n.op != "constant" for n in f.plan.program.graph.nodes) * CALL
        assert loaded.best == pytest.approx(each)
        assert sum(row.seconds for row in loaded.rows) == pytest.approx(each)


# -- what is said ------------------------------------------------------------------------------
def test_errors_name_the_users_line() -> None:
    with use(device="fake"):
        with pytest.raises(
            LinAlgError, match=r"cholesky \(tests/runtime/test_fake_device.py:\d+\)"
        ):
            np.asarray(ost.linalg.cholesky(ost.asarray(-np.eye(3))))
        f = ost.compile(lambda x, i: x[i])
        with pytest.raises(BoundsError, match=r"test_fake_device.py"):
            np.asarray(f(ost.asarray(LONG), ost.asarray(np.array([3, 300]))))
    with ost.connect(device="fake"):
        settings.check_nan = True
        try:
            with pytest.raises(NaNError, match=r"log.*test_fake_device.py"):
                np.asarray(ost.log(ost.asarray([-1.0])))
        finally:
            settings.check_nan = False


def test_the_device_is_asked_for_by_name() -> None:
    with pytest.raises(
        ArgumentError, match=r"device='gpux'; needed one of 'cpu', 'fake', .*'cuda'"
    ):
        ost.connect(device="gpux")
    with pytest.raises(ArgumentError, match=r"device=\['cpu'\]; needed one of"):
        ost.connect(device=["cpu"])  # type: ignore[arg-type]
    with use(device="fake"):
        assert ost.ones(2).device == "fake"
        assert ost.ones(2, device="fake").to_device("fake").shape == (2,)
        with pytest.raises(ArgumentError, match="needed 'fake'"):
            ost.ones(2, device="cpu")
    assert DEVICES["fake"] is FAKE


def test_arrays_move_between_sessions() -> None:
    with use(device="fake"):
        x = ost.asarray(LONG, split=0) * 2
        ost.evaluate(x)
    with use((3,)):
        y = x + 1
        np.testing.assert_allclose(np.asarray(y), LONG * 2 + 1)
    with use((2,), device="fake"):
        np.testing.assert_allclose(np.asarray(y * y), (LONG * 2 + 1) ** 2)


def test_a_gpu_that_is_not_there_is_said_to_be_missing() -> None:
    """In a process that finds no CuPy, and in one whose CuPy finds no GPU."""
    code = """
import sys, types
import ostinato as ost
for cupy in (None, types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=lambda: 0)))):
    sys.modules["cupy"] = cupy
    try:
        ost.connect(device="cuda")
    except ost.errors.ArgumentError as error:
        print(error)
print(ost.ones(2).device)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, device = done.stdout.splitlines()
    assert (
        "device='cuda'; needed CuPy, which is not installed: pip install 'ostinato[gpu]'" in first
    )
    assert "needed a GPU, and CuPy finds none" in second
    assert device == "cpu"


def test_a_plan_for_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with use(device="fake"):
        f = ost.compile(lambda x: x + 1)
        f(ost.asarray(LONG))
        f.plan.to_file(tmp_path / "made.plan")
    code = """
import sys
import ostinato as ost
from ostinato.ops.core.device import LATER
for known in (False, True):
    if known:
        LATER["fake"], sys.modules["cupy"] = LATER["cuda"], None
    try:
        ost.Plan.from_file(sys.argv[1])
    except ost.errors.OstinatoError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "made.plan")],
        capture_output=True,
        text=True,
        check=True,
    )
    unknown, absent = done.stdout.splitlines()
    assert "device 'fake'; needed one of 'cpu', 'cuda'" in unknown
    assert "device 'fake'; needed CuPy, which is not installed" in absent
