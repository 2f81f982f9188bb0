"""The samples that a loader reads next."""

from __future__ import annotations

import copy
import itertools
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .._common.errors import StateError
from .._common.numbers import whole
from .._common.ranks import rank_of
from .._order.epoch import Shard
from .._order.order import AnyOrder, WeightedOrder
from .._workers.stateful import give_back, is_stateful, state_of

if TYPE_CHECKING:
    from typing_extensions import Self

Ends = Literal["uneven", "pad", "drop", "cycle"]  # "cycle": of the rows of a pipe alone

_DEEPEST = 8  # nested batch samplers


class OrderSampler:
    """The samples of one rank in an order of stocached, as a sampler for any loader.

    The epoch is that of `set_epoch`, or 0. `start` is the position from which all ranks continue,
    for one epoch."""

    def __init__(
        self, order: AnyOrder, rank: int | None = None, world_size: int | None = None, ends: Ends | None = None
    ) -> None:
        """rank, world_size: None: each use calls `rank_of`, as the program may initialise
            torch.distributed after it has made the loader.
        ends: None: "pad" for several ranks, else "uneven". Raises InvalidError."""
        self.order = order
        self._ranks, self._ends = (rank, world_size), ends
        self.epoch = 0
        self.start = 0
        if self._ranks == (None, None):
            order.epoch(0)  # raises InvalidError now
        else:
            self.shard()

    @property
    def rank(self) -> int:
        return rank_of(*self._ranks)[0]

    @property
    def world_size(self) -> int:
        return rank_of(*self._ranks)[1]

    @property
    def ends(self) -> Ends:
        return self._ends or ("pad" if self.world_size > 1 else "uneven")

    def shard(self, epoch: int | None = None, start: int = 0) -> Shard:
        """The rank's shard of an epoch from a position on. None: of the current epoch, from `start` on."""
        start, epoch = (self.start, self.epoch) if epoch is None else (start, epoch)
        ends: Any = self.ends  # "cycle" comes to no other order than that of rows
        return self.order.epoch(epoch).shard(self.rank, self.world_size, ends=ends, start=start)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration of loaders that use this sampler."""
        self.begin(whole("epoch", epoch))
        for loader in list(vars(self).get("_loaders", {}).values()):
            loader._sampler_set_epoch(self.epoch)

    def again(self) -> Self:
        """A sampler of the same samples with an epoch of its own."""
        made = copy.copy(self)
        made.begin(0)
        return made

    def begin(self, epoch: int, start: int = 0) -> None:
        """Sets the epoch for the loader that calls this, not for other loaders."""
        self.epoch, self.start = epoch, start

    def tell(self, loader: Any) -> None:
        """From now on `set_epoch` also sets the epoch of this loader."""
        vars(self).setdefault("_loaders", weakref.WeakValueDictionary())[id(loader)] = loader

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_loaders"}

    def __len__(self) -> int:
        return len(self.shard(self.epoch))

    def __iter__(self) -> Iterator[int]:
        return iter(self.shard())


def prefers_some(sampler: Any) -> bool:
    """Whether a sampler reads some samples more often than others in each epoch: a WeightedOrder, and torch's
    WeightedRandomSampler with replacement."""
    if isinstance(sampler, OrderSampler):
        return isinstance(sampler.order, WeightedOrder)
    return getattr(sampler, "weights", None) is not None and bool(getattr(sampler, "replacement", False))


def order_within(sampler: Any) -> OrderSampler | None:
    """The OrderSampler: `sampler` itself, or one inside batch samplers of a framework; else
    None."""
    for _ in range(_DEEPEST):
        if sampler is None or isinstance(sampler, OrderSampler):
            return sampler
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(sampler, "batch_sampler", None) if inner is None else inner
    return None


def with_epochs(*samplers: Any) -> list[Any]:
    """The samplers of programs and of torch that have set_epoch."""
    return [sampler for sampler in samplers if callable(getattr(sampler, "set_epoch", None))]


def batches_of(shard: Shard, batch_size: int, drop_last: bool) -> Iterator[npt.NDArray[np.int64]]:
    """The indices of one batch after the other."""
    chunk = max(1, 4096 // batch_size)
    count = shard.batches(batch_size, drop_last)
    for first in range(0, count, chunk):
        many = shard.indices(first * batch_size, min(chunk, count - first) * batch_size)
        for at in range(0, many.size, batch_size):
            yield many[at : at + batch_size]


def listed(wanted: Any) -> Any:
    """The indices of a batch as a list or array. A sampler may give an iterator, which works only
    once."""
    return wanted if isinstance(wanted, (list, tuple)) or hasattr(wanted, "__array__") else list(wanted)


class Batcher:
    """Batches of a sampler's indices, as torch's BatchSampler makes them."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        return _batches(iter(self.sampler), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


