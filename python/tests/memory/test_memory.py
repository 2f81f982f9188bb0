"""Memory of caches and of batches: what the kernel counts, locks and dumps."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import python

import stocached
from stocached import Cache, Loader
from stocached._memory import mapping
from stocached._memory.batch_pool import BatchPool

MIB = 2**20

FLAGS = '''
def flags(address):
    """Those of the mapping that begins there, as the kernel shows them."""
    begins = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split(" ")[0]:
                begins = int(line.split("-")[0], 16) == address
            elif begins and line.startswith("VmFlags:"):
                return line.split()[1:]
    raise AssertionError(f"no mapping begins at {address:#x}")
'''
_namespace: dict[str, Callable[[int], list[str]]] = {}
exec(FLAGS, _namespace)  # it is also part of a program below
flags = _namespace["flags"]


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


def test_a_core_has_no_payload(tmp_path):
    """A real core of a process that dies of SIGSEGV with 11 MiB of 1 GiB stored."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/")):
        pytest.skip("core_pattern sends cores elsewhere: sysctl kernel.core_pattern=core")
    # without a name, because by default the kernel does not dump maps of named files
    cache = Cache.create(samples=1024, sample_bytes=MIB)
    program = """
        import os, resource, signal, sys
        import numpy as np
        from stocached import Cache
        from stocached._memory.batch_pool import BatchPool

        cache = Cache.attach(sys.argv[1])
        sample = np.full(2**20, 0xA7, np.uint8)
        for index in range(11):
            cache.put(index, sample)
        sample[:] = 0
        ring = BatchPool(2**30)
        ring.resize(100 * 2**20)
        leases = [ring.take() for _ in range(10)]  # holes
        print(os.fstat(ring.file.fd).st_size, flush=True)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    try:
        if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY and os.geteuid() != 0:
            pytest.skip("RLIMIT_CORE cannot be raised")
        died = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), f"/proc/{os.getpid()}/fd/{cache._handle.info().fd}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert died.returncode == -11, died.stderr
        assert int(died.stdout) == 1000 * MIB
        (core,) = tmp_path.glob("core*")
        content = core.read_bytes()
        assert len(content) < 300 * MIB
        assert b"STOCACHE" in content
        assert cache.uuid in content
        assert bytes([0xA7]) * 4096 not in content
        assert cache.stats().allocated_bytes < 20 * MIB
    finally:
        cache.close()


# ------------------------------------------------------------ locked memory


def test_locked_memory():
    """A program that locks all its memory, also future maps, does not lock the whole cache."""
    result = python(
        FLAGS
        + textwrap.dedent("""
        import ctypes
        import numpy as np
        from stocached import Cache

        if ctypes.CDLL(None).mlockall(3) != 0:  # MCL_CURRENT | MCL_FUTURE
            raise SystemExit("mlockall is not allowed")
        cache = Cache.create(samples=1024, sample_bytes=2**20)
        assert cache.stats().allocated_bytes < 8 * 2**20
        assert "lo" not in flags(cache._payload.ctypes.data)
        for index in range(3):
            assert cache.put(index, np.full(2**20, index, np.uint8))
        assert cache.get(2)[-1] == 2
        assert cache.stats().allocated_bytes < 16 * 2**20
        """),
        check=False,
    )
    if "mlockall is not allowed" in result.stderr:
        pytest.skip("mlockall is not allowed (RLIMIT_MEMLOCK)")
    assert result.returncode == 0, result.stderr


# ------------------------------------------------------------ memory that is promised, and held


def test_memory_is_promised_once():
    """Unnamed caches of a third of the memory each. The third one, or an earlier one, is refused
    with the numbers."""
    with contextlib.ExitStack() as stack:
        with Cache.create(samples=1, sample_bytes=1) as probe:
            third = stocached._native.spare(probe._handle) // 3 // MIB
        with pytest.raises(stocached.CacheMemoryError, match="other caches have yet to fill"):
            for _ in range(4):
                stack.enter_context(Cache.create(samples=2**20, slots=third, sample_bytes=MIB))


def test_hold():
    with Cache.create(samples=100, sample_bytes=MIB) as cache:
        native, handle = stocached._native, cache._handle
        assert cache.put(0, np.zeros(MIB, np.uint8))
        assert native.hold(handle, 2**60) == 0
        assert native.spare(handle) == 0
        assert not cache.put(1, np.zeros(MIB, np.uint8))
        with Cache.attach(f"/proc/self/fd/{handle.info().fd}") as other:
            assert not other.put(1, np.zeros(MIB, np.uint8))
            assert native.hold(handle, 10 * MIB) == 0
            assert other.put(1, np.zeros(MIB, np.uint8))
            assert native.hold(handle, 2**60) == 0
        assert native.hold(handle, 0) == 0
        assert native.spare(handle) > 0
        assert cache.put(2, np.zeros(MIB, np.uint8))
        assert cache.stats().full == 2


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
