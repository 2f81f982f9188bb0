"""Records run.json, a real timeline for the tests: `python record.py run.json`.

A loop of steps over batches. Three processes load the samples; each takes the next sample when it is
free. The parent gathers what an earlier epoch loaded. Of a loader it has only the recorder, so that the
format can be tested without one."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections import deque
from queue import SimpleQueue

import numpy as np
from stocached._trace import LOOP, Recorder, gatherer, worker

WORKERS, BATCH, SAMPLES, STEP, AHEAD, CACHED = 3, 16, 240, 0.020, 3, 0.75


def load(tasks: multiprocessing.SimpleQueue, done: multiprocessing.SimpleQueue, number: int) -> None:
    draws = np.random.default_rng(number)
    while (task := tasks.get()) is not None:
        start = time.monotonic_ns()
        time.sleep(0.030 if task[2] == 77 else float(draws.uniform(0.003, 0.006)))
        done.put((number, *task, start, time.monotonic_ns()))


def main(path: str) -> None:
    tasks, done = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    workers = [multiprocessing.Process(target=load, args=(tasks, done, k), daemon=True) for k in range(WORKERS)]
    for process in workers:
        process.start()
    recorder = Recorder(path, settings={"batch_size": BATCH, "num_workers": WORKERS, "prefetch_factor": 1, "size": "64MiB"})
    cached: set[int] = set()
    pixels = np.zeros((BATCH, 3, 64, 64), np.uint8)
    missing: dict[tuple[int, int], threading.Semaphore] = {}

    def collect() -> None:
        while True:
            number, epoch, batch, index, start, end = done.get()
            recorder.spans(worker(number), "load", [start], [end], [index], epoch=epoch, batch=batch)
            missing[epoch, batch].release()

    threading.Thread(target=collect, daemon=True).start()
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(SAMPLES)
        batches = deque(enumerate(order[first : first + BATCH] for first in range(0, SAMPLES, BATCH)))
        ready: SimpleQueue = SimpleQueue()
        room = threading.Semaphore(AHEAD)
        stored = set(cached)

        def gather(epoch: int = epoch, batches: deque = batches, ready: SimpleQueue = ready, room: threading.Semaphore = room, stored: set[int] = stored) -> None:
            for batch, indices in batches:
                room.acquire()
                misses = [int(index) for index in indices if int(index) not in stored]
                missing[epoch, batch] = threading.Semaphore(0)
                for index in misses:
                    tasks.put((epoch, batch, index))
                hits, start = len(indices) - len(misses), time.monotonic_ns()
                for _ in range(hits):
                    pixels[:hits].copy()
                recorder.span(gatherer(0), "gather", start, time.monotonic_ns(), epoch=epoch, batch=batch, samples=hits, hits=hits, bytes=hits * pixels[0].nbytes)
                ready.put((batch, hits, len(misses)))

        threading.Thread(target=gather, daemon=True).start()
        for _ in range(len(batches)):
            start = time.monotonic_ns()
            batch, hits, misses = ready.get()
            for _ in range(misses):
                missing[epoch, batch].acquire()
            end = time.monotonic_ns()
            recorder.span(LOOP, "wait", start, end, epoch=epoch, batch=batch, samples=hits + misses, hits=hits, misses=misses, bytes=(hits + misses) * pixels[0].nbytes)
            time.sleep(STEP)
            recorder.span(LOOP, "step", end, time.monotonic_ns(), epoch=epoch, batch=batch)
            room.release()
        cached.update(range(int(SAMPLES * CACHED * (epoch + 1) / 2)))
    for _ in workers:
        tasks.put(None)
    for process in workers:
        process.join()
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1])
