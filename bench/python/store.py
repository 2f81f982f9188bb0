"""Measures what store="auto" chooses, beside both fixed stores: epochs of a folder of JPEGs.

    PYTHONPATH=python/src:. STOCACHED_LIB_PATH=build python bench/python/store.py [--kind native] [--rounds 7] [--quick]

Kinds: "process" has workers in Python, "native" has them in C, and "server" has native ones whose samples a server
reads, decodes and chooses the store of.

Sizes of the cache are parts of the decoded set. The source is rate-limited: all workers share one bucket of tokens,
and a read waits until its bytes are there. For native workers, bench/c/slow_reads.c does that to the reads of this
program; a server has its key `limits`. Runs of the stores alternate, each place in a round as often as the others.
Before a run, all files are read once, and as many bytes as the cache has are written to a file on its tmpfs, which is
removed. So each run finds the same page cache, and memory that the machine has touched.

A figure is the median epoch of a new loader after its second one, over a second at least, so the cache is full; "auto"
measures and chooses again in each run. The better store is the fixed one with the shorter median over all rounds. The
table has the ratio of auto to it in the same round: asked for are a median of at most 1.05 and no run above 1.15. In
each round, the store that auto chose last runs once more as a fixed one ("again"). "again / the same" is its ratio to
the other run of that store: two runs that choose nothing, so noise alone. A ratio of processor time, of the workers
too, leaves out the waits for processors that other work has."""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from loaders import tree
from PIL import Image

import stocached
from stocached import image

STORES = ("decoded", "encoded", "auto")
SIZES = (0.1, 0.25, 0.5, 1.0, 2.0)
RATES = {"20 MB/s": 20e6, "150 MB/s": 150e6, "memory": 0.0}
SIDE = 224
LEAST = 1.0  # seconds that are measured: two single epochs of 0.04 s differ by more than the stores
ROOT = Path(__file__).resolve().parents[2]
CONTROL = 4_400_000  # bytes of a segment besides its samples, about
NORMALISED = [image.ToDtype("float32", scale=True), image.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]


