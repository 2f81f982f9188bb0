"""The state of a loader whose order is that of a sampler of torch's or of the user's, or of an iterable dataset.

base.py writes the state of a loader with seed= or order=: it is one position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from .._common.errors import InvalidError, StateError
from .._common.ranks import rank_of
from .._random import generator_states
from .._random.generator import plain
from .._workers import dataset_states
from .._workers.dataset_states import Here, Restored

VERSION = 2
_NEEDED = ("epoch", "batches", "generators")


def _rank() -> int:
    """The rank of this process, or 0 if the environment does not say it."""
    with contextlib.suppress(InvalidError):
        return rank_of()[0]
    return 0


def generators(loader: Any) -> dict[str, Any]:
    """Where the loader's own generator stands, and the global ones."""
    own = None if loader.generator is None else plain(loader._generator_state())
    return {"own": own, "start": generator_states.take()}


def to_state(loader: Any, progress: Any) -> dict[str, Any]:
    """progress: of the last epoch; None if none was begun."""
    state: dict[str, Any] = {"version": VERSION, "order": None, "samples": loader._samples(), "batch_size": loader.batch_size, "rank": _rank()}
    began, workers = loader._began, loader.num_workers
    position = 0 if progress is None else began["skipped"] + progress.batches
    if progress is not None and not progress.complete:
        state |= {"epoch": began["epoch"], "batches": position, "seeds": list(began["seeds"]), "_iterator_finished": False}
        state["generators"] = began["generators"] | {"now": generator_states.take()}
        state["sampler_asked"] = loader._sampled is not None and loader._sampled.count > 0
        if began.get("sampler_epoch") is not None:
            state["sampler_epoch"] = began["sampler_epoch"]
        if progress.overtaken:
            state["_overtaken"] = [began["skipped"] + number for number in progress.overtaken]
    else:
        state |= {"epoch": loader._epoch, "batches": 0, "seeds": None, "_iterator_finished": progress is not None}
        state["generators"] = generators(loader) | {"now": None}
        if loader.persistent_workers and loader._kept is not None:
            state["seeds"] = [loader._seeds[0], loader._seeds[1] + 1]
    state["workers"] = workers
    by_workers = workers > 0 and (loader._iterable or loader._asks_dataset())
    if progress is not None and progress.snapshots is not None and (loader._keeps_dataset() or not progress.complete):
        parts = progress.snapshots.to_state()
        if by_workers or isinstance(progress.snapshots, Here) or not dataset_states.says_nothing(parts):
            state |= parts
    elif by_workers:
        state |= dataset_states.none_begun(workers)
    if progress is not None and loader._sampled is not None:
        state |= loader._sampled.to_state(position - state.get("_steps_since_snapshot", 0))
    return state


@contextlib.contextmanager
def generators_of(loader: Any, state: Mapping[str, Any] | None) -> Iterator[bool]:
    """Inside, the generators stand where they stood when the epoch of the state began. Afterwards, the global ones stand where the program has them.

    Gives whether they stand now where they stood when the state was taken. If so, and if the state was taken between two epochs, this epoch begins as it would
    have without the state, and the global generators keep what it draws."""
    if state is None:
        yield True
        return
    own, start, now = (state["generators"][key] for key in ("own", "start", "now"))
    kept = generator_states.take()
    in_step = kept == (start if now is None else now)
    leave = False
    try:
        generator_states.put(start)
        if own is not None or loader.generator is not None:
            loader._put_generator_state(start[loader._global_generator] if own is None else own)
        yield in_step
        leave = in_step and now is None and (own is None or loader.generator is not None)
    finally:
        if not leave:
            generator_states.put(kept)


def put_generators(state: Mapping[str, Any]) -> None:
    """Puts the global generators where they stood when the state was taken. Not with a state of another rank: each rank draws numbers of its own."""
    if state.get("rank") == _rank():
        generator_states.put(state["generators"]["now"] or state["generators"]["start"])


def finish(loader: Any, state: Mapping[str, Any] | None) -> None:
    """Restores the dataset of this process, if the state was taken between two epochs: the next epoch begins with what the last one made of it."""
    if state is not None and state["_iterator_finished"] and "fetcher_state" in state:
        loader._fetcher(dataset_states.restored(state).here)


def restored(loader: Any, state: Mapping[str, Any]) -> Restored:
    found = dataset_states.restored(state)
    if len(found.workers) != loader.num_workers:  # `check` lets only random numbers depend on them
        found.workers, found.given = [], found.before
    return found


def read_again(loader: Any, state: Mapping[str, Any], found: Restored, in_step: bool) -> None:
    """An iterable dataset without a state, in this process, is read again, with random numbers from where the generators stand now."""
    between = state["generators"]["now"] is None and in_step
    if loader._iterable and not loader.num_workers and found.here is None and not between:
        found.here = dataset_states.empty(0) | {"batches": found.before, "generators": generator_states.take()}


def check(loader: Any, state: Mapping[str, Any]) -> None:
    """Raises StateError if the loader cannot go on from it."""
    missing = [key for key in _NEEDED if key not in state]
    if missing:
        raise StateError(f"the state lacks {', '.join(missing)}")
    batches, samples = int(state["batches"]), loader._samples()
    if state.get("samples") is not None and samples is not None and state["samples"] != samples:
        raise StateError(f"the state is of a dataset of {state['samples']} samples, this loader's has {samples}; its batches would be others")
    if batches and state.get("batch_size", loader.batch_size) != loader.batch_size:
        raise StateError(
            f"the state was taken after {batches} batches of batch_size={state['batch_size']}, this loader's have batch_size={loader.batch_size}: those "
            "are other samples. Give the same batch_size=; seed= or order= go on with any"
        )
    if state.get("workers") == loader.num_workers:
        return
    mismatch = f"the state is of num_workers={state.get('workers')}, this loader has {loader.num_workers}: "
    if loader._iterable and batches:
        raise StateError(
            mismatch
            + "each worker reads its own part of an iterable dataset, so its batches would be others; stocached.streams goes on with any number"
        )
    if any(map(dataset_states.is_stateful, dataset_states.restored(state).parts)):
        raise StateError(mismatch + "the state holds a state of the dataset for each worker (state_dict()). Give the same num_workers=")
