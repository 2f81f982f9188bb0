"""Tensors of samples are written into the rows of a batch, several at once and one by one. Random
numbers of torch in fast samples."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Of
from torch_helpers import TORCH_WARNINGS, DataLoader, torch

from stocached._samples.batch_layout import Layout

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS]

KINDS = [
    "uint8",
    "float32",
    "bfloat16",
    "bool",
    "int64",
    "0-d",
    "transposed",
    "expanded",
    "needs grad",
    "conjugated",
    "negated",
    "empty",
]


def tensor(kind: str, k: int):
    values = (torch.arange(24) * 7 + k) % 251
    if kind in ("uint8", "float32", "bfloat16", "int64"):
        return values.to(getattr(torch, kind)).reshape(2, 3, 4)
    return {
        "bool": lambda: values % 2 == 0,
        "0-d": lambda: values[3],
        "transposed": lambda: values.reshape(4, 6).T,
        "expanded": lambda: values[:1].expand(5),
        "needs grad": lambda: values.float().requires_grad_(),
        "conjugated": lambda: torch.complex(values.float(), values.float() + 1).conj(),
        "negated": lambda: torch.complex(values.float(), values.float() + 1).conj().imag,
        "empty": lambda: values[:0],
    }[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_several_at_once_lie_as_each_alone(kind):
    samples = [(tensor(kind, k), k) for k in range(3)]
    layout = Layout.of(samples[0], 8)
    together, alone = (
        layout.arrays(np.zeros(layout.bytes, np.uint8), 8),
        layout.arrays(np.zeros(layout.bytes, np.uint8), 8),
    )
    for row, sample in zip([2, 3, 4], samples):
        layout.write(alone, row, sample)
    assert layout.write_many(together, [2, 3, 4], samples)
    for one, two in zip(together, alone):
        np.testing.assert_array_equal(one.view(np.uint8), two.view(np.uint8))


def test_what_cannot_be_done_at_once_is_not():
    first = torch.zeros(3)
    layout = Layout.of(first, 8)
    arrays = layout.arrays(np.zeros(layout.bytes, np.uint8), 8)
    for other in (
        torch.zeros(4),
        torch.zeros(3, 1),
        torch.zeros(3, dtype=torch.float64),
        torch.nn.Parameter(first),
        np.zeros(3, np.float32),
        first.to_sparse(),
    ):
        assert not layout.write_many(arrays, [0, 1], [first, other])
        assert not layout.write_many(arrays, [0, 1], [other, other])


def flips(index):
    x = torch.arange(12).reshape(3, 4) + index
    return (x.flip(0) if index % 3 and torch.rand(()) < 0.5 else x), index


def test_random_tensors_do_not_depend_on_the_workers():
    def read(workers):
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(Of(flips, 300), 16, shuffle=True, num_workers=workers, generator=generator)
        return [torch.cat(column) for column in zip(*loader)]

    (x, y), (x2, y2) = read(1), read(3)
    assert torch.equal(y, y2)
    assert torch.equal(x, x2)
    flipped = (x[:, 0, 0] != y).float().mean().item()
    assert 0.2 < flipped < 0.5  # a third of the samples is never flipped
