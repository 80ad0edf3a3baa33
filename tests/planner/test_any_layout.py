"""Random programs in random layouts on random meshes give what NumPy gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ostinato.ops.core.array import Array, from_operand

import ostinato as ost
from ostinato.sessions import current
from tests.programs import Program, make_program
from tests.sessions import JOB, MESHES, use
from tests.thorough import few

RELAXED = settings(
    max_examples=few(180 if JOB == 1 else 120),  # jobs of three sizes run them
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)


def splits_for(r: random.Random, ndim: int, mesh: tuple[int, ...]) -> tuple[int | None, ...]:
    return tuple(r.choice((None, *range(ndim))) for _ in mesh)


def overlapping(r: random.Random, x: np.ndarray, mesh: tuple[int, ...]) -> Array:
    """An array whose parts have some of their neighbours' places as well."""
    halos = {d: r.randrange(4) for d in range(x.ndim)}
    return from_operand(current().put(x, splits_for(r, x.ndim, mesh), halos))


def run_and_compare(
    r: random.Random,
    program: Program,
    mesh: tuple[int, ...],
    numerics: str = "same-plan",
    device: str = "cpu",
    overlaps: bool = False,
) -> None:
    """One program, placed at random, run lazily or compiled."""
    expected = program.by_numpy()
    with use(mesh, numerics, device=device):
        inputs = [
            overlapping(r, x, mesh)
            if overlaps
            else ost.asarray(x, split=splits_for(r, x.ndim, mesh))
            for x in program.inputs
        ]
        compiled = r.random() < 0.5
        run = ost.compile(program.by_ostinato) if compiled else program.by_ostinato
        found = run(*inputs)
        if not compiled:
            ost.evaluate(found)
        for k, (y, z) in enumerate(zip(found, expected, strict=True)):
            assert y.shape == z.shape, (k, y.shape, z.shape)
            assert y.dtype == z.dtype, (k, y.dtype, z.dtype)
            np.testing.assert_allclose(
                np.asarray(y), z, rtol=1e-8, atol=1e-8, err_msg=f"output {k}"
            )


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
def test_random_programs(r: random.Random, mesh: tuple[int, ...]) -> None:
    program = make_program(r)
    run_and_compare(r, program, mesh)


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from(MESHES))
def test_random_programs_any_workers(r: random.Random, mesh: tuple[int, ...]) -> None:
    program = make_program(r, 6)
    run_and_compare(r, program, mesh, "any-workers")


@RELAXED
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(MESHES),
    st.sampled_from(("same-plan", "any-workers")),
)
def test_random_programs_of_parts_that_overlap(
    r: random.Random, mesh: tuple[int, ...], numerics: str
) -> None:
    program = make_program(r)
    run_and_compare(r, program, mesh, numerics, overlaps=True)


@RELAXED
@given(st.randoms(use_true_random=False), st.sampled_from((4, 6) if JOB == 1 else (JOB,)))
def test_random_relayouts_any_mesh_to_any_mesh(r: random.Random, workers: int) -> None:
    meshes = [(a, workers // a) for a in range(1, workers + 1) if workers % a == 0]
    meshes += [(workers,)]
    shape = tuple(r.choice((0, 1, 2, 3, 5, 6, 7)) for _ in range(r.randint(0, 3)))
    x = np.random.default_rng(r.getrandbits(32)).normal(size=shape)
    with use((workers,)):
        y = ost.asarray(x)
        for _ in range(3):
            mesh = r.choice(meshes)
            y = y.resplit(splits_for(r, len(shape), mesh), mesh=mesh)
            if r.random() < 0.5:
                assert y.layout.mesh == mesh
        np.testing.assert_array_equal(np.asarray(y), x)


@pytest.mark.parametrize("mesh", MESHES)
def test_more_workers_than_rows(mesh: tuple[int, ...]) -> None:
    with use(mesh):
        for n in (0, 1, 2):
            x = np.arange(3.0 * n).reshape(n, 3)
            y = ost.asarray(x, split=0)
            np.testing.assert_allclose(np.asarray((y * 2).sum(0)), (x * 2).sum(0))
            np.testing.assert_allclose(np.asarray(y.T @ y), x.T @ x)
