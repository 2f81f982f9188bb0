"""A disk cache behind the cache of a loader (disk=, disk_dir=): programs at the same time and one after the other,
kills, damaged files, each kind of worker, and bad input."""

from __future__ import annotations

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import Of
from loader_datasets import Numbers, read, sample
from processes import until
from programs import FOLDER, Program

from stocached import (
    CacheExistsError,
    CacheMemoryError,
    CacheNotFoundError,
    InvalidError,
    Loader,
    NondeterministicDatasetError,
    image,
)

SAMPLES = 240


def start(folder, log, environment=None, **settings):
    return Program(FOLDER / "disk.py", folder, log, json.dumps(settings), **(environment or {}))


def finish(program):
    out, _ = program.communicate(timeout=120)
    assert program.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def loads(log):
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def written(loader, count):
    """Waits for the writes of all processes, which come after their samples."""
    until(lambda: loader.stats().disk_writes >= count, "the writes of the workers")


def loader_of(dataset, folder, **more):
    settings = {"size": "5MB", "fingerprint": "here", "disk": "64MiB", "disk_dir": folder, **more}
    return Loader(dataset, 8, **settings)


@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 2, "multiprocessing_context": "spawn"},
    ],
    ids=["none", "spawned"],
)
def test_samples_survive_the_program(workers, tmp_path):
    """Also those that the cache in memory has no room for."""
    log = tmp_path / "log"
    first, second = finish(start(tmp_path, log, epochs=2, **workers))
    assert first["seen"] == second["seen"] == SAMPLES
    assert loads(log) == list(range(SAMPLES))
    assert first["disk_writes"] == SAMPLES == first["disk_misses"]
    assert 0 < second["hits"] < SAMPLES  # the memory holds a part
    assert second["disk_hits"] == second["misses"] == SAMPLES - second["hits"]
    (again,) = finish(start(tmp_path, log, **(workers if workers.get("multiprocessing_context") is None else {})))
    assert loads(log) == list(range(SAMPLES))
    assert again == {
        "seen": SAMPLES, "hits": 0, "misses": SAMPLES, "disk_hits": SAMPLES, "disk_misses": 0, "disk_writes": 0,
        "disk_poisoned": 0,
    }  # fmt: skip
    assert len(list(tmp_path.glob("*.tier"))) == 1


