"""The task queue: tasks that a loader posts and its workers take, in shared memory
(docs/spec/workers.md)."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import resource
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from .._common.array_addresses import address_of
from .._common.errors import SystemCallError, make
from .._memory.shared_file import SharedFile

_HEADER, _TASK_BYTES, _PAGE, _WAKEUP, _NOTICE, _SPOILED, _MOVED = 4096, 128, 4096, 192, 320, 336, 340
_STARTED = 512  # one byte for each worker

TASK = np.dtype([(field[0], np.dtype(field[1])) for field in _native.Task._fields_])
_ASKED = {
    "first": "u8",
    "index": "i8",
    "row": "u4",
    "buffer": "u4",
    "kind": "u4",
    "alone": "u4",
    "argument": "u8",
    "lent": "u8",
}
ASKED = np.dtype(list(_ASKED.items()))
_OVERFLOW = ("overflow_offset", "overflow_bytes")
_TIMES = ("began_ns", "ended_ns", "augment_ns", "waited_ns", "delayed_ns")
ANSWER = np.dtype([("result", "i4"), ("worker", "u4"), *((name, "u8") for name in (*_OVERFLOW, *_TIMES))])
CANCELLED = -1
PLACE = 64 << 20  # bytes of a place, of which few have memory
_KEPT = 128 << 20  # bytes of memory of all places; a place that comes back loses its memory above this
_MOST_LENT = 1024  # places: each is mapped, and a process may map 65,530 parts of files
_MOST_PLACES = 64  # places that wait to be lent, or that a worker has mapped, as it does not know which were dropped
MOST_TASKS = 1 << 20  # limit of a task queue
POSTED, TAKEN, DONE = 1, 2, 3  # states of a task


def place_of(answer: Any) -> tuple[int, int]:
    """Where in the overflow what a worker answered lies: its offset and bytes."""
    return int(answer["overflow_offset"]), int(answer["overflow_bytes"])


def _paged(length: int) -> int:
    return -(-max(length, 1) // _PAGE) * _PAGE


class _Place:
    """A part of the overflow for the answers to some tasks. It begins with two numbers (docs/spec/workers.md)."""

    def __init__(self, overflow: SharedFile, offset: int) -> None:
        self._overflow, self.offset = overflow, offset
        self._mapped = overflow.map(offset, _PAGE)
        self._numbers = self._mapped[:16].view(np.uint64)

    @property
    def kept(self) -> int:
        """Bytes of it that have memory, as it was lent before."""
        return int(self._numbers[1])

    def part(self, begin: int, end: int) -> memoryview | None:
        """Bytes of it, mapped as long as this memoryview, or one made of it, exists. None: some have no memory that was there
        before, and to map new pages takes longer than calls that write and read."""
        if end > self.kept:
            return None
        mapped = self._mapped
        if end > mapped.size:
            self._mapped = mapped = self._overflow.map(self.offset, _paged(self.kept))
        return mapped.data[begin:end]

    def reserve(self, length: int) -> int:
        """Where in it so many bytes may be written, which no other worker gets; below 0: it has no room."""
        return int(_native.queue_reserve(self._numbers.ctypes.data, PLACE, length))

    def clear(self) -> None:
        self._numbers[1] = max(self.kept, min(_PAGE + int(self._numbers[0]), PLACE))
        self._numbers[0] = 0


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
        self._places: dict[int, _Place] = {}  # those that are mapped, by their offsets
        self._lent: set[int] = set()
        self._spare: list[_Place] = []  # those to be lent again
        self._kept = 0  # bytes of memory of all places
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]  # bytes of a file that the program may write
        self._longest = 2**63 if limit == resource.RLIM_INFINITY else limit
        self._most_lent = min(_MOST_LENT, self._longest // (4 * PLACE))  # each takes up to 2 * PLACE of the overflow
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
        lent: int,
    ) -> int | None:
        """`push` for some rows of a batch of samples, in one call of the library. Both arrays are contiguous. seed: of
        the epoch, from which each task gets the seed of its sample. lent: of `lend`."""
        self._as.kind, self._as.buffer, self._as.overflow_offset = kind, buffer, lent
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

    def put(self, *parts: Any, lent: int = 0) -> tuple[int, int]:
        """Writes bytes that another process reads by `get` or `view`. Returns their offset and number. lent: the place that
        the task has for its answer; they lie elsewhere if it has no room."""
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        length = sum(map(len, views))
        offset, part = self._room(lent, length)
        at = offset
        for view in views:
            if part is not None:
                part[at - offset : at - offset + len(view)] = view
                at, view = at + len(view), view[:0]
            while view:
                try:
                    written = os.pwrite(self.overflow.fd, view, at)
                except OSError as error:
                    raise self._too_long() if error.errno == errno.EFBIG else error from None
                at, view = at + written, view[written:]
        return offset, length

    def _room(self, lent: int, length: int) -> tuple[int, memoryview | None]:
        """Where so many bytes go, and this as memory if it is mapped."""
        if lent:
            place = self._place(lent)
            begin = place.reserve(length)
            if begin >= 0:
                return lent + begin, place.part(begin, begin + length)
        return self._check(_native.queue_overflow(self.address, max(length, 1))), None

    def _place(self, offset: int) -> _Place:
        place = self._places.get(offset)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            place = self._places[offset] = _Place(self.overflow, offset)
        return place

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

    def view(self, offset: int, length: int) -> tuple[memoryview, bool]:
        """As `get`, and whether it is the memory of a place, which others write to after `unlend`."""
        place, begin = self._places.get(offset - offset % PLACE), offset % PLACE
        part = None if place is None else place.part(begin, begin + length)
        return (self.get(offset, length), False) if part is None else (part, True)

    def drop(self, offset: int, length: int) -> None:
        """Gives their memory back. In a place they stay until `unlend`."""
        if offset - offset % PLACE not in self._places:
            self.overflow.punch(offset, _paged(length))

    def lend(self) -> int:
        """A place for the answers to the tasks of a batch. Call `unlend` when all are done, and no process reads their
        answers any more. 0: none, as too many answers wait to be read."""
        if len(self._lent) >= self._most_lent:
            return 0
        offset = self._spare.pop().offset if self._spare else self._new_place()
        self._lent.add(offset)
        return offset

    def _new_place(self) -> int:
        first = self._check(_native.queue_overflow(self.address, 2 * PLACE))
        offset = first - first % PLACE + PLACE
        os.pwrite(self.overflow.fd, bytes(1), offset + PLACE - 1)  # the file must be as long as what is mapped
        self.overflow.punch(offset + PLACE - _PAGE, _PAGE)
        self._places[offset] = _Place(self.overflow, offset)
        return offset

    def unlend(self, lent: int) -> None:
        """Its memory serves answers to come, as new pages cost more than writing to them."""
        if not lent:
            return
        self._lent.remove(lent)
        place = self._places[lent]
        self._kept -= place.kept
        place.clear()
        self._kept += place.kept
        if self._kept > _KEPT or len(self._spare) >= _MOST_PLACES:
            self._free(place)
        else:
            self._spare.append(place)

    def _free(self, place: _Place) -> None:
        self._kept -= self._places.pop(place.offset).kept
        self.overflow.punch(place.offset, PLACE)

    def free_spare(self) -> None:
        while self._spare:
            self._free(self._spare.pop())

    def put_object(self, value: Any) -> tuple[int, int]:
        """`put`. If the file gets too long, there are no bytes, and whoever reads them raises it."""
        try:
            return self.put(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except SystemCallError:
            return 0, 0

    def get_object(self, offset: int, length: int) -> Any:
        if not length:
            raise self._too_long()
        return pickle.loads(self.get(offset, length))

    def _too_long(self) -> SystemCallError:
        return SystemCallError(
            "a loader and its workers talk through a file in memory, most parts of which they use once, and this process "
            f"may write files of {self._longest} bytes at most (RLIMIT_FSIZE); raise it (ulimit -f)"
        )

    def take_object(self, offset: int, length: int) -> Any:
        value = self.get_object(offset, length)
        self.drop(offset, length)
        return value

    def _check(self, code: int) -> int:
        if code < 0:
            raise make(code, f"the loader's task queue: {_native.strerror(code).decode()}", 0)
        return code
