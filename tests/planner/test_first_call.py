"""What is not done again: a second process runs no pass for a program that the cache has, and writes no
kernel's text; equal layers have one. Counted, not timed."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core import disk_cache
from ostinato.ops.core.tree import flatten
from ostinato.ops.cpu import cpu_device as device
from ostinato.ops.cpu import fused
from ostinato.ops.cpu.jit import kept_text
from ostinato.ops.cpu.loops import flat, nest_kernels, squares
from ostinato.planner import cache, file
from ostinato.planner.plan import Plan

import ostinato as ost
from ostinato import nn, settings
from tests.programs import make_program


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache", tmp_path)
    return tmp_path


def net(x: Any, w: Any, v: Any) -> Any:
    def loss(w: Any) -> Any:
        y = nn.relu(nn.conv(x, w, padding=1))
        return ((y - y.mean((0, 2, 3), keepdims=True)) ** 2).mean() + (y @ v).sum()

    return ost.value_and_grad(loss)(w)


def draws(x: Any) -> Any:
    return ost.sort(x + ost.random.normal(x.shape), 0), ost.concatenate([x, x.T]) * 2


def loops(x: Any) -> Any:
    y, ys = ost.scan(lambda c, row: (c * 0.5 + row, ost.cumsum(c)), x[0], x)
    z = ost.while_loop(lambda c: c.sum() < 1e3, lambda c: c @ c.T + 1, ost.exp(-x))
    return y, ys, ost.cond(x[0, 0] > 0, lambda a: a @ a, lambda a: a - 1, z)


def ones(*shape: int) -> Any:
    return np.linspace(0.1, 0.5, int(np.prod(shape))).reshape(shape)


PROGRAMS = [
    (net, ones(4, 4, 32, 32), ones(16, 4, 3, 3), ones(32, 5)),
    (draws, ones(200, 200)),
    (loops, ones(6, 6)),
]


def plan_of(function: Any, arrays: Any, split: Any = None) -> tuple[Plan, str, list[Any]]:
    f = ost.compile(function)
    made = f(*[ost.asarray(x, split=split) for x in arrays])
    return f.plan, f.misses[-1].source, [np.asarray(x) for x in flatten(made)[0]]


def lowers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("a pass ran")

    monkeypatch.setattr(file, "program_of", never)
    monkeypatch.setattr(file, "done_so", never)


def test_a_program_from_the_cache_is_the_one_that_was_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the places of all values, of random programs and of loops and networks, on workers, too."""
    made = {}
    cases: list[tuple[Any, Any, int, Any]] = [(f, xs, 1, None) for f, *xs in PROGRAMS]
    for seed in range(12):
        program = make_program(random.Random(seed), 4 + seed % 9)
        split = 0 if seed % 3 and all(x.ndim for x in program.inputs) else None
        cases.append((program.by_ostinato, program.inputs, 1 + seed % 2, split))
    for again in (False, True):
        for k, (function, arrays, workers, split) in enumerate(cases):
            with ost.connect(mesh=(workers,)):
                ost.random.seed(k)
                plan, source, results = plan_of(function, arrays, split)
            before = made.setdefault(k, (plan, results))
            if again:
                assert source == "disk"
                assert plan.program == before[0].program
                assert plan == before[0]
                for a, b in zip(results, before[1], strict=True):
                    np.testing.assert_array_equal(a, b)
        lowers_no_more(monkeypatch)


@pytest.mark.parametrize("what", ["processor_in_words", "most_threads", "describe_library"])
def test_on_another_machine_its_passes_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with ost.connect():
        plan, _, results = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])
    ran = []
    made = file.program_of
    monkeypatch.setattr(file, "program_of", lambda *args: ran.append(1) or made(*args))
    monkeypatch.setattr(device, what, lambda: "another")
    with ost.connect():
        again, source, found = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])
    assert ran
    assert source == "disk"
    assert again.lowered == plan.lowered
    np.testing.assert_array_equal(found[0], results[0])


def test_no_library_is_loaded_where_nothing_is_multiplied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ostinato.planner.cpu import prepack

    def never() -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(device, "describe_library", never)
    monkeypatch.setattr(prepack, "library", never)
    for source in ("made", "disk"):
        with ost.connect():
            assert plan_of(lambda x: ost.exp(x).sum(0) * 2, [ones(30, 40)])[1] == source


# -- texts ---------------------------------------------------------------------------------
KEPT = (fused._told, fused._in_order, flat._code, flat._told)


def forget() -> None:
    """As another process begins."""
    for function in KEPT:
        function.cache_clear()  # type: ignore[attr-defined]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is analysed and written, by name."""
    forget()
    monkeypatch.setattr(settings, "tune", "off")  # each way that is timed is a kernel
    made: list[str] = []

    def counted(module: Any, name: str) -> None:
        before = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (made.append(name), before(*a, **k))[1])

    for name in ("analyse", "analyse_in_order"):
        counted(fused, name)
    counted(nest_kernels, "nest_text")
    counted(flat, "element")
    yield made
    forget()