def test_ranks_share_a_file(tmp_path):
    log = tmp_path / "log"
    ranks = [start(tmp_path, log, rank=rank, world_size=3, epochs=1, num_workers=1) for rank in range(3)]
    assert sum(finish(rank)[0]["seen"] for rank in ranks) == SAMPLES
    assert loads(log) == list(range(SAMPLES))
    ranks = [start(tmp_path, log, rank=rank, world_size=2, epochs=3) for rank in range(2)]
    for rank in ranks:  # other shards than before
        assert all(epoch["seen"] == SAMPLES // 2 for epoch in finish(rank))
    assert loads(log) == list(range(SAMPLES))


def test_killed_programs_lose_nothing(tmp_path):
    """What is on the disk stays. What waits for its write is lost."""
    log, noted = tmp_path / "log", tmp_path / "noted"
    random = np.random.default_rng(5)
    # has the file open: it sees the writes, and the control part stays
    watch = loader_of(Numbers(SAMPLES), tmp_path, fingerprint="numbers")
    writes = 0
    for _ in range(3):
        program = start(tmp_path, noted, num_workers=2)
        want = writes + int(random.integers(1, 40))
        until(lambda: watch.stats().disk_writes >= want or program.poll() is not None, "writes of a program")
        program.send_signal(signal.SIGKILL)
        program.communicate()
        writes = watch.stats().disk_writes
    assert writes > 0
    watch.cache.close()
    (epoch,) = finish(start(tmp_path, log, environment={}))
    assert epoch["seen"] == SAMPLES
    assert epoch["disk_poisoned"] == 0
    assert epoch["disk_hits"] >= writes
    (epoch,) = finish(start(tmp_path, log))
    assert epoch["disk_hits"] == SAMPLES


def test_killed_at_the_end(tmp_path):
    """The control part stays in memory, and the next program uses it."""
    log = tmp_path / "log"
    program = start(tmp_path, log, {"KILL": "1"})
    program.communicate()
    assert program.returncode == -signal.SIGKILL
    (epoch,) = finish(start(tmp_path, log))
    assert epoch["disk_hits"] == SAMPLES
    assert loads(log) == list(range(SAMPLES))


def pairs(index, vary):
    """A sample of two fields; with `vary`, of a length of its own."""
    n = 10 + index if vary else 16
    return {"data": np.full(n, index, np.int32), "label": index}


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_fields_and_shapes(vary, workers, tmp_path):
    for program in range(2):
        dataset = Of(functools.partial(pairs, vary=vary), 50)
        loader = Loader(
            dataset, None, size="20MB", fingerprint="pairs", disk="64MiB", disk_dir=tmp_path, num_workers=workers,
            variable=vary,
        )  # fmt: skip
        for _epoch in range(2):
            for index, got in enumerate(loader):
                assert got["label"] == index
                assert got["data"].tolist() == dataset[index]["data"].tolist()
        if program == 0:
            written(loader, 50)
        stats = loader.stats()
        assert (stats.disk_writes, stats.disk_hits) == ((50, 0) if program == 0 else (0, 50))
        assert loader.cache.stats().disk_writes == (50 if program == 0 else 0)
        loader.cache.close()


def test_damaged_samples_are_loaded_again(tmp_path):
    loader = loader_of(Numbers(40), tmp_path)
    read(loader)
    del loader
    (file,) = tmp_path.glob("*.tier")
    data = bytearray(file.read_bytes())
    at = data.find(sample(11).tobytes())
    assert at > 0
    data[at + 100] ^= 1
    file.write_bytes(data)
    loader = loader_of(Numbers(40), tmp_path)
    assert sorted(read(loader)) == list(range(40))
    assert loader.cache._disk.flush()
    stats = loader.stats()
    assert (stats.disk_hits, stats.disk_poisoned, stats.disk_writes) == (39, 1, 1)


def has_lock(fd):
    return "lock:" in Path(f"/proc/self/fdinfo/{fd}").read_text()


def test_a_disk_that_fails_is_counted_and_warned_of_once(tmp_path, recwarn):
    """The descriptor becomes one that can only be written."""
    loader = loader_of(Numbers(40), tmp_path, disk_policy=None, size="4300KB")
    read(loader)
    assert loader.cache._disk.flush()
    assert not recwarn
    path = loader.cache._disk.path
    other = os.open(path, os.O_WRONLY)
    own = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != other and os.path.exists(f"/proc/self/fd/{fd}")]
    (reads,) = (fd for fd in own if os.path.sameopenfile(fd, other) and not has_lock(fd))
    os.dup2(other, reads)
    os.close(other)
    loader.cache.clear()
    for _ in range(2):
        assert sorted(read(loader)) == list(range(40))
    (said,) = [str(one.message) for one in recwarn]
    assert "the disk fails: " in said
    assert path in said
    assert loader.stats().disk_failed > 0


@pytest.mark.parametrize("did", ["removed", "removed with its folder", "replaced", "truncated", "hidden"])
def test_a_file_that_is_taken_away_is_warned_of_once(did, tmp_path, recwarn):
    folder = tmp_path / "disk"
    folder.mkdir()
    loader = loader_of(Numbers(40), folder)
    read(loader)
    assert loader.cache._disk.flush()
    assert not recwarn
    path = loader.cache._disk.path
    if did == "truncated":
        os.truncate(path, 5000)
    elif did == "hidden":
        folder.rename(tmp_path / "other")
        folder.write_bytes(b"")
    else:
        os.unlink(path)
    if did == "replaced":
        Path(path).write_bytes(b"")
    if did == "removed with its folder":
        folder.rmdir()
    for _ in range(2):
        assert sorted(read(loader)) == list(range(40))
    (said,) = [str(one.message) for one in recwarn]
    wanted = f"another program has {did.split()[0]} {path}: what this program stores there is lost"
    assert ("the disk fails: stat " if did == "hidden" else wanted) in said
    assert path in said


@pytest.mark.parametrize("policy", ["first-come", "cost"])
def test_a_small_disk_holds_others_than_the_memory(policy, tmp_path):
    """Also in a later program, whose memory is empty."""
    for program in range(2):
        loader = loader_of(
            Numbers(80), tmp_path, disk=(2 << 20) + 40 * 4000, size="4280KB", policy=policy, num_workers=2,
            worker="thread",
        )  # fmt: skip
        slots = loader.cache.slots + int(loader.cache._disk.handle.info().slots)
        assert 40 < slots < 80
        for _ in range(2):
            before, evicted = loader.stats(), loader.cache.stats().evicted
            assert sorted(read(loader)) == list(range(80))
            assert loader.cache._disk.flush()
        last, evicted = loader.stats() - before, loader.cache.stats().evicted - evicted
        # cost: a sample may go before it is read, and for each one that the disk takes another goes
        assert slots - evicted - last.disk_writes <= last.hits + last.disk_hits <= slots, program
        loader.cache.close()


