"""The loader with a cache that a server fills: batches are fetched in the background, and the
loader tells the server what comes next."""

from __future__ import annotations

import time

import pytest
from served import expected, until
from torch_helpers import TORCH_WARNINGS, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def loader(name, **options):
    from stocached.torch import DataLoader, SourceDataset

    return DataLoader(SourceDataset(name, timeout=60), **{"batch_size": 10, "shuffle": True, "seed": 3, **options})


def rows(batches):
    return torch.cat(list(batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_served_cache(server, workers):
    server.records(95)
    loads = loader(server.name, num_workers=workers)
    for epoch in range(3):
        wanted = loads.sampler.order.epoch(epoch).indices()
        batches = [batch.clone() for batch in loads]
        assert [len(batch) for batch in batches] == [10] * 9 + [5]
        assert (rows(batches).numpy() == expected(wanted.tolist())).all()
    assert server.metric("stocached_fills_total") == 95, "a sample was read twice"


def test_the_server_reads_ahead_in_the_loaders_order(server):
    """When the loop holds the first batch, the loader has asked for two. The server knows later
    ones only from hints."""
    server.records(400)
    batches = iter(loader(server.name))
    next(batches)
    until(lambda: server.metric("stocached_fills_total") >= 100)
    batches.close()


def test_torchs_order_is_not_drawn_ahead(server):
    """The loader may ask only our own orders ahead. Another sampler would draw its random numbers
    too early."""
    server.records(400)
    batches = iter(loader(server.name, seed=None))
    next(batches)
    time.sleep(0.5)
    assert server.metric("stocached_fills_total") <= 40
    batches.close()


def test_server_that_ends_in_the_middle_of_an_epoch_is_waited_for(server):
    server.records(100)
    batches = iter(loader(server.name))
    first = [next(batches).clone() for _ in range(2)]
    server.kill()
    server.start()
    whole = torch.cat(first + [batch.clone() for batch in batches])
    assert sorted(whole[:, 0].tolist()) == sorted(expected(range(100))[:, 0].tolist())


def test_transform_runs_in_workers(server):
    from stocached.torch import DataLoader, SourceDataset

    server.records(60)
    loads = DataLoader(SourceDataset(server.name, transform=float_of), batch_size=20, num_workers=2)
    assert (rows(loads).numpy() == expected(range(60)) / 2).all()


def float_of(sample):
    return sample.float() / 2


def test_loaders_announce_their_orders_to_a_planned_cache(server):
    """Two jobs read a cache of half the samples, each in its own order. The server learns both orders,
    and keeps what they read soonest."""
    samples, epochs = 2000, 5
    server.records(samples, policy="planned", size=(4 << 20) + samples // 2 * 1024)
    assert samples * 0.48 < server.about()["slots"] < samples * 0.52
    loads = [loader(server.name, seed=seed, batch_size=20) for seed in (1, 2)]
    before = 0
    for epoch in range(epochs):
        if epoch == 2:  # the cache is full of what is read soonest
            before = server.reads()
        seen = [[], []]
        for batches in zip(*loads):
            for k, batch in enumerate(batches):
                seen[k].append(batch.clone())
            time.sleep(0.001)
        for k, load in enumerate(loads):
            wanted = load.sampler.order.epoch(epoch).indices()
            assert (rows(seen[k]).numpy() == expected(wanted.tolist())).all()
    jobs = server.about()["jobs"]
    assert sorted((job["kind"], job["seed"], job["total"]) for job in jobs) == [
        ("shuffled", 1, samples),
        ("shuffled", 2, samples),
    ]
    reads = (server.reads() - before) / (epochs - 2) / samples
    assert reads <= 0.65, f"{reads:.3f} of the dataset is read from the source in an epoch of both jobs"


def test_the_next_server_hears_of_the_order_again(server):
    """The first fetch after a restart of the server announces the order, in the middle of an epoch."""
    samples = 400
    server.records(samples, policy="planned", size=(4 << 20) + samples // 2 * 1024)
    batches = iter(loader(server.name))
    for _ in range(5):
        next(batches)
    server.kill()
    server.start()
    seen = [batch.clone() for batch in batches]
    (job,) = server.about()["jobs"]
    assert (job["seed"], job["epoch"], job["read"]) == (3, 1, 0)
    assert sum(map(len, seen)) == samples - 50
