"""Machines of GPUs: which preset one is, and what it says of programs that were measured on an H100."""

from __future__ import annotations

import functools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from ostinato.planner import machine
from ostinato.planner.machine import NOMINAL, resolve, unmeasured
from ostinato.planner.prediction import steps
from ostinato.planner.tuning.sites import sites

import ostinato as ost
from benchmarks import gpu_rows, kernels
from benchmarks.libraries import Ostinato
from ostinato import settings
from tests import fake_cuda
from tests.fake_device import KERNELS
from tests.planner.test_gpu_rows import F32, ROWS
from tests.sessions import use

ROOT = Path(__file__).parents[2]
MISSED = {
    "medians": "was a sort of CuPy's, and is counts of digits now",
    "tallqr": "waits for the host between its parts, and for small factors one after the other",
    "mlp4": "carries its weights from step to step",
    "nearest": "was measured with all distances in memory, and is another kernel now",
}
BIG, MATRIX = ost.spec((20_000_000,)), ost.spec((4096, 4096))
OPTIONS = [ost.spec((10_000_000,))] * 3


def programs() -> dict[str, tuple[Any, list[Any], str]]:
    return {
        "copy": (lambda x: x + 1.0, [BIG], "as-written"),
        "blackscholes": (lambda *x: kernels.blackscholes(ost, *x), OPTIONS, "as-written"),
        "norm": (lambda x: kernels.norm(ost, x), [BIG], "as-written"),
        "gemm": (lambda a, b: a @ b, [MATRIX] * 2, "as-written"),
        "gemm_bf16": (lambda a, b: a @ b, [MATRIX] * 2, "mixed_bf16"),
        "linear": (
            lambda x, w, b, r: x @ w + b + r,
            [MATRIX, MATRIX, ost.spec((4096,)), MATRIX],
            "as-written",
        ),
    }


MORE: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "null": (lambda x: x + 1.0, [(8,)]),
    "chain": (lambda x: functools.reduce(lambda x, _: x * 1.5 + 1, range(50), x), [(1000,)]),
    "poly": (lambda x: kernels.poly(Ostinato(ost), x), [(20_000_000,)]),
    "kmeans": (lambda *x: kernels.kmeans(Ostinato(ost), *x), [(2_000_000, 16), (8, 16)]),
    "meanstd": (lambda x: kernels.meanstd(Ostinato(ost), x), [(4_000_000, 16)]),
    "softmax": (lambda *x: kernels.softmax(Ostinato(ost), *x), [(8192, 32_000), (32_000,)]),
}


def measured() -> dict[str, float]:
    lines = (ROOT / "benchmarks/results/gpu-2026-11-27-h100.json").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    ours = [row for row in rows if row["system"] == "ostinato"]
    return {row["workload"]: row["median_s"] for row in ours}


SECONDS = measured()


@functools.cache
def predicted(name: str) -> float:
    precision = "as-written"
    if name in programs():
        function, given, precision = programs()[name]
    elif name in MORE:
        function, shapes = MORE[name]
        given = [ost.spec(shape, F32) for shape in shapes]
    else:
        (row,) = [row for workload, row, _ in gpu_rows.ROWS if workload.name == name]
        function = lambda *x: row(Ostinato(ost), *x)  # noqa: E731
        given = [
            ost.spec(s[:-1], s[-1]) if isinstance(s[-1], str) else ost.spec(s, F32)
            for s in ROWS[name][0]
        ]
    plan = ost.plan(function, *given, machine="h100", device=KERNELS, precision=precision)
    return plan.simulate(machine="h100").seconds


@pytest.mark.parametrize("name", [n for n in SECONDS if n not in MISSED])
def test_what_an_h100_took_is_predicted_within_a_factor_of_two(name: str) -> None:
    seconds = predicted(name)
    assert SECONDS[name] / 1.8 < seconds < 1.8 * SECONDS[name], f"{seconds * 1e6:.1f} us"


def test_half_of_what_an_h100_took_is_predicted_within_a_tenth() -> None:
    errors = [abs(predicted(n) / SECONDS[n] - 1) for n in SECONDS if n not in MISSED]
    assert statistics.median(errors) < 0.1


def seconds_of(function: Any, *shapes: tuple[int, ...]) -> float:
    given = [ost.spec(shape, F32) for shape in shapes]
    return ost.plan(function, *given, machine="h100", device=KERNELS).simulate().seconds


def test_the_host_starts_a_run_beside_the_kernels_of_the_run_before() -> None:
    start = resolve("h100").run_seconds
    assert seconds_of(lambda x: x + 1, (8,)) == start
    longer = seconds_of(lambda x: x + 1, (20_000_000,))
    assert longer == pytest.approx(160e6 / resolve("h100").stream[-1][1], rel=0.1)
    assert longer > 4 * start


