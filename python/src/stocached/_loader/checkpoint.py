"""The states of loaders, and the start of an epoch from such a state.

With seed= or order=, a state is one position. Otherwise it holds the states of the random number
generators, of the dataset, and of its workers."""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from .._common.errors import InvalidError, StateError
from .._common.numbers import number_in, whole
from .._common.ranks import rank_of
from .._order.nodes import Deal
from .._random import base_seeds, generator_states
from .._random.sample_seeds import sample_seed
from .._workers import dataset_states
from .._workers.dataset_states import Here, Restored
from .._workers.stateful import is_stateful
from .affinity import Affinity
from .dealt_batches import dealt_batches
from .epoch_context import Begun, Generators, Progress
from .fetcher import Fetcher
from .iterator import BatchIterator
from .options import LoaderOptions
from .sampling import OrderSampler, Sampled, batches_of, noting_epoch, skipped

_DAMAGED = (TypeError, ValueError, LookupError, OverflowError, AttributeError, RuntimeError)
_VERSION = 1  # of the state of a loader
# Whole numbers of a state with seed= or order=, and of another one, with the most of each.
_NUMBERS = {True: {"epoch": 2**64 - 1, "position": 2**63 - 1}, False: {"epoch": 2**64 - 1, "batches": 2**63 - 1}}


