"""The samples of a cache that a server fills. Needs no torch, unlike `SourceDataset`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from .._cache.cache import Cache
from .._common.errors import InvalidError
from .._common.numbers import position_of
from .._image.errors import DecodeError
from .._memory.buffer_pool import BatchBuffers
from .._samples import dtypes
from .._samples.schema import Array, Field
from .._samples.tree import Tree
from .cache_backed import CacheBacked
from .thread_hits import ThreadHits

if TYPE_CHECKING:
    from .served_pictures import ServedPictures


class ServedSamples(CacheBacked):
    """A sample is an array, or `bytes` if its size is not fixed. One with several fields is a dict of them by name. A
    batch is one `Cache.fetch`."""

    served = True
    _parts_given: ClassVar[tuple[str, ...]] = ("transform",)

    def _read(self, cache: Cache, transform: Callable[[Any], Any] | None, timeout: float | None) -> None:
        """Takes its cache. transform, timeout: as of `SourceDataset`."""
        self.cache, self.transform, self.timeout = cache, _of_samples(transform), timeout
        self._pictures: ServedPictures | None = None
        if cache.decode is not None:
            from .served_pictures import ServedPictures  # needs torch

            self._pictures = ServedPictures(cache)
        self.decode = None if self._pictures is None else self._pictures.decode
        self.thread_hits = ThreadHits()
        self._batches = BatchBuffers(() if cache.variable else cache.fields)

    def _value(self, value: Any, code: int) -> Any:
        """A value of a field of this code, or of several samples, as programs get it."""
        return value[()]  # a number, not an array without dimensions

    def _rows(self, values: Any) -> list[Any]:
        """The samples of several values."""
        return list(values)

    def gathered_tree(self) -> Tree | None:
        return Tree(self.blank()) if self.transform is None and not self.cache.variable else None

    def blank(self) -> Any:
        fields = list(self.cache.fields)
        if self._pictures is not None:
            fields[0] = self._pictures.field
        if not all(field.fixed for field in fields):
            return None
        arrays = [np.zeros((1, *cast("tuple[int, ...]", field.shape)), field.dtype) for field in fields]
        return self._samples(fields, arrays)[0]

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
        return self._samples(fields, arrays)

    def _fetch(self, wanted: list[int], out: Any = None) -> Any:
        fetched, hit = self.fetch(wanted, out)
        self.thread_hits.add(hit)
        return fetched

    def _variable(self, wanted: list[int]) -> list[Any]:
        fields = self.cache.fields
        values = self._fetch(wanted)
        if len(fields) == 1:
            samples = [self._shown(fields[0], value) for value in values]
        else:
            samples = [{field.name: self._shown(field, value[field.name]) for field in fields} for value in values]
        return samples if self._pictures is None else self._pictures.decoded(wanted, samples)

    def _samples(self, fields: Sequence[Field], arrays: list[Array]) -> list[Any]:
        """The rows of the fields' arrays as samples."""
        columns = [self._column(field, array) for field, array in zip(fields, arrays)]
        return columns[0] if len(fields) == 1 else [dict(zip([f.name for f in fields], row)) for row in zip(*columns)]

    def _column(self, field: Field, array: Array) -> list[Any]:
        if field.code == dtypes.BYTES:
            return [row.tobytes() for row in array]
        return self._rows(self._value(array, field.code))

    def _shown(self, field: Field, value: Any) -> Any:
        return value if field.code == dtypes.BYTES else self._value(value, field.code)

    def stats(self) -> Any:
        """`Cache.stats()` of its cache."""
        return self.cache.stats()


def _of_samples(transform: Any) -> Any:
    """A transform of samples. Decode alone takes the bytes of a file, and no dict that has them."""
    if type(transform).__module__ == "stocached._image.decoding":
        from .._image.steps import Compose

        return Compose([transform])
    return transform
