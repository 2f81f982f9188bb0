"""Files of the oldest and the newest versions of the formats' own libraries, with their compressions: written.zip, which
written_files.py made."""

from __future__ import annotations

import fnmatch
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written_files as written
from made import plain

from stocached import BadSampleError, InvalidError, source

ARCHIVE = zipfile.ZipFile(Path(__file__).with_name("written.zip"))
NUMBERS = [
    {"k": np.int32(k), "x": written.REALS[k], "grid": written.GRID[k], "text": text, "flag": np.bool_(k % 2 == 0)}
    for k, text in enumerate(written.TEXTS)
]
FILTERS = [f"filters/{name}" for name in ("contiguous", "chunks", "gzip", "lzf", "scaleoffset", "grows")]
TABLES = [
    {
        "k": np.int32(k),
        "x": None if k % 7 == 3 else written.REALS[k],
        "text": text,
        "list": values if values is None else np.array(values, np.int64),
        "data": text.encode(),
    }
    for k, (text, values) in enumerate(zip(written.TEXTS, written.LISTS))
]
EXAMPLES = [
    {
        "k": np.int64(k),
        "x": written.REALS[k],
        "list": np.array(values or [], np.int64) if len(values or []) != 1 else np.int64(0),
        "text": text.encode(),
    }
    for k, (text, values) in enumerate(zip(written.TEXTS, written.LISTS))
]
WANTED: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "pyarrow*/*[!m].arrow": (TABLES, {}),
    "pyarrow*/*[!1].feather": (TABLES, {}),
    "pyarrow*.parquet": (TABLES, {}),
    "h5py*.h5": (
        [{"grid": row["grid"], "text": row["text"]} | dict.fromkeys(FILTERS, row["k"]) for row in NUMBERS],
        {"columns": ["grid", "text", *FILTERS]},
    ),
    "h5py*.mat": ([{"x": row["k"][None]} for row in NUMBERS], {"format": "hdf5", "columns": ["x"]}),
    "*.npz": ([{name: row[name] for name in ("k", "x", "grid", "text")} for row in NUMBERS], {}),
    "*.safetensors": ([{name: row[name] for name in ("k", "x", "grid", "flag")} for row in NUMBERS], {}),
    "*/none.tfrecord": (EXAMPLES, {}),
    "zip/*": ([{"__key__": name[:-4], "txt": text.encode()} for name, text in sorted(written.MEMBERS.items())], {}),
}
REFUSED = {
    "*/gzip.tfrecord": r"compressed with gzip, .*unpack it: gzip -dc .*gzip\.tfrecord > new-file",
    "*/zlib.tfrecord": r"compressed with zlib, .*unpack it: pigz -dc",
    "*/file-stream.arrow": "it is a stream.*write the file anew by pyarrow.ipc.new_file",
    "*/legacy-stream.arrow": "no arrow file: it begins with .*; correct its name",
    "*/version-1.feather": "Feather of version 1: write it anew by pandas.read_feather",
    "zip/7z-encrypted.zip": "it is encrypted; make an archive without a password",
    "zip/7z-deflate64.zip": "compressed with deflate64, and deflate is read",
    "zip/zip-bzip2.zip": "compressed with bzip2, and deflate is read",
}


def wanted_of(name: str, table: dict[str, Any]) -> Any:
    return next((value for pattern, value in table.items() if fnmatch.fnmatchcase(name, pattern)), None)


@pytest.mark.parametrize("folder", written.WRITERS)
def test_files_of_many_versions(folder: str, tmp_path: Path):
    names = [name for name in ARCHIVE.namelist() if name.startswith(f"{folder}/")]
    assert names
    for name in names:
        path, refused = ARCHIVE.extract(name, tmp_path), wanted_of(name, REFUSED)
        if refused is not None:
            with pytest.raises((InvalidError, BadSampleError), match=rf"{Path(name).stem}.*{refused}"):
                [*source(path)]
            continue
        items, options = wanted_of(name, WANTED)
        found = [*source(path, **options)]
        if folder == "zip":  # jar adds a member
            found = sorted((item for item in found if "META" not in item["__key__"]), key=lambda item: item["__key__"])
        assert [*map(plain, found)] == [*map(plain, items)], name


def test_matlab_files_of_before_hdf5_are_refused(tmp_path: Path):
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(1024))
    with pytest.raises(
        InvalidError, match=r"a\.mat is no hdf5 file.*an older MATLAB: write it anew by save\(NEW, '-v7.3'\)"
    ):
        source(tmp_path / "a.mat", format="hdf5")
