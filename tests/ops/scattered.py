"""A process whose free memory lies in single pages, gigabytes apart, compiles kernels and runs them."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.ops.test_native import LOWERED, run, single

PAGE, APART, PAGES = 1 << 12, 3 << 30, 40
NOTHING, PRIVATE, UNBACKED = (
    0,
    0x22,
    0x4000,
)  # PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, MAP_NORESERVE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size: int) -> int:
    made = _libc.mmap(None, size, NOTHING, PRIVATE | UNBACKED, -1, 0)
    if made == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"no {size} bytes of addresses")
    return int(made)


def scatter() -> None:
    """Takes all addresses above a large reservation, and frees pages inside it."""
    begin = reserve(PAGES * APART)
    while reserve(PAGE) > begin:
        pass
    for k in range(1, PAGES + 1):
        _libc.munmap(begin + k * APART - PAGE, PAGE)


def main() -> None:
    run(single("exp", ["f8"], "f8"), np.ones(9))  # what is loaded once is loaded
    scatter()
    x = np.linspace(0.1, 0.9, 99)
    for name in ("log", "sin", "tanh", "expm1"):
        assert name in LOWERED
        (made,) = run(single(name, ["f8"], "f8"), x)
        np.testing.assert_allclose(made, getattr(np, name)(x), rtol=1e-14)
    print("all as NumPy")


if __name__ == "__main__":
    main()
