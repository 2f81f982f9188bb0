"""Epoch times of two loaders that read one served cache of half the pictures, each in its own order:
the policy planned beside first-come, in turn. The server decodes JPEGs.

    PYTHONPATH=python/src STOCACHED_LIB_PATH=build python bench/python/planned_jobs.py [pictures] [epochs]
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import Barrier, Process, Queue
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SIDE, SMALL, FIRST = 800, 128, 2  # pixels of the files and of the samples; epochs that fill the cache


def make_pictures(folder: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    for k in range(n):
        coarse = rng.integers(0, 256, (SIDE // 16, SIDE // 16, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        (folder / "a").mkdir(parents=True, exist_ok=True)
        picture.save(folder / "a" / f"{k:05}.jpg", quality=90)


def job(name: str, seed: int, epochs: int, both: Any, times: Any) -> None:
    from stocached.torch import DataLoader, SourceDataset

    loader = DataLoader(SourceDataset(name, timeout=60), batch_size=16, shuffle=True, seed=seed)
    for _ in range(epochs):
        both.wait()
        start = time.monotonic()
        for batch in loader:
            del batch
        times.put(time.monotonic() - start)
        both.wait()


def reads(sockets: Path, name: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("stocached", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(sockets / "admin.sock"))
    connection.request("GET", f"/v1/caches/{name}")
    answer = json.loads(connection.getresponse().read())
    return int(answer["source_reads"]), answer


def measure(policy: str, pictures: Path, n: int, epochs: int, folder: Path) -> tuple[list[float], float]:
    name, sockets = f"bench-{policy}-{os.getpid()}", folder / policy
    sockets.mkdir(mode=0o700)
    size = (4 << 20) + n // 2 * SMALL * SMALL * 3
    source = {"kind": "dir", "path": str(pictures)}
    cache = {"name": name, "source": source, "decode": {"resize": [SMALL, SMALL]}, "size": size, "policy": policy}
    config = folder / f"{policy}.yaml"
    config.write_text(json.dumps({"caches": [cache], "sockets": {"dir": str(sockets)}}))
    os.environ["STOCACHED_SOCKETS_DIR"] = str(sockets)
    server = subprocess.Popen([ROOT / "bin/stocached", "serve", "-c", config], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("serving")
    both, times = Barrier(3), Queue()
    jobs = [Process(target=job, args=(name, seed, epochs, both, times)) for seed in (1, 2)]
    for one in jobs:
        one.start()
    taken, before = [], 0
    for epoch in range(epochs):
        if epoch == FIRST:
            before = reads(sockets, name)[0]
        both.wait()
        both.wait()
        taken.append(max(times.get(), times.get()))
    after, about = reads(sockets, name)
    for one in jobs:
        one.join()
    server.terminate()
    server.wait()
    subprocess.run([ROOT / "bin/stocached", "rm", name], check=False, stdout=subprocess.DEVNULL)
    print(
        f"{policy}: {about['slots']} slots for {n} pictures, epochs of both jobs "
        f"{', '.join(f'{t:.2f}' for t in taken)} s",
        flush=True,
    )
    return taken[FIRST:], (after - before) / (epochs - FIRST) / n


def main() -> None:
    n, epochs = ([int(a) for a in sys.argv[1:]] + [600, 6][len(sys.argv) - 1 :])[:2]
    with tempfile.TemporaryDirectory(prefix="planned-", dir="/tmp") as name:
        folder = Path(name)
        make_pictures(folder / "pictures", n)
        found = {
            policy: measure(policy, folder / "pictures", n, epochs, folder) for policy in ("first-come", "planned")
        }
    for policy, (taken, part) in found.items():
        print(f"{policy}: median epoch {statistics.median(taken):.2f} s, {part:.3f} of the dataset read an epoch")
    ratio = statistics.median(found["planned"][0]) / statistics.median(found["first-come"][0])
    print(f"planned takes {ratio:.3f} of the time of first-come")


if __name__ == "__main__":
    main()
