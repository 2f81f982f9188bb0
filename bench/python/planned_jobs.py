"""Epoch times of loaders that read one served cache of half the pictures, each in its own order:
the policy planned beside first-come, in turn. The server decodes JPEGs.

    PYTHONPATH=python/src:. STOCACHED_LIB_PATH=build python bench/python/planned_jobs.py [pictures] [epochs] [--rounds N] [--jobs 2] [--native] [--side none]

--unequal: two jobs with the policy planned, the second at most half as fast as the first is alone. Each round compares
the epochs of both with those of each job alone, beside a cache of half the slots.

Each round runs both policies with a new cache, every other round in the other order. A ratio is of one
round; the medians are of the rounds. Processor time is that of the server and of all
jobs. The hit rate is 1 - reads of the source / samples that the jobs read; a read for several jobs counts once.
Shared reads are what jobs got out of the reads for others.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from multiprocessing import Barrier, Event, Process, Queue
from pathlib import Path
from typing import Any

import numpy as np
from demo import processes
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


def job(name: str, seed: int, epochs: int, together: Any, times: Any, native: bool) -> None:
    from stocached import image
    from stocached.torch import DataLoader, SourceDataset

    steps = image.Compose([image.RandomCrop(SMALL - 16), image.RandomHorizontalFlip()])
    how: dict[str, Any] = {"worker": "native", "num_workers": 1, "augment": steps} if native else {}
    loader = DataLoader(SourceDataset(name, timeout=60), batch_size=16, shuffle=True, seed=seed, **how)
    for _ in range(epochs):
        together.wait()
        start = time.monotonic()
        for batch in loader:
            del batch
        times.put(time.monotonic() - start)
        together.wait()


def paced_job(name: str, seed: int, step: float, end: Any, times: Any) -> None:
    """Reads epochs until `end`. A batch takes `step` seconds at least. Puts seed and seconds of each epoch."""
    from stocached.torch import DataLoader, SourceDataset

    loader = DataLoader(SourceDataset(name, timeout=60), batch_size=16, shuffle=True, seed=seed)
    while not end.is_set():
        start = due = time.monotonic()
        for batch in loader:
            del batch
            due = max(due + step, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
        times.put((seed, time.monotonic() - start))


def reads(sockets: Path, name: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("stocached", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(sockets / "admin.sock"))
    connection.request("GET", f"/v1/caches/{name}")
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    return answer


def serve(
    policy: str, pictures: Path, slots: int, folder: Path, side: str | None = None
) -> tuple[subprocess.Popen[str], str, Path]:
    """A server of a new cache: the process, the name of the cache, and the folder of the sockets."""
    name, sockets = f"bench-{policy}-{os.getpid()}", folder / policy
    sockets.mkdir(mode=0o700, exist_ok=True)
    size = (4 << 20) + slots * SMALL * SMALL * 3
    source = {"kind": "dir", "path": str(pictures)}
    cache: dict[str, Any] = {
        "name": name,
        "source": source,
        "decode": {"resize": [SMALL, SMALL]},
        "size": size,
        "policy": policy,
    }
    if side is not None and policy == "planned":
        cache["side_buffer"] = side
    config = folder / f"{policy}.yaml"
    config.write_text(json.dumps({"caches": [cache], "sockets": {"dir": str(sockets)}}))
    os.environ["STOCACHED_SOCKETS_DIR"] = str(sockets)
    server = subprocess.Popen([ROOT / "bin/stocached", "serve", "-c", config], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("serving")
    return server, name, sockets


def end_server(server: subprocess.Popen[str], name: str) -> None:
    server.terminate()
    server.wait()
    subprocess.run([ROOT / "bin/stocached", "rm", name], check=False, stdout=subprocess.DEVNULL)


def paced(steps: dict[int, float], pictures: Path, slots: int, epochs: int, folder: Path) -> dict[int, float]:
    """The median seconds of an epoch of each job, without those that fill the cache. steps: of each job, by its seed.
    It ends when each job has read so many epochs."""
    server, name, _ = serve("planned", pictures, slots, folder)
    end, times = Event(), Queue()
    running = [Process(target=paced_job, args=(name, seed, step, end, times)) for seed, step in steps.items()]
    for one in running:
        one.start()
    taken: dict[int, list[float]] = {seed: [] for seed in steps}
    while min(map(len, taken.values())) < epochs:
        seed, seconds = times.get()
        taken[seed].append(seconds)
    end.set()
    for one in running:
        one.join()
    end_server(server, name)
    return {seed: statistics.median(seconds[FIRST:]) for seed, seconds in taken.items()}


def unequal(pictures: Path, n: int, epochs: int, folder: Path, rounds: int) -> None:
    """Two jobs, one of half the speed, beside each of them alone with half of the slots."""
    step = 2 * paced({1: 0.0}, pictures, n // 4, epochs, folder)[1] / -(-n // 16)
    ratios: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        runs = [{1: 0.0, 2: step}, {1: 0.0}, {2: step}]
        found = [
            paced(steps, pictures, n // 2 if len(steps) == 2 else n // 4, epochs, folder)
            for steps in (runs if number % 2 == 0 else reversed(runs))
        ]
        both, alone = max(found, key=len), {k: v for one in found if len(one) == 1 for k, v in one.items()}
        for seed, of in ratios.items():
            of.append(both[seed] / alone[seed])
        print(
            ", ".join(f"job {k}: {both[k]:.2f} s an epoch beside the other, {alone[k]:.2f} s alone" for k in both),
            flush=True,
        )
    for what, of in zip(("fast", "slow"), ratios.values()):
        print(f"the {what} job takes {statistics.median(of):.3f} ({min(of):.3f} to {max(of):.3f}) of its time alone")


def measure(
    policy: str, pictures: Path, n: int, epochs: int, folder: Path, jobs: int, native: bool, side: str | None
) -> tuple[float, ...]:
    """Of an epoch of all jobs, without those that fill the cache: the median of the seconds, the processor
    seconds, and the reads of the source and the shared ones in datasets."""
    server, name, sockets = serve(policy, pictures, n // 2, folder, side)
    together, times = Barrier(jobs + 1), Queue()
    running = [Process(target=job, args=(name, seed, epochs, together, times, native)) for seed in range(1, jobs + 1)]
    for one in running:
        one.start()
    taken, cpu = [], 0.0
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for epoch in range(epochs):
        if epoch == FIRST:
            before, cpu = reads(sockets, name), processes.cpu_seconds(os.getpid())
        together.wait()
        taken.append(max(times.get() for _ in running))
        if epoch == epochs - 1:  # before jobs end
            after, cpu = reads(sockets, name), processes.cpu_seconds(os.getpid()) - cpu
        together.wait()
    for one in running:
        one.join()
    end_server(server, name)
    later = epochs - FIRST
    read, shared = ((after[what] - before[what]) / later / n for what in ("source_reads", "shared_reads"))
    print(
        f"{policy}: {after['slots']} slots for {n} pictures, epochs of all jobs "
        f"{', '.join(f'{t:.2f}' for t in taken)} s, {cpu / later:.2f} s of processors, "
        f"{read:.3f} of the dataset read an epoch, {shared:.3f} shared, hit rate {1 - read / jobs:.3f}",
        flush=True,
    )
    return statistics.median(taken[FIRST:]), cpu / later, read, shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=int, nargs="?", default=600)
    parser.add_argument("epochs", type=int, nargs="?", default=6, help=f"more than {FIRST}, which fill the cache")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--native", action="store_true", help="a native worker for each job, which crops and flips")
    parser.add_argument("--side", help="side_buffer of the cache with planned, such as none")
    parser.add_argument("--unequal", action="store_true", help="two jobs of unequal speed, with planned")
    chosen = parser.parse_args()
    if chosen.epochs <= FIRST or min(chosen.rounds, chosen.jobs) < 1:
        parser.error(f"epochs must be more than {FIRST}, rounds and jobs at least 1")
    found: dict[str, list[tuple[float, ...]]] = {"first-come": [], "planned": []}
    with tempfile.TemporaryDirectory(prefix="planned-", dir="/tmp") as name:
        folder = Path(name)
        make_pictures(folder / "pictures", chosen.pictures)
        if chosen.unequal:
            unequal(folder / "pictures", chosen.pictures, chosen.epochs, folder, chosen.rounds)
            return
        for number in range(chosen.rounds):
            for policy in found if number % 2 == 0 else reversed(list(found)):
                found[policy].append(
                    measure(
                        policy,
                        folder / "pictures",
                        chosen.pictures,
                        chosen.epochs,
                        folder,
                        chosen.jobs,
                        chosen.native,
                        chosen.side,
                    )
                )
    for policy, runs in found.items():
        seconds, cpu, part, shared = (statistics.median(column) for column in zip(*runs))
        print(
            f"{policy}: median epoch {seconds:.2f} s, {cpu:.2f} s of processors, {part:.3f} of the dataset read an epoch, "
            f"{shared:.3f} shared, hit rate {1 - part / chosen.jobs:.3f}"
        )
    for k, what in enumerate(("time", "processor time")):
        ratios = [mine[k] / theirs[k] for mine, theirs in zip(found["planned"], found["first-come"])]
        print(
            f"planned takes {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of the {what} of first-come"
        )


if __name__ == "__main__":
    main()
