"""A prepared dataset as a DataModule of Lightning: prepared once, split, read in blocks, resumed at
the sample.

Only this module imports Lightning: `lightning`, or `pytorch_lightning` if the program has imported
that one already."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from ._checks.randomness import Remedy
from ._common.errors import InvalidError, StateError
from ._common.numbers import whole
from ._loader.trainer_batches import BareLoader, TrainerBatches
from ._pipes.pictures import preparer_of
from .prepare import BlockSampler, DataPreparer, DataStorage, NotPreparedError, PreparedDataset, Split, prepare, split

__all__ = ["DataModule"]

_SEEDS = {
    "lightning.pytorch": "lightning.fabric.utilities.seed",
    "pytorch_lightning": "lightning_fabric.utilities.seed",
}

_SET_HERE = {  # arguments of the loader that the DataModule sets itself
    "dataset",
    "batch_size",
    "sampler",
    "batch_sampler",
    "shuffle",
    "num_workers",
    "drop_last",
    "order",
    "seed",
    "rank",
    "world_size",
    "ends",
}
# Arguments that cannot serve two datasets, or make no sense for validation.
_OF_TRAINING = {"cache", "name", "fingerprint", "augment", "batch_augment", "trace"}


def _find_lightning() -> Any:
    """The Lightning that the program uses. Two may be installed, whose classes do not work
    together."""
    names = list(_SEEDS)
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError("stocached.lightning needs Lightning: pip install lightning")


_lightning = _find_lightning()

from .torch import DataLoader  # noqa: E402  after Lightning: an error about a missing Lightning comes first

_PREPARE_REMEDY = Remedy(
    'Move what is random to DataModule(..., train_loader={"augment": fn}), which is applied to every sample in training.',
    "DataModule(..., allow_random=True)",
    "the preparer",
    frozen="the storage would keep the first result for ever",
)
_Base: Any = _lightning.LightningDataModule


@dataclass(eq=False, repr=False)
class DataModule(_Base):  # type: ignore[misc]
    """Prepares a dataset once on each machine, splits it, and gives each rank its batches.

    `prepare_data` runs prepare(preparer, storage). Lightning calls it in one process of a node; if
    several processes call it, one prepares and the others wait.
    Training samples come in the order of a BlockSampler over the training part, which differs from
    epoch to epoch. Rank r of R takes every R-th sample.
    A checkpoint of the Trainer holds the place in that order. A run that resumes from it continues
    with the next batch: no sample is lost, and none comes twice.

    preparer: as for stocached.prepare.prepare. None if another program prepares the storage.
    storage: one that all processes see, such as BlockStorage.
    batch_size: of a rank. eval_batch_size: for validation and test; None: as batch_size.
    num_workers: of each loader. processes: the number that prepare.
    validation, test, stratify: as for stocached.prepare.split; `stratify` names the field of
        the labels. split: a finished split, instead of these.
    seed: of split and order.
    shuffle, block_size, window: of the training samples, as for BlockSampler. block_size None:
        the samples of a block of the storage, but small enough for 256 blocks. drop_last: omits a
        smaller last batch of them.
    ends: if the samples do not divide by the ranks, "pad" repeats some, and "drop" omits some.
    transform: for every sample. train_transform: replaces it in training.
    loader: more arguments of stocached.torch.DataLoader, such as pin_memory=.
    train_loader: more arguments in training only, such as size= for a cache, augment= or
        trace=.
    allow_random: as for stocached.prepare.prepare. Give that of a cache in loader=.

    Raises InvalidError."""

    preparer: DataPreparer | Any | None
    storage: DataStorage
    _: KW_ONLY
    batch_size: int = 1
    eval_batch_size: Any = None
    num_workers: int = 0
    processes: int = 0
    validation: float | int = 0.1
    test: float | int = 0
    stratify: str | None = None
    split: Split | None = None
    seed: int = 0
    shuffle: bool = True
    block_size: int | None = None
    window: int = 8
    ends: Literal["pad", "drop"] = "pad"
    drop_last: bool = False
    transform: Callable[[Any], Any] | None = None
    train_transform: Callable[[Any], Any] | None = None
    loader: Any = None
    train_loader: Any = None
    allow_random: bool = False
    _train: TrainerBatches | None = field(default=None, init=False)
    _resumed: dict[str, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__init__()
        if self.ends not in ("pad", "drop"):
            raise InvalidError(f"ends={self.ends!r}; ranks need as many batches as each other: pad or drop")
        for what, options, taken in (
            ("loader", self.loader, _SET_HERE | _OF_TRAINING),
            ("train_loader", self.train_loader, _SET_HERE),
        ):
            wrong = sorted(taken & set(options or {}))
            if wrong:
                where = "give it in train_loader=" if wrong[0] in _OF_TRAINING else "which the DataModule sets itself"
                raise InvalidError(f"{what}= has {wrong[0]}, {where}")
        self.preparer = preparer_of(self.preparer)
        if not isinstance(self.storage, DataStorage) or (
            self.preparer is not None and not hasattr(self.preparer, "dataset_info")
        ):
            raise InvalidError(
                f"a DataModule is made of a DataPreparer and a DataStorage, not of {type(self.preparer).__name__} and {type(self.storage).__name__}"
            )
        self.batch_size = whole("batch_size", self.batch_size, 1)
        evaluated = self.batch_size if self.eval_batch_size is None else self.eval_batch_size
        self.eval_batch_size = whole("eval_batch_size", evaluated, 1)
        self.num_workers, self.processes = whole("num_workers", self.num_workers), whole("processes", self.processes)
        self.train_transform = self.train_transform or self.transform
        self.loader, self.train_loader = dict(self.loader or {}), dict(self.train_loader or {})

    # ------------------------------------------------------------ hooks of Lightning

    def prepare_data(self) -> None:
        """Prepares the storage, unless the preparer is None."""
        if self.preparer is not None:
            prepare(
                self.preparer,
                self.storage,
                processes=self.processes,
                allow_random=self.allow_random,
                _remedy=_PREPARE_REMEDY,
            )

    def setup(self, stage: str | None = None) -> None:
        """Makes the split, if none was given. Raises NotPreparedError."""
        if not self.storage.is_prepared():
            raise NotPreparedError(
                f"{self.storage!r} is not prepared in this process: call prepare_data() first; ranks need a storage that all of them see, such as BlockStorage"
            )
        if self.split is None:
            labels = None if self.stratify is None else self.storage.load_field(self.stratify)
            self.split = split(len(self.storage), self.validation, self.test, seed=self.seed, labels=labels)
        elif self.split.train.samples != len(self.storage):
            raise InvalidError(
                f"the split is of {self.split.train.samples} samples, and the storage has {len(self.storage)}"
            )

    def train_dataloader(self) -> Any:
        """The batches of this rank of the training part."""
        dataset = PreparedDataset(self.storage, self._split().train, self.train_transform)
        shuffle = self.shuffle and not getattr(self.trainer, "overfit_batches", 0)
        sampler = self._sampler(len(dataset), shuffle)
        self._train = TrainerBatches(
            self, self._loader(dataset, sampler, self.batch_size, self.drop_last, self.train_loader), sampler
        )
        if self._resumed is not None:
            self._train.load_state_dict(self._resumed)
        return self._train

    def val_dataloader(self) -> Any:
        """The batches of this rank of the validation part; [] if that is empty."""
        return self._evaluation(self._split().validation)

    def test_dataloader(self) -> Any:
        """The batches of this rank of the test part; [] if that is empty."""
        return self._evaluation(self._split().test)

    def state_dict(self) -> dict[str, Any]:
        """The place of the training, the same on all ranks: epoch, position, and what determines
        the order."""
        return self._train.state_dict() if self._train is not None else self._resumed or {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the place that `state_dict` gave; without one, from the start. Raises StateError."""
        if not isinstance(state, Mapping):
            raise StateError(f"this is no state of a DataModule: {state!r:.200}")
        self._resumed = dict(state) or None
        if self._train is None:
            return
        if self._resumed is None:
            self._train.start_again()
        else:
            self._train.load_state_dict(self._resumed)

    # ------------------------------------------------------------ loaders

    def _split(self) -> Split:
        if self.split is None:
            self.setup()
        assert self.split is not None
        return self.split

    def _evaluation(self, part: Any) -> Any:
        if not len(part):
            return []
        dataset = PreparedDataset(self.storage, part, self.transform)
        return BareLoader(self._loader(dataset, self._sampler(len(dataset), False), self.eval_batch_size, False, {}))

    def _sampler(self, samples: int, shuffle: bool) -> BlockSampler:
        block = self.block_size
        if block is None:
            of_storage = getattr(self.storage, "block_samples", None)
            block = min(of_storage() if of_storage else 1, -(-samples // 256))
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)
        return BlockSampler(
            samples, block, shuffle, self.window, seed=self.seed, rank=rank, world_size=world_size, ends=self.ends
        )

    def _loader(
        self, dataset: PreparedDataset, sampler: BlockSampler, batch_size: int, drop_last: bool, more: Mapping[str, Any]
    ) -> Any:
        options = {**self.loader, **more}
        # Set by seed_everything(workers=True).
        if options.get("worker_init_fn") is None and os.environ.get("PL_SEED_WORKERS", "0") == "1":
            seeds = importlib.import_module(_SEEDS[_lightning.__name__])
            options["worker_init_fn"] = functools.partial(seeds.pl_worker_init_function, rank=sampler.rank)
        return _Batches(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            drop_last=drop_last,
            **options,
        )


class _Batches(DataLoader[Any]):
    _remedy = Remedy(
        'Move the random part of the transform to DataModule(..., train_loader={"augment": fn}), which is applied to every sample that comes from the cache.',
        'DataModule(..., loader={"allow_random": True})',
    )
