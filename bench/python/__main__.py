"""Measures the Python package. It is also the Python worker of bench/cmd/bench.

    python bench/python run --runs 11 --folder TMPFS --huge PATH --loops LIBRARY [--quick] [--peers] [--only WHAT]
    python bench/python hits PATH CORE SEED
    python bench/python memory PATH
    python bench/python loaders --runs 9 --folder TMPFS --loops LIBRARY --only PART [--quick]
    python bench/python subject KIND SETTINGS

Measurements go to standard output, one a line as JSON."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["hits"] and len(arguments) == 4:
        import worker

        return worker.hits(arguments[1], int(arguments[2]), int(arguments[3]))
    if arguments[:1] == ["memory"] and len(arguments) == 2:
        import worker

        return worker.memory(arguments[1])
    if arguments[:1] == ["subject"] and len(arguments) == 3:
        import json

        from loaders import subject

        return subject.main(arguments[1], json.loads(arguments[2]))
    if arguments[:1] == ["loaders"]:
        return loaders(arguments[1:])
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("run", choices=["run"])
    parser.add_argument("--runs", type=int, default=11, help="of each subject")
    parser.add_argument("--folder", required=True, help="on a tmpfs, of this run alone")
    parser.add_argument("--huge", required=True, help="path of a cache of very many samples, to attach to")
    parser.add_argument("--loops", required=True, help="the library with the bare C loops")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    parser.add_argument("--peers", action="store_true", help="compare with stocaching and torch too")
    parser.add_argument("--only", default="", help="one of reads, puts, epochs, lifecycle")
    options = parser.parse_args(arguments)
    return run(options)


def loaders(arguments: list[str]) -> None:
    """One part of the loader's table: see loaders/rows.py."""
    import measure
    from loaders import peers_rows, rows, streams_rows

    parts = rows.PARTS | peers_rows.PARTS | streams_rows.PARTS
    parser = argparse.ArgumentParser(prog="bench loaders")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", required=True, help="on a tmpfs, of this run alone")
    parser.add_argument("--loops", required=True, help="the library with the bare C loops")
    parser.add_argument("--only", required=True, choices=parts)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    bench = measure.Bench(options.runs)

    def emit(case: str, size: str, subjects: list[Any], note: str = "") -> None:
        bench.put(case, size, [subject.as_subject() for subject in subjects], note)

    parts[options.only](rows.Run(options.runs, options.folder, options.loops, options.quick, emit))


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
