"""Arrays from files and into files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.errors import DataFileError
from ostinato.io_pipeline.files import open_source
from ostinato.ops.array import Array, File, Operandish, Split, as_array, from_operand
from ostinato.ops.creation import asarray
from ostinato.ops.where import misfit

__all__ = ["load", "save"]


def load(
    path: str | os.PathLike[str],
    /,
    *,
    dataset: str | None = None,
    resident: bool = True,
    split: Split = None,
) -> Array:
    """The array in a .npy file, an HDF5 file (.h5, .hdf5) or a Zarr store (.zarr).

    resident=False leaves it in the file, however large: plans read it block after block along its
    first axis, the next block while they work on the last. dataset: which array, where a file has
    several. split: as in `asarray`."""
    try:
        source = open_source(path, dataset)
    except DataFileError as error:
        raise misfit(DataFileError, str(error).removesuffix(".")) from None
    if not resident:
        return from_operand(File(source, split))
    whole = np.empty(source.shape, source.dtype)
    source.read(whole, tuple((0, n) for n in source.shape))
    return asarray(whole, copy=False, split=split)


def save(path: str | os.PathLike[str], x: Operandish, /) -> None:
    """Write an array as a .npy file, which `load` and `np.load` read. Readers see the old file or
    the whole new one."""
    name = Path(path)
    if name.suffix != ".npy":
        raise misfit(DataFileError, f"file {name}", got=f"suffix {name.suffix!r}", needed=".npy")
    value: np.ndarray[Any, Any] = np.asarray(as_array(x))
    if value.dtype.kind == "V":
        raise misfit(
            DataFileError,
            f"file {name}",
            got=f"dtype {value.dtype.name}, for which .npy has no name",
            needed="a dtype of NumPy's",
            do="save x.astype(ost.float32)",
        )
    handle, part = tempfile.mkstemp(dir=name.parent, prefix=name.name)
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, value, allow_pickle=False)
        os.replace(part, name)
    except BaseException:
        os.unlink(part)
        raise
