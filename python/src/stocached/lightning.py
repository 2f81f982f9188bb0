"""A prepared dataset as a DataModule of Lightning: prepared once, split, read in blocks, resumed at the sample.

Lightning is imported with this module alone: `lightning`, or `pytorch_lightning` where a program has imported that one already."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ._checks.randomness import Remedy
from ._common.errors import InvalidError
from ._common.numbers import whole
from .prepare import BlockSampler, DataPreparer, DataStorage, NotPreparedError, PreparedDataset, Split, prepare, split

__all__ = ["DataModule"]

_SEEDS = {"lightning.pytorch": "lightning.fabric.utilities.seed", "pytorch_lightning": "lightning_fabric.utilities.seed"}

# Arguments of the loader that follow from those of the DataModule.
_OURS = {"dataset", "batch_size", "sampler", "batch_sampler", "shuffle", "num_workers", "drop_last", "order", "seed", "rank", "world_size", "ends"}
_OF_TRAINING = {"cache", "name", "fingerprint", "augment", "batch_augment", "trace"}  # and what makes no sense for two datasets, or for validation


def _find_lightning() -> Any:
    """The Lightning that the program uses: there may be two, whose classes do not know each other."""
    names = list(_SEEDS)
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError("stocached.lightning needs Lightning: pip install lightning")


_lightning = _find_lightning()

from .torch import DataLoader  # noqa: E402  behind Lightning, whose absence is to be told first

_OF_PREPARING = Remedy(
    'Move what is random to DataModule(..., train_loader={"augment": fn}), which is applied to every sample in training.',
    "DataModule(..., allow_random=True)",
    "the preparer",
)
_Base: Any = _lightning.LightningDataModule


@dataclass(frozen=True)
class _Place:
    """Where the training is: in the epoch of this number, at this position of its order, after so many of its batches."""

    epoch: int
    position: int
    batches: int


class DataModule(_Base):  # type: ignore[misc]
    """Has a dataset prepared once on each machine, splits it, and gives each rank its batches.

    `prepare_data` runs prepare(preparer, storage): Lightning calls it in one process a node, and where several call it, one prepares and the others
    wait. Training samples come in the order of a BlockSampler over the training part, each epoch another one, rank r of R takes every R-th. A
    checkpoint of the Trainer has the place in
    that order, whenever it is made, and a run that is resumed from it goes on with the next batch: no sample is lost, none comes twice."""

    def __init__(
        self,
        preparer: DataPreparer | None,
        storage: DataStorage,
        *,
        batch_size: int = 1,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
        processes: int = 0,
        validation: float | int = 0.1,
        test: float | int = 0,
        stratify: str | None = None,
        split: Split | None = None,
        seed: int = 0,
        shuffle: bool = True,
        block_size: int | None = None,
        window: int = 8,
        ends: Literal["pad", "drop"] = "pad",
        drop_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
        train_transform: Callable[[Any], Any] | None = None,
        loader: Mapping[str, Any] | None = None,
        train_loader: Mapping[str, Any] | None = None,
        allow_random: bool = False,
    ) -> None:
        """preparer: None where the storage is prepared by others. storage: one that all processes see, such as BlockStorage.
        batch_size: of a rank; eval_batch_size: for validation and test, None: the same. num_workers: of each loader. processes: that prepare.
        validation, test, stratify: as stocached.prepare.split takes them, with the field of that name as the labels; split: a ready one instead.
        seed: of split and order. shuffle, block_size, window: of the training samples, as BlockSampler; block_size None: as many as a block of the
        storage has, at most what leaves 256 blocks. ends: when samples do not divide by the ranks: "pad": some come twice, "drop": some are left out.
        transform: for every sample; train_transform: for training, instead.
        loader: further arguments of stocached.torch.DataLoader, such as pin_memory=; train_loader: those for training alone, such as size= for a cache,
        augment= or trace=. allow_random: as stocached.prepare.prepare takes it; that of a cache belongs into loader=.

        Raises InvalidError."""
        super().__init__()
        if ends not in ("pad", "drop"):
            raise InvalidError(f"ends={ends!r}; ranks need as many batches as each other: pad or drop")
        for what, options, taken in (("loader", loader, _OURS | _OF_TRAINING), ("train_loader", train_loader, _OURS)):
            wrong = sorted(taken & set(options or {}))
            if wrong:
                where = "give it in train_loader=" if wrong[0] in _OF_TRAINING else "which the DataModule says itself"
                raise InvalidError(f"{what}= has {wrong[0]}, {where}")
        if not isinstance(storage, DataStorage) or not isinstance(preparer, (DataPreparer, type(None))):
            raise InvalidError(
                f"a DataModule is made of a DataPreparer and a DataStorage, not of {type(preparer).__name__} and {type(storage).__name__}"
            )
        self.preparer, self.storage = preparer, storage
        self.batch_size = whole("batch_size", batch_size, 1)
        self.eval_batch_size = self.batch_size if eval_batch_size is None else whole("eval_batch_size", eval_batch_size, 1)
        self.num_workers, self.processes = num_workers, processes
        self.validation, self.test, self.stratify = validation, test, stratify
        self.split = split
        self.seed, self.shuffle, self.block_size, self.window = seed, shuffle, block_size, window
        self.ends: Literal["pad", "drop"] = ends
        self.drop_last = drop_last
        self.transform, self.train_transform = transform, train_transform or transform
        self.loader, self.train_loader = dict(loader or {}), dict(train_loader or {})
        self.allow_random = allow_random
        self._train: _TrainLoader | None = None
        self._resumed: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------------ hooks of Lightning

    def prepare_data(self) -> None:
        if self.preparer is not None:
            prepare(self.preparer, self.storage, processes=self.processes, allow_random=self.allow_random, _remedy=_OF_PREPARING)

    def setup(self, stage: str | None = None) -> None:
        if not self.storage.is_prepared():
            raise NotPreparedError(
                f"{self.storage!r} is not prepared in this process: call prepare_data() first; ranks need a storage that all of them see, such as BlockStorage"
            )
        if self.split is None:
            labels = None if self.stratify is None else self.storage.load_field(self.stratify)
            self.split = split(len(self.storage), self.validation, self.test, seed=self.seed, labels=labels)
        elif self.split.train.samples != len(self.storage):
            raise InvalidError(f"the split is of {self.split.train.samples} samples, and the storage has {len(self.storage)}")

    def train_dataloader(self) -> Any:
        dataset = PreparedDataset(self.storage, self._split().train, self.train_transform)
        shuffle = self.shuffle and not getattr(self.trainer, "overfit_batches", 0)
        sampler = self._sampler(len(dataset), shuffle)
        self._train = _TrainLoader(self, self._loader(dataset, sampler, self.batch_size, self.drop_last, self.train_loader), sampler)
        if self._resumed is not None:
            self._train.load_state_dict(self._resumed)
        return self._train

    def val_dataloader(self) -> Any:
        return self._evaluation(self._split().validation)

    def test_dataloader(self) -> Any:
        return self._evaluation(self._split().test)

    def state_dict(self) -> dict[str, Any]:
        """The place of the training: epoch and position, the same on all ranks, and what the order hangs on."""
        return self._train.state_dict() if self._train is not None else self._resumed or {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = dict(state)
        if self._train is not None:
            self._train.load_state_dict(self._resumed)

    # ------------------------------------------------------------------------------------------------ loaders

    def _split(self) -> Split:
        if self.split is None:
            self.setup()
        assert self.split is not None
        return self.split

    def _evaluation(self, part: Any) -> Any:
        if not len(part):
            return []
        dataset = PreparedDataset(self.storage, part, self.transform)
        return _Loader(self._loader(dataset, self._sampler(len(dataset), False), self.eval_batch_size, False, {}))

    def _sampler(self, samples: int, shuffle: bool) -> BlockSampler:
        block = self.block_size
        if block is None:
            of_storage = getattr(self.storage, "block_samples", None)
            block = min(of_storage() if of_storage else 1, -(-samples // 256))
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else (0, 1)
        return BlockSampler(samples, block, shuffle, self.window, seed=self.seed, rank=rank, world_size=world_size, ends=self.ends)

    def _loader(self, dataset: PreparedDataset, sampler: BlockSampler, batch_size: int, drop_last: bool, more: Mapping[str, Any]) -> Any:
        options = {**self.loader, **more}
        if options.get("worker_init_fn") is None and os.environ.get("PL_SEED_WORKERS", "0") == "1":  # seed_everything(workers=True)
            seeds = importlib.import_module(_SEEDS[_lightning.__name__])
            options["worker_init_fn"] = functools.partial(seeds.pl_worker_init_function, rank=sampler.rank)
        return _Batches(dataset, batch_size=batch_size, sampler=sampler, num_workers=self.num_workers, drop_last=drop_last, **options)


class _Batches(DataLoader[Any]):
    _remedy = Remedy(
        'Move the random part of the transform to DataModule(..., train_loader={"augment": fn}), which is applied to every sample that comes from the cache.',
        'DataModule(..., loader={"allow_random": True})',
    )


class _Loader:
    """Gives what a loader gives. It is no torch DataLoader, so that Lightning leaves its sampler alone, which knows the ranks already."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _TrainLoader(_Loader):
    """Gives the batches of an epoch, from its begin or from where a checkpoint stopped.

    Which epoch it is, and how many batches have been trained on, is what the Trainer says: it may have taken a batch and failed in it, and that batch comes
    again. A pass begins with its first batch, as Lightning makes the iterator before it knows the epoch."""

    def __init__(self, module: DataModule, loader: Any, sampler: BlockSampler) -> None:
        super().__init__(loader)
        self._module, self._sampler = module, sampler
        self._pass: _Place | None = None  # where the last pass began
        self._resume: _Place | None = None  # where a checkpoint stopped
        self._epochs, self._given = 0, 0  # of this loader, for use without a Trainer

    # ------------------------------------------------------------------------------------------------ batches

    def __len__(self) -> int:
        """Batches of the epoch, those before a resume included."""
        place = self._begin(self._epoch())
        return place.batches + self._batches(place.position)

    def _batches(self, position: int) -> int:
        """That this rank is given from a position on."""
        return self._sampler.shard(position).batches(self._module.batch_size, self._module.drop_last)

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch()
        place = self._begin(epoch)
        if self._fit_loop() is not None:
            place = _Place(epoch, place.position, self._done())  # as the Trainer counts
        self._pass, self._given = place, 0
        self.loader.set_epoch(epoch)  # which random augmentations depend on
        self._sampler.load_state_dict({**self._sampler.state_dict(), "epoch": epoch, "position": place.position})
        for batch in self.loader:
            self._given += 1
            yield batch
        self._epochs = epoch + 1

    def _begin(self, epoch: int) -> _Place:
        resume = self._resume
        return resume if resume is not None and resume.epoch == epoch else _Place(epoch, 0, 0)

    # ------------------------------------------------------------------------------------------------ the Trainer

    def _fit_loop(self) -> Any:
        trainer = self._module.trainer
        return None if trainer is None else trainer.fit_loop

    def _epoch(self) -> int:
        """The number of the epoch that runs, or begins next."""
        loop = self._fit_loop()
        return self._epochs if loop is None else int(loop.epoch_progress.current.processed)

    def _done(self) -> int:
        """Batches of this epoch that have been trained on."""
        loop = self._fit_loop()
        if loop is not None:
            return int(loop.epoch_loop.batch_progress.current.processed)
        return self._given + (0 if self._pass is None else self._pass.batches)

    # ------------------------------------------------------------------------------------------------ state

    def _place(self) -> _Place:
        epoch, begun = self._epoch(), self._pass
        if begun is None or begun.epoch != epoch:
            return self._begin(epoch)
        done = self._done() - begun.batches
        position = self._sampler.shard(begun.position).position(done * self._module.batch_size)
        if not self._batches(position):
            return _Place(epoch + 1, 0, 0)
        return _Place(epoch, position, begun.batches + done)

    def state_dict(self) -> dict[str, Any]:
        place = self._place()
        return {**self._sampler.state_dict(), **vars(place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises InvalidError if the state is of another dataset, split or order, or if the epoch has another number of batches from here on."""
        self._sampler.load_state_dict(state)
        self._resume = place = _Place(state["epoch"], state["position"], state["batches"])
        self._epochs = place.epoch
        trainer = self._module.trainer
        whole, now = self._batches(0), place.batches + self._batches(place.position)
        if now != whole and trainer is not None and not trainer.reload_dataloaders_every_n_epochs:
            raise InvalidError(
                f"the epoch that goes on has {now} batches a rank and others have {whole}, as the number of ranks or the batch size is another than before: "
                "Lightning takes that with Trainer(reload_dataloaders_every_n_epochs=1)"
            )
