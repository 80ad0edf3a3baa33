"""Boxes that begin where traced numbers say, against NumPy: x[i, j], x[i:i + n], and what is updated there."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import BoundsError, ShapeError, TracedValueError
from tests.helpers import assert_same, on
from tests.ops.samples import MODES, changed
from tests.thorough import some

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 5, 4))
TABLE = ost.asarray([0, 2, 1])


def random_box(r: random.Random) -> tuple[tuple[int, ...], list[int], Callable[..., Any]]:
    """A shape, numbers, and the key that is made of them."""
    shape = tuple(r.randint(1, 5) for _ in range(r.randint(1, 3)))
    begins: list[int] = []
    parts: list[Callable[..., Any]] = []
    for n in shape:
        k = len(begins)
        kind = r.choice(["number", "slice", "known", "whole", "fixed"])
        if kind == "number":
            begins.append(r.randrange(-n, n))
            parts.append(lambda i, k=k: i[k])
        elif kind == "slice":
            extent = r.randint(0, n)
            begins.append(r.choice([*range(n - extent + 1), *range(-n, -extent)]))
            parts.append(lambda i, k=k, m=extent: slice(i[k], i[k] + m))
        elif kind == "known":
            first = r.randrange(n)
            cut = slice(first, r.randint(first, n))
            parts.append(lambda i, cut=cut: cut)
        else:
            one = slice(None) if kind == "whole" else r.randrange(-n, n)
            parts.append(lambda i, one=one: one)
    return shape, begins, lambda i: tuple([part(i) for part in parts])


@pytest.mark.parametrize("seed", some(range(80), 4))
def test_reads_and_updates(seed: int) -> None:
    r = random.Random(seed)
    shape, begins, key = random_box(r)
    mode = r.choice(MODES)
    x = RNG.normal(size=shape)
    v = RNG.normal(size=x[key(begins)].shape)

    def ours(x: Any, v: Any, *i: Any) -> Any:
        return x[key(i)], getattr(x.at[key(i)], mode)(v)

    def wanted(x: Any, v: Any, *i: Any) -> Any:
        return x[key(i)], changed(x, v, key=key(i), mode=mode)

    assert_same(ours, wanted, x, v, *map(np.int64, begins), few=True)


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
def test_parts_of_every_box(mesh: tuple[int, ...]) -> None:
    """Each place along each axis, whoever has it."""

    def turn(s: Any, k: Any) -> Any:
        i, j = k // 4, k % 4
        s = s.at[i, :, j].add(s[i, 1:4, j].sum()).at[i : i + 1, 2, j].multiply(2.0)
        s[i, 1, j] = s[i, 3, 0]
        return s, s[i : i + 1, :, j]

    def wanted(x: Any) -> Any:
        s, ys = x.copy(), []
        for i, j in np.ndindex(6, 4):
            s[i, :, j] += s[i, 1:4, j].sum()
            s[i : i + 1, 2, j] *= 2
            s[i, 1, j] = s[i, 3, 0]
            ys.append(s[i : i + 1, :, j].copy())
        return s, np.array(ys)

    run = ost.compile(lambda x: ost.scan(turn, x, ost.arange(24)))
    with on(mesh=mesh):
        for split in (0, 1, 2, None):
            for found, needed in zip(run(ost.asarray(X, split=split)), wanted(X), strict=True):
                np.testing.assert_allclose(np.asarray(found), needed, rtol=1e-12)


EXTENTS: dict[str, tuple[Callable[[Any], slice], int]] = {
    "i:i+n": (lambda i: slice(i, i + 2), 2),
    "i-1:i+2": (lambda i: slice(i - 1, i + 2), 3),
    "n*i:n*(i+1)": (lambda i: slice(2 * i, 2 * (i + 1)), 2),
    "i*n:i*n+n": (lambda i: slice(i * np.int64(2), i * 2 + 2), 2),
    "-i+4:5-i": (lambda i: slice(-i + 4, 5 - i), 1),
    "another dtype": (lambda i: slice(i.astype(ost.int32), i.astype(ost.int32) + 1), 1),
    "equal operations": (lambda i: slice(i // 2, i // 2 + 3), 3),
    "of arrays": (lambda i: slice(TABLE[i], TABLE[i] + 2), 2),
    "steps": (lambda i: slice(i, i + 4, 2), 2),
    "nothing": (lambda i: slice(i, i), 0),
    "less than nothing": (lambda i: slice(i + 2, i), 0),
}


@pytest.mark.parametrize("name", EXTENTS)
def test_extents_that_are_seen(name: str) -> None:
    make, n = EXTENTS[name]
    x = np.arange(24.0).reshape(8, 3)

    def turn(s: Any, i: Any) -> Any:
        return s.at[make(i), 1:].multiply(2.0), s[make(i)]

    last, ys = ost.scan(turn, ost.asarray(x), ost.asarray([1, 2]))
    assert ys.shape == (2, n, 3)
    for k, i in enumerate((1, 2)):
        cut = make(ost.asarray(i))
        key = slice(int(cut.start), int(cut.stop), cut.step)
        np.testing.assert_array_equal(np.asarray(ys[k]), x[key])
        x[key, 1:] *= 2
    np.testing.assert_array_equal(np.asarray(last), x)


@pytest.mark.parametrize(
    "make", [lambda i: slice(i, None), lambda i: slice(0, i), lambda i: slice(i, i * i)]
)
def test_an_extent_that_depends_on_values(make: Callable[[Any], slice]) -> None:
    with pytest.raises(TracedValueError, match=r"x\[start:stop\] .*ost.dynamic_slice"):
        ost.scan(lambda s, i: (s, ost.asarray(X)[make(i)].sum()), 0, ost.arange(3))


def test_numbers_that_are_arguments_are_known() -> None:
    """Then slices may have other extents, and end where the array ends."""
    f = ost.compile(lambda x, i: x[i : i + 4])
    for i in (0, 4, 5):
        np.testing.assert_array_equal(np.asarray(f(ost.asarray(X), i)), X[i : i + 4])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        (lambda i, j: (i, j), "index 5 is out of bounds for an axis with 5"),
        (lambda i, j: (-i - 2, j - 5), "index -7 is out of bounds for an axis with 6"),
        (lambda i, j: (0, slice(j - 1, j + 1)), "slice of 2 elements from 4 on is out of bounds"),
        (lambda i, j: slice(i - 6, i - 4), "slice of 2 elements from -1 on is out of bounds"),
    ],
)
def test_outside(key: Any, text: str, workers: int) -> None:
    """As long as NumPy has fewer elements there, or none, that is an error at the user's line."""

    def read(s: Any, i: Any) -> Any:
        return s, s[key(i, i)]

    def write(s: Any, i: Any) -> Any:
        return s.at[key(i, i)].set(0.0), None

    for turn in (read, write):
        with on(workers), pytest.raises(BoundsError, match=rf"(slice|loop) \(.*test_boxes.*{text}"):
            ost.evaluate(ost.scan(turn, ost.asarray(X, split=0), ost.asarray([5])))


