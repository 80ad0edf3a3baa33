"""Arrays from files and into files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from ostinato.errors import ArgumentError, DataFileError
from ostinato.io_pipeline.array_files import from_data as source_of
from ostinato.io_pipeline.array_files import open_source
from ostinato.io_pipeline.blocks import FromFunction, FromIterable
from ostinato.io_pipeline.sinks import from_data as sink_of
from ostinato.io_pipeline.sinks import open_sink
from ostinato.ops.array.casts import as_dtype
from ostinato.ops.array.creation import as_shape
from ostinato.ops.core.apply import as_array
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.array_methods import Operandish
from ostinato.ops.core.exchange import chunks_of
from ostinato.ops.core.layout import Layout
from ostinato.ops.core.operand import File, Split
from ostinato.ops.core.spec import DTypeLike, ShapeLike
from ostinato.ops.core.user_line import misfit
from ostinato.planner.machine import memory
from ostinato.runtime.crew.member import openers

from .reading import evaluate
from .sessions import current
from .streaming import stream, streamable

__all__ = ["from_blocks", "load", "save"]


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
    dataset: str | Sequence[str] | None = None,
    resident: bool = True,
    split: Split = None,
) -> Array:
    """The array in a file: .npy, .npz, HDF5 (.h5, .hdf5), a Zarr store (.zarr), or the columns of a table
    (.parquet, .csv, .tsv). Each worker reads its part.

    resident=False leaves it in the file, however large: plans read it block after block along its
    first axis, the next block while they work on the last. dataset: which array, where a file has
    several; of a table, a column, which is an array of one axis, or a list of columns, which lie beside
    each other, as all do unless said otherwise. split: as in `asarray`.

    >>> x = ost.load("x.npy", resident=False)
    >>> x[1:]
    Array([1, 2], dtype=int64)

    A member of an npz file, or columns of a table:

    >>> np.savez("x.npz", a=np.arange(3), b=np.ones(2))
    >>> ost.load("x.npz", dataset="b")
    Array([1., 1.], dtype=float64)
    """
    try:
        source = open_source(path, dataset)
        if resident:
            source.check_resident(memory())
            session, name = current(), os.path.basename(source.path)
            size = math.prod(source.shape) * source.dtype.itemsize
            with session.transfer("read", f"loading {name}", source.stored_bytes() or size):
                return from_operand(session.attach(source, split, resident=True))
    except DataFileError as error:
        raise error_at_user(error) from None
    return from_operand(File(source, split))


def from_blocks(
    blocks: Callable[[tuple[slice, ...]], ArrayLike] | Iterable[ArrayLike],
    /,
    shape: ShapeLike,
    dtype: DTypeLike,
    *,
    split: Split = None,
) -> Array:
    """An array that is made block by block where plans need it, as those are read that stay in files.

    blocks: a function that makes the block at these slices of the whole. Threads call it, several at a
    time where there are several workers, with blocks of any extents, and again whenever an operation
    reads them. Or something to iterate over: arrays that follow each other along the first axis. An
    iterator is read once, in order and by one worker: to read again what it has passed is an error; a
    list, or whatever else gives a new iterator each time, begins anew. Neither reaches workers that
    are other processes. split: as in `asarray`.

    >>> squares = ost.from_blocks(lambda at: np.arange(at[0].start, at[0].stop) ** 2, 10, "int64")
    >>> squares[7:]
    Array([49, 64, 81], dtype=int64)
    >>> ost.from_blocks([np.zeros(2), np.ones(3)], 5, "float64") + 1
    Array([1., 1., 2., 2., 2.], dtype=float64)
    """
    extents, kind = as_shape(shape), as_dtype(dtype)
    if not callable(blocks) and not extents:
        got, needed = "pieces of a single number", "an axis along which they follow each other"
        raise misfit(ArgumentError, "from_blocks", got=got, needed=needed)
    if callable(blocks):
        return from_operand(File(FromFunction(blocks, extents, kind), split))
    if not hasattr(blocks, "__iter__"):
        got, needed = type(blocks).__name__, "a function, or arrays to iterate over"
        raise misfit(ArgumentError, "from_blocks", got=got, needed=needed)
    return from_operand(File(FromIterable(blocks, extents, kind), split))


def save(path: str | os.PathLike[str], x: Operandish, /, *, dataset: str | None = None) -> None:
    """Write an array as a .npy file, into an HDF5 file (.h5, .hdf5) or a Zarr store (.zarr). Each
    worker writes its part. Readers see the old file or the whole new one.

    What is large and not computed yet is written block after block as it is made, if it is made of
    arrays in files (`load(..., resident=False)`) or memory has no room for it.

    dataset: which array of an HDF5 file or a Zarr store; its others stay. Without it, the file's
    one array.

    >>> ost.save("x.npy", ost.arange(3))
    >>> ost.load("x.npy")
    Array([0, 1, 2], dtype=int64)
    """
    array, session = as_array(x), current()
    pending = streamable(array, session)
    if pending is None:
        evaluate(array)
        operand = session.hold_array(array)
        layout = operand.spec.layout
    else:
        layout = Layout.whole(session.target.mesh)
    spec = array.spec
    assert layout is not None
    chunks = chunks_of(layout, spec.shape, spec.dtype.itemsize, session.target.memory_limit)
    try:
        sink = open_sink(path, dataset, spec.shape, spec.dtype, chunks)
        try:
            sink.create()
            what = f"saving {os.path.basename(os.fspath(path))}"
            with session.transfer("write", what, spec.nbytes):
                if pending is None:
                    session.engine.write(operand, sink)
                else:
                    stream(pending, sink, session)
                sink.finish()
        except BaseException:
            sink.discard()
            raise
    except DataFileError as error:
        raise error_at_user(error) from None


def error_at_user(error: DataFileError) -> DataFileError:
    """Return the same error at the user's own line."""
    made = misfit(DataFileError, str(error).removesuffix("."))
    assert isinstance(made, DataFileError)
    return made
