"""Keeps random samples out of a cache, which would give the same values in every epoch.

The global generators are watched during each load whose sample may be cached. If one has moved, the
sample is loaded twice more, from two different states. A generator was drawn from if it moves in
both loads, and their different start states lead to different end states. Then the sample is
random, even if its values are equal. A dataset that draws nothing the second time has built
something, such as a model. A dataset that ends in the same state has seeded the generator. Neither
is random.

Generators that a dataset owns cannot be watched. So some of the samples are loaded again and
compared."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._common import threads
from .._common.errors import NondeterministicDatasetError, SchemaError
from .._random.base_seeds import hidden
from .._random.generator import Generator
from .._random.generators import kept, known, observe
from .._samples.structure import Encoded
from .._samples.tree import same
from . import loading
from .fills import Fills

_TIMEOUT = 30.0  # seconds that a thread waits until no other thread loads
_ROUNDS = 4  # checks whether another thread draws
_QUIET = 0.002, 0.25  # seconds: the least and the most that a check takes
_SHOWN = 16  # the most samples in a message

_seeds = itertools.count(1)


@dataclass(frozen=True)
class Remedy:
    """The advice in an error, in terms of the function that the user called."""

    advice: str  # a sentence: where the random part belongs
    option: str  # the call that caches samples without checks
    what: str = "the dataset"
    easier: Callable[[], str] = str  # gives advice that comes first; "": there is none
    frozen: str = "a cache would freeze the first result for ever"
    converted: str = "give augment=augment"  # what to do with the random steps that image.convert returns


def remedy_of(call: str) -> Remedy:
    """The remedy for a function that takes augment=."""
    return Remedy(
        f"Move the random part of the transform to {call}(dataset, ..., augment=fn), which is applied to every sample after it comes from the cache.",
        f"{call}(dataset, ..., allow_random=True)",
    )


@dataclass(frozen=True)
class Finding:
    """What is random about a sample."""

    samples: Sequence[int]  # one of them is random
    drawn: tuple[str, ...]  # generators that it draws from
    where: str | None  # which of its values differs; None: none

    def text(self, remedy: Remedy) -> str:
        drawn = " and ".join(f"the global generator of {name}" for name in self.drawn)
        differs = f"was loaded again and {self.where}"
        said = f"draws random numbers from {drawn}" + (f"; it {differs}" if self.where else "") if drawn else differs
        own = (
            ""
            if drawn
            else f" No global generator was drawn from: {remedy.what} has one of its own, or depends on something else that changes."
        )
        easier = remedy.easier()
        advice = f"{easier} Or do it yourself. {remedy.advice}" if easier else remedy.advice
        return (
            f"{self._who()} of {remedy.what} {said}: {remedy.frozen}.{own} {advice} {remedy.option} keeps it as it is."
        )

    def _who(self) -> str:
        if len(self.samples) == 1:
            return f"sample {self.samples[0]}"
        more = f" and {len(self.samples) - _SHOWN} others" if len(self.samples) > _SHOWN else ""
        return f"one of the samples {', '.join(map(str, self.samples[:_SHOWN]))}{more}"


class UndecidedError(Exception):
    """It is unknown whether a sample is random: it could not be loaded again, or not alone."""


def watched(load: Callable[[], Any]) -> tuple[Any, bool]:
    """The result of `load`, and whether a global generator has moved during it."""
    loading.enter()
    try:
        before = observe()
        given = load()
        return given, observe() != before
    finally:
        loading.leave()


def examine(
    indices: Sequence[int],
    samples: Sequence[Any],
    moved: bool,
    again: Callable[[], Sequence[Any]],
    encode: Callable[[Any], Encoded],
) -> Finding | None:
    """What is random about samples that were loaded; None: nothing was found.

    Loads them once more, or twice more if generators have moved. again: loads them. encode: gives
    copies, or raises SchemaError if the sample cannot be cached. Raises UndecidedError."""
    with loading.alone(_TIMEOUT) as alone:
        if alone is None:
            raise UndecidedError
        # Before the next load: a dataset may keep its samples and change them.
        first = [encoded(sample, encode) for sample in samples]
        with kept(), hidden():
            try:
                drawn, given = _drawn(again) if moved else ([], [again()])
            except Exception as error:
                raise UndecidedError from error
            for others in given:
                for index, one, other in zip(indices, first, others):
                    where = difference(one, encoded(other, encode))
                    if where is not None:
                        return Finding([index], tuple(generator.name for generator in drawn), where)
            if drawn and (alone.joined or _others_run()):
                drawn = _confirmed(drawn, again)
            if moved and alone.disturbed:
                raise UndecidedError
    return Finding(indices, tuple(generator.name for generator in drawn), None) if drawn else None


def _drawn(again: Callable[[], Any]) -> tuple[list[Generator], list[Any]]:
    """The generators that two loads drew from, and the results of the loads.

    Both loads must move the generator. They begin in different states, and must end in different
    ones."""
    generators = known()
    given, moves, ends = [], [], []
    for _ in range(2):
        sample, moved = _from_seed(generators, again)
        given.append(sample)
        moves.append(moved)
        ends.append([generator.state() for generator in generators])
    drawn = [g for g, a, b, end, other in zip(generators, *moves, *ends) if a and b and end != other]
    return drawn, given


def _from_seed(generators: Sequence[Generator], again: Callable[[], Any]) -> tuple[Any, list[bool]]:
    """The result of a load, and which generators it moves."""
    seed = next(_seeds)
    for generator in generators:
        generator.seed(seed)
    before = [generator.state() for generator in generators]
    given = again()
    return given, [generator.state() != state for generator, state in zip(generators, before)]


def _confirmed(drawn: list[Generator], again: Callable[[], Any]) -> list[Generator]:
    """The generators that the load draws from, not another thread of the program: they move in each
    load, and never between loads."""
    for _ in range(_ROUNDS):
        start = time.monotonic()
        _, moved = _from_seed(drawn, again)
        drawn = [generator for generator, moves in zip(drawn, moved) if moves]
        before = [generator.state() for generator in drawn]
        time.sleep(min(max(time.monotonic() - start, _QUIET[0]), _QUIET[1]))
        drawn = [generator for generator, state in zip(drawn, before) if generator.state() == state]
        if not drawn:
            break
    return drawn


def _others_run() -> bool:
    """Whether the process has threads of the program or of other libraries."""
    ours = sum(
        thread.name.startswith("stocached ")
        for thread in threading.enumerate()
        if thread is not threading.current_thread()
    )
    return len(threads.running()) > 1 + ours


def encoded(sample: Any, encode: Callable[[Any], Encoded]) -> Encoded | str:
    """The values of a sample, or why it cannot be cached."""
    try:
        return encode(sample)
    except SchemaError as error:
        return str(error)


def difference(a: Encoded | str, b: Encoded | str) -> str | None:
    """Where two samples differ. None: they are equal, or the first one cannot be cached."""
    if isinstance(a, str):
        return None
    if isinstance(b, str):
        return b
    for (what, x), (other, y) in zip(a, b):
        if not same(x, y):
            return f"{what} differs" if what == other else f"{what}, is {other} now"
    return None if len(a) == len(b) else "it differs"


class Guard:
    """Checks the loads of one dataset, in every process of the program."""

    __slots__ = ("_encode", "_fills", "_remedy", "_take_back")

    def __init__(
        self, fills: Fills, remedy: Remedy, encode: Callable[[Any], Encoded], take_back: Callable[[Fills], str]
    ) -> None:
        """take_back: removes the stored samples from the cache, and returns a sentence about it."""
        self._fills, self._remedy, self._encode, self._take_back = fills, remedy, encode, take_back

    def load(self, index: int, load: Callable[[], Any], again: Callable[[], Any] | None = None) -> tuple[Any, bool]:
        """A sample, and whether it may be stored. Raises NondeterministicDatasetError.

        again: loads it once more, if `load` works only once."""
        self._fills.error.check()
        sample, moved = watched(load)
        return sample, not moved or self._may_be_stored([index], [sample], lambda: [(again or load)()])

    def load_several(self, indices: Sequence[int], load: Callable[[], Sequence[Any]]) -> tuple[Sequence[Any], bool]:
        """`load` of several samples at once."""
        self._fills.error.check()
        samples, moved = watched(load)
        return samples, not moved or self._may_be_stored(indices, samples, load)

    def stored(self, index: int, sample: Any = None, again: Callable[[], Any] | None = None) -> None:
        """The caller has stored a sample. Raises NondeterministicDatasetError.

        again: loads it once more; some of the samples are compared so."""
        fills = self._fills
        fills.add(index)
        if fills.error.flag[0]:  # another worker has found an error since
            self._take_back(fills)
            fills.error.check()
        if again is not None and fills.compared():
            self._compare([index], [sample], False, lambda: [again()])

    def refuse(self, finding: Finding) -> NondeterministicDatasetError:
        """The error about a sample. From now on no process stores samples, and the stored ones are
        removed."""
        fills, text = self._fills, finding.text(self._remedy)
        fills.error.publish(NondeterministicDatasetError(text))
        error = NondeterministicDatasetError(f"{text} {self._take_back(fills)}".rstrip())
        fills.error.publish(error)
        return error

    def _may_be_stored(
        self, indices: Sequence[int], samples: Sequence[Any], again: Callable[[], Sequence[Any]]
    ) -> bool:
        return not self._fills.drew() or self._compare(indices, samples, True, again)

    def _compare(
        self, indices: Sequence[int], samples: Sequence[Any], moved: bool, again: Callable[[], Sequence[Any]]
    ) -> bool:
        """Whether the samples are known not to be random."""
        try:
            finding = examine(indices, samples, moved, again, self._encode)
        except UndecidedError:
            return False
        if finding is not None:
            raise self.refuse(finding)
        return True
