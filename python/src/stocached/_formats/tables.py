"""Tables of Parquet and of Arrow's files, which pyarrow reads a group of rows at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from .._common.errors import BadSampleError, InvalidError, StocachedError, UnsupportedError
from .._common.one_line import printable
from .._common.sizes import show_size
from .lines import check_columns, chosen_columns
from .local_file import AsRaw

_HUGE, _GOOD = 64 << 20, 1 << 20  # bytes of a group: that causes a warning, and that it advises
_MOST_OPEN = 16  # files of a thread
_HOLE = 8 << 10  # bytes between two parts of an object that pyarrow reads together, at most
_ROW, _VALUE = 200, 60  # bytes of a dict, and of a number in it: a file may say a million of them in a few bytes
_NEXT = itertools.count()
_local = threading.local()
# Not seen in values.
_SAME = re.compile(r"large_|_view|fixed_size_|, tz=[^]]*| not null|(?<=binary)\[.*|(?<=^time)\d.*|(?<=^decimal)\d.*")
_NUMBERS = {"halffloat": "f2", "float": "f4", "double": "f8"}  # names of NumPy's, where others than pyarrow's
_simple: dict[int, tuple[bool, bool]] = {}  # by the id of a type: whether they are numbers, texts or bytes


class Table:
    """Each element is a list of rows, a dict each. A thread has readers of its own, opened in its process.

    counts: the rows of each element. item_bytes: of all elements, about. item_columns: the keys of rows. item_types: what is in
    them, if files may differ in it. warning: what the program is told of the file."""

    what = module = ""
    extra = "parquet"
    errors: tuple[type[Exception], ...] = (ValueError, OSError)  # those of the library
    warning = ""
    addresses = True
    item_types: dict[str, str]

    def __init__(self, path: Any, columns: Sequence[str] | None = None) -> None:
        self._path = path
        self._begin()
        try:
            __import__(self.module)
        except ImportError as error:
            raise UnsupportedError(
                f"{printable(str(path))} needs {self._library()} ({error}); run: pip install stocached[{self.extra}]"
            ) from None
        with self._reading(InvalidError, f"{printable(str(path))} is no {self.what} that can be read"):
            names = self._look()
            check_columns(columns)
            names += self._others([name for name in columns or () if name not in names])
            self._names = [names[at] for at in chosen_columns(path, names, columns)]
            self.item_columns = self._names
            self._plan()
        self._all = columns is None

    @contextlib.contextmanager
    def _reading(self, kind: type[StocachedError], why: str) -> Iterator[None]:
        """An error of the library becomes one of this kind. Those of an address, and of the system, stay as they are."""
        try:
            yield
        except StocachedError:
            raise
        except self.errors as error:
            if getattr(error, "errno", None):
                raise
            raise kind(f"{why}: {error}") from None

    def _library(self) -> str:
        return self.module.partition(".")[0]

    def _file(self) -> Any:
        """For a reader of one thread."""
        import pyarrow

        path = self._path
        return pyarrow.OSFile(path) if isinstance(path, str) else pyarrow.PythonFile(AsRaw(path, path.size), "r")

    def _begin(self) -> None:
        self._number = next(_NEXT)

    def _weigh(self, sizes: Sequence[int]) -> list[int]:
        """About the bytes of each element in memory. sizes: as the file says."""
        row = _ROW + _VALUE * len(self._names)
        made = [max(size, row * rows) for size, rows in zip(sizes, self.counts)]
        self.item_bytes = sum(made)
        return made

    def _look(self) -> list[str]:
        """The names of columns. It finds out what the file has."""
        raise NotImplementedError

    def _note_types(self, schema: Any) -> list[str]:
        """The names of its columns."""
        self._types = {field.name: field.type for field in schema}
        return list(schema.names)

    def _others(self, names: Sequence[str]) -> list[str]:
        """Those of these names that stand for a column nonetheless."""
        return []

    def _plan(self) -> None:
        """It finds out what the chosen columns have."""
        nulls = self._only_nulls()
        self.item_types = dict(kind for name in self._names for kind in _kinds_of(name, self._types[name], nulls))
        del self._types

    def _only_nulls(self) -> set[str]:
        """The columns, and the fields in them, that have nothing else, as far as the file says it."""
        return set()

    def _open(self) -> Any:
        raise NotImplementedError

    def _read(self, reader: Any, k: int) -> Any:
        raise NotImplementedError

    def _reader(self) -> Any:
        if getattr(_local, "process", None) != os.getpid():
            _local.process, _local.readers = os.getpid(), OrderedDict[int, Any]()
        readers = _local.readers
        reader = readers.pop(self._number, None)
        if reader is None:
            reader = self._open()
            if len(readers) >= _MOST_OPEN:
                readers.popitem(last=False)
        readers[self._number] = reader
        return reader

    def __len__(self) -> int:
        return len(self.counts)

    counts: Sequence[int] = ()

    def __getitem__(self, k: int) -> list[dict[str, Any]]:
        with self._reading(BadSampleError, f"{self._library()} does not read it"):
            columns = self._columns(self._reader(), k)
        return [*map(dict, map(zip, itertools.repeat(self._names), zip(*columns)))]  # C does it all

    def _columns(self, reader: Any, k: int) -> list[Sequence[Any]]:
        """The values of each column in an element."""
        table = self._read(reader, k)
        return [_values_of(table.column(name)) for name in self._names]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_number", "_metadata")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


class Parquet(Table):
    """Elements are row groups. columns: the names of those that are read; None: all."""

    what, module = "Parquet file", "pyarrow.parquet"
    _metadata: Any = None

    def __init__(self, path: Any, columns: Sequence[str] | None = None) -> None:
        super().__init__(path, columns)
        metadata = self._metadata
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        self.counts = [group.num_rows for group in groups]
        sizes = self._weigh([self._bytes(group) for group in groups])
        self._spans = [] if isinstance(path, str) else [self._parts(group, path.size) for group in groups]
        if sizes and max(sizes) > _HUGE:
            rows = max(self.counts)
            name, good = printable(str(path)), max(1, rows * _GOOD // max(sizes))
            self.warning = (
                f"{name} has groups of up to {rows:,} rows, {show_size(max(sizes))} in memory, and one read gives a whole group; "
                "smaller ones take less memory, and shuffle better: import pyarrow.parquet as pq; "
                f'pq.write_table(pq.read_table("{name}"), "{name}", row_group_size={good})'
            )

    def _bytes(self, group: Any) -> int:
        if self._all:
            return int(group.total_byte_size)
        return sum(chunk.total_uncompressed_size for chunk in self._chunks(group))

    def _chunks(self, group: Any) -> Iterator[Any]:
        """Of the chosen columns."""
        wanted, chunks = set(self._names), map(group.column, range(group.num_columns))
        return (chunk for chunk in chunks if self._all or chunk.path_in_schema.split(".")[0] in wanted)

    def _only_nulls(self) -> set[str]:
        columns, metadata = [*range(self._metadata.num_columns)], self._metadata
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            chunks = [(at, group.column(at)) for at in columns]
            columns = [at for at, each in chunks if each.is_stats_set and each.statistics.null_count == each.num_values]
        return {metadata.schema.column(at).path for at in columns}

    def _parts(self, group: Any, size: int) -> list[tuple[int, int]]:
        """The parts of an object of this size that a group takes, as pyarrow reads them."""
        parts = list[tuple[int, int]]()
        for chunk in self._chunks(group):
            at = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
            begin = parts.pop()[0] if parts and 0 <= at - parts[-1][1] <= _HOLE else at
            parts.append((begin, at + chunk.total_compressed_size))
        return [(begin, end - begin) for begin, end in parts if 0 <= begin <= end <= size]  # a file may say anything

    def spans(self, k: int) -> list[tuple[int, int]]:
        """The parts of an object that a group takes: place and bytes."""
        return self._spans[k]

    def _look(self) -> list[str]:
        reader = self._reader()
        self._metadata = reader.metadata
        return self._note_types(reader.schema_arrow)

    def _open(self) -> Any:
        from pyarrow import parquet

        near = isinstance(self._path, str)
        # Of an address, parts that lie near each other are one request.
        return parquet.ParquetFile(self._path if near else self._file(), metadata=self._metadata, pre_buffer=not near)

    def _read(self, reader: Any, k: int) -> Any:
        return reader.read_row_group(k, columns=self._names, use_threads=False)  # the loader has workers

    def name(self, k: int) -> str:
        return f"row group {k}"


class Arrow(Table):
    """Elements are record batches. columns: the names of those that are read; None: all."""

    what, module = "Arrow file", "pyarrow.ipc"
    _spans: Sequence[tuple[int, int]] = ()
    _sizes: list[int]
    _index: dict[str, int]
    _nulls: set[str] | None = None

    def __init__(self, path: Any, columns: Sequence[str] | None = None) -> None:
        self._fields: list[int] | None = None
        super().__init__(path, columns)
        self._weigh(self._sizes)
        if not self._all:  # pyarrow reads a part for each column
            self._spans = ()
        self._fields = None if self._all else [self._index[name] for name in self._names]
        self._begin()  # the next reader has the chosen fields alone

    def _look(self) -> list[str]:
        import pyarrow

        near, noted, found = isinstance(self._path, str), _Noted(self._path), list[tuple[int, int]]()
        # So that counting reads no rows.
        with pyarrow.memory_map(self._path) if near else pyarrow.PythonFile(AsRaw(noted, self._path.size), "r") as file:
            reader = pyarrow.ipc.open_file(file)
            names = self._note_types(reader.schema)
            if not near:  # a column tells how many rows there are
                file.seek(0)
                reader = pyarrow.ipc.open_file(file, options=pyarrow.ipc.IpcReadOptions(included_fields=[0]))
            for k in range(reader.num_record_batches):  # one at a time: compressed ones are unpacked
                noted.next, batch = True, reader.get_batch(k)
                found.append((batch.num_rows, batch.nbytes * (1 if near else len(names))))
                nulls = set(_nulls_of(batch))
                self._nulls = nulls if self._nulls is None else self._nulls & nulls
                del batch
            del reader
        if not near:
            ends = sorted([*noted.places, self._path.size])
            self._spans = [(at, ends[bisect_right(ends, at)] - at) for at in noted.places]
        self.counts, self._sizes = [rows for rows, _ in found], [size for _, size in found]
        self._index = {name: at for at, name in enumerate(names)}
        return names

    def _only_nulls(self) -> set[str]:
        return self._nulls or set()

    def _open(self) -> Any:
        import pyarrow

        options = pyarrow.ipc.IpcReadOptions(use_threads=False, included_fields=self._fields)
        return pyarrow.ipc.open_file(self._file(), options=options)

    def _read(self, reader: Any, k: int) -> Any:
        batch = reader.get_batch(k)
        batch.validate(full=True)  # else offsets of a damaged file lead anywhere in memory
        return batch

    def spans(self, k: int) -> list[tuple[int, int]]:
        """As that of `Parquet`."""
        return list(self._spans[k : k + 1])

    def name(self, k: int) -> str:
        return f"record batch {k}"


class _Noted:
    """An object, and the places that were read first after `next` was set."""

    def __init__(self, file: Any) -> None:
        self._file, self.next, self.places = file, False, list[int]()

    def pread(self, size: int, at: int) -> bytes:
        if self.next:
            self.places.append(at)
            self.next = False
        return self._file.pread(size, at)  # type: ignore[no-any-return]


def _nulls_of(batch: Any) -> Iterator[str]:
    """The names of columns, and of the fields in them, that have only nulls, as the file has counted them."""
    from pyarrow import types

    columns = [*zip(batch.schema.names, batch.columns)]
    while columns:
        name, column = columns.pop()
        try:
            column.validate()  # else what a damaged file does not count is counted anywhere in memory
        except ValueError:
            continue
        if column.null_count == len(column):
            yield name
        elif types.is_struct(column.type):
            kinds = map(column.type.field, range(column.type.num_fields))
            columns += [(f"{name}.{kind.name}", column.field(k)) for k, kind in enumerate(kinds)]


def _kinds_of(name: str, kind: Any, nulls: Set[str], *, plain: bool = False) -> Iterator[tuple[str, str]]:
    """What the values of a type are, and the values in them. Types whose values are alike have one text; nulls have none.
    plain: numbers in it are Python's."""
    from pyarrow import FixedShapeTensorType, types

    tensor = isinstance(kind, FixedShapeTensorType)
    said = _SAME.sub("", str(kind))
    if name in nulls or types.is_null(kind):
        return
    if hasattr(kind, "storage_type") and (not tensor or len(kind.shape) == 1):
        yield from _kinds_of(name, kind.storage_type, nulls, plain=plain)
    elif types.is_dictionary(kind):
        yield from _kinds_of(name, kind.value_type, nulls, plain=plain)
    elif types.is_struct(kind):
        fields = [kind.field(k) for k in range(kind.num_fields)]
        yield name, f"dict of {', '.join(sorted(field.name for field in fields))}"
        for field in fields:
            yield from _kinds_of(f"{name}.{field.name}", field.type, nulls, plain=plain)
    elif types.is_map(kind):
        yield name, "map"
        yield from _kinds_of(f"{name} (key)", kind.key_type, nulls, plain=True)
        yield from _kinds_of(f"{name} (value)", kind.item_type, nulls, plain=True)
    elif said.startswith("list<"):
        yield name, "list"
        yield from _kinds_of(f"{name}[]", kind.value_type, nulls, plain=plain or not _is_number(kind.value_type))
    elif plain and types.is_integer(kind):
        yield name, "int"
    else:
        yield name, "float" if plain and types.is_floating(kind) else said


