"""The states of loaders, and the start of an epoch from such a state.

With seed= or order=, a state is one position. Otherwise it holds the states of the random number
generators, of the dataset, and of its workers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._common.errors import InvalidError, StateError
from .._common.numbers import index_of, number_in, same
from .._common.ranks import rank_of
from .._order.epoch import Shard
from .._order.nodes import Deal
from .._order.walk import Walk
from .._random import base_seeds, generator_states
from .._random.sample_seeds import sample_seed
from .._workers import dataset_states
from .._workers.dataset_states import Here, Restored
from .affinity import Affinity
from .dealt_batches import dealt_batches
from .epoch_context import Begun, EpochContext, Generators, Progress
from .fetcher import Fetcher
from .sampling import OrderSampler, Sampled, batches_of, noting_epoch, skipped, with_epochs
from .setup import Setup

_DAMAGED = (TypeError, ValueError, LookupError, OverflowError, AttributeError, RuntimeError)
_VERSION = 1  # version of the state of a loader
# Whole numbers of a state with seed= or order=, and of another one, with the most of each.
_NUMBERS = {True: {"epoch": 2**64 - 1, "position": 2**63 - 1}, False: {"epoch": 2**64 - 1, "batches": 2**63 - 1}}


class Checkpoint:
    """The place of the training loop in the epochs of a loader. It begins epochs, there or at the
    place of a loaded state."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch  # epoch of the next iteration
        self.epoch_set: int | None = None  # epoch that the sampler got after the last iteration was made
        self.resume: Mapping[str, Any] | None = None
        # Of kept workers: their base seed, drawn once as in torch, and how many epochs began with
        # it.
        self._seeds = (0, 0)
        self.begun: Begun | None = None  # the epoch of the last iteration
        self.progress: Progress | None = None  # in it

    def give(self, context: EpochContext) -> None:
        """The training loop gets the iteration of this epoch."""
        self.begun, self.progress = context.begun, context.progress
        self.epoch = context.epoch + 1

    @property
    def untouched(self) -> bool:
        """Whether the last iteration exists and has given no batch yet."""
        return self.progress is not None and not self.progress.begun and not self.progress.complete

    def begin_at(self, epoch: int, *, running: bool) -> None:
        """As `set_epoch` of a loader. running: the last iteration has not ended."""
        self.epoch_set = None
        if self.resume is None or int(self.resume["epoch"]) != epoch:
            self.epoch, self.resume = epoch, None
            if not running and self.progress is not None and not self.progress.complete:
                self.progress = None

    def batches(self, sampler: OrderSampler, batch_size: int, drop_last: bool) -> int:
        """How many an epoch of our order has. Where epochs differ: how many the next iteration gives, or the last one,
        if it has given none; Lightning asks after it has made it."""
        begun, untouched = self.begun, self.untouched and self.epoch_set is None and self.resume is None
        if untouched and begun is not None and begun.walk is not None:
            return begun.walk.batches(batch_size, drop_last)
        place: Any = sampler.shard(self.epoch if self.epoch_set is None else self.epoch_set)
        if isinstance(place, Walk) and self.resume is not None:
            place.resume(self.resume)
        return int(place.batches(batch_size, drop_last))

    # ------------------------------------------------------------ states

    def ordered_state(self, order: OrderSampler) -> dict[str, Any]:
        """With an order of stocached whose batches this loader makes: one position, or the place of a walk."""
        state: dict[str, Any] = {"version": _VERSION, "order": repr(order.order), "epoch": self.epoch, "position": 0}
        begun, progress = self.begun, self.progress
        walk: Any = order.shard(self.epoch) if begun is None else begun.walk
        if isinstance(walk, Walk):
            return walk.state(state, progress is None or progress.complete)
        if begun is not None and begun.shard is not None and progress is not None and not progress.complete:
            state |= {"epoch": begun.epoch, "position": begun.shard.position(progress.samples)}
        return state

    def sampled_state(self, setup: Setup) -> dict[str, Any]:
        """With another order: the states of generators, samplers and workers."""
        state: dict[str, Any] = {
            "version": _VERSION,
            "order": None,
            "samples": setup.samples(),
            "batch_size": setup.batch_size,
            "rank": _rank(),
        }
        begun, progress, workers = self.begun, self.progress, setup.num_workers
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
            state |= {"epoch": self.epoch, "batches": 0, "seeds": None, "_iterator_finished": progress is not None}
            state["generators"] = _generators(setup).plain() | {"now": None}
            if setup.persistent_workers and setup.kept:
                state["seeds"] = [self._seeds[0], self._seeds[1] + 1]
        state["workers"] = workers
        by_workers = workers > 0 and (setup.iterable or setup.asks_dataset())
        if progress is not None and progress.snapshots is not None and (setup.keeps_dataset() or not progress.complete):
            parts = progress.snapshots.to_state()
            if by_workers or isinstance(progress.snapshots, Here) or not dataset_states.says_nothing(parts):
                state |= parts
        elif by_workers:
            state |= dataset_states.none_begun(workers)
        if progress is not None and sampled is not None:
            state |= sampled.to_state(position - state.get("_steps_since_snapshot", 0))
        return state

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], setup: Setup) -> None:
        """As `load_state_dict` of a loader."""
        ordered = setup.in_our_order
        walk = setup.sampler.shard(0) if ordered else None
        if isinstance(walk, Walk):
            try:
                own = walk.checked(state)
            except InvalidError as error:  # the state is one of rows
                raise StateError(str(error)) from None
            if own is not None:
                self.resume = own
                return
        if not isinstance(state, Mapping) or not same(state.get("version"), _VERSION):
            raise StateError(f"this is no state of a loader of this version: {state!r:.200}")
        order = repr(setup.sampler.order) if ordered else None
        if not same(state.get("order"), order):
            given = state.get("order")
            theirs = "a sampler, without seed= or order=" if given is None else f"{given!s:.300}"
            ours = order or "a sampler, without seed= or order="
            raise StateError(
                f"the state is of {theirs}, this loader has {ours}; make it with the same samples, chain or order=, and seed="
            )
        numbers = {key: number_in(state, key, most) for key, most in _NUMBERS[ordered].items()}
        if isinstance(walk, Shard) and (position := int(numbers["position"])) > len(walk.epoch):
            raise StateError(f"the state's position is {position}, and an epoch has {len(walk.epoch)} samples")
        if isinstance(walk, Walk):
            setup.sampler.shard(numbers["epoch"], numbers["position"]).resume(state)
        if not ordered:
            _check_parts(state, setup)
            _check_state(state, setup)
            _put_generators(state)
        self.resume = dict(state) | numbers

    # ------------------------------------------------------------ the start of an epoch

    def begin(self, setup: Setup, affinity: Affinity | None, ahead: bool) -> tuple[Iterator[Any], Begun]:
        """Begins the epoch of a loaded state, or else the next one. Also returns the indices of one batch after the
        other. ahead: the program has not asked for it yet."""
        state, self.resume = self.resume, None
        epoch = self.epoch if state is None else int(state["epoch"])
        if setup.ordered is None:
            wanted, begun = self._begin_sampled(epoch, state, setup)
        elif setup.in_our_order:
            wanted, begun = self._begin_ordered(epoch, state, setup, affinity, ahead)
        else:
            wanted, begun = self._begin_batched(epoch, state, setup, affinity)
        if state is not None:
            begun.overtaken = frozenset(number - begun.skipped for number in state.get("_overtaken", ()))
        return wanted, begun

    def _begin_ordered(
        self, epoch: int, state: Mapping[str, Any] | None, setup: Setup, affinity: Affinity | None, ahead: bool
    ) -> tuple[Iterator[Any], Begun]:
        """An epoch of an order of stocached."""
        order = setup.sampler
        order.begin(epoch, 0 if state is None else int(state.get("position", 0)))
        undealt = order.shard()
        if isinstance(undealt, Walk):
            if state is not None:
                undealt.resume(state)
            return iter(()), Begun(epoch, *_seeds(order, epoch), walk=undealt)
        shard = undealt if affinity is None else affinity.deal(undealt, setup.cached.cache, ahead)
        if isinstance(shard, Deal):
            wanted: Iterator[Any] = dealt_batches(shard, setup.drop_last)
        elif setup.batch_size is not None:
            wanted = batches_of(shard, setup.batch_size, setup.drop_last)
        else:
            wanted = iter(shard)
        first = affinity is not None and affinity.dealt == 1
        return wanted, Begun(epoch, *_seeds(order, epoch), shard, first_dealt=first)

    def _begin_batched(
        self, epoch: int, state: Mapping[str, Any] | None, setup: Setup, affinity: Affinity | None
    ) -> tuple[Iterator[Any], Begun]:
        """An epoch of an order of stocached of which a framework makes the batches."""
        if affinity is not None:
            raise InvalidError(
                "affinity= needs the batches of this loader, and a framework has made others of its samples; leave out affinity="
            )
        skip, order = 0 if state is None else int(state["batches"]), setup.ordered
        assert order is not None
        order.begin(epoch)
        wanted = skipped(iter(setup.batch_sampler), skip)
        return wanted, Begun(epoch, *_seeds(order, epoch), skipped=skip, generators=_generators(setup))

    def _begin_sampled(self, epoch: int, state: Mapping[str, Any] | None, setup: Setup) -> tuple[Iterator[Any], Begun]:
        """An epoch of a sampler of torch or of the user, or of an iterable dataset. Draws random numbers where torch
        draws them."""
        samplers = with_epochs(setup.sampler, setup.batch_sampler)
        if state is not None and state.get("sampler_epoch") is not None:
            for sampler in samplers:
                sampler.set_epoch(state["sampler_epoch"])
        _finish_epoch(state, setup)
        with _generators_of(state, setup) as in_step:
            restored = None if state is None else _restored_snapshots(state, setup)
            generators, pipes = _generators(setup), setup.pipes()
            wanted, sampled = _sampled_batches(state, setup)
            base_seed, turn = self._draw_seeds(state, setup)
            if setup.num_workers and not turn:
                setup.pipes()  # torch's loader draws for them again after it has started its workers
            key = sample_seed(base_seed & (2**64 - 1), turn, 0)
            begun = Begun(
                epoch, base_seed, key, skipped=0 if restored is None else restored.given, generators=generators,
                turn=turn, sampled=sampled, pipes=pipes, restored=restored,
            )  # fmt: skip
            if samplers:
                wanted = noting_epoch(wanted, functools.partial(begun.note_epoch, samplers[0]))
            if state is not None and restored is not None:
                skip = restored.given - (0 if sampled is None else sampled.count)
                if not setup.iterable and (skip or not in_step or state.get("sampler_asked")):
                    wanted = skipped(wanted, skip)
                _read_again(state, restored, in_step, setup)
        return wanted, begun

    def _draw_seeds(self, state: Mapping[str, Any] | None, setup: Setup) -> tuple[int, int]:
        """The base seed of an epoch, and the number of epochs that had it before. It is drawn where
        torch draws it, so that the generator has the same state as in torch. An epoch of a state
        draws it too, unless kept workers had the seed before."""
        given = None if state is None else state.get("seeds")
        if given is not None and given[1]:
            base_seed, turn = map(int, given)
        elif state is None and setup.persistent_workers and setup.kept:
            base_seed, turn = self._seeds[0], self._seeds[1] + 1
        else:
            base_seed, turn = base_seeds.drawn(functools.partial(setup.backend.base_seed, setup.generator)), 0
        self._seeds = (base_seed, turn)
        return self._seeds


