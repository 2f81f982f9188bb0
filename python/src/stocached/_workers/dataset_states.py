"""The states of those who read the dataset: workers that make whole batches, or this process. A
loader's state contains them. Keys have torchdata's names.

A snapshot is a dict. `dataset_state`: of the dataset. `fetcher_state`: of an iterable dataset's
iterator (`dataset_iter_state`), and whether it has ended (`fetcher_ended`). `generators`: the
global generators that were drawn from. `batches`: made by this worker in this epoch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._common.numbers import index_of

Snapshot = dict[str, Any]


def empty(worker: int) -> Snapshot:
    """The snapshot of a worker that begins without a state."""
    return {"_worker_id": worker, "dataset_state": None, "fetcher_state": None, "generators": {}, "batches": 0}


def is_stateful(snapshot: Mapping[str, Any]) -> bool:
    """Whether it holds a state of the dataset or of its iterator."""
    iterator = (snapshot["fetcher_state"] or {}).get("dataset_iter_state")
    return snapshot["dataset_state"] is not None or iterator is not None


def has_ended(snapshot: Mapping[str, Any]) -> bool:
    """Whether the worker had read its part of an iterable dataset to the end."""
    return bool((snapshot["fetcher_state"] or {}).get("fetcher_ended"))


@dataclass
class Restored:
    """What an iteration takes out of a loader's state."""

    # Empty: the workers begin without a state.
    workers: list[Snapshot] = field(default_factory=list)
    last: int = -1  # the worker that made the last batch before the snapshots
    before: int = 0  # batches before the state
    # Batches before the snapshots; those between them and the state are made again and discarded.
    given: int = 0
    finished: bool = False  # the epoch was over: restore its end, then begin the next one
    here: Snapshot | None = None  # state of this process, if there are no workers

    @property
    def parts(self) -> list[Snapshot]:
        return self.workers if self.here is None else [self.here]


def _checked(snapshot: Any) -> Snapshot:
    fetcher = snapshot["fetcher_state"]
    if fetcher is not None and not isinstance(fetcher["fetcher_ended"], bool):
        raise TypeError(f"fetcher_ended is {fetcher['fetcher_ended']!r:.100}, no bool")
    if not isinstance(snapshot["generators"], Mapping):
        raise TypeError(f"generators are {snapshot['generators']!r:.100}, no mapping")
    if "dataset_state" not in snapshot or index_of(snapshot["batches"]) < 0:
        raise ValueError(f"a worker without dataset_state, or with batches={snapshot['batches']!r:.100}")
    return dict(snapshot)


def restored(state: Mapping[str, Any]) -> Restored:
    """Raises a TypeError, ValueError, LookupError or AttributeError for a state without its form."""
    before = int(state["batches"])
    found = Restored(before=before, given=before, finished=bool(state["_iterator_finished"]))
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        snapshots = snapshot["_worker_snapshots"]
        found.workers = [_checked(snapshots[f"worker_{k}"]) for k in range(len(snapshots))]
        found.last, since = (index_of(n) for n in (snapshot["_last_yielded_worker_id"], state["_steps_since_snapshot"]))
        if not 0 <= since <= before or not -1 <= found.last < len(snapshots):
            raise ValueError(f"{since} steps since the snapshot of {before} batches, the last of worker {found.last}")
        found.given = before - since
    elif "fetcher_state" in state:
        found.here = _checked(empty(0) | {key: state[key] for key in ("dataset_state", "fetcher_state")})
    return found


@dataclass
class Report:
    """What a worker says of itself with a batch. asked: whether the batch asked for a snapshot; if
    it did, None means that nothing has changed."""

    worker: int
    snapshot: bytes | None
    asked: bool


@dataclass
class _Taken:
    """All snapshots of one moment."""

    position: int
    last: int
    snapshots: list[bytes | None]
    batches: list[int]


