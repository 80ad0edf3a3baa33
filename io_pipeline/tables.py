"""Tables in files, Parquet and CSV, by pyarrow: their columns of numbers as arrays.

    data.parquet        read by row groups, of which only the columns that are asked for
    data.csv, .tsv      a line of names, then a line for each row: read by 1 MiB of lines

A file is looked through once, for where its blocks are. Rows are read with their block, and blocks stay
for a while for the rows beside it. Who reads rows in order has row groups cut into smaller blocks: a
cursor decodes a group page by page, and goes on where the block before has ended."""

from __future__ import annotations

import io
import itertools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from ostinato.ops.core.layout import Box, Shape
from ostinato.ops.core.locks import make_lock
from ostinato.ops.core.spec import DTYPES

from ostinato.errors import ArgumentError, DataFileError

from .remote import absolute, is_remote, open_file, trouble
from .source import Source, regular, short, stamp
from .thread_counts import each_of

SUFFIXES = (".parquet", ".csv", ".tsv")
LINES = 1 << 20  # bytes of a block of a CSV file, about,
TAIL_BYTES = 1 << 12  # and of a step to the end of its last line
WHOLE = 64 << 20  # bytes of a row group that is read whole, and of parts of what is larger
KEPT_BYTES = 64 << 20  # bytes of blocks that stay,
KEPT_BLOCKS = 2  # and blocks that stay whatever they hold
BESIDE = 2  # times what is read at once: of blocks that stay for a plan
AHEAD = 1 << 16  # bytes that are read of a column before they are decoded
CUT = 1 << 20  # bytes of a block that a row group is cut into, about,
MOST_CUTS = 1 << 12  # and how many blocks one is cut into
CURSORS = 8  # that wait in the middle of row groups for who goes on there
MOST_ROWS = 1 << 60
INSTALL = "pip install 'ostinato[feed]'"

_STORED = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_POINTER = 8  # bytes of a list for each text

Column = Any  # an array, or a list of what lies in none


class Block(NamedTuple):
    """Rows that are read together."""

    file: int
    number: int  # of a row group
    begin: int  # in bytes, or in rows of the group
    end: int
    rows: int


class Blocks:
    """The blocks of tables that have the same columns. Threads read them side by side."""

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None,
        dtypes: Mapping[str, str] | None,
        kept: int = KEPT_BYTES,
        few: int = KEPT_BLOCKS,
        cut: int = 0,  # bytes of blocks into which row groups are cut, for who reads in order
    ) -> None:
        self.paths, self.dtypes = list(paths), dict(dtypes or {})
        self.stamps = [guarded(p, stamp, p) for p in self.paths]
        self.readers = [guarded(p, _opened, p, self.dtypes) for p in self.paths]
        names = self.readers[0].names if self.readers else []
        self.columns = list(names if columns is None else columns)
        self.blocks: list[Block] = []
        for k, (path, reader) in enumerate(zip(self.paths, self.readers, strict=True)):
            lost = next((c for c in self.columns if c not in reader.names), None)
            if lost is not None:
                known = ", ".join(reader.names)
                raise trouble(path, f"no column {lost!r}", f"columns of {known:.200}")
            parts = guarded(path, reader.blocks, self.columns, cut)
            self.blocks += [Block(k, *block) for block in parts]
            if not all(0 <= b.rows <= MOST_ROWS // len(self.blocks) for b in self.blocks):
                raise trouble(path, "more rows than any table has", "it undamaged")
        self.blocks = [b for b in self.blocks if b.rows]
        self.ends = np.cumsum([b.rows for b in self.blocks], dtype=np.int64)
        self.kept_bytes, self.few = kept, few
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], dict[str, Column]] = OrderedDict()
        self._bytes: dict[tuple[int, tuple[str, ...]], int] = {}
        self._lock = make_lock()
        self._locks = [make_lock() for _ in range(16)]  # of blocks that are being read

    @property
    def rows(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def begin(self, k: int) -> int:
        """The first row of a block."""
        return int(self.ends[k]) - self.blocks[k].rows

    def groups(self, first: int, last: int) -> list[range]:
        """These blocks: those of one row group together, as they are read in order."""
        numbers = [(self.blocks[k].file, self.blocks[k].number) for k in range(first, last + 1)]
        cuts = [k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1]]
        ends = [first, *(first + k for k in cuts), last + 1]
        return [range(a, b) for a, b in itertools.pairwise(ends)]

    def place(self, row: int) -> tuple[int, int]:
        """A row's block, and where it is there."""
        k = int(np.searchsorted(self.ends, row, "right"))
        return k, row - self.begin(k)

    def block(self, k: int, columns: Sequence[str] | None = None) -> dict[str, Column]:
        """A block's columns, or some of them. Who needs one that is being read waits for it."""
        names = tuple(self.columns if columns is None else columns)
        with self._lock:
            found = self._kept.get((k, names))
            if found is not None:
                self._kept.move_to_end((k, names))
                return found
        with self._locks[k % len(self._locks)]:
            with self._lock:
                if (k, names) in self._kept:
                    return self._kept[k, names]
            found = self.read_block(self.blocks[k], names)
            size = sum(_bytes(c) for c in found.values())
            with self._lock:
                self._kept[k, names], self._bytes[k, names] = found, size
                while len(self._kept) > self.few and sum(self._bytes.values()) > self.kept_bytes:
                    self._bytes.pop(self._kept.popitem(last=False)[0])
            return found

    def read_block(self, block: Block, names: Sequence[str]) -> dict[str, Column]:
        path = self.paths[block.file]
        if guarded(path, stamp, path) != self.stamps[block.file]:
            raise trouble(path, "another size or time than before", "a file that stays as it is")
        table = guarded(path, self.readers[block.file].read, block, names)
        _pyarrow().default_memory_pool().release_unused()
        if table.num_rows != block.rows:
            raise trouble(
                path,
                f"{table.num_rows} rows in a block of {block.rows} lines",
                "a line for each row, and no line ends within values",
            )
        return {n: guarded(path, _column, table, n, self.dtypes.get(n)) for n in names}


