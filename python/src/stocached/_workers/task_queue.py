"""The task queue: tasks that a loader posts and its workers take, in shared memory
(docs/spec/workers.md)."""

from __future__ import annotations

import ctypes
import os
import pickle
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import make
from .._memory import mapping
from .._memory.shared_file import SharedFile

_HEADER, _TASK_BYTES, _PAGE, _WAKEUP, _NOTICE, _SPOILED, _MOVED = 4096, 128, 4096, 192, 320, 336, 340
_STARTED = 512  # one byte for each worker

TASK = np.dtype([(field[0], np.dtype(field[1])) for field in _native.Task._fields_])
_ASKED = {"first": "u8", "index": "i8", "row": "u4", "buffer": "u4", "kind": "u4", "alone": "u4", "argument": "u8"}
ASKED = np.dtype(list(_ASKED.items()))
_OVERFLOW = ("overflow_offset", "overflow_bytes")
_TIMES = ("began_ns", "ended_ns", "augment_ns", "waited_ns", "delayed_ns")
ANSWER = np.dtype([("result", "i4"), ("worker", "u4"), *((name, "u8") for name in (*_OVERFLOW, *_TIMES))])
CANCELLED = -1
_SPARE = 1 << 20, 128 << 20  # bytes: of a piece of the overflow that is lent again, at least; of all that wait for it
_LONG = 128 << 10  # bytes that are quicker mapped than copied
_MOST_MAPPED = 64  # pieces that a worker has mapped; it does not know which were dropped
_SMALL = 8 << 20  # bytes of a piece that any answer takes
NOT_LENT = -1, 0
MOST_TASKS = 1 << 20  # limit of a task queue
POSTED, TAKEN, DONE = 1, 2, 3  # states of a task


def place_of(answer: Any) -> tuple[int, int]:
    """Where in the overflow what a worker answered lies: its offset and bytes."""
    return int(answer["overflow_offset"]), int(answer["overflow_bytes"])


