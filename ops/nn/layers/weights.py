"""Weights in files (safetensors) and from others' state dicts, by name."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from ostinato.ops.array.casts import astype
from ostinato.ops.array.creation import asarray
from ostinato.ops.core.array import Array
from ostinato.ops.core.disk import write_whole, writing
from ostinato.ops.core.spec import bfloat16
from ostinato.ops.core.tree import LEAF, Structure, flatten, unflatten
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError, ShapeError

from .layer import Initial, Layer

__all__ = ["load_weights", "named_weights", "save_weights"]
T = TypeVar("T")
_DTYPES = {
    "BOOL": np.dtype(bool),
    "BF16": bfloat16,
    **{f"{c}{8 * n}": np.dtype(f"<{c.lower()}{n}") for c in "IU" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    "C64": np.dtype("<c8"),
}
_NAMES = {dtype.name: name for name, dtype in _DTYPES.items()}
_IGNORED = "num_batches_tracked"  # which PyTorch's norms count


# -- names -----------------------------------------------------------------------------------
def _names(structure: Structure, name: str = "") -> Iterator[str]:
    """Names of leaves, as PyTorch has them: "features.0.weight"."""
    if structure.kind is LEAF:
        yield name
        return
    kind = structure.kind
    unnamed = kind.unnamed if isinstance(kind, type) and issubclass(kind, Layer) else ()
    keys = structure.extra if structure.extra is not None else range(len(structure.children))
    if structure.children:
        for key, child in zip(keys, structure.children, strict=True):
            step = name if key in unnamed else f"{name}.{key}" if name else str(key)
            yield from _names(child, step)


def named_weights(model: Any) -> dict[str, Any]:
    """The model's arrays by name, as PyTorch's state dicts have them.

    >>> list(ost.nn.named_weights(ost.nn.Sequential(ost.nn.relu, ost.nn.Linear(2, 3)).init()))
    ['1.weight', '1.bias']
    """
    leaves, structure = flatten(model)
    return dict(zip(_names(structure), leaves, strict=True))


def load_weights(
    model: T,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    strict: bool = True,
) -> T:
    """The model with weights of a safetensors file, or of a dict of arrays or tensors, such as a PyTorch
    module's `state_dict()`, by name: shapes and names are PyTorch's. Weights that there are keep their dtypes.

    rename: of a model's name the one in the source. strict: all that either has is in the other one; else
    what is missing stays as it is.

    >>> model = ost.nn.Linear(2, 1)
    >>> ost.nn.load_weights(model, {"weight": [[1.0, 2.0]], "bias": [3.0]})([1.0, 1.0])
    Array([6.], dtype=float64)
    """
    given = source if isinstance(source, Mapping) else _File(Path(source))
    leaves, structure = flatten(model)
    names = list(_names(structure))
    wanted = [name if rename is None else _renamed(name, rename) for name in names]
    missing = [name for name in wanted if name not in given]
    unexpected = [n for n in given.keys() - set(wanted) if not n.endswith(_IGNORED)]
    if strict and (missing or unexpected):
        parts = [("missing", missing), ("unexpected", sorted(unexpected))]
        got = "; ".join(f"{what} {_some(them)}" for what, them in parts if them)
        needed = "the names of the model's weights (ost.nn.named_weights)"
        do = "give rename=, or strict=False to load what fits"
        raise misfit(ArgumentError, "load_weights", got=got, needed=needed, do=do)
    made = [
        _fitted(x, given[w], name) if w in given else x
        for x, w, name in zip(leaves, wanted, names, strict=True)
    ]
    return cast(T, unflatten(structure, made))


def _renamed(name: str, rename: Mapping[str, str] | Callable[[str], str]) -> str:
    return rename(name) if callable(rename) else rename.get(name, name)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _fitted(old: Any, new: Any, name: str) -> Array:
    x = asarray(new.detach() if hasattr(new, "detach") else new)
    if x.shape != tuple(old.shape):
        got = str(x.shape)
        raise misfit(ShapeError, f"load_weights of {name}", got=got, needed=str(tuple(old.shape)))
    return x if isinstance(old, Initial) else astype(x, old.dtype)


# -- safetensors -----------------------------------------------------------------------------
def save_weights(
    path: str | os.PathLike[str], model: Any, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a model's arrays, or a dict of arrays, to a safetensors file, which is there whole or not at all.

    >>> ost.nn.save_weights("model.safetensors", ost.nn.Linear(2, 1).init(seed=0))
    >>> ost.nn.load_weights(ost.nn.Linear(2, 1), "model.safetensors").weight.shape
    (1, 2)
    """
    named = {name: np.ascontiguousarray(x) for name, x in named_weights(model).items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, x in named.items():
        if x.dtype.name not in _NAMES:
            got = f"{name} of {x.dtype.name}"
            raise misfit(ArgumentError, "save_weights", got=got, needed=", ".join(_NAMES))
        x = named[name] = x.astype(_DTYPES[_NAMES[x.dtype.name]], copy=False)
        span = [at, at + x.nbytes]
        header[name] = {"dtype": _NAMES[x.dtype.name], "shape": x.shape, "data_offsets": span}
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pieces = (x.reshape(-1).view(np.uint8).data for x in named.values())
    with writing(path):
        write_whole(path, itertools.chain([len(text).to_bytes(8, "little"), text], pieces))


class _File(Mapping[str, Any]):
    """A safetensors file's arrays, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.begin, self.entries = _header(file, path)
        except DataFileError:
            raise
        except OSError as error:
            raise _damaged(path, error.strerror or str(error)) from None

    def __getitem__(self, name: str) -> Any:
        dtype, shape, begin, end = self.entries[name]
        with self.path.open("rb") as file:
            file.seek(self.begin + begin)
            data = file.read(end - begin)
        if len(data) != end - begin:
            raise _damaged(self.path, f"{name} ends early")
        return np.frombuffer(data, dtype).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _damaged(path: Path, what: str) -> Exception:
    needed = "a whole safetensors file"
    return misfit(DataFileError, f"load_weights of {path}", got=what, needed=needed)


Entry = tuple[np.dtype[Any], tuple[int, ...], int, int]


def _header(file: BinaryIO, path: Path) -> tuple[int, dict[str, Entry]]:
    """Where the data begin, and of each array its dtype, shape and bytes; checked against the file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, 100_000_000):
        raise _damaged(path, f"{size} bytes, with a header of {length}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name that comes twice")
        return found

    try:
        said = {**json.loads(file.read(length).decode(), object_pairs_hook=unique)}
        said.pop("__metadata__", None)
        found = {name: _entry(e, size - 8 - length) for name, e in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"a header with {str(error) or type(error).__name__:.60}") from None
    at = 0
    for name, (*_, begin, end) in sorted(found.items(), key=lambda pair: pair[1][2:]):
        if begin != at:
            raise _damaged(path, f"{name} at byte {begin}, where {at} is next")
        at = end
    if at != size - 8 - length:
        raise _damaged(path, f"{size - 8 - length - at} bytes of no array")
    return 8 + length, found


def _entry(said: Any, room: int) -> Entry:
    dtype, shape = _DTYPES[said["dtype"]], tuple(said["shape"])
    begin, end = said["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError("numbers that are none")
    if not begin <= end <= room or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"bytes {begin} to {end} for {shape}")
    return dtype, shape, begin, end