@contextlib.contextmanager
def _generators_of(state: Mapping[str, Any] | None, setup: Setup) -> Iterator[bool]:
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
        if own is not None or setup.generator is not None:
            setup.backend.put_generator_state(setup.generator, start[setup.backend.draws_from] if own is None else own)
        yield in_step
        leave = in_step and now is None and (own is None or setup.generator is not None)
    finally:
        if not leave:
            generator_states.put(kept)


def _generators(setup: Setup) -> Generators:
    """The states of the loader's own generator and of the global ones."""
    return Generators(_own_state(setup), generator_states.Taken())


def _sampled_batches(state: Mapping[str, Any] | None, setup: Setup) -> tuple[Iterator[Any], Sampled | None]:
    """The sampler's indices of one batch after the other. The second value is the same object
    if it keeps states of the sampler, else None."""
    index = setup.index
    if setup.iterable:
        return iter(index), None
    part = state if state is not None and "_sampler_iter_yielded" in state else None
    if part is not None and part["_iterator_finished"]:
        for _ in Sampled(index, None, part):  # the last epoch ended here: its sampler begins the next one
            pass
        part = None
    sampled = Sampled(index, setup.snapshot_every_n_steps, part)
    return sampled, sampled


def _finish_epoch(state: Mapping[str, Any] | None, setup: Setup) -> None:
    """Restores the dataset of this process if the state was taken between two epochs: the next
    epoch begins with the dataset as the last one left it."""
    if state is not None and state["_iterator_finished"] and "fetcher_state" in state:
        here = dataset_states.restored(state).here
        Fetcher(setup.dataset, setup.iterable, setup.batched, setup.collate_fn, setup.drop_last, here)


