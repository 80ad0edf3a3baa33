"""Rows of tables in files, as dicts: Parquet and CSV, by pyarrow.

A file is looked through once, for where its blocks are: the row groups of a Parquet file, about 1 MiB of
lines of a CSV file. A row is read with its block, and blocks stay for a while for the rows beside it; so
tables are shuffled best with shuffle(block=...), which keeps rows of a block near each other."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ostinato.ops.core.user_line import misfit

from ostinato.errors import ArgumentError, DataFileError

from ..source import short, trouble
from .fields import Fields, fields_of
from .folders import find
from .samples import Samples, digest, stamp

SUFFIXES = (".parquet", ".csv", ".tsv")
LINES = 1 << 20  # bytes of a block of a CSV file, about
KEPT, FEW = 256 << 20, 4  # bytes of blocks that stay, and blocks that stay whatever they hold
INSTALL = "pip install 'ostinato[feed]'"

Column = Any  # an array, or a list of what lies in none


class Block(NamedTuple):
    """Rows that are read together."""

    file: int
    number: int  # of a row group
    begin: int  # in bytes
    end: int
    rows: int


class Table(Samples):
    """The rows of tables that have the same columns."""

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.paths, self.dtypes = list(paths), dict(dtypes or {})
        self.stamps = [_guarded(p, stamp, p) for p in self.paths]
        self.readers = [_guarded(p, _opened, p, self.dtypes) for p in self.paths]
        names = self.readers[0].names if self.readers else []
        self.columns = list(names if columns is None else columns)
        self.blocks: list[Block] = []
        for k, (path, reader) in enumerate(zip(self.paths, self.readers, strict=True)):
            lost = next((c for c in self.columns if c not in reader.names), None)
            if lost is not None:
                known = ", ".join(reader.names)
                raise trouble(path, f"no column {lost!r}", f"columns of {known:.200}")
            self.blocks += [Block(k, *block) for block in reader.blocks()]
        self.blocks = [b for b in self.blocks if b.rows]
        self.ends = np.cumsum([b.rows for b in self.blocks], dtype=np.int64)
        self.order = sorted(self.columns)  # that of leaves
        self.fields: Fields = fields_of(dict.fromkeys(self.columns, 0))[0]
        self._kept: OrderedDict[int, dict[str, Column]] = OrderedDict()
        self._bytes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(16)]  # of blocks that are being read

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def _place(self, index: int) -> tuple[int, int]:
        """A row's block, and where it is there."""
        k = int(np.searchsorted(self.ends, index, "right"))
        return k, index - int(self.ends[k]) + self.blocks[k].rows

    def read(self, index: int) -> tuple[list[Any], Fields]:
        k, row = self._place(index)
        block = self._block(k)
        values = [block[name][row] for name in self.order]
        if any(v is None for v in values):
            name = next(n for n, v in zip(self.order, values, strict=True) if v is None)
            path = self.paths[self.blocks[k].file]
            raise trouble(path, f"no value in column {name!r}", "one in each row")
        return values, self.fields

    def _block(self, k: int) -> dict[str, Column]:
        """A block's columns. Who needs one that is being read waits for it."""
        with self._lock:
            found = self._kept.get(k)
            if found is not None:
                self._kept.move_to_end(k)
                return found
        with self._locks[k % len(self._locks)]:
            with self._lock:
                if k in self._kept:
                    return self._kept[k]
            found = self._read(self.blocks[k])
            size = sum(_bytes(c) for c in found.values())
            with self._lock:
                self._kept[k], self._bytes[k] = found, size
                while len(self._kept) > FEW and sum(self._bytes.values()) > KEPT:
                    self._bytes.pop(self._kept.popitem(last=False)[0])
            return found

    def _read(self, block: Block) -> dict[str, Column]:
        path = self.paths[block.file]
        if _guarded(path, stamp, path) != self.stamps[block.file]:
            raise trouble(path, "another size or time than before", "a file that stays as it is")
        table = _guarded(path, self.readers[block.file].read, block, self.columns)
        if table.num_rows != block.rows:
            raise trouble(
                path,
                f"{table.num_rows} rows in a block of {block.rows} lines",
                "a line for each row, and no line ends within values",
            )
        return {n: _guarded(path, _column, table, n, self.dtypes.get(n)) for n in self.columns}

    def forms(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
        if not len(self):
            return None
        try:
            first = self._block(0)
        except DataFileError:  # which says so when it is read
            return None
        if not all(isinstance(c, np.ndarray) and c.dtype.kind in "biuf" for c in first.values()):
            return None
        return [(c.shape[1:], c.dtype) for c in (first[n] for n in self.order)]

    def gather(self, indices: Sequence[int], out: Sequence[np.ndarray[Any, Any]]) -> None:
        places = np.array(indices, np.int64)
        blocks = np.searchsorted(self.ends, places, "right")
        for k in np.unique(blocks).tolist():
            here = blocks == k
            rows = places[here] - self.ends[k] + self.blocks[k].rows
            block = self._block(k)
            for name, into in zip(self.order, out, strict=True):
                column = block[name]
                if not isinstance(column, np.ndarray) or column.dtype != into.dtype:
                    raise ValueError("a block whose columns are of other dtypes")
                into[here] = column[rows]

    def identity(self) -> str:
        names = [os.path.basename(p) for p in self.paths]
        rows = [b.rows for b in self.blocks]
        return digest("table", names, rows, self.columns, sorted(self.dtypes.items()))

    def name(self, index: int) -> str:
        k, row = self._place(index)
        file = self.blocks[k].file
        before = sum(b.rows for b in self.blocks[:k] if b.file == file)
        return f"file {self.paths[file]}, row {before + row}"

    def made_of(self, index: int) -> str:
        k, row = self._place(index)
        block = self.blocks[k]
        told = (block, row, self.columns, sorted(self.dtypes.items()))
        return f"{_guarded(self.paths[block.file], stamp, self.paths[block.file])} {told}"

    def as_data(self) -> Any:
        return [[os.path.abspath(p) for p in self.paths], self.columns, self.dtypes]

    @classmethod
    def from_data(cls, said: Any) -> Samples:
        paths, columns, dtypes = said
        return cls(paths, columns, dtypes)


class _Parquet:
    """A Parquet file: its row groups."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata = _pyarrow("parquet").read_metadata(path)
        self.names = list(self.metadata.schema.to_arrow_schema().names)

    def blocks(self) -> list[tuple[int, int, int, int]]:
        groups = range(self.metadata.num_row_groups)
        return [(k, 0, 0, self.metadata.row_group(k).num_rows) for k in groups]

    def read(self, block: Block, columns: Sequence[str]) -> Any:
        file = _pyarrow("parquet").ParquetFile(self.path, metadata=self.metadata)
        with file:
            return file.read_row_group(block.number, list(columns), use_threads=False)


class _Csv:
    """A CSV file with a line of names: its lines, in blocks. What its columns are, the first one says."""

    def __init__(self, path: str, dtypes: Mapping[str, str]) -> None:
        self.path = path
        self.separator = "\t" if path.lower().endswith(".tsv") else ","
        self.found: list[tuple[int, int, int, int]] = []
        with open(path, "rb") as file:
            self.head = file.readline()
            at = len(self.head)
            while data := file.read(LINES):
                if not data.endswith(b"\n"):
                    data += file.readline()
                self.found.append((len(self.found), at, at + len(data), _lines(data)))
                at += len(data)
        arrow = _pyarrow()
        self.types = {n: arrow.from_numpy_dtype(np.dtype(d)) for n, d in dtypes.items()}
        first = self._parsed(*self.found[0][1:3]) if self.found else self._parsed(0, 0)
        self.names = list(first.schema.names)
        self.types = {f.name: f.type for f in first.schema if f.type != arrow.null()} | self.types

    def blocks(self) -> list[tuple[int, int, int, int]]:
        return self.found

    def read(self, block: Block, columns: Sequence[str]) -> Any:
        return self._parsed(block.begin, block.end).select(list(columns))

    def _parsed(self, begin: int, end: int) -> Any:
        csv = _pyarrow("csv")
        with open(self.path, "rb") as file:
            file.seek(begin)
            data = self.head + file.read(end - begin)
        return csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=csv.ParseOptions(delimiter=self.separator),
            convert_options=csv.ConvertOptions(column_types=self.types),
        )


def _lines(data: bytes) -> int:
    """Lines that are not empty."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(text))
    begins = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - begins
    empty = lengths == 0
    ones = np.flatnonzero(lengths == 1)
    empty[ones] = text[begins[ones]] == ord("\r")
    return int((~empty).sum())


def _column(table: Any, name: str, dtype: str | None) -> Column:
    """A column: an array of numbers, of rows of numbers, or a list of anything else."""
    arrow = _pyarrow()
    chunked = table.column(name)
    column = chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)
    if isinstance(column, arrow.ChunkedArray):  # of no rows
        return []
    types, kind = arrow.types, column.type
    if dtype is not None:
        kind = arrow.from_numpy_dtype(np.dtype(dtype))
        column = column.cast(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_number and (not column.null_count or types.is_floating(kind)):
        found = column.to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(found)
    if types.is_fixed_size_list(kind) and not column.null_count:
        inner = column.flatten()
        if not inner.null_count and types.is_primitive(inner.type):
            return inner.to_numpy(zero_copy_only=False).reshape(len(column), kind.list_size)
    values = column.to_pylist()
    if (types.is_list(kind) or types.is_large_list(kind)) and types.is_primitive(kind.value_type):
        number = kind.value_type.to_pandas_dtype()
        return [None if v is None else np.array(v, number) for v in values]
    return values


def _bytes(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return column.nbytes
    return sum(getattr(v, "nbytes", 0) or len(v) if hasattr(v, "__len__") else 32 for v in column)


def _guarded(path: str, function: Any, *given: Any) -> Any:
    """What a library does with a file; what it says of one that is damaged is about that file."""
    try:
        return function(*given)
    except (DataFileError, ArgumentError):
        raise
    except Exception as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else short(error)
        raise trouble(path, said[:1].lower() + said[1:], "a table in Parquet or CSV") from None


def _opened(path: str, dtypes: Mapping[str, str]) -> _Parquet | _Csv:
    return _Parquet(path) if path.lower().endswith(".parquet") else _Csv(path, dtypes)


@lru_cache(4)
def _pyarrow(part: str = "") -> Any:
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise ArgumentError.because("table", got="no pyarrow", needed="it", do=INSTALL) from None
    return getattr(pyarrow, part) if part else pyarrow


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
