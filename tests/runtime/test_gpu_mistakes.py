"""What a user of a GPU is told of mistakes, and when; texts that would take compilers long; on a fake one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import described
from ostinato.ops.gpu import products
from ostinato.ops.gpu.jit import lines
from ostinato.ops.gpu.loops.text import Kernel

import ostinato as ost
from ostinato.errors import BoundsError, ExecutionError, LinAlgError, NaNError
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.sessions import JOB
from tests.thorough import few

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
X = np.random.default_rng(1).normal(size=(6, 5))


@pytest.fixture
def gpu() -> Iterator[Any]:
    with ost.connect(device=KERNELS) as session:
        yield session


# -- places and matrices -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (lambda i: i, "index 6 is out of bounds for an axis with 6"),
        (lambda i: -i - 1, "index -7 is out of bounds for an axis with 6"),
        (lambda i: slice(i - 1, i + 2), "slice of 3 elements from 5 on is out of bounds .* 6 el"),
        (lambda i: slice(i - 8, i - 5), "slice of 3 elements from -2 on is out of bounds .* 6 el"),
    ],
)
def test_evaluate_says_which_place_is_outside(gpu: Any, key: Any, text: str) -> None:
    """Nobody reads the value, and who reads another one later is told nothing."""
    read = lambda s, i: (s, s[key(i)])  # noqa: E731
    write = lambda s, i: (s.at[key(i)].set(0.0), None)  # noqa: E731
    for turn in (read, write):
        with pytest.raises(BoundsError, match=rf"test_gpu_mistakes.*{text}"):
            ost.evaluate(ost.scan(turn, ost.asarray(X), ost.asarray([6])))
        assert float(ost.asarray(2.0) + 1) == 3.0


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (lambda x: ost.linalg.svdvals(x * np.nan), LinAlgError, "svd .*did not converge"),
        (lambda x: ost.linalg.svd(x * np.nan).S, LinAlgError, "svd .*did not converge"),
        (lambda x: ost.linalg.eigvalsh(x[:5] * np.nan), LinAlgError, "eigh .*did not converge"),
        (lambda x: ost.linalg.eigh(x[:5] * np.nan).eigenvectors, LinAlgError, "did not converge"),
        (lambda x: ost.asarray([2, 3]) ** ost.asarray([-1, 2]), ExecutionError, "negative integer"),
    ],
)
def test_what_libraries_say_nothing_of(gpu: Any, function: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=rf"test_gpu_mistakes.*{text}|{text}"):
        ost.evaluate(function(ost.asarray(X)))
    np.testing.assert_array_equal(ost.asarray([2, 3]) ** ost.asarray([0, 2]), [1, 9])


# -- NaN within kernels --------------------------------------------------------------------------
NANS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda x: ost.log(x) + 1, "log"),
    (lambda x: (ost.sqrt(x) * 2 + x).sum(), "sqrt"),
    (lambda x: ost.exp(x * 1e4) - ost.exp(x * 2e4) + ost.exp(-x * 3e4) * 0.0, "multiply|subtract"),
    (lambda x: (lambda y: y - y.mean(1, keepdims=True))(ost.log(x)), "log"),
    (lambda x: ost.where(x > 9, x, ost.acos(x - 5)), "acos"),
]


@pytest.mark.parametrize("device", ["cpu", KERNELS])
@pytest.mark.parametrize("case", range(len(NANS)))
def test_the_operation_of_a_kernel_that_made_nan_is_named(case: int, device: str) -> None:
    function, name = NANS[case]
    x = -np.abs(X) - 0.5
    with ost.connect(device=device), ost.debug.nans():
        f = ost.compile(function)
        with pytest.raises(NaNError, match=rf"^({name}) \(.*test_gpu_mistakes.py:\d+\): got \d+ N"):
            np.asarray(f(np.tile(x, (2000, 1)) if device == "cpu" else x))


# -- in a forked child ---------------------------------------------------------------------------
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_that_no_gpu_works_there() -> None:
    code = f"""
import os, signal, numpy as np
from tests import fake_device
import ostinato as ost
session = ost.connect(device={KERNELS!r})
f, x = ost.compile(lambda x: x * 2), ost.asarray(np.ones(9))
f(x)
child = os.fork()
if child == 0:
    signal.alarm(60)
    for use in (lambda: f(x), lambda: np.asarray(ost.asarray(np.ones(4)) + 1)):
        try:
            use()
        except ost.errors.SessionError as error:
            assert 'get_context("spawn")' in str(error), error
        else:
            os._exit(3)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert float(f(x)[1]) == 2
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


# -- while a function is traced ------------------------------------------------------------------
def test_reading_a_value_is_no_part_of_a_trace(gpu: Any) -> None:
    """Who computes for us may note what it did; a trace that ends takes none of it back."""
    x, y = ost.ones((3,)), ost.ones((3,))
    for _ in range(30):
        y, x = x * 0.5 + y, x * 0.75 + 0.25
    box = {"y": y}

    @ost.compile
    def f(a: Any) -> Any:
        box["y"] += a
        return a * float(x[0])

    for _ in range(4):
        np.testing.assert_allclose(np.asarray(f(ost.ones((3,)))), 1.0)
    np.testing.assert_allclose(np.asarray(box["y"]), 20.0)