def _restored_snapshots(state: Mapping[str, Any], setup: Setup) -> Restored:
    found = dataset_states.restored(state)
    if len(found.workers) != setup.num_workers:  # `_check_state` has checked that only random numbers depend on them
        found.workers, found.given = [], found.before
    return found


def _read_again(state: Mapping[str, Any], found: Restored, in_step: bool, setup: Setup) -> None:
    """An iterable dataset without a state, in this process, is read again from its start, with
    the current states of the generators."""
    between = state["generators"]["now"] is None and in_step
    if setup.iterable and not setup.num_workers and found.here is None and not between:
        found.here = dataset_states.empty(0) | {"batches": found.before, "generators": generator_states.take()}


def _check_parts(state: Mapping[str, Any], setup: Setup) -> None:
    """Raises StateError unless the parts of a state without seed= and order= have their form: the generators take
    theirs, for a moment."""
    kept, ours = generator_states.take(), _own_state(setup)
    try:
        own, start, now = (state["generators"][key] for key in ("own", "start", "now"))
        seeds = state.get("seeds")
        if not isinstance(state["_iterator_finished"], bool) or not isinstance(start, Mapping):
            raise TypeError("_iterator_finished is no bool, or start no mapping")
        if setup.backend.draws_from not in start:
            raise LookupError(f"it has no state of {setup.backend.draws_from}")
        if seeds is not None:
            base, turn = map(index_of, seeds)
            if not -(2**63) <= base < 2**64 or not 0 <= turn < 2**63:
                raise ValueError(f"seeds are {seeds}")
        workers = dataset_states.restored(state).workers
        for states in (start, start if now is None else now, *(worker["generators"] for worker in workers)):
            for _ in range(2):  # NumPy gives some out that it does not take back
                generator_states.put(states)
                states = generator_states.take()
        if own is not None or setup.generator is not None:
            own = start[setup.backend.draws_from] if own is None else own
            setup.backend.put_generator_state(setup.generator, own)
    except _DAMAGED as error:
        raise StateError(
            f"the state is damaged, or of another kind of generator: {type(error).__name__}: {error}"
        ) from error
    finally:
        generator_states.put(kept)
        if ours is not None:
            setup.backend.put_generator_state(setup.generator, ours)