class TableSource(Source):
    """A column of a table, or several beside each other, whose numbers get a dtype that has all."""

    def __init__(self, path: str, dataset: str | Sequence[str] | None) -> None:
        self.path = absolute(path)
        guarded(self.path, regular, self.path)
        self.dataset = dataset if dataset is None or isinstance(dataset, str) else list(dataset)
        wanted = [dataset] if isinstance(dataset, str) else self.dataset
        self.table = Blocks([self.path], wanted, None, kept=0, cut=CUT)
        self.columns = self.table.columns
        forms = [self._form(name) for name in self.columns]
        rows = self.table.rows
        if isinstance(dataset, str):
            ((inner, self.dtype),) = forms
            self.shape: Shape = (rows, *inner)
        else:
            deep = [n for n, (inner, _) in zip(self.columns, forms, strict=True) if inner]
            if deep or not forms:
                got = f"column {deep[0]!r} of rows of numbers" if deep else "no columns"
                raise self.trouble(got, "columns of numbers", f"name one, {self._some(deep[:1])}")
            self.shape = (rows, len(forms))
            self.dtype = np.result_type(*(dtype for _, dtype in forms))
        self.known(self.dtype)
        self.check_size()

    def _form(self, name: str) -> tuple[Shape, np.dtype[Any]]:
        """The shape of a value of a column, and its dtype."""
        kind = self.table.readers[0].types[name]
        types = _pyarrow().types
        inner: Shape = ()
        if types.is_fixed_size_list(kind):
            inner, kind = (int(kind.list_size),), kind.value_type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            good = [n for n in self.columns if n != name]
            raise self.trouble(f"column {name!r} of {kind}", "numbers", f"name {self._some(good)}")
        found = np.dtype(kind.to_pandas_dtype())
        if found not in DTYPES.values():
            raise self.trouble(f"column {name!r} of {kind}", "one of " + ", ".join(DTYPES))
        return inner, found

    def _some(self, names: Sequence[str]) -> str:
        shown = ", ".join(map(repr, names[:3])) or "a column"
        return f"the columns that are wanted: dataset=[{shown}{', ...' * (len(names) > 3)}]"

    def stored_bytes(self) -> int | None:
        return None if is_remote(self.path) else os.stat(self.path).st_size

    def read(self, out: np.ndarray[Any, Any], box: Box) -> None:
        if not out.size:
            return
        (lo, hi), *inner = box
        first, last = self.table.place(lo)[0], self.table.place(hi - 1)[0]
        self.table.kept_bytes = min(KEPT_BYTES, max(self.table.kept_bytes, BESIDE * out.nbytes))
        one = isinstance(self.dataset, str)
        names = self.columns if one else self.columns[slice(*inner[0])]

        def read(index: tuple[int, ...]) -> None:
            for k in groups[index[0]]:
                fill(k)

        def fill(k: int) -> None:
            begin = self.table.begin(k)
            a, b = max(lo, begin), min(hi, int(self.table.ends[k]))
            found, part = self.table.block(k, names), out[a - lo : b - lo]
            for j, name in enumerate(names):
                column = found[name]
                if not isinstance(column, np.ndarray):
                    got = f"no value in column {name!r}, of rows {begin} to {begin + len(column)}"
                    raise self.trouble(got, "a number in each row")
                rows = column[a - begin : b - begin]
                if one:
                    part[...] = rows[(slice(None), *slices_of(inner))]
                else:
                    part[:, j] = rows

        groups = self.table.groups(first, last)
        each_of(read, ((g,) for g in range(len(groups))), out.nbytes)


