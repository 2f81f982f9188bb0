"""The model of store="auto" beside a simulation of workers, a source that sends one file at a time, and
processors: docs/spec/stores.md."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest

from stocached._datasets.stores import _CONTROL, Measured, choose, epochs

N, DECODE, BUSY = 2000, 1e-3, 5e-5
ENCODED, DECODED = 62_000, 150_528
Sample = tuple[float, float, float]  # seconds at the source, of the way from it, and of a processor


def simulated(samples: list[Sample], workers: int, processors: int) -> float:
    """Seconds of an epoch."""
    waiting = iter(samples)
    source, end = 0.0, 0.0
    free = [0.0] * processors
    events: list[tuple[float, int, float | None]] = []  # when, the order of what was noted, the work after a read
    number = itertools.count()

    def begin(now: float) -> None:
        nonlocal source
        sample = next(waiting, None)
        if sample is not None:
            sent, way, work = sample
            if sent:
                source = now = max(source, now) + sent
            heapq.heappush(events, (now + way, next(number), work))

    for _ in range(workers):
        begin(0.0)
    while events:
        now, _, work = heapq.heappop(events)
        if work is None:
            end = max(end, now)
            begin(now)
        else:
            done = max(heapq.heappop(free), now) + work
            heapq.heappush(free, done)
            heapq.heappush(events, (done, next(number), None))
    return end


def epoch_of(part: float, encoded: bool, sent: float, way: float, spread: float, team: tuple[int, int]) -> float:
    """An epoch of files whose sizes differ by `spread`, of which a part is cached."""
    draw = random.Random(f"{part}{encoded}{sent}{way}{spread}{team}")
    cached = [True] * round(N * part)
    cached += [False] * (N - len(cached))
    draw.shuffle(cached)
    samples: list[Sample] = []
    for hit in cached:
        size = math.exp(spread * draw.gauss(0, 1) - spread**2 / 2)
        if not hit:
            samples.append((sent * size, way, DECODE * size + BUSY))
        elif encoded:
            samples.append((0.0, 0.0, DECODE * size))
    return simulated(samples, *team)


TEAMS = [(1, 2), (2, 2), (4, 2), (4, 4), (8, 8)]


@pytest.mark.parametrize("team", TEAMS)
def test_the_model_beside_a_simulation(team):
    """Of sources that take 0.2 to 1.5 of a decode to send a file, near and far ones."""
    for ratio, far, part, spread in itertools.product((0.2, 0.6, 0.8, 1.5), (0, 2), (0.1, 0.5), (0, 0.3)):
        sent = ratio * DECODE
        way = far * sent
        measured = Measured(N, ENCODED, DECODED, read=sent + way + BUSY, read_busy=BUSY, reads=1 / sent, decode=DECODE)
        size = _CONTROL + round(part * N * DECODED)
        said = epochs(measured, size, *team)
        found = {
            store: epoch_of(there, store == "encoded", sent, way, spread, team)
            for store, there in (("decoded", said.decoded_part), ("encoded", said.encoded_part))
        }
        case = team, ratio, far, part, spread, said, found
        assert said.decoded == pytest.approx(found["decoded"], rel=0.12), case
        assert said.encoded == pytest.approx(found["encoded"], rel=0.12), case
        assert found[choose(measured, size, *team)[0]] <= 1.05 * min(found.values()), case


def test_two_workers_of_one_link_wait_for_each_other():
    """Neither the source nor the processors are the limit."""
    sent = 0.6 * DECODE
    measured = Measured(N, ENCODED, DECODED, read=sent + BUSY, read_busy=BUSY, reads=1 / sent, decode=DECODE)
    size = _CONTROL + round(0.25 * N * DECODED)
    said = epochs(measured, size, 2, 2).decoded
    alone = 0.75 * N * (sent + DECODE + BUSY) / 2  # without a wait
    found = epoch_of(0.25, False, sent, 0, 0.3, (2, 2))
    assert alone * 1.05 < found
    assert said == pytest.approx(found, rel=0.03)
