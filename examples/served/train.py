"""A training job that reads from a server: it has no loading code and opens no file.

The server reads each picture once for all jobs, decodes it and keeps it in shared memory. Hits are plain memory reads.
The job tells the server its order by itself, and random steps run in the job.

    python train.py CACHE [--seed 1] [--epochs 3]

two_jobs.yaml has two such jobs on one cache, and compose.yaml one that reads from a bucket. The program prints, for 96
pictures that are not in the cache yet:

    epoch 1: loss 6.46, 0 of 96 samples from the cache
    epoch 2: loss 5.74, 96 of 96 samples from the cache
    epoch 3: loss 5.72, 96 of 96 samples from the cache
"""

import argparse

import torch
from stocached import image
from stocached.torch import DataLoader, SourceDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", help="its name in the configuration of the server")
    parser.add_argument("--seed", type=int, default=1, help="of the order: each job has its own")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    dataset = SourceDataset(options.cache)
    augment = image.Compose([image.RandomHorizontalFlip(), image.ToDtype("float32", scale=True)])
    loader = DataLoader(dataset, batch_size=16, shuffle=True, seed=options.seed, num_workers=2, augment=augment)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(1000)
    )
    model(torch.zeros(1, 3, 64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(options.epochs):
        before, total = loader.stats(), 0.0
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch["label"])
        done = loader.stats() - before
        print(
            f"epoch {epoch + 1}: loss {total / done.samples:.2f}, {done.hits} of {done.samples} samples from the cache",
            flush=True,
        )
    loader.close()


if __name__ == "__main__":
    main()
