"""Memory of batches that a device reads from, with the slowest possible device: the batch pool alone,
which needs no torch. test_pinned.py tests the loader."""

from __future__ import annotations

import gc
import os
import warnings

import pytest
from lazy_device import LazyDevice

from stocached._memory.batch_pool import BatchPool

ROOM = 5  # batches in the batch pool


def ring_of(device):
    batch_pool = BatchPool(ROOM * 4096, device=device)
    batch_pool.resize(4096)
    return batch_pool


def test_buffer_is_used_again_when_the_device_has_read_it():
    device, copies = LazyDevice(), []
    batch_pool = ring_of(device)
    for k in range(4 * ROOM):
        batch = batch_pool.take().array()
        batch[:] = k
        device.copy(batch, copies)
        del batch
    device.run()
    assert [copy.tolist() for copy in copies] == [[k] * 4096 for k in range(4 * ROOM)]
    assert device.most_registered == ROOM, "it waits for the device instead of exceeding the limit"


def test_buffer_that_the_device_has_read_is_taken_before_another_is_made():
    device = LazyDevice()
    batch_pool = ring_of(device)
    for _ in range(10):
        batch = batch_pool.take().array()
        device.copy(batch, [])
        device.run()
        del batch
    assert device.most_registered == 1


def test_lease_that_ends_while_the_mark_is_set_is_not_after_it():
    device = LazyDevice()
    batch_pool = ring_of(device)
    first, second = batch_pool.take(), batch_pool.take()
    late = [second.array()]
    numbers = first.number, second.number
    del first, second
    mark = device.mark

    def ends_within():
        made = mark()
        if late:
            device.copy(late.pop(), [])
        return made

    device.mark = ends_within
    third = batch_pool.take()
    assert third.number == numbers[0], "the device has finished with this buffer"
    assert batch_pool.take().number not in numbers, "the copy from the second buffer has not happened yet"


def test_nothing_is_registered_when_the_ring_and_its_batches_are_gone():
    device, copies = LazyDevice(), []
    batch_pool = ring_of(device)
    batch = batch_pool.take().array()
    batch[:] = 7
    device.copy(batch, copies)
    del batch_pool
    gc.collect()
    assert device.reads(batch), "the program still sees it"
    del batch
    gc.collect()
    assert device.registered == {}
    assert (copies[0] == 7).all(), "it was unregistered after the copy"


def test_memory_that_cannot_be_registered_is_said_once():
    device = LazyDevice()
    device.refuses_from = 1
    batch_pool = ring_of(device)
    first = batch_pool.take().array()
    with pytest.warns(UserWarning, match='as with pin_memory="copy": out of pages'):
        second = batch_pool.take().array()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = batch_pool.take().array()
    assert [device.reads(array) for array in (first, second, third)] == [True, False, False]
    copies = []
    first[:] = 3
    device.copy(first, copies)
    del first
    assert batch_pool.take().number != 0, "the ring still waits for memory that was registered before"
    device.run()
    assert (copies[0] == 3).all()


def test_forked_child_leaves_the_device_alone():
    device = LazyDevice()
    batch_pool = ring_of(device)
    lease = batch_pool.take()
    number = lease.number
    lease.array()[:] = 9
    child = os.fork()
    if not child:
        status = 1
        try:
            batch_pool.enter_worker()
            same = bool((batch_pool.buffer(number) == 9).all())  # mapped again, and the same memory
            batch_pool.file.grow((number + 2) * 4096)
            batch_pool.buffer(number + 1)  # register would raise here
            status = 0 if same else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(device.registered) == 1
