"""Pipes of samples: `ost.io.images(...).shuffle(seed=7).decode()....batch(128)`.

A pipe is written down here, and made by threads of this process (ostinato.io_pipeline.feed). Its batches are
Ostinato's arrays, split over the workers by samples; `pipe.to("numpy")`, "torch" or "jax" gives those
instead, and no session begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import ostinato.io_pipeline.images
import ostinato.io_pipeline.volumes  # noqa: F401  (stages of both become methods of pipes)
from ostinato.errors import ArgumentError, DataFileError
from ostinato.io_pipeline import datasets as datasets
from ostinato.io_pipeline.array_files import NpzSource, members_of
from ostinato.io_pipeline.feed.batch_arrays import FEEDS, ROOMS, TARGETS, Convert
from ostinato.io_pipeline.feed.combined_pipes import Mixed, Zipped
from ostinato.io_pipeline.feed.folders import Paths, files
from ostinato.io_pipeline.feed.pipe import Pipe
from ostinato.io_pipeline.feed.samples import Arrays, Items, Samples, Stream
from ostinato.io_pipeline.feed.shards import shards_of
from ostinato.io_pipeline.feed.stage import Stage, stage
from ostinato.io_pipeline.feed.table_rows import table_of
from ostinato.io_pipeline.feed.volume_files import volume_files
from ostinato.io_pipeline.source import Source
from ostinato.ops.array.creation import asarray
from ostinato.ops.core.array import Array, from_operand
from ostinato.ops.core.device import described
from ostinato.ops.core.operand import File, Split
from ostinato.ops.core.spelling import missing
from ostinato.ops.core.tree import tree_map
from ostinato.ops.core.user_line import misfit
from ostinato.planner.machine import memory

from .feeding import fed
from .files import error_at_user
from .sessions import current

__all__ = [
    "Pipe",
    "Stage",
    "arrays",
    "images",
    "mix",
    "samples",
    "shards",
    "stage",
    "stream",
    "volumes",
    "table",
    "zip",
]


WAITING = 4  # batches that wait take such a part of memory_limit


def __dir__() -> list[str]:
    return [*__all__, "datasets"]


if not TYPE_CHECKING:
    __getattr__ = missing("io")


def images(
    paths: Paths,
    /,
    *,
    labels: str | Sequence[Any] | Mapping[str, Any] | Callable[[str], Any] | None = None,
    masks: Sequence[str | os.PathLike[str]] | Callable[[str], str] | None = None,
    classes: Sequence[str] | None = None,
) -> Pipe:
    """Image files: a pattern such as "train/**/*.jpg", a folder and all in it, or a list of files.

    labels: "folder" numbers the folders that files are in, by their names' order or as `classes` lists
    them; or one for each file, as a list, a dict by file, or a function of the file. masks: the files of
    masks, likewise. Samples are (image, mask, label), or those of them that were asked for.

    >>> from PIL import Image
    >>> Image.new("RGB", (8, 6)).save("black.png")
    >>> [x.shape for x in ost.io.images("*.png").decode().batch(1)]
    [(1, 6, 8, 3)]
    """
    return _pipe(files("images", paths, labels, masks, classes))


def shards(paths: Paths, /, fields: str | Sequence[str] = ("jpg;jpeg;png", "cls")) -> Pipe:
    """Samples in tar files, as WebDataset writes them: members of the same name with other endings.

    paths: a pattern, which may have {000..127} in it, or a list. fields: the endings that make a sample;
    "jpg;png" is one of these, "mask.png" a mask, "cls" a number, "npy" an array, "json" and "txt" what is
    in them, others bytes. shuffle(block=1000) keeps samples of a shard near each other.

    >>> import tarfile
    >>> tar = tarfile.open("a.tar", "w")
    >>> tar.add("black.png", "0.png")
    >>> tar.close()
    >>> len(ost.io.shards("a.tar", fields="png"))
    1
    """
    try:
        return _pipe(shards_of("shards", paths, [fields] if isinstance(fields, str) else fields))
    except DataFileError as error:
        raise error_at_user(error) from None


def table(
    paths: Paths,
    /,
    columns: Sequence[str] | None = None,
    *,
    dtypes: Mapping[str, str] | None = None,
) -> Pipe:
    """The rows of tables in .parquet, .csv or .tsv files, as dicts: a pattern, a folder or a list of files
    that have the same columns. Columns called image, mask, label, ... are of these kinds.

    columns: only these are read. dtypes: what columns of numbers are cast to. Rows are read with their
    row group, or with 1 MiB of lines: shuffle(block=...) keeps rows of a block near each other.

    >>> from pathlib import Path
    >>> _ = Path("t.csv").write_text("a,b\\n1,2\\n3,4\\n")
    >>> [row["b"].tolist() for row in ost.io.table("t.csv").batch(2)]
    [[2, 4]]
    """
    try:
        return _pipe(table_of("table", paths, columns, dtypes))
    except DataFileError as error:
        raise error_at_user(error) from None


def volumes(
    paths: Paths,
    /,
    *,
    dataset: str | None = None,
    masks: str | Sequence[str | os.PathLike[str]] | Callable[[str], str] | None = None,
    labels: str | Sequence[Any] | Mapping[str, Any] | Callable[[str], Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Pipe:
    """Files with a volume each (.npy, .h5, .hdf5, .zarr): a pattern, a folder, or a list. dataset: which
    array, where a file has several. masks: what the array of the mask is called in the same file, or the
    files of masks, as in `images`; labels as well. With batch(split="depth") each worker reads its slab.

    >>> np.save("v.npy", np.zeros((4, 4, 4), "f4"))
    >>> [v.shape for v in ost.io.volumes("v.npy").batch(1)]
    [(1, 4, 4, 4)]
    """
    return _pipe(volume_files(paths, labels, masks, classes, dataset))


def arrays(*given: Any, kinds: Sequence[str] | None = None) -> Pipe:
    """The rows of arrays: of NumPy's, of Ostinato's, or of files (.npy, .h5, .zarr), of which only the rows
    that are asked for are read; an .npz file is a dict of arrays, in memory if they are compressed. One array,
    several, or a tree.
    ost.load(path, dataset=..., resident=False) is the array of a file that has several.

    kinds: what each is ("image", "mask", "boxes", "label", "volume", "data"), unless the keys of a dict or
    their shapes tell.

    >>> pipe = ost.io.arrays(np.arange(6.0).reshape(6, 1), np.arange(6)).batch(4)
    >>> [y.tolist() for x, y in pipe]
    [[0, 1, 2, 3], [4, 5]]
    """
    tree = given[0] if len(given) == 1 else given
    try:
        tree = tree_map(_foreign, tree)
        return _pipe(Arrays(tree, kinds))
    except DataFileError as error:
        raise error_at_user(error) from None


def _foreign(x: Any) -> Any:
    """Open as a source what is none of its own."""
    if isinstance(x, (str, os.PathLike)) and os.fspath(x).endswith(".npz"):
        found = {name: NpzSource(os.fspath(x), name) for name in members_of(os.fspath(x))}
        return {name: s if not s.inflates else _resident(s) for name, s in found.items()}
    if isinstance(x, Array):
        return x._operand.source if isinstance(x._operand, File) else np.asarray(x)
    return x


def _resident(source: Source) -> np.ndarray[Any, Any]:
    """Read into memory what would be inflated from its beginning for rows in any order."""
    source.check_resident(memory())
    found = np.empty(source.shape, source.dtype)
    source.read(found, tuple((0, n) for n in source.shape))
    return found


def samples(items: Any, /, *, kinds: Sequence[str] | None = None) -> Pipe:
    """Whatever has a length and gives samples by number, in threads: a list, a dataset of another library,
    such as torchvision's. Tensors, pictures of Pillow's and what else has `__array__` or DLPack become
    arrays, behind functions of `map` and `filter`, which see what the dataset gives.
    kinds: as in `arrays`, by the leaves of a sample; pictures are images.

    >>> [x.tolist() for x in ost.io.samples([1, 2, 3]).map(lambda x: 10 * x).batch(2)]
    [[10, 20], [30]]
    """
    return _pipe(Items(items, kinds))


def stream(
    items: Callable[[], Iterable[Any]] | Iterable[Any],
    /,
    *,
    length: int | None = None,
    kinds: Sequence[str] | None = None,
) -> Pipe:
    """Make a pipe of what can only be iterated over, or a function that makes an iterator for each
    epoch. Stages run in threads as ever, but it is read by one at a time; it is not shuffled; each
    worker reads all of it, to make its part; and going on at a place reads what is before. length:
    at most so many samples.

    >>> [x.tolist() for x in ost.io.stream(lambda: iter(range(4))).batch(2)]
    [[0, 1], [2, 3]]
    """
    return _pipe(Stream(items, length, kinds))


def mix(*pipes: Pipe, weights: Sequence[float] | None = None) -> Pipe:
    """Samples of several sources, evenly in turns by their weights, until each has come up whole; smaller ones
    begin again meanwhile. Stages are written behind it.

    >>> [x.tolist() for x in ost.io.mix(ost.io.samples([1, 2]), ost.io.samples([30, 40])).batch(4)]
    [[1, 30, 2, 40]]
    """
    return _pipe(Mixed(_sources("mix", pipes), weights))


def zip(*pipes: Pipe) -> Pipe:
    """Samples of the same number of several sources, as tuples. Stages are written behind it.

    >>> pair = ost.io.zip(ost.io.samples([1, 2]), ost.io.samples([3, 4])).batch(2)
    >>> next(iter(pair))
    (Array([1, 2], dtype=int64), Array([3, 4], dtype=int64))
    """
    return _pipe(Zipped(_sources("zip", pipes)))


def _sources(who: str, pipes: Sequence[Pipe]) -> list[Samples]:
    for pipe in pipes:
        if not isinstance(pipe, Pipe) or pipe.entries:
            got = "a pipe with stages" if isinstance(pipe, Pipe) else type(pipe).__name__
            needed = "sources, such as ost.io.images(...)"
            raise misfit(ArgumentError, who, got=got, needed=needed, do="write stages behind it")
    return [pipe.source for pipe in pipes]


def _pipe(source: Samples) -> Pipe:
    return Pipe(source, target="ostinato")


def _convert() -> Convert:
    """Batches as arrays of the session in use, in the memory that they were made in."""
    session = current()

    def convert(
        x: np.ndarray[Any, Any], split: Split = 0, halos: Mapping[int, int] | None = None
    ) -> Array:
        if not described(session.target.device).is_host:
            return from_operand(session.put(x, split, halos, again=True))
        if session.workers == 1:
            return asarray(x, copy=False)
        if halos and any(halos.values()):
            return from_operand(session.put(x, split, halos))
        return asarray(x, copy=False, split=split)

    return convert


def _room() -> int | None:
    """Bytes of batches that may wait beside what plans need: a part of the limit, if there is one."""
    session = current()
    limit = session.target.memory_limit
    return None if limit is None else limit * session.workers // WAITING


TARGETS["ostinato"] = _convert
ROOMS["ostinato"] = _room
FEEDS["ostinato"] = fed
