"""Pictures out of a cache in which a server keeps files: docs/spec/stores.md, In a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._cache import fetch_calls
from .._cache.cache import Cache
from .._cache.other_formats import decode_of
from .._common.errors import FetchFailure, UnsupportedError
from .._common.torch_version import torch
from .._image.errors import DecodeError, NoDecoderError
from .._samples import dtypes
from .._samples.schema import Field


class ServedPictures:
    """Decodes the first field of samples as the server of their cache does."""

    def __init__(self, cache: Cache) -> None:
        """Raises UnsupportedError if this program cannot decode them, with what to do."""
        try:
            self.decode, self._kind = decode_of(cache.decode or "", cache.name, "keeps files (store: encoded)")
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{error}. Or set decode: {{store: decoded}} in the configuration of the server"
            ) from error
        size = self.decode.size
        shape = (3, *size) if self.decode.layout == "chw" else (*size, 3)
        self.field = Field(cache.fields[0].name, shape, dtypes.CODES["uint8"])  # field of a picture
        self._name = cache.name

    def decoded(self, indices: Sequence[int], samples: list[Any]) -> list[Any]:
        """Samples with pictures, as tensors, in place of files. Raises FetchError for those that are no pictures, as
        for pictures that the server decodes."""
        failures = []
        for position, (index, sample) in enumerate(zip(indices, samples)):
            alone = not isinstance(sample, dict)
            try:
                picture = torch.from_numpy(
                    self.decode.decode((sample if alone else sample[self.field.name]).numpy().tobytes(), None)
                )
            except NoDecoderError as error:
                raise NoDecoderError(error.reason, f"sample {index} of cache {self._name!r}") from error
            except DecodeError as error:
                why = f"its file in cache {self._name!r} does not decode: {error.reason}"
                failures.append(FetchFailure(position, index, self._kind, why))
                continue
            samples[position] = picture if alone else sample | {self.field.name: picture}
        if failures:
            raise fetch_calls.error(failures, None, None)
        return samples