def test_a_line_that_fills_a_multiprocessor_hides_nothing() -> None:
    """Of as many elements in all."""
    few, many = (
        seconds_of(lambda x: ost.nn.softmax(x, 1), (n, (1 << 28) // n)) for n in (1 << 13, 1 << 15)
    )
    assert few > 1.3 * many


def test_a_short_sum_is_in_registers_where_a_long_one_combines_it() -> None:
    def apart(x: Any, y: Any) -> Any:
        off = x[:, None, :] - y[None, :, :]
        return ost.sum(off * off, 2)

    def ends(x: Any, y: Any) -> Any:
        return ost.sum(ost.sqrt(apart(x, y)), 1)

    def least(x: Any, y: Any) -> Any:
        return ost.min(apart(x, y), 1)

    pairs = 1 << 26
    in_registers = seconds_of(ends, (1 << 13, 3), (1 << 13, 3))
    shared = seconds_of(least, (pairs >> 3, 3), (8, 3))
    assert shared > 1.5 * in_registers


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_a_gpu_has_the_preset_of_its_name(
    model: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fake_cuda.Runtime, "getDeviceProperties", lambda device: {"name": model.encode()}
    )
    assert unmeasured(KERNELS) is machine._preset_of(model)
    assert unmeasured(KERNELS) == resolve(preset)
    assert unmeasured("cpu") is NOMINAL


def test_explain_says_whose_rates_they_are() -> None:
    with use(device=KERNELS):
        run = ost.compile(lambda x: ost.exp(x) + 1)
        run(ost.ones((8,)))
        told = run.plan.explain()
    assert "of NVIDIA H100 SXM, as a GPU that is not there has no preset" in told


@pytest.mark.parametrize(("side", "timed"), [(512, False), (2048, True)])
def test_ways_are_timed_of_what_takes_long_on_a_gpu(side: int, timed: bool) -> None:
    """And not of what a nominal CPU would take long for."""
    spec = ost.spec((side, side), "bfloat16")
    plan = ost.plan(lambda a, b: a @ b, spec, spec, machine="h100", device=KERNELS)
    found = sites(plan.program.graph, plan.target, 1)
    assert bool(found) == timed


def test_a_kernel_that_occupies_few_multiprocessors_takes_longer_an_element() -> None:
    """Bytes and operations a second are those of all of them."""
    taken = []
    for n in (4096, 4096 * 33, 4096 * 33 * 8):
        given = ost.spec((n,))
        plan = ost.plan(lambda x: ost.exp(ost.sin(x)), given, machine="h100", device=KERNELS)
        (step,) = steps(plan.program, resolve("h100"))
        taken.append(step.predicted)
    start = resolve("h100").call_seconds
    few, all_of_them, more = (t - start for t in taken)
    assert few == pytest.approx(all_of_them, rel=0.2), "4 blocks take as long as 132"
    assert more == pytest.approx(8 * all_of_them, rel=0.2)


def trained(x: Any, y: Any, v: Any, w: Any) -> Any:
    """A step of a network whose slopes are products that lie across."""

    def loss(v: Any, w: Any) -> Any:
        made = ost.nn.relu(ost.tanh(x) @ v) @ w
        return ((made - y) ** 2).mean()

    slopes = ost.grad(loss, (0, 1))(v, w)
    return [p - 0.1 * s for p, s in zip((v, w), slopes, strict=True)]


SAME: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "a step": (trained, [(600, 700), (600, 100), (700, 800), (800, 100)]),
    "across": (lambda x, w: ost.exp(ost.transpose(x @ w, (1, 0))) + 1, [(500, 600), (600, 700)]),
    "windows": (lambda x, k: ost.nn.conv(x, k), [(8, 16, 40, 40), (32, 16, 3, 3)]),
    "rows": (lambda x: ost.nn.softmax(x * 2, 1).sum(0), [(300, 2000)]),
}


@pytest.mark.parametrize("name", SAME)
def test_a_plan_for_a_machine_is_that_of_its_sessions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit where memory is enough, as nobody asked for one."""
    monkeypatch.setenv("OSTINATO_MACHINE", "here")
    monkeypatch.setattr(settings, "machine", "here")
    monkeypatch.setattr(machine, "_found", machine._found.__wrapped__)  # no other test's
    monkeypatch.setattr(
        fake_cuda.Runtime, "getDeviceProperties", lambda device: {"name": b"NVIDIA H100 80GB HBM3"}
    )
    function, shapes = SAME[name]
    planned = ost.plan(
        function, *[ost.spec(s, F32) for s in shapes], machine="h100", device=KERNELS
    )
    with use(device=KERNELS):
        there = ost.compile(function).plan_for(*[ost.zeros(s, F32) for s in shapes])
    assert there.target.machine == planned.target.machine == resolve("h100")
    assert (there.key, there.id) == (planned.key, planned.id)
    assert str(there.program.graph) == str(planned.program.graph)
    assert there.program.slots == planned.program.slots


def test_a_plan_that_a_machine_has_no_room_for_is_limited_to_what_it_has() -> None:
    def scores(q: Any, k: Any) -> Any:
        return ost.nn.softmax(q @ k.T, 1).sum(0)

    few, many = (
        ost.plan(scores, *[ost.spec((n, 64))] * 2, machine="h100", device=KERNELS)
        for n in (10_000, 200_000)
    )
    assert few.target.memory_limit is None
    assert many.target.memory_limit == resolve("h100").memory
    assert few.peak_bytes < many.peak_bytes <= resolve("h100").memory
