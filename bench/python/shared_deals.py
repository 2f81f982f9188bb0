"""What it costs the ranks of a node to deal an epoch, each for itself and shared.

    python bench/python/shared_deals.py

Processor time of all ranks of the node, for a batch, medians of 7 rounds that alternate. Ranks are processes
that sleep for 1 ms after each batch, as a step does. They have read a short epoch before, so that the memory that
they share with the process that forked them is theirs. The time of the loop and its sleeps is taken off."""

from __future__ import annotations

import os
import statistics
import struct
import time

from stocached._loader import dealt_batches as _deals
from stocached._loader.dealt_batches import dealt_batches
from stocached.order import Deal, Node, Order, Owners

JOBS = [(1, 2, 32), (1, 2, 256), (1, 8, 32), (1, 8, 256), (4, 8, 32), (4, 8, 256), (8, 8, 256), (32, 8, 256)]
SHORT = [(1, 2, 64), (1, 8, 64), (4, 8, 64)]
SAMPLES, ROUNDS, MOST = 1_281_167, 7, 800  # of batches
NEVER, ALWAYS = 1 << 62, 0


def seconds(deals: list[Deal], before: list[Deal], short: int | None, batches: int) -> float:
    """Processor time of the ranks of a node in an epoch. short: as `_deals._SHORT`; None: the loop alone."""
    read, write = os.pipe()
    children = []
    for number, deal in enumerate(deals):
        if (child := os.fork()) == 0:
            _deals._SHORT = short or 0
            if short is not None:
                list(dealt_batches(before[number], True))
            began = time.process_time()
            batch = iter(range(batches)) if short is None else dealt_batches(deal, True)
            for _, _ in zip(range(batches), batch):
                time.sleep(0.001)
            os.write(write, struct.pack("d", time.process_time() - began))
            os._exit(0)
        children.append(child)
    os.close(write)
    for child in children:
        os.waitpid(child, 0)
    told = os.read(read, 8 * len(deals))
    os.close(read)
    return sum(struct.unpack(f"{len(deals)}d", told))


def measure(nodes: int, ranks: int, batch_size: int, most: int) -> str:
    """A row of the table."""
    owners = Owners([Node(f"node-{k}", ranks) for k in range(nodes)], SAMPLES)
    samples = min(SAMPLES, most * nodes * ranks * batch_size)
    alone, shared = [], []
    for number in range(ROUNDS):
        epoch = Order(SAMPLES, seed=1).epoch(number)
        start = SAMPLES - samples
        other = Order(SAMPLES, seed=2).epoch(number)
        deals, before = (
            [Deal(one, owners, rank, batch_size, ends="drop", start=at) for rank in range(ranks)]
            for one, at in ((epoch, start), (other, SAMPLES - 2 * nodes * ranks * batch_size))
        )
        count = len(deals[0]) // batch_size
        loop, one, both = (seconds(deals, before, short, count) for short in (None, NEVER, ALWAYS))
        alone.append((one - loop) / count * 1e6)
        shared.append((both - loop) / count * 1e6)
    ratios = sorted(b / a for a, b in zip(alone, shared))
    row = (
        nodes,
        ranks,
        batch_size,
        nodes * ranks * batch_size,
        count,
        statistics.median(alone),
        statistics.median(shared),
    )
    return "| {} | {} | {} | {:,} | {} | {:.0f} | {:.0f} |".format(*row) + (
        f" {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
    )


def main() -> None:
    print(
        "| nodes | ranks of a node | samples of a rank | global batch | batches | alone, us | shared, us | shared / alone |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|---|")
    for job in JOBS:
        print(measure(*job, MOST), flush=True)
    for nodes, ranks, batch_size in SHORT:
        for indices in (1 << 15, 1 << 16, 1 << 17, 1 << 18):
            print(measure(nodes, ranks, batch_size, indices // (nodes * ranks * batch_size)), flush=True)


if __name__ == "__main__":
    main()
