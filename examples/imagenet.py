"""Train a classifier on a folder of pictures, and validate it on another, with caches of decoded pictures.

Random crops of one picture differ in each epoch, so a cache must not keep them. `convert` splits the transforms of
torchvision where randomness begins. The cache keeps the decoded picture with a short side of 8/7 of the crop's, 256
pixels for 224. The crop, the flip and the normalisation run after the cache, in C. Of a picture for the validation, the
cache keeps the centre.

    pip install torch torchvision
    python imagenet.py FOLDER/train FOLDER/val [--epochs 3] [--side 224] [--size 8GiB]

Each of both has a folder of JPEG files for each class, as ImageNet has. The program prints, for 96 pictures in both:

    epoch 1: loss 2.15, 18% right, validation 12% right, 0 of 192 samples from the cache
    epoch 2: loss 1.38, 65% right, validation 31% right, 192 of 192 samples from the cache
    epoch 3: loss 0.88, 65% right, validation 72% right, 192 of 192 samples from the cache
"""

import argparse
from typing import Any

import torch
import torchvision
from stocached import LoaderStats, image
from stocached.torch import DataLoader
from torchvision.transforms import v2

LAST = [
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]


def loader_of(folder: str, steps: list[v2.Transform], size: str, shuffle: bool) -> DataLoader[Any]:
    pictures = torchvision.datasets.ImageFolder(folder, v2.Compose([*steps, *LAST]))
    dataset, augment = image.convert(pictures)
    return DataLoader(dataset, batch_size=32, shuffle=shuffle, seed=1, num_workers=2, size=size, augment=augment)


@torch.no_grad()
def validate(model: torch.nn.Module, loader: DataLoader[Any]) -> tuple[int, LoaderStats]:
    """How many pictures the model knows, and what the loader did."""
    before, right = loader.stats(), 0
    model.eval()
    for images, labels in loader:
        right += int((model(images).argmax(1) == labels).sum())
    model.train()
    return right, loader.stats() - before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("val")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--side", type=int, default=224, help="of the crops, in pixels")
    parser.add_argument("--size", default="8GiB", help="the most memory that each of both caches may take")
    options = parser.parse_args()

    side, whole = options.side, options.side * 8 // 7  # 256 of 224
    train = loader_of(options.train, [v2.RandomResizedCrop(side), v2.RandomHorizontalFlip()], options.size, True)
    val = loader_of(options.val, [v2.Resize(whole), v2.CenterCrop(side)], options.size, False)

    model = torchvision.models.resnet18(num_classes=len(train.dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(options.epochs):
        before, total, right = train.stats(), 0.0, 0
        for images, labels in train:
            scores = model(images)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            right += int((scores.argmax(1) == labels).sum())
        done = train.stats() - before
        known, tried = validate(model, val)
        print(
            f"epoch {epoch + 1}: loss {total / done.samples:.2f}, {right / done.samples:.0%} right, "
            f"validation {known / tried.samples:.0%} right, "
            f"{done.hits + tried.hits} of {done.samples + tried.samples} samples from the cache"
        )
    train.close()
    val.close()


if __name__ == "__main__":
    main()
