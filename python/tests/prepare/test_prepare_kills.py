"""Preparations that are killed: at each step in the file system, and at random moments with several
processes.

Whatever was killed and when, no incomplete dataset passes for a complete one, no process stays, and
the next run makes the same bytes. STOCACHED_TEST_KILLS: number of random kills; more of them take
longer.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from prepared import VARIABLE, Made, same, sample, tree
from processes import forked, held, step_kills, until

from stocached.prepare import BlockStorage, NotPreparedError, prepare

SMALL = {"block_bytes": 4096, "file_bytes": 8192}
N = 90
KILLS = int(os.environ.get("STOCACHED_TEST_KILLS", "15"))
STEPS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "close")


def processes_of(session: int) -> list[int]:
    """Live processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def check_not_whole_or_right(storage: BlockStorage, n: int) -> bool:
    """Whether the dataset is complete. If it is, checks every sample. If not, loading from it must
    fail."""
    if not storage.is_prepared():
        assert not Path(storage.folder).exists()
        with pytest.raises(NotPreparedError):
            storage.load_sample(0)
        return False
    reader = BlockStorage(storage.folder)
    assert len(reader) == n
    assert all(same(made, sample(VARIABLE, k)) for k, made in enumerate(reader.load_samples(range(n))))
    reader.close()
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "d"
    prepare(Made(N, VARIABLE), BlockStorage(folder, **SMALL))
    assert len(tree(folder)) >= 4
    return tree(folder)


def test_killed_at_each_step(folder, whole):
    """Before each call that changes something, which is after the call before it, and after the last one. A second run
    continues what the killed one left."""
    at, ended = 0, True
    while ended:
        at += 1
        storage = BlockStorage(folder / str(at), **SMALL)

        def work(at=at, storage=storage):
            left = step_kills(STEPS, at)
            prepare(Made(N, VARIABLE), storage)
            if left[0] == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        _, status = os.waitpid(forked(work), 0)
        ended = os.WIFSIGNALED(status)
        assert ended or os.WEXITSTATUS(status) == 0
        was_whole = check_not_whole_or_right(storage, N)
        assert prepare(Made(N, VARIABLE), storage) is not was_whole
        assert tree(storage.folder) == whole
        assert not Path(f"{storage.folder}.part").exists()
    assert at > 30  # there are that many steps


def test_killed_at_random_until_it_is_whole(folder, whole):
    """One folder, killed many times while the work goes on. The dataset is complete in the end, and
    right."""
    chance = random.Random(2)
    done = 0
    while done < KILLS // 10:
        storage = BlockStorage(folder / str(done), **SMALL)
        runs = 0
        while True:
            runs += 1
            child = forked(lambda storage=storage: prepare(Made(N, VARIABLE, seconds=0.001), storage, processes=2))
            time.sleep(chance.uniform(0, 0.04 * (1 + runs)))  # the longer it takes, the more time it gets
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if check_not_whole_or_right(storage, N):
                break
        assert tree(storage.folder) == whole
        assert not Path(f"{storage.folder}.part").exists()
        done += 1


def test_no_process_stays(folder, whole):
    chance = random.Random(7)
    for k in range(KILLS // 4 + 1):
        storage = BlockStorage(folder / str(k), **SMALL)
        child = forked(lambda storage=storage: prepare(Made(N, VARIABLE, seconds=0.002), storage, processes=2))
        time.sleep(chance.uniform(0.01, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert prepare(Made(N, VARIABLE), storage, wait=5) or storage.is_prepared()  # orphans hold no lock
        assert tree(storage.folder) == whole
        until(lambda: processes_of(child) == [], "none of its processes lives")


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_what_was_left_is_verified(folder, whole, damage):
    """An interrupted preparation leaves a damaged file: it is written again."""
    storage = BlockStorage(folder / "d", **SMALL)
    storage.start_preparation(Made(N, VARIABLE).dataset_info())
    for k in range(N - 10):
        storage.save_sample(k, sample(VARIABLE, k))
    storage.stop_preparation()
    path = folder / "d.part" / "00001.stocblk"
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:-1], "flip": data[:50] + bytes([data[50] ^ 1]) + data[51:], "empty": b""}[damage]
        )
    first = storage.start_preparation(Made(N, VARIABLE).dataset_info())
    assert 0 < first < N - 10
    storage.stop_preparation()
    assert prepare(Made(N, VARIABLE), storage)
    assert tree(folder / "d") == whole


def test_a_full_disk(folder, whole, monkeypatch):
    """An error while a block is written. No incomplete dataset passes for complete, no file stays
    open, and the next run continues."""
    storage = BlockStorage(folder / "d", **SMALL)
    real, left = os.write, [5]

    def write(fd, data):
        left[0] -= 1
        if left[0] == 0:
            return real(fd, data[:100])  # writes a part of it
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    before = held()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            prepare(Made(N, VARIABLE), storage)
    assert not held() - before
    assert not storage.is_prepared()
    assert prepare(Made(N, VARIABLE), storage)
    assert tree(folder / "d") == whole
