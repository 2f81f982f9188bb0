"""Hits of several processes in caches that evict: batches of one process and of two, for each policy.

    python bench/python/evicting_hits.py --rounds 7

Each process gathers batches of popular samples (Zipf), which two processes share. Prints a table: nanoseconds of a sample
in a batch of one process, that beside first-come, and the throughput of two processes beside that of one. Medians of
the rounds, with the least and the greatest."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

import stocached

POLICIES = ("first-come", "cost", "random", "clock", "fifo", "lru", "lfu")
SAMPLES, BYTES, BATCH, BATCHES = 5000, 3072, 64, 1500


def filled(policy: Any) -> stocached.Cache:
    cache = stocached.Cache.create(samples=SAMPLES, shape=(BYTES,), policy=policy)
    for i in range(SAMPLES):
        cache.put(i, np.full(BYTES, i % 251, np.uint8), cost=0.001)
    return cache


def read(cache: stocached.Cache, seed: int, start: Barrier, times: Any) -> None:
    """Gathers batches once, so that reference bytes and pages are there, and then on time."""
    random = np.random.default_rng(seed)
    chances = 1 / np.arange(1, SAMPLES + 1)
    batches = random.choice(SAMPLES, (BATCHES, BATCH), p=chances / chances.sum())
    out = np.empty((BATCH, BYTES), np.uint8)
    for batch in batches:
        cache.gather(batch, out=out)
    start.wait()
    began = time.perf_counter()
    for batch in batches:
        _, hit = cache.gather(batch, out=out)
        assert hit.all()
    times.put(time.perf_counter() - began)


def seconds(cache: stocached.Cache, processes: int) -> float:
    """Of the slowest process."""
    context = multiprocessing.get_context("fork")
    start, times = context.Barrier(processes), context.Queue()
    readers = [context.Process(target=read, args=(cache, k, start, times)) for k in range(processes)]
    for reader in readers:
        reader.start()
    took = [times.get() for _ in readers]
    for reader in readers:
        reader.join()
    return max(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    caches = {policy: filled(policy) for policy in POLICIES}
    one: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    two: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    for _ in range(rounds):
        for policy, cache in caches.items():
            one[policy].append(seconds(cache, 1))
            two[policy].append(seconds(cache, 2))
    print("| policy | ns a sample | beside first-come | two processes beside one |\n|---|--:|--:|--:|")
    for policy in POLICIES:
        beside = [a / b for a, b in zip(one[policy], one["first-come"])]
        both = [2 * a / b for a, b in zip(one[policy], two[policy])]
        each = statistics.median(one[policy]) / BATCHES / BATCH * 1e9
        print(f"| `{policy}` | {each:.0f} | {text(beside)} | {text(both)} |")
    for cache in caches.values():
        cache.close()


def text(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
