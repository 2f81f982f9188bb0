"""Trains a ResNet on a GPU from a folder of JPEG files, with torch's DataLoader and with ours, and says how much of the
GPU's own speed each loader reaches:

    the GPU alone       one batch that is on the GPU already: no loader can be faster
    torch, Pillow       ImageFolder and transforms v2 in worker processes, as in most programs
    torch, decode_jpeg  decodes to uint8 tensors by torchvision.io; the GPU normalises
    ours, no cache      what `image.convert` makes of the first: native workers, pinned batches
    ours, fills         the same, with a new cache in each run: the first epoch
    ours, cached        the same, with a cache of pictures whose short side is 256: all later epochs
    ours, ..., uint8    the same as uint8 tensors; the GPU normalises

    make bench-gpu FOLDER=dir
    PYTHONPATH=python/src STOCACHED_LIB_PATH=build .venv/bin/python bench/python/gpu.py FOLDER [--net resnet50] ...
        [--rounds 7] [--batch 256] [--workers PROCESSORS]

In each round all run in turn, every other round backwards. A run is one epoch. Its first batches, one for each worker,
are without a clock, because torch's workers begin with one batch each. The table has medians. `busy` is the part of the
time in which the GPU ran a kernel, as NVML samples it. Programs without a GPU can try it: --device cpu --batch 8."""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torchvision
import tree
from subjects.pictures import MEAN, SIDE, STD
from torchvision.transforms import v2

from stocached import image
from stocached.torch import DataLoader

FIRST = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
LAST = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
FLOATS = v2.Compose([*FIRST, v2.ToImage(), *LAST])
BYTES = v2.Compose([*FIRST, v2.ToImage()])


class Busy(threading.Thread):
    """Samples how much of the time the GPU is busy. Without NVML: nan."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended, self._found = threading.Event(), []
        self.start()

    def run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._ended.wait(0.05):
                self._found.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
        except Exception as error:
            print(f"no figures of NVML: {error}")

    def end(self) -> float:
        self._ended.set()
        self.join()
        return statistics.fmean(self._found) if self._found else float("nan")


class Training:
    def __init__(self, net: str, classes: int, device: str) -> None:
        torch.backends.cudnn.benchmark = True
        model = getattr(torchvision.models, net)(num_classes=classes)
        self._model = model.to(device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._device = device
        self._finish = v2.Compose(LAST)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = self._finish(images)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            loss = torch.nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.loss = loss.detach()

    def wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


class Alone:
    """One batch that is on the device."""

    def __init__(self, options: Any, samples: int) -> None:
        shape = (options.batch, 3, SIDE, SIDE)
        self._batch = (
            torch.randn(shape, device=options.device),
            torch.zeros(shape[0], dtype=torch.long, device=options.device),
        )
        self._batches = samples // options.batch

    def epoch(self) -> Iterator[Any]:
        for _ in range(self._batches):
            yield self._batch


class Torch:
    def __init__(self, options: Any, dataset: Any) -> None:
        self._loader = torch.utils.data.DataLoader(
            dataset, options.batch, shuffle=True, num_workers=options.workers, pin_memory=options.device == "cuda",
            persistent_workers=True, drop_last=True,
        )  # fmt: skip

    def epoch(self) -> Iterable[Any]:
        return self._loader


class Ours:
    """cached: "no", "yes", or "new" in each epoch."""

    def __init__(self, options: Any, cached: str, transform: Any = FLOATS) -> None:
        self._options, self._cached, self._transform, self._loader = options, cached, transform, None
        if cached != "new":
            self._make()
        if cached == "yes":
            for _ in self._loader:
                pass

    def _make(self) -> None:
        dataset, augment = image.convert(torchvision.datasets.ImageFolder(self._options.folder, self._transform))
        if self._loader:
            self._loader.close()
        size = {} if self._cached == "no" else {"size": self._options.size}
        self._loader = DataLoader(
            dataset, self._options.batch, shuffle=True, num_workers=self._options.workers, augment=augment,
            pin_memory=self._options.device == "cuda", persistent_workers=True, drop_last=True, **size,
        )  # fmt: skip
        assert self._loader.worker == "native", self._loader.worker

    def epoch(self) -> Iterable[Any]:
        if self._cached == "new":
            self._make()
        return self._loader

    def hits(self) -> int:
        return self._loader.stats().hits


def measure(training: Training, subject: Any, options: Any) -> dict[str, float]:
    """One epoch, after its first batches."""
    samples, first = 0, options.workers
    for number, (images, labels) in enumerate(subject.epoch()):
        if number == first:
            training.wait()
            busy, cpu, start = Busy(), tree.used(os.getpid()), time.perf_counter()
        if number >= first:
            samples += len(images)
        training.step(images, labels)
    training.wait()
    seconds = time.perf_counter() - start
    assert torch.isfinite(training.loss), training.loss
    return {"speed": samples / seconds, "busy": busy.end(), "cpu": (tree.used(os.getpid()) - cpu) / samples * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--net", action="append", help="of torchvision.models; default: resnet50 and resnet18")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--size", default="16GiB", help="of the cache")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    pillow = torchvision.datasets.ImageFolder(options.folder, FLOATS)
    decoded = torchvision.datasets.ImageFolder(
        options.folder, v2.Compose(FIRST), loader=lambda path: torchvision.io.decode_image(path, mode="RGB")
    )
    subjects = {
        "the GPU alone": Alone(options, len(pillow)),
        "torch, Pillow": Torch(options, pillow),
        "torch, decode_jpeg, uint8": Torch(options, decoded),
        "ours, no cache": Ours(options, "no"),
        "ours, no cache, uint8": Ours(options, "no", BYTES),
        "ours, fills": Ours(options, "new"),
        "ours, cached": Ours(options, "yes"),
        "ours, cached, uint8": Ours(options, "yes", BYTES),
    }
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(
        f"{name}, torch {torch.__version__}, {options.workers} workers, {len(pillow)} files, batches of {options.batch}"
    )
    for net in options.net or ["resnet50", "resnet18"]:
        training = Training(net, len(pillow.classes), options.device)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}
        for round_ in range(options.rounds + 1):
            for name in subjects if round_ % 2 else reversed(subjects):
                found = measure(training, subjects[name], options)
                if round_:  # the first warms up the GPU
                    runs[name].append(found)
        limit = [run["speed"] for run in runs["the GPU alone"]]
        print(
            f"\n## {net}\n\n| | samples/s | of the GPU's speed | GPU busy | processor us a sample |\n|---|--:|--:|--:|--:|"
        )
        for name, found in runs.items():
            part = [run["speed"] / most for run, most in zip(found, limit)]
            median = {key: statistics.median(run[key] for run in found) for key in ("speed", "busy", "cpu")}
            print(
                f"| {name} | {median['speed']:,.0f} | {statistics.median(part):.0%} ({min(part):.0%} to {max(part):.0%}) "
                f"| {median['busy']:.0%} | {median['cpu']:,.0f} |",
                flush=True,
            )
    print("\nhits: " + "; ".join(f"{name} {one.hits():,}" for name, one in subjects.items() if isinstance(one, Ours)))


if __name__ == "__main__":
    main()
