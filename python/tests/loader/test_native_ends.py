"""Native workers when something ends, fails, hangs or changes: loops, programs, files, caches."""

from __future__ import annotations

import copy
import ctypes
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_samples import CONTROL, dataset_of, folder_of_small, read, shards_of_small, taken, usual
from pictures import encoded
from processes import held, limit, meanwhile, nothing_new, until
from programs import FOLDER, Program, run

from stocached import ClosedError, InvalidError, Loader, image

N, BATCH = 40, 4


@pytest.fixture
def root(tmp_path) -> Path:
    return folder_of_small(tmp_path / "train", N)


@pytest.fixture(params=["folder", "shards"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return {"folder": folder_of_small, "shards": shards_of_small}[request.param](tmp_path / "train", N)


@pytest.fixture
def shards(tmp_path) -> Path:
    return shards_of_small(tmp_path / "shards", N)


def loader_of(root: Path, workers: int = 2, **settings: Any) -> Loader:
    made = Loader(dataset_of(root, size=48), BATCH, num_workers=workers, seed=2, augment=usual(), **settings)
    assert made.worker == "native" or "worker" in settings
    return made


# ------------------------------------------------------------ loops that end early


@pytest.mark.parametrize(
    "settings", [{}, {"size": "16MiB"}, {"persistent_workers": True}], ids=["none", "cached", "kept"]
)
def test_epochs_left_in_the_middle_leave_nothing(either, settings):
    want = read(loader_of(either, 0))
    before = held()
    for turn in range(12):
        loader = loader_of(either, **settings)
        batches = iter(loader)
        got = [taken(next(batches)) for _ in range(1 + turn % 3)]
        assert got == want[: len(got)]
        if turn % 4 == 0:
            batches.close()
        elif turn % 4 == 1:
            loader.close()
            with pytest.raises(ClosedError, match="the loader was closed"):
                next(batches)
        elif turn % 4 == 2:
            with pytest.raises(ZeroDivisionError):
                for _ in batches:
                    1 // 0  # noqa: B018
        del loader, batches
    nothing_new(before)


# ------------------------------------------------------------ programs that end


@pytest.fixture
def hanging(root) -> Path:
    os.mkfifo(root / "c0" / "017-hang.jpg")
    return root


@pytest.mark.parametrize(
    ("way", "status"), [("wait", 0), ("busy", 0), ("end", 0), ("exit", 7), ("error", 1), ("os._exit", 8)]
)
def test_programs_end_while_a_file_hangs(hanging, way, status):
    with Program(FOLDER / "native_ends.py", hanging, way) as program:
        try:
            assert program.stdout.readline() == "ready\n", program.communicate()[1]
            start = time.monotonic()
            if way in ("wait", "busy"):
                time.sleep(0.2)
                program.send_signal(signal.SIGINT)
                assert program.stdout.readline() == "interrupted\n"
            output, error = program.communicate(timeout=60)
            assert time.monotonic() - start < limit(2)
        finally:
            program.kill()
    assert (program.returncode, output) == (status, "")
    assert error == "" if way != "error" else error.splitlines()[-1] == "ValueError: something is wrong"


@pytest.mark.parametrize(("either", "way"), [("folder", "fork"), ("shards", "spawn")], indirect=["either"])
def test_processes_made_in_the_middle_of_an_epoch(either, way):
    done = run(FOLDER / "native_ends.py", either, way)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


# ------------------------------------------------------------ files that hang, or are none


def test_file_that_hangs(hanging):
    """timeout= raises, and the loader ends. Threads end when the file does."""
    loader = loader_of(hanging, timeout=0.4)
    at = next(k for k, (path, _) in enumerate(loader.dataset.samples) if path.endswith("-hang.jpg"))
    batches, got = iter(loader), []
    threads = list(batches._runtime._workers)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="timed out after 0.4 seconds"):
            while True:
                got.append(taken(next(batches)))
    assert len(got) <= at // BATCH
    loader.close()
    assert time.monotonic() - start < limit(3)
    assert any(thread.is_alive() for thread in threads), "one is in the file"
    with open(hanging / "c0" / "017-hang.jpg", "wb") as file:
        file.write(Path(loader.dataset.samples[0][0]).read_bytes())
    until(lambda: not any(thread.is_alive() for thread in threads), "all threads have ended")


def vanish(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def closed(path: Path) -> None:
    path.chmod(0)


@pytest.fixture
def reads_by_permission() -> Iterator[None]:
    """Takes from this thread, and from those that it starts, the capabilities by which root reads all files."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3; this thread
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the same of the higher bits
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    yield
    sets[0] = before
    assert libc.capset(header, sets) == 0


@pytest.mark.usefixtures("reads_by_permission")
@pytest.mark.parametrize("change", [vanish, folder, loop, closed])
def test_files_that_cannot_be_read(root, change):
    """As of thread workers: an OSError that names the file, in the place of its batch."""
    loaders = {worker: loader_of(root, worker=worker) for worker in ("native", "thread")}
    path = Path(loaders["native"].dataset.samples[17][0])
    want, errors = read(loader_of(root, 0)), {}
    change(path)
    for worker, loader in loaders.items():
        batches, got = iter(loader), []
        with pytest.raises(OSError, match=path.name) as caught:
            while True:
                got.append(taken(next(batches)))
        assert caught.value.filename == str(path)
        errors[worker] = type(caught.value), caught.value.errno, str(caught.value)
        assert len(got) == 17 // BATCH
        got += [taken(batch) for batch in batches]
        assert got == want[: 17 // BATCH] + want[17 // BATCH + 1 :]
    assert errors["native"] == errors["thread"]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def touched(path: Path) -> None:
    os.utime(path, (1, 1))


def replaced(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


def written_again(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.usefixtures("reads_by_permission")
@pytest.mark.parametrize("opened", [False, True], ids=["not open", "open"])
@pytest.mark.parametrize("change", [vanish, folder, closed, cut, touched, replaced, written_again])
def test_shards_that_change(shards, change, opened):
    """As of thread workers: the error names the shard. One that is open stays as it was, if it was only removed."""
    loaders = {worker: loader_of(shards, worker=worker) for worker in ("native", "thread")}
    dataset = loaders["native"].dataset
    path, (first, last) = Path(dataset.shards[1]), np.flatnonzero(dataset._places["file"] == 1)[[0, -1]]
    want, found = read(loader_of(shards, 0), 2)[N // BATCH * opened :][: N // BATCH], {}
    for loader in loaders.values():
        files = loader.dataset.files()
        if opened:
            read(loader)
        else:
            loader.dataset._files = list(map(copy.copy, loader.dataset._files))
        assert files.descriptors is not None
        assert (files.descriptors.numbers[1] > 0) == (opened and loader.worker == "native")
    change(path)
    for worker, loader in loaders.items():
        batches, found[worker] = iter(loader), []
        for k in range(N // BATCH):
            try:
                found[worker].append(taken(next(batches)))
            except (OSError, InvalidError) as error:
                found[worker].append((type(error), str(error).splitlines()[0], k))
        assert list(batches) == []
        loader.close()
    same = opened and change in (vanish, folder, closed, replaced)
    assert found["native"] == found["thread"]
    errors = [one for one in found["native"] if isinstance(one[0], type)]
    assert found["native"] == want if same else len(errors) > 2
    assert all(path.name in text and first // BATCH <= k <= last // BATCH for _, text, k in errors)


@pytest.mark.parametrize("most", [0, 3])
def test_shards_stay_open(shards, most, monkeypatch, by_python):
    """As far as there are few enough. Threads share their descriptors."""
    monkeypatch.setattr("stocached._image.shards.MOST_OPEN", most)
    loader, before = loader_of(shards), held()
    assert read(loader, 2) == read(loader_of(shards, 0), 2)
    descriptors = loader.dataset.files().descriptors
    assert (descriptors is not None and (descriptors.numbers > 0).all()) == (most == 3)
    assert by_python == []
    loader.close()
    del loader, descriptors
    nothing_new(before)


# ------------------------------------------------------------ caches that change


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("worker", ["native", "thread"])
def test_cache_that_is_closed_in_the_middle(root, worker, persistent):
    loader = loader_of(root, size="16MiB", worker=worker, persistent_workers=persistent)
    cache = loader.cache
    read(loader)
    batches = iter(loader)
    next(batches)
    cache.close()
    with pytest.raises(ClosedError):
        for _ in batches:  # C may take hits for a quarter of a second
            time.sleep(0.1)
    with pytest.raises(ClosedError):
        for _ in range(40):  # no thread reads or fills a cache that is closed
            read(loader)
            time.sleep(0.05)
    loader.close()


COLOURS = 200


@pytest.fixture
def plain(tmp_path) -> Path:
    """Pictures of one colour."""
    (tmp_path / "a").mkdir()
    for k in range(24):
        pixels = np.empty((64, 64, 3), np.uint8)
        pixels[:] = k, 255, 0
        (tmp_path / "a" / f"{k:02}.jpg").write_bytes(encoded(pixels))
    return tmp_path


@pytest.mark.parametrize(
    ("store", "clears"),
    [
        ({"variable": False}, True),
        ({"variable": True}, False),
        ({"variable": False, "size": CONTROL + 12 * (3 * 64 * 64 + 128), "policy": "clock"}, False),
        ({"variable": True, "size": CONTROL + 12 * (3 * 64 * 64 + 128), "policy": "random"}, True),
    ],
    ids=["fixed", "variable", "fixed, clock", "variable, random"],
)
def test_rows_of_samples_that_change_are_of_one_version(plain, store, clears, by_python):
    """Version v of sample k has pixels of (k, v, 255 - v) and the label 1000 * k + v."""
    dataset = image.Folder(plain, size=64)
    files = [tuple(dataset[k][0][0, 0].tolist()) for k in range(24)]
    augment = image.Compose([image.RandomResizedCrop(32), image.RandomHorizontalFlip()])
    loader = Loader(dataset, BATCH, shuffle=True, seed=1, num_workers=3, augment=augment, **{"size": "16MiB", **store})
    cache, random, turns = loader.cache, np.random.default_rng(1), itertools.count()

    def write() -> None:
        pixels = np.empty((64, 64, 3), np.uint8)
        k, v = (int(n) for n in random.integers((24, COLOURS)))
        pixels[:] = k, v, 255 - v
        if next(turns) % 50 == 0 and clears:
            cache.clear()
        cache.put(k, {"0": pixels, "1": 1000 * k + v}, overwrite=True)

    versions = set()
    with meanwhile(write):
        for _ in range(25):
            for pictures, labels in loader:
                for pixels, label in zip(pictures, labels.tolist()):
                    colour = tuple(pixels[0, 0].tolist())
                    assert (pixels == pixels[0, 0]).all(), "two versions in one row"
                    k, v = divmod(label, 1000)
                    assert (colour == (k, v, 255 - v)) or (label == 0 and colour in files), (colour, label)
                    versions.add(colour)
    assert len(versions) > 48, "the writer wrote in between"
    assert len(by_python) < 48
    loader.close()
