"""What only a GPU can show. `python -m pytest -m gpu` runs it where CuPy finds one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.device import Absent, find
from ostinato.ops.gpu.device import NAME

import ostinato as ost
from ostinato.errors import BoundsError
from tests.helpers import compare_all
from tests.ops.nodes import SAMPLED, of
from tests.planner.test_any_layout import run_and_compare
from tests.programs import make_program
from tests.sessions import use


def is_here() -> bool:
    try:
        find(NAME)
    except Absent:
        return False
    return True


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not is_here(), reason="needs CuPy and a GPU")]
X = np.random.default_rng(0).normal(size=(3000, 1000)).astype(np.float32)


@pytest.mark.parametrize("name", SAMPLED)
def test_samples(name: str) -> None:
    for sample in of(name):
        given = [np.asarray(x) for x in sample.inputs]
        with np.errstate(all="ignore"):
            wanted = sample.reference(*(x.copy() for x in given))
        with use(numerics=sample.numerics, device=NAME):
            run = ost.compile(lambda *xs, f=sample.function: f(*xs))
            found = run(*map(ost.asarray, given))
            compare_all(found, wanted, name, max(sample.rtol or 0, 1e-6), None)


@pytest.mark.parametrize("seed", range(100))
def test_random_programs(seed: int) -> None:
    r = random.Random(seed)
    numerics = r.choice(("same-plan", "any-workers"))
    run_and_compare(r, make_program(r), (1,), numerics, device=NAME)


def functions(x: Any) -> tuple[Any, Any]:
    y = ost.exp(-x * x) * ost.sin(3.0 * x) / (1.0 + ost.abs(x)) ** 0.7
    return y, ost.where(y > 0, ost.log1p(ost.abs(y)), ost.tanh(x))


def test_elements_have_the_bits_of_the_cpus_kernels() -> None:
    found = []
    for device in ("cpu", NAME):
        with use(device=device):
            found.append([np.asarray(y) for y in ost.compile(functions)(ost.asarray(X))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_sums_are_the_same_each_time_and_right() -> None:
    with use(device=NAME):
        for shape in ((3_000_000,), (3000, 1000), (300_000, 10), (1_000_000, 3)):
            x = X.reshape(shape)
            run = ost.compile(lambda x: ((x * 2).sum(-1), x.max(-1), x.mean(-1)))
            first = [np.asarray(y) for y in run(ost.asarray(x))]
            again = [np.asarray(y) for y in run(ost.asarray(x))]
            for a, b in zip(first, again, strict=True):
                np.testing.assert_array_equal(a, b)
            wide = x.astype(np.float64)
            np.testing.assert_allclose(first[0], 2 * wide.sum(-1), 1e-5, 1e-4)
            np.testing.assert_array_equal(first[1], x.max(-1))


def test_a_repeated_plan_allocates_only_what_it_gives() -> None:
    with use(device=NAME):
        run = ost.compile(lambda x: functions(x)[0].sum(1))
        x = ost.asarray(X)
        for _ in range(3):
            y = run(x)
        pool: Any = find(NAME).xp.get_default_memory_pool()
        before = pool.used_bytes()
        for _ in range(10):
            y = run(x)
        assert pool.used_bytes() - before <= 2 * y.nbytes + 1024


def test_errors_leave_it_usable() -> None:
    with use(device=NAME):
        x, places = ost.asarray(X[0]), ost.asarray(np.array([5, 10_000]))
        with pytest.raises(BoundsError):
            np.asarray(ost.compile(lambda x, i: x[i])(x, places))
        np.testing.assert_allclose(np.asarray(ost.compile(ost.sum)(x)), X[0].sum(), 1e-4)
