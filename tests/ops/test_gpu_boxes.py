"""Boxes that begin where numbers on a GPU say, by kernels that the host runs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.apply import apply
from ostinato.ops.core.spec import strided_like
from ostinato.ops.gpu.loops import box_moves
from ostinato.ops.gpu.loops.text import OPTIONS

import ostinato as ost
from ostinato.errors import BoundsError
from tests import nvrtc
from tests.cuda_host import COMPILER
from tests.fake_device import KERNELS
from tests.fake_xp import counted
from tests.sessions import JOB
from tests.thorough import few

pytestmark = [
    pytest.mark.skipif(JOB > 1, reason="workers of such a device are threads"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]
NUMPY = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("seed", range(few(72)))
def test_random_boxes(seed: int) -> None:
    """Read and written, of turned arrays too; some axes begin at places that are known."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    shape = tuple(r.randint(1, 9) for _ in range(r.randint(1, 3)))
    x = rng.integers(0, 9, shape).astype(r.choice(("f4", "f8", "i4", "u1", "c8", "f2")))
    sizes = tuple(r.randint(1, n) for n in shape)
    turned, mode = seed % 3 == 0, "set" if x.dtype.kind == "c" else r.choice(("set", *NUMPY))
    axes = tuple(d for d in range(x.ndim) if r.random() < 0.8) or (0,)
    begins = [r.randint(-shape[d] - 2, shape[d] + 2) for d in axes]
    at, known = [r.randint(0, n - m) for n, m in zip(shape, sizes, strict=True)], [0] * x.ndim
    for d, i in zip(axes, begins, strict=True):
        at[d] = max(0, min(i + shape[d] if i < 0 else i, shape[d] - sizes[d]))
    known = tuple(0 if d in axes else b for d, b in enumerate(at))
    key = tuple(slice(b, b + m) for b, m in zip(at, sizes, strict=True))
    v = rng.integers(0, 9, sizes).astype(x.dtype)
    read, wrote = (
        x[tuple(slice(None) if d not in axes else key[d] for d in range(x.ndim))],
        x.copy(),
    )
    wrote[key] = v if mode == "set" else NUMPY[mode](x[key], v)

    def both(x: Any, v: Any, *i: Any) -> Any:
        x = x.T if turned else x
        facts = {"axes": axes, "bounds": ("clip",) * len(axes)}
        found = apply("dynamic_slice", x, *i, sizes=tuple(sizes[d] for d in axes), **facts)
        made = apply("dynamic_update_slice", x, v, *i, starts=known, mode=mode, **facts)
        return found, made

    with ost.connect(device=KERNELS):
        f = ost.compile(both)
        for _ in range(3):
            places = [ost.asarray(i) for i in begins]
            found, made = f(ost.asarray(x.T.copy() if turned else x), ost.asarray(v), *places)
        np.testing.assert_array_equal(np.asarray(found), read)
        np.testing.assert_array_equal(np.asarray(made), wrote)


@pytest.mark.parametrize("device", ["fake", KERNELS])
@pytest.mark.parametrize("seed", range(few(24)))
def test_what_is_outside_is_told_as_on_cpus(seed: int, device: str) -> None:
    """Of numbers and of slices, read and written, on either side: one sentence."""
    r = random.Random(seed)
    n, write = r.randint(2, 9), r.random() < 0.5
    extent = r.choice((0, r.randint(1, n - 1)))
    last = n - extent if extent else n - 1
    low = -n - 1 if not extent else r.choice((-n - r.randint(1, 3), -r.randint(1, extent)))
    place = low if r.random() < 0.5 else last + r.randint(1, 3)

    def work(x: Any, i: Any) -> Any:
        key = slice(i, i + extent) if extent else i
        return x.at[key, i * 0].set(0.0) if write else x[key, i * 0]

    said = []
    for where in ("cpu", device):
        with ost.connect(device=where), pytest.raises(BoundsError) as raised:
            np.asarray(ost.compile(work)(ost.asarray(np.ones((n, 3))), ost.asarray(place)))
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert f"{extent} elements" in said[0] if extent else "index" in said[0]


def test_a_turn_asks_for_few_kernels_and_notes_what_is_outside() -> None:
    x, asked = np.random.default_rng(0).random((9, 40)), []
    with ost.connect(device=KERNELS):
        f = ost.compile(
            lambda s, by: ost.repeat(
                10, lambda c: (c[0] + by, c[1].at[c[0], c[0]].add(c[1][c[0], 3])), (0, s)
            )[1]
        )
        for _ in range(2):
            before = counted.asked
            made = f(ost.asarray(x), 0)
            asked.append(counted.asked - before)
        wanted = x.copy()
        for _ in range(10):
            wanted[0, 0] += wanted[0, 3]
        np.testing.assert_allclose(np.asarray(made), wanted)
        assert asked[1] < 10 * 11
        made = f(ost.asarray(x), 1)
        with pytest.raises(BoundsError, match="index 9 is out of bounds for an axis with 9"):
            np.asarray(made)


@pytest.mark.skipif(not nvrtc.is_here(), reason="needs NVRTC's wheel")
@pytest.mark.parametrize("mode", ["", "set", "add", "max"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bfloat16"])
def test_kernels_compile(mode: str, dtype: str) -> None:
    kind = ost.spec(1, dtype).dtype
    x, box = strided_like((9, 8), kind), strided_like((2, 8), kind)
    begins = box_moves._begins(x.shape, (2,), (0,), ("clip",))
    assert "ld.global" in nvrtc.compiled(box_moves._kernel(x, box, 0, begins, mode).text, OPTIONS)
