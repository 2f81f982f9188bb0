"""SourceDataset: a cache that a server fills, as a dataset of torch. stocached.torch imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from .._cache import opening
from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.numbers import position_of
from .._common.torch_version import torch
from .._image.errors import DecodeError
from .._memory.buffer_pool import BatchBuffers
from .._samples import dtypes
from .._samples.schema import Array, Field
from .._samples.tree import Tree, as_tensor
from .cache_backed import CacheBacked
from .served_pictures import ServedPictures
from .thread_hits import ThreadHits


class SourceDataset(CacheBacked, torch.utils.data.Dataset[Any]):
    """Gives the samples of a cache that `stocached serve` fills from its source. It needs no
    dataset code. A batch is one `Cache.fetch`.

    A sample is a tensor, or `bytes` if its size is not fixed (files that are not decoded). A sample
    with several fields is a dict of them by name. A cache with `decode: {store: encoded}` gives the
    same samples as with `store: decoded`: the dataset decodes its files. Tensors of a batch are rows of
    one private tensor. All are the caller's own. It keeps up to 64 MiB of the memory of dropped
    batches, for each field and batch size.

    If the server ends, hits need no server, and misses wait until a server runs again. FetchError
    names the files that cannot be read. ReplacedError means that the data has changed: make a new
    dataset.
    Concurrency: DataLoader with any number of workers, by fork, spawn or forkserver; threads. Can
    be pickled."""

    served = True
    _parts_given = ("transform",)

    def __init__(
        self, name: str, *, transform: Callable[[Any], Any] | None = None, timeout: float | None = 60.0
    ) -> None:
        """name: of a cache in the server's configuration.
        transform: is called with each sample, and returns what the caller gets. It decodes bytes
            and does what is random. A step of stocached.image, such as Decode, changes the first
            picture of a sample.
        timeout: the most seconds that the constructor takes, and each batch, including the wait for a
            server that is away. Leave time to restart a server, and to read a whole batch from the
            source. None: 60 seconds for a server, and no limit for its samples.

        Raises as `Cache.attach`: CacheNotFoundError (FileNotFoundError) with the command that
        starts a server. UnsupportedError: the cache keeps files, and this installation of stocached
        cannot decode them; it says what to install."""
        if not isinstance(name, str):
            raise InvalidError(f"name is {name!r}; it must be the name of a cache that a server fills")
        self.cache = Cache(opening.attach(name, None, False, timeout, lambda socket: True))
        self.transform = _of_samples(transform)
        self.timeout = timeout
        self._pictures = None if self.cache.decode is None else ServedPictures(self.cache)
        self.decode = None if self._pictures is None else self._pictures.decode
        self.thread_hits = ThreadHits()
        self._batches = BatchBuffers(() if self.cache.variable else self.cache.fields)

    def gathered_tree(self) -> Tree | None:
        return Tree(self.blank()) if self.transform is None and not self.cache.variable else None

    def blank(self) -> Any:
        fields = list(self.cache.fields)
        if self._pictures is not None:
            fields[0] = self._pictures.field
        if not all(field.fixed for field in fields):
            return None
        arrays = [np.zeros((1, *cast("tuple[int, ...]", field.shape)), field.dtype) for field in fields]
        return _samples(fields, arrays)[0]

    def __len__(self) -> int:
        return self.cache.samples

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch."""
        wanted = [self._index(index) for index in indices]
        samples = self._variable(wanted) if self.cache.variable else self._fixed(wanted)
        return samples if self.transform is None else [self._transformed(*pair) for pair in zip(wanted, samples)]

    def _transformed(self, index: int, sample: Any) -> Any:
        assert self.transform is not None
        try:
            return self.transform(sample)
        except DecodeError as error:
            why = str(error).removeprefix("bytes: ")
            raise DecodeError(f"sample {index} of cache {self.cache.name!r}: {why}") from error
        except InvalidError as error:  # a step is invalid
            raise InvalidError(f"sample {index} of cache {self.cache.name!r}: {error}") from error

    def _index(self, index: int) -> int:
        return position_of(index, self.cache.samples)

    def _fixed(self, wanted: list[int]) -> list[Any]:
        fields, arrays = self.cache.fields, self._batches.take(len(wanted))
        names = [field.name for field in fields]
        self._fetch(wanted, arrays[0] if len(fields) == 1 else dict(zip(names, arrays)))
        return _samples(fields, arrays)

    def _fetch(self, wanted: list[int], out: Any = None) -> Any:
        fetched, hit = self.fetch(wanted, out)
        self.thread_hits.add(hit)
        return fetched

    def _variable(self, wanted: list[int]) -> list[Any]:
        fields = self.cache.fields
        values = self._fetch(wanted)
        if len(fields) == 1:
            samples = [_shown(fields[0], value) for value in values]
        else:
            samples = [{field.name: _shown(field, value[field.name]) for field in fields} for value in values]
        return samples if self._pictures is None else self._pictures.decoded(wanted, samples)

    def stats(self) -> Any:
        """`Cache.stats()` of its cache."""
        return self.cache.stats()

    def __repr__(self) -> str:
        return f"<stocached.torch.SourceDataset of {self.cache!r}>"


def _of_samples(transform: Any) -> Any:
    """A transform of samples. Decode alone takes the bytes of a file, and no dict that has them."""
    if type(transform).__module__ == "stocached._image.decoding":
        from .._image.steps import Compose

        return Compose([transform])
    return transform


def _samples(fields: Sequence[Field], arrays: list[Array]) -> list[Any]:
    """The rows of the fields' arrays as samples."""
    columns = [_rows(field, array) for field, array in zip(fields, arrays)]
    return columns[0] if len(fields) == 1 else [dict(zip([f.name for f in fields], row)) for row in zip(*columns)]


def _shown(field: Field, value: Any) -> Any:
    return value if field.code == dtypes.BYTES else as_tensor(value, field.code)


def _rows(field: Field, array: Array) -> list[Any]:
    return (
        [row.tobytes() for row in array] if field.code == dtypes.BYTES else list(as_tensor(array, field.code).unbind(0))
    )


SourceDataset.__module__ = "stocached.torch"  # where users find it
