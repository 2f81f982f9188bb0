"""Measures the Python package, and is the worker of bench/cmd/bench that is written in Python.

    python python/bench run --runs 11 --folder TMPFS --huge PATH --loops LIBRARY [--quick] [--peers] [--only WHAT]
    python python/bench hits PATH CORE SEED
    python python/bench memory PATH

Measurements go to standard output, one a line as JSON."""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["hits"] and len(arguments) == 4:
        import worker

        return worker.hits(arguments[1], int(arguments[2]), int(arguments[3]))
    if arguments[:1] == ["memory"] and len(arguments) == 2:
        import worker

        return worker.memory(arguments[1])
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("run", choices=["run"])
    parser.add_argument("--runs", type=int, default=11, help="of each subject")
    parser.add_argument("--folder", required=True, help="on a tmpfs, of this run alone")
    parser.add_argument("--huge", required=True, help="path of a cache of very many samples, to attach to")
    parser.add_argument("--loops", required=True, help="the library with the bare C loops")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    parser.add_argument("--peers", action="store_true", help="beside stocaching and torch")
    parser.add_argument("--only", default="", help="one of reads, puts, epochs, lifecycle")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> None:
    import epochs
    import lifecycle
    import measure
    import puts
    import reads
    import sizes

    bench = measure.Bench(options.runs)
    kinds = sizes.QUICK if options.quick else sizes.FULL
    wanted = options.only.split(",") if options.only else ["reads", "puts", "epochs", "lifecycle"]
    for size in kinds:
        if "reads" in wanted:
            reads.measure(bench, size, options.folder, options.loops, options.peers)
        if "puts" in wanted:
            puts.measure(bench, size, options.folder)
    if "epochs" in wanted:
        epochs.measure(bench, kinds[0], options.folder, options.peers, options.quick)
    if "lifecycle" in wanted:
        lifecycle.measure(bench, options.folder, options.huge)


if __name__ == "__main__":
    main(sys.argv[1:])
