"""States of loaders with other orders than ours: iterable datasets, and other batch sizes."""

import pytest
from helpers import stopped
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached import StateError

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


class Parts(torch.utils.data.IterableDataset):
    """Workers have parts of different lengths, some of them empty. Each sample has a random number
    from its worker."""

    def __init__(self, count=17):
        self.count = count

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        for k in range(self.count):
            if k % 7 % workers == worker:
                yield torch.tensor([k, int(torch.randint(10**9, ()))])


def loader(count=17, **settings):
    return DataLoader(Parts(count), generator=torch.Generator().manual_seed(3), **{"batch_size": 3, **settings})


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize(
    ("workers", "settings"),
    [(1, {}), (2, {"batch_size": None}), (2, {"persistent_workers": True}), (3, {"prefetch_factor": 5})],
)
def test_an_iterable_dataset_goes_on_after_its_batches(workers, settings):
    """As many workers read the earlier batches again, with the same random numbers, and drop
    them."""
    loads = loader(num_workers=workers, **settings)
    first, second = lists(loads), lists(loads)
    assert sorted(
        k for batch in first for k, _ in ([batch] if settings.get("batch_size", 3) is None else batch)
    ) == list(range(17))
    # at the end, parts of workers have ended, and the remaining tasks give nothing
    for stop in {1, len(first) - 1, len(first)}:
        got, state = stopped(loader(num_workers=workers, **settings), stop)
        after = loader(num_workers=workers, **settings)
        torch.randint(10**9, (5,), generator=after.generator)
        after.load_state_dict(state)
        assert got + lists(after) == first, f"stopped after {stop} batches"
        if "persistent_workers" not in settings:
            assert lists(after) == second
        after.close()
    loads.close()


def test_an_iterable_dataset_without_workers():
    loads = loader()
    batches = iter(loads)
    got = [int(k) for _ in range(2) for k in next(batches)[:, 0]]
    again = loader()
    again.load_state_dict(loads.state_dict())
    got += [int(k) for batch in again for k in batch[:, 0]]
    assert got == list(range(17))
    again.load_state_dict(loads.state_dict())  # twice from one state, and once from a state taken after that
    batches = iter(again)
    next(batches)
    third = loader()
    third.load_state_dict(again.state_dict())
    assert lists(third)[0][0][0] == 9


def test_between_epochs_any_number_of_workers_goes_on():
    loads = loader(num_workers=2)
    list(loads)
    state = loads.state_dict()
    again = loader(num_workers=0, batch_size=4, in_order=False)
    again.load_state_dict(state)
    assert [batch[:, 0].tolist() for batch in again] == [[*range(k, min(k + 4, 17))] for k in range(0, 17, 4)]


def test_what_an_iterable_dataset_cannot_go_on_from():
    loads = loader(num_workers=2)
    batches = iter(loads)
    next(batches), next(batches), next(batches)
    state = loads.state_dict()
    batches.close()
    with pytest.raises(StateError, match="num_workers=2, this loader has 3"):
        loader(num_workers=3).load_state_dict(state)
    with pytest.raises(StateError, match="num_workers=2, this loader has 0"):
        loader(num_workers=0).load_state_dict(state)
    with pytest.raises(StateError, match="after 3 batches of batch_size=3, this loader's have batch_size=4"):
        loader(num_workers=2, batch_size=4).load_state_dict(state)
    shorter = loader(4, num_workers=2)
    shorter.load_state_dict(state)
    for _ in range(2):  # the loader does not forget it
        with pytest.raises(StateError, match="after batch 3 of an epoch, and the dataset has given 2"):
            iter(shorter)


def test_a_sampler_of_the_users_does_not_go_on_with_batches_of_another_size():
    data = torch.arange(53)
    first = DataLoader(data, 4, shuffle=True)
    batches = iter(first)
    next(batches)
    with pytest.raises(
        StateError, match="after 1 batches of batch_size=4, this loader's have batch_size=9: they have other samples"
    ):
        DataLoader(data, 9, shuffle=True).load_state_dict(first.state_dict())
    # With an order of ours the state is a position.
    first = DataLoader(data, 4, shuffle=True, seed=1)
    batches = iter(first)
    seen = next(batches).tolist()
    again = DataLoader(data, 9, shuffle=True, seed=1)
    again.load_state_dict(first.state_dict())
    assert sorted(seen + [int(k) for batch in again for k in batch]) == data.tolist()


# ------------------------------------------------------------ persistent workers, whose base seed torch draws only in their first epoch


def noisy(sample):
    return torch.stack([sample, torch.randint(10**9, ())])


def make(generator, workers=2, kept=True):
    if generator is None:
        torch.manual_seed(3)
    else:
        generator = torch.Generator().manual_seed(generator)
    given = {"shuffle": True, "augment": noisy, "persistent_workers": kept, "generator": generator}
    return DataLoader(torch.arange(40), 4, num_workers=workers, **given)


@pytest.mark.parametrize(
    ("generator", "epoch", "closed"),
    [(None, 0, False), (None, 1, True), (3, 0, True), (3, 1, False)],  # None: the global one
)
def test_an_epoch_goes_on_with_any_workers(generator, epoch, closed):
    """Closing the loader ends its workers. The unfinished epoch keeps their seeds."""
    with_all = make(generator)
    epochs = [lists(with_all) for _ in range(3)]
    with_all.close()

    first = make(generator)
    for _ in range(epoch):
        list(first)
    batches = iter(first)
    got = [next(batches).tolist() for _ in range(3)]
    if closed:
        first.close()
    state = first.state_dict()
    first.close()
    assert got == epochs[epoch][:3]

    for workers, kept in ((0, False), (1, True), (2, False), (3, True)):
        second = make(generator and generator + 1, workers, kept)
        torch.randint(10**9, (5,))
        second.load_state_dict(state)
        assert got + lists(second) == epochs[epoch], f"{workers} workers"
        if kept and generator is not None:
            assert lists(second) == epochs[epoch + 1], f"the next epoch, {workers} workers"
        second.close()
