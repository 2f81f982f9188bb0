"""What it costs to deal global batches to nodes, for each index, beside the plain order.

    python bench/python/deals.py

Processor time, medians of 9 rounds that alternate. One process deals for all ranks of its node."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from stocached.order import Deal, Node, Order, Owners

IMAGENET = 1_281_167
INDICES = 400_000  # of a round, or one global batch if it has more
JOBS = [(1, 256, IMAGENET), (2, 256, IMAGENET), (8, 256, IMAGENET), (64, 64, IMAGENET), (64, 256, IMAGENET)]
JOBS += [(256, 256, IMAGENET), (1000, 256, IMAGENET), (8, 256, 2**40)]
RANKS, ROUNDS = 8, 9


def nanoseconds(work: Callable[[], object]) -> int:
    start = time.process_time_ns()
    work()
    return time.process_time_ns() - start


def measure(count: int, batch_size: int, samples: int) -> str:
    """A row of the table."""
    nodes = [Node(f"node-{k}", RANKS) for k in range(count)]
    epoch, owners = Order(samples, seed=1).epoch(0), Owners(nodes, samples)
    deal = Deal(epoch, owners, 0, batch_size, ends="drop")
    size = deal.batch(0).size
    batches = range(max(1, min(len(deal) // batch_size, INDICES // size)))
    plain, dealt = [], []
    for _ in range(ROUNDS):
        plain.append(nanoseconds(lambda: [epoch.indices(k * size, size) for k in batches]) / len(batches) / size)
        dealt.append(nanoseconds(lambda: [deal.batch(k) for k in batches]) / len(batches) / size)
    table = statistics.median(nanoseconds(lambda: Owners(nodes, samples)) for _ in range(3)) / 1e6
    row = (count, batch_size, samples, size, statistics.median(plain), statistics.median(dealt), table)
    return "| {} | {} | {:,} | {:,} | {:.1f} | {:.1f} | {:.0f} |".format(*row)


def main() -> None:
    print(
        "| nodes of 8 ranks | samples of a rank | dataset | global batch | plain, ns an index | dealt, ns an index | table of owners, ms |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for job in JOBS:
        print(measure(*job), flush=True)


if __name__ == "__main__":
    main()
