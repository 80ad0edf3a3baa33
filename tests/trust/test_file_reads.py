"""Of an array in a file is read what is needed, rounded to pages or chunks, whatever stands before a slice.

What is needed is known from NumPy: the same program of the elements' numbers says which of them it sees.
Bytes are counted where they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.io_pipeline import array_files as files
from ostinato.io_pipeline import chunks, source

import ostinato as ost
from ostinato.errors import BoundsError
from tests.sessions import use
from tests.thorough import some
from tests.trust.conftest import Tally

KIB = 1 << 10
NEAR = source.MAX_GAP_BYTES + 4 * KIB  # bytes between two numbers that may be read with them
ROWS, COLUMNS = 60_000, 16
MENDED = (109, 111, 258, 303, 351, 377, 386, 1018, 1049, 1129)  # which read too much once


class Count:
    """Bytes that were read: of chunks that are read whole, all."""

    def __init__(self) -> None:
        self.bytes = 0
        self.last = 0

    def taken(self) -> int:
        self.last, self.bytes = self.bytes, 0
        return self.last


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    found, preadv = Count(), os.preadv

    def read(handle: int, buffers: Any, at: int) -> int:
        size = preadv(handle, buffers, at)
        found.bytes += size
        return size

    monkeypatch.setattr(os, "preadv", read)
    for kind, name in ((files.Hdf5Source, "_chunk"), (chunks.ChunkSource, "_numbers")):
        chunk = getattr(kind, name)

        def whole(self: Any, *args: Any, made: Any = chunk) -> Any:
            found.bytes += int(np.prod(self.grain)) * self.dtype.itemsize
            return made(self, *args)

        monkeypatch.setattr(kind, name, whole)
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """640 MB of which almost all is a hole."""
    path = tmp_path_factory.mktemp("large") / "x.npy"
    x = np.lib.format.open_memmap(path, "w+", "f4", (8_000_000, 20))
    x[:2000] = np.random.default_rng(0).normal(size=(2000, 20))
    x[4_000_000] = 4
    x[-3:] = np.arange(60).reshape(3, 20)
    x.flush()
    del x
    yield path
    path.unlink()


def looped(x: Any) -> Any:
    return ost.scan(lambda c, i: (c + (x * 2)[i * 7], c.sum()), ost.zeros(20), ost.arange(9))[0]


def batches(x: Any) -> Any:
    places = ost.arange(24).reshape((3, 8)) * 3
    return ost.scan(lambda c, i: (c + x[i].mean(0), None), ost.zeros(20), places)[0]


def counted_up(x: Any) -> Any:
    state = ost.while_loop(
        lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] + x[s[0]]), (ost.asarray(0), ost.zeros(20))
    )
    return state[1]


ROW = 80
LARGE: dict[str, tuple[Callable[[Any], Any], int]] = {
    "x[5:8]": (lambda x: x[5:8], 3 * ROW),
    "x[0]": (lambda x: x[0], ROW),
    "x[-1]": (lambda x: x[-1], ROW),
    "x[1000:1064].mean()": (lambda x: x[1000:1064].mean(), 64 * ROW),
    "x[:100, 4].sum()": (lambda x: x[:100, 4].sum(), 100 * ROW),
    "x[3, 4]": (lambda x: x[3, 4], 4),
    "x[[5, 6]]": (lambda x: x[[5, 6]], 2 * ROW),
    "x[[-1, 4000000, 5, 5]]": (lambda x: x[[-1, 4_000_000, 5, 5]], 4 * ROW),
    "x[[1, 2], [3, 4]]": (lambda x: x[[1, 2], [3, 4]], 2 * ROW),
    "x[::1000000]": (lambda x: x[::1_000_000], 8 * ROW),
    "x[::-4000000]": (lambda x: x[::-4_000_000], 2 * ROW),
    "computed rows": (lambda x: x[(x[7, :3] > 0).astype("int64") * 9], 5 * ROW),
    "mask": (lambda x: x[:64][:, x[0] > 0], 65 * ROW),
    "transposed": (lambda x: x.T[3:5, 10:20], 10 * ROW),
    "elementwise": (lambda x: (ost.exp(x) * 2 - x)[5:8, ::2], 3 * ROW),
    "cast": (lambda x: x.astype("float64")[4_000_000], ROW),
    "with others": (lambda x: ((x - ost.arange(20)) @ ost.ones((20, 3)))[5:8], 3 * ROW),
    "reduced": (lambda x: x.sum(1)[5:8] + x.var(1)[6:9], 4 * ROW),
    "broadcast": (lambda x: ost.broadcast_to(x[:, None], (8_000_000, 3, 20))[5:8, 1], 3 * ROW),
    "folded": (lambda x: x.reshape((800_000, 10, 20))[3, 2:4], 10 * ROW),
    "flat": (lambda x: x.reshape((-1,))[45:67], 2 * ROW),
    "flat picks": (lambda x: x.reshape((-1,))[[45, -1]], 2 * ROW),
    "folded across": (lambda x: x.reshape((20, 8_000_000))[:, :2], 40 * ROW),
    "rolled": (lambda x: ost.roll(x, 1, axis=0)[:2], 2 * ROW),
    "rolled rows": (lambda x: ost.roll(x, 1, axis=0)[[0, 5, -1]], 7 * ROW),
    "joined": (lambda x: ost.concat([x, x * 2])[7_999_999:8_000_001], 2 * ROW),
    "flipped": (lambda x: ost.flip(x)[:2], 2 * ROW),
    "several": (lambda x: x[5:50].sum(0) * x[10:60].max(0) + x[52], 55 * ROW),
    "loop": (looped, 9 * ROW),
    "batches": (batches, 3 * 22 * ROW),
    "while": (counted_up, 4 * ROW),
    "condition": (lambda x: ost.cond(x[0, 0] > 0, lambda: x[1] + 1, lambda: x[2] + 1), 3 * ROW),
    "rows of a loop": (
        lambda x: ost.scan(lambda c, r: (c + r, None), ost.zeros(20), x[100:120])[0],
        20 * ROW,
    ),
    "gradient": (lambda x: ost.grad(lambda w: ((x[:64] @ w) ** 2).sum())(ost.ones(20)), 64 * ROW),
}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_is_needed_of_a_large_file(
    workers: int, large: Path, count: Count, tally: Tally
) -> None:
    """Without a limit and under one of 2 MiB; each worker may read what it needs."""
    resident = np.load(large, mmap_mode="r")
    for limit in (None, 2 << 20) if workers == 1 else (None,):
        with use((workers,)):
            for name, (function, bytes_) in LARGE.items():
                x = ost.load(large, resident=False, split=0)
                count.taken()
                f = ost.compile(function, memory_limit=limit) if name != "mask" else function
                found = np.asarray(f(x))
                assert count.taken() <= bytes_ * workers, name
                small = np.concatenate([resident[:2000], resident[-3:]])
                if name in SMALL:
                    expected = np.asarray(function(ost.asarray(small)))
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)
                tally("programs", 1)


SMALL = (  # which see the first rows, or the last ones
    *("x[5:8]", "x[0]", "x[-1]", "x[1000:1064].mean()", "x[:100, 4].sum()", "x[3, 4]", "x[[5, 6]]"),
    *("x[[1, 2], [3, 4]]", "computed rows", "mask", "transposed", "elementwise", "with others"),
    *(
        "reduced",
        "flat",
        "flat picks",
        "rolled",
        "rolled rows",
        "flipped",
        "several",
        "loop",
        "batches",
    ),
    *("while", "condition", "rows of a loop", "gradient"),
)


# -- programs by chance ---------------------------------------------------------------------------
class Random:
    """A chain of views, picks and functions of elements, for NumPy and for us."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def part(self, n: int) -> Any:
        """A key for an axis."""
        rng = self.rng
        lo, hi = sorted(int(k) for k in rng.integers(0, n + 1, 2))
        match rng.integers(7):
            case 0 | 1:
                return slice(lo, hi)
            case 2:
                return slice(lo, min(hi, lo + 5))
            case 3:
                return slice(None, None, int(rng.choice([-1, 2, 3, -7, max(n // 3, 1)])))
            case 4 if n:
                return int(rng.integers(-n, n))
            case 5 if n:
                return [int(k) for k in rng.integers(-n, n, rng.integers(1, 6))]
        return slice(None)

    def step(self, x: np.ndarray) -> Callable[[Any], Any]:
        """One more operation for an array like this."""
        rng, shape = self.rng, x.shape
        match rng.integers(9):
            case 0 if x.ndim > 1:
                axes = tuple(int(a) for a in rng.permutation(x.ndim))
                return lambda x: (
                    x.transpose(axes) if isinstance(x, np.ndarray) else ost.permute_dims(x, axes)
                )
            case 1 if x.size:
                return lambda x: x.reshape((-1,))
            case 2 if x.ndim and shape[0] % 6 == 0 and x.size:
                return lambda x: x.reshape((shape[0] // 6, 2, 3, *shape[1:]))
            case 3:
                return lambda x: x[None]
            case 4 if x.ndim:
                return lambda x: (np.roll if isinstance(x, np.ndarray) else ost.roll)(x, 3, axis=0)
            case 5:
                wide = (2, *shape)
                return lambda x: (np if isinstance(x, np.ndarray) else ost).broadcast_to(x, wide)
        keys = [self.part(n) for n in shape]
        if sum(isinstance(k, list) for k in keys) > 1:
            keys = [slice(0, 3) if isinstance(k, list) else k for k in keys]
        arrays = [d for d, k in enumerate(keys) if isinstance(k, list)]
        if arrays:  # numbers beside them would be arrays, too
            keys = [slice(k, k + 1) if isinstance(k, int) and k >= 0 else k for k in keys]
            keys = [slice(0, 1) if isinstance(k, int) else k for k in keys]
        key = tuple(keys)
        return lambda x: x[key]

    def program(self, shape: tuple[int, ...]) -> list[Callable[[Any], Any]]:
        x, found = np.empty(shape, np.int8), []
        for _ in range(int(self.rng.integers(1, 5))):
            step = self.step(x)
            if step(x).size > 2 * np.prod(shape):
                continue
            found.append(step)
            x = step(x)
        return found


def written(folder: Path, value: np.ndarray, kind: str) -> tuple[Path, tuple[int, ...] | None]:
    """A file of this kind, and the extents of what is read whole."""
    if kind in ("C", "F"):
        np.save(folder / "x.npy", np.asarray(value, order=kind))  # type: ignore[call-overload]
        return folder / "x.npy", None
    if kind == "zarr":
        ost.save(folder / "x.zarr", value)
        return folder / "x.zarr", None
    chunks = (1000, 4)
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("x", data=value, chunks=chunks, compression="lzf")
        return folder / "x.h5", chunks
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(folder / "z.zarr"), data=value, chunks=chunks, overwrite=True)
    return folder / "z.zarr", chunks


def distinct(numbers: np.ndarray) -> np.ndarray:
    """What np.unique gives of numbers that are not large, without an order of all."""
    return np.flatnonzero(np.bincount(numbers.reshape(-1)))


def rounded(seen: np.ndarray, shape: tuple[int, ...], kind: str, chunks: Any, size: int) -> int:
    """The bytes of these elements, with what lies between those that are near each other, or with all
    of their chunks."""
    places = distinct(seen)
    if not places.size:
        return 0
    if chunks is not None:
        index = np.unravel_index(places, shape)
        grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
        found = np.ravel_multi_index([i // c for i, c in zip(index, chunks, strict=True)], grid)
        return distinct(found).size * int(np.prod(chunks)) * size
    if kind == "F":
        places = np.sort(np.ravel_multi_index(np.unravel_index(places, shape), shape, order="F"))
    gaps = (np.diff(places) - 1) * size
    return int(places.size * size + gaps[gaps <= NEAR].sum())


@pytest.mark.parametrize("kind", ["C", "F", "zarr", "hdf5", "compressed"])
def test_programs_by_chance(
    kind: str, tmp_path: Path, count: Count, tally: Tally, thorough: bool
) -> None:
    value = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    path, chunks = written(tmp_path, value, kind)
    numbers = np.arange(value.size).reshape(value.shape)
    over = []
    for seed in (*range(400 if thorough else 12), *MENDED):
        program = Random(seed).program(value.shape)
        touched = numbers
        expected: Any = value
        for step in program:
            touched, expected = step(touched), step(expected)
        workers = seed % 3 + 1

        def ours(x: Any, program: Any = program) -> Any:
            for k, step in enumerate(program):
                x = step(x)
                x = x * 2 - 1 if k % 2 == 0 else x
            return x

        for k in range(len(program)):
            expected = expected * 2 - 1 if k % 2 == 0 else expected
        with use((workers,)):
            x = ost.load(path, resident=False, split=0)
            count.taken()
            found = np.asarray(ost.compile(ours)(x))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=f"{seed}")
        need = rounded(touched, value.shape, kind, chunks, 4)
        over.append((count.taken() - 1.1 * need * workers, seed, count.last, need))
        tally("programs by chance", 1)
    assert max(over)[0] <= 64 * KIB, max(over)


# -- what else could go wrong ---------------------------------------------------------------------
@pytest.mark.parametrize("workers", [1, 3])
def test_places_outside_are_refused(workers: int, large: Path) -> None:
    programs = (
        lambda x, i: x[i],
        lambda x, i: (x * 2)[i, 3:5],
        lambda x, i: x.T[2:4, i],
        lambda x, i: x.reshape((4_000_000, 40))[i],
        lambda x, i: ost.broadcast_to(x[:, None], (8_000_000, 3, 20))[4:6][:, i],
        lambda x, i: x[..., None][..., i],
        lambda x, i: ost.roll(x, 3, axis=0).reshape((-1, 16))[::2][i],
    )
    with use((workers,)):
        x = ost.load(large, resident=False, split=0)
        for k, program in enumerate(programs):
            for bad in some([8_000_000, -8_000_001], 2, k + workers // 3):
                with pytest.raises(BoundsError, match=r"test_file_reads.py:\d+\): got index"):
                    np.asarray(ost.compile(program)(x, ost.asarray([3, bad])))


def test_a_chunk_is_read_once(tmp_path: Path, count: Count) -> None:
    """By parts of one read, by reads of one run, and by turns that it lies between."""
    value = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    for kind in ("hdf5", "compressed"):
        path, extents = written(tmp_path, value, kind)
        assert extents is not None
        chunk = int(np.prod(extents)) * 4
        for function, chunks_ in (
            (lambda x: x[[5, 990, 7, 1001], [1, 3, 9, 2]], 3),
            (lambda x: x[5:7].sum(0) + x[990:992].max(0), 4),
            (lambda x: x.reshape((-1,))[[3, 14_995, 35]], 1),
            (lambda x: x.max(0), 240),
        ):
            with use():
                x = ost.load(path, resident=False)
                f = ost.compile(function, memory_limit=300 * KIB if chunks_ == 240 else None)
                count.taken()
                np.testing.assert_allclose(np.asarray(f(x)), function(value), rtol=1e-4, atol=1e-4)
                assert count.taken() == chunks_ * chunk, (kind, chunks_, count.last / chunk)


def test_neighbours_are_streamed(tmp_path: Path, count: Count) -> None:
    """What was refused, since a shift cannot be cut in time: two parts of a file can."""
    value = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    np.save(tmp_path / "x.npy", value)
    for workers in (1, 2):
        with use((workers,)):
            x = ost.load(tmp_path / "x.npy", resident=False, split=0)
            f = ost.compile(lambda x: ((x[1:] - x[:-1]) ** 2).sum(0), memory_limit=512 * KIB)
            count.taken()
            np.testing.assert_allclose(
                np.asarray(f(x)), (np.diff(value, axis=0) ** 2).sum(0), rtol=1e-3
            )
            assert f.plan.peak_bytes <= 512 * KIB
            assert count.taken() <= 2 * value.nbytes


def test_shuffled_rows_are_streamed(tmp_path: Path, count: Count) -> None:
    value = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    order = np.random.default_rng(1).permutation(ROWS)[: ROWS // 2]
    np.save(tmp_path / "x.npy", value)
    with use():
        x = ost.load(tmp_path / "x.npy", resident=False)
        f = ost.compile(lambda x, i: x[i].mean(0), memory_limit=1 << 20)
        found = np.asarray(f(x, ost.asarray(order)))
        np.testing.assert_allclose(found, value[order].mean(0), atol=1e-5)
        assert f.plan.peak_bytes <= 1 << 20


def test_a_file_is_read_once_for_several_columns(tmp_path: Path, count: Count) -> None:
    value = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("f4")
    np.save(tmp_path / "x.npy", value)
    for function, passes in (
        (lambda x: (x[:, 0] * x[:, 15] + x[:, 3]).sum(), 1),
        (lambda x: x.T @ x[:, 0], 1),
        (lambda x: x[:, 2].mean() + x[::-1, 7].max() + x.sum(), 2),
    ):
        with use():
            x = ost.load(tmp_path / "x.npy", resident=False)
            f = ost.compile(function, memory_limit=512 * KIB)
            count.taken()
            f(x)
            assert count.taken() <= value.nbytes * passes


def test_a_plan_of_parts_is_a_file(large: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        with use((workers,)):
            x = ost.load(large, resident=False, split=0)
            for name in ("x[[1, 2], [3, 4]]", "elementwise", "loop", "several", "folded across"):
                f = ost.compile(LARGE[name][0])
                expected = np.asarray(f(x))
                f.plan.to_file(tmp_path / "p")
                again = ost.Plan.from_file(tmp_path / "p")
                assert again.lowered == f.plan.lowered
                places = [ost.asarray(p) for p in ([1, 2], [3, 4]) if name.startswith("x[[")]
                np.testing.assert_array_equal(np.asarray(ost.run(again, x, *places)), expected)
                assert "float32[8000000,20]" in str(f.plan.explain())
