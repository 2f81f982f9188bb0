"""Streams as an IterableDataset in torch's own DataLoader."""

from __future__ import annotations

import itertools

import pytest
from stateful_files import ShuffledFiles, logged
from stream_files import Item, collect, expected, lengths_of, streams
from torch_helpers import TORCH_WARNINGS, torch

from stocached import InvalidError, StreamError
from stocached.streams import Streams, join

if torch is not None:
    from torch.utils.data import DataLoader, IterableDataset

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def tensors(batches):
    """Checks that the values are tensors, and returns batches that `collect` accepts."""
    for batch in batches:
        assert isinstance(batch.items, Item)
        assert batch.items.data.dtype is torch.uint8
        assert batch.mask.dtype is torch.bool
        assert batch.rows.dtype is torch.int64
        yield batch._replace(
            items=Item(
                batch.items.data.numpy(),
                {"file": batch.items.name["file"].numpy(), "k": tuple(k.numpy() for k in batch.items.name["k"])},
            )
        )


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_contiguous_in_torch_s_own_loader(known, workers):
    """Whole batches made of parts. A worker of torch reads each part, and the assignment is the
    same as without workers."""
    for seed in range(3):
        lengths = lengths_of(seed)
        dataset = streams(
            lengths, 4, known=known, groups=1 if known or workers < 2 else 4, uneven=True, seed=seed
        ).dataset()
        assert isinstance(dataset, IterableDataset)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        want = expected(lengths, 4, dataset.streams.groups, seed=seed)
        if workers < 2 or known:
            assert collect(tensors(join(loader))) == want
        else:  # workers end one by one
            parts = {}
            for batch in tensors(loader):
                parts[batch.step, int(batch.rows[0])] = collect([batch])[0]
            share = 4 // workers
            assert parts == {
                (step, row): rows[row : row + share]
                for step, rows in enumerate(want)
                for row in range(0, 4, share)
                if any(any(later[row : row + share]) for later in want[step:])
            }


def test_own_workers_below_torch_s_loader():
    lengths = lengths_of(4)
    loader = DataLoader(streams(lengths, 4, num_workers=3).dataset(), batch_size=None)
    assert collect(tensors(loader)) == expected(lengths, 4)
    assert collect(tensors(loader)) == expected(lengths, 4, epoch=1)


def test_epochs_and_states_in_workers():
    lengths = lengths_of(4)
    loader = DataLoader(
        streams(lengths, 4, known=True).dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    loader.dataset.set_epoch(3)
    assert collect(tensors(join(loader))) == expected(lengths, 4, epoch=3)
    first = streams(lengths, 4, known=True)
    collect(first, 2)
    loader.dataset.load_state_dict(first.state_dict())
    assert collect(tensors(join(loader))) == expected(lengths, 4)[2:]
    lasting = DataLoader(
        streams(lengths, 4, known=True).dataset(),
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in range(3):
        assert collect(tensors(join(lasting))) == expected(lengths, 4, epoch=epoch)


def test_states_of_readers_in_workers(tmp_path):
    """Each worker of torch gives its rows' files their states back."""
    lengths, log = [9, 3, 0, 12, 1, 7, 5, 10], tmp_path / "log"
    first, second = (
        Streams(range(8), 4, ShuffledFiles(lengths, log), lengths=lengths, num_workers=workers)
        for workers, log in ((2, None), (0, log))
    )
    batches = iter(first)
    last = [next(batches) for _ in range(4)][-1]
    opened = zip(last.files.tolist(), last.positions.tolist())
    second.load_state_dict(first.state_dict())
    loader = DataLoader(second.dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for batch, other in itertools.zip_longest(batches, join(loader)):
        assert other.items["at"].tolist() == batch.items["at"].tolist()
        assert other.items["draw"].tolist() == batch.items["draw"].tolist()
    given = sorted(file for file, number, _ in logged(log) if number == -1)
    assert given == sorted(file for file, item in opened if item + 1 < lengths[file])


def test_workers_that_cannot_share_the_rows():
    for settings, workers, message in (
        ({}, 2, "lengths are not known: say lengths=, or groups=2"),
        ({"known": True}, 3, "batch_size=4 rows cannot be dealt to 3 workers"),
    ):
        with pytest.raises(InvalidError, match=message):
            streams([5] * 8, 4, **settings).part(0, workers)  # the part that a worker of torch reads


def test_join_refuses_what_does_not_belong_together():
    batches = list(streams([5] * 8, 2, known=True, rank=1, world_size=2))
    other = list(streams([5] * 8, 2, known=True, rank=0, world_size=2))
    assert [batch.rows.tolist() for batch in join(part for pair in zip(other, batches) for part in pair)] == [
        [0, 1, 2, 3]
    ] * len(batches)
    for parts in ([batches[0], other[0]], [other[0], batches[0], other[1], other[2]]):
        with pytest.raises(StreamError, match="has rows"):
            list(join(parts))
    assert list(join([])) == []


def test_items_may_be_tensors():
    files = [[torch.full((3,), float(k)) for k in range(n)] for n in (2, 3)]
    batches = list(Streams(files, 2, shuffle=False, num_workers=2, multiprocessing_context="fork").dataset())
    assert torch.stack([batch.items for batch in batches])[:, :, 0].tolist() == [[0, 0], [1, 1], [0, 2]]
    assert [batch.mask.tolist() for batch in batches] == [[True, True], [True, True], [False, True]]


def test_rank_of_torch_distributed(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        loader = streams([5] * 4, 2)
        assert (loader.rank, loader.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
