"""`stocached.advise` of torch's own DataLoader, before a program uses stocached."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from helpers import Of  # noqa: E402
from processes import held, nothing_new  # noqa: E402
from test_advise import tries  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Subset  # noqa: E402

import stocached.torch  # noqa: E402
from stocached import InvalidError, advise  # noqa: E402

pytestmark = pytest.mark.torch

N, LOAD, BATCH = 48, 0.004, 8


class Slow(Dataset[Any]):
    """Shorter than the time of the measurement."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        time.sleep(LOAD)
        return torch.full((3, 8, 8), float(index)), index


class Transformed(Slow):
    """As datasets of torchvision: a sample, and a random part that makes it larger."""

    transform: Any = None

    def __getitem__(self, index: int) -> Any:
        time.sleep(LOAD)
        return self.transform(torch.zeros((3, 8, 8), dtype=torch.uint8))


def enlarged(sample: Any) -> Any:
    time.sleep(LOAD)
    return torch.rand(4, *sample.shape)


@pytest.mark.parametrize("workers", [0, 2])
def test_loads_that_wait(workers: int):
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(Slow(), BATCH, shuffle=True, generator=generator, num_workers=workers)
    torch.manual_seed(7)
    states, had = (torch.get_rng_state().tolist(), generator.get_state().tolist()), held()
    seen: list[Any] = []
    advice = advise(loader, 0.8, step=lambda batch: seen.append(batch[1].clone()))
    assert (torch.get_rng_state().tolist(), generator.get_state().tolist()) == states
    nothing_new(had)
    assert {len(labels) for labels in seen} == {BATCH}
    assert torch.cat(seen[:4]).tolist() != sorted(torch.cat(seen[:4]).tolist())
    numbers = advice.numbers
    assert numbers["samples"] == N
    assert numbers["sample_bytes"] == 4 * 3 * 8 * 8 + 8
    assert numbers["workers"] == workers
    assert numbers["load_seconds"] == pytest.approx(N * LOAD, rel=0.5)
    assert numbers["source_share"] > 0.7
    waits = {wait["name"]: wait["seconds"] for wait in numbers["waits"]}
    assert waits["read"] > waits.get("decode", 0)
    assert numbers["waiting"] > 0.8
    assert numbers["today_seconds"] > 0.8 * numbers["load_seconds"] / max(workers, 1)
    assert int(tries(advice)["workers"]["setting"].removeprefix("num_workers=")) > workers
    assert tries(advice)["cache"]["seconds"] < 0.5 * numbers["today_seconds"]


def test_no_more_workers_than_the_step_needs():
    """TestTriesHold of internal/advise shows that epochs then take as long as it says."""
    told = tries(advise(DataLoader(Slow(), BATCH, num_workers=1), 1.0, step_seconds=0.025))["workers"]
    assert (
        told["setting"] == "num_workers=2"
    )  # a batch takes 0.035 s of loads, and two workers hide them behind the step


@pytest.mark.parametrize("workers", [0, 1])
def test_the_stored_sample_counts(workers: int):
    """What the transform of a dataset gets is stored, and not what it makes, which is 16 times as large."""
    dataset = Transformed()
    dataset.transform = enlarged
    numbers = advise(DataLoader(dataset, BATCH, num_workers=workers), 0.5).numbers
    assert dataset.transform is enlarged
    assert numbers["sample_bytes"] == 3 * 8 * 8
    assert numbers["load_seconds"] == pytest.approx(N * LOAD, rel=0.5)
    assert numbers["points"][-1]["limit"] == "augment="
    assert {"read", "augment"} <= {wait["name"] for wait in numbers["waits"]}


class Fixed(Transformed):
    @property
    def transform(self) -> Any:
        return enlarged


def test_a_transform_that_cannot_be_set():
    """It is a part of the load."""
    numbers = advise(DataLoader(Fixed(), BATCH), 0.5).numbers
    assert numbers["sample_bytes"] == 4 * 4 * 3 * 8 * 8
    assert numbers["load_seconds"] == pytest.approx(2 * N * LOAD, rel=0.5)


def slow_collate(samples: Any) -> Any:
    time.sleep(0.05)
    return torch.utils.data.default_collate(samples)


def test_a_slow_collate():
    advice = advise(DataLoader(Slow(), BATCH, num_workers=1, collate_fn=slow_collate), 0.8)
    assert advice.numbers["points"][-1]["limit"] == "collating"
    assert "a cheaper collate_fn=" in tries(advice)["augment"]["setting"]


@pytest.mark.parametrize(
    ("samples", "arguments"),
    [
        (N, dict(batch_size=None)),
        (N // 2, dict(batch_size=BATCH)),  # a Subset
        (N, dict(batch_sampler=BatchSampler(RandomSampler(range(N)), BATCH, drop_last=False))),
        (N, dict(batch_size=BATCH, num_workers=2, persistent_workers=True, timeout=30, prefetch_factor=3)),
    ],
    ids=["no batches", "a Subset", "a batch sampler", "kept workers"],
)
def test_other_loaders(samples: int, arguments: Any):
    dataset: Any = Slow() if samples == N else Subset(Slow(), range(samples))
    numbers = advise(DataLoader(dataset, **arguments), 0.5).numbers
    assert numbers["samples"] == samples
    assert numbers["load_seconds"] == pytest.approx(samples * LOAD, rel=0.5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_raises(workers: int):
    had = held()
    with pytest.raises(ZeroDivisionError):
        advise(DataLoader(Of(lambda index: 1 // 0, N), BATCH, num_workers=workers), 0.5)
    nothing_new(had)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from range(N)


def test_an_iterable_dataset_is_refused():
    for kind in (DataLoader, stocached.torch.DataLoader):
        with pytest.raises(InvalidError, match="reads samples by their index, and an iterable dataset has none"):
            advise(kind(Stream(), BATCH))
    with pytest.raises(InvalidError, match="the dataset is empty"):
        advise(DataLoader(Subset(Slow(), []), BATCH))


@pytest.mark.parametrize("size", [None, "8MiB"])
@pytest.mark.parametrize("workers", [0, 2])
def test_our_torch_loader(workers: int, size: str | None):
    """Its workers make whole batches, as torch's do, or load samples into a cache."""
    loader = stocached.torch.DataLoader(Slow(), BATCH, shuffle=True, num_workers=workers, size=size)
    numbers = advise(loader, 0.8).numbers
    assert numbers["samples"] == N
    assert numbers["load_seconds"] == pytest.approx(N * LOAD, rel=0.5)
    assert "read" in {wait["name"] for wait in numbers["waits"]}
    loader.close()
