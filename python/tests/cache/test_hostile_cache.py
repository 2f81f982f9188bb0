"""Stray writes to a cache, and headers with a valid checksum whose fields say anything: neither ends the process, keeps a
call waiting, or makes an error that is none of the library's. Go and C have the same tests for every policy
(cache/hostile_test.go, cclient/ctest/hostile.c)."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from helpers import python

# One of each kind of value that Python makes: views and copies, of samples of one size and of any.
ANY_SIZE = {"shape": (None, 3), "dtype": "float32", "variable": True, "sample_bytes": 1000}
KINDS: dict[str, dict[str, object]] = {
    "cost": {"sample_bytes": 1000, "slots": 8, "policy": "cost"},
    "arena": {**ANY_SIZE, "size": 4 << 20},
}

COMMON = """
    import mmap, os, random, re, struct, sys, threading
    from pathlib import Path
    import numpy as np
    from stocached import Cache, StocachedError

    directory, header, rng = sys.argv[1], sys.argv[2], random.Random(int(sys.argv[3]))
    defined = re.findall(r"#define STOC_(\\w+) UINT64_C\\((\\d+)\\)", Path(header).read_text())
    offset = {name: int(value) for name, value in defined}
    N = 16

    def attempt(call):
        try:
            return call()
        except StocachedError:
            return None

    def stray(was, rng):
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
            attempt(call)
"""

WORDS = """
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

    name = os.path.join(directory, "hostile")
    cache = Cache.create("hostile", dir=directory, samples=N, clients=4, **eval(sys.argv[4]))
    words = Words(name)
    for _ in range(4):
        everything(cache, rng)
    rest = [words.load(at) for at in words.all]
    for at, was in zip(words.all, rest):
        if was == 0 and rng.random() < 0.8:
            continue  # most words are reserved; in other runs others are tried
        with Cache.attach(name) as other:
            value = stray(was, rng)
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

    threads = [threading.Thread(target=work, args=[rng.random()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for k in range(500):
        at = rng.choice(words.all)
        words.store(at, stray(words.load(at), rng))
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

HEADERS = """
    from stocached._common.checksum import crc32c

    def sealed(page):
        at = offset["HEADER_CRC"]
        page[at:at + 4] = bytes(4)
        struct.pack_into("<I", page, at, crc32c(bytes(page)))
        return page

    cache = Cache.create("hostile", dir=directory, samples=N, clients=4, fingerprint="print", **eval(sys.argv[4]))
    for _ in range(4):
        everything(cache, rng)
    image = Path(directory, "hostile").read_bytes()
    numbers = [*range(0, offset["HEADER_FINGERPRINT"], 8),
               *range(offset["HEADER_FIELDS"], offset["HEADER_FIELDS"] + offset["FIELD_BYTES"], 8)]
    texts = [*range(offset["HEADER_FINGERPRINT"], offset["HEADER_FIELDS"], 8)]
    accepted = 0
    for at in numbers * 2 + rng.sample(texts, 20):
        page = bytearray(image[:4096])
        word = stray(struct.unpack_from("<Q", page, at)[0], rng) & (1 << 64) - 1
        struct.pack_into("<Q", page, at, word)
        print(f"word {at} becomes {word:#x}", flush=True)
        copy = Path(directory, "copy")
        copy.write_bytes(sealed(page) + image[4096:])
        with open(copy, "r+b") as file:
            os.truncate(file.fileno(), len(image))
        other = attempt(lambda: Cache.attach(copy))
        if other is None:
            continue
        accepted += 1
        with other:
            repr(other)
            [other.fields, other.name, other.fingerprint, other.path]
            everything(other, rng)
        copy.unlink(missing_ok=True)
    assert accepted > 0, "uuid and time may have any value"
    print("sound")
"""


def check(program: str, *arguments: object) -> None:
    header = Path(__file__).parents[3] / "cclient/stocached_layout.h"
    seed = random.randrange(1 << 30)
    with tempfile.TemporaryDirectory(prefix="stocached-test-", dir="/dev/shm") as directory:
        result = python(COMMON + program, directory, header, seed, *arguments, check=False)
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[-1:]) == (0, ["sound"]), f"seed {seed}: {lines[-1:]}, {result.stderr}"


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_ends_a_process(kind: str) -> None:
    check(WORDS, KINDS[kind])


def test_no_header_ends_a_process() -> None:
    check(HEADERS, KINDS["arena"])
