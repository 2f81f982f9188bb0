"""An epoch reads the bytes of a file once, in order and shuffled, however many workers share it: counted by a web server."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_examples
from buckets import Web
from made import h5py, pa, pq
from safetensors.numpy import save_file

from stocached import Loader, source

pytestmark = pytest.mark.usefixtures("run")
N = 2000
DRAW = np.random.default_rng(1)
TEXTS = [DRAW.bytes(size).hex() for size in DRAW.integers(200, 900, N).tolist()]
ROWS = DRAW.random((N, 128))


def lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"k": k, "text": text}) + "\n" for k, text in enumerate(TEXTS)))


def records(path: Path) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("k", "text"), *enumerate(TEXTS)])


def archive(path: Path, method: int) -> None:
    with zipfile.ZipFile(path, "w", method) as made:
        for k, text in enumerate(TEXTS):
            made.writestr(f"{k}.txt", text)


def table() -> Any:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), ROWS.shape[1])
    return pa.table({"k": range(N), "text": TEXTS, "vector": vectors})


def arrow(path: Path) -> None:
    made = table()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, made.schema) as writer:
        writer.write_table(made, max_chunksize=50)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=ROWS, chunks=(50, 128), compression="gzip")
        file["k"] = range(N)


MAKE: dict[str, Callable[[Path], Any]] = {
    "jsonl": lines,
    "csv": records,
    "stored.zip": lambda path: archive(path, zipfile.ZIP_STORED),
    "deflated.zip": lambda path: archive(path, zipfile.ZIP_DEFLATED),
    "parquet": lambda path: pq.write_table(table(), path, row_group_size=50),
    "arrow": arrow,
    "h5": hdf5,
    "npz": lambda path: np.savez(path, x=ROWS, k=np.arange(N)),
    "safetensors": lambda path: save_file({"x": ROWS, "k": np.arange(N)}, path),
    "tfrecord": lambda path: tf_examples.written(
        path, *(tf_examples.example_of(text=("bytes", [text.encode()])) for text in TEXTS)
    ),
}

SHUFFLED = ("jsonl",)  # the others are read by the same parts of files


@pytest.mark.parametrize("ending", MAKE)
def test_an_epoch_takes_its_bytes(ending: str, tmp_path: Path):
    path = tmp_path / f"a.{ending}"
    MAKE[ending](path)
    data = path.read_bytes()
    kinds = [(0, False), (2, False)] + [(2, True)] * (ending in SHUFFLED)
    # A server keeps parts of an address for a while, so each has its own.
    with Web({f"/{k}/a.{ending}": data for k in range(len(kinds))}) as web:
        for k, (workers, shuffled) in enumerate(kinds):
            where = f"http://127.0.0.1:{web.server_port}/{k}/a.{ending}"
            pipe = source(where, remote={"hedge": False})  # a slow machine gets second requests
            del web.sent[:]
            loader = Loader((pipe.shuffle(seed=1) if shuffled else pipe).batch(50), num_workers=workers)
            assert sum(len(next(iter(batch.values()))) for batch in loader) == N
            loader.close()
            assert sum(web.sent) <= 1.05 * len(data)
            # Some look whether the file has changed, and have no body in a bucket.
            assert shuffled or len(web.sent) <= 400