def _values_of(column: Any) -> Sequence[Any]:
    """The values of a column: numbers and arrays of NumPy, texts, bytes, lists, dicts; None for a null."""
    kind = column.type
    simple = _simple.get(kind.id)
    if simple is None:
        simple = _simple[kind.id] = _is_number(kind), _is_text(kind)
    number, text = simple
    if text or (number and not column.null_count):  # to ask pyarrow takes as long as to read a small group
        return column.to_pylist() if text else [value for chunk in _chunks(column) for value in _numbers(chunk)]
    return _values_of_others(column, kind)


def _chunks(column: Any) -> Sequence[Any]:
    """Those of a column that has several, else itself."""
    return getattr(column, "chunks", None) or [column]


def _values_of_others(column: Any, kind: Any) -> Sequence[Any]:
    import pyarrow
    from pyarrow import types

    if isinstance(column, pyarrow.ChunkedArray):
        return [value for chunk in column.chunks for value in _values_of(chunk)]
    if isinstance(column, pyarrow.FixedShapeTensorArray):
        return _between_nulls(iter(np.array(column.drop_null().to_numpy_ndarray())), column)
    if isinstance(column, pyarrow.ExtensionArray):
        return _values_of(column.storage)
    if types.is_dictionary(kind):
        return _values_of(column.dictionary_decode())
    if types.is_struct(kind):
        names = [kind.field(k).name for k in range(kind.num_fields)]
        made = [dict(zip(names, row)) for row in zip(*map(_values_of, column.flatten()))]
        return _or_none(made or [{}] * len(column), column)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return _or_none(list(column.to_numpy(zero_copy_only=False)), column)
    if _is_number(kind):
        return _or_none(list(_numbers(column)), column)
    if _SAME.sub("", str(kind)).startswith("list<") and _is_number(kind.value_type):
        values = column.flatten()  # the values of the rows that are not null
        if not values.null_count:
            numbers = np.array(_numbers(values))  # a copy that the program may change, as torch wants it
            if types.is_fixed_size_list(kind):
                rows = list(numbers.reshape(len(column) - column.null_count, kind.list_size))
                return _between_nulls(iter(rows), column) if column.null_count else rows
            ends = np.cumsum(_sizes_of(column)).tolist()
            return _or_none([numbers[begin:end] for begin, end in itertools.pairwise([0, *ends])], column)
    return list(column.to_pylist())


