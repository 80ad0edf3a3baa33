"""Files of which each has one volume (.npy, HDF5, Zarr), or one of several arrays: of a sample that
workers share, each reads only its slab."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.tree import flatten

from ..array_files import SUFFIXES, open_source
from ..source import Source
from .content import Unhashable
from .fields import LABEL, MASK, VOLUME, Fields
from .folders import Files, Paths, files
from .plain import as_plain
from .samples import InFiles, Row, digest

OPEN = 64  # files that are open at a time


class VolumeFiles(Files):
    """Volumes, with masks in the same files or in others, and labels."""

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[Any] | None = None,
        masks: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        base: str = "",
        datasets: Sequence[str | None] = (None, None),
    ) -> None:
        super().__init__(paths, labels, masks, classes, base)
        self.datasets = tuple(datasets)  # of volumes, and of masks
        beside = [(VOLUME, paths), (MASK, masks), (LABEL, labels)]
        kinds = tuple(kind for kind, given in beside if given is not None)
        self.fields = Fields(kinds, flatten(kinds if len(kinds) > 1 else kinds[0])[1])
        self._open: OrderedDict[tuple[str, str | None], Source] = OrderedDict()
        self._lock = make_lock()

    def as_data(self) -> Any:
        return [*super().as_data(), as_plain(self.datasets)]

    def parts(self, index: int) -> tuple[list[Any], Fields]:
        found: list[Any] = [Row(self._source(self.paths[index], self.datasets[0]))]
        if self.masks is not None:
            found.append(Row(self._source(self.masks[index], self.datasets[1])))
        if self.labels is not None:
            found.append(self.labels[index])
        return found, self.fields

    def read(self, index: int) -> tuple[list[Any], Fields]:
        leaves, fields = self.parts(index)
        return [x.read(()) if isinstance(x, Row) else x for x in leaves], fields

    def _source(self, path: str, dataset: str | None) -> Source:
        key = path, dataset
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        made = open_source(path, dataset)
        with self._lock:
            self._open[key] = made
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        return made

    def expect(self, indices: Sequence[int]) -> None:
        """Nothing: of volumes parts are read."""

    def files(self, indices: Sequence[int]) -> InFiles | None:
        return None

    def identity(self) -> str:
        return digest("volumes", super().identity(), *self.datasets)

    def made_of(self, index: int) -> str:
        if os.path.isdir(self.paths[index]):
            raise Unhashable("Zarr stores, whose files may change one by one")
        return f"{super().made_of(index)}\0{self.datasets}"


def volume_files(
    paths: Paths,
    labels: str | Sequence[Any] | Mapping[str, Any] | Callable[[str], Any] | None,
    masks: str | Sequence[str | os.PathLike[str]] | Callable[[str], str] | None,
    classes: Sequence[str] | None,
    dataset: str | None,
) -> VolumeFiles:
    """masks: files, or what they are called in the files of the volumes."""
    inner = masks if isinstance(masks, str) else None
    others = None if isinstance(masks, str) else masks
    found = files("volumes", paths, labels, others, classes, SUFFIXES)
    covers = found.masks if inner is None else found.paths
    named = dataset, inner
    return VolumeFiles(found.paths, found.labels, covers, found.classes, found.base, named)
