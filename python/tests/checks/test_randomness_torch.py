"""No cache stores random samples: draws from torch's generator, in loaders and workers of torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers import Of, python
from test_randomness import LATE, Constant, N, at, read_all, states_kept  # noqa: F401
from torch_helpers import TORCH_WARNINGS, CachedDataset, DataLoader, run_alone, torch

from stocached import NondeterministicDatasetError
from stocached._random import generators

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def late(do):
    return Constant(at(LATE, do))


def with_the_second_of_two():
    torch.randn(1, dtype=torch.float64)


DRAWS = {
    "rand": lambda: torch.rand(1),
    "randn": lambda: torch.randn(1),
    "the second of two": with_the_second_of_two,
    "every word": lambda: torch.empty(624, dtype=torch.int32).random_(),
    "randperm": lambda: torch.randperm(5),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(100)),
    "multinomial": lambda: torch.ones(4).multinomial(1),
    "seed": lambda: torch.seed(),
}


@pytest.mark.parametrize("draw", list(DRAWS))
@pytest.mark.parametrize("known", [True, False], ids=["in memory", "unknown layout"])
def test_every_draw_is_noticed(draw, known, monkeypatch):
    from stocached._random import torch_generator

    if not known:
        monkeypatch.setattr(torch_generator, "_offset", lambda: 0)
        monkeypatch.setattr(generators, "_known", (*generators.known()[:2], torch_generator.TorchGenerator()))
    monkeypatch.setattr(generators, "_observer", None)
    torch.randn(1, dtype=torch.float64)  # leaves one of two numbers in the generator
    dataset = CachedDataset(late(DRAWS[draw]))
    dataset[LATE - 1]
    with pytest.raises(
        NondeterministicDatasetError,
        match=f"sample {LATE} of the dataset draws random numbers from the global generator of torch:",
    ):
        dataset[LATE]
    assert dataset.stats().ready == 0


def test_the_memory_of_this_torch_is_known():
    """Otherwise each check takes 2 us. torch_generator.py describes the layout."""
    assert generators.known()[2].places()


def test_the_numbers_of_the_program_are_as_without_the_check():
    class Lazy(Constant):
        model = None

        def build(self, index):
            self.model = self.model or torch.nn.Linear(2, 2)

    seen = []
    for allowed in (True, False):
        torch.manual_seed(5)
        inner = Lazy(None)
        inner.function = inner.build
        dataset = CachedDataset(inner, allow_random=allowed)
        mine = [torch.randn(3).tolist()]
        for k in range(N):
            dataset[k]
            mine += [torch.randn(1).item(), torch.rand(1).item()]
        seen.append(mine)
        assert dataset.stats().ready == N
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [False, True], ids=["row by row", "whole batches"])
def test_loaders(workers, batches):
    with pytest.raises(NondeterministicDatasetError) as caught:
        list(
            DataLoader(
                late(lambda: torch.rand(1)), 6, num_workers=workers, size="16MiB", collate_fn=list if batches else None
            )
        )
    said = str(caught.value)
    assert "global generator of torch" in said
    assert "DataLoader(dataset, ..., augment=fn)" in said
    assert "DataLoader(dataset, ..., allow_random=True)" in said
    assert said.endswith("The loader gave 0 batches before.")
    loader = DataLoader(late(lambda: torch.rand(1)), 6, num_workers=workers, size="16MiB", allow_random=True)
    assert sum(len(labels) for _, labels in loader) == N


def test_in_a_loader_of_torch():
    dataset = CachedDataset(late(lambda: torch.rand(1)))
    with pytest.raises(NondeterministicDatasetError, match=r"CachedDataset\(dataset, \.\.\., augment=fn\)"):
        list(torch.utils.data.DataLoader(dataset, 6, num_workers=2))
    assert dataset.stats().ready == 0
    again = CachedDataset(late(lambda: torch.rand(1)), allow_random=True)
    assert sum(len(labels) for _, labels in torch.utils.data.DataLoader(again, 6, num_workers=2)) == N


NOT_FORKED = """
import multiprocessing
import numpy as np, torch
from stocached import Cache, NondeterministicDatasetError
from stocached.torch import CachedDataset

