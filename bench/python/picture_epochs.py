"""Measures epochs of pictures, from JPEG files or from a cache to batches, beside other loaders:

    cold     first epochs of a folder of 2,000 JPEGs (500 x 375, 72 KB), 2 workers
    warm     epochs of cached pictures (3 x 256 x 256), 2 workers
    share    epochs with a part of the samples cached
    costs    the same with files of three sizes, 250 x 188 to 1000 x 750, so that decodes differ in cost
    scale    1 worker beside 2
    python   processor time of Python, a sample

    make bench-pictures
    PYTHONPATH=python/src STOCACHED_LIB_PATH=build .venv-peers/bin/python bench/python/picture_epochs.py [cold] ...
        [--rounds 7] [--files 2000]

Each loader has its own process. In each round all run in turn, every other round backwards. Tables have medians of the
rounds; a ratio is the median of the ratios within a round. Results go to standard output. The files, 160 MB, stay in
the temporary folder for the next run. A loader that is not installed is left out, and the tables say so. FFCV needs
libopencv-dev and libturbojpeg0-dev of Debian, and SPDL the libraries of ffmpeg."""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import picture_loaders

WIDTH, HEIGHT, BYTES, CLASSES = 500, 375, 72_000, 10
MIN_PROCESSORS = 1.3  # of two workers that do not wait for each other
EPOCHS = 10  # of cached pictures in a run
FACTORS = {"": (1.0,), "costs": (0.5, 1.0, 1.0, 2.0)}  # of the sides of pictures, in turn


# ------------------------------------------------------------------------------------------------ files


def make_files(folder: Path, n: int, factors: Sequence[float] = (1.0,)) -> int:
    """JPEGs of smooth random pictures, sharper and less sharp ones, and the mean of their bytes."""
    import cv2
    import numpy as np
    from PIL import Image

    def picture(k: int, factor: float) -> Any:
        random = np.random.default_rng(k)
        detail = (5, 7, 9, 11)[k % 4]
        sides = round(factor * HEIGHT), round(factor * WIDTH)
        pixels = random.integers(0, 256, (*sides, 3), dtype=np.uint8)
        smooth = cv2.GaussianBlur(pixels, (detail, detail), 0)
        return Image.fromarray(cv2.normalize(smooth, np.empty_like(smooth), 0, 255, cv2.NORM_MINMAX))

    def encoded(k: int, quality: int, factor: float = 1.0) -> bytes:
        file = io.BytesIO()
        picture(k, factor).save(file, "JPEG", quality=quality)
        return file.getvalue()

    def quality(k: int) -> int:
        return min(range(40, 100), key=lambda q: abs(len(encoded(k, q)) - BYTES))

    wanted = [folder / f"class-{k % CLASSES}" / f"{k:05}.jpg" for k in range(n)]
    if not all(file.exists() for file in wanted):
        found = [quality(k) for k in range(4)]
        for k, file in enumerate(wanted):
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_bytes(encoded(k, found[k % 4], factors[k // 4 % len(factors)]))
            partial.rename(file)
    return sum(len(file.read_bytes()) for file in wanted) // n  # and brings them into the page cache


# ------------------------------------------------------------------------------------------------ processes


class Subject:
    """A loader in its own process, and what was measured. missing: why it cannot run."""

    def __init__(self, name: str, kind: str, **settings: Any) -> None:
        self.name, self._kind, self._settings = name, kind, settings
        self.missing, self.again = "", 0
        self.runs: list[dict[str, float]] = []
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])  # a tenth of a second for each process, and not three
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=picture_loaders.serve, args=(theirs, self._kind, self._settings))
        self._process.start()
        theirs.close()

    def ask(self, request: str | None = None) -> Any:
        if request:
            self._connection.send(request)
        answer = self._connection.recv()
        if isinstance(answer, ImportError):
            self.missing = str(answer).splitlines()[0]
        elif isinstance(answer, Exception):
            raise answer
        return answer

    def run(self) -> None:
        """One more run. Beside other work, two workers sometimes get one processor together. It measures such a run
        again, at most twice."""
        found = self.ask("run")
        for _ in range(2):
            if self._settings.get("workers") == 1 or found["cpu"] >= MIN_PROCESSORS * found["seconds"]:
                break
            self.again += 1
            found = self.ask("run")
        self.runs.append(found)

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send("end")
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def all(self, what: str = "seconds") -> list[float]:
        return [run[what] for run in self.runs]

    def median(self, what: str = "seconds") -> float:
        return statistics.median(self.all(what))


