"""Checks that a cache filled earlier holds the samples of a dataset: by its fingerprint, or if that
is not certain, by comparing some samples.

A forked child compares them in the background, and a thread waits for its result. Where this process
looks at samples itself, a thread compares them, with a copy of the dataset's objects. So other
threads do not see what a load changes in them, such as a file that it opens. The thread loads alone
in this process. Both threads stop while the process forks."""

from __future__ import annotations

import atexit
import copy
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .._checks import loading
from .._checks.derived_fingerprint import Derived
from .._common import threads
from .._common.background import Background
from .._common.errors import ClosedError, FingerprintError, NondeterministicDatasetError
from . import looks
from .attributes import is_own
from .lists import PackedLists
from .looks import LookHere, LookInChild
from .probe import cached_now, check_sample, removal

_SAMPLES = 32
_LARGE = 1000  # a list with more entries holds data, not objects that load it
_POLL = 0.05  # seconds that it waits for loads of the program before it checks whether it must end


class Comparing(Background):
    """done: it has nothing left to do."""

    timeout = 10.0  # for the current load

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()
        _all.add(self)
        self.put(self._go_on)

    def _go_on(self) -> None:
        if self.done.is_set() or self._is_finished():
            self.done.set()
            self.leave()
        else:
            self.put(self._go_on)

    def _is_finished(self) -> bool:
        """Goes on until `pauses` or `done` is set, or for a moment. Returns whether nothing is left."""
        raise NotImplementedError

    def end(self) -> None:
        self.done.set()
        self.close()


class Comparison(Comparing):
    """Calls `compare` for one index after the other, until it returns False. An index for which it
    raises counts as compared. If it raises for all, it calls `failed` with the last error."""

    def __init__(self, indices: list[int], compare: Callable[[int], bool], failed: Callable[[Exception], None]) -> None:
        self._left, self._compare, self._failed = indices, compare, failed
        self._compared = 0
        super().__init__()

    def _is_finished(self) -> bool:
        with loading.alone(_POLL) as alone:
            if alone is not None:
                self._compare_one(self._left.pop())
        return not self._left

    def _compare_one(self, index: int) -> None:
        try:
            if not self._compare(index):
                self._left.clear()
            self._compared += 1
        except Exception as error:
            if not self._left and not self._compared:
                self._failed(error)


class ChildComparison(Comparing):
    """Waits for the result of a child that compares samples, and publishes it."""

    def __init__(self, look: LookInChild, cached: Any) -> None:
        self._look, self._name, self._notices = look, cached.cache.name, cached.notices
        self._reference = weakref.ref(cached)
        super().__init__()

    def _is_finished(self) -> bool:
        try:
            answer = self._look.answer(lambda: self.pauses or self.done.is_set() or self._needless())
            if answer is looks.PENDING and not self._needless():
                return False
        except (FingerprintError, NondeterministicDatasetError) as error:
            self._notices.error.publish(error)
        except Exception as error:
            _say_failed(self._name, error)
        self._look.end_now()
        return True

    def _needless(self) -> bool:
        cached = self._reference()
        return cached is None or cached.cache.closed

    def end(self) -> None:
        super().end()
        self._look.end_now()


