"""QR of tall matrices on a GPU, on the host: the factors, in one look, and who lacks rank is left to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu import gram_qr
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.linalg.tall_qr import MAX_DEVIATION

from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import WITH_KERNELS
from tests.fake_xp import from_host, to_host

F32 = np.dtype(np.float32)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


@needs_compiler
@pytest.mark.parametrize(("shape", "turned"), [((203, 8), False), ((150, 5), True)])
def test_factors(shape: Any, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are no multiple of parts, and columns that lie side by side."""
    monkeypatch.setattr(gram_qr.ThinQr, "most_parts", 4)
    looks, look = [0], WITH_KERNELS.to_host

    def counted(*given: Any) -> Any:
        looks[0] += 1
        return look(*given)

    monkeypatch.setattr(WITH_KERNELS, "to_host", counted)
    n = shape[1]
    x = np.random.default_rng(1).standard_normal(shape).astype(F32) * np.logspace(
        0, -3, n, dtype=F32
    )
    given = from_host(np.ascontiguousarray(x.T)).T if turned else from_host(x)
    q = from_host(np.zeros_like(x))
    made = WITH_KERNELS.thin_qr(given, q, MAX_DEVIATION)
    assert made is not None
    assert looks == [1]
    assert WITH_KERNELS.times(q, made[0])
    whole, upper = to_host(q).astype("f8"), to_host(made[1])
    np.testing.assert_allclose(whole.T @ whole, np.eye(n), 0, 1e-6)
    np.testing.assert_allclose(whole @ upper, x, 0, 2e-6)
    np.testing.assert_array_equal(np.tril(upper, -1), 0)
    assert (np.diagonal(upper) > 0).all()
    x[:, 3] = x[:, 2]
    given = from_host(np.ascontiguousarray(x.T)).T if turned else from_host(x)
    assert WITH_KERNELS.thin_qr(given, q, MAX_DEVIATION) is None, "it lacks rank"


@needs_compiler
def test_what_is_known_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing more can be known: the oldest goes for one that is new, and for nothing else."""
    made, tall = list[Any](), dict[Any, Any]()

    class Counted(gram_qr.ThinQr):
        most_layouts = 2

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self.columns)

    monkeypatch.setattr(gram_qr, "ThinQr", Counted)
    monkeypatch.setattr(WITH_KERNELS, "tall", tall)
    r = np.random.default_rng(2)
    for n in (3, 4, 3, 4, 3, 5, 4):
        x = from_host(r.standard_normal((40, n)).astype(F32))
        assert WITH_KERNELS.thin_qr(x, None, MAX_DEVIATION) is not None
    assert made == [3, 4, 5]
    assert len(tall) == 2


def test_others_are_left_alone() -> None:
    for dtype, shape in (("f8", (100, 4)), ("f4", (300, 65)), ("f4", (7, 4)), ("c8", (100, 4))):
        x = from_host(np.zeros(shape, dtype))
        assert WITH_KERNELS.thin_qr(x, x, MAX_DEVIATION) is None


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc-cu12")
def test_nvrtc_compiles_the_small_kernel() -> None:
    made = nvrtc.compiled(gram_qr._factor(64, F32, 0.1, 1).text, OPTIONS)
    assert ".local" not in made
