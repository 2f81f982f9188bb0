"""Looks at samples outside the training loop happen in a forked child. So this process opens no file and
starts no thread of the dataset, wherever the dataset keeps it."""

from __future__ import annotations

import collections
import contextlib
import functools
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import python

from stocached import Cache, Loader, SchemaError, WorkerLostError, get_worker_info, source
from stocached._datasets import looks
from stocached._datasets.cached_samples import CachedSamples

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # files that a dataset opens and no code closes
N, ITEMS = 300, 512


@pytest.fixture
def path(tmp_path):
    np.repeat(np.arange(N, dtype=np.int64), ITEMS).tofile(tmp_path / "rows")
    return tmp_path / "rows"


@pytest.fixture
def zipped(tmp_path):
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        for index in range(N):
            archive.writestr(str(index), np.full(ITEMS, index, np.int64).tobytes())
    return tmp_path / "rows.zip"


class Rows:
    """A dataset over a file that it opens with the first sample, as is advised for forked workers."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return N

    def __getitem__(self, index):
        file = self.opened()
        file.seek(index * ITEMS * 8)
        return np.frombuffer(file.read(ITEMS * 8), np.int64).copy()

    def opened(self):
        raise NotImplementedError

    def open(self):
        return open(self.path, "rb", buffering=0)


class InAttribute(Rows):
    file = None

    def opened(self):
        self.file = self.file or self.open()
        return self.file


class InClass(Rows):
    files: dict[str, object] = {}

    def opened(self):
        return self.files.setdefault(self.path, self.files.get(self.path) or self.open())


FILES: dict[str, object] = {}


class InModule(Rows):
    def opened(self):
        FILES[self.path] = FILES.get(self.path) or self.open()
        return FILES[self.path]


@functools.lru_cache
def file_of(dataset):
    return dataset.open()


class InFunctionCache(Rows):
    def opened(self):
        return file_of(self)


class InZip(Rows):
    def __getitem__(self, index):
        FILES[self.path] = FILES.get(self.path) or zipfile.ZipFile(self.path)
        return np.frombuffer(FILES[self.path].read(str(index)), np.int64).copy()


PLACES = [InAttribute, InClass, InModule, InFunctionCache, InZip]
WAYS = {
    "CachedSamples": lambda dataset: CachedSamples(dataset, size="16MiB"),
    "loader, 0 workers": lambda dataset: Loader(dataset, 10, size="16MiB"),
    "loader, 2 workers": lambda dataset: Loader(dataset, 10, num_workers=2, size="16MiB"),
}


def is_open(path):
    """Whether this process has the file open."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    return str(path) in links


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("place", PLACES)
def test_a_look_opens_no_file_in_this_process(place, way, path, zipped):
    at = zipped if place is InZip else path
    made = WAYS[way](place(at))
    assert not is_open(at)
    made.cache.close()


@pytest.mark.parametrize("place", PLACES)
def test_each_worker_opens_its_own(place, path, zipped):
    loader = Loader(place(zipped if place is InZip else path), 10, num_workers=2, size="16MiB")
    for _ in range(2):
        assert [row.tolist() for batch in loader for row in batch] == [[k] * ITEMS for k in range(N)]
    loader.close()


def is_row(item):
    return len(item) == ITEMS


def alone(item):
    return [item]


PIPES = {
    "measure": lambda pipe, folder: pipe.filter(is_row).measure(),
    "measure, 2 workers": lambda pipe, folder: pipe.filter(is_row).measure(2),
    "length of count=": lambda pipe, folder: len(pipe.flat_map(alone, count=is_row)),
    "loader of count=": lambda pipe, folder: Loader(pipe.flat_map(alone, count=is_row), num_workers=2),
    "lists of a cache": lambda pipe, folder: Loader(pipe.cache("16MiB").filter(is_row).cache("16MiB"), num_workers=2),
    "write": lambda pipe, folder: pipe.write(folder, num_workers=2),
    "write of lists": lambda pipe, folder: pipe.flat_map(alone).write(folder, num_workers=2),
}


@pytest.mark.parametrize("way", list(PIPES))
@pytest.mark.parametrize("place", PLACES)
def test_a_look_of_a_pipe_opens_no_file_in_this_process(place, way, path, zipped, tmp_path):
    at = zipped if place is InZip else path
    PIPES[way](source(place(at)), tmp_path / "written")
    assert not is_open(at)


