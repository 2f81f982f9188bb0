"""Batches by size and rows of tokens of tensors, in a DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached import InvalidError, source

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]


def items() -> list[Any]:
    return [torch.arange(k % 6, dtype=torch.int64) for k in range(40)]


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_make_rows_of_tensors(workers: int):
    found = []
    for batch in DataLoader(source(items()).shuffle(seed=1).pack(8).batch(4), num_workers=workers):
        assert (batch["tokens"].dtype, batch["segments"].dtype) == (torch.int64, torch.int32)
        for row, segments, positions in zip(*batch.values()):
            assert torch.equal(row, positions.to(torch.int64))
            found += [row[segments == number].tolist() for number in range(1, int(segments.max()) + 1)]
    assert sorted(found) == sorted(item.tolist() for item in items() if len(item))


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_make_padded_batches_by_size(workers: int):
    shapes = [
        tuple(batch.shape) for batch in DataLoader(source(items()).batch(20, size=len, pad=-1), num_workers=workers)
    ]
    assert all(count * longest <= 20 for count, longest in shapes)
    assert sum(count for count, _ in shapes) == len(items())


def test_tensors_and_arrays_are_not_packed_together():
    with pytest.raises(InvalidError, match="make all items alike"):
        list(source([torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64).numpy()]).pack(9))
