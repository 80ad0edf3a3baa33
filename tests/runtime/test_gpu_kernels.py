"""Plans whose kernels are CUDA C++, on a device that is not there: what a plan for a GPU runs
(tests/fake_device.py), but for the GPU."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu import gpu_device
from ostinato.ops.gpu.compilers import Compilers
from ostinato.ops.gpu.loops.text import Kernel
from ostinato.ops.jit.registers import order_for_registers
from ostinato.planner.fusion import groups
from ostinato.planner.fusion import stage_groups as stages

import ostinato as ost
from ostinato import settings
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS, WITH_KERNELS
from tests.fake_xp import counted
from tests.planner import test_nests
from tests.planner.test_any_layout import run_and_compare
from tests.programs import make_program
from tests.sessions import JOB, use
from tests.thorough import some

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
X = np.random.default_rng(0).normal(size=(300, 100))


def kinds(f: Any) -> list[str]:
    return [n.op for n in f.plan.program.graph.nodes]


@pytest.mark.parametrize("seed", some(range(16), 2))
def test_random_programs(seed: int) -> None:
    r = random.Random(seed)
    mesh = r.choice(((1,), (2,), (3,)))
    numerics = r.choice(("same-plan", "any-workers"))
    run_and_compare(r, make_program(r), mesh, numerics, device=KERNELS)


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_in_stages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "ROWS", 1)
    workers, dtype = (1, 2, 3, 1)[seed], (np.float64, np.float32)[seed % 2]
    assert test_nests.check(seed, workers, dtype, device=KERNELS) > 0


def test_a_loop_of_equal_steps_is_one_kernel() -> None:
    def escape(xp: Any, a: Any) -> Any:
        x, y, count = a * 0, a * 0, a * 0
        for _ in range(40):
            inside = x * x + y * y < 4
            count = xp.where(inside, count + 1, count)
            x, y = xp.where(inside, x * x - y * y + a, x), xp.where(inside, 2 * x * y + a / 3, y)
        return count

    with use(device=KERNELS):
        run = ost.compile(lambda a: escape(ost, a))
        made = np.asarray(run(ost.asarray(X)))
        assert kinds(run) == ["fused"]
    np.testing.assert_array_equal(made, escape(np, X))


def test_a_long_kernel_has_its_values_in_registers() -> None:
    def many(x: Any) -> Any:
        """All have to be there until the last one is."""
        made = [ost.exp(x * k) for k in range(90)]
        top = made[0]
        for y in made[1:]:
            top = ost.maximum(top, y)
        return sum((top - y) * y for y in made)

    with use(device=KERNELS):
        graph = ost.compile(many).plan_for(X).program.graph
    bodies = [n.kw["body"] for n in graph.nodes]
    assert len(bodies) > 1
    for body in bodies:
        _, taken = order_for_registers(body, range(len(body.nodes)))
        assert len(body.nodes) <= 2 * groups.NODES or max(taken) <= 128


@pytest.mark.parametrize("shape", [(40, 30), (17, 33)])
def test_a_turn_of_rolls_reads_and_writes_one_array(shape: tuple[int, int]) -> None:
    """What is cheaply made of the state again is no second array between turns."""

    def life(xp: Any, cells: Any) -> Any:
        for _ in range(3):
            rows = cells + xp.roll(cells, 1, 0) + xp.roll(cells, -1, 0)
            near = rows + xp.roll(rows, 1, 1) + xp.roll(rows, -1, 1) - cells
            alive = (near == 3) | ((cells == 1) & (near == 2))
            cells = xp.where(alive, cells * 0 + 1, cells * 0)
        return cells

    cells = (np.random.default_rng(shape[0]).random(shape) < 0.4).astype(np.int32)
    with use(device=KERNELS):
        run = ost.compile(lambda x: life(ost, x))
        made = np.asarray(run(ost.asarray(cells)))
        nodes = run.plan.program.graph.nodes
    assert [(n.op, len(n.inputs), len(n.specs)) for n in nodes] == [("fused_joins", 1, 1)] * 3
    np.testing.assert_array_equal(made, life(np, cells))


@pytest.mark.parametrize("seed", range(4))
def test_what_goes_to_its_reader_is_the_same(seed: int) -> None:
    """Functions of elements between rolls, sums of rows and sorts, some of which are results, too."""
    r = random.Random(seed)
    steps = [(r.randrange(6), r.random(), r.random()) for _ in range(25)]
    chosen = [r.randrange(25) for _ in range(3)]

    def program(xp: Any, x: Any) -> Any:
        made = [x]
        for kind, i, j in steps:
            a, b = made[int(i * len(made))], made[int(j * len(made))]
            b = a if kind > 2 else b
            own = (
                a + b,
                a * b / 8,
                xp.where(a > b, a, 1 - b),
                xp.roll(a, 3, 0) - a / 2,
                xp.tanh(a),
            )
            made.append(own[kind] if kind < 5 else a - a.max(1, keepdims=True))
        return [made[k + 1] for k in chosen]

    x = np.random.default_rng(seed).normal(size=(9, 21))
    with use(device=KERNELS):
        found = ost.compile(lambda x: program(ost, x))(ost.asarray(x))
        found = [np.asarray(y) for y in found]
    for a, b in zip(found, program(np, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_in_kernels(dtype: Any) -> None:
    """Sums of rows, too; what is in stages or joined is done without."""

    def program(xp: Any, z: Any) -> Any:
        y = (z * z + 2j) * xp.exp(-z) / (1 + z)
        rows = xp.concatenate([y[:1], y[2:]], 0)
        return y.real * y.imag, y.sum(1), abs(rows) + rows.T.conj().T.sum(0).real, y.mean(), y.T * 2

    x = np.random.default_rng(2).normal(size=(70, 40, 2)).astype(np.zeros(1, dtype).real.dtype)
    z = x.view(dtype)[..., 0]
    with use(device=KERNELS):
        run = ost.compile(lambda z: program(ost, z))
        found = [np.asarray(y) for y in run(ost.asarray(z))]
        assert {"multiply", "exp", "divide"}.isdisjoint(kinds(run))
    for a, b in zip(found, program(np, z), strict=True):
        near = 1e-4 if dtype is np.complex64 else 1e-11
        np.testing.assert_allclose(a, b, rtol=near, atol=near)


def test_bits_are_those_of_the_cpus_kernels() -> None:
    def f(x: Any) -> tuple[Any, Any]:
        y = ost.exp(-x * x) * ost.sin(3.0 * x) / (1.0 + ost.abs(x)) ** 0.7
        return y, ost.where(y > 0, ost.log1p(ost.abs(y)), ost.tanh(x))

    found = []
    for device in ("cpu", KERNELS):
        with use(device=device):
            run = ost.compile(f)
            found.append([np.asarray(y) for y in run(ost.asarray(X))])
            assert kinds(run) == ["fused"]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("workers", [1, 3])
def test_random_numbers_are_drawn_in_kernels(workers: int) -> None:
    """The CPU's, whatever is cut; no kernel writes the words to memory."""

    def f(x: Any) -> tuple[Any, ...]:
        kept = ost.random.bernoulli(0.7, x.shape, seed=3)
        noise = ost.random.normal(x.shape, seed=4, dtype="float32")
        wide = ost.random.normal((31, 333), seed=5, dtype="float64")
        return ost.where(kept, x + noise, 0.0), wide[1:, 5:].T * 2, noise.sum(0), wide.mean()

    found = []
    for device in ("cpu", KERNELS):
        with use((workers,), device=device):
            run = ost.compile(f)
            found.append([np.asarray(y) for y in run(ost.asarray(X, split=0))])
            if device == KERNELS:
                names = {op for op in kinds(run) if "bits" in op or "normal" in op}
                assert not names, "drawn one by one"
                assert "fused" in kinds(run)
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        if k < 2:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_a_training_step() -> None:
    """Its gradients, too; a repeated step moves nothing, allocates what it gives and launches each kernel once."""

    def loss(w: Any, x: Any, y: Any) -> Any:
        return -(y * ost.nn.log_softmax(ost.tanh(x @ w))).sum(1).mean()

    @ost.compile(donate="w")
    def step(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
        value, slope = ost.value_and_grad(loss)(w, x, y)
        return w - 0.1 * slope, value

    trained = []
    for device in ("cpu", KERNELS):
        with use(device=device):
            x, y, w = (
                ost.asarray(X),
                ost.asarray(np.eye(3)[np.arange(300) % 3]),
                ost.zeros((100, 3)),
            )
            values = []
            for k in range(4):
                before = vars(counted).copy()
                w, value = step(w, x, y)
                if device != "cpu" and k:
                    since = {name: n - before[name] for name, n in vars(counted).items()}
                    assert (since["from_host"], since["to_host"], since["waits"]) == (0, 0, 0)
                values.append(float(value))
            trained.append((np.asarray(w), values))
            if device != "cpu":
                assert sum(n.startswith("fused") for n in kinds(step)) < 12
                assert not {"tanh", "exp", "sum", "multiply"} & {*kinds(step)}
    np.testing.assert_allclose(trained[1][0], trained[0][0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(trained[1][1], trained[0][1], rtol=1e-12)


def test_functions_of_a_library_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "math", "libm")
    with ost.connect(device=KERNELS):
        f = ost.compile(lambda x: ost.exp(x * 2.0) + 1.0)
        np.testing.assert_array_equal(np.asarray(f(X)), np.exp(X * 2.0) + 1.0)
        assert "exp" in kinds(f)


def test_other_threads_compile_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails there is said by who launches it."""
    compiled, launched = list[int](), list[str]()

    class Raw:
        def __init__(self, text: str, name: str, options: Any) -> None:
            self.name = name

        def compile(self) -> None:
            compiled.append(threading.get_ident())
            if self.name == "wrong":
                raise ValueError("no such text")

        def __call__(self, grid: Any, block: Any, args: Any) -> None:
            launched.append(self.name)

    monkeypatch.setattr(WITH_KERNELS, "_compiled", {})
    monkeypatch.setattr(WITH_KERNELS.xp, "RawKernel", Raw)
    kernels = [Kernel(name, "", (1, 1), ()) for name in ("right", "wrong", "right")]
    for launch in [WITH_KERNELS.launching(kernel) for kernel in kernels]:
        launch()
    assert launched == ["right", "wrong", "right"]
    assert len(compiled) == 2
    assert threading.get_ident() not in compiled


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)


def codes_of(thread: Any) -> set[Any]:
    """Where a thread is."""
    frame, found = sys._current_frames()[thread], set()
    while frame is not None:
        found.add(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("waiting", [1, 4])
def test_an_interrupt_drops_what_no_thread_compiles_yet(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run gives right values; a plan whose binding was interrupted is bound anew."""
    begun, raised, main = list[str](), threading.Event(), threading.main_thread().ident

    class Interrupted(Compilers):
        def submit(self, work: Callable[[], None]) -> Any:
            if waiting == 1 and len(self._waiting) == 1 and not raised.is_set():
                signal.raise_signal(signal.SIGINT)  # while the plan is bound
            asked = super().submit(work)
            until(lambda: bool(begun))
            return asked

    class Slow(WITH_KERNELS.xp.RawKernel):  # type: ignore[misc, name-defined]
        def __init__(self, text: str, name: str, options: Any) -> None:
            super().__init__(text, name, options)
            self.name = name

        def compile(self) -> None:
            begun.append(self.name)
            if len(begun) > 1:
                return
            if waiting > 1:
                until(lambda: Interrupted.wait.__code__ in codes_of(main))
                until(lambda: threading.Condition.wait.__code__ in codes_of(main))
                signal.pthread_kill(main, signal.SIGINT)
            raised.wait(60)

    compilers = Interrupted(1)
    monkeypatch.setattr(gpu_device, "COMPILERS", compilers)
    monkeypatch.setattr(WITH_KERNELS, "_compiled", {})
    monkeypatch.setattr(WITH_KERNELS.xp, "RawKernel", Slow)
    with ost.connect(device=KERNELS):
        x = ost.asarray(X)
        f = ost.compile(lambda x: [x.sum(0), ost.cumsum(x, 0), ost.sort(x, 1), ost.cumsum(x, 1)])
        with pytest.raises(KeyboardInterrupt):
            f(x)
        assert not compilers._waiting
        known = {name: made for name, (_, made) in WITH_KERNELS._compiled.items()}
        assert sum(made.cancelled() for made in known.values()) >= waiting
        assert len(begun) == 1
        raised.set()
        expected = [X.sum(0), X.cumsum(0), np.sort(X, 1), X.cumsum(1)]
        for value, wanted in zip(f(x), expected, strict=True):
            np.testing.assert_allclose(np.asarray(value), wanted)
    assert len(begun) == len(set(begun))
    if waiting == 1:  # while it was bound, which was done anew
        assert set(begun) == {*WITH_KERNELS._compiled} > {*known}


def test_the_end_of_a_program_waits_for_no_text_that_is_not_begun() -> None:
    """A thread has one of them by then; what is asked for later is compiled by who launches it."""
    code = """if 1:
        import atexit, threading, time
        from ostinato.ops.gpu.compilers import Compilers
        compilers, done, begun = Compilers(2), [], threading.Semaphore(0)
        def compile_it():
            begun.release()
            while threading.main_thread().is_alive():
                time.sleep(0.01)
            done.append(1)
        def tell():
            compilers.wait(late := compilers.submit(compile_it))
            print(len(done), sum(f.cancelled() for f in asked), late.cancelled())
        atexit.register(tell)
        asked = [compilers.submit(compile_it) for _ in range(50)]
        begun.acquire(), begun.acquire()
    """
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (made.stdout, made.stderr) == ("2 48 True\n", "")