# ------------------------------------------------------------ threads of the dataset


class Waits:
    """Its samples come from a thread that it starts with the first one."""

    def __init__(self):
        self.started = []

    def __len__(self):
        return 40


class ByExecutor(Waits):
    def __getitem__(self, index):
        if not self.started:
            self.started.append(ThreadPoolExecutor(1))
        return self.started[0].submit(np.full, 4, index).result()


async def _sample(index):
    return np.full(4, index)


EXECUTORS: list[ThreadPoolExecutor] = []


class ByExecutorOfModule(ByExecutor):
    started = EXECUTORS  # the class has it: a look in this process cannot put it back

    def __init__(self):
        EXECUTORS.clear()


@pytest.mark.parametrize("kind", [ByExecutor, ByExecutorOfModule])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_look_starts_no_thread_in_this_process(kind, way):
    before, dataset = set(threading.enumerate()), kind()
    made = WAYS[way](dataset)
    assert [thread for thread in threading.enumerate() if thread not in before and "stocached" not in thread.name] == []
    assert dataset.started == []
    made.cache.close()


@pytest.mark.timeout(60)  # workers that share an executor without its thread wait for ever
@pytest.mark.parametrize("kind", [ByExecutor, ByExecutorOfModule])
def test_workers_start_threads_of_their_own(kind):
    loader = Loader(kind(), 10, num_workers=2, size="16MiB")
    assert [int(row[0]) for batch in loader for row in batch] == list(range(40))
    loader.close()


# ------------------------------------------------------------ later looks


class Counted:
    """Builds an index with the first sample, and counts that in memory that processes share."""

    def __init__(self, changed=0):
        self.built, self.changed, self.index = np.frombuffer(mmap.mmap(-1, 8), np.int64), changed, None

    def __len__(self):
        return N

    def __getitem__(self, index):
        if self.index is None:
            self.built += 1
            self.index = range(N)
        return np.full(50, self.index[index] + self.changed)


@pytest.mark.filterwarnings("ignore:.*samples are compared in the background")
def test_all_looks_of_a_constructor_build_an_index_once(cache_name):
    built = os.memfd_create("built")  # a number, so that what it counts is no change of the code

    class Unknown:
        """About which only loaded samples tell anything."""

        index = None

        def __len__(self):
            return N

        def __getitem__(self, index):
            if self.index is None:
                os.write(built, b".")
                self.index = range(N)
            return np.full(50, self.index[index])

    first = CachedSamples(Unknown(), name=cache_name, size="16MiB")
    for index in range(N):
        first[index]
    before, dataset = os.fstat(built).st_size, Unknown()
    cached = CachedSamples(dataset, name=cache_name)
    cached._comparison.done.wait()
    assert (os.fstat(built).st_size - before, dataset.index) == (1, None)
    os.close(built)


def test_a_loader_that_is_made_again_looks_in_a_child():
    dataset = Counted()
    first = Loader(dataset, 10, num_workers=2, size="16MiB")
    assert len(list(first)) == N // 10
    second = Loader(dataset, 10, num_workers=2, size="16MiB")
    assert second.cache is first.cache
    assert dataset.index is None
    dataset.changed = 5
    assert Loader(dataset, 10, num_workers=2, size="16MiB").cache is not first.cache
    assert dataset.index is None


# ------------------------------------------------------------ which process looks


class Noted(Counted):
    """Notes where its last sample was loaded."""

    def __init__(self):
        super().__init__()
        self.where = np.frombuffer(mmap.mmap(-1, 64), np.int64)

    def __getitem__(self, index):
        info = get_worker_info()
        threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 1
        self.where[:4] = os.getpid(), threads, info is not None, 0 if info is None else info.num_workers
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2, "multiprocessing_context": method} for method in ("spawn", "forkserver")]
    + [{"num_workers": 2, "worker": "thread"}],
    ids=["spawn", "forkserver", "threads"],
)
def test_this_process_looks_if_none_will_be_forked(options):
    dataset = Noted()
    Loader(dataset, 10, size="16MiB", **options)
    assert dataset.where[0] == os.getpid()
    assert dataset.index is None  # left as it was


