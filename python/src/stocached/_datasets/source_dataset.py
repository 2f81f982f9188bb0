"""SourceDataset: a cache that a server fills, as a dataset of torch. stocached.torch imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._cache import opening
from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.torch_version import torch
from .._samples.tree import as_tensor
from .served_samples import ServedSamples


class SourceDataset(ServedSamples, torch.utils.data.Dataset[Any]):
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
        self._read(Cache(opening.attach(name, None, False, timeout, lambda socket: True)), transform, timeout)

    def _value(self, value: Any, code: int) -> Any:
        return as_tensor(value, code)

    def _rows(self, values: Any) -> list[Any]:
        return list(values.unbind(0))

    def __repr__(self) -> str:
        return f"<stocached.torch.SourceDataset of {self.cache!r}>"


SourceDataset.__module__ = "stocached.torch"  # where users find it