class _Parquet:
    """A Parquet file: its row groups."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_far = is_remote(path)
        with open_file(path) as file:
            self.metadata = _pyarrow("parquet").read_metadata(file)
        schema = self.metadata.schema.to_arrow_schema()
        self.names = list(schema.names)
        self.types = dict(zip(schema.names, schema.types, strict=True))
        types = _pyarrow().types
        texts = (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)
        # texts that come again and again stay one text each, whatever a file has made of them
        self.coded = [n for n, kind in self.types.items() if any(is_one(kind) for is_one in texts)]
        self.lock = make_lock()
        self.cursors: list[_Cursor] = []

    def blocks(self, columns: Sequence[str], cut: int) -> list[tuple[int, int, int, int]]:
        width = sum(_width(self.types[c]) for c in columns if c in self.types)
        found = []
        for k in range(self.metadata.num_row_groups):
            rows, each = self.metadata.row_group(k).num_rows, 0
            if cut:
                each = cut // max(width, 1)
            elif (size := self._size(k, columns)) > WHOLE:
                each = rows * WHOLE // size
            each = max(each, -(-rows // MOST_CUTS), 1) if each or cut else max(rows, 1)
            begins = range(0, rows, each) if rows > each else [0]
            found += [(k, at, (end := min(at + each, rows)), end - at) for at in begins]
        return found

    def read(self, block: Block, columns: Sequence[str]) -> Any:
        if block.rows == self.metadata.row_group(block.number).num_rows:
            with self.file() as file:
                return file.read_row_group(block.number, list(columns), use_threads=False)
        cursor = self._cursor(block, tuple(columns))
        table = cursor.take(block.begin, block.rows)
        if cursor.at < self.metadata.row_group(block.number).num_rows:
            with self.lock:
                self.cursors.append(cursor)
                old = self.cursors.pop(0) if len(self.cursors) > CURSORS else None
        else:
            old = cursor
        if old is not None:
            old.close()
        return table

    def _size(self, group: int, columns: Sequence[str]) -> int:
        """Bytes of a row group's columns once they are decoded: numbers of the file's types, and of texts
        what is stored of them, and where each lies."""
        size, about = 0, self.metadata.row_group(group)
        for k in range(about.num_columns):
            column = about.column(k)
            if column.path_in_schema.partition(".")[0] in columns:
                each = _STORED.get(column.physical_type) or self.metadata.schema.column(k).length
                size += column.num_values * (each or _POINTER)
                size += 0 if each else column.total_uncompressed_size
        return size

    def file(self) -> Any:
        about = {
            "metadata": self.metadata,
            "pre_buffer": self.is_far,
            "read_dictionary": self.coded,
        }
        if not self.is_far:  # with as little as can be
            about["buffer_size"] = AHEAD
        where = open_file(self.path) if self.is_far else self.path
        return _pyarrow("parquet").ParquetFile(where, **about)

    def _cursor(self, block: Block, columns: tuple[str, ...]) -> _Cursor:
        """The one that is nearest before a block, or a new one."""
        with self.lock:
            near = [
                (c.at, k)
                for k, c in enumerate(self.cursors)
                if (c.group, c.columns) == (block.number, columns) and c.at <= block.begin
            ]
            if near:
                return self.cursors.pop(max(near)[1])
        return _Cursor(self.file(), block.number, columns, block.end - block.begin)


class _Cursor:
    """A row group that is decoded in order, as much as is asked for."""

    def __init__(self, file: Any, group: int, columns: tuple[str, ...], each: int) -> None:
        self.file, self.group, self.columns, self.at = file, group, columns, 0
        about = {"row_groups": [group], "columns": list(columns), "use_threads": False}
        self.batches = file.iter_batches(batch_size=each, **about)
        self.rest: list[Any] = []  # of the last batch, what nobody has taken

    def take(self, begin: int, rows: int) -> Any:
        """These rows, which are not before where it is."""
        arrow, found, left = _pyarrow(), list[Any](), rows
        while left:
            batch = self.rest.pop() if self.rest else next(self.batches, None)
            if batch is None:
                break
            skipped = min(begin - self.at, batch.num_rows) if self.at < begin else 0
            here = batch.slice(skipped, left) if skipped < batch.num_rows else batch.slice(0, 0)
            used = skipped + here.num_rows
            if used < batch.num_rows:
                self.rest.append(batch.slice(used))
            self.at, left = self.at + used, left - here.num_rows
            if here.num_rows:
                found.append(here)
        return arrow.Table.from_batches(found, self.file.schema_arrow if not found else None)

    def close(self) -> None:
        self.batches, self.rest = iter(()), []
        self.file.close()


class _Csv:
    """A CSV file with a line of names: its lines, in blocks. What its columns are, the first one says."""

    def __init__(self, path: str, dtypes: Mapping[str, str]) -> None:
        self.path = path
        self.separator = "\t" if path.lower().endswith(".tsv") else ","
        self.found: list[tuple[int, int, int, int]] = []
        with open_file(path, LINES) as file:
            self.head = file.readline(LINES)
            mark = self.head.find(b"\r")
            alone = 0 <= mark < len(self.head) - 1 and self.head[mark + 1 : mark + 2] != b"\n"
            end = b"\r" if alone and self.head[:mark].count(b'"') % 2 == 0 else b"\n"
            file.seek(0)
            self.head = _to_line(file, b"", end)
            at = len(self.head)
            while data := file.read(LINES):
                data = _to_line(file, data, end)
                self.found.append((len(self.found), at, at + len(data), _lines(data, end)))
                at += len(data)
        arrow = _pyarrow()
        given = {n: arrow.from_numpy_dtype(np.dtype(d)) for n, d in dtypes.items()}
        self.known = given  # types that columns have in each block
        first = self._parsed(*self.found[0][1:3]) if self.found else self._parsed(0, 0)
        self.names = list(first.schema.names)
        self.types = {f.name: f.type for f in first.schema}
        self.known = {n: t for n, t in self.types.items() if t != arrow.null()} | given

    def blocks(self, columns: Sequence[str], cut: int) -> list[tuple[int, int, int, int]]:
        return self.found

    def read(self, block: Block, columns: Sequence[str]) -> Any:
        return self._parsed(block.begin, block.end, columns)

    def _parsed(self, begin: int, end: int, columns: Sequence[str] = ()) -> Any:
        csv = _pyarrow("csv")
        with open_file(self.path) as file:
            file.seek(begin)
            data = self.head + file.read(end - begin)
        return csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=csv.ParseOptions(delimiter=self.separator),
            convert_options=csv.ConvertOptions(
                column_types=self.known, include_columns=list(columns)
            ),
        )


def _to_line(file: BinaryIO, data: bytes, end: bytes) -> bytes:
    """Append what follows up to the end of a line."""
    while not data.endswith(end) and (more := file.read(TAIL_BYTES)):
        cut = more.find(end) + 1
        if cut:
            file.seek(cut - len(more), os.SEEK_CUR)
            more = more[:cut]
        data += more
    return data


def _lines(data: bytes, end: bytes) -> int:
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord(end))
    if not data.endswith(end):
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
    if types.is_dictionary(kind):
        if dtype is None:
            values = [*column.dictionary.to_pylist(), None]
            return [values[k] for k in column.indices.fill_null(-1).to_pylist()]
        column = column.dictionary_decode()
    if dtype is not None:
        kind = arrow.from_numpy_dtype(np.dtype(dtype))
        column = column.cast(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_number and (not column.null_count or types.is_floating(kind)):
        return _numbers(column)
    if types.is_fixed_size_list(kind) and not column.null_count:
        inner = column.flatten()
        if not inner.null_count and types.is_primitive(inner.type):
            return _numbers(inner).reshape(len(column), kind.list_size)
    values = column.to_pylist()
    if (types.is_list(kind) or types.is_large_list(kind)) and types.is_primitive(kind.value_type):
        number = kind.value_type.to_pandas_dtype()
        return [None if v is None else np.array(v, number) for v in values]
    return values


def _numbers(column: Any) -> np.ndarray[Any, Any]:
    """A column of numbers, of which those that floats lack are NaN. pyarrow's own `to_numpy` loads all of
    pandas, where that is installed."""
    arrow = _pyarrow()
    if arrow.types.is_boolean(column.type):
        return _numbers(column.cast(arrow.uint8())).astype(bool)
    dtype = np.dtype(column.type.to_pandas_dtype())
    valid, values = column.buffers()
    found = np.frombuffer(values, dtype, column.offset + len(column))[column.offset :]
    if not column.null_count:
        return found
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
    return np.where(bits[column.offset :][: len(column)], found, dtype.type(np.nan))


def _width(kind: Any) -> int:
    """Bytes of a value of a column, about."""
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:  # of what may be of any length
        return 8


def _bytes(column: Column) -> int:
    if isinstance(column, np.ndarray):
        return column.nbytes
    return sum(getattr(v, "nbytes", 0) or len(v) if hasattr(v, "__len__") else 32 for v in column)


def slices_of(box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in box)


def guarded(path: str, function: Any, *given: Any) -> Any:
    """Call a library about a file: what it says of one that is damaged names that file."""
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
