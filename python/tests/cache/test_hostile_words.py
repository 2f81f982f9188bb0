"""Stray writes to a cache: no word of it, whatever becomes of it, ends the process, keeps a call waiting or makes an
error that is none of the library's. Go and C have the same test (cache/hostile_test.go, cclient/ctest/hostile.c)."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from helpers import python

KINDS = {
    "first-come": {"sample_bytes": 1000, "slots": 8},
    "first-indices": {"sample_bytes": 1000, "slots": 8, "policy": "first-indices"},
    "arena": {"shape": (None, 3), "dtype": "float32", "variable": True, "sample_bytes": 1000, "size": 4 << 20},
    **{
        policy: {"sample_bytes": 1000, "slots": 8, "policy": policy}
        for policy in ("cost", "random", "clock", "fifo", "lru", "lfu", "planned")
    },
    **{
        f"chains {policy}": {
            "shape": (None, 3),
            "dtype": "float32",
            "variable": True,
            "sample_bytes": 1000,
            "size": (2 << 20) + 32 * 256,
            "slot_bytes": 256,
            "policy": policy,
        }
        for policy in ("cost", "clock", "lru")
    },
}

PROGRAM = """
    import mmap, os, random, re, struct, sys, threading
    from pathlib import Path
    import numpy as np
    from stocached import Cache, StocachedError

    directory, header, seed, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
    defined = re.findall(r"#define STOC_(\\w+) UINT64_C\\((\\d+)\\)", Path(header).read_text())
    offset = {name: int(value) for name, value in defined}
    N = 16

    class Words:
        def __init__(self, path):
            with open(path, "r+b") as file:
                self.map = mmap.mmap(file.fileno(), os.path.getsize(path))
            first = lambda name: struct.unpack_from("<Q", self.map, offset["HEADER_" + name])[0]
            slots, index = first("SLOTS"), first("INDEX_OFFSET")
            parts = [(offset["CONTROL_OFFSET"], offset["CONTROL_BYTES"]),
                     (offset["CLIENTS_OFFSET"], 3 * offset["CLIENT_RECORD_BYTES"]),
                     (index, N * offset["INDEX_RECORD_BYTES"]), (first("SUMS_OFFSET"), N * 8),
                     (first("SLOT_TABLE_OFFSET"), slots * 8), (first("REFERENCE_OFFSET"), slots),
                     (first("GROUPS_OFFSET"), -(-slots // 512) * 8)]
            self.all = [at for start, size in parts if start for at in range(start, start + size, 8)]
        def load(self, at):
            return struct.unpack_from("<Q", self.map, at)[0]
        def store(self, at, value):
            struct.pack_into("<Q", self.map, at, value & (1 << 64) - 1)

    def hostile(was, rng):
        part = rng.randrange(0, 64, 16)
        return rng.choice([0, 1, -1, 1 << 63, was + 1, was - 1, was ^ 1 << rng.randrange(64), rng.getrandbits(64),
                           was & ~(0xFFFF << part), was | 0xFFFF << part, (was & ~(0xFFFF << part)) | 1 << part,
                           rng.choice([N, N + 1, 8, 9, 32, 4096, 1000, 1001]),
                           rng.choice([N, N + 1, 8, 9, 32, 4096, 1000, 1001]) << 32 | was & 0xFFFFFFFF])

    def everything(cache, rng):
        i = rng.randrange(N)
        value = np.zeros((rng.randrange(1, 70), 3), np.float32) if cache.variable else np.zeros(1000, np.uint8)
        for call in (lambda: cache.get(i), lambda: cache.get(i, copy=True), lambda: cache.gather([i, 0, N - 1]),
                     lambda: cache.put(i, value), lambda: cache.put((i + 1) % N, value, overwrite=True),
                     lambda: cache.get_or_load((i + 2) % N, lambda _: value), lambda: i in cache, cache.states, cache.costs,
                     cache.verify, cache.stats, cache.recover, lambda: rng.random() < 0.1 and cache.clear(timeout=0.001)):
            try:
                call()
            except StocachedError:
                pass

    rng = random.Random(seed)
    name = os.path.join(directory, "hostile")
    cache = Cache.create("hostile", dir=directory, samples=N, clients=4, **options)
    words = Words(name)
    for _ in range(4):
        everything(cache, rng)
    rest = [words.load(at) for at in words.all]
    for at, was in zip(words.all, rest):
        if was == 0 and rng.random() < 0.8:
            continue  # most words are reserved; in other runs others are tried
        with Cache.attach(name) as other:
            value = hostile(was, rng)
            print(f"word {at} becomes {value:#x}", flush=True)
            words.store(at, value)
            everything(cache, rng)
            everything(other, rng)
        for place, before in zip(words.all, rest):
            words.store(place, before)

    done = threading.Event()

    def work(seed):
        rng = random.Random(seed)
        while not done.is_set():
            try:
                with Cache.attach(name) as own:
                    for _ in range(10):
                        everything(own, rng)
            except StocachedError:
                pass

    threads = [threading.Thread(target=work, args=[seed + k]) for k in (1, 2)]
    for thread in threads:
        thread.start()
    for k in range(1000):
        at = rng.choice(words.all)
        words.store(at, hostile(words.load(at), rng))
        everything(cache, rng)
        if k % 50 == 0:
            for place in words.all:
                words.store(place, 0)
    done.set()
    for thread in threads:
        thread.join()
    assert words.map[:8] == b"STOCACHE" and os.path.getsize(name) == len(words.map)
    print("sound")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_ends_a_process(kind: str) -> None:
    header = Path(__file__).parents[3] / "cclient/stocached_layout.h"
    seed = random.randrange(1 << 30)
    with tempfile.TemporaryDirectory(prefix="stocached-test-", dir="/dev/shm") as directory:
        result = python(PROGRAM, directory, header, seed, KINDS[kind], check=False)
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[-1:]) == (0, ["sound"]), f"seed {seed}: {lines[-1:]}, {result.stderr}"
