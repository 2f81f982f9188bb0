"""Epochs with worker processes and no framework: each worker takes batches of sample indices, and
they share only the cache."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import stocached

from demo.loading import SHAPE, Pixels, checksum, load

if TYPE_CHECKING:
    Link = Connection[Any, Any]  # the class takes parameters only for the type checker


class WorkerError(Exception):
    """A worker failed or was killed. The message has its traceback, or its exit code."""


def fill_batch(files: Sequence[Path], cache: stocached.Cache | None, indices: Sequence[int], out: Pixels) -> None:
    """Fills one batch into `out`: hits in one gather; misses from their files, and stores them in
    the cache."""
    if cache is None:
        for row, index in enumerate(indices):
            out[row] = load(files[index])
        return
    _, hit = cache.gather(indices, out=out)
    for row in np.flatnonzero(~hit).tolist():
        with stocached.LoadTime() as time:
            out[row] = load(files[indices[row]])
        cache.put(indices[row], out[row], cost=time.seconds)


def work(connection: Link, files: Sequence[Path], cache: stocached.Cache | None, batch: int) -> None:
    """Runs a worker: it answers each list of indices with the checksum of their samples, until it
    gets None."""
    out = np.empty((batch, *SHAPE), np.uint8)
    try:
        while (indices := connection.recv()) is not None:
            rows = out[: len(indices)]
            fill_batch(files, cache, indices, rows)
            connection.send(checksum(rows))
    except (EOFError, KeyboardInterrupt):
        pass  # the parent is gone or interrupted, and reports it
    except Exception:
        connection.send(traceback.format_exc())


class WorkerPool:
    """Worker processes for several epochs, as of a DataLoader with persistent_workers. close() MUST
    be called."""

    def __init__(self, files: Sequence[Path], cache: stocached.Cache | None, workers: int, batch: int) -> None:
        self.batch = batch
        self._processes: list[BaseProcess] = []
        self._connections: list[Link] = []
        context = multiprocessing.get_context()
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, files, cache, batch), daemon=True)
            process.start()
            theirs.close()  # so that a dead worker gives an end of file
            self._processes.append(process)
            self._connections.append(ours)

    def epoch(self, order: Sequence[int], progress: Callable[[int], None]) -> int:
        """Reads every sample of `order` once; returns their checksum. Calls `progress` with the
        size of each batch that is done."""
        batches = deque(list(order[start : start + self.batch]) for start in range(0, len(order), self.batch))
        busy: dict[Link, int] = {}
        total = 0
        for connection in self._connections:
            self._hand_out(connection, batches, busy)
        while busy:
            ready = wait(list(busy))
            for connection in [connection for connection in busy if connection in ready]:
                total += self._answer(connection)
                progress(busy.pop(connection))
                self._hand_out(connection, batches, busy)
        return total

    def _hand_out(self, connection: Link, batches: deque[list[int]], busy: dict[Link, int]) -> None:
        if batches:
            indices = batches.popleft()
            connection.send(indices)
            busy[connection] = len(indices)

    def _answer(self, connection: Link) -> int:
        try:
            answer = connection.recv()
        except EOFError:
            process = self._processes[self._connections.index(connection)]
            process.join(5)
            raise WorkerError(
                f"worker {process.pid} ended with exit code {process.exitcode} (-9: killed, often because memory was short)"
            ) from None
        if isinstance(answer, str):
            raise WorkerError(f"a worker failed:\n{answer}")
        assert isinstance(answer, int)
        return answer

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the worker may be dead already
                connection.send(None)
            connection.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