def begin(
    cached: Any, look: LookHere | LookInChild, derived: Derived | None, *, in_background: bool
) -> Comparing | None:
    """Compares a CachedSamples whose cache was filled earlier with its dataset. None: no comparison
    runs in the background.

    derived: the fingerprint of the dataset; None: the caller gave the cache. in_background: another
    thread of this process may load samples, as loads draw no random numbers. Raises
    FingerprintError, NondeterministicDatasetError."""
    cache, old = cached.cache, Derived.parse(cached.cache.fingerprint)
    if derived is not None and old is not None:
        changed = derived.changed(old)
        if changed is not None:
            raise FingerprintError(
                f"cache {cache.name!r} was made for other samples: {changed} changed since then. Use another name, or remove "
                f"it{removal(cache)}. If the samples are equal nevertheless, give a fingerprint= of your own"
            )
        if derived.certain(old):
            return None
    ready = cached_now(cache)
    if cache.name is None or (cache.fingerprint is not None and old is None) or not ready.size:
        return None
    if isinstance(cached.stored, PackedLists):  # three were compared before
        return None
    if derived is not None and derived.reasons:
        _say_once(cache.name, derived.reasons[0])
    chosen: list[int] = np.random.default_rng().choice(ready, min(_SAMPLES, ready.size), replace=False).tolist()
    if isinstance(look, LookInChild) and not look.instead:
        look.put(_compare, cache.name, cache._held(), chosen)
        return ChildComparison(look, cached)
    if in_background:
        return Comparison(
            chosen,
            partial(_goes_on, weakref.ref(cached), private_copy(cached.stored)),
            partial(_say_failed, cache.name),
        )
    for index in chosen:
        check_sample(cached, cached.stored, cached.load_record, index)
    return None


def _compare(cached: Any, name: str, held: tuple[int, int, bytes], chosen: list[int]) -> None:
    """For a look: raises FingerprintError or NondeterministicDatasetError for a sample that differs, and the last other
    error if no sample could be loaded."""
    cached.attach_for_look(name, held)
    failed: Exception | None = None
    compared = 0
    for index in chosen:
        try:
            check_sample(cached, cached.stored, cached.load_record, index)
            compared += 1
        except (FingerprintError, NondeterministicDatasetError):
            raise
        except Exception as error:
            failed = error
    if failed is not None and not compared:
        raise failed


def _goes_on(reference: weakref.ref[Any], dataset: Any, index: int) -> bool:
    """Compares a sample; returns whether to compare others too."""
    cached = reference()
    if cached is None or cached.cache.closed:
        return False
    try:
        check_sample(cached, dataset, cached.load_record, index)
    except (FingerprintError, NondeterministicDatasetError) as error:
        cached.notices.error.publish(error)
        return False
    except ClosedError:
        return False
    return True


def _say_failed(cache: str | None, error: Exception) -> None:
    warnings.warn(
        f"stocached: no sample of cache {cache!r} could be compared with the dataset in the background, as loading them failed "
        f"({type(error).__name__}: {error}). fingerprint= says whether they are the same",
        stacklevel=1,
    )


def private_copy(value: Any, made: dict[int, Any] | None = None) -> Any:
    """A dataset with copies of its lists, dicts and objects of the program's own code. It shares
    all other objects with the original."""
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    kind = type(value)
    if kind in (list, dict, tuple) and len(value) > _LARGE:
        return value
    if kind in (list, dict):
        copied = made[id(value)] = value.copy()
        for key in range(len(value)) if kind is list else value:
            copied[key] = private_copy(value[key], made)
        return copied
    if kind is tuple:
        return tuple(private_copy(item, made) for item in value)
    if not is_own(value) or isinstance(value, threading.local):  # each thread has its own threading.local already
        return value
    try:
        copied = made[id(value)] = copy.copy(value)
        for name, item in vars(copied).items():
            vars(copied)[name] = private_copy(item, made)
    except Exception:  # the class cannot be copied
        return value
    return copied


def _say_once(cache: str | None, reason: str) -> None:
    """Warns that only some samples are compared: once a program, and only in the first rank of a
    machine."""
    global _said
    if not _said and os.environ.get("LOCAL_RANK", "0") == "0":
        _said = True
        warnings.warn(
            f"stocached: cache {cache!r} was filled before, and whether the dataset has changed since then is not certain ({reason}). "
            f"{_SAMPLES} samples are compared in the background; fingerprint= makes it certain",
            stacklevel=2,
        )


_said = False
_all: weakref.WeakSet[Comparing] = weakref.WeakSet()
atexit.register(threads.for_each(_all, lambda comparing: comparing.end()))
