"""The values of written.zip, and the program that wrote its folders: python written_files.py FOLDER NAME..., each name by
the version in it, on Python 3.6, 3.10 or 3.11. Its archives of zip are those of the programs that they are called after."""

import os
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np

COUNT = 40
NUMBERS = np.arange(COUNT, dtype=np.int32)
REALS = (NUMBERS / 4).astype(np.float32)
GRID = np.arange(COUNT * 6, dtype=np.int16).reshape(COUNT, 2, 3)
TEXTS = [f"é{k}" * (k % 3) for k in range(COUNT)]
LISTS = [None if k % 9 == 8 else list(range(k % 4)) for k in range(COUNT)]
MEMBERS = {f"class{k % 2}/{k}.txt": "text" * 50 + str(k) for k in range(5)}


def tables(folder: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import feather

    old = pa.__version__ < "1"
    table = pa.Table.from_arrays(
        [
            pa.array(NUMBERS),
            pa.array([None if k % 7 == 3 else float(REALS[k]) for k in range(COUNT)], pa.float32()),
            pa.array(TEXTS),
            pa.array(LISTS, pa.list_(pa.int64())),
            pa.array([text.encode() for text in TEXTS]),
        ],
        ["k", "x", "text", "list", "data"],
    )
    for compression in ("none", "snappy", "gzip", "brotli", "zstd", "lz4"):
        for page in ("1.0", "2.0"):
            options: dict[str, Any] = {"version": "1.0" if page == "1.0" else "2.0" if old else "2.6"}
            if not old:
                options["data_page_version"] = page
            if not old and page == "2.0":
                options["column_encoding"] = {
                    "k": "DELTA_BINARY_PACKED",
                    "x": "BYTE_STREAM_SPLIT",
                    "text": "DELTA_BYTE_ARRAY",
                }
            pq.write_table(
                table,
                f"{folder}/{compression}-{page}.parquet",
                row_group_size=15,
                compression=compression,
                use_dictionary=page == "1.0" or ["data"],
                **options,
            )
    for compression in ("uncompressed", "lz4", "zstd"):
        feather.write_feather(table, f"{folder}/{compression}.feather", compression, chunksize=15)
    kinds: dict[str, Any] = {"file": {}}
    if old:
        feather.write_feather(pa.Table.from_arrays([table.column(0)], ["k"]), f"{folder}/version-1.feather", version=1)
        kinds["legacy"] = {"use_legacy_format": True}
    for name, options in kinds.items():
        with pa.OSFile(f"{folder}/{name}.arrow", "wb") as file:
            writer = pa.RecordBatchFileWriter(file, table.schema, **options)
            writer.write_table(table, 15)
            writer.close()
        with pa.OSFile(f"{folder}/{name}-stream.arrow", "wb") as file:
            writer = pa.RecordBatchStreamWriter(file, table.schema, **options)
            writer.write_table(table, 15)
            writer.close()


def hdf5(folder: str) -> None:
    import h5py

    filters: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "chunks": {"chunks": (7,)},
        "gzip": {"compression": "gzip", "shuffle": True},
        "lzf": {"compression": "lzf", "fletcher32": True},
        "scaleoffset": {"scaleoffset": 0, "chunks": (7,)},
        "grows": {"maxshape": (None,), "chunks": (7,)},
    }
    for version in ("earliest", "latest"):
        with h5py.File(f"{folder}/{version}.h5", "w", libver=version) as file:
            for name, options in filters.items():
                file.create_dataset(f"filters/{name}", data=NUMBERS, **options)
            file.create_dataset("grid", data=GRID, maxshape=(None, None, 3), chunks=(7, 1, 3))
            file["text"] = np.array(TEXTS, dtype=h5py.special_dtype(vlen=str))
    with h5py.File(f"{folder}/matlab.mat", "w", userblock_size=512, libver="earliest") as file:
        file["x"] = NUMBERS.reshape(COUNT, 1)
        file["#refs#/a"] = np.zeros(3)
    with open(f"{folder}/matlab.mat", "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def npz(folder: str) -> None:
    arrays = {"k": NUMBERS, "x": REALS.astype(">f4"), "grid": np.asfortranarray(GRID), "text": np.array(TEXTS)}
    np.savez(f"{folder}/stored.npz", **arrays)
    np.savez_compressed(f"{folder}/packed.npz", **arrays)


def safetensors(folder: str) -> None:
    from safetensors.numpy import save_file

    save_file({"k": NUMBERS, "x": REALS, "grid": GRID, "flag": NUMBERS % 2 == 0}, f"{folder}/a.safetensors")


def tfrecord(folder: str) -> None:
    import tensorflow as tf

    kinds = tf.train
    for name in ("NONE", "GZIP", "ZLIB"):
        path = f"{folder}/{name.lower()}.tfrecord"
        if tf.__version__ < "2":
            kind = getattr(tf.python_io.TFRecordCompressionType, name)
            writer = tf.python_io.TFRecordWriter(path, tf.python_io.TFRecordOptions(kind))
        else:
            writer = tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(name if name != "NONE" else ""))
        for k in range(COUNT):
            features = {
                "k": kinds.Feature(int64_list=kinds.Int64List(value=[k])),
                "x": kinds.Feature(float_list=kinds.FloatList(value=[REALS[k]])),
                "list": kinds.Feature(int64_list=kinds.Int64List(value=LISTS[k] or [])),
                "text": kinds.Feature(bytes_list=kinds.BytesList(value=[TEXTS[k].encode()])),
            }
            writer.write(kinds.Example(features=kinds.Features(feature=features)).SerializeToString())
        writer.close()


def zips(folder: str) -> None:
    """By programs in PATH."""
    for name, text in MEMBERS.items():
        os.makedirs(f"{folder}/{os.path.dirname(name)}", exist_ok=True)
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
    for command in (
        "zip -r zip.zip class0 class1",
        "zip -0 -r zip-stored.zip class0 class1",
        "zip -r - class0 class1 | cat > zip-of-a-pipe.zip",
        "zip -fz -r zip-64.zip class0 class1",
        "zip -q -Z bzip2 -r zip-bzip2.zip class0 class1",
        "7zz a -tzip 7z.zip class0 class1",
        "7zz a -tzip -mm=Deflate64 7z-deflate64.zip class0 class1",
        "7zz a -tzip -psecret 7z-encrypted.zip class0 class1",
        "jar cf jar.zip class0 class1",
        "jar cfM0 jar-stored.zip class0 class1",
        "bsdtar -caf bsdtar.zip class0 class1",
        "rm -r class0 class1",
    ):
        subprocess.run(command, shell=True, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(f"{folder}/python.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in MEMBERS.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(text.encode())


WRITERS: "dict[str, Any]" = {  # Python 3.6 knows no dict[...]
    "pyarrow-0.17.0": tables,
    "pyarrow-26.0.1": tables,
    "h5py-2.7.1": hdf5,
    "h5py-3.16.0": hdf5,
    "numpy-1.13.3": npz,
    "numpy-2.4.6": npz,
    "safetensors-0.2.0": safetensors,
    "safetensors-0.8.0": safetensors,
    "tensorflow-1.4.0": tfrecord,
    "tensorflow-2.21.0": tfrecord,
    "zip": zips,
}

if __name__ == "__main__":
    for given in sys.argv[2:]:
        os.makedirs(os.path.join(sys.argv[1], given))
        WRITERS[given](os.path.join(sys.argv[1], given))