def test_texts_are_written_once(folder: Path, texts: list[str]) -> None:
    results = []
    for again in (False, True):
        with ost.connect():
            ost.random.seed(1)
            results.append([plan_of(f, xs)[2] for f, *xs in PROGRAMS])
        assert bool(texts) != again
        texts.clear()
        forget()
    for one, other in zip(*results, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("what", ["damage", "code", "processor", "no folder"])
def test_texts_of_others_are_not_read(
    folder: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with ost.connect():
        results = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])[2]
    count = len(texts)
    forget()
    disk = disk_cache.open_cache(folder)
    for path in (folder / "texts").iterdir():
        if what == "damage":
            disk.write(f"texts/{path.name}", b"no text")
    if what == "code":
        monkeypatch.setattr(kept_text, "digest_of_operations", lambda: "another")
    if what == "processor":
        monkeypatch.setattr(kept_text.llvm, "processor_in_words", lambda: "another")
    if what == "no folder":
        monkeypatch.setattr(settings, "cache", None)
    with ost.connect():
        again = plan_of(PROGRAMS[0][0], PROGRAMS[0][1:])[2]
    assert len(texts) >= 1.5 * count
    np.testing.assert_array_equal(again[0], results[0])


def test_equal_layers_have_one_text(texts: list[str]) -> None:
    """However deep a network is: the names of its weights are no part of what kernels compute."""

    def deep(x: Any, scales: Any) -> Any:
        for s in scales:
            x = x @ x.T
            x = (x - x.mean(0)) / ost.sqrt(x.var(0) + 1) * s
            x = ost.tanh(x) + ost.exp(-(x * x))
        return x

    counts = []
    for layers in (3, 9):
        forget()
        texts.clear()
        with ost.connect():
            given = [np.full((1, 64), 1.0 + k) for k in range(layers)]
            ost.compile(deep)(ones(64, 64), given)
        counts.append([texts.count(name) for name in dict.fromkeys(texts)])
    assert counts[0] == counts[1] != []


# -- squares -------------------------------------------------------------------------------
@pytest.mark.parametrize("item", [4, 8, 16])
@pytest.mark.parametrize("source", ["rows", "lanes"])
def test_squares_are_transposed_and_nothing_beside_them_is_touched(source: str, item: int) -> None:
    """For all numbers of rows and widths."""
    many, kind = squares.BYTES // item, {4: "i4", 8: "i8", 16: "c16"}[item]
    r = np.random.default_rng(1)
    number, where = ctypes.c_int64, ctypes.c_void_p
    for rows, width, known in itertools.product(
        (1, many - 1, many), (1, many - 1, many), (False, True)
    ):
        wanted = str(width) if known else "part"
        code = squares.linked(squares._text(squares.Square(source, item, wanted)))
        run = code.function(None, where, number, where, number, *[number] * 4)
        outside, inside = r.integers(1, 99, (rows, many + 3)).astype(kind), aligned(many, 2, kind)
        inside[...] = r.integers(1, 99, inside.shape)
        before = outside.copy(), inside.copy()
        out_in = (outside.ctypes.data, outside.strides[0], inside.ctypes.data, inside.strides[0])
        ends = out_in if source == "rows" else (*out_in[2:], *out_in[:2])
        run(*ends, rows - 1, width, 0, 1)
        expected = [x.copy() for x in before]
        if source == "rows":
            last = before[0][[min(k, rows - 1) for k in range(many)], :width]
            expected[1][:width, :many] = last.T
        else:
            expected[0][:, :width] = before[1][:width, :rows].T
        np.testing.assert_array_equal(outside, expected[0])
        np.testing.assert_array_equal(inside, expected[1])


def aligned(many: int, times: int, kind: str) -> np.ndarray:
    """Rows of vectors, each on a line of the cache."""
    raw = np.empty(squares.BYTES * (many * times + 1), np.uint8)
    skip = -raw.ctypes.data % squares.BYTES
    return raw[skip : skip + squares.BYTES * many * times].view(kind).reshape(many, -1)


def test_no_kernel_has_squares_of_its_own(
    monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    found: list[str] = []
    before = nest_kernels.nest_text
    monkeypatch.setattr(
        nest_kernels, "nest_text", lambda *a: (found.append(before(*a)), found[-1])[1]
    )
    r = np.random.default_rng(2)
    with ost.connect():
        for shape, split in (((5000, 16), 8), ((5003, 3), 8), ((4007, 10), 5)):
            x = r.normal(size=shape)
            centres = x[:split]
            made = ost.compile(partial(sums, ost))(x, centres)
            for a, b in zip(made, sums(np, x, centres), strict=True):
                np.testing.assert_allclose(np.asarray(a), b, rtol=1e-9)
    assert any("@square_rows_8_" in text for text in found)
    assert any("@square_lanes_8_" in text for text in found)
    assert not any("shufflevector" in text for text in found)


def sums(xp: Any, x: Any, centres: Any) -> Any:
    """Of the rows that are nearest to each centre, and distances."""
    far = ((x[:, None, :] - centres[None]) ** 2).sum(2)
    nearest = far.argmin(1)[:, None] == xp.arange(len(centres))[None]
    return nearest.astype(x.dtype).T @ x, far


def test_without_a_cache_nobody_asks_for_the_version_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never() -> str:
        raise AssertionError("all modules are read")

    monkeypatch.setattr(settings, "cache", None)
    monkeypatch.setattr(cache, "code_version", never)
    with ost.connect():
        assert plan_of(lambda x: x * 2 + 1, [ones(5)])[1] == "made"
