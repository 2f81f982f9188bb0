"""What a real device does with the loader's batches. On a machine with such a device, run
`.venv/bin/python -m pytest python/tests/cuda_machine.py`. test_pinned.py has the other tests of pinned memory."""

from __future__ import annotations

import gc
import os
import statistics
import time
import warnings

import numpy as np
import pytest
from torch_helpers import TORCH_WARNINGS, torch

from stocached._memory.batch_pool import BatchPool
from stocached._memory.pinned import Cuda
from stocached.torch import DataLoader

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

SAMPLES, BATCH, SHAPE = 512, 32, (3, 256, 256)


class Images:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, k):
        return np.full(SHAPE, k % 251, np.uint8), k


@pytest.fixture(autouse=True, scope="module")
def there_is_a_device():
    assert torch.cuda.is_available(), "torch finds no CUDA device; these tests are for a machine that has one"


def busy(milliseconds):
    """Keeps the current stream busy for that long."""
    torch.cuda._sleep(int(milliseconds * 1e6))  # cycles, each about one ns


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "extra", [{}, {"size": "256MiB"}, {"size": "256MiB", "worker": "thread"}], ids=["no cache", "cache", "threads"]
)
def test_batches_arrive_on_a_slow_device(workers, extra):
    made = DataLoader(
        Images(),
        BATCH,
        shuffle=True,
        seed=1,
        num_workers=workers,
        pin_memory=True,
        pool_bytes="64MiB",
        persistent_workers=workers > 0,
        **extra,
    )
    wrong, seen = torch.zeros((), dtype=torch.int64, device="cuda"), []
    for _ in range(3):
        for pixels, numbers in made:
            assert pixels.is_pinned()
            busy(20)
            there, which = pixels.to("cuda", non_blocking=True), numbers.to("cuda", non_blocking=True)
            wrong += (there != (which % 251).to(torch.uint8)[:, None, None, None]).sum()
            seen.append(which)
    torch.cuda.synchronize()
    assert int(wrong) == 0
    assert sorted(torch.cat(seen).tolist()) == sorted(list(range(SAMPLES)) * 3)
    made.close()


def test_ring_is_pinned_where_it_lies():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch_pool = BatchPool(1 << 30, device=Cuda())
        batch_pool.resize(BATCH * 3 * 256 * 256)
        batch = batch_pool.take().array()
    assert torch.from_numpy(batch).is_pinned()
    assert torch.from_numpy(batch[4096:8192]).pin_memory().data_ptr() == batch.ctypes.data + 4096, (
        "it is not copied again"
    )


def test_what_is_unregistered_can_be_registered_again():
    for _ in range(20):
        batch_pool = BatchPool(1 << 30, device=Cuda())
        batch_pool.resize(64 << 20)
        batch = batch_pool.take().array()
        there = torch.from_numpy(batch).to("cuda", non_blocking=True)
        del batch_pool, batch
        gc.collect()
        assert there.shape == (64 << 20,)
    torch.cuda.synchronize()


def test_memory_that_cannot_be_registered_leaves_no_error():
    device = Cuda()
    memory = np.zeros(1 << 20, np.uint8)
    kept = device.register(memory)
    with pytest.raises(RuntimeError, match="cudaHostRegister of 1048576 bytes"):
        device.register(memory)
    assert int(torch.ones(1000, device="cuda").sum()) == 1000, "the next call does not raise the old error"
    del kept


def test_forked_child_reads_what_is_registered():
    batch_pool = BatchPool(1 << 24, device=Cuda())
    batch_pool.resize(1 << 20)
    lease = batch_pool.take()
    number = lease.number
    lease.array()[:] = 9
    child = os.fork()
    if not child:
        batch_pool.enter_worker()
        os._exit(0 if (batch_pool.buffer(number) == 9).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    torch.cuda.synchronize()


def test_speed_of_registered_batches(capsys):
    """Compares with copies into pinned memory. The test only requires that it is not slower, and
    prints the figures."""
    rates: dict[str, list[float]] = {"registered": [], "copied": []}
    made = {
        "registered": DataLoader(Images(), BATCH, seed=1, pin_memory=True, size="256MiB"),
        "copied": DataLoader(Images(), BATCH, seed=1, pin_memory="copy", size="256MiB"),
    }
    for loader in made.values():
        list(loader)
    for _ in range(7):
        for name, loader in made.items():
            start = time.perf_counter()
            for pixels, _ in loader:
                pixels.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            rates[name].append(SAMPLES / (time.perf_counter() - start))
    medians = {name: statistics.median(of) for name, of in rates.items()}
    with capsys.disabled():
        print(
            f"\n{torch.cuda.get_device_name()}: "
            + ", ".join(f"{name} {rate:,.0f} samples/s" for name, rate in medians.items())
        )
    assert medians["registered"] > 0.9 * medians["copied"]