class Snapshots:
    """The snapshots of an iteration's workers, for the batches that the training loop has got. They
    stay pickled until a state is asked for.

    every: batches between two moments at which all snapshots are taken; 0: only when the epoch
    begins. strict: batches come in order, and a moment needs a snapshot of each worker's last
    batch. A position is a number of batches, as a state counts them."""

    def __init__(self, workers: int, every: int, begun: Restored | None, *, strict: bool) -> None:
        begun = begun or Restored()
        self._every, self._strict = every, strict
        self._position = begun.given
        self._last = begun.last if begun.workers else (begun.given - 1) % workers
        self._latest: list[bytes | None] = [None] * workers
        # Whether the latest snapshot includes the worker's last batch.
        self._current = [True] * workers
        self._batches = [int(snapshot["batches"]) for snapshot in begun.workers] or [0] * workers
        self._failed = [0] * workers  # batches that raised, since the last one that did not
        # A weak reference to a method that waits until all workers have begun.
        self.settle: Callable[[], Callable[[], Any] | None] | None = None
        self._take()

    @property
    def next_worker(self) -> int:
        """The one whose turn it is."""
        return (self._last + 1) % len(self._latest)

    @property
    def position(self) -> int:
        """Of the moment that a state would hold."""
        return self._taken.position

    def wanted(self, pending: int) -> bool:
        """Whether the next batch must ask for a snapshot. pending: batches on their way before
        it."""
        every = self._every
        return every > 0 and self._position % every + pending + 1 + len(self._latest) >= every

    def begun(self, worker: int, snapshot: bytes | None) -> None:
        """The worker has begun the epoch."""
        self._latest[worker] = self._taken.snapshots[worker] = snapshot

    def ended(self, worker: int, snapshot: bytes | None) -> None:
        """The worker has read its part of an iterable dataset to the end."""
        self._update(worker, snapshot, True)
        if self._taken.position == self._position:
            self._take()

    def failed(self, report: Report) -> None:
        """The training loop gets an exception instead of this batch."""
        self._update(report.worker, report.snapshot, report.asked)
        self._failed[report.worker] += 1
        self._last = report.worker

    def given(self, report: Report, position: int) -> None:
        """The training loop gets this batch; position: after it."""
        worker = report.worker
        self._update(worker, report.snapshot, report.asked)
        self._batches[worker] += 1 + self._failed[worker]
        self._failed[worker] = 0
        self._last, self._position = worker, position
        due = self._every > 0 and position // self._every > self._taken.position // self._every
        if (due and self.complete) or not self._strict:
            self._take()

    @property
    def complete(self) -> bool:
        """Whether the latest snapshots include all batches."""
        return all(self._current)

    def finish(self, last: list[bytes | None] | None) -> None:
        """The epoch is over. last: the answers of the workers when they were asked once more."""
        for worker, snapshot in enumerate(last or ()):
            self._update(worker, snapshot, True)
        self._take()

    def _update(self, worker: int, snapshot: bytes | None, current: bool) -> None:
        if snapshot is not None:
            self._latest[worker] = snapshot
        self._current[worker] = current

    def _take(self) -> None:
        self._taken = _Taken(self._position, self._last, list(self._latest), list(self._batches))

    def to_state(self) -> dict[str, Any]:
        settle = self.settle() if self.settle is not None else None
        if settle is not None:
            settle()
        taken = self._taken
        snapshots = {}
        for worker, (data, batches) in enumerate(zip(taken.snapshots, taken.batches)):
            snapshot = empty(worker) if data is None else pickle.loads(data)
            snapshots[f"worker_{worker}"] = snapshot | {"batches": batches}
        return _to_state(snapshots, taken.last, taken.position, self._position - taken.position)


def says_nothing(parts: Mapping[str, Any]) -> bool:
    """Whether all snapshots are those of workers that begin without a state."""
    snapshots = parts["_snapshot"]["_worker_snapshots"].values()
    return all(not is_stateful(snapshot) and not snapshot["generators"] for snapshot in snapshots)


def none_begun(workers: int) -> dict[str, Any]:
    """The part of a state that is taken before workers are started."""
    return _to_state({f"worker_{k}": empty(k) for k in range(workers)}, workers - 1, 0, 0)


def _to_state(snapshots: dict[str, Snapshot], last: int, position: int, since: int) -> dict[str, Any]:
    return {
        "_snapshot": {"_snapshot_step": position, "_last_yielded_worker_id": last, "_worker_snapshots": snapshots},
        "_steps_since_snapshot": since,
    }


class Here:
    """The state of the dataset in this process."""

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher

    def to_state(self) -> dict[str, Any]:
        return copy.deepcopy(self._fetcher.state())  # the dataset may change what it gave
