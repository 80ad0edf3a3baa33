"""Arrays of ours in other libraries, and theirs in ours: what each asks for, by stand-ins where it is large."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest
from ostinato.ops.core.dlpack import _name, _pointer

import ostinato as ost


class Tensor:
    """What is asked of a tensor of PyTorch's."""

    def __init__(self, values: np.ndarray[Any, Any], dtype: str = "torch.float32") -> None:
        self.values, self.dtype, self.asked = values, dtype, 0

    def detach(self) -> Tensor:
        found = Tensor(self.values, self.dtype)
        found.asked = 1
        return found

    def cpu(self) -> Tensor:
        return self

    resolve_conj = resolve_neg = cpu

    def view(self, dtype: Any) -> Tensor:
        assert dtype == "int16"
        return Tensor(self.values.view(np.int16), "torch.int16")

    def numpy(self) -> np.ndarray[Any, Any]:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        if not self.asked:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.numpy()


Tensor.__module__ = "torch"


def test_tensors_with_gradients_and_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("torch")
    fake.int16 = "int16"
    monkeypatch.setitem(sys.modules, "torch", fake)
    values = np.asarray([1.5, -2.0, 3.25], np.float32)
    assert ost.asarray(Tensor(values)).tolist() == values.tolist()
    x = ost.asarray(Tensor(values.astype(ost.bfloat16), "torch.bfloat16"))
    assert x.dtype == ost.bfloat16
    assert x.tolist() == values.tolist()


@pytest.mark.parametrize(("version", "at"), [((1, 0), 52), (None, 20)])
def test_bfloat16_through_dlpack(version: tuple[int, int] | None, at: int) -> None:
    """The capsule says bfloat16 and has its bits; who asks with a version is lent the memory."""
    x = ost.asarray([1.0, -2.0], dtype=ost.bfloat16)
    capsule = x.__dlpack__(max_version=version)
    name = _name(capsule)
    assert name == (b"dltensor_versioned" if version else b"dltensor")
    address = _pointer(capsule, name)
    code, bits, lanes = (
        ctypes.c_uint8.from_address(address + at).value,
        ctypes.c_uint8.from_address(address + at + 1).value,
        ctypes.c_uint16.from_address(address + at + 2).value,
    )
    assert (code, bits, lanes) == (4, 16, 1)
    data = ctypes.c_void_p.from_address(address + at - 20).value
    assert data
    assert ctypes.string_at(data, 4) == np.asarray(x).tobytes()


def test_jax_is_given_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("jax.numpy")
    fake.asarray = lambda x: ("jax", x.tolist())
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax.numpy", fake)
    assert ost.arange(3).__jax_array__() == ("jax", [0, 1, 2])


def test_names_that_xarray_calls() -> None:
    """As it finds them in the namespace of the array, with NumPy's parameters."""
    x = np.asarray([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    ours = ost.asarray(x)
    for name in ("nanmean", "nanstd", "nanvar", "nansum", "nanprod"):
        got = getattr(ost, name)(ours, axis=0, dtype=None)
        assert np.allclose(got, getattr(np, name)(x, axis=0), equal_nan=True), name
    assert np.allclose(ost.nanvar(ours, axis=1, ddof=1), np.nanvar(x, axis=1, ddof=1))
    assert ost.nanmean(ours, dtype=np.float32).dtype == np.float32
    for name in ("nancumsum", "nancumprod"):
        want = getattr(np, name)(x, axis=1)
        assert np.array_equal(getattr(ost, name)(ours, axis=1), want)
        assert np.array_equal(getattr(np, name)(ours, axis=1), want)
    padded = ost.pad(ours, 1, mode="constant", constant_values=7.0)
    assert np.array_equal(np.asarray(padded), np.pad(x, 1, constant_values=7.0), equal_nan=True)
    assert np.array_equal(ost.diff(ours[:, 0], 1), np.diff(x[:, 0], 1))
    assert ours.view("B").tobytes() == x.tobytes()


def test_xarray() -> None:
    xr = pytest.importorskip("xarray")
    x = np.arange(12.0).reshape(4, 3)
    ours = xr.DataArray(ost.asarray(x), dims=("a", "b"), coords={"a": [0, 0, 1, 1]})
    theirs = xr.DataArray(x, dims=("a", "b"), coords={"a": [0, 0, 1, 1]})
    for act in (
        lambda d: d + 1,
        lambda d: d.mean("a"),
        lambda d: d.groupby("a").mean(),
        lambda d: d.where(d > 3),
        lambda d: d.cumsum("a"),
        lambda d: d.pad(b=1),
        lambda d: d.median("a"),
    ):
        got = act(ours)
        assert isinstance(got.data, ost.Array)
        assert np.allclose(got.values, act(theirs).values, equal_nan=True)
