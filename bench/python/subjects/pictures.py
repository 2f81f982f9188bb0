"""Loaders of pictures: each class reads a folder of files, or samples that are cached, and gives float32 batches
(64, 3, 224, 224): random resized crop, flip, normalisation. Loaders of other projects are set up for speed as their
documentation advises."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tree
from harness import BUILT, ROOT

BATCH, SIDE, CACHED = 64, 224, 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
CONTROL = 4_300_000  # bytes of a segment besides its samples, about
SMALL_BYTES, WHOLE_BYTES = 3 * CACHED * CACHED + 64, 600_000  # bytes of a cached sample

torch.set_num_threads(1)


RING = 6  # batches, as many as the memory of a loader's batches


def random_box(rows: int, columns: int) -> tuple[int, int, int, int]:
    """That of RandomResizedCrop: y, x, height and width. torchvision's function takes 50 us, and others would wait for
    it."""
    for _ in range(10):
        area, ratio = rows * columns * random.uniform(*SCALE), math.exp(random.uniform(*map(math.log, RATIO)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            return random.randint(0, rows - height), random.randint(0, columns - width), height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side


def compiled(name: str, *libraries: str) -> ctypes.CDLL:
    """bench/c/<name>.c as a library."""
    made, source = BUILT / f"{name}.so", ROOT / f"bench/c/{name}.c"
    BUILT.mkdir(parents=True, exist_ok=True)
    partial = made.with_suffix(f".{os.getpid()}")
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'cimage'}", "-o", partial, source, *libraries]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(partial.rename(made)))


def pages(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory that begins at a page, as that of a loader's batches, and that has its pages."""
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory.fill(1)
    return memory


def in_threads(part: Callable[[int, int], None], threads: int) -> None:
    """part(k, threads) in thread k of so many."""
    others = [threading.Thread(target=part, args=(k, threads)) for k in range(threads)]
    for one in others:
        one.start()
    for one in others:
        one.join()


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
        samples, cpu = 0, tree.used(os.getpid())
        self.begin()
        start = time.perf_counter()
        for _ in range(self.epochs):
            for _, n in self.epoch():
                samples += n
        seconds = time.perf_counter() - start
        found = {"samples": samples, "seconds": seconds} | self.more(samples)
        found["cpu"] = (tree.used(os.getpid()) - cpu) / samples
        self.clear()
        return found

    def more(self, samples: int) -> dict[str, float]:
        """Other figures of the run."""
        return {}

    def check(self) -> None:
        self.prepare()
        mean = None
        for pictures, n in self.epoch():
            array = np.asarray(pictures)
            assert len(array) <= n, (len(array), n)  # a bare loop gives its last batch
            assert array.shape[1:] == (3, SIDE, SIDE), array.shape
            assert array.dtype == np.float32, array.dtype
            assert array[0].flags.c_contiguous
            mean = float(array.mean()) if mean is None else mean
        self.clear()
        if mean is None or not -0.3 < mean < 0.7:
            raise RuntimeError(f"the mean of a batch is {mean}")


# ------------------------------------------------------------------------------------------------ ours


class Ours(Loader):
    """store: "none"; "whole": pictures as large as the file; "small": 3 x 256 x 256, the short side 256 and of that
    the centre. share: of the samples that have a slot. fresh: each run is a first epoch with new workers, and an empty
    cache. Otherwise workers and cache are kept, and the cache is filled first."""

    def make(
        self, store: str = "none", kept: str = "", share: float = 1.0, policy: str = "first-come", fresh: bool = False,
        batch: int = BATCH,
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
        self.fresh, self.share, self.seed = fresh, share, 0
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

    def epoch(self) -> Iterable[tuple[Any, int]]:
        for pictures, _ in self.loader:
            yield pictures, len(pictures)

    def more(self, samples: int) -> dict[str, float]:
        return {"hits": (self.loader.stats().hits - self.hits) / samples}

    def clear(self) -> None:
        self.loader.close()
        del self.loader


# ------------------------------------------------------------------------------------------------ bare threads


class Bare(Loader):
    """Threads that do nothing but the fused pass of cached pictures, in C, into a ring of batches."""

    def make(self) -> None:
        from stocached import image
        from stocached._native import _image_header as native

        files = image.Folder(self.folder, size=CACHED, short_side=CACHED, layout="chw")
        self._cached = np.stack([picture for picture, _ in files])
        self._loop, self._native = compiled("augment").loop_augment, native
        self.pictures = (native.Picture * len(files))()
        self._how = (native.Augment * len(files))()
        order = random.sample(range(len(files)), len(files))
        for k, picture in enumerate(order):
            self.pictures[k] = native.Picture(self._cached[picture].ctypes.data, CACHED, CACHED, 3, native.CHW)
            how = self._how[k]
            how.box_y, how.box_x, how.box_height, how.box_width = random_box(CACHED, CACHED)
            how.resized_width = how.resized_height = how.width = how.height = SIDE
            how.flip, how.dtype, how.divisor = random.randrange(2), native.FLOAT32, 255
            how.mean[:], how.std[:] = MEAN, STD
        shape = (RING * BATCH, 3, SIDE, SIDE)
        self.ring = pages(4 * math.prod(shape)).view(np.float32).reshape(shape)
        self._workers = [native.worker_new() for _ in range(2)]

    def _part(self, k: int, of: int) -> None:
        """Every so many-th picture. ctypes releases the GIL."""
        augment = ctypes.cast(self._native.augment, ctypes.c_void_p)
        code = self._loop(
            augment, self._workers[k], self.pictures, self._how, *map(ctypes.c_size_t, (k, len(self.pictures), of)),
            self.ring.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(self.ring)),
        )  # fmt: skip
        assert code == 0

    def epoch(self) -> Iterable[tuple[Any, int]]:
        in_threads(self._part, self.workers)
        yield self.ring[:BATCH], len(self.pictures)


