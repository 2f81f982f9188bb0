"""python -m demo: see --help. Progress goes to standard error, the table or the JSON to standard
output."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import stocached
from tqdm import tqdm

from demo import chart, experiment, images, jpegs, loading, report, workers

if TYPE_CHECKING:
    from demo.pipelines import Result as Pipelines

# The time of an epoch without a cache. All 27 epochs take 18 times as long, and the two pipelines 4 times, so the demo
# ends in about a minute.
COLD_SECONDS = 2.5
FEWEST, MOST = 64, 4096  # samples


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Reads real image files for three epochs without a cache, then at cached fractions of 0, 25, 50, 75 and 100 %.\n"
        "Then takes random crops of the same pictures, with Pillow and NumPy and with stocached.image.",
    )
    parser.add_argument(
        "--images",
        metavar="DIR",
        help="a folder of image files (default: pictures from Debian's archive; if that fails, generated JPEGs)",
    )
    parser.add_argument(
        "--torch",
        action="store_true",
        help="read through torch.utils.data.DataLoader and stocached.torch.CachedDataset",
    )
    parser.add_argument(
        "--samples", type=int, metavar="N", help=f"images to use (default: as many as load in {COLD_SECONDS} s)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=min(4, os.cpu_count() or 1),
        metavar="W",
        help="worker processes (default: one for each core, at most 4)",
    )
    parser.add_argument("--batch", type=int, default=32, metavar="B", help="samples a batch (default: 32)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        metavar="DIR",
        help="the folder for pictures and charts (default: build/demo)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON instead of the table")
    chosen = parser.parse_args(argv)
    for name in ("samples", "workers", "batch"):
        value = getattr(chosen, name)
        if value is not None and value < (2 if name == "samples" else 1):
            parser.error(f"--{name} {value} is too few")
    return chosen


def watcher(samples: int) -> Callable[[str], Callable[[int], None]]:
    """Shows each run: on a terminal as a progress bar, elsewhere as a line."""

    def watch(what: str) -> Callable[[int], None]:
        if not sys.stderr.isatty():
            images.say(what)
            return lambda done: None
        bar: tqdm[NoReturn] = tqdm(
            total=samples * experiment.EPOCHS, desc=f"{what:>14}", unit=" samples", file=sys.stderr
        )

        def advance(done: int) -> None:
            bar.update(done)
            if bar.n == bar.total:
                bar.close()

        return advance

    return watch


def measure_pipelines(
    chosen: argparse.Namespace, files: list[Path], source: images.Source, watch: Callable[[str], Callable[[int], None]]
) -> Pipelines | None:
    """None, and a line that says why, where stocached.image is missing."""
    try:
        from demo import pipelines
    except ImportError as error:
        images.say(f"the part with stocached.image is left out: {error}")
        return None
    chosen.out.mkdir(parents=True, exist_ok=True)
    prepared = jpegs.prepare(files, source.folder, chosen.out, chosen.workers)
    return pipelines.measure(prepared, chosen.out, chosen.workers, chosen.batch, watch)


def main(argv: list[str] | None = None) -> int:
    chosen = arguments(argv)
    source = images.choose(chosen.images, chosen.out, chosen.samples or MOST // 4)
    files = images.pick(source, chosen.samples or MOST)
    if chosen.samples is None:
        wanted = int(COLD_SECONDS * min(chosen.workers, os.cpu_count() or 1) / loading.seconds_a_sample(files))
        files = files[: max(FEWEST, wanted // 64 * 64)]
    make_pool: experiment.PoolFactory = workers.WorkerPool
    loader = "multiprocessing"
    if chosen.torch:
        from demo import dataloader  # the import of torch takes seconds, and torch may be missing

        make_pool, loader = dataloader.LoaderPool, "DataLoader"
    images.say(
        f"{len(files)} {source.description}; {chosen.workers} workers, batches of {chosen.batch}, {loader}, Python {platform.python_version()}"
    )
    settings = experiment.Settings(files, chosen.workers, chosen.batch, make_pool)
    watch = watcher(len(files))
    result = experiment.measure(settings, source.description, source.short, loader, watch)
    if not chosen.json:
        print(f"\n{report.table(result)}\n\n{report.legend(result)}\n", flush=True)
    crops = measure_pipelines(chosen, files, source, watch)
    numbers = report.as_json(result) | {"pipelines": None}
    if crops is not None:
        from demo import pipelines_report

        numbers["pipelines"] = pipelines_report.as_json(crops)
        if not chosen.json:
            print(f"{pipelines_report.table(crops)}\n\n{pipelines_report.legend(crops)}\n")
    charts = chart.draw(result, crops, chosen.out)
    if chosen.json:
        print(json.dumps(numbers | {"charts": [str(path) for path in charts]}, indent=2))
    else:
        print(f"chart: {charts[0]} and {charts[1]}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (
        images.NoImagesError,
        loading.UnreadableImageError,
        workers.WorkerError,
        experiment.WrongSamplesError,
        stocached.StocachedError,
    ) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
