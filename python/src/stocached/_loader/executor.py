"""Makes the batches of a loader. `GatherIterator` fills them row by row, from the cache and by any
free worker; in `WorkerBatchIterator` each worker makes whole batches; in `SingleProcessIterator` the
thread of the training loop makes them. `Setup.by_rows` chooses. Those of a pipe without an index
come from `ListsIterator` and `ListsHere`, and those of rows from `StreamBatches`."""

from __future__ import annotations

import contextlib
from typing import Any

from .._common.errors import UnsupportedError
from .._pipes.lists import PipeLists
from .._streams.order import StreamWalk
from .._workers.task_queue import MOST_TASKS
from .epoch_context import EpochContext
from .gather_iterator import GatherIterator
from .iterator import BatchIterator
from .lists_iterator import ListsHere, ListsIterator
from .setup import Setup
from .single_process import SingleProcessIterator
from .stream_iterator import StreamBatches
from .worker_batches import WorkerBatchIterator
from .worker_runtime import WorkerRuntime


class Executor:
    """Has the workers that a loader keeps between epochs."""

    def __init__(self) -> None:
        self.kept: Any = None  # a Pool: of rows, or a WorkerRuntime

    def pipeline(self, setup: Setup) -> Any:
        """What native workers of the next epoch do in C, of a kind that the program chose; None:
        nothing, or the workers are there."""
        if setup.num_workers and self.kept is None and setup.worker == "native":
            with contextlib.suppress(UnsupportedError):  # the dataset has changed: the threads do all in Python
                return setup.pipeline()
        return None

    def begin(self, context: EpochContext) -> BatchIterator:
        """Starts workers if the loader has some, and makes the iterator, which begins the first
        batches."""
        if isinstance(context.begun.walk, StreamWalk):
            rows = StreamBatches(context, self.kept)
            self.kept = rows.kept
            return rows
        restored, workers = context.begun.restored, context.setup.num_workers
        if restored is not None and not context.by_rows:
            self.end()  # its workers have another place than the state
        shares = workers > 0 or (context.by_rows and context.layout is not None)
        here = ListsHere if isinstance(context.job.dataset, PipeLists) else SingleProcessIterator
        iteration = self._with_runtime(context) if shares else here(context)
        if restored is not None:
            context.begun.restored = None  # the iterator has it, and it may be large
            try:
                iteration.throw_away(restored.before - restored.given)
            except BaseException as error:
                iteration.end(f"it could not continue from its state: {type(error).__name__}", harshly=True)
                raise
        return iteration

    def _with_runtime(self, context: EpochContext) -> BatchIterator:
        """An iterator with workers, or with shared memory for batches."""
        setup, runtime = context.setup, self.kept
        owned = setup.num_workers > 0 and not setup.persistent_workers
        if runtime is None:
            tasks = min(4 * (context.ahead + 1) * max(context.batch_size or 1, 256), MOST_TASKS)
            method, restart = setup.multiprocessing_context, setup.restart_workers
            runtime = WorkerRuntime(context, method, tasks, restart=restart)
            if not owned:
                self.kept = runtime
        try:
            if isinstance(context.job.dataset, PipeLists):
                return ListsIterator(context, runtime, owned)
            return (GatherIterator if context.by_rows else WorkerBatchIterator)(context, runtime, owned)
        except Exception:
            raise
        except BaseException:  # Ctrl-C at any step: workers may have tasks that are not noted
            runtime.close()
            raise

    def end(self) -> None:
        """Ends the kept workers."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None
