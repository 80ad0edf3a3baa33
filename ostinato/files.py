"""Arrays from files and into files."""

from __future__ import annotations

import os
from typing import Any

from ostinato.errors import DataFileError
from ostinato.io_pipeline.files import from_data as source_of
from ostinato.io_pipeline.files import open_source
from ostinato.io_pipeline.sinks import from_data as sink_of
from ostinato.io_pipeline.sinks import open_sink
from ostinato.ops.core.array import Array, File, Operandish, Split, as_array, from_operand
from ostinato.ops.core.exchange import chunks_of
from ostinato.ops.core.user_line import misfit
from ostinato.planner.machine import memory
from ostinato.runtime.crew.member import openers

from .reading import evaluate
from .sessions import current

__all__ = ["load", "save"]


def _pipe(said: Any) -> Any:
    from .feeding import from_data  # stages, which take long to import

    return from_data(said)


def _share(*given: Any) -> Any:
    from .feeding import Share

    return Share(*given)


# how workers in other processes open them
openers.update({"source": source_of, "sink": sink_of, "pipe": _pipe, "share": _share})


def load(
    path: str | os.PathLike[str],
    /,
    *,
    dataset: str | None = None,
    resident: bool = True,
    split: Split = None,
) -> Array:
    """The array in a .npy file, an HDF5 file (.h5, .hdf5) or a Zarr store (.zarr). Each worker reads
    its part.

    resident=False leaves it in the file, however large: plans read it block after block along its
    first axis, the next block while they work on the last. dataset: which array, where a file has
    several. split: as in `asarray`."""
    try:
        source = open_source(path, dataset)
        if resident:
            source.check_resident(memory())
            return from_operand(current().attach(source, split, resident=True))
    except DataFileError as error:
        raise at_user(error) from None
    return from_operand(File(source, split))


def save(path: str | os.PathLike[str], x: Operandish, /, *, dataset: str | None = None) -> None:
    """Write an array as a .npy file, into an HDF5 file (.h5, .hdf5) or a Zarr store (.zarr). Each
    worker writes its part. Readers see the old file or the whole new one.

    dataset: which array of an HDF5 file or a Zarr store; its others stay. Without it, the file's
    one array."""
    array = as_array(x)
    evaluate(array)
    session = current()
    operand = session.hold_array(array)
    spec = operand.spec
    assert spec.layout is not None
    chunks = chunks_of(spec.layout, spec.shape, spec.dtype.itemsize)
    try:
        sink = open_sink(path, dataset, spec.shape, spec.dtype, chunks)
        try:
            sink.create()
            session.engine.write(operand, sink)
            sink.finish()
        except BaseException:
            sink.discard()
            raise
    except DataFileError as error:
        raise at_user(error) from None


def at_user(error: DataFileError) -> DataFileError:
    """The same error, at the user's own line."""
    made = misfit(DataFileError, str(error).removesuffix("."))
    assert isinstance(made, DataFileError)
    return made