class Own(torch.utils.data.Dataset):
    def __init__(self): self.generator = None
    def __len__(self): return 200
    def __getitem__(self, k):
        self.generator = self.generator or np.random.default_rng()
        return torch.tensor([self.generator.random() if k not in (0, 99, 199) else 0.0], dtype=torch.float64)

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["stocached.torch"])  # one import of torch for both
    cache = Cache.create(samples=200, shape=1, dtype="float64")
    dataset = CachedDataset(Own(), cache)
    cache.put(150, np.array([0.25]))
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=2, multiprocessing_context="forkserver", persistent_workers=True)
    found = 0
    for _ in range(2):
        batches = iter(loader)
        while True:
            try:
                next(batches)
            except NondeterministicDatasetError as error:
                found += "were removed from the cache" in str(error)
            except StopIteration:
                break
    assert found  # one worker finds it, and each later load is an error
    assert [k for k in range(200) if k in cache] == [150], [k for k in range(200) if k in cache]
"""


def test_workers_that_are_not_forked_stop_together(warm, tmp_path):
    done = run_alone(warm, tmp_path, NOT_FORKED)
    assert done.returncode == 0, done.stderr


def test_what_draws_when_torch_is_imported_for_it():
    """A dataset that imports torch for its first sample: no check has seen torch's generator
    before."""
    python(
        """
        import sys
        from stocached import NondeterministicDatasetError
        from stocached._datasets.cached_samples import CachedSamples

        class Late:
            def __len__(self): return 60
            def __getitem__(self, k):
                if k == 5:
                    import torch
                    torch.rand(1)
                return 1

        dataset = CachedSamples(Late())
        assert "torch" not in sys.modules
        try:
            dataset[5]
        except NondeterministicDatasetError as error:
            assert "global generator of torch" in str(error), error
        else:
            sys.exit("no error")
        """,
        options=("-W", "ignore"),
    )


@pytest.mark.parametrize("ours", [False, True], ids=["torch's", "ours"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_within_a_dataset(ours, shuffle):
    kind = DataLoader if ours else torch.utils.data.DataLoader

    tensors = torch.utils.data.TensorDataset
    outer = Of(lambda index: torch.cat([x for (x,) in kind(tensors(torch.arange(6) + index), 2, shuffle=shuffle)]), N)
    if shuffle:  # the order of its samples is random
        with pytest.raises(NondeterministicDatasetError, match="global generator of torch"):
            CachedDataset(outer)
        return
    state = torch.get_rng_state()
    dataset = CachedDataset(outer)
    assert torch.equal(torch.get_rng_state(), state)
    for k in range(N):
        assert dataset[k].tolist() == list(range(k, k + 6))
    assert dataset.stats().ready == N
    assert not torch.equal(torch.get_rng_state(), state), "each epoch of a loader draws a base seed"


def test_workers_of_a_loader_within_a_dataset():
    draws = Of(lambda index: torch.rand(1), 4)
    outer = Of(lambda index: torch.cat(list(torch.utils.data.DataLoader(draws, 2, num_workers=1))), 8)
    with pytest.raises(NondeterministicDatasetError, match="it \\(.*\\) differs"):
        CachedDataset(outer)


def test_states_that_are_put_back_hide_nothing_for_long():
    def flip(k):
        with torch.random.fork_rng(devices=[]):
            torch.seed()
            return torch.rand(1) < 0.5

    flips = Of(lambda k: flip(k) if k not in (0, (N - 1) // 2, N - 1) else torch.zeros(1, dtype=torch.bool), N)
    dataset = CachedDataset(flips)
    with pytest.raises(NondeterministicDatasetError, match="was loaded again and it .* differs"):
        read_all(dataset)
    assert dataset.stats().ready == 0


def test_samples_that_seed_themselves():
    def noise(k):
        torch.manual_seed(k)
        random.seed(k)
        np.random.seed(k)
        return torch.randn(3) + random.random() + np.random.standard_normal()

    dataset = CachedDataset(Of(noise, N))
    for _ in range(2):
        for k in range(N):
            assert torch.equal(dataset[k], noise(k))
    assert dataset.stats().ready == N
