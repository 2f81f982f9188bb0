"""Measures a loader of stocached, by a copy of it that records."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._common.errors import InvalidError
from .._datasets import looks
from .._random import generators
from .._trace import Recorder
from .measuring import EPOCH, Feed, Step, batch_size_of, bytes_of, checked, epoch_samples, indices, step_of, until
from .sampling import OrderSampler

_SOME = 16  # samples that say how large they are


class OurTrial:
    """The copy reads the cache of the loader, and stores nothing in it."""

    def __init__(self, loader: Any) -> None:
        checked(loader, loader._iterable)
        cached: Any = loader._cached
        if getattr(cached, "store", "") == "encoded":
            raise InvalidError('advise() adds up loads, and with store="encoded" an epoch also decodes each sample')
        self._loader = loader
        self.notes: list[str] = []
        self.cache, self.source_share = loader.cache, loader._meter.source_share
        self._made = dict(loader.settings) | {"trace": None, "persistent_workers": False} | self._order()
        self._reader: Any = None
        if cached is None:
            return
        none = ("cache", "size", "name", "fingerprint", "variable", "policy", "disk", "disk_dir", "disk_policy")
        self._made |= dict.fromkeys(none) | {"store": "decoded"}  # the dataset of the copy has its own
        if cached.served:
            self.notes.append("a server fills this cache: what was missed, it has read")
            return
        self._reader = loader.cache._reader()
        self._made["dataset"] = cached.over(self._reader)
        if loader.cache.stats().ready == 0:
            self.notes.append("its cache is empty: this is the time of a first epoch")

    def _order(self) -> dict[str, Any]:
        """Settings with which the copy reads new samples, and the samplers of the loader do not move."""
        loader, settings = self._loader, self._loader.settings
        own: dict[str, Any] = {"shuffle": False, "batch_sampler": None, "generator": None}
        own |= dict.fromkeys(("seed", "order", "rank", "world_size", "ends", "affinity", "local_world_size"))
        own["batch_size"] = batch_size_of(loader, self.notes)
        if settings.get("batch_sampler") is not None:
            own["drop_last"] = False
        own["sampler"] = Feed(self._indices())
        return own

    def _indices(self) -> Iterator[int]:
        loader, settings = self._loader, self._loader.settings
        sampler = loader.sampler
        if not isinstance(sampler, OrderSampler):
            shuffled = any(settings.get(name) for name in ("shuffle", "sampler", "batch_sampler"))
            yield from indices(len(loader.dataset), shuffled)
        for epoch in itertools.count(EPOCH):
            yield from sampler.order.epoch(epoch).shard(sampler.rank, sampler.world_size, ends=sampler.ends)

    def run(self, path: str, seconds: float, step: Step | None, step_seconds: float | None) -> None:
        loader, work = self._loader, step_of(step, step_seconds)
        about: dict[str, Any] = {"samples": len(loader.dataset), "epoch_samples": epoch_samples(loader)}
        with generators.kept(), warnings.catch_warnings():
            # Of more workers than CPUs: the loader has them.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            copy = type(loader)(**self._made)
            try:
                about |= copy._stored_bytes()
                if copy.cache is None and copy.augment is not None:
                    about["sample_bytes"] = self._mean_bytes()
                copy._count_stages(loader._stages())
                copy._recorder = Recorder(path, settings=loader.settings, about=about)
                batches, enough = iter(copy), until(seconds)
                try:
                    for count, batch in enumerate(batches):
                        work(batch)
                        if enough(count):
                            break
                finally:
                    batches.close()
                slowest = copy.stats().slowest
                if slowest is not None:
                    self.notes.append(f"the slowest stage is {slowest.stage}: {slowest.seconds:.2f} s of work")
            finally:
                copy.close()
                if self._reader is not None:
                    self._reader.close()

    def _mean_bytes(self) -> int:
        """The mean size of a few samples before `augment=`."""
        loader = self._loader
        forks = loader.worker == "process" and looks.are_forked(getattr(loader, "multiprocessing_context", None))
        with looks.begin(loader.dataset, loader.dataset, loader._backend.enter_worker, forks=forks, workers=0) as look:
            mean: int = look.ask(_mean_bytes, len(loader.dataset))
        return mean


def _mean_bytes(dataset: Any, samples: int) -> int:
    some = np.linspace(0, samples - 1, min(samples, _SOME), dtype=int).tolist()
    return max(sum(bytes_of(dataset[index]) for index in some) // len(some), 1)
