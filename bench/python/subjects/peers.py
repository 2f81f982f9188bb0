"""Subjects of other projects' loaders: the same images, each in the project's best format, in files
that the page cache holds; shuffled epochs; batches of torch tensors. Each is set up for speed as
its documentation advises, and is imported only in its own process."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import sets
import torch
from harness import Whole

torch.set_num_threads(1)


class _Peer(Whole):
    """A subject with its own folder of files."""

    def __init__(self, *, folder: str, n: int, shape: Any, batch: int, workers: int, epochs: int = 1) -> None:
        self.n, self.samples, self.epochs = n, n * epochs, epochs
        self.shape, self.batch, self.workers = tuple(shape), batch, workers
        self.folder = f"{folder}/{sets.own_name(type(self).__name__.lower())}"
        os.mkdir(self.folder)
        self.open(sets.Images(n, shape))

    def open(self, images: sets.Images) -> None:
        """Converts and makes the loader."""
        raise NotImplementedError

    def once(self) -> Iterable[Any]:
        raise NotImplementedError

    def epoch(self) -> Iterable[Any]:
        for _ in range(self.epochs):
            yield from self.once()

    def __del__(self) -> None:
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def _loader_options(self) -> dict[str, Any]:
        return (
            {"num_workers": self.workers, "persistent_workers": True, "multiprocessing_context": "fork"}
            if self.workers
            else {}
        )

    def _npy(self, images: sets.Images) -> str:
        path = f"{self.folder}/images.npy"
        whole = np.lib.format.open_memmap(path, "w+", np.uint8, (self.n, *self.shape))
        for i in range(self.n):
            whole[i] = images[i]
        whole.flush()
        return path


class LitData(_Peer):
    def open(self, images: sets.Images) -> None:
        import litdata

        litdata.optimize(
            fn=_Loads(images),
            inputs=list(range(self.n)),
            output_dir=f"{self.folder}/chunks",
            chunk_bytes="64MB",
            num_workers=1,
            verbose=False,
        )
        dataset = litdata.StreamingDataset(f"{self.folder}/chunks", shuffle=True)
        options = {"num_workers": self.workers, "persistent_workers": True} if self.workers else {}
        self._loader = litdata.StreamingDataLoader(dataset, batch_size=self.batch, **options)

    def once(self) -> Iterable[Any]:
        return iter(self._loader)


class Streaming(_Peer):
    """mosaicml-streaming."""

    def open(self, images: sets.Images) -> None:
        import streaming

        with streaming.MDSWriter(
            out=f"{self.folder}/mds", columns={"image": f"ndarray:uint8:{','.join(map(str, self.shape))}"}
        ) as out:
            for i in range(self.n):
                out.write({"image": images[i]})
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(local=f"{self.folder}/mds", shuffle=True, batch_size=self.batch)
        self._loader = torch.utils.data.DataLoader(dataset, batch_size=self.batch, **self._loader_options())

    def once(self) -> Iterable[Any]:
        for batch in self._loader:
            yield batch["image"]


class WebDataset(_Peer):
    """Tar shards of raw bytes, shuffled by a buffer and by shard."""

    def open(self, images: sets.Images) -> None:
        import webdataset

        shape = self.shape
        shards = max(2, self.workers)
        each = -(-self.n // shards)
        for k in range(shards):
            with webdataset.TarWriter(f"{self.folder}/{k}.tar") as out:
                for i in range(k * each, min((k + 1) * each, self.n)):
                    out.write({"__key__": str(i), "bin": images[i].tobytes()})

        def decoded(sample: dict[str, Any]) -> Any:
            return np.frombuffer(sample["bin"], np.uint8).reshape(shape)

        urls = sorted(str(path) for path in Path(self.folder).glob("*.tar"))
        dataset = webdataset.WebDataset(
            urls, shardshuffle=len(urls), nodesplitter=None, workersplitter=webdataset.split_by_worker
        )
        self._loader = torch.utils.data.DataLoader(
            dataset.shuffle(256, initial=64)
            .map(decoded)
            .batched(self.batch, collation_fn=lambda many: torch.from_numpy(np.stack(many))),
            batch_size=None,
            **self._loader_options(),
        )

    def once(self) -> Iterable[Any]:
        return iter(self._loader)


class Spdl(_Peer):
    """A pipeline that reads a batch of rows of a mapped .npy in each of `workers` threads."""

    def open(self, images: sets.Images) -> None:
        self._rows = np.load(self._npy(images), mmap_mode="r")
        self._rng = np.random.default_rng(1)

    def once(self) -> Iterable[Any]:
        from spdl.pipeline import PipelineBuilder

        order = self._rng.permutation(self.n)
        rows, batch = self._rows, self.batch

        def load(at: int) -> Any:
            return torch.from_numpy(np.take(rows, order[at : at + batch], axis=0))

        pipeline = (
            PipelineBuilder()
            .add_source(range(0, self.n, batch))
            .pipe(load, concurrency=max(self.workers, 1))
            .add_sink(4)
            .build(num_threads=max(self.workers, 1))
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)


class Grain(_Peer):
    """MapDataset over a mapped .npy, repeated without end: a new iterator would start new
    workers."""

    def open(self, images: sets.Images) -> None:
        import grain

        rows = np.load(self._npy(images), mmap_mode="r")
        dataset = grain.MapDataset.source(_Rows(rows)).seed(1).shuffle().batch(self.batch).repeat()
        iterable = dataset.to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=16))
        if self.workers:
            # Its workers need parsed flags, and no main function has parsed them.
            from absl import flags

            flags.FLAGS.mark_as_parsed()
            iterable = iterable.mp_prefetch(grain.MultiprocessingOptions(num_workers=self.workers))
        self._iterator = iter(iterable)

    def run(self) -> dict[str, float]:
        """Runs two epochs without a clock first: batches made ahead while others ran would cost
        nothing."""
        for _ in range(2):
            for _ in self.once():
                pass
        start = time.perf_counter()
        for _ in self.epoch():
            pass
        return {"samples": self.samples, "seconds": time.perf_counter() - start}

    def once(self) -> Iterable[Any]:
        for batch in itertools.islice(self._iterator, -(-self.n // self.batch)):
            yield torch.from_numpy(np.asarray(batch))


class _Rows:
    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        return np.array(self._rows[i])


class TorchData(_Peer):
    """StatefulDataLoader over a tensor in memory."""

    def open(self, images: sets.Images) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        whole = torch.empty((self.n, *self.shape), dtype=torch.uint8)
        for i in range(self.n):
            whole[i] = torch.from_numpy(images[i])
        self._loader = StatefulDataLoader(whole, batch_size=self.batch, shuffle=True, **self._loader_options())

    def once(self) -> Iterable[Any]:
        return iter(self._loader)


class Monai(_Peer):
    """CacheDataset, everything cached."""

    def open(self, images: sets.Images) -> None:
        from monai.data import CacheDataset, DataLoader

        dataset = CacheDataset(
            list(range(self.n)),
            transform=_Loads(images),
            cache_rate=1.0,
            num_workers=1,
            progress=False,
            copy_cache=False,
        )
        self._loader = DataLoader(dataset, batch_size=self.batch, shuffle=True, **self._loader_options())

    def once(self) -> Iterable[Any]:
        return iter(self._loader)


class _Loads:
    def __init__(self, images: sets.Images) -> None:
        self._images = images

    def __call__(self, i: int) -> Any:
        return torch.from_numpy(self._images[i])


class Datasets(_Peer):
    """HF datasets: a binary column of an Arrow file, read with frombuffer."""

    def open(self, images: sets.Images) -> None:
        import datasets

        datasets.disable_progress_bars()
        features = datasets.Features({"image": datasets.Value("large_binary")})
        made = datasets.Dataset.from_generator(
            lambda: ({"image": images[i].tobytes()} for i in range(self.n)),
            features=features,
            cache_dir=f"{self.folder}/arrow",
        )
        shape = self.shape

        def collate(rows: list[dict[str, Any]]) -> Any:
            return torch.from_numpy(np.stack([np.frombuffer(row["image"], np.uint8).reshape(shape) for row in rows]))

        self._loader = torch.utils.data.DataLoader(
            made, batch_size=self.batch, shuffle=True, collate_fn=collate, **self._loader_options()
        )

    def once(self) -> Iterable[Any]:
        return iter(self._loader)