def measure(subjects: list[Subject], rounds: int) -> None:
    try:
        for subject in subjects:
            subject.ask()
        for subject in subjects:
            if not subject.missing:
                mean = subject.ask("check")
                if not subject.missing and not -0.3 < mean < 0.7:
                    raise RuntimeError(f"{subject.name}: the mean of a batch is {mean}")
        for round_ in range(rounds):
            for subject in subjects if round_ % 2 == 0 else reversed(subjects):
                if not subject.missing:
                    subject.run()
            print(f"round {round_ + 1} of {rounds}", file=sys.stderr, flush=True)
        for subject in subjects:
            runs = " ".join(f"{1e6 * run['seconds']:.0f}/{1e6 * run['cpu']:.0f}" for run in subject.runs)
            print(
                f"{subject.name}, us of time / of processors: {runs}; {subject.again} again",
                file=sys.stderr,
                flush=True,
            )
    finally:
        for subject in subjects:
            subject.end()


# ------------------------------------------------------------------------------------------------ tables


def ratio(of: Subject, to: Subject) -> list[float]:
    """How much faster: more is better."""
    return [b / a for a, b in zip(of.all(), to.all())]


def spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def verdict(reached: bool) -> str:
    return "yes" if reached else "**no**"


def table(subjects: list[Subject]) -> None:
    print("| | samples/s | us a sample | us of processors | measured again |\n|---|--:|--:|--:|--:|")
    for one in subjects:
        if one.missing:
            print(f"| {one.name} | not installed: {one.missing} | | | |")
        else:
            us = one.median() * 1e6
            print(f"| {one.name} | {1e6 / us:,.0f} | {us:.0f} | {one.median('cpu') * 1e6:.0f} | {one.again} |")
    print()


def beside(rows: list[tuple[Subject, Subject, float]]) -> None:
    """Each row: ours, another, and how many times as fast ours must be."""
    print("| beside | times as fast | asked for | reached |\n|---|--:|--:|---|")
    for ours, other, least in rows:
        if not other.missing:
            found = ratio(ours, other)
            reached = verdict(statistics.median(found) >= least)
            print(f"| {ours.name} / {other.name} | {spread(found)} | {least} | {reached} |")
    print(flush=True)


# ------------------------------------------------------------------------------------------------ sections


def cold(folder: str, rounds: int, quality: int) -> None:
    at = {"folder": folder}
    none = Subject("ours, no cache", "Ours", **at, fresh=True)
    filled = [
        Subject("ours, fills a cache of whole pictures", "Ours", **at, fresh=True, store="whole"),
        Subject("ours, fills a cache of 3 x 256 x 256", "Ours", **at, fresh=True, store="small"),
    ]
    pillow = Subject("torch, ImageFolder, v1", "TorchPillow", **at)
    v2 = Subject("torch, decode_jpeg, v2", "TorchDecodeJpeg", **at)
    spdl = [
        Subject("SPDL, its decoder", "Spdl", **at),
        Subject("SPDL, decode_jpeg, v2", "SpdlTorchvision", **at),
    ]
    dali = [
        Subject("DALI", "Dali", **at, fancy=False),
        Subject("DALI, upsampling as the others", "Dali", **at),
    ]
    ffcv = Subject("FFCV", "Ffcv", **at, quality=quality)
    subjects = [none, *filled, pillow, v2, *spdl, *dali, ffcv]
    measure(subjects, rounds)
    print("## Cold epoch, 2 workers\n")
    table(subjects)
    rows = [(none, pillow, 2.5), *((none, one, 1.3) for one in spdl), (none, v2, 1.2)]
    rows += [(none, one, 1.0) for one in (*dali, ffcv)]
    rows += [(one, other, least) for one in filled for other, least in ((pillow, 2.5), (v2, 1.2))]
    beside(rows)


def warm(folder: str, rounds: int, epochs: int) -> None:
    at = {"folder": folder}
    ours = Subject("ours", "Ours", **at, store="small", epochs=epochs)
    v2 = Subject("torch, stocaching, v2", "StocachingV2", **at)
    opencv = Subject("torch, stocaching, OpenCV + NumPy", "StocachingOpenCV", **at, epochs=2)
    bare = Subject("the fused pass alone, 2 threads", "Bare", **at, epochs=epochs)
    subjects = [ours, v2, opencv, bare]
    measure(subjects, rounds)
    print("## Warm epoch, 2 workers\n")
    table(subjects)
    beside([(ours, v2, 7), (ours, opencv, 3), (ours, bare, 0.9)])