def test_jax_semantics() -> None:
    """Negative starts are counted from the end; then a box is moved inside."""
    x = np.arange(20).reshape(4, 5)
    read = ost.compile(lambda x, i, j: ost.dynamic_slice(x, (i, j), (2, 3)))
    write = ost.compile(lambda x, v, i, j: ost.dynamic_update_slice(x, v, (i, j)))
    v = -np.arange(6).reshape(2, 3)
    for i in range(-9, 9):
        for j in (-7, -2, 1, 4):
            first = [min(max(k + n * (k < 0), 0), n - m) for k, n, m in ((i, 4, 2), (j, 5, 3))]
            key = tuple(slice(k, k + m) for k, m in zip(first, (2, 3), strict=True))
            at = ost.asarray(i), ost.asarray(j)
            np.testing.assert_array_equal(np.asarray(read(ost.asarray(x), *at)), x[key])
            np.testing.assert_array_equal(np.asarray(ost.dynamic_slice(x, (i, j), (2, 3))), x[key])
            wanted = changed(x, v, key=key, mode="set")
            np.testing.assert_array_equal(np.asarray(write(ost.asarray(x), v, *at)), wanted)
    both = ost.dynamic_slice(x, ost.asarray([1, 1]), (4, 2))
    np.testing.assert_array_equal(np.asarray(both), x[:, 1:3])
    with pytest.raises(ShapeError, match=r"extents \(5, 5\) for shape \(4, 5\)"):
        ost.dynamic_slice(x, (0, 0), (5, 5))
    with pytest.raises(ost.errors.ArgumentError, match="1 starts and 2 extents"):
        ost.dynamic_slice(x, 0, (1, 1))


@pytest.mark.parametrize("batched", [(0, None, 0), (0, 0, None), (None, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("mode", ["add", "set"])
def test_boxes_of_elements(batched: Any, mode: str) -> None:
    """Under vmap each element has its own, or all have one."""
    x = RNG.normal(size=(3, 6, 4, 5) if batched[0] == 0 else (6, 4, 5))
    i = np.array([4, -6, 0]) if batched[1] == 0 else np.int64(3)
    j = np.array([3, 0, -4]) if batched[2] == 0 else np.int64(1)

    def one(x: Any, i: Any, j: Any) -> Any:
        v = x[i : i + 2, :, j] if isinstance(x, np.ndarray) else ost.asarray(x)[i : i + 2, :, j]
        key = slice(i, i + 2), slice(1, 3), j
        if isinstance(x, np.ndarray):
            return v, changed(x, v[:, 1:3], key=key, mode=mode)
        clipped = ost.dynamic_slice(x, (i + 9, 0, j), (2, 4, 1))
        return v + 0 * clipped.sum(), getattr(x.at[key], mode)(v[:, 1:3])

    found = ost.compile(ost.vmap(one, in_axes=batched))(*map(ost.asarray, (x, i, j)))
    for k in range(3):
        own = [a[k] if b == 0 else a for a, b in zip((x, i, j), batched, strict=True)]
        for y, w in zip(found, one(*own), strict=True):
            np.testing.assert_allclose(np.asarray(y)[k], w, rtol=1e-12)


def test_an_element_outside_under_vmap() -> None:
    f = ost.compile(ost.vmap(lambda i: ost.asarray(X)[i : i + 2]))
    with pytest.raises(BoundsError):
        np.asarray(f(ost.asarray([0, -1])))


def test_roll_by_a_traced_number() -> None:
    ys = ost.compile(
        lambda x, many: ost.scan(
            lambda s, k: (
                s,
                (ost.roll(x, k, axis=1), ost.roll(x, (1, k), (0, -1)), ost.roll(x, -k)),
            ),
            0,
            many,
        )[1]
    )(ost.asarray(X), ost.asarray([0, 3, -7, 11]))
    for n, k in enumerate((0, 3, -7, 11)):
        wanted = np.roll(X, k, 1), np.roll(X, (1, k), (0, -1)), np.roll(X, -k)
        for y, w in zip(ys, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(y[n]), w)


def test_a_numpy_table_at_a_traced_number() -> None:
    with pytest.raises(TracedValueError, match=r"ost.asarray\(B\)\[:, o\]"):
        ost.scan(lambda s, o: (s + X[0][:, o].sum(), None), 0.0, ost.arange(3))