@pytest.mark.parametrize(("workers", "entered"), [(0, (0, 0)), (3, (1, 3))])
def test_the_child_is_set_up_as_a_worker(workers, entered):
    dataset = Noted()
    Loader(dataset, 10, num_workers=workers, size="16MiB")
    pid, threads, *worker = dataset.where[:4].tolist()
    assert pid != os.getpid()
    assert (threads, tuple(worker)) == (1, entered)


@pytest.mark.torch
def test_the_child_is_set_up_as_a_worker_of_torch():
    from stocached.torch import CachedDataset

    torch = pytest.importorskip("torch")
    dataset, threads = Noted(), torch.get_num_threads()
    CachedDataset(dataset, size="16MiB")
    assert dataset.where[1:4].tolist() == [1, 1, 1]
    assert torch.get_num_threads() == threads
    assert torch.utils.data.get_worker_info() is None


@pytest.mark.torch
def test_this_process_looks_after_cuda_has_begun(monkeypatch):
    torch, dataset = pytest.importorskip("torch"), Noted()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # most machines have no such device
    CachedSamples(dataset, size="16MiB")
    assert dataset.where[0] == os.getpid()


def test_datasets_without_code_of_the_user_stay_in_this_process():
    class Own(list):
        pass

    enter = CachedSamples._enter_worker
    for dataset in ([1, 2], (1, 2), range(3), np.zeros(3)):
        assert type(looks.begin(None, dataset, enter, forks=True, workers=2)) is looks.LookHere
    with looks.begin(None, Own([1, 2]), enter, forks=True, workers=2) as look:
        assert type(look) is looks.LookInChild


def test_the_start_method_stays_open():
    python(
        """
        import multiprocessing
        import numpy as np
        from stocached._datasets.cached_samples import CachedSamples

        class Rows:
            def __len__(self):
                return 9

            def __getitem__(self, index):
                return np.zeros(3)

        CachedSamples(Rows(), size="16MiB")
        multiprocessing.set_start_method("spawn")
        """
    )


