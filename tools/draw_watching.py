"""Draws docs/images/watching.png: the page of `stocached web` in a browser, while three jobs read three small caches.

python tools/draw_watching.py [--out FOLDER] [--quick]

Loads are sleeps. It needs bin/stocached (make build) and a browser (tools/setup.sh browser).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stocached import Cache
from website.browser import Browser, program

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1400, 560  # all of the legends, and no part of the numbers below


class Job(NamedTuple):
    """A job that reads all samples of a cache in each epoch, in a new order."""

    name: str
    policy: Any
    samples: int
    sample_bytes: int
    cached: float  # fraction
    load: tuple[float, float]  # the shortest and the longest, in seconds
    step: float  # seconds a sample

    def read(self, folder: Path, end: threading.Event) -> None:
        size = (4 << 20) + round(self.cached * self.samples * self.sample_bytes)
        random = np.random.default_rng(1)
        seconds = random.uniform(*self.load, self.samples)

        def load(index: int) -> Any:
            time.sleep(seconds[index])
            return np.zeros(self.sample_bytes, np.uint8)

        with closing(
            Cache.create(
                self.name,
                samples=self.samples,
                shape=self.sample_bytes,
                dtype="uint8",
                size=size,
                policy=self.policy,
                dir=folder,
            )
        ) as cache:
            while not end.is_set():
                for index in random.permutation(self.samples):
                    if end.wait(self.step):
                        break
                    cache.get_or_load(index, load)


JOBS = (
    Job("imagenet", "cost", 3000, 24 << 10, 0.62, (0.0005, 0.008), 0.001),
    Job("speech-commands-with-a-long-name", "lru", 2000, 12 << 10, 0.32, (0.003, 0.005), 0.001),
    Job("text", "first-come", 2000, 48 << 10, 1, (0.006, 0.008), 0.003),
)


@contextmanager
def page(folder: Path) -> Iterator[str]:
    """Serves the page for the caches of a folder. Yields its address."""
    command = (ROOT / "bin" / "stocached", "web", "--dir", folder, "--listen", "127.0.0.1:0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout
        try:
            yield next(word for word in served.stdout.readline().split() if word.startswith("http://"))
        finally:
            served.terminate()


def draw(out: Path, seconds: float) -> None:
    path = program()
    if path is None:
        raise SystemExit("there is no browser here: run tools/setup.sh browser")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="stocached-watched-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, folder)
        end = threading.Event()
        for job in JOBS:
            thread = threading.Thread(target=job.read, args=(folder, end))
            thread.start()
            stack.callback(thread.join)
        stack.callback(end.set)
        address = stack.enter_context(page(folder))
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stocached-")))
        browser = stack.enter_context(closing(Browser(path, profile)))
        browser.size(WIDTH, HEIGHT)
        browser.prefers("light")
        browser.open(f"{address}#{JOBS[0].name}")
        browser.until(f"{len(JOBS)} === document.querySelectorAll('#caches tr').length")
        time.sleep(seconds)  # the server reads the caches while the page asks
        browser.picture(out / "watching.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="default: docs/images")
    parser.add_argument("--quick", action="store_true", help="for 3 seconds instead of 75")
    arguments = parser.parse_args()
    draw(arguments.out, 3 if arguments.quick else 75)
