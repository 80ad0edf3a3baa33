"""Looks at files: what only moves elements is put together, and the right numbers come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.sessions import use

SHAPE = (12, 10, 8)
Step = Callable[[Any, Any], Any]

LOOKS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "x[3:5]": (lambda x: x[3:5], ["slice_file", "read"]),
    "transposed": (lambda x: x.T[3, ::2][:, 4], ["slice_file", "read"]),
    "x[places]": (lambda x: x[[5, 1]], ["take_file", "read"]),
    "a row of all": (lambda x: x.reshape((-1,))[7:700], ["merge_file", "slice_file", "read"]),
    "pairs": (lambda x: x[[1, 2], [3, 4]], ["merge_file", "take_file", "read"]),
    "there and back": (
        lambda x: x.reshape((-1,))[7:707].reshape((7, 100))[2:4],
        ["merge_file", "slice_file", "read"],
    ),
    "repeated": (
        lambda x: ost.broadcast_to(x, (5, *SHAPE))[3, 4:6, :, 1],
        ["slice_file", "read"],
    ),
    "folded rows": (
        lambda x: (ost.permute_dims(x, (0, 2, 1)) + ost.arange(10)).reshape((12, 80))[[5, 1]],
        ["take_file", "read"],
    ),
    "through functions": (
        lambda x: ost.exp(x * 2).reshape((6, 2, 80))[1:3, 0],
        ["slice_file", "read"],
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_moves_is_one_look(name: str, tmp_path: Path) -> None:
    value = np.random.default_rng(0).normal(size=SHAPE)
    np.save(tmp_path / "x.npy", value)
    function, wanted = LOOKS[name]
    with use():
        f = ost.compile(function)
        found = np.asarray(f(ost.load(tmp_path / "x.npy", resident=False)))
        np.testing.assert_array_equal(found, np.asarray(function(ost.asarray(value))))
        nodes = [n.op for n in f.plan.lowered.nodes]
        assert [op for op in nodes if op == "read" or op.endswith("_file")] == wanted


class Mixed:
    """A chain by chance of what moves elements, picks, joins, reduces and computes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def key(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        rng, found = self.rng, list[Any]()
        for n in shape:
            lo, hi = sorted(int(k) for k in rng.integers(0, n + 1, 2))
            kind = rng.integers(6)
            if kind < 2 and hi > lo:
                found.append(slice(lo, hi))
            elif kind == 3 and n:
                found.append(int(rng.integers(-n, n)))
            else:
                found.append(slice(None, None, int(rng.choice([-1, 2, 3, -2]) if kind == 2 else 1)))
        return (*found[:1], None, *found[1:]) if rng.integers(5) == 0 else tuple(found)

    def folded(self, size: int) -> tuple[int, ...]:
        found: list[int] = []
        while size > 1 and len(found) < 4:
            found.append(int(self.rng.choice([d for d in range(1, size + 1) if size % d == 0])))
            size //= found[-1]
        return (*found, size)

    def step(self, shape: tuple[int, ...]) -> Step:
        """One more operation for an array of this shape, with axes."""
        rng = self.rng
        axis = int(rng.integers(len(shape)))
        match rng.integers(16):
            case 0 | 1 | 2 | 3:
                key = self.key(shape)
                return lambda xp, x: x[key]
            case 4:
                some = tuple(rng.integers(1, 4, rng.integers(1, 3)))
                places = (slice(None),) * axis + (rng.integers(-shape[axis], shape[axis], some),)
                return lambda xp, x: x[places]
            case 5 if len(shape) > 1:
                pairs = tuple(rng.integers(-n, n, 4) for n in shape[:2])
                return lambda xp, x: x[pairs]
            case 6 | 7:
                new = self.folded(math.prod(shape))
                return lambda xp, x: xp.reshape(x, new)
            case 8:
                order = tuple(int(a) for a in rng.permutation(len(shape)))
                return lambda xp, x: xp.permute_dims(x, order)
            case 9:
                wide = (int(rng.integers(1, 4)), *shape)
                return lambda xp, x: xp.broadcast_to(x, wide)
            case 10:
                shift = int(rng.integers(-5, 6))
                return lambda xp, x: xp.roll(x, shift, axis=axis)
            case 11:
                return lambda xp, x: xp.concat([x, x * 3, x[...]], axis=axis)
            case 12:
                return lambda xp, x: x + xp.arange(shape[-1])
            case 13:
                return lambda xp, x: xp.sum(x, axis=axis)
            case 14:
                return lambda xp, x: x - xp.max(x, axis=axis, keepdims=True)
        return lambda xp, x: xp.where(x > 50, x * 2, -x)

    def program(self) -> list[Step]:
        x, found = np.zeros(SHAPE, np.int64), list[Step]()
        for _ in range(int(self.rng.integers(2, 9))):
            step = self.step(x.shape) if x.size and x.ndim else None
            if step is not None and (y := step(np, x)).size <= 8000:
                found.append(step)
                x = y
        return found


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_mixed_programs_by_chance(first: int, tmp_path: Path) -> None:
    """To the bit what NumPy says, by any number of workers, split along any axis."""
    value = np.random.default_rng(0).integers(0, 100, SHAPE)
    np.save(tmp_path / "0.npy", value)
    np.save(tmp_path / "1.npy", np.asfortranarray(value))
    ost.save(tmp_path / "2.zarr", value)
    paths = sorted(tmp_path.iterdir())
    for seed in range(first, first + 30):
        program = Mixed(seed).program()

        def run(xp: Any, x: Any, program: list[Step] = program) -> Any:
            for step in program:
                x = step(xp, x)
            return x

        limit = None if seed % 7 else 1 << 20
        with use((seed % 4 % 3 + 1,)):
            x = ost.load(paths[seed % 3], resident=False, split=seed % 5 % 3)
            found = np.asarray(ost.compile(lambda x, run=run: run(ost, x), memory_limit=limit)(x))
        np.testing.assert_array_equal(found, run(np, value), err_msg=str(seed))