@pytest.mark.parametrize("policy", [None, "fifo"])
def test_a_disk_for_a_part(policy, tmp_path):
    """A full file keeps its samples, or with another policy takes each new one."""
    loader = loader_of(
        Numbers(40), tmp_path, disk=(2 << 20) + 16 * 4000, size="4250KB", disk_policy=policy
    )  # 12 in memory
    for _ in range(3):
        assert sorted(read(loader)) == list(range(40))
        assert loader.cache._disk.flush()
    if policy is None:
        assert 0 < loader.stats().disk_writes <= 16
        assert loader.stats().disk_hits > 0
    else:
        assert loader.stats().disk_writes > 40


def test_a_loader_that_is_made_again_keeps_the_disk(tmp_path):
    loader = loader_of(Numbers(40), tmp_path, size="4300KB")
    read(loader)
    assert loader.cache._disk.flush()
    again = loader._again()
    assert again.cache._disk is loader.cache._disk
    read(again)
    assert again.stats().disk_hits > 0
    assert again.stats().disk_writes == 0
    unpickled = pickle.loads(pickle.dumps(loader))
    assert sorted(read(unpickled)) == list(range(40))
    assert unpickled.stats().disk_writes == 0


class Random(Numbers):
    """A few samples draw. The constructor of a loader does not look at them."""

    def __getitem__(self, index):
        made = super().__getitem__(index)
        return made + np.random.randint(1000) if index in (21, 22, 23) else made


def test_random_samples_do_not_stay_on_the_disk(tmp_path):
    loader = loader_of(Random(40), tmp_path)
    with pytest.raises(NondeterministicDatasetError):
        read(loader)
    assert loader.cache._disk.flush()
    assert loader.stats().disk_misses > 10
    loader.cache.close()
    loader = loader_of(Numbers(40), tmp_path)
    assert sorted(read(loader)) == list(range(40))
    assert loader.stats().disk_hits == 0


def test_the_fingerprint_names_the_file(tmp_path):
    data = np.arange(3000, dtype=np.float32).reshape(50, 60)
    for _ in range(2):
        loader = Loader(data, 5, size="8MiB", disk="32MiB", disk_dir=tmp_path)
        rows = np.concatenate(list(loader))
        np.testing.assert_array_equal(rows, data)
    assert len(list(tmp_path.glob("*.tier"))) == 1
    changed = Loader(data + 1, 5, size="8MiB", disk="32MiB", disk_dir=tmp_path)
    np.testing.assert_array_equal(np.concatenate(list(changed)), data + 1)
    assert len(list(tmp_path.glob("*.tier"))) == 2
    Loader(data, 5, size="8MiB", name=f"test-disk-{os.getpid()}", disk="32MiB", disk_dir=tmp_path).cache.unlink()
    assert (tmp_path / f"test-disk-{os.getpid()}.tier").exists()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"disk_dir": None}, InvalidError, "disk= needs disk_dir="),
        ({"disk": None}, InvalidError, "disk_dir= is the folder of disk="),
        ({"disk": "much"}, InvalidError, "disk='much' is not a size"),
        ({"disk": -1}, InvalidError, "disk=-1 bytes"),
        ({"disk": 1.5}, InvalidError, "disk=1.5"),
        ({"disk": 0}, InvalidError, "disk=0 holds no sample"),
        ({"disk_policy": "cost"}, InvalidError, "disk_policy='cost'; it must be one of first-come, random"),
        ({"disk": None, "disk_dir": None, "disk_policy": "lru"}, InvalidError, "disk_policy= is for a disk"),
        ({"disk_policy": "lru", "variable": True, "size": "20MB"}, InvalidError, 'differ in size need "first-come"'),
        ({"disk_dir": 7}, InvalidError, "disk_dir=7"),
        ({"disk_dir": ""}, InvalidError, "disk_dir=''"),
        ({"disk": 3000}, CacheMemoryError, "disk=3000: one slot of 4000 bytes"),
        ({"disk": "900TiB", "variable": True, "size": "20MB"}, CacheMemoryError, "free"),
        ({"disk_dir": "/none/of/ours"}, CacheNotFoundError, "the folder /none/of/ours does not exist"),
        ({"size": None, "fingerprint": None}, InvalidError, "disk= is for a cache that is made here"),
        ({"fingerprint": None}, InvalidError, "it is not certain which dataset these are (data: "),
    ],
)
def test_bad_input(settings, error, text, tmp_path):
    settings = {"disk_dir": tmp_path, **settings}
    dataset = Numbers(settings.pop("dataset", 40))
    with pytest.raises(error) as caught:
        loader_of(dataset, settings.pop("disk_dir"), **settings)
    assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_cache_of_the_user(tmp_path):
    cache = loader_of(Numbers(40), tmp_path).cache
    with pytest.raises(InvalidError, match="disk= are for a cache that is made here"):
        Loader(Numbers(40), cache=cache, disk="1GiB", disk_dir=tmp_path / "other")


