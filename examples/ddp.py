"""Train on several ranks that share one cache.

Each rank reads its own part of every epoch, and the parts change. So without a shared cache, each rank loads almost all
pictures in the end. A named cache has one copy for all ranks: each picture is loaded once, by the rank that reads it
first. The order depends on the seed alone, and not on the number of ranks.

    torchrun --standalone --nproc-per-node 2 ddp.py FOLDER [--name examples-ddp] [--epochs 3]

FOLDER has a folder of JPEG files for each class. Rank 0 prints, for 96 pictures:

    epoch 1: loss 2.11, 2 ranks found 0 of 96 samples in the cache
    epoch 2: loss 1.98, 2 ranks found 96 of 96 samples in the cache
    epoch 3: loss 1.92, 2 ranks found 96 of 96 samples in the cache

The cache stays for the next job, which finds every picture in its first epoch. `stocached rm examples-ddp` removes it.
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which default arguments of its functions would keep
from stocached import image
from stocached.torch import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--name", default="examples-ddp", help="of the cache")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # with GPUs: "nccl"
    train(options.folder, options.name, options.epochs)
    # This ends the threads of gloo, as the model, which keeps the group, is gone. A thread that still runs while Python
    # ends may abort the process: https://github.com/pytorch/pytorch/pull/179291
    dist.destroy_process_group()


def train(folder: str, name: str, epochs: int) -> None:
    dataset = image.Folder(folder, size=64, layout="chw")
    augment = image.Compose([image.RandomHorizontalFlip(), image.ToDtype("float32", scale=True)])
    # With seed=, the loader gives each rank its part. It needs no DistributedSampler.
    loader = DataLoader(
        dataset, batch_size=16, shuffle=True, seed=1, num_workers=2, name=name, size="1GiB", augment=augment
    )

    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(len(dataset.classes)),
    )
    network(torch.zeros(1, 3, 64, 64))
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        before, total = loader.stats(), 0.0
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        done = loader.stats() - before
        sums = torch.tensor([total, done.hits, done.samples])
        dist.all_reduce(sums)  # also makes the ranks wait for each other, so that an epoch ends before the next begins
        total, hits, samples = sums.tolist()
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch + 1}: loss {total / samples:.2f}, {dist.get_world_size()} ranks found "
                f"{hits:.0f} of {samples:.0f} samples in the cache"
            )
    loader.close()


if __name__ == "__main__":
    main()
