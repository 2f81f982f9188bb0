"""The samples of a dataset, each loaded once and then read from a cache. Takes tensors, but needs
no torch."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from .._cache import opening, reading
from .._cache.cache import Cache
from .._cache.gathering import Indices
from .._cache.handle import attach_process
from .._cache.policies import Policy
from .._checks import randomness
from .._checks.derived_fingerprint import Derived, derive
from .._checks.fills import Fills
from .._checks.randomness import Guard, Remedy, remedy_of
from .._common.errors import (
    BadSampleError,
    CachePermissionError,
    FingerprintError,
    InvalidError,
    NondeterministicDatasetError,
)
from .._common.numbers import position_of
from .._common.processors import processors
from .._common.reads_ahead import ahead_of
from .._image.errors import DecodeError
from .._memory.buffer_pool import BatchBuffers, SampleBuffers
from .._random import generators
from .._samples.batch_layout import LARGE
from .._samples.structure import Encoded, Structure
from .._samples.tree import Tree
from .._samples.values import VariableValues
from .._trace.augment_time import augmented
from .._workers import set_up
from . import augment_error, comparison, looks, mistaken, probe, stores
from .augment_function import check_alone
from .cache_backed import CacheBacked
from .comparison import Comparing
from .lists import PackedLists
from .looks import LookHere, LookInChild
from .making import CacheOptions, add_disk, check_fields, make
from .misses import Misses, take_back
from .notices import Notices, say_if_private
from .schema_trial import MOST, Trial
from .stores import Store
from .thread_hits import ThreadHits

if TYPE_CHECKING:
    from .._image.folder import Encoded as EncodedForm
    from .store_trial import Tried

_REMEDY = remedy_of("CachedDataset")
_log = logging.getLogger("stocached")

BadSamplesAre = Literal["error", "skip"]


def check_cache(cache: Any) -> None:
    """Raises InvalidError if the argument cache= is neither a Cache nor None."""
    if cache is not None and not isinstance(cache, Cache):
        raise InvalidError(
            f"cache={cache!r:.100} is no Cache; give name= and size= for a cache with a name, or Cache.attach(name)"
        )


def check_bad_samples(bad_samples: Any) -> None:
    if bad_samples not in ("error", "skip"):
        raise InvalidError(f'bad_samples={bad_samples!r}; it must be "error" or "skip"')


def _check_arguments(
    dataset: Any, cache: Any, options: CacheOptions, store: Any, bad_samples: Any, augment: Any
) -> None:
    check_cache(cache)
    mistaken.refuse("CachedDataset", dataset)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidError(
            f"a cache needs a dataset with len() and [index], and a {type(dataset).__name__} does not have both"
        )
    n = len(dataset)
    if n < 1:
        raise InvalidError("the dataset is empty")
    options.check(store)
    check_bad_samples(bad_samples)
    if augment is not None:
        check_alone(augment, "augment", "the whole sample, such as the tuple (image, label)")
    if cache is not None and options != CacheOptions():
        raise InvalidError(
            "size=, name=, fingerprint=, variable=, policy= and disk= are for a cache that is made here; leave them out or leave out cache="
        )
    if cache is not None and cache.samples != n:
        raise InvalidError(f"the cache is for {cache.samples} samples, the dataset has {n}")


class CachedSamples(CacheBacked):
    """As stocached.torch.CachedDataset, without torch's base class."""

    _enter_worker = staticmethod(set_up.numpy_worker)
    _parts_given = _samples_of = ("dataset", "augment")  # for `only_ours`, and for fingerprints

    def __init__(
        self,
        dataset: Any,
        cache: Cache | None = None,
        *,
        size: int | str | None = None,
        augment: Callable[[Any], Any] | None = None,
        name: str | None = None,
        fingerprint: str | None = None,
        variable: bool | None = None,
        policy: Policy | None = None,
        disk: int | str | None = None,
        disk_dir: str | os.PathLike[str] | None = None,
        disk_policy: Policy | None = None,
        allow_random: bool = False,
        store: Store = "decoded",
        bad_samples: BadSamplesAre = "error",
        _remedy: Remedy = _REMEDY,
        _workers: int | None = None,
        _forks: bool | None = None,
        _init: looks.Init | None = None,
        _augment: Callable[..., Any] | None = None,
        _best: Policy = "cost",
    ) -> None:
        """dataset: an object with len() and [index]. It must not draw random numbers; augment may.
        cache: a cache of yours, whose fields take the leaves of a sample in order. None: makes one,
            with a field for each leaf.
        size: the most memory that the cache may take, in bytes or such as "8GiB". None: enough for
            every sample.
        augment: is called with each sample, from the cache or not, and returns what the caller
            gets.
        name: ranks and jobs that give the same name share the cache, which stays until it is
            removed. None: workers of this process share it.
        fingerprint: names dataset and transform; a named cache with another one is refused. Change
            it when the data changes. None: it is derived, and if that is not certain, samples of a
            filled cache are compared.
        variable: True: caches samples of any shape. False: of one shape, which is faster. None: as
            the probed samples need.
        policy: which samples a full cache keeps: "cost" the ones that take longest to load,
            "first-come" the first ones, or another policy of `Cache.create`. None: "cost" in a
            cache without a name that holds a part of the samples, if they have one size ("lfu" if
            a loader reads some samples more often). Else "first-come", or what the named cache has.
        disk, disk_dir: the most that a file in this folder may take, such as "200GiB", and the folder,
            on a local disk. What the cache misses comes from the file if it was loaded before, also
            by an earlier program. All programs that give the same folder and fingerprint share the
            file. It needs fingerprint=, or a dataset whose fingerprint is certain.
        disk_policy: which samples a full file keeps: "first-come" (None), "random", "clock", "fifo",
            "lru" or "lfu"; samples that differ in size have "first-come".
        allow_random: caches a random dataset as it is: samples are not checked, and a filled cache
            is not compared with the dataset.
        store: of pictures (stocached.image.Folder or Shards): "decoded" caches samples as they are,
            "encoded" the bytes of files, which are decoded each time. "auto" measures a few files,
            and takes what makes an epoch shorter; the attribute `store` then says which. It takes
            the store of a cache that exists.
        bad_samples: "skip": if a sample that the constructor would load is bad, it takes another one.
            A loader with bad_samples="skip" leaves bad samples out of its batches.

        Raises NondeterministicDatasetError if one of three samples is random (later loads raise it
        too), FingerprintError if a filled cache holds other data than the dataset, SchemaError if
        samples cannot be cached, CacheMemoryError (MemoryError) with the numbers if the cache does
        not fit."""
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        options = CacheOptions(**{field.name: arguments[field.name] for field in fields(CacheOptions)})
        _check_arguments(dataset, cache, options, store, bad_samples, augment)
        self.dataset = dataset
        self.augment = augment
        self._n = len(dataset)
        self.thread_hits = ThreadHits()
        self.notices: Notices = Notices()
        self._comparison: Comparing | None = None
        self._guard: Guard | None = None  # checks loads
        self.made = False  # whether this program has made the cache
        self.passed_over = (BadSampleError,) if bad_samples == "skip" else ()  # errors of a sample that is looked at
        self._workers, self._forks, self._init, self._allow_random = _workers, _forks, _init, allow_random
        self._remedy = replace(_remedy, easier=functools.partial(stores.advice_to_convert, dataset, _remedy.converted))
        tried = self._choose(store, cache, options, augment or _augment)
        varies = True if self.store == "encoded" else variable
        # Before a load changes the dataset.
        wanted = (name is not None or disk is not None) and fingerprint is None
        self.derived = derived = derive(self.stored) if wanted else None
        if cache is not None:
            self.cache = cache  # so that the look has it
        self._structure: Structure
        with self._look(self.stored) as look:
            self._structure, sample_bytes, quiet = look.ask(CachedSamples._probe, varies, allow_random)
            if cache is None and name is None:
                look.finish()  # a new cache is empty
            try:
                named = derived if name is not None else None
                self._take_cache(cache, replace(options, variable=varies), sample_bytes, named, _best)
                add_disk(options, self.cache, derived, self.store)
            except stores.OtherStoreError:  # another program has just made the cache
                if store != "auto":
                    raise
                CachedSamples.__init__(self, **arguments)
                return
            if not (allow_random or self.cache.read_only):
                fills, removed = Fills(0 if self.made else self._n), functools.partial(take_back, self.cache, self.made)
                self._guard = Guard(fills, self._remedy, self._encoder(), removed)
            self._make_buffers()
            self._misses = Misses(self.stored, self.cache, self._structure, self._guard, self.notices)
            if not allow_random and probe.cached_now(self.cache).size:
                look.ask(probe.check_fresh, self.cache.name, self.cache._held())
                if not self.made and fingerprint is None:
                    self._comparison = comparison.begin(self, look, named, in_background=quiet)
            if self.made:
                self._keep(tried)

    def _look(self, dataset: Any, root: Any = None) -> LookHere | LookInChild:
        """root: of `looks.begin`; None: this object."""
        root = self if root is None else root
        return looks.begin(root, dataset, self._enter_worker, forks=self._forks, workers=self._workers, init=self._init)

    def _choose(
        self,
        store: Store,
        cache: Cache | None,
        options: CacheOptions,
        augment: Callable[..., Any] | None,
    ) -> list[Tried]:
        """Sets what the cache keeps. Returns the files that were measured, if some were."""
        form = None if store == "decoded" else stores.form_of(self.dataset, store)
        self.store: str = store  # "decoded" or "encoded"
        self.why, tried = "", list["Tried"]()
        if form is not None and store == "auto":
            there = options.existing()
            if cache is not None:
                self.store, self.why = stores.store_of(cache), "it is that of the cache"
            elif there is not None:
                with there:
                    self.store, self.why = stores.store_of(there), "the cache exists"
            else:
                tried = self._measure(form, options, augment)
        self._form = form if self.store == "encoded" else None
        self.stored = self.dataset if self._form is None else self._form  # its samples are cached
        return tried

    def _measure(self, form: EncodedForm, options: CacheOptions, augment: Callable[..., Any] | None) -> list[Tried]:
        """Sets the store that makes an epoch shorter, and why."""
        from .store_trial import Files  # needs the library for pictures

        workers = processors() if self._workers is None else self._workers
        with self._look(self.dataset, (form, self._n, workers, augment)) as look:
            # Without policy=, a named cache keeps the first samples.
            policy = options.policy or (None if options.name is None else "first-come")
            tried: list[Tried]
            self.store, self.why, tried = look.ask(Files.tried_for, options.size, options.variable, policy)
        _log.info("store=%r: %s", self.store, self.why)
        return tried

    def _keep(self, tried: list[Tried]) -> None:
        """Caches the files that were measured."""
        for one in tried:
            sample, cost = one.sample, one.read
            if self._form is None:
                sample, cost = one.decoded, one.read + (one.decode or 0)
            if sample is not None:
                self._misses.keep(one.index, sample, cost)

    def _probe(self, variable: bool | None, allow_random: bool) -> tuple[Structure, list[int], bool]:
        """Learns from a few samples what samples are, and checks that they are not random. Returns also their bytes
        in rising order, and whether loads draw no random numbers."""
        dataset, before = self.stored, generators.observe()
        first = probe.first_samples(dataset, self._n, self.passed_over)
        samples = {index: sample for index, (sample, _) in first.items()}
        most = probe.PROBES if isinstance(dataset, PackedLists) else MOST
        trial = Trial(samples, functools.partial(probe.load, dataset), self._n, most)
        quiet = generators.observe() == before
        # A folder of pictures knows that their sizes differ, even if those of the probed samples do not.
        vary = True if variable is None and getattr(dataset, "sizes_vary", None) is True else variable
        self._structure = Structure(trial.tree, trial.fields(vary))
        if not allow_random:
            for index, (sample, moved) in first.items():
                self.check_repeatable(dataset, index, sample, moved)
                self._check_decoding(index, sample)
        return self._structure, trial.bytes(), quiet

    def _check_decoding(self, index: int, sample: Any) -> None:
        """Raises NondeterministicDatasetError if a step that makes the picture out of the bytes is random."""
        if self._form is None:
            return
        decode = functools.partial(self._form.decoded, index, sample)
        # The program gets an error of the file when it reads the sample.
        with contextlib.suppress(randomness.UndecidedError, DecodeError):
            made, moved = randomness.watched(decode)
            finding = randomness.examine([index], [made], True, lambda: [decode()], lambda _: []) if moved else None
            if finding is not None:
                raise NondeterministicDatasetError(finding.text(self._remedy))

    def check_repeatable(self, dataset: Any, index: int, sample: Any, moved: bool = False) -> None:
        """Loads a sample again from `dataset`. NondeterministicDatasetError if it is random.

        moved: a global generator has moved during the first load."""
        with contextlib.suppress(randomness.UndecidedError):
            looks.note(index)
            finding = randomness.examine([index], [sample], moved, lambda: [dataset[index]], self.encode)
            if finding is not None and self._guard is not None:
                raise self._guard.refuse(finding)
            if finding is not None:
                raise NondeterministicDatasetError(finding.text(self._remedy))

    def encode(self, sample: Any) -> Encoded:
        """The values of a sample with their names, to compare it with another one."""
        return self._encoder()(sample)

    def _encoder(self) -> Callable[[Any], Encoded]:
        return self.stored.encoded if isinstance(self.stored, PackedLists) else self._structure.encode

    # ------------------------------------------------------------ the cache

    def _take_cache(
        self, cache: Cache | None, options: CacheOptions, sample_bytes: list[int], derived: Derived | None, best: Policy
    ) -> None:
        """Takes the cache of the user, or makes one. sample_bytes: of the probed samples, in rising order."""
        fields = self._structure.fields()
        if cache is not None:
            self.cache = cache
        else:
            if options.name is None:
                say_if_private()
            lists = isinstance(self.stored, PackedLists)
            self.cache, self.made = make(
                options, self._n, fields, sample_bytes, derived, best, lists, self._check_store
            )
        check_fields(self.cache, fields)
        self.notices.advice = self.advice(given=cache is not None)

    def _make_buffers(self) -> None:
        self._batches = BatchBuffers(self.cache.fields)
        self._raw = SampleBuffers(0 if self.cache.variable else self.cache.sample_bytes)

    def attach_for_look(self, name: str | None, held: tuple[int, int, bytes]) -> None:
        """A child that was forked before this object had a cache attaches to it: to the file that the parent holds, as
        another process may have removed it and made another of this name."""
        if not hasattr(self, "cache"):
            try:
                self.cache = Cache(attach_process(*held))
            except CachePermissionError:  # the parent lets none open its files
                self.cache = Cache(opening.attach(name or "", None, False))
        if not hasattr(self, "_raw"):
            self._make_buffers()

    def _check_store(self, cache: Cache) -> None:
        """Raises OtherStoreError if the cache, which another program has made, has the other store."""
        there = stores.store_of(cache)
        if there != self.store and (self._form is not None or stores.has_form(self.dataset)):
            raise stores.OtherStoreError(
                f"cache {cache.name!r} exists with store={there!r}, and store={self.store!r} was asked for; give "
                f'store={there!r} or store="auto", use another name, or remove it{probe.removal(cache)}'
            )

    def advice(self, given: bool) -> str:
        """What the user can do about samples whose shapes differ from the cache's. given: the user
        gave the cache."""
        if given:
            return "A cache that is created with variable=True, and with None for the dimensions that differ, takes them all"
        where = f", in a new cache{probe.removal(self.cache)}" if self.cache.name else ""
        return f"variable=True caches samples of any shape{where}"

    def of(self, dataset: Any) -> CachedSamples:
        """The same cache, whose misses come from an equal dataset."""
        other = copy.copy(self)
        other.dataset = dataset
        other._form = None if self._form is None else stores.form_of(dataset, self.store)
        other.stored = dataset if other._form is None else other._form
        other._misses = Misses(other.stored, self.cache, self._structure, self._guard, self.notices)
        return other

    def over(self, cache: Cache) -> CachedSamples:
        """The same samples over another handle of the cache."""
        other = copy.copy(self)
        other.cache, other._batches = cache, BatchBuffers(cache.fields)
        other._misses = Misses(self.stored, cache, self._structure, self._guard, self.notices)
        return other

    def _take(self, cache: Cache) -> None:
        """Other programs may fill the cache, so the first loads are checked again, and only this program's samples are
        ever taken back."""
        self.made = False
        if self._guard is not None:
            removed = functools.partial(take_back, cache, False)
            self._guard = Guard(Fills(self._n), self._remedy, self._encoder(), removed)
        vars(self).update(vars(self.over(cache)))

    def is_fresh(self) -> bool:
        """Whether the cache still holds the samples of the dataset; compares three, unless they may be random."""
        if len(self.dataset) != self._n:
            return False
        if self._form is not None:
            self._form = stores.form_of(self.dataset, self.store)  # its steps may be others now
        if self._allow_random:
            return True
        with contextlib.suppress(FingerprintError), self._look(self.stored) as look:
            look.ask(probe.check_fresh, self.cache.name, self.cache._held())
            return True
        return False

    def has_changed(self, before: Derived | None, now: Derived) -> bool:
        """Whether what the samples are made of has changed, as the fingerprints of the dataset tell. before: when the
        cache was made."""
        moved = set() if before is None else now.moved(before)
        if not moved:
            return False
        with self._look(self.dataset) as look:
            after: Derived = look.ask(CachedSamples._derived_after_loads)
        return bool(moved - after.moved(now))  # what loads change says nothing

    def _derived_after_loads(self) -> Derived:
        for dataset in (*_of_caches(self.dataset), self.dataset):
            with contextlib.suppress(Exception):
                for index in probe.spread(len(dataset)):
                    with contextlib.suppress(Exception):
                        probe.load(dataset, index)
        return derive(self.dataset)

    # ------------------------------------------------------------ samples

    def gathered_tree(self) -> Tree | None:
        return self._structure.gathered_tree()

    def __len__(self) -> int:
        self.notices.warn()  # samplers ask for the length at the start of each epoch
        return self._n

    def __getitem__(self, index: int) -> Any:
        i = self._index(index)
        return self.finish(i, self.peek(i))

    def finish(self, i: int, sample: Any, *, lent: bool = False) -> Any:
        """A sample as the caller gets it. sample: the result of `peek`; None: it is loaded. lent: the caller only copies
        it."""
        lent = lent and self.augment is None
        return self._finished(i, self._misses.load(i, lent=lent) if sample is None else sample)

    def _finished(self, i: int, sample: Any) -> Any:
        """sample: as it is cached."""
        if self._form is not None:
            sample = self._form.decoded(i, sample)
        if self.augment is None:
            return sample
        try:
            return augmented(self.augment, sample)
        except Exception as error:
            augment_error.raise_of_sample(error, self.augment, sample, self.dataset, i)

    def peek_several(self, indices: list[int], most: int) -> list[Any] | None:
        """`peek` of up to `most` small samples, in a fraction of the time. None: they are large;
        use `peek`."""
        if self.cache.variable or self.cache.sample_bytes >= LARGE:
            return None
        return self._gather(indices, most)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch: one gather for the hits; misses come from the dataset."""
        wanted = [self._index(index) for index in indices]
        samples = self._gather(wanted, len(wanted))
        missed = [k for k, sample in enumerate(samples) if sample is None]
        for k, sample in zip(missed, self._misses.load_several([wanted[k] for k in missed])):
            samples[k] = sample
        return [self._finished(i, sample) for i, sample in zip(wanted, samples)]

    @property
    def ahead(self) -> Callable[[Indices], None] | None:
        """Has samples that the cache lacks read soon, if the dataset can do that."""
        tell = ahead_of(self.stored)
        return None if tell is None else lambda indices: tell(self._lacking(indices))

    def _lacking(self, indices: Indices) -> Indices:
        return indices[[index not in self.cache for index in indices.tolist()]]

    def _index(self, index: int) -> int:
        return position_of(index, self._n)

    def peek(self, i: int) -> Any:
        """A sample from the cache, not augmented yet; None on a miss."""
        self.notices.error.check()
        cache = self.cache
        value = cache.get(i, copy=True) if cache.variable else reading.copy_into(cache, i, *self._raw.take())
        if value is None:
            return None
        self.thread_hits.count += 1
        return self._sample(value)

    def load_record(self, i: int) -> Any:
        """As `peek`, without a count."""
        value = reading.uncounted_copy(self.cache, i)
        return None if value is None else self._sample(value)

    def _gather(self, wanted: list[int], most: int) -> list[Any]:
        """Hits as samples, and None for misses. most: takes arrays of this number of rows."""
        self.notices.error.check()
        cache = self.cache
        if isinstance(cache._values, VariableValues):
            values, hit = cache.gather(wanted)
            self.thread_hits.add(hit)
            return [None if value is None else self._sample(value) for value in values]
        arrays = [array[: len(wanted)] for array in self._batches.take(most)]
        _, hit = cache.gather(
            wanted, out=arrays[0] if len(arrays) == 1 else dict(zip((field.name for field in cache.fields), arrays))
        )
        self.thread_hits.add(hit)
        return self._structure.samples(arrays, hit, cache.fields)

    def _sample(self, value: Any) -> Any:
        """A sample made of the cache's value."""
        return self._structure.sample(value, self.cache.fields)

    def __getstate__(self) -> dict[str, Any]:
        # A process that gets it looks at no samples: the function need not be one that pickles.
        return {**self.__dict__, "_comparison": None, "_init": None}

    def stats(self) -> Any:
        """`Cache.stats()` of its cache."""
        return self.cache.stats()

    def __repr__(self) -> str:
        why = f", store={self.store!r} ({self.why})" if self.why else "" if self._form is None else ", store='encoded'"
        return f"<{type(self).__module__}.{type(self).__name__} of {self.dataset!r} in {self.cache!r}{why}>"


def _of_caches(dataset: Any) -> list[Any]:
    """The datasets in the caches that it reads: a load that hits there calls no function of theirs."""
    inside, more = getattr(dataset, "dataset", None), getattr(dataset, "datasets", ())
    found = list[Any]()
    for one in (inside, *(more if isinstance(more, (list, tuple)) else ()), *getattr(dataset, "caches", ())):
        if one is not None and one is not dataset:
            found += _of_caches(one)
            found += [one.dataset] if isinstance(one, CachedSamples) else []
    return found
