"""Places outside of what they index, which kernels of a GPU note and whoever reads a value is told of; on a fake
one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import notes

import ostinato as ost
from ostinato.errors import BoundsError, LinAlgError
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.fake_xp import counted, xp
from tests.runtime.gpu_team import session as team
from tests.sessions import JOB

pytestmark = pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads")
X = np.random.default_rng(0).normal(size=(300, 40))
SAID = r"{} \(tests/runtime/test_gpu_notes.py:\d+\): got index {} is out of bounds for an axis with {} "


def places(*wrong: int) -> Any:
    return np.array([3, -300, 299, 0, *wrong])


def replay_of(session: Any) -> Any:
    return list(session.engine.workers[0].plans.values())[-1].replay


@pytest.mark.parametrize("device", ["fake", KERNELS] if COMPILER else ["fake"])
def test_indexing_is_part_of_a_graph_and_told_by_who_reads(device: str) -> None:
    """Nothing is waited for before; what was made since is lost, the next run is right."""
    with ost.connect(device=device):
        f = ost.compile(lambda x, i: ost.exp(x[i]) * 2.0)
        x = ost.asarray(X)
        good, low, high = (ost.asarray(places(*k)) for k in ((1,), (-301,), (512,)))
        for _ in range(8):
            y = f(x, good)
        before = vars(counted).copy()
        for _ in range(5):
            y = f(x, good)
        did = {name: n - before[name] for name, n in vars(counted).items()}
        assert (did["waits"], did["to_host"], did["from_host"]) == (0, 0, 0)
        assert did["launches"] <= 5 * 2
        np.testing.assert_allclose(np.asarray(y), np.exp(X[places(1)]) * 2)
        for wrong, index in ((low, -301), (high, 512)):
            kept = f(x, wrong), f(x, good)
            after = kept[0] + 1.0
            for bad in (kept[0], after, kept[0], kept[1]):
                with pytest.raises(BoundsError, match=SAID.format(".*", index, 300)):
                    np.asarray(bad)
            np.testing.assert_allclose(np.asarray(f(x, good)), np.exp(X[places(1)]) * 2)
        assert "as one graph" in f.plan.explain()


@pytest.mark.parametrize(
    ("function", "wanted", "name"),
    [
        (lambda x, i: x[:, i % 40] * 2, lambda x, i: x[:, i % 40] * 2, ""),
        (lambda x, i: ost.take(x, i, axis=0) + 1, lambda x, i: x[i] + 1, "take"),
        (lambda x, i: x.at[i].set(1.0), lambda x, i: _put(x, i), "put"),
        (
            lambda x, i: ost.take_along_axis(x, i[:, None], axis=0),
            lambda x, i: np.take_along_axis(x, i[:, None], 0),
            "take_along_axis",
        ),
    ],
)
def test_whatever_indexes(function: Any, wanted: Any, name: str) -> None:
    with ost.connect(device="fake") as session:
        f = ost.compile(lambda x, i: function(x, i))
        for k in range(6):
            found = np.asarray(f(ost.asarray(X + k), ost.asarray(places(k))))
            np.testing.assert_allclose(found, wanted(X + k, places(k)))
        assert replay_of(session).launched, replay_of(session).why
        if name:
            with pytest.raises(BoundsError, match="index 4000 is out of bounds"):
                np.asarray(f(ost.asarray(X), ost.asarray(places(4000))))


def _put(x: Any, i: Any) -> Any:
    made = x.copy()
    made[i] = 1.0
    return made


def test_a_place_that_one_worker_has_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with team((3,), monkeypatch) as session:
        f = ost.compile(lambda x, i: x[i].sum(0))
        x, good = ost.asarray(X, split=0), places(1, 2)
        for _ in range(5):
            y = f(x, ost.asarray(good, split=0))
        np.testing.assert_allclose(np.asarray(y), X[good].sum(0))
        assert replay_of(session).launched
        y = f(x, ost.asarray(places(1, 777), split=0))
        for _ in range(2):
            with pytest.raises(BoundsError, match=SAID.format("take", 777, 300)):
                np.asarray(y)
        np.testing.assert_allclose(np.asarray(f(x, ost.asarray(good, split=0))), X[good].sum(0))


def test_notes_of_plans_that_are_gone_are_read_and_then_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there are too few, places are waited for."""
    monkeypatch.setattr(notes, "ROOM", 3)
    with ost.connect(device="fake") as session:
        x, bad = ost.asarray(X), ost.asarray(places(9999))
        y = ost.compile(lambda x, i: x[i] * 3.0)(x, bad)
        (worker,) = session.engine.workers  # type: ignore[attr-defined]
        worker.restart()
        with pytest.raises(BoundsError, match="index 9999"):
            np.asarray(y)
        kept = []
        for k in range(6):
            kept.append(ost.compile(lambda x, i, k=k: x[i] * k))
            np.testing.assert_array_equal(
                np.asarray(kept[-1](x, ost.asarray(places()))), X[places()] * k
            )
        with pytest.raises(BoundsError, match="index 9999"):
            np.asarray(kept[-1](x, bad))
        assert len(worker.notes.about) <= 3
    assert xp is not np


# -- matrices without factors ------------------------------------------------------------------
RIGHT = np.random.default_rng(1).normal(size=(4, 2))
GOOD = np.stack([np.eye(4) * (k + 2) + 0.25 for k in range(3)])
BAD = np.stack([GOOD[0], np.zeros((4, 4)), GOOD[2]])
FACTORED = {
    "cholesky": lambda a: ost.linalg.cholesky(a),
    "solve": lambda a: ost.linalg.solve(a, RIGHT),
    "inv": lambda a: ost.linalg.inv(a),
    "solve_triangular": lambda a: ost.linalg.solve_triangular(a, RIGHT),
    "loop": lambda a: ost.repeat(3, ost.linalg.inv, a),
}


@pytest.mark.parametrize("device", ["fake", KERNELS] if COMPILER else ["fake"])
@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("name", FACTORED)
def test_a_matrix_without_factors_is_told_by_who_reads_as_on_a_cpu(
    name: str, stack: bool, device: str
) -> None:
    """Nothing is waited for in a run."""
    good, bad = (a if stack else a[1] for a in (GOOD, BAD))
    f = ost.compile(lambda a: FACTORED[name](a) * 2.0)
    with pytest.raises(LinAlgError) as there:
        np.asarray(f(bad))
    wanted = np.asarray(f(good))
    with ost.connect(device=device):
        g = ost.compile(lambda a: FACTORED[name](a) * 2.0)
        given, wrong = ost.asarray(good), ost.asarray(bad)
        for _ in range(3):
            g(given)
        before = vars(counted).copy()
        made = g(given)
        did = {key: n - before[key] for key, n in vars(counted).items()}
        assert (did["waits"], did["to_host"], did["from_host"]) == (0, 0, 0)
        np.testing.assert_allclose(np.asarray(made), wanted, rtol=1e-12)
        lost = g(wrong)
        with pytest.raises(LinAlgError) as here:
            np.asarray(lost)
        assert str(here.value) == str(there.value)
        np.testing.assert_allclose(np.asarray(g(given)), wanted, rtol=1e-12)


def test_where_no_word_is_free_factors_are_looked_at(monkeypatch: Any) -> None:
    monkeypatch.setattr(notes, "ROOM", 0)
    said = pytest.raises(LinAlgError, match=r"inv \(tests/runtime/test_gpu_notes")
    with ost.connect(device="fake"), said:
        np.asarray(ost.linalg.inv(ost.asarray(BAD[1])))