def _check_state(state: Mapping[str, Any], setup: Setup) -> None:
    """Raises StateError if the loader cannot continue from it."""
    batches, samples = int(state["batches"]), setup.samples()
    if state.get("samples") is not None and samples is not None and not same(state["samples"], samples):
        raise StateError(
            f"the state is of a dataset of {state['samples']} samples, this loader's has {samples}; its batches would be others"
        )
    if setup.iterable and state.get("sampler_asked") is True:
        raise StateError("the state is of a dataset with len() and [index], and this loader's is iterable")
    if samples is not None and not setup.iterable and state.get("samples", samples) is None:
        raise StateError(f"the state is of an iterable dataset, and this loader's has {samples} samples and an index")
    if batches and not same(state.get("batch_size", setup.batch_size), setup.batch_size):
        raise StateError(
            f"the state was taken after {batches} batches of batch_size={state['batch_size']}, this loader's have batch_size={setup.batch_size}: they "
            "have other samples. Give the same batch_size=; with seed= or order= any batch_size= works"
        )
    if same(state.get("workers"), setup.num_workers):
        return
    mismatch = f"the state is of num_workers={state.get('workers')}, this loader has {setup.num_workers}: "
    if setup.iterable and batches:
        raise StateError(
            mismatch
            + "each worker reads its own part of an iterable dataset, so its batches would be others; stocached.streams continues with any number"
        )
    if any(map(dataset_states.is_stateful, dataset_states.restored(state).parts)):
        raise StateError(
            mismatch
            + "the state holds a state of the dataset for each worker (state_dict()). Give the same num_workers="
        )


def _own_state(setup: Setup) -> Any:
    """The state of the loader's own generator; None: it has none."""
    return None if setup.generator is None else setup.backend.generator_state(setup.generator)


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
