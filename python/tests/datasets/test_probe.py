"""Probing a dataset before it is cached leaves it unchanged. A loader with workers loads no sample
in the program's own process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import Of

from stocached import Loader
from stocached._datasets.attributes import left_as_it_was

N, ITEMS = 300, 512


class Reader:
    """The reader of a dataset. Opens its file for the first sample and keeps it open, as datasets
    for forked workers do."""

    def __init__(self, path):
        self.path, self.files, self.local = path, {}, threading.local()
        self.file = None

    def read(self, index):
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        self.files.setdefault(self.path, self.file)
        self.local.file = self.file
        self.file.seek(index * ITEMS * 8)
        return np.frombuffer(self.file.read(ITEMS * 8), np.int64).copy()


class Rows:
    def __init__(self, path):
        self.reader, self.count, self.seen = Reader(path), 0, []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.count += 1
        self.seen.append(index)
        return self.reader.read(index)


class Part:
    """A dataset over another one, like torch's Subset."""

    def __init__(self, dataset):
        self.parts = [(dataset,)]

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.parts[0][0][index]


@pytest.fixture
def path(tmp_path):
    np.repeat(np.arange(N, dtype=np.int64), ITEMS).tofile(tmp_path / "rows")
    return tmp_path / "rows"


@pytest.mark.parametrize("wrap", [lambda rows: rows, Part], ids=["itself", "within another"])
def test_it_is_as_it_was(path, wrap):
    rows = Rows(path)
    with left_as_it_was(wrap(rows)):
        wrap(rows)[3], wrap(rows)[4]
        reader = rows.reader
        assert reader.file is not None
        assert (len(reader.files), rows.seen) == (1, [3, 4])
    assert rows.reader is reader
    assert (reader.file, reader.files, vars(reader.local)) == (None, {}, {})
    assert (rows.count, rows.seen) == (0, [])
    with pytest.raises(ZeroDivisionError), left_as_it_was(rows):  # also after an error
        rows.count = 1 / 0 if rows[5] is not None else 0
    assert (rows.count, rows.reader.file) == (0, None)


def test_arrays_and_what_is_large_are_left_alone(path):
    rows = Rows(path)
    rows.paths, rows.array = [str(path)] * 200_000, np.zeros(3)
    rows.itself = rows
    with left_as_it_was(rows):
        rows.paths.append("another")
        rows.array[0] = 1
        rows[0]
    assert (len(rows.paths), rows.array[0], rows.reader.file) == (200_001, 1, None)


class Elsewhere:
    """Once the test says so, gives samples only in processes other than the one that made it."""

    def __init__(self):
        self.home = 0

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if os.getpid() == self.home:
            raise RuntimeError("loaded in the program's own process")
        return np.full(1 << 16, index, np.uint8)


@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}], ids=["new", "kept"])
def test_misses_between_hits_are_loaded_by_workers(settings):
    """In the order of the cached samples, whole batches of hits come before batches with misses."""
    dataset = Elsewhere()
    loader = Loader(dataset, 4, num_workers=2, size="7MiB", **settings)
    dataset.home = os.getpid()
    for _ in range(3):
        assert [int(row[0]) for batch in loader for row in batch] == list(range(100))
    assert 0 < loader.stats().hits < 200
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_reuses_its_memory_is_not_random(workers):
    row = np.zeros(4)  # the samples have one memory, as of datasets that save allocations
    one_buffer = Of(lambda index: (row.fill(index), {"row": row, "index": index})[1], N)
    loader = Loader(one_buffer, batch_size=1, num_workers=workers, size="8MiB")
    for _ in range(2):
        assert [float(batch["row"][0, 3]) for batch in loader] == list(range(N))
    loader.close()


def test_the_path_of_a_file_is_no_handle():
    class Named:
        path = Path("/dev/null")

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return 1

    named = Named()
    with left_as_it_was(named):
        named.extra = 1
    assert not hasattr(named, "extra")
