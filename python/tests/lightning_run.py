"""Training with the real Trainer, for test_prepare_lightning.py: one process for each rank. Each
writes what it got.

lightning_run.py SETTINGS      a JSON object: see below
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402

if "--pytorch-lightning" in sys.argv:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl
from prepared import Made  # noqa: E402

from stocached.lightning import DataModule  # noqa: E402
from stocached.prepare import BlockStorage  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
FIELDS = {"x": ((4,), "float32"), "index": ((), "int64"), "label": ((), "int64")}


class Numbered(Made):
    """Samples that contain their index."""

    def __init__(self, n: int, **more: Any) -> None:
        super().__init__(n, FIELDS, **more)

    def samples(self, first: int, stop: int | None) -> Any:
        for index, made in enumerate(super().samples(first, stop), first):
            yield {**made, "index": index}


class Model(pl.LightningModule):
    """Remembers what it got. fails_at: the batch in whose step it raises."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fails_at = fails_at
        self.trained: list[tuple[int, int, list[int]]] = []
        self.validated: list[tuple[int, list[int]]] = []
        self.tested: list[int] = []

    def training_step(self, batch: Any, number: int) -> Any:
        if self.fails_at == len(self.trained):
            raise RuntimeError("as it was told")
        self.trained.append((self.current_epoch, number, batch["index"].tolist()))
        return self.layer(batch["x"]).mean()

    def validation_step(self, batch: Any, number: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, batch["index"].tolist()))

    def test_step(self, batch: Any, number: int) -> None:
        self.tested += batch["index"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


def trainer(folder: Any, epochs: int, **more: Any) -> Any:
    settings = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
    }
    return pl.Trainer(**{**settings, "default_root_dir": folder, "max_epochs": epochs, **more})


def main(settings: dict[str, Any]) -> None:
    folder = Path(settings["folder"])
    callbacks = [
        pl.callbacks.ModelCheckpoint(folder / "checkpoints", every_n_train_steps=1, save_top_k=-1, filename="{step}")
    ]
    run = trainer(folder, settings["epochs"], callbacks=callbacks, **settings.get("trainer", {}))
    storage = BlockStorage(folder / "data", block_bytes=4096)
    data = DataModule(Numbered(settings["n"], calls=folder / "calls"), storage, processes=2, **settings.get("data", {}))
    model = Model()
    run.fit(model, datamodule=data, ckpt_path=settings.get("resume"))
    said = {"trained": model.trained, "validated": model.validated, "world_size": run.world_size}
    Path(f"{settings['out']}-{run.global_rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
