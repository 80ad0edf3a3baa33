"""Rows of tables in files, as dicts: Parquet and CSV, by pyarrow (see io_pipeline/tables.py).

A row is read with its block, and blocks stay for a while for the rows beside it; so tables are shuffled
best with shuffle(block=...), which keeps rows of a block near each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError

from ..remote import absolute, trouble
from ..source import stamp
from ..tables import SUFFIXES, Blocks, guarded
from .fields import Fields, fields_of
from .folders import find
from .samples import Samples, digest

# bytes of blocks that stay, and blocks that stay whatever they hold
KEPT, MIN_BLOCKS = (256 << 20, 2)


class Table(Samples):
    """The rows of tables that have the same columns."""

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.table = Blocks(paths, columns, dtypes, KEPT, MIN_BLOCKS)
        self.order = sorted(self.table.columns)  # that of leaves
        self.fields: Fields = fields_of(dict.fromkeys(self.table.columns, 0))[0]

    def __len__(self) -> int:
        return self.table.rows

    def read(self, index: int) -> tuple[list[Any], Fields]:
        k, row = self.table.place(index)
        block = self.table.block(k)
        values = [block[name][row] for name in self.order]
        if any(v is None for v in values):
            name = next(n for n, v in zip(self.order, values, strict=True) if v is None)
            path = self.table.paths[self.table.blocks[k].file]
            raise trouble(path, f"no value in column {name!r}", "one in each row")
        return values, self.fields

    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
        if not len(self):
            return None
        try:
            first = self.table.block(0)
        except DataFileError:  # which says so when it is read
            return None
        if not all(isinstance(c, np.ndarray) and c.dtype.kind in "biuf" for c in first.values()):
            return None
        return [(c.shape[1:], c.dtype) for c in (first[n] for n in self.order)]

    def gather(self, indices: Sequence[int], out: Sequence[np.ndarray[Any, Any]]) -> None:
        places = np.array(indices, np.int64)
        blocks = np.searchsorted(self.table.ends, places, "right")
        for k in np.unique(blocks).tolist():
            here = blocks == k
            rows = places[here] - self.table.begin(k)
            block = self.table.block(k)
            for name, into in zip(self.order, out, strict=True):
                column = block[name]
                if not isinstance(column, np.ndarray) or column.dtype != into.dtype:
                    raise ValueError("a block whose columns are of other dtypes")
                into[here] = column[rows]

    def identity(self) -> str:
        table = self.table
        names = [os.path.basename(p) for p in table.paths]
        rows = [b.rows for b in table.blocks]
        return digest("table", names, rows, table.columns, sorted(table.dtypes.items()))

    def name(self, index: int) -> str:
        k, row = self.table.place(index)
        file = self.table.blocks[k].file
        before = sum(b.rows for b in self.table.blocks[:k] if b.file == file)
        return f"file {self.table.paths[file]}, row {before + row}"

    def made_of(self, index: int) -> str:
        k, row = self.table.place(index)
        block, path = self.table.blocks[k], self.table.paths[self.table.blocks[k].file]
        told = (block, row, self.table.columns, sorted(self.table.dtypes.items()))
        return f"{guarded(path, stamp, path)} {told}"

    def as_data(self) -> Any:
        table = self.table
        return [[absolute(p) for p in table.paths], table.columns, table.dtypes]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        paths, columns, dtypes = said
        return cls(paths, columns, dtypes)


def table_of(
    who: str, paths: Any, columns: Sequence[str] | None, dtypes: Mapping[str, str] | None
) -> Table:
    """The tables of a pattern, a folder or a list."""
    found = find(paths, SUFFIXES)
    if not found:
        needed = f"files that end with {', '.join(SUFFIXES)}"
        raise misfit(ArgumentError, who, got=f"no file for {paths!r}", needed=needed)
    for name, given in (dtypes or {}).items():
        try:
            good = np.dtype(given).kind in "biuf"
        except TypeError:
            good = False
        if not good:
            got = f"dtypes={{{name!r}: {given!r}}}"
            raise misfit(ArgumentError, who, got=got, needed="dtypes of numbers")
    return Table(found, columns, dtypes)