# -- joins of single elements, rows of nothing but numbers ----------------------------------------
@pytest.mark.parametrize("seed", range(few(60)))
def test_single_elements_of_what_is_joined(gpu: Any, seed: int) -> None:
    r = np.random.default_rng(seed)
    kind = [np.float64, np.float32, np.int32][seed % 3]
    parts = [r.integers(-9, 9, size=r.integers(1, 4)).astype(kind) for _ in range(r.integers(2, 5))]
    total = sum(map(len, parts))
    k, shift = int(r.integers(0, total)), int(r.integers(-3, 4))

    def function(m: Any, xs: Any) -> Any:
        joined = m.concatenate(xs) * 2
        rolled = m.roll(joined, shift)
        one = rolled[k] + m.stack([xs[0][0], xs[1][0], xs[0][-1]])[k % 3]
        return one, one * m.pad(joined, (1, 2))[(k + 1) % total] + rolled[0], m.stack([one, one])

    made = ost.compile(lambda *xs: function(ost, xs))(*parts)
    for found, wanted in zip(made, function(np, parts), strict=True):
        np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("rows", [7, 4000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_over_rows_of_one_number(gpu: Any, dtype: Any, rows: int) -> None:
    """Nothing but a number has the rows that are added up."""
    x = ost.ones((rows, 1), dtype=dtype)
    for scale in (0.25, 2.0):
        g = ost.grad(lambda b: ost.sum((x + b) * scale))(ost.zeros(1, dtype=dtype))  # noqa: B023
        assert np.asarray(g).tolist() == [rows * scale]
    z = ost.full((rows, 3), 2, dtype=dtype)
    np.testing.assert_array_equal(
        (z * 3 + 1).sum(0), [rows * 7] * 3 if rows * 7 < 6e4 else [28000] * 3
    )


# -- long texts ----------------------------------------------------------------------------------
def test_no_text_is_so_long_that_compilers_take_minutes(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be hundreds of thousands of lines is some calls, and has the same bits."""
    texts: list[str] = []
    device: Any = described(KERNELS)
    launched = device.launched

    def noted(kernel: Kernel, room: Any) -> Any:
        texts.append(kernel.text)
        return launched(kernel, room)

    monkeypatch.setattr(device, "launched", noted)
    a, b, x = (np.random.default_rng(k).uniform(0.3, 0.7, 40) for k in range(3))
    f = lambda a, b, x: (ost.special.betainc(a, b, x) ** 2).sum()  # noqa: E731
    second = lambda *xs: ost.grad(lambda x: ost.grad(f, argnums=2)(*xs[:2], x).sum())(xs[2])  # noqa: E731
    made = np.asarray(ost.compile(lambda *xs: second(*xs))(a, b, x))
    assert max(len(text.splitlines()) for text in texts) < 20_000
    monkeypatch.setattr(lines.scalar, "instructions", lambda *_: 1)  # so that nothing is a function
    some = lambda a, b, x: ost.special.betainc(a, b, x) + ost.special.gammainc(a, x)  # noqa: E731
    wanted = np.asarray(ost.compile(lambda *xs: some(*xs))(a, b, x))
    monkeypatch.setattr(lines.scalar, "instructions", lambda *_: 5000)
    found = np.asarray(ost.compile(lambda *xs: some(*xs) + 0.0)(a, b, x))
    assert any("__noinline__" in text for text in texts)
    np.testing.assert_array_equal(found, wanted)
    with ost.connect(device="cpu"):
        np.testing.assert_allclose(made, np.asarray(second(a, b, x)), rtol=1e-12)


# -- room for products ---------------------------------------------------------------------------
def test_tiny_products_take_no_more_room_than_their_arrays() -> None:
    def room(*shape: int) -> int:
        m, k, n = shape
        x, w = ost.zeros((m, k), dtype=ost.float32).spec, ost.zeros((k, n), dtype=ost.float32).spec
        y = ost.zeros((m, n), dtype=ost.float32).spec
        (one,) = products.room([x.shape, w.shape], [y.shape], [x, w, y])
        return one.shape[0]

    assert room(4, 4, 4) <= 3 * 4 * 4 * 4 + 256
    assert room(100, 100, 100) >= 1 << 20
    assert room(4096, 4096, 4096) == (1 << 25) + 256


def test_errors_are_at_the_line_of_who_asked_last(gpu: Any) -> None:
    """Two functions have one plan: what shows later is blamed on the one that ran."""
    first = ost.compile(lambda a: ost.linalg.inv(a) + 1)
    ost.evaluate(first(ost.asarray(np.eye(3))))
    again = ost.compile(lambda b: ost.linalg.inv(b) + 1)
    for f in (again, first, again):
        line = f.function.__code__.co_firstlineno
        with pytest.raises(LinAlgError, match=rf"inv \(.*test_gpu_mistakes.py:{line}\)"):
            np.asarray(f(ost.zeros((3, 3))))
        np.asarray(f(ost.asarray(np.eye(3))))
