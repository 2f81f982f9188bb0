"""Epochs with PyTorch's own DataLoader around stocached.torch.CachedDataset (make demo
ARGS=--torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import stocached
import stocached.torch
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from demo.loading import load


class ImageFiles(Dataset[torch.Tensor]):
    """A plain map-style dataset, as users have it without stocached."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(load(self.files[index]).copy())  # a copy, because torch has no read-only tensors


class GivenOrder(Sampler[int]):
    """The order of the current epoch, so that all runs read the same samples in the same order."""

    order: Sequence[int] = ()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class LoaderPool:
    """The interface of workers.WorkerPool on a DataLoader with persistent workers."""

    def __init__(self, files: Sequence[Path], cache: stocached.Cache | None, workers: int, batch: int) -> None:
        dataset: Dataset[torch.Tensor] = ImageFiles(files)
        if cache is not None:
            dataset = stocached.torch.CachedDataset(dataset, cache)
        self._sampler = GivenOrder()
        self._loader = DataLoader(
            dataset, batch_size=batch, sampler=self._sampler, num_workers=workers, persistent_workers=True
        )

    def epoch(self, order: Sequence[int], progress: Callable[[int], None]) -> int:
        self._sampler.order = order
        total = 0
        for batch in self._loader:
            total += int(batch.sum(dtype=torch.int64))
            progress(len(batch))
        return total

    def close(self) -> None:
        del self._loader  # ends its workers
