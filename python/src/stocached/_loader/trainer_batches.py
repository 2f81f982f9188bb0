"""Batches for a Trainer of Lightning, which continue where a checkpoint stopped. Imports no
Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._common.errors import InvalidError
from .._common.numbers import number_in
from .stats import LoaderStats


@dataclass(frozen=True)
class _Place:
    """Where the training is: the epoch, the position in its order, and the batches of it that are
    done."""

    epoch: int
    position: int
    batches: int


class BareLoader:
    """Gives the batches of a loader. It is no torch DataLoader, so Lightning does not replace its
    sampler, which knows the ranks already."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class TrainerBatches(BareLoader):
    """Gives the batches of an epoch, from its start or from where a checkpoint stopped.

    The Trainer knows the epoch and the number of batches trained on. If it fails in a batch, that
    batch comes again. A pass begins with its first batch, not with its iterator: Lightning makes
    the iterator before it knows the epoch."""

    def __init__(self, module: Any, loader: Any, sampler: Any) -> None:
        """module: has `trainer`, `batch_size` and `drop_last`. sampler: a BlockSampler."""
        super().__init__(loader)
        self._module, self._sampler = module, sampler
        self._pass: _Place | None = None  # where the last pass began
        self._resume: _Place | None = None  # where a checkpoint stopped
        self._epochs, self._given = 0, 0  # counts of this loader, for use without a Trainer

    def stats(self) -> LoaderStats:
        """The counters of the loader."""
        stats: LoaderStats = self.loader.stats()
        return stats

    # ------------------------------------------------------------ batches

    def __len__(self) -> int:
        """Batches of the epoch, also those before a resume."""
        place = self._begin(self._epoch())
        return place.batches + self._batches(place.position)

    def _batches(self, position: int) -> int:
        """The batches that this rank gets from a position on."""
        return int(self._sampler.shard(position).batches(self._module.batch_size, self._module.drop_last))

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch()
        place = self._begin(epoch)
        if self._fit_loop() is not None:
            place = _Place(epoch, place.position, self._done())  # as the Trainer counts them
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

    # ------------------------------------------------------------ the Trainer

    def _fit_loop(self) -> Any:
        trainer = self._module.trainer
        return None if trainer is None else trainer.fit_loop

    def _epoch(self) -> int:
        """The number of the epoch that runs or begins next."""
        loop = self._fit_loop()
        return self._epochs if loop is None else int(loop.epoch_progress.current.processed)

    def _done(self) -> int:
        """Batches of this epoch that the program has trained on."""
        loop = self._fit_loop()
        if loop is not None:
            return int(loop.epoch_loop.batch_progress.current.processed)
        return self._given + (0 if self._pass is None else self._pass.batches)

    # ------------------------------------------------------------ state

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

    def start_again(self) -> None:
        """The next epoch is the first, from its start."""
        self._resume, self._pass, self._epochs, self._given = None, None, 0, 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises InvalidError for a state of another dataset, split or order, and if the resumed
        epoch has another number of batches."""
        self._sampler.load_state_dict(state)
        most = number_in(state, "position")  # a batch has a sample at least
        batches = number_in(state, "batches", most)
        self._resume = place = _Place(number_in(state, "epoch"), most, batches)
        self._epochs = place.epoch
        trainer = self._module.trainer
        whole, now = self._batches(0), place.batches + self._batches(place.position)
        if now != whole and trainer is not None and not trainer.reload_dataloaders_every_n_epochs:
            raise InvalidError(
                f"the resumed epoch has {now} batches a rank and others have {whole}, as the number of ranks or the batch size is another than before: "
                "Lightning takes that with Trainer(reload_dataloaders_every_n_epochs=1)"
            )
