"""stocached.prepare: preparers and storages, in one process and in several, and their errors."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import python
from prepared import BARE, FIELDS, VARIABLE, Made, parts, same, sample, tree
from processes import held, in_threads, until

import stocached
from stocached.prepare import (
    BlockStorage,
    BusyError,
    DataPreparer,
    DatasetInfo,
    DataStorage,
    InTheWayError,
    NotPreparedError,
    PreparedDataset,
    PreparerError,
    fingerprint,
    prepare,
)

SMALL = {"block_bytes": 4096, "file_bytes": 16384}


@pytest.fixture
def storage(tmp_path):
    made = BlockStorage(tmp_path / "data", **SMALL)
    yield made
    made.stop_preparation()


@pytest.mark.parametrize("fields", [FIELDS, VARIABLE, BARE], ids=["fixed", "variable", "bare"])
@pytest.mark.parametrize("processes", [0, 3])
def test_what_is_prepared_is_loaded(storage, fields, processes):
    preparer = Made(200, fields)
    progress = []
    assert not storage.is_prepared()
    assert prepare(preparer, storage, processes=processes, progress=lambda done, of: progress.append((done, of)))
    assert progress == [(k, 200) for k in range(201)]
    assert storage.is_prepared()
    assert storage.is_prepared(preparer.dataset_info())
    assert len(storage) == 200
    assert all(same(storage.load_sample(k), sample(fields, k)) for k in range(200))
    wanted = [5, 199, 6, 7, 7, 0, 8]
    assert all(same(got, sample(fields, k)) for k, got in zip(wanted, storage.load_samples(wanted)))
    info, said = storage.load_dataset_info(), preparer.dataset_info()
    assert dataclasses.replace(info, fields=None) == dataclasses.replace(said, fields=None)
    assert {name: (tuple(shape), dtype) for name, (shape, dtype) in info.fields.items()} == fields
    assert not prepare(preparer, storage)  # it is prepared already


def test_samples_are_the_caller_s_own(storage):
    prepare(Made(10), storage)
    for load in (lambda: storage.load_sample(3), lambda: storage.load_samples([3, 4])[0]):
        load()["image"][:] = 99
        assert same(load(), sample(FIELDS, 3))


@pytest.mark.parametrize("index", [-1, 10])
def test_there_is_no_such_sample(storage, index):
    prepare(Made(10), storage)
    with pytest.raises(IndexError, match=f"index {index} is not in 0..9"):
        storage.load_sample(index)


def test_nothing_is_loaded_from_what_is_not_prepared(storage):
    for load in (
        lambda: storage.load_sample(0),
        storage.load_dataset_info,
        lambda: len(storage),
        lambda: PreparedDataset(storage),
    ):
        with pytest.raises(NotPreparedError, match="no dataset|no prepared dataset"):
            load()
    assert storage.start_preparation(Made(10).dataset_info()) == 0
    storage.save_sample(0, sample(FIELDS, 0))
    assert not storage.is_prepared()
    with pytest.raises(NotPreparedError):
        storage.load_sample(0)


def test_samples_come_in_order(storage):
    with pytest.raises(stocached.InvalidError, match="call start_preparation first"):
        storage.save_sample(0, sample(FIELDS, 0))
    storage.start_preparation(Made(10).dataset_info())
    with pytest.raises(stocached.InvalidError, match="sample 1 comes where sample 0 is due"):
        storage.save_sample(1, sample(FIELDS, 1))
    with pytest.raises(stocached.InvalidError, match="without samples"):
        storage.finish_preparation()


def test_samples_must_fit(storage):
    storage.start_preparation(Made(10).dataset_info())
    for wrong, text in [
        ({**sample(FIELDS, 0), "image": np.zeros((3, 5, 4), np.uint8)}, "image.*does not fit"),
        ({**sample(FIELDS, 0), "image": np.zeros((3, 5, 5), np.int8)}, "image.*dtype int8"),
        ({"image": 1}, "fields"),
        (7, "mapping"),
    ]:
        with pytest.raises(stocached.SchemaError, match=text):
            storage.save_sample(0, wrong)
    storage.save_sample(0, sample(FIELDS, 0))


def test_other_data_are_in_the_way(storage):
    prepare(Made(10), storage)
    other = Made(11)
    assert not storage.is_prepared(other.dataset_info())
    with pytest.raises(InTheWayError, match="other data|another one"):
        prepare(other, storage)
    assert len(storage) == 10


def test_how_many_there_are_may_be_unknown(storage):
    assert prepare(Made(33, known=False), storage)
    assert len(storage) == 33
    assert storage.load_dataset_info().samples == 33


def test_fields_of_all_samples(storage):
    prepare(Made(50), storage)
    labels = storage.load_field("label")
    assert labels.dtype == np.int64
    assert labels.tolist() == [k % 7 for k in range(50)]
    assert np.array_equal(storage.load_field("image"), np.stack([sample(FIELDS, k)["image"] for k in range(50)]))
    with pytest.raises(stocached.InvalidError, match="no field 'name'; theirs are image, label, weights"):
        storage.load_field("name")


def test_fields_of_variable_samples(storage):
    prepare(Made(50, VARIABLE), storage)
    assert storage.load_field("label").tolist() == [k % 7 for k in range(50)]
    with pytest.raises(stocached.InvalidError, match="fixed size"):
        storage.load_field("points")


# ------------------------------------------------------------ info


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fingerprint": ""}, "fingerprint"),
        ({"samples": 0}, "samples=0"),
        ({"samples": 1.5}, "samples=1.5"),
        ({"fields": {}}, "0 fields"),
        ({"fields": {"a": ((3, 0), "uint8")}}, "dimension of 0"),
        ({"fields": {"a": ((None,), "uint8")}}, "variable=True"),
        ({"fields": {"a": ((2,), "object")}}, "cannot be cached"),
        ({"fields": {"a": ((2**31,), "uint16"), "b": ((2**31,), "uint16")}}, "none has more"),
        ({"notes": {"a": 3}}, "notes"),
        ({"kind": "\ud800"}, "kind"),
    ],
)
def test_invalid_info(storage, changes, text):
    info = DatasetInfo({"a": ((2,), "uint8")}, 3, "x")
    with pytest.raises(stocached.InvalidError, match=text):
        storage.start_preparation(dataclasses.replace(info, **changes))


def test_block_storage_s_own_settings(tmp_path):
    info = Made(3).dataset_info()
    for changes, text in [
        ({"block_bytes": 5000}, "5000"),
        ({"file_bytes": 100}, "100"),
        ({"compression": "gzip"}, "gzip"),
    ]:
        with pytest.raises(stocached.InvalidError, match=text):
            BlockStorage(tmp_path / "x", **changes).start_preparation(info)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("storage", ["digits", Path("digits"), None])
def test_a_path_is_no_storage(storage):
    with pytest.raises(stocached.InvalidError, match=r"is no DataStorage; of a folder, BlockStorage\(folder\) is one"):
        prepare(Made(10), storage)
    with pytest.raises(stocached.InvalidError, match=r"BlockStorage\(folder\)"):
        PreparedDataset(storage)


def test_fingerprints():
    values = [
        0,
        1,
        1.0,
        True,
        None,
        "1",
        b"1",
        [1],
        [[1]],
        [1, 1],
        {"a": 1},
        {"a": 2},
        {"b": 1},
        {1},
        np.int8(3),
        np.arange(3),
        np.arange(3.0),
        np.arange(3, dtype=np.uint64),
        np.arange(3)[None],
        ["ab"],
        ["a", "b"],
    ]
    made = [fingerprint(value) for value in values]
    assert len(set(made)) == len(made)
    assert made == [fingerprint(value) for value in values]
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint((1, 2)) == fingerprint([1, 2])
    assert fingerprint(1, "a", [2.5, None]) == "prepared-09a79c3a3477b745b89246380fcabfe4"
    assert python(
        "from stocached.prepare import fingerprint; print(fingerprint({'x', 'y'}, 3))"
    ).stdout.strip() == fingerprint({"y", "x"}, 3)
    with pytest.raises(stocached.InvalidError, match="object"):
        fingerprint(object())


def test_fingerprints_of_files(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1")
    before = fingerprint(files=[file])
    assert fingerprint(files=[file]) == before
    os.utime(file, ns=(1, 1))
    assert fingerprint(files=[file]) != before
    with pytest.raises(FileNotFoundError):
        fingerprint(files=[tmp_path / "b"])


# ------------------------------------------------------------ preparers that do wrong


class Wrong(Made):
    """From sample 60 on gives too many or too few samples, raises, or dies."""

    def __init__(self, how: str) -> None:
        super().__init__(100)
        self.how = how

    def dataset_info(self):
        return None if self.how == "no return" else super().dataset_info()

    def samples(self, first, stop):
        return None if self.how == "no yield" else self._samples(first, stop)

    def _samples(self, first, stop):
        for index, made in enumerate(super().samples(first, stop), first):
            if index == 60:
                if self.how == "fewer":
                    return
                if self.how == "error":
                    raise KeyError("sixty")
                if self.how == "strange":
                    raise Unpicklable(1, 2)
                if self.how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.how == "exit":
                    os._exit(3)
                if self.how == "unfit":
                    made = {**made, "label": "no number"}
            yield made
        if self.how == "more" and stop == 100:
            yield sample(FIELDS, 0)


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__("strange")


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("fewer", PreparerError, r"gave \d+ samples, and not"),
        ("more", PreparerError, "gave more than"),
        ("error", KeyError, "sixty"),
        ("unfit", stocached.SchemaError, "label"),
    ],
)
def test_preparers_that_do_wrong(storage, processes, how, kind, text):
    before = set(multiprocessing.active_children())
    with pytest.raises(kind, match=text) as caught:
        prepare(Wrong(how), storage, processes=processes)
    if processes:
        assert "in DataLoader worker process" in str(caught.value.__cause__)
        assert "while it prepared sample" in "".join(caught.value.__notes__)
    assert not storage.is_prepared()
    until(lambda: set(multiprocessing.active_children()) <= before, "its processes have ended")
    assert prepare(Made(100), storage)  # nothing is left in the way
    assert all(same(storage.load_sample(k), sample(FIELDS, k)) for k in range(100))


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("no return", r"dataset_info\(\) returned None. Is a return"),
        ("no yield", r"samples\(\) returned None. Is a yield"),
    ],
)
def test_preparers_without_a_result(tmp_path, processes, how, text):
    with pytest.raises(PreparerError, match=r"^Wrong\." + text):
        prepare(Wrong(how), BlockStorage(tmp_path / "d"), processes=processes)


def test_exceptions_that_cannot_be_pickled(tmp_path):
    with pytest.raises(RuntimeError, match="Unpicklable: strange"):
        prepare(Wrong("strange"), BlockStorage(tmp_path / "d"), processes=2)


@pytest.mark.parametrize(
    ("how", "text"),
    [("killed", "was killed by SIGKILL while it prepared samples .* to .*memory"), ("exit", "exited with status 3")],
)
def test_processes_that_die(tmp_path, how, text):
    before, storage = set(multiprocessing.active_children()), BlockStorage(tmp_path / "d", **SMALL)
    with pytest.raises(PreparerError, match=text + ".*run it again") as caught:
        prepare(Wrong(how), storage, processes=2)
    assert "no other is started" in str(caught.value)
    until(lambda: set(multiprocessing.active_children()) <= before, "its processes have ended")
    assert not storage.is_prepared()
    assert prepare(Made(100), storage, processes=2)


def test_how_many_processes(tmp_path):
    storage = BlockStorage(tmp_path / "d")
    with pytest.raises(stocached.InvalidError, match="processes=-1"):
        prepare(Made(10), storage, processes=-1)
    with pytest.raises(stocached.InvalidError, match="samples="):
        prepare(Made(10, known=False), storage, processes=2)
    calls = tmp_path / "calls"
    assert prepare(Made(300, calls=calls), storage, processes=3)
    asked = parts(calls)
    assert len({pid for pid, _, _ in asked}) == 3
    assert os.getpid() not in {pid for pid, _, _ in asked}
    assert sorted(k for _, first, stop in asked for k in range(first, stop)) == list(range(300))  # each once


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_ways_to_start_processes(tmp_path, context):
    storage = BlockStorage(tmp_path / "d", **SMALL)
    assert prepare(Made(60), storage, processes=2, context=context)
    prepare(Made(60), BlockStorage(tmp_path / "e", **SMALL))
    assert tree(tmp_path / "d") == tree(tmp_path / "e")


class SlowStart(DataPreparer):
    """Small samples, whose first part takes a second. Writes to a file the last sample that was
    asked for by then."""

    def __init__(self, calls) -> None:
        self.calls = calls

    def dataset_info(self):
        return DatasetInfo({"x": ((), "int64")}, 8_000, "slow start")

    def samples(self, first, stop):
        with open(self.calls, "a") as file:
            file.write(f"{stop}\n")
        if first == 0:
            time.sleep(1)
            Path(f"{self.calls}-by-then").write_text(self.calls.read_text())
        yield from range(first, stop)


def test_memory_is_bounded_when_the_first_part_is_slow(tmp_path):
    """While one process takes long for its part, the others do not run to the end of the
    dataset."""
    storage = BlockStorage(tmp_path / "d")
    assert prepare(SlowStart(tmp_path / "calls"), storage, processes=2)
    assert storage.load_field("x").tolist() == list(range(8_000))
    assert max(map(int, (tmp_path / "calls-by-then").read_text().split())) <= (4 * 2 + 1) * 256


def test_a_storage_with_the_six_methods_alone_takes_processes():
    class Own(DataStorage):
        info, whole = None, False

        def is_prepared(self, info=None):
            return self.whole and info in (None, self.info)

        def start_preparation(self, info, *, wait=0, restart=False):
            self.info, self.samples = info, []
            return 0

        def save_sample(self, index, sample):
            assert index == len(self.samples)
            self.samples.append(sample)

        def finish_preparation(self):
            self.whole = True

        def load_dataset_info(self):
            return self.info

        def load_sample(self, index):
            return copy.deepcopy(self.samples[index])

    storage = Own()
    assert prepare(Made(40), storage, processes=2)
    assert all(same(storage.load_sample(k), sample(FIELDS, k)) for k in range(40))
    assert not prepare(Made(40), storage)
    assert storage.load_field("label").tolist() == [k % 7 for k in range(40)]


# ------------------------------------------------------------ one at a time


def start(code: str) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    run = (
        f"import sys; sys.path.insert(0, {tests!r}); from prepared import Made; from stocached.prepare import *; {code}"
    )
    return subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once(tmp_path):
    calls = tmp_path / "calls"
    code = f"print(prepare(Made(200, calls={str(calls)!r}, seconds=0.002), BlockStorage({str(tmp_path / 'd')!r}), processes=2))"
    running = [start(code) for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in running]
    assert sorted(output.strip() for output, _ in outputs) == ["False", "True"], outputs
    samples = [k for _, first, stop in parts(calls) for k in range(first, stop)]
    assert sorted(samples) == list(range(200))


def test_the_second_may_be_told_instead(tmp_path):
    storage = BlockStorage(tmp_path / "d")
    storage.start_preparation(Made(10).dataset_info())
    with pytest.raises(BusyError, match="another process is preparing"):
        prepare(Made(10), BlockStorage(tmp_path / "d"), wait=False)
    storage.stop_preparation()
    assert prepare(Made(10), BlockStorage(tmp_path / "d"), wait=False)


def test_the_second_goes_on_when_the_first_gives_up(tmp_path):
    first = BlockStorage(tmp_path / "d", **SMALL)
    first.start_preparation(Made(300).dataset_info())
    for k in range(250):
        first.save_sample(k, sample(FIELDS, k))
    timer = threading.Timer(0.5, first.stop_preparation)
    timer.start()
    assert prepare(Made(300), BlockStorage(tmp_path / "d", **SMALL))
    timer.join()
    prepare(Made(300), BlockStorage(tmp_path / "whole", **SMALL))
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")


def test_control_c(tmp_path):
    folder = tmp_path / "d"
    process = start(
        f"print('go', flush=True); prepare(Made(5000, seconds=0.001), BlockStorage({str(folder)!r}, block_bytes=4096, file_bytes=16384), processes=2)"
    )
    assert process.stdout.readline() == "go\n"
    until(lambda: bool(list(tmp_path.glob("d.part/00001.stocblk"))), "a file is whole")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error
    assert not folder.exists()
    kept = BlockStorage(folder, **SMALL)
    assert kept.start_preparation(Made(5000).dataset_info()) > 0
    kept.stop_preparation()


def test_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name, text in [("file", "is not a folder"), ("full", "something in it"), ("link", "symbolic link")]:
        with pytest.raises(InTheWayError, match=text):
            prepare(Made(10), BlockStorage(tmp_path / name))
    assert prepare(Made(10), BlockStorage(tmp_path / "empty"))
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part" / "mine").write_text("")
    with pytest.raises(InTheWayError, match="mine is not of an interrupted writer"):
        prepare(Made(10), BlockStorage(tmp_path / "other"))
    assert (tmp_path / "other.part" / "mine").exists()
    with pytest.raises(FileNotFoundError):
        prepare(Made(10), BlockStorage(tmp_path / "no" / "folder"))


def test_what_was_left_of_other_data(tmp_path):
    left = BlockStorage(tmp_path / "d", **SMALL)
    left.start_preparation(Made(300).dataset_info())
    for k in range(250):
        left.save_sample(k, sample(FIELDS, k))
    left.stop_preparation()
    with pytest.raises(InTheWayError, match="restart=True"):
        prepare(Made(299), BlockStorage(tmp_path / "d", **SMALL))
    assert prepare(Made(299), BlockStorage(tmp_path / "d", **SMALL), restart=True)
    assert len(BlockStorage(tmp_path / "d")) == 299


# ------------------------------------------------------------ datasets


def test_a_dataset_over_a_part(storage):
    prepare(Made(30), storage)
    whole = PreparedDataset(storage)
    assert len(whole) == 30
    assert same(whole[-1], sample(FIELDS, 29))
    part = PreparedDataset(
        storage, stocached.prepare.IndexSet([7, 3, 11], 30), transform=lambda made: int(made["label"])
    )
    assert [part[k] for k in range(3)] == [0, 3, 4]
    assert part.__getitems__([2, 0]) == [4, 0]
    assert list(part) == [0, 3, 4]  # ends by an IndexError
    with pytest.raises(IndexError, match="index 3 is out of range; the dataset has 3 samples"):
        part[3]
    with pytest.raises(stocached.InvalidError, match="a dataset of 31 samples, and the storage has 30"):
        PreparedDataset(storage, stocached.prepare.IndexSet(range(31), 31))
    assert whole.fingerprint == Made(30).dataset_info().fingerprint  # with it a named cache notices other samples
    others = PreparedDataset(storage, stocached.prepare.IndexSet([3, 7, 11], 30))
    assert len({whole.fingerprint, part.fingerprint, others.fingerprint}) == 3


def test_a_pickled_storage(storage):
    prepare(Made(20), storage)
    storage.load_sample(0)
    again = pickle.loads(pickle.dumps(PreparedDataset(storage)))
    assert all(same(again[k], sample(FIELDS, k)) for k in range(20))


def test_a_pickled_storage_notices_other_data(tmp_path):
    storage = BlockStorage(tmp_path / "d")
    prepare(Made(20), storage)
    storage.load_sample(0)
    pickled = pickle.dumps(storage)
    (tmp_path / "d").rename(tmp_path / "old")
    prepare(Made(21), BlockStorage(tmp_path / "d"))
    with pytest.raises(stocached.CorruptError, match="another dataset than when this was pickled"):
        pickle.loads(pickled).load_sample(0)


def read_all(storage, results):
    results.put(all(same(storage.load_sample(k), sample(FIELDS, k)) for k in range(300)))


def test_readers_in_other_processes(storage):
    prepare(Made(300), storage)
    storage.load_sample(0)
    processes = multiprocessing.get_context("fork")
    results = processes.SimpleQueue()
    readers = [processes.Process(target=read_all, args=(storage, results)) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert [results.get() for _ in readers] == [True] * 2
    for reader in readers:
        reader.join()


def test_readers_in_threads(storage):
    prepare(Made(300), storage)

    def read(seed):
        for k in np.random.default_rng(seed).permutation(300).tolist():
            assert same(storage.load_sample(k), sample(FIELDS, k)), k

    in_threads(4, read)


def test_one_pread_a_sample(storage, monkeypatch):
    prepare(Made(300), storage)
    storage.load_sample(0)
    reads, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: reads.append(len(buffers)) or real(fd, buffers, at))
    for k in range(300):
        storage.load_sample(k)
    assert reads == [1] * 300
    reads.clear()
    storage.load_samples(range(300))
    assert sum(reads) == 300
    assert len(reads) == sum(file.blocks for file in storage.reader.files)  # one read for each block


def test_samples_of_a_block(storage, tmp_path):
    prepare(Made(300), storage)
    assert storage.block_samples() == 4096 // 92  # bytes of a sample: 75, padded to 80 for the label of 8, and 4
    one = BlockStorage(tmp_path / "one")
    prepare(Made(300), one)
    assert one.block_samples() == 300
    variable = BlockStorage(tmp_path / "variable", **SMALL)
    prepare(Made(300, VARIABLE), variable)
    assert 5 < variable.block_samples() < 12


def test_closing(storage):
    prepare(Made(5), storage)
    before = held()
    storage.load_sample(0)
    assert held() - before
    storage.close()
    assert not held() - before
    assert same(storage.load_sample(4), sample(FIELDS, 4))
    storage.close()


def test_abstract_classes_say_what_is_missing():
    with pytest.raises(TypeError, match="dataset_info"):
        DataPreparer()
    with pytest.raises(TypeError, match="load_sample"):
        DataStorage()


def test_names():
    import stocached.prepare as module

    assert sorted(module.__all__) == [
        "BlockSampler", "BlockStorage", "BusyError", "DataPreparer", "DataStorage", "DatasetInfo", "InTheWayError", "IndexSet",
        "NotPreparedError", "PreparedDataset", "PreparerError", "Split", "fingerprint", "prepare", "split",
    ]  # fmt: skip
    python("import stocached.prepare, sys; assert 'torch' not in sys.modules and 'zstandard' not in sys.modules")
