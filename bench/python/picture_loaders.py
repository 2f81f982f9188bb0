"""What picture_epochs.py measures: each class reads a folder of JPEGs, or samples that are cached, and gives float32
batches (64, 3, 224, 224): random resized crop, flip, normalisation. Each runs in a process of its own, and imports
there what it needs. Loaders of other projects are set up for speed as their documentation advises."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loaders import tree
from picture_setting import BATCH, CACHED, MEAN, RATIO, SCALE, SIDE, STD, random_box

CONTROL = 4_300_000  # bytes of a segment besides its samples, about
SMALL_BYTES, WHOLE_BYTES = 3 * CACHED * CACHED + 64, 600_000  # of a cached sample

torch.set_num_threads(1)


class Loader:
    """epochs: measured together in a run."""

    def __init__(self, folder: str, epochs: int = 1, workers: int = 2, **settings: Any) -> None:
        self.folder, self.epochs, self.workers = folder, epochs, workers
        self.make(**settings)

    def make(self) -> None:
        """What lasts for all runs."""

    def prepare(self) -> None:
        """What comes before the clock of each run."""

    def before(self) -> int:
        """Epochs without a clock, at the begin of each run."""
        return 0

    def begin(self) -> None:
        """Comes just before the clock, after the search of all processes, which takes milliseconds of Python."""

    def epoch(self) -> Iterable[tuple[Any, int]]:
        """Batches, each with the number of its samples."""
        raise NotImplementedError

    def clear(self) -> None:
        """What comes after the clock of each run."""

    def run(self) -> dict[str, float]:
        """Seconds, and seconds of processors, a sample."""
        self.prepare()
        for _ in range(self.before()):
            for _ in self.epoch():
                pass
        samples, cpu = 0, tree.used(os.getpid())[0]
        self.begin()
        start = time.perf_counter()
        for _ in range(self.epochs):
            for _, n in self.epoch():
                samples += n
        seconds = time.perf_counter() - start
        found = {"samples": samples, "seconds": seconds / samples} | self.more(samples)
        found["cpu"] = (tree.used(os.getpid())[0] - cpu) / samples
        self.clear()
        return found

    def more(self, samples: int) -> dict[str, float]:
        """Other figures of the run."""
        return {}

    def check(self) -> float:
        """The mean of the values of a batch. Raises if its shape or dtype is wrong."""
        self.prepare()
        mean = 0.0
        for pictures, n in self.epoch():
            array = np.asarray(pictures)
            assert len(array) <= n, (len(array), n)  # a bare loop gives its last batch
            assert array.shape[1:] == (3, SIDE, SIDE), array.shape
            assert array.dtype == np.float32, array.dtype
            assert array[0].flags.c_contiguous
            mean = mean or float(array.mean())
        self.clear()
        return mean


# ------------------------------------------------------------------------------------------------ ours


class Ours(Loader):
    """store: "none"; "whole": pictures as large as the file; "small": 3 x 256 x 256, the short side 256 and of that
    the centre. share: of the samples that have a slot. fresh: each run is a first epoch with new workers, and an empty
    cache. Otherwise workers and cache are kept, and the cache is filled first."""

    def make(
        self, store: str = "none", kept: str = "", share: float = 1.0, policy: str = "first-come", fresh: bool = False,
        count: bool = False, batch: int = BATCH,
    ) -> None:  # fmt: skip
        from stocached import image

        self.sizes: dict[str, Any] = {"size": CACHED, "short_side": CACHED} if "small" in (store, kept) else {}
        self.dataset = image.Folder(self.folder, layout="chw", **self.sizes)
        self.augment = image.Compose(
            [
                image.RandomResizedCrop(SIDE),
                image.RandomHorizontalFlip(),
                image.ToDtype("float32", scale=True),
                image.Normalize(MEAN, STD),
            ]
        )
        sample = SMALL_BYTES if store == "small" else WHOLE_BYTES
        size = CONTROL + int(share * len(self.dataset)) * sample
        # These files have one size, for which the loader would choose a cache of one shape. Those of users have many.
        variable = {"variable": True} if store == "whole" else {}
        self.cache = {"size": size, "policy": policy, **variable} if store != "none" else {}
        self.fresh, self.share, self.seed, self.count = fresh, share, 0, Count() if count else None
        self.batch = batch

    def before(self) -> int:
        # The first fills the cache. With the policy cost it tells the costs, and the second changes what is cached.
        # One more, because an epoch begins before the one before it ends: that belongs to both ends of what is measured.
        return 0 if self.fresh else 1 if not self.cache else 3 if self.cache["policy"] == "cost" else 2

    def prepare(self) -> None:
        from stocached import image
        from stocached.torch import DataLoader

        self.seed += 1
        if self.fresh:  # a loader of the same dataset would take the cache of the one before
            self.dataset = image.Folder(self.folder, layout="chw", **self.sizes)
        self.loader = DataLoader(
            self.dataset, self.batch, shuffle=True, seed=self.seed, num_workers=self.workers, augment=self.augment,
            persistent_workers=not self.fresh, **self.cache,
        )  # fmt: skip
        assert self.loader.worker == "native", self.loader.worker

    def begin(self) -> None:
        self.hits = self.loader.stats().hits
        if self.count:
            self.count.begin()

    def epoch(self) -> Iterable[tuple[Any, int]]:
        for pictures, _ in self.loader:
            yield pictures, len(pictures)

    def more(self, samples: int) -> dict[str, float]:
        found = {"hits": (self.loader.stats().hits - self.hits) / samples}
        return found | ({"python": self.count.end() / samples} if self.count else {})

    def clear(self) -> None:
        self.loader.close()
        del self.loader


class Count:
    """Processor time of all threads that have run Python, without that of workers in C, and without that of calls that
    release the GIL: waits for answers, posts of tasks and sums of answers. It is the time for which the GIL may be
    held."""

    def __init__(self) -> None:
        from stocached import _native

        self._work, self._outside, self._left = _native.work, 0.0, threading.local()
        self._workers: set[int] = set()
        _native.work = self._timed
        self._released = 0.0
        for name in ("queue_wait", "queue_push_samples", "queue_collect"):
            setattr(_native, name, self._releasing(getattr(_native, name)))

    def _releasing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self._released += time.thread_time() - start

        return timed

    def _timed(self, *arguments: Any) -> Any:
        self._workers.add(threading.get_ident())
        self._outside += time.thread_time() - getattr(self._left, "at", 0.0)
        result = self._work(*arguments)
        self._left.at = time.thread_time()
        return result

    def _others(self) -> float:
        """Of the threads that are no workers."""
        return sum(
            time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            for thread in threading.enumerate()
            if thread.ident is not None and thread.ident not in self._workers
        )

    def begin(self) -> None:
        self._outside, self._released, self._before = 0.0, 0.0, self._others()

    def end(self) -> float:
        return self._others() - self._before + self._outside - self._released


class Bare(Loader):
    """Threads that do nothing but the fused pass, in C, into a ring of batches."""

    def make(self) -> None:
        import picture_bare

        self.bare = picture_bare.Bare(self.folder)

    def epoch(self) -> Iterable[tuple[Any, int]]:
        self.bare.run(self.workers)
        yield self.bare.ring[:BATCH], len(self.bare.pictures)


class BareFiles(Loader):
    """The same of files: threads that read, decode and augment, by the two functions that native workers call."""

    def make(self) -> None:
        import picture_bare

        self.bare = picture_bare.BareFiles(self.folder)

    def epoch(self) -> Iterable[tuple[Any, int]]:
        self.bare.run(self.workers)
        yield self.bare.ring[0], self.bare.samples


# ------------------------------------------------------------------------------------------------ torch


class Torch(Loader):
    """torch's DataLoader. warm: workers are kept."""

    warm = False

    def prepare(self) -> None:
        if self.warm and hasattr(self, "loader"):
            return
        self.loader = torch.utils.data.DataLoader(
            self.dataset(), BATCH, shuffle=True, num_workers=self.workers, multiprocessing_context="fork",
            persistent_workers=self.warm,
        )  # fmt: skip

    def dataset(self) -> Any:
        raise NotImplementedError

    def epoch(self) -> Iterable[tuple[Any, int]]:
        for pictures, _ in self.loader:
            yield pictures, len(pictures)


