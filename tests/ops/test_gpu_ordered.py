"""Products whose terms are added in order, by kernels of a GPU that the host runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.gpu.loops.ordered import TYPES, ordered_kernel
from ostinato.ops.gpu.loops.text import OPTIONS
from ostinato.ops.jit.stacks import stacked

import ostinato as ost
from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import FAKE, KERNELS, WITH_KERNELS
from tests.fake_xp import counted, from_host, to_host
from tests.sessions import JOB
from tests.thorough import few

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]


def in_order(a: Any, b: Any, out: Any) -> Any:
    out[...] = 0
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return out


def lying(r: random.Random, rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Turned, with steps, or a row for all of a stack."""
    step, turned = r.choice((1, 1, 2)), r.random() < 0.4
    *stack, m, n = shape
    made = rng.integers(
        -(1 << 31), 1 << 31, (*stack, n, m * step) if turned else (*stack, m, n * step)
    )
    made = (made / 7e8 if dtype[0] == "f" else made).astype(dtype)
    made = from_host(made)[..., ::step]
    return made.swapaxes(-1, -2) if turned else made


@pytest.mark.parametrize("seed", range(few(60)))
def test_random_products(seed: int) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    dtype = r.choice([*TYPES])
    m, k, n = (r.choice((0, 1, 2, 7, 40)) if d == 1 else r.choice((1, 2, 9, 40)) for d in range(3))
    stack = tuple(r.randint(1, 3) for _ in range(r.randint(0, 2)))
    alone = stack if r.random() < 0.7 else ()
    a, b = lying(r, rng, (*stack, m, k), dtype), lying(r, rng, (*alone, k, n), dtype)
    out = lying(r, rng, (*stack, m, n), dtype)
    found = WITH_KERNELS.ordered_product(a, b, out)
    if found is None:
        assert not out.size
        return
    found(a, b, out)
    with np.errstate(all="ignore"):
        wanted = in_order(to_host(a), to_host(b), np.empty(out.shape, dtype))
    np.testing.assert_array_equal(to_host(out), wanted)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sum_of_many_terms_is_few_launches(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of a CPU."""
    monkeypatch.setattr(FAKE, "has_own_kernels", True)  # of which arrays of fakes say that they are
    x, y = np.random.default_rng(0).normal(size=(2, 3000, 16))
    made = []
    for device in ("cpu", KERNELS):
        with ost.connect(workers, device=device, numerics="any-workers"):
            f = ost.compile(lambda x, y: x.T @ y)
            given = ost.asarray(x, split=0), ost.asarray(y, split=0)
            f(*given)
            before = counted.launches
            made.append(np.asarray(f(*given)).tobytes())
            assert counted.launches - before < 200
    assert made[0] == made[1]


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC's wheel")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_kernels_compile(dtype: str) -> None:
    """Products are rounded before they are added."""
    x = np.ones((2, 3, 4, 4), dtype)
    found = stacked(x, x[0, 0], x)
    assert found is not None
    text = nvrtc.compiled(ordered_kernel(*found).text, OPTIONS)
    assert "fma." not in text
