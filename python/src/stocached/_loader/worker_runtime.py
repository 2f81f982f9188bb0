"""The workers of a loader, and the memory for its batches."""

from __future__ import annotations

import pickle
import time
from typing import Any

from .._common import threads
from .._common.background import Background
from .._memory.batch_pool import BatchPool, Lease
from .._memory.batch_reserve import reserve_of
from .._samples.batch_layout import Layout
from .._workers import serialization
from .._workers.pool import Asked, Pool
from .._workers.task_queue import TaskQueue
from .._workers.tasks import BEGIN, TELL
from .epoch_context import EpochContext
from .worker import run_worker


class WorkerRuntime(Pool):
    """It belongs to a loader that keeps its workers, or to one iteration."""

    def __init__(self, context: EpochContext, method: Any, tasks: int, *, restart: bool) -> None:
        """method: for `start_context`. tasks: the size of the task queue. restart: of the pool."""
        device, shared = context.job.backend.device(), context.job.workers > 0 and context.job.process
        # A device must not read private memory: after a fork, a store moves its pages, and the
        # device reads the old ones.
        batch_pool = BatchPool(context.pool_bytes, shared=shared or device is not None, device=device)
        super().__init__(TaskQueue(tasks), batch_pool)
        self.own = self.batch_pool
        if shared and device is None:
            # For batches without a part of a worker.
            self.own = BatchPool(context.pool_bytes, shared=False)
            self.batch_pool.share_limit(self.own)
        self.batch_pool.reserve = self.own.reserve = reserve_of(context)
        self.background = Background()  # gathers hits
        self.announced: Layout | None = None  # which workers know
        layout = context.layout or context.row_layout
        if layout is not None and context.batch_size is not None:
            self.announce(layout)  # before workers start: they do no task without it
        self.start(context.job, run_worker, method, restart=restart, timeout=context.timeout)
        self.batch_bytes = 0  # bytes of a whole batch; 0: not known yet
        self.epochs = 0  # epochs of whole batches that workers have begun

    def announce(self, layout: Layout) -> Layout:
        """Tells workers the layout of rows, once. Returns the one that they know."""
        if not self.batch_pool.buffer_bytes:
            self.batch_pool.resize(layout.bytes)
            self.own.resize(layout.bytes)
        if self.announced is None:
            self.announced = layout
            self.task_queue.announce(pickle.dumps((layout, self.batch_pool.buffer_bytes), 5))
        return self.announced

    def leave(self, filling: list[threads.Latch]) -> None:
        """An iteration ends. filling: of batches that the background may be filling now. If it waits for a server, it
        keeps its job, and others get another thread."""
        until = time.monotonic() + self.background.timeout
        if not all(latch.wait(max(until - time.monotonic(), 0)) for latch in filling):
            self.background.leave()
            self.background = Background()

    def close(self) -> None:
        self.background.close()
        super().close()
        # Else a batch that the training loop keeps would keep all memory of its batch pool.
        for batch_pool in (self.batch_pool, self.own):
            batch_pool.free_idle()

    def begin(self, context: EpochContext) -> list[Asked]:
        """Tells workers that make whole batches to begin an epoch. `heard` gives their answers."""
        job, restored = context.job, context.begun.restored
        self.job.base_seed, self.job.key = job.base_seed, job.key  # for workers that start later
        begun = []
        for worker in range(job.workers):
            snapshot = restored.workers[worker] if restored is not None and restored.workers else None
            # New workers know the pipes from their job.
            pipes, finished = job.pipes if self.epochs else None, restored is not None and restored.finished
            what = job.base_seed, job.key, pipes, snapshot, finished
            begun.append(self.ask(worker, BEGIN, what))
        self.epochs += 1
        return begun

    def tell(self) -> list[Any]:
        """Requests a snapshot of each worker; None: nothing has changed."""
        asked = [self.ask(worker, TELL, None) for worker in range(self.job.workers)]
        return [self.heard(one) for one in asked]

    def received(self, offset: int, length: int, lease: Lease | None) -> tuple[Any, int]:
        """A batch that a worker has made, and its bytes. The first one says how large buffers are."""
        data, nbytes = serialization.receive(self.task_queue, offset, length, lease)
        if not self.batch_bytes and nbytes:
            self.batch_pool.resize(nbytes + nbytes // 4 + 4096)
            self.batch_bytes = self.batch_pool.buffer_bytes
        return data, nbytes

    def ahead(self, context: EpochContext) -> int:
        """The most batches that may be begun. The batch pool also holds the batch that the training loop
        has and the one that it gets."""
        if not self.batch_pool.buffer_bytes:
            return context.ahead
        return min(
            context.ahead,
            max(context.ahead_bytes // self.batch_pool.buffer_bytes, 1),
            max(self.batch_pool.max_buffers - 2, 1),
        )
