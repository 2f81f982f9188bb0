"""Memory of caches and of batches: what the kernel counts and dumps."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stocached import Cache, Loader
from stocached._memory import mapping
from stocached._memory.batch_pool import BatchPool

MIB = 2**20


def flags(address: int) -> list[str]:
    """Those of the mapping that begins there, as the kernel shows them."""
    begins = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split(" ")[0]:
                begins = int(line.split("-")[0], 16) == address
            elif begins and line.startswith("VmFlags:"):
                return line.split()[1:]
    raise AssertionError(f"no mapping begins at {address:#x}")


# ------------------------------------------------------------ core dumps


def test_payload_and_batches_are_not_dumped(folder):
    with Cache.create("dumped", samples=100, sample_bytes=MIB, dir=folder) as cache:
        assert "dd" in flags(cache._payload.ctypes.data)
        with Cache.attach(folder / "dumped", read_only=True) as reader:
            assert "dd" in flags(reader._payload.ctypes.data)
    for shared in (True, False):
        batch_pool = BatchPool(64 * MIB, shared=shared)
        batch_pool.resize(4 * MIB)
        lease = batch_pool.take()
        assert "dd" in flags(batch_pool.buffer(lease.number).ctypes.data)
    file = os.memfd_create("control")
    try:
        os.truncate(file, 4096)
        assert "dd" not in flags(mapping.of_file(file, 0, 4096).ctypes.data)  # control data belongs in a dump
    finally:
        os.close(file)


# ------------------------------------------------------------ memory that is held


class Samples:
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return np.full(MIB // 4, index, np.uint8)


def test_a_loader_holds_memory_for_its_batches():
    def drawn(cache):
        info = cache._handle.info()
        with open(f"/proc/self/fd/{info.fd}", "rb", buffering=0) as file:
            return int.from_bytes(os.pread(file.fileno(), 8, 8192 + 1408), "little")

    loader = Loader(Samples(), batch_size=8, num_workers=2, size="80MiB")
    batches = iter(loader)
    next(batches)
    first = drawn(loader.cache)
    assert 3 * 2 * MIB <= first <= 7 * 2 * MIB  # buffers of 2 workers x 2, and of batches that the training loop has
    for _ in batches:
        pass
    assert drawn(loader.cache) < first  # batches have that memory now
    for _ in range(2):
        list(zip(loader, range(3)))
    cache = loader.cache
    del loader, batches
    assert drawn(cache) == 0


def test_a_batch_that_is_kept_does_not_keep_the_others_memory():
    loader = Loader(Samples(), batch_size=8, num_workers=2, size="80MiB")
    kept = [next(iter(loader))]
    for batch in loader:
        kept = [batch]
    batch_pools = [fd for fd in Path("/proc/self/fd").iterdir() if _is_ring(fd)]
    taken = [os.stat(fd).st_blocks * 512 for fd in batch_pools]
    assert all(count <= 3 * 2 * MIB for count in taken), taken
    assert kept[0][0, 0] == 192


def _is_ring(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return "stocached-ring" in os.readlink(path)
    return False


# ------------------------------------------------------------ in a cgroup


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Makes a memory cgroup without a limit, below our own (version 1) or at the top (version
    2)."""
    own = [
        line.split(":")[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.split(":")[1] == "memory"
    ]
    group = Path(f"/sys/fs/cgroup/memory/{own[0]}" if own else "/sys/fs/cgroup") / f"stocached-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here (root is needed): {error}")
    yield group
    for _ in range(1000):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.005)


def limit(group: Path, count: int) -> None:
    for name in ("memory.limit_in_bytes", "memory.max"):
        if (group / name).exists():
            (group / name).write_text(str(count))
            return
    pytest.skip("no memory controller is mounted")


# The limit in MiB, batch and cache of the loader; the large one is for `make soak`.
SIZES = [(512, 32, "340MiB", 3800)] + [(2048, 256, "1800MiB", 20000)] * ("STOCACHED_TEST_MEMORY" in os.environ)


@pytest.mark.parametrize(("mebibytes", "batch", "size", "samples"), SIZES)
def test_a_loader_in_a_cgroup(cgroup, mebibytes, batch, size, samples):
    """Two epochs with 8 workers, of a dataset that is larger than the memory. No process is killed,
    and the cache is as large as possible."""
    limit(cgroup, mebibytes * MIB)
    program = """
        import multiprocessing, sys
        import numpy as np
        from stocached import Loader

        multiprocessing.set_start_method("fork")  # the default before Python 3.14

        class Data:
            def __len__(self):
                return int(sys.argv[3])

            def __getitem__(self, index):
                return np.full((3, 224, 224), index % 251, np.uint8), index

        loader = Loader(Data(), batch_size=int(sys.argv[1]), shuffle=True, num_workers=8, size=sys.argv[2], seed=1)
        for epoch in range(2):
            seen = 0
            for values, indices in loader:
                assert (values[:, 0, 0, 0] == indices % 251).all() and (values[:, 2, 223, 223] == indices % 251).all()
                seen += len(indices)
            assert seen == len(loader.dataset)
        stats = loader.cache.stats()
        print(stats.ready_bytes, stats.full)
    """
    inside = [
        "/bin/sh",
        "-c",
        f'echo $$ > {cgroup}/cgroup.procs && exec "$@"',
        "x",
        sys.executable,
        "-c",
        textwrap.dedent(program),
    ]
    ran = subprocess.run([*inside, str(batch), size, str(samples)], capture_output=True, text=True, check=False)
    killed = [
        line
        for name in ("memory.oom_control", "memory.events")
        if (cgroup / name).exists()
        for line in (cgroup / name).read_text().splitlines()
    ]
    assert ran.returncode == 0, f"exit {ran.returncode}, {killed}: {ran.stderr}"
    assert "oom_kill 0" in killed
    ready, full = map(int, ran.stdout.split())
    assert ready > mebibytes * MIB // 4
    assert full > 0
