"""Train with Lightning, and keep the cache through everything that the Trainer does with loaders.

The Trainer takes a loader apart and makes another one with a sampler of its own. stocached's DataLoader keeps its
cache and its augmentation then. `trainer.train_dataloader` is the loader that was read; it has the counts.

    pip install lightning
    python lightning_trainer.py FOLDER [--epochs 3]

FOLDER has a folder of JPEG files for each class. The program prints, for 96 pictures:

    training: 192 of 288 samples from the cache
    validation: 288 of 288 samples from the cache, which the training has filled
"""

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from stocached import image
from stocached.torch import DataLoader

FLOATS = image.ToDtype("float32", scale=True)


class Classifier(pl.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3600, classes)
        )

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, number: int) -> None:
        images, labels = batch
        self.log("right", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    dataset = image.Folder(options.folder, size=64, layout="chw")
    flip = image.Compose([image.RandomHorizontalFlip(), FLOATS])
    # Both loaders have the same dataset object and size=, so they share one cache.
    train = DataLoader(dataset, batch_size=16, shuffle=True, seed=1, num_workers=2, size="1GiB", augment=flip)
    test = DataLoader(dataset, batch_size=16, num_workers=2, size="1GiB", augment=FLOATS)

    trainer = pl.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",  # with GPUs: "auto"
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(len(dataset.classes)), train, test)
    stats = trainer.train_dataloader.stats()
    print(f"training: {stats.hits} of {stats.samples} samples from the cache")
    stats = trainer.val_dataloaders.stats()
    print(f"validation: {stats.hits} of {stats.samples} samples from the cache, which the training has filled")


if __name__ == "__main__":
    main()