class Bucket:
    """So many bytes a second, for all processes and threads."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = multiprocessing.get_context("fork").Value("d", 0.0)  # when the source has sent all earlier bytes

    def take(self, count: int) -> None:
        if not self._rate:
            return
        with self._free.get_lock():
            self._free.value = max(self._free.value, time.monotonic()) + count / self._rate
            wait = self._free.value - time.monotonic()
        time.sleep(max(wait, 0))


class Slow(image.Folder):
    """A folder whose files come through a bucket."""

    bucket: Bucket

    def read(self, index: int) -> tuple[Any, ...]:
        data, *others = super().read(index)
        self.bucket.take(len(data))
        return (data, *others)


class NativeBucket:
    """The same for reads of C, by slow_reads.c, which this program has loaded."""

    def __init__(self) -> None:
        with open(os.environ["SLOW_READS"], "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 4096)

    def set(self, rate: float) -> None:
        self._memory[:16] = bytes(ctypes.c_uint64(int(rate))) + bytes(8)

    @staticmethod
    def start_again(folder: Path) -> None:
        """Runs this program with slow reads of the files in a folder."""
        made = Path(tempfile.mkdtemp(prefix="slow-reads-"))
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", made / "slow_reads.so", ROOT / "bench/c/slow_reads.c", "-ldl"]
        subprocess.run(command, check=True)
        (made / "bucket").write_bytes((bytes(16) + os.fsencode(folder)).ljust(4096, b"\0"))
        os.environ |= {"LD_PRELOAD": str(made / "slow_reads.so"), "SLOW_READS": str(made / "bucket")}
        os.execv(sys.executable, [sys.executable, *sys.argv])


class Server:
    """A server with a new cache of the folder."""

    def __init__(self, folder: Path, rate: float, store: str, size: int) -> None:
        self._folder, self.name = tempfile.TemporaryDirectory(prefix="bench-store-"), f"bench-store-{os.getpid()}"
        sockets, source = f"{self._folder.name}/sockets", {"kind": "dir", "path": str(folder), "labels": "folders"}
        if rate:
            source["limits"] = {"bytes_per_second": int(rate)}  # type: ignore[assignment]
        decode = {"resize": [SIDE, SIDE], "fit": "crop", "store": store}
        cache = {"name": self.name, "source": source, "decode": decode, "size": size}
        Path(self._folder.name, "config.yaml").write_text(json.dumps({"caches": [cache], "sockets": {"dir": sockets}}))
        os.environ["STOCACHED_SOCKETS_DIR"] = sockets
        command = [ROOT / "bin/stocached", "serve", "-c", f"{self._folder.name}/config.yaml"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        subprocess.run([ROOT / "bin/stocached", "rm", self.name], check=True, capture_output=True)
        self._folder.cleanup()


def make(folder: Path, count: int) -> None:
    """JPEGs of about 500 x 375 pixels and 72 KB, of two classes."""
    for k in range(count):
        file = folder / f"class{k % 2}" / f"{k:05}.jpg"
        if file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(k)
        height, width = (375, 500) if k % 3 else (500, 375)
        picture = np.zeros((height, width, 3), np.float32)
        for side, weight in ((4, 0.45), (16, 0.3), (64, 0.15), (256, 0.16 * random.uniform(0.5, 1.5))):
            layer = Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8))
            picture += weight * np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        partial = file.with_suffix(".partial")
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(partial, "JPEG", quality=90)
        partial.rename(file)


def same_state(files: list[Path], directory: Path, size: int) -> None:
    """Reads all files, and touches as much memory as a cache of this size takes."""
    for file in files:
        file.read_bytes()
    block = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as touched:
        for _ in range(size >> 20):
            touched.write(block)


def epoch_of(loader: Any) -> float:
    start = time.perf_counter()
    for batch in loader:
        pictures = batch["image"] if isinstance(batch, dict) else batch[0]
        pictures[0, 0, 0, 0]
    return time.perf_counter() - start


class Run(NamedTuple):
    seconds: float  # of an epoch after the second one
    cpu: float  # seconds of processors, of such an epoch
    store: str
    made: float  # seconds that the constructor took


def run(folder: Path, source: str, store: Any, size: int, options: argparse.Namespace, seed: int) -> Run:
    augment, dataset, server, keys = None, None, None, {}
    if options.augment:
        augment = image.Compose([image.RandomResizedCrop(SIDE), image.RandomHorizontalFlip(), *NORMALISED])
    start = time.perf_counter()
    if options.kind == "server":
        from stocached.torch import DataLoader, SourceDataset

        server, kind = Server(folder, RATES[source], store, size), DataLoader
        dataset = SourceDataset(server.name)
    else:
        kind, keys = stocached.Loader, {"size": size, "store": store}
        dataset = (Slow if options.kind == "process" else image.Folder)(folder, size=SIDE, layout="chw")
        if options.kind == "process":
            dataset.bucket = Bucket(RATES[source])
        else:
            NativeBucket().set(RATES[source])
    loader = kind(
        dataset,
        32,
        shuffle=True,
        seed=seed,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        augment=augment,
        **keys,
    )
    made = time.perf_counter() - start
    epoch_of(loader)
    epoch_of(loader)
    cpu, seconds = tree.used(os.getpid())[0], [epoch_of(loader)]
    while sum(seconds) < options.least:
        seconds.append(epoch_of(loader))
    cpu = (tree.used(os.getpid())[0] - cpu) / len(seconds)
    chosen = loader.stats().store
    loader.close()
    if server is not None:
        chosen = "decoded" if dataset.decode is None else "encoded"
        dataset.cache.close()
        server.close()
    else:
        assert options.workers == 0 or loader.worker == options.kind, loader.worker
        loader.cache.close()
    return Run(statistics.median(seconds), cpu, chosen, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=("process", "native", "server"), default="process")
    parser.add_argument("--least", type=float, default=LEAST, help="seconds that are measured in each run")
    parser.add_argument("--augment", action="store_true", help="with crop, flip and normalisation of each sample")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--sources", nargs="*", default=list(RATES), choices=list(RATES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stocached-bench-store")
    parser.add_argument("--quick", action="store_true", help="300 files and 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.files, options.rounds = 300, 3
    make(options.folder / str(options.files), options.files)
    if options.kind == "native" and "SLOW_READS" not in os.environ:
        NativeBucket.start_again(options.folder / str(options.files))
    decoded = options.files * SIDE * SIDE * 3
    total = sum(file.stat().st_size for file in (options.folder / str(options.files)).rglob("*.jpg"))
    print(
        f"{options.files} JPEGs of {total / options.files / 1e3:.0f} KB, decoded {decoded / options.files / 1e3:.0f} KB, "
        f"{options.workers} workers ({options.kind}), {len(os.sched_getaffinity(0))} processors, {options.rounds} rounds, "
        f"{'with' if options.augment else 'without'} augment=.\n"
    )
    print(
        "| source | size | decoded, ms | encoded, ms | auto, ms | chosen | auto / better | of processor time | ", end=""
    )
    print(
        "again / the same | of processor time | each run: auto / better |\n|---|--:|--:|--:|--:|---|--:|--:|--:|--:|---|"
    )
    for source in options.sources:
        for part in options.sizes:
            row(source, part, decoded, options)


def row(source: str, part: float, decoded: int, options: argparse.Namespace) -> None:
    names = (*STORES, "again")
    runs: dict[str, list[Run]] = {name: [] for name in names}
    folder, size = options.folder / str(options.files), CONTROL + round(part * decoded)
    files = sorted(folder.rglob("*.jpg"))
    for number in range(options.rounds):
        for k in range(len(names)):
            name = names[(number + k) % len(names)]
            if options.kind == "native":
                NativeBucket().set(0)
            same_state(files, Path("/dev/shm"), min(size, CONTROL + decoded))
            store = runs["auto"][-1].store if name == "again" else name
            runs[name].append(run(folder, source, store, size, options, number))
        print(f"{source}, {part}: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    better = min(("decoded", "encoded"), key=lambda store: statistics.median(one.seconds for one in runs[store]))

    def beside(name: str, of: str, bases: list[Run]) -> list[float]:
        return [getattr(one, of) / getattr(other, of) for one, other in zip(runs[name], bases)]

    same = [runs[one.store][number] for number, one in enumerate(runs["again"])]
    times = " | ".join(f"{1e3 * statistics.median(one.seconds for one in runs[store]):.1f}" for store in STORES)
    picked = ", ".join(f"{store} {count}" for store, count in Counter(one.store for one in runs["auto"]).items())
    ratios = " | ".join(
        spread(beside(name, of, bases))
        for name, bases in (("auto", runs[better]), ("again", same))
        for of in ("seconds", "cpu")
    )
    each = ", ".join(f"{ratio:.2f}" for ratio in beside("auto", "seconds", runs[better]))
    print(f"| {source} | {part} | {times} | {picked} | {ratios} | {each} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
