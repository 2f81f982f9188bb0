"""Files of each format, made by the format's own library, and what they have."""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mds_samples
import numpy as np
import tf_examples
from helpers import Later

from stocached import BadSampleError, file_format
from stocached._shards.tar_members import encoded_member

pa = Later("pyarrow")
pq = Later("pyarrow.parquet")
h5py = Later("h5py")


@dataclass(frozen=True)
class Made:
    """text: for `source`. items: in order. counts: of each element."""

    text: str
    items: list[Any]
    counts: list[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)


ROWS = [{"k": k, "text": f"é{k}" * (k % 5), "note": [None, "a", "b\nc"][k % 3]} for k in range(60)]
TEXTS = [{"k": str(row["k"]), "text": row["text"], "note": row["note"] or 'a "quoted", text'} for row in ROWS]
LINES = ["" if row["k"] == 5 else f"{row['k']} {row['text']}" for row in ROWS]


def jsonl(path: Path) -> Made:
    """Two files. One has blank lines, and no line break at its end."""
    lines = [json.dumps(row, ensure_ascii=bool(row["k"] % 2)) for row in ROWS]
    (path / "0.jsonl").write_text("\n\n" + "\n\r\n".join(lines[:25]))
    (path / "1.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines[25:]).encode() + b"\r\n")
    return Made(str(path / "{0..1}.jsonl"), ROWS)


def jsonl_of_pandas(path: Path) -> Made:
    import pandas as pd  # takes half a second

    pd.DataFrame(ROWS).to_json(path / "rows.ndjson", orient="records", lines=True)
    return Made(str(path / "rows.ndjson"), ROWS)


def csv_of_csv(path: Path) -> Made:
    with open(path / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["k", "text", "note"])
        writer.writeheader()
        writer.writerows(TEXTS)
    return Made(str(path / "rows.csv"), TEXTS)


def csv_of_pandas(path: Path) -> Made:
    import pandas as pd  # takes half a second

    pd.DataFrame(TEXTS).to_csv(path / "rows.csv", index=False, sep=";", quoting=csv.QUOTE_ALL)
    wanted = [{"note": row["note"], "k": row["k"]} for row in TEXTS]
    return Made(str(path / "rows.csv"), wanted, None, {"delimiter": ";", "columns": ["note", "k"]})


def tsv(path: Path) -> Made:
    with open(path / "rows.tsv", "w", newline="") as file:
        csv.writer(file, csv.excel_tab).writerows(row.values() for row in TEXTS)
    return Made(str(path / "rows.tsv"), TEXTS, None, {"names": ["k", "text", "note"]})


def text(path: Path) -> Made:
    (path / "lines.log").write_text("".join(f"{line}\n" for line in LINES))
    return Made(str(path / "lines.log"), LINES, None, {"format": "text"})


MEMBERS = [
    {"__key__": f"class{k % 3}/a.{k:02}", "jpg": bytes(range(k)) * 9}
    if k % 4
    else {"__key__": f"{k}", "json": b'{"k": %d}' % k}
    for k in range(60)
]


def zip_of(path: Path, method: int, wide: bool = False) -> Made:
    with zipfile.ZipFile(path / "a.zip", "w", method) as archive:
        archive.mkdir("class0") if hasattr(archive, "mkdir") else archive.writestr("class0/", b"")
        archive.writestr("class0/.hidden.jpg", b"x")
        for member in MEMBERS:
            key, ending = member["__key__"], [*member][1]
            with archive.open(f"{key}.{ending}", "w", force_zip64=wide) as file:
                file.write(member[ending])
        archive.comment = b"a comment"
    return Made(str(path / "a.zip"), MEMBERS)


def decoded(path: Path, ending: str) -> Made:
    """Members of a tar or a zip, of which each three are an item."""
    wanted = [
        {
            "__key__": f"class{k % 3}/{k:02}",
            "cls": k,
            "deep.npy": np.arange(k, dtype=np.float32),
            "json": {"k": k},
            "pickle": b"x" * k,
        }
        for k in range(60)
    ]
    with tarfile.open(path / "a.tar", "w") as tar, zipfile.ZipFile(path / "a.zip", "w") as archive:
        for item in wanted:
            for field in [*item][1:]:
                name, data = f"{item['__key__']}.{field.upper()}", encoded_member(field, item[field])
                about = tarfile.TarInfo(name)
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))
                archive.writestr(name, data)
    (path / {"tar": "a.zip", "zip": "a.tar"}[ending]).unlink()
    return Made(str(path / f"a.{ending}"), wanted, None, {"decode": True})