def v2_steps() -> Any:
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


class TorchPillow(Torch):
    """ImageFolder with torchvision's transforms v1, as in the example of ImageNet."""

    def dataset(self) -> Any:
        from torchvision import datasets, transforms

        steps: list[Any] = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        return datasets.ImageFolder(self.folder, transforms.Compose(steps))


class TorchDecodeJpeg(Torch):
    """ImageFolder with torchvision.io.decode_jpeg and transforms v2 on uint8 tensors."""

    def dataset(self) -> Any:
        from torchvision import datasets, io

        return datasets.ImageFolder(
            self.folder, v2_steps(), loader=lambda path: io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)
        )


class Cached:
    """Pictures of 256 x 256 in stocaching's cache."""

    def __init__(self, folder: str, work: Callable[[Any], Any], hwc: bool) -> None:
        import stocaching

        from stocached import image

        pictures = image.Folder(folder, size=CACHED, short_side=CACHED, layout="hwc" if hwc else "chw")
        shape = (CACHED, CACHED, 3) if hwc else (3, CACHED, CACHED)
        self._n, self._labels, self._work = len(pictures), pictures.targets, work
        self._cache = stocaching.SharedCache(1, self._n, shape, dtype=torch.uint8)
        for i in range(self._n):
            self._cache.set_slot(i, torch.from_numpy(pictures[i][0]))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Any:
        return self._work(self._cache.get_slot(i)), self._labels[i]