def test_other_settings_while_the_file_is_in_use(tmp_path):
    first = loader_of(Numbers(40), tmp_path)
    with pytest.raises(Exception, match=f"other settings.*process {os.getpid()} .*use it"):
        loader_of(Numbers(40), tmp_path, disk="32MiB")
    assert sorted(read(first)) == list(range(40))
    first.cache.close()
    assert sorted(read(loader_of(Numbers(40), tmp_path, disk="32MiB"))) == list(range(40))


def test_a_server_has_the_file(tmp_path):
    loader_of(Numbers(40), tmp_path)
    (file,) = tmp_path.glob("*.tier")
    lock = (
        "import fcntl, struct, sys, time; file = open(sys.argv[1], 'r+b'); "
        "fcntl.fcntl(file, 37, struct.pack('hhqqi4x', 1, 0, 0, 1, 0)); print('has it', flush=True); time.sleep(600)"
    )  # F_OFD_SETLK of byte 0, exclusive
    server = subprocess.Popen([sys.executable, "-c", lock, file], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "has it\n"
        with pytest.raises(CacheExistsError, match="has it for itself"):
            loader_of(Numbers(40), tmp_path)
    finally:
        server.kill()
        server.communicate()


def pixels(loader):
    return {int(label): row.copy() for rows, labels in loader for row, label in zip(rows, labels)}


@pytest.mark.parametrize("store", ["decoded", "encoded"])
def test_native_workers(store, tmp_path):
    """After the first program no picture is read."""
    from pictures import encoded, picture

    root = tmp_path / "pictures"
    for k in range(40):
        file = root / f"{k:03}" / "a.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(encoded(picture(60, 50, seed=k)))
    made = []
    for program in range(2):
        folder = image.Folder(root, transform=image.Resize((32, 32)))
        loader = Loader(
            folder, 8, size="9MB" if store == "encoded" else "4300KB", store=store, fingerprint="pictures", disk="64MiB",
            disk_dir=tmp_path, num_workers=2, worker="native", augment=image.ToDtype("float32", scale=True),
        )  # fmt: skip
        if program:
            for file in root.rglob("*.jpg"):
                file.write_bytes(b"no picture")
        for _ in range(2):
            made.append(pixels(loader))
            assert loader.cache._disk.flush()
        stats = loader.stats()
        assert stats.disk_writes == (0 if program else 40)
        assert stats.disk_hits > 0 or (store == "encoded" and not program)
        loader.cache.close()
    assert sorted(made[0]) == list(range(40))
    for again in made[1:]:
        assert all((made[0][k] == again[k]).all() for k in range(40))


@pytest.mark.torch
def test_cached_dataset(tmp_path):
    import torch

    from stocached.torch import CachedDataset, DataLoader

    data = torch.arange(600.0).reshape(60, 10)
    dataset = torch.utils.data.TensorDataset(data)
    for program in range(2):
        cached = CachedDataset(dataset, size="8MiB", disk="32MiB", disk_dir=tmp_path)
        batches = torch.utils.data.DataLoader(cached, 7, num_workers=2)
        assert torch.equal(torch.cat([rows for (rows,) in batches]), data)
        stats = cached.stats()  # the end of torch's workers has written what they put
        assert (stats.disk_writes, stats.disk_hits) == ((60, 0) if program == 0 else (0, 60))
        cached.cache.close()
    loader = DataLoader(dataset, 7, size="8MiB", disk="32MiB", disk_dir=tmp_path, num_workers=2)
    assert torch.equal(torch.cat([rows for (rows,) in loader]), data)
    assert loader.stats().disk_hits == 60
