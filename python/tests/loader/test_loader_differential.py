"""Random loaders against a plain model: the samples of each batch, their order and their random numbers, for all
kinds of workers, orders, caches and ranks, resumed anywhere, while workers are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest
from loader_model import Case, Rows, case_of, workers_of
from pictures import folder_of

from stocached import Loader, image

SECONDS = float(os.environ.get("STOCACHED_TEST_SECONDS", "0"))  # `make soak` sets it
SEED = int(os.environ.get("STOCACHED_TEST_SEED", "0"))
ROUNDS = 6  # rounds of each part
PICTURES = 31
FLIP = image.Compose([image.RandomResizedCrop(12), image.RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The label of a picture is its index."""
    root = folder_of(tmp_path_factory.mktemp("pictures"), {f"{k:03}": 1 for k in range(PICTURES)}, (24, 16))
    return image.Folder(root, size=(16, 16))


class Seen:
    """What loaders of a case gave for a sample of an epoch. All must give the same."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._given: dict[tuple[int, int], Any] = {}

    def indices(self, epoch: int, batches: Any, kill: Any = None) -> list[list[int]]:
        """The indices in batches, whose other values are compared."""
        found = []
        for number, batch in enumerate(batches):
            found.append([self._compared(epoch, *row) for row in self._rows(batch)])
            if kill is not None:
                kill(number)
        return found

    def _rows(self, batch: Any) -> list[tuple[int, bytes, Any]]:
        if not isinstance(self._case.dataset, Rows):
            return [(int(label), pixels.tobytes(), None) for pixels, label in zip(*batch)]
        drawn = batch.get("drawn", [None] * len(batch["index"]))
        rows = zip(batch["index"], batch["bytes"], drawn)
        return [(int(index), np.asarray(row).tobytes(), number) for index, row, number in rows]

    def _compared(self, epoch: int, index: int, data: bytes, drawn: Any) -> int:
        if isinstance(self._case.dataset, Rows):
            assert data == self._case.dataset[index]["bytes"].tobytes(), f"bytes of sample {index}"
        else:
            drawn = data
        assert self._given.setdefault((epoch, index), drawn) == drawn, f"random part of sample {index}, epoch {epoch}"
        return index


class Killer:
    """Kills a worker process of an iteration after some of its batches."""

    def __init__(self, draws: random.Random, batches: Any) -> None:
        self._random, self._pids = draws, batches._runtime.pids

    def __call__(self, number: int) -> None:
        if self._random.random() < 0.1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(self._pids), signal.SIGKILL)


def ordered(batches: list[list[int]], workers: dict[str, Any]) -> list[list[int]]:
    """Batches as they compare: sorted, if they may come in any order."""
    return batches if workers.get("in_order", True) else sorted(map(sorted, batches))


def check(draws: random.Random, pictures: Any, folder: str) -> None:
    """One case: all ranks of two epochs, once more without a cache, and from a checkpoint."""
    case = case_of(draws, pictures, folder)
    if not isinstance(case.dataset, Rows):
        case.augment = draws.choice([None, FLIP])
    seen = Seen(case)
    with contextlib.ExitStack() as stack:

        def loader(rank: int, workers: dict[str, Any], cache: dict[str, Any]) -> Loader:
            ranks = {} if case.world_size == 1 else {"rank": rank}
            made = Loader(case.dataset, **case.given(), **ranks, **workers, **cache)
            stack.callback(made.close)
            return made

        workers = workers_of(draws, case)
        loaders = [loader(rank, workers, case.cache) for rank in range(case.world_size)]
        for epoch in range(2):
            for rank, one in enumerate(loaders):
                batches = iter(one)
                kill = Killer(draws, batches) if workers.get("restart_workers") else None
                found = ordered(seen.indices(epoch, batches, kill), workers)
                assert found == ordered(case.batches(epoch, rank), workers), f"epoch {epoch}, rank {rank}"
        others = workers_of(draws, case)
        without = {} if case.nodes is None else case.cache  # affinity= needs one
        for rank in range(case.world_size):
            epoch = draws.randrange(2)
            again = loader(rank, others, without)
            again.set_epoch(epoch)
            found = ordered(seen.indices(epoch, again), others)
            assert found == ordered(case.batches(epoch, rank), others), f"again: epoch {epoch}, rank {rank}"
        if workers.get("in_order", True):
            resume(draws, case, seen, loaders, loader)


def resume(draws: random.Random, case: Case, seen: Seen, loaders: list[Loader], loader: Any) -> None:
    """Stops an epoch after some batches, and continues it with another loader."""
    rank, epoch = draws.randrange(case.world_size), draws.randrange(2)
    wanted = case.batches(epoch, rank)
    stop = draws.randrange(len(wanted) + 1)
    loaders[rank].set_epoch(epoch)
    batches = iter(loaders[rank])
    head = seen.indices(epoch, (next(batches) for _ in range(stop)))
    state = loaders[rank].state_dict()
    batches.close()
    workers = {**workers_of(draws, case), "in_order": True}
    goes_on = loader(rank, workers, draws.choice([case.cache, case.cache if case.nodes else {}]))
    goes_on.load_state_dict(json.loads(json.dumps(state)))
    assert head + seen.indices(epoch, goes_on) == wanted, f"from batch {stop} of epoch {epoch}, rank {rank}"


@pytest.mark.parametrize("part", range(4))
def test_random_loaders_give_what_a_plain_model_says(part, pictures, tmp_path):
    until, number = time.monotonic() + SECONDS / 4, 0
    while number < ROUNDS or time.monotonic() < until:
        seed = (SEED * 4 + part) * 100_003 + number
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            check(random.Random(seed), pictures, str(folder))
        except BaseException as error:
            error.add_note(f"the case of random.Random({seed})") if hasattr(error, "add_note") else print(seed)
            raise
        number += 1
