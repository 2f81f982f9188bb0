"""States of torch loaders: with torch's samplers and generators, and with datasets and samplers
that have states of their own."""

from __future__ import annotations

import json

import pytest
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


class Draws:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.stack([torch.tensor(float(index)), torch.rand(())])


class KeepsGenerator(Draws):
    """A dataset whose state is that of torch's global generator in its process."""

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


class Indices:
    """An iterator of a sampler, with a state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 12:
            raise StopIteration
        self.at += 1
        return 12 - self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Backwards(torch.utils.data.Sampler if torch is not None else object):
    def __init__(self):
        pass

    def __iter__(self):
        return Indices()

    def __len__(self):
        return 12


def as_list(samples):
    return [sample.tolist() for sample in samples]


def lists(batches):
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


CASES = {
    "drawn here": (Draws, {"shuffle": True}),
    "kept here": (KeepsGenerator, {"shuffle": True}),
    "rows": (Draws, {"shuffle": True, "num_workers": 2}),
    "batches": (Draws, {"shuffle": True, "num_workers": 2, "collate_fn": as_list}),
    "kept by workers": (KeepsGenerator, {"shuffle": True, "num_workers": 2}),
    "kept workers": (KeepsGenerator, {"num_workers": 2, "persistent_workers": True, "snapshot_every_n_steps": 3}),
    "own sampler": (Draws, {"sampler": Backwards, "num_workers": 2}),
    "own batches": (KeepsGenerator, {"batch_sampler": lambda: torch.utils.data.BatchSampler(Backwards(), 5, False)}),
    "generator": (Draws, {"shuffle": True, "num_workers": 2, "generator": lambda: torch.Generator().manual_seed(9)}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_all_epochs_come_as_without_a_stop(name):
    """Also the epochs after the state, although no seed was given: the global generators have the
    positions of that time."""
    dataset, settings = CASES[name]

    def loader():
        made = {
            key: value() if key in ("sampler", "batch_sampler", "generator") else value
            for key, value in settings.items()
        }
        return DataLoader(dataset(), **({} if "batch_sampler" in made else {"batch_size": 4}) | made)

    torch.manual_seed(1)
    loads = loader()
    epochs = [lists(loads) for _ in range(3)]
    loads.close()
    for epoch, stop in ((1, 0), (1, 2)):
        torch.manual_seed(1)
        before = loader()
        for _ in range(epoch):
            list(before)
        batches = iter(before) if stop else None
        got = lists(next(batches) for _ in range(stop))
        state = before.state_dict()
        before.close()
        if dataset is not KeepsGenerator:
            state = json.loads(json.dumps(state))
        torch.manual_seed(2)
        after = loader()
        after.load_state_dict(state)
        assert got + lists(after) == epochs[epoch], f"epoch {epoch}, stopped after {stop} batches"
        assert lists(after) == epochs[epoch + 1], "the next epoch"
        after.close()


def test_the_names_of_torchdata():
    """Programs read a state by the names that StatefulDataLoader uses."""
    loads = DataLoader(KeepsGenerator(), 4, num_workers=2)
    for batches in (0, 1):
        assert list(loads.state_dict()["_snapshot"]["_worker_snapshots"]) == ["worker_0", "worker_1"]
        iterator = iter(loads)
        for _ in range(batches):
            next(iterator)
        snapshots = loads.state_dict()["_snapshot"]["_worker_snapshots"]
        assert all(
            set(snapshot["dataset_state"]) == {"generator"} and snapshot["fetcher_state"] is None
            for snapshot in snapshots.values()
        )
        iterator.close()
        loads = DataLoader(KeepsGenerator(), 4, num_workers=2)
    here = DataLoader(KeepsGenerator(), 4)
    next(iter(here))
    assert here.state_dict().keys() >= {"dataset_state", "fetcher_state", "_iterator_finished"}
