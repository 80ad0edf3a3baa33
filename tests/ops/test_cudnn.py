"""Convolutions by cuDNN, on a fake of it that checks what it is told, against those of a CPU; and the fake's names
against the real bindings'."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.spec import Spec
from ostinato.ops.gpu.convolutions import PLANS, TRANSFORMS
from ostinato.ops.gpu.libraries import cudnn

import ostinato as ost
from tests import fake_cudnn
from tests.fake_device import CONVOLVING, DNN, KERNELS, WITH_CUDNN

from .test_convolution import some_conv


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    DNN.done.clear()
    DNN.plans.clear()
    yield
    DNN.refused.clear()
    library = WITH_CUDNN.convolving
    assert isinstance(library, cudnn.Convolver)
    library.known.clear()
    library.refused.clear()


def both(f: Any, *arrays: Any, **how: Any) -> tuple[list[Any], list[Any]]:
    """Values and slopes, of the device and of a CPU; three runs, of which the second is captured."""

    def all_of(*xs: Any) -> Any:
        y, back = ost.vjp(f, *xs)
        return y, *back(ost.cos(y))

    wanted = [np.asarray(v, np.float64) for v in ost.compile(all_of)(*map(ost.asarray, arrays))]
    with ost.connect(1, device=CONVOLVING):
        step = ost.compile(all_of, **how)
        for _ in range(3):
            made = step(*map(ost.asarray, arrays))
        return [np.asarray(v, np.float64) for v in made], wanted


def close(found: list[Any], wanted: list[Any], near: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=near, atol=near * np.abs(other).max())


@pytest.mark.parametrize("seed", range(9))
def test_values_and_slopes(seed: int) -> None:
    x, w, p, pads = some_conv(random.Random(seed), seed % 3 + 1)
    given = [v.astype(np.float32) for v in (x, w)]
    close(*both(lambda x, w: ost.nn.conv(x, w, padding=pads, **p), *given), 3e-5)
    assert DNN.done["forward"]
    # never what sums in another order each time, reads less, or needs more memory
    assert {*DNN.plans} == {3}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 4])
def test_each_is_the_librarys(layout: str, groups: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 8, 9, 10)).astype(np.float32)
    w = rng.standard_normal((12, 8 // groups, 3, 3)).astype(np.float32)
    if layout == "NHWC":
        x, w = x.transpose(0, 2, 3, 1).copy(), w.transpose(2, 3, 1, 0).copy()
    how: Any = {"padding": 1, "stride": 2, "groups": groups, "layout": layout}
    close(*both(lambda x, w: ost.nn.conv(x, w, **how), x, w), 3e-5)
    assert DNN.done["forward"] == DNN.done["data"] == DNN.done["weights"] > 0


def test_transposed() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 6, 5, 4)).astype(np.float32)
    w = rng.standard_normal((6, 5, 3, 3)).astype(np.float32)
    close(*both(lambda x, w: ost.nn.conv_transpose(x, w, stride=2, padding=1), x, w), 3e-5)
    assert DNN.done["data"]


@pytest.mark.parametrize("precision", ["mixed_bf16", "mixed_tf32"])
def test_policies(precision: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 8, 7, 6)).astype(np.float32)
    w = rng.standard_normal((5, 8, 3, 3)).astype(np.float32)
    found = both(lambda x, w: ost.nn.conv(x, w, padding=1), x, w, precision=precision)
    close(*found, 3e-2)
    assert {*DNN.plans} == {0}  # on tensor cores
    assert DNN.done["forward"] == DNN.done["weights"] > 0


def test_what_it_refuses_is_a_product_of_windows() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 16, 12, 12)).astype(np.float32)
    w = rng.standard_normal((24, 16, 3, 3)).astype(np.float32)
    f = lambda x, w: ost.nn.conv(x, w, padding=1)  # noqa: E731
    DNN.refused |= {"forward", "data", "weights"}
    close(*both(f, x, w), 3e-5)
    assert not DNN.plans
    plan = ost.plan(
        f, ost.spec(x.shape, "float32"), ost.spec(w.shape, "float32"), device=CONVOLVING
    )
    assert "matmul" in [n.op for n in plan.program.graph.nodes]
    assert "no such graph" in plan.explain()


def test_without_it_explain_says_why() -> None:
    x, w = ost.spec((2, 6, 5, 5), "float32"), ost.spec((6, 1, 3, 3), "float32")
    plan = ost.plan(lambda x, w: ost.nn.conv(x, w, groups=6), x, w, device=KERNELS)
    assert "conv" in [n.op for n in plan.program.graph.nodes]
    assert "nvidia-cudnn-frontend is not installed" in plan.explain()


@pytest.mark.parametrize("way", [0, 1, 2])
def test_ways_are_the_next_plans(way: int) -> None:
    library = WITH_CUDNN.convolving
    assert isinstance(library, cudnn.Convolver)
    lies: Any = ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 3, 3))
    asked = cudnn.Convolution("forward", *lies, *[(0, 0)] * 2, *[(1, 1)] * 2, "float32", "float32")
    made = library.prepared(asked, 1 << 20, way)
    assert made is not None
    assert made.plan == [3, 5, 5][way]
    assert len(PLANS) > way


@pytest.mark.parametrize("way", [0, 1])
def test_transforms_are_for_who_chooses_by_time(way: int) -> None:
    """As on a CPU: only under `fast`, which times them."""
    library = WITH_CUDNN.convolving
    assert isinstance(library, cudnn.Convolver)
    lies: Any = ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 3, 3))
    same: Any = ((0, 0),) * 2 + ((1, 1),) * 2 + ("float32", "float32")
    made = library.prepared(
        cudnn.Convolution("forward", *lies, *same, transforms=True), 1 << 20, way
    )
    assert made is not None
    assert made.plan == [3, 4][way]  # the second one is Winograd's
    (images, filters), p, out = (
        [Spec(n, np.dtype("f4")) for n in lies[:2]],
        {},
        [Spec(lies[2], np.dtype("f4"))],
    )
    found = [way for (way,) in WITH_CUDNN._convolution_ways([images, filters], out, p, 1)]
    assert found == [*PLANS, *TRANSFORMS]
    halves = [Spec(n, np.dtype("f2")) for n in lies]
    assert len(WITH_CUDNN._convolution_ways(halves[:2], halves[2:], p, 1)) == len(PLANS)


def test_names_are_the_bindings() -> None:
    real = pytest.importorskip("cudnn")
    for name in ("create_handle", "destroy_handle", "set_stream", "backend_version"):
        assert hasattr(real, name)
    for fake, enum in ((fake_cudnn.Kind, "data_type"), (fake_cudnn.Heuristic, "heur_mode"),
                       (fake_cudnn.Note, "numerical_note")):  # fmt: skip
        assert all(hasattr(getattr(real, enum), member.name) for member in fake)
    own = [name for name in vars(fake_cudnn.FakeGraph) if not name.startswith("_")]
    assert all(hasattr(real.pygraph, name) for name in own)
