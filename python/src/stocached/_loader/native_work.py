"""The part of a worker thread's work that the C libraries do, without the interpreter
(docs/spec/workers.md, Work without an interpreter)."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _native
from .._common.errors import UnsupportedError
from .._memory.batch_pool import BatchPool
from .._samples.batch_layout import Layout
from .._workers.task_queue import TaskQueue
from .._workers.tasks import FROM_CACHE, ROW, SAMPLE
from .job import Job


class NativeWork:
    """Does the tasks of one thread that C can do, and returns the others."""

    def __init__(self, number: int, job: Job, task_queue: TaskQueue, batch_pool: BatchPool) -> None:
        self._number, self._job, self._task_queue, self._batch_pool = number, job, task_queue, batch_pool
        self._work: _native.Work | None = None
        self._begun = False
        self._kept: Any = ()  # what C refers to
        backed = job.served if job.cached is None else job.cached
        self._cache = None if backed is None else backed.cache
        self._indices = None if backed is None else backed.indices

    def take(self, layout: Layout | None, tasks: ctypes.Array[_native.Task], most: int, timeout: float) -> int | None:
        """As `TaskQueue.take`, after C has done the tasks that it can. layout: of rows, if it is known yet. most: if
        C does none."""
        cached, cache = self._job.cached, self._cache
        if (cached is not None and cached.notices.error.flag[0]) or (cache is not None and cache.closed):
            self._end()  # Python raises the error
        elif layout is not None and not self._begun:
            self._begun = True
            self._begin(layout)
        if self._work is None:
            return self._task_queue.take(self._number, tasks, most, timeout)
        return self._task_queue.taken(_native.work(self._work, int(timeout * 1000), tasks, len(tasks)))

    def _begin(self, layout: Layout) -> None:
        """Does nothing if C cannot make such rows."""
        job = self._job
        try:
            image = job.pipeline.worker(layout)
        except UnsupportedError:
            return
        indices = self._indices
        handle = _native.Cache() if self._cache is None else self._cache._handle
        disk = None if self._cache is None else self._cache._disk
        self._kept = image, handle, disk, indices
        shared = self._cache is not None and self._cache.programs  # other programs may have what it misses
        loads = job.pipeline.loads and not shared
        load = _native.Load(image.load) if loads else _native.Load()  # else misses come back
        self._work = _native.Work(
            struct_bytes=ctypes.sizeof(_native.Work), queue=self._task_queue.address, cache=handle,
            context=image.handle, load=load, finish=_native.Finish(image.finish),
            buffers=self._batch_pool.addresses, buffer_count=len(self._batch_pool.addresses), worker=self._number,
            kind=SAMPLE, loaded=ROW, hit=ROW + FROM_CACHE, copies=job.pipeline.copies,
            disk=_native.Cache() if disk is None else disk.handle,
            indices=None if indices is None else indices.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            index_count=0 if indices is None else len(indices),
        )  # fmt: skip

    def _end(self, end: Any = _native.work_end) -> None:
        """Python does all from now on."""
        self._begun = True
        if self._work is not None:
            end(self._work)
        self._work, self._kept = None, ()

    __del__ = _end