def tar(path: Path, fields: list[str] | None = None) -> Made:
    """Two shards. Members of a sample come in several orders, and some samples lack one."""
    items = [
        {"__key__": f"class{k % 3}/{k:02}", "cls": k, "jpg": b"x" * k, **({"seg.png": bytes(9 * k)} if k % 5 else {})}
        for k in range(60)
    ]
    for number in range(2):
        with tarfile.open(path / f"{number}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for k in range(30 * number, 30 * number + 30):
                names = [*items[k]][1:][:: 1 if k % 2 else -1]
                for name in names:
                    data = b"%d" % k if name == "cls" else items[k][name]
                    about = tarfile.TarInfo(f"{items[k]['__key__']}.{name.upper()}")
                    about.size = len(data)
                    archive.addfile(about, io.BytesIO(data))
    options: dict[str, Any] = {"int64": ["cls"]}
    if fields is None:
        return Made(str(path / "{0..1}.tar"), items, None, options)
    wanted = [{"seg.png": item["seg.png"], "cls": item["cls"]} for item in items if "seg.png" in item]
    return Made(str(path / "*.tar"), wanted, None, options | {"fields": fields, "missing": "skip"})


def tfrecord(path: Path) -> Made:
    items = []
    for number in range(2):
        records = [
            tf_examples.example_of(
                number=("int64", [k]),
                data=("bytes", [b"%d" % k] * (k % 3)),
                whole=("int64", [k - 30, -(2**63), k][: k % 4]),
                real=("float", [k / 4, 1e38, 0][: k % 4]),
            )
            for k in range(30 * number, 30 * number + 30)
        ]
        tf_examples.written(path / f"train.tfrecord-{number:05}-of-00002", *records)
        items += map(tf_examples.item_of, records)
    return Made(str(path / "train.tfrecord-*-of-00002"), items)


def mds(path: Path, name: str) -> Made:
    """A folder as Streaming wrote it."""
    with zipfile.ZipFile(Path(__file__).with_name("mds.zip")) as archive:
        archive.extractall(path, [member for member in archive.namelist() if member.startswith(f"{name}/")])
    if name in ("raw", "old"):
        items = [
            {key: sample[key] for key in sample if name == "raw" or key != "tokens"} for sample in mds_samples.SAMPLES
        ]
        return Made(str(path / name), items)
    wanted = ["tokens", "cls"]
    items = [{key: sample[key] for key in wanted} for sample in mds_samples.SAMPLES]
    counts = [shard["samples"] for shard in json.loads((path / name / "index.json").read_text())["shards"]]
    return Made(str(path / name), items, counts, {"columns": wanted})


# Not at import: this imports pandas, and each process that runs tests would have its memory, which every fork copies.
@functools.cache
def table() -> Any:
    return pa.table(
        {
            "k": pa.array(range(60), pa.int32()),
            "x": pa.array([None if k % 7 == 3 else k / 2 for k in range(60)], pa.float32()),
            "vector": pa.array([[k, k + 1] for k in range(60)], pa.list_(pa.int16(), 2)),
            "tokens": pa.array([None if k % 9 == 8 else [*range(k % 4)] for k in range(60)], pa.list_(pa.int64())),
            "data": pa.array([bytes([k]) * k for k in range(60)]),
            "name": pa.array([f"é{k % 5}" for k in range(60)]).dictionary_encode(),
            "inner": pa.array([None if k % 11 == 5 else {"a": k, "b": [f"{k}", None]} for k in range(60)]),
        }
    )


def rows(columns: list[str] | None = None) -> list[dict[str, Any]]:
    made: Any = table().select(columns or table().column_names).to_pylist()
    for row in made:
        for name, dtype in {"k": np.int32, "x": np.float32, "vector": np.int16, "tokens": np.int64}.items():
            if row.get(name) is not None:
                row[name] = np.asarray(row[name], dtype)
        if row.get("inner") is not None:
            row["inner"]["a"] = np.int64(row["inner"]["a"])
    return made


def parquet(path: Path) -> Made:
    """Several files, of other compressions and versions."""
    settings: list[dict[str, Any]] = [
        {"compression": "zstd", "version": "1.0"},
        {"compression": None, "data_page_version": "2.0", "use_dictionary": False},
        {"compression": "snappy", "write_page_checksum": True},
    ]
    for number, given in enumerate(settings):
        pq.write_table(table().slice(20 * number, 20), path / f"{number}.parquet", row_group_size=6, **given)
    return Made(str(path / "*.parquet"), rows(), [6, 6, 6, 2] * 3)


def parquet_of_pandas(path: Path) -> Made:
    import pandas as pd  # takes half a second

    frame = pd.DataFrame({"k": np.arange(60, dtype=np.int32), "text": LINES, "left out": 1})
    frame.to_parquet(path / "part", row_group_size=7)  # magic bytes tell it
    items = [{"text": text, "k": np.int32(k)} for k, text in enumerate(LINES)]
    return Made(str(path / "part"), items, [7] * 8 + [4], {"columns": ["text", "k"]})


def written(path: Path, table: Any, rows: int | None = None) -> Path:
    """The table as a file of its ending, so many rows in a group."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=rows)
    return path


def arrow(path: Path, compression: str | None = None) -> Made:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table().schema, options=options) as writer,
    ):
        writer.write_table(table(), max_chunksize=7)
    wanted = ["inner", "k", "tokens"]
    return Made(str(path / "a.arrow"), rows(wanted), [7] * 8 + [4], {"columns": wanted})


def feather(path: Path) -> Made:
    import pandas as pd  # takes half a second

    pd.DataFrame({"k": np.arange(60), "text": LINES}).to_feather(path / "a.feather", chunksize=9)
    items = [{"k": np.int64(k), "text": text} for k, text in enumerate(LINES)]
    return Made(str(path / "a.feather"), items, [9] * 6 + [6])


BOX = np.dtype([("at", "<i4", (2,)), ("name", "S5")])
ARRAYS = [
    {
        "text": f"é{k}" * (k % 3),
        "k": np.int32(k),
        "in/vector": np.array([k, -k, k + 1], np.int16),
        "in/tokens": np.arange(k % 4),
        "in/box": {"at": np.array([k, 2], np.int32), "name": f"n{k}"},
        "names": [f"a{k}", ""],
    }
    for k in range(60)
]


def hdf5(path: Path) -> Made:
    """Several files, of other versions and compressions. The texts have room for so many bytes that some rows are an element."""
    settings: list[tuple[Any, dict[str, Any]]] = [
        ("earliest", {"compression": "gzip", "shuffle": True}),
        ("latest", {"compression": "lzf", "fletcher32": True}),
        ("v110", {}),
    ]
    for number, (version, given) in enumerate(settings):
        some = ARRAYS[20 * number : 20 * (number + 1)]
        with h5py.File(path / f"{number}.h5", "w", libver=version) as file:
            for name, kind, length in (
                ("text", h5py.string_dtype("utf-8", 45_000), 6),
                ("k", ">i4", 4),
                ("in/vector", "<i2", 5),
                ("in/tokens", h5py.vlen_dtype(np.int64), 9),
                ("names", h5py.string_dtype(), 3),
            ):
                values = [row[name] for row in some]
                shape = (20, *np.shape(values[0])) if name != "in/tokens" else (20,)
                packed = given if not np.dtype(kind).hasobject else {}
                chunks = {"chunks": (length, *shape[1:])} if given else {}
                found = file.create_dataset(name, shape, kind, **packed | chunks)
                for k, value in enumerate(values):
                    found[k] = value
            file["in/box"] = np.array(
                [(*row["in/box"]["at"][None], row["in/box"]["name"].encode()) for row in some], BOX
            )
            file["one value"] = 1.0
    columns = {"columns": [*ARRAYS[0]]}
    return Made(str(path / "*.h5"), ARRAYS, [*[6, 6, 6, 2] * 2, *[5] * 4], columns)


ROW_ARRAYS: dict[str, Any] = {
    "k": np.arange(60, dtype=">i4"),
    "in/x": np.arange(360, dtype=np.float32).reshape(60, 2, 3),
    "text": np.array([f"é{k % 7}" for k in range(60)]),
    "turned": np.asfortranarray(np.arange(120, dtype=np.int16).reshape(60, 2)),
    "box": np.array([((k, 2), b"n") for k in range(60)], BOX),
}


def rows_of_arrays(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    made = [{name: array.astype(array.dtype.newbyteorder("="))[k] for name, array in arrays.items()} for k in range(60)]
    for row in made:
        if "text" in row:
            row["text"] = str(row["text"])
            row["box"] = {"at": row["box"]["at"], "name": bytes(row["box"]["name"])}
    return made


def npz(path: Path, save: Callable[..., None]) -> Made:
    """Two files. The second has arrays of other versions, and other members."""
    save(path / "0.npz", **{name: array[:25] for name, array in ROW_ARRAYS.items()}, other=np.arange(3))
    with zipfile.ZipFile(path / "1.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "rows")
        for number, (name, array) in enumerate(ROW_ARRAYS.items()):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as file:  # stored
                np.lib.format.write_array(file, array[25:], (1 + number % 2, 0))
    return Made(str(path / "*.npz"), rows_of_arrays(ROW_ARRAYS), None, {"columns": [*ROW_ARRAYS]})


def safetensors(path: Path) -> Made:
    from safetensors.numpy import save_file

    arrays = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in [*ROW_ARRAYS.items()][:2]}
    arrays |= {"flag": np.arange(60) % 3 == 0, "half": np.arange(60, dtype=np.float16)}
    save_file(arrays | {"weights": np.zeros((2, 2))}, path / "a.safetensors", {"note": "rows"})
    return Made(str(path / "a.safetensors"), rows_of_arrays(arrays), None, {"columns": [*arrays]})


@file_format(".points", magic=b"PTS1")
class Points:
    """A class as a program has: groups of five points of two numbers each."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts = [5] * ((Path(path).stat().st_size - 4) // 40)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, element: int) -> Any:
        with open(self.path, "rb") as file:
            file.seek(4 + 40 * element)
            data = file.read(40)
        if len(data) < 40:
            raise BadSampleError("it is cut")
        return struct.iter_unpack("<2f", data)


def points(path: Path) -> Made:
    items = [(k / 2, k / 4) for k in range(60)]
    (path / "a.points").write_bytes(b"PTS1" + b"".join(struct.pack("<2f", *item) for item in items))
    return Made(str(path / "a.points"), items, [5] * 12)


CASES: dict[str, Callable[[Path], Made]] = {
    "jsonl": jsonl,
    "jsonl of pandas": jsonl_of_pandas,
    "csv": csv_of_csv,
    "csv of pandas": csv_of_pandas,
    "tsv": tsv,
    "text": text,
    "zip stored": lambda path: zip_of(path, zipfile.ZIP_STORED),
    "zip deflated": lambda path: zip_of(path, zipfile.ZIP_DEFLATED),
    "zip of 64 bits": lambda path: zip_of(path, zipfile.ZIP_DEFLATED, wide=True),
    "tfrecord": tfrecord,
    "mds": lambda path: mds(path, "raw"),
    "mds of 2023": lambda path: mds(path, "old"),
    **{f"mds, {name}": functools.partial(mds, name=name) for name in ("br", "bz2", "gz", "snappy", "zstd")},
    "parquet": parquet,
    "parquet of pandas": parquet_of_pandas,
    "arrow": arrow,
    "arrow, lz4": lambda path: arrow(path, "lz4"),
    "feather of pandas": feather,
    "hdf5": hdf5,
    "npz": lambda path: npz(path, np.savez),
    "npz, compressed": lambda path: npz(path, np.savez_compressed),
    "safetensors": safetensors,
    "a program's own": points,
    "tar": tar,
    "tar, fields": lambda path: tar(path, ["seg.png;png", "cls"]),
    "tar, decoded": lambda path: decoded(path, "tar"),
    "zip, decoded": lambda path: decoded(path, "zip"),
}


if not importlib.util.find_spec("pandas"):  # comes with the packages for torch
    CASES = {name: make for name, make in CASES.items() if "pandas" not in name}


ONE_OF_EACH = [
    "jsonl",
    "csv",
    "text",
    "zip deflated",
    "tfrecord",
    "mds",
    "mds, gz",
    "parquet",
    "arrow",
    "hdf5",
    "npz",
    "safetensors",
    "a program's own",
    "tar, fields",
    "tar, decoded",
]


def plain(value: Any) -> Any:
    """A value that == compares."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in sorted(value.items())}
    if isinstance(value, list):
        return [*map(plain, value)]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.tolist()
    return value
