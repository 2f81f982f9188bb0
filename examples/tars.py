"""Train on tars of JPEG files and their classes, as webdataset writes them, with a cache for a part of the pictures.

Tars have members such as 000123.jpg and 000123.cls. Their headers are read once, and each picture by a read of its own. The
cache keeps decoded pictures, as many as there is room for. What is random stands below it. For tars in a bucket, give
"s3://bucket/train-{000..127}.tar" in place of the pattern.

    pip install torch
    python tars.py FOLDER [--epochs 3] [--size 8GiB]

The program prints, for 12 tars of 8 pictures, with --size 14MiB:

    epoch 1: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 0 of 96 from the cache
    epoch 2: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 40 of 96 from the cache
    epoch 3: 96 pictures of 8 classes in batches of (32, 3, 224, 224), 40 of 96 from the cache
"""

import argparse

from stocached import image, source
from stocached.torch import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", default="8GiB", help="the most memory that the cache may take")
    options = parser.parse_args()

    pipe = (
        source(f"{options.folder}/**/*.tar", fields=["jpg", "cls"], int64=["cls"])
        .map(image.Compose([image.Decode(short_side=256, layout="chw")]))
        .cache(options.size)
        .shuffle(seed=1)
        .map(image.Compose([image.RandomResizedCrop(224), image.RandomHorizontalFlip()]))
        .batch(32)
    )
    loader = DataLoader(pipe, num_workers=2, persistent_workers=True)
    for epoch in range(options.epochs):
        before, samples, classes, shape = loader.stats(), 0, set(), None
        for batch in loader:
            # loss = model(batch["jpg"] / 255, batch["cls"]) ...
            samples += len(batch["cls"])
            classes |= set(batch["cls"].tolist())
            shape = shape or tuple(batch["jpg"].shape)
        cache = loader.stats() - before
        print(
            f"epoch {epoch + 1}: {samples} pictures of {len(classes)} classes in batches of {shape}, "
            f"{cache.hits} of {cache.hits + cache.misses} from the cache"
        )
    loader.close()


if __name__ == "__main__":
    main()
