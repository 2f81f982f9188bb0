"""Datasets of torch's DataPipes. Each sample comes once for any ranks and workers, in the order of
torch's loader."""

from __future__ import annotations

import tempfile
import warnings

import pytest
from helpers import stopped
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached import InvalidError

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

if torch is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.data import MapDataPipe
        from torch.utils.data.datapipes.iter import IterableWrapper
        from torch.utils.data.datapipes.map import SequenceWrapper
else:
    MapDataPipe = object


def ten(x):
    return 10 * x


def is_even(x):
    return x % 2 == 0


class Halves(MapDataPipe):
    """A map-style pipe with sharding: each worker gets a part of the samples."""

    def __init__(self, count):
        self.count, self.parts, self.part = count, 1, 0

    def apply_sharding(self, parts, part):
        self.parts, self.part = parts, part

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, self.parts, self.part


PIPES = {
    "sharded": lambda: IterableWrapper(range(13)).sharding_filter(),
    "not sharded": lambda: IterableWrapper(range(5)),
    "shuffled, then sharded": lambda: IterableWrapper(range(13)).shuffle().sharding_filter().map(ten),
    "sharded, then shuffled": lambda: IterableWrapper(range(13)).sharding_filter().shuffle(buffer_size=4),
    "shuffled twice": lambda: IterableWrapper(range(13)).shuffle().filter(is_even).sharding_filter().shuffle(),
    "two sources": lambda: (
        IterableWrapper(range(6)).shuffle().zip(IterableWrapper(range(6)).shuffle()).sharding_filter()
    ),
    "map": lambda: SequenceWrapper(range(13)).map(ten),
    "map, shuffled": lambda: SequenceWrapper(range(13)).shuffle().sharding_filter(),
    "map, sharded": lambda: Halves(8),
}
SETTINGS = {
    "plain": {},
    "batches": {"batch_size": 3},
    "shuffle=True": {"batch_size": 2, "shuffle": True},
    "shuffle=False": {"batch_size": 2, "shuffle": False},
    "kept": {"batch_size": 2, "persistent_workers": True},
    "samples": {"batch_size": None},
}


def plain(batches):
    """Converts batches to lists and numbers."""
    if hasattr(batches, "tolist"):
        return batches.tolist()
    return batches if isinstance(batches, int) else list(map(plain, batches))


def epochs(kind, pipe, workers, generator, settings):
    torch.manual_seed(5)
    if generator is not None:
        settings = settings | {"generator": torch.Generator().manual_seed(generator)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(PIPES[pipe](), num_workers=workers, **settings)
        return [plain(loader) for _ in range(2)], float(torch.rand(()))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("pipe", list(PIPES))
def test_as_torch_without_workers(pipe, settings):
    if settings != "kept":
        for generator in (None, 7):
            expected = epochs(torch.utils.data.DataLoader, pipe, 0, generator, SETTINGS[settings])
            assert epochs(DataLoader, pipe, 0, generator, SETTINGS[settings]) == expected


@pytest.mark.parametrize(
    ("pipe", "workers", "settings"),
    [(pipe, 2, "batches") for pipe in ("sharded", "shuffled, then sharded", "map, shuffled", "map, sharded")]
    + [
        ("shuffled, then sharded", 1, "plain"),
        ("shuffled, then sharded", 3, "kept"),
        ("shuffled twice", 2, "kept"),
        ("two sources", 2, "samples"),
    ],
)
def test_as_torch_with_workers(pipe, workers, settings):
    expected = epochs(torch.utils.data.DataLoader, pipe, workers, None, SETTINGS[settings])
    assert epochs(DataLoader, pipe, workers, None, SETTINGS[settings]) == expected


def test_threads():
    """One thread reads all samples. Several threads would share a dataset that knows one part for
    each process."""
    expected = epochs(torch.utils.data.DataLoader, "shuffled, then sharded", 1, 7, {})
    assert epochs(DataLoader, "shuffled, then sharded", 1, 7, {"worker": "thread"}) == expected
    samples = [x for batch in epochs(DataLoader, "map", 2, 7, {"worker": "thread"})[0][0] for x in batch]
    assert samples == [10 * k for k in range(13)]
    for pipe in ("sharded", "map, sharded"):
        with pytest.raises(InvalidError, match='num_workers=2 with worker="thread"'):
            DataLoader(PIPES[pipe](), num_workers=2, worker="thread")


def test_a_cache_of_parts_is_refused():
    with pytest.raises(InvalidError, match="each worker gives another sample for one index"):
        DataLoader(PIPES["map, sharded"](), size="8MiB")
    assert plain(DataLoader(PIPES["map"](), batch_size=13, num_workers=2, size="8MiB")) == [[10 * k for k in range(13)]]


@pytest.mark.parametrize(("workers", "stop"), [(0, 0), (0, 4), (2, 4)])
def test_goes_on_from_a_state(workers, stop):
    def loader():
        return DataLoader(PIPES["shuffled, then sharded"](), batch_size=2, num_workers=workers)

    torch.manual_seed(5)
    whole = plain(loader())
    torch.manual_seed(5)
    got, state = stopped(loader(), stop, plain=plain)
    torch.manual_seed(6)
    again = loader()
    again.load_state_dict(state)
    assert got + plain(again) == whole


def rank_of_two(rank, folder, ranks, workers, kind, results):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(rank + 1)  # torch's loader shares the seed of the first rank
    loader = (DataLoader if kind == "ours" else torch.utils.data.DataLoader)(
        PIPES["shuffled, then sharded"](), batch_size=2, num_workers=workers
    )
    results.put((rank, [plain(loader) for _ in range(2)]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks(workers):
    context = torch.multiprocessing.get_context("fork")

    def run(kind):
        results = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                context.Process(target=rank_of_two, args=(rank, folder, 2, workers, kind, results)) for rank in range(2)
            ]
            for process in ranks:
                process.start()
            got = dict(results.get() for _ in ranks)
            for process in ranks:
                process.join()
        return [got[rank] for rank in range(2)]

    expected, ours = run("torch"), run("ours")
    # 2.0 numbers its parts differently among ranks with several workers
    if workers == 0 or not torch.__version__.startswith("2.0."):
        assert ours == expected
    for kind in (expected, ours):
        for epoch in range(2):
            assert sorted(x for rank in kind for batch in rank[epoch] for x in batch) == [10 * k for k in range(13)]
