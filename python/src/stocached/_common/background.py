"""A thread that does work for the training loop."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from . import threads

_IDLE = 1.0  # seconds without a job after which the thread ends
_Job = Callable[[], None]


class Background:
    """Does jobs in a thread, one after the other. The thread ends after a while without a job, and
    before the process forks. It starts again for the next job. A job raises no error.

    pauses: a fork waits, so a long job puts itself again and returns. timeout: seconds that a fork or close waits for the
    thread."""

    pauses, timeout = False, 0.5

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        threads.keep_from_forks(self)

    def put(self, job: _Job) -> None:
        self._jobs.put(job)
        self._begin()

    def close(self) -> None:
        self.leave()
        self._join()

    def leave(self) -> None:
        """The thread ends after its jobs. This call does not wait for it."""
        self._jobs.put(None)

    def before_fork(self) -> None:
        if self._thread is not None:
            waiting = self._not_begun()
            self.pauses = True
            self._jobs.put(None)
            self._join()
            for job in waiting + self._not_begun():  # there may be a None that no thread has taken
                self._jobs.put(job)

    def after_fork(self) -> None:
        self.pauses = False
        if not self._jobs.empty():
            self._begin()

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_work, args=(self._jobs,), daemon=True, name="stocached background")
            threads.start(self._thread)

    def _join(self) -> None:
        if self._thread is not None:
            threads.join(self._thread, self.timeout)  # a thread that waits for a server only holds its job

    def _not_begun(self) -> list[_Job]:
        """The jobs that are not begun."""
        jobs = []
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    jobs.append(job)
        return jobs


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while True:
        try:
            job = jobs.get(timeout=_IDLE)
        except queue.Empty:
            return
        if job is None:
            return
        job()
        del job  # else this variable keeps its memory until the next job
