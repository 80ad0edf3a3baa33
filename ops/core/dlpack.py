"""Capsules of DLPack that say what their makers do not (dlpack.h: DLTensor, DLManagedTensor,
DLManagedTensorVersioned): bfloat16, which NumPy does not know, is written over the dtype of the same bits
as int16; what lies on a GPU is marked as read-only."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any, cast

import numpy as np

from .spec import bfloat16

# Before the dtype come data (8 bytes), device (2 x 4), ndim (4); and, in a capsule with a version, version
# (2 x 4), context, deleter and flags (8 each).
PLACES = {b"dltensor": 20, b"dltensor_versioned": 52}
FLAGS, READ_ONLY = 24, 1  # in one with a version: behind version, context and deleter
CUDA, CUDA_MANAGED = 2, 13  # kinds of devices
INT16, BFLOAT16 = struct.pack("=BBH", 0, 16, 1), struct.pack("=BBH", 4, 16, 1)  # code, bits, lanes

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def as_bfloat(capsule: Any) -> Any:
    """A capsule of int16, not taken yet, as one of bfloat16."""
    name = _name(capsule)
    at = _pointer(capsule, name) + PLACES[name]
    assert ctypes.string_at(at, 4) == INT16
    ctypes.memmove(at, BFLOAT16, 4)
    return capsule


def as_read_only(capsule: Any) -> Any:
    """A capsule, not taken yet, whose memory is only to be read; one without a version cannot say so."""
    if (name := _name(capsule)) == b"dltensor_versioned":
        flags = ctypes.cast(_pointer(capsule, name) + FLAGS, ctypes.POINTER(ctypes.c_uint64))
        flags[0] |= READ_ONLY
    return capsule


class Shared:
    """NumPy's memory, for who asks for itself in a capsule that cannot say that it is only to be read."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__array_interface__ = value.__array_interface__ | {"data": (value.ctypes.data, False)}


def lent(value: Any, on_host: bool, copy: bool | None, **asked: Any) -> Any:
    """A capsule of values that may only be read: one without a version, which cannot say so, is of a
    copy, unless copy=False."""
    unmarked = asked["max_version"] is None or tuple(asked["max_version"]) < (1, 0)
    copy = True if copy is None and unmarked else copy
    is_bfloat = value.dtype == bfloat16
    value = value.view(np.int16) if is_bfloat else value
    if on_host and unmarked and not copy:
        value = np.asarray(Shared(value))
    capsule = value.__dlpack__(copy=copy, **asked)
    capsule = as_bfloat(capsule) if is_bfloat else capsule
    return capsule if on_host or copy else as_read_only(capsule)


def is_on_gpu(x: Any) -> bool:
    """Whether it is an array of a library that has it in the memory of a GPU."""
    kind = getattr(type(x), "__dlpack_device__", None)
    if kind is not None:
        try:
            return int(kind(x)[0]) in (CUDA, CUDA_MANAGED)
        except Exception:  # it is not in one place, or not in memory
            return False
    return hasattr(type(x), "__cuda_array_interface__")


def as_numpy(x: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """NumPy's array of another library's, in its memory where that can be; or of numbers."""
    if any(kind.__module__ == "torch" for kind in type(x).__mro__) and hasattr(x, "detach"):
        return _of_torch(x) if dtype is None else _of_torch(x).astype(dtype, copy=False)
    if hasattr(x, "__array__") or not hasattr(x, "__dlpack__"):
        return np.asarray(x, dtype)
    found = np.from_dlpack(x)
    return found if dtype is None else found.astype(dtype, copy=False)


def _of_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """The values of a tensor, without the graph of its gradients; bfloat16, too, which NumPy has not."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) != "torch.bfloat16":
        return cast(np.ndarray[Any, Any], tensor.numpy())
    bits = tensor.view(sys.modules["torch"].int16).numpy()
    return cast(np.ndarray[Any, Any], bits.view(bfloat16))
