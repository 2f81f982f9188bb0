"""Streams for torch's own DataLoader. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from .._common.torch_version import torch
from .batch import StreamBatch


class Streams(Protocol):
    """What is needed of `stocached.streams.Streams`."""

    def __iter__(self) -> Iterator[StreamBatch]: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def part(self, number: int, parts: int) -> Streams: ...


class StreamsDataset(torch.utils.data.IterableDataset[Any]):
    """Batches as tensors, for DataLoader(dataset, batch_size=None).

    If the DataLoader has no workers, those of the streams read. If it has W workers, each reads batch_size / W rows.
    The DataLoader then gives the parts of a step one after the other, and `stocached.streams.join` makes whole batches
    of them.
    An iteration of the DataLoader is an epoch. With workers that do not persist, call `set_epoch` before each.
    Iterating raises InvalidError if the rows do not divide by the workers, or if workers would have to tell each other
    where files end; give lengths= then.
    It has no length, because with workers there are W times as many parts. `len()` of the streams counts batches."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.streams = streams
        self._part: Streams | None = None  # streams of a worker

    def __iter__(self) -> Iterator[StreamBatch]:
        return map(_tensors, self._reads())

    def set_epoch(self, epoch: int) -> None:
        """As Streams.set_epoch."""
        self.streams.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As Streams.state_dict, of the rows of this process."""
        return self._reads().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As Streams.load_state_dict, of the rows of this process."""
        self._reads().load_state_dict(state)

    def _reads(self) -> Streams:
        """The streams that this process reads: all rows, or those of this worker of a
        DataLoader."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return self.streams
        if self._part is None:
            self._part = self.streams.part(worker.id, worker.num_workers)
        return self._part


def _tensors(batch: StreamBatch) -> StreamBatch:
    return type(batch)._make([*map(_tensor, batch[:-1]), batch.step])


def _tensor(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensor(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        children = [_tensor(child) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    return torch.from_numpy(value)
