"""What tests share: sessions that are kept, and one call that checks a function's whole contract.

assert_same(lambda x: x.sum(0), lambda x: x.sum(0), np.ones((5, 3)))

runs the function on one worker, on one worker compiled, and on three workers, and a 2 x 2 mesh (in a
thorough run also on two) with its inputs split in every way that makes sense, and compares values, shape and dtype with what
the reference makes of NumPy arrays."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import bfloat16, is_inexact, real_of
from ostinato.ops.core.tree import flatten, unflatten

import ostinato as ost
from ostinato import settings
from tests.sessions import use
from tests.thorough import THOROUGH

counts_traces = pytest.mark.skipif(
    bool(settings.check_stale), reason="it counts traces, and OSTINATO_CHECK_STALE makes more"
)
ON_CPU = (
    settings.device == "cpu"
)  # else plans, kernels and memory are not those that some tests know
Split = int | tuple[int | None, ...] | None

MESHES: tuple[tuple[tuple[int, ...], int], ...] = (
    (((2,), 2), ((3,), 5), ((2, 2), 4)) if THOROUGH else (((3,), 3), ((2, 2), 2))
)
TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def one_of(tries: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of what a clock says, which others who have the machine disturb: that one try in so many holds."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for _ in range(tries - 1):
                with contextlib.suppress(AssertionError):
                    return test(*args, **kwargs)
            return test(*args, **kwargs)

        return run

    return decorate


@contextlib.contextmanager
def on(workers: int = 1, mesh: tuple[int, ...] | None = None, **options: Any) -> Iterator[Any]:
    """Within it, a session with these workers is in use."""
    with use(mesh or (workers,), **options) as session:
        yield session


def splits_of(x: Any, mesh: tuple[int, ...]) -> list[Split]:
    """The ways to split one input: along each axis, and not at all."""
    axes = range(np.ndim(x))
    if len(mesh) == 1:
        return [*axes, None]
    pairs = [(a, b) for a in axes for b in axes]
    return [*pairs, *((a, None) for a in axes), *((None, a) for a in axes), None]


def ways(inputs: Sequence[Any], mesh: tuple[int, ...], most: int) -> list[tuple[Split, ...]]:
    """Ways to split all inputs: all of them if they are few, else the plainest and some others."""
    each = [splits_of(x, mesh) for x in inputs]
    every = list(itertools.product(*each))
    if len(every) <= most:
        return every
    plain = [tuple(e[0] for e in each), tuple(e[-2] if len(e) > 1 else None for e in each)]
    rest = [w for w in every if w not in plain]
    return list(dict.fromkeys(plain)) + random.Random(len(every)).sample(rest, most - len(plain))


def compare(got: Any, wanted: Any, where: str, rtol: float | None, atol: float | None) -> None:
    """One result: an Array of the right shape and dtype, with the right values."""
    wanted = np.asarray(wanted)
    assert isinstance(got, ost.Array), f"{where}: got {type(got).__name__}, needed an Array"
    value = np.asarray(got)
    for what, found, needed in (
        ("shape", got.shape, wanted.shape),
        ("shape of the values", value.shape, wanted.shape),
        ("dtype", got.dtype, wanted.dtype),
        ("dtype of the values", value.dtype, wanted.dtype),
    ):
        assert found == needed, f"{where}: {what}: got {found}, needed {needed}"
    if not is_inexact(wanted.dtype):
        np.testing.assert_array_equal(value, wanted, err_msg=where)
        return
    if wanted.dtype == bfloat16:
        value, wanted = value.astype(np.float32), wanted.astype(np.float32)
        rtol = TOLERANCE["bfloat16"] if rtol is None else rtol
    rtol = TOLERANCE[real_of(wanted.dtype).name] if rtol is None else rtol
    if atol is None:
        atol = rtol if rtol > 1e-3 else rtol / 100
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(value, wanted, rtol=rtol, atol=atol, err_msg=where)


def compare_all(
    got: Any, wanted: Any, where: str, rtol: float | None = None, atol: float | None = None
) -> None:
    """Results in lists, tuples and dicts, one by one."""
    found, structure = flatten(got)
    needed, plan = flatten(wanted)
    assert structure == plan or len(found) == len(needed), (
        f"{where}: got results {structure}, needed {plan}"
    )
    for k, (x, y) in enumerate(zip(found, needed, strict=True)):
        compare(x, y, f"{where}, result {k}" if len(needed) > 1 else where, rtol, atol)


def assert_same(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *inputs: Any,
    rtol: float | None = None,
    atol: float | None = None,
    few: bool = False,
    numerics: str = "same-plan",
    meshes: Sequence[tuple[tuple[int, ...], int]] = MESHES,
) -> None:
    """The function of Arrays gives what the reference gives of NumPy arrays, however it is run.
    `few`: in fewer layouts, for functions that are slow. `meshes`: of several workers, and how many
    layouts on each."""
    given = [np.asarray(x) for x in inputs]
    with np.errstate(all="ignore"):
        wanted = reference(*(x.copy() for x in given))
    before = [x.tobytes() for x in given]

    def check(run: Callable[..., Any], splits: Sequence[Split], where: str) -> None:
        arrays = [ost.asarray(x, split=s) for x, s in zip(given, splits, strict=True)]
        compare_all(run(*arrays), wanted, where, rtol, atol)
        after = [np.asarray(x).tobytes() for x in arrays]
        assert after == before, f"{where}: the function changed its input"

    whole = (None,) * len(given)
    compiled = ost.compile(lambda *arrays: function(*arrays))  # its defaults are no arguments
    with on(1, numerics=numerics):
        check(function, whole, "lazily")
        check(compiled, whole, "compiled")
        check(compiled, whole, "compiled, called again")
    # whose first layout is compiled, too
    turn = len(before[0]) % max(len(meshes), 1) if before else 0
    for n, (mesh, most) in enumerate(meshes):
        with on(mesh=mesh, numerics=numerics):
            for k, splits in enumerate(ways(given, mesh, 2 if few else most)):
                where = f"mesh {mesh}, split {splits}"
                check(function, splits, where)
                if not k and (THOROUGH or n == turn):
                    check(compiled, splits, f"{where}, compiled")
            if not given:  # nothing to split but what comes out
                _in_parts(function, wanted, mesh, rtol, atol)


def _in_parts(
    function: Callable[..., Any],
    wanted: Any,
    mesh: tuple[int, ...],
    rtol: float | None,
    atol: float | None,
) -> None:
    """Results made in parts, since they are asked for in parts."""
    for axis in range(max((np.ndim(y) for y in flatten(wanted)[0]), default=0)):
        leaves, structure = flatten(function())
        parts = [y.resplit(axis if axis < y.ndim else None) for y in leaves]
        where = f"mesh {mesh}, results split {axis}"
        compare_all(unflatten(structure, parts), wanted, where, rtol, atol)