class BareFiles(Loader):
    """Threads that read, decode and augment files, by the two functions that native workers call."""

    def make(self, **sizes: int) -> None:
        """sizes: of pictures that are not augmented."""
        from stocached import image
        from stocached._native import _image_header as native
        from stocached._samples.batch_layout import Layout

        steps = [image.RandomResizedCrop(SIDE), image.RandomHorizontalFlip(), image.ToDtype("float32", scale=True)]
        augment = None if sizes else image.Compose([*steps, image.Normalize(MEAN, STD)])
        files = image.Folder(self.folder, layout="chw", **sizes)
        pipeline = files.pipeline(augment)
        blank = pipeline.blanks()[0]
        layout = Layout.of(augment(blank) if augment else blank, BATCH)
        self._workers, self._native = [pipeline.worker(layout) for _ in range(2)], native
        self._memory = [pages(layout.bytes) for _ in range(RING)]
        self.ring = [layout.arrays(memory, BATCH)[0] for memory in self._memory]
        self.samples, self._order = len(files), random.sample(range(len(files)), len(files))

    def _part(self, k: int, of: int) -> None:
        handle, sample, size = self._workers[k].handle, ctypes.c_void_p(), ctypes.c_size_t()
        for at in range(k, self.samples, of):
            index, memory = self._order[at], self._memory[at // BATCH % RING].ctypes.data
            assert self._native.load(handle, index, ctypes.byref(sample), ctypes.byref(size)) == 0
            assert self._native.finish(handle, at, sample, size, memory, at % BATCH) == 0

    def epoch(self) -> Iterable[tuple[Any, int]]:
        in_threads(self._part, self.workers)
        yield self.ring[0], self.samples


class BareFill(BareFiles):
    """Threads that read, decode and resize files."""

    def make(self) -> None:
        super().make(size=CACHED)

    def check(self) -> None:
        self.run()


class Served(BareFill):
    """A server reads, decodes and resizes files, and stores them in its cache, which is empty before each run."""

    def make(self, at: str) -> None:
        decode = {"resize": [CACHED, CACHED], "fit": "crop", "layout": "chw"}
        cache = {"name": "pictures", "dir": at, "source": {"kind": "dir", "path": self.folder}, "decode": decode}
        sockets, config = f"{at}/sockets", Path(at, "config.yaml")
        Path(at).mkdir()
        config.write_text(json.dumps({"caches": [cache], "sockets": {"dir": sockets}, "log": {"level": "warn"}}))
        os.environ |= {"STOCACHED_SOCKETS_DIR": sockets, "STOCACHED_DECODE": str(ROOT / "build/stocached-decode")}
        command = [ROOT / "bin/stocached", "serve", "-c", config]
        server = self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout.readline().startswith("serving")

    def prepare(self) -> None:
        from stocached import Cache

        self.cache = Cache.attach("pictures")
        self.cache.clear()
        self.samples = len(self.cache)

    def epoch(self) -> Iterable[tuple[Any, int]]:
        subprocess.run([ROOT / "bin/stocached", "warm", "pictures"], stdout=subprocess.DEVNULL, check=True)
        yield None, self.samples


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


class TorchImage(Torch):
    """ImageFolder with torchvision.io.decode_image and transforms v2 on uint8 tensors."""

    def dataset(self) -> Any:
        from torchvision import datasets, io

        return datasets.ImageFolder(
            self.folder, v2_steps(), loader=lambda path: io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
        )


class Cached:
    """Pictures of 256 x 256 in stocaching's cache."""

    def __init__(self, folder: str, work: Callable[[Any], Any]) -> None:
        import stocaching

        from stocached import image

        pictures = image.Folder(folder, size=CACHED, short_side=CACHED, layout="chw")
        self._n, self._labels, self._work = len(pictures), pictures.targets, work
        self._cache = stocaching.SharedCache(1, self._n, (3, CACHED, CACHED), dtype=torch.uint8)
        for i in range(self._n):
            self._cache.set_slot(i, torch.from_numpy(pictures[i][0]))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Any:
        return self._work(self._cache.get_slot(i)), self._labels[i]


class StocachingV2(Torch):
    warm = True

    def dataset(self) -> Any:
        return Cached(self.folder, v2_steps())


# ------------------------------------------------------------------------------------------------ SPDL, DALI


class Spdl(Loader):
    """SPDL's pipeline, with threads that decode, crop, resize and flip by FFmpeg, and one that makes batches."""

    def make(self) -> None:
        self.files = sorted(map(str, Path(self.folder).glob("*/*.*")))
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
    """SPDL's pipeline, with threads that use torchvision.io.decode_image and transforms v2."""

    def make(self) -> None:
        super().make()
        self.steps = v2_steps()

    def one(self, path: str) -> Any:
        from torchvision import io

        return self.steps(io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB))

    def many(self, pictures: Any) -> Any:
        return torch.stack(pictures)


class Dali(Loader):
    """DALI's pipeline for processors. It decodes only the box. fancy: upsamples chroma as all others do."""

    def make(self, fancy: bool = True) -> None:
        self.fancy = fancy
        self.n = sum(1 for _ in Path(self.folder).glob("*/*.*"))

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
