"""BlockSampler: blocks of neighbouring samples in a random order, shuffled within some of them at a
time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from .._common.errors import InvalidError
from .._order.order import Order, Shard
from ._checksum import crc32c
from ._indices import IndexSet

_CHUNK = 4096  # indices that are asked for at a time


class BlockSampler:
    """Gives the indices of an epoch, as a sampler of torch's DataLoader and of ours: storage is
    read about block by block, and yet a sample comes beside others of `window` blocks. The order is
    that of kind blocks in docs/spec/order.md over the positions in `indices`: the same in every
    process, for any number of ranks.

    Rank r of R takes every R-th position from r on. Call set_epoch before each epoch, as with
    torch's DistributedSampler. For one thread."""

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
        """indices: what is given, in the order in which it lies in storage: a number n for 0..n-1,
        or (global) indices.
        block_size: of them a block; for a storage in block files its block_samples(). window:
        blocks that are shuffled at a time.
        shuffle: False gives them in their order. seed: 0 to 2**64 - 1.
        ends: where the samples do not divide by world_size: "uneven": some ranks give one more;
        "pad": those begin again at the start; "drop": the last ones are left out."""
        self._indices = (
            np.arange(indices)
            if isinstance(indices, (int, np.integer))
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
        self.shard(0)  # says what cannot be

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch: from its begin, unless load_state_dict said that it goes
        on in the middle of it."""
        number = operator.index(epoch)
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
        """Where the epoch is, equal on all ranks when each has given as many. A loader that
        prefetches takes more indices than its user has seen: `given` says how many of the last pass
        were used up; None: all that were given."""
        position = (
            self._start
            if self._last is None
            else self._last.position(self._given if given is None else operator.index(given))
        )
        return {"version": 1, "epoch": self.epoch, "position": position, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next pass continues where the state was taken, also with another number of ranks.
        Raises InvalidError if it was of other indices or settings."""
        wrong = {
            key: (state.get(key), value)
            for key, value in {"version": 1, **self._settings()}.items()
            if state.get(key) != value
        }
        if wrong:
            said = ", ".join(f"{key} is {here} here and {there} there" for key, (there, here) in wrong.items())
            raise InvalidError(
                f"the state is of another order: {said}; give the same indices and settings, or begin the epoch again"
            )
        self.epoch, self._start = operator.index(state["epoch"]), operator.index(state["position"])
        self._last = None

    @functools.cached_property
    def _crc(self) -> str:
        return f"{crc32c(self._indices.astype('<i8').tobytes()):08x}"

    def _settings(self) -> dict[str, Any]:
        order = self.order
        return {
            "samples": order.samples,
            "kind": order.kind,
            "seed": order.seed,
            "window": order.window,
            "block": order.block,
            "indices_crc32c": self._crc,
        }