class StocachingV2(Torch):
    warm = True

    def dataset(self) -> Any:
        return Cached(self.folder, v2_steps(), hwc=False)


class StocachingOpenCV(Torch):
    warm = True

    def dataset(self) -> Any:
        import cv2

        cv2.setNumThreads(1)
        scale = np.float32(1) / (np.array(STD, np.float32) * 255)
        shift = -np.array(MEAN, np.float32) / np.array(STD, np.float32)

        def work(picture: Any) -> Any:
            y, x, height, width = random_box(CACHED, CACHED)
            small = cv2.resize(picture.numpy()[y : y + height, x : x + width], (SIDE, SIDE))
            if random.random() < 0.5:
                small = cv2.flip(small, 1)
            out = np.empty((3, SIDE, SIDE), np.float32)
            for c, plane in enumerate(cv2.split(small)):
                np.multiply(plane, scale[c], out=out[c])
                out[c] += shift[c]
            return torch.from_numpy(out)

        return Cached(self.folder, work, hwc=True)


# ------------------------------------------------------------------------------------------------ SPDL, DALI, FFCV


class Spdl(Loader):
    """SPDL's pipeline, with threads that decode, crop, resize and flip by FFmpeg, and one that makes batches."""

    def make(self) -> None:
        self.files = sorted(map(str, Path(self.folder).glob("*/*.jpg")))
        self.scale = (1 / (torch.tensor(STD) * 255)).view(1, 3, 1, 1)
        self.shift = (-torch.tensor(MEAN) / torch.tensor(STD)).view(1, 3, 1, 1)

    def one(self, path: str) -> Any:
        import spdl.io

        packets = spdl.io.demux_image(path)
        y, x, height, width = random_box(packets.height, packets.width)
        flip = ",hflip" if random.random() < 0.5 else ""
        steps = f"crop={width}:{height}:{x}:{y},scale={SIDE}:{SIDE}:flags=bilinear{flip},format=pix_fmts=rgb24"
        return spdl.io.decode_packets(packets, filter_desc=steps)

    def many(self, pictures: Any) -> Any:
        import spdl.io

        pixels = spdl.io.to_torch(spdl.io.convert_frames(pictures))
        out = torch.empty(len(pixels), 3, SIDE, SIDE)
        return out.copy_(pixels.permute(0, 3, 1, 2)).mul_(self.scale).add_(self.shift)

    def epoch(self) -> Iterable[tuple[Any, int]]:
        from spdl.pipeline import PipelineBuilder

        order = np.random.permutation(len(self.files))
        builder = PipelineBuilder().add_source([self.files[k] for k in order])
        builder.pipe(self.one, concurrency=self.workers).aggregate(BATCH)
        pipeline = builder.pipe(self.many).add_sink(4).build(num_threads=self.workers)
        with pipeline.auto_stop():
            for batch in pipeline.get_iterator(timeout=60):
                yield batch, len(batch)


