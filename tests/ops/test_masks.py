"""Where a mask is True: machine code against NumPy, parts on workers, files, and under `vmap`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ostinato.ops import CPU
from ostinato.ops.cpu.kernels.true_places import BLOCK
from ostinato.ops.cpu.limits import LIMITS
from ostinato.planner.passes import blocking

import ostinato as ost
from ostinato.errors import ArgumentError
from tests.helpers import assert_same
from tests.sessions import use


def padded(x: Any, size: int) -> np.ndarray[Any, Any]:
    found = np.flatnonzero(x)[:size]
    return np.concatenate([found, np.zeros(size - len(found), np.int64)])


@given(
    n=st.sampled_from([LIMITS.compiled - 1, LIMITS.compiled, BLOCK, 3 * BLOCK + 67]),
    share=st.sampled_from([0, 0.01, 0.5, 0.99, 1]),
    size=st.sampled_from([0.0, 0.3, 1.0, 1.5]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_places(n: int, share: float, size: float, threads: int, seed: int) -> None:
    """As many as there is room for, and zeros behind them; the memory around stays as it is."""
    x = np.random.default_rng(seed).random(n) < share
    room = np.full(int(size * n) + 2, -7)
    out = room[1:-1]
    run = CPU.natives["true_places"].make([x, out], threads, size=len(out))
    for _ in range(2):
        run(x, out)
        np.testing.assert_array_equal(room, [-7, *padded(x, len(out)), -7])


@pytest.mark.parametrize("workers", [1, 3])
def test_of_split_masks_and_of_files(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file by running counts: no mask is put together."""
    monkeypatch.setattr(blocking, "READ_BYTES", 1 << 12)
    x = (np.random.default_rng(0).random((1 << 14, 2)) < 0.2).astype("f4")
    np.save(tmp_path / "x.npy", x)
    f = ost.compile(lambda x: ost.argwhere(x, size=40))
    with use((workers,)):
        file = ost.load(tmp_path / "x.npy", resident=False)
        for a in (file, ost.asarray(x, split=0)):
            np.testing.assert_array_equal(np.asarray(f(a)), np.argwhere(x)[:40])
        assert "true_places" not in str(f.plan_for(file).lowered)


def test_by_all_names() -> None:
    x = np.array([[0, 3, 0], [4, 0, 5]])
    assert_same(lambda x: ost.flatnonzero(x, size=4), lambda x: padded(x, 4), x)
    assert_same(
        lambda x: ost.where(x > 3, size=3), lambda x: (np.array([1, 1, 0]), np.array([0, 2, 0])), x
    )
    assert_same(lambda x: ost.argwhere(x, size=2), lambda x: np.argwhere(x)[:2], x)
    assert_same(
        ost.vmap(lambda row: ost.flatnonzero(row, size=2)),
        lambda x: np.stack([padded(row, 2) for row in x]),
        x,
    )
    with pytest.raises(ArgumentError, match=r"where.*size, x and y; needed size, or x and y"):
        ost.where(x > 3, x, 0, size=3)
