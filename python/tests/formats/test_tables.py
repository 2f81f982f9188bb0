"""What is special about tables: which rows come together, and which columns and groups are read."""

from __future__ import annotations

import datetime
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Later, python, without
from made import written

from stocached import BadSampleError, InvalidError, Loader, source
from stocached._formats import tables
from stocached._pipes import sources

pa = Later("pyarrow")
pq = Later("pyarrow.parquet")
feather = Later("pyarrow.feather")
h5py = Later("h5py")


def table(path: Path, rows: int, group: int, width: int = 4) -> Path:
    data = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    vector = pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), width)
    pq.write_table(pa.table({"k": np.arange(rows), "vector": vector}), path, row_group_size=group)
    return path


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    came, read = [], tables.Parquet._read

    def noted(self: Any, reader: Any, k: int) -> Any:
        came.append(k)
        return read(self, reader, k)

    monkeypatch.setattr(tables.Parquet, "_read", noted)
    return came


def epoch(loader: Loader) -> list[int]:
    return [number for batch in loader for number in batch["k"].tolist()]


def test_a_shuffle_reads_each_group_once(tmp_path: Path, groups_read: list[int]):
    pipe = source(table(tmp_path / "a.parquet", 1000, 20)).shuffle(seed=1)
    loader = Loader(pipe.batch(10))
    found = epoch(loader)
    assert sorted(groups_read) == [*range(50)]
    assert len(loader) == 100
    assert sorted(found) == [*range(1000)]
    together = np.diff(np.array(found) // 20)
    assert (together == 0).mean() < 0.1  # neighbours are of one group as rarely as by chance


def test_a_window_holds_groups_of_some_bytes(tmp_path: Path, groups_read: list[int], monkeypatch: pytest.MonkeyPatch):
    """Of 64 KiB each, and a few more of a small column: some of them are mixed, and of that column alone all."""
    monkeypatch.setattr(sources, "_WINDOW_BYTES", 512 << 10)
    path = table(tmp_path / "a.parquet", 24 * 16, 16, width=1 << 10)
    pipe = source(path).shuffle(seed=1).map(key)
    window = pipe._stage.usual_window
    assert 3 <= window <= 12
    first = [number for _, number in zip(range(16 * window), pipe)]
    assert len(groups_read) == len({number // 16 for number in first}) == window
    assert source(path, columns=["k"]).shuffle(seed=1)._stage.usual_window >= 24
    two = source(path).shuffle(seed=1, window=2).map(key)
    del groups_read[:]
    next(iter(two))
    assert len(groups_read) == 2


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_rows_weigh_what_they_take_in_memory(tmp_path: Path, ending: str):
    """A column of one value takes a few bytes in a file, and each row is a dict: a window of all took 410 bytes a row."""
    path = written(tmp_path / f"a.{ending}", pa.table({"k": pa.array([1] * 1_000_000, pa.int8())}), 10_000)
    assert 10 <= source(path).shuffle(seed=1)._stage.usual_window <= 40


def key(row: dict[str, Any]) -> int:
    return int(row["k"])


def test_ranks_end_together_by_the_counts(tmp_path: Path):
    pipe = source(table(tmp_path / "a.parquet", 110, 20)).cache("16MiB").shuffle(seed=1, window=1)
    ranks = [epoch(Loader(pipe.batch(10), rank=rank, world_size=2, ends="drop")) for rank in range(2)]
    assert [*map(len, ranks)] == [50, 50]
    assert len({*ranks[0], *ranks[1]}) == 100


def test_a_huge_group_is_a_warning_with_the_line_that_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = table(tmp_path / "a.parquet", 100, 100)
    monkeypatch.setattr(tables, "_HUGE", 20_000)
    monkeypatch.setattr(tables, "_GOOD", 2_000)
    with pytest.warns(UserWarning, match="groups of up to 100 rows, .* in memory") as warned:
        assert len(source(path)) == 100
    assert warned[0].filename == __file__
    exec(str(warned[0].message).partition("shuffle better: ")[2])
    assert 3 <= pq.ParquetFile(path).metadata.row_group(0).num_rows <= 10
    monkeypatch.setattr(tables, "_HUGE", 50_000)
    source(path)


def test_values_of_other_types(tmp_path: Path):
    day, none = np.datetime64("2026-01-02"), None
    values: dict[str, Any] = {
        "day": pa.array([datetime.date(2026, 1, 2), none]),
        "time": pa.array([datetime.datetime(2026, 1, 2), none], pa.timestamp("ns")),
        "flag": pa.array([True, none]),
        "lists": pa.array([[[1], none], []]),
        "holes": pa.array([[1, none], [2]]),
        "map": pa.array([[("a", 1)], none], pa.map_(pa.string(), pa.int64())),
        "long": pa.array([[1.5], [2.5, 3.5]], pa.large_list(pa.float64())),
    }
    pq.write_table(pa.table(values), tmp_path / "a.parquet")
    first, second = source(tmp_path / "a.parquet")
    assert first["long"].flags.writeable
    first, second = (
        {name: np.asarray(row[name]).tolist() if name == "long" else row[name] for name in row}
        for row in (first, second)
    )
    assert first == {
        "day": day, "time": day, "flag": True, "lists": [[1], None], "holes": [1, None], "map": [("a", 1)], "long": [1.5]
    }  # fmt: skip
    assert second == dict.fromkeys(["day", "time", "flag", "map"]) | {"lists": [], "holes": [2], "long": [2.5, 3.5]}


@pytest.mark.parametrize("make", ["list_", "large_list", "list_view", "large_list_view", "2"])
def test_lists_of_numbers_are_arrays_whatever_the_kind_of_list(tmp_path: Path, make: str):
    kind, column = pa.list_(pa.bool_(), 2) if make == "2" else getattr(pa, make)(pa.bool_()), [[True, False], None] * 6
    table = pa.table({"x": pa.array(column, kind), "full": pa.array([[False, True]] * 12, kind)})
    for row, wanted in zip(source(written(tmp_path / "a.arrow", table, 5)), column, strict=True):
        assert row["full"].tolist() == [False, True]
        assert row["x"] is wanted is None or (row["x"].tolist() == wanted and row["x"].dtype == np.bool_)


def test_numbers_are_those_of_pyarrow_without_its_import_of_pandas(tmp_path: Path):
    kinds = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
    kinds += ["float16", "float32", "float64"]
    numbers = np.arange(100) % 11
    columns = {kind: pa.array(numbers.astype(kind)) for kind in kinds}
    nulls = {f"{kind} or null": pa.array(numbers.astype(kind), mask=numbers == 3) for kind in kinds}
    lists = {f"list of {kind}": pa.ListArray.from_arrays(np.arange(0, 101, 5), columns[kind]) for kind in kinds}
    made = pa.table(columns | nulls)
    for name, table, group in ("a.arrow", made, 13), ("b.parquet", made, 13), ("c.parquet", pa.table(lists), 3):
        rows = [*source(written(tmp_path / name, table, group))]
        assert len(rows) == len(table)
        for key in table.column_names:
            for row, value in zip(rows, table[key].to_pylist()):
                assert row[key] is None if value is None else (np.asarray(row[key]) == value).all()
                assert value is None or row[key].dtype == np.dtype(key.removeprefix("list of ").split(" ")[0])
    python(
        "import sys\n"
        "from stocached import source\n"
        "for path in sys.argv[1:]: assert [*source(path)]\n"
        "assert 'pandas' not in sys.modules\n",
        *sorted(tmp_path.iterdir()),
    )


def test_a_stream_and_damage_are_errors_that_say_so(tmp_path: Path):
    batch = pa.record_batch({"a": [1, 2]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(InvalidError, match=r"a\.arrow is no arrow file: it begins with .*it is a stream.*new_file"):
        source(tmp_path / "a.arrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(InvalidError, match=r"a\.parquet is no Parquet file that can be read"):
        source(tmp_path / "a.parquet")
    with pytest.raises(InvalidError, match=r"no column 'b'; it has \['k', 'vector'\]"):
        source(table(tmp_path / "b.parquet", 5, 5), columns=["k", "b"])


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_of_one_name_are_an_error(tmp_path: Path, ending: str):
    twice = pa.Table.from_arrays([pa.array([k]) for k in range(3)], names=["x", "x", "y"])
    path = written(tmp_path / f"a.{ending}", twice)
    for columns in (None, ["x"]):
        with pytest.raises(InvalidError, match=rf"a\.{ending} has several columns 'x'; name others in columns="):
            source(path, columns=columns)
    assert [*source(path, columns=["y"])] == [{"y": 2}]


def test_files_of_other_columns_are_an_error(tmp_path: Path):
    for name, columns in (("0", "xy"), ("1", "yx"), ("2", "xz")):
        pq.write_table(pa.table({column: [int(name)] for column in columns}), tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.csv").write_text(f"{','.join(columns)}\n1,2\n")
        np.savez(tmp_path / f"{name}.npz", **{column: [1] for column in columns})
    pq.write_table(pa.table({"other": np.array([], int)}), tmp_path / "3.parquet")
    for ending in ("parquet", "csv", "npz"):
        both = rf"2\.{ending} has no column 'y', and .*0\.{ending} has it\. All have columns=\['x'\]"
        with pytest.raises(InvalidError, match=both):
            source(tmp_path / f"*.{ending}")
        assert [sorted(row) for row in source(tmp_path / f"{{0..1}}.{ending}")] == [["x", "y"]] * 2
    assert [*source(tmp_path / "{0..2}.parquet", columns=["x"])] == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert len([*source(tmp_path / "{0,3}.parquet")]) == 1
    (tmp_path / "4.csv").write_text("w\n1\n")
    with pytest.raises(InvalidError, match=r"and .*0\.csv has it\. Read files of other columns by another source"):
        source(tmp_path / "{0,4}.csv")


def test_columns_of_other_types_are_a_warning(tmp_path: Path):
    values = {"a": pa.array([1]), "b": pa.array([1.5]), "null": pa.nulls(1), "text": pa.array(["x"])}
    values |= {"large": pa.array(["x"], pa.large_string()), "dict": pa.array(["x"]).dictionary_encode()}
    for name, value in values.items():
        pq.write_table(pa.table({"x": value}), tmp_path / f"{name}.parquet")
        feather.write_feather(pa.table({"x": value}), tmp_path / f"{name}.arrow", compression="uncompressed")
    for name, value in {"a": [1], "b": [[1, 2]]}.items():
        np.savez(tmp_path / f"{name}.npz", x=value)
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = value
    for ending, kinds in (("parquet", "double"), ("arrow", "double"), ("npz", r"int64\[2\]"), ("h5", r"int64\[2\]")):
        said = rf"column 'x' is int64 in .*/a\.{ending} and {kinds} in .*/b\.{ending}, and so in batches; make it"
        with pytest.warns(UserWarning, match=said):
            source(tmp_path / f"{{a,b}}.{ending}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(source(tmp_path / "{a,null}.parquet")) == 2
        for ending in ("parquet", "arrow"):
            assert [row["x"] for row in source(tmp_path / f"{{text,large,dict}}.{ending}")] == ["x"] * 3


# Not at import: pyarrow imports pandas, and each process that runs tests would have its memory, which every fork copies.
def alike() -> dict[str, Any]:
    return {
        "only nulls": (pa.array([1]), pa.array([None], pa.float64())),
        "no rows": (pa.array([1]), pa.array([], pa.string())),
        "nothing null": (pa.array([[1]]), pa.array([[1]], pa.list_(pa.field("item", pa.int64(), nullable=False)))),
        "a dict": (pa.array([{"b": 1}]), pa.array([{"b": 1}], pa.struct([pa.field("b", pa.int64(), nullable=False)]))),
        "a null in a dict": (pa.array([{"b": 1}]), pa.array([{"b": None}])),
        "empty lists": (pa.array([[1]]), pa.array([[]])),
        "lists of one length": (pa.array([[1]]), pa.array([[1]], pa.list_(pa.int64(), 1))),
        "texts in lists": (
            pa.array([["x"]]),
            pa.array([["x"]], pa.list_(pa.dictionary(pa.int32(), pa.large_string()))),
        ),
        "bytes of one length": (pa.array([b"x"]), pa.array([b"x"], pa.binary(1))),
        "times of zones": (pa.array([1], pa.timestamp("us")), pa.array([1], pa.timestamp("us", "UTC"))),
        "times of a day": (pa.array([1], pa.time32("ms")), pa.array([1000], pa.time64("us"))),
        "decimals": (pa.array([1], pa.decimal128(5, 2)), pa.array([1], pa.decimal256(7, 2))),
        "order of keys": (pa.array([{"b": 1, "c": "x"}]), pa.array([{"c": "x", "b": 1}])),
        "a null number in a dict": (pa.array([{"b": "x"}]), pa.array([{"b": None}], pa.struct([("b", pa.int32())]))),
        "ints in dicts in lists": (
            pa.array([[{"b": 1}]]),
            pa.array([[{"b": 1}]], pa.list_(pa.struct([("b", pa.int8())]))),
        ),
        "ints of maps": [
            pa.array([[("a", 1)]], pa.map_(pa.string(), getattr(pa, kind)())) for kind in ("int8", "int64")
        ],
        "views": (pa.array([[1]]), pa.array([[1]], pa.list_view(pa.int64()))),
        "tensors of one dimension": (
            pa.array([[1, 2]]),
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int64(), (2,)), pa.array([[1, 2]], pa.list_(pa.int64(), 2))
            ),
        ),
    }


def other() -> dict[str, Any]:
    return {
        "numbers in lists": (pa.array([[1]]), pa.array([[1.5]]), r"'x\[\]' is int64 in .* and double"),
        "lists": (pa.array([1]), pa.array([[1]]), "'x' is int64 in .* and list in"),
        "in a dict": (pa.array([{"b": 1}]), pa.array([{"b": "1"}]), r"'x\.b' is int64 in .* and string"),
        "keys of a dict": (pa.array([{"b": 1}]), pa.array([{"c": 1}]), "'x' is dict of b in .* and dict of c in"),
        "one null": (pa.array([1]), pa.array([1.5, None]), "'x' is int64 in .* and double"),
        "bytes": (pa.array(["x"]), pa.array([b"x"]), "'x' is string in .* and binary"),
        "units": (pa.array([1], pa.timestamp("ms")), pa.array([1], pa.timestamp("us")), r"timestamp\[ms\] in .*\[us\]"),
    }


@pytest.mark.parametrize("cases", [alike, other])
def test_types_count_as_other_ones_if_their_values_differ(tmp_path: Path, cases: Callable[[], dict[str, Any]]):
    turns = itertools.product(cases().items(), ("first", "second"), ("parquet", "arrow"))
    for (case, (first, second, *said)), before, ending in turns:
        values = (first, second) if before == "first" else (second, first)
        for name, value in zip("ab", values):
            written(tmp_path / f"{name}.{ending}", pa.table({"x": value}))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            source(tmp_path / f"*.{ending}")
        assert len(told) == len(said), case
        assert not said or before == "second" or re.search(said[0], str(told[0].message)), case


def test_columns_are_a_list(tmp_path: Path):
    path = table(tmp_path / "a.parquet", 2, 2)
    for columns in (3, "k", [], {"k": 1}, iter(["k"])):
        with pytest.raises(InvalidError, match="give a list of names"):
            source(path, columns=columns)
    assert [*source(path, columns={"k"})] == [{"k": 0}, {"k": 1}]


def test_tensors_keep_their_shape(tmp_path: Path):
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array([[*range(6)], None, [*range(6, 12)]], kind.storage_type)
    pq.write_table(pa.table({"t": pa.ExtensionArray.from_storage(kind, storage)}), tmp_path / "a.parquet")
    first, none, last = (row["t"] for row in source(tmp_path / "a.parquet"))
    assert none is None
    assert (np.stack([first, last]) == np.arange(12, dtype=np.float32).reshape(2, 2, 3)).all()
    assert last.flags.writeable


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path):
    said = without("pyarrow", "stocached.source(sys.argv[1])", table(tmp_path / "a.parquet", 5, 5))
    assert "pip install stocached[parquet]" in said


def test_counting_of_compressed_batches_takes_the_memory_of_one(tmp_path: Path):
    """Of 64 MiB in batches of 1 MiB, as pandas and pyarrow write Feather."""
    feather = pytest.importorskip("pyarrow.feather")
    feather.write_feather(pa.table({"k": np.zeros(8 << 20)}), tmp_path / "a.feather", chunksize=1 << 17)
    python(
        "import sys, pyarrow\n"
        "from stocached import source\n"
        "assert len(source(sys.argv[1])) == 8 << 20\n"
        "assert pyarrow.default_memory_pool().max_memory() < 8 << 20, pyarrow.default_memory_pool().max_memory()\n",
        tmp_path / "a.feather",
    )


def test_reading_takes_the_memory_of_a_group(tmp_path: Path):
    """Of 32 MiB in groups of 1 MiB."""
    python(
        "import sys, pyarrow\n"
        "from stocached import source\n"
        "assert sum(len(row['vector']) for row in source(sys.argv[1])) == 8 << 20\n"
        "assert pyarrow.default_memory_pool().max_memory() < 8 << 20, pyarrow.default_memory_pool().max_memory()\n",
        table(tmp_path / "a.parquet", 32 * 16, 16, width=1 << 14),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_and_bad_samples_name_the_row_of_the_file(tmp_path: Path, workers: int):
    column = pa.array([None if k in (9, 11) else "x" for k in range(20)])
    pq.write_table(pa.table({"text": column[:4]}), tmp_path / "0.parquet", row_group_size=4)
    pq.write_table(pa.table({"text": column}), tmp_path / "1.parquet", row_group_size=8)

    def length(row: dict[str, Any]) -> int:
        if row["text"] is None:
            raise BadSampleError("there is no text")
        return len(row["text"])

    rows = source(tmp_path / "*.parquet")
    chains = (
        rows.map(length),
        rows.filter(length).map(length),
        rows.flat_map(lambda row: [length(row)]),
        rows.map(length).filter(bool),
    )
    for pipe in chains:
        with pytest.raises(BadSampleError, match=r"1\.parquet, row group 1, row 9 of the file: there is no text"):
            list(Loader(pipe, 5, num_workers=workers))
        with pytest.warns(UserWarning, match="row 9 of the file"):
            loader = Loader(pipe, 5, num_workers=workers, bad_samples="skip")
            assert sum(map(len, loader)) == 22
        assert loader.stats().bad_samples == 2  # both are of one element
