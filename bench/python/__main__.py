"""Measures stocached in Python, beside other libraries and beside the least that must be done.

    make bench ARGS="loaders"                  a topic, or some: clients, loaders, streams, peers, ...
    make bench ARGS="loaders:cold --runs 5"    one case of it
    make bench ARGS="pictures --page"          also write bench/results/pictures.md
    make bench ARGS="--quick"                  all, only to see that it works

Without --page, the tables go to standard output alone. "beside" is how many times as long another way takes as
ours: above 1 we are faster."""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

TOPICS = {
    "clients": "Clients, without a server",
    "loaders": "Loaders, everything or a part cached",
    "streams": "Streams",
    "peers": "Loaders of other projects",
    "pictures": "Epochs of pictures",
    "decode": "Pictures on one thread",
    "disk": "A disk cache without a server",
    "policies": "What the policy cost saves",
}


def head(topic: str, rounds: int, arguments: str) -> str:
    git = ["git", "-C", harness.ROOT, "describe", "--always", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if "model name" in line), platform.machine())
    return (
        f"# {TOPICS[topic]}\n\n`make bench ARGS={arguments}`, {datetime.date.today()}, at commit {commit}: {rounds} rounds "
        f"on\n{os.cpu_count()} processors ({model.strip()}), Python {platform.python_version()}, beside other work "
        f"of a load of {os.getloadavg()[2]:.1f}.\nMedians, and ratios within a round with their 95 % intervals."
    )


def main() -> int:
    if sys.argv[1:2] == ["--subject"]:
        harness.serve(sys.argv[2], json.loads(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="TOPIC[:CASE]", help=", ".join(TOPICS))
    parser.add_argument("--runs", type=int, default=9, help="rounds (default: 9)")
    parser.add_argument("--quick", action="store_true", help="one round with few samples")
    parser.add_argument("--page", action="store_true", help="write bench/results/TOPIC.md")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.runs
    for wanted in options.cases or TOPICS:
        topic, _, only = wanted.partition(":")
        if topic not in TOPICS:
            parser.error(f"no topic {topic}: {', '.join(TOPICS)}")
        cases = importlib.import_module(f"cases.{topic}").CASES
        gc.freeze()  # the collection before each run skips what was imported: with torch, it takes a second
        if only and only not in cases:
            parser.error(f"no case {only} in {topic}: {', '.join(cases)}")
        with tempfile.TemporaryDirectory(prefix="stocached-bench-", dir="/dev/shm") as folder:
            run = harness.Run(rounds, folder, options.quick)
            for name in [only] if only else cases:
                cases[name](run)
        if options.page:
            text = head(topic, options.runs, wanted) + "\n" + "\n".join(run.text) + "\n"
            (harness.ROOT / f"bench/results/{topic}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
