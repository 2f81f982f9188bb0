"""Pictures of datasets whose samples have the bytes of a file, such as source("train", labels="folders") and tar shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from .._common.ours import only_ours
from .decoding import Decode
from .folder import Decoded
from .pipeline import Files, files_of
from .steps import Step


class FileBytes(Protocol):
    """A sample is the bytes of a file, or a dict of them and a whole number."""

    picture_fields: tuple[str, ...] | None
    """The names of the file and of the number; (): samples are bytes alone. None: samples are others."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def name(self, index: int) -> str:
        """For errors."""

    def picture_files(self) -> Files:
        """Where the bytes lie, for C."""


def decode_of(function: Any) -> Decode | None:
    """The Decode that a step begins with."""
    decode = function if isinstance(function, Decode) else getattr(function, "decode", None)
    return decode if isinstance(decode, Decode) and isinstance(function, (Decode, Step)) else None


def takes_files(dataset: Any, function: Any) -> bool:
    """Whether a step decodes the files of a dataset."""
    fields = getattr(dataset, "picture_fields", None)
    return fields is not None and decode_of(function) is not None and only_ours(function)


class DecodedFiles(Decoded):
    """The samples of a dataset after a step that decodes their files. They keep their form."""

    def __init__(self, dataset: FileBytes, step: Any) -> None:
        """step: of `decode_of`."""
        super().__init__(None if isinstance(step, Decode) else step, None, {})
        decode = decode_of(step)
        assert decode is not None
        self.dataset, self.decode = dataset, decode

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> tuple[Any, ...]:
        """The bytes of the file of a sample, and the other values of the sample."""
        sample = self.dataset[index]
        return tuple(sample.values()) if isinstance(sample, dict) else (sample,)

    def sample(self, picture: Any, others: list[Any]) -> Any:
        """As the samples of the dataset are."""
        fields = self.dataset.picture_fields
        return dict(zip(fields, (picture, *others))) if fields else picture

    def name(self, index: int) -> str:
        """The file of a sample, for errors."""
        return self.dataset.name(index)

    def files(self) -> Files:
        """The files of all samples, for C. The dataset does not change, so they are made once."""
        return files_of(self.dataset, [], lambda _: replace(self.dataset.picture_files(), made_of=[]))

    def __repr__(self) -> str:
        return f"{repr(self.dataset)[:-1]}, {self.decode}>"