def _batches(indices: Iterator[Any], batch_size: int, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(indices, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield batch


class Sampled:
    """The indices of one batch after the other, from a sampler of torch or of the user. It keeps
    the sampler's states, as the loader reads more batches than the training loop has got.

    index: a sampler, or a batch sampler. every: batches between two states; 0 or None: only the
    first state.
    state: to continue from."""

    def __init__(self, index: Any, every: int | None, state: Mapping[str, Any] | None = None) -> None:
        plain = isinstance(index, Batcher) or (type(index).__name__, type(index).__module__) == (
            "BatchSampler",
            "torch.utils.data.sampler",
        )
        self._sampler = index.sampler if plain else index  # a plain batch sampler has no state of its own
        self._every = every
        self._iterator: Any = None
        self._iterator_state = None
        self._batch_size = index.batch_size if plain else None
        self._ended = False  # the sampler has no more indices; its state may be of the next epoch already
        self.count = 0
        if state is not None:
            self.count, self._iterator_state = int(state["_sampler_iter_yielded"]), state["_sampler_iter_state"]
            self._ended = bool(state["_sampler_ended"])
            give_back(self._sampler, state["_index_sampler_state"], "the sampler")
        self._states: deque[tuple[int, bytes]] = deque()
        self._note()
        if self._ended:
            self._batches: Iterator[Any] = iter(())
        elif plain:  # as in torch, the first batch calls iter(sampler), which may draw random numbers
            self._batches = self._batched(index.batch_size, index.drop_last)
        else:
            self._batches = self._iterate()

    def _iterate(self) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(self._sampler)
        give_back(iterator, self._iterator_state, "the sampler's iterator")
        self._iterator = iterator
        return iterator

    def _batched(self, batch_size: int, drop_last: bool) -> Iterator[Any]:
        yield from _batches(self._iterate(), batch_size, drop_last)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        wanted = next(self._batches)
        self._ended = self._batch_size is not None and len(wanted) < self._batch_size
        self.count += 1
        if self._every and self.count % self._every == 0:
            self._note()
        return wanted

    def _note(self) -> None:
        """Keeps a state, if the sampler or its iterator has one. Pickled, as the sampler may change
        its objects."""
        if is_stateful(self._sampler) or is_stateful(self._iterator) or self._iterator_state is not None:
            state = {
                "_index_sampler_state": state_of(self._sampler),
                "_sampler_iter_state": self._iterator_state if self._iterator is None else state_of(self._iterator),
                "_sampler_iter_yielded": self.count,
                "_sampler_ended": self._ended,
            }
            self._states.append((self.count, pickle.dumps(state, pickle.HIGHEST_PROTOCOL)))

    def forget(self, count: int) -> None:
        """Drops the states that are older than `to_state(count)` needs."""
        while len(self._states) > 1 and self._states[1][0] <= count:
            self._states.popleft()

    def to_state(self, count: int) -> dict[str, Any]:
        """The sampler's part of a loader's state after `count` batches: its last state before.
        Empty: the sampler has no state."""
        self.forget(count)
        state: dict[str, Any] = pickle.loads(self._states[0][1]) if self._states and self._states[0][0] <= count else {}
        return state


def numbered(wanted: Iterator[Any]) -> tuple[Iterator[Any], bool]:
    """The same batches, and whether the first one's indices are numbers. Names and tuples go to the
    dataset unchanged, a whole batch at a time."""
    first = next(wanted, wanted)
    if first is wanted:
        return iter(()), True
    first = listed(first)
    return _after(first, wanted), all(
        hasattr(type(index), "__index__") and not getattr(index, "ndim", 0) for index in first
    )


def noting_epoch(wanted: Iterator[Any], note: Callable[[], None]) -> Iterator[Any]:
    """Notes the sampler's epoch when the first batch is planned: a framework may set it after the
    iteration was made."""
    note()
    yield from _rest(wanted)


def skipped(wanted: Iterator[Any], count: int) -> Iterator[Any]:
    """The batches without the first `count`. Draws one more now, so that the sampler draws its
    first random numbers now."""
    for k in range(count):
        if next(wanted, wanted) is wanted:
            raise StateError(f"the state was taken after {count} batches, and this epoch has {k}")
    first = next(wanted, wanted)
    return iter(()) if first is wanted else _after(first, wanted)


def _after(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from _rest(rest)


def _rest(wanted: Iterator[Any]) -> Iterator[Any]:
    """The rest of an iterator. A for loop would call __iter__, which restarts the epoch in
    Lightning's batch sampler."""
    while (batch := next(wanted, wanted)) is not wanted:
        yield batch
