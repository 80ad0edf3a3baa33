"""Arrays with names under a memory limit: what does not fit stays pending and is made again, so that a name
changes no program's fate; and errors whose advice works."""

from __future__ import annotations

import inspect
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.array import Array
from ostinato.planner import external

import ostinato as ost
from ostinato import sessions
from ostinato.errors import MemoryLimitError
from tests.programs import make_program
from tests.sessions import use
from tests.thorough import few

MIB = 1 << 20
SHAPE = 600, 500  # of float64: 2.3 MiB


def is_pending(x: Array) -> bool:
    return x._operand is None


def peaks(session: Any) -> list[int]:
    return [plan.peak_bytes for plan in session.plans.plans.values()]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_name_is_no_reason_to_keep_what_does_not_fit(workers: int) -> None:
    limit = 2 * MIB // workers
    with ost.connect(workers, memory_limit=limit) as session:
        x = ost.arange(600.0)
        z = ost.sin(x[:, None] * ost.arange(500.0))
        w = z * 2
        total = w.sum(0)
        mean = float(z.mean())
        assert is_pending(z)
        assert is_pending(w)
        expected = np.sin(np.arange(600.0)[:, None] * np.arange(500.0))
        np.testing.assert_allclose(mean, expected.mean(), rtol=1e-9)
        np.testing.assert_allclose(float(w.std()), (expected * 2).std(), rtol=1e-9)
        np.testing.assert_allclose(total, (expected * 2).sum(0), rtol=1e-7, atol=1e-9)
        assert max(peaks(session)) <= limit


def test_random_numbers_that_are_made_again_are_the_same() -> None:
    with ost.connect(memory_limit=2 * MIB):
        z = ost.random.normal(SHAPE)
        assert float(z.sum()) == float(z.sum())
        assert float((z - z.mean()).mean()) == pytest.approx(0, abs=1e-6)


def test_many_names_of_small_arrays_are_kept_as_far_as_they_fit() -> None:
    with ost.connect(memory_limit=MIB):
        parts = [ost.sin(ost.arange(20_000.0) + k) for k in range(8)]  # 160 kB each
        total = sum(x.sum() for x in parts)
        assert math.isfinite(float(total))
        kept = [x for x in parts if not is_pending(x)]
        assert 0 < len(kept) < len(parts)


def test_what_the_planner_finds_too_much_is_not_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Room for operands and results is not room for what is on the way."""
    asked, seen = [], 0
    make_plan = sessions.make_plan

    def noted(key: Any, *args: Any) -> Any:
        asked.append(key)
        return make_plan(key, *args)

    monkeypatch.setattr(sessions, "make_plan", noted)
    x = np.random.default_rng(0).normal(size=160_000)

    def first(x: Any) -> Any:
        return ost.sort(x)

    def then(b: Any) -> Any:
        return ost.sort((b[:400, None] * b[None, :400]).reshape(-1))[0]

    with use():
        f = ost.compile(lambda x: then(first(x)))
        f(x)
    with ost.connect(memory_limit=f.plan.peak_bytes) as session:
        for _ in range(2):
            b = first(x)
            expected = np.sort(x)[:400]
            assert float(then(b)) == (expected[:, None] * expected).min()
            assert is_pending(b)
            assert session.refused
            seen = seen or len(asked)
        assert len(asked) == seen


def test_without_a_limit_it_is_the_machine_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "memory", lambda: MIB)
    with ost.connect():
        z = ost.random.normal(SHAPE)
        z.mean().item()
        assert is_pending(z)
        y = ost.random.normal((100, 100))
        y.mean().item()
        assert not is_pending(y)


@pytest.mark.parametrize("seed", range(few(20)))
def test_random_programs_run_with_names_as_without(seed: int) -> None:
    """In twice the memory, as values that were kept stay operands."""
    r = random.Random(seed)
    program = make_program(r, extents=(20, 30, 40), most=50_000)
    expected = program.by_numpy()
    limit = 0
    with use():
        for k in range(len(program.outputs)):
            f = ost.compile(lambda *xs, k=k: program.by_ostinato(*xs)[k].sum())
            f(*program.inputs)
            limit = max(limit, 2 * f.plan.peak_bytes)
    with ost.connect(memory_limit=limit) as session:
        values: list[Any] = [ost.asarray(x) for x in program.inputs]
        for _, operands, ours, _ in program.steps:
            values.append(ours(*(values[v] for v in operands)))
        for v, y in zip(program.outputs, expected, strict=True):
            scale = np.abs(y).sum() * 1e-6 + 1e-6
            np.testing.assert_allclose(values[v].sum(), y.sum(), atol=scale)
        assert max(peaks(session)) <= limit


# -- errors ----------------------------------------------------------------------------------------
def drawn() -> None:
    z = ost.random.normal(SHAPE)  # most
    z.numpy()


def of_constants() -> None:
    x = ost.ones((600, 1))
    y = x * ost.ones(500)  # most
    z = y[0].sum()
    ost.evaluate(z, y)


def sorted_in_a_function() -> None:
    def f(x: Any) -> Any:
        pairs = (x[:, None] - x[None]) ** 2
        return ost.sort(pairs.reshape(-1))[0]  # most

    ost.compile(f)(ost.ones((100, 40)))


def multiplied() -> None:
    x = ost.random.normal((500, 100))
    y = x @ x.T  # most
    y.numpy()


def sorted_eagerly() -> None:
    x = ost.asarray(np.ones(SHAPE))
    y = ost.sort(x + ost.random.normal(SHAPE), axis=0)
    y.numpy()


def any_number_of_workers() -> None:
    x = np.random.default_rng(5).normal(size=100_000).astype("f4")
    ost.compile(lambda x: (ost.exp(x).sum(), ost.tanh(x).var(), (x * x).max()))(x)


CASES: list[tuple[Callable[[], None], int, dict[str, Any]]] = [
    (drawn, MIB // 2, {}),
    (of_constants, MIB, {}),
    (sorted_in_a_function, MIB, {}),
    (multiplied, MIB // 2, {}),
    (sorted_eagerly, 3 * MIB, {}),
    (any_number_of_workers, 401_000, {"numerics": "any-workers"}),
    (of_constants, MIB, {"workers": 2}),
]


@pytest.mark.parametrize(("run", "limit", "options"), CASES)
def test_the_limit_that_an_error_names_is_enough(
    run: Callable[[], None], limit: int, options: dict[str, Any]
) -> None:
    with ost.connect(memory_limit=limit, **options), pytest.raises(MemoryLimitError) as caught:
        run()
    text = str(caught.value)
    assert "constant" not in text
    lines, first = inspect.getsourcelines(run)
    marked = [first + k for k, line in enumerate(lines) if line.endswith("# most\n")]
    assert all(f"{Path(__file__).name}:{line})" in text for line in marked), text
    said = re.search(
        r"making values again[^:]*: at least ([\d.]+) (MiB|bytes); .*allow that much", text
    )
    assert said is not None, text
    enough = math.ceil(float(said[1]) * (MIB if said[2] == "MiB" else 1))
    with ost.connect(memory_limit=enough, **options):
        run()


def test_what_is_too_large_to_read_can_be_written_as_the_error_says(tmp_path: Path) -> None:
    with ost.connect(memory_limit=MIB):
        z = ost.random.normal(SHAPE)
        with pytest.raises(
            MemoryLimitError, match=r"write it to a file as it is made, with ost\.save"
        ):
            z.numpy()
        ost.save(tmp_path / "z.npy", z)
        written = ost.load(tmp_path / "z.npy", resident=False)
        assert float(abs(written - z).max()) == 0
        assert float(abs(z).max()) > 3
