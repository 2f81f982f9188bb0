"""States of loaders with persistent workers, whose base seed torch draws only in their first
epoch."""

import pytest
from torch_helpers import TORCH_WARNINGS, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def noisy(sample):
    return torch.stack([sample, torch.randint(10**9, ())])


def make(generator, workers=2, kept=True):
    from stocached.torch import DataLoader

    if generator is None:
        torch.manual_seed(3)
    else:
        generator = torch.Generator().manual_seed(generator)
    return DataLoader(
        torch.arange(40),
        4,
        shuffle=True,
        num_workers=workers,
        augment=noisy,
        persistent_workers=kept,
        generator=generator,
    )


@pytest.mark.parametrize(
    ("generator", "epoch", "closed"),
    [(None, 0, False), (None, 1, True), (3, 0, True), (3, 1, False)],  # None: the global one
)
def test_an_epoch_goes_on_with_any_workers(generator, epoch, closed):
    """Closing the loader ends its workers. The unfinished epoch keeps their seeds."""
    with_all = make(generator)
    epochs = [[batch.tolist() for batch in with_all] for _ in range(3)]
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
        assert got + [batch.tolist() for batch in second] == epochs[epoch], f"{workers} workers"
        if kept and generator is not None:
            assert [batch.tolist() for batch in second] == epochs[epoch + 1], f"the next epoch, {workers} workers"
        second.close()