class CheckpointedLoader(LoaderOptions):
    """The part of a loader that begins epochs, and saves and loads states."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Any
    drop_last: bool
    timeout: float
    worker_init_fn: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    settings: dict[str, Any]
    """The arguments of its constructor."""

    _iterable: bool
    _global_generator: str
    """Which of the global generators this class draws from if `generator` is None."""
    _cached: Any  # the dataset whose samples come from a cache, or None
    _order: OrderSampler | None
    _affinity: Affinity | None = None
    _kept: Any  # WorkerRuntime of persistent workers, or None

    def _reset_epochs(self) -> None:
        self._epoch = 0  # of the next iteration
        self._epoch_set: int | None = None  # that the sampler got after the last iteration was made
        self._resume: Mapping[str, Any] | None = None
        self._current: weakref.ref[BatchIterator] | None = None
        # Of kept workers: their base seed, drawn once as in torch, and how many epochs began with
        # it.
        self._seeds = (0, 0)
        self._begun: Begun | None = None  # the epoch of the last iteration
        self._progress: Progress | None = None  # in it

    # ------------------------------------------------------------ for users

    def state_dict(self) -> dict[str, Any]:
        """The place of the training loop: the batches that it has got, not those prefetched, also
        if it has left the epoch in the middle. Plain values, for any checkpoint.

        With seed= or order=: the epoch, and the position that all ranks have reached. It is the
        same on all ranks that have got the same number of batches. Any number of ranks and workers
        can continue from it.
        Otherwise: the states of the global generators at the start of the epoch and now, and how
        many batches to skip. Also the states of a dataset, iterator, sampler or batch sampler that
        has state_dict(); for the dataset, a state of each worker."""
        if self._resume is not None:
            return dict(self._resume)
        if not self._reads_in_order():
            return self._sampler_state()
        state: dict[str, Any] = {
            "version": _VERSION,
            "order": repr(self.sampler.order),
            "epoch": self._epoch,
            "position": 0,
        }
        begun, progress = self._begun, self._progress
        if begun is not None and begun.shard is not None and progress is not None and not progress.complete:
            state |= {"epoch": begun.epoch, "position": begun.shard.position(progress.samples)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration continues from the state. Without seed= and order=, the global
        generators of random, numpy.random and torch get their states of then, unless the state is
        of another rank.

        Raises StateError (ValueError) if the order, dataset, batch_size or version differs, or if
        the state holds a state of each worker's dataset and num_workers= differs."""
        ordered = self._reads_in_order()
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise StateError(f"this is no state of a loader of this version: {state!r:.200}")
        order = repr(self.sampler.order) if ordered else None
        if state.get("order") != order:
            theirs, ours = (value or "a sampler, without seed= or order=" for value in (state.get("order"), order))
            raise StateError(
                f"the state is of {theirs}, this loader has {ours}; make it with the same number of samples, order= and seed="
            )
        numbers = {key: number_in(state, key, most) for key, most in _NUMBERS[ordered].items()}
        if not ordered:
            self._check_parts(state)
            self._check_state(state)
            _put_generators(state)
        self._resume = dict(state) | numbers

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration; later iterations count up from it. seed=, order=
        and `augment` depend on it. The iteration begins at the epoch's start, except for the epoch
        of a loaded state, which continues from the state. Calls `set_epoch` of the sampler too, if
        it has one."""
        epoch, self._epoch_set = whole("epoch", epoch), None
        if self._resume is None or int(self._resume["epoch"]) != epoch:
            self._epoch, self._resume = epoch, None
            if self._running() is None and self._progress is not None and not self._progress.complete:
                self._progress = None
        for sampler in self._samplers_with_epochs():
            sampler.set_epoch(epoch)

    # ------------------------------------------------------------ defined by the loaders of NumPy and torch batches

    def _base_seed(self) -> int:
        raise NotImplementedError

    def _generator_state(self) -> Any:
        """The state of `generator`, or without one of the global generator that it draws from."""
        raise NotImplementedError

    def _put_generator_state(self, state: Any) -> None:
        """Sets a state of `_generator_state`, or `generator.plain` of it."""
        raise NotImplementedError

    def _is_pipe(self) -> bool:
        """Whether the dataset is one of torch's DataPipes."""
        return False

    def _pipes(self) -> Any:
        """The settings of DataPipes for an epoch; None for other datasets."""
        return None

    # ------------------------------------------------------------ the start of an epoch

    def _begin_epoch(self, ahead: bool) -> tuple[Iterator[Any], Begun]:
        """Begins the epoch of a loaded state, or else the next one. Also returns the indices of one batch after the
        other. ahead: the program has not asked for it yet."""
        state, self._resume = self._resume, None
        epoch = self._epoch if state is None else int(state["epoch"])
        if self._order is None:
            return self._begin_sampled(epoch, state)
        if self._reads_in_order():
            return self._begin_ordered(self._order, epoch, state, ahead)
        return self._begin_batched(self._order, epoch, state)

    def _begin_ordered(
        self, order: OrderSampler, epoch: int, state: Mapping[str, Any] | None, ahead: bool
    ) -> tuple[Iterator[Any], Begun]:
        """An epoch of an order of stocached."""
        order.begin(epoch, 0 if state is None else int(state["position"]))
        undealt = order.shard()
        shard = undealt if self._affinity is None else self._affinity.deal(undealt, self._cached.cache, ahead)
        if isinstance(shard, Deal):
            wanted: Iterator[Any] = dealt_batches(shard, self.drop_last)
        elif self.batch_size is not None:
            wanted = batches_of(shard, self.batch_size, self.drop_last)
        else:
            wanted = iter(shard)
        first = self._affinity is not None and self._affinity.dealt == 1
        return wanted, Begun(epoch, *_seeds(order, epoch), shard, first)

    def _begin_batched(
        self, order: OrderSampler, epoch: int, state: Mapping[str, Any] | None
    ) -> tuple[Iterator[Any], Begun]:
        """An epoch of an order of stocached of which a framework makes the batches."""
        if self._affinity is not None:
            raise InvalidError(
                "affinity= needs the batches of this loader, and a framework has made others of its samples; leave out affinity="
            )
        skip = 0 if state is None else int(state["batches"])
        order.begin(epoch)
        wanted = skipped(iter(self.batch_sampler), skip)
        return wanted, Begun(epoch, *_seeds(order, epoch), skipped=skip, generators=self._generators())

    def _begin_sampled(self, epoch: int, state: Mapping[str, Any] | None) -> tuple[Iterator[Any], Begun]:
        """An epoch of a sampler of torch or of the user, or of an iterable dataset. Draws random numbers where torch
        draws them."""
        samplers = self._samplers_with_epochs()
        if state is not None and state.get("sampler_epoch") is not None:
            for sampler in samplers:
                sampler.set_epoch(state["sampler_epoch"])
        self._finish_epoch(state)
        with self._generators_of(state) as in_step:
            restored = None if state is None else self._restored_snapshots(state)
            generators, pipes = self._generators(), self._pipes()
            wanted, sampled = self._sampled_batches(state)
            base_seed, turn = self._draw_seeds(state)
            if self.num_workers and not turn:
                self._pipes()  # torch's loader draws for them again after it has started its workers
            key = sample_seed(base_seed & (2**64 - 1), turn, 0)
            begun = Begun(
                epoch, base_seed, key, skipped=0 if restored is None else restored.given, generators=generators,
                turn=turn, sampled=sampled, pipes=pipes, restored=restored,
            )  # fmt: skip
            if samplers:
                wanted = noting_epoch(wanted, functools.partial(begun.note_epoch, samplers[0]))
            if state is not None and restored is not None:
                skip = restored.given - (0 if sampled is None else sampled.count)
                if not self._iterable and (skip or not in_step or state.get("sampler_asked")):
                    wanted = skipped(wanted, skip)
                self._read_again(state, restored, in_step)
        return wanted, begun

    @contextlib.contextmanager
    def _generators_of(self, state: Mapping[str, Any] | None) -> Iterator[bool]:
        """Inside, the generators have the states they had when the epoch began. Afterwards, the
        program's global generators have their own states again.

        Yields whether the global generators are now in the states they had when the loader's state
        was taken. If so, and if that was between two epochs, this epoch begins as it would without
        a state, and the generators keep what it draws."""
        if state is None:
            yield True
            return
        own, start, now = (state["generators"][key] for key in ("own", "start", "now"))
        kept = generator_states.take()
        in_step = kept == (start if now is None else now)
        leave = False
        try:
            generator_states.put(start)
            if own is not None or self.generator is not None:
                self._put_generator_state(start[self._global_generator] if own is None else own)
            yield in_step
            leave = in_step and now is None and (own is None or self.generator is not None)
        finally:
            if not leave:
                generator_states.put(kept)

    def _generators(self) -> Generators:
        """The states of the loader's own generator and of the global ones."""
        return Generators(None if self.generator is None else self._generator_state(), generator_states.Taken())

    def _sampled_batches(self, state: Mapping[str, Any] | None) -> tuple[Iterator[Any], Sampled | None]:
        """The sampler's indices of one batch after the other. The second value is the same object
        if it keeps states of the sampler, else None."""
        index = self.batch_sampler if self._batched() else self.sampler
        if self._iterable:
            return iter(index), None
        part = state if state is not None and "_sampler_iter_yielded" in state else None
        if part is not None and part["_iterator_finished"]:
            for _ in Sampled(index, None, part):  # the last epoch ended here: its sampler begins the next one
                pass
            part = None
        sampled = Sampled(index, self.snapshot_every_n_steps, part)
        return sampled, sampled

    def _draw_seeds(self, state: Mapping[str, Any] | None) -> tuple[int, int]:
        """The base seed of an epoch, and the number of epochs that had it before. It is drawn where
        torch draws it, so that the generator has the same state as in torch. An epoch of a state
        draws it too, unless kept workers had the seed before."""
        given = None if state is None else state.get("seeds")
        if given is not None and given[1]:
            base_seed, turn = map(int, given)
        elif state is None and self.persistent_workers and self._kept is not None:
            base_seed, turn = self._seeds[0], self._seeds[1] + 1
        else:
            base_seed, turn = base_seeds.drawn(self._base_seed), 0
        self._seeds = (base_seed, turn)
        return self._seeds

    # ------------------------------------------------------------ states without seed= and order=

    def _sampler_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "version": _VERSION,
            "order": None,
            "samples": self._samples(),
            "batch_size": self.batch_size,
            "rank": _rank(),
        }
        begun, progress, workers = self._begun, self._progress, self.num_workers
        skip = 0 if begun is None else begun.skipped
        position = 0 if progress is None else skip + progress.batches
        sampled = None if begun is None else begun.sampled
        if begun is not None and begun.generators is not None and progress is not None and not progress.complete:
            state |= {
                "epoch": begun.epoch,
                "batches": position,
                "seeds": [begun.base_seed, begun.turn],
                "_iterator_finished": False,
            }
            state["generators"] = begun.generators.plain() | {"now": generator_states.take()}
            state["sampler_asked"] = sampled is not None and sampled.count > 0
            if begun.sampler_epoch is not None:
                state["sampler_epoch"] = begun.sampler_epoch
            if progress.overtaken:
                state["_overtaken"] = [skip + number for number in progress.overtaken]
        else:
            state |= {"epoch": self._epoch, "batches": 0, "seeds": None, "_iterator_finished": progress is not None}
            state["generators"] = self._generators().plain() | {"now": None}
            if self.persistent_workers and self._kept is not None:
                state["seeds"] = [self._seeds[0], self._seeds[1] + 1]
        state["workers"] = workers
        by_workers = workers > 0 and (self._iterable or self._asks_dataset())
        if progress is not None and progress.snapshots is not None and (self._keeps_dataset() or not progress.complete):
            parts = progress.snapshots.to_state()
            if by_workers or isinstance(progress.snapshots, Here) or not dataset_states.says_nothing(parts):
                state |= parts
        elif by_workers:
            state |= dataset_states.none_begun(workers)
        if progress is not None and sampled is not None:
            state |= sampled.to_state(position - state.get("_steps_since_snapshot", 0))
        return state

    def _finish_epoch(self, state: Mapping[str, Any] | None) -> None:
        """Restores the dataset of this process if the state was taken between two epochs: the next
        epoch begins with the dataset as the last one left it."""
        if state is not None and state["_iterator_finished"] and "fetcher_state" in state:
            self._fetcher(dataset_states.restored(state).here)

    def _restored_snapshots(self, state: Mapping[str, Any]) -> Restored:
        found = dataset_states.restored(state)
        if len(found.workers) != self.num_workers:  # `_check_state` has checked that only random numbers depend on them
            found.workers, found.given = [], found.before
        return found

    def _read_again(self, state: Mapping[str, Any], found: Restored, in_step: bool) -> None:
        """An iterable dataset without a state, in this process, is read again from its start, with
        the current states of the generators."""
        between = state["generators"]["now"] is None and in_step
        if self._iterable and not self.num_workers and found.here is None and not between:
            found.here = dataset_states.empty(0) | {"batches": found.before, "generators": generator_states.take()}

    def _check_parts(self, state: Mapping[str, Any]) -> None:
        """Raises StateError unless the parts of a state without seed= and order= have their form: the generators take
        theirs, for a moment."""
        kept, ours = generator_states.take(), None if self.generator is None else self._generator_state()
        try:
            own, start, now = (state["generators"][key] for key in ("own", "start", "now"))
            seeds = state.get("seeds")
            if not isinstance(state["_iterator_finished"], bool) or not isinstance(start, Mapping):
                raise TypeError("_iterator_finished is no bool, or start no mapping")
            if seeds is not None:
                base, turn = map(operator.index, seeds)
                if not -(2**63) <= base < 2**64 or not 0 <= turn < 2**63:
                    raise ValueError(f"seeds are {seeds}")
            dataset_states.restored(state)
            for states in (start, start if now is None else now):
                generator_states.put(states)
                generator_states.take()
            if own is not None:
                self._put_generator_state(own)
        except _DAMAGED as error:
            raise StateError(f"the state is damaged: {type(error).__name__}: {error}") from error
        finally:
            generator_states.put(kept)
            if ours is not None:
                self._put_generator_state(ours)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raises StateError if the loader cannot continue from it."""
        batches, samples = int(state["batches"]), self._samples()
        if state.get("samples") is not None and samples is not None and state["samples"] != samples:
            raise StateError(
                f"the state is of a dataset of {state['samples']} samples, this loader's has {samples}; its batches would be others"
            )
        if batches and state.get("batch_size", self.batch_size) != self.batch_size:
            raise StateError(
                f"the state was taken after {batches} batches of batch_size={state['batch_size']}, this loader's have batch_size={self.batch_size}: they "
                "have other samples. Give the same batch_size=; with seed= or order= any batch_size= works"
            )
        if state.get("workers") == self.num_workers:
            return
        mismatch = f"the state is of num_workers={state.get('workers')}, this loader has {self.num_workers}: "
        if self._iterable and batches:
            raise StateError(
                mismatch
                + "each worker reads its own part of an iterable dataset, so its batches would be others; stocached.streams continues with any number"
            )
        if any(map(dataset_states.is_stateful, dataset_states.restored(state).parts)):
            raise StateError(
                mismatch
                + "the state holds a state of the dataset for each worker (state_dict()). Give the same num_workers="
            )

    def _fetcher(self, snapshot: Mapping[str, Any] | None) -> Fetcher:
        return Fetcher(self.dataset, self._iterable, self._batched(), self.collate_fn, self.drop_last, snapshot)

    # ------------------------------------------------------------ questions

    def _sampler_set_epoch(self, epoch: int) -> None:
        """The program has called `set_epoch` of our sampler. Lightning does so after it has made
        the first iteration, which must be of that epoch."""
        if self._has_given_nothing():
            self._epoch_set = epoch
        elif self._resume is None:  # a loaded state has an epoch, which wins
            self.set_epoch(epoch)

    def _has_given_nothing(self) -> bool:
        """Whether the last iteration exists and has given no batch yet."""
        return self._progress is not None and not self._progress.begun and not self._progress.complete

    def _running(self) -> BatchIterator | None:
        """The last iteration, if it has not ended."""
        current = self._current() if self._current is not None else None
        return current if current is not None and not current.ended else None

    def _reads_in_order(self) -> bool:
        """Whether batches are `batch_size` consecutive samples of an order of stocached. If a
        framework has put the order into its own batch sampler, they are not."""
        return self._order is not None and self._order is self.sampler

    def _samplers_with_epochs(self) -> list[Any]:
        """Other samplers, with set_epoch."""
        samplers = () if self._order is not None else (self.sampler, self.batch_sampler)
        return [sampler for sampler in samplers if callable(getattr(sampler, "set_epoch", None))]

    def _asks_dataset(self) -> bool:
        """Whether the state holds the dataset's state. With a cache, seed= or order=, a sample
        depends only on its index."""
        return self._cached is None and self._order is None and is_stateful(self.dataset)

    def _keeps_dataset(self) -> bool:
        """Whether the next epoch reads the same dataset object as this one, and not a new copy of
        the program's."""
        return not self.num_workers or self._kept is not None or self.worker != "process"

    def _batched(self) -> bool:
        return self.batch_sampler is not None

    def _samples(self) -> int | None:
        """The length of the dataset; None if it has none."""
        try:
            return None if self._iterable else len(self.dataset)
        except (TypeError, NotImplementedError):
            return None


def _seeds(order: OrderSampler, epoch: int) -> tuple[int, int]:
    """The base seed of workers and the key of samples, without a draw from the program's generators."""
    seed = getattr(order.order, "seed", 0)
    return sample_seed(seed, epoch, 1) >> 2, sample_seed(seed, epoch, 0)


def _rank() -> int:
    """The rank of this process, or 0 if it is unknown."""
    with contextlib.suppress(InvalidError):
        return rank_of()[0]
    return 0


def _put_generators(state: Mapping[str, Any]) -> None:
    """Sets the global generators to their states when the loader's state was taken. Not with a
    state of another rank: each rank draws its own numbers."""
    if state.get("rank") == _rank():
        generator_states.put(state["generators"]["now"] or state["generators"]["start"])
