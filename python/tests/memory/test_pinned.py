"""Batches in memory that a device reads from: what the loader does, with the slowest possible
device. test_pinned_ring.py tests the batch pool alone, and cuda_machine.py a real device."""

from __future__ import annotations

import gc
import json
import os
import signal

import numpy as np
import pytest
from lazy_device import LazyDevice
from torch_helpers import TORCH_WARNINGS, run_alone, torch

from stocached._common.errors import InvalidError

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

ROOM = 5  # batches in the batch pool
WORKERS = [0, 2]


class Device:
    """The backend below finds the device here, because workers must not get it."""

    device: LazyDevice


class Images:
    def __len__(self):
        return 96

    def __getitem__(self, k):
        return np.full((3, 40, 40), k % 251, np.uint8), k


def own_collate(samples):
    return torch.utils.data.default_collate(samples)


def arrived(copies, labels):
    """Checks that every picture belongs to its index, and returns the indices."""
    assert len(copies) == len(labels)
    for pixels, numbers in zip(copies, labels):
        assert (pixels == (numbers % 251).astype(np.uint8)[:, None, None, None]).all()
    return np.concatenate(labels).tolist()


@pytest.fixture
def loader(monkeypatch):
    """The loader with a lazy device instead of CUDA."""
    from stocached._loader import torch_loader
    from stocached._loader.torch_backend import TorchBackend

    class Lazy(TorchBackend):
        def __init__(self, accelerator, *, in_place):
            super().__init__("lazy")
            self.in_place = in_place

        def device(self):
            return Device.device if self.in_place else None

        def pin(self, data):
            return [self.pinned(tensor) for tensor in data]

        def pinned(self, tensor):
            return (
                tensor
                if Device.device.reads(tensor.numpy())
                else torch.from_numpy(Device.device.register(tensor.numpy().copy()))
            )

    Device.device = LazyDevice()
    monkeypatch.setattr(torch_loader, "TorchBackend", Lazy)
    return torch_loader.DataLoader


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "extra",
    [{}, {"size": "8MiB"}, {"size": "8MiB", "worker": "thread"}, {"collate_fn": own_collate}],
    ids=["no cache", "cache", "threads", "own collate"],
)
def test_batches_that_are_given_up_at_once_arrive(loader, workers, extra):
    device, copies, labels = Device.device, [], []
    made = loader(
        Images(),
        8,
        shuffle=True,
        seed=1,
        num_workers=workers,
        pool_bytes=ROOM * 8 * 5000,
        persistent_workers=workers > 0,
        **extra,
    )
    for _ in range(3):  # the second and third from the cache, if there is one
        for pixels, numbers in made:
            device.copy(pixels.numpy(), copies)
            device.copy(numbers.numpy(), labels)
    device.run()
    for epoch in range(3):
        part = slice(12 * epoch, 12 * epoch + 12)
        assert sorted(arrived(copies[part], labels[part])) == list(range(96))
    made.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_hits_are_not_copied_once_more(loader, workers):
    device = Device.device
    made = loader(Images(), 8, seed=1, num_workers=workers, size="8MiB", persistent_workers=workers > 0)
    list(made)
    for batch in made:
        memory = [
            lease for lease in device.registered.items() if lease[1] == made._executor.kept.batch_pool.buffer_bytes
        ]
        assert len(memory) == len(device.registered), "no memory is pinned for one batch only"
        assert all(device.reads(tensor.numpy()) for tensor in batch)
    made.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_copy_keeps_the_ring_from_the_device(loader, workers):
    device = Device.device
    made = loader(Images(), 8, num_workers=workers, size="8MiB", pin_memory="copy")
    for _ in range(2):
        for batch in made:
            assert all(device.reads(tensor.numpy()) for tensor in batch)
    assert device.marks == 0
    del batch
    gc.collect()
    assert device.registered == {}, "the memory belonged to the batch and ended with it"
    assert made.pin_memory == "copy", "unchanged, for code that makes the loader again"
    assert made.stats().transfer_seconds > 0


def test_nothing_stays_registered(loader):
    device = Device.device
    for workers in WORKERS:
        made = loader(Images(), 8, num_workers=workers, size="8MiB")
        for end in (12, 3):
            for k, _ in enumerate(made, 1):
                if k == end:
                    break
        del made, _
        gc.collect()
        assert device.registered == {}
    assert device.most_registered > 0


def test_worker_that_is_replaced_writes_into_the_same_memory(loader):
    device, copies, labels = Device.device, [], []
    made = loader(Images(), 8, num_workers=2, pool_bytes=ROOM * 8 * 5000, restart_workers=True)
    batches = iter(made)
    for k, (pixels, numbers) in enumerate(batches):
        if k == 4:
            os.kill(batches._runtime.pids[0], signal.SIGKILL)
        device.copy(pixels.numpy(), copies)
        device.copy(numbers.numpy(), labels)
    device.run()
    assert sorted(arrived(copies, labels)) == list(range(96))


def test_transfers_are_in_stats_and_timeline(loader, tmp_path):
    path = tmp_path / "run.json"
    made = loader(Images(), 8, size="8MiB", trace=path)
    list(made)
    list(made)
    made.close()
    spans = [span for span in json.loads(path.read_text())["traceEvents"] if span["name"] == "transfer"]
    assert [(span["args"]["epoch"], span["args"]["batch"], span["args"]["samples"]) for span in spans] == [
        (e, b, 8) for e in range(2) for b in range(12)
    ]
    assert spans[-1]["args"]["bytes"] == 8 * (3 * 40 * 40 + 8)
    assert made.stats().transfer_seconds == pytest.approx(sum(span["dur"] for span in spans) / 1e6, rel=0.2, abs=1e-4)


# ------------------------------------------------------------ CUDA itself


def test_which_batches_are_registered_with_cuda():
    from stocached._loader.torch_backend import TorchBackend
    from stocached._memory.pinned import Cuda

    assert isinstance(TorchBackend("cuda", in_place=True).device(), Cuda)
    assert TorchBackend("cuda").device() is None
    assert TorchBackend("xpu", in_place=True).device() is None
    assert TorchBackend("", in_place=True).device() is None
    assert not TorchBackend().pins


def test_without_a_device_cuda_refuses_and_the_ring_goes_on(warm, tmp_path):
    program = """
import warnings
import torch
from stocached._memory.pinned import Cuda
from stocached._memory.batch_pool import BatchPool
ring = BatchPool(1 << 20, device=Cuda())
ring.resize(8192)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    batch = ring.take().array()
assert batch.size == 8192 and len(said) == 1, said
print(said[0].message)
"""
    done = run_alone(warm, tmp_path, program, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "memory for batches cannot be pinned in place" in done.stdout


def test_invalid_pin_memory():
    from stocached.torch import DataLoader

    with pytest.raises(InvalidError, match="pin_memory='pinned'; it must be True, False, or \"copy\""):
        DataLoader(Images(), pin_memory="pinned")