def _paged(length: int) -> int:
    return -(-max(length, 1) // _PAGE) * _PAGE


class TaskQueue:
    """Tasks for workers, and a file for what has no place elsewhere. One thread at a time is the
    parent; workers are processes or threads.

    Pickled or forked, it is the same task queue in another process."""

    def __init__(self, tasks: int) -> None:
        """tasks: that are posted and not yet released, at most; a batch takes at most half of
        it."""
        self.file = SharedFile("tasks", size=_native.queue_bytes(tasks))
        self.overflow = SharedFile("overflow")
        self._map()
        self._check(_native.queue_init(self.address, tasks))

    def _map(self) -> None:
        self._memory = self.file.map(0, os.fstat(self.file.fd).st_size)
        self.address = self._memory.ctypes.data  # address of the queue, for functions of the library
        self._capacity = (self._memory.size - _HEADER) // _TASK_BYTES
        self._notice = self._memory[_NOTICE : _NOTICE + 16].view(np.uint64)
        self._moved = self._memory[_MOVED : _MOVED + 4].view(np.uint32)
        # By worker: not 0 if it takes tasks, as it has started or failed to.
        self.started = self._memory[_STARTED:_HEADER]
        rows = self._memory[_HEADER:].reshape(self._capacity, _TASK_BYTES)
        self._words: npt.NDArray[Any] = rows[:, :8].view(np.uint64)[:, 0]
        self._asked: npt.NDArray[Any] = rows[:, 16 : 16 + ASKED.itemsize].view(ASKED)[:, 0]
        self._answers: npt.NDArray[Any] = rows[:, 64 : 64 + ANSWER.itemsize].view(ANSWER)[:, 0]
        self._began, self._augment, self._waited, self._delayed = (
            self._answers[name] for name in ("began_ns", "augment_ns", "waited_ns", "delayed_ns")
        )
        self._spare: list[tuple[int, int]] = []  # pieces of the overflow with memory, for answers to come
        self._lent: dict[int, int] = {}
        self._mapped: dict[int, npt.NDArray[Any]] = {}  # pieces, by their offsets
        self._as, self._sums = _native.Task(), _native.Collected()  # arguments of calls

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "overflow": self.overflow}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    # ----------------------------------------------------------------------------------- the parent

    @property
    def most(self) -> int:
        """Tasks of one batch."""
        return self._capacity // 2

    def push(self, tasks: npt.NDArray[Any]) -> int | None:
        """Posts the tasks (of dtype TASK) of a batch; the position of the first, or None: no room
        before others are released."""
        first = int(_native.queue_push(self.address, tasks.ctypes.data, len(tasks)))
        return None if first == _native.EMEMORY else self._check(first)

    def push_samples(
        self,
        indices: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        buffer: int,
        kind: int,
        seed: int | None,
    ) -> int | None:
        """`push` for some rows of a batch of samples, in one call of the library. Both arrays are contiguous. seed: of
        the epoch, from which each task gets the seed of its sample."""
        self._as.kind, self._as.buffer = kind, buffer
        first = int(
            _native.queue_push_samples(
                self.address, self._as, address_of(indices), address_of(rows), len(rows),
                None if seed is None else ctypes.c_uint64(seed),
            )
        )  # fmt: skip
        return None if first == _native.EMEMORY else self._check(first)

    def batches(self, batches: list[tuple[int, int]]) -> tuple[Any, int]:
        """Batches (first position, tasks) for `wait`."""
        n = len(batches)
        if n == 1:
            return _native.Batch(*batches[0]), 1
        return (_native.Batch * n)(*starmap(_native.Batch, batches)), n

    def wait(self, batches: tuple[Any, int], timeout: float) -> int | None:
        """Which of some batches is the first that has all its answers, after waiting at most so many seconds for one.
        None: none has; comes back early for signals."""
        call = _native.queue_wait if timeout > 0 else _native.queue_look
        found = self._check(call(self.address, *batches, int(timeout * 1000)))
        return found if found < batches[1] else None

    def collect(self, first: int, tasks: int, hit: int) -> tuple[int, _native.Collected]:
        """Of the answers of a batch: how many have a result other than 0 and `hit`, and sums, until the next call. If
        the number is 0, the tasks are released."""
        return self._check(_native.queue_collect(self.address, first, tasks, hit, self._sums)), self._sums

    def answers(self, first: int, tasks: int) -> npt.NDArray[Any]:
        """Of dtype ANSWER: live memory, to be read before `release`."""
        at = first % self._capacity
        return self._answers[at : at + tasks]

    def release(self, first: int, tasks: int) -> None:
        self._check(_native.queue_release(self.address, first, tasks))

    def cancel(self, first: int, tasks: int) -> int:
        """Takes back the tasks that no worker has begun. Returns how many are being worked on."""
        return self._check(_native.queue_cancel(self.address, first, tasks))

    def held(self, worker: int) -> list[int]:
        """Positions of tasks that a worker which is dead had taken, the one that it was at
        first."""
        positions = np.zeros(self._capacity, np.uint64)
        found = self._check(_native.queue_held(self.address, worker, positions.ctypes.data, positions.size))
        held: list[int] = positions[:found].tolist()
        return sorted(held, key=lambda position: -int(self._began[position % self._capacity]))

    def asked(self, position: int) -> Any:
        """What a task that is not released is about, of dtype ASKED."""
        return self._asked[position % self._capacity]

    def states(self, first: int, tasks: int) -> npt.NDArray[Any]:
        """The states of tasks, 0 of those that are released."""
        at = first % self._capacity
        words = self._words[at : at + tasks].copy()
        return np.where(words >> np.uint64(24) == first // self._capacity, words & np.uint64(0xFF), 0)

    def holder(self, position: int) -> int:
        """The worker that has taken a task."""
        return int(self._words[position % self._capacity]) >> 8 & 0xFFFF

    def is_done(self, position: int) -> bool:
        """Whether a task that is not released has its answer."""
        return int(self._words[position % self._capacity]) & 0xFF == DONE

    def repost(self, worker: int, position: int) -> None:
        self._check(_native.queue_repost(self.address, worker, position))

    @property
    def spoiled(self) -> bool:
        """Whether a worker can do nothing more, for good: it failed to start, or hangs."""
        return bool(self._memory[_SPOILED])

    def spoil(self) -> None:
        self._memory[_SPOILED] = 1

    @property
    def moved(self) -> int:
        """The descriptor of a file that workers share with their parent, and read by its position; 0: of none."""
        return int(self._moved[0])

    @moved.setter
    def moved(self, number: int) -> None:
        self._moved[0] = number

    def stop(self) -> None:
        """Every worker's `take` says so from now on."""
        _native.queue_stop(self.address)

    def announce(self, text: bytes) -> None:
        """Leaves something that workers find by `notice`; before the tasks that need it."""
        offset, length = self.put(text)
        self._notice[0] = offset
        self._notice[1] = length  # what workers look at

    # -------------------------------------------------------------------------------------- workers

    def notice(self) -> bytes | None:
        offset, length = int(self._notice[0]), int(self._notice[1])
        return bytes(self.get(offset, length)) if length else None

    def take(self, worker: int, tasks: ctypes.Array[_native.Task], most: int, timeout: float) -> int | None:
        """Fills in the next task and those right after it, of one batch: how many, 0: none in so
        many seconds; None: the task queue was stopped."""
        got = _native.queue_take(self.address, worker, 0, tasks, most)
        if got == 0 and timeout:
            got = _native.queue_take_wait(self.address, worker, int(timeout * 1000), tasks, most)
        return self.taken(got)

    def pushes(self) -> memoryview:
        """A number in memory that changes with each push."""
        return self._memory.data[_WAKEUP : _WAKEUP + 4].cast("I")

    def taken(self, got: int) -> int | None:
        """What `take` returns for a result of the library."""
        return None if got == _native.ECLOSED else self._check(got)

    def begin(self, position: int, now_ns: int) -> None:
        """Of several tasks that were taken together, another one is begun; the first is when it is
        taken."""
        self._began[position % self._capacity] = now_ns

    def augmented(self, position: int, ns: int) -> None:
        """So long the random part of a task's samples took, without delays."""
        self._augment[position % self._capacity] = ns

    def waited(self, position: int, ns: int) -> None:
        """So long the load of a task's samples waited for its source."""
        self._waited[position % self._capacity] = max(ns, 1)

    def delayed(self, position: int, ns: int) -> None:
        """So long the worker was runnable without a processor in a task."""
        self._delayed[position % self._capacity] = ns

    def done(self, worker: int, tasks: ctypes.Array[_native.Task], count: int) -> None:
        """Answers. Ignores a task that is not this worker's any more."""
        _native.queue_done(self.address, worker, tasks, count)

    # --------------------------------------------------------------------------------- the overflow

    def put(self, *parts: Any, into: tuple[int, int] = NOT_LENT) -> tuple[int, int]:
        """Writes bytes that another process reads by `get`. Returns their offset and number. into: of `lend`; it is
        taken if it fits."""
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        length = sum(map(len, views))
        offset, room = into
        if length <= room <= max(2 * length, _SMALL):
            if length >= _LONG:  # to write to one file, workers take turns
                self._copy(views, offset, room)
                return offset, length
        else:
            offset = self._check(_native.queue_overflow(self.address, max(length, 1)))
        at = offset
        for view in views:
            while view:
                written = os.pwrite(self.overflow.fd, view, at)
                at, view = at + written, view[written:]
        return offset, length

    def _copy(self, views: list[memoryview], offset: int, room: int) -> None:
        data, at = self._piece(offset, room, written=True), 0
        for view in views:
            data[at : at + len(view)] = view
            at += len(view)

    def _piece(self, offset: int, length: int, *, written: bool) -> memoryview:
        """A piece that has its memory, mapped until `drop`."""
        memory = self._mapped.get(offset)
        if memory is None:
            if written and len(self._mapped) >= _MOST_MAPPED:
                self._mapped.clear()
            memory = self._mapped[offset] = self.overflow.map(offset, _paged(length))
            mapping.populate(memory, written=written)
        return memory.data

    def get(self, offset: int, length: int) -> memoryview:
        """Reads them without taking them away."""
        data = np.empty(length, np.uint8).data
        view, at = data, offset
        while view:
            count = os.preadv(self.overflow.fd, [view], at)
            if count == 0:
                raise make(_native.ECORRUPT, f"the loader's overflow ends before byte {at + len(view)}", 0)
            at, view = at + count, view[count:]
        return data

    def view(self, offset: int, length: int) -> memoryview:
        """As `get`, and if it is long the bytes themselves, until `drop`: two copies less."""
        if length < _LONG:
            return self.get(offset, length)
        return self._piece(offset, self._lent.get(offset, length), written=False)[:length]

    def drop(self, offset: int, length: int) -> None:
        """Gives their memory back."""
        self._mapped.pop(offset, None)
        self.overflow.punch(offset, self._lent.pop(offset, 0) or _paged(length))

    def spare(self, offset: int, length: int) -> None:
        """As `drop`, but memory may wait for `lend`: new pages cost more than writing to them."""
        room, (least, most) = self._lent.get(offset) or _paged(length), _SPARE
        if room < least or room + sum(size for _, size in self._spare) > most:
            self.drop(offset, length)
        else:
            self._lent.pop(offset, None)
            self._spare.append((offset, room))

    def lend(self) -> tuple[int, int]:
        """A place for an answer, `NOT_LENT` if there is none. After the answer call `unlend`."""
        if not self._spare:
            return NOT_LENT
        self._spare.sort(key=lambda place: place[1])
        offset, room = self._spare.pop()
        self._lent[offset] = room
        return offset, room

    def unlend(self, lent: tuple[int, int], answered: int = -1) -> None:
        """Gives the memory back if the answer, at another offset, has not taken it."""
        if lent[0] != answered and lent[0] in self._lent:
            self.drop(*lent)

    def free_spare(self) -> None:
        while self._spare:
            self.drop(*self._spare.pop())

    def put_object(self, value: Any) -> tuple[int, int]:
        return self.put(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def get_object(self, offset: int, length: int) -> Any:
        return pickle.loads(self.get(offset, length))

    def take_object(self, offset: int, length: int) -> Any:
        value = self.get_object(offset, length)
        self.drop(offset, length)
        return value

    def _check(self, code: int) -> int:
        if code < 0:
            raise make(code, f"the loader's task queue: {_native.strerror(code).decode()}", 0)
        return code
