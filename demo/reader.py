"""python -m demo.reader NAME SEED [BATCH]: reads every sample of a served cache once, in its own
order, and prints the sums.

The same program as demo/gofetch in Go and examples/c/fetch.c in C. crc is the XOR of the
CRC-32C of each sample, the same in any order. seconds is the time of the fetches.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import stocached

from demo.crc32c import crc32c

TIMEOUT = 60.0  # seconds that a batch may take


def read(name: str, seed: int, batch: int) -> str:
    samples = hits = size = crc = 0
    seconds = 0.0
    with stocached.Cache.attach(name) as cache:
        order = np.random.default_rng(seed).permutation(cache.samples)
        rows = np.empty((batch, *[dim for dim in cache.fields[0].shape if dim is not None]), cache.fields[0].dtype)
        for start in range(0, len(order), batch):
            indices = order[start : start + batch]
            hits += sum(index in cache for index in indices.tolist())
            began = time.perf_counter()
            out, _ = cache.fetch(indices, rows[: len(indices)], TIMEOUT)
            seconds += time.perf_counter() - began
            samples, size = samples + len(out), size + out.nbytes
            crc ^= int(np.bitwise_xor.reduce(crc32c(out)))
    return f"samples={samples} hits={hits} failed=0 bytes={size} crc={crc:08x} seconds={seconds:.3f}"


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    try:
        print(read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 32))
    except (stocached.StocachedError, ValueError) as error:
        sys.exit(f"demo.reader: {error}")