def _sizes_of(column: Any) -> npt.NDArray[Any]:
    """The values in each row of a column of lists; 0 for a null, whatever lies below it."""
    sizes = _numbers(column.sizes) if hasattr(column, "sizes") else np.diff(_numbers(column.offsets))
    return sizes * _numbers(column.is_valid()) if column.null_count else sizes


def _between_nulls(values: Iterator[Any], column: Any) -> list[Any]:
    """values: of the rows that are not null."""
    return [next(values) if there else None for there in _numbers(column.is_valid()).tolist()]


def _numbers(values: Any) -> npt.NDArray[Any]:
    """The numbers of an array, any where nulls are. That of pyarrow imports pandas, which takes each worker 0.2 s."""
    kind, begin, end = str(values.type), values.offset, values.offset + len(values)
    memory = values.buffers()[1]
    if not len(values):
        return np.empty(0, _NUMBERS.get(kind, kind))
    if kind == "bool":
        return np.unpackbits(np.frombuffer(memory, np.uint8), count=end, bitorder="little")[begin:].view(np.bool_)
    return np.frombuffer(memory, _NUMBERS.get(kind, kind))[begin:end]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_string(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _or_none(values: list[Any], column: Any) -> list[Any]:
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, _numbers(column.is_valid()).tolist())]