def share(folder: str, rounds: int, epochs: int, differ: bool = False) -> None:
    """differ: whether files differ in what they cost."""
    at = {"folder": folder, "epochs": epochs}
    none = Subject("cold: no cache", "Ours", **at, kept="small")
    all_ = Subject("warm: all cached", "Ours", **at, store="small")
    parts = {
        (c, policy): Subject(f"c = {c}, {policy}", "Ours", **at, store="small", share=c, policy=policy)
        for c in (0.25, 0.5, 0.75)
        for policy in ("first-come", "cost")
    }
    subjects = [none, *parts.values(), all_]
    measure(subjects, rounds)
    print(f"## A part of the samples{differ * ' of different costs'} cached, 2 workers\n")
    table(subjects)
    print("| | hits | beside the straight line | asked for, at most | reached |\n|---|--:|--:|--:|---|")
    for (_, policy), one in parts.items():
        times = zip(one.all(), one.all("hits"), none.all(), all_.all())
        found = [x / ((1 - hits) * a + hits * b) for x, hits, a, b in times]
        most = 1.05 if policy == "first-come" else 1.0
        asked = "1.05" if policy == "first-come" else "1" if differ else "below 1 where costs differ"
        reached = verdict(statistics.median(found) <= most) if policy == "first-come" or differ else ""
        print(f"| {one.name} | {one.median('hits'):.3f} | {spread(found, 3)} | {asked} | {reached} |")
    print(flush=True)


def costs(folder: str, rounds: int, epochs: int) -> None:
    share(folder, rounds, epochs, differ=True)


def scale(folder: str, rounds: int, epochs: int) -> None:
    """Ours and bare threads that do the same work. What two processors give such threads is the most for ours."""
    at: dict[str, Any] = {"folder": folder}
    cold, warm = {"store": "none", "epochs": 2}, {"store": "small", "epochs": epochs}
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("cold", "Ours", cold), ("cold, bare", "BareFiles", {"epochs": 2}),
        ("warm", "Ours", warm), ("warm, bare", "Bare", {"epochs": epochs}),
    ]  # fmt: skip
    pairs = [
        [Subject(f"{name}, {n} threads", kind, **at, **settings, workers=n) for n in (1, 2)]
        for name, kind, settings in kinds
    ]
    measure([one for pair in pairs for one in pair], rounds)
    print("## 1 worker and 2\n")
    table([one for pair in pairs for one in pair])
    beside([(pair[1], pair[0], 1.9) for pair in pairs])
    print("| scaling of ours / of bare threads in the same round | | asked for, at least |\n|---|--:|--:|")
    for ours, bare in ((pairs[0], pairs[1]), (pairs[2], pairs[3])):
        found = [a / b for a, b in zip(ratio(ours[1], ours[0]), ratio(bare[1], bare[0]))]
        print(f"| {ours[0].name.split(',')[0]} | {spread(found)} | 0.95 |")
    print(flush=True)


def python(folder: str, rounds: int, epochs: int) -> None:
    subjects = [
        Subject(
            f"{name}, batches of {batch}", "Ours", folder=folder, store=store, epochs=times, count=True, batch=batch
        )
        for name, store, times in (("cold", "none", 2), ("warm", "small", epochs))
        for batch in (64, 256)
    ]
    measure(subjects, rounds)
    print("## Python's own time\n\n| | us a sample | asked for, below | reached |\n|---|--:|--:|---|")
    for one in subjects:
        us = [1e6 * value for value in one.all("python")]
        print(f"| {one.name} | {spread(us, 1)} | 5 | {verdict(statistics.median(us) < 5)} |")
    print(flush=True)


SECTIONS = ("cold", "warm", "share", "costs", "scale", "python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=SECTIONS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=2000)
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}")
    for section in options.sections:
        kind = section if section in FACTORS else ""
        folder = Path(tempfile.gettempdir()) / "stocached-pictures" / f"{options.files}{kind and '-'}{kind}" / "train"
        mean = make_files(folder, options.files, FACTORS[kind])
        print(f"{options.files} files of {mean:,} bytes, {options.rounds} rounds, {os.cpu_count()} processors.\n")
        at = str(folder), options.rounds
        if section == "cold":
            cold(*at, quality=90)
        else:
            {"warm": warm, "share": share, "costs": costs, "scale": scale, "python": python}[section](
                *at, 2 if section in ("share", "costs") else 5
            )


if __name__ == "__main__":
    main()
