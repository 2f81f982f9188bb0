"""Rows of a pipe in `stocached.torch.DataLoader`, as tensors."""

from __future__ import annotations

import itertools

import pytest
from stream_files import Files, Item, collect, expected, lengths_of, streams
from torch_helpers import TORCH_WARNINGS, torch

from stocached import source
from stocached.streams import Streams

if torch is not None:
    from stocached.torch import DataLoader

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def loader(lengths, rows, *, known=False, seed=0, **settings):
    pipe = source(range(len(lengths))).shuffle(seed=seed).flat_map(Files(lengths))
    settings = {"multiprocessing_context": "fork" if settings.get("num_workers") else None} | settings
    return DataLoader(pipe.batch(rows, rows=True, lengths=lengths if known else None), **settings)


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


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_tensors_of_the_same_batches(known, workers):
    lengths = lengths_of(4)
    ours, theirs = (
        loader(lengths, 4, known=known, num_workers=workers, seed=2),
        streams(lengths, 4, known=known, seed=2),
    )
    assert ours.batch_size == 4
    for epoch in range(2):
        if known:
            assert len(ours) == len(theirs)
        assert collect(tensors(ours)) == expected(lengths, 4, epoch=epoch, seed=2) == collect(theirs)
        assert ours.state_dict() == theirs.state_dict()


def test_states_and_epochs():
    lengths = lengths_of(4)
    first, theirs = loader(lengths, 4, num_workers=2), streams(lengths, 4)
    collect(tensors(first), 2)
    collect(theirs, 2)
    assert first.state_dict() == theirs.state_dict()
    second = loader(lengths, 4, num_workers=1)
    second.load_state_dict(theirs.state_dict())
    assert collect(tensors(second)) == expected(lengths, 4)[2:]
    second.set_epoch(3)
    batches = iter(second)
    second.sampler.set_epoch(5)  # as frameworks do, after they have made the iteration
    assert collect(tensors(batches)) == expected(lengths, 4, epoch=5)


def test_kept_tensors_never_change():
    kept, want = [], []
    for batch in loader([40] * 8, 4, num_workers=2):
        kept.append(batch.items.data[1:])
        want.append(kept[-1].numpy().tobytes())
    assert [one.numpy().tobytes() for one in kept] == want


def test_a_function_of_batches_gets_tensors():
    pipe = source(range(4)).flat_map(Files([3] * 4)).batch(2, rows=True).map(lambda batch: batch.items.data.float())
    assert [tuple(batch.shape) for batch in DataLoader(pipe)] == [(2, 4, 3)] * 6


def test_items_may_be_tensors():
    files = [[torch.full((3,), float(k)) for k in range(n)] for n in (2, 3)]
    for workers in (0, 2):
        pipe = source(files).flat_map(list).batch(2, rows=True)
        batches = list(DataLoader(pipe, num_workers=workers, multiprocessing_context="fork" if workers else None))
        assert torch.stack([batch.items for batch in batches])[:, :, 0].tolist() == [[0, 0], [1, 1], [0, 2]]
        assert [batch.mask.tolist() for batch in batches] == [[True, True], [True, True], [False, True]]
    arrays = list(Streams(files, 2, shuffle=False))
    assert [batch.items.tolist() for batch in arrays] == [batch.items.tolist() for batch in batches]


def test_rank_of_torch_distributed(tmp_path):
    """It may begin after the loader was made."""
    ours = loader([5] * 4, 2)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        theirs = streams([5] * 4, 2)
        assert (theirs.rank, theirs.world_size) == (0, 1)
        assert collect(tensors(itertools.islice(ours, 3))) == collect(theirs, 3)
    finally:
        torch.distributed.destroy_process_group()
