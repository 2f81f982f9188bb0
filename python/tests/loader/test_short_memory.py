"""Memory, or a disk, that runs short while a cache without a server fills. A tmpfs of the test's own, in a mount namespace, is full."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from served import program

from stocached import Cache, Loader, source

BODY = """
import gc, subprocess, sys, warnings
import numpy as np
from stocached import Loader, source

def load(number): return np.full(100_000, number % 251, np.uint8)

def large(number): return np.zeros(20_000_000 if number in (77, 88) else 100, np.uint8)

numbers, kind, filler = source(range(400)), sys.argv[1], int(sys.argv[2])
above = numbers.map(large if kind == "large" else load)
if kind == "lists":
    above = numbers.flat_map(lambda number: [load(number)])
given = {"disk": "60MiB", "disk_dir": "/dev/shm", "fingerprint": "a"} if kind == "disk" else {}
size, variable = "5MiB" if given else "30MiB", True if kind == "large" else None
cached = above.cache(size, name="short", policy="first-come", variable=variable, **given)
loader = Loader(cached.batch(20, collate=list))
with open("/dev/shm/filler", "wb") as file:
    file.write(bytes(filler << 20))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for epoch in range(3):
        list(loader)
    loader.close()
words = "the disk is full" if kind == "disk" else "memory is short"
print(len([w for w in said if words in str(w.message) and w.filename == "<string>"]))  # the line of this program
print(subprocess.run([sys.argv[3], "stats", "short"], capture_output=True, text=True).stdout)
"""


FULL = [(kind, filler) for kind in ("samples", "lists", "disk") for filler in (80, 0)]


# One of two large samples finds no place, and leaves room.
@pytest.mark.parametrize(("kind", "filler"), [*FULL, ("large", 0)])
def test_a_loader_warns_once_and_stats_say_it(kind, filler):
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = [*own, "sh", "-c", 'mount -t tmpfs -o size=100m none /dev/shm && exec "$0" "$@"']
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    arguments = [sys.executable, "-c", BODY, kind, str(filler), program()]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    warned, shown = done.stdout.split("\n", 1)
    assert int(warned) == (filler > 0), done.stdout
    assert ("failing   memory is short" in shown) == (filler > 0 and kind != "disk"), done.stdout
    assert "\nfull " in shown


def test_a_cache_that_another_thread_closes_meanwhile(monkeypatch: pytest.MonkeyPatch):
    loader, stats = Loader(source(range(8)).cache("8MiB").batch(4)), Cache.stats

    def closed(cache: Cache):
        monkeypatch.setattr(Cache, "stats", stats)
        cache.close()
        return stats(cache)

    list(loader)
    monkeypatch.setattr(Cache, "stats", closed)
    loader.close()