class SpdlTorchvision(Spdl):
    """SPDL's pipeline, with threads that use torchvision.io.decode_jpeg and transforms v2."""

    def make(self) -> None:
        super().make()
        self.steps = v2_steps()

    def one(self, path: str) -> Any:
        from torchvision import io

        return self.steps(io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB))

    def many(self, pictures: Any) -> Any:
        return torch.stack(pictures)


class Dali(Loader):
    """DALI's pipeline for processors. It decodes only the box. fancy: upsamples chroma as all others do."""

    def make(self, fancy: bool = True) -> None:
        self.fancy = fancy
        self.n = sum(1 for _ in Path(self.folder).glob("*/*.jpg"))

    def prepare(self) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def
        def steps() -> Any:
            files, labels = fn.readers.file(file_root=self.folder, shuffle_after_epoch=True)
            pictures = fn.decoders.image_random_crop(
                files, device="cpu", output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO),
                jpeg_fancy_upsampling=self.fancy,
            )  # fmt: skip
            pictures = fn.resize(
                pictures, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True, device="cpu"
            )
            return fn.crop_mirror_normalize(
                pictures, device="cpu", dtype=types.FLOAT, output_layout="CHW", mirror=fn.random.coin_flip(),
                mean=[255 * m for m in MEAN], std=[255 * s for s in STD],
            ), labels  # fmt: skip

        self.pipeline = steps(batch_size=BATCH, num_threads=self.workers, device_id=None)
        self.pipeline.build()
        for _ in range(4):  # batches are made ahead at the end of what is measured, so at its begin too
            self.pipeline.run()

    def epoch(self) -> Iterable[tuple[Any, int]]:
        for _ in range(-(-self.n // BATCH)):  # the last batch is filled with samples of the next epoch
            pictures, _ = self.pipeline.run()
            yield pictures.as_tensor(), BATCH

    def clear(self) -> None:
        del self.pipeline


class Ffcv(Loader):
    """FFCV's loader. It reads a file of its own, with pictures that it has encoded again at the same quality."""

    def make(self, quality: int) -> None:
        from ffcv import fields, transforms
        from ffcv.fields import decoders
        from ffcv.loader import Loader as TheirLoader
        from ffcv.loader import OrderOption
        from ffcv.writer import DatasetWriter
        from torchvision import datasets

        file = f"{self.folder}/../pictures.beton"
        if not os.path.exists(file):
            types = {
                "picture": fields.RGBImageField(write_mode="jpg", jpeg_quality=quality),
                "label": fields.IntField(),
            }
            DatasetWriter(file, types, num_workers=1).from_indexed_dataset(datasets.ImageFolder(self.folder))
        pictures = [
            decoders.RandomResizedCropRGBImageDecoder((SIDE, SIDE), SCALE, RATIO),
            transforms.RandomHorizontalFlip(),
            transforms.NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32),
            transforms.ToTensor(),
            transforms.ToTorchImage(channels_last=False),
        ]
        self.loader = TheirLoader(
            file, BATCH, num_workers=self.workers, order=OrderOption.RANDOM, os_cache=True,
            pipelines={"picture": pictures, "label": [decoders.IntDecoder(), transforms.ToTensor()]},
        )  # fmt: skip

    def epoch(self) -> Iterable[tuple[Any, int]]:
        for pictures, _ in self.loader:
            yield pictures, len(pictures)


KINDS = {kind.__name__: kind for kind in (
    Ours, Bare, BareFiles, TorchPillow, TorchDecodeJpeg, StocachingV2, StocachingOpenCV, Spdl, SpdlTorchvision, Dali,
    Ffcv,
)}  # fmt: skip


def serve(connection: Any, kind: str, settings: dict[str, Any]) -> None:
    """The process of a loader. It answers each request: "check" or "run"."""
    os.dup2(2, 1)  # all that loaders print
    try:
        made = KINDS[kind](**settings)
        connection.send(None)
        for request in iter(connection.recv, "end"):
            connection.send(getattr(made, request)())
    except BaseException as error:
        connection.send(error if isinstance(error, ImportError) else RuntimeError(f"{kind}: {error!r}"))
        raise
