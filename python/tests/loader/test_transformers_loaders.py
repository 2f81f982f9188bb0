"""Our loaders in the Trainer of transformers: its own loader over a CachedDataset, and ours in its
place."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Of
from torch_helpers import TORCH_WARNINGS, CachedDataset, DataLoader, torch

pytestmark = [pytest.mark.torch, *TORCH_WARNINGS, pytest.mark.filterwarnings("ignore")]

if torch is not None:
    from framework_samples import BATCH, LIFT, Lifted, N, Samples, times_loaded

    def named(samples: Any) -> Any:
        """Samples in the Trainer's form: with the names of the model's arguments."""
        return Of(lambda index: dict(zip(("x", "index"), samples[index])), len(samples))

    def lifted(sample: Any) -> Any:
        return {**sample, "x": sample["x"] + LIFT}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen: list[list[int]] = []

        def forward(self, x: Any, index: Any) -> Any:
            assert torch.equal(x[:, 0], index + LIFT), x[:, 0].tolist()
            self.seen.append(index.tolist())
            return {"loss": self.layer(x - LIFT).mean(), "index": index}


def test_batches_are_those_of_its_own_loader(tmp_path, transformers):
    class Ours(transformers.Trainer):
        """The recipe of the guide."""

        def get_train_dataloader(self):
            loader = DataLoader(
                self.train_dataset,
                self._train_batch_size,
                shuffle=True,
                num_workers=1,
                size="8MiB",
                allow_random=True,
                augment=lifted,
            )
            return self.accelerator.prepare(loader)

        def get_eval_dataloader(self, eval_dataset=None):
            return self.accelerator.prepare(
                DataLoader(self.eval_dataset, self.args.eval_batch_size, size="8MiB", allow_random=True, augment=lifted)
            )

    def run(kind: Any, dataset: Any, folder: Any, **more: Any) -> Any:
        arguments = transformers.TrainingArguments(
            folder, num_train_epochs=3, save_steps=1, per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH, use_cpu=True, seed=3,
            report_to="none", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False, remove_unused_columns=False, label_names=[],
        )  # fmt: skip
        model = Model()
        trainer = kind(model, arguments, train_dataset=dataset, eval_dataset=dataset)
        trainer.train(**more)
        trained, model.seen = model.seen, []
        assert trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation").num_samples == N
        assert [index for indices in model.seen for index in indices] == list(range(N))
        return trained, trainer

    theirs, _ = run(transformers.Trainer, named(Lifted()), tmp_path / "theirs")
    samples = Samples()
    ours, trainer = run(Ours, named(samples), tmp_path / "ours")
    assert ours == theirs
    assert times_loaded(samples) == 1
    base = trainer.callback_handler.train_dataloader.base_dataloader
    assert isinstance(base, DataLoader)
    assert base.stats().hits > 0

    for step in (6, 8):  # at the end of an epoch, and in the middle of the next one
        again, trainer = run(
            Ours,
            named(Samples()),
            tmp_path / f"again-{step}",
            resume_from_checkpoint=str(tmp_path / "ours" / f"checkpoint-{step}"),
        )
        assert again == theirs[step:]
        assert isinstance(trainer.callback_handler.train_dataloader.base_dataloader, DataLoader)

    samples = Samples()
    cached, _ = run(
        transformers.Trainer,
        CachedDataset(named(samples), size="8MiB", allow_random=True, augment=lifted),
        tmp_path / "cached",
    )
    assert cached == theirs
    assert times_loaded(samples) == 1
