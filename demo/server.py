"""python -m demo.server: `make demo-server` runs it.

It packs pictures into a block file and starts a server that fills a cache from it. Four programs
read the same samples at once: two in Python, one in Go and one in C, each in its own order. Then
the server ends, another one starts, and the programs read again, one after the other.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from demo import images
from demo.loading import SIDE
from demo.serving import PROGRAM, ROOT, ServerError, Serving

DECODED = {".gif", ".jpeg", ".jpg", ".png", ".webp"}  # files that the server decodes
GO, C = ROOT / "build" / "demo" / "gofetch", ROOT / "build" / "c" / "example-fetch"
READERS = {
    "Python": [sys.executable, "-m", "demo.reader"],
    "Python, another": [sys.executable, "-m", "demo.reader"],
    "Go": [str(GO)],
    "C": [str(C)],
}
LINE = re.compile(r"samples=(\d+) hits=(\d+) failed=(\d+) bytes=(\d+) crc=([0-9a-f]{8}) seconds=([\d.]+)")


class DemoError(Exception):
    """A step of the demo failed. The message says which."""


@dataclass(frozen=True)
class Reading:
    """The result of one program. seconds: the time of its fetches."""

    samples: int
    hits: int
    failed: int
    bytes: int
    crc: str
    seconds: float


@dataclass(frozen=True)
class Run:
    """The results of all programs."""

    seconds: float
    source_reads: int
    readings: dict[str, Reading]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo-server", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__
    )
    parser.add_argument("--images", metavar="DIR", help="a folder of image files (default: the pictures of make demo)")
    parser.add_argument(
        "--samples",
        type=int,
        default=300,
        metavar="N",
        help="the most images to use (default: 300, which fit into 64 MB of /dev/shm)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        metavar="DIR",
        help="the folder for downloaded or generated pictures (default: build/demo)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of the table")
    chosen = parser.parse_args(argv)
    if chosen.samples < 2:
        parser.error(f"--samples {chosen.samples} is too few")
    for program in (PROGRAM, GO, C):
        if not program.exists():
            parser.error(f"{program} is missing; `make demo-server` builds it")
    return chosen


def pack(files: Sequence[Path], folder: Path, work: Path) -> Path:
    """The files as one dataset in block files: sample i is files[i]."""
    manifest, packed = work / "files.csv", work / "packed"
    with manifest.open("w", newline="", errors="surrogateescape") as out:
        rows = csv.writer(out)
        rows.writerow(["path"])
        rows.writerows([str(file.relative_to(folder))] for file in files)
    done = subprocess.run(
        [PROGRAM, "pack", folder, packed, "--kind", "dir", "--source", f"manifest={manifest}"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise DemoError(done.stderr.strip())
    return packed


def read(label: str, seed: int, serving: Serving, files: Sequence[Path]) -> Reading:
    """Runs one of the readers."""
    environment = os.environ | {"STOCACHED_SOCKETS_DIR": str(serving.sockets)}
    done = subprocess.run(
        [*READERS[label], serving.name, str(seed)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    found = LINE.fullmatch(done.stdout.strip())
    if done.returncode != 0 or found is None:
        said = done.stderr.strip() or done.stdout.strip()
        raise DemoError(f"the reader in {label} failed: {said}{whose(said, files)}")
    return Reading(int(found[1]), int(found[2]), int(found[3]), int(found[4]), found[5], float(found[6]))


def read_all(serving: Serving, first_seed: int, files: Sequence[Path], at_once: bool) -> Run:
    """Runs all readers, at once or one after the other."""
    began = time.perf_counter()
    with ThreadPoolExecutor(len(READERS) if at_once else 1) as pool:
        readings = pool.map(lambda label, seed: read(label, seed, serving, files), READERS, itertools.count(first_seed))
        by_label = dict(zip(READERS, readings, strict=True))
    return Run(time.perf_counter() - began, serving.metric("stocached_source_reads_total"), by_label)


def whose(text: str, files: Sequence[Path]) -> str:
    """Names the picture of a failure: block files only have numbers."""
    found = re.search(r"sample (\d+)", text)
    return f"\nsample {found[1]} is {files[int(found[1])]}" if found and int(found[1]) < len(files) else ""


def check(cold: Run, warm: Run, samples: int) -> str:
    """The checksum of all readings. DemoError if a picture was read twice, a sample was missing, or
    readings differ."""
    readings = [*cold.readings.values(), *warm.readings.values()]
    crcs = {reading.crc for reading in readings}
    if len(crcs) != 1 or {reading.samples for reading in readings} != {samples}:
        raise DemoError(f"the readers read different bytes: {readings}")
    if (cold.source_reads, warm.source_reads) != (samples, 0):
        raise DemoError(
            f"the first server read {cold.source_reads} pictures instead of {samples}, and the second read {warm.source_reads} instead of 0"
        )
    if any(reading.hits != samples for reading in warm.readings.values()):
        raise DemoError(f"the second server did not adopt a full cache: {warm.readings}")
    return crcs.pop()


def table(cold: Run, warm: Run, samples: int, crc: str) -> str:
    rows = [("", "all at once", "", "a new server", ""), ("reader", "hits", "us a sample", "hits", "us a sample")]
    rows += [(label, *cells(cold.readings[label]), *cells(warm.readings[label])) for label in READERS]
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    lines.insert(2, "-" * len(lines[1]))
    return "\n".join(line.rstrip() for line in lines) + (
        f"\n\nThe first server read and decoded each of the {samples} pictures once for all four readers (stocached_source_reads_total {cold.source_reads}).\n"
        f"The second server adopted the filled cache and read {warm.source_reads} pictures.\n"
        f"All eight runs of readers got the same bytes: {samples * SIDE * SIDE * 3 / 1e6:,.0f} MB, CRC-32C {crc}. us a sample: how long the reader waited for it."
    )


def cells(reading: Reading) -> tuple[str, str]:
    return f"{reading.hits / reading.samples:.0%}", f"{reading.seconds / reading.samples * 1e6:,.0f}"


def demonstrate(chosen: argparse.Namespace, work: Path) -> None:
    source = images.choose(chosen.images, chosen.out, chosen.samples)
    files = [file for file in images.pick(source, 10 * chosen.samples) if file.suffix.lower() in DECODED][
        : chosen.samples
    ]
    if len(files) < 2:
        raise DemoError(
            f"{source.folder} has {len(files)} images that the server decodes ({', '.join(sorted(DECODED))}): at least 2 are needed"
        )
    images.say(f"packing {len(files)} {source.description}")
    packed = pack(files, source.folder, work)
    name = f"demo-server-{os.getpid()}"
    serving = Serving(
        work,
        {
            "name": name,
            "source": {"kind": "block", "path": str(packed)},
            "decode": {"resize": [SIDE, SIDE], "layout": "hwc"},
            "size": "all",
        },
    )
    try:
        serving.start()
        images.say("one server fills a cache from them, and four programs read it: two in Python, one in Go, one in C")
        cold = read_all(serving, 1, files, at_once=True)
        serving.stop()
        serving.start()
        images.say("another server adopts the cache, and the programs read again, one after the other")
        warm = read_all(serving, 5, files, at_once=False)
    finally:
        serving.stop()
        serving.remove()
    crc = check(cold, warm, len(files))
    if chosen.json:
        print(json.dumps({"samples": len(files), "first": asdict(cold), "restarted": asdict(warm)}, indent=2))
    else:
        print(f"\n{table(cold, warm, len(files), crc)}")


def main(argv: list[str] | None = None) -> int:
    chosen = arguments(argv)
    work = Path(tempfile.mkdtemp(prefix="stocached-demo-", dir="/tmp"))
    try:
        demonstrate(chosen, work)
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (images.NoImagesError, DemoError, ServerError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
