"""What a short product reads on a GPU is made as it is read: which is, and values against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.loops import tiles
from ostinato.planner.gpu import take_operands as module
from ostinato.planner.prediction import runs

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS


def any_tiling(*given: Any) -> Any:
    best = tiles.fastest(*given)
    return best[1] if best is not None else None


def kernels(plan: Any) -> list[str]:
    graph = plan.program.graph
    return [node.op for k, node in enumerate(graph.nodes) if runs(plan.program, k)]


def planned(function: Any, *shapes: Any, **how: Any) -> list[str]:
    given = [ost.spec(s, "float32") for s in shapes]
    return kernels(ost.plan(function, *given, device=KERNELS, **{"machine": "h100", **how}))


def covariance(x: Any) -> Any:
    away = x - ost.mean(x, 0)
    return away.T @ away / x.shape[0]


def test_a_covariance_writes_no_differences() -> None:
    assert planned(covariance, (1_000_000, 16)).count("fused_tiles") == 1
    assert len(planned(covariance, (1_000_000, 16))) == 3


def test_a_card_whose_library_is_as_fast_reads_what_is_written() -> None:
    def layer(x: Any, m: Any, w: Any) -> Any:
        return (x - m) @ w

    shapes = (2000, 784), (784,), (784, 16)
    found = [
        planned(layer, *shapes, machine=card).count("fused_tiles") for card in ("h100", "a100")
    ]
    assert found == [1, 0]


def test_what_others_read_is_an_array() -> None:
    def both(x: Any) -> Any:
        away = x - ost.mean(x, 0)
        return away.T @ away, away

    assert "fused_tiles" not in planned(both, (1_000_000, 16))
    assert "fused_tiles" not in planned(covariance, (1_000_000, 16), numerics="any-workers")
    assert "fused_tiles" not in planned(lambda x, y: (x * y).T @ x, *[(1_000_000, 16)] * 2)


CASES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "both are one": (lambda x, m: (x - m).T @ (x - m), [(90, 6), (6,)]),
    "left, by rows": (lambda x, m, y: (x * m) @ y, [(70, 9), (70, 1), (9, 5)]),
    "right, of bools": (lambda x, m, y: y @ ost.where(x > 0, m, 0.5), [(9, 70), (70,), (5, 9)]),
    "a number": (lambda x, y: (2 * x + 1) @ y, [(70, 9), (9, 5)]),
    "a stack": (lambda x, m, y: (x - m) @ y, [(7, 20, 9), (7, 1, 9), (7, 9, 5)]),
    "lies across": (lambda x, m, y: (x - m).T @ y, [(40, 9), (1, 9), (40, 5)]),
    "made of two": (lambda x, m, s, y: ((x - m) / s).T @ y, [(40, 9), (9,), (40, 1), (40, 7)]),
}


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "tiling_of", any_tiling)
    function, shapes = CASES[name]
    rng = np.random.default_rng(len(name))
    given = [(rng.standard_normal(s) + 2).astype("f4") for s in shapes]
    wanted = np.asarray(function(*(ost.asarray(x.astype("f8")) for x in given)))
    with ost.connect(device=KERNELS):
        f = ost.compile(function)
        got = [np.asarray(f(*given)) for _ in range(2)]
    assert "fused_tiles" in kernels(f.plan)
    np.testing.assert_allclose(got[0], wanted, 2e-5, 2e-3)
    np.testing.assert_array_equal(got[0], got[1])


def test_a_device_without_kernels_goes_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fake_device import WITH_KERNELS

    monkeypatch.setattr(module, "tiling_of", any_tiling)
    monkeypatch.setattr(WITH_KERNELS, "has_own_kernels", False)
    function, shapes = CASES["both are one"]
    given = [np.random.default_rng(1).standard_normal(s).astype("f4") for s in shapes]
    with ost.connect(device=KERNELS):
        got = np.asarray(ost.compile(function)(*given))
    away = given[0] - given[1]
    np.testing.assert_allclose(got, away.T @ away, 1e-4, 1e-4)


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_nvrtc_compiles_a_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    from ostinato.ops.core.spec import strided_like
    from ostinato.ops.gpu.loops.text import OPTIONS
    from ostinato.ops.gpu.operands import with_operands
    from ostinato.ops.gpu.products import Launching

    plan = ost.plan(
        covariance, ost.spec((1_000_000, 16), "float32"), machine="h100", device=KERNELS
    )
    graph = plan.program.graph
    (node,) = (n for n in graph.nodes if n.op == "fused_tiles")
    specs = [*(graph.specs[v] for v in node.inputs), *node.specs]
    across = specs[0].shape
    like = [strided_like(s.shape, s.dtype) for s in specs]
    like[0] = strided_like(across, specs[0].dtype, (across[1] * across[2] * 4, 4, across[1] * 4))
    seen: list[Any] = []

    def keep(kernel: Any) -> Any:
        seen.append(kernel)
        return lambda *_: None

    assert with_operands(Launching(keep, tiles.H100), like, node.kw["body"]) is not None
    made = nvrtc.compiled(seen[0].text, OPTIONS)
    assert ".local" not in made
    assert "ld.global.v4" in made.replace(".nc", "")
