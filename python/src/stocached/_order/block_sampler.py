"""BlockSampler: blocks of neighbouring samples in a random order, shuffled within some of them at a
time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .._common.cached import cached_property
from .._common.checksum import crc32c
from .._common.errors import InvalidError, StateError
from .._common.numbers import number_in, same, whole
from .indices import IndexSet
from .order import Order, Shard

_CHUNK = 4096  # indices that are asked for at a time


class BlockSampler:
    """Gives the indices of an epoch, as a sampler of torch's DataLoader and of ours. Storage is read about block by
    block, and each batch mixes the samples of `window` blocks. It is the order of the kind `blocks` in
    docs/spec/order.md over the positions in `indices`, the same in every process and for any number of ranks.

    Rank r of R takes every R-th position from r on. Call set_epoch before each epoch, as with torch's
    DistributedSampler. For one thread."""

    def __init__(
        self,
        indices: int | IndexSet | Sequence[int],
        block_size: int = 1,
        shuffle: bool = True,
        window: int = 8,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        ends: Literal["uneven", "pad", "drop"] = "uneven",
    ) -> None:
        """indices: the samples to give, in the order in which they lie in storage: (global) indices, or a number n for
            0..n-1.
        block_size: samples of a block. For block files, their block_samples(). window: blocks that are shuffled
            together.
        shuffle: False gives the samples in their order. seed: 0 to 2**64 - 1.
        ends: if the samples do not divide by world_size: "uneven": some ranks give one more. "pad": ranks with one less
            begin again. "drop": the last samples are left out."""
        self._indices = (
            np.arange(whole("indices", indices, 1, 2**40))
            if hasattr(indices, "__index__") and not getattr(indices, "ndim", 0)
            else np.asarray(getattr(indices, "indices", indices))
        )
        if self._indices.ndim != 1 or not self._indices.size or self._indices.dtype.kind not in "iu":
            raise InvalidError(
                f"indices have shape {self._indices.shape} and dtype {self._indices.dtype}; want one or more whole numbers"
            )
        n = int(self._indices.size)
        self.order = Order(n, "blocks", seed, window, block_size) if shuffle else Order(n, "sequential", seed)
        self.rank, self.world_size = rank, world_size
        self.ends: Literal["uneven", "pad", "drop"] = ends
        self.epoch = 0
        self._start = 0  # position at which the next pass begins
        self._last: Shard | None = None  # what the last pass went through
        self._given = 0  # by it
        self.shard(0)  # raises InvalidError for impossible numbers

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass. It begins at the epoch's start, except for the epoch of a loaded state,
        which continues from the state."""
        number = whole("epoch", epoch)
        if number != self.epoch:
            self.epoch, self._start, self._last = number, 0, None

    def __len__(self) -> int:
        """Indices that the next pass gives this rank."""
        return len(self.shard(self._start))

    def shard(self, start: int) -> Shard:
        """What this rank reads of the epoch from a position on."""
        return self.order.epoch(self.epoch).shard(self.rank, self.world_size, ends=self.ends, start=start)

    def __iter__(self) -> Iterator[int]:
        shard = self._last = self.shard(self._start)
        self._start, self._given = 0, 0  # a pass after this one is a whole one
        for first in range(0, len(shard), _CHUNK):
            for index in self._indices[shard.indices(first, _CHUNK)].tolist():
                self._given += 1
                yield index

    def state_dict(self, given: int | None = None) -> dict[str, Any]:
        """The place in the epoch. It is the same on all ranks that have given the same number of indices.

        given: indices of the last pass that the program has used; a loader that prefetches takes more. None: all."""
        position = (
            self._start
            if self._last is None
            else self._last.position(self._given if given is None else whole("given", given))
        )
        return {"version": 1, "epoch": self.epoch, "position": position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass continues where the state was taken, also with another number of ranks.
        Raises InvalidError if it was of other indices or settings, StateError if it is damaged."""
        if not isinstance(state, Mapping):
            raise StateError(f"this is no state of a BlockSampler: {state!r:.200}")
        wrong = {
            key: (state.get(key), value)
            for key, value in {"version": 1, **self._settings()}.items()
            if not same(state.get(key), value)
        }
        if wrong:
            said = ", ".join(f"{key} is {here} here and {there} there" for key, (there, here) in wrong.items())
            raise InvalidError(
                f"the state is of another order: {said}; give the same indices and settings, or begin the epoch again"
            )
        epoch, position = number_in(state, "epoch", 2**64 - 1), number_in(state, "position")
        # Raises if the position is none.
        self.order.epoch(epoch).shard(self.rank, self.world_size, ends=self.ends, start=position)
        self.epoch, self._start = epoch, position
        self._last = None

    @cached_property
    def _crc(self) -> str:
        return f"{crc32c(self._indices.astype('<i8').tobytes()):08x}"

    def _settings(self) -> dict[str, Any]:
        return {**vars(self.order), "indices_crc32c": self._crc}
