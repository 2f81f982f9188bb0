"""A slow list among fast ones, which are read ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stocached import Loader, source


def part(k: int) -> Iterator[int]:
    if k == 1:
        yield 1000
        time.sleep(1)  # the task that reads it ends after the next item, and the other worker reads far ahead
    yield from range(1000 * k + 1, 1000 * k + (3 if k == 0 else 100))


def test_an_epoch_goes_on_after_a_slow_list():
    loader = Loader(source(part, parts=40).batch(10), num_workers=2)
    assert [int(item) for batch in loader for item in batch] == [item for k in range(40) for item in part(k)]
