"""Train with Hugging Face's datasets and accelerate.

A dataset with a transform decodes and transforms each picture again in every epoch. Our loader caches what the
transform returns, and `accelerator.prepare` keeps our loader. Random steps go into `augment=`, after the cache.

    pip install datasets accelerate pillow
    python accelerate_datasets.py FOLDER [--epochs 3]

FOLDER has a folder of pictures for each class. Any dataset of the Hub is used alike. The program prints, for 96
pictures:

    epoch 1: loss 2.16, 0 of 96 samples from the cache
    epoch 2: loss 2.05, 96 of 96 samples from the cache
    epoch 3: loss 1.98, 96 of 96 samples from the cache
"""

import argparse
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import Accelerator
from stocached.torch import DataLoader


def decode(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The deterministic part: of pictures in any format, arrays of one size."""
    pictures = [np.asarray(picture.convert("RGB").resize((64, 64))) for picture in rows["image"]]
    return {"pixels": [picture.transpose(2, 0, 1) for picture in pictures], "label": rows["label"]}


def flip(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """The random part, of one sample."""
    pixels = sample["pixels"][:, :, ::-1] if generator.random() < 0.5 else sample["pixels"]
    return {"pixels": pixels.astype(np.float32) / 255, "label": sample["label"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    dataset = datasets.load_dataset("imagefolder", data_dir=options.folder, split="train")
    classes = dataset.features["label"].num_classes
    loader = DataLoader(
        dataset.with_transform(decode),
        batch_size=16,
        shuffle=True,
        seed=1,
        num_workers=2,
        size="1GiB",
        augment=flip,
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3600, classes)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    accelerator = Accelerator(cpu=True)  # with GPUs: Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(options.epochs):
        loader.set_epoch(epoch)
        before, total = loader.stats(), 0.0
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(batch["label"])
        done = loader.stats() - before
        accelerator.print(
            f"epoch {epoch + 1}: loss {total / done.samples:.2f}, {done.hits} of {done.samples} samples from the cache"
        )


if __name__ == "__main__":
    main()