def test_a_worker_can_make_a_cache():
    def make():
        os._exit(0 if CachedSamples(Counted(), size="16MiB")[3][0] == 3 else 1)

    process = multiprocessing.get_context("fork").Process(target=make, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


# ------------------------------------------------------------ what comes back


def test_samples_of_classes_that_pickle_cannot_name():
    Pair = collections.namedtuple("Pair", "a b")

    class Pairs(Counted):
        def __getitem__(self, index):
            return Pair(index, np.full(3, index))

    sample = CachedSamples(Pairs(), size="16MiB")[7]
    assert type(sample) is Pair
    assert sample.a == 7


def test_a_class_that_the_child_has_made():
    class Pairs(Counted):
        def __getitem__(self, index):
            if self.index is None:
                self.index = collections.namedtuple("Made", "a b")
            return self.index(index, 3)

    with pytest.raises(
        SchemaError, match=r"Made, which was made when the first of them was loaded; define it in a module"
    ):
        CachedSamples(Pairs(), size="16MiB")


class Odd(Exception):
    """Its constructor takes other arguments than the exception keeps."""

    def __init__(self, file, *, offset):
        super().__init__(f"{file} is damaged")
        self.offset, self.lock = offset, threading.Lock()


def test_exceptions_keep_type_text_attributes_notes_and_traceback():
    class Damaged(Counted):
        def __getitem__(self, index):
            raise Inner("a.jpg", offset=7)

    class Inner(Odd):
        pass

    with pytest.raises(Inner, match=r"^a.jpg is damaged") as caught:
        CachedSamples(Damaged(), size="16MiB")
    assert caught.value.offset == 7
    assert 'raise Inner("a.jpg", offset=7)' in str(caught.value.__cause__)
    if sys.version_info >= (3, 11):
        assert "sample 0 was loaded on trial" in caught.value.__notes__[0]


def test_an_exception_whose_class_the_child_has_made_keeps_its_text():
    class Damaged(Counted):
        def __getitem__(self, index):
            raise type("Made", (Exception,), {})("a.jpg is missing")

    with pytest.raises(RuntimeError, match=r"Made: a.jpg is missing"):
        CachedSamples(Damaged(), size="16MiB")


@pytest.mark.parametrize(
    "error", [OSError(5, "no", "a.jpg"), KeyError("a"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")]
)
def test_exceptions_of_python_come_as_they_are(error):
    class Damaged(Counted):
        def __getitem__(self, index):
            raise error

    with pytest.raises(type(error)) as caught:
        CachedSamples(Damaged(), size="16MiB")
    assert str(caught.value).partition("\n")[0] == str(error)


def test_a_child_that_is_killed():
    class Killed(Counted):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL if index else 0)
            return super().__getitem__(index)

    with pytest.raises(
        WorkerLostError, match=rf"on trial \(process \d+\) was killed by SIGKILL while it loaded sample {(N - 1) // 2};"
    ):
        CachedSamples(Killed(), size="16MiB")


def test_ctrl_c_ends_the_child():
    class Interrupts(Noted):
        def __getitem__(self, index):
            super().__getitem__(index)
            os.kill(os.getppid(), signal.SIGINT)
            threading.Event().wait()

    dataset = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        CachedSamples(dataset, size="16MiB")
    with pytest.raises(ProcessLookupError):
        os.kill(int(dataset.where[0]), 0)


def test_the_child_prints_and_runs_no_exit_handler(tmp_path):
    said = python(
        """
        import atexit, sys
        import numpy as np
        from stocached._datasets.cached_samples import CachedSamples

        class Rows:
            def __len__(self):
                return 1

            def __getitem__(self, index):
                print("loading")
                return np.zeros(3)

        atexit.register(print, "exit")
        sys.stdout.write("before\\n")
        CachedSamples(Rows(), size="16MiB", allow_random=True)
        """
    )
    assert said.stdout.split() == ["before", "loading", "exit"]


# ------------------------------------------------------------ a child that is silent


class Stuck(Counted):
    """Hangs in the child, until the test says so."""

    def __init__(self, until):
        super().__init__()
        self.home, self.until = os.getpid(), until

    def __getitem__(self, index):
        if os.getpid() != self.home:
            os.read(self.until, 1)
        return super().__getitem__(index)


@pytest.fixture
def until(monkeypatch):
    """A pipe that ends with the warning of a silent child."""
    read, write = os.pipe()
    say = looks.LookInChild._say_silent

    def said(look):
        try:
            say(look)
        finally:
            os.write(write, b"." * 4096)

    monkeypatch.setattr(looks, "_SILENT", 0.2)
    monkeypatch.setattr(looks.LookInChild, "_say_silent", said)
    yield read
    os.close(read)
    os.close(write)


def test_a_silent_child_is_waited_for_with_one_warning(until):
    with pytest.warns(
        UserWarning, match=r"process \d+, which .* while it loaded sample 0\. This process waits"
    ) as caught:
        cached = CachedSamples(Stuck(until), size="16MiB")
    assert len(caught) == 1
    assert cached._structure is not None


def test_without_workers_this_process_looks_instead_of_a_silent_child(monkeypatch):
    monkeypatch.setattr(looks, "_SILENT", 0.2)
    never = os.pipe()
    dataset = Stuck(never[0])
    with pytest.warns(UserWarning, match=r"This process loads it itself now"):
        loader = Loader(dataset, 10, size="16MiB")
    assert dataset.index is None
    assert multiprocessing.active_children() == []
    assert [int(row[0]) for batch in loader for row in batch] == list(range(N))
    for end in never:
        with contextlib.suppress(OSError):
            os.close(end)


def test_no_process_is_left():
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())  # servers of other tests, say
    CachedSamples(Counted(), size="16MiB")
    assert multiprocessing.active_children() == []
    assert not set(children.read_text().split()) - before


@pytest.mark.filterwarnings("ignore:.*was filled before")
def test_a_look_compares_with_the_cache_that_was_attached(path, cache_name, monkeypatch):
    """Another process removes the cache after this one has attached to it, and makes one with other samples."""
    first = Loader(InAttribute(path), 10, size="8MiB", name=cache_name)
    rows = [np.array(row) for batch in first for row in batch]
    real = CachedSamples._make_buffers

    def replaced(samples):
        monkeypatch.setattr(CachedSamples, "_make_buffers", real)
        if os.getpid() == here:
            Cache.attach(cache_name).unlink()
            with Cache.create(cache_name, samples=N, shape=(ITEMS,), dtype="int64") as other:
                other.put(0, np.full(ITEMS, -1))
        real(samples)

    here = os.getpid()
    monkeypatch.setattr(CachedSamples, "_make_buffers", replaced)
    again = Loader(InAttribute(path), 10, size="8MiB", name=cache_name)
    assert all((row == other).all() for row, other in zip(rows, (row for batch in again for row in batch), strict=True))
